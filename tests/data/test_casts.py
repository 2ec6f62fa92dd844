"""Numbers at the door: no cast wraps, merges or changes a value silently, in any source and in `federate`."""

import dataclasses
import json
import warnings

import jax
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet as pq

from jaxfl import data
from jaxfl.data import casts, clients
from jaxfl.data.sources import leaf, npz, parquet, table
from tests.messages import mentions

RNG = np.random.Generator(np.random.PCG64(0))
X = RNG.normal(size=(12, 3)).astype(np.float32)
Y = np.arange(12) % 4
TRAIN, TEST = [np.arange(4), np.arange(4, 8)], [np.arange(8, 10), np.arange(10, 12)]


def federate(inputs=X, labels=Y, train=TRAIN, test=TEST, num_classes=4, **options):
    return data.federate(inputs, labels, train, test, num_classes=num_classes, **options)


@given(values=st.lists(st.integers(-(2**63), 2**64 - 1), min_size=1, max_size=5))
@settings(deadline=None)
def test_integers_are_kept_or_refused(values):
    """Also those that NumPy holds as unsigned numbers or not at all."""
    array = np.array(values)
    if array.dtype.kind not in "iu":
        return
    fit = all(-(2**31) <= value < 2**31 for value in values)
    if fit:
        assert casts.to_integers("ids", array).tolist() == values
    else:
        wrong = next(row for row, value in enumerate(values) if not -(2**31) <= value < 2**31)
        with pytest.raises(ValueError, match=mentions("ids", values[wrong], f"row {wrong}")):
            casts.to_integers("ids", array)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": Y + 2**31}, ("labels", 2**31, "row 0")),
        ({"labels": Y + 2**32}, ("labels", 2**32, "row 0")),
        ({"labels": Y.astype(np.uint64) + np.uint64(2**63), "num_classes": 2**63 + 9}, ("num_classes", 2**63 + 9)),
        ({"labels": Y + 2**31, "num_classes": 2**31 + 9}, ("num_classes", 2**31 + 9)),
        ({"inputs": np.full((12, 3), 2**31)}, ("inputs", 2**31, "row 0")),
        ({"group": [0, 2**32]}, ("group", 2**32, "row 1")),
        ({"label_shift": [0, 2**32]}, ("label_shift", 2**32, "row 1")),
        ({"train": [TRAIN[0], TRAIN[1] + 2**32]}, ("rows", 2**32 + 4)),
        ({"train": dataclasses.replace(clients.Split.pack(TRAIN), start=np.array([0.5, 4]))}, ("start", "float64")),
        ({"train": dataclasses.replace(clients.Split.pack(TRAIN), rows=np.arange(8) + 2**32)}, ("rows", 2**32)),
        ({"inputs": X.astype(np.float64) + 1.7e9}, ("inputs", "float32", "column 0")),
        ({"labels": 1.7e9 + np.arange(12.0), "num_classes": None}, ("labels", "float32", "row 11", "1700000011.0")),
        ({"labels": 1e-50 * np.arange(12.0), "num_classes": None}, ("labels", "float32")),
        ({"labels": 1e300 * np.arange(12.0), "num_classes": None}, ("labels", "float32", "1.1e+301", "row 11")),
        ({"inputs": X * np.float32(1e-39)}, ("inputs", "float32", f"{np.finfo(np.float32).tiny:.3g}")),
        ({"labels": 1e-40 * np.arange(12.0), "num_classes": None}, ("labels", "float32", "1.1e-39")),
        ({"mean": 1.0, "std": 1e-60}, ("std", 0.0)),
    ],
)
def test_federate_refuses_what_would_change(change, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        federate(**change)


def test_quarter_turns_of_the_least_integer_are_none():
    with pytest.raises(ValueError, match=mentions("rotation", -(2**31))):
        federate(np.zeros((12, 4, 4), np.float32), rotation=[0, -(2**31)])


def test_a_large_shift_is_added_modulo_the_classes():
    """2**31 - 1 and a label would be beyond 32 bits."""
    fed = jax.device_put(federate(label_shift=[2**31 - 1, -3]))
    for client, shift in enumerate((2**31 - 1, -3)):
        batch = fed.batch(fed.train, np.int32(client), np.arange(4))
        assert batch.y.tolist() == ((Y[TRAIN[client]] + shift) % 4).tolist()


def test_different_numbers_that_become_equal_are_told():
    ids = 5e7 + np.arange(10_000.0)
    rows = [np.arange(5000)], [np.arange(5000, 10_000)]
    with pytest.warns(UserWarning, match=mentions("inputs", "7499 of 10000", "column 1", "float32")):
        data.federate(np.stack([ids % 7, ids], 1), np.arange(10_000) % 2, *rows, num_classes=2)
    with pytest.warns(UserWarning, match=mentions("labels", "float32", "16777216.0 and 16777217.0")):
        data.federate(X, np.r_[2.0**24, 2.0**24 + 1, np.arange(10.0) * 1e6], TRAIN, TEST)
    with pytest.warns(UserWarning, match=mentions("inputs", 2**24 + 7)):
        federate(np.full((12, 3), 2**24 + 7))


@pytest.mark.parametrize("spread", [1e-4, 1.0, 1e6])
@pytest.mark.parametrize("centre", [0.0, 1.0, 300.0])
def test_usual_numbers_are_not_told(centre, spread):
    if centre > 1000 * spread:
        return
    inputs = centre + spread * RNG.normal(size=(20_000, 2))
    data.federate(inputs, inputs[:, 0], [np.arange(9)], [np.arange(9, 20)])  # a warning would fail
    data.federate(RNG.integers(0, 256, (40, 6, 6)) / 255, inputs[:40, 0], [np.arange(9)], [np.arange(9, 20)])
    data.federate(np.full((20, 9), 0.1) * np.arange(9), inputs[:20, 0], [np.arange(9)], [np.arange(9, 20)])


@pytest.mark.parametrize("order", [">", "<"])
def test_the_order_of_bytes_changes_nothing(tmp_path, order):
    def ordered(values):
        return values.astype(values.dtype.newbyteorder(order))

    arrays = {"x": X, "y": Y, "client": np.repeat([2**40, 7], 6), "mean": np.float32([1, 2, 3])}
    np.savez(tmp_path / "own.npz", **{name: ordered(values) for name, values in arrays.items()})
    fed = data.load("writers-npz", data_dir=tmp_path / "own.npz")
    assert fed.inputs.dtype.isnative and fed.client_names == ("7", str(2**40))
    np.testing.assert_array_equal(fed.inputs, X)
    again = federate(ordered(X), ordered(Y), [ordered(rows) for rows in TRAIN], TEST, mean=ordered(X[0]))
    batch = again.on_device().batch(again.train, np.int32(1), np.arange(4))
    np.testing.assert_allclose(batch.x, X[4:8] - X[0], rtol=1e-6)
    data.stored.save(fed, tmp_path / "saved")
    np.save(tmp_path / "saved" / "inputs.npy", ordered(X))
    if order == ">":
        with pytest.raises(ValueError, match=mentions("inputs.npy", ">f4")):
            data.stored.load(tmp_path / "saved")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.r_[0, 2**31], ("own.npz", "y", 2**31, "row 1")),
        (np.r_[0, 2**32], ("own.npz", "y", 2**32, "row 1")),
        (np.r_[0, 10**8], ("own.npz", "y", 10**8, "row 1", "np.unique")),
        (np.array([0, 2**63], np.uint64), ("own.npz", "y", 2**63, "row 1")),
        (np.r_[0, -(2**40)], ("own.npz", "y", -(2**40), "row 1")),
    ],
)
def test_ids_in_the_place_of_classes_are_refused_at_once(tmp_path, labels, message):
    np.savez(tmp_path / "own.npz", x=X[:2], y=labels)
    with pytest.raises(ValueError, match=mentions(*message)):
        npz.load(tmp_path / "own.npz")
    np.savez(tmp_path / "own.npz", x=X[:2], y=np.r_[0, 10**8], num_classes=10**9)
    with pytest.raises(ValueError, match=mentions("own.npz", "num_classes", 10**9)):
        npz.load(tmp_path / "own.npz")


