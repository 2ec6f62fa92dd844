"""pFedGraph: a model for each client, mixed from those of similar clients by a graph that the server infers.

Ye, Ni, Wu, Chen and Wang, "Personalized Federated Learning with Inferred Collaboration Graphs", ICML 2023. Client i has
a model theta_i, w^0 at first. In a round, every sampled client i

    theta'_i <- E epochs of SGD from theta_i on f_i(theta) - lambda <c_i, theta> / ||theta||     # the term: from its
                                                                                               # second round on
and with D_i = theta'_i - w^0, s_ij = cos(D_i, D_j), or 1 where that is above 0.9, and p_j = n_j / n of the cohort, the
server computes

    W_i      <- argmin over convex weights of alpha ||W_i - p||^2 - <s_i, W_i>
    theta_i  <- sum_j W_ij theta'_j
    c_i      <- sum_j W_ij theta'_j / ||theta'_j||

The minimum is the projection of p + s_i / (2 alpha) onto the simplex, in closed form. Clients whose cosines all exceed
the threshold have W_i = p: FedAvg, with a pull. Late in training models may have moved so far from w^0 together that
this happens. With a small alpha a client may be alone: local training. `pull_to="model"` is the official code's
variant "approx": c_i = theta_i / ||theta_i||, which needs no second tree.

Clients that are not sampled keep theta_i and c_i. Those that have never trained, held out or new, are served the mean
of all trained theta_j, weighted by the rows of their last rounds: the paper has no rule, and this one is ours. Clients
without rows and diverged ones are outside of the graph.

Where the official code differs: the term has the other sign, so that models are turned away from their direction
(`preset="official"`, or `pull_side="away"`). The paper's text was not available; an open issue of the code's repository
says that equation (1) has the sign above. Its setting: every client takes part, 400 or 200 steps of B = 64, SGD of rate
0.01 with momentum 0.9 and weight decay 1e-5, 50 rounds, 10 clients; lambda 0.01, alpha 0.8; all layers are compared, or
the dense ones. Its score is the test accuracy in the round of a client's best validation accuracy.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.corrections import directional_pull
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.clustering.simplex import project
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.personal import mix_rows, moved_mean, over_rows
from jaxfl.methods.parts.vectors import compared_leaves
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked, is_known, is_zero
from jaxfl.server.flight_context import refuse_asynchronous
from jaxfl.tasks import Task, without_averages
from jaxfl.tasks.contract import averages_of
from jaxfl.typing import Array, Key, Params

PullSide = Literal["towards", "away"]
PRESETS = {"paper": {"pull_side": "towards"}, "official": {"pull_side": "away"}}


class Collaborator(NamedTuple):
    """A client's model and the direction that it is turned to."""

    model: Params  # theta_i
    direction: Params  # c_i, zeros before its first round; () where it is not stored
    rows: Array  # [] float32, n_i in its last round; 0 before its first


class PFedGraphState(NamedTuple):
    """A model and a direction for each client, and what those before their first round are served."""

    own: Collaborator  # [N, ...]
    initial: Params  # w^0
    mean: Params  # of the trained models, weighted by rows; w^0 at first
    rows: Array  # [] float32, the sum of these weights
    cluster: Array  # [N] int32, every client in a slot of its own
    round: Array  # [] int32


