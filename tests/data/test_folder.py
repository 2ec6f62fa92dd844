"""Folders of images: paths say class, client and split; each file that cannot be used is named."""

import os
import re

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet
from typer.testing import CliRunner

from jaxfl import data
from jaxfl.cli.app import app
from jaxfl.data import catalog, sources
from tests.hostile import FORBIDDEN, HOSTILE_NAMES
from tests.messages import mentions

RNG = np.random.Generator(np.random.PCG64(0))


def write(path, size=(6, 5), *, mode="RGB", pixels=None):
    """Writes an image of random pixels, or of these, and returns the pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = size if mode == "L" else (*size, 3)
    pixels = RNG.integers(0, 256, shape, np.uint8) if pixels is None else pixels
    Image.fromarray(pixels).save(path)
    return pixels


def written(top, names, **options):
    return {name: write(top / name, **options) for name in names}


CLIENTS = [f"{client}/{label}/{i}.png" for client in ("ann", "bob") for label in ("cat", "dog") for i in range(4)]
CLASSES = [f"{label}/{i}.png" for label in ("cat", "dog") for i in range(20)]


def test_a_client_for_each_folder_with_its_classes(tmp_path):
    images = written(tmp_path, CLIENTS)
    for name in ("ann/.DS_Store", "ann/cat/._1.png", "ann/cat/Thumbs.db", "notes.txt", "__MACOSX/ann/cat/._1.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"not an image")
    source = sources.load("folder", tmp_path)
    np.testing.assert_array_equal(source.inputs, [images[name] for name in sorted(images)])
    assert source.labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1] * 2 and source.class_names == ("cat", "dog")
    assert source.clients.tolist() == ["ann"] * 8 + ["bob"] * 8 and source.test_inputs is None
    fed = data.load("folder", data_dir=tmp_path, test_share=0.25)
    assert (fed.client_names, fed.train.size.tolist(), fed.test.size.tolist()) == (("ann", "bob"), [6, 6], [2, 2])
    assert (fed.mean, fed.std, fed.name) == (0, 255, f"writers-{tmp_path.name}")
    assert sources.located("folder", tmp_path) == str(tmp_path)


def test_a_skew_divides_the_images_of_classes(tmp_path):
    images = written(tmp_path, [name.replace("cat", "10").replace("dog", "9") for name in CLASSES], mode="L")
    source = sources.load("folder", tmp_path)
    assert source.class_names == ("9", "10"), "numbers are in the order of numbers"
    assert source.inputs.shape == (40, 6, 5) and source.clients is None
    for x, y in zip(source.inputs, source.labels, strict=True):
        assert any((x == pixels).all() for name, pixels in images.items() if name.startswith(("9", "10")[y] + "/"))
    fed = data.load("dirichlet-folder", data_dir=tmp_path, num_clients=4, alpha=100, validation=0.25, held_out=0.25)
    assert fed.num_clients == 4 and fed.held_out.sum() == 1 and fed.validation.size.min() > 0
    with pytest.raises(ValueError, match=mentions(tmp_path.name, "CLIENT/CLASS", "dirichlet")):
        data.load("folder", data_dir=tmp_path)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_folders_train_and_test_are_the_official_split_at_any_level(tmp_path, place):
    def names(split, count):
        for client in ("ann", "bob"):
            for label in ("cat", "dog"):
                parts = [client, label]
                parts.insert(place, split)
                yield from ("/".join([*parts, f"{i}.png"]) for i in range(count))

    train, test = written(tmp_path, names("train", 3)), written(tmp_path, names("test", 1))
    source = sources.load("folder", tmp_path)
    np.testing.assert_array_equal(source.inputs, [train[name] for name in sorted(train)])
    np.testing.assert_array_equal(source.test_inputs, [test[name] for name in sorted(test)])
    assert source.test_clients.tolist() == ["ann", "ann", "bob", "bob"] and source.test_labels.tolist() == [0, 1, 0, 1]
    fed = data.load("folder", data_dir=tmp_path)  # a client's own test rows are kept
    assert fed.train.size.tolist() == [6, 6] and fed.test.size.tolist() == [2, 2]
    assert (fed.test.rows >= 12).all()
    written(tmp_path, names("val", 1))
    with pytest.warns(UserWarning, match=mentions(tmp_path.name, "4 images of val")):
        assert len(sources.load("folder", tmp_path).inputs) == 12


def test_a_class_may_be_called_train(tmp_path):
    written(tmp_path, ["train/1.png", "boat/1.png"])
    assert sources.load("folder", tmp_path).class_names == ("boat", "train")


def test_sizes_that_differ_are_refused_by_name_or_scaled(tmp_path):
    written(tmp_path, ["cat/1.png", "dog/1.png"])
    tall = write(tmp_path / "dog" / "2.jpg", (9, 5))
    with pytest.raises(ValueError, match=mentions(str(tmp_path / "dog" / "2.jpg"), "6 x 5", "9 x 5", "size=64")):
        sources.load("folder", tmp_path)
    source = sources.load("folder", tmp_path, size=4)
    assert source.inputs.shape == (3, 4, 4, 3) and tall.shape == (9, 5, 3)
    scaled = Image.open(tmp_path / "dog" / "2.jpg").resize((4, 4), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(source.inputs[2], scaled)
    with pytest.raises(ValueError, match=mentions("size", 0)):
        sources.load("folder", tmp_path, size=0)


def test_grey_images_beside_colour_get_equal_channels(tmp_path):
    grey, colour = write(tmp_path / "cat" / "1.png", mode="L"), write(tmp_path / "dog" / "1.png")
    inputs = sources.load("folder", tmp_path).inputs
    np.testing.assert_array_equal(inputs[0], np.repeat(grey[..., None], 3, -1))
    np.testing.assert_array_equal(inputs[1], colour)


def _broken(path):
    path.write_bytes(path.read_bytes()[:60])


def _text(path):
    path.write_text("no image")


def _postscript(path):  # which Pillow would give to Ghostscript
    Image.new("RGB", (5, 6)).save(path, format="EPS")


def _deep(path):
    Image.fromarray(np.zeros((6, 5), np.uint16)).save(path)


def _pipe(path):
    path.unlink()
    os.mkfifo(path)


def _dangling(path):
    path.unlink()
    path.symlink_to("nowhere.png")


def _dangling_folder(path):
    path.unlink()
    path.parent.joinpath("18.png.d").symlink_to("of/a/disk/that/is/not/mounted")


def _at_the_top(path):
    path.rename(path.parents[1] / path.name)


def _below(path):
    (path.parent / "more").mkdir()
    path.rename(path.parent / "more" / path.name)


def _far_below(path):
    (path.parent / "a/b/c/d/e/f").mkdir(parents=True)
    path.rename(path.parent / "a/b/c/d/e/f" / path.name)


@pytest.mark.parametrize(
    "damage",
    [_broken, _text, _postscript, _deep, _pipe, _dangling, _dangling_folder, _at_the_top, _below, _far_below],
)
def test_an_image_that_cannot_be_used_is_named(tmp_path, damage):
    written(tmp_path, CLASSES[:4] + CLASSES[-4:])
    damage(tmp_path / "dog" / "18.png")
    (where,) = (str(path) for path in tmp_path.rglob("18.png*"))
    with pytest.raises(ValueError, match=mentions(where)) as caught:
        sources.load("folder", tmp_path)
    assert len(str(caught.value).splitlines()) == 1


def _turned(path, pixels):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(path, exif=exif)


def _animated(path, pixels):
    Image.fromarray(pixels).save(path, save_all=True, append_images=[Image.fromarray(255 - pixels)])


def _transparent(path, pixels):
    Image.fromarray(np.concatenate([pixels, np.full((6, 5, 1), 100, np.uint8)], 2)).save(path)


def _opaque(path, pixels):
    Image.fromarray(np.concatenate([pixels, np.full((6, 5, 1), 255, np.uint8)], 2)).save(path)


@pytest.mark.parametrize(
    ("save", "told"), [(_turned, "EXIF"), (_animated, "frames"), (_transparent, "transparent"), (_opaque, None)]
)
def test_what_pixels_lack_of_a_file_is_told_with_a_file(tmp_path, save, told, recwarn):
    """Of a folder and of a column of parquet: the pixels are as they were, and nothing is lost in silence."""
    written(tmp_path / "set", CLASSES)
    path, pixels = tmp_path / "set" / "dog" / "1.png", RNG.integers(0, 256, (6, 5, 3), np.uint8)
    save(path, pixels)
    source = sources.load("folder", tmp_path / "set")
    assert any((one == pixels).all() for one in source.inputs)
    table = pa.table({"image": [path.read_bytes()] * 2, "label": [0, 1]})
    parquet.write_table(table, tmp_path / "train.parquet")
    assert (sources.load("parquet", tmp_path / "train.parquet").inputs == pixels).all()
    texts = [str(one.message) for one in recwarn]
    assert len(texts) == (0 if told is None else 2)
    for text, count, where in zip(texts, ("1 of 40", "2 of 2"), (str(path), "row 0"), strict=False):
        assert count in text and str(told) in text and where in text


def test_folders_that_are_no_layout(tmp_path):
    written(tmp_path / "deep", ["a/b/c/1.png"])
    written(tmp_path / "deeper", ["a/b/c/d/1.png"])
    for name in ("deep", "deeper"):
        with pytest.raises(ValueError, match=mentions(str(tmp_path / name / "a"), "CLIENT/CLASS")):
            sources.load("folder", tmp_path / name)
    (tmp_path / "none").mkdir()
    for missing in (None, tmp_path / "no", tmp_path / "none"):
        assert sources.located("folder", missing) is None
        with pytest.raises(FileNotFoundError, match=mentions("folder")):
            sources.load("folder", missing)


def test_links_are_followed_and_one_that_leads_back_is_refused(tmp_path):
    images = written(tmp_path / "store", ["1.png", "2.png"])
    for name, label in (("1.png", "cat"), ("2.png", "dog")):
        (tmp_path / "set" / label).mkdir(parents=True)
        (tmp_path / "set" / label / name).symlink_to(tmp_path / "store" / name)
    np.testing.assert_array_equal(sources.load("folder", tmp_path / "set").inputs, list(images.values()))
    (tmp_path / "set" / "all").symlink_to(tmp_path / "store", target_is_directory=True)
    assert len(sources.load("folder", tmp_path / "set").inputs) == 4
    (tmp_path / "set" / "dog" / "up").symlink_to("..", target_is_directory=True)
    with pytest.raises(ValueError, match=mentions(str(tmp_path / "set" / "dog" / "up"), "above")):
        sources.load("folder", tmp_path / "set")


def test_what_is_left_out_is_told(tmp_path):
    written(tmp_path, CLASSES)
    (tmp_path / "bird").mkdir()
    (tmp_path / "cat" / "1.npy").write_bytes(b"")
    with pytest.warns(UserWarning) as told:
        sources.load("folder", tmp_path)
    texts = [str(one.message) for one in told]
    assert any("bird" in text for text in texts) and any("1.npy" in text for text in texts) and len(texts) == 2
    (tmp_path / "bird").rmdir()
    (tmp_path / "cat" / "1.npy").unlink()
    written(tmp_path, ["Cat/1.png"])
    with pytest.warns(UserWarning, match=mentions("'Cat'", "'cat'")):
        sources.load("folder", tmp_path)


def test_hostile_names_of_classes_and_clients_come_back_and_are_shown_harmlessly(tmp_path, recwarn):
    names = [os.fsencode(name) for name in HOSTILE_NAMES.values() if name.strip() and not {"/", "\0"} & set(name)]
    names = [os.fsdecode(name) for name in names if len(name) < 200 and not name.startswith(b".")]
    written(tmp_path, [os.path.join(name, label, f"{i}.png") for name in names for label in names[:2] for i in "12"])
    fed = data.load("folder", data_dir=tmp_path)
    assert set(fed.client_names) == set(names) and set(fed.class_names) == set(names[:2])
    shown = CliRunner().invoke(app, ["data", "folder", "--data-dir", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert not FORBIDDEN & set(shown.stdout)


def test_the_checksum_of_a_run_has_the_paths_below_the_folder(tmp_path):
    written(tmp_path / "one", ["a/1.png", "a/2.png", "b/3.png"])
    first = catalog.user_checksum("iid-folder", tmp_path / "one")
    (tmp_path / "one").rename(tmp_path / "two")
    assert catalog.user_checksum("iid-folder", tmp_path / "two") == first
    (tmp_path / "two" / "a" / "2.png").rename(tmp_path / "two" / "b" / "2.png")  # the same files in the same order
    assert catalog.user_checksum("iid-folder", tmp_path / "two") != first


def test_a_run_and_its_resumption_read_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "pets", CLIENTS)
    run = [
        "run",
        "fedavg",
        "--data",
        "folder",
        "--data-dir",
        "pets",
        "--out",
        "run",
        "--set",
        "local_epochs=1",
        "--quiet",
    ]
    made = CliRunner().invoke(app, [*run, "--rounds", "1"])
    assert made.exit_code == 0, made.output
    (tmp_path / "pets" / "ann" / "cat" / "1.png").rename(tmp_path / "pets" / "ann" / "dog" / "9.png")
    again = CliRunner().invoke(app, [*run, "--rounds", "2", "--resume"])
    assert again.exit_code == 2 and re.search("data_checksum|data", again.output)
