"""What a method could not do in a run is said, with the option that changes it, and nothing is said otherwise."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from typer.testing import CliRunner

import jaxfl
from jaxfl import methods
from jaxfl.cli.app import app
from jaxfl.cohort import Cohort
from jaxfl.data.clients import Split
from jaxfl.data.synthetic import clustered_linear
from jaxfl.methods import base
from jaxfl.simulation.progress import RoundTotals
from jaxfl.simulation.result import shortfall_of
from jaxfl.testing.small import linear_task
from tests.messages import mentions

TASK, DATA = linear_task(), clustered_linear(8, rows=4, features=4)
SGD = optax.sgd(0.1)


def state_of(method, **fields):
    """Returns a state of zeros, made without compiling anything, with these fields."""
    shapes = jax.eval_shape(method.init, jax.random.key(0), DATA)
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)._replace(**fields)


MANY = base.Participation(8)
ALL, FEW, APART, ONE = np.ones(8, bool), np.arange(8) < 3, np.arange(8), np.zeros(8, int)


def scattered(spread):
    """Returns the models of 8 clients, which are this far apart."""
    return {"w": spread * np.arange(8, dtype=np.float32)[:, None] * np.ones(4, np.float32)}


CASES = [
    ("flhc", {}, {"round": 10}, ("warmup_rounds", 10)),
    ("flhc", {}, {"round": 11, "num_clusters": 8}, ("threshold", 0.8)),
    ("flhc", {"num_clusters": 8}, {"round": 11, "num_clusters": 8}, None),
    ("flhc", {}, {"round": 11, "num_clusters": 1}, ("8 clients", "one cluster", "threshold", 0.8)),
    ("flhc", {"threshold": np.inf}, {"round": 11, "num_clusters": 1}, None),
    ("flhc", {"num_clusters": 1}, {"round": 11, "num_clusters": 1}, None),
    ("flhc", {}, {"round": 11, "num_clusters": 3}, None),
    ("stocfl", {}, {"cluster": ONE}, ("8 clients", "one cluster", "threshold", 0.5)),
    ("stocfl", {"threshold": "auto"}, {"cluster": ONE}, ("one cluster", "threshold", "auto")),
    ("stocfl", {"threshold": -1.0}, {"cluster": ONE}, None),
    ("pacfl", {}, {"num_clusters": 1}, ("8 clients", "one cluster", "threshold", 10.0)),
    ("pacfl", {"threshold": 90.0}, {"num_clusters": 1}, None),
    ("pacfl", {"num_clusters": 1}, {"num_clusters": 1}, None),
    *[
        (name, {"num_clusters": 3}, {"cluster": cluster, "round": 21}, said)
        for name in (
            "ifca",
            "hypcluster",
            "fesem",
            "fesem_ma",
            "wecfl",
            "ifca_cam",
            "wecfl_cam",
            "cfl_gp",
            "kfed",
            "robust",
            "fedgroup",
        )
        for cluster, said in ((ONE, ("8 clients", "num_clusters", 3)), (APART % 3, None))
        if name != "robust" or said
    ],
    ("kfed", {"num_clusters": 1}, {"cluster": ONE}, None),
    ("robust", {"num_clusters": 4, "trim": 0.3}, {"cluster": APART % 4}, ("trim", 0.3, "2 clients")),
    ("robust", {"num_clusters": 2, "trim": 0.3}, {"cluster": APART % 2}, None),
    ("robust", {"num_clusters": 4, "trim": 0.0}, {"cluster": APART % 4}, None),
    ("fedamp", {}, {"trained": ALL, "models": scattered(9.0)}, ("sigma", 1)),
    ("fedamp", {"sigma": 400.0}, {"trained": ALL, "models": scattered(9.0)}, None),
    ("fedamp", {}, {"trained": ALL}, None),
    ("fedamp", {}, {"trained": APART == 3, "models": scattered(9.0)}, None),
    ("fedamp", {"attraction": 0.0}, {"trained": ALL, "models": scattered(9.0)}, None),
    ("fedamp", {"similarity": "cosine"}, {"trained": ALL, "models": scattered(9.0)}, None),
    (
        "fedem",
        {},
        {"log_weights": np.log(np.where(FEW[:, None], [0.996, 0.002, 0.002], 1 / 3))},
        ("3 learners", "3 clients"),
    ),
    ("fedem", {}, {"log_weights": np.log(np.where(FEW[:, None], [0.98, 0.01, 0.01], 1 / 3))}, None),
    (
        "fedrc",
        {},
        {"log_weights": np.log(np.where(FEW[:, None], [0.996, 0.002, 0.002], 1 / 3))},
        ("3 learners", "3 clients"),
    ),
    ("fedem", {}, {"log_weights": np.log(np.where(FEW[:, None], [1, 1e-9, 1e-9], [1e-9, 1, 1e-9]))}, None),
    ("fedem", {"num_clusters": 1}, {"log_weights": np.zeros((8, 1))}, None),
    ("fedsoft", {}, {"trained": FEW, "weights": np.where(FEW[:, None], [0, 1], 0.5)}, ("2 centres", "3 clients")),
    ("fedsoft", {}, {"trained": ALL, "weights": np.where(FEW[:, None], [0, 1], 0.5)}, None),
    ("lg_fedavg", {}, {"round": 10}, ("warmup_rounds", 10, "10 rounds")),
    ("lg_fedavg", {}, {"round": 11, "trained": FEW}, None),
    ("stocfl", {}, {"cluster": APART}, ("threshold", 0.5, 8)),
    ("stocfl", {"threshold": "auto"}, {"cluster": APART}, ("threshold", "auto")),
    ("stocfl", {"threshold": 1.1}, {"cluster": APART}, None),
    ("stocfl", {}, {"cluster": np.where(FEW, 0, APART)}, None),
    ("stocfl", {}, {"cluster": np.where(APART == 3, 0, -1)}, None),
    ("pacfl", {}, {"num_clusters": 8}, ("threshold", 10.0)),
    ("pacfl", {"threshold": -1.0}, {"num_clusters": 8}, None),
    ("pacfl", {}, {"num_clusters": 3}, None),
    ("cfl", {}, {"round": 30, "trained": FEW}, ("5 of 8", "rounds")),
    ("cfl", {}, {"round": 30, "trained": ALL}, ("eps1", 0.4, "30 rounds")),
    ("cfl", {"preset": "official"}, {"round": 20, "trained": ALL}, ("warmup_rounds", 20)),
    ("cfl", {"preset": "fesem", "min_clients": 2}, {"round": 29, "trained": ALL}, ("rounds_between", 30)),
    ("cfl", {"preset": "fesem"}, {"round": 31, "trained": ALL}, ("min_clients", 20)),
    ("cfl", {}, {"round": 30, "trained": ALL, "formed": np.array([9, 9, *[0] * 6])}, None),
    ("cfl", {"eps1": 0.0}, {"round": 30, "trained": FEW}, None),
    ("layercfl", {}, {"round": 30, "trained": FEW}, ("5 of 8", "rounds")),
    ("adacfl", {}, {"round": 30, "trained": FEW}, ("5 of 8", "rounds")),
    ("fedgwc", {}, {"round": 30, "change": np.full(4, 0.5)}, ("eps", 1e-05, "mse 0.5", "30 rounds")),
    ("fedgwc", {}, {"round": 30, "cluster": APART % 2}, None),
    ("fedgwc", {"eps": 0.0}, {"round": 30}, None),
    ("hypcluster", {}, {"round": 20}, ("warmup_rounds", 20)),
    *[(name, {}, {}, ("personal", "share nothing", "model=mlp")) for name in ("fedper", "fedrep", "fedbabu")],
    ("feddrift", {"slots": 2}, {"round": 10}, ("rounds_per_step", 10)),
    ("feddrift", {"slots": 2}, {"round": 11, "step": 1}, ("third", "rounds_per_step", 10, 11)),
    ("feddrift", {"slots": 2}, {"round": 21, "step": 2}, ("one model", "threshold", 0.1, 'start="own"')),
    ("feddrift", {"slots": 2}, {"round": 21, "step": 2, "cluster": APART % 2}, None),
    ("feddrift", {"start": "own"}, {"round": 11, "step": 1, "cluster": APART}, ("merge_threshold", 0.1)),
    ("feddrift", {"start": "own"}, {"round": 11, "step": 1, "cluster": ONE}, ("merged", "merge_threshold", 0.1)),
    ("feddrift", {"start": "own"}, {"round": 11, "step": 1, "cluster": APART // 2}, None),
]


@pytest.mark.parametrize(("name", "options", "fields", "said"), CASES)
def test_what_was_not_done_is_said_with_its_option(name, options, fields, said):
    method = methods.METHODS[name].factory(TASK, SGD, **options)
    shortfall = method.shortfall(state_of(method, **fields), DATA, MANY)
    assert bool(shortfall) == (said is not None)
    assert said is None or re.search(mentions(*said), shortfall)
    if method.task != TASK:  # a mixture, which Ditto does not take
        return
    beside = methods.ditto(TASK, SGD, solver=method)
    assert beside.shortfall(state_of(beside, solver=state_of(method, **fields)), DATA, MANY) == shortfall
    assert jaxfl.scheduled(method, lambda round: 1.0).shortfall is method.shortfall


@pytest.mark.parametrize(
    ("name", "options", "fields", "participation", "said"),
    [
        ("robust", {"num_clusters": 2, "trim": 0.3}, {"cluster": APART % 2}, {"cohort": 3}, ("trim", 0.3, "3 clients")),
        ("robust", {"num_clusters": 2, "trim": 0.3}, {"cluster": APART % 2}, {"cohort": 4}, None),
        ("ifca", {}, {"cluster": np.where(FEW, 2, 0)}, {"sampled": FEW}, ("3 clients", "num_clusters", 4)),
        ("ifca", {}, {"cluster": np.where(FEW, 2, 0)}, {"sampled": ALL}, None),
        ("fedamp", {}, {"trained": ALL}, {"twice": False}, ("models", "twice")),
        ("pfedgraph", {}, {}, {"twice": False}, ("models", "twice")),
        ("fedem", {}, {"log_weights": np.zeros((8, 3)) - np.log(3)}, {"twice": False}, ("weights", "twice")),
    ],
)
def test_what_was_not_done_depends_on_the_cohorts(name, options, fields, participation, said):
    method = methods.METHODS[name].factory(TASK, SGD, **options)
    shortfall = method.shortfall(state_of(method, **fields), DATA, base.Participation(**{"cohort": 8} | participation))
    assert bool(shortfall) == (said is not None)
    assert said is None or re.search(mentions(*said), shortfall)


@pytest.mark.rotating
@pytest.mark.parametrize(("rounds", "cohort", "twice"), [(2, 4, True), (3, 4, False), (1, 8, True), (2, 8, False)])
def test_a_method_with_something_of_each_client_needs_them_twice(rounds, cohort, twice, tmp_path):
    """Uniform cohorts of half of the clients: here the second is the other half; a resume counts as well."""

    def halves(key, round, data, size, plan):
        return Cohort.of((jnp.arange(size, dtype=jnp.int32) + size * round) % data.num_clients, plan)

    method = methods.scaffold(TASK, SGD, local_epochs=1)
    options = {"cohort": cohort, "sampler": halves, "checkpoint_dir": tmp_path, "resume": True}
    jaxfl.run(method, DATA, rounds=1, **options)
    said = jaxfl.run(method, DATA, rounds=rounds, **options).summary["shortfall"]
    assert bool(said) == twice and (not said or re.search(mentions("controls", "twice"), said))
    assert jaxfl.run(methods.fedavg(TASK, SGD), DATA, rounds=1, cohort=2).summary["shortfall"] == ""


@pytest.mark.slow
def test_the_table_of_a_run_says_it(tmp_path):
    words = "run flhc --data rotated-digits --rounds 2 --cohort 2 --set model=logistic --seeds 0,1 --quiet --out"
    result = CliRunner().invoke(app, [*words.split(), str(tmp_path / "a"), "--set", "num_clients=8"])
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("not done")]
    assert re.search(mentions("warmup_rounds", 10, "2 rounds"), line)
    for seed in (0, 1):
        summary = json.loads((tmp_path / "a" / f"seed-{seed}" / "summary.json").read_text(encoding="utf-8"))
        assert line.endswith(summary["shortfall"])


@pytest.mark.rotating
@pytest.mark.parametrize(("name", "rounds", "idle"), [("local", 2, 4), ("local", 6, 4), ("scaffold", 2, 0)])
def test_clients_that_never_trained_their_model_are_counted(name, rounds, idle):
    """Rounds of two of four clients, some of them again; a method with a model for all clients tests that one."""

    def next_clients(key, round, data, size, plan):
        return Cohort.of((jnp.arange(size, dtype=jnp.int32) + size * round) % 4, plan)

    method = methods.METHODS[name].factory(TASK, SGD, local_epochs=1)
    said = jaxfl.run(method, DATA, rounds=rounds, cohort=2, sampler=next_clients).summary["shortfall"]
    assert bool(re.search(mentions("never taken part", f"{idle} of 8 clients"), said)) == bool(idle)


def test_a_federation_without_test_rows_has_no_metrics():
    method, untested = methods.fedavg(TASK, SGD), dataclasses.replace(DATA, test=Split.pack([[]] * 8))
    said = [shortfall_of(method, state_of(method), data, RoundTotals(), 8) for data in (DATA, untested)]
    assert not said[0] and re.search(mentions("test rows"), said[1])
