"""What is told of a run while it goes on, and what comes of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxfl.data.clients import FederatedData
from jaxfl.simulation.history import History
from jaxfl.simulation.metrics import Evaluation, in_a_line


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

    def __repr__(self) -> str:
        """Returns a line: the arrays would fill pages."""
        names = ("num_clients", "rounds", "micro_accuracy", "macro_accuracy", "num_clusters", "diverged")
        return f"Result({self.data.name!r}, {in_a_line(self.summary, names)})"
