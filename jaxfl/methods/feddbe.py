"""FedDBE: FedAvg with a personal shift of each client's features, and a pull of their mean to that of all clients.

Zhang, Hua, Cao, Wang, Song, Xue, Ma and Guan, "Eliminating Domain Bias for Federated Learning in Representation Space",
NeurIPS 2023. The network has features x [d], the input of its head; client i has a shift z_i [d], 0 at first. Before
the first round every client trains the initial network for E epochs as in FedAvg, without z_i and the pull, and
notes the mean of its features over the steps; the trained networks are thrown away:

    r_i <- (1 - mu) r_i + mu mean_B(x) in every step, from 0;      M <- sum_i (n_i / n) r_i, which then stays

In a round, every sampled client i begins with r_i = 0 and makes E epochs of steps on w and z_i together, on

    f_i(head(x + z_i)) + kappa / 2 mean over d of (r_i - M)^2,      r_i <- (1 - mu) stop(r_i) + mu mean_B(x)

and w <- sum_i (n_i / n) w_i; z_i stays. Served is head(x + z_i). The loss of a round is f_i alone. The shift of a
dense head is a personal bias: (x + z) W + b = x W + (b + z W), so that z_i does not move while W is 0.

The pull is a mean over the d coordinates: of fewer features the same kappa pulls each one more. M is of features that
the initial network has learned in one training, and is never updated: a large kappa holds the features at their scale.

A client that is not sampled keeps its z_i, on the new network; one that has never trained, held out or new, is served
the network with z = 0. A client without rows is in no mean. Attackers perturb what they send in rounds; r_i is honest.

Official code: as above; r_i is biased to 0 with a small mu and few steps, since it starts at 0, and the last partial
batch is dropped. Its settings for Fashion-MNIST and a network with d = 512: kappa 50, mu 1, SGD of rate 0.005, B = 10,
E = 1, all of 20 clients, 2,000 rounds; its program's own defaults, kappa 0 and mu 0.1, have no pull. The paper's
algorithm was not available. `start="cohort"` is not the paper's.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client import conduct
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import Batch, FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.heads import Head, find_head, with_features
from jaxfl.methods.parts.one_shot import add_exchange, all_clients
from jaxfl.methods.parts.personal import over_rows, personal_info
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked, is_known, is_zero
from jaxfl.server import aggregate, optimizers
from jaxfl.server.wire_context import refuse_noise, refuse_wire
from jaxfl.tasks import Task, masked_mean
from jaxfl.tasks.contract import assigned_by_gradient, joint_averages, with_loss
from jaxfl.typing import Array, Key, Params

MEAN = "mean"  # r_i, beside the network and the shift while a client trains


class FedDBEState(NamedTuple):
    """The network, and a shift of the features for each client."""

    model: Params
    shifts: Array  # [N, d] z_i
    mean: Array  # [d] M
    known: Array  # [] bool, whether M is known; it is 0 before
    server: optax.OptState  # of the server's optimiser
    cluster: Array  # [N] int32, every client in a slot of its own
    round: Array  # [] int32


@server_sees(
    Seen("sums", "the sum of the networks", before="the sum of the clients' mean features"),
    Seen(
        "sums",
        "the sum of the networks, and in the first round of the cohort's mean features",
        options={"start": "cohort"},
    ),
)
@checked
def feddbe(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    mean_pull: Traceable = 50.0,
    mean_momentum: Traceable = 1.0,
    shift_rate: Traceable = 1.0,
    start: Literal["everybody", "cohort"] = "everybody",
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "rows",
    server_optimizer: optax.GradientTransformation | None = None,
) -> Method:
    """Returns FedDBE.

    Args:
        task: a classification whose network ends with a dense layer.
        optimizer: the local optimiser of the network, and another one of the shift.
        mean_pull: kappa, of the pull of the features' mean to M; 0 is none, and needs no M.
        mean_momentum: mu, of a client's mean, above 0 and at most 1: the mean of the last batch alone.
        shift_rate: factor of the learning rate of z; 0 keeps it at 0.
        start: whose features M is the mean of: those of `"everybody"`, trained before the first round, or of the first
            round's `"cohort"`, trained at its beginning, so that no other rows are read.
        local_epochs: E, also of the training for M.
        batch_size: B; None takes all of a client's rows at once.
        weighting: of the network's average, and of M: `"rows"` (n_i / n) or `"uniform"` (1 / m).
        server_optimizer: takes the server's step on the network, see `jaxfl.server`; None takes the average.

    Raises:
        ValueError: an option is out of range, or the network does not end with a dense layer.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.MLP(hidden=(16,), num_classes=10), data)
    >>> result = jaxfl.run(feddbe(task, optax.sgd(0.1), mean_pull=1.0), data, rounds=2, cohort=4, seed=0)
    >>> result.state.shifts.shape, int(result.state.shifts.any(1).sum()), result.state.mean.shape
    ((8, 16), 6, (16,))
    """
    _check_arguments(mean_pull, mean_momentum, shift_rate)
    passes = {"local_epochs": local_epochs, "batch_size": batch_size}
    local_train(task, optimizer, **passes)  # refuses what is out of range
    head = find_head(task, "feddbe")
    shifted = shifted_task(task, head)
    server_optimizer = optimizers.beside(server_optimizer, task.averages)
    local = of_parts(optimizer, optax.chain(optimizer, optax.scale(shift_rate)))
    source = None if is_zero(mean_pull) else start  # without a pull nothing reads M
    alone = of_parts(optimizer, optax.set_to_zero())

    def zero_features(model: Params) -> Array:
        """Returns zeros `[d]` of the parameters' type, float32 or wider."""
        return jnp.zeros(head.features, head.weights(model)[0].dtype)

    def consensus(key: Key, model: Params, data: FederatedData, cohort: Cohort) -> tuple[Array, Array]:
        """Returns M of a cohort, and whether it is known: whether any client counts."""

        def client(shared, client: Array):
            key, model, data = shared
            zero, own_key = zero_features(model), key_for(key, Stream.START, client=client)
            train = local_train(training_task(shifted, task, head, zero, 0.0, mean_momentum), alone, **passes)
            honest = conduct.for_unsent_training(own_key, data)
            trained, _ = train(own_key, {"net": model, "shift": zero, MEAN: zero}, honest, client)
            weight = aggregate.client_weight(data, client, weighting)
            return aggregate.contribute(trained[MEAN], jnp.where(tree.is_finite(trained), weight, 0)), ()

        total, _ = over_clients(client, (key, model, data), cohort)
        return tree.take(aggregate.mean(total, empty=zero_features(model)[None]), 0), total.weight[0] > 0

    def init(key: Key, data: FederatedData) -> FedDBEState:
        model, count = task.init(key_for(key, Stream.INIT)), data.num_clients
        mean, known = zero_features(model), jnp.array(False)
        if source == "everybody":
            everybody = dataclasses.replace(all_clients(model, data), mask=base.takes_part(data))
            mean, known = consensus(key, model, data, everybody)
        clients = jnp.arange(count, dtype=jnp.int32)
        moments = optimizers.init(server_optimizer, model)
        return FedDBEState(model, tree.repeat(zero_features(model), count), mean, known, moments, clients, jnp.int32(0))

    def client(shared, client: Array, shift: Array):
        key, (model, mean, known, round), data = shared
        pull = jnp.where(known, mean_pull, 0)
        train = local_train(training_task(shifted, task, head, mean, pull, mean_momentum), local, **passes)
        client_key = key_for(key, Stream.BATCHES, round, client)
        trained, loss = train(client_key, {"net": model, "shift": shift, MEAN: zero_features(model)}, data, client)
        finite = tree.is_finite(trained)
        weight = jnp.where(finite, aggregate.client_weight(data, client, weighting), 0)
        return aggregate.contribute(trained["net"], weight, start=model), trained["shift"], loss, finite

    def round(key: Key, state: FedDBEState, data: FederatedData, cohort: Cohort) -> tuple[FedDBEState, Info]:
        mean, known = state.mean, state.known
        if source == "everybody":
            refuse_noise('start="everybody"', "M is of a sum without noise; take mean_pull=0, which needs no M")
        if source == "cohort":
            refuse_wire('start="cohort"', 'its first cohort sends mean features as well; take start="everybody"')
            mean, known = jax.lax.cond(known, lambda: (mean, known), lambda: consensus(key, state.model, data, cohort))
        passed = over_rows(client, (key, (state.model, mean, known, state.round), data), cohort, state.shifts)
        model, moments = optimizers.step_to_mean(server_optimizer, state.server, state.model, passed.sums)
        info = personal_info(passed, cohort, data.num_clients, model)
        if source == "everybody":
            info = add_exchange(info, state.round == 0, data, up=mean, down=(model, mean))
        if source == "cohort":  # M goes down with the network: clients that are sampled later do not have it
            clients = cohort.mask.sum()
            up, down = (base.traffic(number, mean) for number in (jnp.where(state.known, 0, clients), clients))
            info = info._replace(bytes_up=info.bytes_up + up, bytes_down=info.bytes_down + down)
        return FedDBEState(model, passed.rows, mean, known, moments, state.cluster, state.round + 1), info

    def client_params(state: FedDBEState, ids: Array) -> Params:
        return {"net": base.serve_one(state.model, ids), "shift": tree.take(state.shifts, ids)}

    reads = "everybody" if source == "everybody" else "cohort"
    return Method(init, round, client_params, shifted, reads=reads, per_client="shifts")


