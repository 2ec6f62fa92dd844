"""`jaxfl reproduce` and `jaxfl report`: the modules of `experiments/`, which a clone has and the package has not."""

import importlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxfl.cli import signals

PACKAGE = "experiments"
WORKLOADS = {  # scripts of experiments/speed
    "w1": "The network of pfl's CIFAR-10 benchmark, 20 clients.",
    "w2": "LEAF's FEMNIST network, 8 clients.",
    "w3": "A thousand small clients: logistic regression and 784-200-10.",
    "w4": "Clustering alone: cosine distances and linkage.",
    "w5": "IFCA with four models 784-200-10, 120 clients.",
    "w6": "784-2048-10, five full-batch steps, 64 clients.",
    "w7": "FeSEM with 3,550 LEAF networks; minutes per round on a CPU.",
    "w8": "A cohort of 100 out of 1,000, 10,000 and 100,000 clients.",
    "w9": "ResNet-18 with group normalisation, 10 clients, batches of 10 and of 50.",
    "w10": "A small transformer that predicts the next character, 20 clients.",
    "w11": "Adapters of low rank on ResNet-18, 10 clients.",
}


def import_experiments(name: str, folder: Path | None = None) -> ModuleType:
    """Imports and returns a module of `experiments/`.

    Args:
        name: of the module, such as `"harness.run"`.
        folder: as for `find_experiments`.

    Raises:
        FileNotFoundError: the folder has no experiments.
        ValueError: experiments of another folder are imported already.
    """
    place = find_experiments(folder)
    if sys.path[0] != str(place.parent):
        sys.path.insert(0, str(place.parent))  # before any other package of this name
    found = importlib.import_module(f"{PACKAGE}.{name}")
    origin = Path(str(found.__file__)).resolve().parents[1]
    if origin != place:
        raise ValueError(f"experiments must be those in {str(place)!r}, but those in {str(origin)!r} are imported.")
    return found


def find_experiments(folder: Path | None = None) -> Path:
    """Returns the folder `experiments` of a clone.

    Args:
        folder: the folder or the clone around it, whose code is executed; None takes the one beside the package, where
            it is if the clone was installed with `pip install -e`.

    Raises:
        FileNotFoundError: it is not found.
        ValueError: no folder is given, and the working directory is in another clone.
    """
    beside = Path(__file__).resolve().parents[2] / PACKAGE
    places = [beside] if folder is None else [folder.resolve(), folder.resolve() / PACKAGE]
    found = next(filter(_has_experiments, places), None)
    if folder is None:
        here = Path.cwd().resolve()
        near = next(filter(_has_experiments, (above / PACKAGE for above in (here, *here.parents))), None)
        if near not in (None, found):  # it may be a stranger's: its code is executed by name only
            raise ValueError(
                f"experiments in {str(near)!r} are not those of the package, which is in {str(beside.parent)!r}; give "
                f"--experiments {shlex.quote(str(near.parent))} to execute them, or leave that folder."
            )
    if found is None:
        where = "beside the package" if folder is None else repr(str(folder))
        raise FileNotFoundError(
            f"no experiments in {where}: they come with the repository, not with the package; give --experiments DIR, "
            "a clone's folder, or install the clone with pip install -e."
        )
    return found


def _has_experiments(place: Path) -> bool:
    """Returns whether a folder is the `experiments` of a clone."""
    return place.name == PACKAGE and (place / "harness" / "base.py").is_file() and any(place.glob("*/targets.json"))


def reproduce(name: str, scale: str, *, seeds: str | None, clone: Path | None, **given: Any) -> int:
    """Runs what is missing of an experiment; returns the exit status, 1 if a run failed.

    Args:
        name: folder of `experiments/`.
        scale: `"smoke"`, `"laptop"` or `"paper"`.
        seeds: as `jaxfl run` takes them; None runs all seeds of each cell.
        clone: as for `find_experiments`.
        **given: the other arguments of `experiments.harness.run.reproduce`.
    """
    from jaxfl.cli.run import parse_seeds

    signals.set_exit_note("; the same command continues")
    chosen = None if seeds is None else parse_seeds(seeds)
    return import_experiments("harness.run", clone).reproduce(name, scale, seeds=chosen, **given)


def report(name: str | None, scale: str | None, out: Path | None, methods: Sequence[str], clone: Path | None) -> None:
    """Writes the reports of experiments, and prints their paths.

    Args:
        name: of one experiment; None reports all.
        scale: of the results; None reports every scale that has some.
        out: folder that `reproduce` has written to, if not the experiment's own.
        methods: in files, whose rows are shown too.
        clone: as for `find_experiments`.
    """
    print(import_experiments("harness.report", clone).reports(name, scale, out, methods), end="")
