"""The picture of membership inference draws the curve's points, the bounds and the risk of each size."""

import numpy as np
import pytest

from jaxfl import Membership, plots
from jaxfl.analysis.membership import roc_curve
from jaxfl.plots.risks import epsilon_bound, gaussian_bound
from tests.messages import mentions


@pytest.fixture
def found():
    """Rows of 12 clients in clusters of 1, 3 and 8; the smaller a cluster is, the higher members score."""
    rng = np.random.default_rng(0)
    cluster = np.repeat([4, 0, 2], [1, 3, 8])
    size = np.repeat([1, 3, 8], [1, 3, 8])
    client = np.tile(np.arange(12, dtype=np.int32), 200)
    member = np.arange(2400) < 1200
    score = rng.normal(size=2400) + 2 * member / size[client]
    return Membership(score, member, client, cluster, size, np.zeros(12), np.zeros(12, bool))


def test_lines_and_points_are_the_numbers(found):
    figure = plots.membership(found, mu=0.5, epsilon=1.0, delta=0.01)
    curves, areas, positives = figure.axes
    lines = {line.get_label(): line for line in curves.get_lines()}
    assert list(lines)[:4] == ["1 client", "2-4 clients", "5-9 clients", "all rows"]
    for label, rows in (("all rows", slice(None)), ("2-4 clients", found.rows_of_size("2-4"))):
        np.testing.assert_array_equal(
            lines[label].get_xydata(), np.stack(roc_curve(found.score[rows], found.member[rows]), 1)
        )
    for label, bound in (("mu = 0.5", lambda a: gaussian_bound(a, 0.5)), ("epsilon = 1", None)):
        x, y = next(line for name, line in lines.items() if name.endswith(label)).get_xydata().T
        np.testing.assert_allclose(y, bound(x) if bound else epsilon_bound(x, 1.0, 0.01))
    risks = found.by_size()
    for axes, name in ((areas, "auc"), (positives, "true_positives")):
        (points,) = [one for one in axes.collections if len(one.get_offsets()) == 3 and hasattr(one, "get_sizes")]
        np.testing.assert_allclose(points.get_offsets()[:, 1], [getattr(one, name) for one in risks.values()])
        assert [tick.get_text() for tick in axes.get_xticklabels()] == list(risks) == ["1", "2-4", "5-9"]
    assert risks["1"].auc > risks["2-4"].auc > risks["5-9"].auc


def test_clusters_of_one_size_are_one_curve(found):
    same = found._replace(cluster=np.zeros(12, int), size=np.full(12, 12))
    labels = [line.get_label() for line in plots.membership(same).axes[0].get_lines()]
    assert [one for one in labels if not one.startswith("_")] == ["all rows"]


def test_bounds_meet_where_they_must():
    rates = np.linspace(0, 1, 11)
    np.testing.assert_allclose(gaussian_bound(rates, 0), rates)
    np.testing.assert_allclose(epsilon_bound(rates, 0.0), rates)
    assert epsilon_bound(rates, 3.0, 1.0).tolist() == [1] * 11
    # the curves are their own inverses after a turn: a threshold may say yes or no
    for bound in (lambda a: gaussian_bound(a, 1.3), lambda a: epsilon_bound(a, 0.7, 0.05)):
        inner = np.array([0.05, 0.2, 0.4])
        np.testing.assert_allclose(bound(1 - bound(inner)), 1 - inner, atol=1e-12)


@pytest.mark.parametrize("bad", [{"mu": -1.0}, {"epsilon": -2.0}, {"delta": 1.5}])
def test_bounds_out_of_range(found, bad):
    ((name, value),) = bad.items()
    with pytest.raises(ValueError, match=mentions(name, value)):
        plots.membership(found, **bad)
