"""Names of classes, clients, runs and files as text that a terminal, a picture, a page or a spreadsheet may show."""

import csv
import re
import unicodedata
from typing import TYPE_CHECKING

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


def csv_table(frame: "pandas.DataFrame") -> str:
    """Returns a data frame as CSV, texts as `csv_cell` has them."""
    safe, quoting = frame.rename(columns=csv_cell), csv.QUOTE_MINIMAL
    for place, name in enumerate(frame.columns):
        if frame[name].dtype.kind not in "biufc":
            column = [csv_cell(value) if isinstance(value, str) else value for value in frame[name]]
            safe.isetitem(place, column)
            if any("\r" in str(value) for value in column):  # left bare otherwise, and read as a line end
                quoting = csv.QUOTE_NONNUMERIC
    return encodable(safe.to_csv(index=False, quoting=quoting))
