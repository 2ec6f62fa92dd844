"""Runs a method on a federation: rounds inside one compiled program, Python entered to look and to save."""

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import engine, sampling, tree
from jaxfl.cohort import Plan
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Method
from jaxfl.sampling import Sampler, cohort_size
from jaxfl.simulation.directory import RunDirectory, identity_of
from jaxfl.simulation.evaluate import evaluator
from jaxfl.simulation.finetune import FineTune
from jaxfl.simulation.history import History
from jaxfl.simulation.metrics import Evaluation
from jaxfl.simulation.program import CAPACITY, Log, compile_rounds, peak_bytes

GLANCE = 1.0  # seconds after which Python looks, so that a progress bar moves


class Event(NamedTuple):
    """What a callback is told, about once a second and after every evaluation."""

    round: int
    rounds: int
    num_clusters: int
    train_loss: float
    seconds_per_round: float
    record: dict[str, Any] | None  # of the evaluation that was just made, if one was


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


def run(
    method: Method,
    data: FederatedData,
    *,
    rounds: int,
    cohort: int | float = 1.0,
    seed: int = 0,
    sampler: Sampler = sampling.uniform,
    eval_every: int | None = None,
    finetune: FineTune | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoint_dir: str | os.PathLike | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    plan: Plan | str = "auto",
    config: dict[str, Any] | None = None,
) -> Result:
    """Runs a method for a number of rounds.

    The result depends on the method, the data and the seed; not on how often it is evaluated or saved, nor on whether
    it was interrupted.

    Args:
        method: from a factory of `jaxfl.methods`.
        data: the federation.
        rounds: communication rounds in all, those of the run that is resumed included.
        cohort: clients sampled in a round: a share (float in (0, 1]) or a count (int).
        seed: of the initial models, the cohorts and the batches.
        sampler: draws the cohorts, see `jaxfl.sampling`: `dropouts(...)`, `availability(...)`, or your own, which is
            told apart from others by its `__name__`.
        eval_every: rounds between evaluations; None evaluates ten times. The last round is always evaluated.
        finetune: evaluates every client a second time, after training its model on its own rows: the metrics
            `finetuned_micro_accuracy` and others, beside the usual ones, see `FineTune`. Costs N trainings and N tests
            an evaluation, and changes nothing else.
        callbacks: called with an `Event` about once a second and after every evaluation.
        checkpoint_dir: gets `history.jsonl`, a line per evaluation, and `checkpoint.npz`; None keeps nothing on disk.
        checkpoint_every: rounds between checkpoints; None saves after every evaluation.
        resume: go on from the checkpoint in `checkpoint_dir`, bit for bit; without one, start.
        plan: a `Plan` (chunk and devices), or `"auto"`.
        config: what the run is, ready for JSON: goes into the checkpoint, and a resume under another one is refused.
            Give the method's options here: without them, methods with the same kind of state are not told apart, nor
            optimisers of `finetune`.

    Returns:
        The state, the history, the last evaluation and a summary.

    Raises:
        ValueError: an argument is out of range, or `checkpoint_dir` holds another run.
        MemoryError: the run needs more memory than the device has.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = run(jaxfl.methods.fedavg(task, optax.sgd(0.1)), data, rounds=3, cohort=0.5, eval_every=1)
    >>> result.history.column("round")
    [1, 2, 3]
    """
    for name, value in {"rounds": rounds, "eval_every": eval_every, "checkpoint_every": checkpoint_every}.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    size = cohort_size(cohort, data)
    eval_every = eval_every or max(1, rounds // 10)
    checkpoint_every = checkpoint_every or eval_every
    key = jax.random.key(seed)
    shapes = jax.eval_shape(method.init, key, data)
    plan = engine.auto_plan(method, shapes, size) if isinstance(plan, str) else plan
    directory = RunDirectory.at(checkpoint_dir, resume=resume)
    identity = identity_of(config or {}, data, seed=seed, size=size, sampler=sampler, finetune=finetune)
    start = None if directory is None else directory.open(identity, resume=resume)

    data = jax.device_put(data)
    began = time.perf_counter()
    advance = compile_rounds(method, key, shapes, data, size, plan, sampler=sampler)
    state = jax.block_until_ready(jax.jit(method.init)(key, data))
    look = evaluator(method, data, plan, finetune)
    compile_seconds = time.perf_counter() - began

    tally = Tally() if start is None else Tally(**start["tally"])
    if start is not None and directory is not None:
        state = jax.device_put(directory.restore(shapes))
        if tree.shapes(state) != tree.shapes(shapes):  # slots had grown before the run was interrupted
            advance = compile_rounds(method, key, state, data, size, plan, sampler=sampler)
    done, evaluation = 0 if start is None else start["round"], None
    history = History() if directory is None else directory.history(done)
    pace: list[float] = []  # seconds per round of every call

    while done < rounds:
        due = min(rounds, *(done + every - done % every for every in (eval_every, checkpoint_every)))
        wish = 1 if not pace else max(1, int(GLANCE / max(pace[-1], 1e-9)))
        began = time.perf_counter()
        state, log, count, overflow = advance(key, state, data, jnp.int32(min(due - done, wish, CAPACITY)))
        count = int(count)  # waits for the device
        seconds = time.perf_counter() - began
        if count:
            pace.append(seconds / count)
            tally.add(log, count, data, seconds)
            done += count
        record = None
        if done == due and (done % eval_every == 0 or done == rounds):
            evaluation = look(key, state)
            record = {"round": done, **evaluation.metrics, **tally.take(), "seconds_per_round": statistics.median(pace)}
            record |= {name: value for name, value in tally.extra.items() if name not in record}
            history.append(record)
        if directory is not None and done == due and (done % checkpoint_every == 0 or done == rounds):
            directory.save(state, {"identity": identity, "round": done, "tally": vars(tally)})
        if count:
            event = Event(done, rounds, tally.num_clusters, tally.last_loss, pace[-1], record)
            for callback in callbacks:
                callback(event)
        if int(overflow):
            if method.grow is None:
                raise RuntimeError(
                    f"round {done + 1} needs more clusters than the method has slots, and it cannot grow; give it more."
                )
            for _ in range(int(overflow)):
                state = method.grow(state)
            began = time.perf_counter()
            advance = compile_rounds(method, key, state, data, size, plan, sampler=sampler)
            compile_seconds += time.perf_counter() - began
    if evaluation is None:  # resumed at its end
        evaluation = look(key, state)
    summary = {
        "data": data.name,
        "rounds": done,
        "seed": seed,
        "num_clients": data.num_clients,
        "cohort": size,
        **{name: value for name, value in evaluation.metrics.items() if name != "clusters"},
        "diverged": tally.diverged_in_all,
        "empty_clients": int((np.asarray(data.train.size) == 0).sum()),
        "mean_participants": tally.participants / max(done, 1),
        "seconds_per_round": statistics.median(pace) if pace else None,
        "compile_seconds": compile_seconds,
        "peak_bytes": peak_bytes(),
        "device": jax.devices()[0].device_kind,
        "chunk": plan.chunk,
        "versions": {"python": sys.version.split()[0], "jax": jax.__version__, "numpy": np.__version__},
    }
    return Result(state, history, evaluation, data, summary)


class Tally:
    """What is added up over rounds: between two evaluations, and from the start."""

    def __init__(self, **saved: Any):
        self.loss_sum, self.loss_weight, self.diverged, self.diverged_in_all, self.participants = 0.0, 0.0, 0, 0, 0
        self.seconds, self.bytes_up, self.bytes_down = 0.0, 0.0, 0.0
        self.num_clusters, self.last_loss = 0, float("nan")
        self.extra: dict[str, Any] = {}  # the method's own numbers, of the last round
        vars(self).update(saved)

    def add(self, log: Log, count: int, data: FederatedData, seconds: float) -> None:
        """Adds `count` rounds."""
        log = jax.tree.map(lambda leaf: np.asarray(leaf[:count]), log)
        rows = log.mask & (np.asarray(data.train.size)[log.ids] > 0)  # [R, C]
        # a diverged client has no loss worth a mean; it is counted apart
        real = rows & np.isfinite(log.info.loss)
        losses = np.where(real, log.info.loss, 0.0).sum(1) / np.maximum(real.sum(1), 1)
        losses = losses[log.mask.any(1)]  # a round without anybody has none
        self.loss_sum += float(losses.sum())
        self.loss_weight += len(losses)
        self.last_loss = float(losses[-1]) if len(losses) else self.last_loss
        self.participants += int(log.mask.sum())
        self.diverged += int(log.info.diverged.sum())
        self.diverged_in_all += int(log.info.diverged.sum())
        self.bytes_up += float(log.info.bytes_up.sum(dtype=np.float64))
        self.bytes_down += float(log.info.bytes_down.sum(dtype=np.float64))
        self.num_clusters = int(log.info.num_clusters[-1])
        self.extra = {name: leaf[-1].item() for name, leaf in log.info.extra.items() if leaf.ndim == 1}
        self.seconds += seconds

    def take(self) -> dict[str, Any]:
        """Returns the sums for a record, and starts those between evaluations afresh."""
        record = {
            "train_loss": self.loss_sum / self.loss_weight if self.loss_weight else None,
            "diverged": self.diverged,
            "seconds": self.seconds,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
        }
        self.loss_sum, self.loss_weight, self.diverged = 0.0, 0.0, 0
        return record
