"""Gaps by their definitions, what their sign promises, and theorem 1's bound in the plane where it is attained."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jaxfl.clustering import distances, linkage
from jaxfl.clustering.components import threshold_components
from jaxfl.clustering.gaps import (
    gap_all_pairs,
    gap_bipartition,
    intra_bound,
    is_correct_split,
    max_gamma,
)

CLIENTS = 8  # one size, one compilation
seeds = st.integers(0, 10_000)
groups = st.lists(st.integers(-1, 2), min_size=CLIENTS, max_size=CLIENTS).map(np.array)
gammas = st.floats(0, 1)
both = pytest.mark.parametrize("gap", [gap_all_pairs, gap_bipartition])


def cosines(seed, group=None, apart=0.0):
    """A cosine matrix `[N, N]` of random rows; those of a group lean in one direction."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(CLIENTS, 6))
    if group is not None:
        rows += apart * rng.normal(size=(3, 6))[group]
    return np.asarray(distances.cosine(jnp.asarray(rows, jnp.float32)))


def blocks(group, intra, cross):
    group = np.asarray(group)
    matrix = np.where(group[:, None] == group[None, :], intra, cross).astype(np.float32)
    np.fill_diagonal(matrix, 1)
    return matrix


def pairs(group):
    """Which pairs are within a group and which are across, by loops."""
    within = [(i, j) for i in range(len(group)) for j in range(i) if group[i] == group[j] >= 0]
    across = [
        (i, j) for i in range(len(group)) for j in range(i) if group[i] != group[j] and min(group[i], group[j]) >= 0
    ]
    return within, across


def partition(labels):
    labels = np.asarray(labels)
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in np.unique(labels)}


def of(gap, similarity, group):
    return float(gap(jnp.asarray(similarity), jnp.asarray(group)))


@both
@given(intra=st.floats(-1, 1, width=32), cross=st.floats(-1, 1, width=32), count=st.integers(2, 3))
def test_blocks_have_the_difference_as_their_gap(gap, intra, cross, count):
    group = np.arange(CLIENTS) % count
    assume(intra >= cross or gap is gap_all_pairs)  # or the best split is another one
    assert of(gap, blocks(group, intra, cross), group) == pytest.approx(intra - cross, abs=1e-6)


@given(seed=seeds, group=groups)
def test_all_pairs_is_its_definition(seed, group):
    similarity = cosines(seed)
    within, across = pairs(group)
    expected = min((similarity[pair] for pair in within), default=np.inf) - max(
        (similarity[pair] for pair in across), default=-np.inf
    )
    assert of(gap_all_pairs, similarity, group) == np.float32(expected)


@given(seed=seeds, group=groups)
def test_negated_distances_give_gap2(seed, group):
    far = np.random.default_rng(seed).uniform(1, 2, (CLIENTS, CLIENTS)).astype(np.float32)
    far = np.maximum(far, far.T)
    np.fill_diagonal(far, 0)
    within, across = pairs(group)
    assume(within and across)
    expected = min(far[pair] for pair in across) - max(far[pair] for pair in within)
    assert of(gap_all_pairs, -far, group) == pytest.approx(expected, abs=1e-6)


@given(seed=seeds, apart=st.floats(0, 4))
def test_all_pairs_is_positive_exactly_if_some_threshold_makes_the_true_pairs(seed, apart):
    group = np.array([0, 0, 0, 1, 1, 1, 2, 2])
    similarity = cosines(seed, group, apart)
    other = ~np.eye(CLIENTS, dtype=bool)
    same = (group[:, None] == group[None, :])[other]
    thresholds = [level for level in similarity[other] if ((similarity[other] >= level) == same).all()]
    assert (of(gap_all_pairs, similarity, group) > 0) == bool(thresholds)
    if thresholds:
        assert partition(threshold_components(jnp.asarray(similarity), thresholds[0])) == partition(group)
        for method in ("single", "complete", "average"):
            tree = linkage.linkage(jnp.asarray(-similarity), method)
            assert partition(linkage.cut_by_number(tree, 3)) == partition(group)


def test_both_signs_of_the_gap_occur_above():
    group = np.array([0, 0, 0, 1, 1, 1, 2, 2])
    assert of(gap_all_pairs, cosines(0, group, 4.0), group) > 0 > of(gap_all_pairs, cosines(0, group, 0.0), group)


def test_a_chain_is_found_by_single_linkage_though_its_gap_is_negative():
    group = np.array([0, 0, 0, 1])
    similarity = np.array([[1, 0.9, 0, 0.1], [0.9, 1, 0.9, 0.1], [0, 0.9, 1, 0.1], [0.1, 0.1, 0.1, 1]], np.float32)
    assert partition(threshold_components(jnp.asarray(similarity), 0.5)) == partition(group)
    assert of(gap_all_pairs, similarity, group) == of(gap_bipartition, similarity, group) == np.float32(-0.1)


