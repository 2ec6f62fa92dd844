"""Running averages of a network: are they brought up to date in training alone, and without padding."""

from collections.abc import Callable

import flax.errors
import jax
import jax.numpy as jnp
from jax.extend import core

from jaxfl.typing import Array, Key, Params

PADDING = (
    "module keeps running averages, which padding rows must not be part of; give __call__ an argument mask, and pass "
    "mask=mask[:, None] (as many axes as the rows have) to its BatchNorm layers."
)
SWITCHED = (
    "module must bring its running averages up to date while clients train, and use them in a test; give __call__ an "
    "argument train: bool, and pass nn.BatchNorm(use_running_average=not train)"
)


def check(
    averages: Callable[[Params, Array, Array, Key | None], list[Array]],
    init: Callable[[Key], Params],
    x: Array,
    mask: Array,
    *,
    masked: bool,
) -> None:
    """Looks at the program of running averages.

    Args:
        averages: `(model, x, mask, key) -> averages`, those after a batch.
        init: draws a model.
        x: an example `[B, ...]`.
        mask: which rows are no padding `[B]`.
        masked: whether the network takes a mask.

    Raises:
        ValueError: the averages are brought up to date in a test, or not in training, or with padding.
    """
    if not masked:
        raise ValueError(PADDING)
    model = jax.eval_shape(init, jax.random.key(0))
    for key in (None, jax.random.key(0)):
        try:
            program = jax.make_jaxpr(lambda model, x, mask, key=key: averages(model, x, mask, key))(
                model, x, mask
            ).jaxpr
        except flax.errors.ModifyScopeVariableError as error:
            raise ValueError(f"{SWITCHED} ({error}).") from error
        kept = [out in program.invars for out in program.outvars]
        if (any(kept) and key is not None) or (not all(kept) and key is None):
            raise ValueError(f"{SWITCHED}.")
        of_rows, of_mask = (_made_of(place, program) for place in program.invars[-2:])
        if any(one and not other for one, other in zip(of_rows, of_mask, strict=True)):
            raise ValueError(PADDING)
    # made of the mask a layer's averages are behind another layer, too, that leaves padding out in its place
    if len(program.outvars) > 2 and _with_padding(averages, init, x):
        raise ValueError(PADDING)


def _with_padding(averages: Callable[..., list[Array]], init: Callable[[Key], Params], x: Array) -> bool:
    """Returns whether what stands in a padding row makes a difference to some average, by a batch of three rows."""

    @jax.jit
    def difference(key: Key) -> Array:
        model, mask, shape = init(key), jnp.array([True, True, False]), (3, *x.shape[1:])
        if jnp.issubdtype(x.dtype, jnp.floating):
            rows, far = jax.random.normal(key, shape, x.dtype), 100
        else:
            rows, far = jnp.zeros(shape, x.dtype), 1  # tokens there may be two
        found = [averages(model, rows.at[2].set(value), mask, key) for value in (0, far)]
        return jnp.stack([(jnp.abs(a - b) / (1 + jnp.abs(a))).max() for a, b in zip(*found, strict=True)]).max()

    return bool(difference(jax.random.key(0)) > 1e-5)  # a hundred times what rounding may do


def _made_of(given: core.Var, program: core.Jaxpr) -> list[bool]:
    """Returns which results of a program depend on one of its arguments; a program within depends on all of its own."""
    known = {given}
    for equation in program.eqns:
        if any(atom in known for atom in equation.invars if isinstance(atom, core.Var)):
            known.update(equation.outvars)
    return [out in known for out in program.outvars]
