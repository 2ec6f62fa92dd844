"""Tables that are made from results and stand in the README and in pages, between two comments."""

import functools
import re
from pathlib import Path

from docs import lessons
from docs.generate import (
    accelerators,
    advice,
    clock,
    examples,
    leaderboard,
    methods,
    networks,
    papers,
    protocols,
    reliability,
    results,
    speed,
    wire,
)
from experiments.clock import grid
from experiments.leaderboard.federations import FEDERATIONS
from jaxfl.bench import AXES

ROOT = Path(__file__).parents[2]
TABLES = {
    "automatic threshold": results.automatic,
    **{f"clock accuracy {on.name}": functools.partial(clock.accuracies, on.name) for on in grid.FEDERATIONS},
    **{f"clock seconds {on.name}": functools.partial(clock.seconds, on.name) for on in grid.FEDERATIONS},
    "clock costs": clock.costs,
    "clock rates": clock.rates,
    "clock shares": clock.shares,
    "clock slow": clock.slow,
    "clock slow quarter": clock.slow_quarter,
    "commands": speed.commands,
    "cpu": speed.cpu,
    "cpu machine": speed.cpu_machine,
    "five results": papers.five_rows,
    "h100": accelerators.h100,
    "h100 scaling": accelerators.h100_scaling,
    "h100 seeds": accelerators.h100_seeds,
    "h200 rounds": accelerators.h200_rounds,
    "h200 seeds": accelerators.h200_seeds,
    "held": speed.held,
    "kernels": accelerators.kernels,
    "language clusters": examples.language_clusters,
    "language methods": examples.language_methods,
    "lecturer clusters": examples.lecturer_clusters,
    "lecturer methods": examples.lecturer_methods,
    "leaderboard advice": advice.advice,
    "leaderboard edges": leaderboard.edges,
    "leaderboard given": leaderboard.given,
    "leaderboard loss": advice.loss,
    "leaderboard ranks": leaderboard.differences,
    "leaderboard setting": leaderboard.setting,
    "leaderboard state": leaderboard.state,
    "leaderboard unknown": leaderboard.unknown,
    "leaderboard winners": leaderboard.winners,
    "leaderboard withheld": leaderboard.withheld,
    **{f"leaderboard {on.name}": functools.partial(leaderboard.cells, on.name) for on in FEDERATIONS},
    **{f"lesson {name}": functools.partial(lessons.table, name) for name in lessons.COMMANDS},
    "machine": accelerators.machine,
    "membership": wire.membership,
    "membership references": wire.references,
    "memory": speed.memory,
    "methods": methods.by_kind,
    "more": speed.more,
    "models on the host": speed.models_on_the_host,
    "models on the host in words": speed.models_on_the_host_in_words,
    "networks": networks.table,
    "newcomers": methods.newcomers,
    "policies": methods.policies,
    "protocols hours": protocols.hours,
    **{f"protocols {family}": functools.partial(protocols.table, family) for family in protocols.families()},
    "reliability": reliability.counts,
    "server sees": methods.exposure,
    "scaling machine": speed.scaling_machine,
    "sweeps": speed.sweeps,
    "table 1": papers.table_1,
    "vmap": speed.vmap,
    "wire attacks": wire.robustness,
    "wire compression": wire.bandwidth,
    "wire privacy": wire.privacy_cost,
    "wire speed": wire.costs,
    **{f"scaling {over}": functools.partial(speed.scaling, over) for over in AXES},
}
PLACE = re.compile(r"(<!-- made: (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def documents() -> list[Path]:
    """Returns the documents that may have such tables."""
    experiments = [results.EXPERIMENTS / name / "README.md" for name in results.experiments()]
    cells = results.EXPERIMENTS / "leaderboard" / "results" / "README.md"
    return [ROOT / "README.md", *sorted((ROOT / "docs" / "pages").rglob("*.md")), *experiments, cells]


def renewed(text: str) -> str:
    """Returns a document with its tables made anew."""
    return PLACE.sub(lambda found: f"{found[1]}\n{made(found[2])}\n\n{found[4]}", text)


def made(place: str) -> str:
    """Returns the table of a place: one of `TABLES`, or of an experiment, see `papers`."""
    return papers.table(place) if papers.BETWEEN in place else TABLES[place]()
