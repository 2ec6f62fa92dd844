"""The tables of the page on accuracy by simulated time, from `experiments/clock/results`."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.clock import __main__ as command
from experiments.clock import grid

NAMES = {"fedavg": "FedAvg", "ifca": "IFCA, K = 4", "fedper": "FedPer", "fedavg_ft": "FedAvg, fine-tuned"}
POLICIES = {"synchronous": "synchronous", "deadline": "deadline", "fedbuff": "FedBuff"}
TIERS = ("fast", "usual", "slow", "fast")  # of the groups of rotated MNIST
MISSING = "-"
ENOUGH = 0.9  # of the accuracy at the end of synchronous rounds

Records = Sequence[Mapping[str, Any]]


def federation(name: str) -> grid.Federation:
    """Returns a federation."""
    return next(on for on in grid.FEDERATIONS if on.name == name)


def records(name: str, method: str, policy: str, clock: str) -> Records:
    """Returns the records of a setting, one for each seed that is there.

    Args:
        name: of the federation.
        method, policy, clock: their names.
    """
    return grid.records(grid.Program(federation(name), method, policy), clock, _runs())


def settings(name: str) -> list[tuple[str, str]]:
    """Returns the pairs of a method and a clock of which all runs on a federation are there, of all policies."""
    return [
        (method, clock)
        for method, clock in itertools.product(NAMES, grid.CLOCKS)
        if all(len(records(name, method, policy, clock)) == len(grid.SEEDS) for policy in POLICIES)
    ]


def methods(name: str, clock: str) -> list[str]:
    """Returns the methods of which all runs on a federation with a clock are there."""
    return [method for method, one in settings(name) if one == clock]


def accuracies(name: str) -> str:
    """Returns the accuracies at the end of a federation's runs, of all test rows and of the worst part."""
    worst = "worst group" if federation(name).tiers else "worst tenth"
    heads = [f"{title}{what}" for what in ("", f", {worst}") for title in POLICIES.values()]
    rows = []
    for method, clock in settings(name):
        found = [records(name, method, policy, clock) for policy in POLICIES]
        cells = [_percent([line["curve"][-1][column] for line in lines]) for column in (2, 3) for lines in found]
        rows.append([NAMES[method], clock, *cells])
    return _table(["method", "clock", *heads], rows)


def seconds(name: str) -> str:
    """Returns the simulated seconds of a federation's runs, and those until nine tenths of the accuracy."""
    heads = [f"{title}{what}" for what in ("", ", to nine tenths") for title in POLICIES.values()]
    rows = []
    for method, clock in settings(name):
        found = [records(name, method, policy, clock) for policy in POLICIES]
        goal = ENOUGH * float(np.mean([line["curve"][-1][2] for line in found[0]]))
        cells = [_spread([line["curve"][-1][1] for line in lines]) for lines in found]
        rows.append([NAMES[method], clock, *cells, *(_until(lines, goal) for lines in found)])
    return _table(["method", "clock", *heads], rows)


def shares() -> str:
    """Returns each group's share of the aggregated updates on rotated MNIST, where a group has a tier."""
    rows = []
    for policy, title in POLICIES.items():
        found = [
            line["groups"]["updates"]
            for method in methods("rotated", "tiers")
            for line in records("rotated", method, policy, "tiers")
        ]
        rows.append([title, *(f"{100 * share:.1f}" for share in np.mean(found, 0))])
    angles = (f"{90 * place} degrees, {tier}" for place, tier in enumerate(TIERS))
    return _table(["policy", *angles], rows)


def slow() -> str:
    """Returns the accuracy of the slow group on rotated MNIST, and the mean of the other three."""
    rows = []
    for method in methods("rotated", "tiers"):
        cells = []
        for policy in POLICIES:
            found = np.array([line["groups"]["accuracy"] for line in records("rotated", method, policy, "tiers")])
            place = TIERS.index("slow")
            cells.append([_percent(found[:, place]), _percent(np.delete(found, place, 1).mean(1))])
        rows.append([NAMES[method], *(cell[part] for part in (0, 1) for cell in cells)])
    heads = [f"{title}, {part}" for part in ("slow group", "other groups") for title in POLICIES.values()]
    return _table(["method", *heads], rows)


