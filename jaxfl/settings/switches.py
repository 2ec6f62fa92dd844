"""Options that count with some values of another option alone, such as those of an attack."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from jaxfl.data.conditions import BACKDOORS, UNSCALED


class Switch(NamedTuple):
    """Options that are refused while others are off.

    Attributes:
        by: the options that switch them on, each by itself.
        off: the value of these that is off, as text.
        options: that are refused with it.
    """

    by: tuple[str, ...]
    off: str
    options: tuple[str, ...]


DRIFT_OPTIONS = (
    "drift_change",
    "drift_share",
    "drift_parts",
    "drift_swaps",
    "drift_matrix",
    "drift_rows",
    "drift_test",
)
ROUNDS = ("deadline", "late", "min_reports")  # of synchronous rounds with a clock
ASYNCHRONOUS = ("asynchronous", "buffer", "staleness", "mixing", "max_staleness", "cluster_buffer")
DRIFT_ROUNDS = ("drift_round", "drift_rounds", "drift_every")
SWITCHES = (
    Switch(("attack",), "none", ("attackers", "attack_scale", "attack_target")),
    Switch(("drift",), "none", DRIFT_OPTIONS),
    Switch(DRIFT_ROUNDS, "none", ("drift", *DRIFT_OPTIONS)),
    *(Switch((*DRIFT_ROUNDS, f"{name}_rounds"), "none", (name,)) for name in ("arrive", "leave")),
    *(Switch((name,), "none", (f"{name}_rounds",)) for name in ("arrive", "leave")),
    Switch(("schedule",), "constant", ("schedule_rounds", "schedule_factor")),
    Switch(("finetune",), "none", ("finetune_batch_size", "finetune_pull", "finetune_layers")),
    Switch(("noise", "epsilon"), "none", ("delta", "denominator", "floor", "accounting")),
    Switch(("compress",), "none", ("error_feedback",)),
    Switch(("clock",), "none", ("clock_sigma", "clock_by", "over_select", *ROUNDS, *ASYNCHRONOUS)),
    Switch(("deadline",), "none", ("late", "min_reports")),
    Switch(("asynchronous",), "none", ASYNCHRONOUS[1:]),
    Switch(("edges",), "none", ("edge_rounds", "edge_up", "edge_down")),
    Switch(("clock",), "none", ("edge_up", "edge_down")),
)


def attack_options(kind: str) -> tuple[str, ...]:
    """Returns the options that not all attacks have, of one of them."""
    scale = () if kind in (*UNSCALED, "none") else ("attack_scale",)
    return (*scale, "attack_target") if kind in BACKDOORS else scale


def availability_options(pattern: str) -> tuple[str, ...]:
    """Returns the options that not all patterns of availability have, of one of them."""
    return ("availability_period",) if pattern == "diurnal" else ()


def clock_options(profile: str) -> tuple[str, ...]:
    """Returns the options that not all clocks have, of one of them."""
    return {"lognormal": ("clock_sigma",), "tiers": ("clock_by",)}.get(profile, ())


def asynchronous_options(kind: str) -> tuple[str, ...]:
    """Returns the options that not all rules of asynchronous aggregation have, of one of them."""
    return {"fedbuff": ("cluster_buffer",), "fedasync": ("mixing",)}.get(kind, ())


# What is chosen by name: all options that some choices have, and those of one.
CHOICES: dict[str, tuple[tuple[str, ...], Callable[[str], tuple[str, ...]]]] = {
    "attack": (("attack_scale", "attack_target"), attack_options),
    "availability": (("availability_period",), availability_options),
    "clock": (("clock_sigma", "clock_by"), clock_options),
    "asynchronous": (("cluster_buffer", "mixing"), asynchronous_options),
}


def unused_options(values: Mapping[str, Any]) -> Collection[str]:
    """Returns the options that do not count in a setting, whatever their values.

    Args:
        values: of its options by name; None is none.

    >>> sorted(unused_options({"attack": None, "finetune": 1, "noise": None, "epsilon": 8.0}))
    ['attack_scale', 'attack_target', 'attackers']
    >>> sorted(unused_options({"attack": "sign-flip", "availability": "random"}))
    ['attack_target', 'availability_period']
    """
    texts = {name: "none" if value is None else value for name, value in values.items()}
    unused = {
        option
        for switch in SWITCHES
        if all(texts.get(name) == switch.off for name in switch.by)
        for option in switch.options
    }
    for choice, (options, having) in CHOICES.items():
        if choice in texts:
            unused |= set(options) - set(having(texts[choice]))
    return unused
