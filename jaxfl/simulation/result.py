"""Events of a run for its callbacks, and the result of a finished run."""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxfl.data.clients import FederatedData
from jaxfl.host.text import encodable
from jaxfl.methods.base import MEMORY, Method, clients_to_train, trained_once
from jaxfl.models.weights import save_weights
from jaxfl.schema import check_type
from jaxfl.simulation.evaluation.evaluate import client_model
from jaxfl.simulation.evaluation.metrics import Evaluation, numbers_phrase
from jaxfl.simulation.evaluation.served import evaluate_newcomers, predict
from jaxfl.simulation.records.history import History
from jaxfl.typing import Params

if TYPE_CHECKING:
    import pandas

import sys
from collections.abc import Iterable

import jax

from jaxfl.simulation.program import peak_bytes
from jaxfl.simulation.progress import Progress, RoundTotals
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
    lower, around = evaluation.main in run["lower_is_better"], {}
    changes = [round for round in data.drift_rounds if round <= progress.done]  # the run may have ended before
    if changes:
        returns = len(changes) > 1 and data.returns_at == changes[1]
        around = drift_summary(progress.history, changes, evaluation.main, lower=lower, returns=returns)
    data = data.at(progress.done)
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
        "seconds_per_round": progress.median_round_seconds,
        "total_seconds": clock.seconds,
        "evaluation_seconds": sum(clock.evaluations),
        "saving_seconds": sum(clock.savings),
        "peak_bytes": peak_bytes() or None,
        "device": jax.local_devices()[0].device_kind,
        "versions": {"python": sys.version.split()[0], "jax": jax.__version__, "numpy": np.__version__},
    }


def shortfall_of(method: Method, state: Any, data: FederatedData, tally: RoundTotals, cohort: int) -> str:
    """Returns sentences about what a method could not do in a run, and how to change that; an empty text if nothing.

    They are those of `Method.shortfall`, and for methods that keep something for each client, whether they ever used it
    again; for methods that serve each client a model of its own, how many clients have not trained theirs; and for all
    methods, whether nobody has test rows.

    Args:
        method: the method.
        state: its state at the end.
        data: the federation at the end.
        tally: of the rounds.
        cohort: clients of a round.
    """
    participation = tally.participation(cohort, data.num_clients)
    sentences = [] if method.shortfall is None else [method.shortfall(state, data, participation)]
    if method.per_client not in (None, MEMORY):
        sentences.append(trained_once(participation, method.per_client))
    trains, cluster, sampled = clients_to_train(data), getattr(state, "cluster", None), participation.sampled
    idle = 0 if sampled is None else int((trains & ~sampled).sum())
    if idle > 0 and cluster is not None and np.array_equal(cluster, np.arange(len(trains))):  # a model for each client
        sentences.append(
            f"{idle} of {trains.sum()} clients have never taken part, and are tested with a model that has not been "
            "trained on their rows: make more rounds, or sample more clients in each."
        )
    if not np.asarray(data.test.size).any():
        sentences.append("No client has test rows, so that there are no metrics: give test rows.")
    return " ".join(filter(None, sentences))


