"""The wire of a run by options, such as `--set compress=topk:0.01+qsgd:8 --set clip=1.0 --set aggregator=median`."""

from collections.abc import Callable, Mapping
from typing import Any

from jaxfl.data.conditions import ATTACK_KINDS, CANARY, COLLUDING
from jaxfl.schema import Option, check_name, quoted
from jaxfl.server.aggregators import NormBound
from jaxfl.settings import methods
from jaxfl.wire import (
    Aggregator,
    Privacy,
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
from jaxfl.wire.privacy import Accounting, Denominator

PRIVACY_OPTIONS = ("clip", "noise", "epsilon", "delta", "denominator", "floor", "accounting")
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
    Option(
        "noise",
        None,
        float | None,
        "client-level differential privacy: standard deviation of the noise on every sum, as a multiple of the clip; "
        "see jaxfl.Privacy",
        traceable=True,
    ),
    Option("epsilon", None, float | None, "of the whole run; finds the noise for it", traceable=True),
    Option("delta", None, float | None, "of the guarantee; none is 1 / N^1.1 for N clients", traceable=True),
    Option(
        "denominator",
        "auto",
        Denominator,
        "what noisy sums are divided by: noisy counts of clients, a fixed number, or auto: noisy for several clusters",
    ),
    Option("floor", 1.0, float, "least noisy count that a sum is divided by"),
    Option(
        "accounting",
        "poisson",
        Accounting,
        "poisson draws each client by itself; poisson-assumed keeps cohorts of a fixed size, which is no guarantee",
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
    if run.get("clip") is not None and not is_private(run):
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


def is_private(run: Mapping[str, Any]) -> bool:
    """Returns whether a run has noise, or an epsilon that its noise is found for."""
    return run.get("noise") is not None or run.get("epsilon") is not None


def privacy(run: Mapping[str, Any]) -> Privacy | None:
    """Returns the privacy of a run's options; None without noise.

    Args:
        run: the options that are given; where a run has found the noise of an epsilon, with both.

    Raises:
        ValueError: a number is out of range, or one is given without noise.

    >>> privacy({"clip": 1.0}), privacy({"clip": 1.0, "noise": 1.1}).noise
    (None, 1.1)
    """
    if is_private(run):
        numbers = {name: run[name] for name in PRIVACY_OPTIONS if name in run}
        numbers |= {} if run.get("noise") is None else {"epsilon": None}
        return Privacy(**{"clip": None, **numbers})  # pyright: ignore[reportArgumentType] which says what is missing
    for name in PRIVACY_OPTIONS[3:]:
        default = next(option.default for option in OPTIONS if option.name == name)
        if run.get(name, default) != default:
            raise ValueError(f"{name} needs noise, got {run[name]} without it; add --set noise=1.0 or epsilon=8.")
    return None


def check_takes_noise(method: str, given: Mapping[str, Any], run: Mapping[str, Any]) -> None:
    """Raises ValueError if a run has noise that its method, or another option, does not take.

    Args:
        method: a name.
        given: the options of the method that are given.
        run: the options of the run that are given.
    """
    if not is_private(run):
        return
    name = "noise" if run.get("noise") is not None else "epsilon"
    if run.get("clip") is None:
        raise ValueError(f"{name} needs a clip, which bounds what a client adds, got {run[name]}; add --set clip=1.0.")
    if run.get("noise") is not None and run.get("epsilon") is not None:
        raise ValueError(
            f"epsilon must be none where noise is given, got {run['epsilon']} and noise={run['noise']}; leave one out."
        )
    seen = methods.row(method).seen(given)
    if seen.level == "unknown":
        raise ValueError(
            f"{name} must be none with {method}, got {run[name]}: it does not declare what its server sees; decorate "
            'it with jaxfl.methods.exposure.server_sees(Seen("sums", ...)) if that is so.'
        )
    if seen.level != "sums":
        told = f"{seen.before} before the first round" if seen.before else seen.rounds
        raise ValueError(
            f"{name} must be none with {_with_options(method, seen.options)}, got {run[name]}: its server sees "
            f"{told}, which noise on sums does not cover; take ifca, or fedavg."
        )
    if given.get("weighting", "uniform") != "uniform":
        raise ValueError(
            f"weighting must be uniform with noise, got {given['weighting']}: the weight of a client would not be "
            "bounded; leave it out."
        )
    for option, default, reason in (
        ("aggregator", "mean", "what a client can change in it is not bounded by the clip"),
        ("error_feedback", False, "the memory is of earlier rounds, in which a client was not counted"),
        ("min_sum", 1, "which sums are dropped would tell the numbers of clients"),
        ("availability", "always", "clients that come and go are not drawn with the same probability"),
    ):
        if run.get(option, default) != default:
            raise ValueError(
                f"{option} must be {default} with noise, got {run[option]}: {reason}; leave one of them out."
            )
    if run.get("accounting") == "poisson-assumed" and run.get("sampler") == "poisson":
        raise ValueError("sampler must be uniform with accounting=poisson-assumed, got poisson; leave accounting out.")


def _with_options(method: str, options: Mapping[str, Any]) -> str:
    """Returns a method with options, as a phrase."""
    return " ".join([method, *(f"{name}={value}" for name, value in options.items())])


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
