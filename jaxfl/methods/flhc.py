"""FL+HC, federated learning with hierarchical clustering.

Briggs, Fan and Andras, "Federated learning with hierarchical clustering of local updates to improve training on non-IID
data", IJCNN 2020, Algorithm 1.

    rounds 0 to n - 1    FedAvg:                                             theta <- sum_i (n_i / n) theta_i
    round n              ALL clients train theta and send                    D_i = theta_i - theta
                         agglomerative clustering of the D_i: the two nearest clusters merge while their distance is at
                         most T; their number is a result
    from round n on      FedAvg in every cluster, each from theta; the clusters do not change

No official code was found. Published ones differ from the paper and from each other: one clusters the models instead
of the updates (by `metric="l2"`, `linkage="complete"`, `warmup_rounds=20`), the others use average
linkage. Here clusters at exactly T merge; those of scikit-learn merge strictly below it.

From a common start, models and updates have the same L1 and L2 distances, up to rounding, but other cosines. L1 and L2
grow with the number of parameters, the learning rate and the epochs, and T has to follow; the cosine does not. On the
rotated digits (20 to 40 clients of 60 to 80 rows), average linkage of 1 - cos merges the clients of a rotation below
0.51 and rotations above 0.90 at n = 10, and below 0.63 and above 1 at n = 20; where all have one rotation, they merge
below 0.77 and 0.95: the longer the warm-up, the less similar their updates are.

A client without rows, or with a model that is not finite, has no D_i: it does not affect the clustering, and is in the
largest cluster. Held-out clients are in the cluster of the nearest client that took part. So are clients that arrive
later: theta is stored, and all clients train from it once more. Before round n all clients have one model.

FedClust (Islam et al., 2024, arXiv 2407.07124) is said to cluster once, by the weights of the last layer after a local
pass. That is FL+HC with `layers="last kernel"`, `warmup_rounds=0`, `metric="l2"` and a T of its scale. The paper's text
was not available: which distance and linkage it has is unconfirmed, so that there is no preset.
"""

import math
import sys
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.clustering import distances
from jaxfl.clustering.merging import Linkage
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method, Participation
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.by_cluster import cluster_averaging
from jaxfl.methods.parts.one_shot import add_exchange, cluster_clients, grow, train_once
from jaxfl.methods.parts.vectors import compared_leaves, to_vector
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked, is_known
from jaxfl.server import aggregate
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

UpdateDistance = Literal["l1", "l2", "cosine"]
UPDATE_DISTANCES = {"l1": distances.l1, "l2": distances.l2, "cosine": lambda *points: 1 - distances.cosine(*points)}
COSINE_THRESHOLD = 0.8  # see above; a mean cosine of 0.2 is enough to merge


class FLHCState(NamedTuple):
    """Slots of models; clustering takes one for every cluster."""

    models: Params  # [K, ...]; the global model in slot 0, until there are clusters
    cluster: Array  # [N] int32, until then 0
    num_clusters: Array  # [] int32, until then 0
    round: Array  # [] int32
    theta: Params  # of round n; the initial one before it
    placed: Array  # [N] bool, has a cluster


