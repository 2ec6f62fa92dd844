"""The experiments: what their files refuse, that nothing is made twice or lost, and what the report says."""

import base64
import dataclasses
import doctest
import functools
import importlib
import importlib.metadata
import importlib.util
import json
import math
import re
import shlex
import signal
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.harness import base, claims, entries, figures, others, report, results, run, studies, targets
from experiments.harness.base import Cell, Claim, Experiment, Made, Scale, Study
from experiments.layercfl import config as layercfl
from experiments.layercfl.studies import Sweep, feature_skew
from jaxfl import data, public
from jaxfl.cli import experiments
from jaxfl.cli.app import app
from jaxfl.jobs import job
from jaxfl.plots import style
from jaxfl.schema import Option
from jaxfl.settings import options, tasks
from jaxfl.simulation import interrupts
from jaxfl.simulation.records.history import History
from jaxfl.simulation.result import Result
from tests.messages import mentions

pytestmark = pytest.mark.usefixtures("empty_pictures")  # of runs alone

ROOT = Path(__file__).parents[2]
PNG = b"\x89PNG\r\n\x1a\n"
ITEMS = ("num_clients=8", "rows_per_client=20", "model=logistic")
EVERY = [(name, scale) for name in base.names() for scale in base.SCALES]


def jaxfl(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def cell(row="FedAvg", method="fedavg", **changes):
    return Cell("T", row, "C", method, "rotated-digits", **{"items": ITEMS, "rounds": 2, "cohort": 0.5} | changes)


CELLS = (cell(seeds=(0, 1)), cell("IFCA", "ifca", items=(*ITEMS, "num_clusters=4")))
PRINTED = {"T / FedAvg / C": targets.Target("T", "FedAvg", "C", 91.5, 0.2, "%", "as the paper says.", "")}
PAPER = {name: Scale("Cuts nothing.", CELLS) for name in base.SCALES}


@pytest.fixture
def small(monkeypatch):
    """An experiment of three runs that never compile: its accuracies are 0.91, 0.93 and 0.5, or an error if listed."""
    broken, made = [], []

    def execute(one, federation, callbacks=()):
        row = {"ifca": "IFCA", "fedavg": "FedAvg"}.get(one.settings.method_name, one.settings.method_name)
        made.append((row, one.seed))
        one.out.mkdir(parents=True, exist_ok=True)
        if row in broken:
            raise RuntimeError("no luck\n<b>at all</b>")
        value = 0.5 if row == "IFCA" else 0.91 + 0.02 * one.seed
        summary = {"micro_accuracy": value, "num_clusters": 1, "ari": None, "options": {}, "versions": {"jax": "1"}}
        history = History()
        numbers = dict.fromkeys(results.CURVES, value) | {"seconds": 2.0, "bytes_up": 1.0, "bytes_down": 1.0}
        for round in (1, 2):
            history.append(numbers | {"round": round, "loss": math.nan})
        return Result(None, history, None, federation, summary)

    monkeypatch.setattr(job, "execute", execute)
    monkeypatch.setattr(base, "load", lambda name: Experiment("small", "Small", "Nobody, 2000.", PAPER))
    monkeypatch.setattr(base, "targets", lambda name: PRINTED)
    return broken, made


@pytest.mark.parametrize(
    "module",
    [base, claims, entries, figures, others, report, results, run, studies, targets],
    ids=lambda one: one.__name__,
)
def test_doctests(module):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(module, optionflags=flags).failed == 0


# what is refused


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "fedavgg"}, ("fedavgg", "fedavg")),
        ({"items": ("clusters=4",)}, ("option", "clusters")),
        ({"items": ("local_epochs=many",)}, ("local_epochs", "many")),
        ({"items": ("availability=never",)}, ("availability",)),
        ({"rounds": 0}, ("rounds", 0)),
        ({"cohort": 1.5}, ("cohort", "share")),
        ({"seeds": ()}, ("seeds",)),
        ({"seeds": (1, 1)}, ("seeds", "differ")),
        ({"metric": "finetuned_macro_f1"}, ("finetuned_macro_f1", "finetune=1")),
        ({"metric": "accuracy"}, ("metric", "accuracy")),
        ({"unit": "points"}, ("unit", "points")),
    ],
)
def test_cells_that_cannot_be(changes, words):
    with pytest.raises(ValueError, match=mentions("T / FedAvg / C", *words)):
        cell(**changes)


def test_error_in_a_config_is_one_of_its_import(tmp_path):
    source = (base.HERE / "ifca" / "config.py").read_text(encoding="utf-8")
    (tmp_path / "config.py").write_text(source.replace("num_clusters=4", "clusters=4"), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("broken_config", tmp_path / "config.py")
    with pytest.raises(ValueError, match=mentions("Digits / IFCA / m=8, n=80", "clusters", "num_clusters")):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_scales_and_places_are_checked():
    with pytest.raises(ValueError, match=mentions("cells", "T / FedAvg / C")):
        Scale("", (cell(), cell(rounds=3)))
    with pytest.raises(ValueError, match=mentions("scales", "small", "smoke, laptop, paper")):
        Experiment("small", "", "", {"paper": PAPER["paper"]})
    small = Experiment("small", "", "", PAPER)
    with pytest.raises(ValueError, match=mentions("targets.json", "T / IFCA / C")):
        base.check_places(small, PRINTED)
    base.check_places(small, {})  # a paper of figures alone


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": {"A": ["1"]}}, ("'A'", "T", "2 numbers", 1)),
        ({"rows": {"A": ["1", "2 +- 1"]}}, ("number", "2 +- 1")),
        ({"notes": {"B": ""}}, ("notes", "T", "B")),
        ({"missing": {"B": ""}}, ("missing", "T", "B")),
        ({"row": {}}, ("table", "caption", "columns", "name", "rows", "unit")),
        ({"columns": ["x", "x"]}, ("T / A / x", "targets.json")),
    ],
)
def test_targets_that_cannot_be(tmp_path, changes, words):
    table = {"name": "T", "caption": "", "unit": "%", "columns": ["x", "y"], "rows": {"A": ["1", "2 ± 1"]}}
    path = tmp_path / "targets.json"
    path.write_text(json.dumps({"tables": [table]}), encoding="utf-8")
    assert [(one.value, one.std) for one in targets.read(path).values()] == [(1.0, None), (2.0, 1.0)]
    path.write_text(json.dumps({"tables": [table | changes]}), encoding="utf-8")
    with pytest.raises(ValueError, match=mentions(*words)):
        targets.read(path)


