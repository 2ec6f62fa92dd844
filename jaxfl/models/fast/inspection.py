"""Inspection of a function's program: arguments it reads, arguments its results depend on, types of its products."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from jax.extend import core

from jaxfl.models.fast.rewriting import INLINE, inner_programs


class ProgramResult(NamedTuple):
    """Dependence of a leaf of a function's results on the leaves of its arguments.

    Attributes:
        unchanged: whether it is one of the arguments.
        depends_on: positions of the arguments that it is made of, at most: a program within depends on all of its own.
    """

    unchanged: bool
    depends_on: frozenset[int]


def program_results(fn: Callable[..., Any], *args: Any) -> list[ProgramResult]:
    """Returns how each leaf of `fn(*args)` depends on the leaves of `args`, arrays or their shapes.

    >>> import jax.numpy as jnp
    >>> program_results(lambda a, b, c: (a, a * c), 1.0, 2.0, 3.0)[1]
    ProgramResult(unchanged=False, depends_on=frozenset({0, 2}))
    """
    program = jax.make_jaxpr(fn)(*args).jaxpr
    known: dict[Any, frozenset[int]] = {atom: frozenset([place]) for place, atom in enumerate(program.invars)}

    def of(atom: Any) -> frozenset[int]:
        return frozenset() if isinstance(atom, core.Literal) else known.get(atom, frozenset())

    for equation in program.eqns:
        known.update(dict.fromkeys(equation.outvars, frozenset().union(*map(of, equation.invars))))
    return [ProgramResult(out in program.invars, of(out)) for out in program.outvars]


def reads_argument(fn: Callable[..., Any], argument: Any, *others: Any) -> bool:
    """Returns whether an operation of `fn(argument, *others)` reads its first argument, one array or its shape.

    To return the argument, or to pass it to a compiled function that does not read it, is no operation.

    >>> import jax.numpy as jnp
    >>> ignores = jax.jit(lambda ids, x: 2 * x)
    >>> rows = jnp.ones(2)
    >>> reads_argument(lambda ids, x: (ignores(ids, x), ids), 1, rows), reads_argument(lambda ids, x: x[ids], 1, rows)
    (False, True)
    """
    program = jax.make_jaxpr(fn)(argument, *others).jaxpr
    return _reads(program, program.invars[0])


def _reads(program: core.Jaxpr, variable: Any) -> bool:
    """Returns whether an operation of a program reads a variable."""
    for equation in program.eqns:
        places = [place for place, atom in enumerate(equation.invars) if atom is variable]
        if not places:
            continue
        inner = inner_programs(equation.params) if equation.primitive.name in INLINE else []
        if not inner or any(_reads(one, one.invars[place]) for one in map(_open_program, inner) for place in places):
            return True
    return False


def product_types(fn: Callable[..., Any], *args: Any) -> set[Any]:
    """Returns the types of the numbers that `fn(*args)` multiplies in products and convolutions, in its loops too.

    >>> import jax.numpy as jnp
    >>> [one.name for one in product_types(lambda x: (x @ x).astype(jnp.float16), jnp.ones((2, 2), jnp.float32))]
    ['float32']
    """
    return set(_types_in_products(jax.make_jaxpr(fn)(*args).jaxpr))


def _types_in_products(program: core.Jaxpr) -> Iterator[Any]:
    for equation in program.eqns:
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            avals: list[Any] = [atom.aval for atom in equation.invars]
            yield from (aval.dtype for aval in avals)
        for part in inner_programs(equation.params):
            yield from _types_in_products(_open_program(part))


def _open_program(program: core.ClosedJaxpr | core.Jaxpr) -> core.Jaxpr:
    return program.jaxpr if isinstance(program, core.ClosedJaxpr) else program
