"""Totals of a run's clock: simulated seconds, and the time and the reports of each client."""

import functools
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxfl.clock.profiles import quartiles
from jaxfl.clock.rounds import RoundTimes
from jaxfl.clock.trace import mean_speeds, period_seconds, seconds_at
from jaxfl.data.clients import FederatedData

COUNTS = ("busy", "reports", "cuts")  # arrays with a number for each client
SECONDS, ENERGY = "seconds_simulated", "energy_joules"
NOW, IDLE = "now", "idle_rounds"  # of a run with a trace


class ClockTotals:
    """Sums over the rounds of a run with a clock.

    Args:
        data: the federation, with the clients' devices.
        saved: what `saved` has returned; empty at the start.

    Raises:
        ValueError: the saved totals are of other clients.
    """

    def __init__(self, data: FederatedData, saved: Mapping[str, Any]):
        self._data, count = data, data.num_clients
        self.seconds, self.rounds = float(saved.get("seconds", 0.0)), int(saved.get("rounds", 0))
        self.now, self.idle = [int(one) for one in saved.get(NOW, ())], int(saved.get(IDLE, 0))
        self.waits, self.cuts_clients = int(saved.get("waits", 0)), bool(saved.get("cuts_clients", False))
        kept = {name: np.frombuffer(bytes.fromhex(saved.get(name, "")), np.float64) for name in COUNTS}
        if saved and {len(values) for values in kept.values()} != {count}:
            raise ValueError(f"the clock's totals must be of {count} clients, got others")
        self.busy, self.reports, self.cuts = (kept[name].copy() if saved else np.zeros(count) for name in COUNTS)

    def add(self, times: RoundTimes, ids: np.ndarray, reported: np.ndarray) -> None:
        """Adds rounds, one after the other, so that sums do not depend on how many a call makes.

        Args:
            times: of the rounds `[R, ...]`, on the host.
            ids: of their clients `[R, C]`.
            reported: whether each is aggregated `[R, C]` bool.

        Warns:
            UserWarning: the trace has ended for the first time.
        """
        for asked, seconds, end, one, there in zip(times.asked, times.seconds, times.end, ids, reported, strict=True):
            self.seconds += float(end)
            self.rounds += 1
            np.add.at(self.busy, one[asked], seconds[asked].astype(np.float64))
            self.reports[one[there]] += 1
            self.cuts[one[asked & ~there]] += 1
        if times.now is not None and times.idle is not None and self._data.trace is not None:
            before, self.now = self.now, np.asarray(times.now)[-1].tolist()
            self.idle += int(np.sum(times.idle))
            self.seconds = seconds_at(self._data.trace, self.now)
            if self.now[0] and not (before and before[0]):
                warnings.warn(
                    f"the clock's trace has ended after {period_seconds(self._data.trace):g} simulated seconds, and "
                    "begins anew.",
                    stacklevel=2,
                )
        if times.waited is not None:
            self.waits, self.cuts_clients = self.waits + int(np.sum(times.waited)), True

    def saved(self) -> dict[str, Any]:
        """Returns the totals, ready for JSON."""
        counts = {name: getattr(self, name).tobytes().hex() for name in COUNTS}
        flags = {"waits": self.waits, "cuts_clients": self.cuts_clients}
        trace = {NOW: self.now, IDLE: self.idle} if self.now else {}
        return {"seconds": self.seconds, "rounds": self.rounds, **flags, **counts, **trace}

    def record(self) -> dict[str, Any]:
        """Returns the totals for a record: from the start of the run.

        `seconds_simulated`; where the power is known `energy_joules`; and where clients may be cut, how many were
        (`cut`), the rounds that waited beyond their deadline (`waited`), and the reports of a client in a round, in the
        mean over the clients of each quartile of speed (`participation_by_speed`, the slowest first) and of each true
        group (`participation_by_group`). With a trace `idle_rounds`, in which no client was available, and speeds are
        those in the mean over time.
        """
        found: dict[str, Any] = {SECONDS: self.seconds}
        data = self._data
        devices = data.speeds if data.trace is None else data.trace
        if devices is not None and devices.watts is not None:
            found[ENERGY] = float((np.asarray(devices.watts, np.float64) * self.busy).sum())
        if data.trace is not None:
            found[IDLE] = self.idle
        if not self.cuts_clients:
            return found
        found |= {"cut": int(self.cuts.sum()), "waited": self.waits}
        found["participation_by_speed"] = self._participation(self._quartiles, 4)
        if self._data.group is not None:
            groups = np.asarray(self._data.group)
            found["participation_by_group"] = self._participation(groups, int(groups.max(initial=-1)) + 1)
        return found

    @functools.cached_property
    def _quartiles(self) -> np.ndarray:
        """Returns the quartile of each client by its speed `[N]`."""
        speeds = self._data.speeds if self._data.trace is None else mean_speeds(self._data.trace)
        assert speeds is not None
        return quartiles(speeds)

    def _participation(self, member: np.ndarray, count: int) -> list[float | None]:
        """Returns the mean reports of a client in a round, of each set of clients that can train."""
        held_out = self._data.held_out
        trains = np.ones(len(member), bool) if held_out is None else ~np.asarray(held_out)
        rates = self.reports / max(self.rounds, 1)
        sets = [rates[trains & (member == number)] for number in range(count)]
        return [float(one.mean()) if len(one) else None for one in sets]

    def sentence(self, deadline: float | str | None) -> str:
        """Returns sentences if rounds waited beyond their deadline, or no client was available; or an empty text."""
        found = []
        if self.waits:
            found.append(
                f"{self.waits} of {self.rounds} rounds waited beyond the deadline ({deadline}), since too few clients "
                "had reported by then: raise the deadline, or lower min_reports."
            )
        if self.idle:
            found.append(f"In {self.idle} of {self.rounds} rounds no client was available; they lasted until one was.")
        return " ".join(found)

    def columns(self) -> dict[str, np.ndarray]:
        """Returns the columns of the clients: seconds of work, and how often each has reported and was cut."""
        cuts = {"cuts": self.cuts.astype(int)} if self.cuts_clients else {}
        return {"busy_seconds": self.busy, "reports": self.reports.astype(int), **cuts}
