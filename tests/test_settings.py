"""The settings that the other tests lean on are in force."""

import warnings

import jax
import jax.numpy as jnp
import pytest


def test_promotions_are_refused():
    with pytest.raises(ValueError, match="strict"):
        jnp.ones(2, jnp.float32) + jnp.ones(2, jnp.int32)
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.ones((3, 2)) + jnp.ones(2)


def test_warnings_are_errors():
    with pytest.raises(UserWarning, match="heard"):
        warnings.warn("heard", UserWarning, stacklevel=1)


def test_cpu_is_four_devices():
    if jax.default_backend() != "cpu":
        pytest.skip("an accelerator has the devices that it has")
    assert jax.device_count() == 4
