"""Test sets of all clients and the scores of publications that need them, against a loop in NumPy."""

import numpy as np
import optax
import pytest

import jaxfl
from jaxfl.data import divide
from jaxfl.protocols.scores import SCORES, score
from jaxfl.simulation.evaluation.test_sets import SHARED, parse_test_sets
from tests.messages import mentions

SMALL = {"num_clients": 8, "rows_per_client": 40, "model": "logistic", "cohort": 4, "rounds": 4, "eval_every": 2}
DATA = {"validation": 0.3, "corruptions": ("none", "contrast"), "shifts": (0, 3)}
IFCA = {"num_clusters": 2, "batch_size": 10, "test_sets": "shared,concept", **DATA}


@pytest.fixture(scope="module")
def result():
    return jaxfl.run_named("ifca", "corrupted+shifted+iid-digits", **SMALL, **IFCA, clients_history=True)


def as_seen(data, client, rows, *, clean):
    """The numbers of rows that a client sees; those of its corruption are read from its copies."""
    seen = np.asarray(data.inputs)
    if not clean and data.corruption is not None and data.corruption[client]:
        own = data.test.rows[data.test.start[client] :][: data.test.size[client]]
        copies = {int(data.origin[row]): row for row in own}
        rows = np.array([copies[row] for row in rows])
    x = (seen[rows].astype(np.float32) - np.asarray(data.mean)) / np.asarray(data.std)
    return x.reshape(len(rows), -1)


def hits_of(result, data, client, *, clean):
    """Whether a client's model is right, for each test row of all clients, and the classes as the client calls them."""
    rows = np.unique(np.asarray(data.origin)[np.asarray(data.test.rows)])
    (layer,) = result.params(client=client).values()
    found = (as_seen(data, client, rows, clean=clean) @ layer["kernel"] + layer["bias"]).argmax(1)
    classes = (np.asarray(data.labels)[rows] + int(data.label_shift[client])) % 10
    return found == classes, classes


def test_the_scores_of_all_test_rows_are_those_of_a_loop(result):
    data = jaxfl.data.load("corrupted+shifted+iid-digits", num_clients=8, rows_per_client=40, **DATA)
    central = divide.central_test(data)  # with the copies of all test rows, of which the run's clients have their own
    shared, weighted, concepts = [], [], {}
    for client in range(8):
        hits, classes = hits_of(result, central, client, clean=False)
        trained = result.data.train.rows[result.data.train.start[client] :][: result.data.train.size[client]]
        own = (np.asarray(result.data.labels)[trained] + int(result.data.label_shift[client])) % 10
        weight = np.bincount(own, minlength=10)[classes] / len(own)
        shared.append(hits.mean())
        weighted.append((weight * hits).sum() / weight.sum())
        clean, _ = hits_of(result, central, client, clean=True)
        concepts.setdefault(int(result.data.label_shift[client]), []).append(clean.mean())
    clients, history = result.history.clients, result.history
    np.testing.assert_allclose(clients["shared_accuracy"][-1], shared, rtol=1e-12)
    np.testing.assert_allclose(clients["weighted_accuracy"][-1], weighted, rtol=1e-12)
    assert score("shared-last", history) == pytest.approx(np.mean(shared), rel=1e-12)
    assert score("weighted-test", history) == pytest.approx(np.mean(weighted), rel=1e-12)
    mean = np.mean([np.mean(one) for one in concepts.values()])
    assert score("concept-test", history) == pytest.approx(mean, rel=1e-12)
    assert len({round(one, 6) for one in (np.mean(shared), np.mean(weighted), mean)}) == 3  # they are not the same


def test_each_client_counts_at_its_own_best_validation_round():
    clients = {
        "rows": np.array([4, 4, 4]),
        "validation_accuracy": np.array([[0.5, 0.9, np.nan], [0.8, 0.9, 0.1], [0.7, 0.2, 0.3]]),
        "accuracy": np.array([[0.1, 0.2, 0.9], [0.3, 0.4, 0.5], [0.6, 0.7, 0.8]]),
    }
    history = jaxfl.History()
    history.keep_clients()
    for place, round in enumerate((2, 4, 6)):
        history.append({"round": round})
        history.note_clients(
            round, {name: column if column.ndim == 1 else column[place] for name, column in clients.items()}
        )
    assert score("macro-valbest", history) == pytest.approx(np.mean([0.3, 0.2, 0.8]), rel=1e-12)
    assert score("macro-valbest", history.records) is None and score("weighted-valbest", history) is None


