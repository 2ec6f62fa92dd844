"""The length of a client's training in a round, in epochs or steps, and the displacement of its steps.

The change of a model divided by its displacement is a mean of the gradients met on the way: what FedNova averages, and
what SCAFFOLD keeps of a client.
"""

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl.client import conduct
from jaxfl.client.corrections import proximal_pull
from jaxfl.client.fast.optimizer_programs import OptimizerProgram
from jaxfl.data.clients import FederatedData
from jaxfl.schema import check_type
from jaxfl.tasks import Task, without_averages
from jaxfl.typing import Array, Key, Params

Displacement = Callable[[Array, Array | None], Params]


class Steps(NamedTuple):
    """A number of optimiser steps of each client in a round, given as `local_epochs=Steps(20)` of any method.

    The steps take mini-batches of the same shuffled passes as epochs do, and go on in a new pass where a client's rows
    are used up: Steps(20) with batches of 10 are two epochs of a client with 100 rows, and half an epoch of one with
    400. A step of `batch_size=None` takes all rows, so that there it is an epoch. A client without rows makes no step.

    Attributes:
        number: of steps, the same for all clients; a straggler makes fewer.
    """

    number: int


Epochs = int | float | Steps  # of local training; half an epoch is 0.5


def check_epochs(local_epochs: Epochs, batch_size: int | None) -> None:
    """Raises TypeError or ValueError if `local_epochs` is no length of a training, or not with this batch size."""
    check_type("local_epochs", local_epochs, Epochs)
    number = local_epochs.number if isinstance(local_epochs, Steps) else local_epochs
    name, least = ("local_epochs", "above 0") if number is local_epochs else ("local_steps", "at least 1")
    check_type(name, number, int if name == "local_steps" else float)
    if not number > 0:
        raise ValueError(f"{name} must be {least}, got {number}; 5 is usual.")
    if number >= 2**31:
        raise ValueError(f"{name} must be below 2^31, got {number}; 5 is usual.")
    if batch_size is None and number != int(number):
        raise ValueError(
            f"local_epochs must be whole with batch_size=None, whose step takes all rows, got {number}; give a batch "
            "size."
        )


def whole_epochs(local_epochs: Epochs, batch_size: int | None) -> int | None:
    """Returns the number of epochs of all clients; None where it is none, or not the same for all.

    >>> whole_epochs(2, 10), whole_epochs(0.5, 10), whole_epochs(Steps(3), 10), whole_epochs(Steps(3), None)
    (2, None, None, 3)
    """
    if isinstance(local_epochs, Steps):
        return local_epochs.number if batch_size is None else None
    return int(local_epochs) if local_epochs == int(local_epochs) else None


def step_count(key: Key, data: FederatedData, client: Array, local_epochs: Epochs, batch_size: int | None) -> Array:
    """Returns the number of steps of a client's local training `[]` int32, a straggler's too; 0 without rows.

    Args:
        key: the client's of this round, the one that it trains with.
        data: the federation.
        client: its id `[]`.
        local_epochs: E, or `Steps`; a part of an epoch is rounded up to whole steps.
        batch_size: B; None takes all rows at once, one step an epoch.

    >>> from jaxfl.data import synthetic
    >>> data = synthetic.clustered_linear(num_clients=4, num_groups=2, rows=5)
    >>> [int(step_count(jax.random.key(0), data, jnp.int32(0), 3, size)) for size in (None, 2)]
    [3, 9]
    >>> [int(step_count(jax.random.key(0), data, jnp.int32(0), epochs, 2)) for epochs in (0.5, Steps(4))]
    [2, 4]
    """
    return jnp.asarray(trip_count(key, data, client, local_epochs, batch_size), jnp.int32)


