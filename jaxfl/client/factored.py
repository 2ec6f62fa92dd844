"""Training without touching a first dense layer: exact, and several times as fast where a client's rows are few.

A client that goes through its rows x [n, d] multiplies them with its first kernel W [d, h] in every step. The gradient
of W is x^T g, with g [n, h] that of the products z = x W and 0 for rows that are not in the batch, so W never leaves

    W = x^T A + a * W_0 + b * V + ...        (a, b [h]: one factor per column)

where W_0 is the kernel that it starts from and V another one that the optimiser refers to (the anchor of a proximal
term). Training on the coordinates (A, a, b) in place of W is the same training, for every optimiser that only adds and
scales: SGD with momentum, Nesterov's too, weight decay, schedules, proximal pulls. The loss needs the products alone,

    x W = (x x^T) A + a * (x W_0) + b * (x V),

so that a step on B rows costs B n h operations for the layer instead of 4 B d h, and no pass over W: mini-batches gain
most by that. W itself is made once at the end. Whether an optimiser is of that kind is read off its program
(`follows`), never guessed by its name.

All of this is decided while a program is traced. `answers` tells who traces it what was decided, for a footprint and a
run's summary: they report what was compiled, where a rule of their own would be a second guess at it.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.programs import Program
from jaxfl.data.clients import Batch
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

PASS = 8  # multiplications that fit into the time in which a step reads and writes a number of the kernel


class Factored(NamedTuple):
    """A client's training in coordinates.

    Attributes:
        model: what training starts from: the model with the coordinates `[n + k, h]` of its first kernel in the
            kernel's place, rows of x before the k kernels.
        extra: the optimiser's extra arguments, likewise.
        loss_and_gradient: `(model, key, positions) -> (loss, gradient)` of such a model; of the rows at
            `positions [B]`, which must differ, or of all where they are None.
        restore: `model -> model`: with the kernel.
    """

    model: Params
    extra: dict[str, Any]
    loss_and_gradient: Callable[[Params, Key, Array | None], tuple[Array, Params]]
    restore: Callable[[Params], Params]


def factor(
    task: Task,
    optimizer: optax.GradientTransformationExtraArgs,
    model: Params,
    batch: Batch,
    extra: dict[str, Any],
    epochs: int,
    steps: int = 1,
) -> Factored | str:
    """Returns the same training in coordinates; or why not, where it would not be the same or not be faster.

    Args:
        task: what is learned; `task.first` says where its first dense layer is.
        optimizer: the local optimiser.
        model: what training starts from.
        batch: the rows that it takes in an epoch `[n, ...]`.
        extra: what the optimiser's update is given by name. Trees like the model (an anchor) get coordinates as well.
        epochs: how often training takes them all, or at most.
        steps: of an epoch: one, of all rows, or more, of a mini-batch each.
    """
    first = task.first
    if first is None:
        return "no first dense layer is known"
    position = tree.names(model).index(first.kernel)
    x, kernel = first.inputs(batch), jax.tree.leaves(model)[position]
    rows, (inputs, outputs) = x.shape[0], kernel.shape
    dear = f"no faster with {rows} rows of {inputs} numbers and {epochs * steps} steps"
    if x.dtype != kernel.dtype:
        return f"rows are {x.dtype}, the kernel {kernel.dtype}"
    if not _pays(rows, inputs, outputs, epochs, steps, kernels=1):
        return dear
    alike = {name: value for name, value in extra.items() if tree_like(value, model)}
    others = {name: value for name, value in extra.items() if name not in alike}
    program = Program.of(optimizer, model, alike, others)
    if not program.follows(position):
        return "the optimiser does more than add and scale"
    used = [name for name in program.used(position) if name in alike]
    kernels = [kernel, *(jax.tree.leaves(alike[name])[position] for name in used)]
    if not _pays(rows, inputs, outputs, epochs, steps, kernels=len(kernels)):
        return dear

    nothing = jnp.zeros((rows + len(kernels), outputs), kernel.dtype)

    def replace(model: Params, leaf: Array) -> Params:
        leaves, structure = jax.tree.flatten(model)
        return jax.tree.unflatten(structure, [*leaves[:position], leaf, *leaves[position + 1 :]])

    def coordinates(model: Params, index: int | None) -> Params:
        return replace(model, nothing if index is None else nothing.at[rows + index].set(1))

    start = coordinates(model, 0)
    # an extra that the optimiser does not use is not worth a product with x
    turned = {name: coordinates(value, 1 + used.index(name) if name in used else None) for name, value in alike.items()}
    if Program.of(optimizer, start, turned, others).written != program.written:
        return "the optimiser looks at shapes"

    products = [x @ one for one in kernels]  # k * [n, h]
    gram = jnp.pad(x @ x.T, ((0, 0), (0, len(kernels))))  # [n, n + k]: cheaper than to cut the rows out of the leaf

    def loss_and_gradient(model: Params, key: Key, positions: Array | None = None) -> tuple[Array, Params]:
        leaf = jax.tree.leaves(model)[position]  # [n + k, h]
        own, others, part = gram, products, batch
        if positions is not None:
            own, others, part = tree.take((gram, products, batch), positions)
        z = own @ leaf + sum(leaf[rows + i][None, :] * one for i, one in enumerate(others))
        loss, (gradient, slope) = jax.value_and_grad(first.loss, (0, 1))(model, z, part, key)
        if positions is None:
            return loss, replace(gradient, jnp.pad(slope, ((0, len(kernels)), (0, 0))))
        return loss, replace(gradient, jnp.zeros_like(leaf).at[positions].set(slope, unique_indices=True))

    def restore(model: Params) -> Params:
        leaf = jax.tree.leaves(model)[position]
        return replace(model, x.T @ leaf[:rows] + sum(leaf[rows + i][None, :] * one for i, one in enumerate(kernels)))

    return Factored(start, {**others, **turned}, loss_and_gradient, restore)


_told: ContextVar[list[str] | None] = ContextVar("told", default=None)


@contextlib.contextmanager
def answers() -> Iterator[list[str]]:
    """Gives a list that fills, while programs are traced inside, with what is decided for each local training.

    >>> with answers() as told:
    ...     tell("no first dense layer is known")
    >>> told, in_words(told)
    (['no: no first dense layer is known'], 'no: no first dense layer is known')
    """
    told: list[str] = []
    token = _told.set(told)
    try:
        yield told
    finally:
        _told.reset(token)


def tell(why_not: str | None) -> None:
    """Says that a local training takes the shorter form, or why it does not, to who has asked for `answers`."""
    if (told := _told.get()) is not None:
        told.append("yes" if why_not is None else f"no: {why_not}")


def repeat(told: Sequence[str]) -> None:
    """Says again what was decided when a program was traced, where it is used once more."""
    if (listening := _told.get()) is not None:
        listening.extend(told)


def in_words(told: Sequence[str]) -> str:
    """Returns all answers of a program as one.

    >>> in_words(["yes", "yes"]), in_words(["yes", "no: too few"]), in_words([])
    ('yes', 'in part; no: too few', 'no: nobody trains in local epochs')
    """
    different = sorted(set(told) - {"yes"})
    if "yes" in told:
        return "; ".join(["in part", *different]) if different else "yes"
    return "; ".join(different) or "no: nobody trains in local epochs"


def tree_like(value: Any, model: Params) -> bool:
    """Returns whether `value` is a tree of arrays of the model's shapes."""
    if jax.tree.structure(value) != jax.tree.structure(model):
        return False
    return all(
        jnp.shape(a) == jnp.shape(b) for a, b in zip(jax.tree.leaves(value), jax.tree.leaves(model), strict=True)
    )


def _pays(rows: int, inputs: int, outputs: int, epochs: int, steps: int, kernels: int) -> bool:
    """Returns whether coordinates take less work, per row and output of the layer; a pass over a kernel is work too."""
    usual = 2 * epochs * inputs + PASS * epochs * steps * inputs / rows  # x W and x^T g
    factored = (kernels + 1) * inputs + epochs * rows + rows * inputs / outputs + PASS * epochs * steps
    return rows > 0 and factored < usual
