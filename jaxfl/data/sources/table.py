"""Tables in csv or parquet files with a row per example and named columns, scaled by training rows.

Categories become one column of 0 and 1 each (scikit-learn's OneHotEncoder), numbers are standardised (StandardScaler).
Both are fitted to all training rows after the partition, and so are the values in the place of missing ones: a mean
does not depend on test rows, and a category that only test rows have becomes zeros. (The rows of held-out clients and
validation rows are training rows here. A real federation would compute the same numbers from sums and squares of the
clients.)
"""

import datetime
import decimal
import functools
import re
import warnings
from collections.abc import Sequence
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
TABLE_SKEWS = ("pathological", "dominant", "missing", "downsampled", "dirichlet", "shards", *WITHOUT_CLASSES)
SMALL_SPREAD = 1 << 26  # size of a column beside its spread, from which on floats lose differences
NUMERIC_TEXT = r"\s*[-+]?[$€£¥]?\s?\d[\d.,'_ ]*\s?[%$€£¥]?\s*"  # numbers in the form of a country or a unit
TargetKind = Literal["auto", "number", "class"]
Missing = Literal["refuse", "mean", "most-frequent", "indicator"]
# Texts in the place of a number that is missing, in small letters: those of pandas, and UCI's question mark.
MISSING_NUMBERS = ("", "?", "na", "n/a", "#n/a", "#na", "<na>", "nan", "-nan", "null", "none")
MISSING_CATEGORIES = ("", "?")  # others, such as None, may be names


class Roles(NamedTuple):
    """Roles of the columns of a table.

    Attributes:
        target: the column to predict.
        client: column of the maker of a row; "" if unknown.
        group: column of the true group of that client; "" if unknown.
        categories: columns of features whose values are names.
        numbers: columns of features whose values are numbers.
        weight: column of the weight of that client in averages; "" if it is its number of rows.
    """

    target: str
    client: str
    group: str
    categories: tuple[str, ...]
    numbers: tuple[str, ...]
    weight: str = ""


