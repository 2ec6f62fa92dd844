"""Sources in one `.npz` file: arrays of the user, or a complete `Source` written by `save`."""

import contextlib
import json
import os
import re
import warnings
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxfl.data import bounded
from jaxfl.data.sources import checks
from jaxfl.data.sources.base import Folder, Source, SourceEntry, folders, missing_file_phrase
from jaxfl.files import replacing, user_path

NAMES = ("class", "group", "domain", "class_group")
# Optional arrays in addition to the four with options, and their `test_` variants.
EXTRAS = (
    "mean",
    "std",
    "num_classes",
    "origin",
    "domain",
    "test_domain",
    "class_group",
    *(f"{key}_names" for key in NAMES),
)

# Arrays that are told if they are not read, by their names in small letters alone: test sets, splits, names of others.
TESTS = re.compile(f"[xy]?({checks.HELD_BACK})([xy]|data|image|input|label|target|client|user)?s?|train|training")
OTHERS = re.compile("(client|group|domain|mean|std)(id|index|number|name)?s?|(class|label)(e?s|names?)")

# Arrays of a file written by `save`, and the fields of the source that they store.
FIELDS = {
    "x": "inputs",
    "y": "labels",
    "num_classes": "num_classes",
    "test_x": "test_inputs",
    "test_y": "test_labels",
    "client": "clients",
    "test_client": "test_clients",
    "group": "client_groups",
    "client_weight": "client_weights",
    "domain": "domains",
    "test_domain": "test_domains",
    "class_group": "class_groups",
    "mean": "mean",
    "std": "std",
}


def load(
    data_dir: Folder = None,
    *,
    image: str = "x",
    label: str = "y",
    client: str = "client",
    group: str = "group",
    client_weight: str = "client_weight",
) -> Source:
    """Returns the examples of one `.npz` file, whose path is given as `data_dir`.

    Its arrays are `x [P, ...]` (uint8, float32 or float64; or other integers `[P, T]`, such as tokens) and `y [P]`
    (integers from 0; or labels of another kind, such as floats to predict, see `jaxfl.data.labels`). Optional arrays
    are `client [P]` (maker of the example), `group [P]` (group of that client), `client_weight [P]` (its weight in
    averages by rows, in the place of its number of rows), `domain [P]` (for the skew `hybrid`),
    `test_x`, `test_y`, `test_client`, `test_domain`, `mean`, `std`, `class_names`, and `group_names` and
    `domain_names`, with which `group` and `domain` are numbers from 0.

    Args:
        data_dir: path of the file.
        image, label, client, group: names of `x`, `y`, `client` and `group` in the file; the official test set has the
            same names after `test_`.
        client_weight: name of that array in the file; "" reads none.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not an npz file, has Python objects, lacks an array, or the arrays disagree.
    """
    if data_dir is None or not Path(data_dir).is_file():
        got = missing_file_phrase(data_dir)
        raise FileNotFoundError(f"npz needs data_dir, the path of an .npz file with arrays x and y: {got}.")
    path = Path(data_dir)
    names = {"x": image, "y": label, "client": client, "group": group, "client_weight": client_weight}
    names |= {f"test_{key}": f"test_{names[key]}" for key in ("x", "y", "client")}
    file, existing = read(path, {*names.values(), *EXTRAS})
    if not existing:
        raise ValueError(f"{path} must have arrays x and y, got none; write it with np.savez(path, x=..., y=...).")
    required = {key for key in ("client", "group", "client_weight") if names[key] not in (key, "")}
    tested = {"test_x", "test_y"} if {names["test_x"], names["test_y"], names["test_client"]} & set(file) else set()
    # a test set of other names would be ignored
    tested |= {key for key in ("test_x", "test_y", "test_client") if key in existing and names[key] not in file}
    for key in sorted({"x", "y"} | required | tested, key=list(names).index):
        if names[key] not in file:
            option = key.removeprefix("test_")
            option = {"x": "image", "y": "label"}.get(option, option)
            raise ValueError(
                f"{path} must have the array {names[key]}, got only {existing}; set {option} to one of them, or add it "
                f"with np.savez."
            )
    _warn_unread_arrays(path, [name for name in existing if name not in file], names, set(file))
    arrays = {key: file[name] for key, name in names.items() if name in file}
    arrays |= {key: file[key] for key in EXTRAS if key in file}
    try:
        arrays = {key: np.char.decode(array) if array.dtype.kind == "S" else array for key, array in arrays.items()}
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must have bytes in UTF-8 ({error}); write texts.") from error
    return _source_from_arrays(path, arrays, names)


