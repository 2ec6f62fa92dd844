"""Grids of runs are made once each, their options are those of the command line, and the picture shows the results."""

import shlex
import sys

import numpy as np
import pytest

from docs.generate import wire
from experiments.wire import attacks, compression, grid, membership, privacy, speed
from jaxfl.settings import options


def test_a_grid_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(sys, "argv", ["grid"])
    settings = [grid.Setting("fedavg", {"clip": clip}) for clip in (1.0, 2.0)]
    made = []

    def run(setting, seed):
        if len(made) == 4:
            raise KeyboardInterrupt
        made.append((setting.options["clip"], seed))
        return {"summary": {"micro_accuracy": seed}, "curve": []}

    with pytest.raises(KeyboardInterrupt):
        grid.command(None, "small", settings, run)
    again = made.copy()
    made.clear()
    grid.command(None, "small", settings, run)
    assert [*again, *made] == [(clip, seed) for clip in (1.0, 2.0) for seed in grid.SEEDS]
    found = list(grid.by_setting("small"))
    assert [setting for setting, _ in found] == settings
    assert [line["seed"] for line in found[1][1]] == list(grid.SEEDS)


@pytest.mark.parametrize("settings", [attacks.SETTINGS, compression.SETTINGS], ids=["attacks", "compression"])
def test_the_runs_of_a_grid_are_possible(settings):
    for setting in settings:
        given = dict(setting.options)
        numbers = {name: given.pop(name) for name in ("rounds", "cohort", "eval_every")}
        options.route(setting.method, given.pop("data"), **given)
        words = shlex.split(grid.command_line(setting, 1))
        assert words[:3] == ["jaxfl", "run", setting.method] and str(numbers["rounds"]) in words
        written = {name: "true" if value is True else value for name, value in given.items()}
        assert all(f"{name}={value}" in words for name, value in written.items())


def test_costs_are_kept_once_a_line_and_are_a_table(tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "RESULTS", tmp_path)
    lines = [speed.Line("w3-logistic", 3, speed.LINKS[:2]), speed.Line("w3-logistic", 4, speed.AGGREGATORS[:2])]
    monkeypatch.setattr(speed, "LINES", lines)
    for _ in range(2):
        speed.main(["w3-logistic", "--repeats", "1", "--cores", "1"])
    assert [(one["clients"], list(one["ratio"])) for one in grid.kept("speed")] == [
        (3, ["none", "clip"]),
        (4, ["none", "median"]),
    ]
    head, _, *rows = wire.costs().splitlines()
    assert head == "| round | clip | median |" and len(rows) == 2


def test_the_federation_of_privacy_has_as_many_clients_as_are_wanted():
    data = privacy.federation(40, seed=1)
    assert np.bincount(data.group).tolist() == [10] * 4 and (data.train.size == privacy.ROWS).all()
    test = set(np.asarray(data.test.rows).tolist())
    rows = np.asarray(data.train.rows).reshape(40, privacy.ROWS)
    assert not test & set(rows.ravel().tolist()) and all(len(set(own)) == privacy.ROWS for own in rows.tolist())


def test_the_picture_of_membership_shows_all_runs():
    rows = membership.kept()
    runs = {(row["method"], row["seed"]) for row in rows}
    assert runs == {(method, seed) for method in membership.NAMES for seed in membership.SEEDS}
    accuracy, area = membership.draw(rows).axes
    line = {line.get_label(): line for line in area.get_lines()}["Local"]
    own = [
        [row["auc"] for row in rows if (row["method"], row["score"], row["group"]) == ("local", "loss", size)]
        for size in membership.SIZES
    ]
    np.testing.assert_allclose(line.get_ydata(), np.mean(own, 1))
    assert len(accuracy.get_lines()) == len(membership.NAMES) * (1 + len(membership.SEEDS))
