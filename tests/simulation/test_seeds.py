"""Runs of several seeds in one program are the runs apart."""

import functools
import shutil
import signal
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import methods
from jaxfl.cohort import Plan
from jaxfl.data.synthetic import clustered_linear
from jaxfl.simulation import footprint as footprints
from jaxfl.simulation import loop, program
from jaxfl.simulation.records import checkpoint
from jaxfl.simulation.rounds import Rounds
from jaxfl.simulation.schedule import Clock
from jaxfl.simulation.seeds import LaneRounds
from jaxfl.testing.compare import assert_close, assert_equal
from jaxfl.testing.small import linear_task
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=4)

DATA = clustered_linear(8, rows=8, features=4, ragged=True)
TASK, OPTIMIZER = linear_task(), optax.sgd(0.3)
OPTIONS = {"rounds": 4, "cohort": 4, "eval_every": 2}
MADE = {  # once: programs are kept with their method
    "fedavg": methods.fedavg(TASK, OPTIMIZER, local_epochs=1, batch_size=4),
    "ditto": methods.ditto(TASK, OPTIMIZER, local_epochs=1),
    "fesem": methods.fesem(TASK, OPTIMIZER, num_clusters=2, local_epochs=1),
    "stocfl": methods.stocfl(TASK, OPTIMIZER, local_epochs=1, slots=2, threshold=0.45),
}
SEEDS = [3, 0]
METHOD = MADE["fedavg"]
TIMES = {"seconds", "seconds_per_round"}


@pytest.fixture(scope="module")
def apart():
    """The runs of METHOD one by one."""
    return [alone("fedavg", seed) for seed in SEEDS]


@pytest.fixture
def side_by_side(monkeypatch):
    """All seeds are trained in one program, as on an accelerator."""
    monkeypatch.setattr(loop, "seeds_per_program", lambda count: count)


def untimed(history):
    return [{name: value for name, value in record.items() if name not in TIMES} for record in history]


def slots_of(run):
    return jax.tree.leaves(run.state.models)[0].shape[0]


def assert_same_run(found, wanted, method):
    """What comes of two runs is the same, but for rounding; slots that nobody has may be more."""
    everybody = jnp.arange(DATA.num_clients)
    assert_close(found.state.cluster, wanted.state.cluster, "the clusters")
    models = [method.client_params(one.state, everybody) for one in (found, wanted)]
    assert_close(*models, "the models")
    assert found.summary["seed"] == wanted.summary["seed"]
    for mine, other in zip(untimed(found.history), untimed(wanted.history), strict=True):
        numbers = [{name: one[name] for name in mine if isinstance(one[name], (int, float))} for one in (mine, other)]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-4, abs=1e-5)


def test_a_seed_beside_seeds_is_refused():
    with pytest.raises(ValueError, match=mentions("seed", 7, "seeds=[0, 1]")):
        jaxfl.run(MADE["fedavg"], DATA, seed=7, seeds=[0, 1], **OPTIONS)


@functools.cache
def alone(name, seed):
    return jaxfl.run(MADE[name], DATA, seed=seed, **OPTIONS)


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("name", "devices"),
    [("fedavg", None), ("ditto", None), ("fesem", None), pytest.param("stocfl", 2, marks=pytest.mark.slow)],
)
def test_seeds_in_one_program_are_the_runs_apart(name, devices, side_by_side):
    """Where each has a device of its own, and where all are mapped on one."""
    found = jaxfl.run(MADE[name], DATA, seeds=SEEDS, devices=devices, **OPTIONS)
    for seed, one in zip(SEEDS, found, strict=True):
        assert one.summary["seeds_together"] == 2 and one.summary["devices"] == (devices or 1)
        assert_same_run(one, alone(name, seed), MADE[name])
    if name == "stocfl":
        assert slots_of(found[0]) == slots_of(found[1]) > 2, "all grow when one has to"


@pytest.mark.slow
def test_states_whose_slots_grew_apart_go_on_together(side_by_side, tmp_path):
    method, options, slots = MADE["stocfl"], OPTIONS | {"eval_every": 1}, []
    for seed in SEEDS:
        early = jaxfl.run(method, DATA, seed=seed, checkpoint_dir=tmp_path / f"seed-{seed}", **options | {"rounds": 1})
        slots.append(slots_of(early))
    assert slots == [4, 2]
    found = jaxfl.run(method, DATA, seeds=SEEDS, checkpoint_dir=tmp_path, resume=True, **options)
    for seed, one in zip(SEEDS, found, strict=True):
        assert_same_run(one, jaxfl.run(method, DATA, seed=seed, **options), method)
        assert one.summary["seeds_together"] == 2


def test_seeds_that_devices_do_not_divide_are_the_runs_apart(side_by_side):
    for seed, one in zip([3, 0, 1], jaxfl.run(METHOD, DATA, seeds=[3, 0, 1], devices=2, **OPTIONS), strict=True):
        assert_same_run(one, alone("fedavg", seed), METHOD)


