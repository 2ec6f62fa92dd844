"""Federations by natural partition: a client for each writer, person or site that made the examples."""

import warnings
from collections.abc import Sequence
from typing import Literal

import numpy as np

from jaxfl.data import partition
from jaxfl.data.casts import join
from jaxfl.data.clients import FederatedData, Split
from jaxfl.data.packing import pack
from jaxfl.data.sources import Source
from jaxfl.random import host_rng
from jaxfl.schema import checked

SHARE = 0.2  # the default of `test_share`, which official test rows of known makers take precedence over


@checked
def writers(
    source: Source,
    *,
    num_clients: int | None = None,
    by: Literal["client", "group"] = "client",
    min_rows: int = 2,
    max_rows: int | None = None,
    test_share: float | None = SHARE,
    seed: int = 0,
) -> FederatedData:
    """Returns a federation with a client for each maker of the examples; see `partition.natural`.

    If the makers of an official test set are known (`test_client` in a file of yours, FEMNIST's files by writer), its
    rows are what these makers are tested on; otherwise (MNIST) they are not used.

    Args:
        source: examples with known makers. The groups of makers, if known, are the true groups.
        num_clients: number of clients, chosen at random; None takes all.
        by: a client is a maker, or a whole group of makers (UNIPEN: a writer, or a site).
        min_rows: clients with fewer rows are left out (LEAF: 2).
        max_rows: most rows of a client, chosen at random; None keeps all.
        test_share: share of a client's rows to test on. The default, 0.2, is the official test rows of each maker where
            they are known, as None is; any other share divides these with all others anew. Makers without training
            rows are held out (LEAF's split by user); of all others `max_rows` keeps at least one training row.
        seed: seed of all choices.

    Raises:
        ValueError: the makers of the examples are unknown, or too few makers have enough rows.

    Warns:
        UserWarning: makers are left out because of `min_rows`, held out because they have no training rows, or not
            tested because they have no test rows, while others are, or because `max_rows` takes none of theirs.
    """
    official_test = by == "client" and source.test_clients is not None and not source.central
    clients = _row_makers(source, by)
    central = None
    if source.central and source.test_labels is not None:
        inputs, labels, central = source.pool
    elif source.test_clients is not None and official_test:
        inputs, labels, _ = source.pool
        clients = join(f"client of {source.name}", [clients, source.test_clients])
    else:
        inputs, labels = source.inputs, source.labels
    if official_test and test_share == SHARE:
        test_share = None
    if test_share is None and not official_test and central is None:
        raise ValueError(
            f"test_share must be a number, because {source.name} has no test rows by {by}, got None; 0.2 is usual."
        )
    parts, _ = partition.natural(clients)
    all_rows = _choose_makers(source.name, parts, num_clients, min_rows, seed)
    parts = partition.at_most(all_rows, max_rows, min_rows, host_rng(seed, "writers", "rows"))
    if test_share is None and central is None:
        parts = _ensure_training_row(parts, all_rows, len(source.inputs))
    group, held_out = _client_groups(source, parts) if by == "client" else None, None
    train: partition.Parts
    test: partition.Parts | Split
    if central is not None:
        train, test = parts, Split.shared([central], np.zeros(len(parts), np.int32))
    elif test_share is None:
        count = len(source.inputs)
        train, test = [part[part < count] for part in parts], [part[part >= count] for part in parts]
        unseen = np.array([not len(part) for part in train])
        held_out = unseen if unseen.any() else None
        if unseen.any():
            warnings.warn(
                f"{source.name}: {unseen.sum()} of {len(unseen)} makers have no training rows and are held out, and a "
                "method cannot assign them to a cluster; test_share=0.25 divides the rows of all makers anew.",
                stacklevel=2,
            )
        lost = np.array([not len(part) and rows[-1] >= count for part, rows in zip(test, all_rows, strict=True)])
        if lost.any():
            warnings.warn(
                f"{source.name}: max_rows={max_rows} leaves {lost.sum()} of {len(lost)} makers without the test rows "
                "that they have, and they are in no metric; take more rows, or leave max_rows out.",
                stacklevel=2,
            )
        untested = np.array([not len(part) for part in test]) & ~lost
        if 0 < untested.sum() < (~unseen & ~lost).sum():  # more than that: the test set has makers of its own
            warnings.warn(
                f"{source.name}: {untested.sum()} of {len(untested)} makers have no test rows and are in no metric; "
                "test_share=0.25 divides the rows of all makers anew.",
                stacklevel=2,
            )
    else:
        train, test = partition.train_test_split(parts, test_share, seed=seed)
    names = () if group is None else source.group_names
    makers = [clients[part[0]] for part in parts]
    makers = [maker.decode("utf-8", "backslashreplace") if isinstance(maker, bytes) else str(maker) for maker in makers]
    if by == "group" and source.group_names:
        makers = [source.group_names[clients[part[0]]] for part in parts]
    weights = _client_weights(source, parts, makers) if by == "client" else None
    return pack(
        *(source, "writers", inputs, labels, train, test, group, names, held_out, makers),
        cause="makers",
        client_weights=weights,
    )


