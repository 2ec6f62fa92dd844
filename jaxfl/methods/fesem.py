"""FeSEM, multi-centre federated learning.

Long, Xie, Shen, Zhou, Wang and Jiang, "Multi-center Federated Learning: Clients Clustering for Better Personalization",
World Wide Web 2022, Algorithm 1. The server holds K centres C_k, which are models, and every client's cluster r_i. Over
m clients,

    sum_i alpha_i f_i(W_i) + (lambda / m) * sum_i |W_i - C_{r_i}|^2                                   (equation 5)

is minimised by three steps in turn. Here (in `parts.multi_centre`) a round begins with the last step, and the others
follow in the same pass, so that no W_i is stored:

    local   W_i <- E epochs from C_{r_i} on  alpha_i f_i(W) + (lambda / m) * |W - C_{r_i}|^2          (equation 7)
    E       r_i <- argmin_k |W_i - C_k|^2                                                             (equation 8)
    M       C_k <- mean of {W_i: r_i = k}                                                             (equation 9)

The pull. Divided by alpha_i, the gradient of equation 7 is  grad f_i(W) + 2 lambda / (m alpha_i) * (W - C). With
alpha_i = 1 / m, equal weights as in the means, that is FedProx with mu = 2 lambda: the default here. The paper has
alpha_i = n_i / n (`loss_weighting="rows"`), hence mu_i = 2 lambda * (n / m) / n_i: a stronger pull on clients of fewer
rows, and steps that diverge unless `learning_rate * mu_i` is below 2 for the smallest client. The paper states no value
of lambda.

The start. All clients make one local update from one common model (before it, all W_i are equal); the best of 20
k-means, by intra-cluster distance, gives the r_i, and the means of the updates are the C_k. k-means runs on sketches of
1,024 numbers (see `clustering.sketch`), and the updates are computed a second time for the means, so that they never
exist at once either.

Clients that are not sampled keep their r_i, and a centre is the mean of its sampled clients. Ties go to the lowest k.
A centre without sampled clients is unchanged.

`preset="official"` is the rule of the official code: W_i and C_k are compared by the last kernel alone, and there is no
pull. That code has more differences: its k-means starts from random points that are no models, its centres count the
absent clients' last kernels, and its tests give every centre to every client and report the best.
"""

from collections.abc import Sequence
from typing import Literal

import optax

from jaxfl.client.steps import Epochs
from jaxfl.clustering.from_centres import CentreDistance
from jaxfl.methods.base import Method, from_preset
from jaxfl.methods.exposure import server_sees
from jaxfl.methods.parts.multi_centre import SEEN, index_rule, multi_centre
from jaxfl.methods.parts.vectors import LAST_KERNEL
from jaxfl.schema import Traceable, checked
from jaxfl.server.aggregate import Weighting
from jaxfl.tasks import Task

PRESETS = {
    "paper": {"layers": ".*", "proximal_weight": 0.1},
    "official": {"layers": LAST_KERNEL, "proximal_weight": 0.0},
}


@server_sees(SEEN)
@checked
def fesem(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int = 4,
    preset: Literal["paper", "official"] = "paper",
    layers: str | Sequence[str] | None = None,
    proximal_weight: Traceable | None = None,
    loss_weighting: Weighting = "uniform",
    distance: CentreDistance = "squared_l2",
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: Weighting = "uniform",
    first_epochs: int | None = None,
) -> Method:
    """Returns FeSEM.

    `info.extra` has `distance [C]`, of every client's model from the nearest centre (0 for a client that does not
    count), their mean `objective []` (equation 6, between E and M step), and `changed []`, the number of clients with a
    new cluster.

    Args:
        task: what is learned.
        optimizer: the local optimiser; the pull is added to its gradients.
        num_clusters: K.
        preset: `"paper"` (`layers=".*"`, `proximal_weight=0.1`) or `"official"` (`layers="last kernel"`,
            `proximal_weight=0.0`); given options replace its values.
        layers: patterns (see `tree.matching`) of the parameters that the E step compares, or `"last kernel"`: of the
            layer that the model creates last. Centres and pull are of the whole model.
        proximal_weight: lambda, the pull to the centre; mu = 2 lambda.
        loss_weighting: alpha_i, weights of the losses, which the pull is relative to: `"uniform"` (1 / m) or `"rows"`
            (n_i / n).
        distance: of the E step: `"squared_l2"`, `"l1"` or `"cosine"` (1 - cosine). The first clustering and the pull
            always use squared l2.
        local_epochs: E; the paper's N = 1 is one such pass a round.
        batch_size: B; None takes all of a client's rows at once.
        weighting: weights of the clients in the M step: `"uniform"` (equation 9) or `"rows"` (n_i).
        first_epochs: epochs of the updates for the first clustering; None is `local_epochs`.

    Raises:
        ValueError: an option is out of range, a pattern matches no parameter, or there are more clusters than clients.
    """
    rule = from_preset(PRESETS, preset, layers=layers, proximal_weight=proximal_weight)
    return multi_centre(
        task,
        optimizer,
        index_rule(task, rule["layers"], distance),
        num_clusters=num_clusters,
        proximal_weight=rule["proximal_weight"],
        loss_weighting=loss_weighting,
        local_epochs=local_epochs,
        batch_size=batch_size,
        weighting=weighting,
        first_epochs=first_epochs,
    )
