"""The history of a run: a record per evaluation, on disk as soon as it exists.

Beside the records of `history.jsonl` lie the clusters of the clients, in `clusters.jsonl`: a line after each evaluation
at which a client is in another cluster than before. With `clients_history` there are the metrics of each client, too,
see `ClientsHistory`.
"""

import contextlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxfl.data import bounded
from jaxfl.files import write_text
from jaxfl.simulation.records.clients_history import CLIENTS_HISTORY, ClientsHistory

if TYPE_CHECKING:
    import pandas

CLUSTERS = "clusters.jsonl"  # beside the history
MAX_CLUSTER = 1 << 24  # a cluster is the index of a slot, and there are no more
MAX_BYTES = 1 << 22  # of a config or a summary: a table of texts that are longer would take minutes
MAX_ENTRIES = 10_000  # of an object: each of a history's is a metric
MAX_VECTOR = 1000  # numbers of a list in a record
MAX_FOLLOWED = 10_000  # clients whose clusters are kept at every evaluation; of more, none are

EntryTypes = Mapping[str, tuple[type, ...]]
NUMBER = (int, float, type(None))  # null is a number that is not finite, or not known
JSON_NOUNS = {
    **{int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "null"},
    **{dict: "an object", list: "a list"},
}
RECORD_TYPES: EntryTypes = {"round": (int,), "clusters?": (list,), "(?!round$|clusters?$).*": (*NUMBER, bool, list)}
CLUSTER_TYPES: EntryTypes = {"clusters": (dict,), ".*": NUMBER}


