"""Columns of csv and parquet files: their names, and their values as written."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxfl.data import bounded
from jaxfl.data.sources import shards

SEPARATORS = {"semicolon": ";", "tab": "\t", "\\t": "\t", "pipe": "|", "comma": ",", "space": " "}


class CsvFormat(NamedTuple):
    """Marks and encoding of a csv file.

    Attributes:
        separator: character between two fields.
        decimal: character before the decimals of a number.
        encoding: name of the encoding of its text.
    """

    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8"


PLAIN = CsvFormat()


def check_format(separator: str, decimal: str, encoding: str) -> CsvFormat:
    """Returns the format of a csv file; `separator` may be a word such as `"tab"`.

    >>> check_format("tab", ",", "latin-1")
    CsvFormat(separator='\\t', decimal=',', encoding='latin-1')
    """
    separator, given = SEPARATORS.get(separator, separator), separator
    if len(separator) != 1 or separator.isalnum() or separator in "\r\n\"'.+-":
        raise ValueError(
            f"separator must be one character, or one of {', '.join(SEPARATORS)}, got {given!r}; ; is usual."
        )
    if decimal not in (".", ","):
        raise ValueError(f"decimal must be . or a comma, got {decimal!r}.")
    if decimal == separator:
        raise ValueError(f"decimal must be another character than separator, got {decimal!r} for both; ; is usual.")
    try:
        "".encode(encoding)
    except (LookupError, ValueError) as error:
        raise ValueError(
            f"encoding must be the name of an encoding of text, got {encoding!r}; utf-8, latin-1 and utf-16 are usual."
        ) from error
    return CsvFormat(separator, decimal, encoding)


def read_names(path: Path, form: CsvFormat = PLAIN) -> list[str]:
    """Returns the names of a table's columns."""
    if shards.is_parquet(path):
        from pyarrow import parquet

        for option, given, usual in zip(CsvFormat._fields, form, PLAIN, strict=True):
            if given != usual:
                raise ValueError(f"{option} must be left out for a parquet file, got {given!r} for {path}.")
        return _check_distinct_names(
            path, [str(name) for name in _read_or_explain(path, lambda: parquet.read_schema(path).names)]
        )
    import pandas

    content = _read_or_explain(path, lambda: bounded.read_content(path))
    how = {"sep": form.separator, "encoding": form.encoding, "dtype": str}

    def first_line(**options: Any) -> pandas.DataFrame:
        return _read_or_explain(
            path, lambda: pandas.read_csv(io.BytesIO(content), nrows=1, **how, **options), form.encoding
        )

    # pandas would rename the second of two equal names
    _check_distinct_names(path, [name for name in first_line(header=None).iloc[0] if isinstance(name, str)])
    frame = first_line()
    # with more fields than names, pandas uses the first column as row names, or drops the last
    if not isinstance(frame.index, pandas.RangeIndex):
        check_separator(path, [str(name) for name in frame.columns], form)
        raise ValueError(
            f"{path} must have a name for every column, but its rows have more fields than its first line, such as a "
            "comma at their end or numbers of rows; name or remove these."
        )
    return [str(name) for name in frame.columns]


def check_separator(path: Path, names: Sequence[str], form: CsvFormat) -> None:
    """Raises ValueError if the only name of a column has another separator in it."""
    found = [
        word for word, mark in SEPARATORS.items() if word in ("semicolon", "tab", "pipe", "comma") and mark in names[0]
    ]
    if len(names) == 1 and found:
        raise ValueError(
            f"{path} must have {form.separator!r} between its columns, got {names[0]!r}, with "
            f"{SEPARATORS[found[0]]!r}; set separator={found[0]}."
        )


def _check_distinct_names(path: Path, names: list[str]) -> list[str]:
    """Returns the names; raises ValueError if one occurs twice."""
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{path} must have different names for all columns, got {twice[0]!r} twice; rename one.")
    return names


def read(path: Path, columns: Sequence[str], form: CsvFormat = PLAIN) -> dict[str, np.ndarray]:
    """Returns columns of a table by name: texts of a csv file, values of any type of a parquet file."""
    import pandas

    if shards.is_parquet(path):
        from pyarrow import parquet

        def read() -> Any:
            metadata = parquet.read_metadata(path)
            declared = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
            bounded.check_unpacked_size(declared, path.stat().st_size, f"{path}: ")
            return parquet.read_table(path, columns=list(columns)).to_pandas(ignore_metadata=True)

        frame = _read_or_explain(path, read)
    else:

        def read() -> Any:
            # all columns, because with a selection pandas does not count the fields of lines
            how: Any = {"sep": form.separator, "encoding": form.encoding, "dtype": str, "keep_default_na": False}
            return pandas.read_csv(io.BytesIO(bounded.read_content(path)), **how)

        frame = _read_or_explain(path, read, form.encoding)
    return {name: frame[name].to_numpy() for name in columns}


def _read_or_explain(path: Path, read: Any, encoding: str = PLAIN.encoding) -> Any:
    """Returns the result of `read`; raises ValueError with the path if the file is damaged."""
    try:
        return read()
    except UnicodeError as error:
        raise ValueError(
            f"{path} must be text in {encoding.upper()} ({error}); set encoding, such as latin-1, or write it again in "
            "UTF-8."
        ) from error
    except (OSError, ValueError, KeyError) as error:  # pandas and pyarrow raise subclasses of these
        raise ValueError(f"{path} must be a csv or parquet file, or is damaged ({error}); get it again.") from error
