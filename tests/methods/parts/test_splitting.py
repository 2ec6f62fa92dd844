"""Splitting clusters in two, against plain loops over sets of clients, and what no split depends on."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from jaxfl.clustering import scores
from jaxfl.clustering.distances import cosine
from jaxfl.methods.cfl import splitting

pytestmark = pytest.mark.rotating("function", weeks=3)

SEEDS = st.integers(0, 10**6)
LINKAGES = ("single", "complete", "average")
EVERYBODY, FIRST = jnp.ones(7, bool), jnp.array([True, False, False, False])


def halves(similarity, linkage):
    """Returns the two halves of everybody, that of client 0 first: single linkage by trying all of them."""
    count = len(similarity)
    if linkage != "single":
        distance = squareform(similarity.max() - similarity + 1, checks=False)  # a rise of all changes no merge
        label = hierarchy.fcluster(hierarchy.linkage(distance, linkage), 2, "maxclust")
        return np.flatnonzero(label == label[0]), np.flatnonzero(label != label[0])
    sides = [list(side) for size in range(1, count) for side in itertools.combinations(range(1, count), size)]
    best = min(sides, key=lambda side: np.delete(similarity[side], side, 1).max())
    return np.setdiff1d(np.arange(count), best), np.array(best)


def vectors_of(seed, count=7, length=4):
    return np.random.default_rng(seed).normal(size=(count, length)).astype(np.float32)


def partition(cluster):
    return {frozenset(np.flatnonzero(np.asarray(cluster) == k).tolist()) for k in np.unique(cluster)}


@functools.partial(jax.jit, static_argnames=("linkage", "accept"))
def split(similarity, cluster, comparable, ready, linkage, accept, bound):
    """Compiled once for all bounds."""
    accept = accept if accept is splitting.keep_all else accept(bound)
    return splitting.split(similarity, cluster, comparable, ready, linkage=linkage, accept=accept)


def once(vectors, linkage="single", accept=splitting.keep_all, bound=0.0):
    """Returns the clusters `[7]` after everybody's was split."""
    zeros = jnp.zeros(7, jnp.int32)
    return split(cosine(jnp.asarray(vectors)), zeros, EVERYBODY, FIRST, linkage, accept, bound).cluster


@given(
    seed=SEEDS, linkage=st.sampled_from(LINKAGES), slots=st.sampled_from([3, 5]), gamma_max=st.sampled_from([0.0, 0.4])
)
def test_all_that_are_ready_are_split_once_into_the_lowest_free_slots(seed, linkage, slots, gamma_max):
    rng = np.random.default_rng(seed)
    similarity = np.array(cosine(jnp.asarray(vectors_of(seed, 10))))
    cluster = rng.choice(rng.permutation(slots)[:3], 10).astype(np.int32)
    comparable = rng.random(10) < 0.8
    ready = np.isin(np.arange(slots), cluster) & (rng.random(slots) < 0.8)
    wanted, source, homeless = cluster.copy(), np.arange(slots), 0
    for slot in np.flatnonzero(ready):
        members = np.flatnonzero((cluster == slot) & comparable)
        if len(members) < 2:
            continue
        stay, leave = (members[half] for half in halves(similarity[np.ix_(members, members)], linkage))
        if not np.sqrt((1 - similarity[np.ix_(stay, leave)].max()) / 2) > gamma_max:
            continue
        free = np.setdiff1d(np.arange(slots), wanted)
        if len(free):
            wanted[leave], source[free[0]] = free[0], slot
        else:
            homeless += 1
    arrays = jnp.asarray(similarity), jnp.asarray(cluster), jnp.asarray(comparable), jnp.asarray(ready)
    found = split(*arrays, linkage, splitting.keep_above, gamma_max)
    assert found.cluster.tolist() == wanted.tolist()
    assert found.source.tolist() == source.tolist()
    size = slots
    while size < len(set(wanted)) + homeless:
        size *= 2
    assert slots * 2 ** int(found.doublings) == size
    assert np.flatnonzero(found.opened).tolist() == sorted(set(wanted) - set(cluster))


