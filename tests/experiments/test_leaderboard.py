"""The leaderboard: what is chosen, what counts under the budget, and that its runs are those of their commands."""

import doctest
import json
import math
import re

import numpy as np
import pytest

from docs.generate import advice
from docs.generate import leaderboard as pages
from experiments.harness import results
from experiments.leaderboard import __main__, federations, pictures, play, rows, table
from experiments.leaderboard.federations import FEDERATIONS, SEEDS, SMOKE
from experiments.leaderboard.rows import Row, row
from jaxfl.jobs import job
from jaxfl.methods import METHODS
from jaxfl.schema import function_options
from jaxfl.settings import options
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=4)


@pytest.mark.parametrize("module", [federations, pictures, play, rows, table], ids=lambda one: one.__name__)
def test_doctests(module):
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).failed == 0


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """FedAvg and IFCA on the smoke federation; the folder of the results."""
    folder = tmp_path_factory.mktemp("leaderboard")
    assert __main__.main(["--smoke", "--out", str(folder)]) == 0
    return folder


def test_smoke_makes_nothing_twice(smoke, capsys):
    before = (smoke / "smoke.jsonl").read_bytes()
    assert len(before.splitlines()) == 4 + 4 + 3 + 4  # learning rates, and four more seeds of one
    assert __main__.main(["--smoke", "--out", str(smoke)]) == 0
    assert (smoke / "smoke.jsonl").read_bytes() == before and capsys.readouterr().out == ""
    assert {one.row for one in table.standings(SMOKE, smoke)} == {"fedavg", "ifca"}
    (told,) = table.standings(SMOKE, smoke, "given")
    assert {line["value"] for line in told.lines} == {SMOKE.groups} and [line["seed"] for line in told.lines] == [
        *SEEDS
    ]


@pytest.mark.slow
def test_a_number_is_what_its_command_makes(smoke):
    """The learning rate reaches the shared program as a number, and rows are added to the lists of smaller seeds."""
    one = next(one for one in table.standings(SMOKE, smoke) if one.row == "fedavg").lines[1]
    found = play.cell(SMOKE, row("fedavg"), None, one["rate"]).job(one["seed"])
    assert f"learning_rate={one['rate']}" in one["command"] and f"--rounds {found.rounds} " in one["command"]
    federation = options.load(found.settings, seed=one["seed"])
    summary = job.execute(found, federation).summary
    # a test row whose two largest outputs are nearly the same may be rounded to the other class
    assert federation.held_out is not None
    rows_tested = int(np.sum(federation.test.size[~federation.held_out]))
    assert abs(one["numbers"]["micro"] - summary["micro_accuracy"]) <= 1 / rows_tested
    assert one["numbers"]["validation"] == pytest.approx(summary["validation_micro_accuracy"], abs=0.05)


def test_bytes_end_a_run_of_many_models_earlier(smoke):
    lines = results.read(smoke / "smoke.jsonl")
    spent = {(one["row"], one["value"], one["numbers"]["round"]): one["numbers"]["bytes"] for one in lines}
    budget = spent["fedavg", None, SMOKE.rounds]
    assert max(spent.values()) == budget
    assert [key for key in spent if key[0] == "ifca"] == [("ifca", 4, 1)]  # 2 / (1 + K) of four rounds, whole ones
    assert play.moment([{"round": 4, "bytes_up": 9.0, "bytes_down": 9.0}], 2.0, 8) is None


def test_a_budget_is_counted_in_whole_rounds():
    """Less than half a round more is let through, of bytes as of passes; those beside the rounds count too."""
    sent = [{"round": round, "bytes_up": 0.4 + round, "bytes_down": round} for round in (4, 6)]
    assert play.moment(sent, 2.0, 6) == sent[1] and play.moment(sent, 2.0, 6, before=0.49) == sent[1]
    assert play.moment(sent, 2.0, 6, before=0.5) == sent[0] and play.moment(sent, 1.9, 6) == sent[0]
    assert play.moment(sent, 2.0, 6, times=1.05) == sent[1] and play.moment(sent, 2.0, 6, times=1.1) == sent[0]
    on = federations.federation("rotated")
    trained = {one.method: rows.passes_once(one, on) for one in rows.rows(on)}
    more = {"fedgroup", "kfed", "robust", "fedbabu"}
    once = {"fesem", "fesem_ma", "wecfl", "fesem_cam", "wecfl_cam", "fedavg_ft", "fedprox_ft", "feddbe"}
    assert {name for name, times in trained.items() if times == 2.5} == more
    assert {name for name, times in trained.items() if times == 1.0} == once
    assert sum(times > 0 for times in trained.values()) == len(more | once)


