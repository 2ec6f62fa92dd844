"""Wired methods: methods whose contributions go through a channel and an aggregator.

A round of a wired method is traced while its wire is set (see `jaxfl.server.wire_context`). The engine then gives each
pass over the clients to the wire, which changes what a client contributes:

    v_i  <-  channel(w_i - w)       w is what the client has received, the `start` of its contribution
    w_i  <-  w + v_i

The contributions of one pass are one message. An aggregator R (see `jaxfl.server.aggregators`) needs all of them at
once, `[C, d]`; in place of its sums the method then gets

    sum_i c_i w_i  ->  sum_i c_i (w + R(v_1, v_2, ...))       c_i is the weight of a client

so that its means, its server's optimiser and its weights go on. Of several contributions of a client (FedEM's K models,
but SCAFFOLD's model with its control is one) each is aggregated by itself. Nothing else of the method is changed: its
weights, its clusters, and the records that clients send beside (losses, distances, sketches, representations), which
are of the update as it was.

Colluding attackers (see `jaxfl.wire.attacks`) need all updates at once as well. They send theirs through the channel,
too, and the honest updates that they know are those which the channel has changed.

With privacy the server gets noisy sums of bounded updates, see `jaxfl.wire.privacy`, and all clients weigh the same.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import tree
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.data.conditions import CANARY
from jaxfl.methods.base import Info, Method, Round, clients_to_train
from jaxfl.random import Stream, key_for
from jaxfl.schema import quoted
from jaxfl.server import aggregate
from jaxfl.server.aggregate import Contribution, Total
from jaxfl.server.aggregators import Aggregator, Krum, NormBound, OfCoordinates
from jaxfl.server.flight_context import active_flight
from jaxfl.server.wire_context import activated
from jaxfl.typing import Array, Key, Params
from jaxfl.wire.attacks import Collusion, collusion_of
from jaxfl.wire.canaries import Canaries, canaries_of
from jaxfl.wire.channel import CodeSize, Transform, chain, clip
from jaxfl.wire.clipping import clipped, is_finite
from jaxfl.wire.memory import Memory, Remembering, remember, with_memory
from jaxfl.wire.privacy import Privacy, PrivateRounds, RoundPrivacy, bounded, check_privacy, noised, signal_to_noise

SMALLEST_SUM = "smallest_sum"  # the clients of the smallest sum of a round, in `info.extra`
SIGNAL_TO_NOISE = "snr"  # of a round with noise, the least of its exchanges, in `info.extra`


def wired(
    method: Method,
    *,
    channel: Transform | None = None,
    error_feedback: bool = False,
    aggregator: Aggregator | NormBound | None = None,
    min_sum: int = 1,
    privacy: Privacy | None = None,
) -> Method:
    """Returns the method with clients that send their updates through a channel, to a server with a robust aggregator.

    What is exchanged before the first round, and what clients download, is unchanged. `bytes_up` counts the code, and
    `info.extra["smallest_sum"]` is of how many clients the smallest sum of the round is, by cluster and exchange: the
    sum of one client is its update.

    Args:
        method: any method whose server adds up contributions; the outermost one, such as Ditto and not its solver.
        channel: a link of `jaxfl.wire`, or several, joined by `jaxfl.wire.chain`; None sends updates as they are.
        error_feedback: whether a client adds what the channel has left out to its next message, see
            `jaxfl.wire.memory`: the state then has as many numbers for each client as it sends in a round.
        aggregator: of `jaxfl.wire`, such as `jaxfl.wire.median()`; None is the method's own mean. The updates of a
            cohort `[C, d]` are then in memory at once, but for `jaxfl.wire.norm_bound(1.0)`.
        min_sum: sums of fewer clients are dropped, as by secure aggregation with this threshold; a cluster without a
            sum is unchanged in the round.
        privacy: client-level differential privacy, for methods whose server sees nothing but sums: messages are clipped
            after the channel, all clients weigh the same, and every sum is noisy. `jaxfl.run` draws the cohorts by
            Poisson sampling, and the summary has epsilon. `info.extra["snr"]` is the ratio of signal to noise, see
            `jaxfl.wire.privacy.signal_to_noise`.

    Raises:
        TypeError: `channel` is not a link, or `aggregator` is not a function.
        ValueError: `min_sum` is below 1, `error_feedback` is True without a channel, or `privacy` is given with an
            aggregator, with `min_sum` or with error feedback; or in the first round, if `min_sum` is above the clients
            of a cohort, if the method or one of its options takes no wire or no noise, or if the channel's error may be
            longer than a message and cannot be fed back.
    """
    check_min_sum(min_sum)
    if error_feedback and channel is None:
        raise ValueError(
            "error_feedback must be False without a channel, got True: nothing is left out; give a channel, such as "
            "jaxfl.wire.top_k(0.01)."
        )
    if channel is None and aggregator is None and min_sum == 1 and privacy is None:
        return method
    check_privacy(privacy, method, aggregator=aggregator, min_sum=min_sum, error_feedback=error_feedback)
    if channel is not None and not isinstance(channel, Transform):
        raise TypeError(f"channel must be a link of jaxfl.wire, got {quoted(channel)}; jaxfl.wire.qsgd(8) is one.")
    if isinstance(aggregator, NormBound) and error_feedback:
        raise ValueError(
            "error_feedback must be False with a norm bound, got True: clients do not know what the server cuts off; "
            "add jaxfl.wire.clip to the channel in place of the bound."
        )
    if isinstance(aggregator, NormBound):  # shortened one by one, by the server and with the same result
        bound = clip(aggregator.radius)
        channel, aggregator = bound if channel is None else chain(channel, bound), None
    if aggregator is not None and not callable(aggregator):
        raise TypeError(f"aggregator must be a function, got {quoted(aggregator)}; jaxfl.wire.median() is one.")

    def check_cohort(cohort: Cohort) -> None:
        if min_sum > cohort.ids.shape[0]:
            raise ValueError(
                f"min_sum must be at most the clients of a cohort ({cohort.ids.shape[0]}), got {min_sum}: every sum "
                "would be dropped; lower min_sum or take a larger cohort."
            )

    def check(data: FederatedData, cohort: int) -> None:
        method.check(data, cohort)
        if isinstance(aggregator, Krum):
            attack = None if data.attack is None or data.attack.kind == CANARY else data.attack
            attackers = 0 if attack is None else int(np.sum(attack.attacker))
            aggregator.check(attackers, int(clients_to_train(data).sum()), cohort)

    def round(key: Key, state: Any, data: FederatedData, cohort: Cohort) -> tuple[Any, Info]:
        check_cohort(cohort)
        return round_wire(key, state, data).run(method.round, key, state, data, cohort)

    def round_wire(key: Key, state: Any, data: FederatedData) -> _RoundWire:
        attackers = collusion_of(data), canaries_of(method, key, state, data)
        if privacy is not None and attackers[0] is not None:
            raise ValueError(
                f"attack must not be of several clients together with noise, got {attackers[0].kind}: what each sends "
                "would not be clipped by itself; take sign-flip, or leave noise out."
            )
        of_round, averages = None, method.task.averages
        if privacy is not None:
            names = frozenset() if averages is None else averages.names
            of_round = RoundPrivacy(privacy, key_for(key, Stream.NOISE, state.round), names)
        key = key_for(key, Stream.WIRE, state.round)
        return _RoundWire(channel, aggregator, min_sum, key, *attackers, of_round)

    def lengths(key: Key, state: Any, data: FederatedData) -> list[tuple[int, Any] | None]:
        """Returns the length and type of the message of each pass; None where nothing is contributed."""
        wire = _RoundWire(channel, None, 1, key, None)  # traced with a few clients, and not compiled
        few = Cohort.of(jnp.arange(min(data.num_clients, 2)))
        jax.eval_shape(functools.partial(wire.run, method.round), key, state, data, few)
        check_error(channel, [wire.lengths[number][0] for number in wire.lengths])
        return [wire.lengths.get(number) for number in range(wire.passes)]

    def round_with_memory(
        key: Key, state: Any, data: FederatedData, cohort: Cohort, memory: Memory
    ) -> tuple[Any, Info, Memory]:
        check_cohort(cohort)
        wire = round_wire(key, state, data)
        wire.memory = list(memory)
        state, info = wire.run(method.round, key, state, data, cohort)
        return state, info, tuple(wire.memory)

    if error_feedback:
        return with_memory(method._replace(check=check), Remembering(lengths, round_with_memory))
    if privacy is None:
        return method._replace(round=round, check=check)

    def with_noise(noise: float) -> Method:
        return wired(method, channel=channel, privacy=dataclasses.replace(privacy, noise=noise, epsilon=None))

    def count_releases(key: Key, state: Any, data: FederatedData, cohort: Cohort) -> int:
        releases = []

        def trace(key: Key, state: Any, data: FederatedData, cohort: Cohort) -> Any:
            wire = round_wire(key, state, data)
            made = wire.run(method.round, key, state, data, cohort)
            releases.append(wire.releases)
            return made

        jax.eval_shape(trace, key, state, data, cohort)
        return releases[0]

    return method._replace(round=round, privacy=PrivateRounds(privacy, round, with_noise, count_releases))


def attacked(method: Method) -> Round:
    """Returns the round of a method with a wire where attackers need one, see `jaxfl.wire.attacks` and `canaries`.

    In other federations it is the round as it is, and a wired method has its own wire.
    """

    def wire_if_attacked(key: Key, state: Any, data: FederatedData, cohort: Cohort) -> tuple[Any, Info]:
        collusion, canaries = collusion_of(data), canaries_of(method, key, state, data)
        if collusion is None and canaries is None:
            return method.round(key, state, data, cohort)
        wire = _RoundWire(None, None, 1, key, collusion, canaries, given=False)
        return wire.run(method.round, key, state, data, cohort)

    return wire_if_attacked


def check_min_sum(min_sum: int) -> None:
    """Raises ValueError unless a smallest number of clients is at least 1."""
    if isinstance(min_sum, bool) or not isinstance(min_sum, int) or min_sum < 1:
        raise ValueError(f"min_sum must be a whole number of at least 1, got {min_sum}; 1 drops no sum.")


def check_error(channel: Transform | None, lengths: Sequence[int]) -> None:
    """Raises ValueError if a channel's error cannot be fed back, since it may be longer than a message.

    Args:
        channel: of the clients; None is refused elsewhere.
        lengths: numbers of the messages of a round.
    """
    if channel is None:
        return
    for numbers in lengths:
        if (error := channel.error(numbers)) >= 1:
            raise ValueError(
                f"error_feedback must be False with a channel whose squared error may be {error:.3g} times that of a "
                f"message of {numbers:,} numbers, got True: the memory would grow without end; take topk or sign, "
                "topk in front of qsgd, or more bits."
            )


class _Collected(NamedTuple):
    """One contribution without its sum, of one client or, stacked, of a cohort."""

    update: Array  # [d], 0 of what does not count or is not finite
    weight: Array  # []
    counts: Array  # [] bool: it has a weight and a cluster
    finite: Array  # [] bool
    cluster: Array  # [] int32


class _RoundWire:
    """The wire of one round, while the round is traced.

    Args:
        channel: see `wired`.
        aggregator: see `wired`.
        min_sum: see `wired`.
        key: of the round.
        collusion: the colluding attackers, if there are any.
        canaries: the canaries, if there are any.
        privacy: of the round, if there is noise.
        given: False for a wire that is there for the attackers alone, and gives way to one of the method.
    """

    changes_sums = True

    def __init__(
        self,
        channel: Transform | None,
        aggregator: Aggregator | None,
        min_sum: int,
        key: Key,
        collusion: Collusion | None,
        canaries: Canaries | None = None,
        privacy: RoundPrivacy | None = None,
        *,
        given: bool = True,
    ):
        self.channel, self.aggregator, self.min_sum, self.key = channel, aggregator, min_sum, key
        self.collusion, self.canaries, self.given = collusion, canaries, given
        self.privacy, self.is_noisy = privacy, privacy is not None
        self.name = "a wire" if given else f"attack={CANARY if collusion is None else collusion.kind}"
        self.passes, self.releases = 0, 0  # all, and those with contributions
        self.memory: list[Any] | None = None  # of each pass: what clients have left out [N, d]; or None
        self.lengths: dict[int, tuple[int, Any]] = {}  # of the messages of each pass with contributions, and their type
        self.ratios: list[Array] = []  # of signal to noise of each pass [] float32
        self.smallest: list[Array] = []  # of each contribution: the clients of its smallest sum [] int32

    def run(self, round: Round, key: Key, state: Any, data: FederatedData, cohort: Cohort) -> tuple[Any, Info]:
        """Returns the state and the info after a round of a method on this wire."""
        if active_flight() is not None:
            self._check_asynchronous()
        with activated(self):
            state, info = round(key, state, data, cohort)
        if not self.smallest:
            if SMALLEST_SUM in info.extra:  # of the method's own wire
                return state, info
            what = "to be wired" if self.given else f"for {self.name}"
            raise ValueError(
                f"method must send contributions {what}, got one whose clients send none; run it without {self.name}."
            )
        extra = {**info.extra, SMALLEST_SUM: jnp.stack(self.smallest).min()}
        extra |= {SIGNAL_TO_NOISE: jnp.stack(self.ratios).min()} if self.ratios else {}
        return state, info._replace(extra=extra)

    def _check_asynchronous(self) -> None:
        """Raises ValueError if the wire needs all messages of a round, which must have one start."""
        found = {
            "aggregator": self.aggregator is not None,
            "noise": self.privacy is not None,
            "min_sum": self.min_sum > 1,
            self.name: self.collusion is not None or self.canaries is not None,
        }
        if given := [name for name, there in found.items() if there]:
            raise ValueError(
                f"asynchronous must be none with {given[0]}, which is of the messages of one round, from one model; "
                "compress and clip are of each message."
            )

    def over(self, run: Callable, fn: Callable, shared: Any, cohort: Any, own: Any, rows: Sequence[Params]) -> tuple:
        """Returns a pass over the clients, whose contributions go through the channel and the aggregator."""
        number, self.passes = self.passes, self.passes + 1
        if self.canaries is not None:
            fn, shared = self.canaries.around(fn, shared)
        memory = None if self.memory is None else self.memory[number]

        def client(given: tuple[Any, Key], client: Array, *rows: Any) -> tuple:
            shared, key = given  # an argument: devices refuse values of a trace that they do not get as one
            held = None
            if memory is not None:
                (mine, held), *given_rows = rows
                rows = tuple(given_rows) if own is None else (mine, *given_rows)
            sums, kept, *row = fn(shared, client, *rows)
            many, structure = jax.tree.flatten(sums, is_leaf=aggregate.is_contribution)
            members = [_memberships(one) for one in many]
            if many and self.channel is not None:
                self.lengths[number] = _length(many)  # the same however often it is traced
                many, held = send(self.channel, key_for(key, Stream.WIRE, number, client), many, held)
            if memory is not None:
                row = [(row[0] if row else None, held)]
            if many and self.privacy is not None:
                many = bounded(many, [_full_start(one) for one in many], self.privacy)
            collected = []
            if self.aggregator is not None or self.collusion is not None:
                many, collected = map(list, zip(*map(_collect, many), strict=True)) if many else ([], [])
            if active_flight() is None:
                many = [dataclasses.replace(one, start=None) for one in many]
            return jax.tree.unflatten(structure, many), (kept, collected, members), *row

        both = own if memory is None else (own, memory)
        sums, (kept, collected, members), both = run(client, (shared, self.key), cohort, both, rows)
        if self.memory is None or memory is None:
            own = both
        else:
            own, self.memory[number] = both
        totals, structure = jax.tree.flatten(sums, is_leaf=lambda node: isinstance(node, Total))
        if collected and self.collusion is not None:
            collected = self._forged(self.collusion, collected, [len(total.weight) for total in totals], cohort, number)
        if collected:
            totals = [self._aggregated(*parts, cohort) for parts in zip(totals, collected, strict=True)]
        self.releases += bool(totals)
        if totals and self.privacy is not None:
            sums, totals = totals, noised(totals, self.privacy, number, cohort)
            self.ratios.append(signal_to_noise(sums, self.privacy.privacy))
        totals = [self._large_enough(*parts, cohort.mask) for parts in zip(totals, members, strict=True)]
        return jax.tree.unflatten(structure, totals), kept, own

    def _forged(
        self, collusion: Collusion, many: Sequence[_Collected], sums: Sequence[int], cohort: Cohort, number: int
    ) -> list[_Collected]:
        """Returns what a cohort has contributed `[C, ...]`, with the updates of colluding attackers forged.

        What they send goes through the channel as well, all contributions as one message.

        Args:
            collusion: the attackers.
            many: each contribution of the pass.
            sums: K of each contribution.
            cohort: the clients.
            number: of the pass.
        """
        forged, forges = [], jnp.zeros(cohort.ids.shape, bool)
        for one, count in zip(many, sums, strict=True):
            labels = jnp.where(one.counts & one.finite & cohort.mask, one.cluster, -1)
            updates = _by_coordinate(one.update, cohort.plan.mesh)
            update, attacks = collusion.forge(updates, labels, cohort.ids, count)
            forged, forges = [*forged, update[:, : one.update.shape[1]]], forges | attacks
        if (channel := self.channel) is not None:
            keys = jax.vmap(lambda client: key_for(self.key, Stream.WIRE, number, client))(cohort.ids)
            received = jax.vmap(lambda key, update: _unravel(channel.change(key, tree.ravel(update)), update))
            forged = received(keys, forged)
        return [
            one._replace(update=jnp.where(forges[:, None], update, one.update))
            for one, update in zip(many, forged, strict=True)
        ]

    def _large_enough(self, total: Total, members: Array, mask: Array) -> Total:
        """Returns the sums without those of fewer than `min_sum` clients.

        Args:
            total: the sums.
            members: `[C, K]` bool, which sums each client is in.
            mask: `[C]` bool, False for padding.
        """
        clients = (members & mask[:, None]).sum(0, dtype=jnp.int32)  # [K]
        most = jnp.iinfo(jnp.int32).max
        smallest = jnp.where(clients > 0, clients, most).min()
        self.smallest.append(jnp.where(smallest == most, 0, smallest))
        if self.min_sum == 1:
            return total
        enough = clients >= self.min_sum
        values = tree.where(enough, total.values, jax.tree.map(jnp.zeros_like, total.values))
        return dataclasses.replace(total, values=values, weight=jnp.where(enough, total.weight, 0))

    def _aggregated(self, starts: Total, many: _Collected, cohort: Cohort) -> Total:
        """Returns the sums of a cohort: of its updates, or as if all contributed their start plus the aggregate.

        Args:
            starts: the sums of what the clients have received.
            many: what each client has contributed `[C, ...]`.
            cohort: the clients.
        """
        counts, count = many.counts & cohort.mask, starts.weight.shape[0]
        labels = jnp.where(counts & many.finite, many.cluster, -1)
        updates = _by_coordinate(many.update, cohort.plan.mesh)
        if self.aggregator is None:
            weights = jax.nn.one_hot(labels, count, dtype=updates.dtype) * many.weight[:, None].astype(updates.dtype)
            added = jnp.matmul(weights.T, updates, precision="highest")  # [K, d]
        else:
            robust = _on_devices(self.aggregator, updates, labels, count, cohort.plan.mesh)
            added = starts.weight[:, None].astype(robust.dtype) * robust
        rows = jax.vmap(lambda row: _unravel(row, jax.tree.map(lambda leaf: leaf[0], starts.values)))(added)
        values = jax.tree.map(jnp.add, starts.values, rows)
        return Total(values, starts.weight, (counts & ~many.finite).sum(dtype=jnp.int32))

    def num_bytes(self, message: Params) -> float:
        """Returns the bytes of a message in the channel's code."""
        if self.channel is None:
            return tree.num_bytes(message)
        return self.channel.coded(CodeSize(sum(leaf.size for leaf in jax.tree.leaves(message)))).num_bytes


