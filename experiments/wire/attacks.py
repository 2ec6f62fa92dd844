"""Aggregators against attackers: FedAvg, IFCA, StoCFL and Ditto, one in five clients attacks.

    python -m experiments.wire.attacks

keeps every run in `results/attacks.jsonl`; a run that is there is not made again.
"""

from typing import Any

from experiments.wire.grid import DATA, TRAINING, Setting, command

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "ifca": {"num_clusters": 4},
    "ditto": {},
    "stocfl": {"threshold": 0.5},
}
AGGREGATORS = ("mean", "median", "trimmed:0.3", "multikrum:0.3", "geomedian")
ATTACKS: dict[str, dict[str, Any]] = {
    "none": {},
    "sign-flip": {"attack": "sign-flip", "attackers": 0.2, "attack_scale": 4.0},
    "alie": {"attack": "alie", "attackers": 0.2},
    "ipm": {"attack": "ipm", "attackers": 0.2, "attack_scale": 10.0},
}
COMMON = {**DATA, **TRAINING, "rounds": 20, "cohort": 0.5, "eval_every": 5}
SETTINGS = [
    Setting(method, {**COMMON, **options, **attack, **({} if aggregator == "mean" else {"aggregator": aggregator})})
    for method, options in METHODS.items()
    for attack in ATTACKS.values()
    for aggregator in AGGREGATORS
]

if __name__ == "__main__":
    command(__doc__, "attacks", SETTINGS)
