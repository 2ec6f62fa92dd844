"""What StoCFL knows a client by: a vector that says where its data pull a fixed model, the anchor.

Zeng et al., "Stochastic Clustered Federated Learning", 2023, section 3.1: `Psi(D) = Normalize(grad of loss(psi; D))`,
the full-batch gradient at the anchor psi. The official code takes the displacement instead, anchor minus the model
after some local epochs, and does not normalise it; one full-batch epoch is a gradient step, which has the gradient's
direction. Clients are comparable only by the same anchor, loss and number of epochs; dropout is off.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

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
from jaxfl.methods.parts.vectors import to_vector
from jaxfl.random import Stream, key_for
from jaxfl.tasks import Task, without_dropout
from jaxfl.typing import Array, Key, Params

RepresentationKind = Literal["gradient", "displacement"]


class Representation(NamedTuple):
    """What a client sends of itself.

    Attributes:
        psi: `(key, anchor, data, client) -> Psi [d]`; 0, similar to nobody, for a client without rows or where it is
            not finite.
        agreement: `(key, anchor, halves, client) -> []`, 2 <a, b> / (|a|^2 + |b|^2) of the representations of the two
            `halves` of a client's rows, before they are normalised: 1 without noise, 0 if they are nothing but noise,
            NaN where they are not finite.
    """

    psi: Callable[[Key, Params, FederatedData, Array], Array]
    agreement: Callable[[Key, Params, tuple[FederatedData, FederatedData], Array], Array]


class Observation(NamedTuple):
    """What the clients of a cohort send of themselves; 0 from those who are not asked."""

    psi: Array  # [C, d]
    agreement: Array  # [C], 0 unless it is asked for


Observe = Callable[[Key, Params, FederatedData, Cohort, Array], Observation]


@schema.checked
def represent(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    kind: RepresentationKind = "gradient",
    epochs: int = 10,
    batch_size: int | None = None,
    size: int | None = 4096,
    normalise: bool = True,
) -> Representation:
    """Returns the representation of single clients.

    Args:
        task: what the anchor has learned, or has not: an initial model will do.
        optimizer: of the displacement's local epochs.
        kind: `"gradient"` (the paper) or `"displacement"` (the official code).
        epochs: of the displacement.
        batch_size: of the displacement; None takes all of a client's rows at once.
        size: numbers kept; a longer vector is sketched (see `clustering.sketch`), with an error of a cosine of about
            `1 / sqrt(size)`. None keeps it whole.
        normalise: Psi to length 1; otherwise long vectors weigh more in a cluster.

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
        raise ValueError(f"representation_size must be at least 1, got {size}; none keeps all numbers.")
    if epochs < 1:
        raise ValueError(f"representation_epochs must be at least 1, got {epochs}.")
    still = without_dropout(task)
    gradient_of = full_gradient(still)
    train = local_train(still, optimizer, local_epochs=epochs, batch_size=batch_size)

    def vector(key: Key, anchor: Params, data: FederatedData, client: Array, part: int = 0) -> Array:
        own = key_for(key, Stream.REPRESENTATION, part, client)  # no round: a client sends it once
        if kind == "gradient":
            _, found = gradient_of(anchor, data, client, own)
        else:
            # as many steps of one length for all clients, be they late or sampled late: others would not compare
            even = replace(data, rate=None, stragglers=None)
            model, _ = train(own, anchor, even, client, anchor=anchor)
            found = jax.tree.map(jnp.subtract, anchor, model)
        return tree.ravel(found) if size is None else to_vector(key, found, size=size)

    def psi(key: Key, anchor: Params, data: FederatedData, client: Array) -> Array:
        found = vector(key, anchor, data, client)
        norm = jnp.linalg.norm(found)
        usable = (norm > 0) & jnp.isfinite(norm)  # inf / inf would be a NaN in the sums of every cluster
        scale = jnp.where(usable, norm, 1) if normalise else jnp.ones((), found.dtype)
        return jnp.where(usable, found / scale, 0)

    def agreement(key: Key, anchor: Params, halves: tuple[FederatedData, FederatedData], client: Array) -> Array:
        one, other = (vector(key, anchor, half, client, part) for part, half in enumerate(halves))
        power = jnp.square(one).sum() + jnp.square(other).sum()
        alike = jnp.where(power > 0, 2 * (one * other).sum() / jnp.where(power > 0, power, 1), 0)
        return jnp.where(jnp.isfinite(power), alike, jnp.nan).astype(jnp.float32)

    return Representation(psi, agreement)


