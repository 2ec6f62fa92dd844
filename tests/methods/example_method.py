"""A method to imitate: K models, and each client trains the one with the lowest loss on its rows (a small IFCA).

k_i <- argmin_k f_i(theta_k);    client i trains theta_{k_i};    theta_k <- mean of the models of {i: k_i = k}
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.passes import mean_loss
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.parts.multi_centre import count_members
from jaxfl.random import Stream, key_for
from jaxfl.schema import checked
from jaxfl.server import aggregate
from jaxfl.tasks import Task
from jaxfl.typing import Array, Params


class ExampleState(NamedTuple):
    models: Params  # [K, ...] theta
    cluster: Array  # [N] int32, whose model each client is served
    round: Array  # [] int32


@checked  # refuses a value that no Literal annotation has
def example(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int = 2,
    local_epochs: Epochs = 5,
    weighting: aggregate.Weighting = "rows",
) -> base.Method:
    """Returns the method.

    Args:
        task: what is learned.
        optimizer: the local optimiser.
        num_clusters: K.
        local_epochs: E, passes over a client's rows in a round.
        weighting: of a mean: `"rows"` (n_i / n) or `"uniform"` (1 / m).
    """
    train = local_train(task, optimizer, local_epochs=local_epochs, batch_size=None)

    def choose(models, data, client):
        return jnp.argmin(jax.lax.map(lambda model: mean_loss(task)(model, data, client), models)).astype(jnp.int32)

    def init(key, data):
        models = jax.vmap(lambda k: task.init(key_for(key, Stream.INIT, k)))(jnp.arange(num_clusters))
        return ExampleState(models, jnp.zeros(data.num_clients, jnp.int32), jnp.int32(0))

    def round(key, state, data, cohort):
        def client(shared, client):
            key, state, data = shared
            best = choose(state.models, data, client)
            start = tree.take(state.models, best)
            model, loss = train(key_for(key, Stream.BATCHES, state.round, client), start, data, client)
            weight = aggregate.client_weight(data, client, weighting)
            return aggregate.contribute(model, weight, best, num_clusters, start=start), (loss, best)

        total, (loss, found) = over_clients(client, (key, state, data), cohort)
        models = aggregate.mean(total, empty=state.models)  # an empty cluster keeps its model
        cluster = base.write_clusters(state.cluster, cohort, found)
        alive = (count_members(cluster, data, num_clusters) > 0).sum()  # over all clients, not the cohort alone
        up, down = base.shape_of(models), models
        info = base.info(cohort, loss, found, num_clusters=alive, diverged=total.diverged, up=up, down=down)
        return ExampleState(models, cluster, state.round + 1), info

    def assign(key, state, data, cohort):  # serves clients that were never sampled, too
        _, found = over_clients(lambda shared, client: ((), choose(*shared, client)), (state.models, data), cohort)
        return state._replace(cluster=base.write_clusters(state.cluster, cohort, found))

    return base.Method(init, round, lambda state, ids: tree.take(state.models, state.cluster[ids]), task, assign)
