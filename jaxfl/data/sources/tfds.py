"""Data sets prepared by tensorflow-datasets, with images of one shape and a class label; needs no TensorFlow."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxfl.data import bounded
from jaxfl.data.casts import to_texts
from jaxfl.data.sources.base import Folder, Source, SourceEntry

COARSE = "coarse_label"  # name of CIFAR-100 for the feature with groups of classes
DESCRIPTIONS = ("features.json", "dataset_info.json")  # of a prepared folder: the classes of its features are in them
CLASS_KEYS = ("pythonClassName", "python_class_name", "type")  # of the name of a class there, the last in old folders
LIBRARY = "tensorflow_datasets."  # begins the names of the library's own classes


def load(name: str, data_dir: Folder = None, *, client: str = "") -> Source:
    """Returns an image classification data set prepared by tensorflow-datasets; needs no TensorFlow.

    Image and label are the supervised keys, or the features `image` and `label`, or the only features of their kind. A
    feature `coarse_label` (CIFAR-100's) groups the classes.

    Args:
        name: as for `tfds.builder`, e.g. `"kmnist"`, `"emnist/letters"`, `"mnist:3.0.1"`.
        data_dir: folder of `download_and_prepare(file_format="array_record")`, or the prepared folder with
            `dataset_info.json`; None is the library's default.
        client: feature with the maker of an example, a number or a text; "" if there is none.

    Raises:
        ValueError: the data set does not exist, has a namespace, names a class that is not the library's, is not
            prepared in a random-access format, is damaged, or does not have images of one shape with a label.
    """
    if re.match(r"[^:/]+:(?![\d*])", name):  # of a namespace the library fetches code, and runs it
        raise ValueError(
            f"tfds:{name} must be a data set of tensorflow-datasets itself, without a namespace; write it to an npz "
            "file."
        )
    if data_dir is not None:
        _check_classes(name, Path(data_dir).expanduser())
    try:
        builder = _builder(name, data_dir)
        known = builder.info.splits or ("train",)
        splits = {split: builder.as_data_source(split) for split in ("train", "test") if split in known}
    except Exception as error:  # the library raises many types of errors, from a missing package to a missing file
        raise ValueError(
            f"tfds:{name} cannot be read ({_first_line(error)}); prepare it on a machine with internet access by "
            f"tfds.builder({name!r}, file_format='array_record').download_and_prepare() and pass its data_dir."
        ) from error
    features = dict(builder.info.features.items()) if hasattr(builder.info.features, "items") else {}
    if "train" not in splits:
        raise ValueError(f"tfds:{name} must have a split train, got {list(known)}; choose another data set.")
    image, label = _feature_names(name, builder.info, features)
    if client and client not in features:
        raise ValueError(
            f"tfds:{name} must have the feature {client}, got {sorted(features)}; set client to one of them."
        )
    coarse = COARSE if COARSE in features and label != COARSE else ""
    parts = {split: _read_examples(name, split, splits[split], image, label, client, coarse) for split in splits}
    train, test = parts["train"], parts.get("test", (None, None, None, None))
    if test[0] is not None and test[0].shape[1:] != train[0].shape[1:]:
        raise ValueError(
            f"tfds:{name}: test images must have the shape of training images, {train[0].shape[1:]}, got "
            f"{test[0].shape[1:]}; resize them and write an npz file."
        )
    highest = max(int(part[1].max()) for part in parts.values())
    num_classes = features[label].num_classes or highest + 1
    if min(int(part[1].min()) for part in parts.values()) < 0 or highest >= num_classes:
        raise ValueError(f"tfds:{name}: {label} must be 0..{num_classes - 1} in all rows; choose another data set.")
    pixels = train[0].dtype == np.uint8
    groups = _class_groups(name, num_classes, [(part[1], part[3]) for part in parts.values()]) if coarse else None
    return Source(
        f"tfds:{name}",
        train[0],
        train[1],
        num_classes,
        test[0],
        test[1],
        clients=train[2],
        test_clients=test[2],
        class_names=tuple(features[label].names or ()),
        class_groups=groups,
        class_group_names=tuple(features[coarse].names or ()) if coarse else (),
        mean=0.0 if pixels else None,
        std=255.0 if pixels else None,
    )


def _check_classes(name: str, top: Path) -> None:
    """Checks that the features of a prepared folder are of the library's classes: it imports the module of any other.

    Args:
        name: of the data set.
        top: the folder, or one above it.

    Raises:
        ValueError: a description cannot be read, or names another class; the message has its file.
    """
    whole = name.partition(":")[0]
    tops = [top, *(top / one for one in dict.fromkeys((whole.partition("/")[0], whole)) if one)]
    below = [folder for one in tops[1:] for pattern in ("*", "*/*") for folder in one.glob(pattern)]  # of versions
    for path in (path for folder in (*tops, *below) for file in DESCRIPTIONS if (path := folder / file).is_file()):
        try:
            named = list(_python_types(bounded.read_object(path, bounded.FREE)))
        except (OSError, ValueError) as error:
            raise ValueError(f"tfds:{name} must have a readable {path} ({error}); prepare it again.") from error
        if others := [one for one in named if not one.startswith(LIBRARY)]:
            raise ValueError(
                f"tfds:{name} must have features of tensorflow-datasets itself, got {others[0]!r} in {path}, whose "
                "module would be executed; write the arrays to an npz file."
            )


def _python_types(content: Any) -> Iterator[str]:
    """Yields the names of Python classes in a description; a text in it may be JSON as well."""
    if isinstance(content, list):
        for one in content:
            yield from _python_types(one)
    if not isinstance(content, dict):
        return
    for key, value in content.items():
        if key in CLASS_KEYS and isinstance(value, str) and "." in value:
            yield value
        elif key == "json" and isinstance(value, str):
            yield from _python_types(bounded.parse_json(value))
        else:
            yield from _python_types(value)


def _builder(name: str, data_dir: Folder) -> Any:
    """Returns the builder of a prepared folder, or of a name."""
    import tensorflow_datasets

    if data_dir is None or (folder := _prepared_folder(name, Path(data_dir).expanduser())) is None:
        return tensorflow_datasets.builder(name, data_dir=data_dir, file_format="array_record")
    builder: Any = tensorflow_datasets.builder_from_directory(folder)
    info, wanted = builder.info, name.partition(":")[0]
    if wanted not in (info.name, f"{info.name}/{info.config_name}"):
        raise ValueError(f"{folder} has {info.full_name}")
    return builder


def _prepared_folder(name: str, top: Path) -> Path | None:
    """Returns the folder with `dataset_info.json`: `top`, or that of the newest version of the name; or None."""
    base, _, version = name.partition(":")
    folders = [top, top / base, *(path.parent for path in (top / base).glob(f"{version or '*'}/dataset_info.json"))]
    prepared = [folder for folder in folders if (folder / "dataset_info.json").is_file()]

    def newest(folder: Path) -> tuple[bool, list[int]]:
        return folder == top, [int(part) for part in folder.name.split(".") if part.isdigit()]

    return max(prepared, key=newest, default=None)


def _feature_names(name: str, info: Any, features: dict[str, Any]) -> tuple[str, str]:
    """Returns the names of the features with the image and the label."""
    from tensorflow_datasets import features as kinds

    images = sorted(key for key, feature in features.items() if isinstance(feature, kinds.Image))
    labels = sorted(key for key, feature in features.items() if isinstance(feature, kinds.ClassLabel))
    supervised = info.supervised_keys or ()
    if len(supervised) == 2 and supervised[0] in images and supervised[1] in labels:
        return supervised
    image = "image" if "image" in images else images[0] if len(images) == 1 else None
    label = "label" if "label" in labels else labels[0] if len(labels) == 1 else None
    if image is None or label is None:
        raise ValueError(
            f"tfds:{name} must have one feature of images and one of class labels, got images {images} and labels "
            f"{labels} among {sorted(features)}; choose another data set, or write the arrays to an npz file."
        )
    return image, label


def _read_examples(
    name: str, split: str, examples: Any, image: str, label: str, client: str, coarse: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray]:
    """Returns images, labels, makers and coarse labels of a split, in arrays that are allocated once."""
    images, labels = np.empty(0), np.empty(len(examples), np.int64)
    groups = np.zeros(len(examples), np.int32)
    makers: list[Any] = []
    for row in range(len(examples)):
        try:
            example = examples[row]
        except Exception as error:  # each codec raises other types
            raise ValueError(
                f"tfds:{name} is damaged: row {row} of split {split} cannot be read ({_first_line(error)}); delete its "
                f"folder and prepare it again."
            ) from error
        pixels = example[image]
        if pixels.shape[-1:] == (1,):  # grey: [H, W]
            pixels = pixels[..., 0]
        if row == 0:
            images = np.empty((len(examples), *pixels.shape), pixels.dtype)
        if pixels.shape != images.shape[1:]:
            raise ValueError(
                f"tfds:{name} must have images of one shape, got {images.shape[1:]} and {pixels.shape} in row {row} of "
                f"split {split}; resize them and write an npz file."
            )
        images[row], labels[row] = pixels, example[label]
        groups[row] = example[coarse] if coarse else 0
        if client:
            maker = example[client]
            if np.ndim(maker) or not isinstance(maker, int | str | bytes | np.integer):
                raise ValueError(f"tfds:{name}: {client} must be a number or a text, got {type(maker)}; set client.")
            makers.append(maker.decode() if isinstance(maker, bytes) else maker)
    if not len(examples):
        raise ValueError(f"tfds:{name} must have rows in split {split}, got none; prepare it again.")
    return images, labels, _maker_array(f"tfds:{name}: {client}", makers) if client else None, groups


def _maker_array(name: str, makers: list[Any]) -> np.ndarray:
    """Returns makers as an array of integers, or of texts if one is a text."""
    if any(isinstance(maker, str) for maker in makers):
        return to_texts(name, makers)
    return np.array(makers, np.int64 if min(makers, default=0) < 0 else np.uint64)


def _class_groups(name: str, num_classes: int, parts: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Returns the group of each class `[L]`, which all its rows have; 0 for a class without rows.

    Args:
        name: name of the data set.
        num_classes: L.
        parts: labels and groups of the rows, for each split.
    """
    labels, groups = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    group = np.zeros(num_classes, np.int32)
    group[labels] = groups
    if (group[labels] != groups).any():
        wrong = int(labels[np.argmax(group[labels] != groups)])
        raise ValueError(
            f"tfds:{name}: {COARSE} must be the same in all rows of a class, got several for class {wrong}."
        )
    return group


def _first_line(error: Exception) -> str:
    """Returns the first line of an error's message."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def entry(name: str) -> SourceEntry:
    """Returns the registry row of a data set of tensorflow-datasets, without checking whether it is prepared."""
    return SourceEntry(
        functools.partial(load, name),
        find=lambda data_dir: None,
        summary=f"{name}, prepared by tensorflow-datasets",
        licence="see tensorflow.org/datasets",
        num_bytes=0,
        num_classes=None,
        model=("auto", {}),
        makers="client",
    )
