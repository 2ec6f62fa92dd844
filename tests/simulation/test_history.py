"""Records in memory and on disk, and what a crash leaves of them."""

import json

from jaxfl.simulation.history import History, read

RECORDS = [{"round": r, "micro_accuracy": r / 8, "clusters": [{"cluster": 0, "clients": r}]} for r in (2, 4, 5)]


def filled(path=None):
    history = History(path)
    for record in RECORDS:
        history.append(record)
    return history


def test_records_in_memory():
    history = filled()
    assert len(history) == 3 and list(history) == RECORDS and history[-1] == RECORDS[-1]
    assert history.column("round") == [2, 4, 5] and history.column("ari") == [None] * 3


def test_data_frame():
    frame = filled().to_pandas()
    assert frame["round"].tolist() == [2, 4, 5] and frame["micro_accuracy"].tolist() == [0.25, 0.5, 0.625]


def test_a_line_is_on_disk_as_soon_as_it_exists(tmp_path):
    history = History(tmp_path / "history.jsonl")
    for count, record in enumerate(RECORDS, start=1):
        history.append(record)
        lines = (tmp_path / "history.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == RECORDS[:count]


def test_resuming_drops_what_came_after_the_checkpoint(tmp_path):
    path = tmp_path / "history.jsonl"
    filled(path)
    assert list(History(path, resume_at=4)) == RECORDS[:2] == read(path)
    assert list(History(path, resume_at=0)) == [] == read(path)


def test_a_line_cut_short_by_a_crash_is_left_out(tmp_path):
    path = tmp_path / "history.jsonl"
    filled(path)
    whole = path.read_text()
    path.write_text(whole[:-10])
    assert read(path) == RECORDS[:2]
    history = History(path, resume_at=5)
    history.append(RECORDS[2])
    assert path.read_text() == whole


def test_a_new_run_starts_an_empty_file(tmp_path):
    path = tmp_path / "history.jsonl"
    filled(path)
    assert len(History(path)) == 0 and path.read_text() == ""
