"""Test sets of all clients: each client's served model on the test rows of all clients, as it sees them or by concept.

- `shared`: the test rows of all clients, each once, in every client's own view (its rotation, its numbering of the
  classes, ...). `shared_macro_accuracy` is the mean over clients, and `weighted_macro_accuracy` that of the accuracies
  in which a row counts by the share of its class among the client's training rows.
- `concept`: the same rows with clean features, in the client's numbering of the classes alone: its concept.
  `concept_macro_accuracy` is the mean over concepts of the mean over their clients.

Held-out clients and attackers are left out of these means. Models are those that clients are served, as their cluster
or their own training rows say; no test row decides on them.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence

import numpy as np

from jaxfl.data.clients import FederatedData, view_fields
from jaxfl.data.describe import label_counts
from jaxfl.data.divide import central_test, check_central_test
from jaxfl.data.views.copies import without_copies
from jaxfl.methods.base import Method
from jaxfl.schema import check_name
from jaxfl.simulation.evaluation.metrics import Evaluation, OtherMetrics, Totals, counted_clients
from jaxfl.tasks import Metrics

SHARED, CONCEPT = "shared", "concept"
WEIGHTED = "weighted"
TEST_SETS = (SHARED, CONCEPT)
TestSets = Mapping[str, Sequence[FederatedData]]  # by name, the federation of each stage of a drift
NO_TEST_SETS: TestSets = {}


def parse_test_sets(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Returns the names of test sets, in the order of `TEST_SETS`.

    Args:
        given: `"shared"`, `"concept"` or both, separated by a comma or a plus, or in a list; None is none.

    Raises:
        ValueError: a name is unknown.

    >>> parse_test_sets("concept,shared"), parse_test_sets(None)
    (('shared', 'concept'), ())
    """
    names = re.split(r"\s*[,+]\s*", given.strip()) if isinstance(given, str) else list(given or ())
    for name in names:
        check_name("test_sets", name, TEST_SETS)
    return tuple(name for name in TEST_SETS if name in names)


def make_test_sets(data: FederatedData, names: Sequence[str], method: Method) -> TestSets:
    """Returns federations whose test rows are the test sets, for the programs of a run.

    Args:
        data: the federation, with its drift if it has one.
        names: of `parse_test_sets`.
        method: that is evaluated.

    Raises:
        ValueError: no client has test rows, a client trains on a test row of another, or for `concept` labels are no
            classes or the method adapts models to training rows, which are seen as they are.
    """
    if CONCEPT in names and (data.kind != "classification" or method.adapt is not None):
        why = f"labels are {data.kind}" if data.kind != "classification" else "the method adapts its models"
        raise ValueError(
            f"test_sets must not have concept, since {why}; leave it out, or take shared: each client sees the rows as "
            "its own."
        )
    for phase in data.phases if names else ():
        check_central_test(phase, "test_sets", ",".join(names))
    make = {SHARED: central_test, CONCEPT: _concept_test}
    return {name: tuple(make[name](phase).in_programs() for phase in data.phases) for name in names}


def _concept_test(data: FederatedData) -> FederatedData:
    """Returns the federation whose clients see all test rows with clean features."""
    data = without_copies(data)
    changed = [name for name in view_fields(data) if name != "label_shift" and getattr(data, name) is not None]
    # a colour 0 leaves the three channels that the network takes
    clean = {name: 0 * np.asarray(getattr(data, name)) if "colour" in name else None for name in changed}
    return central_test(dataclasses.replace(data, **clean))


def weighted_accuracy(task: Metrics, data: FederatedData, totals: Totals) -> dict[str, np.ndarray]:
    """Returns accuracies `[N]` in which a row counts by its class's share of the client's training rows, by their name.

    NaN of a client without training rows of any class of the test set; nothing for tasks without classes.

    Args:
        task: what is measured.
        data: the federation of the clients.
        totals: of their rows of the test set.
    """
    if task.class_counts is None or data.kind != "classification":
        return {}
    truth, _, hits = task.class_counts(totals.sums)
    shares = label_counts(data) / np.maximum(np.asarray(data.train.size), 1)[:, None]  # [N, L]
    with np.errstate(invalid="ignore"):
        return {WEIGHTED: (shares * hits).sum(1) / (shares * truth).sum(1)}


def shared_metrics(found: Evaluation, data: FederatedData) -> OtherMetrics:
    """Returns the metrics of `shared`, of all clients and of each.

    Args:
        found: of its rows.
        data: the federation of the clients.
    """
    columns = {f"{SHARED}_{name}": values for name, values in {**found.values, "loss": found.loss}.items()}
    metrics = {f"{SHARED}_macro_{name}": found.metrics[f"macro_{name}"] for name in found.values}
    metrics[f"{SHARED}_loss"] = found.metrics["loss"]
    if WEIGHTED in found.others:
        values = columns[f"{WEIGHTED}_accuracy"] = found.others[WEIGHTED]
        some = values[counted_clients(data) & np.isfinite(values)]
        metrics[f"{WEIGHTED}_macro_accuracy"] = float(some.mean()) if len(some) else None
    return metrics, columns


def concept_metrics(found: Evaluation, data: FederatedData) -> OtherMetrics:
    """Returns the metrics of `concept`, of all clients and of each.

    Args:
        found: of the rows with clean features.
        data: the federation of the clients, whose label maps are the concepts.
    """
    values = found.values[found.main]
    _, concept = np.unique(data.label_maps(), axis=0, return_inverse=True)
    who = counted_clients(data) & np.isfinite(values)
    concept = concept.reshape(-1)[who]
    means = [values[who][concept == one].mean() for one in np.unique(concept)]
    mean = float(np.mean(means)) if means else None
    return {f"{CONCEPT}_macro_{found.main}": mean}, {f"{CONCEPT}_{found.main}": values}


def on_same_pool(sets: TestSets, host: FederatedData, placed: FederatedData) -> TestSets:
    """Returns test sets that share the pool of the federation which is on the device, where their rows are the same.

    Args:
        sets: of `make_test_sets`.
        host: the federation that they were made of.
        placed: the same one, where the run has it.
    """

    def shared(one: FederatedData) -> FederatedData:
        same = {
            name: getattr(placed, name) for name in ("inputs", "labels") if getattr(one, name) is getattr(host, name)
        }
        return dataclasses.replace(one, **same)

    return {name: tuple(map(shared, stages)) for name, stages in sets.items()}
