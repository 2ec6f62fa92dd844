"""Runs loaded from their folders: `jaxfl.load(DIR)`."""

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from jaxfl import tree
from jaxfl.cohort import PlanChoice
from jaxfl.data.catalog import SAVED, known_options
from jaxfl.data.clients import FederatedData
from jaxfl.files import copy_path, user_path
from jaxfl.jobs import job as jobs
from jaxfl.methods.base import Method
from jaxfl.schema import check_type
from jaxfl.settings import federations, options, user_code
from jaxfl.simulation.evaluation.evaluate import evaluation_sample
from jaxfl.simulation.evaluation.metrics import Evaluation, numbers_phrase
from jaxfl.simulation.prepared import Prepared
from jaxfl.simulation.progress import has_rows_file, restore_state
from jaxfl.simulation.records.checkpoint import Saved
from jaxfl.simulation.records.directory import CONFIG, HISTORY, RunDirectory
from jaxfl.simulation.records.history import History, read_back
from jaxfl.simulation.records.identity import check_data, check_jax_settings
from jaxfl.simulation.result import Callback, Result, TrainedRun

if TYPE_CHECKING:
    pass

OWNER_NAMES = (
    "method",
    "data",
    "model",
    "optimizer",
    "server_optimizer",
)  # of a config: what chooses the options' owners
NUMBERS = ("rounds", "cohort", "seed", "eval_every", "checkpoint_every")  # of a config
NEEDED = ("method", "data", "data_dir", *NUMBERS)  # in a config


