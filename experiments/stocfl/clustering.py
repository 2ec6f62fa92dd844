"""What StoCFL's clusters are, without training: similarity and skew, clusters over rounds, thresholds.

Figures 2, 3 and 8 take representations at an anchor and merge them. Where rounds matter (figure 3), what is trained
meanwhile is a linear model, and the anchor is the paper's network.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxfl
from experiments.harness.base import Made
from jaxfl import methods, models, plots, sampling
from jaxfl.analysis.thresholds import clusters_at, threshold_sweep
from jaxfl.clustering import scores
from jaxfl.clustering.distances import cosine
from jaxfl.data import partition
from jaxfl.data.clients import FederatedData, Split
from jaxfl.methods.base import doubled
from jaxfl.methods.stocfl import StoCFLState
from jaxfl.random import Stream, host_rng, key_for
from jaxfl.tasks import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROUNDS, SHARE = 50, 0.1  # of figure 3
SHOWN = (5, 10, 40)  # rounds
STEPS = 10  # clients of a matrix of figure 2
COMMON = 5  # classes of a client of its first matrix


def similarity(sources: Sequence[str], rows: int, data_dir: str | None) -> Made:
    """Draws figure 2: cosines of the representations of ten clients whose data differ step by step."""
    pictures: dict[str, Figure] = {}
    table: list[dict[str, Any]] = []
    for source in sources:
        load = partial(jaxfl.data.load, data_dir=data_dir, num_clients=STEPS, rows_per_client=rows)
        panels = {
            "common labels": _windows(load(f"iid-{source}"), rows),
            "rotation by 36 s degrees": load(f"rotated-{source}", angles=tuple(36 * s for s in range(STEPS))),
            "labels (y + s) mod 10": load(f"shifted-{source}", shifts=tuple(range(STEPS))),
            "two domains": load(f"hybrid-{source}"),
        }
        matrices = {}
        for name, data in panels.items():
            task = _task(models.Logistic(num_classes=data.num_classes), data)
            matrices[name] = _cosines(_representations(task, data))
        pictures[source] = plots.heatmaps(
            matrices, of="similarity", columns=4, title=f"{source}, ten clients s = 0 to 9"
        )
        place = np.arange(STEPS)
        steps = np.abs(place[:, None] - place[None, :])
        around = np.minimum(steps, STEPS - steps)  # degrees, shifts and windows of classes come back
        same = (place[:, None] < STEPS // 2) == (place[None, :] < STEPS // 2)
        for step in range(1, STEPS // 2 + 1):
            row: dict[str, Any] = {"data": source, "steps apart": step, "labels in common": COMMON - step}
            row |= {
                name: float(matrix[around == step].mean()) for name, matrix in matrices.items() if name != "two domains"
            }
            table.append(row)
        domains = matrices["two domains"]
        table[-1]["same domain"] = float(domains[same & (steps > 0)].mean())
        table[-1]["other domain"] = float(domains[~same].mean())
    names = list(dict.fromkeys(name for row in table for name in row))
    return Made(
        "Cosines of normalised gradients at a random linear model, as in the paper's figure 2: between clients that "
        "have fewer and fewer labels in common, that see their images rotated or their labels shifted further and "
        "further, and between two domains. The table has the mean cosine of clients so many steps apart (ten lead "
        "around).",
        table=[{name: row.get(name) for name in names} for row in table],
        pictures=pictures,
    )


def over_rounds(source: str, clients: Mapping[str, int], rows: int | None, hidden: int, data_dir: str | None) -> Made:
    """Draws figure 3: the four skews of section 4.1, clustered over fifty rounds of a tenth of the clients."""
    pictures: dict[str, Figure] = {}
    table: list[dict[str, Any]] = []
    counts: dict[str, dict[str, list[float]]] = {}
    for skew, number in clients.items():
        data = jaxfl.data.load(f"{skew}-{source}", data_dir=data_dir, num_clients=number, rows_per_client=rows)
        assert data.group is not None
        anchor = _task(models.MLP(num_classes=data.num_classes, hidden=(hidden,)), data)
        for tau in (0.5, "auto"):
            found = clusters_over_rounds(anchor, data, threshold=tau)
            name = f"tau = {tau}"
            seen = found.clusters[-1] >= 0
            counts.setdefault("clusters", {})[f"{skew}, {name}"] = found.counts
            counts.setdefault("objective (equation 2)", {})[f"{skew}, {name}"] = found.objectives
            table.append(
                {
                    "skew": skew,
                    "threshold": str(tau),
                    "true groups": int(data.group.max()) + 1,
                    **{f"clusters in round {t}": int(found.counts[t - 1]) for t in (1, *SHOWN, ROUNDS)},
                    "ARI": scores.adjusted_rand_index(np.asarray(data.group)[seen], found.clusters[-1][seen]),
                    "clients seen": int(seen.sum()),
                }
            )
            if tau == 0.5:
                pictures[skew] = plots.representations(
                    found.representation[seen],
                    {f"round {t}": found.clusters[t - 1][seen] for t in (*SHOWN, ROUNDS)},
                    group=np.asarray(data.group)[seen],
                    group_names=data.group_names,
                )
    rounds = np.arange(1, ROUNDS + 1)
    for name, lines in counts.items():
        pictures[name] = plots.gap_curves(rounds, lines, ylabel=name)
    return Made(
        "Clients of four skews, a tenth of them in each of 50 rounds. The pictures of one skew are at tau 0.5: places "
        "are t-SNE's of the representations of all who were ever seen, hollow is who was not seen yet. The paper's "
        "clusters converge to 4, 4, 4 and 2; it does not say at which threshold.",
        table=table,
        pictures=pictures,
    )


@dataclasses.dataclass
class Rounds:
    """What was found, round by round."""

    clusters: list[np.ndarray]  # of [N]
    counts: list[float]
    objectives: list[float]
    representation: np.ndarray  # [N, d]


def clusters_over_rounds(
    anchor: Task,
    data: FederatedData,
    *,
    threshold: Any,
    share: float = SHARE,
    rounds: int = ROUNDS,
    seed: int = 0,
    **options: Any,
) -> Rounds:
    """Clusters as StoCFL does, while a linear model is trained.

    Args:
        anchor: of the representations.
        data: the federation.
        threshold: tau or `"auto"`.
        share: of the clients in a round.
        rounds: how many.
        seed: of anchor and cohorts.
        **options: more of StoCFL's.
    """
    task = _task(models.Logistic(num_classes=data.num_classes), data)
    optimizer = optax.sgd(0.1)
    method = methods.stocfl(task, optimizer, anchor_task=anchor, threshold=threshold, local_epochs=1, **options)
    key = jax.random.key(seed)
    state: StoCFLState = method.init(key, data)
    step = jax.jit(method.round)
    size = sampling.cohort_size(share, data)
    found = Rounds([], [], [], np.zeros(0))
    data = data.on_device()
    while len(found.counts) < rounds:
        cohort = sampling.uniform(key, state.round, data, size)
        after, info = step(key, state, data, cohort)
        if int(info.overflow):
            assert method.grow is not None
            state = doubled(method.grow, state, info.overflow)
            continue
        state = after
        found.clusters.append(np.asarray(state.cluster))
        found.counts.append(float(info.num_clusters))
        found.objectives.append(float(info.extra["objective"]))
    found.representation = np.asarray(state.memory.psi)
    return found


def automatic(
    source: str, sizes: Sequence[tuple[int, int]], hidden: int, seeds: Sequence[int], data_dir: str | None
) -> Made:
    """Compares tau = 0.5 and the threshold that needs no tuning, on rotated images in clients of several sizes."""
    settings = [(source, clients, rows, hidden, SHARE, 30, seed) for clients, rows in sizes for seed in seeds[:1]] + [
        ("digits", 40, 80, 512, 0.5, 20, seed) for seed in seeds
    ]
    table = []
    for name, clients, rows, units, share, rounds, seed in settings:
        data = jaxfl.data.load(
            f"rotated-{name}", data_dir=data_dir, num_clients=clients, rows_per_client=rows, seed=seed
        )
        anchor = _task(models.MLP(num_classes=data.num_classes, hidden=(units,)), data)
        row: dict[str, Any] = {"data": f"{name}, {clients:,} x {rows}", "seed": seed}
        for tau in (0.5, "auto"):
            found = clusters_over_rounds(anchor, data, threshold=tau, share=share, rounds=rounds, seed=seed, slots=64)
            seen = found.clusters[-1] >= 0
            row[f"clusters, tau {tau}"] = int(found.counts[-1])
            row[f"most on the way, tau {tau}"] = int(max(found.counts))
            group = np.asarray(data.group)
            row[f"ARI, tau {tau}"] = scores.adjusted_rand_index(group[seen], found.clusters[-1][seen])
        table.append(row)
    right = sum(row["clusters, tau auto"] == 4 and row["ARI, tau auto"] == 1 for row in table)
    return Made(
        "Beyond the paper: four rotations, the paper's representation, 30 rounds of a tenth of the clients (digits: 20 "
        f"of half of them), at tau 0.5 and with threshold=auto, which is exactly right in {right} of {len(table)}.",
        table=table,
    )


def threshold(source: str, clients: int, rows: int | None, hidden: int, data_dir: str | None) -> Made:
    """Draws figure 8: two rotations of four groups of labels, at all thresholds, without training."""
    data = _both_rotations(jaxfl.data.load(f"pathological-{source}", data_dir=data_dir, num_clients=clients), rows)
    assert data.group is not None
    both, labels = np.asarray(data.group), np.asarray(data.group) // 2
    psi = _representations(_task(models.MLP(num_classes=data.num_classes, hidden=(hidden,)), data), data)
    swept = threshold_sweep(psi, np.linspace(0, 1, 101), group=both)
    by_labels = threshold_sweep(psi, np.linspace(0, 1, 101), group=labels)
    ranges = {}
    for name, found in (("rotation and labels", swept), ("labels alone", by_labels)):
        exact = [row["threshold"] for row in found if row["ari"] == 1]
        ranges[name] = f"{exact[0]:.2f} to {exact[-1]:.2f}" if exact else None
    table = [
        {
            "threshold": round(row["threshold"], 2),
            "clusters": row["clusters"],
            "largest": row["largest"],
            "ARI with 8 groups": row["ari"],
            "ARI with 4": other["ari"],
        }
        for row, other in zip(swept, by_labels, strict=True)
        if round(100 * row["threshold"]) % 5 == 0
    ]
    middle = {name: _middle(found) for name, found in (("rotation and labels", swept), ("labels alone", by_labels))}
    shown = {f"tau = {tau:.2f}": np.asarray(clusters_at(psi, tau)) for tau in middle.values() if tau is not None}
    pictures: dict[str, Figure] = {"clusters by threshold": plots.threshold_sweep(swept)}
    if shown:
        pictures["representations"] = plots.representations(psi, shown, group=both, group_names=data.group_names)
    return Made(
        f"{clients} clients, two rotations of four groups of labels. Everybody's clusters at every threshold: exactly "
        f"the eight groups at tau {ranges['rotation and labels']}, exactly the four groups of labels at tau "
        f"{ranges['labels alone']}. The paper has eight above 0.76 and four below 0.67.",
        numbers=ranges,
        table=table,
        pictures=pictures,
    )


def _middle(found: Sequence[Mapping[str, Any]]) -> float | None:
    """Returns the middle of the thresholds that find the groups exactly."""
    exact = [row["threshold"] for row in found if row["ari"] == 1]
    return float(exact[len(exact) // 2]) if exact else None


def _task(module: Any, data: FederatedData) -> Task:
    return jaxfl.classification(module, data)


def _representations(task: Task, data: FederatedData) -> np.ndarray:
    """Returns the paper's representation of every client `[N, d]`, at the initial model."""
    key = jax.random.key(0)
    extract = jaxfl.represent(task, optax.sgd(0.1))
    return np.asarray(jaxfl.representations(extract, key, task.init(key_for(key, Stream.INIT)), data))


