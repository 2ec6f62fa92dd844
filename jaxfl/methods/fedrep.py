"""FedRep: FedPer with clients that train their head first, then the shared base below it.

Collins, Hassani, Mokhtari and Shakkottai, "Exploiting Shared Representations for Personalized Federated Learning", ICML
2021. A model is (base, head), phi and h_i in the paper. In a round, every sampled client i

    h_i    <- E_h epochs of SGD on f_i(base, .) from h_i      # the base is constant
    base_i <- E epochs of SGD on f_i(., h_i) from base        # the new head is constant
    base   <- (1 / m) sum_i base_i                            # the heads stay where they are

The head is cheap to train and never sent, so that E_h may be large: many steps of the head for each of the base.
A client that is not sampled is served its old head on the new base; one that has never trained has the initial head.
Each phase has its own optimiser state and batches; the loss of a round is that of the second phase.
Running averages of a normalisation layer move in the phase that trains the layer.

Where the official code differs: one optimiser is for both phases, so that in the second one momentum and weight decay
still move the head, since its gradients are zeros and not left out; on LEAF's data it weighs by rows
(`weighting="rows"`); after the last round all clients train their head for max(10, E_h) epochs more; a client has at
most 500 rows; reported is the mean of the ten rounds before. Its settings: E_h = 10, B = 10, SGD of rate 0.01 with
momentum 0.5, E = 1 on CIFAR-10 with two classes a client, E = 5 on CIFAR-100 and FEMNIST.
"""

import jax
import optax

from jaxfl.client import conduct
from jaxfl.client.part import train_part
from jaxfl.client.steps import Epochs
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Method
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.fedper import partial_averaging
from jaxfl.methods.parts.vectors import chosen_leaves
from jaxfl.random import Stream, key_for
from jaxfl.schema import checked
from jaxfl.server.aggregate import Weighting
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params


@server_sees(Seen("sums", "the sum of the base layers"))
@checked
def fedrep(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    personal: str | tuple[str, ...] | None = None,
    head_epochs: int = 10,
    local_epochs: Epochs = 1,
    batch_size: int | None = None,
    weighting: Weighting = "uniform",
    server_optimizer: optax.GradientTransformation | None = None,
) -> Method:
    """Returns FedRep.

    Args:
        task: what is learned.
        optimizer: the local optimiser of each phase.
        personal: patterns of the head's layers or parameters, as in `fedper`; None takes the layer that the model
            creates last. `()` is none: FedAvg. `".*"` is all: local training of E_h epochs.
        head_epochs: E_h, epochs of the head.
        local_epochs: E; of the base.
        batch_size: B; None takes all of a client's rows at once.
        weighting: of the base's average: `"uniform"` (1 / m, the paper) or `"rows"` (n_i / n).
        server_optimizer: takes the server's step on the base, see `jaxfl.server`; None takes the average.

    Raises:
        ValueError: an option is out of range, or a pattern matches no parameter.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.MLP(hidden=(16,), num_classes=10), data)
    >>> result = jaxfl.run(fedrep(task, optax.sgd(0.1)), data, rounds=2, cohort=4, seed=0)
    >>> jaxfl.tree.names(result.state.base), jaxfl.tree.names(result.state.heads)
    (['Dense_0/bias', 'Dense_0/kernel'], ['Dense_1/bias', 'Dense_1/kernel'])
    """
    if head_epochs < 1:
        raise ValueError(f"head_epochs must be at least 1, got {head_epochs}; 10 is usual.")
    chosen = chosen_leaves(task, personal)
    others = jax.tree.map(lambda personal_leaf: not personal_leaf, chosen)
    train_head = train_part(task, optimizer, chosen, local_epochs=head_epochs, batch_size=batch_size)
    train_base = train_part(task, optimizer, others, local_epochs=local_epochs, batch_size=batch_size)

    def train(key: Key, model: Params, data: FederatedData, client: Array) -> tuple[Params, Array]:
        model, _ = train_head(key_for(key, Stream.HEADS), model, conduct.for_unsent_training(key, data), client)
        return train_base(key, model, data, client)

    return partial_averaging(task, train, chosen, weighting=weighting, server_optimizer=server_optimizer)
