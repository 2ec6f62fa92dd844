"""The progress of a run: rounds done, totals, history and checkpoints."""

import contextlib
import functools
import math
import re
import statistics
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxfl import tree
from jaxfl.clock.totals import ClockTotals
from jaxfl.data.clients import FederatedData
from jaxfl.data.conditions import UNSCALED
from jaxfl.methods.base import Method, Participation, slots_of, takes_part
from jaxfl.sampling import check_drawn
from jaxfl.simulation import processes
from jaxfl.simulation.evaluation.metrics import Evaluation, history_columns
from jaxfl.simulation.host.rows import (
    NAME,
    HostRows,
    Index,
    has_host_rows,
    row_checksum,
    row_views,
    saved_on_disk,
)
from jaxfl.simulation.program import Advance, RoundLog
from jaxfl.simulation.records import checkpoint
from jaxfl.simulation.records.checkpoint import Saved
from jaxfl.simulation.records.directory import HISTORY, KEEPS_CLIENTS, RECORDS_VECTORS, RunDirectory
from jaxfl.simulation.records.history import CLUSTERS, MAX_VECTOR, History
from jaxfl.typing import Params

MAX_LOST_UPDATES = (
    100  # updates in a row that are not finite, or one of every client where there are fewer: a run is stopped
)

NOT_FINITE = 2.0**64  # not finite by `tree.is_finite`: its square is no float32 number


