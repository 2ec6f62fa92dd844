"""A sweep: which runs it is, that nothing is made twice, and what is refused."""

import json
import os
import re
import shutil
import threading
import time
from urllib.parse import unquote

import pytest

from jaxfl.cli import run, run_page, workers
from jaxfl.cli import sweep as cli_sweep
from jaxfl.cli.app import main
from jaxfl.simulation.records.directory import RunDirectory
from jaxfl.simulation.records.history import History
from tests.messages import mentions

DIGITS = ["--data", "rotated-digits", "--rounds", "2", "--set", "num_clients=8", "--set", "rows_per_client=20"]
DIGITS += ["--set", "model=logistic"]


def sweep(*words):
    with pytest.raises(SystemExit) as ended:
        main(["sweep", *map(str, words)])
    return ended.value.code


def test_options_go_to_the_methods_that_have_them():
    wanted = cli_sweep.parse_values(
        ["num_clusters=2,3", "learning_rate=0.1,0.2", "ifca.local_epochs=1,2", "local_epochs=5"]
    )
    found = {point.name: point.items for point in cli_sweep.grid_points(["fedavg", "ifca"], wanted)}
    assert list(found) == [
        "fedavg-learning_rate=0.1",
        "fedavg-learning_rate=0.2",
        *(
            f"ifca-num_clusters={k}-learning_rate={rate}-local_epochs={epochs}"
            for k in (2, 3)
            for rate in (0.1, 0.2)
            for epochs in (1, 2)
        ),
    ]
    assert found["fedavg-learning_rate=0.1"] == ("learning_rate=0.1", "local_epochs=5")
    assert "local_epochs=5" not in [item for name, items in found.items() if name[0] == "i" for item in items]


