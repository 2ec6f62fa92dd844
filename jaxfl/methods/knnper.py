"""kNN-Per: a global model, whose predictions each client mixes with those of its most similar training rows.

Marfoq, Neglia, Kameni and Vidal, "Personalized Federated Learning through Local Memorization", ICML 2022. The rounds
are those of FedAvg (see `averaging`). Before it is served, client i remembers the features x_j (the inputs of the
network's last layer) and labels y_j of at most `capacity` random training rows. For an input with features x and logits
z, and the k nearest of these rows,

    s_j = exp(-|x - x_j|^2 / (d * scale))                       # d features
    p   = lambda * sum_j s_j [y_j = .] / sum_j s_j  +  (1 - lambda) * softmax(z)

A client with fewer than k rows takes all of them, one without rows the model alone. Held-out clients and newcomers
remember their rows as all others do: they need no round. Nothing of the memory is sent.

The official code mixes with the logits z in place of softmax(z), by a flag that is always on (`preset="official"`); k
is an argument that must be given, 1 to 10 in its scripts; its scale is 1. It writes the accuracies of a grid of lambda
and capacity on test rows; how the paper chose lambda could not be read. Choose on validation rows. pFedGraph's copy has
k = 10 and lambda = 0.5, as here. Probabilities below 1e-12 count as 1e-12 in the loss.
"""

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from jaxfl.client.steps import Epochs
from jaxfl.data.clients import Batch, FederatedData
from jaxfl.methods import base
from jaxfl.methods.averaging import AveragingState, fedavg
from jaxfl.methods.base import Method
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.adaptation import adapted, random_rows
from jaxfl.methods.parts.heads import Head, find_head, with_features
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked, is_known
from jaxfl.server.aggregate import Weighting
from jaxfl.tasks import Task, masked_mean
from jaxfl.tasks.contract import joint_averages, with_constant_leaves, with_loss
from jaxfl.typing import Array, Key, Params

Mixing = Literal["probabilities", "logits"]
MEMORY = ("keys", "labels", "there")
LEAST = 1e-12  # probability
PRESETS = {"paper": {"mix": "probabilities"}, "official": {"mix": "logits"}}


@server_sees(Seen("sums", "the sum of the models"))
@checked
def knnper(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    preset: Literal["paper", "official"] = "paper",
    neighbours: int = 10,
    memory_weight: Traceable = 0.5,
    scale: Traceable = 1.0,
    capacity: int = 500,
    mix: Mixing | None = None,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: Weighting = "rows",
    server_optimizer: optax.GradientTransformation | None = None,
) -> Method:
    """Returns kNN-Per on FedAvg.

    Args:
        task: a classification whose network ends with a dense layer.
        optimizer: the local optimiser.
        preset: `"paper"` or `"official"`; their values are in brackets below, in this order. Options that are given
            replace the preset's values.
        neighbours: k.
        memory_weight: lambda, the weight of the remembered rows, from 0 (FedAvg) to 1.
        scale: of the distances.
        capacity: the most rows that a client remembers; a test takes memory for as many features.
        mix: what the rows' shares are mixed with: `"probabilities"` or `"logits"` (probabilities, logits).
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        weighting: weights of the models in the mean: `"rows"` (n_i / n) or `"uniform"` (1 / m).
        server_optimizer: takes the server's step, see `jaxfl.server`; None takes the average.

    Raises:
        ValueError: an option is out of range, or the network does not end with a dense layer.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.MLP(hidden=(16,), num_classes=10), data)
    >>> result = jaxfl.run(knnper(task, optax.sgd(0.1), capacity=20), data, rounds=2, cohort=4, seed=0)
    >>> result.params(client=3)["keys"].shape
    (20, 16)
    """
    if neighbours < 1:
        raise ValueError(f"neighbours must be at least 1, got {neighbours}; 10 is usual.")
    if capacity < 1:
        raise ValueError(f"capacity must be at least 1, got {capacity}; fedavg remembers no rows.")
    if is_known(memory_weight) and not 0 <= memory_weight <= 1:
        raise ValueError(f"memory_weight must be from 0 (the model alone) to 1, got {memory_weight}.")
    if is_known(scale) and not 0 < scale < math.inf:
        raise ValueError(f"scale must be above 0 and finite, got {scale}; 1 is usual.")
    head = find_head(task, "knnper")
    mixing = base.from_preset(PRESETS, preset, mix=mix)["mix"]
    remembering = memory_task(task, head, neighbours, memory_weight, scale, capacity, mixing)
    look = with_features(task.outputs, head)
    passes = {"local_epochs": local_epochs, "batch_size": batch_size}
    method = fedavg(task, optimizer, weighting=weighting, server_optimizer=server_optimizer, **passes)

    def client_params(state: AveragingState, ids: Array) -> Params:
        return base.serve_one(empty_memory(state.model, head, capacity), ids)

    def adapt(key: Key, state: Any, data: FederatedData, client: Array, model: Params) -> Params:
        own_key, slots = key_for(key, Stream.FINETUNE, state.round, client), max(data.train.max_size, capacity)
        count = jnp.minimum(data.train.size[client], capacity)
        batch = data.batch(data.train, client, random_rows(own_key, data, client, count, slots)[:capacity])
        seen, dtype = look(model["net"], batch), model["keys"].dtype
        keys = jnp.where(batch.mask[:, None], seen.features, 0)
        return model | {"keys": keys, "labels": batch.y.astype(dtype), "there": batch.mask.astype(dtype)}

    return adapted(method._replace(client_params=client_params, task=remembering), adapt)


