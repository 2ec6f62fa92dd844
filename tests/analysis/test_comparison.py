"""Runs beside each other: read from directories, named, compared at equal seeds, written as tables."""

import json
import math
import os
import re
import shutil
from types import SimpleNamespace

import numpy as np
import optax
import pandas
import pytest
from rich.console import Console
from scipy import stats

import jaxfl
from jaxfl.analysis import finished
from jaxfl.analysis.comparison import compare, compare_by_data, holm, mean_cell, paired
from jaxfl.cli.app import main
from jaxfl.cli.tables.console import print_table
from jaxfl.jobs import job
from jaxfl.jobs.job import Job
from jaxfl.plots.curves import curves
from jaxfl.settings import options
from jaxfl.simulation.records.history import History
from tests.messages import mentions

FILES = ("config.json", "summary.json")
FEDAVG, STOCFL = (0.60, 0.64, 0.62), (0.90, 0.93, 0.89)


def record(round, accuracy):
    return {"round": round, "micro_accuracy": accuracy, "bytes_up": 1e9 * round, "bytes_down": 2e9 * round}


def write(folder, seed, accuracy, method="fedavg", complete=None, data="digits", fingerprint="one", **options):
    """Writes what a run of 10 rounds leaves: half of its accuracy at the fifth."""
    config = {**(complete or {}), **options}
    options = {name: value for name, value in config.items() if name not in ("method", "data")}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    summary = {"method": method, "data": data, "seed": seed, "rounds": 10, "cohort": 5, "options": options}
    summary |= {} if fingerprint is None else {"fingerprint": f"{data}-{fingerprint}-{seed}"}
    summary |= {"micro_accuracy": accuracy, "macro_accuracy": accuracy, "num_clusters": 4, "seconds_per_round": 0.5}
    (folder / "summary.json").write_text(json.dumps(summary))
    lines = [record(5, accuracy / 2), record(10, accuracy)]
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def runs(tmp_path):
    """Two methods of three seeds, and what `--seeds` writes beside them: a summary of all, which is no run."""
    for method, accuracies in {"fedavg": FEDAVG, "stocfl": STOCFL}.items():
        for seed, accuracy in enumerate(accuracies):
            write(tmp_path / method / f"seed-{seed}", seed, accuracy, method)
        (tmp_path / method / "summary.json").write_text("{}")
    return tmp_path


def test_seeds_are_one_setting(runs):
    settings, unfinished = finished.read_runs([runs, runs / "stocfl"])  # a folder twice is read once
    assert {name: [run.seed for run in found] for name, found in settings.items()} == {
        "fedavg": [0, 1, 2],
        "stocfl": [0, 1, 2],
    }
    assert unfinished == []


def test_a_run_from_before_an_option_is_of_the_setting_that_has_its_default(tmp_path):
    """An option that a new version brings has, by default, the meaning of its absence."""
    whole = options.route("ifca", "rotated-digits", ["num_clusters=3"]).complete()
    before = {name: value for name, value in whole.items() if name not in ("method.shared", "run.compute")}
    assert len(before) == len(whole) - 2
    for seed, given in enumerate([whole, before, {**before, "run.compute": "bfloat16"}]):
        write(tmp_path / str(seed), seed, 0.5, "ifca", given)
    found = {name: [run.seed for run in same] for name, same in finished.read_runs([tmp_path])[0].items()}
    assert found == {"ifca compute=float32": [0, 1], "ifca compute=bfloat16": [2]}


def test_the_first_folder_is_the_first_row(runs):
    settings, _ = finished.read_runs([runs / "stocfl", runs])
    assert list(settings) == ["stocfl", "fedavg"]


def test_differences_are_paired(runs):
    found = compare(finished.read_runs([runs])[0])
    difference = found.difference(found.lines[1])
    apart = np.subtract(STOCFL, FEDAVG)
    assert difference.mean == pytest.approx(apart.mean())
    assert difference.std == pytest.approx(apart.std(ddof=1))
    assert difference.p == pytest.approx(stats.ttest_rel(STOCFL, FEDAVG).pvalue)


@pytest.mark.parametrize("ahead", [0.02, 0.0])
def test_differences_that_are_equal_but_for_rounding_have_no_p(ahead):
    found = paired([(base + ahead, base) for base in (0.8, 0.9, 0.7, 0.35)])
    assert found.mean == pytest.approx(ahead) and found.p is None
    cut = [tuple(float(f"{value / 0.9:.6g}") for value in (base + ahead, base)) for base in (0.8, 0.9, 0.7, 0.35)]
    assert paired(cut, 6).p is None, "nor where the numbers were rounded before"
    assert paired([(0.970001, 0.96), (0.970011, 0.96), (0.97, 0.96)], 6).p is None
    assert paired([(0.97002, 0.96), (0.97, 0.96), (0.97, 0.96)], 6).p < 1e-4
    assert paired([(1e9 + 2.0, 1e9), (2e9 + 1.0, 2e9)]).p == pytest.approx(stats.ttest_1samp([2.0, 1.0], 0).pvalue)


@pytest.mark.parametrize("best", [0.29, 0.57, 0.58, 0.0, 1.0])
def test_a_whole_percent_that_is_reached_is_the_target(tmp_path, best):
    write(tmp_path / "a", 0, best)
    assert compare(finished.read_runs([tmp_path])[0]).target == (best or None)


@pytest.mark.parametrize("fingerprint", ["other", "an-one"])
def test_federations_that_differ_for_one_seed_alone_are_not_paired(runs, fingerprint):
    """Also where the ends of their fingerprints, by which they are named, are equal."""
    shutil.rmtree(runs / "stocfl" / "seed-2")
    write(runs / "stocfl" / "seed-2", 2, 0.89, "stocfl", fingerprint=fingerprint)
    found = compare(finished.read_runs([runs])[0])
    assert len(found.data) == 2 and found.differences() == {}
    assert len(compare_by_data(finished.read_runs([runs], by_data=True)[0]).table()[0]) == 3


def test_a_mean_of_fewer_seeds_than_others_says_so_where_no_column_does(runs):
    shutil.rmtree(runs / "stocfl" / "seed-2")
    _, fedavg, stocfl = (compare_by_data(finished.read_runs([runs], by_data=True)[0])).table()
    assert "(n=2)" in stocfl[1] and "n=" not in fedavg[1]


