"""Construction of federations from arrays, and checks of these arrays."""

import collections
import dataclasses
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import DTypeLike

from jaxfl import schema
from jaxfl.data import conventions, leaks
from jaxfl.data import labels as kinds
from jaxfl.data.arrays import plain_array
from jaxfl.data.casts import check_rounding, to_integers, warn_merged_values
from jaxfl.data.causes import with_truth
from jaxfl.data.clients import FederatedData, Split
from jaxfl.data.partition.parts import number_lists
from jaxfl.data.windows import value_range
from jaxfl.typing import AnyArray

CAUSE = re.compile("[a-z][a-z_]*")  # name of a cause of groups, a part of the names of metrics and files
WEIGHTS = float(np.float32(1e-12)), 1e12  # of clients, the least above 0 and the largest
STANDARDISE = "subtract the mean of each column and divide by its standard deviation"
# Remedies for inputs of other types, by NumPy's kind.
CONVERSIONS = {
    "b": "use astype(np.float32)",
    "c": "use np.stack([values.real, values.imag], -1)",
    "M": "subtract the first time and divide by np.timedelta64(1, 's')",
    "m": "divide by np.timedelta64(1, 's')",
    "V": "use numpy.lib.recfunctions.structured_to_unstructured",
    **dict.fromkeys("USO", "number texts by np.unique(values, return_inverse=True)[1], or use the source table"),
}


