import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster import hierarchy
from scipy.spatial.distance import pdist, squareform
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score

from jaxfl.clustering import merging
from jaxfl.clustering.linkage import bipartition, cut_by_number, cut_by_threshold, linkage
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=6)

METHODS = ("single", "complete", "average", "ward")
SIZES = (7, 24)  # few sizes, few compilations
seeds = st.integers(0, 10_000)


def points(seed, count, features=3):
    return np.random.default_rng(seed).normal(size=(count, features))


def euclidean(rows):
    """Float32 distances, so that SciPy's float64 sees the same numbers."""
    return squareform(pdist(rows)).astype(np.float32)


def cosines(seed, count, features=4):
    rows = points(seed, count, features)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    similarity = (rows @ rows.T).astype(np.float32)
    return np.maximum(similarity, similarity.T)


def merged(matrix, method):
    return np.asarray(linkage(jnp.asarray(matrix), method), np.float64)


def condensed(matrix):
    return squareform(np.asarray(matrix, np.float64), checks=False)


def partition(labels):
    """The clusters as a set of sets, whatever they are called."""
    labels = np.asarray(labels)
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in np.unique(labels)}


def assert_a_valid_tree(tree, count):
    assert hierarchy.is_valid_linkage(tree) and hierarchy.is_monotonic(tree)
    assert (tree[:, 0] < tree[:, 1]).all()
    assert sorted(tree[:, :2].ravel().tolist()) == list(range(2 * count - 2))  # every cluster merges once
    assert tree[-1, 3] == count


@pytest.mark.parametrize("method", (*METHODS, "weighted"))
@given(seed=seeds, count=st.sampled_from(SIZES))
def test_equals_scipy_without_ties(method, seed, count):
    matrix = euclidean(points(seed, count))
    tree, expected = merged(matrix, method), hierarchy.linkage(condensed(matrix), method)
    assert_a_valid_tree(tree, count)
    np.testing.assert_array_equal(tree[:, [0, 1, 3]], expected[:, [0, 1, 3]])
    # single and complete choose among the distances; the others round a mean at every merge
    np.testing.assert_allclose(tree[:, 2], expected[:, 2], rtol=0 if method in ("single", "complete") else 1e-5)


@pytest.fixture
def packing(monkeypatch):
    """Matrices are packed from a size on that no other test has: what is compiled here is used nowhere else."""
    monkeypatch.setattr(merging, "LEAST_PACKED", 40)
    return 40


@pytest.mark.parametrize("method", METHODS[1:])  # single linkage packs nothing
def test_equals_scipy_on_a_matrix_that_is_packed_on_the_way(method, packing):
    count = 2 * packing + 1
    matrix = euclidean(points(0, count, 8))
    tree, expected = merged(matrix, method), hierarchy.linkage(condensed(matrix), method)
    assert_a_valid_tree(tree, count)
    np.testing.assert_allclose(hierarchy.cophenet(tree), hierarchy.cophenet(expected), rtol=1e-4)
    for number in (2, 5, 40):
        assert partition(cut_by_number(jnp.asarray(tree), number)) == partition(
            hierarchy.cut_tree(expected, number)[:, 0]
        )


@given(seed=seeds, count=st.sampled_from(SIZES))
def test_single_linkage_equals_scipy_under_ties_and_duplicates(seed, count):
    # Integer distances with many ties and zeros. Single linkage is unique whatever the order of ties.
    matrix = euclidean(np.random.default_rng(seed).integers(0, 3, size=(count, 2)))
    tree, expected = merged(matrix, "single"), hierarchy.linkage(condensed(matrix), "single")
    assert_a_valid_tree(tree, count)
    np.testing.assert_array_equal(tree[:, 2], expected[:, 2])
    np.testing.assert_array_equal(hierarchy.cophenet(tree), hierarchy.cophenet(expected))


DISTANCE_BETWEEN = {
    "complete": lambda matrix, a, b: matrix[np.ix_(a, b)].max(),
    "average": lambda matrix, a, b: matrix[np.ix_(a, b)].mean(),
}


@pytest.mark.parametrize("method", DISTANCE_BETWEEN)
@given(seed=seeds, count=st.sampled_from(SIZES))
def test_every_merge_is_of_the_nearest_clusters_under_ties_and_duplicates(method, seed, count):
    # Ties make the tree ambiguous, so each row is held against the definition, from the points up.
    matrix = euclidean(np.random.default_rng(seed).integers(0, 3, size=(count, 2))).astype(np.float64)
    tree = merged(matrix, method)
    assert_a_valid_tree(tree, count)
    clusters = {point: [point] for point in range(count)}
    for row, (left, right, height, size) in enumerate(tree):
        pairs = itertools.combinations(clusters, 2)
        least = min(DISTANCE_BETWEEN[method](matrix, clusters[a], clusters[b]) for a, b in pairs)
        a, b = clusters.pop(int(left)), clusters.pop(int(right))
        assert DISTANCE_BETWEEN[method](matrix, a, b) == pytest.approx(least, rel=1e-5, abs=1e-6)
        assert height == pytest.approx(least, rel=1e-5, abs=1e-6)
        clusters[count + row] = a + b
        assert size == len(a + b)


