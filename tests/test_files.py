"""What is left of a file when it cannot be written, or is there already."""

import os

import pytest

from jaxfl.files import keep_copy, write_text
from jaxfl.models.weights import save_weights
from tests.messages import mentions


@pytest.mark.parametrize(
    "write",
    [lambda path: write_text(path, "newer"), lambda path: save_weights(path, {"kernel": [1.0]})],
    ids=["text", "weights"],
)
def test_a_full_disk_leaves_the_file_as_it_was_and_nothing_beside_it(write, tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("older")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)  # bytes that never reach the disk
    with pytest.raises(OSError, match=mentions("No space")):
        write(path)
    assert [one.name for one in tmp_path.iterdir()] == ["file"] and path.read_text() == "older"


def test_a_copy_takes_the_place_of_an_older_program_and_of_nothing_else(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name, kept in (("mine.py", b"new"), ("weights.safetensors", b"old")):
        (tmp_path / name).write_bytes(b"new")
        (folder / name).write_bytes(b"old")
        keep_copy(tmp_path / name, folder)
        assert (folder / name).read_bytes() == kept
        (folder / name).unlink()
        keep_copy(tmp_path / name, folder)
        keep_copy(folder / name, folder)  # which is its own
        assert (folder / name).read_bytes() == b"new"
