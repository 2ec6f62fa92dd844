"""Local training without federation (NoFed in the FeSEM tables, "local" in IFCA's).

All clients start from one initial model and train on their own rows in the rounds in which they are sampled; nothing is
sent. IFCA's local baseline starts every client from its own initial model; FeSEM's from a common one, as here.
"""

from typing import NamedTuple

import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Info, Method
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.personal import over_rows, personal_info
from jaxfl.random import Stream, key_for
from jaxfl.schema import checked
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params


class LocalState(NamedTuple):
    """A model for each client."""

    models: Params  # [N, ...]
    cluster: Array  # [N] int32, every client in a slot of its own
    round: Array  # [] int32


@server_sees(Seen("nothing", ""))
@checked
def local(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
) -> Method:
    """Returns training without federation.

    Args:
        task: what is learned.
        optimizer: the local optimiser; its state starts fresh in every round.
        local_epochs: E, epochs of one round.
        batch_size: B; None takes all of a client's rows at once.

    Raises:
        ValueError: an option is out of range.
    """
    train = local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size)

    def init(key: Key, data: FederatedData) -> LocalState:
        clients = jnp.arange(data.num_clients, dtype=jnp.int32)
        model = task.init(key_for(key, Stream.INIT))
        return LocalState(tree.repeat(model, data.num_clients), clients, jnp.int32(0))

    def client(shared, client: Array, model: Params):
        key, round, data = shared
        trained, loss = train(key_for(key, Stream.BATCHES, round, client), model, data, client)
        return (), trained, loss, tree.is_finite(trained)

    def round(key: Key, state: LocalState, data: FederatedData, cohort: Cohort) -> tuple[LocalState, Info]:
        passed = over_rows(client, (key, state.round, data), cohort, state.models)
        info = personal_info(passed, cohort, data.num_clients, ())
        return LocalState(passed.rows, state.cluster, state.round + 1), info

    return Method(init, round, lambda state, ids: tree.take(state.models, ids), task, per_client="models")
