"""Skews of the classes: each law written out in NumPy from its paper or its code, and what holds for all of them."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxfl import data
from jaxfl.data import partition, skews
from jaxfl.random import host_rng
from tests.messages import mentions

labelled = st.lists(st.integers(0, 5), min_size=1, max_size=120).map(np.array)
seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=40, deadline=None)
LABELS = np.repeat(np.arange(10), 60)


def table(labels, parts):
    """Rows of each client and class [N, L]."""
    labels = np.asarray(labels)
    return np.stack([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


def assert_at_most_once(parts, num_rows):
    rows = np.concatenate(parts)
    assert len(np.unique(rows)) == len(rows) and (not len(rows) or 0 <= rows.min() and rows.max() < num_rows)


def rows_of(split, client):
    return split.rows[split.start[client] : split.start[client] + split.size[client]]


# ---- Dirichlet


@few
@given(
    labels=labelled,
    num_clients=st.integers(1, 12),
    log_alpha=st.floats(-300, 6),
    rule=st.sampled_from(["prior", "grouped"]),
    seed=seeds,
)
def test_every_rule_ends_for_any_alpha_and_deals_no_row_twice(labels, num_clients, log_alpha, rule, seed):
    if num_clients > len(labels) or (rule == "grouped" and len(np.unique(labels)) < 3):
        return
    options = {"alpha": 10.0**log_alpha, "rule": rule, "seed": seed}
    parts = partition.dirichlet(labels, num_clients, **options)
    assert_at_most_once(parts, len(labels))
    sizes = [len(part) for part in parts]
    if rule == "prior":
        assert sizes == [len(labels) // num_clients] * num_clients
    else:
        assert sum(sizes) == len(labels) and min(sizes) >= 1
    again = partition.dirichlet(labels, num_clients, **options)
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("labels", "clients", "alpha", "least"), [(LABELS, 6, 0.3, 20), (LABELS[90:], 9, 1.0, 5)])
def test_balanced_is_pfllibs_rule(labels, clients, alpha, least, seed):
    """Shares of clients with P/N rows are 0, the others are normalised; all is drawn again until all have enough."""
    parts = partition.dirichlet(labels, clients, alpha=alpha, rule="balanced", min_rows=least, seed=seed)
    rng = host_rng(seed, "partition", "dirichlet", "balanced")
    wanted = np.zeros((clients, 1))
    while wanted.sum(1).min() < least:
        wanted = np.zeros((clients, labels.max() + 1), int)
        for label in np.unique(labels):
            shares = np.round(rng.dirichlet([alpha] * clients) * 2**32)
            shares[wanted.sum(1) >= len(labels) / clients] = 0
            edges = np.floor(np.cumsum(shares / shares.sum())[:-1] * (labels == label).sum() + 1e-9)
            wanted[:, label] = np.diff([0, *edges, (labels == label).sum()])
    np.testing.assert_array_equal(table(labels, parts), wanted)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))


def test_prior_draws_each_clients_classes_around_the_shares_of_what_is_left():
    """The first client's shares: mean p, variance p (1 - p) / (alpha + 1), and that of a sample of n rows above it."""
    labels = np.repeat([0, 1, 2], [6000, 3000, 1000])
    prior, alpha, size = np.array([0.6, 0.3, 0.1]), 1.0, 500
    options = {"alpha": alpha, "rule": "prior", "rows_per_client": size}
    first = [table(labels, partition.dirichlet(labels, 2, seed=seed, **options))[0] / size for seed in range(400)]
    variance = prior * (1 - prior) / (alpha + 1)
    np.testing.assert_allclose(np.mean(first, 0), prior, atol=4 * np.sqrt(variance.max() / 400))
    np.testing.assert_allclose(np.var(first, 0), variance * (1 + alpha / size), rtol=0.2)
    # the last client has what is left, whatever it draws
    whole = table(labels, partition.dirichlet(labels, 20, alpha=0.1, rule="prior", seed=1))
    assert whole.sum(0).tolist() == [6000, 3000, 1000] and whole.sum(1).tolist() == [500] * 20