# the papers


def shape(name):
    """Returns rows and columns of every table."""
    printed, axes = base.targets(name).values(), {}
    for one in printed:
        rows, columns = axes.setdefault(one.table, (set(), set()))
        rows.add(one.row)
        columns.add(one.column)
    assert len(printed) == sum(len(rows) * len(columns) for rows, columns in axes.values())  # no table has gaps
    return {table: (len(rows), len(columns)) for table, (rows, columns) in axes.items()}


def test_every_number_of_the_papers_is_there():
    assert shape("ifca") == {"Rotated MNIST": (3, 3), "Rotated CIFAR": (3, 1)}
    assert shape("stocfl") == {
        "Table 1": (10, 8),  # seven in print, two as the paper's code does it, one whose threshold is measured
        "Table 2": (11, 1),
        "Table 3": (4, 7),
        "Table 4": (2, 4),
        "Table 6": (5, 2),
    }
    table = {key: one.std for key, one in base.targets("stocfl").items() if one.table == "Table 1"}
    assert None not in table.values()
    assert base.targets("stocfl")["Table 1 / IFCA M=6 / MNIST 1200 x 200, 10 %"][3:5] == (92.15, 0.07)


@pytest.mark.parametrize("name", base.names())
def test_every_number_is_made_or_says_why_not(name):
    printed = base.targets(name)
    tables = {one.table for one in printed.values()}
    made = {one.label for one in base.load(name).scales["paper"].cells if one.table in tables}
    assert made <= set(printed)
    assert [key for key, one in printed.items() if (key in made) == bool(one.missing)] == []
    assert all(0 < one.value < 100 for one in printed.values())


def test_laptop_scale_of_stocfl():
    """One column of table 1 has every row as the paper states it."""
    cells = {
        one.row: one for one in base.load("stocfl").scales["laptop"].cells if one.column == "MNIST 1200 x 200, 10 %"
    }
    assert list(cells) == list(
        dict.fromkeys(one.row for one in base.targets("stocfl").values() if one.table == "Table 1")
    )
    for one in cells.values():
        full = one.job(0).settings.complete()
        assert (full["data"], full["data.num_clients"], full["data.rows_per_client"]) == ("rotated-mnist", 1200, 200)
        assert (one.rounds, one.cohort, one.seeds) == (100, 0.1, (0,))
        assert (full["model.hidden"], full["method.local_epochs"], full["optimizer.learning_rate"]) == ((2048,), 5, 0.1)
    given = {row: one.job(0).settings.method for row, one in cells.items()}
    assert [given[row]["proximal_weight"] for row in ("FedProx", "Ditto", "StoCFL", "StoCFL, official")] == [
        *(0.05, 0.1, 0.05, 0.05)
    ]
    assert [given[f"IFCA M={k}"]["num_clusters"] for k in (2, 4, 6)] == [2, 4, 6]
    assert given["FedAvg, chain"]["update"] == "chain" and given["StoCFL, official"]["preset"] == "official"


@pytest.mark.rotating(weeks=3)
@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_every_cell_is_what_its_command_says_and_can_be_built(name, scale, monkeypatch):
    federation = data.load("rotated-digits", num_clients=8, rows_per_client=20)
    images = np.zeros((len(federation.labels), 32, 32, 3), np.uint8)  # large enough for every network
    federation = dataclasses.replace(federation, inputs=images)
    task_of = functools.cache(functools.partial(tasks.create, data=federation))  # few networks, many cells
    monkeypatch.setattr(tasks, "create", lambda name, network, data, own, **how: task_of(name, network, **how))
    jobs, built = {}, set()
    for one in base.load(name).scales[scale].cells:
        words = shlex.split(one.command(one.seeds[-1]))
        items = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
        given = {word: words[place + 1] for place, word in enumerate(words) if word.startswith("--")}
        settings = options.route(words[2], given["--data"], items)
        cohort = (int if isinstance(one.cohort, int) else float)(given["--cohort"])
        again = job.Job(settings, int(given["--rounds"]), cohort, int(given["--seed"]))
        assert results.identifier(again) == results.identifier(one.job(one.seeds[-1]))
        assert ("--data-dir" in words) == one.needs_files and not (one.needs_files and scale == "smoke")
        parts = repr(settings._replace(data={}))  # many cells are one method on other clients
        if parts not in built:
            options.build(settings, federation)  # values that the factories refuse
        built.add(parts)
        jobs |= {(results.identifier(one.job(seed)), one.table, one.metric): one for seed in one.seeds}
    # no two runs have one name, but a run may fill several cells, each with another metric or in another table
    assert len(jobs) == sum(len(one.seeds) for one in base.load(name).scales[scale].cells)


# results


IMAGES = {"mnist": 60_000, "cifar10": 50_000}  # of which every group of rotated or shifted clients has a share


def test_clients_are_dealt_no_more_rows_than_there_are():
    for name in base.names():
        for one in base.load(name).scales["paper"].cells:
            row = data.dataset(one.data)
            if row.skew in ("rotated", "shifted") and row.source in IMAGES:
                given = one.job(one.seeds[0]).settings.complete()
                clients, rows = (given[f"data.{option}"] for option in ("num_clients", "rows_per_client"))
                groups = len(given[f"data.{'angles' if row.skew == 'rotated' else 'shifts'}"] or range(4))
                assert clients // groups * rows <= IMAGES[row.source], one.label


def test_everybody_takes_part_where_cfl_is_run():
    """It waits for an update of every member of a cluster; of clients that are sampled it never has them."""
    found = [one for name in base.names() for scale in base.load(name).scales.values() for one in scale.cells]
    assert {one.label for one in found if one.method in ("cfl", "adacfl", "layercfl") and one.cohort != 1.0} == set()


