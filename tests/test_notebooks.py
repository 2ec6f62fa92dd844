"""The notebooks run, each cell a second time as well, and say what is saved in them."""

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from docs import notebooks

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def said(outputs):
    """Returns what a cell printed and showed; progress, on its own display, tells the time and is left out."""
    found = []
    for output in outputs:
        if output.output_type == "stream" and output.name == "stdout":
            found.append(output.text)
        if output.output_type == "execute_result":
            found.append(output.data.get("image/png") or output.data["text/plain"])
    return found


def complaints(outputs):
    """Returns what went to the error stream: warnings. The first use of matplotlib on a machine lists its fonts."""
    streams = [output.text for output in outputs if output.output_type == "stream" and output.name == "stderr"]
    return [text for text in streams if "font cache" not in text]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """A kernel for all notebooks, started when the first one runs: this interpreter, whatever a user has installed."""
    folder = tmp_path_factory.mktemp("kernel")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, os.fspath(folder / name))
        patch.delenv("MPLBACKEND", raising=False)
        # not as what is saved was made: what a notebook measures is in its pictures, and here they need not be good
        environment = {**os.environ, **notebooks.ENVIRONMENT}
        client = NotebookClient(nbformat.v4.new_notebook(), timeout=900, kernel_name="python3")
        with client.setup_kernel(cwd=os.fspath(ROOT / "notebooks"), env=environment):
            yield client


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, kernel):
    """The first one twice, as people do: cells must not depend on what is left of before."""
    notebook, saved = nbformat.read(path, as_version=4), nbformat.read(path, as_version=4)
    cells = list(notebooks.cells(notebook))
    notebook.cells.append(nbformat.v4.new_code_cell("%reset -f"))  # nothing is left of the notebook before
    kernel.nb = notebook
    first, second = {}, {}
    twice = path == NOTEBOOKS[0]
    kernel.execute_cell(notebook.cells[-1], len(notebook.cells) - 1)
    for seen in (first, second) if twice else (first,):
        for index, cell in cells:
            kernel.execute_cell(cell, index)
            assert complaints(cell.outputs) == []
            seen[index] = said(cell.outputs)
            shown, kept = notebooks.texts(cell.outputs), notebooks.texts(saved.cells[index].outputs)
            assert notebooks.agree(shown, kept), (
                f"run `python docs/notebooks.py notebooks/{path.name}`: {kept} is now {shown}"
            )
    assert second in ({}, first)
    everything = "".join(line for lines in first.values() for line in lines)
    if twice:
        assert second
        assert "clusters 4, ARI 1.000" in everything


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_saved(path):
    """What they show, and nothing of when and where they were run."""
    cells = [cell for _, cell in notebooks.cells(nbformat.read(path, as_version=4))]
    outputs = [output for cell in cells for output in cell.outputs]
    assert sum(notebooks.PICTURE in output.get("data", {}) for output in outputs) >= 3
    assert notebooks.kept(outputs) == outputs
    assert all(cell.execution_count is None and "execution" not in cell.metadata for cell in cells)
    words = "".join(
        str({**output.get("data", {}), notebooks.PICTURE: ""}) + output.get("text", "") for output in outputs
    )
    assert re.findall(r"/(?:home|root|tmp)/|site-packages|Warning|0x[0-9a-f]{6}", words) == []
    assert path.stat().st_size < 300_000


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (["accuracy 0.912, clusters 4\n", "picture"], True),
        (["accuracy 0.92, clusters 4\n", "picture"], True),
        (["accuracy 0.81, clusters 4\n", "picture"], False),
        (["accuracy 0.912, clusters 5\n", "picture"], False),
        (["accuracy 0.912, groups 4\n", "picture"], False),
        (["accuracy 0.912, clusters 4\n"], False),
    ],
)
def test_rounding_is_no_difference(other, same):
    assert notebooks.agree(["accuracy 0.912, clusters 4\n", "picture"], other) is same
