"""Damaged files: each must load, or be refused by an error that the command line shows as one line.

    python -m experiments.reliability.fuzz_files --count 5000 --out experiments/reliability/results/fuzz_files.jsonl
    python -m experiments.reliability.fuzz_files --first 17 --count 1

The files are data sets (idx, plain and compressed; npz; parquet; LEAF's json; HDF5) and what a run leaves (checkpoint,
history, config, summary), each made whole first and then damaged: bits flipped, cut, bytes swapped, put in or zeroed,
numbers and words of texts replaced; or made wrong from the start: other types and shapes, NaN, numbers far too large.
File i of a seed is always the same.

A finding is any other exception than ValueError, OSError and MemoryError, a message that does not name the file, a
warning of NumPy, a gigabyte of memory, a minute; and a checkpoint that was damaged and gives another state.
"""

import argparse
import collections
import contextlib
import faulthandler
import gzip
import io
import json
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pyarrow
from PIL import Image
from pyarrow import parquet

from experiments.speed import measure
from jaxfl import data as federations
from jaxfl.simulation.directory import RunDirectory
from jaxfl.simulation.history import History
from jaxfl.simulation.progress import Progress

SECONDS, MEGABYTES = 60, 1024  # that a file may take
ROWS = 24
IDENTITY = {"method": "fedavg", "seed": 0}
STATE = {"round": np.int32(4), "model": {"kernel": np.arange(12, dtype=np.float32).reshape(4, 3), "bias": np.ones(3)}}
WORDS = [
    "NaN",
    "Infinity",
    "-1",
    "1e999",
    "9" * 400,
    "null",
    '"x"',
    "[]",
    "{}",
    "true",
    "2.5",
    "4294967296",
    "[[[[1]]]]",
]
DTYPES = ["u1", "i1", ">i2", "i8", "u8", "f2", "f4", "f8", "c8", "?", "S3", "U2", "M8[s]", "O"]


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


def numbers(draw: random.Random, shape: tuple[int, ...]) -> np.ndarray:
    """Returns an array of another type or shape, or of numbers that do not fit."""
    shape = draw.choice([shape, shape, shape[1:], (*shape, 1), (0, *shape[1:]), (shape[0] + 1, *shape[1:]), ()])
    values = np.full(shape, draw.choice([0, 1, 3, 61, 255, -1, 1e30, -1e300, np.nan, np.inf]))
    with np.errstate(all="ignore"):
        return values.astype(draw.choice(DTYPES))


def images(draw: random.Random | None) -> np.ndarray:
    """Returns images of 28 x 28 pixels; or something else."""
    if draw is not None and draw.random() < 0.5:
        return numbers(draw, (ROWS, 28, 28))
    return np.random.default_rng(0).integers(0, 256, (ROWS, 28, 28), np.uint8)


def labels(draw: random.Random | None) -> np.ndarray:
    """Returns labels; or something else."""
    return numbers(draw, (ROWS,)) if draw is not None and draw.random() < 0.5 else np.arange(ROWS) % 10


def write_idx(folder: Path, draw: random.Random | None) -> None:
    """Writes MNIST's four files, of which the training images are compressed."""
    for part in ("train", "t10k"):
        for stem, values in ((f"{part}-images-idx3-ubyte", images(draw)), (f"{part}-labels-idx1-ubyte", labels(draw))):
            with warnings.catch_warnings(), contextlib.suppress(ValueError, TypeError, OverflowError):
                warnings.simplefilter("ignore")
                values = values.astype(np.uint8)
            sizes = [draw.choice([2**32 - 1, 0, size]) if draw else size for size in values.shape]
            content = bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in sizes)
            content += values.tobytes() if values.dtype != object else b""
            packed = gzip.compress(content) if stem.startswith("train-images") else content
            (folder / stem).write_bytes(packed)


def write_npz(folder: Path, draw: random.Random | None) -> None:
    """Writes own arrays."""
    arrays = {"x": images(draw), "y": labels(draw), "client": np.arange(ROWS) % 4, "group": np.arange(ROWS) % 4 % 2}
    arrays |= {"class_names": np.array([f"class {one}" for one in range(10)]), "test_x": images(None)[:5]}
    arrays |= {"test_y": labels(None)[:5]}
    if draw is not None:
        name = draw.choice([*arrays, "mean", "std", "num_classes", "origin", "domain", "client_names"])
        arrays[name] = numbers(draw, (ROWS,))
        arrays.pop(draw.choice([*arrays, "nothing"]), None)
    save = np.savez_compressed if draw is not None and draw.random() < 0.5 else np.savez
    with np.errstate(all="ignore"):
        save(folder / "own.npz", **arrays)


