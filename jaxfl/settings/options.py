"""Options by name: `key=value` text, assigned to the data, method, model, task, optimiser or run that has the option.

>>> settings = route("stocfl", "rotated-digits", ["threshold=0.6", "num_clients=8", "hidden=64", "learning_rate=0.05"])
>>> settings.method, settings.model, settings.optimizer
({'threshold': 0.6}, {'hidden': (64,)}, {'learning_rate': 0.05})
"""

import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import optax

from jaxfl import sampling
from jaxfl.client.steps import Steps
from jaxfl.clock import ClientClock
from jaxfl.clock.profiles import PROFILES, is_file
from jaxfl.cohort import Cohort, Plan, PlanChoice
from jaxfl.data.catalog import SKEWS
from jaxfl.data.clients import FederatedData
from jaxfl.edges import EdgeServers
from jaxfl.methods import METHODS, Method
from jaxfl.methods.hyperparameters import attach
from jaxfl.methods.scheduled import scheduled
from jaxfl.models import MODELS
from jaxfl.models.adapters import Network
from jaxfl.models.initialisation import pytorch_start
from jaxfl.schema import REQUIRED, Option, function_options, quoted
from jaxfl.server.aggregators import NormBound
from jaxfl.settings import (
    federations,
    methods,
    models,
    optimizers,
    reading,
    run_options,
    tasks,
    user_code,
    wire_options,
)
from jaxfl.settings.optimizers import OPTIMIZERS, SERVERS
from jaxfl.settings.reading import convert as convert
from jaxfl.settings.reading import find_option as find_option
from jaxfl.settings.reading import read_options as read_options
from jaxfl.settings.reading import split_items as split_items
from jaxfl.settings.removed import without_removed
from jaxfl.settings.run_options import RUN
from jaxfl.simulation.evaluation.finetune import FineTune
from jaxfl.simulation.program import shapes_of
from jaxfl.tasks import Task, augmented, start_from, with_head, with_metrics
from jaxfl.tasks.augmentation import black_level, parse_augmentation
from jaxfl.tasks.class_metrics import parse_metrics
from jaxfl.tasks.kinds import class_factors
from jaxfl.typing import Array, Key
from jaxfl.wire import Aggregator, Privacy, Transform, wired

FORMER_NETWORK: tuple[str, dict[str, Any]] = ("mlp", {"hidden": (2048,)})
OWNERS = ("data", "method", "model", "task", "optimizer", "server", "run")
# What a task is built of: its numbers are constants of the programs, see `build`.
UNTRACED = ("data", "model", "task")
CHOICES = ("model", "optimizer", "server_optimizer")  # keys that name an owner
FILES_OF_RUNS = {"weights", "clock", "edges"}  # options of every run that name a file
CLOCK_REMEDY = f"take clock={', '.join(PROFILES)}, or write the path of a csv or parquet file from the current folder"
EDGES_REMEDY = "give a number of edges, group, or the path of a csv file from the current folder"
MAX_SHARED_BUILDS = 32  # those of the last settings, each with a task


