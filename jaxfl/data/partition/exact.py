"""Splits of official codes, row by row: the draws of each code in their order, from the same frozen generators.

These codes draw with NumPy's legacy generator, Python's `random` and scikit-learn's splitters only, whose streams do
not change between versions. So a federation can be the official one, and not only one of its law. The arithmetic is
theirs too: shares are cut without the rounding of `partition.dirichlet`.

A row is a position in the pool: the official training examples first, then the official test examples, in the order of
their files.

| function | official code |
|---|---|
| `ifca` | jichan3751/ifca@97db9d1, `mnist/train_cluster_mnist.py`, `cifar/train_cluster_cifar_tf.py` |
| `pfllib_dirichlet`, `pfllib_pathological` | TsingZ0/PFLlib@d832e76, `dataset/utils/dataset_utils.py` |
| `fedccfa` | Chen-Junbao/FedCCFA@17b5b11, `utils/gen_dataset.py` |
| `pfedgraph` | MediaBrain-SJTU/pFedGraph@4f5f17c, `data_partition.py`, `cvdataset.py`, `fedavg.py` |
| `comparative` | leahcimali/Comparative-Evaluation-of-Clustered-Federated-Learning-Methods@29cdaed, `src` |
| `fedem`, `fedem_pachinko` | omarfoq/FedEM@996fadd, `data/cifar10`, `data/emnist` and `data/cifar100` |
| `rdpcfl` | Saber-mm/DPCFL@30558a3, `utils/sampling.py` |
"""

import math
import random
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike

from jaxfl.data.partition.parts import Parts, check_count, class_labels, group_members
from jaxfl.schema import check_literal

PFedGraphPartition = Literal["homo", "noniid", "noniid-skew", "noniid-skew2"]
ComparativeSetting = Literal["concept-labels", "concept-features", "feature-skew", "quantity"]
COMPARATIVE_SWAPS = ((1, 7), (2, 7), (4, 7), (3, 8), (5, 6), (7, 9))  # classes that a group exchanges
COMPARATIVE_SIZES = (0.1, 0.2, 0.6, 1.0)  # shares of the rows of each class, by group
BATCH, TRAIN_SHARE = 10, 0.75  # of PFLlib, which wants a batch of test rows for each client


class ExactSplit(NamedTuple):
    """The split of an official code.

    Attributes:
        train, test: rows of each client, N arrays each.
        validation: rows of each client that are set apart from its training rows, or None.
        group: the planted group of each client `[N]`, or None if there is none.
        held_out: True for clients that only test `[N]`, or None.
    """

    train: Parts
    test: Parts
    validation: Parts | None = None
    group: np.ndarray | None = None
    held_out: np.ndarray | None = None


def ifca(
    num_train: int,
    num_test: int,
    *,
    num_clients: int = 1200,
    rows_per_client: int = 200,
    num_groups: int = 4,
    seed: int = 0,
) -> ExactSplit:
    """Returns IFCA's rotated MNIST (4 groups) or rotated CIFAR-10 (2 groups, 200 clients of 500 rows).

    Each group has all training rows, in a permutation of its own (`np.random.seed(seed)`, one `permutation` per group
    in turn), cut into equal pieces. The test rows, in order, are cut into pieces of the same size for each group. These
    are the rows of further clients, behind the others, that only test.

    Args:
        num_train, num_test: numbers of official training and test rows.
        num_clients: clients that train; with `rows_per_client` it must use every training row once in each group.
        rows_per_client: rows of a client.
        num_groups: number of rotations.
        seed: the code's `data_seed`, 0 to 4.

    Raises:
        ValueError: the numbers do not divide all rows of each group evenly.

    >>> split = ifca(6, 4, num_clients=6, rows_per_client=2, num_groups=2)
    >>> [len(part) for part in split.train], [part.tolist() for part in split.test[6:8]], split.group.tolist()
    ([2, 2, 2, 2, 2, 2, 0, 0, 0, 0], [[6, 7], [8, 9]], [0, 0, 0, 1, 1, 1, 0, 0, 1, 1])
    """
    members = group_members(num_clients, num_groups)
    check_count("rows_per_client", rows_per_client)
    if members * rows_per_client != num_train or num_test % rows_per_client:
        raise ValueError(
            f"rows_per_client must use every training and test row once in each group, got {rows_per_client} for "
            f"{members} clients of a group, {num_train} training and {num_test} test rows; 200 for 1,200 clients of 4 "
            "groups uses MNIST."
        )
    rng = np.random.RandomState(seed)
    testers = num_test // rows_per_client
    train = [part for _ in range(num_groups) for part in rng.permutation(num_train).reshape(members, rows_per_client)]
    pieces = list(np.arange(num_train, num_train + num_test).reshape(testers, rows_per_client))
    nothing = np.zeros(0, np.int64)
    numbers = np.arange(num_groups, dtype=np.int32)
    return ExactSplit(
        train + [nothing] * (testers * num_groups),
        [nothing] * num_clients + pieces * num_groups,
        group=np.concatenate([np.repeat(numbers, members), np.repeat(numbers, testers)]),
        held_out=np.arange(num_clients + testers * num_groups) >= num_clients,
    )


