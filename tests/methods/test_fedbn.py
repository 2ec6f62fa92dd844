"""FedBN: which layers it finds, and that it is FedPer with them; a round of it is in tests/models/test_adapters.py."""

import jax
import jax.numpy as jnp
import optax
import pytest

import jaxfl
from jaxfl import methods, tree
from jaxfl.tasks import Task
from tests import problems
from tests.messages import mentions


def personal_names(names, **options):
    """Returns what clients keep of a model whose parameters have these names."""

    def init(key):
        model: dict = {}
        for name in names:
            *layers, leaf = name.split("/")
            place = model
            for layer in layers:
                place = place.setdefault(layer, {})
            place[leaf] = jnp.zeros(2)
        return model

    task = Task(init, problems.softmax_task().loss, problems.softmax_task().outputs)
    method = methods.fedbn(task, optax.sgd(0.1), **options)
    return tree.names(jax.eval_shape(method.init, jax.random.key(0), problems.linear_federation()).heads)


def test_layers_are_found_by_their_names():
    own = ["BatchNorm_0/scale", "block/bn1/mean", "block/LayerNorm_3/bias", "input_norm/var"]
    others = ["Dense_0/bias", "subnet/kernel", "normalise_not/Dense_0/kernel"]
    assert set(personal_names([*own, *others])) == {*own, "normalise_not/Dense_0/kernel"}  # what is below one is of it
    assert personal_names(own, personal="mean") == ["block/bn1/mean"]


def test_a_network_without_them_is_refused():
    with pytest.raises(ValueError, match=mentions("personal", "Dense_0/bias", "mlp-batch-norm")):
        personal_names(["Dense_0/bias"])
    with pytest.raises(ValueError, match=mentions("Dense_7", "Dense_0/bias")):
        personal_names(["Dense_0/bias"], personal="Dense_7")
    data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=5)
    task = jaxfl.classification(jaxfl.models.create("mlp-batch-norm", 10), data)
    assert methods.fedbn(task, optax.sgd(0.1)).task is task
