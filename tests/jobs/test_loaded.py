"""Kept runs are given back: the same state, evaluation and models, and gone on with from either side."""

import json
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from typer.testing import CliRunner

import jaxfl
from jaxfl.analysis import finished as finished_runs
from jaxfl.cli.app import app
from jaxfl.jobs import job
from jaxfl.jobs import job as jobs
from jaxfl.settings import options
from jaxfl.simulation.records import checkpoint
from jaxfl.simulation.records.directory import RunDirectory
from tests.messages import mentions
from tests.settings.test_methods import MINE

pytestmark = [
    pytest.mark.usefixtures("empty_pictures"),  # but for those of `finished`
    pytest.mark.rotating("function", weeks=4),
]

SMALL = {"num_clients": 8, "rows_per_client": 20, "model": "logistic", "num_clusters": 2}
GOES_ON = ["--rounds", 4, "--cohort", 4, "--eval-every", 2, "--resume"]
WORDS = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]


def command(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result


def state_in(folder):
    return checkpoint.load(folder / checkpoint.NAME).arrays


def records(folder):
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if "seconds" not in name} for line in lines]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of the command line, and the result of the same run in Python."""
    folder = tmp_path_factory.mktemp("runs") / "a"
    words = ["--rounds", 4, "--cohort", 4, "--eval-every", 2, "--out", folder]
    command("run", "ifca", "--data", "rotated-digits", *WORDS, *words)
    return folder, jaxfl.run_named("ifca", "rotated-digits", rounds=4, cohort=4, eval_every=2, **SMALL)


def test_everything_is_given_back(finished):
    folder, result = finished
    kept = jaxfl.load(folder)
    assert (kept.round, kept.seed, kept.summary["rounds"], len(kept.history)) == (4, 0, 4, 2)
    jax.tree.map(np.testing.assert_array_equal, kept.state, jax.tree.map(np.asarray, result.state))
    np.testing.assert_array_equal(kept.evaluation.cluster, result.evaluation.cluster)
    np.testing.assert_array_equal(kept.evaluation.accuracy, result.evaluation.accuracy)
    assert kept.evaluation.metrics["micro_accuracy"] == kept.history[-1]["micro_accuracy"]
    assert kept.config["method.num_clusters"] == 2
    assert kept.data.num_clients == 8 and kept.job.settings.complete() == {
        key: value for key, value in _tuples(kept.config).items() if key in kept.job.settings.complete()
    }
    assert "ifca" in repr(kept) and "rounds=4" in repr(kept)


def _tuples(config):
    return {key: tuple(value) if isinstance(value, list) else value for key, value in config.items()}


def test_models_of_clients_and_clusters(finished, tmp_path):
    folder, result = finished
    kept, clusters = jaxfl.load(folder), result.evaluation.cluster
    for client in range(8):
        mine = kept.params(client=client)
        slot = jax.tree.map(lambda leaf, k=clusters[client]: np.asarray(leaf[k]), result.state.models)
        jax.tree.map(np.testing.assert_array_equal, mine, slot)
        jax.tree.map(np.testing.assert_array_equal, mine, result.params(cluster=int(clusters[client])))
    kept.export(tmp_path / "a.safetensors", cluster=int(clusters[0]))
    held = jaxfl.models.load_weights(tmp_path / "a.safetensors", kept.params(client=0))
    jax.tree.map(np.testing.assert_array_equal, held, kept.params(client=0))
    for wrong, said in (
        ({}, ("client=None", "cluster=None")),
        ({"client": 8}, ("client", 8, 7)),
        ({"cluster": 9}, ("cluster", 9)),
    ):
        for one in (kept, result):
            with pytest.raises(ValueError, match=mentions(*said)):
                one.params(**wrong)


def test_either_side_goes_on_with_the_other_s_run(finished, tmp_path):
    whole, words = (
        tmp_path / "whole",
        ["run", "ifca", "--data", "rotated-digits", *WORDS, "--cohort", 4, "--eval-every", 2],
    )
    command(*words, "--rounds", 6, "--out", whole)
    begun, there = tmp_path / "begun", {"cohort": 4, "eval_every": 2, **SMALL}
    shutil.copytree(finished[0], begun)  # by the command line
    result = jaxfl.load(begun).resume(rounds=6)
    python = tmp_path / "python"
    jaxfl.run_named("ifca", "rotated-digits", rounds=4, out=python, **there)
    command(*words, "--rounds", 6, "--out", python, "--resume")
    for folder in (begun, python):
        found, wanted = state_in(folder), state_in(whole)
        assert {name: leaf.tobytes() for name, leaf in found.items()} == {
            name: leaf.tobytes() for name, leaf in wanted.items()
        }
        assert records(folder) == records(whole)
        assert json.loads((folder / "summary.json").read_text())["rounds"] == 6
    assert result.summary["method"] == "ifca"


def test_a_callback_ends_a_run_which_goes_on_later(finished, tmp_path):
    there = {"rounds": 6, "cohort": 4, "eval_every": 2, "checkpoint_every": 6, **SMALL}
    seen, best = [], jaxfl.callbacks.BestCheckpoint(tmp_path / "a" / "best")

    def third(event):
        seen.append((event.round, event.rounds, event.record is not None))
        return event.round >= 3

    result = jaxfl.run_named("ifca", "rotated-digits", out=tmp_path / "a", callbacks=[best, third], **there)
    assert result.summary["rounds"] < 6 and seen[-1][0] == seen[-1][1] == result.history[-1]["round"]
    kept = jaxfl.load(tmp_path / "a")
    assert kept.round == result.summary["rounds"] == kept.summary["rounds"]  # saved out of turn
    kept.resume()
    assert (kept.round, kept.summary["rounds"], kept.history[-1]["round"]) == (6, 6, 6)  # it knows what has come since
    assert kept.evaluation.metrics["micro_accuracy"] == kept.summary["micro_accuracy"]
    whole = jaxfl.run_named("ifca", "rotated-digits", out=tmp_path / "b", **there)
    assert {name: leaf.tobytes() for name, leaf in state_in(tmp_path / "a").items()} == {
        name: leaf.tobytes() for name, leaf in state_in(tmp_path / "b").items()
    }
    top = jaxfl.load(tmp_path / "a" / "best")
    values = [record["micro_accuracy"] for record in result.history]
    assert top.history[-1]["round"] == top.round == result.history[values.index(max(values))]["round"]
    assert top.evaluation.metrics["micro_accuracy"] == max(values)
    assert whole.summary["rounds"] == 6


def test_a_run_is_done_when_its_pictures_are(tmp_path, monkeypatch):
    there = {"rounds": 2, "cohort": 4, **SMALL}
    for error, done in ((KeyboardInterrupt, False), (RuntimeError, True)):  # stopped; or a picture that nobody can draw

        def draw(_, error=error):
            raise error

        with monkeypatch.context() as patched, pytest.raises(error):
            patched.setattr(jobs.plots, "convergence", draw)
            jaxfl.run_named("ifca", "rotated-digits", out=tmp_path / error.__name__, **there)
        assert (tmp_path / error.__name__ / "summary.json").exists() is done
    again = jaxfl.run_named("ifca", "rotated-digits", out=tmp_path / "KeyboardInterrupt", resume=True, **there)
    assert again.summary["rounds"] == 2 and (tmp_path / "KeyboardInterrupt" / "summary.json").exists()


def test_a_run_that_is_resumed_at_its_end_keeps_its_times(tmp_path):
    there = {"rounds": 2, "cohort": 4, "out": tmp_path / "a", **SMALL}
    took, again = (jaxfl.run_named("ifca", "rotated-digits", resume=resume, **there) for resume in (False, True))
    for name in ("seconds_per_round", "total_seconds", "compile_seconds"):
        assert again.summary[name] == took.summary[name] == jaxfl.load(tmp_path / "a").summary[name] > 0


def test_a_run_that_is_refused_leaves_the_config_and_other_rows_are_no_data_of_a_run(tmp_path):
    generator, labels = np.random.default_rng(0), np.arange(80) % 4
    for name in ("a", "b"):
        inputs = generator.standard_normal((80, 6)).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", x=inputs, y=labels, client=np.arange(80) // 10)
    there = {"cohort": 1.0, "model": "logistic", "out": tmp_path / "run"}
    jaxfl.run_named("fedavg", "npz", rounds=2, data_dir=tmp_path / "a.npz", **there)
    before = (tmp_path / "run" / "config.json").read_bytes()
    with pytest.raises(ValueError, match=mentions("data", "file", "changed")):
        jaxfl.run_named("fedavg", "npz", rounds=3, data_dir=tmp_path / "b.npz", resume=True, **there)
    assert (tmp_path / "run" / "config.json").read_bytes() == before
    kept = jaxfl.load(tmp_path / "run")
    assert kept.evaluation.metrics["micro_accuracy"] == kept.summary["micro_accuracy"]
    with pytest.raises(ValueError, match=mentions("data", "data_dir")):
        jaxfl.load(tmp_path / "run", data_dir=tmp_path / "b.npz").clients()


def test_a_run_that_drifts_is_given_back_as_it_ended(tmp_path):
    drift = {"drift": "swap", "drift_round": 1, "arrive": 0.2, "leave": 0.2}
    result = jaxfl.run_named("ifca", "rotated-digits", rounds=2, cohort=4, out=tmp_path / "a", **SMALL, **drift)
    kept = jaxfl.load(tmp_path / "a")
    assert kept.clients().equals(result.clients())
    assert kept.data.held_out.tolist() == result.data.held_out.tolist()
    assert kept.resume(rounds=3).summary["rounds"] == 3


def test_where_rows_lie_may_change_when_a_run_goes_on(tmp_path, finished):
    folder, _ = finished
    arguments = {"rounds": 4, "cohort": 4, "eval_every": 2, **SMALL}
    begun = jaxfl.run_named("ifca", "rotated-digits", **arguments | {"rounds": 2}, out=tmp_path / "a", resident=False)
    assert not begun.summary["resident"]
    command("run", "ifca", "--data", "rotated-digits", *WORDS, *GOES_ON, "--out", tmp_path / "a")
    assert records(tmp_path / "a") == records(folder)
    assert json.loads((tmp_path / "a" / "config.json").read_text())["run.resident"] == "auto"


def test_a_run_goes_on_with_other_devices(tmp_path, finished, monkeypatch):
    arguments = {"rounds": 2, "cohort": 4, "eval_every": 2, **SMALL}
    jaxfl.run_named("ifca", "rotated-digits", **arguments, out=tmp_path / "a", devices=2)
    monkeypatch.setattr(jax, "local_device_count", lambda: 1)  # it began on a machine with more
    kept = jaxfl.load(tmp_path / "a")
    assert kept.job.settings.run["devices"] is None and kept.clients().shape[0] == 8
    command("run", "ifca", "--data", "rotated-digits", *WORDS, *GOES_ON, "--set", "devices=1", "--out", tmp_path / "a")
    last, wanted = (records(folder)[-1] for folder in (tmp_path / "a", finished[0]))
    assert last["round"] == 4 and last["micro_accuracy"] == pytest.approx(wanted["micro_accuracy"], abs=0.02)


def test_a_run_goes_on_though_options_have_come_to_be(tmp_path, finished, monkeypatch):
    """An option that a run's version did not have has its default."""
    folder, _ = finished
    younger = {"task", "compute", "schedule", "schedule_rounds", "schedule_factor"}
    words = ["run", "ifca", "--data", "rotated-digits", *WORDS, "--out", tmp_path / "a"]
    with monkeypatch.context() as before:
        before.setattr(options, "RUN", tuple(one for one in options.RUN if one.name not in younger))
        command(*words, *GOES_ON[:-1], "--rounds", 2)
    began = json.loads((tmp_path / "a" / "config.json").read_text())
    assert not {f"run.{name}" for name in younger} & set(began)
    refused = CliRunner().invoke(app, [str(word) for word in (*words, *GOES_ON, "--set", "compute=bfloat16")])
    assert refused.exit_code == 2 and re.search(mentions("run.compute=None", "bfloat16"), refused.stderr)
    command(*words, *GOES_ON)
    assert records(tmp_path / "a") == records(folder)
    assert jaxfl.load(tmp_path / "a").resume(rounds=5).summary["rounds"] == 5


