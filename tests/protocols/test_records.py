"""The records of protocols: each can be read, names what is there, and has a federation and models that fit it."""

import gzip
import struct
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxfl import protocols
from jaxfl.methods import METHODS
from jaxfl.protocols.scores import score
from jaxfl.settings import methods, options
from tests.messages import mentions

NAMES = protocols.names()
RECORDS = {name: protocols.read(name) for name in NAMES}
SMALL = """
title = "a test"
paper = "nobody's"
code = "none"
split = "rule"
rounds = 2
cohort = 1.0
seeds = [0]
score = "macro-last"
data_needed = "none"
teraflop = 0.001
compared = ["fedavg"]
[data]
name = "rotated-digits"
[model]
name = "logistic"
[optimizer]
name = "sgd"
"""


@pytest.fixture(scope="module")
def digits_like_mnist(tmp_path_factory):
    """A folder with files as MNIST's, of as many rows, whose classes are dealt out unevenly."""
    folder = tmp_path_factory.mktemp("mnist")
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        rng = np.random.default_rng(count)
        labels = np.minimum(rng.permutation(count) % 11, 9).astype(np.uint8)  # more of the last class
        labels[: count // 4] = rng.permutation(count // 4) % 10
        images = np.zeros((count, 28, 28), np.uint8)
        images[np.arange(count), 10 + labels, 10] = 255
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape)
            with gzip.open(folder / f"{part}-{kind}-ubyte.gz", "wb", compresslevel=1) as file:
                file.write(head + array.tobytes())
    return folder


def test_each_record_names_what_is_there():
    """Methods, networks and options, of all methods that are compared or have values in the record."""
    assert len(NAMES) > 40 and len({record.digest() for record in RECORDS.values()}) == len(NAMES)
    for record in RECORDS.values():
        for method in dict.fromkeys([*record.compared, *record.methods]):
            settings = record.settings(method)
            assert settings.method.items() >= record.of_method(method).items() - {("batch_size", "none")}
        assert {row.is_like for row in record.published} - {""} <= set(METHODS)
        assert set(record.digests) <= set(map(str, record.seeds)) and record.deviations


@pytest.mark.filterwarnings("ignore:no client of")  # ten clients and fifteen patterns, of flux-px-8
@pytest.mark.rotating
@pytest.mark.parametrize("name", [name for name in NAMES if "MNIST" in RECORDS[name].data_needed])
def test_a_federation_and_models_fit_the_record(name, digits_like_mnist):
    record = RECORDS[name]
    data = options.load(record.settings("fedavg"), data_dir=digits_like_mnist, seed=record.seeds[0])
    for method in record.compared[:2]:
        built = options.build(record.settings(method), data)
        state = jax.eval_shape(built.init, jax.random.key(0), data)
        served = jax.eval_shape(built.client_params, state, np.arange(2, dtype=np.int32))
        assert all(leaf.shape[0] == 2 for leaf in jax.tree.leaves(served))


def test_reduced_forms_have_another_name_and_digest_and_no_published_rows():
    for record in RECORDS.values():
        if record.reduced:
            small = record.as_reduced()
            assert small.name == f"{record.name}-reduced" and small.digest() != record.digest()
            assert not small.published and small.teraflop == record.reduced["teraflop"] < record.teraflop
            assert small.settings("fedavg").data_name == record.data["name"]
        else:
            with pytest.raises(ValueError, match=mentions(record.name, "--reduced")):
                record.as_reduced()


