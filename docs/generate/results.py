"""What the experiments gave, from the files that are committed with them: pages for the site, and tables."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"


class Report(NamedTuple):
    """A report of an experiment at one scale."""

    experiment: str
    scale: str
    text: str
    pictures: dict[str, Path]  # where the text looks for it, and where it is


def experiments() -> list[str]:
    """Returns the experiments that have a README and targets."""
    return sorted(path.parent.name for path in EXPERIMENTS.glob("*/targets.json"))


def readme(name: str) -> str:
    """Returns the page of an experiment: its README, with links to its reports."""
    text = (EXPERIMENTS / name / "README.md").read_text(encoding="utf-8")
    links = [f"[all numbers at {scale} scale]({name}-{scale}.md)" for scale in scales(name)]
    return f"{text.rstrip()}\n\n## Reports\n\n{', '.join(links) or 'None is committed.'}\n"


def scales(name: str) -> list[str]:
    """Returns the scales of which a report is committed."""
    return sorted(path.parents[1].name for path in (EXPERIMENTS / name / "results").glob("*/report/report.md"))


def reports() -> Iterator[Report]:
    """Yields the committed reports."""
    for name in experiments():
        for scale in scales(name):
            path = EXPERIMENTS / name / "results" / scale / "report" / "report.md"
            text = path.read_text(encoding="utf-8")
            pictures = {}
            for link in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text):
                place = f"images/{name}-{scale}-{Path(link).name}"
                if (path.parent / link).exists():
                    pictures[place] = (path.parent / link).resolve()
                    text = text.replace(f"]({link})", f"]({place})")
                else:  # the report of a run whose picture is not kept
                    text = re.sub(rf"!\[[^\]]*\]\({re.escape(link)}\)\n*", "", text)
            yield Report(name, scale, text, pictures)


def automatic() -> str:
    """Returns a sentence on the automatic threshold, from its study."""
    (study,) = (EXPERIMENTS / "stocfl" / "results" / "laptop" / "studies").glob("automatic-threshold*.json")
    return json.loads(study.read_text(encoding="utf-8"))["text"]
