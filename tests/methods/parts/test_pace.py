"""Learning rates that change from round to round."""

import jax
import jax.numpy as jnp
import optax
import pytest

import jaxfl
from jaxfl.cohort import Cohort
from jaxfl.methods import METHODS
from jaxfl.testing.compare import assert_close
from jaxfl.testing.small import COHORT, federation, linear_task
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=2)

TASK = linear_task()


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedsgd", {}),
        ("ifca", {"num_clusters": 2, "average": "gradients"}),
        ("ditto", {"proximal_weight": (0.1, 2.0), "local_epochs": 2}),
    ],
)
def test_a_rate_is_another_learning_rate(name, options, key):
    """Of methods that make steps of their own, or choose among them; the others leave it to `local_train`."""
    data, cohort = federation(), Cohort.of(COHORT)
    whole, half = (METHODS[name].factory(TASK, optax.sgd(rate), **options) for rate in (0.4, 0.2))
    start = jax.jit(whole.init)(key, data)
    scheduled = jaxfl.scheduled(whole, lambda number: 0.5)
    found, wanted = (jax.jit(one.round)(key, start, data, cohort)[0] for one in (scheduled, half))
    assert_close(found, wanted, "half the steps are those of half the learning rate")


@pytest.mark.slow
def test_the_schedule_goes_by_the_round():
    """Wherever the rows and the seeds are; a schedule on top of another one multiplies it."""
    method, data, key = METHODS["fedavg"].factory(TASK, optax.sgd(0.3), local_epochs=1), federation(), jax.random.key(0)
    start, everybody = jax.jit(method.init)(key, data), Cohort.of(range(data.num_clients))
    first = jax.jit(method.round)(key, start, data, everybody)[0].model
    stops = jaxfl.scheduled(method, optax.piecewise_constant_schedule(1.0, {1: 0.0}))
    twice = jaxfl.scheduled(jaxfl.scheduled(method, lambda number: 2.0), lambda number: jnp.where(number < 1, 0.5, 0.0))
    for one, options in ((stops, {}), (twice, {"resident": False})):
        found = jaxfl.run(one, federation(), rounds=3, **options)
        assert_close(found.state.model, first, "nobody moves once the rate is 0")
        assert found.data.rate is None


def test_what_is_no_rate_is_refused():
    method = METHODS["fedavg"].factory(TASK, optax.sgd(0.3))
    with pytest.raises(ValueError, match=mentions("schedule", "float32[2]")):
        jaxfl.scheduled(method, lambda number: jnp.ones(2))
    with pytest.raises(TypeError, match=mentions("schedule", 0.5, "optax.cosine_decay_schedule")):
        jaxfl.scheduled(method, 0.5)
