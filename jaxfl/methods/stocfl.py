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

The paper leaves the model of a merged cluster open ("merge"): here, as in the official code, the cluster with more
members keeps its own (ties: the lower slot). Where the official code differs (`preset="official"`): Psi is the
displacement after some local epochs, not normalised; only clusters and members sampled in this round are compared; a
new cluster starts from the current omega; and omega is trained as a chain over the clients instead of in parallel,
which makes more steps in a round than any client does, and is what the paper's table 1 needs.

StoCFL starts with N clusters but holds no N models: an unseen client is nowhere, and merging precedes training, so only
clusters that have been trained own a slot.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.corrections import proximal_pull
from jaxfl.client.training import local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.data.halves import hold_back
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.averaging import fedavg
from jaxfl.methods.base import Info, Method, check_known
from jaxfl.methods.parts import merging
from jaxfl.methods.parts.joining import grow, joining, regrouping, slots_of, sums_of
from jaxfl.methods.parts.representation import represent
from jaxfl.random import Stream, key_for
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
# What an option of text may be.
KNOWN = {
    "members": ("observed", "sampled"),
    "compare": ("observed", "sampled"),
    "linkage": ("single", "greedy"),
    "merged": ("largest", "mean", "global"),
    "newcomers": ("initial", "global"),
    "keep": ("clients", "clusters"),
}


class StoCFLState(NamedTuple):
    """Slots of cluster models, the global model, and what the observed clients have sent of themselves."""

    solver: Any  # state of the method that trains omega
    initial: Params  # omega_0
    anchor: Params  # psi, where representations are taken
    models: Params  # [K, ...] theta
    representation: Array  # [N, d] Psi, 0 for clients not observed yet; or [K, d], the sums of the clusters' members
    agreement: Array  # [N] of the halves of their rows, for `threshold="auto"`
    cluster: Array  # [N] int32 slot, -1 for clients not observed yet
    round: Array  # [] int32


