"""Bytes until a method has nine tenths of its best accuracy, with updates in four codes, and with error feedback.

`qsgd:4` alone is refused with error feedback: of a message of 4,810 numbers the memory would grow without end.

    python -m experiments.wire.compression

keeps every run in `results/compression.jsonl`; a run that is there is not made again.
"""

from typing import Any

from experiments.wire.grid import DATA, TRAINING, Setting, command

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox": {},
    "ifca": {"num_clusters": 4},
    "fesem": {"num_clusters": 4},
    "ditto": {},
    "stocfl": {"threshold": 0.5},
}
FED_BACK = ("topk:0.01", "sign", "topk:0.01+qsgd:8")
CODES: dict[str, dict[str, Any]] = {
    "none": {},
    **{code: {"compress": code} for code in ("topk:0.01", "qsgd:4", "sign", "topk:0.01+qsgd:8")},
    **{f"{code}, fed back": {"compress": code, "error_feedback": True} for code in FED_BACK},
}
COMMON = {**DATA, **TRAINING, "rounds": 40, "cohort": 0.5, "eval_every": 2}
SETTINGS = [
    Setting(method, {**COMMON, **options, **code})
    for codes in (list(CODES.values())[:5], list(CODES.values())[5:])  # at first without error feedback
    for method, options in METHODS.items()
    for code in codes
]

if __name__ == "__main__":
    command(__doc__, "compression", SETTINGS)
