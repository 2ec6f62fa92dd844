"""Bytes until a method has nine tenths of its best accuracy, with updates that are sent in four codes.

    python -m experiments.wire.compression

keeps every run in `results/compression.jsonl`; a run that is there is not made again.
"""

from experiments.wire.grid import DATA, TRAINING, Setting, command

METHODS = {
    "fedavg": {},
    "fedprox": {},
    "ifca": {"num_clusters": 4},
    "fesem": {"num_clusters": 4},
    "ditto": {},
    "stocfl": {"threshold": 0.5},
}
CODES = ("none", "topk:0.01", "qsgd:4", "sign")
COMMON = {**DATA, **TRAINING, "rounds": 40, "cohort": 0.5, "eval_every": 2}
SETTINGS = [
    Setting(method, {**COMMON, **options, **({} if code == "none" else {"compress": code})})
    for method, options in METHODS.items()
    for code in CODES
]

if __name__ == "__main__":
    command(__doc__, "compression", SETTINGS)
