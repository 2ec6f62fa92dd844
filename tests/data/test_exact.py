"""Splits of official codes: each rule written out again with the global generators that the code seeds."""
# ruff: noqa: NPY002  # the official codes seed the global generators and draw from them

import random

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from jaxfl import data
from jaxfl.data.partition import exact
from tests.messages import mentions

SHUFFLED = np.random.Generator(np.random.PCG64(5)).permutation(np.repeat(np.arange(10), 60))
UNEVEN = np.random.Generator(np.random.PCG64(6)).permutation(np.repeat(np.arange(5), [90, 40, 150, 70, 110]))


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)


def assert_same(parts, wanted):
    assert [list(map(int, part)) for part in parts] == [list(map(int, part)) for part in wanted]


def counts(labels, parts):
    labels = np.asarray(labels)
    return [np.bincount(labels[np.asarray(part, int)], minlength=labels.max() + 1).tolist() for part in parts]


def assert_no_row_twice(*lists, rows=None):
    """No row is in two lists, or twice in one; all of `rows` are there."""
    found = sorted(int(row) for parts in lists for part in parts for row in part)
    assert len(set(found)) == len(found)
    assert rows is None or found == list(range(rows))


def pfllib_tests(parts):
    """Training and test rows, drawn by scikit-learn from the global generator."""
    pairs = [train_test_split(part, train_size=0.75, shuffle=True) for part in parts]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def by_capacity(labels, clients, alpha, least):
    """Dir(alpha) of each class over the clients that have fewer rows than the mean, until all have `least`."""
    smallest, parts = -1, []
    while smallest < least:
        parts = [[] for _ in range(clients)]
        for label in sorted(set(labels.tolist())):
            rows = np.where(labels == label)[0]
            np.random.shuffle(rows)
            shares = np.random.dirichlet([alpha] * clients)
            for client in range(clients):
                if len(parts[client]) >= len(labels) / clients:
                    shares[client] = 0.0
            shares /= shares.sum()
            edges = [0, *(int(edge * len(rows)) for edge in np.cumsum(shares)[:-1]), len(rows)]
            for client in range(clients):
                parts[client] += rows[edges[client] : edges[client + 1]].tolist()
        smallest = min(len(part) for part in parts)
    return parts


@pytest.mark.parametrize(("labels", "clients", "alpha"), [(SHUFFLED, 6, 0.5), (UNEVEN, 4, 0.3), (UNEVEN, 7, 5.0)])
def test_pfllib_deals_classes_by_dirichlet_until_everyone_has_enough(labels, clients, alpha):
    split = exact.pfllib_dirichlet(labels, num_clients=clients, alpha=alpha)
    seed_all(1)
    train, test = pfllib_tests(by_capacity(labels, clients, alpha, int(min(40, len(labels) / clients / 2))))
    assert_same(split.train, train)
    assert_same(split.test, test)
    assert_no_row_twice(split.train, split.test, rows=len(labels))
    assert split.group is None and min(len(part) for part in split.test) >= 10


@pytest.mark.parametrize(
    ("sizes_of_classes", "sizes", "first"),
    [
        (
            [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958],
            "2630 499 1630 2541 1917 6189 1256 1269 3600 4006 3116 3772 3613 2134 5730 5448 3628 5653 5266 6103",
            [[140, 890, 0, 0, 1, 319, 0, 29, 1067, 184], [5, 0, 27, 0, 0, 19, 335, 0, 6, 107]],
        ),
        (
            [6000] * 10,
            "1621 1814 1211 2080 5128 4264 1440 2622 2974 3236 1164 1964 5994 1527 3100 4325 4252 3175 5449 2660",
            [[0, 9, 0, 668, 476, 287, 5, 167, 0, 9], [7, 1, 62, 0, 43, 0, 0, 177, 1524, 0]],
        ),
    ],
    ids=["MNIST", "CIFAR-10"],
)
def test_pfllibs_numbers_of_rows_are_those_in_its_repository(sizes_of_classes, sizes, first):
    """20 clients, Dir(0.1): `dataset/mnist/config.json`, `dataset/cifar10_dataset.out`; no order of rows matters."""
    labels = np.repeat(np.arange(10), sizes_of_classes)
    split = exact.pfllib_dirichlet(labels)
    whole = [np.concatenate(pair) for pair in zip(split.train, split.test, strict=True)]
    assert [len(rows) for rows in whole] == list(map(int, sizes.split()))
    assert counts(labels, whole)[:2] == first
    assert [len(rows) for rows in split.train] == [int(0.75 * len(rows)) for rows in whole]


