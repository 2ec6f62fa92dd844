"""FedDANE: local training with a correction towards the cohort's gradient.

Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "FedDANE: A Federated Newton-Type Method", Asilomar Conference
2019. A round has two exchanges; p_k = n_k / n, with n the rows of the sampled clients:

    A  client k sends grad F_k(w_t), of all its rows;         g_t <- sum_k p_k grad F_k(w_t)
    B  client k minimises F_k(w) + <g_t - grad F_k(w_t), w> + mu / 2 * ||w - w_t||^2 from w_t by E epochs of SGD:
       w <- w - eta * (grad F_k(w; batch) + (g_t - grad F_k(w_t)) + mu * (w - w_t));    w_{t+1} <- sum_k p_k w_k

The weighted sum of a cohort's corrections is zero. They are full-batch gradients and the steps are not, so on
mini-batches a client's own gradient does not cancel, not even in its first step.

The paper draws a second cohort for phase B. The official code draws both with the same seed, so that they are equal, as
here; there is no option for two, because the sampler draws the cohort outside the round. The method drifts where
clients are few and differ much: the authors found it worse than FedAvg and FedProx.

All averaged parameters must have a gradient, so that networks with running averages are refused
(`jaxfl.layers.BatchNorm` has none).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.corrections import gradient_correction, proximal_pull
from jaxfl.client.passes import full_gradient
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked
from jaxfl.server import aggregate, optimizers
from jaxfl.tasks import Task, check_trains, without_dropout
from jaxfl.typing import Array, Key, Params


class FedDANEState(NamedTuple):
    """One model for all."""

    model: Params
    server: optax.OptState  # of the server's optimiser
    cluster: Array  # [N] int32, all 0
    round: Array  # [] int32


@server_sees(Seen("sums", "the sum of the gradients, then that of the models"))
@checked
def feddane(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    proximal_weight: Traceable = 0.0,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "rows",
    server_optimizer: optax.GradientTransformation | None = None,
) -> Method:
    """Returns FedDANE.

    With one full-batch local step it is FedSGD for every mu: each client steps along g_t.

    Args:
        task: what is learned.
        optimizer: the local optimiser; the paper's is `optax.sgd(eta)`.
        proximal_weight: mu; the official experiments use 0. Plain gradient steps need
            `learning_rate * (mu + curvature) < 2`.
        local_epochs: E; the official experiments use 20.
        batch_size: B; None takes all of a client's rows at once, the official experiments use 10.
        weighting: weights of gradients and models: `"rows"` (n_k / n, the official code) or `"uniform"` (1 / m).
        server_optimizer: takes the server's step, see `jaxfl.server`; None takes the average.

    Raises:
        ValueError: an option is out of range.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(feddane(task, optax.sgd(0.1)), data, rounds=2, cohort=4, seed=0)
    >>> int(result.state.round)
    2
    """
    check_trains(task, "feddane")
    local = optax.chain(proximal_pull(proximal_weight), gradient_correction(), optimizer)
    train = local_train(task, local, local_epochs=local_epochs, batch_size=batch_size)
    gradient_of = full_gradient(without_dropout(task))  # the same function in both phases

    def init(key: Key, data: FederatedData) -> FedDANEState:
        model = task.init(key_for(key, Stream.INIT))
        clusters = jnp.zeros(data.num_clients, jnp.int32)
        return FedDANEState(model, optimizers.init(server_optimizer, model), clusters, jnp.int32(0))

    def send_gradient(shared, client: Array):
        key, round, model, data = shared
        _, gradient = gradient_of(model, data, client, key_for(key, Stream.DROPOUT, round, client))
        return aggregate.contribute(gradient, aggregate.client_weight(data, client, weighting)), ()

    def send_model(shared, client: Array):
        key, round, model, together, data = shared
        # computed again, as a real client would have stored it: a cohort's gradients never exist at once
        _, gradient = gradient_of(model, data, client, key_for(key, Stream.DROPOUT, round, client))
        correction = jax.tree.map(lambda g, own: g - own, together, gradient)
        client_key = key_for(key, Stream.BATCHES, round, client)
        trained, loss = train(client_key, model, data, client, anchor=model, correction=correction)
        # a client left out of g_t stays out: huge numbers cancel in grad F_k(w; batch) - grad F_k(w_t), and are finite
        weight = jnp.where(tree.is_finite(gradient), aggregate.client_weight(data, client, weighting), 0)
        return aggregate.contribute(trained, weight, start=model), loss

    def round(key: Key, state: FedDANEState, data: FederatedData, cohort: Cohort) -> tuple[FedDANEState, Info]:
        model = state.model
        gradients, _ = over_clients(send_gradient, (key, state.round, model, data), cohort)
        together = tree.take(aggregate.mean(gradients, empty=jax.tree.map(lambda g: jnp.zeros_like(g)[None], model)), 0)
        solutions, loss = over_clients(send_model, (key, state.round, model, together, data), cohort)
        new, moments = optimizers.step_to_mean(server_optimizer, state.server, model, solutions)
        info = base.info(
            cohort,
            loss,
            jnp.zeros(cohort.ids.shape, jnp.int32),
            num_clusters=1,
            diverged=gradients.diverged + solutions.diverged,  # no client is in both
            up=new,
            down=(model, together),
        )
        info = info._replace(bytes_up=2 * info.bytes_up)  # two exchanges: a gradient, then a model
        return FedDANEState(new, moments, state.cluster, state.round + 1), info

    return Method(init, round, lambda state, ids: base.serve_one(state.model, ids), task)
