"""Three of ten clients have NaN, infinities or numbers of 1e30 as data: what do the others notice?

    python -m experiments.reliability.poison --out experiments/reliability/results/poison.jsonl
    python -m experiments.reliability.poison --methods cfl --values nan

Every method makes six rounds with everybody, one client at a time, and is compared with the same run in which the three
have no rows, and with the one in which they never take part. What the other seven are served is `the same` (bit for
bit), `close` (but for rounding) or `other`, with the largest difference of a parameter.

A finding is what is worse than `EXPECTED` says. NaN and infinities make an update that is not finite: it is left out and
counted. 1e30 may leave a finite update, which an average cannot tell from others: no promise is made of it but that
nothing is raised.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxfl
from experiments.speed import measure
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.data.synthetic import clustered_linear
from jaxfl.methods import METHODS
from jaxfl.testing.compare import ABSOLUTE, RELATIVE, leaves
from jaxfl.testing.small import linear_task

CLIENTS, SICK, ROUNDS = 10, (1, 4, 7), 6
VALUES = {"nan": np.nan, "inf": np.inf, "1e30": 1e30}
HEALTHY = [client for client in range(CLIENTS) if client not in SICK]
DATA = clustered_linear(CLIENTS, rows=12, features=4)
GRADES = ("the same", "close", "other")
EXPECTED: dict[str, str] = {}


def poisoned(value: float) -> FederatedData:
    """Returns the data with a value in place of every number of the sick clients' training rows."""
    inputs = np.array(DATA.inputs)
    for client in SICK:
        start, size = DATA.train.start[client], DATA.train.size[client]
        inputs[DATA.train.rows[start : start + size]] = value
    return replace(DATA, inputs=inputs)


def without_rows() -> FederatedData:
    """Returns the data in which the sick clients have no training rows."""
    size = np.array(DATA.train.size)
    size[list(SICK)] = 0
    return replace(DATA, train=replace(DATA.train, size=size))


def absent(key: Any, round: Any, data: FederatedData, size: int, plan: jaxfl.Plan = jaxfl.Plan()) -> Cohort:
    """Samples everybody but the sick clients: a sampler."""
    return Cohort(jnp.arange(CLIENTS), ~jnp.isin(jnp.arange(CLIENTS), jnp.array(SICK)), plan)


def served(name: str, data: FederatedData, **options: Any) -> tuple[dict[str, np.ndarray], jaxfl.Result]:
    """Returns the models that the healthy clients are served after a run, and the run."""
    row = METHODS[name]
    chosen = {"local_epochs": 2, "batch_size": 4, **row.small}
    method = row.factory(linear_task(), optax.sgd(0.1), **{key: chosen[key] for key in chosen if key in row.options})
    result = jaxfl.run(method, data, rounds=ROUNDS, eval_every=ROUNDS, plan=jaxfl.Plan(1), **options)
    state = method.assign(jax.random.key(0), result.state, result.data, Cohort.of(range(CLIENTS)))
    return leaves(method.client_params(state, jnp.array(HEALTHY))), result


def grade(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> tuple[str, float]:
    """Returns how alike models are, and the largest difference of a parameter; NaN where one is not finite.

    >>> grade({"w": np.ones(2)}, {"w": np.ones(2)}), grade({"w": np.ones(2)}, {"w": np.zeros(2)})
    (('the same', 0.0), ('other', 1.0))
    """
    with np.errstate(all="ignore"):
        largest = max(float(np.abs(one[name] - other[name]).max()) for name in one)
    if all(one[name].tobytes() == other[name].tobytes() for name in one):
        return GRADES[0], largest
    return GRADES[1 if all(np.allclose(one[name], other[name], RELATIVE, ABSOLUTE) for name in one) else 2], largest


def check(name: str, values: Sequence[str]) -> dict[str, Any]:
    """Returns what the healthy clients of a method notice, by value."""
    lacking, _ = served(name, without_rows())
    away, _ = served(name, DATA, sampler=absent)
    found = {}
    for value in values:
        models, result = served(name, poisoned(VALUES[value]))
        pairs = {"without rows": grade(models, lacking), "absent": grade(models, away)}
        healthy = result.evaluation.accuracy[HEALTHY]
        found[value] = {
            **{words: {"grade": grade, "largest": largest} for words, (grade, largest) in pairs.items()},
            "diverged": result.summary["diverged"],
            "accuracy_of_the_others": float(np.mean(healthy)),
            "finite": all(np.isfinite(model).all() for model in models.values()),
        }
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the campaign, prints what it found, and returns 1 if that is worse than expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(METHODS), help="comma-separated; all if not given")
    parser.add_argument("--values", default=",".join(VALUES), help="comma-separated")
    parser.add_argument("--out", type=Path, help="file that gets the JSON line appended")
    given = parser.parse_args(arguments)
    results, findings = {}, []
    for name in given.methods.split(","):
        results[name] = check(name, given.values.split(","))
        for value, found in results[name].items():
            print(
                f"{name:<11} {value:<5} without rows: {found['without rows']['grade']:<9} absent: {found['absent']['grade']:<9}"
                f" {found['without rows']['largest']:.2g} {found['absent']['largest']:.2g} diverged {found['diverged']} {found['accuracy_of_the_others']:.2f} {found['finite']}",
                flush=True,
            )
    measure.write(
        {"campaign": "poison", "sick": len(SICK), "clients": CLIENTS, "methods": results, "findings": findings},
        given.out,
    )
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