def test_a_file_says_what_is_wanted(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(
        'methods = ["fedavg", "stocfl"]\ndata = "rotated-digits"\nseeds = [0, 1]\nrounds = 4\ncheckpoint_every = 2\n'
        "[set]\nlearning_rate = [0.1, 0.2]\nnormalise = true\nserver.learning_rate = 0.3\n"
        "label_groups = [[[0, 1], [2]], [[0, 1, 2]]]\nhidden = [[200, 100], [32]]\n"
        '[stocfl]\nthreshold = [0.5, "auto"]\nrun.finetune = 1\n'
    )
    assert cli_sweep.read_sweep_file(path) == (
        {"methods": "fedavg,stocfl", "data": "rotated-digits", "seeds": "0,1", "rounds": "4", "checkpoint_every": "2"},
        {
            "learning_rate": ["0.1", "0.2"],
            "normalise": ["true"],
            "server.learning_rate": ["0.3"],
            "label_groups": ["[0, 1],[2]", "[0, 1, 2],"],
            "hidden": ["200,100", "32"],
            "stocfl.threshold": ["0.5", "auto"],
            "stocfl.run.finetune": ["1"],
        },
    )


@pytest.mark.parametrize("line", ["threshold", "method.threshold", "stocfl.threshold"])
def test_the_command_line_wins_over_a_file(line):
    """Over what the file says of one method, too; an option of another owner with the same name is another one."""
    file = {"server.threshold": ["1"], "stocfl.threshold": ["0.3", "0.5"], "ifca.num_clusters": ["2"]}
    wanted = cli_sweep.merge_values(file, {line: ["0.9"]})
    assert wanted == {"server.threshold": ["1"], "ifca.num_clusters": ["2"], line: ["0.9"]}
    assert list(wanted) == [name for name in (*file, line) if name in wanted][: len(wanted)]


def test_an_option_is_one_with_its_owner_and_without():
    for file, line, both in (
        ("optimizer.learning_rate", "learning_rate", False),
        ("hidden", "model.hidden", False),
        ("server.learning_rate", "learning_rate", True),  # a bare one is the optimiser's
        ("learning_rate", "server.learning_rate", True),
        ("threshold", "stocfl.threshold", True),  # which wins for this method alone
    ):
        assert list(cli_sweep.merge_values({file: ["1"]}, {line: ["2"]})) == ([file, line] if both else [line])


def settings_of(tmp_path, *items, methods="fedper"):
    given = {"data": "rotated-digits", "rounds": "2"}
    found = cli_sweep.jobs_of(
        {
            "methods": methods,
            "given": given,
            "items": list(items),
            "data_dir": None,
            "out": tmp_path,
            "html": False,
            "pictures": False,
        }
    )
    return {name: runs[0].config() for name, runs in found.items()}


def test_values_whose_names_of_folders_would_be_one_have_folders_of_their_own(tmp_path):
    found = settings_of(tmp_path, "personal=Dense_0/bias,Dense_0_bias")
    assert {name: one["method.personal"] for name, one in found.items()} == {
        "fedper-personal=Dense_0_bias": "Dense_0/bias",
        "fedper-personal=Dense_0_bias-2": "Dense_0_bias",
    }


def test_spaces_after_commas_are_no_part_of_values(tmp_path):
    found = settings_of(tmp_path, "learning_rate = 0.1, 0.2", methods="fedavg, ifca")
    assert list(found) == [f"{name}-learning_rate={rate}" for name in ("fedavg", "ifca") for rate in (0.1, 0.2)]


@pytest.mark.parametrize("name", ["seeds", "data", "stop_early", "time_limit", "log", "html"])
def test_an_argument_of_the_command_is_not_said_to_be_a_misspelt_option(tmp_path, name):
    with pytest.raises(ValueError, match=mentions(name, f"--{name.replace('_', '-')}")):
        settings_of(tmp_path, f"fedper.{name}=1")


def test_options_of_the_servers_optimiser_go_to_those_that_have_one():
    wanted = {"server_optimizer": ["none", "fedadam"], "server.learning_rate": ["0.1", "1.0"], "rounds": ["2"]}
    found = cli_sweep.grid_points(["fedavg", "local"], wanted)
    assert [point.items for point in found] == [
        ("server_optimizer=none", "rounds=2"),
        ("server_optimizer=fedadam", "server.learning_rate=0.1", "rounds=2"),
        ("server_optimizer=fedadam", "server.learning_rate=1.0", "rounds=2"),
        ("rounds=2",),
    ]
    assert [point.name for point in found][-2:] == [
        "fedavg-server_optimizer=fedadam-server.learning_rate=1.0",
        "local",
    ]


@pytest.mark.parametrize(
    ("key", "items"),
    [
        ("fedavg.finetune", "finetune=1"),
        ("fedavg.run.finetune", "run.finetune=1"),
        ("fedavg.optimizer.learning_rate", "optimizer.learning_rate=1"),
        ("fedavg.data.num_clients", "data.num_clients=1"),
        ("fedavg.method.local_epochs", "method.local_epochs=1"),
    ],
)
def test_every_option_of_a_run_may_be_of_one_method(key, items):
    """With priority over the same option of all methods, with its owner or without."""
    bare = key.rpartition(".")[2]
    found = {
        point.method: point.items for point in cli_sweep.grid_points(["fedavg", "ifca"], {bare: ["2"], key: ["1"]})
    }
    assert found == {"fedavg": (items,), "ifca": (f"{bare}=2",)}
    assert cli_sweep.merge_values({key: ["1"]}, {bare: ["2"]}) == {bare: ["2"]}
    assert cli_sweep.merge_values({bare: ["1"]}, {key: ["2"]}) == {bare: ["1"], key: ["2"]}


def test_options_of_a_choice_go_to_settings_with_that_choice():
    values = {
        "model": ["mlp", "logistic"],
        "hidden": ["(16,)", "(32,)"],
        "optimizer": ["adam", "momentum"],
        "momentum": ["0.8"],
    }
    found = [set(point.items) for point in cli_sweep.grid_points(["local"], values)]
    assert len(found) == 6 and {"model=logistic", "optimizer=adam"} in found
    assert {"model=mlp", "hidden=(16,)", "optimizer=momentum", "momentum=0.8"} in found
    alone = {"fedavg.server_optimizer": ["fedadam"], "fedavg.server.learning_rate": ["0.1", "0.2"]}
    found = [(point.method, point.items) for point in cli_sweep.grid_points(["fedavg", "fedprox"], alone)]
    assert found == [
        *(("fedavg", ("server_optimizer=fedadam", f"server.learning_rate={rate}")) for rate in ("0.1", "0.2")),
        ("fedprox", ()),
    ]


@pytest.mark.parametrize(
    ("switch", "off", "on", "option"),
    [
        ("attack", "none", "sign-flip", "attackers=0.2"),
        ("attack", "label-flip", "sign-flip", "attack_scale=4"),
        ("attack", "ipm", "replace", "attack_target=3"),
        ("drift", "none", "swap", "drift_share=0.3"),
        ("drift_round", "none", "5", "arrive=0.2"),
        ("drift", "none", "recurrent", "drift_change=rotate"),
        ("schedule", "constant", "step", "schedule_rounds=5"),
        ("finetune", "none", "1", "finetune_batch_size=4"),
        ("finetune", "none", "1", "finetune_pull=0.5"),
        ("availability", "random", "diurnal", "availability_period=12"),
        ("noise", "none", "1", "delta=0.01"),
        ("epsilon", "none", "8", "accounting=poisson-assumed"),
        ("compress", "none", "sign", "error_feedback=true"),
    ],
)
def test_options_of_what_is_switched_off_go_to_settings_with_it(switch, off, on, option):
    key, _, value = option.partition("=")
    found = [point.items for point in cli_sweep.grid_points(["fedavg"], {key: [value], switch: [off, on]})]
    assert list(map(set, found)) == [{f"{switch}={off}"}, {option, f"{switch}={on}"}]
    alone = cli_sweep.grid_points(["fedavg"], {key: [value], switch: [off]})
    assert set(alone[0].items) == {option, f"{switch}={off}"}  # refused with it, by name


def test_what_is_done_is_not_made_again(tmp_path, capsys, empty_pictures, monkeypatch):
    out = tmp_path / "runs"
    words = ["fedavg,ifca", *DIGITS, "--out", out, "--set"]
    assert sweep(*words, "num_clusters=2", "--seeds", "0") == 0
    first = {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")}
    history = (out / "fedavg" / "seed-0" / "history.jsonl").read_text()
    assert {str(path.relative_to(out)) for path in first} == {
        f"{name}/{summary}" for name in ("fedavg", "ifca") for summary in ("summary.json", "seed-0/summary.json")
    }
    (out / "ifca" / "seed-0" / "summary.json").unlink()  # as if it had been killed before its end
    capsys.readouterr()
    assert sweep(*words, "num_clusters=2,3", "--seeds", "0") == 0
    told = capsys.readouterr()
    assert "fedavg: done\n" in told.err
    assert sweep(*words, "num_clusters=2", "--seeds", "0", "--eval-every", "2") == 0
    assert re.search(mentions("fedavg: done", "every 1 rounds", "--out"), capsys.readouterr().err)
    assert "ifca-num_clusters=2: 1 of 1 runs to make" in told.err
    assert not (out / "ifca-num_clusters=2").exists(), "it is there, under the name that it was given"
    assert "ifca num_clusters=3" in told.out
    monkeypatch.setattr(run_page, "_run_pictures", lambda *_: [])  # have tests of their own
    assert sweep(*words, "num_clusters=2", "--seeds", "0,1", "--html") == 0
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "jaxfl run ifca --data rotated-digits --rounds 2" in page and str(out / "fedavg" / "seed-0") in page
    led = re.findall('<a href="(.*?)">', page)  # to the page of each run, those that were made without one as well
    assert sorted(led) == [f"{name}/seed-{seed}/index.html" for name in ("fedavg", "ifca") for seed in (0, 1)]
    assert all((out / unquote(link)).exists() for link in led)
    assert (out / "fedavg" / "seed-0" / "history.jsonl").read_text() == history
    spread = out / "fedavg" / "summary.json"
    assert json.loads(spread.read_text())["seeds"] == [0, 1]
    spread.unlink()  # as if it had been killed before it wrote the mean over seeds
    assert sweep(*words, "num_clusters=2", "--seeds", "0,1") == 0
    assert json.loads(spread.read_text())["seeds"] == [0, 1]
    assert json.loads((out / "ifca" / "seed-0" / "summary.json").read_text())["rounds"] == 2  # ended by a resume
    capsys.readouterr()
    assert sweep(*words, "num_clusters=3", "--seeds", "0") == 0  # not of the folder with that name
    assert "ifca: done" in capsys.readouterr().err


def test_an_interrupted_sweep_names_no_option_that_it_lacks(tmp_path, monkeypatch, capsys):
    def stopped(one, *_):
        raise run.Stopped(1, 2, 1)

    monkeypatch.setattr(run.job, "execute", stopped)
    assert sweep("fedavg", *DIGITS, "--seeds", "0", "--out", tmp_path / "out") == 130
    assert "the same command continues from there" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fedavg,ivca", *DIGITS], ("ivca", "ifca")),
        (["fedavg,fedavg", *DIGITS], ("methods", "fedavg, fedavg")),
        (["fedavg"], ("data", "--data")),
        (["fedavg", *DIGITS, "--set", "ifca.num_clusters=2"], ("ifca.num_clusters",)),
        (["fedavg", *DIGITS, "--set", "thresold=0.1,0.2"], ("option", "thresold")),
        (["fedavg", *DIGITS, "--set", "learning_rate=0.1,-1"], ("learning_rate", -1.0)),
        (
            ["fedavg", *DIGITS, "--set", "learning_rate=0.1,0.10"],
            ("values", "fedavg-learning_rate=0.1"),
        ),
        (["fedavg", *DIGITS, "--set", "learning_rate"], ("--set", "KEY=VALUE")),
        (
            ["fedavg", *DIGITS, "--set", "learning_rate=0.3", "--set", "learning_rate=0.4"],
            ("learning_rate", "once", "learning_rate=0.3,0.4"),
        ),
        (["gone.toml"], ("gone.toml", "TOML")),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(words, said, tmp_path, capsys):
    assert sweep(*words, "--out", tmp_path / "runs") == 2
    assert re.search(mentions(*said), " ".join(capsys.readouterr().err.split()))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("methods = [", ("sweep.toml", "TOML")),
        ("method = 'ifca'", ("method", "methods")),
        ("set = 1", ("set", 1)),
        ("fedavg = 3", ("fedavg", 3)),
        ("[set]\nlearning_rate = []", ("learning_rate", "[set]", "[]")),
        ("[ifca]\nnum_clusters = []", ("num_clusters", "[ifca]")),
        ("[fedavg.server]\nlearning_rate = []", ("server.learning_rate", "[fedavg]", "[]")),
        ("cohort = [1]", ("cohort", "[1]")),
        ("methods = []", ("methods", "[]")),
        ("[data]\nnum_clients = 8", ("data", "{'num_clients': 8}")),
        (f"rounds = {'[' * 100_000}", ("sweep.toml", "deep")),
        (f"[set]\nhidden = {'[' * 200}{']' * 200}", ("sweep.toml", "deep")),
        (f"rounds = {'9' * 5000}", ("sweep.toml", 4300)),
    ],
)
def test_a_file_of_something_else_is_refused(text, said, tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=mentions(*said)):
        cli_sweep.read_sweep_file(path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file_is_not_read(make, tmp_path):
    make(path := tmp_path / "sweep.toml")
    with pytest.raises(ValueError, match=mentions("sweep.toml", "file")):
        cli_sweep.read_sweep_file(path)


def test_a_setting_that_is_refused_takes_no_other_with_it(tmp_path, capsys, empty_pictures):
    out = tmp_path / "runs"
    assert sweep("fedavg", *DIGITS, "--out", out, "--set", "local_epochs=0,1") == 1
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(mentions("fedavg-local_epochs=0: error: ", "local_epochs", 0), said)
    assert (out / "fedavg-local_epochs=1" / "seed-0" / "summary.json").exists()
    assert sweep("fedavg", *DIGITS, "--out", tmp_path / "none", "--set", "local_epochs=0,-1") == 2


@pytest.mark.filterwarnings("default:.*left out")
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"{"),
        ("history.jsonl", b'{"round": "x"}\n'),
        ("history.jsonl", b""),
        ("clusters.jsonl", b"{}\n"),
        (".jaxfl", b"["),
        (".jaxfl.lock", None),
        ("clients.csv", None),
    ],
)
def test_a_damaged_folder_takes_no_other_run_with_it(name, content, tmp_path, capsys, empty_pictures):
    """Not that of the same setting, nor of another one, and not in a comparison that names the folder."""
    assert sweep("fedavg", *DIGITS, "--out", tmp_path) == 0
    cell = tmp_path / "fedavg" / "seed-0"
    if content is None:  # a link to a file of something else
        (tmp_path / "mine.txt").write_text("mine")
        (cell / name).unlink(missing_ok=True)
        (cell / name).symlink_to(tmp_path / "mine.txt")
    else:
        (cell / name).write_bytes(content)
    capsys.readouterr()
    assert sweep("fedavg,fedprox", *DIGITS, "--out", tmp_path, "--seeds", "0,1") == 1
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(mentions("fedavg/seed-0: error: ", str(cell), name), said)
    assert content is not None or (tmp_path / "mine.txt").read_text() == "mine"
    assert len(list(tmp_path.glob("*/seed-*/summary.json"))) == 4
    if name == "config.json":
        (tmp_path / "begun").mkdir()
        (tmp_path / "begun" / name).write_text("{}")  # a run that has no history yet
        with pytest.raises(SystemExit) as ended:
            main(["compare", *(str(tmp_path / one) for one in ("fedavg/seed-0", "fedavg/seed-1", "begun", "fedprox"))])
        told = " ".join(capsys.readouterr().err.split())
        assert not ended.value.code and re.search(mentions("warning: ", str(cell / name), "left out"), told)
        assert str(tmp_path / "begun") in told and told.count(str(cell)) == 1  # not among the unfinished ones, too
        with pytest.raises(SystemExit) as ended:
            main(["compare", str(cell)])
        assert ended.value.code == 2