def federate(
    inputs: np.ndarray,
    labels: np.ndarray,
    train: Sequence[np.ndarray] | Split,
    test: Sequence[np.ndarray] | Split,
    *,
    num_classes: int | None = None,
    rotation: np.ndarray | None = None,
    tilt: np.ndarray | None = None,
    label_shift: np.ndarray | None = None,
    label_map: np.ndarray | None = None,
    group: np.ndarray | None = None,
    causes: Mapping[str, np.ndarray] | None = None,
    held_out: np.ndarray | None = None,
    client_weights: np.ndarray | None = None,
    mean: float | np.ndarray | None = None,
    std: float | np.ndarray | None = None,
    name: str = "data",
    group_names: Sequence[str] = (),
    class_names: Sequence[str] = (),
    client_names: Sequence[str] = (),
    check_repeats: bool = True,
    check_kind: bool = True,
) -> FederatedData:
    """Returns a federation of a pool of examples and one index array per client, after checking them.

    Args:
        inputs: `[P, ...]`, uint8 (with defaults 0 and 255 of `mean` and `std`) or float; or other integers `[P]` or
            `[P, T]`, such as tokens, which the model gets as int32.
        labels: `[P]` ints in `[0, num_classes)`; or floats, bools or tokens of other tasks, see `jaxfl.data.labels`.
        train: pool rows of each client as N index arrays, N at least 1 (or a packed `Split`); the array of a client
            without rows is empty.
        test: the same for the test rows. A warning names a client with some of its training rows among them, another
            one with those of other clients that train; if the test rows of all clients are their training rows, there
            is no warning. A third names a client with a row twice.
        num_classes: L; None derives it from the shape of the labels (regression, multilabel).
        rotation, tilt, label_shift, group, held_out: one value per client `[N]`, see `FederatedData`.
        label_map: what each class is called, for M maps `[M, L]`; `label_shift` then numbers the map of each client.
        causes: for each way in which the clients were made different, by name, the number of each client's pattern
            `[N]`, see `jaxfl.data.causes`; without `group`, the groups are the products of all causes.
        client_weights: weight of each client in averages by rows (`weighting="rows"`) `[N]`, in the place of its number
            of rows.
        mean, std: normalisation in the units of `inputs`, a number or one per channel. For floats the default of one
            alone is 0 or 1, and there is no normalisation if both are left out.
        name, group_names, class_names, client_names: names for plots and tables; client names for all or for none.
        check_repeats: whether to warn of test rows that are identical with training rows, see `jaxfl.data.leaks`, or
            are those of other clients, and of rows that a client has twice.
        check_kind: whether to warn of numbers to predict, or several labels of a row, that look like classes.

    Raises:
        ValueError: the shapes disagree, labels are outside the classes or of no kind, a number is NaN or infinite, a
            row index is not a whole number or outside the pool, `std` is not above 0, there is no client, or images
            with a rotation are not square.

    >>> data = federate(np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1]), [np.array([0, 1]), np.array([2])],
    ...                 [np.array([3]), np.array([3])], num_classes=2)
    >>> data.num_clients, data.train.size.tolist()
    (2, [2, 1])
    """
    schema.check_type("num_classes", num_classes, int | None)
    inputs, labels = plain_array("inputs", inputs), plain_array("labels", labels)
    if not inputs.ndim:
        raise ValueError(f"inputs must be [P, ...], a row for each example, got one value, {inputs.item()!r}.")
    train, test = _pack_split("train", train), _pack_split("test", test)
    if not len(train.start):
        raise ValueError("train must have the rows of at least one client, got none.")
    pixels = inputs.dtype == np.uint8
    if pixels or mean is not None or std is not None:
        mean, std = (0.0 if mean is None else mean), ((255.0 if pixels else 1.0) if std is None else std)
    check_input_type("inputs", inputs)
    if inputs.dtype.kind in "iu" and not pixels:
        inputs = to_integers("inputs", inputs)
    stored, num_classes = kinds.prepare_labels(inputs, labels, num_classes)
    check_finite("inputs", inputs)
    if check_kind:
        conventions.warn_label_conventions(labels)
    if num_classes == 1 and stored.dtype.kind == "i":
        conventions.warn_single_label(labels)
    for argument, values, dtype in (("inputs", inputs, inputs.dtype), ("labels", labels, stored.dtype)):
        if values.dtype.kind == "f":
            warn_merged_values(argument, values, jax.dtypes.canonicalize_dtype(dtype), STANDARDISE)
    labels = stored
    for argument, given in {"label_shift": label_shift, "label_map": label_map}.items():
        if given is not None:
            kinds.check_classes(argument, labels)
    if rotation is not None or tilt is not None:
        check_square(inputs)
    dtype = inputs.dtype if inputs.dtype.kind == "f" else np.float32
    mean, std = _normaliser("mean", mean, inputs.shape, dtype), _normaliser("std", std, inputs.shape, dtype)
    conventions.warn_input_conventions(inputs, labels, mean, std)

    data = FederatedData(
        inputs=inputs,
        labels=labels,
        train=train,
        test=test,
        rotation=_quarter_turns(rotation),
        tilt=_finite_degrees(tilt, dtype),
        label_shift=_label_shifts(label_shift, num_classes, label_map),
        label_map=_whole_numbers("label_map", label_map),
        group=_whole_numbers("group", group),
        causes={cause: _pattern_numbers(cause, pattern) for cause, pattern in (causes or {}).items()},
        held_out=None if held_out is None else _bools_per_client("held_out", held_out),
        client_weights=_weights_per_client(client_weights),
        mean=mean,
        std=std,
        num_classes=num_classes,
        name=name,
        group_names=_name_texts(group_names),
        class_names=_name_texts(class_names),
        client_names=_name_texts(client_names),
    )
    check_label_maps(data)
    check_client_lists(data)
    check_client_weights(data)
    check_names(data)
    for part, split in data.splits.items():
        check_split(part, split, len(inputs))
    data = _grouped_by_causes(data)
    check_groups(data)
    _warn_test_rows_in_training(data, of_others=check_repeats)
    if check_repeats:
        _warn_rows_twice("train", data.train)
        _warn_rows_twice("test", data.test)
        leaks.warn_repeated_rows(data)
    return data


def _pack_split(name: str, parts: Sequence[np.ndarray] | Split) -> Split:
    """Returns a split of index arrays; raises an error if one is not a list of whole numbers, such as a mask."""
    if isinstance(parts, Mapping):
        raise TypeError(
            f"{name} must be a list of each client's rows, got a {type(parts).__name__}; pass list(...values())."
        )
    if not isinstance(parts, Split):
        return Split.pack(number_lists(name, parts, "client"))
    lists = {field: _whole_numbers(f"{name}.{field}", getattr(parts, field)) for field in ("rows", "start", "size")}
    return dataclasses.replace(parts, **lists)


def _name_texts(names: Sequence[Any] | None) -> tuple[str, ...]:
    """Returns names as texts; those in bytes are decoded, and None is no names."""
    listed = () if names is None else names
    return tuple(one.decode("utf-8", "backslashreplace") if isinstance(one, bytes) else str(one) for one in listed)


