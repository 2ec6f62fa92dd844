"""APFL: every client is served a mixture of a model of its own and the global one.

Deng, Kamani and Mahdavi, "Adaptive Personalized Federated Learning", 2020. In a round, every sampled client i takes
steps on its w_i, which starts as the global w, and on its own v_i; in each step, with F_i over the step's rows,

    g        <- grad F_i(alpha_i v_i + (1 - alpha_i) w_i)
    alpha_i  <- clip(alpha_i - eta_alpha <v_i - w_i, g>, 0, 1)      # if it adapts
    v_i      <- v_i - eta alpha_i g
    w_i      <- w_i - eta grad F_i(w_i)                             # all three from the values before the step

and then w <- mean of the w_i. A client is served alpha_i v_i + (1 - alpha_i) w; v_i and alpha_i are never sent. So w
is FedAvg's whatever alpha is; with alpha = 1, v_i is local training, and with 0 everybody is served w. v_i starts at
w^0; clients that have never trained are served w. The paper's tau local steps are E epochs here. Optimisers other than
SGD act on w_i and v_i apart; alpha always takes plain steps.

An alpha that adapts may be lost early: the steps of v_i are alpha times as long, so that w_i is ahead of it, alpha
falls, and at 0 v_i stands still. On rotated digits (40 clients, half of them a round, 5 epochs in batches of 20, both
rates 0.1) it is 0 for all clients after 20 rounds; 0.5, kept as it is, serves them better.

The equations are those of the paper as other codes have them; they could not be compared with its text. The official
code mixes the two models' outputs in place of their parameters, the same for a linear model, takes the gradient of
v_i after the step of w_i, keeps alpha = 0.5 unless told otherwise, and then moves it once a round, by
<v_i - w_i, alpha grad_v + (1 - alpha) grad_w> + 0.02 alpha. FedJAX's code has no factor alpha_i in the step of v_i.
Running averages of batch normalisation are not mixed: those of v_i are the mixture's.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.training import local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import Batch, FederatedData
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method
from jaxfl.methods.parts.personal import mark_trained, over_rows, personal_info
from jaxfl.random import Stream, key_for
from jaxfl.schema import checked
from jaxfl.server import aggregate, optimizers
from jaxfl.tasks import Averages, Task
from jaxfl.tasks.contract import Loss, averages_of, with_loss
from jaxfl.typing import Array, Key, Params


class PersonalMixture(NamedTuple):
    """What belongs to each client."""

    model: Params  # [N, ...] v
    mixture: Array  # [N] alpha


class APFLState(NamedTuple):
    """The global model, and what belongs to each client."""

    model: Params  # w
    own: PersonalMixture  # [N, ...]
    trained: Array  # [N] bool, False while v_i is w^0
    server: optax.OptState  # of the server's optimiser
    cluster: Array  # [N] int32, everybody in a slot of its own
    round: Array  # [] int32


@checked
def apfl(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    mixture: float = 0.5,
    mixture_rate: float = 0.0,
    local_epochs: int = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "uniform",
    server_optimizer: optax.GradientTransformation | None = None,
) -> Method:
    """Returns APFL.

    Args:
        task: what is learned.
        optimizer: the local optimiser of w_i, and of v_i.
        mixture: alpha, the share of a client's own model in what it is served, from 0 to 1; at first, where it adapts.
        mixture_rate: eta_alpha, by which alpha adapts in every step; 0 keeps it as it is. The paper takes the learning
            rate of the models. A schedule multiplies it like that one.
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
    adapts = mixture_rate > 0
    server_optimizer = optimizers.beside(server_optimizer, task.averages)
    of_alpha = share_descent(mixture_rate) if adapts else optax.set_to_zero()
    names = {"w": "w", "v": "v", "alpha": "alpha"}
    apart = optax.multi_transform({"w": optimizer, "v": optimizer, "alpha": of_alpha}, names)
    train = local_train(joint_task(task, adapts), apart, local_epochs=local_epochs, batch_size=batch_size)

    def init(key: Key, data: FederatedData) -> APFLState:
        model, count = task.init(key_for(key, Stream.INIT)), data.num_clients
        own = PersonalMixture(tree.repeat(model, count), jnp.full(count, mixture, float))
        clients = jnp.arange(count, dtype=jnp.int32)
        moments = optimizers.init(server_optimizer, model)
        return APFLState(model, own, jnp.zeros(count, bool), moments, clients, jnp.int32(0))

    def client(shared, client: Array, own: PersonalMixture):
        key, (model, round), data = shared
        both = {"w": model, "v": own.model, "alpha": own.mixture}
        made, loss = train(key_for(key, Stream.BATCHES, round, client), both, data, client, rate=data.rate)
        finite = tree.is_finite(made)
        weight = jnp.where(finite, aggregate.client_weight(data, client, weighting), 0)
        share = jnp.clip(made["alpha"], 0, 1) if adapts else own.mixture  # an attacker's is anything
        return aggregate.contribute(made["w"], weight), PersonalMixture(made["v"], share), loss, finite

    def round(key: Key, state: APFLState, data: FederatedData, cohort: Cohort) -> tuple[APFLState, Info]:
        passed = over_rows(client, (key, (state.model, state.round), data), cohort, state.own)
        model, moments = optimizers.step_to_mean(server_optimizer, state.server, state.model, passed.sums)
        seen = personal_info(passed, cohort, data.num_clients, model)
        trained = mark_trained(state.trained, passed, data, cohort)
        return APFLState(model, passed.rows, trained, moments, state.cluster, state.round + 1), seen

    def client_params(state: APFLState, ids: Array) -> Params:
        own, model = tree.take(state.own, ids), base.serve_one(state.model, ids)
        return tree.where(state.trained[ids], interpolate(own.model, model, own.mixture, task.averages), model)

    return Method(init, round, client_params, task, per_client="own")


