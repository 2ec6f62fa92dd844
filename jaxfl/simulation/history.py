"""What happened in a run: a record per evaluation, on disk as soon as it exists."""

import contextlib
import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxfl.data import bounded

if TYPE_CHECKING:
    import pandas


class History:
    """The records of a run, one per evaluation, each a dictionary of plain numbers.

    A record holds the round, the metrics of `simulation.metrics`, and of the rounds since the record before:
    `train_loss` (mean over clients and rounds, None if nobody took part or no loss was finite), `diverged` (clients
    left out), `seconds_per_round`; `seconds` (of rounds, without compiling and evaluating), `bytes_up` and `bytes_down`
    count from the start of the run. What a method says of a round in one number (of FeSEM `objective` and `changed`,
    see `info.extra`) is of the last round; a metric of the same name wins.

    Args:
        path: of a run's `history.jsonl`, whose records are read; the file is never written, see `writing` for that.
            None starts without records, in memory only.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file holds something else.

    >>> history = History()
    >>> history.append({"round": 1, "micro_accuracy": 0.5})
    >>> history[-1]["micro_accuracy"], history.column("round")
    (0.5, [1])
    """

    def __init__(self, path: str | os.PathLike | None = None):
        self.path = None if path is None else Path(path)
        self.records: list[dict[str, Any]] = [] if self.path is None else read(self.path)
        self._writes = False

    @classmethod
    def writing(cls, path: str | os.PathLike, records: Iterable[dict[str, Any]] = ()) -> "History":
        """Returns a history whose records go to a JSON-lines file, each as soon as it exists.

        Args:
            path: of the file, which is replaced.
            records: to begin with.
        """
        history = cls()
        history.path, history.records, history._writes = Path(path), list(records), True
        write_text(history.path, "".join(_line(record) for record in history.records))
        return history

    def append(self, record: dict[str, Any]) -> None:
        """Adds a record, and writes it through to the disk.

        Raises:
            ValueError: the history was read from a file.
        """
        if self.path is not None and not self._writes:
            raise ValueError(f"{self.path} was opened to be read; History.writing(path) is for a run.")
        self.records.append(record)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(_line(record))
                file.flush()
                os.fsync(file.fileno())

    def column(self, name: str) -> list[Any]:
        """Returns one number of every record, None where a record has none."""
        return [record.get(name) for record in self.records]

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns the records as a data frame, a row per evaluation; nested entries (`clusters`) stay Python lists."""
        import pandas

        return pandas.DataFrame(self.records)

    def __repr__(self) -> str:
        """Returns a line."""
        return f"History(records={len(self)}, last_round={self[-1]['round'] if self.records else None})"

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns one record."""
        return self.records[index]

    def __len__(self) -> int:
        """Returns the number of evaluations."""
        return len(self.records)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Iterates over the records."""
        return iter(self.records)


def read(path: Path) -> list[dict[str, Any]]:
    """Returns the records of a JSON-lines file; a last line that a crash cut short is left out.

    Raises:
        ValueError: another line is no record, or the file is longer than a gigabyte.
    """
    if (size := path.stat().st_size) > bounded.FREE:
        raise ValueError(f"{path} is {size:,} bytes long, and {bounded.FREE:,} are read; evaluate more seldom.")
    *lines, last = path.read_bytes().split(b"\n")  # the last one is empty unless it was cut short
    records = [_record(path, number, line) for number, line in enumerate(lines, 1)]
    with contextlib.suppress(ValueError):
        records += [_record(path, len(lines) + 1, last)] if last else []
    return records


def write_text(path: Path, text: str) -> None:
    """Writes a file that is whole or as it was, whenever the process is killed or the machine stops."""
    partial = path.with_suffix(".partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()  # the disk may be full
        raise


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes JSON, whole or not at all."""
    write_text(path, json.dumps(json_ready(content), indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Returns what a JSON file holds; None if there is no file.

    Raises:
        ValueError: the file holds something else.
    """
    if not path.exists():
        return None
    try:
        return bounded.table(path)
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}); remove it or choose another directory.") from error


def json_ready(value: Any) -> Any:
    """Returns a value as JSON can say it: NaN and infinity, which JSON does not know, become null.

    >>> json_ready({"loss": float("nan"), "rounds": (1, 2)})
    {'loss': None, 'rounds': [1, 2]}
    """
    if isinstance(value, dict):
        return {name: json_ready(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """Returns the record of a line."""
    try:
        record = bounded.parsed(line)
        if not isinstance(record, dict) or not isinstance(record.get("round"), int):
            raise ValueError("a record has a round")
    except ValueError as error:
        raise ValueError(
            f"{path} is no history of a run, or a damaged one: line {number} is no record ({error}); put the file back "
            "as it was, or choose another directory."
        ) from error
    return record


def _line(record: dict[str, Any]) -> str:
    return json.dumps(json_ready(record), allow_nan=False) + "\n"
