"""Wired methods: methods whose contributions go through a channel before they are summed.

A round of a wired method is traced while its wire is set (see `jaxfl.server.wire_context`). The engine then gives each
pass over the clients to the wire, which changes what a client contributes:

    v_i  <-  channel(w_i - w)       w is what the client has received, the `start` of its contribution
    w_i  <-  w + v_i

The contributions of one pass are one message. Nothing else of the method is changed: its weights, its clusters, and the
records that clients send beside (losses, distances, sketches, representations), which are of the update as it was.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxfl import tree
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Info, Method
from jaxfl.random import Stream, key_for
from jaxfl.schema import quoted
from jaxfl.server import aggregate
from jaxfl.server.aggregate import Contribution
from jaxfl.server.wire_context import activated
from jaxfl.typing import Array, Key, Params
from jaxfl.wire.channel import CodeSize, Transform


def wired(method: Method, *, channel: Transform | None = None) -> Method:
    """Returns the method with clients that send their updates through a channel.

    What is exchanged before the first round, and what clients download, is unchanged. `bytes_up` counts the code.

    Args:
        method: any method whose server adds up contributions; the outermost one, such as Ditto and not its solver.
        channel: a link of `jaxfl.wire`, or several, joined by `jaxfl.wire.chain`; None returns the method itself.

    Raises:
        TypeError: `channel` is not a link.
        ValueError: in the first round, if the method or one of its options takes no wire.
    """
    if channel is None:
        return method
    if not isinstance(channel, Transform):
        raise TypeError(f"channel must be a link of jaxfl.wire, got {quoted(channel)}; jaxfl.wire.qsgd(8) is one.")

    def round(key: Key, state: Any, data: FederatedData, cohort: Cohort) -> tuple[Any, Info]:
        wire = _RoundWire(channel, key_for(key, Stream.WIRE, state.round))
        with activated(wire):
            result = method.round(key, state, data, cohort)
        if not wire.used:
            raise ValueError(
                "method must send contributions to be wired, got one whose clients send none; run it without a channel."
            )
        return result

    return method._replace(round=round)


class _RoundWire:
    """The wire of one round, while the round is traced."""

    def __init__(self, channel: Transform, key: Key):
        self.channel, self.key = channel, key
        self.passes, self.used = 0, False

    def over(self, run: Callable, fn: Callable, shared: Any, cohort: Any, own: Any, rows: Sequence[Params]) -> tuple:
        """Returns a pass over the clients, whose contributions go through the channel before they are added up."""
        number, self.passes = self.passes, self.passes + 1

        def client(given: tuple[Any, Key], client: Array, *rows: Any) -> tuple:
            shared, key = given  # an argument: devices refuse values of a trace that they do not get as one
            sums, *records = fn(shared, client, *rows)
            many, structure = jax.tree.flatten(sums, is_leaf=aggregate.is_contribution)
            if many:  # the function may be traced again, but it sends or does not
                self.used = True
                many = send(self.channel, key_for(key, Stream.WIRE, number, client), many)
            return jax.tree.unflatten(structure, many), *records

        return run(client, (shared, self.key), cohort, own, rows)

    def num_bytes(self, message: Params) -> float:
        """Returns the bytes of a message in the channel's code."""
        return self.channel.coded(CodeSize(sum(leaf.size for leaf in jax.tree.leaves(message)))).num_bytes


def send(channel: Transform, key: Key, many: Sequence[Contribution]) -> list[Contribution]:
    """Returns a client's contributions as the server receives them.

    A contribution that is not finite is left as it is: so it is dropped and counted as ever.

    Args:
        channel: the channel.
        key: of this client and pass.
        many: the contributions of one pass, which are one message.
    """
    starts = [_full_start(one) for one in many]
    update = [jax.tree.map(jnp.subtract, one.values, start) for one, start in zip(many, starts, strict=True)]
    changed = _unravel(channel.change(key, tree.ravel(update)), update)
    sent = []
    for one, start, change in zip(many, starts, changed, strict=True):
        values = tree.where(tree.is_finite(one.values), jax.tree.map(jnp.add, start, change), one.values)
        sent.append(dataclasses.replace(one, values=values, start=None))
    return sent


def _full_start(one: Contribution) -> Params:
    """Returns what a client has received in the place of its values, and 0 where the values are an update already."""

    def full(start: Any, values: Params) -> Params:
        return jax.tree.map(jnp.zeros_like, values) if start is None else start

    return jax.tree.map(full, one.start, one.values, is_leaf=lambda node: node is None)


def _unravel(vector: Array, example: Any) -> Any:
    """Returns the parts of a vector `[d]` of `tree.ravel` in the structure, shapes and types of an example."""
    leaves, structure = jax.tree.flatten(example)
    parts, place = [], 0
    for leaf in leaves:
        parts.append(vector[place : place + leaf.size].reshape(leaf.shape).astype(leaf.dtype))
        place += leaf.size
    return jax.tree.unflatten(structure, parts)
