"""A folder of a run may be of a stranger: reading it executes nothing, and its code is executed on a word."""

import importlib.util
import json
import os
import shutil
import sys

import pytest
from typer.testing import CliRunner

import jaxfl
from jaxfl.cli.app import app
from jaxfl.settings import user_code
from tests.messages import mentions

pytestmark = pytest.mark.usefixtures("empty_pictures")

RAN = "EXECUTED_BY_A_TEST"  # a variable of the environment: the files below write into it
MINE = f"""
import os

os.environ["{RAN}"] = os.environ.get("{RAN}", "") + "mine"
import jaxfl
from flax import linen as nn


def average(task, optimizer, *, local_epochs: int = 1, server_optimizer=None):
    return jaxfl.methods.fedavg(task, optimizer, local_epochs=local_epochs, server_optimizer=server_optimizer)


class Net(nn.Module):
    num_classes: int = 10

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.num_classes)(x.reshape(len(x), -1))


def same(network, data):
    return jaxfl.classification(network, data)


def clients(*, rows_per_client: int = 40, seed: int = 0):
    return jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=rows_per_client, seed=seed)


def steps(learning_rate: float = 0.1):
    return jaxfl.settings.optimizers.sgd(learning_rate)
"""
EVIL = f'import os\nos.environ["{RAN}"] = "evil"\n'
IN_A_FILE = {"method": "mine.py:average", "model": "mine.py:Net", "run.task": "mine.py:same"}
IN_A_FILE |= {"data": "mine.py:clients", "optimizer": "mine.py:steps", "server_optimizer": "mine.py:steps"}
JAXFLS = {"method": "fedavg", "model": "logistic", "run.task": "auto", "data": "rotated-digits", "optimizer": "sgd"}
JAXFLS |= {"server_optimizer": "fedavgm"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of runs whose method, model, task, data and optimiser are in a file."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "mine.py").write_text(MINE)
    file = f"{folder / 'mine.py'}"
    own = {"model": f"{file}:Net", "task": f"{file}:same", "optimizer": f"{file}:steps", "optimizer.learning_rate": 0.2}
    own |= {"rows_per_client": 20, "local_epochs": 2, "server_optimizer": f"{file}:steps"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(RAN, "")
        jaxfl.run_named(f"{file}:average", f"{file}:clients", rounds=1, cohort=2, out=folder / "runs" / "a", **own)
    return folder


@pytest.fixture
def stranger(made, tmp_path, monkeypatch):
    """The same on another machine: the folder of one run, which came with an archive."""
    monkeypatch.setenv(RAN, "")
    return shutil.copytree(made / "runs" / "a", tmp_path / "a")


def ran():
    return os.environ[RAN]


def rewrite(folder, *left_out, **changes):
    """Changes entries of a config."""
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({key: config[key] for key in config if key not in left_out}))


def test_reading_and_comparing_execute_nothing(stranger, tmp_path):
    runs = shutil.copytree(stranger, tmp_path / "b")
    rewrite(runs, seed=1)
    summary = json.loads((runs / "summary.json").read_text())
    (runs / "summary.json").write_text(json.dumps(summary | {"seed": 1}))
    outputs = {f"--{form}": tmp_path / f"table.{form}" for form in ("csv", "latex", "markdown", "html")}
    words = [str(word) for pair in outputs.items() for word in pair]
    result = CliRunner().invoke(app, ["compare", str(stranger), str(runs), *words, "--plot", str(tmp_path / "a.png")])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "table.html").read_text(encoding="utf-8")
    kept = jaxfl.load(stranger)
    assert (len(kept.history), kept.summary["rounds"], kept.round, kept.seed) == (1, 1, 1, 0) and repr(kept)
    assert ran() == ""
    command = page.partition("jaxfl run ")[2].partition("</code>")[0]
    assert f"{kept.config['method_file']}:average --data {kept.config['data_file']}:clients" in command
    for name, file in IN_A_FILE.items():
        if name not in ("method", "data"):
            assert f"{name.removeprefix('run.')}={kept.config['method_file']}:{file.partition(':')[2]}" in command
    assert "--set method.local_epochs=2" in command and "--set data.rows_per_client=20" in command
    assert "--set optimizer.learning_rate=0.2" in command and "data.attack" not in command
    assert "data.seed" not in command and "run.finetune" not in command  # which have their defaults


