"""What is sent is counted: however large a model is (an integer of JAX ends at 2 GB), and before the first round."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl.cohort import Cohort
from jaxfl.methods import METHODS
from jaxfl.methods.base import served_model
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


@pytest.mark.rotating
@pytest.mark.parametrize("name", OPTIONS)
def test_a_round_with_models_beyond_2_gb_is_lowered(name, key):
    data = problems.linear_federation()
    task = jaxfl.classification(jaxfl.models.MLP(hidden=(150_000_000,), num_classes=2), data)
    method = METHODS[name].factory(task, optax.sgd(0.1), **OPTIONS[name])
    state = jax.eval_shape(method.init, key, data)
    _, seen = jax.eval_shape(method.round, key, state, data, Cohort.of(jnp.arange(2)))
    assert seen.bytes_up.dtype == seen.bytes_down.dtype == jnp.float32


# what one of all clients sends and is sent before the first round, in numbers of its type: the network has 20
ONCE = {
    "fedgroup": ({"num_clusters": 2}, 20, 20),
    "fesem": ({"num_clusters": 2}, 20, 20),
    "fesem_ma": ({"num_clusters": 2}, 20, 20),
    "kfed": ({"num_clusters": 2, "layers": "Dense_1/kernel"}, 6, 20),
    "robust": ({"num_clusters": 2, "layers": "Dense_1/kernel"}, 6, 20),
    "wecfl": ({"num_clusters": 2}, 20, 20),
    "wecfl, official": ({"num_clusters": 2, "preset": "official"}, 20, 20),
    "pacfl": ({"rank": 2}, 2 * 3, 0),
}


@pytest.mark.rotating
@pytest.mark.parametrize("name", ONCE)
def test_what_is_exchanged_before_the_first_round_is_counted_in_it(name, key):
    """Of two clients that are held out and one without rows nothing is."""
    data = problems.linear_federation(sizes=(5, 2, 3, 8, 3, 0, 4))
    data = replace(data, held_out=np.isin(np.arange(7), [1, 4])).on_device()
    task = jaxfl.classification(jaxfl.models.MLP(hidden=(3,), num_classes=2), data)
    options, up, down = ONCE[name]
    method = METHODS[name.partition(",")[0]].factory(task, optax.sgd(0.1), **options)
    state = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), jax.eval_shape(method.init, key, data))
    if name == "pacfl":
        state = state._replace(bases=state.bases.at[5].set(0))

    @jax.jit
    def sent(round):  # which makes a program of the bytes alone
        info = method.round(key, state._replace(round=round), data, Cohort.of(jnp.array([0, 2])))[1]
        return info.bytes_up, info.bytes_down

    number, asked = served_model(method, state)["Dense_0"]["kernel"].dtype.itemsize, 4
    a_round = 2 * 20 * number
    assert sent(1) == (a_round, a_round)
    assert sent(0) == (a_round + asked * up * number, a_round + asked * down * number)
