"""Mapped runs: a method at several values of a number, and several seeds, in one program."""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import engine, sampling
from jaxfl.cohort import Plan, PlanChoice
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Method
from jaxfl.random import check_seed_or_seeds, check_seeds
from jaxfl.sampling import Sampler, cohorts_of
from jaxfl.schema import checked
from jaxfl.simulation import program
from jaxfl.simulation.accounting import private_sampler
from jaxfl.simulation.evaluation.metrics import Evaluation
from jaxfl.simulation.prepared import Prepared
from jaxfl.simulation.progress import divergence_reason, divergence_remedy
from jaxfl.simulation.schedule import check_drift
from jaxfl.tasks.contract import check_learns
from jaxfl.typing import Array, Key, Params

VALUE_NEEDED = (  # what JAX says of a value that is traced
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


class Mapped(NamedTuple):
    """The outcome of a method at one value and seed.

    Attributes:
        value: the number.
        state: the method's last.
        evaluation: of it.
        updates: sent by clients with training rows.
        diverged: how many of them were left out, because they were not finite.
        seed: of the initial models, the cohorts and the batches.
    """

    value: float
    state: Any
    evaluation: Evaluation
    updates: int = 0
    diverged: int = 0
    seed: int = 0

    def __repr__(self) -> str:
        """Returns a line: the state would fill pages."""
        left_out = f", {self.diverged} of {self.updates} updates diverged" if self.diverged else ""
        return f"Mapped({self.value}, seed={self.seed}, {self.evaluation}{left_out})"


class _ValuedState(NamedTuple):
    """A state with its value, so that one program evaluates all values."""

    value: Array  # [] float32
    own: Any

    @property
    def cluster(self) -> Array:
        return self.own.cluster


@checked
def run_mapped(
    make: Callable[[Any], Method],
    values: Sequence[float],
    data: FederatedData,
    *,
    rounds: int,
    cohort: int | float = 1.0,
    seed: int | None = None,
    seeds: Sequence[int] | None = None,
    sampler: Sampler = sampling.uniform,
    plan: PlanChoice = "auto",
) -> list[Mapped]:
    """Runs a method at several values of a number, and of the seed, side by side in one program.

    The results are those of `jaxfl.run(make(value), ..., seed=seed)`, but for rounding. What the value does not reach
    is computed once for all values: the data and cohorts; of StoCFL at several lambdas also the representations, the
    clusters and the global model, which do not depend on lambda. The method is traced with a value that is not known
    yet: it may be computed with, as `proximal_weight` of FedProx, Ditto and StoCFL is, but decide neither a branch nor
    a shape.

    Args:
        make: returns the method of a value, for example `lambda weight: jaxfl.methods.stocfl(task, optax.sgd(0.1),
            proximal_weight=weight)`. It is called with every value first, and may refuse it.
        values: the numbers.
        data: the federation.
        rounds: communication rounds; evaluated is the last one.
        cohort: clients sampled in a round, a share or a count.
        seed: of the initial models, the cohorts and the batches; the same at every value; None is 0.
        seeds: several of them, each at every value; None is `seed` alone.
        sampler: draws the cohorts.
        plan: a `Plan`, or `"auto"`: fewer clients side by side than in a run, since each has a model for every value.

    Returns:
        One `Mapped(value, state, evaluation, updates, diverged, seed)` for each value; with several seeds, for each
        seed of the first value, of the second, and so on.

    Warns:
        UserWarning: the run at a value has diverged; `jaxfl.run` would have raised `Diverged`.

    Raises:
        ValueError: an argument is out of range, or the method needs to know the value.
        MemoryError: so many states do not fit.
        RuntimeError: a round needs more clusters than the method has slots: they cannot grow here.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> make = lambda weight: jaxfl.methods.fedprox(task, optax.sgd(0.1), proximal_weight=weight)
    >>> [one.value for one in run_mapped(make, [0.0, 0.1, 1.0], data, rounds=2, cohort=0.5)]
    [0.0, 0.1, 1.0]
    >>> [(one.value, one.seed) for one in run_mapped(make, [0.0, 0.1], data, rounds=1, seeds=[0, 1])]
    [(0.0, 0), (0.0, 1), (0.1, 0), (0.1, 1)]
    """
    sampling.check_sampler(sampler)
    numbers = [math.nan if isinstance(value, str) else float(value) for value in values]
    if not numbers or not all(map(math.isfinite, numbers)):
        raise ValueError(f"values must be one or more finite numbers, got {values!r}; [0.0, 0.1, 1.0] is fine.")
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}.")
    check_drift(data.drift_rounds, rounds)
    if data.absent is not None:
        raise ValueError("data must have the same clients in all rounds, got some that arrive or leave; use jaxfl.run.")
    check_seed_or_seeds(seed, seeds)
    seeds = check_seeds([seed or 0] if seeds is None else seeds)
    try:
        methods = [make(number) for number in numbers]  # a value that is out of range is refused here
    except TypeError as error:
        raise ValueError(
            f"make must return a method of any number, whole or not, which is computed with: {error} Run the values "
            "one after the other with jaxfl.run."
        ) from error
    if not isinstance(methods[0], Method):
        raise ValueError(f"make must return a method from a factory of jaxfl.methods, got {methods[0]!r}.")
    check_learns(methods[0].task, data)
    for method in methods:
        method.check(data, sampling.cohort_size(cohort, data))
    sampler, size = cohorts_of(private_sampler(methods[0], sampler), cohort, data)
    keys = [jax.random.key(one) for one in seeds]
    stacked = keys[0] if len(keys) == 1 else jnp.stack(keys)
    models = len(numbers) * len(seeds)
    prepared = Prepared.of(methods[0], data, size, plan=plan, resident=True, models=models)
    data = data.in_programs().on_device()
    traced = jnp.asarray(numbers, jnp.float32)  # [V]
    try:
        advance = mapped_rounds(make, size, rounds, sampler, prepared.plan).lower(traced, stacked, data).compile()
    except VALUE_NEEDED as error:
        raise ValueError(
            "make must return a method that can be traced: somewhere a branch, a shape or a check needs to know the "
            "value; run the values one after the other with jaxfl.run, or vary a number that is only computed with."
        ) from error
    _check_memory(advance, len(numbers), len(seeds))
    states, *counts = advance(traced, stacked, data)
    late, diverged, updates = (np.reshape(count, (len(numbers), len(seeds), rounds)) for count in counts)
    if late.any():
        value, place, round = np.argwhere(late)[0]
        raise RuntimeError(
            f"round {round + 1} at value {numbers[value]} needs more clusters than the method has slots, and they do "
            "not grow in run_mapped; make methods with more, such as slots=64, or use jaxfl.run."
        )
    data = data.at(rounds)
    # one program for all values; where a value reaches the task's loss or outputs, one for each
    unlike = methods if any(one.task is not methods[0].task for one in methods) else methods[:1]
    looks = [prepared._replace(method=_valued_method(make, one)).evaluator(data) for one in unlike]
    results = []
    for place in np.ndindex(len(numbers), len(seeds)):
        number, drawn = numbers[place[0]], seeds[place[1]]
        state = _take_result(states, place if stacked.ndim else place[:1])
        look = looks[place[0] % len(looks)]
        evaluation = look(keys[place[1]], _ValuedState(jnp.float32(number), state))
        left_out, sent = diverged[place], updates[place]  # [R]
        good = np.flatnonzero(left_out < sent)
        lost = int(sent[good[-1] + 1 :].sum() if len(good) else sent.sum())
        if reason := divergence_reason(lost, int(sent.sum()), evaluation, data, ended=True):
            where = f"value {number}{f' and seed {drawn}' if len(seeds) > 1 else ''}"
            private = methods[place[0]].privacy
            remedy = divergence_remedy(data, None if private is None else private.privacy.noise)
            warnings.warn(f"the run at {where} has diverged: {reason}; {remedy}.", stacklevel=3)
        results.append(Mapped(number, state, evaluation, int(sent.sum()), int(left_out.sum()), drawn))
    return results


