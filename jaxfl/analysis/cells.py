"""Cells of a table: numbers in words, and words as LaTeX writes them."""

import math
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
    std = deviation(values) if spread else None
    return f"{statistics.fmean(values):z.{digits}f}{'' if std is None else f' {PLUS_MINUS} {std:.{digits}f}'}"


def deviation(values: Sequence[float]) -> float | None:
    """Returns the standard deviation of a sample (n - 1); None of one number, or where one of them is not finite.

    >>> deviation([1.0, 3.0]), deviation([1.0]), deviation([1.0, math.inf])
    (1.4142135623730951, None, None)
    """
    return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None
