"""Options by name: `key=value` text, routed to the data set, method, model, optimiser or run that knows the key.

>>> settings = route("stocfl", "rotated-digits", ["threshold=0.6", "num_clients=8", "hidden=64", "learning_rate=0.05"])
>>> settings.method, settings.model, settings.optimizer
({'threshold': 0.6}, {'hidden': (64,)}, {'learning_rate': 0.05})
"""

import dataclasses
import difflib
import inspect
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import optax

from jaxfl import data as federations
from jaxfl import sampling
from jaxfl.cli import literals
from jaxfl.cohort import Plan, PlanChoice
from jaxfl.data.clients import FederatedData
from jaxfl.methods import METHODS, Method
from jaxfl.models import networks
from jaxfl.server import optimizers
from jaxfl.simulation.finetune import FineTune
from jaxfl.tasks import classification

OWNERS = ("data", "method", "model", "optimizer", "server", "run")
OPTIMIZERS: dict[str, tuple[Callable[..., optax.GradientTransformation], dict[str, float]]] = {
    "sgd": (optax.sgd, {"learning_rate": 0.1}),
    "momentum": (optax.sgd, {"learning_rate": 0.1, "momentum": 0.9}),
    "adam": (optax.adam, {"learning_rate": 0.001}),
}
# For methods whose factory takes a `server_optimizer`: the papers' defaults, but for rates, which they tune.
SERVERS: dict[str, tuple[Callable[..., optax.GradientTransformation], dict[str, float]]] = {
    "fedavgm": (optax.sgd, {"learning_rate": 1.0, "momentum": 0.9}),
    "fedadam": (optimizers.fedadam, {"learning_rate": 0.01, "b1": 0.9, "b2": 0.99, "tau": 0.001}),
    "fedyogi": (optimizers.fedyogi, {"learning_rate": 0.01, "b1": 0.9, "b2": 0.99, "tau": 0.001}),
}
# Chunk: clients trained side by side, none for all at once. Finetune: epochs before a second test, see
# `jaxfl.FineTune`. The others say who takes part, see `jaxfl.sampling`.
RUN: dict[str, tuple[Any, Any]] = {
    "chunk": ("auto", int | None | typing.Literal["auto"]),
    "dropouts": (0.0, float),
    "availability": ("always", sampling.Pattern),
    "availability_period": (24.0, float),
    "finetune": (None, int | None),
}
# A method's option without a default must be given.
REQUIRED = inspect.Parameter.empty


class Option(NamedTuple):
    """One option that somebody knows."""

    owner: str
    name: str
    default: Any
    hint: Any  # a type, as annotations write it

    def __str__(self) -> str:
        """Returns `name=default`."""
        return f"{self.name}=..." if self.default is REQUIRED else f"{self.name}={self.default}"


class Settings(NamedTuple):
    """What was chosen, by owner; options that were not given are not here."""

    method_name: str
    data_name: str
    model_name: str
    optimizer_name: str
    server_name: str | None  # None where the server takes the average itself
    data: dict[str, Any]
    method: dict[str, Any]
    model: dict[str, Any]
    optimizer: dict[str, Any]
    server: dict[str, Any]
    run: dict[str, Any]

    def complete(self) -> dict[str, Any]:
        """Returns every option with its value, defaults filled in, flat and ready for JSON."""
        flat: dict[str, Any] = {
            "method": self.method_name,
            "data": self.data_name,
            "model": self.model_name,
            "optimizer": self.optimizer_name,
        }
        if "server_optimizer" in METHODS[self.method_name].options:
            flat["server_optimizer"] = self.server_name
        for option in known(self.method_name, self.data_name, self.model_name, self.optimizer_name, self.server_name):
            given = getattr(self, option.owner)
            flat[f"{option.owner}.{option.name}"] = given.get(option.name, option.default)
        return flat


