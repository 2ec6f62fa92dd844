"""Sick clients: rows of NaN, infinity or 1e30 at three clients of ten must change nothing for the others.

    python -m experiments.reliability.poison --count 1000 --out experiments/reliability/results/poison.jsonl
    python -m experiments.reliability.poison --first 17 --count 1

A case is a run, and the same run without the sick clients: same ids, same cohorts, same batches, but they have no rows,
which is how a federation says that a client has nothing to send. Clients train one at a time, so what is compared is
compared bit for bit: the models that the others are served, their losses and accuracies, the mean training loss. Their
clusters must be the same but for their names: what nobody can learn from may get a cluster of its own, as in StoCFL.
The sick must be counted, once for each time that they took part, and be served finite models.

Methods take turns, each in a setting at random (see `settings`), in which nobody is left in doubt about clients who
have sent nothing. `CASES` cases in turn share one, and so the compiled programs; they differ in who is sick and how.
Case i of a seed is always the same.
"""

import collections
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxfl
from experiments.reliability.campaign import ended_by_interrupt, parser, until
from experiments.reliability.settings import CLIENTS, Setting, setting
from experiments.speed import measure
from jaxfl import tree
from jaxfl.data.clients import FederatedData
from jaxfl.methods import METHODS
from jaxfl.testing.compare import assert_equal, assert_finite, assert_same_partition

SICK, ROUNDS = 3, 4
CASES = 6  # that share a method and its programs
KINDS = {"nan": np.nan, "inf": np.inf, "1e30": 1e30}


class Outcome(NamedTuple):
    """What came of a case.

    Attributes:
        index: of the case.
        setting: in words.
        sick: who, and how.
        what: `same` or `nothing finite`, as it must be; or what is wrong.
    """

    index: int
    setting: str
    sick: str
    what: str

    @property
    def is_finding(self) -> bool:
        """Returns whether this must not be."""
        return self.what not in ("same", "nothing finite")


def sickened(data: FederatedData, ids: Sequence[int], kind: str, rows: str) -> FederatedData:
    """Returns the federation in which some clients have rows that nothing can be learned from.

    A row of 1e30 may well be classified right, and then it teaches nothing at all and harms nobody. So all rows are of
    that size, of both signs, and the labels differ: some are classified wrong by any model.

    Args:
        data: the federation.
        ids: of the clients.
        kind: of `KINDS`.
        rows: `"one"` or `"all"`; always all of 1e30.
    """
    inputs, labels = np.array(data.inputs), np.array(data.labels)
    for client in ids:
        start, size = int(data.train.start[client]), int(data.train.size[client])
        own = np.asarray(data.train.rows)[start : start + size]
        if kind == "1e30":
            inputs[own] = KINDS[kind] * np.where(np.arange(size) % 2, -1, 1)[:, None]
            labels[own] = np.arange(size) // 2 % 3
        else:
            inputs[own[:1] if rows == "one" else own] = KINDS[kind]
    return replace(data, inputs=inputs, labels=labels)


def absent(data: FederatedData, ids: Sequence[int]) -> FederatedData:
    """Returns the federation in which some clients have no training rows."""
    size = np.array(data.train.size)
    size[list(ids)] = 0
    return replace(data, train=replace(data.train, size=size))


class Come(NamedTuple):
    """What a run has come to; the state alone if it was stopped because nothing finite was sent any more."""

    state: Any
    result: jaxfl.Result | None


def come(one: Setting, data: FederatedData, seed: int) -> Come:
    """Makes a run."""
    options: dict[str, Any] = {"rounds": ROUNDS, "cohort": one.cohort, "sampler": one.sampler, "seed": seed}
    try:
        result = jaxfl.run(one.made, data, eval_every=ROUNDS, plan=jaxfl.Plan(1), **options)
    except jaxfl.Diverged as stopped:
        return Come(stopped.state, None)
    return Come(result.state, result)


