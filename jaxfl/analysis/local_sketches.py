"""Sketches of the clients' local models, and cosines between their gradients: a short vector for each client."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxfl import engine
from jaxfl.client.conduct import without_conditions
from jaxfl.clustering.distances import cosine
from jaxfl.cohort import Cohort, PlanChoice, resolve_plan
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Method
from jaxfl.methods.parts.vectors import to_vector
from jaxfl.methods.stocfl.representation import represent, represent_clients
from jaxfl.random import Stream, host_rng, key_for
from jaxfl.schema import check_type
from jaxfl.simulation.evaluation.finetune import FineTune, trainer
from jaxfl.simulation.evaluation.metrics import cluster_is_known
from jaxfl.simulation.host.rows import full_shapes, with_resident_rows
from jaxfl.simulation.prepared import Prepared
from jaxfl.simulation.result import TrainedRun
from jaxfl.typing import Array, Key


class ClientSimilarity(NamedTuple):
    """Cosines between M clients, see `client_similarity`."""

    matrix: np.ndarray  # [M, M] float32, NaN of clients without a gradient
    clients: np.ndarray  # [M] int32, ids in ascending order


def client_similarity(result: TrainedRun, *, clients: int | None = 400, size: int = 4096) -> ClientSimilarity:
    """Returns the cosines between clients' gradients: of each one's own rows, all at the initial model of the run.

    These say how similar the clients' data are, whatever the method has found and attackers have sent, so that
    `plots.similarity` can set both beside each other. They are what StoCFL clusters by (Zeng et al., 2023, section
    3.1), and cost a pass over the clients' training rows.

    Args:
        result: of `jaxfl.run` or `jaxfl.load`.
        clients: how many of those with a known cluster, drawn at random where there are more of them with
            training rows; None takes all.
        size: numbers kept of each gradient; a longer one is sketched, with an error of about `1 / sqrt(size)`.

    Raises:
        ValueError: an argument is out of range, or the result does not know its method.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(jaxfl.methods.fedavg(task, optax.sgd(0.1)), data, rounds=1)
    >>> client_similarity(result, clients=6).matrix.shape
    (6, 6)
    """
    if result.method is None:
        raise ValueError("result must know its method, got one without it; take that of jaxfl.run or jaxfl.load.")
    if clients is not None and clients < 2:
        raise ValueError(f"clients must be at least 2, got {clients}; None takes all.")
    able = np.flatnonzero((np.asarray(result.data.train.size) > 0) & cluster_is_known(result.evaluation, result.data))
    chosen = host_rng(result.seed, "client similarity").permutation(able)[:clients]
    chosen = np.sort(chosen).astype(np.int32)
    task, key = result.method.task, jax.random.key(result.seed)
    anchor = task.init(key_for(key, Stream.INIT))  # that of the run
    plan = resolve_plan("auto", anchor, len(chosen))._replace(mesh=None)  # the data lie on one device
    sent = represent(task, optax.sgd(1.0), size=size)
    psi = np.array(represent_clients(sent, key, anchor, without_conditions(result.data.subset(chosen)), plan))  # [M, d]
    psi[~psi.any(1)] = np.nan  # no gradient: not the same as a right angle to all others
    return ClientSimilarity(np.asarray(cosine(psi)), chosen)


class Sketches(NamedTuple):
    """The local models of M clients as vectors: their distances are the models' distances, see `local_sketches`."""

    points: np.ndarray  # [M, d] float32
    clients: np.ndarray  # [M] int32, ids: as given, ascending if drawn
    cluster: np.ndarray  # [M] int32, slot of the model that each client is served, -1 for none
    trained: np.ndarray  # [M] bool; False: no training rows, or diverged; the point is that of the model served


