"""`jaxfl bench`: a small measurement from the command to the page, and what is refused."""

import json
import re
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from docs import notebooks
from experiments.speed import bench as kit
from jaxfl.cli import measure
from jaxfl.cli.app import app
from tests.messages import mentions


def jaxfl(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


@pytest.mark.slow
def test_a_page_of_two_points(tmp_path, monkeypatch):
    """The one test that starts processes: each point has one."""
    for name, value in notebooks.ENVIRONMENT.items():  # they compile quickly
        monkeypatch.setenv(name, value)
    sizes = ["--values", "1,3", "--hidden", "4", "--rounds", "2", "--set", "batch_size=25"]
    result = jaxfl("scaling", "--over", "cohort", *sizes, "--out", tmp_path / "b")
    assert result.exit_code == 0, result.output
    assert re.match(r"cohort 1, 3: 2 rounds of fedavg at each, .* about \d+ s", result.stderr)
    assert re.search(r"^2/2  cohort 3: [\d.]+ ms a round$", result.stderr, re.MULTILINE)
    record = json.loads((tmp_path / "b" / "bench.json").read_text())
    assert record["command"] == f"jaxfl bench scaling --over cohort {' '.join(sizes[:2])} --method fedavg --set " + (
        "batch_size=25 --hidden 4 --rounds 2"
    )
    (scaling,) = record["scalings"]
    assert [row["value"] for row in scaling["points"]] == [1, 3]
    assert scaling["work"]["options"] == {"local_epochs": 1, "batch_size": 25}
    for row in scaling["points"]:
        assert len(row["seconds"]["values"]) == len(row["product_gflops"]["values"]) == 2
        assert row["empty_bytes"] < row["peak_bytes"]
    page = (tmp_path / "b" / "index.html").read_text()
    without_picture = re.sub(r'src="data:image/png;base64,[^"]+"', "", page)  # whose letters may be any
    assert len(without_picture) < len(page) and "http" not in without_picture
    for words in (f"Slope {scaling['slope']:.2f}", "fedavg (batch_size=25), 784-4-10", record["command"]):
        assert words in page and (words in result.stdout or words == record["command"])
    assert (tmp_path / "b" / "scaling.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--over", "chort"], ("axis", "chort", "cohort")),
        (["--values", "ten"], ("values", "ten", "--values", "10,100")),
        (["--values", "100,10"], ("values", "(100, 10)")),
        (["--values", "1", "--over", "cohort", "--over", "width"], ("values", 2)),
        (["--values", "1", "--over", "all"], ("values", 5)),
        (["--method", "fedavgg"], ("fedavgg", "fedavg")),
        (["--set", "local_epochs=x"], ("local_epochs", "x")),
        (["--set", "server_optimizer=fedadam"], ("server_optimizer", "fedavg")),
        (["--rounds", "0"], ("rounds", 0)),
    ],
)
def test_bad_arguments_are_refused(arguments, words):
    result = jaxfl("scaling", *arguments)
    assert result.exit_code == 2 and result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ") and re.search(mentions(*words), line), line


def test_workloads_are_those_of_the_scripts():
    assert list(measure.WORKLOADS) == list(kit.SCRIPTS)
    assert kit.peers_of("w7", None) == kit.peers_of("w8", None) == []


def test_a_workload_that_fails_is_told_and_the_others_go_on(tmp_path, monkeypatch):
    def main(arguments):
        print(f"table of {arguments[0]}\n{{}}")
        if arguments[0] == "w2":
            raise SystemExit("the losses disagree")
        ratio = {"torch": {"median": 2.0}} if arguments[0] == "w6" else {}
        machine = {"versions": {"jax": "1"}, "cores": 2, "platform": "cpu"}
        return [{"workload": arguments[0], "summary": {}, "ratio": ratio, **machine}]

    real = kit.importlib.import_module
    fake = SimpleNamespace(import_module=lambda name: SimpleNamespace(main=main, WORKS=real(name).WORKS))
    monkeypatch.setattr(kit, "importlib", fake)
    result = jaxfl("w1", "w2", "w6", "--rounds", "2", "--peers", "none", "--out", tmp_path)
    assert result.exit_code == 1 and "error: the losses disagree" in result.stderr
    assert re.findall(r"table of (\w+)", result.stdout) == ["w1", "w2", "w6"] and "{}" not in result.stdout
    record = json.loads((tmp_path / "bench.json").read_text())
    assert [one["error"] for one in record["works"]] == [None, "the losses disagree", None]
    assert record["works"][0]["command"] == "python -m experiments.speed.rounds w1 --rounds 2 --peers none"
    page = (tmp_path / "index.html").read_text()
    assert "Failed: the losses disagree" in page and "<pre>table of w6</pre>" in page
    assert (tmp_path / "bench.png").exists()
    assert measure.peer_ratios([SimpleNamespace(records=main(["w1"])), SimpleNamespace(records=main(["w6"]))]) == {
        "torch": [None, 2.0]
    }


def test_bad_workloads_are_refused():
    assert re.search(mentions("workload", "w99"), jaxfl("w1", "w99").stderr)
    assert re.search(mentions("rounds", 0), jaxfl("w1", "--rounds", "0").stderr)
    assert re.search(mentions("clients", "many"), jaxfl("w1", "--clients", "many").stderr)
    assert jaxfl("--help").exit_code == 0
