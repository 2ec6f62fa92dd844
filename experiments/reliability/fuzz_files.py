"""Damaged files: each must load, or be refused by an error that the command line shows as one line.

    python -m experiments.reliability.fuzz_files --count 5000 --out experiments/reliability/results/fuzz_files.jsonl
    python -m experiments.reliability.fuzz_files --first 17 --count 1

The files are data sets (idx, plain and compressed; npz; parquet; LEAF's json; HDF5) and what a run leaves (checkpoint,
history, config, summary), each made whole first and then damaged: bits flipped, cut, bytes swapped, put in or zeroed,
numbers and words of texts replaced; or made wrong from the start: other types and shapes, NaN, numbers far too large.
File i of a seed and of the same `--kinds` is always the same: parquet needs pyarrow, hdf5 needs h5py.

A finding is any other exception than ValueError, OSError and MemoryError, a message that does not name the file, a
warning of NumPy, a gigabyte of memory, a minute; and a checkpoint that was damaged and gives another state.
"""

import collections
import faulthandler
import random
import resource
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.reliability.campaign import ended_by_interrupt, parser, until, within
from experiments.reliability.damaged_files import (
    IDENTITY,
    STATE,
    damaged,
    write_hdf5,
    write_idx,
    write_leaf,
    write_npz,
    write_parquet,
    write_run,
)
from experiments.speed import measure
from jaxfl import data as federations
from jaxfl.simulation.progress import Progress
from jaxfl.simulation.records.directory import RunDirectory
from jaxfl.simulation.records.history import History

SECONDS, MEGABYTES = 60, 1024  # that a file may take


class Outcome(NamedTuple):
    """What came of a file.

    Attributes:
        index: of the file.
        kind: of the file.
        damage: what was done to it.
        what: `loaded` or `refused`, as it must be; or what is wrong.
        told: the message.
    """

    index: int
    kind: str
    damage: str
    what: str
    told: str

    @property
    def is_finding(self) -> bool:
        """Returns whether this must not be."""
        return self.what not in ("loaded", "refused")


class TooLong(BaseException):
    """A file took more than `SECONDS`."""


def _load_run(folder: Path) -> Any:
    """Reads what a run has left, as a resumed one does, and returns its state."""
    directory = RunDirectory(folder)
    directory.summary()
    directory.check({**IDENTITY, "rounds": 6}, resume=True)
    directory.done()
    History(folder / "history.jsonl").to_pandas()
    progress = Progress(directory, IDENTITY, resume=True)
    state = progress.restore(STATE)
    evaluation: Any = _Evaluation()
    progress.tally.record(progress.done, evaluation, 0.1)
    return state


class _Evaluation:
    """Stands for an evaluation."""

    metrics: dict[str, Any] = {}


def _federation(name: str, **options: Any) -> Callable[[Path], Any]:
    """Returns what loads a federation of the catalogue from a folder, or from the one file in it."""

    def load(folder: Path) -> None:
        place = next(folder.iterdir(), folder) if name.endswith("npz") else folder
        federations.load(name, data_dir=place, seed=0, **options)

    return load


class Kind(NamedTuple):
    """Files that belong together: how they are written, and how they are read."""

    write: Callable[[Path, random.Random | None], None]
    load: Callable[[Path], Any]


KINDS = {
    "idx": Kind(write_idx, _federation("iid-mnist", num_clients=3)),
    "npz": Kind(write_npz, _federation("npz", test_share=0.2)),
    "parquet": Kind(write_parquet, _federation("iid-parquet", num_clients=3)),
    "leaf": Kind(write_leaf, _federation("femnist")),
    "hdf5": Kind(write_hdf5, _federation("femnist")),
    "run": Kind(write_run, _load_run),
}


def prepare(draw: random.Random, kind: str, folder: Path, whole: Path) -> str:
    """Puts files of a kind into a folder, wrong ones or damaged ones; returns what was done.

    Args:
        draw: decides.
        kind: of `KINDS`.
        folder: gets them.
        whole: the folder of those that nothing was done to.
    """
    if draw.random() < 0.35:
        folder.mkdir()
        KINDS[kind].write(folder, draw)
        return "made wrong"
    shutil.copytree(whole, folder)
    path = draw.choice(sorted(path for path in folder.iterdir() if path.stat().st_size))
    content, what = damaged(draw, path.read_bytes())
    path.write_bytes(content)
    return f"{what} in {path.name}"


