"""The loop of a run between its compiled rounds: evaluations, records, checkpoints and callbacks."""

import contextlib
import dataclasses
import functools
import time
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxfl.clock.totals import NOW
from jaxfl.clock.trace import at_time
from jaxfl.cohort import halve_chunk
from jaxfl.data.clients import FederatedData
from jaxfl.models.fast import rewriting
from jaxfl.sampling import sampler_name
from jaxfl.simulation import processes
from jaxfl.simulation.callbacks import Finished
from jaxfl.simulation.evaluation.evaluate import Evaluator
from jaxfl.simulation.evaluation.metrics import Evaluation
from jaxfl.simulation.evaluation.test_sets import on_same_pool
from jaxfl.simulation.host.streaming import RowStream
from jaxfl.simulation.interrupts import Deferred, Stopped
from jaxfl.simulation.program import Advance
from jaxfl.simulation.progress import Diverged, Progress
from jaxfl.simulation.records.identity import DIGEST, JAX_SETTINGS, federation_fingerprint
from jaxfl.simulation.result import Event, Result, shortfall_of, summary_of
from jaxfl.simulation.rounds import HostRounds, Rounds, arriving_clients
from jaxfl.simulation.schedule import Clock
from jaxfl.simulation.seeds import LaneRounds, program_groups, rounds_done, seeds_per_program
from jaxfl.simulation.spec import RunSpec, SeedSpec

Outcome = Result | Diverged
Called = dict[int, int]  # of each seed, the last round that callbacks were called after


