"""Multi-centre averaging in one pass over the clients: the rounds of FeSEM, FeSEM-MA and WeCFL.

`fesem` has the paper and its equations. A round begins with the local step; the E and M steps follow in the same pass:
a client's model is compared with the centres as soon as it is trained, and is added to the sum of its cluster. So the
models of all clients never exist at once. The first centres are those of k-means over all clients' first updates.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.corrections import proximal_pull
from jaxfl.client.steps import Epochs
from jaxfl.client.training import Train, local_train
from jaxfl.clustering import centres as centre_of
from jaxfl.clustering import kmeans
from jaxfl.clustering.from_centres import DISTANCES, CentreDistance
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.base import Info, Init, Method, Participation, takes_part
from jaxfl.methods.exposure import Seen
from jaxfl.methods.parts.one_shot import add_exchange, all_clients, nearest_centre, train_all_once
from jaxfl.methods.parts.vectors import compared_leaves, to_vector
from jaxfl.random import Stream, key_for
from jaxfl.schema import checked, is_known, is_zero
from jaxfl.server import aggregate
from jaxfl.server.aggregate import Weighting
from jaxfl.server.flight_context import update_start
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params


def local_update(
    task: Task,
    optimizer: optax.GradientTransformation,
    epochs: Epochs,
    *,
    proximal_weight: float,
    loss_weighting: Weighting,
    batch_size: int | None,
) -> Train:
    """Returns the local update of equation 7: `(key, model, data, client, *, anchor) -> (model, loss)`."""
    pull = proximal_pull(2 * proximal_weight)  # mu = 2 lambda
    local = optimizer if is_zero(proximal_weight) else optax.chain(pull, optimizer)
    train = local_train(task, local, local_epochs=epochs, batch_size=batch_size)

    def update(key: Key, model: Params, data: FederatedData, client: Array, *, anchor: Params):
        scale = {"pull_scale": share_of_rows(data, client)} if loss_weighting == "rows" else {}
        return train(key, model, data, client, anchor=anchor, **scale)

    return update


def share_of_rows(data: FederatedData, client: Array) -> Array:
    """Returns 1 / (m alpha_i) for alpha_i = n_i / n `[]`: the mean number of rows, divided by the client's number."""
    real = takes_part(data)
    dtype = jnp.result_type(float)
    mean = jnp.where(real, data.train.size, 0).sum().astype(dtype) / jnp.maximum(real.sum(), 1).astype(dtype)
    return mean / jnp.maximum(data.train.size[client], 1).astype(dtype)


SEEN = Seen("updates", "the model of each client, to compare it with all centres", before="each client's first model")


class FeSEMState(NamedTuple):
    """K centres, and each client's cluster of the last E step."""

    centres: Params  # [K, ...]
    cluster: Array  # [N] int32
    round: Array  # [] int32


class CentreRule(NamedTuple):
    """Comparison and averaging of models: the difference between FeSEM and FeSEM-MA.

    Attributes:
        distances: `(model, centres [K, ...]) -> [K]`, of the E step.
        shown: `model -> tree`, the parameters that the first clustering uses.
        align: `(model, centre) -> model`, the model that enters the mean of the centre's cluster.
        settle: `(means [K, ...], members [K]) -> centres`, of the M step.
    """

    distances: Callable[[Params, Params], Array]
    shown: Callable[[Params], Params]
    align: Callable[[Params, Params], Params]
    settle: Callable[[Params, Array], Params]


def index_rule(task: Task, layers: str | Sequence[str], distance: CentreDistance = "squared_l2") -> CentreRule:
    """Returns the rule that compares and averages parameters by index: FeSEM's and WeCFL's.

    Args:
        task: what is learned.
        layers: of the E step and of the first clustering, see `vectors.compared_leaves`.
        distance: of the E step.
    """
    chosen, measure = compared_leaves(task, layers), DISTANCES[distance]

    def part(model: Params) -> Params:
        return tree.partition(model, chosen)[0]

    return CentreRule(
        distances=lambda model, centres: measure(part(model), part(centres)),
        shown=part,
        align=lambda model, centre: model,
        settle=lambda means, members: means,
    )


