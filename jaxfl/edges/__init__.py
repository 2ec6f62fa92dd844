"""Edge servers: tiers between the clients and the cloud, as in hierarchical federated averaging.

Each edge server has clients of its own and makes rounds with them; after some rounds the cloud averages the models of
all edges, by the training rows of their clients, and hands the mean back:

    w_e <- the round of the method with clients of edge e, R times;    w_e <- w <- sum_e (n_e / n) w_e

(HierFAVG: Liu, Zhang, Song and Letaief, "Client-Edge-Cloud Hierarchical Federated Learning", ICC 2020, Algorithm 1).
A round of the run is a round of every edge, and clients are served the cloud's model. Other numbers of an edge's state,
such as the moments of a server's optimiser, are averaged as well. With one edge, or with R = 1, FedAvg of the edges'
clients and all of them in each round, it is FedAvg.

The bytes of the history are those of the clients; `bytes_cloud` are those between edges and cloud. With a clock the
edges go on by themselves until the cloud's step, which waits for the slowest; a policy is that of each edge.
"""

import csv
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxfl.data.clients import FederatedData
from jaxfl.edges.method import EdgeLayout, EdgeState, on_edges
from jaxfl.files import crc, user_path
from jaxfl.methods.base import Method
from jaxfl.random import host_rng
from jaxfl.sampling import Sampler
from jaxfl.schema import quoted

__all__ = ["EdgeServers", "EdgeState"]


@dataclasses.dataclass(frozen=True)
class EdgeServers:
    """Edge servers of a run, for `jaxfl.run(..., edges=)`.

    Attributes:
        servers: a number of edges, among which the clients are dealt at random, alike for all seeds; `"group"`, an edge
            for each true group; or the path of a csv file with the columns `client` and `edge` (any names).
        rounds: R, of an edge between two steps of the cloud.
        up, down: bits a second of an edge to the cloud and from it, for a clock.

    Raises:
        ValueError: a number is out of range.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> method = jaxfl.methods.fedavg(task, optax.sgd(0.1))
    >>> result = jaxfl.run(method, data, rounds=4, cohort=4, edges=jaxfl.EdgeServers("group", rounds=2))
    >>> int(result.history[-1]["bytes_cloud"])  # two steps of the cloud, four edges, 650 numbers up and down
    41600
    """

    servers: int | str | os.PathLike
    rounds: int = 1
    up: float = 1e8
    down: float = 1e8

    def __post_init__(self):
        if isinstance(self.servers, bool) or (isinstance(self.servers, int) and self.servers < 1):
            raise ValueError(f"edges must be at least 1, got {self.servers}; group has one for each true group.")
        if self.rounds < 1:
            raise ValueError(f"edge_rounds must be at least 1, got {self.rounds}; 1 averages after each round.")
        for name in ("up", "down"):
            if not 0 < (value := getattr(self, name)) < float("inf"):
                raise ValueError(f"edge_{name} must be above 0 and finite, got {value}; 1e8 is 100 Mbit a second.")

    def identity(self) -> dict[str, Any]:
        """Returns what the numbers of a run depend on, ready for JSON: of a file its content."""
        servers = self.servers
        if not isinstance(servers, int) and servers != "group":
            servers = f"file-{crc(user_path(os.fspath(servers)).read_bytes())}"
        return {**dataclasses.asdict(self), "servers": servers}

    def attach(self, method: Method, data: Sequence[FederatedData], cohort: int, sampler: Sampler) -> Method:
        """Returns a method on these edges.

        Args:
            method: of one server.
            data: the federation of each seed.
            cohort: clients of a round, which are shared out among the edges, rounded up.
            sampler: of the run.

        Raises:
            ValueError: a client has no edge, federations have different ones, or the method or the sampler takes no
                edges.
        """
        if getattr(sampler, "poisson", None) is not None:
            raise ValueError("edges must be none with Poisson sampling, got some: it draws one cohort; take uniform.")
        edge, *others = (edges_of(self.servers, one) for one in data)
        if any(not np.array_equal(edge, other) for other in others):
            raise ValueError(
                f"edges must have the same clients for all seeds, got {quoted(str(self.servers))}, which has others; "
                "run the seeds one by one."
            )
        count = int(edge.max()) + 1
        each = min(-(-cohort // count), int(np.bincount(edge).max()))
        return on_edges(method, EdgeLayout(tuple(edge.tolist()), self.rounds, self.up, self.down, each), data[0])


def edges_of(servers: int | str | os.PathLike, data: FederatedData) -> np.ndarray:
    """Returns the edge of each client `[N]`, numbers from 0.

    Args:
        servers: see `EdgeServers`.
        data: the federation.

    Raises:
        ValueError: there are more edges than clients, the groups are not known, or a file lacks a client.
    """
    count = data.num_clients
    if isinstance(servers, int):
        if servers > count:
            raise ValueError(f"edges must be at most the number of clients ({count}), got {servers}; lower it.")
        return host_rng(0, "edges").permutation(np.arange(count) % servers)
    if servers == "group":
        if data.group is None:
            raise ValueError(
                'edges must be a number where the true groups are not known, got "group"; take data with groups, such '
                "as rotated-digits."
            )
        return np.unique(np.asarray(data.group), return_inverse=True)[1]
    return _read_edges(Path(user_path(os.fspath(servers))), data)


def _read_edges(path: Path, data: FederatedData) -> np.ndarray:
    """Returns the edges of a csv file."""
    remedy = "write a csv file with the columns client and edge, or give a number or group"
    if not path.is_file():
        raise ValueError(f"edges must be a number, group or a file, got {quoted(str(path))}; {remedy}.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"edges must be a csv file of text, got {str(path)!r}: {error}; {remedy}.") from error
    if lacking := [name for name in ("client", "edge") if not rows or name not in rows[0]]:
        raise ValueError(f"edges must have the column {lacking[0]}, got {str(path)!r} without it; {remedy}.")
    found = {(row["client"] or "").strip(): (row["edge"] or "").strip() for row in rows}
    names = data.client_names or tuple(map(str, range(data.num_clients)))
    if missing := [name for name in names if not found.get(name)]:
        raise ValueError(
            f"edges must have an edge for each of the {len(names)} clients, got {str(path)!r} without one for client "
            f"{quoted(missing[0])} ({len(missing)} missing); add them."
        )
    return np.unique([found[name] for name in names], return_inverse=True)[1]
