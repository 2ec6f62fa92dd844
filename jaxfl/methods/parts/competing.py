"""K models that compete for the clients by their loss (IFCA, HypCluster): their start, and each client's choice.

The start. Of equal models the first one wins every client in every round; of random models one may win nearly all
clients. Published remedies:

    balanced   draw K random models again until each wins its share of the clients         (IFCA's CIFAR code)
    groups     first train each model by FedAvg on a random group of the clients           (IFCA on FEMNIST, Google)
    kmeans++   train a model for one client, then for the client with the highest loss     (FedJAX)

The choice. A client trains, and is served, the model with the lowest loss on its rows. Ties go to the lowest index.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from jaxfl import sampling, tree
from jaxfl.client.passes import mean_losses
from jaxfl.client.training import Train
from jaxfl.cohort import Cohort, resolve_plan
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.base import Assign
from jaxfl.methods.exposure import Seen
from jaxfl.random import Stream, key_for
from jaxfl.schema import checked, is_known
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

StartKind = Literal["random", "balanced", "groups", "kmeans++"]
JudgingRows = Literal["train", "test"]
SUMS = "a sum of models for each of the K clusters, which clients choose"
SEEN = (
    Seen("sums", SUMS),
    Seen("numbers", SUMS, "the choice of each client among K models, up to 100 times", {"start": "balanced"}),
    Seen("updates", SUMS, "the models of K single clients, and the losses of all", {"start": "kmeans++"}),
)
MAX_DRAWS = 100  # of K random models, until they are balanced
MAX_JUDGES = 1000  # clients whose losses decide on a start, at most

Start = Callable[[Key, FederatedData], Params]
Draw = Callable[..., Params]
ModelLosses = Callable[[Params, FederatedData, Array], Array]


def independent_models(task: Task, num_clusters: int) -> Draw:
    """Returns `draw(key, data, number) -> models [K, ...]`: K independent initial models, others for each `number`."""

    def draw(key: Key, data: FederatedData, number: Array | int = 0) -> Params:
        del data
        indices = number * num_clusters + jnp.arange(num_clusters, dtype=jnp.int32)
        return jax.vmap(lambda index: task.init(key_for(key, Stream.INIT, index)))(indices)

    return draw


def balanced_start(task: Task, draw: Draw, losses: ModelLosses, num_clusters: int, *, min_share: float) -> Start:
    """Returns `start(key, data) -> models [K, ...]`: the first draw in which every model wins its share of the clients.

    If there is no such draw, it is the one whose least successful model wins the most clients; `clients` in the first
    round's `Info` shows it.

    Args:
        task: what is learned.
        draw: `(key, data, number) -> models [K, ...]`.
        losses: `(models, data, client) -> [K]`.
        num_clusters: K.
        min_share: share of the clients with rows and finite losses that every model has to win.
    """

    def start(key: Key, data: FederatedData) -> Params:
        judges = _judging_clients(key, data, task)

        def client(shared, client: Array):
            models, data = shared
            loss = losses(models, data, client)  # [K]
            counts = (data.train.size[client] > 0) & tree.is_finite(loss.min())
            return (), jnp.where(counts, jnp.argmin(loss), -1)

        def judge(number: Array) -> tuple[Array, Array]:
            """Returns the number of clients that the least successful model wins `[]`, and whether it suffices `[]`."""
            _, winner = over_clients(client, (draw(key, data, number), data), judges)
            winner = jnp.where(judges.mask, winner, -1)
            won = jax.nn.one_hot(winner, num_clusters, dtype=jnp.int32).sum(0, dtype=jnp.int32)  # [K]; -1 is nowhere
            share = jnp.float32(min_share) * won.sum().astype(jnp.float32)
            return won.min(), won.min().astype(jnp.float32) >= share - 1e-3  # whole numbers: the rest is rounding

        def again(carry: tuple) -> tuple:
            number, best, most, _ = carry
            least, enough = judge(number)
            better = least > most
            return number + 1, jnp.where(better, number, best), jnp.maximum(least, most), enough

        begin = jnp.int32(0), jnp.int32(0), jnp.int32(-1), jnp.array(False)
        _, best, _, _ = jax.lax.while_loop(lambda carry: (carry[0] < MAX_DRAWS) & ~carry[3], again, begin)
        return draw(key, data, best)

    return start


def random_groups(key: Key, data: FederatedData, num_clusters: int) -> Array:
    """Returns a random group `[N]` int32 for every client; the sizes of the groups differ by one client at most."""
    draw = jax.random.uniform(key_for(key, Stream.START), (data.num_clients,))
    if data.held_out is not None:
        draw = jnp.where(data.held_out, 1.0, draw)  # behind all clients that train
    return jnp.argsort(jnp.argsort(draw)).astype(jnp.int32) % num_clusters


def kmeans_start(task: Task, train: Train, losses: ModelLosses, num_clusters: int, *, rounds: int) -> Start:
    """Returns `start(key, data) -> models [K, ...]`: models of K single clients, chosen as in FedJAX.

    The first client is random; the next one is always the client with the highest loss under all models so far. FedJAX
    trains a model for every candidate; here only the K chosen clients train.

    Args:
        task: gives the model that all train from.
        train: a client's local training.
        losses: `(models, data, client) -> [K]`.
        num_clusters: K.
        rounds: rounds of `train` in a row for each model.
    """

    def start(key: Key, data: FederatedData) -> Params:
        data = jax.tree.map(jnp.asarray, data)
        first = task.init(key_for(key, Stream.INIT))
        judges = _judging_clients(key, data, task)

        def train_by(client: Array) -> Params:
            def once(round: Array, model: Params) -> Params:
                return train(key_for(key, Stream.BATCHES, round, client), model, data, client, anchor=model)[0]

            model = jax.lax.fori_loop(0, rounds, once, first)
            return tree.where(tree.is_finite(model), model, first)

        def losses_under(model: Params) -> Array:
            def client(shared, client: Array):
                models, data = shared
                return (), losses(models, data, client)[0]

            return over_clients(client, (tree.repeat(model, 1), data), judges)[1]  # [C]

        def add(carry: tuple, _: None) -> tuple[tuple, Params]:
            chosen, lowest, free = carry
            model, free = train_by(judges.ids[chosen]), free.at[chosen].set(False)
            lowest = jnp.minimum(lowest, losses_under(model))
            left = jnp.where(free.any(), free, able)  # of more models than clients some start from the same one
            return (jnp.argmax(jnp.where(left, lowest, -jnp.inf)), lowest, free), model

        untrained = losses_under(first)
        able = judges.mask & (data.train.size[judges.ids] > 0) & jax.vmap(tree.is_finite)(untrained)
        draw = jax.vmap(lambda client: jax.random.uniform(key_for(key, Stream.START, client=client)))(judges.ids)
        chosen = jnp.argmax(jnp.where(able, draw, -1.0))
        _, models = jax.lax.scan(add, (chosen, jnp.full_like(untrained, jnp.inf), able), length=num_clusters)
        return models

    return start


@checked
def check_start(
    start: StartKind, num_clusters: int, min_share: float, warmup_rounds: int, shared: str | Sequence[str]
) -> None:
    """Raises ValueError unless the options of a start are in range and go together."""
    if warmup_rounds < 0:
        raise ValueError(f'warmup_rounds must be at least 0, got {warmup_rounds}; start="random" has no warm-up.')
    if start == "balanced" and is_known(min_share) and not 0 <= min_share * num_clusters <= 1 + 1e-6:
        raise ValueError(
            f"min_share must be from 0 to 1 / num_clusters ({1 / num_clusters:.3g}), got {min_share}: "
            "the shares of all clusters add up to 1 at most."
        )
    if start == "kmeans++" and shared:
        raise ValueError(
            f"shared must be empty with start='kmeans++', got {shared!r}: models that were trained separately have no "
            "layers in common; take another start."
        )


def _judging_clients(key: Key, data: FederatedData, task: Task) -> Cohort:
    """Returns the cohort whose losses decide on a start: all clients that train, or `MAX_JUDGES` of them at random."""
    size = min(data.num_clients, MAX_JUDGES)
    model = jax.eval_shape(task.init, key)
    plan = resolve_plan("auto", model, size)
    judges = sampling.uniform(key, jnp.int32(0), data, size, plan)
    if data.held_out is None:
        return judges
    return dataclasses.replace(judges, mask=~jnp.asarray(data.held_out)[judges.ids])


ClusterChoice = Callable[[Any, FederatedData, Array], Array]


def model_losses(task: Task) -> ModelLosses:
    """Returns `(models [K, ...], data, client) -> [K]`: mean losses on a client's training rows, infinite for NaN."""
    losses_on_rows = mean_losses(task)

    def losses(models: Params, data: FederatedData, client: Array) -> Array:
        loss = losses_on_rows(models, data, client)  # [K]
        return jnp.where(jnp.isnan(loss), jnp.inf, loss)

    return losses


