"""The same run on 1, 2 and 4 devices, in chunks of 1, 3 and all, looked at often or not, interrupted or not.

    python -m experiments.reliability.order --out experiments/reliability/results/order.jsonl
    python -m experiments.reliability.order --methods ifca,stocfl --devices 1,2 --chunks 1,3

Every method runs six rounds on the battery's federation of eight clients, for every number of devices and every chunk:
evaluated at the end, evaluated and saved in every round, and interrupted after the first and resumed. It is one program
each time, so the last two must be as the first, bit for bit. Between devices and chunks the cohorts, clusters, bytes
and counts must be the same, and parameters but for rounding.

A finding is what is not so. Needs four devices: on the CPU it takes XLA_FLAGS as it is, or asks for four.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

if "jax" not in sys.modules:  # it reads this once
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax
import numpy as np
import optax

import jaxfl
from experiments.reliability.campaign import ended_by_interrupt, heed_signals, parser, until
from experiments.speed import measure
from jaxfl.methods import METHODS, Method
from jaxfl.simulation.progress import Progress
from jaxfl.testing import small
from jaxfl.testing.compare import ABSOLUTE, RELATIVE, leaves

ROUNDS, COHORT = 6, 5
CHUNKS = {"1": 1, "3": 3, "all": None}
WAYS = ("evaluated at the end", "evaluated in every round", "interrupted")
TIMES = ("seconds", "seconds_per_round")
DISCRETE = ("round", "num_clusters", "diverged", "bytes_up", "bytes_down", "ari", "clusters")


class Told(NamedTuple):
    """What a run has come to, and who took part in it."""

    state: dict[str, np.ndarray]
    last: dict[str, Any]  # record
    cohorts: list[list[int]]


def told(method: Method, seed: int, plan: jaxfl.Plan, way: str) -> Told:
    """Runs a method in one of `WAYS`."""
    cohorts: list[list[int]] = []
    add = Progress.add

    def listen(self: Progress, made: Any, data: Any) -> None:
        log = made.log
        cohorts.extend(sorted(ids[mask]) for ids, mask in zip(*map(np.asarray, (log.ids, log.mask)), strict=True))
        del cohorts[self.done + made.count :]
        add(self, made, data)

    def press(event: jaxfl.Event) -> None:
        if event.round < ROUNDS:  # the first that is told is after one round, which is timed
            signal.raise_signal(signal.SIGINT)

    data, options = small.federation(), {"rounds": ROUNDS, "cohort": COHORT, "plan": plan, "seed": seed}
    options["eval_every"] = 1 if way == "evaluated in every round" else ROUNDS
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(Progress, "add", listen):
        if way != "evaluated at the end":
            options |= {
                "checkpoint_dir": folder,
                "checkpoint_every": 1 if way == "evaluated in every round" else ROUNDS,
            }
        if way == "interrupted":
            try:
                jaxfl.run(method, data, callbacks=[press], **options)
                raise RuntimeError("the run was not interrupted")
            except KeyboardInterrupt:
                options["resume"] = True
        result = jaxfl.run(method, data, **options)
    last = {name: value for name, value in result.history[-1].items() if name not in TIMES}
    return Told(leaves(result.state), last, [[int(one) for one in cohort] for cohort in cohorts])


def plans(devices: Sequence[int], chunks: Sequence[str]) -> Iterator[tuple[str, jaxfl.Plan]]:
    """Yields every plan, and what it is called."""
    for count in devices:
        mesh = None if count == 1 else jax.sharding.Mesh(np.array(jax.devices()[:count]), ("clients",))
        for chunk in chunks:
            yield f"{count} devices, chunk {chunk}", jaxfl.Plan(CHUNKS[chunk], mesh)


def apart(one: Told, other: Told, *, bits: bool) -> str:
    """Returns in what two runs differ; nothing if they do not.

    Args:
        one, other: the runs.
        bits: whether parameters must be the same bit for bit, or but for rounding.
    """
    if one.cohorts != other.cohorts:
        return f"the cohorts: {one.cohorts} and {other.cohorts}"
    for name in one.state:
        a, b = one.state[name], other.state[name]
        exact = bits or not np.issubdtype(a.dtype, np.floating)
        if a.shape != b.shape or not (a.tobytes() == b.tobytes() if exact else np.allclose(a, b, RELATIVE, ABSOLUTE)):
            return f"the state: {name}"
    names = one.last if bits else DISCRETE
    # a loss is a mean over the rounds since the last evaluation, and so are the updates that were left out
    names = [name for name in names if name not in ("train_loss", "diverged")]
    wrong = [name for name in names if one.last.get(name) != other.last.get(name)]
    return f"the last record: {', '.join(wrong)}" if wrong else ""


def check(
    name: str, seed: int, planned: Sequence[tuple[str, jaxfl.Plan]], more: Callable[[], bool]
) -> tuple[int, list[str]]:
    """Returns how many runs of a method were made, and what they differ in.

    Args:
        name: of the method.
        seed: of the runs.
        planned: from `plans`; the first is what the others are compared with.
        more: whether there is time for another plan.
    """
    row = METHODS[name]
    options = {"local_epochs": 2, "batch_size": 4, **row.small}
    options = {key: value for key, value in options.items() if key in row.options}
    method = row.factory(small.linear_task(), optax.sgd(0.3), **options)
    count, findings, reference = 0, [], None
    for words, plan in planned:
        if not more():
            break
        ways = [told(method, seed, plan, way) for way in WAYS]
        count += len(ways)
        reference = reference or ways[0]
        found = {"": apart(reference, ways[0], bits=False)}
        found |= {f", {way}": apart(ways[0], other, bits=True) for way, other in zip(WAYS[1:], ways[1:], strict=True)}
        findings += [f"{name}, {words}{way}: {wrong}" for way, wrong in found.items() if wrong]
    return count, findings


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the campaign, prints what it found, and returns 1 if that is anything."""
    options = parser(__doc__)
    options.add_argument("--methods", default=",".join(METHODS), help="comma-separated; all if not given")
    options.add_argument("--devices", default="1,2,4", help="comma-separated")
    options.add_argument("--chunks", default=",".join(CHUNKS), help="comma-separated")
    given = options.parse_args(arguments)
    heed_signals()
    devices = [int(one) for one in given.devices.split(",")]
    if max(devices) > len(jax.devices()):
        raise SystemExit(f"devices must be at most {len(jax.devices())}, got {max(devices)}; set XLA_FLAGS.")
    runs, findings, more = {}, [], until(given.minutes)
    with ended_by_interrupt():
        for name in given.methods.split(","):
            if not more():
                break
            runs[name], found = check(name, given.seed, list(plans(devices, given.chunks.split(","))), more)
            print(name, f"{runs[name]} runs", *found, sep="\n  ", flush=True)
            findings += found
    record = {"campaign": "order", "seed": given.seed, "runs": sum(runs.values())}
    measure.write({**record, "methods": runs, "findings": findings}, given.out)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
