"""How similar the clients' data are, as a model sees them that has learned nothing yet."""

from typing import NamedTuple

import jax
import numpy as np
import optax

from jaxfl import engine
from jaxfl.analysis.class_confusion import Finished
from jaxfl.client.conduct import honest
from jaxfl.clustering.distances import cosine
from jaxfl.methods.parts.representation import of_clients, represent
from jaxfl.random import Stream, host_rng, key_for
from jaxfl.simulation.metrics import known


class ClientSimilarity(NamedTuple):
    """Cosines between M clients, see `client_similarity`."""

    matrix: np.ndarray  # [M, M] float32, NaN of clients without a gradient
    clients: np.ndarray  # [M] int32, ids in ascending order


def client_similarity(result: Finished, *, clients: int | None = 400, size: int = 4096) -> ClientSimilarity:
    """Returns the cosines between clients' gradients: of each one's own rows, all at the initial model of the run.

    These say how similar the clients' data are, whatever the method has found and attackers have sent, so that
    `plots.similarity` can set both beside each other. They are what StoCFL clusters by (Zeng et al., 2023, section
    3.1), and cost a pass over the clients' training rows.

    Args:
        result: of `jaxfl.run` or `jaxfl.load`.
        clients: how many of those whose cluster the run knows, drawn at random where there are more of them with
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
    able = np.flatnonzero((np.asarray(result.data.train.size) > 0) & known(result.evaluation, result.data))
    chosen = host_rng(result.seed, "client similarity").permutation(able)[:clients]
    chosen = np.sort(chosen).astype(np.int32)
    task, key = result.method.task, jax.random.key(result.seed)
    anchor = task.init(key_for(key, Stream.INIT))  # that of the run
    plan = engine.resolve_plan("auto", anchor, len(chosen))._replace(mesh=None)  # the data lie on one device
    sent = represent(task, optax.sgd(1.0), size=size)
    psi = np.array(of_clients(sent, key, anchor, honest(result.data.subset(chosen)), plan))  # [M, d]
    psi[~psi.any(1)] = np.nan  # similar to nobody is not the same as at right angles to everybody
    return ClientSimilarity(np.asarray(cosine(psi)), chosen)
