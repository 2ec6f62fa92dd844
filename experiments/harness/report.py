"""Writes what came of an experiment beside what its paper says; nothing is trained.

    jaxfl report
    jaxfl report ifca --scale laptop

Reads `results.jsonl` and `targets.json`; writes `report/report.md`, `report/report.html` (one page, the pictures in it)
and the pictures beside the results. A number that was not made is a dash, with the command that makes it.
"""

import re
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.harness import base, claims, figures, others, results, studies
from experiments.harness.base import Cell, Experiment, Study
from experiments.harness.entries import EMPTY, Entry, collect, runs, tables
from jaxfl.cli import page
from jaxfl.files import check_is_folder, check_output, has_mark, signature, write_text
from jaxfl.plots.style import write_picture
from jaxfl.schema import quoted
from jaxfl.settings import user_code

FOLDER, MARKDOWN, HTML = "report", "report.md", "report.html"


def write(experiment: Experiment, scale: str, folder: Path) -> Path:
    """Writes the report of a scale.

    Args:
        experiment: of `base.load`.
        scale: of its scales.
        folder: of the results.

    Returns:
        The Markdown file.
    """
    entries = collect(experiment, scale, folder)
    out = check_folder(experiment, folder)
    out.mkdir(parents=True, exist_ok=True)
    before = _shown(out / MARKDOWN)
    drawn: set[frozenset[str]] = set()
    blocks = [
        page.Heading(1, f"{experiment.title}: {scale} scale"),
        page.Text(f"{experiment.paper} {experiment.scale(scale).cuts}"),
        *(block for table in tables(entries) for block in _table_blocks(experiment, scale, entries, table, out, drawn)),
        *(block for study in experiment.scale(scale).studies for block in _study(experiment, scale, study, folder)),
        *_claims(experiment, entries),
        *_elsewhere(experiment, scale, entries),
    ]
    write_text(out / MARKDOWN, page.markdown(blocks))
    write_text(out / HTML, page.html(f"{experiment.name}, {scale}", blocks, out, "report"))
    for path in (
        out / name for name in {*before} - {*_shown(out / MARKDOWN)}
    ):  # last: the report that was there is whole
        if path.is_file() and has_mark(path, signature("report").encode()):  # of a report that was edited, others stay
            path.unlink()
    return out / MARKDOWN


def check_folder(experiment: Experiment, folder: Path) -> Path:
    """Returns the folder of the report in a folder of results.

    Raises:
        ValueError: it has files that no report of the experiment has written; the message names one.
    """
    out = folder / FOLDER
    check_is_folder(out, "out")
    head = f"# {experiment.title}: "
    ours = (out / MARKDOWN).is_file() and (out / MARKDOWN).read_bytes().startswith(head.encode())
    own = {MARKDOWN, HTML, *_shown(out / MARKDOWN)} if ours else set()
    for path in sorted(out.iterdir()) if out.is_dir() else ():
        if path.name not in own and (path.name in (MARKDOWN, HTML) or path.suffix == ".png"):
            check_output(path, "out", signature("report"))
    return out


def _shown(report: Path) -> list[str]:
    """Returns the names of the pictures of a report in Markdown; none where there is no report."""
    text = report.read_text(encoding="utf-8", errors="replace") if report.is_file() else ""
    return [name for name in re.findall(r"^!\[.*\]\(([^/)]+\.png)\)$", text, re.MULTILINE)]


def comparison(entries: Sequence[Entry], table: str) -> page.Table:
    """Returns a table as the paper prints it: ours, and in brackets the paper's and the gap."""
    own = {(entry.cell.row, entry.cell.column): entry for entry in entries if entry.cell.table == table}
    rows, columns = (list(dict.fromkeys(key[axis] for key in own)) for axis in (0, 1))

    def word(row: str, column: str) -> str:
        entry = own.get((row, column))
        if entry is None:
            return ""
        gap = "" if entry.gap is None else f"; {entry.gap:+.2f}"
        return entry.ours if entry.target is None else f"{entry.ours} ({entry.papers}{gap})"

    return page.Table(["", *columns], [[row, *(word(row, column) for column in columns)] for row in rows])


