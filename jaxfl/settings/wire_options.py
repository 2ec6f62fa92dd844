"""The wire of a run by options, such as `--set compress=topk:0.01+qsgd:8 --set clip=1.0`."""

from collections.abc import Callable, Mapping
from typing import Any

from jaxfl.schema import Option, check_name, quoted
from jaxfl.settings import methods
from jaxfl.wire import Transform, bfloat16, chain, clip, qsgd, random_k, sign, top_k

# A link by name, the type of its number, and an example of the number; None where it has no number.
LINKS: dict[str, tuple[Callable[..., Transform], type | None, str]] = {
    "topk": (top_k, float, "0.01"),
    "randk": (random_k, float, "0.01"),
    "sign": (sign, None, ""),
    "qsgd": (qsgd, int, "8"),
    "bfloat16": (bfloat16, None, ""),
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
        "clip",
        None,
        float | None,
        "largest norm of a client's update, after its code; longer ones are shortened to it, none leaves them",
        traceable=True,
    ),
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
    links = [] if text == "none" else [_link(part.strip(), text) for part in text.split("+")]
    if run.get("clip") is not None:
        links.append(clip(run["clip"]))
    return chain(*links) if links else None


def check_takes_wire(method: str, run: Mapping[str, Any]) -> None:
    """Raises ValueError if a method that takes no wire is given options of one."""
    reason = methods.row(method).no_wire
    for option in OPTIONS if reason else ():
        if (value := run.get(option.name, option.default)) != option.default:
            default = "none" if option.default is None else option.default
            raise ValueError(
                f"{option.name} must be {default} with {method}, got {quoted(value)}: {reason}; leave it out, or take "
                "another method."
            )


def _link(part: str, text: str) -> Transform:
    """Returns the link of a part of `compress`."""
    name, colon, number = part.partition(":")
    check_name("link of compress", name, LINKS)
    make, kind, example = LINKS[name]
    if kind is None:
        if colon:
            raise ValueError(f"compress must have no number for {name}, got {quoted(text)}; write {name}.")
        return make()
    try:
        value = kind(number)
    except ValueError:
        noun = "a whole number" if kind is int else "a number"
        raise ValueError(f"compress must have {noun} for {name}, got {quoted(text)}; write {name}:{example}.") from None
    return make(value)
