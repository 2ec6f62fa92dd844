"""Fast forms of any network: its program, with convolutions, poolings and products replaced.

A network is read as the program that JAX makes of it (its jaxpr), so that flax, haiku, equinox or a plain function are
all the same. Convolutions of one or two spatial axes (any strides, padding and dilation; no groups, not transposed, of
the usual precision) and maximum and average pooling are computed by `jaxfl.models.fast.convolution`, on a CPU products
with a kernel of few outputs or a large one by `jaxfl.models.fast.products`, convolutions of few outputs, with what is
behind them, by `jaxfl.models.fast.rows_last`, and sums over places and the channels of a group one after the other;
everything else stays as it is, and so does what is inside functions with gradients of their own (`jax.custom_jvp`,
`jax.custom_vjp`).

Values and gradients are equal to rounding, ties of a maximum included. Forward-mode gradients (`jax.jvp`) of a replaced
convolution or product are not there.
"""

import collections
import functools
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import jax
from jax.extend import core

from jaxfl.models.fast import convolution, rows_last
from jaxfl.models.fast.products import may_pay, times
from jaxfl.typing import Array

INLINE = ("jit", "pjit", "closed_call", "core_call")  # programs that are opened
ProductFunction = Callable[[Array], Array]
# By the identity of the array W: the array, which keeps it, and what is taken in place of x W.
Factors = dict[int, tuple[Any, ProductFunction]]
PRODUCT, GROUP_SUM = "product", "sum over groups"
SILENT = (PRODUCT, GROUP_SUM)  # kinds that a summary does not name
LOOPS = ("scan", "while", "cond", "checkpoint", "remat", "remat2")  # programs whose insides are replaced


