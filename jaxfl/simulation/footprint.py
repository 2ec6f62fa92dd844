"""The memory of a run, computed before anything is allocated."""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxfl import engine, sampling, tree
from jaxfl.client.fast import coordinates
from jaxfl.cohort import Cohort, DevicesChoice, Plan, PlanChoice
from jaxfl.data.clients import FederatedData
from jaxfl.data.windows import Windows
from jaxfl.methods.base import Method
from jaxfl.sampling import Sampler, cohorts_of
from jaxfl.schema import checked
from jaxfl.simulation import program
from jaxfl.simulation.accounting import private_sampler
from jaxfl.simulation.evaluation.evaluate import MAX_SAMPLE, WINDOW_CLIENTS, evaluation_bytes
from jaxfl.simulation.host.rows import resident_shapes
from jaxfl.simulation.host.streaming import STREAM_LIMIT, Resident, RowStream
from jaxfl.simulation.prepared import Prepared
from jaxfl.simulation.rounds import host_initialiser
from jaxfl.simulation.seeds import lanes_of, seeds_per_program
from jaxfl.tasks.contract import check_learns


class Footprint(NamedTuple):
    """Bytes that a run takes on a device, and on its host; `print` it.

    On a CPU the process itself is not counted: 0.25 GB after its imports, and 0.08 GB (Ditto) to 0.34 GB
    (StoCFL) for programs that were traced. Without these, the peak of Ditto with 784-200-10 models of 800 clients was
    1.05 times the total on one core and 1.03 times on two.

    Attributes:
        data: the federation; of rows that stay on the host, two windows of it.
        state: the method's; of rows of the clients that stay on the host, those of a cohort.
        working: beside data and state, while rounds run: the chunk's models, gradients, activations, sums.
        model: one model.
        available: bytes that are free; None where the device does not say.
        plan: chunk and devices.
        factored: whether clients train in the shorter form of `jaxfl.client.fast.coordinates`, or why not.
        evaluation: beside data and state, while clients are tested.
        start: beside data and state, while the first state is made.
        host: bytes in the host's memory: the federation, unless it is in mapped files, where its rows stay there, and
            rows of clients that are read and written.
        file: bytes of `rows.bin` once every client has trained; 0 where the state is on the device whole. A run with
            checkpoints may need up to three times as many.
        free: bytes that are free in the host's memory; None where the system does not say.
        seeds: that are trained in one program; `state` and `working` are those of all that a device has.
        disk: bytes of the folder of a run with checkpoints, at most: those of the newest checkpoint, of the one before,
            and of the next one while it is written, `rows.bin` included. Slots that were never used take none; those of
            a method that `grows` may become more. Tables and pictures are beside it.
        grows: whether the method may double its slots, and thereby the state's models.
    """

    data: int
    state: int
    working: int
    model: int
    available: int | None
    plan: Plan
    factored: str
    evaluation: int
    start: int = 0
    host: int = 0
    file: int = 0
    free: int | None = None
    seeds: int = 1
    disk: int = 0
    grows: bool = False

    @property
    def devices(self) -> int:
        """Returns the number of devices, each of which takes all of this memory."""
        return 1 if self.plan.mesh is None else self.plan.mesh.size

    @property
    def total(self) -> int:
        """Returns the peak bytes on a device; of a CPU, the bytes of all its devices and of the host."""
        one = self.data + self.state + max(self.working, self.evaluation, self.start)
        return one * self.plan.copies + (self.host if jax.default_backend() == "cpu" else 0)

    def __str__(self) -> str:
        """Returns a small table."""
        names = ("data", "state", "working", "evaluation", "start", *(("host",) if self.host else ()), "total")
        lines = {name: getattr(self, name) for name in names}
        lines |= {"one model": self.model}
        lines |= {} if self.available is None else {"available": self.available}
        lines |= {} if self.free is None or jax.default_backend() == "cpu" else {"host free": self.free}
        lines |= {"rows.bin": self.file} if self.file else {}
        lines |= {"disk": self.disk} if self.disk else {}
        most = "until slots are doubled" if self.grows else "at most"
        notes = {
            "state": "more once slots are doubled" if self.grows else "",
            "host": "on the host: what is not resident",
            "rows.bin": "on disk, once all clients have trained",
            "disk": f"{most}, in the folder of {'each seed' if self.seeds > 1 else 'the run'}: three checkpoints",
        }
        table = [
            f"{name:<10} {value / 1e6:>12,.1f} MB    {notes.get(name, '')}".rstrip() for name, value in lines.items()
        ]
        of_each = "each has data, state and the rest of its own" if self.devices > 1 else ""
        table += [f"{'chunk':<10} {self.plan.chunk or 'whole':>12}"]
        table += [f"{'devices':<10} {self.devices:>12}    {of_each}"] if of_each else []
        table += [f"{'seeds':<10} {self.seeds:>12}    in one program"] if self.seeds > 1 else []
        return "\n".join([*table, f"factored   {self.factored}"])