def test_runs_that_were_ended_early_are_of_one_setting(tmp_path):
    for seed in range(3):
        write(tmp_path / f"seed-{seed}", seed, 0.5)
        (tmp_path / f"seed-{seed}" / "config.json").write_text(json.dumps({"rounds": 10}))
        summary = json.loads((tmp_path / f"seed-{seed}" / "summary.json").read_text())
        (tmp_path / f"seed-{seed}" / "summary.json").write_text(json.dumps(summary | {"rounds": 10 - seed}))
        lines = [record(5, 0.25), record(10 - seed, 0.5)]
        (tmp_path / f"seed-{seed}" / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    best = tmp_path / "seed-0" / "best"
    best.mkdir()
    (best / "history.jsonl").write_text((tmp_path / "seed-0" / "history.jsonl").read_text())
    settings, unfinished = finished.read_runs([tmp_path])
    assert [len(same) for same in settings.values()] == [3] and not unfinished
    shutil.copy(tmp_path / "seed-0" / "summary.json", best)  # somebody went on from it
    settings, unfinished = finished.read_runs([tmp_path])
    assert [len(same) for same in settings.values()] == [3] and not unfinished
    assert [len(same) for same in finished.read_runs([best])[0].values()] == [1], "unless it is asked for itself"


def test_a_run_that_was_given_more_rounds_is_not_finished_until_it_has_made_them(runs):
    extended = runs / "fedavg" / "seed-1"
    with (extended / "history.jsonl").open("a") as file:
        file.write(json.dumps(record(64, 0.99)) + "\n")
    settings, unfinished = finished.read_runs([runs])
    assert [run.seed for run in settings["fedavg"]] == [0, 2] and unfinished == [extended]
    with pytest.raises(ValueError, match=mentions("1 are not finished", "--resume")):
        finished.read_runs([extended])


def test_names_of_settings_break_no_table(tmp_path):
    for seed, name in enumerate(("a|b", "c")):
        write(tmp_path / name.replace("|", ""), seed, 0.5, name)
    found = compare(finished.read_runs([tmp_path])[0])
    lines = [line.replace("\\|", "") for line in found.to_markdown().splitlines()]
    assert len({line.count("|") for line in lines}) == 1
    for function in (compare, compare_by_data):
        with pytest.raises(ValueError, match=mentions("settings", "none")):
            function({})


def test_only_common_seeds_are_paired(runs):
    write(runs / "more" / "a", 2, 0.7, "ifca")
    write(runs / "more" / "b", 9, 0.8, "ifca")
    write(runs / "other", 9, 0.8, "local")
    found = compare(finished.read_runs([runs / "fedavg", runs / "more", runs / "other"])[0])
    assert found.difference(found.lines[1]) == pytest.approx((0.7 - FEDAVG[2], None, None, 1, None))
    assert found.difference(found.lines[2]) is None
    assert [row[-2:] for row in found.table()[2:]] == [["+8.00", ""], ["no common seed", ""]]


def test_costs_are_counted_to_what_all_reach(runs):
    """0.60 is the best of the worst run; of StoCFL's, the second alone is above 0.46 in round 5."""
    found = compare(finished.read_runs([runs])[0])
    assert found.target == 0.6
    header, *rows = found.table()
    place = header.index("rounds to 60 %")
    assert [row[place : place + 2] for row in rows] == [["10.0", "30.00"]] * 2
    early = compare(finished.read_runs([runs])[0], target=0.46)
    assert early.lines[1].reached(0.46, ("round",)) == [10, 5, 10]
    assert early.table()[2][place : place + 2] == ["8.3", "25.00"]
    assert [row[place] for row in compare(finished.read_runs([runs / "fedavg" / "seed-0"])[0]).table()[1:]] == ["10"]
    history = runs / "stocfl" / "seed-1" / "history.jsonl"
    history.write_text(re.sub('"bytes_up": [^,]*', '"bytes_up": null', history.read_text()))
    assert [row[place + 1] for row in compare(finished.read_runs([runs])[0]).table()[1:]] == ["30.00", "-"]
    history.write_text(re.sub('"bytes_up": null, ', "", history.read_text()))
    assert [row[place + 1] for row in compare(finished.read_runs([runs])[0]).table()[1:]] == ["30.00", "-"]
    never = compare(finished.read_runs([runs])[0], target=0.95)
    assert never.table()[1][place : place + 2] == ["-", "-"]


def test_what_was_sent_is_in_units_that_say_something(runs):
    """15 GB until round 5; the same runs with a thousandth of the bytes, and of these."""
    for size, unit in ((1, "GB"), (1e-3, "MB"), (1e-3, "kB")):
        for file in runs.glob("*/*/history.jsonl"):
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            lines = [line | {name: size * line[name] for name in ("bytes_up", "bytes_down")} for line in lines]
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        header, *rows = compare(finished.read_runs([runs])[0], target=0.3).table()
        place = header.index(f"{unit} until then")
        assert [row[place] for row in rows] == ["15.00", "15.00"]


def test_names_tell_settings_apart(tmp_path):
    """Options of a method where its own runs differ; speed is no part of a setting."""
    write(tmp_path / "a", 0, 0.5, "stocfl", **{"method.threshold": 0.3, "optimizer.learning_rate": 0.1})
    write(tmp_path / "b", 0, 0.5, "stocfl", **{"method.threshold": "auto", "optimizer.learning_rate": 0.1})
    write(tmp_path / "c", 0, 0.5, "fedavg", **{"optimizer.learning_rate": 0.2, "run.chunk": 4})
    write(tmp_path / "d", 1, 0.5, "fedavg", **{"optimizer.learning_rate": 0.2, "run.chunk": 8})
    assert list(finished.read_runs([tmp_path])[0]) == [
        "stocfl threshold=0.3 learning_rate=0.1",
        "stocfl threshold=auto learning_rate=0.1",
        "fedavg learning_rate=0.2",
    ]


BACKDOOR = {"data.attack": "backdoor", "data.attackers": 0.2, "data.attack_target": 0}


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (  # 0 is a value as any other, and none of a run without attackers
            [{"data.attack": None, "data.attack_target": 0}, BACKDOOR, BACKDOOR | {"data.attack_target": 3}],
            ["", " attack=backdoor attackers=0.2 attack_target=0", " attack=backdoor attackers=0.2 attack_target=3"],
        ),
        (
            [{"data.attack": "ipm", "data.attack_target": 0}, BACKDOOR | {"data.attack_target": 3}],
            [" attack=ipm", " attack=backdoor attackers=0.2 attack_target=3"],
        ),
        (
            [{"data.attack": "label-flip", "data.attack_scale": 1.0}, {"data.attack": "ipm", "data.attack_scale": 4.0}],
            [" attack=label-flip", " attack=ipm attack_scale=4.0"],
        ),
        (
            [{"run.finetune": epochs, "run.finetune_pull": 0.0 if epochs is None else 0.5} for epochs in (None, 1)],
            ["", " finetune=1 finetune_pull=0.5"],
        ),
        (
            [
                {"run.availability": pattern, "run.availability_period": period}
                for pattern, period in (("always", 24.0), ("diurnal", 24.0), ("diurnal", 12.0))
            ],
            [
                " availability=always",
                " availability=diurnal availability_period=24.0",
                " availability=diurnal availability_period=12.0",
            ],
        ),
        (
            [{"run.compress": code, "run.error_feedback": held} for code, held in (("sign", False), ("sign", True))],
            [" error_feedback=false", " error_feedback=true"],
        ),
        (
            [
                {"run.noise": None, "run.epsilon": epsilon, "run.accounting": how}
                for epsilon, how in ((None, "poisson"), (8.0, "poisson"), (8.0, "poisson-assumed"))
            ],
            ["", " epsilon=8.0 accounting=poisson", " epsilon=8.0 accounting=poisson-assumed"],
        ),
        (  # of an older version, which did not refuse what does not count
            [{"data.attack": "label-flip", "data.attack_scale": scale} for scale in (1.0, 4.0)],
            [" attack_scale=1.0", " attack_scale=4.0"],
        ),
    ],
)
def test_names_have_the_options_that_count(settings, names):
    here = {"method": "fedavg", "data": "digits"}
    assert finished.setting_names([here | one for one in settings]) == [f"fedavg{name}" for name in names]


