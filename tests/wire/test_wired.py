"""Wired methods: laws of all methods, loops in float64, and what is refused."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import methods, tree
from jaxfl.cohort import Plan
from jaxfl.data import conditions
from jaxfl.methods import METHODS, Row
from jaxfl.methods.base import Method
from jaxfl.random import Stream, key_for
from jaxfl.server import aggregate
from jaxfl.simulation.footprint import footprint
from jaxfl.testing import CHECKS
from jaxfl.testing.small import case_options, federation, full_cohort, linear_task, small_cohort
from jaxfl.wire import Transform, bfloat16, chain, clip, krum, median, qsgd, random_k, sign, top_k, trimmed_mean, wired
from jaxfl.wire.wired import send
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled

pytestmark = pytest.mark.rotating("function", weeks=3)

WIRED = [name for name, row in METHODS.items() if not row.no_wire]
# The part of the state that is the sum's result, where it has another name than the first of these that there is.
FIELDS = ("model", "models", "centres", "base", "learners", "body")
SHARED = {"ditto": lambda state: state.solver.model, "stocfl": lambda state: state.models}


def shared_part(name, state):
    found = SHARED.get(name) or (lambda state: next(getattr(state, name) for name in FIELDS if hasattr(state, name)))
    return jax.tree.map(np.asarray, found(state))


@functools.cache
def scaled(name):
    """Returns `(factor, start, key, data, cohort) -> (state, info)`, a round with every update multiplied by a factor.

    The code has half of the bits.
    """
    row = METHODS[name]
    method = row.factory(linear_task(), optax.sgd(0.3), **case_options(row))

    def round(factor, state, key, data, cohort):
        link = Transform(lambda key, v: factor * v, lambda size: size._replace(bits=16))
        return wired(method, channel=link).round(key, state, data, cohort)

    return jax.jit(method.init), jax.jit(round), method


@pytest.mark.quick
@pytest.mark.rotating(weeks=24)
@pytest.mark.parametrize("name", WIRED)
def test_the_wire_has_the_update_of_every_method(name, key):
    """Without updates the server's models stay, which finds a missing `start`; with all of them nothing changes."""
    init, round, method = scaled(name)
    data, cohort = federation(), full_cohort()
    state = init(key, data)
    plain_state, plain = jax.jit(method.round)(key, state, data, cohort)
    same, info = round(jnp.float32(1), state, key, data, cohort)
    still, _ = round(jnp.float32(0), state, key, data, cohort)
    before, after, moved = (shared_part(name, each) for each in (state, still, plain_state))
    for one, other in zip(jax.tree.leaves(shared_part(name, same)), jax.tree.leaves(moved), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)  # of (v - s) + s
    if name == "fedsoft":  # a mean of models that were each pulled to a mixture of centres
        return
    if name == "stocfl":  # a new cluster's slot holds the initial model
        rows = np.asarray(still.cluster)
        before = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (len(rows), *leaf.shape)), state.initial)
        after, moved = (jax.tree.map(lambda leaf: leaf[rows], part) for part in (after, moved))

    def distance(one, other):
        return max(np.abs(a - b).max() for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))

    assert distance(before, after) < 1e-6 < 1e-3 < distance(before, moved)
    assert 0 < float(info.bytes_up) < float(plain.bytes_up)
    assert float(info.bytes_down) == float(plain.bytes_down)


def test_no_channel_is_the_method_itself():
    method = methods.fedavg(linear_task(), optax.sgd(0.1))
    assert wired(method) is method
    assert aggregate.contribute(jnp.ones(2), jnp.float32(1), start=jnp.ones(2)).start is None


class FedSGD(reference.FedSGD):
    """A gradient is an update already."""

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        slopes = [reference.gradient(self.model, *self.setting.clients[i])[1] for i in cohort]
        sent = [self.link(self.setting, number, i, slope) for i, slope in zip(cohort, slopes, strict=True)]
        step = reference.average(sent, reference.weights(self.setting, cohort))
        self.model = reference.combine([(1, self.model), (-self.setting.rate, step)])


class FedDist(reference.FedProx):
    def round(self, number, cohort):
        before = self.model
        super().round(number, cohort)
        self.model = reference.combine([(0.7, before), (0.3, self.model)])


# Methods that contribute what the reference trains, and FedSGD.
LOOPS = {
    "fedavg": (methods.fedavg, {"local_epochs": 2}, reference.FedProx, "rows", ()),
    "fedprox": (methods.fedprox, {"batch_size": 3, "proximal_weight": 0.7}, reference.FedProx, "rows", (0.7,)),
    "feddist": (methods.feddist, {"local_epochs": 2, "step_size": 0.3}, FedDist, "uniform", ()),
    "ifca": (methods.ifca, {"local_epochs": 2, "num_clusters": 3}, reference.IFCA, "uniform", ("models",)),
    "fedsgd": (methods.fedsgd, {}, FedSGD, "rows", ()),
}


