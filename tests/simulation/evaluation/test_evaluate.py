"""Metrics against scikit-learn and a loop over clients; what is shared is counted once and handed to all."""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn import metrics as sk

import jaxfl
from jaxfl import methods
from jaxfl.cohort import Plan
from jaxfl.data import Split, divide, federate
from jaxfl.data.clients import Attack
from jaxfl.data.synthetic import clustered_linear
from jaxfl.simulation.evaluation import evaluate, metrics
from jaxfl.testing.small import linear_task

CLIENTS, CLASSES, MODELS = 9, 3, 4


class State(NamedTuple):
    models: dict
    cluster: jax.Array
    round: jax.Array


def served(state, ids):
    return jax.tree.map(lambda leaf: leaf[jnp.maximum(state.cluster[ids], 0)], state.models)


METHOD = methods.fedavg(linear_task(), optax.sgd(0.1))._replace(client_params=served)  # never trained


def random_state(seed=0):
    rng = np.random.default_rng(seed)
    models = {"kernel": rng.normal(size=(MODELS, 4, CLASSES)), "bias": rng.normal(size=(MODELS, CLASSES))}
    cluster = rng.integers(-1, MODELS, CLIENTS)
    return State(jax.tree.map(jnp.float32, models), jnp.asarray(cluster, jnp.int32), jnp.int32(0))


def random_data(seed=0, shift=None, held_out=None, shared=False):
    """Test sets of 0 to 12 rows, some of them without every class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, 200)
    labels[:40] = 1
    sizes = [12, 0, 3, 1, 7, 5, 2, 9, 4]
    parts = [rng.integers(CLIENTS, 200, size) for size in sizes]
    member = np.arange(CLIENTS) % 3
    return federate(
        rng.normal(size=(200, 4)).astype(np.float32),
        labels,
        [np.array([i]) for i in range(CLIENTS)],
        Split.shared([parts[0], parts[4], parts[7]], member) if shared else parts,
        num_classes=CLASSES,
        label_shift=shift,
        group=np.arange(CLIENTS) % 2,
        held_out=held_out,
    )


def one_by_one(data, state):
    """Truth, predictions and losses of every client's test rows, by a plain loop."""
    for i in range(CLIENTS):
        rows = data.test.rows[data.test.start[i] :][: data.test.size[i]]
        model = jax.tree.map(
            lambda leaf, i=i: np.asarray(leaf, np.float64)[max(int(state.cluster[i]), 0)], state.models
        )
        scores = data.inputs[rows] @ model["kernel"] + model["bias"]
        shift = 0 if data.label_shift is None else data.label_shift[i]
        truth = (data.labels[rows] + shift) % CLASSES
        if data.test.flipped is not None and data.test.flipped[i]:
            truth = CLASSES - 1 - truth
        p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        yield truth, scores.argmax(1), -np.log(p[range(len(rows)), truth])