def known(method: str, data: str, model: str, optimizer: str, server: str | None = None) -> list[Option]:
    """Returns all options that apply to this choice of method, data, model and optimisers, with their defaults."""
    factory, owned = METHODS[method].factory, federations.known_options(data)
    suits, suited = federations.dataset(data).model
    fields = {field.name: field for field in dataclasses.fields(networks.MODELS[model])}
    fields = {name: field for name, field in fields.items() if name not in ("parent", "name", "num_classes")}
    hints = {
        "data": {name: option.hint for name, option in owned.items()},
        "method": typing.get_type_hints(factory),
        "model": {name: field.type for name, field in fields.items()},
        "run": {name: hint for name, (_, hint) in RUN.items()},
    }
    defaults = {
        "data": {name: option.default for name, option in owned.items()},
        "method": {name: default for name, default in METHODS[method].options.items() if name != "server_optimizer"},
        "model": {name: field.default for name, field in fields.items()} | (suited if model == suits else {}),
        "optimizer": OPTIMIZERS[optimizer][1],
        "server": SERVERS[server][1] if server else {},
        "run": {name: default for name, (default, _) in RUN.items()},
    }
    return [
        Option(owner, name, default, hints.get(owner, {}).get(name, type(default)))
        for owner in OWNERS
        for name, default in defaults[owner].items()
    ]


def route(method: str, data: str, items: Iterable[str] = ()) -> Settings:
    """Returns the settings of a run from its names and its `key=value` items; nothing is loaded.

    Args:
        method: a key of `jaxfl.methods.METHODS`.
        data: a name of the catalogue.
        items: `key=value`, or `owner.key=value` where two owners know the key; later ones win. `model`,
            `optimizer` and `server_optimizer` choose those; everything else is an option of what was chosen.

    Raises:
        ValueError: a name or an option that nobody knows, an ambiguous one, or a value of the wrong type.
    """
    check_name("method", method, METHODS)
    row = federations.dataset(data)
    texts = dict(map(_split, items))
    model = texts.pop("model", row.model[0])
    check_name("model", model, networks.MODELS)
    optimizer = texts.pop("optimizer", "sgd")
    check_name("optimizer", optimizer, OPTIMIZERS)
    server = _choose_server(method, texts)
    options = known(method, data, model, optimizer, server)
    chosen: dict[str, dict[str, Any]] = {owner: {} for owner in OWNERS}
    for key, text in texts.items():
        option = _find(key, options, f"method {method}, data {data}, model {model}, optimizer {optimizer}")
        chosen[option.owner][option.name] = convert(key, text, option)
    for option in options:
        if option.default is REQUIRED and option.name not in chosen[option.owner]:
            raise ValueError(f"{option.name} must be given for {option.owner} {method}; add --set {option.name}=...")
    return Settings(method, data, model, optimizer, server, **chosen)


def load(settings: Settings, *, data_dir: str | Path | None = None, seed: int = 0) -> FederatedData:
    """Returns the federation that the settings name."""
    return federations.load(settings.data_name, data_dir=data_dir, seed=seed, **settings.data)


def build(settings: Settings, data: FederatedData) -> Method:
    """Returns the method that the settings describe, for a federation."""
    suits, suited = federations.dataset(settings.data_name).model
    options = (suited if settings.model_name == suits else {}) | settings.model
    task = classification(networks.create(settings.model_name, data.num_classes, **options), data)
    chosen = dict(settings.method)
    if settings.server_name:
        make, defaults = SERVERS[settings.server_name]
        chosen["server_optimizer"] = make(**defaults | settings.server)
    return METHODS[settings.method_name].factory(task, optimizer(settings), **chosen)


def plan(settings: Settings) -> PlanChoice:
    """Returns the plan that the settings ask for."""
    chunk = settings.run.get("chunk", "auto")
    if isinstance(chunk, int) and chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}; none takes the whole cohort at once.")
    return "auto" if chunk == "auto" else Plan(chunk=chunk)


