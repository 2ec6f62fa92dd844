"""`jaxfl check`: what it says of laws that hold and that are broken, in files of a user's own."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jaxfl.cli.app import app
from jaxfl.testing import CHECKS
from tests.messages import mentions
from tests.methods import example_method

MINE = (
    Path(example_method.__file__).read_text(encoding="utf-8")
    + """
from flax import linen as nn

import jaxfl


def counts_in_floats(task, optimizer, *, num_clusters: int):
    made = example(task, optimizer, num_clusters=num_clusters)

    def round(key, state, data, cohort):
        if num_clusters == 1 and state.round > 0:  # a branch on a traced value
            return state, None
        state, info = made.round(key, state, data, cohort)
        return state._replace(round=state.round.astype(jnp.float32)), info

    return made._replace(round=round)


def tells(task, optimizer, *, server_optimizer: optax.GradientTransformation | None = None):
    step, _ = optimizer.update(1.0, optimizer.init(3.0), 3.0)
    shapes = sorted(leaf.shape for leaf in jax.tree.leaves(task.init(jax.random.key(0))))
    raise ValueError(f"step {float(step):.3f} of {shapes}, server {server_optimizer is not None}")


def descent(rate: float = 0.5, *, decay: float = 0.0):
    return optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate))


class Net(nn.Module):
    width: int = 8
    num_classes: int = 10

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.num_classes)(nn.relu(nn.Dense(self.width)(x)))


def smooth(network, data, *, smoothing: float):
    def losses(outputs, batch):
        return optax.softmax_cross_entropy(outputs, optax.smooth_labels(jnp.eye(3)[batch.y], smoothing))

    return jaxfl.supervised(network, data, losses, jaxfl.tasks.ACCURACY)
"""
)


@pytest.fixture(autouse=True)
def few_laws(monkeypatch, tmp_path):
    """The laws that compile nothing, and one that stands for the others; the whole battery runs elsewhere."""
    for law in set(CHECKS) - {"argument names", "stable state", "growth"}:
        monkeypatch.delitem(CHECKS, law)
    monkeypatch.setitem(CHECKS, "last", lambda row: None)
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)


def check(*words):
    result = CliRunner().invoke(app, ["check", *words])
    return result.exit_code, result.stdout, result.stderr


def test_a_good_method_keeps_all_laws():
    code, told, _ = check("mine.py:example", "--set", "num_clusters=3")
    assert code == 0
    *laws, _, last = told.splitlines()
    assert [line[:25].split("  ")[0] for line in laws] == ["holds", "holds", "not run", "holds"]
    assert "stable state      Shapes and dtypes of the state never change" in laws[1]
    assert laws[2].endswith("the method's slots always suffice")
    assert last == "mine.py:example keeps all 4 laws, 1 of which do not apply here"


def test_names_of_the_registry_are_checked():
    assert check("fedavg")[0] == 0


OWN = "optimizer=mine.py:descent optimizer.decay=0.1 model=mine.py:Net width=5 task=mine.py:smooth smoothing=0.1"
OWN = [word for item in f"{OWN} server_optimizer=mine.py:descent server.rate=1".split() for word in ("--set", item)]


def test_a_method_is_checked_with_optimisers_network_and_task_of_a_file():
    code, told, _ = check("fedavg", *OWN)
    assert code == 0 and told.splitlines()[-1] == "fedavg keeps all 4 laws, 1 of which do not apply here"
    _, _, error = check("mine.py:tells", *OWN)
    assert "step -0.650 of [(3,), (4, 5), (5,), (5, 3)], server True" in error  # 0.5 (1 + 0.1 * 3)
    _, _, error = check("mine.py:tells")
    assert "step -0.300 of [(3,), (4, 3)], server False" in error
    _, _, error = check("mine.py:tells", "--set", "learning_rate=0.2", "--set", "weight_decay=0.1")
    assert "step -0.260 of [(3,), (4, 3)], server False" in error


def test_it_goes_on_behind_a_broken_law():
    code, told, _ = check("mine.py:counts_in_floats", "--set", "num_clusters=2")
    assert code == 1
    *laws, _, last = told.splitlines()
    assert [line.split("  ")[0] for line in laws] == ["holds", "BROKEN", "not run", "holds"]
    assert laws[1].endswith("structure, shapes and dtypes: round int32[] became float32[]")
    assert last == "mine.py:counts_in_floats breaks 1 of 4 laws"


def test_errors_are_told_once_and_with_their_line(monkeypatch):
    monkeypatch.setitem(CHECKS, "last", CHECKS["stable state"])
    code, told, _ = check("mine.py:counts_in_floats", "--set", "num_clusters=1")
    assert code == 1
    first, again = [line for line in told.splitlines() if line.startswith("BROKEN")]
    assert re.search(r"it raised TracerBoolConversionError: Attempted .* \(mine.py, line \d+, in round\)$", first)
    assert again.endswith("it raised the TracerBoolConversionError of 'stable state'")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mine.py:counts_in_floats"], ("num_clusters", "mine.py:counts_in_floats", "--set")),
        (["mine.py:example", "--set", "num_clusters=x"], ("num_clusters", "x")),
        (
            ["mine.py:example", "--set", "clusters=2"],
            ("clusters", "mine.py:example", "num_clusters"),
        ),
        (["mine.py:exampel"], ("mine.py", "exampel", "example")),
        (["fedavgg"], ("method", "fedavgg")),
        (["fedavg", "--set", "optimizer=mine.py:descend"], ("mine.py", "descend", "descent")),
        (["fedavg", "--set", "optimizer=mine.py:descent", "--set", "decay=x"], ("decay", "x", "number")),
        (["fedavg", "--set", "task=mine.py:smooth"], ("smoothing", "mine.py:smooth", "--set")),
        (["fedavg", "--set", "model=genconv"], ("inputs", "(1, 4)", "mlp")),
        (["ifca", "--set", "width=5"], ("width", "ifca", "num_clusters")),
        (["local", "--set", "server_optimizer=fedavgm"], ("server_optimizer", "local", "fedavg")),
    ],
)
def test_what_cannot_be_checked_is_refused(words, said):
    code, told, error = check(*words)
    assert (code, told) == (2, "")
    assert re.search(mentions(*said), error) and error.count("\n") == 1