@pytest.mark.parametrize(
    ("labels", "clients", "classes", "balance"),
    [(SHUFFLED, 20, 2, False), (SHUFFLED, 7, 3, False), (UNEVEN, 4, 2, True), (UNEVEN, 3, 5, False)],
)
def test_pfllib_gives_each_class_to_the_first_clients_that_lack_one(labels, clients, classes, balance):
    split = exact.pfllib_pathological(labels, num_clients=clients, client_classes=classes, balance=balance)
    seed_all(1)
    total, least = len(set(labels.tolist())), int(min(40, len(labels) / clients / 2))
    owned, parts = [[] for _ in range(clients)], [[] for _ in range(clients)]
    for label in range(total):
        takers = [client for client in range(clients) if len(owned[client]) < classes]
        takers = takers[: int(np.ceil(clients / total * classes))]
        if not takers:
            break
        rows = [row for row in range(len(labels)) if labels[row] == label]
        mean = len(rows) / len(takers)
        sizes = [int(mean)] * (len(takers) - 1)
        if not balance:  # bounds that are no whole numbers, as in the code
            sizes = np.random.randint(max(mean / 10, least / total), mean, len(takers) - 1).tolist()
        for client, size in zip(takers, [*sizes, len(rows) - sum(sizes)], strict=True):
            parts[client] += rows[:size]
            rows = rows[size:]
            owned[client].append(label)
    train, test = pfllib_tests(parts)
    assert_same(split.train, train)
    assert_same(split.test, test)
    assert_no_row_twice(split.train, split.test)
    for one in range(clients):
        for other in range(clients):
            assert (split.group[one] == split.group[other]) == (owned[one] == owned[other])


def test_the_boards_pathological_setting_has_five_groups_of_four():
    """FMNIST: 20 clients, 2 of 10 classes."""
    labels = np.repeat(np.arange(10), 7000)
    split = exact.pfllib_pathological(labels)
    assert split.group.tolist() == [number for number in range(5) for _ in range(4)]
    table = np.array(counts(labels, [np.concatenate(pair) for pair in zip(split.train, split.test, strict=True)]))
    for client, number in enumerate(split.group):
        assert np.flatnonzero(table[client]).tolist() == [2 * number, 2 * number + 1]
    assert table.sum(0).tolist() == [7000] * 10 and table[table > 0].min() >= 175


