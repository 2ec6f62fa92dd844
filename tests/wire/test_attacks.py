"""Colluding attacks: reference values, loops in float64, what the wire does with them, and what they do."""

import dataclasses
import statistics

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import methods
from jaxfl.cli.tables.runs import results_table
from jaxfl.cohort import Plan
from jaxfl.data import conditions
from jaxfl.data.clients import Attack
from jaxfl.methods import METHODS, Row
from jaxfl.methods.base import Method
from jaxfl.testing import CHECKS
from jaxfl.testing.small import case_options, federation, full_cohort, linear_task
from jaxfl.wire import bfloat16, clip, geometric_median, median, multi_krum, norm_bound, random_k, trimmed_mean, wired
from jaxfl.wire.attacks import FORGERIES, Collusion, collusion_of
from jaxfl.wire.wired import attacked
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled

pytestmark = pytest.mark.rotating("function", weeks=3)

POINTS = [(1, 2), (2, 1), (3, 3), (2, 2), (50, -40), (1.5, 2.5), (10, 10), (11, 9), (12, 14), (99, 99)]
LABELS = [0, 0, 0, 0, 0, 0, 1, 1, 1, -1]


def forged(kind, points, labels, attackers, scale=1.0, count=2, ids=None):
    points = jnp.asarray(points, jnp.float32)
    ids = np.arange(len(points)) if ids is None else ids
    collusion = Collusion(kind, jnp.isin(jnp.arange(len(points)), jnp.asarray(attackers)), jnp.float32(scale))
    sent, who = collusion.forge(points, jnp.asarray(labels, jnp.int32), jnp.asarray(ids, jnp.int32), count)
    honest = ~np.isin(ids, attackers)
    np.testing.assert_array_equal(sent[honest], points[honest])
    assert not who[honest].any()
    return np.asarray(sent)


@pytest.mark.parametrize(
    ("kind", "scale", "wanted"),
    [
        ("alie", 1.0, (1.9, 2.1)),  # z of 6 members with one attacker is below 0
        ("ipm", 0.5, (-0.95, -1.05)),
        ("mimic", 1.0, (1, 2)),
        ("same", 7.0, (7, 7)),
        # D^2 = 5 of (2, 1) and (3, 3); s^2 = 0.44 in both places, and (3, 3) is reached first, at (1.1, 0.9) from m
        ("minmax", 1.0, np.array([1.9, 2.1]) - (np.sqrt(1 + 2.98 / 2) - 1)),
        ("replace", 1.0, (300, -240)),
    ],
)
def test_reference_values(kind, scale, wanted):
    sent = forged(kind, POINTS, LABELS, [4, 9], scale)
    np.testing.assert_allclose(sent[4], wanted, rtol=3e-6)
    np.testing.assert_array_equal(sent[9], POINTS[9])  # it is in no sum


def test_alie_goes_as_far_as_the_nearest_honest_ones_allow():
    """Of 10 members 4 attack: 2 more are needed for a majority, and z is the quantile of 4 of 6."""
    sent = forged("alie", [(-1.0,), (1.0,)] * 3 + [(9.0,)] * 4, [0] * 10, [6, 7, 8, 9], 2.0, 1)
    np.testing.assert_allclose(sent[6:], -2 * statistics.NormalDist().inv_cdf(4 / 6), rtol=1e-5)


def test_there_is_nothing_to_forge_without_honest_members_or_of_infinite_numbers():
    for kind in FORGERIES:
        np.testing.assert_array_equal(forged(kind, POINTS, LABELS, [6, 7, 8]), np.float32(POINTS))
    np.testing.assert_array_equal(forged("ipm", [(1e38,), (1e38,), (3,)], [0] * 3, [2], 1e30, 1)[2], 3)


@pytest.mark.parametrize("kind", conditions.COLLUDING)
def test_order_and_units_change_nothing(kind, key):
    points, labels = np.asarray(jax.random.normal(key, (12, 5))), np.array([0, 1, 1, 0, 1, -1, 2, 1, 0, 1, 0, 0])
    attackers = [0, 2, 7]
    found = forged(kind, points, labels, attackers, count=3)
    scaled = 1.0 if kind != "same" else 8.0
    np.testing.assert_allclose(forged(kind, 8 * points, labels, attackers, scaled, 3), 8 * found, rtol=1e-5)
    order = np.random.default_rng(0).permutation(12)
    moved = forged(kind, points[order], labels[order], attackers, count=3, ids=order)
    np.testing.assert_allclose(moved, found[order], rtol=1e-5, atol=1e-6)


