"""AG News in its true format: words as basic_english has them, and a vocabulary of the training rows alone."""

import collections
import csv
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from jaxfl import data
from jaxfl.cli.app import app
from jaxfl.data import sources
from jaxfl.data.sources import text
from tests.messages import mentions

RNG = np.random.Generator(np.random.PCG64(0))
TOPICS = (("treaty", "minister"), ("goal", "coach"), ("stocks", "bank"), ("chip", "robot"))
FILLING = ("the", "a", "of", "in", "on", "today", "said", "new")
ROW = (3, "Wall St. Bears Claw Back (Reuters)", 'Reuters - "Short-sellers", it\'s said; are\\seeing green: again!?')


def rows(count):
    for i in range(count):
        words = [str(word) for word in RNG.choice(FILLING, 6)] + [str(RNG.choice(TOPICS[i % 4]))]
        yield i % 4 + 1, f"{words[-1].title()} {words[0]}", " ".join([*words, f"rare{i}"]) + "."


def write(path, content):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(content)


@pytest.fixture
def files(tmp_path):
    """The folder of both files, whose texts are returned, too."""
    parts = {"train.csv": [ROW, *rows(80)], "test.csv": list(rows(24))}
    for name, content in parts.items():
        write(tmp_path / name, content)
    return tmp_path, parts


def basic_english(line):
    """The tokenizer of torchtext, as its documentation states it: one replacement after the other."""
    for pattern, replacement in {
        "'": " '  ",
        '"': "",
        r"\.": " . ",
        "<br />": " ",
        ",": " , ",
        r"\(": " ( ",
        r"\)": " ) ",
        "!": " ! ",
        r"\?": " ? ",
        "[;:]": " ",
        r"\s+": " ",
    }.items():
        line = re.sub(pattern, replacement, line.lower() if pattern == "'" else line)
    return line.split()


@pytest.mark.parametrize("line", [ROW[1], ROW[2], "It's <br />a.b,c  U.S. (x)!?\t\u00c9t\u00e9\u3000\u0130", "", "''"])
def test_words_are_those_of_basic_english(line):
    assert text.split_words(line) == basic_english(line)


def test_rows_become_tokens_of_a_vocabulary_of_training_rows(files):
    folder, parts = files
    options = {"num_clients": 4, "test_share": 0.3, "seed": 1, "length": 9, "tokens": 12}
    fed = data.load("iid-ag-news", data_dir=folder, **options)
    words = [basic_english(f"{title} {about}")[:9] for _, title, about in parts["train.csv"]]
    counts = collections.Counter(word for row in fed.train.rows for word in words[row])
    known = sorted(counts, key=lambda word: (-counts[word], word))[:10]
    for x, y, said, (label, *_) in zip(fed.inputs, fed.labels, words, parts["train.csv"], strict=True):
        tokens = [known.index(word) + 2 if word in known else 1 for word in said]
        assert x.tolist() == tokens + [0] * (9 - len(tokens)) and y == label - 1
    assert fed.inputs.dtype == np.int32 and fed.class_names == ("World", "Sports", "Business", "Sci/Tech")
    assert (fed.num_classes, fed.input_shape, fed.mean) == (4, (9,), None)


def test_test_rows_decide_no_token(files):
    folder, parts = files
    fed = data.load("iid-ag-news", data_dir=folder, num_clients=4)
    assert fed.test.size.tolist() == [24] * 4, "the official test set"
    spoiled = [(label, "aaa aaa aaa zzz", about) for label, _, about in parts["test.csv"]]
    write(folder / "test.csv", spoiled)
    again = data.load("iid-ag-news", data_dir=folder, num_clients=4)
    np.testing.assert_array_equal(again.inputs[:81], fed.inputs[:81])
    assert (again.inputs[81:, :4] == 1).all(), "words that nobody trains on"


def test_a_header_and_a_byte_order_mark_are_left_out(files):
    folder, parts = files
    plain = sources.load("ag-news", folder)
    for name, content in parts.items():
        write(folder / name, [("Class Index", "Title", "Description"), *content])
        (folder / name).write_bytes(b"\xef\xbb\xbf" + (folder / name).read_bytes())
    (folder / "ag_news_csv").mkdir()
    for name in parts:
        (folder / name).rename(folder / "ag_news_csv" / name)
    source = sources.load("ag-news", folder)
    np.testing.assert_array_equal(source.inputs, plain.inputs)
    np.testing.assert_array_equal(source.test_labels, plain.test_labels)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b'"1","a","b"\n"5","a","b"\n', "line 2"),
        (b'"1","a","b"\n"2","a"\n', "line 2"),
        (b'"1","a","b"\n"2","a","b', "train.csv"),
        (b'"1","\xff","b"\n', "train.csv"),
        (b"", "rows"),
        (b'"1","' + b"x" * 200_000 + b'","b"\n', "train.csv"),
    ],
)
def test_damage_is_named_with_where_to_get_the_file(files, content, named):
    folder, _ = files
    (folder / "train.csv").write_bytes(content)
    with pytest.raises(ValueError, match=mentions("train.csv", named, "https://raw.githubusercontent.com")):
        sources.load("ag-news", folder)


@pytest.mark.parametrize(("option", "value"), [("length", 0), ("tokens", 2)])
def test_numbers_out_of_range(files, option, value):
    with pytest.raises(ValueError, match=mentions(option, value)):
        sources.load("ag-news", files[0], **{option: value})


@pytest.mark.slow
def test_texts_are_learned_from_the_command_line(files, monkeypatch):
    folder, _ = files
    monkeypatch.chdir(folder)
    sets = [f"--set={item}" for item in ("num_clients=4", "tokens=60", "vocabulary=60", "length=16", "local_epochs=3")]
    run = ["run", "fedavg", "--data", "dirichlet-ag-news", "--data-dir", ".", "--rounds", "1", "--quiet", *sets]
    made = CliRunner().invoke(app, [*run, "--set", "learning_rate=0.5"])
    assert made.exit_code == 0, made.output
    few = CliRunner().invoke(app, [*run[:-1], "--set", "vocabulary=20"])
    assert few.exit_code == 2 and "vocabulary" in few.output