def test_seeds_one_after_another_are_the_runs_apart(apart):
    events, began = [], time.perf_counter()
    found = jaxfl.run(METHOD, DATA, seeds=SEEDS, callbacks=[events.append], **OPTIONS)
    took = time.perf_counter() - began
    assert sum(one.summary["total_seconds"] for one in found) <= took, "each seed has its own time"
    for one, wanted in zip(found, apart, strict=True):
        assert one.summary["seeds_together"] == 1
        assert_equal(one.state, wanted.state, "a run among several")
        assert untimed(one.history) == untimed(wanted.history)
    assert [event.seed for event in events if event.record] == [3, 3, 0, 0]
    assert found[0].evaluation.accuracy.tobytes() == apart[0].evaluation.accuracy.tobytes()


def test_seeds_may_have_data_of_their_own(side_by_side):
    """What is the same is there once; what is not decides every seed's own run."""
    other = replace(DATA, labels=(DATA.labels + 1) % 3)
    same = replace(other, inputs=DATA.inputs.copy(), client_names=tuple("abcdefgh"))
    found = jaxfl.run(METHOD, [DATA, same], seeds=SEEDS, **OPTIONS)
    for seed, data, one in zip(SEEDS, (DATA, other), found, strict=True):
        assert_same_run(one, jaxfl.run(METHOD, data, seed=seed, **OPTIONS), METHOD)
        assert one.data.inputs is found[0].data.inputs and one.summary["seeds_together"] == 2
    assert found[1].data.labels is not found[0].data.labels
    assert [one.data.client_names for one in found] == [(), tuple("abcdefgh")]


def test_seeds_of_one_program_are_saved_together(side_by_side, tmp_path, monkeypatch):
    """Whatever the clock of each says: seeds with unlike rounds would go on in programs of their own."""
    clocks, saved = [], []

    def saves(clock, schedule, done):  # of the second seed in odd rounds, of the first never
        clocks.extend([] if clock in clocks else [clock])
        return clocks.index(clock) == 1 and done % 2 == 1

    def look(event):
        folders = [tmp_path / f"seed-{seed}" for seed in SEEDS]
        saved.append([checkpoint.newest(one).header["round"] for one in folders if (one / checkpoint.NAME).exists()])

    monkeypatch.setattr(Clock, "saves", saves)
    options = {**OPTIONS, "seeds": SEEDS, "checkpoint_dir": tmp_path, "eval_every": 1}
    jaxfl.run(METHOD, DATA, callbacks=[lambda event: event.seed == SEEDS[-1] and look(event)], **options)
    assert saved == [[1, 1], [1, 1], [3, 3], [3, 3]]


def test_seeds_that_are_stopped_go_on(apart, side_by_side, tmp_path, monkeypatch):
    def press(event):
        if event.round == 2 and event.seed == SEEDS[0]:
            signal.raise_signal(signal.SIGINT)

    options = {**OPTIONS, "seeds": SEEDS, "checkpoint_dir": tmp_path}
    with pytest.raises(KeyboardInterrupt, match=mentions("round 2 of 4")):
        jaxfl.run(METHOD, DATA, callbacks=[press], **options)
    for seed in SEEDS:
        assert checkpoint.newest(tmp_path / f"seed-{seed}").header["round"] == 2
    shutil.rmtree(tmp_path / "seed-0")  # as if it had been killed before this one was saved first
    resumed = jaxfl.run(METHOD, DATA, resume=True, **options)
    for one, wanted in zip(resumed, apart, strict=True):
        assert_same_run(one, wanted, METHOD)
        assert one.summary["seeds_together"] == 1, "they have not made as many rounds"
    read, load = [], checkpoint.load
    monkeypatch.setattr(checkpoint, "load", lambda path: read.append(path) or load(path))
    again = jaxfl.run(METHOD, DATA, resume=True, **options)
    assert len(read) == 4, "each to learn its rounds, and again to go on"
    assert [one.summary["seeds_together"] for one in again] == [2, 2]
    assert untimed(again[0].history) == untimed(resumed[0].history)
    with pytest.raises(ValueError, match=mentions("checkpoint_dir", "history.jsonl", "resume=True")):
        jaxfl.run(METHOD, DATA, **options)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, ("seed-0", "history.jsonl", "resume=True")),
        ({"resume": True, "rounds": 1}, ("rounds", 1)),
        ({"resume": True, "config": {"rate": 1}}, ("rate=None", 1)),
    ],
)
def test_a_seed_that_cannot_go_on_is_refused_before_any_is_trained(tmp_path, more, words):
    jaxfl.run(METHOD, DATA, **OPTIONS | {"rounds": 2}, seeds=[0], checkpoint_dir=tmp_path)
    trained = []
    with pytest.raises(ValueError, match=mentions(*words)):
        jaxfl.run(METHOD, DATA, seeds=SEEDS, checkpoint_dir=tmp_path, callbacks=[trained.append], **OPTIONS | {**more})
    assert not trained and [path.name for path in tmp_path.iterdir()] == ["seed-0"]


