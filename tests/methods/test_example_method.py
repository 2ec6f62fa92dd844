"""The method that `jaxfl.methods.base` names to imitate is short, passes the battery, and is known by its one row."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jaxfl.cli.app import app
from jaxfl.methods import METHODS, Row, base
from jaxfl.testing import check_method
from tests.messages import mentions
from tests.methods import example_method
from tests.methods.example_method import example

pytestmark = pytest.mark.rotating("function", weeks=2)

ROW = Row(example, "each client trains the best of K models", "-", {"num_clusters": 2}, finds_clusters=True)


def test_the_battery_passes():
    # its slots suffice, it keeps nothing for each client, serves models as they are, does not say what its server
    # sees or its newcomers need, and there may be one device
    assert set(check_method(ROW)) <= {"growth", "rows per client", "adapt", "server sees", "newcomers", "devices"}


def test_it_is_short_and_named():
    path = Path(example_method.__file__)
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 80
    assert f"tests/methods/{path.name}" in base.__doc__


def test_words_are_checked():
    with pytest.raises(ValueError, match=mentions("weighting", "row", "rows")):
        example(None, None, weighting="row")


def test_one_row_is_all_that_the_command_line_needs(monkeypatch, tmp_path):
    monkeypatch.setitem(METHODS, "example", ROW)

    def jaxfl(*arguments):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "each client trains the best of" in jaxfl("methods")  # and a second line
    assert "E, passes over a client's rows in a round." in jaxfl("methods", "example")
    small = ["--set", "num_clients=8", "--set", "rows_per_client=20", "--set", "model=logistic"]
    own = ["--set", "num_clusters=3", "--set", "weighting=uniform", "--rounds", "2", "--out", str(tmp_path / "a")]
    jaxfl("run", "example", "--data", "rotated-digits", *small, *own)
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert (config["method.num_clusters"], config["method.weighting"]) == (3, "uniform")
