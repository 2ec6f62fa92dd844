import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from jaxfl.clustering import scores
from tests.messages import mentions

LABELS = st.lists(st.tuples(st.integers(-1, 4), st.integers(-1, 4)), min_size=1, max_size=30)
SCORES = [scores.adjusted_rand_index, scores.normalized_mutual_information, scores.purity]


@given(labels=LABELS)
def test_equal_to_scikit_learn(labels):
    a, b = np.array(labels).T
    with warnings.catch_warnings():
        # scikit-learn suspects a regression where every label occurs once or so
        warnings.simplefilter("ignore", UserWarning)
        np.testing.assert_allclose(scores.adjusted_rand_index(a, b), metrics.adjusted_rand_score(a, b), atol=1e-12)
        np.testing.assert_allclose(
            scores.normalized_mutual_information(a, b), metrics.normalized_mutual_info_score(a, b), atol=1e-7
        )
        table = metrics.cluster.contingency_matrix(a, b)
        counts, row, column = scores.contingency(a, b)
        np.testing.assert_array_equal(counts, table[row, column])
        assert counts.sum() == table.sum() and len(counts) == np.count_nonzero(table)


@given(labels=LABELS, seed=st.integers(0, 1000))
def test_names_and_order_of_clients_do_not_matter(labels, seed):
    a, b = np.array(labels).T
    rng = np.random.default_rng(seed)
    names = rng.permutation(6) * 7 - 3
    order = rng.permutation(len(a))
    for score in SCORES:
        assert score(a, b) == pytest.approx(score(names[a + 1][order], b[order]), abs=1e-12)


@given(labels=LABELS)
def test_equal_partitions_score_one(labels):
    a = np.array(labels)[:, 0]
    for score in SCORES:
        assert score(a, 10 - a) == pytest.approx(1.0)


@given(labels=LABELS)
def test_purity_by_its_definition(labels):
    truth, found = np.array(labels).T
    hits = sum(max(np.sum(truth[found == c] == g) for g in set(truth.tolist())) for c in set(found.tolist()))
    assert scores.purity(truth, found) == pytest.approx(hits / len(truth))
    assert scores.purity(truth, np.arange(len(truth))) == 1.0


def test_many_clients_do_not_overflow():
    a = np.arange(200_000, dtype=np.int32) % 2
    b = np.arange(200_000, dtype=np.int32) // 100_000
    assert abs(scores.adjusted_rand_index(a, b)) < 1e-4
    assert scores.adjusted_rand_index(a, a) == 1.0


def test_many_labels_take_no_table_of_all_pairs():
    pairs = np.arange(200_000) // 2
    assert scores.purity(pairs, np.arange(200_000)) == 1.0
    assert scores.adjusted_rand_index(pairs, pairs[::-1]) == 1.0
    assert abs(scores.adjusted_rand_index(pairs, np.roll(pairs, 1))) < 1e-4
    assert scores.normalized_mutual_information(pairs, np.arange(200_000)) > 0.97


def test_jax_arrays_and_no_clients():
    assert scores.adjusted_rand_index(jnp.array([0, 0, 1]), jnp.array([4, 4, 2])) == 1.0
    for score in SCORES:
        assert score([], []) == 1.0


def test_errors_name_the_shapes():
    for score in SCORES:
        with pytest.raises(ValueError, match=mentions("(2,)", "(3,)")):
            score([0, 1], [0, 1, 2])
