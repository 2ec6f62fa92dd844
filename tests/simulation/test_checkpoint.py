"""A state survives the disk bit for bit; anything else in its place is refused with the file's name."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods
from jaxfl.data.synthetic import clustered_linear
from jaxfl.simulation import checkpoint
from jaxfl.testing.small import linear_task

DATA = clustered_linear(8, rows=4, features=4)


def state_of(factory, **options):
    return factory(linear_task(), optax.sgd(0.1), **options).init(jax.random.key(0), DATA)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / checkpoint.NAME
    checkpoint.save(path, state_of(methods.stocfl, slots=4), {"round": 3, "tally": {"loss": float("nan")}})
    return path


def test_round_trip(file):
    state = state_of(methods.stocfl, slots=4)
    loaded = checkpoint.restore(file, jax.eval_shape(lambda: state))
    assert jax.tree.structure(loaded) == jax.tree.structure(state)
    for a, b in zip(jax.tree.leaves(loaded), jax.tree.leaves(state), strict=True):
        assert a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert checkpoint.read_header(file)["round"] == 3


def test_slots_may_have_grown_since(file):
    loaded = checkpoint.restore(file, state_of(methods.stocfl, slots=2))
    assert loaded.models["bias"].shape == (4, 3)


@pytest.mark.parametrize("moment", ["writing", "renaming"])
def test_a_save_that_is_killed_leaves_the_old_file(file, monkeypatch, moment):
    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    before = file.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(*((checkpoint.np, "savez") if moment == "writing" else (checkpoint.os, "replace")), killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(file, state_of(methods.stocfl, slots=4), {"round": 4})
    assert file.read_bytes() == before
    checkpoint.save(file, state_of(methods.stocfl, slots=4), {"round": 4})  # what the other left is no obstacle
    assert checkpoint.read_header(file)["round"] == 4
    assert [path.name for path in file.parent.iterdir()] == [checkpoint.NAME]


def test_other_states_are_refused(file):
    for other in (state_of(methods.fedavg), state_of(methods.ifca), {"w": jnp.zeros(3)}):
        with pytest.raises(ValueError, match=f"{checkpoint.NAME} holds the state of another method or model"):
            checkpoint.restore(file, other)


def test_another_model_is_refused(file):
    state = state_of(methods.stocfl, slots=4)
    wider = state._replace(models={**state.models, "bias": jnp.zeros((4, 7))})
    with pytest.raises(ValueError, match=r"\.models\['bias'\]"):
        checkpoint.restore(file, wider)


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


@pytest.mark.parametrize("damage", [empty, text, cut_short, one_array, no_header, pickled])
def test_what_is_no_checkpoint_is_named(file, damage):
    damage(file)
    with pytest.raises(ValueError, match=f"{checkpoint.NAME} is not a checkpoint of jaxfl.*remove it or choose"):
        checkpoint.read_header(file)
