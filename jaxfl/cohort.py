"""Who takes part in a round, and how the engine walks through them."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxfl.typing import Array


class Plan(NamedTuple):
    """How the engine walks through a cohort; static, so every plan is a program of its own.

    Attributes:
        chunk: clients trained side by side (the mapped axis); None takes the whole cohort at once.
        mesh: a `jax.sharding.Mesh` with one axis, `"clients"`, to spread the chunks over devices; None uses one device.
    """

    chunk: int | None = 1
    mesh: Any = None

    @property
    def place(self) -> Any:
        """Where what every device needs lies: on all of the mesh, or on the first device."""
        if self.mesh is None:
            return jax.local_devices()[0]
        return jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())

    @property
    def copies(self) -> int:
        """How often a memory holds what every device has: the cores of a CPU, as devices, have one together."""
        return 1 if self.mesh is None or jax.default_backend() != "cpu" else len(self.mesh.local_devices)

    def readable(self, arrays: Any) -> Any:
        """Returns arrays of a program so that each of several processes can read them whole; traceable."""
        if self.mesh is None or not self.mesh.is_multi_process:
            return arrays
        return jax.lax.with_sharding_constraint(arrays, self.place)


PlanChoice = Plan | Literal["auto"]  # what `jaxfl.engine.resolve_plan` makes a plan of
DevicesChoice = int | Literal["all"] | None  # how many of them, see there


@struct.dataclass
class Cohort:
    """The clients of one round.

    Attributes:
        ids: client ids `[C]`, int32.
        mask: False on padding `[C]`; a padded entry changes nothing.
        plan: how the engine walks through them.
    """

    ids: Array
    mask: Array
    plan: Plan = struct.field(pytree_node=False, default=Plan())

    @classmethod
    def of(cls, ids: Sequence[int] | Array, plan: Plan = Plan()) -> "Cohort":
        """Returns the cohort of these clients, all of them real.

        >>> Cohort.of([3, 1]).mask.tolist()
        [True, True]
        """
        # made on the host: on the device each length would be a program or two
        ids = jnp.asarray(ids if isinstance(ids, jax.Array) else np.asarray(ids, np.int32), jnp.int32)
        return cls(ids=ids, mask=jnp.asarray(np.ones(ids.shape, bool)), plan=plan)
