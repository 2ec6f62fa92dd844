"""What is told of a run while it goes on, and what comes of it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxfl.data.clients import FederatedData
from jaxfl.simulation.history import History
from jaxfl.simulation.metrics import Evaluation, in_a_line

if TYPE_CHECKING:
    import pandas


class Event(NamedTuple):
    """What a callback is told, about once a second and after every evaluation."""

    round: int
    rounds: int
    num_clusters: int
    train_loss: float  # of the last round in which somebody took part; NaN if no loss was finite
    seconds_per_round: float
    record: dict[str, Any] | None  # of the evaluation that was just made, if one was
    seconds: float = 0.0  # since the run was started or resumed, with everything
    seconds_left: float = 0.0  # about, evaluations included
    compile_seconds: float = 0.0  # of these seconds; compiling the evaluation is part of the first one
    evaluation_seconds: float = 0.0
    seed: int | None = None  # of the run, where there are several seeds


Callback = Callable[[Event], None]


class Result(NamedTuple):
    """A finished run.

    Attributes:
        state: the method's last state.
        history: a record per evaluation.
        evaluation: the last one, client by client.
        data: the federation it ran on.
        summary: one flat dictionary, ready for JSON: what ran, the last metrics, the times, the versions.
    """

    state: Any
    history: History
    evaluation: Evaluation
    data: FederatedData
    summary: dict[str, Any]

    def clients(self) -> "pandas.DataFrame":
        """Returns a row per client: id, true group, cluster, training and test rows, the task's metrics and loss.

        `group` is empty where groups are unknown, `cluster` is the slot of the model that the client is served, -1 for
        none, and what was not tested is NaN. Of classification the metrics are
        `accuracy` and `f1`. With `finetune` there is `finetuned_accuracy`, or what the main metric is, too.
        """
        import pandas

        data, found = self.data, self.evaluation
        group = [""] * data.num_clients
        if data.group is not None:
            names = data.group_names
            group = [names[one] if one < len(names) else str(one) for one in np.asarray(data.group).tolist()]
        columns = {
            "client": np.arange(data.num_clients),
            "group": group,
            "cluster": found.cluster,
            "train_rows": np.asarray(data.train.size),
            "test_rows": np.asarray(data.test.size),
            **found.values,
            "loss": found.loss,
        }
        if found.finetuned is not None:
            columns[f"finetuned_{found.main}"] = found.finetuned.values[found.main]
        return pandas.DataFrame(columns)

    def __repr__(self) -> str:
        """Returns a line: the arrays would fill pages."""
        main = self.evaluation.main
        names = ("num_clients", "rounds", f"micro_{main}", f"macro_{main}", "num_clusters", "diverged")
        return f"Result({self.data.name!r}, {in_a_line(self.summary, names)})"
