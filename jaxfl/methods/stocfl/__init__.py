"""StoCFL, stochastic clustered federated learning.

Zeng, Hu, Liu, Yu, Wang and Xu, "Stochastic Clustered Federated Learning", 2023, Algorithm 1. The number of clusters is
found, not given. A client seen for the first time sends Psi(D_i), the normalised full-batch gradient at a fixed anchor
(omega_0), and is a cluster of its own. In a round, the server

    represents every cluster by the mean of its observed members' Psi          (line 9; the cosine ignores its scale)
    merges all clusters whose representations have a cosine >= tau             (lines 10-13: connected components)

and then the sampled clients i of cluster k train, from the models they were sent,

    theta_k^i: theta <- theta - eta * (grad f_i(theta) + lambda * (theta - omega_t))    (line 21)
    omega^i:   omega <- omega - eta * grad f_i(omega)                                   (line 22)
    omega_{t+1} <- mean of omega^i;    theta_k <- mean of theta_k^i over k's sampled members

The paper does not define the model of a merged cluster: here, as in the official code, it is the model of the part with
the most members (ties: the lower slot). Three or more clusters merge at once; the official code merges them pair by
pair, so that two small ones may outweigh the largest.

Where the official code differs (`preset="official"`): Psi is the displacement after some local epochs, not normalised;
only clusters and members sampled in this round are compared; a new cluster starts from the current omega; and omega is
trained as a chain over the clients instead of in parallel, which makes more steps in a round than any client does, and
is what the paper's table 1 needs.

StoCFL starts with N clusters but does not hold N models: an unseen client is in no cluster, and merging precedes
training, so that only trained clusters have a slot.
"""

from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxfl import tree
from jaxfl.client.corrections import proximal_pull
from jaxfl.client.steps import Epochs
from jaxfl.client.training import Train, local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.methods import base
from jaxfl.methods.averaging import Update, fedavg
from jaxfl.methods.base import Info, Method, Participation
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.by_cluster import cluster_training
from jaxfl.methods.stocfl import merging
from jaxfl.methods.stocfl.joining import joining
from jaxfl.methods.stocfl.memory import MEMORIES, StoCFLState, grow
from jaxfl.methods.stocfl.regrouping import StoCFLRule, regrouping
from jaxfl.methods.stocfl.representation import Representation, RepresentationKind, observing, represent
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked
from jaxfl.server import aggregate
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {
        "representation": "gradient",
        "normalise": True,
        "members": "observed",
        "compare": "observed",
        "newcomers": "initial",
        "update": "parallel",
    },
    "official": {
        "representation": "displacement",
        "normalise": False,
        "members": "sampled",
        "compare": "sampled",
        "newcomers": "global",
        "update": "chain",
    },
}


