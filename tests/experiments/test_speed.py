"""The scripts of experiments/speed run, without peers and at toy size, and say what they must say."""

import importlib
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest

import jaxfl
from docs.generate import speed
from experiments.harness import base, results
from experiments.speed import kernels, networks, ours, peers, rounds
from jaxfl import engine
from jaxfl.cli import sweep
from jaxfl.data.synthetic import clustered_linear
from jaxfl.testing.small import linear_task
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=4)

W3 = ["w3-logistic", "w3-mlp"]
KEYS = {
    *("workload", "what", "clients", "chunk", "compile_seconds", "after_round_1", "seconds", "summary", "ratio"),
    *("training_loss", "product_gflops", "copy_gbytes", "share_of_product", "gflop", "versions", "cores", "device"),
    *("platform", "load", "peak_bytes", "peers", "devices"),
}


@pytest.fixture(autouse=True)
def _small_copy(monkeypatch):
    measure = importlib.import_module("experiments.speed.measure")
    monkeypatch.setattr(measure, "COPY_BYTES", 1 << 12)


def assert_compared(record, name, clients, rounds):
    assert set(record) == KEYS
    assert (record["workload"], record["clients"]) == (name, clients)
    assert len(record["seconds"]["jaxfl"]) == rounds and min(record["seconds"]["jaxfl"]) > 0
    assert record["after_round_1"]["agrees"]
    assert record["training_loss"]["jaxfl"] > 0


def test_a_line_is_appended_for_every_comparison(tmp_path, capsys):
    """Of the workload that the kit does not have of this script; the others have theirs below."""
    out, sizes = tmp_path / "speed.jsonl", ["--rounds", "2", "--hidden", "4", "--size", "64", "--peers", "none"]
    rounds.main(["w5", "--clients", "4", "6", *sizes, "--out", str(out)])
    records = [json.loads(line) for line in out.read_text().splitlines()]
    for record, clients in zip(records, (4, 6), strict=True):
        assert_compared(record, "w5", clients, 2)
    assert json.dumps(records[-1]) in capsys.readouterr().out


PEER = """
import serve

def build(work, model, x, y):
    return lambda: work["epochs"] + x.sum(), lambda: float(model["Dense_0"]["bias"][y[0, 0]])

serve.serve(build, {"toy": "1"})
"""


def test_a_peer_answers_from_a_process_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "HERE", tmp_path)
    shutil.copy(Path(peers.__file__).parent / "serve.py", tmp_path)
    (tmp_path / "toy_side.py").write_text(PEER)
    x, y, model = np.ones((1, 2, 3)), np.array([[1, 0]]), {"Dense_0": {"bias": np.array([5.0, 7.0])}}
    with peers.Peer("toy", {"epochs": 4}, model, x, y, None) as peer:
        side = peer.side()
        assert (side.name, side.round(), side.round(), side.loss()) == ("toy", 10.0, 10.0, 7.0)
        assert 1 << 22 < peer.ask("peak") < 1 << 32
        assert peer.versions == {"toy": "1"}
    (tmp_path / "toy_side.py").write_text("raise SystemExit(3)")
    with pytest.raises(SystemExit, match=mentions("toy", "exit code 3")):
        peers.Peer("toy", {}, {}, x, y, None)


def test_the_loss_of_models_to_choose_among_is_the_lowest_of_each_client():
    """As FedJAX tells it; the choice that the round was made with may fit another model better by now."""
    data, task = clustered_linear(8, rows=8, features=4), linear_task()
    method = jaxfl.methods.ifca(task, optax.sgd(0.3), num_clusters=2, local_epochs=2, batch_size=None)
    made = ours.Rounds(method, data, choosing=True)
    side = made.side()
    side.round()
    models = [jax.tree.map(lambda leaf, k=k: leaf[k], made.state.models) for k in range(2)]
    batches = [data.batch(data.train, client, np.arange(8)) for client in range(8)]
    losses = np.array([[task.loss(model, batch) for model in models] for batch in batches])
    assert side.loss() == pytest.approx(losses.min(1).mean(), rel=1e-6)
    assert (losses.argmin(1) != made.state.cluster).any()  # or the two were not told apart


