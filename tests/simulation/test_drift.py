"""Runs on data that drift: what each round trains on, who takes part, and what is said of it."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import methods, sampling
from jaxfl.clustering.scores import adjusted_rand_index
from jaxfl.cohort import Plan
from jaxfl.data import drift
from jaxfl.data.synthetic import clustered_linear
from jaxfl.methods.base import Method, info, keep_clusters
from jaxfl.simulation import prepared, rounds
from jaxfl.simulation.result import drift_summary
from jaxfl.simulation.rounds import add_newcomers, arriving_clients
from jaxfl.simulation.schedule import Schedule
from jaxfl.testing.compare import assert_close, assert_equal
from jaxfl.testing.small import linear_task
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=3)

STILL = clustered_linear(8, rows=8, features=4)
DATA = drift.drift(STILL, 3, kind="swap", share=0.5)
MOVING = drift.drift(STILL, 3, kind="swap", share=0.5, arrive=0.25, leave=0.1)
OPTIONS = {"cohort": 1.0, "seed": 2, "plan": Plan()}


@pytest.fixture(scope="module")
def ifca():
    return methods.ifca(linear_task(), optax.sgd(0.3), num_clusters=2, local_epochs=1)


def test_a_sample_of_clients_is_tested_where_some_arrive_or_leave(ifca):
    left = drift.drift(STILL, 3, arrive=0.25, leave=0.5)
    for seed in range(3):
        found = jaxfl.run(ifca, left, rounds=4, eval_every=1, eval_clients=1, **OPTIONS | {"seed": seed})
        assert all(np.isfinite(found.history.column("loss"))), "the one that is drawn stays"
        assert set(found.history.column("eval_clients")) == {1}


@pytest.fixture(scope="module")
def straight(ifca):
    return jaxfl.run(ifca, MOVING, rounds=6, eval_every=2, **OPTIONS)


def test_rounds_before_are_of_the_data_before_and_rounds_after_of_those_after(ifca):
    state, key = ifca.init(jax.random.key(2), STILL), jax.random.key(2)
    step = jax.jit(ifca.round)
    for round in range(5):
        now = (STILL if round < 3 else DATA.at(3)).on_device()
        state, _ = step(key, state, now, sampling.uniform(key, state.round, now, 8))
    found = jaxfl.run(ifca, DATA, rounds=5, **OPTIONS)
    assert_close(found.state.models, state.models, "rounds by hand")
    assert found.data.drift is None and (found.data.group == DATA.at(3).group).all()
    clusters, groups = found.history.clusters, [now.group for now in DATA.phases]
    wanted = [adjusted_rand_index(groups[done >= 3], clusters[done - 1]) for done in range(1, 6)]
    assert found.history.column("ari") == wanted, "true groups are those of the round"


def test_clients_are_sampled_and_tested_while_they_are_there(straight):
    before, after = (np.asarray(one.absent) for one in MOVING.phases)
    assert (before.sum(), after.sum()) == (2, 1)
    assert straight.history.column("round") == [2, 3, 4, 6], "evaluated at the drift too"
    np.testing.assert_array_equal(straight.evaluation.rows == 0, after)
    assert "unseen_micro_accuracy" not in straight.summary
    assert not len(arriving_clients(straight.data)), "what is there at the end may be used again, and nobody comes"
    # a cohort is as large as the most that are there at a time; of fewer, who is there takes part
    assert straight.summary["cohort"] == 7 and straight.summary["mean_participants"] == (3 * 6 + 3 * 7) / 6


@pytest.mark.parametrize("sampler", [sampling.uniform, sampling.dropouts(0.3), sampling.availability("random")])
@pytest.mark.parametrize("size", [3, 7, 8])
def test_no_sampler_draws_who_is_not_there(sampler, size):
    for round, now in zip((0, 3), MOVING.phases, strict=True):
        cohort = sampling.draw_cohort(sampler, jax.random.key(0), np.int32(round), now, size)
        drawn = np.asarray(cohort.ids)[np.asarray(cohort.mask)]
        assert not now.absent[drawn].any() and len({*np.asarray(cohort.ids).tolist()}) == size
        assert sampler is not sampling.uniform or len(drawn) == min(size, (~now.absent).sum())


@pytest.mark.rotating
@pytest.mark.parametrize("stop", [2, 3, 5])
def test_a_run_goes_on_from_before_it_at_it_and_after_it(ifca, straight, stop, tmp_path):
    options = {**OPTIONS, "checkpoint_dir": tmp_path, "checkpoint_every": 1}
    jaxfl.run(ifca, MOVING, rounds=6, callbacks=[lambda event: event.round >= stop], eval_every=1, **options)
    found = jaxfl.run(ifca, MOVING, rounds=6, eval_every=2, resume=True, **options)
    assert_equal(found.state, straight.state, f"resumed after round {stop}")
    other = drift.drift(STILL, 3, kind="swap", share=0.5, arrive=0.25, leave=0.1, seed=1)
    with pytest.raises(ValueError, match=mentions("checkpoint_dir", "digest")):
        jaxfl.run(ifca, other, rounds=6, resume=True, **options)


def test_arrivals_are_let_in_by_join_or_else_like_unseen_clients(ifca):
    """As CFL does it, who walks down its tree of splits: for those who are held out, and for nobody else."""
    late = drift.drift(STILL, 3, arrive=0.25).on_device()
    new, state = np.flatnonzero(late.absent), ifca.init(jax.random.key(0), STILL)
    state = state._replace(cluster=jnp.zeros(8, jnp.int32))

    def assign(key, state, data, cohort):
        walks = data.held_out[cohort.ids] & cohort.mask
        return state._replace(cluster=state.cluster.at[cohort.ids].set(jnp.where(walks, 3, 2)))

    def join(key, state, data, ids):
        assert data.drift is None and not data.held_out.any() and ids == new.tolist()
        return state._replace(cluster=state.cluster.at[np.array(ids)].set(5)), None

    def cluster(method):
        return np.asarray(add_newcomers(method, jax.random.key(0), state, late, Plan()).cluster)

    wanted = np.isin(np.arange(8), new)
    np.testing.assert_array_equal(cluster(ifca._replace(assign=assign)), 3 * wanted)
    np.testing.assert_array_equal(cluster(ifca._replace(assign=assign, join=join)), 5 * wanted)
    np.testing.assert_array_equal(cluster(ifca._replace(assign=keep_clusters)), 0)


@pytest.mark.slow
def test_the_solver_of_ditto_lets_in_as_it_does_alone():
    task, late = linear_task(), drift.drift(clustered_linear(12, 2, 20, 4, 3), 6, arrive=0.34, seed=1)
    cfl = methods.cfl(
        *(task, optax.sgd(0.3)),
        **{"local_epochs": 2, "relative": False, "eps1": 1e3, "eps2": 1e-6, "gamma_max": 0.0, "min_clients": 8},
    )
    options = {"rounds": 7, "cohort": 1.0, "eval_every": 7, "plan": Plan(chunk=1)}
    alone = jaxfl.run(cfl, late, **options).state
    within = jaxfl.run(methods.ditto(task, optax.sgd(0.3), solver=cfl, local_epochs=2), late, **options).state.solver
    assert len({*np.asarray(alone.cluster)[arriving_clients(late)].tolist()}) > 1, "they go to several clusters"
    np.testing.assert_array_equal(within.cluster, alone.cluster)
    assert_close(within.models, alone.models, "w does not know of the personal models")


class Slots(NamedTuple):
    models: jax.Array  # [K]
    cluster: jax.Array
    round: jax.Array


def test_a_run_lets_in_before_it_tests_and_makes_room_for_it():
    def round(key, state, data, cohort):
        here = jnp.zeros(len(cohort.ids))
        told = info(cohort, here, here, num_clusters=1, diverged=jnp.int32(0), up=here, down=here)
        return state._replace(round=state.round + 1), told

    def join(key, state, data, ids):
        """Lets them into a slot that is new."""
        models = jnp.concatenate([state.models, state.models])
        return state._replace(models=models, cluster=state.cluster.at[np.array(ids)].set(2)), None

    def init(key, data):
        return Slots(jnp.zeros(2), jnp.zeros(8, jnp.int32), jnp.int32(0))

    def client_params(state, ids):
        kernel = jnp.zeros((len(ids), 4, 3)) + state.models[state.cluster[ids]][:, None, None]
        return {"kernel": kernel, "bias": kernel[:, 0]}

    late = drift.drift(STILL, 3, arrive=0.25)
    method = Method(init, round, client_params, linear_task(), join=join)
    found = jaxfl.run(method, late, rounds=4, eval_every=1, **OPTIONS)
    assert found.state.models.shape == (4,)
    assert (found.history.clusters[2, np.flatnonzero(late.absent)] == 2).all()
    assert found.history.column("num_clusters") == [1, 1, 2, 2]


def test_the_models_of_clients_on_the_host_and_values_side_by_side_drift_alike(ifca, monkeypatch):
    local = methods.local(linear_task(), optax.sgd(0.3), local_epochs=1)
    whole = jaxfl.run(local, MOVING, rounds=4, **OPTIONS)
    with monkeypatch.context() as patch:
        patch.setattr(prepared, "keeps_state_on_host", lambda *_, **__: True)
        kept = jaxfl.run(local, MOVING, rounds=4, **OPTIONS)
    assert not kept.summary["resident_state"] and whole.summary["resident_state"]
    assert kept.summary["micro_accuracy"] == whole.summary["micro_accuracy"]
    assert kept.summary["at_drift_micro_accuracy"] == whole.history[2]["micro_accuracy"]
    (mapped,) = jaxfl.run_mapped(lambda _: ifca, [0.0], DATA, rounds=4, seed=2, plan=Plan())
    alone = jaxfl.run(ifca, DATA, rounds=4, **OPTIONS)
    assert_close(mapped.state.models, alone.state.models, "in one program")
    assert mapped.evaluation.metrics["ari"] == alone.summary["ari"]


def test_rows_on_the_host_drift_alike(ifca):
    """Of clients of several sizes, two at a time: their order in a round is that of the sizes of the round."""
    ragged = clustered_linear(8, rows=8, features=4, ragged=True)
    data = drift.drift(ragged, 2, kind="swap", share=0.5)
    assert not np.array_equal(data.at(2).train.size, ragged.train.size)
    options = {"rounds": 4, "cohort": 3, "seed": 1, "eval_every": 1, "plan": Plan(chunk=2)}
    streamed, there = (jaxfl.run(ifca, data, resident=one, **options) for one in (False, True))
    assert_equal(streamed.state, there.state, "rows on the host")
    assert streamed.history.column("micro_accuracy") == there.history.column("micro_accuracy")


def test_what_cannot_be_is_refused_before_anything_is_compiled(ifca):
    with pytest.raises(ValueError, match=mentions("drift_round", 3)):
        jaxfl.run(ifca, DATA, rounds=3, **OPTIONS)
    with pytest.raises(ValueError, match=mentions("resident", "arrive")):
        jaxfl.run(ifca, MOVING, rounds=4, resident=False, **OPTIONS)
    with pytest.raises(ValueError, match=mentions("data", "drift", "rounds", "seed")):
        jaxfl.run(ifca, [DATA, drift.drift(STILL, 2, kind="swap")], rounds=4, seeds=[0, 1], plan=Plan())
    with pytest.raises(ValueError, match=mentions("data", "arrive", "jaxfl.run")):
        jaxfl.run_mapped(lambda _: ifca, [0.0], MOVING, rounds=4)


def test_a_run_that_is_ended_before_tells_of_no_drift(ifca):
    ended = jaxfl.run(ifca, DATA, rounds=6, callbacks=[lambda event: event.round >= 2], **OPTIONS)
    assert ended.summary["rounds"] == 2 and not any("drift" in name for name in ended.summary)


def test_a_schedule_looks_at_a_drift_and_does_not_go_past_it():
    schedule = Schedule.of(10, eval_every=4, drift_rounds=(6,))
    looks = [done for done in range(1, 11) if schedule.evaluates(done)]
    assert looks == [4, 6, 8, 10]
    left = [sum(look > done for look in looks) for done in range(11)]
    assert [schedule.evaluations_after(done) for done in range(11)] == left
    assert [schedule.ahead(done, 1e-9) for done in (4, 6)] == [2, 2]


BACK = drift.drift(STILL, (2, 5), kind="labels", schedule="recurrent", share=0.75)


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


def test_every_stage_of_a_drift_is_trained_and_tested_by_one_program(ifca, compiled):
    """Rounds of the data of their stage, looked at right before every change and at it, and compiled for none of it."""
    key, numbers = jax.random.key(2), []
    found = jaxfl.run(
        ifca,
        BACK,
        rounds=8,
        eval_every=8,
        callbacks=[lambda event: numbers.append((event.round, len(compiled)))],
        **OPTIONS,
    )
    assert found.history.column("round") == [1, 2, 4, 5, 8], "right before a change and at it"
    counts = dict(numbers)
    assert counts[8] == counts[2], "no compilation for the second stage or the third"
    state, step = ifca.init(key, STILL), jax.jit(ifca.round)
    for round in range(8):
        now = (STILL if round in (0, 1, 5, 6, 7) else BACK.at(2)).on_device()
        state, _ = step(key, state, now, sampling.uniform(key, state.round, now, 8))
    assert_close(found.state.models, state.models, "rounds by hand")
    np.testing.assert_array_equal(found.data.label_maps(), BACK.at(0).label_maps())
    accuracy, ari = (
        dict(zip((1, 2, 4, 5, 8), found.history.column(one), strict=True)) for one in ("micro_accuracy", "ari")
    )
    first, second = found.summary["drift_stages"]
    assert (first["round"], first["before"], first["at"], first["end"]) == (2, accuracy[1], accuracy[2], accuracy[4])
    assert (second["round"], second["before"], second["at"], second["end"]) == (
        5,
        *(accuracy[one] for one in (4, 5, 8)),
    )
    assert (first["ari"], second["ari"]) == (ari[4], ari[8])
    assert found.summary["return_gain_micro_accuracy"] == accuracy[5] - accuracy[2]
    mean = np.mean([np.interp(done, [*accuracy], [*accuracy.values()]) for done in range(2, 9)])
    assert found.summary["area_micro_accuracy"] == pytest.approx(mean)
    assert found.summary["drift_round"] == 2 and found.summary["at_drift_micro_accuracy"] == accuracy[2]


def test_stages_with_rows_of_their_own_are_one_program(ifca, compiled):
    """Fresh training rows and tests on the next stage in stages of a matrix, in which clients arrive, too."""
    options = {"kind": "labels", "schedule": "matrix", "matrix": [[0, 0], [0, 1], [1, 0], [1, 1]]}
    data = drift.drift(STILL, (2, 4, 6), rows="fresh", test="next", arrive=0.2, arrive_rounds=(3,), **options)
    numbers = []
    found = jaxfl.run(
        ifca,
        data,
        rounds=8,
        eval_every=8,
        callbacks=[lambda event: numbers.append((event.round, len(compiled)))],
        **OPTIONS,
    )
    counts = dict(numbers)
    assert found.history.column("round") == [1, 2, 3, 4, 5, 6, 8]
    assert counts[8] == counts[4], "no compilation for the stages after all clients are there"
    stages = found.summary["drift_stages"]
    assert [stage["round"] for stage in stages] == [2, 3, 4, 6] and stages[-1]["end"] == found.summary["micro_accuracy"]
    key, step = jax.random.key(2), jax.jit(ifca.round)
    state = ifca.init(key, data.at(0))
    for round in range(3):  # before somebody arrives
        now = data.at(round).on_device()
        assert now.train.size.max() == 2
        cohort = sampling.draw_cohort(sampling.uniform, key, state.round, now, 8)
        state, _ = step(key, state, now, cohort)
    early = jaxfl.run(ifca, data, rounds=8, callbacks=[lambda event: event.round >= 3], eval_every=1, **OPTIONS)
    assert early.summary["rounds"] == 3
    assert_close(early.state.models, state.models, "rounds by hand")


@pytest.mark.parametrize("stop", [1, 2, 4, 6])
def test_a_run_goes_on_in_any_stage(ifca, stop, tmp_path, monkeypatch):
    """And with another stage it does not, which is refused before anything compiles, also where it is still to come."""
    options = {**OPTIONS, "rounds": 7, "eval_every": 3}
    whole = jaxfl.run(ifca, BACK, **options)
    kept = {"checkpoint_dir": tmp_path, "checkpoint_every": 1}
    jaxfl.run(ifca, BACK, callbacks=[lambda event: event.round >= stop], **options, **kept)
    stages = np.asarray(BACK.drift.group)
    last = np.concatenate([stages[:, :-1], 1 - stages[:, -1:]], 1)
    ends_elsewhere = dataclasses.replace(BACK, drift=dataclasses.replace(BACK.drift, group=last))
    later = dataclasses.replace(BACK, drift=dataclasses.replace(BACK.drift, round=BACK.drift.round + [0, 1]))
    with monkeypatch.context() as patch:
        patch.setattr(rounds, "compile_rounds", lambda *arguments, **given: pytest.fail("compiled"))
        for other in (ends_elsewhere, later, STILL):
            with pytest.raises(ValueError, match=mentions("checkpoint_dir", "holds a run with data", "resume")):
                jaxfl.run(ifca, other, resume=True, **options, **kept)
    resumed = jaxfl.run(ifca, BACK, resume=True, **options, **kept)
    assert_equal(resumed.state, whole.state, f"resumed after round {stop}")
    assert resumed.summary["drift_stages"] == whole.summary["drift_stages"]
    ended = jaxfl.run(ifca, BACK, callbacks=[lambda event: event.round >= 4], **options).summary
    assert [stage["round"] for stage in ended["drift_stages"]] == [2] and "return_gain_micro_accuracy" not in ended


def test_rows_on_the_host_seeds_and_values_go_through_all_stages(ifca):
    ragged = clustered_linear(8, rows=8, features=4, ragged=True)
    moves = {"kind": "swap", "share": 0.5}
    rounds = {"recurrent": (1, 2, 3), "staggered": (1, 4), "incremental": (1, 3), "gradual": (1, 4)}
    federations = {name: drift.drift(ragged, when, schedule=name, **moves) for name, when in rounds.items()}
    options = {"rounds": 5, "cohort": 3, "eval_every": 1, "plan": Plan(chunk=2)}
    for name, data in federations.items():
        streamed, there = (jaxfl.run(ifca, data, resident=one, seed=1, **options) for one in (False, True))
        assert_equal(streamed.state, there.state, f"rows on the host, {name}")
        assert streamed.history.column("micro_accuracy") == there.history.column("micro_accuracy"), name
    data = [drift.drift(ragged, (1, 4), schedule="staggered", seed=seed, **moves) for seed in (0, 1)]
    together = jaxfl.run(ifca, data, seeds=[0, 1], **options)
    for seed, one in enumerate(together):
        alone = jaxfl.run(ifca, data[seed], seed=seed, **options)
        assert_close(one.state.models, alone.state.models, "several seeds in one program")
        assert len(one.summary["drift_stages"]) == len(data[seed].drift_rounds) == 4
    (mapped,) = jaxfl.run_mapped(lambda _: ifca, [0.0], federations["recurrent"], rounds=5, seed=2, plan=Plan())
    alone = jaxfl.run(ifca, federations["recurrent"], rounds=5, seed=2, cohort=1.0, plan=Plan())
    assert_close(mapped.state.models, alone.state.models, "values in one program")


def test_clients_that_arrive_one_after_another_are_let_in_when_they_do(ifca, tmp_path):
    """Each by the rule for unseen clients, from a state of rounds in which it was not there, also after a resume."""
    data = drift.drift(STILL, (), arrive=0.5, arrive_rounds=(2, 4), leave=0.2, leave_rounds=(3,))
    assert [len(arriving_clients(data, round)) for round in (2, 3, 4)] == [2, 0, 2]
    asked = []

    def join(key, state, now, ids):
        asked.append((int(state.round), [*ids]))
        assert not np.asarray(now.absent)[ids].any()
        return state, None

    options = OPTIONS | {"rounds": 6, "eval_every": 1}
    whole = jaxfl.run(ifca._replace(join=join), data, **options)
    assert asked == [(round, arriving_clients(data, round).tolist()) for round in (2, 4)]
    there = [int((~np.asarray(data.at(done).absent)).sum()) for done in range(1, 7)]
    assert [record["round"] for record in whole.history] == [1, 2, 3, 4, 5, 6]
    assert there == [4, 6, 4, 6, 6, 6]
    kept = {"checkpoint_dir": tmp_path, "checkpoint_every": 1}
    jaxfl.run(ifca, data, callbacks=[lambda event: event.round >= 3], **options, **kept)
    resumed = jaxfl.run(ifca, data, resume=True, **options, **kept)
    assert_equal(resumed.state, jaxfl.run(ifca, data, **options).state, "resumed between two arrivals")


def test_several_changes_are_before_the_last_round_and_the_schedule_looks_around_them(ifca):
    with pytest.raises(ValueError, match=mentions("drift_rounds", 5)):
        jaxfl.run(ifca, BACK, rounds=5, **OPTIONS)
    schedule = Schedule.of(12, eval_every=5, drift_rounds=(1, 6, 9))
    looks = [done for done in range(1, 13) if schedule.evaluates(done)]
    assert looks == [1, 5, 6, 8, 9, 10, 12]
    left = [sum(look > done for look in looks) for done in range(13)]
    assert [schedule.evaluations_after(done) for done in range(13)] == left
    assert [schedule.ahead(done, 1e-9) for done in (0, 1, 6, 10)] == [1, 4, 2, 2]


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("values", "lower", "wanted"),
    [
        ({2: 0.9, 4: 0.91, 5: 0.5, 6: 0.8, 8: 0.91}, False, (0.91, 0.5, 3)),
        ({4: 0.91, 5: 0.905}, False, (0.91, 0.905, 0)),
        ({4: 0.9, 5: 0.5, 8: 0.7}, False, (0.9, 0.5, None)),
        ({4: 0.2, 5: 0.5, 8: 0.1}, True, (0.2, 0.5, 3)),
        ({5: 0.5, 8: 0.7}, False, (None, 0.5, None)),
        ({4: 0.5, 5: None, 8: 0.7}, False, (0.5, None, 3)),
        ({}, False, (None, None, None)),
    ],
)
def test_before_at_and_after(values, lower, wanted):
    records = [{"round": done, "micro_mse": value} for done, value in values.items()]
    found = drift_summary(records, [5], "mse", lower=lower)
    (stage,) = found.pop("drift_stages")
    assert (stage["before"], stage["at"], stage["rounds_to_recover"]) == wanted
    after = {done: value for done, value in values.items() if done >= 5 and value is not None}
    assert stage["end"] == (list(after.values())[-1] if after else None)
    area = found.pop("area_micro_mse")
    mean = np.mean([np.interp(round, [*after], [*after.values()]) for round in range(5, 9)]) if 8 in after else None
    assert area == pytest.approx(mean) if mean is not None else area in (None, *values.values())
    assert found.pop("drift_round") == 5 and tuple(found.values()) == wanted
