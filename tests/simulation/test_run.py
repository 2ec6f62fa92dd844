"""Runs: cut, interrupted, refused, counted; and slots that double on the way."""

import concurrent.futures
import errno
import functools
import json
import os
import re
import shutil
import signal
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental import io_callback

import jaxfl
from jaxfl import methods, sampling, tree
from jaxfl.cohort import Cohort, Plan
from jaxfl.data import conditions
from jaxfl.data.clients import Split
from jaxfl.data.synthetic import clustered_linear
from jaxfl.server import coordinate_sums
from jaxfl.simulation import interrupts, program, rounds, schedule
from jaxfl.simulation.evaluation.finetune import FineTune
from jaxfl.simulation.loggers import csv
from jaxfl.simulation.records import checkpoint
from jaxfl.simulation.records.history import History
from jaxfl.simulation.schedule import Schedule
from jaxfl.tasks.contract import check_learns
from jaxfl.testing.compare import assert_close, assert_equal, leaves
from jaxfl.testing.small import linear_task
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=6)

DATA = clustered_linear(8, rows=8, features=4, ragged=True)
OPTIONS = {"cohort": 3, "seed": 2, "plan": Plan()}
TIMES = {"seconds", "seconds_per_round"}


@functools.cache  # the runs of one method share their programs
def fedavg():
    return methods.fedavg(linear_task(), optax.sgd(0.3), local_epochs=1)


@functools.cache
def stocfl(slots, threshold=0.9):
    return methods.stocfl(linear_task(), optax.sgd(0.3), local_epochs=1, slots=slots, threshold=threshold)


def untimed(history):
    return [{name: value for name, value in record.items() if name not in TIMES} for record in history]


@pytest.fixture(scope="module")
def straight():
    return jaxfl.run(fedavg(), DATA, rounds=6, eval_every=2, **OPTIONS)


def test_records_are_made_when_due_and_at_the_end():
    events = []
    result = jaxfl.run(fedavg(), DATA, rounds=5, eval_every=2, callbacks=[events.append], **OPTIONS)
    assert result.history.column("round") == [2, 4, 5]
    assert [event.round for event in events if event.record] == [2, 4, 5]
    assert events[-1].round == events[-1].rounds == 5 and events[-1].num_clusters == 1
    assert int(result.state.round) == result.summary["rounds"] == 5


def test_evaluating_and_saving_change_nothing(straight, tmp_path):
    often = jaxfl.run(fedavg(), DATA, rounds=6, eval_every=1, checkpoint_every=3, checkpoint_dir=tmp_path, **OPTIONS)
    assert_equal(often.state, straight.state, "the frequency of evaluation and checkpoints")
    assert often.history[-1]["micro_accuracy"] == straight.history[-1]["micro_accuracy"]
    assert often.history[-1]["bytes_up"] == straight.history[-1]["bytes_up"] > 0
    losses = np.array(often.history.column("train_loss"))
    # a record's loss is the mean over the rounds since the one before
    np.testing.assert_allclose(losses.reshape(3, 2).mean(1), straight.history.column("train_loss"), rtol=1e-12)


def test_the_same_run_again_is_the_same_to_the_last_bit_at_another_speed(monkeypatch):
    """How many rounds a call makes is a matter of how fast they were, and no two runs are equally fast."""
    histories = []
    for most in (64, 1):
        ahead = Schedule.ahead
        with monkeypatch.context() as patch:
            patch.setattr(Schedule, "ahead", lambda self, done, _: min(most, ahead(self, done, 1e-9)))  # noqa: B023, called while the loop has this value
            histories.append(
                untimed(jaxfl.run(fedavg(), DATA, rounds=64, eval_every=64, cohort=7, plan=Plan()).history)
            )
    assert histories[0] == histories[1] and len(histories[0]) == 1


def test_the_summary_is_ready_for_json(straight):
    summary = json.loads(json.dumps(straight.summary))
    assert summary["num_clients"] == 8 and summary["cohort"] == 3 and summary["micro_accuracy"] > 0.3
    assert summary["empty_clients"] == 1 and summary["diverged"] == 0


def test_a_run_stops_after_a_whole_round_and_has_saved(straight, tmp_path):
    at_stake = []

    def press(event):
        at_stake.append(interrupts.at_stake())
        if event.round == 2:
            signal.raise_signal(signal.SIGINT)

    options = {**OPTIONS, "eval_every": 2, "checkpoint_every": 6, "checkpoint_dir": tmp_path}
    with pytest.raises(KeyboardInterrupt, match=mentions("round 2 of 6")) as raised:
        jaxfl.run(fedavg(), DATA, rounds=6, callbacks=[press], **options)
    assert (raised.value.round, raised.value.saved) == (2, 2) and at_stake == [True, True]
    assert checkpoint.load(tmp_path / checkpoint.NAME).header["round"] == 2
    resumed = jaxfl.run(fedavg(), DATA, rounds=6, resume=True, **options)
    assert not interrupts.at_stake()
    assert_equal(resumed.state, straight.state, "a run that was stopped and resumed")
    assert untimed(resumed.history) == untimed(straight.history)


def test_a_run_that_keeps_nothing_says_so():
    with pytest.raises(KeyboardInterrupt, match=mentions("round 1 of 6", "nothing")):
        jaxfl.run(fedavg(), DATA, rounds=6, callbacks=[lambda event: signal.raise_signal(signal.SIGINT)], **OPTIONS)


def test_a_run_that_is_whole_is_not_stopped(straight):
    def press(event):
        if event.round == event.rounds:
            signal.raise_signal(signal.SIGINT)

    options = {**OPTIONS, "rounds": 6, "eval_every": 2, "callbacks": [press]}
    with pytest.warns(UserWarning, match=mentions("asked to stop", "whole")) as warned:
        result = jaxfl.run(fedavg(), DATA, **options)
    assert warned[0].filename == __file__
    assert_equal(result.state, straight.state, "a run that was asked to stop at its end")
    assert untimed(result.history) == untimed(straight.history)
    told = []
    before = signal.signal(signal.SIGINT, lambda number, frame: told.append(number))
    try:
        with pytest.warns(UserWarning, match=mentions("whole")):
            jaxfl.run(fedavg(), DATA, **options)
    finally:
        signal.signal(signal.SIGINT, before)
    assert told == [signal.SIGINT], "whoever asked may stop what comes next"
    del options["seed"]
    with pytest.raises(KeyboardInterrupt, match=mentions("round 6 of 6")) as raised:  # the second seed is still to come
        jaxfl.run(fedavg(), DATA, **options, seeds=[2, 3])
    assert_equal(raised.value.outcomes[0].state, straight.state, "the first seed")