class LoadedRun(TrainedRun):
    """A run in a folder, finished or interrupted. Data, method, state and evaluation are computed at their first use.

    Where its method, data, model, task or an optimiser is in a file of Python, these and all that needs them (`job`,
    `params`, `clients`, `resume` ...) execute the file, and only if it is trusted, see `load`. The attributes below
    execute nothing.

    Attributes:
        path: the folder.
        config: names and options; None where `jaxfl.run` started the run, which takes objects and no names.
        history: a record per evaluation.
        summary: what came of it; None where it has not ended, or goes on.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        method: Method | None = None,
        data: FederatedData | None = None,
        data_dir: str | os.PathLike | None = None,
        trust: user_code.Trust = False,
    ):
        self.path, self._method, self._data, self._data_dir = user_path(path), method, data, data_dir
        self._trust = user_code.trusted_files(trust)
        directory = RunDirectory(self.path, "path")
        if not directory.own_files():
            below = sorted(one.parent.name for one in self.path.glob(f"*/{HISTORY}"))
            remedy = f"below it are {', '.join(below[:5])}" if below else "give what --out or checkpoint_dir was"
            raise ValueError(f"path must be the folder of a run, {str(path)!r} has none; {remedy}.")
        self.config = directory.config()
        self.summary = (
            None if directory.is_unfinished() else directory.summary()
        )  # of fewer rounds than were made since
        self.history = History(self.path / HISTORY) if (self.path / HISTORY).exists() else History()

    @functools.cached_property
    def job(self) -> jobs.Job:
        """The job of the run: its names and options.

        Raises:
            ValueError: `jaxfl.run` began it, or its method, data, model, task or an optimiser is in a file that is not
                trusted or has changed.
        """
        if self.config is None:
            raise ValueError(
                f"{str(self.path)!r} has no {CONFIG}: jaxfl.run began the run; give load its method and its data, and "
                "go on with jaxfl.run(..., resume=True)."
            )
        if missing := [name for name in NEEDED if name not in self.config]:
            raise ValueError(
                f"{self.path / CONFIG} is damaged, or not of this version of jaxfl: it lacks {', '.join(missing)}; "
                "put it back as it was."
            )
        data_dir = self.config["data_dir"] if self._data_dir is None else str(self._data_dir)
        settings = _settings_of_config(self.path, self.config, self._trust)
        devices = settings.run.get("devices")
        if isinstance(devices, int) and devices > jax.local_device_count():  # it began on another machine
            settings = settings._replace(run={**settings.run, "devices": None})
        return jobs.Job(settings, **_numbers(self.config), data_dir=data_dir, out=self.path, resume=True)

    @functools.cached_property
    def data(self) -> FederatedData:
        """The federation of the run; of one that drifts, as it was in the last round.

        Raises:
            ValueError: what is there now is another one.
        """
        return self._whole if self._whole.drift is None else self._whole.at(self.round)

    @property
    def drifting(self) -> FederatedData | None:
        """Of data that drift, the federation with its drift."""
        return None if self._whole.drift is None else self._whole

    @functools.cached_property
    def _whole(self) -> FederatedData:
        """The federation with its drift."""
        data = self._data
        if data is None:
            data = options.load(self.job.settings, data_dir=self.job.data_dir, seed=self.job.seed)
        if self._newest is not None:
            check_data(data, self._newest.header["identity"], self.path)
        return data

    @functools.cached_property
    def method(self) -> Method:
        """The method."""
        return options.build(self.job.settings, self._whole) if self._method is None else self._method

    @functools.cached_property
    def state(self) -> Any:
        """The method's state of the newest checkpoint, in host memory.

        Raises:
            ValueError: there is none, or it is of another method or network.
        """
        field = self.method.per_client
        return restore_state(self._saved, self._prepared.shapes, self.method, kept=has_rows_file(self._saved, field))

    @functools.cached_property
    def _prepared(self) -> Prepared:
        """The method and the federation, prepared as the run was."""
        settings = None if self.config is None else self.job.settings
        plan: PlanChoice = "auto" if settings is None else options.plan(settings)
        run, size = {} if settings is None else settings.run, self._saved.header["identity"]["cohort"]
        where = {"devices": run.get("devices"), "resident": run.get("resident", "auto")}
        return Prepared.of(self.method, self._whole, size, plan=plan, **where)

    @functools.cached_property
    def evaluation(self) -> Evaluation:
        """The evaluation of that state, client by client; it is computed again.

        Raises:
            ValueError: JAX has settings by which other numbers come of it than the run's.
        """
        settings, identity = None if self.config is None else self.job.settings, self._saved.header["identity"]
        check_jax_settings(identity, f"path {str(self.path)!r}", "")
        clients = ({} if settings is None else settings.run).get("eval_clients", identity.get("eval_clients"))
        sample = evaluation_sample(self._whole, clients, self.seed)
        finetune = None if settings is None else options.finetune(settings)
        (data,) = self._prepared.place([self._whole])
        look = self._prepared.evaluator(data, finetune, sample=sample)
        return look(jax.random.key(self.seed), tree.placed(self.state, self._prepared.plan.place))

    @property
    def seed(self) -> int:
        """Its seed."""
        return self._saved.header["identity"]["seed"]

    @property
    def round(self) -> int:
        """The round of the newest checkpoint."""
        return self._saved.header["round"]

    @functools.cached_property
    def _newest(self) -> Saved | None:
        saved = RunDirectory(self.path).newest()
        identity = {} if saved is None else saved.header["identity"]
        seed, cohort = identity.get("seed"), identity.get("cohort")
        if saved and not (isinstance(seed, int) and isinstance(cohort, (int, float)) and cohort > 0):
            raise ValueError(f"{saved.path} must name the seed and the cohort of a run, got {seed!r} and {cohort!r}.")
        return saved

    @property
    def _saved(self) -> Saved:
        if self._newest is None:
            raise ValueError(f"{str(self.path)!r} has no checkpoint; the run was stopped before its first.")
        return self._newest

    @property
    def _host_data(self) -> bool:
        """Whether the clients' rows of data stay on the host."""
        return self._prepared.host_data

    @property
    def _facts(self) -> dict[str, Any]:
        """The config, if there is one, and the rounds done."""
        return {**(self.config or {}), "rounds": self.round}

    def resume(self, rounds: int | None = None, callbacks: Sequence[Callback] = ()) -> Result:
        """Resumes the run in its folder, as `jaxfl run ... --resume` does, with the same bits; returns the result.

        Args:
            rounds: in all, with the rounds done; None is the number of the job.
            callbacks: called with every `Event`.

        Raises:
            ValueError: `jaxfl.run` started the run, it has more rounds done, or another process runs it.
            TypeError: rounds is no whole number.
        """
        check_type("rounds", rounds, int | None)
        job = self.job if rounds is None else self.job._replace(rounds=int(rounds))
        jobs.check(job)
        given = self.path, self._method, self._data, self._data_dir, self._trust
        try:
            return jobs.execute(job, self._whole, callbacks)
        finally:  # what is known of the folder is of before, also where the run was stopped on its way
            vars(self).clear()
            self.__init__(*given)

    def __repr__(self) -> str:
        """Returns a line."""
        if self.summary is None:
            came = "kept by jaxfl.run" if self.config is None else "not finished"
            return f"LoadedRun({str(self.path)!r}, {came}, {len(self.history)} evaluations)"
        names = ("method", "data", "rounds", "seed", "micro_accuracy", "num_clusters")
        numbers = numbers_phrase(self.summary, [name for name in names if name in self.summary])
        return f"LoadedRun({str(self.path)!r}, {numbers})"


def load(
    path: str | os.PathLike,
    *,
    method: Method | None = None,
    data: FederatedData | None = None,
    data_dir: str | os.PathLike | None = None,
    trust: user_code.Trust = False,
) -> LoadedRun:
    """Returns the run in a folder of `jaxfl run --out`, `jaxfl.run_named(out=...)` or `checkpoint_dir`.

    Config, history and summary are read, and nothing that is in the folder is executed without `trust`.

    Args:
        path: its folder.
        method: of a run that `jaxfl.run` started, which saves no names; None builds it from the config.
        data: the same.
        data_dir: where the data's files lie, if not where they were.
        trust: whether files of Python that hold the run's method, data, model, task or optimisers are executed when
            these are used. True executes their copies in the folder, and nothing outside it; a path, or several,
            executes these files of your own instead, which may import what lies beside them. They must be as they
            were: SHA-256 in the config.

    Raises:
        ValueError: there is no run.

    >>> import tempfile, jaxfl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     small = {"num_clients": 8, "rows_per_client": 20, "model": "logistic"}
    ...     result = jaxfl.run_named("fedavg", "rotated-digits", rounds=2, cohort=0.5, out=folder, **small)
    ...     again = load(folder)
    ...     again.round, sorted(again.params(client=3)["Dense_0"]), again.resume(rounds=3).summary["rounds"]
    (2, ['bias', 'kernel'], 3)
    """
    return LoadedRun(path, method, data, data_dir, trust)


