"""A clip leaves kernels in coordinates, and is the clip of the kernels."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl.client.corrections import proximal_pull
from jaxfl.client.fast import coordinates
from jaxfl.cohort import Cohort, Plan
from jaxfl.methods import fedavg
from jaxfl.server import aggregate
from jaxfl.wire import channel
from jaxfl.wire.clipping import clipped, is_finite

pytestmark = pytest.mark.rotating("function", weeks=4)

CLIENTS, INPUTS, HIDDEN = 6, 61, 33
CLIP = 0.05  # shorter than all updates
WIRES = {
    "clip": {"channel": channel.chain(channel.clip(CLIP))},
    "bound": {"aggregator": jaxfl.wire.norm_bound(CLIP)},
    "private": {"privacy": jaxfl.Privacy(clip=CLIP, noise=0.0)},
}
PULLED = optax.chain(optax.add_decayed_weights(0.1), proximal_pull(0.5), optax.sgd(0.2, momentum=0.9))


def federation():
    """Clients of ten rows, of which the second's are so large that it diverges."""
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(0.1, 0.4, (10 * CLIENTS, INPUTS)).astype(np.float32), rng.integers(0, 3, 10 * CLIENTS)
    inputs[10:20] *= 1e30
    rows = list(np.arange(10 * CLIENTS).reshape(CLIENTS, 10))
    return jaxfl.data.federate(inputs, labels, rows, rows, num_classes=3)


def round_of(wire, *, chunk, optimizer=None, fast_forms=True):
    """Returns a wired method, the function of a round, and what it is given."""
    data = federation()
    task = jaxfl.classification(jaxfl.models.MLP((HIDDEN,), 3), data, fast_forms=fast_forms)
    method = fedavg(task, optimizer or optax.sgd(0.2, momentum=0.9), local_epochs=6, batch_size=None)
    method, key, data = jaxfl.wired(method, **wire), jax.random.key(0), data.on_device()
    cohort = Cohort(jnp.arange(CLIENTS), jnp.ones(CLIENTS, bool), Plan(chunk))
    one = jax.jit(lambda key, state, data: method.round(key, state, data, cohort))
    return method, one, (key, method.init(key, data), data)


@pytest.mark.parametrize(
    ("name", "chunk", "optimizer"), [("clip", 1, PULLED), ("bound", None, None), ("private", None, PULLED)]
)
def test_a_round_is_that_of_kernels(name, chunk, optimizer):
    found = []
    for fast_forms in (True, False):
        method, one, given = round_of(WIRES[name], chunk=chunk, optimizer=optimizer, fast_forms=fast_forms)
        state, info = one(*given)
        found.append((method.client_params(state, jnp.zeros(1, jnp.int32)), info))
    (model, info), (usual, expected) = found
    start = method.client_params(given[1], jnp.zeros(1, jnp.int32))
    assert int(info.diverged) == int(expected.diverged) == 1
    assert int(info.extra["smallest_sum"]) == int(expected.extra["smallest_sum"]) == CLIENTS - 1
    for leaf, other, before in zip(*map(jax.tree.leaves, (model, usual, start)), strict=True):
        np.testing.assert_allclose(leaf, other, rtol=0, atol=1e-7)
        assert np.abs(other - before).max() > 1e-4, "the round moves it, by more than the tolerance"


def kernels_of_clients(program):
    """Returns the shapes of all clients' kernels in the text of a compiled program."""
    return set(re.findall(rf"f32\[{CLIENTS},(?:{INPUTS},{HIDDEN}|{HIDDEN},{INPUTS}|{INPUTS * HIDDEN})\]", program))


@pytest.mark.parametrize("name", ["clip", "private", "qsgd"])
def test_no_client_makes_a_kernel_to_clip_it(name):
    wire = WIRES.get(name, {"channel": channel.qsgd(8)})
    _, one, given = round_of(wire, chunk=None)
    made = kernels_of_clients(one.lower(*given).compile().as_text())
    assert bool(made) == (name == "qsgd"), "which changes every entry by itself"


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("norm", [1e-6, 3.0, 1e6])
def test_norm_and_sum_in_float64(norm, relative):
    rng = np.random.default_rng(0)
    with jax.enable_x64(True), coordinates.known_kernels():
        start, anchor = (jnp.asarray(rng.normal(size=(9, 3))) for _ in range(2))
        bias = jnp.asarray(rng.normal(size=3))
        total, expected = np.zeros((9, 3)), np.zeros((9, 3))
        for _ in range(4):
            rows, leaf = jnp.asarray(rng.normal(size=(4, 9))), jnp.asarray(rng.normal(size=(6, 3)))
            gram = jnp.pad(rows @ rows.T, ((0, 0), (0, 2)))
            kernels = [start, anchor]
            made = coordinates.KernelInCoordinates(rows, gram, leaf, kernels, [rows @ one for one in kernels], leaf)
            kernel = np.asarray(rows.T @ leaf[:4] + leaf[4:5] * start + leaf[5:] * anchor)
            np.testing.assert_allclose(made.norm(), np.linalg.norm(kernel), rtol=1e-12)
            values = {"bias": bias + 1, "kernel": made.array()}
            one = aggregate.contribute(values, jnp.ones(()))
            (sent,) = clipped([one], [{"bias": bias, "kernel": start}], norm, relative=relative)
            assert coordinates.in_coordinates_of(sent.values["kernel"]) is not None
            total += np.asarray(sent.values["kernel"])
            update = np.concatenate([(kernel - start).ravel(), np.ones(3)])
            short = min(1, norm / np.linalg.norm(update))
            expected += short * (kernel - start) + (0 if relative else np.asarray(start))
            np.testing.assert_allclose(sent.values["bias"], short + (0 if relative else bias), rtol=1e-12)
        np.testing.assert_allclose(total, expected, rtol=1e-10, atol=1e-10 * min(norm, 1))


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e30])
def test_no_part_of_a_message_that_is_not_finite_is_longer_than_the_clip(number):
    many = [aggregate.contribute({"w": jnp.full(3, value, jnp.float32)}, jnp.ones(())) for value in (number, 5.0)]
    bad, good = clipped(many, [{"w": jnp.zeros(3)}] * 2, 1.0)
    assert not is_finite(bad.values), "it is dropped"
    assert not is_finite(good.values) or np.linalg.norm(good.values["w"]) <= 1
