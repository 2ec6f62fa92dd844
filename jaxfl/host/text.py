"""Names of classes, clients, runs and files as text that a terminal, a picture, a page or a spreadsheet may show."""

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

JOINERS = "\u200c\u200d"  # invisible, and part of the spelling of several scripts and of emoji
# A spreadsheet takes a cell for a formula that begins with one of these (OWASP, "CSV Injection").
FORMULA_STARTS = "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"
BOLD = "\x02{}\x03"  # format of a bold part of a cell of a table: no printable name has these characters


def printable(text: str, *, lines: bool = False) -> str:
    r"""Returns a text with escapes for what has no glyph: control, bidirectional and undecodable characters.

    Args:
        text: of any characters.
        lines: whether line ends stay.

    >>> print(printable("\x1b[31mred \u202egpj.exe caf\udce9 \u00e9\n"))
    \x1b[31mred \u202egpj.exe caf\udce9 é\n
    """
    if text.isprintable():
        return text

    def shown(letter: str) -> str:
        visible = letter.isprintable() or letter in JOINERS or unicodedata.category(letter) == "Zs"
        return letter if visible or (lines and letter == "\n") else letter.encode("unicode_escape").decode("ascii")

    return "".join(map(shown, text))


def encodable(text: str) -> str:
    r"""Returns a text that UTF-8 can encode, with escapes for characters of file names that could not be decoded.

    >>> print(encodable("caf\udce9"))
    caf\udce9
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def bold_parts(cell: str) -> list[tuple[str, bool]]:
    """Returns the parts of a cell, and whether each is bold; what is not printable is written as escapes.

    >>> bold_parts(f"{BOLD.format('1.0')} tuned"), bold_parts("1.0")
    ([('1.0', True), (' tuned', False)], [('1.0', False)])
    """
    parts = re.split("|".join(BOLD.split("{}")), cell)
    return [(printable(part), place % 2 == 1) for place, part in enumerate(parts) if part or len(parts) == 1]


def markdown_cell(cell: str) -> str:
    r"""Returns a cell of a table in Markdown, which shows it as it is; `BOLD` becomes bold.

    >>> print(markdown_cell("a|b *c* num_clusters _d_ <b>"), markdown_cell(BOLD.format("1")))
    a\|b \*c\* num_clusters \_d\_ \<b\> **1**
    """
    active = r"[\\`*\[\]<>|~$&]|(?<![^\W_])_|_(?![^\W_])"
    parts = [(re.sub(active, r"\\\g<0>", text), is_bold) for text, is_bold in bold_parts(cell)]
    return "".join(f"**{text}**" if is_bold else text for text, is_bold in parts)


def csv_cell(text: str) -> str:
    """Returns a text as a cell of a CSV file: with an apostrophe before it where a spreadsheet would see a formula.

    Apostrophes that are there before such a start are kept, so that the text without the first one is the original.

    >>> csv_cell("=1+1"), csv_cell("'=1+1"), csv_cell("'tis"), csv_cell("a=1")
    ("'=1+1", "''=1+1", "'tis", 'a=1')
    """
    return f"'{text}" if text.lstrip("'")[:1] in tuple(FORMULA_STARTS) else text


def csv_table(columns: "Mapping[str, Iterable[Any]] | pandas.DataFrame") -> str:
    """Returns columns of equal lengths as CSV, texts as `csv_cell` has them; empty for None and NaN.

    It is what pandas makes of them, without its import.

    >>> print(csv_table({"name": ["a", "=b"], "loss": [0.1, float("nan")]}), end="")
    name,loss
    a,0.1
    '=b,
    """

    def cell(value: Any) -> Any:
        if isinstance(value, str):
            return csv_cell(value)
        return "" if value is None or value != value else value

    # of arrays `tolist` makes numbers of Python, which print as short as they can
    cells = [
        [csv_cell(str(name)), *map(cell, getattr(one, "tolist", lambda one=one: one)())]
        for name, one in columns.items()
    ]
    # a bare return would be read as a line end
    quoted = any("\r" in one for column in cells for one in column if isinstance(one, str))
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC if quoted else csv.QUOTE_MINIMAL)
    rows.writerows(zip(*cells, strict=True))
    return encodable(text.getvalue())