def in_fast_forms(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that computes the same in fast forms.

    Args:
        fn: of pytrees of arrays; traced anew whenever the result is called.

    Returns:
        `(*args, products=None)` like `fn`. `products` has what is taken in place of a matrix product: `x -> x W` by the
        place of W among the leaves of the arguments, for those that `dense_layers.find_dense_kernels` finds; also where
        the network multiplies with W in another type, as one in half precision does.

    >>> import jax.numpy as jnp
    >>> from flax import linen as nn
    >>> images = jnp.arange(32.0).reshape(2, 4, 4, 1)
    >>> pool = in_fast_forms(lambda x: nn.max_pool(x, (2, 2), (2, 2)))
    >>> "reduce_window" in str(jax.make_jaxpr(pool)(images)), pool(images)[0].ravel().tolist()
    (False, [5.0, 7.0, 13.0, 15.0])
    """

    def fast(*args: Any, products: Mapping[int, ProductFunction] | None = None) -> Any:
        if _rewritten_outside.get():
            return fn(*args)
        program, shapes = _traced(fn, args) if products else jax.make_jaxpr(fn, return_shape=True)(*args)
        values = jax.tree.leaves(args)
        factors = {id(values[place]): (values[place], taken) for place, taken in (products or {}).items()}
        results = _evaluate(program, values, factors)
        return jax.tree.unflatten(jax.tree.structure(shapes), map(rows_last.rows_first, results))

    return fast


_rewritten_outside: ContextVar[bool] = ContextVar("rewritten_outside", default=False)


def _traced(fn: Callable[..., Any], args: Sequence[Any]) -> tuple[core.ClosedJaxpr, Any]:
    """Returns the program of a function, and the shapes of its results, without fast forms within it.

    Products in a fast form would not be found, and what is read here is rewritten as a whole.
    """
    token = _rewritten_outside.set(True)
    try:
        # a function of its own: JAX would return the program that it has traced with fast forms
        return jax.make_jaxpr(lambda *values: fn(*values), return_shape=True)(*args)
    finally:
        _rewritten_outside.reset(token)


def replaceable(fn: Callable[..., Any], *args: Any) -> tuple[tuple[str, int], ...]:
    """Returns the kinds of operations that would be replaced, and how many of each.

    Args:
        fn: as for `in_fast_forms`.
        *args: arrays or their shapes.

    >>> import jax.numpy as jnp
    >>> from flax import linen as nn
    >>> replaceable(lambda x: nn.max_pool(x, (2, 2), (2, 2)), jnp.ones((2, 4, 4, 1)))
    (('max pooling', 1),)
    """
    return tuple(sorted(_count_replaceable(jax.make_jaxpr(fn)(*args)).items()))


def widest(fn: Callable[..., Any], model: Any, rows: Any) -> int:
    """Returns the bytes of the largest array that a program computes from rows, not from the model alone.

    Args:
        fn: `(model, rows)`; programs within it that it does not open count with their results.
        model: arrays or their shapes.
        rows: likewise.

    >>> import jax.numpy as jnp
    >>> widest(lambda model, rows: rows @ (model * 2), jnp.ones((50, 3)), jnp.ones((2, 50)))
    24
    """
    program = jax.make_jaxpr(fn)(model, rows).jaxpr
    known, largest = set(program.invars[len(jax.tree.leaves(model)) :]), 0
    for equation in program.eqns:
        if any(atom in known for atom in equation.invars if isinstance(atom, core.Var)):
            known.update(equation.outvars)
            largest = max(largest, *(atom.aval.size * atom.aval.dtype.itemsize for atom in equation.outvars))
    return largest


def phrase(replaced: Sequence[tuple[str, int]]) -> str:
    """Returns the replaced operations as a phrase, for a summary.

    >>> phrase([("convolution", 2), ("max pooling", 1)]), phrase([])
    ('2 convolutions, 1 max pooling', 'nothing to replace')
    """
    parts = [f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in replaced]
    return ", ".join(parts) or "nothing to replace"


def _count_replaceable(program: core.ClosedJaxpr | core.Jaxpr) -> collections.Counter[str]:
    """Returns the number of replaceable operations of each kind in a program, inside its loops too."""
    found: collections.Counter[str] = collections.Counter()
    for equation in (program.jaxpr if isinstance(program, core.ClosedJaxpr) else program).eqns:
        if (kind := _replacement_kind(equation)) is not None:
            found[kind] += 1
        elif equation.primitive.name in INLINE + LOOPS:
            for part in inner_programs(equation.params):
                found += _count_replaceable(part)
    return found


def inner_programs(params: Mapping[str, Any]) -> list[core.ClosedJaxpr | core.Jaxpr]:
    """Returns the programs among an equation's parameters."""
    values = [one for value in params.values() for one in (value if isinstance(value, tuple) else (value,))]
    return [one for one in values if isinstance(one, core.ClosedJaxpr | core.Jaxpr)]


def _evaluate(program: Any, values: Sequence[Any], factors: Factors | None = None) -> list[Any]:
    """Runs a program in fast forms; `factors` get those arrays that are casts of one of them.

    Arrays that are given or returned may be `rows_last.RowsLast`.
    """
    jaxpr, factors = program.jaxpr, {} if factors is None else factors
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*program.consts, *values], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for equation in jaxpr.eqns:
        given, name, kind = (
            [read(atom) for atom in equation.invars],
            equation.primitive.name,
            _replacement_kind(equation),
        )
        inner = inner_programs(equation.params) if name in INLINE + LOOPS else []
        worthwhile = any(map(_count_replaceable, inner))
        taken = [factors[id(value)][1] for value in given if id(value) in factors]
        opened = worthwhile or taken or any(isinstance(value, rows_last.RowsLast) for value in given)
        if (images := rows_last.rows_last_result(equation, kind, given)) is not None:
            results = [images]
        elif opened and name in INLINE and len(inner) == 1:
            results = _evaluate(inner[0], given, factors)
        else:
            given = list(map(rows_last.rows_first, given))
            if name == "dot_general" and taken:
                aval: Any = equation.outvars[0].aval
                results = [taken[0](given[0]).astype(aval.dtype)]
            elif kind is not None:
                results = [REPLACEMENTS[kind](equation, *given)]
            else:
                params = (
                    {key: _rewrite_parameter(value) for key, value in equation.params.items()} if worthwhile else None
                )
                results = rows_last.run_equation(equation if params is None else equation.replace(params=params), given)
        if name == "convert_element_type" and taken:
            factors[id(results[0])] = results[0], taken[0]
        known.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _rewrite_parameter(value: Any) -> Any:
    """Returns a parameter of a loop with the programs in it rewritten."""
    if isinstance(value, tuple):
        return tuple(map(_rewrite_parameter, value))
    if isinstance(value, core.Jaxpr):  # of a checkpoint: without constants, so it must stay without
        closed = _rewrite_program(core.ClosedJaxpr(value, ()))
        return value if closed.consts else closed.jaxpr
    return _rewrite_program(value) if isinstance(value, core.ClosedJaxpr) else value


