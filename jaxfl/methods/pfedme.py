"""pFedMe: personal models that are proximal points of the global one, by Moreau envelopes.

T. Dinh, Tran and Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, Algorithm 1. The global
w minimises the mean of the clients' envelopes min_theta f_i(theta) + lambda / 2 ||theta - w||^2, whose gradient is
lambda (w - theta_i). In a round, every sampled client i starts at w_i = w, and for each batch of its rows

    theta_i <- w_i, then K times    theta_i <- theta_i - eta_p (grad f_i(theta_i; batch) + lambda (theta_i - w_i))
    w_i     <- w_i - eta lambda (w_i - theta_i)

and then w <- (1 - beta) w + beta * mean of the w_i. A client is served its last theta_i, which training does not read
again; clients that have never trained are served w. With one full batch a round and eta lambda = 1 it is FedProx with K
steps; with K = 1 as well it is FedSGD. It is stable only while eta lambda is at most 1, and
eta_p (lambda + curvature) below 2. With the paper's values, the defaults, w moves slowly (the paper makes 800 rounds of
20 batches): lambda = 1 and eta = 0.5 are suitable for tens of rounds.

`preset="official"` is the rule of the official code: w_i are weighted by rows, theta_i starts at w only at the start of
the round and continues from batch to batch, and decays by 0.001 theta_i in every step. (The paper's equal weights of
all clients could not be checked.) A round of that code takes R batches in place of E passes over the rows, all clients
train although only the sampled ones are averaged, and the accuracy that it reports for theta_i is that of w_i, which
has overwritten it.

The losses of a round are means over the K steps. A schedule multiplies eta, not eta_p. A full batch is never divided
into blocks of rows.
"""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.corrections import proximal_pull
from jaxfl.client.passes import BLOCK_ROWS
from jaxfl.client.steps import Epochs
from jaxfl.client.training import checked_optimizer, descent_step, local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import Batch, FederatedData
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method, from_preset
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.personal import mark_trained, over_rows, personal_info
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked, is_known
from jaxfl.server import aggregate, optimizers
from jaxfl.tasks import Averages, Task
from jaxfl.tasks.contract import averages_of, with_loss
from jaxfl.typing import Array, Key, Params

PRESETS = {
    "paper": {"weighting": "uniform", "warm_start": False, "decay": 0.0},
    "official": {"weighting": "rows", "warm_start": True, "decay": 0.001},
}


class PFedMeState(NamedTuple):
    """The global model, and a model for each client."""

    model: Params  # w
    models: Params  # [N, ...] theta
    trained: Array  # [N] bool, False while theta_i is w^0
    server: optax.OptState  # of the server's optimiser
    cluster: Array  # [N] int32, every client in a slot of its own
    round: Array  # [] int32


@server_sees(Seen("sums", "the sum of the local models w_i"))
@checked
def pfedme(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    preset: Literal["paper", "official"] = "paper",
    proximal_weight: Traceable = 15.0,
    outer_rate: Traceable = 0.005,
    inner_steps: int = 5,
    warm_start: bool | None = None,
    decay: Traceable | None = None,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting | None = None,
    server_optimizer: optax.GradientTransformation | None = None,
) -> Method:
    """Returns pFedMe.

    Args:
        task: what is learned.
        optimizer: of the K steps of theta_i, `optax.sgd(eta_p)` in the paper; its state starts fresh for every batch.
        preset: `"paper"` or `"official"`, see above; given options replace its values.
        proximal_weight: lambda.
        outer_rate: eta, the learning rate of w_i.
        inner_steps: steps of theta_i on each batch, K in the paper.
        warm_start: whether theta_i continues from the last batch, instead of starting at w_i.
        decay: weight decay of theta_i.
        local_epochs: E. The paper counts batches, R = 20 of them.
        batch_size: B; None takes all of a client's rows at once, the official experiments take 20.
        weighting: weights of the clients in the average: `"uniform"` (1 / m) or `"rows"` (n_i / n).
        server_optimizer: takes the server's step, see `jaxfl.server`: `optax.sgd(beta)`; None takes the average,
            beta = 1.

    Raises:
        ValueError: an option is out of range.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(pfedme(task, optax.sgd(0.1)), data, rounds=2, cohort=4, seed=0)
    >>> result.state.models["Dense_0"]["kernel"].shape
    (8, 64, 10)
    """
    rule = from_preset(PRESETS, preset, warm_start=warm_start, decay=decay, weighting=weighting)
    _check_arguments(outer_rate, inner_steps, rule["decay"])
    server_optimizer = optimizers.beside(server_optimizer, task.averages)
    inner = optax.chain(proximal_pull(proximal_weight), optax.add_decayed_weights(rule["decay"]), optimizer)
    enveloped = envelope(task, inner, proximal_weight, inner_steps, warm_start=rule["warm_start"])
    # the proximal point of all rows is not a mean of proximal points of blocks
    block = 2**31 if batch_size is None else BLOCK_ROWS
    outer = optax.sgd(outer_rate)
    train = local_train(enveloped, outer, local_epochs=local_epochs, batch_size=batch_size, block=block)

    def init(key: Key, data: FederatedData) -> PFedMeState:
        model, count = task.init(key_for(key, Stream.INIT)), data.num_clients
        clients = jnp.arange(count, dtype=jnp.int32)
        moments = optimizers.init(server_optimizer, model)
        return PFedMeState(model, tree.repeat(model, count), jnp.zeros(count, bool), moments, clients, jnp.int32(0))

    def client(shared, client: Array, own: Params):
        key, (model, round), data = shared
        trained, loss = train(key_for(key, Stream.BATCHES, round, client), {"w": model, "theta": model}, data, client)
        finite = tree.is_finite(trained)
        weight = jnp.where(finite, aggregate.client_weight(data, client, rule["weighting"]), 0)
        # theta starts fresh in each round; without rows it is unchanged
        theta = tree.where(data.train.size[client] > 0, trained["theta"], own)
        return aggregate.contribute(trained["w"], weight, start=model), theta, loss, finite

    def round(key: Key, state: PFedMeState, data: FederatedData, cohort: Cohort) -> tuple[PFedMeState, Info]:
        passed = over_rows(client, (key, (state.model, state.round), data), cohort, state.models)
        model, moments = optimizers.step_to_mean(server_optimizer, state.server, state.model, passed.sums)
        info = personal_info(passed, cohort, data.num_clients, model)
        trained = mark_trained(state.trained, passed, data, cohort)
        return PFedMeState(model, passed.rows, trained, moments, state.cluster, state.round + 1), info

    def client_params(state: PFedMeState, ids: Array) -> Params:
        return tree.where(state.trained[ids], tree.take(state.models, ids), base.serve_one(state.model, ids))

    return Method(init, round, client_params, task, per_client="models")


