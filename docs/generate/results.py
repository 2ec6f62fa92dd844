"""What the experiments gave, from the files that are committed with them: pages for the site, and tables."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"
COLUMN = "MNIST 1200 x 200, 10 %"  # of StoCFL's table 1: the column that was made whole
NAMES = {
    "FedAvg, chain": "FedAvg, a chain of clients",
    "FedProx": "FedProx, mu = 0.05",
    "Ditto": "Ditto, lambda = 0.1",
    "StoCFL": "StoCFL, tau = 0.5, lambda = 0.05",
    "StoCFL, official": 'StoCFL, `preset="official"`',
}
FIVE = ("FedAvg", "IFCA M=4", "StoCFL", "FedAvg, chain", "StoCFL, official")


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


def table_1(names: tuple[str, ...] | None = None) -> str:
    """Returns the column of StoCFL's table 1 that was made whole, beside the paper's."""
    runs = {row: run for row, run in _runs().items() if names is None or row in names}
    lines = ["| method | micro accuracy | in the paper | clusters | ARI |", "|---|---|---|---|---|"]
    for row in names or sorted(runs, key=list(_targets()["rows"]).index):
        summary = runs[row]["summary"]
        paper = _targets()["rows"][row][_targets()["columns"].index(COLUMN)].split(" ")[0]
        own = summary["num_clusters"] == summary["num_clients"]
        clusters = "one a client" if own else summary["num_clusters"]
        ari = "" if own else f"{summary['ari']:.2f}"
        called = NAMES.get(row, row.replace("M=", "K = ").replace("IFCA K", "IFCA, K"))
        lines.append(f"| {called} | {100 * summary['micro_accuracy']:.2f} % | {paper} % | {clusters} | {ari} |")
    return "\n".join(lines)


def five_rows() -> str:
    """Returns five of these rows, for the README."""
    return table_1(FIVE)


def automatic() -> str:
    """Returns a sentence on the automatic threshold, from its study."""
    (study,) = (EXPERIMENTS / "stocfl" / "results" / "laptop" / "studies").glob("automatic-threshold*.json")
    return json.loads(study.read_text(encoding="utf-8"))["text"]


def _targets() -> dict[str, Any]:
    """Returns the paper's table 1."""
    tables = json.loads((EXPERIMENTS / "stocfl" / "targets.json").read_text(encoding="utf-8"))["tables"]
    return next(table for table in tables if table["name"] == "Table 1")


def _runs() -> dict[str, dict[str, Any]]:
    """Returns the runs of the column by row."""
    lines = (EXPERIMENTS / "stocfl" / "results" / "laptop" / "results.jsonl").read_text(encoding="utf-8").splitlines()
    found = {}
    for run in map(json.loads, lines):
        table, row, column = run["cell"].split(" / ")
        if (table, column) == ("Table 1", COLUMN):
            found[row] = run
    return found
