"""Schedules of a drift: who changes when, see `jaxfl.data.drift`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxfl.data.clients import FederatedData
from jaxfl.files import user_path
from jaxfl.random import host_rng
from jaxfl.schema import quoted

PARTS = (0.3, 0.3, 0.4)
BY_GROUP = "group"
GRADUAL_STEPS = 10  # at most; each is a stage, around which a run is evaluated
# FedDrift's matrices A and C: a row for each time step, a digit for each client (its official code, e4ac32f).
MATRICES: dict[str, tuple[str, ...]] = {
    "feddrift-A": (
        *("0000000000", "0100000000", "0100000100", "0111010100", "0111010110", "1011011010", "1001001010"),
        *("1000101011", "1000101001", "1000101001", "1000101001"),
    ),
    "feddrift-C": (
        *("0000000000", "1112220000", "1112220030", "2211222130", "2221232130", "2321133130", "3323133210"),
        *("3033313213", "0033313223", "0003311322", "0003311322"),
    ),
}


class Stages(NamedTuple):
    """The stages of a drift, and what the clients have in each of them.

    Attributes:
        rounds: first round of each stage.
        pattern: what a client has before the first round and in each stage `[N, S + 1]`: 0 is its own data, 1 its new
            ones; a matrix may have further ones.
    """

    rounds: tuple[int, ...]
    pattern: np.ndarray

    @classmethod
    def of(cls, rounds: tuple[int, ...], changed: np.ndarray) -> "Stages":
        """Returns the stages in which clients have changed or not `[N, S]`."""
        return cls(rounds, np.concatenate([np.zeros((len(changed), 1), int), changed.astype(int)], axis=1))


def check_rounds(rounds: tuple[int, ...], schedule: str) -> None:
    """Raises ValueError unless the rounds are in increasing order, and as many as a schedule has."""
    name = "drift_round" if len(rounds) == 1 else "drift_rounds"
    if outside := [one for one in rounds if not 1 <= one < 2**31]:
        raise ValueError(
            f"{name} must be at least 1, the number of rounds before the drift, got {outside[0]}; 50 is usual."
        )
    listed = ",".join(map(str, rounds)) or "none"
    if list(rounds) != sorted(set(rounds)):
        raise ValueError(f"drift_rounds must be different and in increasing order, got {listed}.")
    counts = {"sudden": len(rounds) == 1, "matrix": len(rounds) > 0}
    counts |= dict.fromkeys(("staggered", "gradual"), len(rounds) == 2)
    if not counts.get(schedule, len(rounds) > 1):
        wanted = {"sudden": "one round", **dict.fromkeys(("staggered", "gradual"), "the first and the last round")}
        raise ValueError(
            f"drift_rounds must be {wanted.get(schedule, 'two rounds or more')} for drift={schedule}, got {listed}."
        )


def client_parts(data: FederatedData, parts: str | Sequence[Any] | None, count: int) -> np.ndarray:
    """Returns the number of each client's part `[N]`, below `count` unless parts are given.

    A client is in the part in whose share of the numbers 0 to 9 its own number modulo 10 is.
    """
    listed = parts.split(",") if isinstance(parts, str) else parts
    if listed is not None and list(listed) == [BY_GROUP]:
        if data.group is None:
            raise ValueError(f"drift_parts must be shares for data without true groups, got group: {data.name!r}.")
        return np.unique(np.asarray(data.group), return_inverse=True)[1].reshape(-1)
    if listed is None:
        shares = np.array(PARTS if count == len(PARTS) else [1 / count] * count)
    else:
        try:
            shares = np.array([float(one) for one in listed])
        except (TypeError, ValueError) as error:
            raise ValueError(f"drift_parts must be shares such as 0.3,0.3,0.4, or group, got {parts!r}.") from error
    if not np.all(shares > 0) or abs(shares.sum() - 1) > 1e-6:
        raise ValueError(f"drift_parts must be shares above 0 whose sum is 1, got {parts!r}; 0.3,0.3,0.4 is usual.")
    ends = np.cumsum(shares)[:-1] - 1e-9  # 0.3 + 0.3 is no more than 6 of 10
    return np.searchsorted(ends, np.arange(data.num_clients) % 10 / 10, side="right")


def changed_clients(schedule: str, rounds: tuple[int, ...], clients: np.ndarray, part: np.ndarray, seed: int) -> Stages:
    """Returns which clients have changed in each stage of a schedule.

    Args:
        schedule: its name.
        rounds: as they were given, see `drift`.
        clients: those that change.
        part: of all clients `[N]`.
        seed: of the order in which clients change one after another.
    """
    member = np.isin(np.arange(len(part)), clients)[:, None]
    if schedule == "recurrent":
        return Stages.of(rounds, member & (np.arange(len(rounds)) % 2 == 0))
    if schedule == "incremental":
        numbers = np.unique(part[clients])
        if not np.array_equal(numbers, np.arange(len(rounds))):
            raise ValueError(
                f"drift_rounds must be one for each part of the clients that change ({len(numbers)}), got "
                f"{','.join(map(str, rounds))}; choose drift_parts and drift_share to fit, or use more clients."
            )
        return Stages.of(rounds, member & (part[:, None] <= np.arange(len(rounds))))
    if schedule == "sudden":
        return Stages.of(rounds, member)
    first, last = rounds
    if schedule == "gradual":  # the clients have their new views in the last stage, see `jaxfl.data.drift.gradual`
        steps = min(GRADUAL_STEPS, last - first + 1)
        begins = first + np.arange(steps) * (last - first) // (steps - 1)
        return Stages.of(tuple(begins.tolist()), member & (np.arange(steps) == steps - 1))
    order = host_rng(seed, "staggered").permutation(clients)
    own = np.full(len(part), last + 1)
    own[order] = first + np.arange(len(order)) * (last - first + 1) // len(order)
    begins = np.unique(own[order])
    return Stages.of(tuple(begins.tolist()), own[:, None] <= begins)


def read_matrix(matrix: str | Sequence[Sequence[int]]) -> np.ndarray:
    """Returns a matrix of patterns `[S + 1, columns]`, a row for the rounds before the first change and each stage.

    Args:
        matrix: the name of one of `MATRICES`, a text file with a line of whole numbers for each row, or the rows.

    Raises:
        ValueError: it is no matrix of whole numbers from 0 with two rows or more.
        FileNotFoundError: there is no such file.

    >>> read_matrix("feddrift-A")[1], read_matrix([[0, 0], [0, 1]]).shape
    (array([0, 1, 0, 0, 0, 0, 0, 0, 0, 0]), (2, 2))
    """
    if isinstance(matrix, str) and matrix in MATRICES:
        return np.array([[int(digit) for digit in row] for row in MATRICES[matrix]])
    rows = _rows_of_file(matrix) if isinstance(matrix, str) else [list(row) for row in matrix]
    where = f" in {matrix}" if isinstance(matrix, str) else ""
    wrong = [one for row in rows for one in row if not isinstance(one, int | np.integer) or one < 0]
    if wrong:
        raise ValueError(f"drift_matrix must have whole numbers from 0, got {quoted(wrong[0])}{where}.")
    if len(rows) < 2 or not rows[0] or len({len(row) for row in rows}) > 1:
        widths = ", ".join(str(len(row)) for row in rows[:4]) or "none"
        raise ValueError(
            "drift_matrix must have two rows or more, each with a number for every client, got rows of "
            f"{widths}{', ...' if len(rows) > 4 else ''} numbers{where}."
        )
    return np.array(rows, int)


def matrix_file(matrix: Any) -> Path | None:
    """Returns the path of the file of a matrix, None for one of `MATRICES`, rows of numbers, or a file that is missing.

    >>> matrix_file("feddrift-A"), matrix_file([[0], [1]]), matrix_file(None)
    (None, None, None)
    """
    path = user_path(matrix) if isinstance(matrix, str) and matrix not in MATRICES else None
    return path if path is not None and path.is_file() else None


def _rows_of_file(file: str) -> list[list[Any]]:
    """Returns the numbers of each line of a text file, apart by spaces or commas; words that are none as they are."""
    if (path := matrix_file(file)) is None:
        raise FileNotFoundError(
            f"drift_matrix must be {' or '.join(MATRICES)}, or a file with a line of whole numbers for each stage, got "
            f"{file!r}: no such file."
        )
    lines = path.read_text(encoding="utf-8-sig", errors="replace").replace(",", " ").splitlines()
    rows = [line.split() for line in lines if line.strip()]
    return [[int(word) if word.isdecimal() and len(word) < 10 else word for word in row] for row in rows]


def matrix_stages(matrix: np.ndarray, rounds: tuple[int, ...], num_clients: int) -> Stages:
    """Returns the stages of a matrix, whose columns are for clients by their number modulo that of the columns.

    Args:
        matrix: patterns `[S + 1, columns]`.
        rounds: first round of each stage.
        num_clients: N.

    Raises:
        ValueError: there are fewer clients than columns, or another number of rounds than of changes.
    """
    stages, columns = matrix.shape
    if num_clients < columns:
        raise ValueError(
            f"drift_matrix must have at most a column for each of the {num_clients} clients, got {columns}; use more "
            "clients."
        )
    if len(rounds) != stages - 1:
        raise ValueError(
            f"drift_rounds must be one for each row of drift_matrix after the first ({stages - 1}), got {len(rounds)}."
        )
    return Stages(rounds, matrix[:, np.arange(num_clients) % columns].T)
