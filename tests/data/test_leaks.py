"""Rows are whose the user says: test rows of makers, rows that are in both, and makers that are left out."""

import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import data
from jaxfl.data.describe import describe
from jaxfl.data.leaks import count_repeated_rows
from tests.data import leaf_files
from tests.messages import mentions

RNG = np.random.Generator(np.random.PCG64(0))
X, Y = RNG.normal(size=(40, 9)).astype(np.float32), np.arange(40) % 2
TRAINED, TESTED = np.repeat(["ann", "bob"], 16), np.repeat(["ann", "bob"], 4)
OWN = {"x": X[:32], "y": Y[:32], "client": TRAINED, "test_x": X[32:], "test_y": Y[32:], "test_client": TESTED}


def rows_of(split, client):
    return split.rows[split.start[client] :][: split.size[client]].tolist()


def written(folder, **changes):
    np.savez(folder / "own.npz", **{name: values for name, values in (OWN | changes).items() if values is not None})
    return folder / "own.npz"


def test_test_rows_of_a_file_are_never_trained_on(tmp_path):
    fed = data.load("writers-npz", data_dir=written(tmp_path))
    assert (rows_of(fed.train, 0), rows_of(fed.test, 0)) == ([*range(16)], [*range(32, 36)])
    assert (rows_of(fed.train, 1), rows_of(fed.test, 1)) == ([*range(16, 32)], [*range(36, 40)])
    anew = data.load("writers-npz", data_dir=written(tmp_path), test_share=0.25)
    assert set(range(32, 40)) & set(anew.train.rows.tolist()) and anew.train.size.tolist() == [15, 15]
    with pytest.warns(UserWarning, match=mentions("writers-npz", "test_share=0.2", 0.25)):
        kept = data.load("writers-npz", data_dir=written(tmp_path), test_share=0.2)
    assert kept.test.rows.tolist() == fed.test.rows.tolist()
    alone = written(tmp_path, test_x=None, test_y=None, test_client=None)
    assert data.load("writers-npz", data_dir=alone).test.size.tolist() == [4, 4]


@pytest.mark.parametrize("by_user", [True, False])
def test_leafs_split_is_kept(tmp_path, by_user):
    """With -t user the users of the test set are others, whom nobody trains on."""
    train = leaf_files.users({"f0000_14": 6, "f0001_41": 5})
    test = leaf_files.users({"f0002_00": 4} if by_user else {"f0000_14": 2, "f0001_41": 3}, seed=90)
    leaf_files.write_json(tmp_path / "train" / "all_data_0_train.json", train)
    leaf_files.write_json(tmp_path / "test" / "all_data_0_test.json", test)
    if by_user:
        lost = pytest.warns(UserWarning, match=mentions("1 of 3 clients", "group"))
        with lost, pytest.warns(UserWarning, match=mentions("1 of 3 makers", "held out", "test_share=0.25")):
            fed = data.load("femnist", data_dir=tmp_path)
        assert fed.held_out.tolist() == [False, False, True] and fed.train.size.tolist() == [6, 5, 0]
        assert fed.test.size.tolist() == [0, 0, 4]
    else:
        fed = data.load("femnist", data_dir=tmp_path)
        assert fed.held_out is None and (fed.train.size.tolist(), fed.test.size.tolist()) == ([6, 5], [2, 3])
    assert fed.train.rows.max() < 11 <= fed.test.rows.min()


def test_test_rows_that_nobody_is_tested_on_are_told(tmp_path):
    unnamed = written(tmp_path, test_client=None).rename(tmp_path / "unnamed.npz")
    path = written(tmp_path)
    for name, place, options in (("dirichlet-npz", path, {"num_clients": 2}), ("writers-npz", unnamed, {})):
        with pytest.warns(UserWarning, match=mentions(name, 8, "test rows", "test_client", "test_share=0.2")):
            data.load(name, data_dir=place, **options)
        data.load(name, data_dir=place, **options, test_share=0.2)  # a warning would fail
    assert len(data.load("iid-npz", data_dir=path, num_clients=2).test.rows) == 8


@pytest.mark.parametrize("repeated", [1, 3])
@pytest.mark.parametrize("tokens", [True, False])
def test_identical_rows_in_training_and_test_are_counted_and_told(repeated, tokens):
    inputs = RNG.integers(0, 99, (40, 9)) if tokens else X.copy()
    labels = Y.copy()
    inputs[32 : 32 + repeated], labels[32 : 32 + repeated] = inputs[5 : 5 + repeated], labels[5 : 5 + repeated]
    labels[32 + repeated], inputs[32 + repeated] = 1 - labels[0], inputs[0]  # another label
    with pytest.warns(UserWarning, match=mentions(f"{repeated} of 8 test rows", "row 32", "row 5")) as seen:
        fed = data.federate(inputs, labels, [np.arange(32)], [np.arange(32, 40)], num_classes=2)
    assert [warning.filename for warning in seen] == [__file__]
    assert count_repeated_rows(fed) == repeated == describe(fed).repeated_test_rows


