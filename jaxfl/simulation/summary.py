"""What came of a run, in one flat dictionary."""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from jaxfl.data.clients import FederatedData
from jaxfl.simulation.metrics import Evaluation
from jaxfl.simulation.program import peak_bytes
from jaxfl.simulation.progress import Progress
from jaxfl.simulation.schedule import Clock

RECOVERED = 0.01  # from the metric before a drift: a point of accuracy


def summary_of(
    data: FederatedData, evaluation: Evaluation, progress: Progress, clock: Clock, **run: Any
) -> dict[str, Any]:
    """Returns a run's summary, ready for JSON.

    Args:
        data: the federation, with its drift if it has one.
        evaluation: the last one; its metrics are of the summary.
        progress: at the end.
        clock: of the run.
        **run: what else is said of the run: seed, cohort, ...
    """
    lower, drifts_at = evaluation.main in run["lower_is_better"], data.drifts_at
    data = data.at(progress.done)
    around = {}
    if drifts_at is not None and drifts_at <= progress.done:  # else the run was ended before
        around = around_drift(progress.history, drifts_at, evaluation.main, lower=lower)
    return {
        "data": data.name,
        "rounds": progress.done,
        "num_clients": data.num_clients,
        **{name: value for name, value in evaluation.metrics.items() if name != "clusters"},
        "updates": progress.tally.updates,
        "diverged": progress.tally.diverged_in_all,
        "empty_clients": int((np.asarray(data.train.size) == 0).sum()),
        "mean_participants": progress.tally.participants / max(progress.done, 1),
        **around,
        **run,
        "seconds_per_round": progress.pace,
        "total_seconds": clock.seconds,
        "evaluation_seconds": sum(clock.evaluations),
        "saving_seconds": sum(clock.savings),
        "peak_bytes": peak_bytes(),
        "device": jax.local_devices()[0].device_kind,
        "versions": {"python": sys.version.split()[0], "jax": jax.__version__, "numpy": np.__version__},
    }


def around_drift(records: Iterable[Mapping[str, Any]], round: int, main: str, *, lower: bool) -> dict[str, Any]:
    """Returns how well clients were served before a drift and at it, and how long it took until they were so again.

    `drift_round`; `before_drift_micro_accuracy`, of the last evaluation before it; `at_drift_micro_accuracy`, of that
    after as many rounds, when no client has trained on what is new; and `rounds_to_recover` from there to the first
    evaluation that is at most `RECOVERED` worse than before, 0 where it never was worse; None where that is not known,
    or not so until the end. (`accuracy` stands for the task's main metric.)

    Args:
        records: of the evaluations.
        round: rounds before the drift.
        main: the metric.
        lower: whether it is better where it is lower.

    >>> records = [{"round": r, "micro_accuracy": a} for r, a in ((4, 0.9), (5, 0.4), (8, 0.7), (12, 0.895))]
    >>> around_drift(records, 5, "accuracy", lower=False)
    {'drift_round': 5, 'before_drift_micro_accuracy': 0.9, 'at_drift_micro_accuracy': 0.4, 'rounds_to_recover': 7}
    """
    name = f"micro_{main}"
    known = [(one["round"], one[name]) for one in records if one.get(name) is not None]
    before = next((value for done, value in reversed(known) if done < round), None)
    after = [(done, value) for done, value in known if done >= round]
    sign = -1 if lower else 1
    good = [done for done, value in after if before is not None and sign * (before - value) <= RECOVERED]
    return {
        "drift_round": round,
        f"before_drift_{name}": before,
        f"at_drift_{name}": after[0][1] if after and after[0][0] == round else None,
        "rounds_to_recover": good[0] - round if good else None,
    }
