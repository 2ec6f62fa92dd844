"""Parquet files of a folder and their splits, by the names of Hugging Face's hub."""

import re
from collections.abc import Sequence
from pathlib import Path

from jaxfl.data.sources.base import Folder

MAGIC = b"PAR1"  # first and last bytes of a parquet file
HELP = "pass a .parquet file, or the folder of such files, as data_dir"
SHARD = re.compile(r"(?P<split>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})")
SPLITS = ("train", "test", "validation", "valid", "val", "dev")


def files_in(data_dir: Folder) -> list[Path]:
    """Returns the parquet files of a file or a folder, sorted by name."""
    if data_dir is None:
        raise FileNotFoundError(f"parquet needs data_dir: none was given; {HELP}.")
    top = Path(data_dir)
    if top.is_file():
        return [top]
    if files := sorted(top.glob("*.parquet")):
        return files
    below = sorted({path.parent for path in top.glob("*/*.parquet")})
    if len(below) > 1:
        raise FileNotFoundError(
            f"{top} must have parquet files in one folder, got {[path.name for path in below]}; pass one as data_dir."
        )
    if not below:
        raise FileNotFoundError(f"parquet needs *.parquet or data/*.parquet: not found in {top}; {HELP}.")
    return sorted(below[0].glob("*.parquet"))


def others_in(data_dir: Folder, files: Sequence[Path]) -> list[str]:
    """Returns the paths of parquet files in a folder, or one to three folders deep, that are not among `files`.

    Args:
        data_dir: the folder; of a file there are none. Hidden files, and those in hidden folders, are left out.
        files: those that are read.
    """
    top = Path(data_dir or "")
    there = (path for depth in range(4) for path in top.glob("*/" * depth + "*"))
    others = [path.relative_to(top) for path in there if path.suffix.lower() == ".parquet" and path not in files]
    return sorted(str(path) for path in others if not any(part.startswith(".") for part in path.parts))


def select_splits(files: Sequence[Path], *wanted: str) -> list[list[Path]]:
    """Returns the files of the training split, and the files of the test split, which may be empty."""
    splits: dict[str, list[Path]] = {}
    for path in files:
        shard = SHARD.fullmatch(path.stem)
        splits.setdefault(shard["split"] if shard else path.stem, []).append(path)
    split, test = wanted
    if split == "train" and not set(splits) & set(SPLITS):
        return [list(files), []]
    if split not in splits:
        raise ValueError(
            f"split must be one of {sorted(splits)} in {files[0].parent}, got {split!r}; set split to one."
        )
    for path in (path for name in {split, test} & set(splits) for path in splits[name]):
        if (shard := SHARD.fullmatch(path.stem)) is None:
            continue
        if (count := len(splits[shard["split"]])) > int(shard["count"]):
            raise ValueError(
                f"{path.parent} must have {int(shard['count'])} files of {shard['split']}, as {path.name} states, got "
                f"{count}; keep only the files of one download."
            )
        for number in range(int(shard["count"])):
            if not (other := path.with_name(f"{shard['split']}-{number:05}-of-{shard['count']}.parquet")).is_file():
                raise FileNotFoundError(
                    f"{other.name} is not among the files in {path.parent}; download the missing shard."
                )
    return [splits[split], splits.get(test, []) if test != split else []]


def is_parquet(path: Path) -> bool:
    """Returns whether a file has the first bytes of parquet; a pipe, which may have no end, is none."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC
