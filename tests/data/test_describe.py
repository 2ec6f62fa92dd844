"""A federation in numbers agrees with a slow walk over its clients, for shared, overlapping and empty ranges."""

import json
import time

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxfl import data
from jaxfl.data.clients import Split
from jaxfl.data.describe import describe, histogram, label_counts

CLASSES, POOL = 5, 30


def federation(seed, num_clients, **more):
    """Returns clients with random ranges of a random order of rows: some empty, some shared, some overlapping."""
    random = np.random.default_rng(seed)

    def split(low, high):
        rows = random.integers(low, high, 40).astype(np.int32)
        start = random.integers(0, 30, num_clients).astype(np.int32)
        size = random.integers(0, 11, num_clients).astype(np.int32)
        start[::3], size[::3] = start[0], size[0]
        return Split(rows, start, size, int(size.max()))

    inputs = random.normal(size=(POOL, 3)).astype(np.float32)
    options = {"num_classes": CLASSES, "check_repeats": False} | more  # a client may have a row twice here
    return data.federate(inputs, random.integers(0, CLASSES, POOL), split(0, 20), split(20, POOL), **options)


def own_rows(split, client):
    return split.rows[split.start[client] : split.start[client] + split.size[client]]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.integers(1, 12), st.booleans())
def test_counts_are_those_of_every_client(seed, num_clients, shifted):
    shift = np.random.default_rng(seed + 1).integers(0, CLASSES, num_clients) if shifted else None
    fed = federation(seed, num_clients, label_shift=shift)
    for name, split in (("train", fed.train), ("test", fed.test)):
        counts = label_counts(fed, name)
        assert counts.shape == (num_clients, CLASSES)
        for client in range(num_clients):
            seen = (fed.labels[own_rows(split, client)] + (shift[client] if shifted else 0)) % CLASSES
            assert counts[client].tolist() == np.bincount(seen, minlength=CLASSES).tolist()


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.integers(1, 12))
def test_rows_are_counted_once_where_clients_share_them(seed, num_clients):
    fed = federation(seed, num_clients)
    found = describe(fed)
    for sizes, split in ((found.train, fed.train), (found.test, fed.test)):
        parts = [own_rows(split, client) for client in range(num_clients)]
        assert sizes["rows"] == sum(map(len, parts))
        assert sizes["distinct"] == len(set(np.concatenate(parts).tolist()))
        assert (sizes["min"], sizes["max"]) == (min(map(len, parts)), max(map(len, parts)))
        assert sizes["median"] == np.median([len(part) for part in parts])
    assert found.empty_clients == sum(len(own_rows(fed.train, client)) == 0 for client in range(num_clients))


def test_labels_as_the_clients_see_them():
    fed = data.load("shifted-digits", num_clients=4, rows_per_client=100)
    parts = [fed.batch(fed.train, client, jnp.arange(100)).y for client in range(4)]
    assert label_counts(fed).tolist() == [np.bincount(part, minlength=10).tolist() for part in parts]


def test_description_is_plain_and_complete():
    group = np.array([2, 0, 2, 2])
    fed = federation(3, 4, group=group, group_names=("a", "b", "c"), held_out=np.array([True, False, False, False]))
    found = describe(fed)
    again = json.loads(json.dumps(found._asdict()))
    assert again == found._asdict()
    assert (found.num_clients, found.num_rows, found.input_shape, found.input_dtype) == (4, POOL, [3], "float32")
    assert found.pool_bytes == POOL * (3 * 4 + 4) and found.held_out_clients == 1
    assert [(one["name"], one["clients"]) for one in found.groups] == [("a", 1), ("c", 3)]
    assert [one["train_rows"] for one in found.groups] == [int(fed.train.size[group == one].sum()) for one in (0, 2)]
    nameless = describe(federation(3, 4, group=group)).groups
    assert [(one["name"], one["clients"]) for one in nameless] == [("group 0", 1), ("group 2", 3)]
    seen = set(fed.labels[np.concatenate([own_rows(s, c) for s in (fed.train, fed.test) for c in range(4)])].tolist())
    assert found.classes_present == len(seen) and describe(federation(3, 4)).groups == []


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=30))
def test_histograms_count_everyone_in_a_few_bins(sizes):
    edges, counts = histogram(np.array(sizes)).values()
    assert sum(counts) == len(sizes) and len(edges) == len(counts) + 1 <= 22
    assert edges == sorted(set(edges)) and edges[0] <= min(sizes) and max(sizes) < edges[-1]
    for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
        assert count == sum(low <= size < high for size in sizes)


@pytest.mark.parametrize(
    ("sizes", "edges"),
    [
        ([80] * 40, [80, 81]),
        ([3, 7], [3, 4, 5, 6, 7, 8]),
        ([15, 104], [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110]),
        ([20, 4884], [20, 50, 100, 200, 500, 1000, 2000, 5000]),  # 20 times as many: the bins grow
        ([0, 12], [0, 1, 12, 13]),
        ([0, 0], [0, 1]),
    ],
)
def test_edges_are_round(sizes, edges):
    assert histogram(np.array(sizes))["edges"] == edges


def test_ten_thousand_clients_take_a_moment():
    sizes = np.full(10_000, 20, np.int32)
    split = Split(np.arange(200_000, dtype=np.int32), np.arange(0, 200_000, 20, dtype=np.int32), sizes, 20)
    labels = np.arange(200_000) % 62
    fed = data.federate(np.zeros((200_000, 1), np.float32), labels, split, split, num_classes=62)
    begin = time.perf_counter()
    assert describe(fed).train["rows"] == 200_000
    assert time.perf_counter() - begin < 2