def test_a_file_is_told_by_its_content_where_that_has_changed(tmp_path):
    own = {"method": "mine.py:m", "data": "digits", "cohort": 5}
    old, new = own | {"method_checksum": "a"}, own | {"method_checksum": "b"}
    assert finished.setting_names([{"method": "fedavg", "data": "digits"}, old]) == ["fedavg", "mine.py:m cohort=5"]
    assert finished.setting_names([old, new]) == ["mine.py:m method_checksum=a", "mine.py:m method_checksum=b"]
    task = {"method": "fedavg", "data": "digits", "run.task": "mine.py:t", "task_checksum": "a"}
    assert finished.setting_names([task, task | {"run.task": "auto"}]) == ["fedavg task=mine.py:t", "fedavg task=auto"]


def test_files_hold_the_table(runs, capsys):
    files = {name: runs / name for name in ("t.md", "t.tex", "t.csv", "c.png")}
    write(runs / "odd", 0, 0.6, "local_&_co")
    options = ["--markdown", "t.md", "--latex", "t.tex", "--csv", "t.csv", "--plot", "c.png"]
    options = [str(files.get(one, one)) for one in options]
    (runs / "going").mkdir()
    (runs / "going" / "history.jsonl").write_text("")
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(runs), *options])
    assert ended.value.code == 0
    printed = capsys.readouterr()
    assert "90.67 ± 2.08" in printed.out
    assert "going" in printed.err
    assert "| **90.67 ± 2.08** |" in files["t.md"].read_text()
    tex = files["t.tex"].read_text()
    assert r"\textbf{90.67 $\pm$ 2.08}" in tex
    assert r"local\_\&\_co" in tex
    columns, body = tex.partition("tabular}{")[2].partition("}")[0], tex.partition(r"\toprule")[2]
    assert {line.replace(r"\&", "").count("&") + 1 for line in body.splitlines() if line.endswith(r"\\")} == {
        len(columns)
    }
    assert "0.9066" in files["t.csv"].read_text()
    assert files["c.png"].stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--plot", "curves"], ("--plot", "curves")),
        (["--csv", "y.csv", "--plot", "curves.xyz"], ("--plot", "curves.xyz")),
        (["--target", "85"], ("target", 85, "micro_accuracy", 0.85)),
        (["--latex", "."], ("--latex", "folder", "'.'")),
        (["--latex", "none/a.tex"], ("--latex", "none/a.tex")),
        (["--csv", "x", "--latex", "./x"], ("--csv", "x", "--latex")),
        (
            ["--columns", "micro,auc"],
            ("columns", "auc", "micro"),
        ),
        (["--columns", ","], ("columns", "none")),
        (["--by", "data", "--target", "0.5", "--markdown", "t.md"], ("--target", "0.5", "--csv", "--html")),
        (["--label", "ifca=IFCA"], ("--label", "ifca=IFCA", "ROW=TEXT")),
        (["--label", "stocfl= "], ("--label", "stocfl= ", "ROW=TEXT")),
        (["--label", "stocfl=fedavg"], ("--label", "fedavg")),
        (["--label", "stocfl=A", "--label", "stocfl=B"], ("--label", "stocfl", "'A'", "'B'")),
        (["--metric", "stocfl=macro", "--metric", "stocfl=micro"], ("--metric", "stocfl", "'macro'", "'micro'")),
    ],
)
def test_files_that_cannot_be_are_refused_before_anything_is_written(runs, capsys, monkeypatch, words, said):
    monkeypatch.chdir(runs)
    before = list(runs.iterdir())
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(runs), *words])
    told = capsys.readouterr()
    assert ended.value.code == 2 and re.search(mentions(*said), told.err) and not told.out
    assert list(runs.iterdir()) == before


def test_a_table_has_the_columns_that_are_asked_for(runs, capsys):
    """In their order, also those that would be left out; what a column says is the same."""
    header, *rows = compare(finished.read_runs([runs])[0], target=0.3).table("<b>{}</b>")
    asked = {"p": "p", "macro": "macro", "Micro": "micro", "bytes": "GB until then", "seconds": "s a round"}
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(runs), "--target", "0.3", "--columns", ",".join(asked), "--csv", str(runs / "t.csv")])
    assert ended.value.code == 0 and "clusters" not in capsys.readouterr().out
    assert "num_clusters mean" in (runs / "t.csv").read_text()  # which has all numbers
    few = compare(finished.read_runs([runs])[0], target=0.3, columns=[name.lower() for name in asked]).table(
        "<b>{}</b>"
    )
    assert few[0] == ["setting", *asked.values()]
    places = {title: header.index(title) for title in asked.values() if title != "macro"}
    for row, whole in zip(few[1:], rows, strict=True):
        assert {title: row[few[0].index(title)] for title in places} == {t: whole[at] for t, at in places.items()}
        assert row[0] == whole[0] and row[2] == row[3]  # the clients have equally many rows


def test_scores_of_clusters_without_groups_are_columns_where_a_run_has_them(runs):
    assert "silhouette" not in compare(finished.read_runs([runs])[0]).table()[0]
    for folder in (runs / "stocfl").glob("seed-*"):
        summary = json.loads((folder / "summary.json").read_text())
        summary |= {"silhouette": 0.25, "davies_bouldin": 1.5, "wasserstein_silhouette": None}
        (folder / "summary.json").write_text(json.dumps(summary))
    header, fedavg, stocfl = compare(finished.read_runs([runs])[0]).table("<b>{}</b>")
    places = [header.index(title) for title in ("silhouette", "Davies-Bouldin")]
    assert "Wasserstein" not in header and [fedavg[place] for place in places] == ["-", "-"]
    assert [stocfl[place].split()[0] for place in places] == ["0.250", "1.500"], "and not marked as the best"


def test_rows_are_called_by_their_labels(runs, capsys):
    """A method in all its rows, and one row whose name has an equals sign."""
    for rate in (0.1, 0.2):
        write(runs / f"mine-{rate}", 0, 0.7, "mine.py:m", **{"optimizer.learning_rate": rate})
    labels = ["--label", "mine.py:m=Ours_", "--label", "mine.py:m learning_rate=0.2=Ours, twice"]
    with pytest.raises(SystemExit) as ended:
        folders = [str(runs / name) for name in ("mine-0.1", "mine-0.2", "stocfl")]
        main(["compare", *folders, *labels, "--latex", str(runs / "t.tex"), "--html", str(runs / "page.html")])
    tex, page = ((runs / name).read_text(encoding="utf-8") for name in ("t.tex", "page.html"))
    assert ended.value.code == 0 and "mine.py" not in tex + page + capsys.readouterr().out
    rows = [line.partition(" & ")[0] for line in tex.splitlines() if " & " in line]
    assert rows[:3] == ["setting", r"Ours\_ learning\_rate=0.1", "Ours, twice"] and rows[3].startswith("stocfl")
    assert "<td>Ours, twice</td>" in page


