"""Convolutions and poolings of images with their rows last, `[C, H, W, B]`, the fast form of few channels on a CPU.

A convolution as shifted slices times a kernel copies the image once for every place of the kernel. With the channels
last each copy moves a few numbers at a time, one for each channel; with the rows last it moves whole lines of all rows,
and the product has few rows and very many columns, which XLA's CPU backend makes several times as fast as one the other
way round. Poolings and activations in between are computed in the same layout, so that images are transposed once
before the first convolution and once behind the last.

`python -m experiments.speed.convolutions` prints what either takes.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core

from jaxfl.models.fast import convolution as forms
from jaxfl.typing import Array

ROWS_LAST_AXES = (3, 1, 2, 0)  # transposes images, and transposes them back
FLAX_AXES = ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))  # [B, H, W, ci], [kh, kw, ci, co], [B, H', W', co]
POOLINGS = {"reduce_window_max": forms.max_pool, "reduce_window_sum": forms.sum_pool}
# primitives that treat each number alone, and have no parameter that says where it lies
ELEMENTWISE = {
    *("add", "sub", "mul", "div", "neg", "abs", "sign", "max", "min", "pow", "integer_pow", "square", "sqrt", "rsqrt"),
    *("exp", "exp2", "expm1", "log", "log1p", "erf", "tanh", "logistic"),
    *("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "not", "is_finite", "select_n"),
    *("convert_element_type", "copy", "stop_gradient"),
}


class RowsLast(NamedTuple):
    """Images `[B, H, W, C]`, kept as `[C, H, W, B]`."""

    images: Array


def rows_first(value: Any) -> Any:
    """Returns images `[B, H, W, C]`; values that have their rows first already are returned as they are.

    >>> rows_first(RowsLast(jnp.ones((3, 8, 8, 20)))).shape
    (20, 8, 8, 3)
    """
    return value.images.transpose(ROWS_LAST_AXES) if isinstance(value, RowsLast) else value


def rows_last_result(equation: core.JaxprEqn, kind: str | None, given: list[Any]) -> RowsLast | None:
    """Returns the result of an equation on images with their rows last, or None where it is to be computed as it is.

    Args:
        equation: of a program.
        kind: of the replaced operation, see `rewriting`, or None.
        given: its inputs, with their rows last or first.
    """
    if kind == "convolution":
        if not _pays(equation, given[0]):
            return None
        params = equation.params
        return RowsLast(
            convolution(
                _images(given[0]),
                rows_first(given[1]),
                params["padding"],
                params["window_strides"],
                params["rhs_dilation"],
            )
        )
    if not any(isinstance(value, RowsLast) for value in given):
        return None
    name = equation.primitive.name
    if name in POOLINGS and kind is not None:
        sizes, steps, padding = (
            [equation.params[key][axis] for axis in ROWS_LAST_AXES]
            for key in ("window_dimensions", "window_strides", "padding")
        )
        return RowsLast(POOLINGS[name](given[0].images, sizes, steps, padding))
    if name in ELEMENTWISE:
        return RowsLast(equation.primitive.bind(*map(_images, given), **equation.params))
    if is_relu(equation):
        return RowsLast(jax.nn.relu(given[0].images))
    return None


def convolution(
    images: Array,
    kernel: Array,
    padding: forms.PaddingPairs,
    strides: Sequence[int] = (1, 1),
    dilation: Sequence[int] = (1, 1),
) -> Array:
    """Returns the convolution of images with their rows last, as shifted slices times the kernel.

    Args:
        images: `[ci, H, W, B]`.
        kernel: `[kh, kw, ci, co]`.
        padding: as for `jaxfl.models.fast.convolution.convolution`.
        strides: as there.
        dilation: as there.

    Returns:
        `[co, H', W', B]`, of at least one number.

    >>> convolution(jnp.ones((1, 4, 4, 5)), jnp.ones((3, 3, 1, 2)), [(0, 0), (0, 0)]).shape
    (2, 2, 2, 5)
    """
    images = forms.padded(images, (1, 2), padding, 0)
    for axis in (1, 2):  # slices of height first, then each of them in slices of width
        size, step, hole = kernel.shape[axis - 1], strides[axis - 1], dilation[axis - 1]
        last = images.shape[axis] - (size - 1) * hole
        places = [jax.lax.slice_in_dim(images, place * hole, place * hole + last, step, axis) for place in range(size)]
        images = jnp.concatenate(places)
    matrix = kernel.transpose(1, 0, 2, 3).reshape(len(images), -1)  # in the order of the slices
    return (matrix.T @ images.reshape(len(images), -1)).reshape(-1, *images.shape[1:])


def is_relu(equation: core.JaxprEqn) -> bool:
    """Returns whether an equation is `jax.nn.relu`, by its program and by that of its gradient, which is its own."""
    if equation.primitive.name != "custom_jvp_call" or len(equation.invars) != 1:
        return False
    aval: Any = equation.invars[0].aval
    shape = jax.ShapeDtypeStruct(aval.shape, aval.dtype)

    def program(fn: Callable[[Array], Array]) -> str:
        return str(jax.make_jaxpr(lambda *values: (fn(values[0]), jax.jvp(fn, values[:1], values[1:])))(shape, shape))

    return program(lambda x: run_equation(equation, [x])[0]) == program(jax.nn.relu)


def run_equation(equation: core.JaxprEqn, given: Sequence[Any]) -> list[Any]:
    """Returns the results of one equation, computed as it is."""
    params = equation.primitive.get_bind_params(equation.params)
    functions, params = params if isinstance(params, tuple) else ((), params)  # a pair until jax 0.9
    results = equation.primitive.bind(*functions, *given, **params)
    return results if equation.primitive.multiple_results else [results]


def _pays(equation: core.JaxprEqn, inputs: Any) -> bool:
    """Returns whether a convolution is computed on images with their rows last.

    With 16 outputs and more it is so only if the images have their rows last already, and slices are the form for them
    as well: transposing them back in front of slices would be done once for every slice.
    """
    params = equation.params
    numbers = params["dimension_numbers"]
    if jax.default_backend() != "cpu" or (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec) != FLAX_AXES:
        return False
    avals: list[Any] = [atom.aval for atom in (*equation.invars, *equation.outvars)]
    images, kernel, outputs = (aval.shape for aval in avals)
    if 0 in outputs or outputs[3] < forms.FEW_OUTPUTS:
        return 0 not in outputs
    apart = {*params["window_strides"], *params["rhs_dilation"]} != {1}
    return isinstance(inputs, RowsLast) and (apart or forms.slices_win(images, kernel, params["padding"]))


def _images(value: Any) -> Any:
    """Returns images with their rows last, and a number as it is."""
    if isinstance(value, RowsLast):
        return value.images
    return value.transpose(ROWS_LAST_AXES) if jnp.ndim(value) else value
