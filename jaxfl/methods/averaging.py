"""One global model: FedSGD, FedAvg and FedProx.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017 (Algorithm 1:
FedAvg; FedSGD is its first line); Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020 (Algorithm
2: FedProx).

    FedSGD    w <- w - eta * sum_i (n_i / n) grad f_i(w)
    FedAvg    w_i <- E epochs of SGD on f_i from w;                       w <- sum_i (n_i / n) w_i
    FedProx   w_i <- the same on f_i(v) + mu / 2 * ||v - w||^2 from w;    w <- sum_i (n_i / n) w_i

n counts the rows of the sampled clients. The server may take its step with an optimiser of its own, see `jaxfl.server`.
As a chain (`update="chain"`, as StoCFL's official code trains its global model and its FedAvg), each client starts from
the model of the client before it, and w becomes the mean of all these models: a round has as many steps as all clients
make together.
The stragglers of FedProx's experiments are a condition of the federation, see `jaxfl.data.conditions`.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client import conduct, operations
from jaxfl.client.corrections import proximal_pull
from jaxfl.client.passes import full_gradient
from jaxfl.client.steps import Epochs
from jaxfl.client.training import Train, checked_optimizer, local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.base import Info, Init, Method
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked
from jaxfl.server import aggregate, optimizers
from jaxfl.server.wire_context import refuse_wire
from jaxfl.tasks import Task, check_trains
from jaxfl.typing import Array, Key, Params

Update = Literal["parallel", "chain"]


class AveragingState(NamedTuple):
    """One model for all."""

    model: Params
    server: optax.OptState  # of the server's optimiser
    cluster: Array  # [N] int32, all 0
    round: Array  # [] int32


def initial(task: Task, optimizer: optax.GradientTransformation | None = None) -> Init:
    """Returns `init` of a method with one model for all; `optimizer` is the server's."""

    def init(key: Key, data: FederatedData) -> AveragingState:
        model = task.init(key_for(key, Stream.INIT))
        return AveragingState(
            model, optimizers.init(optimizer, model), jnp.zeros(data.num_clients, jnp.int32), jnp.int32(0)
        )

    return init


@checked
def averaging(
    task: Task,
    train: Train,
    *,
    weighting: aggregate.Weighting,
    server_optimizer: optax.GradientTransformation | None = None,
    update: Update = "parallel",
) -> Method:
    """Returns the method that averages the clients' models, trained from the global model as anchor.

    Args:
        task: what is learned.
        train: a client's local training, called with `anchor`, the global model.
        weighting: `"rows"` or `"uniform"`.
        server_optimizer: takes the server's step; None takes the average.
        update: `"parallel"`, or `"chain"`: in the order of the clients' ids.
    """

    server_optimizer = optimizers.beside(server_optimizer, task.averages)

    def train_from(model: Params, shared, client: Array):
        key, state, data = shared
        client_key = key_for(key, Stream.BATCHES, state.round, client)
        trained, loss = train(client_key, model, data, client, anchor=state.model)
        return aggregate.contribute(trained, aggregate.client_weight(data, client, weighting), start=model), loss

    def round(key: Key, state: AveragingState, data: FederatedData, cohort: Cohort) -> tuple[AveragingState, Info]:
        shared = key, state, data
        if update == "chain":
            total, loss = in_turn(train_from, state.model, shared, cohort)
        else:
            total, loss = over_clients(
                lambda shared, client: train_from(shared[1].model, shared, client), shared, cohort
            )
        model, moments = optimizers.step_to_mean(server_optimizer, state.server, state.model, total)
        zero = jnp.zeros(cohort.ids.shape, jnp.int32)
        info = base.info(cohort, loss, zero, num_clusters=1, diverged=total.diverged, up=model, down=model)
        return AveragingState(model, moments, state.cluster, state.round + 1), info

    return Method(initial(task, server_optimizer), round, lambda state, ids: base.serve_one(state.model, ids), task)


def in_turn(
    train_from: Callable[[Params, Any, Array], tuple[aggregate.Contribution, Array]],
    model: Params,
    shared: Any,
    cohort: Cohort,
) -> tuple[aggregate.Total, Array]:
    """Returns the results of training a cohort one after another, by id, each client from the model before it.

    Args:
        train_from: `(model, shared, client) -> (contribution, loss)`.
        model: that the first client starts from.
        shared: arguments that are the same for every client.
        cohort: the clients of the round.

    Returns:
        The sum of all contributions, and the losses `[C]` in the cohort's order. A client without a finite contribution
        (padding, no rows, not finite) is skipped: the next client starts from the model before it.
    """
    refuse_wire('update="chain"', "clients hand models on and nothing is summed; take parallel")
    operations.note_in_turn()
    shared = jax.tree.map(jnp.asarray, shared)  # data still in host memory: NumPy arrays take no traced index
    order = jnp.argsort(jnp.where(cohort.mask, cohort.ids, jnp.iinfo(cohort.ids.dtype).max))

    def step(carry, part):
        model, total = carry
        mask, client = part
        contribution, loss = train_from(model, shared, client)
        usable = mask & (contribution.weight > 0) & tree.is_finite(contribution.values)
        return (tree.where(usable, contribution.values, model), aggregate.add_one(total, contribution, mask)), loss

    nothing = aggregate.empty_total(jax.eval_shape(train_from, model, shared, cohort.ids[0])[0])
    (_, total), loss = jax.lax.scan(step, (model, nothing), (cohort.mask[order], cohort.ids[order]))
    return total, jnp.zeros_like(loss).at[order].set(loss)


