"""FedBABU: a shared body, trained under a head that stays as it was drawn, and fine-tuned by each client for its tests.

Oh, Kim and Yun, "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022. A model is
(body, head); the initial head h is the same for all clients. In a round, every sampled client i

    body_i <- E epochs of SGD on f_i(., h) from body           # the head is constant
    body   <- (1 / m) sum_i body_i
    v_i    <- E_f epochs of SGD on f_i from (body, h)          # served to client i, trained for each test and discarded

It is a global method: clients that were never sampled, held-out clients and newcomers fine-tune (body, h) as all others
do, and a client without rows is served it. Running averages of normalisation layers are averaged with the body.

The official code freezes the head by a learning rate of 0 and fine-tunes the whole model for 5 epochs, with its
training's optimiser at a rate of 0.001, which is the last of the training's schedule (0.1, and a tenth of it after a
half and after three quarters of the rounds); it does so in the round with the best accuracy on test rows. Here
fine-tuning has the rate of the local optimiser. For another one leave it out, `finetune_epochs=0`, and test with
`jaxfl.run(..., finetune=jaxfl.FineTune(optax.sgd(0.001), epochs=5))`. FedBABU+, which trains the body on rows of the
server, is not here. The paper discusses orthogonal heads: where two columns of the drawn head are nearly equal, the
body cannot tell these classes apart.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.part import train_part
from jaxfl.client.steps import Epochs
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.adaptation import adapted, fine_tuning, tuning_epochs
from jaxfl.methods.parts.personal import nothing_shared
from jaxfl.methods.parts.vectors import chosen_leaves
from jaxfl.random import Stream, key_for
from jaxfl.schema import checked
from jaxfl.server import aggregate, optimizers
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

TunedPart = Literal["all", "head", "body"]


class FedBABUState(NamedTuple):
    """The body and the head: trees of the model with None for the leaves of the other part."""

    body: Params
    head: Params  # as it was drawn
    server: optax.OptState  # of the server's optimiser
    cluster: Array  # [N] int32, every client in a slot of its own; all 0 without fine-tuning
    round: Array  # [] int32


@server_sees(Seen("sums", "the sum of the bodies"))
@checked
def fedbabu(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    personal: str | tuple[str, ...] | None = None,
    finetune_epochs: int = 5,
    finetune_part: TunedPart = "all",
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "uniform",
    server_optimizer: optax.GradientTransformation | None = None,
) -> Method:
    """Returns FedBABU.

    Args:
        task: what is learned.
        optimizer: the local optimiser, of the body and of fine-tuning.
        personal: patterns of the head's layers or parameters, as in `fedper`; None takes the layer that the model
            creates last. `()` is none: FedAvg, fine-tuned. With `".*"`, all, no round changes anything.
        finetune_epochs: E_f, epochs of a client's fine-tuning before it is served; 0 serves (body, h).
        finetune_part: what is fine-tuned: `"all"` (the official code), the `"head"` or the `"body"`.
        local_epochs: E; the official code has 1, 4 or 10 in as many rounds as make 320 epochs.
        batch_size: B, in rounds and in fine-tuning; None takes all of a client's rows at once.
        weighting: of the body's average: `"uniform"` (1 / m, the official code) or `"rows"` (n_i / n).
        server_optimizer: takes the server's step on the body, see `jaxfl.server`; None takes the average.

    Raises:
        ValueError: an option is out of range, or a pattern matches no parameter.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.MLP(hidden=(16,), num_classes=10), data)
    >>> result = jaxfl.run(fedbabu(task, optax.sgd(0.1)), data, rounds=2, cohort=4, seed=0)
    >>> jaxfl.tree.names(result.state.body), jaxfl.tree.names(result.state.head)
    (['Dense_0/bias', 'Dense_0/kernel'], ['Dense_1/bias', 'Dense_1/kernel'])
    """
    epochs = tuning_epochs(finetune_epochs, local_epochs, least=0, remedy="0 serves the model as it is")
    chosen = chosen_leaves(task, personal)
    others = jax.tree.map(lambda of_head: not of_head, chosen)
    train = train_part(task, optimizer, others, local_epochs=local_epochs, batch_size=batch_size)
    server_optimizer = optimizers.beside(server_optimizer, task.averages)

    def init(key: Key, data: FederatedData) -> FedBABUState:
        head, body = tree.partition(task.init(key_for(key, Stream.INIT)), chosen)
        clients = jnp.zeros(data.num_clients, jnp.int32)
        return FedBABUState(body, head, optimizers.init(server_optimizer, body), clients, jnp.int32(0))

    def client(shared, client: Array):
        key, state, data = shared
        client_key = key_for(key, Stream.BATCHES, state.round, client)
        model, loss = train(client_key, tree.combine(state.head, state.body), data, client)
        body = tree.partition(model, chosen)[1]
        return aggregate.contribute(body, aggregate.client_weight(data, client, weighting), start=state.body), loss

    def round(key: Key, state: FedBABUState, data: FederatedData, cohort: Cohort) -> tuple[FedBABUState, Info]:
        total, loss = over_clients(client, (key, state, data), cohort)
        body, moments = optimizers.step_to_mean(server_optimizer, state.server, state.body, total)
        zero = jnp.zeros(cohort.ids.shape, jnp.int32)
        info = base.info(cohort, loss, zero, num_clusters=1, diverged=total.diverged, up=body, down=body)
        return state._replace(body=body, server=moments, round=state.round + 1), info

    def client_params(state: FedBABUState, ids: Array) -> Params:
        return base.serve_one(tree.combine(state.head, state.body), ids)

    method = Method(init, round, client_params, task, shortfall=nothing_shared(chosen))
    if not epochs:
        return method
    part = {"all": None, "head": chosen, "body": others}[finetune_part]
    return adapted(method, fine_tuning(task, optimizer, epochs=epochs, batch_size=batch_size, chosen=part))
