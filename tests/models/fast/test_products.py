"""Products of few outputs and of large kernels are the usual ones, wherever and however they are taken."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfl import classification, models
from jaxfl.data.synthetic import prototypes
from jaxfl.models.fast import products
from jaxfl.models.fast.rewriting import in_fast_forms, replaceable
from tests.models.fast.test_rewriting import check_alike, gradients, images, primitives

ROWS, DEPTH, OUTPUTS = 140, 130, 10
BY_HAND = "optimization_barrier"  # what only the form made by hand has


def usual(inputs, kernel):
    return inputs @ kernel


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("mapped", "rows", "depth", "outputs"),
    [
        *((mapped, ROWS, DEPTH, OUTPUTS) for mapped in ("nothing", "inputs", "kernels", "both")),
        ("nothing", ROWS, DEPTH, 16),
        ("nothing", ROWS, DEPTH, 4),
        *((mapped, 3, 1024, 512) for mapped in ("nothing", "inputs", "kernels", "both")),
    ],
)
def test_it_is_the_usual_product(mapped, rows, depth, outputs):
    axes = (0 if mapped in ("inputs", "both") else None, 0 if mapped in ("kernels", "both") else None)
    shapes = (rows, depth), (depth, outputs)
    values = [
        images(number, *shape) if axis is None else images(number, 2, *shape)
        for number, (shape, axis) in enumerate(zip(shapes, axes, strict=True))
    ]

    def network(inputs, kernel):
        return jnp.sin(usual(inputs, kernel) / depth**0.5)  # whose gradient is mapped, too; of sums of size one

    forms = gradients(in_fast_forms(network)), gradients(network)
    if mapped != "nothing":
        forms = tuple(jax.vmap(one, axes) for one in forms)
    check_alike(forms[0](*values), forms[1](*values))
    assert (BY_HAND in primitives(forms[0], *values)) == (mapped == "nothing")


@pytest.mark.parametrize(
    ("rows", "depth", "outputs", "by_hand"),
    [
        (60, 130, 10, True),
        (60, 127, 20, False),  # few inputs
        (60, 130, 33, False),  # many outputs
        (12, 400, 26, False),  # few rows
        (10, 130, 10, False),  # little to do
        (60, 130, 0, False),
        (2, 1024, 512, True),
        (1, 1024, 512, False),  # one row is no product of matrices
        (2, 724, 724, False),  # within a cache
        (2, 256, 2048, False),  # few inputs
        (2, 4096, 255, False),  # few outputs
    ],
)
def test_where_it_is_taken(rows, depth, outputs, by_hand):
    program = primitives(gradients(in_fast_forms(usual)), images(0, rows, depth), images(1, depth, outputs))
    assert (BY_HAND in program) == by_hand


@pytest.mark.parametrize(("depth", "outputs"), [(DEPTH, OUTPUTS), (1024, 512)])
def test_elsewhere_than_on_a_cpu_products_stay_as_they_are(depth, outputs, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert not replaceable(usual, images(0, ROWS, depth), images(1, depth, outputs))


@pytest.mark.parametrize(("rows", "depth", "outputs"), [(ROWS, DEPTH, OUTPUTS), (3, 1024, 512)])
def test_gradients_have_gradients(rows, depth, outputs):
    """Per-FedAvg's exact steps and its Hessians need them."""
    values = images(0, rows, depth), images(1, depth, outputs)

    def curvature(form):
        def slope(inputs, kernel):
            return jax.grad(lambda kernel: jnp.sin(form(inputs, kernel) / depth**0.5).sum())(kernel)

        return jax.jit(jax.grad(lambda kernel: jnp.square(slope(values[0], kernel)).sum()))(values[1])

    check_alike(curvature(in_fast_forms(usual)), curvature(usual))


def test_a_network_trains_in_it_and_counts_as_one_without_convolutions():
    data = prototypes(2, ROWS, (4,), OUTPUTS)
    fast, plain = (
        classification(models.MLP(hidden=(DEPTH,), num_classes=OUTPUTS), data, fast_forms=flag)
        for flag in (True, False)
    )
    model = jax.jit(fast.init)(jax.random.key(0))
    batch = data.batch(data.train, jnp.int32(1), jnp.arange(ROWS, dtype=jnp.int32))
    assert not fast.fast.replaced and not fast.fast.widest
    slopes = [jax.grad(lambda model, task=task: task.loss(model, batch, None)) for task in (fast, plain)]
    assert [BY_HAND in primitives(slope, model) for slope in slopes] == [True, False]
    check_alike(*(jax.jit(slope)(model) for slope in slopes))


def test_padding_is_no_number_of_the_result():
    """Infinite rows stay infinite and are not what zeros make of them."""
    inputs, kernel = np.full((ROWS, DEPTH), np.inf, np.float32), np.ones((DEPTH, OUTPUTS), np.float32)
    assert jnp.isposinf(jax.jit(products.narrow)(inputs, kernel)).all()