def _memberships(one: Contribution) -> Array:
    """Returns which sums a client is in `[K]` bool."""
    member = one.weight > 0
    if not one.weight.ndim:
        member = member & (one.cluster == jnp.arange(one.num_clusters, dtype=one.cluster.dtype))
    return member & is_finite(one.values)


def send(
    channel: Transform, key: Key, many: Sequence[Contribution], held: Array | None = None
) -> tuple[list[Contribution], Array | None]:
    """Returns a client's contributions as the server receives them, and its memory after it.

    A contribution that is not finite is left as it is: so it is dropped and counted as ever.

    Args:
        channel: the channel.
        key: of this client and pass.
        many: the contributions of one pass, which are one message.
        held: `[d]` the client's memory, see `jaxfl.wire.memory`; None without error feedback.
    """
    starts = [_full_start(one) for one in many]
    if held is None and channel.longest is not None:
        return clipped(many, starts, channel.longest), None
    update = [_update(one) for one in many]
    vector = tree.ravel(update) if held is None else tree.ravel(update) + held
    received = channel.change(key, vector)
    sent = []
    for one, start, change in zip(many, starts, _unravel(received, update), strict=True):
        values = tree.where(tree.is_finite(one.values), jax.tree.map(jnp.add, start, change), one.values)
        sent.append(dataclasses.replace(one, values=values))
    if held is not None:
        held = remember(many, [_memberships(one).any() for one in many], vector, received, held)
    return sent, held


