"""The public door of the simulation: `jaxfl.run`."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import jax

from jaxfl import sampling
from jaxfl.clock import ClientClock
from jaxfl.clock.asynchronous import asynchronous_method
from jaxfl.clock.policies import asked_clients
from jaxfl.clock.trace import check_trace
from jaxfl.cohort import DevicesChoice, PlanChoice
from jaxfl.data.clients import FederatedData
from jaxfl.edges import EdgeServers
from jaxfl.methods.base import Method
from jaxfl.random import check_seed_or_seeds, check_seeds
from jaxfl.sampling import Sampler, cohort_size, cohorts_of
from jaxfl.schema import checked
from jaxfl.simulation import processes
from jaxfl.simulation.accounting import PRIVACY, private_run, private_sampler
from jaxfl.simulation.callbacks import BestCheckpoint, check_measured
from jaxfl.simulation.devices import check_compiles
from jaxfl.simulation.evaluation.evaluate import evaluation_sample
from jaxfl.simulation.evaluation.finetune import FineTune
from jaxfl.simulation.evaluation.test_sets import make_test_sets, parse_test_sets
from jaxfl.simulation.host.streaming import Resident
from jaxfl.simulation.loop import train
from jaxfl.simulation.prepared import Prepared
from jaxfl.simulation.progress import Diverged, check_complete
from jaxfl.simulation.records.directory import KEEPS_CLIENTS, RECORDS_VECTORS
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
    clock: ClientClock | None = None,
    edges: EdgeServers | None = None,
    eval_every: int | None = None,
    test_rows: int | None = None,
    eval_clients: int | None = None,
    finetune: FineTune | None = None,
    test_sets: str | Sequence[str] | None = None,
    clients_history: bool = False,
    record_vectors: bool = False,
    callbacks: Sequence[Callback] = (),
    checkpoint_dir: str | os.PathLike | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    plan: PlanChoice = "auto",
    devices: DevicesChoice = None,
    resident: Resident = "auto",
    config: dict[str, Any] | None = None,
) -> Result | list[Result]:
    """Runs a method on a federation for a number of rounds.

    The result depends on the method, the data and the seed; not on how often the run is evaluated or saved, nor on
    whether it was interrupted. On one CPU, two runs agree in every bit of the state and of the history, except for
    seconds. On another machine, with another plan, or on a GPU in another process, they agree up to rounding: the order
    of sums differs, and XLA may choose other kernels (see https://openxla.org/xla/determinism).

    Several processes compute a run together after `jax.distributed.initialize`: all call `run` with the same arguments
    and get the same result. The first process alone reads and writes `checkpoint_dir` and calls callbacks. A signal to
    one of them stops all. The summary has `processes`, and the `devices` of all of them.

    Args:
        method: from a factory of `jaxfl.methods`.
        data: the federation; or a list with one for each of `seeds`, of the same shapes.
        rounds: communication rounds in all, with those of a resumed run.
        cohort: clients sampled in a round: a share (float in (0, 1]) or a count (int).
        seed: of the initial models, the cohorts and the batches; None is 0.
        seeds: several seeds, with a run for each: on an accelerator in one program, if the memory allows it; on a CPU
            one after another, compiled once. Equal data are shared. The results are those of separate runs up to
            rounding, except for callbacks that end a run: the seeds of one program end together. `checkpoint_dir` gets
            a folder `seed-S` for each; a resume continues all of them. Summaries have `seeds_together`; the seconds of
            a round are then the seed's share.
        sampler: draws the cohorts, see `jaxfl.sampling`: `poisson()`, `dropouts(...)`, `availability(...)`, or your
            own, which is identified by its `__name__`.
        clock: gives each client a device, and rounds simulated seconds, see `jaxfl.ClientClock`: `seconds_simulated` in
            the records, from the start of the run. Its policy may ask more clients than the cohort, or end rounds
            before all have reported. None has no clock.
        edges: edge servers between the clients and the cloud, see `jaxfl.EdgeServers`; None has one server.
        eval_every: rounds between evaluations; None is a tenth of all, rounded down, or 1. The last round is always
            evaluated.
        test_rows: the most test rows of a client in the evaluations before the last round, evenly spaced; the last
            evaluation takes all rows. None always takes all.
        eval_clients: the most clients in the evaluation sample, which is drawn by the seed from the clients with test
            rows and stays the same. None tests all of up to 10,000 clients, and of more a sample of 10,000. All metrics
            are those of the sample; `eval_clients` is then one of them.
        finetune: tests every client a second time, after local training of its served model: the metrics
            `finetuned_micro_accuracy` and others, see `FineTune`. An evaluation then costs N trainings and N tests
            more; nothing else changes.
        test_sets: tests every client's served model on the test rows of all clients, too: `"shared"`, as the client
            sees them (`shared_macro_accuracy`, and `weighted_macro_accuracy`, in which rows count by the share of their
            class among the client's training rows); `"concept"`, with clean features under its numbering of the classes
            (`concept_macro_accuracy`, the mean over concepts); or both. The test of a client is as long as all test
            rows; clients of one cluster and view share it.
        clients_history: keeps the cluster, metrics and loss of every client at every evaluation: `history.clients`, and
            `clients-history.parquet` in `checkpoint_dir`, which is written whole with each checkpoint. Nothing else
            changes. Of several processes the first one has it.
        record_vectors: puts what a method says of a round in a list of numbers (`info.extra`, of up to 1,000 numbers)
            into the records, beside what it says in one number; and `cohort`, the clients whose places lists of a
            cohort have (-1 for a place without a client). They are of the last round before an evaluation.
        callbacks: called with an `Event` about once a second and after every evaluation. Context managers are exited
            when the run is over, however it ends.
        checkpoint_dir: folder for `history.jsonl` (a line per evaluation), `clusters.jsonl` (a line where clients have
            moved) and `checkpoint.npz`; None writes nothing.
        checkpoint_every: rounds between checkpoints; None saves after every evaluation, at most once a second.
        resume: continue from the checkpoint in `checkpoint_dir`, bit for bit; without a checkpoint, start.
        plan: a `Plan` (chunk and devices), or `"auto"`. If the device runs out of memory during the run, the chunk is
            halved once, with a warning, and the run continues from the last checkpoint, or from the start.
        devices: how many of each process's devices share a round's clients, or `"all"`. None takes all accelerators,
            the cores that `jaxfl.use_cores` has made devices or one CPU, and those of a `Plan`. Random choices are the
            same on any number of devices; sums agree up to rounding.
        resident: whether arrays with something for each client are on the device: the rows of data, and the method's
            field `Method.per_client` (models of the clients). With False both are host rows, and those of a round are
            sent ahead, with the same results, bit for bit: data stay in memory or in mapped files (see
            `jaxfl.data.stored`), and the method's rows are in `rows.bin` in `checkpoint_dir`, or in a temporary file.
            `"auto"` moves either to the host where it needs more than half of the free memory, and the method's rows
            only where a cohort's are fewer than all. The summary has `resident` for the data and `resident_state` for
            the method's rows; the state's field is then a `HostRows`, from which `tree.take` takes rows.
        config: a description of the run, ready for JSON, which is saved in the checkpoint: a resume with another one is
            refused. Give the method's options here: without them, methods with the same kind of state are not
            distinguished, nor are optimisers of `finetune`.

    Returns:
        State, history, last evaluation and summary; of several seeds a list, in their order.

    Raises:
        TypeError: an argument has another type.
        ValueError: an argument is out of range, the method's task was made for other rows, `checkpoint_dir` holds
            another run, a callback needs test rows and no client has any, or the rows must be resident (for a method
            that reads the rows of all clients, or for `BestCheckpoint`) and are not.
        KeyboardInterrupt: Ctrl-C was pressed; the state was saved after a whole round if there is a `checkpoint_dir`.
            See `jaxfl.simulation.interrupts` for SIGTERM and a second Ctrl-C. After the last round the result is
            returned with a warning.
        OSError: `checkpoint_dir` cannot be written to; the message has the last round that was saved.
        MemoryError: the run needs more memory than the device has.
        Diverged: no update of the clients is finite any more. An evaluation finds it, and nothing of it is saved:
            `checkpoint_dir` has an earlier state, the error has the last state and the history. Of several seeds the
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
    check_compiles()
    check_learns(method.task, first)
    check_callbacks(callbacks)
    for federation in federations:
        check_measured(callbacks, federation, tuned=finetune is not None)
    sampling.check_sampler(sampler)
    check_config(config)
    if checkpoint_dir == "":
        raise ValueError('checkpoint_dir must be a folder, got ""; "." is the current one, None keeps nothing.')
    schedule = Schedule.of(rounds, eval_every, checkpoint_every, test_rows, first.drift_rounds)
    check_checkpoints(checkpoint_every, checkpoint_dir)
    if checkpoint_dir is not None:
        check_named(sampler)

    def folder_of(number: int) -> Path | None:
        if checkpoint_dir is None:
            return None
        return Path(checkpoint_dir, f"seed-{number}") if several else Path(checkpoint_dir)

    set_names = parse_test_sets(test_sets)
    size = cohort_size(cohort, first)
    rule = None if clock is None else clock.rule
    for federation in federations:
        method.check(federation, size)
    sampler, places = cohorts_of(private_sampler(method, sampler), cohort, first)
    policy = None if clock is None else clock.policy._replace(cohort=size)
    if policy is not None and not policy.waits_for_all:
        places = asked_clients(policy, method, sampler, places, cohort_size(1.0, first))
    if rule is not None:
        method, places = asynchronous_method(method, rule, sampler, size, cohort_size(1.0, first))
    if edges is not None:
        if rule is not None:
            raise ValueError("edges must be none with asynchronous aggregation, got both; leave one out.")
        method, places = edges.attach(method, federations, size, sampler), size
    prepared = Prepared.of(method, first, places, plan=plan, devices=devices, resident=resident, seeds=len(numbers))
    folders = [folder for folder in map(folder_of, numbers) if resume and folder is not None]
    prepared, privacy = private_run(prepared, sampler, size, first, rounds=schedule.rounds, folders=folders)
    best = [one for one in callbacks if isinstance(one, BestCheckpoint)]
    check_complete(prepared.host_state and bool(best))
    processes.by_first(lambda: [one.check_folders(numbers if several else [None]) for one in best])

    def of_seed(number: int, federation: FederatedData) -> SeedSpec:
        identity = identity_of(config or {}, federation, seed=number, size=size, sampler=sampler, finetune=finetune)
        identity |= {} if test_rows is None else {"test_rows": int(test_rows)}
        sample = evaluation_sample(federation, eval_clients, number)
        identity |= {} if sample is None else {"eval_clients": len(sample)}
        identity |= {KEEPS_CLIENTS: True} if clients_history else {}
        identity |= {RECORDS_VECTORS: True} if record_vectors else {}
        identity |= {"test_sets": list(set_names)} if set_names else {}
        identity |= {} if privacy is None else {PRIVACY: privacy.identity()}
        identity |= {} if clock is None else {"clock": clock.identity()}
        identity |= {} if edges is None else {"edges": edges.identity()}
        directory = directory_at(folder_of(number), resume=resume)
        sets = make_test_sets(federation, set_names, method)
        known = federation if clock is None else clock.attach(federation, jax.random.key(number))
        return SeedSpec(number, known.in_programs(), federation.client_names, sample, directory, identity, sets)

    each = tuple(of_seed(*one) for one in zip(numbers, federations, strict=True))
    if each[0].data.trace is not None:
        check_trace(method, sampler)
    if (prepared.host_data or prepared.host_state) and (method.own_rounds or each[0].data.trace is not None):
        raise ValueError(
            f"resident must be True with asynchronous rounds, edges or a trace, got {resident!r}: rows on the host are "
            "sent before it is known whose they must be; take fewer clients, or leave these out."
        )
    spec = RunSpec(
        prepared, size, each, schedule, sampler, finetune, callbacks, resume, several, began, privacy, policy
    )
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