def compare(one: Setting, with_sick: Come, without: Come, ids: Sequence[int]) -> None:
    """Raises AssertionError if the runs differ for the others, or the sick were not counted or are served nonsense."""
    sick, others = jnp.array(ids), np.setdiff1d(np.arange(CLIENTS), ids)
    served, wanted = (one.made.client_params(state, jnp.arange(CLIENTS)) for state, _ in (with_sick, without))
    left, right = (tree.take(models, jnp.asarray(others)) for models in (served, wanted))
    assert_equal(left, right, "what the others are served")
    assert_finite(tree.take(served, sick), "what the sick are served must be finite")
    found, wanted = (np.asarray(state.cluster)[others] for state, _ in (with_sick, without))
    assert_same_partition(found, wanted, "the clusters of the others")
    if with_sick.result is None or without.result is None:
        return
    left, right = with_sick.result, without.result
    sent = left.summary["updates"] - right.summary["updates"]
    assert left.summary["diverged"] == sent, f"{sent} updates are sick, counted {left.summary['diverged']}"
    assert right.summary["diverged"] == 0, f"nobody is sick, counted {right.summary['diverged']}"
    assert left.history[-1]["train_loss"] == right.history[-1]["train_loss"], "the mean training loss"
    for name in ("accuracy", "loss"):
        a, b = ({name: getattr(result.evaluation, name)[others]} for result in (left, right))
        assert_equal(a, b, "the evaluation of the others")


def run(one: Setting, seed: int, index: int) -> Outcome:
    """Makes both runs of a case, and compares them."""
    draw = random.Random(f"{seed} {index} sick")
    attacks = np.zeros(CLIENTS, bool) if one.data.attack is None else np.asarray(one.data.attack.attacker)
    able = np.flatnonzero((np.asarray(one.data.train.size) > 3) & ~attacks)  # an attacker's noise is finite
    ids = sorted(draw.sample(able.tolist(), SICK))
    kind, rows, run_seed = list(KINDS)[index % len(KINDS)], draw.choice(("one", "all")), draw.randrange(100)
    told = f"clients {ids}, {kind} in {'all' if kind == '1e30' else rows}, seed {run_seed}"
    try:
        with_sick = come(one, sickened(one.data, ids, kind, rows), run_seed)
        without = come(one, absent(one.data, ids), run_seed)
        compare(one, with_sick, without, ids)
    except Exception as wrong:
        return Outcome(index, str(one), told, f"{type(wrong).__name__}: {wrong}")
    compared = with_sick.result is not None and without.result is not None
    return Outcome(index, str(one), told, "same" if compared else "nothing finite")


def campaign(seed: int, first: int, count: int, names: Sequence[str], more: Callable[[], bool]) -> Iterator[Outcome]:
    """Yields what came of each case.

    Args:
        seed: of the campaign.
        first: index of the first case.
        count: cases.
        names: of the methods, which take turns.
        more: whether there is time for another one.
    """
    made: tuple[int, Setting] | None = None
    for index in range(first, first + count):
        if not more():
            return
        group = index // CASES
        if made is None or made[0] != group:
            if made is not None:
                jax.clear_caches()  # of the group before
            made = group, setting(seed, group, names[group % len(names)])
        yield run(made[1], seed, index)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the campaign, prints what it found, and returns 1 if that is anything."""
    options = parser(__doc__)
    options.add_argument("--count", type=int, default=1000, help="cases")
    options.add_argument("--first", type=int, default=0, help="index of the first one")
    options.add_argument("--methods", default=",".join(METHODS), help="comma-separated; all if not given")
    given = options.parse_args(arguments)
    methods: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    names, findings = given.methods.split(","), []
    warnings.simplefilter("ignore")  # of rounds in which slots double
    with ended_by_interrupt():
        for outcome in campaign(given.seed, given.first, given.count, names, until(given.minutes)):
            name = outcome.setting.split()[0]
            methods[name]["findings" if outcome.is_finding else outcome.what] += 1
            if outcome.is_finding:
                findings.append(outcome._asdict())
                print(f"{outcome.index}: {outcome.setting}; {outcome.sick}\n  {outcome.what}", flush=True)
    cases = sum(sum(counts.values()) for counts in methods.values())
    record = {"campaign": "poison", "seed": given.seed, "first": given.first, "cases": cases}
    measure.write({**record, "methods": methods, "findings": findings}, given.out)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
