"""AUC and metrics of each class against scikit-learn."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import logsumexp
from sklearn import metrics as sk

import jaxfl
from jaxfl import methods
from jaxfl.data import federate
from jaxfl.settings import options
from jaxfl.simulation.evaluation import evaluate
from jaxfl.tasks.class_metrics import one_vs_rest, with_metrics
from jaxfl.testing.small import linear_task
from tests.messages import mentions

ROUNDING = 1e-5  # of sums of float32 shares


def softmax(logits):
    logits = np.asarray(logits, np.float64)
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True)


def log_odds(logits, c):
    """log p / (1 - p) of a class in float64, in the order of p, which rounds to 1 where logits are large."""
    logits = np.asarray(logits, np.float64)
    return logits[:, c] - logsumexp(np.delete(logits, c, 1), axis=1)


def area(logits, labels, classes):
    """The mean over the classes that some rows have, and others have not."""
    some = [c for c in range(classes) if 0 < (labels == c).sum() < len(labels)]
    return np.mean([sk.roc_auc_score(labels == c, log_odds(logits, c)) for c in some]) if some else np.nan


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("scale", [0.1, 3.0, 60.0])  # the last one has probabilities that round to 1
def test_the_area_is_that_of_scikit_learn(classes, scale):
    rng = np.random.default_rng(classes)
    labels = rng.permutation(np.arange(60) % classes)
    logits = (scale * (rng.normal(size=(60, classes)) + np.eye(classes)[labels])).astype(np.float32)
    logits[::7] = logits[3]  # ties
    padded = np.concatenate([logits, np.full((9, classes), np.nan, np.float32)])
    found = one_vs_rest(jnp.asarray(padded), jnp.asarray(np.append(labels, [0] * 9)), jnp.arange(69) < 60)["auc"]
    assert float(found) == pytest.approx(area(logits, labels, classes), abs=ROUNDING)
    if scale < 60:  # scikit-learn's own mean, of probabilities that sum to 1
        own = {"multi_class": "ovr", "average": "macro"} if classes > 2 else {}
        p = softmax(logits) if classes > 2 else softmax(logits)[:, 1]
        assert float(found) == pytest.approx(sk.roc_auc_score(labels, p, **own), abs=ROUNDING)


def test_an_area_that_is_not_defined():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32))
    for labels, mask, change in (
        ([1] * 4, [True] * 4, 0),
        ([0, 1, 1, 1], [False, *[True] * 3], 0),
        ([0, 1] * 2, [True] * 4, 1),
    ):
        outputs = logits.at[0, 0].set(jnp.nan) if change else logits
        assert np.isnan(one_vs_rest(outputs, jnp.array(labels), jnp.array(mask))["auc"])
    assert not np.isnan(one_vs_rest(logits, jnp.array([0, 1] * 2), jnp.ones(4, bool))["auc"])


def federation():
    rng, sizes = np.random.default_rng(1), [12, 0, 5, 1, 7, 9]
    labels = rng.integers(0, 3, 60)
    parts = [rng.choice(60, size, replace=False) for size in sizes]
    inputs = (rng.normal(size=(60, 4)) + np.eye(3, 4)[labels]).astype(np.float32)
    return federate(
        inputs, labels, [np.arange(9)] * 6, parts, num_classes=3, held_out=np.arange(6) == 5, check_repeats=False
    )


@pytest.mark.parametrize("block", [1000, 4])  # rows that are tested at once
@pytest.mark.filterwarnings("ignore:.*training rows:UserWarning")
def test_an_evaluation_has_them_of_every_client_and_class(block, monkeypatch):
    monkeypatch.setattr(evaluate, "BLOCK", block)
    data = federation()
    task = with_metrics(linear_task(), ["auc", "per_class"])
    result = jaxfl.run(methods.fedavg(task, optax.sgd(0.5)), data, rounds=2, eval_every=1)
    model = result.params(client=0)
    areas, truth, predicted = [], [], []
    for client in range(6):
        rows = np.asarray(data.test.rows)[data.test.start[client] :][: data.test.size[client]]
        logits = np.asarray(data.inputs)[rows] @ model["kernel"] + model["bias"]
        areas.append(area(logits, data.labels[rows], 3))
        if client < 5:
            truth, predicted = [*truth, *data.labels[rows]], [*predicted, *logits.argmax(1)]
    np.testing.assert_allclose(result.evaluation.auc, areas, atol=ROUNDING)
    assert np.isnan(areas[1]) and np.isnan(areas[3]) and "auc" in result.clients()
    some = [0, 2, 4]
    assert result.summary["macro_auc"] == pytest.approx(np.mean([areas[i] for i in some]), abs=ROUNDING)
    micro = np.average([areas[i] for i in some], weights=[12, 5, 7])
    assert result.history[-1]["micro_auc"] == pytest.approx(micro, abs=ROUNDING)
    for name, score in (("recall", sk.recall_score), ("precision", sk.precision_score), ("f1", sk.f1_score)):
        wanted = score(truth, predicted, average=None, labels=[0, 1, 2], zero_division=np.nan)
        found = np.array(result.history[-1][f"class_{name}"], float)  # None becomes NaN
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:.*training rows:UserWarning")
def test_nothing_else_changes():
    data = federation()
    runs = [
        jaxfl.run(methods.fedavg(task, optax.sgd(0.5)), data, rounds=2)
        for task in (linear_task(), with_metrics(linear_task(), "auc+per_class"))
    ]
    for one, other in zip(*(run.history for run in runs), strict=True):
        assert {name: one[name] for name in one if "seconds" not in name} == {
            name: other[name] for name in one if "seconds" not in name
        }
    jax.tree.map(np.testing.assert_array_equal, *(run.state.model for run in runs))


def test_what_has_no_such_metrics_is_refused():
    with pytest.raises(ValueError, match=mentions("metrics", "roc", "auc")):
        options.route("fedavg", "rotated-digits", ["metrics=roc"])
    numbers = federate(np.zeros((8, 2), np.float32), np.zeros(8, np.float32), [np.arange(4)], [np.arange(4, 8)])
    with pytest.raises(ValueError, match=mentions("metrics", "auc")):
        with_metrics(jaxfl.regression(jaxfl.models.Logistic(num_classes=1), numbers), "auc")
    flags = federate(np.zeros((8, 2), np.float32), np.zeros((8, 3), bool), [np.arange(4)], [np.arange(4, 8)])
    task = jaxfl.multilabel(jaxfl.models.Logistic(num_classes=3), flags)
    with pytest.raises(ValueError, match=mentions("metrics", "auc", "per_class")):
        with_metrics(task, "auc")
    assert with_metrics(task, "per_class").metrics.by_class


def test_by_name_and_kept_in_a_folder(tmp_path):
    how = {"num_clients": 4, "rows_per_client": 40, "model": "logistic", "rounds": 2, "cohort": 4}
    result = jaxfl.run_named(
        "fedavg", "rotated-digits", **how, metrics="auc,per_class", clients_history=True, out=tmp_path
    )
    kept = jaxfl.load(tmp_path)
    assert kept.history[-1]["class_recall"] == result.history[-1]["class_recall"] == kept.summary["class_recall"]
    assert len(kept.history[-1]["class_recall"]) == 10 and "auc" in kept.history.clients.names
    assert kept.history.to_pandas()["class_f1"].map(len).tolist() == [10] * len(kept.history)