class RoundTotals:
    """Sums over rounds: since the last evaluation, and since the start of the run.

    Args:
        **saved: the attributes of one that a checkpoint kept.

    Attributes:
        updates: sent by clients with training rows, from the start.
        lost: the last of them, of the rounds at the end in which not one was finite.
        seen: clients that have taken part, as bits in hexadecimal; empty at the start, and where it is not known.
        clock: the totals of a run with a clock, see `ClockTotals.saved`; empty at the start, and without a clock.

    Raises:
        ValueError: they are not.
    """

    def __init__(self, **saved: Any):
        self.loss_sum, self.loss_weight, self.diverged, self.diverged_in_all, self.participants = 0.0, 0.0, 0, 0, 0
        self.seconds, self.bytes_up, self.bytes_down = 0.0, 0.0, 0.0
        self.updates, self.lost, self.seen = 0, 0, ""
        self.num_clusters, self.last_loss = 0, math.nan
        self.extra: dict[str, Any] = {}  # the method's own numbers, of the last round
        self.clock: dict[str, Any] = {}
        for name, value in saved.items():
            wanted = {"extra": dict, "clock": dict, "seen": str}.get(name, (int, float))
            right = isinstance(value, wanted) and (name != "seen" or re.fullmatch("([0-9a-f]{2})*", value))
            if name not in vars(self) or not right:
                raise ValueError(f"{name}={value!r} is nothing that is added up over rounds")
        vars(self).update(saved)

    def add(self, log: RoundLog, count: int, data: FederatedData, seconds: float, *, vectors: bool = False) -> None:
        """Adds the first `count` rounds of a log.

        Args:
            log: of some rounds.
            count: of the rounds.
            data: the federation.
            seconds: that they took.
            vectors: whether `extra` has lists of up to `MAX_VECTOR` numbers, too, and the cohort.

        Warns:
            UserWarning: a list is longer, and is left out.
        """
        log = jax.tree.map(lambda leaf: np.asarray(leaf)[:count], log)  # cut here: JAX would compile for every count
        check_drawn(log.ids, log.mask, data)
        rows = log.mask & (np.asarray(data.train.size)[log.ids] > 0)  # [R, C]
        # a diverged client has no loss worth a mean; it is counted apart
        real = rows & (np.abs(log.info.loss) < NOT_FINITE)
        losses = np.where(real, log.info.loss, 0.0).sum(1) / np.maximum(real.sum(1), 1)  # [R]
        rounds = zip(losses.tolist(), real.sum(1), rows.sum(1), log.info.diverged, strict=True)
        # One by one: how many rounds a call makes depends on their speed, and must not change the sum's last bits.
        for loss, finite, sent, diverged in rounds:
            if finite:
                self.loss_sum, self.loss_weight = self.loss_sum + loss, self.loss_weight + 1
            if sent:
                self.last_loss = loss if finite else math.nan
            self.updates += int(sent)
            self.lost = self.lost + int(sent) if diverged >= sent else 0  # a round without clients changes nothing
        self._note_clients(np.asarray(log.ids)[np.asarray(log.mask)], data.num_clients)
        self.participants += int(log.mask.sum())
        self.diverged += int(log.info.diverged.sum())
        self.diverged_in_all += int(log.info.diverged.sum())
        self.bytes_up += float(log.info.bytes_up.sum(dtype=np.float64))
        self.bytes_down += float(log.info.bytes_down.sum(dtype=np.float64))
        if log.times is not None and log.times.bytes_down is not None:  # of clients that were cut
            self.bytes_down += float(log.times.bytes_down.sum(dtype=np.float64))
        self.num_clusters = int(log.info.num_clusters[-1])
        self.extra = {name: leaf[-1].item() for name, leaf in log.info.extra.items() if leaf.ndim == 1}
        if vectors:
            self._add_vectors(log)
        self.seconds += seconds

    def _add_vectors(self, log: RoundLog) -> None:
        """Adds the lists of the last round of a log to `extra`."""
        lists: dict[str, Any] = {name: leaf[-1] for name, leaf in log.info.extra.items() if leaf.ndim == 2}
        lists["cohort"] = np.where(log.mask[-1], log.ids[-1], -1)
        for name, one in lists.items():
            if len(one) <= MAX_VECTOR:
                self.extra[name] = one.tolist()
            else:
                warnings.warn(
                    f"{name} of a round has {len(one):,} numbers, and records have lists of up to {MAX_VECTOR:,}; it "
                    "is left out.",
                    stacklevel=2,
                )

    def participation(self, cohort: int, num_clients: int) -> Participation:
        """Returns the clients that have taken part.

        Args:
            cohort: clients of a round.
            num_clients: N.
        """
        if not self.seen:
            return Participation(cohort)
        return Participation(cohort, self._flags(num_clients), self.participants > int(self.seen, 16).bit_count())

    def _flags(self, num_clients: int) -> np.ndarray:
        """Returns bool `[N]` for clients that have taken part."""
        packed = np.frombuffer(bytes.fromhex(self.seen), np.uint8)
        return np.unpackbits(packed, count=num_clients).astype(bool)

    def _note_clients(self, ids: np.ndarray, num_clients: int) -> None:
        """Notes clients `[M]` that have taken part."""
        if not self.seen and self.participants:  # counted by an older version, which did not go on to note them
            return
        flags = self._flags(num_clients) if self.seen else np.zeros(num_clients, bool)
        flags[ids] = True
        self.seen = np.packbits(flags).tobytes().hex()

    def record(self, done: int, evaluation: Evaluation, seconds_per_round: float | None) -> dict[str, Any]:
        """Returns the record of an evaluation, see `History`, and resets the sums since the last one.

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


def divergence_reason(lost: int, sent: int, evaluation: Evaluation, data: FederatedData, *, ended: bool) -> str:
    """Returns the divergence reason of a run; an empty text if it has not diverged.

    A run has diverged if none of the last `MAX_LOST_UPDATES` updates (or of as many as there are clients to train) was
    finite, or, at its end, none of all; or if no client with test rows is served a model whose loss is finite.

    Args:
        lost: the last updates, of the rounds at the end in which not one was finite.
        sent: all updates.
        evaluation: after them.
        data: the federation.
        ended: whether these are all rounds.
    """
    loss = evaluation.loss[evaluation.rows > 0]  # of clients with test rows
    if lost >= min(MAX_LOST_UPDATES, int(takes_part(data).sum())) or (lost == sent > 0 and ended):
        return f"none of the {'' if lost == sent else 'last '}{lost} updates of clients was finite"
    if len(loss) and not np.isfinite(loss).any():
        return "no client is served a model whose loss is finite"
    return ""


def divergence_remedy(data: FederatedData, noise: float | None = None) -> str:
    """Returns how to have finite updates, as a clause: what attacks or hides the updates comes before how they learn.

    Args:
        data: the federation.
        noise: of differential privacy, as a multiple of the clip; None without it.

    >>> from jaxfl.data import conditions, synthetic
    >>> data = synthetic.clustered_linear(4)
    >>> divergence_remedy(data), divergence_remedy(data, 1e4)
    ('lower the learning rate', 'lower noise (10000), or the learning rate')
    >>> divergence_remedy(conditions.attack(data, "sign-flip", 0.3, scale=1e20))
    'lower attack_scale (1e+20, attack=sign-flip), or the learning rate'
    """
    if data.attack is not None and data.attack.kind in UNSCALED:
        return f"leave attack={data.attack.kind} out, or lower the learning rate"
    if data.attack is not None:
        return f"lower attack_scale ({float(data.attack.scale):g}, attack={data.attack.kind}), or the learning rate"
    return f"lower noise ({noise:g}), or the learning rate" if noise else "lower the learning rate"


def restore_state(saved: Saved, shapes: Any, method: Method | None, *, kept: bool) -> Any:
    """Returns the state of a checkpoint in host memory, with host rows or without them.

    Args:
        saved: of a run with host rows, or without them.
        shapes: of the method's first state.
        method: whose state it is; None has slots that do not grow, and no rows.
        kept: whether the rows are to stay on the host.

    Raises:
        ValueError: the checkpoint holds the state of another method, or its rows are not there.
    """
    field, grow = (None, None) if method is None else (method.per_client, method.grow)
    if field is None:
        return saved.state(shapes, grow)
    whole, count, folder = getattr(shapes, field), shapes.cluster.shape[0], saved.path.parent
    if not has_rows_file(saved, field):
        state = saved.state(shapes, grow)
        return tree.with_field(state, field, _move_rows_to_host(getattr(state, field), folder)) if kept else state
    if processes.several():
        raise ValueError(
            f"the run in {folder} keeps rows in {NAME}, which one process can go on with, and not several."
        )
    first = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype), whole)
    state = saved.state(tree.with_field(shapes, field, Index.empty(first, count)), grow)
    rows = HostRows(getattr(state, field), folder)
    return tree.with_field(state, field, rows if kept else rows.take(np.arange(count)))


def has_rows_file(saved: Saved, field: str | None) -> bool:
    """Returns whether the clients' rows of a checkpoint are in a file beside it."""
    return field is not None and f".{field}.place" in saved.arrays