@pytest.mark.parametrize("columns", [40, 60, 80, 120, None])
def test_a_table_loses_neither_numbers_nor_what_tells_rows_apart(tmp_path, capsys, columns):
    """In a terminal of so many columns, and in a file."""
    for seed in range(3):
        for rounds, accuracy in ((4, 0.51), (8, 0.92)):
            told = {"method.local_epochs": rounds, "optimizer.learning_rate": 0.1 * rounds}
            write(tmp_path / str(rounds) / str(seed), seed, accuracy + 0.01 * seed, **told)
    head, *rows = compare(finished.read_runs([tmp_path])[0]).table()
    print_table(Console(width=columns, force_terminal=columns is not None, color_system=None), head, rows, named=True)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= (columns or 200)
    told = " ".join(lines)
    assert "…" not in told
    for name, *cells in rows:
        assert all(told.count(word) >= sum(word in row[0] for row in rows) for word in name.split())
        assert all(any(cell in line for line in lines) for cell in cells)
    if columns is None:
        assert [line.split("  ")[0] for line in lines] == ["setting", *(row[0] for row in rows)]


def test_macro_is_left_out_where_it_is_the_same_but_for_rounding(runs):
    path = runs / "fedavg" / "seed-0" / "summary.json"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps(summary | {"macro_accuracy": summary["micro_accuracy"] * (1 + 1e-15)}))
    assert "macro" not in compare(finished.read_runs([runs])[0]).table()[0]
    path.write_text(json.dumps(summary | {"macro_accuracy": summary["micro_accuracy"] * 1.001}))
    assert "macro" in compare(finished.read_runs([runs])[0]).table()[0]


def test_a_page_tells_every_run(runs, capsys):
    (runs / "going").mkdir()
    (runs / "going" / "history.jsonl").write_text("")
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(runs), "--html", str(runs / "page.html")])
    assert ended.value.code == 0 and f"written: {runs / 'page.html'}" in capsys.readouterr().out
    page = (runs / "page.html").read_text(encoding="utf-8")
    for accuracy, method in [(one, "fedavg") for one in FEDAVG] + [(one, "stocfl") for one in STOCFL]:
        assert re.search(
            rf"<tr><td>{method}</td><td>\d</td><td>{accuracy:.4g}</td>.*{runs / method}/seed-\d</td>", page
        )
    assert "<td><b>90.67 ± 2.08</b></td>" in page and "<td>62.00 ± 2.00</td>" in page
    assert f"Left out because they are not finished: {runs / 'going'}." in page
    assert re.findall('src="[^"]{22}', page) == ['src="data:image/png;base64,'] and "href" not in page  # one file


def test_curves_have_a_line_and_a_band_for_each_setting(runs):
    axes = curves(compare(finished.read_runs([runs])[0], target=0.5)).axes[0]
    assert [line.get_ydata()[-1] for line in axes.lines[:2]] == pytest.approx([np.mean(FEDAVG), np.mean(STOCFL)])
    assert len(axes.collections) == 2


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "fedavg/seed-0/summary.json").unlink(), None),
        (
            lambda folder: [(folder / f"fedavg/seed-{s}/summary.json").unlink() for s in range(3)],
            ("3 are not finished", "--resume"),
        ),
        (lambda folder: write(folder / "fedavg/again", 0, 0.5), ("fedavg/again", "fedavg/seed-0")),
    ],
)
def test_what_is_no_run_is_refused(runs, spoil, said):
    spoil(runs)
    if said is None:
        settings, unfinished = finished.read_runs([runs / "fedavg"])
        assert [run.seed for run in settings["fedavg"]] == [1, 2]
        assert unfinished == [runs / "fedavg" / "seed-0"]
        return
    with pytest.raises(ValueError, match=mentions(*said)):
        finished.read_runs([runs / "fedavg"])


HUGE, DEEP = "1" + "0" * 400, "[" * 500 + "]" * 500


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("summary.json", "{}", ("summary", "method")),
        ("summary.json", "{", ("JSON",)),
        ("summary.json", '{"options": []}', ("options", "a list")),
        ("summary.json", '{"seed": "0"}', ("seed", "0")),
        ("summary.json", '{"rounds": 10.5}', ("rounds", 10.5)),
        ("summary.json", '{"micro_accuracy": [0.5]}', ("micro_accuracy", "a list")),
        ("summary.json", '{"seconds_per_round": true}', ("seconds_per_round", "true")),
        ("summary.json", '{"lower_is_better": 3}', ("lower_is_better", 3)),
        ("summary.json", '{"test_rows": [5]}', ("test_rows", "a list")),
        ("summary.json", '{"lower_is_better": ["loss", []]}', ("lower_is_better",)),
        ("summary.json", '{"epsilon": "8"}', ("epsilon", "8")),
        ("summary.json", '{"smallest_sum": {}}', ("smallest_sum", "an object")),
        ("summary.json", '{"versions": ["jax"]}', ("versions", "a list")),
        ("summary.json", '{"drift_round": [1]}', ("drift_round", "a list")),
        ("summary.json", '{"sampler": ["uniform"]}', ("sampler", "a list")),
        ("summary.json", '{"seeds": [0]}', ("summary", "method")),
        ("summary.json", f'{{"cohort": {HUGE}}}', ("64 bits",)),
        ("summary.json", f'{{"versions": {DEEP}}}', ("deep",)),
        ("summary.json", '{"seeds": [0], "rounds": {}}', ("rounds", "an object")),
        ("config.json", '{"rounds": "ten"}', ("rounds", "ten")),
        ("config.json", '{"seeds": [0], "rounds": "ten"}', ("rounds", "ten")),
        ("config.json", '{"method": ["fedavg"]}', ("method", "a list")),
        ("config.json", '{"model": {}}', ("model", "an object")),
        ("config.json", '{"method_file": 3}', ("method_file", 3)),
        ("config.json", "[]", ("object", "list")),
        ("history.jsonl", '{"round": 5.5}\n', ("round", 5.5)),
        ("history.jsonl", '{"round": true}\n', ("round", "true")),
        ("history.jsonl", '{"round": 5, "micro_accuracy": "high"}\n', ("micro_accuracy", "high")),
        ("history.jsonl", '{"round": 5, "bytes_up": {}}\n', ("bytes_up", "an object")),
        ("history.jsonl", '{"round": 5, "clusters": [3]}\n', ("clusters", 3)),
        ("history.jsonl", f'{{"round": 5, "bytes_up": {HUGE}}}\n', ("64 bits",)),
        ("history.jsonl", f'{{"round": 5, "clusters": {DEEP}}}\n', ("deep",)),
    ],
)
def test_a_bad_folder_is_named_and_ends_no_comparison_of_the_others(runs, name, content, message):
    path = runs / "fedavg" / "seed-0" / name
    if name == "summary.json" and content.startswith('{"'):  # one entry of a good one is replaced
        content = json.dumps(json.loads(path.read_text()))[:-1] + ", " + content[1:]
    path.write_text(content)
    with pytest.warns(UserWarning, match=mentions(path, *message)):
        settings, _ = finished.read_runs([runs])
    assert {name: [run.seed for run in same] for name, same in settings.items()} == {
        "fedavg": [1, 2],
        "stocfl": [0, 1, 2],
    }
    assert len(compare(settings).table()) == 3
    with pytest.raises(ValueError, match=mentions(path, *message)):
        finished.read_runs([path.parent])


