"""What came of a run, in one flat dictionary."""

import sys
from typing import Any

import jax
import numpy as np

from jaxfl.data.clients import FederatedData
from jaxfl.simulation.metrics import Evaluation
from jaxfl.simulation.program import peak_bytes
from jaxfl.simulation.progress import Progress


def summary_of(data: FederatedData, evaluation: Evaluation, progress: Progress, **run: Any) -> dict[str, Any]:
    """Returns a run's summary, ready for JSON.

    Args:
        data: the federation.
        evaluation: the last one; its metrics are of the summary.
        progress: at the end.
        **run: what else is said of the run: seed, cohort, times, ...
    """
    return {
        "data": data.name,
        "rounds": progress.done,
        "num_clients": data.num_clients,
        **{name: value for name, value in evaluation.metrics.items() if name != "clusters"},
        "updates": progress.tally.updates,
        "diverged": progress.tally.diverged_in_all,
        "empty_clients": int((np.asarray(data.train.size) == 0).sum()),
        "mean_participants": progress.tally.participants / max(progress.done, 1),
        **run,
        "peak_bytes": peak_bytes(),
        "device": jax.local_devices()[0].device_kind,
        "versions": {"python": sys.version.split()[0], "jax": jax.__version__, "numpy": np.__version__},
    }
