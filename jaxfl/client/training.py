"""Local training of a client: the inner loop of all methods.

Trip counts depend on the data (each client runs through its own number of batches), so ragged clients cost what they
have; under vmap a chunk runs to its largest client. The last, partial batch of an epoch is used, masked, and averaged
over its true count; a client without rows makes no step.

Stragglers and attackers (see `jaxfl.data.conditions`) and the learning-rate factor of a round (see `jaxfl.scheduled`)
are part of it. So is the length of a training, see `jaxfl.client.steps.Steps`: whole epochs, a part of one, or steps.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client import conduct, operations
from jaxfl.client.fast import coordinates
from jaxfl.client.fast.coordinates import TrainingForm
from jaxfl.client.passes import BLOCK_ROWS, batch_shape, gradient_rows, training_batch, unperturbed_gradient
from jaxfl.client.steps import Epochs, check_epochs, most_passes, row_count, trip_count, whole_epochs
from jaxfl.data.clients import FederatedData
from jaxfl.random import Stream, key_for
from jaxfl.schema import check_type
from jaxfl.tasks import Averages, Task, without_averages
from jaxfl.tasks.contract import averages_of
from jaxfl.typing import Array, Key, Params

MOST_READY_ROWS = 1024  # rows that a client has ready, and as many products of each with the others: 4 MB

Train = Callable[..., tuple[Params, Any]]
Descend = Callable[[Params, optax.OptState, Params, dict, Array | None], tuple[Params, optax.OptState]]


def local_train(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    local_epochs: Epochs,
    batch_size: int | None,
    block: int = BLOCK_ROWS,
    recorded_steps: int = 0,
) -> Train:
    """Returns a client's local training.

    Args:
        task: what is learned.
        optimizer: the local optimiser; its state starts fresh in every round.
        local_epochs: E, passes over the client's rows, of which the last may be a part (0.5); or a number of steps,
            `jaxfl.Steps(20)`. A straggler makes fewer.
        batch_size: B, rows of a step, reshuffled in every epoch; None takes all rows at once: one full-batch step an
            epoch.
        block: rows taken at once in a full-batch pass, see `BLOCK_ROWS`.
        recorded_steps: S, first steps whose losses are returned, too.

    Returns:
        `(key, model, data, client, row_weights=None, **extra) -> (model, loss)`: `key` is the client's key of this
        round, `row_weights [n]` become the `weights` of the batches, `extra` goes to the optimiser (`anchor=...`),
        `loss` is the mean training loss over the steps, 0 for a client without rows. An attacker's model is perturbed.
        With recorded steps, `(model, (loss, losses [S]))`: the loss of each step's batch
        before the step, 0 of steps that are not made.

    Raises:
        TypeError: `optimizer` is no optax optimiser.
        ValueError: `local_epochs` or `batch_size` is out of range.
    """
    check_type("optimizer", optimizer, optax.GradientTransformation)
    check_epochs(local_epochs, batch_size)
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}; None takes all of a client's rows at once.")
    optimizer = checked_optimizer(optimizer)
    averages = averages_of(task)
    descend = descent_step(optimizer, averages)
    task = task if averages is None else task._replace(loss=averages.loss)
    if batch_size is None:
        epochs = whole_epochs(local_epochs, None) or 0  # checked to be whole
        return _full_batch(task, optimizer, descend, epochs, block, recorded_steps)
    return _mini_batches(task, optimizer, descend, local_epochs, batch_size, block, recorded_steps)


def checked_optimizer(optimizer: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Returns the optimiser, which raises an error if it needs more than a step has: a loss, a key, another model."""
    optimizer = optax.with_extra_args_support(optimizer)

    def init(params: Params) -> Any:
        state = optimizer.init(params)
        if tree.has_keys(state):
            raise ValueError(
                "optimizer must draw no random numbers, which would be the same for every client and round, got one "
                "with a key in its state (optax.add_noise); add noise in a method of your own."
            )
        return state

    def update(updates, state, params=None, **extra):
        try:
            return optimizer.update(updates, state, params, **extra)
        except (TypeError, ValueError, AttributeError) as error:
            has = ", ".join(["the gradient, its state and the model", *extra])
            raise TypeError(
                f"optimizer makes no local step: {str(error).rstrip('.')}. A step has {has}; what "
                "needs more, as the loss or a model of its own kind, cannot be used: optax.sgd(0.1) can."
            ) from error

    return optax.GradientTransformationExtraArgs(init, update)


