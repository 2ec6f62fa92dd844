"""Greedy merging: against brute force, and what the correction for noise is for."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies

from jaxfl.clustering.agglomerate import agglomerate
from jaxfl.clustering.components import threshold_components

pytestmark = pytest.mark.rotating("function", weeks=3)


def brute_force(gram, own, threshold, alive=None, slack=0.0):
    """Returns the labels of greedy merging that computes every cosine again after every merge, in float64."""
    gram, own = np.array(gram, float), np.array(own, float)
    count = len(own)
    alive = np.ones(count, bool) if alive is None else np.array(alive)
    label = np.where(alive, np.arange(count), -1)
    while True:
        best, pair = -np.inf, None
        for k in range(count):
            for other in range(k + 1, count):
                if not (alive[k] and alive[other] and own[k] > 0 and own[other] > 0):
                    continue
                corrected = np.clip(gram[k, other] / np.sqrt(own[k] * own[other]), -1, 1)
                noise = max(gram[k, k] * gram[other, other] / (own[k] * own[other]) - 1, 0)
                cosine = gram[k, other] / np.sqrt(gram[k, k] * gram[other, other])
                if corrected >= threshold - min(slack * np.sqrt(noise), abs(threshold) / 2) and cosine > best:
                    best, pair = cosine, (k, other)
        if pair is None:
            return label
        k, gone = pair
        own[k] += own[gone] + 2 * gram[k, gone]
        power = gram[k, k] + gram[gone, gone] + 2 * gram[k, gone]
        gram[k] += gram[gone]
        gram[:, k] = gram[k]
        gram[k, k] = power
        alive = alive & (np.arange(count) != gone)
        label[label == gone] = k


def noisy_groups(seed, groups=4, members=30, size=400, noise=1.4):
    """Returns Psi of clients in groups `[N, size]`, of norm 1, the share of signal in its square, and the groups."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(groups, size)) / np.sqrt(size)
    group = rng.permutation(np.repeat(np.arange(groups), members))
    psi = means[group] + noise * rng.normal(size=(len(group), size)) / np.sqrt(size)
    return psi / np.linalg.norm(psi, axis=1, keepdims=True), 1 / (1 + noise**2), group


def same_partition(label, group):
    return np.array_equal(label[:, None] == label[None, :], group[:, None] == group[None, :])


@hypothesis.settings(deadline=None, max_examples=40)
@hypothesis.given(
    seed=strategies.integers(0, 2**31),
    count=strategies.sampled_from([2, 7, 20]),
    size=strategies.sampled_from([2, 3, 8]),
    threshold=strategies.floats(0, 1.1),
    corrected=strategies.booleans(),
    slack=strategies.sampled_from([0.0, 0.1, 0.5]),
)
def test_equals_brute_force(seed, count, size, threshold, corrected, slack):
    rng = np.random.default_rng(seed)
    sums = rng.normal(size=(count, size)) + rng.normal(size=size)
    gram = (sums @ sums.T).astype(np.float32)
    own = (np.diag(gram) * (rng.uniform(-0.1, 1, count) if corrected else 1)).astype(np.float32)
    alive = rng.random(count) < 0.8
    label = agglomerate(jnp.asarray(gram), jnp.asarray(own), threshold, jnp.asarray(alive), slack)
    assert label.dtype == jnp.int32
    assert label.tolist() == brute_force(gram, own, threshold, alive, slack).tolist()


@pytest.mark.parametrize("seed", range(3))
def test_equals_brute_force_where_rows_go_stale(seed):
    psi, share, _ = noisy_groups(seed, groups=3, members=20, size=12, noise=1.0)
    gram = jnp.asarray(psi @ psi.T, jnp.float32)
    own = jnp.full(60, share, jnp.float32)
    assert agglomerate(gram, own, 0.8).tolist() == brute_force(gram, own, 0.8).tolist()


def test_equal_cosines_merge_in_the_order_of_their_indices():
    # four directions at right angles in pairs: 0-1, 0-2, 1-3 and 2-3 have cosine 0.5 each
    gram = jnp.array([[1, 0.5, 0.5, 0], [0.5, 1, 0, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1]])
    own = jnp.ones(4)
    assert agglomerate(gram, own, 0.5).tolist() == [0, 0, 2, 2] == brute_force(gram, own, 0.5).tolist()
    assert agglomerate(jnp.ones((5, 5)), jnp.ones(5), 1.0).tolist() == [0] * 5