@checked
def load(
    data_dir: Folder = None,
    *,
    target: str = "",
    client: str = "",
    group: str = "",
    client_weight: str = "",
    categories: str = "",
    numbers: str = "",
    target_kind: TargetKind = "auto",
    scale_target: bool = False,
    missing: Missing = "refuse",
    separator: str = files.PLAIN.separator,
    decimal: str = files.PLAIN.decimal,
    encoding: str = files.PLAIN.encoding,
) -> Source:
    """Returns the rows of one csv or parquet file, whose path is given as `data_dir`; csv may be compressed by gzip.

    Args:
        data_dir: path of the file.
        target: the column to predict.
        client: the column with the maker of each row; "" if unknown, for a skew that divides the rows.
        group: the column of the clients' true group, for the metrics with a natural partition; "" if unknown.
        client_weight: the column of the clients' weights in averages by rows, in the place of their numbers of rows;
            the same in all rows of a client. "" is none.
        categories: columns of categories, separated by colons: `"city:trade"`.
        numbers: columns of numbers, separated by colons; "" is all columns with a name and without another role. The
            row numbers that pandas writes have no name.
        target_kind: `"number"` is regression, `"class"` classification; `"auto"` is regression if all are numbers, with
            a warning if these are few whole numbers, which may be classes. Texts are classes, with a warning if they
            look like numbers or nearly every row has another one; where most rows are numbers and some are not, it is
            refused.
        scale_target: whether numbers to predict are standardised on training rows; losses and errors are then in
            standard deviations.
        missing: what happens to missing values of features. `"mean"`: a number becomes the mean of its column, a
            category the most frequent one. `"most-frequent"`: both become the most frequent value. `"indicator"`: a
            number becomes the mean, and a column of 0 and 1 beside it says where numbers were missing; missing
            categories are a category. All are fitted to training rows. `"refuse"` names the first one. Missing are
            empty fields, nulls and `?`, and where a number should be also NA, nan, null and none.
        separator: character between the fields of a csv file, such as `;`, or `tab`, `space`, `semicolon`, `pipe`.
        decimal: character before the decimals of a number in a csv file, `.` or `,`.
        encoding: encoding of a csv file, such as `latin-1`.

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
    form = files.check_format(separator, decimal, encoding)
    columns = files.read_names(path, form)
    given = Roles(target, client, group, _split_names(categories), _split_names(numbers), client_weight)
    if not target:
        raise ValueError(f"target must be the column to predict, one of {', '.join(columns)}, got none; set target.")
    used = [name for name in (target, client, group, client_weight, *given.categories, *given.numbers) if name]
    for name in used:
        if name not in columns:
            files.check_separator(path, columns, form)
        if name not in columns and "," in name:
            raise ValueError(f"columns must be separated by colons, got {name}; write {name.replace(',', ':')}.")
        if name not in columns:
            raise ValueError(
                f"{path} must have the column {name}{did_you_mean(name, columns)} It has {', '.join(columns)}."
            )
        if used.count(name) > 1:
            raise ValueError(f"{name} must have one role, got two; target, client and group cannot be features.")
    for name in columns:
        if name not in (target, client, group, client_weight) and checks.is_split(name):
            warnings.warn(checks.split_sentence(path, name), stacklevel=2)
    rest = tuple(name for name in columns if name not in used and not re.fullmatch(UNNAMED, name))
    roles = given if numbers else given._replace(numbers=rest)
    name = path.name.split(".")[0]
    return read_source(name, path, roles, target_kind, scale_target=scale_target, missing=missing, form=form)


def read_source(
    name: str,
    path: Path,
    roles: Roles,
    target_kind: TargetKind = "auto",
    *,
    scale_target: bool = False,
    missing: Missing = "refuse",
    form: files.CsvFormat = files.PLAIN,
) -> Source:
    """Returns the source of a table.

    Args:
        name: name of the source.
        path: path of the file.
        roles: roles of its columns.
        target_kind: kind of the target.
        scale_target: whether a number to predict is standardised.
        missing: what happens to missing values of features, see `load`.
        form: format of a csv file.
    """
    if not roles.categories + roles.numbers:
        raise ValueError(f"{path} must have columns of features, got none; name them in categories or numbers.")
    used = {name for role in roles for name in ((role,) if isinstance(role, str) else role) if name}
    frame = files.read(path, sorted(used), form)
    if not len(frame[roles.target]):
        raise ValueError(f"{path} must have rows, got none.")
    fills = missing != "refuse"
    numbers = [_feature_numbers(path, column, frame[column], form.decimal, fills=fills) for column in roles.numbers]
    codes = [_category_codes(path, column, frame[column], fills=fills) for column in roles.categories]
    inputs = np.stack(
        [*numbers, *codes], 1
    )  # float64 until it is scaled: float32 has a precision of minutes for times since 1970
    target = written = frame[roles.target]
    class_names: tuple[str, ...] = ()
    counts = (
        target.dtype != bool and not _parse_numbers(_with_point(target, form.decimal))[1]
    )  # truth values are names, as those of a csv file are
    if target_kind == "number" or (target_kind == "auto" and counts):
        of_zone = target.dtype == object and isinstance(target[0], datetime.datetime | datetime.timedelta)
        if (target.dtype.kind in "mM" or of_zone) and not scale_target:
            got = type(target[0]).__name__ if of_zone else target.dtype
            raise ValueError(
                f"{path}: {roles.target} must be numbers of a unit, got {got}; write a column "
                "of days or seconds since some time, or set scale_target=true."
            )
        target = _with_point(target, form.decimal)
        labels = _number_column(path, roles.target, target, or_else="leave target_kind=number out", written=written)
        num_classes = 1
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
        checks.warn_alike_texts(f"{path}: {roles.target}", texts)
        names, labels = np.unique(texts, return_inverse=True)
        class_names, num_classes = tuple(names.tolist()), len(names)
    clients = _text_column(path, roles.client, frame[roles.client]) if roles.client else None
    if clients is not None:
        checks.warn_alike_texts(f"{path}: {roles.client}", clients)
    groups, group_names = None, np.zeros(0, str)
    if roles.group:
        group_names, groups = np.unique(_text_column(path, roles.group, frame[roles.group]), return_inverse=True)
        checks.warn_alike_texts(f"{path}: {roles.group}", group_names)
    weights = None
    if roles.weight:
        written = frame[roles.weight]
        weights = _number_column(
            path, roles.weight, _with_point(written, form.decimal), "leave client_weight out", written=written
        )
    return Source(
        name,
        inputs,
        labels,
        num_classes,
        clients=clients,
        client_weights=weights,
        client_groups=groups,
        group_names=tuple(group_names.tolist()),
        class_names=class_names,
        fit=functools.partial(
            scale_features,
            count=len(numbers),
            scale_target=scale_target,
            missing=missing,
            names=(*roles.numbers, *roles.categories),
        ),
    )


def scale_features(
    inputs: np.ndarray,
    labels: np.ndarray,
    rows: np.ndarray,
    *,
    count: int,
    scale_target: bool = False,
    missing: Missing = "refuse",
    names: Sequence[str] = (),
) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs `[P, features]` and labels, filled and scaled by statistics of the training rows.

    Args:
        inputs: columns of numbers, then columns of category numbers `[P, columns]`; NaN and -1 are missing.
        labels: `[P]`.
        rows: training rows, which determine the scale.
        count: number of columns of numbers.
        scale_target: whether labels that are numbers are standardised.
        missing: how missing values are filled, see `load`.
        names: of the columns, for messages.

    >>> inputs = np.array([[1.0, 0], [3.0, 1], [5.0, 2]], np.float32)
    >>> scale_features(inputs, np.zeros(3, np.float32), np.array([0, 1]), count=1)[0].tolist()
    [[-1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [3.0, 0.0, 0.0]]
    """
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    parts: list[Any] = []
    flags: list[np.ndarray] = []
    if missing != "refuse":
        inputs, flags = _fill_missing(inputs, rows, count, missing, names)
    if count:
        parts.append(StandardScaler().fit(inputs[rows, :count]).transform(inputs[:, :count]))
    if flags:
        parts.append(np.stack(flags, 1))
    if count < inputs.shape[1]:
        encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
        parts.append(encoder.fit(inputs[rows, count:]).transform(inputs[:, count:]))
    if scale_target and labels.dtype.kind == "f":
        labels = np.ravel(StandardScaler().fit(labels[rows, None]).transform(labels[:, None]))
    labels = labels.astype(np.float32) if labels.dtype.kind == "f" else labels
    return np.concatenate(parts, 1, dtype=np.float32), labels