def pfllib_dirichlet(labels: ArrayLike, *, num_clients: int = 20, alpha: float = 0.1, seed: int = 1) -> ExactSplit:
    """Returns PFLlib's practical setting, Dir(alpha), of official training and test rows together.

    `np.random.seed(seed)` once. Class by class: shuffle its rows, draw the shares, set those of clients with P/N rows
    or more to 0, normalise, cut where the cumulated shares times the rows are rounded down. All of it again until the
    smallest client has min(40, P/N/2) rows. Then each client's rows, in the order of the classes, are split by
    scikit-learn's `train_test_split(train_size=0.75)` from the same stream.

    Args:
        labels: classes of all examples `[P]`.
        num_clients: N.
        alpha: concentration.
        seed: seed of the code, which is always 1.

    >>> split = pfllib_dirichlet(np.repeat(np.arange(5), 40), num_clients=4, alpha=1.0)
    >>> sum(len(part) for part in split.train + split.test)
    200
    """
    labels = class_labels("pfllib_dirichlet", labels)
    check_count("num_clients", num_clients)
    rng = np.random.RandomState(seed)
    parts = _draw_balanced(labels, num_clients, alpha, _pfllib_least(len(labels), num_clients), rng)
    train, test = _shuffle_splits(parts, TRAIN_SHARE, rng)
    return ExactSplit(train, test)


def pfllib_pathological(
    labels: ArrayLike, *, num_clients: int = 20, client_classes: int = 2, balance: bool = False, seed: int = 1
) -> ExactSplit:
    """Returns PFLlib's pathological setting of official training and test rows together.

    `np.random.seed(seed)` once. Class by class, the first ceil(N / L * client_classes) clients that still lack classes
    get its rows in the order of the files. All but the last of them have `randint(max(n / 10, least / L), n)` rows,
    where n = rows / clients and least = min(40, P/N/2); the last has the rest. Then each client's rows are split by
    scikit-learn's `train_test_split(train_size=0.75)` from the same stream.

    Args:
        labels: classes of all examples `[P]`.
        num_clients: N.
        client_classes: classes of a client (2 of 10, 10 of 100, 20 of 200).
        balance: whether all clients of a class have equally many of its rows, and the last the remainder too.
        seed: seed of the code, which is always 1.

    >>> split = pfllib_pathological(np.repeat(np.arange(4), 40), num_clients=4)
    >>> split.group.tolist()
    [0, 0, 1, 1]
    """
    labels = class_labels("pfllib_pathological", labels)
    check_count("num_clients", num_clients)
    check_count("client_classes", client_classes)
    rng = np.random.RandomState(seed)
    num_classes = len(np.unique(labels))
    least = _pfllib_least(len(labels), num_clients)
    lacking = np.full(num_clients, client_classes)
    parts: list[Parts] = [[np.zeros(0, np.int64)] for _ in range(num_clients)]
    sets: list[tuple[int, ...]] = [()] * num_clients
    for label in range(num_classes):
        chosen = np.flatnonzero(lacking)[: int(np.ceil((num_clients / num_classes) * client_classes))]
        if not len(chosen):
            break
        rows = np.flatnonzero(labels == label)
        mean = len(rows) / len(chosen)
        if balance:
            sizes = np.full(len(chosen) - 1, int(mean))
        else:
            sizes = rng.randint(int(max(mean / 10, least / num_classes)), int(mean), len(chosen) - 1)
        for client, piece in zip(chosen.tolist(), np.split(rows, np.cumsum(sizes)), strict=True):
            parts[client].append(piece)
            sets[client] = (*sets[client], label)
        lacking[chosen] -= 1
    train, test = _shuffle_splits([np.concatenate(part) for part in parts], TRAIN_SHARE, rng)
    kinds = list(dict.fromkeys(sets))
    return ExactSplit(train, test, group=np.array([kinds.index(own) for own in sets], np.int32))


