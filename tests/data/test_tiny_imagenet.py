"""Tiny-ImageNet in the layout of its archive, and each thing that is missing or damaged by name."""

import shutil

import numpy as np
import pytest
from PIL import Image

from jaxfl import data
from jaxfl.data import sources
from tests.messages import mentions

RNG = np.random.Generator(np.random.PCG64(0))
IDS = ("n02124075", "n01443537", "n04067472")  # not sorted in the file either


def write(path, mode="RGB", side=64):
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (side, side) if mode == "L" else (side, side, 3)
    Image.fromarray(RNG.integers(0, 256, shape, np.uint8)).save(path, format="JPEG")
    return np.asarray(Image.open(path).convert("RGB"))


@pytest.fixture
def archive(tmp_path):
    """The folder of the archive, with its images as they are decoded."""
    top = tmp_path / "tiny-imagenet-200"
    top.mkdir()
    (top / "wnids.txt").write_text("\n".join(IDS) + "\n")
    (top / "words.txt").write_text(
        "n00001740\tentity\nn01443537\tgoldfish, Carassius auratus\nn02124075\tEgyptian cat\n"
    )
    images = {}
    for name in IDS:
        for i in (0, 2, 10):  # sorted as numbers; some are grey
            images[name, i] = write(top / "train" / name / "images" / f"{name}_{i}.JPEG", "L" if i == 2 else "RGB")
        (top / "train" / name / f"{name}_boxes.txt").write_text(f"{name}_0.JPEG\t0\t10\t63\t58\n")
    lines = []
    for i, name in enumerate(IDS[::-1]):
        images["val", i] = write(top / "val" / "images" / f"val_{i}.JPEG")
        lines.append(f"val_{i}.JPEG\t{name}\t0\t32\t44\t62")
    (top / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    write(top / "test" / "images" / "test_0.JPEG")
    return top, images


def test_the_archive_is_read(archive):
    top, images = archive
    order = sorted(IDS)
    for where in (top, top.parent):
        source = sources.load("tiny-imagenet", where)
        assert sources.located("tiny-imagenet", where) == str(top)
    np.testing.assert_array_equal(source.inputs, [images[name, i] for name in order for i in (0, 2, 10)])
    np.testing.assert_array_equal(source.test_inputs, [images["val", i] for i in range(3)])
    assert source.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert source.test_labels.tolist() == [order.index(name) for name in IDS[::-1]]
    assert source.class_names == ("goldfish", "Egyptian cat", "n04067472")
    fed = data.load("iid-tiny-imagenet", data_dir=top, num_clients=3)
    assert (fed.num_classes, fed.input_shape, fed.train.size.tolist()) == (3, (64, 64, 3), [3, 3, 3])
    assert fed.test.size.tolist() == [3, 3, 3], "the official validation images"


def test_an_archive_that_was_not_unpacked_to_its_end_is_told(archive):
    top, _ = archive
    (top / "train" / IDS[0] / "images" / f"{IDS[0]}_2.JPEG").unlink()
    annotations = top / "val" / "val_annotations.txt"
    annotations.write_text("".join(annotations.read_text().splitlines(keepends=True)[:2]))
    with pytest.warns(UserWarning) as told:
        sources.load("tiny-imagenet", top)
    texts = [str(one.message) for one in told]
    assert len(texts) == 2 and f"train has 2 rows of {IDS[0]}" in texts[0] and "val has 0 rows" in texts[1]


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda top: (top / "words.txt").unlink(), "words.txt"),
        (lambda top: shutil.rmtree(top / "train" / IDS[0] / "images"), IDS[0]),
        (lambda top: (top / "val" / "images" / "val_1.JPEG").unlink(), "val_1.JPEG"),
        (
            lambda top: (top / "train" / IDS[1] / "images" / f"{IDS[1]}_2.JPEG").write_bytes(b"\xff\xd8"),
            f"{IDS[1]}_2.JPEG",
        ),
        (lambda top: (top / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn99999999\t0\n"), "line 1"),
        (lambda top: (top / "val" / "val_annotations.txt").write_text(f"../val_0.JPEG\t{IDS[0]}\n"), "line 1"),
        (lambda top: write(top / "val" / "images" / "val_1.JPEG", side=32), "val_1.JPEG"),
        (lambda top: (top / "wnids.txt").write_text(""), "wnids.txt"),
    ],
)
def test_what_is_missing_or_damaged_is_named(archive, damage, named):
    top, _ = archive
    damage(top)
    with pytest.raises((ValueError, FileNotFoundError), match=mentions(named)) as caught:
        sources.load("tiny-imagenet", top)
    assert named == "val_1.JPEG" or "tiny-imagenet-200.zip" in str(caught.value), "where to get it"
