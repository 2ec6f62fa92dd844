"""Expectation-maximisation of a mixture of K models on a client's rows.

`fedem` has the paper and its equations.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxfl import tree
from jaxfl.client.conduct import perturb_model
from jaxfl.client.passes import BLOCK_ROWS, batch_shape, fold_rows
from jaxfl.client.training import local_train
from jaxfl.data.clients import Batch, FederatedData
from jaxfl.methods.base import Participation, one_model_leads, takes_part, trained_once
from jaxfl.tasks import Task, for_each, row_losses, with_row_weights
from jaxfl.typing import Array, Key, Params

WeightStep = Callable[[Params, Array, FederatedData, Array], Array]
RowLosses = Callable[[Params, Batch, Key | None], Array]
RowShares = Callable[[Params, Any, FederatedData, Array], Array]
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


def row_responsibilities(task: Task, prior: Prior = lambda log_weights, batch: log_weights) -> RowShares:
    """Returns `(learners, log_weights, data, client) -> q [K, n]` of all training rows of a client, 0 of padding.

    Args:
        task: of one learner.
        prior: of `log_weights`, which is `[K]` by default.
    """
    losses_of = row_losses_by_model(task)

    def find(learners: Params, log_weights: Any, data: FederatedData, client: Array) -> Array:
        def of_batch(batch: Batch) -> Array:
            q = responsibilities(losses_of(learners, batch, None), prior(log_weights, batch))
            return jnp.where(batch.mask[None], q, 0)

        def put(carry: tuple[Array, Array], batch: Batch) -> tuple[Array, Array]:
            place, found = carry
            more = jax.lax.dynamic_update_slice(found, of_batch(batch), (jnp.int32(0), place))
            return place + batch.mask.shape[0], more

        one = jax.eval_shape(of_batch, batch_shape(data))
        size = max(data.train.max_size, 1)
        empty = jnp.zeros((one.shape[0], size + BLOCK_ROWS), one.dtype)  # the last block may be longer than the rows
        return fold_rows(put, (jnp.int32(0), empty), data, data.train, client)[1][:, :size]

    return find


def mean_log_weights(q: Array, log_weights: Array, size: Array) -> Array:
    """Returns log pi `[K]`, of pi = mean_j q_j.

    pi is unchanged where the client has no rows or no finite losses.

    Args:
        q: `[K, n]` of a client's rows, 0 of padding.
        log_weights: log pi `[K]` before.
        size: the number of rows `[]`.
    """
    found = q.sum(1).astype(log_weights.dtype)
    tiny = jnp.finfo(found.dtype).tiny  # above 0, so that a learner without a row may win one later
    usable = (size > 0) & jnp.isfinite(found).all()
    mean = found / jnp.maximum(size, 1).astype(found.dtype)
    return jnp.where(usable, jnp.log(jnp.maximum(mean, tiny)), log_weights)


def expectation(task: Task) -> WeightStep:
    """Returns `(learners, log_weights [K], data, client) -> log_weights [K]`: one update of a client's pi, mean_j q_j.

    Args:
        task: of one learner.
    """
    shares = row_responsibilities(task)

    def step(learners: Params, log_weights: Array, data: FederatedData, client: Array) -> Array:
        return mean_log_weights(shares(learners, log_weights, data, client), log_weights, data.train.size[client])

    return step


def maximisation(
    task: Task, optimizer: optax.GradientTransformation, **local: Any
) -> Callable[[Key, Sequence[Params], Array, FederatedData, Array], tuple[list[Params], Array]]:
    """Returns `(key, learners, q [K, n], data, client) -> (learners, loss)`: the local training of all K learners.

    Each is trained on mean_j q_j(m) loss_j, on the same batches; the loss is the sum over the learners. They are apart
    and not stacked, so that their dense layers may be trained and summed in coordinates.

    Args:
        task: of one learner.
        optimizer: of each learner by itself.
        **local: `local_epochs` and `batch_size`, see `local_train`.
    """
    train_one = local_train(with_row_weights(task), optimizer, **local)

    def train(
        key: Key, learners: Sequence[Params], q: Array, data: FederatedData, client: Array
    ) -> tuple[list[Params], Array]:
        honest = replace(data, attack=None)
        found = [train_one(key, one, honest, client, row_weights=q[k]) for k, one in enumerate(learners)]
        trained = [one for one, _ in found]
        if data.attack is not None:  # all learners are perturbed as one model
            trained = apart(perturb_model(key, stacked(learners), stacked(trained), data, client), len(learners))
        return trained, jnp.stack([loss for _, loss in found]).sum()

    return train


def stacked(models: Sequence[Params]) -> Params:
    """Returns models as one `[K, ...]`."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)


def apart(models: Params, count: int) -> list[Params]:
    """Returns the models `[K, ...]` one by one."""
    return [tree.take(models, k) for k in range(count)]