def test_grouped_gives_all_classes_of_a_group_the_same_shares():
    labels = np.repeat(np.arange(10), 4000)
    shares = table(labels, partition.dirichlet(labels, 8, alpha=0.4, rule="grouped", min_rows=0, seed=2)) / 4000
    # a class's share is a binomial one of 4,000 rows: 5 standard deviations are less than 0.04
    alike = np.abs(shares[:, :, None] - shares[:, None, :]).max(0) < 0.04
    groups = {tuple(np.flatnonzero(row)) for row in alike}
    assert sorted(len(group) for group in groups) == [3, 3, 4] and sorted(itertools.chain(*groups)) == list(range(10))
    options = {"alpha": 0.4, "rule": "grouped"}
    several = [table(labels, partition.dirichlet(labels, 8, seed=seed, **options)) for seed in range(60)]
    variance = np.mean((np.array(several) / 4000 - 1 / 8) ** 2)
    np.testing.assert_allclose(variance, (1 / 8) * (7 / 8) / (8 * 0.4 + 1), rtol=0.2)  # 180 groups


def test_essential_rows_come_before_the_shares():
    clients, alpha = 8, 0.3
    parts = partition.dirichlet(LABELS, clients, alpha=alpha, essential=3, seed=3)
    rng, wanted = host_rng(3, "partition", "dirichlet"), np.full((clients, 10), 3)
    for label in range(10):
        rng.permutation(60)
        edges = np.floor(np.cumsum(rng.dirichlet([alpha] * clients))[:-1] * (60 - 3 * clients) + 0.5)
        wanted[:, label] += np.diff([0, *edges, 60 - 3 * clients]).astype(int)
    np.testing.assert_array_equal(table(LABELS, parts), wanted)
    assert sorted(np.concatenate(parts).tolist()) == list(range(600))


# ---- pathological


@few
@given(labels=labelled, num_clients=st.integers(1, 14), classes=st.integers(1, 6), uneven=st.booleans(), seed=seeds)
def test_clients_of_few_classes_are_neighbours_by_pfllibs_rule(labels, num_clients, classes, uneven, seed):
    present = np.unique(labels).tolist()
    classes = min(classes, len(present))
    parts, group = partition.pathological(labels, num_clients, client_classes=classes, uneven=uneven, seed=seed)
    owned = [[] for _ in range(num_clients)]
    for label in present:
        takers = [client for client in range(num_clients) if len(owned[client]) < classes]
        for client in takers[: int(np.ceil(num_clients * classes / len(present)))]:
            owned[client].append(label)
    assert all(owned)
    assert_at_most_once(parts, len(labels))
    found, least = table(labels, parts), int(min(40, len(labels) / num_clients / 2) / len(present))
    for label in present:
        having = [client for client in range(num_clients) if label in owned[client]]
        outside = [client for client in range(num_clients) if label not in owned[client]]
        count = int((labels == label).sum())
        assert found[outside, label].sum() == 0 and found[having, label].sum() == (count if having else 0)
        if having and not uneven:
            assert np.ptp(found[having, label]) <= 1
        elif having:
            mean = count / len(having)
            low, high = int(max(mean / 10, least)), int(mean)
            sizes = found[having[:-1], label]
            assert (sizes < max(high, 1)).all() and (sizes >= min(low, max(high - 1, 0))).all()
    for one, other in itertools.combinations(range(num_clients), 2):
        assert (group[one] == group[other]) == (owned[one] == owned[other])


def test_uneven_sizes_are_uniform_between_a_tenth_of_the_mean_and_the_mean():
    labels = np.repeat([0, 1], 5000)
    sizes = []
    for seed in range(300):
        parts, _ = partition.pathological(labels, 10, label_groups=((0,), (1,)), uneven=True, seed=seed)
        sizes += [len(part) for index, part in enumerate(parts) if index not in (4, 9)]
        assert sum(map(len, parts)) == 10_000 and len(parts[4]) > 1000
    assert min(sizes) >= 100 and max(sizes) < 1000
    assert abs(np.mean(sizes) - 549.5) < 4 * np.sqrt((900**2 - 1) / 12 / len(sizes))


