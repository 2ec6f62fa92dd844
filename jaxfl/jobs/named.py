"""Runs that are begun by names, in Python as on the command line."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxfl.jobs import job as jobs
from jaxfl.schema import check_type
from jaxfl.settings import options
from jaxfl.simulation.result import Callback, Result


def run_named(
    method: str,
    data: str,
    *,
    rounds: int,
    cohort: int | float,
    seed: int = 0,
    out: str | os.PathLike | None = None,
    resume: bool = False,
    data_dir: str | os.PathLike | None = None,
    eval_every: int | None = None,
    checkpoint_every: int | None = None,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Result:
    """Runs what names say, as `jaxfl run` does, and keeps what it keeps: either goes on with the other's runs.

    Args:
        method: a method's name, or `FILE.py:NAME`.
        data: a data set's name.
        rounds: communication rounds in all.
        cohort: clients of a round: a share (float in (0, 1]) or a count (int).
        seed: of the data, the initial models, the cohorts and the batches.
        out: the folder, which gets all that `jaxfl run --out` writes; None keeps nothing.
        resume: go on with the run that is in the folder.
        data_dir: where the data's files lie.
        eval_every: rounds between evaluations; None is a tenth of all, rounded down, or 1.
        checkpoint_every: rounds between checkpoints; None saves after every evaluation.
        callbacks: called with every `Event`.
        **settings: what `--set` takes: `model="mlp"`, `num_clusters=4`.

    Raises:
        ValueError: a name, an option or a number is not possible, or the folder holds another run.
        Diverged: clients send nothing finite any more.
    """
    if out == "":
        raise ValueError('out must be a folder, got ""; "." is the current one, None keeps nothing.')
    settings = {name: _plain(value) for name, value in settings.items()}
    rounds, cohort, seed, eval_every, checkpoint_every = map(
        _plain, (rounds, cohort, seed, eval_every, checkpoint_every)
    )
    check_type("rounds", rounds, int)
    check_type("cohort", cohort, int | float)
    job = jobs.Job(
        options.route(method, data, **settings),
        rounds,
        cohort,
        seed,
        None if data_dir is None else str(data_dir),
        eval_every,
        checkpoint_every,
        None if out is None else Path(out),
        resume,
    )
    jobs.check(job)
    return jobs.execute(job, options.load(job.settings, data_dir=job.data_dir, seed=seed), callbacks)


def _plain(value: Any) -> Any:
    """Returns one of NumPy's numbers or texts as Python's, which JSON can say."""
    return value.item() if isinstance(value, np.generic) else value