@pytest.mark.parametrize(
    ("line", "by", "told"),
    [
        ("rounds = 2", 'rounds = "two"', ("rounds", "two")),
        ("rounds = 2", "", ("rounds",)),
        ("rounds = 2", "rounds = 2\nroundz = 2", ("roundz", "rounds")),
        ('score = "macro-last"', 'score = "macro-worst"', ("macro-worst", "macro-last")),
        ('name = "logistic"', "hidden = 2", ("name", "[model]")),
        ("[model]", "[local]\nthreshold = 2\n[model]", ("threshold", "[local]")),
        ("[model]", "[reduced]\nscore = 'micro-last'\n[model]", ("score", "[reduced]")),
        ("[data]", "[[published]]\nmethod = 'a'\nvalue = 1\nmark = 'X'\ntable = '1'\n[data]", ("mark", "X")),
        ("[data]", "[data", ("TOML",)),
        ("seeds = [0]", "seeds = []", ("seeds", "none")),
        ("[model]", "[methods]\nifca = 3\n[model]", ("[methods.ifca]", "3")),
        ("[model]", "[methods.ifka]\nnum_clusters = 3\n[model]", ("ifka", "ifca")),
        (
            "[model]",
            "[local]\nlocal_epochs = 1\n[methods.ifca]\nlocal_epochs = 5\n[model]",
            ("local_epochs", "[local]"),
        ),
        ("[model]", "[methods.ifca]\n'data.num_clients' = 5\n[model]", ("data.num_clients", "[data]")),
        ("[model]", "[methods.ifca]\nnum_clusters = 1979-05-27\n[model]", ("1979-05-27",)),
        ("[model]", "[digests]\n0 = 5\n[model]", ("digests", "5")),
        ("[model]", "[reduced.local]\nthreshold = 2\n[model]", ("threshold", "[reduced]")),
    ],
)
def test_a_record_that_is_wrong_is_refused_in_one_line(line, by, told, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(SMALL)
    assert protocols.read(str(path)).name == "mine"
    path.write_text(SMALL.replace(line, by))
    with pytest.raises(ValueError, match=mentions(*told)) as refused:
        protocols.read(str(path))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("line", "by"),
    [
        ('name = "rotated-digits"', 'name = "own.py:make"'),
        ('name = "logistic"', 'name = "own.py:make"'),
        ('name = "sgd"', 'name = "own.py:make"'),
        ("[model]", "[run]\ntask = 'own.py:make'\n[model]"),
        ("[model]", "[reduced.model]\nname = 'own.py:make'\n[model]"),
        ('compared = ["fedavg"]', 'compared = ["own.py:make"]'),
    ],
)
def test_no_program_that_a_record_names_is_executed(line, by, tmp_path, monkeypatch):
    """The record may be somebody else's, and a command that tells it must execute nothing."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("from pathlib import Path\nPath('executed').touch()\ndef make(): pass\n")
    Path("mine.toml").write_text(SMALL.replace(line, by))
    with pytest.raises(ValueError, match=mentions("own.py:make", "mine.toml")):
        protocols.read("mine.toml").settings("fedavg")
    assert not Path("executed").exists()


def test_a_record_has_a_name_that_a_folder_can_have(tmp_path):
    """Without --out the runs are in `runs/NAME`, which `..` would leave."""
    path = tmp_path / "...toml"
    path.write_text(SMALL)
    with pytest.raises(ValueError, match=mentions("...toml", "name")):
        protocols.read(str(path))


def test_tables_of_a_reduced_form_are_merged_unless_they_have_a_name(tmp_path):
    path = tmp_path / "mine.toml"
    optimizer = 'name = "sgd"\nlearning_rate = 0.1\nmomentum = 0.9\n'
    reduced = '[reduced]\nteraflop = 0.0001\n[reduced.model]\nname = "mlp"\n[reduced.optimizer]\nlearning_rate = 0.2\n'
    path.write_text(SMALL.replace('name = "sgd"\n', optimizer) + reduced + "[reduced.data]\nnum_clients = 8\n")
    whole, small = protocols.read(str(path)), protocols.read(str(path)).as_reduced()
    assert small.optimizer == {"name": "sgd", "learning_rate": 0.2, "momentum": 0.9} and small.model == {"name": "mlp"}
    assert small.data == {"name": "rotated-digits", "num_clients": 8} and whole.data == {"name": "rotated-digits"}
    assert small.content["optimizer"] == small.optimizer and small.digest() != whole.digest()


def test_a_method_may_have_a_rate_of_its_own(tmp_path):
    """FedEM's code has one for each method."""
    path = tmp_path / "mine.toml"
    path.write_text(SMALL + 'learning_rate = 0.1\n[methods.fedem]\nnum_clusters = 2\n"optimizer.learning_rate" = 0.3\n')
    record = protocols.read(str(path))
    rates = [record.settings(method).optimizer["learning_rate"] for method in ("fedavg", "fedem")]
    assert rates == [0.1, 0.3] and record.settings("fedem").method == {"num_clusters": 2}


def test_published_rows_are_no_part_of_a_digest(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(SMALL)
    before = protocols.read(str(path)).digest()
    row = "[[published]]\nmethod = 'a'\nvalue = 1\nmark = 'M'\ntable = '1'\n"
    path.write_text(SMALL + row)
    assert protocols.read(str(path)).digest() == before
    path.write_text(SMALL.replace("rounds = 2", "rounds = 3"))
    assert protocols.read(str(path)).digest() != before


def test_scores_of_a_history():
    micro, macro, losses = [0.1, 0.9, 0.5, 0.7], [0.2, 0.6, 0.8, 0.4], [3.0, 1.0, 2.0, 1.0]
    rows = zip(micro, macro, losses, strict=True)
    records = [{"micro_accuracy": a, "macro_accuracy": b, "validation_loss": c} for a, b, c in rows]
    assert score("micro-last", records) == 0.7 and score("micro-best", records) == 0.9
    assert score("macro-last", records) == 0.4 and score("macro-best", records) == 0.8
    assert score("macro-minloss", records) == 0.6  # the first of two rounds
    assert score("micro-last10", records) == pytest.approx(0.55)
    many = [{"micro_accuracy": 0.0}] * 5 + [{"micro_accuracy": 1.0}] * 10
    assert score("micro-last10", many) == 1.0
    assert score("unseen-last", records) is None and score("micro-last", []) is None
    assert score("micro-last", [{"micro_accuracy": None}]) is None


def test_records_are_files_of_the_package():
    assert {path.stem for path in Path(protocols.__file__).parent.glob("*.toml")} == set(NAMES)


def test_what_a_protocol_fixes_is_what_the_method_has():
    record = RECORDS["fedrep-cifar10-2"]
    assert record.of_method("fedrep") == record.local and "head_epochs" not in record.of_method("fedavg")
    assert "local_epochs" in methods.row("fedavg").options