def write_parquet(folder: Path, draw: random.Random | None) -> None:
    """Writes own columns, images as files."""

    def png(pixels: np.ndarray) -> bytes:
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "png")
        return out.getvalue()

    columns: dict[str, Any] = {
        "image": [{"bytes": png(one), "path": None} for one in images(None)],
        "label": labels(None).tolist(),
        "client": [f"writer {one % 4}" for one in range(ROWS)],
    }
    if draw is not None:
        wrong = [[None] * ROWS, ["x"] * ROWS, [float("nan")] * ROWS, [2**62] * ROWS, [[1.0, 2.0]] * ROWS, [b"x"] * ROWS]
        columns[draw.choice([*columns, "group"])] = draw.choice(wrong)
    compression = draw.choice(["snappy", "gzip", "zstd", "none"]) if draw else "snappy"
    parquet.write_table(pyarrow.table(columns), folder / "train.parquet", compression=compression, row_group_size=10)


def write_leaf(folder: Path, draw: random.Random | None) -> None:
    """Writes LEAF's json."""
    users = [f"f{2000 + 100 * one}_00" for one in range(3)]
    rows = {
        user: {"x": (images(None)[place::3][:4].reshape(-1, 784) / 255).round(3).tolist(), "y": [1, 2, 3, 61]}
        for place, user in enumerate(users)
    }
    content: dict[str, Any] = {
        "users": users,
        "num_samples": [len(rows[user]["y"]) for user in users],
        "user_data": rows,
    }
    if draw is not None:
        place: Any = draw.choice([content, rows, rows[users[0]]])
        place[draw.choice(list(place))] = json.loads(draw.choice(WORDS).replace("1e999", "NaN"))
    (folder / "all_data_0.json").write_text(json.dumps(content))


def write_hdf5(folder: Path, draw: random.Random | None) -> None:
    """Writes TensorFlow Federated's files."""
    for part in ("train", "test"):
        with h5py.File(folder / f"fed_emnist_{part}.h5", "w") as file:
            for user in ("f2100_00", "f0000_11"):
                group = file.create_group(f"examples/{user}")
                group["pixels"] = (images(None)[:4] / 255).astype(np.float32)
                group["label"] = labels(None)[:4].astype(np.int32)
                if draw is not None and draw.random() < 0.5:
                    _wrong_dataset(group, draw)


def _wrong_dataset(group: h5py.Group, draw: random.Random) -> None:
    """Puts something else in the place of a dataset."""
    name = draw.choice(["pixels", "label"])
    del group[name]
    values = numbers(draw, (4, 28, 28) if name == "pixels" else (4,))
    if values.dtype.kind in "UOM":  # as HDF5 does not have them
        group.create_group(name) if draw.random() < 0.5 else group.create_dataset(name, data=h5py.Empty("f4"))
    elif draw.random() < 0.5:
        group[name] = values
    else:
        shape = draw.choice([(2**40, 28, 28), (2**20, 28, 28), (2**62,)])
        group.create_dataset(name, shape, "f4", chunks=(1, *shape[1:]), compression="gzip")


def write_run(folder: Path, draw: random.Random | None) -> None:
    """Writes what a run of four rounds leaves; of a wrong one the checkpoint has a valid checksum."""
    directory = RunDirectory(folder)
    directory.write_config({**IDENTITY, "rounds": 4})
    history = directory.history()
    tally = {"loss_sum": 0.5, "participants": 8}
    for round in (2, 4):
        history.append({"round": round, "micro_accuracy": 0.5, "clusters": [{"cluster": 0, "clients": 8}]})
        state, header = STATE, {"identity": IDENTITY, "round": round, "tally": tally, "records": round // 2}
        if draw is not None:
            names = draw.choice([list(header), ["identity", "round"], ["tally"]])
            header |= {name: json.loads(draw.choice(WORDS)) for name in names if draw.random() < 0.5}
            model = {**STATE["model"], "bias": numbers(draw, (3,))}
            state = {**STATE, "model": model} if model["bias"].dtype != object else STATE
        directory.save(state, header)
    directory.write_summary({"micro_accuracy": 0.5})


def _load_run(folder: Path) -> Any:
    """Reads what a run has left, as a resumed one does, and returns its state."""
    directory = RunDirectory(folder)
    directory.summary()
    directory.check({**IDENTITY, "rounds": 6}, resume=True)
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
    "npz": Kind(write_npz, _federation("npz")),
    "parquet": Kind(write_parquet, _federation("iid-parquet", num_clients=3)),
    "leaf": Kind(write_leaf, _federation("femnist")),
    "hdf5": Kind(write_hdf5, _federation("femnist")),
    "run": Kind(write_run, _load_run),
}


