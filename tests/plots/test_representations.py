"""Clients keep their places, and clusters their colours, from panel to panel; a sweep's picture shows its rows."""

import sys

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

from jaxfl import plots
from jaxfl.analysis.thresholds import threshold_sweep
from jaxfl.plots import maps, style
from tests.messages import mentions

GROUP = np.repeat([0, 1, 2], [10, 8, 6])


def planted(group=GROUP, seed=0):
    random = np.random.default_rng(seed)
    return np.eye(8)[group] + 0.1 * random.normal(size=(len(group), 8))


def dots(axes):
    """Returns places `[N, 2]` and colours `[N]` in the order of the drawing."""
    (collection,) = axes.collections
    return np.asarray(collection.get_offsets()), np.array([to_hex(c).upper() for c in collection.get_facecolor()])


def by_client(axes, count=24):
    """Returns the colour of every client `[N]`."""
    order = np.random.default_rng(0).permutation(count)
    colors = np.empty(count, object)
    colors[order] = dots(axes)[1]
    return colors


def titles(figure):
    return [axes.get_title() for axes in figure.axes]


def legend(figure):
    return {text.get_text(): to_hex(handle.get_markerfacecolor()).upper() for text, handle in entries(figure)}


def entries(figure):
    return zip(figure.legends[0].get_texts(), figure.legends[0].legend_handles, strict=True)


def inside(figure):
    """Returns whether nothing is cut off and the words are beside the panels."""
    FigureCanvasAgg(figure).draw()
    boxes = [box for axes in figure.axes if (box := axes.get_tightbbox(figure.canvas.get_renderer())) is not None]
    box = figure.legends[0].get_window_extent()
    whole = all(b.x0 >= -1 and b.y0 >= -1 and b.x1 <= figure.bbox.x1 + 1 and b.y1 <= figure.bbox.y1 + 1 for b in boxes)
    return whole and box.y0 >= -1 and box.x1 <= figure.bbox.x1 + 1 and all(b.x1 <= box.x0 + 1 for b in boxes)


def test_places_are_found_once_and_groups_and_their_clusters_share_colours(monkeypatch):
    calls = []
    monkeypatch.setattr(maps, "tsne", lambda *args, found=maps.tsne: calls.append(args) or found(*args))
    early = np.where(np.arange(24) % 2, 9 + GROUP, -1)
    late = np.array([9, 3, 11])[GROUP]  # slot 10 has merged into slot 3
    figure = plots.representations(
        planted(), {"round 1": early, "round 9": late}, group=GROUP, group_names=["left", "right"]
    )
    assert len(calls) == 1
    assert titles(figure) == ["3 true groups", "round 1: 3 clusters", "round 9: 3 clusters"]
    places = [dots(axes)[0] for axes in figure.axes]
    np.testing.assert_array_equal(places[0], places[1])
    np.testing.assert_array_equal(places[0], places[2])
    truth, first, last = map(by_client, figure.axes)
    assert truth.tolist() == last.tolist() == [plots.palette()[one] for one in GROUP]
    assert set(first[early < 0]) == {style.NO_CLUSTER_COLOR}
    for slot in (9, 11):
        assert set(first[early == slot]) == set(last[late == slot])
    gone = set(first[early == 10])
    assert len(gone) == 1 and not gone & set(last), "its group's colour is the larger cluster's"
    assert list(legend(figure)) == ["left", "right", "group 2", "no cluster"]
    assert inside(figure)


def test_points_of_a_group_are_near_each_other():
    (axes,) = plots.representations(planted(), {"all": GROUP}).axes
    places, colors = dots(axes)
    for color in set(colors):
        own, others = places[colors == color], places[colors != color]
        width = np.linalg.norm(own - own.mean(0), axis=1).max()
        assert np.linalg.norm(others - own.mean(0), axis=1).min() > width


def test_without_groups_the_slots_are_told():
    figure = plots.representations(planted(), {"one": np.zeros(24, int), "two": np.array([5, 0, 5])[GROUP]})
    assert list(legend(figure)) == ["0 (24)", "5 (16)"]
    one, two = map(by_client, figure.axes)
    assert set(one) == {legend(figure)["0 (24)"]} == set(two[GROUP == 1])


