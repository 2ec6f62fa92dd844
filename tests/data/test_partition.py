"""Partitions: their invariants on random inputs, and what they refuse."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxfl.data import partition
from tests.messages import mentions

labelled = st.lists(st.integers(0, 5), min_size=1, max_size=120).map(np.array)
seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=40, deadline=None)


def assert_exactly_once(parts, num_rows):
    assert sorted(np.concatenate(parts).tolist()) == list(range(num_rows))


def assert_at_most_once(parts, num_rows):
    rows = np.concatenate(parts).tolist()
    assert len(set(rows)) == len(rows) and set(rows) <= set(range(num_rows))


def same(left, right):
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


@few
@given(num_rows=st.integers(0, 200), num_clients=st.integers(1, 30), seed=seeds)
def test_iid_deals_every_row_once_in_equal_parts(num_rows, num_clients, seed):
    parts = partition.iid(num_rows, num_clients, seed=seed)
    sizes = [len(part) for part in parts]
    assert len(parts) == num_clients and max(sizes) - min(sizes) <= 1
    assert_exactly_once(parts, num_rows)


@few
@given(labels=labelled, num_clients=st.integers(1, 20), log_alpha=st.floats(-300, 6), seed=seeds, data=st.data())
def test_dirichlet_ends_with_every_row_once_and_min_rows_everywhere(labels, num_clients, log_alpha, seed, data):
    min_rows = data.draw(st.integers(0, len(labels) // num_clients))
    options = {"alpha": 10.0**log_alpha, "min_rows": min_rows, "seed": seed}
    parts = partition.dirichlet(labels, num_clients, **options)
    assert len(parts) == num_clients and min(len(part) for part in parts) >= min_rows
    assert_exactly_once(parts, len(labels))
    assert same(parts, partition.dirichlet(labels, num_clients, **options))


def test_dirichlet_alpha_is_the_skew():
    labels = np.repeat(np.arange(10), 500)

    def largest_share(alpha):  # of one class among a client's rows, averaged over clients
        parts = partition.dirichlet(labels, 10, alpha=alpha, min_rows=5)
        return np.mean([np.bincount(labels[part]).max() / len(part) for part in parts])

    assert largest_share(1000.0) < 0.15 < 0.3 < largest_share(0.1)


def test_dirichlet_shares_have_the_variance_of_their_distribution():
    """Var = (1/N)(1 - 1/N) / (N alpha + 1): alpha is of each client, and not divided among them."""
    classes, rows, clients, alpha = 200, 200, 10, 0.5
    parts = partition.dirichlet(np.repeat(np.arange(classes), rows), clients, alpha=alpha, seed=0)
    labels = np.repeat(np.arange(classes), rows)
    shares = np.stack([np.bincount(labels[part], minlength=classes) for part in parts]) / rows  # [N, classes]
    variance = np.mean((shares - 1 / clients) ** 2)
    np.testing.assert_allclose(variance, 0.1 * 0.9 / (clients * alpha + 1), rtol=0.2)  # 200 classes: error of 7 %


@few
@given(labels=labelled, members=st.integers(1, 6), seed=seeds)
def test_pathological_groups_have_their_own_classes_and_all_of_their_rows(labels, members, seed):
    classes = np.unique(labels).tolist()
    label_groups = [classes[::2], classes[1::2]] if len(classes) > 1 else [classes]
    parts, group = partition.pathological(labels, members * len(label_groups), label_groups=label_groups, seed=seed)
    for part, index in zip(parts, group, strict=True):
        assert set(labels[part].tolist()) <= set(label_groups[index])
    assert np.bincount(group).tolist() == [members] * len(label_groups)
    assert_exactly_once(parts, len(labels))


@few
@given(rows=st.integers(1, 40), beta=st.floats(0, 1), groups=st.integers(1, 5), members=st.integers(1, 4), seed=seeds)
def test_dominant_gives_beta_of_the_groups_class_and_the_rest_evenly(rows, beta, groups, members, seed):
    labels = np.random.Generator(np.random.PCG64(seed)).permutation(np.repeat(np.arange(5), 40 * 20))
    num_clients = groups * members
    options = {"beta": beta, "num_groups": groups, "rows_per_client": rows, "seed": seed}
    parts, group = partition.dominant(labels, num_clients, **options)
    assert_at_most_once(parts, len(labels))
    for part, index in zip(parts, group, strict=True):
        counts = np.bincount(labels[part], minlength=5)
        others = np.delete(counts, index)
        assert len(part) == rows and abs(counts[index] - beta * rows) <= 0.5 and np.ptp(others) <= 1


def test_dominant_without_rows_takes_as_many_as_fit():
    labels = np.repeat(np.arange(3), 30)
    parts, _ = partition.dominant(labels, 4, beta=0.5, num_groups=2)
    rows = len(parts[0])
    assert_at_most_once(parts, len(labels))
    with pytest.raises(ValueError, match=mentions("rows_per_client", rows + 1)):
        partition.dominant(labels, 4, beta=0.5, num_groups=2, rows_per_client=rows + 1)


@few
@given(num_rows=st.integers(1, 300), num_clients=st.integers(1, 30), sigma=st.floats(0, 50), seed=seeds, data=st.data())
def test_quantity_deals_every_row_once_with_min_rows(num_rows, num_clients, sigma, seed, data):
    min_rows = data.draw(st.integers(0, num_rows // num_clients))
    parts = partition.quantity(num_rows, num_clients, sigma=sigma, min_rows=min_rows, seed=seed)
    assert len(parts) == num_clients and min(len(part) for part in parts) >= min_rows
    assert_exactly_once(parts, num_rows)
    if sigma == 0:
        assert np.ptp([len(part) for part in parts]) <= 1


@few
@given(num_rows=st.integers(1, 300), num_clients=st.integers(1, 30), exponent=st.floats(0, 300), seed=seeds)
def test_power_law_deals_every_row_once(num_rows, num_clients, exponent, seed):
    options = {"law": "power", "exponent": exponent, "min_rows": 0, "seed": seed}
    parts = partition.quantity(num_rows, num_clients, **options)
    assert len(parts) == num_clients
    assert_exactly_once(parts, num_rows)
    assert same(parts, partition.quantity(num_rows, num_clients, **options))


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
def test_power_law_sizes_fall_with_the_rank(exponent):
    sizes = np.array([len(part) for part in partition.quantity(1_000_000, 40, law="power", exponent=exponent)])
    ranked = np.sort(sizes)[::-1]
    # Sizes are whole: log r against log size is a line to within the rounding of the smallest, 1 in 300.
    np.testing.assert_allclose(ranked / ranked[0], np.arange(1, 41) ** -exponent, rtol=0.01)
    if exponent:
        assert sizes.tolist() != ranked.tolist()  # who is large is random


@few
@given(labels=labelled, num_clients=st.integers(1, 20), each=st.integers(1, 4), seed=seeds)
def test_shards_deal_every_row_once_in_runs_of_sorted_classes(labels, num_clients, each, seed):
    options = {"shards_per_client": each, "seed": seed}
    if num_clients * each > len(labels):
        with pytest.raises(ValueError, match=mentions("shards_per_client", f"got {each}")):
            partition.shards(labels, num_clients, **options)
        return
    parts = partition.shards(labels, num_clients, **options)
    sizes = [len(part) for part in parts]
    assert len(parts) == num_clients and max(sizes) - min(sizes) <= each
    assert_exactly_once(parts, len(labels))
    # A shard of m rows of sorted classes begins or ends in at most as many classes as its edges allow: all classes
    # together are cut at most once for every shard's edge.
    held = sum(len(np.unique(labels[part])) for part in parts)
    assert held <= len(np.unique(labels)) + num_clients * each - 1
    assert same(parts, partition.shards(labels, num_clients, **options))


def test_two_shards_are_two_classes_where_the_classes_are_whole_shards():
    labels = np.random.Generator(np.random.PCG64(0)).permutation(np.repeat(np.arange(10), 60))
    parts = partition.shards(labels, 100)  # 200 shards of 3 rows, 20 for each class
    assert {len(np.unique(labels[part])) for part in parts} == {1, 2}


def test_default_groups_hold_every_class_once():
    for num_classes in range(1, 63):
        groups = partition.default_groups(num_classes)
        assert [label for group in groups for label in group] == list(range(num_classes))
        assert len(groups) == min(4, num_classes)


def test_quantity_sizes_are_log_normal():
    sizes = [len(part) for part in partition.quantity(1_000_000, 2000, sigma=0.7, min_rows=0)]
    # The standard deviation of 2,000 normal numbers is within 5 % of sigma (3 standard errors).
    assert abs(np.log(sizes).std() - 0.7) < 0.05


@few
@given(makers=st.lists(st.sampled_from("abcde"), min_size=1, max_size=60).map(np.array))
def test_natural_gives_each_maker_its_own_rows_in_order(makers):
    parts, who = partition.natural(makers)
    for part, name in zip(parts, who, strict=True):
        assert part.tolist() == np.flatnonzero(makers == name).tolist()
    assert_exactly_once(parts, len(makers))


@few
@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=8), share=st.floats(0.01, 0.99), seed=seeds)
def test_train_and_test_are_disjoint_and_together_all(sizes, share, seed):
    edges = np.cumsum([0, *sizes])
    parts = [np.arange(low, high) for low, high in zip(edges, edges[1:], strict=False)]
    train, test = partition.train_test_split(parts, share, seed=seed)
    for part, one, other in zip(parts, train, test, strict=True):
        assert sorted([*one.tolist(), *other.tolist()]) == part.tolist()
        assert len(one) >= min(1, len(part)) and abs(len(other) - share * len(part)) <= 1
    again = partition.train_test_split(parts, share, seed=seed)
    assert same(train, again[0]) and same(test, again[1])


def test_another_seed_is_another_split():
    labels = np.repeat(np.arange(10), 20)
    calls = {
        "iid": lambda seed: partition.iid(200, 5, seed=seed),
        "dirichlet": lambda seed: partition.dirichlet(labels, 5, alpha=1.0, seed=seed),
        "pathological": lambda seed: partition.pathological(labels, 8, seed=seed)[0],
        "dominant": lambda seed: partition.dominant(labels, 8, beta=0.5, seed=seed)[0],
        "quantity": lambda seed: partition.quantity(200, 5, seed=seed),
        "shards": lambda seed: partition.shards(labels, 5, seed=seed),
        "power": lambda seed: partition.quantity(200, 5, law="power", seed=seed),
        "split": lambda seed: partition.train_test_split([np.arange(200)], seed=seed)[0],
    }
    for name, call in calls.items():
        assert same(call(3), call(3)), name
        assert not same(call(3), call(4)), name


LABELS = np.repeat(np.arange(10), 6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: partition.iid(10, 0), ("num_clients", "got 0")),
        (lambda: partition.iid(10, True), ("num_clients", "True")),
        (lambda: partition.iid(10, 2.0), ("num_clients", 2.0)),
        (lambda: partition.iid(10, 3, rows_per_client=4), ("rows_per_client", 4, 3)),
        (lambda: partition.iid(10, 3, rows_per_client=0), ("rows_per_client", "got 0")),
        (lambda: partition.dirichlet(LABELS, 3, alpha=0.0), ("alpha", 0.0)),
        (lambda: partition.dirichlet(LABELS, 3, alpha=np.nan), ("alpha", "nan")),
        (lambda: partition.dirichlet(LABELS, 7, alpha=1.0, min_rows=9), ("min_rows", 8, 9)),
        (lambda: partition.pathological(LABELS, 6), ("num_clients", "got 6", "4 groups")),
        (lambda: partition.pathological(LABELS, 2, label_groups=((1,), (1, 2))), ("label_groups", "((1,), (1, 2))")),
        (lambda: partition.pathological(LABELS, 1, label_groups=((10,),)), ("label_groups", 10)),
        (lambda: partition.pathological(LABELS, 4, rows_per_client=13), (13, 12, "(3, 4)")),
        (lambda: partition.dominant(LABELS, 4, beta=1.5), ("beta", 1.5)),
        (lambda: partition.dominant(LABELS, 11, beta=0.5, num_groups=11), (10, 11)),
        (lambda: partition.dominant(LABELS, 4, beta=1.0, rows_per_client=7), (7, "class 0", 6)),
        (lambda: partition.quantity(10, 3, sigma=-1.0), ("sigma", -1.0)),
        (lambda: partition.quantity(10, 3, exponent=np.nan), ("exponent", "nan")),
        (lambda: partition.quantity(10, 3, exponent=3.0), ("exponent", "law='lognormal'", 3.0)),
        (lambda: partition.quantity(10, 3, law="power", sigma=9.0), ("sigma", "law='power'", 9.0)),
        (lambda: partition.quantity(10, 3, law="zipf"), ("law", "zipf")),
        (lambda: partition.shards(LABELS, 3, shards_per_client=0), ("shards_per_client", 0)),
        (lambda: partition.train_test_split([LABELS], 1.0), ("test_share", 1.0)),
        (lambda: partition.iid(40.0, 4), ("num_rows", 40.0)),
        (lambda: partition.iid(-1, 4), ("num_rows", -1)),
        (lambda: partition.iid(10, 2, seed=-1), ("seed", -1, 4294967295)),
        (lambda: partition.quantity(-1, 3), ("num_rows", -1)),
        (lambda: partition.dirichlet(LABELS, 3, alpha=1.0, min_rows=2.5), ("min_rows", 2.5)),
        (lambda: partition.dirichlet([[1], [1, 2]], 1, alpha=1.0), ("labels", "lists")),
        (lambda: partition.dirichlet(["a", "b"], 1, alpha=1.0), ("dirichlet", "<U1")),
        (lambda: partition.shards(None, 2), ("shards", "object")),
        (
            lambda: partition.pathological(LABELS, 2, label_groups=((0,), ())),
            ("label_groups", "((0,), ())"),
        ),
        (lambda: partition.pathological(LABELS, 2, label_groups=()), ("label_groups", "got ()")),
        (lambda: partition.pathological(LABELS, 2, label_groups=3), ("label_groups", "got 3")),
        (lambda: partition.pathological(LABELS, 2, label_groups=(0, 1)), ("label_groups", "int64", "group 0")),
        (
            lambda: partition.pathological(LABELS, 2, label_groups=((0,), (1.5,))),
            ("label_groups", "float64", "group 1"),
        ),
        (lambda: partition.default_groups(0), ("num_classes", 0)),
        (lambda: partition.train_test_split([5]), ("parts", "int64", "client 0")),
        (lambda: partition.train_test_split([LABELS == 1]), ("bool", "(60,)", "client 0")),
        (lambda: partition.train_test_split(5), ("parts", 5)),
        (lambda: partition.at_most([LABELS], 2.5, 1, None), ("max_rows", 2.5)),
        (lambda: partition.rows_that_fit(0, 1, 9, "here"), ("num_clients", "got 0")),
        (lambda: partition.natural(5), ("client_of_row", "int64", "[P]")),
        (lambda: partition.natural([0.0, np.nan]), ("client_of_row", "nan", "row 1")),
        (lambda: partition.natural(np.array(["a", None])), ("client_of_row", "None", "row 1")),
        (lambda: partition.natural(np.array(["a", 1], object)), ("client_of_row", "astype(str)")),
        (lambda: partition.natural(["a", " "]), ("client_of_row", "' '", "row 1")),
        (lambda: partition.natural(np.array(["a", ""], object)), ("client_of_row", "row 1")),
        (lambda: partition.natural(np.array([b"", b"a"])), ("client_of_row", "b''", "row 0")),
    ],
)
def test_refusals_name_argument_value_and_remedy(call, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: partition.dirichlet(LABELS, 3, alpha="low"), ("alpha", "low")),
        (lambda: partition.dirichlet(LABELS, 3, alpha=np.ones(2)), ("alpha", "array")),
        (lambda: partition.dominant(LABELS, 4, beta=None), ("beta", "None")),
        (lambda: partition.quantity(10, 3, sigma=np.ones(2)), ("sigma", "array")),
        (lambda: partition.train_test_split([LABELS], True), ("test_share", "True")),
        (lambda: partition.iid(10, 2, seed=None), ("seed", "None")),
        (lambda: partition.iid(10, 2, seed=[]), ("seed", "[]")),
    ],
)
def test_other_types_are_refused_by_name(call, message):
    with pytest.raises(TypeError, match=mentions(*message)):
        call()


def test_lists_are_as_good_as_arrays():
    labels, groups = LABELS.tolist(), [[0, 1], [2]]
    calls = {
        "dirichlet": lambda of: partition.dirichlet(of(labels), 3, alpha=1.0),
        "pathological": lambda of: partition.pathological(of(labels), 2, label_groups=[of(one) for one in groups])[0],
        "dominant": lambda of: partition.dominant(of(labels), 4, beta=0.5)[0],
        "shards": lambda of: partition.shards(of(labels), 3),
        "natural": lambda of: partition.natural(of(labels))[0],
        "split": lambda of: partition.train_test_split([of(labels), of(range(4))])[0],
    }
    for name, call in calls.items():
        assert same(call(list), call(np.array)) and same(call(tuple), call(np.array)), name
    (own, none), _ = partition.train_test_split([[1, 2], []])
    assert own.dtype == none.dtype == np.int64 and none.size == 0
    assert partition.natural([])[0] == []


@pytest.mark.parametrize("num_clients", [2**21, 2**40, 10**25])
def test_more_clients_than_a_list_holds_are_refused(num_clients):
    with pytest.raises(ValueError, match=mentions("num_clients", num_clients, 60, 2**20)):
        partition.iid(60, num_clients, seed=0)