@pytest.mark.parametrize("method", METHODS)
def test_equal_points_merge_first_and_at_height_zero(method):
    rows = np.repeat(points(1, 6), 4, axis=0)
    tree = jnp.asarray(merged(euclidean(rows), method))
    assert (tree[:18, 2] == 0).all() and (tree[18:, 2] > 0).all()
    assert cut_by_threshold(tree, 0.0).tolist() == np.repeat(np.arange(6), 4).tolist()


@pytest.mark.parametrize("method", METHODS)
def test_a_matrix_of_one_number_still_gives_a_tree(method):
    tree = merged(np.ones((24, 24), np.float32), method)
    assert_a_valid_tree(tree, 24)
    if method != "ward":  # whose heights grow with the clusters
        np.testing.assert_allclose(tree[:, 2], 1, rtol=1e-6)


@pytest.mark.parametrize("method", METHODS)
@given(seed=seeds)
def test_permuting_points_permutes_clusters(method, seed):
    matrix = euclidean(points(seed, 24))
    order = np.random.default_rng(seed).permutation(24)
    labels = np.asarray(cut_by_number(linkage(jnp.asarray(matrix), method), 4))
    permuted = np.asarray(cut_by_number(linkage(jnp.asarray(matrix[np.ix_(order, order)]), method), 4))
    assert partition(permuted) == partition(labels[order])


@pytest.mark.parametrize("method", METHODS)
def test_float64_is_kept(method):
    matrix = squareform(pdist(points(3, 24)))
    with jax.enable_x64(True):
        tree = linkage(jnp.asarray(matrix), method)
        labels = cut_by_threshold(tree, 1.0)
    expected = hierarchy.linkage(squareform(matrix), method)
    assert tree.dtype == jnp.float64 and labels.dtype == jnp.int32
    np.testing.assert_allclose(tree, expected, rtol=1e-12)
    assert partition(labels) == partition(hierarchy.fcluster(expected, 1.0, "distance"))


@pytest.mark.parametrize("method", METHODS)
def test_integers_and_half_precision_are_computed_in_float32(method):
    matrix = np.abs(np.subtract.outer(np.arange(7), np.arange(7)) * 2)
    expected = linkage(jnp.asarray(matrix, jnp.float32), method)
    for dtype in (jnp.int32, jnp.bfloat16):
        tree = linkage(jnp.asarray(matrix, dtype), method)
        assert tree.dtype == jnp.float32
        np.testing.assert_array_equal(tree, expected)


@pytest.mark.parametrize("method", METHODS)
def test_the_diagonal_is_ignored_and_the_matrix_is_left_alone(method):
    matrix = jnp.asarray(euclidean(points(4, 24)))
    before = np.array(matrix)
    other = matrix.at[jnp.arange(24), jnp.arange(24)].set(jnp.nan)
    np.testing.assert_array_equal(linkage(matrix, method), linkage(other, method))
    np.testing.assert_array_equal(matrix, before)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_point_infinitely_far_away_merges_last(method, bad):
    matrix = euclidean(points(5, 7))
    matrix[3], matrix[:, 3] = bad, bad
    tree = merged(matrix, method)
    assert_a_valid_tree(tree, 7)
    keep = [0, 1, 2, 4, 5, 6]
    expected = hierarchy.linkage(condensed(matrix[np.ix_(keep, keep)]), method)
    np.testing.assert_allclose(tree[:5, 2], expected[:, 2], rtol=1e-5)
    assert tree[5, 2] >= (1 - 1e-6) * np.finfo(np.float32).max  # an average of equals may round
    assert partition(cut_by_number(jnp.asarray(tree), 2)) == {frozenset({3}), frozenset(keep)}


@pytest.mark.parametrize("method", METHODS)
def test_an_asymmetric_matrix_ends_in_a_tree(method):
    # A cycle in which everybody's nearest is the next one: chains must end all the same.
    matrix = np.full((24, 24), 2, np.float32)
    matrix[np.arange(24), (np.arange(24) + 1) % 24] = 1
    assert_a_valid_tree(merged(matrix, method), 24)


