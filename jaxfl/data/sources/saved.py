"""A federation that was saved: no examples to cut, but clients with their rows; `jaxfl.data.stored` reads it."""

from pathlib import Path

from jaxfl.data.sources.base import Folder, Source, SourceEntry

NAME, HEADER = "saved", "federation.json"


def load(data_dir: Folder = None) -> Source:
    """Says what is missing.

    Raises:
        FileNotFoundError: always.
    """
    where = "data_dir names no folder" if data_dir is None else f"{data_dir} holds no {HEADER}"
    raise FileNotFoundError(
        f"saved needs the folder of a federation, and {where}; jaxfl data NAME --save DIR writes one"
    )


def find(data_dir: Folder) -> Path | None:
    """Returns the folder, None where no federation is in it."""
    return Path(data_dir) if data_dir is not None and (Path(data_dir) / HEADER).is_file() else None


ENTRY = SourceEntry(
    load,
    find,
    summary="a federation that jaxfl data NAME --save DIR wrote, in the folder that data_dir names",
    licence="that of its source",
    user_files=lambda place: [place / HEADER, *place.glob("*.npy")],
    num_bytes=0,
    num_classes=None,
)
