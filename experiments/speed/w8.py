"""W8: what a large population costs: a fixed cohort out of 1,000, 10,000 and 100,000 clients.

FedAvg of the 784-200-10 network, 50 rows per client out of a shared pool of 60,000 rows, one shuffled epoch in batches
of 10, 100 clients a round. Two things are asked: that a round costs the same whatever the population, and that it costs
the same whenever it runs: the second round no slower than the tenth, and no compilation after the first one. The
populations take turns, like the sides of the other workloads. Bytes are those of the arrays and of the compiled
program; the peak is of the process.

    python -m experiments.speed.w8 --population 1000 10000 100000
"""

import statistics
import time
from collections.abc import Sequence

import jax
import optax

import jaxfl
from experiments.speed import measure, ours
from jaxfl.data.synthetic import prototypes
from jaxfl.simulation.program import peak_bytes

ROWS, BATCH, LEARNING_RATE = 50, 10, 0.05
COMPILED = "/jax/core/compile/backend_compile_duration"


class Compilations:
    """Counts the programs that XLA compiles, by listening to JAX's own events."""

    def __init__(self):
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, duration_secs: float, **metadata: str | int) -> None:
        self.count += event == COMPILED


def build(population: int, options) -> tuple[ours.Rounds, measure.Side, dict]:
    """Returns the rounds of one population, and what they take."""
    data = prototypes(population, ROWS, (784,), 10)
    task = jaxfl.classification(jaxfl.models.MLP((200,), 10), data)
    method = jaxfl.methods.fedavg(task, optax.sgd(LEARNING_RATE), local_epochs=1, batch_size=BATCH)
    cohort = min(options.clients[0], population)
    rounds = ours.Rounds(method, data, cohort=cohort, chunk=options.chunk)
    needs = jaxfl.footprint(method, data, cohort=cohort, plan=rounds.plan)
    facts = {
        "population": population,
        "cohort": cohort,
        "chunk": rounds.plan.chunk,
        "compile_seconds": rounds.compile_seconds,
        "bytes": {"data": needs.data, "state": needs.state, "working": needs.working},
        "peak_bytes": peak_bytes(),
    }
    return rounds, rounds.side(), facts


def main(arguments: Sequence[str] | None = None) -> dict:
    """Runs the workload."""
    parser = measure.parser(__doc__, clients=100, peers="none")
    parser.add_argument("--population", type=int, nargs="+", default=[1000, 10_000, 100_000])
    options = parser.parse_args(arguments)
    measure.peer_names(options.peers, ())
    count = max(options.rounds, 10)
    compilations = Compilations()
    built = [build(population, options) for population in options.population]
    seconds: list[list[float]] = [[] for _ in built]
    compiled = []
    for _ in range(count):
        before = compilations.count
        for (_, side, _), times in zip(built, seconds, strict=True):
            began = time.perf_counter()
            side.round()
            times.append(time.perf_counter() - began)
        compiled.append(compilations.count - before)
    print(f"\nW8: a cohort of {built[0][2]['cohort']}, round by round")
    results = []
    for (_, _, facts), times in zip(built, seconds, strict=True):
        ratios = [own / first for own, first in zip(times[1:], seconds[0][1:], strict=True)]
        result = {
            **facts,
            "summary": measure.spread_of(times[1:]),
            "ratio": measure.spread_of(ratios),
            "second_to_tenth": times[1] / times[9],
        }
        results.append(result)
        print(
            f"  {facts['population']:>7} clients {statistics.median(times[1:]) * 1e3:9.2f} ms,"
            f" {result['ratio']['median']:5.2f} x the first; second / tenth round {result['second_to_tenth']:5.2f};"
            f" data {facts['bytes']['data'] / 1e6:.0f} MB, working {facts['bytes']['working'] / 1e6:.0f} MB"
        )
    print(f"  programs compiled while the rounds ran: {sum(compiled)}")
    return measure.write({"workload": "W8", "results": results, "compiled_in_rounds": sum(compiled)}, options.out)


if __name__ == "__main__":
    main()