def descent_step(optimizer: optax.GradientTransformationExtraArgs, averages: Averages | None) -> Descend:
    """Returns `(model, state, gradient, extra, rate) -> (model, state)`, one step of the optimiser.

    Running averages get new values, and the optimiser sees none of them: a pull or a decay of theirs would be in the
    norm of the whole step, which may be clipped.
    """

    def descend(model, state, gradient, extra, rate):
        gradient = _order_updates(gradient) if jax.default_backend() == "cpu" else gradient
        updates, state = optimizer.update(gradient, state, model, **extra)
        return optax.apply_updates(model, conduct.scale_updates(updates, rate)), state

    if averages is None:
        return descend

    def descend_beside(model, state, gradient, extra, rate):
        chosen, shape = averages.chosen(model), jax.tree.structure(model)

        def hidden(values: Any) -> Any:
            return without_averages(averages, values) if jax.tree.structure(values) == shape else values

        extra = {name: hidden(values) for name, values in extra.items()}
        moved, state = descend(hidden(model), state, hidden(gradient), extra, rate)
        return jax.tree.map(lambda one, value, leaf: value if one else leaf, chosen, gradient, moved), state

    return descend_beside


def _full_batch(
    task: Task,
    optimizer: optax.GradientTransformationExtraArgs,
    descend: Descend,
    local_epochs: int,
    block: int,
    recorded_steps: int,
) -> Train:
    """Returns `local_train` with a step of all rows per epoch."""

    def train(
        key: Key, model: Params, data: FederatedData, client: Array, row_weights: Array | None = None, **extra
    ) -> tuple[Params, Any]:
        epochs = conduct.training_length(key, data, local_epochs)
        # without rows no step is made: momentum and proximal terms would move the model at gradient zero
        steps = trip_count(key, data, client, local_epochs, None)
        epochs = epochs if data.most_steps is None else jnp.maximum(steps, 1)
        shorter: TrainingForm | str = f"a client may have more than {block} rows"
        if filled := _filled_share(data, data.train.max_size, block):  # the same rows in every step: made ready once
            batch = training_batch(data, client, jnp.arange(data.train.max_size, dtype=jnp.int32), row_weights)
            shorter = coordinates.in_coordinates(task, optimizer, model, batch, extra, local_epochs, filled=filled)

        def gradient(model: Params, memory: Any, key: Key, positions: Any) -> tuple[Array, Params, Any]:
            if filled and data.train.max_size <= gradient_rows(task, model, block):
                return *jax.value_and_grad(task.loss)(model, batch, key), memory
            return *unperturbed_gradient(task, block)(model, data, client, key, row_weights), memory

        form = coordinates.choose(shorter, TrainingForm(model, extra, gradient))

        def epoch(index: Array, carry):
            model, state, memory, total, losses = carry
            dropout = key_for(key, Stream.DROPOUT, index)
            loss, gradient, memory = form.loss_and_gradient(model, memory, dropout, None)
            losses = _record_loss(losses, index, loss)
            return *descend(model, state, gradient, form.extra, data.rate), memory, total + loss, losses

        dtype = jax.eval_shape(task.loss, model, batch_shape(data), key).dtype
        losses = jnp.zeros(recorded_steps, dtype) if recorded_steps else None
        carry = (form.model, optimizer.init(form.model), form.memory, jnp.zeros((), dtype), losses)
        with operations.noting(False):  # at once, below
            trained, _, memory, total, losses = jax.lax.fori_loop(0, steps, epoch, carry)
        if operations.are_noted():
            of_step = jax.value_and_grad(task.loss), model, operations.batch_of(data, data.train.max_size), key
            rows = steps * data.train.size[client]
            operations.note_training(total, *of_step, client=client, rows=rows, width=data.train.max_size)
        sent = conduct.perturb_model(key, model, form.restore(trained, memory), data, client)
        loss = total / jnp.asarray(epochs).astype(dtype)
        return sent, loss if losses is None else (loss, losses)

    return train


