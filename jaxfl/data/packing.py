"""A federation of what a builder has dealt out."""

import dataclasses
import warnings
from collections.abc import Sequence

import numpy as np

from jaxfl.data import partition
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
) -> FederatedData:
    """Builds a federation from its parts and what the source knows about the examples.

    Args:
        source: the examples.
        skew: for the name.
        inputs, labels: `[P, ...]`, `[P]`, those of the source, and of its official test set if its rows are tested on.
        train: the rows of each client.
        test: those that it is tested on; a `Split` is of the official test set.
        group, group_names: the true groups, where they are known.
        held_out: who is, `[N]`.
        client_names: one for each client.

    Warns:
        UserWarning: groups of whom nobody has test rows of the official test set, where others have.
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
        mean=source.mean,
        std=source.std,
        name=f"{skew}-{source.name}",
        group_names=group_names,
        class_names=source.class_names,
        client_names=client_names,
    )
    if isinstance(test, Split) and group is not None:
        _warn_untested_groups(data.name, np.bincount(group, np.asarray(test.size)), group_names)
    return dataclasses.replace(data, fitted=source.fit is not None)


def _warn_untested_groups(name: str, rows: np.ndarray, group_names: tuple[str, ...]) -> None:
    """Warns of groups without a test row, of which no metric says anything.

    Args:
        name: name of the federation.
        rows: of each group `[G]`.
        group_names: what they are called, or none.
    """
    without = np.flatnonzero(rows == 0)
    if 0 < len(without) < len(rows):
        called = [group_names[one] if group_names else str(one) for one in without[:3]]
        more = f" and {len(without) - 3} more" if len(without) > 3 else ""
        warnings.warn(
            f"{name}: the official test set has no row for {len(without)} of {len(rows)} groups ({'; '.join(called)}"
            f"{more}), whose clients are in no metric; set test_share=0.2 to test clients on rows of their own.",
            stacklevel=3,
        )
