"""Arrays in one `.npz` file: your own, or a whole `Source` that `save` wrote."""

import json
import os
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxfl.data import bounded
from jaxfl.data.sources import checks
from jaxfl.data.sources.base import Folder, Source, SourceEntry, folders

NAMES = ("class", "group", "domain", "class_group")
# What a file may hold beside the four arrays that have options, and their `test_` halves.
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

# The arrays of a file that `save` wrote, and the fields of the source that they hold.
FIELDS = {
    "x": "inputs",
    "y": "labels",
    "num_classes": "num_classes",
    "test_x": "test_inputs",
    "test_y": "test_labels",
    "client": "clients",
    "test_client": "test_clients",
    "group": "client_groups",
    "domain": "domains",
    "test_domain": "test_domains",
    "class_group": "class_groups",
    "mean": "mean",
    "std": "std",
}


def load(
    data_dir: Folder = None, *, image: str = "x", label: str = "y", client: str = "client", group: str = "group"
) -> Source:
    """Returns the examples of one `.npz` file, whose path is given as `data_dir`.

    Its arrays: `x [P, ...]` (uint8, float32 or float64; or other integers `[P, T]`, such as tokens) and `y [P]`
    (integers from 0; or labels of another kind, such as floats to predict, see `jaxfl.data.labels`); and, if there are,
    `client [P]` (who made the example), `group [P]` (the group of that client), `domain [P]` (what `hybrid` divides
    by), `test_x`, `test_y`, `test_client`, `test_domain`, `mean`, `std`, `class_names`, and `group_names` and
    `domain_names`, with which `group` and `domain` hold numbers from 0.

    Args:
        data_dir: the file.
        image, label, client, group: what the file calls `x`, `y`, `client` and `group`; the official test set has the
            same names after `test_`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not an npz file, holds Python objects, lacks an array, or the arrays disagree.
    """
    if data_dir is None or not Path(data_dir).is_file():
        got = "none was given" if data_dir is None else f"there is no file {data_dir}"
        if data_dir is not None and Path(data_dir).is_dir():
            got = f"{data_dir} is a folder; name the file in it"
        raise FileNotFoundError(f"npz needs data_dir, the path of an .npz file with arrays x and y: {got}.")
    path = Path(data_dir)
    own = {"x": image, "y": label, "client": client, "group": group}
    own |= {f"test_{key}": f"test_{own[key]}" for key in ("x", "y", "client")}
    file, found = read(path, {*own.values(), *EXTRAS})
    if not found:
        raise ValueError(f"{path} must hold arrays x and y, and is empty; write it with np.savez(path, x=..., y=...).")
    asked = {key for key, default in (("client", "client"), ("group", "group")) if own[key] != default}
    tested = {"test_x", "test_y"} if {own["test_x"], own["test_y"], own["test_client"]} & set(file) else set()
    # a test set of other names would be left out
    tested |= {key for key in ("test_x", "test_y", "test_client") if key in found and own[key] not in file}
    for key in sorted({"x", "y"} | asked | tested, key=list(own).index):
        if own[key] not in file:
            option = key.removeprefix("test_")
            option = {"x": "image", "y": "label"}.get(option, option)
            raise ValueError(
                f"{path} must hold the array {own[key]}, found only {found}; set {option} to one of them, or add it "
                f"with np.savez."
            )
    arrays = {key: file[name] for key, name in own.items() if name in file}
    arrays |= {key: file[key] for key in EXTRAS if key in file}
    try:
        arrays = {key: np.char.decode(one) if one.dtype.kind == "S" else one for key, one in arrays.items()}
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must have its bytes in UTF-8 ({error}); write texts.") from error
    return _source_from_arrays(path, arrays, own)


def _source_from_arrays(path: Path, arrays: Mapping[str, np.ndarray], own: Mapping[str, str]) -> Source:
    """Makes a source of the arrays of a file, by the names that `save` gives them.

    Args:
        path: path of the file.
        arrays: what it holds.
        own: what the file calls them where it has other names, for the messages.
    """
    for key in (f"{key}_names" for key in NAMES if f"{key}_names" in arrays):
        if arrays[key].ndim != 1:
            raise ValueError(f"{path}: {key} must be a list of names, got shape {arrays[key].shape}.")
    names = {key: tuple(map(str, arrays[f"{key}_names"])) for key in NAMES if f"{key}_names" in arrays}
    origin = _parse_origin(path, arrays["origin"]) if "origin" in arrays else None
    checks.check_rows(path, arrays, own)
    checks.check_rows(path, arrays, own, prefix="test_")
    if not len(arrays["x"]):
        raise ValueError(f"{path}: {own.get('x', 'x')} must have at least one row, got shape {arrays['x'].shape}.")
    num_classes = checks.num_classes(path, arrays, own, len(names.get("class", ())))
    mean, std = (checks.normaliser(path, key, arrays[key]) if key in arrays else None for key in ("mean", "std"))
    if arrays["x"].dtype == np.uint8 and origin is None:  # a file that `save` wrote says what it means
        mean, std = (0.0 if mean is None else mean), (255.0 if std is None else std)
    class_groups = arrays.get("class_group")
    if class_groups is not None and class_groups.shape != (num_classes,):
        raise ValueError(f"{path}: class_group must be [{num_classes}], one for each class, got {class_groups.shape}.")
    for key in ("group", "domain", "class_group"):
        for column in (column for column in (key, f"test_{key}") if column in arrays and key in names):
            checks.check_numbers(path, own.get(column, column), arrays[column], f"{key}_names", len(names[key]))
    for key, of in {"group": "client", "domain": "example", "test_domain": "example"}.items():
        if key in arrays and (arrays[key] != arrays[key]).any():
            raise ValueError(
                f"{path}: {own.get(key, key)} must say the {key.removeprefix('test_')} of each {of}, got NaN; leave "
                "the array out."
            )
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


