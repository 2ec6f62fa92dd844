"""Plans: how many clients are trained side by side, on which devices."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfl
from docs import notebooks
from jaxfl import cohort
from jaxfl.cohort import Plan, resolve_plan
from tests.messages import mentions


def mesh(count):
    return jax.sharding.Mesh(np.array(jax.devices()[:count]), ("clients",))


def test_a_plan_for_this_machine_maps_small_models_only():
    small, large = (jax.ShapeDtypeStruct((count,), jnp.float32) for count in (10, 10**6))
    if jax.default_backend() == "cpu":
        assert resolve_plan("auto", small, 12).chunk == 12
        assert resolve_plan("auto", large, 12).chunk == 1
        assert resolve_plan("auto", small, 12, models=5).chunk == 12  # 60 models side by side
        assert resolve_plan("auto", small, 12, models=40).chunk == cohort.MOST_MAPPED // 40
        assert resolve_plan("auto", large, 12, models=5).chunk == 1


def test_a_plan_that_is_given_is_taken_and_anything_else_refused():
    given = Plan(chunk=None)
    assert resolve_plan(given, jax.ShapeDtypeStruct((10,), jnp.float32), 12, models=5) == given
    with pytest.raises(ValueError, match=mentions("plan", "fast", "Plan(chunk=8)")):
        resolve_plan("fast", jax.ShapeDtypeStruct((10,), jnp.float32), 12)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="what is asked for depends on how many devices there are")
def test_devices_are_counted_and_refused():
    small = jax.ShapeDtypeStruct((10,), jnp.float32)
    assert resolve_plan("auto", small, 12).mesh is None, "the cores of one CPU are one device"
    spread = resolve_plan("auto", small, 12, devices=2)
    assert spread.mesh.size == 2 and spread.chunk == 6
    assert resolve_plan(Plan(3), small, 12, devices="all") == Plan(3, mesh(4))
    for devices in (0, 5, "some"):
        with pytest.raises(ValueError, match=mentions("devices", repr(devices))):
            resolve_plan("auto", small, 12, devices=devices)
    with pytest.raises(ValueError, match=mentions("devices", 2)):
        resolve_plan(spread, small, 12, devices=2)


CORES = """
import os, jax, jaxfl, optax
from jaxfl.cohort import resolve_plan
from jaxfl.simulation import devices
assert jaxfl.use_cores(3) == 3
assert all(flag in os.environ["XLA_FLAGS"] for flag in devices.PATIENCE)
model = {"w": jax.numpy.ones(9)}
assert resolve_plan("auto", model, 10).mesh.size == jax.device_count() == 3
assert resolve_plan("auto", model, 10, devices=1).mesh is None
assert jaxfl.use_cores(2) == 3, "JAX has started"
data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
method = jaxfl.methods.kfed(jaxfl.classification(jaxfl.models.Logistic(10), data), optax.sgd(0.1), num_clusters=2)
for devices, number in ((None, 3), (2, 2)):  # its first stage takes the same
    assert jaxfl.run(method, data, rounds=1, devices=devices).summary["devices"] == number
"""


def test_processes_have_as_many_devices(monkeypatch):
    four = jax.local_devices()
    shares = {None: four[:2], 0: four[:2], 1: four[2:]}
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "local_devices", lambda process=None: shares[process])
    one, all_of_them = (resolve_plan(Plan(1), {}, 9, devices=devices).mesh for devices in (1, "all"))
    assert [*one.devices] == [four[0], four[2]] and [*all_of_them.devices] == four
    assert resolve_plan(Plan(1), {}, 9).mesh == one, "a plan without devices, too"
    shares[1] = four[3:]
    with pytest.raises(ValueError, match=mentions("devices", "[2, 1]", "CUDA_VISIBLE_DEVICES")):
        resolve_plan(Plan(1), {}, 9, devices="all")


@pytest.mark.slow
def test_cores_are_devices_where_jax_has_not_started():
    environment = os.environ | notebooks.ENVIRONMENT  # compiled quickly, and nothing said of devices
    subprocess.run([sys.executable, "-c", CORES], check=True, env=environment)


def test_cores_are_left_alone_where_jax_has_started():
    before, flags = jax.config.values["jax_num_cpu_devices"], os.environ["XLA_FLAGS"]
    assert jaxfl.use_cores(2) == 1
    with pytest.raises(TypeError, match=mentions("count", 2)):
        jaxfl.use_cores("2")
    with pytest.raises(ValueError, match=mentions("count", 0)):
        jaxfl.use_cores(0)
    assert (jax.config.values["jax_num_cpu_devices"], os.environ["XLA_FLAGS"]) == (before, flags)
    assert resolve_plan("auto", {"w": jnp.ones(9)}, 10).mesh is None, "four devices, which are no cores"