def observing(representation: Representation, *, agreement: bool) -> Observe:
    """Returns `observe(key, anchor, data, cohort, wanted [C]) -> Sent`: what those of a cohort send who are wanted.

    Args:
        representation: from `represent`.
        agreement: whether they send that of the halves of their rows too.
    """

    def observe(key: Key, anchor: Params, data: FederatedData, cohort: Cohort, wanted: Array) -> Observation:
        halves = ()
        if agreement:  # a round without newcomers sorts no rows
            split = functools.partial(divide_rows, key, data.train, 0.5)
            halves = jax.lax.cond(wanted.any(), split, functools.partial(zeros_like_result, split))
            halves = tuple(replace(data, train=half) for half in halves)

        def client(shared, client: Array, wanted: Array):
            key, anchor, data, halves = shared

            def sent() -> Observation:
                alike = (
                    representation.agreement(key, anchor, halves, client) if agreement else jnp.zeros((), jnp.float32)
                )
                return Observation(representation.psi(key, anchor, data, client), alike)

            return (), jax.lax.cond(wanted, sent, functools.partial(zeros_like_result, sent))

        def everybody() -> Observation:
            return over_clients(client, (key, anchor, data, halves), cohort, wanted)[1]

        # clients side by side all compute what one of them does: a round without newcomers computes nothing
        return jax.lax.cond(wanted.any(), everybody, functools.partial(zeros_like_result, everybody))

    return observe


def zeros_like_result(made: Callable[[], Any]) -> Any:
    """Returns zeros in the place of every array that `made()` returns."""
    return jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), jax.eval_shape(made))


def represent_clients(
    representation: Representation, key: Key, anchor: Params, data: FederatedData, plan: Plan | None = None
) -> Array:
    """Returns Psi of every client `[N, d]`.

    Args:
        representation: from `represent`.
        key: of the run; decides the sketch, the batches of a displacement, and an attacker's noise.
        anchor: the model.
        data: the federation.
        plan: how many clients are worked on side by side; None takes one at a time.
    """

    return _representation_program(representation, plan or Plan(chunk=1))(key, anchor, data.on_device())


@functools.lru_cache(4)  # of a few models, one after another: each call of its own would compile again
def _representation_program(
    representation: Representation, plan: Plan
) -> Callable[[Key, Params, FederatedData], Array]:
    """Returns the program of `of_clients`."""

    def run(key: Key, anchor: Params, data: FederatedData) -> Array:
        def client(shared, client: Array):
            key, anchor, data = shared
            return (), representation.psi(key, anchor, data, client)

        everybody = Cohort.of(range(data.num_clients), plan)
        return over_clients(client, (key, anchor, data), everybody)[1]

    return engine.jit(run)


def check_points(points: np.ndarray | Array) -> np.ndarray:
    """Returns representations `[N, d]` as float32.

    Raises:
        ValueError: they are not vectors of at least two clients, or a number is not finite.
    """
    rows = np.asarray(points, np.float32)
    if rows.ndim != 2 or len(rows) < 2 or not rows.shape[1]:
        raise ValueError(
            f"points must be vectors [N, d] of at least 2 clients, got shape {rows.shape}; give a row for each client."
        )
    if not np.isfinite(rows).all():
        raise ValueError(
            f"points must be finite, got {int((~np.isfinite(rows)).any(1).sum())} clients with NaN or infinity; leave "
            "them out."
        )
    return rows