class Settings(NamedTuple):
    """The chosen names, and the given options by owner; options that were not given are left out."""

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
    task: dict[str, Any] = {}

    @property
    def task_name(self) -> str:
        """The name of the task."""
        return self.run.get("task", "auto")

    def complete(self) -> dict[str, Any]:
        """Returns the value of every option, defaults included, flat and ready for JSON."""
        flat: dict[str, Any] = {
            "method": user_code.run_label(self.method_name),
            "data": user_code.run_label(self.data_name),
            "model": user_code.run_label(self.model_name),
            "optimizer": user_code.run_label(self.optimizer_name),
        }
        files = self.files()
        flat |= {f"{owner}_checksum": user_code.file_checksum(path) for owner, path in files.items()}
        if "server_optimizer" in methods.row(self.method_name).options:
            flat["server_optimizer"] = self.server_name and user_code.run_label(self.server_name)
        for name, default in self.defaults().items():
            owner, _, option = name.partition(".")
            flat[name] = reading.json_value(getattr(self, owner).get(option, default))
        if "task" in files:
            flat["run.task"] = user_code.run_label(flat["run.task"])
        for owner in FILES_OF_RUNS & files.keys():
            flat[f"run.{owner}"] = files[owner].name
        return flat

    def as_begun(self, config: Mapping[str, Any]) -> "Settings":
        """Returns the settings of a run that goes on, with the network that it began with where none is chosen.

        Args:
            config: of the run; before there was `auto`, data of one's own had `FORMER_NETWORK`.
        """
        name, default = FORMER_NETWORK
        if (self.model_name, config.get("model")) != ("auto", name):
            return self
        given = {option: (value,) if isinstance(value, int) else value for option, value in self.model.items()}
        return self._replace(model_name=name, model=default | given)

    def defaults(self) -> dict[str, Any]:
        """Returns the default of every option that applies, by `owner.name`, ready for JSON."""
        return default_values(*self.names())

    def names(self) -> tuple[str, str, str, str, str | None, str]:
        """Returns the names that the options are of, as `applicable_options` takes them."""
        return (
            self.method_name,
            self.data_name,
            self.model_name,
            self.optimizer_name,
            self.server_name,
            self.task_name,
        )

    def files(self) -> dict[str, Path]:
        """Returns the user's files that the run depends on: of method, model, task, data, optimisers, weights, clock,
        edges.

        Raises:
            ValueError: a file is missing.
        """
        names = {"method": self.method_name, "model": self.model_name, "task": self.task_name}
        names |= {"data": self.data_name, "optimizer": self.optimizer_name, "server_optimizer": self.server_name}
        found = {owner: user_code.address_file(name) for owner, name in names.items() if user_code.is_address(name)}
        if self.run.get("weights"):
            found["weights"] = user_code.existing_file(self.run["weights"])
        if self.run.get("clock") is not None and is_file(self.run["clock"]):
            found["clock"] = user_code.existing_file(self.run["clock"], CLOCK_REMEDY)
        if isinstance(self.run.get("edges"), str) and self.run["edges"] != "group":
            found["edges"] = user_code.existing_file(self.run["edges"], EDGES_REMEDY)
        return found


def applicable_options(
    method: str, data: str, model: str, optimizer: str, server: str | None = None, task: str = "auto"
) -> list[Option]:
    """Returns all options that apply to this choice of names, with their defaults."""
    method_options, model_options = function_options(methods.row(method).factory), models.options(model)
    method_options.pop("server_optimizer", None)  # it is chosen by name and has options itself
    default_model, model_defaults = federations.dataset(data).model
    for name, default in model_defaults.items() if model == default_model else ():
        model_options[name] = model_options[name]._replace(default=default)
    owned: dict[str, Iterable[Option]] = {
        "data": federations.known_options(data).values(),
        "method": method_options.values(),
        "model": model_options.values(),
        "task": tasks.options(task).values(),
        "optimizer": optimizers.options(optimizer).values(),
        "server": optimizers.server_options(server).values(),
        "run": options_of_runs(method),
    }
    return [option._replace(owner=owner) for owner in OWNERS for option in owned[owner]]


def default_values(
    method: str, data: str, model: str, optimizer: str, server: str | None = None, task: str = "auto"
) -> dict[str, Any]:
    """Returns the defaults of `applicable_options` by `owner.name`, ready for JSON."""
    choice = applicable_options(method, data, model, optimizer, server, task)
    return {f"{one.owner}.{one.name}": reading.json_value(one.default) for one in choice}


def options_of_runs(method: str) -> list[Option]:
    """Returns the options of every run; for a method with adaptation, fine-tuning is on by default."""
    adapting = {"finetune": 1, "finetune_batch_size": None} if methods.row(method).adapts else {}
    return [option._replace(default=adapting.get(option.name, option.default)) for option in RUN]


def option_owners(name: str) -> str:
    """Returns a phrase with all methods, data, models and optimisers that have an option of this name, or "".

    >>> option_owners("momentum"), option_owners("alpha"), option_owners("hidden")[:25]
    ('optimizer sgd, momentum, server_optimizer fedavgm', 'data dirichlet-...', 'model mlp, mlp-batch-norm')
    """
    choices: dict[str, Mapping[str, Iterable[str]]] = {
        "method": {one: function_options(row.factory) for one, row in METHODS.items()},
        "data": {f"{skew}-...": function_options(deal) for skew, (deal, _) in SKEWS.items()},
        "model": {one: models.options(one) for one in MODELS},
        "optimizer": {one: numbers for one, (_, numbers) in OPTIMIZERS.items()},
        "server_optimizer": {one: numbers for one, (_, numbers) in SERVERS.items()},
    }
    found = {owner: [one for one, own in having.items() if name in own] for owner, having in choices.items()}
    return ", ".join(f"{owner} {', '.join(ones)}" for owner, ones in found.items() if ones)


