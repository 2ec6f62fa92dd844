"""FedProto: a model for each client, which exchanges the mean features of its classes and no model.

Tan, Long, Liu, Zhou, Lu, Jiang and Zhang, "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI
2022. A client's network theta_i has features x, the input of its last layer. The server holds a prototype a_k of each
class. In a round, every sampled client i

    theta_i <- E epochs of SGD on f_i + lambda * MSE(x, a_y)        # without the pull for a class of unknown prototype
    m_ik    <- mean of x over its rows of class k, under the new theta_i
    a_k     <- mean of m_ik over the clients that have class k

MSE is the mean over the rows and the d coordinates, as in the official code: lambda means d times less than with a
squared norm. The loss of a round is f_i alone. A class that no client of the cohort has keeps its prototype. Served is
the nearest prototype, among the classes of the client's own training rows; with the test inputs alone that knowledge
helps much where clients have few classes, so compare with `classes="all"`, or with `served="head"`, the network's own
outputs.

Clients that have never trained, held out or new, have no trained network: they are served the initial one, with the
prototypes of all classes. A client without rows sends nothing.

Where the official code differs: m_ik are means over the last epoch, of features before each step and with dropout on;
every client takes part; the networks start from different seeds, and those for CIFAR-10 from ImageNet; the printed
accuracies are of running totals over clients and over both ways of testing. Its average of prototypes is uniform over
clients, as here; the paper's equation (6) may weigh by rows (`weighting="rows"`), but its text was not available. Its
settings: lambda 1 (0.1 on CIFAR-10), SGD of rate 0.01 with momentum 0.5, B = 4, E = 1.
"""

import math
from typing import Literal, NamedTuple

import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import Batch, FederatedData
from jaxfl.methods.base import Info, Method
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.heads import Features, Head, class_sums, find_head, with_feature_term, with_features
from jaxfl.methods.parts.personal import over_rows, personal_info
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked, is_known
from jaxfl.server import aggregate
from jaxfl.server.wire_context import refuse_wire
from jaxfl.tasks import Task, masked_mean
from jaxfl.tasks.contract import joint_averages, with_constant_leaves, with_loss
from jaxfl.typing import Array, Key, Params

NO_WIRE = "its clients send means of features and no update of a model"


class PrototypeOwner(NamedTuple):
    """A client's network and the classes that it has trained on."""

    model: Params
    classes: Array  # [L] 1 for a class with rows; all 0 before its first round


class FedProtoState(NamedTuple):
    """A network for each client, and the prototypes."""

    own: PrototypeOwner  # [N, ...]
    prototypes: Array  # [L, d] a_k
    known: Array  # [L] bool, whether a_k is known
    cluster: Array  # [N] int32, every client in a slot of its own
    round: Array  # [] int32


