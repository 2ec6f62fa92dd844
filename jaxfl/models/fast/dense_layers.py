"""Dense layers of any network, read off its program.

A kernel W [d, h] that a network multiplies its rows x [B, d] with, once and in no other way, need not be there while a
client trains: `jaxfl.client.fast.coordinates` knows what x W would be. Here such kernels are found. Of a `first` one x
is made of each row by itself, whatever the parameters are, so that it is the same in every step; of an `inner` one x is
what the layers before have made, a row for each row of the inputs.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend import core

from jaxfl.models.fast.rewriting import INLINE, in_fast_forms, is_dense
from jaxfl.typing import Params

# The origin of a number or array in the program; an integer is the place of a leaf among the model's.
SAME = "same"  # a constant
EVEN = "even"  # a constant with equal rows
ROWS = "rows"  # its i-th row is made of the i-th row of the inputs alone
OTHER = "other"
Origin = int | str

ELEMENTWISE = {
    *("abs", "add", "and", "ceil", "clamp", "convert_element_type", "copy", "cos", "div", "eq", "exp", "exp2", "expm1"),
    *("floor", "ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min", "mul"),
    *("ne", "neg", "not", "or", "pow", "rem", "round", "rsqrt", "select_n", "sign", "sin", "sqrt", "square", "sub"),
    "tanh",
}
REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min")


class DenseKernels(NamedTuple):
    """Places of kernels among the leaves of a model."""

    first: tuple[int, ...]
    inner: tuple[int, ...]


def find_dense_kernels(fn: Callable[..., Any], model: Params, inputs: Any, *others: Any) -> DenseKernels:
    """Returns the dense layers of `fn(model, inputs, *others)`.

    Only for this number of rows: what has as many rows by chance (a query of three rows, a sequence of one position)
    is found out with a second number of rows.

    Args:
        fn: a network.
        model: its parameters, or their shapes.
        inputs: rows `[B, ...]`, or a batch whose first leaf they are; or the shapes.
        *others: what else it is given: a mask, keys.

    >>> import jax.numpy as jnp
    >>> kernels, rows = {"a": jnp.ones((4, 3)), "b": jnp.ones((3, 2))}, jnp.ones((5, 4))
    >>> find_dense_kernels(lambda model, x: jnp.tanh(x / 255 @ model["a"]) @ model["b"], kernels, rows)
    DenseKernels(first=(0,), inner=(1,))
    >>> find_dense_kernels(lambda model, x: (x - x.mean(0, keepdims=True)) @ model["a"] @ model["b"], kernels, rows)
    DenseKernels(first=(), inner=(0, 1))
    >>> find_dense_kernels(lambda model, x: x @ model["a"] @ model["a"].T, kernels, rows)
    DenseKernels(first=(), inner=())
    """
    program = jax.make_jaxpr(fn)(model, inputs, *others)
    leaves, rows = len(jax.tree.leaves(model)), jax.tree.leaves(inputs)[0].shape[0]
    uses: dict[int, list[str]] = collections.defaultdict(list)
    rest = len(program.jaxpr.invars) - leaves - 1
    for known in _follow_origins(program, [*range(leaves), ROWS, *[OTHER] * rest], uses, rows):
        if isinstance(known, int):
            uses[known].append("a result")
    once = {place: use[0] for place, use in sorted(uses.items()) if len(use) == 1}
    return DenseKernels(*(tuple(place for place, use in once.items() if use == kind) for kind in DenseKernels._fields))


def is_last_layer(fn: Callable[..., Any], model: Params, inputs: Any, kernel: int, bias: int | None) -> bool:
    """Returns whether the outputs `[B, L]` of `fn(model, inputs)` are x W + b, of one product with W.

    Args:
        fn: a network.
        model: its parameters, or their shapes.
        inputs: rows `[B, ...]`, or a batch; or the shapes.
        kernel: the place of W `[d, L]` among the leaves of the model.
        bias: the place of b `[L]`, or None.

    >>> import jax.numpy as jnp
    >>> kernels, rows = {"a": jnp.ones((4, 3)), "b": jnp.ones((3, 2))}, jnp.ones((5, 4))
    >>> is_last_layer(lambda model, x: jnp.tanh(x @ model["a"]) @ model["b"], kernels, rows, 1, None)
    True
    >>> is_last_layer(lambda model, x: jnp.tanh(x @ model["a"]), kernels, rows, 0, None)
    False
    """
    calls: list[Any] = []

    def outputs(model: Params, inputs: Any, product: Any) -> Any:
        def note(x: Any) -> Any:
            calls.append(x)
            return product

        return in_fast_forms(fn)(model, inputs, products={kernel: note})

    leaf = jax.tree.leaves(model)[kernel]
    rows = jax.tree.leaves(inputs)[0].shape[0]
    program = jax.make_jaxpr(outputs)(model, inputs, jax.ShapeDtypeStruct((rows, leaf.shape[1]), leaf.dtype)).jaxpr
    product = program.invars[-1]
    known: dict[Any, str] = {product: "logits"} | ({} if bias is None else {program.invars[bias]: "bias"})
    added = 0
    for equation in program.eqns:
        inputs_known = [known.get(atom) for atom in equation.invars if isinstance(atom, core.Var)]
        name, (out, *_) = equation.primitive.name, equation.outvars
        if name in ("convert_element_type", "broadcast_in_dim", "reshape", "copy") and any(inputs_known):
            if inputs_known[0] == "bias" or out.aval.shape == product.aval.shape:
                known[out] = inputs_known[0] or ""
        elif name == "add" and sorted(map(str, inputs_known)) == ["bias", "logits"]:
            known[out], added = "logits", added + 1
    last = program.outvars[0]
    is_logits = isinstance(last, core.Var) and known.get(last) == "logits"
    return len(calls) == 1 and is_logits and added == (bias is not None)


def _follow_origins(
    program: core.ClosedJaxpr, given: Sequence[Origin], uses: dict[int, list[str]], rows: int
) -> list[Origin]:
    """Returns the origins of a program's results for `rows` rows, noting uses of the model's leaves in `uses`."""
    jaxpr = program.jaxpr
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*[SAME] * len(jaxpr.constvars), *given], strict=True))

    def of(atom: Any) -> Origin:
        aval: Any = atom.aval
        found = SAME if isinstance(atom, core.Literal) else known[atom]
        return EVEN if found == SAME and not aval.shape else found

    for equation in jaxpr.eqns:
        arguments = [of(atom) for atom in equation.invars]
        if equation.primitive.name in INLINE:
            results = _follow_origins(
                equation.params.get("jaxpr") or equation.params["call_jaxpr"], arguments, uses, rows
            )
        elif _is_dense(equation, arguments, rows):
            uses[int(arguments[1])].append("first" if arguments[0] == ROWS else "inner")
            results = [OTHER]
        else:
            for argument in arguments:
                if isinstance(argument, int):
                    uses[argument].append("another")
            results = [_result_origin(equation, arguments)] * len(equation.outvars)
        known.update(zip(equation.outvars, results, strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def _is_dense(equation: core.JaxprEqn, given: Sequence[Origin], rows: int) -> bool:
    """Returns whether an equation multiplies `rows` rows with a leaf of the model, as a dense layer does."""
    if not is_dense(equation) or isinstance(given[0], int) or not isinstance(given[1], int):
        return False
    multiplied: Any = equation.invars[0].aval
    return multiplied.shape[0] == rows


def _result_origin(equation: core.JaxprEqn, given: Sequence[Origin]) -> Origin:
    """Returns the origin of the result of one operation."""
    if set(given) <= {SAME, EVEN}:
        return EVEN if _keeps_rows(equation) and EVEN in given and SAME not in given else _constant_origin(equation)
    return ROWS if set(given) <= {EVEN, ROWS} and _keeps_rows(equation) else OTHER


def _constant_origin(equation: core.JaxprEqn) -> Origin:
    """Returns the origin of a constant that is made of constants."""
    name, params = equation.primitive.name, equation.params
    source: Any = equation.invars[0].aval if equation.invars else None
    if name != "broadcast_in_dim" or 0 not in params["broadcast_dimensions"]:
        return EVEN if name == "broadcast_in_dim" else SAME
    return EVEN if source.shape[params["broadcast_dimensions"].index(0)] == 1 else SAME


def _keeps_rows(equation: core.JaxprEqn) -> bool:
    """Returns whether the i-th row of the result is made of the i-th rows of the arguments alone."""
    name, params = equation.primitive.name, equation.params
    before: Any = equation.invars[0].aval if equation.invars else None
    after: Any = equation.outvars[0].aval
    if name in ELEMENTWISE:
        return True
    if not before or not before.ndim or not after.ndim or before.shape[0] != after.shape[0]:
        return False
    return {
        "reshape": lambda: params["dimensions"] is None,
        "transpose": lambda: params["permutation"][0] == 0,
        "squeeze": lambda: 0 not in params["dimensions"],
        "broadcast_in_dim": lambda: params["broadcast_dimensions"][:1] == (0,),
        "concatenate": lambda: params["dimension"] != 0,
        "slice": lambda: True,  # of as many rows
        **{reduction: lambda: 0 not in params["axes"] for reduction in REDUCTIONS},
    }.get(name, lambda: False)()
