"""Canaries: clients that audit a run, since it is known what each of them has sent, and whether it has sent at all.

A canary i has a unit vector c_i of its own, and a coin that is tossed once for the run. In every round in which it is
sampled it sends the model of its cluster plus S c_i in place of a trained one if its coin says so, and nothing
otherwise, as if it was not there. Random vectors of many entries are nearly orthogonal to each other and to all
updates, so that <c_i, last model - first model> says which canaries have sent, unless noise hides it: the fewer of them
can be told, the less the run reveals of any client. See `jaxfl.analysis.canaries`.

Reference: Andrew et al., "One-shot Empirical Privacy Estimation for Federated Learning", ICLR 2024, whose canaries are
random vectors that clients send.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.flatten_util import ravel_pytree

from jaxfl import tree
from jaxfl.data.clients import FederatedData
from jaxfl.data.conditions import CANARY
from jaxfl.methods.base import Method, served_model
from jaxfl.random import Stream, key_for
from jaxfl.server import aggregate
from jaxfl.server.aggregate import Contribution
from jaxfl.typing import Array, Key


def canary_sends(key: Key, client: Array) -> Array:
    """Returns whether a canary sends `[]` bool, by its coin.

    Args:
        key: of the run.
        client: its number.
    """
    return jax.random.bernoulli(key_for(key, Stream.ATTACK, 1, client))


def canary_vector(key: Key, client: Array, size: int) -> Array:
    """Returns the unit vector of a canary `[size]`.

    Args:
        key: of the run.
        client: its number.
        size: of the model.
    """
    vector = jax.random.normal(key_for(key, Stream.ATTACK, 0, client), (size,), jnp.float32)
    return vector / jnp.linalg.norm(vector)


@struct.dataclass
class Canaries:
    """The canaries of a run, while a round is traced."""

    canary: Array  # [N] bool
    norm: Array  # [] float32, S
    key: Key  # of the run
    size: int = struct.field(pytree_node=False)  # d, of a model

    def around(self, fn: Callable[..., tuple], shared: Any) -> tuple[Callable[..., tuple], Any]:
        """Returns the function of a pass with canaries among the clients, and what is given to every client."""

        def client(given: tuple[Any, Canaries], client: Array, *rows: Any) -> tuple:
            shared, canaries = given
            sums, kept, *row = fn(shared, client, *rows)
            many, structure = jax.tree.flatten(sums, is_leaf=aggregate.is_contribution)
            return jax.tree.unflatten(structure, canaries.sent(client, many)), kept, *row

        return client, (shared, self)

    def sent(self, client: Array, many: Sequence[Contribution]) -> Sequence[Contribution]:
        """Returns what a client contributes in a pass: what it has computed, or the message of a canary.

        Args:
            client: its number.
            many: its contributions.

        Raises:
            ValueError: they are anything but one model.
        """
        if not many:
            return many
        one, size = many[0], self.size
        leaves = jax.tree.leaves(one.start, is_leaf=lambda node: node is None)
        if len(many) > 1 or any(leaf is None for leaf in leaves) or sum(leaf.size for leaf in leaves) != size:
            raise ValueError(
                f"attack=canary needs a method whose clients send the model that they are served ({size} numbers) and "
                "nothing else; take fedavg or ifca, or another attack."
            )
        start, restored = ravel_pytree(one.start)
        sent = self.norm * canary_vector(self.key, client, size)
        values, canary = restored(start + sent.astype(start.dtype)), self.canary[client]
        absent = canary & ~canary_sends(self.key, client)
        return [
            dataclasses.replace(
                one,
                values=tree.where(canary, values, one.values),
                weight=jnp.where(absent, jnp.zeros_like(one.weight), one.weight),
            )
        ]


def canaries_of(method: Method, key: Key, state: Any, data: FederatedData) -> Canaries | None:
    """Returns the canaries of a run; None in a federation without them.

    Args:
        method: the method.
        key: of the run.
        state: of the method, or its shapes.
        data: the federation.
    """
    if data.attack is None or data.attack.kind != CANARY:
        return None
    size = sum(leaf.size for leaf in jax.tree.leaves(served_model(method, state)))
    return Canaries(jnp.asarray(data.attack.attacker), jnp.asarray(data.attack.scale), key, size)
