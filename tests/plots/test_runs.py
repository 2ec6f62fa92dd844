"""The pictures show what the run found, for few and many clients, one cluster and a cluster per client."""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
import pytest
from matplotlib.collections import PatchCollection
from matplotlib.colors import to_hex
from matplotlib.patches import PathPatch, Rectangle

import jaxfl
from jaxfl import plots
from jaxfl.analysis.local_sketches import ClientSimilarity
from jaxfl.clustering.distances import cosine
from jaxfl.data import conditions
from jaxfl.data.clients import Drift
from jaxfl.simulation.evaluation.metrics import cluster_scores
from jaxfl.simulation.records.history import History
from tests.messages import mentions


@pytest.fixture(scope="module")
def result():
    data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    return jaxfl.run(jaxfl.methods.ifca(task, optax.sgd(0.1), num_clusters=2), data, rounds=4, cohort=0.5, eval_every=2)


def having(result, cluster, group, names=()):
    """Returns the result of a run in which these clusters were found."""
    cluster = np.asarray(cluster)
    parts = [np.zeros(1, int)] * len(cluster)
    data = jaxfl.data.federate(
        np.zeros((1, 2, 2), np.uint8), np.zeros(1, int), parts, parts, num_classes=2, group=group, group_names=names
    )
    metrics = result.evaluation.metrics | cluster_scores(cluster, data, np.ones(len(cluster), bool))
    return result._replace(data=data, evaluation=result.evaluation._replace(cluster=cluster, metrics=metrics))


def squares(figure):
    """Returns the corner `[N, 2]` and the colour of every square."""
    (collection,) = [one for one in figure.axes[0].collections if isinstance(one, PatchCollection)]
    corners = np.array([path.vertices.min(0) for path in collection.get_paths()])
    return corners, [to_hex(color) for color in collection.get_facecolor()]


def test_a_loss_may_be_below_zero():
    history = History()
    for round in range(1, 4):
        history.append({"round": round, "micro_mse": 1.0, "loss": -float(round), "num_clusters": 1})
    low, high = plots.convergence({"a": history}).axes[1].get_ylim()
    assert low < -3 < -1 < high


def test_convergence_draws_the_history(result):
    accuracy, loss, clusters = plots.convergence(result).axes
    lines = {line.get_label(): line for axes in (accuracy, loss, clusters) for line in axes.get_lines()}
    assert {"micro", "macro", "test", "training", "found", "true groups"} <= set(lines)
    assert list(lines["micro"].get_xdata()) == [2, 4]
    assert list(lines["micro"].get_ydata()) == result.history.column("micro_accuracy")
    assert set(lines["true groups"].get_ydata()) == {4}
    assert len(accuracy.collections) == 1  # the band


def test_a_single_round_is_a_whole_one_and_its_points_are_inside():
    history = History()
    history.append({"round": 1, "micro_accuracy": 1.0, "loss": 2.0, "train_loss": 1.9, "num_clusters": 1})
    for axes, top in zip(plots.convergence({"a": history}).axes, (1.0, 2.0, 1.0), strict=True):
        assert list(axes.get_xticks()) == [1]
        low, high = axes.get_ylim()
        assert high - top > 0.015 * (high - low)


def test_convergence_compares_runs(result):
    history = History()
    history.append({"round": 1, "micro_accuracy": 0.5, "macro_accuracy": None, "loss": float("nan")})
    accuracy, loss, _ = plots.convergence({"first": result, "second": history}).axes
    assert [text.get_text() for text in accuracy.get_legend().get_texts()] == ["first", "second"]
    assert len({line.get_color() for line in accuracy.get_lines()}) == 2
    assert len(loss.get_lines()) == 2  # nothing finite to draw of the second
    with pytest.raises(ValueError, match=mentions("result", "none")):
        plots.convergence({})
    with pytest.raises(TypeError, match=mentions("result", "list", "{name: result}")):
        plots.convergence([result])