def _warn_unread_arrays(path: Path, unread: Sequence[str], names: Mapping[str, str], found: Collection[str]) -> None:
    """Warns of arrays that are not read although their names say that they belong to the data set.

    Args:
        path: path of the file.
        unread: names of its arrays that are not read.
        names: names in the file, by the names that `save` uses.
        found: names of the arrays that are read.
    """

    def is_meant(name: str) -> bool:
        letters = re.sub("[^a-z]", "", name.lower())
        if TESTS.fullmatch(letters) or re.search(f"(^|_)({checks.HELD_BACK})(_|$)", name, re.IGNORECASE):
            return True
        if checks.is_split(name):
            return True
        role = OTHERS.fullmatch(letters)
        known = role and (role[1] or "class_names")
        return known is not None and names.get(known, known) not in found

    if meant := [name for name in unread if is_meant(name)]:
        known = [*names.values(), *(name for name in EXTRAS if name not in ("origin", *names))]
        warnings.warn(
            f"{path}: {', '.join(meant)} are not read; the arrays of a data set have the names {', '.join(known)}.",
            stacklevel=3,
        )


def _source_from_arrays(path: Path, arrays: Mapping[str, np.ndarray], file_names: Mapping[str, str]) -> Source:
    """Returns the source of the arrays of a file.

    Args:
        path: path of the file.
        arrays: arrays by the names that `save` uses.
        file_names: names of the arrays in the file, where they differ, for the messages.
    """
    for key in (f"{key}_names" for key in NAMES if f"{key}_names" in arrays):
        if arrays[key].ndim != 1:
            raise ValueError(f"{path}: {key} must be a list of names, got shape {arrays[key].shape}.")
    names = {key: tuple(map(str, arrays[f"{key}_names"])) for key in NAMES if f"{key}_names" in arrays}
    origin = _parse_origin(path, arrays["origin"]) if "origin" in arrays else None
    checks.check_rows(path, arrays, file_names)
    checks.check_rows(path, arrays, file_names, prefix="test_")
    if not len(arrays["x"]):
        raise ValueError(
            f"{path}: {file_names.get('x', 'x')} must have at least one row, got shape {arrays['x'].shape}."
        )
    num_classes = checks.num_classes(path, arrays, file_names, len(names.get("class", ())))
    mean, std = (checks.normaliser(path, key, arrays[key]) if key in arrays else None for key in ("mean", "std"))
    if arrays["x"].dtype == np.uint8 and origin is None:  # a file written by `save` states its normalisation
        mean, std = (0.0 if mean is None else mean), (255.0 if std is None else std)
    class_groups = arrays.get("class_group")
    if class_groups is not None and class_groups.shape != (num_classes,):
        raise ValueError(f"{path}: class_group must be [{num_classes}], one for each class, got {class_groups.shape}.")
    for key in ("group", "domain", "class_group"):
        for column in (column for column in (key, f"test_{key}") if column in arrays and key in names):
            checks.check_numbers(path, file_names.get(column, column), arrays[column], f"{key}_names", len(names[key]))
    for key, owner in {"group": "client", "domain": "example", "test_domain": "example"}.items():
        if key in arrays and (arrays[key] != arrays[key]).any():
            raise ValueError(
                f"{path}: {file_names.get(key, key)} must have the {key.removeprefix('test_')} of each {owner}, got "
                "NaN; leave the array out."
            )
    if origin is None:  # what `save` writes was told when it was read
        for key in ("client", "group", "domain"):
            checks.warn_alike_texts(f"{path}: {file_names.get(key, key)}", arrays.get(key), arrays.get(f"test_{key}"))
    weights = arrays.get("client_weight")
    if weights is not None and weights.dtype.kind not in "iuf":
        name = file_names.get("client_weight", "client_weight")
        raise ValueError(f"{path}: {name} must be numbers, got {weights.dtype}.")
    groups = arrays.get("group")
    if groups is not None and "group" not in names and origin is None:
        values, groups = np.unique(groups, return_inverse=True)
        names["group"] = tuple(map(str, values))
    if "domain" in arrays and "domain" not in names and origin is None:
        both = {key: arrays[key] for key in ("domain", "test_domain") if key in arrays}
        values = np.unique(np.concatenate(list(both.values())))
        arrays = {**arrays, **{key: np.searchsorted(values, array) for key, array in both.items()}}
        names["domain"] = tuple(map(str, values))
    return Source(
        path.stem if origin is None else origin.get("name", origin["source"]),
        arrays["x"],
        arrays["y"],
        num_classes,
        arrays.get("test_x"),
        arrays.get("test_y"),
        clients=arrays.get("client"),
        test_clients=arrays.get("test_client"),
        client_groups=groups,
        client_weights=weights,
        group_names=names.get("group", ()),
        domains=arrays.get("domain"),
        test_domains=arrays.get("test_domain"),
        domain_names=names.get("domain", ()),
        class_names=names.get("class", ()),
        class_groups=class_groups,
        class_group_names=names.get("class_group", ()),
        mean=mean,
        std=std,
    )