def run(seed: int, index: int, kinds: Sequence[str], folder: Path) -> Outcome:
    """Makes and reads one file.

    Args:
        seed: of the campaign.
        index: of the file.
        kinds: of `KINDS`, of which it is one.
        folder: has a folder with whole files for each kind, and gets this one's.
    """
    draw = random.Random(f"{seed} {index}")
    kind = draw.choice(kinds)
    place = folder / "now"
    shutil.rmtree(place, ignore_errors=True)
    damage = prepare(draw, kind, place, folder / kind)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    what, told = "loaded", ""
    try:
        with within(SECONDS, TooLong), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", RuntimeWarning)
            warnings.simplefilter("error", DeprecationWarning)
            state = KINDS[kind].load(place)
        if kind == "run" and damage != "made wrong" and not _same(state):
            what = "another state"
    except (ValueError, OSError, MemoryError) as error:
        told = " ".join(str(error).split())
        named = str(place) in told or told.startswith("own ")  # the source's name, where it lacks what was asked for
        what = "refused" if named else f"{type(error).__name__} that does not name the file"
        what = f"a traceback in a message: {what}" if "Traceback" in told else what
    except TooLong:
        what = f"took more than {SECONDS} s"
    except Exception as error:
        what, told = type(error).__name__, _traceback(error)
    if (more := (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024) > MEGABYTES:
        what = f"took {more} MB"
    return Outcome(index, kind, damage, what, told)


def _same(state: Any) -> bool:
    """Returns whether a state is the one that was saved; None is that of a run that starts."""
    if state is None:
        return True
    pairs = [
        (state["round"], STATE["round"]),
        *((state["model"][name], STATE["model"][name]) for name in STATE["model"]),
    ]
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def _traceback(error: Exception) -> str:
    import traceback

    return "".join(traceback.format_exception(error)[-4:])


def campaign(
    seed: int, first: int, count: int, kinds: Sequence[str], folder: Path, more: Callable[[], bool]
) -> Iterator[Outcome]:
    """Yields what came of each file.

    Args:
        seed: of the campaign.
        first: index of the first file.
        count: files.
        kinds: of `KINDS`.
        folder: for the files.
        more: whether there is time for another one.

    Raises:
        RuntimeError: whole files do not load: nothing would be learned of damaged ones.
    """
    for kind in kinds:
        write, load = KINDS[kind]
        whole = folder / kind
        whole.mkdir()
        write(whole, None)
        try:
            load(whole)
        except Exception as error:
            raise RuntimeError(f"whole files of the kind {kind} do not load: {error}") from error
    for index in range(first, first + count):
        if not more():
            return
        yield run(seed, index, kinds, folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a campaign, prints what it found, and returns 1 if that is anything."""
    options = parser(__doc__)
    options.add_argument("--count", type=int, default=5000, help="files")
    options.add_argument("--first", type=int, default=0, help="index of the first one")
    options.add_argument("--kinds", default=",".join(KINDS), help="comma-separated; all if not given")
    given = options.parse_args(arguments)
    names, findings = given.kinds.split(","), []
    kinds: dict[str, collections.Counter[str]] = {kind: collections.Counter() for kind in names}
    with tempfile.TemporaryDirectory() as name, ended_by_interrupt():
        for outcome in campaign(given.seed, given.first, given.count, names, Path(name), until(given.minutes)):
            kinds[outcome.kind][outcome.what if not outcome.is_finding else "findings"] += 1
            if outcome.is_finding:
                findings.append(outcome._asdict() | {"told": outcome.told[-500:]})
                print(f"{outcome.index}: {outcome.kind}, {outcome.damage}: {outcome.what}\n{outcome.told}", flush=True)
    files = sum(sum(counts.values()) for counts in kinds.values())
    record = {"campaign": "fuzz_files", "seed": given.seed, "first": given.first, "files": files}
    measure.write({**record, "kinds": kinds, "findings": findings}, given.out)
    return int(bool(findings))


if __name__ == "__main__":
    faulthandler.enable()
    sys.exit(main())
