"""FedDyn: dynamic regularisation, a linear and a quadratic term that align local optima with the global one.

Acar, Zhao, Matas Navarro, Mattina, Whatmough and Saligrama, "Federated Learning Based on Dynamic Regularization", ICLR
2021. Client i stores h_i, which starts at 0. In a round, the clients of the cohort S train from theta

    theta_i <- argmin_v f_i(v) + alpha <h_i, v> + (alpha / 2) ||v - theta||^2,    by E epochs of SGD:
               v <- v - eta * (grad f_i(v) + alpha * (v - theta + h_i))
    h_i     <- h_i + (theta_i - theta)
    h       <- h + (1 / N) sum_S (theta_i - theta)
    theta   <- (1 / |S|) sum_S theta_i + h

So h is the mean of all h_i, and the server does not need the h_i. After an exact local solve
grad f_i(theta_i) = -alpha h_i: where theta stays, the h_i sum to zero, and so do the gradients. Early on theta goes too
far and may test much worse than the mean of theta_i; with a small alpha h grows too large, and the run may diverge (see
`info.extra["history"]`, the norm of h). Plain steps need `eta * (alpha + curvature) < 2`.

Notation: the paper's h is -alpha h here, and its local gradients are -alpha h_i; the authors say so in issue 3 of their
repository. N counts the clients with rows that are not held out; for clients that arrive or leave, see
`methods.parts.everybody`. The equations are those of the official code; they were not compared with the paper's
algorithm.

Where the official code differs (`preset="official"`): alpha_i = alpha / (n_i N / n), n all rows, so that small clients
are pulled harder and the objective weighs by rows; and its examples test neither theta nor the mean over S, but that of
all clients' last theta_i (`served="everybody"`), for which a model of each client is stored. It also clips gradients at
norm 10 and decays weights by 0.001, which `optimizer` can do.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.corrections import gradient_correction, proximal_pull
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_owners
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts import everybody
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked
from jaxfl.server import aggregate
from jaxfl.server.flight_context import refuse_asynchronous
from jaxfl.server.wire_context import refuse_noise, refuse_wire
from jaxfl.tasks import Task, without_averages
from jaxfl.typing import Array, Key, Params

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"pull": "equal", "served": "sent"},
    "official": {"pull": "rows", "served": "everybody"},
}


class ClientTerms(NamedTuple):
    """The regularisation term and the last model of each client."""

    history: Params  # [N, ...] h_i
    last: Params  # [N, ...] theta_i of the client's last round; None unless the mean of these is served


class FedDynState(NamedTuple):
    """One model for all, and the sums of the clients' updates."""

    model: Params  # theta
    history: Params  # h
    served: Params
    counted: everybody.Counted  # the weights of the mean h
    rows: ClientTerms  # [N, ...]
    cluster: Array  # [N] int32, all 0
    round: Array  # [] int32