def mapped_rounds(make: Callable[[Any], Method], size: int, rounds: int, sampler: Sampler, plan: Plan) -> Any:
    """Returns the jitted `(values [V], keys [S], data) -> (states [V, S, ...], overflow [V, S, R], diverged, updates)`.

    `diverged` are the updates that were left out, of the `updates` that clients with rows have sent. Of one key `[]`,
    and no stack of them, results have no axis S.

    What does not depend on the value stays unbatched: where vmap meets a scan it maps only that part of the carry which
    is mapped after some round.

    Args:
        make: of the method.
        size: clients of a cohort.
        rounds: R.
        sampler: draws the cohorts.
        plan: chunk and devices.
    """

    def one(value: Array, key: Key, data: FederatedData) -> tuple[Any, Array, Array, Array]:
        method = make(value)

        def step(state: Any, _: None) -> tuple[Any, tuple[Array, Array, Array]]:
            round = state.round
            state, row = program.one_round(method, key, state, data, size, plan, sampler)
            updates = (row.mask & (data.at(round).train.size[row.ids] > 0)).sum(dtype=jnp.int32)
            return state, (row.info.overflow, row.info.diverged, updates)

        state, counts = jax.lax.scan(step, method.init(key, data.at(0)), None, length=rounds)
        return state, *counts

    several = jax.vmap(one, in_axes=(None, 0, None))

    def at(value: Array, keys: Key, data: FederatedData) -> tuple[Any, Array, Array, Array]:
        return (several if keys.ndim else one)(value, keys, data)

    return engine.jit(jax.vmap(at, in_axes=(0, None, None)))


@jax.jit
def _take_result(states: Any, place: tuple[int, ...]) -> Any:
    """Returns the state at a place of the leading axes, by one program for all leaves."""
    return jax.tree.map(lambda leaf: leaf[place], states)


def _valued_method(make: Callable[[Any], Method], known: Method) -> Method:
    """Returns a method for states with a value, which has what an evaluation needs."""

    def assign(key: Key, state: _ValuedState, data: FederatedData, cohort: Any) -> _ValuedState:
        return state._replace(own=make(state.value).assign(key, state.own, data, cohort))

    def adapt(key: Key, state: _ValuedState, data: FederatedData, client: Array, model: Params) -> Params:
        adapted = make(state.value).adapt
        return model if adapted is None else adapted(key, state.own, data, client, model)

    return known._replace(
        assign=assign,
        client_params=lambda state, ids: make(state.value).client_params(state.own, ids),
        adapt=None if known.adapt is None else adapt,
    )


def _check_memory(compiled: Any, values: int, seeds: int) -> None:
    """Raises MemoryError if the program's states and intermediate results need more than the device has left."""
    analysis, available = compiled.memory_analysis(), program.available_bytes()
    if analysis is None or available is None:
        return
    needed = int(analysis.temp_size_in_bytes) + int(analysis.output_size_in_bytes)
    if needed > available:
        raise MemoryError(
            f"values must be at most {values * available // needed} to fit, got {values} (of {seeds} seeds): their "
            f"states need about {needed / 1e9:.1f} GB beside the data and {available / 1e9:.1f} GB are free; run some "
            "at a time."
        )
