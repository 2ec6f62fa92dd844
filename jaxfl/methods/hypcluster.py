"""HypCluster, hypothesis-based clustering: IFCA's model averaging, weighted by rows.

Mansour, Mohri, Ro and Suresh, "Three Approaches for Personalization with Applications to Federated Learning", 2020. The
server holds K models (hypotheses). In a round, every sampled client i

    k_i <- argmin_k f_i(theta_k)
    trains theta_{k_i} locally to w_i;    theta_k <- sum_{i: k_i = k} n_i w_i / sum_{i: k_i = k} n_i

It is Option II of IFCA (`jaxfl/methods/ifca.py`, which runs it) with the weights n_i. As in Google's code for the
benchmark Motley (Wu et al., 2022) the server may take the step of each cluster with an optimiser of its own: there
Adam of rate 1e-3, eps 1e-4, b2 0.99. A cluster that no client chose keeps its model and its optimiser's state.

With random initial models usually all clients choose the same one, so the codes start differently. Google's starts from
K separate runs of FedAvg of 100 rounds (of 1,500 in all), each over all clients; here they run at the same time, each
over a constant random group of the clients, in the first `warmup_rounds` rounds (and the server's optimisers continue
from there). FedJAX's starts from models of single clients with high losses under each other, `start="kmeans++"`.
"""

import optax

from jaxfl.client.steps import Epochs
from jaxfl.methods.base import Method
from jaxfl.methods.exposure import server_sees
from jaxfl.methods.ifca import ifca
from jaxfl.methods.parts import competing
from jaxfl.schema import Traceable, checked
from jaxfl.server.aggregate import Weighting
from jaxfl.tasks import Task


@server_sees(*competing.SEEN)
@checked
def hypcluster(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int = 2,
    local_epochs: Epochs = 1,
    batch_size: int | None = 20,
    weighting: Weighting = "rows",
    start: competing.StartKind = "groups",
    min_share: Traceable = 0.1,
    warmup_rounds: int = 20,
    server_optimizer: optax.GradientTransformation | None = None,
) -> Method:
    """Returns HypCluster.

    Args:
        task: what is learned.
        optimizer: the local optimiser.
        num_clusters: K, the number of models; Google's code chooses 2 among 2 to 5 on EMNIST.
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        weighting: weights of the clients in a cluster's mean: `"rows"` (n_i, the paper) or `"uniform"`.
        start: `"groups"`: a warm start from K runs of FedAvg on random groups of the clients; `"kmeans++"`: from the
            models of K single clients, each the client with the highest loss under the models so far; `"random"` (the
            paper) or `"balanced"`, see `ifca`.
        min_share: for `"balanced"`, see `ifca`.
        warmup_rounds: for `"groups"` the first rounds, with constant groups; for `"kmeans++"` the rounds that a single
            client trains.
        server_optimizer: takes the server's step, for each cluster with a state of its own, see `jaxfl.server`; None
            takes the mean.

    Raises:
        ValueError: an option is out of range, or there are more clusters than clients.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(hypcluster(task, optax.sgd(0.1), warmup_rounds=2), data, rounds=3, cohort=4, seed=0)
    >>> result.state.models["Dense_0"]["kernel"].shape
    (2, 64, 10)
    """
    return ifca(
        task,
        optimizer,
        num_clusters=num_clusters,
        local_epochs=local_epochs,
        batch_size=batch_size,
        weighting=weighting,
        start=start,
        min_share=min_share,
        warmup_rounds=warmup_rounds,
        server_optimizer=server_optimizer,
    )
