"""Scores of clusters in runs without true groups: by gradients and class counts that a loop makes, and nowhere else."""

import functools
from dataclasses import replace

import jax
import numpy as np
import optax
import pytest
from sklearn import metrics as sk

import jaxfl
from jaxfl import methods
from jaxfl.cli.tables.runs import COHESION_COLUMNS, results_table
from jaxfl.data import Split, conditions, federate
from jaxfl.random import Stream, key_for
from jaxfl.simulation.callbacks import EarlyStopping
from jaxfl.simulation.evaluation import cohesion
from jaxfl.simulation.evaluation.metrics import COHESION_METRICS, is_lower_better
from jaxfl.testing.small import linear_task
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=3)

CLIENTS, CLASSES = 12, 3


def federation(group=None, seed=0):
    """Clients of unequal sizes in three kinds, one without training rows, one held out."""
    rng = np.random.default_rng(seed)
    kind = np.arange(CLIENTS) % 3
    sizes = [9, 5, 14, 7, 0, 11, 6, 8, 12, 10, 4, 13]
    owner = np.repeat(np.arange(CLIENTS), sizes)
    labels = (kind[owner] + (rng.random(len(owner)) < 0.4)) % CLASSES
    inputs = (rng.normal(size=(len(owner), 4)) + 2 * np.eye(4)[labels]).astype(np.float32)
    parts = [np.flatnonzero(owner == client) for client in range(CLIENTS)]
    return federate(
        inputs, labels, parts, parts, num_classes=CLASSES, group=group, held_out=np.arange(CLIENTS) == 7,
        label_shift=np.arange(CLIENTS) // 6,
    )  # fmt: skip


@functools.cache  # tests share what they compile
def method(clusters=3):
    return methods.ifca(linear_task(), optax.sgd(0.3), num_clusters=clusters, local_epochs=1)


def run(data, clusters=3, **options):
    return jaxfl.run(method(clusters), data, **{"rounds": 2, "seed": 3, "eval_every": 1, **options})


@functools.cache
def plain():
    """Returns the run of the federation without groups."""
    return run(federation())


def by_hand(data, result, who):
    """The four scores by a loop over clients and scikit-learn."""
    model = jax.tree.map(np.asarray, linear_task().init(key_for(jax.random.key(3), Stream.INIT)))
    gradients, frequencies = [], []
    for client in np.flatnonzero(who):
        rows = data.train.rows[data.train.start[client] :][: data.train.size[client]]
        x, y = data.inputs[rows], (data.labels[rows] + data.label_shift[client]) % CLASSES
        logits = x.astype(np.float64) @ model["kernel"] + model["bias"]
        p = np.exp(logits - logits.max(1, keepdims=True))
        wrong = p / p.sum(1, keepdims=True) - np.eye(CLASSES)[y]
        gradient = np.concatenate([wrong.mean(0), (x.T @ wrong / len(x)).ravel()])
        gradients.append(gradient / np.linalg.norm(gradient))
        frequencies.append(np.sort(np.bincount(y, minlength=CLASSES) / len(y)))
    cluster = result.evaluation.cluster[who]
    return [
        function(points, cluster)
        for points in (gradients, frequencies)
        for function in (sk.silhouette_score, sk.davies_bouldin_score)
    ]


def test_a_run_without_groups_has_the_scores_of_a_loop():
    data, result = federation(), plain()
    who = (np.asarray(data.train.size) > 0) & ~data.held_out
    assert 2 <= len(set(result.evaluation.cluster[who])) <= 3
    got = [result.evaluation.metrics[name] for name in COHESION_METRICS]
    np.testing.assert_allclose(got, by_hand(data, result, who), atol=1e-4)
    assert [result.summary[name] for name in COHESION_METRICS] == got
    assert [result.history[-1][name] for name in COHESION_METRICS] == got
    assert result.summary["ari"] is None


