"""Full-batch training without touching a first dense layer: exact, and several times as fast where rows are few.

A client that takes all of its rows x [n, d] in every step multiplies the same x with its first kernel W [d, h] again
and again. The gradient of W is x^T g, with g [n, h] that of the products z = x W, so W never leaves

    W = x^T A + a * W_0 + b * V + ...        (a, b [h]: one factor per column)

where W_0 is the kernel that it starts from and V another one that the optimiser refers to (the anchor of a proximal
term). Training on the coordinates (A, a, b) in place of W is the same training, for every optimiser that only adds and
scales: SGD with momentum, Nesterov's too, weight decay, schedules, proximal pulls. The loss needs the products alone,

    x W = (x x^T) A + a * (x W_0) + b * (x V),

so that a step costs n^2 h operations for the layer instead of 4 n d h, and no pass over W; W itself is made once at the
end. Whether an optimiser is of that kind is read off its program (`follows`), never guessed by its name.

All of this is decided while a program is traced. `answers` tells who traces it what was decided, for a footprint and a
run's summary: they report what was compiled, where a rule of their own would be a second guess at it.
"""

import contextlib
import enum
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.extend import core

from jaxfl import tree
from jaxfl.data.clients import Batch
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params


class Factored(NamedTuple):
    """A client's training in coordinates.

    Attributes:
        model: what training starts from: the model with the coordinates `[n + k, h]` of its first kernel in the
            kernel's place, rows of x before the k kernels.
        extra: the optimiser's extra arguments, likewise.
        loss_and_gradient: `(model, key) -> (loss, gradient)` of such a model.
        restore: `model -> model`: with the kernel.
    """

    model: Params
    extra: dict[str, Any]
    loss_and_gradient: Callable[[Params, Key], tuple[Array, Params]]
    restore: Callable[[Params], Params]


def factor(
    task: Task,
    optimizer: optax.GradientTransformationExtraArgs,
    model: Params,
    batch: Batch,
    extra: dict[str, Any],
    steps: int,
) -> Factored | str:
    """Returns the same training in coordinates; or why not, where it would not be the same or not be faster.

    Args:
        task: what is learned; `task.first` says where its first dense layer is.
        optimizer: the local optimiser.
        model: what training starts from.
        batch: the rows of every step `[n, ...]`.
        extra: what the optimiser's update is given by name. Trees like the model (an anchor) get coordinates as well.
        steps: how many steps training takes, or at most.
    """
    first = task.first
    if first is None:
        return "no first dense layer is known"
    position = tree.names(model).index(first.kernel)
    x, kernel = first.inputs(batch), jax.tree.leaves(model)[position]
    rows, (inputs, outputs) = x.shape[0], kernel.shape
    dear = f"no faster with {rows} rows of {inputs} numbers and {steps} steps"
    if x.dtype != kernel.dtype:
        return f"rows are {x.dtype}, the kernel {kernel.dtype}"
    if not _pays(rows, inputs, outputs, steps, kernels=1):
        return dear
    alike = {name: value for name, value in extra.items() if tree_like(value, model)}
    others = {name: value for name, value in extra.items() if name not in alike}
    program = Program.of(optimizer, model, alike, others)
    if not program.follows(position):
        return "the optimiser does more than add and scale"
    used = [name for name in program.used(position) if name in alike]
    kernels = [kernel, *(jax.tree.leaves(alike[name])[position] for name in used)]
    if not _pays(rows, inputs, outputs, steps, kernels=len(kernels)):
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

    def loss_and_gradient(model: Params, key: Key) -> tuple[Array, Params]:
        leaf = jax.tree.leaves(model)[position]  # [n + k, h]
        z = gram @ leaf + sum(leaf[rows + i][None, :] * one for i, one in enumerate(products))
        loss, (gradient, slope) = jax.value_and_grad(first.loss, (0, 1))(model, z, batch, key)
        return loss, replace(gradient, jnp.pad(slope, ((0, len(kernels)), (0, 0))))

    def restore(model: Params) -> Params:
        leaf = jax.tree.leaves(model)[position]
        return replace(model, x.T @ leaf[:rows] + sum(leaf[rows + i][None, :] * one for i, one in enumerate(kernels)))

    return Factored(start, {**others, **turned}, loss_and_gradient, restore)