def bisected(function, low=0.0, high=1e6):
    """Returns the largest number at which a function that rises is not above 0."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) <= 0 else (low, middle)
    return low


def forge(kind, scale, updates, attackers):
    """Returns the vectors by client, those of attackers forged, as `jaxfl.wire.attacks` says it."""
    honest = [updates[i] for i in sorted(updates) if i not in attackers]
    hostile = [i for i in updates if i in attackers]
    if not honest or not hostile:
        return updates
    n, f, mean, deviation = len(updates), len(hostile), np.mean(honest, 0), np.std(honest, 0)
    if kind == "alie":
        share = (n - f - max(n // 2 + 1 - f, 1)) / (n - f)
        z = max(statistics.NormalDist().inv_cdf(share), 0) if 0 < share < 1 else 0
        sent = mean - scale * z * deviation
    elif kind == "ipm":
        sent = -scale * mean
    elif kind == "mimic":
        sent = scale * honest[0]
    elif kind == "same":
        sent = np.full_like(mean, scale)
    elif kind == "minmax":
        widest = max(np.linalg.norm(a - b) for a in honest for b in honest)
        g = bisected(lambda g: max(np.linalg.norm(mean - g * deviation - x) for x in honest) - widest)
        sent = mean - scale * g * deviation if len(honest) > 1 else mean
    return updates | {i: scale * n / f * updates[i] if kind == "replace" else sent for i in hostile}


class Attacked:
    """What a loop needs to have its clients' updates attacked, cluster by cluster."""

    kind, scale, attackers = "", 1.0, ()

    def sent(self, number, members, start):
        trained = {i: reference.train(self.setting, number, i, start)[0] for i in members}
        names = sorted(start)
        flat = {
            i: np.concatenate([(model[name] - start[name]).ravel() for name in names]) for i, model in trained.items()
        }
        flat = forge(self.kind, self.scale, flat, self.attackers)
        cuts = np.cumsum([start[name].size for name in names])[:-1]
        return [
            {
                name: start[name] + part.reshape(start[name].shape)
                for name, part in zip(names, np.split(v, cuts), strict=True)
            }
            for v in flat.values()
        ]


class FedAvg(Attacked, reference.FedProx):
    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        self.model = reference.average(self.sent(number, cohort, self.model), reference.weights(self.setting, cohort))


class IFCA(Attacked, reference.IFCA):
    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        for i in cohort:
            losses = [reference.gradient(model, *self.setting.clients[i])[0] for model in self.models]
            self.cluster[i] = int(np.argmin(losses))
        for k, model in enumerate(self.models):
            if members := [i for i in cohort if self.cluster[i] == k]:
                sent = self.sent(number, members, model)
                self.models[k] = reference.average(sent, reference.weights(self.setting, members))


def rows_with_backdoor(data, kind, attackers):
    """Returns each client's rows (x, y): with model replacement every second one of an attacker has a trigger."""
    rows = problems.rows_of(data)
    for client in attackers if kind == "replace" else ():
        x, y = (part.copy() for part in rows[client])
        x[::2, -1], y[::2] = np.asarray(data.inputs).max(), 0  # a sixteenth of few features is one
        rows[client] = x, y
    return rows


SCALES = {"alie": 1.5, "ipm": 0.7, "same": 0.05, "replace": 0.9}


@pytest.mark.rotating(weeks=4)
@pytest.mark.parametrize("kind", conditions.COLLUDING)
@pytest.mark.parametrize("name", ["fedavg", "ifca"])
def test_every_round_is_the_loop_with_the_attack(name, kind, key):
    scale, clusters = SCALES.get(kind, 1.0), 2
    with jax.enable_x64(True):
        data = problems.linear_federation((5, 0, 3, 8, 1, 6, 4, 2, 3), (0, 0, 1, 1, 0, 1, 0, 0, 0))
        data = conditions.attack(data, kind, (2, 6, 8), scale=scale)
        options = {"num_clusters": clusters} if name == "ifca" else {}
        method = METHODS[name].factory(problems.softmax_task(), optax.sgd(0.4), local_epochs=2, **options)
        method = compiled(method._replace(round=attacked(method)))
        state = method.init(key, data)
        weighting = "rows" if name == "fedavg" else "uniform"
        setting = reference.Setting(key, rows_with_backdoor(data, kind, (2, 6, 8)), 0.4, 2, None, weighting)
        start = jax.tree.map(np.asarray, state.models if name == "ifca" else state.model)
        if name == "ifca":
            loop = IFCA(setting, [jax.tree.map(lambda leaf, k=k: leaf[k], start) for k in range(clusters)], "models")
        else:
            loop = FedAvg(setting, start)
        loop.kind, loop.scale, loop.attackers = kind, float(np.float32(scale)), (2, 6, 8)
        reference.follow(method, loop, data, key, rounds=3, cohort=7)