DATA = {
    "plain": random_data(),
    "shifted": random_data(shift=np.arange(CLIENTS) % CLASSES),
    "shared": random_data(shared=True),
    "shared and shifted": random_data(shared=True, shift=np.arange(CLIENTS) // 3),
    "held out": random_data(held_out=np.arange(CLIENTS) % 4 == 0),
}
flipped = np.arange(CLIENTS) // 3 == 1  # one client of each test set that is shared
DATA["shared and flipped"] = replace(DATA["shared"], test=replace(DATA["shared"].test, flipped=flipped))


@pytest.mark.parametrize("block", [1000, 4])
@pytest.mark.parametrize("plan", [Plan(1), Plan(3)], ids=["one", "three"])
@pytest.mark.parametrize("name", DATA)
def test_every_client_is_scored_as_by_scikit_learn(name, plan, block, key, monkeypatch):
    monkeypatch.setattr(evaluate, "BLOCK", block)
    data, state = DATA[name], random_state()
    result = evaluate.evaluator(METHOD, data, plan)(key, state)
    truths, guesses, losses = zip(*one_by_one(data, state), strict=True)
    for i, (truth, guess, loss) in enumerate(zip(truths, guesses, losses, strict=True)):
        if not len(truth):
            assert np.isnan([result.accuracy[i], result.f1[i], result.loss[i]]).all()
            continue
        np.testing.assert_allclose(result.accuracy[i], sk.accuracy_score(truth, guess))
        f1 = sk.f1_score(truth, guess, labels=np.unique(truth), average="macro", zero_division=0)
        np.testing.assert_allclose(result.f1[i], f1)
        np.testing.assert_allclose(result.loss[i], loss.mean(), rtol=1e-5)  # float32 losses
    rows = np.array([len(truth) for truth in truths])
    held_out = np.zeros(CLIENTS, bool) if data.held_out is None else data.held_out
    for prefix, who in (("", (rows > 0) & ~held_out), ("unseen_", (rows > 0) & held_out)):
        if not who.any():
            assert f"{prefix}micro_accuracy" not in result.metrics
            continue
        together = [np.concatenate([part[i] for i in np.flatnonzero(who)]) for part in (truths, guesses, losses)]
        got = result.metrics
        np.testing.assert_allclose(got[f"{prefix}micro_accuracy"], sk.accuracy_score(*together[:2]))
        np.testing.assert_allclose(got[f"{prefix}macro_accuracy"], result.accuracy[who].mean())
        if not prefix:
            np.testing.assert_allclose(got["loss"], together[2].mean(), rtol=1e-5)
            np.testing.assert_allclose(got["macro_f1"], result.f1[who].mean())
            np.testing.assert_allclose(got["micro_f1"], np.average(result.f1[who], weights=rows[who]))
            np.testing.assert_allclose(got["p50_accuracy"], np.median(result.accuracy[who]))
            np.testing.assert_allclose(got["worst_decile_accuracy"], result.accuracy[who].min())  # of 9, one client


def test_what_is_shared_is_computed_once():
    data = DATA["shared"]
    first, inverse = evaluate.distinct_pairs(data, np.zeros(CLIENTS, int))
    assert len(first) == 3 and inverse.tolist() == [inverse[i % 3] for i in range(CLIENTS)]
    two = np.arange(CLIENTS) // 3 % 2
    assert len(evaluate.distinct_pairs(data, two)[0]) == 6
    assert len(evaluate.distinct_pairs(DATA["shared and shifted"], np.zeros(CLIENTS, int))[0]) == 9
    assert len(evaluate.distinct_pairs(DATA["shared and flipped"], np.zeros(CLIENTS, int))[0]) == 6


def test_a_state_is_not_copied_where_evaluation_assigns_nobody(key, monkeypatch):
    monkeypatch.setattr(evaluate, "assigner", lambda *args: pytest.fail("of Ditto it would hold all models twice"))
    state = random_state()
    assert evaluate.evaluator(METHOD, random_data())(key, state).cluster.tolist() == state.cluster.tolist()


def test_clusters_are_scored_against_groups_of_clients_that_have_one(key):
    data, state = DATA["held out"], random_state()
    got = evaluate.evaluator(METHOD, data)(key, state).metrics
    cluster = np.asarray(state.cluster)
    who = (cluster >= 0) & ~data.held_out
    assert 0 < who.sum() < CLIENTS - data.held_out.sum(), "some clients must have no cluster for this to say something"
    np.testing.assert_allclose(got["ari"], sk.adjusted_rand_score(data.group[who], cluster[who]), atol=1e-12)
    np.testing.assert_allclose(got["nmi"], sk.normalized_mutual_info_score(data.group[who], cluster[who]), atol=1e-12)
    largest = sk.cluster.contingency_matrix(data.group[who], cluster[who]).max(0)  # group of each cluster
    assert got["purity"] == pytest.approx(largest.sum() / who.sum())
    assert got["num_clusters"] == len(set(cluster[who].tolist()))
    unknown = evaluate.evaluator(METHOD, replace(data, group=None))(key, state).metrics
    assert unknown["ari"] is unknown["nmi"] is unknown["purity"] is None
    assert unknown["num_clusters"] == got["num_clusters"]


def test_each_cluster_is_reported_with_its_members(key):
    data, state = DATA["plain"], random_state()
    result = evaluate.evaluator(METHOD, data)(key, state)
    rows = data.test.size
    for entry in result.metrics["clusters"]:
        members = np.asarray(state.cluster) == entry["cluster"]
        assert entry["clients"] == members.sum()
        who = members & (rows > 0)
        wanted = np.average(result.accuracy[who], weights=rows[who]) if who.any() else None
        assert entry["micro_accuracy"] == pytest.approx(wanted)
    assert sum(entry["clients"] for entry in result.metrics["clusters"]) == CLIENTS


def test_nobody_has_test_rows(key):
    data = replace(DATA["plain"], test=Split.pack([np.array([], int)] * CLIENTS))
    got = evaluate.evaluator(METHOD, data)(key, random_state()).metrics
    assert got["micro_accuracy"] is None and got["worst_decile_accuracy"] is None and got["num_clusters"] > 0


def test_spread_is_of_the_worst_tenth():
    accuracy = np.linspace(0, 1, 41)
    got = metrics.client_spread(accuracy)
    assert got["worst_decile_accuracy"] == pytest.approx(accuracy[:4].mean())
    for percent in (5, 10, 50, 90):
        assert got[f"p{percent}_accuracy"] == pytest.approx(percent / 100)
    assert got["std_accuracy"] == pytest.approx(accuracy.std())


def test_attackers_are_apart():
    """The metrics are those of a federation in which the attackers are held out; theirs have names of their own."""
    attacker, state = np.arange(CLIENTS) % 4 == 0, random_state()
    data = random_data()
    attacked = replace(data, attack=Attack(attacker, np.float32(1), "sign-flip"))
    kinds = {"attacked": attacked, "without": replace(data, held_out=attacker), "plain": data}
    look = {
        name: evaluate.evaluator(METHOD, one, Plan())(jax.random.key(0), state).metrics for name, one in kinds.items()
    }
    own = {"attackers", "attackers_micro_accuracy", "attackers_macro_accuracy"}
    unseen = {"unseen_micro_accuracy", "unseen_macro_accuracy"}
    assert {k: v for k, v in look["attacked"].items() if k not in own} == {
        k: v for k, v in look["without"].items() if k not in unseen
    }
    assert look["attacked"]["attackers"] == attacker.sum()
    for name in ("micro", "macro"):
        assert look["attacked"][f"attackers_{name}_accuracy"] == look["without"][f"unseen_{name}_accuracy"]
    assert look["plain"]["micro_accuracy"] != look["attacked"]["micro_accuracy"] and not own & set(look["plain"])


def test_many_clients_with_many_rows_are_tested_a_few_at_a_time(key, monkeypatch):
    """A client that trains on 50 rows may be tested on 10,000: the plan of training says nothing about those."""
    shapes = jax.eval_shape(random_state)

    def needed(together):
        monkeypatch.setattr(evaluate, "ROWS_SIDE_BY_SIDE", together)
        return evaluate.evaluation_bytes(METHOD, key, shapes, DATA["plain"], Plan(CLIENTS), CLIENTS)

    assert needed(24) < needed(9 * 12)


@pytest.mark.parametrize("stream", [False, True])
def test_validation_rows_are_scored_as_if_they_were_the_test_rows(stream, key):
    plain, state = random_data(held_out=np.arange(CLIENTS) == 4), random_state()
    rng = np.random.default_rng(5)
    data = replace(plain, validation=Split.pack([rng.integers(0, 200, size) for size in (4, 3, 0, 2, 2, 6, 1, 1, 3)]))

    def metrics_of(data):
        return evaluate.evaluator(METHOD, data if stream else data.on_device(), stream=stream)(key, state).metrics

    found, test, apart = (metrics_of(one) for one in (data, plain, replace(plain, test=data.validation)))
    assert {name: value for name, value in found.items() if not name.startswith("validation_")} == test
    for name in ("micro_accuracy", "macro_f1", "loss", "std_accuracy", "unseen_micro_accuracy"):
        assert found[f"validation_{name}"] == apart[name] != test[name]
    assert "validation_ari" not in found and "validation_clusters" not in found


def test_validation_sees_no_test_row(key):
    """Not even of a method that chooses the clients' models by their test rows."""
    data = divide.set_apart(clustered_linear(4, rows=12, features=4, seed=1), 0.25)
    other = replace(data, test=replace(data.test, rows=data.test.rows[::-1]))  # each client has another's
    method = methods.ifca(linear_task(), optax.sgd(0.1), num_clusters=2, choose="test")
    look = [evaluate.evaluator(method, one.on_device()) for one in (data, other)]
    state = method.init(key, data.on_device())
    first, second = (one(key, state).metrics for one in look)
    names = [name for name in first if name.startswith("validation_")]
    assert len(names) >= 11 and [first[name] for name in names] == [second[name] for name in names]
    assert first["loss"] != second["loss"]


def test_a_client_without_a_number_is_in_no_number_of_the_spread():
    """It may be the worst one."""
    found = metrics.client_spread(np.array([1.0, np.nan, 3.0]), "mse", lower=True)
    assert len(found) == 6 and all(np.isnan(value) for value in found.values())
    assert metrics.client_spread(np.array([1.0, np.inf]), "mse", lower=True)["worst_decile_mse"] == np.inf


def test_clients_without_rows_are_in_no_cluster_for_the_metrics():
    """Whatever slot a method gives them."""
    data = clustered_linear(8, num_groups=2, rows=8, features=4)
    sizes = np.where(np.arange(8) == 1, 0, 8).astype(np.int32)
    empty = replace(data, train=replace(data.train, size=sizes), test=replace(data.test, size=sizes))
    result = jaxfl.run(methods.kfed(linear_task(), optax.sgd(0.3), num_clusters=2), empty, rounds=1, plan=Plan())
    cluster = np.asarray(result.evaluation.cluster)
    assert cluster[1] == cluster[0], "which is another group's"
    assert result.history[-1]["ari"] == result.history[-1]["purity"] == 1