def norm(v):
    return np.sqrt(np.square(v).sum())


def first_of(order, count):
    chosen = np.zeros(len(order), bool)
    chosen[order[:count]] = True
    return chosen


def qsgd_loop(key, v, levels=7):
    level = np.abs(v) / norm(v) * levels
    up = np.asarray(jax.random.uniform(key, v.shape, v.dtype)) < level - np.floor(level)
    return np.sign(v) * norm(v) * (np.floor(level) + up) / levels


LINKS = {
    "clip": (clip(0.1), lambda key, v: v * min(1, 0.1 / norm(v))),
    "topk": (top_k(0.4), lambda key, v: np.where(first_of(np.argsort(-np.abs(v), kind="stable"), 4), v, 0)),
    "randk": (
        random_k(0.4),
        lambda key, v: np.where(
            first_of(np.argsort(-np.asarray(jax.random.uniform(key, v.shape)), kind="stable"), 4), v * 8 / 4, 0
        ),
    ),
    "sign": (sign(), lambda key, v: np.abs(v).mean() * np.sign(v)),
    "qsgd": (qsgd(4), qsgd_loop),
    "bfloat16": (bfloat16(), lambda key, v: v.astype(jnp.bfloat16).astype(v.dtype)),
}


def sent_update(link, setting, number, client, update):
    """Returns a client's update as the server receives it; the leaves are in the order of their names."""
    key = key_for(key_for(setting.root, Stream.WIRE, number), Stream.WIRE, 0, client)
    names = sorted(update)
    vector = link(jax.random.fold_in(key, 0), np.concatenate([update[name].ravel() for name in names]))
    parts = np.split(vector, np.cumsum([update[name].size for name in names])[:-1])
    return {name: part.reshape(update[name].shape) for name, part in zip(names, parts, strict=True)}


@pytest.mark.rotating(weeks=16)
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("name", LOOPS)
def test_every_round_is_the_loop_with_the_link(name, link, key, monkeypatch):
    factory, options, loop, weighting, arguments = LOOPS[name]
    change, formula = LINKS[link]
    train = reference.train

    def sent_model(setting, number, client, model, **pull):
        trained, loss = train(setting, number, client, model, **pull)
        update = reference.combine([(1, trained), (-1, model)])
        return reference.combine([(1, model), (1, sent_update(formula, setting, number, client, update))]), loss

    with jax.enable_x64(True):
        data = problems.linear_federation()
        task = problems.softmax_task()
        method = compiled(wired(factory(task, optax.sgd(0.4), **options), channel=chain(change)))
        state = method.init(key, data)
        clients = problems.rows_of(data)
        setting = reference.Setting(
            key, clients, 0.4, options.get("local_epochs", 5), options.get("batch_size"), weighting
        )
        start = jax.tree.map(np.asarray, state.models if name.startswith("ifca") else state.model)
        if name.startswith("ifca"):
            start = [tree.take(start, k) for k in range(options["num_clusters"])]
        wanted = loop(setting, start, *arguments)
        wanted.link = functools.partial(sent_update, formula)
        monkeypatch.setattr(reference, "train", sent_model)
        reference.follow(method, wanted, data, key, rounds=3, cohort=4)


@pytest.mark.rotating
@pytest.mark.parametrize("name", ["scaffold", "ifca"])
def test_the_mean_of_what_is_collected_is_the_streamed_mean(name, key):
    """Where members count alike, and the weights and controls of the method go on."""
    row = METHODS[name]
    method = row.factory(linear_task(), optax.sgd(0.3), **{**case_options(row), "weighting": "uniform"})
    data, cohort = federation(), full_cohort()
    state = method.init(key, data)
    wanted, plain = jax.jit(method.round)(key, state, data, cohort)
    found, info = jax.jit(wired(method, aggregator=trimmed_mean(0.0)).round)(key, state, data, cohort)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, wanted)
    assert info.bytes_up == plain.bytes_up


@pytest.mark.rotating
@pytest.mark.parametrize("name", WIRED)
def test_every_round_tells_its_smallest_sum(name, key):
    """Traced, and not compiled: a pass inside a branch or a loop would fail."""
    row = METHODS[name]
    method = row.factory(linear_task(), optax.sgd(0.3), **case_options(row))
    state = jax.eval_shape(method.init, key, federation())
    _, info = jax.eval_shape(wired(method, min_sum=2).round, key, state, federation(), full_cohort())
    assert (info.extra["smallest_sum"].shape, info.extra["smallest_sum"].dtype) == ((), jnp.int32)