@server_sees(Seen("representations", "after the warm-up a sketch of each client's update, once; else sums of models"))
@checked
def flhc(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    warmup_rounds: int = 10,
    metric: UpdateDistance = "cosine",
    linkage: Linkage = "average",
    threshold: Traceable | None = None,
    num_clusters: int | None = None,
    layers: str | Sequence[str] = ".*",
    sketch_size: int | None = 4096,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "rows",
    slots: int = 16,
) -> Method:
    """Returns FL+HC.

    Args:
        task: what is learned.
        optimizer: the local optimiser.
        warmup_rounds: n, rounds of FedAvg before the clustering; it waits for a round with clients.
        metric: distance of two updates: `"l1"`, `"l2"` or `"cosine"` (1 - cos).
        linkage: distance of two clusters: `"single"`, `"complete"`, `"average"`, `"weighted"` or, with l2, `"ward"`,
            see `clustering.linkage`.
        threshold: T, in units of the distances; clusters at exactly T merge. None is 0.8 for the cosine; l1 and l2
            depend on the model's scale and need a value.
        num_clusters: number of clusters, instead of a threshold.
        layers: patterns (see `tree.matching`) of the parameters that are compared, or `"last kernel"`; all by
            default.
        sketch_size: numbers stored of each client's update, if it is longer: the relative error of l2, and the error of
            a cosine, is about `1 / sqrt(sketch_size)`. None stores all numbers, N models in round n; l1 needs None.
        local_epochs: E, also of the clustering.
        batch_size: B; None takes all of a client's rows at once.
        weighting: weights of the models in a mean: `"rows"` (n_i / n) or `"uniform"` (1 / m); in the clustering all
            updates count equally.
        slots: cluster models at the start; the simulator doubles them when they run out.

    Raises:
        ValueError: an option is out of range, or options do not go together.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=80)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(flhc(task, optax.sgd(0.1), warmup_rounds=5), data, rounds=6, cohort=4, seed=0)
    >>> result.state.cluster.tolist()
    [0, 0, 1, 1, 2, 2, 3, 3]
    """
    _check_arguments(warmup_rounds, metric, linkage, threshold, num_clusters, sketch_size, slots)
    height = COSINE_THRESHOLD if threshold is None else threshold
    chosen = compared_leaves(task, layers)
    train = local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size)

    def init(key: Key, data: FederatedData) -> FLHCState:
        base.check_clusters(num_clusters or 1, data)
        model = task.init(key_for(key, Stream.INIT))
        cluster, placed = jnp.zeros(data.num_clients, jnp.int32), jnp.zeros(data.num_clients, bool)
        return FLHCState(tree.repeat(model, slots), cluster, jnp.int32(0), jnp.int32(0), model, placed)

    def vector_of(key: Key, model: Params) -> Array:
        return to_vector(key, tree.partition(model, chosen)[0], size=sketch_size or sys.maxsize)

    step = cluster_averaging(train, weighting)

    def train_all(key: Key, model: Params, data: FederatedData, cohort: Cohort) -> tuple[Array, Array, Array]:
        """Returns D_i `[N, d]`, bool `[N]` for clients that are clustered, and bool `[N]` for clients with a D_i."""
        # no larger chunk than in training: a plan for a whole cohort at once may lack memory for all clients
        plan = cohort.plan._replace(chunk=cohort.plan.chunk or cohort.ids.shape[0])
        everybody = Cohort.of(jnp.arange(data.num_clients), plan)
        vectors, finite = train_once(key, model, data, train, vector_of, everybody, "updates")
        able = finite & (data.train.size > 0)
        return vectors, able & base.takes_part(data), able

    def cluster_all(key: Key, model: Params, data: FederatedData, cohort: Cohort) -> tuple[Array, Array]:
        """Returns the cluster of every client `[N]` and the number of clusters."""
        vectors, known, able = train_all(key, model, data, cohort)
        return cluster_clients(UPDATE_DISTANCES[metric](vectors), known, able, linkage, height, num_clusters)

    def round(key: Key, state: FLHCState, data: FederatedData, cohort: Cohort) -> tuple[FLHCState, Info]:
        due = (state.round >= warmup_rounds) & (state.num_clusters == 0) & cohort.mask.any()
        theta = tree.take(state.models, 0)
        found, number = jax.lax.cond(
            due, lambda: cluster_all(key, theta, data, cohort), lambda: (state.cluster, state.num_clusters)
        )
        places = base.slots_of(state.models)  # K
        start = tree.where(due, tree.repeat(theta, places), state.models)

        numbers = {"num_clusters": jnp.maximum(number, 1), "overflow": base.doublings(number, places)}
        models, info = step(key, start, found, state.round, data, cohort, **numbers)
        info = add_exchange(info, due, data, up=jax.eval_shape(vector_of, key, theta), down=theta)
        theta_n = tree.where(due, theta, state.theta)
        return FLHCState(models, found, number, state.round + 1, theta_n, state.placed | due), info

    def assign(key: Key, state: FLHCState, data: FederatedData, cohort: Cohort) -> FLHCState:
        """Returns the state where clients without a cluster have that of the nearest clustered client."""
        new = cohort.mask & ~state.placed[cohort.ids] & (state.num_clusters > 0)

        def place() -> Array:
            vectors, known, able = train_all(key, state.theta, data, cohort)
            away = UPDATE_DISTANCES[metric](vectors[cohort.ids], vectors)  # [C, N]
            nearest = jnp.argmin(jnp.where((known & state.placed)[None], away, jnp.inf), 1)
            size = jnp.zeros(base.slots_of(state.models), jnp.int32).at[state.cluster].add(known.astype(jnp.int32))
            found = jnp.where(able[cohort.ids], state.cluster[nearest], jnp.argmax(size).astype(jnp.int32))
            ids = jnp.where(new, cohort.ids, data.num_clients)  # the others stay where they are
            return state.cluster.at[ids].set(found, mode="drop")

        return state._replace(cluster=jax.lax.cond(new.any(), place, lambda: state.cluster))

    def client_params(state: FLHCState, ids: Array) -> Params:
        return tree.take(state.models, state.cluster[ids])

    def shortfall(state: FLHCState, data: FederatedData, participation: Participation) -> str:
        number, count = int(state.num_clusters), base.clients_to_train(data).sum()
        if not number:
            return (
                f"The clients were not clustered, since that follows warmup_rounds={warmup_rounds} and the run had "
                f"{int(state.round)} rounds: make more rounds, or lower warmup_rounds."
            )
        if num_clusters is None and number >= count > 1:
            return f"No two clients were within threshold={height}, so that each is alone: raise threshold."
        if num_clusters is None and number == 1 < count and height < math.inf:
            return f"All {count} clients merged within threshold={height} to one cluster: lower threshold."
        return ""

    return Method(init, round, client_params, task, assign, grow=grow, reads="everybody", shortfall=shortfall)


def _check_arguments(
    warmup_rounds: int,
    metric: UpdateDistance,
    linkage: Linkage,
    threshold: float | None,
    num_clusters: int | None,
    sketch_size: int | None,
    slots: int,
) -> None:
    """Raises ValueError if an argument is out of range, or arguments contradict each other."""
    least = {"warmup_rounds": (warmup_rounds, 0), "threshold": (threshold, 0), "num_clusters": (num_clusters, 1)}
    for name, (value, low) in {**least, "sketch_size": (sketch_size, 1), "slots": (slots, 1)}.items():
        if value is not None and is_known(value) and not value >= low:
            raise ValueError(f"{name} must be at least {low}, got {value}.")
    if linkage == "ward" and metric != "l2":
        raise ValueError(f"metric must be 'l2' with linkage='ward', got {metric!r}; take l2, or another linkage.")
    if metric == "l1" and sketch_size is not None:
        raise ValueError(f"sketch_size must be None with metric='l1', got {sketch_size}: no sketch keeps L1 distances.")
    if threshold is not None and num_clusters is not None:
        raise ValueError(f"threshold must be None with num_clusters={num_clusters}, got {threshold}; give one of both.")
    if threshold is None and num_clusters is None and metric != "cosine":
        raise ValueError(
            f"threshold must be given with metric={metric!r}, whose scale depends on the model and its training, got "
            "None; or give num_clusters, or take metric='cosine'."
        )
