"""The command line: what it refuses, in one line and before anything compiles, and what a run leaves behind."""

import gzip
import html.parser
import importlib.metadata
import json
import re
import shlex
import signal
import struct
import sys
import types
import warnings

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

from jaxfl.cli import run, run_page
from jaxfl.cli.app import app
from jaxfl.data import federate, stored
from jaxfl.jobs import job, loaded
from jaxfl.settings import options
from jaxfl.simulation import interrupts, loop, program, progress, rounds
from jaxfl.simulation.callbacks import ProgressBar
from jaxfl.simulation.loggers import Logger
from jaxfl.simulation.progress import Diverged
from jaxfl.simulation.result import Event
from tests.messages import mentions

pytestmark = pytest.mark.usefixtures("empty_pictures")  # not of `finished`

SMALL = ["--data", "rotated-digits", "--set", "num_clients=8", "--set", "rows_per_client=20", "--set", "model=logistic"]
TINY = SMALL[:-2]  # the model that suits the data
SUMMARY = {
    "method", "data", "rounds", "seed", "num_clients", "num_clusters", "micro_accuracy", "macro_accuracy", "micro_f1",
    "macro_f1", "worst_decile_accuracy", "ari", "nmi", "purity", "seconds_per_round", "compile_seconds", "peak_bytes",
    "device", "versions", "options",
}  # fmt: skip


