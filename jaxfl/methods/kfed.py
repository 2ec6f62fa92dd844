"""k-FED: one-shot clustering of the clients in one exchange, then FedAvg in every cluster.

Dennis, Li and Smith, "Heterogeneity for the Win: One-Shot Federated Clustering", ICML 2021, Algorithm 2. Every client i
sends k' centres of its own points, once, and the server

    takes the k' centres of the first client; then, until there are K, the one farthest from those taken
    moves these by Lloyd's iteration among all received centres

A client's point takes the label of its local centre. Here a client belongs to one cluster, and its only point (k' = 1)
is its model after local training from the common initial model. Farthest-first seeds are sensitive to outliers; those
of `robust` are not. The models of the K clusters then start from the common one and are averaged over the sampled
members, as in FedAvg.

The models are stored as sketches of 1,024 numbers, see `clustering.sketch`: the relative error of distances is about
3 %.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.clustering import centres as centre_of
from jaxfl.clustering import kmeans
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method, Participation
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.by_cluster import cluster_averaging
from jaxfl.methods.parts.one_shot import add_exchange, nearest_centre, train_all_once
from jaxfl.methods.parts.vectors import compared_leaves, to_vector
from jaxfl.random import Stream, key_for
from jaxfl.schema import checked
from jaxfl.server import aggregate
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params


class KFedState(NamedTuple):
    """K models; the clusters never change."""

    models: Params  # [K, ...]
    cluster: Array  # [N] int32
    occupied: Array  # [K] bool, with clients that take part
    round: Array  # [] int32


@server_sees(
    Seen("representations", "a sum of models for each cluster", before="a sketch of each client's first model")
)
@checked
def kfed(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int = 4,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "rows",
    first_epochs: int = 5,
    layers: str | Sequence[str] = ".*",
) -> Method:
    """Returns k-FED on the clients' models, and FedAvg by cluster.

    Args:
        task: what is learned.
        optimizer: the local optimiser.
        num_clusters: K.
        local_epochs: E, of a round.
        batch_size: B; None takes all of a client's rows at once.
        weighting: weights of the models in a mean: `"rows"` (n_i / n) or `"uniform"` (1 / m); in the clustering all
            clients count equally.
        first_epochs: epochs of the training before the clustering.
        layers: patterns (see `tree.matching`) of the parameters that clients are clustered by, or `"last
            kernel"`; all by default.

    Raises:
        ValueError: an option is out of range, or there are more clusters than clients.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(kfed(task, optax.sgd(0.1), num_clusters=2), data, rounds=2, cohort=4, seed=0)
    >>> result.state.models["Dense_0"]["kernel"].shape
    (2, 64, 10)
    """
    for name, value in {"num_clusters": num_clusters, "first_epochs": first_epochs}.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    chosen = compared_leaves(task, layers)
    first = local_train(task, optimizer, local_epochs=first_epochs, batch_size=batch_size)
    step = cluster_averaging(local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size), weighting)

    def point_of(key: Key, model: Params) -> Array:
        return to_vector(key, tree.partition(model, chosen)[0])

    def init(key: Key, data: FederatedData) -> KFedState:
        base.check_clusters(num_clusters, data)
        model = task.init(key_for(key, Stream.INIT))
        points, known = train_all_once(key, model, data, first, point_of)
        centres = server_centres(points, num_clusters, mask=known)
        cluster = nearest_centre(points, centres)
        occupied = centre_of.counts(jnp.where(known, cluster, -1), num_clusters) > 0
        return KFedState(tree.repeat(model, num_clusters), cluster, occupied, jnp.int32(0))

    def round(key: Key, state: KFedState, data: FederatedData, cohort: Cohort) -> tuple[KFedState, Info]:
        models, info = step(
            key, state.models, state.cluster, state.round, data, cohort, num_clusters=state.occupied.sum()
        )
        one = base.shape_of(state.models)
        info = add_exchange(info, state.round == 0, data, up=jax.eval_shape(point_of, key, one), down=one)
        return state._replace(models=models, round=state.round + 1), info

    def client_params(state: KFedState, ids: Array) -> Params:
        return tree.take(state.models, state.cluster[ids])

    def shortfall(state: KFedState, data: FederatedData, participation: Participation) -> str:
        return base.one_cluster(state, data, num_clusters, "raise first_epochs, or take other layers")

    return Method(init, round, client_params, task, reads="everybody", shortfall=shortfall)


def server_centres(points: Array, num_clusters: int, *, local: int = 1, mask: Array | None = None) -> Array:
    """Returns the server's centres `[K, d]` of the clients' centres.

    Args:
        points: the clients' centres `[M, d]`, client after client.
        num_clusters: K, at most M.
        local: k', number of centres of the first client.
        mask: bool `[M]`, False for absent points; None if no point is absent.

    Raises:
        ValueError: there are fewer points than clusters.

    References: Dennis, Li and Smith, ICML 2021, Algorithm 2, steps 2 to 8.

    >>> server_centres(jnp.array([[0.0], [8.0], [1.0], [9.0]]), 2).ravel().tolist()
    [0.5, 8.5]
    """
    if num_clusters > points.shape[0]:
        raise ValueError(
            f"num_clusters must be at most the number of points ({points.shape[0]}), got {num_clusters}; lower "
            "num_clusters or give more points."
        )
    mask = jnp.ones(points.shape[0], bool) if mask is None else mask
    first = jnp.argsort(~mask, stable=True)[: min(local, num_clusters)]  # the first that are present
    seeds = kmeans.farthest_first(points, first, num_clusters, mask=mask)
    return kmeans.lloyd(points, seeds, mask=mask).centres
