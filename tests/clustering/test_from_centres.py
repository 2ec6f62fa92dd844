"""Distances of a model from centres against NumPy, on trees, under `vmap`, and on long models in float32."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfl.clustering.from_centres import DISTANCES, squared_l2

MEASURED = {name: jax.jit(distances) for name, distances in DISTANCES.items()}
FORMULAS = {
    "squared_l2": lambda a, b: np.sum((a - b) ** 2),
    "l1": lambda a, b: np.sum(np.abs(a - b)),
    "cosine": lambda a, b: 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b),
}


def tree_of(vectors):
    """Splits vectors `[..., 11]` into leaves of one, two and three axes."""
    lead = vectors.shape[:-1]
    shapes = {"bias": (3,), "conv": (1, 2, 1), "kernel": (2, 3)}
    cuts = np.split(vectors, np.cumsum([3, 2]), axis=-1)
    return {name: cut.reshape(*lead, *shapes[name]) for name, cut in zip(shapes, cuts, strict=True)}


@pytest.mark.parametrize("name", DISTANCES)
@given(seed=st.integers(0, 999), clusters=st.integers(1, 4))
def test_distances_are_the_formulas(name, seed, clusters):
    rng = np.random.default_rng(seed)
    model, centres = rng.normal(size=11), rng.normal(size=(clusters, 11))
    with jax.enable_x64(True):
        found = MEASURED[name](tree_of(model), tree_of(centres))
    np.testing.assert_allclose(found, [FORMULAS[name](model, centre) for centre in centres], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", DISTANCES)
def test_a_chunk_of_models_is_measured_model_by_model(name):
    rng = np.random.default_rng(0)
    chunk, centres = (tree_of(rng.normal(size=(count, 11)).astype(np.float32)) for count in (5, 3))
    many = jax.jit(jax.vmap(DISTANCES[name], (0, None)))(chunk, centres)
    for i in range(5):
        one = MEASURED[name]({leaf: value[i] for leaf, value in chunk.items()}, centres)
        np.testing.assert_allclose(many[i], one, rtol=1e-5, atol=1e-6)


def test_a_model_is_at_no_distance_from_itself():
    centres = tree_of(np.random.default_rng(0).normal(size=(3, 11)).astype(np.float32))
    model = jax.tree.map(lambda leaf: leaf[1], centres)
    assert all(float(MEASURED[name](model, centres)[1]) == 0 for name in ("squared_l2", "l1"))
    assert abs(float(MEASURED["cosine"](model, centres)[1])) < 1e-6


def test_zero_has_no_direction():
    model, centres = {"w": np.zeros(2, np.float32)}, {"w": np.array([[0, 0], [1, 2]], np.float32)}
    assert MEASURED["cosine"](model, centres).tolist() == [1.0, 1.0]


def test_long_sums_lose_no_digits():
    """Two million terms, hardly above the last digit of their float32 sum."""
    rng = np.random.default_rng(0)
    model, centres = (1e-3 * rng.normal(size=shape).astype(np.float32) for shape in ((2, 1_000_000), (2, 2, 1_000_000)))
    wanted = np.square(np.subtract(centres, model, dtype=np.float64)).sum((1, 2))
    found = jax.jit(squared_l2)({"w": model}, {"w": centres})
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