def jaxfl(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def never_compiles(monkeypatch):
    def compile_rounds(*arguments, **options):
        raise AssertionError("compiled")

    monkeypatch.setattr(program, "compile_rounds", compile_rounds)
    monkeypatch.setattr(rounds, "compile_rounds", compile_rounds)


def refused(*arguments):
    """Returns the one line of an error."""
    result = jaxfl(*arguments)
    assert result.exit_code == 2, (result.output, result.exception)
    errors = [line for line in result.stderr.splitlines() if not re.match("loading|compiling", line)]
    assert len(errors) == 1 and errors[0].startswith("error: "), result.stderr
    assert result.stdout == ""
    return errors[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["stocfll", *SMALL], ("method", "stocfll", "stocfl", "ifca")),
        (["stocfl", "--data", "rotated-digit"], ("rotated-digit", "rotated-digits", "mnist")),
        (
            ["stocfl", *SMALL, "--set", "threshhold=1"],
            ("option", "threshhold", "threshold", "weighting"),
        ),
        (["stocfl", *SMALL, "--set", "hidden=9"], ("hidden", "mlp")),
        (
            ["stocfl", *SMALL, "--set", "tau=0.9"],
            ("tau", "server_optimizer", "fedadam"),
        ),
        (["stocfl", *SMALL, "--set", "data.threshold=1"], ("option", "data.threshold")),
        (["stocfl", *TINY, "--set", "model=mpl"], ("model", "mpl", "mlp")),
        (["stocfl", *SMALL, "--set", "optimizer=sdg"], ("optimizer", "sdg", "sgd")),
        (["stocfl", *SMALL, "--set", "threshold"], ("--set", "threshold", "key=value")),
        (
            ["stocfl", *SMALL, "--set", "threshold=high"],
            ("threshold", "high", 0.5),
        ),
        (
            ["stocfl", *SMALL, "--set", "local_epochs=1.5"],
            ("local_epochs", 1.5, "batch_size"),
        ),
        (["stocfl", *SMALL, "--set", "local_epochs=0"], ("local_epochs", 0)),
        (["stocfl", *SMALL, "--set", "weighting=equal"], ("weighting", "equal")),
        (["stocfl", *SMALL, "--set", "learning_rate=1e999"], ("learning_rate", "1e999")),
        (["stocfl", *SMALL, "--set", "chunk=0"], ("chunk", 0)),
        (["stocfl", *SMALL, "--set", "num_clients=0"], ("num_clients", 0)),
        (["stocfl", *SMALL, "--set", "angles=__import__('os')"], ("angles", "__import__")),
        (["stocfl", *SMALL, "--cohort", "0"], ("cohort", 0)),
        (["stocfl", *SMALL, "--cohort", "0.0"], ("cohort", 0.0)),
        (["stocfl", *SMALL, "--cohort", "-3"], ("cohort", -3)),
        (["stocfl", *SMALL, "--cohort", "1.5"], ("cohort", 1.5)),
        (
            ["stocfl", *SMALL, "--cohort", "9"],
            ("cohort", 9, 8),
        ),
        (
            ["stocfl", *SMALL, "--cohort", "half"],
            ("cohort", "half", "--cohort"),
        ),
        (["stocfl", *SMALL, "--html"], ("html", "--out")),
        (["stocfl", *SMALL, "--html", "--no-pictures"], ("pictures", "--html", "--no-pictures")),
        (["stocfl", *SMALL, "--rounds", "0"], ("rounds", 0)),
        (["stocfl", *SMALL, "--eval-every", "0"], ("eval_every", 0)),
        (
            ["stocfl", *SMALL, "--seeds", "0,one"],
            ("seeds", "0,one", "--seeds"),
        ),
        (["stocfl", *SMALL, "--seeds", "4-0"], ("seeds", "4-0", "--seeds")),
        (["stocfl", *SMALL, "--seeds", "0-4000000000"], ("seeds", "0-4000000000")),
        (["stocfl", *SMALL, "--seeds", "0-2,1"], ("seeds", "0-2,1")),
        (["stocfl", *SMALL, "--seeds", "1,1"], ("seeds", "1,1")),
        (
            ["stocfl", *SMALL, "--seed", "0", "--seeds", "1,2"],
            ("seed", 0, "seeds=1,2"),
        ),
        (["stocfl", *SMALL, "--seed", "-1"], ("seed", -1, 4294967295)),
        (["stocfl", *SMALL, "--seed", "9" * 20], ("seed", 4294967295, "9" * 20)),
        (["stocfl", *SMALL, "--seeds", f"0,{2**32}"], ("seed", 2**32, 4294967295)),
        (["stocfl", *SMALL, "--set", f"local_epochs={'9' * 20}"], ("local_epochs", 2147483647, "9" * 20)),
        (
            ["stocfl", "--data", "shifted-digits", "--set", f"shifts=(0,{'9' * 20})"],
            ("shifts", 2147483647),
        ),
        (["fedavg", *TINY, "--set", "model=mlp", "--set", "hidden=0"], ("hidden", "(0,)")),
        (["fedavg", *TINY, "--set", "hidden=(8,-5)"], ("hidden", "(8, -5)")),
        (
            ["fedavg", *TINY, "--set", "model=vgg16", "--set", "dropout=1.5"],
            ("dropout", 1.5),
        ),
        (["fedavg", *SMALL, "--set", "learning_rate=-1"], ("learning_rate", -1.0)),
        (["fedavg", *SMALL, "--set", "learning_rate=1e39"], ("learning_rate", "1e+39")),
        (["fedavg", *SMALL, "--set", "learning_rate=0"], ("learning_rate", 0.0)),
        (
            ["fedavg", *SMALL, "--set", "optimizer=momentum", "--set", "momentum=1"],
            ("momentum", 1.0),
        ),
        (["fedavg", *SMALL, "--set", "nesterov=true"], ("nesterov", "momentum")),
        (
            ["fedavg", *SMALL, "--set", "server_optimizer=fedavgm", "--set", "server.momentum=-1"],
            ("server.momentum", -1.0),
        ),
        (
            ["fedavg", *SMALL, "--set", "server_optimizer=fedadam", "--set", "server.learning_rate=-1"],
            ("server.learning_rate", -1.0),
        ),
        (
            ["fedavg", *SMALL, "--set", "local_epochs=1", "--set", "local_epochs=2"],
            ("local_epochs", 1, 2),
        ),
        (
            ["fedavg", *SMALL, "--set", "data.num_clients=9"],
            ("num_clients", "once", "data"),
        ),
        (["fedavg", *SMALL, "--set", "finetune=1", "--set", "finetune=2"], ("finetune", 1, 2)),
        (["fedavg", *SMALL, "--checkpoint-every", "1"], ("checkpoint_every", "out")),
        (
            ["fedavg", "--data", "mnist"],
            ("mnist", "source", "rotated-mnist", "iid-mnist"),
        ),
        (["stocfl", *SMALL, "--resume"], ("resume", "out")),
        (
            ["fedavg", *SMALL, "--set", "attack=sign-flop"],
            ("attack", "sign-flop", "sign-flip"),
        ),
        (["fedavg", *SMALL, "--set", "attack=sign-flip"], ("attackers", "attack=sign-flip", 0.2)),
        (["fedavg", *SMALL, "--set", "attackers=0.2"], ("attack", "attackers=0.2")),
        (
            ["fedavg", *SMALL, "--set", "attack=gaussian", "--set", "attackers=1"],
            ("attackers", 1.0),
        ),
        (["fedavg", *SMALL, "--set", "stragglers=2"], ("stragglers", 2.0)),
        (
            ["fedavg", *SMALL, "--rounds", "9", "--set", "drift=swap", "--set", "drift_round=9"],
            ("drift_round", "rounds", 9),
        ),
        (["fedavg", *SMALL, "--set", "drift=swap"], ("drift_round", "drift=swap")),
        (
            ["fedavg", *SMALL, "--rounds", "9", "--set", "drift=recurrent", "--set", "drift_rounds=4,9"],
            ("drift_rounds", "rounds", 9),
        ),
        (["fedavg", *SMALL, "--set", "dropouts=1"], ("dropouts", 1.0)),
        (
            ["fedavg", *SMALL, "--set", "availability=nightly"],
            ("availability", "nightly"),
        ),
        (
            ["fedavg", *SMALL, "--set", "availability=random", "--set", "sampler=poisson"],
            ("sampler", "poisson", "availability", "random"),
        ),
        (["fedavg", *SMALL, "--set", "availability_period=0"], ("availability_period", 0.0)),
        (["fedavg", "--data", "rotated-mnist", "--set", "weights=none.safetensors"], ("none.safetensors", "no file")),
        (["fedavg", "--data", "rotated-mnist", "--set", f"weights={__file__}"], ("test_app.py", "safetensors")),
        (
            ["fedavg", *SMALL, "--set", "availability_period=12"],
            ("availability_period", 12.0, "always", "--set availability=diurnal"),
        ),
        (["ifca", *SMALL, "--set", "num_clusters=9"], ("num_clusters", 9, 8)),
    ],
)
def test_bad_arguments_are_refused(never_compiles, arguments, words):
    assert re.search(mentions(*words), refused("run", *arguments))


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (["run", "fedavg", *SMALL, "--finetune", "2"], "--set finetune=2"),
        (["run", "fedavg", *SMALL, "--finetune"], "--set finetune=VALUE"),
        (["run", "fedavg", *SMALL, "--eval-clients=20"], "--set eval_clients=20"),
        (["run", "fedavg", "--devices", "all", "--data", "nothing"], "--set devices=all"),
        (["sweep", "fedavg", *SMALL, "--out", "a", "--chunk", "8"], "--set chunk=8"),
        (["plan", "fedavg", *SMALL, "--chunk", "none"], "--set chunk=none"),
        (["run", "fedavg", *SMALL, "--hidden", "(8,4)"], "--set 'hidden=(8,4)'"),
        (["run", "fedavg", *SMALL, "--model", "mlp"], "--set model=mlp"),
        (["reproduce", "ifca", "--num-clusters", "2"], "--set num_clusters=2"),
        (["check", "ifca", "--num-clusters", "2"], "--set num_clusters=2"),
    ],
)
def test_an_option_written_as_a_flag_is_refused_with_the_words_to_type(never_compiles, words, written):
    line = refused(*words)
    flag = next(word for word in words if word.startswith("--") and word.partition("=")[0] in line)
    assert re.search(mentions(flag.partition("=")[0], written), line)


