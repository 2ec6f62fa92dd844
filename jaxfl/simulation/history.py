"""What happened in a run: a record per evaluation, on disk as soon as it exists."""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
        path: a JSON-lines file that every record is appended to; None keeps them in memory only.
        resume_at: keep the file's records up to this round and drop later ones; None starts an empty file.

    >>> history = History()
    >>> history.append({"round": 1, "micro_accuracy": 0.5})
    >>> history[-1]["micro_accuracy"], history.column("round")
    (0.5, [1])
    """

    def __init__(self, path: Path | None = None, resume_at: int | None = None):
        self.path = path
        self.records: list[dict[str, Any]] = []
        if path is None:
            return
        if resume_at is not None and path.exists():
            self.records = [record for record in read(path) if record["round"] <= resume_at]
        partial = path.with_suffix(".partial")
        partial.write_text("".join(_line(record) for record in self.records))
        os.replace(partial, path)

    def append(self, record: dict[str, Any]) -> None:
        """Adds a record, and writes it through to the disk."""
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
    """Returns the records of a JSON-lines file; a last line that a crash cut short is left out."""
    records = []
    for line in path.read_text().splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


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


def _line(record: dict[str, Any]) -> str:
    return json.dumps(json_ready(record), allow_nan=False) + "\n"