def _whole_numbers(name: str, values: np.ndarray | None) -> np.ndarray | None:
    """Returns int32 values of all clients `[N]`; raises ValueError if they are names or fractions."""
    if values is None:
        return None
    values = plain_array(name, values)
    if values.size and values.dtype.kind not in "iub":  # an empty list has floats
        remedy = "use astype(int)" if values.dtype.kind == "f" else "use np.unique(names, return_inverse=True)[1]"
        raise ValueError(f"{name} must be whole numbers, one for each client, got {values.dtype}; {remedy}.")
    return to_integers(name, values) if values.size else values.astype(np.int32)


def _label_shifts(values: np.ndarray | None, num_classes: int, maps: np.ndarray | None) -> np.ndarray | None:
    """Returns label shifts of all clients `[N]`; large ones modulo L, because a label and its shift are added.

    Numbers of label maps are as they are.
    """
    shifts = _whole_numbers("label_shift", values)
    return (
        shifts
        if shifts is None or maps is not None
        else np.where(np.abs(shifts.astype(np.int64)) < num_classes, shifts, shifts % num_classes)
    )


def _pattern_numbers(cause: str, pattern: Any) -> np.ndarray:
    """Returns the patterns of a cause `[N]`; raises ValueError unless its name is a word, and they are numbers."""
    if not isinstance(cause, str) or not CAUSE.fullmatch(cause):
        raise ValueError(f"causes must have words of small letters and _ for names, got {cause!r}.")
    numbers = _whole_numbers(f"causes[{cause!r}]", pattern)
    assert numbers is not None
    return numbers


def _grouped_by_causes(data: FederatedData) -> FederatedData:
    """Returns the federation with names of the patterns of its causes, whose products are its groups if it has none."""
    names = {}
    for cause, pattern in data.causes.items():
        low, high = int(np.min(pattern)), int(np.max(pattern))
        if low < 0:
            raise ValueError(f"causes[{cause!r}] must be numbers from 0, got {low}.")
        names[cause] = tuple(f"{cause} {number}" for number in range(high + 1))
    data = dataclasses.replace(data, cause_names=tuple(names.items()))
    return with_truth(data, tuple(names)) if names and data.group is None else data


def _bools_per_client(name: str, values: Any) -> np.ndarray:
    """Returns bools of all clients `[N]`; raises ValueError for words, all of which are true in NumPy."""
    values = plain_array(name, values)
    if values.dtype.kind not in "iub" or not np.isin(values, (0, 1)).all():
        remedies = {"f": "use astype(bool)", "i": "convert ids of clients by np.isin(np.arange(N), ids)"}
        remedy = remedies.get(values.dtype.kind, "convert words by values == 'True'")
        raise ValueError(f"{name} must be True or False for each client, got {values.dtype}; {remedy}.")
    return values.astype(bool)


def _weights_per_client(values: Any) -> np.ndarray | None:
    """Returns weights of all clients `[N]` float32; raises ValueError unless they are numbers."""
    if values is None:
        return None
    values = plain_array("client_weights", values)
    if values.dtype.kind not in "iuf":
        raise ValueError(f"client_weights must be numbers, one for each client, got {values.dtype}.")
    _check_weight_values(values)
    return values.astype(np.float32)


def _check_weight_values(weights: np.ndarray) -> None:
    """Raises ValueError unless weights of clients are 0 or in a range in which float32 has their sums and products."""
    if weights.ndim != 1:
        raise ValueError(f"client_weights must be one number for each client, got shape {weights.shape}.")
    least, most = WEIGHTS
    usable = (weights == 0) | ((weights >= least) & (weights <= most))
    if not usable.all():
        client = int(np.argmin(usable))
        raise ValueError(
            f"client_weights must be 0 or from {least:g} to {most:g} for each client, got {weights[client]} of client "
            f"{client}; divide all of them by their mean."
        )


def check_client_weights(data: FederatedData) -> None:
    """Raises ValueError unless weights of clients are in their range, and not all 0 of those with rows."""
    if data.client_weights is None:
        return
    weights = np.asarray(data.client_weights)
    _check_weight_values(weights)
    if not weights[np.asarray(data.train.size) > 0].any() and np.asarray(data.train.size).any():
        raise ValueError(
            "client_weights must be above 0 for at least one client with training rows, got only 0; leave them out to "
            "weigh by rows."
        )


