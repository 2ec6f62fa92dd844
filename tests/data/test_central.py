"""One central test set for all clients: the official one, or else the test rows of all, each once."""

import numpy as np
import pytest
from typer.testing import CliRunner

from jaxfl import data
from jaxfl.cli.app import app
from jaxfl.data import divide, federate
from tests.messages import mentions

RNG = np.random.Generator(np.random.PCG64(0))
COUNT, TESTS = 240, 30
OPTIONS = {
    "writers": {},
    "dominant": {"num_clients": 4, "rows_per_client": 20},
    "hybrid": {"num_clients": 2},
    "mirrored": {"num_clients": 3},
    "thickened": {"num_clients": 3},
    "missing": {"num_clients": 5},
    "downsampled": {"num_clients": 4},
    "permuted": {"num_clients": 4},
    "swapped": {"num_clients": 4},
    **{
        skew: {"num_clients": 4}
        for skew in ("iid", "quantity", "dirichlet", "shards", "pathological", "rotated", "shifted")
        + ("coloured", "corrupted", "classwise")
    },
}


@pytest.fixture
def path(tmp_path):
    images = RNG.integers(0, 256, (COUNT + TESTS, 4, 4), np.uint8)
    labels = np.arange(COUNT + TESTS) % 10
    arrays = {"x": images[:COUNT], "y": labels[:COUNT], "test_x": images[COUNT:], "test_y": labels[COUNT:]}
    clients = {"client": np.arange(COUNT) % 6, "test_client": np.arange(TESTS) % 6}
    domains = {"domain": np.arange(COUNT) // (COUNT // 2), "test_domain": np.arange(TESTS) // (TESTS // 2)}
    np.savez(tmp_path / "own.npz", **arrays, **clients, **domains)
    return tmp_path / "own.npz"


def rows_of(split, client):
    return np.asarray(split.rows)[split.start[client] :][: split.size[client]]


def test_every_skew_has_its_case():
    assert set(OPTIONS) == set(data.SKEWS)


@pytest.mark.parametrize("skew", OPTIONS)
def test_the_official_test_set_is_for_all_and_no_row_is_set_aside(path, skew):
    fed = data.load(f"{skew}-npz", data_dir=path, test="central", **OPTIONS[skew])
    origin = np.arange(len(fed.inputs)) if fed.origin is None else fed.origin  # corrupted rows are copies
    for client in range(fed.num_clients):
        assert origin[rows_of(fed.test, client)].tolist() == list(range(COUNT, COUNT + TESTS))
    views = {"corrupted": 4, "thickened": 3}
    assert len(fed.test.rows) == TESTS * views.get(skew, 1), "stored once, of every view"
    trained = np.unique(origin[fed.train.rows])
    assert trained.max() < COUNT and (len(trained) == COUNT or skew in ("dominant", "downsampled"))
    with pytest.raises(ValueError, match=mentions("test_share", "test=central", 0.3)):
        data.load(f"{skew}-npz", data_dir=path, test="central", test_share=0.3, **OPTIONS[skew])


@pytest.mark.parametrize("name", ["dirichlet-digits", "pathological-digits", "rotated+pathological-digits"])
def test_without_an_official_test_set_it_is_the_test_rows_of_all(name):
    options = {"num_clients": 8, "test_share": 0.25, "held_out": 0.25, "validation": 0.2, "seed": 1}
    own, central = data.load(name, **options), data.load(name, **options, test="central")
    for client in range(8):
        assert rows_of(central.test, client).tolist() == np.unique(own.test.rows).tolist()
        assert rows_of(central.train, client).tolist() == rows_of(own.train, client).tolist()
    assert central.validation.size.tolist() == own.validation.size.tolist()
    if own.rotation is not None:  # each client sees them as its own rows
        assert central.rotation.tolist() == own.rotation.tolist() and len(set(own.rotation.tolist())) > 1


def test_a_saved_federation_is_tested_as_each_client_sees_all_rows(tmp_path):
    fed = data.load("corrupted+dirichlet-digits", num_clients=8, max_rows=40)
    data.stored.save(fed, tmp_path / "fed")
    central = data.load("saved", data_dir=tmp_path / "fed", test="central")
    assert central.corruption.tolist() == fed.corruption.tolist() and len(set(fed.corruption.tolist())) == 4
    assert len(set(central.test.size.tolist())) == 1
    for client in range(8):
        rows, own = central.origin[rows_of(central.test, client)], fed.origin[rows_of(fed.test, client)]
        place = np.searchsorted(rows, own)
        shown = central.inputs[rows_of(central.test, client)][place]
        np.testing.assert_array_equal(shown, fed.inputs[rows_of(fed.test, client)])


def test_a_saved_federation_a_drift_and_a_run(tmp_path):
    sets = [f"--set={item}" for item in ("num_clients=4", "test_share=0.5")]
    saved = CliRunner().invoke(app, ["data", "pathological-digits", *sets, "--save", str(tmp_path / "fed")])
    assert saved.exit_code == 0, saved.output
    fed = data.load("saved", data_dir=tmp_path / "fed", test="central", drift="swap", drift_round=2, drift_share=0.5)
    assert len(set(fed.test.size.tolist())) == 1 and fed.at(3).test.size.tolist() == fed.test.size.tolist()
    run = ["run", "fedavg", "--data", "saved", "--data-dir", str(tmp_path / "fed"), "--rounds", "1", "--quiet"]
    made = CliRunner().invoke(app, [*run, "--set", "test=central", "--set", "model=logistic"])
    assert made.exit_code == 0, made.output
    wrong = CliRunner().invoke(app, [*run, "--set", "test=middle"])
    assert wrong.exit_code == 2 and "central" in wrong.output and "middle" in wrong.output


def test_rows_that_somebody_trains_on_are_no_central_test_set():
    pool = np.arange(8, dtype=np.float32)[:, None], np.arange(8) % 2
    lists = [np.array([0, 1]), np.array([2, 3])], [np.array([2]), np.array([4])]
    fed = federate(*pool, *lists, num_classes=2, check_repeats=False)
    with pytest.raises(ValueError, match=mentions("test", "central", "row 2")):
        divide.central_test(fed)
