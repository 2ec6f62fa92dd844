"""FedDrift: against a loop as its official code has it, what it becomes at the ends of its options, and its slots."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods
from jaxfl.cohort import Cohort
from jaxfl.methods.feddrift import FedDriftState, model_distances
from jaxfl.methods.feddrift import choose_models as moved_clients
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import average, gradient, train, with_rows

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

RATE, PERIOD, ROUNDS = 0.4, 2, 10
EPOCHS = {"local_epochs": 2, "batch_size": 3}
TASK = problems.softmax_task()


def feddrift(**options):
    return compiled(methods.feddrift(TASK, optax.sgd(RATE), **options, **EPOCHS))


class Loop:
    """Lists of models and of (client, step) pairs, no slots; who is alone is in a dictionary, as in the code."""

    def __init__(self, model, count, *, start, threshold, merge_threshold, eager):
        self.models = [model] * count if start == "own" else [model]
        self.cluster = list(range(count)) if start == "own" else [0] * count
        self.pairs, self.risk, self.alone = {}, [math.inf] * count, {}
        self.threshold, self.height, self.eager = threshold, merge_threshold, eager
        self.drifts = self.mergings = 0

    def round(self, setting, number, cohort):
        able = with_rows(setting, range(len(setting.clients)))
        if number and number % PERIOD == 0:
            self.step(setting, number // PERIOD, able)
        elif not number:
            self.give(0, able)
        for m, model in enumerate(list(self.models)):
            mine = [i for i in with_rows(setting, cohort) if self.cluster[i] == m]
            if mine:
                trained = [train(setting, number, i, model)[0] for i in mine]
                self.models[m] = average(trained, [len(setting.clients[i][1]) for i in mine])

    def give(self, now, able):
        for i in able:
            self.pairs.setdefault(self.cluster[i], []).append((i, now))

    def step(self, setting, now, able):
        self.alone = {i: until for i, until in self.alone.items() if until > now}
        pool = [m for m in self.pairs if m not in {self.cluster[i] for i in self.alone}]
        risks = {(m, i): gradient(self.models[m], *setting.clients[i])[0] for m in pool for i in able}
        new = None
        for i in able:
            if i in self.alone:
                continue
            best = min(sorted(pool), key=lambda m: risks[m, i])
            drifts, self.risk[i] = risks[best, i] - self.risk[i] > self.threshold, risks[best, i]
            if drifts:
                self.drifts += 1
                if new is None or not self.eager:
                    self.models.append(self.models[best])
                    new = len(self.models) - 1
                best = new
                if not self.eager:
                    self.alone[i] = now + 1
            self.cluster[i] = best
        self.give(now, able)
        if not self.eager:
            self.merge(setting, pool, risks, able)

    def merge(self, setting, pool, risks, able):
        members = {m: [i for i in able if self.cluster[i] == m] for m in pool}
        groups = [[m] for m in sorted(pool) if members[m]]

        def risk(m, other):
            return np.average([risks[m, i] for i in members[other]], weights=[size(i) for i in members[other]])

        def size(i):
            return len(setting.clients[i][1])

        def distance(one, other):
            pairs = [(i, j) for i in one for j in other]
            return max(max(risk(i, j) - risk(i, i), risk(j, i) - risk(j, j), 0) for i, j in pairs)

        while len(groups) > 1:
            places = [(a, b) for a in range(len(groups)) for b in range(a)]
            apart, a, b = min((distance(groups[a], groups[b]), a, b) for a, b in places)
            if apart > self.height:
                break
            groups[b] += groups.pop(a)
        for group in groups:
            keeper, *gone = sorted(group)
            if gone:
                self.mergings += 1
                weights = [len(self.pairs[m]) for m in (keeper, *gone)]
                self.models[keeper] = average([self.models[m] for m in (keeper, *gone)], weights)
            for m in gone:
                self.pairs[keeper] += self.pairs.pop(m)
                self.cluster = [keeper if one == m else one for one in self.cluster]

    def served(self, client):
        return self.models[self.cluster[client]]


@pytest.mark.rotating
@pytest.mark.parametrize(
    "options",
    [
        {"start": "common", "threshold": 0.1, "merge_threshold": 0.9, "eager": False},
        {"start": "own", "threshold": 0.2, "merge_threshold": 0.6, "eager": False},
        {"start": "common", "threshold": 0.1, "merge_threshold": 0.3, "eager": True},
    ],
)
def test_every_round_is_the_codes(options, key):
    """The labels of three clients are exchanged on the way; client 1 has no rows."""
    with jax.enable_x64(True):
        data = problems.linear_federation()
        shifted = np.isin(np.arange(7), (2, 4, 6)).astype(np.int32)
        phases = [replace(data, label_shift=shift.astype(np.int32)) for shift in (0 * shifted, shifted)]
        method = feddrift(rounds_per_step=PERIOD, measure="loss", slots=16, **options)
        state = method.init(key, data)
        model = jax.tree.map(lambda leaf: np.asarray(leaf[0]), state.models)
        wanted, drifts = Loop(model, 7, **options), 0
        for number in range(ROUNDS):
            now = phases[number >= 5]
            rows = zip(problems.rows_of(now), now.label_shift, strict=True)
            clients = [(x, (y + shift) % 2) for (x, y), shift in rows]
            setting = reference.Setting(key, clients, RATE, 2, 3, "rows")
            cohort = problems.sample(key, state.round, now, 4)
            state, info = method.round(key, state, now, cohort)
            drifts += int(info.extra["drifted"])
            wanted.round(setting, number, cohort.ids.tolist())
            served = jax.tree.map(np.asarray, method.client_params(state, jnp.arange(7)))
            for client in (0, 2, 3, 4, 5, 6):
                for leaf, value in wanted.served(client).items():
                    np.testing.assert_allclose(served[leaf][client], value, rtol=1e-9, atol=1e-12, err_msg=f"{number}")
        assert drifts == wanted.drifts > 0, "somebody must drift for this test to say anything"
        assert options["eager"] or wanted.mergings > 0, "and models merge"


def test_whoever_never_drifts_is_fedavg(key):
    with jax.enable_x64(True):
        never = feddrift(rounds_per_step=1, threshold=math.inf, slots=3)
        for served, loop, _ in side_by_side(never, reference.FedProx, key):
            reference.close(served, [loop.served(client) for client in range(7)])


def test_a_time_step_waits_for_somebody(key):
    """Nobody takes part in round 2, where the second step begins, nor in rounds 6 to 9."""
    data, options = problems.linear_federation(), {"rounds_per_step": PERIOD, "start": "own", "slots": 8}
    method = feddrift(measure="loss", merge_threshold=math.inf, **options)
    state, merged = method.init(key, data), []
    for number in range(11):
        cohort = Cohort(jnp.arange(7, dtype=jnp.int32), jnp.full(7, number not in (2, 6, 7, 8, 9)))
        state, info = method.round(key, state, data, cohort)
        merged.append((int(info.num_clusters), int(state.step)))
    assert merged[:4] == [(6, 0), (6, 0), (6, 0), (1, 1)], "of six clients with rows"
    assert [step for _, step in merged] == [0, 0, 0, 1, 2, 2, 2, 2, 2, 2, 5]


def test_own_models_are_local_and_at_an_infinite_distance_they_all_merge_at_the_second_step(key):
    with jax.enable_x64(True):
        method = feddrift(start="own", rounds_per_step=2, slots=7, merge_threshold=math.inf)
        for number, (served, loop, state) in enumerate(side_by_side(method, reference.Local, key)):
            if number < 2:
                reference.close(served, [loop.served(client) for client in range(7)])
            # who has no rows stays where it is
            assert state.cluster.tolist() == (list(range(7)) if number < 2 else [0, 1, 0, 0, 0, 0, 0])


def side_by_side(method, loop, key):
    """Yields for three rounds the models that are served, the loop, and the state."""
    data = problems.linear_federation()
    state = method.init(key, data)
    setting = reference.Setting(key, problems.rows_of(data), RATE, 2, 3, "rows")
    wanted = loop(setting, jax.tree.map(lambda leaf: np.asarray(leaf[0]), state.models))
    for number in range(3):
        cohort = problems.sample(key, state.round, data, 4)
        state, _ = method.round(key, state, data, cohort)
        wanted.round(number, cohort.ids.tolist())
        served = jax.tree.map(np.asarray, method.client_params(state, jnp.arange(7)))
        yield [jax.tree.map(lambda leaf, one=client: leaf[one], served) for client in range(7)], wanted, state


def slots_of_state(cluster, weight, used, **more):
    state = {
        "models": {"w": 10 * np.arange(len(weight), dtype=np.float32)},
        "cluster": np.array(cluster, np.int32),
        "risk": np.full(len(cluster), 0.1, np.float32),
        "alone_until": np.zeros(len(cluster), np.int32),
        "weight": np.array(weight, np.float32),
        "used": np.array(used, np.int32),
        "step": np.int32(0),
        "round": np.int32(0),
    }
    return FedDriftState(**(state | more))


moved = jax.jit(moved_clients, static_argnums=(4, 5))


def move(state, risks, *, able=None, now=3, eager=False, there=None):
    able = np.ones(len(state.cluster), bool) if able is None else np.array(able)
    there = np.ones(len(state.cluster), bool) if there is None else np.array(there)
    return moved(state, np.array(risks, np.float32), able, np.int32(now), 0.2, eager, there=there)


def test_a_drift_takes_slots_that_were_never_used_then_those_without_clients_for_longest():
    state = slots_of_state([0, 0, 0], weight=[5, 2, 2, 0], used=[2, 1, 0, -1])
    after, pool, drifted = move(state, [[0.5, 0.4, 0.9, 0.0], [0.1, 0.2, 0.3, 0.0], [0.4, 0.6, 0.9, 0.0]])
    # the free one is in no pool, whatever its risk; client 2 gets slot 2, which is older than slot 1
    assert after.cluster.tolist() == [3, 0, 2] and drifted.tolist() == [True, False, True]
    assert after.models["w"].tolist() == [0, 10, 0, 10], "copies of the best models, 0 and 1"
    assert after.weight.tolist() == [6, 2, 1, 1] and after.used.tolist() == [3, 1, 3, 3]
    assert pool.tolist() == [True, True, False, False] and after.alone_until.tolist() == [4, 0, 4]
    np.testing.assert_allclose(after.risk, [0.4, 0.1, 0.4], rtol=1e-6)


def test_without_a_free_slot_a_client_stays_with_its_best_model():
    state = slots_of_state([0, 1], weight=[1, 1], used=[2, 2])
    after, _, drifted = move(state, [[0.9, 0.8], [0.9, 0.1]])
    assert after.cluster.tolist() == [0, 1] and drifted.tolist() == [True, False]
    assert after.models["w"].tolist() == [10, 10], "model 0 is nobody's any more"
    after, _, _ = move(state, [[0.9, 0.8], [0.8, 0.9]])
    assert after.cluster.tolist() == [1, 0], "both slots have a client"


def test_a_slot_of_who_takes_no_part_is_free():
    """Client 1 is held out, or gone: client 0, which drifts, gets a model of its own in its place."""
    state, risks = slots_of_state([0, 1], weight=[1, 0], used=[2, 0]), [[0.9, 0.9], [0.5, 0.5]]
    after, _, drifted = move(state, risks, able=[True, False], there=[True, False])
    assert after.cluster[0] == 1 and drifted.tolist() == [True, False] and after.models["w"].tolist() == [0, 0]
    after, _, _ = move(state, risks, able=[True, False])
    assert after.cluster[0] == 0, "who takes part and cannot say keeps its model"


def test_who_is_alone_stays_so_and_lends_its_model_to_nobody():
    state = slots_of_state([0, 1], weight=[3, 1, 0], used=[2, 2, -1], alone_until=np.array([0, 4], np.int32))
    risks = [[0.15, 0.0, 0.0], [0.0, 0.9, 0.0]]
    after, pool, _ = move(state, risks, now=3)
    assert after.cluster.tolist() == [0, 1] and pool.tolist() == [True, False, False]
    after, pool, _ = move(state, risks, now=4)
    assert after.cluster.tolist() == [1, 0] and pool.tolist() == [True, True, False]


def test_ties_and_those_who_cannot_say_change_nothing():
    state = slots_of_state([1, 1, 1], weight=[1, 3, 0], used=[2, 2, -1])
    after, _, drifted = move(state, [[0.1, 0.1, 0], [jnp.inf] * 3, [0.0, 0.9, 0]], able=[True, False, False])
    assert after.cluster.tolist() == [1, 1, 1] and not drifted.any()
    np.testing.assert_allclose(after.risk, 0.1, rtol=1e-6)


def test_who_cannot_say_at_the_second_step_did_not_count_at_the_first():
    state = slots_of_state([0, 0, 1, 1], weight=[2, 2, 0], used=[0, 0, -1])
    risks, able = [[0.1, 0.2, 0], [jnp.inf] * 3, [0.2, 0.1, 0], [0.2, 0.1, 0]], [True, False, True, True]
    assert move(state, risks, able=able, now=1)[0].weight.tolist() == [2, 4, 0]
    assert move(state, risks, able=able, now=2)[0].weight.tolist() == [3, 4, 0], "what was counted since is right"


def test_eager_clients_share_a_copy_of_the_first_ones_model():
    state = slots_of_state([0, 0, 1], weight=[1, 1, 0], used=[2, 2, -1])
    after, _, _ = move(state, [[0.1, 0.9, 0], [0.9, 0.8, 0], [0.7, 0.9, 0]], eager=True)
    assert after.cluster.tolist() == [0, 2, 2] and after.models["w"].tolist() == [0, 10, 10]
    assert not after.alone_until.any()


def test_a_distance_is_not_negative_and_symmetric_and_empty_models_have_none():
    rng = np.random.default_rng(0)
    risks, cluster = rng.random((6, 4)).astype(np.float32), np.array([0, 0, 1, 1, 3, 3], np.int32)
    distance, able = jax.jit(model_distances)(risks, cluster, np.ones(6, np.float32))
    assert (distance >= 0).all() and (np.diagonal(distance) == 0).all() and able.tolist() == [True, True, False, True]
    np.testing.assert_allclose(distance, distance.T)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rounds_per_step": 0}, ("rounds_per_step", 0)),
        ({"threshold": -0.1}, ("threshold", -0.1)),
        ({"merge_threshold": math.nan}, ("merge_threshold", "nan")),
        ({"start": "mine"}, ("start", "mine")),
    ],
)
def test_options_out_of_range_are_named(options, words):
    with pytest.raises(ValueError, match=mentions(*words)):
        methods.feddrift(TASK, optax.sgd(RATE), **options)


def test_options_that_do_not_go_together_are_named(key):
    with pytest.raises(ValueError, match=mentions("slots", 4, 7, "start='own'")):
        methods.feddrift(TASK, optax.sgd(RATE), start="own", slots=4).init(key, problems.linear_federation())
    numbers = TASK._replace(metrics=TASK.metrics._replace(lower=("mse",)))
    with pytest.raises(ValueError, match=mentions("measure", "loss")):
        methods.feddrift(numbers, optax.sgd(RATE), measure="accuracy")