def read(path: Path, wanted: Collection[str]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Reads arrays of an npz file.

    Args:
        path: the file.
        wanted: names of arrays; those that the file does not hold are left out, others are not read.

    Returns:
        The arrays by name, and the names of all that the file holds.

    Raises:
        ValueError: it is no npz file, is damaged, holds Python objects, or unpacks to too much (`jaxfl.data.bounded`).
    """
    try:
        return bounded.read_arrays(path, wanted)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path} must be an .npz file of plain arrays, and is not ({error}); write it with np.savez."
        ) from error


def save(source: Source, path: str | Path, *, origin: dict[str, Any] | None = None) -> None:
    """Writes a source into one npz file, from which `load` makes an equal one; there is never half a file.

    Args:
        source: what to write.
        path: the file, replaced if it exists.
        origin: `{"source": name, "options": {...}}`, what the examples were read from; `find_converted` compares it.
            None stands for the source's own name without options.

    Raises:
        ValueError: a field holds Python objects or does not fit the others, the origin is not of that form, or the
            source is still to be fitted to training rows.

    >>> import tempfile
    >>> source = Source("two", np.zeros((2, 4, 4), np.uint8), np.array([0, 1]), 2, class_names=("no", "yes"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(source, Path(folder) / "two.npz")
    ...     load(Path(folder) / "two.npz").class_names
    ('no', 'yes')
    """
    path = Path(path)
    origin = {"source": source.name, "options": {}} if origin is None else origin
    if set(origin) != {"source", "options"}:
        raise ValueError(f"origin must have the keys source and options, got {sorted(origin)}.")
    if source.fit is not None:
        raise ValueError(
            f"{source.name} cannot be written before it is dealt: it is scaled by the training rows. Save a federation "
            "instead, into a folder."
        )
    if source.name != origin["source"]:
        origin = origin | {"name": source.name}
    fields = {key: getattr(source, field) for key, field in FIELDS.items()}
    fields |= {f"{key}_names": getattr(source, f"{key}_names") or None for key in NAMES}
    fields |= {"origin": json.dumps(origin, sort_keys=True)}
    arrays = {key: np.asarray(value) for key, value in fields.items() if value is not None}
    for key, array in arrays.items():
        if array.dtype.kind not in "biufSU":
            raise ValueError(f"{key} of {source.name} must be numbers or strings, got {array.dtype}; convert it first.")
    _source_from_arrays(path, arrays, {})  # what could not be loaded must not be written
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, **arrays)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def find_converted(name: str, data_dir: Folder, options: Mapping[str, Any]) -> Path | None:
    """Returns the file that `save` made of a source, or None if there is none; only its origin is read.

    Args:
        name: name of the source; the file is `<name>.npz`, where the source's own files would be.
        data_dir: as for the source's loader.
        options: all options of its loader, which must be those that the file was made with.

    Raises:
        ValueError: the file was made with other options, or is damaged.
    """
    for path in (folder / f"{name}.npz" for folder in folders(name, data_dir)):
        if not path.is_file():
            continue
        arrays, _ = read(path, ("origin",))
        origin = _parse_origin(path, arrays["origin"]) if arrays else {}
        if origin.get("source") != name:  # others write files of these names, too
            continue
        asked, made = json.loads(json.dumps(dict(options))), origin["options"]
        for key in sorted({*asked, *made}):
            if key not in asked or key not in made or asked[key] != made[key]:
                wanted, got = (repr(those[key]) if key in those else "(unset)" for those in (asked, made))
                raise ValueError(
                    f"{path} must have been converted with {key}={wanted}, got {key}={got}; set {key} to {got}, or "
                    f"convert {name} again, or move the file away."
                )
        return path
    return None


def _parse_origin(path: Path, text: np.ndarray) -> dict[str, Any]:
    """Returns what `save` wrote into the array `origin`."""
    try:
        origin = bounded.parse_json(str(text))
        if not (isinstance(origin["source"], str) and isinstance(origin["options"], dict)):
            raise TypeError("source must be a name and options a table")
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path}: origin must be JSON with source and options ({error}); give that array another name."
        ) from error
    return origin


ENTRY = SourceEntry(
    load,
    find=lambda data_dir: Path(data_dir) if data_dir is not None and zipfile.is_zipfile(data_dir) else None,
    summary="your own arrays x, y[, client, group, test_x, test_y] in the .npz file that data_dir names",
    licence="yours",
    user_files=lambda place: [place],
    num_bytes=0,
    num_classes=None,
    makers="client",
)
