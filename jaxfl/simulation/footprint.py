"""What a run takes in memory, before anything is allocated."""

from typing import NamedTuple

import jax

from jaxfl import engine, sampling, tree
from jaxfl.client import factored
from jaxfl.cohort import DevicesChoice, Plan, PlanChoice
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Method, served_model
from jaxfl.sampling import cohort_size
from jaxfl.schema import checked
from jaxfl.simulation import program
from jaxfl.simulation.evaluate import evaluation_bytes


class Footprint(NamedTuple):
    """Bytes that a run takes on a device; `print` it.

    On a CPU the process itself is not counted: 0.25 GB after its imports, and 0.08 GB (Ditto) to 0.34 GB
    (StoCFL) for programs that were traced. Without these, the peak of Ditto with 784-200-10 models of 800 clients was
    1.05 times the total on one core and 1.03 times on two.

    Attributes:
        data: the federation.
        state: the method's.
        working: beside data and state, while rounds run: the chunk's models, gradients, activations, sums.
        model: one model.
        available: bytes that are free; None where the device does not say.
        plan: chunk and devices.
        factored: whether clients train in the shorter form of `jaxfl.client.factored`, or why not.
        evaluation: beside data and state, while clients are tested.
    """

    data: int
    state: int
    working: int
    model: int
    available: int | None
    plan: Plan
    factored: str
    evaluation: int

    @property
    def devices(self) -> int:
        """Returns how many devices there are; each takes all that is said here."""
        return 1 if self.plan.mesh is None else self.plan.mesh.size

    @property
    def total(self) -> int:
        """Returns the most bytes at a time, while rounds run or clients are tested; of all cores where they share."""
        one = self.data + self.state + max(self.working, self.evaluation)
        return one * (self.devices if jax.default_backend() == "cpu" else 1)

    def __str__(self) -> str:
        """Returns a small table."""
        lines = {name: getattr(self, name) for name in ("data", "state", "working", "evaluation", "total")}
        lines |= {"one model": self.model}
        lines |= {} if self.available is None else {"available": self.available}
        table = [f"{name:<10} {value / 1e6:>12,.1f} MB" for name, value in lines.items()]
        of_each = "each has data, state and the rest of its own" if self.devices > 1 else ""
        table += [f"{'chunk':<10} {self.plan.chunk or 'whole':>12}"]
        table += [f"{'devices':<10} {self.devices:>12}    {of_each}"] if of_each else []
        return "\n".join([*table, f"factored   {self.factored}"])


@checked
def footprint(
    method: Method,
    data: FederatedData,
    *,
    cohort: int | float = 1.0,
    plan: PlanChoice = "auto",
    devices: DevicesChoice = None,
) -> Footprint:
    """Returns what a run will take, from the compiled program, before anything is allocated.

    Args:
        method: the method.
        data: the federation.
        cohort: clients of a round, a share or a count.
        plan: a `Plan` or `"auto"`.
        devices: how many share the clients, as in `jaxfl.run`.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> footprint(jaxfl.methods.fedavg(task, optax.sgd(0.1)), data).model
    2600
    """
    size = cohort_size(cohort, data)
    key = jax.random.key(0)
    state = jax.eval_shape(method.init, key, data)
    plan = engine.resolve_plan(plan, served_model(method, state), size, devices=devices)
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
        evaluation_bytes(method, key, state, shapes, plan),
    )
