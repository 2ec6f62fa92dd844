"""Tables in csv or parquet files with a row per example and named columns, scaled by training rows.

Categories become one column of 0 and 1 each (scikit-learn's OneHotEncoder), numbers are standardised (StandardScaler).
Both are fitted to all training rows after the partition: a mean does not depend on test rows, and a category that only
test rows have becomes zeros. (The rows of held-out clients and validation rows are training rows here. A real
federation would compute the same numbers from sums and squares of the clients.)
"""

import datetime
import decimal
import functools
import re
import unicodedata
import warnings
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxfl.data.casts import to_floats, to_texts
from jaxfl.data.conventions import few_whole_numbers
from jaxfl.data.sources import checks
from jaxfl.data.sources import columns as files
from jaxfl.data.sources.base import WITHOUT_CLASSES, Folder, Source, SourceEntry, missing_file_phrase
from jaxfl.schema import checked, did_you_mean

UNNAMED = r"Unnamed: \d+|__index_level_\d+__"  # names that pandas gives to columns without a name, such as an index
TABLE_SKEWS = ("pathological", "dominant", "dirichlet", "shards", *WITHOUT_CLASSES)
SMALL_SPREAD = 1 << 26  # size of a column beside its spread, from which on floats lose differences
NUMERIC_TEXT = r"\s*[-+]?[$€£¥]?\s?\d[\d.,'_ ]*\s?[%$€£¥]?\s*"  # numbers in the form of a country or a unit
TargetKind = Literal["auto", "number", "class"]


class Roles(NamedTuple):
    """Roles of the columns of a table.

    Attributes:
        target: the column to predict.
        client: column of the maker of a row; "" if unknown.
        group: column of the true group of that client; "" if unknown.
        categories: columns of features whose values are names.
        numbers: columns of features whose values are numbers.
    """

    target: str
    client: str
    group: str
    categories: tuple[str, ...]
    numbers: tuple[str, ...]


@checked
def load(
    data_dir: Folder = None,
    *,
    target: str = "",
    client: str = "",
    group: str = "",
    categories: str = "",
    numbers: str = "",
    target_kind: TargetKind = "auto",
    scale_target: bool = False,
) -> Source:
    """Returns the rows of one csv or parquet file, whose path is given as `data_dir`; csv may be compressed by gzip.

    Args:
        data_dir: path of the file.
        target: the column to predict.
        client: the column with the maker of each row; "" if unknown, for a skew that divides the rows.
        group: the column of the clients' true group, for the metrics with a natural partition; "" if unknown.
        categories: columns of categories, separated by colons: `"city:trade"`.
        numbers: columns of numbers, separated by colons; "" is all columns with a name and without another role. The
            row numbers that pandas writes have no name.
        target_kind: `"number"` is regression, `"class"` classification; `"auto"` is regression if all are numbers, with
            a warning if these are few whole numbers, which may be classes. Texts are classes, with a warning if they
            look like numbers or nearly every row has another one; where most rows are numbers and some are not, it is
            refused.
        scale_target: whether numbers to predict are standardised on training rows; losses and errors are then in
            standard deviations.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, a column is missing or has two roles, or a value is missing or not a number.

    Warns:
        UserWarning: a column such as `split` says which rows are for tests; all rows are divided anew.
    """
    if data_dir is None or not Path(data_dir).is_file():
        got = missing_file_phrase(data_dir)
        raise FileNotFoundError(f"table needs data_dir, the path of a csv or parquet file with a header: {got}.")
    path = Path(data_dir)
    columns = files.read_names(path)
    given = Roles(target, client, group, _split_names(categories), _split_names(numbers))
    if not target:
        raise ValueError(f"target must be the column to predict, one of {', '.join(columns)}, got none; set target.")
    used = [name for name in (target, client, group, *given.categories, *given.numbers) if name]
    for name in used:
        if name not in columns and len(columns) == 1 and (found := [mark for mark in ";\t|" if mark in columns[0]]):
            raise ValueError(
                f"{path} must have commas between its columns, got {columns[0]!r}, with {found[0]!r}; write it again "
                "with commas."
            )
        if name not in columns and "," in name:
            raise ValueError(f"columns must be separated by colons, got {name}; write {name.replace(',', ':')}.")
        if name not in columns:
            raise ValueError(
                f"{path} must have the column {name}{did_you_mean(name, columns)} It has {', '.join(columns)}."
            )
        if used.count(name) > 1:
            raise ValueError(f"{name} must have one role, got two; target, client and group cannot be features.")
    for name in columns:
        if name not in (target, client, group) and checks.is_split(name):
            warnings.warn(checks.split_sentence(path, name), stacklevel=2)
    rest = tuple(name for name in columns if name not in used and not re.fullmatch(UNNAMED, name))
    roles = given if numbers else given._replace(numbers=rest)
    return read_source(path.name.split(".")[0], path, roles, target_kind, scale_target=scale_target)


