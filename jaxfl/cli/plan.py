"""`jaxfl plan`: the memory that a run needs, and the seconds per round."""

from collections.abc import Sequence

from jaxfl.cli.run import parse_seeds, rounds_and_cohort
from jaxfl.cli.tables.console import progress_message, stderr
from jaxfl.data.clients import FederatedData
from jaxfl.data.drift import given_rounds
from jaxfl.jobs import job
from jaxfl.settings import options
from jaxfl.simulation.footprint import Footprint, footprint

TIMED_ROUNDS = 3


def plan(
    method: str,
    data: str,
    items: Sequence[str],
    *,
    data_dir: str | None,
    cohort: str | None,
    seeds: str | None,
    time: bool,
) -> None:
    """Prints the memory that a run needs.

    Args:
        method: its name, or `FILE.py:FACTORY`.
        data: name of a data set.
        items: options, `key=value`.
        data_dir: folder with the files of the data.
        cohort: a share or a count, as text; None takes the default of the data.
        seeds: as `jaxfl run` takes them; None plans a single run.
        time: whether to train three rounds and print the median seconds of one.

    Raises:
        ValueError: an argument is not allowed.
    """
    settings = options.route(method, data, items)
    rounds, share = rounds_and_cohort(data, None, cohort)
    num_seeds = 1 if seeds is None else len(parse_seeds(seeds))
    planned = job.Job(settings, max(rounds, 1 + max(given_rounds(settings.data), default=0)), share)
    job.check(planned)
    console = stderr()
    with progress_message(console, f"loading {data}"):
        federation = options.load(settings, data_dir=data_dir)
    with progress_message(console, f"compiling {method} for {federation.num_clients} clients"):
        tools = job.Tools.of(planned, federation)
        needed = _footprint(planned, federation, tools, num_seeds)
    print(needed)
    if time:
        with progress_message(console, f"training {TIMED_ROUNDS} rounds"):
            short = planned._replace(rounds=TIMED_ROUNDS, eval_every=1)
            summary = job.execute(short, federation.at(0), tools=tools).summary  # before the drift, if there is one
        after = f"after {summary['compile_seconds']:.1f} s of compilation"
        print(f"{'a round':<10} {summary['seconds_per_round']:>12.3g} s     median of {TIMED_ROUNDS}, {after}")


def footprint_of(one: job.Job, tools: list[job.Tools]) -> Footprint:
    """Returns the memory that a job needs; `tools` gets its tools, as `run_jobs` takes them."""
    federation = options.load(one.settings, data_dir=one.data_dir, seed=one.seed)
    tools[:] = [job.Tools.of(one, federation, *tools)]
    return _footprint(one, federation, tools[0])


def _footprint(one: job.Job, federation: FederatedData, tools: job.Tools, seeds: int = 1) -> Footprint:
    """Returns the memory that a job needs on a federation."""
    run = one.settings.run
    return footprint(
        tools.method,
        federation,
        cohort=one.cohort,
        sampler=tools.sampler,
        plan=options.plan(one.settings),
        devices=run.get("devices"),
        resident=run.get("resident", "auto"),
        seeds=seeds,
    )