def test_a_file_with_identical_rows_is_told(tmp_path):
    path = written(tmp_path, test_x=X[28:36], test_y=Y[28:36])
    with pytest.warns(UserWarning, match=mentions("writers-own", "4 of 8 test rows", "row 32", "row 28")):
        data.load("writers-npz", data_dir=path)
    data.federate(X[[0, 0]], Y[[0, 0]], [[0]], [[1]], num_classes=2, check_repeats=False)  # a warning would fail


def test_rows_that_are_equal_by_chance_are_not_told():
    train, test = [np.arange(32)], [np.arange(32, 40)]
    few = RNG.integers(0, 3, (40, 3)).astype(np.float32)  # 27 rows are possible
    for inputs in (np.zeros((40, 9), np.float32), np.eye(40, 3, dtype=np.float32), few, X):
        assert count_repeated_rows(data.federate(inputs, Y, train, test, num_classes=2)) == 0


def test_test_rows_that_another_client_trains_on_are_told():
    train, test = [np.arange(9), np.arange(9, 18), np.arange(18, 27)], [[], np.r_[30, 7, 5], [31]]
    with pytest.warns(UserWarning, match=mentions("1 of 3 clients", "client 1", "row 5", "other clients")):
        data.federate(X, Y, train, test, num_classes=2)
    data.federate(X, Y, train, test, num_classes=2, check_repeats=False)  # a warning would fail, as below
    data.federate(X, Y, train, test, num_classes=2, held_out=[True, False, False])  # which nobody trains on
    data.federate(X, Y, train, train, num_classes=2)


def test_zeros_of_either_sign_are_equal():
    inputs = np.maximum(X, 0)
    inputs[33] = np.where(inputs[4] == 0, -0.0, inputs[4])
    labels = np.where(np.arange(40) == 33, Y[4], Y)
    assert np.signbit(inputs[33]).sum() > np.signbit(inputs[4]).sum()
    with pytest.warns(UserWarning, match=mentions("1 of 8 test rows", "row 33", "row 4")):
        data.federate(inputs, labels, [np.arange(32)], [np.arange(32, 40)], num_classes=2)


@pytest.mark.parametrize("columns", [1, 3])
def test_rows_of_few_numbers_are_told_where_training_rows_are_different(columns):
    """A table of three measurements: no two rows of it are equal by chance."""
    inputs = X[:, :columns].copy()
    inputs[34] = inputs[6]
    for values in (inputs, 5 * np.argsort(np.argsort(inputs, 0), 0)):  # floats, and different whole numbers
        values = np.where(np.arange(40)[:, None] == 34, values[6], values)
        with pytest.warns(UserWarning, match=mentions("1 of 8 test rows", "row 34", "row 6")):
            data.federate(values, Y, [np.arange(32)], [np.arange(32, 40)], num_classes=2)
    assert count_repeated_rows(data.federate(inputs[9:], Y[9:], [np.arange(23)], [[25]], num_classes=2)) == 0  # too few


@pytest.mark.parametrize("words", [1, 2, 7])
@pytest.mark.parametrize("byte", [0, 6, 7])
def test_rows_that_differ_in_one_byte_are_different(words, byte):
    inputs = np.zeros((256, 8 * words + 3), np.uint8)
    inputs[:, byte] = np.arange(256)
    inputs[:, -1] = 1
    fed = data.federate(inputs, np.arange(256) % 2, [np.arange(128)], [np.arange(128, 256)], num_classes=2, std=255.0)
    assert count_repeated_rows(fed) == 0


def test_makers_of_few_rows_are_counted(tmp_path):
    makers = np.r_[["one"], ["two"] * 2, ["many"] * 29]
    path = written(tmp_path, client=makers, test_x=None, test_y=None, test_client=None)
    with pytest.warns(UserWarning, match=mentions("own", "1 of 3 makers", "fewer than 2 rows", "min_rows=0")):
        assert data.load("writers-npz", data_dir=path).client_names == ("many", "two")
    with pytest.warns(UserWarning, match=mentions("own", "2 of 3 makers", "fewer than 5 rows")):
        assert data.load("writers-npz", data_dir=path, min_rows=5).client_names == ("many",)
    assert data.load("writers-npz", data_dir=path, min_rows=0).num_clients == 3


def test_makers_without_test_rows_are_told(tmp_path):
    path = written(tmp_path, client=np.r_[["cid"] * 4, TRAINED[4:]])
    with pytest.warns(UserWarning, match=mentions("own", "1 of 3 makers", "no test rows", "test_share=0.25")):
        fed = data.load("writers-npz", data_dir=path)
    assert dict(zip(fed.client_names, fed.test.size.tolist(), strict=True)) == {"ann": 4, "bob": 4, "cid": 0}


@pytest.mark.filterwarnings("ignore:.*makers have no training rows")
def test_clients_that_are_only_tested_are_evaluated_as_unseen(tmp_path):
    path = written(tmp_path, test_client=np.repeat(["cid", "dan"], 4))
    fed = data.load("writers-npz", data_dir=path)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=2), fed)
    result = jaxfl.run(jaxfl.methods.fedavg(task, optax.sgd(0.1)), fed, rounds=1, seed=0)
    assert 0 <= result.summary["unseen_micro_accuracy"] <= 1 and fed.held_out.tolist() == [False, False, True, True]
