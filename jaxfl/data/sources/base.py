"""Types of sources: examples, downloadable files, and entries of the table of sources; and searches for files."""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxfl.data.casts import join

Folder = str | Path | None
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".pgm", ".ppm")
WITHOUT_CLASSES = ("quantity", "iid", "writers")  # skews for labels that are not classes


@dataclasses.dataclass(frozen=True)
class Source:
    """Examples and their properties, before a skew divides them among clients.

    Attributes:
        name: name of the source.
        inputs: training examples `[P, ...]`, uint8, float, or integers that are not pixels.
        labels: their classes `[P]`, or labels of another kind, see `jaxfl.data.labels`.
        num_classes: L.
        test_inputs, test_labels: the official test set `[Q, ...]`, `[Q]`, or None if there is none.
        clients: maker of each training example `[P]` (a writer, a person; numbers or names), or None.
        test_clients: maker of each example of the official test set `[Q]`, or None if its makers are unknown or are not
            those of the training examples.
        client_groups: the group of each training example's client `[P]`, ints from 0, or None.
        client_weights: the weight in averages of each training example's client `[P]`, or None.
        group_names: one name per group of `client_groups`.
        domains: domain of each training example `[P]`, ints from 0, or None; see `combined`.
        test_domains: the same for the official test set `[Q]`, or None.
        domain_names: one name per domain.
        class_names: one name per class, or empty.
        class_groups: group of each class `[L]`, ints from 0, or None; used by the skew `pathological`.
        class_group_names: one name per group of classes.
        mean, std: normalisation in units of `inputs`, a number or one per channel; None is none, for floats.
        fit: `(inputs, labels, training rows) -> (inputs, labels)`, called after the partition, for scaling that
            must not depend on test rows; None is no scaling.
        central: whether all clients are tested on the official test set, whatever the skew; see `jaxfl.data.divide`.
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
    central: bool = False
    client_weights: np.ndarray | None = None

    @functools.cached_property
    def pool(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Returns training and test examples in one pool: inputs, labels, and rows of the official test set or None."""
        if self.test_inputs is None or self.test_labels is None:
            return self.inputs, self.labels, None
        inputs = np.concatenate([self.inputs, self.test_inputs])
        return inputs, join("labels", [self.labels, self.test_labels]), np.arange(len(self.inputs), len(inputs))

    def with_test_examples(self) -> "Source":
        """Returns the source with its official test set among the training examples, behind them.

        Makers, their groups, and domains are kept where they are known of the test examples too.

        Raises:
            ValueError: there is no official test set.
        """
        if self.test_labels is None:
            raise ValueError(f"pool must be train for {self.name}, which has no official test set, got all.")
        inputs, labels, _ = self.pool
        known = {"clients": self.test_clients, "domains": self.test_domains}
        joined: dict[str, Any] = {
            name: None if own is None or getattr(self, name) is None else join(name, [getattr(self, name), own])
            for name, own in known.items()
        }
        groups = self.client_groups
        if groups is not None:
            group_of = dict(zip(np.asarray(self.clients).tolist(), groups.tolist(), strict=True))
            makers = [] if joined["clients"] is None else np.asarray(self.test_clients).tolist()
            more = [group_of.get(maker) for maker in makers]
            groups = None if not more or None in more else np.concatenate([groups, np.array(more, groups.dtype)])
        gone: dict[str, Any] = dict.fromkeys(("test_inputs", "test_labels", "test_clients", "test_domains"))
        return dataclasses.replace(self, inputs=inputs, labels=labels, client_groups=groups, **joined, **gone)


class Remote(NamedTuple):
    """A file that can be downloaded.

    Attributes:
        url: address of the file.
        num_bytes: its size.
        checksum: `"md5:..."` or `"sha256:..."`, hexadecimal.
        members: glob patterns of the members to unpack from an archive (zip, tar) without folders; empty for other
            files.
    """

    url: str
    num_bytes: int
    checksum: str
    members: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        """Returns the name of the stored file."""
        return self.url.rsplit("/", 1)[-1]


