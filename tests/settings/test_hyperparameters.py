"""Numbers of a run by name are arguments of its programs: others compile nothing, and give what constants do."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl.methods import METHODS
from jaxfl.methods.hyperparameters import Hyperparameters, attach, hyperparameters_of
from jaxfl.schema import function_options
from jaxfl.settings import options
from jaxfl.testing.small import case_options, federation, linear_task, small_cohort

# Values of options whose default is None or 0, with what they need beside them.
GIVEN = {
    ("fedamp", "attraction"): (0.01, {}),
    ("fedamp", "own_share"): (0.2, {"similarity": "cosine"}),
    ("apfl", "mixture_rate"): (0.1, {}),
    ("pfedme", "decay"): (0.01, {}),
    ("fednova", "proximal_weight"): (0.1, {}),
    ("feddane", "proximal_weight"): (0.1, {}),
    ("fedgroup", "between_rate"): (0.1, {}),
    ("fedgroup", "proximal_weight"): (0.1, {}),
    ("fesem", "proximal_weight"): (0.2, {}),
    ("fesem_ma", "prior_weight"): (1.0, {}),
    **{(name, "proximal_weight"): (0.1, {}) for name in ("ifca_cam", "fesem_cam", "wecfl_cam")},
    ("feddrift", "merge_threshold"): (0.4, {}),
    ("fedccfa", "alignment_weight"): (0.1, {}),
    ("flhc", "threshold"): (0.6, {"num_clusters": None}),
    ("flux", "threshold"): (0.6, {}),
    ("fedsoft", "smoother"): (0.01, {}),
    **{(name, option): (0.5, {}) for name in ("cfl", "layercfl", "adacfl") for option in ("eps1", "eps2", "gamma_max")},
}
TRACEABLE = [
    (name, option.name)
    for name, row in METHODS.items()
    for option in function_options(row.factory).values()
    if option.traceable
]


@pytest.mark.parametrize(("name", "option"), TRACEABLE)
def test_two_values_of_an_option_are_traced_once(name, option):
    row, default = METHODS[name], METHODS[name].options[option]
    value, beside = GIVEN.get((name, option), (default, {}))
    chosen, data, cohort, key = {**case_options(row), **beside}, federation(), small_cohort(), jax.random.key(0)
    chosen.pop(option, None)
    traces = []

    @jax.jit
    def one_round(value, data):
        traces.append(value)
        method = row.factory(linear_task(), optax.sgd(0.1), **chosen, **{option: value})
        return method.round(key, method.init(key, data), data, cohort)

    assert isinstance(value, float) and value
    for each in (value, 0.9 * value):
        jax.eval_shape(one_round, each, data)
    assert len(traces) == 1


def fields(state):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state) if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)]


RUNS = [
    ("fedprox", {}, {"proximal_weight": 0.1, "learning_rate": 0.05}),
    ("fedavg", {"server_optimizer": "fedadam"}, {"server.tau": 0.1, "server.b2": 0.9}),
    (
        "fedavg",
        {"optimizer": "momentum", "schedule": "step", "schedule_rounds": 1},
        {"momentum": 0.5, "schedule_factor": 0.5},
    ),
    ("ditto", {"finetune": 1}, {"proximal_weight": 0.3, "learning_rate": 0.2}),
    ("perfedavg", {}, {"adaptation_rate": 0.05}),
    ("stocfl", {}, {"threshold": 0.3, "proximal_weight": 0.2}),
    ("cfl", {}, {"learning_rate": 0.2}),
    ("ifca", {"resident": False}, {"learning_rate": 0.2}),
    ("fedavg", {"availability": "random"}, {"dropouts": 0.3}),
    ("fedavg", {"attack": "sign-flip", "attackers": 0.2}, {"attack_scale": 2.0, "stragglers": 0.5}),
]


@pytest.fixture
def compiled():
    """The names of events, one of each compilation since."""
    found = []

    def listen(event, seconds, **_):
        if event.endswith("backend_compile_duration"):
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.rotating("name")
@pytest.mark.parametrize(("name", "same", "varied"), RUNS)
def test_other_numbers_compile_nothing_and_are_the_run_of_constants(name, same, varied, compiled, monkeypatch):
    small = {"num_clients": 8, "rows_per_client": 20, "model": "logistic", "batch_size": 10}

    def run(numbers):
        return jaxfl.run_named(name, "rotated-digits", rounds=3, cohort=0.5, **small, **same, **numbers)

    run({option: 0.9 * value for option, value in varied.items()})
    compiled.clear()
    found = run(varied)
    assert compiled == []
    monkeypatch.setattr(options, "attach", lambda build, values, built: built)  # as constants
    wanted = run(varied)
    assert compiled != []
    for one, other in zip(fields(found.state), fields(wanted.state), strict=True):
        np.testing.assert_allclose(
            one, other, rtol=2e-5, atol=2e-6
        )  # XLA may combine constants, which rounds otherwise
    assert found.summary["micro_accuracy"] == pytest.approx(wanted.summary["micro_accuracy"], abs=0.02)


def test_a_zero_is_a_constant_and_what_is_changed_later_too():
    settings = options.route("fedprox", "rotated-digits", ["proximal_weight=0"])
    assert options.numbers(settings) == {"optimizer.learning_rate": 0.1}
    method = attach(lambda values: None, {"rate": 0.1}, METHODS["fedavg"].factory(linear_task(), optax.sgd(0.1)))
    assert hyperparameters_of(method) == Hyperparameters(*method.hyperparameters)
    assert hyperparameters_of(method._replace(reads="everybody")) is None


METHOD = """
from jaxfl.methods.averaging import averaging
from jaxfl.client.training import local_train

def {name}(task, optimizer, *, weight: float = 0.5):
    def train(key, model, data, client, anchor):
        {line}
        return trained(key, model, data, client)
    trained = local_train(task, optimizer, local_epochs=1, batch_size=None)
    return averaging(task, train, weighting="rows")
"""


@pytest.mark.parametrize(
    ("line", "traced"), [("pass", True), ("float(optimizer.update(1.0, optimizer.init(1.0))[0])", False)]
)
def test_a_method_from_outside_is_traced_where_that_is_possible(line, traced, tmp_path):
    (tmp_path / "own.py").write_text(METHOD.format(name="own", line=line))
    settings = options.route(f"{tmp_path}/own.py:own", "rotated-digits", ["num_clients=8", "model=logistic"])
    method = options.build(settings, options.load(settings))
    assert (hyperparameters_of(method) is not None) == traced
