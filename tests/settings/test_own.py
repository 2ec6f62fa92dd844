"""Data, optimisers, tasks and networks in a file of the user, and their options."""

import json
import re

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import jaxfl
from jaxfl import load, schema, tree
from jaxfl.cli.app import app
from jaxfl.data.catalog import SHIFTS
from jaxfl.data.digest import digest
from jaxfl.jobs.loaded import written_job
from jaxfl.models.weights import save_weights
from jaxfl.settings import federations, optimizers, options, tasks, user_code
from tests.messages import mentions

MINE = '''
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

import jaxfl
from jaxfl.schema import Traceable


def rotated(num_clients: int = 4, *, rows: int = 20, seed: int = 0):
    """Rotated digits.

    Args:
        num_clients: how many there are.
    """
    return jaxfl.data.load("rotated-digits", num_clients=num_clients, rows_per_client=rows, seed=seed)


def arguments(noise: float = 0.0, *, seed, data_dir):
    rng = np.random.default_rng(seed)
    labels = np.arange(24) % 3
    inputs = np.eye(3, dtype=np.float32)[labels] + np.float32(noise) * rng.normal(size=(24, 3)).astype(np.float32)
    rows = np.arange(24).reshape(4, 6)
    return {"inputs": inputs, "labels": labels, "train": rows[:, :4], "test": rows[:, 4:], "num_classes": 3}


def numbers():
    x = np.linspace(0, 1, 12, dtype=np.float32)[:, None]
    rows = np.arange(12).reshape(4, 3)
    return x, 2 * x[:, 0], rows[:, :2], rows[:, 2:]


def needed(noise: float): ...
def nothing(): ...
def five(): return 5
def taken(held_out: float = 0.5): ...
def clashing(swaps: int = 1): ...
def drifts(): return jaxfl.data.load("rotated-digits", num_clients=4, drift="rotate", drift_round=2)
def unknown_argument(): return arguments(seed=0, data_dir=None) | {"colour": 1}
def fails(): return 1 / 0
def leaves(): raise SystemExit
def leaves_later(): return optax.GradientTransformation(lambda params: (), lambda *updates: leaves())
def without_classes(): return tuple(arguments(seed=0, data_dir=None).values())[:4]
number = 3


def descent(rate: Traceable = 0.1, *, decay: float = 0.0) -> optax.GradientTransformation:
    """Gradient descent."""
    return optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate)) if decay else optax.sgd(rate)


def heavy(speed: Traceable = 1.0, *, inertia: float = 0.9) -> optax.GradientTransformation:
    """A server with momentum."""
    return optax.sgd(speed, inertia)


def watchful(rate: Traceable = 0.1):
    if rate > 1:
        raise ValueError("too fast")
    return optax.sgd(rate)


class Net(nn.Module):
    """A network."""

    width: int = 8
    num_classes: int = 10

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.num_classes)(nn.relu(nn.Dense(self.width)(x.reshape(len(x), -1))))


def smooth(network, data, *, smoothing: float = 0.1):
    """Cross-entropy of smoothed labels."""

    def losses(outputs, batch):
        return optax.softmax_cross_entropy(outputs, optax.smooth_labels(
            jnp.eye(data.num_classes, dtype=outputs.dtype)[batch.y], smoothing))

    return jaxfl.supervised(network, data, losses, jaxfl.tasks.ACCURACY)
'''  # fmt: skip
OWN = ["--data", "mine.py:rotated", "--set", "model=mine.py:Net", "--set", "optimizer=mine.py:descent"]
OWN += ["--set", "task=mine.py:smooth"]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def route(*items, data="mine.py:rotated"):
    return options.route("fedavg", data, items)


ALL = ("model=mine.py:Net", "optimizer=mine.py:descent", "task=mine.py:smooth")


def test_options_go_to_what_has_them(mine):
    settings = route(*ALL, "rows=16", "width=4", "rate=0.2", "smoothing=0.3", "stragglers=0.5", "held_out=0.25")
    assert settings.data == {"rows": 16, "stragglers": 0.5, "held_out": 0.25}
    assert (settings.model, settings.optimizer, settings.task) == ({"width": 4}, {"rate": 0.2}, {"smoothing": 0.3})
    complete, checksum = settings.complete(), user_code.file_checksum(mine / "mine.py")
    names = {"data": "rotated", "model": "Net", "optimizer": "descent", "run.task": "smooth"}
    assert {name: complete[name] for name in names} == {name: f"mine.py:{one}" for name, one in names.items()}
    assert {complete[f"{owner}_checksum"] for owner in ("data", "model", "optimizer", "task")} == {checksum}
    assert (complete["task.smoothing"], complete["data.num_clients"], complete["optimizer.decay"]) == (0.3, 4, 0.0)
    assert "data.seed" not in complete  # the run's


