"""The random bits of the tests are those of the paper, and so JAX's own, for keys one by one and for many."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "counts", "bits"),  # the known answers that the authors give with their code, Random123
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((ONES, ONES), (ONES, ONES), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_known_answers(key, counts, bits):
    words = [jnp.asarray(word, jnp.uint32) for word in key]
    np.testing.assert_array_equal(threefry_2x32(words, jnp.array(counts, jnp.uint32)), np.array(bits, np.uint32))


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (5, 0)])
def test_many_keys_draw_what_each_draws(shape):
    """Where keys have an axis and counts another, or none."""
    keys = jax.random.split(jax.random.key(7), (2, 3))
    drawn = jax.vmap(jax.vmap(lambda key: jax.random.bits(jax.random.fold_in(key, 1), shape)))(keys)
    assert drawn.shape == (2, 3, *shape)
    for a, b in np.ndindex(2, 3):
        np.testing.assert_array_equal(drawn[a, b], jax.random.bits(jax.random.fold_in(keys[a, b], 1), shape))
