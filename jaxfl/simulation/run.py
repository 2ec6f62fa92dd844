"""Runs a method on a federation: rounds inside one compiled program, Python entered to look and to save."""

import contextlib
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxfl import engine, processes, sampling
from jaxfl.cohort import DevicesChoice, Plan, PlanChoice
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Method, served_model
from jaxfl.models import rewriting
from jaxfl.random import check_seed
from jaxfl.sampling import Sampler, cohort_size
from jaxfl.schema import checked
from jaxfl.simulation.directory import identity_of
from jaxfl.simulation.evaluate import evaluator
from jaxfl.simulation.finetune import FineTune
from jaxfl.simulation.history import History
from jaxfl.simulation.interrupts import Deferred, Stopped
from jaxfl.simulation.metrics import Evaluation, in_a_line
from jaxfl.simulation.program import initialiser, shapes_of
from jaxfl.simulation.progress import Clock, Progress
from jaxfl.simulation.rounds import Rounds
from jaxfl.simulation.schedule import Schedule, check_kept
from jaxfl.simulation.shared import directory_at
from jaxfl.simulation.streaming import Resident, Stream, streams
from jaxfl.simulation.summary import summary_of
from jaxfl.simulation.testers import sampled_clients


class Event(NamedTuple):
    """What a callback is told, about once a second and after every evaluation."""

    round: int
    rounds: int
    num_clusters: int
    train_loss: float  # of the last round in which somebody took part; NaN if no loss was finite
    seconds_per_round: float
    record: dict[str, Any] | None  # of the evaluation that was just made, if one was
    seconds: float = 0.0  # since the run was started or resumed, with everything
    seconds_left: float = 0.0  # about, evaluations included
    compile_seconds: float = 0.0  # of these seconds; compiling the evaluation is part of the first one
    evaluation_seconds: float = 0.0


Callback = Callable[[Event], None]


class Result(NamedTuple):
    """A finished run.

    Attributes:
        state: the method's last state.
        history: a record per evaluation.
        evaluation: the last one, client by client.
        data: the federation it ran on.
        summary: one flat dictionary, ready for JSON: what ran, the last metrics, the times, the versions.
    """

    state: Any
    history: History
    evaluation: Evaluation
    data: FederatedData
    summary: dict[str, Any]

    def __repr__(self) -> str:
        """Returns a line: the arrays would fill pages."""
        names = ("num_clients", "rounds", "micro_accuracy", "macro_accuracy", "num_clusters", "diverged")
        return f"Result({self.data.name!r}, {in_a_line(self.summary, names)})"


