"""`--score` of runs, sweeps and comparisons."""

import re

import pytest

from jaxfl.cli.app import app
from jaxfl.protocols.scores import score
from jaxfl.simulation.records.history import History
from tests.messages import mentions

SMALL = ["--data", "rotated-digits", "--rounds", "2", "--eval-every", "1"]
SMALL += [word for item in ("num_clients=4", "rows_per_client=20", "model=logistic") for word in ("--set", item)]
NEEDED = ["--set", "validation=0.3", "--set", "clients_history=true"]


def call(capsys, *words):
    with pytest.raises(SystemExit) as status:
        app([*map(str, words)])
    found = capsys.readouterr()
    return status.value.code, found.out, found.err


def test_a_run_a_sweep_and_a_comparison_have_the_score_of_their_histories(tmp_path, capsys):
    code, out, _ = call(capsys, "run", "fedavg", *SMALL, *NEEDED, "--seeds", "0,1", "--out", tmp_path / "a", "--quiet",
                        "--no-pictures", "--score", "macro-valbest")  # fmt: skip
    values = [
        100 * score("macro-valbest", History(tmp_path / "a" / f"seed-{seed}" / "history.jsonl")) for seed in (0, 1)
    ]
    told = re.search(r"macro-valbest: ([\d.]+) ± [\d.]+ % \(2 seeds\)", out)
    assert code == 0 and float(told[1]) == pytest.approx(sum(values) / 2, abs=0.005)
    code, out, _ = call(capsys, "compare", tmp_path / "a", "--score", "macro-valbest", "--csv", tmp_path / "table.csv")
    assert code == 0 and "macro-valbest" in out and f"{sum(values) / 2:.2f}" in out
    assert "macro-valbest accuracy" in (tmp_path / "table.csv").read_text()
    code, _, err = call(capsys, "compare", tmp_path / "a", "--score", "shared-last")
    assert code == 2 and re.search(mentions("score", "shared-last", "test_sets=shared"), err)
    code, _, err = call(capsys, "compare", tmp_path / "a", "--score", "macro-best", "--metric", "loss")
    assert code == 2 and re.search(mentions("--metric", "loss", "--score"), err)
    code, out, _ = call(capsys, "sweep", "fedavg,local", *SMALL, "--out", tmp_path / "b", "--jobs", "1", "--quiet",
                        "--score", "macro-best")  # fmt: skip
    best = score("macro-best", History(tmp_path / "b" / "local" / "seed-0" / "history.jsonl"))
    assert code == 0 and "macro-best" in out and f"{100 * best:.2f}" in out


@pytest.mark.parametrize("command", [["run", "fedavg"], ["sweep", "fedavg"]])
def test_a_score_without_its_options_is_refused_before_anything_is_made(command, tmp_path, capsys):
    out = ["--out", tmp_path / "run", "--quiet"]
    code, _, err = call(capsys, *command, *SMALL, *out, "--score", "shared-last")
    assert code == 2 and re.search(mentions("shared-last", "--set test_sets=shared"), err)
    code, _, err = call(capsys, *command, *SMALL, *out, "--score", "macro-valbset")
    assert code == 2 and re.search(mentions("score", "macro-valbset", "macro-valbest"), err)
    assert not (tmp_path / "run").exists()
