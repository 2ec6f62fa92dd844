"""Fine-tune, then test: against a plain loop, against one round of `local`, and that nothing else changes."""

import functools
import json
import re
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn import metrics as sk
from typer.testing import CliRunner

import jaxfl
from jaxfl import methods
from jaxfl.cli.app import app
from jaxfl.cohort import Cohort, Plan
from jaxfl.data import FederatedData, conditions, federate
from jaxfl.data.synthetic import clustered_linear
from jaxfl.methods.parts import adaptation
from jaxfl.random import Stream, key_for
from jaxfl.settings import options
from jaxfl.simulation.evaluation import evaluate
from jaxfl.simulation.evaluation.evaluate import evaluator
from jaxfl.simulation.evaluation.finetune import FineTune, trainer
from jaxfl.testing.compare import assert_equal, leaves
from jaxfl.testing.small import linear_task
from tests.messages import mentions
from tests.problems import rows_of, softmax_task
from tests.reference import batches, gradient

pytestmark = pytest.mark.rotating("function", weeks=4)

RATE, MODELS, ROUND = 0.5, 3, 4
TRAIN, TEST = (5, 0, 3, 8, 1, 6, 4), (3, 4, 0, 7, 12, 1, 5)  # client 1 trains nothing, client 2 is not tested
NAMES = [f"finetuned_{kind}_{what}" for kind in ("micro", "macro") for what in ("accuracy", "f1")]
TWO = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("clients",))
SMALL = ["--data", "rotated-digits", "--set", "num_clients=8", "--set", "rows_per_client=20", "--set", "model=logistic"]
DATA = clustered_linear(8, rows=8, features=4, ragged=True)


class State(NamedTuple):
    models: dict
    cluster: jax.Array
    round: jax.Array


def served(state, ids):
    return jax.tree.map(lambda leaf: leaf[state.cluster[ids]], state.models)


def method(task):
    return methods.fedavg(task, optax.sgd(RATE))._replace(client_params=served)  # never trained


def problem(seed=0) -> tuple[FederatedData, State]:
    """Seven clients, three models; float64 where that is enabled."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(0.2, 1.0, (sum(TRAIN) + sum(TEST), 3))
    labels = (inputs @ np.array([1.5, -1.0, 0.5]) > 0.1).astype(int)
    parts = np.split(np.arange(len(inputs)), np.cumsum(TRAIN + TEST)[:-1])
    data = federate(inputs, labels, parts[:7], parts[7:], num_classes=2)
    models = {"bias": jnp.asarray(rng.normal(size=(MODELS, 2))), "kernel": jnp.asarray(rng.normal(size=(MODELS, 3, 2)))}
    return data, State(models, jnp.arange(7, dtype=jnp.int32) % MODELS, jnp.int32(ROUND))


def by_hand(key, data, state, epochs, batch_size, pull=0.0, part=("bias", "kernel")):
    """Yields each client's test labels, predictions and losses after its own training."""
    test = data.test
    for i, (x, y) in enumerate(rows_of(data)):
        model = served = {name: np.asarray(leaf)[int(state.cluster[i])] for name, leaf in state.models.items()}
        for rows in batches(key_for(key, Stream.FINETUNE, ROUND, i), len(y), epochs if len(y) else 0, batch_size):
            slope = gradient(model, x[rows], y[rows])[1]
            moved = {name: model[name] - RATE * (slope[name] + pull * (model[name] - served[name])) for name in part}
            model = model | moved
        rows = test.rows[test.start[i] :][: test.size[i]]
        x, y = np.asarray(data.inputs)[rows], np.asarray(data.labels)[rows]
        scores = x @ model["kernel"] + model["bias"]
        yield y, scores.argmax(1), np.log(np.exp(scores).sum(1)) - scores[range(len(y)), y]


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("epochs", "batch_size", "plan", "block", "options"),
    [
        (1, 3, Plan(), 1000, {}),
        (2, None, Plan(3), 4, {}),
        (2, None, Plan(None), 1000, {}),
        (1, 3, Plan(1, TWO), 1000, {}),
        (2, 3, Plan(), 1000, {"pull": 0.7}),
        (3, None, Plan(3), 4, {"pull": 0.4, "part": "kernel"}),
        (2, 3, Plan(), 1000, {"part": ("bias",)}),
    ],
    ids=["mini-one", "full-three", "full-whole", "mini-two devices", "pull", "pull-part", "part"],
)
def test_every_client_is_scored_as_by_a_loop(epochs, batch_size, plan, block, options, key, monkeypatch):
    monkeypatch.setattr(evaluate, "BLOCK", block)
    with jax.enable_x64(True):
        data, state = problem()
        finetune = FineTune(optax.sgd(RATE), epochs, batch_size, **options)
        found = evaluator(method(softmax_task()), data, plan, finetune)(key, state)
    tuned = found.finetuned
    options = {name: (value,) if isinstance(value, str) else value for name, value in options.items()}
    truths, guesses, losses = zip(*by_hand(key, data, state, epochs, batch_size, **options), strict=True)
    for i in range(7):
        if not TEST[i]:
            assert np.isnan([tuned.accuracy[i], tuned.f1[i], tuned.loss[i]]).all()
            continue
        np.testing.assert_allclose(tuned.loss[i], losses[i].mean(), rtol=1e-6)  # sums are float32
        np.testing.assert_allclose(tuned.accuracy[i], sk.accuracy_score(truths[i], guesses[i]))
        f1 = sk.f1_score(truths[i], guesses[i], labels=np.unique(truths[i]), average="macro", zero_division=0)
        np.testing.assert_allclose(tuned.f1[i], f1)
    who, rows = np.array(TEST) > 0, np.array(TEST)
    for what in ("accuracy", "f1"):
        values = getattr(tuned, what)
        np.testing.assert_allclose(found.metrics[f"finetuned_macro_{what}"], values[who].mean())
        np.testing.assert_allclose(found.metrics[f"finetuned_micro_{what}"], np.average(values[who], weights=rows[who]))
    assert found.metrics["finetuned_diverged"] == 0
    # a client that has nothing to train on is tested as it is; the others are not
    assert tuned.loss[1] == found.loss[1] and (tuned.loss != found.loss)[[0, 3, 4, 5, 6]].all()


