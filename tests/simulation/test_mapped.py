"""A mapped run is the runs one after the other."""

import itertools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import methods, sampling
from jaxfl.cohort import Plan
from jaxfl.data import conditions, synthetic
from jaxfl.simulation import mapped, program
from jaxfl.testing.compare import assert_close
from jaxfl.testing.small import linear_task
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=4)

WEIGHTS = (0.05, 1.5)
DATA = synthetic.clustered_linear(8, rows=12, features=4)


def made(name, **options):
    optimizer = optax.sgd(0.3)
    options = {"local_epochs": 2, "batch_size": 4} | options
    task = linear_task()
    return lambda weight: getattr(methods, name)(task, optimizer, proximal_weight=weight, **options)


def assert_same_runs(make, data, *, place=1, **options):
    """Asserts that a mapped run is the run at the value of this place, and another one at the other.

    Each value is a program where it runs alone: `test_values_and_seeds_are_the_runs_one_by_one` compares all of them.
    """
    found = jaxfl.run_mapped(make, WEIGHTS, data, **options)
    assert tuple(one.value for one in found) == WEIGHTS
    losses = [one.evaluation.loss for one in found]
    assert abs(losses[0] - losses[1]).max() > 1e-3, "the weight is nothing"
    one, alone = found[place], jaxfl.run(make(WEIGHTS[place]), data, **options)
    assert jax.tree.structure(one.state) == jax.tree.structure(alone.state)
    for leaf, wanted in zip(jax.tree.leaves(one.state), jax.tree.leaves(alone.state), strict=True):
        np.testing.assert_allclose(leaf, wanted, rtol=2e-4, atol=2e-5)
    np.testing.assert_array_equal(one.evaluation.cluster, alone.evaluation.cluster)
    np.testing.assert_allclose(one.evaluation.loss, alone.evaluation.loss, rtol=1e-3, atol=1e-5)
    assert one.evaluation.metrics["loss"] == pytest.approx(alone.summary["loss"], rel=1e-4)


def test_a_value_that_reaches_the_loss_reaches_the_evaluation():
    """Of all values it was that of the first one's task."""
    task = linear_task()

    def make(decay):
        def loss(model, batch, key=None):
            return task.loss(model, batch, key) + decay * (model["kernel"] ** 2).sum()

        return methods.fedavg(task._replace(loss=loss), optax.sgd(0.3))

    assert_same_runs(make, DATA, rounds=2)


def test_mapped_digits_are_the_runs_one_after_the_other():
    data = jaxfl.data.load("rotated-digits", num_clients=12, rows_per_client=40)
    task = jaxfl.classification(jaxfl.models.MLP(num_classes=10, hidden=(16,)), data)

    def make(weight):
        return methods.fedprox(task, optax.sgd(0.1), proximal_weight=weight, local_epochs=2)

    assert_same_runs(make, data, place=0, rounds=3, cohort=0.5, seed=4)


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("name", "options", "plan"),
    [
        ("ditto", {}, "auto"),
        pytest.param("stocfl", {"threshold": 0.9, "preset": "official"}, Plan(chunk=3), marks=pytest.mark.slow),
    ],
)
def test_mapped_with_other_methods_plans_and_samplers(name, options, plan):
    assert_same_runs(made(name, **options), DATA, rounds=3, cohort=5, seed=1, plan=plan, sampler=sampling.dropouts(0.3))


def test_values_and_seeds_are_the_runs_one_by_one():
    make, options = made("fedprox"), {"rounds": 2, "cohort": 5, "plan": Plan(chunk=3)}
    found = jaxfl.run_mapped(make, WEIGHTS, DATA, seeds=[3, 0], **options)
    assert [(one.value, one.seed) for one in found] == [(value, seed) for value in WEIGHTS for seed in (3, 0)]
    alone_at = {value: make(value) for value in WEIGHTS}
    for one in found:
        alone = jaxfl.run(alone_at[one.value], DATA, seed=one.seed, **options)
        assert_close(one.state, alone.state, f"value {one.value} and seed {one.seed}")
        assert one.evaluation.metrics["loss"] == pytest.approx(alone.summary["loss"], rel=1e-4)
    assert len({one.evaluation.metrics["loss"] for one in found}) == 4