@pytest.fixture
def set_in_jax():
    """Sets a setting of JAX for the rest of a test, as `jax.config.update` and the environment do."""
    before = dict(jax.config.values)
    names = []
    yield lambda name, value: (names.append(name), jax.config.update(name, value))
    for name in names:
        jax.config.update(name, before[name])


@pytest.mark.parametrize(
    "name, value",
    [
        ("jax_enable_x64", True),
        ("jax_default_prng_impl", "rbg"),
        ("jax_threefry_partitionable", False),
        ("jax_default_matmul_precision", "highest"),
        ("jax_random_seed_offset", 3),
    ],
)
def test_no_run_goes_on_under_settings_of_jax_that_change_its_numbers(tmp_path, finished, name, value, set_in_jax):
    """Neither way; nor does a run of objects. A config without the setting has its default."""
    folder, usual = finished[0], jax.config.values[name]
    words = [str(word) for word in ["run", "ifca", "--data", "rotated-digits", *WORDS, *GOES_ON, "--out"]]
    before = (folder / "config.json").read_text()
    shutil.copytree(folder, tmp_path / "a")
    config = json.loads(before) | {name: value}
    (tmp_path / "a" / "config.json").write_text(json.dumps(config))
    refused = CliRunner().invoke(app, [*words, str(tmp_path / "a")])
    assert refused.exit_code == 2
    assert re.search(mentions(f"{name}={value!r}", usual, f"{name.upper()}={value}"), refused.stderr)
    data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    method = jaxfl.methods.fedavg(jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data), optax.sgd(0.1))
    jaxfl.run(method, data, rounds=1, checkpoint_dir=tmp_path / "objects")
    set_in_jax(name, value)
    refused = CliRunner().invoke(app, [*words, str(folder)])
    assert refused.exit_code == 2 and re.search(mentions(f"{name}={usual!r}", value, name.upper()), refused.stderr)
    assert (folder / "config.json").read_text() == before
    assert jaxfl.load(tmp_path / "a").job.identity()[name] == value
    jobs.check(jaxfl.load(tmp_path / "a").job)
    with pytest.raises(ValueError, match=mentions("checkpoint_dir", f"{name}={usual!r}", value)):
        jaxfl.run(method, data, rounds=2, checkpoint_dir=tmp_path / "objects", resume=True)
    with pytest.raises(ValueError, match=mentions(folder, f"{name}={usual!r}", value)):
        jaxfl.load(folder).evaluation  # noqa: B018


