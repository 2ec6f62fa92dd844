"""No file of the user's is replaced: every command refuses, by name and before anything is computed."""

import json
import os
import re
import shutil
import sys

import numpy as np
import optax
import pytest
from typer.testing import CliRunner

import jaxfl
from jaxfl.cli.app import app
from jaxfl.files import copy_path, crc
from jaxfl.simulation import callbacks, program, rounds
from jaxfl.simulation.records.directory import LOCK, RunDirectory
from tests.messages import mentions

pytestmark = pytest.mark.usefixtures("empty_pictures")

SMALL = ["--data", "rotated-digits", "--set", "num_clients=8", "--set", "rows_per_client=20", "--set", "model=logistic"]
SMALL += ["--rounds", "1", "--cohort", "4"]
OWN = "from jaxfl.methods import fedavg as factory\n"


def command(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(*words):
    """Returns the one line of an error."""
    result = command(*words)
    assert result.exit_code == 2, (result.output, result.exception)
    return " ".join(result.stderr.split())


@pytest.fixture
def never_compiles(monkeypatch):
    def compile_rounds(*arguments, **options):
        raise AssertionError("compiled")

    monkeypatch.setattr(program, "compile_rounds", compile_rounds)
    monkeypatch.setattr(rounds, "compile_rounds", compile_rounds)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run."""
    out = tmp_path_factory.mktemp("runs") / "a"
    assert command("run", "fedavg", *SMALL, "--out", out).exit_code == 0
    return out


def test_the_data_of_a_run_are_not_replaced_by_its_list_of_clients(tmp_path, monkeypatch, never_compiles):
    monkeypatch.chdir(tmp_path)
    rows = "client,a,y\n" + "".join(f"{i % 4},{i % 7},{i % 2}\n" for i in range(40))
    (tmp_path / "clients.csv").write_text(rows)
    words = ["run", "fedavg", "--data", "table", "--data-dir", "clients.csv", "--set", "target=y", "--rounds", "1"]
    assert re.search(mentions("out", "clients.csv"), refused(*words, "--out", "."))
    (tmp_path / ".jaxfl").write_text(json.dumps({"files": ["clients.csv"]}))  # not even where it was written by a run
    assert re.search(mentions("out", "clients.csv", "read"), refused(*words, "--out", "."))
    assert (tmp_path / "clients.csv").read_text() == rows


@pytest.mark.parametrize(
    "name",
    ["config.json", "history.jsonl", "clusters.jsonl", "clients-history.parquet", "checkpoint.npz",
     "checkpoint-before.npz", "rows.bin", "summary.json",
     "clients.csv", "convergence.png", "index.html", "similarity.png", "log.csv", "own.py"],
)  # fmt: skip
def test_no_file_of_a_folder_is_replaced(name, tmp_path, never_compiles):
    out, method = tmp_path / "out", tmp_path / "own.py"
    out.mkdir()
    method.write_text(OWN)
    (out / name).write_text("{}")
    words = ["run", f"{method}:factory", *SMALL, "--log", "csv", "--html", "--out", out]
    for more in ([], ["--resume"]):
        assert re.search(mentions("out", name), refused(*words, *more))
    assert [path.name for path in out.iterdir()] == [name] and (out / name).read_text() == "{}"


def test_a_file_that_is_put_into_the_folder_of_a_run_is_the_users(finished, tmp_path):
    out = tmp_path / "a"
    shutil.copytree(finished, out)
    for name in ("index.html", "log.csv"):
        (out / name).write_text("mine")
    words = ["run", "fedavg", *SMALL, "--out", out, "--resume"]
    assert re.search(mentions("out", "index.html"), refused(*words, "--html"))
    assert re.search(mentions("out", "log.csv"), refused(*words, "--log", "csv"))
    assert command(*words).exit_code == 0
    assert all((out / name).read_text() == "mine" for name in ("index.html", "log.csv"))


def test_runs_of_an_older_version_are_recognised(finished, tmp_path):
    """Their folders have no list of files."""
    out = tmp_path / "a"
    shutil.copytree(finished, out)
    for name in (".jaxfl", LOCK, "clients.csv"):
        (out / name).unlink()
    (out / ".lock").write_text("")
    assert command("run", "fedavg", *SMALL, "--out", out, "--resume").exit_code == 0
    assert (out / "clients.csv").exists()
    assert {"config.json", "history.jsonl", "clients.csv"} <= set(json.loads((out / ".jaxfl").read_text())["files"])


def test_folders_of_several_seeds(tmp_path, never_compiles):
    (tmp_path / "summary.json").write_text('{"mine": 1}')
    assert re.search(mentions("out", "summary.json"), refused("run", "fedavg", *SMALL, "--seeds", 0, "--out", tmp_path))
    (tmp_path / "fedavg").mkdir()
    (tmp_path / "fedavg" / "summary.json").write_text("mine")
    assert re.search(mentions("out", "summary.json"), refused("sweep", "fedavg", *SMALL, "--out", tmp_path))
    (tmp_path / "index.html").write_text("mine")
    words = ["sweep", "local", *SMALL, "--out", tmp_path, "--html"]
    assert re.search(mentions("--html", "index.html"), refused(*words))
    assert (tmp_path / "index.html").read_text() == "mine"


@pytest.mark.parametrize(
    ("option", "name"),
    [
        *(("--csv", "history.jsonl"), ("--csv", "clients.csv"), ("--html", "index.html"), ("--latex", "config.json")),
        ("--markdown", LOCK),  # which is empty
    ],
)
def test_a_comparison_is_not_written_over_a_run(option, name, finished):
    before = (finished / name).read_bytes() if (finished / name).exists() else None
    RunDirectory(finished).claim(["index.html"])  # whose page is yet to be written
    assert re.search(mentions(option, name), refused("compare", finished, option, finished / name))
    assert before == ((finished / name).read_bytes() if before is not None else None)


@pytest.mark.parametrize(
    "option", ["--csv", "--markdown", "--latex", "--plot=png", "--plot=svg", "--plot=pdf", "--html"]
)
def test_a_comparison_replaces_its_own_files_alone(option, finished, tmp_path):
    option, _, suffix = option.partition("=")
    path = tmp_path / f"a.{suffix or 'x'}"
    path.write_text("setting\n1\n")  # a file that is empty has nothing to be lost
    assert re.search(mentions(option, str(path)), refused("compare", finished, option, path))
    assert path.read_text() == "setting\n1\n"
    path.write_text("")
    for more in ([], ["--replace"]):
        result = command("compare", finished, option, path, *more)
        assert result.exit_code == 0, result.output
    written = path.read_bytes()
    with path.open("ab") as file:
        file.write(b"\n<!-- a line of the user's -->")
    edited = path.read_bytes()
    assert re.search(mentions(option, str(path), "--replace"), refused("compare", finished, option, path))
    assert path.read_bytes() == edited
    assert command("compare", finished, option, path, "--replace").exit_code == 0
    assert len(path.read_bytes()) < len(edited) and path.read_bytes()[:20] == written[:20]
    for other in ("bench", "data"):
        path.write_text(f"<!-- Written by jaxfl {other} -->")
        assert re.search(mentions(option, str(path)), refused("compare", finished, option, path, "--replace"))


def test_saved_examples_and_pictures_of_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", x=np.zeros((8, 3), np.float32), y=np.arange(8) % 2)
    before = (tmp_path / "x.npz").read_bytes()
    for words in (["digits"], ["npz", "--data-dir", "x.npz"], ["iid-npz", "--data-dir", "x.npz"]):
        assert re.search(mentions("save", "x.npz"), refused("data", *words, "--save", "x.npz"))
    assert (tmp_path / "x.npz").read_bytes() == before
    for _ in range(2):
        assert command("data", "digits", "--save", "d.npz").exit_code == 0
    assert re.search(mentions("save", "d.npz"), refused("data", "npz", "--data-dir", "x.npz", "--save", "d.npz"))
    (tmp_path / "iid-digits-montage.png").write_text("mine")
    assert re.search(mentions("--plot", "iid-digits-montage.png"), refused("data", "iid-digits", "--plot"))
    (tmp_path / "iid-digits-montage.png").unlink()
    for _ in range(2):
        assert command("data", "iid-digits", "--set", "num_clients=4", "--plot").exit_code == 0


def test_a_federation_is_not_loaded_for_a_folder_that_is_not_empty(tmp_path, monkeypatch):
    monkeypatch.setattr(jaxfl.data, "load", None)
    (tmp_path / "mine").write_text("mine")
    for folder in (tmp_path, tmp_path / "mine"):
        assert re.search(mentions("save", str(folder)), refused("data", "iid-digits", "--save", folder))


def test_the_folder_of_the_user_is_no_folder_that_is_called_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for number, words in enumerate((["--out", "~/runs/0"], ["--out=~/runs/1"])):
        assert command("run", "fedavg", *SMALL, "--seed", number, *words).exit_code == 0
        assert (tmp_path / "home" / "runs" / str(number) / "summary.json").exists()
    assert command("compare", "~/runs", "--csv=~/t.csv").exit_code == 0
    home = tmp_path / "home"
    small = {"num_clients": 8, "rows_per_client": 20, "model": "logistic", "rounds": 1, "cohort": 4}
    log = callbacks.csv("~/log.csv")
    result = jaxfl.run_named("fedavg", "rotated-digits", out="~/runs/2", callbacks=[log], **small)
    result.export("~/model.safetensors", cluster=0)
    jaxfl.data.stored.save(result.data, "~/data")
    assert jaxfl.data.load("saved", data_dir="~/data").num_clients == 8 == len(jaxfl.load("~/runs/2").clients())
    (tmp_path / "s.toml").write_text('methods = "fedavg"\n[set]\nweights = "~/model.safetensors"\nmodel = "logistic"\n')
    words = ["sweep", "s.toml", *SMALL[:6], "--rounds", "1", "--out", "~/sweep", "--quiet"]
    assert (made := command(*words)).exit_code == 0, made.output
    names = {"runs", "t.csv", "log.csv", "model.safetensors", "data", "sweep"}
    assert {path.name for path in home.iterdir()} >= names
    assert {path.name for path in tmp_path.iterdir()} == {"home", "s.toml"}


@pytest.mark.parametrize("kind", ["device", "pipe", "folder", "binary", "other table"])
def test_a_log_that_is_no_table_is_refused_before_the_run(kind, tmp_path):
    path = tmp_path / "log.csv"
    if kind == "device":
        path.symlink_to("/dev/full")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(bytes(range(256)) if kind == "binary" else b"a,b\n1,2\n")
    with pytest.raises(ValueError, match=mentions(str(path), "table")):
        callbacks.csv(path)
    if kind in ("binary", "other table"):
        assert path.read_bytes() == (bytes(range(256)) if kind == "binary" else b"a,b\n1,2\n")


@pytest.mark.parametrize("name", ["bench.json", "index.html", "scaling.png"])
def test_measurements(name, tmp_path):
    (tmp_path / name).write_text("{}")
    words = ["bench", "scaling", "--values", "1", "--out", tmp_path]
    assert re.search(mentions("out", name), refused(*words)) and (tmp_path / name).read_text() == "{}"


def test_a_line_of_an_error_has_an_end(tmp_path):
    assert len(refused("run", "x" * 1_000_000, *SMALL, "--out", tmp_path / "a")) < 2000


def test_no_argument_is_empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (["--out", ""], ["--out="], ["--data-dir", ""]):
        assert re.search(mentions(words[0].rstrip("="), '""'), refused("run", "fedavg", *SMALL, *words))
    assert re.search(mentions("compare", '""'), refused("compare", ""))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["csv", "markdown", "latex", "plot", "html"])
def test_standard_output_is_no_file_of_a_comparison(option, finished, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for words in ([f"--{option}", "-"], [f"--{option}=-"]):
        assert re.search(mentions(f"--{option}", '"-"'), refused("compare", finished, *words))
    assert re.search(mentions("--out", '"-"'), refused("run", "fedavg", *SMALL, "--out", "-"))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["history.jsonl", "checkpoint.npz", "rows.bin"])
def test_runs_and_callbacks_of_python(name, tmp_path, never_compiles):
    (tmp_path / name).write_text("mine")
    data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=20)
    method = jaxfl.methods.fedavg(jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data), optax.sgd(0.1))
    for argument, given in {
        "checkpoint_dir": {"checkpoint_dir": tmp_path, "resume": True},
        "folder": {"callbacks": [callbacks.BestCheckpoint(tmp_path)]},
    }.items():
        with pytest.raises(ValueError, match=mentions(argument, name)):
            jaxfl.run(method, data, rounds=1, cohort=2, **given)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_an_error_of_an_import_is_a_line(monkeypatch):
    """Packages write when they are imported; the console, which is of the package, cannot be imported then either."""
    monkeypatch.setitem(sys.modules, "jaxfl.cli.data", None)
    monkeypatch.setitem(sys.modules, "jaxfl.cli.tables.console", None)
    assert re.match(r"error: .*jaxfl\.cli\.data", refused("data", "digits"))


@pytest.mark.parametrize(
    "files",
    [
        {"config.json": {"method": "fedavg", "data": "cifar", "cohort": 10, "rounds": 5, "seed": 0, "lr": 0.1}},
        {"summary.json": {"seeds": [0, 1], "accuracy": 0.5}},
    ],
)
def test_a_file_of_another_program_with_a_few_of_the_same_keys_is_no_run(files, tmp_path, never_compiles):
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / "clients.csv").write_text("mine")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    seeds = ["--seeds", "0,1"] if "summary.json" in files else []
    assert re.search(mentions("out", *files), refused("run", "fedavg", *SMALL, *seeds, "--out", tmp_path))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_a_loop_of_links_is_one_line(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert re.search(mentions("out", "loop"), refused("run", "fedavg", *SMALL, "--out", tmp_path / "loop"))


def test_copies_of_files_with_one_name_are_refused(tmp_path, never_compiles):
    method, task, out = tmp_path / "a" / "own.py", tmp_path / "b" / "own.py", tmp_path / "out"
    for path, text in {method: OWN, task: "from jaxfl import classification as task\n"}.items():
        path.parent.mkdir()
        path.write_text(text)
    words = ["run", f"{method}:factory", *SMALL, "--set", f"task={task}:task", "--out", out]
    assert re.search(mentions("method", "task", str(method), str(task)), refused(*words))
    assert not out.exists()


def test_weights_are_copied_into_no_folder_that_a_link_leads_to(finished, tmp_path, never_compiles):
    out, weights = tmp_path / "out", tmp_path / "start.safetensors"
    jaxfl.load(finished).export(weights, client=0)
    link = copy_path(out, weights.name, crc(weights.read_bytes())).parent
    for folder in (out, tmp_path / "models"):
        folder.mkdir()
    (tmp_path / "models" / weights.name).write_text("mine")
    link.symlink_to(tmp_path / "models")
    said = refused("run", "fedavg", *SMALL, "--set", f"weights={weights}", "--out", out)
    assert re.search(mentions(str(out), "link", link.name), said)
    assert (tmp_path / "models" / weights.name).read_text() == "mine"


def test_weights_that_are_called_as_a_program_replace_none(finished, tmp_path, never_compiles):
    out, weights = tmp_path / "out", tmp_path / "own.py"
    out.mkdir()
    (out / "own.py").write_text("mine")
    jaxfl.load(finished).export(weights, client=0)
    assert re.search(
        mentions("out", "own.py"), refused("run", "fedavg", *SMALL, "--set", f"weights={weights}", "--out", out)
    )
    assert (out / "own.py").read_text() == "mine"


def test_pictures_that_a_run_has_not_drawn_are_the_users(finished, tmp_path):
    out, words = tmp_path / "out", ["run", "fedavg", *SMALL, "--resume"]
    assert command(*words, "--out", out, "--no-pictures").exit_code == 0
    (out / "clusters.png").write_text("mine")
    more = [*words, "--out", out, "--rounds", "2"]
    assert command(*more, "--no-pictures").exit_code == 0
    assert re.search(mentions("out", "clusters.png"), refused(*more))
    assert (out / "clusters.png").read_text() == "mine"
    shutil.copytree(finished, tmp_path / "drawn")  # its own, of fewer rounds, are removed
    assert command(*words, "--out", tmp_path / "drawn", "--rounds", "2", "--no-pictures").exit_code == 0
    assert not (tmp_path / "drawn" / "clusters.png").exists()


def test_the_examples_of_another_file_are_not_replaced(tmp_path):
    copy = tmp_path / "copy.npz"
    for name in "ab":
        labels = np.arange(20) % 2
        np.savez(tmp_path / f"{name}.npz", x=np.full((20, 3), ord(name), np.float32), y=labels)
    words = ["data", "iid-npz", "--save", copy, "--data-dir"]
    assert command(*words, tmp_path / "a.npz").exit_code == command(*words, tmp_path / "a.npz").exit_code == 0
    before = copy.read_bytes()
    assert re.search(mentions("save", str(copy)), refused(*words, tmp_path / "b.npz"))
    assert copy.read_bytes() == before


@pytest.mark.parametrize("name", ["rows.bin", "log.csv", "clusters.jsonl", "history.jsonl"])
def test_nothing_is_written_through_a_link_in_the_folder_of_a_run(name, finished, tmp_path, never_compiles):
    out, target = tmp_path / "out", tmp_path / "mine"
    shutil.copytree(finished, out)
    (out / ".jaxfl").write_text(json.dumps({"files": sorted(path.name for path in out.iterdir()) + ["rows.bin", name]}))
    (out / name).unlink(missing_ok=True)
    (out / name).symlink_to(target)
    words = ["run", "fedavg", *SMALL, "--rounds", "2", "--log", "csv", "--set", "resident=false", "--resume", "--out"]
    for text in (None, "round,loss\n1,0.5\n"):
        _ = text and target.write_text(text)
        assert re.search(mentions("out", name, "link"), refused(*words, out))
        assert (target.read_text() if target.exists() else None) == text


def test_the_best_round_is_not_kept_in_the_folder_of_a_run_that_has_ended(finished, tmp_path, never_compiles):
    before = {path.name: path.read_bytes() for path in finished.iterdir()}
    best = callbacks.BestCheckpoint(finished)
    small = {"num_clients": 8, "rows_per_client": 20, "model": "logistic", "cohort": 4, "rounds": 1}
    with pytest.raises(ValueError, match=mentions("folder", str(finished))):
        jaxfl.run_named("fedavg", "rotated-digits", **small, out=tmp_path / "b", callbacks=[best])
    assert {path.name: path.read_bytes() for path in finished.iterdir()} == before


def test_a_row_is_added_behind_a_last_one_without_a_line_end(tmp_path):
    table = tmp_path / "mine.csv"
    table.write_text("round,loss\n7,3")
    small = {"num_clients": 8, "rows_per_client": 20, "model": "logistic", "cohort": 4, "rounds": 1}
    jaxfl.run_named("fedavg", "rotated-digits", **small, callbacks=[callbacks.csv(table)])
    head, last, new = table.read_text().splitlines()
    assert (head, last) == ("round,loss", "7,3") and new.startswith("1,")