def test_a_run_that_has_diverged_is_made_once(tmp_path, capsys, empty_pictures, monkeypatch):
    words = ["fedavg", *DIGITS, "--out", tmp_path, "--set", "learning_rate=0.1,1e30", "--seeds", "0,1"]
    assert sweep(*words) == 1
    assert "error: " in capsys.readouterr().err
    with monkeypatch.context() as context:
        context.setattr(cli_sweep, "run_jobs", None)  # nothing is run
        assert sweep(*words) == 1
    told = " ".join(capsys.readouterr().err.split())
    for seed in (0, 1):
        cell = tmp_path / "fedavg-learning_rate=1e30" / f"seed-{seed}"
        assert re.search(mentions(f"1e30/seed-{seed}: diverged", "not made again", str(cell)), told)
    shutil.rmtree(tmp_path / "fedavg-learning_rate=1e30")
    assert sweep(*words) == 1
    assert "diverged before" not in capsys.readouterr().err
    assert sweep(*words, "--rounds", "3") == 1, "with more rounds it is another run"
    assert "diverged before" not in capsys.readouterr().err


def test_runs_that_stop_early_are_finished(tmp_path, capsys, empty_pictures, monkeypatch):
    words = ["fedavg,local", *DIGITS, "--rounds", "6", "--eval-every", "1", "--out", tmp_path]
    words += ["--set", "learning_rate=1e-30", "--log", "csv"]
    stop = ["--stop-early", "2"]
    assert sweep(*words, *stop) == 0
    histories = list(tmp_path.glob("*/seed-0/history.jsonl"))
    assert [len(one.read_text().splitlines()) for one in histories] == [3, 3]
    assert all(len((one.parent / "log.csv").read_text().splitlines()) == 4 for one in histories)
    with monkeypatch.context() as context:
        context.setattr(cli_sweep, "run_jobs", None)
        assert sweep(*words, *stop) == 0
    for names in (("clients.csv",), ("log.csv",), ("clients.csv", "log.csv")):
        files = [one.parent / name for one in histories for name in names]
        before = [file.read_text() for file in files]
        for file in files:
            file.unlink()
        assert sweep(*words, *stop) == 0 and [file.read_text() for file in files] == before
    assert [len(one.read_text().splitlines()) for one in histories] == [3, 3], "no round more is trained"
    assert sweep(*words, "--stop-early", "4") == 0, "with more patience they go on"
    assert [len(one.read_text().splitlines()) for one in histories] == [5, 5]
    assert sweep(*words) == 0
    assert [len(one.read_text().splitlines()) for one in histories] == [6, 6]


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--log", "sms"], ("log", "sms")), (["--stop-early", "0"], ("stop_early", 0)), (["--time-limit", "x"], ("x",))],
)
def test_options_of_runs_are_checked_before_any_is_begun(words, said, tmp_path, capsys):
    assert sweep("fedavg", *DIGITS, "--out", tmp_path / "out", *words) == 2
    assert re.search(mentions(*said), capsys.readouterr().err) and not (tmp_path / "out").exists()