PARTS = {
    "clip": {"channel": clip(0.5)},
    "topk": {"channel": top_k(0.1)},
    "qsgd": {"channel": qsgd(8)},
    "median": {"aggregator": median()},
    "krum": {"aggregator": krum(0.2)},
    "privacy": {"privacy": jaxfl.Privacy(clip=0.5, noise=1.0)},
}


@pytest.mark.rotating(weeks=16)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_a_wire_or_refuses_it_as_its_row_says(name, key):
    """Traced, and not compiled."""
    row = METHODS[name]
    noiseless = {"fedem": {"mean_over": "cohort"}, "feddbe": {"mean_pull": 0.0}}  # what else is released has none
    options = {**case_options(row), **noiseless.get(name, {})}
    method, data = row.factory(linear_task(), optax.sgd(0.3), **options), federation()
    state, refused = jax.eval_shape(method.init, key, data), set()
    for part, wire in PARTS.items():
        try:
            jax.eval_shape(wired(method, **wire).round, key, state, data, full_cohort())
        except ValueError:
            refused.add(part)
    collected = {"median", "krum"} if name == "fedsoft" else set()
    private = {"privacy"} if row.seen(options).level != "sums" or name == "fedsoft" else set()
    assert refused == (set(PARTS) if row.no_wire else collected | private)


def test_sums_of_few_clients_are_dropped(key):
    data, cohort = federation(), small_cohort((0, 2, 3, 4, 6))  # all but client 3 are of one group
    method = methods.ifca(linear_task(), optax.sgd(0.3), num_clusters=2, local_epochs=1)
    state = method.init(key, data)
    for _ in range(2):
        state, _ = jax.jit(method.round)(key, state, data, full_cohort())
    wanted, _ = jax.jit(method.round)(key, state, data, cohort)
    found, info = jax.jit(wired(method, min_sum=2).round)(key, state, data, cohort)
    kept, trained = np.asarray(info.cluster)[[2, 0]]
    assert int(info.extra["smallest_sum"]) == 1 and kept != trained
    for after, before, plain in zip(*map(jax.tree.leaves, (found.models, state.models, wanted.models)), strict=True):
        np.testing.assert_array_equal(after[kept], before[kept])
        np.testing.assert_allclose(after[trained], plain[trained], rtol=1e-6)
        assert (after[trained] != before[trained]).any() and (plain[kept] != before[kept]).any()


