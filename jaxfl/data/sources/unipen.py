"""UNIPEN: pen-drawn characters of writers from many sites, rendered to 28 x 28 pixels, in one npz file."""

import dataclasses
from pathlib import Path

import numpy as np

from jaxfl.data.sources import checks, npz
from jaxfl.data.sources.base import Folder, Source, SourceEntry, folders, locate, require

FILE = "unipen_62.npz"
LAYOUTS = {"npz": [FILE]}
HELP = f"put {FILE} there (arrays x, y, writer, site, site_names, classes) or pass its folder as data_dir"
ARRAYS = ("x", "y", "writer", "site", "site_names", "classes")
FILE_NAMES = {"client": "writer", "group": "site"}  # names of arrays in the file, where they differ
NUM_DIGITS, NUM_LETTERS = 10, 26  # the classes: 0-9, A-Z, a-z
STRAY = 0.01  # largest share of rows from another site than most rows of their writer; 0.0008 in the real file


def unipen(data_dir: Folder = None) -> Source:
    """Returns UNIPEN's 62 classes of digits and letters, by writer, from `unipen_62.npz`.

    The file's arrays: `x [P, 28, 28]` uint8 with ink 255 on 0, `y [P]` in the order 0-9, A-Z, a-z, `writer [P]`,
    `site [P]` (the university, company or tablet of a writer, a natural group), `site_names` and `classes`. A writer
    of more than one site belongs to the site of most of its rows: in the real file this is one of 317 writers, with 82
    rows of another site.

    Args:
        data_dir: folder of the file, or the folder above its folder `unipen`.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: the file is damaged, or its arrays disagree.

    Reference: Guyon et al., "UNIPEN project of on-line data exchange and recognizer benchmarks", 1994.
    """
    _, folder = require("unipen", LAYOUTS, folders("unipen", data_dir), HELP)
    path = folder / FILE
    arrays, existing = npz.read(path, ARRAYS)
    if missing := [name for name in ARRAYS if name not in arrays]:
        raise ValueError(f"{path} must have the array {missing[0]}, got only {existing}; it is another file.")
    columns = {"client": arrays["writer"], "group": arrays["site"]}
    checks.check_rows(path, {"x": arrays["x"], "y": arrays["y"], **columns}, FILE_NAMES)
    for column, names in (("y", "classes"), ("site", "site_names")):
        checks.check_numbers(path, column, arrays[column], names, len(arrays[names]))
    if len(arrays["classes"]) != NUM_DIGITS + 2 * NUM_LETTERS:
        raise ValueError(
            f"{path}: classes must be 62 (0-9, A-Z, a-z), got {len(arrays['classes'])}; it is another file."
        )
    return Source(
        "unipen",
        arrays["x"],
        arrays["y"],
        len(arrays["classes"]),
        clients=arrays["writer"],
        client_groups=_home_sites(path, arrays["writer"], arrays["site"]),
        group_names=tuple(map(str, arrays["site_names"])),
        class_names=tuple(map(str, arrays["classes"])),
        mean=0.0,
        std=255.0,
    )


def letters(data_dir: Folder = None) -> Source:
    """Returns the case-folded letters of `unipen`, 26 classes as in EMNIST letters, of all writers with letters.

    Raises:
        FileNotFoundError, ValueError: as for `unipen`.
    """
    source = unipen(data_dir)
    rows = np.flatnonzero(source.labels >= NUM_DIGITS)
    clients, groups = source.clients, source.client_groups
    assert clients is not None and groups is not None
    sites, groups = np.unique(groups[rows], return_inverse=True)
    return dataclasses.replace(
        source,
        name="unipen-letters",
        inputs=source.inputs[rows],
        labels=(source.labels[rows] - NUM_DIGITS) % NUM_LETTERS,
        num_classes=NUM_LETTERS,
        clients=clients[rows],
        client_groups=groups.astype(np.int32),
        group_names=tuple(source.group_names[site] for site in sites),
        class_names=source.class_names[NUM_DIGITS : NUM_DIGITS + NUM_LETTERS],
    )


def _home_sites(path: Path, writers: np.ndarray, sites: np.ndarray) -> np.ndarray:
    """Returns the site of each row's writer `[P]`, the site of most of its rows; of equals the first."""
    _, writer = np.unique(writers, return_inverse=True)
    counts = np.zeros((writer.max(initial=-1) + 1, sites.max(initial=0) + 1), np.int64)  # [writers, sites]
    np.add.at(counts, (writer, sites), 1)
    home = counts.argmax(1)[writer]
    if (elsewhere := int((home != sites).sum())) > STRAY * len(sites):
        raise ValueError(
            f"{path}: each writer must belong to one site, got {elsewhere} of {len(sites)} rows from another site than "
            f"most of their writer's; the arrays writer and site do not belong together."
        )
    return home.astype(np.int32)


def _find_unipen(data_dir: Folder) -> Path | None:
    """Returns the folder of the file, or None."""
    located = locate(LAYOUTS, folders("unipen", data_dir))
    return None if located is None else located[1]


UNIPEN = SourceEntry(
    unipen,
    find=_find_unipen,
    summary="UNIPEN, 104,766 digits and letters of 28 x 28 pixels by 317 writers of 21 sites; 62 classes",
    licence="CC BY 4.0 (an older notice says research use)",
    num_bytes=13_210_158,
    num_classes=62,
    makers="writer",
    model=("lenet-emnist", {}),
)
LETTERS = UNIPEN._replace(
    load=letters,
    summary="UNIPEN's 89,017 letters of 28 x 28 pixels by 307 writers of 21 sites, case folded; 26 classes",
    num_classes=26,
)