def read(path: Path, wanted: Collection[str] | None) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns arrays of an npz file by name, and the names of all its arrays.

    Args:
        path: path of the file.
        wanted: names of the arrays to read, of which some may be missing in the file; None reads all.

    Raises:
        ValueError: the file is not an npz file, is damaged, has Python objects, or unpacks to too many bytes, see
            `jaxfl.data.bounded`.
    """
    try:
        return bounded.read_arrays(path, wanted)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} must be an .npz file of plain arrays ({error}); write it with np.savez.") from error


def save(source: Source, path: str | Path, *, origin: dict[str, Any] | None = None) -> None:
    """Writes a source atomically into one npz file, from which `load` returns an equal one.

    Args:
        source: the source.
        path: path of the file; one that is there must have the same examples.
        origin: `{"source": name, "options": {...}}`, the origin of the examples; `find_converted` compares it.
            None stands for the source's own name without options.

    Raises:
        ValueError: a field has Python objects or does not fit the others, the origin is not of that form, or the source
            depends on training rows, or there is another file.

    >>> import tempfile
    >>> source = Source("two", np.zeros((2, 4, 4), np.uint8), np.array([0, 1]), 2, class_names=("no", "yes"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(source, Path(folder) / "two.npz")
    ...     load(Path(folder) / "two.npz").class_names
    ('no', 'yes')
    """
    path = user_path(path)
    origin = {"source": source.name, "options": {}} if origin is None else origin
    if set(origin) != {"source", "options"}:
        raise ValueError(f"origin must have the keys source and options, got {sorted(origin)}.")
    if source.fit is not None:
        raise ValueError(
            f"{source.name} cannot be written, because its rows depend on the training rows of a federation; save a "
            "federation into a folder instead."
        )
    check_target(path, origin)
    if source.name != origin["source"]:
        origin = origin | {"name": source.name}
    fields = {key: getattr(source, field) for key, field in FIELDS.items()}
    fields |= {f"{key}_names": getattr(source, f"{key}_names") or None for key in NAMES}
    fields |= {"origin": json.dumps(origin, sort_keys=True)}
    arrays = {key: np.asarray(value) for key, value in fields.items() if value is not None}
    for key, array in arrays.items():
        if array.dtype.kind not in "biufSU":
            raise ValueError(f"{key} of {source.name} must be numbers or strings, got {array.dtype}; convert it first.")
    _source_from_arrays(path, arrays, {})  # raises an error for a file that could not be loaded
    if os.path.lexists(path) and not _has_arrays(path, arrays):  # of files of other content, such as another `npz`
        raise _target_error(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as stream:
        np.savez_compressed(stream, allow_pickle=False, **arrays)


def check_target(path: Path, origin: Mapping[str, Any]) -> None:
    """Checks that a file may be written: it is new, or one that `save` wrote with the same origin.

    Args:
        path: of the file.
        origin: with the keys `source` and `options`.

    Raises:
        ValueError: it is another file, or a folder.
    """
    if not os.path.lexists(path):
        return
    if path.is_dir():
        raise ValueError(f"save must be a file, got the folder {str(path)!r}; give a file in it.")
    found: Mapping[str, Any] = {}
    with contextlib.suppress(ValueError, OSError):
        arrays = read(path, ("origin",))[0] if path.is_file() else {}
        found = _parse_origin(path, arrays["origin"]) if arrays else {}
    if {key: found.get(key) for key in ("source", "options")} != json.loads(json.dumps(dict(origin))):
        raise _target_error(path)


def _has_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> bool:
    """Returns whether a file has these arrays, bit for bit, and no others."""
    found, _ = read(path, None)

    def bits(array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(array).view(np.uint8)

    return found.keys() == arrays.keys() and all(
        (found[key].dtype, found[key].shape) == (array.dtype, array.shape)
        and np.array_equal(bits(found[key]), bits(array))
        for key, array in arrays.items()
    )


def _target_error(path: Path) -> ValueError:
    """Returns the error of a file that may not be written."""
    return ValueError(
        f"save must be a new file, or one with the same examples, got {str(path)!r}, which is another; choose another "
        "name, or move that file away."
    )


def find_converted(name: str, data_dir: Folder, options: Mapping[str, Any]) -> Path | None:
    """Returns the path of the file that `save` wrote of a source, or None; only its origin is read.

    Args:
        name: name of the source; the file is `<name>.npz` in a folder of the source.
        data_dir: as for the source's loader.
        options: all options of its loader, which must equal those of the file.

    Raises:
        ValueError: the file was written with other options, or is damaged.
    """
    for path in (folder / f"{name}.npz" for folder in folders(name, data_dir)):
        if not path.is_file():
            continue
        arrays, _ = read(path, ("origin",))
        origin = _parse_origin(path, arrays["origin"]) if arrays else {}
        if origin.get("source") != name:  # other programs may write files of this name
            continue
        wanted, stored = json.loads(json.dumps(dict(options))), origin["options"]
        for key in sorted({*wanted, *stored}):
            if key not in wanted or key not in stored or wanted[key] != stored[key]:
                needed, got = (repr(those[key]) if key in those else "(unset)" for those in (wanted, stored))
                raise ValueError(
                    f"{path} must have been converted with {key}={needed}, got {key}={got}; set {key} to {got}, or "
                    f"convert {name} again, or move the file away."
                )
        return path
    return None


def _parse_origin(path: Path, text: np.ndarray) -> dict[str, Any]:
    """Returns the origin that `save` wrote into the array `origin`."""
    try:
        origin = bounded.parse_json(str(text))
        names = origin["source"], origin.get("name", "")
        if not (all(isinstance(name, str) for name in names) and isinstance(origin["options"], dict)):
            raise TypeError("source and name must be texts and options an object")
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path}: origin must be JSON with source and options ({error}); rename that array."
        ) from error
    return origin


ENTRY = SourceEntry(
    load,
    find=lambda path: Path(path) if path and Path(path).is_file() and zipfile.is_zipfile(path) else None,
    summary="your own arrays x, y[, client, group, test_x, test_y] in the .npz file that data_dir names",
    licence="yours",
    user_files=lambda place: [place],
    num_bytes=0,
    num_classes=None,
    model=("auto", {}),
    makers="client",
)
