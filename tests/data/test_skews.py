"""Federations by partition, by domain and by product: groups as declared, no row of one client with another."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxfl import data
from jaxfl.data import catalog, natural, skews
from jaxfl.data.sources import domains
from tests.messages import mentions

# products of few clients, in which some shifts have none
pytestmark = pytest.mark.filterwarnings("ignore:no client of")


def source(rows=80, test_rows=0, name="made", offset=0.0, num_classes=4):
    """Images whose pixels name their row."""
    total = rows + test_rows
    x = np.arange(total, dtype=np.float32)[:, None, None] + np.zeros((3, 3), np.float32) + np.float32(offset)
    labels = np.arange(total) % num_classes
    test = (x[rows:], labels[rows:]) if test_rows else (None, None)
    return data.Source(name, x[:rows], labels[:rows], num_classes, *test)


def rows_of(split, client):
    return split.rows[split.start[client] : split.start[client] + split.size[client]]


def everyone(split):
    return [rows_of(split, client) for client in range(len(split.start))]


IMAGE_SHIFTS = ("coloured", "corrupted", "thickened", "classwise")
BUILDERS = {
    name: builder for name, (builder, _) in catalog.SKEWS.items() if name not in (*catalog.SHIFTS, "writers", "hybrid")
}


@settings(max_examples=60, deadline=None)
@given(
    skew=st.sampled_from(sorted(BUILDERS)),
    members=st.integers(1, 4),
    seed=st.integers(0, 2**31),
    shift=st.sampled_from([None, *catalog.SHIFTS]),
)
def test_no_row_is_two_clients_and_no_test_row_is_trained_on(skew, members, seed, shift):
    options = {"num_clients": 4 * members, "seed": seed}
    if skew == "pathological":
        options["label_groups"] = ((0,), (1,), (2,), (3,))
    if skew == "missing":
        options["without"] = "0,1,2,3"
    made = source()
    if shift in IMAGE_SHIFTS:
        made = replace(made, inputs=made.inputs.astype(np.uint8))
    fed = BUILDERS[skew](made, **options, test_share=0.25)
    if shift is not None:
        fed = catalog.SHIFTS[shift](fed, seed=seed)
    origin = np.arange(len(fed.inputs)) if fed.origin is None else fed.origin  # corrupted rows are copies
    rows = origin[np.concatenate([*everyone(fed.train), *everyone(fed.test)])]
    assert len(np.unique(rows)) == len(rows) and rows.max() < 80
    assert fed.train.size.min() > 0
    again = BUILDERS[skew](source(), **options, test_share=0.25)
    assert np.array_equal(again.train.rows, origin[fed.train.rows])
    assert np.array_equal(again.test.rows, origin[fed.test.rows])


def test_groups_without_official_test_rows_are_warned_of():
    few = replace(source(test_rows=4), test_labels=np.zeros(4, np.int32))
    with pytest.warns(UserWarning, match=mentions("1 of 2 groups", "labels 2, 3", "test_share=0.2")):
        skews.pathological(few, num_clients=2, label_groups=((0, 1), (2, 3)))


@pytest.mark.parametrize("skew", ["iid", "quantity", "pathological", "hybrid"])
def test_the_official_test_set_is_nobodys_training_row(skew):
    origin = source(80, 20)
    if skew == "hybrid":
        origin = domains.combined(origin, source(40, 12, "other", offset=1000))
    options = {"label_groups": ((0, 1), (2, 3))} if skew == "pathological" else {}
    fed = catalog.SKEWS[skew][0](origin, num_clients=4, **options)
    count = len(origin.inputs)
    assert fed.train.rows.max() < count <= fed.test.rows.min()
    assert sorted(fed.train.rows.tolist()) == list(range(count))  # all of it is dealt out, once


def test_hybrid_clients_have_one_domain_in_training_and_test():
    both = domains.combined(source(80, 20, "low"), source(40, 12, "high", offset=1000))
    assert both.name == "low" and both.domain_names == ("low", "high")
    fed = skews.hybrid(both, num_clients=6)
    assert fed.group.tolist() == [0, 0, 0, 1, 1, 1] and fed.group_names == ("low", "high")
    for client in range(6):
        for split, count in ((fed.train, (80, 40)), (fed.test, (20, 12))):
            pixels = fed.inputs[rows_of(split, client)]
            assert ((pixels >= 1000) == (client >= 3)).all()
            if split is fed.test:
                assert len(pixels) == count[client >= 3]
    own = skews.hybrid(both, num_clients=6, rows_per_client=10, test_share=0.2)
    assert own.train.size.tolist() == [10] * 6 and own.test.size.tolist() == [16] * 3 + [8] * 3
    for client in range(6):
        assert ((fed.inputs[rows_of(own.test, client)] >= 1000) == (client >= 3)).all()


def test_hybrid_tests_nobody_on_rows_of_which_nobody_knows_the_domain():
    both = domains.combined(source(80, 20), source(40, 12, "other", offset=1000))
    unknown = replace(both, test_domains=None)
    with pytest.raises(ValueError, match=mentions("test_domain", "test_share")):
        skews.hybrid(unknown, num_clients=6)
    assert skews.hybrid(unknown, num_clients=6, test_share=0.2).test.size.tolist() == [16] * 3 + [8] * 3
    named = replace(both, domain_names=("low", "high", "none"))
    with pytest.raises(ValueError, match=mentions("domains", "made", "none")):
        skews.hybrid(named, num_clients=6)


def test_hybrid_needs_domains_that_fit():
    with pytest.raises(ValueError, match=mentions("source", "made")):
        skews.hybrid(source(), num_clients=4)
    for other, message in [
        (source(20, 5), ("domains", "made (False)", "made (True)")),
        (data.Source("flat", np.zeros((4, 3), np.float32), np.zeros(4, int), 1), ("domains", "made ((3, 3))")),
        (data.Source("bytes", np.zeros((4, 3, 3), np.uint8), np.zeros(4, int), 1), ("domains", "made (float32)")),
    ]:
        with pytest.raises(ValueError, match=mentions(*message)):
            domains.combined(source(), other)


def test_the_negative_of_the_negative_is_the_image():
    digits = catalog.sources.load("digits")
    once = domains.negative(digits)
    assert once.inputs.min() == 0 and once.inputs.max() == 16
    np.testing.assert_array_equal(domains.negative(once).inputs, digits.inputs)


def test_the_product_of_rotations_and_labels_is_eight_groups():
    """StoCFL, figure 8: 400 clients, two rotations, four label groups, 50 clients of each."""
    origin = source(2000, 40, num_classes=10)
    base = skews.pathological(origin, num_clients=400)
    fed = data.rotate(base, angles=(0, 180))
    assert np.bincount(fed.group).tolist() == [50] * 8
    assert fed.name == "rotated+pathological-made" and fed.group_names[2:4] == ("labels 3, 4; 0°", "labels 3, 4; 180°")
    np.testing.assert_array_equal(fed.group // 2, base.group)
    np.testing.assert_array_equal(fed.rotation, 2 * (fed.group % 2))
    np.testing.assert_array_equal(fed.train.rows, base.train.rows)
    device = jax.device_put(fed)
    for client in (0, 1, 399):
        x = device.batch(device.train, jnp.int32(client), jnp.arange(2)).x
        rows = rows_of(fed.train, client)[:2]
        np.testing.assert_array_equal(x, np.rot90(origin.inputs[rows], fed.rotation[client], axes=(1, 2)))


def test_rotations_and_shifts_multiply_and_add_up():
    fed = data.rotate(
        data.relabel(data.rotated(source(), num_clients=16, angles=(0, 90)), shifts=(0, 3)), angles=(0, 45)
    )
    assert len(fed.group_names) == 8 and np.bincount(fed.group).tolist() == [2] * 8
    names = [fed.group_names[group] for group in fed.group]
    for client, name in enumerate(names):
        first, shift, second = name.split("; ")
        angle = float(first[:-1]) + float(second[:-1])
        assert angle == 90 * fed.rotation[client] + fed.tilt[client]
        assert shift == f"shift {fed.label_shift[client]}"


def test_a_product_deals_unequal_groups_out_as_evenly_as_can_be():
    fed = skews.iid(source(), num_clients=7)
    assert fed.group is None
    crossed = data.rotate(fed, angles=(0, 90, 180), seed=4)
    assert sorted(np.bincount(crossed.group).tolist()) == [2, 2, 3] and crossed.group_names == ("0°", "90°", "180°")
    other = data.rotate(fed, angles=(0, 90, 180), seed=5)
    assert crossed.group.tolist() != other.group.tolist()
    few = data.relabel(skews.iid(source(), num_clients=2), shifts=(0, 1, 2))
    assert few.group_names == ("shift 0", "shift 1")  # a combination without a client is no group


def test_names_with_a_plus_are_products():
    fed = data.load("rotated+shifted+iid-digits", num_clients=16, angles=(0, 90), shifts=(0, 5))
    assert fed.name == "rotated+shifted+iid-digits" and len(fed.group_names) == 4
    assert data.options("rotated+pathological-mnist")["angles"] == (0, 180)
    assert data.options("rotated+pathological-mnist")["num_clients"] == 400


def made():
    """Eight writers of two sites; the official test rows are theirs, and two more write test rows only."""
    clients = np.repeat([f"w{i}" for i in range(8)], 10)
    test_clients = np.array([f"w{i % 10}" for i in range(30)])
    origin = source(80, 30)
    return data.Source(
        **{
            field: getattr(origin, field)
            for field in ("name", "inputs", "labels", "num_classes", "test_inputs", "test_labels")
        },
        clients=clients,
        test_clients=test_clients,
        client_groups=np.repeat([0, 1], 40),
        group_names=("north", "south"),
    )


NO_GROUPS = pytest.mark.filterwarnings("ignore:.*only rows of the test set")


@NO_GROUPS
def test_makers_keep_their_own_test_rows_and_newcomers_are_held_out():
    origin = made()
    lost = pytest.warns(UserWarning, match=mentions("made", "2 of 10 clients", "group"))
    with lost, pytest.warns(UserWarning, match=mentions("made", "2 of 10 makers", "training rows")):
        fed = natural.writers(origin, test_share=None)
    assert fed.num_clients == 10 and fed.held_out.tolist() == [False] * 8 + [True] * 2
    assert fed.client_names == tuple(f"w{client}" for client in range(10))
    in_bytes = {name: getattr(origin, name).astype("S") for name in ("clients", "test_clients")}
    assert natural.writers(replace(origin, **in_bytes), test_share=0.5).client_names == fed.client_names
    for client in range(10):
        assert set(origin.test_clients[rows_of(fed.test, client) - 80]) == {f"w{client}"}
        assert rows_of(fed.train, client).tolist() == (list(range(10 * client, 10 * client + 10)) if client < 8 else [])
    assert fed.group is None  # of the newcomers nobody knows the site


@NO_GROUPS
def test_makers_test_rows_are_theirs_like_the_others_when_split_anew():
    fed = natural.writers(made(), test_share=0.5, num_clients=None)
    for client in range(8):
        own = np.concatenate([rows_of(fed.train, client), rows_of(fed.test, client)])
        assert sorted(own.tolist()) == [
            *range(10 * client, 10 * client + 10),
            *(80 + client + 10 * np.arange(3)).tolist(),
        ]
    assert fed.held_out is None and len(np.unique(fed.train.rows)) == fed.train.size.sum()


def test_a_site_can_be_a_client():
    fed = natural.writers(made(), by="group")
    assert fed.num_clients == 2 and (fed.train.size + fed.test.size).tolist() == [40, 40] and fed.group is None
    assert fed.client_names == ("north", "south")
    for site in (0, 1):
        own = np.concatenate([rows_of(fed.train, site), rows_of(fed.test, site)])
        assert sorted(own.tolist()) == list(range(40 * site, 40 * site + 40))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "site"}, ("by", "site")),
        ({"by": "group", "test_share": None}, ("test_share", "None")),
        ({"num_clients": 11, "test_share": 0.5}, ("num_clients", 10, 11)),
        ({"min_rows": -1}, ("min_rows", -1)),
        ({"min_rows": 100}, ("min_rows", 100)),
    ],
)
def test_refusals_of_the_natural_partition(options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        natural.writers(made(), **options)
    with pytest.raises(ValueError, match=mentions("made", "groups")):
        natural.writers(source(), by="group")


@NO_GROUPS
def test_makers_of_many_rows_may_keep_some():
    few, whole = (natural.writers(made(), max_rows=most, test_share=0.5) for most in (4, None))
    assert (few.train.size + few.test.size).tolist() == [4] * 8 + [3] * 2
    for client in range(10):
        own, all_of_them = (np.r_[rows_of(fed.train, client), rows_of(fed.test, client)] for fed in (few, whole))
        assert set(own) < set(all_of_them) or len(all_of_them) == 3
    with pytest.raises(ValueError, match=mentions("max_rows", 2, 3, "min_rows")):
        natural.writers(made(), min_rows=3, max_rows=2)


@NO_GROUPS
@pytest.mark.filterwarnings("ignore:.*2 of 10 makers have no training rows")
def test_makers_with_training_rows_are_never_held_out():
    """However few rows they keep, and however many test rows there are to choose from."""
    origin = source(8, 120)
    makers = {"clients": np.arange(8), "test_clients": np.arange(120) % 10}
    origin = replace(origin, **makers, client_groups=np.arange(8) % 2, group_names=("one", "two"))
    for most in (2, 5, None):
        fed = natural.writers(origin, test_share=None, max_rows=most)
        assert fed.held_out.tolist() == [False] * 8 + [True] * 2
        assert [rows_of(fed.train, client).tolist() for client in range(8)] == [[client] for client in range(8)]
        sizes = fed.train.size + fed.test.size
        assert sizes.tolist() == ([13] * 8 + [12] * 2 if most is None else [most] * 10)


@NO_GROUPS
def test_test_rows_that_no_maker_keeps_are_told():
    origin = replace(source(8, 16), clients=np.arange(8), test_clients=np.arange(16) % 8)
    with pytest.warns(UserWarning, match=mentions("max_rows=1", "8 of 8 makers", "test rows")):
        fed = natural.writers(origin, max_rows=1, min_rows=1)
    assert not fed.test.size.any() and fed.train.size.all()


def test_dirichlet_clients_of_many_rows_may_keep_some():
    options = {"num_clients": 6, "alpha": 0.3, "min_rows": 2}
    few, whole = (skews.dirichlet(source(), max_rows=most, **options) for most in (5, None))
    sizes = [fed.train.size + fed.test.size for fed in (few, whole)]
    assert sizes[1].max() > 5 and sizes[0].tolist() == np.minimum(sizes[1], 5).tolist()
    with pytest.raises(ValueError, match=mentions("max_rows", 1, "min_rows")):
        skews.dirichlet(source(), max_rows=1, **options)


def test_groups_of_classes_have_the_names_of_their_numbers():
    source = domains.negative(data.sources.load("digits"))
    groups = np.where(np.arange(10) < 5, 3, 1)
    source = replace(source, class_groups=groups, class_group_names=("none", "large", "odd", "small"))
    made = skews.pathological(source, num_clients=2, rows_per_client=20)
    assert made.group_names == ("large", "small")
    labels = [np.asarray(made.labels)[made.train.rows[start : start + 5]] for start in made.train.start]
    assert all((labels[client] >= 5).all() == (made.group_names[made.group[client]] == "large") for client in (0, 1))


def test_a_negative_of_brighter_test_images_is_dark():
    source = data.sources.load("digits")
    test = np.full((3, 8, 8), 200, source.inputs.dtype)
    turned = domains.negative(replace(source, test_inputs=test, test_labels=np.zeros(3, int)))
    assert turned.test_inputs.max() == 0 and turned.inputs.min() == 200 - source.inputs.max()


def test_a_shift_that_no_client_has_is_told():
    """Four groups of one client each get the first shift, and there are four."""
    with pytest.warns(UserWarning, match=mentions("corrupted+coloured-digits", "contrast 3")):
        fed = data.load("corrupted+coloured-digits", num_clients=4, rows_per_client=20)
    assert fed.group.tolist() == [0, 1, 2, 3]