def route(method: str, data: str, items: Iterable[str] = (), **given: Any) -> Settings:
    """Returns the settings of a run from its names and its options; nothing is loaded.

    Args:
        method: a name, as for `jaxfl.settings.methods.row`.
        data: a name of the catalogue, or `FILE.py:NAME`.
        items: `key=value`, or `owner.key=value` where two owners have an option of this name. `model`, `optimizer` and
            `server_optimizer` choose these by name; all other keys are options of the chosen ones.
        **given: options with values, such as `finetune=1`; they replace those of items.

    Raises:
        ValueError: a name or an option is unknown or ambiguous, an option is set twice, a value has the wrong type, or
            a removed option has another value than its old default, see `settings.removed`.
    """
    methods.row(method)
    row = federations.dataset(data)
    wanted: dict[str, Any] = {**split_items(items), **given}
    if isinstance(wanted.get("local_epochs"), Steps):  # as text has it
        wanted["local_steps"] = wanted.pop("local_epochs").number
    model = wanted.pop("model", row.model[0])
    models.options(model)
    optimizer = wanted.pop("optimizer", "sgd")
    optimizers.options(optimizer)
    server = choose_server(method, wanted)
    task = wanted.get("run.task", wanted.get("task", "auto"))
    options = applicable_options(method, data, model, optimizer, server, task if isinstance(task, str) else "auto")
    # but for run.delta, delta of perfedavg is its removed one
    wanted = without_removed(method, wanted, {option.name for option in options if option.owner != "run"})
    named = {"method": method, "data": data, "model": model, "optimizer": optimizer, "server": server, "task": task}
    where = ", ".join(f"{owner} {named[owner]}" for owner in ("method", "data", "model", "optimizer"))
    where += f", server_optimizer {server}" if user_code.is_address(server) else ""
    where += f", task {task}" if user_code.is_address(task) else ""
    chosen = by_owner(wanted, options, where)
    if chosen["run"].get("augment") is not None:
        parse_augmentation(chosen["run"]["augment"])
    parse_metrics(chosen["run"].get("metrics"))
    run_options.check_local_steps(chosen["run"].get("local_steps"), method, chosen["method"], options)
    wire_options.check_takes_wire(method, chosen["run"], chosen["data"])
    wire_options.check_takes_noise(method, chosen["method"], chosen["run"])
    check_required(chosen, options, named)
    return Settings(method, data, model, optimizer, server, **chosen)


def by_owner(wanted: Mapping[str, Any], known: Sequence[Option], where: str) -> dict[str, dict[str, Any]]:
    """Returns the given options by owner, with values of their types.

    Args:
        wanted: text or values, by `key` or `owner.key`.
        known: the options that apply.
        where: phrase for their owners, for messages.

    Raises:
        ValueError: an option is unknown or ambiguous, is set twice, or a value has the wrong type.
    """
    chosen: dict[str, dict[str, Any]] = {owner: {} for owner in OWNERS}
    for option, value in read_options(wanted, known, where, CHOICES, option_owners):
        if option.name in chosen[option.owner]:
            both = f"{option.name} and {option.owner}.{option.name}"
            raise ValueError(f"{option.name} must be set once, got both {both}; leave one out.")
        chosen[option.owner][option.name] = value
    return chosen


def check_required(
    chosen: Mapping[str, Mapping[str, Any]], known: Iterable[Option], named: Mapping[str, str | None]
) -> None:
    """Raises ValueError if an option without a default is not given.

    Args:
        chosen: the given options by owner.
        known: the options that apply.
        named: the names of the owners, for messages.
    """
    for option in known:
        if option.default is REQUIRED and option.name not in chosen[option.owner]:
            of = f"{option.owner} {named[option.owner]}"
            raise ValueError(f"{option.name} must be given for {of}; add --set {option.name}=...")


def load(settings: Settings, *, data_dir: str | Path | None = None, seed: int = 0) -> FederatedData:
    """Returns the federation that the settings name."""
    return federations.load(settings.data_name, data_dir=data_dir, seed=seed, **settings.data)


