"""Accuracy at an epsilon of client-level differential privacy: one model, four models, and one that is fine-tuned.

    python -m experiments.wire.privacy

keeps every run in `results/privacy.jsonl`; a run that is there is not made again. A quarter of the clients sees the
digits under each of four rotations. Each client has 14 rows, drawn with the others' put back, so that there can be as
many clients as are wanted.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import optax

import jaxfl
from experiments.wire.grid import Setting, command, record
from jaxfl.data.clients import Split
from jaxfl.random import host_rng

ROWS, ROUNDS, SHARE, CLIP = 14, 40, 0.2, 0.5
CLIENTS = (400, 4000)
EPSILONS = (None, 8.0, 4.0, 2.0, 1.0)  # None: neither clip nor noise
METHODS: dict[str, dict[str, Any]] = {"fedavg": {}, "ifca": {"num_clusters": 4}, "fedavg_ft": {}}
SETTINGS = [
    Setting(method, {"clients": clients, "epsilon": epsilon})
    for clients in CLIENTS
    for method in METHODS
    for epsilon in EPSILONS
]


def federation(clients: int, seed: int) -> jaxfl.data.FederatedData:
    """Returns a federation of many clients from few images."""
    groups = jaxfl.data.load("rotated-digits", num_clients=4, seed=seed)
    group, rng = np.repeat(np.arange(4), clients // 4), host_rng(seed, "privacy")
    start, size = np.asarray(groups.train.start), np.asarray(groups.train.size)
    own = [np.asarray(groups.train.rows)[start[one] : start[one] + size[one]] for one in range(4)]
    parts = [rng.choice(own[one], ROWS, replace=False) for one in group]
    return replace(groups.subset(group), train=Split.pack(parts))


def run(setting: Setting, seed: int) -> dict[str, Any]:
    """Returns what is kept of a run."""
    clients, epsilon = setting.options["clients"], setting.options["epsilon"]
    data = federation(clients, seed)
    task = jaxfl.classification(jaxfl.models.MLP(hidden=(64,), num_classes=10), data)
    factory, options = getattr(jaxfl.methods, setting.method), METHODS[setting.method]
    method = factory(task, optax.sgd(0.1), local_epochs=5, batch_size=10, weighting="uniform", **options)
    if epsilon is not None:
        method = jaxfl.wired(method, privacy=jaxfl.Privacy(clip=CLIP, epsilon=epsilon))
    return record(jaxfl.run(method, data, rounds=ROUNDS, cohort=SHARE, seed=seed, eval_every=10))


if __name__ == "__main__":
    command(__doc__, "privacy", SETTINGS, run)