def test_fesems_rows_fine_tune_alike():
    """An epoch in batches of 10, FedSGD too, which trains on all rows at once otherwise."""
    cells = [one for scale in base.load("fesem").scales.values() for one in scale.cells]
    assert "fedsgd" in {one.method for one in cells}
    assert {(tuned.epochs, tuned.batch_size) for one in cells if (tuned := options.finetune(one.job(0).settings))} == {
        (1, 10)
    }


def test_with_and_without_fine_tuning_are_one_run(tmp_path):
    items = (*ITEMS, "finetune=1")
    cells = [cell("served", items=items), cell("tuned", items=items, metric="finetuned_micro_accuracy")]
    (planned,) = run.planned(cells, None, tmp_path)
    assert planned.cell is cells[0] and results.identifier(planned.job) != results.identifier(cell().job(0))


def test_later_options_rename_nothing(monkeypatch):
    one = cell().job(0)
    line = {"id": results.identifier(one), "configuration": results.configuration(one), "value": 1}
    assert results.find([line | {"value": 0}, line], one) == line
    assert results.find([line], cell().job(1)) is None
    assert results.find([line], cell(rounds=3).job(0)) is None
    assert results.find([line], cell(items=(*ITEMS, "local_epochs=4")).job(0)) is None
    assert results.find([line], cell(items=(*ITEMS, "local_epochs=5")).job(0)) == line  # its default, said

    monkeypatch.setattr(options, "RUN", (*options.RUN, Option("novel", 3, int)))
    assert "run.novel" not in line["configuration"] and results.configuration(one)["run.novel"] == 3
    assert results.identifier(one) == line["id"]
    assert results.find([line], one) == line
    assert results.find([line], cell(items=(*ITEMS, "novel=4")).job(0)) is None

    changed = [one._replace(default=0.25) if one.name == "dropouts" else one for one in options.RUN]
    monkeypatch.setattr(options, "RUN", changed)  # a default that has changed
    assert results.find([line], one) is None


def test_lines_are_added_and_broken_ones_left_out(tmp_path):
    path = tmp_path / "new" / "results.jsonl"
    assert results.read(path) == []
    line = {"id": "a", "configuration": {}, "loss": math.inf}
    results.append(path, line)
    with path.open("ab") as file:
        file.write(b'{"id": "cut sho')
    before = path.read_bytes()
    results.append(path, line | {"id": "b"})
    assert path.read_bytes().startswith(before)
    assert [one["id"] for one in results.read(path)] == ["a", "b"]
    assert results.read(path)[0]["loss"] is None


def test_another_method_has_a_row_beside_what_was_made(small, tmp_path, monkeypatch):
    _, made = small
    monkeypatch.setattr(base, "HERE", tmp_path)
    with pytest.raises(ValueError, match=mentions("fesem", "--out")):
        run.reproduce("small", "paper", method="fesem", items=["num_clusters=2"])
    with pytest.raises(ValueError, match=mentions("items", "--method")):
        run.reproduce("small", "paper", out=tmp_path, items=["num_clusters=2"])
    own = base.load("small").results("paper")
    assert run.reproduce("small", "paper", out=own, only="ifca") == 0
    kept = (own / "results.jsonl").read_bytes()
    made.clear()
    mine = tmp_path / "mine"
    assert run.reproduce("small", "paper", out=mine, method="fesem", items=["num_clusters=2"]) == 0
    assert made == [("fesem", 0), ("fesem", 1)]
    assert (mine / "results.jsonl").read_bytes().startswith(kept)
    text = (mine / "report" / "report.md").read_text(encoding="utf-8")
    assert "| fesem |" in text and "jaxfl run fesem --data" in text
    assert run.reproduce("small", "paper", out=mine, method="fedprox") == 0
    (mine / "report" / "report.md").unlink()
    said = report.reports("small", "paper", mine)
    text = (mine / "report" / "report.md").read_text(encoding="utf-8")
    assert all(
        f"| {name} |" in page and f"| {name} | – |" not in page
        for name in ("fesem", "fedprox")
        for page in (said, text)
    )


def test_failures_stop_nothing_and_are_tried_again(small, tmp_path, capsys):
    broken, made = small
    broken.append("FedAvg")
    assert run.reproduce("small", "paper", out=tmp_path) == 1
    assert made == [("FedAvg", 0), ("IFCA", 0), ("FedAvg", 1)]  # the first seed of all cells first
    assert [line["cell"] for line in results.read(tmp_path / "results.jsonl")] == ["T / IFCA / C"]
    failures = results.read(tmp_path / "failures.jsonl")
    assert [line["seed"] for line in failures] == [0, 1]
    assert {line["error"] for line in failures} == {"RuntimeError: no luck <b>at all</b>"}
    assert "2 failed" in capsys.readouterr().err
    text = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert (
        r"FedAvg, C: failed, RuntimeError: no luck \<b>at all\</b>" in text and "| FedAvg | – (91.50 ± 0.20) |" in text
    )

    broken.clear()
    made.clear()
    before = (tmp_path / "results.jsonl").read_bytes()
    assert run.reproduce("small", "paper", out=tmp_path, only="fedavg", seeds=[0]) == 0
    assert made == [("FedAvg", 0)]
    assert run.reproduce("small", "paper", out=tmp_path, only="fedavg") == 0
    assert made == [("FedAvg", 0), ("FedAvg", 1)]
    assert (tmp_path / "results.jsonl").read_bytes().startswith(before)
    assert not (tmp_path / "unfinished").exists()
    text = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "failed" not in text

    made.clear()
    assert run.reproduce("small", "paper", out=tmp_path) == 0
    assert made == []


def test_some_seeds_are_those_of_the_cells_that_have_them():
    one, two = cell(seeds=(0, 1, 2)), cell("IFCA", "ifca", seeds=(0,))
    assert [(cell.row, cell.seeds) for cell in base.of_seeds([one, two], [2, 1, 9])] == [("FedAvg", (1, 2))]
    assert base.of_seeds([one, two], None) == [one, two]
    assert base.of_seeds([], [0]) == []  # studies alone