def test_judges_merged_clusters_again_where_components_chain():
    angle = jnp.arange(7.0) * 0.9  # neighbours have cosine 0.62, the ends nearly -1
    sums = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)
    gram = sums @ sums.T
    assert threshold_components(gram, 0.6).tolist() == [0] * 7
    assert len(set(agglomerate(gram, jnp.diagonal(gram), 0.6).tolist())) > 2


def test_nodes_that_are_dead_or_without_a_length_merge_with_nobody():
    gram = jnp.ones((5, 5)).at[2].set(jnp.nan).at[:, 2].set(jnp.nan)
    own = jnp.array([1.0, 0.0, 1.0, jnp.nan, 1.0])
    assert agglomerate(gram, own, 0.5).tolist() == [0, 1, 2, 3, 0]
    alive = jnp.array([False, True, True, True, True])
    assert agglomerate(gram, jnp.ones(5), 0.5, alive).tolist() == [-1, 1, 2, 1, 1]
    assert agglomerate(gram, jnp.ones(5), 0.5, jnp.zeros(5, bool)).tolist() == [-1] * 5
    assert agglomerate(gram.at[0, 1].set(jnp.inf).at[1, 0].set(jnp.inf), jnp.ones(5), 2.0).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("count", [0, 1])
def test_has_nothing_to_merge(count):
    assert agglomerate(jnp.ones((count, count)), jnp.ones(count), 0.5).tolist() == list(range(count))


def test_above_one_nothing_merges_and_at_minus_one_everything():
    sums = jax.random.normal(jax.random.key(0), (9, 4)) + 1
    gram = sums @ sums.T
    own = jnp.diagonal(gram)
    assert agglomerate(gram, own / 10, 1.01).tolist() == list(range(9))  # corrected cosines above 1 count as 1
    assert agglomerate(gram, own, -1.0).tolist() == [0] * 9


@pytest.mark.parametrize("noise", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_one_threshold_finds_the_groups_whatever_the_noise(noise, seed):
    psi, share, group = noisy_groups(seed, noise=noise)
    gram = jnp.asarray(psi @ psi.T, jnp.float32)
    found = agglomerate(gram, jnp.full(len(group), share, jnp.float32), 0.65, slack=0.1)
    assert same_partition(np.asarray(found), group)
    if noise == 2:
        plain = agglomerate(gram, jnp.diagonal(gram), 0.65)
        assert len(set(plain.tolist())) > 4


def test_a_sum_of_nodes_stands_for_them():
    psi, share, group = noisy_groups(3)
    first = np.arange(len(group)) < 60
    nodes = np.concatenate([[psi[first & (group == k)].sum(0) for k in range(4)], psi[~first]])
    gram = nodes @ nodes.T
    members = np.concatenate([np.bincount(group[first], minlength=4), np.ones_like(group[~first])])
    own = np.diag(gram) - (1 - share) * members
    found = agglomerate(jnp.asarray(gram, jnp.float32), jnp.asarray(own, jnp.float32), 0.65, slack=0.1)
    assert found.tolist() == [0, 1, 2, 3, *group[~first]]


def test_slack_is_for_noisy_nodes_only():
    gram = jnp.array([[1.0, 0.6], [0.6, 1.0]])
    assert agglomerate(gram, jnp.ones(2), 0.65, slack=0.1).tolist() == [0, 1]
    noisy = jnp.array([[2.0, 0.6], [0.6, 2.0]])  # sqrt(2 * 2 / 1 - 1) * 0.1 is 0.17
    assert agglomerate(noisy, jnp.ones(2), 0.65, slack=0.1).tolist() == [0, 0]
    assert agglomerate(noisy / 2, jnp.ones(2) / 2, 0.65, slack=0.0).tolist() == [0, 1]
    hopeless = jnp.array([[1.0, 0.003], [0.003, 1.0]])
    assert agglomerate(hopeless, jnp.full(2, 0.01), 0.65, slack=0.1).tolist() == [0, 1]  # at most half is let off