class SourceEntry(NamedTuple):
    """A registry row of the table of sources.

    Attributes:
        load: `load(data_dir, **options)` reads the files; its keyword-only arguments are options of every data set of
            the source.
        find: `find(data_dir)` returns the folder of the files without reading them, or None if some are missing. For
            embedded data, which need no files, `find` itself is None.
        summary: description in one line.
        licence: licence as its authors state it.
        num_bytes: approximate size of the files; 0 where it is unknown.
        num_classes: L, or None if it is read from the files.
        makers: noun for the clients of the natural partition (`"writer"`, `"person"`), or "" if makers are unknown.
        makers_file: glob pattern of the file that names the makers, if they are known only with an additional file.
        help: instruction to get that file.
        remotes: files that `--download` gets; empty if a program cannot download the source.
        model: name and options of the default model.
        skews: names of the possible skews; None is all, with `writers` only if the makers are known.
        user_files: `user_files(place)` returns the files at the place that `find` returns, if they are the user's.
            Files of equal names may differ then, so a run stores a checksum of their content.
        labels_in_paths: whether the paths of the user's files below the place are labels, which the checksum has, too.
    """

    load: Callable[..., Source]
    find: Callable[[Folder], Path | None] | None
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
    labels_in_paths: bool = False


def home() -> Path:
    """Returns the default folder of data: `$JAXFL_DATA`, or `~/.cache/jaxfl`."""
    return Path(os.environ.get("JAXFL_DATA") or "~/.cache/jaxfl").expanduser()


def folders(name: str, data_dir: Folder) -> list[Path]:
    """Returns the folders to search for a source's files: the folder of its name in `data_dir`, then `data_dir`.

    >>> [str(folder) for folder in folders("mnist", "data")]
    ['data/mnist', 'data']
    """
    top = home() if data_dir is None else Path(data_dir)
    return [top / name, top]


def missing_file_phrase(data_dir: Folder) -> str:
    """Returns a phrase for `data_dir` that is not the file that a source needs.

    >>> missing_file_phrase(None), missing_file_phrase("no-such.csv")
    ('none was given', 'there is no file no-such.csv')
    """
    if data_dir is None:
        return "none was given"
    if not (path := Path(data_dir)).is_dir():
        return f"there is no file {data_dir}"
    inside = (file.suffix.lower() for pattern in ("*", "*/*") for file in path.glob(pattern))
    if any(suffix in PICTURES for suffix in inside):
        return f"{data_dir} is a folder of images, which the source folder reads: folder, or dirichlet-folder"
    return f"{data_dir} is a folder; pass the file in it"


Layouts = Mapping[str, Sequence[str]]


def has_file(place: Path, pattern: str) -> bool:
    """Returns whether a folder has a file or a folder of a pattern; a pipe, which may have no end, is none."""
    return any(path.is_file() or path.is_dir() for path in place.glob(pattern))


def locate(layouts: Layouts, places: Sequence[Path]) -> tuple[str, Path] | None:
    """Returns the first layout whose files are all in one folder, and that folder; None if there is none.

    Args:
        layouts: by name, glob patterns of the files of each layout in which a source may be stored.
        places: folders in the order of the search.

    >>> locate({"text": ["no-such-*.txt"]}, [Path(".")]) is None
    True
    """
    for layout, patterns in layouts.items():
        for place in places:
            if all(has_file(place, pattern) for pattern in patterns):
                return layout, place
    return None


def require(name: str, layouts: Layouts, places: Sequence[Path], remedy: str) -> tuple[str, Path]:
    """Returns the layout and the folder that `locate` finds.

    Args:
        name: name of the source, for the message.
        layouts, places: as for `locate`.
        remedy: instruction to get the files, the end of the message.

    Raises:
        FileNotFoundError: no layout is complete; the message names the first missing file of the most complete layout,
            the searched folders, and the remedy.
    """
    if (located := locate(layouts, places)) is not None:
        return located

    def missing(patterns: Sequence[str], place: Path) -> list[str]:
        return [pattern for pattern in patterns if not has_file(place, pattern)]

    # The most complete layout is probably the intended one.
    candidates = [(patterns, missing(patterns, place), place) for patterns in layouts.values() for place in places]
    patterns, lacking, place = max(candidates, key=lambda each: (len(each[0]) - len(each[1])) / len(each[0]))
    if len(lacking) < len(patterns):
        raise FileNotFoundError(f"{name} needs {lacking[0]}, which is not among the files in {place}; {remedy}.")
    looked = " or ".join(map(str, places))
    ways = " or ".join(", ".join(patterns) for patterns in layouts.values())
    raise FileNotFoundError(f"{name} needs {ways}: not found in {looked}; {remedy}.")
