"""Robust: one-shot clustering of locally trained models by trimmed k-means, then trimmed means against attackers.

Ghosh, Hong, Yin and Ramchandran, "Robust Federated Learning in a Heterogeneous Environment", 2019, in three stages:

    I     every client trains alone, from one common model, and sends its model:              w_i
    II    the server clusters the w_i once, by k-means that outliers do not move              (`clustering.kmeans`)
    III   in every round, the sampled clients of cluster k train theta_k as in FedAvg, and
              theta_k <- trimmed mean of their models, coordinate by coordinate: without the int(trim * m) smallest
                         and as many of the largest of m values; trim = 0.5 is the median

The paper's stage III sends gradients: `local_epochs=1` with `optax.sgd` and full batches, since a trimmed mean of steps
is a step of the trimmed mean. All theta_k start from the common model. Clients that stage II leaves out of the centres
get the label of the nearest centre, and stage III has to tolerate them.

The paper's names for stage II: TKM is `trim_by="cluster"`, KGM `centre="geometric_median"`, KM `outliers=0.0`. The
default differs, since attackers with equal models are no single outliers: with a fifth of them, TKM gives them a centre
of their own, while `trim_by="all"` leaves them out as a whole if `outliers` is above their share.

`iterative=True` clusters again after every round (one step of k-means from the centres of the round before) by the last
models of the sampled clients. That is FeSEM's baseline of this name, with `layers` the last kernel, `centre="median"`,
`outliers=0.0`, `trim=0.2` and `num_clusters=3`; in its code, though, all clients start at random points, not at w_i.

The best of 20 k-means is taken. Memory: the w_i are stored as sketches of 1,024 numbers, which preserve their distances
(up to about 3 %); stage III holds the models of one cohort, [C, ...], since their ranks cannot be computed from a sum.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxfl import tree
from jaxfl.client.steps import Epochs
from jaxfl.client.training import Train, local_train
from jaxfl.clustering import centres as centre_of
from jaxfl.clustering import kmeans
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method, Participation
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.one_shot import add_exchange, nearest_centre, train_all_once
from jaxfl.methods.parts.vectors import compared_leaves, to_vector
from jaxfl.random import Stream, key_for
from jaxfl.schema import checked
from jaxfl.server.aggregators import trimmed_mean
from jaxfl.server.flight_context import refuse_asynchronous
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params


class RobustState(NamedTuple):
    """K models, and the points that the clients are clustered by."""

    models: Params  # [K, ...] theta
    points: Array  # [N, d] of each client's last model; of the common model where there is none
    known: Array  # [N] bool, whether the client's point moves the centres
    centres: Array  # [K, d]
    cluster: Array  # [N] int32, the nearest centre
    round: Array  # [] int32


@server_sees(Seen("updates", "the model of each client", before="a sketch of each client's first model"))
@checked
def robust(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int = 4,
    trim: float = 0.3,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    first_epochs: int = 5,
    outliers: float = 0.25,
    trim_by: kmeans.Trim = "all",
    centre: kmeans.Centre = "mean",
    layers: str | Sequence[str] = ".*",
    iterative: bool = False,
) -> Method:
    """Returns Robust.

    Args:
        task: what is learned.
        optimizer: the local optimiser.
        num_clusters: K.
        trim: share of a cluster's models left out on either side, from 0 (the mean) to 0.5 (the median). It must exceed
            the attackers' share of a cluster in the unluckiest cohort.
        local_epochs: E, of stage III.
        batch_size: B; None takes all of a client's rows at once.
        first_epochs: epochs of stage I. The paper trains to convergence; it suffices that the w_i differ enough.
        outliers: share of the clients that is left out of the centres, in [0, 1). It must exceed the attackers' share,
            and be below that of the smallest group, which may be left out as a whole otherwise.
        trim_by: outliers: `"all"`: the clients farthest from their centres; `"cluster"`: in every cluster, those
            farthest from its geometric median (TKM).
        centre: centre of a cluster: `"mean"`, `"median"` (coordinate by coordinate) or `"geometric_median"`.
        layers: patterns (see `tree.matching`) of the parameters that clients are clustered by, or `"last kernel"`; all
            by default.
        iterative: whether clients are clustered again after every round.

    Raises:
        ValueError: an option is out of range, or there are more clusters than clients.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(robust(task, optax.sgd(0.1), num_clusters=2), data, rounds=2, cohort=4, seed=0)
    >>> result.state.models["Dense_0"]["kernel"].shape
    (2, 64, 10)
    """
    _check_arguments({"num_clusters": num_clusters, "first_epochs": first_epochs}, trim, outliers)
    chosen = compared_leaves(task, layers)
    stage = {"trimmed": outliers, "trim": trim_by, "centre": centre}
    first = local_train(task, optimizer, local_epochs=first_epochs, batch_size=batch_size)
    train = local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size)
    trimmed = trimmed_mean(trim)

    def aggregated(models: Params, labels: Array, before: Params) -> Params:
        def of_leaf(leaf: Array, old: Array) -> Array:  # of every coordinate by itself: no second stack is made
            return trimmed(leaf.reshape(leaf.shape[0], -1), labels, num_clusters).reshape(old.shape)

        return tree.where(centre_of.counts(labels, num_clusters) > 0, jax.tree.map(of_leaf, models, before), before)

    def point_of(key: Key, model: Params) -> Array:
        return to_vector(key, tree.partition(model, chosen)[0])

    cluster_again = reclustering(point_of, stage)

    def init(key: Key, data: FederatedData) -> RobustState:
        base.check_clusters(num_clusters, data)
        model = task.init(key_for(key, Stream.INIT))
        points, known = train_all_once(key, model, data, first, point_of)
        start_key = key_for(key, Stream.START, round=1)  # in round 0 it is the clients'
        found = kmeans.kmeans(start_key, points, num_clusters, mask=known, **stage)
        return RobustState(
            models=tree.repeat(model, num_clusters),
            points=points,
            known=known,
            centres=found.centres,
            cluster=nearest_centre(points, found.centres),
            round=jnp.int32(0),
        )

    def round(key: Key, state: RobustState, data: FederatedData, cohort: Cohort) -> tuple[RobustState, Info]:
        refuse_asynchronous("robust", "it compares the models of a round, of one start; take ifca")
        # [C, ...]: no sum holds the ranks that a trimmed mean needs
        trained_models, loss = train_cohort(train, key, state, data, cohort)
        found = state.cluster[cohort.ids]
        trained = cohort.mask & (data.train.size[cohort.ids] > 0)
        counts = trained & jax.vmap(tree.is_finite)(trained_models)
        models = aggregated(trained_models, jnp.where(counts, found, -1), state.models)
        one = base.shape_of(state.models)
        info = base.info(
            cohort,
            loss,
            found,
            num_clusters=(centre_of.counts(jnp.where(state.known, state.cluster, -1), num_clusters) > 0).sum(),
            diverged=(trained & ~counts).sum(dtype=jnp.int32),
            up=one,
            down=one,
        )
        info = add_exchange(info, state.round == 0, data, up=state.points[0], down=one)
        state = state._replace(models=models, round=state.round + 1)
        return cluster_again(key, state, cohort, trained_models, counts) if iterative else state, info

    def client_params(state: RobustState, ids: Array) -> Params:
        return tree.take(state.models, state.cluster[ids])

    def shortfall(state: RobustState, data: FederatedData, participation: Participation) -> str:
        alone = base.one_cluster(state, data, num_clusters, "raise first_epochs, or lower outliers")
        largest = int(np.bincount(np.asarray(state.cluster)[base.clients_to_train(data)], minlength=1).max())
        largest = min(largest, participation.cohort)
        if trim == 0 or int(trim * largest) or trim == 0.5:  # the median of two is their mean
            return alone
        return (
            f"{alone} No client's model was left out of a mean, since trim={trim} of the {largest} clients that a "
            "cluster has in a round at most is less than one: raise trim, sample more clients, or take fewer clusters."
        ).lstrip()

    return Method(init, round, client_params, task, reads="everybody", shortfall=shortfall)


def train_cohort(
    train: Train, key: Key, state: RobustState, data: FederatedData, cohort: Cohort
) -> tuple[Params, Array]:
    """Returns the models `[C, ...]` of a cohort, each trained from its cluster's model, and the losses `[C]`."""

    def client(shared, client: Array):
        key, models, cluster, round, data = shared
        client_key = key_for(key, Stream.BATCHES, round, client)
        return (), train(client_key, tree.take(models, cluster[client]), data, client)

    return over_clients(client, (key, state.models, state.cluster, state.round, data), cohort)[1]


