"""Measurement of the seconds of a round along one axis; each point runs in a separate process.

So the peak of the memory is that of one point, and one that is too much for the machine takes no other with it.
"""

import json
import math
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxfl.bench import axes
from jaxfl.bench.axes import AXES, ScalingPoint
from jaxfl.host.operating_system import module_command
from jaxfl.schema import checked

BUSY = 1.5  # processes a core: these measurements alone want all cores


class Step(NamedTuple):
    """Progress of a measurement: the argument of `tell`.

    Attributes:
        over: the axis.
        values: of all points.
        points: all of them.
        index: of the one that is measured; as many as there are points at the end.
        round: how many of its rounds were timed.
        found: what came of the points so far, see `Scaling.points`.
    """

    over: str
    values: list[int]
    points: list[ScalingPoint]
    index: int
    round: int
    found: list[dict[str, Any]]

    @property
    def share(self) -> float:
        """The part of the expected time that has passed, from 0 to 1."""
        seconds = [point.expected_seconds for point in self.points]
        begun = [*seconds, 0.0][self.index] * self.round / self.points[0].rounds
        return (sum(seconds[: self.index]) + begun) / sum(seconds)


class Scaling(NamedTuple):
    """Measurements along an axis; `_asdict()` is ready for JSON, and `Scaling(**record)` reads it back.

    Attributes:
        over: a key of `jaxfl.bench.AXES`.
        work: what is the same at all points, by the names of `ScalingPoint`.
        points: for each its `value` and what `jaxfl.bench.point.measure` found, or the `error` that took its place.
        slope: of log seconds by log value; None of fewer than two points.
        machine: versions, device, cores, and the largest `load` (processes that wanted a core, in the minute before).
    """

    over: str
    work: dict[str, Any]
    points: list[dict[str, Any]]
    slope: float | None
    machine: dict[str, Any]

    def __repr__(self) -> str:
        """Returns a line: the points would fill pages."""
        slope = "None" if self.slope is None else f"{self.slope:.2f}"
        return f"Scaling({self.over!r}, {len(self.points)} points, slope {slope})"

    @property
    def meaning(self) -> str:
        """The slope in a sentence."""
        if self.slope is None:
            return "No slope: it takes two points that were measured."
        return f"Slope {self.slope:.2f}: seconds change like {self.over}^{self.slope:.2f}; {AXES[self.over].meaning}."

    @property
    def failures(self) -> list[str]:
        """A sentence for each point that failed."""
        return [f"{self.over} {row['value']:,} failed: {row['error']}" for row in self.points if "error" in row]

    @property
    def warning(self) -> str:
        """A warning about other programs that ran during the measurement; empty where there were none."""
        load, cores = self.machine.get("load", 0), self.machine.get("cores", 1)
        if load < BUSY * cores:
            return ""
        return f"Other programs ran meanwhile (load {load:.0f} on {cores} cores): times and slope are not to be quoted."