@server_sees(Seen("sums", "sums of the clients' mean features of each class, and the numbers of clients that have it"))
@checked
def fedproto(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    prototype_weight: Traceable = 1.0,
    served: Literal["prototypes", "head"] = "prototypes",
    classes: Literal["own", "all"] = "own",
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "uniform",
) -> Method:
    """Returns FedProto.

    Args:
        task: a classification whose network ends with a dense layer.
        optimizer: the local optimiser; its state starts fresh in every round.
        prototype_weight: lambda, of the pull to the prototypes; 0 is local training.
        served: how a client predicts: the nearest of the `"prototypes"`, or its network's `"head"`.
        classes: prototypes that a client looks at: of its `"own"` classes (the official code), or of `"all"`.
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        weighting: of the clients in a prototype: `"uniform"` over those that have the class (the official code), or
            `"rows"`, by their rows of the class.

    Raises:
        ValueError: an option is out of range, or the network does not end with a dense layer.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.MLP(hidden=(16,), num_classes=10), data)
    >>> result = jaxfl.run(fedproto(task, optax.sgd(0.1)), data, rounds=2, cohort=4, seed=0)
    >>> result.state.prototypes.shape
    (10, 16)
    """
    head = find_head(task, "fedproto")
    sums_of, passes = class_sums(task, head), {"local_epochs": local_epochs, "batch_size": batch_size}
    local_train(task, optimizer, **passes)  # refuses what is out of range
    if is_known(prototype_weight) and not 0 <= prototype_weight < math.inf:  # nor NaN
        raise ValueError(
            f"prototype_weight must be at least 0 and finite, got {prototype_weight}; 0 is local training."
        )

    def init(key: Key, data: FederatedData) -> FedProtoState:
        model, count = task.init(key_for(key, Stream.INIT)), data.num_clients
        dtype = head.weights(model)[0].dtype
        own = PrototypeOwner(model, jnp.zeros(head.classes, dtype))
        prototypes, known = jnp.zeros((head.classes, head.features), dtype), jnp.zeros(head.classes, bool)
        clients = jnp.arange(count, dtype=jnp.int32)
        return FedProtoState(tree.repeat(own, count), prototypes, known, clients, jnp.int32(0))

    def client(shared, client: Array, own: PrototypeOwner):
        key, (prototypes, known, round), data = shared

        def pull(seen: Features, batch: Batch) -> Array:
            away = jnp.where(known[batch.y][:, None], seen.features - prototypes[batch.y], 0)
            return prototype_weight * masked_mean(jnp.square(away).mean(1), batch.mask)

        train = local_train(with_feature_term(task, head, pull), optimizer, **passes)
        model, loss = train(key_for(key, Stream.BATCHES, round, client), own.model, data, client)
        sums = sums_of(model, data, client)
        there = (sums.counts > 0).astype(sums.counts.dtype)
        if weighting == "uniform":
            means = aggregate.divide(sums.features, sums.counts, empty=jnp.zeros_like(sums.features))
            sent = {"features": means, "counts": there}
        else:
            sent = {"features": sums.features, "counts": sums.counts}
        finite = tree.is_finite((model, sums.features))
        weight = jnp.where(finite, aggregate.client_weight(data, client, "uniform"), 0)
        return aggregate.contribute(sent, weight), PrototypeOwner(model, there), loss, finite

    def round(key: Key, state: FedProtoState, data: FederatedData, cohort: Cohort) -> tuple[FedProtoState, Info]:
        refuse_wire("fedproto", NO_WIRE)
        shared = key, (state.prototypes, state.known, state.round), data
        passed = over_rows(client, shared, cohort, state.own)
        total = tree.take(passed.sums.values, 0)
        prototypes = aggregate.divide(total["features"], total["counts"], empty=state.prototypes)
        info = personal_info(passed, cohort, data.num_clients, total)
        known = state.known | (total["counts"] > 0)
        return FedProtoState(passed.rows, prototypes, known, state.cluster, state.round + 1), info

    def client_params(state: FedProtoState, ids: Array) -> Params:
        own, count = tree.take(state.own, ids), ids.shape[0]
        known = jnp.broadcast_to(state.known.astype(own.classes.dtype)[None], own.classes.shape)
        if classes == "own":
            known = jnp.where(own.classes.any(1, keepdims=True), known * own.classes, known)
        return {"net": own.model, "prototypes": tree.repeat(state.prototypes, count), "usable": known}

    return Method(init, round, client_params, prototype_task(task, head, served), per_client="own")


def prototype_task(task: Task, head: Head, served: Literal["prototypes", "head"]) -> Task:
    """Returns the task of a model `{"net", "prototypes" [L, d], "usable" [L]}`, which predicts the nearest prototype.

    Its outputs are minus the mean squared distances of x from the usable prototypes, and -inf for others; the network's
    own where none is usable. Its loss is the network's.

    Args:
        task: of the network.
        head: of the network.
        served: `"head"` takes the network's own outputs.
    """
    look = with_features(task.outputs, head)

    def init(key: Key) -> Params:
        model = task.init(key)
        dtype = head.weights(model)[0].dtype
        return {
            "net": model,
            "prototypes": jnp.zeros((head.classes, head.features), dtype),
            "usable": jnp.zeros(head.classes, dtype),
        }

    def loss(model: Params, batch: Batch, key: Key | None = None) -> Array:
        return task.loss(model["net"], batch, key)

    def outputs(model: Params, batch: Batch) -> Array:
        if served == "head":
            return task.outputs(model["net"], batch)
        seen, usable = look(model["net"], batch), model["usable"] > 0
        near = -mean_squared_distances(seen.features, model["prototypes"])
        return jnp.where(usable.any(), jnp.where(usable[None], near, -jnp.inf), seen.logits)

    staying = with_constant_leaves(loss, lambda model: [model["prototypes"], model["usable"]])
    averages = joint_averages(task, staying, frozenset({"prototypes", "usable"}))
    return with_loss(task, loss, averages)._replace(init=init, outputs=outputs)


def mean_squared_distances(rows: Array, points: Array) -> Array:
    """Returns the mean over d coordinates of the squared differences `[B, L]` of rows `[B, d]` and points `[L, d]`.

    >>> mean_squared_distances(jnp.array([[1.0, 1.0]]), jnp.array([[2.0, 1.0], [0.0, 2.0]])).tolist()
    [[0.5, 1.0]]
    """
    centre = points.mean(0, keepdims=True)  # else the difference of large numbers
    rows, points = rows - centre, points - centre
    squares = jnp.square(rows).sum(1)[:, None] - 2 * rows @ points.T + jnp.square(points).sum(1)[None]
    return squares / rows.shape[1]
