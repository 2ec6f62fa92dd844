"""Where the experiments of papers are: `experiments/` comes with the repository, not with the installed package."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

PACKAGE = "experiments"
WORKLOADS = {  # of experiments/speed
    "w1": "The network of pfl's CIFAR-10 benchmark, 20 clients.",
    "w2": "LEAF's FEMNIST network, 8 clients.",
    "w3": "A thousand small clients: logistic regression and 784-200-10.",
    "w4": "Clustering alone: cosine distances and linkage.",
    "w5": "IFCA with four models 784-200-10, 120 clients.",
    "w6": "784-2048-10, five full-batch steps, 64 clients.",
    "w7": "FeSEM with 3,550 LEAF networks; minutes a round on a CPU.",
    "w8": "A cohort of 100 out of 1,000, 10,000 and 100,000 clients.",
}


def import_experiments(name: str, folder: Path | None = None) -> ModuleType:
    """Returns a module of `experiments/`, imported from where `find_experiments` finds it.

    Args:
        name: of the module, such as `"harness.run"`.
        folder: as `find_experiments` takes it.

    Raises:
        FileNotFoundError: there are no experiments.
        ValueError: those of another folder are in use already.
    """
    place = find_experiments(folder)
    if sys.path[0] != str(place.parent):
        sys.path.insert(0, str(place.parent))  # before any other package of this name
    found = importlib.import_module(f"{PACKAGE}.{name}")
    origin = Path(str(found.__file__)).resolve().parents[1]
    if origin != place:
        raise ValueError(f"experiments must be those of {str(place)!r}, but Python has them from {str(origin)!r}.")
    return found


def find_experiments(folder: Path | None = None) -> Path:
    """Returns the directory `experiments` of a clone.

    Args:
        folder: the directory or the clone that it is in; None looks in the working directory and those above it, then
            beside the package, where it is if the clone was installed with `pip install -e`.

    Raises:
        FileNotFoundError: it is not there.
    """
    if folder is None:
        here = Path.cwd()
        places = [above / PACKAGE for above in (here, *here.parents, Path(__file__).resolve().parents[2])]
    else:
        places = [folder.resolve(), folder.resolve() / PACKAGE]
    for place in places:
        if place.name == PACKAGE and (place / "harness" / "base.py").is_file() and any(place.glob("*/targets.json")):
            return place
    where = "the working directory, above it or beside the package" if folder is None else repr(str(folder))
    raise FileNotFoundError(
        f"no experiments in {where}: they come with the repository, not with the package; run this inside a clone, or "
        "give --experiments DIR, a clone's folder."
    )