def _fill_missing(
    inputs: np.ndarray, rows: np.ndarray, count: int, missing: Missing, names: Sequence[str]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns the inputs without gaps, and the columns that say where numbers were missing; see `scale_features`.

    Raises:
        ValueError: a column has no value in a training row.
    """
    inputs, flags = inputs.copy(), []
    for column in range(inputs.shape[1]):
        number = column < count
        gaps = np.isnan(inputs[:, column]) if number else inputs[:, column] < 0
        if not gaps.any() or (not number and missing == "indicator"):  # -1 is a category then
            continue
        known = inputs[rows, column][~gaps[rows]]
        if not len(known):
            raise ValueError(
                f"{names[column]} must have a value in at least one training row, got none; leave the column out of "
                "numbers and categories."
            )
        values, times = np.unique(known, return_counts=True)
        frequent = not number or missing == "most-frequent"
        inputs[gaps, column] = values[np.argmax(times)] if frequent else known.mean()
        if missing == "indicator" and gaps[rows].any():
            flags.append(gaps.astype(np.float32))
    return inputs, flags


def _split_names(names: str) -> tuple[str, ...]:
    """Returns names that are separated by colons."""
    return tuple(name for name in names.split(":") if name)


def _parse_numbers(values: np.ndarray) -> tuple[np.ndarray, tuple[int, Any] | None]:
    """Returns a column as numbers, and row and value of the first one that is not a finite number, or None."""
    import pandas

    numbers = np.asarray(pandas.to_numeric(pandas.Series(values), errors="coerce"), np.float64)
    wrong = ~np.isfinite(numbers) | pandas.isna(values)  # `to_numeric` converts a missing time to a number
    return numbers, (int(np.argmax(wrong)), values[np.argmax(wrong)]) if wrong.any() else None


def _with_point(values: np.ndarray, decimal: str) -> np.ndarray:
    """Returns texts in which numbers have a decimal point; a point that was there is none and becomes a comma.

    >>> _with_point(np.array(["1,5", "1.234", "red"], object), ",").tolist()
    ['1.5', '1,234', 'red']
    """
    if decimal == "." or values.dtype != object:
        return values
    exchanged = str.maketrans({decimal: ".", ".": decimal})
    return np.array([value.translate(exchanged) if isinstance(value, str) else value for value in values], object)


def _missing_values(values: np.ndarray, texts: Sequence[str]) -> np.ndarray:
    """Returns where the values of a column are missing `[P]`, by texts in small letters that stand for none."""
    import pandas

    named = [isinstance(value, str) and value.strip().lower() in texts for value in values]
    return np.array(named, bool) | pandas.isna(values)


def _feature_numbers(path: Path, name: str, values: np.ndarray, decimal: str, *, fills: bool) -> np.ndarray:
    """Returns a column of numbers as floats `[P]`, NaN where they are missing and may be so."""
    gaps = _missing_values(values, MISSING_NUMBERS) if fills else np.zeros(len(values), bool)
    if gaps.all():
        raise ValueError(f"{path}: {name} must have a value in at least one row, got none; leave the column out.")
    written, values = values, _with_point(values, decimal)
    known = ~gaps
    if fills and gaps.any():
        parts = _number_column(path, name, values[known], written=written[known], rows=np.flatnonzero(known))
    else:
        parts = _number_column(path, name, values, written=written)
    parts = _subtract_least(parts, values[known])[0]
    _warn_lost_differences(f"{path}: {name}", parts)
    numbers = np.full(len(values), np.nan)
    numbers[known] = parts
    return numbers


def _category_codes(path: Path, name: str, values: np.ndarray, *, fills: bool) -> np.ndarray:
    """Returns a column of categories as numbers `[P]`, -1 where they are missing and may be so."""
    gaps = _missing_values(values, MISSING_CATEGORIES) if fills else np.zeros(len(values), bool)
    codes = np.full(len(values), -1)
    if not gaps.all():
        texts = _text_column(path, name, values[~gaps], ", or set missing=most-frequent")
        checks.warn_alike_texts(f"{path}: {name}", texts)
        codes[~gaps] = np.unique(texts, return_inverse=True)[1]
    return codes


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


def _number_column(
    path: Path,
    name: str,
    values: np.ndarray,
    or_else: str = "",
    *,
    written: np.ndarray | None = None,
    rows: np.ndarray | None = None,
) -> np.ndarray:
    """Returns a column as numbers.

    Args:
        path, name: of the file and the column, for the message.
        values: numbers with a decimal point, as texts or not.
        or_else: another remedy in the message than to name it a category.
        written: the values as they are in the file, if they differ.
        rows: their numbers in the file, if they are not all.
    """
    numbers, wrong = _parse_numbers(values)
    if wrong is not None:
        place, value = wrong
        row, value = place if rows is None else int(rows[place]), value if written is None else written[place]
        is_word = isinstance(value, str | datetime.date) and value != ""
        named = f", or {or_else or f'name {name} in categories'}" if is_word else ""
        if isinstance(value, str) and re.fullmatch(NUMERIC_TEXT, value):
            comma = ", or set decimal=," if re.fullmatch(r"\s*[-+]?\d+,\d+\s*", value) else ""
            named = f", or write numbers as 1234.5{comma}"
        if not or_else and _missing_values(np.array([value], object), MISSING_NUMBERS)[0]:
            named = f", or set missing=mean{named}"
        raise ValueError(
            f"{path}: {name} must be numbers, got {value!r} in row {row}; fill the value, leave the row out{named}."
        )
    if np.abs(numbers).max(initial=0) > np.finfo(np.float32).max:
        place = int(np.argmax(np.abs(numbers)))
        row = place if rows is None else int(rows[place])
        raise ValueError(
            f"{path}: {name} must be in the range of float32, got {values[place]} in row {row}; scale them."
        )
    return numbers


def _text_column(path: Path, name: str, values: np.ndarray, remedy: str = "") -> np.ndarray:
    """Returns a column as texts; raises ValueError if a value is missing, with a further remedy, or a list."""
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
            f"leave the row out{remedy}."
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
