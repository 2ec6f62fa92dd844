"""SCAFFOLD: local steps corrected by control variates.

Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
ICML 2020. The server stores a control variate c, client i stores c_i; all start at 0. In a round, client i of the
cohort S makes K_i steps from y = x, and the server updates x and c:

    y   <- y - eta * (g_i(y) - c_i + c)
    c_i <- grad f_i(x)                      (option I)
           c_i - c + (x - y) / (eta K_i)    (option II)
    x   <- x + (eta_g / |S|) * sum_S (y_i - x)
    c   <- c + (1 / N) * sum_S (change of c_i)

So c is the mean of all c_i for any cohorts. With option II, c_i is the mean of the gradients of client i's steps;
eta K_i is computed from the optimiser (`jaxfl.client.steps.displacement`), so that with momentum it is a weighted mean.
Where all c_i are the gradients at the optimum, no client moves away from it; in FedAvg clients do. The c_i of a client
that is rarely sampled is old, and many local steps need a small eta.

Notation: K of the paper is K_i, stragglers make fewer steps; eta_l is eta. N counts the clients with rows that are not
held out; for clients that arrive or leave, see `methods.parts.everybody`. There is no official code. The equations are
those of several implementations (PFLlib, fluke, FLGo), with option II; option I and the server's rate were not compared
with the paper's algorithm.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.corrections import gradient_correction
from jaxfl.client.passes import full_gradient
from jaxfl.client.steps import Epochs, displacement, mean_gradient, step_count
from jaxfl.client.training import local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_owners
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts import everybody
from jaxfl.random import Stream, key_for
from jaxfl.schema import checked
from jaxfl.server import aggregate, optimizers
from jaxfl.server.flight_context import refuse_asynchronous
from jaxfl.tasks import Task, check_trains, without_dropout
from jaxfl.typing import Array, Key, Params

Controls = Literal["steps", "gradient"]


class ScaffoldState(NamedTuple):
    """One model for all, and the control variates."""

    model: Params  # x
    control: Params  # c
    counted: everybody.Counted  # the weights of the mean c
    controls: Params  # [N, ...] c_i
    server: optax.OptState  # of the server's optimiser
    cluster: Array  # [N] int32, all 0
    round: Array  # [] int32


@server_sees(Seen("sums", "the sum of the models and of the changes of the control variates"))
@checked
def scaffold(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    controls: Controls = "steps",
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "uniform",
    server_optimizer: optax.GradientTransformation | None = None,
) -> Method:
    """Returns SCAFFOLD.

    Args:
        task: what is learned.
        optimizer: the local optimiser; the paper's is `optax.sgd(eta)`. Its state starts fresh in every round.
        controls: new c_i: `"steps"` (option II), the mean gradient of the steps; or `"gradient"` (option I), the
            gradient of all rows at x, one more pass over them.
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        weighting: weights of models and control variates: `"uniform"` (the paper: equal weights) or `"rows"`.
        server_optimizer: takes the server's step, see `jaxfl.server`: `optax.sgd(eta_g)`; None is eta_g = 1.

    Raises:
        ValueError: an option is out of range, or with `controls="steps"` the optimiser does more than add and scale.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(scaffold(task, optax.sgd(0.1)), data, rounds=2, cohort=4, seed=0)
    >>> result.state.controls["Dense_0"]["kernel"].shape
    (8, 64, 10)
    """
    local = optax.chain(gradient_correction(), optimizer)
    train = local_train(task, local, local_epochs=local_epochs, batch_size=batch_size)
    server_optimizer = optimizers.beside(server_optimizer, task.averages)
    if controls == "gradient":
        check_trains(task, 'controls="gradient"')
        gradient_of = full_gradient(without_dropout(task))
    else:
        displaced = displacement(task, optimizer)

    def init(key: Key, data: FederatedData) -> ScaffoldState:
        model = task.init(key_for(key, Stream.INIT))
        control = jax.tree.map(jnp.zeros_like, model)
        rows = tree.repeat(control, data.num_clients)
        clusters = jnp.zeros(data.num_clients, jnp.int32)
        moments = optimizers.init(server_optimizer, model)
        return ScaffoldState(
            model, control, everybody.count_nobody(data.num_clients), rows, moments, clusters, jnp.int32(0)
        )

    def client(shared, client: Array, own: Params):
        key, (model, control, round), data = shared
        client_key = key_for(key, Stream.BATCHES, round, client)
        correction = optax.tree.sub(control, own)
        trained, loss = train(client_key, model, data, client, anchor=model, correction=correction)
        if controls == "gradient":
            gradient_key = key_for(client_key, Stream.ATTACK)  # an attacker's noise differs from that of the model
            new = gradient_of(model, data, client, gradient_key)[1]
        else:
            far = displaced(step_count(client_key, data, client, local_epochs, batch_size), data.rate)
            slope = mean_gradient(optax.tree.sub(model, trained), far)
            met = optax.tree.sub(slope, correction)
            new = jax.tree.map(lambda s, after, before: jnp.where(s > 0, after, before), far, met, own)
        contribution = trained, optax.tree.sub(new, own)
        weight = aggregate.client_weight(data, client, weighting)
        row = tree.where((weight > 0) & tree.is_finite(contribution), new, own)
        return aggregate.contribute(contribution, weight, start=(model, None)), loss, row

    def round(key: Key, state: ScaffoldState, data: FederatedData, cohort: Cohort) -> tuple[ScaffoldState, Info]:
        refuse_asynchronous("scaffold", "its control variates are corrections of one round; take fedavg")
        model, control = state.model, state.control
        total, loss, rows = over_owners(client, (key, (model, control, state.round), data), cohort, state.controls)
        average = tree.take(aggregate.mean(total, empty=tree.repeat((model, control), 1)), 0)[0]
        anybody = total.weight[0] > 0
        new, moments = optimizers.step(server_optimizer, state.server, model, average, counted=anybody)
        change = tree.take(total.values[1], 0)
        together, counted = everybody.update_mean(control, change, state.counted, total, data, cohort, weighting)
        info = base.info(
            cohort,
            loss,
            jnp.zeros(cohort.ids.shape, jnp.int32),
            num_clusters=1,
            diverged=total.diverged,
            up=(model, control),
            down=(model, control),
        )
        return ScaffoldState(new, together, counted, rows, moments, state.cluster, state.round + 1), info

    return Method(init, round, lambda state, ids: base.serve_one(state.model, ids), task, per_client="controls")
