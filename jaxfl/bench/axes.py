"""The axes of a scaling measurement, and the points on them.

The work is FedAvg's, or another method's, of a network 784-H-10 on synthetic rows: each client has 50, seen once in
batches of 10. Unless its axis is measured, a hundred of a thousand clients take part in a round.
"""

from typing import Any, NamedTuple

from jaxfl.schema import check_name
from jaxfl.settings import methods

INPUTS, CLASSES, ROWS = 784, 10, 50
LOCAL = {"local_epochs": 1, "batch_size": 10}  # of methods that have them
START = 6.0  # seconds: about what a process takes to import JAX and to compile
RATE = 15e9  # operations a second and core: an estimate before anything is measured


class ScalingPoint(NamedTuple):
    """One point of a scaling measurement: all parameters of its process.

    Attributes:
        method: a name that `jaxfl.settings.methods.row` finds.
        options: of the method.
        cohort: C, clients of a round.
        population: N.
        hidden: width of the hidden layer.
        rounds: that are timed.
        devices: that share a round's clients; None takes all GPUs, or a device for each core.
        cores: that the process may use; None leaves it to the system.
        seeds: runs that differ in their seed, trained together.
    """

    method: str
    options: dict[str, Any]
    cohort: int
    population: int
    hidden: int
    rounds: int
    devices: int | None = None
    cores: int | None = None
    seeds: int = 1

    @property
    def gflop(self) -> float:
        """Local training of a round in GFLOP; a multiplication and an addition are two operations.

        The forward pass, and the gradients of weights and inputs of both layers, but for the inputs of the first. What
        a method does beside it (choosing among models, clustering, inner steps, epochs of a head) is not counted.
        """
        multiplications = 2 * INPUTS * self.hidden + 3 * self.hidden * CLASSES
        passes = self.options.get("local_epochs", 1)
        return 2 * multiplications * passes * ROWS * self.cohort * self.seeds / 1e9

    @property
    def expected_seconds(self) -> float:
        """An estimate of the seconds that the point takes, for the progress line before anything is measured."""
        product = 0.1  # seconds, in turn with each round
        return START + (self.rounds + 1) * (product + self.gflop * 1e9 / (RATE * (self.cores or 2)))


class Axis(NamedTuple):
    """One axis.

    Attributes:
        field: of `ScalingPoint`.
        label: of the axis of a picture.
        values: where none are given; empty where the machine decides.
        ideal: the slope that one would wish for: seconds grow like the value to this power.
        meaning: what the slope says.
    """

    field: str
    label: str
    values: tuple[int, ...]
    ideal: float
    meaning: str


AXES = {
    "cohort": Axis(
        "cohort",
        "clients of a round",
        (10, 30, 100, 300, 1000),
        1.0,
        "1.0 is proportional; below it, a client costs less in a larger cohort",
    ),
    "population": Axis(
        "population",
        "clients in all",
        (1000, 10_000, 100_000),
        0.0,
        "0.0 is a round that costs the same whatever the population",
    ),
    "width": Axis(
        "hidden",
        "width of the hidden layer",
        (32, 128, 512, 2048),
        1.0,
        "1.0 is proportional to the size of the network; below it, wide layers come nearer to the machine's limit",
    ),
    "devices": Axis(
        "devices",
        "devices that share a round's clients",
        (),
        -1.0,
        "-1.0 is half the time on twice the devices",
    ),
    "seeds": Axis(
        "seeds",
        "seeds that are trained together",
        (1, 2, 4, 8),
        1.0,
        "1.0 is as long as one seed after another; below it, they take less together",
    ),
}


LARGEST = 2**31 - 1  # of int32, the type of indices in compiled programs


def points(
    over: str,
    values: tuple[int, ...],
    *,
    method: str = "fedavg",
    options: dict[str, Any] | None = None,
    hidden: int = 200,
    rounds: int = 10,
) -> list[ScalingPoint]:
    """Returns the points of an axis.

    Args:
        over: a key of `AXES`.
        values: increasing.
        method: a name that `jaxfl.settings.methods.row` finds.
        options: of the method, in place of one pass in batches of 10.
        hidden: width of the hidden layer.
        rounds: that are timed.

    Raises:
        ValueError: a name is unknown, a number is too small, or the method has no such option.

    >>> [point.cohort for point in points("cohort", (5, 50))], points("width", (32,))[0].gflop
    ([5, 50], 0.511...)
    """
    check_name("axis", over, AXES)
    known = methods.row(method).options
    for name in options or {}:
        check_name(f"option of {method}", name, known)
    for name, value in {"hidden": hidden, "rounds": rounds, "values": max(values, default=1)}.items():
        if value < 1 and name != "values":
            raise ValueError(f"{name} must be at least 1, got {value}.")
        if value > LARGEST:
            raise ValueError(f"{name} must be at most {LARGEST:,}, got {value}.")
    if not values or min(values) < 1 or list(values) != sorted(set(values)):
        usual = ", ".join(map(str, AXES[over].values or (1, 2)))
        raise ValueError(
            f"values must be whole numbers from 1 on, each larger than the one before, got {values}; {usual} are usual."
        )
    chosen = {name: value for name, value in LOCAL.items() if name in known} | (options or {})
    cohort, population = 100, 1000
    if over == "cohort":
        population = max(population, *values)
    if over == "population":
        cohort = min(cohort, *values)
    base = ScalingPoint(method, chosen, cohort, population, hidden, rounds)
    return [base._replace(**{AXES[over].field: value}) for value in values]