def test_a_row_of_an_npz_file_is_named(tmp_path):
    wrong = X.copy()
    wrong[7, 2] = np.nan
    for name, values, message in (
        ("nan.npz", wrong, ("nan.npz", "pixels", "row 7", "column 2")),
        ("far.npz", X + np.float64(1.7e9), ("far.npz", "pixels", "float32", "column 0")),
    ):
        np.savez(tmp_path / name, pixels=values.astype(np.float64), y=Y)
        with pytest.raises(ValueError, match=mentions(*message)):
            npz.load(tmp_path / name, image="pixels")


def test_makers_of_training_and_test_rows_are_joined_as_they_are(tmp_path):
    """NumPy joins signed and unsigned integers to floats, in which 2**53 and 2**53 + 1 are one."""
    ids = {"client": np.repeat(np.array([2**53, 2**53 + 1], np.uint64), 6), "test_client": np.r_[2**53, 2**53 + 1]}
    np.savez(tmp_path / "own.npz", x=X, y=Y, test_x=X[:2] + 1, test_y=Y[:2], **ids)
    fed = data.load("writers-npz", data_dir=tmp_path / "own.npz")
    assert fed.client_names == (str(2**53), str(2**53 + 1)) and fed.test.rows.tolist() == [12, 13]
    np.savez(tmp_path / "own.npz", x=X, y=Y, test_x=X[:2] + 1, test_y=Y[:2], **ids | {"test_client": ["a", "b"]})
    with pytest.raises(ValueError, match=mentions("client", "uint64", "<U1")):
        data.load("writers-npz", data_dir=tmp_path / "own.npz")


def frame_file(folder, how, **columns):
    path = folder / f"own.{how}"
    frame = pd.DataFrame({"who": np.repeat(["ann", "bob"], 30), **columns})
    frame.to_parquet(path) if how == "parquet" else frame.to_csv(path, index=False)
    return path


BASES = {"seconds": 1_700_000_000, "nanoseconds": 1_700_000_000_000_000_000, "cards": 9_999_999_999_999_900}


