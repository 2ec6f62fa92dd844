"""FedAMP: personal models, each pulled to a mean of all clients' models in which similar models weigh more.

Huang, Chu, Zhou, Wang, Liu, Pei and Zhang, "Personalized Cross-Silo Federated Learning on Non-IID Data", AAAI 2021.
There is no global model. The server stores each client's last model w_j; before client i trains, it computes

    xi_ij <- alpha A'(||w_i - w_j||^2),  A'(x) = exp(-x / sigma) / sigma,  j other than i;    xi_ii <- 1 - sum_j xi_ij
    u_i   <- sum_j xi_ij w_j                                              # the client's model in the cloud

and the client minimises f_i(w) + lambda / (2 alpha) ||w - u_i||^2 by E epochs of SGD from its w_i, and sends the
result. HeurFedAMP, `similarity="cosine"`, is the paper's heuristic for deep networks: their squared distances are soon
so far above sigma that no two models count as similar. It fixes xi_ii, and

    xi_ij <- (1 - xi_ii) exp(sigma cos(w_i, w_j)) / sum_{h other than i} exp(sigma cos(w_i, w_h))

Stored models of absent clients count; untrained ones, w^0, do not. Where all models are equal, u_i is that model; with
alpha = 0, or xi_ii = 1, it is w_i, and the client is pulled to its last model.

No official code was found, nor could the paper's text be opened: the equations are those in which notes and three other
codes agree. These start either from w_i, as here, or from u_i. Their settings differ, too: alpha, lambda and sigma are
1, 1 and 1, or 0.1, 0.1 and 1; HeurFedAMP has sigma = 25 and xi_ii = 1 / N, or 0.1 and 0.1. PFLlib pulls by the
distance and not by its square, and counts the models of the last round alone.

Both sigma depend on network and data. Models that began as one have cosines near 1, so that HeurFedAMP needs a large
one: on rotated digits (40 clients, half of them a round, 20 rounds of 5 epochs in batches of 20) it comes to 84.0 % at
25 and 92.6 % at 200; FedAMP to 87.2 % at 1, 89.1 % at 2 and 85.8 % at 4; local training to 87.3 %, FedAvg to 87.6 %.

Each client of a round passes over the models of all N: for federations of up to hundreds of clients.
"""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxfl import tree
from jaxfl.client.corrections import proximal_pull
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method, Participation
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.personal import mark_trained, over_rows, personal_info
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked, is_known
from jaxfl.server.flight_context import refuse_asynchronous
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

PULL = 0.01  # least weight of other models in a cloud model that is worth a round
Similarity = Literal["distance", "cosine"]


class FedAMPState(NamedTuple):
    """The last model of each client."""

    models: Params  # [N, ...]
    trained: Array  # [N] bool, False while a client's model is w^0
    cluster: Array  # [N] int32, every client in a slot of its own
    round: Array  # [] int32


