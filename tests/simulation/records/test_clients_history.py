"""Each client's metrics at every evaluation: what they add up to, and the file that a stopped run leaves."""

import shutil

import numpy as np
import optax
import pandas
import pytest

import jaxfl
from jaxfl import methods
from jaxfl.data import divide
from jaxfl.data.synthetic import clustered_linear
from jaxfl.simulation.records.clients_history import CLIENTS_HISTORY, ClientsHistory
from jaxfl.simulation.records.history import History
from jaxfl.testing.small import linear_task
from tests.messages import mentions

DATA = divide.set_apart(clustered_linear(6, rows=20, features=4, num_classes=3), 0.2)
METHOD = methods.ifca(linear_task(), optax.sgd(0.1), num_clusters=2)
HOW = {"cohort": 3, "eval_every": 2, "checkpoint_every": 3}


def run(rounds=8, data=DATA, **options):
    folder = {} if "checkpoint_dir" in options else {"checkpoint_every": None}
    return jaxfl.run(METHOD, data, rounds=rounds, **HOW | {"clients_history": True} | folder | options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run, its result, and copies of the folder at its events: what a kill would leave there."""
    folder, copies = tmp_path_factory.mktemp("whole"), []

    def copy(event):
        copies.append(shutil.copytree(folder, tmp_path_factory.mktemp("killed") / f"{event.round}"))

    return folder, run(checkpoint_dir=folder, callbacks=[copy]), copies


def test_the_metrics_of_all_clients_are_the_means_of_each_ones(whole):
    _, result, _ = whole
    clients, history = result.history.clients, result.history
    assert clients.rounds == history.column("round") == [2, 4, 6, 8]
    for name, column in (("micro", "accuracy"), ("validation_micro", "validation_accuracy")):
        assert clients[column].shape == (4, 6)
        # clients have equally many rows; only the order of the sum differs
        np.testing.assert_allclose(clients[column].mean(1), history.column(f"{name}_accuracy"), rtol=1e-12)
    assert len({tuple(row) for row in clients["accuracy"]}) > 1  # they change
    last = result.clients()
    for name in ("cluster", "accuracy", "f1", "loss"):
        assert np.array_equal(clients[name][-1], last[name])
    assert np.array_equal(clients["rows"][-1], last["test_rows"])
    assert np.array_equal(clients["cluster"], history.clusters)


def test_the_file_holds_what_the_history_does(whole):
    folder, result, _ = whole
    table = pandas.read_parquet(folder / CLIENTS_HISTORY)
    pandas.testing.assert_frame_equal(table, result.history.clients.to_pandas())
    assert list(table)[:5] == ["round", "client", "cluster", "rows", "accuracy"]
    pandas.testing.assert_frame_equal(table, jaxfl.load(folder).history.clients.to_pandas())


def test_wherever_a_run_is_killed_it_goes_on_to_the_same_file(whole, tmp_path):
    folder, _, copies = whole
    later = 0
    for number, copy in enumerate(copies):
        checkpoints = list(copy.glob("checkpoint*.npz"))
        held = ClientsHistory.read(copy / CLIENTS_HISTORY).rounds if checkpoints else []
        later += bool(checkpoints) and held[-1:] < History(copy / "history.jsonl").column("round")[-1:]
        if number in (0, len(copies) // 2, len(copies) - 1):
            run(checkpoint_dir=copy, resume=True)
            assert (copy / CLIENTS_HISTORY).read_bytes() == (folder / CLIENTS_HISTORY).read_bytes()
    assert later  # an evaluation after the last checkpoint was lost, and made again
    ahead = shutil.copytree(copies[len(copies) // 2], tmp_path / "ahead")  # killed right before a checkpoint's renaming
    shutil.copy(folder / CLIENTS_HISTORY, ahead)
    run(checkpoint_dir=ahead, resume=True)
    assert (ahead / CLIENTS_HISTORY).read_bytes() == (folder / CLIENTS_HISTORY).read_bytes()


@pytest.mark.parametrize("how", ["missing", "cut", "other", "text", "fewer"])
def test_a_file_that_is_missing_or_damaged_is_named_before_the_run_goes_on(how, whole, tmp_path):
    folder = shutil.copytree(whole[0], tmp_path / "run")
    path = folder / CLIENTS_HISTORY
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-50])
    elif how == "other":
        pandas.DataFrame({"round": [2], "client": [0]}).to_parquet(path)
    elif how == "text":
        pandas.read_parquet(path).assign(accuracy="high").to_parquet(path)
    else:
        ClientsHistory.read(path).until(4, path).save()
    before = {one.name: one.read_bytes() for one in folder.iterdir()}
    with pytest.raises(ValueError, match=mentions(CLIENTS_HISTORY, *([6] if how == "fewer" else []))):
        run(rounds=10, checkpoint_dir=folder, resume=True)
    assert before == {one.name: one.read_bytes() for one in folder.iterdir()}


def test_without_it_the_run_is_the_same_and_there_is_no_file(whole, tmp_path):
    _, result, _ = whole
    plain = run(checkpoint_dir=tmp_path, clients_history=False)
    assert plain.history.clients is None and not (tmp_path / CLIENTS_HISTORY).exists()
    assert "clients_history" not in History(tmp_path / "history.jsonl")[-1]
    seconds = {"seconds", "seconds_per_round"}
    for one, other in zip(plain.history, result.history, strict=True):
        assert {name: one[name] for name in one if name not in seconds} == {
            name: other[name] for name in other if name not in seconds
        }
    with pytest.raises(ValueError, match=mentions("clients_history", "True")):  # the earlier rounds would be missing
        run(checkpoint_dir=tmp_path, resume=True)


def test_several_seeds_have_a_file_each(whole, tmp_path):
    _, result, _ = whole
    first, second = run(checkpoint_dir=tmp_path, seeds=[0, 1])
    assert np.array_equal(first.history.clients["accuracy"], result.history.clients["accuracy"])
    assert not np.array_equal(second.history.clients["loss"], first.history.clients["loss"])
    for number, one in enumerate((first, second)):
        table = pandas.read_parquet(tmp_path / f"seed-{number}" / CLIENTS_HISTORY)
        pandas.testing.assert_frame_equal(table, one.history.clients.to_pandas())


def test_the_last_evaluation_is_of_all_rows_and_clients_without_rows_are_left_out():
    parts = [np.arange(20 * i, 20 * i + (20 if i else 0)) for i in range(6)]
    inputs = np.random.default_rng(0).normal(size=(120, 4)).astype(np.float32)
    data = jaxfl.data.federate(inputs, (inputs[:, 0] > 0).astype(int), parts, parts, num_classes=3)
    result = run(
        4, data, test_rows=5, finetune=jaxfl.FineTune(optax.sgd(0.1)), callbacks=[lambda event: event.round >= 2]
    )
    clients = result.history.clients
    assert clients.rounds == [2] and clients["rows"][:, 1:].tolist() == [[20] * 5]
    assert np.isnan(clients["accuracy"][:, 0]).all() and clients.to_pandas()["client"].min() == 1
    assert np.array_equal(clients["finetuned_accuracy"][-1, 1:], result.evaluation.finetuned.accuracy[1:])