def read_source(
    name: str, path: Path, roles: Roles, target_kind: TargetKind = "auto", *, scale_target: bool = False
) -> Source:
    """Returns the source of a table.

    Args:
        name: name of the source.
        path: path of the file.
        roles: roles of its columns.
        target_kind: kind of the target.
        scale_target: whether a number to predict is standardised.
    """
    if not roles.categories + roles.numbers:
        raise ValueError(f"{path} must have columns of features, got none; name them in categories or numbers.")
    used = {name for role in roles for name in ((role,) if isinstance(role, str) else role) if name}
    frame = files.read(path, sorted(used))
    if not len(frame[roles.target]):
        raise ValueError(f"{path} must have rows, got none.")
    numbers = [
        _subtract_least(_number_column(path, column, frame[column]), frame[column])[0] for column in roles.numbers
    ]
    for column, values in zip(roles.numbers, numbers, strict=True):
        _warn_lost_differences(f"{path}: {column}", values)
    codes = [
        np.unique(_text_column(path, column, frame[column]), return_inverse=True)[1] for column in roles.categories
    ]
    inputs = np.stack(
        [*numbers, *codes], 1
    )  # float64 until it is scaled: float32 has a precision of minutes for times since 1970
    target = frame[roles.target]
    class_names: tuple[str, ...] = ()
    counts = (
        target.dtype != bool and not _parse_numbers(target)[1]
    )  # truth values are names, as those of a csv file are
    if target_kind == "number" or (target_kind == "auto" and counts):
        of_zone = target.dtype == object and isinstance(target[0], datetime.datetime | datetime.timedelta)
        if (target.dtype.kind in "mM" or of_zone) and not scale_target:
            got = type(target[0]).__name__ if of_zone else target.dtype
            raise ValueError(
                f"{path}: {roles.target} must be numbers of a unit, got {got}; write a column "
                "of days or seconds since some time, or set scale_target=true."
            )
        labels, num_classes = _number_column(path, roles.target, target, or_else="leave target_kind=number out"), 1
        labels, small = _subtract_least(labels, target)
        if target_kind == "auto":
            _warn_few_numbers(f"{path}: {roles.target}", labels)
        where, remedy = f"{path}: {roles.target}", "set scale_target=true, which subtracts the mean"
        if small and not scale_target:
            raise ValueError(
                f"{where} must differ by more than the precision of float32, to which they are converted, got "
                f"{target[np.argmin(labels)]} to {target[np.argmax(labels)]} in rows {np.argmin(labels)} and "
                f"{np.argmax(labels)}; {remedy}."
            )
        if scale_target:
            _warn_lost_differences(where, labels)
        else:
            labels = to_floats(where, labels, np.float32, remedy)
    else:
        if scale_target:
            raise ValueError(f"{path}: scale_target must be left out for classes, but {roles.target} has classes.")
        texts = _text_column(path, roles.target, target)
        if target_kind == "auto":
            _check_class_texts(f"{path}: {roles.target}", texts)
        _warn_alike_texts(f"{path}: {roles.target}", texts, case=False)
        names, labels = np.unique(texts, return_inverse=True)
        class_names, num_classes = tuple(names.tolist()), len(names)
    clients = _text_column(path, roles.client, frame[roles.client]) if roles.client else None
    if clients is not None:
        _warn_alike_texts(f"{path}: {roles.client}", clients, case=True)
    groups, group_names = None, np.zeros(0, str)
    if roles.group:
        group_names, groups = np.unique(_text_column(path, roles.group, frame[roles.group]), return_inverse=True)
    return Source(
        name,
        inputs,
        labels,
        num_classes,
        clients=clients,
        client_groups=groups,
        group_names=tuple(group_names.tolist()),
        class_names=class_names,
        fit=functools.partial(scale_features, count=len(numbers), scale_target=scale_target),
    )