@pytest.mark.parametrize("first", [1, 4])
def test_resumed_is_as_if_never_stopped(first, straight, tmp_path):
    options = {**OPTIONS, "eval_every": 2, "checkpoint_dir": tmp_path, "checkpoint_every": 1}
    jaxfl.run(fedavg(), DATA, rounds=first, **options)
    resumed = jaxfl.run(fedavg(), DATA, rounds=6, resume=True, **options)
    assert_equal(resumed.state, straight.state, "a resumed run")
    kept = [record for record in untimed(resumed.history) if record["round"] % 2 == 0]
    if first == 4:  # nothing was evaluated out of turn
        assert kept == untimed(straight.history)
    assert [record["micro_accuracy"] for record in kept] == straight.history.column("micro_accuracy")
    again = jaxfl.run(fedavg(), DATA, rounds=6, resume=True, **options)  # at its end already
    assert_equal(again.state, straight.state, "a finished run that is resumed")
    assert len(again.history) == len(resumed.history)


def test_a_run_that_is_resumed_where_it_was_stopped_is_evaluated_there(straight, tmp_path):
    """With fewer rounds than it had been asked for: those that were made, and not evaluated."""

    def press(event):
        if event.round == 5:
            signal.raise_signal(signal.SIGINT)

    told, options = [], {**OPTIONS, "eval_every": 2, "checkpoint_dir": tmp_path, "checkpoint_every": 1}
    with pytest.raises(KeyboardInterrupt, match=mentions("round 5 of 6")):
        jaxfl.run(fedavg(), DATA, rounds=6, callbacks=[press], **options)
    short = jaxfl.run(fedavg(), DATA, rounds=5, **OPTIONS)
    for _ in range(2):  # once more there is nothing to do
        result = jaxfl.run(fedavg(), DATA, rounds=5, resume=True, callbacks=[told.append], **options)
        assert result.history.column("round") == [2, 4, 5]
        assert untimed(result.history)[-1]["micro_accuracy"] == short.history[-1]["micro_accuracy"]
        assert result.evaluation.metrics == short.evaluation.metrics
    assert [(event.round, event.rounds, event.record["round"]) for event in told] == [(5, 5, 5)]
    whole = jaxfl.run(fedavg(), DATA, rounds=6, resume=True, **options)
    assert_equal(whole.state, straight.state, "a run that was resumed twice")
    assert whole.history.column("round") == [2, 4, 5, 6]


def test_a_run_that_is_resumed_where_few_rows_were_tested_tests_all(tmp_path):
    """As the last round of a whole run does; and once more there is nothing to say."""

    def press(event):
        if event.round == 4:
            signal.raise_signal(signal.SIGINT)

    told, options = [], {**OPTIONS, "eval_every": 2, "test_rows": 1}
    whole = jaxfl.run(fedavg(), DATA, rounds=4, **options)
    kept = {"checkpoint_dir": tmp_path, "callbacks": [press, csv(tmp_path / "log.csv")]}
    with pytest.raises(KeyboardInterrupt, match=mentions("round 4 of 6")):
        jaxfl.run(fedavg(), DATA, rounds=6, **options, **kept)
    for _ in range(2):
        kept["callbacks"] = [told.append, csv(tmp_path / "log.csv")]
        result = jaxfl.run(fedavg(), DATA, rounds=4, resume=True, **options, **kept)
        assert untimed(result.history) == untimed(whole.history)
        assert result.history[-1]["loss"] == result.summary["loss"]
    assert [(event.round, event.again) for event in told] == [(4, True)]
    rows = (tmp_path / "log.csv").read_text().splitlines()
    place = rows[0].split(",").index("loss")
    assert [float(row.split(",")[place]) for row in rows[1:]] == [one["loss"] for one in result.history]


@pytest.mark.parametrize("name", ["kfed", "robust"])
def test_what_comes_before_the_first_round_is_not_done_again(name, tmp_path):
    """k-FED and Robust train every client once before they start."""
    made = []

    def counted(key, data):
        state = method.init(key, data)
        round = io_callback(lambda round: (made.append(1), round)[1], state.round, state.round)
        return state._replace(round=round)

    method = methods.METHODS[name].factory(linear_task(), optax.sgd(0.3), num_clusters=2, local_epochs=1)
    for count in (1, 2):
        options = {**OPTIONS, "checkpoint_dir": tmp_path, "resume": count == 2}
        result = jaxfl.run(method._replace(init=counted), DATA, rounds=count, **options)
    assert len(made) == 1 and int(result.state.round) == 2


def test_records_after_the_last_checkpoint_are_made_again(straight, tmp_path):
    options = {**OPTIONS, "eval_every": 2, "checkpoint_dir": tmp_path}
    jaxfl.run(fedavg(), DATA, rounds=2, **options)
    with (tmp_path / "history.jsonl").open("a") as file:  # of a run that was killed before it saved again
        file.write(json.dumps({"round": 4, "micro_accuracy": -1.0}) + "\n")
    resumed = jaxfl.run(fedavg(), DATA, rounds=6, resume=True, **options)
    assert untimed(resumed.history) == untimed(straight.history)


def test_a_damaged_checkpoint_costs_the_rounds_since_the_one_before(straight, tmp_path):
    options = {**OPTIONS, "eval_every": 2, "checkpoint_dir": tmp_path}
    jaxfl.run(fedavg(), DATA, rounds=4, **options)
    (tmp_path / checkpoint.NAME).write_bytes((tmp_path / checkpoint.NAME).read_bytes()[:-100])
    with pytest.warns(UserWarning, match=mentions("checkpoint-before.npz", "round 2")):
        resumed = jaxfl.run(fedavg(), DATA, rounds=6, resume=True, **options)
    assert_equal(resumed.state, straight.state, "a run resumed from the checkpoint before")
    assert untimed(resumed.history) == untimed(straight.history)