@pytest.mark.parametrize("method", METHODS)
def test_the_matrix_is_copied_once_at_most(method):
    # A copy within the loop, one for every merge, would need a second buffer; single linkage needs none.
    shape = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    temporary = linkage.lower(shape, method).compile().memory_analysis().temp_size_in_bytes / (512 * 512 * 4)
    assert temporary < 0.25 if method == "single" else 1 <= temporary < 1.25


@pytest.mark.parametrize("method", METHODS)
def test_one_and_two_points(method):
    assert linkage(jnp.zeros((1, 1)), method).shape == (0, 4)
    assert linkage(jnp.array([[0.0, 3.0], [3.0, 0.0]]), method).tolist() == [[0, 1, 3, 2]]
    assert cut_by_number(linkage(jnp.zeros((1, 1)), method), 1).tolist() == [0]
    assert cut_by_threshold(linkage(jnp.zeros((1, 1)), method), 1.0).tolist() == [0]


@given(seed=seeds, number=st.integers(1, 24))
def test_cut_by_number_equals_scipy_and_numbers_by_first_member(seed, number):
    matrix = euclidean(points(seed, 24))
    tree = linkage(jnp.asarray(matrix), "average")
    labels = np.asarray(cut_by_number(tree, number))
    assert partition(labels) == partition(hierarchy.cut_tree(np.asarray(tree, np.float64), number)[:, 0])
    found, first = np.unique(labels, return_index=True)
    assert found.tolist() == list(range(number)) and (np.diff(first) > 0).all()


def test_cut_by_number_stays_within_the_points():
    tree = linkage(jnp.asarray(euclidean(points(0, 7))))
    assert set(np.asarray(cut_by_number(tree, 0)).tolist()) == {0}
    assert cut_by_number(tree, 99).tolist() == list(range(7))


@given(seed=seeds, row=st.integers(0, 22), method=st.sampled_from(("single", "complete")))
def test_threshold_is_inclusive_as_fcluster_and_scikit_learn_is_strict(seed, row, method):
    matrix = euclidean(points(seed, 24))
    tree = linkage(jnp.asarray(matrix), method)
    threshold = tree[row, 2]  # exactly a height
    labels = cut_by_threshold(tree, threshold)
    expected = hierarchy.fcluster(np.asarray(tree, np.float64), float(threshold), "distance")
    assert partition(labels) == partition(expected)
    assert np.unique(labels).size == 24 - 1 - row
    strict = cut_by_threshold(tree, jnp.nextafter(threshold, -jnp.inf))
    model = AgglomerativeClustering(
        n_clusters=None, distance_threshold=float(threshold), metric="precomputed", linkage=method
    )
    assert partition(strict) == partition(model.fit_predict(matrix.astype(np.float64)))
    assert np.unique(strict).size == 24 - row


def test_cuts_take_traced_arguments_and_map():
    tree = linkage(jnp.asarray(euclidean(points(0, 24))), "complete")
    together = jax.vmap(cut_by_number, (None, 0))(tree, jnp.arange(1, 25))
    assert [np.unique(labels).size for labels in together] == list(range(1, 25))
    together = jax.vmap(cut_by_threshold, (None, 0))(tree, tree[:, 2])
    assert [np.unique(labels).size for labels in together] == list(range(23, 0, -1))


def least_cross(similarity):
    """Brute force: the least `max similarity` across over all bipartitions."""
    count = len(similarity)
    splits = np.array(list(itertools.product([False, True], repeat=count - 1)))[1:]
    splits = np.concatenate([np.zeros((len(splits), 1), bool), splits], axis=1)
    across = splits[:, :, None] & ~splits[:, None, :]
    return np.where(across, similarity, -np.inf).max(axis=(1, 2)).min()


def test_single_linkage_attains_brute_force_in_200_of_200_cases():
    similarity = np.stack([cosines(seed, 7) for seed in range(200)])
    everybody = jnp.ones(7, bool)
    attained = {}
    for method in ("single", "complete", "average"):
        split = jax.jit(jax.vmap(lambda matrix, method=method: bipartition(matrix, everybody, linkage=method)))
        side, alpha_cross = (np.asarray(found) for found in split(jnp.asarray(similarity)))
        across = side[:, :, None] & ~side[:, None, :]
        np.testing.assert_array_equal(alpha_cross, np.where(across, similarity, -np.inf).max(axis=(1, 2)))
        assert side.any(axis=1).all() and not side[:, 0].any()
        best = np.array([least_cross(matrix) for matrix in similarity])
        assert (alpha_cross >= best).all()
        attained[method] = int((alpha_cross == best).sum())
    assert attained["single"] == 200
    assert attained["complete"] < 200 and attained["average"] < 200


