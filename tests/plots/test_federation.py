"""The pictures of a federation show its labels and its examples as the clients see them, for few and for many."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg

import jaxfl
from jaxfl import plots
from jaxfl.data.describe import label_counts
from jaxfl.plots import examples, federation, style
from tests.messages import mentions


def made(num_clients, num_classes, groups=0, shape=(4, 4), seed=0, **more):
    """Returns clients with about six random rows each."""
    random = np.random.default_rng(seed)
    inputs = random.integers(0, 256, (200, *shape)).astype(np.uint8)
    parts = [random.integers(0, 200, random.integers(1, 12)) for _ in range(num_clients)]
    group = random.permutation(np.arange(num_clients) % groups) if groups else None
    labels = random.integers(0, num_classes, 200)
    options = {"num_classes": num_classes, "group": group, "check_repeats": False}  # parts may have a row twice
    return jaxfl.data.federate(inputs, labels, parts, parts, **options, **more)


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts] + [text.get_text() for text in figure.texts]


def inside(figure):
    """Returns whether nothing is cut off."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    box = figure.get_tightbbox(canvas.get_renderer())
    wide, high = figure.get_size_inches() + 0.01
    return box.x0 >= -0.01 and box.y0 >= -0.01 and box.x1 <= wide and box.y1 <= high


@pytest.mark.parametrize(
    ("num_clients", "num_classes", "groups"),
    [(1, 2, 0), (4, 2, 2), (40, 10, 4), (1000, 10, 4), (300, 62, 21), (90, 12, 90), (30, 200, 3)],
)
def test_labels_are_readable_for_few_and_many(num_clients, num_classes, groups):
    names = tuple(f"a site called {index}" for index in range(groups))
    fed = made(num_clients, num_classes, groups, group_names=names)
    figure = plots.labels(fed)
    assert inside(figure) and max(figure.get_size_inches()) < 14
    words = texts(figure)
    assert any(word.startswith(f"data: {num_clients:,} client") for word in words)
    assert any("800 of 1,000" in word for word in words) == (num_clients == 1000)
    own = [word for word in words if word.startswith("a site")]
    assert len(own) == (groups if groups <= federation.MAX_NAMED else 0)


def drawn_shares(share, num_classes):
    """Returns the share of each class `[columns, L]` that the colours of a picture show."""
    image = np.asarray(share.images[0].get_array())  # [500, columns, 3]
    colors = [[int(color[at : at + 2], 16) for at in (1, 3, 5)] for color in style.class_colors(num_classes)]
    return np.array([(image == np.array(color)[None, None]).all(2).mean(0) for color in colors]).T


def test_columns_are_the_shares_of_the_clients_in_order():
    fed = made(6, 3, groups=2, label_shift=np.arange(6) % 3)
    _, share, rows = plots.labels(fed).axes
    sizes, group = fed.train.size, fed.group
    order = sorted(range(6), key=lambda client: (group[client], -sizes[client], client))
    assert rows.patches[0].get_data().values.tolist() == sizes[order].tolist()
    assert [tick.get_text() for tick in share.get_xticklabels()] == [str(client) for client in order]
    counts = label_counts(fed)[order]
    assert np.allclose(drawn_shares(share, 3), counts / counts.sum(1, keepdims=True), atol=0.005)


def test_many_clients_without_groups_are_ordered_by_what_they_have_most():
    fed = made(200, 3)
    figure = plots.labels(fed)
    drawn, counts = drawn_shares(figure.axes[1], 3), label_counts(fed)
    most = np.sort(counts.argmax(1))
    assert set(most.tolist()) == {0, 1, 2}
    assert np.all(drawn[np.arange(200), most] >= drawn.max(1) - 0.005)
    shares = counts.max(1) / counts.sum(1)
    for one in range(3):
        assert np.allclose(drawn[most == one, one], np.sort(shares[counts.argmax(1) == one])[::-1], atol=0.005)
    assert any("most frequent class" in text for text in texts(figure))


def test_a_heat_map_has_a_row_for_each_class_and_empty_clients_are_white():
    fed = made(5, 20)
    empty = jaxfl.data.federate(fed.inputs, fed.labels, [np.arange(9), np.zeros(0, int)], [[]] * 2, num_classes=20)
    share = plots.labels(empty).axes[1]
    shares = np.asarray(share.images[0].get_array())
    assert shares.shape == (20, 2) and shares[:, 1].max() == 0
    assert np.allclose(shares[:, 0], np.bincount(fed.labels[:9], minlength=20) / 9)
    few = jaxfl.data.federate(fed.inputs, fed.labels % 2, [np.arange(9), np.zeros(0, int)], [[]] * 2, num_classes=2)
    assert (np.asarray(plots.labels(few).axes[1].images[0].get_array())[:, 1] == 255).all()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, federation.WIDTH), min_size=1, max_size=40))
