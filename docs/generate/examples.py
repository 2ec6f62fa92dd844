"""The tables of the examples, from `experiments/examples/results`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.examples import keeping, languages, lecturers

NAMES = {"local": "Local", "fedavg": "FedAvg", "ifca": "IFCA", "fesem": "FeSEM", "stocfl": "StoCFL"}
WORDS = {"ifca": "K = {}", "fesem": "K = {}", "stocfl": "threshold {}"}


def language_methods() -> str:
    """Returns how well each method predicts a character."""
    columns = ("validation_micro_perplexity", "micro_perplexity", "micro_accuracy", "num_clusters", "ari")
    head = ["method", "perplexity, validation", "perplexity, test", "accuracy", "clusters", "ARI"]
    return _methods("languages", head, columns, "{:.2f} {:.2f} {:.3f} {} {:.2f}", "perplexity")


def language_clusters() -> str:
    """Returns who is in the larger clusters of StoCFL, and their perplexity."""
    found = keeping.kept("languages")
    best = keeping.best(found["runs"], "stocfl", "perplexity")
    own, table = languages.clusters(found, best), languages.members(found, best)
    ours, theirs = (languages.pooled(found, name, own) for name in (best, "fedavg"))
    rows = []
    for one in range(table.shape[1]):
        if table[:, one].sum() < 5:
            break
        order = np.argsort(-table[:, one], kind="stable")
        who = ", ".join(f"{table[place, one]} {found['groups'][place]}" for place in order if table[place, one])
        rows.append([str(one + 1), who, f"{ours[one]:.2f}", f"{theirs[one]:.2f}"])
    rest = own >= len(rows)
    if rest.any():
        both = [languages.pooled(found, name, rest.astype(int))[1] for name in (best, "fedavg")]
        rows.append(["the others", f"{rest.sum()} in {own.max() + 1 - len(rows)}", *(f"{one:.2f}" for one in both)])
    return _table(["cluster", "collections", "its perplexity", "FedAvg's"], rows)


def lecturer_methods() -> str:
    """Returns how well each method predicts a rating."""
    columns = ("validation_micro_mse", "micro_mse", "micro_mae", "micro_r2", "macro_mse", "num_clusters", "ari")
    head = ["method", "MSE, validation", "MSE", "MAE", "R2", "MSE, mean over lecturers", "clusters", "ARI"]
    return _methods("lecturers", head, columns, "{:.3f} {:.3f} {:.3f} {:.3f} {:.3f} {} {:.3f}", "mse")


def lecturer_clusters() -> str:
    """Returns mean rating, size and error of IFCA's clusters."""
    found = keeping.kept("lecturers")
    table = lecturers.by_cluster(found, keeping.best(found["runs"], "ifca", "mse"))
    rows = [[f"{mean:.2f}", f"{count:,}", f"{rows:,}", f"{mse:.3f}"] for mean, count, rows, mse in table]
    return _table(["mean rating of its lecturers", "lecturers", "test rows", "MSE"], rows)


def _methods(name: str, head: Sequence[str], columns: Sequence[str], form: str, metric: str) -> str:
    """Returns a row for each run; the best mean of the validation rows is bold."""
    runs = keeping.kept(name)["runs"]
    lowest = min(run["summary"][f"validation_micro_{metric}"] for run in runs.values())
    rows = []
    for one in sorted(runs, key=lambda one: (list(NAMES).index(one.partition("-")[0]), _number(one))):
        kind, _, number = one.partition("-")
        summary: dict[str, Any] = runs[one]["summary"]
        cells = [how.format(summary[column]) for how, column in zip(form.split(), columns, strict=True)]
        if summary[columns[0]] == lowest:
            cells[0] = f"**{cells[0]}**"
        rows.append([f"{NAMES[kind]}, {WORDS[kind].format(number)}" if number else NAMES[kind], *cells])
    return _table(head, rows)


def _number(name: str) -> float:
    """Returns the number in a run's name.

    >>> _number("ifca-4"), _number("fedavg")
    (4.0, 0.0)
    """
    return float(name.partition("-")[2] or 0)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])