def test_a_method_in_a_file_is_taken_from_the_copy_where_the_file_has_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    there = {"rounds": 1, "cohort": 4, "out": "a", **SMALL}
    jaxfl.run_named("mine.py:example", "rotated-digits", **there)
    (tmp_path / "mine.py").write_text("")
    monkeypatch.chdir(tmp_path / "a")
    kept = jaxfl.load(".", trust=True)
    assert kept.params(client=0)["Dense_0"]["bias"].shape == (10,)
    assert kept.resume(rounds=2).summary["method"] == "mine.py:example"


def test_the_copy_of_a_file_is_of_the_run_that_is_held(tmp_path, monkeypatch):
    """And not of one that was refused before it began, nor of what somebody made of it since."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE + "\n\ndef broken(task, optimizer):\n    raise ValueError('no')\n")
    there = {"rounds": 1, "cohort": 4, "out": "a", **SMALL}
    first = {name: value for name, value in there.items() if name != "num_clusters"}
    with pytest.raises(ValueError, match="no"):
        jaxfl.run_named("mine.py:broken", "rotated-digits", **first)
    (tmp_path / "mine.py").write_text(MINE)
    jaxfl.run_named("mine.py:example", "rotated-digits", **there)
    assert (tmp_path / "a" / "mine.py").read_text() == MINE
    (tmp_path / "mine.py").write_text(MINE + "\n# another\n")
    (tmp_path / "a" / "mine.py").write_text("")
    with pytest.raises(ValueError, match=mentions("method", "changed", "copy")):
        jaxfl.load("a", trust=True).clients()
    with pytest.raises(ValueError, match=mentions("method", "changed")):
        jaxfl.run_named("mine.py:example", "rotated-digits", resume=True, **there)


def test_seeds_that_a_callback_has_ended_are_of_the_mean(tmp_path):
    words = ["run", "fedavg", "--data", "rotated-digits", *WORDS[:6], "--set", "learning_rate=1e-9", "--cohort", 4]
    words += ["--rounds", 6, "--eval-every", 1, "--stop-early", 1, "--out", tmp_path / "a"]
    for some in ("0,1", "2"):
        command(*words, "--seeds", some)
    told = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert told["seeds"] == [0, 1, 2] and told["rounds"]["mean"] < 6


def test_a_seed_that_was_stopped_on_its_way_to_more_rounds_is_not_of_the_mean(tmp_path):
    """Between two evaluations the checkpoint alone knows of them."""

    def stop(event):
        if event.round == 3:
            raise RuntimeError

    small = {"cohort": 4, "eval_every": 4, "checkpoint_every": 1, **SMALL, "out": tmp_path / "a" / "seed-0"}
    jaxfl.run_named("ifca", "rotated-digits", rounds=2, **small)
    with pytest.raises(RuntimeError):
        jaxfl.run_named("ifca", "rotated-digits", rounds=8, resume=True, callbacks=[stop], **small)
    words = ["--cohort", 4, "--eval-every", 4, "--checkpoint-every", 1, "--rounds", 8, "--out", tmp_path / "a"]
    command("run", "ifca", "--data", "rotated-digits", *WORDS, *words, "--seeds", "1")
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["seeds"] == [1]


def test_a_run_that_was_killed_on_its_way_to_more_rounds_has_not_ended(finished, tmp_path):
    """Before it has saved anything: its config alone knows of them."""
    folder = shutil.copytree(finished[0], tmp_path / "a" / "seed-0")
    assert jaxfl.load(folder).summary["rounds_asked"] == 4
    other = jaxfl.load(folder).job._replace(seed=1, out=tmp_path / "a" / "seed-1")
    assert len(job.add_saved_summaries([other], [])) == len(finished_runs.read_runs([folder])[0]) == 1
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rounds": 8}))
    with pytest.raises(ValueError, match=mentions("1 are not finished")):
        finished_runs.read_runs([folder])
    assert job.add_saved_summaries([other._replace(rounds=8)], []) == []


def test_a_run_that_goes_on_has_no_summary_yet_and_numbers_of_numpy_are_rounds(finished, tmp_path):
    kept = jaxfl.load(shutil.copytree(finished[0], tmp_path / "a"))

    def stop(event):
        if event.round == 8:
            raise RuntimeError("stopped here")

    assert kept.summary["rounds"] == 4
    with pytest.raises(RuntimeError, match="stopped here"):
        kept.resume(rounds=8, callbacks=[stop])
    assert kept.round == 8 and kept.summary is None and "not finished" in repr(kept)
    with pytest.raises(TypeError, match=mentions("rounds", 8.5)):
        kept.resume(rounds=8.5)
    assert kept.resume(rounds=np.int64(8)).summary["rounds"] == kept.summary["rounds"] == 8


def test_a_run_goes_on_with_another_chunk_and_from_another_folder(tmp_path, monkeypatch):
    data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=10)
    np.savez(
        tmp_path / "my.npz",
        x=data.inputs[:40],
        y=data.labels[:40],
        client=np.arange(40) // 10,
    )
    monkeypatch.chdir(tmp_path)
    words = {"model": "logistic", "cohort": 4, "eval_every": 1}
    jaxfl.run_named("fedavg", "npz", **words, rounds=1, data_dir="my.npz", out="a")
    monkeypatch.chdir(Path(__file__).parent)
    assert jaxfl.load(tmp_path / "a").data.num_clients == 4
    found = jaxfl.run_named(
        "fedavg", "npz", **words, rounds=2, data_dir=tmp_path / "my.npz", out=tmp_path / "a", chunk=1, resume=True
    )
    assert found.summary["rounds"] == 2


def test_the_best_round_of_a_method_in_a_file_has_a_copy_of_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    best = jaxfl.callbacks.BestCheckpoint("a/best")
    jaxfl.run_named("mine.py:example", "rotated-digits", rounds=1, cohort=4, out="a", callbacks=[best], **SMALL)
    Path("mine.py").write_text(MINE + "\n# changed\n")
    best, last = (jaxfl.load(folder, trust=True).params(client=0) for folder in ("a/best", "a"))
    assert best.keys() == last.keys()


def test_every_number_of_a_summary_is_explained(finished):
    page = (Path(__file__).parents[2] / "docs/pages/howto/kept-runs.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`(\w+)`", page)) | {f"p{q}_accuracy" for q in (10, 50)}
    kept = json.loads((finished[0] / "summary.json").read_text())
    prefixes = ("unseen_", "validation_", "finetuned_")
    assert sorted(name for name in kept if not name.startswith(prefixes) and name not in told) == []


def test_a_task_in_a_file_goes_on_wherever_the_file_lies(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tasks.py").write_text(
        "import jaxfl\n\ndef same(network, data):\n    return jaxfl.classification(network, data)\n"
    )
    there = {"cohort": 4, "out": "a", **SMALL}
    jaxfl.run_named("ifca", "rotated-digits", rounds=1, task="tasks.py:same", **there)
    Path("b").mkdir()
    Path("tasks.py").rename("b/tasks.py")
    assert jaxfl.run_named("ifca", "rotated-digits", rounds=2, task="b/tasks.py:same", resume=True, **there)
    monkeypatch.chdir(tmp_path / "a")
    Path("../b/tasks.py").unlink()
    kept = jaxfl.load(".", trust=True)
    assert kept.params(client=0)["Dense_0"]["bias"].shape == (10,)
    assert kept.resume(rounds=3).summary["options"]["run.task"] == "tasks.py:same"


def test_a_run_of_objects_is_given_back_with_them(tmp_path):
    data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    method = jaxfl.methods.fedavg(task, optax.sgd(0.1))
    sampled = {"eval_clients": np.int64(3), "test_rows": np.int64(5)}
    result = jaxfl.run(method, data, rounds=2, checkpoint_dir=tmp_path / "a", **sampled)
    kept = jaxfl.load(tmp_path / "a", method=method, data=data)
    assert kept.evaluation.metrics == result.evaluation.metrics and kept.evaluation.metrics["eval_clients"] == 3
    jax.tree.map(np.testing.assert_array_equal, kept.params(client=1), result.params(client=1))
    with pytest.raises(ValueError, match=mentions("config.json", "jaxfl.run", "method")):
        jaxfl.load(tmp_path / "a").resume()
    with pytest.raises(ValueError, match=mentions("path", "below it are a")):
        jaxfl.load(tmp_path)


def test_runs_start_from_weights(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = jaxfl.load(finished[0])
    kept.export("w.safetensors", client=0)
    small = {name: value for name, value in SMALL.items() if name != "num_clusters"}
    there = {"rounds": 1, "cohort": 4, "learning_rate": 1e-30, **small}
    result = jaxfl.run_named("fedavg", "rotated-digits", out="b", weights="w.safetensors", **there)
    same = jax.tree.map(np.allclose, result.params(client=0), kept.params(client=0))  # but for the rounding of a mean
    assert all(jax.tree.leaves(same))
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    assert (config["run.weights"], config["weights_file"]) == ("w.safetensors", str(tmp_path / "w.safetensors"))
    assert jaxfl.load("b").resume(rounds=2).summary["rounds"] == 2
    (tmp_path / "w.safetensors").rename("moved.safetensors")
    moved = {"weights": "moved.safetensors", "out": "b", "resume": True, **there, "rounds": 3}
    with pytest.raises(ValueError, match=mentions("run.weights='w.safetensors'", "moved.safetensors")):
        jaxfl.run_named("fedavg", "rotated-digits", **moved)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "moved.safetensors").rename("elsewhere/w.safetensors")
    moved["weights"] = "elsewhere/w.safetensors"
    assert jaxfl.run_named("fedavg", "rotated-digits", **moved).summary["rounds"] == 3
    kept.export("elsewhere/w.safetensors", client=int(np.argmax(kept.state.cluster != kept.state.cluster[0])))
    with pytest.raises(ValueError, match=mentions("weights", "file", "changed")):
        jaxfl.run_named("fedavg", "rotated-digits", **moved | {"rounds": 4})
    shutil.copy("elsewhere/w.safetensors", "b")  # as an export into the folder of the run
    again = jaxfl.load("b")  # by its copy, whatever is in the file
    assert again.resume(rounds=4).summary["rounds"] == 4
    copy = Path(again.job.settings.run["weights"])
    assert copy.parts[-3:] == ("b", f"weights-{config['weights_checksum']}", "w.safetensors")
    copy.replace("b/w.safetensors")  # where an older version has kept it
    copy.parent.rmdir()
    assert jaxfl.load("b").params(client=0)
    Path("b/w.safetensors").unlink()
    with pytest.raises(ValueError, match=mentions("weights", "changed", "copy")):
        jaxfl.load("b").params(client=0)


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({"a/w": (2, 3), "a/b": (4,)}, ("a/b", "[3]", "[4]")),
        ({"a/w": (2, 3)}, ("a/w", "a/b", "[3]")),
        ({"a/w": (2, 3), "a/b": (3,), "c": ()}, ("w.safetensors", "parameter c")),
        (None, ("w.safetensors", "NumPy")),
    ],
)
def test_weights_of_another_network_are_refused(held, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    like = {"a": {"w": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.float32)}}
    if held is None:
        (tmp_path / "w.safetensors").write_text("no weights")
    else:
        tree = {}
        for name, shape in held.items():
            *folder, leaf = name.split("/")
            (tree.setdefault(*folder, {}) if folder else tree)[leaf] = np.zeros(shape, np.float32)
        jaxfl.models.save_weights("w.safetensors", tree)
    with pytest.raises(ValueError, match=mentions(*said)):
        jaxfl.models.load_weights("w.safetensors", like)
    with pytest.raises(ValueError, match=mentions("weights", "gone.safetensors")):
        jaxfl.models.load_weights("gone.safetensors", like)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rounds": "4"}, ("rounds", "4")),
        ({"cohort": None}, ("cohort", "null")),
        ({"method": 3}, ("method", 3)),
        ({"weights_file": ["w"]}, ("weights_file", "a list")),
        ({"method.num_clusters": {"a": [1]}}, ("num_clusters",)),
        ({"method.later": 1}, ("later",)),
        ({"seed": ...}, ("lacks seed",)),
    ],
)
def test_a_config_that_is_damaged_or_of_another_version_is_named(finished, tmp_path, change, said):
    folder = shutil.copytree(finished[0], tmp_path / "a")
    config = json.loads((folder / "config.json").read_text()) | change
    text = json.dumps({name: value for name, value in config.items() if value is not ...})
    (folder / "config.json").write_text(text)
    with pytest.raises(ValueError, match=mentions(folder / "config.json", *said)):
        jaxfl.load(folder).params(client=0)


def test_no_run_goes_on_with_another_matrix_of_a_drift_in_the_same_file(tmp_path):
    """A sweep of finished runs loads no data, and would show the old numbers as those of the new matrix."""
    (tmp_path / "m.txt").write_text("0 0\n0 1\n")
    options_ = {"drift": "matrix", "drift_matrix": str(tmp_path / "m.txt"), "drift_every": 1, "num_clients": 4}
    settings = options.route("fedavg", "rotated-digits", **options_)
    job = jobs.Job(settings, rounds=2, cohort=1.0, out=tmp_path / "run", resume=True)
    directory = RunDirectory(tmp_path / "run")
    with directory.locked(job.outputs()):
        directory.write_config(job.config())
        (directory.path / "history.jsonl").write_text("")
    jobs.check(job)
    (tmp_path / "m.txt").write_text("0 0\n1 0\n")
    with pytest.raises(ValueError, match=mentions("drift_matrix_checksum", tmp_path / "run")):
        jobs.check(job)
    older = {name: value for name, value in directory.config().items() if name != "drift_matrix_checksum"}
    directory.write_config(older)
    jobs.check(job)


def test_the_folder_of_several_seeds_is_no_run(tmp_path):
    command(
        "run", "ifca", "--data", "rotated-digits", *WORDS, "--rounds", 1, "--seeds", "0,1", "--out", tmp_path / "of"
    )
    with pytest.raises(ValueError, match=mentions("path", "seed-0, seed-1")):
        jaxfl.load(tmp_path / "of")


def test_numbers_and_words_of_numpy_are_as_good(tmp_path):
    given = {"rounds": np.int64(1), "cohort": np.int64(4), "seed": np.int64(3), "eval_every": np.int32(1)}
    options = SMALL | {"num_clusters": np.int64(2), "start": np.array(["balanced"])[0]}
    jaxfl.run_named("ifca", "rotated-digits", **given, **options, out=tmp_path / "run")
    kept = jaxfl.load(tmp_path / "run")
    assert (kept.seed, kept.config["cohort"], kept.config["method.start"]) == (3, 4, "balanced")
    with pytest.raises(TypeError, match=mentions("rounds", 3)):
        jaxfl.run_named("ifca", "rotated-digits", rounds="3", cohort=4)
    with pytest.raises(ValueError, match=mentions("out", '""')):
        jaxfl.run_named("ifca", "rotated-digits", rounds=1, cohort=4, out="")


WEIGHED = """
import jaxfl
import numpy as np


