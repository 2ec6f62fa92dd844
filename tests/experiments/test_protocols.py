"""The tables of protocols go on where they were stopped, and their lines are of the protocols as they are."""

import pytest

from docs.generate import protocols as pages
from docs.generate.tables import ROOT
from experiments.harness import results
from experiments.protocols import __main__ as tables
from jaxfl import protocols

SMALL = """
title = "Four rotations of digits"
paper = "none"
code = "none"
split = "rule"
rounds = 2
cohort = 1.0
seeds = [3, 4, 5, 6]
score = "macro-last"
data_needed = "none"
teraflop = 0.001
compared = ["fedavg", "ifca"]
[data]
name = "rotated-digits"
num_clients = 8
rows_per_client = 20
[model]
name = "logistic"
[optimizer]
name = "sgd"
learning_rate = 0.1
[methods.ifca]
num_clusters = 2
[[published]]
method = "IFCA"
value = 95.0
mark = "S"
table = "2"
is_like = "ifca"
"""


def test_a_table_goes_on_where_it_was_stopped(tmp_path, monkeypatch, capsys):
    file, folder = tmp_path / "small.toml", tmp_path / "results"
    file.write_text(SMALL)
    monkeypatch.setattr(tables, "RESULTS", folder)
    assert tables.main([str(file), "--method", "fedavg"]) == 0
    protocol = protocols.read(str(file))
    first = tables.path_of(protocol).read_text()
    assert list(tables.found(protocol)) == [("fedavg", 3), ("fedavg", 4), ("fedavg", 5)]
    assert tables.main([str(file)]) == 0
    assert tables.path_of(protocol).read_text().startswith(first)
    made = tables.found(protocol)
    assert list(made) == [(method, seed) for method in ("fedavg", "ifca", tables.BESIDE) for seed in (3, 4, 5)]
    capsys.readouterr()
    assert tables.main([str(file)]) == 0 and capsys.readouterr().out == ""
    line = made["ifca", 4]
    assert line["command"] == f"jaxfl protocol {protocol.name} --method ifca --seeds 4 --data-dir DIR"
    own = [one for (method, _), one in made.items() if method == "ifca"]
    assert pages.cell(own, "macro-last", protocol.published).endswith("[95 S]")


def test_other_methods_and_protocols_are_refused(capsys):
    for words in (["nothing"], ["cflgp-mnist4", "--method", "nothing"]):
        with pytest.raises(SystemExit):
            tables.main(words)
        assert '"nothing"' in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(tables.RESULTS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_committed_lines_are_of_the_protocols_as_they_are(path):
    name = path.stem.removesuffix(protocols.REDUCED)
    protocol = protocols.read(name) if name == path.stem else protocols.read(name).as_reduced()
    lines = results.read(path)
    assert lines and {line["id"] for line in lines} == {line["id"] for line in tables.found(protocol).values()}


def test_every_publication_has_its_table():
    page = (ROOT / "docs" / "pages" / "protocols.md").read_text(encoding="utf-8")
    assert all(f"<!-- made: protocols {family} -->" in page for family in pages.families())