_told: ContextVar[list[str] | None] = ContextVar("told", default=None)


@contextlib.contextmanager
def answers() -> Iterator[list[str]]:
    """Gives a list that fills, while programs are traced inside, with what is decided for each local training.

    >>> with answers() as told:
    ...     tell("mini-batches")
    >>> told, in_words(told)
    (['no: mini-batches'], 'no: mini-batches')
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


def in_words(told: Sequence[str]) -> str:
    """Returns all answers of a program as one.

    >>> in_words(["yes", "yes"]), in_words(["yes", "no: mini-batches"]), in_words([])
    ('yes', 'in part; no: mini-batches', 'no: nobody trains in local epochs')
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


def _pays(rows: int, inputs: int, outputs: int, steps: int, kernels: int) -> bool:
    """Returns whether coordinates take fewer operations, per row and output of the layer."""
    usual = 2 * steps * inputs  # x W and x^T g
    factored = (kernels + 1) * inputs + steps * rows + rows * inputs / outputs  # the last is x x^T
    return rows > 0 and factored < usual


class Kind(enum.IntEnum):
    """What is known of a number or array in an optimiser's program, with regard to one leaf of the model."""

    ZERO = 0
    UNIFORM = 1  # the same number everywhere, which the leaf has no part in: rates, counts
    FREE = 2  # anything else that the leaf has no part in: all other leaves
    COMBINED = 3  # a sum of the leaf's gradient, value, anchor, ..., each times a number that the leaf has no part in
    MIXED = 4  # all else


class Program(NamedTuple):
    """An optimiser's program for the leaves of a model: how its state starts, and one step."""

    init: core.ClosedJaxpr  # model -> state
    step: core.ClosedJaxpr  # (gradient, state, model, *extras) -> (model, state)
    leaves: int
    extras: tuple[str, ...]

    @classmethod
    def of(
        cls,
        optimizer: optax.GradientTransformationExtraArgs,
        model: Params,
        alike: dict[str, Params],
        others: dict[str, Any],
    ) -> "Program":
        """Reads the program; `alike` are the extra arguments that are trees like the model, `others` all others."""
        names = tuple(alike)

        def step(gradient: Params, state: Any, model: Params, *extras: Params):
            updates, state = optimizer.update(gradient, state, model, **dict(zip(names, extras, strict=True)), **others)
            return optax.apply_updates(model, updates), state

        init, state = jax.make_jaxpr(optimizer.init, return_shape=True)(model)
        program = jax.make_jaxpr(step)(model, state, model, *alike.values())
        return cls(init, program, len(jax.tree.leaves(model)), names)

    def follows(self, position: int) -> bool:
        """Returns whether training moves the leaf by sums of multiples alone, and no other leaf by it.

        The kinds of the state are those after any number of steps: they are followed until they stay.

        >>> model, momentum = {"w": jnp.ones((3, 2))}, optax.sgd(0.1, momentum=0.9)
        >>> clipped = optax.chain(optax.clip(1.0), momentum)
        >>> [Program.of(optax.with_extra_args_support(o), model, {}, {}).follows(0) for o in (momentum, clipped)]
        [True, False]
        """
        own = [Kind.COMBINED if leaf == position else Kind.FREE for leaf in range(self.leaves)]
        state = _kinds(self.init, own)
        while True:
            after = _kinds(self.step, [*own, *state, *own, *own * len(self.extras)])
            model, joined = after[: self.leaves], list(map(_join, state, after[self.leaves :]))
            if joined == state:
                break
            state = joined
        others = model[:position] + model[position + 1 :]
        return model[position] in (Kind.ZERO, Kind.COMBINED) and max(others, default=Kind.ZERO) <= Kind.FREE

    def used(self, position: int) -> list[str]:
        """Returns the names of the extras whose leaf at `position` has a part in the step."""
        read = {id(atom) for equation in self.step.jaxpr.eqns for atom in equation.invars}
        read |= {id(atom) for atom in self.step.jaxpr.outvars}
        given = self.step.jaxpr.invars[len(self.step.jaxpr.invars) - self.leaves * len(self.extras) :]
        return [name for i, name in enumerate(self.extras) if id(given[self.leaves * i + position]) in read]

    @property
    def written(self) -> list[Any]:
        """The operations and the numbers written in them, without shapes."""
        return [_written(part.jaxpr) for part in (self.init, self.step)]