def test_a_signal_in_the_last_round_of_a_run_keeps_it_and_begins_no_other(small, tmp_path, monkeypatch, capsys):
    _, made = small
    execute = job.execute

    def execute_until_a_signal(*given):
        result = execute(*given)
        signal.raise_signal(signal.SIGTERM)
        return result

    monkeypatch.setattr(job, "execute", execute_until_a_signal)
    monkeypatch.setattr(interrupts, "_answered", 0)
    before = signal.signal(signal.SIGTERM, interrupts.note_answered)  # of the command line
    assert run.reproduce("small", "paper", out=tmp_path) == 143
    signal.signal(signal.SIGTERM, before)
    assert made == [("FedAvg", 0)] and "the same command goes on" in capsys.readouterr().err
    assert [line["cell"] for line in results.read(tmp_path / "results.jsonl")] == ["T / FedAvg / C"]


class Interrupted(run.ProgressBar):
    """A bar that is stopped with control-C after a round; `rounds` are those that it saw."""

    after, rounds = 2, []

    def __call__(self, event):
        super().__call__(event)
        self.rounds.append(event.round)
        if event.round == self.after:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
def test_workers_make_what_one_process_makes(smoke, tmp_path):
    """Each line once, and what failed in a worker is told."""
    arguments = ["reproduce", "ifca", "--only", "local models", "--out", tmp_path, "--jobs", "2", "--seeds", "0,1"]
    assert jaxfl(*arguments).exit_code == 0
    lines = {line["id"]: line for line in results.read(tmp_path / "results.jsonl")}
    wanted = {line["id"]: line for line in results.read(smoke / "results.jsonl")}
    assert lines and set(lines) <= set(wanted) and not (tmp_path / "unfinished").exists()
    for name, line in lines.items():
        assert line["configuration"] == wanted[name]["configuration"]
        assert line["summary"]["devices"] == 1
        assert line["summary"]["micro_accuracy"] == pytest.approx(wanted[name]["summary"]["micro_accuracy"], abs=0.02)


@pytest.mark.slow
def test_interrupted_run_goes_on_where_it_was(smoke, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "ProgressBar", Interrupted)
    monkeypatch.setattr(Interrupted, "rounds", [])
    arguments = ["reproduce", "ifca", "--only", "local models", "--out", tmp_path]
    stopped = jaxfl(*arguments)
    assert stopped.exit_code == 130 and "the same command goes on" in stopped.stderr
    assert results.read(tmp_path / "results.jsonl") == []
    (work,) = (tmp_path / "unfinished").iterdir()
    assert (work / "checkpoint.npz").exists()

    monkeypatch.setattr(Interrupted, "after", None)
    assert jaxfl(*arguments).exit_code == 0
    assert Interrupted.rounds == [1, 2, 3, 4]  # none twice
    assert not work.parent.exists()
    (line,) = results.read(tmp_path / "results.jsonl")
    (whole,) = [one for one in results.read(smoke / "results.jsonl") if one["id"] == line["id"]]
    assert line["history"]["round"] == [1, 2, 3, 4]
    assert line["history"] == whole["history"]
    assert line["summary"]["micro_accuracy"] == whole["summary"]["micro_accuracy"]


def test_work_of_other_defaults_is_begun_anew(tmp_path):
    one = cell().job(0, out=tmp_path / "unfinished" / "name", resume=True)
    one.out.mkdir(parents=True)
    (one.out / "config.json").write_text(json.dumps(one.config()))
    run._forget(one)
    assert one.out.exists()
    (one.out / "config.json").write_text(json.dumps(one.config() | {"method.local_epochs": 6}))
    run._forget(one)
    assert not one.out.exists()


# the report


@pytest.mark.parametrize("text", ["mine\n", '{"accuracy": 0.9}'])
@pytest.mark.parametrize("name", ["report/own.png", "report/report.md", "report/report.html", "results.jsonl"])
def test_a_folder_with_files_of_something_else_is_refused(name, text, small, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "_Maker", None)  # nothing is run
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    with pytest.raises(ValueError, match=mentions("out", path.name)):
        run.reproduce("small", "paper", out=tmp_path)
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == [path] and path.read_text() == text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"summary": 5}, ("summary", "5")),
        ({"summary": {"micro_accuracy": "high"}}, ("micro_accuracy", "high")),
        ({"history": {"round": [1, 2], **dict.fromkeys(results.CURVES[1:], [0.5])}}, ("micro_accuracy", "1")),
        ({"history": {"round": [1], **dict.fromkeys(results.CURVES[1:], [[0.5]])}}, ("micro_accuracy", "list")),
        ({"seconds": [1]}, ("seconds", "list")),
        ({"configuration": None}, ("configuration", "null")),
        ({"summary": None, "id": "of another run"}, ("summary", "null")),
    ],
)
def test_a_line_with_entries_of_another_type_is_named(change, words, small, tmp_path):
    run.reproduce("small", "paper", out=tmp_path, only="ifca")
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(json.loads(path.read_text()) | change) + "\n")
    with pytest.raises(ValueError, match=mentions(str(path), "line 1", *words)):
        report.reports("small", "paper", tmp_path)


def test_a_table_without_a_number_has_no_picture(small, tmp_path, monkeypatch):
    monkeypatch.setattr(base, "targets", lambda name: {})
    run.reproduce("small", "paper", out=tmp_path, only="ifca")
    path = tmp_path / "results.jsonl"
    line = json.loads(path.read_text())
    path.write_text(json.dumps(line | {"summary": dict.fromkeys(line["summary"])}) + "\n")
    assert "here and in the paper" not in report.reports("small", "paper", tmp_path)


def test_a_report_removes_its_own_pictures_alone(small, tmp_path):
    run.reproduce("small", "paper", out=tmp_path, only="ifca")
    folder = tmp_path / "report"
    (drawn,) = (name for name in folder.glob("t.png"))
    drawn.rename(folder / "before.png")
    (folder / "mine.png").write_text("mine")
    with (folder / "report.md").open("a") as file:
        file.write("\n![before](before.png)\n\n![mine](mine.png)\n")
    report.reports("small", "paper", tmp_path)
    assert drawn.exists() and not (folder / "before.png").exists() and (folder / "mine.png").read_text() == "mine"


