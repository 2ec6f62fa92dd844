"""Files of strangers: what unpacks to too much is refused before it does, and so is what lies about itself."""

import contextlib
import gzip
import io
import json
import tracemalloc
import zipfile

import numpy as np
import pytest

from jaxfl.data import bounded
from jaxfl.data.sources import idx, npz
from jaxfl.simulation.records import checkpoint
from tests.messages import mentions

HUGE = 1 << 40


def header_of(shape, dtype="<f4", version=(1, 0)):
    """The bytes of a npy header."""
    out = io.BytesIO()
    described = {"shape": shape, "fortran_order": False, "descr": dtype}
    write = {(1, 0): np.lib.format.write_array_header_1_0, (2, 0): np.lib.format.write_array_header_2_0}
    write[version](out, described)
    return out.getvalue()


def archive(path, content, name="x.npy", compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as out:
        out.writestr(name, content)
    return path


@pytest.fixture
def little(monkeypatch):
    """A file may unpack to 100 kB; so that a test needs no gigabytes."""
    monkeypatch.setattr(bounded, "FREE", 100_000)


@contextlib.contextmanager
def refused(*parts):
    """Expect a ValueError that mentions `parts` (NumPy's own messages: none), and no megabyte of memory before it."""
    tracemalloc.start()
    with pytest.raises(ValueError, match=mentions(*parts) if parts else None):
        yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def zeros(path):
    np.savez_compressed(path, x=np.zeros(1_000_000, np.uint8), y=np.zeros(3, int))
    return path


def test_a_zip_that_unpacks_to_too_much_is_refused_before_it_does(little, tmp_path):
    path = zeros(tmp_path / "bomb.npz")
    assert path.stat().st_size < 2000
    with refused("bomb.npz", "1,000,280", "100,000", "100 times", "np.savez"):
        npz.load(path)
    with refused("bomb.npz", "checkpoint", "1,000,280", "100,000", "100 times"):
        checkpoint.load(path)


def test_what_is_written_without_compression_is_read(little, tmp_path):
    np.savez(tmp_path / "plain.npz", x=np.zeros(1_000_000, np.uint8))
    assert bounded.read_arrays(tmp_path / "plain.npz")[0]["x"].shape == (1_000_000,)
    assert bounded.read_arrays(zeros(tmp_path / "bomb.npz"), ["y"])[1] == ["x", "y"], "only what is wanted counts"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header_of((HUGE,)) + bytes(8), ("4,398,046,511,104 bytes", 8)),
        (header_of((2,)) + bytes(4), ("8 bytes", 4)),
        (header_of((0, HUGE, HUGE)), ()),
        (header_of((-2, -1)) + bytes(8), ()),
        (header_of((HUGE,), "<U0"), ("Python objects",)),
        (header_of((1,), "|O") + bytes(8), ("Python objects",)),
        (header_of((1,), version=(2, 0))[:6] + b"\x03\x00", ("format", "(3, 0)")),
        (b"\x93NUMPY\x01\x00\x10\x00" + b"{" * 16, ()),
        (b"\x93NUMPY", ()),
        (b"", ()),
    ],
)
def test_an_array_that_lies_about_itself_is_refused(tmp_path, content, message):
    path = archive(tmp_path / "x.npz", content)
    with refused(*message):
        bounded.read_arrays(path)


def test_compressions_that_numpy_does_not_write_are_refused(tmp_path):
    path = archive(tmp_path / "x.npz", header_of((2,)) + bytes(8), compression=zipfile.ZIP_LZMA)
    with refused("x.npy", "np.savez"):
        bounded.read_arrays(path)


def test_arrays_are_those_that_numpy_reads(tmp_path):
    rng = np.random.default_rng(0)
    written = {
        "plain": rng.normal(size=(3, 4)).astype(np.float32),
        "fortran": np.asfortranarray(rng.integers(0, 9, (3, 4, 5))),
        "scalar": np.array(2.5),
        "empty": np.zeros((0, 3), bool),
        "text": np.array(["a", "bc"]),
        "large": np.arange(1_000_000),
    }
    np.savez_compressed(tmp_path / "a.npz", allow_pickle=False, **written)
    found, names = bounded.read_arrays(tmp_path / "a.npz")
    assert names == list(written)
    for name, array in written.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)
        assert found[name].flags.writeable


def test_a_gzip_that_unpacks_to_too_much_is_refused_before_it_does(little, tmp_path):
    (tmp_path / "images").write_bytes(
        gzip.compress(bytes([0, 0, 8, 1]) + (900_000).to_bytes(4, "big") + bytes(900_000))
    )
    with refused("images", "900,000", "100,000"):
        idx.read(tmp_path / "images", num_axes=1)


def test_json_is_bounded_in_length_and_depth(tmp_path):
    with pytest.raises(ValueError, match=mentions("deep")):
        bounded.parse_json("[" * 100_000)
    (tmp_path / "a.json").write_text(json.dumps({"a": "long enough"}))
    with pytest.raises(ValueError, match=mentions("10 bytes")):
        bounded.read_object(tmp_path / "a.json", 10)
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(ValueError, match=mentions("object", "list")):
        bounded.read_object(tmp_path / "a.json")
