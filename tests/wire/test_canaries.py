"""Canaries send what is known, if their coins say so, and are told by it unless it is too short."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import methods, tree, wire
from jaxfl.data import conditions
from jaxfl.testing.small import federation, full_cohort, linear_task
from jaxfl.wire.canaries import canary_sends, canary_vector
from jaxfl.wire.wired import attacked
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=2)

NORM, CANARIES = 3.0, (0, 3, 4)


@pytest.fixture(scope="module")
def canaries():
    """The small federation, three of whose clients are canaries; the coins of key 0 differ."""
    data = conditions.attack(federation(), "canary", CANARIES, scale=NORM)
    sends = [bool(canary_sends(jax.random.key(0), jnp.int32(client))) for client in CANARIES]
    assert 0 < sum(sends) < 3
    return data, dict(zip(CANARIES, sends, strict=True))


@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_round_is_that_of_the_honest_and_of_known_vectors(canaries, clip):
    """FedAvg, all rows in one step: the mean of the models of honest clients, and of the starts plus the vectors."""
    data, sends = canaries
    key, cohort = jax.random.key(0), full_cohort()
    plain = methods.fedavg(linear_task(), optax.sgd(0.3), weighting="uniform")
    method = plain if clip is None else wire.wired(plain, channel=wire.clip(clip))
    state = plain.init(key, data)
    found, info = jax.jit(attacked(method))(key, state, data, cohort)
    start = np.asarray(tree.ravel(state.model), np.float64)
    total, count = np.zeros_like(start), 0
    for client in range(data.num_clients):
        if data.train.size[client] == 0 or sends.get(client) is False:
            continue
        if client in sends:
            vector = np.asarray(canary_vector(key, jnp.int32(client), len(start)), np.float64)
            assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)
            change = NORM * vector
        else:
            alone = dataclasses.replace(cohort, mask=cohort.ids == client)
            one, _ = jax.jit(plain.round)(key, state, federation(), alone)
            change = np.asarray(tree.ravel(one.model), np.float64) - start
        length = np.linalg.norm(change)
        total += change * (1 if clip is None or length <= clip else clip / length)
        count += 1
    np.testing.assert_allclose(tree.ravel(found.model), start + total / count, rtol=1e-5, atol=1e-6)
    assert int(info.extra["smallest_sum"]) == count


def test_a_canary_without_its_coin_is_as_if_absent(canaries):
    data, sends = canaries
    key, cohort = jax.random.key(0), full_cohort()
    method = methods.ifca(linear_task(), optax.sgd(0.3), num_clusters=2)
    round, state = jax.jit(attacked(method)), method.init(key, data)
    silent = np.array([client for client, sends in sends.items() if not sends])
    there = cohort.mask & ~jnp.isin(cohort.ids, silent)
    one, other = (round(key, state, data, dataclasses.replace(cohort, mask=mask))[0] for mask in (cohort.mask, there))
    for leaf, same in zip(*(jax.tree.leaves(each.models) for each in (one, other)), strict=True):
        np.testing.assert_allclose(leaf, same, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_canaries_are_told_unless_they_whisper():
    """Of 48 canaries of long vectors all are right; of vectors far shorter than the updates about half are."""
    correct = {}
    for scale in (1.0, 1e-5):
        where = {"num_clients": 60, "rows_per_client": 20, "attack": "canary", "attackers": 0.8, "attack_scale": scale}
        data = jaxfl.data.load("rotated-digits", **where)
        task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
        method = methods.ifca(task, optax.sgd(0.05), num_clusters=2)
        result = jaxfl.run(method, data, rounds=3, cohort=60, seed=0, eval_every=3)
        found = jaxfl.audit_canaries(result, guesses=20)
        correct[scale] = found.correct
        assert found.epsilon == pytest.approx(jaxfl.epsilon_from_guesses(found.correct, 20, records=48))
        np.testing.assert_array_equal(found.client, np.flatnonzero(data.attack.attacker))
        sends = [bool(canary_sends(jax.random.key(0), client)) for client in found.client]
        np.testing.assert_array_equal(found.sent, sends)
        assert result.summary["attackers"] == 48
        order = np.argsort(-found.score)
        assert found.correct == found.sent[order[:10]].sum() + (~found.sent[order[-10:]]).sum()
    assert correct[1.0] == 20 and 4 <= correct[1e-5] <= 16


def test_a_canary_feeds_its_errors_back(canaries):
    """What it has sent and what it holds sum to its vector in each round; nothing of it without its coin."""
    data, sends = canaries
    key, cohort, link = jax.random.key(0), full_cohort(), wire.top_k(0.4)
    method = wire.wired(methods.fedavg(linear_task(), optax.sgd(0.3)), channel=link, error_feedback=True)
    state, round = method.init(key, data), jax.jit(method.round)
    held = dict.fromkeys(CANARIES, np.zeros(15, np.float32))
    for _ in range(3):
        state, _ = round(key, state, data, cohort)
        for client, sent in sends.items():
            message = held[client] + NORM * np.asarray(canary_vector(key, jnp.int32(client), 15))
            largest = np.argsort(-np.abs(message), kind="stable")[:6]
            held[client] = np.where(np.isin(np.arange(15), largest), 0, message) if sent else held[client]
            np.testing.assert_allclose(state.memory[1][0][client], held[client], rtol=1e-5, atol=1e-5)
            assert held[client].any() == sent


@pytest.mark.rotating
def test_an_audit_of_a_run_with_error_feedback():
    data = jaxfl.data.load("iid-digits", num_clients=20, rows_per_client=20, attack="canary", attackers=0.8)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    method = methods.fedavg(task, optax.sgd(0.05), local_epochs=1)
    method = wire.wired(method, channel=wire.top_k(0.1), error_feedback=True)
    result = jaxfl.run(method, data, rounds=2, cohort=20, seed=0, eval_every=2)
    found = jaxfl.audit_canaries(result, guesses=8)
    assert found.correct == 8 and 0 < found.sent.sum() < 16


@pytest.mark.slow
def test_noise_hides_canaries_and_the_bound_from_below_is_under_the_one_from_above():
    data = jaxfl.data.load("rotated-digits", num_clients=80, rows_per_client=20, attack="canary", attackers=0.8)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    plain, found = methods.ifca(task, optax.sgd(0.05), num_clusters=2), []
    for noise in (0.25, 20.0):
        method = jaxfl.wired(plain, privacy=jaxfl.Privacy(clip=1.0, noise=noise))
        result = jaxfl.run(method, data, rounds=8, cohort=0.9, seed=0, eval_every=8)
        audit = jaxfl.audit_canaries(result, guesses=40, delta=result.summary["delta"])
        assert audit.epsilon <= result.summary["epsilon"]
        found.append(audit.correct)
    assert found[0] >= 36 and 10 <= found[1] <= 30


def test_refusals(canaries):
    data, _ = canaries
    key = jax.random.key(0)
    for name in ("scaffold", "fedsgd", "fedper", "fedem"):  # a control, a gradient, a part of the model, several models
        method = getattr(methods, name)(linear_task(), optax.sgd(0.1))
        with pytest.raises(ValueError, match=mentions("attack=canary", "fedavg")):
            jax.eval_shape(attacked(method), key, jax.eval_shape(method.init, key, data), data, full_cohort())
    with pytest.raises(ValueError, match=mentions("attack", "local", "canary")):
        jaxfl.run_named("local", "rotated-digits", rounds=1, cohort=4, attack="canary", attackers=0.5)
    result = jaxfl.run(methods.fedavg(linear_task(), optax.sgd(0.1)), federation(), rounds=1, seed=0)
    with pytest.raises(ValueError, match=mentions("result", "attack=canary")):
        jaxfl.audit_canaries(result)
    with pytest.raises(ValueError, match=mentions("guesses", 3, 4)):
        jaxfl.audit_canaries(result._replace(data=data), guesses=4)
    with pytest.raises(ValueError, match=mentions("result", "method")):
        jaxfl.audit_canaries(result._replace(method=None))
