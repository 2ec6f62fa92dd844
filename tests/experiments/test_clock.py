"""Runs of the page on accuracy by simulated time: each is made once and is that of its command; the page shows all."""

import shlex

import pytest

import jaxfl
from experiments.clock import __main__ as command
from experiments.clock import grid

SMALL = grid.FEDERATIONS[0]._replace(
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
        yield {
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