@checked
def footprint(
    method: Method,
    data: FederatedData,
    *,
    cohort: int | float = 1.0,
    sampler: Sampler = sampling.uniform,
    plan: PlanChoice = "auto",
    devices: DevicesChoice = None,
    resident: Resident = "auto",
    seeds: int = 1,
) -> Footprint:
    """Returns the memory that a run will take, from its compiled programs, before anything is allocated.

    Args:
        method: the method.
        data: the federation.
        cohort: clients of a round, a share or a count.
        sampler: draws the cohorts, as in `jaxfl.run`.
        plan: a `Plan` or `"auto"`.
        devices: how many share the clients, as in `jaxfl.run`.
        resident: whether what belongs to each client lies on the device, as in `jaxfl.run`.
        seeds: number of seeds on the same data: an accelerator trains them in one program.

    Raises:
        ValueError: as `jaxfl.run`.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> footprint(jaxfl.methods.fedavg(task, optax.sgd(0.1)), data).model
    2600
    """
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}.")
    check_learns(method.task, data)
    method.check(data, sampling.cohort_size(cohort, data))
    if method.privacy is not None and method.privacy.privacy.noise is None:
        method = method.privacy.with_noise(1.0)
    sampler, size = cohorts_of(private_sampler(method, sampler), cohort, data)
    data, key = data.in_programs(), jax.random.key(0)
    most = seeds_per_program(seeds)
    prepared = Prepared.of(method, data, size, plan=plan, devices=devices, resident=resident, seeds=most)
    on_host, chosen = prepared.host_data or prepared.host_state, prepared.plan
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), data)
    parts = _Parts.of(prepared, data, sampler)
    count = 1 if on_host else most
    lanes = lanes_of(chosen, count, [False] * len(jax.tree.leaves(data))) if count > 1 else None
    keys, states = key, parts.state
    if lanes is not None:
        keys, states = jax.eval_shape(functools.partial(tree.repeat, count=lanes.count), (key, parts.state))
    inner = chosen if lanes is None else prepared.lane
    limit = STREAM_LIMIT if on_host else program.CAPACITY
    with coordinates.decisions() as decisions:
        arguments = keys, states, parts.data, size, inner, limit, sampler, parts.cohorts, lanes
        lowered, _ = program.lower(method, *arguments)
    made = host_initialiser if prepared.host_state else program.initialiser
    first = made(method, program.shapes_of(parts.data), chosen.mesh).lower(key, parts.data).compile()
    model = jax.eval_shape(method.task.init, key)
    return Footprint(
        tree.num_bytes(parts.data) * (2 if prepared.host_data else 1),
        tree.num_bytes(parts.state) * (1 if lanes is None else lanes.each),
        program.program_bytes(lowered.compile()),
        tree.num_bytes(model),
        program.available_bytes(),
        chosen,
        coordinates.phrase(decisions),
        parts.beside + evaluation_bytes(method, key, parts.tested, shapes, chosen, parts.together),
        program.program_bytes(first),
        parts.host,
        parts.file,
        program.host_bytes(),
        count,
        3 * tree.num_bytes(prepared.shapes),
        method.grow is not None,
    )


class _Parts(NamedTuple):
    """Shapes and bytes of a run on the device and on the host.

    Attributes:
        data: shapes of what a round is given.
        state: as well.
        cohorts: as well, where Python draws them; or None.
        tested: the state's shapes in an evaluation.
        together: clients that are tested in one go.
        beside: bytes on the device of what an evaluation is sent beside.
        host: see `Footprint`.
        file: as well.
    """

    data: Any
    state: Any
    cohorts: Cohort | None
    tested: Any
    together: int
    beside: int
    host: int
    file: int

    @classmethod
    def of(cls, prepared: Prepared, data: FederatedData, sampler: Sampler) -> "_Parts":
        """Returns the parts of a run."""
        state, plan, size = prepared.shapes, prepared.plan, prepared.size
        given = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), data)
        together = min(data.num_clients, WINDOW_CLIENTS if prepared.host_data or prepared.host_state else MAX_SAMPLE)
        parts = cls(given, state, None, state, together, 0, 0, 0)
        if prepared.host_data or prepared.host_state:
            drawn = RowStream(data, jax.random.key(0), size, plan, sampler, 1, cut=prepared.host_data)
            parts = parts._replace(data=jax.eval_shape(lambda: drawn.blank), cohorts=drawn.cohorts)
        if prepared.host_data:
            window = Windows(data, together, ("train", "test"), plan.mesh).blank
            in_memory = [leaf for leaf in jax.tree.leaves(data) if not isinstance(leaf, np.memmap)]
            parts = parts._replace(beside=tree.num_bytes(window), host=tree.num_bytes(in_memory))
        if prepared.host_state:
            field = str(prepared.method.per_client)
            whole, count = getattr(state, field), engine.padded_size(plan, size)
            row = tree.num_bytes(whole) // data.num_clients
            parts = parts._replace(
                state=tree.with_field(state, field, resident_shapes(whole, count)),
                tested=tree.with_field(state, field, resident_shapes(whole, together)),
                beside=parts.beside + together * row,
                host=parts.host + (2 * count + together) * row,  # what is read, what was made, what is tested
                file=data.num_clients * row,
            )
        return parts
