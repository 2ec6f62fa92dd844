"""The public door of the simulation: `jaxfl.run`."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

from jaxfl import sampling
from jaxfl.cohort import DevicesChoice, PlanChoice
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Method
from jaxfl.random import check_seed_or_seeds, check_seeds
from jaxfl.sampling import Sampler, cohort_size
from jaxfl.schema import checked
from jaxfl.simulation import processes
from jaxfl.simulation.callbacks import BestCheckpoint, check_measured
from jaxfl.simulation.evaluation.evaluate import evaluation_sample
from jaxfl.simulation.evaluation.finetune import FineTune
from jaxfl.simulation.host.streaming import Resident
from jaxfl.simulation.loop import train
from jaxfl.simulation.prepared import Prepared
from jaxfl.simulation.progress import Diverged, check_complete
from jaxfl.simulation.records.identity import check_config, check_named, identity_of
from jaxfl.simulation.records.shared import directory_at
from jaxfl.simulation.result import Callback, Result, check_callbacks, exit_callbacks
from jaxfl.simulation.schedule import Schedule, check_checkpoints
from jaxfl.simulation.spec import RunSpec, SeedSpec, federation_per_seed
from jaxfl.tasks.contract import check_learns


@overload
def run(method: Method, data: FederatedData, *, rounds: int, seeds: None = None, **options: Any) -> Result: ...


@overload
def run(
    method: Method, data: FederatedData | Sequence[FederatedData], *, rounds: int, seeds: Sequence[int], **options: Any
) -> list[Result]: ...


@checked
def run(
    method: Method,
    data: FederatedData | Sequence[FederatedData],
    *,
    rounds: int,
    cohort: int | float = 1.0,
    seed: int | None = None,
    seeds: Sequence[int] | None = None,
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
) -> Result | list[Result]:
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
        data: the federation; or one for each of `seeds`, of the same shapes.
        rounds: communication rounds in all, those of the run that is resumed included.
        cohort: clients sampled in a round: a share (float in (0, 1]) or a count (int).
        seed: of the initial models, the cohorts and the batches; None is 0.
        seeds: several of them, a run for each: on an accelerator in one program, where the memory allows it; on a CPU,
            which one run keeps busy, one after another, compiled once. Data that are the same are shared. The results
            are those of runs apart, but for rounding, and but for callbacks that end a run: seeds of one program end
            together. `checkpoint_dir` gets a folder `seed-S` for each; a resume goes on from all of them. The summaries
            say `seeds_together`; seconds of rounds are then the seed's share.
        sampler: draws the cohorts, see `jaxfl.sampling`: `dropouts(...)`, `availability(...)`, or your own, which is
            told apart from others by its `__name__`.
        eval_every: rounds between evaluations; None is a tenth of all, rounded down, or 1. The last round is always
            evaluated.
        test_rows: the most rows that are tested of each client, taken evenly from its own, in the evaluations between;
            the last round's tests all rows. None tests all every time.
        eval_clients: the most clients that are tested: the same ones in every evaluation, drawn by the seed among those
            with test rows. None tests all of up to 10,000 clients, and of more a sample of 10,000. Metrics are theirs,
            and say `eval_clients` then.
        finetune: evaluates every client a second time, after training its model on its own rows: the metrics
            `finetuned_micro_accuracy` and others, beside the usual ones, see `FineTune`. Costs N trainings and N tests
            an evaluation, and changes nothing else.
        callbacks: called with an `Event` about once a second and after every evaluation. One that is a context manager
            is left (its `__exit__` is called) when the run is over, however it ends.
        checkpoint_dir: gets `history.jsonl`, a line per evaluation, `clusters.jsonl`, a line where clients have moved,
            and `checkpoint.npz`; None keeps nothing on disk.
        checkpoint_every: rounds between checkpoints; None saves after every evaluation.
        resume: go on from the checkpoint in `checkpoint_dir`, bit for bit; without one, start.
        plan: a `Plan` (chunk and devices), or `"auto"`. Where the device runs out of memory while the run goes on, it
            warns, halves the chunk once, and goes on from the last checkpoint, or from the start if there is none.
        devices: how many of each process's devices share a round's clients, or `"all"`. None takes all accelerators,
            the cores that `jaxfl.use_cores` has made devices or one CPU, and those of a `Plan`. The same random choices
            on any number; sums are rounded otherwise.
        resident: whether what belongs to each client lies on the device: its rows of data, and what the method keeps
            for it (`Method.per_client`: a model of its own). False keeps both on the host, and sends those of a round
            ahead: the same results, bit for bit. Data stay in memory or in mapped files (see `jaxfl.data.stored`), and
            what is kept goes to `rows.bin` in `checkpoint_dir`, or to a temporary file. `"auto"` does so with either
            where it needs more than half of the memory that is free, and with what is kept where a cohort's takes less
            than everybody's. The summary says `resident` of the data and
            `resident_state` of the other; the state's field is then a `HostRows`, which `tree.take` takes rows of.
        config: what the run is, ready for JSON: goes into the checkpoint, and a resume under another one is refused.
            Give the method's options here: without them, methods with the same kind of state are not told apart, nor
            optimisers of `finetune`.

    Returns:
        The state, the history, the last evaluation and a summary; of several seeds a list, in their order.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range, the method's task was made for other rows, `checkpoint_dir` holds
            another run, a callback waits for test rows that nobody has, or rows cannot stay on the host for a method
            that reads everybody's, or for `BestCheckpoint`.
        KeyboardInterrupt: Ctrl-C was pressed, and after a whole round the state was saved if there is a
            `checkpoint_dir`; see `jaxfl.simulation.interrupts`, for SIGTERM and a second Ctrl-C too. After the last
            round there is nothing to stop: the result is returned, and a warning says so.
        OSError: `checkpoint_dir` cannot be written to; the message says what is kept.
        MemoryError: the run needs more memory than the device has.
        Diverged: clients send nothing finite any more. Found out when the run is evaluated, and nothing is written of
            it: `checkpoint_dir` keeps what was good, the error has the state and the history. Of several seeds the
            others are run to their end; the error has all `outcomes`.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = run(jaxfl.methods.fedavg(task, optax.sgd(0.1)), data, rounds=3, cohort=0.5, eval_every=1)
    >>> result.history.column("round")
    [1, 2, 3]
    >>> one, other = run(jaxfl.methods.fedavg(task, optax.sgd(0.1)), data, rounds=3, cohort=0.5, seeds=[0, 1])
    >>> (one.summary["seed"], other.summary["seed"]), round(one.summary["loss"] - result.summary["loss"], 3)
    ((0, 1), 0.0)
    """
    began, several = time.perf_counter(), seeds is not None
    check_seed_or_seeds(seed, seeds)
    numbers = check_seeds([0 if seed is None else seed] if seeds is None else seeds)
    federations = federation_per_seed(data, len(numbers))
    first = federations[0]
    check_learns(method.task, first)
    check_callbacks(callbacks)
    for federation in federations:
        check_measured(callbacks, federation, tuned=finetune is not None)
    sampling.check_sampler(sampler)
    check_config(config)
    if checkpoint_dir == "":
        raise ValueError('checkpoint_dir must be a folder, got ""; "." is the current one, None keeps nothing.')
    schedule = Schedule.of(rounds, eval_every, checkpoint_every, test_rows, first.drifts_at)
    check_checkpoints(checkpoint_every, checkpoint_dir)
    if checkpoint_dir is not None:
        check_named(sampler)
    size = cohort_size(cohort, first)
    prepared = Prepared.of(method, first, size, plan=plan, devices=devices, resident=resident, seeds=len(numbers))
    check_complete(prepared.host_state and any(isinstance(one, BestCheckpoint) for one in callbacks))

    def of_seed(number: int, federation: FederatedData) -> SeedSpec:
        identity = identity_of(config or {}, federation, seed=number, size=size, sampler=sampler, finetune=finetune)
        identity |= {} if test_rows is None else {"test_rows": int(test_rows)}
        sample = evaluation_sample(federation, eval_clients, number)
        identity |= {} if sample is None else {"eval_clients": len(sample)}
        folder = Path(checkpoint_dir, f"seed-{number}") if several and checkpoint_dir is not None else checkpoint_dir
        directory = directory_at(folder, resume=resume)
        return SeedSpec(number, federation.in_programs(), federation.client_names, sample, directory, identity)

    each = tuple(of_seed(*one) for one in zip(numbers, federations, strict=True))
    spec = RunSpec(prepared, each, schedule, sampler, finetune, callbacks, resume, several, began)
    identities = [one.identity for one in each]
    processes.check_same([identities, schedule, devices, prepared.host_data, checkpoint_dir is None, resume])
    with exit_callbacks(callbacks):
        outcomes, results = train(spec), []
        for outcome in outcomes:
            if isinstance(outcome, Diverged):
                outcome.outcomes = outcomes if several else ()
                raise outcome
            results.append(outcome)
    return results if several else results[0]
