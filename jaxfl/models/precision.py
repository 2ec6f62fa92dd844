"""Mixed precision: a network that computes in half precision, with parameters and outputs in float32."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from jaxfl import tree
from jaxfl.models.adapters import Functions, RunningAverages
from jaxfl.models.fast.inspection import product_types
from jaxfl.typing import Array, Key, Params

Compute = Literal["float32", "bfloat16"]


def to_bfloat16(part: Params, but: frozenset[str] = frozenset()) -> Params:
    """Returns a tree with its floats in bfloat16; those of some names stay as they are.

    >>> [leaf.dtype.name for leaf in jax.tree.leaves(to_bfloat16({"tokens": jnp.ones(2, int), "w": jnp.ones(2)}))]
    ['int32', 'bfloat16']
    """
    names = iter(tree.names(part))

    def lower(leaf: Any) -> Any:
        changed = next(names) not in but and jnp.issubdtype(leaf.dtype, jnp.floating)
        return leaf.astype(jnp.bfloat16) if changed else leaf

    return jax.tree.map(lower, part)


def check_products(fn: Callable[..., Any], *args: Any) -> None:
    """Raises ValueError if a network whose parameters and inputs are in bfloat16 still multiplies in float32.

    Args:
        fn: the network.
        *args: what it is given, or shapes.
    """
    if jnp.dtype(jnp.float32) in product_types(fn, *args):
        raise ValueError(
            "module must compute in the type of its inputs for compute='bfloat16', but some of its products are in "
            "float32; leave out what casts to it (.astype(jnp.float32), dtype=jnp.float32), give the data's inputs as "
            "floats where they are whole numbers and no tokens, and a BatchNorm of flax.nnx dtype=jnp.bfloat16."
        )


def with_float32_outputs(network: Functions) -> Functions:
    """Returns a network whose outputs are in float32 wherever it computes in half precision, and so are their losses.

    A sum of losses in bfloat16 stops at 256 times the next one, and one in float16 is infinite from 65,504 on.
    """

    def widened(outputs: Any) -> Any:
        half = (jnp.bfloat16, jnp.float16)
        return jax.tree.map(
            lambda leaf: leaf.astype(jnp.float32) if getattr(leaf, "dtype", None) in half else leaf, outputs
        )

    def apply(model: Params, batch: Any, key: Key | None) -> Any:
        return widened(network.apply(model, batch, key))

    if (running := network.running) is None:
        return Functions(network.init, apply)

    def together(model: Params, batch: Any, key: Key | None) -> tuple[Any, Params]:
        outputs, after = running.apply(model, batch, key)
        return widened(outputs), after

    return Functions(network.init, apply, RunningAverages(running.names, together))


def in_bfloat16(network: Functions) -> Functions:
    """Returns a network that computes in bfloat16, but for its running averages.

    Args:
        network: with parameters in float32, which stay that: gradients and steps are in float32.
    """
    running = network.running
    names = frozenset() if running is None else running.names

    def apply(model: Params, batch: Any, key: Key | None) -> Array:
        model = (
            to_bfloat16(model) if key is None else to_bfloat16(model, names)
        )  # in a test the averages stay as they are
        return network.apply(model, batch._replace(x=to_bfloat16(batch.x)), key)

    if running is None:
        return Functions(network.init, apply)

    def together(model: Params, batch: Any, key: Key | None) -> tuple[Array, Params]:
        outputs, after = running.apply(to_bfloat16(model, names), batch._replace(x=to_bfloat16(batch.x)), key)
        return outputs, jax.tree.map(lambda new, old: new.astype(old.dtype), after, model)

    return Functions(network.init, apply, RunningAverages(names, together))
