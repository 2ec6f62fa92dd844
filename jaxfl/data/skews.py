"""Federations by skew: every client has its own rows of the source, chosen by `partition`.

Each builder takes a `Source` and keyword options, as in `shift`. Test rows are a share `test_share` of the client's
rows (in `hybrid` of its domain's rows) or, with `test_share=None`, the official test set: restricted to the classes of
the client's group (`pathological`), or dealt out in the class shares of the client's training rows (`dirichlet`,
`shards`, `dominant`, `missing`, `downsampled`).
"""

from collections.abc import Sequence

import numpy as np

from jaxfl.data import partition
from jaxfl.data.clients import FederatedData, Split
from jaxfl.data.labels import check_classes
from jaxfl.data.packing import pack
from jaxfl.data.sources import Source
from jaxfl.random import host_rng
from jaxfl.schema import checked


def iid(
    source: Source,
    *,
    num_clients: int,
    rows_per_client: int | None = None,
    test_share: float | None = None,
    seed: int = 0,
) -> FederatedData:
    """Returns a federation whose clients differ by chance only; see `partition.iid`.

    Args:
        source: any examples.
        num_clients: N.
        rows_per_client: rows of a client, before `test_share` of them is set aside; None divides all rows.
        test_share: share of a client's rows to test on; None is the official test set, 0.2 where there is none.
        seed: seed of all choices.
    """
    parts = partition.iid(len(source.labels), num_clients, rows_per_client=rows_per_client, seed=seed)
    return _split_and_pack(source, "iid", parts, test_share, seed)


def dirichlet(
    source: Source,
    *,
    num_clients: int,
    alpha: float = 0.5,
    rule: partition.DirichletRule = "plain",
    min_rows: int = 2,
    max_rows: int | None = None,
    rows_per_client: int | None = None,
    num_components: int = 3,
    essential: int = 0,
    test_share: float | None = 0.2,
    seed: int = 0,
) -> FederatedData:
    """Returns a federation with Dirichlet distributed shares of each class; see `partition.dirichlet`.

    Args:
        source: any examples.
        num_clients: N.
        alpha: concentration: large is iid, small gives each class to few clients. With rule=prior it is the sum over
            the classes.
        rule: shares of each class over the clients, drawn once (plain), or again until all clients have min_rows, and
            not for clients that have their part of all rows (balanced: PFLlib); shares of the classes for each client,
            of equal size (prior: FedRC); shares of groups of classes over the clients (grouped: FedEM).
        min_rows: the least rows of a client (with rule=balanced, PFLlib: 40, pFedGraph: 10).
        max_rows: most rows of a client, chosen at random; None keeps all.
        rows_per_client: rows of a client with rule=prior, before `test_share` of them is set aside; None divides all.
        num_components: number of groups of classes with rule=grouped.
        essential: rows of each class that every client has before the shares are drawn, with rule=plain (FedCCFA: 5).
        test_share: share of a client's rows to test on; None deals out the official test rows, in the class shares of
            each client's training rows.
        seed: seed of all choices.
    """
    parts = partition.dirichlet(
        source.labels,
        num_clients,
        alpha=alpha,
        rule=rule,
        min_rows=min_rows,
        rows_per_client=rows_per_client,
        num_components=num_components,
        essential=essential,
        seed=seed,
    )
    parts = partition.at_most(parts, max_rows, min_rows, host_rng(seed, "dirichlet", "rows"))
    return _split_and_pack(source, "dirichlet", parts, test_share, seed, dealt=np.arange(num_clients))


def shards(
    source: Source,
    *,
    num_clients: int,
    shards_per_client: int = 2,
    test_share: float | None = 0.2,
    seed: int = 0,
) -> FederatedData:
    """Returns a federation whose clients have shards of the rows sorted by class; see `partition.shards`.

    Args:
        source: any examples.
        num_clients: N.
        shards_per_client: shards of each client.
        test_share: share of a client's rows to test on; None deals out the official test rows, in the class shares of
            each client's training rows.
        seed: seed of all choices.
    """
    parts = partition.shards(source.labels, num_clients, shards_per_client=shards_per_client, seed=seed)
    return _split_and_pack(source, "shards", parts, test_share, seed, dealt=np.arange(num_clients))