@server_sees(Seen("sums", "the sum of the updates"))
@checked
def feddyn(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    preset: Literal["paper", "official"] = "paper",
    proximal_weight: Traceable = 0.01,
    pull: Literal["equal", "rows"] | None = None,
    served: Literal["sent", "average", "everybody"] | None = None,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
) -> Method:
    """Returns FedDyn.

    `info.extra` has `history []`, the norm of h.

    Args:
        task: what is learned.
        optimizer: the local optimiser; the paper's is `optax.sgd(eta)`. Its state starts fresh in every round.
        preset: `"paper"` (`pull="equal"`, `served="sent"`) or `"official"` (`pull="rows"`, `served="everybody"`).
        proximal_weight: alpha; the official examples use 0.01. With 0 the sum of all changes is still added: it is not
            FedAvg.
        pull: `"equal"`, alpha for all clients; or `"rows"`, alpha divided by a client's rows and multiplied by the mean
            number of rows.
        served: the served model: `"sent"`, theta; `"average"`, the mean of theta_i over the last cohort; or
            `"everybody"`, the mean of all clients' last theta_i.
        local_epochs: E; the official examples use 5.
        batch_size: B; None takes all of a client's rows at once, the official examples use 50.

    Raises:
        ValueError: an option is out of range.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(feddyn(task, optax.sgd(0.1)), data, rounds=2, cohort=4, seed=0)
    >>> result.state.rows.history["Dense_0"]["kernel"].shape
    (8, 64, 10)
    """
    rule = base.from_preset(PRESETS, preset, pull=pull, served=served)
    by_rows, keeps_last = rule["pull"] == "rows", rule["served"] == "everybody"
    local = optax.chain(proximal_pull(proximal_weight), gradient_correction(), optimizer)
    train = local_train(task, local, local_epochs=local_epochs, batch_size=batch_size)

    def init(key: Key, data: FederatedData) -> FedDynState:
        model = task.init(key_for(key, Stream.INIT))
        history = jax.tree.map(jnp.zeros_like, model)
        rows = tree.repeat(ClientTerms(history, model if keeps_last else None), data.num_clients)
        clusters = jnp.zeros(data.num_clients, jnp.int32)
        return FedDynState(
            model, history, model, everybody.count_nobody(data.num_clients), rows, clusters, jnp.int32(0)
        )

    def client(shared, client: Array, own: ClientTerms):
        key, (model, mean_size, round), data = shared
        size = jnp.maximum(data.train.size[client], 1).astype(mean_size.dtype)
        scale = mean_size / size if by_rows else None
        alpha = jnp.asarray(proximal_weight if scale is None else proximal_weight * scale)
        correction = jax.tree.map(lambda h: alpha.astype(h.dtype) * h, own.history)
        terms = {"anchor": model, "correction": correction, "pull_scale": scale}
        trained, loss = train(key_for(key, Stream.BATCHES, round, client), model, data, client, **terms)
        change = optax.tree.sub(trained, model)
        contribution = change, optax.tree.sub(trained, own.last) if keeps_last else None
        weight = aggregate.client_weight(data, client, "uniform")
        history = optax.tree.add(own.history, without_averages(task.averages, change))
        counts = (weight > 0) & tree.is_finite(contribution)
        row = tree.where(counts, ClientTerms(history, trained if keeps_last else None), own)
        return aggregate.contribute(contribution, weight), loss, row

    def round(key: Key, state: FedDynState, data: FederatedData, cohort: Cohort) -> tuple[FedDynState, Info]:
        refuse_asynchronous("feddyn", "its server adds up corrections of one round; take fedprox")
        if keeps_last:
            refuse_wire(
                'served="everybody"', "it needs two updates of each client, which sends one model; take sent or average"
            )
        if by_rows:
            refuse_noise('pull="rows"', "the server sends the mean number of rows of all clients; take equal")
        model, part = state.model, base.takes_part(data)
        mean_size = jnp.where(part, data.train.size, 0).sum() / jnp.maximum(part.sum(), 1)
        shared = key, (model, mean_size, state.round), data
        total, loss, rows = over_owners(client, shared, cohort, state.rows)
        anybody = total.weight[0] > 0
        change, last = tree.take(total.values, 0)
        added = without_averages(task.averages, change)
        history, counted = everybody.update_mean(state.history, added, state.counted, total, data, cohort, "uniform")
        nothing = jax.tree.map(jnp.zeros_like, total.values)
        average = optax.tree.add(model, tree.take(aggregate.mean(total, empty=nothing), 0)[0])
        theta, average = tree.where(anybody, (optax.tree.add(average, history), average), (model, state.served))
        if keeps_last:
            first = task.init(key_for(key, Stream.INIT))  # the last models are differences to it
            before = optax.tree.sub(state.served, first)
            far, _ = everybody.update_mean(before, last, state.counted, total, data, cohort, "uniform")
            shown = tree.where(anybody, optax.tree.add(first, far), state.served)
        else:
            shown = theta if rule["served"] == "sent" else average
        info = base.info(
            cohort,
            loss,
            jnp.zeros(cohort.ids.shape, jnp.int32),
            num_clusters=1,
            diverged=total.diverged,
            up=model,
            down=model,
            history=tree.norm(history),
        )
        return FedDynState(theta, history, shown, counted, rows, state.cluster, state.round + 1), info

    return Method(init, round, lambda state, ids: base.serve_one(state.served, ids), task, per_client="rows")