def test_many_runs_are_told_apart_beside_a_legend_that_covers_none(result):
    names = [f"run {number}" for number in range(16)]
    figure = plots.convergence(dict.fromkeys(names, result))
    accuracy = figure.axes[0]
    looks = {(line.get_color(), line.get_marker()) for line in accuracy.get_lines()}
    assert len(looks) == len(names)
    assert accuracy.get_legend() is None
    assert [text.get_text() for text in figure.legends[0].get_texts()] == names


def test_a_drift_is_marked_once_a_round(result):
    drifts = [result._replace(summary=result.summary | {"drift_round": round}) for round in (3, 2, 3)]
    for axes in plots.convergence({"first": result, **dict(zip("abc", drifts, strict=True))}).axes:
        marks = {line.get_xdata()[0]: line.get_label() for line in axes.get_lines() if len({*line.get_xdata()}) == 1}
        assert {2: "drift", 3: marks[3]} == marks and marks[3].startswith("_"), "one entry in the legend"


def test_clusters_leaves_out_who_has_left_and_no_one_else(result):
    absent = np.arange(8) < 3
    left = result._replace(data=result.data.subset(np.arange(8)).replace(absent=absent))
    tested = left.evaluation._replace(rows=np.where(np.arange(8) < 4, 0, left.evaluation.rows))  # 3 has no test rows
    assert len(squares(plots.clusters(left._replace(evaluation=tested)))[0]) == 5


def test_clusters_gives_groups_rows_and_clusters_colours(result):
    group = np.array([1, 0, 1, 0, 2, 2])
    corners, colors = squares(plots.clusters(having(result, [7, 3, 7, 3, 3, -1], group, ("a", "b", "c"))))
    rows = corners[:, 1].round(2)
    assert len(corners) == 6 and len(set(rows)) == 3
    by_row = [{color for color, row in zip(colors, rows, strict=True) if row == one} for one in sorted(set(rows))]
    assert by_row[0] == {plots.palette()[0].lower()}  # the first group's cluster has the first colour
    assert by_row[1] == {plots.palette()[1].lower()}
    assert by_row[2] == {plots.palette()[0].lower(), plots.NO_CLUSTER_COLOR.lower()}


@pytest.mark.parametrize("draw", [plots.convergence, plots.clusters, plots.alluvial, plots.confusion])
def test_pictures_say_which_method_ran_on_what(result, draw):
    """A command's run knows the method's name; pictures of several runs lie side by side."""
    for summary, words in ((result.summary, "rotated-digits"), ({"method": "ifca"}, "ifca on rotated-digits")):
        figure = draw(result._replace(summary=summary))
        title = next(one for one in [figure._suptitle, *figure.texts] if one is not None)
        figure.canvas.draw()
        assert title.get_text().split(":")[0] == words
        assert title.get_window_extent().x1 <= figure.bbox.x1


@pytest.mark.parametrize(
    ("cluster", "group", "words"),
    [
        pytest.param(np.arange(40) % 4, np.arange(40) % 4, "40 clients, 4 clusters found, 4 true groups, ARI 1.000"),
        pytest.param(np.zeros(40, int), np.arange(40) % 4, "40 clients, 1 cluster found, 4 true groups, ARI 0.000"),
        pytest.param(np.arange(40), np.arange(40) % 4, "40 clients, 40 clusters found, 4 true groups, ARI 0.000"),
        pytest.param(np.arange(4800) % 30, None, "4,800 clients, 30 clusters found"),
        pytest.param(np.full(5, -1), None, "5 clients, 0 clusters found"),
        pytest.param(np.zeros(1, int), np.zeros(1, int), "1 client, 1 cluster found, 1 true group, ARI 1.000"),
    ],
)
def test_clusters_for_few_and_many(result, cluster, group, words):
    figure = plots.clusters(having(result, cluster, group))
    corners, _ = squares(figure)
    assert len(np.unique(corners.round(3), axis=0)) == len(cluster)  # nobody hides another
    assert f"data: {words}" in [text.get_text() for text in figure.texts]
    assert max(figure.get_size_inches()) < 16
    figure.canvas.draw()
    legend = figure.legends[0].get_window_extent()
    assert legend.x1 <= figure.bbox.x1 and 0 <= legend.y0  # nothing is cut off
    labels = [tick.get_window_extent().x0 for tick in figure.axes[0].get_yticklabels()]
    assert min(labels) >= 0