def test_two_runs_in_one_directory_are_one(straight, tmp_path):
    options = {**OPTIONS, "eval_every": 2, "checkpoint_dir": tmp_path}

    def another(event):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            second = pool.submit(jaxfl.run, fedavg(), DATA, rounds=6, resume=True, **options)
            with pytest.raises(ValueError, match=mentions("checkpoint_dir", "process")):
                second.result()

    first = jaxfl.run(fedavg(), DATA, rounds=6, callbacks=[another], **options)
    kept = History(tmp_path / "history.jsonl")
    assert untimed(first.history) == untimed(straight.history) == untimed(kept)
    assert kept.clusters.shape == (len(kept), DATA.num_clients)
    assert (kept.clusters[-1] == straight.evaluation.cluster).all()


def test_resuming_nothing_starts(straight, tmp_path):
    result = jaxfl.run(fedavg(), DATA, rounds=6, eval_every=2, checkpoint_dir=tmp_path, resume=True, **OPTIONS)
    assert_equal(result.state, straight.state, "a run resumed from an empty directory")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 3}, ("seed=2", 3)),
        ({"cohort": 4}, ("cohort=3", 4)),
        ({"config": {"method": "fedprox"}}, ("fedprox", "method='fedavg'")),
        ({"resume": False}, ("checkpoint_dir", "history.jsonl", "resume=True")),
    ],
)
def test_another_configuration_is_refused(change, message, tmp_path):
    options = {**OPTIONS, "checkpoint_dir": tmp_path, "config": {"method": "fedavg"}}
    jaxfl.run(fedavg(), DATA, rounds=1, **options)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=mentions(*message)):
        jaxfl.run(fedavg(), DATA, rounds=2, **{**options, "resume": True, **change})
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_other_data_and_other_methods_are_refused(tmp_path):
    options = {**OPTIONS, "checkpoint_dir": tmp_path}
    jaxfl.run(fedavg(), DATA, rounds=1, **options)
    other = replace(DATA, labels=(DATA.labels + 1) % 3)
    with pytest.raises(ValueError, match=mentions("data='clustered-linear")):
        jaxfl.run(fedavg(), other, rounds=2, resume=True, **options)
    with pytest.raises(ValueError, match=mentions("method", "model")):
        jaxfl.run(stocfl(8), DATA, rounds=2, resume=True, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, ("rounds", 0)),
        ({"rounds": 2, "eval_every": 0}, ("eval_every", 0)),
        ({"rounds": 2, "checkpoint_every": -1}, ("checkpoint_every", -1)),
        ({"rounds": 2, "cohort": 9}, ("cohort", 9)),
        ({"rounds": 2, "resume": True}, ("resume", "checkpoint_dir")),
        ({"rounds": 2, "checkpoint_every": 1}, ("checkpoint_every", "checkpoint_dir")),
        ({"rounds": 2, "seed": 2**32}, ("seed", 4294967296, 4294967295)),
        ({"rounds": 2, "seed": -1}, ("seed", -1, 4294967295)),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        jaxfl.run(fedavg(), DATA, **options)


def test_a_state_without_its_fields_is_named():
    bare = fedavg()._replace(init=lambda key, data: {"model": 0.0})
    with pytest.raises(TypeError, match=mentions("init", "dict", "cluster")):
        jaxfl.run(bare, DATA, rounds=1)


def test_swapped_arguments_are_named():
    with pytest.raises(TypeError, match=mentions("method", "FederatedData", "jaxfl.methods.fedavg")):
        jaxfl.run(DATA, fedavg(), rounds=1)
    with pytest.raises(TypeError, match=mentions("data", "Method", "jaxfl.data.load")):
        jaxfl.footprint(fedavg(), fedavg())
    with pytest.raises(TypeError, match=mentions("seed", 1.0)):
        jaxfl.run(fedavg(), DATA, rounds=1, seed=1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"callbacks": print}, ("callbacks", "builtin_", "[callback]")),
        ({"callbacks": [print, 1]}, ("callbacks", 1)),
        (
            {"callbacks": [jaxfl.callbacks.ProgressBar]},
            ("callbacks", "ProgressBar"),
        ),
        ({"sampler": "uniform"}, ("sampler", "uniform", "jaxfl.sampling.uniform")),
        ({"config": 1}, ("config", 1)),
        ({"config": {1: 2}}, ("config", "{1: 2}")),
        ({"config": {"a": np.float32(1)}}, ("config['a']", "float32")),
        ({"finetune": 1}, ("finetune", 1, "jaxfl.FineTune", "optax.sgd")),
        ({"checkpoint_dir": 3}, ("checkpoint_dir", 3)),
        (
            {"data": None},
            ("data", "NoneType", "jaxfl.data.load"),
        ),
        ({"data": [1], "seeds": [0]}, ("data", "list")),
    ],
)
def test_arguments_of_other_types_are_named_before_anything_is_made(options, message, monkeypatch):
    monkeypatch.setattr("jaxfl.simulation.prepared.initialiser", None)
    with pytest.raises(TypeError, match=mentions(*message)):
        jaxfl.run(fedavg(), options.pop("data", DATA), rounds=1, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoint_dir": ""}, ("checkpoint_dir", '""')),
        ({"plan": Plan(chunk=0)}, ("chunk", 0)),
        ({"plan": Plan(chunk=1.5)}, ("chunk", 1.5)),
    ],
)
def test_folders_without_a_name_and_other_chunks_are_refused(options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        jaxfl.run(fedavg(), DATA, rounds=1, **options)


def test_data_of_other_rows_than_the_tasks_are_refused():
    rng = np.random.default_rng(0)

    def made(width, classes):
        parts = [np.arange(4), np.arange(4, 8)]
        labels = np.arange(8) % classes
        return jaxfl.data.federate(rng.normal(size=(8, width)), labels, parts, parts, num_classes=classes)

    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=3), made(5, 3))
    method = jaxfl.methods.fedavg(task, optax.sgd(0.1))
    check_learns(task, made(5, 2))  # fewer classes may do
    calls = [
        lambda data: jaxfl.run(method, data, rounds=1),
        lambda data: jaxfl.run_mapped(lambda value: method, [0.0], data, rounds=1),
        lambda data: jaxfl.footprint(method, data),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=mentions("data", "(5,)", "3 classes", "4 classes")):
            call(made(5, 4))  # the loss of label 3 would be NaN
    with pytest.raises(ValueError, match=mentions("data", "(6,)", "3 classes")):
        jaxfl.run(method, made(6, 3), rounds=1)


def test_fewer_rounds_than_were_made_are_refused(tmp_path):
    options = {**OPTIONS, "checkpoint_dir": tmp_path}
    jaxfl.run(fedavg(), DATA, rounds=3, **options)
    with pytest.raises(ValueError, match=mentions("rounds", 2, 3)):
        jaxfl.run(fedavg(), DATA, rounds=2, resume=True, **options)


