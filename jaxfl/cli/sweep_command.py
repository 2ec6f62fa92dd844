"""What `jaxfl sweep` does: methods, options and seeds on the same clients. What is done is not made again."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxfl.cli import grid
from jaxfl.cli.compare_command import tell
from jaxfl.cli.run_command import defaults, run_jobs, seeds_of
from jaxfl.cli.run_page import PAGE
from jaxfl.cli.tables.console import stderr
from jaxfl.jobs import job, seeds
from jaxfl.schema import REQUIRED, Option
from jaxfl.settings import options
from jaxfl.simulation.directory import RunDirectory


def sweep(
    what: str,
    given: dict[str, Any],
    items: Sequence[str],
    data_dir: str | None,
    out: Path,
    quiet: bool,
    html: bool = False,
) -> bool:
    """Makes the runs of a sweep that are missing, and prints the comparison; returns whether all are done then.

    Args:
        what: methods, or a TOML file.
        given: what else is asked for; it wins over the file.
        items: `key=value,value`.
        data_dir: where the data's files lie.
        out: gets a folder for each setting.
        quiet: whether to say nothing on the way.
        html: whether a page of all runs is written into `out`, and one of each run into its folder.

    Raises:
        ValueError: something is missing, or not possible.
    """
    asked, wanted = grid.from_file(Path(what)) if what.endswith(".toml") else ({"methods": what}, {})
    settings = _settings(asked | given, grid.over(wanted, grid.values_of(items)), data_dir, out)
    for jobs in settings.values():
        seeds.check(jobs)
    complete, refused = [], []
    for name, jobs in settings.items():
        try:
            complete.append(_make(name, jobs, quiet, html))
        except ValueError as error:  # what is refused takes none of the others with it
            refused.append(error)
            stderr().print(f"{name}: error: {error}", highlight=False, markup=False)
    if refused and not complete:
        raise refused[0]
    if made := [_folder(jobs) for jobs in settings.values() if any(one.done() for one in jobs)]:
        tell(made, html=out / PAGE if html else None)
        if html and not quiet:
            print(f"page: {out / PAGE}")
    return all(complete) and not refused


def _folder(jobs: Sequence[job.Job]) -> Path:
    """Returns the folder of a setting."""
    assert jobs[0].out is not None
    return jobs[0].out.parent


def _settings(asked: dict[str, Any], wanted: grid.Values, data_dir: str | None, out: Path) -> dict[str, list[job.Job]]:
    """Returns the runs of every setting, by the name of its folder.

    Raises:
        ValueError: something is missing, or not possible.
    """
    for name, remedy in {"methods": 'methods = ["fedavg", "ifca"]', "data": "--data rotated-digits"}.items():
        if name not in asked:
            raise ValueError(f"{name} must be given; write {remedy}.")
    numbers = {
        name: options.convert(name, asked[name], Option(name, REQUIRED, int)) if name in asked else None
        for name in ("rounds", "eval_every")
    }
    rounds, share = defaults(asked["data"], numbers["rounds"], asked.get("cohort"))
    found, names = {}, {}
    points = grid.points(asked["methods"].split(","), wanted)
    own = {point.name for point in points}
    others = [path for path in sorted(out.glob("*/seed-*")) if path.parent.name not in own]
    for point in points:
        settings = options.route(point.method, asked["data"], point.items)
        every = numbers["eval_every"]
        first = job.Job(settings, rounds, share, data_dir=data_dir, eval_every=every)
        folder = None if _is_of(out / point.name, first) else _kept(others, first)
        folder = out / point.name if folder is None else folder
        runs = [first._replace(seed=seed, out=folder / f"seed-{seed}") for seed in seeds_of(asked.get("seeds", "0"))]
        first_name = names.setdefault(json.dumps(settings.complete(), sort_keys=True), point.name)
        if first_name != point.name or point.name in found:
            raise ValueError(f"values must differ, got {first_name!r} and {point.name!r}; leave one out.")
        found[point.name] = [one._replace(resume=True) for one in runs]  # the same command goes on with what was begun
    return found


def _is_of(folder: Path, asked: job.Job) -> bool:
    """Returns whether a folder has runs of a setting."""
    return _kept(sorted(folder.glob("seed-*")), asked) is not None


def _kept(others: Sequence[Path], asked: job.Job) -> Path | None:
    """Returns the folder that has runs of a setting under another name: of a sweep that varied something else.

    Args:
        others: folders of runs that are of no setting of this sweep by their name.
        asked: a run of the setting.
    """
    for path in others:
        seed = path.name.removeprefix("seed-")
        directory = RunDirectory(path)
        if seed.isdecimal() and directory.config() is not None:
            wanted = asked._replace(seed=int(seed), out=path, resume=True)
            if not directory.is_of_another(wanted.config()):
                return path.parent
    return None


def _make(name: str, jobs: Sequence[job.Job], quiet: bool, html: bool) -> bool:
    """Makes the runs of a setting that are missing; returns whether all of them are done then.

    Args:
        name: of the setting.
        jobs: of each seed, checked.
        quiet: whether to say nothing on the way.
        html: whether a page is written of each run that is made.
    """
    missing, console = [one for one in jobs if one.done() is None], stderr(quiet=quiet)
    said = f"{len(missing)} of {len(jobs)} runs to make" if missing else "done"
    kept = (one.evaluated() for one in jobs if one.done() is not None)
    other = [every for every in kept if every is not None and every != jobs[0].eval_every]
    if jobs[0].eval_every is not None and other:
        said += f"; what is there was evaluated every {min(other)} rounds, in another --out it is evaluated anew"
    console.print(f"{name}: {said}", highlight=False, markup=False)
    for begun in (True, False):  # those that were begun are ended first
        if some := [one for one in missing if one.begun() is begun]:
            run_jobs(some, several=True, quiet=quiet, html=html)
    summaries = [summary for one in jobs if (summary := one.done()) is not None]
    folder = _folder(jobs)
    if summaries and (missing or RunDirectory(folder).summary() is None):  # it may have been killed before it wrote it
        seeds.across(seeds.with_others(jobs, summaries), folder)
    return len(summaries) == len(jobs)
