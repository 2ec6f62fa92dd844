"""Conventions of PyTorch, Keras, pandas and SciPy: recognised, and told or refused with the line to write."""

import re

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from jaxfl import data
from tests.messages import mentions

RNG = np.random.Generator(np.random.PCG64(0))
COUNT = 12
CLASSES = np.arange(COUNT) % 4
FLOATS = RNG.normal(size=(COUNT, 8)).astype(np.float32)
GREY = RNG.integers(0, 256, (COUNT, 1, 9, 9), np.uint8)
COLOUR = RNG.integers(0, 256, (COUNT, 9, 9, 3), np.uint8)
TOKENS = RNG.integers(0, 256, (COUNT, 64))
TRAIN, TEST = [np.arange(4), np.arange(4, 8)], [np.arange(8, 10), np.arange(10, COUNT)]


def federate(inputs=FLOATS, labels=CLASSES, num_classes=None, **options):
    if num_classes is None and np.ndim(labels) == 1 and np.asarray(labels).dtype.kind in "iu":
        num_classes = 4
    return data.federate(inputs, labels, TRAIN, TEST, num_classes=num_classes, **options)


class OnAccelerator:
    """A tensor that has a gradient, or is not in host memory."""

    def __array__(self, *args, **options):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": GREY, "labels": CLASSES[:, None], "num_classes": 4}, ("labels", "(12, 1)", "labels[:, 0]")),
        ({"inputs": COLOUR, "labels": CLASSES[:, None], "num_classes": 4}, ("labels", "(12, 1)", "labels[:, 0]")),
        ({"labels": CLASSES[:, None] % 2}, ("labels", "(12, 1)", "labels[:, 0]")),
        ({"labels": np.eye(4, dtype=int)[CLASSES]}, ("labels", "int64", "(12, 4)", "labels.argmax(1)")),
        ({"labels": np.eye(4, dtype=np.uint8)[CLASSES]}, ("labels", "uint8", "(12, 4)", "labels.argmax(1)")),
        (
            {"inputs": COLOUR.transpose(0, 3, 1, 2), "labels": RNG.integers(0, 9, (12, 3)), "num_classes": 9},
            ("labels", "(12, 3)", "(12, 3, 9, 9)", "transpose(0, 2, 3, 1)"),
        ),
        ({"inputs": np.ma.masked_less(FLOATS, -1)}, ("inputs", "masked", "filled")),
        ({"labels": np.ma.masked_equal(CLASSES, 3)}, ("labels", "masked", 3, "row 3")),
        ({"inputs": sparse.csr_matrix(FLOATS)}, ("inputs", "csr_matrix", "toarray")),
        ({"inputs": [[1.0, 2.0]] * 11 + [[1.0]]}, ("inputs", "2 in row 0", "1 in row 11", "pad")),
        ({"inputs": np.array([np.zeros(2), np.zeros(3)] * 6, object)}, ("inputs", "(2,)", "(3,)", "row 1", "pad")),
        ({"inputs": np.array([[1.0, None]] * 12, object)}, ("inputs", "None", "row 0", "np.array(inputs.tolist())")),
        ({"inputs": pd.DataFrame({"a": [1.0] * 12, "b": ["x"] * 12})}, ("inputs", "'b'", "get_dummies")),
        ({"inputs": pd.DataFrame({"at": pd.date_range("2024", periods=12)})}, ("inputs", "'at'")),
        ({"inputs": np.array(["2024-01-01"] * 12, "M8[s]")}, ("inputs", "datetime64[s]", "np.timedelta64")),
        ({"inputs": FLOATS > 0}, ("inputs", "bool", "astype(np.float32)")),
        ({"inputs": np.array([(1.0, 2)] * 12, "f4,i4")}, ("inputs", "structured_to_unstructured")),
        ({"inputs": COLOUR * np.uint16(257)}, ("inputs", "uint16", "astype(np.float32)")),
        ({"inputs": COLOUR.astype(int)}, ("inputs", "int64", "astype(np.uint8)")),
        ({"inputs": OnAccelerator()}, ("inputs", "OnAccelerator", "detach().cpu().numpy()")),
        ({"labels": pd.Series(list("abcd") * 3)}, ("labels", "np.unique")),
        ({"labels": CLASSES > 1}, ("labels", "bool", "astype(int)")),
        ({"labels": CLASSES % 2 * 2 - 1}, ("labels", -1, "(labels > 0).astype(int)")),
        ({"held_out": np.ma.masked_array([True, False], [True, False])}, ("held_out", "masked")),
        ({"inputs": {"a": FLOATS}}, ("inputs", "dict")),
        ({"inputs": np.zeros((COUNT, 0))}, ("inputs", "(12, 0)")),
        ({"inputs": np.float32(2.5)}, ("inputs", "[P, ...]", 2.5)),
        ({"inputs": FLOATS + 1j}, ("inputs", "complex64", "np.stack([values.real, values.imag], -1)")),
        ({"labels": CLASSES + 1j}, ("labels", "complex128", "np.stack([labels.real, labels.imag], 1)")),
        ({"inputs": np.zeros((COUNT, 0, 3), int)}, ("inputs", "(12, 0, 3)")),
        ({"class_names": ["a", "b", "a", "c"]}, ("class_names", "a", "twice")),
        ({"class_names": ["a", "b", "c"]}, ("class_names", 4, 3)),
        ({"client_names": ["a", "a"]}, ("client_names", "a", "twice")),
        ({"group": [0, 1], "group_names": ["a", "a"]}, ("group_names", "a", "twice")),
        (
            {"inputs": GREY.repeat(3, 1), "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.2, 0.2]},
            ("mean", 3, "transpose(0, 2, 3, 1)"),
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:.*look like images with channels first")
def test_what_is_refused_says_the_line_to_write(change, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        federate(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.eye(4)[CLASSES]}, ("labels", "float64", "regression", "labels.argmax(1)")),
        ({"labels": np.eye(4)[CLASSES] > 0}, ("labels", "bool", "labels.argmax(1)")),
        ({"labels": CLASSES * 1.0}, ("labels", "regression", "0 to 3", "labels.astype(int)")),
        ({"labels": CLASSES + 1.0}, ("labels", "regression", "1 to 4", "(labels - 1).astype(int)")),
        ({"labels": (CLASSES[:, None] + 1.0)}, ("labels", "regression", "1 to 4", "(labels[:, 0] - 1).astype(int)")),
        ({"labels": CLASSES % 3 * 10.0}, ("labels", "regression", "0 to 20", "np.unique(labels, return_inverse=True)")),
        ({"labels": np.eye(4)[CLASSES] * 2 - 1}, ("labels", "float64", "regression", "labels.argmax(1)")),
        ({"labels": np.eye(4, dtype="f4")[CLASSES] * 0.9 + 0.025}, ("labels", "sum of 1", "labels.argmax(1)")),
        ({"labels": RNG.dirichlet(np.ones(3), COUNT)}, ("labels", "sum of 1", "labels.argmax(1)")),
        ({"labels": RNG.integers(0, 2, (COUNT, 3)) * 1.0}, ("labels", "0 to 1", "use labels > 0")),
        ({"labels": CLASSES * 0, "num_classes": 1}, ("labels", "one class", 0, "all 12 rows")),
        ({"labels": CLASSES % 2 * 1.0}, ("labels", "regression", "0 to 1", "labels.astype(int)")),
        ({"labels": (CLASSES % 2 * 2.0 - 1)[:, None]}, ("labels", "regression", "-1 to 1", "(labels[:, 0] > 0)")),
        ({"inputs": GREY}, ("inputs", "(12, 1, 9, 9)", "transpose(0, 2, 3, 1)")),
        ({"inputs": COLOUR.transpose(0, 3, 1, 2)}, ("inputs", "(12, 3, 9, 9)", "transpose(0, 2, 3, 1)")),
        ({"inputs": COLOUR.astype(np.float32)}, ("inputs", "0..255", "std=255")),
        ({"inputs": COLOUR.reshape(COUNT, -1).astype(float)}, ("inputs", "0..255", "std=255")),
        ({"inputs": COLOUR.reshape(COUNT, -1).astype(int)}, ("inputs", "0..255", 243, "astype(np.uint8)")),
        ({"inputs": np.where(FLOATS > 1, np.float32(1e20), FLOATS)}, ("inputs", "1e+20", "masked")),
        ({"inputs": COLOUR // 200}, ("inputs", "std=255", "std=1")),
        ({"inputs": COLOUR, "mean": 0.13, "std": 0.31}, ("mean", "0..255", "std=0.31")),
        ({"inputs": COLOUR / 255, "mean": 127.0, "std": 64.0}, ("mean", "0..1", "std=64")),
    ],
)
def test_what_is_told_says_the_line_to_write(change, message):
    with pytest.warns(UserWarning, match=mentions(*message)) as seen:
        federate(**change)
    assert [warning.filename for warning in seen] == [__file__]


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": COLOUR},
        {"inputs": COLOUR / 255},
        {"inputs": (COLOUR / 255).astype(np.float32), "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.2, 0.2]},
        {"inputs": COLOUR, "mean": [127.0] * 3, "std": [64.0] * 3},
        {"inputs": COLOUR.astype(np.float32), "std": 255.0},
        {"inputs": np.zeros((COUNT, 4, 4), np.uint8)},
        {"inputs": RNG.integers(32, 127, (COUNT, 64))},
        {"inputs": TOKENS, "labels": TOKENS, "num_classes": 256},
        {"inputs": RNG.integers(0, 9, (COUNT, 7)).astype(float)},
        {"inputs": (COLOUR > 127).astype(np.float32)},
        {"inputs": FLOATS.tolist(), "labels": CLASSES.tolist(), "num_classes": 4},
        {"inputs": pd.DataFrame(FLOATS), "labels": pd.Series(CLASSES, index=RNG.permutation(COUNT))},
        {"inputs": pd.DataFrame({"a": FLOATS[:, 0], "b": FLOATS[:, 0] > 0, "c": pd.array(FLOATS[:, 1], "Float64")})},
        {"inputs": np.ma.masked_array(FLOATS, mask=False)},
        {"labels": CLASSES / 2},
        {"labels": np.stack([CLASSES + 1.0, CLASSES], 1)},
        {"labels": RNG.normal(size=(COUNT, 3))},
        {"labels": CLASSES + 1.0, "check_kind": False},
        {"labels": RNG.integers(0, 2, (COUNT, 3))},
        {"labels": RNG.integers(0, 2, (COUNT, 3)) > 0},
        {"labels": np.linspace(0, 1, COUNT)},
        {"inputs": RNG.integers(0, 9, (COUNT, 1)), "labels": RNG.integers(0, 9, (COUNT, 1)), "num_classes": 9},
    ],
)
def test_arrays_of_this_package_are_not_told(change):
    federate(**change)  # a warning would fail


def test_a_series_keeps_the_order_of_its_rows():
    shuffled = pd.Series(CLASSES, index=RNG.permutation(COUNT))
    assert federate(labels=shuffled).labels.tolist() == CLASSES.tolist()


def test_one_test_row_that_looks_like_a_class_is_not_refused(tmp_path):
    """The rows of a file are looked at together."""
    flags = RNG.integers(0, 2, (COUNT, 3))
    flags[0] = 1
    np.savez(tmp_path / "own.npz", x=FLOATS, y=flags, test_x=FLOATS[:1] + 1, test_y=np.array([[0, 1, 0]]))
    fed = data.load("iid-npz", data_dir=tmp_path / "own.npz", num_clients=2)
    assert (fed.kind, fed.num_classes) == ("multilabel", 3)
    np.savez(tmp_path / "own.npz", x=FLOATS, y=np.eye(4, dtype=int)[CLASSES])
    with pytest.raises(ValueError, match=mentions("own.npz", "y", "labels.argmax(1)")):
        data.load("iid-npz", data_dir=tmp_path / "own.npz", num_clients=2)


def test_labels_of_no_number_are_refused():
    with pytest.raises(ValueError, match=mentions("labels", "(12, 0)")):
        federate(labels=np.zeros((COUNT, 0)))


def test_several_integers_a_row_are_not_said_to_need_the_number_of_tokens():
    with pytest.raises(ValueError, match=mentions("labels", "(12, 2)", "float")):
        federate(labels=RNG.integers(2, 99, (COUNT, 2)))


def test_times_as_labels_have_a_remedy_that_works():
    times = np.arange(COUNT).astype("M8[D]")
    with pytest.raises(ValueError, match=mentions("datetime64[D]", "(labels - labels.min()) / np.timedelta64(1, 's')")):
        federate(labels=times)
    assert federate(labels=(times - times.min()) / np.timedelta64(1, "s")).num_classes == 1


@pytest.mark.parametrize(("labels", "said"), [(CLASSES * 0 + 3, "one class"), (CLASSES * 0 + 2.5, "one number")])
def test_a_file_with_one_label_is_told_once(tmp_path, recwarn, labels, said):
    np.savez(tmp_path / "own.npz", x=FLOATS, y=labels)
    data.load("iid-npz", data_dir=tmp_path / "own.npz", num_clients=2)
    (warning,) = recwarn.list
    assert re.search(mentions("labels", said, labels[0], "12 rows"), str(warning.message))


def test_names_may_be_bytes_or_none():
    fed = federate(class_names=np.array(["a", "b", "c", "\u00e9"]).astype(object), client_names=None)
    assert (fed.class_names, fed.client_names) == (("a", "b", "c", "\u00e9"), ())
    assert federate(client_names=[b"a", "\u00e9".encode()]).client_names == ("a", "\u00e9")