def scale_features(
    inputs: np.ndarray, labels: np.ndarray, rows: np.ndarray, *, count: int, scale_target: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs `[P, features]` and labels, scaled by statistics of the training rows.

    Args:
        inputs: columns of numbers, then columns of category numbers `[P, columns]`.
        labels: `[P]`.
        rows: training rows, which determine the scale.
        count: number of columns of numbers.
        scale_target: whether labels that are numbers are standardised.

    >>> inputs = np.array([[1.0, 0], [3.0, 1], [5.0, 2]], np.float32)
    >>> scale_features(inputs, np.zeros(3, np.float32), np.array([0, 1]), count=1)[0].tolist()
    [[-1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [3.0, 0.0, 0.0]]
    """
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    parts: list[Any] = []
    if count:
        parts.append(StandardScaler().fit(inputs[rows, :count]).transform(inputs[:, :count]))
    if count < inputs.shape[1]:
        encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
        parts.append(encoder.fit(inputs[rows, count:]).transform(inputs[:, count:]))
    if scale_target and labels.dtype.kind == "f":
        labels = np.ravel(StandardScaler().fit(labels[rows, None]).transform(labels[:, None]))
    labels = labels.astype(np.float32) if labels.dtype.kind == "f" else labels
    return np.concatenate(parts, 1, dtype=np.float32), labels


def _split_names(names: str) -> tuple[str, ...]:
    """Returns names that are separated by colons."""
    return tuple(name for name in names.split(":") if name)


def _parse_numbers(values: np.ndarray) -> tuple[np.ndarray, tuple[int, Any] | None]:
    """Returns a column as numbers, and row and value of the first one that is not a finite number, or None."""
    import pandas

    numbers = np.asarray(pandas.to_numeric(pandas.Series(values), errors="coerce"), np.float64)
    wrong = ~np.isfinite(numbers) | pandas.isna(values)  # `to_numeric` converts a missing time to a number
    return numbers, (int(np.argmax(wrong)), values[np.argmax(wrong)]) if wrong.any() else None


def _subtract_least(numbers: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, bool]:
    """Returns a column minus its least value, and True, if its spread is small beside its size; or the column itself.

    Differences are computed before values are converted to floats, which would round them, and a scaler would take the
    rest for a constant.

    Args:
        numbers: the column as floats `[P]`.
        values: the column as it is in the file.

    >>> values = np.array(["1700000000000000001", "1700000000000000003"], object)
    >>> _subtract_least(values.astype(float), values)[0].tolist()
    [0.0, 2.0]
    """
    import pandas

    if np.abs(numbers).max() <= SMALL_SPREAD * (numbers.max() - numbers.min()):
        return numbers, False
    converted = np.asarray(pandas.to_numeric(pandas.Series(values), errors="coerce"))
    if converted.dtype.kind in "iu":
        differences = (converted.astype(object) - int(converted.min())).astype(np.float64)
    else:
        try:
            exact = [decimal.Decimal(str(value).strip()) for value in values]
        except decimal.InvalidOperation:  # pandas reads other texts, too
            exact = [decimal.Decimal(number) for number in numbers.tolist()]
        least = min(exact)
        differences = np.array([float(value - least) for value in exact])
    return (differences, True) if differences.any() else (numbers, False)


def _warn_few_numbers(name: str, numbers: np.ndarray) -> None:
    """Warns if numbers to predict look like classes."""
    if (different := few_whole_numbers(numbers)) is not None:
        warnings.warn(
            f"{name} has {len(different)} different whole numbers, {different[0]:g} to {different[-1]:g}, and is "
            "predicted as a number; set target_kind=class for classes, or target_kind=number.",
            stacklevel=2,
        )


def _warn_lost_differences(name: str, numbers: np.ndarray) -> None:
    """Warns if most of the different numbers of a column become equal to others when it is standardised."""
    order = np.argsort(numbers)
    ordered = numbers[order]
    scaled = ((ordered - ordered.mean()) / (ordered.std() or 1.0)).astype(np.float32)
    differ = ordered[1:] > ordered[:-1]
    lost = differ & (scaled[1:] == scaled[:-1])
    if 2 * lost.sum() > differ.sum():
        place = int(np.argmax(lost))
        warnings.warn(
            f"{name}: {lost.sum()} of {1 + differ.sum()} different values become equal in float32 when they are "
            f"standardised, such as {ordered[place]} and {ordered[place + 1]} in rows {order[place]} and "
            f"{order[place + 1]}; leave out rows of much larger or smaller numbers.",
            stacklevel=2,
        )


def _check_class_texts(name: str, texts: np.ndarray) -> None:
    """Raises ValueError if most texts of a target are numbers; warns if they look like numbers or hardly repeat."""
    import pandas

    is_number = np.isfinite(np.asarray(pandas.to_numeric(pandas.Series(texts), errors="coerce"), np.float64))
    if 2 * is_number.sum() >= len(texts) > is_number.sum():
        row = int(np.argmin(is_number))
        raise ValueError(
            f"{name} must be numbers or classes, got {str(texts[row])!r} in row {row} and numbers in {is_number.sum()} "
            f"of {len(texts)} rows; fill the value or leave the row out, or set target_kind=class."
        )
    different = np.unique(texts)
    numeric = [text for text in different.tolist() if re.fullmatch(NUMERIC_TEXT, text)]
    if 2 * len(numeric) >= len(different) or 3 * len(different) > len(texts):
        warnings.warn(
            f"{name} has {len(different)} different texts in {len(texts)} rows, such as "
            f"{(numeric or different.tolist())[0]!r}, and each is a class; write numbers to predict as 1234.5, or set "
            "target_kind=class.",
            stacklevel=2,
        )


def _warn_alike_texts(name: str, texts: np.ndarray, *, case: bool) -> None:
    """Warns of texts that differ in spaces at their ends or in the form of their accents alone, or in their case.

    Args:
        name: of the column, for the message.
        texts: its values.
        case: whether texts that differ in their case alone are different on purpose, such as ids.
    """
    known: dict[str, str] = {}
    for text in np.unique(texts).tolist():
        plain = unicodedata.normalize("NFC", text.strip())
        if (other := known.setdefault(plain if case else plain.casefold(), text)) != text:
            warnings.warn(
                f"{name} has {other!r} and {text!r}, which are different names here; write one name in one way.",
                stacklevel=2,
            )
            return


def _number_column(path: Path, name: str, values: np.ndarray, or_else: str = "") -> np.ndarray:
    """Returns a column as numbers; `or_else` is another remedy in the message than to name it a category."""
    numbers, wrong = _parse_numbers(values)
    if wrong is not None:
        row, value = wrong
        is_word = isinstance(value, str | datetime.date) and value != ""
        named = f", or {or_else or f'name {name} in categories'}" if is_word else ""
        if isinstance(value, str) and re.fullmatch(NUMERIC_TEXT, value):
            named = ", or write numbers as 1234.5"
        raise ValueError(
            f"{path}: {name} must be numbers, got {value!r} in row {row}; fill the value, leave the row out{named}."
        )
    if np.abs(numbers).max(initial=0) > np.finfo(np.float32).max:
        row = int(np.argmax(np.abs(numbers)))
        raise ValueError(f"{path}: {name} must be in the range of float32, got {values[row]} in row {row}; scale them.")
    return numbers


def _text_column(path: Path, name: str, values: np.ndarray) -> np.ndarray:
    """Returns a column as texts; raises ValueError if a value is missing or a list."""
    import pandas

    if lists := [row for row, value in enumerate(values) if isinstance(value, list | dict | np.ndarray)]:
        raise ValueError(
            f"{path}: {name} must have a text or a number in each row, got a {type(values[lists[0]]).__name__} in row "
            f"{lists[0]}; use another column."
        )
    if binary := [row for row, value in enumerate(values) if isinstance(value, bytes)]:
        try:
            values = np.array([value.decode() if isinstance(value, bytes) else value for value in values], object)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}: {name} must be texts in UTF-8, got bytes in row {binary[0]} ({error}); write texts."
            ) from error
    missing = pandas.isna(values) | (values.astype(str) == "")
    if missing.any():
        raise ValueError(
            f"{path}: {name} must have a value in each row, got none in row {int(np.argmax(missing))}; fill it, or "
            "leave the row out."
        )
    return to_texts(f"{path}: {name}", values)


ENTRY = SourceEntry(
    load,
    find=lambda data_dir: Path(data_dir) if data_dir is not None and Path(data_dir).is_file() else None,
    summary="a table in the csv or parquet file that data_dir names: target=COL, client=COL, categories=COL:COL",
    licence="yours",
    user_files=lambda place: [place],
    num_bytes=0,
    num_classes=None,
    makers="client",
    model=("mlp", {"hidden": (64,)}),
    skews=TABLE_SKEWS,
)