def _choose_makers(
    name: str, parts: partition.Parts, num_clients: int | None, min_rows: int, seed: int
) -> partition.Parts:
    """Returns the rows of the makers that become clients; arguments as in `writers`."""
    partition.check_count("min_rows", min_rows, least=0)
    total, parts = len(parts), [part for part in parts if len(part) >= min_rows]
    most = len(parts)
    if not parts:
        raise ValueError(f"min_rows must be lower, because no maker has {min_rows} rows of {name} or more.")
    if num_clients is not None:
        partition.check_count("num_clients", num_clients)
    if most < (num_clients or 0):
        raise ValueError(
            f"num_clients must be at most {most}, the clients with {min_rows} rows or more, got {num_clients}; lower "
            "it or min_rows."
        )
    if most < total:
        warnings.warn(
            f"{name}: {total - most} of {total} makers have fewer than {min_rows} rows and are left out; min_rows=0 "
            "keeps them.",
            stacklevel=3,
        )
    if num_clients is not None:
        chosen = np.sort(host_rng(seed, "writers").choice(most, num_clients, replace=False))
        parts = [parts[index] for index in chosen]
    return parts


def _ensure_training_row(parts: partition.Parts, whole: partition.Parts, count: int) -> partition.Parts:
    """Returns the rows that makers keep, with the first replaced by a training row where none of these was chosen.

    Args:
        parts: sorted rows that each maker keeps; training rows are those below `count`.
        whole: all sorted rows of each maker.
        count: number of the training rows of all.
    """
    lost = [part[0] >= count > rows[0] for part, rows in zip(parts, whole, strict=True)]
    return [np.r_[rows[:1], part[1:]] if gone else part for part, rows, gone in zip(parts, whole, lost, strict=True)]


def _row_makers(source: Source, by: str) -> np.ndarray:
    """Returns the maker of each training example `[P]`; raises ValueError if the makers are unknown."""
    if by == "group" and source.client_groups is not None:
        return source.client_groups
    if by == "client" and source.clients is not None:
        return source.clients
    what = "makers" if by == "client" else "groups of makers"
    if source.fit is not None:  # a table, whose columns have roles
        raise ValueError(
            f"{source.name} has no {what} of its examples; set {by} to the column that has them, or use another skew, "
            "such as quantity."
        )
    raise ValueError(
        f"{source.name} has no {what} of its examples; mnist needs qmnist-train-labels-idx2-int.gz beside its files "
        "(https://github.com/facebookresearch/qmnist), your own file needs a column client (or group), a folder of "
        "images a folder for each client (CLIENT/CLASS/*.png); or use another skew, such as dirichlet."
    )


def _client_groups(source: Source, parts: partition.Parts) -> np.ndarray | None:
    """Returns the true group of each client `[N]`, or None if a group is unknown."""
    groups = source.client_groups
    if groups is None:
        return None
    known = [groups[part[part < len(groups)]] for part in parts]  # a maker may have test rows only
    if any((group != group[0]).any() for group in known if len(group)):
        raise ValueError(
            f"group must be the same in all rows of a client, but {source.name} has a client in two groups."
        )
    if unknown := sum(not len(group) for group in known):
        warnings.warn(
            f"{source.name}: {unknown} of {len(known)} clients have only rows of the test set, whose group is "
            "unknown, so there are no true groups and no ARI; leave these clients out to have them.",
            stacklevel=2,
        )
        return None
    return np.array([group[0] for group in known], np.int32)


def _client_weights(source: Source, parts: partition.Parts, names: Sequence[str]) -> np.ndarray | None:
    """Returns the weight of each client in averages `[N]`, 0 without training rows; None if there are no weights."""
    weights = source.client_weights
    if weights is None:
        return None
    known = [weights[part[part < len(weights)]] for part in parts]  # a maker may have test rows only
    for name, own in zip(names, known, strict=True):
        if (own != own[:1]).any():
            raise ValueError(
                f"client_weight must be the same in all rows of a client, but client {name} of {source.name} has "
                f"{own[0]:g} and {own[np.argmax(own != own[0])]:g}."
            )
    return np.array([own[0] if len(own) else 0 for own in known], np.float32)