def build(settings: Settings, data: FederatedData) -> Method:
    """Returns the method that the settings describe, for a federation; its numbers are hyperparameters."""
    if user_code.is_address(settings.task_name):  # made of the data's values, which differ from run to run
        return _method(settings, _task(settings, data))
    shapes = shapes_of(data.in_programs())

    def prepare() -> Callable[[Settings], Method]:
        task = _task(settings, data)
        return lambda given: _method(given, task)

    black = None if settings.run.get("augment") is None else black_level(data).tobytes()  # a constant of its programs
    balanced = settings.run.get("class_weights") == "balanced"
    factors = class_factors(data, "balanced") if balanced else None
    constants = black, None if factors is None else factors.tobytes()
    build_with, values = _shared_build(settings, prepare, "method", shapes, *constants), numbers(settings)
    own = settings.method_name in METHODS or _can_be_traced(build_with, tuple(values), shapes)

    def made(values: Mapping[str, float], method: Method) -> Method:
        return attach(build_with, values, method) if own else method

    def with_noise(noise: float) -> Method:
        found = {**values, "run.noise": noise}
        return made(found, build_with(found))

    method = build_with(values)
    if settings.run.get("epsilon") is not None:
        asked = method.privacy._replace(privacy=privacy(settings), with_noise=with_noise)
        method = method._replace(privacy=asked)
    return made(values, method)


def _task(settings: Settings, data: FederatedData) -> Task:
    """Returns the task that the settings describe, for a federation."""
    how = {name: settings.run[name] for name in ("fast_forms", "compute", "class_weights") if name in settings.run}
    with models.one_line_errors(settings.model_name):
        task = tasks.create(settings.task_name, model(settings, data.num_classes), data, settings.task, **how)
    if (augment := settings.run.get("augment")) is not None:
        task = augmented(task, data, augment)
    task = task if settings.run.get("head") is None else with_head(task, settings.run["head"])
    if (metrics := settings.run.get("metrics")) is not None:
        task = with_metrics(task, metrics)
    return start_from(task, settings.run["weights"]) if settings.run.get("weights") else task


@functools.lru_cache(MAX_SHARED_BUILDS)  # tracing takes as long as a short run
def _can_be_traced(build_with: Callable[[Mapping[str, Any]], Method], names: tuple[str, ...], shapes: Any) -> bool:
    """Returns whether a method from outside, and its rounds, are made of numbers that are not known yet.

    Args:
        build_with: see `_shared_build`.
        names: of the numbers.
        shapes: of the federation.
    """
    cohort = Cohort.of(range(1))

    def one_round(values: dict[str, float], key: Key, data: FederatedData) -> Any:
        method = build_with(values)
        return method.round(key, method.init(key, data.at(0)), data.at(0), cohort)

    structure, leaves = shapes
    (data,) = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
    try:
        jax.eval_shape(one_round, dict.fromkeys(names, 1.0), jax.random.key(0), data)
    except Exception:  # with its numbers it was made a moment ago: it needs to know them
        return False
    return True


def numbers(settings: Settings) -> dict[str, float]:
    """Returns the numbers that are arguments of compiled programs, by `owner.name`: traceable options that are not 0.

    >>> numbers(route("fedprox", "rotated-digits", ["learning_rate=0.2"]))
    {'method.proximal_weight': 0.1, 'optimizer.learning_rate': 0.2}
    """
    found = {}
    for option in applicable_options(*settings.names()):
        value = getattr(settings, option.owner).get(option.name, option.default)
        if (
            option.traceable
            and option.owner not in UNTRACED
            and type(value) in (int, float)
            and value != 0
            and math.isfinite(value)
        ):
            found[f"{option.owner}.{option.name}"] = float(value)
    if settings.run.get("epsilon") is not None:
        found["run.noise"] = settings.run.get("noise", 1.0)  # until a run finds it
    return found