def damaged(draw: random.Random, content: bytes) -> tuple[bytes, str]:
    """Returns a file's bytes, damaged, and what was done."""
    size = len(content)
    first, last = sorted(draw.randrange(size + 1) for _ in range(2))
    if size > 4000 and draw.random() < 0.5:  # near an end, where headers and directories are
        first, last = draw.choice([(first % 300, last % 300), (size - 1 - first % 300, size - 1 - last % 300)])
        first, last = sorted((first, last))
    what = draw.choice(
        ["flip", "flip", "cut", "cut the front", "zero", "swap", "put in", "twice", "word", "word", "empty"]
    )
    if what == "flip" and content:
        changed = bytearray(content)
        for _ in range(draw.choice([1, 1, 2, 8])):
            changed[draw.choice([min(first, size - 1), draw.randrange(size)])] ^= 1 << draw.randrange(8)
        return bytes(changed), what
    if what == "word":
        found = list(re.finditer(rb"[\w.+-]+", content[first : first + 5000]))
        if found:
            one = draw.choice(found)
            word = draw.choice(WORDS).encode()
            return content[: first + one.start()] + word + content[first + one.end() :], what
    middle = content[first:last]
    cuts = {
        "cut": content[:last],
        "cut the front": content[first:],
        "zero": content[:first] + bytes(last - first) + content[last:],
    }
    cuts |= {"swap": content[last:] + middle + content[:first], "twice": content[:last] + middle + content[last:]}
    cuts |= {"put in": content[:first] + draw.randbytes(draw.choice([1, 7, 300])) + content[first:], "empty": b""}
    return cuts.get(what, content[:first]), what if what in cuts else "cut"


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


def run(seed: int, index: int, folder: Path) -> Outcome:
    """Makes and reads one file.

    Args:
        seed: of the campaign.
        index: of the file.
        folder: has a folder with whole files for each kind, and gets this one's.
    """
    draw = random.Random(f"{seed} {index}")
    kind = draw.choice(list(KINDS))
    place = folder / "now"
    shutil.rmtree(place, ignore_errors=True)
    damage = prepare(draw, kind, place, folder / kind)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    what, told = "loaded", ""
    try:
        with _limit(SECONDS), warnings.catch_warnings():
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


@contextlib.contextmanager
def _limit(seconds: int) -> Iterator[None]:
    """Raises TooLong in the block after some seconds."""

    def late(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def campaign(seed: int, first: int, count: int, folder: Path) -> Iterator[Outcome]:
    """Yields what came of each file.

    Raises:
        RuntimeError: whole files do not load: nothing would be learned of damaged ones.
    """
    for kind, (write, load) in KINDS.items():
        whole = folder / kind
        whole.mkdir()
        write(whole, None)
        try:
            load(whole)
        except Exception as error:
            raise RuntimeError(f"whole files of the kind {kind} do not load: {error}") from error
    for index in range(first, first + count):
        yield run(seed, index, folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a campaign, prints what it found, and returns 1 if that is anything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000, help="files")
    parser.add_argument("--first", type=int, default=0, help="index of the first one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file that gets the JSON line appended")
    given = parser.parse_args(arguments)
    faulthandler.enable()
    kinds: dict[str, collections.Counter[str]] = {kind: collections.Counter() for kind in KINDS}
    findings = []
    with tempfile.TemporaryDirectory() as name:
        for outcome in campaign(given.seed, given.first, given.count, Path(name)):
            kinds[outcome.kind][outcome.what if not outcome.is_finding else "findings"] += 1
            if outcome.is_finding:
                findings.append(outcome._asdict() | {"told": outcome.told[-500:]})
                print(f"{outcome.index}: {outcome.kind}, {outcome.damage}: {outcome.what}\n{outcome.told}", flush=True)
    record = {"campaign": "fuzz_files", "files": given.count, "seed": given.seed, "kinds": kinds, "findings": findings}
    measure.write(record, given.out)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
