"""Declarations of the server's view of clients, in sums alone or one by one: `@server_sees(Seen(...))` of a factory.

A sum of several clients tells little of any of them, and less with noise on it; secure aggregation shows the server
nothing else. Many clustered methods need more: their server compares clients. The levels, from least to most:

    nothing           clients send nothing
    sums              sums of the clients' contributions, by cluster
    numbers           also a few numbers of each client, such as its losses
    representations   also a vector that represents each client, such as a sketch of its update
    updates           also the model or the update of each client
    data              also statistics of each client's data

That a client takes part, and its number of rows, is known to every server here. `Info` is for experimenters: it is not
counted. `jaxfl.testing` checks a declaration, see `check_server_sees`.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar, get_args

from jaxfl.schema import function_options, is_known

ServerSees = Literal["nothing", "sums", "numbers", "representations", "updates", "data", "unknown"]
LEVELS = get_args(ServerSees)
P = ParamSpec("P")
M = TypeVar("M")


class Seen(NamedTuple):
    """The view that the server of a method has of its clients.

    Attributes:
        level: the most that it is sent, before the rounds or in them; `"unknown"` if that is not declared.
        rounds: what it is sent in the rounds, as a phrase.
        before: what it is sent before the first round, as a phrase; empty if nothing.
        options: the options' values with which this is so; none for all others. Inside a trace the number of an option
            that is `Traceable` is not known, and such a view does not count.
    """

    level: ServerSees
    rounds: str
    before: str = ""
    options: Mapping[str, Any] = {}

    @property
    def sentence(self) -> str:
        """Returns the view as a sentence.

        >>> Seen("data", "a sum of models", before="a sketch of each client's inputs").sentence
        "The server sees data: a sketch of each client's inputs before the first round; a sum of models in the rounds."
        """
        if self.level in ("nothing", "unknown"):
            return "The server sees nothing." if self.level == "nothing" else "The method does not declare server_sees."
        before = f"{self.before} before the first round; " if self.before else ""
        return f"The server sees {self.level}: {before}{self.rounds} in the rounds."


def server_sees(
    *seen: Seen, presets: Mapping[str, Mapping[str, Any]] | None = None
) -> Callable[[Callable[P, M]], Callable[P, M]]:
    """Returns a decorator of factories: their methods have the level in `Method.server_sees`, unless they have one.

    Args:
        *seen: what the server is sent; with the default options first. The last one whose options are given counts.
        presets: of the factory, see `Row.presets`.

    >>> @server_sees(Seen("sums", "the sum of the models"), Seen("updates", "all models", options={"chain": True}))
    ... def factory(*, chain: bool = False):
    ...     from jaxfl.methods.base import Method
    ...     return Method(*[None] * 4)
    >>> factory().server_sees, factory(chain=True).server_sees
    ('sums', 'updates')
    """

    def decorate(factory: Callable[P, M]) -> Callable[P, M]:
        @functools.wraps(factory)
        def make(*args: P.args, **options: P.kwargs) -> M:
            method: Any = factory(*args, **options)
            level = seen_with(make, options).level
            return method._replace(server_sees=level) if method.server_sees is None else method

        vars(make).update(seen=seen, seen_presets=presets or {})
        return make

    return decorate


def seen_with(factory: Callable[..., Any], options: Mapping[str, Any]) -> Seen:
    """Returns what the server of a factory's method with these options is sent; its level is unknown if not declared.

    >>> from jaxfl.methods import ifca
    >>> seen_with(ifca, {}).level, seen_with(ifca, {"start": "kmeans++"}).before
    ('sums', 'the models of K single clients, and the losses of all')
    """
    declared: tuple[Seen, ...] = getattr(factory, "seen", ())
    given = given_options(factory, options, getattr(factory, "seen_presets", {}))
    known = {name: value for name, value in given.items() if is_known(value)}
    fitting = [one for one in declared if one.options.items() <= known.items()]
    return fitting[-1] if fitting else Seen("unknown", "")


def given_options(
    factory: Callable[..., Any], options: Mapping[str, Any], presets: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns all options of a factory that have a value: a given one, the default, or that of the preset.

    Args:
        factory: of a method.
        options: the given ones.
        presets: of the factory, see `Row.presets`.

    >>> from jaxfl.methods import fedem
    >>> given_options(fedem, {"num_clusters": 2}, {"paper": {"mean_over": "cohort"}})["mean_over"]
    'cohort'
    """
    values = {name: option.default for name, option in function_options(factory).items()} | dict(options)
    given = {name: value for name, value in values.items() if value is not None}
    return {**presets.get(given.get("preset", ""), {}), **given}