@server_sees(Seen("updates", "the personal model of each client, the last of which is stored"))
@checked
def fedamp(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    similarity: Similarity = "distance",
    sigma: Traceable = 1.0,
    attraction: Traceable | None = None,
    own_share: Traceable | None = None,
    proximal_weight: Traceable = 1.0,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
) -> Method:
    """Returns FedAMP, or HeurFedAMP.

    Args:
        task: what is learned.
        optimizer: the local optimiser.
        similarity: similarity of two models: `"distance"` (FedAMP) or `"cosine"` (HeurFedAMP).
        sigma: with distances, the squared distance at which a model weighs 1 / e of an equal one; with cosines, the
            factor of the cosines: 0 gives all models equal weights.
        attraction: alpha, for distances; None is sigma / N, which gives equal models equal weights, where N counts the
            clients that are not held out. At most sigma / (M - 1), M of all clients: above it, xi_ii may be negative
            where models are equal.
        own_share: xi_ii, for cosines, from 0 to 1; None is 1 / N of the same N.
        proximal_weight: lambda / alpha, the pull to u_i; the paper's lambda alone is not an option. Plain gradient
            steps need `learning_rate * (proximal_weight + curvature) < 2`.
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.

    Raises:
        ValueError: an option is out of range, or options do not go together.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(fedamp(task, optax.sgd(0.1)), data, rounds=2, cohort=4, seed=0)
    >>> result.state.models["Dense_0"]["kernel"].shape
    (8, 64, 10)
    """
    _check_arguments(similarity, sigma, attraction, own_share)
    local = optax.chain(proximal_pull(proximal_weight), optimizer)
    train = local_train(task, local, local_epochs=local_epochs, batch_size=batch_size)

    def weights(models: Params, model: Params, others: Array, data: FederatedData) -> Array:
        """Returns xi_ij `[N]`, 0 where `others` is False."""
        # with rows or without: a client that diverges must leave the others as if it had no rows
        count = others.shape[0] if data.held_out is None else others.shape[0] - jnp.asarray(data.held_out).sum()
        count = jnp.asarray(count, jnp.result_type(float))
        if similarity == "distance":
            alpha = sigma / count if attraction is None else attraction
            return jnp.where(others, alpha / sigma * jnp.exp(-squared_model_distances(models, model) / sigma), 0)
        share = 1 / count if own_share is None else own_share
        return (1 - share) * masked_softmax(sigma * cosines(models, model), others)

    def init(key: Key, data: FederatedData) -> FedAMPState:
        count = data.num_clients
        if attraction is not None and is_known(attraction * sigma) and attraction * (count - 1) > sigma:
            raise ValueError(
                f"attraction must be at most sigma / (M - 1) = {sigma / (count - 1):g} with M = {count} clients, got "
                f"{attraction}; none takes sigma / N."
            )
        models = tree.repeat(task.init(key_for(key, Stream.INIT)), count)
        return FedAMPState(models, jnp.zeros(count, bool), jnp.arange(count, dtype=jnp.int32), jnp.int32(0))

    def client(shared, client: Array, model: Params):
        key, (models, trained, round), data = shared
        others = trained.at[client].set(False)
        cloud = cloud_model(models, model, weights(models, model, others, data))
        trained, loss = train(key_for(key, Stream.BATCHES, round, client), model, data, client, anchor=cloud)
        row = tree.where(data.train.size[client] > 0, trained, model)  # without a step it does not move to the cloud
        return (), row, loss, tree.is_finite(trained)

    def round(key: Key, state: FedAMPState, data: FederatedData, cohort: Cohort) -> tuple[FedAMPState, Info]:
        refuse_asynchronous("fedamp", "it compares all models, which must be of one round; take fedper")
        shared = key, (state.models, state.trained, state.round), data
        passed = over_rows(client, shared, cohort, state.models)
        info = personal_info(passed, cohort, data.num_clients, base.shape_of(state.models))
        trained = mark_trained(state.trained, passed, data, cohort)
        return FedAMPState(passed.rows, trained, state.cluster, state.round + 1), info

    def shortfall(state: FedAMPState, data: FederatedData, participation: Participation) -> str:
        alone, trained = base.trained_once(participation, "models"), np.flatnonzero(state.trained)
        if similarity == "cosine" or attraction == 0 or len(trained) < 2:
            return alone
        distances = distances_between(jax.tree.map(lambda leaf: np.asarray(leaf)[trained], state.models))
        count = data.num_clients if data.held_out is None else int((~np.asarray(data.held_out)).sum())
        alpha = sigma / count if attraction is None else attraction
        weights = alpha / sigma * np.exp(-distances / sigma)
        largest = float((weights.sum(1) - weights.diagonal()).max())
        if largest >= PULL:
            return alone
        nearest = distances[~np.eye(len(trained), dtype=bool)].min()
        return (
            f"{alone} The models of others have at most {100 * largest:.2g} % of the weight in the cloud model of a "
            f"client, since sigma={sigma:g} is small beside their squared distances, {nearest:.3g} or more: raise "
            'sigma, or take similarity="cosine".'
        ).lstrip()

    # no `per_client`: a round reads the models of all clients, though the rows of its cohort alone
    return Method(init, round, lambda state, ids: tree.take(state.models, ids), task, shortfall=shortfall)


def cloud_model(models: Params, model: Params, weights: Array) -> Params:
    """Returns u_i: the weighted sum of `models [N, ...]`, with the client's own `model` for the rest of the weights.

    >>> cloud_model({"w": jnp.array([1.0, 3.0])}, {"w": jnp.array(8.0)}, jnp.array([0.5, 0.25]))["w"].tolist()
    3.25
    """
    own = 1 - weights.sum()

    def mix(others: Array, mine: Array) -> Array:
        share = weights.astype(mine.dtype)
        return own.astype(mine.dtype) * mine + jnp.tensordot(share, others, axes=1, precision="highest")

    return jax.tree.map(mix, models, model)


