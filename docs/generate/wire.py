"""The tables of the pages on audits, and on privacy, attacks and bandwidth, from `experiments/wire/results`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.wire import attacks, compression, grid, privacy, speed
from experiments.wire import membership as experiment

NAMES = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedavg_ft": "FedAvg, fine-tuned",
    "ifca": "IFCA, K = 4",
    "fesem": "FeSEM, K = 4",
    "ditto": "Ditto",
    "stocfl": "StoCFL",
}
MISSING = "-"
ENOUGH = 0.9  # of the best accuracy

Records = Sequence[Mapping[str, Any]]


def membership() -> str:
    """Returns accuracy and risk of the clients of each group, by method: means over the seeds."""
    rows = experiment.kept()
    head = ["method", "clients of the group", "in the cluster", "accuracy", "AUC", "advantage", "TPR at 1 %"]
    lines = []
    for method, name in experiment.NAMES.items():
        for size in experiment.SIZES:

            def mean(column: str, method: str = method, size: int = size) -> float:
                return float(experiment.values(rows, method, size, column).mean())

            numbers = [f"{mean(column):.3f}" for column in ("accuracy", "auc", "advantage", "true_positives")]
            lines.append([name, str(size), f"{mean('cluster'):.1f}", *numbers])
    return _lines(head, lines)


def references() -> str:
    """Returns the risk with and without reference models, by method: means over the seeds and the two large groups."""
    rows, lines = experiment.kept(), []
    for method, name in experiment.NAMES.items():
        for score in ("loss", "references"):
            means = []
            for column in ("auc", "true_positives"):
                found = [experiment.values(rows, method, size, column, score) for size in experiment.SIZES[:2]]
                if not found[0].size:  # a single model has no references
                    break
                means += [f"{one.mean():.3f}" for one in found]
            if means:
                lines.append([name, score, *means])
    large, small = experiment.SIZES[:2]
    return _lines(
        ["method", "score", *(f"{what}, {size} clients" for what in ("AUC", "TPR at 1 %") for size in (large, small))],
        lines,
    )


def robustness() -> str:
    """Returns the accuracy of honest clients by method, attack and aggregator: mean and deviation over the seeds."""
    found, rows = _by_options("attacks"), []
    for method, own in attacks.METHODS.items():
        for name, attack in attacks.ATTACKS.items():
            cells = []
            for aggregator in attacks.AGGREGATORS:
                more = {} if aggregator == "mean" else {"aggregator": aggregator}
                cells.append(_accuracy(found.get(_place(method, {**attacks.COMMON, **own, **attack, **more}), ())))
            rows.append([NAMES[method], name, *cells])
    return _made(["method", "attack", *attacks.AGGREGATORS], rows, 2)


def bandwidth() -> str:
    """Returns the megabytes to nine tenths of the best accuracy by method and code, with the last accuracy."""
    found, rows = _by_options("compression"), []
    for method, options in compression.METHODS.items():
        lines = {}
        for code, more in compression.CODES.items():
            lines[code] = found.get(_place(method, {**compression.COMMON, **options, **more}), ())
        goal = float(ENOUGH * np.mean([max(point[1] for point in line["curve"]) for line in lines["none"]] or [np.nan]))
        cells = [f"{_megabytes(own, goal)} ({_accuracy(own)})" if own else MISSING for own in lines.values()]
        rows.append([NAMES[method], *cells])
    return _made(["method", *compression.CODES], rows, 1)


def privacy_cost() -> str:
    """Returns the accuracy by method, clients and epsilon, with the ARI of methods with clusters, over the seeds."""
    found, rows = _by_options("privacy"), []
    for clients in privacy.CLIENTS:
        for method in privacy.METHODS:
            options = [{"clients": clients, "epsilon": epsilon} for epsilon in privacy.EPSILONS]
            cell = _accuracy_and_ari if "num_clusters" in privacy.METHODS[method] else _accuracy
            cells = [cell(found.get(_place(method, one), ())) for one in options]
            rows.append([NAMES[method], f"{clients:,}", *cells])
    heads = ["no privacy" if epsilon is None else f"epsilon {epsilon:g}" for epsilon in privacy.EPSILONS]
    return _made(["method", "clients", *heads], rows, 2)


def costs() -> str:
    """Returns how many times as long as a plain round one with each wire takes: the median of the runs."""
    found, rows = grid.kept("speed"), []
    for line in speed.LINES:
        runs = [one for one in found if (one["workload"], one["clients"]) == (line.work, line.clients)]
        cells = []
        for name in speed.WIRES:
            ratios = [one["ratio"][name] for one in runs if name in one["ratio"]]
            cells.append(f"{np.median(ratios):.2f}" if ratios and name != speed.PLAIN else MISSING)
        rows.append([runs[0]["what"] if runs else line.work, *cells])
    return _made(["round", *speed.WIRES], rows, 1)


def _by_options(name: str) -> dict[str, Records]:
    """Returns the records of a grid, by method and options."""
    return {_place(setting.method, setting.options): lines for setting, lines in grid.by_setting(name)}


def _place(method: str, options: Mapping[str, Any]) -> str:
    """Returns the name of a setting."""
    return repr([method, sorted(options.items(), key=lambda item: item[0])])


def _accuracy(lines: Records) -> str:
    """Returns the last accuracy in percent, mean and standard deviation over the seeds.

    >>> _accuracy([{"summary": {"micro_accuracy": accuracy}} for accuracy in (0.5, 0.52)]), _accuracy([])
    ('51.0 ± 1.4', '-')
    """
    values = [100 * line["summary"]["micro_accuracy"] for line in lines]
    if not values:
        return MISSING
    return f"{np.mean(values):.1f}" + (f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else "")


def _accuracy_and_ari(lines: Records) -> str:
    """Returns the last accuracy in percent, with the mean ARI.

    >>> _accuracy_and_ari([{"summary": {"micro_accuracy": 0.5, "ari": 0.75}}])
    '50.0, ARI 0.75'
    """
    return _accuracy(lines) + (f", ARI {np.mean([line['summary']['ari'] for line in lines]):.2f}" if lines else "")


def _megabytes(lines: Records, goal: float) -> str:
    """Returns the megabytes that all clients have sent until the accuracy is reached, the mean over the seeds.

    >>> _megabytes([{"curve": [[2, 0.5, 1e6], [4, 0.8, 2e6]]}], 0.7), _megabytes([{"curve": [[2, 0.5, 1e6]]}], 0.7)
    ('2.00', '-')
    """
    first = [next((sent for _, accuracy, sent in line["curve"] if accuracy >= goal), None) for line in lines]
    reached = [sent for sent in first if sent is not None]
    return MISSING if not first or len(reached) < len(first) else f"{np.mean(reached) / 1e6:.2f}"


def _made(head: Sequence[str], rows: Sequence[Sequence[str]], named: int) -> str:
    """Returns a table without the rows and columns of which nothing was made.

    Args:
        head: of the columns.
        rows: of the table.
        named: the number of columns that name a row.

    >>> _made(["method", "mean", "median"], [["FedAvg", "50.0", "-"], ["IFCA", "-", "-"]], 1).splitlines()
    ['| method | mean |', '| --- | --- |', '| FedAvg | 50.0 |']
    """
    rows = [row for row in rows if any(cell != MISSING for cell in row[named:])]
    columns = [place for place in range(len(head)) if place < named or any(row[place] != MISSING for row in rows)]
    if not rows:
        return "No run is made yet."
    return _lines([head[place] for place in columns], [[row[place] for place in columns] for row in rows])


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])
