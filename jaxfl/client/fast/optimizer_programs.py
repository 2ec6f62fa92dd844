"""Programs of optimisers: the effect on one leaf of a model, read off the operations.

Training in coordinates (`coordinates.py`) is the same training for every optimiser that only adds and scales. Whether
an optimiser is of that kind is followed through the operations of its program, one after the other, and never guessed
by its name.
"""

import enum
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.extend import core

from jaxfl.typing import Params


class ValueKind(enum.IntEnum):
    """Dependence of a number or array in an optimiser's program on one leaf of the model."""

    ZERO = 0
    UNIFORM = 1  # the same number everywhere, and independent of the leaf: rates, counts
    FREE = 2  # anything else that is independent of the leaf: all other leaves
    COMBINED = 3  # a sum of the leaf's gradient, value, anchor, ..., each times a number independent of the leaf
    MIXED = 4  # all else


class OptimizerProgram(NamedTuple):
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
    ) -> "OptimizerProgram":
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

        >>> import jax.numpy as jnp
        >>> model, momentum = {"w": jnp.ones((3, 2))}, optax.sgd(0.1, momentum=0.9)
        >>> both = map(optax.with_extra_args_support, (momentum, optax.chain(optax.clip(1.0), momentum)))
        >>> [OptimizerProgram.of(optimizer, model, {}, {}).follows(0) for optimizer in both]
        [True, False]
        """
        own = [ValueKind.COMBINED if leaf == position else ValueKind.FREE for leaf in range(self.leaves)]
        state = _result_kinds(self.init, own)
        while True:
            after = _result_kinds(self.step, [*own, *state, *own, *own * len(self.extras)])
            model, joined = after[: self.leaves], list(map(_join_kinds, state, after[self.leaves :]))
            if joined == state:
                break
            state = joined
        others = model[:position] + model[position + 1 :]
        return (
            model[position] in (ValueKind.ZERO, ValueKind.COMBINED)
            and max(others, default=ValueKind.ZERO) <= ValueKind.FREE
        )

    def used(self, position: int) -> list[str]:
        """Returns the names of the extras whose leaf at `position` has a part in the step."""
        read = {id(atom) for equation in self.step.jaxpr.eqns for atom in equation.invars}
        read |= {id(atom) for atom in self.step.jaxpr.outvars}
        given = self.step.jaxpr.invars[len(self.step.jaxpr.invars) - self.leaves * len(self.extras) :]
        return [name for i, name in enumerate(self.extras) if id(given[self.leaves * i + position]) in read]

    @property
    def written(self) -> list[Any]:
        """The operations and the numbers written in them, without shapes."""
        return [_operations(part.jaxpr) for part in (self.init, self.step)]


CALL_PRIMITIVES = ("jit", "pjit", "closed_call")  # programs within a program


def _result_kinds(program: core.ClosedJaxpr, given: Sequence[ValueKind]) -> list[ValueKind]:
    """Returns the kinds of a program's results from those of its arguments."""
    jaxpr = program.jaxpr
    constants = [ValueKind.UNIFORM if np.size(value) == 1 else ValueKind.FREE for value in program.consts]
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *given], strict=True))

    def kind(atom: Any) -> ValueKind:
        if isinstance(atom, core.Literal):
            return ValueKind.ZERO if np.all(atom.val == 0) else ValueKind.UNIFORM
        return known[atom]

    for equation in jaxpr.eqns:
        arguments = [kind(atom) for atom in equation.invars]
        if equation.primitive.name in CALL_PRIMITIVES:
            results = _result_kinds(equation.params["jaxpr"], arguments)
        else:
            results = [_operation_kind(equation, arguments, out) for out in equation.outvars]
        known.update(zip(equation.outvars, results, strict=True))
    return [kind(atom) for atom in jaxpr.outvars]


def _operation_kind(equation: core.JaxprEqn, given: list[ValueKind], out: Any) -> ValueKind:
    """Returns the kind of one operation's result."""
    name = equation.primitive.name
    if max(given, default=ValueKind.FREE) <= ValueKind.FREE:
        if name in ("mul", "div") and ValueKind.ZERO in given[: 1 if name == "div" else 2]:
            return ValueKind.ZERO
        alike = name in ("add", "sub", "neg", "copy", "convert_element_type", "broadcast_in_dim")
        kind = max(given) if alike else ValueKind.FREE
        return min(kind, ValueKind.UNIFORM) if math.prod(out.aval.shape) == 1 else kind
    source: Any = equation.invars[0].aval
    added = all(kind in (ValueKind.ZERO, ValueKind.COMBINED) for kind in given[1:])  # all but the first
    combined = {
        "add": lambda: added and given[0] in (ValueKind.ZERO, ValueKind.COMBINED),
        "add_any": lambda: added and given[0] in (ValueKind.ZERO, ValueKind.COMBINED),
        "sub": lambda: added and given[0] in (ValueKind.ZERO, ValueKind.COMBINED),
        "mul": lambda: min(given) <= ValueKind.UNIFORM and max(given) == ValueKind.COMBINED,
        "div": lambda: given[0] == ValueKind.COMBINED and given[1] <= ValueKind.UNIFORM,
        "select_n": lambda: added and given[0] <= ValueKind.UNIFORM,  # the first is what selects
        "convert_element_type": lambda: given[0] == ValueKind.COMBINED and source.dtype == out.aval.dtype,
        "copy": lambda: given[0] == ValueKind.COMBINED,
        "neg": lambda: given[0] == ValueKind.COMBINED,
    }
    return ValueKind.COMBINED if name in combined and combined[name]() else ValueKind.MIXED


def _join_kinds(one: ValueKind, other: ValueKind) -> ValueKind:
    """Returns the kind of a value that may be of either kind."""
    low, high = sorted((one, other))
    return high if low in (high, ValueKind.ZERO) or high <= ValueKind.FREE else ValueKind.MIXED


def _operations(jaxpr: core.Jaxpr) -> list[Any]:
    """Returns a program's operations, the numbers written in it, and those that sums make of sizes."""
    return [
        (
            equation.primitive.name,
            [np.asarray(atom.val).tolist() for atom in equation.invars if isinstance(atom, core.Literal)],
            [_size(atom) for atom in equation.invars] if equation.primitive.name.startswith("reduce_") else None,
            _operations(equation.params["jaxpr"].jaxpr) if equation.primitive.name in CALL_PRIMITIVES else None,
        )
        for equation in jaxpr.eqns
    ]


def _size(atom: Any) -> int:
    return math.prod(atom.aval.shape)
