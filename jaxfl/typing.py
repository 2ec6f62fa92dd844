"""Type aliases, and the legend of the axis letters that every shape comment uses.

| letter | axis |
|---|---|
| N | all clients of the federation |
| C | the cohort: the clients sampled in one round |
| c | the clients of one chunk of the cohort |
| K | clusters (slots) |
| B | rows of one batch |
| T | rows of one split, all clients back to back |
| P | rows of the pool that the clients' rows point into |
| L | classes |
| d | features of a vector |

A singular name is one pytree (`model`); a plural name is stacked along a leading axis (`models`  # [K, ...]).
"""

from typing import Any

import jax

Array = jax.Array
Key = jax.Array  # a typed key of `jax.random.key`
AnyArray = Any  # an array in host memory (NumPy) or on the device
Params = Any  # a pytree of float arrays: the parameters of one model