def _rewrite_program(program: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Returns the program in fast forms, with the same arguments and results."""
    avals: list[Any] = [variable.aval for variable in program.jaxpr.invars]
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type) for aval in avals]
    return jax.make_jaxpr(lambda *values: list(map(rows_last.rows_first, _evaluate(program, values))))(*shapes)


def _replacement_kind(equation: core.JaxprEqn) -> str | None:
    """Returns the kind of an operation that is replaced, or None where it stays."""
    params, name = equation.params, equation.primitive.name
    avals: list[Any] = [atom.aval for atom in (*equation.invars, *equation.outvars)]
    if name == "conv_general_dilated":
        plain = params["feature_group_count"] == params["batch_group_count"] == 1
        plain &= all(step == 1 for step in params["lhs_dilation"])  # others are transposed convolutions
        plain &= params["precision"] is None  # the products have none of their own
        alike = len({aval.dtype for aval in avals}) == 1
        return "convolution" if plain and alike and len(params["window_strides"]) in (1, 2) else None
    if name in ("reduce_window_max", "reduce_window_sum"):
        whole = all(step == 1 for step in (*params["base_dilation"], *params["window_dilation"]))
        floating = jax.numpy.issubdtype(avals[0].dtype, jax.numpy.floating)
        return f"{name.removeprefix('reduce_window_')} pooling" if whole and floating else None
    if is_dense(equation) and may_pay(*avals[1].shape):
        return PRODUCT
    return GROUP_SUM if name == "reduce_sum" and _sums_groups(avals[0].ndim, params["axes"]) else None


def _sums_groups(axes: int, summed: Sequence[int]) -> bool:
    """Returns whether a sum is one over the last axis and over one that is not beside it, as of group normalisation."""
    return axes - 1 in summed and axes - 2 not in summed and len(summed) > 1 and jax.default_backend() == "cpu"


def _sum_groups(equation: core.JaxprEqn, inputs: Array) -> Array:
    """Returns the sum, over the last axis behind the others: of two channels in a group no vectors can be made.

    Without the barrier XLA makes one sum of the two.
    """
    last = inputs.ndim - 1
    first = tuple(axis for axis in equation.params["axes"] if axis != last)
    return jax.lax.optimization_barrier(inputs.sum(first, inputs.dtype)).sum(-1, inputs.dtype)


def is_dense(equation: core.JaxprEqn) -> bool:
    """Returns whether an equation multiplies rows with a matrix, as a dense layer does."""
    if equation.primitive.name != "dot_general":
        return False
    avals: list[Any] = [atom.aval for atom in (*equation.invars, *equation.outvars)]
    plain = equation.params["dimension_numbers"] == (((1,), (0,)), ((), ())) and equation.params["precision"] is None
    return plain and all(aval.ndim == 2 for aval in avals) and len({aval.dtype for aval in avals}) == 1


def _fast_convolution(equation: core.JaxprEqn, inputs: Array, kernel: Array) -> Array:
    """Returns a convolution, with the axes brought into the order of `convolution.convolution` and back."""
    params = equation.params
    numbers = params["dimension_numbers"]
    strides, holes = params["window_strides"], params["rhs_dilation"]
    padding = list(params["padding"])
    inputs = inputs.transpose(numbers.lhs_spec[0], *numbers.lhs_spec[2:], numbers.lhs_spec[1])
    kernel = kernel.transpose(*numbers.rhs_spec[2:], numbers.rhs_spec[1], numbers.rhs_spec[0])
    flat = len(strides) == 1  # one spatial axis: images of one row
    if flat:
        inputs, kernel = inputs[:, None], kernel[None]
        strides, holes, padding = (1, *strides), (1, *holes), [(0, 0), *padding]
    outputs = convolution.convolution(inputs, kernel, padding, strides, holes)
    outputs = outputs[:, 0] if flat else outputs
    order = [0] * outputs.ndim  # where each axis of [B, H', W', co] comes to lie
    for axis, place in enumerate((numbers.out_spec[0], *numbers.out_spec[2:], numbers.out_spec[1])):
        order[place] = axis
    return outputs.transpose(order)


def _fast_pooling(pool: Callable[..., Array], equation: core.JaxprEqn, inputs: Array) -> Array:
    params = equation.params
    return pool(inputs, params["window_dimensions"], params["window_strides"], params["padding"])


REPLACEMENTS: dict[str, Callable[..., Array]] = {
    PRODUCT: lambda equation, inputs, kernel: times(inputs, kernel),
    GROUP_SUM: _sum_groups,
    "convolution": _fast_convolution,
    "max pooling": functools.partial(_fast_pooling, convolution.max_pool),
    "sum pooling": functools.partial(_fast_pooling, convolution.sum_pool),
}