def test_the_time_limit_is_of_the_whole_sweep(tmp_path, capsys, empty_pictures, monkeypatch):
    words = ["fedavg,local,ifca", *DIGITS, "--eval-every", "1", "--out", tmp_path]
    with monkeypatch.context() as context:
        context.setattr(run.Deadline, "is_over", lambda _: (tmp_path / "local" / "seed-0" / "history.jsonl").exists())
        assert sweep(*words, "--time-limit", "1h") == 75
    told = " ".join(capsys.readouterr().err.split())
    assert re.search(mentions("time is over", "2 of 3", "same command"), told)
    rounds = [
        json.loads((tmp_path / name / "seed-0" / "summary.json").read_text())["rounds"] for name in ("fedavg", "local")
    ]
    assert rounds == [2, 1] and not (tmp_path / "ifca").exists()
    assert sweep(*words, "--time-limit", "1h") == 0
    assert len(list(tmp_path.glob("*/seed-0/summary.json"))) == 3
    assert sweep("fedavg", *DIGITS, "--out", tmp_path / "none", "--time-limit", "0.0001s") == 75
    assert not (tmp_path / "none").exists()


def test_what_a_full_disk_has_left_out_is_completed(tmp_path, capsys, empty_pictures, monkeypatch):
    """No round is made again, and nothing else is touched."""
    out = tmp_path / "runs"
    words = ["fedavg,local", *DIGITS, "--out", out, "--seeds", "0,1"]
    monkeypatch.setattr(run_page, "_run_pictures", lambda *_: [])  # have tests of their own
    assert sweep(*words, "--eval-every", "2") == 0
    cell = out / "fedavg" / "seed-1"
    assert not list(out.glob("*/*/*.png"))  # unless they are asked for
    assert sweep(*words, "--pictures") == 0
    assert len(list(out.glob("*/*/*.png"))) == 8
    (cell / "clients.csv").unlink()
    (cell / "clusters.png").write_bytes(b"")
    history, summary = ((cell / name).read_text() for name in ("history.jsonl", "summary.json"))
    other = (out / "fedavg" / "seed-0" / "clients.csv").stat().st_mtime_ns
    capsys.readouterr()
    assert sweep(*words, "--pictures") == 0
    told = capsys.readouterr().err
    assert "fedavg: 1 of 2 runs to make" in told and "local: done" in told
    assert (cell / "clients.csv").exists() and (cell / "clusters.png").stat().st_size
    assert (cell / "history.jsonl").read_text() == history
    assert json.loads((cell / "config.json").read_text())["eval_every"] == 2  # its own, not this command's
    now, before = json.loads((cell / "summary.json").read_text()), json.loads(summary)
    assert all(now[name] == before[name] for name in ("micro_accuracy", "seconds_per_round", "rounds"))
    assert (out / "fedavg" / "seed-0" / "clients.csv").stat().st_mtime_ns == other
    assert sweep(*words, "--html") == 0  # pages of runs that were made without
    assert len(list(out.glob("*/*/index.html"))) == 4
    for name in ("checkpoint.npz", "checkpoint-before.npz"):
        (cell / name).unlink(missing_ok=True)
    (cell / "index.html").unlink()
    capsys.readouterr()
    assert sweep(*words, "--html") == 1  # not made anew: what is there would be lost, if that failed
    assert re.search(mentions("index.html", str(cell), "checkpoint"), " ".join(capsys.readouterr().err.split()))
    assert (cell / "history.jsonl").read_text() == history


