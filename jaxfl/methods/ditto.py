"""Ditto: a personal model for every client, pulled to the global one.

Li, Hu, Beirami and Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021, Algorithm 1.
Any method may train the global model w (the "solver"); beside it, in a round, every sampled client k takes steps

    v_k <- v_k - eta * (grad F_k(v_k) + lambda * (v_k - w^t))

from its own v_k, on the mini-batches of the global part, pulled to w^t, the model that was broadcast in this round (not
to the model after the round). Only v_k of sampled clients change; v_k starts at w^0. Personal models are never sent:
lambda = 0 is local training beside the solver, and w does not depend on lambda.

With several lambdas, as in the official code's dynamic choice from (0.1, 1, 2), a client takes in every step the lambda
with the lowest loss on its validation rows: a tenth of its training rows, and at least one of two or more, that neither
model is trained on.

Where the official code differs: clients that were never sampled are served their v_k = w^0 (here the global model,
unless `newcomers="initial"`); the batches of a round continue through the client's rows instead of passing over all,
and an epoch drops its last, partial batch. Clients of one training row, and so without validation rows, take the first
lambda.

Clients that arrive enter the solver by its own `join`, if it has one. Their v_k starts at w^0 like those of the others,
and until they train they are served what the solver serves them.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import engine, tree
from jaxfl.client import conduct
from jaxfl.client.corrections import proximal_pull
from jaxfl.client.passes import mean_loss
from jaxfl.client.steps import Epochs
from jaxfl.client.training import Train, local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.data.divide import divide_rows
from jaxfl.methods.averaging import fedavg
from jaxfl.methods.base import Info, Join, Method, Shortfall, keep_clusters
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.newcomers import count_new, pad_clients
from jaxfl.methods.parts.personal import RowsPass, mark_trained, over_rows
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked
from jaxfl.server.aggregate import Weighting
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

VALIDATION_SHARE = 0.1  # share of a client's training rows that choose lambda
Judge = Callable[[Params], Array]
SplitRows = Callable[[Key, FederatedData], tuple[FederatedData, FederatedData]]


class DittoState(NamedTuple):
    """The solver's state, and a model for each client."""

    solver: Any  # the state of the global part, with w
    models: Params  # [N, ...] v
    trained: Array  # [N] bool, False while v_k is w^0
    cluster: Array  # [N] int32, every client in a slot of its own
    round: Array  # [] int32


