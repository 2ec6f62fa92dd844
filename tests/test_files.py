"""What is left of a file when it cannot be written."""

import os

import pytest

from jaxfl.files import write_text
from jaxfl.models.weights import save_weights


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
    with pytest.raises(OSError, match="No space"):
        write(path)
    assert [one.name for one in tmp_path.iterdir()] == ["file"] and path.read_text() == "older"
