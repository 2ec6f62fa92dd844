"""What is told of a run while it goes on, and what comes of it."""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Method
from jaxfl.models.weights import save_weights
from jaxfl.simulation.evaluate import model_of
from jaxfl.simulation.history import History
from jaxfl.simulation.metrics import Evaluation, in_a_line
from jaxfl.typing import Params

if TYPE_CHECKING:
    import pandas


class Event(NamedTuple):
    """What a callback is told, about once a second and after every evaluation.

    Attributes:
        round, rounds: that are done, and that are wanted.
        num_clusters: of the last round.
        train_loss: of the last round in which somebody took part; NaN if no loss was finite.
        seconds_per_round: of the last rounds.
        record: of the evaluation that was just made; None if none was.
        seconds: since the run was started or resumed, with everything.
        seconds_left: about, evaluations included.
        compile_seconds: of these seconds; compiling the evaluation is part of the first one.
        evaluation_seconds: of these seconds.
        seed: of the run, where there are several seeds; else None.
        keep: writes a checkpoint of this moment into a folder.
        lower: metrics of the task that are better where they are lower, beside losses.
    """

    round: int
    rounds: int
    num_clusters: int
    train_loss: float
    seconds_per_round: float
    record: dict[str, Any] | None
    seconds: float = 0.0
    seconds_left: float = 0.0
    compile_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    seed: int | None = None
    keep: Callable[[Path], None] | None = None
    lower: tuple[str, ...] = ()


Callback = Callable[[Event], bool | None]  # True ends the run


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Raises TypeError unless they are several functions."""
    if not isinstance(callbacks, Sequence):
        got = type(callbacks).__name__
        raise TypeError(f"callbacks must be a list of functions of an Event, got a {got}; give [callback].")
    for one in callbacks:
        if not callable(one):
            raise TypeError(f"callbacks must be functions of an Event, got {one!r} among them.")


def leaving(callbacks: Sequence[Callback]) -> contextlib.ExitStack:
    """Returns a context that leaves those callbacks that are context managers, the last one first."""
    stack = contextlib.ExitStack()
    for callback in callbacks:
        if (leave := getattr(callback, "__exit__", None)) is not None:
            stack.push(leave)
    return stack


class Result(NamedTuple):
    """A finished run.

    Attributes:
        state: the method's last state.
        history: a record per evaluation.
        evaluation: the last one, client by client.
        data: the federation it ran on; of one that drifts, as it is at the end.
        summary: one flat dictionary, ready for JSON: what ran, the last metrics, the times, the versions.
        method: that has run.
    """

    state: Any
    history: History
    evaluation: Evaluation
    data: FederatedData
    summary: dict[str, Any]
    method: Method | None = None

    @property
    def seed(self) -> int:
        """Its seed."""
        return self.summary["seed"]

    def params(self, *, client: int | None = None, cluster: int | None = None) -> Params:
        """Returns the model that a client is served, or the clients of a cluster.

        Args:
            client: from 0 to N - 1.
            cluster: one of `evaluation.cluster`.

        Raises:
            ValueError: both or none are given, or there is no such client or cluster.
        """
        if self.method is None:
            raise ValueError("the result must know its method, got None; Method.client_params gives models of a state.")
        found, stream = chosen_client(self.evaluation.cluster, client, cluster), not self.summary["resident"]
        return model_of(self.method, self.state, self.data, found, self.summary["seed"], stream=stream)

    def export(self, path: str | os.PathLike, *, client: int | None = None, cluster: int | None = None) -> None:
        """Writes the model of `params` as safetensors, see `jaxfl.models.save_weights`."""
        save_weights(path, self.params(client=client, cluster=cluster), about(self.summary, client, cluster))

    def clients(self) -> "pandas.DataFrame":
        """Returns a row per client: id, true group, cluster, training and test rows, the task's metrics and loss.

        `name` says who made the client's rows, where that is known. `group` is empty where groups are unknown,
        `cluster` is the slot of the model that the client is served, -1 for none, and what was not tested is NaN. Of
        classification the metrics are `accuracy` and `f1`. With `finetune` there is `finetuned_accuracy`, or what the
        main metric is, too.
        """
        import pandas

        data, found = self.data, self.evaluation
        group = [""] * data.num_clients
        if data.group is not None:
            names = data.group_names
            group = [names[one] if one < len(names) else str(one) for one in np.asarray(data.group).tolist()]
        columns = {
            "client": np.arange(data.num_clients),
            **({"name": data.client_names} if data.client_names else {}),
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


def chosen_client(clusters: np.ndarray, client: int | None, cluster: int | None) -> int:
    """Returns a client who is served what is asked for.

    Args:
        clusters: of all clients `[N]`.
        client: its id, or None.
        cluster: that of the client, or None.

    Raises:
        ValueError: both or none are given, or there is no such client or cluster.

    >>> chosen_client(np.array([1, 0, 0]), client=None, cluster=0)
    1
    """
    if (client is None) == (cluster is None):
        raise ValueError(f"client or cluster must be given, and not both, got client={client}, cluster={cluster}.")
    if client is not None:
        if not 0 <= client < len(clusters):
            raise ValueError(f"client must be one of 0 to {len(clusters) - 1}, got {client}.")
        return client
    if not (found := np.flatnonzero(clusters == cluster)).size:
        known = ", ".join(map(str, np.unique(clusters)))
        raise ValueError(f"cluster must be one that somebody is in, got {cluster}; they are {known}.")
    return int(found[0])


def about(summary: Mapping[str, Any], client: int | None, cluster: int | None) -> dict[str, str]:
    """Returns what a file of weights says of itself."""
    told = {name: summary[name] for name in ("method", "data", "rounds", "seed") if name in summary}
    return {
        name: str(value) for name, value in {**told, "client": client, "cluster": cluster}.items() if value is not None
    }
