"""Files that are whole or as they were, whenever the process is killed or the machine stops."""

import contextlib
import os
from pathlib import Path


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file, whole or not at all; the folder must be there.

    Args:
        path: of the file, which is replaced.
        content: of it.

    Raises:
        OSError: it cannot be written; the file is as it was.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_bytes(Path(folder, "a"), b"new")
    ...     [(one.name, one.read_bytes()) for one in Path(folder).iterdir()]
    [('a', b'new')]
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()  # the disk may be full of it
        raise


def write_text(path: Path, text: str) -> None:
    """Writes text in UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8"))