def of_parts(
    network: optax.GradientTransformation, shift: optax.GradientTransformation
) -> optax.GradientTransformation:
    """Returns the optimiser of a network by one optimiser and of a shift by another; the client's mean has no step."""
    parts = {"net": network, "shift": shift, MEAN: optax.set_to_zero()}
    return optax.multi_transform({**parts}, {name: name for name in parts})


def add_shift(shift: Array) -> Callable[[Array], Array]:
    """Returns `x -> x + z` of features `[B, d]`."""
    return lambda x: x + shift[None].astype(x.dtype)


def moving_mean(before: Array, features: Array, mask: Array, momentum: float | Array) -> Array:
    """Returns r `[d]` after a batch: `(1 - mu) r + mu mean_B(x)`, over the real rows.

    Args:
        before: r `[d]`, through which no gradient goes.
        features: x `[B, d]`.
        mask: bool `[B]`.
        momentum: mu.
    """
    found = jax.vmap(masked_mean, (1, None))(features, mask)
    return (1 - momentum) * jax.lax.stop_gradient(before) + momentum * found


def half_mean_square(mean: Array, target: Array) -> Array:
    """Returns half of the mean of the squared differences `[]`.

    >>> float(half_mean_square(jnp.array([1.0, 3.0]), jnp.array([0.0, 1.0])))
    1.25
    """
    return jnp.square(mean - target).mean() / 2


