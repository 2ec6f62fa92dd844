"""Names of leaves, what patterns select, and splitting by it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfl import tree
from tests.messages import mentions

MODEL = {
    "Dense_0": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)},
    "Dense_1": {"kernel": jnp.ones((3, 3)), "bias": jnp.zeros(3)},
    "Dense_10": {"kernel": jnp.ones((3, 2)), "bias": jnp.zeros(2)},
    "Block_0": {"Dense_1": {"kernel": jnp.ones((3, 3))}},
    "scale": jnp.ones(()),
}


def selected(patterns):
    flags = jax.tree.leaves(tree.matching(MODEL, patterns))
    return {name for name, yes in zip(tree.names(MODEL), flags, strict=True) if yes}


@pytest.mark.parametrize(
    ("patterns", "wanted"),
    [
        ("scale", {"scale"}),
        ("Dense_1", {"Dense_1/bias", "Dense_1/kernel", "Block_0/Dense_1/kernel"}),
        ("^Dense_1", {"Dense_1/bias", "Dense_1/kernel"}),
        ("Dense_1/bias", {"Dense_1/bias"}),
        ("Block_0/.*", {"Block_0/Dense_1/kernel"}),
        ("bias|scale", {"Dense_0/bias", "Dense_1/bias", "Dense_10/bias", "scale"}),
        (r"Dense_\d\d", {"Dense_10/bias", "Dense_10/kernel"}),
        (("scale", "Dense_0/kernel"), {"scale", "Dense_0/kernel"}),
        (".*", set(tree.names(MODEL))),
        ((), set()),
    ],
)
def test_patterns_match_whole_keys(patterns, wanted):
    assert selected(patterns) == wanted


@pytest.mark.parametrize("pattern", ["Dense", "kern", "Dense_2", ""])
def test_a_pattern_that_matches_nothing_names_what_there_is(pattern):
    with pytest.raises(ValueError, match=mentions(f"'{pattern}'", "Dense_0/bias", "scale")):
        tree.matching(MODEL, ["scale", pattern])


def test_a_broken_pattern_is_refused():
    with pytest.raises(ValueError, match=mentions("pattern", "Dense_(")):
        tree.matching(MODEL, "Dense_(")


@pytest.mark.parametrize("patterns", [3, ["Dense_0", 1]])
def test_patterns_are_texts(patterns):
    with pytest.raises(TypeError, match=mentions("patterns", patterns)):
        tree.matching(MODEL, patterns)


def test_shapes_are_enough_to_match():
    shapes = jax.eval_shape(lambda: MODEL)
    assert tree.matching(shapes, "bias") == tree.matching(MODEL, "bias")


@pytest.mark.parametrize("patterns", [(), "bias", ("Dense_0", "scale"), ".*"])
def test_combining_the_parts_is_the_whole(patterns):
    chosen = tree.matching(MODEL, patterns)
    inside, outside = tree.partition(MODEL, chosen)
    assert set(tree.names(inside)) == selected(patterns)
    assert set(tree.names(inside)) | set(tree.names(outside)) == set(tree.names(MODEL))
    assert not set(tree.names(inside)) & set(tree.names(outside))
    for parts in ((inside, outside), (outside, inside)):
        whole = tree.combine(*parts)
        assert jax.tree.structure(whole) == jax.tree.structure(MODEL)
        assert all(a is b for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(MODEL), strict=True))


def test_ravel_is_the_leaves_one_after_another(key):
    model = {"w": jax.random.normal(key, (3, 2)), "b": jnp.arange(2.0), "empty": jnp.zeros((0, 4))}
    wanted = np.concatenate([np.ravel(model[name]) for name in ("b", "empty", "w")])
    np.testing.assert_array_equal(jax.jit(tree.ravel)(model), wanted)
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), model)
    np.testing.assert_array_equal(jax.vmap(tree.ravel)(stacked), [wanted, 2 * wanted])


def test_parameters_of_half_precision_are_refused():
    """A mean of a thousand bfloat16 models was a third of them."""
    with pytest.raises(ValueError, match=mentions("module", "bfloat16", "kernel")):
        tree.check_floats("module", {"kernel": jnp.ones(2, jnp.bfloat16)})


def test_what_is_computed_where_it_is_needed_is_traced_once():
    calls = []

    def client(data, needed):
        def compute():
            calls.append(0)
            return {"w": 2 * data, "n": jnp.int32(3)}

        return tree.where_needed(needed, compute)

    found = jax.jit(jax.vmap(client))(jnp.ones((2, 3)), jnp.array([True, False]))
    assert len(calls) == 1
    assert found["w"].tolist() == [[2, 2, 2], [0, 0, 0]]
    assert found["n"].tolist() == [3, 0]