def test_a_run_with_groups_has_none_of_them_and_trains_the_same():
    with_groups, without = run(federation(np.arange(CLIENTS) % 3)), plain()
    assert not {*COHESION_METRICS} & {*with_groups.summary, *with_groups.history[-1], *with_groups.evaluation.metrics}
    assert with_groups.summary["ari"] is not None
    for one, other in zip(*(jax.tree.leaves(each.state.models) for each in (with_groups, without)), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_one_cluster_and_single_clients_have_no_score_and_cost_nothing(monkeypatch):
    monkeypatch.setattr(cohesion, "represent", lambda *_, **__: pytest.fail("no gradient is needed"))
    alone = methods.local(linear_task(), optax.sgd(0.3), local_epochs=1)
    for one in (run(federation(), clusters=1), jaxfl.run(alone, federation(), rounds=1)):
        assert [one.summary[name] for name in COHESION_METRICS] == [None] * 4


def test_scores_are_of_the_data_alone():
    """Host rows, evaluation in windows, a resumed run and few rows change nothing; attackers do not count."""
    data, wanted = federation(), plain()
    streamed = run(data, resident=False)
    for name in COHESION_METRICS:
        assert streamed.summary[name] == pytest.approx(wanted.summary[name], abs=1e-5)
    attacked = conditions.attack(data, "label-flip", 0.2)
    result = run(attacked)
    who = (np.asarray(data.train.size) > 0) & ~data.held_out & ~np.asarray(attacked.attack.attacker)
    got = [result.evaluation.metrics[name] for name in COHESION_METRICS]
    if len(set(result.evaluation.cluster[who])) >= 2:
        np.testing.assert_allclose(got, by_hand(data, result, who), atol=1e-4)


def test_other_labels_have_no_class_frequencies():
    rng = np.random.default_rng(0)
    parts = np.split(np.arange(60), 6)
    x = rng.normal(size=(60, 2)).astype(np.float32)
    slope = np.repeat([[1.0, 2.0], [-1.0, 0.5]] * 3, 10, 0)
    data = federate(x, (x * slope).sum(1, keepdims=True).astype(np.float32), parts, parts)
    task = jaxfl.regression(jaxfl.models.Logistic(num_classes=1), data)
    method = methods.local(task, optax.sgd(0.1), local_epochs=1)
    evaluation = jaxfl.run(method, data, rounds=1).evaluation._replace(cluster=np.arange(6) % 2)
    scorer = cohesion.CohesionScorer(method, data)
    found = scorer(jax.random.key(0), evaluation)
    mixed = scorer(jax.random.key(0), evaluation._replace(cluster=np.arange(6) // 3))
    assert found["silhouette"] > max(0, mixed["silhouette"]) and 0 < found["davies_bouldin"] < mixed["davies_bouldin"]
    assert found["wasserstein_silhouette"] is found["wasserstein_davies_bouldin"] is None


def test_of_many_clients_a_sample_is_scored(monkeypatch):
    monkeypatch.setattr(cohesion, "MOST_CLIENTS", 6)
    seen, scored = [], cohesion._scores
    monkeypatch.setattr(cohesion, "_scores", lambda points, *rest: seen.append(len(points[0])) or scored(points, *rest))
    result = run(federation())
    assert seen and {*seen} == {6} and result.summary["silhouette"] is not None


def test_better_is_higher_or_lower():
    assert [is_lower_better(name, ()) for name in COHESION_METRICS] == [False, True, False, True]


def test_early_stopping_by_a_score_needs_data_without_groups():
    data = federation(np.arange(CLIENTS) % 3)
    with pytest.raises(ValueError, match=mentions("EarlyStopping", "silhouette", "without true groups")):
        run(data, callbacks=[EarlyStopping(1, metric="silhouette")])
    run(replace(data, group=None), callbacks=[EarlyStopping(1, metric="silhouette")])


def test_no_rows_of_other_clients_are_read():
    data = federation()
    few = cohesion._with_training_rows(data, np.array([2, 5], np.int32), 3, inputs=True)
    assert few.num_clients == 2 and few.inputs.shape == (6, 4) and few.train.size.tolist() == [3, 3]
    assert isinstance(few.test, Split) and not few.test.size.any() and few.group is None
    assert few.label_shift.tolist() == [0, 0]


def test_the_table_of_a_run_has_them_where_there_are_no_groups():
    without, with_groups = plain().summary, run(federation(np.arange(CLIENTS) % 3)).summary
    named = {"method": "ifca", "data": "mine"}
    shown, hidden = (results_table([one | named], None)[1] for one in (without, with_groups))
    assert [name for name in shown if name not in hidden] == [*COHESION_COLUMNS]