def lowest_loss(losses: Array) -> Array:
    """Returns the index `[]` int32 of the lowest of the losses `[K]`."""
    return jnp.argmin(losses).astype(jnp.int32)


def cluster_choice(losses: ModelLosses, *, grouped_rounds: int) -> ClusterChoice:
    """Returns `(state, data, client) -> []`, the cluster that a client trains in.

    The state has `models [K, ...]`, `cluster [N]` and `round []`.

    Args:
        losses: of all models.
        grouped_rounds: first rounds, in which a client trains the model of its random group.
    """

    def choose(state: Any, data: FederatedData, client: Array) -> Array:
        chosen = lowest_loss(losses(state.models, data, client))
        return jnp.where(data.train.size[client] > 0, chosen, state.cluster[client])  # without rows there is no loss

    def after_warmup(state: Any, data: FederatedData, client: Array) -> Array:
        def group() -> Array:
            return state.cluster[client]  # until the first choice

        return jax.lax.cond(state.round < grouped_rounds, group, lambda: choose(state, data, client))

    return after_warmup if grouped_rounds else choose


def assigning(losses: ModelLosses, choose: JudgingRows) -> Assign:
    """Returns `assign`: every client with rows is served the model with the lowest loss on its `choose` rows."""

    def assign(key: Key, state: Any, data: FederatedData, cohort: Cohort) -> Any:
        del key
        # clients with equal numbers of training rows may have unequal numbers of test rows
        judged = data if choose == "train" else dataclasses.replace(data, train=data.test, filled=0.0)

        def client(shared, client: Array):
            models, data = shared
            return (), lowest_loss(losses(models, data, client))

        _, found = over_clients(client, (state.models, judged), cohort)
        found = jnp.where(judged.train.size[cohort.ids] > 0, found, state.cluster[cohort.ids])
        return state._replace(cluster=base.write_clusters(state.cluster, cohort, found))

    return assign
