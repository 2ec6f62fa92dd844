"""Options are parsed safely, checked against their types and given to whoever knows them."""

import inspect
from collections.abc import Sequence
from typing import Literal

import jax
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxfl
from jaxfl import data as federations
from jaxfl import sampling
from jaxfl.data.describe import label_counts
from jaxfl.methods import METHODS, Row, fedavg
from jaxfl.schema import Option, function_options
from jaxfl.settings import options, reading
from jaxfl.tasks import ACCURACY
from tests.messages import mentions


@pytest.mark.parametrize(
    ("text", "hint", "default", "value"),
    [
        ("1", float, 0.5, 1.0),
        ("1e-3", float | None, None, 0.001),
        ("none", int | None, 5, None),
        ("2048", Sequence[int] | int, (128,), (2048,)),
        ("(64,32)", Sequence[int] | int, (128,), (64, 32)),
        ("[64, 32]", tuple[int, ...], (128,), (64, 32)),
        ("0.1,0.2", tuple[float, float], (0.25, 0.5), (0.1, 0.2)),
        ("TRUE", bool, False, True),
        ("auto", int | None | Literal["auto"], "auto", "auto"),
        ("uniform", str, "rows", "uniform"),
        ("2020", str, "rows", "2020"),
        ("none", str, "rows", "none"),
        ("2020", Literal["2020", "2021"], "2021", "2020"),
        ("((0,1),(2,3))", Sequence[Sequence[int]], ((0,),), ((0, 1), (2, 3))),
    ],
)
def test_values(text, hint, default, value):
    found = options.convert("key", text, Option("key", default, hint))
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("1.0", int),
        ("true", int),
        ("true", float),
        ("1", bool),
        ("nan", float),
        ("9" * 400, float),  # a whole number that no float can be
        ("(1,2,3)", tuple[float, float]),
        ("(1,a)", Sequence[int]),
        ("{1:2}", Sequence[int]),
        ("half", int | None | Literal["auto"]),
    ],
)
def test_wrong_types_are_refused(text, hint):
    with pytest.raises(ValueError, match=mentions("key", f'got "{text}"')):
        options.convert("key", text, Option("key", None, hint))


# What literals are made of, and what looks like it in other scripts; of all characters: see test_text.
CHARACTERS = "-+_.,:;#%= \t\n'\"\\()[]{}01239aeEjnorstNTFux\x00é日²٣Ｎ\u2028"


@given(st.text(CHARACTERS, max_size=30))
def test_any_text_is_a_literal_or_itself(text):
    value = reading.parse(text)
    assert value == text or not isinstance(value, str) or repr(value)[1:-1] in text


def test_an_option_of_two_owners_needs_its_owner(monkeypatch):
    def both(task, optimizer, *, num_clients: int = 3, learning_rate: float = 1.0):
        raise AssertionError("not built")

    monkeypatch.setitem(METHODS, "both", Row(both, "", ""))
    with pytest.raises(ValueError, match=mentions("data.num_clients", "method.num_clients")):
        options.route("both", "rotated-digits", ["num_clients=8"])
    settings = options.route("both", "rotated-digits", ["method.num_clients=8", "optimizer.learning_rate=0.2"])
    assert (settings.method, settings.data, settings.optimizer) == ({"num_clients": 8}, {}, {"learning_rate": 0.2})
    complete = settings.complete()
    assert (complete["data.num_clients"], complete["method.num_clients"]) == (40, 8)


def test_an_option_without_default_must_be_given(monkeypatch):
    def needy(task, optimizer, *, groups: int):
        raise AssertionError("not built")

    monkeypatch.setitem(METHODS, "needy", Row(needy, "", ""))
    with pytest.raises(ValueError, match=mentions("groups", "needy", "--set groups=...")):
        options.route("needy", "rotated-digits")
    assert options.route("needy", "rotated-digits", ["groups=3"]).method == {"groups": 3}


@pytest.mark.parametrize("method", METHODS)
def test_every_default_fits_its_own_type(method):
    for option in options.applicable_options(method, "rotated-mnist", "stocfl-femnist-cnn", "momentum"):
        if option.default is not options.REQUIRED:
            assert options.convert(option.name, str(option.default), option) == option.default