USES = {
    "job": lambda kept: kept.job,
    "data": lambda kept: kept.data,
    "method": lambda kept: kept.method,
    "state": lambda kept: kept.state,
    "evaluation": lambda kept: kept.evaluation,
    "clients": lambda kept: kept.clients(),
    "params": lambda kept: kept.params(client=0),
    "resume": lambda kept: kept.resume(rounds=2),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("owner", IN_A_FILE)
@pytest.mark.parametrize("older", [False, True], ids=["sha", "crc"])
def test_a_file_is_executed_on_a_word_alone(stranger, use, owner, older):
    rewrite(stranger, "data.truth", **{name: JAXFLS[name] for name in IN_A_FILE if name != owner})
    if older:
        rewrite(stranger, *(f"{name.removeprefix('run.')}_sha256" for name in IN_A_FILE))
    with pytest.raises(ValueError, match=mentions(owner.removeprefix("run."), "mine.py", "trust=True", "trust=PATH")):
        USES[use](jaxfl.load(stranger))
    assert ran() == ""
    if use == "job":
        assert USES[use](jaxfl.load(stranger, trust=True)).rounds == 1 and ran() == "mine"


def test_trusted_copies_and_named_files_run(made, stranger, monkeypatch):
    monkeypatch.chdir(made)
    config = json.loads((stranger / "config.json").read_text())
    assert config["method_sha256"] == user_code.file_sha256(made / "mine.py")
    kept = jaxfl.load(stranger, trust="mine.py")
    monkeypatch.chdir(stranger)  # a path is of the folder in which it was said
    assert len(kept.clients()) == 4 and kept.job.settings.method_name == f"{made / 'mine.py'}:average"
    (stranger / "mine.py").unlink()
    assert kept.resume(rounds=2).summary["rounds"] == 2 and (stranger / "mine.py").read_text() == MINE
    assert jaxfl.load(".", trust=True).resume(rounds=3).summary["rounds"] == 3
    for wrong, error, said in (("no.py", ValueError, "no.py"), (3, TypeError, "3"), (None, TypeError, "None")):
        with pytest.raises(error, match=mentions(said)):
            jaxfl.load(".", trust=wrong)


def forge(folder, tmp_path):
    """Another file with the same CRC-32, which anybody can make: the config here simply has that of the other."""
    (folder / "mine.py").write_text(MINE + EVIL)
    rewrite(folder, method_checksum=user_code.file_checksum(folder / "mine.py"))
    return True


def change(folder, tmp_path):
    (folder / "mine.py").write_text(MINE + EVIL)
    rewrite(folder, "method_sha256")
    return True


def climb(folder, tmp_path):
    (tmp_path / "mine.py").write_text(EVIL + MINE)
    rewrite(folder, method="../mine.py:average", method_sha256=user_code.file_sha256(tmp_path / "mine.py"))
    return True


def absolute(folder, tmp_path):
    climb(folder, tmp_path)
    rewrite(folder, method=f"{tmp_path / 'mine.py'}:average")
    return True


def inside_and_out(folder, tmp_path):
    climb(folder, tmp_path)
    rewrite(folder, method=f"{folder}/../mine.py:average")
    return True


def link(folder, tmp_path):
    climb(folder, tmp_path)
    (folder / "mine.py").unlink()
    (folder / "mine.py").symlink_to(tmp_path / "mine.py")
    rewrite(folder, method="mine.py:average")
    return True


def missing(folder, tmp_path):
    (folder / "mine.py").unlink()
    return True


def no_checksum(folder, tmp_path):
    rewrite(folder, "method_sha256", "method_checksum")
    return True


def of_the_name(folder, tmp_path):
    """The user trusts a file of this name, and the run is of another one."""
    (tmp_path / "mine.py").write_text(MINE + EVIL)
    return tmp_path / "mine.py"


def of_another_name(folder, tmp_path):
    (tmp_path / "yours.py").write_text(MINE)
    return [tmp_path / "yours.py"]


@pytest.mark.parametrize(
    "trick",
    [forge, change, climb, absolute, inside_and_out, link, missing, no_checksum, of_the_name, of_another_name],
)
def test_trust_is_of_the_file_that_the_run_had_in_its_folder(stranger, tmp_path, trick):
    rewrite(stranger, "data.truth", **{name: JAXFLS[name] for name in IN_A_FILE if name != "method"})
    trust = trick(stranger, tmp_path)
    with pytest.raises(ValueError, match=mentions("method", "mine.py", "trust=PATH")):
        _ = jaxfl.load(stranger, trust=trust).job
    assert ran() == ""


def test_bytecode_beside_a_file_is_not_executed(stranger):
    """Python takes it where size and time of the source are those that the bytecode names."""
    source = stranger / "mine.py"
    evil = stranger / "evil.py"
    evil.write_text(EVIL.ljust(source.stat().st_size))
    os.utime(evil, ns=(source.stat().st_atime_ns, source.stat().st_mtime_ns))
    cached = importlib.util.cache_from_source(str(source))
    spec = importlib.util.spec_from_file_location("evil", evil)
    code = spec.loader.source_to_code(evil.read_bytes(), str(source))
    os.makedirs(os.path.dirname(cached))
    from importlib._bootstrap_external import _code_to_timestamp_pyc  # the format of Python's own cache

    stat = source.stat()
    with open(cached, "wb") as file:
        file.write(_code_to_timestamp_pyc(code, int(stat.st_mtime), stat.st_size))
    assert jaxfl.load(stranger, trust=True).job.rounds == 1
    assert ran() == "mine"
    assert list(stranger.glob("__pycache__/mine*")) == [stranger / "__pycache__" / os.path.basename(cached)]


def test_the_user_s_own_command_goes_on_as_before(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(RAN, "")
    shutil.copytree(made / "runs" / "a", "a")
    older = [f"{name.removeprefix('run.')}_sha256" for name in IN_A_FILE]
    rewrite(tmp_path / "a", *older)  # of an older version
    (tmp_path / "mine.py").write_text(MINE)
    words = "mine.py:average --data mine.py:clients --set model=mine.py:Net --set task=mine.py:same"
    words += " --set optimizer=mine.py:steps --set optimizer.learning_rate=0.2 --set server_optimizer=mine.py:steps"
    words += " --set rows_per_client=20 --set local_epochs=2 --rounds 2 --cohort 2 --resume --quiet --out a"
    result = CliRunner().invoke(app, ["run", *words.split()])
    assert result.exit_code == 0, result.output
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["rounds"] == 2 and config["method_sha256"] == user_code.file_sha256(tmp_path / "mine.py")
    (tmp_path / "mine.py").write_text(MINE + "\n")
    result = CliRunner().invoke(app, ["run", *words.split()])
    assert result.exit_code == 2 and "changed" in result.stderr


def test_what_lies_beside_a_trusted_copy_is_not_executed(made, stranger, monkeypatch):
    for name in ("wandb.py", "helper.py"):  # modules that are not installed, which something may look for later
        (stranger / name).write_text(f"import os\nos.environ[{RAN!r}] += 'planted'\n")
    assert jaxfl.load(stranger, trust=True).job.rounds == 1
    assert str(stranger) not in sys.path and importlib.util.find_spec("helper") is None
    content = (stranger / "mine.py").read_text() + "import helper\n"
    (stranger / "mine.py").write_text(content)
    now = user_code.file_sha256(stranger / "mine.py")
    rewrite(stranger, **{f"{name.removeprefix('run.')}_sha256": now for name in IN_A_FILE})
    with pytest.raises(ValueError, match=mentions("helper", "beside a copy", "trust=PATH")):
        USES["job"](jaxfl.load(stranger, trust=True))
    assert "planted" not in ran()


def test_a_copy_that_changes_after_its_check_is_not_executed(stranger):
    config = json.loads((stranger / "config.json").read_text())
    path = user_code.trusted_file(stranger, "method", "mine.py:average", config, True)
    path.write_text(EVIL)
    with pytest.raises(ValueError, match=mentions(str(path))):
        user_code.load(f"{path}:average")
    assert ran() == ""