@pytest.mark.parametrize(("kind", "blamed"), [(None, "lower the learning rate"), ("sign-flip", "lower attack_scale")])
def test_a_value_that_comes_to_nothing_is_told(kind, blamed):
    data = DATA if kind is None else conditions.attack(DATA, kind, 0.2)
    with pytest.warns(UserWarning, match=mentions("1e+30", "diverged", "16 updates", blamed)) as told:
        good, bad = jaxfl.run_mapped(made("fedprox"), [0.05, 1e30], data, rounds=2)
    assert len(told) == 1 and told[0].filename == __file__
    assert (good.updates, good.diverged, bad.updates, bad.diverged) == (16, 0, 16, 16)
    assert "16 of 16 updates diverged" in repr(bad) and "diverged" not in repr(good)


def carries(jaxpr):
    """Yields the shapes of the carries of all scans, the outermost first."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            first, number = equation.params["num_consts"], equation.params["num_carry"]
            yield [variable.aval.shape for variable in equation.invars[first : first + number]]
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from carries(inner)


def test_only_what_the_value_reaches_is_mapped():
    make, values = made("stocfl", slots=7), 31
    key, traced = jax.random.key(0), jnp.linspace(0.0, 1.0, values)
    state = jax.eval_shape(make(0.0).init, key, DATA)
    rounds = mapped.mapped_rounds(make, 8, 2, sampling.uniform, Plan(chunk=1))
    loops = carries(rounds.trace(traced, key, DATA).jaxpr.jaxpr)
    # before the rounds are loops of keys
    outer, *inner = itertools.dropwhile(lambda shapes: all(shape[:1] != (values,) for shape in shapes), loops)
    many = [shape for shape in outer if shape[:1] == (values,)]
    assert many == [(values, *leaf.shape) for leaf in jax.tree.leaves(state.models)]
    omega = [leaf.shape for leaf in jax.tree.leaves(state.initial)]
    assert all(shape in outer for shape in [*omega, state.memory.psi.shape, state.cluster.shape])
    theta = [(values, *shape) for shape in omega]
    for models, others in ((omega, theta), (theta, omega)):  # each has its own loops over clients and steps
        assert any(set(models) <= set(shapes) and not set(others) & set(shapes) for shapes in inner)


def test_too_few_slots_are_refused():
    with pytest.raises(RuntimeError, match=mentions("round 1", 0.5, "slots=64")):
        jaxfl.run_mapped(made("stocfl", threshold=1.1, slots=3), [0.5, 1.0], DATA, rounds=2)


def test_values_that_do_not_fit_are_refused(monkeypatch):
    state = jax.eval_shape(made("ditto")(0.0).init, jax.random.key(0), DATA)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    monkeypatch.setattr(program, "available_bytes", lambda: 20 * size)
    with pytest.raises(MemoryError, match=mentions("values", 40)):
        jaxfl.run_mapped(made("ditto"), [0.1] * 40, DATA, rounds=1)


def never(*args):
    raise AssertionError("compiled")


@pytest.mark.parametrize(
    ("make", "arguments", "words"),
    [
        (made("stocfl"), {"values": [0.1, -0.5]}, ("proximal_weight", -0.5)),
        (made("stocfl"), {"values": []}, ("values", "finite")),
        (made("stocfl"), {"values": [np.nan]}, ("values", "finite")),
        (made("stocfl"), {"values": ["a"]}, ("values", "finite")),
        (
            lambda steps: methods.fedavg(linear_task(), optax.sgd(0.1), local_epochs=jaxfl.Steps(steps)),
            {"values": [1, 2]},
            ("make", "local_steps", 1.0, "jaxfl.run"),
        ),
        (made("stocfl"), {"seeds": [0, 0]}, ("seeds", "[0, 0]")),
        (made("stocfl"), {"rounds": 0}, ("rounds", 0)),
        (made("stocfl"), {"cohort": 9}, ("cohort", 9)),
        (lambda weight: weight, {}, ("make", 0.1)),
        (made("stocfl"), {"sampler": "uniform"}, ("sampler", "jaxfl.sampling.uniform")),
    ],
)
def test_mapped_refuses_before_it_compiles(make, arguments, words, monkeypatch):
    monkeypatch.setattr(mapped, "mapped_rounds", never)
    with pytest.raises((ValueError, TypeError), match=mentions(*words)):
        jaxfl.run_mapped(make, **{"values": [0.1], "data": DATA, "rounds": 1} | arguments)


def test_a_method_that_must_know_the_value_says_so():
    def make(epochs):
        return methods.fedavg(linear_task(), optax.sgd(0.1), local_epochs=int(epochs))

    with pytest.raises(ValueError, match=mentions("make", "traced")):
        jaxfl.run_mapped(make, [1, 2], DATA, rounds=1)
