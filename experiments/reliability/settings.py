"""Methods with options and wires at random, on a small federation under conditions at random, for `poison`.

In a cohort of all or of some, with clients that fail, are late, attack or are held out. Two kinds of methods know of
clients who have sent nothing, and there runs with and without such clients can be compared only if nobody is left in
doubt. CFL and its kin split a cluster when all of its members were heard; SCAFFOLD, FedDyn and FedEM with
`mean_over="everybody"` have a mean over all clients: there all take part in every round. With FeSEM's
`loss_weighting="rows"` and FedDyn's `pull="rows"` all rows that there are weigh: there all clients have as many.
SCAFFOLD and FedDyn have no noise: from noisy sums their server does not know of how many clients a sum is.
"""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import numpy as np
import optax

import jaxfl
from experiments.reliability import wires
from jaxfl import sampling, schema
from jaxfl.data import conditions, synthetic
from jaxfl.data.clients import FederatedData
from jaxfl.methods import METHODS, Method
from jaxfl.testing.small import linear_task

CLIENTS = 10
CONDITIONS = ("stragglers", "dropouts", "availability", "attackers", "held out")
EVERYBODY = ("cfl", "layercfl", "adacfl", "scaffold", "feddyn")  # see above
BY_ROWS = ("loss_weighting", "pull")
ATTACKS = tuple(kind for kind in get_args(conditions.AttackKind) if kind != conditions.CANARY)
COUNTING, NOISE = ("scaffold", "feddyn"), {"noise", "epsilon"}
OPTIONS: dict[str, tuple[Any, ...]] = {  # beside those that take a few words
    "batch_size": (None, 4),
    "local_epochs": (1, 2),
    "first_epochs": (1, 2),
    "personal_epochs": (None, 1),
    "warmup_rounds": (0, 1, 2),
    "server_optimizer": (None, jaxfl.server.fedadam(0.1)),
    "proximal_weight": (0.0, 0.1),
    "iterative": (False, True),
    "outliers": (0.0, 0.25),
    "trim": (0.0, 0.3, 0.5),
    "num_clusters": (2, 3),
    "threshold": (0.1, 0.5, "auto"),
    "representation_epochs": (1, 2),
    "normalise": (None, False),
    "relative": (None, True),
    "slots": (2, 8),
    "sketch_size": (None, 8),
}


class Setting(NamedTuple):
    """What the cases of a group have in common.

    Attributes:
        method: its name.
        options: of the method.
        network: its name.
        cohort: clients of a round.
        conditions: of the clients.
        wire: options of the wire, if there is one.
        made: the method, on its wire.
        data: nobody is sick.
        sampler: draws the cohorts.
    """

    method: str
    options: dict[str, Any]
    network: str
    cohort: int
    conditions: list[str]
    wire: Mapping[str, str]
    made: Method
    data: FederatedData
    sampler: sampling.Sampler

    def __str__(self) -> str:
        """Returns a line."""
        options = {name: value for name, value in self.options.items() if name != "server_optimizer"}
        options |= {"server_optimizer": "fedadam"} if self.options.get("server_optimizer") else {}
        words = " ".join([*self.conditions, *wires.items(self.wire)]) or "plain"
        return f"{self.method} {options}, {self.network}, cohort {self.cohort}, {words}"


def setting(seed: int, group: int, name: str) -> Setting:
    """Returns the setting of a group of cases, drawn until the method takes it."""
    draw = random.Random(f"{seed} {group}")
    while (found := _drawn(draw, name)) is None:
        pass
    return found


def _drawn(draw: random.Random, name: str) -> Setting | None:
    """Returns a setting of a method; None if it does not go together."""
    data = synthetic.clustered_linear(CLIENTS, 2, 12, 4, 3, seed=draw.randrange(100), ragged=draw.random() < 0.5)
    known = [word for word in CONDITIONS if name not in EVERYBODY or word not in ("dropouts", "availability")]
    chosen = draw.sample(known, draw.choice([0, 0, 1, 2]))
    sampler = sampling.uniform
    if "held out" in chosen:
        data = replace(data, held_out=np.isin(np.arange(CLIENTS), draw.sample(range(CLIENTS), 2)))
    if "attackers" in chosen:
        data = conditions.attack(data, draw.choice(ATTACKS), 0.2, seed=draw.randrange(100))
    if "stragglers" in chosen:
        data = conditions.straggle(data, 0.5)
    if "availability" in chosen:
        sampler = sampling.availability("random")
    if "dropouts" in chosen:
        sampler = sampling.dropouts(0.3, sampler)
    network = draw.choice(("logistic", "mlp"))
    task = linear_task()
    if network == "mlp":
        task = jaxfl.classification(jaxfl.models.MLP(hidden=(8,), num_classes=3), data)
    options, wire = _options(draw, name), wires.wire(draw)
    rule = METHODS[name].presets.get(options.get("preset", ""), {}) | options
    of_all = rule.get("mean_over") == "everybody"
    most = CLIENTS if data.held_out is None else CLIENTS - int(data.held_out.sum())
    some = most if of_all or name in EVERYBODY else draw.choice((5, most))
    if of_all and not {"dropouts", "availability"}.isdisjoint(chosen):
        return None
    if any(rule.get(key) == "rows" for key in BY_ROWS) and np.ptp(data.train.size):
        return None
    if name in COUNTING and not NOISE.isdisjoint(wire):
        return None
    try:
        made = wires.with_wire(METHODS[name].factory(task, optax.sgd(0.3), **options), wire)
        wires.check_accepted(made, data, some)
    except (ValueError, TypeError):  # options that do not go together
        return None
    return Setting(name, options, network, some, chosen, wire, made, data, sampler)


def _options(draw: random.Random, name: str) -> dict[str, Any]:
    """Returns options of a method: its small ones, and some at random."""
    row = METHODS[name]
    options = {"local_epochs": 2, "batch_size": 4, **row.small}
    for option in schema.function_options(row.factory).values():
        values = schema.literal_values(option.hint) or OPTIONS.get(option.name, ())
        if values and draw.random() < 0.4:
            options[option.name] = draw.choice(values)
    return {key: value for key, value in options.items() if key in row.options}