@pytest.mark.parametrize(("groups", "clients", "rows"), [(4, 24, 10), (2, 6, 20), (1, 3, 20)])
@pytest.mark.parametrize("seed", [0, 3])
def test_ifca_permutes_all_rows_for_each_rotation(groups, clients, rows, seed):
    split = exact.ifca(60, 40, num_clients=clients, rows_per_client=rows, num_groups=groups, seed=seed)
    np.random.seed(seed)
    train, test, kinds = [], [], []
    for number in range(groups):
        order = list(np.random.permutation(60))
        train += [order[begin : begin + rows] for begin in range(0, 60, rows)]
        kinds += [number] * (60 // rows)
    for number in range(groups):
        test += [range(60 + begin, 60 + begin + rows) for begin in range(0, 40, rows)]
        kinds += [number] * (40 // rows)
    assert_same(split.train, [*train, *[[]] * len(test)])
    assert_same(split.test, [*[[]] * len(train), *test])
    assert split.group.tolist() == kinds
    assert split.held_out.tolist() == [False] * len(train) + [True] * len(test)


@pytest.mark.parametrize(("clients", "alpha", "seed"), [(5, 0.1, 0), (3, 2.0, 4)])
def test_fedccfa_seeds_each_class_so_that_training_and_test_shares_agree(clients, alpha, seed):
    test_labels = SHUFFLED[:300]
    split = exact.fedccfa(SHUFFLED, test_labels, num_clients=clients, alpha=alpha, seed=seed)
    shares = []
    for labels, essential, found, first in ((SHUFFLED, 5, split.train, 0), (test_labels, 2, split.test, 600)):
        parts = [[] for _ in range(clients)]
        for label in range(10):
            rows = np.where(labels == label)[0].tolist()
            for client in range(clients):
                parts[client] += rows[client * essential : (client + 1) * essential]
            rows = rows[clients * essential :]
            seed_all(seed + label)
            drawn = np.random.dirichlet(np.repeat(alpha, clients))
            edges = np.cumsum(drawn / drawn.sum())
            begin = 0
            for client in range(clients):
                end = len(rows) if client == clients - 1 else int(edges[client] * len(rows))
                parts[client] += rows[begin:end]
                begin = end
            shares.append(drawn)
        for part in parts:
            random.shuffle(part)
        assert_same(found, [[first + row for row in part] for part in parts])
        table = np.array(counts(labels, parts))
        assert table.min() >= essential and table.sum() == len(labels)
    np.testing.assert_array_equal(shares[:10], shares[10:])  # one draw for both
    assert_no_row_twice(split.train, split.test, rows=900)


@pytest.mark.parametrize(("partition", "clients", "beta"), [("noniid", 5, 0.5), ("noniid", 10, 2.0), ("homo", 7, 0.1)])
def test_pfedgraph_draws_from_numpy(partition, clients, beta):
    split = exact.pfedgraph(SHUFFLED, 100, partition=partition, num_clients=clients, beta=beta)
    seed_all(0)
    random.sample(list(range(clients)), clients)
    if partition == "homo":
        parts = np.array_split(np.random.permutation(600), clients)
    else:
        parts = by_capacity(SHUFFLED, clients, beta, 10)
        for part in parts:
            np.random.shuffle(part)
    assert_same(split.train, [part[: int(0.8 * len(part))] for part in parts])
    assert_same(split.validation, [part[int(0.8 * len(part)) :] for part in parts])
    assert_no_row_twice(split.train, split.validation, rows=600)
    assert_same(split.test, [range(600, 700)] * clients)


@pytest.mark.parametrize(("clients", "skew"), [(10, 2), (4, 5), (3, 10), (20, 1)])
def test_pfedgraph_gives_two_classes_to_each_cluster(clients, skew):
    split = exact.pfedgraph(SHUFFLED, 0, num_clients=clients, skew_class=skew)
    random.seed(0)
    random.sample(list(range(clients)), clients)
    clusters = 10 // skew
    each = 60 // (clients // clusters)
    for client in range(clients):
        rows = []
        for label in range(skew * (client % clusters), skew * (client % clusters) + skew):
            own = [row for row in range(600) if SHUFFLED[row] == label]
            rows += own[each * (client // clusters) : each * (client // clusters + 1)]
        random.shuffle(rows)
        cut = int(0.8 * len(rows))
        assert_same([split.train[client], split.validation[client]], [rows[:cut], rows[cut:]])
        assert split.group[client] == client % clusters


def test_pfedgraphs_mixed_federation_has_clients_of_two_five_and_ten_classes():
    labels = np.random.Generator(np.random.PCG64(7)).permutation(np.repeat(np.arange(10), 5000))
    split = exact.pfedgraph(labels, 0, partition="noniid-skew2", num_clients=20)
    random.seed(0)
    random.sample(list(range(20)), 20)
    own = {label: np.where(labels == label)[0].tolist() for label in range(10)}
    parts = [[] for _ in range(20)]
    for client in range(10):
        begin = 1250 * (client // 5)
        for label in (client * 2 % 10, client * 2 % 10 + 1):
            parts[client] += own[label][begin : begin + 1250]
        random.shuffle(parts[client])
    for label in range(10):
        for third in range(3):
            parts[10 + 2 * third + label // 5] += own[label][2500 + 500 * third : 3000 + 500 * third]
        for fourth in range(4):
            parts[16 + fourth] += own[label][4000 + 250 * fourth : 4250 + 250 * fourth]
    for part in parts:
        random.shuffle(part)
    found = [np.concatenate(pair) for pair in zip(split.train, split.validation, strict=True)]
    assert_same(found, parts)
    assert_no_row_twice(found, rows=50_000)
    assert [np.count_nonzero(row) for row in counts(labels, found)] == [2] * 10 + [5] * 6 + [10] * 4


def stratified(labels, seed):
    """Training and test positions of 70 and 30 % of each of equally many labels, as scikit-learn draws them."""
    rng, train, test = np.random.RandomState(seed), [], []
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        own = own[rng.permutation(len(own))]
        cut = round(0.7 * len(own))
        train += own[:cut].tolist()
        test += own[cut:].tolist()
    return rng.permutation(train), rng.permutation(test)


@pytest.mark.parametrize(
    ("setting", "clients", "each"),
    [("concept-labels", 6, 10), ("concept-features", 4, 10), ("feature-skew", 3, 20), ("quantity", 8, 100)],
)
def test_the_comparison_stratifies_what_a_client_sees(setting, clients, each):
    labels = np.tile(SHUFFLED, 4)
    split = exact.comparative(labels, setting=setting, num_clients=clients, rows_per_class=each)
    swaps = [(1, 7), (2, 7), (4, 7), (3, 8), (5, 6), (7, 9)]
    for client in range(clients):
        size, place, seen = each, client, list(range(10))
        if setting == "quantity":
            size, place = [10, 20, 60, 100][client % 4], client // 4
        if setting == "concept-labels":
            one, other = swaps[client]
            seen[one], seen[other] = other, one
        rows = np.concatenate([np.flatnonzero(labels == label)[place * size :][:size] for label in range(10)])
        rest, test = stratified(np.repeat(seen, size), 42)
        order = np.random.RandomState(42).permutation(len(rest))
        few = int(np.ceil(0.25 * len(rest)))
        assert_same([split.test[client]], [rows[test]])
        assert_same([split.validation[client]], [rows[rest[order[:few]]]])
        assert_same([split.train[client]], [rows[rest[order[few:]]]])
    wanted = {
        "concept-labels": [0, 1, 2, 3, 4, 5],
        "concept-features": [0, 1, 2, 3],
        "feature-skew": [0, 1, 2],
        "quantity": [0, 1, 2, 3] * 2,
    }
    assert split.group.tolist() == wanted[setting]
    if setting != "quantity":  # where clients of different sizes share rows
        assert_no_row_twice(split.train, split.validation, split.test)


@pytest.mark.parametrize(("components", "share"), [(3, 1.0), (-1, 0.5), (4, 1.0)])
def test_fedem_deals_groups_of_classes_by_a_multinomial(components, share):
    split = exact.fedem(SHUFFLED, num_clients=5, num_components=components, alpha=0.4, share=share, seed=12345)
    chance = random.Random(12345)
    np.random.seed(12345)
    order = list(range(10))
    chance.shuffle(order)
    groups, number = [], 10 if components == -1 else components
    for index in range(number):  # the smaller ones first
        size = 10 // number + (index >= number - 10 % number)
        groups.append(order[:size])
        order = order[size:]
    used = chance.sample(list(range(600)), int(600 * share))
    rows = [[row for row in used if SHUFFLED[row] in group] for group in groups]
    for own in rows:
        chance.shuffle(own)
    parts = [[] for _ in range(5)]
    for own in rows:
        sizes = np.random.multinomial(len(own), np.random.dirichlet([0.4] * 5))
        for client, size in enumerate(sizes):
            parts[client] += own[:size]
            own = own[size:]
    pairs = [train_test_split(part, train_size=0.8, random_state=12345) for part in parts]
    assert_same(split.train, [pair[0] for pair in pairs])
    assert_same(split.test, [pair[1] for pair in pairs])
    assert_no_row_twice(split.train, split.test)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_pachinko_allocation_takes_rows_away_until_classes_drop_out(share):
    coarse = [0, 1, 0, 2, 1, 2, 3, 3, 0, 1]
    split = exact.fedem_pachinko(SHUFFLED, coarse, num_clients=6, alpha=0.4, beta=10.0, share=share, seed=12345)
    chance = random.Random(12345)
    np.random.seed(12345)
    used = chance.sample(list(range(600)), int(600 * share))
    rows = {label: [row for row in used if SHUFFLED[row] == label] for label in range(10)}
    tree = {top: [label for label in range(10) if coarse[label] == top] for top in range(4)}
    parts = []
    for _ in range(6):
        alive = [top for top in range(4) if tree[top]]
        upper = list(np.random.dirichlet([0.4] * len(alive)))
        lower = {top: list(np.random.dirichlet([10.0] * len(tree[top]))) for top in alive}
        part = []
        for _ in range(len(used) // 6):
            place = int(np.random.multinomial(1, upper).argmax())
            top = alive[place]
            leaf = int(np.random.multinomial(1, lower[top]).argmax())
            label = tree[top][leaf]
            row = chance.choice(rows[label])
            rows[label].remove(row)
            part.append(row)
            if not rows[label]:
                tree[top].pop(leaf)
                lower[top].pop(leaf)
                lower[top] = list(np.array(lower[top]) / np.sum(lower[top])) if lower[top] else []
                if not tree[top]:
                    alive.pop(place)
                    upper.pop(place)
                    upper = list(np.array(upper) / np.sum(upper)) if upper else []
        parts.append(part)
    assert not any(rows.values())  # all classes have dropped out
    pairs = [train_test_split(part, train_size=0.8, random_state=12345) for part in parts]
    assert_same(split.train, [pair[0] for pair in pairs])
    assert_same(split.test, [pair[1] for pair in pairs])


def test_rdpcfl_clients_draw_independently_and_share_rows():
    split = exact.rdpcfl(500, 120, num_clients=21, rows_per_client=100, seed=2)
    np.random.seed(2)
    train = [set(np.random.choice(list(range(500)), 100, replace=False)) for _ in range(21)]
    np.random.seed(2)
    test = [set(np.random.choice(list(range(120)), 120 // 6, replace=False)) for _ in range(21)]
    assert_same(split.train, [list(rows)[:80] for rows in train])
    assert_same(split.validation, [list(rows)[80:] for rows in train])
    assert_same(split.test, [[500 + row for row in rows] for rows in test])
    assert split.group.tolist() == [0] * 3 + [1] * 6 + [2] * 6 + [3] * 6
    assert len({*split.train[0]} & {*split.train[1]}) > 0


SPLITS = {
    "ifca": lambda: exact.ifca(480, 120, num_clients=16, rows_per_client=120),
    "pfllib_dirichlet": lambda: exact.pfllib_dirichlet(SHUFFLED, num_clients=6, alpha=0.5),
    "pfllib_pathological": lambda: exact.pfllib_pathological(SHUFFLED, num_clients=10),
    "fedccfa": lambda: exact.fedccfa(SHUFFLED[:400], SHUFFLED[400:], num_clients=4),
    "pfedgraph": lambda: exact.pfedgraph(SHUFFLED[:400], 200),
    "comparative": lambda: exact.comparative(SHUFFLED, setting="concept-features", num_clients=4, rows_per_class=10),
    "fedem": lambda: exact.fedem(SHUFFLED, num_clients=5, alpha=1.0),
    "rdpcfl": lambda: exact.rdpcfl(400, 200, rows_per_client=50),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", SPLITS)
def test_a_split_is_a_federation_without_a_row_in_training_and_test(name):
    split, pixels = SPLITS[name](), np.arange(600 * 16, dtype=np.float32).reshape(600, 4, 4)
    fed = data.federate(
        pixels, SHUFFLED, split.train, split.test, num_classes=10, group=split.group, held_out=split.held_out
    )
    assert fed.num_clients == len(split.train) and not {*fed.train.rows.tolist()} & {*fed.test.rows.tolist()}
    if split.validation is not None:
        apart = {row for part in split.validation for row in part.tolist()}
        shared = apart & {*fed.train.rows.tolist()}
        assert bool(shared) == (name == "rdpcfl") and not apart & {*fed.test.rows.tolist()}


def test_in_the_comparison_of_quantities_test_rows_of_one_client_are_training_rows_of_another():
    labels = np.tile(SHUFFLED, 4)
    split = exact.comparative(labels, setting="quantity", num_clients=8)
    pixels = np.arange(2400 * 16, dtype=np.float32).reshape(2400, 4, 4)
    with pytest.warns(UserWarning, match=mentions("train", "test")):
        data.federate(pixels, labels, split.train, split.test, num_classes=10, group=split.group)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exact.ifca(60, 40, num_clients=8, rows_per_client=7), ("rows_per_client", 7, 60)),
        (lambda: exact.ifca(60, 40, num_clients=7), ("num_clients", 7, "4 groups")),
        (lambda: exact.pfedgraph(SHUFFLED, 0, partition="skew"), ("partition", "skew")),
        (lambda: exact.pfedgraph(SHUFFLED, 0, skew_class=3), ("skew_class", 3, 10)),
        (lambda: exact.pfedgraph(SHUFFLED, 0, partition="noniid-skew2"), ("num_clients", 20, 10)),
        (lambda: exact.comparative(SHUFFLED, setting="label-skew"), ("setting", "label-skew")),
        (lambda: exact.comparative(SHUFFLED, setting="quantity"), ("rows_per_class", 100, 60)),
        (lambda: exact.pfllib_dirichlet(SHUFFLED / 2), ("pfllib_dirichlet", "float64")),
        (lambda: exact.fedem(SHUFFLED, num_components=0), ("num_components", 0)),
    ],
)
def test_refusals_name_argument_value_and_remedy(call, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        call()