def _mini_batches(
    task: Task,
    optimizer: optax.GradientTransformationExtraArgs,
    descend: Descend,
    local_epochs: Epochs,
    batch_size: int,
    block: int,
    recorded_steps: int,
) -> Train:
    """Returns `local_train` with a step per mini-batch."""

    def train(
        key: Key, model: Params, data: FederatedData, client: Array, row_weights: Array | None = None, **extra
    ) -> tuple[Params, Any]:
        size = row_count(data, client)
        width = min(batch_size, max(data.train.max_size, 1))
        slots = -(-max(data.train.max_size, 1) // width) * width  # the longest client, rounded up to whole batches

        def of_pool(model: Params, memory: Any, key: Key, positions: Any) -> tuple[Array, Params, Any]:
            batch = training_batch(data, client, positions, row_weights)
            return *jax.value_and_grad(task.loss)(model, batch, key), memory

        usual, shorter = of_pool, f"a client may have more than {block} rows"
        if filled := _filled_share(data, slots, block):
            rows = training_batch(data, client, jnp.arange(slots, dtype=jnp.int32), row_weights)

            def of_rows(model: Params, memory: Any, key: Key, positions: Any) -> tuple[Array, Params, Any]:
                return *jax.value_and_grad(task.loss)(model, tree.take(rows, positions), key), memory

            # on a GPU rows that many clients have ready are four times what their pixels are, to be read in every step
            if slots <= block and (jax.default_backend() == "cpu" or data.tilt is not None):
                usual = of_rows  # made ready once
            passes = most_passes(local_epochs, slots // width)
            shorter = coordinates.in_coordinates(
                task, optimizer, model, rows, extra, passes, slots // width, filled=filled
            )
        form = coordinates.choose(shorter, TrainingForm(model, extra, usual))
        of_epoch = -(-size // width)  # steps
        whole = whole_epochs(local_epochs, batch_size)
        if whole is not None and data.most_steps is None:
            epochs, last = conduct.training_length(key, data, whole), None
            rows_seen = epochs * jnp.maximum(size, 1)
        else:  # the last epoch may be a part of one
            steps = trip_count(key, data, client, local_epochs, batch_size)
            epochs = -(-steps // jnp.maximum(of_epoch, 1))
            last = steps - (epochs - 1) * of_epoch
            rows_seen = jnp.maximum((epochs - 1) * size + jnp.minimum(last * width, size), 1)

        def epoch(carry, index: Array):
            # real rows sort first in a random order, padding after them
            bits = jax.random.bits(key_for(key, Stream.BATCHES, index), (slots,), jnp.uint32) >> 1
            padding = jnp.where(jnp.arange(slots, dtype=jnp.int32) < size, jnp.uint32(0), jnp.uint32(1) << 31)
            order = jnp.argsort(bits | padding).astype(jnp.int32)

            def step(number: Array, carry):
                model, state, memory, total, losses = carry
                positions = jax.lax.dynamic_slice(order, (number * width,), (width,))
                dropout = key_for(key, Stream.DROPOUT, index, number)
                loss, gradient, memory = form.loss_and_gradient(model, memory, dropout, positions)
                count = (positions < size).sum()
                if losses is not None:
                    made = jnp.asarray(index, jnp.int32) * -(-size // width)
                    losses = _record_loss(losses, made + jnp.asarray(number, jnp.int32), loss)
                return (
                    *descend(model, state, gradient, form.extra, data.rate),
                    memory,
                    total + loss * count.astype(loss.dtype),
                    losses,
                )

            steps = of_epoch if last is None else jnp.where(index == epochs - 1, last, of_epoch)
            return jax.lax.fori_loop(0, steps, step, carry), None

        dtype = jax.eval_shape(task.loss, model, batch_shape(data), key).dtype
        losses = jnp.zeros(recorded_steps, dtype) if recorded_steps else None
        carry = (form.model, optimizer.init(form.model), form.memory, jnp.zeros((), dtype), losses)
        with operations.noting(False):  # at once, below
            if isinstance(epochs, int):
                (trained, _, memory, total, losses), _ = jax.lax.scan(epoch, carry, jnp.arange(epochs))
            else:
                carry = jax.lax.fori_loop(0, epochs, lambda index, carry: epoch(carry, index)[0], carry)
                trained, _, memory, total, losses = carry
        if operations.are_noted():
            of_step = jax.value_and_grad(task.loss), model, operations.batch_of(data, width), key
            rows = jnp.where(size > 0, rows_seen, 0)
            operations.note_training(total, *of_step, client=client, rows=rows, width=width)
        sent = conduct.perturb_model(key, model, form.restore(trained, memory), data, client)
        loss = total / rows_seen.astype(dtype)
        return sent, loss if losses is None else (loss, losses)

    return train


def _record_loss(losses: Array | None, step: Array, loss: Array) -> Array | None:
    """Returns the losses of the first steps `[S]` with that of a step, of a later one unchanged; None for none."""
    return None if losses is None else losses.at[step].set(loss, mode="drop")


def _filled_share(data: FederatedData, places: int, block: int) -> float:
    """Returns the filled share of `places` for each client's rows; 0 where coordinates are not tried.

    They take all places of all clients, where more than a block is otherwise walked through as far as there are rows.
    Places of one block are taken in either way, so that they count as filled.
    """
    if places <= block:
        return 1.0
    return data.filled if places <= MOST_READY_ROWS else 0.0


def _order_updates(gradient: Params) -> Params:
    """Returns the gradient, with each leaf made to wait for all the others.

    XLA updates a weight in place only if nothing can read it later. The product that carries the gradient below a layer
    reads that layer's weights, but their update does not wait for it, so XLA copies them first, in every step: 26 MB
    for LEAF's FEMNIST network. Adding nothing, made of every leaf, orders the two
    (`optimization_barrier` does not: the CPU compiler drops it before it decides on copies).
    """
    first = [leaf.ravel()[0] for leaf in jax.tree.leaves(gradient) if leaf.size]
    if not first:
        return gradient
    ones = jnp.stack([jnp.real(one).astype(jnp.float32) for one in first])
    # optimisers may drop what is not finite; behind the barrier it is computed once and not for every leaf
    nothing = jax.lax.optimization_barrier((0 * jnp.where(jnp.isfinite(ones), ones, 0)).sum())
    return jax.tree.map(lambda leaf: leaf + nothing.astype(leaf.dtype), gradient)