@checked
def scaling(
    over: str,
    values: Sequence[int] | None = None,
    *,
    method: str = "fedavg",
    options: dict[str, Any] | None = None,
    hidden: int = 200,
    rounds: int = 10,
    watch: Callable[[Step], None] = lambda step: None,
) -> Scaling:
    """Measures rounds along one axis on this machine.

    Rounds are those of `jaxfl.run`, after one that is not timed: a network 784-H-10, clients of 50 rows in batches of
    10, a hundred of a thousand unless their number is the axis. The machine's float32 matrix product is timed in turn
    with them. Every point starts Python anew and sees nothing of this process but its environment.

    Args:
        over: "cohort", "population", "width", "devices" or "seeds". On a CPU a point of n devices may use n
            cores only, where the system lets a process choose (Linux).
        values: of the axis; None takes the usual ones of `jaxfl.bench.AXES`, of devices 1, 2, 4 ... and all.
        method: a name that `jaxfl.settings.methods.row` finds.
        options: of the method. It trains for one local epoch unless they say otherwise.
        hidden: H, the width of the hidden layer.
        rounds: that are timed at each point.
        watch: is called with a `Step` before the first point, with every round, and after the last.

    Raises:
        ValueError: an argument is out of range, or the method refuses its options.

    >>> scaling("cohort", [0, 10])
    Traceback (most recent call last):
    ValueError: values must be whole numbers from 1 on, each larger than the one before, got (0, 10); ...
    """
    points = _points(over, values, method=method, options=options, hidden=hidden, rounds=rounds)
    field, found = AXES[over].field, []
    here = [getattr(point, field) for point in points]
    watch(Step(over, here, points, 0, 0, found))
    for index, point in enumerate(points):
        result: dict[str, Any] = {}
        for line in _measured(point):
            result = line
            watch(Step(over, here, points, index, line.get("round", point.rounds), found))
        if "refused" in result and not found:
            raise ValueError(result["refused"])
        error = {"error": result.get("refused", result.get("failed"))}
        found.append({"value": here[index]} | result.get("found", error))
        watch(Step(over, here, points, index + 1, 0, found))
    machines = [row.pop("machine") for row in found if "machine" in row]
    machine = {**machines[-1], "load": max(one["load"] for one in machines)} if machines else {}
    work = {name: value for name, value in points[0]._asdict().items() if name not in (field, "cores", "devices")}
    return Scaling(over, work, found, slope(found), machine)


def slope(points: Sequence[dict[str, Any]]) -> float | None:
    """Returns the slope of log seconds by log value, by least squares; None of fewer than two points.

    Args:
        points: see `Scaling.points`; those that failed are left out.

    >>> slope([{"value": n, "seconds": {"median": 0.1 * n**2}} for n in (1, 10, 100)])
    2.0
    """
    there = [(row["value"], row["seconds"]["median"]) for row in points if "error" not in row]
    if len(there) < 2:
        return None
    x, y = np.log(there).T
    return round(float(np.polyfit(x, y, 1)[0]), 6)


def _points(over: str, values: Sequence[int] | None, **work: Any) -> list[ScalingPoint]:
    """Returns the points; for the axis of devices, those that this machine has."""
    if over != "devices":
        return axes.points(over, tuple(AXES[over].values if values is None else values) if over in AXES else (), **work)
    axes.points(over, (1,), **work)  # refuses what it can before a process is started
    machine = _last(_process())["found"]
    there = machine["devices"]
    usual = (*(2**power for power in range(math.ceil(math.log2(there)))), there)
    points = axes.points(over, usual if values is None else tuple(values), **work)
    if points[-1].devices > there:
        raise ValueError(f"values must be at most {there}, the devices of this machine, got {points[-1].devices}.")
    alone = machine["platform"] == "cpu"
    return [point._replace(cores=point.devices) if alone else point for point in points]


def _measured(point: ScalingPoint) -> Iterator[dict[str, Any]]:
    """Yields the lines of a point's process; the last one has the key `found`, `refused` or `failed`."""
    return _process(json.dumps(point._asdict()))


def _process(*arguments: str) -> Iterator[dict[str, Any]]:
    """Yields the lines of `jaxfl.bench.point` in a separate process; a killed process has failed."""
    command, last = [*module_command("jaxfl.bench.point"), *arguments], {}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                last = json.loads(line)
                yield last
            code = process.wait()
        finally:
            process.kill()
        if not {"found", "refused", "failed"} & set(last):
            errors.seek(0)
            yield {"failed": _failure(code, errors.read())}


def _failure(code: int, errors: str) -> str:
    """Returns the reason why a process has written no result.

    >>> _failure(-9, ""), _failure(1, "Traceback ...\\nOSError: disk full\\n")
    ('killed by the system (signal 9), which happens where memory runs out', 'OSError: disk full')
    """
    if code == -9:
        return "killed by the system (signal 9), which happens where memory runs out"
    lines = errors.strip().splitlines()
    return lines[-1] if lines else f"ended with exit code {code}"


def _last(answers: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """Returns the last line of a process.

    Raises:
        OSError: the process failed.
    """
    *_, last = answers
    if "found" not in last:
        raise OSError(f"the devices of the machine could not be counted: {last}.")
    return last