def test_what_is_not_in_a_file_has_no_new_entries():
    complete = options.route("fedavg", "rotated-digits").complete()
    assert not any(name.startswith("task.") or name.endswith("_checksum") for name in complete)


@pytest.mark.parametrize(
    ("items", "said"),
    [
        (["rows=many"], ("rows", "many", "whole number", 20)),
        (["width=0.5"], ("width", 0.5, "whole number")),
        (["rate=fast"], ("rate", "fast", "number", 0.1)),
        (["smoothing=much"], ("smoothing", "much", "number", 0.1)),
        (["smothing=0.2"], ("smothing", "smoothing", "task mine.py:smooth", "rate", "decay", "width", "rows")),
        (["momentum=0.9"], ("momentum", "optimizer mine.py:descent", "rate, decay")),
    ],
)
def test_options_are_checked_by_type_and_name(items, said, mine):
    result = call("run", "fedavg", *OWN, *(word for item in items for word in ("--set", item)))
    assert result.exit_code == 2
    assert re.search(mentions(*said), result.stderr) and result.stderr.count("\n") == 1, result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--data gone.py:rotated", ("gone.py", "FILE.py:NAME")),
        ("--data mine.py", ("data", "mine.py", "FILE.py:NAME")),
        ("--data mine.py:rotate", ("mine.py", "rotate", "rotated")),
        ("--data mine.py:number", ("mine.py:number", 3, "jaxfl.data.FederatedData")),
        ("--data mine.py:needed", ("noise", "mine.py:needed")),
        ("--data mine.py:nothing", ("mine.py:nothing", "None", "jaxfl.data.federate")),
        ("--data mine.py:five", ("mine.py:five", 5, "jaxfl.data.federate")),
        ("--data mine.py:taken", ("mine.py:taken", "held_out")),
        ("--data mine.py:fails", ("mine.py:fails", "ZeroDivisionError", "in fails")),
        ("--data mine.py:leaves", ("mine.py:leaves", "SystemExit", "in leaves")),
        ("--data rotated-digits --set optimizer=mine.py:leaves", ("mine.py:leaves", "SystemExit", "in leaves")),
        ("--data rotated-digits --set optimizer=mine.py:leaves_later", ("SystemExit", "in leaves")),
        ("--data mine.py:unknown_argument", ("mine.py:unknown_argument", "colour")),
        ("--data mine.py:without_classes", ("num_classes",)),
        ("--data mine.py:rotated --set held_out=1", ("held_out", 1.0)),
        ("--data iid+mine.py:rotated", ("iid+mine.py", "FILE.py:NAME", "swapped+")),
        ("--data rotated+mine.py:arguments", ("rotation", "(24, 3)")),
        ("--data coloured+mine.py:arguments", ("coloured", "(24, 3)")),
        ("--data swapped+mine.py:numbers", ("swapped", "classes")),
        ("--data swapped+mine.py:drifts", ("swapped", "drift", 2, "add the drift last")),
        ("--data swapped+mine.py:clashing", ("mine.py:clashing", "swaps", "shift")),
        ("--data rotated-digits --set optimizer=gone.py:f", ("gone.py", "FILE.py:NAME")),
        ("--data rotated-digits --set optimizer=mine.py", ("optimizer", "mine.py", "FILE.py:NAME")),
        ("--data rotated-digits --set optimizer=mine.py:descend", ("mine.py", "descend", "descent")),
        ("--data rotated-digits --set optimizer=mine.py:number", ("mine.py:number", 3)),
        ("--data rotated-digits --set optimizer=mine.py:nothing", ("mine.py:nothing", "None", "optax")),
        ("--data rotated-digits --set optimizer=mine.py:five", ("mine.py:five", 5, "optax")),
        ("--data rotated-digits --set optimizer=mine.py:fails", ("mine.py:fails", "ZeroDivisionError", "in fails")),
        ("--data rotated-digits --set optimizer=mine.py:watchful", ("mine.py:watchful", "rate", "is_known")),
        ("--data rotated-digits --set server_optimizer=mine.py", ("server_optimizer", "mine.py", "FILE.py:NAME")),
        ("--data rotated-digits --set server_optimizer=mine.py:heavier", ("mine.py", "heavier", "heavy")),
        ("--data rotated-digits --set server_optimizer=mine.py:five", ("mine.py:five", 5, "optax")),
        ("--data rotated-digits --set server_optimizer=mine.py:watchful", ("mine.py:watchful", "rate", "is_known")),
        (
            "--data rotated-digits --set server_optimizer=mine.py:heavy --set server.slow=1",
            ("server.slow", "server_optimizer mine.py:heavy", "server: speed, inertia"),
        ),
        ("--data rotated-digits --set task=mine.py:number", ("mine.py:number", 3, "task")),
        ("--data rotated-digits --set head=Dense_7", ("head", "Dense_7", "Dense_0", "Dense_1")),
    ],
)
def test_what_cannot_be_used_is_one_line(words, said, mine):
    result = call("run", "fedavg", *words.split(), "--quiet", "--rounds", 1)
    assert result.exit_code == 2, result.output
    assert re.search(mentions(*said), result.stderr) and result.stderr.count("\n") == 1, result.stderr


