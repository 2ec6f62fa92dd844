"""The tables of the page on audits, from `experiments/wire/results`."""

from collections.abc import Sequence

from experiments.wire import membership as experiment


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


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])
