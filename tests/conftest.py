"""Fixtures that every test may ask for; the settings of JAX are in `tests/plugin.py`."""

import jax
import pytest


@pytest.fixture
def key():
    """The one root key of the tests: whoever needs another number gives another address, not another seed."""
    return jax.random.key(0)