def test_a_report_that_is_stopped_leaves_the_one_before_whole(small, tmp_path, monkeypatch):
    run.reproduce("small", "paper", out=tmp_path)
    before = {path.name: path.read_bytes() for path in (tmp_path / "report").iterdir()}
    assert len(before) > 3

    def stop(*_, **__):
        raise KeyboardInterrupt

    for module, name in ((report.figures, "comparison"), (report.figures, "convergence"), (report.page, "html")):
        with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
            stopped.setattr(module, name, stop)
            report.reports("small", "paper", tmp_path)
        assert {path.name for path in (tmp_path / "report").iterdir()} == before.keys()


def test_a_folder_of_results_executes_no_method_that_is_not_named(small, tmp_path, monkeypatch):
    own, mark = tmp_path / "own.py", tmp_path / "executed"
    own.write_text(f"open({str(mark)!r}, 'w').close()\nfrom jaxfl.methods import fedavg as make\n")
    (tmp_path / "methods.json").write_text(json.dumps({f"{own}:make": []}))
    with pytest.warns(UserWarning, match=mentions(f"{own}:make", "--method")):
        said = report.reports("small", "paper", tmp_path)
    assert "own.py" not in said and not mark.exists()
    with pytest.warns(UserWarning, match=mentions(f"{own}:make", "--method")):
        run.reproduce("small", "paper", out=tmp_path, only="ifca")
    assert not mark.exists()
    said = report.reports("small", "paper", tmp_path, [f"{own}:make"])
    assert "own.py:make" in said and mark.exists()


@pytest.mark.parametrize("method", ["nope", "fesem", "no.py:make", "\x1b[31m"])
def test_a_report_has_no_row_of_a_method_that_has_none(method, small, tmp_path):
    run.reproduce("small", "paper", out=tmp_path, only="ifca")
    before = (tmp_path / "report" / "report.md").stat().st_mtime_ns
    with pytest.raises(ValueError, match=mentions("method", f'"{method}"', "jaxfl reproduce")):
        report.reports("small", "paper", tmp_path, [method])
    assert (tmp_path / "report" / "report.md").stat().st_mtime_ns == before


@pytest.mark.parametrize("text", ["[]", "null", "mine", "[" * 10_000, '{"fedavg": "mine"}', '{"mine": []}'])
def test_another_file_is_no_list_of_methods(text, small, tmp_path):
    path = tmp_path / "methods.json"
    path.write_text(text)
    for act in (report.reports, lambda *where: run.reproduce("small", "paper", out=tmp_path, method="fesem")):
        with pytest.raises(ValueError, match=mentions(str(path))):
            act("small", "paper", tmp_path)
    assert [*tmp_path.rglob("*")] == [path] and path.read_text() == text


def test_numbers_of_the_report(small, tmp_path):
    run.reproduce("small", "paper", out=tmp_path)
    fedavg, ifca = entries.collect(base.load("small"), "paper", tmp_path)
    # 91 and 93 %: the mean is 92, the deviation of a sample the root of (1 + 1) / (2 - 1), the gap 92 - 91.5
    assert fedavg.mean == pytest.approx(92.0, abs=1e-9)
    assert fedavg.std == pytest.approx(math.sqrt(2.0), abs=1e-9)
    assert fedavg.gap == pytest.approx(0.5, abs=1e-9)
    assert (ifca.mean, ifca.std, ifca.gap) == (50.0, None, None)
    text = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "| FedAvg | 92.00 ± 1.41 (91.50 ± 0.20; +0.50) |" in text
    assert "| FedAvg | C | 92.00 ± 1.41 | 91.50 ± 0.20 | +0.50 | 2 of 2 | 1.0 | – | 2 | `jaxfl reproduce small" in text
    assert "FedAvg: as the paper says." in text
    assert "Nobody, 2000. Cuts nothing." in text


def test_claims_are_tested_over_the_seeds_that_both_rows_have():
    def entry(row, values):
        one = Cell("T", row, "C", "ifca", "rotated-digits", (), rounds=1, cohort=1, seeds=(0, 1, 2, 3))
        lines = [{"seed": seed, "summary": {"micro_accuracy": value}} for seed, value in values.items()]
        return entries.Entry(one, None, lines, None)

    found = [entry("A", {0: 0.5, 1: 0.61, 2: 0.72, 3: 0.9}), entry("B", {2: 0.7, 1: 0.6, 0: 0.5}), entry("C", {0: 0.1})]
    found += [entry("D", {0: 0.6, 1: 0.7, 2: 0.83}), entry("F", {0: 0.9, 1: 0.99})]
    scales = {name: Scale("", tuple(one.cell for one in found)) for name in base.SCALES}
    asked = [Claim("T", "*", better, worse) for better, worse in ("AB", "CA", "FA")] + [Claim("T", "*", "D", "A", True)]
    made = Experiment("x", "X", "X", scales, tuple(asked))
    first, second, third, fourth = claims.table(made, found).rows
    assert first == ["T, C", "A above B", "+1.00 ± 1.00", "0.23", "0.225", "3", "undecided"]
    assert second == ["T, C", "C above A", "-40.00", "–", "–", "1", "undecided"]
    assert third == ["T, C", "F above A", "+39.00 ± 1.41", "0.016", "–", "2", "undecided"]
    assert fourth == ["T, C", "D above A (ours)", "+10.00 ± 1.00", "0.0033", "0.00663", "3", "yes"]


def test_many_tests_are_adjusted_for_each_other():
    small = [0.001] * 3 + [0.04]
    assert claims.holm(small) == [0.004, 0.004, 0.004, 0.04] and claims.holm([0.9, 0.8]) == [1.0, 1.0]
    assert claims.holm([]) == [] and claims.holm([0.04] * 40) == [1.0] * 40


