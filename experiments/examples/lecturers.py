"""Ratings of lectures: does clustering find lecturers who are rated alike, and does it help to predict a rating?

    python -m experiments.examples.lecturers fedavg local ifca-4 fesem-4 stocfl-0.5 --data-dir DIR

trains each of the methods, and keeps in `results/lecturers.json` what came of it; without a method it draws the picture
of the page. The number of clusters, or the threshold, is part of a method's name: which is taken, validation rows
decide.
"""

from typing import Any

import numpy as np
import optax
from matplotlib.figure import Figure

import jaxfl
from experiments.examples import keeping
from jaxfl.plots import style

RUN = {"rounds": 300, "cohort": 0.1, "eval_every": 60, "seed": 0}
LOCAL: dict[str, Any] = {"local_epochs": 5, "batch_size": 20}
RATE = 0.02
TITLES = {"local": "Local", "fedavg": "FedAvg", "ifca": "IFCA", "fesem": "FeSEM", "stocfl": "StoCFL"}


def method_of(name: str, task: Any) -> Any:
    """Returns a method; `ifca-4` is IFCA with four models, `stocfl-0.5` StoCFL at that threshold."""
    kind, _, number = name.partition("-")
    optimizer = optax.sgd(RATE)
    match kind:
        case "fedavg":
            return jaxfl.methods.fedavg(task, optimizer, **LOCAL)
        case "local":
            return jaxfl.methods.local(task, optimizer, **LOCAL)
        case "ifca":
            return jaxfl.methods.ifca(task, optimizer, num_clusters=int(number), start="kmeans++", **LOCAL)
        case "fesem":
            return jaxfl.methods.fesem(task, optimizer, num_clusters=int(number), **LOCAL)
        case "stocfl":
            return jaxfl.methods.stocfl(task, optimizer, threshold=float(number), **LOCAL)
    raise ValueError(f"METHOD must be one of {', '.join(TITLES)}, got {name}; such as ifca-4 or stocfl-0.5.")


def federation(data_dir: str) -> jaxfl.data.FederatedData:
    """Returns the lecturers with their ratings, a tenth of the training rows set apart."""
    return jaxfl.data.load("ratings", data_dir=data_dir, validation=0.1, seed=0)


def run(name: str, data: jaxfl.data.FederatedData) -> dict[str, Any]:
    """Trains a linear model by one method."""
    task = jaxfl.regression(jaxfl.models.Logistic(num_classes=1), data)
    return keeping.made(name, method_of(name, task), data, "mse", **RUN)


def about(data: jaxfl.data.FederatedData) -> dict[str, Any]:
    """Returns the mean rating of each lecturer's training rows."""
    train = data.train
    parts = [train.rows[start : start + size] for start, size in zip(train.start, train.size, strict=True)]
    return {"rating": [round(float(data.labels[part].mean()), 3) for part in parts]}


def by_cluster(found: dict[str, Any], name: str) -> list[tuple[float, int, int, float]]:
    """Returns mean rating, lecturers, test rows and squared error of each cluster, the worst rated first."""
    cluster, rows = np.array(found["runs"][name]["cluster"]), np.array(found["test_rows"])
    errors, rating = np.array(found["runs"][name]["mse"]), np.array(found["rating"])
    own = [cluster == one for one in np.unique(cluster)]
    means = [float(rating[who].mean()) for who in own]
    squares = [float(np.average(errors[who], weights=rows[who])) for who in own]
    counts = [(int(who.sum()), int(rows[who].sum())) for who in own]
    return sorted((mean, *count, square) for mean, count, square in zip(means, counts, squares, strict=True))


def draw(found: dict[str, Any]) -> Figure:
    """Returns the error of each method by round, and how the departments lie in the clusters of IFCA."""
    runs = found["runs"]
    figure = style.figure((9.5, 3.8))
    left, right = figure.subplots(1, 2)
    for (kind, title), color in zip(TITLES.items(), style.line_colors(len(TITLES)), strict=True):
        name = kind if kind in runs else keeping.best(runs, kind, "mse")
        rounds, errors = ([record[key] for record in runs[name]["history"]] for key in ("round", "micro_mse"))
        number = name.partition("-")[2]
        label = f"{title}, {number}" if number else title
        left.plot(rounds, errors, marker="o", markersize=3, label=label, color=color)
    left.set(xlabel="round", ylabel="mean squared error, test rows", title="Predicting a rating from 1 to 5")
    left.set_ylim(1.5, 1.85)
    left.legend(frameon=False, fontsize=8)
    name = keeping.best(runs, "ifca", "mse")
    labels = np.unique(runs[name]["cluster"], return_inverse=True)[1]
    group, bottom = np.array(found["group"]), np.zeros(len(found["groups"]))
    order = np.argsort([int(one) for one in found["groups"]])
    for one, color in enumerate(style.class_colors(labels.max() + 1)):
        share = np.bincount(group[labels == one], minlength=len(bottom)) / np.bincount(group, minlength=len(bottom))
        right.bar(range(len(bottom)), share[order], bottom=bottom, label=f"cluster {one + 1}", color=color)
        bottom += share[order]
    right.set_xticks(range(len(bottom)), [found["groups"][place] for place in order])
    right.set(
        xlabel="department", ylabel="share of its lecturers", title=f"Clusters of IFCA, K = {name.partition('-')[2]}"
    )
    style.light_grid(left)
    style.light_grid(right)
    right.grid(visible=False)
    return figure


if __name__ == "__main__":
    keeping.command("lecturers", __doc__, federation, run, draw, about)
