"""Pictures of local models in the plane show what the sketches say, for few and strange ones too."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

import jaxfl
from jaxfl import plots
from jaxfl.plots import maps
from tests.messages import mentions


def planted(sizes=(5, 8), features=6, apart=10.0, seed=0):
    """Returns the sketches of clients around centres that lie apart; the cluster of place k has slot 3 + k."""
    random = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(len(sizes)), sizes)
    points = apart * cluster[:, None] + random.normal(size=(len(cluster), features))
    clients = np.arange(len(cluster), dtype=np.int32)
    own = np.ones(len(cluster), bool)
    return jaxfl.Sketches(points.astype(np.float32), clients, (3 + cluster).astype(np.int32), own)


def dots(axes):
    """Returns the places `[M, 2]` and the colours of the dots."""
    (collection,) = axes.collections
    return np.asarray(collection.get_offsets()), np.array([to_hex(c).upper() for c in collection.get_facecolor()])


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_planted_groups_separate_and_have_colours():
    figure = plots.models(planted())
    assert legend(figure) == ["4 (8)", "3 (5)"]  # the larger first
    pca, tsne = figure.axes
    for axes in (pca, tsne):
        places, colors = dots(axes)
        one, other = (places[colors == color] for color in plots.palette()[:2])
        assert len(one) == 8 and len(other) == 5
        within = max(np.linalg.norm(part - part.mean(0), axis=1).max() for part in (one, other))
        assert np.linalg.norm(one.mean(0) - other.mean(0)) > 2 * within
    sketches = planted()
    values = np.linalg.svd(sketches.points - sketches.points.mean(0))[1] ** 2
    assert pca.get_xlabel() == f"component 1 ({100 * values[0] / values.sum():.1f} % of the variance)"
    assert tsne.get_title(loc="left") == "t-SNE, perplexity 4"  # a third of the others
    spread = np.ptp(dots(pca)[0], axis=0)
    assert spread[0] == pytest.approx(
        np.ptp(maps.principal_components(sketches.points - sketches.points.mean(0))[0][:, 0])
    )


@pytest.mark.parametrize(
    "sketches",
    [
        pytest.param(planted((1, 1)), id="two"),
        pytest.param(planted((2, 1)), id="three"),
        pytest.param(planted((4, 3), features=1), id="one number"),
        pytest.param(planted((4, 4), apart=0.0)._replace(points=np.ones((8, 3), np.float32)), id="equal"),
        pytest.param(planted((1,) * 40), id="a cluster each"),
        pytest.param(planted((6,))._replace(cluster=np.full(6, -1, np.int32)), id="nobody in a cluster"),
    ],
)
def test_models_for_few_and_strange(sketches):
    figure = plots.models(sketches)
    for axes in figure.axes:
        places, _ = dots(axes)
        assert places.shape == (len(sketches.points), 2) and np.isfinite(places).all()
    FigureCanvasAgg(figure).draw()
    box = figure.legends[0].get_window_extent()
    assert box.x1 <= figure.bbox.x1 and box.y0 >= 0
    assert all(axes.get_window_extent().x1 <= box.x0 for axes in figure.axes)


def test_clients_without_a_model_of_their_own_are_left_out():
    sketches = planted()
    own = np.arange(13) > 2
    strange = np.where(own[:, None], sketches.points, 1e6).astype(np.float32)
    figure = plots.models(sketches._replace(points=strange, trained=own), by="pca")
    assert len(dots(figure.axes[0])[0]) == 10 and legend(figure) == ["4 (8)", "3 (2)"]
    assert "local models of 10 clients; 3 without one" in figure._suptitle.get_text()


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("umap", ("by", "umap")),
        ([], ("by", "none")),
        (["pca", "mds"], ("by", "mds")),
    ],
)
def test_unknown_maps_are_refused(by, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        plots.models(planted(), by=by)
