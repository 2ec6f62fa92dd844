"""Terms of local objectives as optax transformations, which are added to the gradient before the optimiser.

Chain one in front of a local optimiser: `optax.chain(proximal_pull(0.1), optax.sgd(0.1))`. What a
transformation refers to (an anchor, a correction) is passed to the update by name, so that the inner loop of
`jaxfl.client.training` is one for all methods.
"""

import math

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.schema import is_known
from jaxfl.typing import Array, Params


def proximal_pull(weight: float | Array) -> optax.GradientTransformationExtraArgs:
    """Adds the gradient of `weight / 2 * ||model - anchor||^2`.

    The proximal term of FedProx (mu), Ditto, StoCFL (lambda) and FeSEM (2 lambda). The update takes as extra arguments
    `anchor`, a model, and `pull_scale []`, a factor of `weight` that is the client's own; None for 1.
    Plain gradient steps of size `learning_rate` are stable only while `learning_rate * (weight + curvature) < 2`.

    Args:
        weight: mu; 0 adds nothing. It may be traced (see `jaxfl.run_mapped`), and is checked before it is.

    Raises:
        ValueError: `weight` is negative.

    >>> pull = proximal_pull(0.5)
    >>> updates, _ = pull.update(1.0, pull.init(3.0), 3.0, anchor=1.0)
    >>> updates
    2.0
    """
    if is_known(weight) and not 0 <= weight < math.inf:  # nor NaN
        raise ValueError(
            f"proximal_weight must be at least 0 and finite, got {weight}; 0 switches the proximal term off."
        )

    def update(
        updates: Params,
        state: optax.OptState,
        params: Params | None = None,
        *,
        anchor: Params = None,
        pull_scale: Array | None = None,
        **extra,
    ):
        del extra
        if anchor is None:
            raise ValueError("anchor must be passed to the update: the model that the proximal term pulls to.")

        def pull(u: Array, p: Array, a: Array) -> Array:
            strength = weight if pull_scale is None else weight * pull_scale
            strength = strength.astype(p.dtype) if isinstance(strength, jax.Array) else strength
            return u + strength * (p - a)

        return jax.tree.map(pull, updates, params, anchor), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def gradient_correction() -> optax.GradientTransformationExtraArgs:
    """Adds the same correction to every gradient of a round: the linear term `<correction, model>` of an objective.

    FedDANE's correction turns a client's gradient towards the cohort's. The update takes `correction`, a tree like the
    gradient, as extra argument.

    >>> correct = gradient_correction()
    >>> updates, _ = correct.update(1.0, correct.init(3.0), 3.0, correction=-0.25)
    >>> updates
    0.75
    """

    def update(
        updates: Params, state: optax.OptState, params: Params | None = None, *, correction: Params = None, **extra
    ):
        del params, extra
        if correction is None:
            raise ValueError("correction must be passed to the update: a tree like the gradient, which is added to it.")
        return jax.tree.map(lambda u, c: u + c, updates, correction), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def directional_pull(weight: float | Array) -> optax.GradientTransformationExtraArgs:
    """Adds the gradient of `-weight * <direction, model> / ||model||`, whose steps turn a model towards the direction.

    The term of pFedGraph. The update takes `direction`, a tree like the model, as extra argument. A model of zeros has
    no direction, and is not turned.

    Args:
        weight: lambda; 0 adds nothing, and a negative one turns models away from the direction.

    >>> turn, model = directional_pull(-1.0), {"w": jnp.array([3.0, 4.0])}
    >>> zeros, towards = {"w": jnp.zeros(2)}, {"w": jnp.array([1.0, 0.0])}
    >>> turn.update(zeros, turn.init(model), model, direction=towards)[0]["w"].round(6).tolist()
    [0.128..., -0.096...]
    """

    def update(
        updates: Params, state: optax.OptState, params: Params | None = None, *, direction: Params = None, **extra
    ):
        del extra
        if direction is None:
            raise ValueError("direction must be passed to the update: a tree like the model, which is turned to it.")
        length = tree.norm(params)
        unit = jax.tree.map(lambda leaf: leaf / jnp.where(length > 0, length, 1), params)
        along = sum(jax.tree.leaves(jax.tree.map(lambda c, u: (c * u).sum(), direction, unit)))
        strength = jnp.where(length > 0, weight / jnp.where(length > 0, length, 1), 0)

        def turn(update: Array, c: Array, u: Array) -> Array:
            return update - strength.astype(u.dtype) * (c - along * u)

        return jax.tree.map(turn, updates, direction, unit), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