@pytest.mark.parametrize("how", ["csv", "parquet"])
@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
@pytest.mark.parametrize("step", [1, 1000])
def test_tables_subtract_before_they_convert(tmp_path, how, base, step):
    counts = np.arange(60) * step
    path = frame_file(tmp_path, how, at=base + counts, y=RNG.normal(size=60))
    source = table.load(path, target="y", client="who")
    scaled = source.fit(source.inputs, source.labels, np.arange(60))[0][:, 0]
    np.testing.assert_allclose(scaled, (counts - counts.mean()) / counts.std(), atol=1e-6)
    target = table.load(path, target="at", client="who", numbers="y", scale_target=True)
    labels = target.fit(target.inputs, target.labels, np.arange(60))[1]
    np.testing.assert_allclose(labels, scaled, atol=1e-6)
    if step == 1 or base > 10**12:
        with pytest.raises(ValueError, match=mentions(path.name, "at", "scale_target=true")):
            table.load(path, target="at", client="who", numbers="y")


def test_columns_keep_their_values_where_floats_are_enough(tmp_path):
    far = RNG.normal(1e6, 1, 60).round(3)
    path = frame_file(tmp_path, "csv", size=far, same=5.0, y=RNG.normal(size=60).round(3))
    source = table.load(path, target="y", client="who")
    np.testing.assert_array_equal(source.inputs, np.stack([far, np.full(60, 5.0)], 1))
    with pytest.raises(ValueError, match=mentions("own.csv", "size", "float32", "1e+39", "row 4")):
        table.load(
            frame_file(tmp_path, "csv", size=np.where(np.arange(60) == 4, 1e39, far), y=far), target="y", client="who"
        )


def test_whole_numbers_to_predict_may_be_classes(tmp_path):
    path = frame_file(tmp_path, "csv", size=RNG.normal(size=60), y=np.arange(60) % 3)
    with pytest.warns(UserWarning, match=mentions("own.csv", "y", 3, "target_kind=class", "target_kind=number")):
        table.load(path, target="y", client="who")
    assert table.load(path, target="y", client="who", target_kind="number").num_classes == 1
    assert table.load(path, target="y", client="who", target_kind="class").num_classes == 3


@pytest.mark.parametrize("names", [["a", "a\0"], ["a\0", "b"]])
def test_names_that_end_in_nothing_stay_different(tmp_path, names):
    """NumPy cuts zero characters off the end of texts."""
    columns = {"who": names * 6, "label": Y, "size": X[:, 0], "image": X.tolist()}
    pq.write_table(pa.table(columns), tmp_path / "own.parquet")
    row = names.index(next(name for name in names if "\0" in name))
    with pytest.raises(ValueError, match=mentions("own.parquet", "who", f"row {row}")):
        table.load(tmp_path / "own.parquet", target="label", client="who", numbers="size", target_kind="class")
    with pytest.raises(ValueError, match=mentions("own.parquet", "who", f"row {row}")):
        parquet.load(tmp_path / "own.parquet", client="who")


def test_large_ids_of_parquet_are_kept(tmp_path):
    ids = np.repeat(np.array([2**64 - 1, 2**63], np.uint64), 6)
    pq.write_table(pa.table({"image": X.tolist(), "label": Y, "client": ids}), tmp_path / "own.parquet")
    assert data.load("writers-parquet", data_dir=tmp_path / "own.parquet").client_names == (str(2**63), str(2**64 - 1))
    pq.write_table(pa.table({"image": (X + np.float64(1.7e9)).tolist(), "label": Y}), tmp_path / "own.parquet")
    with pytest.raises(ValueError, match=mentions("own.parquet", "image", "float32", "column 0")):
        parquet.load(tmp_path / "own.parquet")
    pq.write_table(pa.table({"image": X.tolist(), "label": Y.astype(np.uint64) + ids}), tmp_path / "own.parquet")
    with pytest.raises(ValueError, match=mentions("own.parquet", "labels", "np.unique")):
        parquet.load(tmp_path / "own.parquet")


def test_pixels_between_grey_levels_are_not_rounded(tmp_path):
    def written(*pixels):
        user = {"x": [list(pixels)], "y": [1]}
        content = {"users": ["ann"], "num_samples": [1], "user_data": {"ann": user}}
        (tmp_path / "all_data_0.json").write_text(json.dumps(content))
        return tmp_path / "all_data_0.json"

    near = np.float32(7 / 255)
    assert leaf.read([written(51 / 255, float(near))], shape=(1, 2)).inputs.tolist() == [[[51, 7]]]
    with pytest.raises(ValueError, match=mentions("all_data_0.json", "ann", "row 0", 0.3071)):
        leaf.read([written(0.2, 0.3071)], shape=(1, 2))


def test_a_cast_of_everything_that_fits_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dtype in (np.int8, np.uint16, np.int64, np.uint64, bool):
            assert casts.to_integers("a", np.array([0, 1], dtype)).tolist() == [0, 1]
        assert casts.to_floats("a", np.float16([0.1]), np.float32, "").dtype == np.float32