@pytest.mark.rotating
@pytest.mark.parametrize("aggregator", [median(), krum(0.2)], ids=["median", "krum"])
def test_no_device_has_the_whole_stack(aggregator, key):
    """Of 8 clients and 15 numbers each of two devices has 8 of them, padded."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("clients",))
    method = wired(methods.fedavg(linear_task(), optax.sgd(0.3)), aggregator=aggregator)
    data, cohort = federation().on_device(mesh), dataclasses.replace(full_cohort(), plan=Plan(chunk=1, mesh=mesh))
    round = jax.jit(lambda key, state, data: method.round(key, state, data, cohort))
    program = round.lower(key, method.init(key, data), data).compile().as_text()
    assert "f32[8,8]" in program and "f32[8,15]" not in program and "f32[8,16]" not in program


def test_memory_of_the_stack_is_planned():
    data = jaxfl.data.load("rotated-digits", num_clients=160, rows_per_client=5)
    method = methods.fedavg(jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data), optax.sgd(0.1))
    plain, stacked = (footprint(one, data, plan=Plan(chunk=1)) for one in (method, wired(method, aggregator=median())))
    assert plain.working < 160 * plain.model < stacked.working


def test_a_median_is_not_moved_by_attackers(key):
    data, cohort = federation(), full_cohort()
    method = wired(methods.fedavg(linear_task(), optax.sgd(0.3)), aggregator=median())
    state = method.init(key, data)
    honest, _ = jax.jit(method.round)(key, state, data, cohort)
    attacked, _ = jax.jit(method.round)(key, state, conditions.attack(data, "sign-flip", 0.15, scale=1e12), cohort)
    assert np.abs(attacked.model["kernel"] - honest.model["kernel"]).max() < 0.5


def wired_factory(name, channel=None, aggregator=None, error_feedback=False):
    def factory(task, optimizer, *, local_epochs: int = 2, batch_size: int | None = 4) -> Method:
        own = METHODS[name].small
        return wired(
            METHODS[name].factory(task, optimizer, local_epochs=local_epochs, batch_size=batch_size, **own),
            channel=channel,
            error_feedback=error_feedback,
            aggregator=aggregator,
        )

    return factory


# Links that draw random numbers, and one that keeps nothing of the order of clients.
FACTORIES = {
    "ifca": Row(wired_factory("ifca", chain(qsgd(6), clip(0.5))), "", ""),
    "ditto": Row(wired_factory("ditto", random_k(0.5)), "", ""),
    "scaffold": Row(wired_factory("scaffold", chain(top_k(0.5), qsgd(8))), "", ""),
    "ditto-memory": Row(wired_factory("ditto", chain(top_k(0.5), clip(0.5)), error_feedback=True), "", ""),
    "stocfl-memory": Row(wired_factory("stocfl", sign(), error_feedback=True), "", ""),
    "ifca-median": Row(wired_factory("ifca", aggregator=median()), "", ""),
    "fedper-krum": Row(wired_factory("fedper", clip(0.5), krum(0.2)), "", ""),
}


@pytest.mark.rotating(weeks=24)
@pytest.mark.parametrize(
    "law", ["chunks", "devices", "padding rows", "cohort order", "cuts", "sick client", "rows per client"]
)
@pytest.mark.parametrize("name", FACTORIES)
def test_a_wired_method_passes_the_battery(name, law):
    if reason := CHECKS[law](FACTORIES[name]):
        pytest.skip(reason)


@pytest.mark.parametrize("link", [random_k(0.1), clip(1.0), qsgd(8)])
def test_what_is_not_finite_stays_and_is_dropped(link, key):
    values = {"w": jnp.array([1.0, jnp.nan, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0])}
    one = aggregate.Contribution(values, jnp.float32(1), jnp.int32(0), 1, jax.tree.map(jnp.zeros_like, values))
    (sent,), _ = send(link, key, [one])
    assert int(aggregate.guarded(sent, jnp.array(True))[1]) == 1


def test_contributions_of_a_pass_are_one_message(key):
    """Of a part that is an update itself the start is None."""
    model = {"w": jnp.array([1.0, 2.0])}
    one = aggregate.Contribution(
        (model, {"w": jnp.array([4.0, 0.0])}), jnp.float32(1), jnp.int32(0), 1, ({"w": jnp.array([1.0, -1.0])}, None)
    )
    (sent,), _ = send(clip(2.5), key, [one])  # of (0, 3, 4, 0)
    np.testing.assert_allclose(sent.values[0]["w"], [1, 0.5], rtol=1e-6)
    np.testing.assert_allclose(sent.values[1]["w"], [2, 0], rtol=1e-6)


REFUSED = {
    **{
        name: (METHODS[name].factory, METHODS[name].small, ("wired",))
        for name in ("local", "fedamp", "pfedgraph", "robust")
    },
    **{
        name: (METHODS[name].factory, METHODS[name].small, ("wire", name))
        for name in ("fednova", "fedpac", "fedccfa", "fedproto", "lg_fedavg")
    },
    "fedavg": (methods.fedavg, {"update": "chain"}, ("update", "chain", "parallel")),
    "stocfl": (METHODS["stocfl"].factory, {"update": "chain"}, ("update", "chain")),
    "feddbe": (methods.feddbe, {"start": "cohort"}, ("start", "cohort", "everybody")),
    "feddyn": (methods.feddyn, {"preset": "official"}, ("served", "everybody", "sent")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_wire_cannot_change_is_refused_before_compilation(name, key):
    factory, options, words = REFUSED[name]
    method = wired(factory(linear_task(), optax.sgd(0.3), **options), channel=sign())
    data = federation()
    state = jax.eval_shape(method.init, key, data)
    with pytest.raises(ValueError, match=mentions(*words)):
        jax.eval_shape(method.round, key, state, data, full_cohort())


def test_a_wired_method_is_not_wired_again(key):
    method = wired(wired(methods.fedavg(linear_task(), optax.sgd(0.3)), channel=sign()), channel=clip(1.0))
    data = federation()
    with pytest.raises(ValueError, match=mentions("jaxfl.wire.chain")):
        jax.eval_shape(method.round, key, jax.eval_shape(method.init, key, data), data, full_cohort())
    fedsoft = wired(methods.fedsoft(linear_task(), optax.sgd(0.3)), aggregator=median())
    with pytest.raises(ValueError, match=mentions("aggregator", "fedsoft")):
        jax.eval_shape(fedsoft.round, key, jax.eval_shape(fedsoft.init, key, data), data, full_cohort())
    with pytest.raises(ValueError, match=mentions("min_sum", 0)):
        wired(methods.fedavg(linear_task(), optax.sgd(0.3)), min_sum=0)
    too_many = wired(methods.fedavg(linear_task(), optax.sgd(0.3)), min_sum=9)
    with pytest.raises(ValueError, match=mentions("min_sum", 8, 9)):
        jax.eval_shape(too_many.round, key, jax.eval_shape(too_many.init, key, data), data, full_cohort())
    with pytest.raises(TypeError, match=mentions("channel", "sign")):
        wired(methods.fedavg(linear_task(), optax.sgd(0.3)), channel="sign")
