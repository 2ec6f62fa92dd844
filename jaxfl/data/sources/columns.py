"""Columns of a csv or parquet file: their names, and their values as they are written."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxfl.data import bounded
from jaxfl.data.sources import shards


def read_names(path: Path) -> list[str]:
    """Returns the names of a table's columns."""
    if shards.is_parquet(path):
        from pyarrow import parquet

        return _check_distinct_names(
            path, [str(name) for name in _read_or_explain(path, lambda: parquet.read_schema(path).names)]
        )
    import pandas

    content = _read_or_explain(path, lambda: bounded.read_content(path))

    def first(**options: Any) -> pandas.DataFrame:
        return _read_or_explain(path, lambda: pandas.read_csv(io.BytesIO(content), nrows=1, dtype=str, **options))

    # others have none; and pandas would call the second of one name another name
    _check_distinct_names(path, [name for name in first(header=None).iloc[0] if isinstance(name, str)])
    frame = first()
    # of more fields than names, pandas takes the first for names of rows, or leaves the last out
    if not isinstance(frame.index, pandas.RangeIndex):
        raise ValueError(
            f"{path} must have a name for every column: its rows have more fields than its first line, by a comma at "
            "their end or by numbers of rows; name or remove these."
        )
    return [str(name) for name in frame.columns]


def _check_distinct_names(path: Path, names: list[str]) -> list[str]:
    """Returns names, unless one is there twice."""
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{path} must have a name of its own for every column, got {twice[0]!r} twice; rename one.")
    return names


def read(path: Path, columns: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns columns of a table: texts of a csv file, and what they are of a parquet file."""
    import pandas

    if shards.is_parquet(path):
        from pyarrow import parquet

        def read() -> Any:
            metadata = parquet.read_metadata(path)
            said = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
            bounded.check_unpacked_size(said, path.stat().st_size, f"{path}: ")
            return parquet.read_table(path, columns=list(columns)).to_pandas(ignore_metadata=True)

        frame = _read_or_explain(path, read)
    else:

        def read() -> Any:
            # all columns: pandas counts the fields of no line where it is asked for some
            return pandas.read_csv(io.BytesIO(bounded.read_content(path)), dtype=str, keep_default_na=False)

        frame = _read_or_explain(path, read)
    return {name: frame[name].to_numpy() for name in columns}


def _read_or_explain(path: Path, read: Any) -> Any:
    """Returns what is read, or says that the file is damaged."""
    try:
        return read()
    except (OSError, ValueError, KeyError) as error:  # pandas and pyarrow raise kinds of these
        raise ValueError(f"{path} is no csv or parquet file, or a damaged one ({error}); get it again.") from error