def shifted_task(task: Task, head: Head) -> Task:
    """Returns the task of a model `{"net", "shift" [d]}`: a network whose head gets x + z.

    Args:
        task: of the network.
        head: of the network.
    """
    tested, trained = (with_features(fn, head) for fn in (task.outputs, task.loss))

    def init(key: Key) -> Params:
        model = task.init(key)
        return {"net": model, "shift": jnp.zeros(head.features, head.weights(model)[0].dtype)}

    def outputs(model: Params, batch: Batch) -> Array:
        return tested(model["net"], batch, change=add_shift(model["shift"])).value

    def loss(model: Params, batch: Batch, key: Key | None = None) -> Array:
        return trained(model["net"], batch, key, change=add_shift(model["shift"])).value

    return with_loss(task, loss, joint_averages(task, loss))._replace(init=init, outputs=outputs)


def training_task(
    shifted: Task, task: Task, head: Head, target: Array, pull: float | Array, momentum: float | Array
) -> Task:
    """Returns the task of a model `{"net", "shift", "mean"}` for training: the value of the loss, without the pull's.

    Args:
        shifted: `shifted_task` of the task.
        task: of the network.
        head: of the network.
        target: M `[d]`.
        pull: kappa.
        momentum: mu.
    """
    look = with_features(task.loss, head)

    def loss(model: Params, batch: Batch, key: Key | None = None) -> Array:
        seen = look(model["net"], batch, key, change=add_shift(model["shift"]))
        mean = moving_mean(model[MEAN], seen.features.astype(target.dtype), batch.mask, momentum)
        more = (pull * half_mean_square(mean, target)).astype(seen.value.dtype)
        new_mean = assigned_by_gradient(model[MEAN], jax.lax.stop_gradient(mean)).astype(seen.value.dtype)
        return seen.value + (more - jax.lax.stop_gradient(more)) + new_mean

    # the mean is of a whole batch: a gradient is not put together from blocks of rows
    return with_loss(shifted, loss, joint_averages(task, loss, frozenset({MEAN})))._replace(whole=True)


def _check_arguments(mean_pull: float, mean_momentum: float, shift_rate: float) -> None:
    """Raises ValueError if an argument is out of range; NaN is."""
    for name, value, none in (("mean_pull", mean_pull, "no pull"), ("shift_rate", shift_rate, "no shift")):
        if is_known(value) and not 0 <= value < math.inf:
            raise ValueError(f"{name} must be at least 0 and finite, got {value}; 0 is {none}.")
    if is_known(mean_momentum) and not 0 < mean_momentum <= 1:
        raise ValueError(
            f"mean_momentum must be above 0 and at most 1, got {mean_momentum}; 1 is the mean of the last batch."
        )
