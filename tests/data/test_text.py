"""Texts: windows and their next characters, fortunes in both layouts, and LEAF's Shakespeare, each damage by name."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfl import data
from jaxfl.data.sources import fortunes, shakespeare, text
from tests.messages import mentions

TEXTS = {
    ("de", "witze"): ["Zwei Häuser\nstehen da.", "Noch einer."],
    ("de", "verse"): ["Über allen Gipfeln"],
    ("ru", "art"): ["Искусство вечно"],
}


def said(source, tokens):
    """Returns tokens as text."""
    letters = {"space": " ", "newline": "\n", "unknown": "?"}
    return "".join(letters.get(source.class_names[token], source.class_names[token]) for token in tokens)


LETTERS = "abcdefg ABC.,!?'\n\t019é漢\U0001f600\x00"  # of all characters: a second, for their table


@given(words=st.lists(st.text(LETTERS, max_size=20)), length=st.integers(1, 9), size=st.integers(2, 30))
def test_windows_are_the_text_and_labels_the_text_one_later(words, length, size):
    letters, stream = text.Vocabulary.of(words, size), "".join(words)
    tokens = letters.tokens(stream)
    assert tokens.dtype == np.int32 and letters.size == len(letters.names) <= size
    assert len(tokens) == len(stream) and 0 <= tokens.min(initial=0) <= tokens.max(initial=0) < letters.size
    assert len(set(tokens[tokens > 0])) == len({one for one, token in zip(stream, tokens, strict=True) if token})
    x, y = text.windows(tokens, length)
    assert x.shape == y.shape == (-(-max(len(tokens) - 1, 0) // length), length)
    assert y[y >= 0].tolist() == tokens[1:].tolist() and x[y >= 0].tolist() == tokens[:-1].tolist()
    assert (y.ravel()[: len(tokens) - 1] >= 0).all(), "what is masked is at the end"


def write_json_lines(folder, language):
    rows = [{"collection": who[1], "text": one} for who, texts in TEXTS.items() if who[0] == language for one in texts]
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    with gzip.open(folder / f"{language}.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(lines + "\n")


def write_debian(folder):
    for (language, name), texts in TEXTS.items():
        (folder / language).mkdir(parents=True, exist_ok=True)
        path = folder / language / name
        path.write_text("\n%\n".join(texts) + "\n%\n", encoding="utf-8")
        path.with_name(f"{name}.u8").symlink_to(path)
    (folder / "de" / "witze.dat").write_bytes(b"\0\1")
    (folder / "de" / "README").write_text("no collection: nothing lies beside it")
    (folder / "kids").symlink_to(folder / "de" / "witze")  # Italian's lie at the top as well
    (folder / "kids.dat").symlink_to(folder / "de" / "witze.dat")
    (folder / "off").mkdir()
    (folder / "off" / "rude").write_text("left out")
    (folder / "off" / "rude.dat").write_bytes(b"")


@pytest.mark.parametrize("layout", ["jsonl", "debian"])
def test_a_client_is_a_collection_and_a_group_its_language(tmp_path, layout):
    if layout == "jsonl":
        for language in ("de", "ru"):
            write_json_lines(tmp_path, language)
    else:
        write_debian(tmp_path)
    source = fortunes.load(tmp_path, length=8)
    assert sorted(set(source.clients)) == ["de/verse", "de/witze", "ru/art"] and source.group_names == ("de", "ru")
    assert source.inputs.dtype == source.labels.dtype == np.int32 and source.inputs.shape == source.labels.shape
    for (language, name), texts in TEXTS.items():
        own = source.clients == f"{language}/{name}"
        stream = "\n%\n".join(texts)
        assert said(source, source.inputs[own].ravel()[: len(stream) - 1]) == stream[:-1]
        assert said(source, source.labels[own][source.labels[own] >= 0]) == stream[1:]
        assert set(source.client_groups[own]) == {source.group_names.index(language)}
    assert fortunes.ENTRY.find(tmp_path) == tmp_path
    few = fortunes.load(tmp_path, length=8, tokens=5, languages="ru")
    assert (few.num_classes, few.group_names, len(few.class_names)) == (5, ("ru",), 5) and few.inputs.max() == 4
    fed = data.load("fortunes", data_dir=tmp_path, length=4, test_share=0.5)
    assert (fed.kind, fed.num_clients, fed.group.tolist()) == ("next_token", 3, [0, 0, 1])


def test_english_and_portuguese_lie_at_debians_top(tmp_path):
    write_debian(tmp_path)
    for name, words in (("wisdom", "Know thyself"), ("brasil", "Porque a galinha")):
        (tmp_path / name).write_text(words)
        (tmp_path / f"{name}.dat").write_bytes(b"")
    assert {"en/wisdom", "pt/brasil"} < set(fortunes.load(tmp_path).clients)


@pytest.mark.parametrize(
    ("write", "options", "message"),
    [
        (lambda path: path.write_bytes(b"no gzip"), {}, ("de.jsonl.gz", "line 1")),
        (
            lambda path: path.write_bytes(gzip.compress(b"{}" * 999)[:-9]),
            {},
            ("de.jsonl.gz", "gzip"),
        ),
        (lambda path: path.write_bytes(gzip.compress(b'{"text": "a"}')), {}, ("line 1", "'collection'")),
        (lambda path: path.write_bytes(gzip.compress(b"[1]")), {}, ("de.jsonl.gz", "line 1")),
        (lambda path: write_json_lines(path.parent, "de"), {"languages": "de:fr"}, ("languages", "fr")),
        (lambda path: write_json_lines(path.parent, "de"), {"length": 0}, ("length", 0)),
        (lambda path: write_json_lines(path.parent, "de"), {"tokens": 1}, ("tokens", 1)),
    ],
)
def test_fortunes_that_cannot_be_read(tmp_path, write, options, message):
    write(tmp_path / "de.jsonl.gz")
    with pytest.raises(ValueError, match=mentions(*message)):
        fortunes.load(tmp_path, **options)


ROMEO = "But, soft! what light through yonder window breaks?\n"


def roles(**changes):
    """The object of LEAF's file of three roles: rows slide over a line behind 80 spaces, as LEAF makes them."""
    line = " " * 80 + ROMEO
    windows = [(line[i : i + 80], line[i + 80]) for i in range(len(ROMEO))]
    rows = {"ROMEO_AND_JULIET_ROMEO": windows, "HAMLET_OSRIC": windows[:3], "ROMEO_AND_JULIET_NURSE": windows[5:7]}
    content = {
        "users": list(rows),
        "hierarchies": ["ROMEO_AND_JULIET", "HAMLET", "ROMEO_AND_JULIET"],
        "num_samples": [len(own) for own in rows.values()],
        "user_data": {who: {"x": [x for x, _ in own], "y": [y for _, y in own]} for who, own in rows.items()},
    }
    return content | changes


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def test_shakespeare_is_by_role_and_its_groups_are_plays(tmp_path):
    write(tmp_path / "data" / "all_data" / "all_data_0.json", roles())
    source = shakespeare.load(tmp_path)
    own = source.clients == "ROMEO_AND_JULIET_ROMEO"
    assert (source.num_classes, source.inputs.shape, source.labels.dtype) == (81, (len(ROMEO) + 5, 80), np.int32)
    assert said(source, source.labels[own][:, -1]) == ROMEO and (source.labels[:, :-1] == -1).all()
    assert said(source, source.inputs[own][-1]) == (" " * 80 + ROMEO)[-81:-1]
    assert source.group_names == ("HAMLET", "ROMEO_AND_JULIET") and set(source.client_groups[own]) == {1}
    with pytest.warns(UserWarning, match=mentions("shakespeare", "1 of 3 makers", "min_rows=0")):
        fed = data.load("shakespeare", data_dir=tmp_path, stride=2)
    assert (fed.num_clients, fed.kind, fed.group.tolist()) == (2, "next_token", [0, 1])  # of two rows or more