CALLS = ("jit", "pjit", "closed_call")  # programs within a program


def _kinds(program: core.ClosedJaxpr, given: Sequence[Kind]) -> list[Kind]:
    """Returns the kinds of a program's results from those of its arguments."""
    jaxpr = program.jaxpr
    constants = [Kind.UNIFORM if np.size(value) == 1 else Kind.FREE for value in program.consts]
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *given], strict=True))

    def kind(atom: Any) -> Kind:
        if isinstance(atom, core.Literal):
            return Kind.ZERO if np.all(atom.val == 0) else Kind.UNIFORM
        return known[atom]

    for equation in jaxpr.eqns:
        arguments = [kind(atom) for atom in equation.invars]
        if equation.primitive.name in CALLS:
            results = _kinds(equation.params["jaxpr"], arguments)
        else:
            results = [_result(equation, arguments, out) for out in equation.outvars]
        known.update(zip(equation.outvars, results, strict=True))
    return [kind(atom) for atom in jaxpr.outvars]


def _result(equation: core.JaxprEqn, given: list[Kind], out: Any) -> Kind:
    """Returns the kind of one operation's result."""
    name = equation.primitive.name
    if max(given, default=Kind.FREE) <= Kind.FREE:
        if name in ("mul", "div") and Kind.ZERO in given[: 1 if name == "div" else 2]:
            return Kind.ZERO
        alike = name in ("add", "sub", "neg", "copy", "convert_element_type", "broadcast_in_dim")
        kind = max(given) if alike else Kind.FREE
        return min(kind, Kind.UNIFORM) if math.prod(out.aval.shape) == 1 else kind
    source: Any = equation.invars[0].aval
    added = all(kind in (Kind.ZERO, Kind.COMBINED) for kind in given[1:])  # all but the first
    combined = {
        "add": lambda: added and given[0] in (Kind.ZERO, Kind.COMBINED),
        "add_any": lambda: added and given[0] in (Kind.ZERO, Kind.COMBINED),
        "sub": lambda: added and given[0] in (Kind.ZERO, Kind.COMBINED),
        "mul": lambda: min(given) <= Kind.UNIFORM and max(given) == Kind.COMBINED,
        "div": lambda: given[0] == Kind.COMBINED and given[1] <= Kind.UNIFORM,
        "select_n": lambda: added and given[0] <= Kind.UNIFORM,  # the first is what selects
        "convert_element_type": lambda: given[0] == Kind.COMBINED and source.dtype == out.aval.dtype,
        "copy": lambda: given[0] == Kind.COMBINED,
        "neg": lambda: given[0] == Kind.COMBINED,
    }
    return Kind.COMBINED if name in combined and combined[name]() else Kind.MIXED


def _join(one: Kind, other: Kind) -> Kind:
    """Returns the kind of what may be of either."""
    low, high = sorted((one, other))
    return high if low in (high, Kind.ZERO) or high <= Kind.FREE else Kind.MIXED


def _written(jaxpr: core.Jaxpr) -> list[Any]:
    """Returns a program's operations and the numbers written in it."""
    return [
        (
            equation.primitive.name,
            [np.asarray(atom.val).tolist() for atom in equation.invars if isinstance(atom, core.Literal)],
            _written(equation.params["jaxpr"].jaxpr) if equation.primitive.name in CALLS else None,
        )
        for equation in jaxpr.eqns
    ]
