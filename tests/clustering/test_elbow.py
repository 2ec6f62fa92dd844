"""The elbow of a curve against the largest distance below its chord."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxfl.clustering.elbow import chord_elbow

NEAREST = np.array([0.1, 0.1, 0.15, 0.2, 0.2, 3.8]) / 9  # of 0, 0.1, 0.25, 5, 5.2 and 9


def test_the_worked_example_whatever_follows_the_curve():
    assert int(chord_elbow(jnp.asarray(NEAREST, jnp.float32), 6)) == 4
    longer = np.concatenate([NEAREST, [np.inf, np.inf]])
    assert int(chord_elbow(jnp.asarray(longer, jnp.float32), 6)) == 4


@pytest.mark.parametrize("seed", range(4))
def test_the_elbow_is_farthest_from_the_chord(seed):
    curve = np.sort(np.random.default_rng(seed).exponential(size=30))
    ends = np.array([29, curve[-1] - curve[0]])
    away = (np.arange(30) * ends[1] - (curve - curve[0]) * ends[0]) / np.linalg.norm(ends)
    assert int(chord_elbow(jnp.asarray(curve, jnp.float32), 30)) == away.argmax()


def test_a_level_line_ends_at_its_last_place_and_one_place_is_the_elbow():
    assert int(chord_elbow(jnp.full(5, 2.0), 5)) == 4
    assert int(chord_elbow(jnp.array([2.0, jnp.inf]), 1)) == 0
