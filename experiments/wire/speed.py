"""What a wire costs: rounds with links, noise and aggregators beside plain ones, in turn in one process.

    python -m experiments.wire.speed                # all that is not in `results/speed.jsonl` yet, one line a workload
    python -m experiments.wire.speed w3-mlp         # of one workload; `--clients 8` is a try
    python -m experiments.wire.speed --again        # a run more of all: several runs tell how steady the ratios are

Workloads are those of `experiments.speed.rounds`. The wires of one line take turns within every round, so that what
else the machine does falls on all of them, and a ratio is that of two rounds which follow each other. Aggregators see
all updates of a cohort at once, of 100 clients; links and noise see one after another, of the workload's own number.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jaxfl
from experiments.speed import ours, rounds
from experiments.wire import grid
from jaxfl import wire
from jaxfl.bench.machine import facts, keep_memory
from jaxfl.methods import Method

PLAIN = "none"
WIRES: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "clip": {"channel": wire.clip(1.0)},
    "clip, noise": {"privacy": jaxfl.Privacy(clip=1.0, noise=1.0)},
    "topk:0.01": {"channel": wire.top_k(0.01)},
    "qsgd:8": {"channel": wire.qsgd(8)},
    "median": {"aggregator": wire.median()},
    "krum:0.2": {"aggregator": wire.krum(0.2)},
}
LINKS, AGGREGATORS = tuple(WIRES)[:5], (PLAIN, *tuple(WIRES)[5:])


class Line(NamedTuple):
    """A workload with the wires that are compared.

    Attributes:
        work: its name in `experiments.speed.rounds`.
        clients: of a round.
        wires: their names, the plain round first.
    """

    work: str
    clients: int
    wires: Sequence[str]


LINES = (
    Line("w3-logistic", 1000, LINKS),
    Line("w3-mlp", 1000, LINKS),
    Line("w5", 120, LINKS),
    Line("w3-logistic", 100, AGGREGATORS),
    Line("w3-mlp", 100, AGGREGATORS),
    Line("w5", 100, AGGREGATORS),
)


def measure(line: Line, repeats: int) -> dict[str, Any]:
    """Returns the seconds of a round with each wire, and their ratios to the plain round of the same turn.

    Args:
        line: what is compared.
        repeats: timed rounds of each, after one that is not.
    """
    one = rounds.Comparison(line.work, line.clients, None)
    data = rounds.federation(one.work, line.clients)
    method: Method = one.method(one.network, data, one.work.epochs, one.work.batch_size)
    sides = {name: ours.Rounds(jaxfl.wired(method, **WIRES[name]), data).side() for name in line.wires}
    keep_memory()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(repeats + 1):
        for name, side in sides.items():
            began = time.perf_counter()
            side.round()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    ratio = {
        name: statistics.median(own / plain for own, plain in zip(values, seconds[PLAIN], strict=True))
        for name, values in seconds.items()
    }
    return {
        "workload": line.work,
        "clients": line.clients,
        "what": one.names["what"],
        "ratio": {name: round(value, 4) for name, value in ratio.items()},
        "seconds": {name: round(statistics.median(values), 6) for name, values in seconds.items()},
        "repeats": repeats,
        **facts(),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the lines that are missing, and keeps each as it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # argparse asks of an empty list, too, whether it is among the choices
    works = [*dict.fromkeys(line.work for line in LINES), []]
    parser.add_argument("works", nargs="*", choices=works, help="of `experiments.speed.rounds`; all if not given")
    parser.add_argument("--clients", type=int, help="in place of those of every line, for a try; keeps nothing")
    parser.add_argument("--repeats", type=int, default=15, help="timed rounds of each wire")
    parser.add_argument("--again", action="store_true", help="also what is kept already")
    parser.add_argument("--cores", type=int, help="devices that are made of the CPU's cores; all if not given")
    given = parser.parse_args(arguments)
    jaxfl.use_cores(given.cores)
    done = set() if given.again else {(line["workload"], line["clients"]) for line in grid.kept("speed")}
    for line in LINES:
        if given.works and line.work not in given.works:
            continue
        if given.clients:
            print(json.dumps(measure(line._replace(clients=given.clients), given.repeats)), flush=True)
        elif (line.work, line.clients) not in done:
            text = json.dumps(measure(line, given.repeats))
            print(text, flush=True)
            with grid.path_of("speed").open("a", encoding="utf-8") as file:
                file.write(text + "\n")


if __name__ == "__main__":
    main()
