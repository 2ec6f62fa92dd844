"""`jaxfl protocol`: what it lists and tells, runs that go on, and what a protocol keeps fixed."""

import json
import re

import pytest

from jaxfl.cli.app import main
from jaxfl.protocols import names
from tests.messages import mentions
from tests.protocols.test_records import SMALL

RECORD = SMALL.replace('name = "rotated-digits"', 'name = "rotated-digits"\nnum_clients = 8\nrows_per_client = 20')
RECORD += """
[local]
local_epochs = 1
batch_size = 10
[methods.ifca]
num_clusters = 4
"optimizer.learning_rate" = 0.3
[[published]]
method = "IFCA"
value = 97.5
deviation = 0.25
mark = "M"
table = "2"
is_like = "ifca"
"""


@pytest.fixture
def record(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(RECORD)
    return path


def protocol(*words):
    with pytest.raises(SystemExit) as ended:
        main(["protocol", *map(str, words)])
    return ended.value.code


def test_the_list_and_a_record_are_told(record, capsys):
    assert protocol() == 0
    told = capsys.readouterr().out
    assert all(f"\n{name} " in told for name in names())
    assert protocol("list", "--json") == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == names()
    assert protocol(record) == 0
    told = capsys.readouterr().out
    assert "rotated-digits, num_clients=8" in told and "row1:" in told and "fed1:" in told and "pro1:" in told
    assert "97.50 ± 0.25" in told and "unverified" in told


def test_runs_are_a_sweeps_and_stand_beside_the_published_row(record, tmp_path, capsys):
    words = [record, "--method", "ifca", "--out", tmp_path / "runs", "--seeds", "0", "--jobs", "1"]
    assert protocol(*words) == 0
    out, err = capsys.readouterr()
    assert "1 of 1 runs to make" in err
    scores = next(line for line in out.splitlines()[out.splitlines().index("") :] if line.startswith("ifca"))
    assert "IFCA 97.50 ± 0.25 (M)" in scores
    options = json.loads((tmp_path / "runs/ifca/seed-0/config.json").read_text())
    assert options["optimizer.learning_rate"] == 0.3  # IFCA's own
    assert options["method.local_epochs"] == 1 and options["method.batch_size"] == 10
    assert options["method.num_clusters"] == 4 and options["data.num_clients"] == 8
    assert protocol(*words) == 0  # nothing is left to make
    assert "to make, about" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("item", "told"),
    [
        ("learning_rate=0.2", ("learning_rate", "mine", 0.2)),
        ("num_clients=4", ("num_clients", 8, 4)),
        ("model=mlp", ("model", "logistic", "mlp")),
        ("local_epochs=3", ("local_epochs", 1, 3)),
        ("ifca.batch_size=3", ("batch_size", 10, 3)),
        ("dropouts=0.5", ("dropouts", 0.5)),
        ("num_clustres=3", ("num_clustres", "num_clusters")),
    ],
)
def test_what_is_fixed_is_refused_before_anything_is_loaded(item, told, record, tmp_path, capsys):
    assert protocol(record, "--method", "ifca", "--set", item, "--out", tmp_path / "runs") == 2
    assert not (tmp_path / "runs").exists()
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.match(mentions(*told), error)


def test_another_federation_unknown_names_and_words_without_a_method_are_one_line(record, tmp_path, capsys):
    record.write_text(RECORD + '[digests]\n0 = "fed1:0000000000000000"\n')
    for words, told in (
        ([record, "--method", "fedavg", "--out", tmp_path / "a"], "fed1:0000000000000000"),
        ([record, "--digest"], "fed1:0000000000000000"),
        (["cflgp-mnist5"], "cflgp-mnist"),
        ([tmp_path / "gone.toml"], "gone.toml"),
        ([record, "--out", tmp_path / "a"], "--method"),
        ([record, "--reduced"], "--reduced"),
        ([record, "--method", "ifka"], "ifka"),
    ):
        assert protocol(*words) == 2, words
        error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert len(error) == 1 and told in error[0]
    assert not (tmp_path / "a").exists()