def details(experiment: Experiment, scale: str, entries: Sequence[Entry]) -> page.Table:
    """Returns a line for each run: the first number that it makes, what it took, and the command that makes it."""
    head = ["row", "column", "here", "paper", "gap", "seeds", "clusters", "ARI", "seconds a run", "command"]

    def mean(values: Sequence[float], form: str) -> str:
        return form.format(statistics.fmean(values)) if values else EMPTY

    return page.Table(
        head,
        [
            [
                entry.cell.row,
                entry.cell.column,
                entry.ours,
                entry.papers,
                EMPTY if entry.gap is None else f"{entry.gap:+.2f}",
                f"{len(entry.lines)} of {len(entry.cell.seeds)}",
                mean(entry.values("num_clusters"), "{:.1f}"),
                mean(entry.values("ari"), "{:z.3f}"),
                mean([line["seconds"] for line in entry.lines if line.get("seconds") is not None], "{:,.0f}"),
                page.Code(command(experiment, scale, entry.cell)),
            ]
            for entry in runs(entries)
        ],
    )


def command(experiment: Experiment, scale: str, cell: Cell | Study) -> str:
    """Returns the command that makes a cell or a study; DIR is the folder of the data's files."""
    if isinstance(cell, Cell) and cell.row == cell.method:  # of no paper's table, see `others.with_method`
        return cell.command()
    files = ["--data-dir", "DIR"] if cell.needs_files else []
    return shlex.join(["jaxfl", "reproduce", experiment.name, "--scale", scale, *files, "--only", cell.label])


def _table_blocks(
    experiment: Experiment, scale: str, entries: Sequence[Entry], table: str, out: Path, drawn: set[frozenset[str]]
) -> list[page.PageBlock]:
    """Returns the blocks of a table, and draws its pictures into `out`; curves of the same runs are `drawn` once."""
    own = [entry for entry in entries if entry.cell.table == table]
    metrics = " and ".join(dict.fromkeys(f"{e.cell.metric.replace('_', ' ')} {e.cell.unit}".strip() for e in own))
    unit = "points" if any(entry.cell.unit == "%" for entry in own) else "units"
    legend = (
        f"{metrics}: mean ± standard deviation over the seeds; in brackets the paper's, and ours minus the paper's in "
        f"{unit}. {EMPTY} was not made."
    )
    blocks: list[page.PageBlock] = [page.Heading(2, table), page.Text(legend), comparison(entries, table)]
    blocks += [
        page.Text(f"{entry.cell.row}, {entry.cell.column}: failed, {entry.failure}") for entry in own if entry.failure
    ]
    blocks += [page.Text(text) for text in _notes(own)]
    if any(entry.lines for entry in own):
        points = [
            figures.Point(
                e.cell.row, e.cell.column, e.mean, e.std, e.target and e.target.value, e.target and e.target.std
            )
            for e in own
        ]
        if any(point.mean is not None or point.value is not None for point in points):
            blocks.append(_save(figures.comparison(points, metrics), out, table, f"{table}: here and in the paper"))
    blocks += [page.Heading(3, "How each number is made"), details(experiment, scale, own)]
    made = [entry for entry in runs(own) if entry.lines]
    for column in dict.fromkeys(entry.cell.column for entry in made):
        shown = [entry for entry in made if entry.cell.column == column]
        curves = {entry.cell.row: [line["history"] for line in entry.lines] for entry in shown}
        names = frozenset(line["id"] for entry in shown for line in entry.lines)
        if names in drawn:
            continue
        drawn.add(names)
        text = f"{column}: convergence, mean over the seeds"
        picture = _save(figures.convergence(curves), out, f"{table} {column}", text)
        blocks += [page.Heading(3, text), picture]
    return blocks


def _study(experiment: Experiment, scale: str, study: Study, folder: Path) -> list[page.PageBlock]:
    """Returns the blocks of a study."""
    found = studies.read(folder, study)
    how = page.Table(["how it is made"], [[page.Code(command(experiment, scale, study))]])
    if found is None:
        return [page.Heading(2, study.label), page.Text("Not made."), how]
    blocks: list[page.PageBlock] = [page.Heading(2, study.label), page.Text(found["text"])]
    if found["table"]:
        head = list(found["table"][0])
        blocks.append(page.Table(head, [[_word(row[name]) for name in head] for row in found["table"]]))
    blocks += [page.Picture(f"../{studies.FOLDER}/{file}", text) for text, file in found["pictures"].items()]
    return [*blocks, how]