def empty_memory(model: Params, head: Head, capacity: int) -> Params:
    """Returns the served tree of a model: `{"net", "keys" [M, d], "labels" [M], "there" [M]}`, without rows yet."""
    dtype = head.weights(model)[0].dtype
    nothing = jnp.zeros(capacity, dtype)
    return {"net": model, "keys": jnp.zeros((capacity, head.features), dtype), "labels": nothing, "there": nothing}


def memory_task(
    task: Task, head: Head, neighbours: int, weight: float, scale: float, capacity: int, mix: Mixing
) -> Task:
    """Returns the task of a network with a memory, see `empty_memory`, which predicts p; its outputs are ln p.

    Args:
        task: of the network.
        head: of the network.
        neighbours: k.
        weight: lambda.
        scale: of the distances.
        capacity: M.
        mix: see `knnper`; with `"logits"` the outputs are the mixture itself.
    """
    look = with_features(task.outputs, head)

    def outputs(model: Params, batch: Batch) -> Array:
        seen = look(model["net"], batch)
        shares = neighbour_shares(seen.features, model, neighbours, scale, head.classes)
        own = seen.logits if mix == "logits" else jax.nn.softmax(seen.logits)
        mixed = weight * shares + (1 - weight) * own
        mixed = mixed if mix == "logits" else jnp.log(jnp.maximum(mixed, LEAST))
        return jnp.where((model["there"] > 0).any(), mixed, seen.logits)

    def loss(model: Params, batch: Batch, key: Key | None = None) -> Array:
        if key is not None:  # in training
            return task.loss(model["net"], batch, key)
        found = optax.softmax_cross_entropy_with_integer_labels(outputs(model, batch), batch.y)
        return masked_mean(found, batch.mask)

    staying = with_constant_leaves(loss, lambda model: [model[name] for name in MEMORY])
    served = with_loss(task, loss, joint_averages(task, staying, frozenset(MEMORY)))
    return served._replace(init=lambda key: empty_memory(task.init(key), head, capacity), outputs=outputs)


def neighbour_shares(features: Array, memory: Params, neighbours: int, scale: float, classes: int) -> Array:
    """Returns the shares of the classes `[B, L]` among the nearest remembered rows of features `[B, d]`, by similarity.

    They add up to 1; a memory without rows gives zeros.

    Args:
        features: x.
        memory: with `keys [M, d]`, `labels [M]` and `there [M]`.
        neighbours: k.
        scale: of the distances.
        classes: L.
    """
    keys, there = memory["keys"], memory["there"] > 0
    count = jnp.maximum(there.sum(), 1).astype(keys.dtype)
    centre = jnp.where(there[:, None], keys, 0).sum(0, keepdims=True) / count  # else differences of large numbers
    rows, keys = features - centre, jnp.where(there[:, None], keys - centre, 0)
    away = jnp.square(rows).sum(1)[:, None] - 2 * rows @ keys.T + jnp.square(keys).sum(1)[None]  # [B, M]
    away = jnp.where(there[None], jnp.maximum(away, 0), jnp.inf)
    nearest, places = jax.lax.top_k(-away, min(neighbours, keys.shape[0]))  # [B, k]
    # the nearest has similarity 1: their ratios are the same, and their sum is not 0
    distance = jnp.where(jnp.isfinite(nearest), nearest[:, :1] - nearest, jnp.inf)
    similar = jnp.where(jnp.isfinite(distance), jnp.exp(-distance / (features.shape[1] * scale)), 0)
    labels = jax.nn.one_hot(memory["labels"].astype(jnp.int32)[places], classes, dtype=similar.dtype)  # [B, k, L]
    total = similar.sum(1, keepdims=True)
    return (similar[:, :, None] * labels).sum(1) / jnp.where(total > 0, total, 1)