def test_every_file_of_a_finished_run_that_can_be_written_again_is(tmp_path, empty_pictures, monkeypatch):
    (tmp_path / "own.py").write_text("from jaxfl.methods import fedavg as own\n")
    out, made, found = tmp_path / "runs", cli_sweep.run_jobs, list[int]()
    words = [f"{tmp_path / 'own.py'}:own", *DIGITS, "--eval-every", "2", "--out", out]
    assert sweep(*words) == 0
    (cell,) = out.glob("*/seed-0")
    monkeypatch.setattr(cli_sweep, "run_jobs", lambda *jobs, **options: found.append(1) or made(*jobs, **options))
    for name, more in (("config.json", []), ("own.py", []), ("classes.png", ["--html"])):
        assert sweep(*words, *more) == 0
        found.clear()
        before = (cell / name).read_bytes()
        (cell / name).unlink()
        if name == "own.py":
            (cell / name).write_bytes(b"")
        assert sweep(*words, *more) == 0
        assert (cell / name).read_bytes() == before and len(found) == 1
    spread = cell.parent / "summary.json"
    before = spread.read_bytes()
    spread.write_bytes(b"")
    assert sweep(*words) == 0 and spread.read_bytes() == before


@pytest.mark.filterwarnings("default:.*clusters.jsonl")
def test_clusters_that_a_finished_run_has_lost_are_those_of_its_end(tmp_path, capsys, empty_pictures):
    words = ["ifca", *DIGITS, "--eval-every", "1", "--out", tmp_path]
    assert sweep(*words) == 0
    cell = tmp_path / "ifca" / "seed-0"
    whole = History(cell / "history.jsonl")
    (cell / "clusters.jsonl").unlink()
    assert sweep(*words) == 0
    assert re.search(mentions("clusters.jsonl", "round 2"), " ".join(capsys.readouterr().err.split()))
    found = History(cell / "history.jsonl")
    assert found.records == whole.records and found.clusters[-1].tolist() == whole.clusters[-1].tolist()
    assert (found.clusters[0] == -1).all()
    assert sweep(*words) == 0 and "clusters.jsonl" not in capsys.readouterr().err