class RunState:
    """Everything that changes while the run of one seed goes on, but for the method's state.

    Args:
        spec: of the seeds that share the program.
        of_seed: the part that belongs to this seed.
        data: on the device, or on the host where rows stay there.
        progress: the rounds done.
        program: the compiled rounds, those of the other seeds too.
        called: the last round of each seed after which callbacks were called, updated here; they are not called twice
            after the same round.

    Attributes:
        diverged: the error of a run that has diverged, which is not evaluated any more; None of any other.
        ended: whether a callback has ended it; of several seeds in one program the last one ends them all.
    """

    def __init__(
        self, spec: RunSpec, of_seed: SeedSpec, data: FederatedData, progress: Progress, program: Rounds, called: Called
    ):
        self._spec, self._of_seed, self._data = spec, of_seed, data
        self._progress, self._program = progress, program
        self._key, self._clock = jax.random.key(of_seed.seed), Clock(spec.began)
        self._called, self._called_before = called, called.get(of_seed.seed, -1)
        self._evaluation: Evaluation | None = None
        self._last: Advance | None = None
        self.diverged: Diverged | None = None
        self.ended = any(isinstance(one, Finished) for one in spec.callbacks)
        self._test_rows = test_rows = spec.schedule.test_rows
        sets = on_same_pool(of_seed.test_sets, of_seed.data, data)
        self._evaluate = spec.prepared.evaluator(data, spec.finetune, sample=of_seed.sample, test_sets=sets)
        self._evaluate_some = self._evaluate
        if test_rows is not None:
            self._evaluate_some = spec.prepared.evaluator(data, spec.finetune, test_rows, of_seed.sample, sets)

    @property
    def first_evaluator(self) -> Evaluator:
        """The evaluator of all evaluations but the last one."""
        return self._evaluate_some

    def saves_after(self, done: int) -> bool:
        """Returns whether a checkpoint is due after so many rounds, by the schedule and the clock of this seed."""
        return self.diverged is None and self._clock.saves(self._spec.schedule, done)

    def after_rounds(self, state: Any, made: Advance, *, saves: bool) -> None:
        """Adds a round log to the totals; evaluates, records, saves and calls back where that is due.

        Args:
            state: after the rounds.
            made: their log.
            saves: whether a checkpoint is due, the same for all seeds of a program, which go on together.
        """
        progress, schedule = self._progress, self._spec.schedule
        progress.add(made, self._data.at(progress.done))
        self._last = made
        if self.diverged is not None:
            return
        record = None
        if schedule.evaluates(progress.done):
            evaluate = self._evaluate if progress.done == schedule.rounds else self._evaluate_some
            self._evaluation = self._clock.evaluate(evaluate, self._key, state)
            if not self._is_sound(self._evaluation, schedule.rounds, state):
                return
            record = progress.record(self._evaluation)
        if saves:  # an evaluation has looked at the state, if there was one
            self._clock.save(progress, state, sound=self._program.serves if record is None else None)
        event = self._event(record, state, whole=self._test_rows is not None and progress.done == schedule.rounds)
        try:
            self._call_back(event)
        except BaseException:  # of a user's function: no round is lost
            self.save(state)
            raise

    def end(self, state: Any) -> None:
        """Evaluates, records and saves a run that ends before its last round, and calls back."""
        if self.diverged is not None:
            return
        progress, record, evaluated = self._progress, None, self._progress.recorded
        if not evaluated or self._test_rows is not None:  # the last evaluation is of all rows
            self._evaluation = self._clock.evaluate(self._evaluate, self._key, state)
            if not evaluated and not self._is_sound(self._evaluation, progress.done, state):
                return
            record = (progress.correct if evaluated else progress.record)(self._evaluation)
        # no second event for a record that callbacks have
        self._clock.save(progress, state, sound=self._program.serves, anew=not evaluated)
        event = self._event(record, state, whole=self._test_rows is not None)
        if record is not None or progress.round_seconds:
            self._call_back(event._replace(rounds=progress.done, again=evaluated and record is not None))

    def _is_sound(self, evaluation: Evaluation, rounds: int, state: Any) -> bool:
        """Returns whether the run, of so many rounds in all, has not diverged."""
        noise = None if self._spec.privacy is None else self._spec.privacy.privacy.noise
        try:
            self._progress.check(evaluation, self._data.at(self._progress.done), rounds, state, noise)
        except Diverged as error:
            self.diverged = error
        return self.diverged is None

    def _call_back(self, event: Event) -> None:
        """Calls the callbacks."""
        if event.round <= self._called_before:
            return
        self._called[self._of_seed.seed] = event.round
        for callback in self._spec.callbacks if processes.first() else ():
            answer: Any = callback(event)
            # a comparison with one of JAX's numbers is an array; what else a user's function returns says nothing
            number = isinstance(answer, np.bool_ | np.ndarray | jax.Array) and np.ndim(answer) == 0
            self.ended |= answer is True or (number and answer.dtype == np.bool_ and bool(answer))

    def save(self, state: Any) -> None:
        """Saves the state of a run that is stopped."""
        if self.diverged is None:
            self._clock.save(self._progress, state, sound=self._program.serves)

    def outcome(self, state: Any) -> Outcome:
        """Returns the result of the run, or the error of a run that has diverged."""
        if self.diverged is not None:
            return self.diverged
        spec, of_seed, progress, clock = self._spec, self._of_seed, self._progress, self._clock
        prepared, seeds, times = spec.prepared, len(spec.seeds), progress.times(self._data)
        late = "" if times is None or spec.policy is None else times.sentence(spec.policy.deadline)
        short = shortfall_of(prepared.method, state, self._data.at(progress.done), progress.tally, prepared.size)
        evaluation = self._evaluation or clock.evaluate(self._evaluate, self._key, state)  # resumed at its end
        if self._evaluation is None:
            progress.restore_clusters(evaluation)
        devices = 1 if prepared.plan.mesh is None else prepared.plan.mesh.size
        summary = summary_of(
            of_seed.data,
            evaluation,
            progress,
            clock,
            **({} if spec.privacy is None else spec.privacy.summary(progress.done)),
            seed=of_seed.seed,
            fingerprint=federation_fingerprint(of_seed.identity),
            **({DIGEST: of_seed.identity[DIGEST]} if DIGEST in of_seed.identity else {}),
            **{name: of_seed.identity[name] for name in JAX_SETTINGS if name in of_seed.identity},
            rounds_asked=spec.schedule.rounds,
            cohort=spec.cohort,
            sampler=sampler_name(spec.sampler),
            compile_seconds=self._program.compile_seconds,
            lower_is_better=list(prepared.method.task.metrics.lower),
            factored=self._program.factored,
            fast_forms=rewriting.phrase(prepared.method.task.fast.replaced),
            chunk=(prepared.lane if seeds > 1 else prepared.plan).chunk,
            devices=min(devices, seeds) if seeds > 1 else devices,
            processes=jax.process_count(),
            seeds_together=seeds,
            test_rows=spec.schedule.test_rows,
            eval_clients=of_seed.data.num_clients if of_seed.sample is None else len(of_seed.sample),
            resident=not prepared.host_data,
            resident_state=not prepared.host_state,
            shortfall=" ".join(filter(None, (short, late))),
            **({} if times is None else times.record()),
        )
        names = {"client_names": of_seed.client_names, "speeds": None, "trace": None, "filled": 0.0}
        data = dataclasses.replace(self._data.at(progress.done), **names)
        drifting = None if self._data.drift is None else dataclasses.replace(self._data, speeds=None, trace=None)
        columns = None if times is None else times.columns()
        return Result(state, progress.history, evaluation, data, summary, prepared.method, drifting, columns)

    def _event(self, record: dict[str, Any] | None, state: Any, *, whole: bool) -> Event:
        """Returns the event of some rounds for callbacks."""
        progress, clock, tally = self._progress, self._clock, self._progress.tally
        seconds = progress.last_round_seconds
        left = clock.left(self._spec.schedule, progress.done, seconds)
        return Event(
            progress.done,
            self._spec.schedule.rounds,
            tally.num_clusters,
            tally.last_loss,
            seconds,
            record,
            seconds=clock.seconds,
            seconds_left=len(self._spec.seeds) * left,
            compile_seconds=self._program.compile_seconds,
            evaluation_seconds=sum(clock.evaluations),
            saving_seconds=sum(clock.savings),
            seed=self._of_seed.seed if self._spec.several else None,
            keep=functools.partial(progress.keep, state=state),
            lower=tuple(self._spec.prepared.method.task.metrics.lower),
            whole=whole,
            earlier=progress.history_so_far.records[: -1 if record is not None else None],
            cohort=None if self._last is None else self._last.last_cohort,
            state=state,
        )


