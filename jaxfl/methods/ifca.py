"""IFCA, the iterative federated clustering algorithm.

Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020, Algorithm 1.
The server holds K models. In a round, every sampled client i

    k_i <- argmin_k f_i(theta_k)                                    # the lowest loss on its training rows
    Option I   sends grad f_i(theta_{k_i});    theta_k <- theta_k - (eta / m) * sum_{i: k_i = k} grad f_i(theta_k)
    Option II  trains theta_{k_i} locally;     theta_k <- mean of the models of {i: k_i = k}

with m all sampled clients. A cluster without clients keeps its model; ties go to the lowest index.

Where the official code differs: on MNIST and CIFAR it chooses a client's model by its test loss when it tests (here: by
its training loss), on CIFAR it redraws the initial models until every cluster has its share of clients.

Random initial models can let one of them win every client in the first rounds (collapse); look at the cluster sizes,
and start from several seeds.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import aggregate, tree
from jaxfl.data.clients import Cohort, FederatedData
from jaxfl.engine import over_clients
from jaxfl.local import full_gradient, local_train, mean_loss
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method
from jaxfl.random import Stream, key_for
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params


class IFCAState(NamedTuple):
    """K models, and who was served which one last."""

    models: Params  # [K, ...]
    cluster: Array  # [N] int32
    round: Array  # [] int32


def ifca(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int = 4,
    average: str = "models",
    local_epochs: int = 5,
    batch_size: int | None = None,
    weighting: str = "uniform",
) -> Method:
    """Returns IFCA.

    Args:
        task: what is learned.
        optimizer: the local optimiser of Option II; in Option I it turns the averaged gradient into the server's step.
        num_clusters: K, the number of models; more than there are true groups leaves some of them empty.
        average: `"models"` (Option II) or `"gradients"` (Option I; `local_epochs` and `batch_size` are not used).
        local_epochs: E; the paper's tau local steps where a step takes all rows.
        batch_size: B; None takes all of a client's rows at once, as on MNIST in the paper.
        weighting: `"uniform"` (the paper) or `"rows"` (HypCluster and the official FEMNIST code).

    Raises:
        ValueError: an option is out of range, or there are more clusters than clients.
    """
    aggregate.check_weighting(weighting)
    if num_clusters < 1:
        raise ValueError(f"num_clusters must be at least 1, got {num_clusters}.")
    if average not in ("models", "gradients"):
        raise ValueError(f'average must be "models" (Option II) or "gradients" (Option I), got {average!r}.')
    loss_of = mean_loss(task)
    train = local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size)
    gradient_of = full_gradient(task)

    def init(key: Key, data: FederatedData) -> IFCAState:
        base.check_clusters(num_clusters, data)
        models = jax.vmap(lambda k: task.init(key_for(key, Stream.INIT, k)))(jnp.arange(num_clusters))
        return IFCAState(models, jnp.zeros(data.num_clients, jnp.int32), jnp.int32(0))

    def closest(models: Params, data: FederatedData, client: Array) -> Array:
        losses = jax.lax.map(lambda model: loss_of(model, data, client), models)  # [K]
        return jnp.argmin(losses).astype(jnp.int32)

    def send_model(key: Key, model: Params, data: FederatedData, client: Array) -> tuple[Params, Array]:
        return train(key, model, data, client, anchor=model)

    def send_gradient(key: Key, model: Params, data: FederatedData, client: Array) -> tuple[Params, Array]:
        loss, gradient = gradient_of(model, data, client, key)
        return gradient, loss

    def step(models: Params, total: aggregate.Total) -> Params:
        def descend(model: Params, gradient: Params) -> Params:
            updates, _ = optimizer.update(gradient, optimizer.init(model), model)
            return optax.apply_updates(model, updates)

        return jax.vmap(descend)(models, aggregate.cohort_mean(total))

    work = {"models": send_model, "gradients": send_gradient}[average]
    update = {"models": lambda models, total: aggregate.mean(total, empty=models), "gradients": step}[average]

    def round(key: Key, state: IFCAState, data: FederatedData, cohort: Cohort) -> tuple[IFCAState, Info]:
        def client(shared, client: Array):
            key, state, data = shared
            cluster = closest(state.models, data, client)
            client_key = key_for(key, Stream.BATCHES, state.round, client)
            sent, loss = work(client_key, tree.take(state.models, cluster), data, client)
            weight = aggregate.client_weight(data, client, weighting)
            return aggregate.contribute(sent, weight, cluster, num_clusters), (loss, cluster)

        total, (loss, found) = over_clients(client, (key, state, data), cohort)
        models = update(state.models, total)
        cluster = base.write_clusters(state.cluster, cohort, found)
        one = base.shape_of(models)
        seen = base.info(
            cohort,
            loss,
            found,
            num_clusters=(total.weight > 0).sum(),
            diverged=total.diverged,
            up=one,
            down=models,  # every client is sent all K models to choose from
        )
        return IFCAState(models, cluster, state.round + 1), seen

    def assign(key: Key, state: IFCAState, data: FederatedData, cohort: Cohort) -> IFCAState:
        del key

        def client(shared, client: Array):
            models, data = shared
            return (), closest(models, data, client)

        _, found = over_clients(client, (state.models, data), cohort)
        return state._replace(cluster=base.write_clusters(state.cluster, cohort, found))

    return Method(init, round, lambda state, ids: tree.take(state.models, state.cluster[ids]), task, assign)
