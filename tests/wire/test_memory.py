"""Error feedback: loops in float64, what is sent and held, runs that go on, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import methods, tree
from jaxfl.methods import METHODS
from jaxfl.server import aggregate
from jaxfl.settings import options
from jaxfl.testing.small import case_options, federation, full_cohort, linear_task
from jaxfl.wire import chain, clip, qsgd, random_k, sign, top_k, wired
from jaxfl.wire.wired import send
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled

pytestmark = pytest.mark.rotating("function", weeks=3)

LOOPS = {
    "fedavg": (methods.fedavg, {"local_epochs": 2}, reference.FedProx, "rows", ()),
    "ifca": (methods.ifca, {"local_epochs": 2, "num_clusters": 3}, reference.IFCA, "uniform", ("models",)),
}


def first_of(order, count):
    chosen = np.zeros(len(order), bool)
    chosen[order[:count]] = True
    return chosen


@pytest.mark.parametrize("name", LOOPS)
def test_every_round_is_the_loop_with_memory(name, key, monkeypatch):
    """Some clients wait for rounds, and one has no rows; a client that changes its cluster takes its memory along."""
    factory, given, loop, weighting, arguments = LOOPS[name]
    train = reference.train
    with jax.enable_x64(True):
        data, task = problems.linear_federation(), problems.softmax_task()
        held = np.zeros((data.num_clients, 8))

        def sent_model(setting, number, client, model, **pull):
            trained, loss = train(setting, number, client, model, **pull)
            wanted = np.concatenate([(trained[leaf] - model[leaf]).ravel() for leaf in ("bias", "kernel")])
            wanted = wanted + held[client]
            sent = np.where(first_of(np.argsort(-np.abs(wanted), kind="stable"), 4), wanted, 0)
            sent = sent * min(1, 0.5 / np.sqrt(np.square(sent).sum()))
            held[client] = wanted - sent
            parts = {"bias": sent[:2], "kernel": sent[2:].reshape(3, 2)}
            return reference.combine([(1, model), (1, parts)]), loss

        channel = chain(top_k(0.5), clip(0.5))  # of two classes both have one magnitude
        method = compiled(wired(factory(task, optax.sgd(0.4), **given), channel=channel, error_feedback=True))
        state = method.init(key, data)
        setting = reference.Setting(key, problems.rows_of(data), 0.4, 2, None, weighting)
        start = jax.tree.map(np.asarray, state.inner.models if name == "ifca" else state.inner.model)
        start = [tree.take(start, k) for k in range(3)] if name == "ifca" else start
        wanted = loop(setting, start, *arguments)
        monkeypatch.setattr(reference, "train", sent_model)
        state = reference.follow(method, wanted, data, key, rounds=6, cohort=4)
        np.testing.assert_allclose(state.memory[1][0], held, rtol=1e-9, atol=1e-12)
        assert (held != 0).any(1).sum() > 4 and not held[1].any()


@pytest.mark.parametrize("link", [top_k(0.2), sign(), qsgd(8), chain(top_k(0.4), qsgd(6), clip(0.1))])
def test_sent_and_held_sum_to_the_update_and_what_was_held(link, key):
    update, start, before = jax.random.normal(key, (3, 20))
    one = aggregate.Contribution({"w": start + update}, jnp.float32(2), jnp.int32(0), 1, {"w": start})
    (sent,), after = send(link, key, [one], before)
    np.testing.assert_allclose(sent.values["w"] - start + after, update + before, rtol=1e-5, atol=1e-5)
    whole = (one.values["w"] - start) + before
    np.testing.assert_array_equal(after, whole - link.change(key, whole))  # nothing is lost on the way to the memory
    for nothing in (
        aggregate.Contribution({"w": start + update}, jnp.float32(0), jnp.int32(0), 1, {"w": start}),  # no rows
        aggregate.Contribution({"w": start + update}, jnp.float32(1), jnp.int32(-1), 1, {"w": start}),  # no cluster
        aggregate.Contribution({"w": jnp.inf + update}, jnp.float32(1), jnp.int32(0), 1, {"w": start}),
    ):
        np.testing.assert_array_equal(send(link, key, [nothing], before)[1], before)


def test_each_contribution_of_a_message_counts_for_itself(key):
    parts = [
        aggregate.Contribution({"w": jnp.arange(1.0, 4.0)}, jnp.float32(weight), jnp.int32(0), 1, None)
        for weight in (1, 0)
    ]
    _, after = send(top_k(0.2), key, parts, jnp.ones(6))
    np.testing.assert_array_equal(after, [2, 3, 0, 1, 1, 1])  # 2 of (2, 3, 4, 2, 3, 4) are sent


PASSES = {"fedavg": [15], "feddane": [15, 15], "scaffold": [30], "ditto": [15, None], "stocfl": [None, 15, 15]}


@pytest.mark.parametrize("name", PASSES)
def test_each_pass_has_a_memory_of_its_own(name, key):
    method = METHODS[name].factory(linear_task(), optax.sgd(0.3), **case_options(METHODS[name]))
    state = jax.eval_shape(wired(method, channel=sign(), error_feedback=True).init, key, federation())
    own, memory = state.memory
    found = [None if one is None else one.shape[1] for one in memory]
    assert found == PASSES[name]  # a model has 15 numbers
    assert (own is None) == (method.per_client is None)
    assert method.per_client is None or getattr(state.inner, method.per_client) is None


SMALL = {"num_clients": 8, "rows_per_client": 20, "model": "logistic", "cohort": 4, "compress": "topk:0.05"}


@pytest.mark.slow
def test_a_run_with_memory_goes_on_and_is_the_same_with_rows_on_the_host(tmp_path):
    given = {**SMALL, "error_feedback": True, "rounds": 4, "eval_every": 2}
    whole = jaxfl.run_named("ditto", "rotated-digits", **given, out=tmp_path / "whole")
    for name, resident in (("device", True), ("host", False)):
        part = {**given, "out": tmp_path / name, "resident": resident}
        jaxfl.run_named("ditto", "rotated-digits", **{**part, "rounds": 2})
        again = jaxfl.run_named("ditto", "rotated-digits", **part, resume=True)
        for one, other in zip(memories(whole), memories(again), strict=True):
            np.testing.assert_array_equal(one, other)
        assert again.history.column("micro_accuracy") == whole.history.column("micro_accuracy")
        loaded = jaxfl.load(tmp_path / name)
        assert loaded.summary["micro_accuracy"] == whole.summary["micro_accuracy"]
    plain = jaxfl.run_named("ditto", "rotated-digits", **SMALL, rounds=4)
    assert (plain.state.solver.model["Dense_0"]["bias"] != whole.state.inner.solver.model["Dense_0"]["bias"]).any()
    assert plain.history.column("bytes_up")[-1] == whole.history.column("bytes_up")[-1]


def memories(result):
    """Returns the rows of all clients, those of the method and its memory."""
    memory = result.state.memory
    return jax.tree.leaves(memory.take(np.arange(8)) if isinstance(memory, tree.Rows) else memory)


def test_seeds_of_one_program_have_their_memories():
    data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    method = wired(methods.ifca(task, optax.sgd(0.1), num_clusters=2), channel=top_k(0.1), error_feedback=True)
    both = jaxfl.run(method, data, rounds=3, cohort=4, seeds=[0, 1])
    for seed, one in zip((0, 1), both, strict=True):
        alone = jaxfl.run(method, data, rounds=3, cohort=4, seed=seed)
        np.testing.assert_allclose(one.state.memory[1][0], alone.state.memory[1][0], rtol=1e-4, atol=1e-6)
        assert one.summary["micro_accuracy"] == alone.summary["micro_accuracy"]


def test_slots_grow_and_clients_join_with_their_memory(key):
    task, data = linear_task(), federation(ragged=False, rows=40)
    stocfl = METHODS["stocfl"].factory(task, optax.sgd(0.3), slots=2)
    method = compiled(wired(stocfl, channel=sign(), error_feedback=True))
    state, _ = method.round(key, method.init(key, data), data, full_cohort())
    grown = method.grow(state)
    assert grown.inner.models["bias"].shape[0] == 2 * state.inner.models["bias"].shape[0]
    np.testing.assert_array_equal(grown.memory[1][1], state.memory[1][1])
    wecfl = methods.wecfl(task, optax.sgd(0.3), num_clusters=2)
    wecfl = compiled(wired(wecfl, channel=sign(), error_feedback=True))
    state, _ = wecfl.round(key, wecfl.init(key, data), data, full_cohort())
    larger = jaxfl.data.synthetic.clustered_linear(10, 2, 12, 4, 3)
    joined, clusters = wecfl.join(key, state, larger, [8, 9])
    assert joined.cluster.shape == (10,) and clusters.shape == (2,)
    np.testing.assert_array_equal(joined.memory[1][0][:8], state.memory[1][0])
    assert (np.asarray(state.memory[1][0]) != 0).any(1).all() and not np.asarray(joined.memory[1][0][8:]).any()
    same, _ = wecfl.join(key, state, data, [3])
    np.testing.assert_array_equal(same.memory[1][0], state.memory[1][0])


def test_the_plan_counts_the_memory():
    data = federation()
    method = methods.fedavg(linear_task(), optax.sgd(0.3))
    plain = jaxfl.footprint(method, data, cohort=4)
    held = jaxfl.footprint(wired(method, channel=sign(), error_feedback=True), data, cohort=4)
    assert held.state - plain.state == 8 * 15 * 4


@pytest.mark.parametrize(
    ("channel", "words"),
    [
        (None, ("error_feedback", "channel")),
        (random_k(0.25), ("error_feedback", 2.75, 15)),
        (chain(qsgd(2), clip(1.0)), ("error_feedback", 3.75, 15, "bits")),
    ],
)
def test_errors_that_cannot_be_fed_back_are_refused(channel, words, key):
    with pytest.raises(ValueError, match=mentions(*words)):
        method = wired(methods.fedavg(linear_task(), optax.sgd(0.3)), channel=channel, error_feedback=True)
        jax.eval_shape(method.init, key, federation())


def test_a_norm_bound_of_the_server_is_refused():
    with pytest.raises(ValueError, match=mentions("error_feedback", "clip")):
        method = methods.fedavg(linear_task(), optax.sgd(0.3))
        wired(method, channel=sign(), error_feedback=True, aggregator=jaxfl.wire.norm_bound(1.0))


@pytest.mark.parametrize("given", [["error_feedback=true"], ["error_feedback=true", "clip=1.0"]])
def test_error_feedback_by_name_needs_a_code(given):
    with pytest.raises(ValueError, match=mentions("error_feedback", "compress")):
        options.error_feedback(options.route("fedavg", "rotated-digits", given))
    assert options.error_feedback(options.route("fedavg", "rotated-digits", [*given, "compress=sign"]))


@pytest.mark.parametrize("link", [top_k(0.2), sign(), qsgd(5), qsgd(8)])
def test_the_error_of_a_link_is_at_most_what_it_says(link, key):
    """The mean over draws of the squared error, of the messages on which each link is worst among some."""
    messages = [jnp.ones(40), jax.random.normal(key, (40,)), jnp.zeros(40).at[3].set(1.0)]
    for message in messages:
        received = jax.vmap(link.change, (0, None))(jax.random.split(key, 200), message)
        found = jnp.square(received - message[None]).sum(1).mean() / jnp.square(message).sum()
        assert found < 1 and (link.error(40) == 0 or found <= link.error(40))