def written_job(config: dict[str, Any]) -> jobs.Job:
    """Returns the job of a config, for texts about it: no file is opened, and nothing is executed.

    All options of what is in a file of Python are given: their defaults are in the file.

    Raises:
        ValueError: a name or an option is not known.
        KeyError: an entry is missing.
    """
    if missing := [name for name in NEEDED if name not in config]:
        raise KeyError(", ".join(missing))
    code = _addresses(config)
    owners = {name: name.removeprefix("run.").removesuffix("_optimizer") for name in code}
    own = {owner: _options_in_file(config, owner) for owner in owners.values()}
    of_files = {f"{owner}.{name}" for owner, options in own.items() for name in options}
    rest = {name: value for name, value in config.items() if name not in of_files}
    files = {owner: config[f"{owner}_file"] for owner in options.FILES_OF_RUNS if f"{owner}_file" in config}
    stand_ins = STAND_INS | ({"data": federations.saved_name(code["data"])} if "data" in code else {})
    settings = _route(rest | {name: stand_ins[name] for name in code}, files)
    for name, address in code.items():
        owner = owners[name]
        written = user_code.in_file(address, config[f"{name.removeprefix('run.')}_file"])
        settings = settings._replace(**{owner: getattr(settings, owner) | own[owner]})
        if owner == "task":
            settings.run[owner] = written
        else:
            settings = settings._replace(**{f"{owner}_name": written})
    return jobs.Job(settings, **_numbers(config), data_dir=config["data_dir"])


# For what is in a file, to read all other options; a saved federation has the options of all.
STAND_INS = {"method": "fedavg", "data": SAVED.name, "model": "mlp", "optimizer": "sgd", "server_optimizer": "fedavgm"}
STAND_INS |= {"run.task": "auto"}


def _addresses(config: dict[str, Any]) -> dict[str, str]:
    """Returns the addresses `FILE.py:NAME` in a config, by name."""
    return {name: config[name] for name in STAND_INS if user_code.is_address(config.get(name))}


def _numbers(config: dict[str, Any]) -> dict[str, Any]:
    """Returns rounds, cohort, seed and the rounds between evaluations and checkpoints."""
    return {name: config[name] for name in NUMBERS}


def _settings_of_config(folder: Path, config: dict[str, Any], trust: bool | list[Path]) -> options.Settings:
    """Returns the settings of a config; a user's method, data, model, optimisers or task are executed if trusted."""
    found = {}
    for name, address in _addresses(config).items():
        file = user_code.trusted_file(folder, name.removeprefix("run."), address, config, trust)
        found[name] = user_code.in_file(address, file)
    own = [owner for owner in options.FILES_OF_RUNS if f"{owner}_file" in config]
    files = {owner: str(_data_file(folder, owner, config)) for owner in own}
    try:
        return _route(config | found, files)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / CONFIG} holds an option that cannot be used: {error}") from error


def _route(config: dict[str, Any], files: dict[str, str]) -> options.Settings:
    """Returns the settings of a config with the options that differ from their defaults; `files` are those of runs."""
    names: list[Any] = [config[name] for name in OWNER_NAMES[:4]]
    names += [config.get("server_optimizer"), config.get("run.task", "auto")]
    defaults = options.default_values(*names)
    given = {
        key: value
        for key, value in config.items()
        if "." in key and (key not in defaults or value != read_back(defaults[key]))
    }
    given |= {f"run.{owner}": path for owner, path in files.items()}
    chosen = {name: config[name] for name in OWNER_NAMES[2:] if config.get(name) is not None}
    return options.route(config["method"], config["data"], **chosen, **given)


def _options_in_file(config: dict[str, Any], owner: str) -> dict[str, Any]:
    """Returns the options in a config of what is in a file, by name; of data without those that all data have."""
    first, common = f"{owner}.", known_options(federations.saved_name(config["data"])) if owner == "data" else {}
    options = {name.removeprefix(first): value for name, value in config.items() if name.startswith(first)}
    return {name: value for name, value in options.items() if name not in common}


def _data_file(folder: Path, owner: str, config: dict[str, Any]) -> Path:
    """Returns the path of the file of start weights or of devices if it is unchanged, otherwise of the run's copy.

    Raises:
        ValueError: neither is.
    """
    file, checksum = Path(config[f"{owner}_file"]), config.get(f"{owner}_checksum", "")
    for path in (file, copy_path(folder, file.name, checksum), folder / file.name):  # the last: of an older version
        if path.is_file() and user_code.file_checksum(path) == checksum:
            return path
    raise ValueError(
        f"{str(folder)!r} holds a run whose {owner} is in a file that has changed, {file}, and has no copy of it as "
        "it was; put it back."
    )
