"""How far a run has come: the rounds done, and what of it is kept on disk."""

import contextlib
import functools
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxfl.data.clients import FederatedData
from jaxfl.simulation import checkpoint
from jaxfl.simulation.directory import HISTORY, RunDirectory
from jaxfl.simulation.history import History
from jaxfl.simulation.kept_rows import has_any, saving
from jaxfl.simulation.metrics import Evaluation
from jaxfl.simulation.program import Made
from jaxfl.simulation.restoring import restored
from jaxfl.simulation.tally import Tally, come_to_nothing
from jaxfl.typing import Params


class Diverged(RuntimeError):
    """A run has come to nothing: the updates that its clients send are not finite any more, or none ever was.

    Attributes:
        state: the method's last; updates that are not finite were left out of it.
        history: the records until then.
        outcomes: of several seeds, a result or such an error for each; empty for one.
    """

    def __init__(self, message: str, state: Any, history: History):
        super().__init__(message)
        self.state, self.history = state, history
        self.outcomes: Sequence[Any] = ()


def check_whole(kept: bool) -> None:
    """Refuses a best checkpoint that would lack models.

    Args:
        kept: whether the clients' own stay on the host, in the file of the run.

    Raises:
        ValueError: they do.
    """
    if kept:
        raise ValueError(
            "the best checkpoint must have all models in it, got clients' models in a file on the host (resident); "
            "give resident=True, or leave the best checkpoint out."
        )


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
        self._kept_in: set[Path] = set()
        self.saved = self._resumed_at = self.done

    @functools.cached_property  # opened after the state is restored: a run that is refused changes no file
    def history(self) -> History:
        """Returns a record for every evaluation so far; it writes itself."""
        return History() if self._directory is None else self._directory.history(self._resumed_at)

    @property
    def so_far(self) -> History:
        """Returns the history; another, empty one where nothing is in it yet: its file would stand for a run."""
        return self.history if self._resumed_at or "history" in vars(self) else History()

    def restore(self, shapes: Params, field: str | None = None, *, kept: bool = False) -> Params | None:
        """Returns the checkpoint's state in host memory; None where the run starts.

        Args:
            shapes: of the method's first state; slots may have grown since.
            field: of the state that has rows of the clients, see `Method.per_client`.
            kept: whether they stay on the host.

        Raises:
            ValueError: the checkpoint holds the state of another method.
        """
        start, self._start = self._start, None  # its arrays are of no use after this
        return None if start is None else restored(start, shapes, field, kept=kept)

    @property
    def pace(self) -> float | None:
        """Returns the median of all calls' seconds per round; None before the first."""
        return statistics.median(self.paces) if self.paces else None

    @property
    def last_pace(self) -> float:
        """Returns the seconds per round of the last call; where there was none, of all rounds on average."""
        return self.paces[-1] if self.paces else self.tally.seconds / max(self.done, 1)

    @property
    def recorded(self) -> bool:
        """Returns whether there is a record of these rounds."""
        return bool(records := self.so_far.records) and records[-1]["round"] == self.done

    def add(self, made: Made, data: FederatedData) -> None:
        """Adds the rounds that a call has made."""
        self.tally.add(made.log, made.count, data, made.seconds)
        self.done += made.count
        self.paces.append(made.pace)

    def check(self, evaluation: Evaluation, data: FederatedData, rounds: int, state: Params) -> None:
        """Refuses to go on with a run that has come to nothing; what was kept before stays as it is.

        Args:
            evaluation: after the rounds done so far.
            data: the federation.
            rounds: in all.
            state: after the rounds done so far.

        Raises:
            Diverged: see `come_to_nothing`.
        """
        found = come_to_nothing(self.tally.lost, self.tally.updates, evaluation, data, ended=self.done == rounds)
        if not found:
            return
        kept = ""
        if self._directory is not None:
            held = f"round {self.saved} is kept in" if self.saved else "nothing was good enough to be kept in"
            kept = f"; {held} {self._directory.path}"
        raise Diverged(
            f"the run has diverged: {found}, so it was stopped after round {self.done} of {rounds}{kept}. Lower the "
            "learning rate.",
            state,
            self.so_far,
        )

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
            self.history.append(record, evaluation.cluster)
        return record

    def correct(self, evaluation: Evaluation) -> dict[str, Any] | None:
        """Writes the numbers of an evaluation of all rows over those of some, of the same round.

        Returns:
            The record; None if it has these numbers already.

        Raises:
            OSError: they cannot be written; the message says what is kept.
        """
        last = self.history[-1]
        if all(last.get(name) == value for name, value in evaluation.metrics.items()):
            return None
        with self._told():
            self.history.correct(evaluation.metrics)
        return self.history[-1]

    def save(self, state: Params, *, sound: Callable[[Params], bool] | None = None, anew: bool = False) -> bool:
        """Writes a checkpoint, if there is a directory and none of this round; returns whether it did.

        Args:
            state: after the rounds done so far.
            sound: says whether the state is worth keeping: a run that has come to nothing is found out when it is
                evaluated, and must find what was good before. None where it has been evaluated.
            anew: also where there is one of this round.

        Raises:
            OSError: it cannot be written; the message says what is kept.
        """
        due = self.saved < self.done or anew
        if self._directory is None or not due or not (sound is None or sound(state)):
            return False
        with self._told(), saving(state) as saved:
            self._directory.save(saved, self._header())
        self.saved = self.done
        return True

    def keep(self, folder: Path, state: Params) -> None:
        """Writes a checkpoint of these rounds into a folder beside the run's own, and the history until then.

        Raises:
            ValueError: the clients' own models stay on the host: their file is that of the run; or the folder holds
                another run, or is that of this one.
        """
        check_whole(has_any(state))
        folder = Path(folder)
        if self._directory is not None and folder.resolve() == self._directory.path.resolve():
            raise ValueError(
                f"folder must be another than that of the run, whose next checkpoint is in its place, got "
                f"{str(folder)!r}; give {str(folder / 'best')!r}."
            )
        best = RunDirectory(folder, "folder")
        with best.alone():
            if folder not in self._kept_in:
                best.check_identity(self._identity, resume=True)
                self._kept_in.add(folder)
            History.writing(folder / HISTORY, self.history)
            checkpoint.save(folder, state, self._header())

    def _header(self) -> dict[str, Any]:
        """Returns what a checkpoint belongs to."""
        return {"identity": self._identity, "round": self.done, "tally": vars(self.tally), "records": len(self.history)}

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Says what is kept where something cannot be written."""
        with contextlib.nullcontext() if self._directory is None else self._directory.told(self.kept):
            yield