def test_titles_say_who_is_in_no_number(result):
    """Held-out clients are drawn, with clusters of their own where every client has one."""
    found = having(result, np.arange(8), np.arange(8) % 4)
    found = found._replace(data=dataclasses.replace(found.data, held_out=np.arange(8) < 2))
    assert "data: 8 clients (2 held out), 8 clusters found, 4" in plots.clusters(found).texts[0].get_text()


def test_colours_are_distinct_and_the_rest_is_grey(result):
    colors = plots.palette()
    assert len(set(colors)) == len(colors) > 20
    _, drawn = squares(plots.clusters(having(result, np.arange(40), None)))
    assert len(set(drawn)) == len(colors) + 1
    assert drawn.count(plots.OTHER_COLOR.lower()) == 40 - len(colors)


def test_a_cluster_has_one_colour_in_all_pictures_of_a_run(result):
    """Also where a sample was tested, and the others' clusters are old."""
    some = having(result, [0, 0, 1, 0], np.array([0, 0, 0, 1]))
    rows, metrics = np.array([0, 0, 5, 5]), some.evaluation.metrics | {"eval_clients": 2}
    some = some._replace(evaluation=some.evaluation._replace(rows=rows, metrics=metrics))
    history = History()
    history.append({"round": 1, "eval_clients": 2}, some.evaluation.cluster)
    alike = ClientSimilarity(np.eye(4, dtype=np.float32), np.arange(4, dtype=np.int32))
    drawn = (
        plots.clusters(some),
        plots.alluvial(some._replace(history=history)),
        plots.similarity(alike, some),
    )
    blue, orange = (color.lower() for color in plots.palette()[:2])
    for figure in drawn:
        legend = figure.legends[0]
        found = {
            text.get_text().split(" ")[0]: to_hex(handle.get_facecolor())
            for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True)
        }
        assert found == {"1": blue, "0": orange}


def test_pictures_leave_no_trace(result):
    settings = dict(matplotlib.rcParams)
    figure = plots.convergence(result)
    plots.clusters(result)
    assert dict(matplotlib.rcParams) == settings
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []
    assert figure._repr_png_().startswith(b"\x89PNG")


def moving(result, rows, group, names=()):
    """Returns the result of a run in which clients were in these clusters, evaluation by evaluation."""
    history = History()
    for round, row in enumerate(rows, 1):
        history.append({"round": round}, np.array(row))
    return having(result, rows[-1], group, names)._replace(history=history)


def test_alluvial_draws_who_moves(result):
    figure = plots.alluvial(moving(result, [[0, 0, 0, 5], [0, 0, 1, 1]], np.array([0, 0, 1, 1]), ("a", "b")))
    (axes,) = figure.axes
    first, second, groups = (
        sorted(
            one.get_height() for one in axes.patches if isinstance(one, Rectangle) and round(one.get_center()[0]) == x
        )
        for x in range(3)
    )
    assert (first, second, groups) == ([1, 3], [2, 2], [2, 2])
    bands = [one for one in axes.patches if isinstance(one, PathPatch)]
    corners = [one.get_path().vertices for one in bands]
    ends = [(corner[0, 0].round(), corner[-1, 1] - corner[0, 1]) for corner in corners]
    assert sorted(ends) == [(0, 1), (0, 1), (0, 2), (1, 2), (1, 2)]  # where from, and how many clients
    stayed, left = (plots.palette()[place].lower() for place in (0, 1))
    assert [to_hex(one.get_facecolor()) for one in bands].count(left) == 1
    assert [to_hex(one.get_facecolor()) for one in bands].count(stayed) == 3
    assert {"a", "b", "1", "5"} <= {text.get_text() for text in axes.texts}
    assert "the last to move: 2 clients between rounds 1 and 2" in figure.get_suptitle()


