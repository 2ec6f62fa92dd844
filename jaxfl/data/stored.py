"""Federations stored in a folder: one npy file for each array, and `federation.json`, which describes them.

The pool and the lists of rows are mapped, not read, when a federation is loaded: a run with host rows (see
`jaxfl.simulation.host.streaming`) reads the rows of its cohorts for files of any size. Files are checked before use:
types, shapes and lengths against `federation.json`, classes, rows and ranges against each other. Nothing is pickled.
Floats are not checked for NaN and infinity, which would read the whole pool; a client with such inputs is counted as
diverged.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from jaxfl.data import bounded, conditions
from jaxfl.data import labels as kinds
from jaxfl.data.building import (
    CAUSE,
    check_client_lists,
    check_client_weights,
    check_groups,
    check_input_type,
    check_label_maps,
    check_names,
    check_no_drift,
    check_pixels,
    check_split,
    check_square,
)
from jaxfl.data.clients import SPLITS, Attack, FederatedData, Split, Trigger, array_fields, get_field, replace_field
from jaxfl.data.sources import saved
from jaxfl.data.views.corruptions import CODES, STROKES
from jaxfl.data.windows import release_pages, value_range
from jaxfl.files import check_is_folder, replacing, user_path, write_text

HEADER, SCHEMA = saved.HEADER, 1
MAPPED = (
    "inputs",
    "labels",
    "origin",
    *(f"{split}.rows" for split in SPLITS),
)  # as long as the pool or its lists; all other arrays are read
PLAIN = ("num_classes", "name", "group_names", "class_names")  # fields that are not arrays
NAMES = "client_names"  # in the header only if there are names
# fields in the header only if they are not these
USUAL_FIELDS = {"fitted": False, "nearest": False, "widened": 0, "white": 255, "noise_seed": 0}
TRIGGER = "trigger"  # its size, in the header only if there is one
CAUSES = "causes"  # names of the patterns of each cause, in the header only if there are causes
ARRAY_TYPES = {  # types of the arrays that always have the same type
    **dict.fromkeys(("rotation", "label_shift", "label_map", "group", "origin"), "int32"),
    **dict.fromkeys(("colour", "class_rotation", "class_colour", "stroke", "corruption"), "int32"),
    **dict.fromkeys(("trigger.target", *(f"{split}.triggered" for split in SPLITS)), "int32"),
    **{f"{split}.{part}": "int32" for split in SPLITS for part in ("rows", "start", "size")},
    **dict.fromkeys(("held_out", "absent", "attack.attacker", *(f"{split}.flipped" for split in SPLITS)), "bool"),
    **dict.fromkeys(("stragglers", "attack.scale", "rate", "client_weights"), "float32"),
}


def save(data: FederatedData, folder: str | Path) -> None:
    """Writes a federation into a folder, from which `load` returns an equal one.

    `federation.json` is written last: a folder without it is incomplete, and is refused.

    Args:
        data: the federation.
        folder: new or empty folder.

    Raises:
        ValueError: the folder is not empty, or the data drift, which is an option of loading instead.

    >>> import tempfile
    >>> from jaxfl.data import synthetic
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(synthetic.clustered_linear(4), folder)
    ...     load(folder).num_clients
    4
    """
    check_no_drift("save", data)
    folder = user_path(folder)
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = _named_arrays(data)
    try:
        for name, array in arrays.items():
            with replacing(folder / f"{name}.npy") as file:
                np.save(file, array, allow_pickle=False)
            release_pages(array)
        write_header(folder, data, {name: (array.dtype, array.shape) for name, array in arrays.items()})
    except BaseException:
        for name in arrays:  # the folder is empty again, so that the same call can be repeated
            with contextlib.suppress(OSError):
                (folder / f"{name}.npy").unlink()
        raise


def check_folder(folder: Path) -> None:
    """Raises ValueError if a federation cannot be saved in a folder, which must be new or empty."""
    check_is_folder(folder.parent, "save")
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"save must be a new or empty folder, got {str(folder)!r}; choose another.")


def write_header(folder: Path, data: FederatedData, arrays: Mapping[str, tuple[Any, tuple[int, ...]]]) -> None:
    """Writes `federation.json`.

    Args:
        folder: folder of the federation.
        data: federation of which only the fields that are not arrays are used.
        arrays: type and shape of every array, by name.
    """
    header = {"schema": SCHEMA, **{name: getattr(data, name) for name in PLAIN}}
    header |= {"max_size": {name: split.max_size for name, split in data.splits.items()}}
    header |= {NAMES: data.client_names} if data.client_names else {}
    header |= {name: getattr(data, name) for name, usual in USUAL_FIELDS.items() if getattr(data, name) != usual}
    header |= {"attack": None if data.attack is None else data.attack.kind}
    header |= {TRIGGER: data.trigger.size} if data.trigger is not None else {}
    header |= {CAUSES: dict(data.cause_names)} if data.causes else {}
    header |= {
        "arrays": {name: {"dtype": np.dtype(kind).name, "shape": shape} for name, (kind, shape) in arrays.items()}
    }
    write_text(folder / HEADER, json.dumps(header, indent=2) + "\n")


def load(folder: str | Path | None) -> FederatedData:
    """Returns the federation of a folder written by `save`, with pool and lists of rows as mapped files.

    Args:
        folder: folder of the federation; None is refused.

    Raises:
        FileNotFoundError: the folder has no federation.
        ValueError: a file is missing or damaged, or files do not fit each other; the message names the file.
    """
    folder = None if folder is None else user_path(folder)
    if folder is None or saved.find(folder) is None:
        saved.load(folder)  # raises FileNotFoundError
    folder = Path(folder or "")
    path = folder / HEADER
    try:
        header = bounded.read_object(path)
        if header["schema"] != SCHEMA:
            raise ValueError(f"schema must be {SCHEMA} in this version of jaxfl, got {header['schema']!r}")
        declared = {
            name: (str(array["dtype"]), tuple(map(int, array["shape"]))) for name, array in header["arrays"].items()
        }
        data = _from_header(header)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{path} is not a header of jaxfl, or is damaged ({error}); save the federation again."
        ) from error
    known = [name for name, _ in array_fields(data)]
    if strange := sorted(set(declared) - set(known)):
        raise ValueError(f"{path} must name only arrays of a federation, got {', '.join(strange[:3])}.")
    always = (".rows", ".start", ".size", "attacker", "scale", "value", "target")
    needed = {"inputs", "labels", *(name for name in known if name.endswith(always) or name.startswith(f"{CAUSES}."))}
    if missing := sorted(needed - set(declared)):
        raise ValueError(f"{path} must name all arrays of a federation, but {missing[0]} is missing; save it again.")
    for name, (kind, shape) in declared.items():
        data = replace_field(data, name, _map_array(folder / f"{name}.npy", name, kind, shape))
    _check_arrays(folder, data)
    return data


def _from_header(header: dict[str, Any]) -> FederatedData:
    """Returns the federation of a header with None in place of arrays."""
    sizes = {name: header["max_size"][name] for name in SPLITS if name != "validation" or name in header["max_size"]}
    numbers = [header["num_classes"], *sizes.values()]
    if not all(isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**31 for number in numbers):
        raise ValueError(f"num_classes and max_size must be integers of 0 or more, got {numbers}")
    lists = {NAMES: [], **{name: header[name] for name in ("group_names", "class_names", NAMES) if name in header}}
    if wrong := [name for name, value in lists.items() if not isinstance(value, list)]:
        raise ValueError(f"{wrong[0]} must be a list of names, got {lists[wrong[0]]!r}")
    names = {name: tuple(map(str, value)) for name, value in lists.items()}
    plain, width = {name: header.get(name, usual) for name, usual in USUAL_FIELDS.items()}, header.get(TRIGGER, 1)
    for name, value in plain.items():
        if type(value) is not type(USUAL_FIELDS[name]) or not 0 <= value < 2**32:
            raise ValueError(f"{name} must be like {USUAL_FIELDS[name]!r}, got {value!r}")
    if type(width) is not int or not 0 < width < 2**31:
        raise ValueError(f"{TRIGGER} must be above 0, got {width!r}")
    nothing: Any = None  # in place of arrays that are read later
    causes = header.get(CAUSES, {})
    known = isinstance(causes, dict) and all(CAUSE.fullmatch(one) and isinstance(causes[one], list) for one in causes)
    if not known:
        raise ValueError(f"{CAUSES} must be lists of names by cause, got {causes!r:.100}")
    splits = {name: Split(nothing, nothing, nothing, size) for name, size in sizes.items()}
    attack = header["attack"]
    if attack not in (None, *conditions.ATTACK_KINDS):
        raise ValueError(f"attack must be null or one of {', '.join(conditions.ATTACK_KINDS)}, got {attack!r}")
    absent = {one.name: None for one in fields(FederatedData) if "per_client" in one.metadata and one.name != CAUSES}
    values: dict[str, Any] = {**absent, **splits, **names, "num_classes": numbers[0], "name": str(header["name"])}
    values |= {**plain, CAUSES: dict.fromkeys(causes)}
    values |= {"cause_names": tuple((cause, tuple(map(str, patterns))) for cause, patterns in causes.items())}
    trigger = None if TRIGGER not in header else Trigger(nothing, nothing, width)
    return FederatedData(**values, attack=None if attack is None else Attack(nothing, nothing, attack), trigger=trigger)


def _map_array(path: Path, name: str, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns an array of a folder, mapped if it may be long."""
    try:
        bounded.check_regular(path)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.memmap):
            raise ValueError("it is not an npy file")
        spare = path.stat().st_size - array.offset - array.nbytes
        if spare:
            raise ValueError(f"it has {spare:,} bytes more than its header declares")
        if array.ndim and not array.flags.c_contiguous:
            raise ValueError("it is not stored row by row")
    except (OSError, *bounded.DAMAGE, ValueError) as error:
        missing = isinstance(error, FileNotFoundError)
        what = "is missing" if missing else f"is not a file of jaxfl, or is damaged ({error})"
        raise ValueError(f"{path} {what}; save the federation again.") from error
    wanted = "int32" if name.startswith(f"{CAUSES}.") else ARRAY_TYPES.get(name, kind)
    if (array.dtype.name, array.shape) != (kind, shape) or kind != wanted or not array.dtype.isnative:
        raise ValueError(
            f"{path} must have {wanted}{list(shape)}, as {HEADER} and jaxfl declare, got {array.dtype}"
            f"{list(array.shape)}; save the federation again."
        )
    return array if name in MAPPED else np.array(array)


