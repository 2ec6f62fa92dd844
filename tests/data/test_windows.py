"""Windows: the chosen clients' batches are what they were, whatever else is left out; one shape for all of them."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from jaxfl.data import Split, load
from jaxfl.data.synthetic import clustered_linear
from jaxfl.data.windows import Windows, take_rows
from jaxfl.simulation.program import shapes_of
from tests.problems import batch_of

RAGGED = clustered_linear(8, rows=8, features=4, ragged=True)
DATA = {
    "ragged": RAGGED,
    "turned, with shared test rows": load("rotated-digits", num_clients=8, rows_per_client=20),
    "relabelled": replace(RAGGED, label_shift=np.arange(8, dtype=np.int32) % 2),
    "swapped": replace(
        RAGGED,
        label_map=np.array([[0, 1], [1, 0], [0, 1]], np.int32),
        label_shift=np.arange(8, dtype=np.int32) % 3,
    ),
    "without test rows": replace(RAGGED, test=Split.pack([np.zeros(0, int)] * 8)),
}


@pytest.mark.parametrize("name", DATA)
def test_batches_are_those_of_the_whole(name):
    data = DATA[name]
    windows = Windows(data, 3, ("train", "test"))
    for ids in ([5, 2, 7], [0], [3, 3, 3]):
        window = windows.of(ids)
        assert shapes_of(window) == shapes_of(windows.blank)
        for split in ("train", "test"):
            for client in ids:
                positions = np.arange(getattr(data, split).max_size)
                whole, cut = (batch_of(one, split, np.int32(client), positions) for one in (data, window))
                real = np.asarray(whole.mask)
                for a, b in zip(*map(jax.tree.leaves, (whole, cut)), strict=True):
                    np.testing.assert_array_equal(np.asarray(a)[real], np.asarray(b)[real])
                np.testing.assert_array_equal(real, np.asarray(cut.mask))


def test_dealt_rows_lie_with_their_clients():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("clients",))
    ids, real = np.array([5, 2, 7, 2]), np.array([True, True, True, False])  # the last one fills the second part
    windows = Windows(RAGGED, 4, mesh=mesh, sharded=True)
    window = windows.of(ids, real)
    assert shapes_of(window) == shapes_of(windows.blank)
    size, start = RAGGED.train.size, np.asarray(window.train.start)
    held = [np.asarray(shard.data) for shard in window.labels.addressable_shards]
    assert [len(part) for part in held] == [np.sort(size)[-2:].sum()] * 2
    for part, members in ((0, [5, 2]), (1, [7])):
        own = np.concatenate(
            [RAGGED.labels[RAGGED.train.rows[RAGGED.train.start[i] :][: size[i]]] for i in sorted(members)]
        )
        np.testing.assert_array_equal(held[part][: len(own)], own)
        assert {*(start[members] // len(held[0]))} == {part}
    for client in ids[real]:
        positions = np.arange(RAGGED.train.max_size)
        whole, cut = (batch_of(one, "train", np.int32(client), positions) for one in (RAGGED, jax.device_get(window)))
        np.testing.assert_array_equal(whole.y[: size[client]], cut.y[: size[client]])


def test_everything_that_is_known_of_clients_stays():
    kept, window = RAGGED.per_client(), Windows(RAGGED, 3).of([1, 4])
    assert {name for name, values in window.per_client().items() if not np.array_equal(values, kept[name])} == {
        "train.start",
        "test.start",
    }


def test_a_window_has_room_for_the_largest_and_shares_what_clients_share():
    data = DATA["turned, with shared test rows"]
    size = np.sort(RAGGED.train.size)
    assert len(Windows(RAGGED, 3).blank.inputs) == size[-3:].sum()
    assert len(Windows(RAGGED, 100).blank.inputs) == size.sum()
    distinct = np.unique(np.stack([data.test.start, data.test.size], 1), axis=0)
    assert len(Windows(data, 8, ("test",)).blank.inputs) == distinct[:, 1].sum() < data.test.size.sum()


def test_pages_of_a_mapped_file_are_given_back(tmp_path):
    rows = np.lib.format.open_memmap(tmp_path / "rows.npy", "w+", np.uint8, (20_000, 1000))
    rows[:] = 7
    del rows
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    held = np.asarray(mapped)
    assert held.sum(dtype=np.int64) == 7 * held.size
    before = resident_bytes()
    assert (take_rows(held, np.array([3, 19_999])) == 7).all()
    assert before - resident_bytes() > 10_000_000


def test_rows_beyond_two_gigabytes_are_found(tmp_path):
    sparse = np.lib.format.open_memmap(tmp_path / "rows.npy", "w+", np.uint8, (3_000_000, 1000))
    sparse[[0, 2_999_998, 2_999_999]] = np.array([[1], [2], [3]])
    del sparse
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    found = take_rows(mapped, np.array([2_999_998, 2_999_999, 0, 5], np.int32))
    np.testing.assert_array_equal(found[:, 0], [2, 3, 1, 0])


def test_what_may_be_the_only_copy_is_kept(tmp_path):
    """Arrays in memory, and files mapped copy-on-write, lose nothing."""
    np.save(tmp_path / "rows.npy", np.zeros((5000, 10), np.uint8))
    private = np.load(tmp_path / "rows.npy", mmap_mode="c")
    private[:] = 3
    private.flags.writeable = False
    assert (take_rows(private, np.arange(5000)) == 3).all() and (private == 3).all()
    inputs = jax.tree.map(np.copy, RAGGED.inputs)
    take_rows(inputs, np.array([0]))
    np.testing.assert_array_equal(inputs, RAGGED.inputs)


def resident_bytes():
    """Returns the memory of this process that lies in files."""
    with open("/proc/self/status") as status:
        (line,) = [line for line in status if line.startswith("RssFile")]
    return int(line.split()[1]) * 1024
