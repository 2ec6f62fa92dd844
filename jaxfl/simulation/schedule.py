"""The schedule of a run: the rounds after which it is evaluated and saved, and its clock."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxfl.simulation import processes
from jaxfl.simulation.evaluation.metrics import Evaluation
from jaxfl.simulation.program import CAPACITY
from jaxfl.simulation.progress import Progress
from jaxfl.typing import Params

LOOK_SECONDS = 1.0  # seconds after which Python looks, so that a progress bar moves
SAVE_SECONDS = 1.0  # seconds between checkpoints, at least, where nobody says after how many rounds they are written


class Schedule(NamedTuple):
    """The rounds after which a run is evaluated and saved.

    Attributes:
        rounds: communication rounds in all.
        eval_every: rounds between evaluations.
        checkpoint_every: rounds between checkpoints.
        test_rows: the most rows of a client that are tested before the last round; None tests all.
        drift_rounds: rounds before each change of the data, see `jaxfl.data.drift`. The run is evaluated after them;
            of several changes, also one round earlier, on the data before the change.
        save_seconds: seconds between checkpoints, at least; the last one is always written.

    >>> schedule = Schedule.of(10, eval_every=4, checkpoint_every=3)
    >>> [done for done in range(1, 11) if schedule.evaluates(done)], schedule.ahead(4, seconds_per_round=None)
    ([4, 8, 10], 1)
    """

    rounds: int
    eval_every: int
    checkpoint_every: int
    test_rows: int | None = None
    drift_rounds: tuple[int, ...] = ()
    save_seconds: float = 0.0

    @classmethod
    def of(
        cls,
        rounds: int,
        eval_every: int | None = None,
        checkpoint_every: int | None = None,
        test_rows: int | None = None,
        drift_rounds: tuple[int, ...] = (),
    ) -> "Schedule":
        """Returns the schedule of a run.

        Args:
            rounds: communication rounds in all.
            eval_every: rounds between evaluations; None is a tenth of all, rounded down, or 1.
            checkpoint_every: rounds between checkpoints; None saves after every evaluation, unless
                the last checkpoint was written less than `SAVE_SECONDS` ago.
            test_rows: the most rows of a client that are tested before the last round; None tests all.
            drift_rounds: rounds before each change of the data.

        Raises:
            ValueError: a number is below 1, or beyond int32, which counts rounds and rows; or no round is left after
                the drift.
        """
        given = {"rounds": rounds, "eval_every": eval_every, "checkpoint_every": checkpoint_every}
        for name, value in {**given, "test_rows": test_rows}.items():
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
            if value is not None and value >= 2**31:
                raise ValueError(f"{name} must be below 2^31, got {value}.")
        check_drift(drift_rounds, rounds)
        eval_every = eval_every or max(1, rounds // 10)
        # several processes save together, and have not the same clock
        seconds = SAVE_SECONDS if checkpoint_every is None and not processes.several() else 0.0
        return cls(rounds, eval_every, checkpoint_every or eval_every, test_rows, drift_rounds, seconds)

    def check_done(self, done: int) -> None:
        """Raises ValueError if a resumed run has more rounds done than `rounds`."""
        if done > self.rounds:
            raise ValueError(
                f"rounds must be at least {done}, which the run that is resumed has made, got {self.rounds}; they "
                "count from its start."
            )

    def evaluates(self, done: int) -> bool:
        """Returns whether the run is evaluated after `done` rounds; it is after the last, and at a drift."""
        return done % self.eval_every == 0 or done in self._evaluated_out_of_turn()

    def evaluations_after(self, done: int) -> int:
        """Returns how many evaluations are still to be made after `done` rounds.

        >>> [Schedule(10, 4, 4).evaluations_after(done) for done in (0, 4, 9, 10)]
        [3, 2, 1, 0]
        """
        out_of_turn = sum(done < one and one % self.eval_every > 0 for one in self._evaluated_out_of_turn())
        return self.rounds // self.eval_every - done // self.eval_every + out_of_turn

    def saves(self, done: int) -> bool:
        """Returns whether the run is saved after `done` rounds; it is after the last, and where each evaluation is."""
        return done % self.checkpoint_every == 0 or done in self._saved_out_of_turn()

    def checkpoints_after(self, done: int) -> int:
        """Returns how many checkpoints are still to be written after `done` rounds.

        >>> [Schedule(10, 4, 3).checkpoints_after(done) for done in (0, 3, 9, 10)]
        [4, 3, 1, 0]
        """
        more = sum(done < one and one % self.checkpoint_every > 0 for one in self._saved_out_of_turn())
        return self.rounds // self.checkpoint_every - done // self.checkpoint_every + more

    def _saved_out_of_turn(self) -> set[int]:
        """Returns the last round, and those around a drift where a checkpoint is written after every evaluation."""
        return self._evaluated_out_of_turn() if self.checkpoint_every == self.eval_every else {self.rounds}

    def _evaluated_out_of_turn(self) -> set[int]:
        """Returns the last round, those of a drift, and of several changes also the rounds right before them."""
        before = {round - 1 for round in self.drift_rounds if round > 1 and len(self.drift_rounds) > 1}
        return {self.rounds, *self.drift_rounds} | before

    def ahead(self, done: int, seconds_per_round: float | None) -> int:
        """Returns how many rounds to advance after `done`: about `LOOK_SECONDS` of them, up to the next event.

        Args:
            done: rounds done so far.
            seconds_per_round: what the last ones took; None if it is not known: one round then.
        """
        next_look = min((one for one in self._evaluated_out_of_turn() if done < one), default=self.rounds)
        due = min(next_look, *(done + every - done % every for every in (self.eval_every, self.checkpoint_every)))
        wish = 1 if seconds_per_round is None else max(1, int(LOOK_SECONDS / max(seconds_per_round, 1e-9)))
        return min(due - done, wish, CAPACITY)


class Clock:
    """The time of a run, by what it was spent on.

    Args:
        began: when it did, by `time.perf_counter`; None is now.

    Attributes:
        evaluations: seconds of each; the first one compiles.
        savings: seconds of each checkpoint that was written.
    """

    def __init__(self, began: float | None = None):
        self._began = time.perf_counter() if began is None else began
        self._saved: float | None = None  # when the last checkpoint was written
        self.evaluations: list[float] = []
        self.savings: list[float] = []

    @property
    def seconds(self) -> float:
        """Returns the seconds since the run began, with everything: compilation, rounds, evaluations, checkpoints."""
        return time.perf_counter() - self._began

    def evaluate(self, look: Callable[..., Evaluation], *args: Any) -> Evaluation:
        """Returns the evaluation of `look`, and records its seconds."""
        began = time.perf_counter()
        evaluation = look(*args)
        self.evaluations.append(time.perf_counter() - began)
        return evaluation

    def save(self, progress: Progress, state: Params, **given: Any) -> None:
        """Saves the state, and records the seconds if a checkpoint was written."""
        began = time.perf_counter()
        if progress.save(state, **given):
            self._saved = time.perf_counter()
            self.savings.append(self._saved - began)

    def saves(self, schedule: Schedule, done: int) -> bool:
        """Returns whether a checkpoint is to be written after `done` rounds, by the schedule and the time."""
        late = self._saved is None or time.perf_counter() >= self._saved + schedule.save_seconds
        return schedule.saves(done) and (late or done == schedule.rounds)

    def left(self, schedule: Schedule, done: int, seconds_per_round: float) -> float:
        """Returns about how many seconds the rounds, evaluations and checkpoints after `done` will take."""
        usual = statistics.median(self.evaluations[1:] or self.evaluations or [0.0])
        saving = statistics.median(self.savings or [0.0])
        seconds = (schedule.rounds - done) * seconds_per_round + schedule.evaluations_after(done) * usual
        checkpoints = schedule.checkpoints_after(done)
        if schedule.save_seconds:
            checkpoints = min(checkpoints, 1 + seconds / schedule.save_seconds)
        return seconds + checkpoints * saving


def check_drift(drift_rounds: Sequence[int], rounds: int) -> None:
    """Raises ValueError if a change of the data is not before the last round.

    Args:
        drift_rounds: rounds before each change.
        rounds: of the run.
    """
    if late := [one for one in drift_rounds if one >= rounds]:
        name = "drift_round" if len(drift_rounds) == 1 else "drift_rounds"
        raise ValueError(
            f"{name} must be below rounds ({rounds}), so that there are rounds after the drift, got {late[0]}; lower "
            "it, or make more rounds."
        )


def check_checkpoints(checkpoint_every: int | None, directory: Any, argument: str = "checkpoint_dir") -> None:
    """Raises ValueError if checkpoints are requested without a directory.

    Args:
        checkpoint_every: as it was given.
        directory: of the checkpoints, or None.
        argument: what the caller calls it.
    """
    if checkpoint_every is not None and directory is None:
        raise ValueError(
            f"checkpoint_every needs {argument}, the directory of the checkpoints, got None; give {argument}, or leave "
            "checkpoint_every out."
        )