def test_the_numbers_beside_are_those_of_an_evaluation_without(key, monkeypatch):
    one = methods.fedavg(linear_task(), optax.sgd(RATE))
    state = one.init(key, DATA)
    both = evaluator(one, DATA, Plan(), FineTune(optax.sgd(RATE)))(key, state)

    def local_train(*arguments, **options):
        raise AssertionError("nobody asked for training")

    monkeypatch.setattr(adaptation, "local_train", local_train)
    plain = evaluator(one, DATA, Plan())(key, state)
    assert plain.finetuned is None and not [name for name in plain.metrics if name.startswith("finetuned")]
    added = {name: both.metrics[name] for name in both.metrics if name not in plain.metrics}
    assert set(added) == {*NAMES, "finetuned_diverged"}
    assert {name: both.metrics[name] for name in plain.metrics} == plain.metrics
    for what in ("accuracy", "f1", "loss"):
        np.testing.assert_array_equal(getattr(both, what), getattr(plain, what))


@pytest.mark.parametrize("plan", [Plan(), Plan(3)], ids=["one", "three"])
def test_it_is_a_round_of_local_from_the_served_model(plan, key):
    """Full batches, so that the two need no common order of rows; clients late or attacking are so in rounds alone."""
    sgd, everyone = optax.sgd(RATE), Cohort.of(range(8), plan)
    one = methods.ifca(linear_task(), sgd, num_clusters=2, local_epochs=1)
    state = jax.jit(one.init)(key, DATA)
    alone = methods.local(linear_task(), sgd, local_epochs=3)
    initial, step, tested = alone.init(key, DATA), jax.jit(alone.round), evaluator(alone, DATA, plan)
    flipping = conditions.attack(DATA, "label-flip", 0.4)  # labels choose a model, and are true in fine-tuning
    for data in (DATA, flipping, conditions.straggle(conditions.attack(DATA, "sign-flip", 0.4), 1.0)):
        served = one.client_params(one.assign(key, state, data, everyone), jnp.arange(8))
        start = initial._replace(models=served, round=state.round)
        wanted = tested(key, step(key, start, DATA, everyone)[0])
        found = evaluator(one, data, plan, FineTune(sgd, epochs=3))(key, state).finetuned
        np.testing.assert_array_equal(found.accuracy, wanted.accuracy)
        np.testing.assert_array_equal(found.f1, wanted.f1)
        np.testing.assert_allclose(found.loss, wanted.loss, rtol=1e-6)


