"""Membership inference: the numbers of a curve against scikit-learn, the scores against a loop over clients."""

import dataclasses
import math

import numpy as np
import optax
import pytest
from sklearn.metrics import roc_auc_score
from sklearn.metrics import roc_curve as sklearn_curve

import jaxfl
from jaxfl import methods
from jaxfl.analysis.membership import membership_risk, roc_curve, size_bins
from jaxfl.data import conditions
from jaxfl.methods.base import clients_to_train
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=6)


@pytest.mark.parametrize("decimals", [1, 8])  # many ties, and none
@pytest.mark.parametrize(("members", "others"), [(3, 50), (400, 150), (1, 1)])
def test_the_risk_is_that_of_scikit_learn(members, others, decimals):
    rng = np.random.default_rng(members)
    member = rng.permutation(np.arange(members + others) < members)
    score = np.round(rng.normal(size=len(member)) + 0.7 * member, decimals)
    risk = membership_risk(score, member, 7)
    false, true, _ = sklearn_curve(member, score, drop_intermediate=False)
    assert risk[:3] == (7, members, others)
    assert risk.auc == pytest.approx(roc_auc_score(member, score), abs=1e-12)
    assert risk.advantage == pytest.approx((true - false).max(), abs=1e-12)
    assert risk.true_positives == pytest.approx(true[false <= 0.01].max(), abs=1e-12)
    ours = roc_curve(score, member)
    np.testing.assert_allclose(ours[0], false, atol=1e-12)
    np.testing.assert_allclose(ours[1], true, atol=1e-12)


def test_worked_examples_of_risks():
    member = np.arange(300) < 100
    # 60 of 100 members are above all others but two of 200, which is 1 %; the third one is above 80
    score = np.where(member, np.where(np.arange(300) < 60, 5.0, np.where(np.arange(300) < 80, 3.0, 1.0)), 0.0)
    score[[100, 101]], score[102] = 6.0, 4.0
    risk = membership_risk(score, member)
    assert risk.true_positives == 0.6 and risk.advantage == 1 - 3 / 200
    assert risk.auc == pytest.approx(1 - (100 * 2 + 40) / (100 * 200))
    lowest = membership_risk(np.where(member, -np.inf, -np.inf), member)  # of diverged models
    assert lowest[3:] == (0.5, 0, 0)
    assert math.isnan(membership_risk(score[member], member[member]).auc)
    assert size_bins(1) == [(1, 1)] and size_bins(4)[-1] == (2, 4) and size_bins(250)[-1] == (200, 499)


@pytest.fixture(scope="module")
def ran():
    """A run on 12 clients of four rotations: two are held out, one attacks, one lacks training rows, one test rows."""
    data = jaxfl.data.load("rotated-digits", num_clients=12, rows_per_client=30, held_out=0.15)
    data = conditions.attack(data, "sign-flip", 0.1)
    usual = np.flatnonzero(clients_to_train(data) & ~data.attack.attacker)
    size, tests = np.array(data.train.size), np.array(data.test.size)
    size[usual[0]], tests[usual[1]], size[usual[2]] = 0, 0, 9
    train, test = (dataclasses.replace(one, size=two) for one, two in ((data.train, size), (data.test, tests)))
    data = dataclasses.replace(data, train=train, test=test)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    method = methods.ifca(task, optax.sgd(0.3), num_clusters=3, local_epochs=5)
    return jaxfl.run(method, data, rounds=4, seed=2, eval_every=4), usual


def losses_by_hand(result, client, split, slot):
    """Returns the losses of a client's rows in float64, under the model of a cluster."""
    data = result.data
    layer = {name: np.asarray(leaf[slot], np.float64) for name, leaf in result.state.models["Dense_0"].items()}
    rows = np.asarray(split.rows)[split.start[client] :][: split.size[client]]
    pixels = np.rot90(data.inputs[rows], int(data.rotation[client]), (1, 2)).reshape(len(rows), -1)
    outputs = (pixels - float(data.mean)) / float(data.std) @ layer["kernel"] + layer["bias"]
    return np.log(np.exp(outputs).sum(1)) - outputs[np.arange(len(rows)), data.labels[rows]]


def test_scores_are_those_of_a_loop(ran):
    result, usual = ran
    found, data = jaxfl.membership(result), result.data
    assert set(found.client.tolist()) == set(usual[2:].tolist())  # neither held out, nor an attacker, nor without rows
    for member, split in ((True, data.train), (False, data.test)):
        for client in usual[2:]:
            own = found.score[(found.client == client) & (found.member == member)]
            wanted = -losses_by_hand(result, client, split, result.evaluation.cluster[client])
            np.testing.assert_allclose(own, wanted, rtol=1e-4, atol=1e-5)
    for client in np.flatnonzero(data.held_out):
        mean = -losses_by_hand(result, client, data.train, result.evaluation.cluster[client]).mean()
        assert found.client_score[client] == pytest.approx(mean, rel=1e-4)
    assert np.isnan(found.client_score[data.attack.attacker]).all() and np.isnan(found.client_score[usual[0]])