def test_what_is_printed_is_a_line(straight):
    parts = [straight, straight.history, straight.evaluation, straight.data, straight.data.train]
    for part in parts:
        assert len(repr(part)) < 200 and "\n" not in repr(part), repr(part)
    assert "rounds=6" in repr(straight) and "last_round=6" in repr(straight.history)
    assert re.search(r"8 clients, 3 classes, 2 groups, inputs float32\[\d+, 4\]", repr(straight.data))


@pytest.mark.parametrize("number", [np.nan, 1e30])
def test_diverged_clients_are_counted_round_by_round(number):
    inputs = np.array(DATA.inputs)
    rows = DATA.train.rows[DATA.train.start[0] :][: DATA.train.size[0]]
    inputs[rows] = number * np.resize([1, -1], len(rows))[:, None]  # of both signs: not all can be of the class
    result = jaxfl.run(fedavg(), replace(DATA, inputs=inputs), rounds=4, eval_every=2, plan=Plan())
    assert result.summary["diverged"] == 4 and result.history.column("diverged") == [2, 2]
    assert np.max(result.history.column("train_loss")) < 10, "the loss of who is left out is no part of the mean"


def test_three_devices_give_what_one_gives():
    spread = jaxfl.run(fedavg(), DATA, rounds=6, eval_every=2, devices=3, **{**OPTIONS, "cohort": 4})
    alone = jaxfl.run(fedavg(), DATA, rounds=6, eval_every=2, **{**OPTIONS, "cohort": 4})
    assert_close(spread.state, alone.state, "three devices, four clients")
    assert (spread.summary["devices"], alone.summary["devices"]) == (3, 1)
    for name in ("updates", "mean_participants", "diverged", "micro_accuracy"):
        assert spread.summary[name] == alone.summary[name]
    assert spread.history.column("bytes_up") == alone.history.column("bytes_up")


@functools.cache
def started_by(name):
    """Returns a method that trains everybody before the first round."""
    first = {"first_epochs": 1, "num_clusters": 2} if name == "fesem" else {}
    return getattr(methods, name)(linear_task(), optax.sgd(0.3), local_epochs=1, **first)


@pytest.mark.rotating
@pytest.mark.parametrize("name", ["flhc", "kfed", "fesem"])
def test_what_comes_before_the_first_round_is_where_the_rounds_are(name):
    method = started_by(name)
    spread = jaxfl.run(method, DATA, rounds=2, eval_every=1, devices=2, seed=0)
    assert_close(spread.state, jaxfl.run(method, DATA, rounds=2, seed=0, plan=Plan()).state, "two devices")


def test_what_a_method_says_in_one_number_is_recorded_of_the_last_round():
    method = started_by("fesem")
    result = jaxfl.run(method, DATA, rounds=5, eval_every=2, plan=Plan())
    key, cohort = jax.random.key(0), Cohort.of(range(8))
    state, expected, once = jax.jit(method.init)(key, DATA), [], jax.jit(method.round)
    for _ in range(5):
        state, info = once(key, state, DATA, cohort)
        expected.append((float(info.extra["objective"]), int(info.extra["changed"])))
    columns = (result.history.column("objective"), result.history.column("changed"))
    for found, of_rounds in zip(columns, zip(*expected, strict=True), strict=True):
        np.testing.assert_allclose(found, np.array(of_rounds)[[1, 3, 4]], rtol=1e-5)
    assert columns[0][0] != columns[0][1] and "distance" not in result.history[-1]  # a number per client
    json.dumps(result.history.records, allow_nan=False)


def test_evaluations_between_test_some_rows_and_the_last_one_all(straight, tmp_path):
    options = {**OPTIONS, "eval_every": 2, "checkpoint_dir": tmp_path}
    few = jaxfl.run(fedavg(), DATA, rounds=6, test_rows=2, **options)
    assert_equal(few.state, straight.state, "what is tested")
    assert untimed(few.history)[-1] == untimed(straight.history)[-1]
    thin = jaxfl.run(fedavg(), replace(DATA, test=DATA.test.thinned(2)), rounds=6, eval_every=2, **OPTIONS)
    assert untimed(few.history)[:2] == untimed(thin.history)[:2] != untimed(straight.history)[:2]
    assert few.summary["test_rows"] == 2 and straight.summary["test_rows"] is None
    told, table = [], tmp_path / "log.csv"
    ended = jaxfl.run(
        fedavg(),
        DATA,
        rounds=9,
        test_rows=2,
        callbacks=[jaxfl.callbacks.csv(table), told.append, lambda e: e.round >= 6],
        **(options | {"checkpoint_dir": tmp_path / "ended"}),
    )
    assert untimed(ended.history) == untimed(few.history) == untimed(History(tmp_path / "ended" / "history.jsonl"))
    assert ended.evaluation.rows.tolist() == few.evaluation.rows.tolist()
    head, *rows = [row.split(",") for row in table.read_text().splitlines()]
    place = head.index("micro_accuracy")
    assert [float(row[place]) for row in rows] == few.history.column("micro_accuracy"), "the last of them on all rows"
    assert [(event.round, event.again) for event in told if event.record] == [
        (2, False),
        (4, False),
        (6, False),
        (6, True),
    ]
    with pytest.raises(ValueError, match=mentions("test_rows=2", "None")):
        jaxfl.run(fedavg(), DATA, rounds=8, resume=True, **options)


def sick_after(rounds, method=None):
    """Returns FedAvg whose clients train on NaN once so many rounds are made."""
    method = fedavg() if method is None else method

    def round(key, state, data, cohort):
        inputs = jnp.where(state.round < rounds, data.inputs, jnp.nan)
        return method.round(key, state, replace(data, inputs=inputs), cohort)

    return method._replace(round=round)


