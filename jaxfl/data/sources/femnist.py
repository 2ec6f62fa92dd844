"""FEMNIST: handwritten digits and letters by writer, from LEAF's json files or TensorFlow Federated's HDF5 files.

Both have 28 x 28 grey pixels from 0 (ink) to 1 (white paper), the inverse of MNIST, and are not inverted here.

References: Caldas et al., "LEAF: a benchmark for federated settings", 2018; Grother and Hanaoka, "NIST Special Database
19 user's guide", 2nd edition, 2016.
"""

import math
import re
import string
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxfl.data import bounded
from jaxfl.data.sources import leaf
from jaxfl.data.sources.base import Folder, Remote, Source, SourceEntry, locate
from jaxfl.schema import checked

SHAPE = (28, 28)
CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
Layout = Literal["auto", "leaf", "leaf-split", "tff"]
LAYOUTS = {
    **leaf.LAYOUTS,
    "tff": ("fed_emnist_train.h5", "fed_emnist_test.h5"),
}
HELP = (
    "run data/femnist/preprocess.sh of https://github.com/TalwalkarLab/leaf and pass its folder data/femnist as "
    "data_dir, or unpack https://storage.googleapis.com/tff-datasets-public/fed_emnist.tar.bz2 and pass that folder"
)


@checked
def load(data_dir: Folder = None, *, layout: Layout = "auto") -> Source:
    """Returns FEMNIST with its writers, from `data_dir/femnist`, `data_dir`, or LEAF's folders in them.

    The layouts, by name, in the order of the search:

    - `leaf`: `all_data*.json`, all rows of every user. There is no official test set.
    - `leaf-split`: `train/*.json` and `test/*.json`, from LEAF's split: parts of each user's rows
      (`preprocess.sh -t sample`), or other users in the test set (`-t user`).
    - `tff`: `fed_emnist_train.h5` and `fed_emnist_test.h5`, 3,400 writers with some of their rows in each.

    The true group of a writer is its collection in NIST's Special Database 19: employees of the census bureau, or
    students of a high school, whose writers are `f2100_..` to `f2599_..`. With other names of users the groups are
    unknown.

    Writers of one row are included; LEAF's rule of at least 2 rows is the skew's `min_rows`.

    Args:
        data_dir: folder of the files.
        layout: `"auto"` is the first layout that exists.

    Raises:
        FileNotFoundError: files are missing.
        ValueError: a file is damaged.

    Warns:
        UserWarning: there are files of both `leaf` and `leaf-split`, and the layout is not given.
    """
    layouts = LAYOUTS if layout == "auto" else {layout: LAYOUTS[layout]}
    existing, place = leaf.require_files("femnist", layouts, data_dir, HELP)
    read = _read_hdf5 if existing == "tff" else leaf.read
    parts = [read(leaf.sorted_files(place, pattern)) for pattern in LAYOUTS[existing]]
    train, test = parts if len(parts) == 2 else (parts[0], None)
    groups = _nist_collections(train.clients)
    return Source(
        "femnist",
        train.inputs,
        train.labels,
        len(CLASSES),
        None if test is None else test.inputs,
        None if test is None else test.labels,
        clients=train.clients,
        test_clients=None if test is None else test.clients,
        client_groups=groups,
        group_names=() if groups is None else ("employees", "students"),
        class_names=CLASSES,
        mean=0.0,
        std=255.0,
    )


def _nist_collections(users: np.ndarray) -> np.ndarray | None:
    """Returns 1 for rows of students and 0 for rows of employees `[P]`, or None if a user's name does not tell."""
    names, rows = np.unique(users, return_inverse=True)
    matches = [re.search(r"(?:^|:)f(\d{4})_\d{2}$", str(name)) for name in names]
    if not all(matches):
        return None
    return np.array([2100 <= int(match[1]) <= 2599 for match in matches if match], np.int32)[rows]


def _find_femnist(data_dir: Folder) -> Path | None:
    """Returns the folder of the files, or None."""
    located = locate(LAYOUTS, leaf.places("femnist", data_dir))
    return None if located is None else located[1]


