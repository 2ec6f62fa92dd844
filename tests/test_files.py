"""What is left of a file when it cannot be written, or is there already."""

import os

import numpy as np
import pytest
from matplotlib.figure import Figure

from jaxfl.data import stored
from jaxfl.data.sources import npz
from jaxfl.data.sources.base import Source
from jaxfl.data.synthetic import clustered_linear
from jaxfl.files import check_output, copy_path, crc, keep_copy, own_names, real_path, signature, write_text
from jaxfl.models.weights import save_weights
from jaxfl.plots.style import write_picture
from jaxfl.simulation.records import checkpoint
from tests.messages import mentions

WRITERS = {
    "text": lambda path: write_text(path, str(os.urandom(4))),
    "weights": lambda path: save_weights(path, {"kernel": np.float32(os.urandom(4)[0])}),
    "npz": lambda path: npz.save(Source("two", np.zeros((2, 4, 4), np.uint8), np.array([0, 1]), 2), path),
    "png": lambda path: write_picture(Figure(), path, dpi=50, command="run"),
    "checkpoint.npz": lambda path: checkpoint.save(path.parent, {"w": np.ones(2)}, {"round": os.urandom(4)[0]}),
}


def full(_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_file_as_it_was_and_nothing_beside_it(name, tmp_path, monkeypatch):
    path = tmp_path / name
    if name == "png":
        path = tmp_path / "a.png"
    WRITERS[name](path)
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", full)  # bytes that never reach the disk
    with pytest.raises(OSError, match=mentions("No space", path.name)):
        WRITERS[name](path)
    assert [one.name for one in tmp_path.iterdir()] == [path.name] and path.read_bytes() == before


def test_a_federation_that_did_not_fit_leaves_its_folder_empty(tmp_path, monkeypatch):
    data = clustered_linear(2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=mentions("No space")):
            stored.save(data, tmp_path / "a")
    assert not any((tmp_path / "a").iterdir())
    stored.save(data, tmp_path / "a")
    assert stored.load(tmp_path / "a").num_clients == 2


@pytest.mark.parametrize("there", [True, False])
def test_what_a_link_leads_to_is_not_written(there, tmp_path):
    target, link = tmp_path / "mine", tmp_path / "link"
    if there:
        target.write_text("mine")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.read_text() == "new" and not link.is_symlink()
    assert target.read_text() == "mine" if there else not target.exists()


@pytest.mark.parametrize(
    "content",
    ["\n", "setting;seeds", f"# Mine\n\nBefore\n\n<!-- {signature('compare')} -->", f"<!-- {signature('bench')} -->"],
)
def test_a_file_of_something_else_is_no_output(content, tmp_path):
    path = tmp_path / "t.md"
    path.write_text(content)
    with pytest.raises(ValueError, match=mentions("--markdown", "t.md")):
        check_output(path, "--markdown", signature("compare"))


def test_neither_a_folder_nor_a_device_is_an_output(tmp_path):
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    for path in (tmp_path, tmp_path / "none" / "a", tmp_path / "dangling", os.path.devnull):
        with pytest.raises(ValueError, match=mentions("--csv", str(path))):
            check_output(type(tmp_path)(path), "--csv", "setting,seeds,")


def test_a_list_of_something_else_is_refused(tmp_path):
    for content in ("{", "[1]", '{"files": 3}', "[" * 100_000, '{"files": []}' + " " * (1 << 20)):
        (tmp_path / ".jaxfl").write_text(content)
        with pytest.raises(ValueError, match=mentions(".jaxfl", "list")):
            own_names(tmp_path)


def test_a_list_without_end_is_not_read(tmp_path):
    os.mkfifo(tmp_path / ".jaxfl")
    with pytest.raises(ValueError, match=mentions(".jaxfl", "list")):
        own_names(tmp_path)


def test_links_that_lead_to_each_other_are_a_path(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    assert real_path(tmp_path / "loop").name == "loop"


def test_a_copy_takes_the_place_of_an_older_program_and_of_nothing_else(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name, kept in (("mine.py", b"new"), ("weights.safetensors", b"old")):
        copy = copy_path(folder, name, crc(b"new"))
        (tmp_path / name).write_bytes(b"new")
        (folder / name).write_bytes(b"old")
        keep_copy(tmp_path / name, folder)
        assert (folder / name).read_bytes() == kept and copy.read_bytes() == b"new"
        copy.write_bytes(b"ne")  # damaged
        keep_copy(tmp_path / name, folder)
        keep_copy(copy, folder)  # which is its own
        assert copy.read_bytes() == b"new"
    assert len(list(folder.rglob("*"))) == 4, "two files, and a folder with one"


def test_a_table_is_told_by_the_columns_with_which_it_begins(tmp_path):
    (tmp_path / "mine.csv").write_text("my,setting,seeds,notes\nsetting,seeds,\n")
    with pytest.raises(ValueError, match=mentions("--csv", "mine.csv")):
        check_output(tmp_path / "mine.csv", "--csv", "setting,seeds,")
    (tmp_path / "table.csv").write_text("setting,seeds,micro\n")
    check_output(tmp_path / "table.csv", "--csv", "setting,seeds,")
