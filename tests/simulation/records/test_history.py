"""Records in memory and on disk, and what a crash leaves of them."""

import json

import numpy as np
import pytest

from jaxfl.simulation.records.history import History, read_records
from tests.messages import mentions

RECORDS = [{"round": r, "micro_accuracy": r / 8, "clusters": [{"cluster": 0, "clients": r}]} for r in (2, 4, 5)]


def filled(path=None):
    history = History() if path is None else History.writing(path)
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
    history = History.writing(tmp_path / "history.jsonl")
    for count, record in enumerate(RECORDS, start=1):
        history.append(record)
        lines = (tmp_path / "history.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == RECORDS[:count]


def test_reading_never_writes(tmp_path):
    path = tmp_path / "history.jsonl"
    filled(path)
    path.write_text(path.read_text() + '{"round"')
    path.chmod(0o400)
    before = path.read_bytes(), path.stat()
    history = History(str(path))
    assert list(history) == RECORDS
    with pytest.raises(ValueError, match=mentions("history.jsonl", "History.writing(path)")):
        history.append({"round": 9})
    assert (path.read_bytes(), path.stat()) == before and list(history) == RECORDS
    with pytest.raises(FileNotFoundError, match=mentions("nothing.jsonl")):
        History(tmp_path / "nothing.jsonl")
    assert list(tmp_path.iterdir()) == [path]


def test_writing_begins_with_what_is_kept(tmp_path):
    path = tmp_path / "history.jsonl"
    filled(path)
    history = History.writing(path, RECORDS[:2])
    assert list(history) == RECORDS[:2] == read_records(path)
    history.append(RECORDS[2])
    assert read_records(path) == RECORDS
    assert list(History.writing(path)) == [] == read_records(path)


LINES = ["{", "5", '{"micro_accuracy": 1}', '{"round": "2"}', "", "[" * 100_000, "\udcff"]
LINES += [json.dumps({"round": 2, **dict.fromkeys(map(str, range(10_000)), 0)})]  # more than any run's


@pytest.mark.parametrize("line", LINES)
def test_a_damaged_line_is_named_and_nothing_is_left_out(tmp_path, line):
    path = tmp_path / "history.jsonl"
    filled(path)
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([first, line, *others, ""]), errors="surrogateescape")
    with pytest.raises(ValueError, match=mentions("history.jsonl", "line 2")):
        History(path)


def test_a_line_cut_short_by_a_crash_is_left_out(tmp_path):
    path = tmp_path / "history.jsonl"
    filled(path)
    whole = path.read_text()
    path.write_text(whole[:-10])
    assert read_records(path) == RECORDS[:2]
    history = History.writing(path, read_records(path))
    history.append(RECORDS[2])
    assert path.read_text() == whole


def test_clusters_are_kept_where_somebody_moves(tmp_path):
    path, found = tmp_path / "run" / "history.jsonl", ([0, 0, 1], [0, 0, 1], [0, -1, 1], [2, -1, 1])
    path.parent.mkdir()
    history = History.writing(path)
    for round, cluster in enumerate(found, 1):
        history.append({"round": round}, np.array(cluster))
        assert History(path).clusters.tolist() == history.clusters.tolist() == list(found[:round])
    lines = (tmp_path / "run" / "clusters.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 3, 4]
    copy = History.writing(tmp_path / "history.jsonl", history)  # the best round, kept elsewhere
    assert History(copy.path).clusters.tolist() == list(found)
    again = History.writing(path, read_records(path)[:3])  # resumed: what came later is made again
    assert again.clusters.tolist() == History(path).clusters.tolist() == list(found[:3])
    assert History.writing(path).clusters is History(path).clusters is None


def test_clusters_of_many_clients_are_not_kept(tmp_path):
    history = History.writing(tmp_path / "history.jsonl")
    history.append({"round": 1}, np.zeros(10_001, int))
    assert history.clusters is None and not (tmp_path / "clusters.jsonl").exists()
    history.append({"round": 2}, np.zeros(2, int))  # begun by an older version: the first is not known
    assert history.clusters.tolist() == [[-1, -1], [0, 0]]


@pytest.mark.parametrize(
    "cluster", ["[0]", "[0, null]", "[0, -2]", "[0, 1e9]", "7", '["a", "b"]', f"[0, {10**9}]", f"[{10**30}]"]
)
def test_a_damaged_file_of_clusters_is_refused(tmp_path, cluster):
    filled(tmp_path / "history.jsonl")
    lines = f'{{"round": 2, "cluster": [0, 0]}}\n{{"round": 3, "cluster": {cluster}}}\n'
    (tmp_path / "clusters.jsonl").write_text(lines)
    with pytest.raises(ValueError, match=mentions("clusters.jsonl", "64 bits" if "0" * 30 in cluster else "cluster")):
        _ = History(tmp_path / "history.jsonl").clusters


def test_clusters_of_other_rounds_or_clients_are_refused(tmp_path):
    filled(tmp_path / "history.jsonl")
    lines = [f'{{"round": {round}, "cluster": [0, 0]}}\n' for round in (1, 2)]
    (tmp_path / "clusters.jsonl").write_text("".join(lines[::-1]))
    with pytest.raises(ValueError, match=mentions("clusters.jsonl", "rounds")):
        _ = History(tmp_path / "history.jsonl").clusters
    (tmp_path / "clusters.jsonl").write_text("".join(lines))
    history = History.writing(tmp_path / "history.jsonl", RECORDS[:2])
    with pytest.raises(ValueError, match=mentions("clusters.jsonl", "3 clients", 2)):
        history.append({"round": 9}, np.zeros(3, int))


def test_lists_of_numbers_are_read_and_longer_ones_are_refused(tmp_path):
    path = tmp_path / "history.jsonl"
    history = History.writing(path)
    record = {"round": 2, "distance": [0.5, float("nan"), 2], "moved": [True, False], "longest": list(range(1000))}
    history.append(record)
    assert History(path)[0] == record | {"distance": [0.5, None, 2]}
    assert History(path).to_pandas()["moved"].tolist() == [[True, False]]
    for name, value in (("long", list(range(1001))), ("nested", [[1]]), ("text", ["high"])):
        path.write_text(json.dumps({"round": 2, name: value}) + "\n")
        with pytest.raises(ValueError, match=mentions("history.jsonl", name)):
            History(path)