def test_a_folder_that_is_removed_meanwhile_ends_no_comparison(runs, monkeypatch):
    """As by another process of the sweep that is compared."""
    (runs / "gone" / "seed-0").mkdir(parents=True)
    scan = os.scandir

    def scan_late(path):
        if str(path) == str(runs / "gone"):
            shutil.rmtree(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scan_late)
    assert sorted(finished.read_runs([runs])[0]) == ["fedavg", "stocfl"]
    assert not (runs / "gone").exists()


@pytest.mark.parametrize("name", ["summary.json", "config.json", "history.jsonl", "clusters.jsonl"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file_is_not_waited_for(name, make, runs):
    path = runs / "fedavg" / "seed-0" / name
    path.unlink(missing_ok=True)
    make(path)
    if name == "clusters.jsonl":  # read where they are drawn
        settings, _ = finished.read_runs([runs])
        with pytest.raises(ValueError, match=mentions(path)):
            _ = settings["fedavg"][0].history.clusters
        return
    with pytest.warns(UserWarning, match=mentions(path)):
        assert [run.seed for run in finished.read_runs([runs])[0]["fedavg"]] == [1, 2]


@pytest.mark.parametrize("metric", ["auc", "clusters"])  # the latter is a list for each record
def test_a_metric_that_no_run_has_is_refused(runs, metric):
    path = runs / "fedavg" / "seed-0" / "history.jsonl"
    path.write_text(path.read_text().replace('"round": 10,', '"round": 10, "clusters": [{"cluster": 0}],'))
    with pytest.raises(
        ValueError, match=mentions("metric", metric, "bytes_down", "bytes_up", "micro_accuracy", "round")
    ):
        compare(finished.read_runs([runs])[0], metric=metric)


def test_differences_are_of_whatever_the_histories_have(runs):
    """A summary has some of it alone."""
    found = compare(finished.read_runs([runs])[0], metric="bytes_up")
    assert found.difference(found.lines[1])[::3] == (0, 3)
    assert found.table()[2][-2] == "+0.0000 ± 0.0000"
    found = compare(finished.read_runs([runs])[0], metric="micro_accuracy")
    assert "no common seed" not in found.table()[2]


def test_the_metric_that_runs_are_compared_by_is_shown(tmp_path):
    """Chosen by validation rows, with test numbers beside them."""
    for place, (method, validation) in enumerate((("fedavg", 0.5), ("ifca", 0.7))):
        write(tmp_path / method, 0, FEDAVG[place], method)
        for name in ("summary.json", "history.jsonl"):
            lines = [json.loads(line) for line in (tmp_path / method / name).read_text().splitlines()]
            told = [json.dumps(line | {"validation_micro_accuracy": validation}) + "\n" for line in lines]
            (tmp_path / method / name).write_text("".join(told))
    header, *rows = compare(finished.read_runs([tmp_path])[0], metric="validation_micro_accuracy").table(bold="<{}>")
    assert header[2:4] == ["validation_micro_accuracy", "micro"]
    assert [row[2:4] for row in rows] == [["50.00", "60.00"], ["<70.00>", "<64.00>"]]
    assert header[-4].endswith(" % of validation_micro_accuracy") and rows[1][-2] == "+20.00"
    for name in ("fedavg", "ifca"):  # what the histories alone have
        file = tmp_path / name / "history.jsonl"
        records = [json.loads(line) | {"train_loss": 0.5} for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(one) + "\n" for one in records))
    found = compare(finished.read_runs([tmp_path])[0], metric="train_loss", columns=("train_loss", "seeds"))
    assert found.table()[1:] == [["fedavg", "0.5000", "1"], ["ifca", "0.5000", "1"]]
    assert "train_loss mean" in found.to_csv()


@pytest.mark.slow
def test_runs_on_other_files_are_other_settings(tmp_path):
    """The user's own files have no name that tells them apart."""
    small = {"rounds": 1, "cohort": 4, "model": "logistic"}
    for seed, name in enumerate(("one", "other")):
        data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=20, seed=seed)
        jaxfl.data.stored.save(data, tmp_path / name)
        jaxfl.run_named("fedavg", "saved", data_dir=tmp_path / name, seed=seed, out=tmp_path / f"runs/{seed}", **small)
    one, other = finished.read_runs([tmp_path / "runs"])[0]
    assert one.startswith("fedavg data_checksum=") and other.startswith("fedavg data_checksum=") and one != other
    np.savez(tmp_path / "own.npz", x=np.zeros((4, 8, 8), np.uint8), y=np.arange(4) % 2)
    for name, items, files in (("hybrid-digits", ["other=npz"], True), ("hybrid-digits", [], False)):
        settings = options.route("fedavg", name, items)
        assert ("data_checksum" in Job(settings, 1, 1.0, data_dir=tmp_path / "own.npz").identity()) == files
    shutil.copytree(tmp_path / "one", tmp_path / "moved")
    again = {**small, "rounds": 2, "out": tmp_path / "runs/0", "resume": True}
    with pytest.raises(ValueError, match=mentions("data", "file", "changed")):
        jaxfl.run_named("fedavg", "saved", data_dir=tmp_path / "other", **again)
    assert jaxfl.run_named("fedavg", "saved", data_dir=tmp_path / "moved", **again).summary["rounds"] == 2
    data = jaxfl.data.stored.load(tmp_path / "one")
    shutil.rmtree(tmp_path / "moved")  # whoever has the data can go on
    assert jaxfl.load(tmp_path / "runs/0", data=data).resume(rounds=3).summary["rounds"] == 3


def test_runs_of_one_seed_are_refused(runs):
    same = finished.read_runs([runs])[0]["fedavg"][:1]
    with pytest.raises(ValueError, match=mentions("seed-0", "twice", "seed 0")):
        compare({"twice": same * 2})


def test_a_number_that_is_infinite_ends_nothing_and_is_no_earlier_one(tmp_path):
    """The perplexity of a loss above 709 is infinite, which is null in a file."""
    assert paired([(math.inf, 1.0), (2.0, 1.0)])[1:] == (None, None, 2, None)
    assert mean_cell([math.inf, 1.0], 2, spread=True) == "inf"
    summaries = [{"seed": seed, "micro_perplexity": value} for seed, value in enumerate((math.inf, 3.0))]
    assert job.summarise_seeds(summaries, tmp_path)["micro_perplexity"] == {"mean": math.inf, "std": None}
    for seed in (0, 1):
        write(tmp_path / f"a/{seed}", seed, 0.5)
        write(tmp_path / f"b/{seed}", seed, 0.6, "ifca")
    for name in ("summary.json", "history.jsonl"):  # seed 1 of the second has no number in the end, but has one before
        path = tmp_path / "b/1" / name
        path.write_text(path.read_text().replace('"micro_accuracy": 0.6', '"micro_accuracy": null'))
    found = compare(finished.read_runs([tmp_path / "a", tmp_path / "b"])[0])
    told = found.difference(found.lines[1])
    assert math.isnan(told.mean) and (told.p, told.seeds) == (None, 2)  # as of the runs themselves, infinite there


