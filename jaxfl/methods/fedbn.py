"""FedBN: FedAvg with personal layers of batch normalisation.

Li, Jiang, Zhang, Kamp and Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR
2021. For clients with different features of the same classes (another scanner, another light). A model is (base, norm),
and in a round every sampled client i

    (base_i, norm_i) <- E epochs of SGD on f_i from (base, norm_i), both together
    base             <- (1 / m) sum_i base_i                       # scales, offsets and statistics stay where they are

It is FedPer with these layers in place of the head. They are found by name: every layer with "norm" in its name, or
with a name that begins with "bn". A client that was never sampled has the initial layers, which do not fit a trained
base: with few rounds, sample all clients (`cohort=1.0`).

The official code is the same: uniform weights, all clients in every round, E = 1, B = 32, plain SGD of rate 0.01.
"""

import jax
import optax

from jaxfl import tree
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.methods.base import Method
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.fedper import partial_averaging
from jaxfl.schema import checked
from jaxfl.server.aggregate import Weighting
from jaxfl.tasks import Task

LAYERS = r"(?i:[^/]*norm[^/]*|bn[^/]*)"


@server_sees(Seen("sums", "the sum of all layers but those of normalisation"))
@checked
def fedbn(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    personal: str | tuple[str, ...] | None = None,
    local_epochs: Epochs = 1,
    batch_size: int | None = None,
    weighting: Weighting = "uniform",
    server_optimizer: optax.GradientTransformation | None = None,
) -> Method:
    """Returns FedBN.

    Args:
        task: what is learned, by a network with layers of normalisation, such as `jaxfl.models.NormalisedMLP`
            (`--set model=mlp-batch-norm`); `jaxfl.models.layers.BatchNorm` keeps no statistics.
        optimizer: the local optimiser of the whole model.
        personal: patterns of the layers of normalisation, as in `fedper`; None finds them by their names. Statistics
            alone are `("mean", "var")`.
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        weighting: of the base's average: `"uniform"` (1 / m, the paper) or `"rows"` (n_i / n).
        server_optimizer: takes the server's step on the base, see `jaxfl.server`; None takes the average.

    Raises:
        ValueError: an option is out of range, or no layer of normalisation is found.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.NormalisedMLP(hidden=(16,), num_classes=10), data)
    >>> result = jaxfl.run(fedbn(task, optax.sgd(0.1)), data, rounds=2, cohort=4, seed=0)
    >>> sorted(result.state.heads["BatchNorm_0"])
    ['bias', 'mean', 'scale', 'var']
    """
    train = local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size)
    model = jax.eval_shape(task.init, jax.random.key(0))
    try:
        chosen = tree.matching(model, LAYERS if personal is None else personal)
    except ValueError as error:
        if personal is not None:
            raise
        raise ValueError(
            f"personal must be given for a network without layers named norm or bn, got parameters "
            f"{', '.join(tree.names(model))}; take a network with normalisation layers, such as mlp-batch-norm, or "
            "give their names."
        ) from error
    return partial_averaging(task, train, chosen, weighting=weighting, server_optimizer=server_optimizer)