def test_claims_are_of_rows():
    one = Cell("T", "A", "C", "ifca", "rotated-digits", (), rounds=1, cohort=1)
    scales = {name: Scale("", (one,)) for name in base.SCALES}
    with pytest.raises(ValueError, match=mentions("claims", "x", "'E' of 'T'")):
        Experiment("x", "X", "X", scales, (Claim("T", "*", "A", "E"),))


@pytest.mark.rotating(weeks=3)
@pytest.mark.parametrize("name", base.names())
def test_missing_cells_show_the_command_that_makes_them(name, tmp_path):
    said = jaxfl("report", name, "--scale", "laptop", "--out", tmp_path / name)
    assert said.exit_code == 0, said.output
    printed = base.targets(name)
    assert ("– (" in said.stdout) == bool(printed), "beside a dash, the paper's number"
    text = (tmp_path / name / "report" / "report.md").read_text(encoding="utf-8")
    experiment = base.load(name)
    scale, found = experiment.scales["laptop"], entries.collect(experiment, "laptop", tmp_path / name)
    own = [[entry for entry in found if entry.cell.table == table] for table in entries.tables(found)]
    wanted = [*(entry.cell for table in own for entry in entries.runs(table)), *scale.studies]
    commands = [shlex.split(found) for found in re.findall(r"`(jaxfl reproduce .*?)`", text)]
    assert len(commands) == len(wanted)
    for words, one in zip(commands, wanted, strict=True):
        assert words[:5] == ["jaxfl", "reproduce", name, "--scale", "laptop"]
        assert (words[5:7] == ["--data-dir", "DIR"]) == one.needs_files
        assert base.select([*scale.cells, *scale.studies], words[words.index("--only") + 1]) == [one]
    assert bool(re.search(r"\b0 of \d", text)) == bool(scale.cells)
    assert ("nowhere: " in text) == any(one.missing for one in printed.values())
    assert list((tmp_path / name).rglob("*.png")) == []


# studies


@pytest.fixture
def with_studies(small, monkeypatch):
    """The small experiment with two studies; what is listed as broken fails."""
    broken, made = small

    def make(label, data_dir):
        made.append((label, data_dir))
        if label in broken:
            raise RuntimeError("no luck")
        figure = style.figure((2, 2))
        figure.subplots().plot([1, 2])
        rows = [{"K": 2, "accuracy": 0.51234, "distance": None}]
        return Made(f"What {label} says.", {"best": 2}, {"all of it": figure}, rows)

    scales = {
        name: Scale(
            "", CELLS, tuple(Study(label, functools.partial(make, label)) for label in ("Figure 1", "Figure 2"))
        )
        for name in base.SCALES
    }
    monkeypatch.setattr(base, "load", lambda name: Experiment("small", "Small", "Nobody, 2000.", scales))
    return broken, made


def test_studies_are_made_once_and_shown(with_studies, tmp_path):
    broken, made = with_studies
    broken.append("Figure 1")
    assert run.reproduce("small", "paper", out=tmp_path, data_dir="files") == 1
    assert made[-2:] == [("Figure 1", "files"), ("Figure 2", "files")] and len(made) == 5
    text = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "## Figure 1\n\nNot made." in text and "--only 'Figure 1'`" in text
    assert "What Figure 2 says." in text and "| K | accuracy | distance |" in text and "| 2 | 0.5123 | – |" in text
    assert "![all of it](../studies/figure-2-all-of-it.png)" in text
    picture = (tmp_path / "studies" / "figure-2-all-of-it.png").read_bytes()
    html = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert picture.startswith(PNG) and base64.b64encode(picture).decode() in html
    assert json.loads((tmp_path / "studies" / "figure-2.json").read_text())["numbers"] == {"best": 2}

    broken.clear()
    made.clear()
    assert run.reproduce("small", "paper", out=tmp_path, only="figure*2") == 0
    assert run.reproduce("small", "paper", out=tmp_path) == 0
    assert made == [("Figure 1", None)], "what is there is not made again"
    with pytest.raises(ValueError, match=mentions("only", "figure 3", "T / FedAvg / C", "Figure 2")):
        run.reproduce("small", "paper", out=tmp_path, only="figure 3")


def test_a_picture_of_something_else_is_not_replaced_by_a_study(with_studies, tmp_path):
    _, made = with_studies
    mine = tmp_path / "studies" / "figure-2-all-of-it.png"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(ValueError, match=mentions("out", str(mine))):
        run.reproduce("small", "paper", out=tmp_path)
    assert not made and mine.read_text() == "mine"
    assert run.reproduce("small", "paper", out=tmp_path, only="figure*1") == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pictures": {"it": "../../secret.png"}}, ("../../secret.png",)),
        ({"pictures": {"it": "link.png"}}, ("link.png",)),
        ({"pictures": {"it": 5}}, ("5",)),
        ({"pictures": ["secret.png"]}, ("pictures", "list")),
        ({"text": None}, ("text", "null")),
        ({"table": [1]}, ("table",)),
    ],
)
def test_a_study_of_a_stranger_shows_nothing_of_another_folder(change, words, with_studies, tmp_path):
    """A report has its pictures in it, and goes to others."""
    out, secret = tmp_path / "out", tmp_path / "secret.png"
    assert run.reproduce("small", "paper", out=out, only="figure*2") == 0
    secret.write_text("secret")
    (out / "studies" / "link.png").symlink_to(secret)
    path = out / "studies" / "figure-2.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=mentions(str(path), *words)):
        report.reports("small", "paper", out)
    assert base64.b64encode(secret.read_bytes()).decode() not in (out / "report" / "report.html").read_text()


def test_a_checkout_that_nobody_installed_keeps_its_results(with_studies, tmp_path, monkeypatch):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert run.reproduce("small", "paper", out=tmp_path) == 0
    lines = results.read(tmp_path / results.RESULTS)
    assert [line["versions"] for line in lines] == 3 * [{"jax": "1", "jaxfl": public.__version__}]


def test_labels_of_studies_and_cells_differ():
    with pytest.raises(ValueError, match=mentions("cells", "T / FedAvg / C")):
        Scale("", (cell(),), (Study("T / FedAvg / C", lambda data_dir: Made("")),))