def _finite_degrees(tilt: np.ndarray | None, dtype: Any) -> np.ndarray | None:
    """Returns degrees of all clients `[N]`; raises ValueError unless they are finite numbers."""
    if tilt is None:
        return None
    values = plain_array("tilt", tilt)
    if values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        got = "NaN or infinity" if values.dtype.kind == "f" else str(values.dtype)
        raise ValueError(f"tilt must be finite degrees, one number for each client, got {got}.")
    return values.astype(dtype)


def _quarter_turns(rotation: np.ndarray | None) -> np.ndarray | None:
    """Returns quarter turns of all clients `[N]`, 0 to 3; raises ValueError if they are degrees."""
    turns = _whole_numbers("rotation", rotation)
    if turns is not None and max(turns.max(initial=0), -int(turns.min(initial=0))) > 3:
        worst = turns.flat[np.argmax(np.abs(turns.astype(np.int64)))]
        raise ValueError(f"rotation must be quarter turns, -3 to 3, got {worst}; divide degrees by 90, or pass tilt.")
    return None if turns is None else turns % 4


def _normaliser(
    name: str, value: float | np.ndarray | None, shape: tuple[int, ...], dtype: DTypeLike
) -> np.ndarray | None:
    """Returns a mean or standard deviation with the rank of a batch, so that no rank is promoted silently."""
    if value is None:
        return None
    value = plain_array(name, value)
    value = value.astype(np.float64) if value.dtype.kind in "iu" else value
    check_normaliser(name, value)
    with np.errstate(over="ignore"):
        value = value.astype(dtype)
    check_normaliser(name, value)  # a small number may have become 0, a large one infinite
    if value.size not in (1, shape[-1]):
        first = "; use inputs.transpose(0, 2, 3, 1)" if conventions.have_channels_first(shape) else ""
        raise ValueError(
            f"{name} must be one number, or one for each of the {shape[-1]} channels, got {value.size} numbers{first}."
        )
    return value if value.ndim == 0 else value.reshape((1,) * (len(shape) - 1) + (-1,))


def check_normaliser(name: str, values: np.ndarray, where: str = "") -> None:
    """Raises ValueError unless a mean or a standard deviation is finite, and a standard deviation above 0.

    Args:
        name: `"mean"` or `"std"`.
        values: a number, or one per channel.
        where: beginning of the message, such as a path.
    """
    if values.dtype.kind not in "iuf" or not np.isfinite(values).all() or (name == "std" and (values <= 0).any()):
        positive = " above 0" if name == "std" else ""
        raise ValueError(f"{where}{name} must be finite numbers{positive}, got {values.tolist()}.")


def check_input_type(name: str, inputs: np.ndarray) -> None:
    """Raises ValueError unless the inputs are of a trainable type; pixels must be uint8, or they are not scaled.

    Args:
        name: name of the inputs, for the message.
        inputs: `[P, ...]`.
    """
    if 0 in inputs.shape[1:]:
        raise ValueError(f"{name} must have at least one number in each row, got shape {inputs.shape}.")
    if inputs.dtype in (np.uint8, np.float32, np.float64):
        return
    if inputs.dtype.kind not in "iu" or inputs.ndim > 2:
        kind = "V" if inputs.dtype.names else inputs.dtype.kind.replace("V", "f")  # floats of 16 bits are of kind V
        remedy = CONVERSIONS.get(kind, "convert them with astype(np.float32)")
        if inputs.dtype.kind in "iu" and inputs.size:
            low, high = int(inputs.min()), int(inputs.max())
            scaled = f"use (inputs / {max(high, 1)}).astype(np.float32)"
            remedy = "use inputs.astype(np.uint8) for pixels" if low >= 0 and high <= 255 else scaled
        raise ValueError(
            f"{name} must be uint8, float32 or float64, or integers [P] or [P, T] such as tokens, got {inputs.dtype} "
            f"of shape {inputs.shape}; {remedy}."
        )
    to_integers(name, inputs, remedy="renumber tokens, or convert numbers to floats")


def check_square(inputs: AnyArray) -> None:
    """Raises ValueError unless the inputs are square images, which can be rotated."""
    if inputs.ndim < 3 or inputs.shape[1] != inputs.shape[2]:
        raise ValueError(
            f"rotation needs square images [P, H, H, ...], got inputs of shape {inputs.shape}; crop or pad them."
        )


