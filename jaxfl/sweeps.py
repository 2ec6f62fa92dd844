"""Many settings for the price of one: a threshold without training, a weight in one program."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import engine, program, sampling
from jaxfl.clustering import components, distances, linkage, scores
from jaxfl.data.clients import FederatedData, Plan
from jaxfl.evaluate import evaluator
from jaxfl.methods.base import Method
from jaxfl.metrics import Evaluation
from jaxfl.sampling import Sampler, cohort_size
from jaxfl.typing import Array, Key

GRID = 101  # thresholds, where none are given
UNKNOWN = (  # what JAX says of a value that is traced
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def threshold_sweep(
    points: np.ndarray | Array,
    thresholds: Sequence[float] | np.ndarray | None = None,
    *,
    group: Sequence[int] | np.ndarray | Array | None = None,
) -> list[dict[str, Any]]:
    """Returns which clusters StoCFL finds at every threshold, from one matrix of cosines, without any training.

    They are the clusters of its first round with everybody in it. Merging all pairs with a cosine of at least tau is
    single linkage, so that one tree, cut at every tau, has them all.

    Args:
        points: representations `[N, d]`, for example from `methods.representation.of_clients`. A row of zeros (a client
            without training rows, whom StoCFL leaves out) is similar to nobody: cosine 0.
        thresholds: the tau; None takes 101, evenly spaced from the smallest to the largest cosine of two clients.
        group: true groups `[N]`, if they are known.

    Returns:
        A row for each threshold, in the order given: `threshold`, `clusters` (how many), `largest` (clients of the
        largest one), `objective` (equation 2: the cosines of the means of all pairs of clusters, added up), and with
        `group` also `ari` and `nmi`.

    Raises:
        ValueError: a shape is wrong, or a number is not finite.

    Reference: Zeng et al., "Stochastic Clustered Federated Learning", 2023, Algorithm 1, lines 9-13, and equation 2.

    >>> points = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> rows = threshold_sweep(points, [-1.0, 0.5, 1.1], group=[0, 0, 1, 1])
    >>> [(row["clusters"], row["largest"], row["ari"]) for row in rows]
    [(1, 4, 0.0), (2, 2, 1.0), (4, 1, 0.0)]
    """
    rows = _vectors(points)
    truth = None if group is None else np.asarray(group)
    if truth is not None and truth.shape != (len(rows),):
        raise ValueError(
            f"group must have one entry for each of the {len(rows)} rows of points, got shape {truth.shape}."
        )
    similarity = distances.cosine(jnp.asarray(rows))
    # negated, not subtracted from 1: that would round, and a cosine equal to the threshold might be cut off
    tree = linkage.linkage(-similarity, "single")
    cosine = np.array(similarity)  # [N, N]
    if thresholds is None:
        off = cosine[~np.eye(len(rows), dtype=bool)]
        thresholds = np.linspace(float(off.min()), float(off.max()), GRID)
    wanted = [float(tau) for tau in thresholds]
    if not wanted or not np.isfinite(wanted).all():
        raise ValueError(f"thresholds must be one or more finite numbers, got {thresholds!r}; None takes an even grid.")

    length = np.linalg.norm(rows.astype(np.float64), axis=1)
    gram = cosine.astype(np.float64) * length[:, None] * length[None, :]  # of the clusters' sums, here of one client
    above = np.arange(len(rows))  # the clusters at the threshold above, which those below it are made of
    found = {}
    for tau in sorted(set(wanted), reverse=True):
        labels = np.asarray(linkage.cut_by_threshold(tree, -tau))  # [N]
        number = int(labels.max()) + 1
        if number < len(gram):
            parts = np.zeros(len(gram), int)
            parts[above] = labels
            gram = _summed(_summed(gram, parts).T, parts)
            length = np.bincount(parts, length)
        above = labels
        found[tau] = {
            "threshold": tau,
            "clusters": number,
            "largest": int(np.bincount(labels).max()),
            "objective": _objective(gram, length),
        }
        if truth is not None:
            found[tau] |= {
                "ari": scores.adjusted_rand_index(truth, labels),
                "nmi": scores.normalized_mutual_information(truth, labels),
            }
    return [dict(found[tau]) for tau in wanted]


def clusters_at(points: np.ndarray | Array, threshold: float) -> np.ndarray:
    """Returns the clusters of `threshold_sweep` at one threshold, `[N]` int32: the first client in each one's cluster.

    So a cluster has one name at all thresholds, but for the parts that it falls into as they grow.

    Args:
        points: `[N, d]`.
        threshold: tau.

    >>> clusters_at(np.array([[0.0, 1.0], [0.1, 0.9], [1.0, 0.0], [0.9, 0.1]]), 0.5).tolist()
    [0, 0, 2, 2]
    """
    return np.asarray(components.threshold_components(distances.cosine(jnp.asarray(_vectors(points))), threshold))


def _vectors(points: np.ndarray | Array) -> np.ndarray:
    rows = np.asarray(points, np.float32)
    if rows.ndim != 2 or len(rows) < 2 or not rows.shape[1]:
        raise ValueError(
            f"points must be vectors [N, d] of at least 2 clients, got shape {rows.shape}; give a row for each client."
        )
    if not np.isfinite(rows).all():
        raise ValueError(
            f"points must be finite, got {int((~np.isfinite(rows)).any(1).sum())} clients with NaN or infinity; leave "
            "them out."
        )
    return rows


def _summed(matrix: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Returns the sums of the rows of every part."""
    order = np.argsort(parts, kind="stable")
    return np.add.reduceat(matrix[order], np.searchsorted(parts[order], np.arange(parts.max() + 1)))


