"""The directory of a run: who may go on with it, and that its files are whole or not there."""

import concurrent.futures
import json
import os
import re

import numpy as np
import pytest

from jaxfl import files
from jaxfl.simulation.records import checkpoint, directory
from jaxfl.simulation.records.checkpoint import NAME as CHECKPOINT
from jaxfl.simulation.records.directory import CONFIG, HISTORY, SUMMARY, RunDirectory
from tests.messages import mentions

CFG = {"method": "fedavg", "layers": ("a", "b"), "seed": 0, "rounds": 3, "data_dir": None}
STATE = {"w": np.zeros(2, np.float32)}
HEADER = {"identity": {"seed": 0}, "round": 2, "records": 1, "tally": {}}


@pytest.fixture
def held(tmp_path):
    """A directory with a run that has saved once."""
    made = RunDirectory(tmp_path / "a", "out")
    made.write_config(CFG)
    assert made.open({"seed": 0}, resume=False) is None
    made.history().append({"round": 2})
    made.save(STATE, HEADER)
    return made


def test_a_directory_says_what_it_holds(held):
    assert held.files() == [HISTORY, CHECKPOINT]
    assert held.config() == CFG | {"layers": ["a", "b"]} and held.summary() is None
    held.write_summary({"loss": float("nan")})
    assert held.files() == [HISTORY, CHECKPOINT, SUMMARY] and held.summary() == {"loss": None}
    saved = held.open({"seed": 0}, resume=True)
    assert saved.header == {**HEADER, "schema": 1}
    assert held.history(2).column("round") == [2]
    np.testing.assert_array_equal(saved.state(STATE)["w"], STATE["w"])


def test_the_same_run_may_go_on_with_more_rounds_and_data_elsewhere(held):
    held.check(CFG | {"rounds": 9, "data_dir": "there", "eval_every": 1, "checkpoint_every": 2}, resume=True)
    assert not held.is_of_another(CFG | {"rounds": 9})


@pytest.mark.parametrize("name", ["rounds", "data_dir", "weights_file"])
def test_whatever_a_caller_calls_the_run_counts(tmp_path, name):
    """Where the data lie is said in `config.json`, and is no part of the identity that a caller gives."""
    made = RunDirectory(tmp_path)
    made.open({}, resume=False)
    made.save(STATE, HEADER | {"identity": {name: "one", "run.resident": True}, "records": 0})
    with pytest.raises(ValueError, match=mentions(f"{name}='one'", "another")):
        made.open({name: "another"}, resume=True)
    assert made.open({name: "one", "run.resident": False}, resume=True) is not None