def test_a_class_of_several_groups_is_divided_by_dirichlet_after_a_reserve():
    labels, shares = np.repeat([0, 1, 2], 1000), []
    for seed in range(300):
        parts, group = partition.pathological(
            labels, 4, label_groups=((0, 1), (1, 2)), overlap=0.5, reserve=0.2, seed=seed
        )
        found = table(labels, parts)
        by_group = np.stack([found[group == number].sum(0) for number in (0, 1)])
        assert by_group[:, [0, 2]].tolist() == [[1000, 0], [0, 1000]] and by_group[:, 1].sum() == 1000
        assert by_group[:, 1].min() >= 99  # half of the reserve
        assert np.ptp(found[group == 0].sum(1)) <= 1
        shares.append((by_group[0, 1] / 1000 - 0.1) / 0.8)
    np.testing.assert_allclose(np.var(shares), 0.25 / 2, rtol=0.2)  # Dir(.5) of two: p (1 - p) / (1 + 1)


def test_the_reserve_grows_until_each_group_has_enough_rows():
    labels = np.repeat([0, 1], 100)
    options = {"label_groups": ((0, 1), (0,)), "overlap": 0.01, "reserve": 0.0}
    for seed in range(20):
        parts, _ = partition.pathological(labels, 4, rows_per_client=24, seed=seed, **options)
        assert [len(part) for part in parts] == [24] * 4
    with pytest.raises(ValueError, match=mentions("rows_per_client", 51, 25)):
        partition.pathological(labels, 4, rows_per_client=51, **options)


# ---- missing and downsampled