def test_a_run_that_comes_to_nothing_is_stopped_and_what_was_good_is_kept(tmp_path):
    options = {**OPTIONS, "eval_every": 2}
    good = jaxfl.run(fedavg(), DATA, rounds=4, **options)
    options |= {"checkpoint_every": 2, "checkpoint_dir": tmp_path}
    # of 7 clients with rows, 3 in a round: 9 updates in a row are lost in round 7, which is found out after the 8th
    words = mentions("last 12 updates", "round 8 of 20", "round 6", tmp_path)
    with pytest.raises(jaxfl.Diverged, match=words) as stopped:
        jaxfl.run(sick_after(4), DATA, rounds=20, **options)
    assert_equal(stopped.value.state.model, good.state.model, "what was learned before")
    history = stopped.value.history
    assert untimed(history)[:2] == untimed(good.history)
    assert history.column("round") == [2, 4, 6] and history[-1]["train_loss"] is None
    assert history[-1]["micro_accuracy"] == good.history[-1]["micro_accuracy"]
    written = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert written == history.records
    shapes = jax.eval_shape(fedavg().init, jax.random.key(0), DATA)
    kept = checkpoint.load(tmp_path / checkpoint.NAME).state(shapes)
    assert_equal(kept.model, good.state.model, "the checkpoint")


@pytest.mark.parametrize("method", [fedavg, lambda: methods.fedsgd(linear_task(), optax.sgd(np.inf))])
def test_nothing_is_kept_of_a_run_that_never_was_good(method, tmp_path):
    """Neither where all updates are NaN nor where the server's step makes NaN of them."""
    sick = sick_after(0) if method is fedavg else method()
    for last in (1, 4):  # the first evaluation may be after several rounds
        words = mentions(f"round {last} of {last}", "nothing")
        with pytest.raises(jaxfl.Diverged, match=words) as stopped:
            jaxfl.run(sick, DATA, rounds=last, checkpoint_dir=tmp_path, **OPTIONS | {"eval_every": last})
        assert len(stopped.value.history) == 0 and {path.name for path in tmp_path.iterdir()} == {
            ".jaxfl",
            ".jaxfl.lock",
        }


def test_a_run_that_has_come_to_nothing_is_none_where_a_callback_ends_it(tmp_path):
    with pytest.raises(jaxfl.Diverged, match=mentions("diverged", tmp_path)):
        jaxfl.run(
            sick_after(0),
            DATA,
            rounds=50,
            eval_every=50,
            callbacks=[lambda event: True],
            checkpoint_dir=tmp_path,
            **OPTIONS,
        )
    assert {path.name for path in tmp_path.iterdir()} == {".jaxfl", ".jaxfl.lock"}


@pytest.mark.parametrize("checkpoint_every", [1, 4])
def test_rounds_are_told_once_where_a_callback_ends_a_run_that_goes_on(tmp_path, checkpoint_every):
    """The checkpoint of its last round, if there is one, was written before the round was recorded."""
    start, size = int(DATA.train.start[0]), int(DATA.train.size[0])
    inputs = np.array(DATA.inputs)
    inputs[DATA.train.rows[start : start + size]] = np.nan
    data, options = replace(DATA, inputs=inputs), {**OPTIONS, "cohort": 1.0, "rounds": 4, "eval_every": 4}
    options |= {"checkpoint_dir": tmp_path, "checkpoint_every": checkpoint_every}
    jaxfl.run(fedavg(), data, callbacks=[lambda event: event.round == 1], **options)
    result = jaxfl.run(fedavg(), data, resume=True, **options)
    assert result.history.column("round")[-1] == 4
    assert sum(result.history.column("diverged")) == result.summary["diverged"] == 4


def test_a_round_that_tells_of_other_shapes_is_refused():
    method = fedavg()

    def round(key, state, data, cohort):
        state, info = method.round(key, state, data, cohort)
        return state, info._replace(loss=info.loss[:, None])

    with pytest.raises(ValueError, match=mentions("round", "info.loss", "[3]", "[3, 1]")):
        jaxfl.run(method._replace(round=round), DATA, rounds=2, **OPTIONS)


@pytest.mark.parametrize("ends", ["diverged", "interrupted"])
def test_between_evaluations_nothing_is_kept_that_the_server_has_spoilt(ends, tmp_path):
    method = fedavg()

    def round(key, state, data, cohort):
        new, info = method.round(key, state, data, cohort)
        return new._replace(model=jax.tree.map(lambda leaf: jnp.where(new.round < 4, leaf, jnp.inf), new.model)), info

    def press(event):
        if ends == "interrupted" and event.round == 5:
            signal.raise_signal(signal.SIGINT)

    options = {**OPTIONS, "eval_every": 8, "checkpoint_dir": tmp_path, "checkpoint_every": 1, "callbacks": [press]}
    with pytest.raises((jaxfl.Diverged, KeyboardInterrupt), match=mentions("round 3")):
        jaxfl.run(method._replace(round=round), DATA, rounds=8, **options)
    shapes = jax.eval_shape(method.init, jax.random.key(0), DATA)
    kept = checkpoint.load(tmp_path / checkpoint.NAME).state(shapes)
    assert_equal(kept.model, jaxfl.run(method, DATA, rounds=3, **OPTIONS).state.model, "the last good state")


def test_a_few_lost_rounds_at_the_end_are_told():
    result = jaxfl.run(sick_after(3), DATA, rounds=4, **OPTIONS)
    assert 0 < result.summary["diverged"] <= 3 < result.summary["updates"] <= 12
    assert result.history.column("train_loss")[-1] is None


def test_the_time_that_is_told_is_all_of_it(tmp_path):
    events = []
    result = jaxfl.run(fedavg(), DATA, rounds=3, callbacks=[events.append], checkpoint_dir=tmp_path, **OPTIONS)
    last, summary = events[-1], result.summary
    spent = ("compile_seconds", "evaluation_seconds", "saving_seconds")
    assert all(0 < getattr(last, name) == summary[name] for name in spent)
    assert sum(getattr(last, name) for name in spent) < last.seconds <= summary["total_seconds"]
    assert events[0].seconds_left > events[0].seconds_per_round and last.seconds_left == 0


def nobody():
    """The split of clients without rows."""
    return Split.pack([np.zeros(0, int)] * 8)


@pytest.mark.parametrize("method", [fedavg, lambda: methods.ifca(linear_task(), optax.sgd(0.3), choose="test")])
def test_without_test_rows_a_run_trains_and_tests_nothing(method):
    finetune = jaxfl.FineTune(optax.sgd(0.1))
    result = jaxfl.run(method(), replace(DATA, test=nobody()), rounds=2, test_rows=3, finetune=finetune, **OPTIONS)
    whole = jaxfl.run(method(), DATA, rounds=2, **OPTIONS)
    assert_equal(result.state, whole.state, "a run without test rows")
    record = result.history[-1]
    assert record["micro_accuracy"] is record["loss"] is record["finetuned_macro_f1"] is None
    assert record["train_loss"] == whole.history[-1]["train_loss"] and np.isnan(result.evaluation.accuracy).all()
    assert result.summary["updates"] == 6


