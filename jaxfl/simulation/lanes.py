"""Lanes of a compiled program: each advances the rounds of a seed of its own."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from jaxfl import tree
from jaxfl.data.clients import FederatedData
from jaxfl.typing import Array

AXIS = "lanes"


class Lanes(NamedTuple):
    """How seeds share a program: their lanes are dealt to devices, and those of one device are mapped.

    Attributes:
        mesh: the devices, with one axis; None is one device.
        each: lanes of a device.
        own: of each array of the data, whether every lane has its own.
    """

    mesh: Any
    each: int
    own: tuple[bool, ...]

    @property
    def count(self) -> int:
        """Returns how many lanes there are."""
        return self.each * (1 if self.mesh is None else self.mesh.size)

    @property
    def place(self) -> Any:
        """Where what every lane has of its own lies."""
        return self._placed(True)

    @property
    def everywhere(self) -> Any:
        """Where what all lanes share lies."""
        return self._placed(False)

    def _placed(self, dealt: bool) -> Any:
        if self.mesh is None:
            return jax.local_devices()[0]
        return jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec(*self.mesh.axis_names * dealt))

    def most(self, number: Array) -> Array:
        """Returns the highest number of all lanes; called inside of one."""
        axes = (*((AXIS,) if self.each > 1 else ()), *(() if self.mesh is None else self.mesh.axis_names))
        return jax.lax.pmax(number, axes)

    def lift(self, advance: Callable[..., tuple]) -> Callable[..., tuple]:
        """Returns `(keys [S], states [S, ...], data, count)` of a program that advances one of them.

        Args:
            advance: `(key, state, data, count) -> (state, log, done, overflow)`. Lanes wait for each other in a round
                only where it asks for `most`.
        """

        def together(keys: Array, states: Any, data: FederatedData, count: Array) -> tuple:
            leaves, structure = jax.tree.flatten(data)

            def one(key: Array, state: Any, leaves: list[Array], count: Array) -> tuple:
                state, log, done, overflow = advance(key, state, jax.tree.unflatten(structure, leaves), count)
                return state, log, -self.most(-done), self.most(overflow)

            def alone(keys: Array, states: Any, leaves: list[Array], count: Array) -> tuple:
                mine = [leaf[0] if own else leaf for leaf, own in zip(leaves, self.own, strict=True)]
                state, log, *rest = one(keys[0], tree.take(states, 0), mine, count)
                return *jax.tree.map(lambda leaf: leaf[None], (state, log)), *rest

            axes = (0, 0, [0 if own else None for own in self.own], None)
            many = alone
            if self.each > 1:
                many = jax.vmap(one, in_axes=axes, out_axes=(0, 0, None, None), axis_name=AXIS)
            if self.mesh is not None:
                spec = jax.sharding.PartitionSpec
                mine, all = spec(*self.mesh.axis_names), spec()
                specs = (mine, mine, [mine if own else all for own in self.own], all)
                many = jax.shard_map(
                    many, mesh=self.mesh, in_specs=specs, out_specs=(mine, mine, all, all), check_vma=False
                )
            return many(keys, states, leaves, count)

        return together
