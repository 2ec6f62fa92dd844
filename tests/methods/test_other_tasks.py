"""Every method learns numbers and tokens too: nothing of it knows of classes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import tree
from jaxfl.analysis import comparison
from jaxfl.cohort import Cohort
from jaxfl.methods import METHODS
from jaxfl.tasks import TASKS
from tests.messages import mentions
from tests.reference import close

CLIENTS, ROWS = 4, 6
PARTS = np.split(np.arange(2 * CLIENTS * ROWS), CLIENTS)
RNG = np.random.default_rng(0)
SLOPES = np.array([[1.0, -2.0], [-1.5, 0.5]], np.float32)  # of each group


def federation(inputs, labels, **options):
    train, test = ([part[place::2] for part in PARTS] for place in (0, 1))
    return jaxfl.data.federate(inputs, labels, train, test, group=np.arange(CLIENTS) % 2, name="made", **options)


def numbers():
    inputs = RNG.normal(size=(len(PARTS) * 2 * ROWS, 2)).astype(np.float32)
    owner = np.repeat(np.arange(CLIENTS) % 2, 2 * ROWS)
    return federation(inputs, (inputs * SLOPES[owner]).sum(1))


def tokens():
    text = RNG.integers(0, 5, (len(PARTS) * 2 * ROWS, 4))
    labels = np.where(RNG.random(text.shape) < 0.2, -1, (text + 1) % 5)
    return federation(text, labels, num_classes=5)


def network(data):
    if data.kind == "next_token":
        return jaxfl.models.Functions(
            lambda key: {"kernel": 0.1 * jax.random.normal(key, (5, 5)), "bias": jnp.zeros(5)},
            lambda model, batch, key: model["kernel"][batch.x] + model["bias"][None, None],
        )
    return jaxfl.models.Logistic(num_classes=data.num_classes)


DATA = {"regression": numbers(), "next_token": tokens()}


def learning(name, kind):
    """Returns `key -> (models served before and after two rounds, info)`: the first of a one-shot may train nobody."""
    row, data = METHODS[name], DATA[kind].on_device()
    options = {"local_epochs": 1, "batch_size": 4, **row.small}
    task = TASKS[kind](network(DATA[kind]), DATA[kind])
    method = row.factory(task, optax.sgd(0.05), **{k: v for k, v in options.items() if k in row.options})

    def run(key, data):
        state, everyone = method.init(key, data), jnp.arange(CLIENTS)
        after, info = jax.lax.scan(
            lambda state, _: method.round(key, state, data, Cohort.of(range(CLIENTS))), state, length=2
        )
        return method.client_params(state, everyone), method.client_params(after, everyone), info

    return functools.partial(run, data=data)


# One for each thing that is asked of a task: steps, losses of models, of rows, of mixtures, gradients, updates.
STEPS = {
    "regression": ("fedavg", "apfl", "ditto", "ifca", "perfedavg"),
    "next_token": ("cfl", "fedem", "fesem", "stocfl"),
}

# by features, or counts of each class
BY_CLASS = ("fedpac", "fedccfa", "feddbe", "fedproto", "fedrod", "fedrc", "flux", "knnper")


@pytest.mark.rotating
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in STEPS.items() for name in names])
def test_a_method_takes_finite_steps(kind, name, key):
    before, after, info = jax.jit(learning(name, kind))(key)
    assert bool(tree.is_finite(after)) and not info.diverged.any()
    assert any(np.abs(a - b).max() > 0 for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True))


@pytest.mark.rotating
@pytest.mark.parametrize("name", [name for name in METHODS if name not in (*STEPS["regression"], *BY_CLASS)])
def test_every_method_takes_numbers(name, key):
    """In shapes alone: how labels are read and what is asked of a task is decided when a round is traced."""
    before, after, info = jax.eval_shape(learning(name, "regression"), key)
    assert tree.shapes(after) == tree.shapes(before) and info.loss.shape == (2, CLIENTS)


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("name", BY_CLASS)
def test_a_method_of_classes_takes_no_others(name, kind, key):
    with pytest.raises(ValueError, match=mentions("task", name)):
        learning(name, kind)


def test_a_regression_is_one_of_its_clusters():
    """IFCA finds two groups with opposite slopes, and each client is served its own; FedAvg is between them."""
    data = DATA["regression"]
    task = jaxfl.regression(network(data), data)
    options = {"local_epochs": 5}
    runs = {
        "ifca": jaxfl.methods.ifca(task, optax.sgd(0.1), num_clusters=2, **options),
        "fedavg": jaxfl.methods.fedavg(task, optax.sgd(0.1), **options),
    }
    found = {name: jaxfl.run(method, data, rounds=12, seed=1, eval_every=12) for name, method in runs.items()}
    assert found["ifca"].summary["ari"] == 1
    assert found["ifca"].summary["micro_mse"] < 0.1 * found["fedavg"].summary["micro_mse"]
    both = comparison.compare({name: [run] for name, run in found.items()})
    assert both.metric == "micro_mse" and both.lower == ("mae", "mse")
    header, ifca, fedavg = both.table(bold="**{}**")
    assert ifca[2].startswith("**") and not fedavg[2].startswith("**"), "the lowest error is the best"
    assert both.lines[1].reached(1e9, ("round",), lower=True) == [12]
    assert {"mse", "mae", "r2", "loss"} <= set(found["ifca"].clients())
    close(found["ifca"].evaluation.mse, found["ifca"].evaluation.loss, rtol=1e-5)