def sampler(settings: Settings) -> sampling.Sampler:
    """Returns the sampler that the settings ask for."""
    chosen = {name: settings.run.get(name, default) for name, (default, _) in RUN.items()}
    available = sampling.availability(chosen["availability"], period=chosen["availability_period"])
    return sampling.dropouts(chosen["dropouts"], available)


def finetune(settings: Settings) -> FineTune | None:
    """Returns the fine-tuning that the settings ask for: with the optimiser and batch size of local training.

    Raises:
        ValueError: less than one epoch.
    """
    epochs = settings.run.get("finetune")
    if epochs is None:
        return None
    if epochs < 1:
        raise ValueError(f"finetune must be at least 1 epoch, got {epochs}; none tests the served models alone.")
    local = METHODS[settings.method_name].options | settings.method  # a method without batches takes all rows
    return FineTune(optimizer(settings), epochs, local.get("batch_size"))


def optimizer(settings: Settings) -> optax.GradientTransformation:
    """Returns the clients' optimiser."""
    make, defaults = OPTIMIZERS[settings.optimizer_name]
    return make(**defaults | settings.optimizer)


def convert(key: str, text: str, option: Option) -> Any:
    """Returns the value of an option.

    Raises:
        ValueError: it is not of the option's type.
    """
    fits, value = literals.fit(literals.parse(text), option.hint)
    if not fits:
        default = "" if option.default is REQUIRED else f"; its default is {option.default!r}"
        raise ValueError(f"{key} must be {literals.describe(option.hint)}, got {text!r}{default}.")
    one_of_many = isinstance(option.default, tuple) and not isinstance(value, tuple) and value is not None
    return (value,) if one_of_many else value


def _split(item: str) -> tuple[str, str]:
    """Returns key and value."""
    key, equals, value = item.partition("=")
    if not equals or not key.strip() or not value.strip():
        raise ValueError(f"--set must be key=value, got {item!r}; write --set local_epochs=5.")
    return key.strip(), value.strip()


def _choose_server(method: str, texts: dict[str, str]) -> str | None:
    """Takes `server_optimizer` out of the texts and returns its name, None for plain averaging."""
    name = texts.pop("server_optimizer", "none")
    if literals.parse(name) is None:
        orphan = next((key for key in texts if key.startswith("server.")), None)
        if orphan:
            ways = "|".join(SERVERS)
            raise ValueError(f"{orphan} is an option of a server optimiser; add --set server_optimizer={ways}.")
        return None
    if "server_optimizer" not in METHODS[method].options:
        able = [other for other, row in METHODS.items() if "server_optimizer" in row.options]
        raise ValueError(f"method {method} takes no server_optimizer, got {name!r}; those that do: {', '.join(able)}.")
    check_name("server_optimizer", name, ["none", *SERVERS])
    return name


def _find(key: str, options: list[Option], where: str) -> Option:
    """Returns the option that a key means."""
    owner, dot, name = key.rpartition(".")
    found = [option for option in options if option.name == name and (not dot or option.owner == owner)]
    if len(found) > 1:
        ways = " or ".join(f"{option.owner}.{option.name}" for option in found)
        raise ValueError(f"option {key!r} is ambiguous; write {ways}.")
    if found:
        return found[0]
    names = [option.name for option in options]
    near = difflib.get_close_matches(name, [*names, "model", "optimizer", "server_optimizer"], n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    lists = [
        f"{owner}: {', '.join(own)}"
        for owner in OWNERS
        if (own := [option.name for option in options if option.owner == owner])
    ]
    raise ValueError(
        f"unknown option {key!r} for {where}{hint} Known: {'; '.join(lists)}; and model, optimizer, "
        "server_optimizer to choose those."
    )


def check_name(what: str, name: str, names: Iterable[str]) -> None:
    """Raises if there is no such name."""
    names = list(names)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(f"unknown {what}: {name!r}{hint} Known: {', '.join(names)}.")
