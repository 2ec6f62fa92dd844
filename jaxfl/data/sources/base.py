"""What every source is made of: the examples, where their files lie, and where they can be had."""

import dataclasses
import functools
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Folder = str | Path | None
WITHOUT_CLASSES = ("quantity", "iid", "writers")  # the skews of labels that are no classes


@dataclasses.dataclass(frozen=True)
class Source:
    """Examples and what is known about them, before any skew is cut into them.

    Attributes:
        name: name of the source.
        inputs: training examples `[P, ...]`, uint8, float, or integers that are no pixels.
        labels: their classes `[P]`, or labels of another kind, see `jaxfl.data.labels`.
        num_classes: L.
        test_inputs, test_labels: the official test set `[Q, ...]`, `[Q]`, or None where there is none.
        clients: who made each training example `[P]` (a writer, a person; numbers or names), or None.
        test_clients: who made each example of the official test set `[Q]`, or None where its makers are unknown or are
            not those of the training examples.
        client_groups: the group of each training example's client `[P]`, ints from 0, or None.
        group_names: one name per group of `client_groups`.
        domains: the domain that each training example comes from `[P]`, ints from 0, or None; see `combined`.
        test_domains: the same for the official test set `[Q]`, or None.
        domain_names: one name per domain.
        class_names: one name per class, or empty.
        class_groups: the group of each class `[L]`, ints from 0, or None: what the skew `pathological` deals out.
        class_group_names: one name per group of classes.
        mean, std: normalisation in units of `inputs`, numbers or one per channel; None leaves floats alone.
        fit: `(inputs, labels, training rows) -> (inputs, labels)`, called when the rows have been dealt, for what must
            not look at test rows; None leaves them alone.
    """

    name: str
    inputs: np.ndarray
    labels: np.ndarray
    num_classes: int
    test_inputs: np.ndarray | None = None
    test_labels: np.ndarray | None = None
    clients: np.ndarray | None = None
    test_clients: np.ndarray | None = None
    client_groups: np.ndarray | None = None
    group_names: tuple[str, ...] = ()
    domains: np.ndarray | None = None
    test_domains: np.ndarray | None = None
    domain_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    class_groups: np.ndarray | None = None
    class_group_names: tuple[str, ...] = ()
    mean: float | np.ndarray | None = None
    std: float | np.ndarray | None = None
    fit: Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None

    @functools.cached_property
    def pool(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Training and test examples in one pool: inputs, labels, and the rows of the official test set or None."""
        if self.test_inputs is None or self.test_labels is None:
            return self.inputs, self.labels, None
        inputs = np.concatenate([self.inputs, self.test_inputs])
        return inputs, np.concatenate([self.labels, self.test_labels]), np.arange(len(self.inputs), len(inputs))


class Remote(NamedTuple):
    """A file that can be downloaded.

    Attributes:
        url: address of the file.
        num_bytes: its size.
        checksum: `"md5:..."` or `"sha256:..."`, hexadecimal.
        members: of an archive (zip, tar), glob patterns of the members to unpack, flat; empty keeps the file as it is.
    """

    url: str
    num_bytes: int
    checksum: str
    members: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        """The name that the file is stored under."""
        return self.url.rsplit("/", 1)[-1]


class SourceEntry(NamedTuple):
    """One row of the table of sources.

    Attributes:
        load: `load(data_dir, **options)` reads the files; its keyword-only arguments are options of every data set cut
            from the source.
        find: `find(data_dir)` returns where the files are, without reading them, or None if some are missing.
        summary: what it is, one line.
        licence: as its authors say.
        num_bytes: approximate size of the files; 0 where it is unknown.
        num_classes: L, or None where the files say it.
        makers: what the clients of the natural partition are (`"writer"`, `"person"`), or "" where nobody knows.
        makers_file: a glob pattern of the file that names them, where they are known only if it lies beside the others.
        help: what to put where to have that file.
        remotes: what `--download` gets; empty where it cannot be downloaded by a program.
        model: name and options of the model that suits it.
        skews: those that it can be cut by; None is all, `writers` where the makers are known.
        user_files: `user_files(place)` returns the files at the place that `find` returns, if they are the user's.
            Files of equal names may differ then, so a run stores a checksum of their content.
    """

    load: Callable[..., Source]
    find: Callable[[Folder], Path | None]
    summary: str
    licence: str
    num_bytes: int
    num_classes: int | None
    makers: str = ""
    makers_file: str = ""
    help: str = ""
    remotes: tuple[Remote, ...] = ()
    model: tuple[str, dict[str, Any]] = ("mlp", {"hidden": (2048,)})
    skews: tuple[str, ...] | None = None
    user_files: Callable[[Path], Iterable[Path]] | None = None


def warn_missing_classes(name: str, labels: Sequence[np.ndarray], num_classes: int, remedy: str) -> None:
    """Warns where classes that nobody named have no rows: labels 0, 1000 and 2000 would be 2,001 classes.

    Args:
        name: name of the labels, for the message.
        labels: labels of all rows.
        num_classes: one more than the highest.
        remedy: what else one may do than number them anew.
    """
    there = len(np.unique(np.concatenate(labels)))
    if there < num_classes:
        warnings.warn(
            f"{name} holds {there} of the {num_classes} classes 0 to {num_classes - 1}; number them without gaps, or "
            f"{remedy}.",
            stacklevel=2,
        )


def home() -> Path:
    """Returns where data are kept if no `data_dir` is given: `$JAXFL_DATA`, or `~/.cache/jaxfl`."""
    return Path(os.environ.get("JAXFL_DATA") or "~/.cache/jaxfl").expanduser()


def folders(name: str, data_dir: Folder) -> list[Path]:
    """Returns where to look for a source's files: the folder of its name in `data_dir`, then `data_dir` itself.

    >>> [str(folder) for folder in folders("mnist", "data")]
    ['data/mnist', 'data']
    """
    top = home() if data_dir is None else Path(data_dir)
    return [top / name, top]


Layouts = Mapping[str, Sequence[str]]


def locate(layouts: Layouts, places: Sequence[Path]) -> tuple[str, Path] | None:
    """Returns the first layout whose files all lie in one of the places, and that place; None if there is none.

    Args:
        layouts: by name, the files of each way in which a source may be stored, as glob patterns relative to a folder.
        places: folders, the best first.

    >>> locate({"text": ["no-such-*.txt"]}, [Path(".")]) is None
    True
    """
    for layout, patterns in layouts.items():
        for place in places:
            if all(any(place.glob(pattern)) for pattern in patterns):
                return layout, place
    return None


def require(name: str, layouts: Layouts, places: Sequence[Path], remedy: str) -> tuple[str, Path]:
    """Returns what `locate` finds.

    Args:
        name: name of the source, for the message.
        layouts, places: as for `locate`.
        remedy: what to put where, the end of the message's sentence.

    Raises:
        FileNotFoundError: no layout is complete; the message names the first missing file of the layout that has most
            of its files, the places looked in, and the remedy.
    """
    if (found := locate(layouts, places)) is not None:
        return found

    def missing(patterns: Sequence[str], place: Path) -> list[str]:
        return [pattern for pattern in patterns if not any(place.glob(pattern))]

    # The most complete try is what the user meant.
    tries = [(patterns, missing(patterns, place), place) for patterns in layouts.values() for place in places]
    patterns, lacking, place = max(tries, key=lambda one: (len(one[0]) - len(one[1])) / len(one[0]))
    if len(lacking) < len(patterns):
        raise FileNotFoundError(f"{name} needs {lacking[0]}, and it is not among the files in {place}; {remedy}.")
    looked = " or ".join(map(str, places))
    ways = " or ".join(", ".join(patterns) for patterns in layouts.values())
    raise FileNotFoundError(f"{name} needs {ways}: not found in {looked}; {remedy}.")
