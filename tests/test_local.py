"""The inner loop: partial batches, blocks, clients without rows, and what padding must not move."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl.corrections import proximal_pull
from jaxfl.data.clients import Batch
from jaxfl.local import fold_rows, full_gradient, local_train, mean_loss
from jaxfl.random import Stream, key_for
from jaxfl.tasks import Task, masked_mean
from tests import problems

DATA = problems.linear_federation()  # sizes 5, 0, 3, 8, 1, 6, 4
EMPTY, SIZES = 1, DATA.train.size.tolist()
QUADRATIC, SOFTMAX = problems.quadratic_task(), problems.softmax_task()
MOMENTUM = optax.sgd(0.2, momentum=0.9)
OPTIMIZERS = {
    "sgd": optax.sgd(0.2),
    "momentum": MOMENTUM,
    "decay": optax.chain(optax.add_decayed_weights(0.1), MOMENTUM),
}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def close(left, right):
    """A few roundings of float64."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13), left, right)


def on_every_client(run):
    """Runs `run(client)` for all clients at once, mapped, as in a chunk."""
    return jax.jit(jax.vmap(run))(jnp.arange(DATA.num_clients, dtype=jnp.int32))


@pytest.mark.parametrize("block", [1, 3, 8, 100])
def test_blocks_do_not_matter_to_losses_and_gradients(block, key):
    model = QUADRATIC.init(key)
    loss, gradient = on_every_client(lambda i: full_gradient(QUADRATIC, block=block)(model, jax.device_put(DATA), i))
    alone = on_every_client(lambda i: mean_loss(QUADRATIC, block=block)(model, jax.device_put(DATA), i))
    close(loss, alone)
    for client, (x, y) in enumerate(problems.rows_of(DATA)):
        if len(y):
            close(gradient["w"][client], problems.quadratic_gradient(np.asarray(model["w"]), x, y))
    assert loss[EMPTY] == 0 and not gradient["w"][EMPTY].any()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_blocks_do_not_matter_to_training(name, key):
    model, data = SOFTMAX.init(key), jax.device_put(DATA)

    def trained(block):
        train = local_train(SOFTMAX, OPTIMIZERS[name], local_epochs=3, batch_size=None, block=block)
        return on_every_client(lambda i: train(key, model, data, i))

    close(trained(3), trained(100))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("batch_size", [None, 1, 4, 100])
def test_training_is_a_plain_loop_over_its_batches(name, batch_size, key):
    """The last, partial batch is averaged over its true rows; padding and idle steps do not move the momentum."""
    data, optimizer, start = jax.device_put(DATA), OPTIMIZERS[name], QUADRATIC.init(key)
    train = local_train(QUADRATIC, optimizer, local_epochs=2, batch_size=batch_size)
    trained, _ = on_every_client(lambda i: train(key_for(key, Stream.BATCHES, 0, i), start, data, i))
    for client, (x, y) in enumerate(problems.rows_of(DATA)):
        model, state = start, optimizer.init(start)
        for epoch in range(2):
            address = key_for(key_for(key, Stream.BATCHES, 0, client), Stream.BATCHES, epoch)
            order = np.argsort(np.asarray(jax.random.bits(address, (len(y),), np.uint32)) >> 1, kind="stable")
            width = batch_size or max(len(y), 1)
            for begin in range(0, len(y), width):
                rows = np.arange(len(y)) if batch_size is None else order[begin : begin + width]
                slope = {"w": jnp.asarray(problems.quadratic_gradient(np.asarray(model["w"]), x[rows], y[rows]))}
                updates, state = optimizer.update(slope, state, model)
                model = optax.apply_updates(model, updates)
        close(trained["w"][client], model["w"])


@pytest.mark.parametrize("batch_size", [1, 3, 5])
def test_every_row_is_seen_once_an_epoch(batch_size, key):
    """With a loss linear in the model, a batch moves it by the mean of its rows: steps of size 1 add their marks."""
    marks = 2.0 ** np.arange(len(DATA.inputs)) / 2.0**20
    data = jax.device_put(replace(DATA, inputs=np.repeat(marks[:, None], 3, 1)))

    def loss(model, batch: Batch, key=None):
        # the number of rows in the batch, to undo the mean
        rows = batch.mask.sum().astype(model["w"].dtype)
        return rows * masked_mean(-(batch.x @ model["w"]), batch.mask)

    task = Task(lambda key: {"w": jnp.zeros(3)}, loss, SOFTMAX.logits)
    train = local_train(task, optax.sgd(1.0), local_epochs=2, batch_size=batch_size)
    trained, _ = on_every_client(lambda i: train(key_for(key, Stream.BATCHES, 0, i), task.init(key), data, i))
    for client, (x, _) in enumerate(problems.rows_of(data)):
        np.testing.assert_allclose(trained["w"][client], 2 * x.sum(0), rtol=1e-12)  # powers of two: nearly exact


def test_epochs_and_clients_and_rounds_have_their_own_order(key):
    data, model = jax.device_put(DATA), SOFTMAX.init(key)
    train = local_train(SOFTMAX, optax.sgd(0.5), local_epochs=1, batch_size=1)
    runs = [train(key_for(key, Stream.BATCHES, r, 3), model, data, jnp.int32(3))[0]["kernel"] for r in range(4)]
    assert len({np.asarray(run).tobytes() for run in runs}) > 1


@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_client_without_rows_stays_where_it_was(batch_size, key):
    """Neither a proximal pull nor weight decay nor momentum moves it."""
    optimizer = optax.chain(proximal_pull(1.0), optax.add_decayed_weights(0.1), optax.sgd(0.5, momentum=0.9))
    model, anchor = SOFTMAX.init(key), SOFTMAX.init(jax.random.fold_in(key, 1))
    train = local_train(SOFTMAX, optimizer, local_epochs=3, batch_size=batch_size)
    trained, loss = train(key, model, jax.device_put(DATA), jnp.int32(EMPTY), anchor=anchor)
    jax.tree.map(np.testing.assert_array_equal, trained, model)
    assert loss == 0


@pytest.mark.parametrize("batch_size", [None, 3])
def test_the_loss_is_the_mean_over_rows(batch_size, key):
    model, data = SOFTMAX.init(key), jax.device_put(DATA)
    still = local_train(SOFTMAX, optax.sgd(0.0), local_epochs=2, batch_size=batch_size)
    losses = on_every_client(lambda i: still(key, model, data, i)[1])
    close(losses, on_every_client(lambda i: mean_loss(SOFTMAX)(model, data, i)))


def test_fold_covers_every_row_once():
    data = jax.device_put(DATA)
    for block in (1, 3, 100):
        counts = on_every_client(
            lambda i, block=block: fold_rows(
                lambda total, batch: total + batch.mask.sum(dtype=jnp.int32), jnp.int32(0), data, data.train, i, block
            )
        )
        assert counts.tolist() == SIZES


@pytest.mark.parametrize(("name", "value"), [("local_epochs", 0), ("batch_size", 0), ("batch_size", -2)])
def test_bad_options_are_named(name, value):
    options = {"local_epochs": 1, "batch_size": None, name: value}
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got {value}"):
        local_train(SOFTMAX, optax.sgd(0.1), **options)