def test_at_own_best_round_of_a_run_is_a_loop_over_its_table(result):
    table = result.history.clients.to_pandas()
    for name, column in (("macro-valbest", "accuracy"), ("weighted-valbest", "weighted_accuracy")):
        best = [one.loc[one["validation_accuracy"].idxmax(), column] for _, one in table.groupby("client")]
        assert score(name, result.history) == pytest.approx(np.mean(best), rel=1e-12)


def test_scores_at_each_clients_own_best_round_leave_out_attackers_and_held_out_clients():
    """As the other metrics of the run do; the table of the clients has these two in rows of their own."""
    words = SMALL | {"validation": 0.3, "attack": "sign-flip", "attackers": 0.25, "held_out": 0.25}
    result = jaxfl.run_named("fedavg", "iid-digits", **words, clients_history=True)
    out = np.asarray(result.data.held_out) | np.asarray(result.data.attack.attacker)
    table = result.history.clients.to_pandas()
    assert (table["excluded"] == out[table["client"]]).all() and 0 < out.sum() < 8
    last = table[(table["round"] == 4) & (table["excluded"] == 0)]
    assert last["accuracy"].mean() == pytest.approx(result.history[-1]["macro_accuracy"], rel=1e-12)
    best = [
        one.loc[one["validation_accuracy"].idxmax(), "accuracy"]
        for _, one in table[table["excluded"] == 0].groupby("client")
    ]
    assert score("macro-valbest", result.history) == pytest.approx(np.mean(best), rel=1e-12)


def test_the_rest_of_the_run_is_as_without(result):
    plain = jaxfl.run_named("ifca", "corrupted+shifted+iid-digits", **SMALL, **IFCA | {"test_sets": None})
    for one, other in zip(plain.history, result.history, strict=True):
        assert {name: value for name, value in other.items() if "seconds" not in name and name in one} == {
            name: value for name, value in one.items() if "seconds" not in name
        }
        assert {name for name in other if name not in one} == {
            *("shared_macro_accuracy", "shared_macro_f1", "shared_loss"),
            *("weighted_macro_accuracy", "concept_macro_accuracy"),
        }


@pytest.mark.slow
def test_rows_on_the_host_and_data_that_drift_are_tested_alike():
    options = {"drift": "sudden", "drift_round": 3, "test_sets": "shared", "batch_size": 10}
    both = [jaxfl.run_named("fedavg", "rotated-digits", **SMALL, **options, resident=one) for one in (True, False)]
    for name in ("shared_macro_accuracy", "weighted_macro_accuracy"):
        first, second = (one.history.column(name) for one in both)
        assert first == second and len(set(first)) > 1


def test_what_cannot_be_tested_is_refused_before_anything_is_compiled(monkeypatch):
    with pytest.raises(ValueError, match=mentions("test_sets", "shered", "shared")):
        parse_test_sets("shered")
    parts = [np.arange(8), np.arange(8, 16)]
    rows = np.zeros((16, 4), np.float32)
    with pytest.warns(UserWarning, match="training rows"):
        data = jaxfl.data.federate(rows, np.arange(16) % 2, parts, parts[::-1], num_classes=2)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=2), data)
    method = jaxfl.methods.fedavg(task, optax.sgd(0.1))
    with pytest.raises(ValueError, match=mentions("test_sets", 0, SHARED)):
        jaxfl.run(method, data, rounds=1, test_sets=SHARED)
    adapting = jaxfl.methods.fedala(task, optax.sgd(0.1))
    with pytest.raises(ValueError, match=mentions("test_sets", "concept", "adapts")):
        jaxfl.run(adapting, data, rounds=1, test_sets="concept")


def test_every_score_has_a_run_that_has_it(result):
    assert {name for name in SCORES if score(name, result.history) is None} == {"unseen-last"}