def _check_arrays(folder: Path, data: FederatedData) -> None:
    """Raises ValueError unless the arrays of a folder fit each other; the inputs are not read."""
    try:
        if data.inputs.dtype.kind in "iu" and data.inputs.dtype not in (np.uint8, np.int32):
            raise ValueError(f"inputs must be uint8, int32, float32 or float64, got {data.inputs.dtype}.")
        check_input_type("inputs", data.inputs[:0])
        if data.rotation is not None or data.tilt is not None:
            check_square(data.inputs[:0])
        _check_stored_labels(data)
        for name, split in data.splits.items():
            check_split(name, split, len(data.inputs))
        check_client_lists(data)
        check_client_weights(data)
        check_label_maps(data)
        check_names(data)
        _check_ranges(data)
        _check_scale(data)
        check_groups(data)
    except ValueError as error:
        raise ValueError(f"{folder}: {error} Save the federation again.") from error


def _check_stored_labels(data: FederatedData) -> None:
    """Raises ValueError unless the labels are of a kind and fit inputs and classes; NaN and infinity pass."""
    inputs, values = data.inputs, data.labels
    if inputs.ndim < 1 or values.ndim not in (1, 2) or len(values) != len(inputs):
        raise ValueError(f"labels must be one per row of inputs, got shape {values.shape} for {inputs.shape}.")
    if values.dtype not in (np.int32, bool, np.float32, np.float64) or (values.dtype == bool and values.ndim == 1):
        raise ValueError(f"labels must be int32, float or bool [P, L], got {values.dtype} of shape {values.shape}.")
    if data.kind in ("regression", "multilabel"):
        width = 1 if values.ndim == 1 else values.shape[1]
        if data.num_classes != width:
            raise ValueError(f"num_classes must be {width}, the labels of a row, got {data.num_classes}.")
    else:
        low, high = value_range(values)
        if low < (0 if data.kind == "classification" else kinds.MASKED) or high >= max(data.num_classes, 1):
            raise ValueError(f"labels must be in 0..{data.num_classes - 1}, got {low if low < 0 else high}.")
        kinds.check_positions(inputs, values)
    if data.label_shift is not None or any(
        mark is not None for split in data.splits.values() for mark in (split.flipped, split.triggered)
    ):
        kinds.check_classes("label_shift", values)


