"""Reports made of blocks, rendered as Markdown or as one self-contained HTML page.

>>> blocks = [Heading(1, "Tables"), Table(("row", "command"), [("IFCA", Code("jaxfl run ifca")), ("a|b", "")])]
>>> print(markdown(blocks))
# Tables
<BLANKLINE>
| row | command |
|---|---|
| IFCA | `jaxfl run ifca` |
| a\\|b |  |
<BLANKLINE>
>>> page = html("Tables", blocks, Path(), "run")
>>> "<td><code>jaxfl run ifca</code></td>" in page, "<script>" in page
(True, False)
"""

import base64
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from jaxfl.files import signature
from jaxfl.host.text import bold_parts, markdown_cell, printable

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
h1, h2, h3 { line-height: 1.2; margin: 2rem 0 .6rem }
div { overflow-x: auto }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { border-bottom: 1px solid #ddd; padding: .25rem .7rem .25rem 0; text-align: left; vertical-align: top }
thead th { border-bottom: 2px solid #888 }
pre { font-size: 12px; line-height: 1.4 }
code { font-size: 12px; background: #f4f4f4; padding: 0 .2em }
img { display: block; max-width: 100%; margin: 1rem 0 }
"""
SORTING = """
.sorted { max-height: 40rem; overflow: auto }
.sorted thead th { position: sticky; top: 0; background: #fff }
.sorted td { white-space: nowrap }
.sorted button { all: unset; cursor: pointer; white-space: nowrap }
.sorted button:focus-visible { outline: 2px solid #0072B2 }
.sorted button::after { content: " \\2195"; color: #999 }
[aria-sort=ascending] button::after { content: " \\2191"; color: inherit }
[aria-sort=descending] button::after { content: " \\2193"; color: inherit }
"""
# A click on a column's name sorts by it, the next click in reverse; empty cells stay at the end. Cells are compared by
# the number that they begin with ("92.00 ± 2.83", "\N{MINUS SIGN}1.5"), then by their text.
SCRIPT = """
for (const table of document.querySelectorAll(".sorted table")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, place) => head.firstChild.addEventListener("click", () => {
    const way = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const rows = [...body.rows].map(row => [row.cells[place].textContent, row]);
    rows.sort(([a], [b]) => {
      if (a === "" || b === "") return (a === "") - (b === "");
      const [x, y] = [a, b].map(cell => parseFloat(cell.replace("\u2212", "-")));
      return way * ((isNaN(x) || isNaN(y) ? 0 : x - y) || a.localeCompare(b, "en", {numeric: true}));
    });
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", way === 1 ? "ascending" : "descending");
    body.append(...rows.map(([, row]) => row));
  }));
}
"""


class Code(str):
    """Text of a command line, set in a fixed-width font."""


class Bold(str):
    """Bold text of a cell."""

    @classmethod
    def of(cls, cell: str) -> str:
        """Returns a cell, as bold text if it is marked by `jaxfl.host.text.BOLD`."""
        texts, are_bold = zip(*bold_parts(cell), strict=True)
        return cls("".join(texts)) if any(are_bold) else cell


class Link(str):
    """Text of a link."""

    target: str

    @classmethod
    def to(cls, target: str, text: str) -> "Link":
        """Returns a link to an address relative to the page."""
        found = cls(text)
        found.target = target
        return found


class Heading(NamedTuple):
    """A heading; level 1 is the title of the page."""

    level: int
    text: str


class Text(NamedTuple):
    """A paragraph."""

    text: str


class Table(NamedTuple):
    """A table of texts; on a page, a click on a column's name sorts a table with `sorted`."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    sorted: bool = False


class Listing(NamedTuple):
    """Printed lines of a program."""

    text: str


class Picture(NamedTuple):
    """A PNG file beside the report; with `dpi`, its text has the same size on a page as that of other pictures."""

    name: str
    text: str
    dpi: int | None = None


PageBlock = Heading | Text | Table | Listing | Picture


def markdown(blocks: Sequence[PageBlock]) -> str:
    """Returns the blocks as Markdown; pictures refer to their files."""
    return "\n\n".join(map(_markdown_block, blocks)) + "\n"


def html(title: str, blocks: Sequence[PageBlock], folder: Path, command: str) -> str:
    """Returns the blocks as one page.

    Args:
        title: of the browser's window.
        blocks: of the report.
        folder: of the pictures, which are embedded in the page.
        command: of jaxfl, which may replace the page later, see `jaxfl.files.check_output`.
    """
    body, style = "\n".join(_html_block(block, folder) for block in blocks), STYLE
    if any(isinstance(block, Table) and block.sorted for block in blocks):
        body, style = f"{body}\n<script>{SCRIPT}</script>", STYLE + SORTING
    return (
        f'<!doctype html>\n<!-- {signature(command)} -->\n<html lang="en">\n<head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_html_text(title)}</title><style>{style}</style></head>\n<body>\n{body}\n</body>\n</html>\n"
    )


PNG = "data:image/png;base64,"  # begins an embedded picture


def count_pictures(text: str) -> int:
    """Returns the number of pictures in a page of `html`."""
    return text.count(f'src="{PNG}')


def _markdown_block(block: PageBlock) -> str:
    match block:
        case Heading(level, text):
            return f"{'#' * level} {_without_tags(text)}"
        case Text(text):
            return _without_tags(text)
        case Listing(text):
            return f"```text\n{text}\n```"
        case Picture(name, text, _):
            return f"![{_without_tags(text)}]({name})"
        case Table(head, rows, _):
            lines = [head, *rows]
            text = [f"| {' | '.join(map(_markdown_cell, line))} |" for line in lines]
            return "\n".join([text[0], f"|{'---|' * len(head)}", *text[1:]])


def _without_tags(text: str) -> str:
    r"""Returns a text in which Markdown sees no HTML.

    >>> print(_without_tags("failed, <script>, 1 < 2"))
    failed, \<script>, 1 < 2
    """
    return re.sub(r"<(?=[^\s\d])", r"\<", text)


def _markdown_cell(word: str) -> str:
    text = markdown_cell(word)
    if isinstance(word, Link):
        return f"[{text}](<{word.target}>)"
    if isinstance(word, Code):
        code = printable(word).replace("|", "\\|")
        return f"`{code}`" if "`" not in code else f"`` {code} ``" if "``" not in code else text
    return f"**{text}**" if isinstance(word, Bold) else text


def _html_text(text: str) -> str:
    """Returns a text as HTML shows it, letter by letter."""
    return escape(printable(text, lines=True))


def _html_block(block: PageBlock, folder: Path) -> str:
    match block:
        case Heading(level, text):
            return f"<h{level}>{_html_text(text)}</h{level}>"
        case Text(text):
            return f"<p>{_html_text(text)}</p>"
        case Listing(text):
            return f"<div><pre>{_html_text(text)}</pre></div>"
        case Picture(name, text, dpi):
            png = (folder / name).read_bytes()
            content = base64.b64encode(png).decode()
            pixels = int.from_bytes(png[16:20], "big")  # its width, in the header
            wide = "" if dpi is None else f' width="{round(96 * pixels / dpi)}"'  # a browser has 96 in an inch
            return f'<img alt="{_html_text(text)}"{wide} src="{PNG}{content}">'
        case Table(head, rows, sortable):
            form = "<th><button>{}</button></th>" if sortable else "<th>{}</th>"
            top = "".join(form.format(_html_text(word)) for word in head)
            lines = "\n".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in rows)
            start = '<div class="sorted">' if sortable else "<div>"
            return f"{start}<table>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table></div>"


def _html_cell(word: str) -> str:
    if isinstance(word, Link):
        return f'<td><a href="{escape(word.target)}">{_html_text(word)}</a></td>'
    tag = "code" if isinstance(word, Code) else "b" if isinstance(word, Bold) else ""
    return f"<td><{tag}>{_html_text(word)}</{tag}></td>" if tag else f"<td>{_html_text(word)}</td>"