def fedccfa(
    train_labels: ArrayLike, test_labels: ArrayLike, *, num_clients: int = 20, alpha: float = 0.1, seed: int = 0
) -> ExactSplit:
    """Returns FedCCFA's split, whose training and test rows have equal class shares.

    For class k, in the order of the file: the first 5 N training rows (2 N test rows) go to the clients in equal
    pieces; the rest is cut by shares from Dir(alpha) after `np.random.seed(seed + k)`. The rows of the clients are
    shuffled in turn by Python's `random`, last seeded with seed + L - 1.

    Args:
        train_labels: classes of the official training rows.
        test_labels: classes of the official test rows.
        num_clients: N, 20 or 100.
        alpha: concentration, 0.1 or 0.5.
        seed: seed of the code, 0.

    >>> split = fedccfa(np.repeat([0, 1], 50), np.repeat([0, 1], 20), num_clients=4, alpha=0.5)
    >>> sum(len(part) for part in split.train), sum(len(part) for part in split.test)
    (100, 40)
    """
    check_count("num_clients", num_clients)
    labels = [class_labels("fedccfa", part) for part in (train_labels, test_labels)]
    found: list[Parts] = []
    for own, essential in zip(labels, (5, 2), strict=True):
        owners: list[Parts] = [[] for _ in range(num_clients)]
        for label in range(len(np.unique(own))):
            rows = np.flatnonzero(own == label)
            first, rest = np.split(rows, [num_clients * essential])
            shares = np.random.RandomState(seed + label).dirichlet(np.repeat(alpha, num_clients))
            shares = shares / shares.sum()
            pieces = np.split(rest, (np.cumsum(shares) * len(rest)).astype(int)[:-1])
            for owner, equal, piece in zip(owners, np.array_split(first, num_clients), pieces, strict=True):
                owner += [equal, piece]
        order = random.Random(seed + len(np.unique(own)) - 1)
        found.append([_shuffled(np.concatenate(owner), order) for owner in owners])
    train, test = found
    return ExactSplit(train, [len(labels[0]) + part for part in test])


