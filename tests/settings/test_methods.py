"""Methods from outside: in a file, or brought by an installed package."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jaxfl import load, schema
from jaxfl.cli.app import app
from jaxfl.settings import methods, options, user_code
from tests.messages import mentions
from tests.methods import example_method

MINE = (
    Path(example_method.__file__).read_text(encoding="utf-8")
    + """
import functools
import jax.numpy as jnp
from flax import linen as nn, nnx
from jaxfl.models import Functions
from jaxfl.methods import Method, Row
from typing import Any, Callable

ROW = Row(example, "the best of K", "nobody, 2026", {"num_clusters": 2}, finds_clusters=True)
made = Method(None, None, None, None)
number = 3


def raises(task, optimizer):
    return task.no_such_thing


def returns_none(task, optimizer):
    return None


def refuses(task, optimizer, *, power: float = 2.0):
    raise ValueError(f"power must be below 2, got {power}.")


class Net(nn.Module):
    num_classes: int = 10
    act: Callable = nn.relu
    dtype: Any = jnp.float32
    initial: Any = nn.initializers.he_normal()
    made: Any = functools.partial(nn.gelu)

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.num_classes, self.dtype, kernel_init=self.initial)(self.act(x.reshape(len(x), -1)))


net = nn.Sequential([lambda x: x.reshape(len(x), -1), nn.Dense(10)])
made_already = nnx.Linear(64, 10, rngs=nnx.Rngs(0))
functions = Functions(
    lambda key: {"w": jnp.zeros((64, 10))}, lambda model, batch, key: batch.x.reshape(len(batch.x), -1) @ model["w"]
)


