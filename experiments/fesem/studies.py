"""What the paper shows beside its tables 2 and 3: the data, the choice of K, local models in the plane, two clusters.

Each study goes over the data sets of its scale: a cell for each names the data, the network and the training.
"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from experiments.harness import studies
from experiments.harness.base import Cell, Made, Study
from jaxfl import choose_num_clusters, elbow, local_sketches, plots
from jaxfl.data.clients import FederatedData
from jaxfl.data.describe import label_counts
from jaxfl.methods.base import Method
from jaxfl.plots import style
from jaxfl.settings import options

Cells = Mapping[str, Cell]  # FeSEM, by what the data are called
CANDIDATES = (1, 2, 3, 4, 5, 6)
SETTLED = 0.05  # share of a round's clients that change their cluster, below which a clustering counts as stable


def of(cells: Cells, *, rounds: int, clients: int) -> tuple[Study, ...]:
    """Returns the studies of a scale.

    Args:
        cells: FeSEM(4) on every data set.
        rounds: of the runs behind figures 4 and 5, in which everybody takes part.
        clients: drawn in figure 4, at most.
    """
    files = any(cell.needs_files for cell in cells.values())

    def everybody(figure: str, num_clusters: int) -> Cells:
        return {
            name: dataclasses.replace(
                cell,
                table=figure,
                row=f"FeSEM({num_clusters})",
                column=name,
                items=(*_untuned(cell), f"num_clusters={num_clusters}"),
                rounds=rounds,
                cohort=1.0,
                eval_every=1,
                metric="micro_accuracy",
            )
            for name, cell in cells.items()
        }

    return (
        Study("Table 1 / data", partial(data, cells), files),
        Study("Section 5.2 / choice of K", partial(choice, cells), files),
        Study("Figure 4 / local models", partial(local_models, everybody("Figure 4", 4), clients), files),
        Study("Figure 5 / two clusters", partial(two_clusters, everybody("Figure 5", 2)), files),
    )


def data(cells: Cells, data_dir: str | None) -> Made:
    """Counts what table 1 counts."""
    rows = []
    for name, cell in cells.items():
        federation = studies.load(cell, data_dir)
        sizes = np.asarray(federation.train.size) + np.asarray(federation.test.size)
        rows.append(
            {
                "data": name,
                "data points": int(sizes.sum()),
                "devices": federation.num_clients,
                "classes": federation.num_classes,
                "smallest device": int(sizes.min()),
                "median": float(np.median(sizes)),
                "largest": int(sizes.max()),
                "model": cell.job(0).settings.model_name,
            }
        )
    return Made(
        "The paper counts 805,263 data points of 3,550 devices and 62 classes in FEMNIST, 200,288 of 9,343 and 2 in "
        "FedCelebA; its model is a CNN.",
        table=rows,
    )


def choice(cells: Cells, data_dir: str | None) -> Made:
    """Chooses K on 100 clients in three rounds, by both criteria of section 5.2."""
    rows, pictures, chosen = [], {}, {}
    for name, cell in cells.items():
        federation = studies.load(cell, data_dir)
        candidates = [k for k in CANDIDATES if k <= federation.num_clients]
        found = choose_num_clusters(partial(_fesem, cell, federation), federation, candidates)
        by_distance = candidates[elbow(candidates, [row["distance"] for row in found.table])]
        chosen[name] = {"accuracy": found.num_clusters, "distance": by_distance}
        rows += [
            {"data": name, **{key: value for key, value in row.items() if key != "seconds"}} for row in found.table
        ]
        pictures[f"{name}, by accuracy"] = plots.choice(found)
    words = "; ".join(
        f"{name}: K = {k['accuracy']} by accuracy, {k['distance']} by the elbow of the distance"
        for name, k in chosen.items()
    )
    return Made(
        f"100 clients, or all where there are fewer, three rounds for every K. {words}.", chosen, pictures, rows
    )


def local_models(cells: Cells, clients: int, data_dir: str | None) -> Made:
    """Draws local models of FeSEM(4) in the plane, and says when the clustering came to rest."""
    rows, pictures = [], {}
    for name, cell in cells.items():
        method, result = studies.train(cell, data_dir)
        settings = options.route(cell.method, cell.data, cell.items, finetune=1)
        tune = options.finetune(settings)
        assert tune is not None
        epochs = settings.method["local_epochs"]
        able = int((np.asarray(result.data.train.size) > 0).sum())
        sketches = local_sketches(method, result, dataclasses.replace(tune, epochs=epochs), clients=min(clients, able))
        pictures[name] = plots.models(sketches, result=result)
        changed = [value / result.data.num_clients for value in result.history.column("changed")]
        restless = [round for round, share in enumerate(changed, 1) if share >= SETTLED]
        rows.append(
            {
                "data": name,
                "clients drawn": len(sketches.clients),
                "rounds": cell.rounds,
                "clusters": result.summary["num_clusters"],
                "sizes": ", ".join(map(str, sorted(np.bincount(result.evaluation.cluster).tolist(), reverse=True))),
                "last round in which 5 % change": max(restless, default=0),
                "changed in the last": changed[-1],
                "ARI with the true groups": result.summary["ari"],
            }
        )
    return Made(
        "Local models of FeSEM(4) after their local epochs, as sketches of 1,024 numbers: principal components, which "
        "the paper draws, and t-SNE. It says that four clusters are distinguishable and that the clustering takes no "
        "more than 10 iterations to converge.",
        table=rows,
        pictures=pictures,
    )


def two_clusters(cells: Cells, data_dir: str | None) -> Made:
    """Draws images of the clients of FeSEM(2), class by class, and measures what the paper says of the handwritings."""
    rows, pictures = [], {}
    for name, cell in cells.items():
        _, result = studies.train(cell, data_dir)
        cluster = np.asarray(result.evaluation.cluster)
        common = _common_classes(result.data, cluster)
        pictures[name] = plots.montage(result.data, cluster=cluster, classes=common, per_group=12)
        rows += [{"data": name, **row} for row in _handwriting(result.data, cluster, common)]
    return Made(
        "Images of the clients of each cluster of FeSEM(2), of the classes that both have most of. The paper sees "
        "smaller and bolder handwritings apart. Ink is the mean brightness of the images (in FEMNIST the background is "
        "bright, and bold is what is dark), extent the share of rows and columns that a bright pixel is in; both are "
        "means over the clients of their own means for the classes drawn, ± standard deviation.",
        table=rows,
        pictures=pictures,
    )


def _fesem(cell: Cell, federation: FederatedData, num_clusters: int) -> Method:
    return studies.method(cell, federation, num_clusters=num_clusters)


def _untuned(cell: Cell) -> tuple[str, ...]:
    """Returns a cell's items without the epoch before the test."""
    return tuple(item for item in cell.items if not item.startswith("finetune="))


