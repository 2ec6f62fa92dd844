"""How far a run has come: the rounds done, what is added up over them, and what of it is kept on disk."""

import contextlib
import functools
import statistics
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxfl.data.clients import FederatedData
from jaxfl.simulation.directory import RunDirectory
from jaxfl.simulation.history import History
from jaxfl.simulation.metrics import Evaluation
from jaxfl.simulation.program import Log, Made
from jaxfl.typing import Params


class Tally:
    """What is added up over rounds: between two evaluations, and from the start.

    Args:
        **saved: the attributes of one that a checkpoint kept.

    Raises:
        ValueError: they are not.
    """

    def __init__(self, **saved: Any):
        self.loss_sum, self.loss_weight, self.diverged, self.diverged_in_all, self.participants = 0.0, 0.0, 0, 0, 0
        self.seconds, self.bytes_up, self.bytes_down = 0.0, 0.0, 0.0
        self.num_clusters, self.last_loss = 0, float("nan")
        self.extra: dict[str, Any] = {}  # the method's own numbers, of the last round
        for name, value in saved.items():
            wanted = dict if name == "extra" else (int, float)
            if name not in vars(self) or not isinstance(value, wanted):
                raise ValueError(f"{name}={value!r} is nothing that is added up over rounds")
        vars(self).update(saved)

    def add(self, log: Log, count: int, data: FederatedData, seconds: float) -> None:
        """Adds the first `count` rounds of a log, which took so many seconds."""
        log = jax.tree.map(lambda leaf: np.asarray(leaf)[:count], log)  # cut here: JAX would compile for every count
        rows = log.mask & (np.asarray(data.train.size)[log.ids] > 0)  # [R, C]
        # a diverged client has no loss worth a mean; it is counted apart
        real = rows & np.isfinite(log.info.loss)
        losses = np.where(real, log.info.loss, 0.0).sum(1) / np.maximum(real.sum(1), 1)
        losses = losses[log.mask.any(1)]  # a round without anybody has none
        for loss in losses.tolist():  # one by one: how many rounds a call makes must not change the sum's last bits
            self.loss_sum += loss
        self.loss_weight += len(losses)
        self.last_loss = float(losses[-1]) if len(losses) else self.last_loss
        self.participants += int(log.mask.sum())
        self.diverged += int(log.info.diverged.sum())
        self.diverged_in_all += int(log.info.diverged.sum())
        self.bytes_up += float(log.info.bytes_up.sum(dtype=np.float64))
        self.bytes_down += float(log.info.bytes_down.sum(dtype=np.float64))
        self.num_clusters = int(log.info.num_clusters[-1])
        self.extra = {name: leaf[-1].item() for name, leaf in log.info.extra.items() if leaf.ndim == 1}
        self.seconds += seconds

    def record(self, done: int, evaluation: Evaluation, seconds_per_round: float | None) -> dict[str, Any]:
        """Returns the record of an evaluation, see `History`, and starts afresh what is added up between two of them.

        Args:
            done: rounds done so far.
            evaluation: after them.
            seconds_per_round: the median of those that this process made.
        """
        record = {
            "round": done,
            **evaluation.metrics,
            "train_loss": self.loss_sum / self.loss_weight if self.loss_weight else None,
            "diverged": self.diverged,
            "seconds": self.seconds,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "seconds_per_round": seconds_per_round,
        }
        self.loss_sum, self.loss_weight, self.diverged = 0.0, 0.0, 0
        return record | {name: value for name, value in self.extra.items() if name not in record}


class Progress:
    """How far a run has come; it goes on from the checkpoint in its directory, if there is one.

    Args:
        directory: where checkpoint and history are kept; None keeps nothing on disk.
        identity: what the run's numbers depend on, see `identity_of`.
        resume: whether to go on with a run that is there.

    Attributes:
        done: rounds done so far.
        saved: the round of the last checkpoint; 0 where there is none.
        tally: of these rounds.
        paces: seconds per round, of every call since the run was started or resumed.

    Raises:
        ValueError: the directory holds another run.
    """

    def __init__(self, directory: RunDirectory | None, identity: dict[str, Any], *, resume: bool):
        self._directory, self._identity = directory, identity
        self._start = None if directory is None else directory.open(identity, resume=resume)
        header = {"round": 0, "tally": {}} if self._start is None else self._start.header
        try:
            self.done, self.tally = header["round"], Tally(**header["tally"])
        except ValueError as error:
            path = self._start.path if self._start else ""
            raise ValueError(f"{path} is not the checkpoint of a run ({error}); choose another directory.") from error
        self.paces: list[float] = []
        self.saved = self._resumed_at = self.done

    @functools.cached_property  # opened after the state is restored: a run that is refused changes no file
    def history(self) -> History:
        """Returns a record for every evaluation so far; it writes itself."""
        return History() if self._directory is None else self._directory.history(self._resumed_at)

    def restore(self, shapes: Params) -> Params | None:
        """Returns the checkpoint's state in host memory; None where the run starts.

        Args:
            shapes: of the method's first state; slots may have grown since.

        Raises:
            ValueError: the checkpoint holds the state of another method.
        """
        start, self._start = self._start, None  # its arrays are of no use after this
        return None if start is None else start.state(shapes)

    @property
    def last_pace(self) -> float | None:
        """Returns the seconds per round of the last call; None before the first."""
        return self.paces[-1] if self.paces else None

    @property
    def pace(self) -> float | None:
        """Returns the median of all calls' seconds per round; None before the first."""
        return statistics.median(self.paces) if self.paces else None

    def add(self, made: Made, data: FederatedData) -> None:
        """Adds the rounds that a call has made."""
        self.tally.add(made.log, made.count, data, made.seconds)
        self.done += made.count
        self.paces.append(made.pace)

    @property
    def kept(self) -> str:
        """Returns what there is to go on from, in words."""
        if self._directory is None or not self.saved:
            return "nothing is kept"
        return f"the checkpoint of round {self.saved} is kept in {str(self._directory.path)!r}"

    def record(self, evaluation: Evaluation) -> dict[str, Any]:
        """Writes the record of an evaluation after these rounds, and returns it.

        Raises:
            OSError: it cannot be written; the message says what is kept.
        """
        record = self.tally.record(self.done, evaluation, self.pace)
        with self._told():
            self.history.append(record)
        return record

    def save(self, state: Params) -> None:
        """Writes a checkpoint, if there is a directory and none of this round.

        Raises:
            OSError: it cannot be written; the message says what is kept.
        """
        if self._directory is not None and self.saved < self.done:
            header = {"identity": self._identity, "round": self.done, "tally": vars(self.tally)}
            with self._told():
                header["records"] = len(self.history)
                self._directory.save(state, header)
            self.saved = self.done

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Says what is kept where something cannot be written."""
        with contextlib.nullcontext() if self._directory is None else self._directory.told(self.kept):
            yield