@pytest.mark.parametrize(
    "command", ["run script.py:f --data rotated-digits", "run fedavg --data script.py:f", "check script.py:f"]
)
def test_a_script_that_ends_its_process_is_refused_and_ends_no_command_in_silence(command, mine):
    """Without a guard by `__main__` its end would be that of the command, with its status 0, and nothing was made."""
    (mine / "script.py").write_text("import sys\ndef f(): pass\nsys.exit()\n")
    result = call(*command.split())
    assert result.exit_code == 2 and re.search(mentions("script.py", "SystemExit", "line 3"), result.stderr)


def test_federations_of_functions_are_those_that_they_return(mine):
    own = federations.load("mine.py:rotated", seed=3, rows=16)
    assert digest(own) == digest(jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=16, seed=3))
    data = federations.load("mine.py:arguments", seed=1, noise=0.5)
    other = federations.load("mine.py:arguments", seed=2, noise=0.5)
    assert data.name == "mine.py:arguments" and data.num_classes == 3 and not np.array_equal(data.inputs, other.inputs)
    assert federations.load("mine.py:numbers").kind == "regression"
    with_roles = federations.load("mine.py:arguments", held_out=0.5, validation=0.25, attack="sign-flip", attackers=0.5)
    assert with_roles.held_out.sum() == 2 and with_roles.validation.size.tolist() == [1, 1, 1, 1]
    assert with_roles.attack.kind == "sign-flip"


def test_federations_of_functions_take_shifts(mine):
    settings = options.route(
        "fedavg", "swapped+rotated+mine.py:rotated", ["num_clients=16", "swaps=none,0:1", "angles=0,90"]
    )
    assert settings.data == {"num_clients": 16, "swaps": "none,0:1", "angles": (0, 90)}
    found = options.load(settings, seed=3)
    before = federations.load("mine.py:rotated", seed=3, num_clients=16)
    shifted = SHIFTS["swapped"](SHIFTS["rotated"](before, angles=(0, 90), seed=3), swaps="none,0:1", seed=3)
    assert digest(found) == digest(shifted) != digest(before) and found.name == shifted.name
    assert settings.complete()["data"] == "swapped+rotated+mine.py:rotated"
    assert settings.files()["data"].resolve() == (mine / "mine.py").resolve()
    copied = federations.load("thickened+mine.py:rotated", num_clients=16)
    assert len(copied.inputs) > len(before.inputs)
    page = call("data", "swapped+mine.py:rotated", "--set", "swaps=none,0:1", "--set", "num_clients=8").stdout
    assert re.search(mentions("swapped+mine.py:rotated", "Rotated digits", "swap 0:1"), page)


def test_a_run_on_shifted_data_of_a_file_is_loaded_and_resumed(mine):
    words = ["run", "fedavg", "--data", "swapped+mine.py:rotated", "--set", "swaps=none,0:1", "--set", "num_clients=8"]
    words += ["--no-pictures", "--cohort", 2, "--quiet", "--out", "out"]
    assert call(*words, "--rounds", 1).exit_code == 0
    kept = load("out", trust=True)
    assert kept.config["data"] == "swapped+mine.py:rotated" and kept.data.label_maps()[0, :2].tolist() in (
        [0, 1],
        [1, 0],
    )
    assert kept.job.settings.data == {"num_clients": 8, "swaps": "none,0:1"}
    assert written_job(kept.config).settings.data_name == f"swapped+{mine / 'mine.py'}:rotated"
    assert call(*words, "--rounds", 2, "--resume").exit_code == 0


