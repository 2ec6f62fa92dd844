"""FedALA: each client mixes the global model into its last one, number by number, before it trains.

Zhang, Hua, Wang, Song, Xue, Ma and Guan, "FedALA: Adaptive Local Aggregation for Personalized Federated Learning", AAAI
2023. Client i keeps the upper layers u_i that it had after its last training, and weights W_i of their shape, 1 at
first. In a round, every sampled client i receives the global model w and

    1. starts in the lower layers from w, and in the upper ones from  theta = u_i + (w - u_i) o W_i
    2. fits W_i: on batches of a share s of its rows, with g the gradient at theta of the upper layers,
           W_i <- clip(W_i - eta * g o (w - u_i), 0, 1)
    3. trains the whole model from there for E epochs, sends it, and keeps its upper layers as u_i
       w <- sum_i (n_i / n) of the models

In a client's first round theta is w and step 2 is left out. In its second one step 2 makes epochs until the last
batch's losses of 10 epochs have a standard deviation below `start_threshold`, at least 11; later, one epoch.

Served is theta, fitted by step 2 to the client's training rows as in its next round, before step 3: the official code
tests so. `served="stored"` leaves the weights as they are. Clients that have never trained, held out or new, are served
w; so is a client without rows.

Where the official code differs: all clients do step 2 in every round, sampled or not, and keep theta as their u_i; the
rows of step 2 are one block from a random place, here a random subset, drawn once a round; its start has no limit of
epochs; its p = 2 upper "layers" are two arrays, kernel and bias of the last layer, which is the default here; and the
last partial batch is dropped, of test rows too. Its settings: eta 1, s 0.8, threshold 0.1, SGD of rate 0.005, B = 10,
E = 1. The paper's text was not available. Where (w - u)^2 times the curvature is above 1, eta = 1 steps too far, and
the weights jump between 0 and 1; where w - u is small, it does next to nothing.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client import operations
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.adaptation import random_rows
from jaxfl.methods.parts.personal import over_rows, personal_info
from jaxfl.methods.parts.vectors import chosen_leaves
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked, is_known, is_zero
from jaxfl.server import aggregate, optimizers
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

WINDOW = 10  # epochs, whose losses say whether the start is over


class LocalMixture(NamedTuple):
    """The upper layers of a client and their weights: trees of the model with None for the lower leaves."""

    upper: Params  # u_i
    weights: Params  # W_i
    times: Array  # [] int32, its rounds so far


class FedALAState(NamedTuple):
    """The global model, and the upper layers and weights of each client."""

    model: Params
    own: LocalMixture  # [N, ...]
    server: optax.OptState  # of the server's optimiser
    cluster: Array  # [N] int32, every client in a slot of its own
    round: Array  # [] int32


@server_sees(Seen("sums", "the sum of the models"))
@checked
def fedala(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    personal: str | tuple[str, ...] | None = None,
    mixing_rate: Traceable = 1.0,
    share: float = 0.8,
    start_epochs: int = 100,
    start_threshold: Traceable = 0.1,
    served: Literal["fitted", "stored"] = "fitted",
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "rows",
    server_optimizer: optax.GradientTransformation | None = None,
) -> Method:
    """Returns FedALA.

    Args:
        task: what is learned.
        optimizer: the local optimiser of step 3.
        personal: patterns of the upper layers' or parameters' names, as in `fedper`; None takes the layer that the
            model creates last. `()` is none: FedAvg.
        mixing_rate: eta; 0 keeps the weights at 1: FedAvg.
        share: s, of a client's rows, from 0 (excluded) to 1, rounded down, at least one.
        start_epochs: most epochs of step 2 in a client's second round.
        start_threshold: the standard deviation of losses below which these end.
        served: theta with weights `"fitted"` to the client's rows for each test, or as `"stored"` in its last round.
        local_epochs: E.
        batch_size: B, of steps 2 and 3; None takes all rows at once.
        weighting: of the models in the mean: `"rows"` (n_i / n) or `"uniform"` (1 / m).
        server_optimizer: takes the server's step, see `jaxfl.server`; None takes the average.

    Raises:
        ValueError: an option is out of range, or a pattern matches no parameter.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.MLP(hidden=(16,), num_classes=10), data)
    >>> result = jaxfl.run(fedala(task, optax.sgd(0.1)), data, rounds=2, cohort=4, seed=0)
    >>> jaxfl.tree.names(result.state.own.upper)
    ['Dense_1/bias', 'Dense_1/kernel']
    """
    if is_known(mixing_rate) and not 0 <= mixing_rate < math.inf:  # nor NaN
        raise ValueError(f"mixing_rate must be at least 0 and finite, got {mixing_rate}; 0 is FedAvg.")
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, got {share}; 0.8 is usual.")
    if is_known(start_threshold) and not start_threshold >= 0:  # nor NaN
        raise ValueError(f"start_threshold must be at least 0, got {start_threshold}; 0 makes all start_epochs.")
    if start_epochs < 1:
        raise ValueError(f"start_epochs must be at least 1, got {start_epochs}; 1 has no longer start.")
    chosen = chosen_leaves(task, personal)
    train = local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size)
    server_optimizer = optimizers.beside(server_optimizer, task.averages)
    fits = not is_zero(mixing_rate) and any(jax.tree.leaves(chosen))
    fit = mixing(task, chosen, mixing_rate, share, batch_size, start_epochs, start_threshold)

    def init(key: Key, data: FederatedData) -> FedALAState:
        model, count = task.init(key_for(key, Stream.INIT)), data.num_clients
        upper = tree.partition(model, chosen)[0]
        own = LocalMixture(upper, jax.tree.map(jnp.ones_like, upper), jnp.int32(0))
        moments = optimizers.init(server_optimizer, model)
        return FedALAState(model, tree.repeat(own, count), moments, jnp.arange(count, dtype=jnp.int32), jnp.int32(0))

    def start_of(key: Key, own: LocalMixture, model: Params, round: Array, data: FederatedData, client: Array):
        """Returns the model that a client starts from, and its weights."""
        weights = fit(key_for(key, Stream.START, round, client), own, model, data, client) if fits else own.weights
        return mix(own, weights, model, chosen), weights

    def client(shared, client: Array, own: LocalMixture):
        key, (model, round), data = shared
        start, weights = start_of(key, own, model, round, data, client)
        trained, loss = train(key_for(key, Stream.BATCHES, round, client), start, data, client)
        finite = tree.is_finite((trained, weights))
        weight = jnp.where(finite, aggregate.client_weight(data, client, weighting), 0)
        took_part = (data.train.size[client] > 0).astype(jnp.int32)
        after = LocalMixture(tree.partition(trained, chosen)[0], weights, own.times + took_part)
        return aggregate.contribute(trained, weight, start=model), after, loss, finite

    def round(key: Key, state: FedALAState, data: FederatedData, cohort: Cohort) -> tuple[FedALAState, Info]:
        passed = over_rows(client, (key, (state.model, state.round), data), cohort, state.own)
        model, moments = optimizers.step_to_mean(server_optimizer, state.server, state.model, passed.sums)
        info = personal_info(passed, cohort, data.num_clients, model)
        return FedALAState(model, passed.rows, moments, state.cluster, state.round + 1), info

    def client_params(state: FedALAState, ids: Array) -> Params:
        own, models = tree.take(state.own, ids), base.serve_one(state.model, ids)
        return jax.vmap(lambda own, model: mix(own, own.weights, model, chosen))(own, models)

    def adapt(key: Key, state: FedALAState, data: FederatedData, client: Array, model: Params) -> Params:
        own = tree.take(tree.take(state.own, client[None]), 0)
        return start_of(key, own, state.model, state.round, data, client)[0]

    fitted = adapt if fits and served == "fitted" else None
    return Method(init, round, client_params, task, per_client="own", adapt=fitted)


def mix(own: LocalMixture, weights: Params, model: Params, chosen: Params) -> Params:
    """Returns theta above and the global model below; the global model for a client without a round."""
    upper, lower = tree.partition(model, chosen)
    # exactly the global model where the weight is 1
    mixed = jax.tree.map(lambda u, w, weight: w + (u - w) * (1 - weight), own.upper, upper, weights)
    return tree.combine(tree.where(own.times > 0, mixed, upper), lower)


def mixing(
    task: Task,
    chosen: Params,
    rate: float,
    share: float,
    batch_size: int | None,
    start_epochs: int = 100,
    start_threshold: float = 0.1,
) -> Callable[[Key, LocalMixture, Params, FederatedData, Array], Params]:
    """Returns `fit(key, own, model, data, client) -> weights`: step 2 of a client.

    Args:
        task: what is learned.
        chosen: bool for every leaf of the model: whether it is an upper one.
        rate: eta.
        share: s.
        batch_size: B, or None.
        start_epochs: most epochs in a client's second round.
        start_threshold: see above.
    """

    def fit(key: Key, own: LocalMixture, model: Params, data: FederatedData, client: Array) -> Params:
        upper, _ = tree.partition(model, chosen)
        size, most = data.train.size[client], max(data.train.max_size, 1)
        count = jnp.floor(share * size.astype(jnp.float32) + 1e-4).astype(jnp.int32)
        count = jnp.where(size > 0, jnp.maximum(count, 1), 0)
        width = most if batch_size is None else min(batch_size, most)
        slots = -(-most // width) * width
        drawn = random_rows(key, data, client, count, slots)
        gap = jax.tree.map(jnp.subtract, upper, own.upper)

        def step(number: Array, carry: tuple[Params, Array]) -> tuple[Params, Array]:
            weights, _ = carry
            batch = data.batch(data.train, client, jax.lax.dynamic_slice(drawn, (number * width,), (width,)))
            theta, below = tree.partition(mix(own, weights, model, chosen), chosen)
            dropout = key_for(key, Stream.DROPOUT, number)
            loss, slope = jax.value_and_grad(lambda part: task.loss(tree.combine(part, below), batch, dropout))(theta)
            moved = jax.tree.map(lambda weight, g, away: jnp.clip(weight - rate * g * away, 0, 1), weights, slope, gap)
            return moved, loss

        def epoch(carry: tuple[Params, Array, Array]) -> tuple[Params, Array, Array]:
            weights, number, losses = carry
            weights, last = jax.lax.fori_loop(0, -(-count // width), step, (weights, jnp.zeros_like(losses[0])))
            return weights, number + 1, jnp.concatenate([losses[1:], last[None]])

        limit = jnp.where(own.times == 1, start_epochs, jnp.where(own.times > 1, 1, 0))

        def goes_on(carry: tuple[Params, Array, Array]) -> Array:
            _, number, losses = carry
            over = (number > WINDOW) & (losses.std() < start_threshold)
            return (number < limit) & (count > 0) & ~over

        dtype = jax.tree.leaves(model)[0].dtype
        start = own.weights, jnp.int32(0), jnp.zeros(WINDOW, dtype)
        fitted = jax.lax.while_loop(goes_on, epoch, start)[0]
        if operations.are_noted():  # as one epoch: how many a client's second round has is known after it
            of_step = jax.value_and_grad(task.loss), model, operations.batch_of(data, width), key
            rows = jnp.where(limit > 0, count, 0)
            operations.note_pass(fitted, *of_step, client=client, rows=rows, at_once=width)
        return fitted

    return fit