def trip_count(
    key: Key, data: FederatedData, client: Array, local_epochs: Epochs, batch_size: int | None
) -> int | Array:
    """Returns `step_count`, as a Python number where all clients make as many."""
    if data.most_steps is not None:  # what of it fits before a deadline
        full = dataclasses.replace(data, most_steps=None)
        return jnp.minimum(trip_count(key, full, client, local_epochs, batch_size), data.most_steps[client])
    in_one = max(data.train.max_size, 1) if batch_size is None else min(batch_size, max(data.train.max_size, 1))
    of_epoch = -(-row_count(data, client) // in_one)
    if (epochs := whole_epochs(local_epochs, batch_size)) is not None:
        return of_epoch * conduct.training_length(key, data, epochs)
    if isinstance(local_epochs, Steps):
        full = local_epochs.number if isinstance(of_epoch, int) else jnp.int32(local_epochs.number)
    else:  # in whole numbers: 0.1 of 30 steps are 3, where the product of floats is more
        share = Fraction(float(local_epochs)).limit_denominator(1000) or Fraction(1, 1000)
        full = -(-of_epoch * share.numerator // share.denominator)
    steps = conduct.training_length(key, data, full)
    if isinstance(of_epoch, int):
        return steps if of_epoch else 0
    return jnp.where(of_epoch > 0, steps, 0)


def most_passes(local_epochs: Epochs, steps: int) -> int:
    """Returns how many epochs a client at most begins, where an epoch of the longest client has `steps` steps."""
    return -(-local_epochs.number // steps) if isinstance(local_epochs, Steps) else math.ceil(local_epochs)


def row_count(data: FederatedData, client: Array) -> int | Array:
    """Returns the number of a client's training rows; a Python number where all have as many, off the CPU.

    A loop of that many steps needs no test of which clients are done. On a GPU the host then waits for no answer after
    each step, and models of clients side by side are updated in place, and not selected from the old and the new one.
    On a CPU it is not faster: logistic models side by side took a tenth more.

    >>> from jaxfl.data import load
    >>> int(row_count(load("rotated-digits", num_clients=4, rows_per_client=20), jnp.int32(3)))
    20
    """
    return data.train.max_size if data.filled == 1 and jax.default_backend() != "cpu" else data.train.size[client]


def displacement(task: Task, optimizer: optax.GradientTransformation, *, pull: float | Array = 0.0) -> Displacement:
    """Returns `(steps, rate) -> model of []`: the displacement of steps along a gradient of 1, for each array.

    With SGD of rate eta these are K steps of eta, eta K; with momentum rho they are
    eta (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho), and with a pull mu (1 - (1 - eta mu)^K) / mu: eta |a|_1, with a
    the accumulation vector of FedNova. It is read off the optimiser itself, which is run on one number for each array.
    Weight decay is part of the gradient, and does not count. Running averages of a task make no steps: 0.

    Args:
        task: what is learned.
        optimizer: the local optimiser, without the pull.
        pull: mu, of a `proximal_pull` in front of it.

    Returns:
        A function of `steps []` and of `rate []`, the learning-rate factor of the round, or None (see
        `jaxfl.scheduled`).

    Raises:
        ValueError: the optimiser does more than add and scale, or looks at sizes.

    >>> from jaxfl.testing.small import linear_task
    >>> far = displacement(linear_task(), optax.sgd(0.5, momentum=0.5))
    >>> far(jnp.int32(3), None)["bias"].tolist()  # 0.5 * (1 + 1.5 + 1.75)
    2.125
    """
    optimizer, pulled = optax.with_extra_args_support(optimizer), proximal_pull(pull)
    model = jax.eval_shape(task.init, jax.random.key(0))
    # as many axes as the model's arrays: rates of their own for kernels and biases go by them
    small = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1,) * leaf.ndim, leaf.dtype), model)
    if _check_linear(optimizer, model).written != _check_linear(optimizer, small).written:
        raise ValueError(
            "optimizer must treat arrays of all sizes alike, got one that looks at shapes: its steps are read "
            "off one number for each array; choose arrays by their names or their number of axes."
        )

    def run(steps: Array, rate: Array | None) -> Params:
        start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), small)
        one = without_averages(task.averages, jax.tree.map(jnp.ones_like, start))

        def step(_: Array, carry: tuple[Params, optax.OptState]) -> tuple[Params, optax.OptState]:
            place, state = carry
            gradient = pulled.update(one, optax.EmptyState(), place, anchor=start)[0]
            # at `start`, where weight decay is nothing
            updates, state = optimizer.update(gradient, state, start, anchor=start, correction=start)
            return optax.apply_updates(place, conduct.scale_updates(updates, rate)), state

        place, _ = jax.lax.fori_loop(0, steps, step, (start, optimizer.init(start)))
        return jax.tree.map(lambda leaf: -leaf.reshape(()), place)

    return run


def mean_gradient(change: Params, displaced: Params) -> Params:
    """Returns a change of a model divided by the displacement of its steps, and unchanged where that is 0."""
    return jax.tree.map(lambda leaf, far: leaf / jnp.where(far > 0, far, 1), change, displaced)


def _check_linear(optimizer: optax.GradientTransformationExtraArgs, model: Params) -> OptimizerProgram:
    """Returns an optimiser's program; raises ValueError if it does more to a gradient than add and scale."""
    program = OptimizerProgram.of(optimizer, model, {"anchor": model, "correction": model}, {})
    if not all(program.follows(position) for position in range(program.leaves)):
        raise ValueError(
            "optimizer must only add and scale gradients, as SGD does with momentum, weight decay and schedules, got "
            "one that does more, as Adam and clipping do: its steps do not give the mean gradient; take optax.sgd(0.1)."
        )
    return program