def envelope(
    task: Task, inner: optax.GradientTransformation, proximal_weight: float, steps: int, *, warm_start: bool
) -> Task:
    """Returns the task of a tree of `w` and `theta` with the envelope's gradient in w, lambda (w - theta).

    Its loss is the mean of f over the steps from the start of theta to the proximal point; theta itself is updated as
    running averages are, see `jaxfl.tasks.Averages`.

    Args:
        task: of one model, f.
        inner: takes the steps of theta, with w as `anchor`.
        proximal_weight: lambda.
        steps: K.
        warm_start: whether theta continues from its value, instead of starting at w.
    """
    averages = averages_of(task)
    of_theta = task.loss if averages is None else averages.loss
    inner = checked_optimizer(inner)
    descend = descent_step(inner, averages)

    def solve(model: Params, batch: Batch, key: Key | None) -> tuple[Array, Params]:
        anchor = model["w"]
        start = model["theta"] if warm_start else anchor

        def step(number: Array, carry):
            theta, state, total = carry
            loss, gradient = jax.value_and_grad(of_theta)(theta, batch, key)
            return *descend(theta, state, gradient, {"anchor": anchor}, None), total + loss

        dtype = jax.eval_shape(of_theta, start, batch, key).dtype
        theta, _, total = jax.lax.fori_loop(0, steps, step, (start, inner.init(start), jnp.zeros((), dtype)))
        slope = jax.tree.map(lambda w, t: proximal_weight * (w - t), anchor, theta)
        if averages is not None:
            slope = jax.tree.map(lambda average, t, s: t if average else s, averages.chosen(theta), theta, slope)
        return total / steps, {"w": slope, "theta": theta}

    @jax.custom_vjp  # no differentiation through the steps
    def loss(model: Params, batch: Batch, key: Key | None = None) -> Array:
        return solve(model, batch, key)[0]

    def backwards(gradient: Params, scale: Array):
        return jax.tree.map(lambda leaf: scale.astype(leaf.dtype) * leaf, gradient), None, None

    loss.defvjp(solve, backwards)
    names = [f"theta/{name}" for name in tree.names(jax.eval_shape(task.init, jax.random.key(0)))]
    names += [] if averages is None else [f"w/{name}" for name in averages.names]
    # otherwise a gradient of wide rows would be computed in blocks of fewer rows
    meta = with_loss(task, loss, Averages(frozenset(names), loss))
    return meta._replace(fast=meta.fast._replace(widest=0))


def _check_arguments(outer_rate: float, inner_steps: int, decay: float) -> None:
    """Raises ValueError if an argument is out of range."""
    if is_known(outer_rate) and not 0 < outer_rate < math.inf:
        raise ValueError(f"outer_rate must be above 0 and finite, got {outer_rate}; the paper's is 0.005.")
    if inner_steps < 1:
        raise ValueError(f"inner_steps must be at least 1, got {inner_steps}; the paper takes 5.")
    if is_known(decay) and not 0 <= decay < math.inf:  # nor NaN
        raise ValueError(f"decay must be at least 0 and finite, got {decay}; 0 switches it off.")
