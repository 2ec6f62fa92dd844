"""Construction of a federation from the parts of a partition and its source."""

import dataclasses
import warnings
from collections.abc import Sequence

import numpy as np

from jaxfl.data import causes, partition
from jaxfl.data.building import federate
from jaxfl.data.clients import FederatedData, Split
from jaxfl.data.sources import Source


def pack(
    source: Source,
    skew: str,
    inputs: np.ndarray,
    labels: np.ndarray,
    train: partition.Parts,
    test: Split | partition.Parts,
    group: np.ndarray | None,
    group_names: tuple[str, ...],
    held_out: np.ndarray | None = None,
    client_names: Sequence[str] = (),
    *,
    cause: str | None = None,
    client_weights: np.ndarray | None = None,
) -> FederatedData:
    """Returns the federation of the rows of a partition, with names and normalisation of the source.

    Args:
        source: the examples.
        skew: name of the skew, a part of the federation's name.
        inputs, labels: `[P, ...]`, `[P]` of the source, with its official test set if clients are tested on it.
        train: training rows of each client.
        test: test rows of each client; a `Split` has rows of the official test set.
        group, group_names: the true groups, if known.
        held_out: mask of the held-out clients `[N]`.
        client_names: one name for each client.
        client_weights: weight of each client in averages `[N]`, or None.
        cause: the cause of the true groups, see `jaxfl.data.causes`.

    Warns:
        UserWarning: some groups have no rows in the official test set, and others have.
    """
    if source.fit is not None:
        inputs, labels = source.fit(inputs, labels, np.unique(np.concatenate(train)))
    data = federate(
        inputs,
        labels,
        train,
        test,
        num_classes=source.num_classes,
        group=group,
        held_out=held_out,
        client_weights=client_weights,
        mean=source.mean,
        std=source.std,
        name=f"{skew}-{source.name}",
        group_names=group_names,
        class_names=source.class_names,
        client_names=client_names,
        check_repeats=False,
        check_kind=source.fit is None,  # a table's own option says the kind of its target
    )
    if isinstance(test, Split) and group is not None:
        _warn_untested_groups(data.name, np.bincount(group, np.asarray(test.size)), group_names)
    data = dataclasses.replace(data, fitted=source.fit is not None)
    return data if group is None or cause is None else causes.planted(data, cause)


def _warn_untested_groups(name: str, rows: np.ndarray, group_names: tuple[str, ...]) -> None:
    """Warns of groups without a test row, which are in no metric.

    Args:
        name: name of the federation.
        rows: number of test rows of each group `[G]`.
        group_names: names of the groups, or empty.
    """
    without = np.flatnonzero(rows == 0)
    if 0 < len(without) < len(rows):
        called = [group_names[group] if group_names else str(group) for group in without[:3]]
        more = f" and {len(without) - 3} more" if len(without) > 3 else ""
        warnings.warn(
            f"{name}: the official test set has no row for {len(without)} of {len(rows)} groups ({'; '.join(called)}"
            f"{more}), whose clients are in no metric; set test_share=0.2 to test clients on their own rows.",
            stacklevel=3,
        )