def test_a_seed_that_diverges_leaves_the_others_alone(apart, side_by_side, tmp_path):
    bad = replace(DATA, inputs=np.full_like(DATA.inputs, 1e30))
    with pytest.raises(jaxfl.Diverged, match=mentions("round 2 of 4", "seed-0")) as raised:
        jaxfl.run(METHOD, [DATA, bad], seeds=SEEDS, checkpoint_dir=tmp_path, **OPTIONS)
    good, diverged = raised.value.outcomes
    assert diverged is raised.value
    assert_same_run(good, apart[0], METHOD)
    assert checkpoint.newest(tmp_path / "seed-0") is None


def test_where_a_seed_has_diverged_the_others_are_saved_when_stopped(side_by_side, tmp_path):
    bad = replace(DATA, inputs=np.full_like(DATA.inputs, 1e30))

    def press(event):
        if event.round == 4:
            signal.raise_signal(signal.SIGINT)

    options = {**OPTIONS, "rounds": 6, "checkpoint_dir": tmp_path, "seeds": SEEDS}
    with pytest.raises(KeyboardInterrupt, match=mentions("round 4 of 6", "checkpoint is of round 4")):
        jaxfl.run(METHOD, [DATA, bad], callbacks=[press], **options)
    assert checkpoint.newest(tmp_path / "seed-0") is None
    with pytest.raises(jaxfl.Diverged) as raised:
        jaxfl.run(METHOD, [DATA, bad], resume=True, **options)
    assert raised.value.outcomes[0].summary["rounds"] == 6 and raised.value.outcomes[1] is raised.value


def test_seeds_that_do_not_fit_go_on_one_after_another(apart, side_by_side, monkeypatch):
    free = iter([100])
    monkeypatch.setattr(program, "available_bytes", lambda: next(free, None))
    with pytest.warns(UserWarning, match=mentions("2 seeds")):
        found = jaxfl.run(METHOD, DATA, seeds=SEEDS, resident=True, **OPTIONS)
    for one, wanted in zip(found, apart, strict=True):
        assert one.summary["seeds_together"] == 1
        assert_equal(one.state, wanted.state, "a run after another")


def test_nothing_is_told_twice_where_seeds_go_on_one_after_another(side_by_side, monkeypatch):
    advance, told = Rounds.advance, []

    def first(self, state, count):
        if isinstance(self, LaneRounds) and told:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 7 bytes.")
        return advance(self, state, count)

    monkeypatch.setattr(Rounds, "advance", first)
    with pytest.warns(UserWarning, match=mentions("2 seeds")):
        options = OPTIONS | {"rounds": 3, "eval_every": 1}
        found = jaxfl.run(METHOD, DATA, seeds=SEEDS, callbacks=[told.append], **options)
    told = sorted((event.seed, event.round) for event in told)
    assert told == [(seed, round) for seed in sorted(SEEDS) for round in (1, 2, 3)]
    assert [one.history.column("round") for one in found] == [[1, 2, 3]] * 2


def held(count):
    return replace(DATA, held_out=np.arange(DATA.num_clients) < count)


def gradual():
    drift = {"drift": "gradual", "drift_change": "labels", "drift_rounds": (2, 4)}
    return [jaxfl.data.load("iid-digits", num_clients=4, seed=seed, **drift) for seed in (0, 1)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"seeds": []}, ("seeds", "[]")),
        ({"seeds": [1, 1]}, ("seeds", "[1, 1]")),
        ({"seeds": [0, -1]}, ("seed", -1, 4294967295)),
        ({"seeds": [0.5]}, ("seed", 0.5)),
        ({"seeds": 3}, ("seeds", 3)),
        ({"seeds": [0, 1], "data": [DATA]}, ("data", 1)),
        ({"seeds": [0, 1], "data": [DATA, clustered_linear(4)]}, ("data", "8 and 4 clients", "data[i], seed=seeds[i]")),
        ({"seeds": [0, 1], "data": [held(1), held(3)]}, ("data", "7 and 5 clients", "seeds[i]")),
        ({"seeds": [0, 1], "data": [DATA, replace(DATA, inputs=DATA.inputs[:-1])]}, ("data", "inputs", "seeds[i]")),
        ({"seeds": [0, 1], "data": gradual()}, ("data", "gradual drift", "seeds[i]")),
    ],
)
def test_bad_seeds_are_refused(arguments, words):
    with pytest.raises((ValueError, TypeError), match=mentions(*words)):
        jaxfl.run(**{"method": METHOD, "data": DATA, "plan": Plan()} | OPTIONS | arguments)


def test_a_footprint_of_several_seeds_in_one_program(monkeypatch):
    monkeypatch.setattr(footprints, "seeds_per_program", lambda count: count)
    one, three = (jaxfl.footprint(METHOD, DATA, cohort=4, devices=2, seeds=seeds) for seeds in (1, 3))
    assert three.state == 2 * one.state and three.data == one.data, "of three seeds a device has two at most"
    assert three.working > one.working and "3    in one program" in str(three)