def test_what_was_timed_was_the_same_work():
    """In every committed comparison: the losses of all sides agree after round 1."""
    records = [record for path in (speed.CPU, speed.VMAP) for record in speed.lines_of(path)]
    assert {record["workload"] for record in records} == {*rounds.WORKS}
    assert [record["workload"] for record in records if not record["after_round_1"]["agrees"]] == []


def test_operations_are_counted_as_by_hand():
    """LEAF's network: forward, weight gradients, and input gradients of all layers but the first."""
    shapes = {"Conv_0": (5, 5, 1, 32), "Conv_1": (5, 5, 32, 64), "Dense_0": (3136, 2048), "Dense_1": (2048, 62)}
    model = {name: {"kernel": np.zeros(shape, np.int8)} for name, shape in shapes.items()}
    first, rest = 28 * 28 * 25 * 32, 14 * 14 * 25 * 32 * 64 + 3136 * 2048 + 2048 * 62
    assert rounds.gflop(rounds.WORKS["w2"], model, 3) == 2 * 100 * (2 * first + 3 * rest) * 3 / 1e9


def test_operations_of_a_residual_network_are_counted_as_by_hand():
    """Every stage has half the side and twice the channels of the one before, so that its convolutions cost as much."""
    model = jax.eval_shape(networks.ResNet().init, jax.random.key(0), np.zeros((1, 32, 32, 3)))["params"]
    first, whole = 32 * 32 * 9 * 3 * 64, 32 * 32 * 9 * 64 * 64
    rest = 4 * whole + 3 * (whole // 2 + whole // 18 + 3 * whole) + 512 * 10
    assert rounds.gflop(rounds.WORKS["w9-10"], model, 3) == 2 * 50 * (2 * first + 3 * rest) * 3 / 1e9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["w9-10", "w10", "w11"])
def test_networks_of_today_are_compared_at_toy_size(name, monkeypatch):
    monkeypatch.setattr(networks, "STAGES", 2)
    monkeypatch.setattr(networks, "BLOCKS", 1)
    work = rounds.WORKS[name]
    layers = work.layers if work.tokens else rounds.resnet()
    monkeypatch.setitem(rounds.WORKS, name, work._replace(layers=layers, rows=8, batch_size=4))
    sizes = ["--clients", "2", "--rounds", "1", "--size", "64", "--peers", "none", "--hidden", "32"]
    (record,) = rounds.main([name, *sizes])
    assert_compared(record, name, 2, 1)
    assert {*record["seconds"]} == {"jaxfl", "own network"} if work.own else {"jaxfl"}
    assert record["gflop"] > 0


def test_what_a_side_holds_is_measured_of_one_work(tmp_path, capsys):
    out, given = tmp_path / "held.jsonl", ["--memory", "--clients", "4", "--peers", "none"]
    (record,) = rounds.main(["w3-logistic", *given, "--out", str(out)])
    assert json.loads(out.read_text()) == record and record["clients"] == 4
    assert {*record["held"]} == {"jaxfl"} and record["held"]["jaxfl"] <= record["peak_bytes"]
    with pytest.raises(SystemExit):
        rounds.main([*W3, *given])
    assert re.search(mentions("--memory", "one work"), capsys.readouterr().err)


@pytest.mark.slow
def test_population_costs_no_compilation_after_the_first(tmp_path, capsys, monkeypatch):
    """The kit's part, of more rounds: with the automatic chunk, and with one."""
    workloads = importlib.import_module("experiments.speed.accelerator_workloads")
    sized = workloads.sized

    def of_ten_rounds(*given):
        found = sized(*given)
        found[found.index("--rounds") + 1] = "10"
        return found

    monkeypatch.setattr(workloads, "sized", of_ten_rounds)
    records, said = records_of("w8", tmp_path, capsys)
    assert ["--chunk" in record["arguments"] for record in records] == [False, True]
    for record in records:
        assert record["compiled_in_rounds"] == 0
        assert [result["population"] for result in record["results"]] == [20, 40]
        assert all(len(result["summary"]["values"]) == 9 for result in record["results"])
        assert record["results"][0]["bytes"]["state"] < record["results"][1]["bytes"]["state"]  # a cluster id each
    assert "20 clients" in said