@pytest.mark.parametrize("on", FEDERATIONS, ids=lambda on: on.name)
def test_every_client_of_feddrift_may_begin_with_a_model_of_its_own(on):
    settings = play.cell(on, row("feddrift"), 0.1, on.rates[0]).job(0).settings
    assert settings.method["slots"] == settings.data["num_clients"]


def line(name, value, rate, seed, validation, micro, number=None):
    numbers = {"round": 4, "validation": validation, "micro": micro, "macro": micro, "worst": micro, "unseen": micro}
    numbers |= {"clusters": 2, "ari": 0.5, "bytes": 1e6, "seconds": 1.0}
    kept = None if math.isnan(validation) else numbers
    told = {"row": name, "number": number, "value": value, "rate": rate, "seed": seed, "command": "jaxfl run --seed 0"}
    return {"id": "", "configuration": {}, "processor_seconds": 1.0, **told, "numbers": kept, "same_rounds": kept}


def made(name, values, micro, sign, number=None):
    """Returns the lines of a method: of two rates the second has the better validation, at a third it diverged."""
    lines = [line(name, values[0], 0.1, 0, 0.5, 0.9, number), line(name, values[-1], 0.5, 0, math.nan, 0.9, number)]
    best = [line(name, values[-1], 0.3, seed, 0.5 + 0.1 * sign, micro + 0.01 * seed, number) for seed in SEEDS]
    return [*lines, *best]


@pytest.fixture
def results_of_two(tmp_path, monkeypatch):
    """Three methods on two federations, of one of which lower is better."""
    for on, sign in (("rotated", 1), ("ratings", -1)):
        lines = [*made("fedavg", [None], 0.5, sign), *made("ifca", [2, 4], 0.5 + 0.2 * sign, sign, "num_clusters")]
        lines += [*made("local", [None], 0.5 - 0.2 * sign, sign), line("ditto", 0.1, 0.1, 0, 0.5, 0.5)]
        text = "".join(json.dumps(one) + "\n" for one in lines)
        (tmp_path / f"{on}.jsonl").write_text(text, encoding="utf-8")
    monkeypatch.setattr(pages, "FOLDER", tmp_path)
    pages.table.cache_clear()
    yield tmp_path
    pages.table.cache_clear()


def test_validation_rows_choose_and_seeds_are_averaged(results_of_two):
    found = table.standings(federations.federation("rotated"), results_of_two)
    assert [one.row for one in found] == ["ifca", "fedavg", "local"]  # Ditto lacks seeds
    assert found[0].mean("micro") == pytest.approx(0.72) and found[0].lines[0]["value"] == 4
    assert found[0].std("micro") == pytest.approx(0.01 * math.sqrt(2.5))
    (told,) = table.standings(federations.federation("rotated"), results_of_two, "given")
    assert told.row == "ifca"
    ranked = table.mean_ranks(table.by_federation(results_of_two))
    assert ranked is not None
    assert (ranked.names, ranked.means, ranked.blocks) == (["ifca", "fedavg", "local"], [1.0, 2.0, 3.0], 2)


