"""Cells of a table: numbers in words, and words as LaTeX writes them."""

import statistics
from collections.abc import Sequence

PLUS_MINUS, MINUS = "\N{PLUS-MINUS SIGN}", "\N{MINUS SIGN}"
SIGNS = str.maketrans(
    {
        **{sign: rf"\{sign}" for sign in "&%_#${}"},
        **{"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}", "<": "$<$", ">": "$>$", "|": "$|$"},
        **{PLUS_MINUS: r"$\pm$", MINUS: "$-$"},
    }
)


def tex(cell: str) -> str:
    r"""Returns a cell, which may be bold: `<b>...</b>`.

    >>> print(tex("layers=^Conv_{0} 5 %"), tex("<b>1</b>"))
    layers=\^{}Conv\_\{0\} 5 \% \textbf{1}
    """
    bold, cell = cell.startswith("<b>"), cell.removeprefix("<b>").removesuffix("</b>").translate(SIGNS)
    return rf"\textbf{{{cell}}}" if bold else cell


def cell(values: Sequence[float] | None, digits: int, *, spread: bool = False) -> str:
    """Returns a mean, with the deviation if it is wanted; a score that is as good as 0 has no sign.

    >>> cell([-1e-9, 1e-10], 3)
    '0.000'
    """
    if not values:
        return "-"
    told = f" {PLUS_MINUS} {statistics.stdev(values):.{digits}f}" if spread and len(values) > 1 else ""
    return f"{statistics.fmean(values):z.{digits}f}{told}"