@pytest.mark.slow
def test_smoke_of_fesem(tmp_path, monkeypatch):
    """One row, whose run makes all its numbers and figure 3, and the studies; choosing K compiles six programs."""
    with monkeypatch.context() as before:
        before.setattr(run.report, "write", lambda *_: "its report is written behind the last")
        for only in ("/ FeSEM(2) /", "Table 1", "Figure 4"):
            done = jaxfl("reproduce", "fesem", "--only", only, "--out", tmp_path)
            assert done.exit_code == 0, done.output
    done = jaxfl("reproduce", "fesem", "--only", "Figure 5", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    (line,) = results.read(tmp_path / "results.jsonl")
    text = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    tuned, plain = (
        f"| FeSEM(2) | {100 * line['summary'][name]:.2f} |" for name in ("finetuned_micro_accuracy", "micro_accuracy")
    )
    assert tuned in text and text.count(plain) >= 2, "models as they are served, and figure 3"
    (data_row,) = json.loads((tmp_path / "studies" / "table-1-data.json").read_text())["table"]
    assert (data_row["devices"], data_row["classes"]) == (8, 10) and data_row["data points"] > 8 * 60
    (row,) = json.loads((tmp_path / "studies" / "figure-4-local-models.json").read_text())["table"]
    assert row["clients drawn"] == 8 and sum(map(int, row["sizes"].split(", "))) == 8
    rows = json.loads((tmp_path / "studies" / "figure-5-two-clusters.json").read_text())["table"]
    assert sum(one["clients"] for one in rows) == 8 and len(list((tmp_path / "studies").glob("*.png"))) == 2
    assert [one["cluster"] for one in rows] == list(range(1, len(rows) + 1)), "numbered as in the picture"


@pytest.mark.slow
def test_smoke_of_cfl(tmp_path):
    """One row, which fills both tables, and the study: its splits are those of the run, drawn and counted."""
    for only in ("/ CFL /", "Norms"):
        done = jaxfl("reproduce", "cfl", "--only", only, "--out", tmp_path)
        assert done.exit_code == 0, done.output
    (line,) = results.read(tmp_path / "results.jsonl")
    assert (line["summary"]["ari"], line["summary"]["num_clusters"]) == (1.0, 4), "the default finds the rotations"
    text = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "| CFL | 1.00 |" in text and f"| CFL | {100 * line['summary']['micro_accuracy']:.2f} |" in text
    (row,) = json.loads((tmp_path / "studies" / "norms-and-splits-digits.json").read_text())["table"]
    assert row["accuracy"] == pytest.approx(line["summary"]["micro_accuracy"])
    splits = [int(one) for one in row["splits after round"].split(", ")]
    counts = dict(zip(line["history"]["round"], line["history"]["num_clusters"], strict=True))  # every second round
    assert len(splits) == 3 and all(count == 1 + sum(one <= round for one in splits) for round, count in counts.items())
    assert len(list((tmp_path / "studies").glob("*.png"))) == 3


@pytest.mark.slow
def test_smoke_of_layercfl(tmp_path):
    """Figures of layers and of rows: every layer has its gap, every amount of rows its round, l2 twice."""
    for only in ("Figures 8 and 9", "Figures 6 and 7"):
        done = jaxfl("reproduce", "layercfl", "--only", only, "--out", tmp_path)
        assert done.exit_code == 0, done.output
    folder = tmp_path / studies.FOLDER
    by_layer, by_rows = (json.loads(next(folder.glob(f"figures-{name}*.json")).read_text()) for name in (8, 6))
    assert [row["layer"] for row in by_layer["table"]] == ["Conv_0", "Conv_1", "Dense_0", "Dense_1", "all"]
    assert by_layer["numbers"]["recommended"] in ("Conv_0", "Conv_1", "Dense_0", "Dense_1")
    assert [row["rows"] for row in by_rows["table"]] == [20, 40]
    for gaps in by_rows["numbers"]["gaps by round"]["digits"].values():
        np.testing.assert_allclose(gaps["l2^p (AdaCFL)"], gaps["Δl2^p"], atol=1e-5)  # float32: weights minus weights
    for found in (by_layer, by_rows):
        assert all((folder / file).stat().st_size > 5000 for file in found["pictures"].values())
    by_rounds = feature_skew(Sweep({"digits": layercfl.DIGITS}, (20,), 2, {"digits": 1}), None)
    assert list(by_rounds.pictures) == ["figure 6, rounds until Gap is above 0", "Gap by round"], "no round to look at"


def test_select():
    cells = base.load("stocfl").scales["paper"].cells
    assert [one.row for one in base.select(cells, "ifca m=* / cifar*100 %")] == ["IFCA M=2", "IFCA M=4", "IFCA M=6"]
    assert base.select(cells, None) == list(cells)
    with pytest.raises(ValueError, match=mentions("only", "fesem", "Table 1 / FedAvg")):
        base.select(cells, "fesem")


# the command line


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """Results of `jaxfl reproduce ifca --scale smoke`."""
    folder = tmp_path_factory.mktemp("ifca")
    made = jaxfl("reproduce", "ifca", "--scale", "smoke", "--out", folder)
    assert made.exit_code == 0, made.output
    return folder


def check_smoke(name, folder, rows, monkeypatch):
    """Checks what a smoke run left behind, and that neither another one nor the report trains anything."""

    def execute(*arguments):
        raise AssertionError("trained")

    monkeypatch.setattr(job, "execute", execute)
    lines = results.read(folder / "results.jsonl")
    assert [line["cell"].split(" / ")[1] for line in lines] == rows
    assert not (folder / "failures.jsonl").exists()
    asked = ("finetuned_", "unseen_")  # there only if they are asked for
    plain = {metric for metric in base.METRICS if not metric.startswith(asked)}
    assert all(plain <= set(line["summary"]) for line in lines)
    again = jaxfl("report", name, "--scale", "smoke", "--out", folder)
    assert again.exit_code == 0, again.output
    for row, line in zip(rows, lines, strict=True):
        assert f"| {row} | {100 * line['summary']['micro_accuracy']:.2f} |" in again.stdout
    html = (folder / "report" / "report.html").read_text(encoding="utf-8")
    inside = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    beside = sorted(path.read_bytes() for path in (folder / "report").glob("*.png"))
    assert sorted(map(base64.b64decode, inside)) == beside
    assert len(beside) == 2 and all(picture.startswith(PNG) for picture in beside)
    scale = base.load(name).scales["smoke"]
    assert html.count("<code>jaxfl reproduce") == len(scale.cells) + len(scale.studies)
    assert "http" not in html and "src=" in html  # nothing is fetched


def test_smoke_of_ifca(smoke, monkeypatch):
    check_smoke("ifca", smoke, ["IFCA", "global model", "local models"], monkeypatch)
    before = (smoke / "results.jsonl").read_bytes()
    assert jaxfl("reproduce", "ifca", "--out", smoke).exit_code == 0
    assert (smoke / "results.jsonl").read_bytes() == before


def test_studies_of_stocfl(tmp_path):
    """Those that train nothing: similarity falls with skew, and the threshold decides between eight groups and four."""
    for only in ("Figure 2", "Figure 8"):
        done = jaxfl("reproduce", "stocfl", "--only", only, "--out", tmp_path)
        assert done.exit_code == 0, done.output
    folder = tmp_path / studies.FOLDER
    similar, by_threshold = (json.loads(next(folder.glob(f"figure-{n}-*.json")).read_text()) for n in (2, 8))
    labels = [row["common labels"] for row in similar["table"]]
    assert labels[0] == max(labels) and labels[-1] == min(labels) and len(labels) == 5
    assert similar["table"][-1]["same domain"] > similar["table"][-1]["other domain"]
    counts = [row["clusters"] for row in by_threshold["table"]]
    assert counts == sorted(counts) and counts[0] < 8 <= counts[-1] <= 16
    assert by_threshold["numbers"]["rotation and labels"] and by_threshold["numbers"]["labels alone"]
    for found in (similar, by_threshold):
        assert all((folder / file).stat().st_size > 5000 for file in found["pictures"].values())


@pytest.mark.slow
def test_smoke_of_stocfl(tmp_path, monkeypatch):
    """One row of nine: every program takes seconds to compile."""
    made = jaxfl("reproduce", "stocfl", "--scale", "smoke", "--only", "/ Ditto /", "--out", tmp_path)
    assert made.exit_code == 0, made.output
    check_smoke("stocfl", tmp_path, ["Ditto"], monkeypatch)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["reproduce", "ifac"], ("experiment", "ifac", "ifca")),
        (["reproduce", "ifca", "--scale", "huge"], ("scale", "huge", "smoke, laptop, paper")),
        (["reproduce", "ifca", "--only", "fesem"], ("only", "fesem")),
        (["reproduce", "ifca", "--seeds", "7,8"], ("seeds", 7, 8)),
        (["reproduce", "ifca", "--seeds", "first"], ("first", "--seeds")),
        (["report", "ifca", "--out", "."], ("out", "--scale")),
    ],
)
def test_refusals(arguments, words):
    result = jaxfl(*arguments)
    assert result.exit_code == 2
    assert re.fullmatch(f"error: {mentions(*words)}.*\n", result.stderr)


