"""Small problems for the battery of tests: a linear classifier, eight clients, and compiled methods.

Compilation takes nearly all of the battery's time. Therefore all federations have arrays of the same shapes, and all
cohorts have eight entries, some of them masked if necessary, so that most laws run the same program.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxfl import tree
from jaxfl.cohort import Cohort, Plan
from jaxfl.data.clients import Batch, FederatedData, Split
from jaxfl.data.synthetic import clustered_linear
from jaxfl.data.windows import Windows
from jaxfl.methods.base import Info, Method, Row
from jaxfl.tasks import Task, contract, masked_mean
from jaxfl.typing import Array, Key, Params

COHORT = (0, 1, 2, 3, 4, 6, 7)  # client 5 is never sampled
EMPTY, SICK = 1, 3  # the client without rows, and the client whose inputs become NaN
HELD_OUT = (2, 5)  # one client of each planted group, for the check of held-out clients
CLIENTS, ROWS = 8, 40  # N, and the largest number of training rows of a client
POOL = ("inputs", "labels")
FEATURES, CLASSES = 4, 3
RATE = 0.3  # of local training


class Case(NamedTuple):
    """A method and its compiled functions, shared by the checks."""

    method: Method
    init: Callable[[Key, FederatedData], Any]
    round: Callable[[Key, Any, FederatedData, Cohort], tuple[Any, Info]]
    client_params: Callable[[Any, Array], Params]
    assign: Callable[[Key, Any, FederatedData, Cohort], Any]

    def run(
        self, data: FederatedData, cohort: Cohort, *, rounds: int = 2, seed: int = 0, start: Any = None
    ) -> tuple[Any, Any]:
        """Returns the state and the last info after some rounds with the same cohort."""
        key, info = jax.random.key(seed), None
        state = self.init(key, data) if start is None else start
        for _ in range(rounds):
            state, info = self.round(key, state, data, cohort)
        return state, info

    def served(self, state: Any, ids: Any) -> Params:
        """Returns the served models of some clients `[C, ...]`."""
        models = self.client_params(state, jnp.arange(state.cluster.shape[0], dtype=jnp.int32))
        return tree.take(models, jnp.asarray(ids))


def linear_task() -> Task:
    """Returns a task of softmax regression in plain jax.numpy, without dropout or a flax module."""

    def init(key: Key) -> Params:
        return {"kernel": 0.1 * jax.random.normal(key, (FEATURES, CLASSES)), "bias": jnp.zeros(CLASSES)}

    def logits(model: Params, batch: Batch) -> Array:
        return batch.x @ model["kernel"] + model["bias"][None]

    def loss(model: Params, batch: Batch, key: Key | None = None) -> Array:
        del key
        return masked_mean(optax.softmax_cross_entropy_with_integer_labels(logits(model, batch), batch.y), batch.mask)

    def offset_losses(model: Params, batch: Batch, key: Key | None, offset: Array) -> Array:
        del key
        return optax.softmax_cross_entropy_with_integer_labels(logits(model, batch) + offset, batch.y)

    return Task(init, loss, logits, mix=contract.mix_classes, offset_losses=offset_losses)


def case(row: Row, batch_size: int | None = 4) -> Case:
    """Returns the compiled method of a registry row, the same object for the same row, so that it compiles once."""
    return _compiled_case(row.factory, tuple(case_options(row, batch_size).items()))


def recompiled_case(row: Row) -> Case:
    """Returns an equal of `case(row)` that is built and compiled again."""
    return _compiled_case.__wrapped__(row.factory, tuple(case_options(row).items()))


def case_options(row: Row, batch_size: int | None = 4) -> dict[str, Any]:
    """Returns the options with which the battery calls the factory of a registry row."""
    options = {"local_epochs": 2, "batch_size": batch_size, **row.small}
    return {name: value for name, value in options.items() if name in row.options}


@functools.lru_cache(maxsize=4)
def _compiled_case(factory: Callable[..., Method], options: tuple[tuple[str, Any], ...]) -> Case:
    """Returns the method with these options; its functions are compiled at their first call."""
    method = factory(linear_task(), optax.sgd(RATE), **dict(options))
    return Case(method, *map(jax.jit, (method.init, method.round, method.client_params, method.assign)))


@functools.cache
def federation(num_groups: int = 2, ragged: bool = True, rows: int = 12) -> FederatedData:
    """Returns the battery's federation of eight clients; its arrays have the same shapes for all arguments."""
    data = clustered_linear(CLIENTS, num_groups, rows, FEATURES, CLASSES, ragged=ragged)
    pool, owned = 2 * CLIENTS * ROWS, CLIENTS * ROWS
    splits = {name: replace(split, rows=_pad_rows(split.rows, owned)) for name, split in _splits(data)}
    none = np.zeros(CLIENTS, bool)  # an array in place of None: the same program as with held-out clients
    pools = {name: _pad_rows(getattr(data, name), pool) for name in POOL}
    return with_batch_width(replace(data, **pools, **splits, held_out=none, group_names=()))


def with_batch_width(data: FederatedData, rows: int = ROWS) -> FederatedData:
    """Returns the federation with batches of `rows` rows, by default the width of all batches of the battery."""
    return replace(data, **{name: replace(split, max_size=rows) for name, split in _splits(data)})


def _splits(data: FederatedData) -> list[tuple[str, Split]]:
    return [("train", data.train), ("test", data.test)]


def windowed(data: FederatedData, ids: Sequence[int]) -> FederatedData:
    """Returns a window of some clients, see `jaxfl.data.windows`, in arrays of the same shapes."""
    window = jax.tree.map(np.asarray, Windows(data, len(ids), ("train", "test")).of(ids))
    splits = {
        name: replace(getattr(window, name), rows=_pad_rows(getattr(window, name).rows, CLIENTS * ROWS))
        for name in ("train", "test")
    }
    return replace(window, **splits, **{name: _pad_rows(getattr(window, name), 2 * CLIENTS * ROWS) for name in POOL})


def _pad_rows(array: Any, length: int) -> np.ndarray:
    """Returns the array padded with zeros to a length; no client owns the added rows."""
    array = np.asarray(array)
    return np.pad(array, [(0, length - len(array)), *[(0, 0)] * (array.ndim - 1)])


def small_cohort(ids: Sequence[int] = COHORT, plan: Plan = Plan()) -> Cohort:
    """Returns a cohort of eight entries: the given clients, and client 5 under a False mask for the rest."""
    rest = CLIENTS - len(ids)
    mask = jnp.array([True] * len(ids) + [False] * rest)
    return Cohort(jnp.array([*ids, *[5] * rest], jnp.int32), mask, plan)


def full_cohort() -> Cohort:
    """Returns the cohort of all clients."""
    return small_cohort(range(CLIENTS))