@given(seed=SEEDS, linkage=st.sampled_from(LINKAGES))
def test_the_length_of_an_update_and_the_order_of_clients_change_no_split(seed, linkage):
    vectors, rng = vectors_of(seed), np.random.default_rng(seed)
    wanted = once(vectors, linkage)
    scaled = (10 ** rng.uniform(-6, 6, 7)).astype(np.float32)[:, None] * vectors
    assert once(scaled, linkage).tolist() == wanted.tolist()
    order = rng.permutation(7)
    assert partition(once(vectors[order], linkage)) == partition(wanted[order])


@given(seed=SEEDS, linkage=st.sampled_from(LINKAGES), times=st.floats(1, 2), near=st.booleans())
def test_a_split_that_stands_out_leaves_nobody_alone(seed, linkage, times, near):
    """And it is kept exactly if the halves are so many times as far apart as the worst of the nearest peers."""
    vectors = vectors_of(seed)
    if near:  # three groups of which one has a single client: others may be split, it may not
        vectors = np.eye(3, 4, dtype=np.float32)[[0, 1, 0, 2, 1, 0, 1]] + 0.1 * vectors
    similarity = np.array(cosine(jnp.asarray(vectors)))
    found = once(vectors, linkage, splitting.keep_above_peers, times)
    best = (similarity - 4 * np.eye(7, dtype=np.float32)).max(1)
    stay, leave = halves(similarity, linkage)
    cross = similarity[np.ix_(stay, leave)].max()
    far, wanted = np.sqrt((1 - np.array([cross, best.min()])) / 2)
    if abs(far - times * wanted) > 1e-5:
        assert len(set(found.tolist())) == (2 if far > times * wanted else 1)
    assert min(len(part) for part in partition(found)) > 1


@pytest.mark.parametrize("linkage", LINKAGES)
@pytest.mark.parametrize(
    ("accept", "bound"), [(splitting.keep_all, 0.0), (splitting.keep_above, 0.5), (splitting.keep_above_peers, 1.1)]
)
def test_two_blocks_are_found_and_one_is_left_whole_where_splits_are_judged(linkage, accept, bound):
    rng = np.random.default_rng(0)
    group = np.array([1, 0, 0, 1, 1, 0, 1])
    noise = 0.2 * rng.normal(size=(7, 4))
    found = once((np.eye(2, 4)[group] + noise).astype(np.float32), linkage, accept, bound)
    assert scores.adjusted_rand_index(group, found) == 1
    left = once((np.eye(2, 4)[0 * group] + noise).astype(np.float32), linkage, accept, bound)
    assert len(set(left.tolist())) == (2 if accept is splitting.keep_all else 1)


def as_they_are(times):
    return splitting.keep_above_peers(times, jnp.negative)


def test_distances_stand_out_as_they_are():
    places = np.array([0.0, 1.0, 3.5, 4.5, 2.0, 0.5, 5.0], np.float32)
    similarity = -np.abs(places[:, None] - places[None, :])  # nearest peers: 1 apart; the halves: 1.5
    for times, number in ((1.4, 2), (1.6, 1)):
        after = split(similarity, np.zeros(7, np.int32), EVERYBODY, FIRST, "single", as_they_are, times)
        assert len(set(after.cluster.tolist())) == number


def test_without_a_free_slot_nothing_changes_but_the_word_of_it():
    similarity, full = cosine(jnp.asarray(vectors_of(0))), jnp.array([0, 1, 2, 3, 0, 1, 2], jnp.int32)
    for ready, doublings in (([True] * 4, 1), ([False, False, False, True], 0)):  # slot 3 has a single client
        after = split(similarity, full, EVERYBODY, jnp.array(ready), "single", splitting.keep_all, 0.0)
        assert int(after.doublings) == doublings
        assert after.cluster.tolist() == full.tolist() and not after.opened.any()
