"""A clock for every run: simulated seconds of rounds, from the clients' devices and what they really do.

`jaxfl.run(..., clock=jaxfl.ClientClock("lognormal"))` gives each client a speed, an uplink and a downlink (see
`jaxfl.clock.profiles`). The seconds of a client in a round are

    down_bytes * 8 / d + operations / v + up_bytes * 8 / u

with the operations of its network's products and convolutions in this round, stragglers, personal parts, choices of a
model and clusterings included (see `jaxfl.clock.work`), and the bytes on the wire. A synchronous round lasts as long as
its slowest client; the server's own time is 0. With the default policy a clock changes nothing but the record: the
models are the same, bit for bit.

>>> import jaxfl, optax
>>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
>>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
>>> method = jaxfl.methods.fedavg(task, optax.sgd(0.1))
>>> result = jaxfl.run(method, data, rounds=2, cohort=4, clock=ClientClock("equal"))
>>> round(result.summary["seconds_simulated"], 6)
0.004997
"""

import dataclasses
import os
from typing import Any

from jaxfl.clock.asynchronous.rule import Kind, Rule, check_rule
from jaxfl.clock.policies import Late, Policy, RoundDeadline, check_policy
from jaxfl.clock.profiles import By, is_file, speeds_of
from jaxfl.clock.trace import is_trace, read_trace
from jaxfl.data.clients import FederatedData, Speeds
from jaxfl.files import crc, user_path
from jaxfl.schema import checked
from jaxfl.typing import Key

__all__ = ["ClientClock", "Policy", "Speeds", "speeds_of"]

AGGREGATION = ("buffer", "staleness", "mixing", "max_staleness", "cluster_buffer")  # options of `Rule`


@dataclasses.dataclass(frozen=True)
class ClientClock:
    """A clock of a run, for `jaxfl.run(..., clock=)`.

    Attributes:
        speeds: `"equal"`, `"lognormal"`, `"tiers"`, or the path of a csv file, see `jaxfl.clock.profiles`, or of
            a trace (parquet, or csv with the times of its rows), see `jaxfl.clock.trace`.
        sigma: of `"lognormal"`.
        by: of `"tiers"`: `"group"` gives the tiers to the true groups in turn; None draws them.
        over_select: clients that are asked in a round, as a multiple of the cohort; the first ones to report are
            aggregated, as many as the cohort.
        deadline: seconds after which a round ends, or `"p80"`, when 80 percent of the asked clients have reported; None
            waits for all.
        late: what happens to clients that are late: `"drop"`, or `"partial"`, where they send the whole steps that fit.
        min_reports: fewest clients of a round, for which it waits beyond the deadline.
        asynchronous: `"fedbuff"` or `"fedasync"`: the server waits for no client, and the cohort is the number of
            clients that work at a time, see `jaxfl.clock.asynchronous`; a round of the run is then a step of the
            server. None has synchronous rounds.
        buffer, staleness, mixing, max_staleness, cluster_buffer: of asynchronous aggregation, see
            `jaxfl.clock.asynchronous.rule.Rule`.

    Raises:
        ValueError: a number is out of range, or has no effect.
    """

    speeds: str | os.PathLike = "equal"
    sigma: float = 1.0
    by: By = None
    over_select: float = 1.0
    deadline: RoundDeadline = None
    late: Late = "drop"
    min_reports: int = 1
    asynchronous: Kind | None = None
    buffer: int | None = None
    staleness: str = "polynomial"
    mixing: float = 0.6
    max_staleness: int | None = None
    cluster_buffer: int | None = None

    def __post_init__(self):
        _check_devices(os.fspath(self.speeds), sigma=self.sigma, by=self.by)
        check_policy(self.policy)
        _check_asynchronous(self)

    @property
    def policy(self) -> Policy:
        """The policy of the rounds."""
        return Policy(self.over_select, self.deadline, self.late, self.min_reports)

    @property
    def rule(self) -> Rule | None:
        """The rule of asynchronous aggregation; None of synchronous rounds."""
        if self.asynchronous is None:
            return None
        return Rule(self.asynchronous, **{name: getattr(self, name) for name in AGGREGATION})

    def attach(self, data: FederatedData, key: Key) -> FederatedData:
        """Returns the federation with the clients' devices.

        Args:
            data: the federation.
            key: of the run.

        Raises:
            ValueError: see `jaxfl.clock.profiles.speeds_of`, and of a trace `jaxfl.clock.trace.read_trace`.
        """
        path = user_path(os.fspath(self.speeds))
        if is_file(self.speeds) and is_trace(path):
            return dataclasses.replace(data, trace=read_trace(path, data))
        return dataclasses.replace(
            data, speeds=speeds_of(os.fspath(self.speeds), key, data, sigma=self.sigma, by=self.by)
        )

    def identity(self) -> dict[str, Any]:
        """Returns what the numbers of a run depend on, ready for JSON: of a file its content."""
        path = os.fspath(self.speeds)
        profile = f"file-{crc(user_path(path).read_bytes())}" if is_file(path) else path
        unused = ("asynchronous", *AGGREGATION) if self.asynchronous is None else ()
        known = {name: value for name, value in dataclasses.asdict(self).items() if name not in unused}
        return {**known, "speeds": profile}


def _check_asynchronous(clock: ClientClock) -> None:
    """Raises ValueError if an option of asynchronous aggregation is out of range, or has no effect."""
    usual = {one.name: one.default for one in dataclasses.fields(ClientClock)}
    if clock.asynchronous is None:
        for name in AGGREGATION:
            if (value := getattr(clock, name)) != usual[name]:
                raise ValueError(
                    f"{name} needs asynchronous aggregation, got {value} without it; give asynchronous=fedbuff."
                )
        return
    assert clock.rule is not None
    check_rule(clock.rule)
    for name in Policy._fields[:4]:
        if (value := getattr(clock, name)) != usual[name]:
            raise ValueError(
                f"{name} must be left out with asynchronous={clock.asynchronous}, got {value}: no round waits for "
                "clients."
            )


@checked
def _check_devices(speeds: str, *, sigma: float, by: By) -> None:
    """Raises ValueError if an option of a profile is out of range, or has no effect."""
    if not 0 <= sigma < 20:
        raise ValueError(f"clock_sigma must be at least 0 and below 20, got {sigma}; 1 is the default.")
    if sigma != 1 and speeds != "lognormal":
        raise ValueError(f"clock_sigma needs clock=lognormal, got {sigma} with clock={speeds}; leave it out.")
    if by is not None and speeds != "tiers":
        raise ValueError(f"clock_by needs clock=tiers, got {by} with clock={speeds}; leave it out.")