def _check_ranges(data: FederatedData) -> None:
    """Raises ValueError unless the numbers of clients and of conditions are in their ranges."""
    largest = float(np.finfo(np.float32).max)
    ranges = {
        "rotation": (0, 3),
        "tilt": (-largest, largest),
        "colour": (0, 6),
        "class_rotation": (0, 3),
        "class_colour": (0, 3),
        "stroke": (0, len(STROKES)),
        "origin": (0, len(data.inputs) - 1),
        "stragglers": (0, 1),
        "attack.scale": (0, largest),
        "trigger.target": (0, data.num_classes - 1),
        **{f"{split}.triggered": (0, np.iinfo(np.int32).max) for split in SPLITS},
        **{f"{CAUSES}.{cause}": (0, len(patterns) - 1) for cause, patterns in data.cause_names},
    }
    tables = {name: (data.num_clients, data.num_classes) for name in ("class_rotation", "class_colour")}
    shapes = {**tables, "origin": (len(data.inputs),)}
    for name, metadata in array_fields(data):
        values = get_field(data, name)
        if name not in ranges or values is None:
            continue
        low, high = ranges[name]
        shape = shapes.get(name, (data.num_clients,) if metadata["per_client"] else ())
        if values.shape != shape or not ((low <= values) & (values <= high)).all():
            kind = "a number for each client" if metadata["per_client"] else "one number"
            raise ValueError(f"{name} must be {kind} from {low:g} to {high:g}, got {values.tolist()!r:.100}.")
    codes = set() if data.corruption is None else set(np.unique(data.corruption).tolist())
    if unknown := sorted(codes - {0, *CODES}):
        raise ValueError(f"corruption must be codes of corruptions, got {unknown[0]}.")
    for name in ("colour", "class_colour", "stroke", "corruption"):
        if getattr(data, name) is not None:
            check_pixels(name, data.inputs[:0])


def _check_scale(data: FederatedData) -> None:
    """Raises ValueError unless mean and std are both numbers or one per channel, or both missing, and std above 0."""
    if (data.mean is None) != (data.std is None) or (data.mean is None and data.inputs.dtype == np.uint8):
        raise ValueError("mean and std must be given together, and always for pixels.")
    for name in ("mean", "std") if data.mean is not None else ():
        values = np.asarray(getattr(data, name))
        fits = values.ndim == 0 or values.shape in (
            (1,) * data.inputs.ndim,
            (*(1,) * (data.inputs.ndim - 1), data.inputs.shape[-1]),
        )
        if (
            values.dtype.kind != "f"
            or not fits
            or not np.isfinite(values).all()
            or (name == "std" and (values <= 0).any())
        ):
            raise ValueError(f"{name} must be finite floats, one number or one per channel, and std above 0.")


def _named_arrays(data: FederatedData) -> dict[str, np.ndarray]:
    """Returns the arrays of a federation by name, without those that are None."""
    arrays = {}
    for name, _ in array_fields(data):
        value = get_field(data, name)
        if value is not None:
            arrays[name] = np.asarray(value, order="C")  # row by row, as it is read
    return arrays