@checked
def run(
    method: Method,
    data: FederatedData,
    *,
    rounds: int,
    cohort: int | float = 1.0,
    seed: int = 0,
    sampler: Sampler = sampling.uniform,
    eval_every: int | None = None,
    test_rows: int | None = None,
    eval_clients: int | None = None,
    finetune: FineTune | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoint_dir: str | os.PathLike | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    plan: PlanChoice = "auto",
    devices: DevicesChoice = None,
    resident: Resident = "auto",
    config: dict[str, Any] | None = None,
) -> Result:
    """Runs a method for a number of rounds.

    The result depends on the method, the data and the seed; not on how often it is evaluated or saved, nor on whether
    it was interrupted. On one CPU, two runs agree in every bit of the state and of the history, seconds apart. On
    another machine, or with another plan, they agree up to rounding: threads and chunks decide in which order numbers
    are added. So they may on a GPU in another process, where XLA takes the kernels that it finds the fastest (see
    https://openxla.org/xla/determinism).

    Several processes make a run together where `jax.distributed.initialize` was called before: all call `run` with the
    same arguments and get the same result; the first one alone reads and writes `checkpoint_dir` and calls callbacks. A
    signal to one of them stops all. The summary says `processes`, and of all of them `devices`.

    Args:
        method: from a factory of `jaxfl.methods`.
        data: the federation.
        rounds: communication rounds in all, those of the run that is resumed included.
        cohort: clients sampled in a round: a share (float in (0, 1]) or a count (int).
        seed: of the initial models, the cohorts and the batches.
        sampler: draws the cohorts, see `jaxfl.sampling`: `dropouts(...)`, `availability(...)`, or your own, which is
            told apart from others by its `__name__`.
        eval_every: rounds between evaluations; None evaluates ten times. The last round is always evaluated.
        test_rows: the most rows that are tested of each client, taken evenly from its own, in the evaluations between;
            the last round's tests all rows. None tests all every time.
        eval_clients: the most clients that are tested: the same ones in every evaluation, drawn by the seed among those
            with test rows. None tests all of up to 10,000 clients, and of more a sample of 10,000. Metrics are theirs,
            and say `eval_clients` then.
        finetune: evaluates every client a second time, after training its model on its own rows: the metrics
            `finetuned_micro_accuracy` and others, beside the usual ones, see `FineTune`. Costs N trainings and N tests
            an evaluation, and changes nothing else.
        callbacks: called with an `Event` about once a second and after every evaluation.
        checkpoint_dir: gets `history.jsonl`, a line per evaluation, and `checkpoint.npz`; None keeps nothing on disk.
        checkpoint_every: rounds between checkpoints; None saves after every evaluation.
        resume: go on from the checkpoint in `checkpoint_dir`, bit for bit; without one, start.
        plan: a `Plan` (chunk and devices), or `"auto"`. Where the device runs out of memory while the run goes on, it
            warns, halves the chunk once, and goes on from the last checkpoint, or from the start if there is none.
        devices: how many of each process's devices share a round's clients, or `"all"`. None takes all accelerators,
            the cores that `jaxfl.use_cores` has made devices or one CPU, and those of a `Plan`. The same random choices
            on any number; sums are rounded otherwise.
        resident: whether all rows lie on the device. False keeps them on the host, in memory or in mapped files (see
            `jaxfl.data.stored`), and sends those of a round ahead: the same results, bit for bit. `"auto"` does so
            where the data need more than half of the memory that is free. The summary says `resident`.
        config: what the run is, ready for JSON: goes into the checkpoint, and a resume under another one is refused.
            Give the method's options here: without them, methods with the same kind of state are not told apart, nor
            optimisers of `finetune`.

    Returns:
        The state, the history, the last evaluation and a summary.

    Raises:
        ValueError: an argument is out of range, `checkpoint_dir` holds another run, or rows cannot stay on the host for
            a method that reads everybody's.
        KeyboardInterrupt: Ctrl-C was pressed, and after a whole round the state was saved if there is a
            `checkpoint_dir`; see `jaxfl.simulation.interrupts`, for SIGTERM and a second Ctrl-C too.
        OSError: `checkpoint_dir` cannot be written to; the message says what is kept.
        MemoryError: the run needs more memory than the device has.
        Diverged: clients send nothing finite any more. Found out when the run is evaluated, and nothing is written of
            it: `checkpoint_dir` keeps what was good, the error has the state and the history.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = run(jaxfl.methods.fedavg(task, optax.sgd(0.1)), data, rounds=3, cohort=0.5, eval_every=1)
    >>> result.history.column("round")
    [1, 2, 3]
    """
    clock, schedule = Clock(), Schedule.of(rounds, eval_every, checkpoint_every, test_rows)
    check_kept(checkpoint_every, checkpoint_dir)
    size = cohort_size(cohort, data)
    # traced once, for the shapes and for the state
    init = initialiser(method, shapes_of(data), engine.mesh_of(plan, devices))
    shapes = jax.eval_shape(init, jax.random.key(check_seed(seed)), data)
    plan = engine.resolve_plan(plan, served_model(method, shapes), size, devices=devices)
    identity = identity_of(config or {}, data, seed=seed, size=size, sampler=sampler, finetune=finetune)
    identity |= {} if test_rows is None else {"test_rows": test_rows}
    tested = sampled_clients(data, eval_clients, seed)
    identity |= {} if tested is None else {"eval_clients": len(tested)}
    stream = streams(method, data, resident)
    asked = _Asked(method, data, shapes, schedule, size, seed, sampler, finetune, callbacks, clock, tested, stream)
    directory = directory_at(checkpoint_dir, resume=resume)
    processes.check_alike([identity, schedule, devices, stream, checkpoint_dir is None, resume])
    plan = plan._replace(chunk=processes.least(plan.chunk))
    with contextlib.nullcontext() if directory is None else directory.alone():
        return _within_memory(asked, plan, resume, lambda resume: Progress(directory, identity, resume=resume))


class _Asked(NamedTuple):
    """What a run was asked for."""

    method: Method
    data: FederatedData
    shapes: Any  # of the method's first state
    schedule: Schedule
    size: int  # clients of a cohort
    seed: int
    sampler: Sampler
    finetune: FineTune | None
    callbacks: Sequence[Callback]
    clock: Clock
    tested: np.ndarray | None  # who is tested; None is everybody
    stream: bool  # whether rows stay on the host