def squared_model_distances(models: Params, model: Params) -> Array:
    """Returns the squared distances `[N]` of `models [N, ...]` from `model`; exactly 0 for equal ones.

    >>> squared_model_distances({"w": jnp.array([[1.0, 1.0], [4.0, 5.0]])}, {"w": jnp.array([1.0, 1.0])}).tolist()
    [0.0, 25.0]
    """
    return _sum_by_model(jax.tree.map(lambda one, mine: jnp.square(one - mine[None]), models, model))


def distances_between(models: Params) -> np.ndarray:
    """Returns the squared distances `[N, N]` between `models [N, ...]`, on the host.

    >>> distances_between({"w": np.array([[1.0, 1.0], [4.0, 5.0]])}).tolist()
    [[0.0, 25.0], [25.0, 0.0]]
    """
    products = 0.0
    for leaf in jax.tree.leaves(models):
        rows = leaf.reshape(len(leaf), -1)
        rows = rows - rows.mean(0)  # near models have small products then
        products = products + np.float64(rows @ rows.T)
    squares = np.diagonal(products)
    return np.maximum(squares[:, None] + squares - 2 * products, 0)


def cosines(models: Params, model: Params) -> Array:
    """Returns the cosines `[N]` of `models [N, ...]` and `model`; 0 where one of the two is zero.

    >>> cosines({"w": jnp.array([[2.0, 0.0], [3.0, 3.0], [0.0, 0.0]])}, {"w": jnp.array([1.0, 0.0])}).tolist()
    [1.0, 0.707..., 0.0]
    """
    products = _sum_by_model(jax.tree.map(lambda one, mine: one * mine[None], models, model))
    lengths = jnp.sqrt(_sum_by_model(jax.tree.map(jnp.square, models))) * tree.norm(model)
    return jnp.where(lengths > 0, products / jnp.where(lengths > 0, lengths, 1), 0)


def masked_softmax(values: Array, mask: Array) -> Array:
    """Returns the softmax `[N]` of the `values` under `mask`; 0 for the others, and everywhere if `mask` is empty.

    >>> masked_softmax(jnp.array([1.0, 1.0, 9.0]), jnp.array([True, True, False])).tolist()
    [0.5, 0.5, 0.0]
    """
    largest = jnp.max(values, where=mask, initial=jnp.finfo(values.dtype).min)
    powers = jnp.where(mask, jnp.exp(values - largest), 0)
    total = powers.sum()
    return powers / jnp.where(total > 0, total, 1)


def _sum_by_model(models: Params) -> Array:
    """Returns the sum of all numbers of each model `[N]`."""
    return jnp.stack([leaf.reshape(leaf.shape[0], -1).sum(axis=1) for leaf in jax.tree.leaves(models)]).sum(axis=0)


def _check_arguments(similarity: Similarity, sigma: float, attraction: float | None, own_share: float | None) -> None:
    """Raises ValueError if an option is out of range, or is of the other similarity."""
    if similarity == "distance" and own_share is not None:
        raise ValueError(
            f'own_share is an option of similarity="cosine", got {own_share} with "distance"; leave it out.'
        )
    if similarity == "cosine" and attraction is not None:
        raise ValueError(
            f'attraction is an option of similarity="distance", got {attraction} with "cosine"; leave it out.'
        )
    if similarity == "distance" and is_known(sigma) and not 0 < sigma < math.inf:
        raise ValueError(f"sigma must be above 0 and finite, got {sigma}; it is a squared distance.")
    if is_known(sigma) and not 0 <= sigma < math.inf:  # nor NaN
        raise ValueError(f"sigma must be at least 0 and finite, got {sigma}; 0 makes all clients equal.")
    if attraction is not None and is_known(attraction) and not attraction >= 0:
        raise ValueError(f"attraction must be at least 0, got {attraction}; 0 leaves every client with its own model.")
    if own_share is not None and is_known(own_share) and not 0 <= own_share <= 1:
        raise ValueError(f"own_share must be from 0 to 1, got {own_share}.")