def test_values_need_no_text():
    assert options.route("fedavg", "rotated-digits", ["finetune=3"], finetune=2).run == {"finetune": 2}
    given = {"threshold": "auto", "optimizer": "adam", "optimizer.learning_rate": 1, "angles": [0, 90]}
    settings = options.route("stocfl", "rotated-digits", **given)
    assert settings.method == {"threshold": "auto"} and settings.data == {"angles": (0, 90)}
    assert settings.optimizer_name == "adam" and settings.optimizer == {"learning_rate": 1.0}
    with pytest.raises(ValueError, match=mentions("finetune", 1.5)):
        options.route("fedavg", "rotated-digits", finetune=1.5)
    with pytest.raises(ValueError, match=mentions("finetune_batch_size", 5, "--set finetune=1")):
        options.finetune(options.route("fedavg", "rotated-digits", ["finetune_batch_size=5"]))


def test_fine_tuning_has_a_pull_and_a_part():
    given = ["finetune=2", "finetune_pull=0.5", "finetune_layers=Dense_0/kernel|Dense_1/.*"]
    settings = options.route("fedavg", "rotated-digits", given)
    tuned = options.finetune(settings)
    assert (tuned.epochs, tuned.pull, tuned.part) == (2, 0.5, "Dense_0/kernel|Dense_1/.*")
    assert options.numbers(settings)["run.finetune_pull"] == 0.5  # a sweep over pulls compiles once
    other = options.finetune(options.route("fedavg", "rotated-digits", [*given[:1], "finetune_pull=0.25", given[2]]))
    assert other.hyperparameters.build is tuned.hyperparameters.build
    for item in ("finetune_pull=0.5", "finetune_layers=head"):
        name, _, value = item.partition("=")
        with pytest.raises(ValueError, match=mentions(name, value, "--set finetune=1")):
            options.finetune(options.route("fedavg", "rotated-digits", [item]))


def test_clients_that_adapt_their_model_are_tested_after_that_step():
    """A plain step of the method's own rate on all rows, not one of the run's optimiser in its batches."""
    given = ["adaptation_rate=0.25", "optimizer=adam", "batch_size=4"]
    settings = options.route("perfedavg", "rotated-digits", given)
    tuned = options.finetune(settings)
    assert (tuned.epochs, tuned.batch_size, settings.complete()["run.finetune"]) == (1, None, 1)
    assert tuned.optimizer.update(1.0, tuned.optimizer.init(0.0))[0] == -0.25
    assert options.finetune(options.route("perfedavg", "rotated-digits", ["finetune=none"])) is None
    local = options.finetune(
        options.route("perfedavg", "rotated-digits", [*given, "finetune_batch_size=local"], finetune=3)
    )
    assert (local.epochs, local.batch_size) == (3, 4)
    assert options.finetune(options.route("fedavg", "rotated-digits")) is None


def test_a_schedule_is_of_the_method_that_is_built():
    items = ["schedule=exponential", "schedule_rounds=2", "schedule_factor=0.25"]
    settings = options.route("fedavg", "rotated-digits", items)
    assert settings.complete()["run.schedule"] == "exponential"
    rates = options.schedule(settings)
    assert [float(rates(np.float32(number))) for number in (0, 1, 2)] == pytest.approx([1, 0.5, 0.25])
    assert options.schedule(options.route("fedavg", "rotated-digits")) is None
    for wrong, message in {
        "schedule=cosine": ("schedule_rounds", "schedule=cosine"),
        "schedule_rounds=5": ("schedule_rounds", 5),
        "schedule=step schedule_rounds=0": ("schedule_rounds", 0),
        "schedule=step schedule_rounds=3 schedule_factor=2": ("schedule_factor", 2.0),
        "schedule=step schedule_rounds=3,2": ("schedule_rounds", "increasing"),
        "schedule=cosine schedule_rounds=2,3": ("schedule_rounds", "cosine", "step"),
        "schedule=linear": ("schedule", "linear"),
    }.items():
        with pytest.raises(ValueError, match=mentions(*message)):
            options.schedule(options.route("fedavg", "rotated-digits", wrong.split()))


