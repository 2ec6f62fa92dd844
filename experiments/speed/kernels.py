"""What a GPU would run of a round: its kernels and the bytes that they read and write, on a machine without a GPU.

XLA compiles for a GPU that is described and not there. So a change of a round can be read off its program before it is
timed: rounds of small models wait for the start of kernels and for memory, hardly for arithmetic. Of every loop the
command says how many kernels it starts each time and how many megabytes they read and write, and makes an estimate of
them: 3 microseconds for a kernel, or its bytes at 2.5 TB/s where those take longer. Choices that a GPU would make by
trying (which form of a product is the fastest) are not made. An estimate is no measurement.

    python -m experiments.speed.kernels --network 32 --seeds 1 5 --out FILE    # needs pip install -e '.[cuda]', no GPU
    python -m experiments.speed.kernels --works w3-logistic w9-10 --seeds 1    # of workloads, all clients side by side
"""

import argparse
import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}
KERNELS = ("fusion", "custom-call", "copy", "sort", "scatter", "reduce", "dynamic-update-slice", "gather")
PARTS = ("gather", "dynamic-slice", "slice")  # read what they return, and not their whole operand
START, PACE = 3.0, 2.5e6  # microseconds of a kernel at least; bytes a microsecond
CLIENTS, ROWS, COHORT, BATCH = 1000, 50, 100, 10  # those of the part `seeds` of the accelerator's kit
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84929347584 shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 7 } runtime_version { major: 12 minor: 8 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


class Line(NamedTuple):
    """An instruction of a compiled program."""

    name: str
    shape: str
    kind: str
    operands: list[str]
    rest: str


class Loop(NamedTuple):
    """What is run each time that a loop goes round, the loops in it apart.

    Attributes:
        name: of its computation.
        kernels: how many are started.
        megabytes: that they read and write.
        microseconds: estimated.
        looks: whether the host waits for an answer each time, as it does where the number of times is not known.
    """

    name: str
    kernels: int
    megabytes: float
    microseconds: float
    looks: bool


def computations(text: str) -> dict[str, list[Line]]:
    """Returns the instructions of each computation of a compiled program's text."""
    found: dict[str, list[Line]] = {}
    lines: list[Line] = []
    for line in text.splitlines():
        if head := re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            lines = found.setdefault(head[1], [])
        elif one := re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)", line):
            inside = one[4].split("), ")[0]
            lines.append(Line(one[1], one[2], one[3], re.findall(r"%([\w.\-]+)", inside), one[4]))
    return found


def size(shape: str) -> int:
    """Returns the bytes of a shape, or of a tuple of them.

    >>> size("f32[2,3]{1,0}"), size("(u8[4]{0}, s32[])")
    (24, 8)
    """
    total = 0
    for kind, sides in re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", shape):
        count = BYTES.get(kind, 0)
        for side in filter(None, sides.split(",")):
            count *= int(side)
        total += count
    return total


def loops(text: str) -> Iterator[Loop]:
    """Yields what starts kernels: the bodies of the program's loops, and the program itself."""
    program = computations(text)
    shapes = {line.name: line.shape for lines in program.values() for line in lines}
    bodies = {
        match[1]: "known_trip_count" not in line.rest
        for lines in program.values()
        for line in lines
        if line.kind == "while" and (match := re.search(r"body=%?([\w.\-]+)", line.rest))
    }
    entry = re.search(r"^ENTRY %?([\w.\-]+)", text, re.MULTILINE)
    for name in [*bodies, *([entry[1]] if entry else [])]:
        moved = [_moved(line, program, shapes) for line in program[name] if line.kind in KERNELS]
        estimate = sum(max(START, bytes / PACE) for bytes in moved)
        yield Loop(name, len(moved), sum(moved) / 1e6, estimate, bodies.get(name, False))


def _moved(line: Line, program: dict[str, list[Line]], shapes: dict[str, str]) -> int:
    """Returns the bytes that a kernel reads and writes."""
    called = re.search(r"calls=%?([\w.\-]+)", line.rest)
    inside = program.get(called[1], []) if called else []
    places = {one.rest.split(")")[0]: one.name for one in inside if one.kind == "parameter"}
    total = size(line.shape)
    for place, operand in enumerate(line.operands):
        whole = size(shapes.get(operand, ""))
        users = [one for one in inside if places.get(str(place)) in one.operands]
        parts = users and all(one.kind in PARTS and one.operands[0] == places[str(place)] for one in users)
        total += min(whole, sum(size(one.shape) for one in users)) if parts else whole
    return total