def test_parts_are_those_of_their_clients(ran):
    result, _ = ran
    found, cluster = jaxfl.membership(result), result.evaluation.cluster
    trains = clients_to_train(result.data)
    for slot, risk in found.by_cluster().items():
        rows = cluster[found.client] == slot
        assert risk == membership_risk(found.score[rows], found.member[rows], len(np.unique(found.client[rows])))
    sizes = {slot: int((trains & (cluster == slot)).sum()) for slot in np.unique(cluster)}
    for name, risk in found.by_size().items():
        first, last = (int(one) for one in (*name.split("-"), name)[:2])
        some = [slot for slot, size in sizes.items() if first <= size <= last]
        assert risk.members == found.member[np.isin(cluster[found.client], some)].sum() > 0
    table = found.to_pandas()
    assert sum(table.members[table.part == "cluster"]) == found.overall().members == int(table.members[0])
    clients = found.of_clients()
    assert (clients.members, clients.others) == (len(np.unique(found.client)), 2)
    assert table.part.iloc[-1] == "clients"


def test_references_are_models_of_other_clusters(ran):
    result, usual = ran
    cluster = result.evaluation.cluster
    others = len(np.unique(cluster[usual[2:]])) - 1
    assert others >= 1
    found = jaxfl.membership(result, references=others)
    slots = np.unique(cluster[usual[2:]])

    def logit(client, slot):
        loss = losses_by_hand(result, client, result.data.train, slot)
        return -loss - np.log1p(-np.exp(-loss))

    for client in usual[2:]:
        mean = np.mean([logit(client, slot) for slot in slots if slot != cluster[client]], 0)
        own = found.score[(found.client == client) & found.member]
        np.testing.assert_allclose(own, logit(client, cluster[client]) - mean, rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match=mentions("references", others + 1)):
        jaxfl.membership(result, references=others + 1)


def test_memorised_rows_are_found():
    """Labels are random, so that only memory tells rows apart: each client fits its own."""
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(320, 60)).astype(np.float32), rng.integers(0, 2, 320)
    train, test = np.split(rng.permutation(320).reshape(8, 40), 2, 1)
    data = jaxfl.data.federate(inputs, labels, list(train), list(test), num_classes=2)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=2), data)
    result = jaxfl.run(methods.local(task, optax.sgd(0.5), local_epochs=30), data, rounds=2, cohort=8, seed=0)
    found = jaxfl.membership(result)
    assert list(found.by_size()) == ["1"] and len(found.by_cluster()) == 8
    assert found.overall().auc > 0.8  # half of the test rows are guessed right, some of them with confidence


@pytest.mark.parametrize("name", ["perfedavg", "fedem", "stocfl", "fedrep"])
def test_losses_of_test_rows_are_those_of_the_evaluation(name):
    """The model is adapted, a mixture, of a cluster that was found, or with layers of the client."""
    small = {"num_clients": 8, "rows_per_client": 20, "model": "mlp", "hidden": "8"}
    result = jaxfl.run_named(name, "rotated-digits", rounds=2, cohort=8, **small)
    found = jaxfl.membership(result)
    sums = np.bincount(found.client[~found.member], found.score[~found.member], 8)
    np.testing.assert_allclose(-sums / result.evaluation.rows, result.evaluation.loss, rtol=1e-4)


def test_a_kept_run_with_models_on_the_host_has_the_scores_of_its_result(tmp_path):
    small = {"num_clients": 8, "rows_per_client": 20, "model": "logistic", "resident": False}
    result = jaxfl.run_named("ditto", "rotated-digits", rounds=2, cohort=8, out=tmp_path / "run", **small)
    for references in (0, 3):
        found, again = (jaxfl.membership(one, references=references) for one in (result, jaxfl.load(tmp_path / "run")))
        for one, other in zip(found, again, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert len(np.unique(found.cluster)) == 8


def test_a_run_on_several_devices_is_analysed_on_one():
    small = {"num_clients": 8, "rows_per_client": 20, "model": "logistic", "attack": "canary", "attackers": 0.5}
    analyses = [
        lambda result: jaxfl.membership(result, references=1).score,
        lambda result: jaxfl.class_confusion(result).counts,
        lambda result: jaxfl.audit_canaries(result).score,
    ]
    one, two = (
        jaxfl.run_named("ifca", "rotated-digits", rounds=2, cohort=8, num_clusters=2, devices=devices, **small)
        for devices in (1, 2)
    )
    for analyse in analyses:
        np.testing.assert_allclose(analyse(one), analyse(two), rtol=1e-4, atol=1e-5)


def test_results_that_cannot_be_scored(ran):
    result, _ = ran
    with pytest.raises(ValueError, match=mentions("result", "method")):
        jaxfl.membership(result._replace(method=None))
    data = result.data
    no_test = dataclasses.replace(data.test, size=np.zeros(12, np.int32))
    with pytest.raises(ValueError, match=mentions("test rows", "none")):
        jaxfl.membership(result._replace(data=dataclasses.replace(data, test=no_test)))
    with pytest.raises(TypeError, match=mentions("references", "all")):
        jaxfl.membership(result, references="all")
