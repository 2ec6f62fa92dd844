"""Server optimisers: the server's step from the mean of the clients' contributions.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2. The difference between the global model and the
average of the clients' models is a gradient (they call minus it Delta), and any optax optimiser may take the step:

    w <- w - step(w - sum_i (n_i / n) w_i)

SGD of rate 1 is plain averaging, and with momentum it is FedAvgM (Hsu et al., 2019): `optax.sgd(1.0, momentum=0.9)`.
`fedadam` and `fedyogi` are Algorithm 2 to the letter. `optax.adam` and `optax.yogi` may serve as well, but are not the
paper's: both correct the bias of m and v (no option switches it off), Adam's v starts at 0 instead of tau^2, Yogi's m
and v start at 1e-6, so that Yogi moves a little even where every Delta is 0; and their defaults are b2 = 0.999 and an
eps (the paper's tau) of 1e-8 and 1e-3.

The optimiser's state is the server's, and is kept from round to round. A round in which nobody counts is abandoned: it
moves neither the model nor the optimiser.
"""

import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.server import aggregate
from jaxfl.tasks import Averages
from jaxfl.typing import Array, Params


def init(optimizer: optax.GradientTransformation | None, model: Params) -> optax.OptState:
    """Returns the server's state before the first round; nothing for plain averaging.

    Raises:
        ValueError: the optimiser draws random numbers.
        TypeError: its step needs more than there is.
    """
    if optimizer is None:
        return ()
    state = optimizer.init(model)
    if tree.has_keys(state):
        raise ValueError(
            "server_optimizer must draw no random numbers, got one with a key in its state (optax.add_noise), which no "
            "checkpoint holds."
        )
    try:
        jax.eval_shape(optimizer.update, model, state, model)
    except (TypeError, ValueError, AttributeError) as error:
        raise TypeError(
            f"server_optimizer makes no step: {str(error).rstrip('.')}. A server's step has the gradient, its state "
            "and the model; what needs more, as the loss, cannot be used: optax.sgd(1.0, momentum=0.9) can."
        ) from error
    return state


def step(
    optimizer: optax.GradientTransformation | None,
    state: optax.OptState,
    model: Params,
    average: Params,
    *,
    counted: Array | bool = True,
) -> tuple[Params, optax.OptState]:
    """Returns the new global model and the server's new state.

    Args:
        optimizer: of the server; None takes the average itself.
        state: of `init`, or of the round before.
        model: the global model that the clients started from.
        average: of their models; equal to `model` where no client counts.
        counted: [] bool, whether any client counts; False leaves the model and the state as they are, where momentum
            alone would have moved them.

    >>> model, average = {"w": jnp.array([1.0])}, {"w": jnp.array([0.5])}
    >>> half = optax.sgd(0.5)
    >>> step(half, init(half, model), model, average)[0]["w"].tolist()
    [0.75]
    """
    if optimizer is None:
        return average, state
    updates, moved = optimizer.update(jax.tree.map(lambda a, b: a - b, model, average), state, model)
    return tree.where(jnp.asarray(counted), (optax.apply_updates(model, updates), moved), (model, state))


def step_to_mean(
    optimizer: optax.GradientTransformation | None, state: optax.OptState, model: Params, total: aggregate.Total
) -> tuple[Params, optax.OptState]:
    """Returns the new global model and the server's new state, from what the clients have sent.

    Args:
        optimizer: as for `step`.
        state: as for `step`.
        model: the global model that the clients started from; it stays where no client counts.
        total: the sums of their models, of one cluster.

    >>> model = {"w": jnp.array([1.0])}
    >>> sent = aggregate.Total({"w": jnp.array([[1.5]])}, jnp.array([3.0]), jnp.int32(0))
    >>> step_to_mean(None, (), model, sent)[0]["w"].tolist()
    [0.5]
    """
    average = tree.take(aggregate.mean(total, empty=tree.repeat(model, 1)), 0)
    return step(optimizer, state, model, average, counted=total.weight[0] > 0)


