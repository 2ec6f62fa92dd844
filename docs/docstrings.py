"""A griffe extension: docstrings of jaxfl as Markdown. Equations and doctests stay as they are written.

What a class says of its fields in comments beside them is told as its attributes.
"""

import re
from typing import Any

import griffe

from docs.generate.methods import escape

DOCTEST = re.compile(r"^>>> .*(?:\n(?!\s*$).+)*", re.MULTILINE)
COMMENT = re.compile(r"  # (?P<said>.*)$")  # beside a field
# An indented block between two blank lines, of a docstring's text: the lines of `Args` follow their heading directly.
EQUATIONS = re.compile(r"(?<=\n\n)((?: {4}.*\n|\n(?= {4}))+)(?=\n|\Z)")


class Docstrings(griffe.Extension):
    """Changes every docstring once, before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Changes the docstring of an object."""
        if obj.docstring is not None and "```" not in obj.docstring.value:
            obj.docstring.value = as_markdown(with_attributes(obj.docstring.value, obj))


def with_attributes(text: str, obj: griffe.Object) -> str:
    """Returns the docstring of a class with a section of its fields, where it has none."""
    if not obj.is_class or "Attributes:\n" in text:
        return text
    found = {name: COMMENT.search(field.source) for name, field in obj.attributes.items()}
    said = [f"    {name}: {comment['said']}" for name, comment in found.items() if comment]
    return "\n".join([text, "", "Attributes:", *said]) if said else text


def as_markdown(text: str) -> str:
    """Returns a docstring whose doctests and indented blocks are fenced."""
    kept: list[str] = []

    def keep(block: str) -> str:
        kept.append(block)
        return f"\0{len(kept) - 1}\0"

    text = DOCTEST.sub(lambda found: keep(f"```pycon\n{found[0].rstrip()}\n```"), text)
    text = EQUATIONS.sub(
        lambda found: keep("```text\n" + re.sub("^ {4}", "", found[1].rstrip(), flags=re.MULTILINE) + "\n```\n"), text
    )
    return re.sub("\0(\\d+)\0", lambda found: kept[int(found[1])], escape(text))