def test_a_seed_that_is_not_finite_does_not_leave_the_mean(tmp_path):
    """JSON has null for it; a diverged run must not help its method."""
    for seed, value in enumerate((0.5, 0.7, None)):
        write(tmp_path / "a" / f"seed-{seed}", seed, 0.5)
        path = tmp_path / "a" / f"seed-{seed}" / "summary.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "micro_accuracy": value}))
    (line,) = compare(finished.read_runs([tmp_path])[0]).lines
    found = line.values("micro_accuracy")
    assert found[:2] == [0.5, 0.7] and math.isnan(found[2]) and line.values("unseen_micro_accuracy") == []


def test_settings_of_which_some_lack_an_option_are_all_there(tmp_path):
    """An option without a value, and none: of runs of one's own method before and after there was such an option."""
    for name, more in (("old", {}), ("new", {"run.drift": None})):
        for seed in (0, 1):
            write(
                tmp_path / name / f"seed-{seed}", seed, 0.5, method="my.py:factory", complete={"model": "mlp"}, **more
            )
    found, _ = finished.read_runs([tmp_path])
    assert sorted(found) == ["my.py:factory drift=none", "my.py:factory drift=unknown"]
    assert all(len(runs) == 2 for runs in found.values())


def put(folder, **entries):
    """Writes entries into the summary of a run."""
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


@pytest.mark.parametrize(
    "other",
    [
        {"data": "cifar"},
        {"fingerprint": "split-anew"},
        {"rounds_asked": 20},
        {"cohort": 9},
        {"eval_clients": 3},
        {"sampler": "poisson(0.5, capacity=9)"},
    ],
)
def test_only_runs_on_equal_federations_are_paired(tmp_path, capsys, other):
    """Differences and bold means are within each federation and budget."""
    kept = {name: other[name] for name in ("data", "fingerprint") if name in other}
    for seed in range(3):
        for method, accuracy in (("fedavg", 0.5), ("ifca", 0.6 + 0.01 * seed)):
            write(tmp_path / f"{method}-{seed}", seed, accuracy, method)
            put(tmp_path / f"{method}-{seed}", eval_clients=5, sampler="uniform")
        write(tmp_path / f"prox-{seed}", seed, 0.9, "fedprox", **kept)
        put(tmp_path / f"prox-{seed}", **{"eval_clients": 5} | {key: other[key] for key in other if key not in kept})
    found = compare(finished.read_runs([tmp_path])[0])
    ifca, fedprox = found.lines[1:]
    assert found.difference(ifca).seeds == 3 and found.difference(fedprox) is None
    assert len(found.data) == 2 and found.target is None, "nor is there a cost of what both reach"
    header, *rows = found.table(bold="<{}>")
    micro = [row[header.index("micro")] for row in rows]
    assert [cell[0] == "<" for cell in micro] == [False, True, False], "a better one on other data is no better one"
    assert rows[2][header.index("p") - 1] == ""
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path)])
    assert re.search(mentions("note", 2, "--by data"), capsys.readouterr().err)


@pytest.mark.parametrize("option", [{"run.dropouts": 0.3}, {"run.sampler": "poisson"}, {"run.availability": "diurnal"}])
def test_only_runs_in_which_the_same_clients_take_part_are_paired(tmp_path, option):
    """Also those of versions whose summaries do not name the sampler; one of today without options is like them."""
    for method, given in (("fedavg", {}), ("ifca", {"run.sampler": "uniform"}), ("fedprox", option)):
        write(tmp_path / method, 0, 0.5, method, **given)
    write(tmp_path / "ditto", 0, 0.5, "ditto")
    put(tmp_path / "ditto", sampler="uniform")
    found = compare(finished.read_runs([tmp_path / "fedavg", tmp_path])[0])
    assert {line.name.split()[0] for line in found.lines if found.difference(line)} == {"ifca", "ditto"}
    assert len(found.data) == 2
    assert len(compare_by_data(finished.read_runs([tmp_path], by_data=True)[0]).parts) == 2


@pytest.mark.parametrize("setting", [{"jax_enable_x64": True}, {"jax_default_prng_impl": "rbg"}])
def test_runs_under_other_settings_of_jax_are_other_rows_and_not_paired(tmp_path, capsys, setting):
    for seed in range(2):
        for name, method, entries in (("a", "fedavg", {}), ("b", "fedavg", setting), ("c", "ifca", {})):
            write(tmp_path / f"{name}-{seed}", seed, 0.5 + 0.1 * seed, method)
            put(tmp_path / f"{name}-{seed}", **entries)
    (name, value), *_ = setting.items()
    found = compare(finished.read_runs([tmp_path])[0])
    told = f"{name}={str(value).lower()}"
    assert [line.name for line in found.lines] == ["fedavg", f"fedavg {told}", "ifca"]
    assert [found.difference(line) is None for line in found.lines] == [True, True, False]
    assert len(compare_by_data(finished.read_runs([tmp_path], by_data=True)[0]).parts) == 2
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path)])
    assert re.search(mentions("note", 2, f"{name}={value}"), capsys.readouterr().err)


@pytest.mark.slow
def test_the_summary_names_the_sampler(tmp_path):
    data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=20)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    method = jaxfl.methods.fedavg(task, optax.sgd(0.1))
    runs = {
        str(share): [jaxfl.run(method, data, rounds=1, cohort=4, sampler=jaxfl.sampling.dropouts(share))]
        for share in (0.0, 0.4)
    }
    assert [one.summary["sampler"] for (one,) in runs.values()] == ["uniform", "dropouts(0.4, uniform)"]
    found = compare(runs)
    assert found.differences() == {} and len(found.data) == 2
    named = jaxfl.run_named(
        "fedavg",
        "rotated-digits",
        rounds=1,
        cohort=4,
        dropouts=0.4,
        num_clients=4,
        rows_per_client=20,
        model="logistic",
    )
    assert compare({"a": runs["0.4"], "b": [named]}).differences()["b"][0].seeds == 1


