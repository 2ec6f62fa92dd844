"""FedPer: shared base layers, and a head for every client.

Arivazhagan, Aggarwal, Singh and Choudhary, "Federated Learning with Personalization Layers", 2019. A model is
(base, head). In a round, every sampled client i

    (w_i, h_i) <- E epochs of SGD on f_i from (w, h_i), both together
    w          <- sum_i (n_i / n) w_i                                   # the heads stay where they are

n counts the rows of the sampled clients. A client that is not sampled is served its old head on the new base; a client
that has never trained has the initial head, the same for all. The optimiser's state starts fresh in every round, for
head and base. Parameters of a normalisation layer are in head or base by their names.

Personal layers are chosen by name. They need not be the last ones: in LG-FedAvg (`lg_fedavg`) the layers below a shared
head are personal, in FedBN (`fedbn`) the normalisation layers. FedRep (`fedrep`) trains head and base in turns.
"""

from typing import NamedTuple

import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.steps import Epochs
from jaxfl.client.training import Train, local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Info, Method
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.personal import nothing_shared, over_rows, personal_info
from jaxfl.methods.parts.vectors import chosen_leaves
from jaxfl.random import Stream, key_for
from jaxfl.schema import checked
from jaxfl.server import aggregate, optimizers
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params


class FedPerState(NamedTuple):
    """The base, and a head for each client: trees of the model with None for the leaves of the other part."""

    base: Params
    heads: Params  # [N, ...]
    server: optax.OptState  # of the server's optimiser
    cluster: Array  # [N] int32, every client in a slot of its own
    round: Array  # [] int32


@server_sees(Seen("sums", "the sum of the base layers"))
@checked
def fedper(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    personal: str | tuple[str, ...] | None = None,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "rows",
    server_optimizer: optax.GradientTransformation | None = None,
) -> Method:
    """Returns FedPer.

    Args:
        task: what is learned.
        optimizer: the local optimiser of base and head.
        personal: regular expressions of the personal layers' or parameters' names, see `jaxfl.tree.matching`:
            `"Dense_1"`, `("Dense_.*", "bias")`; `()` is none (FedAvg), `".*"` is all (local training). None takes the
            layer that the model creates last, which in a model of a single layer is all.
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        weighting: weights of the clients in the base's average: `"rows"` (n_i / n, the paper) or `"uniform"` (1 / m).
        server_optimizer: takes the server's step on the base, see `jaxfl.server`; None takes the average.

    Raises:
        ValueError: an option is out of range, or a pattern matches no parameter.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.MLP(hidden=(16,), num_classes=10), data)
    >>> result = jaxfl.run(fedper(task, optax.sgd(0.1)), data, rounds=2, cohort=4, seed=0)
    >>> jaxfl.tree.names(result.state.base), jaxfl.tree.names(result.state.heads)
    (['Dense_0/bias', 'Dense_0/kernel'], ['Dense_1/bias', 'Dense_1/kernel'])
    """
    train = local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size)
    chosen = chosen_leaves(task, personal)
    return partial_averaging(task, train, chosen, weighting=weighting, server_optimizer=server_optimizer)


def partial_averaging(
    task: Task,
    train: Train,
    chosen: Params,
    *,
    weighting: aggregate.Weighting,
    server_optimizer: optax.GradientTransformation | None = None,
) -> Method:
    """Returns the method that averages the clients' trained models, except for personal leaves.

    Args:
        task: what is learned.
        train: a client's local training of the whole model.
        chosen: bool for every leaf of the model: whether it is personal.
        weighting: of the average of the other leaves.
        server_optimizer: takes the server's step on the other leaves; None takes the average.
    """
    server_optimizer = optimizers.beside(server_optimizer, task.averages)

    def init(key: Key, data: FederatedData) -> FedPerState:
        head, rest = tree.partition(task.init(key_for(key, Stream.INIT)), chosen)
        clients = jnp.arange(data.num_clients, dtype=jnp.int32)
        heads = tree.repeat(head, data.num_clients)
        return FedPerState(rest, heads, optimizers.init(server_optimizer, rest), clients, jnp.int32(0))

    def round(key: Key, state: FedPerState, data: FederatedData, cohort: Cohort) -> tuple[FedPerState, Info]:
        def client(shared, client: Array, head: Params):
            key, (rest, round), data = shared
            client_key = key_for(key, Stream.BATCHES, round, client)
            model, loss = train(client_key, tree.combine(head, rest), data, client)
            finite = tree.is_finite(model)
            new_head, new_rest = tree.partition(model, chosen)
            weight = aggregate.client_weight(data, client, weighting)
            weight = jnp.where(finite, weight, 0)  # with a head that has diverged, the base is not trained
            return aggregate.contribute(new_rest, weight, start=rest), new_head, loss, finite

        passed = over_rows(client, (key, (state.base, state.round), data), cohort, state.heads)
        rest, moments = optimizers.step_to_mean(server_optimizer, state.server, state.base, passed.sums)
        info = personal_info(passed, cohort, data.num_clients, rest)
        return FedPerState(rest, passed.rows, moments, state.cluster, state.round + 1), info

    def client_params(state: FedPerState, ids: Array) -> Params:
        return tree.combine(tree.take(state.heads, ids), tree.repeat(state.base, ids.shape[0]))

    return Method(init, round, client_params, task, per_client="heads", shortfall=nothing_shared(chosen))
