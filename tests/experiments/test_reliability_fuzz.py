"""The short form of the campaign with random command lines, and what it takes for a finding."""

import json

import pytest
import typer

from experiments.reliability import fuzz_commands as fuzz
from jaxfl.cli import app as command_line
from jaxfl.cli import job

SEED, LINES = 1, 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    fuzz.write_files(folder)
    return folder


def test_random_lines_run_or_are_refused_in_one_line(folder):
    outcomes = [fuzz.run(index, fuzz.line(SEED, index, folder), full=False) for index in range(LINES)]
    assert not [outcome for outcome in outcomes if outcome.is_finding], "see `told`"
    kinds = {outcome.kind for outcome in outcomes}
    assert {"traced", "refused", "ran"} <= kinds, "lines of every kind"


def test_a_line_is_the_same_whenever_it_is_made(folder):
    lines = [fuzz.line(SEED, index, folder) for index in range(40)]
    assert lines == [fuzz.line(SEED, index, folder) for index in range(40)]
    assert len({tuple(line) for line in lines}) > 35


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
    monkeypatch.setattr(command_line.tables, "methods", lambda: command_line.stderr().print("error: none"))
    assert fuzz.run(0, ["methods"], full=False).kind == "an error, and exit code 0"
    assert fuzz.run(0, ["methods", "local"], full=False).kind == "ran"
    assert fuzz.run(0, ["no-such-command"], full=False).kind == "usage"


def test_a_campaign_tells_its_findings_and_goes_on_behind_a_crash(folder, monkeypatch, tmp_path, capsys):
    class Process:
        """Stands in for one that ends at its second line, and then for one that does the rest."""

        begun: list = []

        def __init__(self, command, **_):
            first, count = map(int, command[5:7])
            self.begun.append((first, count))
            self.crashes = first == 0
            done = 1 if self.crashes else count
            self.stdout = [json.dumps(fuzz.Outcome(first + one, ["methods"], "ran", "")) for one in range(done)]

        def wait(self):
            return -11 if self.crashes else 0

    monkeypatch.setattr(fuzz.subprocess, "Popen", Process)
    monkeypatch.setattr(fuzz, "prepare", lambda folder: None)
    out = tmp_path / "findings.jsonl"
    assert fuzz.main(["--count", "5", "--out", str(out)]) == 1
    assert Process.begun == [(0, 5), (2, 3)]
    (found,) = map(json.loads, out.read_text().splitlines())
    assert (found["index"], found["kind"]) == (1, "the process ended with -11")
    assert capsys.readouterr().out.splitlines()[-1] == "4 ran, 1 the process ended with -11"
