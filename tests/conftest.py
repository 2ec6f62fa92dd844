"""Fixtures that every test may ask for; the settings of JAX are in `tests/plugin.py`."""

from types import SimpleNamespace

import jax
import pytest
from matplotlib.figure import Figure

from jaxfl.jobs import job
from jaxfl.simulation.program import shapes_of


@pytest.fixture
def key():
    """The one root key of the tests: whoever needs another number gives another address, not another seed."""
    return jax.random.key(0)


@pytest.fixture
def empty_pictures(monkeypatch):
    """Leaves the pictures in a run's folder empty: to draw them takes longer than a small run."""
    monkeypatch.setattr(job, "plots", SimpleNamespace(convergence=lambda _: Figure(), clusters=lambda _: Figure()))


@pytest.fixture(scope="module")
def shared_tools():
    """Gives all runs of a file with the same settings, on data of the same shapes, one method, and so its programs.

    As the seeds of one command share them (see `job.Tools`): each command would else trace and compile anew. Returns
    what makes the tools otherwise.
    """
    tools, methods, of = {}, {}, job.Tools.of

    def shared(one, data, others=None):
        if others is not None or one.settings.files():  # whose contents may change
            return of(one, data, others)
        defaults, shapes = one.settings.defaults(), shapes_of(data.in_programs())
        given = {name: value for name, value in one.settings.complete().items() if value != defaults.get(name, ())}
        own = {name: value for name, value in given.items() if not name.startswith("run.finetune")}
        if (same := (repr(given), shapes)) not in tools:
            made = of(one, data)
            tools[same] = made._replace(method=methods.setdefault((repr(own), shapes), made.method))
        return tools[same]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job.Tools, "of", shared)
        yield of
