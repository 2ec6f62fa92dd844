"""Reptile's aggregation: a step of the server towards the average of the clients' models (FedDist and FedDWS).

Baselines of Long, Xie, Shen, Zhou, Wang and Jiang, "Multi-Center Federated Learning: Clients Clustering for Better
Personalization", 2022 (FeSEM), after Nichol, Achiam and Schulman, "On First-Order Meta-Learning Algorithms", 2018. From
w, the sampled clients train w_i locally, as in FedAvg, and

    FedDist    w <- w + eps * sum_i (1 / m) (w_i - w)
    FedDWS     w <- w + eps * sum_i (n_i / n) (w_i - w)

so eps = 1 is FedAvg, and any eps is FedAvg with a server that takes SGD steps of rate eps, as it is computed here.

Where the official code differs: it takes eps = 0.6 for FedDist; for FedDWS it takes 1 / m, a comment beside it says
0.02, and neither function is called. The paper gives no value. Here eps is 0.6 in both.
"""

import math

import optax

from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.methods.averaging import averaging
from jaxfl.methods.base import Method
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.schema import Traceable, checked, is_known
from jaxfl.server.aggregate import Weighting
from jaxfl.tasks import Task


@server_sees(Seen("sums", "the sum of the models"))
@checked
def feddist(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    step_size: Traceable = 0.6,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
) -> Method:
    """Returns FedDist: a step towards the unweighted average.

    Args:
        task: what is learned.
        optimizer: the local optimiser.
        step_size: eps; 1 is FedAvg with uniform weights, 0 keeps the initial model.
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.

    Raises:
        ValueError: an option is out of range.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(feddist(task, optax.sgd(0.1)), data, rounds=2, cohort=4, seed=0)
    >>> int(result.state.round)
    2
    """
    return _reptile(task, optimizer, step_size, local_epochs, batch_size, weighting="uniform")


@server_sees(Seen("sums", "the sum of the models"))
@checked
def feddws(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    step_size: Traceable = 0.6,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
) -> Method:
    """Returns FedDWS: a step towards the average weighted by rows; FedDist where all clients have equally many.

    Args:
        task: what is learned.
        optimizer: the local optimiser.
        step_size: eps; 1 is FedAvg, 0 keeps the initial model.
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.

    Raises:
        ValueError: an option is out of range.
    """
    return _reptile(task, optimizer, step_size, local_epochs, batch_size, weighting="rows")


def _reptile(
    task: Task,
    optimizer: optax.GradientTransformation,
    step_size: float,
    local_epochs: Epochs,
    batch_size: int | None,
    *,
    weighting: Weighting,
) -> Method:
    """Returns averaging with a server step of `step_size` times the distance to the average."""
    if is_known(step_size) and not 0 <= step_size < math.inf:  # nor NaN
        raise ValueError(f"step_size must be at least 0 and finite, got {step_size}; 1 is the clients' average.")
    train = local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size)
    return averaging(task, train, weighting=weighting, server_optimizer=optax.sgd(step_size))
