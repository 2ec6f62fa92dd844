"""Dirichlet partitions: clients whose class shares are drawn from a Dirichlet distribution, by five published rules.

| rule | what is drawn | source |
|---|---|---|
| plain | each class's shares of the clients ~ Dir(alpha) | Hsu et al., 2019; Yurochkin et al., 2019 |
| plain, `essential` | the same after every client has some rows of each class | FedCCFA, NeurIPS 2024 |
| balanced | the same without clients that have P/N rows, drawn anew until all have `min_rows` | PFLlib; pFedGraph |
| prior | each client's class shares ~ Dir(alpha x class shares of what is left), equal sizes | FedRC, ICML 2024 |
| grouped | each group of classes' shares of the clients ~ Dir(alpha) | FedEM, NeurIPS 2021 |

The rules other than `plain` cut by whole numbers: shares are rounded to multiples of 2^-32 first, so that the last bit
of a gamma variate, which depends on the machine's mathematical library, moves no row.
"""

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from jaxfl.data.partition.parts import (
    Parts,
    check_count,
    check_min_rows,
    check_real,
    class_labels,
    rows_that_fit,
)
from jaxfl.random import host_rng
from jaxfl.schema import check_literal

DirichletRule = Literal["plain", "balanced", "prior", "grouped"]
MAX_DRAWS = 2000  # of the rule "balanced"; a few are usual
UNITS = 1 << 32  # of which shares are multiples
SMALLEST = 1e-300  # concentration, where a product would be 0


def dirichlet(
    labels: ArrayLike,
    num_clients: int,
    *,
    alpha: float,
    rule: DirichletRule = "plain",
    min_rows: int = 1,
    rows_per_client: int | None = None,
    num_components: int = 3,
    essential: int = 0,
    seed: int = 0,
) -> Parts:
    """Returns each client's rows, with class shares from a Dirichlet distribution; no row belongs to two clients.

    Every row belongs to one client, but with the rule `prior` to at most one. With the rules `plain` and `grouped`
    shares are drawn once; then clients with fewer than `min_rows` rows take random rows from the largest client. This
    always ends, whereas repeated draws until all are large enough, as with `balanced`, do not end for a small alpha.

    Args:
        labels: classes `[P]`, an array or a list.
        num_clients: N.
        alpha: concentration; a large one is iid, a small one gives each class to few clients. With `prior` it is the
            sum over the classes.
        rule: the rule, see the module's table.
        min_rows: least rows of a client.
        rows_per_client: rows of each client, with the rule `prior` only; None is the largest equal number.
        num_components: number of groups of classes, with the rule `grouped` only.
        essential: rows of each class that every client has before the shares are drawn, with the rule `plain` only.
        seed: seed of all draws.

    Raises:
        ValueError: a number is out of range or belongs to another rule, or no draw of `balanced` has `min_rows` for
            all.

    References:
        Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution", 2019; by class as in Yurochkin
        et al., "Bayesian Nonparametric Federated Learning of Neural Networks", 2019.

    >>> sorted(np.concatenate(dirichlet(np.array([0, 0, 1, 1, 1]), 3, alpha=0.1)).tolist())
    [0, 1, 2, 3, 4]
    >>> [len(part) for part in dirichlet(np.repeat([0, 1], 10), 4, alpha=1.0, rule="prior")]
    [5, 5, 5, 5]
    """
    check_literal("rule", rule, DirichletRule)
    labels = class_labels("dirichlet", labels)
    check_count("num_clients", num_clients)
    check_real("alpha", alpha)
    if not (math.isfinite(alpha) and alpha > 0):
        raise ValueError(f"alpha must be positive and finite, got {alpha}; 0.1 is strongly skewed, 100 is nearly iid.")
    check_min_rows(len(labels), num_clients, min_rows)
    check_count("essential", essential, least=0)
    check_count("num_components", num_components)
    unused = {
        "rows_per_client": ("prior", rows_per_client, None),
        "num_components": ("grouped", num_components, 3),
        "essential": ("plain", essential, 0),
    }
    for name, (owner, value, default) in unused.items():
        if rule != owner and value != default:
            raise ValueError(f"{name} must be left out with rule={rule}, got {value}: it belongs to rule={owner}.")
    if rule == "plain":
        rng = host_rng(seed, "partition", "dirichlet")
        return _fill_up(_plain(labels, num_clients, alpha, essential, rng), min_rows, rng)
    rng = host_rng(seed, "partition", "dirichlet", rule)
    if rule == "balanced":
        return _balanced(labels, num_clients, alpha, min_rows, rng)
    if rule == "prior":
        return _by_prior(labels, num_clients, alpha, min_rows, rows_per_client, rng)
    return _fill_up(_grouped(labels, num_clients, alpha, num_components, rng), min_rows, rng)


