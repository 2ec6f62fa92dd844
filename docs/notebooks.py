"""Runs the notebooks and saves what they show in them: `python docs/notebooks.py`, or with the paths of some of them.

What is saved says nothing of when and where it was made: no execution counts, no progress, pictures in at most 256
colours. `tests/test_notebooks.py` runs the notebooks again and compares.
"""

import base64
import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "notebooks"
PICTURE = "image/png"
# What most kernels are started with: what compiles small programs faster, see `tests/plugin.py`.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": "--xla_cpu_parallel_codegen_split_count=1",
}
MEASURES = ("05_scaling",)  # notebooks that measure programs as users compile them
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.]*\w)")


def environment(path: Path) -> dict[str, str]:
    """Returns what the kernel of a notebook is started with."""
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""} if path.stem in MEASURES else ENVIRONMENT


def cells(notebook: Any) -> Iterator[tuple[int, Any]]:
    """Yields the code cells and where they are."""
    return ((index, cell) for index, cell in enumerate(notebook.cells) if cell.cell_type == "code")


def kept(outputs: list[Any]) -> list[Any]:
    """Returns the outputs of a cell that are saved: not the progress, which tells the time, and no warnings."""
    return [
        output
        for output in outputs
        if (output.output_type == "stream" and output.name == "stdout")
        or output.output_type == "execute_result"
        or (output.output_type == "display_data" and PICTURE in output.data)
    ]


def texts(outputs: list[Any]) -> list[str]:
    """Returns what a cell says in words; a picture, whose text is its size, says only that it is one."""
    found = []
    for output in kept(outputs):
        if output.output_type == "stream":
            found.append(output.text)
        else:
            found.append("picture" if PICTURE in output.data else output.data["text/plain"])
    return found


def agree(one: list[str], other: list[str], tolerance: float = 0.02) -> bool:
    """Returns whether two runs say the same, up to what another processor's rounding does to a printed number."""
    words = [[re.sub(r"\s+", " ", NUMBER.sub("#", text)) for text in texts] for texts in (one, other)]
    numbers = [[float(number) for text in texts for number in NUMBER.findall(text)] for texts in (one, other)]
    return words[0] == words[1] and all(abs(a - b) <= tolerance for a, b in zip(*numbers, strict=True))


def save(path: Path) -> None:
    """Runs a notebook and writes it with what it shows."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": path.parent}}).execute(
        env={**os.environ, **environment(path)}
    )
    for _, cell in cells(notebook):
        cell.execution_count = None
        cell.metadata.pop("execution", None)
        cell.outputs = kept(cell.outputs)
        for output in cell.outputs:
            output.pop("metadata", None) if output.output_type == "stream" else output.update(metadata={})
            if output.output_type == "execute_result":
                output.execution_count = None
            if PICTURE in output.get("data", {}):
                output.data = {PICTURE: _small(output.data[PICTURE]), "text/plain": "<Figure>"}
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    nbformat.write(notebook, path)


def _small(picture: str) -> str:
    """Returns a PNG in at most 256 colours."""
    from PIL import Image

    buffer = io.BytesIO()
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    image.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


if __name__ == "__main__":
    for notebook_path in [Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")):
        save(notebook_path)