def stocfl(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    preset: str = "paper",
    threshold: float | Literal["auto"] = 0.5,
    proximal_weight: float = 0.05,
    local_epochs: int = 5,
    batch_size: int | None = None,
    weighting: str = "uniform",
    representation: str | None = None,
    representation_epochs: int = 10,
    representation_layers: str | Sequence[str] = ".*",
    representation_size: int | None = 4096,
    normalise: bool | None = None,
    anchor_task: Task | None = None,
    members: str | None = None,
    compare: str | None = None,
    linkage: str = "single",
    merged: str = "largest",
    newcomers: str | None = None,
    update: str | None = None,
    solver: Method | None = None,
    keep: str = "clients",
    slots: int = 16,
) -> Method:
    """Returns StoCFL.

    `info.extra` has `objective []`, equation 2: the sum of the cosines of all pairs of clusters.

    Args:
        task: what is learned; its initial model matters: PyTorch's uniform initialisation separates rotations at 0.5.
        optimizer: the local optimiser of both models.
        preset: `"paper"` or `"official"`; their values are in brackets below, in this order. What is given besides
            wins.
        threshold: tau; above 1 nothing merges (Ditto), -1 merges everything at once. `"auto"`, beyond the paper, needs
            no tuning: greedily, by cosines corrected for the noise of few rows, see `parts.merging`; a client then
            sends one number more.
        proximal_weight: lambda, the pull of the cluster models to omega.
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        weighting: `"uniform"` (the official code) or `"rows"`.
        representation: Psi, `"gradient"` or `"displacement"`: what some local epochs do to the anchor (gradient,
            displacement).
        representation_epochs: of the displacement.
        representation_layers: patterns (see `tree.matching`) of the parameters compared, or `"last kernel"`.
        representation_size: numbers kept of each Psi; a longer one is sketched (see `clustering.sketch`), with an error
            of a cosine of about `1 / sqrt(representation_size)`. None keeps it whole.
        normalise: whether Psi has length 1 (yes, no).
        anchor_task: of another, for example smaller, anchor model, on the same federation; None takes omega_0.
        members: whose mean represents a cluster, all `"observed"` members or those `"sampled"` in this round
            (observed, sampled).
        compare: clusters that may merge, all `"observed"` ones or those with a member `"sampled"` in this round
            (observed, sampled).
        linkage: `"single"`, all pairs at once, or `"greedy"`: the closest pair merges and is represented anew, until
            no cosine reaches tau; `"auto"` is greedy.
        merged: the model of a merged cluster: the `"largest"` part's, the `"mean"` weighted by members, or the current
            `"global"` one.
        newcomers: where a new cluster starts, at the `"initial"` model omega_0 or the current `"global"` one (initial,
            global).
        update: of omega, `"parallel"` or as a `"chain"`, see `averaging` (parallel, chain).
        solver: trains omega: a method with one global model such as `fedprox(task, optimizer, ...)`, and with epochs,
            batches and weighting of its own; None is FedAvg with those above.
        keep: Psi of all observed `"clients"` `[N, d]`, or only the sums of `"clusters"` `[K, d]`.
        slots: cluster models held at first; the simulator doubles them when they run out.

    Raises:
        ValueError: an option is out of range or unknown, two of them contradict each other, or the solver learns
            another task.
    """
    rule = base.from_preset(
        PRESETS,
        preset,
        representation=representation,
        normalise=normalise,
        members=members,
        compare=compare,
        newcomers=newcomers,
        update=update,
    )
    rule |= {"linkage": linkage, "merged": merged, "keep": keep}
    _check(rule, threshold, weighting, slots)
    auto = threshold == "auto"
    if solver is None:
        options = {"local_epochs": local_epochs, "batch_size": batch_size, "weighting": weighting}
        solver = fedavg(task, optimizer, **options, update=rule["update"])
    elif update is not None:
        raise ValueError(f"update must be left out with a solver, which has its own, got {update!r}.")
    if not isinstance(solver, Method) or solver.task != task:
        raise ValueError(f"solver must be a method that learns stocfl's task, got {solver!r}; build it from that task.")
    global_part: Method = solver
    pulled = optax.chain(proximal_pull(proximal_weight), optimizer)
    train = local_train(task, pulled, local_epochs=local_epochs, batch_size=batch_size)
    represented = represent(
        anchor_task or task,
        optimizer,
        kind=rule["representation"],
        epochs=representation_epochs,
        batch_size=batch_size,
        layers=representation_layers,
        size=representation_size,
        normalise=rule["normalise"],
    )

    def init(key: Key, data: FederatedData) -> StoCFLState:
        model = task.init(key_for(key, Stream.INIT))
        anchor = model if anchor_task is None else anchor_task.init(key_for(key, Stream.INIT))
        psi = jax.eval_shape(represented.psi, key, anchor, data, jnp.int32(0))
        rows = data.num_clients if keep == "clients" else slots
        return StoCFLState(
            solver=global_part.init(key, data),
            initial=model,
            anchor=anchor,
            models=tree.repeat(model, slots),
            representation=jnp.zeros((rows, *psi.shape), psi.dtype),
            agreement=jnp.zeros(data.num_clients, jnp.float32),
            cluster=jnp.full(data.num_clients, -1, jnp.int32),
            round=jnp.int32(0),
        )

    def omega(state: StoCFLState) -> Params:
        return tree.take(global_part.client_params(state.solver, jnp.zeros(1, jnp.int32)), 0)

    regroup = regrouping(rule, threshold, omega)

    def observe(
        key: Key, state: StoCFLState, data: FederatedData, cohort: Cohort, wanted: Array
    ) -> tuple[Array, Array]:
        """Returns Psi `[C, d]` and, for `"auto"`, the agreement `[C]` of those of the cohort who are wanted."""
        halves = tuple(replace(data, train=half) for half in hold_back(key, data.train, 0.5)) if auto else ()

        def client(shared, client: Array, wanted: Array):
            key, anchor, data, halves = shared

            def sent() -> tuple[Array, Array]:
                agreement = represented.agreement(key, anchor, halves, client) if auto else jnp.zeros((), jnp.float32)
                return represented.psi(key, anchor, data, client), agreement

            nothing = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), jax.eval_shape(sent))
            return (), jax.lax.cond(wanted, sent, lambda: nothing)

        return over_clients(client, (key, state.anchor, data, halves), cohort, wanted)[1]

    def round(key: Key, state: StoCFLState, data: FederatedData, cohort: Cohort) -> tuple[StoCFLState, Info]:
        newcomer = cohort.mask & (state.cluster[cohort.ids] < 0) & (data.train.size[cohort.ids] > 0)
        sent = observe(key, state, data, cohort, newcomer)
        start, merged = regroup(state, data.train.size, cohort, sent, newcomer)
        solved, seen = global_part.round(key, state.solver, data, cohort)

        def client(shared, client: Array):
            key, (anchor, models, cluster, round), data = shared
            theta = tree.take(models, jnp.maximum(cluster[client], 0))
            client_key = key_for(key, Stream.BATCHES, round, client)  # the batches of the global part
            theta, loss = train(client_key, theta, data, client, anchor=anchor)
            weight = aggregate.client_weight(data, client, weighting)
            return aggregate.contribute(theta, weight, cluster[client], slots_of(state)), loss

        shared = key, (omega(state), start.models, start.cluster, state.round), data
        thetas, loss = over_clients(client, shared, cohort)
        size = merging.sizes(start.cluster, slots_of(state))
        of_theta = base.info(
            cohort,
            loss,
            start.cluster[cohort.ids],
            num_clusters=merged.num_clusters,
            diverged=jnp.maximum(thetas.diverged, seen.diverged),
            up=state.initial,
            down=state.initial,
            overflow=merged.overflow,
            objective=merging.objective(sums_of(start, start.cluster, keep), size),
        )
        once = newcomer.sum().astype(jnp.float32) * tree.num_bytes(tree.take(sent, 0))  # when first seen
        of_theta = of_theta._replace(
            bytes_up=of_theta.bytes_up + seen.bytes_up + once, bytes_down=of_theta.bytes_down + seen.bytes_down
        )
        models = aggregate.mean(thetas, empty=start.models)
        return start._replace(solver=solved, models=models, round=state.round + 1), of_theta

    def assign(key: Key, state: StoCFLState, data: FederatedData, cohort: Cohort) -> StoCFLState:
        """Serves clients that were never sampled by the cluster closest to their Psi (section 4.4, unseen clients)."""
        unseen = (state.cluster[cohort.ids] < 0) & (data.train.size[cohort.ids] > 0)
        psi, _ = observe(key, state, data, cohort, unseen)
        size = merging.sizes(state.cluster, slots_of(state))
        nearest, _ = merging.closest(psi, sums_of(state, state.cluster, keep), size)
        found = jnp.where(unseen & (size > 0).any(), nearest, state.cluster[cohort.ids])
        return state._replace(cluster=base.write_clusters(state.cluster, cohort, found))

    def client_params(state: StoCFLState, ids: Array) -> Params:
        slot = state.cluster[ids]
        own = tree.take(state.models, jnp.maximum(slot, 0))
        return tree.where(slot >= 0, own, global_part.client_params(state.solver, ids))

    join = joining(observe, threshold, keep=keep)
    return Method(init, round, client_params, task, assign, partial(grow, keep=keep), join)


def _check(rule: dict[str, Any], threshold: float | str, weighting: str, slots: int) -> None:
    """Raises ValueError if an option is unknown or out of range, or two contradict each other."""
    aggregate.check_weighting(weighting)
    for name, values in KNOWN.items():
        check_known(name, rule[name], values)
    if isinstance(threshold, str) and threshold != "auto":
        raise ValueError(f'threshold must be a number or "auto", got {threshold!r}.')
    if threshold == "auto" and not rule["normalise"]:
        raise ValueError('normalise must be on with threshold="auto", got off: noise is a share of a length of 1.')
    if slots < 1:
        raise ValueError(f"slots must be at least 1, got {slots}.")
    if rule["members"] == "sampled" and rule["compare"] == "observed":
        raise ValueError(
            'compare must be "sampled" with members="sampled", got "observed": a cluster without a sampled member has '
            "no representation then."
        )
    if rule["members"] == "sampled" and rule["keep"] == "clusters":
        raise ValueError('keep must be "clients" with members="sampled", got "clusters": sums cannot be taken apart.')
