"""FedRoD: two heads on one shared network, a generic one for balanced classes and a personal one on top of it.

Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification", ICLR 2022. The
network has features x and the generic head's logits z = x W + b, all shared; client i has a personal head p_i. In a
round, every sampled client i makes E epochs of steps on the sum of

    CE(z + ln n_i, y)                         # balanced: of features and generic head; n_i are its rows of each class
    CE(stop(z) + p_i(stop(x)), y)             # of the personal head alone

and the shared network <- sum_i (n_i / n) of the clients' networks; p_i stays. Served is z + p_i(x). The balanced loss
asks the generic head for what the client's class frequencies do not say already. A class that the client lacks has
ln 0, so that its logit takes no part.

p_i is 0 at first. A client that has never trained, held out or new, is served the generic model, p = 0. One that is not
sampled keeps its p_i, on the new network. The loss of a round is that of z + p_i.

There is no official code (the authors' repository is a README), and the paper's text was not available: this is the
rule that three published codes agree on (PFLlib, pFedGraph, fluke). They start p_i as a copy of the generic head
(`start="generic"`) or as a new layer. pFedGraph's averages the network without the generic head. The paper's variant
that makes p_i from the class frequencies by a shared hypernetwork is not here.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import Batch, FederatedData
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.heads import Head, class_counts, find_head, with_features
from jaxfl.methods.parts.personal import mark_trained, over_rows, personal_info
from jaxfl.random import Stream, key_for
from jaxfl.schema import checked
from jaxfl.server import aggregate, optimizers
from jaxfl.tasks import Task, masked_mean
from jaxfl.tasks.contract import joint_averages, with_loss
from jaxfl.typing import Array, Key, Params


class PersonalHead(NamedTuple):
    """p_i, a dense layer beside the generic head."""

    kernel: Array  # [d, L]
    bias: Array  # [L]


class FedRoDState(NamedTuple):
    """The shared network with the generic head, and a personal head for each client."""

    model: Params
    heads: PersonalHead  # [N, ...]
    trained: Array  # [N] bool, False while p_i is as it was at the start
    server: optax.OptState  # of the server's optimiser
    cluster: Array  # [N] int32, every client in a slot of its own
    round: Array  # [] int32


@server_sees(Seen("sums", "the sum of the networks with their generic heads"))
@checked
def fedrod(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    start: Literal["zero", "generic"] = "zero",
    generic_loss: Literal["balanced", "plain"] = "balanced",
    served: Literal["personal", "generic"] = "personal",
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "rows",
    server_optimizer: optax.GradientTransformation | None = None,
) -> Method:
    """Returns FedRoD.

    Args:
        task: a classification whose network ends with a dense layer.
        optimizer: the local optimiser of the shared network and of the personal head. (One that clips by the norm of
            all gradients couples the two.)
        start: p_i of a client's first round: `"zero"`, or a copy of the `"generic"` head of the initial model.
        generic_loss: `"balanced"`, or `"plain"` cross-entropy: then the shared network is FedAvg's.
        served: `"personal"`, z + p_i(x), or `"generic"`, z.
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        weighting: of the network's average: `"rows"` (n_i / n) or `"uniform"` (1 / m).
        server_optimizer: takes the server's step on the network, see `jaxfl.server`; None takes the average.

    Raises:
        ValueError: an option is out of range, or the network does not end with a dense layer.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.MLP(hidden=(16,), num_classes=10), data)
    >>> result = jaxfl.run(fedrod(task, optax.sgd(0.1)), data, rounds=2, cohort=4, seed=0)
    >>> result.state.heads.kernel.shape
    (8, 16, 10)
    """
    head = find_head(task, "fedrod")
    both = two_heads(task, head)
    server_optimizer = optimizers.beside(server_optimizer, task.averages)
    passes = {"local_epochs": local_epochs, "batch_size": batch_size}
    local_train(both, optimizer, **passes)  # refuses what is out of range

    def zero_head(model: Params) -> PersonalHead:
        return PersonalHead(*map(jnp.zeros_like, head.weights(model)))

    def init(key: Key, data: FederatedData) -> FedRoDState:
        model, count = task.init(key_for(key, Stream.INIT)), data.num_clients
        first = zero_head(model) if start == "zero" else PersonalHead(*head.weights(model))
        clients = jnp.arange(count, dtype=jnp.int32)
        moments = optimizers.init(server_optimizer, model)
        return FedRoDState(model, tree.repeat(first, count), jnp.zeros(count, bool), moments, clients, jnp.int32(0))

    def client(shared, client: Array, own: PersonalHead):
        key, (model, round), data = shared
        prior = None if generic_loss == "plain" else log_counts(class_counts(data, client, head.classes))
        train = local_train(training_task(both, task, head, prior), optimizer, **passes)
        client_key = key_for(key, Stream.BATCHES, round, client)
        trained, loss = train(client_key, {"net": model, "personal": own}, data, client)
        finite = tree.is_finite(trained)
        weight = jnp.where(finite, aggregate.client_weight(data, client, weighting), 0)
        return aggregate.contribute(trained["net"], weight, start=model), trained["personal"], loss, finite

    def round(key: Key, state: FedRoDState, data: FederatedData, cohort: Cohort) -> tuple[FedRoDState, Info]:
        passed = over_rows(client, (key, (state.model, state.round), data), cohort, state.heads)
        model, moments = optimizers.step_to_mean(server_optimizer, state.server, state.model, passed.sums)
        info = personal_info(passed, cohort, data.num_clients, model)
        trained = mark_trained(state.trained, passed, data, cohort)
        return FedRoDState(model, passed.rows, trained, moments, state.cluster, state.round + 1), info

    def client_params(state: FedRoDState, ids: Array) -> Params:
        own = tree.take(state.heads, ids)
        uses = state.trained[ids] & (served == "personal")
        own = tree.where(uses, own, jax.tree.map(jnp.zeros_like, own))
        return {"net": base.serve_one(state.model, ids), "personal": own}

    return Method(init, round, client_params, both, per_client="heads")


def log_counts(counts: Array) -> Array:
    """Returns ln n `[L]` of a client's rows of each class: -inf for a class without any; 0 for a client without rows.

    >>> log_counts(jnp.array([1.0, 0.0])).tolist(), log_counts(jnp.zeros(2)).tolist()
    ([0.0, -inf], [0.0, 0.0])
    """
    none = jnp.where(counts.sum() > 0, -jnp.inf, 0.0)
    return jnp.where(counts > 0, jnp.log(jnp.maximum(counts, 1).astype(none.dtype)), none)


def cross_entropy(logits: Array, batch: Batch) -> Array:
    """Returns the mean cross-entropy `[]` of logits `[B, L]` over the real rows of a batch."""
    return masked_mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch.y), batch.mask)


def two_heads(task: Task, head: Head) -> Task:
    """Returns the task of a model `{"net", "personal"}` that is tested by the sum of both heads' logits.

    Args:
        task: of the network.
        head: of the network, the generic one.
    """
    tested, trained = (with_features(fn, head) for fn in (task.outputs, task.loss))

    def init(key: Key) -> Params:
        model = task.init(key)
        return {"net": model, "personal": PersonalHead(*map(jnp.zeros_like, head.weights(model)))}

    def outputs(model: Params, batch: Batch) -> Array:
        seen = tested(model["net"], batch)
        return seen.logits + _personal_logits(seen.features, model["personal"])

    def loss(model: Params, batch: Batch, key: Key | None = None) -> Array:
        seen = trained(model["net"], batch, key)
        return cross_entropy(seen.logits + _personal_logits(seen.features, model["personal"]), batch)

    return with_loss(task, loss, joint_averages(task, loss))._replace(init=init, outputs=outputs)


def training_task(both: Task, task: Task, head: Head, prior: Array | None) -> Task:
    """Returns the task of both heads for training: the value of the personal loss, the gradients of both.

    Args:
        both: `two_heads` of the task.
        task: of the network.
        head: of the network.
        prior: ln n_i `[L]`; None trains the generic head under the plain loss.
    """
    look = with_features(task.loss, head)

    def loss(model: Params, batch: Batch, key: Key | None = None) -> Array:
        seen = look(model["net"], batch, key)
        generic = (
            seen.value if prior is None else cross_entropy(seen.logits + prior[None].astype(seen.logits.dtype), batch)
        )
        x, z = jax.lax.stop_gradient((seen.features, seen.logits))
        personal = cross_entropy(z + _personal_logits(x, model["personal"]), batch)
        return personal + (generic - jax.lax.stop_gradient(generic))  # of the generic loss the gradient only

    return with_loss(both, loss, joint_averages(task, loss))


def _personal_logits(features: Array, own: PersonalHead) -> Array:
    """Returns p_i(x) `[B, L]`."""
    return features @ own.kernel + own.bias[None]