def attacked_factory(name, kind, channel=None, aggregator=None):
    """Returns a factory of a method whose clients 2 and 6 attack."""
    attacker = np.isin(np.arange(8), (2, 6))

    def factory(task, optimizer, *, local_epochs: int = 2, batch_size: int | None = 4) -> Method:
        own = METHODS[name].small
        method = METHODS[name].factory(task, optimizer, local_epochs=local_epochs, batch_size=batch_size, **own)
        method = wired(method, channel=channel, aggregator=aggregator)
        inner = attacked(method)

        def round(key, state, data, cohort):
            planned = Attack(jnp.asarray(attacker), jnp.float32(1), kind)
            return inner(key, state, dataclasses.replace(data, attack=planned), cohort)

        return method._replace(round=round)

    return factory


FACTORIES = {
    "ifca-minmax": Row(attacked_factory("ifca", "minmax"), "", ""),
    "scaffold-alie": Row(attacked_factory("scaffold", "alie", clip(0.5)), "", ""),
    "fedavg-mimic": Row(attacked_factory("fedavg", "mimic", None, median()), "", ""),
    "ditto-replace": Row(attacked_factory("ditto", "replace", bfloat16()), "", ""),
}


@pytest.mark.rotating(weeks=16)
@pytest.mark.parametrize("law", ["chunks", "devices", "padding rows", "cohort order", "cuts", "sick client"])
@pytest.mark.parametrize("name", FACTORIES)
def test_an_attacked_method_passes_the_battery(name, law):
    if reason := CHECKS[law](FACTORIES[name]):
        pytest.skip(reason)


def flat(model):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(model)])


def moves(kind, scale, make, **options):
    """Returns `(number, attackers) -> how far a round of FedAvg on the wire `make(number)` moves the model`."""
    method = methods.fedavg(linear_task(), optax.sgd(0.3), weighting="uniform", **options)
    key, data = jax.random.key(0), federation(1)
    state = method.init(key, data)

    @jax.jit  # one program for all numbers and attackers
    def round(number, attacker, state, data):
        data = dataclasses.replace(data, attack=Attack(attacker, jnp.float32(scale), kind))
        return wired(method, **make(number)).round(key, state, data, full_cohort())[0].model

    def moved(number, attackers):
        return flat(round(number, np.isin(np.arange(8), attackers), state, data)) - flat(state.model)

    return moved


@pytest.mark.rotating
@pytest.mark.parametrize("kind", ["same", "replace"])
def test_what_attackers_send_is_never_longer_than_the_clip(kind):
    moved = moves(kind, 1e12, lambda norm: {"channel": clip(norm)})
    assert np.linalg.norm(moved(np.float32(0.01), (2, 6))) <= 0.01 * (1 + 1e-5)
    assert np.linalg.norm(moved(np.float32(1e30), (2, 6))) > 1e6


@pytest.mark.rotating
@pytest.mark.parametrize("kind", ["sign-flip", "gaussian", "same"])
def test_the_step_under_a_norm_bound_is_at_most_the_bound(kind):
    """Whatever attackers send, also where the channel makes it longer."""
    link = random_k(0.5)
    moved = moves(kind, 1e12, lambda number: {"channel": link, "aggregator": norm_bound(0.01)}, batch_size=4)
    assert 0 < np.linalg.norm(moved(0, (2, 6))) <= 0.01 * (1 + 1e-5)


ROBUST = (trimmed_mean(0.0), median(), trimmed_mean(0.3), multi_krum(0.3), geometric_median())


@pytest.mark.rotating
@pytest.mark.parametrize("kind", ["ipm", "same", "replace"])
def test_robust_aggregates_hold_where_the_mean_fails(kind):
    """Two of eight clients attack: aggregates are nearer to the honest mean than that is to the start."""

    def chosen(number):
        return {"aggregator": lambda *stack: jax.lax.switch(number, [lambda a=a: a(*stack) for a in ROBUST])}

    moved = moves(kind, 20.0, chosen, local_epochs=1)
    wanted = moved(0, ())
    away = [np.linalg.norm(moved(number, (2, 6)) - wanted) / np.linalg.norm(wanted) for number in range(len(ROBUST))]
    assert away[0] > 5 and max(away[1:]) < 1, away