def drift_summary(
    records: Iterable[Mapping[str, Any]], rounds: Sequence[int], main: str, *, lower: bool, returns: bool = False
) -> dict[str, Any]:
    """Returns the metric around the changes of a drift, and the rounds until it has recovered.

    Of the first change `drift_round`; `before_drift_micro_accuracy`, of the last evaluation before it;
    `at_drift_micro_accuracy`, of that after as many rounds, when no client has trained on what is new; and
    `rounds_to_recover` from there to the first evaluation before the next change that is at most `RECOVERED` worse than
    before, 0 where it never was worse; None where that is not known, or not so until the next change or the end.
    (`accuracy` stands for the task's main metric.)

    `drift_stages` has the same for every change: `round`, `before`, `at`, `end` (of the last evaluation before the next
    change), `rounds_to_recover`, and `ari` at the end of the stage. `area_micro_accuracy` is the mean over all
    rounds from the first change to the end, linear between evaluations. Where the second change brings the first data
    back, `return_gain_micro_accuracy` says how much better the metric is at it than at the first change: whether the
    old concept was kept.

    Args:
        records: of the evaluations.
        rounds: before each change.
        main: the metric.
        lower: whether it is better where it is lower.
        returns: whether the data are after the second change as they were before the first.

    >>> records = [{"round": r, "micro_accuracy": a} for r, a in ((4, 0.9), (5, 0.4), (8, 0.7), (12, 0.895))]
    >>> found = drift_summary(records, [5], "accuracy", lower=False)
    >>> found.pop("drift_stages")
    [{'round': 5, 'before': 0.9, 'at': 0.4, 'end': 0.895, 'rounds_to_recover': 7, 'ari': None}]
    >>> found
    {'drift_round': 5, 'before_drift_micro_accuracy': 0.9, 'at_drift_micro_accuracy': 0.4, 'rounds_to_recover': 7,
     'area_micro_accuracy': 0.6859375}
    """
    name, sign = f"micro_{main}", -1 if lower else 1
    known = [(one["round"], one[name], one.get("ari")) for one in records if one.get(name) is not None]
    stages = []
    for round, following in zip(rounds, [*rounds[1:], None], strict=True):
        before = next((value for done, value, _ in reversed(known) if done < round), None)
        within = [one for one in known if one[0] >= round and (following is None or one[0] < following)]
        good = [done for done, value, _ in within if before is not None and sign * (before - value) <= RECOVERED]
        stages.append(
            {
                "round": round,
                "before": before,
                "at": within[0][1] if within and within[0][0] == round else None,
                "end": within[-1][1] if within else None,
                "rounds_to_recover": good[0] - round if good else None,
                "ari": within[-1][2] if within else None,
            }
        )
    first, after = stages[0], [one[:2] for one in known if one[0] >= rounds[0]]
    found = {
        "drift_round": rounds[0],
        f"before_drift_{name}": first["before"],
        f"at_drift_{name}": first["at"],
        "rounds_to_recover": first["rounds_to_recover"],
        f"area_{name}": _mean_over_rounds(after) if after else None,
    }
    if returns:
        gain = None if None in (first["at"], stages[1]["at"]) else sign * (stages[1]["at"] - first["at"])
        found[f"return_gain_{name}"] = gain
    return found | {"drift_stages": stages}


def _mean_over_rounds(values: Sequence[tuple[int, float]]) -> float:
    """Returns the mean over all rounds from the first to the last of a metric that is linear between evaluations."""
    done, metric = zip(*values, strict=True)
    return float(np.interp(np.arange(done[0], done[-1] + 1), done, metric).mean())


class Event(NamedTuple):
    """The argument of a callback, about once a second and after every evaluation.

    Attributes:
        round: rounds done.
        rounds: of the run in all.
        num_clusters: after the last round.
        train_loss: of the last round in which clients took part; NaN if no loss was finite.
        seconds_per_round: of the last rounds.
        record: of a new evaluation; None without one.
        seconds: since the run was started or resumed, in all.
        seconds_left: an estimate, with evaluations and checkpoints.
        compile_seconds: the part of `seconds` for compilation; that of the evaluation is in `evaluation_seconds`.
        evaluation_seconds: the part of `seconds` for evaluations.
        saving_seconds: the part of `seconds` for checkpoints.
        seed: of the run, if there are several seeds; otherwise None.
        keep: `(folder)`, which saves a checkpoint of this round into the folder.
        lower: metrics of the task that are better where they are lower; losses always are.
        earlier: the records of all evaluations before, with those before a resume.
        again: whether `record` replaces an earlier record of this round: where a callback has ended a run with
            `test_rows`, all rows are tested.
        whole: whether `record` is of all test rows where earlier ones were not: the last one of a run with `test_rows`.
        cohort: ids of the clients that took part in the last round, ascending; None where no round was made since the
            run was resumed. Rounds run together between two events: the cohorts of those before the last are not told.
            `eval_every=1` has an event after every round, at the cost of an evaluation.
        state: the method's state after the last round, in the device's memory; nothing is copied. The next round takes
            this memory: keep `jax.device_get` of what is needed after the callback. Where the clients' models stay on
            the host, it holds them as `Result.state` does.
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
    saving_seconds: float = 0.0
    seed: int | None = None
    keep: Callable[[Path], None] | None = None
    lower: tuple[str, ...] = ()
    earlier: Sequence[dict[str, Any]] = ()
    again: bool = False
    whole: bool = False
    cohort: np.ndarray | None = None
    state: Any = None


Callback = Callable[[Event], bool | None]  # True ends the run


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Raises TypeError unless callbacks are a list of functions."""
    if not isinstance(callbacks, Sequence):
        got = type(callbacks).__name__
        raise TypeError(f"callbacks must be a list of functions of an Event, got a {got}; give [callback].")
    for one in callbacks:
        if isinstance(one, type):
            raise TypeError(f"callbacks must be functions of an Event, got the class {one.__name__}; give one of it.")
        if not callable(one):
            raise TypeError(f"callbacks must be functions of an Event, got {one!r} among them.")