@server_sees(
    Seen("representations", "a gradient (Psi) of each client, when it first takes part; then sums of models"),
    Seen("updates", "Psi of each client, and its global model, which it hands on", options={"update": "chain"}),
    presets=PRESETS,
)
@checked
def stocfl(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    preset: Literal["paper", "official"] = "paper",
    threshold: Traceable | Literal["auto"] = 0.5,
    proximal_weight: Traceable = 0.05,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "uniform",
    representation: RepresentationKind | None = None,
    representation_epochs: int = 10,
    layers: str | Sequence[str] = ".*",
    representation_size: int | None = 4096,
    normalise: bool | None = None,
    anchor_task: Task | None = None,
    members: Literal["observed", "sampled"] | None = None,
    compare: Literal["observed", "sampled"] | None = None,
    linkage: Literal["single", "greedy"] = "single",
    newcomers: Literal["initial", "global"] | None = None,
    update: Update | None = None,
    keep: Literal["clients", "clusters"] = "clients",
    slots: int = 16,
) -> Method:
    """Returns StoCFL.

    `info.extra` has `objective []`, equation 2: the sum of the cosines of all pairs of clusters.

    Args:
        task: what is learned; its initial model matters: PyTorch's uniform initialisation separates rotations at 0.5.
        optimizer: the local optimiser of both models.
        preset: `"paper"` or `"official"`; their values are in brackets below, in this order. Options that are given
            replace the preset's values.
        threshold: tau, the cosine from which clusters merge; above 1 nothing merges (Ditto), -1 merges all clusters.
            `"auto"`, beyond the paper, needs no tuning: it merges greedily, by cosines corrected for the noise of few
            rows, see `stocfl.merging`; a client then sends one number more.
        proximal_weight: lambda, the pull of the cluster models to the global model omega.
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        weighting: weights of the clients in the means: `"uniform"` (the official code) or `"rows"`.
        representation: Psi, the `"gradient"` at the anchor model, or the `"displacement"` of the anchor model by some
            local epochs (gradient, displacement).
        representation_epochs: local epochs of the displacement.
        layers: patterns (see `tree.matching`) of the anchor's parameters that Psi is of, or `"last kernel"`; all by
            default.
        representation_size: numbers stored of each Psi; a longer one is sketched (see `clustering.sketch`), with an
            error of a cosine of about `1 / sqrt(representation_size)`. None stores all numbers.
        normalise: whether Psi is scaled to length 1 (yes, no).
        anchor_task: task of another, for example smaller, anchor model on the same federation; None takes omega_0.
        members: a cluster is represented by the mean of all its `"observed"` members, or of those `"sampled"` in this
            round (observed, sampled).
        compare: clusters that may merge: all `"observed"` ones, or those with a member `"sampled"` in this round
            (observed, sampled).
        linkage: `"single"` merges all pairs at once; `"greedy"` merges the closest pair and represents it anew, until
            no cosine reaches tau. `threshold="auto"` is greedy.
        newcomers: start of a new cluster: the `"initial"` model omega_0, or the current `"global"` model (initial,
            global).
        update: training of omega: `"parallel"`, or as a `"chain"`, see `averaging` (parallel, chain).
        keep: stored representations: Psi of all observed `"clients"` `[N, d]`, or only the sums of `"clusters"`
            `[K, d]`.
        slots: cluster models at the start; the simulator doubles them when they run out.

    Raises:
        ValueError: an option is out of range, or two of them contradict each other.
    """
    given = {"representation": representation, "normalise": normalise, "members": members, "compare": compare}
    chosen = base.from_preset(PRESETS, preset, **given, newcomers=newcomers, update=update)
    rule = StoCFLRule(**chosen, threshold=threshold, linkage=linkage, keep=keep)
    rule.check()
    if slots < 1:
        raise ValueError(f"slots must be at least 1, got {slots}.")
    local = {"local_epochs": local_epochs, "batch_size": batch_size}
    solver = fedavg(task, optimizer, **local, weighting=weighting, update=rule.update)
    represented = represent(
        anchor_task or task,
        optimizer,
        kind=rule.representation,
        epochs=representation_epochs,
        layers=layers,
        batch_size=batch_size,
        size=representation_size,
        normalise=rule.normalise,
    )
    train = local_train(task, optax.chain(proximal_pull(proximal_weight), optimizer), **local)
    return assemble(rule, represented, solver, train, anchor_task=anchor_task, weighting=weighting, slots=slots)