@pytest.mark.filterwarnings("default:.*checkpoint-before.npz")
def test_rounds_that_a_damaged_checkpoint_has_lost_are_made_again(tmp_path):
    """A finished run that lacks a file keeps its numbers, and has not those of the checkpoint before."""
    words = ["fedavg", *DIGITS, "--out", tmp_path, "--checkpoint-every", "1"]
    assert sweep(*words) == 0
    cell = tmp_path / "fedavg" / "seed-0"
    before = json.loads((cell / "summary.json").read_text())
    (cell / "checkpoint.npz").write_bytes(b"")
    (cell / "clients.csv").unlink()
    assert sweep(*words) == 0
    now = json.loads((cell / "summary.json").read_text())
    assert all(now[name] == before[name] for name in ("micro_accuracy", "loss", "rounds", "updates"))
    assert (cell / "clients.csv").exists()


def test_runs_of_another_process_are_skipped_and_returned_to(tmp_path, capsys, empty_pictures, monkeypatch):
    """Be they made meanwhile, or given up."""
    out = tmp_path / "runs"
    words = ["fedavg,local", *DIGITS, "--out", out]
    assert sweep("fedavg", *DIGITS, "--out", tmp_path / "other") == 0
    monkeypatch.setattr(workers, "POLL", 0.01)
    ready, told_so, moments = threading.Event(), threading.Event(), []
    printed = workers.Pool._print

    def print_line(pool, text):
        printed(pool, text)
        if "other processes" in text:
            told_so.set()

    monkeypatch.setattr(workers.Pool, "_print", print_line)

    def other():
        with RunDirectory(out / "fedavg" / "seed-0").locked(), RunDirectory(out / "local" / "seed-0").locked():
            ready.set()
            while not (out / "local" / "seed-1" / "summary.json").exists():
                time.sleep(0.01)
            moments.append({str(path.relative_to(out)) for path in out.rglob("seed-*/summary.json")})
            assert told_so.wait(10)
            shutil.copytree(tmp_path / "other" / "fedavg" / "seed-0", out / "fedavg" / "seed-0", dirs_exist_ok=True)

    thread = threading.Thread(target=other)
    thread.start()
    assert ready.wait(10)
    assert sweep(*words, "--seeds", "0,1") == 0
    thread.join()
    assert moments == [{"fedavg/seed-1/summary.json", "local/seed-1/summary.json"}]
    told = capsys.readouterr().err
    assert "2 runs" in told and "other processes" in told
    for name in ("fedavg", "local"):
        assert json.loads((out / name / "summary.json").read_text())["seeds"] == [0, 1]


def test_runs_are_saved_as_often_as_the_command_says(tmp_path):
    values = cli_sweep.parse_values(["fedavg.finetune=1"])
    keys = {
        "methods": "fedavg,ifca",
        "data": "rotated-digits",
        "rounds": "8",
        "checkpoint_every": "2",
        "eval_every": "4",
    }
    jobs = [jobs[0] for jobs in cli_sweep._jobs_by_setting(keys, values, None, tmp_path).values()]
    assert [(one.checkpoint_every, one.eval_every) for one in jobs] == [(2, 4)] * 2
    assert [one.settings.run for one in jobs] == [{"finetune": 1, "devices": 1}, {"devices": 1}]