def check_pixels(name: str, inputs: AnyArray, *, floats: bool = False) -> None:
    """Raises ValueError unless the inputs are images of uint8 with 1 or 3 channels.

    Args:
        name: name of the operation, for the message.
        inputs: `[P, ...]`, of which only shape and type are used.
        floats: whether floats are allowed too.
    """
    image = inputs.ndim == 3 or (inputs.ndim == 4 and inputs.shape[3] in (1, 3))
    if not image or not (inputs.dtype == np.uint8 or (floats and inputs.dtype.kind == "f")):
        raise ValueError(
            f"{name} must have images of uint8 [P, H, W], [P, H, W, 1] or [P, H, W, 3], got {inputs.dtype} of shape "
            f"{tuple(inputs.shape)}; use astype(np.uint8) for pixels from 0 to 255, or a source of images."
        )


def white_level(inputs: AnyArray) -> int:
    """Returns the pixel of full brightness: 255, or the largest one where it is below 128, as in 4-bit images.

    >>> white_level(np.array([0, 16], np.uint8)), white_level(np.array([0, 200], np.uint8))
    (16, 255)
    """
    largest = int(inputs.max(initial=0))
    return largest if 0 < largest < 128 else 255


def check_no_drift(name: str, data: FederatedData) -> None:
    """Raises ValueError if the data drift, for operations that would be correct only before the drift.

    Args:
        name: name of the operation, for the message.
        data: the federation.
    """
    if data.drift is not None:
        raise ValueError(
            f"{name} must be applied to data without a drift, got {data.name!r} with a drift at round "
            f"{data.drifts_at}; add the drift last."
        )


def check_finite(name: str, inputs: np.ndarray) -> None:
    """Raises ValueError if an input is NaN, infinite, or changes when it is converted to float32 or computed with.

    Args:
        name: name of the inputs, for the message.
        inputs: `[P, ...]`.
    """
    if inputs.dtype.kind == "f" and not np.isfinite(inputs).all():
        place = np.unravel_index(int(np.argmin(np.isfinite(inputs))), inputs.shape)
        where = f"row {place[0]}" + (f", column {'/'.join(map(str, place[1:]))}" if inputs.ndim > 1 else "")
        raise ValueError(
            f"{name} must be finite, got NaN or infinity ({inputs[place]}) in {where}; drop the row or "
            "replace its values."
        )
    if inputs.dtype.kind == "f":
        check_rounding(name, inputs, jax.dtypes.canonicalize_dtype(inputs.dtype), STANDARDISE)


def check_client_lists(data: FederatedData) -> None:
    """Raises ValueError unless every list of clients has the same length."""
    names = {"client_names": data.client_names} if data.client_names else {}
    for name, values in (data.per_client() | names).items():
        if len(values) != data.num_clients:
            raise ValueError(
                f"{name.removesuffix('.start')} must have one entry for each of the {data.num_clients} clients of "
                f"train, got {len(values)}."
            )


def check_names(data: FederatedData) -> None:
    """Raises ValueError if two classes, groups or clients have one name, or the classes have more or fewer names."""
    for name in ("class_names", "group_names", "client_names"):
        names = getattr(data, name)
        if twice := next((one for one, count in collections.Counter(names).items() if count > 1), None):
            raise ValueError(f"{name} must be different, got {twice!r} twice; rename one.")
    if data.class_names and len(data.class_names) != data.num_classes:
        raise ValueError(
            f"class_names must have one name for each of the {data.num_classes} classes, got {len(data.class_names)}."
        )


def check_split(name: str, split: Split, pool: int) -> None:
    """Raises ValueError unless the ranges of a split are within its rows, and its rows within the pool."""
    start, size = np.asarray(split.start, np.int64), np.asarray(split.size, np.int64)
    if not start.ndim == size.ndim == split.rows.ndim == 1 or start.shape != size.shape:
        raise ValueError(
            f"{name} must have a start and a size for each client, got shapes {start.shape} and {size.shape}."
        )
    if min(start.min(initial=0), size.min(initial=0)) < 0 or (start + size).max(initial=0) > len(split.rows):
        client = int(np.argmax((start < 0) | (size < 0) | (start + size > len(split.rows))))
        raise ValueError(
            f"{name}: the range of client {client} must be within the {len(split.rows)} rows of the split."
        )
    if split.max_size != size.max(initial=0):
        raise ValueError(f"{name}: max_size must be {size.max(initial=0)}, got {split.max_size}.")
    low, high = value_range(split.rows)
    if low < 0 or high >= max(pool, 1):
        worst = low if low < 0 else high
        raise ValueError(f"{name} must have indices of the {pool} rows of inputs, got row {worst}; count rows from 0.")