class Failing(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(x.no_such_thing)


def no_network():
    return 1 / 0


def no_task(network, data):
    return {}["no such key"]


def measured(task, optimizer, *, distance: Callable = jnp.square):
    return example(task, optimizer)


def misspelt(task, optimizer, *, power: "flaot" = 2.0):
    return None
"""
)
SMALL = ["--data", "rotated-digits", "--set", "num_clients=8", "--set", "rows_per_client=20", "--set", "model=logistic"]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def jaxfl(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_factory_and_a_row_are_methods(mine):
    row = methods.row("mine.py:ROW")
    assert (row.summary, row.paper) == ("the best of K", "nobody, 2026")
    assert methods.row("mine.py:example").summary.startswith("A method to imitate: K models")
    settings = options.route("mine.py:ROW", "rotated-digits", ["num_clusters=3", "num_clients=4", "model=logistic"])
    assert settings.method == {"num_clusters": 3}
    assert options.build(settings, options.load(settings)).task is not None
    complete = settings.complete()
    assert (complete["method"], complete["method.local_epochs"]) == ("mine.py:ROW", 5)
    assert complete["method_checksum"] == user_code.file_checksum(mine / "mine.py")
    (mine / "elsewhere").mkdir()
    (mine / "elsewhere" / "mine.py").write_text(MINE)
    moved = settings._replace(method_name="elsewhere/mine.py:ROW")
    assert moved.complete() == complete  # where the file lies does not matter


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gone.py:ROW", ("gone.py", "FILE.py:NAME")),
        ("mine.py:exmaple", ("mine.py", "exmaple", "example")),
        ("mine.py:number", ("mine.py:number", "int", "(task, optimizer")),
        ("mine.py:made", ("mine.py:made", "Method")),
        ("mine.py:misspelt", ("NameError", "flaot")),
        ("mine.py", ("method", "FILE.py:NAME", "mine.py")),
    ],
)
def test_what_is_no_method_is_refused(name, said, mine):
    result = jaxfl("run", name, *SMALL)
    assert result.exit_code == 2
    assert re.search(mentions(*said), result.stderr) and result.stderr.count("\n") == 1, result.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "raises",
            ("AttributeError", "mine.py, line", "in raises"),
        ),
        ("returns_none", ("returns_none", "jaxfl.methods.Method", "None")),
        ("refuses", ("power", 2.0, "mine.py, line", "in refuses")),
    ],
)
def test_factories_that_fail_are_told(name, said, mine):
    result = jaxfl("plan", f"mine.py:{name}", *SMALL)
    assert result.exit_code == 2
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: ") and re.search(mentions(*said), last), result.stderr


@pytest.mark.parametrize("name", ["net", "functions"])
def test_networks_that_are_made_already_are_taken(name, mine):
    settings = options.route("fedavg", "rotated-digits", ["num_clients=4", f"model=mine.py:{name}"])
    assert settings.model == {} and options.build(settings, options.load(settings)).task is not None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("model=mine.py:made_already", ("module", "Linear", "flax.nnx")),
        ("model=mine.py:Failing", ("mine.py:Failing", "no_such_thing", "in __call__")),
        ("model=mine.py:no_network", ("ZeroDivisionError", "in no_network")),
        ("task=mine.py:no_task", ("mine.py:no_task", "KeyError", "in no_task")),
    ],
)
def test_networks_and_tasks_that_fail_are_told(words, said, mine):
    result = jaxfl("run", "fedavg", *SMALL[:-2], "--set", words, "--rounds", 1)
    assert result.exit_code == 2
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: ") and re.search(mentions(*said), last), result.stderr


def test_a_file_may_import_its_neighbours_and_is_read_again_when_it_has_changed(mine):
    (mine / "neighbour_of_mine.py").write_text("K = 7")
    (mine / "other.py").write_text("from neighbour_of_mine import K\ndef f(task, optimizer, *, k: int = K): ...")
    assert methods.row("other.py:f").options == {"k": 7}
    (mine / "other.py").write_text("def f(task, optimizer, *, k: int = 8): ...")
    assert methods.row("other.py:f").options == {"k": 8}


def test_a_run_keeps_the_file_and_goes_on_with_no_other(mine):
    words = ["run", "mine.py:example", *SMALL, "--out", "out"]
    assert jaxfl(*words, "--rounds", 1).exit_code == 0
    config = json.loads((mine / "out" / "config.json").read_text())
    assert (config["method"], config["method_file"]) == ("mine.py:example", str(mine / "mine.py"))
    assert (mine / "out" / "mine.py").read_text() == MINE
    (mine / "mine.py").write_text(MINE + "# changed\n")
    result = jaxfl(*words, "--rounds", 2, "--resume")
    assert result.exit_code == 2
    assert re.search(mentions("method", "changed", "out/mine.py"), result.stderr)
    (mine / "mine.py").write_text(MINE)
    assert jaxfl(*words, "--rounds", 2, "--resume").exit_code == 0


def test_defaults_that_are_no_json_go_by_their_names(mine):
    words = ["run", "mine.py:measured", *SMALL[:-1], "model=mine.py:Net", "--out", "out", "--rounds"]
    result = jaxfl(*words, 1)
    assert result.exit_code == 0, result.output
    config = json.loads((mine / "out" / "config.json").read_text())
    found = {name: value for name, value in config.items() if name.startswith(("model.", "method."))}
    assert found == {
        "method.distance": "square", "model.act": "relu", "model.dtype": "float32",
        "model.initial": "variance_scaling.<locals>.init", "model.made": "partial",
    }  # fmt: skip
    assert jaxfl(*words, 2, "--resume").exit_code == 0
    assert load("out", trust=True).job.settings.model == {}
    shown = jaxfl("methods", "mine.py:measured")
    assert "square" in shown.stdout and " at 0x" not in shown.stdout


def test_sweeps_take_files(mine):
    result = jaxfl(
        "sweep", "fedavg,mine.py:example", *SMALL, "--set", "mine.py:example.num_clusters=1,2", "--rounds", 1,
        "--out", "all",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert [re.sub(" .*", "", line) for line in result.stdout.splitlines() if "mine" in line] == ["mine.py:example"] * 2
    assert sorted(path.name for path in (mine / "all").iterdir() if path.name.startswith("mine")) == [
        "mine.py_example-num_clusters=1", "mine.py_example-num_clusters=2",
    ]  # fmt: skip


BROUGHT = """
import numpy as np
from jaxfl.data.sources import Source, SourceEntry
from jaxfl.models import Logistic
from tests.methods.example_method import example


def load(data_dir):
    return Source("ours", np.arange(48.0, dtype=np.float32).reshape(24, 2), np.arange(24) % 3, 3)


data = SourceEntry(load, lambda data_dir: None, "ours", "free", 0, 3, model=("brought-net", {}))
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that is installed, and brings a method, a model and data; and a method that cannot be imported."""
    (tmp_path / "brought_by_us.py").write_text(BROUGHT)
    info = tmp_path / "brought_by_us-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brought-by-us\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[jaxfl.methods]\nbrought = brought_by_us:example\nbroken = brought_by_us:gone\nifca = brought_by_us:example\n"
        "[jaxfl.models]\nbrought-net = brought_by_us:Logistic\n"
        "[jaxfl.data]\nours = brought_by_us:data\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    schema.installed_entry_points.cache_clear()
    yield
    schema.installed_entry_points.cache_clear()


@pytest.mark.filterwarnings("always")
def test_an_installed_package_brings_what_it_names(package):
    assert methods.names()[-2:] == ["brought", "broken"]  # a name of jaxfl stays jaxfl's
    assert methods.row("ifca").paper == "Ghosh et al., NeurIPS 2020"
    settings = options.route("brought", "iid-ours", ["num_clients=4", "num_clusters=3"])
    data = options.load(settings)
    assert (data.num_clients, data.num_classes, settings.model_name) == (4, 3, "brought-net")
    assert options.build(settings, data).task is not None
    with pytest.raises(ValueError, match=mentions("broken", "brought-by-us", "AttributeError")):
        methods.row("broken")
    with pytest.raises(ValueError, match=mentions("method", "brougt", "brought")):
        methods.row("brougt")
    listed = jaxfl("methods")
    assert "A method to imitate" in listed.stdout
    assert re.search(mentions("warning: ", "broken", "brought-by-us"), listed.stderr)
    assert "iid-ours" in jaxfl("data", "ours").stdout
