"""Federations by maker: one client for each writer, person or site that made the examples."""

import warnings
from typing import Literal

import numpy as np

from jaxfl.data import partition
from jaxfl.data.clients import FederatedData
from jaxfl.data.packing import pack
from jaxfl.data.sources import Source
from jaxfl.random import host_rng
from jaxfl.schema import checked


@checked
def writers(
    source: Source,
    *,
    num_clients: int | None = None,
    by: Literal["client", "group"] = "client",
    min_rows: int = 2,
    max_rows: int | None = None,
    test_share: float | None = 0.2,
    seed: int = 0,
) -> FederatedData:
    """Returns one client for each maker of the examples; see `partition.natural`.

    Where the makers of an official test set are those of the training set (FEMNIST's files by writer), its examples
    belong to them like the others; where they are not (MNIST), they are not used.

    Args:
        source: examples with known makers. Their groups, where known, are the true groups.
        num_clients: how many, chosen at random; None takes all.
        by: a client is a maker, or a whole group of makers (UNIPEN: a writer, or a site).
        min_rows: clients of fewer rows are left out (LEAF: 2).
        max_rows: clients of more rows keep so many, chosen at random; None keeps all.
        test_share: share of a client's rows to test on; None keeps to the source's own test rows of each maker, and
            makers that have nothing else are held out: of others `max_rows` keeps one training row at least.
        seed: seed of all choices.

    Raises:
        ValueError: the source does not know who made its examples, or there are too few who made enough of them.
    """
    own_test = by == "client" and source.test_clients is not None
    clients = _row_makers(source, by)
    if source.test_clients is not None and own_test:
        inputs, labels, _ = source.pool
        clients = np.concatenate([clients, source.test_clients])
    else:
        inputs, labels = source.inputs, source.labels
    if test_share is None and not own_test:
        raise ValueError(
            f"test_share must be a number: {source.name} has no test rows by {by}, got None; 0.2 is usual."
        )
    parts, _ = partition.natural(clients)
    whole = _choose_makers(source.name, parts, num_clients, min_rows, seed)
    parts = partition.at_most(whole, max_rows, min_rows, host_rng(seed, "writers", "rows"))
    if test_share is None:
        parts = _keep_one_training_row(parts, whole, len(source.inputs))
    group, held_out = _client_groups(source, parts) if by == "client" else None, None
    if test_share is None:
        count = len(source.inputs)
        train, test = [part[part < count] for part in parts], [part[part >= count] for part in parts]
        unseen = np.array([not len(part) for part in train])
        held_out = unseen if unseen.any() else None
        if unseen.any():
            warnings.warn(
                f"{source.name}: {unseen.sum()} of {len(unseen)} makers have no training rows: they are held out, and "
                "nothing tells a method to which cluster they belong; test_share=0.2 gives all of them some.",
                stacklevel=2,
            )
    else:
        train, test = partition.train_test_split(parts, test_share, seed=seed)
    names = () if group is None else source.group_names
    makers = [clients[part[0]] for part in parts]
    makers = [one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one) for one in makers]
    if by == "group" and source.group_names:
        makers = [source.group_names[clients[part[0]]] for part in parts]
    return pack(source, "writers", inputs, labels, train, test, group, names, held_out, makers)


def _choose_makers(
    name: str, parts: partition.Parts, num_clients: int | None, min_rows: int, seed: int
) -> partition.Parts:
    """Returns the rows of the makers that take part; arguments as of `writers`."""
    partition.check_count("min_rows", min_rows, least=0)
    parts = [part for part in parts if len(part) >= min_rows]
    most = len(parts)
    if not parts:
        raise ValueError(f"min_rows must be lower: nobody has {min_rows} rows of {name} or more.")
    if num_clients is not None:
        partition.check_count("num_clients", num_clients)
    if most < (num_clients or 0):
        raise ValueError(
            f"num_clients must be at most {most}, the clients with {min_rows} rows or more, got {num_clients}; lower "
            "it or min_rows."
        )
    if num_clients is not None:
        chosen = np.sort(host_rng(seed, "writers").choice(most, num_clients, replace=False))
        parts = [parts[index] for index in chosen]
    return parts


def _keep_one_training_row(parts: partition.Parts, whole: partition.Parts, count: int) -> partition.Parts:
    """Returns the rows that makers keep, the first one a training row where chance has left them none of theirs.

    Args:
        parts: what they keep, in order: training rows are those below `count`.
        whole: all that they have, in order.
        count: number of the training rows of all.
    """
    lost = [part[0] >= count > own[0] for part, own in zip(parts, whole, strict=True)]
    return [np.r_[own[:1], part[1:]] if one else part for part, own, one in zip(parts, whole, lost, strict=True)]


def _row_makers(source: Source, by: str) -> np.ndarray:
    """Returns whose each training example is `[P]`; raises where nobody knows."""
    if by == "group" and source.client_groups is not None:
        return source.client_groups
    if by == "client" and source.clients is not None:
        return source.clients
    what = "who made its examples" if by == "client" else "the groups of those who made its examples"
    if source.fit is not None:  # a table, whose columns have roles
        raise ValueError(
            f"{source.name} does not say {what}: set {by} to the column that does, or use another skew, such as "
            "quantity."
        )
    raise ValueError(
        f"{source.name} does not say {what}: mnist needs qmnist-train-labels-idx2-int.gz beside its files "
        "(https://github.com/facebookresearch/qmnist), your own file a column client (or group); or use another skew, "
        "such as dirichlet."
    )


def _client_groups(source: Source, parts: partition.Parts) -> np.ndarray | None:
    """Returns the true group of each client `[N]`; None if not all are known."""
    groups = source.client_groups
    if groups is None:
        return None
    known = [groups[part[part < len(groups)]] for part in parts]  # a maker may have test rows only
    if any((own != own[0]).any() for own in known if len(own)):
        raise ValueError(f"group must be the same in all rows of a client: {source.name} has a client in two.")
    if unknown := sum(not len(own) for own in known):
        warnings.warn(
            f"{source.name}: {unknown} of {len(known)} clients have rows of the test set alone, of which no group is "
            "known: there are no true groups, and no ARI. Leave these clients out to have them.",
            stacklevel=2,
        )
        return None
    return np.array([own[0] for own in known], np.int32)