def _rows(data: FederatedData, client: int | np.integer, classes: list[int]) -> np.ndarray:
    """Returns the pool rows that a client trains on and sees as of these classes."""
    start, size = int(data.train.start[client]), int(data.train.size[client])
    rows = np.asarray(data.train.rows)[start : start + size]
    seen = np.asarray(data.relabelled(np.asarray(data.labels)[rows], client))
    if data.train.flipped is not None and data.train.flipped[client]:
        seen = data.num_classes - 1 - seen
    return rows[np.isin(seen, classes)]


def _common_classes(data: FederatedData, cluster: np.ndarray, most: int = 3) -> list[int]:
    """Returns the classes of which the cluster that has least of them has most, relative to its rows."""
    counts = label_counts(data)  # [N, L]
    shares = []
    for slot in np.unique(cluster):
        own = counts[cluster == slot].sum(0)
        shares.append(own / max(own.sum(), 1))
    return sorted(np.argsort(np.min(shares, 0))[::-1][:most].tolist())


def _handwriting(data: FederatedData, cluster: np.ndarray, classes: list[int]) -> list[dict[str, Any]]:
    """Returns ink and extent of the handwritings of each cluster; clusters are numbered as in pictures."""
    found = []
    for number, slot in enumerate(style.cluster_order(cluster, data.group), 1):
        members = np.flatnonzero(cluster == slot)
        ink, extent = [], []
        for client in members:
            rows = _rows(data, client, classes)
            if not len(rows):
                continue
            images = np.asarray(data.inputs)[rows].astype(float)
            images = images.reshape(len(rows), *images.shape[1:3], -1).mean(-1)
            images = images / max(images.max(), 1e-9)
            drawn = images > 0.5
            ink.append(images.mean())
            extent.append(0.5 * (drawn.any(1).mean() + drawn.any(2).mean()))
        found.append(
            {
                "cluster": number,
                "clients": len(members),
                "classes": ", ".join(style.class_names(data)[one] for one in classes),
                "ink": f"{np.mean(ink):.3f} ± {np.std(ink):.3f}" if ink else None,
                "extent": f"{np.mean(extent):.3f} ± {np.std(extent):.3f}" if extent else None,
            }
        )
    return found
