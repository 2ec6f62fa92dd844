"""What `jaxfl bench w1` to `w8` do: the scripts of `experiments/speed`, which come with a clone of the repository."""

import json
import shlex
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jaxfl
from jaxfl.cli import experiments, page, tables
from jaxfl.cli.bench_command import PAGE, RECORD, numbers
from jaxfl.cli.experiments import WORKS
from jaxfl.cli.tables.console import saying, stderr, stdout, write
from jaxfl.files import write_text
from jaxfl.plots.gaps import bars
from jaxfl.schema import check_name

PICTURE = "bench.png"


def bench_works(
    names: Sequence[str],
    *,
    clients: str | None,
    rounds: int | None,
    chunk: int | None,
    peers: str | None,
    environments: Path | None,
    out: Path | None,
    clone: Path | None,
) -> bool:
    """Runs workloads, prints their tables, and writes the folder; returns whether none failed.

    Raises:
        ValueError: a name or a number is not possible.
        FileNotFoundError: there are no experiments.
    """
    for name in names:
        check_name("workload", name, WORKS)
    given = [] if clients is None else ["--clients", *map(str, numbers(clients, "clients"))]
    for option, value in {"rounds": rounds, "chunk": chunk}.items():
        if value is not None and value < 1:
            raise ValueError(f"{option} must be at least 1, got {value}.")
        given += [] if value is None else [f"--{option}", str(value)]
    given += [] if peers is None else ["--peers", peers]
    kit = experiments.module("speed.bench", clone)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    made = []
    for place, name in enumerate(dict.fromkeys(names), 1):
        beside = [] if peers == "none" else kit.peers_of(name, environments)
        with saying(stderr(), f"{place}/{len(set(names))} {name}, {_beside(beside)}: {WORKS[name]}"):
            made.append(kit.run(name, given, environments))
        write(stdout(), f"{made[-1].text}\n")
        if made[-1].error:
            stderr().print(f"error: {made[-1].error}", style="red", soft_wrap=True, markup=False)
    if out is not None:
        words = ["jaxfl", "bench", *names, *given, *(["--environments", str(environments)] if environments else [])]
        save(made, shlex.join(words), out)
        print(f"written: {out / PAGE} and {out / RECORD}")
    return not any(one.error for one in made)


def save(made: Sequence[Any], command: str, out: Path) -> None:
    """Writes the records, a picture where there are peers, and the page.

    Args:
        made: of `experiments.speed.bench.run`.
        command: that made it.
        out: the folder.
    """
    said = {"jaxfl": jaxfl.__version__, "made": datetime.now().isoformat(timespec="minutes"), "command": command}
    write_text(out / RECORD, json.dumps({**said, "works": [one._asdict() for one in made]}, indent=1) + "\n")
    blocks: list[page.Block] = [page.Heading(1, "jaxfl's workloads on this machine")]
    machines = [record for one in made for record in one.records]
    if machines:
        versions = ", ".join(f"{name} {version}" for name, version in machines[0]["versions"].items())
        blocks.append(page.Text(f"{tables.device(machines[0])}; jaxfl {said['jaxfl']}, {versions}; {said['made']}."))
    times = ratios(made)
    if any(value is not None for values in times.values() for value in values):
        names = [record["workload"] for one in made for record in one.records if "summary" in record]
        bars(names, times, "times as long as jaxfl", xlabel="", never="not measured").savefig(out / PICTURE, dpi=110)
        blocks.append(page.Picture(PICTURE, "how many times as long the peers take"))
    for one in made:
        blocks += [page.Heading(2, f"{one.name}: {WORKS[one.name]}"), page.Listing(one.text)]
        blocks += [page.Text(f"Failed: {one.error}")] if one.error else []
        blocks += [page.Table(["made by"], [[page.Code(one.command)]])]
    write_text(out / PAGE, page.html("jaxfl's workloads", blocks, out))


def ratios(made: Sequence[Any]) -> dict[str, list[float | None]]:
    """Returns how many times as long every peer takes, a number for each comparison, None where it took no part."""
    found = [record["ratio"] for one in made for record in one.records if "summary" in record]
    names = list(dict.fromkeys(name for ratio in found for name in ratio))
    return {name: [ratio[name]["median"] if name in ratio else None for ratio in found] for name in names}


def _beside(names: Sequence[str]) -> str:
    """Returns who else is measured."""
    return f"jaxfl beside {', '.join(names)}" if names else "jaxfl alone"