def test_another_model_leaves_the_suited_options_behind():
    assert "model.hidden" not in options.route("fedavg", "rotated-digits", ["model=logistic"]).complete()
    assert options.route("fedavg", "rotated-digits").complete()["model.hidden"] == (128,)


def test_a_server_optimizer_and_its_options():
    items = ["server_optimizer=fedadam", "server.learning_rate=0.02", "tau=0.1", "optimizer.learning_rate=0.5"]
    settings = options.route("fedprox", "rotated-digits", items)
    assert (settings.server_name, settings.server) == ("fedadam", {"learning_rate": 0.02, "tau": 0.1})
    complete = settings.complete()
    assert complete["server_optimizer"] == "fedadam" and "method.server_optimizer" not in complete
    served = {name: complete[f"server.{name}"] for name in ("learning_rate", "b1", "b2", "tau")}
    assert served == {"learning_rate": 0.02, "b1": 0.9, "b2": 0.99, "tau": 0.1}
    assert complete["optimizer.learning_rate"] == 0.5


@pytest.mark.parametrize("items", [[], ["server_optimizer=none"], ["server_optimizer=None"]])
def test_plain_averaging_is_stored_as_such(items):
    complete = options.route("fedavg", "rotated-digits", items).complete()
    assert complete["server_optimizer"] is None
    assert not [name for name in complete if name.startswith("server.")]
    assert "server_optimizer" not in options.route("fedsgd", "rotated-digits").complete()


@pytest.mark.parametrize(
    ("method", "items", "words"),
    [
        ("fedsgd", ["server_optimizer=fedadam"], ("fedadam", "server_optimizer")),
        ("fedavg", ["server_optimizer=fedadm"], ("fedadm", "fedadam", "server_optimizer")),
        ("fedavg", ["server.tau=1"], ("server.tau", "--set", "server_optimizer")),
        ("fedavg", ["server_optimizer=fedavgm", "server.tau=1"], ("server.tau", "fedavg", "fedadam")),
        ("fedavg", ["server_optimiser=fedavgm"], ("server_optimiser", "server_optimizer")),
        (
            "fedavg",
            ["server_optimizer=fedavgm", "learning_rate=1"],
            ("optimizer.learning_rate", "server.learning_rate"),
        ),
        ("fedavg", ["server_optimizer=fedadam", "server.b1=much"], ("server.b1", "much")),
    ],
)
def test_server_optimizers_are_refused(method, items, words):
    with pytest.raises(ValueError, match=mentions(*words)):
        options.route(method, "rotated-digits", items)


@pytest.mark.parametrize("name", options.SERVERS)
def test_the_factory_is_given_the_server_optimizer(name, monkeypatch):
    """It is built from the defaults and what was given; without one the factory is not told of it."""
    seen = []

    def spy(task, optimizer, *, server_optimizer: optax.GradientTransformation | None = None):
        seen.append(server_optimizer)
        return fedavg(task, optimizer)

    monkeypatch.setitem(METHODS, "spy", Row(spy, "", ""))
    data = federations.load("rotated-digits", num_clients=8, rows_per_client=20)
    for items in ([], [f"server_optimizer={name}"], [f"server_optimizer={name}", "server.learning_rate=0"]):
        options.build(options.route("spy", "rotated-digits", items), data)
    default, moving, still = seen
    assert default is None
    steps = [optimizer.update(1.0, optimizer.init(0.0), 0.0)[0] for optimizer in (moving, still)]
    assert steps[0] < 0 == steps[1]


@pytest.mark.parametrize("name", options.SERVERS)
def test_the_defaults_are_those_of_the_function(name):
    make, defaults = options.SERVERS[name]
    parameters = inspect.signature(make).parameters
    assert set(defaults) <= set(parameters)
    if name != "fedavgm":  # it is optax's SGD
        assert defaults == {key: parameter.default for key, parameter in parameters.items()}