def train(spec: RunSpec) -> list[Outcome]:
    """Trains all seeds, several per program where that is fast, and returns the outcome of each.

    A program that runs out of memory goes on in less of it, see `in_less_memory`. After rounds that are made again
    callbacks are not called: of the same evaluation twice, the second would be no better than the first.

    Warns:
        UserWarning: a signal came when all rounds were made, or the memory did not suffice.
    """
    found: dict[int, Outcome] = {}
    called: Called = {}
    done = rounds_done(spec)
    alone = (
        spec.prepared.host_data
        or spec.prepared.host_state
        or any(len(arriving_clients(one.data)) for one in spec.seeds)
    )
    with contextlib.ExitStack() as stack:
        for one in spec.seeds:
            if one.directory is not None:
                stack.enter_context(one.directory.locked())
        most = 1 if alone else seeds_per_program(len(spec.seeds))
        waiting = [spec._replace(seeds=group) for group in program_groups(spec.seeds, most, done)]
        while waiting:
            part = waiting.pop(0)
            progresses = [Progress(one.directory, one.identity, resume=part.resume) for one in part.seeds]
            try:
                outcomes = _train_program(part, progresses, called)
            except Stopped as stopped:
                if len(found) + len(stopped.outcomes) < len(spec.seeds):
                    raise
                outcomes = stopped.outcomes  # there is nothing left to stop
                warnings.warn("the run was asked to stop when all its rounds were made: it is whole.", stacklevel=4)
            except (MemoryError, jax.errors.JaxRuntimeError) as error:
                if not is_out_of_memory(error, part):
                    raise
                outcomes = None
            if outcomes is None:  # behind the handler, which would keep the first state alive
                newest = max(progresses, key=lambda progress: progress.saved)  # one that has diverged may have none
                waiting[:0] = in_less_memory(part, newest.kept, first=part.prepared.plan == spec.prepared.plan)
                continue
            found |= {one.seed: outcome for one, outcome in zip(part.seeds, outcomes, strict=True)}
            waiting[:1] = [part._replace(began=time.perf_counter()) for part in waiting[:1]]  # a time of its own
    return [found[one.seed] for one in spec.seeds]


def is_out_of_memory(error: Exception, spec: RunSpec) -> bool:
    """Returns whether an error means that a program may go on in less memory.

    Args:
        error: of the program.
        spec: of its seeds; one seed alone whose program does not fit is refused.
    """
    return len(spec.seeds) > 1 if isinstance(error, MemoryError) else "RESOURCE_EXHAUSTED" in str(error)