def test_alluvial_of_data_that_drift_counts_who_is_there(result):
    """Client 0 arrives at round 2, clients 1 and 2 at round 4, when client 3 leaves; all keep a cluster."""
    made = moving(result, [[1, 1, 1, 0]] * 4, np.array([0, 1, 1, 1]))
    made = made._replace(evaluation=made.evaluation._replace(rows=np.array([5, 5, 5, 0])))
    first, *later = np.array([[1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]], bool)
    drift = Drift(np.array([2, 4], np.int32), absent=np.stack(later, 1))
    drifting = dataclasses.replace(made.data, absent=first, drift=drift)
    figure = plots.alluvial(made._replace(drifting=drifting, data=drifting.at(4)))
    heights = [
        sorted(
            one.get_height()
            for one in figure.axes[0].patches
            if isinstance(one, Rectangle) and one.get_center()[0].round() == x
        )
        for x in range(4)
    ]
    assert heights == [[1, 3], [1, 1, 2], [1, 1, 2], [1, 3]], "the evaluation of a round is of who is there then"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["1 (3)", "none (1)"]


def test_alluvial_of_few_evaluations_has_room_for_its_words(result):
    figure = plots.alluvial(moving(result, [[0, 0, 0, 5], [0, 0, 1, 1]], None))
    figure.canvas.draw()
    title, legend = figure._suptitle.get_window_extent(), figure.legends[0].get_window_extent()
    assert not title.overlaps(legend) and legend.x1 <= figure.bbox.x1


def test_alluvial_of_many_evaluations_and_of_none(result):
    rows = [np.arange(30) % (2 + round % 2) - 1 for round in range(40)]  # -1 is none
    (axes,) = plots.alluvial(moving(result, rows, None)).axes
    words = [tick.get_text() for tick in axes.get_xticklabels()]
    assert len(words) == 11 and (words[0], words[-1]) == ("round 1", "round 40")
    with pytest.raises(ValueError, match=mentions("result.history", "clusters", "none")):
        plots.alluvial(result._replace(history=History()))
    history = moving(result, [[0, 0, 5], [0, 1, 1]], None).history
    with pytest.raises(ValueError, match=mentions("history", f"{result.data.num_clients} clients", 3)):
        plots.alluvial(result._replace(history=history))


