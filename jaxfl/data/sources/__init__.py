"""Sources: where examples come from, before any skew is cut into them.

A source is one module with a loader and one `Row` in `SOURCES`; a package brings one by an entry point `jaxfl.data`,
which names its `Row`. A loader takes the place where its files lie and returns a `Source`. Nothing is downloaded unless
it is asked for; a missing file is named, with the folders looked in and the place to get it. Heavy libraries are
imported only by the loader that needs them.
"""

import inspect
from typing import Any

from jaxfl.data.sources import (
    celeba,
    cifar10,
    cifar100,
    digits,
    emnist,
    femnist,
    fortunes,
    mnist,
    npz,
    parquet,
    ratings,
    saved,
    shakespeare,
    table,
    tfds,
    unipen,
)
from jaxfl.data.sources.base import Folder, Remote, Row, Source, home
from jaxfl.schema import brought, check_name, installed

GROUP = "jaxfl.data"
SOURCES: dict[str, Row] = {
    "digits": digits.ROW,
    "mnist": mnist.MNIST,
    "fashion-mnist": mnist.FASHION_MNIST,
    "cifar10": cifar10.ROW,
    "cifar100": cifar100.ROW,
    "femnist": femnist.ROW,
    **emnist.ROWS,
    "unipen": unipen.UNIPEN,
    "unipen-letters": unipen.LETTERS,
    "celeba": celeba.ROW,
    "fortunes": fortunes.ROW,
    "shakespeare": shakespeare.ROW,
    "ratings": ratings.ROW,
    "npz": npz.ROW,
    "parquet": parquet.ROW,
    "table": table.ROW,
}


def row(name: str) -> Row:
    """Returns the row of a source; `tfds:<name>` reads what tensorflow-datasets has prepared, `saved` a federation.

    Raises:
        ValueError: there is none of this name.
    """
    if name == saved.NAME:
        return saved.ROW
    if name.startswith("tfds:"):
        return tfds.row(name.removeprefix("tfds:"))
    if name in SOURCES:
        return SOURCES[name]
    check_name("source", name, names())
    found = brought(GROUP, name)
    if not isinstance(found, Row):
        raise ValueError(f"source {name} must be a jaxfl.data.sources.Row, got a {type(found).__name__}.")
    return found


def names() -> list[str]:
    """Returns the names of all sources: of jaxfl, and of installed packages (entry points `jaxfl.data`)."""
    return [*SOURCES, *(name for name in installed(GROUP) if name not in SOURCES)]


def defaults(name: str) -> dict[str, Any]:
    """Returns the options of a source's loader and their defaults.

    >>> defaults("celeba")
    {'target': 'Smiling', 'min_images': 5, 'size': 84}
    """
    words = inspect.signature(row(name).load).parameters.values()
    return {word.name: word.default for word in words if word.kind is word.KEYWORD_ONLY}


def load(name: str, data_dir: Folder = None, **options: Any) -> Source:
    """Returns the examples of a source.

    A file `<name>.npz` that `npz.save` made of the source is read instead, where it lies with the source's files: some
    formats take minutes to read. It is not where it does not know the makers and the source's files do, by now.

    Args:
        name: of `SOURCES`, or `tfds:<name>`.
        data_dir: where its files are.
        **options: the keyword-only arguments of its loader.
    """
    one, converted = row(name), npz.converted(name, data_dir, defaults(name) | options) if name in SOURCES else None
    if converted is None or (_knows_makers(one, data_dir) and "client" not in npz.read(converted, ())[1]):
        return one.load(data_dir, **options)
    return npz.load(converted)


def _knows_makers(one: Row, data_dir: Folder) -> bool:
    """Returns whether a source's files are there, with the file beside them that names the makers."""
    place = one.find(data_dir) if one.makers_file else None
    return place is not None and any(place.glob(one.makers_file))


def located(name: str, data_dir: Folder = None, *, makers: bool = False) -> str | None:
    """Returns where a source would be read from, `"embedded"` for the digits, or None if its files are missing.

    Args:
        name: of the source.
        data_dir: as for its loader.
        makers: whether the makers of the examples must be known, too.

    >>> located("digits"), located("mnist", "no-such-folder")
    ('embedded', None)
    """
    if name == "digits":
        return "embedded"
    one = row(name)
    try:
        place = npz.converted(name, data_dir, defaults(name)) if not (makers and one.makers_file) else None
    except ValueError:  # converted with other options, or damaged: `load` says which
        place = None
    place = place or one.find(data_dir)
    if place is None or (makers and one.makers_file and not any(place.glob(one.makers_file))):
        return None
    return str(place)


__all__ = ["SOURCES", "Folder", "Remote", "Row", "Source", "defaults", "home", "load", "located", "names", "row"]
