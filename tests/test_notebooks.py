"""The notebooks run, each cell a second time as well, and say the same again."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


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


@pytest.fixture
def local_kernels(monkeypatch, tmp_path):
    """Lets the kernel be this interpreter, whatever is installed for the user."""
    for name in ("JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")  # compiles faster, see plugin.py
    monkeypatch.delenv("MPLBACKEND", raising=False)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, local_kernels):
    """The first one twice in a kernel, as people do: cells must not depend on what is left of before."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=900, kernel_name="python3")
    first, second = {}, {}
    with client.setup_kernel(cwd=os.fspath(path.parent)):
        for seen in (first, second) if path == NOTEBOOKS[0] else (first,):
            for index, cell in enumerate(notebook.cells):
                if cell.cell_type == "code":
                    client.execute_cell(cell, index)
                    assert complaints(cell.outputs) == []
                    seen[index] = said(cell.outputs)
    assert second in ({}, first)
    everything = "".join(line for lines in first.values() for line in lines)
    if path == NOTEBOOKS[0]:
        assert second
        assert "clusters 4, ARI 1.000" in everything


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_cleared(path):
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert cells
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)