def test_who_diverges_at_a_seed_is_last_and_said_so(results_of_two, tmp_path):
    """FedAvg at the third of five seeds: of accuracies and of squared errors."""
    for name in ("rotated", "ratings"):
        path = tmp_path / f"{name}.jsonl"
        lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
        lines = [one | {"numbers": None} if (one["row"], one["seed"]) == ("fedavg", 2) else one for one in lines]
        path.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    own = table.by_federation(tmp_path)
    assert [[one.row for one in found] for found in own.values()] == [["ifca", "local", "fedavg"]] * 2
    assert own["rotated"][-1].diverged == 1 and own["rotated"][-1].mean("micro") is None
    ranked = table.mean_ranks(own)
    assert ranked is not None and ranked.names[-1] == "fedavg" and ranked.means[-1] == 3
    pages.table.cache_clear()
    assert "| `fedavg` | 1 of 5 diverged | 1 of 5 diverged | 3.0 |" in pages.unknown()
    assert "diverged" in [text.get_text() for text in pictures.heatmap({"chosen": own}).axes[0].texts]


def test_level_is_who_the_seeds_do_not_tell_apart_from_the_best():
    def one(row, *values):
        return table.Standing(row, [{"numbers": {"micro": value}} for value in values], ())

    best, near, far = one("a", 0.5, 0.6, 0.7), one("b", 0.4, 0.65, 0.7), one("c", 0.4, 0.49, 0.61)
    twin, without = one("d", 0.5, 0.6, 0.7), one("e", 0.9, None, 0.9)
    assert table.level([near, far, best, twin, without], lower=False) == (best, [near, twin])
    assert table.level([near, far, best], lower=True) == (far, [near])
    assert table.level([without], lower=False) is None


def test_pages_say_what_the_results_say(results_of_two, tmp_path):
    assert pages.state().startswith("So far: 2 of 8 federations, 0 of them with all")
    assert "| `ifca` | **72.0 ± 1.6 %** |" in pages.unknown()
    told = advice.advice()
    assert len(told.splitlines()) == 11 and "`ifca` (Rotated MNIST, 72.0 %" in told
    assert "It is ahead of `fedavg` on 2 of 2 federations" in told and "not, `ifca` (1.0), `fedavg` (2.0)" in told
    assert pages.edges().startswith("Of 6 choices, 0 have the lowest or highest learning rate")
    assert "learning_rate=0.3" in pages.cells("rotated") and pages.cells("shifted").startswith("Not made.")
    figure = pictures.heatmap({count: table.by_federation(results_of_two, count) for count in pictures.TITLES})
    words = [text.get_text() for text in figure.axes[0].texts]
    assert words == ["72.0", "52.0", "32.0", "0.320", "0.520", "0.720"]  # a federation after the other
    assert [path.name for path in pictures.draw(results_of_two, tmp_path)] == [
        "leaderboard.png",
        "leaderboard-ranks.png",
    ]


def test_an_edge_of_the_rates_is_left_by_further_ones(smoke):
    """The best rate has a lower and a higher one with the same number, or there are as many as are tried at most."""
    lines = [one for one in results.read(smoke / "smoke.jsonl") if one["seed"] == 0 and one["row"] == "fedavg"]
    tried, best = [one["rate"] for one in lines], table.best(lines, SMOKE)
    assert best is not None and tried[:2] == list(SMOKE.rates)
    assert len(tried) == play.MOST_RATES or min(tried) < best["rate"] < max(tried)
    assert not next(one for one in table.standings(SMOKE, smoke) if one.row == "fedavg").edges
    assert play.further(1.0, [0.1]) is None and play.further(0.005, [0.02, 0.005, 0.08]) == 0.001
    assert play.further(7.0, [1.0, 2.0, 3.0, 4.0, 5.0, 7.0]) is None  # as many as are tried at most


