"""tensorflow-datasets without TensorFlow: mocked data sets of many shapes, and real ones that the test prepares."""

import io
import json
import shutil
import sys
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from jaxfl.data.sources import tfds
from tests.messages import mentions

library = pytest.importorskip("tensorflow_datasets", reason="tensorflow-datasets is not installed")

RNG = np.random.Generator(np.random.PCG64(0))
SHARD = "train.array_record-00000-of-00001"


@pytest.mark.parametrize(
    ("name", "shape", "num_classes"),
    [
        ("cifar10", (32, 32, 3), 10),
        ("mnist", (28, 28), 10),
        ("emnist/letters", (28, 28), 37),  # the library counts so: classes 1..26 are used
        ("eurosat/rgb", (64, 64, 3), 10),
    ],
)
def test_the_librarys_own_sets(name, shape, num_classes):
    with library.testing.mock_data(num_examples=12):
        source = tfds.load(name)
    assert source.inputs.shape == (12, *shape) and source.inputs.dtype == np.uint8
    assert source.num_classes == num_classes == len(source.class_names) and source.clients is None
    assert (source.name, source.mean, source.std) == (f"tfds:{name}", 0.0, 255.0)
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cats_vs_dogs", ("tfds:cats_vs_dogs", "shape", "row 1", "train")),
        ("imdb_reviews", ("images []", "labels ['label']")),
    ],
)
def test_sets_that_will_not_do(name, message):
    with library.testing.mock_data(num_examples=4), pytest.raises(ValueError, match=mentions(*message)):
        tfds.load(name)


class Kind(NamedTuple):
    """A small data set: its images by split, the names of its features, and how it is found."""

    images: dict[str, list[np.ndarray]]
    image: str = "picture"
    label: str = "kind"
    supervised: bool = True
    file_format: str = "array_record"


def colour(count, side=6):
    return list(RNG.integers(0, 256, (count, side, 5, 3), np.uint8))