class History:
    """The records of a run, one per evaluation, each a dictionary of plain numbers.

    A record holds the round, the metrics of `simulation.evaluation.metrics`, and of the rounds since the record before:
    `train_loss` (mean over clients and rounds, None if no client took part or no loss was finite), `diverged` (clients
    left out), `seconds_per_round`; `seconds` (of rounds, without compiling and evaluating), `bytes_up` and `bytes_down`
    count from the start of the run, with what is exchanged once before the first round (but not by the starts
    `"balanced"` and `"kmeans++"` of `ifca` and `hypcluster`). What a method says of a round in one number (of FeSEM
    `objective` and `changed`, see `info.extra`) is of the last round; a metric of the same name wins. With
    `record_vectors` what it says in a list of numbers is there, too.

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
        self.records: list[dict[str, Any]] = [] if self.path is None else read_records(self.path)
        self._writes = False
        self._moves: list[dict[str, Any]] | None = [] if path is None else None  # None: not read yet
        self._clients: ClientsHistory | None = None  # not kept, or not read yet

    @classmethod
    def writing(cls, path: str | os.PathLike, records: Iterable[dict[str, Any]] = ()) -> "History":
        """Returns a history whose records go to a JSON-lines file, each as soon as it exists.

        Args:
            path: of the file, which is replaced.
            records: the first ones; a `History` brings its clusters and clients, otherwise those in the folder are
                read.
        """
        history = cls()
        history.path, history.records, history._writes = Path(path), list(records), True
        last = history.records[-1]["round"] if history.records else 0
        moves = records.moves if isinstance(records, History) else _read_moves(history.path)
        history._moves = [move for move in moves if move["round"] <= last]
        if history._moves or (history.path.parent / CLUSTERS).exists():
            write_text(history.path.parent / CLUSTERS, "".join(map(_json_line, history._moves)))
        beside = history.path.parent / CLIENTS_HISTORY
        if isinstance(records, History):
            known = records.clients
        else:
            known = ClientsHistory.read(beside) if last and beside.exists() else None
        if known is not None:
            history._clients = known.until(last, beside)
            history._clients.save()
        write_text(history.path, "".join(_json_line(record) for record in history.records))
        return history

    @property
    def moves(self) -> list[dict[str, Any]]:
        """Returns the `round` and every client's `cluster` of each evaluation at which a client has moved."""
        if self._moves is None:
            self._moves = [] if self.path is None else _read_moves(self.path)
        return self._moves

    @property
    def clients(self) -> ClientsHistory | None:
        """Returns the metrics of each client at each evaluation; None where they were not kept (`clients_history`).

        >>> history = History()
        >>> history.keep_clients()
        >>> history.note_clients(2, {"rows": np.array([4, 4]), "accuracy": np.array([0.5, 0.25])})
        >>> history.clients["accuracy"].tolist()
        [[0.5, 0.25]]
        """
        if self._clients is None and self.path is not None and not self._writes:
            beside = self.path.parent / CLIENTS_HISTORY
            self._clients = ClientsHistory.read(beside) if beside.exists() else None
        return self._clients

    def keep_clients(self) -> None:
        """Makes the history keep the metrics of each client from now on."""
        if self._clients is None:
            self._clients = ClientsHistory(None if self.path is None else self.path.parent / CLIENTS_HISTORY)

    def note_clients(self, round: int, columns: Mapping[str, np.ndarray]) -> None:
        """Adds the metrics of each client after a round, in memory; nothing where they are not kept."""
        if self._clients is not None:
            self._clients.append(round, columns)

    def save_clients(self) -> None:
        """Writes the metrics of each client to the disk, if they are kept."""
        if self._clients is not None:
            self._clients.save()

    @property
    def clusters(self) -> np.ndarray | None:
        """Returns the cluster of every client at every evaluation `[evaluations, N]`, -1 for none or not known.

        None where they were not kept: of a run with more than 10,000 clients, or one of an older version.

        >>> history = History()
        >>> for round, cluster in ((2, [0, 0, 1]), (4, [0, 0, 1]), (6, [0, 1, 1])):
        ...     history.append({"round": round}, np.array(cluster))
        >>> history.clusters.tolist()
        [[0, 0, 1], [0, 0, 1], [0, 1, 1]]
        """
        if not self.moves:
            return None
        known = np.array([move["cluster"] for move in self.moves])
        known = np.concatenate([np.full_like(known[:1], -1), known])
        return known[np.searchsorted([move["round"] for move in self.moves], self.column("round"), "right")]

    def append(self, record: dict[str, Any], cluster: np.ndarray | None = None) -> None:
        """Appends a record and flushes it to the disk.

        Args:
            record: of an evaluation.
            cluster: of every client `[N]`; kept of up to 10,000 clients, None keeps nothing.

        Raises:
            ValueError: the history was read from a file.
        """
        if self.path is not None and not self._writes:
            raise ValueError(f"{self.path} was opened to be read; History.writing(path) is for a run.")
        if cluster is not None:
            self.note_clusters(record["round"], cluster)
        self.records.append(record)
        if self.path is not None:
            _append_line(self.path, record)

    def note_clusters(self, round: int, cluster: np.ndarray) -> None:
        """Writes the cluster of every client `[N]` after a round if one has moved; of many clients, nothing is kept."""
        if len(cluster) > MAX_FOLLOWED:
            return
        found = cluster.tolist()
        if self.moves and (known := len(self.moves[-1]["cluster"])) != len(found):
            raise ValueError(
                f"{CLUSTERS} must hold the cluster of each of the {len(found)} clients, got {known}; put it back, or "
                "remove it."
            )
        if not self.moves or self.moves[-1]["cluster"] != found:
            self.moves.append({"round": round, "cluster": found})
            if self.path is not None:
                _append_line(self.path.parent / CLUSTERS, self.moves[-1])

    def correct(self, metrics: dict[str, Any]) -> None:
        """Writes these numbers over those of the last record."""
        self.records[-1] |= metrics
        if self._writes and self.path is not None:
            write_text(self.path, "".join(_json_line(record) for record in self.records))

    def column(self, name: str) -> list[Any]:
        """Returns one number of every record, None where a record has none."""
        return [record.get(name) for record in self.records]

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns the records as a data frame, a row per evaluation; entries that are lists stay Python lists."""
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


def read_records(path: Path) -> list[dict[str, Any]]:
    """Returns the records of a JSON-lines file; a last line that a crash cut short is left out.

    Raises:
        ValueError: another line is no record, or the file is longer than a gigabyte, or no regular file.
    """
    try:
        bounded.check_regular(path)
    except ValueError as error:
        raise ValueError(f"{path} is no history of a run: {error}; put it back as it was.") from error
    if (size := path.stat().st_size) > bounded.FREE:
        raise ValueError(f"{path} is {size:,} bytes long, and {bounded.FREE:,} are read; evaluate more seldom.")
    *lines, last = path.read_bytes().split(b"\n")  # the last one is empty unless it was cut short
    records = [_parse_record(path, number, line) for number, line in enumerate(lines, 1)]
    with contextlib.suppress(ValueError):
        records += [_parse_record(path, len(lines) + 1, last)] if last else []
    return records


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes JSON atomically."""
    write_text(path, json.dumps(json_ready(content), indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Returns the content of a JSON file; None if there is no file.

    Raises:
        ValueError: the file holds something else.
    """
    if not path.exists():
        return None
    try:
        return bounded.read_object(path, MAX_BYTES)
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}); remove it or choose another directory.") from error


def check_entries(content: Mapping[str, Any], entry_types: EntryTypes) -> None:
    """Raises ValueError if an entry has another type than it must, or they are too many.

    Entries without a type, and missing ones, pass.

    Args:
        content: from JSON.
        entry_types: what an entry may be, by the pattern that its whole name matches.

    >>> check_entries({"rounds": 3, "seed": "zero", "note": []}, {"rounds|seed": (int,)})
    Traceback (most recent call last):
    ValueError: seed must be a whole number, got "zero"
    """
    if len(content) > MAX_ENTRIES:
        raise ValueError(f"at most {MAX_ENTRIES:,} entries are read, got {len(content):,}")
    for pattern, types in entry_types.items():
        for name, value in content.items():
            if type(value) not in types and re.fullmatch(pattern, name, re.DOTALL):
                wanted = " or ".join(JSON_NOUNS[one] for one in types)
                raise ValueError(f"{name} must be {wanted}, got {_shown(value)}")


def _shown(value: Any) -> str:
    """Returns a value of JSON for a message."""
    return JSON_NOUNS[type(value)] if isinstance(value, dict | list) else json.dumps(value)[:100]


def json_ready(value: Any) -> Any:
    """Returns a value as JSON can represent it: NaN and infinity become null.

    >>> json_ready({"loss": float("nan"), "rounds": (1, 2)})
    {'loss': None, 'rounds': [1, 2]}
    """
    if isinstance(value, dict):
        return {name: json_ready(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_back(value: Any) -> Any:
    """Returns a value as JSON reads it back: tuples are lists there, and keys are text.

    >>> read_back({"rounds": (1, 2), "rates": {1: 0.5}})
    {'rounds': [1, 2], 'rates': {'1': 0.5}}
    """
    return json.loads(json.dumps(json_ready(value)))


def _parse_record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """Returns the record of a line."""
    try:
        record = bounded.parse_json(line)
        if not isinstance(record, dict) or "round" not in record:
            raise ValueError("a record has a round")
        check_entries(record, RECORD_TYPES)
        for name in record.keys() - {"clusters", "cluster"}:
            _check_vector(name, record[name])
        for cluster in record.get("clusters", ()):
            check_entries(cluster if isinstance(cluster, dict) else {"clusters": cluster}, CLUSTER_TYPES)
    except ValueError as error:
        raise ValueError(
            f"{path} is no history of a run, or a damaged one: line {number} is no record ({error}); put the file back "
            "as it was, or choose another directory."
        ) from error
    return record


def _check_vector(name: str, value: Any) -> None:
    """Raises ValueError if an entry of a record is a list, but not of at most `MAX_VECTOR` numbers."""
    if isinstance(value, list):
        if len(value) > MAX_VECTOR:
            raise ValueError(f"{name} must have at most {MAX_VECTOR:,} numbers, got {len(value):,}")
        check_entries({f"{name}[{place}]": one for place, one in enumerate(value)}, {".*": (*NUMBER, bool)})


def _read_moves(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of the file of clusters beside a history file."""
    beside = path.parent / CLUSTERS
    moves = read_records(beside) if beside.exists() else []
    try:
        found = np.array([move.get("cluster") for move in moves])
    except ValueError:  # lines of several lengths
        found = np.zeros(0)
    is_of_clients = (found.ndim, found.dtype.kind) == (2, "i") and found.min(initial=0) >= -1  # -1 is no cluster
    rounds = [move["round"] for move in moves]
    if moves and not (is_of_clients and found.max(initial=0) < MAX_CLUSTER and rounds == sorted(rounds)):
        raise ValueError(
            f"{beside} must hold the cluster of every client in each line, in the order of the rounds; put it back, or "
            "remove it."
        )
    return moves


def _append_line(path: Path, record: dict[str, Any]) -> None:
    """Appends a line and flushes it to the disk."""
    with path.open("a") as file:
        file.write(_json_line(record))
        file.flush()
        os.fsync(file.fileno())


def _json_line(record: dict[str, Any]) -> str:
    return json.dumps(json_ready(record), allow_nan=False) + "\n"