CentreTraining = Callable[[Key, FeSEMState, FederatedData, Array], tuple[Params, Array]]  # a client's local update


@checked
def multi_centre(
    task: Task,
    optimizer: optax.GradientTransformation,
    rule: CentreRule,
    *,
    num_clusters: int,
    proximal_weight: float,
    loss_weighting: Weighting,
    local_epochs: Epochs,
    batch_size: int | None,
    weighting: Weighting,
    first_epochs: int | None,
    voting: Weighting = "uniform",
) -> Method:
    """Returns FeSEM under a rule.

    Args:
        task, optimizer: see `fesem`, as the options that are not named here.
        rule: comparison and averaging of models.
        num_clusters: K.
        proximal_weight, loss_weighting, local_epochs, batch_size, weighting, first_epochs: see `fesem`.
        voting: the weights of clients in the first clustering.
    """
    check_centre_options(num_clusters, proximal_weight, first_epochs)
    local = {"proximal_weight": proximal_weight, "loss_weighting": loss_weighting, "batch_size": batch_size}
    update = local_update(task, optimizer, local_epochs, **local)
    update_first = local_update(task, optimizer, local_epochs if first_epochs is None else first_epochs, **local)
    init = kmeans_init(task, rule, update_first, num_clusters=num_clusters, weighting=weighting, voting=voting)

    def learn(key: Key, state: FeSEMState, data: FederatedData, client: Array) -> tuple[Params, Array]:
        centre = tree.take(state.centres, state.cluster[client])
        return update(key_for(key, Stream.BATCHES, state.round, client), centre, data, client, anchor=centre)

    client = local_and_e_step(rule, learn, weighting)

    def round(key: Key, state: FeSEMState, data: FederatedData, cohort: Cohort) -> tuple[FeSEMState, Info]:
        total, (loss, nearest, distance, counts) = over_clients(client, (key, state, data), cohort)
        counts &= cohort.mask
        objective = jnp.where(counts, distance, 0).sum() / jnp.maximum(counts.sum(), 1).astype(distance.dtype)
        cluster = base.write_clusters(state.cluster, cohort, nearest)
        model = base.shape_of(state.centres)
        info = base.info(
            cohort,
            loss,
            state.cluster[cohort.ids],
            num_clusters=(count_members(cluster, data, num_clusters) > 0).sum(),
            diverged=total.diverged,
            up=model,
            down=model,
            distance=distance,
            objective=objective,
            changed=(cohort.mask & (nearest != state.cluster[cohort.ids])).sum(dtype=jnp.int32),
        )
        info = add_exchange(info, state.round == 0, data, up=model, down=model)
        contributors = centre_of.counts(jnp.where(counts, nearest, -1), num_clusters)  # [K]
        centres = rule.settle(aggregate.mean(total, empty=state.centres), contributors)
        return FeSEMState(centres, cluster, state.round + 1), info

    def client_params(state: FeSEMState, ids: Array) -> Params:
        return tree.take(state.centres, state.cluster[ids])

    def shortfall(state: FeSEMState, data: FederatedData, participation: Participation) -> str:
        return base.one_cluster(state, data, num_clusters, "raise first_epochs, or take another seed or other layers")

    return Method(init, round, client_params, task, reads="everybody", shortfall=shortfall)


