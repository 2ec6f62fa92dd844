"""StoCFL's representation of a client: the direction in which its data move a fixed model, the anchor.

Zeng et al., "Stochastic Clustered Federated Learning", 2023, section 3.1: `Psi(D) = Normalize(grad of loss(psi; D))`,
the full-batch gradient at the anchor psi. The official code takes the displacement instead, anchor minus the model
after some local epochs, and does not normalise it; one full-batch epoch is a gradient step, which has the gradient's
direction. Representations are comparable only for the same anchor, loss and number of epochs; dropout is off.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxfl import engine, schema, tree
from jaxfl.client.passes import full_gradient
from jaxfl.client.training import local_train
from jaxfl.cohort import Cohort, Plan
from jaxfl.data.clients import FederatedData
from jaxfl.data.divide import divide_rows
from jaxfl.engine import over_clients
from jaxfl.methods.parts.vectors import compared_leaves, to_vector
from jaxfl.random import Stream, key_for
from jaxfl.tasks import Task, without_dropout
from jaxfl.typing import Array, Key, Params

RepresentationKind = Literal["gradient", "displacement"]


class Representation(NamedTuple):
    """The functions that represent a client.

    Attributes:
        psi: `(key, anchor, data, client) -> Psi [d]`; 0, similar to no client, without rows or where it is not finite.
        agreement: `(key, anchor, halves, client) -> []`, 2 <a, b> / (|a|^2 + |b|^2) of the representations of the two
            `halves` of a client's rows, before they are normalised: 1 without noise, 0 if they are nothing but noise,
            NaN where they are not finite.
    """

    psi: Callable[[Key, Params, FederatedData, Array], Array]
    agreement: Callable[[Key, Params, tuple[FederatedData, FederatedData], Array], Array]


class Observation(NamedTuple):
    """The representations of a cohort's clients; 0 for clients that are not represented in this round."""

    psi: Array  # [C, d]
    agreement: Array  # [C], 0 where it is not used


Observe = Callable[[Key, Params, FederatedData, Cohort, Array], Observation]


@schema.checked
def represent(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    kind: RepresentationKind = "gradient",
    epochs: int = 10,
    batch_size: int | None = None,
    layers: str | Sequence[str] = ".*",
    size: int | None = 4096,
    normalise: bool = True,
) -> Representation:
    """Returns the representation of single clients.

    Args:
        task: of the anchor, which may be an initial model.
        optimizer: of the displacement's local epochs.
        kind: `"gradient"` (the paper) or `"displacement"` (the official code).
        epochs: of the displacement.
        batch_size: of the displacement; None takes all of a client's rows at once.
        layers: patterns (see `tree.matching`) of the parameters whose gradient, or displacement, it is, or
            `"last kernel"`.
        size: numbers of a representation; a longer vector is sketched (see `clustering.sketch`), with an error of a
            cosine of about `1 / sqrt(size)`. None takes all numbers.
        normalise: whether Psi is scaled to length 1; otherwise long vectors weigh more in a cluster.

    Raises:
        ValueError: an option is out of range or unknown.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=40)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> key = jax.random.key(0)
    >>> psi = represent_clients(represent(task, optax.sgd(0.1)), key, task.init(key), data)
    >>> psi.shape, jnp.linalg.norm(psi[0]).round(3).item()
    ((8, 650), 1.0)
    """
    if size is not None and size < 1:
        raise ValueError(f"representation_size must be at least 1, got {size}; none takes all numbers.")
    if epochs < 1:
        raise ValueError(f"representation_epochs must be at least 1, got {epochs}.")
    chosen = compared_leaves(task, layers)
    still = without_dropout(task)
    gradient_of = full_gradient(still)
    train = local_train(still, optimizer, local_epochs=epochs, batch_size=batch_size)

    def vector(key: Key, anchor: Params, data: FederatedData, client: Array, part: int = 0) -> Array:
        client_key = key_for(key, Stream.REPRESENTATION, part, client)  # no round: a client sends it once
        if kind == "gradient":
            _, direction = gradient_of(anchor, data, client, client_key)
        else:
            # without schedule and stragglers: only equal steps of all clients are comparable
            even = replace(data, rate=None, stragglers=None)
            model, _ = train(client_key, anchor, even, client, anchor=anchor)
            direction = jax.tree.map(jnp.subtract, anchor, model)
        direction, _ = tree.partition(direction, chosen)
        return tree.ravel(direction) if size is None else to_vector(key, direction, size=size)

    def psi(key: Key, anchor: Params, data: FederatedData, client: Array) -> Array:
        direction = vector(key, anchor, data, client)
        norm = jnp.linalg.norm(direction)
        finite = (norm > 0) & jnp.isfinite(norm)  # inf / inf would be a NaN in the sums of every cluster
        scale = jnp.where(finite, norm, 1) if normalise else jnp.ones((), direction.dtype)
        return jnp.where(finite, direction / scale, 0)

    def agreement(key: Key, anchor: Params, halves: tuple[FederatedData, FederatedData], client: Array) -> Array:
        first, second = (vector(key, anchor, half, client, part) for part, half in enumerate(halves))
        power = jnp.square(first).sum() + jnp.square(second).sum()
        share = jnp.where(power > 0, 2 * (first * second).sum() / jnp.where(power > 0, power, 1), 0)
        return jnp.where(jnp.isfinite(power), share, jnp.nan).astype(jnp.float32)

    return Representation(psi, agreement)


