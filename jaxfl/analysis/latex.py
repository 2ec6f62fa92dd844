"""Cells of a table as LaTeX writes them."""

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
