"""What is sent is counted however large a model is: an integer of JAX ends at 2 GB."""

import jax
import jax.numpy as jnp
import optax
import pytest

import jaxfl
from jaxfl.cohort import Cohort
from jaxfl.methods import METHODS
from tests import problems

# whoever counts more than a model up and a model down for each client of a cohort
OPTIONS = {
    "fedavg": {},
    "ifca": {"num_clusters": 3},
    "flhc": {"warmup_rounds": 0, "threshold": 1.0, "sketch_size": 8},
    "stocfl": {},
    "fedem": {"estimate": "everybody"},
    "fedsoft": {},
    "feddrift": {"slots": 2},
    "lg_fedavg": {"warmup_rounds": 1},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_round_with_models_beyond_2_gb_is_lowered(name, key):
    data = problems.linear_federation()
    task = jaxfl.classification(jaxfl.models.MLP(hidden=(150_000_000,), num_classes=2), data)
    method = METHODS[name].factory(task, optax.sgd(0.1), **OPTIONS[name])
    state = jax.eval_shape(method.init, key, data)
    _, seen = jax.eval_shape(method.round, key, state, data, Cohort.of(jnp.arange(2)))
    assert seen.bytes_up.dtype == seen.bytes_down.dtype == jnp.float32