def _objective(gram: np.ndarray, length: np.ndarray) -> float:
    """Returns the sum of the cosines of all pairs.

    Args:
        gram: inner products of the clusters' sums `[K, K]`.
        length: of all members' representations, one after the other `[K]`.
    """
    own = np.diagonal(gram)
    there = own > 1e-6 * np.square(length)  # what cancels out has no direction, but rounding would give it one
    scale = np.where(there, 1 / np.sqrt(np.where(there, own, 1)), 0)
    return float((scale @ gram @ scale - there.sum()) / 2)


class Mapped(NamedTuple):
    """What a method has come to at one value."""

    value: float
    state: Any  # the method's last
    evaluation: Evaluation


class _Valued(NamedTuple):
    """A state that knows its value, so that one program evaluates all."""

    value: Array  # [] float32
    own: Any

    @property
    def cluster(self) -> Array:
        return self.own.cluster


def run_mapped(
    make: Callable[[Any], Method],
    values: Sequence[float],
    data: FederatedData,
    *,
    rounds: int,
    cohort: int | float = 1.0,
    seed: int = 0,
    sampler: Sampler = sampling.uniform,
    plan: Plan | str = "auto",
) -> list[Mapped]:
    """Runs a method at several values of a number, side by side in one program.

    The results are those of `jaxfl.run(make(value), ...)`, but for rounding. What the value does not reach is computed
    once for all: the data and cohorts; of StoCFL at several lambdas also the representations, the clusters and the
    global model, which do not depend on lambda. The method is traced with a value that is not known yet: it may be
    computed with, as `proximal_weight` of FedProx, Ditto and StoCFL is, but decide neither a branch nor a shape.

    Args:
        make: returns the method of a value, for example `lambda weight: jaxfl.methods.stocfl(task, optax.sgd(0.1),
            proximal_weight=weight)`. It is called with every value first, and may refuse it.
        values: the numbers.
        data: the federation.
        rounds: communication rounds; evaluated is the last one.
        cohort: clients sampled in a round, a share or a count.
        seed: of the initial models, the cohorts and the batches; the same at every value.
        sampler: draws the cohorts.
        plan: a `Plan`, or `"auto"`: fewer clients side by side than in a run, since each has a model for every value.

    Returns:
        One `Mapped(value, state, evaluation)` for each value.

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
    """
    numbers = [float(value) for value in values]
    if not numbers or not all(map(math.isfinite, numbers)):
        raise ValueError(f"values must be one or more finite numbers, got {values!r}; [0.0, 0.1, 1.0] is fine.")
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}.")
    size, key = cohort_size(cohort, data), jax.random.key(seed)
    methods = [make(number) for number in numbers]  # a value that is out of range is refused here
    if not isinstance(methods[0], Method):
        raise ValueError(f"make must return a method from a factory of jaxfl.methods, got {methods[0]!r}.")
    if isinstance(plan, str):
        plan = engine.auto_plan(methods[0], jax.eval_shape(methods[0].init, key, data), size)
        plan = plan._replace(chunk=max(1, (plan.chunk or size) // len(numbers)))
    data = jax.device_put(data)
    traced = jnp.asarray(numbers, jnp.float32)  # [V]
    try:
        advance = mapped_rounds(make, size, rounds, sampler, plan).lower(traced, key, data).compile()
    except UNKNOWN as error:
        raise ValueError(
            "make must return a method that can be traced: somewhere a branch, a shape or a check needs to know the "
            "value; run the values one after the other with jaxfl.run, or vary a number that is only computed with."
        ) from error
    _check_memory(advance, len(numbers))
    states, overflow = advance(traced, key, data)
    late = np.asarray(overflow)  # [V, R]
    if late.any():
        value, round = np.argwhere(late)[0]
        raise RuntimeError(
            f"round {round + 1} at value {numbers[value]} needs more clusters than the method has slots, and they do "
            "not grow in run_mapped; make methods with more, such as slots=64, or use jaxfl.run."
        )
    look = evaluator(_evaluated(make, methods[0]), data, plan)
    results = []
    for place, number in enumerate(numbers):
        state = jax.tree.map(lambda leaf, place=place: leaf[place], states)
        results.append(Mapped(number, state, look(key, _Valued(traced[place], state))))
    return results


def mapped_rounds(make: Callable[[Any], Method], size: int, rounds: int, sampler: Sampler, plan: Plan) -> Any:
    """Returns the jitted `(values [V], key, data) -> (states [V, ...], overflow [V, R])`.

    What does not depend on the value stays unbatched: where vmap meets a scan it maps only that part of the carry which
    is mapped after some round.

    Args:
        make: of the method.
        size: clients of a cohort.
        rounds: R.
        sampler: draws the cohorts.
        plan: chunk and devices.
    """

    def one(value: Array, key: Key, data: FederatedData) -> tuple[Any, Array]:
        method = make(value)

        def step(state: Any, _: None) -> tuple[Any, Array]:
            drawn = engine.by_size(data, sampler(key, state.round, data, size, plan))
            state, info = method.round(key, state, data, drawn)
            return state, info.overflow

        return jax.lax.scan(step, method.init(key, data), None, length=rounds)

    return jax.jit(jax.vmap(one, in_axes=(0, None, None)))


def _evaluated(make: Callable[[Any], Method], known: Method) -> Method:
    """Returns the method of states with a value, as far as the evaluation needs it."""

    def assign(key: Key, state: _Valued, data: FederatedData, cohort: Any) -> _Valued:
        return state._replace(own=make(state.value).assign(key, state.own, data, cohort))

    return known._replace(
        assign=assign, client_params=lambda state, ids: make(state.value).client_params(state.own, ids)
    )


def _check_memory(compiled: Any, count: int) -> None:
    """Raises MemoryError if the program's states and intermediate results need more than the device has left."""
    analysis, available = compiled.memory_analysis(), program.available_bytes()
    if analysis is None or available is None:
        return
    needed = int(analysis.temp_size_in_bytes) + int(analysis.output_size_in_bytes)
    if needed > available:
        raise MemoryError(
            f"values must be at most {count * available // needed} to fit, got {count}: their states need about "
            f"{needed / 1e9:.1f} GB beside the data and {available / 1e9:.1f} GB are free; run some at a time."
        )