@few
@given(labels=labelled, members=st.integers(1, 4), overlap=st.sampled_from([None, 0.5]), seed=seeds)
def test_groups_miss_their_classes_and_share_the_others(labels, members, overlap, seed):
    classes = np.unique(labels).tolist()
    without = partition.default_without(labels)
    if len(classes) < 2 or len(labels) < 40 * members:
        return
    parts, group = partition.missing(labels, members * len(without), without=without, overlap=overlap, seed=seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    by_group = np.stack([table(labels, parts)[group == number].sum(0) for number in range(len(without))])
    for number, lacked in enumerate(without):
        assert by_group[number, list(lacked)].sum() == 0
    if overlap is None:
        for label in classes:
            having = [number for number, lacked in enumerate(without) if label not in lacked]
            assert np.ptp(by_group[having, label]) <= 1


@few
@given(each=st.integers(1, 20), share=st.floats(0, 1), members=st.integers(1, 3), seed=seeds)
def test_downsampled_clients_have_few_rows_but_of_the_kept_classes(each, share, members, seed):
    kept = ((1, 2), (3,), ())
    parts, group = partition.downsampled(
        LABELS, 3 * members, kept=kept, kept_share=share, rows_per_class=min(each, 60 // (3 * members)), seed=seed
    )
    size = min(each, 60 // (3 * members))
    wanted = np.full((3 * members, 10), np.floor(share * size + 0.5), int)
    for client, number in enumerate(np.repeat(range(3), members)):
        wanted[client, list(kept[number])] = size
        assert group[client] == number
    np.testing.assert_array_equal(table(LABELS, parts), wanted)
    assert_at_most_once(parts, len(LABELS))


# ---- quantity


@few
@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=4, unique=True),
    members=st.integers(1, 4),
    least=st.integers(0, 3),
    seed=seeds,
)
def test_sizes_of_groups_are_in_proportion(sizes, members, least, seed):
    clients = len(sizes) * members
    parts = partition.quantity(400, clients, law="groups", relative_sizes=sizes, min_rows=least, seed=seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(400))
    wanted = least + (400 - least * clients) * np.repeat(sizes, members) / (sum(sizes) * members)
    assert np.abs([len(part) for part in parts] - wanted).max() <= 1


def test_groups_of_sizes_are_the_true_groups():
    fed = data.load("quantity-digits", num_clients=8, law="groups", relative_sizes=(1, 4), test_share=0.25)
    assert fed.group.tolist() == [0] * 4 + [1] * 4 and fed.group_names == ("size 1", "size 4")
    assert list(fed.causes) == ["quantity"] and 3.9 < fed.train.size[7] / fed.train.size[0] < 4.1


# ---- test rows


@few
@given(labels=labelled, others=labelled, num_clients=st.integers(1, 6), seed=seeds)
def test_other_rows_have_the_class_shares_of_the_first(labels, others, num_clients, seed):
    owner = np.random.Generator(np.random.PCG64(seed)).integers(num_clients, size=len(labels))
    parts = [np.flatnonzero(owner == client) for client in range(num_clients)]
    found = partition.same_shares(labels, parts, others, seed=seed)
    assert_at_most_once(found, len(others))
    first = np.stack([np.bincount(labels[part], minlength=6) for part in parts])
    second = np.stack([np.bincount(others[part], minlength=6) for part in found])
    there = np.bincount(others, minlength=6)
    both = (first.sum(0) > 0) & (there > 0)
    if both.any():
        factor = (there[both] / first.sum(0)[both]).min()
        assert (np.abs(second[:, both] - factor * first[:, both]) < 1 + 1e-9).all()
        rarest = np.flatnonzero(both)[(there[both] / first.sum(0)[both]).argmin()]
        assert second[:, rarest].sum() == there[rarest]
    assert second[:, ~both].sum() == 0


OWN = {
    "dirichlet": [
        {"rule": "plain", "essential": 2},
        {"rule": "balanced", "min_rows": 5},
        {"rule": "prior", "rows_per_client": 30},
        {"rule": "grouped", "num_components": 2},
    ],
    "pathological": [
        {"client_classes": 2},
        {"client_classes": 3, "uneven": True},
        {"label_groups": ((0, 1), (1, 2, 3, 4)), "overlap": 0.5},
        {"label_groups": ((0, 1), (2, 3)), "uneven": True},
    ],
    "missing": [{"without": "0,1,4:2,none"}, {"without": (0, 1), "overlap": 0.5, "reserve": 0.3}],
    "downsampled": [{"kept": "0:1,2:3"}, {"kept": (4, (0, 1)), "kept_share": 0.4, "rows_per_class": 6}],
    "dominant": [{"beta": 0.6}],
    "shards": [{}],
}
CASES = [(skew, options) for skew, several in OWN.items() for options in several]


@pytest.fixture(scope="module")
def own_file(tmp_path_factory):
    """Training and test images that name their row, five classes."""
    path = tmp_path_factory.mktemp("own") / "own.npz"
    x = np.zeros((550, 4, 4), np.float32)
    x[:, 0, 0] = np.arange(550)
    y = np.random.Generator(np.random.PCG64(0)).permutation(np.arange(550) % 5)
    np.savez(path, x=x[:400], y=y[:400], test_x=x[400:], test_y=y[400:])
    return path


@pytest.mark.filterwarnings("ignore:.* does not use the")
@pytest.mark.parametrize(("skew", "options"), CASES, ids=lambda value: value if isinstance(value, str) else str(value))
def test_nobody_trains_on_a_row_that_anybody_is_tested_on(skew, options, own_file, tmp_path):
    name = f"{skew}-npz"
    several = [{}, {"test_share": None}, {"test": "central"}, {"test_share": 0.3}, {"pool": "all", "test_share": 0.25}]
    for more in several:
        fed = data.load(name, data_dir=own_file, num_clients=8, **options, **more)
        train, test = set(fed.train.rows.tolist()), set(fed.test.rows.tolist())
        assert train and test and not train & test and len(train) == len(fed.train.rows)
        assert fed.train.size.min() > 0
        if more.get("pool") == "all":
            assert len(fed.labels) == 550 and max(train | test) > 400
        if more == {"test": "central"}:
            assert fed.test.size.tolist() == [150] * 8
        if more == {"test_share": None}:
            assert min(test) >= 400 > max(train)
        again = data.load(name, data_dir=own_file, num_clients=8, **options, **more)
        assert np.array_equal(again.train.rows, fed.train.rows) and np.array_equal(again.test.rows, fed.test.rows)
    settings = {"held_out": 0.25, "validation": 0.2, "drift_round": 3}
    settings |= {"drift": "new-group"} if fed.group is None else {"drift": "swap"}
    changed = data.load(f"rotated+{name}", data_dir=own_file, num_clients=8, **options, **settings)
    assert changed.held_out.sum() == 2 and changed.drifts_at == 3
    assert not {*changed.validation.rows.tolist()} & {*changed.train.rows.tolist(), *changed.test.rows.tolist()}
    data.stored.save(fed, tmp_path / "saved")
    saved = data.load("saved", data_dir=tmp_path / "saved")
    assert np.array_equal(saved.train.rows, fed.train.rows) and saved.group_names == fed.group_names


@pytest.mark.parametrize(("skew", "options"), CASES, ids=lambda value: value if isinstance(value, str) else str(value))
def test_official_test_rows_have_the_class_shares_of_the_training_rows(skew, options, own_file):
    fed = data.load(f"{skew}-npz", data_dir=own_file, num_clients=8, test_share=None, **options)
    if skew == "pathological" and "overlap" not in options:
        for client in range(8):  # all official rows of the group's classes
            classes = np.unique(fed.labels[rows_of(fed.train, client)])
            own = rows_of(fed.test, client)
            assert set(fed.labels[own]) == set(classes) and len(own) == np.isin(fed.labels[400:], classes).sum()
        return
    party = np.arange(8) if fed.group is None else fed.group
    train = [np.concatenate([rows_of(fed.train, client) for client in np.flatnonzero(party == number)]) for number in
             range(party.max() + 1)]  # fmt: skip
    test = [rows_of(fed.test, int(np.argmax(party == number))) for number in range(party.max() + 1)]
    assert_at_most_once(test, 550)
    first, second = (table(fed.labels, parts) for parts in (train, test))
    factor = (np.bincount(fed.labels[400:]) / np.maximum(first.sum(0), 1))[first.sum(0) > 0].min()
    assert (np.abs(second - factor * first) < 1 + 1e-9).all()


@pytest.mark.parametrize("skew", ["iid", "dirichlet", "pathological", "rotated", "hybrid", "missing"])
def test_all_of_the_pool_is_the_federation_of_one_file(skew, own_file, tmp_path):
    """Official training and test examples together, in this order, as if they were training examples."""
    with np.load(own_file) as parts:
        x, y = (np.concatenate([parts[name], parts[f"test_{name}"]]) for name in "xy")
    np.savez(tmp_path / "own.npz", x=x, y=y)
    more = {"other": "negative"} if skew == "hybrid" else {"label_groups": ((0, 1), (2, 3))} if "path" in skew else {}
    more |= {"without": "0,1"} if skew == "missing" else {}
    pooled = data.load(f"{skew}-npz", data_dir=own_file, num_clients=4, pool="all", **more)
    joined = data.load(f"{skew}-npz", data_dir=tmp_path / "own.npz", num_clients=4, **more)
    for name in ("inputs", "labels"):
        assert np.array_equal(getattr(pooled, name), getattr(joined, name))
    for split in ("train", "test"):
        for field in ("rows", "start", "size"):
            assert np.array_equal(getattr(getattr(pooled, split), field), getattr(getattr(joined, split), field))
    assert pooled.group_names == joined.group_names


def test_makers_of_all_of_the_pool(tmp_path):
    x, y, client = np.arange(60.0, dtype=np.float32)[:, None], np.arange(60) % 3, np.arange(60) % 4
    group = np.array(["north", "south"])[client % 2]
    path = tmp_path / "own.npz"
    np.savez(path, x=x[:40], y=y[:40], client=client[:40], group=group[:40], test_x=x[40:], test_y=y[40:],
             test_client=client[40:])  # fmt: skip
    fed = data.load("npz", data_dir=path, pool="all")
    assert (fed.train.size + fed.test.size).tolist() == [15] * 4 and fed.group.tolist() == [0, 1, 0, 1]
    for number in range(4):
        own = np.concatenate([rows_of(fed.train, number), rows_of(fed.test, number)])
        assert set(client[own]) == {number}
    np.savez(path, x=x[:40], y=y[:40], client=client[:40], test_x=x[40:], test_y=y[40:])
    assert len(data.load("iid-npz", data_dir=path, pool="all", num_clients=4).labels) == 60
    with pytest.raises(ValueError, match=mentions("pool", "writers-own", "makers")):
        data.load("npz", data_dir=path, pool="all")


def test_groups_are_named_by_what_they_lack_or_keep():
    fed = data.load("missing-digits", num_clients=6, without="0:1,9,none")
    assert fed.group_names == ("without 0, 1", "without 9", "all classes") and fed.group.tolist() == [0, 0, 1, 1, 2, 2]
    fed = data.load("downsampled-digits", num_clients=4, kept="1:2,8")
    assert fed.group_names == ("mostly 1, 2", "mostly 8")
    fed = data.load("pathological-digits", num_clients=10, client_classes=4)
    assert fed.group_names == ("labels 0, 1, 2, 3", "labels 4, 5, 6, 7", "labels 8, 9")


def test_old_federations_are_as_they_were():
    """The rule "plain" and the groups without overlap draw from the streams that they always had."""
    parts = partition.dirichlet(LABELS, 4, alpha=0.5, min_rows=0, seed=9)
    rng, owners = host_rng(9, "partition", "dirichlet"), [[] for _ in range(4)]
    for label in range(10):
        rows = rng.permutation(np.flatnonzero(LABELS == label))
        cuts = np.floor(np.cumsum(rng.dirichlet(np.full(4, 0.5)))[:-1] * 60 + 0.5).astype(int)
        for owner, piece in zip(owners, np.split(rows, cuts), strict=True):
            owner += piece.tolist()
    assert [part.tolist() for part in parts] == [rng.permutation(owner).tolist() for owner in owners]
    parts, _ = partition.pathological(LABELS, 4, label_groups=((3, 1), (2,)), rows_per_client=7, seed=9)
    for index, own in enumerate([[1, 3], [2]]):
        order = host_rng(9, "partition", "pathological", index).permutation(np.flatnonzero(np.isin(LABELS, own)))
        assert np.concatenate(parts[2 * index : 2 * index + 2]).tolist() == order[:14].tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: partition.dirichlet(LABELS, 3, alpha=1.0, rule="even"), ("rule", "even", "balanced")),
        (lambda: partition.dirichlet(LABELS, 3, alpha=1.0, essential=30), ("essential", 30, 20, "class 0")),
        (lambda: partition.dirichlet(LABELS, 3, alpha=1.0, essential=-1), ("essential", -1)),
        (lambda: partition.dirichlet(LABELS, 3, alpha=1.0, rule="prior", essential=1), ("essential", "rule=prior", 1)),
        (lambda: partition.dirichlet(LABELS, 3, alpha=1.0, rows_per_client=9), ("rows_per_client", "rule=prior", 9)),
        (
            lambda: partition.dirichlet(LABELS, 3, alpha=1.0, rule="prior", num_components=2),
            ("num_components", "rule=grouped", 2),
        ),
        (
            lambda: partition.dirichlet(LABELS, 3, alpha=1.0, rule="grouped", num_components=11),
            ("num_components", 10, 11),
        ),
        (
            lambda: partition.dirichlet(LABELS, 3, alpha=1.0, rule="prior", rows_per_client=4, min_rows=5),
            ("rows_per_client", 4, 5),
        ),
        (
            lambda: partition.dirichlet(LABELS[:60], 6, alpha=1e-3, rule="balanced", min_rows=10),
            ("min_rows", "rule=balanced", 10, "alpha=0.001"),
        ),
        (lambda: partition.pathological(LABELS, 3, client_classes=11), ("client_classes", 10, 11)),
        (
            lambda: partition.pathological(LABELS, 3, client_classes=2, label_groups=((0,),)),
            ("label_groups", "client_classes=2"),
        ),
        (
            lambda: partition.pathological(LABELS, 3, client_classes=2, rows_per_client=4),
            ("rows_per_client", "client_classes=2", 4),
        ),
        (lambda: partition.pathological(LABELS, 4, overlap=0.5), ("overlap", 0.5)),
        (lambda: partition.pathological(LABELS, 2, label_groups=((1,), (1, 2))), ("label_groups", "overlap=0.5")),
        (
            lambda: partition.pathological(LABELS, 2, label_groups=((1,), (1, 2)), overlap=0.0),
            ("overlap", 0.0),
        ),
        (lambda: partition.pathological(LABELS, 4, reserve=0.3), ("reserve", 0.3, "overlap")),
        (
            lambda: partition.pathological(LABELS, 2, label_groups=((1,), (1, 2)), overlap=1.0, reserve=1.5),
            ("reserve", 1.5),
        ),
        (lambda: partition.missing(LABELS, 2, without=((0,), (0,))), ("without", "((0,), (0,))")),
        (lambda: partition.missing(LABELS, 2, without=((0,), tuple(range(10)))), ("without",)),
        (lambda: partition.missing(LABELS, 2, without=((0,), (12,))), ("without", 12)),
        (lambda: partition.missing(LABELS, 3, without=((0,), (1,))), ("num_clients", 3, "2 groups")),
        (lambda: partition.missing(LABELS / 1.0, 2), ("missing", "float64")),
        (lambda: partition.downsampled(LABELS, 2, kept=((0,), (0,))), ("kept", "((0,), (0,))")),
        (lambda: partition.downsampled(LABELS, 2, kept=((0,), (1,)), kept_share=1.5), ("kept_share", 1.5)),
        (lambda: partition.downsampled(LABELS, 4, rows_per_class=16), ("rows_per_class", 16, 15, "class 0")),
        (lambda: partition.quantity(60, 4, relative_sizes=(1, 2)), ("relative_sizes", "groups", "(1, 2)")),
        (lambda: partition.quantity(60, 4, law="groups", sigma=2.0), ("sigma", "groups", 2.0)),
        (lambda: partition.quantity(60, 4, law="groups", relative_sizes=(1, 0)), ("relative_sizes", "(1, 0)")),
        (lambda: partition.quantity(60, 4, law="groups", relative_sizes=(1, 1)), ("relative_sizes", "(1, 1)")),
        (lambda: partition.quantity(60, 4, law="groups", relative_sizes=3), ("relative_sizes", 3)),
        (lambda: partition.quantity(60, 5, law="groups"), ("num_clients", 5, "4 groups")),
        (lambda: partition.class_lists("kept", "1-2,3"), ("kept", "1-2,3", "1:2,3:4")),
        (lambda: partition.class_lists("kept", "1:1,3"), ("kept", "1:1,3")),
        (lambda: partition.class_lists("kept", ""), ("kept", "1:2,3:4")),
        (lambda: partition.class_lists("kept", 3), ("kept", 3)),
        (lambda: partition.class_lists("kept", [0.5]), ("kept", "float64")),
        (lambda: data.load("iid-digits", pool="all"), ("pool", "digits")),
        (lambda: data.load("iid-digits", pool="both"), ("pool", "both", "all")),
        (lambda: skews.dirichlet(data.sources.load("digits"), num_clients=2, rule="x"), ("rule", "x")),
    ],
)
def test_refusals_name_argument_value_and_remedy(call, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        call()