def test_without_training_rows_nothing_is_started():
    for data in (replace(DATA, train=nobody()), replace(DATA, held_out=DATA.train.size > 0)):
        with pytest.raises(ValueError, match=mentions("data", "training rows", "none")):
            jaxfl.run(fedavg(), data, rounds=2)


@pytest.mark.slow
def test_slots_that_double_on_the_way_change_nothing(tmp_path):
    """From two slots to as many as it takes, and once more with an interruption after the first doubling."""
    enough = jaxfl.run(stocfl(8), DATA, rounds=6, eval_every=2, **OPTIONS)
    assert enough.summary["num_clusters"] > 2
    few = jaxfl.run(stocfl(2), DATA, rounds=6, eval_every=2, **OPTIONS)
    options = {**OPTIONS, "eval_every": 2, "checkpoint_dir": tmp_path}
    jaxfl.run(stocfl(2), DATA, rounds=2, **options)
    resumed = jaxfl.run(stocfl(2), DATA, rounds=6, resume=True, **options)
    everyone = jnp.arange(8)
    for result in (few, resumed):
        assert untimed(result.history) == untimed(enough.history)
        assert result.state.cluster.tolist() == enough.state.cluster.tolist()
        one, other = (leaves(stocfl(8).client_params(r.state, everyone)) for r in (result, enough))
        for name, value in one.items():
            # the same sums, compiled for another number of slots
            np.testing.assert_allclose(value, other[name], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_slots_double_as_often_as_it_takes_at_once(monkeypatch):
    """A round that is undone costs as much as one that is not, and a compilation."""
    compiled = []

    def compile_rounds(method, key, state, *args, **options):
        compiled.append(state.models["bias"].shape[0])
        return program.compile_rounds(method, key, state, *args, **options)

    monkeypatch.setattr(rounds, "compile_rounds", compile_rounds)
    result = jaxfl.run(stocfl(1, threshold=1.1), DATA, rounds=1, plan=Plan())
    assert compiled == [1, 8] and result.summary["num_clusters"] == 7  # of 8: one has no rows


def test_a_method_that_cannot_grow_is_stopped():
    method = fedavg()

    def round(key, state, data, cohort):
        state, info = method.round(key, state, data, cohort)
        return state, info._replace(overflow=jnp.array(True))

    with pytest.raises(RuntimeError, match=mentions("clusters", "slots")):
        jaxfl.run(method._replace(round=round), DATA, rounds=2, plan=Plan())


@pytest.fixture
def compiled():
    """The names of events, one of each compilation since."""
    found = []

    def listen(name, seconds, **options):
        if name == "/jax/core/compile/backend_compile_duration":
            found.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


def test_another_seed_takes_the_program_of_the_first(compiled):
    """On other data of the same shapes, whoever made them; and what is told of the program stays true."""
    names = tuple(f"writer {client}" for client in range(DATA.num_clients))
    method, other = fedavg(), replace(DATA, labels=(DATA.labels + 1) % 3, client_names=names)
    options = {"rounds": 3, "cohort": 3, "plan": Plan(), "finetune": FineTune(optax.sgd(0.1))}
    first = jaxfl.run(method, DATA, seed=2, **options)
    compiled.clear()
    second = jaxfl.run(method, other, seed=3, **options)
    assert tuple(second.clients()["name"]) == names and "name" not in first.clients()
    assert compiled == [] and second.summary["factored"] == first.summary["factored"] == "no: no dense layer is known"
    assert untimed(second.history) == untimed(jaxfl.run(fedavg.__wrapped__(), other, seed=3, **options).history)
    assert untimed(second.history) != untimed(first.history) and compiled


@pytest.mark.slow
def test_footprint_says_what_state_data_and_model_take():
    method = stocfl(slots=5)
    taken = jaxfl.footprint(method, DATA, cohort=3)
    model = (4 * 3 + 3) * 4
    state = jax.eval_shape(method.init, jax.random.key(0), DATA)
    assert taken.model == model
    assert (
        taken.state == tree.num_bytes(state) == (3 + 5 + 8) * model + 3 * 8 * 4 + 2 * 4
    )  # omega, its start, the anchor
    assert taken.data == sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(DATA))
    assert "one model" in str(taken) and taken.working > 0
    assert taken.disk == 3 * taken.state and re.search(r"disk +[\d.]+ MB", str(taken)), "three checkpoints"
    # StoCFL finds a cluster for everybody when it is evaluated: the result is a state
    assert taken.evaluation > taken.state > 0
    assert taken.total == taken.data + taken.state + max(taken.working, taken.evaluation)
    shared = jaxfl.footprint(fedavg(), DATA, plan=Plan(1, jax.sharding.Mesh(jax.devices()[:2], ("clients",))))
    assert shared.devices == 2 and "2    each has data, state" in str(shared)
    alone = shared.data + shared.state + max(shared.working, shared.evaluation)
    assert shared.total == (2 if jax.default_backend() == "cpu" else 1) * alone
    many = jaxfl.footprint(fedavg(), DATA, cohort=8, plan=Plan(None)).working
    assert many > jaxfl.footprint(fedavg(), DATA, plan=Plan(1)).working


@pytest.mark.rotating
@pytest.mark.parametrize("name", ["ditto", "fedsoft", "lg_fedavg", "scaffold"])
def test_a_model_for_each_client_is_there_once(name, monkeypatch):
    """With everybody in a round, in a run of several rounds: beside them are those that are written at once."""
    monkeypatch.setattr("jaxfl.engine.WRITE_BYTES", 0)  # as where models are large
    data = clustered_linear(100, rows=2, features=500)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=3), data)
    options = {"fedsoft": {"num_clusters": 2}, "lg_fedavg": {"shared": "Dense_0/bias"}}.get(name, {})
    method = methods.METHODS[name].factory(task, optax.sgd(0.1), local_epochs=1, **options)
    taken = jaxfl.footprint(method, data, cohort=1.0, plan=Plan(), resident=True)
    assert taken.state > 99 * taken.model, "LG-FedAvg's bias is not each client's own"
    assert taken.working < 2 * coordinate_sums.PRODUCT_CLIENTS * taken.model