@given(seed=seeds, group=groups, apart=st.floats(0, 4))
def test_a_positive_bipartition_gap_tears_no_group_apart(seed, group, apart):
    similarity = cosines(seed, group, apart)
    side, alpha_cross = linkage.bipartition(jnp.asarray(similarity), jnp.asarray(group >= 0))
    side = np.asarray(side)
    value, stricter = of(gap_bipartition, similarity, group), of(gap_all_pairs, similarity, group)
    whole = all(len(set(side[group == one].tolist())) == 1 for one in set(group.tolist()) - {-1})
    if value > 0:
        assert whole
    number = len(set(group.tolist()) - {-1})
    if number >= 2:
        assert value >= stricter
        if number == 2 and whole:
            assert value == stricter
    elif number == 1:
        assert value <= 0
    within, _ = pairs(group)
    if within and np.isfinite(alpha_cross):
        assert value == min(similarity[pair] for pair in within) - np.float32(alpha_cross)


@both
@given(seed=seeds, group=groups)
def test_the_order_of_the_clients_and_the_names_of_the_groups_do_not_matter(gap, seed, group):
    similarity = cosines(seed, group, 1.0)
    order = np.random.default_rng(seed).permutation(CLIENTS)
    renamed = np.array([7, 0, 3, -1])[group][order]  # group -1 stays
    assert of(gap, similarity, group) == of(gap, similarity[np.ix_(order, order)], renamed)


@both
@given(seed=seeds, group=groups)
def test_unknown_clients_are_as_if_absent(gap, seed, group):
    similarity = cosines(seed)
    spoilt = similarity.copy()
    spoilt[group < 0], spoilt[:, group < 0] = np.nan, np.nan
    assert of(gap, spoilt, group) == of(gap, similarity, group)
    group[:3] = [2, -1, 2]
    others = np.arange(CLIENTS) != 1
    group = np.where(others, np.abs(group), -1)
    assert of(gap, similarity, group) == of(gap, similarity[np.ix_(others, others)], group[others])


@pytest.mark.parametrize(
    ("group", "all_pairs", "bipartition"),
    [
        pytest.param([0, 0, 0, 0], np.inf, -0.5, id="one group"),
        pytest.param([0, 1, 2, 3], np.inf, np.inf, id="groups of one"),
        pytest.param([-1, 4, -1, -1], np.inf, -np.inf, id="one client"),
        pytest.param([-1, -1, -1, -1], np.inf, -np.inf, id="nobody"),
    ],
)
def test_nothing_to_compare(group, all_pairs, bipartition):
    similarity = np.full((4, 4), 0.75, np.float32)
    similarity[0, 1] = similarity[1, 0] = 0.25
    assert of(gap_all_pairs, similarity, group) == all_pairs
    assert of(gap_bipartition, similarity, group) == bipartition


@both
def test_nan_is_similar_to_nobody(gap):
    group = [0, 0, 1, 1, 2]
    similarity = blocks(group, 0.75, 0.25)
    similarity[4], similarity[:, 4] = np.nan, np.nan
    # alone in its group it is as far from all others as can be: the others decide, unless it is the best split
    assert of(gap, similarity, group) == (0.5 if gap is gap_all_pairs else np.inf)
    assert of(gap, similarity, [0, 0, 1, 1, 1]) == -np.inf
    assert of(gap, np.full((5, 5), np.nan), group) == -np.inf
    assert of(gap, np.full((5, 5), np.nan), np.arange(5)) == np.inf


@both
def test_the_diagonal_is_ignored(gap):
    group = np.arange(CLIENTS) % 2
    similarity = cosines(1, group, 2.0)
    other = similarity.copy()
    np.fill_diagonal(other, np.nan)
    assert of(gap, similarity, group) == of(gap, other, group)


@both
def test_maps_over_leading_axes(gap):
    group = np.arange(CLIENTS) % 3
    matrices = np.stack([cosines(seed, group, 2.0) for seed in range(6)]).reshape(2, 3, CLIENTS, CLIENTS)
    mapped = jax.vmap(jax.vmap(gap, (0, None)), (0, None))(jnp.asarray(matrices), jnp.asarray(group))
    assert mapped.shape == (2, 3) and mapped.dtype == jnp.float32
    np.testing.assert_array_equal(
        mapped.ravel(), [of(gap, one, group) for one in matrices.reshape(6, CLIENTS, CLIENTS)]
    )


@both
def test_float64_is_kept_and_half_precision_is_not(gap):
    group = np.array([0, 0, 1, 1])
    with jax.enable_x64(True):
        value = gap(jnp.asarray(blocks(group, 0.5, 0.25).astype(np.float64) + 1e-12 * (group == 0)), jnp.asarray(group))
        assert value.dtype == jnp.float64
    assert gap(jnp.asarray(blocks(group, 0.5, 0.25), jnp.bfloat16), jnp.asarray(group)) == jnp.float32(0.25)


