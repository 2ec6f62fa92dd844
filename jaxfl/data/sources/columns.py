"""Columns of csv and parquet files: their names, and their values as written."""

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

    def first_line(**options: Any) -> pandas.DataFrame:
        return _read_or_explain(path, lambda: pandas.read_csv(io.BytesIO(content), nrows=1, dtype=str, **options))

    # pandas would rename the second of two equal names
    _check_distinct_names(path, [name for name in first_line(header=None).iloc[0] if isinstance(name, str)])
    frame = first_line()
    # with more fields than names, pandas uses the first column as row names, or drops the last
    if not isinstance(frame.index, pandas.RangeIndex):
        raise ValueError(
            f"{path} must have a name for every column, but its rows have more fields than its first line, such as a "
            "comma at their end or numbers of rows; name or remove these."
        )
    return [str(name) for name in frame.columns]


def _check_distinct_names(path: Path, names: list[str]) -> list[str]:
    """Returns the names; raises ValueError if one occurs twice."""
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{path} must have different names for all columns, got {twice[0]!r} twice; rename one.")
    return names


def read(path: Path, columns: Sequence[str]) -> dict[str, np.ndarray]:
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
            return pandas.read_csv(io.BytesIO(bounded.read_content(path)), dtype=str, keep_default_na=False)

        frame = _read_or_explain(path, read)
    return {name: frame[name].to_numpy() for name in columns}


def _read_or_explain(path: Path, read: Any) -> Any:
    """Returns the result of `read`; raises ValueError with the path if the file is damaged."""
    try:
        return read()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be text in UTF-8 ({error}); write it again in UTF-8.") from error
    except (OSError, ValueError, KeyError) as error:  # pandas and pyarrow raise subclasses of these
        raise ValueError(f"{path} must be a csv or parquet file, or is damaged ({error}); get it again.") from error
