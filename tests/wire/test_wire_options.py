"""The wire by name: its options, what refuses them, and a run whose clip is an argument of its program."""

import pytest
from typer.testing import CliRunner

import jaxfl
from jaxfl.cli.app import app
from jaxfl.settings import options
from tests.messages import mentions


@pytest.mark.parametrize(
    ("items", "words"),
    [
        (["compress=topk:1.5"], ("topk", 1.5)),
        (["compress=topk"], ("compress", "topk:0.01")),
        (["compress=qsgd:many"], ("compress", "qsgd:8")),
        (["compress=sign:3"], ("compress", "sign")),
        (["compress=topq:0.1"], ("topq", "topk")),
        (["compress=topk:0.1+"], ("compress", "qsgd")),
        (["clip=0"], ("clip", 0.0)),
        (["clip=-1"], ("clip", -1.0)),
        (["aggregator=krum:0.5"], ("krum", 0.5)),
        (["aggregator=trimmed"], ("aggregator", "trimmed:0.2")),
        (["aggregator=midian"], ("midian", "median")),
    ],
)
def test_wrong_wires_are_refused_before_anything_is_loaded(items, words):
    call = ["run", "fedavg", "--data", "rotated-mnist", "--rounds", "1", "--data-dir", "nowhere"]
    result = CliRunner().invoke(app, [*call, *(word for item in items for word in ("--set", item))])
    assert result.exit_code != 0
    with pytest.raises(ValueError, match=mentions(*words)):
        settings = options.route("fedavg", "rotated-mnist", items)
        options.channel(settings), options.aggregator(settings)


@pytest.mark.parametrize(("method", "item"), [("local", "clip=1"), ("fedamp", "compress=sign"), ("robust", "clip=2")])
def test_methods_without_a_wire_say_why(method, item):
    with pytest.raises(ValueError, match=mentions(item.split("=")[0], method)):
        options.route(method, "rotated-digits", [item])
    assert options.channel(options.route(method, "rotated-digits", ["compress=none"])) is None


@pytest.mark.parametrize(("method", "listed"), [("ifca", True), ("local", False)])
def test_the_page_of_a_method_lists_what_it_takes(method, listed):
    shown = CliRunner().invoke(app, ["methods", method]).stdout
    assert [f"\n{name}" in shown for name in ("compress", "clip", "aggregator", "min_sum")] == [listed] * 4


def test_runs_that_differ_in_the_clip_share_a_program(tmp_path):
    given = {"num_clients": 8, "rows_per_client": 20, "model": "logistic", "rounds": 2, "cohort": 4}
    first = jaxfl.run_named("fedavg", "rotated-digits", **given, clip=1e-6, compress="topk:0.1+qsgd:8")
    other = jaxfl.run_named("fedavg", "rotated-digits", **given, clip=10.0, compress="topk:0.1+qsgd:8", out=tmp_path)
    assert first.summary["micro_accuracy"] != other.summary["micro_accuracy"]
    assert other.summary["compile_seconds"] < first.summary["compile_seconds"]
    assert other.history.column("smallest_sum") == [4, 4]
    assert jaxfl.load(tmp_path).summary["options"]["run.compress"] == "topk:0.1+qsgd:8"
    # 65 of 650 numbers, of 8 bits and 10 for the place, and a scale
    assert other.history.column("bytes_up")[-1] == 2 * 4 * (65 * 18 + 32) / 8