@both
def test_shapes_are_checked(gap):
    for similarity, group in (
        (np.ones((3, 3)), np.zeros(2, int)),
        (np.ones((3, 2)), np.zeros(3, int)),
        (np.ones(3), np.zeros(3, int)),
    ):
        with pytest.raises(AssertionError):
            gap(jnp.asarray(similarity, jnp.float32), jnp.asarray(group))


def cosine(a, b):
    return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))


def tangent(gamma, side):
    """The error of norm gamma that turns the first unit vector as far as it can: square on what it leaves."""
    angle = np.arcsin(gamma)
    return gamma * np.array([-np.sin(angle), side * np.cos(angle)])


@given(gamma_i=st.floats(0, 0.99), gamma_j=st.floats(0, 0.99))
def test_the_bound_is_attained(gamma_i, gamma_j):
    unit = np.array([1.0, 0.0])
    attained = cosine(unit + tangent(gamma_i, 1), unit + tangent(gamma_j, -1))
    assert float(intra_bound(gamma_i, gamma_j)) == pytest.approx(attained, abs=1e-5)


@given(seed=seeds, gamma_i=gammas, gamma_j=gammas)
def test_no_errors_of_these_norms_go_below_the_bound(seed, gamma_i, gamma_j):
    rng = np.random.default_rng(seed)
    unit, *errors = (row / np.linalg.norm(row) for row in rng.normal(size=(3, 3)))
    found = cosine(unit + gamma_i * errors[0], unit + gamma_j * errors[1])
    bound = float(intra_bound(gamma_i, gamma_j))
    assert found >= bound - 1e-5
    assert bound >= 1 - 2 * max(gamma_i, gamma_j) ** 2 - 1e-5  # equation 19
    assert float(intra_bound(gamma_j, gamma_i)) == bound


def test_equal_gammas_and_what_lies_outside():
    gamma = np.linspace(0, 1, 11)
    matrix = np.asarray(intra_bound(jnp.asarray(gamma)[:, None], jnp.asarray(gamma)[None, :]))
    assert matrix.shape == (11, 11)
    np.testing.assert_allclose(np.diag(matrix), 1 - 2 * gamma**2, atol=1e-6)
    assert (np.diff(matrix, axis=1) <= 0).all()  # more noise promises less
    assert intra_bound(1.5, jnp.array([0.0, 0.5, 2.0])).tolist() == [-1, -1, -1]


@given(angle=st.floats(0, np.pi))
def test_max_gamma_is_the_sine_of_half_the_angle(angle):
    assert float(max_gamma(np.cos(angle))) == pytest.approx(np.sin(angle / 2), abs=1e-3)  # float32 cosines near 1
    assert max_gamma(jnp.array([-jnp.inf, -1.5, 1.5, jnp.inf])).tolist() == [1, 1, 0, 0]


@given(alpha_cross=st.floats(-1, 1), gamma_max=gammas)
def test_theorem_1_compares_with_the_bound(alpha_cross, gamma_max):
    assume(abs(alpha_cross - (1 - 2 * gamma_max**2)) > 1e-5)
    correct = bool(is_correct_split(alpha_cross, gamma_max))
    assert correct == (alpha_cross < float(intra_bound(gamma_max, gamma_max)))
    assert correct == (float(max_gamma(alpha_cross)) > gamma_max)


def test_theorem_1_refuses_to_split_one_member_and_takes_arrays():
    _, alpha_cross = linkage.bipartition(jnp.ones((1, 1)), jnp.ones(1, bool))
    assert not is_correct_split(alpha_cross, 0.0)
    assert is_correct_split(jnp.array([0.4, 0.6, -jnp.inf]), jnp.array([0.5, 0.5, 1.0])).tolist() == [True, False, True]


@given(seed=seeds, noise=st.floats(0, 0.9))
def test_a_split_that_passes_theorem_1_tears_no_group_apart(seed, noise):
    rng = np.random.default_rng(seed)
    group = np.arange(CLIENTS) % 2
    centres = np.eye(2, 4)[group] * rng.choice([-1, 1], (2, 1))[group]
    errors = rng.normal(size=(CLIENTS, 4))
    gamma = noise * rng.uniform(size=(CLIENTS, 1))
    rows = centres + gamma * errors / np.linalg.norm(errors, axis=1, keepdims=True)
    similarity = distances.cosine(jnp.asarray(rows, jnp.float32))
    side, alpha_cross = linkage.bipartition(similarity, jnp.ones(CLIENTS, bool))
    if is_correct_split(alpha_cross + 1e-5, gamma.max()):
        assert partition(side) == partition(group)
        assert of(gap_bipartition, similarity, group) > 0
