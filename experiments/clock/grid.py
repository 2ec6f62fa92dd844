"""The runs of the page on accuracy by simulated time, and the records that are kept of them.

Every run has the same budget: as many trainings of clients. Synchronous rounds ask a cohort; with the deadline as
many work, the last ones in vain; FedBuff has as many at work, and steps after half as many arrivals, so that it makes
twice as many rounds.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.wire.grid import Setting
from jaxfl.clock.profiles import quartiles
from jaxfl.clock.totals import SECONDS
from jaxfl.data import FederatedData
from jaxfl.jobs.job import Job
from jaxfl.settings import options
from jaxfl.simulation.result import Result

RESULTS = Path(__file__).parent / "results"
SEEDS = (0, 1, 2)
METHODS: dict[str, dict[str, Any]] = {"fedavg": {}, "ifca": {"num_clusters": 4}, "fedper": {}, "fedavg_ft": {}}
CLOCKS = ("equal", "lognormal", "tiers")
POLICIES: dict[str, dict[str, Any]] = {
    "synchronous": {},
    "deadline": {"deadline": "p70"},
    "fedbuff": {"asynchronous": "fedbuff"},
}


class Federation(NamedTuple):
    """A federation, and how its clients are trained.

    Attributes:
        name: in the records.
        title: in tables.
        data: of the catalogue.
        options: of data, network and local training.
        cohort: clients that are asked in a round, or work at a time.
        rounds: of a synchronous run.
        evaluations: of a run.
        tiers: options of the clock `tiers`.
        rates: the learning rate of each method; of those that `tried` lists the best one in synchronous rounds.
        tried: learning rates.
        trial: options of the runs that tried them, where they are others.
        core_seconds: of a run, compilation included, on the machine of the committed results.
    """

    name: str
    title: str
    data: str
    options: dict[str, Any]
    cohort: int
    rounds: int
    evaluations: int
    tiers: dict[str, Any]
    rates: dict[str, float]
    tried: tuple[float, ...]
    trial: dict[str, Any]
    core_seconds: float


FEDERATIONS = (
    Federation(
        "rotated",
        "Rotated MNIST",
        "rotated-mnist",
        {
            **{"num_clients": 100, "rows_per_client": 100, "test_share": 0.02},
            **{"model": "mlp", "hidden": 64, "local_epochs": 2, "batch_size": 20},
        },
        cohort=20,
        rounds=200,
        evaluations=25,
        tiers={"clock_by": "group"},
        rates=dict.fromkeys(METHODS, 0.3),
        tried=(0.03, 0.1, 0.3, 1.0),
        trial={},
        core_seconds=15.0,
    ),
    Federation(
        "cifar10",
        "CIFAR-10, Dirichlet 0.1",
        "dirichlet-cifar10",
        {
            **{"num_clients": 30, "alpha": 0.1, "min_rows": 20, "max_rows": 100, "test_share": 0.4},
            **{"model": "stocfl-cifar-cnn", "local_epochs": 2, "batch_size": 20},
        },
        cohort=10,
        rounds=30,
        evaluations=6,
        tiers={},
        rates=dict.fromkeys(METHODS, 0.1),
        tried=(0.03, 0.1, 0.3),
        trial={"num_clients": 50, "cohort": 20, "rounds": 40, "eval_every": 4},
        core_seconds=15.0,
    ),
)


class Program(NamedTuple):
    """Runs of one compiled program: of three clocks and three seeds.

    Attributes:
        on: the federation.
        method: its name.
        policy: its name.
    """

    on: Federation
    method: str
    policy: str

    def setting(self, clock: str) -> Setting:
        """Returns the method and the options of a run with a clock."""
        on, steps = self.on, 2 if self.policy == "fedbuff" else 1
        given = {"data": on.data, "rounds": steps * on.rounds, "cohort": on.cohort}
        given |= {
            "eval_every": steps * on.rounds // on.evaluations,
            **on.options,
            "learning_rate": on.rates[self.method],
        }
        given |= {**METHODS[self.method], "clock": clock, **(on.tiers if clock == "tiers" else {})}
        given |= {"buffer": on.cohort // 2} if self.policy == "fedbuff" else {}
        return Setting(self.method, given | POLICIES[self.policy])


PROGRAMS = tuple(Program(on, method, policy) for on in FEDERATIONS for method in METHODS for policy in POLICIES)


def job_of(setting: Setting, seed: int) -> Job:
    """Returns a run, which keeps the metrics of each client at every evaluation."""
    given = dict(setting.options)
    data, rounds, cohort, every = (given.pop(name) for name in ("data", "rounds", "cohort", "eval_every"))
    settings = options.route(setting.method, data, clients_history=True, **given)
    return Job(settings, rounds, cohort, seed, eval_every=every)


def record(job: Job, data: FederatedData, result: Result) -> dict[str, Any]:
    """Returns what is kept of a result.

    `curve` has for each evaluation the round, the simulated seconds, the accuracy of all test rows, and that of the
    worst group, or of the worst tenth of the clients where there are no groups. `groups` and `quarters` have for each
    true group, and for each quarter of the clients by speed from the slowest on, their accuracy at the end, and their
    share of the updates that were aggregated.
    """
    clock, history, times = options.clock(job.settings), result.history, result.times
    assert clock is not None and history.clients is not None and times is not None
    accuracy, rows = history.clients["accuracy"], history.clients["rows"]  # [E, N]
    speeds = clock.attach(data, jax.random.key(job.seed)).speeds
    assert speeds is not None
    members = {"quarters": quartiles(speeds), **({} if data.group is None else {"groups": np.asarray(data.group)})}
    parts, found = {}, {}
    for name, member in members.items():
        masks = [member == number for number in range(member.max() + 1)]
        parts[name] = np.array([(accuracy * rows)[:, one].sum(1) / rows[:, one].sum(1) for one in masks])  # [parts, E]
        updates = [float(times["reports"][one].sum() / times["reports"].sum()) for one in masks]
        found[name] = {"accuracy": _short(parts[name][:, -1].tolist()), "updates": _short(updates)}
    worst = parts["groups"].min(0).tolist() if "groups" in parts else history.column("worst_decile_accuracy")
    columns = [history.column(name) for name in ("round", SECONDS, "micro_accuracy")]
    last = {name: history[-1][name] for name in ("ari", "cut") if history[-1].get(name) is not None}
    if "staleness" in history[-1]:
        last["staleness"] = float(np.mean(history.column("staleness")))
    curve = [[round, *_short(numbers)] for round, *numbers in zip(*columns, worst, strict=True)]
    return {**dict(zip(last, _short([*last.values()]), strict=True)), **found, "curve": curve}


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Returns the records of a file by the names of their runs; of a run with two records the last one."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {run_name(line["method"], line["options"], line["seed"]): line for line in map(json.loads, lines)}


def run_name(method: str, given: dict[str, Any], seed: int) -> str:
    """Returns the name of a run: all that its numbers depend on."""
    return json.dumps([method, given, seed], sort_keys=True)


def records(program: Program, clock: str, lines: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the records of a program's runs with a clock, in the order of the seeds; those that are there.

    Args:
        program: federation, method and policy.
        clock: its name.
        lines: see `read`.
    """
    setting = program.setting(clock)
    names = [run_name(setting.method, setting.options, seed) for seed in SEEDS]
    return [lines[name] for name in names if name in lines]


def _short(values: list[float]) -> list[float]:
    """Returns numbers with four digits.

    >>> _short([0.123456, 1234.56])
    [0.1235, 1235.0]
    """
    return [float(f"{value:.4g}") for value in values]
