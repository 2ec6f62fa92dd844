"""W4: clustering alone: cosine distances of N updates and a tree by linkage: jaxfl against scikit-learn and SciPy.

Updates of 4,096 numbers in 20 groups, cosine 0.5 within a group and 0 across. Timed in turn, stage by stage, from the
updates in memory:

* jaxfl: `1 - cosine(updates)`, then `linkage`, on the device;
* scipy: scikit-learn's `cosine_distances`, `squareform` (SciPy's linkage wants half the matrix), SciPy's `linkage`;
* loop: what published CFL codes do, a Python loop over all pairs, two norms and a product each, for the cosines alone.
  Here in NumPy, which spends less on a call than PyTorch. It is left out above `--loop-limit` clients.

Totals are of one linkage: the distances and whatever follows (nothing, for the loop). The sides must agree: the heights
of the trees to 1e-3, and every tree, cut into 20 clusters, must give the groups.

    python -m experiments.speed.w4 --clients 10000
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.speed import measure
from jaxfl.clustering.distances import cosine
from jaxfl.clustering.linkage import cut_by_number, linkage
from jaxfl.clustering.scores import adjusted_rand_index

FEATURES, GROUPS = 4096, 20
LINKAGES = ("average", "complete", "single")
PEERS = ("scipy", "loop")

Stages = dict[str, float]  # seconds of each
Trees = dict[str, np.ndarray]


def updates(clients: int, features: int, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns float32 updates `[N, d]` and their groups `[N]`."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, groups, clients)
    rows = rng.standard_normal((clients, features), np.float32)
    rows += rng.standard_normal((groups, features), np.float32)[group]
    return rows, group


@jax.jit
def cosine_distances(rows: jax.Array) -> jax.Array:
    return 1 - cosine(rows)


def jaxfl_stages(rows: jax.Array, methods: Sequence[str]) -> tuple[Stages, Trees]:
    """Clusters on the device."""
    clock = Clock()
    distances = clock("distances", lambda: cosine_distances(rows).block_until_ready())
    trees = {}
    for method in methods:
        tree = clock(method, lambda method=method: linkage(distances, method).block_until_ready())
        trees[method] = np.asarray(tree, np.float64)
    return clock.seconds, trees


def scipy_stages(rows: np.ndarray, methods: Sequence[str]) -> tuple[Stages, Trees]:
    """Clusters by scikit-learn and SciPy."""
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform
    from sklearn.metrics import pairwise

    clock = Clock()
    distances = clock("distances", lambda: pairwise.cosine_distances(rows))
    condensed = clock("condensing", lambda: squareform(distances, checks=False))
    trees = {}
    for method in methods:
        trees[method] = clock(method, lambda method=method: hierarchy.linkage(condensed, method))
    return clock.seconds, trees


def loop_stages(rows: np.ndarray) -> tuple[Stages, Trees]:
    """Cosines pair by pair."""
    similarity = np.zeros((len(rows), len(rows)), np.float32)

    def fill() -> None:
        for i, one in enumerate(rows):
            for j, other in enumerate(rows):
                similarity[i, j] = np.sum(one * other) / (np.linalg.norm(one) * np.linalg.norm(other) + 1e-12)

    clock = Clock()
    clock("distances", fill)
    return clock.seconds, {}


class Clock:
    """Times stages by name."""

    def __init__(self):
        self.seconds: Stages = {}

    def __call__(self, name: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = work()
        self.seconds[name] = time.perf_counter() - began
        return result


def agreement(trees: dict[str, Trees], group: np.ndarray) -> dict[str, Any]:
    """Compares the trees of all sides with each other, and with the groups."""
    own = trees["jaxfl"]
    difference = {
        f"{side} {method}": float(np.abs(tree[:, 2] - own[method][:, 2]).max())
        for side, others in trees.items()
        for method, tree in others.items()
        if side != "jaxfl"
    }
    groups = np.unique(group).size
    ari = {
        f"{side} {method}": adjusted_rand_index(
            group, np.asarray(cut_by_number(jnp.asarray(tree, jnp.float32), groups))
        )
        for side, others in trees.items()
        for method, tree in others.items()
    }
    agrees = max(difference.values(), default=0.0) <= measure.TOLERANCE and min(ari.values()) == 1
    return {"height_difference": difference, "ari": ari, "tolerance": measure.TOLERANCE, "agrees": agrees}


def compare(clients: int, options) -> dict[str, Any]:
    """Measures one number of clients."""
    rows, group = updates(clients, options.features, min(GROUPS, max(1, clients // 4)))
    on_device = jax.device_put(rows)
    names = measure.peer_names(options.peers, PEERS)
    sides: dict[str, Callable[[], tuple[Stages, Trees]]] = {"jaxfl": lambda: jaxfl_stages(on_device, options.linkage)}
    if "scipy" in names:
        sides["scipy"] = lambda: scipy_stages(rows, options.linkage)
    if "loop" in names and clients <= options.loop_limit:
        sides["loop"] = lambda: loop_stages(rows)
    measure.keep_memory()
    product, _ = measure.limits(options.size)
    turns: dict[str, list[Stages]] = {name: [] for name in sides}
    products, trees, warm_up = [], {}, {}
    for turn in range(options.rounds + 1):
        for name, side in sides.items():
            stages, trees[name] = side()
            if turn:
                turns[name].append(stages)
            elif name == "jaxfl":
                warm_up = stages  # its compilation included
        began = time.perf_counter()
        product()
        products.append(2 * options.size**3 / (time.perf_counter() - began) / 1e9)
    total = {name: totals(taken, options.linkage) for name, taken in turns.items()}
    own = total["jaxfl"]
    record = {
        "workload": "W4",
        "what": f"{clients} clients x {options.features} features, cosine distances and linkage",
        "clients": clients,
        "first_seconds": warm_up,
        "agreement": agreement(trees, group),
        "seconds": {
            name: {stage: measure.spread_of([turn[stage] for turn in taken]) for stage in taken[0]}
            for name, taken in turns.items()
        },
        "total": total,
        "ratio": {
            name: {method: measure.spread_of(_quotients(peer[method], own[method])) for method in own}
            for name, peer in total.items()
            if name != "jaxfl"
        },
        "product_gflops": products[1:],
        "gflop": clients**2 * options.features / 1e9,  # of the cosines: two for each of half the products
    }
    show(record)
    return measure.write(record, options.out)


def totals(turns: list[Stages], methods: Sequence[str]) -> dict[str, list[float]]:
    """Returns the seconds of each linkage with what comes before it, turn by turn."""
    shared = [sum(seconds for stage, seconds in turn.items() if stage not in methods) for turn in turns]
    return {
        method: [before + turn.get(method, 0.0) for before, turn in zip(shared, turns, strict=True)]
        for method in methods
    }


def _quotients(peer: list[float], own: list[float]) -> list[float]:
    return [theirs / ours for theirs, ours in zip(peer, own, strict=True)]


def show(record: dict[str, Any]) -> None:
    """Prints a small table."""
    print(f"\nW4: {record['what']}")
    for name, stages in record["seconds"].items():
        print(f"  {name:<6}" + ", ".join(f" {stage} {times['median']:.3f} s" for stage, times in stages.items()))
    for name, ratios in record["ratio"].items():
        for method, ratio in ratios.items():
            extremes = f"[{ratio['min']:.2f}, {ratio['max']:.2f}]"
            print(f"  {name:<6} {method:<9} {ratio['median']:8.2f} x jaxfl's time {extremes}")
    rate = record["gflop"] / record["seconds"]["jaxfl"]["distances"]["median"]
    machine = statistics.median(record["product_gflops"])
    print(f"  jaxfl's distances: {rate:.0f} GFLOP/s, the machine's matrix product {machine:.0f} GFLOP/s")
    print(f"  agreement: {record['agreement']}")


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the workload; fails if the trees disagree."""
    parser = measure.parser(__doc__, clients=1000, peers=",".join(PEERS))
    parser.add_argument("--features", type=int, default=FEATURES, help="d")
    parser.add_argument("--linkage", nargs="+", default=list(LINKAGES), choices=(*LINKAGES, "ward"), help="which ones")
    parser.add_argument("--loop-limit", type=int, default=1000, help="most clients that the loop over pairs is run for")
    options = parser.parse_args(arguments)
    records = [compare(clients, options) for clients in options.clients]
    for record in records:
        if not record["agreement"]["agrees"]:
            raise SystemExit(f"{record['what']}: the trees disagree: {record['agreement']}")
    return records


if __name__ == "__main__":
    main()