@pytest.mark.parametrize(
    ("items", "name"),
    [
        ([], "uniform"),
        (["dropouts=0", "availability=always"], "uniform"),
        (["dropouts=0.3"], "dropouts(0.3, uniform)"),
        (["availability=random"], "availability(random, lowest=0.1)"),
        (["availability=diurnal", "availability_period=7"], "availability(diurnal, period=7.0, threshold=0.0)"),
        (["availability=random", "run.dropouts=0.5"], "dropouts(0.5, availability(random, lowest=0.1))"),
        (["sampler=poisson", "dropouts=0.5"], "dropouts(0.5, poisson())"),
    ],
)
def test_samplers_are_chosen(items, name):
    settings = options.route("fedavg", "rotated-digits", items)
    assert sampling.sampler_name(options.sampler(settings)) == name


def test_attackers_are_options_of_every_data_set():
    settings = options.route("local", "rotated-digits", ["attack=label-flip", "attackers=.25", "num_clients=8"])
    assert settings.data == {"attack": "label-flip", "attackers": 0.25, "num_clients": 8}
    assert int(options.load(settings).attack.attacker.sum()) == 2
    assert options.load(settings._replace(data={"num_clients": 8})).attack is None


OWN = '''
from flax import linen as nn, nnx


class Linen(nn.Module):
    num_classes: int
    width: int = 4

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.num_classes)(nn.relu(nn.Dense(self.width)(x.reshape(x.shape[0], -1))))


class NNX(nnx.Module):
    """A network.

    Args:
        width: of its layer.
    """

    def __init__(self, width: int = 4, *, num_classes: int, rngs):
        self.stem, self.head = nnx.Linear(64, width, rngs=rngs), nnx.Linear(width, num_classes, rngs=rngs)

    def __call__(self, x):
        return self.head(nnx.relu(self.stem(x.reshape(x.shape[0], -1))))


shape = 3
'''


