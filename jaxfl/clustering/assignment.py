"""Assignment of rows to columns of a matrix, such as of new clusters to the models that they go on with."""

import jax.numpy as jnp
from optax.assignment import hungarian_algorithm

from jaxfl.typing import Array


def match(cost: Array) -> Array:
    """Returns the column of each row `[K]` int32, all different, with the least sum of costs.

    Of several such matchings it is always the same one: the first columns in order where all costs are equal.

    Args:
        cost: `[K, M]`, finite, with at least as many columns as rows.

    Raises:
        ValueError: there are more rows than columns.

    >>> match(jnp.array([[1.9, 2.9], [1.5, 1.7]])).tolist(), match(jnp.array([[5.0, 1.0, 3.0]])).tolist()
    ([0, 1], [1])
    """
    rows, columns = cost.shape
    if rows > columns:
        raise ValueError(f"cost must have at least as many columns as rows, got {rows} rows and {columns} columns.")
    row, column = hungarian_algorithm(cost.astype(jnp.result_type(float)))
    return jnp.zeros(rows, jnp.int32).at[row].set(column.astype(jnp.int32))
