"""CINIC-10 in the layout of its archive, with CIFAR-10 and ImageNet as domains."""

import shutil

import numpy as np
import pytest
from PIL import Image

from jaxfl import data
from jaxfl.data import sources
from jaxfl.data.sources import cinic10
from tests.messages import mentions

RNG = np.random.Generator(np.random.PCG64(0))
NAMES = ("cifar10-train-7.png", "n02690373_1.png", "n02690373_2.png")


@pytest.fixture
def archive(tmp_path):
    top = tmp_path / "CINIC-10"
    for split in ("train", "valid", "test"):
        for label in cinic10.CLASSES:
            (top / split / label).mkdir(parents=True)
            for name in NAMES:
                grey = split == "valid" and name == NAMES[1]
                pixels = RNG.integers(0, 256, (32, 32) if grey else (32, 32, 3), np.uint8)
                Image.fromarray(pixels).save(top / split / label / name)
    return top


def read(top, *splits):
    paths = [top / split / label / name for split in splits for label in cinic10.CLASSES for name in NAMES]
    return [np.asarray(Image.open(path).convert("RGB")) for path in paths]


def test_the_archive_is_read_and_its_two_origins_are_domains(archive):
    for where in (archive, archive.parent):
        source = sources.load("cinic10", where)
        assert sources.located("cinic10", where) == str(archive)
    np.testing.assert_array_equal(source.inputs, read(archive, "train"))
    np.testing.assert_array_equal(source.test_inputs, read(archive, "test"))
    assert source.labels.tolist() == source.test_labels.tolist() == np.repeat(np.arange(10), 3).tolist()
    assert source.domains.tolist() == [0, 1, 1] * 10
    enlarged = sources.load("cinic10", archive, enlarged=True)
    np.testing.assert_array_equal(enlarged.inputs, read(archive, "train", "valid"))
    assert len(enlarged.test_inputs) == 30
    fed = data.load("hybrid-cinic10", data_dir=archive, num_clients=2)
    assert fed.group_names == ("cifar10", "imagenet") and fed.train.size.tolist() == [10, 20]
    assert fed.test.size.tolist() == [10, 20]


def test_an_archive_that_was_not_unpacked_to_its_end_is_told(archive):
    (archive / "train" / "frog" / NAMES[0]).unlink()
    with pytest.warns(UserWarning, match=mentions(archive, "train", "2 rows of frog", "3 of airplane")):
        assert len(sources.load("cinic10", archive).inputs) == 29


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda top: shutil.rmtree(top / "test"), "test/airplane"),
        (lambda top: shutil.rmtree(top / "train" / "dog"), "train/dog"),
        (lambda top: (top / "train" / "frog" / NAMES[0]).write_bytes(b"\x89PNG"), f"frog/{NAMES[0]}"),
    ],
)
def test_what_is_missing_or_damaged_is_named(archive, damage, named):
    damage(archive)
    with pytest.raises((ValueError, FileNotFoundError), match=mentions(named, "https://datashare.ed.ac.uk")):
        sources.load("cinic10", archive)