def exit_callbacks(callbacks: Sequence[Callback]) -> contextlib.ExitStack:
    """Returns a context that exits the callbacks that are context managers, the last one first."""
    stack = contextlib.ExitStack()
    for callback in callbacks:
        if (leave := getattr(callback, "__exit__", None)) is not None:
            stack.push(leave)
    return stack


class TrainedRun:
    """A run with trained models: `Result` of `jaxfl.run` and `LoadedRun` of `jaxfl.load`.

    A subclass defines the properties, which are not implemented here; the methods use the models.
    """

    __slots__ = ()

    @property
    def method(self) -> Method | None:
        """The method; None where it is not known."""
        raise NotImplementedError

    @property
    def state(self) -> Any:
        """The method's last state."""
        raise NotImplementedError

    @property
    def data(self) -> FederatedData:
        """The federation; of one that drifts, as it is in the last round."""
        raise NotImplementedError

    @property
    def drifting(self) -> FederatedData | None:
        """Of data that drift, the federation with its drift."""
        raise NotImplementedError

    @property
    def began(self) -> FederatedData | None:
        """Of data that drift, the federation as it was in the first round."""
        return None if self.drifting is None else self.drifting.at(0)

    @property
    def evaluation(self) -> Evaluation:
        """The last evaluation, client by client."""
        raise NotImplementedError

    @property
    def seed(self) -> int:
        """The seed of the run."""
        raise NotImplementedError

    @property
    def _host_data(self) -> bool:
        """Whether the clients' rows of data stay on the host."""
        raise NotImplementedError

    @property
    def _facts(self) -> Mapping[str, Any]:
        """Facts of the run for a file of weights: method, data, rounds, seed."""
        raise NotImplementedError

    def params(self, *, client: int | None = None, cluster: int | None = None) -> Params:
        """Returns the served model of a client, or of the clients of a cluster.

        Args:
            client: from 0 to N - 1.
            cluster: one of `evaluation.cluster`.

        Raises:
            ValueError: both or none are given, or there is no such client or cluster.
        """
        chosen = chosen_client(client, cluster, self.data, lambda: self.evaluation)
        return client_model(
            _require_method(self.method), self.state, self.data, chosen, self.seed, stream=self._host_data
        )

    def predict(self, inputs: ArrayLike, *, client: int | None = None, cluster: int | None = None) -> np.ndarray:
        """Returns the outputs of the model of `params` for rows `[B, ...]`; of a classification, logits `[B, L]`.

        Args:
            inputs: rows as `data.inputs` has them, not scaled, and turned as the client sees them.
            client: from 0 to N - 1.
            cluster: one of `evaluation.cluster`.

        Raises:
            ValueError: the rows are of another shape or kind, or see `params`.

        >>> import jaxfl
        >>> small = {"num_clients": 4, "rows_per_client": 20, "model": "logistic"}
        >>> result = jaxfl.run_named("fedavg", "rotated-digits", rounds=1, cohort=4, **small)
        >>> result.predict(result.data.inputs[:3], client=0).shape
        (3, 10)
        """
        model = self.params(client=client, cluster=cluster)
        return predict(_require_method(self.method).task, model, self.data, inputs)

    def evaluate(self, data: FederatedData) -> Evaluation:
        """Returns the evaluation of newcomers, each of which is served as clients that are held out of training.

        `cluster` says which model each gets (of a method with a model for each client, a number beyond those of the
        run), and `unseen_micro_accuracy` and so on how good it is. The pools of rows of both are joined in memory. What
        a method computes for held-out clients in its rounds is missing: FedEM and FedSoft with `estimate="everybody"`
        serve them all models in equal parts.

        Args:
            data: the clients and their rows, from `federate`; they are scaled as those of the run were.

        Raises:
            ValueError: they have other rows or classes, or the method kept nothing to place them by.

        >>> import jaxfl
        >>> small = {"num_clients": 4, "rows_per_client": 20}
        >>> here = {"rounds": 1, "cohort": 4, "model": "logistic"}
        >>> result = jaxfl.run_named("ifca", "rotated-digits", num_clusters=2, **here, **small)
        >>> new = jaxfl.data.load("rotated-digits", seed=1, **small).subset([0, 1])
        >>> result.evaluate(new).cluster.shape
        (2,)
        """
        return evaluate_newcomers(_require_method(self.method), self.state, self.data, self.seed, data, self.began)

    def export(self, path: str | os.PathLike, *, client: int | None = None, cluster: int | None = None) -> None:
        """Writes the model of `params` as safetensors, see `jaxfl.models.save_weights`."""
        save_weights(
            path, self.params(client=client, cluster=cluster), weights_metadata(self._facts, self.data, client, cluster)
        )

    def clients(self) -> "pandas.DataFrame":
        """Returns a row per client: id, true group, cluster, training and test rows, the task's metrics and loss.

        `name` is the writer or site of a natural partition. `held_out` marks clients that were held out of training,
        and `absent` those that have left or are yet to arrive, if there are any. `group` is empty where groups are
        unknown, `cluster` is the slot of the model that the client is served, -1 for none, and what was not tested is
        NaN. Of classification the metrics are `accuracy` and `f1`. With `finetune` there is `finetuned_accuracy`, or
        what the main metric is, too. The result of a run with a clock has `busy_seconds`, in which the client has
        worked and sent, its `reports`, and where clients may be cut, its `cuts`.
        """
        import pandas

        return pandas.DataFrame(client_columns(self.data, self.evaluation, getattr(self, "times", None)))