def pfedgraph(
    train_labels: ArrayLike,
    num_test: int,
    *,
    partition: PFedGraphPartition = "noniid-skew",
    num_clients: int = 10,
    beta: float = 0.1,
    skew_class: int = 2,
    seed: int = 0,
) -> ExactSplit:
    """Returns pFedGraph's split, in which all clients share the official test set.

    `np.random` and `random` are seeded with `seed`; then `random.sample` of all clients is drawn once. The partitions:
    `noniid-skew`, in which client i of C = L / skew_class clusters has the classes skew_class * (i mod C) and
    following, in the order of the file, shuffled by `random`; `noniid`, which is Dir(beta) as PFLlib's, until all have
    10 rows, shuffled by `np.random`; `homo`, a permutation in equal parts; `noniid-skew2`, which is fixed for CIFAR-10:
    of 20 clients ten have 2 classes, six 5 and four 10. The last fifth of each client's rows are validation rows.

    Args:
        train_labels: classes of the official training rows `[P]`.
        num_test: number of official test rows.
        partition: name of the partition in the code.
        num_clients: N; of `noniid-skew2` 20.
        beta: concentration of `noniid`, 0.1 or 0.5.
        skew_class: classes of a client with `noniid-skew`.
        seed: the code's `init_seed`, 0.

    Raises:
        ValueError: the classes or clients cannot be divided as the partition wants it.

    >>> split = pfedgraph(np.repeat(np.arange(4), 10), 8, num_clients=4)
    >>> split.group.tolist(), [len(part) for part in split.train], [len(part) for part in split.validation]
    ([0, 1, 0, 1], [8, 8, 8, 8], [2, 2, 2, 2])
    """
    check_literal("partition", partition, PFedGraphPartition)
    labels = class_labels("pfedgraph", train_labels)
    check_count("num_clients", num_clients)
    num_classes, group = int(labels.max(initial=0)) + 1, None
    chance, rng = random.Random(seed), np.random.RandomState(seed)
    chance.sample(range(num_clients), num_clients)
    rows_of = [np.flatnonzero(labels == label) for label in range(num_classes)]
    if partition == "homo":
        parts = np.array_split(rng.permutation(len(labels)), num_clients)
    elif partition == "noniid":
        parts = _draw_balanced(labels, num_clients, beta, 10, rng)
        for part in parts:
            rng.shuffle(part)
    elif partition == "noniid-skew":
        check_count("skew_class", skew_class)
        clusters = num_classes // skew_class
        if num_classes % skew_class or num_clients % clusters:
            raise ValueError(
                f"skew_class must divide the {num_classes} classes, and their clusters the {num_clients} clients, got "
                f"{skew_class}; 2 is usual."
            )
        group, members, parts = np.arange(num_clients, dtype=np.int32) % clusters, num_clients // clusters, []
        for client in range(num_clients):
            number, pieces = client // clusters, []
            for rows in rows_of[skew_class * group[client] : skew_class * (group[client] + 1)]:
                size = len(rows) // members
                pieces.append(rows[size * number : size * (number + 1)])
            parts.append(_shuffled(np.concatenate(pieces), chance))
    else:
        if num_clients != 20 or num_classes != 10 or min(map(len, rows_of)) < 5000:
            raise ValueError(
                f"num_clients must be 20 for partition=noniid-skew2, and each of 10 classes must have 5,000 rows, got "
                f"{num_clients} clients and {num_classes} classes."
            )
        parts = []
        for client in range(10):
            pieces = [rows_of[2 * client % 10 + one][1250 * (client // 5) :][:1250] for one in (0, 1)]
            parts.append(_shuffled(np.concatenate(pieces), chance))
        for third in range(3):
            halves = [rows_of[:5], rows_of[5:]]
            parts += [np.concatenate([rows[2500 + 500 * third :][:500] for rows in half]) for half in halves]
        parts += [np.concatenate([rows[4000 + 250 * fourth :][:250] for rows in rows_of]) for fourth in range(4)]
        parts = [_shuffled(part, chance) for part in parts]
        group = np.array([*range(5), *range(5), *([5, 6] * 3), *([7] * 4)], np.int32)
    cuts = [int(0.8 * len(part)) for part in parts]
    tests = np.arange(len(labels), len(labels) + num_test)
    return ExactSplit(
        [part[:cut] for part, cut in zip(parts, cuts, strict=True)],
        [tests] * num_clients,
        [part[cut:] for part, cut in zip(parts, cuts, strict=True)],
        group,
    )


def comparative(
    train_labels: ArrayLike,
    *,
    setting: ComparativeSetting,
    num_clients: int = 48,
    rows_per_class: int = 100,
    seed: int = 42,
) -> ExactSplit:
    """Returns the split of "Comparative Evaluation of Clustered Federated Learning Methods", FLTA 2024.

    Client c has rows c n to (c + 1) n of each class, in the order of the file, n = `rows_per_class`. In `quantity`, n
    is 10, 20, 60 or 100 % of it by group, and c counts the clients of a group: so clients share rows. 30 % of a
    client's rows are test rows, stratified by its labels (scikit-learn's `train_test_split`, `random_state=seed`), and
    of the others 25 % are validation rows (the same function, not stratified, `random_state=42`). In `concept-labels`
    the labels are exchanged before (`COMPARATIVE_SWAPS`), and so decide which rows are drawn. The official label skew
    is not here: imbalanced-learn draws its rows.

    Args:
        train_labels: classes of the official training rows.
        setting: `concept-labels`, 6 groups; `concept-features`, 4 groups, to be rotated by 0, 90, 180 and 270 degrees;
            `feature-skew`, 3 groups by id mod 3, unchanged, eroded and dilated; `quantity`, 4 groups by id mod 4.
        num_clients: N, a multiple of the number of groups.
        rows_per_class: rows of each class of a client.
        seed: seed of the code, 42.

    Raises:
        ValueError: N is no multiple of the groups, or a class has too few rows.

    >>> split = comparative(np.repeat(np.arange(10), 60), setting="concept-labels", num_clients=6, rows_per_class=10)
    >>> len(split.train[0]), len(split.validation[0]), len(split.test[0]), split.group.tolist()
    (52, 18, 30, [0, 1, 2, 3, 4, 5])
    """
    from sklearn.model_selection import train_test_split  # takes longer than a small run

    check_literal("setting", setting, ComparativeSetting)
    labels = class_labels("comparative", train_labels)
    check_count("rows_per_class", rows_per_class)
    num_groups = dict(zip(get_args(ComparativeSetting), (6, 4, 3, 4), strict=True))[setting]
    members = group_members(num_clients, num_groups)
    group = np.arange(num_clients, dtype=np.int32)
    group = group // members if setting.startswith("concept") else group % num_groups
    rows_of = [np.flatnonzero(labels == label) for label in range(10)]
    most = (members if setting == "quantity" else num_clients) * rows_per_class
    if min(map(len, rows_of)) < most:
        raise ValueError(
            f"rows_per_class must be lower: {most} rows of each of the classes 0 to 9 are needed, and a class has "
            f"{min(map(len, rows_of))}, got {rows_per_class}; or use fewer clients."
        )
    train, validation, test = [], [], []
    for client, kind in enumerate(group.tolist()):
        number, size = client, rows_per_class
        if setting == "quantity":
            number, size = client // num_groups, int(rows_per_class * COMPARATIVE_SIZES[kind])
        rows = np.concatenate([own[number * size : (number + 1) * size] for own in rows_of])
        own = np.repeat(np.arange(10), size)
        if setting == "concept-labels":
            one, other = COMPARATIVE_SWAPS[kind]
            own = np.where(own == one, other, np.where(own == other, one, own))
        rest, tested = train_test_split(rows, test_size=0.3, random_state=seed, stratify=own)
        trained, validated = train_test_split(rest, test_size=0.25, random_state=42)
        train.append(trained)
        validation.append(validated)
        test.append(tested)
    return ExactSplit(train, test, validation, group)


def fedem(
    labels: ArrayLike,
    *,
    num_clients: int = 80,
    num_components: int = 3,
    alpha: float = 0.4,
    share: float = 1.0,
    seed: int = 12345,
) -> ExactSplit:
    """Returns FedEM's split of CIFAR-10 or EMNIST, of official training and test rows together.

    `random.Random(seed)` shuffles the classes, which are cut into groups (smaller ones first), samples `share` of the
    rows, and shuffles each group's rows. `np.random.seed(seed)`: for each group the shares of the clients from
    Dir(alpha), and their numbers of rows by `multinomial`. Each client's rows are split by scikit-learn's
    `train_test_split(train_size=0.8, random_state=seed)`.

    Args:
        labels: classes of all examples `[P]`.
        num_clients: N, 80 for CIFAR-10, 100 for EMNIST.
        num_components: number of groups of classes, 3; -1 is a group for each class, as for EMNIST.
        alpha: concentration.
        share: share of the rows that are used, 0.1 for EMNIST.
        seed: seed of the code.

    >>> split = fedem(np.arange(200) % 10, num_clients=4, alpha=1.0)
    >>> sum(len(part) for part in split.train + split.test)
    200
    """
    labels = class_labels("fedem", labels)
    check_count("num_clients", num_clients)
    num_classes = int(labels.max(initial=0)) + 1
    num_components = num_classes if num_components == -1 else num_components
    check_count("num_components", num_components)
    chance, rng = random.Random(seed), np.random.RandomState(seed)
    classes = list(range(num_classes))
    chance.shuffle(classes)
    small, large = divmod(num_classes, num_components)
    sizes = [small] * (num_components - large) + [small + 1] * large
    component = np.zeros(num_classes, np.int64)
    component[classes] = np.repeat(np.arange(num_components), sizes)
    chosen = np.array(chance.sample(range(len(labels)), int(len(labels) * share)), np.int64)
    rows = [_shuffled(chosen[component[labels[chosen]] == number], chance) for number in range(num_components)]
    owners: list[Parts] = [[] for _ in range(num_clients)]
    for own in rows:
        shares = rng.dirichlet(alpha * np.ones(num_clients))
        counts = rng.multinomial(len(own), shares)
        for owner, piece in zip(owners, np.split(own, np.cumsum(counts)[:-1]), strict=True):
            owner.append(piece)
    parts = [np.concatenate(owner) for owner in owners]
    return ExactSplit(*_seeded_splits(parts, 0.8, seed))


def fedem_pachinko(
    labels: ArrayLike,
    superclasses: ArrayLike,
    *,
    num_clients: int = 100,
    alpha: float = 0.4,
    beta: float = 10.0,
    share: float = 1.0,
    seed: int = 12345,
) -> ExactSplit:
    """Returns FedEM's split of CIFAR-100 by Pachinko allocation, of official training and test rows together.

    For each client in turn: shares of the superclasses that are left from Dir(alpha), and of the classes of each from
    Dir(beta). For each of its P // N rows: one superclass, one class of it (`multinomial` of a single draw), one row of
    it (`random.choice`), which is taken away; classes and superclasses without rows drop out.

    Args:
        labels: classes of all examples `[P]`.
        superclasses: superclass of each class `[L]`.
        num_clients: N.
        alpha, beta: concentrations of superclasses and of classes.
        share: share of the rows that are used.
        seed: seed of the code.

    >>> split = fedem_pachinko(np.arange(80) % 4, [0, 0, 1, 1], num_clients=4)
    >>> [len(part) for part in split.train], [len(part) for part in split.test]
    ([16, 16, 16, 16], [4, 4, 4, 4])
    """
    labels, coarse = class_labels("fedem_pachinko", labels), class_labels("fedem_pachinko", superclasses)
    check_count("num_clients", num_clients)
    chance, rng = random.Random(seed), np.random.RandomState(seed)
    chosen = np.array(chance.sample(range(len(labels)), int(len(labels) * share)), np.int64)
    left = {label: chosen[labels[chosen] == label].tolist() for label in range(len(coarse))}
    below = {number: np.flatnonzero(coarse == number).tolist() for number in range(int(coarse.max(initial=0)) + 1)}
    parts: Parts = []
    for _ in range(num_clients):
        names = list(below)
        tops = rng.dirichlet(alpha * np.ones(len(below)))
        inner = {number: rng.dirichlet(beta * np.ones(len(own))) for number, own in below.items()}
        taken = []
        for _ in range(len(chosen) // num_clients):
            top = int(np.argmax(rng.multinomial(1, tops)))
            number = names[top]
            place = int(np.argmax(rng.multinomial(1, inner[number])))
            label = below[number][place]
            row = chance.choice(left[label])
            taken.append(row)
            left[label].remove(row)
            if not left[label]:
                del below[number][place]
                inner[number] = _without(inner[number], place)
                if not below[number]:
                    del below[number], names[top]
                    tops = _without(tops, top)
        parts.append(np.array(taken, np.int64))
    return ExactSplit(*_seeded_splits(parts, 0.8, seed))


def rdpcfl(
    num_train: int,
    num_test: int,
    *,
    num_clients: int = 21,
    num_groups: int = 4,
    minority_share: float = 0.15,
    rows_per_client: int = 8000,
    seed: int = 0,
) -> ExactSplit:
    """Returns R-DPCFL's split, whose clients draw their rows independently, and so share rows.

    After `np.random.seed(seed)` each client in turn draws `rows_per_client` training rows without replacement; after
    the same seed again num_test // M test rows, where M is the number of clients of a majority group. The order of a
    client's training rows is that of a Python set of them, whose first 80 % are for training and whose rest is for
    validation.

    Args:
        num_train, num_test: numbers of official training and test rows.
        num_clients: N.
        num_groups: one minority of floor(minority_share N) clients, and majorities of equal size.
        minority_share: share of the clients of the first group.
        rows_per_client: rows of a client, 10,000 for CIFAR-10.
        seed: seed of the code.

    >>> split = rdpcfl(100, 60, rows_per_client=10)
    >>> np.bincount(split.group).tolist(), len(split.train[0]), len(split.validation[0]), len(split.test[0])
    ([3, 6, 6, 6], 8, 2, 10)
    """
    check_count("num_clients", num_clients)
    minority = math.floor(minority_share * num_clients)
    members = group_members(num_clients - minority, num_groups - 1)
    parts: list[Parts] = []
    for count, size in ((num_train, rows_per_client), (num_test, num_test // members)):
        rng = np.random.RandomState(seed)
        drawn = [rng.choice(count, size, replace=False) for _ in range(num_clients)]
        parts.append([np.array(list(set(rows.tolist())), np.int64) for rows in drawn])
    cut = int(0.8 * rows_per_client)
    group = np.concatenate([np.zeros(minority, np.int32), np.repeat(np.arange(1, num_groups, dtype=np.int32), members)])
    return ExactSplit(
        [part[:cut] for part in parts[0]],
        [num_train + part for part in parts[1]],
        [part[cut:] for part in parts[0]],
        group,
    )


def _pfllib_least(num_rows: int, num_clients: int) -> int:
    """Returns the least rows of a client in PFLlib: a batch of test rows, or half of the mean if that is less."""
    return int(min(BATCH / (1 - TRAIN_SHARE), num_rows / num_clients / 2))


def _draw_balanced(labels: np.ndarray, num_clients: int, alpha: float, least: int, rng: np.random.RandomState) -> Parts:
    """Returns the rows of the clients by PFLlib's rule, in the order of the classes, drawn until all have `least`."""
    while True:
        parts = [np.zeros(0, np.int64)] * num_clients
        for label in range(len(np.unique(labels))):
            rows = np.flatnonzero(labels == label)
            rng.shuffle(rows)
            shares = rng.dirichlet(np.repeat(alpha, num_clients))
            shares = shares * np.array([len(part) < len(labels) / num_clients for part in parts])
            shares = shares / shares.sum()
            pieces = np.split(rows, (np.cumsum(shares) * len(rows)).astype(int)[:-1])
            parts = [np.concatenate([part, piece]) for part, piece in zip(parts, pieces, strict=True)]
        if min(map(len, parts)) >= least:
            return parts


def _shuffled(rows: np.ndarray, chance: random.Random) -> np.ndarray:
    """Returns rows in the order to which Python's `shuffle` puts a list of them."""
    order = rows.tolist()
    chance.shuffle(order)
    return np.array(order, np.int64)


def _shuffle_splits(parts: Parts, train_share: float, rng: np.random.RandomState) -> tuple[Parts, Parts]:
    """Returns training and test rows, drawn as by scikit-learn's `train_test_split`, client by client."""
    train, test = [], []
    for part in parts:
        order = rng.permutation(len(part))
        cut = len(part) - math.floor(train_share * len(part))
        train.append(part[order[cut:]])
        test.append(part[order[:cut]])
    return train, test


def _seeded_splits(parts: Parts, train_share: float, seed: int) -> tuple[Parts, Parts]:
    """Returns training and test rows by `_shuffle_splits`, with the seed set anew for each client."""
    split = [_shuffle_splits([part], train_share, np.random.RandomState(seed)) for part in parts]
    return [train[0] for train, _ in split], [test[0] for _, test in split]


def _without(shares: np.ndarray, place: int) -> np.ndarray:
    """Returns shares without one of them, which sum to 1."""
    rest = np.delete(shares, place)
    return rest / rest.sum() if len(rest) else rest