def _within_memory(asked: _Asked, plan: Plan, resume: bool, begin: Callable[[bool], Progress]) -> Result:
    """Makes the rounds, with half the chunk if the device runs out of memory; once, and from the last checkpoint on."""
    first = True
    while True:
        progress = begin(resume or not first)
        try:
            return _make(asked, plan, progress)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
        smaller = engine.halved(plan, asked.size)  # behind the handler, which would keep the first state alive
        told = f"the device ran out of memory with {plan.chunk or asked.size} clients at a time; {progress.kept}"
        if smaller is None or not first or processes.several():  # the others know nothing of it
            raise MemoryError(f"{told}; lower the chunk (plan, --set chunk=), or take a smaller model.")
        warnings.warn(
            f"{told}, and the run goes on from there with {smaller.chunk} at a time: the same choices, sums rounded "
            "otherwise.",
            stacklevel=3,
        )
        plan, first = smaller, False


def _make(asked: _Asked, plan: Plan, progress: Progress) -> Result:
    """Makes the rounds that are still to be made."""
    method, data, shapes, schedule, size, seed, sampler, finetune, callbacks, clock, tested, streamed = asked
    schedule.check_done(progress.done)
    rounds, key = schedule.rounds, jax.random.key(seed)
    stream = Stream(data, key, size, plan, sampler, rounds) if streamed else None
    data = data if streamed else data.on_device(plan.mesh)
    program = Rounds(method, key, data if stream is None else stream.blank, size, plan, sampler, stream)
    rows = {"clients": tested, "stream": streamed}
    look, evaluation = evaluator(method, data, plan, finetune, **rows), None
    glance = look if schedule.test_rows is None else evaluator(method, data, plan, finetune, schedule.test_rows, **rows)
    with Deferred(lambda: Stopped(progress.done, rounds, progress.saved)) as signals:
        state = program.start(shapes, progress.restore(shapes))
        while ahead := _ahead(signals, schedule.ahead(progress.done, progress.last_pace)):
            state, made = program.advance(state, ahead)
            if made.count:
                progress.add(made, data)
                signals.at_stake, record = True, None
                if schedule.evaluates(progress.done):
                    evaluation = clock.evaluate(look if progress.done == rounds else glance, key, state)
                    progress.check(evaluation, data, rounds, state)
                    record = progress.record(evaluation)
                if schedule.saves(progress.done):  # an evaluation has looked at the state, if there was one
                    progress.save(state, sound=program.serves if record is None else None)
                event = _event(progress, schedule, clock, program, record)
                for callback in callbacks if processes.first() else ():
                    callback(event)
            if made.overflow:
                state = program.grow(state, made.overflow, progress.done + 1)
        if signals.asked:
            progress.save(state, sound=program.serves)
    evaluation = evaluation or clock.evaluate(look, key, state)  # resumed at its end
    summary = summary_of(
        data,
        evaluation,
        progress,
        seed=seed,
        cohort=size,
        seconds_per_round=progress.pace,
        total_seconds=clock.seconds,
        compile_seconds=program.compile_seconds,
        evaluation_seconds=sum(clock.evaluations),
        factored=program.factored,
        fast_forms=rewriting.in_words(method.task.replaced),
        chunk=plan.chunk,
        devices=1 if plan.mesh is None else plan.mesh.size,
        processes=jax.process_count(),
        test_rows=schedule.test_rows,
        eval_clients=data.num_clients if tested is None else len(tested),
        resident=not streamed,
    )
    return Result(state, progress.history, evaluation, data, summary)


def _ahead(signals: Deferred, count: int) -> int:
    """Returns how many rounds to make now, the same at every process; none where one of them was asked to stop."""
    said = processes.gathered(count, signals.number)
    signals.hear(int(said[:, 1].max()))
    return 0 if said[:, 1].any() else int(said[0, 0])  # by the clock of the first


def _event(
    progress: Progress, schedule: Schedule, clock: Clock, program: Rounds, record: dict[str, Any] | None
) -> Event:
    """Returns what callbacks are told after some rounds."""
    tally, pace = progress.tally, progress.paces[-1]
    return Event(
        progress.done,
        schedule.rounds,
        tally.num_clusters,
        tally.last_loss,
        pace,
        record,
        seconds=clock.seconds,
        seconds_left=clock.left(schedule, progress.done, pace),
        compile_seconds=program.compile_seconds,
        evaluation_seconds=sum(clock.evaluations),
    )