@checked
def quantity(
    source: Source,
    *,
    num_clients: int,
    law: partition.QuantityLaw = "lognormal",
    sigma: float = 1.0,
    exponent: float = 1.0,
    relative_sizes: Sequence[float] = partition.RELATIVE_SIZES,
    min_rows: int = 2,
    test_share: float | None = None,
    seed: int = 0,
) -> FederatedData:
    """Returns a federation whose clients differ only in their number of rows; see `partition.quantity`.

    Args:
        source: any examples.
        num_clients: N.
        law: law of the sizes, log-normal, a power of the client's rank, or a size for each group of clients (groups).
        sigma: standard deviation of the logarithm of log-normal sizes.
        exponent: exponent of the power law.
        relative_sizes: size of a client of each group with law=groups, in any unit; the groups are the true groups.
        min_rows: the least rows of a client.
        test_share: share of a client's rows to test on; None is the official test set, 0.2 where there is none.
        seed: seed of all choices.
    """
    parts = partition.quantity(
        len(source.labels),
        num_clients,
        law=law,
        sigma=sigma,
        exponent=exponent,
        relative_sizes=relative_sizes,
        min_rows=min_rows,
        seed=seed,
    )
    group, names = None, ()
    if law == "groups":
        group = np.repeat(np.arange(len(relative_sizes), dtype=np.int32), num_clients // len(relative_sizes))
        names = tuple(f"size {size:g}" for size in relative_sizes)
    return _split_and_pack(source, "quantity", parts, test_share, seed, group, names, cause="quantity")


def pathological(
    source: Source,
    *,
    num_clients: int,
    rows_per_client: int | None = None,
    label_groups: Sequence[Sequence[int]] | None = None,
    client_classes: int | None = None,
    overlap: float | None = None,
    reserve: float = 0.1,
    uneven: bool = False,
    test_share: float | None = None,
    seed: int = 0,
) -> FederatedData:
    """Returns a federation whose groups of clients have different classes; see `partition.pathological`.

    Args:
        source: any examples.
        num_clients: N, a multiple of the number of groups.
        rows_per_client: rows of a client, before `test_share` of them is set aside; None divides all rows.
        label_groups: the classes of each group; None is the source's groups (CIFAR-100's superclasses), or else
            `partition.default_groups`, StoCFL's for ten classes. With `overlap` a class may be in several groups.
        client_classes: number of classes of a client by PFLlib's rule, by which neighbours have the same classes;
            instead of label_groups, and for any number of clients.
        overlap: concentration of the Dirichlet distribution by which the rows of a class go to its groups, where a
            class is in several (CLoVE: 0.5).
        reserve: with `overlap`, share of these rows that is divided evenly first.
        uneven: whether the clients of a class have different numbers of its rows, from a tenth of the mean to the mean,
            and the last one the rest (PFLlib).
        test_share: share of a client's rows to test on; None is the official test rows of the group's classes (with
            `overlap` the group's part of them, in the class shares of its training rows), 0.2 where there is no
            official test set.
        seed: seed of all choices.
    """
    names: tuple[str, ...] = ()
    if label_groups is None and client_classes is None and source.class_groups is not None:
        numbers, names = np.unique(source.class_groups), source.class_group_names
        label_groups = [np.flatnonzero(source.class_groups == number).tolist() for number in numbers]
        names = tuple(names[number] for number in numbers) if names else ()
    if label_groups is None and client_classes is None:
        label_groups = partition.default_groups(source.num_classes)
    parts, group = partition.pathological(
        source.labels,
        num_clients,
        label_groups=label_groups,
        client_classes=client_classes,
        overlap=overlap,
        reserve=reserve,
        uneven=uneven,
        rows_per_client=rows_per_client,
        seed=seed,
    )
    if client_classes is not None:
        label_groups, _ = partition.neighbour_groups(np.unique(source.labels), num_clients, client_classes)
    assert label_groups is not None
    names = names or tuple(f"labels {_class_list(source, labels)}" for labels in label_groups)
    if overlap is not None:
        return _split_and_pack(source, "pathological", parts, test_share, seed, group, names, dealt=group)
    tests = None if source.test_labels is None else [np.isin(source.test_labels, labels) for labels in label_groups]
    return _split_and_pack(source, "pathological", parts, test_share, seed, group, names, tests)


def dominant(
    source: Source,
    *,
    num_clients: int,
    rows_per_client: int | None = None,
    beta: float = 0.5,
    num_groups: int | None = None,
    test_share: float | None = 0.2,
    seed: int = 0,
) -> FederatedData:
    """Returns a federation whose groups of clients have a dominant class; see `partition.dominant`.

    Args:
        source: any examples.
        num_clients: N, a multiple of the number of groups.
        rows_per_client: rows of a client, before `test_share` of them is set aside; None takes as many as possible.
        beta: share of the dominant class.
        num_groups: number of dominant classes; None is 4, or all classes if there are fewer.
        test_share: share of a client's rows to test on; None deals out the official test rows among the groups, in the
            class shares of their training rows.
        seed: seed of all choices.
    """
    parts, group = partition.dominant(
        source.labels, num_clients, beta=beta, num_groups=num_groups, rows_per_client=rows_per_client, seed=seed
    )
    names = tuple(f"mostly {_class_name(source, label)}" for label in np.unique(source.labels)[: group.max() + 1])
    return _split_and_pack(source, "dominant", parts, test_share, seed, group, names, dealt=group)


def missing(
    source: Source,
    *,
    num_clients: int,
    rows_per_client: int | None = None,
    without: str | Sequence[int | Sequence[int]] | None = None,
    overlap: float | None = None,
    reserve: float = 0.1,
    test_share: float | None = 0.2,
    seed: int = 0,
) -> FederatedData:
    """Returns a federation whose groups of clients lack some classes; see `partition.missing`.

    Args:
        source: any examples.
        num_clients: N, a multiple of the number of groups.
        rows_per_client: rows of a client, before `test_share` of them is set aside; None divides all rows.
        without: classes that the groups lack, with a comma between groups and a colon between the classes of one, such
            as 9,0,1:2,none; none as a group lacks no class. None is the last class, the first three, and no class
            (CLoVE).
        overlap: concentration of the Dirichlet distribution by which the rows of a class go to the groups that have it
            (CLoVE: 0.5); None divides them evenly.
        reserve: with `overlap`, share of these rows that is divided evenly first.
        test_share: share of a client's rows to test on; None deals out the official test rows among the groups, in the
            class shares of their training rows.
        seed: seed of all choices.
    """
    check_classes("missing", source.labels)
    lacking = partition.default_without(source.labels) if without is None else partition.class_lists("without", without)
    parts, group = partition.missing(
        source.labels,
        num_clients,
        without=lacking,
        overlap=overlap,
        reserve=reserve,
        rows_per_client=rows_per_client,
        seed=seed,
    )
    names = tuple(f"without {_class_list(source, labels)}" if labels else "all classes" for labels in lacking)
    return _split_and_pack(source, "missing", parts, test_share, seed, group, names, dealt=group)


def downsampled(
    source: Source,
    *,
    num_clients: int,
    kept: str | Sequence[int | Sequence[int]] | None = None,
    kept_share: float = 0.1,
    rows_per_class: int | None = None,
    test_share: float | None = 0.2,
    seed: int = 0,
) -> FederatedData:
    """Returns a federation whose groups of clients have few rows but of some classes; see `partition.downsampled`.

    Args:
        source: any examples.
        num_clients: N, a multiple of the number of groups.
        kept: classes that the groups keep in full, with a comma between groups and a colon between the classes of one;
            None is 1:2,3:4,5:6,7:8, or groups of neighbours where there are fewer than ten classes.
        kept_share: share of the rows of all other classes that remains.
        rows_per_class: rows of each class of a client before the cut, and before `test_share` is set aside; None
            divides all rows of a class.
        test_share: share of a client's rows to test on; None deals out the official test rows among the groups, in the
            class shares of their training rows.
        seed: seed of all choices.
    """
    check_classes("downsampled", source.labels)
    keeping = partition.default_kept(source.labels) if kept is None else partition.class_lists("kept", kept)
    parts, group = partition.downsampled(
        source.labels,
        num_clients,
        kept=keeping,
        kept_share=kept_share,
        rows_per_class=rows_per_class,
        seed=seed,
    )
    names = tuple(f"mostly {_class_list(source, labels)}" if labels else "few of all" for labels in keeping)
    return _split_and_pack(source, "downsampled", parts, test_share, seed, group, names, dealt=group)


def hybrid(
    source: Source,
    *,
    num_clients: int,
    rows_per_client: int | None = None,
    test_share: float | None = None,
    seed: int = 0,
) -> FederatedData:
    """Returns a federation whose groups of clients have different domains (StoCFL: MNIST and Fashion-MNIST).

    All clients of a domain share its test rows. Test rows that are set aside have the same positions in every domain:
    if one domain is the negative of the other, the negative of a training image is not a test image.

    Args:
        source: examples of several domains, as `sources.combined` returns.
        num_clients: N, a multiple of the number of domains.
        rows_per_client: training rows of a client, after the test rows are set aside; None divides all rows.
        test_share: share of a domain's training examples to test its clients on instead; None is the official test set
            of the domain, 0.2 where there is none.
        seed: seed of all choices.

    Raises:
        ValueError: the source has one domain only, a domain has no training rows, the domains of the official test set
            are unknown, or there are too few rows.
    """
    if source.domains is None:
        raise ValueError(
            f"source must have several domains, got {source.name} with one; combine it with another source."
        )
    if len(empty := np.setdiff1d(np.arange(len(source.domain_names)), source.domains)):
        name = source.domain_names[empty[0]]
        raise ValueError(f"domains of {source.name} must have training rows, got none for {name!r}; leave it out.")
    members = partition.group_members(num_clients, len(source.domain_names))
    inputs, labels, official = source.pool if test_share is None else (source.inputs, source.labels, None)
    if official is not None and source.test_domains is None:
        raise ValueError(f"test rows of {source.name} must have domains; add test_domain, or set test_share.")
    train: partition.Parts = []
    tests: partition.Parts = []
    for domain in range(len(source.domain_names)):
        rows = np.flatnonzero(source.domains == domain)
        if official is None:
            share = 0.2 if test_share is None else test_share
            (rows,), (test,) = partition.train_test_split([rows], share, seed=seed)
        else:
            test = official[source.test_domains == domain]
        tests.append(test)
        parts = partition.iid(len(rows), members, rows_per_client=rows_per_client, seed=(seed + domain) % 2**32)
        train += [rows[part] for part in parts]
    group = np.repeat(np.arange(len(source.domain_names), dtype=np.int32), members)
    shared = Split.shared(tests, group)
    return pack(source, "hybrid", inputs, labels, train, shared, group, source.domain_names, cause="domain")


def _class_list(source: Source, labels: Sequence[int]) -> str:
    """Returns the names of several classes."""
    return ", ".join(_class_name(source, label) for label in labels)


def _class_name(source: Source, label: int) -> str:
    """Returns the name of a class, or its number if it has none."""
    return source.class_names[label] if source.class_names else str(label)


def _split_and_pack(
    source: Source,
    skew: str,
    parts: partition.Parts,
    test_share: float | None,
    seed: int,
    group: np.ndarray | None = None,
    group_names: tuple[str, ...] = (),
    tests: Sequence[np.ndarray] | None = None,
    dealt: np.ndarray | None = None,
    cause: str = "classes",
) -> FederatedData:
    """Returns the federation of a partition after setting test rows aside.

    Args:
        source, test_share, seed: as in the builders.
        skew: name of the skew, a part of the federation's name.
        parts: rows of each client among the source's training examples.
        group, group_names: the true groups, if known.
        tests: masks `[Q]` of each group's rows of the official test set; None is all rows for all groups.
        dealt: numbers of the parties `[N]` among which the official test set is dealt out instead, in the class shares
            of their training rows, and whose clients share their part: the clients, or their groups.
        cause: the cause of the true groups.
    """
    if source.central:
        test_share, tests, dealt = None, None, None
    if test_share is None and source.test_labels is not None:
        inputs, labels, official = source.pool
        assert official is not None
        train, member = parts, np.zeros(len(parts), np.int32)
        shared = [official]
        if group is not None and tests is not None:
            shared, member = [official[mask] for mask in tests], group
        if dealt is not None:
            joined: list[partition.Parts] = [[] for _ in range(dealt.max(initial=-1) + 1)]
            for party, part in zip(dealt.tolist(), parts, strict=True):
                joined[party].append(part)
            rows = [np.concatenate(part) for part in joined]
            tests = partition.same_shares(source.labels, rows, source.test_labels, seed=seed)
            shared, member = [official[row] for row in tests], dealt
        test: Split | partition.Parts = Split.shared(shared, member)
    else:
        # The official test set is not used, because a client is tested on its own distribution.
        inputs, labels = source.inputs, source.labels
        train, test = partition.train_test_split(parts, 0.2 if test_share is None else test_share, seed=seed)
    return pack(source, skew, inputs, labels, train, test, group, group_names, cause=cause)