def test_a_run_whose_config_has_numbers_for_keys_may_go_on(tmp_path):
    made, config = RunDirectory(tmp_path), {"rates": {1: 0.1, 9: (0.01, 0.02)}}
    made.open(config, resume=False)
    made.write_config(config)
    made.save(STATE, HEADER | {"identity": config, "records": 0})
    made.check(config, resume=True)
    assert made.open(config, resume=True) is not None
    with pytest.raises(ValueError, match=mentions("rates=")):
        made.open({"rates": {1: 0.1, 9: (0.01, 0.03)}}, resume=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "ifca"}, ("out", "method='fedavg'", "ifca")),
        ({"layers": ["a"]}, ("layers=['a', 'b']", "['a']")),
        ({"threshold": 0.5}, ("threshold=None", 0.5)),
    ],
)
def test_another_run_is_refused_by_what_differs(held, change, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        held.check(CFG | change, resume=True)
    assert held.is_of_another(CFG | change)


def elsewhere(door):
    """Returns what a door says to another thread."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return str(pool.submit(door).exception())


def test_one_run_at_a_time(held, tmp_path):
    def another():
        with RunDirectory(held.path, "out").locked():
            pytest.fail("two in one directory")

    wait = (
        rf"out '{held.path}' is in use by another run \(process {os.getpid()} on .+, since 20..-.*\); wait for its end"
    )
    with held.locked():
        with held.locked():  # of a command line, and of the run that it starts
            assert re.match(wait, elsewhere(another))
        assert re.match(wait, elsewhere(another))
        assert re.match(wait, elsewhere(lambda: held.check(CFG, resume=True)))
    assert elsewhere(lambda: held.check(CFG, resume=True)) == "None"
    assert (held.path / directory.LOCK).read_text() == ""


def test_a_damaged_checkpoint_does_not_push_out_the_one_before(held):
    first = held.open({"seed": 0}, resume=True)
    held.save(STATE, first.header | {"round": 3})
    (held.path / checkpoint.NAME).write_bytes(b"damaged")
    with pytest.warns(UserWarning, match=mentions("checkpoint.npz", "round 2")):
        assert held.open({"seed": 0}, resume=True).header["round"] == 2
    held.save(STATE, first.header | {"round": 3})
    assert checkpoint.load(held.path / checkpoint.BEFORE).header["round"] == 2
    assert checkpoint.newest(held.path).header["round"] == 3


def test_a_history_that_has_lost_records_is_refused(held):
    before = (held.path / HISTORY).read_text()
    (held.path / HISTORY).write_text("")
    with pytest.raises(ValueError, match=mentions("history.jsonl", "1 records", "2 rounds", "found 0")):
        held.open({"seed": 0}, resume=True)
    (held.path / HISTORY).write_text(before)
    assert held.open({"seed": 0}, resume=True) is not None
    for header in ({"round": 3}, HEADER | {"identity": 5}, HEADER | {"round": "3"}):
        held.save(STATE, header)
        with pytest.raises(ValueError, match=mentions("checkpoint.npz", "not the checkpoint")):
            held.open({"seed": 0}, resume=True)


def test_what_is_in_the_way_is_refused(held, tmp_path):
    for door in (lambda: held.check(CFG, resume=False), lambda: held.open({"seed": 0}, resume=False)):
        with pytest.raises(ValueError, match=mentions("out", "history.jsonl", "--resume")):
            door()
    with pytest.raises(ValueError, match=mentions("seed=0", 1)):
        held.open({"seed": 1}, resume=True)
    for place in (held.path / CONFIG, held.path / CONFIG / "a", held.path / CONFIG / "a" / "b"):
        file = RunDirectory(place, "out")
        for door in (lambda file=file: file.check(CFG, resume=True), lambda file=file: file.open({}, resume=False)):
            with pytest.raises(ValueError, match=mentions("out", str(place), "file")):
                door()
    with pytest.raises(ValueError, match=mentions("resume", "out", "None")):
        RunDirectory.at(None, resume=True, argument="out")
    assert RunDirectory.at(None, resume=False) is None


@pytest.mark.parametrize("kind", ["link", "link to nothing", "folder", "pipe"])
@pytest.mark.parametrize("name", [directory.LOCK, files.MARKER, HISTORY])
def test_what_is_no_file_is_neither_written_to_nor_waited_for(held, tmp_path, name, kind):
    path, mine = held.path / name, tmp_path / "mine.txt"
    mine.write_text("mine")
    path.unlink(missing_ok=True)
    if kind.startswith("link"):
        path.symlink_to(mine if kind == "link" else tmp_path / "nothing")
    else:
        {"folder": os.mkdir, "pipe": os.mkfifo}[kind](path)
    for door in (lambda: held.check(CFG, resume=True), lambda: held.locked().__enter__()):
        with pytest.raises(ValueError, match=mentions(str(held.path), name)):
            door()
    assert mine.read_text() == "mine" and not (tmp_path / "nothing").exists()


def test_a_config_alone_is_in_nobodys_way(tmp_path):
    alone = RunDirectory(tmp_path)
    alone.write_config(CFG)
    for resume in (False, True):
        alone.check(CFG | {"method": "ifca"}, resume=resume)
        assert alone.open({"seed": 1}, resume=resume) is None
    assert alone.is_of_another(CFG | {"method": "ifca"}) and not RunDirectory(tmp_path / "none").is_of_another(CFG)


def test_removing_leaves_nothing_and_needs_nothing(held):
    held.remove()
    assert not held.path.exists()
    held.remove()


def test_a_write_that_is_killed_leaves_the_old_file(held, monkeypatch):
    def killed(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(directory.os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            held.write_config({"method": "ifca"})
    assert held.config() is not None and held.config()["method"] == "fedavg"


@pytest.mark.parametrize("name", [CONFIG, "summary.json"])
def test_a_text_that_would_fill_a_screen_for_minutes_is_refused(held, name):
    (held.path / name).write_text(json.dumps(CFG | {"data": "x" * 5_000_000}))
    with pytest.raises(ValueError, match=mentions(name, "bytes")):
        held.check_readable()


def test_what_is_no_json_is_named(held):
    (held.path / CONFIG).write_text(json.dumps(CFG)[:20])
    with pytest.raises(ValueError, match=mentions("config.json", "JSON")):
        held.check(CFG, resume=True)