def _length(many: Sequence[Contribution]) -> tuple[int, Any]:
    """Returns the numbers of a message, and the type of its vector."""
    vector = jax.eval_shape(tree.ravel, [one.values for one in many])
    return vector.size, vector.dtype


def _collect(one: Contribution) -> tuple[Contribution, _Collected]:
    """Returns a client's contribution with its start in place of its values, and its update beside."""
    if one.weight.ndim:
        raise ValueError(
            "aggregator must be mean, and attack none that colludes, for clients with a weight in all clusters, such "
            "as those of fedsoft."
        )
    start, finite = _full_start(one), tree.is_finite(one.values)
    counts = (one.weight > 0) & (one.cluster >= 0) & (one.cluster < one.num_clusters)
    # zeros for what does not count: here, since of all clients together it would be one more array [C, d]
    update = tree.ravel(jax.tree.map(lambda leaf: jnp.where(counts & finite, leaf, 0), _update(one)))
    weight = jnp.where(finite, one.weight, jnp.zeros((), one.weight.dtype))
    collected = _Collected(update, weight, counts, finite, one.cluster)
    return dataclasses.replace(one, values=start, weight=weight), collected


def _by_coordinate(updates: Array, mesh: jax.sharding.Mesh | None) -> Array:
    """Returns the updates `[C, d]` of all clients with a part of the coordinates on each device, padded with zeros.

    They come with a part of the clients on each device. No device then holds more than its part of the stack, which an
    aggregator ranks or adds up where it lies.
    """
    if mesh is None:
        return updates
    padded = jnp.pad(updates, ((0, 0), (0, -updates.shape[1] % mesh.size)))
    parts = jax.sharding.PartitionSpec(None, mesh.axis_names[0])
    return jax.lax.with_sharding_constraint(padded, jax.sharding.NamedSharding(mesh, parts))


