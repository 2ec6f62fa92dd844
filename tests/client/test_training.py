"""The inner loop: partial batches, blocks, clients without rows, stragglers, attackers."""

import math
from dataclasses import replace
from itertools import islice

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import methods
from jaxfl.client import conduct, passes, training
from jaxfl.client.corrections import proximal_pull
from jaxfl.client.passes import (
    FEWEST_ROWS,
    LAYER_CACHE_BYTES,
    fold_rows,
    full_gradient,
    mean_loss,
    mean_losses,
    rows_at_once,
)
from jaxfl.client.steps import Steps, step_count
from jaxfl.client.training import local_train
from jaxfl.data import conditions
from jaxfl.data.clients import Batch
from jaxfl.random import Stream, key_for
from jaxfl.server import optimizers
from jaxfl.tasks import Task, masked_mean
from tests import problems
from tests.messages import mentions
from tests.reference import batches

pytestmark = pytest.mark.rotating("function", weeks=2)

DATA = problems.linear_federation()  # sizes 5, 0, 3, 8, 1, 6, 4
CLIENTS = np.arange(DATA.num_clients, dtype=np.int32)
EMPTY, SIZES = 1, DATA.train.size.tolist()
QUADRATIC, SOFTMAX = problems.quadratic_task(), problems.softmax_task()
MOMENTUM = optax.sgd(0.2, momentum=0.9)
# with what their formula says: momentum, weight decay
OPTIMIZERS = {
    "sgd": (optax.sgd(0.2), 0.0, 0.0),
    "momentum": (MOMENTUM, 0.9, 0.0),
    "decay": (optax.chain(optax.add_decayed_weights(0.1), MOMENTUM), 0.9, 0.1),
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
    return jax.jit(jax.vmap(run))(CLIENTS)


@pytest.mark.parametrize("block", [3, 8])
def test_blocks_do_not_matter_to_losses_and_gradients(block, key):
    model, data = QUADRATIC.init(key), jax.device_put(DATA)
    gradient_of, loss_of = full_gradient(QUADRATIC, block=block), mean_loss(QUADRATIC, block=block)
    (loss, gradient), alone = on_every_client(lambda i: (gradient_of(model, data, i, key), loss_of(model, data, i)))
    close(loss, alone)
    for client, (x, y) in enumerate(problems.rows_of(DATA)):
        if len(y):
            close(gradient["w"][client], problems.quadratic_gradient(np.asarray(model["w"]), x, y))
            close(loss[client], quadratic_loss(np.asarray(model["w"]), x, y))
    assert loss[EMPTY] == 0 and not gradient["w"][EMPTY].any()


def test_a_pass_takes_rows_of_a_convolutional_network_as_they_fit_a_cache():
    # 4 bytes a number
    small, large = ({"w": jax.ShapeDtypeStruct((size,), jnp.float32)} for size in (1, LAYER_CACHE_BYTES))
    found = [
        rows_at_once(SOFTMAX._replace(fast=SOFTMAX.fast._replace(widest=widest)), model, 256)
        for model in (small, large)
        for widest in (0, 100, LAYER_CACHE_BYTES // 20, LAYER_CACHE_BYTES)
    ]
    assert found == [256, 256, 20, FEWEST_ROWS, 256, 256, 80, FEWEST_ROWS]


def test_losses_are_the_same_when_few_rows_are_taken_at_once(key, monkeypatch):
    monkeypatch.setattr(passes, "FEWEST_ROWS", 3)  # of up to eight rows
    data, models = jax.device_put(DATA), jax.vmap(QUADRATIC.init)(jax.random.split(key, 2))
    wide = QUADRATIC._replace(fast=QUADRATIC.fast._replace(widest=LAYER_CACHE_BYTES))
    few, whole = (on_every_client(lambda i, t=task: mean_losses(t)(models, data, i)) for task in (wide, QUADRATIC))
    close(few, whole)
    first = jax.tree.map(lambda leaf: leaf[0], models)
    close(on_every_client(lambda i: mean_loss(wide)(first, data, i)), whole[:, 0])


def test_a_gradient_of_batch_statistics_is_not_taken_of_few_rows():
    wide = SOFTMAX._replace(fast=SOFTMAX.fast._replace(widest=LAYER_CACHE_BYTES))
    few, every = (passes.gradient_rows(task, {}, 256) for task in (wide, wide._replace(whole=True)))
    assert few == FEWEST_ROWS and every > 10**9


def test_every_block_of_a_gradient_drops_units_of_its_own(key):
    def dropped(model, batch, key):
        return model["w"].sum() * jax.random.uniform(key)

    gradient_of = full_gradient(QUADRATIC._replace(loss=dropped), block=3)
    found = gradient_of(QUADRATIC.init(key), jax.device_put(DATA), jnp.int32(0), key)[1]["w"]
    first, second = (jax.random.uniform(key_for(key, Stream.DROPOUT, index)) for index in (0, 1))
    np.testing.assert_allclose(found, (3 * first + 2 * second) / 5, rtol=1e-12)  # of five rows


def quadratic_loss(w, x, y):
    away = w - x
    return (0.5 * problems.SCALE[y] * np.einsum("bi,ij,bj->b", away, problems.CURVATURE, away)).mean()


def plain_loop(key, name, start, client, epochs, batch_size, steps=None):
    """Returns what a client makes of `start` in that many epochs of the quadratic task, and its loss on the way.

    With `steps`, it makes so many of their steps.
    """
    (x, y), (_, momentum, decay) = problems.rows_of(DATA)[client], OPTIMIZERS[name]
    w, velocity, losses = np.asarray(start["w"]), np.zeros(3), [0.0] * (len(y) == 0)
    address = key_for(key, Stream.BATCHES, 0, client)
    for rows in islice(batches(address, len(y), epochs, batch_size), steps) if len(y) else ():
        losses += [quadratic_loss(w, x[rows], y[rows])] * len(rows)
        velocity = momentum * velocity + problems.quadratic_gradient(w, x[rows], y[rows]) + decay * w
        w = w - 0.2 * velocity
    return w, np.mean(losses)


@pytest.mark.parametrize(
    ("name", "batch_size", "block"),
    [("sgd", None, 100), ("decay", None, 3), ("momentum", 4, 100), ("decay", 1, 100), ("momentum", 100, 3)],
)
def test_training_is_a_plain_loop_over_its_batches(name, batch_size, block, key):
    """The last, partial batch is averaged over its true rows; padding and idle steps do not move the momentum."""
    data, start = jax.device_put(DATA), QUADRATIC.init(key)
    train = local_train(QUADRATIC, OPTIMIZERS[name][0], local_epochs=2, batch_size=batch_size, block=block)
    trained, loss = on_every_client(lambda i: train(key_for(key, Stream.BATCHES, 0, i), start, data, i))
    for client in range(DATA.num_clients):
        wanted = plain_loop(key, name, start, client, 2, batch_size)
        close((trained["w"][client], loss[client]), wanted)


LENGTHS = [(Steps(1), 4), (Steps(5), 3), (Steps(7), 100), (0.5, 2), (2.5, 3), (0.1, 1), (Steps(3), None), (2.0, 4)]


def full_steps(length, size, batch_size):
    """The number of steps of a client that is no straggler."""
    in_one = max(SIZES) if batch_size is None else min(batch_size, max(SIZES))
    whole = length.number if isinstance(length, Steps) else math.ceil(round(length * math.ceil(size / in_one), 9))
    return whole if size else 0


@pytest.mark.parametrize(("length", "batch_size"), LENGTHS, ids=str)
def test_steps_are_those_of_as_many_passes_as_they_need(length, batch_size, key):
    """They go on in a new shuffled pass; the loss is that of the rows on the way."""
    data, start = jax.device_put(DATA), QUADRATIC.init(key)
    train = local_train(QUADRATIC, OPTIMIZERS["decay"][0], local_epochs=length, batch_size=batch_size)

    def run(client):
        own = key_for(key, Stream.BATCHES, 0, client)
        return train(own, start, data, client), step_count(own, data, client, length, batch_size)

    (trained, loss), counts = on_every_client(run)
    wanted = [full_steps(length, size, batch_size) for size in SIZES]
    assert counts.tolist() == wanted and len(set(counts.tolist())) > 1
    for client, count in enumerate(wanted):
        made = plain_loop(key, "decay", start, client, count, batch_size, steps=count)
        close((trained["w"][client], loss[client]), made)


def test_late_clients_make_the_first_of_their_steps(key):
    data, start = jax.device_put(conditions.straggle(DATA, 0.5)), QUADRATIC.init(key)
    train = local_train(QUADRATIC, MOMENTUM, local_epochs=Steps(6), batch_size=3)

    def run(client):
        own = key_for(key, Stream.BATCHES, 0, client)
        return train(own, start, data, client), step_count(own, data, client, Steps(6), 3)

    (trained, loss), counts = on_every_client(run)
    assert counts[EMPTY] == 0 and 6 in counts and len(set(counts.tolist())) > 3
    for client, count in enumerate(counts.tolist()):
        close((trained["w"][client], loss[client]), plain_loop(key, "momentum", start, client, count, 3, steps=count))


@pytest.mark.parametrize(
    ("length", "batch_size", "words"),
    [
        (Steps(0), 4, ("local_steps", 0)),
        (Steps(2**31), 4, ("local_steps", 2**31)),
        (0.0, 4, ("local_epochs", 0.0)),
        (float("nan"), 4, ("local_epochs", "nan")),
        (0.5, None, ("local_epochs", "0.5", "batch_size=None")),
    ],
)
def test_a_length_that_no_training_has_is_refused(length, batch_size, words):
    with pytest.raises(ValueError, match=mentions(*words)):
        local_train(QUADRATIC, MOMENTUM, local_epochs=length, batch_size=batch_size)


@pytest.mark.parametrize(("length", "words"), [(Steps(2.5), ("local_steps", 2.5)), ("5", ("local_epochs", '"5"'))])
def test_a_length_of_another_type_is_refused(length, words):
    with pytest.raises(TypeError, match=mentions(*words)):
        local_train(QUADRATIC, MOMENTUM, local_epochs=length, batch_size=4)


@pytest.mark.parametrize(("batch_size", "block"), [(None, 3), (4, 100)])
def test_stragglers_make_the_first_of_their_epochs(batch_size, block, key):
    data, start = jax.device_put(conditions.straggle(DATA, 0.5)), QUADRATIC.init(key)
    train = local_train(QUADRATIC, MOMENTUM, local_epochs=6, batch_size=batch_size, block=block)

    def run(client):
        own = key_for(key, Stream.BATCHES, 0, client)
        return train(own, start, data, client), conduct.training_length(own, data, 6)

    (trained, loss), counts = on_every_client(run)
    assert 6 in counts and len(set(counts.tolist())) > 2
    for client, epochs in enumerate(counts.tolist()):
        wanted = plain_loop(key, "momentum", start, client, epochs, batch_size)
        close((trained["w"][client], loss[client]), wanted)


@pytest.mark.parametrize("stragglers", [None, 0.5])
@pytest.mark.parametrize("batch_size", [None, 3])
def test_losses_of_the_first_steps_are_those_before_each_and_change_nothing(batch_size, stragglers, key):
    """Also of fewer steps than are recorded, and of clients that make fewer epochs."""
    data = DATA if stragglers is None else conditions.straggle(DATA, stragglers)
    data, start, options = jax.device_put(data), QUADRATIC.init(key), {"local_epochs": 3, "batch_size": batch_size}
    plain = local_train(QUADRATIC, MOMENTUM, **options)
    watched = local_train(QUADRATIC, MOMENTUM, **options, recorded_steps=4)

    def run(client):
        own = key_for(key, Stream.BATCHES, 0, client)
        count = step_count(own, data, client, 3, batch_size)
        return plain(own, start, data, client), watched(own, start, data, client), count

    wanted, (trained, (loss, losses)), counts = on_every_client(run)
    close((trained, loss), wanted)
    for client, count in enumerate(counts.tolist()):
        (x, y), w, velocity, seen = problems.rows_of(DATA)[client], np.asarray(start["w"]), np.zeros(3), []
        address = key_for(key, Stream.BATCHES, 0, client)
        for rows in batches(address, len(y), 3, batch_size) if len(y) else ():
            seen.append(quadratic_loss(w, x[rows], y[rows]))
            velocity = 0.9 * velocity + problems.quadratic_gradient(w, x[rows], y[rows])
            w = w - 0.2 * velocity
        close(losses[client], np.pad(seen[: min(count, 4)], (0, 4 - min(count, 4))))


def attacked(kind, who=(0, 3), scale=2.0):
    """DATA, with these attackers."""
    data = conditions.attack(DATA, kind, 0.3, scale=scale)
    attacker = np.isin(np.arange(DATA.num_clients), who)
    train = data.train if data.train.flipped is None else replace(data.train, flipped=attacker)
    return jax.device_put(replace(data, train=train, attack=replace(data.attack, attacker=attacker)))


def by_nobody(data):
    """The federation in which nobody attacks, in the same program."""
    nobody = np.zeros(DATA.num_clients, bool)
    train = data.train if data.train.flipped is None else replace(data.train, flipped=nobody)
    return jax.device_put(replace(data, train=train, attack=replace(data.attack, attacker=nobody)))


def test_sign_flip_sends_the_opposite_of_what_was_learned(key):
    start, data = SOFTMAX.init(key), attacked("sign-flip", scale=2.0)
    train = local_train(SOFTMAX, MOMENTUM, local_epochs=2, batch_size=4)

    @jax.jit
    def run(data):
        return jax.vmap(lambda i: (train(key, start, data, i), full_gradient(SOFTMAX)(start, data, i, key)[1]))(CLIENTS)

    ((trained, loss), slope), ((sent, reported), opposite) = run(by_nobody(data)), run(data)
    close(reported, loss)
    for name, leaf in trained.items():
        wanted, before = np.array(leaf), np.asarray(start[name])
        wanted[[0, 3]] = before - 2.0 * (wanted[[0, 3]] - before)
        close(sent[name], wanted)
        assert abs(sent[name][0] - leaf[0]).max() > 1e-3
    factor = np.where(np.isin(np.arange(DATA.num_clients), (0, 3)), -2.0, 1.0)
    close(opposite["bias"], factor[:, None] * np.asarray(slope["bias"]))


def test_long_passes_do_not_flip_their_own_steps(key):
    """A full-batch pass in blocks takes the true gradient; only what is sent is turned, once."""
    start, data = QUADRATIC.init(key), attacked("sign-flip")
    short, long = (local_train(QUADRATIC, MOMENTUM, local_epochs=3, batch_size=None, block=block) for block in (100, 3))
    close(*(on_every_client(lambda i, train=train: train(key, start, data, i)[0]) for train in (short, long)))


def test_gaussian_sends_noise_of_its_scale_and_nothing_learned(key):
    size = 4000
    task = Task(lambda key: {"w": jnp.ones(size)}, lambda model, batch, key=None: model["w"].sum(), SOFTMAX.outputs)
    train, start = local_train(task, optax.sgd(0.1), local_epochs=2, batch_size=4), {"w": jnp.ones(size)}

    @jax.jit
    def send(data, round):
        return jax.vmap(lambda i: train(key_for(key, Stream.BATCHES, round, i), start, data, i)[0]["w"])(CLIENTS)

    data = {scale: attacked("gaussian", who=(0, EMPTY, 3), scale=scale) for scale in (0.5, 2.0)}
    sent = {scale: [np.asarray(send(of, round)) for round in (0, 1)] for scale, of in data.items()}
    for scale, (first, second) in sent.items():
        for noise in (first[0] - 1, first[3] - 1, second[0] - 1):
            # five standard deviations of a mean and of a standard deviation
            assert abs(noise.mean()) < 5 * scale / np.sqrt(size)
            assert abs(noise.std() / scale - 1) < 5 / np.sqrt(2 * size)
        assert abs(np.corrcoef([first[0], first[3], second[0]]) - np.eye(3)).max() < 5 / np.sqrt(size)
        np.testing.assert_array_equal(first[EMPTY], start["w"])
        assert (first[2] < 1).all(), "honest clients send what they learned"
    close(sent[2.0][0][0] - 1, 4 * (sent[0.5][0][0] - 1))
    gradient = jax.jit(full_gradient(task))(start, data[2.0], jnp.int32(0), key)[1]["w"]
    assert abs(gradient.std() / 2 - 1) < 5 / np.sqrt(2 * size)


def test_label_flip_trains_on_other_labels_and_sends_what_it_learned(key):
    start, data = SOFTMAX.init(key), attacked("label-flip")
    labels = np.array(DATA.labels)
    for client in (0, 3):
        rows = DATA.train.rows[DATA.train.start[client] :][: DATA.train.size[client]]
        labels[rows] = 1 - labels[rows]
    relabelled = replace(by_nobody(data), labels=jnp.asarray(labels))
    train = local_train(SOFTMAX, MOMENTUM, local_epochs=2, batch_size=4)
    run = jax.jit(lambda data: jax.vmap(lambda i: train(key, start, data, i))(CLIENTS))
    flipped = run(data)
    close(flipped, run(relabelled))
    assert abs(flipped[0]["kernel"][0] - run(by_nobody(data))[0]["kernel"][0]).max() > 1e-3


@pytest.mark.parametrize(
    ("rule", "batch_size", "block"),
    [
        (lambda rate: optax.chain(optax.add_decayed_weights(0.1), optax.sgd(rate, momentum=0.9)), None, 100),
        (optax.adam, 3, 100),
        (optax.sgd, None, 3),
        (optax.sgd, 3, 1),
    ],
)
def test_a_rate_is_another_learning_rate(rule, batch_size, block, key):
    """Steps of a rate are those of an optimiser that was made with it, wherever the rows come from."""
    start, data = SOFTMAX.init(key), jax.device_put(DATA)

    @jax.jit
    def trained(rate, of):
        train = local_train(SOFTMAX, rule(rate), local_epochs=2, batch_size=batch_size, block=block)
        return jax.vmap(lambda i: train(key, start, of, i))(CLIENTS)

    with jax.numpy_dtype_promotion("standard"):  # Adam takes a float to the power of a counter
        quarter, whole = (replace(data, rate=jnp.float64(rate)) for rate in (0.25, 1.0))
        close(trained(0.2, quarter), trained(0.05, whole))


@pytest.mark.parametrize("batch_size", [None, 4])
def test_without_conditions_the_program_is_as_if_there_were_none(batch_size, key, monkeypatch):
    start, data = SOFTMAX.init(key), jax.device_put(DATA)

    def program():
        train = local_train(SOFTMAX, MOMENTUM, local_epochs=2, batch_size=batch_size)
        return jax.jit(lambda *given: (train(*given), full_gradient(SOFTMAX)(*given[1:], given[0]))).lower(
            key, start, data, jnp.int32(0)
        )

    usual = program().as_text()
    for name, nothing in {
        "training_length": lambda key, data, full: full,
        "perturb_model": lambda key, start, trained, data, client: trained,
        "perturb_gradient": lambda key, gradient, data, client: gradient,
        "scale_updates": lambda updates, rate: updates,
    }.items():
        monkeypatch.setattr(training.conduct, name, nothing)
    assert program().as_text() == usual


@pytest.mark.parametrize(("batch_size", "block"), [(None, 8), (None, 2), (2, 8), (2, 2)])
def test_clients_of_equally_many_rows_train_without_a_look_at_who_is_done(batch_size, block, key, monkeypatch):
    start = np.minimum(DATA.train.start, len(DATA.train.rows) - 3).astype(np.int32)
    alike = replace(DATA.train, start=start, size=np.full_like(start, 3), max_size=3)
    data, model = jax.device_put(replace(DATA, train=alike)), SOFTMAX.init(key)
    train = local_train(SOFTMAX, MOMENTUM, local_epochs=2, batch_size=batch_size, block=block)

    def trained(data):
        return jax.vmap(lambda i: train(key_for(key, Stream.BATCHES, 0, i), model, data, i))(CLIENTS)

    def looks(data):
        return " while[" in str(jax.make_jaxpr(lambda data: trained(data))(data))

    known = data.in_programs()
    expected = jax.jit(trained)(data)
    assert looks(data) and looks(known)
    close(jax.jit(trained)(known), expected)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # traced as for one
    assert looks(data) and not looks(known)
    close(jax.jit(lambda data: trained(data))(known), expected)


@pytest.mark.parametrize("length", [Steps(3), 0.5])
def test_steps_of_clients_of_equally_many_rows_are_the_same_on_a_gpu(length, key, monkeypatch):
    """There the number of rows is no array, but one of Python's."""
    start = np.minimum(DATA.train.start, len(DATA.train.rows) - 3).astype(np.int32)
    alike = replace(DATA.train, start=start, size=np.full_like(start, 3), max_size=3)
    data, model = jax.device_put(replace(DATA, train=alike).in_programs()), SOFTMAX.init(key)
    train = local_train(SOFTMAX, MOMENTUM, local_epochs=length, batch_size=2)

    def trained(client):
        own = key_for(key, Stream.BATCHES, 0, client)
        return train(own, model, data, client), step_count(own, data, client, length, 2)

    expected = on_every_client(trained)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # traced as for one
    close(on_every_client(lambda client: trained(client)), expected)


def test_how_alike_the_numbers_of_rows_are_is_told_in_quarters():
    size, most = DATA.train.size, DATA.train.max_size
    for sizes, share in ((size, 0.25), (np.full_like(size, most), 1), (np.r_[most - 1, size[1:] * 0 + most], 0.75)):
        assert replace(DATA, train=replace(DATA.train, size=sizes)).in_programs().filled == share


def test_every_row_is_seen_once_an_epoch(key):
    """With a loss linear in the model, a batch moves it by the mean of its rows: steps of size 1 add their marks."""
    marks = 2.0 ** np.arange(len(DATA.inputs)) / 2.0**20
    data = jax.device_put(replace(DATA, inputs=np.repeat(marks[:, None], 3, 1)))

    def loss(model, batch: Batch, key=None):
        # the number of rows in the batch, to undo the mean
        rows = batch.mask.sum().astype(model["w"].dtype)
        return rows * masked_mean(-(batch.x @ model["w"]), batch.mask)

    task = Task(lambda key: {"w": jnp.zeros(3)}, loss, SOFTMAX.outputs)
    train = local_train(task, optax.sgd(1.0), local_epochs=2, batch_size=3)
    trained, _ = on_every_client(lambda i: train(key_for(key, Stream.BATCHES, 0, i), task.init(key), data, i))
    for client, (x, _) in enumerate(problems.rows_of(data)):
        np.testing.assert_allclose(trained["w"][client], 2 * x.sum(0), rtol=1e-12)  # powers of two: nearly exact


def test_epochs_and_clients_and_rounds_have_their_own_order(key):
    data, model = jax.device_put(DATA), SOFTMAX.init(key)
    train = jax.jit(local_train(SOFTMAX, optax.sgd(0.5), local_epochs=1, batch_size=1))
    runs = [train(key_for(key, Stream.BATCHES, r, 3), model, data, jnp.int32(3))[0]["kernel"] for r in range(4)]
    assert len({np.asarray(run).tobytes() for run in runs}) > 1


@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_client_without_rows_stays_where_it_was(batch_size, key):
    """Neither a proximal pull nor weight decay nor momentum moves it."""
    optimizer = optax.chain(proximal_pull(1.0), optax.add_decayed_weights(0.1), optax.sgd(0.5, momentum=0.9))
    model, anchor = SOFTMAX.init(key), SOFTMAX.init(jax.random.fold_in(key, 1))
    train = jax.jit(local_train(SOFTMAX, optimizer, local_epochs=3, batch_size=batch_size))
    trained, loss = train(key, model, jax.device_put(DATA), jnp.int32(EMPTY), anchor=anchor)
    jax.tree.map(np.testing.assert_array_equal, trained, model)
    assert loss == 0


def test_fold_covers_every_row_once():
    data = jax.device_put(DATA)

    def count(total, batch):
        return total + batch.mask.sum(dtype=jnp.int32)

    found = on_every_client(lambda i: [fold_rows(count, jnp.int32(0), data, data.train, i, b) for b in (1, 3, 100)])
    assert [counts.tolist() for counts in found] == [SIZES] * 3


def test_blocks_are_as_long_as_each_other():
    """Of 8 rows and at most 7 at once, two blocks of 4: the second is no block of 7 for a single row."""
    data = jax.device_put(DATA)

    def places(total, batch):
        return total + len(batch.mask)

    taken = on_every_client(lambda i: fold_rows(places, jnp.int32(0), data, data.train, i, 7))
    assert taken.tolist() == [8, 0, 4, 8, 4, 8, 4]


@pytest.mark.parametrize(("name", "value"), [("local_epochs", 0), ("batch_size", 0), ("batch_size", -2)])
def test_bad_options_are_named(name, value):
    options = {"local_epochs": 1, "batch_size": None, name: value}
    with pytest.raises(ValueError, match=mentions(name, value)):
        local_train(SOFTMAX, optax.sgd(0.1), **options)


def test_what_is_no_optimiser_is_named():
    with pytest.raises(TypeError, match=mentions("optimizer", 0.1)):
        local_train(SOFTMAX, 0.1, local_epochs=1, batch_size=None)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("batch_size", [2, None])
@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (optax.polyak_sgd(1.0), ("'value'", "anchor")),
        (optax.lookahead(optax.sgd(0.1), 5, 0.5), ("'fast'",)),
    ],
    ids=["polyak", "lookahead"],
)
def test_an_optimiser_that_needs_more_than_a_step_has_is_named(optimizer, said, batch_size, key):
    train = local_train(SOFTMAX, optimizer, local_epochs=1, batch_size=batch_size)
    model = SOFTMAX.init(key)
    with pytest.raises(TypeError, match=mentions("optimizer", *said)):
        train(key, model, jax.device_put(DATA), jnp.int32(0), anchor=model)


