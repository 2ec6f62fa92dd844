"""What a run does between its compiled rounds: evaluate, record, save and tell; of one seed or of several at once."""

import contextlib
import time
import warnings
from collections.abc import Sequence

import jax

from jaxfl import engine
from jaxfl.cohort import Plan
from jaxfl.data.clients import FederatedData
from jaxfl.simulation import processes
from jaxfl.simulation.arrivals import arriving
from jaxfl.simulation.asked import Asked, One
from jaxfl.simulation.course import Course, Heard, Outcome
from jaxfl.simulation.interrupts import Deferred, Stopped
from jaxfl.simulation.kept_rounds import KeptRounds
from jaxfl.simulation.progress import Progress
from jaxfl.simulation.rounds import Rounds
from jaxfl.simulation.seeds import RoundsInLanes, behind, groups, placed, together
from jaxfl.simulation.streaming import Stream


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
        smaller = engine.halved(plan, asked.size)
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