def integer_shares(rng: np.random.Generator, alpha: np.ndarray) -> np.ndarray:
    """Returns shares from a Dirichlet distribution in units of 2^-32, int64; at least one of them is positive.

    Args:
        rng: generator of the draw.
        alpha: concentration of each share, all positive.

    >>> integer_shares(np.random.default_rng(0), np.full(3, 1e-300)).tolist().count(0)
    2
    """
    shares = rng.dirichlet(alpha)
    units = np.floor(np.where(np.isfinite(shares), shares, 0.0) * UNITS + 0.5).astype(np.int64)
    if not units.any():  # every gamma variate underflowed: in the limit, one takes all
        units[rng.integers(len(units))] = UNITS
    return units


def cut_by_shares(rows: np.ndarray, units: np.ndarray) -> Parts:
    """Returns rows in their order, cut into pieces in proportion to whole numbers; cuts are rounded down.

    >>> [piece.tolist() for piece in cut_by_shares(np.arange(5), np.array([1, 0, 1]))]
    [[0, 1], [], [2, 3, 4]]
    """
    return np.split(rows, np.cumsum(units)[:-1] * len(rows) // units.sum())


def _plain(labels: np.ndarray, num_clients: int, alpha: float, essential: int, rng: np.random.Generator) -> Parts:
    """Returns the rows of the clients by the rule "plain"; `essential` rows of each class first."""
    owners = [np.zeros(0, np.int64)] * num_clients
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        if essential * num_clients > len(rows):
            raise ValueError(
                f"essential must be at most {len(rows) // num_clients}, got {essential}: there are {len(rows)} rows of "
                f"class {label} for {num_clients} clients; lower it or num_clients."
            )
        first, rows = np.split(rows, [essential * num_clients])
        shares = rng.dirichlet(np.full(num_clients, alpha))
        if not np.isfinite(shares).all():  # every gamma variate underflowed: in the limit, one client takes all
            shares = (np.arange(num_clients) == rng.integers(num_clients)).astype(float)
        cuts = np.floor(np.cumsum(shares)[:-1] * len(rows) + 0.5).astype(int)
        pieces = zip(owners, np.split(first, num_clients), np.split(rows, cuts), strict=True)
        owners = [np.concatenate(piece) for piece in pieces]
    return [rng.permutation(rows) for rows in owners]


def _balanced(labels: np.ndarray, num_clients: int, alpha: float, min_rows: int, rng: np.random.Generator) -> Parts:
    """Returns the rows of the clients by the rule "balanced"; numbers of rows are drawn until all have `min_rows`."""
    classes, counts = np.unique(labels, return_counts=True)
    for _ in range(MAX_DRAWS):
        sizes, edges = np.zeros(num_clients, np.int64), []
        for count in counts:
            room = sizes * num_clients < len(labels)  # always of some client: fewer than P rows are dealt out
            units = np.where(room, integer_shares(rng, np.full(num_clients, alpha)), 0)
            units = units if units.any() else room.astype(np.int64)
            edges.append(np.cumsum(units) * count // units.sum())
            sizes += np.diff(edges[-1], prepend=0)
        if sizes.min() >= min_rows:
            break
    else:
        raise ValueError(
            f"min_rows must be lower for rule=balanced, got {min_rows}: in {MAX_DRAWS} draws with alpha={alpha} a "
            f"client of {num_clients} had fewer rows; lower it, raise alpha, or use fewer clients."
        )
    owners: list[Parts] = [[] for _ in range(num_clients)]
    for label, edge in zip(classes, edges, strict=True):
        rows = rng.permutation(np.flatnonzero(labels == label))
        for owner, piece in zip(owners, np.split(rows, edge[:-1]), strict=True):
            owner.append(piece)
    return [rng.permutation(np.concatenate(owner)) for owner in owners]


def _by_prior(
    labels: np.ndarray,
    num_clients: int,
    alpha: float,
    min_rows: int,
    rows_per_client: int | None,
    rng: np.random.Generator,
) -> Parts:
    """Returns the rows of the clients by the rule "prior": one client after the other draws from what is left."""
    size = rows_that_fit(num_clients, rows_per_client, len(labels), "of the data")
    if size < min_rows:
        raise ValueError(f"rows_per_client must be at least min_rows ({min_rows}), got {size}; raise it.")
    orders = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    total = np.array([len(order) for order in orders])
    left, parts = total.copy(), []
    for _ in range(num_clients):
        there = np.flatnonzero(left)
        units = np.zeros(len(left), np.int64)
        units[there] = integer_shares(rng, np.maximum(alpha * left[there] / left.sum(), SMALLEST))
        before = left.copy()
        while lacking := size - int((before - left).sum()):
            open_units = np.where(left > 0, units, 0)  # a class that is used up drops out
            if not open_units.any():
                open_units = left
            edges = np.cumsum(open_units)
            drawn = np.searchsorted(edges, rng.integers(edges[-1], size=lacking), side="right")
            left -= np.minimum(np.bincount(drawn, minlength=len(left)), left)
        taken = zip(orders, total - before, total - left, strict=True)
        parts.append(rng.permutation(np.concatenate([order[low:high] for order, low, high in taken])))
    return parts


def _grouped(
    labels: np.ndarray, num_clients: int, alpha: float, num_components: int, rng: np.random.Generator
) -> Parts:
    """Returns the rows of the clients by the rule "grouped": in a group of classes all have the same shares."""
    classes = np.unique(labels)
    if num_components > len(classes):
        raise ValueError(
            f"num_components must be at most the number of classes ({len(classes)}), got {num_components}; lower it."
        )
    owners: list[Parts] = [[] for _ in range(num_clients)]
    for group in np.array_split(rng.permutation(classes), num_components):
        rows = rng.permutation(np.flatnonzero(np.isin(labels, group)))
        edges = np.cumsum(integer_shares(rng, np.full(num_clients, alpha)))
        owner_of_row = np.searchsorted(edges, rng.integers(edges[-1], size=len(rows)), side="right")
        sizes = np.bincount(owner_of_row, minlength=num_clients)
        order = np.argsort(owner_of_row, kind="stable")
        for owner, piece in zip(owners, np.split(rows[order], np.cumsum(sizes)[:-1]), strict=True):
            owner.append(piece)
    return [rng.permutation(np.concatenate(owner)) for owner in owners]


def _fill_up(parts: Parts, min_rows: int, rng: np.random.Generator) -> Parts:
    """Returns the parts after the largest clients have given rows to those with fewer than `min_rows`."""
    sizes = np.array([len(part) for part in parts])
    for client in np.flatnonzero(sizes < min_rows):
        while sizes[client] < min_rows:
            # The largest has more than min_rows, because otherwise there would be less than N * min_rows in total.
            donor = int(sizes.argmax())
            count = int(min(min_rows - sizes[client], sizes[donor] - min_rows))
            parts[client] = np.concatenate([parts[client], parts[donor][:count]])
            parts[donor] = parts[donor][count:]
            sizes[client], sizes[donor] = sizes[client] + count, sizes[donor] - count
    return parts