def test_confusion_counts_every_client_once(result):
    group = np.array([1, 0, 1, 0, 2, 2])
    (axes,) = plots.confusion(having(result, [7, 3, 7, 3, 3, -1], group, ("a", "b", "c"))).axes
    written = {tuple(np.floor(one.get_position()).astype(int).tolist()): one.get_text() for one in axes.texts}
    assert {place: text for place, text in written.items() if place[1] >= 0} == {
        (0, 0): "2", (1, 1): "2", (0, 2): "1", (2, 2): "1",
    }  # fmt: skip
    assert [written[column, -1] for column in range(3)] == ["3", "7", "none"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["a (2)", "b (2)", "c (2)"]
    (axes,) = plots.confusion(having(result, np.arange(50), np.arange(50))).axes
    counts = [int(one.get_text()) for one in axes.texts if one.get_position()[1] > 0]
    assert sum(counts) == 50 and len(axes.get_yticks()) == 41
    with pytest.raises(ValueError, match=mentions("data", "plots.clusters")):
        plots.confusion(having(result, [0, 1], None))


@pytest.mark.parametrize(
    ("lower", "words"), [((), "1 better, 2 worse, 1 the same"), (("mse",), "2 better, 1 worse, 1")]
)
def test_personalisation_says_who_gains(result, lower, words):
    before, after = np.array([0.5, 0.5, 0.5, 0.5, np.nan]), np.array([0.9, 0.4, 0.4, 0.5, np.nan])
    was = having(result, [0, 0, 1, 1, 1], None)
    with pytest.raises(ValueError, match=mentions("result", "finetune=jaxfl.FineTune", "--set finetune=1")):
        plots.personalisation(was)
    plain = was.evaluation._replace(values={"mse": before})
    evaluation = plain._replace(finetuned=plain._replace(values={"mse": after}))
    summary = {**result.summary, "lower_is_better": list(lower)}
    dots, change = plots.personalisation(was._replace(evaluation=evaluation, summary=summary)).axes
    assert sorted(dots.collections[0].get_offsets().tolist()) == [[0.5, 0.4], [0.5, 0.4], [0.5, 0.5], [0.5, 0.9]]
    assert words in change.get_title(loc="left")


def test_classes_are_confused_as_they_are_tested(result):
    found, data = jaxfl.class_confusion(result), result.data
    test = [data.test.rows[start : start + size] for start, size in zip(data.test.start, data.test.size, strict=True)]
    for counts, cluster in zip(found.counts, found.cluster, strict=True):
        mine = np.concatenate(
            [rows for rows, own in zip(test, result.evaluation.cluster, strict=True) if own == cluster]
        )
        np.testing.assert_array_equal(counts.sum(1), np.bincount(np.asarray(data.labels)[mine], minlength=10))
    right = {k: np.trace(counts) / counts.sum() for k, counts in zip(found.cluster, found.counts, strict=True)}
    assert right == {
        one["cluster"]: pytest.approx(one["micro_accuracy"]) for one in result.evaluation.metrics["clusters"]
    }
    absent = result._replace(data=dataclasses.replace(data, held_out=np.arange(8) < 3))
    assert jaxfl.class_confusion(absent).counts.sum() == sum(len(rows) for rows in test[3:])
    with pytest.raises(ValueError, match=mentions("result", "jaxfl.classification")):
        jaxfl.class_confusion(result._replace(method=None))


def test_class_confusion_says_the_percent_of_a_row(result):
    counts = np.array([[[3, 1], [0, 0]], [[0, 999], [1, 999]]])
    found = jaxfl.ClassConfusion(counts, np.array([-1, 4]))
    figure = plots.class_confusion(found, having(result, [4, 4, -1], None))
    one, none = figure.axes
    assert [[text.get_text() for text in axes.texts] for axes in (one, none)] == [
        ["100", "·", "100", "cluster 4: 50.0 %"], ["75", "25", "no cluster: 75.0 %"],
    ]  # fmt: skip
    assert [tick.get_text() for tick in one.get_yticklabels()] == ["0", "1"]
    assert "data: 2,003 test rows, 1 cluster" in [text.get_text() for text in figure.texts]


@pytest.mark.parametrize(("classes", "clusters"), [(2, 1), (62, 30)])
def test_class_confusion_of_few_and_many(result, classes, clusters):
    cluster = np.arange(2 * clusters) % clusters
    counts = np.random.default_rng(0).integers(0, 3, (clusters, classes, classes)) + np.eye(classes, dtype=int)
    many = having(result, cluster, None)
    many = many._replace(data=dataclasses.replace(many.data, num_classes=classes))
    figure = plots.class_confusion(jaxfl.ClassConfusion(counts, np.arange(clusters)), many)
    assert len(figure.axes) == min(clusters, 12) and max(figure.get_size_inches()) < 16
    figure.canvas.draw()
    boxes = [one.get_tightbbox() for one in figure.axes]
    assert not any(one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place])
    assert all(figure.bbox.contains(*corner) for one in boxes for corner in one.get_points())


