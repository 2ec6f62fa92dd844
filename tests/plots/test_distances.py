"""Heat maps show who is similar to whom, in the order of the groups; bars and curves show the gaps they were given."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

from jaxfl import plots
from jaxfl.plots import distances, gaps, style
from tests.messages import mentions


def similarity(group, intra=0.75, cross=0.25, noise=0.0, seed=0):
    group = np.asarray(group)
    matrix = np.where(group[:, None] == group[None, :], intra, cross).astype(float)
    matrix += noise * np.random.default_rng(seed).normal(size=matrix.shape)
    matrix = (matrix + matrix.T) / 2
    np.fill_diagonal(matrix, 1)
    return matrix


def inside(figure):
    """Returns whether nothing is cut off."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    box = figure.get_tightbbox(canvas.get_renderer())
    wide, high = figure.get_size_inches() + 0.01
    return box.x0 >= -0.01 and box.y0 >= -0.01 and box.x1 <= wide and box.y1 <= high


def apart(figure):
    """Returns whether no panel, with its title, its ticks and its colours, overlaps another."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = [axes.get_tightbbox(canvas.get_renderer()).padded(-0.5) for axes in figure.axes]  # edges may touch
    own = [axes.get_subplotspec() is None and place % 2 for place, axes in enumerate(figure.axes)]  # a panel's colours
    pairs = [(i, j) for i in range(len(boxes)) for j in range(i) if not (own[i] and j == i - 1)]
    return not any(boxes[i].overlaps(boxes[j]) for i, j in pairs)


def panels(figure):
    """Returns the axes with a matrix, and those of their colours."""
    return figure.axes[::2], figure.axes[1::2]


def titles(figure):
    return [axes.get_title(loc="left") for axes in panels(figure)[0]]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def drawn(axes):
    return axes.images[0].get_array()


def colors(axes):
    """Returns the lightness of every entry `[N, N]` as it is drawn, and whether it is the neutral colour."""
    rgba = axes.images[0].to_rgba(drawn(axes))
    neutral = np.array([[to_hex(color).upper() == distances.NEUTRAL for color in row] for row in rgba])
    return rgba[..., :3] @ np.array([0.299, 0.587, 0.114]), neutral


def test_clients_are_ordered_by_group_and_the_unknown_come_last():
    group = np.array([1, -1, 0, 2, 1, 0, -7])
    order = [2, 5, 0, 4, 3, 1, 6]
    matrix = similarity(group, noise=0.1)
    (axes,), _ = panels(plots.heatmap(matrix, group, group_names=("north", "south")))
    expected = matrix[np.ix_(order, order)]
    other = ~np.eye(7, dtype=bool)
    np.testing.assert_array_equal(drawn(axes)[other], expected[other])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["north", "south", "group 2", "unknown"]
    assert axes.get_yticks().tolist() == [1, 3, 4.5, 6]
    across = sorted(line.get_ydata()[0] for line in axes.get_lines() if len(set(line.get_ydata())) == 1)
    down = sorted(line.get_xdata()[0] for line in axes.get_lines() if len(set(line.get_xdata())) == 1)
    assert across == down == [2, 4, 5]


@pytest.mark.parametrize("of", get_args(distances.MatrixKind))
def test_lighter_is_more_similar(of):
    group = np.arange(8) % 2
    matrix = similarity(group, noise=0.05)
    (axes,), (bar,) = panels(plots.heatmap(-matrix if of == "distance" else matrix, group, of=of))
    light, neutral = colors(axes)
    np.testing.assert_array_equal(neutral, np.eye(8, dtype=bool))
    order = np.argsort(group, kind="stable")
    other = ~np.eye(8, dtype=bool)
    ranks = np.argsort(matrix[np.ix_(order, order)][other], kind="stable")
    assert (np.diff(light[other][ranks]) >= -1e-6).all()
    assert light[other].min() < 0.15 and light[other].max() > 0.99


@given(seed=st.integers(0, 99), scale=st.sampled_from([1e-6, 1e-3, 1.0, 1e5]), offset=st.sampled_from([0.0, 1.0, -3.0]))
def test_every_panel_has_its_own_scale_without_the_diagonal(seed, scale, offset):
    matrix = similarity(np.arange(6) % 2, noise=0.2, seed=seed)
    other = ~np.eye(6, dtype=bool)
    figure = plots.heatmaps({"one": scale * (matrix + offset), "other": matrix})
    (one, another), bars = panels(figure)
    for axes, values, bar in ((one, scale * (matrix + offset), bars[0]), (another, matrix, bars[1])):
        assert axes.images[0].get_clim() == (values[other].min(), values[other].max())
        ticks, words = bar.get_yticks(), [label.get_text() for label in bar.get_yticklabels()]
        assert len(ticks) >= 2 and len(set(words)) == len(words)
        np.testing.assert_allclose(
            [float(word.replace("−", "-")) for word in words], ticks, rtol=0.05, atol=scale * 1e-6
        )
        assert values[other].min() <= min(ticks) and max(ticks) <= values[other].max()


def test_titles_say_the_gap_of_similarities_and_of_distances():
    group = np.array([0, 1, 0, 1])
    mixed = similarity(group, 0.25, 0.28125)
    matrices = {
        "updates, Conv_0": similarity(group),
        "updates, all": mixed,
        "l2": 1 - similarity(group),
        "l2, all": 1 - mixed,
    }
    of = {name: "distance" if name.startswith("l2") else "similarity" for name in matrices}
    expected = ["updates, Conv_0\nGap 0.50", "updates, all\nGap -0.03", "l2\nGap 0.50", "l2, all\nGap -0.03"]
    assert titles(plots.heatmaps(matrices, group, of=of)) == expected
    assert titles(plots.heatmaps({"one": mixed})) == ["one"]  # no groups, no gap
    assert titles(plots.heatmap(mixed, np.zeros(4, int), title="one")) == ["one"]  # nor with one group
    assert titles(plots.heatmap(mixed, group)) == ["Gap -0.03"]


def test_nan_and_constant_matrices_are_drawn():
    group = np.array([0, 0, 1, 1, 2])
    ill = similarity(group, noise=0.01)
    ill[4], ill[:, 4] = np.nan, np.inf
    figure = plots.heatmaps({"ill": ill, "nothing": np.full((5, 5), np.nan), "equal": np.ones((5, 5))}, group)
    (first, second, third), _ = panels(figure)
    wanted = np.eye(5, dtype=bool)
    wanted[4], wanted[:, 4] = True, True
    np.testing.assert_array_equal(colors(first)[1], wanted)
    assert colors(second)[1].all()
    low, high = third.images[0].get_clim()
    assert low < 1 < high
    assert inside(figure) and apart(figure)
    assert inside(plots.heatmap([[1.0]], [0]))


@pytest.mark.parametrize(
    ("count", "columns", "grid"),
    [(1, None, (1, 1)), (5, None, (1, 5)), (4, 2, (2, 2)), (17, None, (3, 6)), (34, 17, (2, 17)), (2, 9, (1, 2))],
)
def test_grids_are_readable(count, columns, grid):
    group = np.arange(20) % 4
    names = [f"delta_cos of Conv_{place}" for place in range(count)]
    matrices = {name: 0.9999 + 1e-4 * similarity(group, noise=0.1, seed=seed) for seed, name in enumerate(names)}
    words = ("0 degrees", "90 degrees", "180 degrees", "270 degrees")
    figure = plots.heatmaps(matrices, group, columns=columns, group_names=words, title="a federation after 30 rounds")
    own, _ = panels(figure)
    boxes = [axes.get_position() for axes in own]
    assert (len({round(box.y0, 4) for box in boxes}), len({round(box.x0, 4) for box in boxes})) == grid
    assert inside(figure) and apart(figure)
    size = figure.get_size_inches()
    assert size[0] < 34
    assert {round(box.width * size[0] / (box.height * size[1]), 6) for box in boxes} == {1}  # squares
    for place, axes in enumerate(own):
        named = [label.get_text() for label in axes.get_yticklabels()]
        assert named == (list(words) if place % grid[1] == 0 else [])


def test_long_titles_are_wrapped_and_names_without_room_left_out():
    group = np.repeat([0, 1, 2], [96, 2, 2])
    figure = plots.heatmap(
        similarity(group), group, title="the cosine of the updates of all convolutional layers at once"
    )
    (axes,), _ = panels(figure)
    assert axes.get_title(loc="left").count("\n") >= 2 and inside(figure)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["group 0"]
    assert len(axes.get_lines()) == 4


def test_of_many_clients_some_are_drawn_and_the_gap_is_of_all(monkeypatch):
    monkeypatch.setattr(distances, "MAX_DRAWN", 10)
    group = np.arange(40) % 2
    matrix = similarity(group)
    odd = 38  # the second last of the first group: not among the drawn
    matrix[odd, 0] = matrix[0, odd] = 0.0
    figure = plots.heatmap(matrix, group)
    (axes,), _ = panels(figure)
    assert drawn(axes).shape == (10, 10) and drawn(axes).min() == 0.25
    assert titles(figure) == ["Gap -0.25"]
    assert any("10 of 40, evenly chosen, are drawn" in text.get_text().replace("\n", " ") for text in figure.texts)
    assert inside(figure)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (({},), ("matrices", "none")),
        (({"a": np.ones((3, 2))},), ("matrices", "(3, 2)", "'a'")),
        (({"a": np.ones((3, 3)), "b": np.ones((2, 2))},), ("matrices", "(2, 2)", "'b'")),
        (({"a": np.ones((3, 3))}, [0, 1]), ("matrices", "(3, 3)")),
        (({"a": np.ones((0, 0))},), ("matrices", "(0, 0)")),
    ],
)
def test_heatmaps_refuse(arguments, words):
    with pytest.raises(ValueError, match=mentions(*words)):
        plots.heatmaps(*arguments)


@pytest.mark.parametrize(
    ("of", "words"),
    [
        ("cosine", ("of", "cosine")),
        ({"b": "distance"}, ("of", '"a"', "None")),
    ],
)
def test_heatmaps_ask_what_the_numbers_are(of, words):
    with pytest.raises(ValueError, match=mentions(*words)):
        plots.heatmaps({"a": np.ones((2, 2))}, of=of)


LAYERS = ["Conv_0", "net/Conv_1", "BatchNorm_0", "Dense_0", "all"]


def test_layer_gaps_are_bars_in_the_colours_of_their_kinds():
    values = {"delta_cos": [0.5, -0.25, 0.0, 0.125, 0.25], "l2": [None, np.inf, -2.0, 1.0, np.nan]}
    figure = plots.layer_gaps(values, LAYERS, recommended={"delta_cos": "Conv_0"}, title="after 30 rounds")
    first, second = figure.axes
    assert [bar.get_height() for bar in first.patches] == values["delta_cos"]
    assert [bar.get_height() for bar in second.patches] == [-2, 1]
    assert [bar.get_hatch() is not None for bar in first.patches] == [False, True, False, False, False]
    faces = [to_hex(bar.get_facecolor()) for bar in first.patches]
    edges = [to_hex(bar.get_edgecolor()) for bar in first.patches]
    assert edges[0] == edges[1] == faces[0] != faces[1]  # pale below 0, in the same hue
    assert len(set(edges)) == 4
    crosses = sorted(line.get_xdata()[0] for line in second.get_lines() if line.get_marker() == "x")
    assert crosses == [0, 1, 4] and not [line for line in first.get_lines() if line.get_marker() == "x"]
    assert [label.get_text() for label in second.get_xticklabels()] == LAYERS
    assert [(note.get_text(), note.xy) for axes in figure.axes for note in axes.texts] == [("▼", (0, 0.5))]
    assert legend(figure) == [
        "convolutions",
        "dense layers",
        "all layers",
        "other layers",
        "below 0",
        "no number",
        "recommended",
    ]
    assert inside(figure) and apart(figure)


def test_layer_gaps_of_one_distance_and_many_layers():
    layers = [f"Conv_{place}" for place in range(13)] + [f"Dense_{place}" for place in range(3)]
    figure = plots.layer_gaps(np.linspace(0.4, 0.1, 16), layers, recommended="Conv_3")
    (axes,) = figure.axes
    assert len(axes.patches) == 16 and legend(figure) == ["convolutions", "dense layers", "recommended"]
    assert [note.xy[0] for note in axes.texts] == [3]
    low, high = axes.get_ylim()
    assert low <= 0 and high > 0.4
    assert inside(figure)


@pytest.mark.parametrize(
    ("arguments", "more", "words"),
    [
        (([1.0], ["a", "b"]), {}, ("gaps", "2 layers", 1)),
        (({"cos": [1.0, 2.0, 3.0]}, ["a", "b"]), {}, ("gaps", 3, "cos")),
        (({}, ["a"]), {}, ("gaps", "0 and 1")),
        (([], []), {}, ("gaps", "1 and 0")),
        (([1.0], ["a"]), {"recommended": "b"}, ("recommended", "b")),
        (({"cos": [1.0]}, ["a"]), {"recommended": {"l2": "a"}}, ("recommended", "l2")),
    ],
)
def test_layer_gaps_refuse(arguments, more, words):
    with pytest.raises(ValueError, match=mentions(*words)):
        plots.layer_gaps(*arguments, **more)


def curves(axes):
    return {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}


def test_curves_have_holes_a_zero_line_and_dashes_where_they_coincide():
    values = {"update": [0.1, None, 0.3, np.nan], "l2": [-0.1, -0.2, -0.3, -0.4], "delta_l2": [-0.1, -0.2, -0.3, -0.4]}
    figure = plots.gap_curves([1, 2, 3, 4], values, title="gaps")
    (axes,) = figure.axes
    lines = curves(axes)
    np.testing.assert_array_equal(lines["update"].get_ydata(), [0.1, np.nan, 0.3, np.nan])
    assert [lines[label].get_linestyle() for label in values] == ["-", "-", "--"]
    assert [list(lines[label].get_markevery()) for label in values] == [[0, 1, 2, 3], [0, 1, 2, 3], []]
    assert any(set(line.get_ydata()) == {0} for line in axes.get_lines() if line.get_label() not in lines)
    assert legend(figure) == list(values) and len({line.get_color() for line in lines.values()}) == 3
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "Gap")
    assert inside(figure)


def test_a_number_between_holes_is_marked_in_a_long_curve_too():
    values = np.ones(50)
    values[[3, 5, 49 - 1]] = np.nan
    (axes,) = plots.gap_curves(range(50), {"one": values}).axes
    assert list(curves(axes)["one"].get_markevery()) == [4, 49]


def test_panels_share_the_colours_of_their_labels():
    nested = {"CIFAR-10": {"a": [1.0, 2.0], "b": [2.0, 1.0]}, "letters": {"b": [0.0, 1.0], "c": [1.0, 0.0]}}
    figure = plots.gap_curves([100, 300], nested, "rows per client", colors={"c": "#123456"})
    first, second = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(nested)
    assert curves(first)["b"].get_color() == curves(second)["b"].get_color() != curves(first)["a"].get_color()
    assert curves(second)["c"].get_color() == "#123456" and legend(figure) == ["a", "b", "c"]
    assert inside(figure) and apart(figure)
    both = plots.bars([100, 300], nested, "share", top=1)
    assert [axes.get_title(loc="left") for axes in both.axes] == list(nested) and legend(both) == ["a", "b", "c"]
    assert {to_hex(bar.get_facecolor()) for bar in both.axes[0].containers[1]} == {style.line_colors(3)[1].lower()}
    assert both.axes[0].get_ylim() == both.axes[1].get_ylim() == (0, 1)
    assert inside(both) and apart(both)


def test_bars_stand_in_groups_and_a_cross_says_never():
    values = {"update": [3, 2, 1], "l2": [None, 0, float("nan")]}
    figure = plots.bars([100, 500, 1500], values, "first round with Gap > 0")
    (axes,) = figure.axes
    update, other = axes.containers
    assert [bar.get_height() for bar in update] == [3, 2, 1] and [bar.get_height() for bar in other] == [0]
    assert all(bar.get_linewidth() > 0 for bar in other)  # a bar of 0 is seen
    places = {}
    for label, container in zip(values, axes.containers, strict=True):
        places[label] = [bar.get_x() + bar.get_width() / 2 for bar in container]
    crosses = np.concatenate([line.get_xdata() for line in axes.get_lines() if line.get_marker() == "x"])
    np.testing.assert_allclose(crosses, [places["l2"][0] - 1, places["l2"][0] + 1])
    np.testing.assert_allclose(np.mean([places["update"], [crosses[0], *places["l2"], crosses[1]]], axis=0), [0, 1, 2])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["100", "500", "1,500"]
    assert legend(figure) == ["update", "l2", "never"] and axes.get_ylim()[0] == 0
    assert inside(figure)
    assert legend(plots.bars([1], {"one": [2]}, "y")) == ["one"]
    assert legend(plots.bars([1], {"one": [None]}, "y", never="not run")) == ["one", "not run"]


@pytest.mark.parametrize("draw", [lambda x, y: plots.gap_curves(x, y), lambda x, y: plots.bars(x, y, "y")])
@pytest.mark.parametrize(
    ("x", "values", "words"),
    [
        ([1, 2], {"a": [1.0]}, ("values", "2 x", 1, "'a'")),
        ([1, 2], {"p": {"a": [1.0, 2.0, 3.0]}}, ("values", 3, "'a'")),
        ([], {"a": []}, ("values", "0 x")),
        ([1], {}, ("values", "label", "none")),
        ([1], {"p": {"a": [1.0]}, "q": {}}, ("values", "label", "none")),
    ],
)
def test_curves_and_bars_refuse(draw, x, values, words):
    with pytest.raises(ValueError, match=mentions(*words)):
        draw(x, values)


def test_figures_for_one_point_and_nothing_at_all():
    (axes,) = plots.gap_curves([5], {"a": [0.1], "b": [None]}).axes
    assert axes.get_xlim() == (4, 6) and list(curves(axes)["a"].get_markevery()) == [0]
    (axes,) = plots.bars(["a", "b"], {"one": [None, None]}, "y").axes
    assert axes.get_ylim() == (0, 1)
    assert gaps.finite_or_nan([1, None, np.inf, -2.5]).tolist()[0::3] == [1, -2.5]