def _move_rows_to_host(rows: Params, folder: Path) -> HostRows:
    """Writes rows `[N, ...]` to the file of host rows, but for those equal to the most frequent one; returns them."""
    leaves, structure = jax.tree.flatten(rows)
    checks = np.array([row_checksum(row_views(leaves, row)) for row in range(slots_of(rows))], np.uint32)
    _, member, sizes = np.unique(checks, return_index=True, return_counts=True)
    usual = int(member[sizes.argmax()])
    first = [leaf[usual : usual + 1] for leaf in leaves]

    def differs(row: int) -> bool:
        return not all(map(np.array_equal, row_views(leaves, row), row_views(first, 0)))

    kept = HostRows(Index.empty(jax.tree.unflatten(structure, first), len(checks)), folder)
    kept.write(np.arange(len(checks)), rows, np.array([differs(row) for row in range(len(checks))]))
    kept.settle()
    return kept


class Diverged(RuntimeError):
    """A run has diverged: its clients' updates are no longer finite, or none ever was.

    Attributes:
        state: the method's last; updates that are not finite were left out of it.
        history: the records until then.
        outcomes: of several seeds, a result or such an error for each; empty for one.
    """

    def __init__(self, message: str, state: Any, history: History):
        super().__init__(message)
        self.state, self.history = state, history
        self.outcomes: Sequence[Any] = ()


