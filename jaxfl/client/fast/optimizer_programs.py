"""What an optimiser does to one leaf of a model, read off its program.

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

        >>> import jax.numpy as jnp
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
    """Returns a program's operations, the numbers written in it, and those that sums make of sizes."""
    return [
        (
            equation.primitive.name,
            [np.asarray(atom.val).tolist() for atom in equation.invars if isinstance(atom, core.Literal)],
            [_size(atom) for atom in equation.invars] if equation.primitive.name.startswith("reduce_") else None,
            _written(equation.params["jaxpr"].jaxpr) if equation.primitive.name in CALLS else None,
        )
        for equation in jaxpr.eqns
    ]


def _size(atom: Any) -> int:
    return math.prod(atom.aval.shape)
