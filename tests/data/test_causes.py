"""Causes of the true groups: who declares which, their products, and which of them count."""

import json

import numpy as np
import optax
import pytest
from sklearn.metrics import adjusted_rand_score

import jaxfl
from jaxfl import data
from jaxfl.data import describe
from jaxfl.data.synthetic import clustered_linear
from jaxfl.simulation.evaluation.metrics import cluster_scores
from jaxfl.simulation.records.identity import data_identity
from tests.messages import mentions

# products of few clients, in which some shifts have none
pytestmark = pytest.mark.filterwarnings("ignore:no client of")


def partition(*numbers):
    """The partition of clients by pairs of numbers, as sets."""
    keys = list(zip(*(np.asarray(one).tolist() for one in numbers), strict=True))
    return {frozenset(i for i, other in enumerate(keys) if other == key) for key in keys}


@pytest.mark.parametrize(
    ("name", "options", "causes"),
    [
        ("rotated-digits", {}, ["rotation"]),
        ("shifted-digits", {}, ["labels"]),
        ("swapped-digits", {}, ["labels"]),
        ("permuted-digits", {}, ["labels"]),
        ("mirrored-digits", {"num_clients": 6}, ["labels"]),
        ("pathological-digits", {"num_clients": 8}, ["classes"]),
        ("dominant-digits", {"num_clients": 8}, ["classes"]),
        ("hybrid-digits", {"num_clients": 8}, ["domain"]),
        ("dirichlet-digits", {}, []),
        ("rotated+pathological-digits", {}, ["classes", "rotation"]),
        ("swapped+rotated+shifted+dirichlet-digits", {"num_clients": 16}, ["labels", "rotation"]),
    ],
)
def test_the_groups_are_the_products_of_the_causes(name, options, causes):
    fed = data.load(name, **options)
    assert sorted(fed.causes) == causes == sorted(dict(fed.cause_names))
    if not causes:
        assert fed.group is None
        return
    assert partition(fed.group) == partition(*fed.causes.values())
    for cause, names in fed.cause_names:
        assert fed.causes[cause].dtype == np.int32 and len(names) == len({*fed.causes[cause].tolist()})
    if len(causes) == 1:
        assert fed.group_names == fed.cause_names[0][1]


def test_groups_without_a_cause_become_one():
    crossed = data.relabel(clustered_linear(8, num_groups=2), shifts=(0, 1))
    assert sorted(crossed.causes) == ["group", "labels"]
    assert partition(crossed.group) == partition(*crossed.causes.values())


@pytest.mark.parametrize("truth", ["labels", "rotation", "rotation,labels", ["labels", "rotation"]])
def test_the_truth_is_the_causes_that_count(truth):
    whole = data.load("rotated+shifted-digits", num_clients=16, angles=(0, 90), shifts=(0, 5))
    fed = data.load("rotated+shifted-digits", num_clients=16, angles=(0, 90), shifts=(0, 5), truth=truth)
    chosen = truth.split(",") if isinstance(truth, str) else truth
    assert partition(fed.group) == partition(*(whole.causes[cause] for cause in chosen))
    parts = {"labels": "shift", "rotation": "°"}
    assert all(all((parts[cause] in name) == (cause in chosen) for cause in parts) for name in fed.group_names)
    for cause, pattern in whole.causes.items():
        np.testing.assert_array_equal(fed.causes[cause], pattern)
    np.testing.assert_array_equal(fed.train.rows, whole.train.rows)


def test_the_truth_of_a_saved_federation_may_be_another(tmp_path):
    whole = data.load("rotated+shifted-digits", num_clients=16, angles=(0, 90), shifts=(0, 5))
    data.stored.save(whole, tmp_path / "saved")
    fed = data.load("saved", data_dir=tmp_path / "saved", truth="rotation")
    assert fed.group_names == ("0°", "90°") and partition(fed.group) == partition(whole.causes["rotation"])


def test_a_truth_that_is_no_cause_is_refused():
    with pytest.raises(ValueError, match=mentions("truth", "colour", "labels", "rotation")):
        data.load("rotated+shifted-digits", num_clients=16, truth="colour")
    assert "truth" not in data.options("rotated-digits"), "of one cause there is nothing to choose"


