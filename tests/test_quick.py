"""What makes the tests quicker changes no program."""

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.interpreters import mlir


def drawn(key, rows):
    bits = jax.random.normal(key, rows.shape) + rows
    positive = jnp.where(bits > 0, bits, rows.max(1, keepdims=True))
    return jax.lax.scan(lambda total, row: (total + row.sum(), row[::2]), positive.min(), positive), bits[1:] @ bits.T


def test_operations_that_are_written_already_are_the_same_in_the_next_program():
    for _ in range(100):
        mlir.make_ir_context()  # after so many programs nothing is written already
    key, rows = jax.random.key(0), jnp.ones((4, 6))
    first, again = (jax.jit(lambda key, rows: drawn(key, rows)).lower(key, rows).as_text() for _ in range(2))
    assert again == first
    jax.jit(lambda rows: rows.max(1) + rows.sum(1)).lower(rows[:3])  # of other shapes
    later = jax.jit(lambda key, rows: drawn(key, 2 * rows)).lower(key, rows)
    np.testing.assert_allclose(later.compile()(key, rows)[1], drawn(key, 2 * rows)[1], rtol=1e-6)
