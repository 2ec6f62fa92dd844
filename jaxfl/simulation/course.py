"""The course of one seed's run between its compiled rounds: evaluate, record, save and tell."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from jaxfl.cohort import Plan
from jaxfl.data.clients import FederatedData
from jaxfl.models import rewriting
from jaxfl.simulation import processes
from jaxfl.simulation.asked import Asked, One
from jaxfl.simulation.evaluate import evaluator
from jaxfl.simulation.metrics import Evaluation
from jaxfl.simulation.program import Made
from jaxfl.simulation.progress import Diverged, Progress
from jaxfl.simulation.result import Event, Result
from jaxfl.simulation.rounds import Rounds
from jaxfl.simulation.schedule import Clock
from jaxfl.simulation.summary import summary_of

Outcome = Result | Diverged
Heard = dict[int, int]  # of each seed, the last round that callbacks were told of


class Course:
    """The run of one seed, between its rounds.

    Args:
        asked, one, plan: what was asked for, and how its clients are walked through.
        data: on the device.
        progress: how far it has come.
        program: its rounds, those of other seeds too.
        together: how many seeds these are.
        heard: is kept up to date; what callbacks were told before, they are not told again.

    Attributes:
        diverged: what it has come to nothing by; it is not looked at any more then.
        ended: whether a callback has ended it; of several in one program the last one ends them all.
    """

    def __init__(
        self,
        asked: Asked,
        one: One,
        plan: Plan,
        data: FederatedData,
        progress: Progress,
        program: Rounds,
        together: int,
        heard: Heard,
    ):
        self._asked, self._one, self._plan, self._data = asked, one, plan, data
        self._progress, self._program, self._together = progress, program, together
        self._key, self._clock = jax.random.key(one.seed), Clock(asked.began)
        self._heard, self._silent_until = heard, heard.get(one.seed, -1)
        self._evaluation: Evaluation | None = None
        self.diverged: Diverged | None = None
        self.ended = False
        rows = {"clients": one.tested, "stream": asked.stream}
        self._few = few = asked.schedule.test_rows
        self._look = evaluator(asked.method, data, plan, asked.finetune, **rows)
        self._glance = self._look if few is None else evaluator(asked.method, data, plan, asked.finetune, few, **rows)

    def look(self, state: Any, made: Made) -> None:
        """Adds up what was made, and evaluates, records, saves and tells what is due."""
        progress, schedule = self._progress, self._asked.schedule
        progress.add(made, self._data.at(progress.done))
        if self.diverged is not None:
            return
        record = None
        if schedule.evaluates(progress.done):
            look = self._look if progress.done == schedule.rounds else self._glance
            self._evaluation = self._clock.evaluate(look, self._key, state)
            if not self._sound(self._evaluation, schedule.rounds, state):
                return
            record = progress.record(self._evaluation)
        if schedule.saves(progress.done):  # an evaluation has looked at the state, if there was one
            self._clock.save(progress, state, sound=self._program.serves if record is None else None)
        self._tell(self._event(record, state, whole=self._few is not None and progress.done == schedule.rounds))

    def end(self, state: Any) -> None:
        """Evaluates, records and saves a run that is over before its time, and tells so."""
        if self.diverged is not None:
            return
        progress, record, evaluated = self._progress, None, self._progress.recorded
        if not evaluated or self._few is not None:  # the last evaluation is of all rows
            self._evaluation = self._clock.evaluate(self._look, self._key, state)
            if not evaluated and not self._sound(self._evaluation, progress.done, state):
                return
            record = (progress.correct if evaluated else progress.record)(self._evaluation)
        # what is recorded is not told again
        self._clock.save(progress, state, sound=self._program.serves, anew=not evaluated)
        event = self._event(record, state, whole=self._few is not None)
        if record is not None or progress.paces:
            self._tell(event._replace(rounds=progress.done, again=evaluated and record is not None))

    def _sound(self, evaluation: Evaluation, rounds: int, state: Any) -> bool:
        """Returns whether the run, of so many rounds, has come to something."""
        try:
            self._progress.check(evaluation, self._data.at(self._progress.done), rounds, state)
        except Diverged as error:
            self.diverged = error
        return self.diverged is None

    def _tell(self, event: Event) -> None:
        """Calls the callbacks."""
        if event.round <= self._silent_until:
            return
        self._heard[self._one.seed] = event.round
        for callback in self._asked.callbacks if processes.first() else ():
            told: Any = callback(event)
            # a comparison with one of JAX's numbers is an array; what else a user's function returns says nothing
            number = isinstance(told, np.bool_ | np.ndarray | jax.Array) and np.ndim(told) == 0
            self.ended |= told is True or (number and told.dtype == np.bool_ and bool(told))

    def save(self, state: Any) -> None:
        """Saves a run that is stopped."""
        if self.diverged is None:
            self._clock.save(self._progress, state, sound=self._program.serves)

    def outcome(self, state: Any) -> Outcome:
        """Returns what came of the run."""
        if self.diverged is not None:
            return self.diverged
        asked, one, plan, progress, clock = self._asked, self._one, self._plan, self._progress, self._clock
        evaluation = self._evaluation or clock.evaluate(self._look, self._key, state)  # resumed at its end
        shared, devices = self._together > 1, 1 if plan.mesh is None else plan.mesh.size
        summary = summary_of(
            one.data,
            evaluation,
            progress,
            clock,
            seed=one.seed,
            cohort=asked.size,
            compile_seconds=self._program.compile_seconds,
            lower_is_better=list(asked.method.task.metrics.lower),
            factored=self._program.factored,
            fast_forms=rewriting.in_words(asked.method.task.replaced),
            chunk=(asked.inside if shared else plan).chunk,
            devices=min(devices, self._together) if shared else devices,
            processes=jax.process_count(),
            seeds_together=self._together,
            test_rows=asked.schedule.test_rows,
            eval_clients=one.data.num_clients if one.tested is None else len(one.tested),
            resident=not asked.stream,
            resident_state=not asked.kept,
        )
        data = dataclasses.replace(self._data.at(progress.done), client_names=one.client_names, filled=0.0)
        began = None if self._data.drift is None else self._data.at(0)
        return Result(state, progress.history, evaluation, data, summary, asked.method, began)

    def _event(self, record: dict[str, Any] | None, state: Any, *, whole: bool) -> Event:
        """Returns what callbacks are told after some rounds."""
        progress, clock, tally, pace = self._progress, self._clock, self._progress.tally, self._progress.last_pace
        return Event(
            progress.done,
            self._asked.schedule.rounds,
            tally.num_clusters,
            tally.last_loss,
            pace,
            record,
            seconds=clock.seconds,
            seconds_left=self._together * clock.left(self._asked.schedule, progress.done, pace),
            compile_seconds=self._program.compile_seconds,
            evaluation_seconds=sum(clock.evaluations),
            saving_seconds=sum(clock.savings),
            seed=self._one.seed if self._asked.several else None,
            keep=functools.partial(progress.keep, state=state),
            lower=tuple(self._asked.method.task.metrics.lower),
            whole=whole,
            earlier=progress.so_far.records[: -1 if record is not None else None],
        )
