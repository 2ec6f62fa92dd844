"""How rounds scale: what is asked of each process, what becomes of its answers, and what is refused."""

import importlib
import json
import sys

import numpy as np
import pytest

from jaxfl import bench
from jaxfl.bench import axes
from jaxfl.bench.machine import spread_of
from tests.messages import mentions

module = importlib.import_module("jaxfl.bench.scaling")
MACHINE = {"versions": {"jax": "1"}, "cores": 2, "device": "cpu", "platform": "cpu", "load": 0.0}


def answer(point, seconds):
    """What a process finds of a point."""
    products = spread_of([100.0, 200.0])
    share = spread_of([point["rounds"] / 10, 0.5])
    return {
        "seconds": spread_of([seconds, 2 * seconds, 3 * seconds]), "clients_per_second": 1 / seconds,
        "compile_seconds": 1.0, "peak_bytes": 5e8 + point["cohort"], "empty_bytes": 2e8, "gflops": 3.0,
        "product_gflops": products, "share_of_product": share, "chunk": 1, "devices": point["devices"] or 1,
    }  # fmt: skip


@pytest.fixture
def processes(monkeypatch):
    """Processes that answer at once: a round takes a millisecond a client; 13 clients are too much."""
    asked = []

    def process(*arguments):
        if not arguments:
            yield {"found": {**MACHINE, "devices": 6}}
            return
        point = json.loads(arguments[0])
        asked.append(point)
        yield {"round": 0}
        if point["cohort"] == 13:
            yield {"failed": "out of memory"}
        elif point["hidden"] == 7:
            yield {"refused": "hidden must not be 7, got 7."}
        else:
            yield {"found": {**answer(point, 0.001 * point["cohort"]), "machine": MACHINE}}

    monkeypatch.setattr(module, "_process", process)
    return asked


def test_points_differ_in_the_axis_alone(processes):
    result = bench.scaling("cohort", [2, 20], method="ifca", options={"batch_size": None}, rounds=3)
    wanted = {"local_epochs": 1, "batch_size": None}
    assert [point.pop("cohort") for point in processes] == [2, 20]
    assert processes[0] == processes[1] and processes[0]["options"] == wanted
    assert processes[0]["population"] == 1000 and processes[0]["rounds"] == 3
    assert result.slope == pytest.approx(1.0)
    assert "machine" not in result.points[0] and result.machine == MACHINE
    assert bench.Scaling(**json.loads(json.dumps(result._asdict()))) == result


def test_a_cohort_is_no_larger_than_the_population(processes):
    bench.scaling("cohort", [10, 5000])
    bench.scaling("population", [20, 1000])
    assert [(point["cohort"], point["population"]) for point in processes] == [
        (10, 5000), (5000, 5000), (20, 20), (20, 1000),
    ]  # fmt: skip


def test_one_that_fails_takes_no_other_with_it(processes):
    steps = []
    result = bench.scaling("cohort", [2, 13, 20], watch=steps.append)
    assert result.failures == ["cohort 13 failed: out of memory"] and len(result.points) == 3
    assert result.slope == pytest.approx(1.0)
    assert (steps[0].index, steps[0].share, steps[-1].index, steps[-1].share) == (0, 0, 3, 1)
    assert [step.share for step in steps] == sorted(step.share for step in steps)
    alone = bench.scaling("cohort", [13])
    assert alone.slope is None and alone.machine == {} and "two points" in alone.meaning


def test_other_programs_are_told(processes):
    result = bench.scaling("cohort", [2, 20])
    assert result.warning == ""
    assert "load 9 on 2 cores" in result._replace(machine={**MACHINE, "load": 9.1}).warning


def test_what_is_refused_ends_it(processes):
    with pytest.raises(ValueError, match=mentions("hidden", 7)):
        bench.scaling("width", [7, 9])
    late = bench.scaling("width", [5, 7])  # the first point is not lost
    assert late.points[1]["error"].startswith("hidden must not be 7") and "seconds" in late.points[0]