def test_a_run_that_does_not_fit_is_refused_before_it_starts(monkeypatch):
    monkeypatch.setattr(program, "available_bytes", lambda: 100)
    with pytest.raises(MemoryError, match=mentions("GB", "plan.chunk")):
        jaxfl.run(fedavg(), DATA, rounds=1, plan=Plan())


def test_cores_that_have_no_room_for_a_copy_each_are_told_of(monkeypatch):
    """What is asked for is what all cores take together; and what helps depends on what is in the way."""
    method, size = methods.ditto(linear_task(), optax.sgd(0.1)), {"cohort": 1.0, "rounds": 1}
    alone = jaxfl.footprint(method, DATA, cohort=1.0, plan=Plan(), resident=True)
    need = alone.state + max(alone.working, alone.evaluation) + 1000
    monkeypatch.setattr(program, "available_bytes", lambda: need)
    jaxfl.run(method, DATA, plan=Plan(), **size)
    cores = Plan(1, jax.sharding.Mesh(jax.devices()[:4], ("clients",)))
    with pytest.raises(MemoryError, match=mentions("devices=1", "plan.chunk")):
        jaxfl.run(method, DATA, plan=cores, **size)
    monkeypatch.setattr(program, "available_bytes", lambda: alone.state - 1)
    with pytest.raises(MemoryError, match=mentions("devices=1", "cohort")):
        jaxfl.run(method, DATA, plan=cores, **size)
    with pytest.raises(MemoryError, match=mentions("GB", "cohort", "resident=False")):
        jaxfl.run(method, DATA, plan=Plan(), **size)
    with pytest.raises(MemoryError, match=mentions("GB", "cohort", "clients")):
        jaxfl.run(method, DATA, plan=Plan(), resident=False, **size)


def out_of_memory(monkeypatch, *, above, after=0):
    """Makes calls of compiled rounds fail where chunks are larger than this, after some that do not; lists chunks."""
    chunks = []

    def compile_rounds(method, key, state, data, size, plan, **options):
        compiled = program.compile_rounds(method, key, state, data, size, plan, **options)

        def call(*arguments):
            chunks.append(plan.chunk)
            if plan.chunk > above and len(chunks) > after:
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 7 bytes.")
            return compiled(*arguments)

        return call

    monkeypatch.setattr(rounds, "compile_rounds", compile_rounds)
    return chunks


@pytest.mark.parametrize("kept", [True, False])
def test_out_of_memory_halves_the_chunk_once_and_goes_on(monkeypatch, tmp_path, kept):
    options = {"cohort": 4, "eval_every": 2, "plan": Plan(4), "rounds": 6}
    straight = jaxfl.run(fedavg(), DATA, **options)
    chunks = out_of_memory(monkeypatch, above=2, after=2)
    with pytest.warns(
        UserWarning,
        match=mentions("4 clients at a time", "checkpoint of round 2" if kept else "nothing", "2 at a time"),
    ):
        told = []
        options["callbacks"] = [lambda event: told.append(event.round)]
        result = jaxfl.run(fedavg(), DATA, **options, **({"checkpoint_dir": tmp_path} if kept else {}))
    assert result.summary["chunk"] == 2 and chunks[:4] == [4, 4, 4, 2]
    assert result.history.column("round") == [2, 4, 6]
    assert told == sorted(set(told))  # told twice, an evaluation would be no better than itself
    np.testing.assert_allclose(result.state.model["bias"], straight.state.model["bias"], rtol=1e-5)  # sums, reordered
    with pytest.warns(UserWarning), pytest.raises(MemoryError, match=mentions("2 clients at a time", "nothing")):
        out_of_memory(monkeypatch, above=1)
        jaxfl.run(fedavg(), DATA, **options)
    with pytest.raises(MemoryError, match=mentions("1 clients at a time", "nothing")):
        out_of_memory(monkeypatch, above=0)
        jaxfl.run(fedavg(), DATA, **{**options, "plan": Plan(1)})


@pytest.mark.parametrize("where", ["history", "checkpoint", "gone"])
def test_what_cannot_be_written_is_said_with_what_is_kept(monkeypatch, tmp_path, where):
    folder = tmp_path / "a"

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fail(event):
        if event.round < 2:
            return
        if where == "gone":
            shutil.rmtree(folder)
        else:
            target = (History, "append") if where == "history" else (checkpoint.np, "savez")
            monkeypatch.setattr(*target, full)

    reason = "No such file or directory" if where == "gone" else "No space left on device"
    with pytest.raises(OSError, match=mentions("checkpoint_dir", folder, reason, "round 2")):
        jaxfl.run(fedavg(), DATA, rounds=6, eval_every=2, checkpoint_dir=folder, callbacks=[fail], **OPTIONS)
    if where != "gone":
        assert checkpoint.newest(folder).header["round"] == 2
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=mentions("checkpoint_dir", "must be a directory")):
        jaxfl.run(fedavg(), DATA, rounds=1, checkpoint_dir=tmp_path / "file" / "a", **OPTIONS)


def test_held_out_clients_are_served_and_not_trained():
    held_out = np.arange(8) >= 6
    result = jaxfl.run(stocfl(8, threshold=0.3), replace(DATA, held_out=held_out), rounds=4, cohort=1.0, plan=Plan())
    assert (np.asarray(result.state.cluster)[held_out] == -1).all(), "nothing that they have reaches the state"
    assert (result.evaluation.cluster[held_out] >= 0).all()
    assert result.summary["unseen_micro_accuracy"] is not None


SAMPLERS = {
    "dropouts": lambda: sampling.dropouts(0.5),
    "diurnal": lambda: sampling.availability("diurnal", period=6, threshold=0.7),
    "both": lambda: sampling.dropouts(0.3, sampling.availability("random")),
    "poisson": lambda: sampling.poisson(),
}


@pytest.mark.rotating
@pytest.mark.parametrize("name", SAMPLERS)
def test_resumed_under_a_sampler_is_as_if_never_stopped(name, tmp_path):
    """The same sampler built again; and of any other the run is refused."""
    straight = jaxfl.run(fedavg(), DATA, rounds=6, eval_every=2, sampler=SAMPLERS[name](), **OPTIONS)
    options = {**OPTIONS, "eval_every": 2, "checkpoint_dir": tmp_path}
    jaxfl.run(fedavg(), DATA, rounds=4, sampler=SAMPLERS[name](), **options)
    resumed = jaxfl.run(fedavg(), DATA, rounds=6, resume=True, sampler=SAMPLERS[name](), **options)
    assert_equal(resumed.state, straight.state, "a resumed run")
    assert untimed(resumed.history) == untimed(straight.history)
    assert resumed.summary["mean_participants"] == straight.summary["mean_participants"] != 3
    other = {
        "dropouts": sampling.dropouts(0.51),
        "diurnal": sampling.uniform,
        "both": sampling.dropouts(0.31, sampling.availability("random")),
        "poisson": sampling.uniform,
    }[name]
    own = sampling.cohorts_of(SAMPLERS[name](), OPTIONS["cohort"], DATA)[0]
    with pytest.raises(ValueError, match=mentions(f"sampler='{own.__name__}'")):
        jaxfl.run(fedavg(), DATA, rounds=8, resume=True, sampler=other, **options)


