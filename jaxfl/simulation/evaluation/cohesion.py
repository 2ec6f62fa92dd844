"""Scores of the found clusters of data without true groups, by what the clients' own rows say.

Two kinds of points are compared, see `jaxfl.clustering.cohesion`:

- the directions of the clients' gradients at the initial model of the run, as StoCFL compares clients, on up to `ROWS`
  training rows of each; sketched to `SIZE` numbers, with an error of a cosine of about 1 / sqrt(SIZE). They are the
  same for all methods with one seed, and for all evaluations: scores of several runs can be compared, which scores of
  what each method clusters by could not be.
- the sorted class frequencies of their training rows (the Wasserstein-adjusted scores), of data whose labels are
  classes.

Both are computed once for a run, of at most `MOST_CLIENTS` clients, and only when there are clusters to be scored.
"""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxfl import engine
from jaxfl.client.conduct import without_conditions
from jaxfl.clustering import cohesion
from jaxfl.cohort import Cohort, Plan, resolve_plan
from jaxfl.data.clients import FederatedData, Split
from jaxfl.data.describe import label_counts
from jaxfl.engine import over_clients
from jaxfl.methods.base import Method
from jaxfl.methods.stocfl.representation import represent
from jaxfl.random import Stream, host_rng, key_for
from jaxfl.simulation.evaluation.metrics import COHESION_METRICS, Evaluation, cluster_is_known, counted_clients
from jaxfl.simulation.program import cached_program, shapes_of
from jaxfl.typing import Array, Key

MOST_CLIENTS = 2000  # that are compared with each other; of more, a sample, the same in all runs
ROWS = 50  # of a client, for its gradient
SIZE = 1024  # numbers of a gradient; a longer one is sketched

Points = tuple[np.ndarray, np.ndarray]  # [M, d] float32, [M] bool: whether they are known


class CohesionScorer:
    """A function of a run's key and an evaluation that returns `COHESION_METRICS`, None where they are not defined.

    Args:
        method: has the initial model.
        data: the federation, on the device or on the host.
    """

    def __init__(self, method: Method, data: FederatedData):
        self._method, self._data = method, data
        self._points: dict[Any, tuple[Points, Points | None]] = {}  # by the key

    def __call__(self, key: Key, evaluation: Evaluation) -> dict[str, float | None]:
        """Returns the scores of the clusters of the evaluated clients with training rows, without attackers."""
        data = self._data
        able = counted_clients(data) & (np.asarray(data.train.size) > 0) & cluster_is_known(evaluation, data)
        drawn = host_rng(0, "cohesion").permutation(np.flatnonzero(able))[:MOST_CLIENTS]
        ids = np.sort(drawn).astype(np.int32)
        cluster = evaluation.cluster[ids]
        found, labels = np.unique(cluster[cluster >= 0], return_inverse=True)
        if not 2 <= len(found) < len(labels):
            return {name: None for name in COHESION_METRICS}
        slots = np.full(len(ids), -1, np.int32)
        slots[cluster >= 0] = labels
        address = (ids.tobytes(), np.asarray(jax.random.key_data(key)).tobytes())
        if address not in self._points:
            self._points = {address: (self._gradients(key, ids), self._frequencies(ids))}
        gradients, frequencies = self._points[address]
        scores = _scores(gradients, slots, len(found)) + (
            (None, None) if frequencies is None else _scores(frequencies, slots, len(found))
        )
        return dict(zip(COHESION_METRICS, scores, strict=True))

    def _gradients(self, key: Key, ids: np.ndarray) -> Points:
        """Returns the directions of the clients' gradients; not known where they are 0 or not finite."""
        few = _with_training_rows(self._data, ids, ROWS, inputs=True)
        model = jax.eval_shape(self._method.task.init, key)
        plan = resolve_plan("auto", model, len(ids))._replace(mesh=None)
        gradients = np.asarray(_gradient_program(self._method, plan, shapes_of(few))(key, few.on_device()))
        return gradients, np.asarray(gradients.any(1))

    def _frequencies(self, ids: np.ndarray) -> Points | None:
        """Returns the clients' sorted class frequencies; None of labels that are no classes."""
        if self._data.kind != "classification":
            return None
        few = _with_training_rows(self._data, ids, max(1, self._data.train.max_size), inputs=False)
        return cohesion.ranked_frequencies(label_counts(few)).astype(np.float32), np.ones(len(ids), bool)


@cached_program(engine.jit)
def _gradient_program(method: Method, plan: Plan, shapes: Any) -> Any:
    """Returns `(key, data) -> directions [N, d]` of all clients."""
    sent = represent(method.task, optax.sgd(1.0), size=SIZE)

    def directions(key: Key, data: FederatedData) -> Array:
        anchor = method.task.init(key_for(key, Stream.INIT))  # that of the run

        def client(shared: Any, client: Array) -> tuple[tuple, Array]:
            key, anchor, data = shared
            return (), sent.psi(key, anchor, data, client)

        return over_clients(client, (key, anchor, data), Cohort.of(range(data.num_clients), plan))[1]

    return directions


def _with_training_rows(data: FederatedData, ids: np.ndarray, most: int, *, inputs: bool) -> FederatedData:
    """Returns the federation of some clients with at most `most` training rows of each, which alone are read.

    Args:
        data: the federation.
        ids: the clients `[M]`.
        most: rows of a client.
        inputs: whether the inputs are needed; otherwise they are those of the whole federation.
    """
    few = without_conditions(data.subset(ids))
    train = few.train.thinned(most)
    pool, rows = np.unique(np.asarray(train.rows), return_inverse=True)
    return replace(
        few.in_programs(),
        inputs=np.asarray(data.inputs[pool]) if inputs else data.inputs,
        labels=np.asarray(data.labels[pool]),
        train=replace(train, rows=rows.reshape(-1).astype(np.int32)),
        test=Split.pack([np.zeros(0, np.int32)] * len(ids)),
        validation=None,
        group=None,
        held_out=None,
        absent=None,
    )


def _scores(points: Points, slots: np.ndarray, clusters: int) -> tuple[float | None, float | None]:
    """Returns silhouette and Davies-Bouldin index of points by their slots `[M]`."""
    vectors, known = points
    slots = np.where(known, slots, -1)
    most = 1 << (clusters - 1).bit_length()  # one program for several numbers of clusters
    arguments = jnp.asarray(vectors), jnp.asarray(slots), most
    both = float(cohesion.silhouette(*arguments)), float(cohesion.davies_bouldin(*arguments))
    first, second = (None if math.isnan(one) else one for one in both)
    return first, second