def test_an_optimiser_of_a_file_steps_as_the_same_one_of_jaxfl(mine):
    """And its numbers that may be traced compile nothing anew."""
    data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=20)
    results = []
    for items in (["optimizer=mine.py:descent", "rate=0.3"], ["learning_rate=0.3"]):
        settings = options.route("fedavg", "rotated-digits", ["model=logistic", *items])
        results.append(jaxfl.run(options.build(settings, data), data, rounds=2, cohort=2).params(client=0))
    for one, other in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_array_equal(one, other)
    slow, fast, decaying = (
        options.route("fedavg", "rotated-digits", ["optimizer=mine.py:descent", *items])
        for items in (["rate=0.2"], ["rate=0.3"], ["decay=0.1"])
    )
    assert options.numbers(fast) == {"optimizer.rate": 0.3}
    assert options.program_text(slow) == options.program_text(fast) != options.program_text(decaying)


def test_a_server_optimiser_of_a_file_steps_as_the_same_one_of_jaxfl(mine):
    data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=20)
    results = []
    for items in (
        ["server_optimizer=mine.py:heavy", "server.speed=0.5"],
        ["server_optimizer=fedavgm", "server.learning_rate=0.5"],
    ):
        settings = options.route("fedavg", "rotated-digits", ["model=logistic", *items])
        results.append(jaxfl.run(options.build(settings, data), data, rounds=3, cohort=2).params(client=0))
    for one, other in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_array_equal(one, other)
    slow, fast, light = (
        options.route("fedavg", "rotated-digits", ["server_optimizer=mine.py:heavy", *items])
        for items in (["server.speed=0.2"], ["server.speed=0.3"], ["server.inertia=0.1"])
    )
    assert options.numbers(fast)["server.speed"] == 0.3
    assert options.program_text(slow) == options.program_text(fast) != options.program_text(light)


def test_a_task_has_the_options_of_its_function(mine):
    data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=20)
    assert list(tasks.options("mine.py:smooth")) == ["smoothing"] and tasks.options("auto") == {}
    batch = data.batch(data.train, 0, np.arange(20))
    losses = {}
    for smoothing in (0.0, 0.4):
        settings = options.route("fedavg", "rotated-digits", [*ALL, f"smoothing={smoothing}"])
        task = options.build(settings, data).task
        losses[smoothing] = float(task.loss(task.init(jax.random.key(0)), batch, None))
    usual = jaxfl.classification(options.model(settings, 10), data)
    expected = float(usual.loss(usual.init(jax.random.key(0)), batch, None))
    assert losses[0.0] == pytest.approx(expected, rel=1e-6) and losses[0.4] != losses[0.0]  # rel: rounding of float32


def test_a_number_of_a_network_is_no_argument_of_programs(mine):
    (mine / "mine.py").write_text(MINE.replace("width: int = 8", "width: int = 8\n    slope: Traceable = 0.5"))
    settings = route("model=mine.py:Net", "slope=0.25")
    assert settings.model == {"slope": 0.25} and "model.slope" not in options.numbers(settings)