def local_sketches(
    method: Method,
    result: TrainedRun,
    train: FineTune,
    *,
    clients: int | Sequence[int] | np.ndarray | None = None,
    size: int = 1024,
    layers: str | Sequence[str] = ".*",
    seed: int = 0,
    plan: PlanChoice = "auto",
) -> Sketches:
    """Returns sketches of the local models after a run: each client trains its served model on its own rows.

    These are the models that `jaxfl.run(..., finetune=train)` tests after its last round, number for number: the same
    start, the same batches, no conditions of clients. A model longer than `size` is kept as a sketch
    (see `jaxfl.clustering.sketch`): distances and inner products stay as they are but for an error of about
    1 / sqrt(size), so clusters and principal components do too; directions mean nothing. It costs a training of each
    client, and a chunk of models is alive at a time.

    Args:
        method: that was run.
        result: of `jaxfl.run(method, data, ...)`.
        train: the optimiser, epochs and batch size that the clients train with; the run's own, for what they would
            send in its next round.
        clients: how many to draw at random, of those with training rows; or which, by id; None takes all with rows.
        size: numbers kept of each model, if it is longer.
        layers: patterns (see `jaxfl.tree.matching`) of the parameters to look at; all by default.
        seed: of the drawing; the training goes by the run's seed.
        plan: a `Plan` (chunk and devices), or `"auto"`.

    Raises:
        ValueError: an argument is out of range, `layers` matches nothing, or the result is of another method.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> method = jaxfl.methods.fesem(task, optax.sgd(0.1), num_clusters=2)
    >>> result = jaxfl.run(method, data, rounds=2, seed=0)
    >>> sketches = local_sketches(method, result, jaxfl.FineTune(optax.sgd(0.1), epochs=5), clients=6)
    >>> sketches.points.shape, sketches.clients.shape
    ((6, 650), (6,))
    """
    check_type("train", train, FineTune)
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}; the error of a distance is about 1 / sqrt(size).")
    data, state, key = result.data, result.state, jax.random.key(result.seed)
    chosen = _choose_clients(data, clients, seed)
    ids, place = np.unique(chosen, return_inverse=True)
    prepared = Prepared.of(method, data, len(ids), plan=plan, resident=True)
    expected, plan = prepared.shapes, prepared.plan
    if jax.tree.structure(expected) != jax.tree.structure(full_shapes(state)):
        raise ValueError(
            f"result must be of a run of this method, whose state is {type(expected).__name__}, "
            f"got {type(state).__name__}; pass the method that was given to jaxfl.run."
        )
    state = with_resident_rows(state, ids, None)
    learn = trainer(method, train)

    def client(shared: Any, client: Array) -> tuple[tuple, tuple[Array, Array]]:
        key, state, data = shared
        model, finite = learn(key, state, data, client)
        return (), (to_vector(key, model, layers, size).astype(jnp.float32), finite & (data.train.size[client] > 0))

    @engine.jit
    def sketch(key: Key, state: Any, data: FederatedData, ids: Array) -> tuple[Array, tuple[Array, Array]]:
        state = method.assign(key, state, data, Cohort.of(jnp.arange(data.num_clients), plan))
        cohort = engine.by_size(data, Cohort.of(ids, plan))
        found = engine.over_clients(client, (key, state, data), cohort)[1]
        back = jnp.searchsorted(ids, cohort.ids)
        return state.cluster[ids], jax.tree.map(lambda leaf: jnp.zeros_like(leaf).at[back].set(leaf), found)

    cluster, (points, trained) = jax.tree.map(np.asarray, sketch(key, state, data.on_device(), jnp.asarray(ids)))
    return Sketches(points[place], chosen, cluster[place], trained[place])


def _choose_clients(data: FederatedData, clients: int | Sequence[int] | np.ndarray | None, seed: int) -> np.ndarray:
    """Returns ids `[M]` int32.

    Raises:
        ValueError: more clients than have rows, or ids are not of this federation.
    """
    able = np.flatnonzero(np.asarray(data.train.size) > 0)
    if clients is None:
        clients = len(able)
    if isinstance(clients, int | np.integer):
        if not 1 <= clients <= len(able):
            raise ValueError(
                f"clients must be from 1 to the number of clients with training rows ({len(able)}), got {clients}; "
                "None takes them all, a list of ids those named."
            )
        return np.sort(host_rng(seed, "local sketches").permutation(able)[:clients]).astype(np.int32)
    ids = np.asarray(clients)
    if ids.ndim != 1 or not len(ids) or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"clients must be a number, or a list of at least one id, got {clients!r}.")
    wrong = ids[(ids < 0) | (ids >= data.num_clients)]
    if len(wrong):
        raise ValueError(
            f"clients must be ids from 0 to {data.num_clients - 1}, got {wrong[0]}; a number alone is how many to draw."
        )
    return ids.astype(np.int32)