def local_and_e_step(
    rule: CentreRule, learn: CentreTraining, weighting: Weighting
) -> Callable[..., tuple[aggregate.Contribution, tuple]]:
    """Returns `(shared, client) -> (contribution, (loss, nearest, distance, counts))`: the local step and the E step.

    `nearest []` is the centre nearest to the client's new model, `distance []` its distance. `counts []` is False for a
    client without rows or with a model that is not finite: it keeps its cluster.

    Args:
        rule: comparison and averaging of models.
        learn: a client's local update.
        weighting: of the clients in the mean of their cluster.
    """

    def client(shared, client: Array):
        key, state, data = shared
        model, loss = learn(key, state, data, client)
        distances = rule.distances(model, state.centres)  # [K]
        counts = (data.train.size[client] > 0) & tree.is_finite(model) & jnp.isfinite(distances).all()
        nearest = jnp.where(counts, jnp.argmin(distances).astype(jnp.int32), state.cluster[client])
        aligned = rule.align(model, tree.take(state.centres, nearest))
        weight = aggregate.client_weight(data, client, weighting)
        start = tree.take(state.centres, update_start(state.cluster[client], nearest))
        contribution = aggregate.contribute(aligned, weight, nearest, base.slots_of(state.centres), start=start)
        return contribution, (loss, nearest, jnp.where(counts, distances[nearest], 0), counts)

    return client


def kmeans_init(
    task: Task,
    rule: CentreRule,
    update: Train,
    *,
    num_clusters: int,
    weighting: Weighting,
    voting: Weighting,
) -> Init:
    """Returns `init(key, data) -> state`: k-means over all clients' first updates of one model, and their means.

    Args:
        task: what is learned.
        rule: comparison and averaging of models.
        update: a client's first local update.
        num_clusters, weighting: as in `fesem`.
        voting: the weights of clients in k-means.
    """

    def first(key: Key, model: Params, data: FederatedData, client: Array, *, anchor: Params) -> tuple[Params, Array]:
        trained, loss = update(key, model, data, client, anchor=anchor)
        return rule.align(trained, anchor), loss

    def vector_of(key: Key, model: Params) -> Array:
        return to_vector(key, rule.shown(model))

    def init(key: Key, data: FederatedData) -> FeSEMState:
        base.check_clusters(num_clusters, data)
        model = task.init(key_for(key, Stream.INIT))
        vectors, known = train_all_once(key, model, data, first, vector_of)
        start_key = key_for(key, Stream.START, round=1)  # round 0 of this stream is for the clients' training
        votes = aggregate.client_weight(data, jnp.arange(data.num_clients), voting)
        found = kmeans.kmeans(start_key, vectors, num_clusters, mask=known, weights=votes)
        cluster = nearest_centre(vectors, found.centres)

        def client(shared, client: Array):
            key, model, cluster, data = shared
            client_key = key_for(key, Stream.START, client=client)  # the same training as in `train_all_once`
            trained, _ = first(client_key, model, data, client, anchor=model)
            weight = aggregate.client_weight(data, client, weighting)
            return aggregate.contribute(trained, weight, cluster[client], num_clusters), ()

        counted = jnp.where(known, cluster, -1)  # [N]
        total, _ = over_clients(client, (key, model, counted, data), all_clients(model, data))
        means = aggregate.mean(total, empty=tree.repeat(model, num_clusters))
        return FeSEMState(rule.settle(means, centre_of.counts(counted, num_clusters)), cluster, jnp.int32(0))

    return init


def count_members(cluster: Array, data: FederatedData, num_clusters: int) -> Array:
    """Returns the number of clients that take part in every cluster `[K]` int32."""
    return centre_of.counts(jnp.where(takes_part(data), cluster, -1), num_clusters)


def check_centre_options(num_clusters: int, proximal_weight: float, first_epochs: int | None) -> None:
    """Raises ValueError if an argument is out of range."""
    if num_clusters < 1:
        raise ValueError(f"num_clusters must be at least 1, got {num_clusters}.")
    if is_known(proximal_weight) and not 0 <= proximal_weight < math.inf:  # nor NaN
        raise ValueError(f"proximal_weight must be at least 0 and finite, got {proximal_weight}; 0 removes the pull.")
    if first_epochs is not None and first_epochs < 1:
        raise ValueError(f"first_epochs must be at least 1, got {first_epochs}; None is local_epochs.")