def check_complete(kept: bool) -> None:
    """Raises ValueError if a best checkpoint would lack the clients' models.

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
    """The progress of a run, which resumes from the checkpoint in its directory, if there is one.

    Args:
        directory: where checkpoint and history are kept; None keeps nothing on disk.
        identity: what the run's numbers depend on, see `identity_of`.
        resume: whether to go on with a run that is there.

    Attributes:
        done: rounds done so far.
        saved: the round of the last checkpoint; 0 where there is none.
        tally: of these rounds.
        round_seconds: seconds per round, of every call since the run was started or resumed.

    Raises:
        ValueError: the directory holds another run.
    """

    def __init__(self, directory: RunDirectory | None, identity: dict[str, Any], *, resume: bool):
        self._directory, self._identity = directory, identity
        self._start = None if directory is None else directory.open(identity, resume=resume)
        header = {"round": 0, "tally": {}} if self._start is None else self._start.header
        try:
            self.done, self.tally = header["round"], RoundTotals(**header["tally"])
        except ValueError as error:
            path = self._start.path if self._start else ""
            raise ValueError(f"{path} is not the checkpoint of a run ({error}); choose another directory.") from error
        self.round_seconds: list[float] = []
        self._times: ClockTotals | None = None
        self._kept_in: set[Path] = set()
        self.saved = self._resumed_at = self.done

    @functools.cached_property  # opened after the state is restored: a run that is refused changes no file
    def history(self) -> History:
        """Returns the history, which writes each record to the directory."""
        history = History() if self._directory is None else self._directory.history(self._resumed_at)
        if self._identity.get(KEEPS_CLIENTS) and processes.first():
            history.keep_clients()
        return history

    @property
    def history_so_far(self) -> History:
        """Returns the history; an empty one without a file before the first record, since the file marks a run."""
        return self.history if self._resumed_at or "history" in vars(self) else History()

    def restore(self, shapes: Params, method: Method | None = None, *, kept: bool = False) -> Params | None:
        """Returns the checkpoint's state in host memory; None where the run starts.

        Args:
            shapes: of the method's first state; slots may have grown since.
            method: whose state it is, see `restore_state`.
            kept: whether the rows of the clients, see `Method.per_client`, stay on the host.

        Raises:
            ValueError: the checkpoint holds the state of another method.
        """
        start, self._start = self._start, None  # its arrays are of no use after this
        return None if start is None else restore_state(start, shapes, method, kept=kept)

    @property
    def median_round_seconds(self) -> float | None:
        """Returns the median seconds of a round over all calls; None before the first."""
        return statistics.median(self.round_seconds) if self.round_seconds else None

    @property
    def last_round_seconds(self) -> float:
        """Returns the seconds of a round in the last call; before the first, the mean of all rounds."""
        return self.round_seconds[-1] if self.round_seconds else self.tally.seconds / max(self.done, 1)

    @property
    def recorded(self) -> bool:
        """Returns whether there is a record of these rounds."""
        return bool(records := self.history_so_far.records) and records[-1]["round"] == self.done

    def add(self, made: Advance, data: FederatedData) -> None:
        """Adds the rounds of a call."""
        vectors = bool(self._identity.get(RECORDS_VECTORS))
        self.tally.add(made.log, made.count, data, made.seconds, vectors=vectors)
        self.done += made.count
        self.round_seconds.append(made.round_seconds)
        if made.log.times is not None:
            log = jax.tree.map(lambda leaf: np.asarray(leaf)[: made.count], made.log._replace(info=()))
            self._times = self.times(data) or ClockTotals(data, {})
            self._times.add(log.times, log.ids, log.mask)

    def times(self, data: FederatedData) -> ClockTotals | None:
        """Returns the totals of a run with a clock; None without one, and before the first round."""
        if self._times is None and self.tally.clock:
            self._times = ClockTotals(data, self.tally.clock)
        return self._times

    def check(
        self, evaluation: Evaluation, data: FederatedData, rounds: int, state: Params, noise: float | None = None
    ) -> None:
        """Raises `Diverged` if the run has diverged; the files of earlier rounds stay as they are.

        Args:
            evaluation: after the rounds done so far.
            data: the federation.
            rounds: in all.
            state: after the rounds done so far.
            noise: as `divergence_remedy` takes it.

        Raises:
            Diverged: see `divergence_reason`.
        """
        found = divergence_reason(self.tally.lost, self.tally.updates, evaluation, data, ended=self.done == rounds)
        if not found:
            return
        kept = ""
        with self._name_disk_errors():
            self.history_so_far.save_clients()
        if self._directory is not None:
            held = f"round {self.saved} is kept in" if self.saved else "nothing was good enough to be kept in"
            kept = f"; {held} {self._directory.path}"
        raise Diverged(
            f"the run has diverged: {found}, so it was stopped after round {self.done} of {rounds}{kept}; "
            f"{divergence_remedy(data, noise)}.",
            state,
            self.history_so_far,
        )

    @property
    def kept(self) -> str:
        """Returns a phrase for the checkpoint from which the run can be resumed."""
        if self._directory is None or not self.saved:
            return "nothing is kept"
        return f"the checkpoint of round {self.saved} is kept in {str(self._directory.path)!r}"

    def record(self, evaluation: Evaluation) -> dict[str, Any]:
        """Writes the record of an evaluation after these rounds, and returns it.

        Raises:
            OSError: it cannot be written; the message says what is kept.
        """
        record = self.tally.record(self.done, evaluation, self.median_round_seconds)
        record |= {} if self._times is None else self._times.record()
        with self._name_disk_errors():
            self.history.append(record, evaluation.cluster)
        self.history.note_clients(self.done, history_columns(evaluation))
        return record

    def restore_clusters(self, evaluation: Evaluation) -> None:
        """Writes the clusters of a run that has ended and whose file of them is missing; earlier ones are not known.

        Raises:
            OSError: they cannot be written; the message says what is kept.
        """
        history = self.history
        if history.path is None or history.moves or not history.records:
            return
        with self._name_disk_errors():
            history.note_clusters(self.done, evaluation.cluster)
        if history.moves and len(history) > 1:
            warnings.warn(
                f"{history.path.with_name(CLUSTERS)} was missing, and has the clusters of round {self.done} alone; "
                "those of earlier rounds are not known.",
                stacklevel=2,
            )

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
        with self._name_disk_errors():
            self.history.correct(evaluation.metrics)
            self.history.note_clients(self.done, history_columns(evaluation))
            self.history.save_clients()
        return self.history[-1]

    def save(self, state: Params, *, sound: Callable[[Params], bool] | None = None, anew: bool = False) -> bool:
        """Writes a checkpoint, if there is a directory and none of this round; returns whether it did.

        Args:
            state: after the rounds done so far.
            sound: returns whether the state may be saved: that a run has diverged is found when it is
                evaluated, and must find what was good before. None where it has been evaluated.
            anew: also where there is one of this round.

        Raises:
            OSError: it cannot be written; the message says what is kept.
        """
        due = self.saved < self.done or anew
        if self._directory is None or not due or not (sound is None or sound(state)):
            return False
        with self._name_disk_errors(), saved_on_disk(state) as saved:
            self.history.save_clients()  # first: a checkpoint has all evaluations before it
            self._directory.save(saved, self._header())
        self.saved = self.done
        return True

    def keep(self, folder: Path, state: Params) -> None:
        """Writes a checkpoint of these rounds into a folder beside the run's own, and the history until then.

        Raises:
            ValueError: the clients' own models stay on the host: their file is that of the run; or the folder holds
                another run, or is that of this one.
            OSError: it cannot be written; the message names the folder, and says what is kept.
        """
        check_complete(has_host_rows(state))
        folder = Path(folder)
        if self._directory is not None and folder.resolve() == self._directory.path.resolve():
            raise ValueError(
                f"folder must be another than that of the run, whose next checkpoint is in its place, got "
                f"{str(folder)!r}; give {str(folder / 'best')!r}."
            )
        best = RunDirectory(folder, "folder")
        with best.locked():
            if folder not in self._kept_in:
                best.check_identity(self._identity, resume=True)
                self._kept_in.add(folder)
            with best.name_disk_errors(self.kept):
                History.writing(folder / HISTORY, self.history)
                checkpoint.save(folder, state, self._header())

    def _header(self) -> dict[str, Any]:
        """Returns the header of a checkpoint."""
        if self._times is not None:
            self.tally.clock = self._times.saved()
        return {"identity": self._identity, "round": self.done, "tally": vars(self.tally), "records": len(self.history)}

    @contextlib.contextmanager
    def _name_disk_errors(self) -> Iterator[None]:
        """Adds the last checkpoint to the error of a file that cannot be written."""
        with contextlib.nullcontext() if self._directory is None else self._directory.name_disk_errors(self.kept):
            yield