def compiled(work: str | None, method: str, hidden: Sequence[int], seeds: int) -> str:
    """Returns the program of rounds, compiled for an H100 that is not there.

    Args:
        work: a workload of `rounds.py`, whose clients all take part side by side; None for a cohort of dense networks.
        method: by name; of a workload its own is taken.
        hidden: widths of the dense network's hidden layers.
        seeds: that one program trains.
    """
    os.environ |= {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "JAX_PLATFORMS": "cpu"}
    os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"
    import jax
    import numpy as np
    import optax
    from jax._src import xla_bridge
    from jax.experimental import topologies

    import jaxfl
    from jaxfl import sampling
    from jaxfl.cohort import Plan
    from jaxfl.data.synthetic import prototypes
    from jaxfl.simulation import program
    from jaxfl.simulation.program import Lanes

    usual, backend = xla_bridge.canonicalize_platform, jax.default_backend
    # without a device JAX does not know that a GPU is called "cuda" (jax issue 23971)
    xla_bridge.canonicalize_platform = lambda name: "cuda" if name in ("gpu", "cuda") else usual(name)
    topology = topologies.get_topology_desc(platform="cuda", target_config=H100, topology="1x1x1")
    mesh = topologies.make_mesh(topology, (1,), ("devices",))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def there(values: Any, *first: int) -> Any:
        def shape(leaf: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((*first, *np.shape(leaf)), leaf.dtype, sharding=place)

        return jax.tree.map(shape, values)

    if work is not None:
        from experiments.speed.rounds import Comparison, federation

        one = Comparison(work, None, None)
        data, cohort = federation(one.work, one.clients), one.clients
        made = one.method(one.network, data, one.work.epochs, one.work.batch_size)
    else:
        data, cohort = prototypes(CLIENTS, ROWS, (28, 28), 10), COHORT
        task = jaxfl.classification(jaxfl.models.MLP(tuple(hidden), 10), data)
        made = jaxfl.methods.METHODS[method].factory(task, optax.sgd(0.1), local_epochs=1, batch_size=BATCH)
    key = jax.random.key(0)
    state = jax.eval_shape(made.init, key, data)
    lanes, first = (Lanes(None, seeds, (False,) * len(jax.tree.leaves(data))), (seeds,)) if seeds > 1 else (None, ())
    jax.default_backend = lambda: "gpu"  # what jaxfl chooses by it
    try:
        data = data.in_programs()
        rounds = program._rounds(
            made, cohort, Plan(chunk=cohort), 64, sampling.uniform, lanes, None, program.shapes_of(data)
        )
        shapes = there(key, *first), there(state, *first), there(data), there(np.int32(1))
        return rounds.lower(*shapes, lowering_platforms=("cuda",)).compile().as_text()
    finally:
        jax.default_backend = backend


def main() -> None:
    """Compiles, and prints what is run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", nargs="+", default=[None], help="workloads, in place of a method and a network")
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--network", type=int, nargs="*", default=[200], help="widths of the hidden layers")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 5], help="trained together, a program for each")
    parser.add_argument("--out", type=Path, help="appends a JSON line for each program")
    given = parser.parse_args()
    for work, seeds in itertools.product(given.works, given.seeds):
        found = list(loops(compiled(work, given.method, given.network, seeds)))
        for loop in found:
            looks = ", the host looks" if loop.looks else ""
            what = f"{work or given.method}, {seeds} seeds, {loop.name}"
            print(f"{what}: {loop.kernels} kernels, {loop.megabytes:.1f} MB, "
                  f"about {loop.microseconds:.0f} microseconds{looks}")  # fmt: skip
        if given.out:
            named = {"method": given.method, "network": given.network} if work is None else {"work": work}
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**named, "seeds": seeds, "loops": [loop._asdict() for loop in found]}) + "\n")


if __name__ == "__main__":
    main()