def test_an_unknown_flag_is_named():
    result = jaxfl("run", "fedavg", *SMALL, "--chnk", "8")
    assert result.exit_code == 2 and "--chnk" in result.stderr


def write_idx(folder, kind, images, labels, *, cut=0, magic=0x803):
    image_bytes = struct.pack(">IIII", magic, len(images), *images.shape[1:]) + images.tobytes()
    (folder / f"{kind}-images-idx3-ubyte.gz").write_bytes(gzip.compress(image_bytes[: len(image_bytes) - cut]))
    label_bytes = struct.pack(">II", 0x801, len(labels)) + labels.tobytes()
    (folder / f"{kind}-labels-idx1-ubyte").write_bytes(label_bytes)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("missing", ("mnist", "train-images-idx3-ubyte", "https://")),
        ("truncated", ("train-images-idx3-ubyte",)),
        ("wrong", ("train-images-idx3-ubyte",)),
        ("other labels", (12, "0..9")),
    ],
)
def test_bad_files_are_named(never_compiles, tmp_path, damage, words):
    if damage != "missing":
        images, labels = np.zeros((20, 28, 28), np.uint8), np.arange(20, dtype=np.uint8) % 10
        labels = np.where(labels == 9, 12, labels).astype(np.uint8) if damage == "other labels" else labels
        write_idx(tmp_path, "train", images, labels, cut=9 * (damage == "truncated"), magic=0x803 + (damage == "wrong"))
        write_idx(tmp_path, "t10k", images, labels)
    line = refused("run", "fedavg", "--data", "rotated-mnist", "--data-dir", tmp_path)
    assert re.search(mentions(*words), line) and str(tmp_path) in line


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.full((40, 4), np.nan, np.float32), "y": np.arange(40) % 2}, ("NaN", "row 0")),
        ({"x": np.zeros((40, 4), np.float32), "y": np.arange(40) % 2 - 1}, ("y", -1)),
        ({"x": np.zeros((40, 4), np.float32)}, ("own.npz", "array y")),
        ({"x": np.zeros((0, 4), np.float32), "y": np.zeros(0, int)}, ("x", "(0, 4)")),
        ({}, ("own.npz", "x and y", "np.savez")),
    ],
)
def test_bad_arrays_are_refused(never_compiles, tmp_path, arrays, words):
    np.savez(tmp_path / "own.npz", **arrays)
    line = refused(
        "run", "fedavg", "--data", "iid-npz", "--data-dir", tmp_path / "own.npz", "--set", "num_clients=4",
        "--set", "model=logistic",
    )  # fmt: skip
    assert re.search(mentions(*words), line)


def test_a_folder_is_no_array_file(never_compiles, tmp_path):
    line = refused("run", "fedavg", "--data", "iid-npz", "--data-dir", tmp_path)
    assert re.search(mentions(tmp_path, "folder"), line)


