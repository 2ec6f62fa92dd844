"""A state survives the disk bit for bit; anything else in its place is refused with the file's name."""

import errno
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods
from jaxfl.data.synthetic import clustered_linear
from jaxfl.simulation.records import checkpoint
from jaxfl.testing.compare import assert_equal
from jaxfl.testing.small import linear_task
from tests.messages import mentions

DATA = clustered_linear(8, rows=4, features=4)


def state_of(factory, **options):
    """Returns a state of any numbers, made without compiling anything."""
    method, rng = factory(linear_task(), optax.sgd(0.1), **options), np.random.default_rng(0)
    shapes = jax.eval_shape(method.init, jax.random.key(0), DATA)
    return jax.tree.map(lambda leaf: np.asarray(100 * rng.random(leaf.shape), leaf.dtype), shapes)


STATE = state_of(methods.stocfl, slots=4)


def save(folder, round):
    checkpoint.save(folder, STATE, {"round": round, "tally": {"loss": float("nan")}})


@pytest.fixture
def file(tmp_path):
    save(tmp_path, 3)
    return tmp_path / checkpoint.NAME


def test_round_trip(file):
    saved = checkpoint.load(file)
    loaded = saved.state(jax.eval_shape(lambda: STATE))
    assert jax.tree.structure(loaded) == jax.tree.structure(STATE)
    for a, b in zip(jax.tree.leaves(loaded), jax.tree.leaves(STATE), strict=True):
        assert a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert saved.header["round"] == 3


def test_slots_may_have_grown_since(file):
    grow = methods.stocfl(linear_task(), optax.sgd(0.1), slots=2).grow
    loaded = checkpoint.load(file).state(state_of(methods.stocfl, slots=2), grow)
    assert loaded.models["bias"].shape == (4, 3)


def slots_of(used, rows, length=5000, dtype=np.float32):
    """Returns `rows` slots of which the first `used` differ, with NaN and -0 among the others' numbers."""
    unused = np.resize(np.array([np.nan, -0.0, 0.0, 1.0], dtype), length)
    numbers = np.arange(used * length, dtype=dtype).reshape(used, length)
    return np.concatenate([numbers, np.tile(unused, (rows - used, 1))])


@pytest.mark.parametrize(
    ("used", "rows", "dtype", "held"),
    [(1, 16, np.float32, 2), (16, 16, np.float32, 16), (0, 4, jnp.bfloat16, 1), (0, 200, np.float32, 4)],
)
def test_slots_that_were_never_used_take_no_room(tmp_path, used, rows, dtype, held):
    """Of 200 a reader would have to make more of the file than is let through; so a sixty-fourth is held."""
    state = {"models": jnp.asarray(slots_of(used, rows), dtype), "cluster": jnp.zeros(9, int), "small": jnp.eye(2)}
    checkpoint.save(tmp_path, state, {"round": 1})
    file = tmp_path / checkpoint.NAME
    assert 0 <= file.stat().st_size - held * 5000 * np.dtype(dtype).itemsize < 3000
    found = checkpoint.load(file).state(state)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(state), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == np.asarray(other).tobytes()


@pytest.mark.parametrize("rows", [10**12, -1, 2.5, True])
def test_rows_that_a_file_cannot_repeat_are_refused(tmp_path, rows, monkeypatch):
    monkeypatch.setattr(checkpoint, "_ROWS", "unknown")  # a header of somebody else's
    checkpoint.save(tmp_path, {"a": np.eye(3)}, {"round": 1, "rows": {"['a']": rows}})
    monkeypatch.undo()
    with pytest.raises(ValueError, match=mentions(checkpoint.NAME, "damaged")):
        checkpoint.load(tmp_path / checkpoint.NAME)


def test_the_last_two_are_kept(file):
    assert checkpoint.newest(file.parent / "none") is None
    save(file.parent, 4)
    save(file.parent, 5)
    assert checkpoint.newest(file.parent).header["round"] == 5
    assert checkpoint.load(file.parent / checkpoint.BEFORE).header["round"] == 4
    file.unlink()  # killed between the two renames
    assert checkpoint.newest(file.parent).header["round"] == 4


@pytest.mark.parametrize("moment", ["writing", "renaming"])
def test_a_save_that_is_killed_leaves_the_old_file(file, monkeypatch, moment):
    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    before = file.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(*((checkpoint.np, "savez") if moment == "writing" else (checkpoint.os, "replace")), killed)
        with pytest.raises(KeyboardInterrupt):
            save(file.parent, 4)
    assert file.read_bytes() == before
    save(file.parent, 4)  # what the other left is no obstacle
    assert checkpoint.load(file).header["round"] == 4
    assert {path.name for path in file.parent.iterdir()} == {checkpoint.NAME, checkpoint.BEFORE}