def test_an_edge_of_the_numbers_is_left_by_further_ones(tmp_path, monkeypatch):
    """Ditto, best at a pull of 0.02: every rate is tried with the next number, until one is worse."""
    on, made = federations.federation("rotated"), []

    def one(_, row, value, rate, seed):
        made.append((value, rate, seed))
        return line(row.name, value, rate, seed, -abs(math.log(value / 0.02)) - abs(rate - 0.3), 0.5)

    monkeypatch.setattr(play.Player, "_made", one)
    ditto = row("ditto")
    play.Player(on, tmp_path, None, print).enter(ditto)
    values = list(dict.fromkeys(value for value, _, _ in made))
    assert values == [*ditto.grid, 0.03, 0.01] and made[-4:] == [(0.03, 0.3, seed) for seed in SEEDS[1:]]
    assert all({rate for value, rate, _ in made if value == tried} == set(on.rates) for tried in values)
    texts = federations.federation("fortunes")
    assert rows.next_value(ditto, texts, 0.003, (0.003, 0.009, 0.03)) == 0.0009  # weaker there, as the grid is
    assert rows.next_value(ditto, on, 10.0, (3.0, 10.0)) is rows.next_value(ditto, on, 0.3, ditto.grid) is None
    assert rows.next_value(row("ifca"), on, 8, (2, 4, 8)) is None  # three numbers, of which one is true
    assert rows.next_value(row("ifca"), federations.federation("cifar10"), 8, (2, 4, 8)) == 16


