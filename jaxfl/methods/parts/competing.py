"""Where K models start from that compete for the clients by their loss (IFCA, HypCluster).

Of equal models the first wins every client for ever, and of random ones the luckiest may win nearly all. The ways out
that are in use:

    balanced   draw K random models again until each wins its share of the clients    (IFCA's CIFAR code)
    groups     first train each model by FedAvg on a random group of the clients      (IFCA's FEMNIST code, Google's)
    kmeans++   train a model for one client, and again for the client worst served    (FedJAX)
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
from jaxfl.random import Stream, key_for
from jaxfl.schema import checked
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

StartKind = Literal["random", "balanced", "groups", "kmeans++"]
MAX_DRAWS = 100  # of random models, until they are balanced
MAX_JUDGES = 1000  # clients whose losses decide on a start, at most

Start = Callable[[Key, FederatedData], Params]
Draw = Callable[..., Params]
ModelLosses = Callable[[Params, FederatedData, Array], Array]


def independent_models(task: Task, num_clusters: int) -> Draw:
    """Returns `(key, data, number) -> models [K, ...]`: the draw of this number of K independent initial models."""

    def draw(key: Key, data: FederatedData, number: Array | int = 0) -> Params:
        del data
        indices = number * num_clusters + jnp.arange(num_clusters, dtype=jnp.int32)
        return jax.vmap(lambda index: task.init(key_for(key, Stream.INIT, index)))(indices)

    return draw


def balanced_start(task: Task, draw: Draw, losses: ModelLosses, num_clusters: int, *, min_share: float) -> Start:
    """Returns the start from the first of many draws in which every model wins its share of the clients.

    If none does, it is the draw whose least successful model wins most; `clients` in the first round's `Info` tells.

    Args:
        task: what is learned.
        draw: `(key, data, number) -> models [K, ...]`.
        losses: `(models, data, client) -> [K]`.
        num_clusters: K.
        min_share: of the clients with rows and finite losses, for every model.
    """

    def start(key: Key, data: FederatedData) -> Params:
        judges = _judging_clients(key, data, task)

        def client(shared, client: Array):
            models, data = shared
            found = losses(models, data, client)
            counts = (data.train.size[client] > 0) & tree.is_finite(found.min())
            return (), jnp.where(counts, jnp.argmin(found), -1)

        def judge(number: Array) -> tuple[Array, Array]:
            """Returns how many clients the least successful model wins, and if those are enough."""
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
    """Returns a random group `[N]` int32 for every client; all are of one size, give or take a client."""
    draw = jax.random.uniform(key_for(key, Stream.START), (data.num_clients,))
    if data.held_out is not None:
        draw = jnp.where(data.held_out, 1.0, draw)  # behind all those who train
    return jnp.argsort(jnp.argsort(draw)).astype(jnp.int32) % num_clusters


def kmeans_start(task: Task, train: Train, losses: ModelLosses, num_clusters: int, *, rounds: int) -> Start:
    """Returns FedJAX's start: models of single clients, each the next that all models so far serve worst.

    FedJAX trains a model for every candidate; those of the K who are chosen are enough.

    Args:
        task: gives the model that all train from.
        train: a client's local training.
        losses: `(models, data, client) -> [K]`.
        num_clusters: K.
        rounds: how often `train` follows itself for one model.
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
    if start == "balanced" and not 0 <= min_share * num_clusters <= 1 + 1e-6:
        raise ValueError(
            f"min_share must be from 0 to 1 / num_clusters ({1 / num_clusters:.3g}), got {min_share}; "
            "not every cluster can have more."
        )
    if start == "kmeans++" and shared:
        raise ValueError(
            f"shared must be empty with start='kmeans++', got {shared!r}: models that were trained apart have no "
            "layers in common; take another start."
        )


def _judging_clients(key: Key, data: FederatedData, task: Task) -> Cohort:
    """Returns the clients whose losses decide: all that take part, or `JUDGES` of them, in a plan for this machine."""
    size = min(data.num_clients, MAX_JUDGES)
    model = jax.eval_shape(task.init, key)
    plan = resolve_plan("auto", model, size)
    judges = sampling.uniform(key, jnp.int32(0), data, size, plan)
    if data.held_out is None:
        return judges
    return dataclasses.replace(judges, mask=~jnp.asarray(data.held_out)[judges.ids])


JudgingRows = Literal["train", "test"]
ClusterChoice = Callable[[Any, FederatedData, Array], Array]


def model_losses(task: Task) -> ModelLosses:
    """Returns `(models [K, ...], data, client) -> [K]`: their losses on a client's training rows; NaN is infinite."""
    losses_on_rows = mean_losses(task)

    def losses(models: Params, data: FederatedData, client: Array) -> Array:
        found = losses_on_rows(models, data, client)  # [K]
        return jnp.where(jnp.isnan(found), jnp.inf, found)

    return losses


def lowest_loss(losses: Array) -> Array:
    """Returns the model of the lowest of the losses `[K]`."""
    return jnp.argmin(losses).astype(jnp.int32)


def cluster_choice(losses: ModelLosses, *, grouped_rounds: int) -> ClusterChoice:
    """Returns `(state, data, client) -> []`, the cluster that a client trains in.

    The state has `models [K, ...]`, `cluster [N]` and `round []`.

    Args:
        losses: of all models.
        grouped_rounds: in the first of them it is the client's group, where all groups stay as they are.
    """

    def choose(state: Any, data: FederatedData, client: Array) -> Array:
        found = lowest_loss(losses(state.models, data, client))
        return jnp.where(data.train.size[client] > 0, found, state.cluster[client])  # who has no rows has no losses

    def after_warmup(state: Any, data: FederatedData, client: Array) -> Array:
        def own() -> Array:
            return state.cluster[client]  # its group, until the first choice

        return jax.lax.cond(state.round < grouped_rounds, own, lambda: choose(state, data, client))

    return after_warmup if grouped_rounds else choose


def assigning(losses: ModelLosses, choose: JudgingRows) -> Assign:
    """Returns `assign`, which serves every client with rows the model of the lowest loss on its `choose` rows."""

    def assign(key: Key, state: Any, data: FederatedData, cohort: Cohort) -> Any:
        del key
        # clients with as many training rows may have other numbers of test rows
        judged = data if choose == "train" else dataclasses.replace(data, train=data.test, filled=0.0)

        def client(shared, client: Array):
            models, data = shared
            return (), lowest_loss(losses(models, data, client))

        _, found = over_clients(client, (state.models, judged), cohort)
        found = jnp.where(judged.train.size[cohort.ids] > 0, found, state.cluster[cohort.ids])
        return state._replace(cluster=base.write_clusters(state.cluster, cohort, found))

    return assign