def test_a_run_keeps_the_file_and_is_resumed_and_loaded(mine):
    words = ["run", "fedavg", *OWN, "--set", "smoothing=0.2", "--set", "rate=0.2", "--no-pictures", "--cohort", 2]
    words += ["--set", "server_optimizer=mine.py:heavy", "--set", "server.inertia=0.5"]
    assert call(*words, "--out", "out", "--rounds", 1).exit_code == 0
    config = json.loads((mine / "out" / "config.json").read_text())
    for owner in ("data", "model", "optimizer", "server_optimizer", "task"):
        assert config[f"{owner}_sha256"] == user_code.file_sha256(mine / "mine.py")
        assert config[f"{owner}_file"] == str(mine / "mine.py")
    assert (mine / "out" / "mine.py").read_text() == MINE
    (mine / "mine.py").write_text(MINE + "# changed\n")
    result = call(*words, "--out", "out", "--rounds", 2, "--resume")
    assert result.exit_code == 2 and re.search(mentions("changed", "out/mine.py"), result.stderr)
    (mine / "mine.py").unlink()
    kept = load("out", trust=True)
    assert kept.job.settings.task == {"smoothing": 0.2} and kept.job.settings.optimizer == {"rate": 0.2}
    assert kept.job.settings.server == {"inertia": 0.5}
    resumed = kept.resume(rounds=2)
    (mine / "mine.py").write_text(MINE)
    assert call(*words, "--out", "whole", "--rounds", 2, "--eval-every", 1).exit_code == 0
    whole = load("whole", trust=True)
    for one, other in zip(*map(jax.tree.leaves, (resumed.state, whole.state)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_sweeps_and_plans_take_files(mine):
    words = [*OWN[:2], "--set", "optimizer=sgd,mine.py:descent", "--set", "decay=0.0,0.1", "--rounds", 1]
    result = call("sweep", "fedavg", *words, "--set", "model=logistic", "--out", "all", "--jobs", 1)
    assert result.exit_code == 0, result.output
    names = sorted(path.name for path in (mine / "all").iterdir() if path.name.startswith("fedavg"))
    assert names == [
        "fedavg-optimizer=mine.py_descent-decay=0.0", "fedavg-optimizer=mine.py_descent-decay=0.1",
        "fedavg-optimizer=sgd",
    ]  # fmt: skip
    assert call("sweep", "fedavg", *words, "--set", "model=logistic", "--out", "all", "--jobs", 1).exit_code == 0
    compared = call("compare", "all")
    assert compared.exit_code == 0 and re.search(mentions("optimizer=mine.py:descent", "decay=0.1"), compared.stdout)
    planned = call("plan", "fedavg", *OWN)
    assert planned.exit_code == 0, planned.output


def test_pages_list_options(mine):
    page = call("data", "mine.py:rotated").stdout
    assert page.startswith("mine.py:rotated: Rotated digits") and "clients   4" in page
    assert re.search(mentions("--set num_clients=4", "how many there are", "--set rows=20", "held_out=0.0"), page)
    (row,) = json.loads(call("data", "mine.py:needed", "--json").stdout)
    assert row["options"]["noise"] is None and row["federation"] is None
    for name, owner, shown in [
        ("descent", "optimizer", ("rate", "decay", 0.1)),
        ("smooth", "task", ("smoothing", 0.1, "Cross-entropy of smoothed labels")),
        ("Net", "model", ("width", 8, "A network")),
        ("rotated", "data", ("num_clients", 4, "rows", 20)),
    ]:
        flag = "--data " if owner == "data" else f"--set {owner}="
        assert re.search(mentions(f"{flag}mine.py:{name}", *shown), call("methods", f"mine.py:{name}").stdout)
        (row,) = json.loads(call("methods", f"mine.py:{name}", "--json").stdout)
        assert row["owner"] == owner and set(row["options"]) <= {str(one) for one in shown}
    assert call("data", "mine.py:rotated", "--set", "rows=8", "--save", "kept").exit_code == 0
    assert jaxfl.data.load("saved", data_dir="kept").num_clients == 4
    assert call("data", "mine.py:rotated", "--download").exit_code == 2


def test_the_options_of_any_function_are_read():
    assert optimizers.options("sgd").keys() == {"learning_rate", "momentum", "nesterov", "weight_decay"}

    def strange(known: "NoSuchType" = 1, *rest, **more): ...  # noqa: F821

    (option,) = schema.parameter_options(strange).values()
    assert (option.name, option.default) == ("known", 1)


def test_weights_start_a_network_of_a_file(mine):
    data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=20)
    drawn = options.build(options.route("fedavg", "rotated-digits", ["model=mine.py:Net"]), data).task.init
    model = drawn(jax.random.key(7))
    save_weights(mine / "w.safetensors", model)
    started = options.route("fedavg", "rotated-digits", ["model=mine.py:Net", "weights=w.safetensors"])
    for key in map(jax.random.key, range(2)):
        found = options.build(started, data).task.init(key)
        for one, other in zip(*map(jax.tree.leaves, (found, model)), strict=True):
            np.testing.assert_array_equal(one, other)
    wider = options.route("fedavg", "rotated-digits", ["model=mine.py:Net", "width=9", "weights=w.safetensors"])
    with pytest.raises(ValueError, match=mentions("Dense_0/kernel", "float32[9, 10]", "float32[8, 10]")):
        options.build(wider, data)


def test_a_head_that_is_not_the_last_layer(mine):
    data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=20)
    for items, personal in (([], "Dense_1"), (["head=Dense_0"], "Dense_0")):
        settings = options.route("fedper", "rotated-digits", ["model=mlp", "hidden=8", *items])
        method = options.build(settings, data)
        state = jax.eval_shape(method.init, jax.random.key(0), data)
        assert tree.names(state.heads) == [f"{personal}/bias", f"{personal}/kernel"]
