"""Expectation-maximisation of a mixture of K models on a client's rows.

`fedem` has the paper and its equations.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxfl.client.passes import fold_rows
from jaxfl.client.training import local_train
from jaxfl.data.clients import Batch, FederatedData
from jaxfl.methods.base import Participation, one_model_leads, takes_part, trained_once
from jaxfl.tasks import Task, for_each, masked_mean, row_losses, stacked_task
from jaxfl.typing import Array, Key, Params

WeightStep = Callable[[Params, Array, FederatedData, Array], Array]
RowLosses = Callable[[Params, Batch, Key | None], Array]
Prior = Callable[[Any, Batch], Array]  # (what a client has, batch) -> log pi `[K]`, or one of each row `[K, B]`

EQUAL = 1e-6  # largest difference of weights that are 1 / K still


def row_losses_by_model(task: Task) -> RowLosses:
    """Returns `(models [K, ...], batch, key) -> [K, B]`: the loss of each model on each row, 0 for padding."""
    losses = row_losses(task)
    return lambda models, batch, key: for_each(task, lambda model: losses(model, batch, key), models)


def count_leading(weights: Array, data: FederatedData) -> Array:
    """Returns the number `[]` of models that have the largest weight of `weights [N, K]` at some client that trains."""
    most = jnp.where(takes_part(data), jnp.argmax(weights, 1), -1)  # [N]; -1 counts for no model
    return jax.nn.one_hot(most, weights.shape[1], dtype=jnp.int32).any(0).sum(dtype=jnp.int32)


def mixture_shortfall(state: Any, data: FederatedData, participation: Participation) -> str:
    """Returns what a mixture has not done, see `Method.shortfall`: estimate its weights, or use several learners.

    Args:
        state: with log pi as `log_weights [N, K]`, 1 / K for clients without an estimate.
        data: the federation.
        participation: of the run.
    """
    del data
    weights = np.exp(np.asarray(state.log_weights))
    known = weights[(np.abs(weights - 1 / weights.shape[1]) > EQUAL).any(1)]
    once = trained_once(participation, "weights")
    leads = one_model_leads(known, "learner", "take another seed, a smaller learning rate or fewer learners")
    return " ".join(filter(None, (once, leads)))


def responsibilities(losses: Array, log_weights: Array) -> Array:
    """Returns q `[K, B]`, of each learner for each row.

    Args:
        losses: `[K, B]`, of each learner on each row.
        log_weights: log pi `[K]`, or one of each row `[K, B]`.

    >>> q = responsibilities(-jnp.log(jnp.array([[0.9], [0.3]])), jnp.log(jnp.array([0.25, 0.75])))
    >>> (100 * q).round().tolist()
    [[50.0], [50.0]]
    """
    prior = log_weights.astype(losses.dtype)
    return jax.nn.softmax((prior[:, None] if prior.ndim == 1 else prior) - losses, 0)


def expectation(task: Task) -> WeightStep:
    """Returns `(learners, log_weights [K], data, client) -> log_weights [K]`: one update of a client's pi, mean_j q_j.

    pi is unchanged where the client has no rows or no finite losses.

    Args:
        task: of one learner.
    """
    losses_of = row_losses_by_model(task)

    def step(learners: Params, log_weights: Array, data: FederatedData, client: Array) -> Array:
        def add(total: Array, batch: Batch) -> Array:
            q = responsibilities(losses_of(learners, batch, None), log_weights)
            return total + jnp.where(batch.mask[None], q, 0).sum(1).astype(total.dtype)

        found = fold_rows(add, jnp.zeros_like(log_weights), data, data.train, client)  # [K]
        size = jnp.maximum(data.train.size[client], 1).astype(found.dtype)
        tiny = jnp.finfo(found.dtype).tiny  # above 0, so that a learner without a row may win one later
        usable = (data.train.size[client] > 0) & jnp.isfinite(found).all()
        return jnp.where(usable, jnp.log(jnp.maximum(found / size, tiny)), log_weights)

    return step


def maximisation(
    task: Task,
    optimizer: optax.GradientTransformation,
    prior: Prior = lambda log_weights, batch: log_weights,
    **local: Any,
) -> Callable[[Key, Params, Any, FederatedData, Array], tuple[Params, Array]]:
    """Returns `(key, learners, log_weights, data, client) -> (learners, loss)`: the local training of all learners.

    The learners are trained as one model, on the sum over m of mean_j q_j(m) loss_j(m). q is computed anew in every
    step, from the learners of the round: K more forward passes, and nothing is stored per row.

    Args:
        task: of one learner.
        optimizer: of each learner separately: clipping by a norm, for example, is by the norm of one learner.
        prior: of `log_weights`, which is `[K]` by default.
        **local: `local_epochs` and `batch_size`, see `local_train`.
    """
    losses_of = row_losses_by_model(task)
    optimizer = optax.GradientTransformation(jax.vmap(optimizer.init), jax.vmap(optimizer.update))

    def train(key: Key, learners: Params, log_weights: Any, data: FederatedData, client: Array) -> tuple[Params, Array]:
        def loss(models: Params, batch: Batch, key: Key | None = None) -> Array:
            q = responsibilities(
                losses_of(learners, batch, None), prior(log_weights, batch)
            )  # nothing is trained in it
            return masked_mean((q * losses_of(models, batch, key)).sum(0), batch.mask)

        return local_train(stacked_task(task, loss), optimizer, **local)(key, learners, data, client)

    return train
