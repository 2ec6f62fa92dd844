"""Rounds of small models with several options of XLA for the launch of a GPU's kernels: one arm, in this process.

The part `launch` of the accelerator's kit runs an arm after another, each in a process of its own, and compares the
bits of their models with those of the first. An arm makes the same rounds twice, from the same state.

    python -m experiments.speed.launch base w3-logistic w5
    python -m experiments.speed.accelerator --only launch --out OUT        # all arms
"""

import argparse
import hashlib
import statistics
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from experiments.speed import accelerator_parts, kernels, rounds
from jaxfl import engine
from jaxfl.simulation.program import peak_bytes

BUFFERS = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,CONDITIONAL,WHILE"
RECORDED: dict[str, Any] = {
    "xla_gpu_enable_command_buffer": BUFFERS
}  # kernels that one call starts together, loops too
ARMS: dict[str, dict[str, Any]] = {
    "base": {},
    "buffers": RECORDED,
    "unrolled": RECORDED | {"xla_gpu_command_buffer_unroll_loops": True},
    "smallest": RECORDED | {"xla_gpu_graph_min_graph_size": 1},
}
FURTHER: dict[str, dict[str, Any]] = {
    "convolutions": {"xla_gpu_enable_command_buffer": f"{BUFFERS},CONVOLUTION"},
    "regions": RECORDED | {"xla_gpu_graph_enable_concurrent_region": True},
    "full unrolling": {"xla_gpu_enable_while_loop_unrolling": "WHILE_LOOP_UNROLLING_FULL_UNROLL"},
}
WORKS = {"w3-logistic": 1000, "w3-mlp": 1000, "w5": 120}  # with their clients
FURTHER_WORKS = {"w2": 100, "w9-10": 10}  # of the arm with convolutions, beside the others
TOY = {"clients": 4, "hidden": 32}


def measured(work: str, *, smoke: bool, times: int) -> dict[str, Any]:
    """Returns what rounds of a work take with the options that are set, and the bits of the models behind them."""
    clients, hidden = (TOY["clients"], TOY["hidden"]) if smoke else ({**WORKS, **FURTHER_WORKS}[work], None)
    one = rounds.Comparison(work, clients, SimpleNamespace(hidden=hidden, chunk=None))
    made = one.rounds(one.network, rounds.federation(one.work, clients), one.work.epochs, one.work.batch_size)
    side, start = made.side(), jax.tree.map(np.array, made.state)
    milliseconds, bits = [], []
    for _ in range(2):
        made.state = jax.device_put(start, made.plan.place)
        for _ in range(times + 1):
            began = time.perf_counter()
            side.round()
            milliseconds.append(1e3 * (time.perf_counter() - began))
        leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(made.state)]
        bits.append(hashlib.sha256(b"".join(leaves)).hexdigest())
    loops = list(kernels.loops(made.program()))
    return {
        **one.names,
        "milliseconds": milliseconds,
        "median": statistics.median([*milliseconds[1 : times + 1], *milliseconds[times + 2 :]]),
        "compile_seconds": made.compile_seconds,
        "peak_bytes": peak_bytes(),
        "bits": bits,
        "kernels": {loop.name: loop.kernels for loop in loops},
        "looks": sum(loop.looks for loop in loops),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures an arm, and says a record for each work."""
    arms = ARMS | FURTHER
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arm", choices=arms)
    parser.add_argument("works", nargs="+", choices=[*WORKS, *FURTHER_WORKS])
    parser.add_argument("--rounds", type=int, default=20, help="timed rounds of each of the two executions")
    parser.add_argument("--smoke", action="store_true", help="toy sizes")
    options = parser.parse_args(arguments)
    engine.COMPILER_OPTIONS.setdefault(jax.default_backend(), {}).update(arms[options.arm])
    for work in options.works:
        found = measured(work, smoke=options.smoke, times=options.rounds)
        accelerator_parts.say({"arm": options.arm, "options": arms[options.arm], **found})


if __name__ == "__main__":
    main()