class _ResultFields(NamedTuple):
    state: Any
    history: History
    evaluation: Evaluation
    data: FederatedData
    summary: dict[str, Any]
    method: Method | None = None
    drifting: FederatedData | None = None
    times: Mapping[str, np.ndarray] | None = None


class Result(_ResultFields, TrainedRun):
    """A finished run.

    Attributes:
        state: the method's last state.
        history: a record per evaluation.
        evaluation: the last one, client by client.
        data: the federation it ran on; of one that drifts, as it is at the end.
        summary: one flat dictionary, ready for JSON: what ran, the last metrics, the times, the versions.
        method: that has run.
        drifting: of data that drift, the federation with its drift; `began` is as it was in the first round.
        times: of a run with a clock, `busy_seconds`, `reports` and `cuts` of each client `[N]`; otherwise None.
    """

    __slots__ = ()

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.summary["seed"]

    @property
    def _host_data(self) -> bool:
        """Whether the clients' rows of data stayed on the host."""
        return not self.summary["resident"]

    @property
    def _facts(self) -> Mapping[str, Any]:
        """The summary."""
        return self.summary

    def __repr__(self) -> str:
        """Returns a line: the arrays would fill pages."""
        main = self.evaluation.main
        names = ("num_clients", "rounds", f"micro_{main}", f"macro_{main}", "num_clusters", "diverged")
        return f"Result({self.data.name!r}, {numbers_phrase(self.summary, names)})"