def test_memory_that_is_planned_is_measured(tmp_path):
    script = importlib.import_module("experiments.speed.memory")
    out = tmp_path / "memory.jsonl"
    (record,) = script.main(["--methods", "fedsgd", "--hidden", "8", "--alone", "--out", str(out)])
    parts = record["parts"]
    assert record["planned"] == parts["data"] + parts["state"] + max(
        parts[k] for k in ("working", "evaluation", "start")
    )
    assert json.loads(out.read_text())["taken"] == record["taken"]


@pytest.mark.slow
def test_a_mapped_population_trains_and_is_measured_beside_a_resident_one(tmp_path, capsys):
    script = importlib.import_module("experiments.speed.population")
    sizes = ["--population", "300", "--resident", "20", "--clients", "2", "--rounds", "2", "--turns", "1"]
    sizes += ["--folder", str(tmp_path / "p")]
    (record,) = script.main([*sizes, "--no-alone", "--out", str(tmp_path / "population.jsonl")])
    (alone,) = script.main([*sizes, "--alone", "--method", "ditto"])
    assert json.loads((tmp_path / "population.jsonl").read_text())["cohort"] == record["cohort"] == 2
    assert len(record["ratio"]["values"]) == len(record["cpu_ratio"]["values"]) == 1
    assert alone["rounds"] == 4 and alone["micro_accuracy"] > 0.1 and alone["peak_bytes"] > 0
    model = 4 * (784 * 200 + 200 + 200 * 10 + 10)
    assert alone["dense_bytes"] == 300 * model and 2 * model <= alone["file_bytes"] <= 4 * 2 * model
    assert "2 of 300" in capsys.readouterr().out


def test_clustering_agrees_with_its_peers(tmp_path, capsys):
    script = importlib.import_module("experiments.speed.w4")
    out = tmp_path / "w4.jsonl"
    sizes = ["--clients", "16", "40", "--features", "256", "--rounds", "2", "--size", "64", "--loop-limit", "20"]
    script.main([*sizes, "--linkage", "average", "single", "--out", str(out)])
    small, large = (json.loads(line) for line in out.read_text().splitlines())
    assert (small["clients"], large["clients"]) == (16, 40)
    assert set(small["ratio"]) == {"scipy", "loop"} and set(large["ratio"]) == {"scipy"}
    for record in (small, large):
        assert record["agreement"]["agrees"]
        assert set(record["agreement"]["height_difference"]) == {"scipy average", "scipy single"}
        assert all(len(record["ratio"]["scipy"][method]["values"]) == 2 for method in ("average", "single"))
        stages = record["seconds"]["jaxfl"]
        for method in ("average", "single"):
            expected = [a + b for a, b in zip(stages["distances"]["values"], stages[method]["values"], strict=True)]
            assert record["total"]["jaxfl"][method] == expected
    assert "scipy  average" in capsys.readouterr().out


