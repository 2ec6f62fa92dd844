"""Sources of examples, before a skew divides them among clients.

A source is one module with a loader, and one `SourceEntry` in `SOURCES`. A package adds a source by an entry point
`jaxfl.data` that names its `SourceEntry`. A loader takes the folder of its files and returns a `Source`. Nothing is
downloaded unless the user requests it. The error of a missing file names the file, the folders that were searched, and
an address to get it from. Heavy libraries are imported only by the loader that needs them.
"""

import inspect
from typing import Any

from jaxfl.data.sources import (
    ag_news,
    celeba,
    cifar10,
    cifar100,
    cinic10,
    digits,
    emnist,
    femnist,
    folder,
    fortunes,
    linear_mixture,
    mnist,
    npz,
    parquet,
    ratings,
    saved,
    shakespeare,
    table,
    tfds,
    tiny_imagenet,
    unipen,
)
from jaxfl.data.sources.base import Folder, Remote, Source, SourceEntry, home
from jaxfl.files import user_path
from jaxfl.schema import check_name, installed_entry_points, load_entry_point

GROUP = "jaxfl.data"
SOURCES: dict[str, SourceEntry] = {
    "digits": digits.ENTRY,
    "mnist": mnist.MNIST,
    "fashion-mnist": mnist.FASHION_MNIST,
    "kmnist": mnist.KMNIST,
    "cifar10": cifar10.ENTRY,
    "cifar100": cifar100.ENTRY,
    "cinic10": cinic10.ENTRY,
    "tiny-imagenet": tiny_imagenet.ENTRY,
    "femnist": femnist.ENTRY,
    **emnist.ENTRIES,
    "unipen": unipen.UNIPEN,
    "unipen-letters": unipen.LETTERS,
    "celeba": celeba.ENTRY,
    "ag-news": ag_news.ENTRY,
    "fortunes": fortunes.ENTRY,
    "shakespeare": shakespeare.ENTRY,
    "ratings": ratings.ENTRY,
    "linear-mixture": linear_mixture.ENTRY,
    "npz": npz.ENTRY,
    "parquet": parquet.ENTRY,
    "table": table.ENTRY,
    "folder": folder.ENTRY,
}


def entry(name: str) -> SourceEntry:
    """Returns the entry of a source; `tfds:<name>` is a data set prepared by tensorflow-datasets, `saved` a federation.

    Raises:
        ValueError: there is no source of this name.
    """
    if name == saved.NAME:
        return saved.ENTRY
    if name.startswith("tfds:"):
        return tfds.entry(name.removeprefix("tfds:"))
    if name in SOURCES:
        return SOURCES[name]
    check_name("source", name, names())
    loaded = load_entry_point(GROUP, name)
    if not isinstance(loaded, SourceEntry):
        raise ValueError(f"source {name} must be a jaxfl.data.sources.SourceEntry, got a {type(loaded).__name__}.")
    return loaded


def names() -> list[str]:
    """Returns the names of all sources of jaxfl and of installed packages (entry points `jaxfl.data`)."""
    return [*SOURCES, *(name for name in installed_entry_points(GROUP) if name not in SOURCES)]


def defaults(name: str) -> dict[str, Any]:
    """Returns the options of a source's loader with their defaults.

    >>> defaults("celeba")
    {'target': 'Smiling', 'min_images': 5, 'size': 84}
    """
    parameters = inspect.signature(entry(name).load).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


def load(name: str, data_dir: Folder = None, **options: Any) -> Source:
    """Returns the examples of a source.

    A file `<name>.npz`, written by `npz.save` beside the source's files, is read instead, because some formats take
    minutes to read. It is not read if it has no makers and the source's files now have them.

    Args:
        name: name in `SOURCES`, or `tfds:<name>`.
        data_dir: folder of its files.
        **options: keyword-only arguments of its loader.
    """
    data_dir = None if data_dir is None else user_path(data_dir)
    source_entry, converted = (
        entry(name),
        npz.find_converted(name, data_dir, defaults(name) | options) if _has_converted_form(name) else None,
    )
    if converted is None or (_has_makers_file(source_entry, data_dir) and "client" not in npz.read(converted, ())[1]):
        return source_entry.load(data_dir, **options)
    return npz.load(converted)


def _has_converted_form(name: str) -> bool:
    """Returns whether a file that `npz.save` wrote is read in place of a source's own files."""
    return name in SOURCES and not SOURCES[name].labels_in_paths  # `folder.npz` may be in anybody's folder of images


def _has_makers_file(source_entry: SourceEntry, data_dir: Folder) -> bool:
    """Returns whether a source's files exist, together with the file that names the makers."""
    place = source_entry.find(data_dir) if source_entry.makers_file and source_entry.find else None
    return place is not None and any(place.glob(source_entry.makers_file))


def located(name: str, data_dir: Folder = None, *, makers: bool = False) -> str | None:
    """Returns the location that a source is read from, `"embedded"` without files, or None if they are missing.

    Args:
        name: name of the source.
        data_dir: as for its loader.
        makers: whether the makers of the examples must be known as well.

    >>> located("digits"), located("mnist", "no-such-folder")
    ('embedded', None)
    """
    source_entry = entry(name)
    if source_entry.find is None:
        return "embedded"
    try:
        place = (
            None
            if (makers and source_entry.makers_file) or source_entry.labels_in_paths
            else npz.find_converted(name, data_dir, defaults(name))
        )
    except ValueError:  # converted with other options, or damaged: `load` raises the error
        place = None
    place = place or source_entry.find(data_dir)
    if place is None or (makers and source_entry.makers_file and not any(place.glob(source_entry.makers_file))):
        return None
    return str(place)


__all__ = [
    "SOURCES",
    "Folder",
    "Remote",
    "Source",
    "SourceEntry",
    "defaults",
    "entry",
    "home",
    "load",
    "located",
    "names",
]