def test_clusters_are_scored_by_each_cause():
    fed = data.load("rotated+shifted-digits", num_clients=16, angles=(0, 90), shifts=(0, 5), held_out=0.2)
    who = ~fed.held_out
    cluster = np.random.default_rng(0).integers(0, 3, 16)
    cluster[~who] = 2
    found = cluster_scores(cluster, fed, who)
    for cause, pattern in fed.causes.items():
        wanted = adjusted_rand_score(pattern[who], cluster[who])
        np.testing.assert_allclose(found[f"ari_{cause}"], wanted, atol=1e-12)
    np.testing.assert_allclose(found["ari"], adjusted_rand_score(fed.group[who], cluster[who]), atol=1e-12)
    nobody = cluster_scores(cluster, fed, np.zeros(16, bool))
    assert nobody.keys() == found.keys() and nobody["ari_labels"] is None
    alone = cluster_scores(cluster, data.load("rotated-digits", num_clients=16), who)
    assert not [name for name in alone if name.startswith("ari_")], "one cause alone is the groups"


def test_a_run_tells_which_cause_its_clusters_follow(tmp_path):
    options = {"num_clients": 8, "rows_per_client": 10, "angles": (0, 180), "shifts": (0, 5), "truth": "labels"}
    fed = data.load("rotated+shifted-digits", **options)
    assert describe.describe(fed).causes == {"labels": 2, "rotation": 2}
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), fed)
    method = jaxfl.methods.fedavg(task, optax.sgd(0.1))
    result = jaxfl.run(method, fed, rounds=1, cohort=4, checkpoint_dir=tmp_path / "run")
    assert result.summary["ari_labels"] == result.summary["ari"] == 0 == result.summary["ari_rotation"]
    record = json.loads((tmp_path / "run" / "history.jsonl").read_text().splitlines()[-1])
    assert record["ari_rotation"] == 0


def test_causes_are_no_part_of_the_identity_of_older_runs():
    fed = data.load("rotated+shifted-digits", num_clients=16, drift="swap", drift_round=2)
    older = fed.replace(causes={}, cause_names=(), drift=fed.drift.replace(causes={}))
    assert data_identity(fed)["data"] == data_identity(older)["data"]
    assert data_identity(fed)["data_fields"] == data_identity(older)["data_fields"]


def test_causes_of_ones_own_arrays():
    inputs, labels, rows = np.zeros((4, 2), np.float32), np.arange(4) % 2, [[0], [1], [2], [3]]
    given = {"rotation": [0, 0, 1, 1], "labels": [0, 1, 0, 0]}
    fed = data.federate(inputs, labels, rows, rows, num_classes=2, causes=given)
    assert fed.group.tolist() == [0, 1, 2, 2] and fed.group_names[1] == "rotation 0; labels 1"
    kept = data.federate(inputs, labels, rows, rows, num_classes=2, causes=given, group=[0, 1, 0, 1])
    assert kept.group.tolist() == [0, 1, 0, 1] and kept.causes["labels"].tolist() == [0, 1, 0, 0]
    for causes, message in (
        ({"my cause": [0, 0, 0, 0]}, ("causes", "my cause")),
        ({"labels": [0, 0]}, ("causes.labels", 4, 2)),
        ({"labels": [0, 0, -1, 0]}, ("labels", -1)),
        ({"labels": [0.5, 0, 1, 0]}, ("labels", "float64")),
    ):
        with pytest.raises(ValueError, match=mentions(*message)):
            data.federate(inputs, labels, rows, rows, num_classes=2, causes=causes)


def test_an_option_of_several_parts_is_for_all_of_them():
    fed = data.load("permuted+dominant-digits", num_clients=12, num_groups=3)
    assert [len(names) for _, names in fed.cause_names] == [3, 3]
    usual = data.load("permuted+dominant-digits", num_clients=16)
    assert [len(names) for _, names in usual.cause_names] == [4, 4]