def client_columns(
    data: FederatedData, found: Evaluation, times: Mapping[str, np.ndarray] | None = None
) -> dict[str, Sequence[Any] | np.ndarray]:
    """Returns the columns of `TrainedRun.clients`, by name."""
    group = [""] * data.num_clients
    if data.group is not None:
        names = {one: encodable(name) for one, name in enumerate(data.group_names)}
        group = [names.get(one, str(one)) for one in np.asarray(data.group).tolist()]
    columns = {
        "client": np.arange(data.num_clients),
        **({"name": list(map(encodable, data.client_names))} if data.client_names else {}),
        "group": group,
        **_absence_columns(data),
        "cluster": found.cluster,
        "train_rows": np.asarray(data.train.size),
        "test_rows": np.asarray(data.test.size),
        **found.values,
        "loss": found.loss,
    }
    if found.finetuned is not None:
        columns[f"finetuned_{found.main}"] = found.finetuned.values[found.main]
    return columns | dict(times or {})


def _absence_columns(data: FederatedData) -> dict[str, np.ndarray]:
    """Returns the columns of clients that do not take part."""
    if data.held_out is None:
        return {}
    held_out = np.asarray(data.held_out)
    if data.absent is None:
        return {"held_out": held_out}
    absent = np.asarray(data.absent)
    held_out = held_out & ~absent  # absent clients do not train either
    return {**({"held_out": held_out} if held_out.any() else {}), "absent": absent}


def chosen_client(
    client: int | None, cluster: int | None, data: FederatedData, evaluation: Callable[[], Evaluation]
) -> int:
    """Returns the id of a client that is served the model of the arguments.

    Args:
        client: its id, or None.
        cluster: that of the client, or None.
        data: the federation.
        evaluation: has the clusters. Clients outside its sample, or that have left, may be in another one by now.

    Raises:
        ValueError: both or none are given, or there is no such client or cluster.
        TypeError: it is no whole number.
    """
    for name, number in (("client", client), ("cluster", cluster)):
        check_type(name, number, int | None)
    if (client is None) == (cluster is None):
        raise ValueError(f"client or cluster must be given, and not both, got client={client}, cluster={cluster}.")
    if client is not None:
        if not 0 <= client < data.num_clients:
            raise ValueError(f"client must be one of 0 to {data.num_clients - 1}, got {client}.")
        return client
    found = evaluation()
    sampled = "eval_clients" in found.metrics and found.rows.any()
    there = np.ones(data.num_clients, bool) if data.absent is None else ~np.asarray(data.absent)
    ids = np.flatnonzero(there & (found.rows > 0) if sampled else there)
    if not (members := ids[found.cluster[ids] == cluster]).size:
        known, who = ", ".join(map(str, np.unique(found.cluster[ids]))), "tested " if sampled else ""
        raise ValueError(f"cluster must be that of a {who}client, got {cluster}; clusters are {known}.")
    return int(members[0])


def weights_metadata(
    summary: Mapping[str, Any], data: FederatedData, client: int | None, cluster: int | None
) -> dict[str, str]:
    """Returns the metadata of a file of weights; `mean` and `std` are what its inputs are scaled by."""
    metadata = {name: summary[name] for name in ("method", "data", "rounds", "seed") if name in summary}
    metadata |= {"client": client, "cluster": cluster}
    scaled = {"mean": data.mean, "std": data.std}
    metadata |= {name: np.asarray(value).tolist() for name, value in scaled.items() if value is not None}
    return {name: str(value) for name, value in metadata.items() if value is not None}


def _require_method(method: Method | None) -> Method:
    """Returns the method; raises ValueError if it is unknown."""
    if method is None:
        raise ValueError("the result must know its method, got None; Method.client_params gives models of a state.")
    return method