def reclustering(point_of: Callable[[Key, Params], Array], stage: dict[str, Any]) -> Callable[..., RobustState]:
    """Returns `cluster_again(key, state, cohort, trained_models [C, ...], counts [C]) -> state`.

    Args:
        point_of: `(key, model) -> [d]`.
        stage: options of k-means.
    """

    def cluster_again(
        key: Key, state: RobustState, cohort: Cohort, trained_models: Params, counts: Array
    ) -> RobustState:
        ids = jnp.where(counts, cohort.ids, state.cluster.shape[0])  # out of range: written nowhere
        points = state.points.at[ids].set(jax.vmap(lambda model: point_of(key, model))(trained_models), mode="drop")
        known = state.known.at[ids].set(True, mode="drop")
        centres = kmeans.lloyd(points, state.centres, mask=known, max_iterations=1, **stage).centres
        new = state._replace(points=points, known=known, centres=centres, cluster=nearest_centre(points, centres))
        return tree.where(counts.any(), new, state)

    return cluster_again


def _check_arguments(sizes: dict[str, int], trim: float, outliers: float) -> None:
    """Raises ValueError if an argument is out of range."""
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    if not 0 <= trim <= 0.5:
        raise ValueError(f"trim must be from 0 (the mean) to 0.5 (the median), got {trim}; it is cut on either side.")
    if not 0 <= outliers < 1:
        raise ValueError(f"outliers must be at least 0 and below 1, got {outliers}; it is a share of the clients.")
