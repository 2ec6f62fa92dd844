"""What a run does between its compiled rounds: evaluate, record, save and tell; of one seed or of several at once."""

import contextlib
import dataclasses
import functools
import time
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxfl.cohort import Plan, halve_chunk
from jaxfl.data.clients import FederatedData
from jaxfl.models.fast import rewriting
from jaxfl.simulation import processes
from jaxfl.simulation.asked import Asked, One
from jaxfl.simulation.evaluation.evaluate import evaluator
from jaxfl.simulation.evaluation.metrics import Evaluation
from jaxfl.simulation.host.streaming import Stream
from jaxfl.simulation.interrupts import Deferred, Stopped
from jaxfl.simulation.program import Made
from jaxfl.simulation.progress import Diverged, Progress
from jaxfl.simulation.result import Event, Result, summary_of
from jaxfl.simulation.rounds import KeptRounds, Rounds, arriving
from jaxfl.simulation.schedule import Clock
from jaxfl.simulation.seeds import RoundsInLanes, behind, groups, placed, together

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
            fast_forms=rewriting.in_words(asked.method.task.fast.replaced),
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


def outcomes(asked: Asked, ones: Sequence[One], plan: Plan, resume: bool) -> list[Outcome]:
    """Makes the runs of all seeds: as many in one program as is fast, one program after another.

    Args:
        asked: of all.
        ones: each seed's; their data have the same shapes.
        plan: of a run of one seed.
        resume: whether to go on with the runs that are there.

    Warns:
        UserWarning: a signal came when all rounds were made.
    """
    found: dict[int, Outcome] = {}
    heard: Heard = {}
    made_before = behind(ones, asked.schedule, resume)
    alone = asked.stream or asked.kept or any(len(arriving(one.data)) for one in ones)
    with contextlib.ExitStack() as stack:
        for one in ones:
            if one.directory is not None:
                stack.enter_context(one.directory.alone())
        for place, group in enumerate(groups(ones, 1 if alone else together(len(ones)), made_before)):
            timed = asked._replace(began=time.perf_counter()) if place else asked  # each program has its own time
            try:
                made = _within_memory(timed, group, plan, resume, heard)
            except Stopped as stopped:
                if len(found) + len(stopped.outcomes) < len(ones):
                    raise
                made = stopped.outcomes  # there is nothing left to stop
                warnings.warn("the run was asked to stop when all its rounds were made: it is whole.", stacklevel=4)
            found |= {one.seed: outcome for one, outcome in zip(group, made, strict=True)}
    return [found[one.seed] for one in ones]


def _within_memory(asked: Asked, ones: Sequence[One], plan: Plan, resume: bool, heard: Heard) -> list[Outcome]:
    """Makes the rounds, in less memory if the device runs out of it; once, and from the last checkpoint on.

    Several seeds are made one after another then, and one with half the chunk. Of rounds that are made again callbacks
    hear nothing: told twice, an evaluation would be no better than itself.
    """
    first = True
    while True:
        progresses = [Progress(one.directory, one.identity, resume=resume or not first) for one in ones]
        try:
            return _make(asked, ones, plan, progresses, heard)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
        except MemoryError:
            if len(ones) == 1:
                raise
        kept = progresses[0].kept  # behind the handler, which would keep the first state alive
        if len(ones) > 1:
            warnings.warn(
                f"the memory does not hold {len(ones)} seeds at a time; {kept}, and they go on one after another.",
                stacklevel=4,
            )
            return [outcome for one in ones for outcome in _within_memory(asked, [one], plan, True, heard)]
        smaller = halve_chunk(plan, asked.size)
        told = f"the device ran out of memory with {plan.chunk or asked.size} clients at a time; {kept}"
        if smaller is None or not first or processes.several():  # the others know nothing of it
            raise MemoryError(f"{told}; lower the chunk (plan, --set chunk=), or take a smaller model.")
        warnings.warn(
            f"{told}, and the run goes on from there with {smaller.chunk} at a time: the same choices, sums rounded "
            "otherwise.",
            stacklevel=4,
        )
        plan, first = smaller, False


def _make(asked: Asked, ones: Sequence[One], plan: Plan, progresses: Sequence[Progress], heard: Heard) -> list[Outcome]:
    """Makes the rounds that are still to be made; of several seeds, all have as many behind them."""
    schedule, first = asked.schedule, progresses[0]
    schedule.check_done(first.done)
    data = [one.data for one in ones] if asked.stream else placed([one.data for one in ones], plan)
    program = _program(asked, ones, plan, data)
    seeds = [
        Course(asked, one, plan, own, progress, program, len(ones), heard)
        for one, own, progress in zip(ones, data, progresses, strict=True)
    ]

    def whole() -> list[Outcome]:
        return [seed.outcome(mine) for seed, mine in zip(seeds, program.states(state), strict=True)]

    def stopped() -> Stopped:
        saved = min(progress.saved for progress in progresses)
        return Stopped(first.done, schedule.rounds, saved, whole() if first.done == schedule.rounds else ())

    with Deferred(stopped) as signals:
        saved = [progress.restore(asked.shapes, asked.method.per_client, kept=asked.kept) for progress in progresses]
        state = program.start(asked.shapes, saved)
        while ahead := _ahead(signals, schedule.ahead(first.done, program.pace), seeds):
            state, made = program.advance(state, ahead)
            if made.count:
                signals.at_stake = True
                if first.done + made.count == schedule.drifts_at and len(arriving(data[0])):
                    state = program.let_in(state)
                for seed, part in zip(seeds, program.parts(state, made), strict=True):
                    seed.look(*part)
            if made.overflow:
                state = program.grow(state, made.overflow, first.done + 1)
        if signals.asked:
            for seed, mine in zip(seeds, program.states(state), strict=True):
                seed.save(mine)
        elif first.done < schedule.rounds or not first.paces:  # ended by a callback, or resumed at its end
            for seed, mine in zip(seeds, program.states(state), strict=True):
                seed.end(mine)
    return whole()


def _ahead(signals: Deferred, count: int, seeds: Sequence[Course]) -> int:
    """Returns how many rounds to make now, the same at every process; none where one of them was asked to stop."""
    said = processes.gathered(0 if all(one.diverged or one.ended for one in seeds) else count, signals.number)
    signals.hear(int(said[:, 1].max()))
    return 0 if said[:, 1].any() else int(said[0, 0])  # by the clock of the first


def _program(asked: Asked, ones: Sequence[One], plan: Plan, data: Sequence[FederatedData]) -> Rounds:
    """Returns the rounds of one seed, or of several."""
    method, size, sampler = asked.method, asked.size, asked.sampler
    if len(ones) > 1:
        return RoundsInLanes(method, [one.seed for one in ones], data, size, plan, asked.inside, sampler)
    key = jax.random.key(ones[0].seed)
    if not (asked.stream or asked.kept):
        return Rounds(method, key, data[0], size, plan, sampler)
    stream = Stream(data[0], key, size, plan, sampler, asked.schedule.rounds, cut=asked.stream)
    if asked.kept:
        folder = None if ones[0].directory is None else ones[0].directory.path
        return KeptRounds(method, key, size, plan, sampler, stream, folder)
    return Rounds(method, key, stream.blank, size, plan, sampler, stream)
