"""Fixtures that every test may ask for; the settings of JAX are in `tests/plugin.py`."""

from types import SimpleNamespace

import jax
import pytest
from matplotlib.figure import Figure

from jaxfl.jobs import job


@pytest.fixture
def key():
    """The one root key of the tests: whoever needs another number gives another address, not another seed."""
    return jax.random.key(0)


@pytest.fixture
def empty_pictures(monkeypatch):
    """Leaves the two pictures in a run's folder empty: to draw them takes longer than a small run.

    A patch of jaxfl for time alone: the files are there, and `tests/plots` draws the pictures.
    """
    monkeypatch.setattr(job, "plots", SimpleNamespace(convergence=lambda _: Figure(), clusters=lambda _: Figure()))