def check_label_maps(data: FederatedData) -> None:
    """Raises ValueError unless label maps are permutations of the classes, and clients have numbers of them."""
    if data.label_map is None:
        return
    maps, numbers = np.asarray(data.label_map), data.label_shift
    classes = np.arange(data.num_classes)
    if maps.ndim != 2 or not len(maps) or maps.shape[1] != len(classes) or (np.sort(maps, axis=1) != classes).any():
        raise ValueError(
            f"label_map must have each of the classes 0 to {len(classes) - 1} once in each row [M, {len(classes)}], "
            f"got {maps.tolist()!r:.100} of shape {list(maps.shape)}."
        )
    if numbers is None or np.min(numbers, initial=0) < 0 or np.max(numbers, initial=0) >= len(maps):
        got = "none" if numbers is None else f"{np.min(numbers)} to {np.max(numbers)}"
        raise ValueError(f"label_shift must be the map of each client, from 0 to {len(maps) - 1}, got {got}.")


def check_groups(data: FederatedData) -> None:
    """Raises ValueError if the group of a client is below 0, or has no name while others have one."""
    groups, names = np.asarray([] if data.group is None else data.group), data.group_names
    most = len(names) - 1 if names else groups.max(initial=0)
    if groups.min(initial=0) < 0 or groups.max(initial=0) > most:
        got = f"{groups.min()} to {groups.max()}"
        raise ValueError(
            f"group must be from 0 to {most}, got {got}; count groups from 0, and name all groups or none."
        )


def _warn_rows_twice(name: str, split: Split) -> None:
    """Warns if a client has a row of the pool twice, which then counts twice."""
    if not len(split.rows) or np.bincount(split.rows).max() == 1:
        return
    owned = [np.sort(split.rows[start : start + size]) for start, size in zip(split.start, split.size, strict=True)]
    twice = {client: rows[:-1][rows[1:] == rows[:-1]] for client, rows in enumerate(owned)}
    if having := [client for client, rows in twice.items() if len(rows)]:
        warnings.warn(
            f"{name}: {len(having)} of {len(owned)} clients have a row twice, client {having[0]} row "
            f"{twice[having[0]][0]}; use np.unique for each client's rows, or check_repeats=False if that is meant.",
            stacklevel=3,
        )


def _warn_test_rows_in_training(data: FederatedData, *, of_others: bool) -> None:
    """Warns if some test rows of a client are its training rows or those of others, which makes metrics too good.

    If all test rows are the training rows, the user passed the same list twice on purpose, and there is no warning.

    Args:
        data: the federation.
        of_others: whether to warn of the training rows of other clients, too.
    """
    trained, seen = np.zeros(len(data.inputs), bool), np.zeros(len(data.inputs), bool)
    trained[data.train.rows] = True
    twice = all(
        np.array_equal(getattr(data.train, name), getattr(data.test, name)) for name in ("rows", "start", "size")
    )
    if twice or not trained[data.test.rows].any():
        return

    def rows_of(split: Split, client: int) -> np.ndarray:
        return split.rows[split.start[client] :][: split.size[client]]

    own, others = [], []
    for client in range(data.num_clients):
        if data.held_out is None or not data.held_out[client]:
            seen[rows_of(data.train, client)] = True
    for client in range(data.num_clients):
        train, test = ({*rows_of(split, client).tolist()} for split in (data.train, data.test))
        if train & test and train != test:
            own.append((client, min(train & test)))
        elif not train & test and (rows := [row for row in test if seen[row]]):
            others.append((client, min(rows)))
    for clients, whose in ((own, "their"), (others if of_others else [], "other clients'")):
        if clients:
            client, row = clients[0]
            warnings.warn(
                f"{len(clients)} of {data.num_clients} clients are tested on some of {whose} training rows, client "
                f"{client} on row {row}; remove these rows from train or test.",
                stacklevel=3,
            )
