"""Tables that are made from results and stand in the README and in pages, between two comments."""

import functools
import re
from pathlib import Path

from docs.generate import examples, reliability, results, speed
from jaxfl.bench import AXES

ROOT = Path(__file__).parents[2]
TABLES = {
    "automatic threshold": results.automatic,
    "cpu": speed.cpu,
    "cpu machine": speed.cpu_machine,
    "five results": results.five_rows,
    "h100": speed.h100,
    "language clusters": examples.language_clusters,
    "language methods": examples.language_methods,
    "lecturer clusters": examples.lecturer_clusters,
    "lecturer methods": examples.lecturer_methods,
    "machine": speed.machine,
    "reliability": reliability.counts,
    "scaling machine": speed.scaling_machine,
    "table 1": results.table_1,
    **{f"scaling {over}": functools.partial(speed.scaling, over) for over in AXES},
}
PLACE = re.compile(r"(<!-- made: (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def documents() -> list[Path]:
    """Returns the documents that may have such tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs" / "pages").rglob("*.md"))]


def renewed(text: str) -> str:
    """Returns a document with its tables made anew."""
    return PLACE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[4]}", text)
