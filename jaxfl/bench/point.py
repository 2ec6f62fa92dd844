"""Measurement of one point in this process: `python -m jaxfl.bench.point POINT`, the point as JSON.

It answers on its standard output, a JSON line each: `{"round": 3}` while it goes on, and at the end `{"found": ...}`,
`{"refused": ...}` (its numbers cannot be), or `{"failed": ...}` (it was too much for the machine). Without a point it
says what the machine is: `{"found": ...}`. `jaxfl.bench.scaling` reads it.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import optax

from jaxfl import sampling
from jaxfl.bench import machine
from jaxfl.bench.axes import CLASSES, INPUTS, ROWS, ScalingPoint
from jaxfl.data.clients import FederatedData
from jaxfl.data.synthetic import prototypes
from jaxfl.methods.base import Method
from jaxfl.models import MLP
from jaxfl.settings import methods
from jaxfl.simulation.devices import use_cores
from jaxfl.simulation.prepared import Prepared
from jaxfl.simulation.program import peak_bytes
from jaxfl.simulation.rounds import Rounds
from jaxfl.simulation.seeds import LaneRounds, seeds_per_program
from jaxfl.tasks import classification

LEARNING_RATE = 0.05
SIZE = {"cpu": 2048}  # of the matrix product
LARGE = 8192  # the same, where smaller ones do not keep the device busy


def measure(point: ScalingPoint, tell: Callable[[int], None] = lambda round: None) -> dict[str, Any]:
    """Returns the measurements of a point, ready for JSON; its memory is the peak of this process.

    Rounds are those of `jaxfl.run`, one a call, and the machine's matrix product is timed in turn with them.

    Args:
        point: what is to be measured.
        tell: called before each round with the number of timed rounds.
    """
    empty = peak_bytes()
    data = prototypes(point.population, ROWS, (INPUTS,), CLASSES)
    task = classification(MLP((point.hidden,), CLASSES), data)
    method = methods.make(point.method, task, optax.sgd(LEARNING_RATE), **point.options)
    programs = _start_programs(point, method, data)
    states, done = [state for _, state in programs], 0

    def one_round() -> float:
        nonlocal done
        seconds = 0.0
        for place, (program, _) in enumerate(programs):
            states[place], made = program.advance(states[place], 1)
            while made.overflow:  # the method needs more slots: a round of another program
                states[place] = program.grow(states[place], made.overflow, done + 1)
                states[place], made = program.advance(states[place], 1)
            seconds += made.seconds
        done += 1
        return seconds

    machine.keep_memory()
    one_round()
    peak = peak_bytes()  # before the product takes its own
    size = SIZE.get(jax.default_backend(), LARGE)
    product = machine.matrix_product(size)
    product()
    seconds, products = [], []
    for turn in range(point.rounds):
        tell(turn)
        seconds.append(one_round())
        began = time.perf_counter()
        product()
        products.append(2 * size**3 / (time.perf_counter() - began) / 1e9)
    shares = [point.gflop / own / limit for own, limit in zip(seconds, products, strict=True)]
    taken = machine.spread_of(seconds)
    return {
        "seconds": taken,
        "clients_per_second": point.cohort * point.seeds / taken["median"],
        "compile_seconds": sum(program.compile_seconds for program, _ in programs),
        "peak_bytes": peak,
        "empty_bytes": empty,  # Python and JAX alone
        "gflops": point.gflop / taken["median"],
        "product_gflops": machine.spread_of(products),
        "share_of_product": machine.spread_of(shares),
    }


def _start_programs(point: ScalingPoint, method: Method, data: FederatedData) -> list[tuple[Rounds, Any]]:
    """Returns the programs of all seeds and their first states, with as many seeds per program as in `jaxfl.run`."""
    prepared = Prepared.of(method, data, point.cohort, devices=point.devices, resident=True, seeds=point.seeds)
    (rows,) = prepared.place([data.in_programs()])
    most, found = seeds_per_program(point.seeds), []
    for first in range(0, point.seeds, most):
        seeds = list(range(first, min(first + most, point.seeds)))
        if len(seeds) > 1:
            program = LaneRounds(prepared, seeds, [rows] * len(seeds), sampling.uniform)
        else:
            program = Rounds(prepared, jax.random.key(first), rows, sampling.uniform)
        found.append((program, program.start([None] * len(seeds))))
    return found


def machine_facts() -> dict[str, Any]:
    """Returns the facts of the machine, and its number of devices."""
    return {**machine.facts(), "devices": jax.local_device_count()}


def _print_line(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def main(arguments: list[str]) -> int:
    """Measures the point of the arguments and returns the exit code, 1 where it failed."""
    point = ScalingPoint(**json.loads(arguments[0])) if arguments else None
    if point is not None and point.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: point.cores])  # before JAX starts its threads
    use_cores(None if point is None else point.cores)
    try:
        if point is None:
            _print_line(found=machine_facts())
        else:
            _print_line(found={**measure(point, lambda round: _print_line(round=round)), "machine": machine.facts()})
    except (ValueError, TypeError) as error:
        _print_line(refused=str(error))
        return 1
    except Exception as error:  # whatever it is, the other points go on
        _print_line(failed=" ".join(f"{type(error).__name__}: {error}".split())[:500])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
