"""FeSEM-MA: FeSEM with matched averaging.

Long, Xie, Shen, Zhou, Wang and Jiang, "Multi-center Federated Learning: Clients Clustering for Better Personalization",
World Wide Web 2022, section 5.1. The steps are FeSEM's (see `fesem`), but the hidden neurons of a model are first
brought into the order of the compared centre, layer by layer, see `jaxfl.matching`: with M(W, C) the model W in the
order of C,

    E       r_i <- argmin_k |M(W_i, C_k) - C_k|^2          "the distance [...] is the neuron matching score"
    M       C_k <- mean of {M(W_i, C_k): r_i = k}

Where the paper leaves choices open: The widths of the layers are constant (FedMA may add neurons, and models of
different widths have no distance). Neurons are matched with those of the centre at the start of the round, as in
FedMA's rounds of communication. So the models are processed one by one and never exist at once, and FedMA's sweeps,
which match all models anew, are left out. Upper layers are not trained again after a lower one is matched, which would
take one communication per layer. The first updates are matched with the common initial model. The last layer, of the
classes, is a plain mean (FedMA weighs it by the clients' rows of each class).

Since every client starts from its centre, matching rarely changes the order of the neurons; the paper gives this as the
reason why FeSEM-MA is no better than FeSEM.

>>> import jaxfl, optax
>>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
>>> task = jaxfl.classification(jaxfl.models.MLP(hidden=(16,), num_classes=10), data)
>>> method = fesem_ma(task, optax.sgd(0.1), num_clusters=2)
>>> jaxfl.run(method, data, rounds=2, cohort=4, seed=0).summary["num_clusters"]
2
"""

import math

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.steps import Epochs
from jaxfl.clustering.from_centres import squared_l2
from jaxfl.methods.base import Method
from jaxfl.methods.exposure import server_sees
from jaxfl.methods.parts import matching
from jaxfl.methods.parts.multi_centre import SEEN, CentreRule, multi_centre
from jaxfl.schema import Traceable, checked, is_known, is_zero
from jaxfl.server.aggregate import Weighting
from jaxfl.tasks import Task
from jaxfl.typing import Array, Params


@server_sees(SEEN)
@checked
def fesem_ma(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int = 3,
    prior_weight: Traceable = 0.0,
    proximal_weight: Traceable = 0.1,
    loss_weighting: Weighting = "uniform",
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: Weighting = "uniform",
    first_epochs: int | None = None,
) -> Method:
    """Returns FeSEM-MA; state and `info` are FeSEM's.

    Args:
        task: what is learned; its model must be a plain chain of layers, see `matching.chain`.
        optimizer: the local optimiser; the pull is added to its gradients.
        num_clusters: K; the paper reports 3.
        prior_weight: weight of the prior in FedMA's posterior mean, as a number of clients: 1 in FedMA's code. 0 is the
            plain mean.
        proximal_weight: lambda, the pull to the centre; mu = 2 lambda.
        loss_weighting: alpha_i, weights of the losses, which the pull is relative to: `"uniform"` (1 / m) or `"rows"`
            (n_i / n).
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        weighting: weights of the clients in the M step: `"uniform"` (equation 9) or `"rows"` (n_i).
        first_epochs: epochs of the updates for the first clustering; None is `local_epochs`.

    Raises:
        ValueError: an option is out of range, the model is no chain of layers, or there are more clusters than clients.
    """
    if is_known(prior_weight) and not 0 <= prior_weight < math.inf:  # nor NaN
        raise ValueError(f"prior_weight must be at least 0 and finite, got {prior_weight}; 0 is the plain mean.")
    layers = matching.chain(task)

    def distances(model: Params, centres: Params) -> Array:
        def distance(centre: Params) -> Array:
            return squared_l2(matching.match(model, centre, layers), jax.tree.map(lambda leaf: leaf[None], centre))[0]

        return jax.lax.map(distance, centres)  # one by one, since most need no assignment, which vmap always computes

    def settle(means: Params, members: Array) -> Params:
        if is_zero(prior_weight):
            return means
        posterior = jax.vmap(lambda mean, count: matching.posterior_mean(mean, count, layers, prior_weight))
        unchanged = members == 0  # a centre without contributions is no mean
        return tree.where(unchanged, means, posterior(means, members.astype(jnp.result_type(float))))

    by_function = CentreRule(
        distances=distances,
        shown=lambda model: model,
        align=lambda model, centre: matching.match(model, centre, layers),
        settle=settle,
    )
    return multi_centre(
        task,
        optimizer,
        by_function,
        num_clusters=num_clusters,
        proximal_weight=proximal_weight,
        loss_weighting=loss_weighting,
        local_epochs=local_epochs,
        batch_size=batch_size,
        weighting=weighting,
        first_epochs=first_epochs,
    )
