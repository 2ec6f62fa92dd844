"""What is asked of runs, before any of them begins: what they share, and what each has of its own."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxfl.cohort import Plan
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Method
from jaxfl.sampling import Sampler
from jaxfl.simulation.evaluation.finetune import FineTune
from jaxfl.simulation.records.directory import RunDirectory
from jaxfl.simulation.result import Callback
from jaxfl.simulation.schedule import Schedule


class Asked(NamedTuple):
    """What runs were asked for that differ in their seed, and maybe in the data that were made with it."""

    method: Method
    shapes: Any  # of the method's first state
    schedule: Schedule
    size: int  # clients of a cohort
    sampler: Sampler
    finetune: FineTune | None
    callbacks: Sequence[Callback]
    began: float  # when, by `time.perf_counter`
    stream: bool  # whether rows of data stay on the host
    kept: bool  # whether the state's rows of the clients do
    inside: Plan  # of one of several seeds in a program
    several: bool  # whether several seeds were asked for


class One(NamedTuple):
    """What the run of one seed is, beside it."""

    seed: int
    data: FederatedData  # without the clients' names, which no program is told
    client_names: tuple[str, ...]
    tested: np.ndarray | None  # who is tested; None is everybody
    directory: RunDirectory | None
    identity: dict[str, Any]
