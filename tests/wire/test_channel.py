"""Each link against its formula: what is received, what it is on average, and how many bytes it takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfl.wire import CodeSize, bfloat16, chain, clip, qsgd, random_k, sign, top_k
from jaxfl.wire.channel import largest
from tests.messages import mentions

V = np.array([3.0, -1.0, 2.0, -2.0, 0.5, 0.0], np.float32)
LENGTH = np.sqrt(18.25)


@pytest.mark.parametrize(
    ("link", "received"),
    [
        (clip(1.0), V / LENGTH),
        (clip(5.0), V),
        (top_k(0.34), [3, 0, 2, -2, 0, 0]),
        (top_k(0.33), [3, 0, 2, 0, 0, 0]),  # the first of equal ones
        (top_k(1.0), V),
        (random_k(1), V),
        (sign(), 1.7 * np.sign(V)),
        (chain(top_k(0.5), clip(1.0)), np.array([3, 0, 2, -2, 0, 0]) / np.sqrt(17)),
        (bfloat16(), V),
        (chain(), V),
    ],
)
def test_formulas(link, received, key):
    np.testing.assert_allclose(link.change(key, jnp.asarray(V)), received, rtol=1e-6)


@pytest.mark.parametrize("link", [clip(1.0), sign(), qsgd(4), top_k(0.2), random_k(0.2), bfloat16()])
def test_nothing_stays_nothing(link, key):
    np.testing.assert_array_equal(link.change(key, jnp.zeros(7)), np.zeros(7))


@pytest.mark.parametrize(
    ("link", "squared_error"),
    [
        # l is Bernoulli around each place: sum of p (1 - p) (|v| / s)^2
        (qsgd(3), sum((p := abs(x) / LENGTH * 3 % 1) * (1 - p) for x in V) * (LENGTH / 3) ** 2),
        (random_k(0.5), (6 / 3 - 1) * LENGTH**2),
    ],
)
def test_unbiased_links_have_the_stated_error(link, squared_error, key):
    draws = 20_000
    received = np.asarray(jax.vmap(link.change, (0, None))(jax.random.split(key, draws), jnp.asarray(V)))
    away = received - V
    # five standard errors of a mean of independent draws
    assert (np.abs(away.mean(0)) <= 5 * away.std(0) / np.sqrt(draws) + 1e-6).all()
    squares = np.square(away).sum(1)
    assert abs(squares.mean() - squared_error) <= 5 * squares.std() / np.sqrt(draws) + 1e-5


def test_levels_of_qsgd_are_multiples(key):
    levels = np.asarray(qsgd(3).change(key, jnp.asarray(V))) / (LENGTH / 3)
    np.testing.assert_allclose(levels, levels.round(), atol=1e-5)
    assert np.abs(levels).max() <= 3


@pytest.mark.parametrize(
    ("link", "num_bytes"),
    [
        (chain(), 796_840),
        (clip(1.0), 796_840),
        (top_k(1.0), 796_840),
        (top_k(0.01), 12_456.25),
        (chain(top_k(0.01), qsgd(8)), 6_481.25),
        (chain(qsgd(8), top_k(0.01)), 6_481.25),
        (sign(), 24_905.25),
        (qsgd(4), 99_609),
        (random_k(0.01), 7_976),
        (bfloat16(), 398_420),
    ],
)
def test_bytes_of_the_code(link, num_bytes):
    assert link.coded(CodeSize(199_210)).num_bytes == num_bytes  # 784-250-10


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_largest_is_what_a_stable_sort_chooses(dtype):
    rng = np.random.default_rng(0)
    with jax.enable_x64(dtype is np.float64):
        for count in (1, 7, 30, 59, 60):
            values = np.abs(rng.normal(size=60)).astype(dtype) * 10.0 ** rng.integers(-20, 20, 60).astype(dtype)
            values[rng.integers(0, 60, 25)] = rng.choice([0, 1, np.inf], 25)
            chosen = np.zeros(60, bool)
            chosen[np.argsort(-values, kind="stable")[:count]] = True
            np.testing.assert_array_equal(largest(jnp.asarray(values), count), chosen)


@pytest.mark.parametrize("links", [(random_k(0.1), clip(0.5)), (qsgd(2), clip(0.5)), (clip(0.5),), (sign(), clip(0.5))])
def test_a_message_is_never_longer_than_the_clip(links, key):
    for scale in (1e-12, 1.0, 1e12):
        v = scale * jax.random.normal(key, (200,))
        assert np.linalg.norm(chain(*links).change(key, v)) <= 0.5 * (1 + 1e-6)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: clip(0.0), ("clip", "above 0", 0.0)),
        (lambda: clip(1e-45), ("clip", 1e-45, "float32")),
        (lambda: clip(float("inf")), ("clip", "inf")),
        (lambda: top_k(1.5), ("topk", 1.5)),
        (lambda: top_k(0.0), ("topk", 0.0)),
        (lambda: random_k(-1), ("randk", -1)),
        (lambda: qsgd(1), ("qsgd", 1)),
        (lambda: qsgd(8.0), ("qsgd", 8.0)),
    ],
)
def test_numbers_out_of_range_are_refused(make, words):
    with pytest.raises(ValueError, match=mentions(*words)):
        make()