def prepare(folder, kind, version="1.0.0", config=None):
    """Prepares a data set as a user would, with the library's own builder; returns the folder of its files."""

    def png(pixels):
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "png")
        return stream.getvalue()

    channels = 1 if kind.images["train"][0].ndim == 2 else 3
    features = {
        kind.image: library.features.Image(shape=(None, None, channels)),
        kind.label: library.features.ClassLabel(names=["cup", "jug"]),
        "second": library.features.ClassLabel(num_classes=7),
        "pen": library.features.Text(),
        "number": library.features.Scalar(dtype=np.int64),
        "box": library.features.BBoxFeature(),
    }

    class Crockery(library.core.GeneratorBasedBuilder, skip_registration=True):
        __module__ = "crockery"  # of a class inside a package the library looks for checksums, and needs more packages
        VERSION = library.core.Version(version)
        BUILDER_CONFIGS = [library.core.BuilderConfig(name=config)] if config else []

        def _info(self):
            return library.core.DatasetInfo(
                builder=self,
                features=library.features.FeaturesDict(features),
                supervised_keys=(kind.image, kind.label) if kind.supervised else None,
                disable_shuffling=True,
            )

        def _split_generators(self, _):
            return {split: self._generate_examples(images) for split, images in kind.images.items()}

        def _generate_examples(self, images):
            for row, pixels in enumerate(images):
                maker = {"pen": f"pen {row // 2}", "number": row // 3}
                box = library.features.BBox(0.0, 0.0, 1.0, 1.0)
                # Only encoded files can be stored without TensorFlow, arrays cannot.
                yield row, {kind.image: png(pixels), kind.label: row % 2, "second": row % 7, "box": box, **maker}

    builder = Crockery(data_dir=folder, file_format=kind.file_format)
    builder.download_and_prepare()
    return builder.data_path


def test_a_real_set_is_read_from_its_folder_or_by_name(tmp_path):
    kind = Kind({"train": colour(9), "test": colour(4), "extra": colour(1)})
    folder = prepare(tmp_path, kind)
    for place in (folder, tmp_path):
        source = tfds.load("crockery", place, client="pen")
        np.testing.assert_array_equal(source.inputs, np.stack(kind.images["train"]))
        np.testing.assert_array_equal(source.test_inputs, np.stack(kind.images["test"]))
        assert source.labels.tolist() == [row % 2 for row in range(9)] and source.test_labels.tolist() == [0, 1, 0, 1]
        assert source.class_names == ("cup", "jug") and source.num_classes == 2
        assert source.clients.tolist() == [f"pen {row // 2}" for row in range(9)]
        assert source.test_clients.tolist() == ["pen 0", "pen 0", "pen 1", "pen 1"]
    assert tfds.load("crockery", tmp_path, client="number").clients.tolist() == [row // 3 for row in range(9)]
    for client, message in (
        ("maker", ("maker", "'pen'")),
        ("box", ("tfds:crockery", "box", "numpy.ndarray")),
    ):
        with pytest.raises(ValueError, match=mentions(*message)):
            tfds.load("crockery", tmp_path, client=client)
    with pytest.raises(ValueError, match=mentions("tfds:mnist", "crockery/1.0.0")):
        tfds.load("mnist", folder)
    assert "tensorflow" not in sys.modules


def test_grey_images_and_the_newest_version(tmp_path):
    images = list(RNG.integers(0, 256, (5, 4, 4), np.uint8))
    prepare(tmp_path, Kind({"train": images}), "2.9.0")
    prepare(tmp_path, Kind({"train": images[:3]}), "2.10.0")
    newest, older = tfds.load("crockery", tmp_path), tfds.load("crockery:2.9.0", tmp_path)
    np.testing.assert_array_equal(older.inputs, np.stack(images))
    assert newest.inputs.shape == (3, 4, 4) and newest.test_inputs is None


def test_a_config(tmp_path):
    folder = prepare(tmp_path, Kind({"train": colour(3)}), config="blue")
    assert len(tfds.load("crockery/blue", tmp_path).inputs) == len(tfds.load("crockery/blue", folder).inputs) == 3
    with pytest.raises(ValueError, match=mentions("tfds:crockery/red", "crockery/blue/1.0.0")):
        tfds.load("crockery/red", folder)


def test_the_usual_names_are_taken_where_no_keys_are_supervised(tmp_path):
    images = {"train": colour(3)}
    prepare(tmp_path / "usual", Kind(images, "image", "label", supervised=False))
    assert tfds.load("crockery", tmp_path / "usual").num_classes == 2
    prepare(tmp_path / "other", Kind(images, supervised=False))
    with pytest.raises(ValueError, match=mentions("['picture']", "['kind', 'second']")):
        tfds.load("crockery", tmp_path / "other")


def test_images_and_splits_that_do_not_fit_each_other(tmp_path):
    prepare(tmp_path / "mixed", Kind({"train": [*colour(2), *colour(2, side=7)]}))
    with pytest.raises(ValueError, match=mentions("(6, 5, 3)", "(7, 5, 3)", "row 2")):
        tfds.load("crockery", tmp_path / "mixed")
    prepare(tmp_path / "sizes", Kind({"train": colour(2), "test": colour(2, side=7)}))
    with pytest.raises(ValueError, match=mentions("(7, 5, 3)", "(6, 5, 3)")):
        tfds.load("crockery", tmp_path / "sizes")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[: len(content) // 2], ("damaged", "row 0", "train")),
        (lambda content: content[:-10], ("damaged", "row 0", "train", "Riegeli")),
        (lambda content: b"", ("damaged", "ArrayRecord")),
        (lambda content: content[:500] + bytes(100) + content[600:], ("damaged", "prepare it again")),
    ],
)
def test_a_damaged_set(tmp_path, damage, message):
    path = prepare(tmp_path, Kind({"train": colour(9)})) / f"crockery-{SHARD}"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=mentions("tfds:crockery", *message)):
        tfds.load("crockery", tmp_path)