def test_every_character_of_shakespeare_may_be_learned(tmp_path):
    write(tmp_path / "all_data_0.json", roles())
    last, every = (shakespeare.load(tmp_path, targets=targets) for targets in ("last", "all"))
    np.testing.assert_array_equal(every.labels[:, -1], last.labels[:, -1])
    np.testing.assert_array_equal(every.labels[:, :-1], every.inputs[:, 1:])


def test_leafs_own_split_of_shakespeare(tmp_path):
    write(tmp_path / "train" / "all_data_0_train_9.json", roles(hierarchies=["one too few"]))
    write(tmp_path / "test" / "all_data_0_test_9.json", roles())
    source = shakespeare.load(tmp_path)
    assert source.client_groups is None and source.test_labels.shape == source.labels.shape
    assert source.test_clients.tolist() == source.clients.tolist()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (roles(num_samples=[52, 3, 1]), ("ROMEO_AND_JULIET_NURSE", "1 rows", "2 texts", "2 characters")),
        (roles(users=["HAMLET_OSRIC"] * 3, num_samples=[3, 3, 3]), ("HAMLET_OSRIC", "twice")),
        (
            roles(users=["A"], num_samples=[1], user_data={"A": {"x": ["short"], "y": ["a"]}}),
            ("x", "A", "short", 80, "row 0"),
        ),
        (
            roles(users=["A"], num_samples=[1], user_data={"A": {"x": ["a" * 80], "y": [7]}}),
            ("y", "A", 7, "row 0"),
        ),
    ],
)
def test_damaged_shakespeare(tmp_path, content, message):
    write(tmp_path / "all_data_0.json", content)
    with pytest.raises(ValueError, match=mentions(*message)):
        shakespeare.load(tmp_path)