@pytest.mark.filterwarnings("default")
def test_classes_without_rows_are_told(never_compiles, tmp_path):
    np.savez(tmp_path / "own.npz", x=np.zeros((40, 4), np.float32), y=np.arange(40) % 2 * 1000)
    result = jaxfl("data", "iid-npz", "--data-dir", tmp_path / "own.npz")
    told = " ".join(result.stderr.split())
    assert re.search(mentions("warning: ", "own.npz", "y", "2 of the 1001 classes"), told)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of three rounds, and its directory."""
    out = tmp_path_factory.mktemp("runs") / "a" / "b"
    return jaxfl(
        "run", "stocfl", *SMALL, "--rounds", "3", "--cohort", "4", "--eval-every", "1", "--html", "--out", out
    ), out


def test_a_run_leaves_its_files(finished):
    result, out = finished
    assert result.exit_code == 0, result.output
    assert {path.name for path in out.iterdir()} == {
        "config.json", "history.jsonl", "summary.json", "checkpoint.npz", "checkpoint-before.npz", "convergence.png",
        "clusters.png", "clusters.jsonl", "clients.csv", ".jaxfl", ".jaxfl.lock", "index.html", "alluvial.png",
        "confusion.png", "classes.png", "similarity.png",
    }  # fmt: skip
    summary = json.loads((out / "summary.json").read_text())
    assert set(summary) >= SUMMARY
    assert (summary["method"], summary["data"], summary["rounds"]) == ("stocfl", "rotated-digits", 3)
    assert summary["options"]["data.num_clients"] == 8 and summary["options"]["method.threshold"] == 0.5
    history = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    assert [record["round"] for record in history] == [1, 2, 3]
    assert history[-1]["micro_accuracy"] == summary["micro_accuracy"]
    config = json.loads((out / "config.json").read_text())
    assert (config["rounds"], config["cohort"], config["model"]) == (3, 4, "logistic")
    files = [str(out / name) for name in ("clusters.png", "convergence.png", "index.html")]
    for word in (f"{summary['micro_accuracy']:.4f}", *files):
        assert word in result.stdout.replace("\n", "")
    assert [line.split()[1] for line in result.stderr.splitlines() if line.startswith("round")] == ["1/3", "2/3", "3/3"]


@pytest.mark.filterwarnings("ignore:.*2 of 6 makers have no training rows")
def test_a_run_whose_tested_clients_do_not_count_says_so(tmp_path):
    """They are other people than those who are trained on."""
    generator = np.random.default_rng(0)
    rows = {"x": generator.normal(size=(40, 3)).astype(np.float32), "y": np.arange(40) % 2}
    rows |= {"client": np.repeat(["ann", "bob", "cid", "dot"], 10), "test_client": np.repeat(["eve", "fay"], 5)}
    np.savez(tmp_path / "a.npz", **rows, test_x=1 - rows["x"][:10], test_y=rows["y"][:10])
    words = ["--data", "npz", "--data-dir", tmp_path / "a.npz", "--set", "test_share=none", "--set", "model=logistic"]
    result = jaxfl("run", "fedavg", *words, "--rounds", 2, "--html", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    unseen = json.loads((tmp_path / "run" / "summary.json").read_text())["unseen_micro_accuracy"]
    told = mentions("note: ", "tested", "summary.json", "unseen_micro_accuracy", f"{unseen:.4f}")
    assert re.search(told, result.stderr)
    stopped = jaxfl("run", "fedavg", *words, "--rounds", 2, "--stop-early", 1)
    assert stopped.exit_code == 2 and re.search(mentions("error: ", "test rows"), stopped.stderr)


def test_a_page_needs_nothing_beside_it(finished):
    class Page(html.parser.HTMLParser):
        def __init__(self):
            super().__init__()
            self.tags, self.words = [], []

        def handle_starttag(self, tag, attrs):
            self.tags.append((tag, dict(attrs)))

        def handle_data(self, data):
            self.words.append(data)

    page = Page()
    page.feed((finished[1] / "index.html").read_text(encoding="utf-8"))
    assert {tag for tag, _ in page.tags} >= {"title", "style", "table", "button", "script", "img"}
    asked = [value for _, given in page.tags for name, value in given.items() if name in ("src", "href", "srcset")]
    assert len(asked) == 6 and all(value.startswith("data:image/png;base64,iVBOR") for value in asked)
    listed = pandas.read_csv(finished[1] / "clients.csv")
    assert [given for tag, given in page.tags if tag == "button"] == [{}] * len(listed.columns)
    start = page.words.index("Clients")
    cells = [word for word in page.words[start : page.words.index("All metrics")] if word.strip()]
    assert [float(word) for word in cells[-1:]] == [float(f"{listed['loss'].iloc[-1]:.4g}")]
    assert any(word.startswith("jaxfl run stocfl --data rotated-digits --rounds 3 --cohort 4") for word in page.words)


def test_the_command_of_a_page_is_the_run():
    items = ["num_clusters=2", "angles=(0,90)", "finetune=1", "chunk=none", "hidden=(8,4)", "server_optimizer=fedadam"]
    settings = options.route("ifca", "rotated-digits", [*items, "server.learning_rate=0.1"])
    made = run_page.command_line(job.Job(settings, 3, 0.5, 7, "a folder", 2), rounds=3)
    jaxfl_run, method, *words = shlex.split(made)[1:]
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert (jaxfl_run, method, given["--data-dir"], given["--seed"], given["--eval-every"]) == (
        "run", "ifca", "a folder", "7", "2",
    )  # fmt: skip
    asked = [value for flag, value in zip(words[::2], words[1::2], strict=True) if flag == "--set"]
    again = options.route(method, given["--data"], asked)
    assert again == settings


def test_clients_are_listed(finished):
    """Each with what it is served: their rows and hits add up to the micro accuracy."""
    summary = json.loads((finished[1] / "summary.json").read_text())
    rows = pandas.read_csv(finished[1] / "clients.csv")
    assert rows.client.tolist() == list(range(8))
    assert set(rows.group) == {"0°", "90°", "180°", "270°"}
    assert rows.cluster.nunique() == summary["num_clusters"]
    micro = (rows.accuracy * rows.test_rows).sum() / rows.test_rows.sum()
    assert micro == pytest.approx(summary["micro_accuracy"])


def test_another_run_is_not_overwritten(never_compiles, finished):
    _, out = finished
    same = ["run", "stocfl", *SMALL, "--rounds", "3", "--cohort", "4", "--out", out]
    before = (out / "config.json").read_bytes()
    assert re.search(mentions("out", "history.jsonl", "--resume"), refused(*same))
    line = refused(*same, "--resume", "--set", "threshold=0.6")
    assert re.search(mentions("method.threshold=0.5", 0.6), line)
    line = refused("run", "fedavg", *same[2:], "--resume")
    assert re.search(mentions("method='stocfl'", "'fedavg'"), line)
    assert re.search(mentions("seed=0", 1), refused(*same, "--resume", "--seed", "1"))
    assert re.search(mentions("cohort=4", 3), refused(*same, "--resume", "--cohort", "3"))
    assert re.search(mentions("rounds", 2, 3), refused(*same, "--resume", "--rounds", "2"))
    assert re.search(mentions("out", out / "config.json"), refused(*same[:-1], out / "config.json"))
    assert (out / "config.json").read_bytes() == before


def test_a_refused_run_does_not_block_its_directory(tmp_path):
    command = ["run", "fedavg", *SMALL, "--rounds", "1", "--out", tmp_path / "a"]
    assert re.search(mentions("cohort", 9), refused(*command, "--cohort", "9"))
    assert jaxfl(*command).exit_code == 0


def test_interrupted_runs_go_on(tmp_path, monkeypatch):
    call = ProgressBar.__call__

    def interrupt(self, event):
        call(self, event)
        if event.round == 2:
            signal.raise_signal(signal.SIGINT)

    command = ["run", "fedavg", *SMALL, "--rounds", "3", "--out", tmp_path / "a", "--eval-every", "1"]
    command += ["--checkpoint-every", "3"]
    with monkeypatch.context() as patch:
        patch.setattr(ProgressBar, "__call__", interrupt)
        result = jaxfl(*command)
        alone = jaxfl(*command[:-6], "--seeds", "0,1")
    assert result.exit_code == alone.exit_code == 130
    assert re.search(mentions("round 2 of 3", tmp_path / "a"), result.stderr)
    assert re.search(mentions("round 2 of 3", "nothing", "--out"), alone.stderr) and "seed 1" not in alone.stderr
    (tmp_path / "a" / "checkpoint-before.npz").write_bytes((tmp_path / "a" / "checkpoint.npz").read_bytes())
    (tmp_path / "a" / "checkpoint.npz").write_bytes(b"")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        resumed = jaxfl(*command, "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert re.search(mentions("warning: ", "checkpoint.npz", "damaged", "round 2"), resumed.stderr)
    rounds = [json.loads(line)["round"] for line in (tmp_path / "a" / "history.jsonl").read_text().splitlines()]
    assert rounds == [1, 2, 3]


def test_a_run_that_is_whole_is_told_and_the_next_is_not_begun(tmp_path, monkeypatch):
    call = ProgressBar.__call__

    def interrupt(self, event):
        call(self, event)
        if event.round == event.rounds:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ProgressBar, "__call__", interrupt)
    monkeypatch.setattr(interrupts, "_answered", 0)
    before = signal.signal(signal.SIGINT, interrupts.note_answered)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            command = ["run", "fedavg", *SMALL, "--rounds", "1", "--seeds", "0,1", "--out", tmp_path / "a"]
            result = jaxfl(*command)
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.exit_code == 130 and re.search(mentions("complete", "no other"), result.stderr)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["seed-0"]
    assert (tmp_path / "a" / "seed-0" / "summary.json").exists()


def test_a_directory_that_cannot_be_made_is_one_line(never_compiles, tmp_path):
    (tmp_path / "file").touch()
    line = refused("run", "fedavg", *SMALL, "--out", tmp_path / "file" / "a")
    assert re.search(mentions("out", tmp_path / "file" / "a", "below the file"), line)
    (tmp_path / "folder.npz").mkdir()
    line = refused("data", "iid-digits", "--save", tmp_path / "folder.npz")
    assert re.search(mentions("save", "folder", tmp_path / "folder.npz"), line)


def test_seeds_are_averaged(tmp_path, monkeypatch):
    methods = []
    compiled = program.compile_rounds
    monkeypatch.setattr(
        rounds,
        "compile_rounds",
        lambda method, *args, **options: (methods.append(method), compiled(method, *args, **options))[1],
    )
    result = jaxfl("run", "fedavg", *SMALL, "--rounds", "1", "--seeds", "0,3", "--out", tmp_path)
    assert len(methods) == 2 and methods[0] is methods[1], "one method, and so one program"
    assert result.exit_code == 0, result.output
    one, two = (json.loads((tmp_path / f"seed-{seed}" / "summary.json").read_text()) for seed in (0, 3))
    both = json.loads((tmp_path / "summary.json").read_text())
    assert both["seeds"] == [0, 3]
    assert both["micro_accuracy"]["mean"] == pytest.approx((one["micro_accuracy"] + two["micro_accuracy"]) / 2)
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line.strip()}
    assert rows["mean"][0] == f"{both['micro_accuracy']['mean']:.4f}"
    assert rows["std"][0] == f"{both['micro_accuracy']['std']:.4f}"


def test_a_seed_joins_those_that_are_there(tmp_path):
    command = ["run", "fedavg", *SMALL, "--rounds", "1", "--out", tmp_path, "--seeds"]
    assert jaxfl(*command, "0").exit_code == 0
    joined = jaxfl(*command, "1")
    assert joined.exit_code == 0, joined.output
    assert json.loads((tmp_path / "summary.json").read_text())["seeds"] == [0, 1]
    assert [line.split()[0] for line in joined.stdout.splitlines()[2:6]] == ["0", "1", "mean", "std"]
    assert jaxfl(*command, "2", "--set", "local_epochs=2").exit_code == 0
    assert json.loads((tmp_path / "summary.json").read_text())["seeds"] == [2], "another setting"


def test_a_folder_is_of_one_run_or_of_seeds(tmp_path, never_compiles):
    single, both = tmp_path / "single", tmp_path / "both"
    for folder in (single, both / "seed-0", both / "seed-1"):
        folder.mkdir(parents=True)
        (folder / "history.jsonl").write_text("")
    (both / "summary.json").write_text('{"seeds": [0, 1], "rounds": {"mean": 1.0, "std": 0.0}}')
    command = ["run", "fedavg", *SMALL, "--rounds", "1"]
    for again in ([], ["--resume"]):
        assert re.search(
            mentions("several seeds", single, "history.jsonl", "--seeds"),
            refused(*command, "--seeds", "0-1", "--out", single, *again),
        )
        assert re.search(
            mentions("out", both, "seed-0, seed-1"),
            refused(*command, "--out", both, *again),
        )
    assert re.search(mentions("--resume"), refused(*command, "--seeds", "0-1", "--out", both))
    assert not (single / "summary.json").exists() and not (both / "config.json").exists()


def test_seeds_share_a_program(tmp_path, monkeypatch):
    """As on an accelerator: each folder is that of a run apart, and the runs go on together."""
    for module in (run, loop):
        monkeypatch.setattr(module, "seeds_per_program", lambda count: count)
    command = ["run", "fedavg", *SMALL, "--rounds", "1", "--out"]
    result = jaxfl(*command, tmp_path / "both", "--seeds", "0,3")
    assert result.exit_code == 0, result.output
    assert "2 seeds at a time, in one program" in result.stdout
    assert jaxfl(*command, tmp_path / "seed-3", "--seed", "3").exit_code == 0
    both, apart = tmp_path / "both" / "seed-3", tmp_path / "seed-3"
    assert {path.name for path in both.iterdir()} == {path.name for path in apart.iterdir()}
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (both, apart)]
    assert [one["seeds_together"] for one in summaries] == [2, 1]
    assert summaries[0]["loss"] == pytest.approx(summaries[1]["loss"], rel=1e-5)
    assert summaries[0]["micro_accuracy"] == summaries[1]["micro_accuracy"]
    command[command.index("1")] = "2"
    result = jaxfl(*command, tmp_path / "both", "--seeds", "0,3", "--resume")
    assert result.exit_code == 0, result.output
    for line in ("seed 0 round 2/2", "seed 3 round 2/2"):
        assert line in result.stderr
    assert json.loads((both / "summary.json").read_text())["rounds"] == 2
    monkeypatch.setattr(progress, "divergence_reason", lambda *given, **named: "as if")
    command[command.index("2")] = "3"
    assert jaxfl(*command, tmp_path / "both", "--seeds", "0,3", "--resume").exit_code == 1
    configs = [json.loads((both.with_name(name) / "config.json").read_text()) for name in ("seed-0", "seed-3")]
    assert [one["rounds"] for one in configs] == [2, 2], "nothing of three rounds was saved"
    assert jaxfl("compare", tmp_path / "both").exit_code == 0


def test_a_time_limit_is_no_end(tmp_path):
    command = ["run", "fedavg", *SMALL, "--rounds", "3", "--cohort", "2", "--eval-every", "1", "--resume", "--out"]
    limited = jaxfl(*command, tmp_path / "a", "--time-limit", "0.001s")
    assert limited.exit_code == 75 and "after round 1 of 3; the same command continues" in limited.stderr
    assert jaxfl(*command, tmp_path / "a", "--time-limit", "1h").exit_code == 0
    assert jaxfl(*command, tmp_path / "a", "--time-limit", "0.001s").exit_code == 0, "no round is left"
    assert jaxfl(*command[:-2], "--time-limit", "0.001s").exit_code == 0, "there is nothing to continue"


def test_one_seed_has_no_deviation(tmp_path):
    result = jaxfl("run", "fedavg", *SMALL, "--rounds", "1", "--seeds", "3", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "one seed, no deviation" in result.stdout and not re.search("mean|std", result.stdout)
    assert json.loads((tmp_path / "summary.json").read_text())["micro_accuracy"]["std"] is None
    assert "One number is one seed" in re.sub(r"[\s│]+", " ", jaxfl("run", "--help").stdout)


def test_conditions_at_the_clients(tmp_path):
    conditions = ["attack=sign-flip", "attackers=0.25", "stragglers=0.5", "dropouts=0.3", "availability=diurnal"]
    conditions += ["drift=rotate", "drift_round=3", "leave=0.2"]
    settings = [word for item in conditions for word in ("--set", item)]
    result = jaxfl("run", "fedavg", *SMALL, "--rounds", 5, "--cohort", 6, *settings, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "note: drift after round 3: accuracy 0." in result.output
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["drift_round"] == 3 and summary["options"]["data.leave"] == 0.2
    assert summary["attackers"] == 2 and 0 < summary["mean_participants"] < 6
    assert summary["options"]["data.attack"] == "sign-flip" and summary["options"]["run.availability"] == "diurnal"
    words = ["--resume", "--rounds", 7, "--cohort", 6, *settings, "--out", tmp_path]
    assert jaxfl("run", "fedavg", *SMALL, *words).exit_code == 0
    assert "dropouts" in refused("run", "fedavg", *SMALL, *words, "--set", "dropouts=0.4")


@pytest.mark.rotating
def test_a_recurrent_drift_is_told_listed_and_compared(tmp_path):
    options = ["drift=recurrent", "drift_rounds=2,3", "drift_swaps=1:2/3:4,5:6", "drift_parts=0.4,0.6"]
    settings = [word for item in options for word in ("--set", item)]
    result = jaxfl("run", "fedavg", *SMALL, "--rounds", 4, "--cohort", 1.0, *settings, "--out", tmp_path / "a")
    assert result.exit_code == 0, result.output
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert [stage["round"] for stage in summary["drift_stages"]] == [2, 3]
    gain = summary["return_gain_micro_accuracy"]
    assert re.search(
        rf"1 more, the last after round 3 .* at the return \{gain:+.4f}", re.sub(r"\s+", " ", result.output)
    )
    found = loaded.load(tmp_path / "a")
    np.testing.assert_array_equal(found.data.label_maps(), found.began.label_maps())
    table = jaxfl("compare", tmp_path / "a", "--columns", "area,return_gain").stdout
    assert f"{100 * summary['area_micro_accuracy']:.2f}" in table and f"{100 * gain:.2f}" in table
    shown = jaxfl("data", *SMALL[1:-2], *settings).stdout
    assert "after round 2" in shown and "after round 3" in shown


def test_help_and_lists_tell_of_the_conditions():
    shown = re.sub(r"\s+", " ", jaxfl("run", "--help").stdout)
    for word in (
        "stragglers=0.5",
        "dropouts=0.3",
        "availability=diurnal",
        "attack=sign-flip",
        "label-flip",
        "drift=swap",
    ):
        assert word in shown, word
    assert re.search('availability +always +\\w.*\n +"always", "diurnal" or "random"', jaxfl("methods", "local").stdout)
    assert "attack_scale=1.0" in jaxfl("data", "rotated-digits").stdout


def test_divergence_is_said(monkeypatch, tmp_path):
    """One of two seeds comes to nothing and is left out; of the other one the table tells how many updates were."""
    finished, execute = [], job.execute

    def diverge(one, data, callbacks=(), *shared):
        if one.seed == 1:
            raise Diverged("the run has diverged: none.", None, None)
        result = execute(one, data, callbacks, *shared)
        finished.append(result._replace(summary=result.summary | {"diverged": 2}))
        return finished[-1]

    monkeypatch.setattr(job, "execute", diverge)
    result = jaxfl("run", "fedavg", *SMALL, "--rounds", "1", "--seeds", "1,0")
    assert result.exit_code == 1, result.output
    assert re.search(mentions("error: ", "seed 1", "diverged"), result.stderr)
    assert re.search(mentions("warning: ", "2 of 4 updates", "finite"), result.stderr)
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[1][rows[1].index("diverged") :][0] == "diverged" and rows[2][0] == "0" and len(finished) == 1
    assert rows[2][6] == "2"


@pytest.mark.parametrize(
    ("items", "status", "blamed"),
    [
        (["attack=sign-flip", "attack_scale=1e30"], 0, "warning: .*attack_scale.*1e[+]30.*sign-flip.*learning rate"),
        (["attack=sign-flip", "attack_scale=1e30", "learning_rate=1e38"], 1, "error: .*attack_scale.*learning rate"),
        (["attack=label-flip", "learning_rate=1e38"], 1, "error: .*attack=label-flip.*learning rate"),
    ],
)
def test_an_attack_is_named_before_the_learning_rate(items, status, blamed):
    settings = [word for item in ["attackers=0.3", *items] for word in ("--set", item)]
    result = jaxfl("run", "fedavg", *SMALL, "--rounds", "1", "--cohort", "1.0", *settings)
    assert result.exit_code == status and re.search(blamed, " ".join(result.stderr.split()))


def test_a_run_that_diverges_ends_with_1(tmp_path):
    settings = ["--rounds", "1", "--set", "learning_rate=1e38", "--cohort", "1.0", "--out", tmp_path / "a"]
    result = jaxfl("run", "fedavg", *SMALL, *settings)
    assert result.exit_code == 1 and result.stdout == "" and "error: the run has diverged: " in result.stderr
    assert {path.name for path in (tmp_path / "a").iterdir()} == {".jaxfl", ".jaxfl.lock", "config.json"}


def test_lists():
    methods = json.loads(jaxfl("methods", "--json").stdout)
    assert {"name", "summary", "paper", "options"} <= set(methods[0])
    (stocfl,) = json.loads(jaxfl("methods", "stocfl", "--json").stdout)
    assert stocfl["options"]["threshold"]["default"] == 0.5
    data = {row["name"]: row for row in json.loads(jaxfl("data", "--json").stdout)}
    assert data["rotated-digits"]["found"] == "embedded"
    assert data["rotated-mnist"]["found"] is None and "train-images" in data["rotated-mnist"]["missing"]
    assert data["rotated-mnist"]["classes"] == 10
    for command in (["methods"], ["methods", "ifca"], ["data"], ["data", "rotated-digits"]):
        assert jaxfl(*command).exit_code == 0
    assert re.search(mentions("ifka", "ifca"), refused("methods", "ifka"))


def test_plan_says_what_it_takes():
    result = jaxfl("plan", "ifca", *SMALL, "--time")
    assert result.exit_code == 0, result.output
    assert re.search(r"total +[\d.,]+ MB", result.stdout)
    assert re.search(r"a round +[\d.e-]+ s +median of 3, after", result.stdout)
    drifting = jaxfl("plan", "fedavg", *SMALL, "--set", "drift=swap", "--set", "drift_round=30", "--time")
    assert drifting.exit_code == 0 and "median of 3" in drifting.stdout


def test_a_quiet_run_says_results_alone_and_logs_them(tmp_path):
    small = [*SMALL, "--rounds", 6, "--eval-every", 1, "--set", "learning_rate=1e-30", "--out", tmp_path / "a"]
    result = jaxfl("run", "fedavg", *small, "--quiet", "--stop-early", 2, "--log", "csv", "--time-limit", "2h")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(
        "fedavg on rotated-digits: 8 clients, 3 rounds of 4"
    )  # the first, and two no better
    assert "pictures" not in result.stdout
    rows = (tmp_path / "a" / "log.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["round", "1", "2", "3"]
    told = jaxfl("run", "fedavg", *small, "--resume", "--stop-early", 1)  # the evaluations of before count
    assert re.search(mentions("note: ", "round 4 of 6"), told.stderr)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--log", "tensorbord"], ("log", "tensorbord", "tensorboard")),
        (["--log", "csv"], ("log=csv", "--out")),
        (["--log", "wandb"], ("wandb", "pip install", "jaxfl[wandb]")),
        (["--stop-early", "0"], ("stop_early", 0)),
        (["--time-limit", "soon"], ("time_limit", "soon")),
        (["--time-limit", "1h30"], ("time_limit", "1h30")),  # 30 of what?
    ],
)
def test_what_cannot_look_on_is_refused(never_compiles, monkeypatch, words, said):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert re.search(mentions(*said), refused("run", "fedavg", *SMALL, *words))


def test_a_log_of_one_seed_has_plain_names(monkeypatch):
    told, seeds = {}, [types.SimpleNamespace(seed=seed) for seed in (3, 5)]
    log = {"kept": lambda job: Logger(lambda values, event: told.update({job.seed: values}), lambda failed: None)}
    monkeypatch.setattr(run, "LOGGERS", log)
    (look,) = run.callback_factory(["kept"], None, [], seeds)(seeds)
    for one in seeds:
        look(Event(1, 2, 1, 0.5, 0.1, {"round": 1, "loss": float(one.seed)}, seed=one.seed))
    assert told == {3: {"loss": 3.0}, 5: {"loss": 5.0}}


def test_settings_of_a_sweep_have_their_own_names_in_a_logger(tmp_path):
    settings = run.options.route("fedavg", "rotated-digits")
    jobs = [run.Job(settings, 1, 4, out=tmp_path / f"fedavg-learning_rate={rate}" / "seed-0") for rate in (0.1, 0.2)]
    names = [run._run_label(one) for one in jobs]
    assert [rate in name for name in names for rate in ("0.1", "0.2")] == [True, False, False, True]


def test_version_is_that_of_the_package():
    assert jaxfl("--version").stdout == f"jaxfl {importlib.metadata.version('jaxfl')}\n"


def test_a_run_is_told_by_the_main_metric_of_its_task(tmp_path):
    """Of numbers: nothing is called accuracy, and the lowest error is the best."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(24, 2)).astype(np.float32)
    rows = np.split(np.arange(24), 4)
    stored.save(federate(inputs, inputs.sum(1), rows, rows, name="sums"), tmp_path / "data")
    out = tmp_path / "run"
    words = ["run", "fedavg", "--data", "saved", "--data-dir", str(tmp_path / "data"), "--set", "model=logistic"]
    result = jaxfl(*words, "--rounds", "2", "--cohort", "1.0", "--out", out)
    assert "fedavg on sums: 4 clients, 2 rounds of 4, mse" in result.stdout, result.output
    summary = json.loads((out / "summary.json").read_text())
    assert summary["lower_is_better"] == ["mse", "mae"] and summary["options"]["run.task"] == "auto"
    assert not [name for name in summary if "accuracy" in name]
    clients = pandas.read_csv(out / "clients.csv")
    assert list(clients.columns)[-4:] == ["mse", "mae", "r2", "loss"]
    assert clients.mse.max() == pytest.approx(summary["worst_decile_mse"])
