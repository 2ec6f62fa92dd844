"""Collections of quotations in nine languages: does clustering find the languages, and does it help a character LSTM?

    python -m experiments.examples.languages fedavg local stocfl-0.93 --data-dir DIR

trains each of the methods, and keeps in `results/languages.json` what came of it; without a method it draws the picture
of the page. A threshold of StoCFL is part of its name: which one is taken, validation rows decide.
"""

from typing import Any

import numpy as np
import optax
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure

import jaxfl
from experiments.examples import keeping
from jaxfl.plots import style

RUN = {"rounds": 100, "cohort": 20, "eval_every": 25, "seed": 0}
LOCAL: dict[str, Any] = {"local_epochs": 1, "batch_size": 20}
HIDDEN, EMBEDDING, RATE = 96, 32, 0.005


def method_of(name: str, task: Any) -> Any:
    """Returns a method; `stocfl-0.93` is StoCFL at that threshold, `ifca-9` IFCA with nine models."""
    kind, _, number = name.partition("-")
    optimizer = optax.adam(RATE)
    match kind:
        case "fedavg":
            return jaxfl.methods.fedavg(task, optimizer, **LOCAL)
        case "local":
            return jaxfl.methods.local(task, optimizer, **LOCAL)
        case "ifca":
            return jaxfl.methods.ifca(task, optimizer, num_clusters=int(number), **LOCAL)
        case "stocfl":
            options = {"threshold": float(number), "linkage": "greedy", "slots": 64, **LOCAL}
            return jaxfl.methods.stocfl(task, optimizer, **options)
    raise ValueError(f"METHOD must be fedavg, local, ifca-K or stocfl-THRESHOLD, got {name}.")


def federation(data_dir: str) -> jaxfl.data.FederatedData:
    """Returns the collections of 60 windows of 64 characters or more, 100 at most of each."""
    return jaxfl.data.load("fortunes", data_dir=data_dir, min_rows=60, max_rows=100, validation=0.1, seed=0)


def run(name: str, data: jaxfl.data.FederatedData) -> dict[str, Any]:
    """Trains a character LSTM by one method."""
    network = jaxfl.models.CharRNN(num_classes=data.num_classes, hidden=(HIDDEN,), embedding=EMBEDDING)
    return keeping.made(name, method_of(name, jaxfl.next_token(network, data)), data, "perplexity", **RUN)


def pooled(found: dict[str, Any], name: str, of: np.ndarray) -> list[float]:
    """Returns the perplexity of all test rows of each part of the clients; of rows of as many characters, nearly.

    Args:
        found: the results.
        name: of a run.
        of: which part each client is in `[N]`, from 0.
    """
    rows, logs = np.array(found["test_rows"]), np.log(found["runs"][name]["perplexity"])
    return [float(np.exp(np.average(logs[of == one], weights=rows[of == one]))) for one in range(max(of) + 1)]


def clusters(found: dict[str, Any], name: str) -> np.ndarray:
    """Returns the cluster of each client, numbered from the one that has most of them."""
    labels = np.unique(found["runs"][name]["cluster"], return_inverse=True)[1]
    return np.argsort(np.argsort(-np.bincount(labels), kind="stable"))[labels]


def members(found: dict[str, Any], name: str) -> np.ndarray:
    """Returns how many collections of each language each cluster has `[languages, K]`."""
    own, group = clusters(found, name), np.array(found["group"])
    return np.stack([np.bincount(group[own == one], minlength=len(found["groups"])) for one in range(max(own) + 1)], 1)


def draw(found: dict[str, Any]) -> Figure:
    """Returns who is in which cluster, and the perplexity of each language under each method."""
    best = keeping.best(found["runs"], "stocfl", "perplexity")
    languages, table = found["groups"], members(found, best)
    figure = style.figure((9.5, 4.2))
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    shares = np.sqrt(table / table.max())  # else one language hides the others
    shades = [[style.mix(style.BASE[0], 1.0, 1 - share) for share in row] for row in shares.tolist()]
    left.imshow(to_rgba_array([one for row in shades for one in row]).reshape(*table.shape, 4), aspect="auto")
    for (row, column), count in np.ndenumerate(table):
        if count:
            color = style.ink(shades[row][column])
            left.text(column, row, str(count), ha="center", va="center", fontsize=8, color=color)
    left.set_yticks(range(len(languages)), languages)
    left.set_xticks([])
    left.set(xlabel=f"{table.shape[1]} clusters of StoCFL, the largest first", title="Collections of each language")
    titles = {"local": "Local", "fedavg": "FedAvg", best: f"StoCFL, {best.partition('-')[2]}"}
    for place, ((name, title), color) in enumerate(zip(titles.items(), style.line_colors(len(titles)), strict=True)):
        at = np.arange(len(languages)) + 0.27 * (place - 1)
        right.bar(at, pooled(found, name, np.array(found["group"])), 0.27, label=title, color=color)
    right.set_xticks(range(len(languages)), languages)
    right.set(title="Perplexity of a character, test rows", ylabel="lower is better")
    right.legend(frameon=False, fontsize=8)
    left.spines[:].set_visible(False)
    left.tick_params(length=0)
    style.light_grid(right)
    right.grid(axis="x", visible=False)
    return figure


if __name__ == "__main__":
    keeping.command("languages", __doc__, federation, run, draw)