def observing(representation: Representation, *, agreement: bool) -> Observe:
    """Returns `observe(key, anchor, data, cohort, wanted [C]) -> observation` of the wanted clients of a cohort.

    Args:
        representation: from `represent`.
        agreement: whether the agreement of the halves of a client's rows is computed too.
    """

    def observe(key: Key, anchor: Params, data: FederatedData, cohort: Cohort, wanted: Array) -> Observation:
        halves = ()
        if agreement:  # a round without newcomers sorts no rows
            split = functools.partial(divide_rows, key, data.train, 0.5)
            halves = tree.where_needed(wanted.any(), split)
            halves = tuple(replace(data, train=half) for half in halves)

        def client(shared, client: Array, wanted: Array):
            key, anchor, data, halves = shared

            def observation() -> Observation:
                share = (
                    representation.agreement(key, anchor, halves, client) if agreement else jnp.zeros((), jnp.float32)
                )
                return Observation(representation.psi(key, anchor, data, client), share)

            return (), tree.where_needed(wanted, observation)

        def represent_cohort() -> Observation:
            return over_clients(client, (key, anchor, data, halves), cohort, wanted)[1]

        # under vmap the clients' own conditions compute both branches: this one skips a round without newcomers
        return tree.where_needed(wanted.any(), represent_cohort)

    return observe


def represent_clients(
    representation: Representation, key: Key, anchor: Params, data: FederatedData, plan: Plan | None = None
) -> Array:
    """Returns Psi of every client `[N, d]`.

    Args:
        representation: from `represent`.
        key: of the run; decides the sketch, the batches of a displacement, and an attacker's noise.
        anchor: the model.
        data: the federation.
        plan: chunk and devices; None computes one client at a time.
    """

    return _representation_program(representation, plan or Plan(chunk=1))(key, anchor, data.on_device())


@functools.lru_cache(4)  # for a few models: a new program would be compiled for every call
def _representation_program(
    representation: Representation, plan: Plan
) -> Callable[[Key, Params, FederatedData], Array]:
    """Returns the program of `represent_clients`."""

    def run(key: Key, anchor: Params, data: FederatedData) -> Array:
        def client(shared, client: Array):
            key, anchor, data = shared
            return (), representation.psi(key, anchor, data, client)

        everybody = Cohort.of(range(data.num_clients), plan)
        return over_clients(client, (key, anchor, data), everybody)[1]

    return engine.jit(run)


def check_points(points: np.ndarray | Array) -> np.ndarray:
    """Returns the representations `[N, d]` as float32.

    Raises:
        ValueError: `points` are not vectors of at least two clients, or a number is not finite.
    """
    rows = np.asarray(points, np.float32)
    if rows.ndim != 2 or len(rows) < 2 or not rows.shape[1]:
        raise ValueError(
            f"points must be vectors [N, d] of at least 2 clients, got shape {rows.shape}; give a row for each client."
        )
    if not np.isfinite(rows).all():
        raise ValueError(
            f"points must be finite, got {int((~np.isfinite(rows)).any(1).sum())} clients with NaN or infinity; remove "
            "these clients."
        )
    return rows
