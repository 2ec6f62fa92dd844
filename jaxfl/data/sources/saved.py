"""Source entry of a saved federation, which has clients with their rows; `jaxfl.data.stored` reads it."""

from pathlib import Path

from jaxfl.data.sources.base import Folder, Source, SourceEntry

NAME, HEADER = "saved", "federation.json"


def load(data_dir: Folder = None) -> Source:
    """Raises the error for a missing federation.

    Raises:
        FileNotFoundError: always; the message names the missing folder or file.
    """
    where = "data_dir was not given" if data_dir is None else f"{data_dir} has no {HEADER}"
    raise FileNotFoundError(
        f"saved needs the folder of a federation, but {where}; jaxfl data NAME --save DIR writes one"
    )


def find(data_dir: Folder) -> Path | None:
    """Returns the folder if it has a federation, or None."""
    return Path(data_dir) if data_dir is not None and (Path(data_dir) / HEADER).is_file() else None


ENTRY = SourceEntry(
    load,
    find,
    summary="a federation that jaxfl data NAME --save DIR wrote, in the folder that data_dir names",
    licence="that of its source",
    user_files=lambda place: [place / HEADER, *place.glob("*.npy")],
    num_bytes=0,
    num_classes=None,
    model=("auto", {}),
)