def test_where_the_experiments_are(tmp_path, monkeypatch):
    here = ROOT / "experiments"
    assert (
        experiments.find_experiments()
        == experiments.find_experiments(ROOT)
        == experiments.find_experiments(here)
        == here
    )
    monkeypatch.chdir(here / "ifca")
    monkeypatch.setattr(experiments, "__file__", str(tmp_path / "site-packages" / "jaxfl" / "cli" / "experiments.py"))
    with pytest.raises(ValueError, match=mentions("experiments", str(here), f"--experiments {ROOT}")):
        experiments.find_experiments()  # above the working directory are others than those of the package
    monkeypatch.chdir(tmp_path)
    alone = jaxfl("reproduce", "ifca")
    assert alone.exit_code == 2
    assert "--experiments" in alone.stderr
    assert jaxfl("report", "ifca", "--experiments", tmp_path).exit_code == 2
    named = jaxfl("report", "ifca", "--scale", "laptop", "--out", tmp_path, "--experiments", ROOT)
    assert named.exit_code == 0, named.output


@pytest.mark.parametrize("command", [("reproduce", "ifca"), ("report",), ("bench", "w1")])
def test_experiments_of_a_stranger_are_not_executed(command, tmp_path, monkeypatch):
    for name in ("ifca/targets.json", "harness/base.py", "harness/run.py", "harness/report.py", "speed/bench.py"):
        path = tmp_path / "experiments" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    result = jaxfl(*command)
    assert result.exit_code == 2 and re.search(mentions("experiments", str(tmp_path)), result.stderr)
    assert not (tmp_path / "executed").exists()


def test_a_picture_of_a_table_has_no_row_and_no_column_without_a_number():
    nothing = (None, None, None, None)
    cells = {("A", "one"): (50.0, None, None, None), ("B", "one"): (None, None, 60.0, 1.0)}
    points = [
        figures.Point(row, column, *cells.get((row, column), nothing)) for row in "ABC" for column in ("one", "two")
    ]
    panel = next(axes for axes in figures.comparison(points, "accuracy").axes if axes.get_visible())
    assert [text.get_text() for text in panel.get_yticklabels()] == ["A", "B"]
    assert [axes.get_title(loc="left") for axes in figures.comparison(points, "accuracy").axes] == ["one"]


def test_a_method_beside_a_paper_s_rows_takes_nothing_of_theirs():
    """Not StoCFL's pull, though FedNova has an option of that name; no rows where columns are strengths or methods."""
    scale = others.with_method(base.load("stocfl"), "fednova").scale("paper")
    cells = [one for one in scale.cells if one.row == "fednova"]
    assert {one.table for one in cells} == {"Table 1", "Table 2", "Table 6", "Figure 4", "Ablation"}
    for one in cells:
        assert not {"proximal_weight", "threshold", "update", "preset"} & {item.split("=")[0] for item in one.items}
        assert "local_epochs=5" in one.items