def beside(
    optimizer: optax.GradientTransformation | None, averages: Averages | None
) -> optax.GradientTransformation | None:
    """Returns the server's optimiser, with running averages left to plain averaging: their change is no gradient.

    Args:
        optimizer: of the server, or None.
        averages: of the task, or None where its model has none.
    """
    if optimizer is None or averages is None:
        return optimizer

    def labels(model: Params) -> Params:
        return jax.tree.map(lambda chosen: "average" if chosen else "step", averages.chosen(model))

    return optax.multi_transform({"step": optimizer, "average": optax.sgd(1.0)}, labels)


class AdaptiveState(NamedTuple):
    """State of FedAdam and FedYogi between rounds."""

    mean: Params  # m, starts at 0
    square: Params  # v, starts at tau^2


def fedadam(
    learning_rate: float = 0.01, *, b1: float = 0.9, b2: float = 0.99, tau: float = 1e-3
) -> optax.GradientTransformation:
    """Returns FedAdam's server optimiser (Reddi et al., Algorithm 2).

        m <- b1 m + (1 - b1) Delta;    v <- b2 v + (1 - b2) Delta^2;    w <- w + learning_rate * m / (sqrt(v) + tau)

    `b1`, `b2` and `tau` are the paper's; its `learning_rate` is tuned for every task, and 0.01 is only a start.

    Args:
        learning_rate: eta, the server's.
        b1: decay of m.
        b2: decay of v.
        tau: adaptivity: the smaller, the more alike the steps of all parameters.

    Raises:
        ValueError: an option is out of range.

    >>> adam = fedadam(0.01, b1=0.0, b2=0.0)
    >>> updates, _ = adam.update(jnp.array(0.5), adam.init(jnp.array(1.0)))
    >>> round(float(updates), 5)  # -0.01 * 0.5 / (0.5 + 0.001)
    -0.00998
    """
    return _adaptive(learning_rate, b1, b2, tau, lambda v, square: b2 * v + (1 - b2) * square)


def fedyogi(
    learning_rate: float = 0.01, *, b1: float = 0.9, b2: float = 0.99, tau: float = 1e-3
) -> optax.GradientTransformation:
    """Returns FedYogi's server optimiser: FedAdam with `v <- v - (1 - b2) Delta^2 sign(v - Delta^2)`.

    v forgets large differences more slowly than Adam's.

    Args:
        learning_rate: eta, the server's.
        b1: decay of m.
        b2: decay of v.
        tau: adaptivity.

    Raises:
        ValueError: an option is out of range.
    """
    return _adaptive(learning_rate, b1, b2, tau, lambda v, square: v - (1 - b2) * square * jnp.sign(v - square))


def _adaptive(
    learning_rate: float, b1: float, b2: float, tau: float, accumulate: Callable[[Array, Array], Array]
) -> optax.GradientTransformation:
    """Returns Algorithm 2 with `accumulate: (v, Delta^2) -> v`; what it is given is minus Delta."""
    # what optax.inject_hyperparams makes arrays of has no value yet
    if not isinstance(learning_rate, jax.Array) and not (
        isinstance(learning_rate, numbers.Real) and 0 <= learning_rate < float("inf")
    ):
        raise ValueError(
            f"learning_rate must be a number, at least 0 and finite, got {learning_rate!r}; 0.01 is a start, and a "
            "schedule goes into optax.inject_hyperparams(...)(learning_rate=schedule)."
        )
    for name, value in {"b1": b1, "b2": b2}.items():
        if not isinstance(value, jax.Array) and not 0 <= value < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, got {value}; the paper's b1 is 0.9, its b2 0.99.")
    if not isinstance(tau, jax.Array) and not tau > 0:
        raise ValueError(f"tau must be above 0, got {tau}; the paper's is 1e-3.")

    def init(params: Params) -> AdaptiveState:
        return AdaptiveState(optax.tree.zeros_like(params), optax.tree.full_like(params, tau**2))

    def update(updates: Params, state: Any, params: Params | None = None) -> tuple[Params, AdaptiveState]:
        del params
        mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mean, updates)
        square = jax.tree.map(lambda v, g: accumulate(v, g * g), state.square, updates)
        step = jax.tree.map(lambda m, v: -learning_rate * m / (jnp.sqrt(v) + tau), mean, square)
        return step, AdaptiveState(mean, square)

    return optax.GradientTransformation(init, update)
