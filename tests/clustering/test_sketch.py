import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfl.clustering import sketch as module
from jaxfl.clustering.sketch import sketch
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=4)

SIZE = 64
KEYS = jax.random.split(jax.random.key(7), 2000)


def many(vector):
    """Sketches `[keys, SIZE]` of one vector under many projections."""
    return np.asarray(jax.vmap(lambda key: sketch(key, jnp.asarray(vector, jnp.float32), SIZE))(KEYS), np.float64)


def pair(kind, length=1000):
    """Two vectors of known cosine 0.6, of a structure that plain folding or a reused sign would trip over."""
    rng = np.random.default_rng(0)
    if kind == "dense":
        one, two = np.linalg.qr(rng.normal(size=(length, 2)))[0].T
    else:
        one, two = np.zeros((2, length))
        places = np.arange(0, length, SIZE)  # the same place of every block: one bucket without the rolls
        one[places[::2]], two[places[1::2]] = 1, 1
        one, two = one / np.linalg.norm(one), two / np.linalg.norm(two)
    return one, 0.6 * one + 0.8 * two


@pytest.mark.parametrize("kind", ["dense", "periodic"])
def test_inner_products_are_unbiased_with_the_stated_variance(kind):
    one, two = pair(kind)
    products = (many(one) * many(two)).sum(axis=1)  # one for each key
    bound = (1 + 0.6**2) / SIZE  # (|x|^2 |y|^2 + <x, y>^2) / size
    assert abs(products.mean() - 0.6) < 4 * (bound / len(KEYS)) ** 0.5  # four standard errors
    # the sample variance of 2,000 draws is within a fifth of the true one, heavy tails (kurtosis up to 20) included
    assert products.var() < 1.2 * bound
    if kind == "dense":  # the bound is sharp up to 2 sum(x_i^2 y_i^2), which is small here
        assert products.var() > 0.7 * bound


@pytest.mark.parametrize("kind", ["dense", "periodic"])
def test_error_of_a_cosine_is_about_one_over_the_root_of_the_size(kind):
    one, two = (many(vector) for vector in pair(kind))
    cosines = (one * two).sum(axis=1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)
    error = np.sqrt(np.mean((cosines - 0.6) ** 2))
    assert error < 1 / SIZE**0.5
    if kind == "dense":
        np.testing.assert_allclose(error, (1 - 0.6**2) / SIZE**0.5, rtol=0.15)  # first order in 1 / sqrt(size)


def test_norm_is_kept_exactly_by_a_sketch_of_one_block():
    vector = jax.random.normal(jax.random.key(0), (50,))  # numbers of one block never meet
    np.testing.assert_allclose(
        jnp.linalg.norm(sketch(jax.random.key(1), vector, 50)), jnp.linalg.norm(vector), rtol=1e-6
    )


@given(seed=st.integers(0, 1000), scale=st.floats(-3, 3, width=32))
def test_linear(seed, scale):
    rng = np.random.default_rng(seed)
    trees = [{"w": jnp.asarray(rng.normal(size=(30, 7)), jnp.float32), "b": jnp.ones(5) * i} for i in range(2)]
    key = jax.random.key(seed)
    mixed = jax.tree.map(lambda a, b: a + jnp.float32(scale) * b, *trees)
    expected = sketch(key, trees[0], 32) + jnp.float32(scale) * sketch(key, trees[1], 32)
    np.testing.assert_allclose(sketch(key, mixed, 32), expected, atol=1e-4)


def test_deterministic_in_the_key_and_different_between_keys(key):
    vector = jax.random.normal(key, (300,))
    one, same, other = (sketch(k, vector, SIZE) for k in (key, jax.random.key(0), jax.random.key(1)))
    np.testing.assert_array_equal(one, same)
    assert float(jnp.abs(one - other).max()) > 0.1


def test_under_vmap_all_trees_see_one_projection(key):
    vectors = jax.random.normal(key, (4, 333))
    together = jax.vmap(lambda vector: sketch(key, vector, SIZE))(vectors)
    for vector, row in zip(vectors, together, strict=True):
        np.testing.assert_allclose(sketch(key, vector, SIZE), row, atol=1e-5)


def test_leaves_of_a_tree_have_independent_signs(key):
    tree = [jnp.ones(SIZE), -jnp.ones(SIZE)]  # equal signs and offsets would cancel everything
    assert float(jnp.linalg.norm(sketch(key, tree, SIZE))) > 0.5 * SIZE**0.5


def test_several_steps_and_a_rest(key, monkeypatch):
    """The loop over long leaves: with a short step, every number still lands in one bucket, with its sign."""
    monkeypatch.setattr(module, "STEP", 2 * SIZE)
    length = 5 * SIZE + 17  # two whole steps and a rest of one block and a bit
    function = jax.jit(lambda vector: module._sketch_leaf(key, vector, SIZE))
    columns = np.asarray(jax.vmap(function)(jnp.eye(length)))  # [length, SIZE]: the projection as a matrix
    np.testing.assert_array_equal(np.abs(columns).sum(axis=1), 1)
    np.testing.assert_array_equal(np.abs(columns).max(axis=1), 1)
    signs = columns.sum(axis=1)
    assert abs(signs.mean()) < 4 / length**0.5
    blocks = np.abs(columns[: 5 * SIZE]).reshape(5, SIZE, SIZE)
    np.testing.assert_array_equal(blocks.sum(axis=1), 1)  # numbers of one block never meet
    offsets = {int(block[0].argmax()) for block in blocks}
    assert len(offsets) > 1
    vector = jax.random.normal(key, (length,))
    np.testing.assert_allclose(function(vector), np.asarray(vector) @ columns, atol=1e-4)


def test_nothing_as_long_as_the_model_is_stored(key):
    length = 1 << 22
    compiled = sketch.lower(key, jax.ShapeDtypeStruct((length,), jnp.float32), 1024).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < length * 4 / 2


def test_errors(key):
    with pytest.raises(ValueError, match=mentions("size", 0)):
        sketch(key, jnp.ones(3), 0)
    with pytest.raises(ValueError, match=mentions("tree", "array", "none")):
        sketch(key, {}, 4)
