"""The history of every client: cluster, test rows, metrics and loss at each evaluation, in one parquet file.

The file has a row for each tested client of each evaluation. It is written whole, beside the old one and renamed over
it, right before each checkpoint: the file of a run that was killed has all evaluations of its newest checkpoint. Equal
numbers are equal bytes, so that a resumed run leaves the file of one that was never stopped.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxfl.data import bounded
from jaxfl.files import replacing

if TYPE_CHECKING:
    import pandas

CLIENTS_HISTORY = "clients-history.parquet"  # beside the history
KEYS = ("round", "client")  # columns that say which evaluation and whose a row is
NUM_CLIENTS = "num_clients"  # in the metadata of the file
WHOLE = (*KEYS, "cluster", "rows", "excluded")  # columns of int32; all others are of float64


class ClientsHistory:
    """The cluster, test rows and metrics of each client at each evaluation.

    Args:
        path: of the file; None keeps them in memory alone.

    Attributes:
        rounds: of the evaluations, in ascending order.

    >>> history = ClientsHistory()
    >>> for round, accuracy in ((2, [0.5, np.nan]), (4, [0.75, 0.25])):
    ...     history.append(round, {"rows": np.array([4, 0 if round == 2 else 4]), "accuracy": np.array(accuracy)})
    >>> history["accuracy"].tolist(), history.to_pandas()["client"].tolist()
    ([[0.5, nan], [0.75, 0.25]], [0, 0, 1])
    """

    def __init__(self, path: Path | None = None):
        self.path, self.rounds = path, list[int]()
        self._parts: list[dict[str, np.ndarray]] = []  # of each evaluation, columns of the tested clients
        self._num_clients = 0

    @classmethod
    def read(cls, path: Path) -> "ClientsHistory":
        """Returns the content of a file.

        Raises:
            ValueError: it is damaged, or another file.
        """
        import pyarrow
        from pyarrow import parquet

        try:
            bounded.check_regular(path)
            with parquet.ParquetFile(path) as file:
                about = file.metadata
                bounded.check_unpacked_size(8 * about.num_rows * about.num_columns, path.stat().st_size)
                table = file.read()
            columns = {name: table.column(name).to_numpy() for name in table.column_names}
            num_clients = int((table.schema.metadata or {})[NUM_CLIENTS.encode()])
            if wrong := [name for name, column in columns.items() if column.dtype != _column_type(name)]:
                raise ValueError(f"column {wrong[0]} must be of {_column_type(wrong[0]).__name__}")
            round, client = (columns[name] for name in KEYS)
            order = np.lexsort((client, round))
            if not np.array_equal(order, np.arange(len(order))):
                raise ValueError("its rows must be in the order of rounds and clients")
            if not 0 <= client.min(initial=0) <= client.max(initial=-1) < num_clients < 2**31:
                raise ValueError(f"clients must be from 0 to {num_clients - 1}")
        except (pyarrow.ArrowException, OSError, KeyError, ValueError) as error:
            raise ValueError(
                f"{path} must be the history of a run's clients, and is not, or is damaged ({error}); put it back, or "
                "remove it."
            ) from error
        history = cls(path)
        rounds, first = np.unique(round, return_index=True)
        history.rounds, history._num_clients = rounds.tolist(), num_clients
        pieces = {name: np.split(column, first[1:]) for name, column in columns.items() if name != "round"}
        history._parts = [{name: piece[place] for name, piece in pieces.items()} for place in range(len(rounds))]
        return history

    def until(self, round: int, path: Path | None = None) -> "ClientsHistory":
        """Returns the history of the evaluations up to a round, whose file is at `path`."""
        history, count = ClientsHistory(path), int(np.searchsorted(self.rounds, round, "right"))
        history.rounds, history._parts = self.rounds[:count], self._parts[:count]
        history._num_clients = self._num_clients
        return history

    def append(self, round: int, columns: Mapping[str, np.ndarray]) -> None:
        """Adds an evaluation, or replaces that of the last round; one of no client is left out.

        Args:
            round: rounds done.
            columns: of all clients `[N]`, `rows` among them; only clients that have some are kept.
        """
        if self.rounds and self.rounds[-1] == round:
            del self.rounds[-1], self._parts[-1]
        tested, self._num_clients = np.flatnonzero(columns["rows"] > 0), len(columns["rows"])
        if not len(tested):
            return
        kept = {name: np.asarray(column)[tested].astype(_column_type(name)) for name, column in columns.items()}
        self.rounds.append(round)
        self._parts.append({"client": tested.astype(np.int32), **kept})

    def save(self) -> None:
        """Writes the file anew, or removes it where there is no evaluation; nothing without a path."""
        if self.path is None:
            return
        if not self.rounds:
            self.path.unlink(missing_ok=True)
            return
        import pyarrow
        from pyarrow import parquet

        with replacing(self.path) as file:
            parquet.write_table(pyarrow.table(self._columns(), metadata={NUM_CLIENTS: str(self._num_clients)}), file)

    @property
    def names(self) -> list[str]:
        """Returns the names of the columns that `[]` takes: `cluster`, `rows`, and the metrics."""
        return [name for name in self._columns() if name not in KEYS]

    def __getitem__(self, name: str) -> np.ndarray:
        """Returns a column of all clients at all evaluations `[evaluations, N]`, NaN where a client was not tested.

        Raises:
            KeyError: there is no such column.
        """
        if name not in self.names:
            raise KeyError(f"no column {name!r}; there are {', '.join(self.names)}")
        columns = self._columns()
        found = np.full((len(self.rounds), self._num_clients), np.nan)
        found[np.searchsorted(self.rounds, columns["round"]), columns["client"]] = columns[name]
        return found

    def __len__(self) -> int:
        """Returns the number of evaluations."""
        return len(self.rounds)

    def __repr__(self) -> str:
        """Returns a line."""
        return f"ClientsHistory({len(self)} evaluations, {', '.join(self.names)})"

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns a data frame with a row for each tested client of each evaluation, as the file has them."""
        import pandas

        return pandas.DataFrame(self._columns())

    def _columns(self) -> dict[str, np.ndarray]:
        """Returns all columns, in the order in which they came; NaN (or -1) where an evaluation lacks one."""
        names = dict.fromkeys((*WHOLE[1:], *(name for part in self._parts for name in part)))
        names = [name for name in names if any(name in part for part in self._parts)]
        rounds = [
            np.full(len(part["client"]), one, np.int32) for one, part in zip(self.rounds, self._parts, strict=True)
        ]
        return {"round": _concatenated_column("round", rounds)} | {
            name: _concatenated_column(
                name, [part.get(name, _values_of_absent_column(name, len(part["client"]))) for part in self._parts]
            )
            for name in names
        }


def _column_type(name: str) -> type[Any]:
    """Returns the type of a column."""
    return np.int32 if name in WHOLE else np.float64


def _values_of_absent_column(name: str, count: int) -> np.ndarray:
    """Returns values for `count` rows of a column that an evaluation lacks."""
    return np.full(count, -1 if name in WHOLE else np.nan, _column_type(name))


def _concatenated_column(name: str, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the parts of a column one after another."""
    return np.concatenate(parts) if parts else np.zeros(0, _column_type(name))