def _cosines(psi: np.ndarray) -> np.ndarray:
    return np.asarray(cosine(jnp.asarray(psi)))


def _both_rotations(data: FederatedData, rows: int | None) -> FederatedData:
    """Returns the groups of labels with half of their clients at 0 and half at 180 degrees, all images in both halves.

    So a client has twice the rows that it would have if every image were in one rotation only.
    """
    half, group, pool = data.num_clients // 2, np.asarray(data.group), np.sort(np.asarray(data.train.rows))
    labels = np.asarray(data.labels)[pool]
    halves = [partition.pathological(labels, half, rows_per_client=rows, seed=seed) for seed in (0, 1)]
    turned = np.concatenate([np.zeros(half, np.int32), np.ones(half, np.int32)])
    order = np.argsort(np.concatenate([own for _, own in halves]), kind="stable")  # the clients of a group together
    parts = [part for parts, _ in halves for part in parts]
    turned = turned[order]
    return dataclasses.replace(
        data,
        train=Split.pack([pool[parts[client]] for client in order]),
        rotation=2 * turned,
        group=2 * group + turned,
        group_names=tuple(f"{name}; {angle}°" for name in data.group_names for angle in (0, 180)),
    )


def _windows(data: FederatedData, rows: int) -> FederatedData:
    """Returns clients with five classes each, the next one's window of classes a step further."""
    labels = np.asarray(data.labels)
    parts = []
    for step in range(STEPS):
        classes = (step + np.arange(COMMON)) % data.num_classes
        able = np.flatnonzero(np.isin(labels, classes))
        parts.append(np.sort(host_rng(0, "windows", step).choice(able, min(rows, len(able)), replace=False)))
    return dataclasses.replace(data, train=Split.pack(parts))
