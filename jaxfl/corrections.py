"""Local objectives as optax transformations: what a client adds to its gradient before the optimiser sees it.

Chain one in front of a local optimiser: `optax.chain(proximal_pull(0.1), optax.sgd(0.1))`. What the correction refers
to (the anchor) is passed to the update by name, so that the inner loop of `jaxfl.local` is one for all methods.
"""

import jax
import optax

from jaxfl.typing import Params


def proximal_pull(weight: float) -> optax.GradientTransformationExtraArgs:
    """Adds the gradient of `weight / 2 * ||model - anchor||^2`.

    The proximal term of FedProx (mu), Ditto and StoCFL (lambda). The update takes `anchor`, a model, as extra argument.
    Plain gradient steps of size `learning_rate` are stable only while `learning_rate * (weight + curvature) < 2`.

    Args:
        weight: mu; 0 adds nothing.

    Raises:
        ValueError: `weight` is negative.

    >>> pull = proximal_pull(0.5)
    >>> updates, _ = pull.update(1.0, pull.init(3.0), 3.0, anchor=1.0)
    >>> updates
    2.0
    """
    if weight < 0:
        raise ValueError(f"proximal_weight must be at least 0, got {weight}; 0 switches the proximal term off.")

    def update(updates: Params, state: optax.OptState, params: Params | None = None, *, anchor: Params = None, **extra):
        del extra
        if anchor is None:
            raise ValueError("anchor must be passed to the update: the model that the proximal term pulls to.")
        pulled = jax.tree.map(lambda u, p, a: u + weight * (p - a), updates, params, anchor)
        return pulled, state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