def weighed(network, data):
    '''What a client's rows count for is how rare their classes are in this federation.'''
    counts = np.bincount(data.labels[data.train.rows], minlength=10) + 1.0
    task = jaxfl.classification(network, data)

    def loss(model, batch, key=None):
        return task.loss(model, batch, key) * float(counts.max() / counts.mean())

    return task._replace(loss=loss, losses=None)
"""


def test_a_task_of_ones_own_is_made_of_the_data_of_each_seed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tasks.py").write_text(WEIGHED)
    words = ["run", "fedavg", "--data", "rotated-digits", *WORDS[:6], "--set", "task=tasks.py:weighed"]
    words += ["--rounds", 2, "--eval-every", 1]
    command(*words, "--seeds", "0,1", "--out", "both")
    command(*words, "--seed", 1, "--out", "alone")
    assert records(Path("both/seed-1")) == records(Path("alone"))


def test_the_command_of_a_run_that_was_ended_makes_as_many_rounds(tmp_path):
    words = ["run", "fedavg", "--data", "rotated-digits", *WORDS[:6], "--set", "learning_rate=1e-9", "--cohort", 4]
    command(*words, "--rounds", 20, "--stop-early", 1, "--html", "--out", tmp_path / "a")
    kept = jaxfl.load(tmp_path / "a")
    assert kept.summary["rounds"] == 4
    page = (tmp_path / "a" / "index.html").read_text(encoding="utf-8")
    assert "--rounds 4 --cohort 4 --seed 0 --eval-every 2 " in page


@pytest.mark.parametrize(
    "forged",
    [{"identity": []}, {"identity": {}}, {"cohort": -1}, {"cohort": "all"}, {"seed": None}, {"round": "2"}],
    ids=str,
)
def test_a_header_of_no_run_is_refused_by_the_name_of_its_file(forged, finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "run")
    saved = checkpoint.load(tmp_path / "run" / checkpoint.NAME)
    identity = forged.get("identity", saved.header["identity"] | forged)
    header = saved.header | {"identity": identity} | {name: n for name, n in forged.items() if name == "round"}
    checkpoint.save(tmp_path / "run", saved.arrays, header)
    with pytest.raises(ValueError, match=mentions(str(tmp_path / "run" / checkpoint.NAME))):
        _ = jaxfl.load(tmp_path / "run").state