def test_who_takes_part_in_the_numbers(key):
    """Held-out clients fine-tune and are apart; attackers are in none of them."""
    who = np.arange(8) % 3 == 0
    one = methods.fedavg(linear_task(), optax.sgd(RATE))
    state, finetune = one.init(key, DATA), FineTune(optax.sgd(RATE))
    held = evaluator(one, replace(DATA, held_out=who), Plan(), finetune)(key, state)
    rows = np.asarray(DATA.test.size)
    np.testing.assert_allclose(
        held.metrics["finetuned_unseen_micro_accuracy"], np.average(held.finetuned.accuracy[who], weights=rows[who])
    )
    np.testing.assert_allclose(
        held.metrics["finetuned_unseen_macro_accuracy"], held.finetuned.accuracy[who].mean(), rtol=1e-12
    )
    who = who & (DATA.train.size > 0)
    assert who.any() and (held.finetuned.loss[who] != held.loss[who]).all()
    full = evaluator(one, DATA, Plan(), finetune)(key, state)
    np.testing.assert_array_equal(held.finetuned.loss, full.finetuned.loss)
    attacked = conditions.attack(DATA, "gaussian", 0.4)
    honest = ~np.asarray(attacked.attack.attacker)
    found = evaluator(one, attacked, Plan(), finetune)(key, state)
    np.testing.assert_allclose(found.metrics["finetuned_macro_accuracy"], np.nanmean(found.finetuned.accuracy[honest]))
    assert not [name for name in found.metrics if name.startswith(("finetuned_unseen", "finetuned_attackers"))]


