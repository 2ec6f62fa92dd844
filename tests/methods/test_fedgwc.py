"""FedGWC: its NumPy loop, its worked example, what losses must not change, and columns that tell nobody apart."""

import functools
import importlib
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.linalg
from sklearn.metrics import davies_bouldin_score

from jaxfl import methods, tree
from jaxfl.cohort import Cohort
from jaxfl.methods.base import Participation
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import close, equal

pytestmark = pytest.mark.rotating("function", weeks=6)

module = importlib.import_module("jaxfl.methods.fedgwc")  # the package has the function by this name
RATE, COHORT, SLOTS, SICK = 0.4, 5, 8, 3
TASK = problems.softmax_task()
DATA = replace(problems.linear_federation(), held_out=np.arange(7) == 5)
OWNED = DATA.train.rows[DATA.train.start[SICK] :][: DATA.train.size[SICK]]
DIVERGING = replace(DATA, inputs=np.where(np.isin(np.arange(len(DATA.inputs)), OWNED)[:, None], np.nan, DATA.inputs))


@functools.cache  # tests share what they compile
def made(name="fedgwc", **options):
    return compiled(getattr(methods, name)(TASK, optax.sgd(RATE), **{"local_epochs": 2, "batch_size": 3, **options}))


class FedGWC:
    """The specification, one cluster after the other; slots are those of the library."""

    def __init__(self, setting, model, *, held_out, steps, gamma, eps, compare, whole_cohorts, min_clients):
        self.setting, count = setting, len(setting.clients)
        self.able = [i for i in range(count) if i not in held_out and len(setting.clients[i][1])]
        self.steps, self.gamma, self.eps, self.compare = steps, gamma, eps, compare
        self.whole_cohorts, self.min_clients = whole_cohorts, min_clients
        self.models, self.cluster, self.comparable = {0: model}, [0] * count, {*self.able}
        self.w = np.full((count, count), 1 / count**2)
        self.mse, self.patience = {0: 1.0}, {0: 0}

    def train(self, number, i, model):
        """Returns the trained model, and the losses before its first steps."""
        x, y = self.setting.clients[i]
        key = reference.key_for(self.setting.root, reference.Stream.BATCHES, number, i)
        losses = []
        for rows in reference.batches(key, len(y), self.setting.epochs, self.setting.batch_size):
            loss, slope = reference.gradient(model, x[rows], y[rows])
            losses.append(loss)
            model = reference.combine([(1, model), (-self.setting.rate, slope)])
        return model, losses[: self.steps]

    def round(self, number, cohort):
        ready = []
        for k in sorted(self.models):
            found = {
                i: self.train(number, i, self.models[k]) for i in cohort if i in self.able and self.cluster[i] == k
            }
            sampled = [i for i in found if np.isfinite(found[i][1]).all()]  # and so is the model
            self.comparable = self.comparable - {*found} | {*sampled}
            members = [i for i in self.able if self.cluster[i] == k and i in self.comparable]
            if not sampled:
                continue
            trained = [found[i] for i in sampled]
            n = np.array(reference.weights(self.setting, sampled), float)
            self.models[k] = reference.average([model for model, _ in trained], n)
            if len(sampled) < 2:
                continue
            shortest = min(len(losses) for _, losses in trained)
            losses = np.array([losses[:shortest] for _, losses in trained])
            mean = n @ losses / n.sum()
            variance = n @ (losses - mean) ** 2 / n.sum() + 1e-16
            rho = np.exp(-((losses - mean) ** 2) / (2 * variance)).mean(1)
            a, block = len(sampled) / len(members), np.ix_(sampled, sampled)
            new = (1 - a) * self.w[block] + a * (rho / rho.sum())[:, None]
            self.mse[k] = (1 - a) * self.mse[k] + a * ((new - self.w[block]) ** 2).mean()
            self.w[block] = new
            self.patience[k] = self.patience[k] + 1 if self.mse[k] < self.eps else 0
            if self.patience[k] and self.patience[k] >= round(len(members) / len(sampled)):
                ready.append((k, members, len(members) // len(sampled) if self.whole_cohorts else 4))
        for k, members, most in ready:
            self.split(k, members, most)

    def split(self, k, members, most):
        self.mse[k], self.patience[k] = 1.0, 0
        labels = self.best(members, most)
        if labels is None:
            return
        first = {label: i for i, label in reversed([*zip(members, labels, strict=True)])}
        children = sorted(first, key=first.__getitem__)
        free = [slot for slot in range(SLOTS) if slot not in self.models]
        slots = dict(zip(children, [k, *free], strict=False))
        largest = max(children, key=lambda one: labels.count(one))  # the first of equal ones
        for i in range(len(self.cluster)):
            if self.cluster[i] == k:
                self.cluster[i] = slots[labels[members.index(i)]] if i in members else slots[largest]
        for child in slots.values():
            self.models[child], self.mse[child], self.patience[child] = self.models[k], 1.0, 0

    def best(self, members, most):
        block = self.w[np.ix_(members, members)]
        z = (block - block.min()) / (np.ptp(block) or 1)
        z, m = z if self.compare == "rows" else z.T, len(members)
        affinity = np.zeros((m, m))
        for i in range(m):
            for j in range(m):
                if i != j:
                    others = [h for h in range(m) if h not in (i, j)]
                    affinity[i, j] = np.exp(-self.gamma * sum((z[i, h] - z[j, h]) ** 2 for h in others))
        root = np.sqrt(affinity.sum(1))
        vectors = np.linalg.eigh(affinity / np.outer(root, root))[1][:, ::-1] / root[:, None]
        lowest, found = 1.0, None
        for k in range(2, min(most, 4, m - 1) + 1):
            pivots = scipy.linalg.qr(vectors[:, :k].T, pivoting=True)[2][:k]
            left, _, right = np.linalg.svd(vectors[pivots, :k].T)
            labels = np.abs(vectors[:, :k] @ (left @ right)).argmax(1).tolist()
            counts = [labels.count(one) for one in range(k)]
            if len({*labels}) < 2 or min(counts) < self.min_clients:
                continue
            score = davies_bouldin_score(vectors[:, 1 : k + 1], labels)
            if score < lowest:
                lowest, found = score, labels
        return found

    def assigned(self, i):
        x, y = self.setting.clients[i]
        if i in self.able or not len(y):
            return self.cluster[i]
        used = sorted({self.cluster[j] for j in self.able})
        return min(used, key=lambda k: reference.gradient(self.models[k], x, y)[0])


CASES = {
    "rows": {"compare": "rows", "gamma": 3.0, "min_clients": 1},
    "columns of few steps": {"compare": "columns", "gamma": 5.0, "min_clients": 1, "compared_steps": 2, "cohort": 3},
    "children of two": {"compare": "rows", "gamma": 3.0, "min_clients": 2, "compared_steps": 3, "batch_size": None},
    "steady": {"compare": "rows", "gamma": 3.0, "min_clients": 1, "eps": 0.02},
    "a client diverges": {"compare": "rows", "gamma": 3.0, "min_clients": 1, "diverges": (0, 1)},
}


@pytest.mark.parametrize("name", CASES)
def test_every_round_is_that_of_a_loop(name, key):
    """A client has no rows, one is held out, sizes are unequal, some are sampled late, and one may diverge at times."""
    options = {"eps": float("inf"), "compared_steps": 7, "batch_size": 3, "whole_cohorts": False} | CASES[name]
    size, sick = options.pop("cohort", COHORT), options.pop("diverges", ())
    with jax.enable_x64(True):
        method = made(**options, slots=SLOTS)
        setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, options["batch_size"], "rows")
        state = method.init(key, DATA)
        own = {one: options[one] for one in ("gamma", "eps", "compare", "whole_cohorts", "min_clients")}
        start = jax.tree.map(np.asarray, tree.take(state.models, 0))
        loop = FedGWC(setting, start, held_out={5}, steps=options["compared_steps"], **own)
        splits = diverged = 0
        for number in range(4):
            data, cohort = DIVERGING if number in sick else DATA, problems.sample(key, state.round, DATA, size)
            loop.setting = setting._replace(clients=problems.rows_of(data))
            state, info = method.round(key, state, data, cohort)
            loop.round(number, cohort.ids.tolist())
            diverged += number in sick and SICK in cohort.ids.tolist()
            assert int(info.diverged) == (number in sick and SICK in cohort.ids.tolist())
            splits += int(info.extra["splits"])
            assert state.cluster.tolist() == loop.cluster
            placed = method.assign(key, state, DATA, Cohort.of(range(7)))
            assert placed.cluster.tolist() == [loop.assigned(i) for i in range(7)]
            close(state.interactions, loop.w, rtol=1e-9)
            for k, model in loop.models.items():
                close(tree.take(state.models, k), model, rtol=1e-9)
                close(state.change[k], loop.mse[k], rtol=1e-9)
                assert state.steady[k] == loop.patience[k]
        assert splits and diverged == len(sick), "or this says little"


LOSSES, ROWS = np.array([(2, 1.5), (2.2, 1.4), (3, 2.5)]), np.array([10, 20, 10], np.int32)


def rewards(losses, steps=(2, 2, 2), rows=ROWS):
    zeros, steps = jnp.zeros(len(rows), jnp.int32), jnp.asarray(steps, jnp.int32)
    return module.gaussian_rewards(jnp.asarray(losses), steps, zeros, jnp.asarray(rows), jnp.ones(len(rows), bool), 2)


def test_the_worked_example():
    with jax.enable_x64(True):
        found = rewards(LOSSES)
        np.testing.assert_allclose(found.reward, [0.785672, 0.868857, 0.232261], atol=1e-6)
        members = jnp.array([4, 0], jnp.int32)
        w, changed, share = module.update_interactions(
            jnp.full((4, 4), 1 / 16), found, members, jnp.arange(3, dtype=jnp.int32)
        )
        rows = np.full((4, 4), 0.0625)
        rows[:3, :3] = np.array([[0.327930], [0.360996], [0.107949]])
        np.testing.assert_allclose(w, rows, atol=1e-6)
        assert (float(changed[0]), float(share[0])) == (pytest.approx(0.053873, abs=1e-6), 0.75)
        assert 0.25 * 1 + 0.75 * float(changed[0]) == pytest.approx(0.290405, abs=1e-6)
        everybody = jnp.ones(4, bool)
        by_rows, by_columns = (module.pair_affinity(w, everybody, one, 0.1) for one in ("rows", "columns"))
    pairs = [(0, 1), (0, 2), (1, 2)]
    np.testing.assert_allclose([by_rows[pair] for pair in pairs], [0.998774, 0.947137, 0.930655], atol=1e-6)
    np.testing.assert_allclose([by_columns[pair] for pair in pairs], 1, atol=1e-6)


def test_rewards_see_neither_scale_nor_level_of_losses_and_one_is_the_mean():
    with jax.enable_x64(True):
        wanted = rewards(LOSSES).reward
        for changed in (3 * LOSSES, LOSSES + 7, LOSSES * np.array([2.0, 0.5]) + np.array([0.0, 1.0])):
            close(rewards(changed).reward, wanted, rtol=1e-9)
        assert (wanted > 0).all() and (wanted < 1).all()
        assert float(rewards([[1.0], [2.0], [3.0]], (1, 1, 1), np.array([5, 5, 5])).reward[1]) == 1
        equal(rewards(np.ones((3, 2))).reward, np.ones(3))


def test_a_client_with_fewer_steps_or_a_loss_that_is_not_finite_is_no_one_elses_matter():
    with jax.enable_x64(True):
        few = np.where([[True, True], [True, False], [True, True]], LOSSES, 0)
        close(rewards(few, (2, 1, 2)).reward, rewards(LOSSES[:, :1], (1, 1, 1)).reward)
        broken = np.concatenate([LOSSES, [[np.nan, 1.0]]])
        found = rewards(broken, (2, 2, 2, 2), np.append(ROWS, np.int32(9)))
        close(found.reward[:3], rewards(LOSSES).reward)
        assert found.cluster.tolist() == [0, 0, 0, -1] and found.sampled.tolist() == [3, 0]
        assert found.finite.tolist() == [True, True, True, False]
        alone = rewards(LOSSES, (2, 0, 0))
        assert alone.sampled.tolist() == [0, 0] and alone.cluster.tolist() == [-1] * 3
        assert alone.finite.all()  # also of those that made no step


def test_with_everybody_sampled_columns_tell_nobody_apart_and_rows_are_one_number_each():
    with jax.enable_x64(True):
        z = np.array([0.1, 0.5, 0.9, 0.4, 0.2])
        w = jnp.asarray(np.repeat(z[:, None], 5, 1))
        everybody, scaled = jnp.ones(5, bool), (z - z.min()) / np.ptp(z)
        close(module.pair_affinity(w, everybody, "columns", 0.7), np.ones((5, 5)), rtol=1e-6)
        got = np.asarray(module.pair_affinity(w, everybody, "rows", 0.7))
        wanted = np.exp(-0.7 * 3 * np.square(scaled[:, None] - scaled[None]))
        np.testing.assert_allclose(got[~np.eye(5, dtype=bool)], wanted[~np.eye(5, dtype=bool)], rtol=1e-5)


def test_before_a_split_it_is_fedavg(key):
    never, fedavg = made(eps=0.0), made("fedavg", weighting="rows")
    state, wanted = never.init(key, DATA), fedavg.init(key, DATA)
    for _ in range(3):
        cohort = problems.sample(key, state.round, DATA, COHORT)
        (state, info), (wanted, other) = never.round(key, state, DATA, cohort), fedavg.round(key, wanted, DATA, cohort)
        equal(info.loss, other.loss)
        assert info.bytes_up == other.bytes_up + 5 * 7 * state.change.dtype.itemsize
        assert info.bytes_down == other.bytes_down
    close(tree.take(state.models, 0), wanted.model, rtol=1e-6)
    assert not state.cluster.any() and not state.steady.any()
    assert never.shortfall(state, DATA, Participation(3)) == ""


def test_a_split_waits_for_slots(key):
    """A state with one slot overflows, and goes on after it has grown as one with enough of them."""
    options = {"eps": float("inf"), "gamma": 3.0, "min_clients": 1}
    narrow, wide, cohort = made(**options, slots=1), made(**options, slots=SLOTS), Cohort.of([0, 1, 2, 3, 4, 6])
    state = narrow.init(key, DATA)
    after, info = narrow.round(key, state, DATA, cohort)
    assert int(info.overflow) > 0
    for _ in range(int(info.overflow)):
        state = narrow.grow(state)
    after, info = narrow.round(key, state, DATA, cohort)
    wanted, _ = wide.round(key, wide.init(key, DATA), DATA, cohort)
    assert not int(info.overflow) and after.cluster.tolist() == wanted.cluster.tolist()
    assert len(set(after.cluster.tolist())) > 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eps": -1.0}, ("eps", -1.0)),
        ({"gamma": float("nan")}, ("gamma", "nan")),
        ({"compared_steps": 0}, ("compared_steps", 0)),
        ({"most_children": 1}, ("most_children", 1)),
        ({"min_clients": 0}, ("min_clients", 0)),
        ({"slots": 0}, ("slots", 0)),
        ({"compare": "cells"}, ("compare", "cells")),
    ],
)
def test_refusals(options, words):
    with pytest.raises(ValueError, match=mentions(*words)):
        methods.fedgwc(TASK, optax.sgd(RATE), **options)


def test_more_clients_than_a_matrix_holds_are_refused(key, monkeypatch):
    monkeypatch.setattr(module, "MOST_CLIENTS", 6)
    with pytest.raises(ValueError, match=mentions("data", "7", "6 clients")):
        methods.fedgwc(TASK, optax.sgd(RATE)).init(key, DATA)
