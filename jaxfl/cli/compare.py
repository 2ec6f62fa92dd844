"""`jaxfl compare`: finished runs side by side, as a printed table, files, a picture and a page."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import jaxfl
from jaxfl.analysis import finished
from jaxfl.analysis.comparison import Comparison, ComparisonByData, Line, compare, compare_by_data
from jaxfl.analysis.finished import FinishedRun
from jaxfl.cli import page
from jaxfl.cli.run_page import PAGE, command_line, format_cell
from jaxfl.cli.tables.console import print_parts, print_table, stderr, stdout
from jaxfl.files import check_output, real_path, signature, write_text
from jaxfl.host.text import BOLD
from jaxfl.jobs.job import DPI
from jaxfl.jobs.loaded import written_job
from jaxfl.plots import style
from jaxfl.plots.curves import curves
from jaxfl.protocols import scores
from jaxfl.schema import check_name
from jaxfl.simulation.records.identity import FINGERPRINT

COMMAND = "compare"  # in what is written
CURVE_METRICS = ("loss", "num_clusters", "ari")  # drawn beside the compared metric, where all runs have them
TABLE_NOTE = "Mean and standard deviation over the seeds."
SORTING_NOTE = "The best mean on each federation is bold. A click on the name of a column sorts the table."
PAIRS_NOTE = "Differences are from the first row on the same federation, of runs of the same seed"
T_NOTE = "p is of the paired t-test"
HOLM_NOTE = "p (Holm) adjusts it for the {} of the table"
WILCOXON_NOTE = "p (Wilcoxon) is of the signed-rank test, not adjusted, and at least {:.2g} with {}"
MAX_NAMED = 5  # folders in a note
RunsBySetting = Mapping[str, Sequence[FinishedRun]]
AnyComparison = Comparison | ComparisonByData


def difference_sentence(found: Comparison) -> str:
    """Returns a sentence that says what the differences in the table of a comparison are; empty without them."""
    every, titles = [one for one, _ in found.differences().values()], found.table()[0]
    tested = [one.seeds for one in every if one.wilcoxon is not None]
    phrases = [PAIRS_NOTE] if every else []
    if tested:
        most = max(tested)
        phrases += [T_NOTE] if "p" in titles else []
        phrases += [HOLM_NOTE.format(style.count_phrase(len(tested), "comparison"))] if "p (Holm)" in titles else []
        least = WILCOXON_NOTE.format(2.0 ** (1 - most), style.count_phrase(most, "seed"))
        phrases += [least] if "p (Wilcoxon)" in titles else []
    return f"{'; '.join(phrases)}." if phrases else ""


def run_notes(found: AnyComparison, unfinished: Sequence[Path]) -> list[str]:
    """Returns sentences on what a comparison leaves out, does not pair, or has of fewer rounds.

    Args:
        found: of runs that were read from folders.
        unfinished: folders that are left out.
    """
    parts = [found] if isinstance(found, Comparison) else found.parts.values()
    runs: list[Any] = [run for part in parts for line in part.lines for run in line.runs.values()]
    counted: list[Any] = [
        run for part in parts if part.target is not None for line in part.lines for run in line.runs.values()
    ]
    notes = []
    if isinstance(found, Comparison) and len(found.data) > 1:
        notes.append(
            f"the rows are on {len(found.data)} federations or budgets ({'; '.join(found.data)}): bold means and "
            "differences are within each; --by data writes a column for each."
        )
    if unknown := [run.path for run in runs if FINGERPRINT not in run.summary] if len(runs) > 1 else []:
        notes.append(
            f"not paired, since an older version has made them and no fingerprint of their federation is kept: "
            f"{_named_folders(unknown)}; jaxfl run with their options and --resume adds it."
        )
    if some := [run.path for run in counted if run.summary.get("test_rows") is not None]:
        notes.append(
            "rounds and bytes until the target are by evaluations of some rows (test_rows), without the last, which "
            f"is of all: {_named_folders(some)}."
        )
    if early := [run.path for run in runs if run.summary["rounds"] < run.rounds]:
        notes.append(
            f"ended before their last round, with the numbers of the round they reached: {_named_folders(early)}."
        )
    if unfinished:
        notes.append(f"left out because they are not finished: {_named_folders(unfinished)}.")
    return notes


def _named_folders(folders: Sequence[Path]) -> str:
    """Returns a phrase with some folders and the number of the others."""
    others = f" and {len(folders) - MAX_NAMED} more" if len(folders) > MAX_NAMED else ""
    return ", ".join(map(str, folders[:MAX_NAMED])) + others


def write_page(settings: RunsBySetting, found: AnyComparison, unfinished: Sequence[Path], path: Path) -> None:
    """Writes the page of a comparison.

    Args:
        settings: runs by setting, from `jaxfl.analysis.finished.read_runs`.
        found: the comparison of the settings.
        unfinished: folders that are left out.
        path: of the page.
    """
    runs = [run for line in settings.values() for run in line]
    parts = {"": found} if isinstance(found, Comparison) else found.parts
    federations = dict.fromkeys(run.summary["data"] for run in runs) if isinstance(found, Comparison) else parts
    title = f"{style.count_phrase(len(settings), 'setting')} on {', '.join(federations)}"
    blocks: list[page.PageBlock] = [
        page.Heading(1, title),
        page.Text(_runs_sentence(runs)),
        page.Heading(2, "Results"),
        *_table_blocks(found),
        *(page.Text(f"{note[0].upper()}{note[1:]}") for note in run_notes(found, unfinished)),
    ]
    with TemporaryDirectory() as folder:
        for place, (data, part) in enumerate(parts.items()):
            blocks.append(page.Heading(2, data or "Curves"))
            blocks += _table_blocks(part) if data else []
            blocks += _curve_pictures(part, Path(folder), f"{place}-")
        columns = dict.fromkeys(entry for part in parts.values() for entry in (part.metric, *part.measures()))
        blocks += [page.Heading(2, "Runs"), _runs_table(parts, [*columns, "rounds"], path.parent)]
        if commands := _command_rows(parts):
            head = ["setting", *(["data"] if len(parts) > 1 else []), "command of its first run"]
            blocks += [page.Heading(2, "Commands"), page.Table(head, commands)]
        write_text(path, page.html(title, blocks, Path(folder), COMMAND))


def _table_blocks(found: AnyComparison) -> list[page.PageBlock]:
    """Returns the table of a comparison, and what it says."""
    header, *rows = found.table(bold=BOLD)
    sentences = [TABLE_NOTE, difference_sentence(found)] if isinstance(found, Comparison) else [found.caption()]
    cells = [[page.Bold.of(cell) for cell in row] for row in rows]
    return [page.Text(" ".join(filter(None, [*sentences, SORTING_NOTE]))), page.Table(header, cells, sorted=True)]


def _runs_sentence(runs: Sequence[FinishedRun]) -> str:
    """Returns a sentence with the number of runs, the devices and the versions."""
    devices = dict.fromkeys(str(run.summary.get("device", "")) for run in runs)
    versions = dict.fromkeys(
        f"{name} {version}" for run in runs for name, version in run.summary.get("versions", {}).items()
    )
    made = datetime.now().isoformat(sep=" ", timespec="minutes")
    software = ", ".join([*devices, f"jaxfl {jaxfl.__version__}", *versions])
    return f"{style.count_phrase(len(runs), 'run')}; {software}; {made}."


def _curve_pictures(found: Comparison, folder: Path, prefix: str) -> list[page.Picture]:
    """Draws the curves of the compared metric and of those that all runs have, into a folder; returns the pictures.

    Args:
        found: the comparison.
        folder: of the pictures.
        prefix: of their names.
    """

    def is_known(line: Line, metric: str) -> bool:
        return all(any(record.get(metric) is not None for record in run.history) for run in line.runs.values())

    metrics = [found.metric, *(one for one in CURVE_METRICS if one != found.metric)]
    pictures = []
    for place, metric in enumerate(metrics):  # whose name may be none of a file
        own = metric == found.metric  # of each row
        if all(is_known(line, line.metric if own else metric) for line in found.lines):
            name = f"{prefix}{place}.png"
            curves(found, None if own else metric).savefig(folder / name, dpi=DPI)
            text = f"{metric.replace('_', ' ')} by round: mean of the seeds, and one standard deviation"
            pictures.append(page.Picture(name, text, DPI))
    return pictures


def _runs_table(parts: Mapping[str, Comparison], columns: Sequence[str], folder: Path) -> page.Table:
    """Returns the table of the runs, with the entries of the summaries that some run has.

    Args:
        parts: the comparisons, by federation if there are several.
        columns: the entries.
        folder: of the page; links to the pages of runs are relative to it.
    """
    runs: list[tuple[list[str], Any]] = [
        (words, run) for words, line in _named_lines(parts) for _, run in sorted(line.runs.items())
    ]
    known = [name for name in dict.fromkeys(columns) if any(run.summary.get(name) is not None for _, run in runs)]
    rows = [
        [
            *words,
            str(run.seed),
            *(format_cell(run.summary.get(column)) for column in known),
            _folder_cell(run.path, folder),
        ]
        for words, run in runs
    ]
    first = ["setting", "data"] if len(parts) > 1 else ["setting"]
    return page.Table([*first, "seed", *(name.replace("_", " ") for name in known), "folder"], rows, sorted=True)


def _named_lines(parts: Mapping[str, Comparison]) -> list[tuple[list[str], Line]]:
    """Returns the lines of comparisons with their names, and those of the federations if there are several."""
    return [
        ([line.name, data] if len(parts) > 1 else [line.name], line)
        for data, part in parts.items()
        for line in part.lines
    ]


def _folder_cell(run: Path, folder: Path) -> str:
    """Returns the folder of a run, as a link to the page of the run if there is one."""
    if not (run / PAGE).exists():
        return str(run)
    return page.Link.to(quote(os.fsencode(Path(os.path.relpath(run / PAGE, folder)).as_posix())), str(run))


def _command_rows(parts: Mapping[str, Comparison]) -> list[list[str]]:
    """Returns name and command of each setting, without those whose options this version does not have."""
    rows = []
    for words, line in _named_lines(parts):
        first: Any = next(iter(line.runs.values()))
        with contextlib.suppress(ValueError, KeyError, TypeError):
            rows.append([*words, page.Code(command_line(written_job(first.config), first.summary["rounds"]))])
    return rows


PICTURE_SUFFIXES = (".png", ".pdf", ".svg")  # endings of their files
CSV_START = "setting,seeds,"  # of the names of its columns
HEADS = {"markdown": f"<!-- {signature(COMMAND)} -->\n\n", "latex": f"% {signature(COMMAND)}\n", "csv": ""}


def compare_runs(
    folders: Sequence[Path],
    metrics: Sequence[str],
    target: float | None,
    files: Mapping[str, Path | None],
    plot: Path | None,
    html: Path | None = None,
    labels: Sequence[str] = (),
    columns: str | None = None,
    by: str | None = None,
    *,
    replace: bool = False,
    score: str | None = None,
) -> None:
    """Prints the table of some runs, and writes it, a picture and a page.

    Args:
        folders: of the runs, or above them.
        metrics: what is compared, as `row_metrics` takes it.
        target: as `jaxfl.analysis.comparison.compare` takes it.
        files: the table's, by format: `"markdown"`, `"latex"` and `"csv"`; None writes none.
        plot: the picture's, or None.
        html: the page's, or None.
        labels: `ROW=TEXT`, as `row_labels` takes them.
        columns: of the table, `NAME,NAME,...`; None shows all.
        by: `"data"` writes a column for each federation; None a row for each setting.
        replace: whether files that an earlier comparison has written are replaced.
        score: of `jaxfl.protocols.scores.SCORES`, by which all rows are compared; None takes `metrics`.

    Raises:
        ValueError: a file cannot be written, is another one, or is of two of them; or as `finished.read_runs`,
            `compare`, `row_labels` and `row_metrics`.
    """
    if by is not None:
        check_name("by", by, ["data"])
        if columns is not None:
            raise ValueError(f"--columns is of a table with one row for each setting, got {columns!r}; leave out --by.")
        if target is not None and not (files.get("csv") or html):
            raise ValueError(
                f"--target is of rounds and bytes, which --by data writes with --csv and --html alone, got {target:g}; "
                "add one of them, or leave --target out."
            )
    if score is not None:
        check_name("score", score, scores.SCORES)
        for option, given in {"metric": metrics, "plot": plot}.items():
            if given:
                raise ValueError(f"--{option} is of a metric of each round, got {given} with --score; leave one out.")
    asked: dict[Path, str] = {}
    for option, path in {**files, "plot": plot, "html": html}.items():
        if path is None:
            continue
        mark = CSV_START if option == "csv" else signature(COMMAND)
        check_output(path, f"--{option}", mark, None if replace else "--replace")
        if (other := asked.setdefault(real_path(path), option)) != option:
            raise ValueError(f"--{option} must be another file than --{other}, got {str(path)!r}; rename one of them.")
    if plot is not None and plot.suffix.lower() not in PICTURE_SUFFIXES:
        raise ValueError(
            f"--plot must end with {', '.join(PICTURE_SUFFIXES)}, got {str(plot)!r}; write --plot curves.png."
        )
    by_data = by == "data"
    found = print_comparison(folders, metrics, target, html, labels, columns, by_data=by_data, score=score)
    texts = {"markdown": found.to_markdown, "latex": found.to_latex, "csv": found.to_csv}
    for form, path in files.items():
        if path is not None:
            write_text(path, HEADS[form] + texts[form]())
    if plot is not None:
        style.write_picture(curves(found), plot, dpi=150, command=COMMAND)
    if written := [str(path) for path in (*files.values(), plot, html) if path is not None]:
        print_parts(stdout(), f"written: {', '.join(written)}")


def print_comparison(
    folders: Sequence[Path],
    metrics: Sequence[str] = (),
    target: float | None = None,
    html: Path | None = None,
    labels: Sequence[str] = (),
    columns: str | None = None,
    *,
    by_data: bool = False,
    score: str | None = None,
) -> AnyComparison:
    """Prints the table of the finished runs in some folders, writes a page of them if asked, returns the comparison."""
    settings, unfinished = finished.read_runs(folders, by_data=by_data)
    if score is not None:
        metrics = [_add_scores(settings, score)]
    names = row_labels(list(settings), labels)
    given = dict(zip(names, row_metrics(list(settings), metrics), strict=True))
    metric = {name: one for name, one in given.items() if one is not None}
    settings = dict(zip(names, settings.values(), strict=True))
    if by_data:
        found: AnyComparison = compare_by_data(settings, metric=metric, target=target)
    else:
        shown = None if columns is None else [name.strip().lower() for name in columns.split(",") if name.strip()]
        found = compare(settings, metric=metric, target=target, columns=shown)
    header, *rows = found.table()
    print_table(stdout(), header, rows, named=True)
    sentence = difference_sentence(found) if isinstance(found, Comparison) else found.caption()
    print_parts(stdout(), *([sentence] if sentence else []))
    if html is not None:
        write_page(settings, found, unfinished, html)
    for note in run_notes(found, unfinished):
        stderr().print(f"note: {note}", soft_wrap=True)
    return found


def _add_scores(settings: RunsBySetting, score: str) -> str:
    """Adds a score to the summaries of runs, in memory; returns the name of the entry.

    Raises:
        ValueError: a run has no such score.
    """
    entry = scores.score_entry(score)
    for run in (run for runs in settings.values() for run in runs):
        run.summary[entry] = value = scores.score(score, run.history)
        if value is None:
            missing = scores.missing_options(score, run.summary.get("options", {}))
            why = f"it was made without {' and '.join(missing)}" if missing else "its history has not what it needs"
            raise ValueError(f"score must be one that all runs have, got {score}, which {run.path} has not: {why}.")
    return entry


def row_labels(rows: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Returns what some rows are called.

    Args:
        rows: their names: the method, and what tells it from the others.
        labels: `ROW=TEXT`: of one row, or `METHOD=TEXT` of a method in all its rows. A row's own wins.

    Raises:
        ValueError: a label is of no row or method, or empty, or two rows would be called the same.

    >>> row_labels(["fedavg", "ifca num_clusters=2", "ifca num_clusters=4"], ["ifca=IFCA", "ifca num_clusters=4=Best"])
    ['fedavg', 'IFCA num_clusters=2', 'Best']
    """
    texts = _texts_by_row(rows, labels, "--label must be ROW=TEXT")
    methods = {row: _method_word(row) for row in rows}
    called = [texts.get(row, texts.get(method, method) + row.removeprefix(method)) for row, method in methods.items()]
    if twice := {name for name in called if called.count(name) > 1}:
        raise ValueError(f"--label must give rows different names, got {sorted(twice)[0]!r} twice; label each row.")
    return called


