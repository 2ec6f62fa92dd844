"""CIFAR-100: the binary version loads with its superclasses, which are groups of clients; damage has its own error."""

import numpy as np
import pytest

from jaxfl import data
from jaxfl.data.sources import cifar100, npz
from tests.messages import mentions

RNG = np.random.Generator(np.random.PCG64(0))
COARSE = RNG.permutation(np.repeat(np.arange(20), 5))  # of each class
SPLITS = {"train": 400, "test": 100}
FINE = {split: np.arange(count) % 100 for split, count in SPLITS.items()}
IMAGES = {split: RNG.integers(0, 256, (count, 32, 32, 3), np.uint8) for split, count in SPLITS.items()}


def write(folder, split, coarse=None):
    """A file as the original is: superclass, class, red, green and blue, an image behind the other."""
    fine, planes = FINE[split], IMAGES[split].transpose(0, 3, 1, 2).reshape(SPLITS[split], 3072)
    labels = np.stack([COARSE[fine] if coarse is None else coarse, fine], 1).astype(np.uint8)
    (folder / f"{split}.bin").write_bytes(np.concatenate([labels, planes], 1).tobytes())


@pytest.fixture
def binary(tmp_path):
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    for split in SPLITS:
        write(folder, split)
    for name, count in (("coarse", 20), ("fine", 100)):
        (folder / f"{name}_label_names.txt").write_text("\n".join(f"{name}_{i}" for i in range(count)) + "\n\n")
    return folder


def test_images_classes_and_superclasses(binary):
    source = cifar100.load(binary.parent)
    np.testing.assert_array_equal(source.inputs, IMAGES["train"])
    np.testing.assert_array_equal(source.test_inputs, IMAGES["test"])
    assert source.labels.tolist() == FINE["train"].tolist() and source.test_labels.tolist() == FINE["test"].tolist()
    assert source.class_groups.tolist() == COARSE.tolist() and source.class_group_names[3] == "coarse_3"
    assert (source.class_names[99], source.num_classes) == ("fine_99", 100)
    npz.save(source, binary / "copy.npz")
    again = npz.load(binary / "copy.npz")
    assert again.class_groups.tolist() == COARSE.tolist() and again.class_group_names == source.class_group_names


def test_a_group_of_clients_has_the_classes_of_a_superclass(binary):
    fed = data.load("pathological-cifar100", data_dir=binary, num_clients=40)
    assert fed.group_names == tuple(f"coarse_{i}" for i in range(20)) and len(fed.class_names) == 100
    for client, group in enumerate(fed.group):
        for split in fed.splits.values():
            rows = split.rows[split.start[client] :][: split.size[client]]
            assert len(rows) and set(COARSE[fed.labels[rows]]) == {group}
    own = data.load("pathological-cifar100", data_dir=binary, num_clients=2, label_groups=[[0, 1], [2]])
    assert own.group_names == ("labels fine_0, fine_1", "labels fine_2")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "test.bin").write_bytes(b""), ("test.bin", "empty")),
        (
            lambda folder: (folder / "test.bin").write_bytes(bytes(3075)),
            ("test.bin", 3074),
        ),
        (lambda folder: write(folder, "test", np.full(100, 20)), ("superclasses", "0..19", 20, "row 0")),
        (lambda folder: write(folder, "test", (COARSE + 1) % 20), ("class 0", "fine_0")),
        (
            lambda folder: (folder / "fine_label_names.txt").write_text("apple"),
            ("100 names", 1),
        ),
    ],
)
def test_damaged_files(binary, damage, message):
    damage(binary)
    with pytest.raises(ValueError, match=mentions(*message)):
        cifar100.load(binary)