@pytest.mark.parametrize("name", ["Linen", "NNX"])
def test_a_network_of_ones_own(name, tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    address = f"{tmp_path / 'mine.py'}:{name}"
    settings = options.route("fedavg", "rotated-digits", [f"model={address}", "width=6", "num_clients=4"])
    data = options.load(settings)
    shapes = jax.eval_shape(options.build(settings, data).task.init, jax.random.key(0))
    assert sorted(leaf.shape for leaf in jax.tree.leaves(shapes)) == [(6,), (6, 10), (10,), (64, 6)]
    before = settings.complete()
    assert before["model"] == f"mine.py:{name}" and before["model.width"] == 6
    (tmp_path / "mine.py").write_text(OWN.replace("relu", "gelu"))
    assert settings.complete() != before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model=mine.py:Nnx", ("mine.py", "Nnx", "NNX")),
        ("model=mine.py:shape", ("mine.py:shape", "network", 3)),
        ("model=gone.py:NNX", ("gone.py",)),
        ("model=broken.py:NNX", ("broken.py", "ZeroDivisionError")),
        ("model=mine.py", ("model", "mine.py")),
        ("task=regresion", ("task", "regresion", "regression")),
        ("task=mine.py:parity", ("mine.py", "parity")),
        ("task=mine.py:shape", ("mine.py:shape", "task", 3)),
        ("compute=float16", ("compute", "float16")),
        ("seed=3", ("seed", "fedavg")),
    ],
)
def test_a_network_that_is_not_there_is_refused(text, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(ValueError, match=mentions(*said)):
        options.route("fedavg", "rotated-digits", [text])


def test_an_option_that_is_missing_is_that_of_its_owner(tmp_path):
    path = tmp_path / "needs.py"
    path.write_text("from flax import linen as nn\n\n\nclass Needs(nn.Module):\n    width: int\n")
    with pytest.raises(ValueError, match=mentions("width", "needs.py", "--set", "width=")):
        options.route("fedavg", "rotated-digits", [f"model={path}:Needs"])


TASK = """
import jax.numpy as jnp
import jaxfl


def parity(module, data):
    def losses(outputs, batch):
        return jnp.abs(outputs[:, 0])

    return jaxfl.supervised(module, data, losses, jaxfl.Metrics(lambda outputs, batch: batch.y, lambda sums, rows: {}))


def nothing(module, data):
    return module
"""


def test_the_task_is_that_of_the_labels_or_the_one_that_is_asked_for(tmp_path):
    (tmp_path / "mine.py").write_text(TASK)
    mine = ["num_clients=4", "model=logistic"]
    of_digits = options.load(options.route("fedavg", "rotated-digits", mine))
    numbers = of_digits.replace(labels=of_digits.labels.astype(np.float32), num_classes=1)

    def task(data, *more):
        return options.build(options.route("fedavg", "rotated-digits", [*mine, *more]), data).task

    assert task(of_digits).metrics is ACCURACY
    assert task(numbers).metrics.lower == task(numbers, "task=regression", "compute=bfloat16").metrics.lower != ()
    with pytest.raises(ValueError, match=mentions("multilabel", "jaxfl.regression")):
        task(numbers, "task=multilabel")
    assert task(of_digits, f"task={tmp_path / 'mine.py'}:parity").metrics.pooled
    with pytest.raises(ValueError, match=mentions("mine.py:nothing", "jaxfl.supervised", "Logistic")):
        task(of_digits, f"task={tmp_path / 'mine.py'}:nothing")
    settings = options.route("fedavg", "rotated-digits", [f"task={tmp_path / 'mine.py'}:parity"])
    before = settings.complete()
    (tmp_path / "mine.py").write_text(TASK + "# changed")
    assert settings.complete() != before, "a run is not resumed with another task of the same name"


@pytest.mark.parametrize("asked", ["compute=bfloat16", "fast_forms=false"])
def test_what_a_task_of_ones_own_is_not_told_is_refused(asked, tmp_path):
    (tmp_path / "mine.py").write_text(TASK)
    settings = options.route("fedavg", "rotated-digits", ["num_clients=4", f"task={tmp_path}/mine.py:parity", asked])
    with pytest.raises(ValueError, match=mentions(asked, "mine.py:parity")):
        options.build(settings, options.load(settings))


TYPED = """from __future__ import annotations

from typing import TYPE_CHECKING

from flax import linen as nn

if TYPE_CHECKING:
    from collections.abc import Callable


def make(num_classes, hidden=(8,), act: Callable = nn.relu):
    return nn.Sequential([lambda x: x.reshape(len(x), -1), *map(nn.Dense, hidden), act, nn.Dense(num_classes)])
"""


def test_a_function_s_lists_and_types_for_a_checker_alone(tmp_path):
    """A list is what a kept run's config has in place of a tuple."""
    (tmp_path / "mine.py").write_text(TYPED)
    address = f"{tmp_path / 'mine.py'}:make"
    for words in ({"items": [f"model={address}", "hidden=8,4"]}, {"model": address, "hidden": [8, 4]}):
        assert options.route("fedavg", "rotated-digits", **words).model == {"hidden": (8, 4)}


@pytest.mark.parametrize("rounds", [41, 47, 100])
def test_a_step_of_the_rate_is_in_its_round_in_compiled_programs_too(rounds):
    items = ["schedule=step", f"schedule_rounds={rounds}", "schedule_factor=0.5"]
    rates = jax.jit(options.schedule(options.route("fedavg", "rotated-digits", items)))
    assert [float(rates(number)) for number in (rounds - 1, rounds, 2 * rounds - 1, 2 * rounds)] == [1, 0.5, 0.5, 0.25]


def test_steps_of_the_rate_may_be_given_one_by_one():
    """FedEM's code divides the rate by ten at half and at three quarters of its rounds."""
    rates = jax.jit(
        options.schedule(options.route("fedavg", "rotated-digits", ["schedule=step", "schedule_rounds=4,6"]))
    )
    assert [float(rates(np.int32(number))) for number in (0, 3, 4, 5, 6, 9)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01]
    )


@pytest.mark.parametrize("method", METHODS)
def test_options_of_every_run_leave_a_method_its_names(method):
    """Otherwise one of its options could not be set without its owner."""
    of_runs = {option.name for option in options.options_of_runs(method)}
    assert not of_runs & set(function_options(METHODS[method].factory))


