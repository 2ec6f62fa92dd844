"""APFL: every client is served a mixture of a personal model and the global one.

Deng, Kamani and Mahdavi, "Adaptive Personalized Federated Learning", 2020. In a round, every sampled client i takes
steps on its w_i, which starts as the global w, and on its personal v_i; in each step, with F_i over the step's rows,

    g        <- grad F_i(alpha_i v_i + (1 - alpha_i) w_i)
    alpha_i  <- clip(alpha_i - eta_alpha <v_i - w_i, g>, 0, 1)      # if it adapts
    v_i      <- v_i - eta alpha_i g
    w_i      <- w_i - eta grad F_i(w_i)                             # all three from the values before the step

and then w <- mean of the w_i. A client is served alpha_i v_i + (1 - alpha_i) w; v_i and alpha_i are never sent. So w
is FedAvg's for every alpha; with alpha = 1, v_i is local training, and with 0 all clients are served w. v_i starts at
w^0; clients that have never trained are served w. The paper's tau local steps are E epochs here. Optimisers other than
SGD act on w_i and v_i separately; alpha always takes plain steps.

An alpha that adapts may fall to 0 early: the steps of v_i are alpha times as long, so that w_i is ahead of it, alpha
falls, and at 0 v_i does not move. On rotated digits (40 clients, half of them a round, 5 epochs in batches of 20, both
rates 0.1) it is 0 for all clients after 20 rounds; a constant 0.5 serves them better.

The equations are those of the paper as other codes have them; they could not be compared with its text. The official
code mixes the two models' outputs in place of their parameters, the same for a linear model, takes the gradient of
v_i after the step of w_i, has a constant alpha = 0.5 by default, and otherwise moves it once a round, by
<v_i - w_i, alpha grad_v + (1 - alpha) grad_w> + 0.02 alpha. FedJAX's code has no factor alpha_i in the step of v_i.
Running averages of batch normalisation are not mixed: those of v_i are the mixture's.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import Batch, FederatedData
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.personal import mark_trained, over_rows, personal_info
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked, is_known, is_zero
from jaxfl.server import aggregate, optimizers
from jaxfl.tasks import Averages, Task
from jaxfl.tasks.contract import Loss, averages_of, with_loss
from jaxfl.typing import Array, Key, Params


class PersonalMixture(NamedTuple):
    """The personal model and alpha of each client."""

    model: Params  # [N, ...] v
    mixture: Array  # [N] alpha


class APFLState(NamedTuple):
    """The global model, and a personal model and alpha for each client."""

    model: Params  # w
    own: PersonalMixture  # [N, ...]
    trained: Array  # [N] bool, False while v_i is w^0
    server: optax.OptState  # of the server's optimiser
    cluster: Array  # [N] int32, every client in a slot of its own
    round: Array  # [] int32


@server_sees(Seen("sums", "the sum of the copies of the global model"))
@checked
def apfl(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    mixture: Traceable = 0.5,
    mixture_rate: Traceable = 0.0,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "uniform",
    server_optimizer: optax.GradientTransformation | None = None,
) -> Method:
    """Returns APFL.

    Args:
        task: what is learned.
        optimizer: the local optimiser of w_i, and of v_i.
        mixture: alpha, the share of the personal model in a client's served model, from 0 to 1; the start value if it
            adapts.
        mixture_rate: eta_alpha, the learning rate of alpha; 0 keeps alpha constant. The paper takes the learning rate
            of the models. A schedule multiplies both.
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        weighting: of the global average: `"uniform"` (1 / m, the official code) or `"rows"` (n_i / n).
        server_optimizer: takes the server's step on w, see `jaxfl.server`; None takes the average.

    Raises:
        ValueError: an option is out of range.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(apfl(task, optax.sgd(0.1), mixture_rate=0.1), data, rounds=2, cohort=4, seed=0)
    >>> result.state.own.model["Dense_0"]["kernel"].shape, result.state.own.mixture.shape
    ((8, 64, 10), (8,))
    """
    _check_arguments(mixture, mixture_rate)
    adapts = not is_zero(mixture_rate)
    server_optimizer = optimizers.beside(server_optimizer, task.averages)
    alpha_optimizer = share_descent(mixture_rate) if adapts else optax.set_to_zero()
    names = {"w": "w", "v": "v", "alpha": "alpha"}
    separate = optax.multi_transform({"w": optimizer, "v": optimizer, "alpha": alpha_optimizer}, names)
    train = local_train(joint_task(task, adapts), separate, local_epochs=local_epochs, batch_size=batch_size)

    def init(key: Key, data: FederatedData) -> APFLState:
        model, count = task.init(key_for(key, Stream.INIT)), data.num_clients
        own = PersonalMixture(tree.repeat(model, count), jnp.full(count, mixture, float))
        clients = jnp.arange(count, dtype=jnp.int32)
        moments = optimizers.init(server_optimizer, model)
        return APFLState(model, own, jnp.zeros(count, bool), moments, clients, jnp.int32(0))

    def client(shared, client: Array, own: PersonalMixture):
        key, (model, round), data = shared
        both = {"w": model, "v": own.model, "alpha": own.mixture}
        trained, loss = train(key_for(key, Stream.BATCHES, round, client), both, data, client, rate=data.rate)
        finite = tree.is_finite(trained)
        weight = jnp.where(finite, aggregate.client_weight(data, client, weighting), 0)
        share = jnp.clip(trained["alpha"], 0, 1) if adapts else own.mixture  # an attacker may perturb it
        contribution = aggregate.contribute(trained["w"], weight, start=model)
        return contribution, PersonalMixture(trained["v"], share), loss, finite

    def round(key: Key, state: APFLState, data: FederatedData, cohort: Cohort) -> tuple[APFLState, Info]:
        passed = over_rows(client, (key, (state.model, state.round), data), cohort, state.own)
        model, moments = optimizers.step_to_mean(server_optimizer, state.server, state.model, passed.sums)
        info = personal_info(passed, cohort, data.num_clients, model)
        trained = mark_trained(state.trained, passed, data, cohort)
        return APFLState(model, passed.rows, trained, moments, state.cluster, state.round + 1), info

    def client_params(state: APFLState, ids: Array) -> Params:
        own, model = tree.take(state.own, ids), base.serve_one(state.model, ids)
        return tree.where(state.trained[ids], interpolate(own.model, model, own.mixture, task.averages), model)

    return Method(init, round, client_params, task, per_client="own")


def interpolate(own: Params, model: Params, mixture: Array, averages: Averages | None = None) -> Params:
    """Returns `alpha v + (1 - alpha) w`, for one client, or for several with alpha `[C]`.

    Args:
        own: v.
        model: w.
        mixture: alpha.
        averages: running averages of the task; these leaves are those of v.

    >>> interpolate({"w": jnp.array([4.0])}, {"w": jnp.array([0.0])}, jnp.array(0.25))["w"].tolist()
    [1.0]
    """

    def mix(v: Array, w: Array) -> Array:
        share = tree.along(mixture, v).astype(v.dtype)
        return share * v + (1 - share) * w

    mixture_model = jax.tree.map(mix, own, model)
    if averages is None:
        return mixture_model
    return jax.tree.map(lambda average, v, both: v if average else both, averages.chosen(own), own, mixture_model)


def joint_task(task: Task, adapts: bool) -> Task:
    """Returns the task of a tree of `w`, `v` and `alpha`: the loss of the mixture, with the gradients of the 3 steps.

    Args:
        task: of one model.
        adapts: whether alpha has a gradient.
    """

    def joint_loss(loss: Loss) -> Loss:
        def run(model: Params, batch: Batch, key: Key | None = None) -> Array:
            alpha = model["alpha"] if adapts else jax.lax.stop_gradient(model["alpha"])
            alone = loss(model["w"], batch, key)
            own = interpolate(model["v"], jax.lax.stop_gradient(model["w"]), alpha, task.averages)
            return loss(own, batch, key) + (alone - jax.lax.stop_gradient(alone))  # of `alone` the gradient only

        return run

    averages = averages_of(task)
    if averages is not None:
        names = frozenset(f"{part}/{name}" for part in ("v", "w") for name in averages.names)
        averages = Averages(names, joint_loss(averages.loss))
    return with_loss(task, joint_loss(task.loss), averages)


def share_descent(learning_rate: float) -> optax.GradientTransformationExtraArgs:
    """Returns plain gradient descent on a share, clipped to 0 to 1.

    The update takes `rate`, the learning-rate factor that its result will be multiplied with (see `jaxfl.scheduled`).

    >>> share = share_descent(0.5)
    >>> [float(share.update(jnp.array(g), share.init(0.75), jnp.array(0.75))[0]) for g in (1.0, 9.0, -1.0)]
    [-0.5, -0.75, 0.25]
    """

    def update(updates: Params, state: optax.OptState, params: Params = None, *, rate: Array | None = None, **extra):
        del extra

        def step(gradient: Array, share: Array) -> Array:
            factor = jnp.ones_like(share) if rate is None else jnp.where(rate > 0, rate, 1).astype(share.dtype)
            return jnp.clip(-learning_rate * gradient, -share / factor, (1 - share) / factor)

        return jax.tree.map(step, updates, params), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def _check_arguments(mixture: float, mixture_rate: float) -> None:
    """Raises ValueError if an argument is out of range."""
    if is_known(mixture) and not 0 <= mixture <= 1:
        raise ValueError(f"mixture must be from 0 (the global model) to 1 (the client's own), got {mixture}.")
    if is_known(mixture_rate) and not 0 <= mixture_rate < math.inf:  # nor NaN
        raise ValueError(
            f"mixture_rate must be at least 0 and finite, got {mixture_rate}; 0 keeps the mixture constant."
        )