def test_of_many_clusters_the_small_ones_share_a_grey():
    group = np.repeat(np.arange(4), 10)
    early = np.arange(40)
    late = np.where(np.arange(40) % 10 < 7, 10 * group, early)  # four of seven, and twelve alone
    figure = plots.representations(planted(group), {"early": early, "late": late})
    first, last = (by_client(axes, 40) for axes in figure.axes)
    assert len(set(last)) == 5 and set(last[late == early]) == {*plots.palette()[:4], style.OTHER_COLOR}
    assert set(first[np.arange(40) % 10 > 0]) == {style.OTHER_COLOR}
    assert (first[::10] == last[::10]).all()
    assert list(legend(figure))[-1] == "smaller ones" and len(legend(figure)) == 5
    few = plots.representations(planted(group), {"late": late})
    assert style.OTHER_COLOR not in by_client(few.axes[0], 40), "sixteen have colours of their own"


def test_a_colour_is_no_other_clusters():
    random = np.random.default_rng(5)
    panels = {str(round): random.integers(-1, 15, 24) for round in range(3)}
    figure = plots.representations(planted(), panels, group=GROUP)
    color_of = {}
    for axes, slots in zip(figure.axes[1:], panels.values(), strict=True):
        for slot, color in zip(slots, by_client(axes), strict=True):
            assert color_of.setdefault(slot, color) == color
    assert len(set(color_of.values())) == len(color_of)


@pytest.mark.parametrize(
    ("points", "panels"),
    [
        pytest.param(planted([0, 1]), {"a": [0, 1]}, id="two"),
        pytest.param(np.ones((5, 1)), {"a": [0, 0, 1, 1, -1]}, id="equal"),
        pytest.param(planted(), {"a": np.full(24, -1)}, id="nobody in a cluster"),
        pytest.param(planted(), {str(one): GROUP for one in range(6)}, id="six panels"),
        pytest.param(planted(np.arange(60) % 8), {"a": np.arange(60), "b": np.arange(60) % 30}, id="many"),
    ],
)
def test_few_and_strange(points, panels):
    figure = plots.representations(points, panels)
    assert len(figure.axes) == len(panels)
    assert all(np.isfinite(dots(axes)[0]).all() for axes in figure.axes)
    assert inside(figure)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"points": np.ones(24)}, ("points", "(24,)", "[N, d]")),
        ({"points": np.full((24, 2), np.nan)}, ("points", "finite", "24 clients")),
        ({"clusterings": {}}, ("clusterings", "none")),
        ({"clusterings": {"a": GROUP[:3]}}, ("clusterings['a']", 24)),
        ({"clusterings": {"a": GROUP + 0.5}}, ("clusterings['a']", "float64")),
        ({"group": GROUP[:5]}, ("group", 24)),
        ({"group": GROUP - 1}, ("group", -1)),
    ],
)
def test_refusals(arguments, words):
    with pytest.raises(ValueError, match=mentions(*words)):
        plots.representations(**{"points": planted(), "clusterings": {"a": GROUP}} | arguments)


def test_a_sweep_is_drawn_against_the_threshold():
    rows = threshold_sweep(planted(), group=GROUP)
    figure = plots.threshold_sweep(rows[::-1])
    clusters, agreement = figure.axes
    assert clusters.get_yscale() == "log"
    taus = [row["threshold"] for row in rows]
    numbers, largest = clusters.lines
    np.testing.assert_array_equal(numbers.get_xdata(), taus)
    assert numbers.get_ydata().tolist() == [row["clusters"] for row in rows]
    assert largest.get_ydata().tolist() == [row["largest"] for row in rows]
    assert agreement.lines[0].get_ydata().tolist() == [row["ari"] for row in rows]
    exact = [row["threshold"] for row in rows if row["ari"] == 1]
    (span,) = agreement.patches
    assert (span.get_x(), span.get_x() + span.get_width()) == pytest.approx((exact[0], exact[-1]))
    FigureCanvasAgg(figure).draw()


def test_a_sweep_without_groups_has_one_panel_and_none_is_refused():
    (axes,) = plots.threshold_sweep(threshold_sweep(planted(), [0.5])).axes
    assert len(axes.lines) == 2 and not axes.patches
    with pytest.raises(ValueError, match=mentions("rows", "none")):
        plots.threshold_sweep([])


def test_no_pyplot():
    before = "matplotlib.pyplot" in sys.modules
    plots.representations(planted(), {"a": GROUP})
    assert ("matplotlib.pyplot" in sys.modules) == before
