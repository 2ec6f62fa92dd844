"""FedAvg and FedProx with fine-tuning: each client trains the global model on its own rows before it is served.

The rounds are those of FedAvg and FedProx (`averaging` has the papers); n counts the rows of the sampled clients:

    w     <- sum_i (n_i / n) w_i                        # a round, see `fedavg` and `fedprox`
    v_i   <- E_f epochs of SGD on f_i from w            # served to client i, trained for each test and discarded

In FedProx with fine-tuning, v_i is pulled to w too: the epochs are on f_i(v) + mu / 2 * ||v - w||^2.

The baseline is called FedAvg-FT, FedAvg + FT or "local fine-tuning", and published codes differ in what they test.
pFedGraph's official code tests each client's local model of the round before it is averaged, with the round's own
steps: that is v_i of the global model of the round before, with E_f = E, the default here. FedBABU's official notebook
fine-tunes for 5 epochs with a rate of 0.001 after the last round. Others fine-tune new clients alone. All clients are
fine-tuned here, sampled or not, held-out clients and newcomers too; a client without rows is served w. Stragglers and
attackers fine-tune as all others do. With full batches, v_i of w is the client's local model of the next round.

`micro_accuracy` is that of v_i. Run `fedavg` or `fedprox` for that of w, or with `--set finetune=1` for both. With the
network's last layer alone, or another pull, it is `--set finetune=1` with `finetune_layers` and `finetune_pull`. A test
costs E_f passes over the training rows of all clients: evaluate rarely.
"""

import optax

from jaxfl.client.steps import Epochs
from jaxfl.methods.averaging import fedavg, fedprox
from jaxfl.methods.base import Method
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.adaptation import adapted, fine_tuning, tuning_epochs
from jaxfl.schema import Traceable, checked
from jaxfl.server.aggregate import Weighting
from jaxfl.tasks import Task


@server_sees(Seen("sums", "the sum of the models"))
@checked
def fedavg_ft(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    finetune_epochs: int | None = None,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: Weighting = "rows",
    server_optimizer: optax.GradientTransformation | None = None,
) -> Method:
    """Returns FedAvg with fine-tuning.

    Args:
        task: what is learned.
        optimizer: the local optimiser, of rounds and of fine-tuning.
        finetune_epochs: E_f, epochs of a client's fine-tuning before it is served; None takes `local_epochs`.
        local_epochs: E.
        batch_size: B, in rounds and in fine-tuning; None takes all of a client's rows at once.
        weighting: weights of the models in the mean: `"rows"` (n_i / n) or `"uniform"` (1 / m).
        server_optimizer: takes the server's step, see `jaxfl.server`; None takes the average.

    Raises:
        ValueError: an option is out of range.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(fedavg_ft(task, optax.sgd(0.1)), data, rounds=2, cohort=4, seed=0)
    >>> before = jaxfl.run(fedavg(task, optax.sgd(0.1)), data, rounds=2, cohort=4, seed=0)
    >>> result.summary["micro_accuracy"] > before.summary["micro_accuracy"]
    True
    """
    epochs = tuning_epochs(finetune_epochs, local_epochs, least=1, remedy="fedavg serves the model as it is")
    passes = {"local_epochs": local_epochs, "batch_size": batch_size}
    method = fedavg(task, optimizer, weighting=weighting, server_optimizer=server_optimizer, **passes)
    return adapted(method, fine_tuning(task, optimizer, epochs=epochs, batch_size=batch_size))


@server_sees(Seen("sums", "the sum of the models"))
@checked
def fedprox_ft(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    proximal_weight: Traceable = 0.1,
    finetune_epochs: int | None = None,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: Weighting = "rows",
    server_optimizer: optax.GradientTransformation | None = None,
) -> Method:
    """Returns FedProx with fine-tuning that is pulled to the global model.

    Args:
        task: what is learned.
        optimizer: the local optimiser, of rounds and of fine-tuning.
        proximal_weight: mu, in rounds and in fine-tuning; 0 is FedAvg with fine-tuning. Plain gradient steps need
            `learning_rate * (mu + curvature) < 2`. (pFedGraph's official code has 0.01.)
        finetune_epochs: E_f, epochs of a client's fine-tuning before it is served; None takes `local_epochs`.
        local_epochs: E.
        batch_size: B, in rounds and in fine-tuning; None takes all of a client's rows at once.
        weighting: weights of the models in the mean: `"rows"` (n_i / n) or `"uniform"` (1 / m).
        server_optimizer: takes the server's step, see `jaxfl.server`; None takes the average.

    Raises:
        ValueError: an option is out of range.
    """
    epochs = tuning_epochs(finetune_epochs, local_epochs, least=1, remedy="fedprox serves the model as it is")
    passes = {"local_epochs": local_epochs, "batch_size": batch_size, "proximal_weight": proximal_weight}
    method = fedprox(task, optimizer, weighting=weighting, server_optimizer=server_optimizer, **passes)
    tune = fine_tuning(task, optimizer, epochs=epochs, batch_size=batch_size, proximal_weight=proximal_weight)
    return adapted(method, tune)