def test_devices_are_those_of_the_machine(processes):
    bench.scaling("devices")
    assert [(point["devices"], point["cores"]) for point in processes] == [(1, 1), (2, 2), (4, 4), (6, 6)]
    with pytest.raises(ValueError, match=mentions("values", 7, 6)):
        bench.scaling("devices", [1, 7])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"over": "cohorts"}, ("cohorts", "cohort")),
        ({"over": "cohort", "values": []}, ("values", "()", "10, 30, 100, 300, 1000")),
        ({"over": "cohort", "values": [10, 10]}, ("values", "(10, 10)")),
        ({"over": "devices", "values": [0]}, ("values", "(0,)")),
        ({"over": "cohort", "method": "fedavgg"}, ("fedavgg", "fedavg")),
        (
            {"over": "cohort", "options": {"epochs": 1}},
            ("epochs", "local_epochs"),
        ),
        ({"over": "cohort", "rounds": 0}, ("rounds", 0)),
        ({"over": "width", "hidden": 0}, ("hidden", 0)),
        ({"over": "width", "values": [10**400]}, ("values", 10**400)),
        ({"over": "cohort", "hidden": 10**400}, ("hidden", 10**400)),
    ],
)
def test_bad_arguments_are_refused(processes, given, words):
    with pytest.raises(ValueError, match=mentions(*words)):
        bench.scaling(**given)
    assert processes == []


def test_slope_is_that_of_the_power():
    rows = [{"value": n, "seconds": {"median": 3.0 * n**-0.5}} for n in (1, 2, 8)]
    assert module.slope([*rows, {"value": 9, "error": "lost"}]) == pytest.approx(-0.5)
    assert module.slope(rows[:1]) is None


def test_operations_are_counted_as_by_hand():
    """Two passes; no gradient of the first layer's inputs."""
    (point,) = axes.points("cohort", (3,), hidden=5, options={"local_epochs": 2})
    forward, weights, inputs = 784 * 5 + 5 * 10, 784 * 5 + 5 * 10, 5 * 10
    assert point.gflop == pytest.approx(2 * 2 * 50 * 3 * (forward + weights + inputs) / 1e9)
    assert point._replace(seeds=4).gflop == pytest.approx(4 * point.gflop)


def test_seeds_share_programs_as_in_a_run(monkeypatch):
    """Five seeds, of which a program takes four: those four on a device each, and one after them."""
    point = importlib.import_module("jaxfl.bench.point")
    made = []

    def noted(kind):
        def program(prepared, seeds, *arguments):
            made.append((kind.__name__, np.shape(seeds)))
            return kind(prepared, seeds, *arguments)

        return program

    for kind in (point.Rounds, point.LaneRounds):
        monkeypatch.setattr(point, kind.__name__, noted(kind))
    monkeypatch.setattr(point, "seeds_per_program", lambda count: min(count, 4))
    monkeypatch.setattr(point, "SIZE", {"cpu": 8})
    (five,) = axes.points("seeds", (5,), hidden=2, rounds=2)
    told = []
    found = point.measure(five._replace(cohort=2, population=4, devices=4), told.append)
    assert made == [("LaneRounds", (4,)), ("Rounds", ())]
    assert told == [0, 1] and len(found["seconds"]["values"]) == len(found["product_gflops"]["values"]) == 2
    assert found["clients_per_second"] == pytest.approx(2 * 5 / found["seconds"]["median"])
    assert found["gflops"] * found["seconds"]["median"] == pytest.approx(five._replace(cohort=2).gflop)


def test_a_process_that_dies_says_why(monkeypatch):
    monkeypatch.setattr(sys, "executable", "false")
    assert list(module._process("{}")) == [{"failed": "ended with exit code 1"}]


def test_the_picture_has_what_was_measured(processes):
    from jaxfl import plots

    result = bench.scaling("cohort", [2, 13, 20])
    seconds, memory, share = plots.scaling(result).axes
    measured, ideal = seconds.get_lines()
    np.testing.assert_allclose(measured.get_xydata(), [[2, 4], [20, 40]])
    np.testing.assert_allclose(ideal.get_ydata(), [4, 40])
    assert "slope 1.00" in seconds.get_title("left")
    np.testing.assert_allclose(memory.get_lines()[1].get_ydata(), 200)
    assert list(share.get_lines()[0].get_ydata()) == [75, 75]
    assert len(plots.scaling(result, result).axes) == 6
    with pytest.raises(ValueError, match=mentions("results", "cohort")):
        plots.scaling(result._replace(points=result.points[1:2]))
    with pytest.raises(ValueError, match=mentions("results", "none")):
        plots.scaling()