def in_less_memory(spec: RunSpec, kept: str, *, first: bool) -> list[RunSpec]:
    """Returns the parts in which a program that ran out of memory goes on from the last checkpoint.

    Several seeds are trained one after another then, and one with half the chunk.

    Args:
        spec: of the seeds of the program.
        kept: what there is to go on from, in words.
        first: whether the chunk has not been halved before.

    Warns:
        UserWarning: always.

    Raises:
        MemoryError: the chunk cannot be halved, or was before.
    """
    if len(spec.seeds) > 1:
        warnings.warn(
            f"the memory does not hold {len(spec.seeds)} seeds at a time; {kept}, and they go on one after another.",
            stacklevel=5,
        )
        return [spec._replace(seeds=(one,), resume=True) for one in spec.seeds]
    plan, size = spec.prepared.plan, spec.prepared.size
    smaller = halve_chunk(plan, size)
    problem = f"the device ran out of memory with {plan.chunk or size} clients at a time; {kept}"
    if smaller is None or not first or processes.several():  # the others know nothing of it
        raise MemoryError(f"{problem}; lower the chunk (plan, --set chunk=), or take a smaller model.")
    warnings.warn(
        f"{problem}, and the run goes on from there with {smaller.chunk} at a time: the same choices, sums rounded "
        "otherwise.",
        stacklevel=5,
    )
    return [spec._replace(prepared=spec.prepared._replace(plan=smaller), resume=True)]


def _train_program(spec: RunSpec, progresses: Sequence[Progress], called: Called) -> list[Outcome]:
    """Trains the seeds of one program, which have the same rounds done, and returns the outcome of each."""
    schedule, first, prepared = spec.schedule, progresses[0], spec.prepared
    schedule.check_done(first.done)
    pairs = zip(spec.seeds, progresses, strict=True)
    data = prepared.place([at_time(one.data, progress.tally.clock.get(NOW)) for one, progress in pairs])
    program = _program(spec, data)
    runs = [RunState(spec, *own, program, called) for own in zip(spec.seeds, data, progresses, strict=True)]

    def whole() -> list[Outcome]:
        return [run.outcome(own) for run, own in zip(runs, program.states(state), strict=True)]

    def stopped() -> Stopped:
        # seeds that have diverged are not saved any more
        saved = min((one.saved for one, run in zip(progresses, runs, strict=True) if run.diverged is None), default=0)
        return Stopped(first.done, schedule.rounds, saved, whole() if first.done == schedule.rounds else ())

    with Deferred(stopped) as signals:
        method, on_host = prepared.method, prepared.host_state
        saved = [progress.restore(prepared.shapes, method, kept=on_host) for progress in progresses]
        resident = not (prepared.host_data or on_host or len(runs) > 1 or processes.several())
        state = program.start(saved, runs[0].first_evaluator if resident else None)
        while ahead := _ahead(signals, schedule.ahead(first.done, program.round_seconds), runs):
            state, made = program.advance(state, ahead)
            if made.count:
                signals.at_stake = True
                done = first.done + made.count
                if done in schedule.drift_rounds and len(arriving_clients(data[0], done)):
                    state = program.add_newcomers(state, done)
                saves = any(run.saves_after(first.done + made.count) for run in runs)
                for run, part in zip(runs, program.parts(state, made), strict=True):
                    run.after_rounds(*part, saves=saves)
            if made.overflow:
                state = program.grow(state, made.overflow, first.done + 1)
        if signals.asked:
            for run, own in zip(runs, program.states(state), strict=True):
                run.save(own)
        elif first.done < schedule.rounds or not first.round_seconds:  # ended by a callback, or resumed at its end
            for run, own in zip(runs, program.states(state), strict=True):
                run.end(own)
    return whole()


def _ahead(signals: Deferred, count: int, runs: Sequence[RunState]) -> int:
    """Returns how many rounds to make now, the same number at every process; 0 where one of them received a signal."""
    answers = processes.gathered(0 if all(run.diverged or run.ended for run in runs) else count, signals.number)
    signals.hear(int(answers[:, 1].max()))
    return 0 if answers[:, 1].any() else int(answers[0, 0])  # by the clock of the first


def _program(spec: RunSpec, data: Sequence[FederatedData]) -> Rounds:
    """Returns the compiled rounds of one seed, or of several."""
    prepared, sampler = spec.prepared, spec.sampler
    if len(spec.seeds) > 1:
        return LaneRounds(prepared, [one.seed for one in spec.seeds], data, sampler, spec.policy)
    of_seed = spec.seeds[0]
    key = jax.random.key(of_seed.seed)
    if not (prepared.host_data or prepared.host_state):
        return Rounds(prepared, key, data[0], sampler, policy=spec.policy)
    rounds, cut = spec.schedule.rounds, prepared.host_data
    stream = RowStream(data[0], key, prepared.size, prepared.plan, sampler, rounds, cut=cut)
    if prepared.host_state:
        folder = None if of_seed.directory is None else of_seed.directory.path
        return HostRounds(prepared, key, sampler, stream, folder, spec.policy)
    return Rounds(prepared, key, stream.blank, sampler, stream, spec.policy)
