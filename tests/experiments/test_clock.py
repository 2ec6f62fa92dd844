"""Runs of the page on accuracy by simulated time: each is made once and is that of its command; the page shows all."""

import itertools
import shlex

import numpy as np
import pytest

import jaxfl
from docs import pictures
from docs.generate import clock as pages
from experiments.clock import __main__ as command
from experiments.clock import grid

SMALL = grid.FEDERATIONS[0]._replace(
    name="digits",
    data="rotated-digits",
    options={"num_clients": 24, "rows_per_client": 20, "model": "logistic", "local_epochs": 1, "batch_size": 10},
    rounds=2,
    evaluations=2,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A grid of FedAvg on the digits, stopped after its first two runs and made to its end; its file."""
    folder, patch = tmp_path_factory.mktemp("results"), pytest.MonkeyPatch()
    path = folder / "runs.jsonl"
    with patch.context() as change:
        change.setattr(grid, "RESULTS", folder)
        change.setattr(grid, "FEDERATIONS", (SMALL,))
        change.setattr(grid, "SEEDS", (0, 1))
        change.setattr(grid, "PROGRAMS", tuple(grid.Program(SMALL, "fedavg", policy) for policy in grid.POLICIES))
        change.setattr(command, "keep_programs", lambda: None)
        command.main([])
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(lines[:2]), encoding="utf-8")
        command.main([])
        assert path.read_text(encoding="utf-8").splitlines()[:2] == "".join(lines[:2]).splitlines()
        return {
            (policy, clock): grid.records(grid.Program(SMALL, "fedavg", policy), clock, grid.read(path))
            for policy in grid.POLICIES
            for clock in grid.CLOCKS
        }


@pytest.mark.slow
def test_a_grid_goes_on_where_it_was_stopped(made):
    assert {key: [line["seed"] for line in lines] for key, lines in made.items()} == dict.fromkeys(made, [0, 1])


@pytest.mark.slow
def test_runs_of_one_program_are_those_of_their_commands(made):
    line = made["fedbuff", "lognormal"][1]
    result = jaxfl.run_named(line["method"], seed=line["seed"], **line["options"])
    curve = [(one["round"], one["seconds_simulated"], one["micro_accuracy"]) for one in result.history]
    assert [tuple(point[:3]) for point in line["curve"]] == [pytest.approx(point, rel=1e-3) for point in curve]


@pytest.mark.slow
def test_records_tell_who_was_aggregated(made):
    for (policy, clock), lines in made.items():
        for line in lines:
            groups = line["groups"]
            assert sum(groups["updates"]) == pytest.approx(1, abs=1e-3)
            assert line["curve"][-1][3] == min(groups["accuracy"])
            assert ("cut" in line) == (policy != "synchronous")
            if policy == "deadline":
                assert (line["cut"] > 0) == (clock != "equal")
    for seed in (0, 1):  # the third group is slow, and so are all of the slowest quarter
        line = made["deadline", "tiers"][seed]
        assert line["groups"]["updates"][2] == line["quarters"]["updates"][0] == min(line["groups"]["updates"])


def test_programs_are_of_runs_that_differ_in_clock_and_seed_alone():
    for on in grid.FEDERATIONS:
        for runs in (*command.program_settings(on).values(), *command.rate_settings(on).values()):
            kinds = {
                (setting.method, str({k: v for k, v in setting.options.items() if k not in ("clock", "clock_by")}))
                for setting, _ in runs
            }
            assert len(kinds) == 1


def test_commands_of_the_grid_are_possible(capsys):
    command.main(["--list"])
    lines = capsys.readouterr().out.splitlines()
    assert len(set(lines)) == len(lines) == len(grid.PROGRAMS) * len(grid.CLOCKS) * len(grid.SEEDS)
    assert all(shlex.split(line)[:2] == ["jaxfl", "run"] for line in lines)
    for program in grid.PROGRAMS:
        for clock in grid.CLOCKS:
            grid.job_of(program.setting(clock), 0)


def test_committed_records_are_of_the_grid_as_it_is():
    for file, settings in ((command.RUNS, command.program_settings), (command.RATES, command.rate_settings)):
        wanted = {
            grid.run_name(*setting, seed)
            for on in grid.FEDERATIONS
            for runs in settings(on).values()
            for setting, seed in runs
        }
        found = grid.read(grid.RESULTS / f"{file}.jsonl")
        assert found and set(found) <= wanted


def test_learning_rates_are_the_best_of_those_that_were_tried():
    tried = grid.read(grid.RESULTS / f"{command.RATES}.jsonl")
    for on in grid.FEDERATIONS:
        best = {}
        for ((setting, seed),) in command.rate_settings(on).values():
            accuracy = tried[grid.run_name(*setting, seed)]["curve"][-1][2]
            best[setting.method] = max(
                best.get(setting.method, (0.0, 0.0)), (accuracy, setting.options["learning_rate"])
            )
        assert {method: rate for method, (_, rate) in best.items()} == on.rates


def test_synchronous_rounds_train_the_same_models_under_all_clocks():
    lines = grid.read(grid.RESULTS / f"{command.RUNS}.jsonl")
    for program in (one for one in grid.PROGRAMS if one.policy == "synchronous"):
        each = [grid.records(program, clock, lines) for clock in grid.CLOCKS]
        for lines_of_seed in zip(*each, strict=False):  # a federation may be unfinished
            curves = [[point[2:] for point in line["curve"]] for line in lines_of_seed]
            assert curves[0] == curves[1] == curves[2]


@pytest.mark.parametrize("name", [on.name for on in grid.FEDERATIONS])
def test_pictures_show_all_runs(name):
    panels = [axes for axes in pictures.accuracy_by_time(name).axes if axes.axison]
    for axes, (method, clock) in zip(panels, pages.settings(name), strict=True):
        for line, (policy, column) in zip(axes.get_lines(), itertools.product(grid.POLICIES, (2, 3)), strict=True):
            found = pages.records(name, method, policy, clock)
            assert line.get_ydata()[-1] == pytest.approx(100 * np.mean([one["curve"][-1][column] for one in found]))
    updates, accuracy = pictures.slow_group().axes
    assert (len(updates.patches), len(accuracy.patches)) == (12, 3 * len(pages.methods("rotated", "tiers")))
