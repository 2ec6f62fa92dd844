"""Figures and their files."""

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.texmanager import TexManager

from jaxfl.plots import style


def draw(figure):
    left, right = figure.subplots(1, 2)
    for axes in (left, right):
        axes.plot(np.arange(5), label="a line with a long name")
        axes.set_title("a title")
    figure.legend(loc="outside right upper")
    return figure


@pytest.mark.parametrize("box", [None, "tight"])
@pytest.mark.parametrize("form", ["png", "svg"])
def test_a_file_is_that_of_matplotlib_and_drawn_once(box, form, tmp_path, monkeypatch):
    """Matplotlib draws twice, the first time for the layout alone."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    monkeypatch.setitem(matplotlib.rcParams, "svg.hashsalt", "same")
    draws, usual = [], Figure.draw
    monkeypatch.setattr(Figure, "draw", lambda self, renderer: (draws.append(self), usual(self, renderer))[1])
    draw(style.figure((6, 2))).savefig(tmp_path / "ours", format=form, bbox_inches=box)
    assert len(draws) == 1
    draw(Figure((6, 2), layout="constrained")).savefig(tmp_path / "plain", format=form, bbox_inches=box)
    assert len(draws) == 3
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "plain").read_bytes()


def test_texts_are_no_latex(tmp_path, monkeypatch):
    """A `matplotlibrc` of the current folder may set LaTeX, which would execute names, and what its preamble says."""
    monkeypatch.setitem(matplotlib.rcParams, "text.usetex", True)
    monkeypatch.setattr(TexManager, "make_dvi", lambda *arguments: pytest.fail("LaTeX is run"))
    draw(style.figure((6, 2))).savefig(tmp_path / "picture.svg")
    assert matplotlib.rcParams["text.usetex"]
