"""Augmented training images: what may come of one, drawn anew in each step, off in tests, the same when resumed."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from typer.testing import CliRunner

import jaxfl
from jaxfl.cli.app import app
from jaxfl.data import federate
from jaxfl.settings import options
from jaxfl.tasks.augmentation import augment_images, parse_augmentation
from tests.messages import mentions

RNG = np.random.Generator(np.random.PCG64(0))


def possible(image, flip, crop, black):
    """All images that may come of one, in plain NumPy: mirrored or not, padded with black, and cut at every place."""
    ways = []
    for mirrored in [image, image[:, ::-1]][: 1 + flip]:
        padded = np.empty((image.shape[0] + 2 * crop, image.shape[1] + 2 * crop, *image.shape[2:]), image.dtype)
        padded[:] = black
        padded[crop : crop + image.shape[0], crop : crop + image.shape[1]] = mirrored
        for row in range(2 * crop + 1):
            for column in range(2 * crop + 1):
                ways.append(padded[row : row + image.shape[0], column : column + image.shape[1]])
    return np.stack(ways)


@pytest.mark.parametrize(("augment", "count"), [("flip", 2), ("crop1", 9), ("flip,crop1", 18)])
@pytest.mark.parametrize("channels", [(), (3,)])
def test_every_change_comes_equally_often_and_no_other(augment, count, channels):
    image = RNG.normal(size=(5, 4, *channels)).astype(np.float32)
    black = np.array([-1.5, 0.5, 2.0], np.float32)[: channels[0] if channels else 1].reshape(
        (1,) * (2 + len(channels)) + (-1,)
    )
    chosen, rows = parse_augmentation(augment), 250 * count
    images = jnp.asarray(np.broadcast_to(image, (rows, *image.shape)))
    found = np.asarray(augment_images(jax.random.key(0), images, chosen, black))
    ways = possible(image, chosen.flip, chosen.crop, black.ravel() if channels else black.ravel()[0])
    assert len(ways) == count
    which = (found[:, None] == ways).reshape(rows, count, -1).all(-1)
    assert (which.sum(1) == 1).all()
    times = which.sum(0)
    assert ((times - 250) ** 2 / 250).sum() < count + 5 * np.sqrt(2 * count), "chi-squared, five deviations"


@pytest.fixture(scope="module")
def data():
    images = RNG.integers(0, 256, (60, 6, 6, 3), np.uint8)
    parts = [np.arange(0, 20), np.arange(20, 33), np.arange(33, 48)]
    normaliser = {"mean": np.array([100.0, 120, 90]), "std": np.array([50.0, 60, 70])}
    return federate(images, np.arange(60) % 3, parts, [np.arange(48, 60)] * 3, num_classes=3, **normaliser)


def trained(data, augment, method=jaxfl.methods.fedavg, network=None, rounds=2, chunk=None, **how):
    network = jaxfl.models.create("cifar-benchmark-cnn", 3) if network is None else network
    task = jaxfl.classification(network, data, fast_forms=how.pop("fast_forms", True))
    task = task if augment is None else jaxfl.augmented(task, data, augment)
    made = method(task, optax.sgd(0.05), **how)
    plan = {} if chunk is None else {"plan": jaxfl.Plan(chunk=chunk)}
    return jaxfl.run(made, data, rounds=rounds, cohort=1.0, seed=3, **plan)


def test_training_sees_other_images_in_each_step_and_tests_see_them_as_they_are(data):
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=3), data)
    seen = []
    spied = task._replace(
        loss=lambda model, batch, key=None: (
            jax.debug.callback(lambda x: seen.append(np.asarray(x)), batch.x),
            task.loss(model, batch, key),
        )[1],
        averages=None,
        losses=None,
        made_for=None,
        fast=task.fast._replace(dense=None, one_pass=None),
    )
    method = jaxfl.methods.fedavg(
        jaxfl.augmented(spied, data, "flip,crop2"), optax.sgd(0.01), local_epochs=3, batch_size=None
    )
    jaxfl.run(method, data, rounds=2, cohort=1.0, seed=0, plan=jaxfl.Plan(chunk=1))
    jax.effects_barrier()
    pool = (np.asarray(data.inputs, np.float32) - data.mean) / data.std
    black = -np.asarray(data.mean).ravel() / np.asarray(data.std).ravel()
    shown = [x for x in seen if x.ndim == 4 and len(x) == 20]  # whole batches of training rows
    changed = [x for x in shown if not any((np.abs(x[0] - one) < 1e-5).all() for one in pool)]
    assert len(changed) > 8 and len({x.tobytes() for x in shown}) == len(shown), (
        "each of 3 clients x 3 epochs x 2 rounds"
    )
    for x in changed[:6]:
        assert any((np.abs(possible(one, True, 2, black) - x[0]) < 1e-5).reshape(50, -1).all(1).any() for one in pool)
    tests = [x for x in seen if x.ndim == 4 and any((np.abs(x[0] - one) < 1e-5).all() for one in pool[48:])]
    assert tests, "test rows are seen as they are"


@pytest.mark.slow
def test_a_run_is_the_same_again_in_other_chunks_and_without_fast_forms(data):
    runs = [trained(data, "flip,crop2", batch_size=8, chunk=chunk) for chunk in (1, 1, 3)]
    slow = trained(data, "flip,crop2", batch_size=8, chunk=1, fast_forms=False)
    plain = trained(data, None, batch_size=8, chunk=1)
    leaves = [jax.tree.leaves(one.state.model) for one in (*runs, slow, plain)]
    for first, again, wide, other, without in zip(*leaves, strict=True):
        np.testing.assert_array_equal(first, again)
        np.testing.assert_allclose(first, wide, atol=1e-5)
        np.testing.assert_allclose(first, other, atol=1e-5)
        assert np.abs(first - without).max() > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "mlp-batch-norm", "cnn", "textcnn"])
@pytest.mark.parametrize("batch_size", [None, 8])
def test_dense_layers_in_coordinates_and_running_averages_see_the_same_images(data, name, batch_size):
    if name == "textcnn":
        words = federate(np.ones((9, 8), int), np.arange(9) % 3, [np.arange(6)], [np.arange(6, 9)], num_classes=3)
        task = jaxfl.classification(jaxfl.models.create(name, 3, vocabulary=5), words)
        with pytest.raises(ValueError, match=mentions("augment", "images", "(9, 8)")):
            jaxfl.augmented(task, words, "flip")
        return
    if name == "cnn":
        name = "cifar-benchmark-cnn"
    network = jaxfl.models.create(name, 3, **({"hidden": (64, 32)} if name.startswith("mlp") else {}))
    fast, slow = (
        trained(data, "flip,crop1", network=network, batch_size=batch_size, local_epochs=2, chunk=1, fast_forms=forms)
        for forms in (True, False)
    )
    for one, other in zip(jax.tree.leaves(fast.state.model), jax.tree.leaves(slow.state.model), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


@pytest.mark.slow
def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = [
        "run",
        "fedavg",
        "--data",
        "rotated-digits",
        "--set",
        "num_clients=4",
        "--set",
        "rows_per_client=20",
        "--quiet",
    ]
    run += [
        "--set",
        "augment=flip,crop2",
        "--set",
        "batch_size=7",
        "--set",
        "local_epochs=2",
        "--set",
        "hidden=8",
        "--seed",
        "5",
    ]
    for arguments in (
        ["--rounds", "3", "--out", "whole"],
        ["--rounds", "1", "--out", "two"],
        ["--rounds", "3", "--out", "two", "--resume"],
    ):
        made = CliRunner().invoke(app, [*run, *arguments])
        assert made.exit_code == 0, made.output
    whole, two = (jaxfl.load(name) for name in ("whole", "two"))
    for one, other in zip(jax.tree.leaves(whole.state), jax.tree.leaves(two.state), strict=True):
        np.testing.assert_array_equal(
            jax.random.key_data(one) if jnp.issubdtype(one.dtype, jax.dtypes.prng_key) else one,
            jax.random.key_data(other) if jnp.issubdtype(other.dtype, jax.dtypes.prng_key) else other,
        )
    assert json.loads((tmp_path / "two" / "config.json").read_text())["run.augment"] == "flip,crop2"


@pytest.mark.parametrize(
    ("text", "named"),
    [("flop", "'flop'"), ("flip,flip", "flip"), ("crop", "'crop'"), ("crop0", "'crop0'"), ("flip,", "''")],
)
def test_parts_that_are_unknown(text, named):
    with pytest.raises(ValueError, match=mentions("augment", named)):
        parse_augmentation(text)
    with pytest.raises(ValueError, match=mentions("augment", named)):  # before anything is loaded
        options.route("fedavg", "rotated-mnist", [f"augment={text}"])


@pytest.mark.slow
def test_data_of_other_pixels_share_no_program(tmp_path):
    settings = options.route("fedavg", "npz", ["augment=crop2", "model=logistic"])
    losses = []
    for std in (50.0, 60.0):  # of equal shapes, and a border of another value
        np.savez(
            tmp_path / f"{std}.npz", x=np.ones((20, 6, 6), np.uint8), y=np.arange(20) % 2, client=np.arange(20) % 2
        )
        with np.load(tmp_path / f"{std}.npz") as file:
            np.savez(tmp_path / f"{std}.npz", **file, mean=100.0, std=std)
        fed = options.load(settings, data_dir=tmp_path / f"{std}.npz")
        task = options.build(settings, fed).task
        batch, model = fed.batch(fed.train, 0, jnp.arange(4)), task.init(jax.random.key(0))
        plain = jaxfl.classification(jaxfl.models.Logistic(num_classes=2), fed)
        losses.append(float(task.loss(model, batch, jax.random.key(1))))
        again = jaxfl.augmented(plain, fed, "crop2").loss(model, batch, jax.random.key(1))
        assert losses[-1] == pytest.approx(float(again), rel=1e-6)
    assert losses[0] != losses[1]


def test_shifts_beyond_the_image_and_sums_of_outputs_are_refused(data):
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=3), data)
    with pytest.raises(ValueError, match=mentions("augment", "crop6", 6)):
        jaxfl.augmented(task, data, "crop6")
    method = jaxfl.methods.ifca_cam(jaxfl.augmented(task, data, "flip"), optax.sgd(0.1), num_clusters=2)
    with pytest.raises(ValueError, match=mentions("augment", "ifca_cam")):
        jaxfl.run(method, data, rounds=1, cohort=1.0)
