"""FedNova: normalised averaging, an average of updates per unit of local progress.

Wang, Liu, Liang, Joshi and Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization", NeurIPS 2020. Where clients make unequal numbers of steps K_i, FedAvg and FedProx minimise another
objective, the sum of p_i K_i f_i. With p_i = n_i / n, n the rows of the sampled clients, client i

    y_i <- K_i local steps from x;    d_i = (x - y_i) / s_i,    s_i = eta |a_i|_1
    x   <- x - tau * sum_i p_i d_i,   tau = sum_i p_i s_i

a_i has the weight of each of its gradients in y_i: s_i is the distance that the optimiser moves in K_i steps along a
gradient of 1 (`jaxfl.client.steps.displacement`), eta K_i for SGD; the paper's formulas for momentum and for a proximal
term are special cases. So each client's share of the change is p_i for any number of steps, and with equal K_i it is
FedAvg: always with full batches and without stragglers. Weight decay is part of the gradient.

Notation: tau_i of the paper is K_i, tau_eff is tau / eta. The paper counts floor(E n_i / B) steps; here the partial
batch of an epoch is a step too. The equations are those of the official code; they were not compared with the paper's.

Where the official code differs (`preset="official"`): with a proximal term, tau = eta sum_i p_i K_i. With a proximal
term and momentum together it applies its formulas of a_i for the one and for the other one after the other, which is
right for neither, and adds the pull to the momentum; here s_i is exact, and the pull is added to the gradient. A
server's momentum (its `gmf`) is `server_optimizer=optax.sgd(1.0, momentum=gmf)`.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.corrections import proximal_pull
from jaxfl.client.steps import Epochs, displacement, mean_gradient, step_count
from jaxfl.client.training import local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.averaging import AveragingState, initial
from jaxfl.methods.base import Info, Method
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked, is_zero
from jaxfl.server import aggregate, optimizers
from jaxfl.server.wire_context import refuse_wire
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key

NO_WIRE = "a client sends an update and its scale, and a channel that changes one of them falsifies the other"
PRESETS: dict[str, dict[str, Any]] = {"paper": {"tau_eff": "norm"}, "official": {"tau_eff": "steps"}}


@server_sees(Seen("sums", "the sum of the normalised updates and of their scales"))
@checked
def fednova(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    preset: Literal["paper", "official"] = "paper",
    tau_eff: Literal["norm", "steps"] | None = None,
    proximal_weight: Traceable = 0.0,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "rows",
    server_optimizer: optax.GradientTransformation | None = None,
) -> Method:
    """Returns FedNova.

    Args:
        task: what is learned.
        optimizer: the local optimiser: SGD, with momentum, weight decay or a schedule. Its state starts fresh in every
            round.
        preset: `"paper"` (`tau_eff="norm"`) or `"official"` (`tau_eff="steps"`).
        tau_eff: length of the server's step: `"norm"`, the mean of s_i; or `"steps"`, with a pull, eta times the
            clients' mean number of steps. Without a pull both are the same.
        proximal_weight: mu, the pull to the global model, FedProx in FedNova; 0 is no pull.
        local_epochs: E; the official experiments use 2, or a random number of them.
        batch_size: B; None takes all of a client's rows at once, the official experiments use 32.
        weighting: p_i: `"rows"` (n_i / n, the paper) or `"uniform"` (1 / m).
        server_optimizer: takes the server's step, see `jaxfl.server`; None takes the paper's.

    Raises:
        ValueError: an option is out of range, or the optimiser does more than add and scale.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(fednova(task, optax.sgd(0.1), batch_size=8), data, rounds=2, cohort=4, seed=0)
    >>> int(result.state.round)
    2
    """
    by_steps = base.from_preset(PRESETS, preset, tau_eff=tau_eff)["tau_eff"] == "steps"
    counts = by_steps and not is_zero(proximal_weight)  # steps in place of s_i
    local = optax.chain(proximal_pull(proximal_weight), optimizer)
    train = local_train(task, local, local_epochs=local_epochs, batch_size=batch_size)
    displaced = displacement(task, optimizer, pull=proximal_weight)
    server_optimizer = optimizers.beside(server_optimizer, task.averages)

    def client(shared, client: Array):
        key, state, data = shared
        client_key = key_for(key, Stream.BATCHES, state.round, client)
        trained, loss = train(client_key, state.model, data, client, anchor=state.model)
        steps = step_count(client_key, data, client, local_epochs, batch_size)
        far = displaced(steps, data.rate)
        change = mean_gradient(optax.tree.sub(state.model, trained), far)
        if counts:
            far = jax.tree.map(lambda eta: eta * steps.astype(eta.dtype), displaced(jnp.int32(1), data.rate))
        # running averages make no steps: their mean is FedAvg's
        far = jax.tree.map(lambda leaf: jnp.where(leaf > 0, leaf, 1), far)
        return aggregate.contribute((change, far), aggregate.client_weight(data, client, weighting)), loss

    def round(key: Key, state: AveragingState, data: FederatedData, cohort: Cohort) -> tuple[AveragingState, Info]:
        refuse_wire("fednova", NO_WIRE)
        total, loss = over_clients(client, (key, state, data), cohort)
        nothing = jax.tree.map(jnp.zeros_like, total.values)
        change, far = tree.take(aggregate.mean(total, empty=nothing), 0)
        average = jax.tree.map(lambda x, slope, length: x - length * slope, state.model, change, far)
        counted = total.weight[0] > 0
        model, moments = optimizers.step(server_optimizer, state.server, state.model, average, counted=counted)
        info = base.info(
            cohort,
            loss,
            jnp.zeros(cohort.ids.shape, jnp.int32),
            num_clusters=1,
            diverged=total.diverged,
            up=(model, state.round),  # and one number, that of its steps
            down=model,
        )
        return AveragingState(model, moments, state.cluster, state.round + 1), info

    return Method(initial(task, server_optimizer), round, lambda state, ids: base.serve_one(state.model, ids), task)