def test_local_steps_take_the_place_of_local_epochs():
    """As text, and as a value from Python; of another method the number of epochs stays."""
    few = options.route("fedavg", "rotated-digits", ["local_steps=20", "batch_size=5"])
    assert few.run["local_steps"] == 20 and "local_epochs" not in few.method
    assert options.route("fedavg", "rotated-digits", ["batch_size=5"], local_epochs=jaxfl.Steps(20)) == few
    parts = options.route("fedavg", "rotated-digits", ["local_epochs=0.5"]), options.route("fedavg", "rotated-digits")
    assert [one.complete()["method.local_epochs"] for one in parts] == [0.5, 5]
    whole = options.route("fedavg", "rotated-digits", ["local_epochs=2"]).complete()["method.local_epochs"]
    assert type(whole) is int, "the identity of a run is as before"


@pytest.mark.parametrize(
    ("method", "items", "words"),
    [
        ("fedavg", ["local_steps=20", "local_epochs=2"], ("local_steps", 20, "local_epochs=2")),
        ("fedavg", ["local_steps=0"], ("local_steps", 0)),
        ("fedavg", ["local_steps=2.5"], ("local_steps", "2.5")),
        ("fedsgd", ["local_steps=20"], ("local_steps", 20, "fedsgd")),
    ],
)
def test_local_steps_are_refused(method, items, words):
    with pytest.raises(ValueError, match=mentions(*words)):
        options.route(method, "rotated-digits", items)


@pytest.mark.slow
def test_steps_of_a_named_run_are_those_of_as_many_epochs():
    """Of clients with 25 rows each and batches of 5, ten steps are two epochs."""
    small = {"num_clients": 4, "rows_per_client": 25, "model": "logistic", "batch_size": 5, "rounds": 2, "cohort": 1.0}
    epochs, steps, half = (
        jaxfl.run_named("scaffold", "rotated-digits", **small, **length)
        for length in ({"local_epochs": 2}, {"local_steps": 10}, {"local_epochs": 0.5})
    )
    assert epochs.data.train.size.tolist() == [25] * 4
    for one, other in zip(jax.tree.leaves(epochs.state), jax.tree.leaves(steps.state), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)
    model, shorter = (jax.tree.leaves(one.state.model)[0] for one in (epochs, half))
    assert abs(model - shorter).max() > 1e-3


@pytest.mark.parametrize("seed", [0, 1])
def test_balanced_classes_are_those_of_the_run_s_own_rows(seed):
    """Federations of the same shapes do not share the weights of one."""
    settings = options.route(
        "fedavg", "dirichlet-digits", ["num_clients=4", "class_weights=balanced", "model=logistic"]
    )
    first, data = (options.load(settings, seed=one) for one in (5, seed))
    options.build(settings, first)
    task = options.build(settings, data).task
    batch = data.batch(data.train, 0, np.arange(3, dtype=np.int32))
    model = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), jax.eval_shape(task.init, jax.random.key(0)))
    counts = label_counts(data).sum(0)
    wanted = counts.sum() / (10 * counts[np.asarray(batch.y)])
    np.testing.assert_allclose(task.losses(model, batch, None), wanted * np.log(10), rtol=1e-5)


@pytest.mark.parametrize(
    ("data", "value", "words"),
    [
        ("rotated-digits", "1,2", ("class_weights", 10, 2)),
        ("rotated-digits", "1,1,1,1,1,1,1,1,1,-1", ("class_weights", -1.0)),
        ("rotated-digits", "0,0,0,0,0,0,0,0,0,0", ("class_weights", "all 0")),
        ("ratings", "balanced", ("class_weights", "balanced", "regression")),
    ],
)
def test_class_weights_are_refused(data, value, words):
    settings = options.route("fedavg", "rotated-digits", [f"class_weights={value}", "num_clients=4"])
    federation = options.load(settings)
    if data == "ratings":
        rows = [np.arange(4), np.arange(4)]
        federation = federations.federate(np.eye(4, dtype=np.float32), np.linspace(0, 1, 4), rows, rows)
    with pytest.raises(ValueError, match=mentions(*words)):
        options.build(settings, federation)


def test_other_words_for_class_weights_are_refused():
    with pytest.raises(ValueError, match=mentions("class_weights", '"balance"', '"balanced"')):
        options.route("fedavg", "rotated-digits", ["class_weights=balance"])