def test_a_set_without_its_files(tmp_path):
    folder = prepare(tmp_path, Kind({"train": colour(3)}))
    (folder / f"crockery-{SHARD}").unlink()
    with pytest.raises(ValueError, match=mentions("row 0", "No such file")):
        tfds.load("crockery", tmp_path)
    (folder / "features.json").unlink()
    with pytest.raises(ValueError, match=mentions("tfds:crockery", "read")):
        tfds.load("crockery", tmp_path)
    shutil.rmtree(folder)
    with pytest.raises(ValueError, match=mentions("tfds:crockery", "download_and_prepare")):
        tfds.load("crockery", tmp_path)


def test_a_set_that_is_not_prepared_says_how(tmp_path):
    with pytest.raises(ValueError, match=mentions("tfds:kmnist", "download_and_prepare")):
        tfds.load("kmnist", tmp_path)


def test_the_wrong_split(tmp_path):
    prepare(tmp_path, Kind({"train": colour(1)} | {"test": colour(2)}))
    (info,) = tmp_path.rglob("dataset_info.json")
    info.write_text(info.read_text().replace('"name": "train"', '"name": "all"'))
    with pytest.raises(ValueError, match=mentions("tfds:crockery", "['all', 'test']")):
        tfds.load("crockery", tmp_path)


def test_coarse_labels_group_the_classes(monkeypatch):
    groups = np.arange(100) % 20

    def consistent(name, split, examples, *rest):
        images, labels, makers, _ = read(name, split, examples, *rest)
        return images, labels, makers, groups[labels]  # mocked rows have labels by chance

    read = tfds._read_examples
    with library.testing.mock_data(num_examples=6):
        with pytest.raises(ValueError, match=mentions("tfds:cifar100", "coarse_label", "class 3")):
            tfds._class_groups("cifar100", 100, [(np.array([3, 3]), np.array([1, 2]))])
        monkeypatch.setattr(tfds, "_read_examples", consistent)
        source = tfds.load("cifar100")
    assert len(source.class_names) == 100 and len(source.class_group_names) == 20
    assert (source.class_groups[source.labels] == groups[source.labels]).all()


@pytest.mark.parametrize("name", ["kubric:movi_a", "huggingface:mnist", "kubric:movi_a/128x128:1.0.0"])
def test_code_of_a_community_is_not_fetched(name, tmp_path, monkeypatch):
    monkeypatch.setattr(tfds, "_builder", lambda *_: pytest.fail("the library was called"))
    with pytest.raises(ValueError, match=mentions(f"tfds:{name}", "namespace")):
        tfds.load(name, tmp_path)


def nested(content):
    """A name in a text of JSON within the description of a feature."""
    content["featuresDict"]["features"]["pen"] = {
        "jsonFeature": {"json": json.dumps({"feature": {"type": "evil.Pen"}})}
    }


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("features.json", lambda content: content.update(pythonClassName="evil.Pen")),
        ("features.json", lambda content: content.update({"python_class_name": "evil.Pen"})),
        ("features.json", lambda content: content.update({"type": "evil.Pen", "content": {}})),
        ("features.json", nested),
        ("dataset_info.json", lambda content: content.update(features={"pythonClassName": "evil.Pen"})),
    ],
)
def test_no_module_is_imported_that_a_folder_names(file, change, tmp_path, monkeypatch):
    folder = prepare(tmp_path / "data", Kind({"train": colour(3)}))
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    monkeypatch.syspath_prepend(tmp_path)
    content = json.loads((folder / file).read_text())
    change(content)
    (folder / file).write_text(json.dumps(content))
    for place in (folder, tmp_path / "data"):
        with pytest.raises(ValueError, match=mentions("tfds:crockery", "evil.Pen", file)):
            tfds.load("crockery", place)
