"""What a run takes in memory, before anything is allocated."""

from typing import NamedTuple

import jax

from jaxfl import engine, sampling, tree
from jaxfl.client import factored
from jaxfl.cohort import Plan, PlanChoice
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Method, served_model
from jaxfl.sampling import cohort_size
from jaxfl.schema import checked
from jaxfl.simulation import program


class Footprint(NamedTuple):
    """Bytes that a run takes on the device; `print` it."""

    data: int
    state: int
    working: int  # beside data and state, while rounds run: the chunk's models, gradients, activations, sums
    model: int  # one model
    available: int | None
    plan: Plan
    factored: str  # whether clients train in the shorter form of `jaxfl.client.factored`, or why not

    def __str__(self) -> str:
        """Returns a small table."""
        lines = {"data": self.data, "state": self.state, "working": self.working}
        lines |= {"total": sum(lines.values()), "one model": self.model}
        lines |= {} if self.available is None else {"available": self.available}
        table = [f"{name:<10} {value / 1e6:>12,.1f} MB" for name, value in lines.items()]
        return "\n".join([*table, f"{'chunk':<10} {self.plan.chunk or 'whole':>12}", f"factored   {self.factored}"])


@checked
def footprint(
    method: Method, data: FederatedData, *, cohort: int | float = 1.0, plan: PlanChoice = "auto"
) -> Footprint:
    """Returns what a run will take, from the compiled program, before anything is allocated.

    Args:
        method: the method.
        data: the federation.
        cohort: clients of a round, a share or a count.
        plan: a `Plan` or `"auto"`.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> footprint(jaxfl.methods.fedavg(task, optax.sgd(0.1)), data).model
    2600
    """
    size = cohort_size(cohort, data)
    key = jax.random.key(0)
    state = jax.eval_shape(method.init, key, data)
    plan = engine.resolve_plan(plan, served_model(method, state), size)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), data)
    with factored.answers() as told:
        lowered = program.lower(method, key, state, shapes, size, plan, program.CAPACITY, sampling.uniform)
    model = jax.eval_shape(method.task.init, key)
    return Footprint(
        tree.num_bytes(data),
        tree.num_bytes(state),
        program.program_bytes(lowered.compile()),
        tree.num_bytes(model),
        program.available_bytes(),
        plan,
        factored.in_words(told),
    )