def _on_devices(
    aggregator: Aggregator, updates: Array, labels: Array, count: int, mesh: jax.sharding.Mesh | None
) -> Array:
    """Returns the aggregates `[K, d]` of updates that lie by coordinate on the devices of a mesh.

    XLA divides distances and sums as the updates lie. Ranks it would make on every device of all coordinates, since
    they are made block by block: there each device is given its own.
    """
    if mesh is None or not isinstance(aggregator, OfCoordinates):
        return aggregator(updates, labels, count)
    spec = jax.sharding.PartitionSpec
    parts = spec(None, mesh.axis_names[0])
    own = jax.shard_map(
        lambda updates, labels: aggregator(updates, labels, count),
        mesh=mesh,
        in_specs=(parts, spec()),
        out_specs=parts,
        check_vma=False,
    )
    return own(updates, labels)


def _full_start(one: Contribution) -> Params:
    """Returns what a client has received in the place of its values, and 0 where the values are an update already."""

    def full(start: Any, values: Params) -> Params:
        return jax.tree.map(jnp.zeros_like, values) if start is None else start

    return jax.tree.map(full, one.start, one.values, is_leaf=lambda node: node is None)


def _update(one: Contribution) -> Params:
    """Returns the difference between a client's values and what it has received."""
    return jax.tree.map(jnp.subtract, one.values, _full_start(one))


def _unravel(vector: Array, example: Any) -> Any:
    """Returns the parts of a vector `[d]` of `tree.ravel` in the structure, shapes and types of an example.

    Numbers after the last part are dropped.
    """
    leaves, structure = jax.tree.flatten(example)
    parts, place = [], 0
    for leaf in leaves:
        parts.append(vector[place : place + leaf.size].reshape(leaf.shape).astype(leaf.dtype))
        place += leaf.size
    return jax.tree.unflatten(structure, parts)