def test_a_whole_command_is_timed_with_empty_caches_and_again(tmp_path, monkeypatch, capsys):
    script, given = importlib.import_module("experiments.speed.commands"), []

    def run(words, env, **_):
        folder = Path(words[-1])
        folder.mkdir()
        (folder / "summary.json").write_text(json.dumps(dict.fromkeys([*script.KEPT, "seed"], 1)))
        given.append((words[2:-2], Path(env["XDG_CACHE_HOME"])))
        return SimpleNamespace(returncode=len(given) // 4, stderr="no such data")

    monkeypatch.setattr(script.subprocess, "run", run)
    script.main(["digits", "--out", str(tmp_path / "out.jsonl")])
    (record,) = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert len(record["again_seconds"]) == 2 and set(record["summary"]) == set(script.KEPT)
    assert [words for words, _ in given] == [["jaxfl", "run", "stocfl", "--data", "rotated-digits"]] * 3
    assert len({cache for _, cache in given}) == 1 and not given[0][1].exists()
    with pytest.raises(SystemExit, match=mentions("no such data")):
        script.main(["digits"])
    with pytest.raises(SystemExit):
        script.main(["mnist"])
    assert re.search(mentions("mnist", "--data-dir"), capsys.readouterr().err)


def test_sweeps_are_timed_in_turn_and_not_twice(tmp_path, monkeypatch, capsys):
    script, given = importlib.import_module("experiments.speed.sweeps"), []

    def run(words, cwd, env, **_):
        for seed in range(3):
            folder = Path(words[-1], "fedavg", f"seed-{seed}")
            folder.mkdir(parents=True)
            summary = {"rounds": 2, "seconds_per_round": 0.5, "compile_seconds": seed}
            (folder / "summary.json").write_text(json.dumps(summary))
        given.append((cwd, words[4:-2], Path(env["XDG_CACHE_HOME"])))
        return SimpleNamespace(returncode=len(given) // 10, stderr="no such data")

    monkeypatch.setattr(script.subprocess, "run", run)
    out = tmp_path / "out.jsonl"
    words = ["rates", "--base", str(tmp_path), "--smoke", "--out", str(out)]
    script.main([*words, "--turns", "1"])
    records = script.main([*words, "--turns", "3"])
    assert [json.loads(line) for line in out.read_text().splitlines()] == records and len(given) == 9
    assert [cwd for cwd, *_ in given] == [script.HERE, script.HERE, tmp_path] * 3
    assert ["--jobs" in sweep for _, sweep, _ in given] == [False, True, False] * 3
    assert len({cache for *_, cache in given}) == 9
    assert all((one["rounds"], one["compilation"], one["runs"]) == (3.0, 2, 3) for one in records)
    assert capsys.readouterr().out.count("goal at most 1.3") == 2
    with pytest.raises(SystemExit, match=mentions("no such data")):
        script.main(["digits", "--smoke", "--turns", "1"])


def test_the_sweeps_that_are_timed_are_sweeps():
    """Of so many runs, each with options that its methods have."""
    script = importlib.import_module("experiments.speed.sweeps")
    for name, runs in {"digits": 36, "stocfl": 18, "rates": 60}.items():
        methods, *words = script.PARTS[name].words.split()
        pairs = list(zip(words[::2], words[1::2], strict=True))
        given = {key[2:]: value for key, value in pairs if key != "--set"}
        items = [value for key, value in pairs if key == "--set"]
        arguments = {
            "methods": methods,
            "given": given,
            "items": items,
            "data_dir": None,
            "out": "x",
            "html": False,
            "pictures": False,
        }
        assert sum(map(len, sweep.jobs_of(arguments).values())) == runs


def test_disagreeing_trees_fail(monkeypatch, tmp_path):
    script = importlib.import_module("experiments.speed.w4")
    monkeypatch.setattr(script, "cosine_distances", lambda rows: 2 * script.jnp.ones((len(rows), len(rows))))
    sizes = ["--clients", "16", "--features", "256", "--rounds", "1", "--size", "64", "--peers", "scipy"]
    with pytest.raises(SystemExit, match=mentions("16 clients x 256 features", "trees")):
        script.main([*sizes, "--linkage", "single"])


def test_disagreeing_losses_fail():
    measure = importlib.import_module("experiments.speed.measure")
    sides = [measure.Side(name, lambda: 0.0, lambda value=value: value) for name, value in (("a", 1.0), ("b", 1.1))]
    record = {"what": "a pair", "after_round_1": measure.agreement(sides)}
    assert not record["after_round_1"]["agrees"]
    with pytest.raises(SystemExit, match=mentions("a pair", "losses", "round 1")):
        measure.checked([record])


def test_unknown_peer_is_named():
    measure = importlib.import_module("experiments.speed.measure")
    with pytest.raises(ValueError, match=mentions("'flower'")):
        measure.peer_names("fedjax,flower", ("fedjax", "torch"))


@pytest.mark.parametrize(("environment", "found"), [("pfl", {"pfl"}), ("torch", {"torch", "channels_last", "vmap"})])
def test_peers_are_those_that_have_an_environment(environment, found, tmp_path):
    here = peers.there(None)
    (tmp_path / environment / "bin").mkdir(parents=True)
    (tmp_path / environment / "bin" / "python").touch()
    assert peers.there(tmp_path) == [name for name in peers.NAMES if name in found or name in here]


def test_kit_makes_a_part_once(tmp_path, capsys):
    kit = importlib.import_module("experiments.speed.accelerator")
    arguments = ["--smoke", "--out", str(tmp_path), "--only", "machine"]
    assert kit.main(arguments) == 0
    (line,) = (json.loads(text) for text in (tmp_path / kit.RESULTS).read_text().splitlines())
    assert line["part"] == "machine" and line["exit"] == 0
    assert {record["product"] for record in line["records"] if "product" in record} >= {"default", "float32"}
    assert "machine: exit 0" in capsys.readouterr().out
    assert kit.main(arguments) == 0 and capsys.readouterr().out == "", "what has a line is not made again"
    with pytest.raises(SystemExit):
        kit.main(["--out", str(tmp_path), "--only", "w99"])


def records_of(part, folder, capsys):
    """Returns the records of a part of the kit at toy size, and all that it prints."""
    kit, parts = (importlib.import_module(f"experiments.speed.{name}") for name in ("accelerator", "accelerator_parts"))
    kit.PARTS[part][0](parts.Setting(smoke=True, data_dir=None, out=folder, seconds=60, chunks=None))
    said = capsys.readouterr().out
    records = [json.loads(line.removeprefix(parts.MARK)) for line in said.splitlines() if parts.MARK in line]
    assert records and [record["error"] for record in records if "error" in record] == []
    return records, said


@pytest.mark.slow
@pytest.mark.rotating(weeks=3)
@pytest.mark.parametrize(
    "part", ["precision", "reductions", "w1", "w5", "w7", "seeds", pytest.param("launch", marks=pytest.mark.slow)]
)
def test_parts_of_the_kit_run_at_toy_size(part, tmp_path, capsys):
    """Those of its `--smoke` but the battery, the curves, the table and W8, which have tests of their own."""
    records_of(part, tmp_path, capsys)


def test_arms_of_the_launch_part_are_compared_with_the_first(tmp_path, capsys, monkeypatch):
    """Each is one process with options of XLA; the rounds are made twice, and both executions have their bits."""
    names = ("launch", "accelerator_workloads", "accelerator_parts")
    script, workloads, parts = (importlib.import_module(f"experiments.speed.{name}") for name in names)
    monkeypatch.setattr(engine, "COMPILER_OPTIONS", {name: {**had} for name, had in engine.COMPILER_OPTIONS.items()})
    given = []

    def run(words, **_):
        given.append(words[3])
        if len(given) == 1:
            script.main([*words[3:]])
            return SimpleNamespace(returncode=0, stdout=capsys.readouterr().out, stderr="")
        other = {"arm": words[3], "workload": "w3-logistic", "bits": ["another", "another"]}
        return SimpleNamespace(returncode=1, stdout=f"RECORD {json.dumps(other)}\n", stderr="no such option")

    monkeypatch.setattr(workloads.subprocess, "run", run)
    workloads.launch(parts.Setting(smoke=True, data_dir=None, out=tmp_path, seconds=60, chunks=None))
    base, *others = parts.records_in(capsys.readouterr().out)
    assert given == [*script.ARMS] and base["arm"] == "base" and len(base["milliseconds"]) == 4
    assert base["same_bits"] == [True, True] and base["looks"] >= 0 and sum(base["kernels"].values()) > 0
    assert [one.get("same_bits", one.get("error")) for one in others] == [[False, False], "no such option"] * 3


def test_options_of_an_arm_reach_the_compiler(monkeypatch):
    monkeypatch.setattr(engine, "COMPILER_OPTIONS", {jax.default_backend(): {"no_such_option": True}})
    with pytest.raises(jax.errors.JaxRuntimeError, match="no_such_option"):
        engine.jit(lambda x: x + 1)(1)


@pytest.mark.slow
@pytest.mark.parametrize(("part", "names", "clients"), [("w2", ["w2"], 2), ("w3", W3, 4), ("w6", ["w6"], 3)])
def test_parts_of_the_kit_are_comparisons(part, names, clients, tmp_path, capsys):
    """With the automatic chunk, and with one."""
    records, _ = records_of(part, tmp_path, capsys)
    chunks = ["--chunk" in record.pop("arguments") for record in records]
    assert chunks == [False] * len(names) + [True] * len(names)
    for record, name in zip(records, 2 * names, strict=True):
        assert_compared(record, name, clients, 1)


def test_kit_makes_what_the_tables_lack(tmp_path, capsys, monkeypatch):
    """Each run once, in a folder of its own; the large ones before all others; nothing is begun when time is up."""
    parts, workloads = (
        importlib.import_module(f"experiments.speed.accelerator_{name}") for name in ("parts", "workloads")
    )
    asked = []

    class Child:
        def __init__(self, command, env):
            asked.append({key: command[command.index(key) + 1] for key in ("--only", "--seeds", "--out", "--scale")})

        def wait(self, seconds):
            return 0

    monkeypatch.setattr(workloads.subprocess, "Popen", Child)
    setting = parts.Setting(smoke=False, data_dir=None, out=tmp_path, seconds=60, chunks=None)
    workloads.table1(setting)
    assert {run["--scale"] for run in asked} == {"paper"} and len({run["--out"] for run in asked}) == len(asked)
    made = {
        (line["cell"], line["seed"]) for line in results.read(base.load("stocfl").results("paper") / results.RESULTS)
    }
    runs = [(run["--only"], int(run["--seeds"])) for run in asked]
    assert runs and len(set(runs)) == len(runs) and not made & set(runs)
    large = [place for place, (label, _) in enumerate(runs) if "Ditto" in label]
    assert large == list(range(len(large))), "one after another, before all others"
    assert capsys.readouterr().out.count(parts.MARK) == len(runs)

    asked.clear()
    workloads.table1(setting._replace(seconds=0))
    assert asked == [] and capsys.readouterr().out.count('"no time left"') == len(runs)


PROGRAM = """
%row (pool: f32[100,8], place: s32[]) -> f32[1,8] {
  %pool = f32[100,8]{1,0} parameter(0)
  %place = s32[] parameter(1)
  ROOT %cut = f32[1,8]{1,0} dynamic-slice(%pool, %place, %place), dynamic_slice_sizes={1,8}
}

%step (state: (f32[1,8], f32[100,8], s32[])) -> (f32[1,8], f32[100,8], s32[]) {
  %state = (f32[1,8]{1,0}, f32[100,8]{1,0}, s32[]) parameter(0)
  %all = f32[100,8]{1,0} get-tuple-element(%state), index=1
  %number = s32[] get-tuple-element(%state), index=2
  %taken = f32[1,8]{1,0} fusion(%all, %number), kind=kLoop, calls=%row, metadata={op_name="take"}
  %turned = f32[100,8]{0,1} copy(%all)
  ROOT %next = (f32[1,8]{1,0}, f32[100,8]{1,0}, s32[]) tuple(%taken, %all, %number)
}

ENTRY %main (begin: (f32[1,8], f32[100,8], s32[])) -> (f32[1,8], f32[100,8], s32[]) {
  %begin = (f32[1,8]{1,0}, f32[100,8]{1,0}, s32[]) parameter(0)
  ROOT %end = (f32[1,8]{1,0}, f32[100,8]{1,0}, s32[]) while(%begin), condition=%go, body=%step, HOW
}
"""


@pytest.mark.parametrize(("how", "looks"), [("", True), ('backend_config={"known_trip_count":{"n":"5"}}', False)])
def test_kernels_and_their_bytes_are_read_off_a_program(how, looks):
    step, whole = kernels.loops(PROGRAM.replace("HOW", how))
    row, pool = 4 * 8, 4 * 800
    assert step == ("step", 2, (2 * row + 4 + 2 * pool) / 1e6, 6.0, looks)  # of the pool one row is read to take it
    assert whole == ("main", 0, 0.0, 0, False)
