"""Profiles of devices: the speed, the uplink and the downlink of each client.

    equal       all clients alike: 1e11 operations, 1e7 bits up and 5e7 bits down a second
    lognormal   each number by itself times exp(sigma z), z standard normal: the medians are those of equal
    tiers       a fifth of the clients is 4 times as fast as in equal in all three, a half as fast, the others a quarter

or a csv file with a row for each client: `client`, its name or number; `flops`, operations a second; `up` and `down`,
bits a second; and if they are known `watts` while it works. Files in which a client's numbers change with time are
traces, see `jaxfl.clock.trace`. Profiles are drawn by the key of the run, so that all methods of a comparison at one
seed have the same devices.
"""

import csv
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import numpy as np

from jaxfl.data.clients import FederatedData, Speeds
from jaxfl.files import user_path
from jaxfl.random import Stream, key_for
from jaxfl.schema import quoted
from jaxfl.typing import Key

ProfileName = Literal["equal", "lognormal", "tiers"]
PROFILES: tuple[str, ...] = get_args(ProfileName)
EQUAL = {"flops": 1e11, "up": 1e7, "down": 5e7}  # operations a second; bits a second
TIERS = ((0.2, 4.0), (0.5, 1.0), (0.3, 0.25))  # share of the clients, factor of all three numbers
WATTS = "watts"
By = Literal["group"] | None


def speeds_of(profile: str, key: Key, data: FederatedData, *, sigma: float = 1.0, by: By = None) -> Speeds:
    """Returns the devices of a federation's clients.

    Args:
        profile: a name, or the path of a csv file.
        key: of the run.
        data: the federation.
        sigma: of `lognormal`, the standard deviation of the logarithms.
        by: `"group"` gives the tiers of `tiers` to the true groups in turn: the first group is fast, the second as in
            equal, the third slow, the fourth fast.

    Raises:
        ValueError: the file lacks a client or a number, or a number is not above 0, or the groups are not known.

    >>> from jaxfl.data import synthetic
    >>> data = synthetic.clustered_linear(10)
    >>> sorted((speeds_of("tiers", jax.random.key(0), data).up / 1e7).tolist())
    [0.25, 0.25, 0.25, 1.0, 1.0, 1.0, 1.0, 1.0, 4.0, 4.0]
    >>> speeds_of("tiers", jax.random.key(0), data, by="group").up.tolist() == np.where(data.group, 1e7, 4e7).tolist()
    True
    """
    if profile not in PROFILES:
        return read_speeds(user_path(profile), data)
    count, key = data.num_clients, key_for(key, Stream.CLOCK)
    if profile == "lognormal":
        factors = np.exp(sigma * np.asarray(jax.random.normal(key, (3, count)), np.float64))
    elif profile == "tiers":
        factors = np.broadcast_to(_tiers(key, data, by), (3, count))
    else:
        factors = np.ones((3, count))
    values = np.array([*EQUAL.values()])[:, None] * factors
    return Speeds(*values.astype(np.float32))


def _tiers(key: Key, data: FederatedData, by: By) -> np.ndarray:
    """Returns the factor of each client `[N]`."""
    factors = np.array([factor for _, factor in TIERS])
    if by == "group":
        if data.group is None:
            raise ValueError(
                'clock_by must be none where the true groups are not known, got "group"; leave it out, or take data '
                "with groups, such as rotated-digits."
            )
        return factors[np.asarray(data.group) % len(factors)]
    ends = np.round(np.cumsum([share for share, _ in TIERS]) * data.num_clients).astype(int)
    tier = np.searchsorted(ends, np.arange(data.num_clients), side="right")
    return factors[tier[np.asarray(jax.random.permutation(key, data.num_clients))]]


def read_speeds(path: Path, data: FederatedData) -> Speeds:
    """Returns the devices of a csv file, which may have other clients as well.

    Raises:
        ValueError: see `speeds_of`; the message names the file and the row.
    """
    remedy = f"write a csv file with the columns client, {', '.join(EQUAL)}, or take one of {', '.join(PROFILES)}"
    if not path.is_file():
        raise ValueError(f"clock must be a profile or a file, got {quoted(str(path))}; {remedy}.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"clock must be a csv file of text, got {str(path)!r}: {error}; {remedy}.") from error
    columns = [*EQUAL, *([WATTS] if rows and WATTS in rows[0] else [])]
    lacking = [name for name in ("client", *EQUAL) if not rows or name not in rows[0]]
    if lacking:
        raise ValueError(f"clock must have the column {lacking[0]}, got {str(path)!r} without it; {remedy}.")
    names = data.client_names or tuple(map(str, range(data.num_clients)))
    found: dict[str, list[float]] = {}
    for number, row in enumerate(rows, 2):  # the first line has the names of the columns
        client = (row["client"] or "").strip()
        if client in found:
            raise ValueError(
                f"clock must have one row for each client, got client {quoted(client)} again in line {number} of "
                f"{str(path)!r}; remove one."
            )
        found[client] = [_number(path, number, row, name) for name in columns]
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(
            f"clock must have a row for each of the {len(names)} clients, got {str(path)!r} without client "
            f"{quoted(missing[0])} ({len(missing)} missing); add them, named as in the column "
            f"{'name' if data.client_names else 'client'} of clients.csv."
        )
    values = np.array([found[name] for name in names], np.float32).T
    return Speeds(*values)


def _number(path: Path, line: int, row: Mapping[str, Any], name: str) -> float:
    """Returns a number of a row, above 0 and finite also as float32."""
    try:
        value = float(row[name])
    except (TypeError, ValueError):
        value = math.nan
    with np.errstate(over="ignore", under="ignore"):
        usable = 0 < np.float32(value) < np.inf
    if not usable:
        raise ValueError(
            f"{name} must be above 0 and finite, got {quoted(row[name])} in line {line} of {str(path)!r}; give "
            f"{EQUAL.get(name, 5.0):g} for a usual device."
        )
    return value


def is_file(profile: str | os.PathLike) -> bool:
    """Returns whether a profile is in a file.

    >>> is_file("tiers"), is_file("phones.csv")
    (False, True)
    """
    return os.fspath(profile) not in PROFILES


def quartiles(speeds: Speeds) -> np.ndarray:
    """Returns the quartile of each client by its speed `[N]`, 0 of the slowest quarter to 3.

    The speed is the geometric mean of the three numbers: which of them decides depends on method and network. Of equal
    clients those with lower numbers are in lower quartiles.

    >>> quartiles(Speeds(np.array([4.0, 1.0, 2.0, 3.0]), *[np.ones(4)] * 2)).tolist()
    [3, 0, 1, 2]
    """
    numbers = np.array([speeds.flops, speeds.up, speeds.down], np.float64)
    order = np.argsort(np.log(numbers).sum(0), kind="stable")
    found = np.empty(len(order), int)
    found[order] = np.arange(len(order)) * 4 // max(len(order), 1)
    return found
