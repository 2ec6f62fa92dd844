"""Makes what is missing of a federation's results: chooses on validation rows, then trains every seed.

The rule is the same for all. At the first seed every learning rate is tried with every value of the method's number;
the pair with the best validation metric at the end of the budget is trained at all seeds. While its learning rate is
the lowest or highest that was tried with this value, a further one is tried, and so are further values of the number.
Where the true number of clusters is known, it is one of three; methods that take a number of clusters are entered twice
more: told it, and without it among the values that are tried.

The budget is what FedAvg sends and how often it goes over the rows. All runs have FedAvg's rounds and are evaluated on
the way; what counts is the last evaluation at which neither more bytes were sent nor more passes made, those before the
first round included. So a run says both what a method comes to under the budget, and what in as many rounds.

A method at one value of its number is compiled once: learning rates reach the program as a number (`data.rate`, which
multiplies each step of an optimiser of rate 1; see `Row.apart`), and the federations of all seeds are brought to the
same shapes. The command that is kept with every result has the learning rate itself, and gives the same up to rounding.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.harness import results
from experiments.harness.base import Cell
from experiments.leaderboard.federations import APART, SEEDS, Federation
from experiments.leaderboard.rows import Number, Row, items, next_value, passes, passes_once, values
from experiments.leaderboard.table import Line, best
from jaxfl import tree
from jaxfl.data.clients import SPLITS, FederatedData, replace_field
from jaxfl.jobs import job as jobs
from jaxfl.methods.base import served_model
from jaxfl.sampling import cohort_size
from jaxfl.schema import function_options
from jaxfl.settings import methods, options
from jaxfl.simulation.progress import Diverged
from jaxfl.simulation.spec import share_equal_arrays

LOCAL = ("local_epochs", "batch_size")  # left out for a method that does not have them
MOST_RATES = 6  # that are tried with one value of a number
MATTERS = ("method.", "model.", "optimizer.")  # of a run's configuration: kept with the result, see harness.results
Say = Callable[[str], None]


def cell(on: Federation, row: Row, value: Number, rate: float, rounds: int | None = None) -> Cell:
    """Returns the run of a method at one value of its number and one learning rate."""
    able = function_options(methods.row(row.method).factory)
    shared = [item for item in on.items if item.partition("=")[0] in able or not item.startswith(LOCAL)]
    number = [] if row.number is None else [f"{row.number}={str(value).lower()}"]
    return Cell(
        on.title,
        row.name,
        ", ".join([*number, f"learning_rate={rate}"]),
        row.method,
        on.data,
        (*shared, *APART, f"learning_rate={rate}", *items(row, on), *number),
        rounds=on.rounds if rounds is None else rounds,
        cohort=1.0,
        seeds=SEEDS,
        eval_every=on.eval_every,
    )


def play(on: Federation, rows: Sequence[Row], folder: Path, data_dir: str | None, say: Say = print) -> int:
    """Makes what is missing of some rows, and returns how many runs failed. Where the data are missing, one says so.

    Args:
        on: the federation.
        rows: who plays.
        folder: of the results, a file for each federation.
        data_dir: folder of the data's files.
        say: is told of every run.
    """
    table = Player(on, folder, data_dir, say)
    try:
        for row in rows:
            table.enter(row)
    except FileNotFoundError as error:  # of the data, which no other run would find either
        say(f"{on.title}: {error}")
        return table.failed + 1
    return table.failed


class Player:
    """Trains on one federation; see `play` for the arguments."""

    def __init__(self, on: Federation, folder: Path, data_dir: str | None, say: Say):
        self.failed = 0
        self._on, self._data_dir, self._say = on, data_dir, say
        self._path, self._failures = folder / f"{on.name}.jsonl", folder / results.FAILURES
        for path in (self._path, self._failures):
            results.check_file(path)
        self._lines = results.read(self._path)
        self._data: dict[int, FederatedData] = {}
        self._tools: dict[tuple[Number, float], jobs.Tools] = {}

    def enter(self, row: Row) -> None:
        """Chooses for a row and trains all seeds; where there is a true number of clusters, with and without it too."""
        self._tools.clear()  # programs of the row before
        grid = values(row, self._on)
        self._chosen_at_all_seeds(row, grid)
        if row.counts and self._on.groups is not None:
            self._chosen_at_all_seeds(row, (self._on.groups,))
            self._chosen_at_all_seeds(row, [value for value in grid if value != self._on.groups])

    def _chosen_at_all_seeds(self, row: Row, grid: Sequence[Number]) -> None:
        """Tries everything at the first seed, and trains what is best at the others."""
        tried = [self._made(row, value, rate, SEEDS[0]) for value in grid for rate in self._on.rates]
        while (chosen := self._best(tried)) is not None:
            lines = [line for line in tried if line is not None]
            with_it = [line["rate"] for line in lines if line["value"] == chosen["value"]]
            if (rate := further(chosen["rate"], with_it)) is not None:
                tried.append(self._made(row, chosen["value"], rate, SEEDS[0]))
                continue
            values_so_far = [line["value"] for line in lines]
            if (value := next_value(row, self._on, chosen["value"], values_so_far)) is None:
                break
            tried += [self._made(row, value, rate, SEEDS[0]) for rate in self._on.rates]
        if chosen is not None:
            for seed in SEEDS[1:]:
                self._made(row, chosen["value"], chosen["rate"], seed)

    def _best(self, tried: Sequence[Line | None]) -> Line | None:
        """Returns what is best of what was tried; None if one failed, which may be made later, or all diverged."""
        lines = [line for line in tried if line is not None]
        return best(lines, self._on) if len(lines) == len(tried) else None

    def _made(self, row: Row, value: Number, rate: float, seed: int) -> Line | None:
        """Returns the result of a run, made if it was not; None if it failed."""
        asked = cell(self._on, row, value, rate)
        job = asked.job(seed)
        if (line := results.find(self._lines, job)) is not None:
            return line
        try:
            line = self._line(row, value, rate, job)
        except FileNotFoundError:
            raise
        except Exception as error:  # whatever it is, the others go on, and the exit code tells
            failure = results.failure_line(asked, job, error)
            results.append(self._failures, failure)
            self.failed += 1
            self._say(f"{asked.label}, seed {seed}: failed, {failure['error']}")
            return None
        results.append(self._path, line)
        self._lines.append(line)
        lost = "diverged" if line["same_rounds"] is None else "nothing within the budget"
        told = lost if line["numbers"] is None else f"{self._on.metric} {line['numbers']['micro']:.4f}"
        self._say(f"{asked.label}, seed {seed}: {told}, {line['processor_seconds']:.1f} s")
        return line

    def _line(self, row: Row, value: Number, rate: float, job: jobs.Job) -> dict[str, Any]:
        """Makes a run, and returns the line that is kept of it."""
        began = time.process_time()
        compiled, number = (rate, 1.0) if row.apart else (1.0, rate)  # the learning rate, and what its steps are times
        settings = job.settings._replace(optimizer=job.settings.optimizer | {"learning_rate": compiled})
        unit, data = job._replace(settings=settings), replace_field(self._load(job), "rate", np.float32(number))
        if (value, compiled) not in self._tools:
            self._tools[value, compiled] = jobs.Tools.of(unit, data)
        tools = self._tools[value, compiled]
        shapes = jax.eval_shape(tools.method.init, jax.random.key(0), data)
        model = tree.num_bytes(served_model(tools.method, shapes))
        try:
            found = jobs.execute(unit, data, tools=tools)
            # everybody receives and sends a model, as in FedAvg
            of_round, times = 2.0 * model * cohort_size(job.cohort, data), passes(row, value, self._on)
            before = passes_once(row, self._on)
            counted = moment(list(found.history), of_round, self._on.rounds, times, before)
            numbers = None if counted is None else _numbers(counted, self._on)
            same = _numbers(found.history[-1], self._on)
        except Diverged:
            numbers = same = None
        rounds = self._on.rounds if numbers is None else numbers["round"]
        kept = {key: one for key, one in results.configuration(job).items() if key.startswith(MATTERS)}
        return {
            "id": results.identifier(job),
            **{"row": row.name, "number": row.number, "value": value, "rate": rate, "seed": job.seed},
            "command": cell(self._on, row, value, rate, rounds).command(job.seed),
            **{"numbers": results.short(numbers), "same_rounds": results.short(same)},
            "processor_seconds": round(time.process_time() - began, 1),
            "configuration": kept,
        }

    def _load(self, job: jobs.Job) -> FederatedData:
        """Returns the federation of a seed; those of all seeds have the same shapes, which is one program for all."""
        if not self._data:
            loaded = [options.load(job.settings, data_dir=self._data_dir, seed=seed) for seed in SEEDS]
            self._data = dict(zip(SEEDS, same_shapes(loaded), strict=True))
        return self._data[job.seed]


def further(rate: float, tried: Sequence[float]) -> float | None:
    """Returns the learning rate to try next, one step beyond an edge; None if the rate is at none, or it is enough.

    Args:
        rate: the best one.
        tried: all with the same value of the method's number.

    >>> further(1.0, [0.1, 0.3, 1.0]), further(0.1, [0.1, 0.3, 1.0]), further(0.3, [0.1, 0.3, 1.0])
    (3.0, 0.03, None)
    """
    order = sorted(tried)
    if not 1 < len(order) < MOST_RATES or rate not in (order[0], order[-1]):
        return None
    beside = order[1] if rate == order[0] else order[-2]
    return float(f"{rate * rate / beside:.1g}")


def moment(
    records: Sequence[Mapping[str, Any]], of_round: float, rounds: int, times: float = 1.0, before: float = 0.0
) -> Mapping[str, Any] | None:
    """Returns the last evaluation within the budget; None if it was spent before the first one.

    What is spent is the larger of what was sent and how often the rows were passed over, both in FedAvg's rounds, and
    counts in whole rounds: less than half a round more is let through. Else a few numbers beside a model, or once
    before the first round, would cost all the rounds between two evaluations.

    Args:
        records: of a history.
        of_round: bytes of a round of FedAvg, up and down, all clients together.
        rounds: FedAvg's.
        times: how often its method goes over the rows where FedAvg goes once, as of `rows.passes`.
        before: and how often beside the rounds, as of `rows.passes_once`.

    >>> records = [{"round": round, "bytes_up": 5.0 * round, "bytes_down": 20.0 * round} for round in (4, 8, 12)]
    >>> moment(records, 25.0, 12)["round"], moment(records, 20.0, 12)["round"], moment(records, 25.0, 12, 2.0)["round"]
    (12, 8, 4)
    >>> moment(records, 25.0, 12, before=0.4)["round"], moment(records, 25.0, 12, before=2.5)["round"]
    (12, 8)
    """

    def spent(one: Mapping[str, Any]) -> float:
        return max((one["bytes_up"] + one["bytes_down"]) / of_round, before + one["round"] * times)

    within = [one for one in records if spent(one) < rounds + 0.5]
    return within[-1] if within else None


def same_shapes(data: Sequence[FederatedData]) -> list[FederatedData]:
    """Returns federations of several seeds as one program takes them: rows that nobody has are added to the lists.

    >>> from jaxfl.data import synthetic
    >>> few, many = synthetic.clustered_linear(4, rows=10), synthetic.clustered_linear(4, rows=12)
    >>> [one.train.rows.shape for one in same_shapes([few, many])], same_shapes([few, many])[0].train.size.tolist()
    ([(48,), (48,)], [10, 10, 10, 10])
    """
    found = list(data)
    for name in SPLITS:
        own = [split for one in data if (split := getattr(one, name)) is not None]
        most, rows = max((one.max_size for one in own), default=0), max((len(one.rows) for one in own), default=0)
        for place, split in enumerate(own):
            added = np.zeros(rows - len(split.rows), np.int32)
            padded = replace(split, rows=np.concatenate([split.rows, added]), max_size=most)
            found[place] = replace_field(found[place], name, padded)
    return share_equal_arrays(found) or found


def _numbers(record: Mapping[str, Any], on: Federation) -> dict[str, Any]:
    """Returns what is kept of an evaluation."""
    named = {
        "micro": f"micro_{on.metric}",
        "macro": f"macro_{on.metric}",
        "worst": f"worst_decile_{on.metric}",
        "unseen": f"unseen_micro_{on.metric}",
        "validation": f"validation_micro_{on.metric}",
        "clusters": "num_clusters",
    }
    found = {"round": record["round"], **{name: record[key] for name, key in named.items()}}
    sent = {"bytes": record["bytes_up"] + record["bytes_down"], "seconds": record["seconds"]}
    return {**found, "ari": record["ari"], **sent}