@server_sees(Seen("updates", "the personal model of each client"))
@checked
def pfedgraph(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    preset: Literal["paper", "official"] = "paper",
    concentration: Traceable = 0.8,
    pull: Traceable = 0.01,
    pull_to: Literal["directions", "model"] = "directions",
    pull_side: PullSide | None = None,
    layers: str | Sequence[str] = ".*",
    threshold: Traceable | None = 0.9,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
) -> Method:
    """Returns pFedGraph.

    Args:
        task: what is learned.
        optimizer: the local optimiser; its state starts fresh in every round.
        preset: `"paper"` or `"official"`, the value of `pull_side`.
        concentration: alpha, above 0; the larger it is, the closer all models are to FedAvg's.
        pull: lambda; 0 switches the local term off.
        pull_to: the direction that a client's model is turned to: the mixed `"directions"` of the cohort, or that of
            the mixed `"model"` (the official code's variant).
        pull_side: whether it is turned `"towards"` the direction, or `"away"` from it (the official code).
        layers: patterns (see `tree.matching`) of the parameters that are compared, or `"last kernel"`; all by default.
        threshold: the cosine above which two models count as equal; None counts cosines as they are.
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.

    Raises:
        ValueError: an option is out of range, or a pattern matches no parameter.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(pfedgraph(task, optax.sgd(0.1)), data, rounds=2, cohort=4, seed=0)
    >>> result.state.own.model["Dense_0"]["kernel"].shape
    (8, 64, 10)
    """
    if is_known(concentration) and not 0 < concentration < math.inf:  # nor NaN
        raise ValueError(f"concentration must be above 0 and finite, got {concentration}; 0.8 is usual.")
    if is_known(pull) and not 0 <= pull < math.inf:
        raise ValueError(f'pull must be at least 0 and finite, got {pull}; pull_side="away" is the other sign.')
    if threshold is not None and is_known(threshold) and not -1 <= threshold <= 1:
        raise ValueError(f"threshold must be from -1 to 1, got {threshold}; it is a cosine, and None is none.")
    compared = compared_leaves(task, layers)
    pulls, stored = not is_zero(pull), not is_zero(pull) and pull_to == "directions"
    side = base.from_preset(PRESETS, preset, pull_side=pull_side)["pull_side"]
    turning = directional_pull(pull if side == "towards" else -pull)
    local = optax.chain(turning, optimizer) if pulls else optimizer
    train = local_train(task, local, local_epochs=local_epochs, batch_size=batch_size)

    def length_of(model: Params) -> Array:
        """Returns the norm of the parameters that are trained."""
        return tree.norm(without_averages(averages_of(task), model))

    def init(key: Key, data: FederatedData) -> PFedGraphState:
        model, count = task.init(key_for(key, Stream.INIT)), data.num_clients
        own = Collaborator(model, jax.tree.map(jnp.zeros_like, model) if stored else (), jnp.float32(0))
        clients = jnp.arange(count, dtype=jnp.int32)
        return PFedGraphState(tree.repeat(own, count), model, model, jnp.float32(0), clients, jnp.int32(0))

    def client(shared, client: Array, own: Collaborator):
        key, round, data = shared
        extra = {}
        if stored:
            extra = {"direction": own.direction}
        elif pulls:
            length = length_of(own.model)
            factor = jnp.where((own.rows > 0) & (length > 0), 1 / jnp.where(length > 0, length, 1), 0)
            extra = {"direction": jax.tree.map(lambda leaf: leaf * factor.astype(leaf.dtype), own.model)}
        trained, loss = train(key_for(key, Stream.BATCHES, round, client), own.model, data, client, **extra)
        return (), own._replace(model=trained), loss, tree.is_finite(trained)

    def round(key: Key, state: PFedGraphState, data: FederatedData, cohort: Cohort) -> tuple[PFedGraphState, Info]:
        refuse_asynchronous("pfedgraph", "it compares the models of a round, of one start; take fedper")
        passed = over_rows(client, (key, state.round, data), cohort, state.own)
        size = data.train.size[cohort.ids].astype(jnp.float32)
        valid = cohort.mask & passed.finite & (size > 0)
        size = jnp.where(valid, size, 0)
        before = tree.take(state.own, cohort.ids)
        sent = tree.take(passed.rows, cohort.ids).model  # [C, ...], finite: rows of diverged clients stay
        changes = jax.tree.map(lambda leaf, start: leaf - start[None], sent, state.initial)
        graph = collaboration_graph(changes, size, valid, concentration, threshold, compared)
        mixed, direction = mix_rows(graph, sent), ()
        if stored:  # of the models divided by their norms, which are the weights' here
            lengths = jax.vmap(length_of)(sent)
            direction = mix_rows(graph / jnp.where(lengths > 0, lengths, 1)[None], sent)
        found = Collaborator(mixed, direction, size)
        own = tree.put(passed.rows, jnp.where(valid, cohort.ids, data.num_clients), found)

        old = jnp.where(valid, before.rows, 0)
        total = state.rows + (size - old).sum()
        mean = moved_mean(state.mean, total, before.model, mixed, old, size)
        one = base.shape_of(sent)
        info = base.info(
            cohort,
            passed.loss,
            cohort.ids,
            num_clusters=data.num_clients,
            diverged=passed.diverged,
            up=one,
            down=(one, one) if stored else one,
        )
        return PFedGraphState(own, state.initial, mean, total, state.cluster, state.round + 1), info

    def client_params(state: PFedGraphState, ids: Array) -> Params:
        own = tree.take(state.own, ids)
        return tree.where(own.rows > 0, own.model, base.serve_one(state.mean, ids))

    def shortfall(state: PFedGraphState, data: FederatedData, participation: base.Participation) -> str:
        return base.trained_once(participation, "models")

    return Method(init, round, client_params, task, per_client="own", shortfall=shortfall)


def collaboration_graph(
    changes: Params,
    size: Array,
    valid: Array,
    concentration: float | Array,
    threshold: float | Array | None,
    compared: Params,
) -> Array:
    """Returns W `[C, C]`, whose rows are convex weights; rows and columns of invalid clients are 0.

    Args:
        changes: D_i `[C, ...]`, finite.
        size: n_i `[C]`.
        valid: bool `[C]`.
        concentration: alpha.
        threshold: the cosine above which two models count as equal, or None.
        compared: bool for every leaf: whether it is compared.

    >>> changes, three = {"w": jnp.array([[1.0, 0.0], [0.96, 0.28], [-0.6, 0.8]])}, jnp.ones(3, bool)
    >>> graph = collaboration_graph(changes, jnp.array([5.0, 3.0, 2.0]), three, 0.8, 0.9, {"w": True})
    >>> graph.round(3).tolist()
    [[0.6..., 0.4..., 0.0], [0.6..., 0.4..., 0.0], [0.115..., 0.07..., 0.815...]]
    """
    part = tree.partition(changes, compared)[0]
    lengths = jax.vmap(tree.norm)(part)  # [C]
    units = jax.tree.map(lambda leaf: leaf / tree.along(jnp.where(lengths > 0, lengths, 1), leaf), part)
    flat = [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(units)]
    cosines = sum(jnp.matmul(leaf, leaf.T, precision="highest") for leaf in flat)  # [C, C]
    equal = jnp.eye(len(valid), dtype=bool)
    if threshold is not None:
        equal |= cosines > threshold
    similarity = jnp.where(equal, 1, cosines)
    size = size.astype(similarity.dtype)
    shares = size / jnp.where(size.sum() > 0, size.sum(), 1)
    graph = jax.vmap(lambda one: project(shares + one / (2 * concentration), valid))(similarity)
    return jnp.where(valid[:, None], graph, 0)