def with_numbers(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """Returns the settings with other numbers, by `owner.name`."""
    for name, value in values.items():
        owner, _, option = name.partition(".")
        settings = settings._replace(**{owner: getattr(settings, owner) | {option: value}})
    return settings


def program_text(settings: Settings) -> str:
    """Returns a text that is equal for settings which differ in their numbers alone: these share their programs.

    >>> names = "fedavg", "rotated-digits"
    >>> program_text(route(*names, ["learning_rate=0.2"])) == program_text(route(*names, ["learning_rate=0.3"]))
    True
    """
    return json.dumps(with_numbers(settings, dict.fromkeys(numbers(settings), "number")).complete())


_shared_builds: dict[tuple, Callable[[Mapping[str, Any]], Any]] = {}


def _shared_build(
    settings: Settings, prepare: Callable[[], Callable[[Settings], Any]], *key: Any
) -> Callable[[Mapping[str, Any]], Any]:
    """Returns `values -> make(settings with these numbers)`: one function for settings that differ in numbers alone.

    Args:
        settings: all but their numbers, and the options of the data, are part of its key.
        prepare: returns `make`, once for a key.
        *key: what it depends on beside them.
    """
    key = (program_text(settings._replace(data={})), *key)
    if key not in _shared_builds:
        make = prepare()
        while len(_shared_builds) >= MAX_SHARED_BUILDS:
            del _shared_builds[next(iter(_shared_builds))]
        _shared_builds[key] = lambda values: make(with_numbers(settings, values))
    return _shared_builds[key]


def _method(settings: Settings, task: Task) -> Method:
    """Returns the method that the settings describe, for a task."""
    chosen = dict(settings.method)
    if settings.run.get("local_steps") is not None:
        chosen["local_epochs"] = Steps(settings.run["local_steps"])
    if settings.server_name:
        chosen["server_optimizer"] = server_optimizer(settings)
    method = methods.make(settings.method_name, task, optimizer(settings), **chosen)
    rates = schedule(settings)
    method = method if rates is None else scheduled(method, rates)
    smallest = settings.run.get("min_sum", 1)
    return wired(
        method,
        channel=channel(settings),
        error_feedback=error_feedback(settings),
        aggregator=aggregator(settings),
        min_sum=smallest,
        privacy=privacy(settings),
    )


def model(settings: Settings, num_classes: int) -> Network:
    """Returns the network that the settings describe.

    Raises:
        ValueError: a number is out of range, or models are to start both as in a file and as in PyTorch.
    """
    default_model, model_defaults = federations.dataset(settings.data_name).model
    options = (model_defaults if settings.model_name == default_model else {}) | settings.model
    network = models.create(settings.model_name, num_classes, **options)
    if settings.run.get("init", "network") == "network":
        return network
    if settings.run.get("weights"):
        raise ValueError(
            f'init must be "network" with weights={settings.run["weights"]}, got "pytorch": all models start as the '
            "one in the file; leave one of the two out."
        )
    return pytorch_start(network)


def plan(settings: Settings) -> PlanChoice:
    """Returns the plan of the settings."""
    chunk = settings.run.get("chunk", "auto")
    if isinstance(chunk, int) and chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}; none takes the whole cohort at once.")
    return "auto" if chunk == "auto" else Plan(chunk=chunk)


def schedule(settings: Settings) -> Callable[[Array], Any] | None:
    """Returns the schedule of the clients' learning rate; None where it is constant.

    Raises:
        ValueError: a number is out of range.
    """
    run = settings.run
    return run_options.learning_rate_schedule(
        run.get("schedule", "constant"), run.get("schedule_rounds"), run.get("schedule_factor")
    )


def channel(settings: Settings) -> Transform | None:
    """Returns the channel of the settings, None where updates are sent as they are.

    Raises:
        ValueError: a link is unknown, or its number is out of range.
    """
    return wire_options.channel(settings.run)


def error_feedback(settings: Settings) -> bool:
    """Returns whether errors of the clients' channel are fed back.

    Raises:
        ValueError: they are to be, and there is no code.
    """
    return wire_options.error_feedback(settings.run)


def aggregator(settings: Settings) -> Aggregator | NormBound | None:
    """Returns the robust aggregator of the settings, None for the method's own mean.

    Raises:
        ValueError: it is unknown, or its number is out of range.
    """
    return wire_options.aggregator(settings.run)


def privacy(settings: Settings) -> Privacy | None:
    """Returns the privacy of the settings, None without noise.

    Raises:
        ValueError: a number is out of range, or one is given without noise.
    """
    return wire_options.privacy(settings.run)


def sampler(settings: Settings) -> sampling.Sampler:
    """Returns the sampler of the settings.

    Raises:
        ValueError: a number is out of range, or is not used by the chosen availability, or there is an availability
            beside Poisson sampling.
    """
    chosen = {option.name: settings.run.get(option.name, option.default) for option in RUN}
    pattern, period = chosen["availability"], chosen["availability_period"]
    available = _available(pattern, period)
    if "availability_period" in settings.run and pattern != "diurnal":
        raise ValueError(
            f"availability_period needs availability=diurnal, got {period} with {pattern}; add "
            "--set availability=diurnal, or leave it out."
        )

    poisson = wire_options.is_private(settings.run) and chosen["accounting"] == "poisson"
    if poisson or chosen["sampler"] == "poisson":
        if pattern != "always":
            raise ValueError(
                f"sampler must be uniform with availability={pattern}, got poisson: clients that come and go are not "
                "drawn with the same probability; leave availability out."
            )
        return sampling.dropouts(chosen["dropouts"], sampling.poisson())  # bound by the run, so of constants

    def make(settings: Settings) -> sampling.Sampler:
        return sampling.dropouts(settings.run.get("dropouts", 0.0), available)

    made = make(settings)
    if made is available:  # without hyperparameters
        return made
    return attach(_shared_build(settings, lambda: make, "sampler", available), numbers(settings), made)


