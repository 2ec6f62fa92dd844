"""An experiment: the cells of a paper's tables, each a run for every seed, at three scales.

A paper has a folder: `config.py` defines `EXPERIMENT`, `targets.json` holds the numbers that the paper printed. A cell
is checked when its `config.py` is imported: a method, a data set or an option that does not exist is an error there.

What a paper shows that is no grid of numbers is a `Study`: a function that returns words, numbers and pictures.

- `smoke` takes seconds a row, offline, on the embedded digits, and shows that every row of the table works;
- `laptop` takes some hours on a few CPU cores, and says what it cuts;
- `paper` is the paper's own setting.

>>> cell = Cell("Table 1", "IFCA", "digits", "ifca", "rotated-digits", ("num_clusters=4",), rounds=3, cohort=0.5)
>>> cell.label, cell.command()
('Table 1 / IFCA / digits',
 'jaxfl run ifca --data rotated-digits --rounds 3 --cohort 0.5 --seed 0 --set num_clusters=4')
>>> Cell("Table 1", "IFCA", "digits", "ifca", "rotated-digits", ("clusters=4",), rounds=3, cohort=0.5)
Traceback (most recent call last):
ValueError: Table 1 / IFCA / digits: unknown option "clusters" ...
"""

import dataclasses
import fnmatch
import importlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from experiments.harness.targets import Target, label, read
from jaxfl import data as federations
from jaxfl.jobs.job import Job, check
from jaxfl.schema import check_name
from jaxfl.settings import options

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).parents[1]
SCALES = ("smoke", "laptop", "paper")
EVALUATIONS = 20  # of a run, where a cell does not say how often
UNITS = {"%": 100.0, "": 1.0}
METRICS = (
    *("micro_accuracy", "macro_accuracy", "micro_f1", "macro_f1", "p5_accuracy", "p10_accuracy", "p50_accuracy"),
    *("p90_accuracy", "worst_decile_accuracy", "std_accuracy", "loss", "ari", "nmi", "purity", "num_clusters"),
    *("unseen_micro_accuracy", "unseen_macro_accuracy"),
    *("finetuned_micro_accuracy", "finetuned_macro_accuracy", "finetuned_micro_f1", "finetuned_macro_f1"),
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """A number of a table, and how it is made.

    Attributes:
        table, row, column: where the paper prints it.
        method: of the registry.
        data: of the catalogue.
        items: the same `key=value` as `--set` takes: what differs from the defaults, and what the paper states. Of
            those with one key the last is kept.
        rounds, cohort: as `jaxfl run` takes them.
        seeds: a run for each.
        metric: one of `METRICS`, at the end of the run.
        unit: `"%"`, or `""` for what is no share.
        eval_every: rounds between evaluations; None is twenty in all.
        note: what a reader of the number must know.
    """

    table: str
    row: str
    column: str
    method: str
    data: str
    items: tuple[str, ...] = ()
    _: KW_ONLY
    rounds: int
    cohort: int | float
    seeds: tuple[int, ...] = (0,)
    metric: str = "micro_accuracy"
    unit: str = "%"
    eval_every: int | None = None
    note: str = ""

    def __post_init__(self):
        last = {item.partition("=")[0]: item for item in self.items}
        object.__setattr__(self, "items", tuple(last.values()))
        try:
            if not self.seeds or len(set(self.seeds)) < len(self.seeds):
                raise ValueError(f"seeds must be one or more, and differ, got {self.seeds}.")
            check_name("metric", self.metric, METRICS)
            check_name("unit", self.unit, UNITS)
            for seed in self.seeds:
                check(self.job(seed))
            if self.metric.startswith("finetuned_") and options.finetune(self.job(self.seeds[0]).settings) is None:
                raise ValueError(f"{self.metric} needs an item that asks for it, such as finetune=1.")
        except ValueError as error:
            raise ValueError(f"{self.label}: {error}") from None

    @property
    def label(self) -> str:
        """Returns `table / row / column`."""
        return label(self.table, self.row, self.column)

    def job(self, seed: int, **given: Any) -> Job:
        """Returns the run of one seed; `given` are more fields of the job."""
        settings = options.route(self.method, self.data, self.items)
        eval_every = self.eval_every or max(1, self.rounds // EVALUATIONS)
        return Job(settings, self.rounds, self.cohort, seed, eval_every=eval_every, **given)

    @property
    def needs_files(self) -> bool:
        """Returns whether the data are not embedded."""
        return federations.dataset(self.data).needs_files

    def command(self, seed: int | None = None) -> str:
        """Returns the `jaxfl run` that makes the number of one seed, or of all; DIR is the folder of the data."""
        seeds = ",".join(map(str, self.seeds if seed is None else [seed]))
        words = ["jaxfl", "run", self.method, "--data", self.data]
        words += ["--data-dir", "DIR"] if self.needs_files else []
        words += ["--rounds", str(self.rounds), "--cohort", str(self.cohort)]
        words += ["--seeds" if "," in seeds else "--seed", seeds]
        words += [word for item in self.items for word in ("--set", item)]
        return shlex.join(words)


class Made(NamedTuple):
    """What a study found out."""

    text: str  # sentences for the report
    numbers: Mapping[str, Any] = {}  # ready for JSON
    pictures: Mapping[str, "Figure"] = {}  # by what they show
    table: Sequence[Mapping[str, Any]] = ()  # rows with the same names


@dataclasses.dataclass(frozen=True)
class Study:
    """A figure, or a table that is no grid of runs.

    Attributes:
        label: what the paper calls it, and what it is about, after a slash.
        make: `data_dir -> Made`: loads, trains and draws; `data_dir` is the folder of the data's files.
        needs_files: whether its data are not embedded.
    """

    label: str
    make: Callable[[str | None], Made]
    needs_files: bool = True


@dataclasses.dataclass(frozen=True)
class Scale:
    """The cells of an experiment at one scale.

    Attributes:
        cuts: what differs from the paper, in a sentence or two.
        cells: in the order of the table; columns and rows are shown in the order in which they first come.
        studies: what else the paper shows.
    """

    cuts: str
    cells: tuple[Cell, ...]
    studies: tuple[Study, ...] = ()

    def __post_init__(self):
        labels = [one.label for one in (*self.cells, *self.studies)]
        twice = sorted({one for one in labels if labels.count(one) > 1})
        if not labels or twice:
            raise ValueError(f"cells must be one or more, each there once, got {', '.join(twice) or 'none'}.")


One = TypeVar("One", Cell, Study, Cell | Study)


class Claim(NamedTuple):
    """An order of two rows that a paper claims; it is tested over the seeds that both have.

    Attributes:
        table, column: where; `column` may be a pattern, as `--only` takes it.
        better, worse: rows.
        ours: whether no paper claims it, and we ask.
    """

    table: str
    column: str
    better: str
    worse: str
    ours: bool = False


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The tables of one paper.

    Attributes:
        name: of its folder.
        title: of the paper, short.
        paper: authors, title, place, year.
        scales: by name, all of `SCALES`.
        claims: orders of rows.
    """

    name: str
    title: str
    paper: str
    scales: Mapping[str, Scale]
    claims: tuple[Claim, ...] = ()

    def __post_init__(self):
        rows = {(one.table, one.row) for scale in self.scales.values() for one in scale.cells}
        for claim in self.claims:
            for row in (claim.better, claim.worse):
                if (claim.table, row) not in rows:
                    raise ValueError(f"claims of {self.name} must be of its rows, got {row!r} of {claim.table!r}.")
        if tuple(self.scales) != SCALES:
            raise ValueError(f"scales of {self.name} must be {', '.join(SCALES)}, got {', '.join(self.scales)}.")

    def scale(self, name: str) -> Scale:
        """Returns a scale, or says which there are."""
        check_name("scale", name, SCALES)
        return self.scales[name]

    def results(self, scale: str) -> Path:
        """Returns the folder that results go to if nothing else is said."""
        return HERE / self.name / "results" / scale


def names() -> list[str]:
    """Returns the names of the experiments: the folders that have a `config.py`.

    >>> names()[:2]
    ['cfl', 'fesem']
    """
    return sorted(path.parent.name for path in HERE.glob("*/config.py"))


def load(name: str) -> Experiment:
    """Returns an experiment.

    Raises:
        ValueError: there is none of this name, one of its cells cannot be, or is not where the paper prints a number.
    """
    check_name("experiment", name, names())
    experiment: Experiment = importlib.import_module(f"experiments.{name}.config").EXPERIMENT
    check_places(experiment, targets(name))
    return experiment


def targets(name: str) -> dict[str, Target]:
    """Returns the numbers that the paper printed, by label."""
    return read(HERE / name / "targets.json")


def check_places(experiment: Experiment, printed: Mapping[str, Target]) -> None:
    """Raises if a cell is of a table that the paper prints, but of a row or column that this table does not have.

    Raises:
        ValueError: there is such a cell.
    """
    tables = {target.table for target in printed.values()}
    cells = [cell for scale in experiment.scales.values() for cell in scale.cells]
    lost = [cell.label for cell in cells if cell.table in tables and cell.label not in printed]
    if lost:
        raise ValueError(
            f"cells of {experiment.name} must be where targets.json has a number, got {'; '.join(lost)}; write row and "
            "column as they are there."
        )


def select(cells: Sequence[One], only: str | None) -> list[One]:
    """Returns the cell or study of a label, or those whose label holds a pattern: `*` is anything, case is ignored.

    Raises:
        ValueError: there is none.
    """
    if only is None:
        return list(cells)
    found = [cell for cell in cells if cell.label == only]
    found = found or [cell for cell in cells if fnmatch.fnmatchcase(cell.label.lower(), f"*{only.lower()}*")]
    if not found:
        raise ValueError(f"only {only!r} matches no cell; there are: {'; '.join(cell.label for cell in cells)}.")
    return found


def of_seeds(cells: Sequence[Cell], seeds: Sequence[int] | None) -> list[Cell]:
    """Returns the cells that have some of these seeds, with those alone; None leaves them as they are.

    Raises:
        ValueError: no cell has one of them.
    """
    if seeds is None or not cells:
        return list(cells)
    kept = [(cell, tuple(seed for seed in cell.seeds if seed in seeds)) for cell in cells]
    if not any(own for _, own in kept):
        there = sorted({seed for cell in cells for seed in cell.seeds})
        there, asked = (", ".join(map(str, some)) for some in (there, seeds))
        raise ValueError(f"seeds must be some of {there}, which the chosen cells have, got {asked}.")
    return [dataclasses.replace(cell, seeds=own) for cell, own in kept if own]
