"""Choice of the number of clusters by a few rounds with a sample of the clients for every candidate.

The procedure of FeSEM (Long et al., "Multi-center Federated Learning", World Wide Web 2022, section 5.2): sample 100
clients, run three rounds for every K, and keep the K of the best accuracy or of the smallest intra-cluster distance.
Details that the paper leaves open:

- The accuracy is measured on rows that every client sets aside from its training rows: the federation's validation rows
  where it has them. Test rows are not used.
- The intra-cluster distance always falls with K, so that its minimum is not informative. The elbow of its curve is
  taken: the K whose point is farthest below the chord from the first candidate to the last, both axes scaled to 0..1
  (Satopaa et al., "Finding a 'Kneedle' in a Haystack", ICDCS workshops 2011).
- Criteria beside these two score the clusters themselves, see `jaxfl.clustering.cohesion`: the best silhouette or
  Davies-Bouldin index of the clients' gradients at the initial model, or of their sorted class frequencies (the
  Wasserstein-adjusted scores). One cluster has no score, so that K = 1 is never chosen by them.
- Every K has the same clients, rows and seed, and all of the sampled clients are in every round.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData, Split
from jaxfl.data.divide import check_validation
from jaxfl.data.partition import train_test_split
from jaxfl.methods.base import Method
from jaxfl.random import host_rng
from jaxfl.schema import checked
from jaxfl.simulation.evaluation.metrics import COHESION_METRICS, is_lower_better
from jaxfl.simulation.progress import Diverged
from jaxfl.simulation.records.history import json_ready
from jaxfl.simulation.run import run

Criterion = Literal[
    "accuracy", "distance", "silhouette", "davies_bouldin", "wasserstein_silhouette", "wasserstein_davies_bouldin"
]


class Choice(NamedTuple):
    """The chosen number of clusters, with the criterion and the measurements.

    Attributes:
        num_clusters: the chosen K.
        criterion: as it was given.
        table: one row for every candidate, by K and ready for JSON: `num_clusters` (K), `accuracy` (micro, on the rows
            set aside; of another task its main metric), `distance` (FeSEM's objective in the last round; None if the
            method has none), `clusters` (those that have clients at the end), `seconds` (compilation included).
            A criterion that scores clusters is there by its name, None where it is not defined.
        metric: the task's main metric.
    """

    num_clusters: int
    criterion: Criterion
    table: list[dict[str, Any]]
    metric: str = "accuracy"


@checked
def choose_num_clusters(
    method: Callable[[int], Method],
    data: FederatedData,
    candidates: Sequence[int] = (1, 2, 3, 4, 5, 6),
    *,
    num_clients: int = 100,
    rounds: int = 3,
    criterion: Criterion = "accuracy",
    validation: float | None = None,
    seed: int = 0,
) -> Choice:
    """Returns the number of clusters that suits a federation, chosen on a sample of its clients.

    Clients that are not sampled are neither trained nor read, and no test rows are read.

    Args:
        method: makes the method of K clusters, for example `lambda k: jaxfl.methods.fesem(task, optax.sgd(0.1),
            num_clusters=k)`; any method whose number of clusters is given.
        data: the federation; with a drift, as it is before.
        candidates: the values of K.
        num_clients: clients that are sampled, of those that are not held out and have at least two training rows (one,
            where the federation has validation rows); all of them where they are fewer.
        rounds: communication rounds for every K.
        criterion: `"accuracy"`: the highest micro accuracy on the rows set aside (or the best of another task's main
            metric), each client with the model of its cluster; among equals the smallest K. `"distance"`: the
            elbow of FeSEM's intra-cluster distance (equation 6), which is neither the first nor the last K of a curve
            that falls; of a curve that is nowhere below its chord, the first.
            `"silhouette"` and `"wasserstein_silhouette"`: the highest; `"davies_bouldin"` and
            `"wasserstein_davies_bouldin"`: the lowest; of the clusters after the last round, among equals the smallest
            K. They say which clusters are compact by the clients' gradients, or by how uneven their classes are, and
            not whether their models are any better; true groups of `data` are not looked at.
        validation: share of a client's training rows that is set aside, at least one of them; None takes the
            federation's validation rows, and sets 0.2 aside where it has none.
        seed: of the sampled clients and of the rows set aside, and of every run.

    Raises:
        ValueError: an argument is out of range, the criterion is `"distance"` and the method has no `objective`, or no
            candidate ends with clusters that the criterion can score.
        RuntimeError: a run has diverged, see `jaxfl.run`.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=40)  # two clients a rotation
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> choice = choose_num_clusters(
    ...     lambda k: jaxfl.methods.fesem(task, optax.sgd(0.1), num_clusters=k), data, candidates=(1, 4)
    ... )
    >>> choice.num_clusters, [row["clusters"] for row in choice.table]
    (4, [1, 4])
    """
    data = data.at(0)
    if validation is None and data.validation is None:
        validation = 0.2
    eligible = _eligible_clients(data, 1 if validation is None else 2)
    numbers = _check_choice(
        method, candidates, criterion, validation, num_clients, rounds, min(num_clients, len(eligible))
    )
    ids = np.sort(host_rng(seed, "choice", "clients").permutation(eligible)[:num_clients])
    sample = _sample_federation(data, ids, validation, seed)
    if criterion in COHESION_METRICS:
        sample = dataclasses.replace(sample, group=None)  # of data with true groups clusters are not scored without
    if criterion == "accuracy" and not np.asarray(sample.test.size).any():
        raise ValueError(f"num_clients must sample a client with validation rows, got none in {len(ids)}; sample more.")
    methods = {number: method(number) for number in numbers}  # all are created, and checked, before the first run
    if criterion.startswith("wasserstein") and sample.kind != "classification":
        raise ValueError(
            f"criterion must be one that counts no classes for labels of the kind {sample.kind}, got {criterion!r}; "
            'take "silhouette".'
        )
    if criterion == "distance":
        _check_objective(methods[numbers[0]], sample)
    tried = [_evaluate_candidate(number, methods[number], sample, rounds, seed, criterion) for number in numbers]
    table, main = [row for row, _ in tried], tried[0][1]
    if criterion == "accuracy":
        if any(row[main] is None or math.isnan(row[main]) for row in table):
            raise ValueError(f"{main} is not defined on the rows set aside; raise validation or num_clients.")
        sign = -1 if main in methods[numbers[0]].task.metrics.lower else 1
        # rounded: equal accuracies may differ by the order of a sum
        best = max(table, key=lambda row: (round(sign * row[main], 12), -row["num_clusters"]))["num_clusters"]
    elif criterion in COHESION_METRICS:
        best = _most_cohesive(table, criterion)
    else:
        best = numbers[elbow(numbers, [row["distance"] for row in table])]
    return Choice(best, criterion, table, main)


def elbow(x: Sequence[float], y: Sequence[float]) -> int:
    """Returns the index of the point farthest below the chord, the first among equals.

    Args:
        x: ascending `[M]`.
        y: `[M]`.

    Raises:
        ValueError: x and y are not equally many finite numbers.

    >>> elbow([1, 2, 3, 4], [10.0, 3.0, 2.0, 1.0])
    1
    """
    points = [np.asarray(values, float) for values in (x, y)]
    if points[0].ndim != 1 or points[0].shape != points[1].shape or not points[0].size or not np.isfinite(points).all():
        raise ValueError(f"x and y must be equally many finite numbers, one or more, got {x!r} and {y!r}.")
    across, down = map(_unit_scaled, points)
    chord = down[0] + (down[-1] - down[0]) * across
    return int(np.argmax(np.round(chord - down, 12)))


def _unit_scaled(values: np.ndarray) -> np.ndarray:
    """Returns values scaled to 0..1; zeros where they are equal."""
    width = np.ptp(values)
    return (values - values.min()) / (width if width else 1.0)


def _most_cohesive(table: Sequence[dict[str, Any]], criterion: Criterion) -> int:
    """Returns the number of clusters with the best score, the smallest among equals.

    Raises:
        ValueError: no candidate has a score.
    """
    scored = [row for row in table if row[criterion] is not None]
    if not scored:
        raise ValueError(
            f"candidates must have one with 2 or more clusters, and fewer than clients, at the end for "
            f"criterion={criterion!r}, got {[row['clusters'] for row in table]} clusters; add larger ones, sample more "
            'clients (num_clients), or take criterion="accuracy".'
        )
    sign = -1 if is_lower_better(criterion, ()) else 1
    # rounded: equal scores may differ by the order of a sum
    return max(scored, key=lambda row: (round(sign * row[criterion], 5), -row["num_clusters"]))["num_clusters"]


def _eligible_clients(data: FederatedData, least: int) -> np.ndarray:
    """Returns the clients that can be sampled: those with at least `least` training rows that are not held out."""
    able = np.asarray(data.train.size) >= least
    if data.held_out is not None:
        able &= ~np.asarray(data.held_out)
    return np.flatnonzero(able)


def _check_choice(
    method: Any,
    candidates: Sequence[int],
    criterion: Criterion,
    validation: float | None,
    num_clients: int,
    rounds: int,
    sampled: int,
) -> list[int]:
    """Returns the candidates in ascending order.

    Raises:
        ValueError: an argument is out of range.
    """
    if isinstance(method, Method) or not callable(method):
        raise ValueError(
            f"method must be a function of the number of clusters, got a {type(method).__name__}; "
            "write lambda k: jaxfl.methods.fesem(task, optimizer, num_clusters=k)."
        )
    if validation is not None:
        check_validation(validation)
    for name, value in {"num_clients": num_clients, "rounds": rounds}.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    if not sampled:
        raise ValueError(
            "data must have clients with at least 2 training rows, one to train on and one to set aside, that are not "
            "held out; got none."
        )
    numbers = list(candidates) if isinstance(candidates, Iterable) else [0]  # a single number is not a list
    if not all(isinstance(number, (int, np.integer)) and number >= 1 for number in numbers):
        raise ValueError(f"candidates must be numbers of clusters, at least 1, got {candidates!r}.")
    numbers = sorted(map(int, numbers))
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(f"candidates must be one or more different numbers, got {candidates!r}; write (1, 2, 4).")
    if numbers[-1] > sampled:
        raise ValueError(
            f"candidates must be at most the number of sampled clients ({sampled}), got {numbers[-1]}; lower it or "
            "sample more clients (num_clients; those with 2 or more training rows that are not held out count)."
        )
    if criterion == "distance" and len(numbers) < 3:
        raise ValueError(
            f'candidates must be at least 3 for criterion="distance", whose curve has no elbow otherwise, got '
            f'{candidates!r}; add some, or take criterion="accuracy".'
        )
    return numbers


def _check_objective(method: Method, data: FederatedData) -> None:
    """Raises ValueError if the method does not report the intra-cluster distance; nothing is compiled."""
    key, cohort = jax.random.key(0), Cohort.of(range(data.num_clients))
    state = jax.eval_shape(method.init, key, data)
    _, info = jax.eval_shape(method.round, key, state, data, cohort)
    if getattr(info.extra.get("objective"), "shape", None) != ():
        raise ValueError(
            'criterion must be "accuracy" for a method without an intra-cluster distance (info.extra["objective"], as '
            'FeSEM has), got "distance".'
        )


def _sample_federation(data: FederatedData, ids: np.ndarray, validation: float | None, seed: int) -> FederatedData:
    """Returns the federation of some clients and their training rows; the rows set aside are its test rows."""
    few = data.subset(ids)
    if few.attack is not None and np.asarray(few.attack.attacker).all():
        raise ValueError(
            f"num_clients must sample an honest client, but all of the {len(ids)} sampled clients are attackers; "
            "sample more clients or change the seed."
        )
    if validation is None:
        assert few.validation is not None
        halves = _rows_by_client(few.train), _rows_by_client(few.validation)
    else:
        halves = train_test_split(_rows_by_client(few.train), validation, seed=seed)
    pool = np.unique(np.concatenate([*halves[0], *halves[1]]))  # clients may share rows
    train, test = (
        dataclasses.replace(
            Split.pack([np.searchsorted(pool, part) for part in half]),
            flipped=few.train.flipped,
            triggered=few.train.triggered,
        )
        for half in halves
    )
    return dataclasses.replace(
        few,
        # indexed before conversion: nothing else of the pool is read
        inputs=np.asarray(data.inputs[pool]),
        labels=np.asarray(data.labels[pool]),
        origin=None,  # of rows of the whole pool
        train=train,
        test=test,
        validation=None,
        held_out=None,
        absent=None,
    )


def _rows_by_client(split: Split) -> list[np.ndarray]:
    """Returns the pool indices of each client's rows."""
    start, size, rows = (np.asarray(leaf) for leaf in (split.start, split.size, split.rows))
    return [rows[first : first + count] for first, count in zip(start, size, strict=True)]


def _evaluate_candidate(
    number: int, method: Method, data: FederatedData, rounds: int, seed: int, criterion: Criterion
) -> tuple[dict[str, Any], str]:
    """Returns the row of one candidate, and the name of the task's main metric."""
    began = time.perf_counter()
    try:
        result = run(method, data, rounds=rounds, seed=seed, eval_every=rounds)
    except Diverged as error:
        raise RuntimeError(f"with K = {number} clusters {error}") from error
    record, main = result.history[-1], result.evaluation.main
    row = {
        "num_clusters": number,
        "distance": record.get("objective"),
        "clusters": record["num_clusters"],
        "seconds": time.perf_counter() - began,
        **({criterion: json_ready(record[criterion])} if criterion in COHESION_METRICS else {}),
        main: record[f"micro_{main}"],  # last, so that no other entry of this name replaces it
    }
    return row, main