def row_metrics(rows: Sequence[str], metrics: Sequence[str]) -> list[str | None]:
    """Returns the metric that each row is compared by, None for the main one of its task.

    Args:
        rows: their names.
        metrics: a metric of all rows, and `ROW=METRIC` or `METHOD=METRIC` as for `row_labels`.

    Raises:
        ValueError: two metrics are of all rows, or a metric is of no row or method.

    >>> row_metrics(["ditto", "fedavg", "fedavg finetune=1"], ["macro", "fedavg finetune=1=tuned"])
    ['macro', 'macro', 'tuned']
    """
    general = [metric for metric in metrics if "=" not in metric]
    if len(general) > 1:
        raise ValueError(f"--metric must be one metric, or ROW=METRIC for some rows, got {' and '.join(general)}.")
    texts = _texts_by_row(rows, [one for one in metrics if "=" in one], "--metric must be METRIC or ROW=METRIC")
    return [texts.get(row, texts.get(_method_word(row), next(iter(general), None))) for row in rows]


def _texts_by_row(rows: Sequence[str], items: Sequence[str], rule: str) -> dict[str, str]:
    """Returns the texts of `ROW=TEXT` or `METHOD=TEXT` items, by row or method.

    Args:
        rows: names of the rows.
        items: of some of them.
        rule: what an item must be, for messages.

    Raises:
        ValueError: an item is of no row or method, or empty, or two are of one.
    """
    known = sorted({*rows, *map(_method_word, rows)}, key=len, reverse=True)  # a row's name may begin with another's
    texts: dict[str, str] = {}
    for item in items:
        name = next((name for name in known if item.startswith(f"{name}=")), None)
        if name is None or not (text := item.removeprefix(f"{name}=").strip()):
            ways = ", ".join(map(repr, rows))
            raise ValueError(f"{rule}, got {item!r}; ROW is one of {ways}, or one's method alone.")
        if name in texts:
            option = rule.partition(" ")[0]
            raise ValueError(
                f"{option} must be given once for {name!r}, got {texts[name]!r} and {text!r}; leave one out."
            )
        texts[name] = text
    return texts


def _method_word(row: str) -> str:
    """Returns the method of a row, the first word of its name."""
    return row.partition(" ")[0]
