"""The wire of a run by options, such as `--set compress=topk:0.01+qsgd:8 --set clip=1.0 --set aggregator=median`."""

from collections.abc import Callable, Mapping
from typing import Any

from jaxfl.data.conditions import ATTACK_KINDS, CANARY, COLLUDING
from jaxfl.schema import Option, check_name, quoted
from jaxfl.server.aggregators import NormBound
from jaxfl.settings import methods
from jaxfl.wire import (
    Aggregator,
    Transform,
    bfloat16,
    centred_clip,
    chain,
    clip,
    geometric_median,
    krum,
    median,
    multi_krum,
    norm_bound,
    qsgd,
    random_k,
    sign,
    top_k,
    trimmed_mean,
)

# Links and aggregators by name, the type of their number, and an example; None where there is no number.
Choices = dict[str, tuple[Callable[..., Any], type | None, str]]
LINKS: Choices = {
    "topk": (top_k, float, "0.01"),
    "randk": (random_k, float, "0.01"),
    "sign": (sign, None, ""),
    "qsgd": (qsgd, int, "8"),
    "bfloat16": (bfloat16, None, ""),
}
AGGREGATORS: Choices = {
    "median": (median, None, ""),
    "trimmed": (trimmed_mean, float, "0.2"),
    "krum": (krum, float, "0.2"),
    "multikrum": (multi_krum, float, "0.2"),
    "geomedian": (geometric_median, None, ""),
    "cclip": (centred_clip, float, "1.0"),
    "norm": (norm_bound, float, "1.0"),
}

OPTIONS = (
    Option(
        "compress",
        "none",
        str,
        "code of the clients' updates: topk:SHARE, randk:SHARE, sign, qsgd:BITS or bfloat16, several joined by +, see "
        "jaxfl.wire; bytes_up counts it",
    ),
    Option(
        "error_feedback",
        False,
        bool,
        "whether each client adds what its code has left out to its next update; takes as much memory for each client "
        "as an update",
    ),
    Option(
        "clip",
        None,
        float | None,
        "largest norm of a client's update, after its code; longer ones are shortened to it, none leaves them",
        traceable=True,
    ),
    Option(
        "aggregator",
        "mean",
        str,
        "robust aggregator of updates, by cluster: median, trimmed:SHARE, krum:SHARE, multikrum:SHARE, geomedian, "
        "cclip:RADIUS or norm:RADIUS, see jaxfl.wire; mean is the method's own",
    ),
    Option("min_sum", 1, int, "sums of fewer clients are dropped, as secure aggregation does; 1 drops none"),
)


def channel(run: Mapping[str, Any]) -> Transform | None:
    """Returns the channel of a run's options, the clip last: what is added to the server's sums is never longer.

    Args:
        run: the options that are given.

    Raises:
        ValueError: a link is unknown, or its number is out of range.

    >>> channel({}), channel({"compress": "none"})
    (None, None)
    >>> channel({"compress": "topk:2"})
    Traceback (most recent call last):
    ValueError: topk must keep a share of the entries above 0 and at most 1, got 2.0; topk:0.01 keeps one in hundred.
    """
    text = run.get("compress", "none")
    links = [] if text == "none" else [_choose("compress", part.strip(), LINKS) for part in text.split("+")]
    if run.get("clip") is not None:
        links.append(clip(run["clip"]))
    return chain(*links) if links else None


def error_feedback(run: Mapping[str, Any]) -> bool:
    """Returns whether errors of a run's code are fed back.

    Args:
        run: the options that are given.

    Raises:
        ValueError: they are to be, and there is no code.
    """
    given = run.get("error_feedback", False)
    if given and run.get("compress", "none") == "none":
        raise ValueError(
            "error_feedback must be false without compress, got true: nothing is left out; add compress=topk:0.01."
        )
    return given


def aggregator(run: Mapping[str, Any]) -> Aggregator | NormBound | None:
    """Returns the robust aggregator of a run's options; None for the method's own mean.

    Args:
        run: the options that are given.

    Raises:
        ValueError: it is unknown, or its number is out of range.
    """
    text = run.get("aggregator", "mean")
    return None if text == "mean" else _choose("aggregator", text, AGGREGATORS)


def check_takes_wire(method: str, run: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Raises ValueError if a method that takes no wire is given options of one, or a federation that needs one.

    Args:
        method: a name.
        run: the options of the run that are given.
        data: the options of the data that are given.
    """
    reason = methods.row(method).no_wire
    need_wire = (*COLLUDING, CANARY)
    if reason and data.get("attack") in need_wire:
        others = ", ".join(kind for kind in ATTACK_KINDS if kind not in need_wire)
        raise ValueError(
            f"attack must be one of {others} with {method}, got {data['attack']}, which needs a wire: {reason}."
        )
    for option in OPTIONS if reason else ():
        if (value := run.get(option.name, option.default)) != option.default:
            default = "none" if option.default is None else option.default
            raise ValueError(
                f"{option.name} must be {default} with {method}, got {quoted(value)}: {reason}; leave it out, or take "
                "another method."
            )


def _choose(option: str, text: str, choices: Choices) -> Any:
    """Returns the link or aggregator that a text names, such as `topk:0.01`."""
    name, colon, number = text.partition(":")
    check_name(option, name, choices)
    make, kind, example = choices[name]
    if kind is None:
        if colon:
            raise ValueError(f"{option} must have no number for {name}, got {quoted(text)}; write {name}.")
        return make()
    try:
        value = kind(number)
    except ValueError:
        noun = "a whole number" if kind is int else "a number"
        raise ValueError(f"{option} must have {noun} for {name}, got {quoted(text)}; write {name}:{example}.") from None
    return make(value)
