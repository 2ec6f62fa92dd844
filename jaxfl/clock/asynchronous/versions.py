"""Versions of what clients are sent, and the sums of clients that have started from different ones.

A round of a method is one pass over its clients, `engine.over_clients(fn, shared, cohort)`. What the pass is given as
`shared` is what the server sends, with the round's number; so an asynchronous round keeps the last versions of it,
gives each client that of its start, and the method's own code does the rest. Kept is what `fn` reads but the data and
the key of the run: of FedAvg the model and the round, of IFCA K models.

What a client contributes is then an update, v - w with the w that it was sent, times the weight of its staleness; the
method adds the mean of the updates to its models as they are now (`Total.relative`). Of K sums each may wait for a
number of contributions of its own: the others then keep their models, and their staleness counts the steps of the sum
that a client contributes to.

A method is refused whose clients answer more than once in a round: in between, the server would wait for all.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxfl import tree
from jaxfl.client.fast import coordinates
from jaxfl.clock.asynchronous.events import NewVersion
from jaxfl.clock.asynchronous.rule import Rule
from jaxfl.clock.work import arguments_read
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.server import aggregate
from jaxfl.server.aggregate import Contribution, Total
from jaxfl.typing import Array, Key, Params

ANSWERS = (
    "asynchronous must be none for this method, got one: its clients answer the server more than once in a round; take "
    "fedavg, fedper or ifca."
)


class Versions(NamedTuple):
    """The versions that clients in flight have started from, and what the server has not yet applied.

    Attributes:
        number: the round of each version `[S]` int32; -1 where there is none.
        sent: what `fn` reads of `shared`: each of its leaves that change, in all versions `[S, ...]`.
        steps: of each contribution, how often each of its sums had been applied, by version: `[S, K]` int32.
        applied: of each contribution, how often that is by now: `[K]` int32.
        waiting: of each contribution whose sums wait, the `Total` that is not applied yet, and of how many
            contributions it is: `[K]` int32; None of others.
    """

    number: Array
    sent: tuple[Array, ...]
    steps: tuple[Array, ...]
    applied: tuple[Array, ...]
    waiting: tuple[tuple[Total, Array] | None, ...]

    def free(self, used: Array, there: Array) -> Array:
        """Returns the place `[]` of a new version: the oldest that no client in flight needs, or the oldest of all.

        Args:
            used: the places that clients in flight have started from `[M]`.
            there: whether there is such a client `[M]` bool.
        """
        count = len(self.number)
        needed = jnp.zeros(count, bool).at[jnp.where(there, used, count)].set(True, mode="drop")
        return jnp.argmin(jnp.where(needed, self.number + 2**30, self.number)).astype(jnp.int32)


class Blank:
    """A round that is traced for the shapes of its versions alone.

    Args:
        rule: of the run.
        key: of the run.
        data: the federation in this round.
    """

    def __init__(self, rule: Rule, key: Key, data: FederatedData):
        self._rule, self._key, self._data = rule, key, data
        self._sent: list[Any] = []
        self._totals: list[Total] = []
        self.passes = 0

    def over(self, run: Callable, fn: Callable, shared: Any, cohort: Cohort, own: Any, rows: Sequence[Params]) -> tuple:
        """Returns the pass as it is, of which the shapes are noted."""
        _check_pass(self, rows)
        leaves = jax.tree.leaves(shared)
        self._sent = [jax.typeof(leaves[number]) for number in changing(fn, shared, cohort, own, self._key, self._data)]

        def client(*given: Any) -> tuple:
            sums, *rest = fn(*given)
            _check_weights(jax.tree.leaves(sums, is_leaf=aggregate.is_contribution))
            return sums, *rest

        sums, kept, own = run(client, shared, cohort, own, rows)
        self._totals = jax.tree.map(jax.typeof, _totals(sums)[0])
        if self._rule.kind == "fedasync" and any(total.weight.shape[0] > 1 for total in self._totals):
            raise ValueError(
                "asynchronous must be fedbuff for a method with several models, got fedasync, which mixes one model at "
                "each arrival; take fedbuff."
            )
        return sums, kept, own

    def versions(self) -> Versions:
        """Returns the versions of a run at its start: none."""
        places, sums = self._rule.places, [total.weight.shape[0] for total in self._totals]
        return Versions(
            jnp.full(places, -1, jnp.int32),
            tuple(_blank(places, shape, self._key) for shape in self._sent),
            tuple(jnp.zeros((places, count), jnp.int32) for count in sums),
            tuple(jnp.zeros(count, jnp.int32) for count in sums),
            tuple(map(self._nothing, self._totals)),
        )

    def _nothing(self, shapes: Total) -> tuple[Total, Array] | None:
        """Returns the sums of a contribution that wait, of nobody; None where they do not wait."""
        count = shapes.weight.shape[0]
        if self._rule.waits_for(count) == 1:
            return None
        total = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
        return dataclasses.replace(total, relative=True), jnp.zeros(count, jnp.int32)


class Flying:
    """An asynchronous round while it is traced.

    Args:
        rule: of the run.
        key: of the run.
        data: the federation in this round.
        versions: before the round.
        new: the place of this round's version `[]`, and the round `[]`.
        places: of the versions that the clients of the round have started from `[N]` int32.

    Attributes:
        versions: after the round.
        passes: over the clients.
    """

    def __init__(self, rule: Rule, key: Key, data: FederatedData, versions: Versions, new: NewVersion, places: Array):
        self._rule, self._key, self._data, self._new, self._places = rule, key, data, new, places
        self.versions = versions
        self.passes = 0

    def over(self, run: Callable, fn: Callable, shared: Any, cohort: Cohort, own: Any, rows: Sequence[Params]) -> tuple:
        """Returns the pass, in which each client works from what it was sent."""
        _check_pass(self, rows)
        versions, rule, new = self.versions, self._rule, self._new
        leaves, structure = jax.tree.flatten(shared)
        moving = changing(fn, shared, cohort, own, self._key, self._data)
        sent = tuple(kept.at[new.place].set(leaves[number]) for kept, number in zip(versions.sent, moving, strict=True))
        steps = tuple(kept.at[new.place].set(now) for kept, now in zip(versions.steps, versions.applied, strict=True))

        def client(given: tuple, client: Array, *row: Any) -> tuple:
            shared, sent, steps, applied, places = given  # as a whole: devices may have windows of the data in it
            place = places[client]
            then = jax.tree.leaves(shared)
            for number, kept in zip(moving, sent, strict=True):
                then[number] = kept[place]
            sums, kept, *after = fn(jax.tree.unflatten(structure, then), client, *row)
            many, inside = jax.tree.flatten(sums, is_leaf=aggregate.is_contribution)
            bases = [one.start for one in many]
            if rule.kind == "fedasync":  # the models as they are now: only that is computed of the second call
                again = fn(shared, client, *row)[0]
                bases = [one.start for one in jax.tree.leaves(again, is_leaf=aggregate.is_contribution)]
            members = [_sums_of(one) for one in many]
            stale = [
                (now - before[place])[jnp.clip(one.cluster, 0, one.num_clusters - 1)]
                for one, now, before in zip(many, applied, steps, strict=True)
            ]
            many = [_scaled_update(*parts) for parts in zip(many, bases, map(rule.weight, stale), strict=True)]
            return jax.tree.unflatten(inside, many), (kept, members), *after

        given = shared, sent, steps, versions.applied, self._places
        sums, (kept, members), own = run(client, given, cohort, own, rows)
        totals, inside = _totals(sums)
        parts = zip(totals, versions.waiting, versions.applied, members, strict=True)
        found = [self._applied(*part, cohort.mask) for part in parts]
        totals, waiting, applied = map(tuple, zip(*found, strict=True)) if found else ((), (), ())
        number = versions.number.at[new.place].set(new.version)
        self.versions = Versions(number, sent, steps, applied, waiting)
        return jax.tree.unflatten(inside, totals), kept, own

    def _applied(
        self, total: Total, waiting: tuple[Total, Array] | None, applied: Array, members: Array, mask: Array
    ) -> tuple[Total, tuple[Total, Array] | None, Array]:
        """Returns the sums that are applied in this round, those that wait, and how often each was applied.

        Args:
            total: of the arrivals.
            waiting: the sums that wait, and of how many contributions they are; None where they do not wait.
            applied: how often each was applied before `[K]`.
            members: the sums that each client has contributed to `[C, K]` bool.
            mask: of the cohort `[C]`.
        """
        total = dataclasses.replace(total, relative=True)
        clients = (members & mask[:, None]).sum(0, dtype=jnp.int32)
        if waiting is None:
            return total, None, applied + (clients > 0).astype(jnp.int32)
        held, before = waiting
        count = before + clients
        due = count >= self._rule.waits_for(len(count))
        values = jax.tree.map(jnp.add, held.values, total.values)
        weight = held.weight + total.weight
        nothing = jax.tree.map(jnp.zeros_like, values)
        now = dataclasses.replace(total, values=tree.where(due, values, nothing), weight=jnp.where(due, weight, 0))
        left = dataclasses.replace(held, values=tree.where(due, nothing, values), weight=jnp.where(due, 0, weight))
        return now, (left, jnp.where(due, 0, count)), applied + due.astype(jnp.int32)


def changing(fn: Callable, shared: Any, cohort: Cohort, own: Any, key: Key, data: FederatedData) -> list[int]:
    """Returns the numbers of the leaves of `shared` that a client's work reads, but those of the data and the key.

    Args:
        fn: the client function.
        shared: what it is given.
        cohort: the clients.
        own: rows of all clients; None where clients have none.
        key: of the run.
        data: the federation in this round.
    """
    fixed = {id(leaf) for leaf in jax.tree.leaves((key, data))}
    leaves = jax.tree.leaves(shared)
    row = [] if own is None else [jax.eval_shape(tree.take, own, 0)]
    with coordinates.decisions():  # they are made again where the client is run
        read = arguments_read(fn, shared, cohort.ids[0], *row)[: len(leaves)]
    pairs = zip(leaves, read, strict=True)
    return [number for number, (leaf, reads) in enumerate(pairs) if reads and id(leaf) not in fixed]


def _check_pass(flight: Blank | Flying, rows: Sequence[Params]) -> None:
    """Raises ValueError unless it is the only pass of its round, and is given nothing of an earlier one."""
    flight.passes += 1
    if flight.passes > 1 or jax.tree.leaves(tuple(rows)):
        raise ValueError(ANSWERS)


def _totals(sums: Any) -> tuple[list[Total], Any]:
    """Returns the totals of a tree of them, and its structure."""
    return jax.tree.flatten(sums, is_leaf=lambda node: isinstance(node, Total))


def _blank(places: int, shape: Any, key: Key) -> Array:
    """Returns an array of a number of versions, without content."""
    if jnp.issubdtype(shape.dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(key, (places, *shape.shape))
    return jnp.zeros((places, *shape.shape), shape.dtype)


def _sums_of(one: Contribution) -> Array:
    """Returns which sum a client contributes to `[K]` bool: one of them, or none."""
    member = one.cluster == jnp.arange(one.num_clusters, dtype=one.cluster.dtype)
    return member & (one.weight > 0) & tree.is_finite(one.values)


def _check_weights(many: Sequence[Contribution]) -> None:
    """Raises ValueError if a client contributes to several sums at once, which have had several models."""
    if any(one.weight.ndim for one in many):
        raise ValueError(
            "asynchronous must be none for this method, got one: its clients have a weight in all clusters, and start "
            "from a mean of their models; take fedem or ifca."
        )


def _scaled_update(one: Contribution, base: Any, scale: Array) -> Contribution:
    """Returns a contribution with its update in place of the values, times a scale.

    Args:
        one: the contribution.
        base: what the update is from; None, also in the place of a part, where the values are an update.
        scale: `[]`.
    """

    def scaled(start: Any, values: Params) -> Params:
        moved = values if start is None else jax.tree.map(jnp.subtract, values, start)
        return jax.tree.map(lambda leaf: scale.astype(leaf.dtype) * leaf, moved)

    values = jax.tree.map(scaled, base, one.values, is_leaf=lambda node: node is None)
    return dataclasses.replace(one, values=values, start=None)
