"""The default network of data of one's own: by the shape of the inputs; an older run goes on with its own."""

import json

import jax
import numpy as np
import pytest

import jaxfl
from jaxfl.data import catalog
from jaxfl.jobs.job import run_named
from jaxfl.models import AutoNetwork
from jaxfl.settings import options
from tests.messages import mentions

FEW = {"rounds": 1, "cohort": 2, "num_clients": 4, "local_epochs": 1}


@pytest.fixture
def own(tmp_path):
    """Returns a function that writes a file with images of a shape, and returns its path."""

    def write(*shape):
        rng, path = np.random.default_rng(0), tmp_path / "own.npz"
        np.savez(path, x=rng.integers(0, 255, (24, *shape), np.uint8), y=np.arange(24) % 2)
        return path

    return write


@pytest.mark.rotating(weeks=3)
@pytest.mark.parametrize(
    ("shape", "first"), [((30, 29, 3), "Conv_0"), ((28, 28, 3), "Dense_0"), ((40, 30), "Dense_0"), ((9,), "Dense_0")]
)
def test_large_colour_images_get_convolutions(own, shape, first, tmp_path):
    result = run_named("fedavg", "iid-npz", data_dir=own(*shape), out=tmp_path / "a", hidden=4, **FEW)
    assert next(iter(result.state.model)) == first
    config = json.loads((tmp_path / "a" / "config.json").read_text(encoding="utf-8"))
    assert (config["model"], config["model.hidden"]) == ("auto", 4)
    again = jaxfl.load(tmp_path / "a", data_dir=own(*shape))
    assert again.params(client=0)[first]["kernel"].shape == result.state.model[first]["kernel"].shape


def test_sources_of_the_package_keep_their_networks():
    names = {name: row.model[0] for name, row in catalog.DATASETS.items()}
    assert {name.rpartition("-")[2] for name, model in names.items() if model == "auto"} == {"npz", "parquet", "folder"}
    assert names["rotated-mnist"] == "mlp" and catalog.dataset("saved").model == ("auto", {})
    assert isinstance(options.model(options.route("fedavg", "iid-npz"), 3), AutoNetwork)


def test_a_run_of_before_goes_on_with_the_network_that_it_began_with(own, tmp_path):
    """There `mlp` was the default, of 2048; a run with a width of its own is given it again."""
    path, out = own(30, 30, 3), tmp_path / "a"
    run_named("fedavg", "iid-npz", data_dir=path, out=out, model="mlp", hidden=4, **FEW)
    on = {**FEW, "rounds": 2, "out": out, "resume": True, "data_dir": path}
    with pytest.raises(ValueError, match=mentions("hidden", 2048, 4)):
        run_named("fedavg", "iid-npz", **on)
    result = run_named("fedavg", "iid-npz", hidden=4, **on)
    assert next(iter(result.state.model)) == "Dense_0" and result.summary["options"]["model"] == "mlp"


@pytest.mark.parametrize(
    ("shape", "width"), [((64, 128), 2048), ((91, 91), 128), ((60_000,), 128), ((8, 40, 40, 3), 128)]
)
def test_wide_rows_get_a_narrow_network(shape, width):
    """Images without an axis of channels, films and long rows: 256 x 256 pixels and 2048 units are 134 million."""
    init = AutoNetwork(num_classes=2).init
    shapes = jax.eval_shape(init, jax.random.key(0), np.zeros((1, *shape), np.float32))["params"]
    assert shapes["Dense_0"]["kernel"].shape == (np.prod(shape), width)


def test_tokens_to_predict_need_a_network_of_sequences(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 9, (24, 5))
    np.savez(tmp_path / "own.npz", x=tokens[:, :-1], y=tokens[:, 1:])
    with pytest.raises(ValueError, match=mentions("char-rnn", "transformer")):
        run_named("fedavg", "iid-npz", data_dir=tmp_path / "own.npz", **FEW)