def test_similarity_draws_whose_cluster_is_known(result):
    some = having(result, [0, 0, 1, 0], np.array([0, 0, 0, 1]))
    rows, metrics = np.array([0, 0, 5, 5]), some.evaluation.metrics | {"eval_clients": 2}
    some = some._replace(evaluation=some.evaluation._replace(rows=rows, metrics=metrics))
    alike = ClientSimilarity(np.eye(4, dtype=np.float32), np.arange(4, dtype=np.int32))
    figure = plots.similarity(alike, some)
    assert figure.axes[0].images[0].get_array().shape == (2, 2)
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"0 (1)", "1 (1)"}
    untested = ClientSimilarity(np.eye(2, dtype=np.float32), np.arange(2, dtype=np.int32))
    with pytest.raises(ValueError, match=mentions("found", "2 of 4", "none")):
        plots.similarity(untested, some)


def test_similarity_is_of_clients_that_were_tested(result):
    rows, metrics = np.where(np.arange(8) < 3, 5, 0), result.evaluation.metrics | {"eval_clients": 3}
    some = result._replace(evaluation=result.evaluation._replace(rows=rows, metrics=metrics))
    assert jaxfl.client_similarity(some).clients.tolist() == [0, 1, 2]


def test_attackers_are_as_similar_as_their_rows(result):
    attacked = conditions.attack(result.data, "sign-flip", 0.5)
    wanted, found = (jaxfl.client_similarity(one) for one in (result, result._replace(data=attacked)))
    np.testing.assert_array_equal(found.matrix, wanted.matrix)


def test_similarity_is_of_the_data_and_in_the_order_of_the_clusters(result):
    size = np.where(np.arange(8) == 5, 0, np.asarray(result.data.train.size)).astype(np.int32)
    one_without = dataclasses.replace(result.data, train=dataclasses.replace(result.data.train, size=size))
    found = jaxfl.client_similarity(result._replace(data=one_without))
    assert found.clients.tolist() == [0, 1, 2, 3, 4, 6, 7]
    task, key = result.method.task, jax.random.key(result.seed)
    initial = result.method.init(key, result.data)  # of the run
    anchor = jax.tree.map(lambda leaf: leaf[0], result.method.client_params(initial, jnp.zeros(1, jnp.int32)))
    psi = jaxfl.representations(jaxfl.represent(task, optax.sgd(1.0), size=4096), key, anchor, result.data)
    wanted = cosine(np.asarray(psi)[found.clients])
    np.testing.assert_allclose(found.matrix, wanted, atol=1e-5)
    group = np.asarray(result.data.group)[found.clients]
    same = (group[:, None] == group) & ~np.eye(7, dtype=bool)
    assert found.matrix[same].mean() > 2 * found.matrix[group[:, None] != group].mean()
    with pytest.raises(ValueError, match=mentions("clients", 1)):
        jaxfl.client_similarity(result, clients=1)

    cluster, group = np.array([7, 3, 7, 3, -1, 3, 3, 3]), np.array([1, 0, 0, 0, 1, 0, 1, 0])
    figure = plots.similarity(found, having(result, cluster, group, ("a", "b")))
    axes, _, clusters, groups = figure.axes
    order = [found.clients.tolist().index(client) for client in (1, 3, 7, 6, 2, 0, 4)]  # in a cluster by group
    off = ~np.eye(7, dtype=bool)
    np.testing.assert_array_equal(axes.images[0].get_array()[off], found.matrix[np.ix_(order, order)][off])
    assert {line.get_xdata()[0] for line in axes.get_lines() if len(set(line.get_xdata())) == 1} == {4, 6}
    first, second = plots.palette()[:2]
    strip = [[to_hex(color).upper() for color in one.images[0].get_array()[:, 0]] for one in (clusters, groups)]
    assert strip[0] == [first] * 4 + [second] * 2 + [plots.NO_CLUSTER_COLOR]
    assert strip[1] == [first] * 3 + [second, first, second, second]