def test_names_are_moved_apart(places):
    places = np.sort(np.array(places))
    moved = federation._spread_positions(places, 0.135)
    assert np.all(np.diff(moved) >= 0.135 - 1e-9)
    assert moved[0] >= 0 and moved[-1] <= federation.WIDTH + 1e-9
    if np.all(np.diff(places) >= 0.136):
        assert np.allclose(moved, places)


@pytest.mark.parametrize("skew", ["rotated", "shifted"])
def test_montage_shows_what_a_client_sees(skew):
    fed = jaxfl.data.load(f"{skew}-digits", num_clients=8, rows_per_client=30)
    rows = examples._sample_rows(fed, np.arange(8), 20, seed=3)
    images, classes = examples._render_examples(fed, rows)
    assert {client for client, _ in rows} == set(range(8)) and len(set(rows)) == 20
    for (client, position), image, name in zip(rows, images, classes, strict=True):
        batch = fed.batch(fed.train, client, jnp.array([position]))
        seen = np.asarray(batch.x[0]) * fed.std + fed.mean
        assert np.allclose(image * images_max(fed, rows), seen, atol=1e-3) and name == str(int(batch.y[0]))


def images_max(fed, rows):
    return max(int(fed.inputs[fed.train.rows[fed.train.start[client] + position]].max()) for client, position in rows)


@pytest.mark.parametrize(
    ("groups", "shape", "more", "images"),
    [
        (3, (4, 4), {}, 36),
        (3, (4, 4, 1), {}, 36),
        (3, (4, 6, 3), {"mean": np.array([9.0, 8.0, 7.0]), "std": np.array([50.0, 60.0, 70.0])}, 36),
        (21, (4, 4), {}, 126),
        (70, (4, 4), {}, 240),  # 60 groups are drawn
    ],
)
def test_montage_for_grey_and_colour_and_many_groups(groups, shape, more, images):
    fed = made(280, 4, groups, shape, class_names=("a", "b", "c", "a very long name"), **more)
    figure = plots.montage(fed)
    (axes,) = figure.axes
    assert len(axes.images) == images and inside(figure) and max(figure.get_size_inches()) < 16
    assert all(0 <= np.asarray(image.get_array()).min() for image in axes.images)
    assert {text for text in texts(figure) if len(text) == 1} == {"a", "b", "c"}
    assert any(text.startswith("a ver") and text.endswith("…") for text in texts(figure))
    assert any("60 of 70 groups" in text for text in texts(figure)) == (groups == 70)


def test_colours_survive_the_normalisation():
    fed = made(12, 4, 2, (4, 4, 3), mean=np.array([9.0, 8.0, 7.0]), std=np.array([50.0, 60.0, 70.0]))
    rows = [(5, 0), (2, 0)]
    images, _ = examples._render_examples(fed, rows)
    pool = [fed.inputs[fed.train.rows[fed.train.start[client]]] for client, _ in rows]
    assert np.allclose(images * 255, pool, atol=1e-3)


def test_montage_without_groups_has_a_row_for_each_of_some_clients():
    figure = plots.montage(made(20, 4), per_group=3, seed=1)
    names = [text for text in texts(figure) if text.startswith("client ")]
    assert len(set(names)) == len(names) == 8
    assert any("8 of 20 clients" in text for text in texts(figure))
    other = [text for text in texts(plots.montage(made(20, 4), per_group=3, seed=2)) if text.startswith("client ")]
    assert other != names


def test_montage_leaves_groups_without_rows_empty():
    inputs, labels = np.zeros((4, 2, 2), np.uint8), np.zeros(4, int)
    parts = [np.arange(2), np.zeros(0, int)]
    fed = jaxfl.data.federate(inputs, labels, parts, parts, num_classes=2, group=np.array([0, 1]))
    assert len(plots.montage(fed).axes[0].images) == 2
    empty = jaxfl.data.federate(inputs, labels, [parts[1]] * 2, parts, num_classes=2)
    with pytest.raises(ValueError, match=mentions("montage", "groups", "training row")):
        plots.montage(empty)


def test_what_is_no_image_is_refused():
    with pytest.raises(ValueError, match=mentions("montage", "inputs", "(7,)")):
        plots.montage(made(4, 2, shape=(7,)))
    with pytest.raises(ValueError, match=mentions("per_group", 0)):
        plots.montage(made(4, 2), per_group=0)
