"""The scripts of experiments/speed run, without peers and at toy size, and say what they must say."""

import importlib
import json

import pytest

COMMON = ["--peers", "none", "--size", "64"]
SCRIPTS = {
    "w2": ["--clients", "2", "--rounds", "2", "--hidden", "8", *COMMON],
    "w3": ["--clients", "4", "6", "--rounds", "2", "--model", "logistic", *COMMON],
    "w6": ["--clients", "3", "--rounds", "2", "--hidden", "16", *COMMON],
}
KEYS = {
    *("workload", "what", "clients", "chunk", "compile_seconds", "after_round_1", "seconds", "summary", "ratio"),
    *("training_loss", "product_gflops", "copy_gbytes", "share_of_product", "gflop", "versions", "cores", "device"),
    *("platform", "load", "peak_bytes"),
}


@pytest.fixture(autouse=True)
def _small_copy(monkeypatch):
    measure = importlib.import_module("experiments.speed.measure")
    monkeypatch.setattr(measure, "COPY_BYTES", 1 << 12)


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_appends_a_line_per_comparison(name, tmp_path, capsys):
    out = tmp_path / "speed.jsonl"
    script = importlib.import_module(f"experiments.speed.{name}")
    script.main([*SCRIPTS[name], "--out", str(out)])
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["clients"] for record in records] == ([4, 6] if name == "w3" else [2 if name == "w2" else 3])
    for record in records:
        assert set(record) - {"model"} == KEYS
        assert record["workload"] == name.upper()
        assert len(record["seconds"]["jaxfl"]) == 2 and min(record["seconds"]["jaxfl"]) > 0
        assert record["after_round_1"]["agrees"]
        assert record["training_loss"]["jaxfl"] > 0
    assert json.dumps(records[-1]) in capsys.readouterr().out


def test_population_costs_no_compilation_after_the_first(tmp_path, capsys):
    script = importlib.import_module("experiments.speed.w8")
    arguments = ["--population", "20", "40", "--clients", "2", "--chunk", "1", "--rounds", "10", "--peers", "none"]
    record = script.main([*arguments, "--out", str(tmp_path / "w8.jsonl")])
    assert record["compiled_in_rounds"] == 0
    assert [result["population"] for result in record["results"]] == [20, 40]
    assert all(len(result["summary"]["values"]) == 9 for result in record["results"])
    assert record["results"][0]["bytes"]["state"] < record["results"][1]["bytes"]["state"]  # a cluster id per client
    assert "20 clients" in capsys.readouterr().out


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


def test_disagreeing_trees_fail(monkeypatch, tmp_path):
    script = importlib.import_module("experiments.speed.w4")
    monkeypatch.setattr(script, "cosine_distances", lambda rows: 2 * script.jnp.ones((len(rows), len(rows))))
    sizes = ["--clients", "16", "--features", "256", "--rounds", "1", "--size", "64", "--peers", "scipy"]
    with pytest.raises(SystemExit, match="16 clients x 256 features.*: the trees disagree"):
        script.main([*sizes, "--linkage", "single"])


def test_disagreeing_losses_fail():
    measure = importlib.import_module("experiments.speed.measure")
    sides = [measure.Side(name, lambda: 0.0, lambda value=value: value) for name, value in (("a", 1.0), ("b", 1.1))]
    record = {"what": "a pair", "after_round_1": measure.agreement(sides)}
    assert not record["after_round_1"]["agrees"]
    with pytest.raises(SystemExit, match="a pair: the losses after round 1 disagree"):
        measure.checked([record])


def test_unknown_peer_is_named():
    measure = importlib.import_module("experiments.speed.measure")
    with pytest.raises(ValueError, match="'flower'"):
        measure.peer_names("fedjax,flower", ("fedjax", "torch"))


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
        kit.main(["--out", str(tmp_path), "--only", "w9"])