def slow_quarter() -> str:
    """Returns the slowest quarter's share of the updates and its accuracy on CIFAR-10, by clock and policy."""
    rows = []
    for method, clock in (one for one in settings("cifar10") if one[1] != "equal"):
        found = [records("cifar10", method, policy, clock) for policy in POLICIES]
        cells = [_percent([line["quarters"]["updates"][0] for line in lines]) for lines in found]
        cells += [_percent([line["quarters"]["accuracy"][0] for line in lines]) for lines in found]
        rows.append([NAMES[method], clock, *cells])
    heads = [f"{title}, {what}" for what in ("updates", "accuracy") for title in POLICIES.values()]
    return _table(["method", "clock", *heads], rows)


def costs() -> str:
    """Returns how many runs there are, and their core-hours, in a sentence; and what is missing."""
    lines = _runs()
    every = [
        grid.run_name(*program.setting(clock), seed)
        for program in grid.PROGRAMS
        for clock in grid.CLOCKS
        for seed in grid.SEEDS
    ]
    made = [lines[name] for name in every if name in lines]
    hours = sum(line["processor_seconds"] for line in made) / 3600
    left = len(every) - len(made)
    missing = f" {left} runs are missing: the same command makes them." if left else ""
    return f"{len(made)} runs took {hours:.1f} core-hours.{missing}"


def rates() -> str:
    """Returns the accuracy of each method with each learning rate that was tried; the best one is bold."""
    tried, rows = grid.read(grid.RESULTS / f"{command.RATES}.jsonl"), []
    every = sorted({rate for on in grid.FEDERATIONS for rate in on.tried})
    for on in grid.FEDERATIONS:
        for method in NAMES:
            found = {
                setting.options["learning_rate"]: tried[name]["curve"][-1][2]
                for ((setting, seed),) in command.rate_settings(on).values()
                if setting.method == method and (name := grid.run_name(*setting, seed)) in tried
            }
            cells = [f"{100 * found[rate]:.1f}" if rate in found else MISSING for rate in every]
            rows.append(
                [on.title, NAMES[method]]
                + [f"**{cell}**" if rate == on.rates[method] else cell for rate, cell in zip(every, cells, strict=True)]
            )
    return _table(["federation", "method", *(f"{rate:g}" for rate in every)], rows)


@functools.cache
def _runs() -> dict[str, dict[str, Any]]:
    """Returns the records of all runs."""
    return grid.read(grid.RESULTS / f"{command.RUNS}.jsonl")


def _percent(values: Sequence[float] | np.ndarray) -> str:
    """Returns mean and standard deviation over the seeds, in percent.

    >>> _percent([0.5, 0.52])
    '51.0 ± 1.4'
    """
    return _spread([100 * value for value in values])


def _spread(values: Sequence[float]) -> str:
    """Returns mean and standard deviation.

    >>> _spread([30.0, 32.0])
    '31.0 ± 1.4'
    """
    return f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}"


def _until(lines: Records, goal: float) -> str:
    """Returns the simulated seconds until an accuracy, or how many seeds have reached it.

    >>> curves = [{"curve": [[2, 1.0, 0.5, 0.1], [4, 2.0, accuracy, 0.1]]} for accuracy in (0.8, 0.6)]
    >>> _until(curves, 0.5), _until(curves, 0.7), _until(curves, 0.9)
    ('1.0 ± 0.0', '1 of 2', 'never')
    """
    first = [next((point[1] for point in line["curve"] if point[2] >= goal), None) for line in lines]
    reached = [time for time in first if time is not None]
    if len(reached) == len(first):
        return _spread(reached)
    return f"{len(reached)} of {len(first)}" if reached else "never"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])