@server_sees(
    Seen("sums", "the sum of the models"),
    Seen("updates", "the model of each client, which it hands on to the next one", options={"update": "chain"}),
)
@checked
def fedavg(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "rows",
    server_optimizer: optax.GradientTransformation | None = None,
    update: Update = "parallel",
) -> Method:
    """Returns FedAvg: the average of the sampled clients' locally trained models.

    Args:
        task: what is learned.
        optimizer: the local optimiser.
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        weighting: weights of the models in the mean: `"rows"` (n_i / n, the paper) or `"uniform"` (1 / m).
        server_optimizer: takes the server's step, see `jaxfl.server`: FedAvgM, FedAdam, FedYogi; None is FedAvg.
        update: order of training: `"parallel"`, or `"chain"`: one client after another, see above, always on one
            device.

    Raises:
        ValueError: an option is out of range.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(fedavg(task, optax.sgd(0.1)), data, rounds=2, cohort=4, seed=0)
    >>> int(result.state.round)
    2
    """
    train = local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size)
    return averaging(task, train, weighting=weighting, server_optimizer=server_optimizer, update=update)


@server_sees(Seen("sums", "the sum of the models"))
@checked
def fedprox(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    proximal_weight: Traceable = 0.1,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "rows",
    server_optimizer: optax.GradientTransformation | None = None,
) -> Method:
    """Returns FedProx: FedAvg with local training pulled to the global model.

    With one full-batch local step it is FedAvg for every mu: the pull is zero at the start.

    Args:
        task: what is learned.
        optimizer: the local optimiser.
        proximal_weight: mu in Algorithm 2; 0 is FedAvg. Plain gradient steps need
            `learning_rate * (mu + curvature) < 2`.
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        weighting: weights of the models in the mean: `"rows"` (n_i / n) or `"uniform"` (1 / m).
        server_optimizer: takes the server's step, see `jaxfl.server`; None takes the average.

    Raises:
        ValueError: an option is out of range.
    """
    local = optax.chain(proximal_pull(proximal_weight), optimizer)
    train = local_train(task, local, local_epochs=local_epochs, batch_size=batch_size)
    return averaging(task, train, weighting=weighting, server_optimizer=server_optimizer)


@server_sees(Seen("sums", "the sum of the gradients"))
@checked
def fedsgd(task: Task, optimizer: optax.GradientTransformation, *, weighting: aggregate.Weighting = "rows") -> Method:
    """Returns FedSGD: one step per round along the average of the sampled clients' full-batch gradients.

    Args:
        task: what is learned.
        optimizer: gives the step: `optax.sgd(eta)` is the paper's. Its state starts fresh in every round.
        weighting: weights of the gradients in the mean: `"rows"` (n_i / n, the paper) or `"uniform"` (1 / m).

    Raises:
        ValueError: an option is out of range.
    """
    check_trains(task, "fedsgd")
    optimizer = checked_optimizer(optimizer)
    gradient_of = full_gradient(task)

    def round(key: Key, state: AveragingState, data: FederatedData, cohort: Cohort) -> tuple[AveragingState, Info]:
        def client(shared, client: Array):
            key, state, data = shared
            client_key = key_for(key, Stream.DROPOUT, state.round, client)
            loss, gradient = gradient_of(state.model, data, client, client_key)
            return aggregate.contribute(gradient, aggregate.client_weight(data, client, weighting)), loss

        total, loss = over_clients(client, (key, state, data), cohort)
        gradient = tree.take(
            aggregate.mean(total, empty=jax.tree.map(lambda g: jnp.zeros_like(g)[None], state.model)), 0
        )
        updates, _ = optimizer.update(gradient, optimizer.init(state.model), state.model)
        moved = optax.apply_updates(state.model, conduct.scale_updates(updates, data.rate))
        model = tree.where(total.weight[0] > 0, moved, state.model)  # weight decay alone must not move it
        zero = jnp.zeros(cohort.ids.shape, jnp.int32)
        info = base.info(cohort, loss, zero, num_clusters=1, diverged=total.diverged, up=gradient, down=model)
        return AveragingState(model, (), state.cluster, state.round + 1), info

    return Method(initial(task), round, lambda state, ids: base.serve_one(state.model, ids), task)
