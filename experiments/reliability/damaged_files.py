"""Files of every kind that jaxfl reads, made whole, made wrong, or damaged: what `fuzz_files` loads."""

import contextlib
import gzip
import io
import json
import random
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from jaxfl.simulation.records.directory import RunDirectory

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
    import pyarrow
    from PIL import Image
    from pyarrow import parquet

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
        user: {"x": (images(None)[place::3][:4].reshape(-1, 784) / 255).round(6).tolist(), "y": [1, 2, 3, 61]}
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
    import h5py

    for part in ("train", "test"):
        with h5py.File(folder / f"fed_emnist_{part}.h5", "w") as file:
            for user in ("f2100_00", "f0000_11"):
                group = file.create_group(f"examples/{user}")
                group["pixels"] = (images(None)[:4] / 255).astype(np.float32)
                group["label"] = labels(None)[:4].astype(np.int32)
                if draw is not None and draw.random() < 0.5:
                    _wrong_dataset(group, draw)


def _wrong_dataset(group: Any, draw: random.Random) -> None:
    """Puts something else in the place of a dataset."""
    import h5py

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