@server_sees(Seen("sums", "what the server of its solver is sent: of FedAvg, the sum of the models"))
@checked
def ditto(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    proximal_weight: Traceable | tuple[float, ...] = 1.0,
    local_epochs: Epochs = 5,
    personal_epochs: int | None = None,
    batch_size: int | None = None,
    weighting: Weighting = "uniform",
    solver: Method | None = None,
    newcomers: Literal["global", "initial"] = "global",
) -> Method:
    """Returns Ditto.

    Args:
        task: what is learned.
        optimizer: the local optimiser of the personal models, and of the global part if `solver` is None.
        proximal_weight: lambda, the pull to the global model; of several values, such as `(0.1, 1.0, 2.0)`, each client
            chooses one in every step. Plain gradient steps need `learning_rate * (lambda + curvature) < 2`. (StoCFL's
            table probably has 0.1.)
        local_epochs: E, epochs of the global part.
        personal_epochs: epochs of the personal part; None takes `local_epochs`.
        batch_size: B; None takes all of a client's rows at once.
        weighting: weights of the clients in the global average: `"uniform"` (the official code) or `"rows"`.
        solver: method that trains the global part, e.g. `fedprox(task, optimizer, ...)`, with its own epochs, batches
            and weighting; None is FedAvg with those above. With a method of several models, each client is pulled to
            its served model before the round.
        newcomers: served model of clients that have never trained: the `"global"` model, or the `"initial"` one (the
            official code).

    Raises:
        ValueError: an option is out of range, or the solver learns another task.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(ditto(task, optax.sgd(0.1)), data, rounds=2, cohort=4, seed=0)
    >>> result.state.models["Dense_0"]["kernel"].shape
    (8, 64, 10)
    """
    weights = tuple(proximal_weight) if isinstance(proximal_weight, Sequence) else (proximal_weight,)
    if not weights:
        raise ValueError(
            "proximal_weight must be a number or a tuple of at least one number, got (); 0 removes the pull."
        )
    if personal_epochs is not None and personal_epochs < 1:
        raise ValueError(f"personal_epochs must be at least 1, got {personal_epochs}.")
    if solver is None:
        solver = fedavg(task, optimizer, local_epochs=local_epochs, batch_size=batch_size, weighting=weighting)
    if solver.task != task:
        raise ValueError(
            "solver must be a method for the task given to ditto, got one for another task; make it from the same task."
        )
    shared_part: Method = solver
    pulled = best_step([optax.chain(proximal_pull(weight), optimizer) for weight in weights])
    epochs = local_epochs if personal_epochs is None else personal_epochs
    learn = personal_training(local_train(task, pulled, local_epochs=epochs, batch_size=batch_size), shared_part)

    def split_rows(key: Key, data: FederatedData) -> tuple[FederatedData, FederatedData]:
        """Returns the federation with the rows for training, and with those that choose lambda."""
        if len(weights) == 1:
            return data, data
        rest, validation = divide_rows(key, data.train, VALIDATION_SHARE)
        return replace(data, train=rest), replace(data, train=validation)

    def init(key: Key, data: FederatedData) -> DittoState:
        clients = jnp.arange(data.num_clients, dtype=jnp.int32)
        start = shared_part.init(key, split_rows(key, data)[0])
        models = shared_part.client_params(start, clients)
        return DittoState(start, models, jnp.zeros(data.num_clients, bool), clients, jnp.int32(0))

    def round(key: Key, state: DittoState, data: FederatedData, cohort: Cohort) -> tuple[DittoState, Info]:
        data, validation = split_rows(key, data)
        after, info = shared_part.round(key, state.solver, data, cohort)

        passed = learn(key, state, data, validation, cohort)
        trained = mark_trained(state.trained, passed, data, cohort)
        info = personal_round_info(info, cohort, passed, data.num_clients)
        return DittoState(after, passed.rows, trained, state.cluster, state.round + 1), info

    def assign(key: Key, state: DittoState, data: FederatedData, cohort: Cohort) -> DittoState:
        """Returns the state with the solver's assignment, for clients without a personal model."""
        return state._replace(solver=shared_part.assign(key, state.solver, data, cohort))

    def client_params(state: DittoState, ids: Array) -> Params:
        own = tree.take(state.models, ids)
        if newcomers == "initial":
            return own
        return tree.where(state.trained[ids], own, shared_part.client_params(state.solver, ids))

    def grow(state: DittoState) -> DittoState:
        return state._replace(solver=shared_part.grow(state.solver)) if shared_part.grow else state

    reads = "everybody" if len(weights) > 1 else shared_part.reads  # the rows of all clients are divided at once
    # v_k starts at w^0, which must be the same for all: methods that read all rows may have several models by then
    per_client = "models" if shared_part.reads == "cohort" else None
    grown = grow if shared_part.grow else None
    assigned = keep_clusters if shared_part.assign is keep_clusters else assign
    join = None if shared_part.join is None else joining(shared_part, shared_part.join, split_rows)
    shortfall = None if shared_part.shortfall is None else solver_shortfall(shared_part.shortfall)
    parts = Method(init, round, client_params, task, assigned, grown, join, reads, per_client, shortfall)
    return parts._replace(server_sees=shared_part.server_sees or "unknown")


def solver_shortfall(shortfall: Shortfall) -> Shortfall:
    """Returns the shortfall of the solver, of Ditto's state."""
    return lambda state, data, participation: shortfall(state.solver, data, participation)


def joining(solver: Method, enter: Join, split_rows: SplitRows) -> Join:
    """Returns `join(key, state, data, ids) -> (state, clusters [M])`: the solver's `join`; each client is a cluster.

    `data` is the federation with the new clients in it: as many as before, or more, the new ones last. The personal
    models of new clients start at the first model that the solver serves them, of the key of the run.

    Args:
        solver: trains the global part.
        enter: its `join`.
        split_rows: `(key, data) -> (training, validation)`, the federation with the rows of each part.
    """

    @functools.partial(engine.jit, static_argnames="new")
    def first_models(key: Key, data: FederatedData, new: int) -> Params:
        """Returns v_k of the last `new` clients `[M, ...]`."""
        start = solver.init(key, split_rows(key, data)[0])
        return solver.client_params(start, jnp.arange(data.num_clients - new, data.num_clients, dtype=jnp.int32))

    def join(key: Key, state: DittoState, data: FederatedData, ids: Sequence[int]) -> tuple[DittoState, Array]:
        new = count_new(state.cluster, data.num_clients)
        entered, _ = enter(key, state.solver, split_rows(key, data)[0], ids)
        if new:
            added = first_models(key, data.on_device(), new)
            state = state._replace(
                models=jax.tree.map(lambda old, more: jnp.concatenate([old, more]), state.models, added),
                trained=pad_clients(state.trained, data.num_clients),
                cluster=jnp.arange(data.num_clients, dtype=jnp.int32),
            )
        return state._replace(solver=entered), jnp.asarray(ids, jnp.int32)

    return join


