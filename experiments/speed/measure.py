"""Measures programs in turn on one machine (A B A B ...), beside the machine's own limits.

A side of a comparison is a function that makes one round and returns the mean training loss seen on the way, as a
Python number: shuffling, training, aggregation and the way of the loss to the host are inside the timed part. The
sides take turns within every round, so that what else the machine does meanwhile falls on both, and ratios are formed
pair by pair. A JSON line keeps everything; seconds measured on shared CPU cores are not to be quoted, ratios are.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxfl.bench.machine import facts, keep_memory, matrix_product, spread_of
from jaxfl.simulation.program import peak_bytes

TOLERANCE = 1e-3  # of the loss after round 1, from the same initial parameters and batches
COPY_BYTES = 128 << 20


class Side(NamedTuple):
    """One of the programs that are compared.

    Attributes:
        name: what tables call it.
        round: makes one round and returns its mean training loss.
        loss: returns the current model's mean loss on the training rows of all clients.
    """

    name: str
    round: Callable[[], float]
    loss: Callable[[], float]


def parser(description: str | None, *, clients: int | None, peers: str) -> argparse.ArgumentParser:
    """Returns the options that all workloads share."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--clients", type=int, nargs="+", default=[clients], help="clients of a round")
    options.add_argument("--rounds", type=int, default=5, help="timed rounds, after one warm-up")
    options.add_argument("--chunk", type=int, help="clients that jaxfl trains side by side; chosen by it if not given")
    options.add_argument("--peers", default=peers, help="comma-separated, or none")
    options.add_argument("--size", type=int, default=2048, help="of the matrix product that the machine is judged by")
    options.add_argument("--out", type=Path, help="file that gets the JSON line appended")
    return options


def peer_names(text: str, known: tuple[str, ...]) -> list[str]:
    """Returns the peers of a comma-separated list.

    Raises:
        ValueError: one of them is unknown.
    """
    names = [] if text == "none" else text.split(",")
    for name in names:
        if name not in known:
            raise ValueError(f"peers must be among {', '.join(known)} or none, got {name!r}.")
    return names


def agreement(sides: list[Side]) -> dict[str, Any]:
    """Makes one round on every side and compares the losses of the models it ends in."""
    losses = {}
    for side in sides:
        side.round()
        losses[side.name] = side.loss()
    spread = max(losses.values()) - min(losses.values())
    return {"loss": losses, "difference": spread, "tolerance": TOLERANCE, "agrees": spread <= TOLERANCE}


def in_turn(sides: list[Side], rounds: int, size: int) -> dict[str, Any]:
    """Times `rounds` rounds of every side after one warm-up, and the machine's limits, in turn."""
    keep_memory()
    product, copy = limits(size)
    jobs = {side.name: side.round for side in sides} | {"product": product, "copy": copy}
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    losses: dict[str, float] = {}
    for turn in range(rounds + 1):
        for name, job in jobs.items():
            began = time.perf_counter()
            losses[name] = job()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    products, copies = seconds.pop("product"), seconds.pop("copy")
    return {
        "seconds": seconds,
        "summary": {name: spread_of(values) for name, values in seconds.items()},
        "ratio": {
            name: spread_of([peer / own for peer, own in zip(values, seconds["jaxfl"], strict=True)])
            for name, values in seconds.items()
            if name != "jaxfl"
        },
        "training_loss": {side.name: losses[side.name] for side in sides},
        "product_gflops": [2 * size**3 / value / 1e9 for value in products],
        "copy_gbytes": [2 * COPY_BYTES / value / 1e9 for value in copies],
    }


def limits(size: int) -> tuple[Callable[[], float], Callable[[], float]]:
    """Returns the machine's limits as functions to time: a square float32 product, 128 MiB read and written."""
    held = {"rows": jnp.zeros(COPY_BYTES // 4)}
    rewrite = jax.jit(lambda array: array + 1, donate_argnums=0)  # in place: fresh pages would be timed otherwise

    def copy() -> float:
        held["rows"] = rewrite(held["rows"])
        return float(held["rows"][0])

    return matrix_product(size), copy


def checked(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the records, all printed by now.

    Raises:
        SystemExit: the sides disagree after round 1: what was timed is not the same work.
    """
    for record in records:
        if not record["after_round_1"]["agrees"]:
            raise SystemExit(f"{record['what']}: the losses after round 1 disagree: {record['after_round_1']}")
    return records


def report(record: dict[str, Any], *, gflop: float | None = None, out: Path | None = None) -> dict[str, Any]:
    """Prints a small table and the JSON line, and appends the line to `out`.

    Args:
        record: what ran, and what `in_turn` returned.
        gflop: 10^9 operations of one round, if they were counted.
        out: a file, or None.
    """
    record = {**record, "gflop": gflop}
    machine = statistics.median(record["product_gflops"])
    print(f"\n{record['workload']}: {record['what']}")
    for name, times in record["summary"].items():
        rate = "" if gflop is None else f"  {gflop / times['median']:8.1f} GFLOP/s"
        ratio = f"  {record['ratio'][name]['median']:6.2f} x jaxfl's time" if name in record["ratio"] else ""
        extremes = f"[{times['min'] * 1e3:.2f}, {times['max'] * 1e3:.2f}]"
        print(f"  {name:<8} {times['median'] * 1e3:10.2f} ms {extremes}{rate}{ratio}")
    if gflop is not None:
        own = record["seconds"]["jaxfl"]
        shares = [gflop / s / limit for s, limit in zip(own, record["product_gflops"], strict=True)]
        record["share_of_product"] = spread_of(shares)
        print(f"  jaxfl reaches {statistics.median(shares):.0%} of the matrix product ({machine:.0f} GFLOP/s)")
    if "after_round_1" in record:
        after = record["after_round_1"]
        losses = ", ".join(f"{name} {loss:.5f}" for name, loss in after["loss"].items())
        print(f"  loss after round 1: {losses}: {'equal' if after['agrees'] else 'NOT equal'} to {after['tolerance']}")
    return write(record, out)


def write(record: dict[str, Any], out: Path | None) -> dict[str, Any]:
    """Prints the record as one JSON line, with where it was measured, and appends it to `out`; returns it."""
    record = {**record, **facts(), "peak_bytes": peak_bytes()}
    line = json.dumps(record)
    print(line, flush=True)
    if out is not None:
        with out.open("a") as file:
            file.write(line + "\n")
    return record