def _claims(experiment: Experiment, entries: Sequence[Entry]) -> list[page.PageBlock]:
    """Returns which of two rows is better, as far as the seeds say it."""
    found = claims.table(experiment, entries)
    return [] if found is None else [page.Heading(2, "Which is better"), page.Text(claims.WORDS), found]


def _word(value: Any) -> str:
    """Returns a value of a study's table."""
    if value is None:
        return EMPTY
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _notes(entries: Sequence[Entry]) -> list[str]:
    """Returns what must be known of some numbers, each note once with the rows that it is about."""
    about: dict[str, list[str]] = {}
    for entry in entries:
        for note in (entry.cell.note, entry.target.note if entry.target else ""):
            if note:
                about.setdefault(note, []).append(entry.cell.row)
    return [f"{', '.join(dict.fromkeys(rows))}: {note}" for note, rows in about.items()]


def _elsewhere(experiment: Experiment, scale: str, entries: Sequence[Entry]) -> list[page.PageBlock]:
    """Returns how many of the paper's numbers have no cell at this scale, by table, and where they are made."""
    here, paper = {entry.cell.label for entry in entries}, {cell.label for cell in experiment.scales["paper"].cells}
    counts: dict[tuple[str, str], int] = {}
    for label, target in base.targets(experiment.name).items():
        if label not in here:
            where = "at the scale paper" if label in paper else f"nowhere: {target.missing}"
            counts[target.table, where] = counts.get((target.table, where), 0) + 1
    if scale == "smoke" or not counts:
        return []
    rows = [[table, str(count), where] for (table, where), count in counts.items()]
    return [page.Heading(2, "Not at this scale"), page.Table(["table", "numbers", "made"], rows)]


def _save(figure: Any, out: Path, name: str, text: str) -> page.Picture:
    """Writes a picture and returns its block."""
    file = studies.slug(name) + ".png"
    write_picture(figure, out / file, dpi=100, command="report")
    return page.Picture(file, text)


def reports(
    name: str | None = None, scale: str | None = None, out: Path | None = None, methods: Sequence[str] = ()
) -> str:
    """Writes the reports that are asked for.

    Args:
        name: of an experiment; None is all.
        scale: None is every scale that has results, or `laptop` where none has.
        out: the folder that `reproduce --out` wrote to; it needs a name and a scale.
        methods: in files, whose rows are shown too; the files are executed.

    Returns:
        The tables and where the reports lie, as Markdown.

    Raises:
        ValueError: an unknown name or scale, a folder without knowing whose, or a method that has no row there.
    """
    if out is not None and (name is None or scale is None):
        raise ValueError("out needs the experiment's name and --scale: the folder does not say which cells it is for.")
    wanted: list[tuple[Experiment, str, Path]] = []
    for experiment in map(base.load, base.names() if name is None else [name]):
        made = [one for one in base.SCALES if (experiment.results(one) / results.RESULTS).exists()]
        for one in [scale] if scale is not None else made or ["laptop"]:
            experiment.scale(one)
            wanted.append((experiment, one, experiment.results(one) if out is None else out))
    rows = {user_code.run_label(method) for *_, folder in wanted for method in others.remembered(folder)}
    if unknown := [method for method in methods if user_code.run_label(method) not in rows]:
        raise ValueError(
            f"method must have a row in a folder of results, got {quoted(unknown[0])}; jaxfl reproduce --method makes "
            "one."
        )
    said = []
    for experiment, one, folder in wanted:
        whole = others.with_remembered(experiment, folder, methods)
        written, entries = write(whole, one, folder), collect(whole, one, folder)
        blocks = [block for table in tables(entries) for block in (page.Text(table), comparison(entries, table))]
        heading = page.Heading(1, f"{experiment.name}, {one}")
        said.append(page.markdown([heading, *blocks, page.Text(f"{written} and {HTML} beside it")]))
    return "\n".join(said)


if __name__ == "__main__":
    from jaxfl import cli

    cli.main(["report", *sys.argv[1:]])
