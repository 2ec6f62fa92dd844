"""LG-FedAvg: personal lower layers, and a shared network on top of them.

Liang, Liu et al., "Think Locally, Act Globally: Federated Learning with Local and Global Representations", 2020. A
model is (l, g): personal layers l_i, and shared layers g above them. It is FedPer with the roles exchanged.
The first rounds are FedAvg of the whole model, and from then on every sampled client i

    (l_i, g_i) <- E epochs of SGD on f_i from (l_i, g), both together
    g          <- (1 / m) sum_i g_i                                       # the l_i stay at their clients

A client before its first round has the l of FedAvg's last model. Without the FedAvg rounds the l_i diverge from the
start, and g is a mean of layers that have different inputs.

Where the official code differs: it starts from the FedAvg model of another run, of 400 to 1800 rounds, and some hundred
rounds follow (here `warmup_rounds` are part of the run). Its network for CIFAR-10 lists its layers in another order, so
that the convolutions are shared and the dense layers are personal, the opposite of the paper (`shared="Conv_.*"`). It
reports each client's best model by its test accuracy. Its settings: E = 1; on MNIST B = 10, SGD of rate 0.05 with
momentum 0.5, three of five layers shared.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxfl import tree
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method, Participation
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.personal import mark_trained, over_rows, personal_info
from jaxfl.methods.parts.vectors import chosen_leaves
from jaxfl.random import Stream, key_for
from jaxfl.schema import checked
from jaxfl.server import aggregate
from jaxfl.server.wire_context import refuse_wire
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

NO_WIRE = "its clients send all layers in the warm-up and fewer after it, and a channel has messages of one length"


class LGState(NamedTuple):
    """A global model, and personal layers for each client that replace some of its layers."""

    model: Params  # the shared layers, and FedAvg's last values of the others
    local: Params  # [N, ...] a tree of the model with None for the shared leaves
    trained: Array  # [N] bool, False while a client has no personal layers
    cluster: Array  # [N] int32, every client in a slot of its own
    round: Array  # [] int32


@server_sees(Seen("sums", "the sum of the shared layers, and in the warm-up of all layers"))
@checked
def lg_fedavg(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    shared: str | tuple[str, ...] | None = None,
    warmup_rounds: int = 10,
    local_epochs: Epochs = 1,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "uniform",
) -> Method:
    """Returns LG-FedAvg.

    Args:
        task: what is learned.
        optimizer: the local optimiser of the whole model.
        shared: patterns of the shared layers or parameters, see `jaxfl.tree.matching`: `("Dense_1", "Dense_2")`. None
            takes the layer that the model creates last, which in a model of a single layer is all: FedAvg. `()` is
            none: local training.
        warmup_rounds: rounds of FedAvg before clients have personal layers; 0 begins with the initial model.
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        weighting: weights of the clients in the averages: `"uniform"` (1 / m, the official code) or `"rows"` (n_i / n).

    Raises:
        ValueError: an option is out of range, or a pattern matches no parameter.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.MLP(hidden=(16,), num_classes=10), data)
    >>> method = lg_fedavg(task, optax.sgd(0.1), warmup_rounds=1)
    >>> result = jaxfl.run(method, data, rounds=2, cohort=4, seed=0)
    >>> jaxfl.tree.names(result.state.local), int(result.state.trained.sum())
    (['Dense_0/bias', 'Dense_0/kernel'], 4)
    """
    if warmup_rounds < 0:
        raise ValueError(f"warmup_rounds must be at least 0, got {warmup_rounds}; 10 is usual.")
    train = local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size)
    chosen = jax.tree.map(lambda shared_leaf: not shared_leaf, chosen_leaves(task, shared, "shared"))

    def init(key: Key, data: FederatedData) -> LGState:
        model = task.init(key_for(key, Stream.INIT))
        local = tree.repeat(tree.partition(model, chosen)[0], data.num_clients)
        clients = jnp.arange(data.num_clients, dtype=jnp.int32)
        return LGState(model, local, jnp.zeros(data.num_clients, bool), clients, jnp.int32(0))

    def client(shared, client: Array, own: Params):
        key, (model, trained, round), data = shared
        common, others = tree.partition(model, chosen)
        start = tree.combine(tree.where(trained[client], own, common), others)
        new, loss = train(key_for(key, Stream.BATCHES, round, client), start, data, client)
        finite, moves = tree.is_finite(new), (data.train.size[client] > 0) & (round >= warmup_rounds)
        weight = jnp.where(finite, aggregate.client_weight(data, client, weighting), 0)
        own = tree.where(moves, tree.partition(new, chosen)[0], own)
        return aggregate.contribute(new, weight, start=model), own, loss, finite

    def round(key: Key, state: LGState, data: FederatedData, cohort: Cohort) -> tuple[LGState, Info]:
        refuse_wire("lg_fedavg", NO_WIRE)
        passed = over_rows(client, (key, (state.model, state.trained, state.round), data), cohort, state.local)
        warm = state.round < warmup_rounds
        average = tree.take(aggregate.mean(passed.sums, empty=tree.repeat(state.model, 1)), 0)
        (common, others), (before, _) = tree.partition(average, chosen), tree.partition(state.model, chosen)
        model = tree.combine(tree.where(warm, common, before), others)

        info = personal_info(passed, cohort, data.num_clients, others)
        begins = ~state.trained[cohort.ids] & (warmup_rounds > 0)  # with the server's average, also after the warm-up
        up, down = ((cohort.mask & exchanges).sum() for exchanges in (warm, warm | begins))
        info = info._replace(
            bytes_up=info.bytes_up + base.traffic(up, common), bytes_down=info.bytes_down + base.traffic(down, common)
        )
        trained = state.trained | (mark_trained(state.trained, passed, data, cohort) & ~warm)
        return LGState(model, passed.rows, trained, state.cluster, state.round + 1), info

    def client_params(state: LGState, ids: Array) -> Params:
        common, others = tree.partition(tree.repeat(state.model, ids.shape[0]), chosen)
        return tree.combine(tree.where(state.trained[ids], tree.take(state.local, ids), common), others)

    def shortfall(state: LGState, data: FederatedData, participation: Participation) -> str:
        if np.asarray(state.trained).any():
            return ""
        return (
            f"No client has personal layers, since these follow warmup_rounds={warmup_rounds} and the run had "
            f"{int(state.round)} rounds: make more rounds, or lower warmup_rounds."
        )

    return Method(init, round, client_params, task, per_client="local", shortfall=shortfall)