def test_the_true_number_is_given_or_withheld(results_of_two, tmp_path):
    """Of three rotations' numbers the true one, 4, is best on validation rows; without it, 8 is."""
    on = federations.federation("rotated")
    lines = [line("ifca", 8, 0.3, seed, 0.55, 0.6 + 0.01 * seed, "num_clusters") for seed in SEEDS]
    with (tmp_path / "rotated.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(one) + "\n" for one in lines)
    found = {count: table.standings(on, results_of_two, count) for count in pictures.TITLES}
    values = {count: {one.row: one.lines[0]["value"] for one in own} for count, own in found.items()}
    assert values == {
        "chosen": {"ifca": 4, "fedavg": None, "local": None},
        "given": {"ifca": 4},
        "withheld": {"ifca": 8},
    }
    assert table.standings(federations.federation("cifar10"), results_of_two, "withheld") == []
    pages.table.cache_clear()
    assert "| `ifca` | **62.0 ± 1.6 %** |" in pages.withheld()
    advice.ranks_without.cache_clear()
    assert "into groups: `ifca` 10.0; at most 10.0, by `ifca` on Rotated MNIST" in advice.loss()
    advice.ranks_without.cache_clear()


def test_ranks_share_ties_and_friedman_needs_blocks():
    found = table.ranks([{"a": 3.0, "b": 2.0, "c": 2.0}] * 6, lower=[False] * 6)
    assert (found.names[0], found.means) == ("a", [1.0, 2.5, 2.5])
    # Friedman's statistic of six equal blocks, with its correction for ties, is 12; chi-squared with two degrees
    assert found.p == pytest.approx(math.exp(-6))
    assert found.difference == pytest.approx(2.3437 * math.sqrt(3 * 4 / (6 * 6)), abs=1e-4)  # Demsar: 2.343
    assert table.ranks([{"a": 3.0, "b": 2.0}], lower=[False]).p is None


def test_methods_stand_in_the_order_of_their_mean_ranks():
    """By mean places, `a` (0, 1, 1) would stand before `b` (3, 0, 0), though `b` is twice ahead of it."""

    def standings(*names):
        lines = [[{"numbers": {"micro": -float(place)}}] * len(SEEDS) for place in range(len(names))]
        return [table.Standing(name, own, ()) for name, own in zip(names, lines, strict=True)]

    own = {"rotated": standings("a", "x", "y", "b"), "shifted": standings("b", "a", "z")}
    own["pathological"] = own["shifted"]
    ranked = table.mean_ranks(own)
    assert ranked is not None and ranked.names == ["b", "a"]
    assert table.order(own) == ["b", "x", "a", "y", "z"]


def test_every_method_has_a_row_and_every_cell_can_be():
    assert [one.method for one in rows.rows()] == [name for name in METHODS if name not in rows.ABSENT]
    own = {one.method for one in rows.ROWS}
    assert len(own) == len(rows.ROWS) and own <= set(METHODS)
    for one in rows.ROWS:
        words = any(isinstance(value, str) for value in one.grid)  # nothing is beyond them
        assert bool(one.beyond) == (one.number is not None and not one.counts and not words)
        assert not one.grid or not set(one.beyond) & set(one.grid) or one.elsewhere
        known = function_options(METHODS[one.method].factory).get(rows.PULL)
        preset = METHODS[one.method].presets.get("paper", {}).get(rows.PULL)
        given = one.number == rows.PULL or any(item.startswith(rows.PULL) for item in one.items)
        assert one.pull == (None if known is None or given else known.default or preset or None)
    every = {one.method for one in rows.rows()}
    for name, absent in rows.ABSENT_FROM.items():
        there = {one.method for one in rows.rows(federations.federation(name))}
        assert set(absent) <= every and there == every - set(absent)
    for on in FEDERATIONS:
        assert on.more_counts if on.groups is None else on.groups in on.counts and not on.more_counts
        for one in rows.rows(on):
            words = play.cell(on, one, rows.values(one, on)[-1], on.rates[0]).command(0)
            assert words.startswith(f"jaxfl run {one.method} --data {on.data} --data-dir DIR")


def test_a_newcomer_joins_by_one_row(tmp_path):
    path = tmp_path / "my.py"
    path.write_text("from jaxfl.methods import fedprox as factory\n", encoding="utf-8")
    one = __main__._row(f"{path}:factory", "proximal_weight=0.1,1")
    assert (one.name, rows.values(one, SMOKE), one.apart) == ("my.py:factory", (0.1, 1), True)
    assert play.cell(SMOKE, one, 1, 0.1).job(0).settings.method["proximal_weight"] == 1.0
    with pytest.raises(ValueError, match=mentions("option", "weight")):
        play.cell(SMOKE, Row(f"{path}:factory", "weight"), 1, 0.1)


def test_failures_are_kept_and_stop_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(play.jobs, "execute", lambda *_, **__: 1 / 0)
    said = []
    assert play.play(SMOKE, [row("fedavg")], tmp_path, None, said.append) == 2
    assert "failed, ZeroDivisionError" in said[0] and not (tmp_path / "smoke.jsonl").exists()
    assert len(results.read(tmp_path / results.FAILURES)) == 2


def test_data_that_are_not_there_are_told_of_once(tmp_path):
    said, mnist = [], federations.federation("rotated")
    assert play.play(mnist, [row("fedavg"), row("ditto")], tmp_path, str(tmp_path), said.append) == 1
    assert len(said) == 1 and said[0].startswith("Rotated MNIST: mnist needs ") and not any(tmp_path.iterdir())


def test_a_newcomer_is_told_its_place_and_drawn_beside_all(results_of_two, tmp_path, monkeypatch):
    own, drawn = tmp_path / "own", []
    own.mkdir()
    lines = [line("mine.py:mine", None, 0.3, seed, 0.6, 0.6 + 0.01 * seed) for seed in SEEDS]
    (own / "rotated.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    monkeypatch.setattr(__main__, "FOLDER", results_of_two)
    on = federations.federation("rotated")
    wanted = "Rotated MNIST: mine.py:mine has place 2 of 4, accuracy 0.6200; the first is ifca."
    assert __main__.place(on, "mine.py:mine", own) == wanted
    assert "has not been made at every seed" in __main__.place(on, "ditto", own)
    monkeypatch.setattr(pictures, "heatmap", lambda tables: drawn.append(tables) or pictures.style.figure((1, 1)))
    before = {path: path.read_bytes() for path in pictures.IMAGES.glob("leaderboard*.png")}
    assert __main__.main(["--out", str(own)]) == 0
    assert [one.row for one in drawn[0]["chosen"]["rotated"]] == ["ifca", "mine.py:mine", "fedavg", "local"]
    assert (own / "leaderboard.png").exists() and before == {path: path.read_bytes() for path in before}


@pytest.mark.parametrize(("name", "words"), [("leaderboard-ranks.png", []), ("rotated.jsonl", ["rotated"])])
def test_files_of_something_else_are_neither_drawn_over_nor_added_to(name, words, tmp_path, capsys):
    (tmp_path / name).write_text("mine\n")
    with pytest.raises(SystemExit):
        __main__.main([*words, "--out", str(tmp_path)])
    assert re.search(mentions("out", name), " ".join(capsys.readouterr().err.split()))
    assert [one.name for one in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == "mine\n"
