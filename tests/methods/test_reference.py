"""Every method against its NumPy loop, round by round, in float64 on ragged clients."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods, sampling, tree
from tests import problems, reference

RATE, ROUNDS, COHORT = 0.4, 5, 4
EPOCHS = {"local_epochs": 2}

# factory, its options, the reference's class, its weighting and further arguments, whether it trains in mini-batches
TABLE = {
    "local": (methods.local, EPOCHS, reference.Local, "rows", (), True),
    "fedsgd": (methods.fedsgd, {}, reference.FedSGD, "rows", (), False),
    "fedavg": (methods.fedavg, EPOCHS, reference.FedProx, "rows", (), True),
    "fedavg-uniform": (methods.fedavg, {**EPOCHS, "weighting": "uniform"}, reference.FedProx, "uniform", (), True),
    "fedprox": (methods.fedprox, {**EPOCHS, "proximal_weight": 0.7}, reference.FedProx, "rows", (0.7,), True),
    "ifca-models": (methods.ifca, {**EPOCHS, "num_clusters": 3}, reference.IFCA, "uniform", ("models",), True),
    "ifca-gradients": (
        methods.ifca,
        {"num_clusters": 2, "average": "gradients", "weighting": "rows"},
        reference.IFCA,
        "rows",
        ("gradients",),
        False,
    ),
    "stocfl": (
        methods.stocfl,
        {**EPOCHS, "threshold": 0.6, "proximal_weight": 0.3, "slots": 8},
        reference.StoCFL,
        "uniform",
        (0.6, 0.3),
        True,
    ),
}
CASES = [(name, size) for name, row in TABLE.items() for size in ((None, 3) if row[-1] else (None,))]


def as_numpy(model):
    return jax.tree.map(np.asarray, model)


def initial(name, state, data):
    """What the reference starts from: a model, or IFCA's list of them."""
    if name.startswith("ifca"):
        count = state.models["bias"].shape[0]
        return [as_numpy(tree.take(state.models, k)) for k in range(count)]
    return as_numpy(state.models if name == "local" else state.model if hasattr(state, "model") else state.initial)


@pytest.mark.parametrize(("name", "batch_size"), CASES)
def test_every_round_is_the_papers(name, batch_size, key):
    factory, options, loop, weighting, arguments, batched = TABLE[name]
    with jax.enable_x64(True):
        data = problems.linear_federation()
        options = {**options, "batch_size": batch_size} if batched else options
        method = factory(problems.softmax_task(), optax.sgd(RATE), **options)
        state = method.init(key, data)
        assert {leaf.dtype for leaf in jax.tree.leaves(method.client_params(state, jnp.arange(1)))} == {jnp.dtype("f8")}
        setting = reference.Setting(key, problems.rows_of(data), RATE, 2, batch_size, weighting)
        start = initial(name, state, data)
        wanted = loop(setting, {k: v[0] for k, v in start.items()} if name == "local" else start, *arguments)
        everyone = jnp.arange(data.num_clients)
        step = jax.jit(method.round)
        for number in range(ROUNDS):
            cohort = sampling.sample(key, state.round, data, COHORT)
            state, _ = step(key, state, data, cohort)
            wanted.round(number, cohort.ids.tolist())
            served = as_numpy(method.client_params(state, everyone))
            for client in range(data.num_clients):
                for leaf, value in wanted.served(client).items():
                    # rounding of float64 (1e-16), amplified by ten steps
                    np.testing.assert_allclose(
                        served[leaf][client], value, rtol=1e-9, atol=1e-12, err_msg=f"round {number}, client {client}"
                    )


def test_the_problem_makes_stocfl_merge(key):
    """The comparison above would be empty if nothing ever merged, or everything at once."""
    with jax.enable_x64(True):
        data = problems.linear_federation()
        setting = reference.Setting(key, problems.rows_of(data), RATE, 1)
        loop = reference.StoCFL(setting, as_numpy(problems.softmax_task().init(key)), 0.6, 0.3)
        sizes = []
        for number in range(ROUNDS):
            loop.round(number, sampling.sample(key, jnp.int32(number), data, COHORT).ids.tolist())
            sizes.append(len(loop.clusters))
        assert 1 < len(loop.clusters) < len(loop.psi), sizes