def test_costs_are_counted_on_equally_many_rows(tmp_path, capsys):
    """With `test_rows` the last evaluation is of all rows: an accuracy of 0.9 there is none of the others."""
    for method, accuracy in (("fedavg", 0.8), ("ifca", 0.9)):
        write(tmp_path / method, 0, accuracy, method)
    found = compare(finished.read_runs([tmp_path])[0])
    assert found.target == 0.8 and found.lines[1].reached(0.8, ("round",)) == [10]
    put(tmp_path / "ifca", test_rows=5)
    found = compare(finished.read_runs([tmp_path])[0])
    assert found.target is None and found.lines[1].reached(0.4, ("round",)) == [5]
    assert found.lines[1].reached(0.8, ("round",)) is None and "90.00" in found.table()[2]
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path), "--target", "0.4"])
    assert re.search(mentions("note", "test_rows", str(tmp_path / "ifca")), capsys.readouterr().err)
    put(tmp_path / "fedavg", test_rows=5)
    assert compare(finished.read_runs([tmp_path])[0]).target == 0.4
    for method in ("fedavg", "ifca"):  # of a single evaluation, which is of all rows
        (tmp_path / method / "history.jsonl").write_text(json.dumps(record(10, 0.9)) + "\n")
    assert compare(finished.read_runs([tmp_path])[0]).target is None


def test_runs_without_a_fingerprint_are_compared_and_not_paired(tmp_path, capsys):
    for seed in range(3):
        write(tmp_path / f"old/{seed}", seed, 0.5, fingerprint=None)
        write(tmp_path / f"new/{seed}", seed, 0.6 + 0.01 * seed, "ifca")
        write(tmp_path / f"newer/{seed}", seed, 0.7 - 0.01 * seed, "fedprox")
    with pytest.raises(SystemExit):
        main(["compare", *(str(tmp_path / name) for name in ("old", "new", "newer"))])
    printed = capsys.readouterr()
    assert printed.err.count("fingerprint") == 1 and re.search(mentions("old/0", "--resume"), printed.err)
    assert printed.out.count("data unknown") == 2 and "61.00" in printed.out
    found = compare(finished.read_runs([tmp_path / "new", tmp_path / "newer", tmp_path / "old"])[0])
    assert found.difference(found.lines[1]).seeds == 3 and found.difference(found.lines[2]) is None


def test_a_run_and_its_folder_say_on_which_federation_it_was(tmp_path, empty_pictures):
    """The same in config, summary and result; an old run gets it when it is resumed, though no round is left."""
    small = {"rounds": 1, "cohort": 4, "model": "logistic", "num_clients": 4}
    results = {
        name: jaxfl.run_named("fedavg", "rotated-digits", rows_per_client=rows, out=tmp_path / name, **small)
        for name, rows in (("a", 20), ("b", 30))
    }
    for name, result in results.items():
        for entry in ("fingerprint", "digest"):
            entries = {json.loads((tmp_path / name / file).read_text())[entry] for file in FILES}
            assert entries == {result.summary[entry]}
    (settings, _), one, other = finished.read_runs([tmp_path / "a"]), *results.values()
    found = compare({**settings, "one": [one], "other": [other]})
    assert found.difference(found.lines[1]).seeds == 1 and found.difference(found.lines[2]) is None
    with pytest.raises(ValueError, match=mentions("settings", "both", "compare_by_data")):
        compare({"both": [one, other]})
    digests = [run.summary["digest"] for run in (one, other)]
    untold = [SimpleNamespace(history=run.history, summary=run.summary | {"options": {}}) for run in (one, other)]
    with pytest.raises(ValueError, match=mentions("both", *digests)):  # nothing else tells them apart
        compare({"both": untold})
    for file in FILES:
        entries = json.loads((tmp_path / "a" / file).read_text())
        del entries["fingerprint"]
        (tmp_path / "a" / file).write_text(json.dumps(entries))
    jaxfl.load(tmp_path / "a").resume()
    assert {json.loads((tmp_path / "a" / file).read_text())["fingerprint"] for file in FILES} == {
        one.summary["fingerprint"]
    }


def test_runs_on_one_federation_that_are_tested_otherwise_are_two_rows():
    settings = [{"method": "fedavg", "data": "iid-digits", "run.test_rows": rows} for rows in (None, 30)]
    assert finished.setting_names(settings, by_data=True) == ["fedavg", "fedavg test_rows=30"]


def test_methods_by_data(tmp_path, capsys):
    """A column for each federation with its own best; what differs between federations alone is not in the names."""
    for data, rate, accuracies in (("rotated-digits", 0.1, (0.5, 0.7)), ("iid-digits", 0.3, (0.9, 0.8))):
        for seed in range(3):
            for (method, more), accuracy in zip(
                (("fedavg", {}), ("ifca", {"num_clusters": 3})), accuracies, strict=True
            ):
                settings = options.route(method, data, learning_rate=rate, **more).complete()
                write(tmp_path / data / method / str(seed), seed, accuracy + 0.01 * seed, method, settings, data=data)
    write(tmp_path / "more", 0, 0.6, "local", options.route("local", "iid-digits").complete(), data="iid-digits")
    files = [tmp_path / name for name in ("t.md", "t.tex", "t.csv", "c.png", "p.html")]
    asked = [
        word
        for name, file in zip(("markdown", "latex", "csv", "plot", "html"), files, strict=True)
        for word in (f"--{name}", str(file))
    ]
    folders = [str(tmp_path / name) for name in ("rotated-digits", "iid-digits", "more")]
    with pytest.raises(SystemExit) as ended:
        main(["compare", *folders, "--by", "data", *asked])
    assert ended.value.code == 0
    table = [[cell.strip() for cell in line.strip("| \n").split("|")] for line in files[0].read_text().splitlines()[2:]]
    assert table[0] == ["setting", "rotated-digits", "iid-digits"]
    assert table[2:] == [
        ["fedavg", "51.00 ± 1.00", "**91.00 ± 1.00**"],
        ["ifca", "**71.00 ± 1.00**", "81.00 ± 1.00"],
        ["local", "-", "60.00 (n=1)"],
    ]
    assert r"ifca & \textbf{71.00 $\pm$ 1.00} & 81.00 $\pm$ 1.00" in files[1].read_text()
    frame = pandas.read_csv(files[2])
    assert [*frame[["setting", "data"]].itertuples(index=False, name=None)] == [
        *((name, "rotated-digits") for name in ("fedavg", "ifca")),
        *((name, "iid-digits") for name in ("fedavg", "ifca", "local")),
    ]
    assert frame["difference mean"].round(6).tolist()[1::2] == [0.2, -0.1]
    assert files[3].stat().st_size > 10_000
    page = files[4].read_text(encoding="utf-8")
    assert "<td><b>71.00 ± 1.00</b></td>" in page and "<h2>iid-digits</h2>" in page
    assert page.count("<td>rotated-digits</td>") == 6 and page.count("<td>iid-digits</td>") == 7  # of the runs
    with pytest.raises(SystemExit) as ended:
        main(["compare", *folders, "--by", "seed"])
    assert ended.value.code == 2 and re.search(mentions("by", "seed", "data"), capsys.readouterr().err)