def test_an_optimiser_with_random_numbers_is_refused(key):
    """They would be the same for every client, in every round and at every seed."""
    noisy = optax.chain(optax.sgd(0.1), optax.add_noise(1.0, 0.0, 0))
    for batch_size in (None, 2):
        train = local_train(SOFTMAX, noisy, local_epochs=1, batch_size=batch_size)
        with pytest.raises(ValueError, match=mentions("optimizer", "random numbers", "optax.add_noise")):
            train(key, SOFTMAX.init(key), jax.device_put(DATA), jnp.int32(0))
    with pytest.raises(ValueError, match=mentions("server_optimizer", "random numbers", "optax.add_noise")):
        optimizers.init(noisy, SOFTMAX.init(key))


STEPS_OF_THEIR_OWN = {
    "fedsgd": {},
    "ifca": {"num_clusters": 2, "average": "gradients", "local_epochs": 1},
    "pfedme": {},
}


@pytest.mark.parametrize("name", STEPS_OF_THEIR_OWN)
@pytest.mark.parametrize(
    ("optimizer", "error", "said"),
    [
        (optax.add_noise(1.0, 0.0, 0), ValueError, ("optimizer", "random numbers", "optax.add_noise")),
        (optax.polyak_sgd(), TypeError, ("optimizer", "'value'")),
    ],
    ids=["noise", "loss"],
)
def test_steps_outside_of_local_training_need_no_more(name, optimizer, error, said):
    method = methods.METHODS[name].factory(SOFTMAX, optimizer, **STEPS_OF_THEIR_OWN[name])
    with pytest.raises(error, match=mentions(*said)):
        jaxfl.run(method, DATA, rounds=1)


def test_a_number_that_is_not_finite_stays_where_the_optimiser_leaves_it(key):
    """A leaf that is frozen may have any gradient."""

    def loss(model, batch, key=None):
        return SOFTMAX.loss(model["net"], batch, key) + jnp.sqrt(model["frozen"]).sum()

    def init(key):
        return {"net": SOFTMAX.init(key), "frozen": jnp.zeros(1)}

    task = SOFTMAX._replace(init=init, loss=loss)
    optimizer = optax.multi_transform(
        {"trained": optax.sgd(0.1), "frozen": optax.set_to_zero()}, {"net": "trained", "frozen": "frozen"}
    )
    given = jax.device_put(DATA), jnp.int32(0)
    alone, _ = local_train(SOFTMAX, optax.sgd(0.1), local_epochs=2, batch_size=None)(key, SOFTMAX.init(key), *given)
    found, _ = local_train(task, optimizer, local_epochs=2, batch_size=None)(key, init(key), *given)
    assert np.isinf(jax.grad(lambda model: jnp.sqrt(model["frozen"]).sum())(found)["frozen"]).all()
    close(found, {"net": alone, "frozen": np.zeros(1)})