@pytest.mark.parametrize("method", ["single", "complete", "average"])
@given(seed=seeds, share=st.floats(0.1, 1))
def test_bipartition_of_members_is_that_of_their_own_matrix(method, seed, share):
    similarity = cosines(seed, 24)
    mask = np.random.default_rng(seed).uniform(size=24) < share
    similarity[~mask] = np.nan  # nothing of others may matter
    similarity[:, ~mask] = np.nan
    side, alpha_cross = bipartition(jnp.asarray(similarity), jnp.asarray(mask), linkage=method)
    side, members = np.asarray(side), np.flatnonzero(mask)
    assert not side[~mask].any()
    if members.size < 2:
        assert not side.any() and alpha_cross == np.inf
        return
    own = similarity[np.ix_(members, members)]
    tree = hierarchy.linkage(condensed(1 - own.astype(np.float64)), method)
    assert partition(side[members]) == partition(hierarchy.cut_tree(tree, 2)[:, 0])
    assert not side[members[0]]
    assert alpha_cross == own[np.ix_(side[members], ~side[members])].max()


@pytest.mark.parametrize("method", ["single", "complete", "average"])
def test_bipartition_finds_two_groups_whatever_the_order_and_scale(method):
    group = np.random.default_rng(0).permutation(np.repeat([0, 1], 12))
    rows = np.array([[1.0, 0, 0.2], [0, 1, 0.2]])[group] + 0.1 * points(1, 24)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    similarity = jnp.asarray(unit @ unit.T, jnp.float32)
    for matrix in (similarity, 1e-3 * similarity):
        side, _ = bipartition(matrix, jnp.ones(24, bool), linkage=method)
        assert adjusted_rand_score(group, np.asarray(side)) == 1


@pytest.mark.parametrize("method", ["complete", "average"])
def test_bipartition_packs_only_what_is_left_of_the_members(method, packing):
    similarity = cosines(0, 2 * packing)
    mask = np.zeros(2 * packing, bool)
    for members in (3, packing + 20):  # nothing and something to merge before half of the places are empty
        mask[np.random.default_rng(members).choice(mask.size, members, replace=False)] = True
        side, alpha_cross = bipartition(jnp.asarray(similarity), jnp.asarray(mask), linkage=method)
        side, own = np.asarray(side)[mask], similarity[np.ix_(mask, mask)]
        tree = hierarchy.linkage(condensed(1 - own.astype(np.float64)), method)
        assert partition(side) == partition(hierarchy.cut_tree(tree, 2)[:, 0])
        assert alpha_cross == own[np.ix_(side, ~side)].max()


@pytest.mark.parametrize("method", ["single", "complete", "average"])
def test_bipartition_under_ties_is_proper_and_repeats(method):
    mask = jnp.arange(24) % 3 != 0
    for matrix in (jnp.ones((24, 24)), jnp.zeros((24, 24)), jnp.full((24, 24), jnp.nan)):
        side, alpha_cross = bipartition(matrix, mask, linkage=method)
        again, _ = bipartition(matrix, mask, linkage=method)
        np.testing.assert_array_equal(side, again)
        assert 0 < side.sum() < mask.sum() and not side[1] and not (side & ~mask).any()
        assert alpha_cross == (-jnp.inf if jnp.isnan(matrix).any() else matrix[0, 0])


def test_a_diverged_member_is_split_off():
    similarity = cosines(2, 7)
    similarity[3], similarity[:, 3] = np.nan, np.nan
    for method in ("single", "complete", "average"):
        side, alpha_cross = bipartition(jnp.asarray(similarity), jnp.ones(7, bool), linkage=method)
        assert side.tolist() == [point == 3 for point in range(7)]
        assert alpha_cross == -jnp.inf


def test_errors():
    with pytest.raises(ValueError, match=mentions("method", "median")):
        linkage(jnp.ones((3, 3)), "median")
    with pytest.raises(ValueError, match=mentions("distances", "(0, 0)")):
        linkage(jnp.ones((0, 0)))
    with pytest.raises(ValueError, match=mentions("linkage", "ward")):
        bipartition(jnp.ones((3, 3)), jnp.ones(3, bool), linkage="ward")
    for matrix in (jnp.ones(3), jnp.ones((3, 2))):
        with pytest.raises(AssertionError):
            linkage(matrix)
    with pytest.raises(AssertionError):
        bipartition(jnp.ones((3, 3)), jnp.ones(2, bool))
    with pytest.raises(AssertionError):
        cut_by_number(jnp.ones((3, 3)), 2)