def test_a_full_disk_leaves_the_old_files_and_no_more(file, monkeypatch):
    def full(file, **arrays):
        file.write(b"as much as there was room for")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = file.read_bytes()
    monkeypatch.setattr(checkpoint.np, "savez", full)
    with pytest.raises(OSError, match=mentions("No space left on device")):
        save(file.parent, 4)
    assert file.read_bytes() == before and list(file.parent.iterdir()) == [file]


def test_other_states_are_refused(file):
    for other in (state_of(methods.fedavg), state_of(methods.ifca), {"w": jnp.zeros(3)}):
        with pytest.raises(ValueError, match=mentions(checkpoint.NAME, "state", "model")):
            checkpoint.load(file).state(other)


def test_another_model_is_refused(file):
    wider = STATE._replace(models={**STATE.models, "bias": jnp.zeros((4, 7))})
    with pytest.raises(ValueError, match=mentions(".models['bias']")):
        checkpoint.load(file).state(wider)


@pytest.mark.parametrize("name", [".cluster", ".models['bias']"])
@pytest.mark.parametrize(
    "change", [lambda array: array[:0], lambda array: array[:-1], lambda array: np.repeat(array, 2, 0)]
)
def test_arrays_of_lengths_that_no_state_has_are_refused(file, name, change):
    """Also those that a grown state would have, of one array alone."""
    method, saved = methods.stocfl(linear_task(), optax.sgd(0.1), slots=2), checkpoint.load(file)
    changed = saved._replace(arrays={**saved.arrays, name: change(saved.arrays[name])})
    with pytest.raises(ValueError, match=mentions(str(file), ".")):
        changed.state(state_of(methods.stocfl, slots=2), method.grow)


@pytest.mark.parametrize("value", [[], None, 5, "x"])
@pytest.mark.parametrize("name", ["rows", "kinds"])
def test_a_header_of_other_types_is_refused(tmp_path, name, value):
    checkpoint.save(tmp_path, STATE, {"round": 3, name: value})
    path = tmp_path / checkpoint.NAME
    with pytest.raises(ValueError, match=mentions(str(path), name)):
        checkpoint.load(path)


def empty(path):
    path.write_bytes(b"")


def text(path):
    path.write_text("round 3")


def cut_short(path):
    path.write_bytes(path.read_bytes()[:200])


def one_array(path):
    with path.open("wb") as out:
        np.save(out, np.zeros(3))


def no_header(path):
    with path.open("wb") as out:
        np.savez(out, w=np.zeros(3))


def pickled(path):
    with path.open("wb") as out:
        np.savez(out, header=np.array([{"round": 3}], object))


def changed(path):
    """Another value in one array, in a zip whose own checksums are right."""
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    arrays[".models['bias']"] = arrays[".models['bias']"] + np.float32(1)
    with path.open("wb") as out:
        np.savez(out, **arrays)


def of_another_format(path):
    checkpoint.save(path.parent, STATE, {"round": 3, "schema": 0})


DAMAGES = [empty, text, cut_short, one_array, no_header, pickled, changed, of_another_format]


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_no_checkpoint_is_named(file, damage):
    damage(file)
    (file.parent / checkpoint.BEFORE).unlink(missing_ok=True)
    for door in (lambda: checkpoint.load(file), lambda: checkpoint.newest(file.parent)):
        with pytest.raises(ValueError, match=mentions(checkpoint.NAME, "damaged")):
            door()


def test_of_a_damaged_one_the_one_before_is_used(file):
    save(file.parent, 4)
    changed(file)
    with pytest.warns(UserWarning, match=mentions(checkpoint.NAME, "SHA-256", checkpoint.BEFORE, "round 3")):
        assert checkpoint.newest(file.parent).header["round"] == 3
    empty(file.parent / checkpoint.BEFORE)
    with pytest.raises(ValueError, match=mentions(checkpoint.NAME, "damaged")):
        checkpoint.newest(file.parent)


def test_a_flipped_bit_anywhere_is_found_or_harmless(file):
    """A bit of the zip's own bookkeeping, such as a time, may change nothing; the state is the same then."""
    whole, refused = file.read_bytes(), 0
    for place in np.random.default_rng(0).integers(0, 8 * len(whole), 100):
        content = bytearray(whole)
        content[place // 8] ^= 1 << place % 8
        file.write_bytes(content)
        try:
            loaded = checkpoint.load(file).state(STATE)
        except ValueError as error:
            refused += 1
            assert str(file) in str(error)
            continue
        assert_equal(loaded, STATE, "what is loaded must be what was saved")
    assert refused > 50


def test_types_that_numpy_does_not_know_come_back(tmp_path):
    state = {"a": jnp.arange(3, dtype=jnp.bfloat16), "b": jnp.float8_e4m3fn(2.0), "c": jnp.ones(2)}
    checkpoint.save(tmp_path, state, {"round": 1})
    found = checkpoint.load(tmp_path / checkpoint.NAME).state(state)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(state), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one, np.float32), np.asarray(other, np.float32))