def assemble(
    rule: StoCFLRule,
    represented: Representation,
    solver: Method,
    train: Train,
    *,
    anchor_task: Task | None,
    weighting: aggregate.Weighting,
    slots: int,
) -> Method:
    """Returns StoCFL with the given rule, representation and training.

    Args:
        rule: comparison and merging of clusters, and the start of new ones.
        represented: representation of single clients.
        solver: trains omega.
        train: trains theta, pulled to its anchor, omega.
        anchor_task: see `stocfl`.
        weighting: of the clients in the mean of their cluster.
        slots: K at the start.
    """
    observe = observing(represented, agreement=rule.threshold == "auto")

    def omega(state: StoCFLState) -> Params:
        return tree.take(solver.client_params(state.solver, jnp.zeros(1, jnp.int32)), 0)

    regroup, learn = regrouping(rule, omega), cluster_training(train, weighting)

    def init(key: Key, data: FederatedData) -> StoCFLState:
        model = solver.task.init(key_for(key, Stream.INIT))
        anchor = model if anchor_task is None else anchor_task.init(key_for(key, Stream.INIT))
        psi = jax.eval_shape(represented.psi, key, anchor, data, jnp.int32(0))
        return StoCFLState(
            solver=solver.init(key, data),
            initial=model,
            anchor=anchor,
            models=tree.repeat(model, slots),
            memory=MEMORIES[rule.keep].empty(psi, data.num_clients, slots),
            agreement=jnp.zeros(data.num_clients, jnp.float32),
            cluster=jnp.full(data.num_clients, -1, jnp.int32),
            round=jnp.int32(0),
        )

    def round(key: Key, state: StoCFLState, data: FederatedData, cohort: Cohort) -> tuple[StoCFLState, Info]:
        newcomer = cohort.mask & unobserved(state, data, cohort)
        observation = observe(key, state.anchor, data, cohort, newcomer)
        start, merged = regroup(state, data.train.size, cohort, observation, newcomer)  # lines 7 to 13
        solved, omega_info = solver.round(key, state.solver, data, cohort)  # line 22
        # line 21, on the batches of the solver
        total, loss = learn(key, start.models, start.cluster, state.round, data, cohort, anchor=omega(state))
        message = observation if rule.threshold == "auto" else observation.psi
        sent = base.traffic(newcomer.sum(), tree.take(message, 0))
        # in the first round the anchor is omega_0, which every client receives
        apart = jnp.where(state.round > 0, newcomer.sum(), 0) if anchor_task is None else newcomer.sum()
        once = sent, base.traffic(apart, state.anchor)
        info = round_info(cohort, start, merged, total, loss, omega_info, once)
        models = aggregate.mean(total, empty=start.models)
        return start._replace(solver=solved, models=models, round=state.round + 1), info

    def assign(key: Key, state: StoCFLState, data: FederatedData, cohort: Cohort) -> StoCFLState:
        """Returns the state where clients never sampled have the cluster closest to their Psi (section 4.4)."""
        unseen, size = unobserved(state, data, cohort), state.sizes()
        observation = observe(key, state.anchor, data, cohort, unseen)
        closest, _ = merging.closest_clusters(observation.psi, state.sums(), size)
        found = jnp.where(unseen & (size > 0).any(), closest, state.cluster[cohort.ids])
        return state._replace(cluster=base.write_clusters(state.cluster, cohort, found))

    def client_params(state: StoCFLState, ids: Array) -> Params:
        slot = state.cluster[ids]
        models = tree.take(state.models, jnp.maximum(slot, 0))
        return tree.where(slot >= 0, models, solver.client_params(state.solver, ids))

    reads = "everybody" if rule.threshold == "auto" else solver.reads  # the rows of all clients are halved at once
    join = joining(observe, rule.threshold)

    def shortfall(state: StoCFLState, data: FederatedData, participation: Participation) -> str:
        cluster = np.asarray(state.cluster)
        observed = cluster[cluster >= 0]
        if len(observed) > 1 and len(np.unique(observed)) == 1 and (rule.threshold == "auto" or rule.threshold > -1):
            remedy = "give a threshold" if rule.threshold == "auto" else "raise threshold"
            return (
                f"All {len(observed)} clients that took part merged to one cluster, with threshold={rule.threshold}: "
                f"{remedy}."
            )
        if not 1 < len(np.unique(observed)) == len(observed) or (rule.threshold != "auto" and rule.threshold > 1):
            return ""
        if rule.threshold == "auto":
            remedy = "sample more clients, or give a threshold"
        else:
            remedy = 'lower threshold, or take "auto"'
        return (
            f"No clusters have merged, so that each of the {len(observed)} clients that took part is alone: no two "
            f"were as similar as threshold={rule.threshold}; {remedy}."
        )

    return Method(init, round, client_params, solver.task, assign, grow, join, reads, shortfall=shortfall)


def unobserved(state: StoCFLState, data: FederatedData, cohort: Cohort) -> Array:
    """Returns bool `[C]` for clients of the cohort that have rows and are in no cluster yet."""
    return (state.cluster[cohort.ids] < 0) & (data.train.size[cohort.ids] > 0)


def round_info(
    cohort: Cohort,
    state: StoCFLState,
    merged: merging.Merged,
    total: aggregate.Total,
    loss: Array,
    omega_info: Info,
    once: tuple[Array, Array],
) -> Info:
    """Returns the `Info` of a round.

    Args:
        cohort: the clients of the round.
        state: after the merge.
        merged: the result of the merge.
        total: sums of the training of theta.
        loss: of the training of theta `[C]`.
        omega_info: of the solver's round.
        once: bytes that newcomers send and receive once: their representations, and the anchor `[]`.
    """
    theta_info = base.info(
        cohort,
        loss,
        state.cluster[cohort.ids],
        num_clusters=merged.num_clusters,
        diverged=jnp.maximum(total.diverged, omega_info.diverged),
        up=state.initial,
        down=state.initial,
        overflow=merged.doublings,
        objective=merging.objective(state.sums(), state.sizes()),
    )
    return theta_info._replace(
        bytes_up=theta_info.bytes_up + omega_info.bytes_up + once[0],
        bytes_down=theta_info.bytes_down + omega_info.bytes_down + once[1],
    )
