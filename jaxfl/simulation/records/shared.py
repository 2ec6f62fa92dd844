"""The directory of a run of several processes: the first one reads and writes, and sends to the others what it read."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxfl.simulation import processes
from jaxfl.simulation.records.checkpoint import Saved
from jaxfl.simulation.records.directory import RunDirectory
from jaxfl.simulation.records.history import History
from jaxfl.typing import Params


def directory_at(
    path: str | os.PathLike | None, *, resume: bool, argument: str = "checkpoint_dir"
) -> RunDirectory | None:
    """Returns the directory at `path`, see `RunDirectory.at`; with several processes, that of the first one."""
    kind = SharedDirectory if processes.several() else RunDirectory
    return kind.at(path, resume=resume, argument=argument)


class SharedDirectory(RunDirectory):
    """A run's directory that only the first process can access, see `RunDirectory`."""

    def check(self, config: dict[str, Any], *, resume: bool, names: Sequence[str] = ()) -> None:
        """Raises at every process the error of the first one."""
        refuse = super().check
        processes.by_first(lambda: refuse(config, resume=resume, names=names))

    @contextlib.contextmanager
    def locked(self, names: Sequence[str] = ()) -> Iterator[None]:
        """Locks the directory."""
        locked = super().locked
        with contextlib.ExitStack() as stack:
            processes.by_first(lambda: stack.enter_context(locked(names)))
            yield

    def open(self, identity: dict[str, Any], *, resume: bool) -> Saved | None:
        """Returns the checkpoint to resume from, at every process; None where the run starts."""
        found: list[Saved] = []
        look = super().open

        def read() -> Any:
            saved = look(identity, resume=resume)
            if saved is None:
                return None
            found.append(saved)
            arrays = {name: (array.dtype.str, array.shape) for name, array in saved.arrays.items()}
            return str(saved.path), saved.header, arrays

        sent = processes.by_first(read)
        if sent is None:
            return None
        path, header, kinds = sent
        arrays = {
            name: processes.from_first(found[0].arrays[name] if found else np.zeros(shape, dtype))
            for name, (dtype, shape) in kinds.items()
        }
        return Saved(Path(path), header, arrays)

    def done(self) -> int:
        """Returns the rounds done of the newest checkpoint."""
        return processes.by_first(super().done)

    def checked_rounds_done(self, identity: dict[str, Any], *, resume: bool) -> int:
        """Returns the rounds done of a run that may be resumed."""
        look = super().checked_rounds_done
        return processes.by_first(lambda: look(identity, resume=resume))

    def history(self, rounds: int = 0) -> History:
        """Returns the history, whose file the first process alone writes."""
        records = processes.by_first(lambda: self._records(rounds))
        if processes.first():
            return super().history(rounds)
        history = History()
        history.records = records
        return history

    def write_config(self, config: dict[str, Any]) -> None:
        """Writes the config of the run."""
        if processes.first():
            super().write_config(config)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Writes the summary of the run."""
        if processes.first():
            super().write_summary(summary)

    def save(self, state: Params, header: dict[str, Any]) -> None:
        """Writes a checkpoint."""
        if processes.first():
            super().save(state, header)