def test_p_is_adjusted_for_the_table_and_ranks_are_tested_beside_it(tmp_path):
    accuracies = {"fedavg": [0.5, 0.52, 0.55, 0.51], "ifca": [0.6, 0.61, 0.68, 0.7], "ditto": [0.53, 0.51, 0.57, 0.54]}
    for method, values in accuracies.items():
        for seed, value in enumerate(values):
            write(tmp_path / method / str(seed), seed, value, method)
    found = compare(finished.read_runs([tmp_path / name for name in accuracies])[0], columns=("p", "holm", "wilcoxon"))
    expected = [stats.ttest_rel(accuracies[name], accuracies["fedavg"]).pvalue for name in ("ifca", "ditto")]
    ranks = [stats.wilcoxon(np.subtract(accuracies[name], accuracies["fedavg"])).pvalue for name in ("ifca", "ditto")]
    frame = found.to_pandas()
    assert frame["difference p"].tolist()[1:] == pytest.approx(expected)
    assert frame["difference holm"].tolist()[1:] == pytest.approx(holm(expected)) and holm(expected) != expected
    assert frame["difference wilcoxon"].tolist()[1:] == pytest.approx(ranks)
    header, _, *rows = found.table()
    assert header[1:] == ["p", "p (Holm)", "p (Wilcoxon)"]
    numbers = zip(expected, holm(expected), ranks, strict=True)
    assert [row[1:] for row in rows] == [[f"{p:.3g}" for p in one] for one in numbers]


def test_equal_ranks_are_equal_though_the_numbers_are_rounded():
    """Accuracies are shares of few rows: 0.1 - 0.2 and 0.5 - 0.4 are as far from 0."""
    pairs = [(0.1, 0.2), (0.5, 0.4), (0.9, 0.7), (0.8, 0.5), (0.3, 0.3)]
    ranks = stats.wilcoxon([-1.0, 1.0, 2.0, 3.0, 0.0], method=stats.PermutationMethod(n_resamples=32)).pvalue
    assert paired(pairs).wilcoxon == pytest.approx(ranks)


def test_a_row_is_compared_by_its_fine_tuned_models(tmp_path, capsys):
    """Beside rows that were not fine-tuned, which are compared by the models that they serve."""
    for seed in range(3):
        write(tmp_path / f"ditto/{seed}", seed, 0.7, "ditto")
        for epochs in (None, 1):
            write(tmp_path / f"fedavg-{epochs}/{seed}", seed, 0.6, "fedavg", **{"run.finetune": epochs})
        folder = tmp_path / f"fedavg-1/{seed}"
        put(folder, finetuned_micro_accuracy=0.8 + 0.01 * seed)
        lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
        tuned = [json.dumps(line | {"finetuned_micro_accuracy": 0.8 + 0.01 * seed}) + "\n" for line in lines]
        (folder / "history.jsonl").write_text("".join(tuned))
    settings, _ = finished.read_runs([tmp_path / "ditto", tmp_path])
    assert list(settings) == ["ditto", "fedavg finetune=1", "fedavg"]
    for metric in ("tuned", "finetuned_micro_accuracy", {"fedavg finetune=1": "tuned"}):
        found = compare(settings, metric=metric)
        header, *rows = found.table(bold="<{}>")
        assert header[:4] == ["setting", "seeds", "metric", "compared"]
        assert [row[2:4] for row in rows] == [
            ["micro", "70.00 ± 0.00"],
            ["tuned", "<81.00 ± 1.00>"],
            ["micro", "60.00 ± 0.00"],
        ]
        assert [found.difference(line).mean for line in found.lines[1:]] == pytest.approx([0.11, -0.1])
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(tmp_path), "--metric", "fedavg finetune=1=tuned", "--html", str(tmp_path / "p.html")])
    assert ended.value.code == 0 and "compared" in capsys.readouterr().out
    with pytest.raises(ValueError, match=mentions("metric", "digits", "micro_accuracy", "bytes_up")):
        compare(settings, metric={"ditto": "bytes_up"})
    with pytest.raises(ValueError, match=mentions("metric", "ifca", "ditto")):
        compare(settings, metric={"ifca": "tuned"})
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(tmp_path), "--metric", "tuned", "--metric", "macro"])
    assert ended.value.code == 2 and re.search(mentions("--metric", "tuned", "macro"), capsys.readouterr().err)


def test_newcomers_have_a_column_and_are_compared(tmp_path):
    for method, unseen in (("fedavg", 0.4), ("ifca", 0.5)):
        write(tmp_path / method, 0, 0.9, method)
        put(tmp_path / method, unseen_micro_accuracy=unseen)
        path = tmp_path / method / "history.jsonl"
        path.write_text(path.read_text().replace("{", f'{{"unseen_micro_accuracy": {unseen}, '))
    found = compare(finished.read_runs([tmp_path])[0], metric="unseen")
    header, *rows = found.table()
    assert [row[header.index("unseen")] for row in rows] == ["40.00", "50.00"] and "metric" not in header
    assert found.difference(found.lines[1]).mean == pytest.approx(0.1)


def test_usual_values_are_in_no_name(tmp_path):
    """A method that fine-tunes by default beside one that does not, and one that was asked to."""
    for place, (method, given) in enumerate((("perfedavg", {}), ("fedavg", {}), ("fedavg", {"finetune": 2}))):
        complete = options.route(method, "rotated-digits", **given).complete()
        write(tmp_path / str(place), 0, 0.5, method, complete, data="rotated-digits")
    assert list(finished.read_runs([tmp_path])[0]) == ["perfedavg", "fedavg", "fedavg finetune=2"]


@pytest.mark.filterwarnings("default:.*are one run")
def test_of_folders_of_one_run_with_other_options_of_the_data_one_is_left_out(tmp_path, capsys):
    for name, clients in (("here", 8), ("there", 12)):
        complete = options.route("fedavg", "iid-digits", num_clients=clients).complete()
        write(tmp_path / name, 0, 0.5, complete=complete, data="iid-digits")
    write(tmp_path / "ifca", 0, 0.6, "ifca", options.route("ifca", "iid-digits").complete(), data="iid-digits")
    with pytest.warns(UserWarning, match=mentions("here", "there", "seed 0", "left out")):
        runs = finished.read_runs([tmp_path], by_data=True)[0]
    assert {name: [run.path.name for run in same] for name, same in runs.items()} == {
        "fedavg": ["here"],
        "ifca": ["ifca"],
    }
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(tmp_path), "--by", "data"])
    printed = capsys.readouterr()
    assert ended.value.code == 0 and "60.00" in printed.out and re.search(mentions("here", "there"), printed.err)
    both = [
        *finished.read_runs([tmp_path / "here"])[0]["fedavg"],
        *finished.read_runs([tmp_path / "there"])[0]["fedavg"],
    ]
    with pytest.raises(ValueError, match=mentions("here", "there", "seed 0")):
        compare_by_data({"fedavg": both})


def test_a_fact_that_is_an_option_too_is_once_in_the_name_of_a_federation():
    def run(count):
        facts = {"seed": 0, "data": "iid-digits", "num_clients": count, "fingerprint": f"iid-digits-{count}"}
        history = History()
        history.append({"round": 1, "micro_accuracy": 0.5, "bytes_up": 1, "bytes_down": 1})
        summary = facts | {"micro_accuracy": 0.5, "options": {"data.num_clients": count}}
        return SimpleNamespace(history=history, summary=summary)

    found = compare_by_data({"fedavg": [run(8), run(12)]})
    assert list(found.parts) == ["iid-digits num_clients=8", "iid-digits num_clients=12"]