def personal_round_info(info: Info, cohort: Cohort, passed: RowsPass, num_clients: int) -> Info:
    """Returns the solver's `Info` with the losses, clusters and divergence of the personal models."""
    return info._replace(
        loss=passed.loss,
        cluster=cohort.ids,
        num_clusters=jnp.int32(num_clients),
        diverged=jnp.maximum(info.diverged, passed.diverged),
    )


def personal_training(train: Train, solver: Method) -> Callable[..., RowsPass]:
    """Returns `learn(key, state, data, validation, cohort)`, which trains the personal models of a cohort.

    Args:
        train: a client's local training, which takes `judge`, see `best_step`.
        solver: trains the global part.
    """
    loss_of = mean_loss(solver.task)

    def client(shared, client: Array, model: Params):
        key, (broadcast, round), (data, validation) = shared
        anchor = tree.take(solver.client_params(broadcast, client[None]), 0)  # w^t
        own, loss = train(
            key_for(key, Stream.BATCHES, round, client),  # the batches of the global part
            model,
            data,
            client,
            anchor=anchor,
            judge=lambda candidate: loss_of(candidate, validation, client),
            rate=data.rate,
        )
        return (), own, loss, tree.is_finite(own)

    def learn(key: Key, state: DittoState, data: FederatedData, validation: FederatedData, cohort: Cohort) -> RowsPass:
        shared = key, (state.solver, state.round), (data, validation)
        return over_rows(client, shared, cohort, state.models)

    return learn


def best_step(candidates: Sequence[optax.GradientTransformation]) -> optax.GradientTransformationExtraArgs:
    """Returns the optimiser that computes the step of every candidate and takes the step with the lowest loss.

    Args:
        candidates: optimisers with states of equal structure. A single one is returned unchanged.

    Returns:
        An optimiser. Its update takes `judge`, `model -> loss []`, and `rate`, the learning-rate factor that its result
        will be multiplied with (see `jaxfl.scheduled`); other arguments are passed on. The first of equal losses wins;
        NaN never wins.

    >>> import optax
    >>> best, model, gradient = best_step([optax.sgd(0.1), optax.sgd(1.0)]), jnp.array(3.0), jnp.array(2.0)
    >>> updates, _ = best.update(gradient, best.init(model), model, judge=lambda model: (model - 1) ** 2)
    >>> float(updates)
    -2.0
    >>> longer = {"judge": lambda model: (model - 1) ** 2, "rate": jnp.array(2.0)}  # -4 goes too far
    >>> round(float(best.update(gradient, best.init(model), model, **longer)[0]), 6)
    -0.2
    """
    tried: list[Callable[..., tuple[Params, Any]]] = [optax.with_extra_args_support(c).update for c in candidates]

    def update(
        updates: Params,
        state: Any,
        params: Params = None,
        *,
        judge: Judge | None = None,
        rate: Array | None = None,
        **extra: Any,
    ):
        steps = [step(updates, state, params, **extra) for step in tried]  # of (updates, state)
        if len(steps) == 1:
            return steps[0]
        if judge is None:
            raise ValueError("judge must be given to the update, got None: it is the loss that a step is chosen by.")
        losses = jnp.stack([judge(optax.apply_updates(params, conduct.scale_updates(step, rate))) for step, _ in steps])
        best = jnp.argmin(jnp.where(jnp.isnan(losses), jnp.inf, losses))
        return jax.tree.map(lambda *leaves: jnp.stack(leaves)[best], *steps)

    return optax.GradientTransformationExtraArgs(candidates[0].init, update)