def test_a_run_is_wired_by_its_attackers(tmp_path):
    given = {"num_clients": 8, "rows_per_client": 20, "model": "logistic", "rounds": 2, "cohort": 4}
    given |= {"attack": "same", "attackers": "group:1", "attack_scale": 1e6}
    found = jaxfl.run_named("fedavg", "rotated-digits", **given, out=tmp_path)
    assert found.history.column("smallest_sum") == [4, 4]
    assert np.abs(found.state.model["Dense_0"]["kernel"]).max() > 1e3
    assert found.summary["attackers"] == 2
    assert jaxfl.load(tmp_path).summary["options"]["data.attackers"] == "group:1"


@pytest.mark.rotating
@pytest.mark.parametrize("kind", conditions.BACKDOORS)
def test_a_backdoor_succeeds_on_the_rows_of_honest_clients(kind):
    """The rate is counted once more by hand, and a drift after the last round but one changes nothing of that."""
    given = {"num_clients": 8, "rows_per_client": 20, "model": "logistic", "rounds": 6, "cohort": 8, "eval_every": 6}
    given |= {"drift": "rotate", "drift_round": 5, "attack_target": 4}
    result = jaxfl.run_named("fedavg", "rotated-digits", **given, attack=kind, attackers=0.25, learning_rate=0.3)
    data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20, drift="rotate", drift_round=5).at(6)
    dense, hits = jax.tree.map(np.asarray, result.state.model["Dense_0"]), []
    attackers = conditions.attack(data, kind, 0.25).attack.attacker
    for client in np.flatnonzero(~attackers):
        batch = data.batch(data.test, client, np.arange(data.test.size[client]))
        x = np.array(batch.x)[np.asarray(batch.y) != 4]
        x[:, -2:, -2:] = (255 - np.asarray(data.mean).item()) / np.asarray(data.std).item()
        hits.append((x.reshape(len(x), -1) @ dense["kernel"] + dense["bias"]).argmax(1) == 4)
    rate = np.concatenate(hits).mean()
    assert rate > 0.5
    np.testing.assert_allclose(result.summary["attack_success_rate"], rate, atol=1e-3)
    assert result.history.column("attack_success_rate")[-1] == result.summary["attack_success_rate"]
    _, head, (cells,), _ = results_table([result.summary | {"attack_success_rate": 0.0}], None)
    assert dict(zip(head, cells, strict=True))["attack success"] == "0.0000" and "diverged" not in head


@pytest.mark.rotating
@pytest.mark.parametrize("name", [name for name, row in METHODS.items() if not row.no_wire])
def test_every_method_with_a_wire_is_attacked_or_says_why_not(name, key):
    """Traced, and not compiled; on two devices, whose part of the updates is padded."""
    row = METHODS[name]
    method = row.factory(linear_task(), optax.sgd(0.3), **case_options(row))
    data = conditions.attack(federation(), "minmax", (2, 6))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("clients",))
    cohort = dataclasses.replace(full_cohort(), plan=Plan(chunk=1, mesh=mesh))
    state = jax.eval_shape(method.init, key, data)
    if name == "fedsoft":
        with pytest.raises(ValueError, match=mentions("attack", name)):
            jax.eval_shape(attacked(method), key, state, data, cohort)
        return
    after, info = jax.eval_shape(attacked(method), key, state, data, cohort)
    assert info.extra["smallest_sum"].dtype == jnp.int32
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), after) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), state
    )


@pytest.mark.parametrize("name", ["local", "fedamp", "pfedgraph", "robust", "fednova", "lg_fedavg"])
def test_methods_without_a_wire_refuse(name, key):
    with pytest.raises(ValueError, match=mentions("attack", name, "alie", "sign-flip")):
        jaxfl.settings.options.route(name, "rotated-digits", ["attack=alie", "attackers=0.2"])
    data = conditions.attack(federation(), "alie", 0.3)
    method = METHODS[name].factory(linear_task(), optax.sgd(0.3), **METHODS[name].small)
    with pytest.raises(ValueError, match=mentions("attack=alie")):
        jax.eval_shape(attacked(method), key, jax.eval_shape(method.init, key, data), data, full_cohort())


def test_others_are_on_no_wire():
    assert set(FORGERIES) | {"replace"} == set(conditions.COLLUDING) < set(conditions.ATTACK_KINDS)
    assert collusion_of(conditions.attack(federation(), "sign-flip", 0.3)) is None