@functools.lru_cache(MAX_SHARED_BUILDS)
def _available(pattern: sampling.Pattern, period: float) -> sampling.Sampler:
    """Returns the sampler of available clients: the same one for equal settings, whose programs are shared."""
    return sampling.availability(pattern, period=period)


def clock(settings: Settings) -> ClientClock | None:
    """Returns the clock of the settings, None without one.

    Raises:
        ValueError: a number is out of range, or needs a clock.
    """
    return run_options.client_clock(settings.run)


def edges(settings: Settings) -> EdgeServers | None:
    """Returns the edge servers of the settings, None without any.

    Raises:
        ValueError: a number is out of range, or needs edges.
    """
    return run_options.edge_servers(settings.run)


def finetune(settings: Settings) -> FineTune | None:
    """Returns the fine-tuning of the settings, with the optimiser and batch size of local training.

    For a method with adaptation it is plain gradient steps of the method's rate, on all rows.

    Raises:
        ValueError: there is less than one epoch, or an option of fine-tuning without epochs.
    """
    row, usual = (
        methods.row(settings.method_name),
        {one.name: one.default for one in options_of_runs(settings.method_name)},
    )
    chosen, local = usual | settings.run, row.options | settings.method
    epochs, batch_size = chosen["finetune"], chosen["finetune_batch_size"]
    if epochs is None:
        for name in ("finetune_batch_size", "finetune_pull", "finetune_layers"):
            if chosen[name] != usual[name]:
                raise ValueError(f"{name} needs finetune, got {chosen[name]} without it; give --set finetune=1.")
        return None
    if epochs < 1:
        raise ValueError(f"finetune must be at least 1 epoch, got {epochs}; none tests the served models alone.")
    if batch_size == "local":
        batch_size = local.get("batch_size")  # a method without batches takes all rows

    def make(settings: Settings) -> FineTune:
        adapting = row.adapts and optax.sgd((row.options | settings.method)[row.adapts])
        pull = settings.run.get("finetune_pull", 0.0)
        return FineTune(adapting or optimizer(settings), epochs, batch_size, pull, chosen["finetune_layers"])

    return attach(_shared_build(settings, lambda: make, "finetune"), numbers(settings), make(settings))


def optimizer(settings: Settings) -> optax.GradientTransformation:
    """Returns the clients' optimiser."""
    return optimizers.client_optimizer(settings.optimizer_name, settings.optimizer)


def check_optimizers(settings: Settings) -> None:
    """Raises ValueError unless both optimisers can be made, of numbers without values where they are traced."""
    optimizer(settings)
    server_optimizer(settings)
    for owner, name in (("optimizer", settings.optimizer_name), ("server", settings.server_name)):
        traced = [number.partition(".")[2] for number in numbers(settings) if number.startswith(f"{owner}.")]
        optimizers.check_traceable(name, getattr(settings, owner), traced)


def server_optimizer(settings: Settings) -> optax.GradientTransformation | None:
    """Returns the server's optimiser, None for plain averaging."""
    return optimizers.server_optimizer(settings.server_name, settings.server) if settings.server_name else None


def choose_server(method: str, wanted: dict[str, Any]) -> str | None:
    """Returns the name of the server's optimiser, removed from `wanted`; None for plain averaging."""
    name = str(wanted.pop("server_optimizer", None))
    name = name if user_code.is_address(name) else name.lower()
    if name == "none":
        orphan = next((key for key in wanted if key.startswith("server.")), None)
        if orphan:
            ways = "|".join([*SERVERS, "FILE.py:NAME"])
            raise ValueError(f"{orphan} is an option of a server optimiser; add --set server_optimizer={ways}.")
        return None
    if "server_optimizer" not in methods.row(method).options:
        able = ", ".join(other for other, row in METHODS.items() if "server_optimizer" in row.options)
        raise ValueError(f"method {method} takes no server_optimizer, got {quoted(name)}; those that do: {able}.")
    optimizers.server_options(name)
    return name
