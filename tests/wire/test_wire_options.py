"""The wire by name: its options, what refuses them, and a run whose clip is an argument of its program."""

import re

import pytest
from typer.testing import CliRunner

import jaxfl
from jaxfl.analysis.comparison import compare
from jaxfl.cli import tables
from jaxfl.cli.app import app
from jaxfl.settings import options
from jaxfl.simulation.prepared import Prepared
from tests.messages import mentions

SMALL = ("num_clients=10", "rows_per_client=20", "model=logistic")


class Compiled(Exception):
    """Raised in place of a run."""


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


@pytest.mark.parametrize(
    ("aggregator", "items", "words"),
    [
        ("krum:0.4", (), ("aggregator", "krum:0.4", 8, "krum:0.25")),  # 2 * 3 + 2 of 8
        ("multikrum:0.4", (), ("aggregator", "multikrum:0.4", 8, "multikrum:0.25")),
        ("krum:0", ("attack=ipm", "attackers=0.1"), ("attackers", "krum:0", 1, 10, "krum:0.1")),
        ("multikrum:0.2", ("attack=sign-flip", "attackers=0.3"), ("attackers", "multikrum:0.2", 3, "multikrum:0.3")),
        ("krum:0.2", ("attack=label-flip", "attackers=0.4"), ("krum:0.2", 4, "take fewer")),  # and not 0.4
        ("krum:0.2", ("attack=sign-flip", "attackers=0.2"), ()),
        ("krum:0.25", ("attack=sign-flip", "attackers=0.2", "held_out=0.2"), ()),  # 2 of 8 that train
        ("krum:0", ("attack=canary", "attackers=0.5"), ()),
        ("median", ("attack=sign-flip", "attackers=0.4"), ()),
    ],
)
def test_what_breaks_krum_is_refused_in_one_line_before_compilation(aggregator, items, words, monkeypatch):
    def stopped(*_, **__):
        raise Compiled

    monkeypatch.setattr(Prepared, "of", stopped)
    items = [*SMALL, f"aggregator={aggregator}", *items]
    call = ["run", "fedavg", "--data", "iid-digits", "--rounds", "1", "--cohort", "8"]
    result = CliRunner().invoke(app, [*call, *(word for item in items for word in ("--set", item))])
    assert (result.exit_code, isinstance(result.exception, Compiled)) == ((2, False) if words else (1, True))
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == bool(words)
    assert not words or re.search(mentions(*words), errors[0])


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


PRIVATE = {
    "noise without clip": ("fedavg", ["noise=1"], ("noise", 1.0, "clip")),
    "epsilon without clip": ("fedavg", ["epsilon=8"], ("epsilon", 8.0, "clip")),
    "both": ("fedavg", ["noise=1", "epsilon=8", "clip=1"], ("epsilon", 8.0, "noise")),
    "negative": ("fedavg", ["noise=-1", "clip=1"], ("noise", -1.0)),
    "delta": ("fedavg", ["noise=1", "clip=1", "delta=2"], ("delta", 2.0)),
    "delta alone": ("fedavg", ["delta=0.01"], ("delta", 0.01, "noise")),
    "denominator alone": ("fedavg", ["denominator=fixed"], ("denominator", "fixed", "noise")),
    "rows": ("fedavg", ["noise=1", "clip=1", "weighting=rows"], ("weighting", "rows", "uniform")),
    "aggregator": ("fedavg", ["noise=1", "clip=1", "aggregator=median"], ("aggregator", "median", "mean")),
    "memory": ("fedavg", ["noise=1", "clip=1", "compress=topk:0.1", "error_feedback=true"], ("error_feedback",)),
    "min_sum": ("fedavg", ["noise=1", "clip=1", "min_sum=5"], ("min_sum", 5)),
    "availability": ("fedavg", ["noise=1", "clip=1", "availability=random"], ("availability", "random")),
    "assumed": ("fedavg", ["noise=1", "clip=1", "accounting=poisson-assumed", "sampler=poisson"], ("sampler",)),
    "stocfl": ("stocfl", ["noise=1", "clip=1"], ("noise", "stocfl", "Psi", "ifca")),
    "cfl": ("cfl", ["epsilon=8", "clip=1"], ("epsilon", "cfl", "sketch")),
    "pacfl": ("pacfl", ["noise=1", "clip=1"], ("noise", "pacfl", "singular vectors")),
    "kmeans++": ("ifca", ["noise=1", "clip=1", "start=kmeans++"], ("noise", "kmeans++", "ifca")),
    "no wire": ("local", ["noise=1", "clip=1"], ("clip", "local")),
}


@pytest.mark.parametrize("name", PRIVATE)
def test_wrong_privacy_is_refused_in_one_line_before_anything_is_loaded(name):
    method, items, words = PRIVATE[name]
    call = ["run", method, "--data", "rotated-mnist", "--rounds", "1", "--data-dir", "nowhere"]
    result = CliRunner().invoke(app, [*call, *(word for item in items for word in ("--set", item))])
    assert result.exit_code != 0
    with pytest.raises(ValueError, match=mentions(*words)):
        options.privacy(options.route(method, "rotated-mnist", items))


@pytest.mark.slow
def test_runs_of_several_epsilons_share_a_program_and_tell_them(tmp_path, capsys):
    given = {"num_clients": 40, "rows_per_client": 20, "model": "logistic", "rounds": 2, "cohort": 10, "clip": 0.5}
    small = {**given, "local_epochs": 1, "delta": 0.01}
    first = jaxfl.run_named("fedavg", "rotated-digits", **small, epsilon=8.0, out=tmp_path / "eight")
    other = jaxfl.run_named("fedavg", "rotated-digits", **small, epsilon=2.0, out=tmp_path / "two")
    assert other.summary["compile_seconds"] < first.summary["compile_seconds"]
    assert first.summary["noise"] < other.summary["noise"] and other.summary["epsilon"] == pytest.approx(2, rel=1e-4)
    assert other.summary["sampling"].startswith("poisson(0.25")
    (line,) = tables.privacy_lines([other.summary])
    assert re.search(mentions("epsilon", "2.00", "0.01", "poisson", "evaluations", "tuning"), line)
    found = compare({"eight": [first], "two": [other]})
    shown = found.table()
    assert [row[shown[0].index("epsilon")] for row in shown[1:]] == ["8.00", "2.00"]
    assert {"smallest sum", "MB up"} <= set(shown[0]) and "epsilon" in found.to_latex()
    assumed = other._replace(summary=other.summary | {"sampling": "poisson-assumed"})
    assert "2.00 (poisson-assumed)" in compare({"two": [assumed]}).to_markdown()
    assert "poisson-assumed" in tables.privacy_lines([assumed.summary])[0]


@pytest.mark.parametrize(("method", "listed"), [("ifca", True), ("stocfl", False)])
def test_the_page_of_a_method_lists_privacy_where_it_takes_it(method, listed):
    shown = CliRunner().invoke(app, ["methods", method]).stdout
    assert [f"\n{name}" in shown for name in ("noise", "epsilon", "delta", "accounting")] == [listed] * 4
    assert "\nclip" in shown