def test_models_that_diverge_are_counted_and_not_tested(key):
    one = methods.fedavg(linear_task(), optax.sgd(RATE))
    state = one.init(key, DATA)
    found = evaluator(one, DATA, Plan(), FineTune(optax.sgd(np.inf)))(key, state)
    assert found.metrics["finetuned_diverged"] == int((DATA.train.size > 0).sum())
    np.testing.assert_array_equal(found.finetuned.loss, found.loss)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, ("epochs", 0, "finetune=None")),
        ({"batch_size": 0}, ("batch_size", 0)),
        ({"pull": -0.5}, ("pull", -0.5)),
        ({"pull": np.nan}, ("pull", "nan")),
    ],
)
def test_bad_numbers_are_refused(options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        FineTune(optax.sgd(RATE), **options)


MLP = jaxfl.classification(jaxfl.models.MLP(hidden=(5,), num_classes=DATA.num_classes), DATA)


@functools.cache
def tuned_models(**options):
    """Returns the served and the fine-tuned model of a client, by name of their leaves."""
    one, key = methods.fedavg(MLP, optax.sgd(RATE)), jax.random.key(0)
    state = one.init(key, DATA)
    model, finite = jax.jit(trainer(one, FineTune(optax.sgd(RATE), 3, 2, **options)))(key, state, DATA, jnp.int32(0))
    assert finite
    return leaves(state.model), leaves(model)


@pytest.mark.parametrize(
    ("part", "moved"),
    [("all", "Dense_[01]"), ("head", "Dense_1"), ("body", "Dense_0"), (("Dense_0/bias", "Dense_1/bias"), ".*/bias")],
)
def test_what_is_no_part_of_it_stays_bit_for_bit(part, moved):
    before, after = tuned_models(part=part)
    changed = {name for name in before if before[name].tobytes() != after[name].tobytes()}
    assert changed == {name for name in before if re.match(moved, name)}


def test_a_strong_pull_stays_near_the_served_model_and_none_is_no_pull():
    before, free = tuned_models()
    assert_equal(tuned_models(pull=0.0)[1], free, "a pull of 0")
    near = tuned_models(pull=1 / RATE)[1]  # each step forgets the one before it

    def away(model):
        return sum(np.abs(model[name] - before[name]).sum() for name in before)

    assert 0 < away(near) < away(free)


@pytest.mark.parametrize(
    ("part", "task"),
    [
        ("Dense_7", MLP),
        ("body", jaxfl.classification(jaxfl.models.Logistic(num_classes=DATA.num_classes), DATA)),
        ("usable", methods.fedproto(MLP, optax.sgd(RATE)).task),  # a leaf that no step changes
    ],
    ids=["no layer", "no body", "constant"],
)
def test_a_part_without_parameters_is_refused_before_anything_runs(part, task):
    one = methods.fedavg(MLP, optax.sgd(RATE))._replace(task=task)
    with pytest.raises(ValueError, match=mentions(part)):
        evaluator(one, DATA, Plan(), FineTune(optax.sgd(RATE), part=part))


def numbers(history):
    return [{k: v for k, v in record.items() if k not in ("seconds", "seconds_per_round")} for record in history]


def test_a_run_is_the_same_with_and_without_and_goes_on(tmp_path):
    one = methods.fedavg(linear_task(), optax.sgd(0.3), local_epochs=1)
    options = {"cohort": 3, "seed": 2, "eval_every": 2, "plan": Plan()}
    tuned = {**options, "finetune": jaxfl.FineTune(optax.sgd(0.3), batch_size=3)}
    plain, straight = (jaxfl.run(one, DATA, rounds=4, **given) for given in (options, tuned))
    assert_equal(straight.state, plain.state, "fine-tuning in evaluations")
    added = {*NAMES, "finetuned_diverged"}
    left = [{k: v for k, v in record.items() if k not in added} for record in numbers(straight.history)]
    assert left == numbers(plain.history)
    for record in (straight.history[0], json.loads(json.dumps(straight.summary))):
        assert added <= set(record) and record["finetuned_micro_accuracy"] != record["micro_accuracy"]
    assert straight.evaluation.finetuned is not None and straight.evaluation.finetuned.accuracy.shape == (8,)

    jaxfl.run(one, DATA, rounds=2, checkpoint_dir=tmp_path, **tuned)
    for other in (None, FineTune(optax.sgd(0.3), batch_size=4), FineTune(optax.sgd(0.3), epochs=2, batch_size=3)):
        with pytest.raises(ValueError, match=mentions("finetune={'epochs': 1, 'batch_size': 3}")):
            jaxfl.run(one, DATA, rounds=4, checkpoint_dir=tmp_path, resume=True, **{**tuned, "finetune": other})
    resumed = jaxfl.run(one, DATA, rounds=4, checkpoint_dir=tmp_path, resume=True, **tuned)
    assert numbers(resumed.history) == numbers(straight.history)


def command(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_from_the_command_line(tmp_path, empty_pictures):
    given = ["run", "fedavg", *SMALL, "--set", "batch_size=4", "--cohort", 4, "--set", "finetune=1", "--out", tmp_path]
    result = command(*given, "--rounds", 1)
    assert result.exit_code == 0, result.output
    summary, config = (json.loads((tmp_path / name).read_text()) for name in ("summary.json", "config.json"))
    assert set(NAMES) <= set(summary) and config["run.finetune"] == summary["options"]["run.finetune"] == 1
    (record,) = map(json.loads, (tmp_path / "history.jsonl").read_text().splitlines())
    assert record["finetuned_macro_f1"] == summary["finetuned_macro_f1"]
    head, row = (line.split() for line in result.stdout.splitlines()[1:3])
    assert row[head.index("tuned")] == f"{summary['finetuned_micro_accuracy']:.4f}"
    for last in ([], ["--set", "finetune=2"]):
        refused = command(*given[:-4], *last, "--out", tmp_path, "--rounds", 2, "--resume")
        assert refused.exit_code == 2 and "run.finetune=1" in refused.stderr


def test_the_command_line_says_what_it_is_and_what_it_takes():
    shown = re.sub(r"\s+", " ", command("methods", "fedsgd").stdout)
    assert re.search(r"finetune none epochs .* finetuned_micro_accuracy", shown)
    for wrong in (0, -1):
        refused = command("run", "fedavg", *SMALL, "--set", f"finetune={wrong}")
        assert refused.exit_code == 2 and re.search(mentions("finetune", wrong), refused.stderr)


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("name", "items", "batch_size"),
    [("fedavg", (), None), ("fedavg", ("batch_size=7",), 7), ("hypcluster", (), 20), ("fedsgd", (), None)],
)
def test_training_is_that_of_the_run(name, items, batch_size):
    settings = options.route(name, "rotated-digits", [*items, "finetune=2", "learning_rate=0.25"])
    found = options.finetune(settings)
    assert found is not None and (found.epochs, found.batch_size) == (2, batch_size)
    step, _ = found.optimizer.update(jnp.float32(1), found.optimizer.init(jnp.float32(0)))
    assert float(step) == -0.25
    assert options.finetune(options.route(name, "rotated-digits", items)) is None
