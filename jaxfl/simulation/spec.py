"""Run specifications: everything that defines runs before they start."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxfl.clock.policies import Policy
from jaxfl.data.clients import FederatedData, array_fields, get_field, replace_field
from jaxfl.sampling import Sampler, cohort_size
from jaxfl.schema import MAKERS
from jaxfl.simulation.accounting import RunPrivacy
from jaxfl.simulation.evaluation.finetune import FineTune
from jaxfl.simulation.evaluation.test_sets import NO_TEST_SETS, TestSets
from jaxfl.simulation.prepared import Prepared
from jaxfl.simulation.program import shapes_of
from jaxfl.simulation.records.directory import RunDirectory
from jaxfl.simulation.result import Callback
from jaxfl.simulation.schedule import Schedule


class SeedSpec(NamedTuple):
    """The part of a run spec that differs from seed to seed."""

    seed: int
    data: FederatedData  # without the clients' names, which no program takes
    client_names: tuple[str, ...]
    sample: np.ndarray | None  # [M] the evaluation sample; None is all clients
    directory: RunDirectory | None  # None keeps nothing on disk
    identity: dict[str, Any]  # what the numbers depend on, see `identity_of`
    test_sets: TestSets = NO_TEST_SETS  # of all clients, see `make_test_sets`


class RunSpec(NamedTuple):
    """Everything that defines the runs of one or several seeds before they start.

    Attributes:
        prepared: the method, its plan, and where data and state are.
        cohort: clients of a round; of Poisson sampling, which has more places for them, the expected number.
        seeds: the part that belongs to each seed; their data have the same shapes.
        schedule: the rounds, and after which of them the runs are evaluated and saved.
        sampler: draws the cohorts.
        finetune: how clients train before they are tested a second time; None tests them once.
        callbacks: called with every `Event`.
        resume: whether runs that are in the directories go on.
        several: whether several seeds were given, even if there is one of them.
        began: when the runs were started, by `time.perf_counter`.
        privacy: of a method with noise; None of others.
        policy: of a run with a clock; None without one.
    """

    prepared: Prepared
    cohort: int
    seeds: Sequence[SeedSpec]
    schedule: Schedule
    sampler: Sampler
    finetune: FineTune | None
    callbacks: Sequence[Callback]
    resume: bool
    several: bool
    began: float
    privacy: RunPrivacy | None = None
    policy: Policy | None = None


def federation_per_seed(data: FederatedData | Sequence[FederatedData], seeds: int) -> list[FederatedData]:
    """Returns the federation of each seed; arrays that are equal are the same object.

    Raises:
        TypeError: `data` is neither a federation nor a list of them.
        ValueError: there are not as many as seeds, or shapes, clients that take part or rounds of a drift differ.
    """
    if isinstance(data, FederatedData):
        return [data] * seeds
    if not (isinstance(data, Sequence) and all(isinstance(one, FederatedData) for one in data)):
        raise TypeError(
            f"data must be a FederatedData, or a list of one for each seed, got a {type(data).__name__}; "
            f"{MAKERS['FederatedData']}."
        )
    if len({one.drift_rounds for one in data}) > 1:
        raise ValueError(
            "data must drift at the same rounds for every seed, got different rounds; run them one by one."
        )
    if len(data) != seeds:
        raise ValueError(f"data must be one federation, or one for each of {seeds} seeds, got {len(data)}.")
    if (shared := share_equal_arrays(data)) is None:
        raise ValueError(
            f"data must have the same shapes for every seed, got {_shape_difference(data)}; run the seeds one by one: "
            "jaxfl.run(method, data[i], seed=seeds[i])."
        )
    return shared


def _shape_difference(data: Sequence[FederatedData]) -> str:
    """Returns a phrase with what differs between federations that have no program in common."""
    counts = [cohort_size(1.0, one) for one in data]
    if len(set(counts)) > 1:
        return f"{' and '.join(map(str, dict.fromkeys(counts)))} clients that take part"
    fields = [{name: get_field(one, name) for name, _ in array_fields(one)} for one in data]
    for name in fields[0] | fields[-1]:
        shapes = [list(np.shape(one[name])) if one.get(name) is not None else "none" for one in fields]
        if any(shape != shapes[0] for shape in shapes):
            drawn = "" if data[0].drift is None else ", where a gradual drift adds as many rows as each seed draws"
            return f"{name} {' and '.join(dict.fromkeys(map(str, shapes)))}{drawn}"
    return "other names, classes or types"


def share_equal_arrays(data: Sequence[FederatedData]) -> list[FederatedData] | None:
    """Returns federations whose equal arrays are the same object; None where shapes differ, or how many take part.

    Raises:
        ValueError: in one of them no client that takes part has training rows.

    >>> from jaxfl.data import synthetic
    >>> data = synthetic.clustered_linear(4), synthetic.clustered_linear(4)
    >>> first, second = share_equal_arrays(data)
    >>> first.inputs is second.inputs, share_equal_arrays([*data, synthetic.clustered_linear(3)])
    (True, None)
    """
    first, *others = data
    if len({cohort_size(1.0, one) for one in data}) > 1:  # a share of the clients would be another number of them
        return None
    if any(other is not first and shapes_of(other.in_programs()) != shapes_of(first.in_programs()) for other in others):
        return None

    def shared(known: Any, leaf: Any) -> Any:
        return known if leaf is known or np.array_equal(leaf, known) else leaf

    bare = first.in_programs()
    found = (jax.tree.map(shared, bare, other.in_programs()) for other in others)
    return [
        first,
        *(replace_field(one, "client_names", of.client_names) for one, of in zip(found, others, strict=True)),
    ]