def test_rounds_in_which_nobody_takes_part_are_counted_and_change_nothing():
    def nobody_after_two(key, round, data, size, plan=Plan()):
        cohort = sampling.uniform(key, round, data, size, plan)
        return Cohort(cohort.ids, cohort.mask & (round < 2), plan)

    two = jaxfl.run(fedavg(), DATA, rounds=2, eval_every=2, **OPTIONS)
    six = jaxfl.run(fedavg(), DATA, rounds=6, eval_every=2, sampler=nobody_after_two, **OPTIONS)
    assert_equal(six.state.model, two.state.model, "rounds without anybody")
    assert int(six.state.round) == 6 and six.summary["mean_participants"] == 1
    assert six.history.column("train_loss") == [two.history[-1]["train_loss"], None, None]
    assert six.history[-1]["bytes_up"] == two.history[-1]["bytes_up"] > 0


def test_losses_and_bytes_are_of_those_who_took_part():
    seen = []

    def half(key, round, data, size, plan=Plan()):
        cohort = sampling.uniform(key, round, data, size, plan)
        return Cohort(cohort.ids, cohort.ids % 2 == 0, plan)

    everyone = np.arange(8) % 2 == 0
    few = jaxfl.run(fedavg(), DATA, rounds=3, sampler=half, eval_every=3, plan=Plan(), callbacks=[seen.append])
    alone = jaxfl.run(fedavg(), replace(DATA, held_out=~everyone), rounds=3, eval_every=3, plan=Plan())
    assert_equal(few.state.model, alone.state.model, "clients under a False mask")
    assert few.history[-1]["bytes_up"] == alone.history[-1]["bytes_up"]
    np.testing.assert_allclose(few.history[-1]["train_loss"], alone.history[-1]["train_loss"], rtol=1e-6)


def test_other_conditions_are_other_data(tmp_path):
    options = {**OPTIONS, "checkpoint_dir": tmp_path}
    jaxfl.run(fedavg(), conditions.attack(DATA, "sign-flip", 0.3), rounds=1, **options)
    for other in (
        DATA,
        conditions.attack(DATA, "gaussian", 0.3),
        conditions.attack(DATA, "sign-flip", 0.3, scale=2.0),
        conditions.straggle(conditions.attack(DATA, "sign-flip", 0.3), 0.5),
    ):
        with pytest.raises(ValueError, match=mentions("data='clustered-linear")):
            jaxfl.run(fedavg(), other, rounds=2, resume=True, **options)


def test_the_summary_tells_of_attackers():
    result = jaxfl.run(fedavg(), conditions.attack(DATA, "sign-flip", 0.3), rounds=1, **OPTIONS)
    summary = json.loads(json.dumps(result.summary))
    assert summary["attackers"] == 2 and 0 <= summary["attackers_micro_accuracy"] <= 1


def telling(method, **extra):
    """Returns the method with more to say of a round: a function of the state after it for every name."""

    def round(key, state, data, cohort):
        state, info = method.round(key, state, data, cohort)
        return state, info._replace(extra=info.extra | {name: value(state) for name, value in extra.items()})

    return method._replace(round=round)


def test_what_is_measured_wins_over_what_a_method_says():
    method = telling(
        fedavg(), round=lambda state: -state.round, loss=lambda state: jnp.float32(-1), own=lambda state: state.round
    )
    record = jaxfl.run(method, DATA, rounds=1, **OPTIONS).history[-1]
    assert record["round"] == 1 and record["loss"] > 0 and record["own"] == 1


def test_what_a_method_says_has_a_name_that_files_can_hold():
    method = telling(fedavg(), **{"caf\udce9": lambda state: state.round})
    with pytest.raises(ValueError, match=mentions("info.extra", r"'caf\udce9'")):
        jaxfl.run(method, DATA, rounds=1, **OPTIONS)


@pytest.mark.parametrize("kept", [True, False])
def test_checkpoints_keep_what_a_method_says(kept, tmp_path):
    """And those written before it was kept are resumed."""
    options = {**OPTIONS, "eval_every": 3, "checkpoint_dir": tmp_path, "checkpoint_every": 2}
    method = telling(fedavg(), tenth=lambda state: state.round.astype(jnp.float32) / 10)
    jaxfl.run(method, DATA, rounds=2, **options)
    saved = checkpoint.load(tmp_path / checkpoint.NAME)
    assert saved.header["tally"]["extra"] == {"tenth": pytest.approx(0.2)}
    if not kept:
        del saved.header["tally"]["extra"]
        checkpoint.save(tmp_path, saved.state(jax.eval_shape(method.init, jax.random.key(0), DATA)), saved.header)
    resumed = jaxfl.run(method, DATA, rounds=6, resume=True, **options)
    assert resumed.history.column("tenth") == pytest.approx([0.2, 0.3, 0.6])


@pytest.mark.parametrize(
    ("options", "checkpoints"), [({"checkpoint_every": 1}, [1, 2, 3, 4]), ({}, [1, 1, 1, 4])], ids=["asked for", "not"]
)
def test_checkpoints_that_nobody_asked_for_are_written_at_most_once_a_second(
    options, checkpoints, tmp_path, monkeypatch
):
    """A small federation would spend a third of its time on them. Where a function raises, no round is lost."""
    monkeypatch.setattr(schedule, "SAVE_SECONDS", 1000.0)  # of a machine as slow as can be
    saved = []

    def look(event):
        saved.append(checkpoint.newest(tmp_path).header["round"])
        if event.round == 4:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        jaxfl.run(
            fedavg(), DATA, rounds=6, eval_every=1, checkpoint_dir=tmp_path, callbacks=[look], **OPTIONS, **options
        )
    saved[-1] = checkpoint.newest(tmp_path).header["round"]
    assert saved == checkpoints
