"""The short form of the campaign with random command lines, and what it takes for a finding."""

import json

import jax
import pytest
import typer

from experiments.reliability import fuzz_commands as fuzz
from jaxfl.cli import tables
from jaxfl.cli.tables.console import stderr
from jaxfl.jobs import job

SEED, LINES = 1, 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    fuzz.write_files(folder)
    return folder


@pytest.mark.slow
def test_random_lines_run_or_are_refused_in_one_line(folder, monkeypatch):
    monkeypatch.chdir(folder)  # as the campaign does: a line may write into the folder that it is called in
    with jax.numpy_dtype_promotion("standard"):  # Adam takes a float to the power of a counter
        outcomes = [fuzz.run(index, fuzz.line(SEED, index, folder), full=False) for index in range(LINES)]
    assert not [outcome for outcome in outcomes if outcome.is_finding], "see `told`"
    kinds = {outcome.kind for outcome in outcomes}
    assert {"traced", "refused", "ran"} <= kinds, "lines of every kind"


def test_a_line_is_the_same_whenever_it_is_made(folder):
    lines = [fuzz.line(SEED, index, folder) for index in range(40)]
    assert lines == [fuzz.line(SEED, index, folder) for index in range(40)]
    assert len({tuple(line) for line in lines}) > 35
    words = {word.partition("=")[0] for index in range(300) for word in fuzz.line(SEED, index, folder)}
    assert {"compress", "error_feedback", "clip", "aggregator", "noise", "epsilon", "min_sum", "delta"} <= words


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (TypeError("wrong"), "traceback: TypeError"),
        (typer.Exit(3), "exit code 3"),
        (typer.Exit(2), "no line says why"),
        (fuzz.TooLong(), "took more than"),
        (ValueError("refused\nin two lines"), "refused"),
        (RuntimeWarning("overflow"), "traceback: RuntimeWarning"),
    ],
)
def test_what_is_a_finding(monkeypatch, fault, kind):
    def check(one):
        raise fault

    monkeypatch.setattr(job, "check", check)
    outcome = fuzz.run(0, ["run", "fedavg", "--data", "iid-digits"], full=False)
    assert outcome.kind.startswith(kind) and outcome.is_finding == (kind != "refused")


def test_an_error_that_ends_well_is_a_finding(monkeypatch):
    monkeypatch.setattr(tables, "methods_table", lambda: stderr().print("error: none"))
    assert fuzz.run(0, ["methods"], full=False).kind == "an error, and exit code 0"
    assert fuzz.run(0, ["methods", "local"], full=False).kind == "ran"
    assert fuzz.run(0, ["no-such-command"], full=False).kind == "usage"


class Process:
    """Stands in for one that ends at the second line of all, and for those that do the rest."""

    begun: list
    ended: list

    def __init__(self, command, **_):
        first, count = map(int, command[5:7])
        self.begun.append((first, count))
        self.returncode = -11 if first == 0 else 0
        done = 1 if self.returncode else count
        self.stdout = [json.dumps(fuzz.Outcome(first + one, ["methods"], "ran", "")) for one in range(done)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ended.append(self)

    def kill(self):
        self.returncode = -9


@pytest.fixture
def processes(monkeypatch):
    Process.begun, Process.ended = [], []
    monkeypatch.setattr(fuzz.subprocess, "Popen", Process)
    return Process


def test_a_campaign_tells_its_findings_and_goes_on_behind_a_crash(processes, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(fuzz, "prepare", lambda folder: None)
    out = tmp_path / "findings.jsonl"
    assert fuzz.main(["--count", "5", "--out", str(out)]) == 1
    assert processes.begun == [(0, 5), (2, 3)]
    record = json.loads(out.read_text())
    assert [(found["index"], found["kind"]) for found in record["findings"]] == [(1, "the process ended with -11")]
    assert record["lines"] == 5 and record["kinds"] == {"ran": 4, "the process ended with -11": 1}
    assert capsys.readouterr().out.startswith("1: the process ended with -11")


def test_a_campaign_out_of_time_ends_with_what_it_has(processes, folder):
    asked = iter([True, True, False])
    outcomes = list(fuzz.campaign(SEED, 7, 5, 1000, folder, lambda: next(asked)))
    assert [outcome.index for outcome in outcomes] == [7, 8]
    assert [process.returncode for process in processes.ended] == [-9]