def interpolate(own: Params, model: Params, mixture: Array, averages: Averages | None = None) -> Params:
    """Returns `alpha v + (1 - alpha) w`, for one client, or for several whose alpha is `[C]`.

    Args:
        own: v.
        model: w.
        mixture: alpha.
        averages: of the task; these leaves are v's.

    >>> interpolate({"w": jnp.array([4.0])}, {"w": jnp.array([0.0])}, jnp.array(0.25))["w"].tolist()
    [1.0]
    """

    def mix(v: Array, w: Array) -> Array:
        share = tree.along(mixture, v).astype(v.dtype)
        return share * v + (1 - share) * w

    made = jax.tree.map(mix, own, model)
    if averages is None:
        return made
    return jax.tree.map(lambda average, v, both: v if average else both, averages.chosen(own), own, made)


def joint_task(task: Task, adapts: bool) -> Task:
    """Returns the task of a tree of `w`, `v` and `alpha`: its loss is the mixture's, its gradient the three steps'.

    Args:
        task: of one model.
        adapts: whether alpha has a gradient.
    """

    def of(loss: Loss) -> Loss:
        def run(model: Params, batch: Batch, key: Key | None = None) -> Array:
            alpha = model["alpha"] if adapts else jax.lax.stop_gradient(model["alpha"])
            alone = loss(model["w"], batch, key)
            own = interpolate(model["v"], jax.lax.stop_gradient(model["w"]), alpha, task.averages)
            return loss(own, batch, key) + (alone - jax.lax.stop_gradient(alone))  # of `alone` the gradient only

        return run

    averages = averages_of(task)
    if averages is not None:
        names = frozenset(f"{part}/{name}" for part in ("v", "w") for name in averages.names)
        averages = Averages(names, of(averages.loss))
    return with_loss(task, of(task.loss), averages)


def share_descent(learning_rate: float) -> optax.GradientTransformationExtraArgs:
    """Returns plain gradient steps that end between 0 and 1.

    The update takes `rate`, by which who takes the step will multiply it (see `jaxfl.scheduled`).

    >>> share = share_descent(0.5)
    >>> [float(share.update(jnp.array(g), share.init(0.75), jnp.array(0.75))[0]) for g in (1.0, 9.0, -1.0)]
    [-0.5, -0.75, 0.25]
    """

    def update(updates: Params, state: optax.OptState, params: Params = None, *, rate: Array | None = None, **extra):
        del extra

        def step(gradient: Array, share: Array) -> Array:
            pace = jnp.ones_like(share) if rate is None else jnp.where(rate > 0, rate, 1).astype(share.dtype)
            return jnp.clip(-learning_rate * gradient, -share / pace, (1 - share) / pace)

        return jax.tree.map(step, updates, params), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def _check_arguments(mixture: float, mixture_rate: float) -> None:
    """Raises ValueError if an option is out of range."""
    if not 0 <= mixture <= 1:
        raise ValueError(f"mixture must be from 0 (the global model) to 1 (the client's own), got {mixture}.")
    if not 0 <= mixture_rate < math.inf:  # nor NaN
        raise ValueError(
            f"mixture_rate must be at least 0 and finite, got {mixture_rate}; 0 keeps the mixture as it is."
        )