def _read_hdf5(paths: list[Path]) -> leaf.LeafRows:
    """Returns the rows of HDF5 files with `examples/<client>/pixels` `[n, 28, 28]` and `.../label` `[n]`."""
    import h5py

    collector = leaf.Collector(SHAPE)
    for path in paths:
        declared = 0  # bytes that the file unpacks to
        # HDF5 finds some damage only when it reads it, so errors are caught for the complete reading.
        try:
            with h5py.File(path) as file:
                examples = file.get("examples")
                if not isinstance(examples, h5py.Group):
                    raise ValueError(
                        f"{path} must have a group examples with one group for each client, got only {list(file)}; "
                        "it is another data set under this name."
                    )
                for client in map(str, examples):
                    rows = examples[client]
                    columns: list[Any] = [
                        rows.get(key) if isinstance(rows, h5py.Group) else None for key in ("pixels", "label")
                    ]
                    for key, column in zip(("pixels", "label"), columns, strict=True):
                        if not isinstance(column, h5py.Dataset) or column.shape is None:
                            raise ValueError(f"{path}: client {client!r} must have {key}; the file is incomplete.")
                    declared += sum(math.prod(column.shape) * column.dtype.itemsize for column in columns)
                    bounded.check_unpacked_size(declared, path.stat().st_size, f"{path}: ")
                    pixels, labels = (np.asarray(column) for column in columns)
                    collector.add(path, client, *_check_client(f"{path}: client {client!r}", pixels, labels))
        except (OSError, RuntimeError, KeyError) as error:
            raise ValueError(f"{path} must be an HDF5 file, or is damaged ({error}); download it again.") from error
    return collector.rows()


def _check_client(where: str, pixels: np.ndarray, labels: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Returns one client's pixels as bytes and labels `[n]`; raises ValueError for arrays of another form."""
    count = len(pixels) if pixels.ndim else 0
    if pixels.shape != (count, *SHAPE) or labels.shape not in ((count,), (count, 1)):
        raise ValueError(
            f"{where} must have pixels [n, 28, 28] and label [n], got {list(pixels.shape)} and {list(labels.shape)}."
        )
    if count == 0:
        raise ValueError(f"{where} must have rows, got none; the file is incomplete.")
    if not np.issubdtype(pixels.dtype, np.floating):
        raise ValueError(f"{where} must have pixels that are floats, got {pixels.dtype}.")
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{where} must have integer labels 0..{len(CLASSES) - 1}, got {labels.dtype}.")
    if labels.min() < 0 or labels.max() >= len(CLASSES):
        raise ValueError(
            f"{where} must have integer labels 0..{len(CLASSES) - 1}, got {labels.dtype} "
            f"{labels.min()}..{labels.max()}; it is another data set under this name."
        )
    if not (pixels.min() >= 0 and pixels.max() <= 1):  # NaN fails as well
        raise ValueError(
            f"{where} must have pixels from 0 to 1, got {pixels.min()}..{pixels.max()}; divide grey values by 255."
        )
    levels = np.rint(pixels * 255)
    if float(np.abs(levels - pixels * 255).max()) > leaf.ROUNDING:
        # the same text for all clients, which Python prints once
        warnings.warn("femnist: pixels that are not n/255 are rounded to that; an npz file keeps them.", stacklevel=2)
    return levels.astype(np.uint8).tobytes(), labels.reshape(-1)


ENTRY = SourceEntry(
    load,
    find=_find_femnist,
    summary="FEMNIST, 805,263 digits and letters of 28 x 28 pixels by 3,550 writers (TFF: 749,068 by 3,400)",
    licence="LEAF BSD-2-Clause; the images are NIST's Special Database 19, a work of the US government",
    num_bytes=0,
    num_classes=len(CLASSES),
    makers="writer",
    help=HELP,
    remotes=(
        Remote(
            "https://storage.googleapis.com/tff-datasets-public/fed_emnist.tar.bz2",
            0,
            "sha256:fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",
            ("*fed_emnist_train.h5", "*fed_emnist_test.h5"),
        ),
    ),
    model=("leaf-femnist-cnn", {}),
)
