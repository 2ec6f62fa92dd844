"""FedRep: its NumPy loop, what it is without a base or without heads, and that a phase moves nothing but its part."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods, tree
from jaxfl.client import conduct
from jaxfl.client.part import train_part
from jaxfl.cohort import Cohort
from jaxfl.data import conditions
from jaxfl.random import Stream, key_for
from jaxfl.tasks import Task, masked_mean
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import close, equal

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

RATE, ROUNDS, COHORT = 0.4, 4, 4
TASK = problems.softmax_task()
HEAD, BASE = 3, 2  # epochs


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


class FedRep:
    """A base, and a head for each client: dictionaries with different keys."""

    def __init__(self, setting, model, personal):
        self.setting = setting
        self.base = {name: leaf for name, leaf in model.items() if name not in personal}
        self.heads = [{name: model[name] for name in personal} for _ in setting.clients]

    def phase(self, key, client, moving, fixed, epochs):
        x, y = self.setting.clients[client]
        for rows in reference.batches(key, len(y), epochs, self.setting.batch_size):
            slope = reference.gradient(moving | fixed, x[rows], y[rows])[1]
            moving = {name: leaf - self.setting.rate * slope[name] for name, leaf in moving.items()}
        return moving

    def round(self, number, cohort):
        cohort, bases = reference.with_rows(self.setting, cohort), []
        for i in cohort:
            key = key_for(self.setting.root, Stream.BATCHES, number, i)
            self.heads[i] = self.phase(key_for(key, Stream.HEADS), i, self.heads[i], self.base, HEAD)
            bases.append(self.phase(key, i, self.base, self.heads[i], BASE))
        self.base = reference.average(bases, reference.weights(self.setting, cohort))

    def served(self, client):
        return self.base | self.heads[client]


def fedrep(optimizer=None, **options):
    options = {"head_epochs": HEAD, "local_epochs": BASE, **options}
    return methods.fedrep(TASK, optimizer or optax.sgd(RATE), **options)


def train(method, data, *, rounds=2, cohort=COHORT):
    """Returns the models that all clients are served."""
    key = jax.random.key(0)
    state, step = method.init(key, data), jax.jit(method.round)
    for _ in range(rounds):
        state, _ = step(key, state, data, problems.sample(key, state.round, data, cohort))
    return method.client_params(state, jnp.arange(data.num_clients))


@pytest.mark.rotating
@pytest.mark.parametrize(("personal", "weighting", "batch_size"), [("bias", "uniform", 3), ("kernel", "rows", None)])
def test_every_round_is_the_papers(personal, weighting, batch_size, key):
    data = problems.linear_federation()
    method = fedrep(personal=personal, weighting=weighting, batch_size=batch_size)
    state, step = method.init(key, data), jax.jit(method.round)
    setting = reference.Setting(key, problems.rows_of(data), RATE, BASE, batch_size, weighting)
    start = jax.tree.map(np.asarray, tree.take(method.client_params(state, jnp.arange(1)), 0))
    loop = FedRep(setting, start, {personal})
    for number in range(ROUNDS):
        cohort = problems.sample(key, state.round, data, COHORT)
        state, _ = step(key, state, data, cohort)
        loop.round(number, cohort.ids.tolist())
        served = method.client_params(state, jnp.arange(data.num_clients))
        for client in range(data.num_clients):
            close(tree.take(served, client), loop.served(client))


def test_without_heads_it_is_fedavg_and_without_a_base_local_training():
    """The second phase has the batches of all other methods; the first one's are its own, so it takes all rows here."""
    data, fedavg = problems.linear_federation(), {"weighting": "uniform", "local_epochs": BASE, "batch_size": 3}
    equal(train(fedrep(personal=(), batch_size=3), data), train(methods.fedavg(TASK, optax.sgd(RATE), **fedavg), data))
    alone = methods.local(TASK, optax.sgd(RATE), local_epochs=HEAD)
    equal(train(fedrep(personal=".*"), data), train(alone, data))


def test_a_phase_moves_its_part_alone(key):
    """Whatever the optimiser does to a parameter without a gradient: decay, momentum, a norm of all together."""
    optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.add_decayed_weights(0.1), optax.sgd(RATE, 0.9))
    data, model = problems.linear_federation(), TASK.init(key)
    chosen = tree.matching(model, "bias")
    train_bias = jax.jit(train_part(TASK, optimizer, chosen, local_epochs=2, batch_size=3))
    trained, _ = train_bias(key, model, data, jnp.int32(0))
    equal(trained["kernel"], model["kernel"])
    assert not np.allclose(trained["bias"], model["bias"])


def test_a_head_of_many_epochs_is_least_squares_on_what_the_base_sees(key):
    """The paper's linear case: the head solves a regression on projected rows."""

    def loss(model, batch, key=None):
        return masked_mean(jnp.square(batch.x @ model["base"] @ model["head"] - batch.y.astype(float)), batch.mask)

    data = problems.linear_federation()
    model = {"base": jax.random.normal(key, (3, 2)), "head": jnp.zeros(2)}
    task = Task(lambda key: model, loss, TASK.outputs)
    chosen = {"base": False, "head": True}
    train_head = jax.jit(train_part(task, optax.sgd(0.1), chosen, local_epochs=2000, batch_size=None))
    found, _ = train_head(key, model, data, jnp.int32(3))
    x, y = problems.rows_of(data)[3]
    close(found["head"], np.linalg.lstsq(x @ np.asarray(model["base"]), y, rcond=None)[0], rtol=1e-6)


def test_an_attacker_is_honest_until_it_sends(key):
    """A flipped head would turn the base as well, another way than against its own step."""
    data, method = problems.linear_federation(), compiled(fedrep(personal="bias"))
    attacked = conditions.attack(data, "sign-flip", 0.2, scale=1.0)
    (attacker,) = np.flatnonzero(attacked.attack.attacker)
    nobody = replace(attacked, attack=replace(attacked.attack, attacker=np.zeros(data.num_clients, bool)))
    start = method.init(key, data)
    moved = [
        method.round(key, start, one, Cohort.of([attacker]))[0].base["kernel"] - start.base["kernel"]
        for one in (attacked, nobody)
    ]
    close(moved[0], -moved[1])


def test_who_is_late_is_late_in_both_phases(key):
    data = conditions.straggle(problems.linear_federation(), 0.5)
    keys = [key_for(key, Stream.BATCHES, 0, client) for client in range(20)]
    late = [bool(conduct.is_late(one, data.stragglers)) for one in keys]
    assert len(set(late)) == 2
    for one, expected in zip(keys, late, strict=True):
        first = conduct.for_unsent_training(one, data)
        assert bool(conduct.is_late(key_for(one, Stream.HEADS), first.stragglers)) == expected


def test_refusals():
    for options, message in {
        ("head_epochs", 0): ("head_epochs", 0),
        ("local_epochs", 0): ("local_epochs", 0),
        ("personal", "Dense_7"): ("Dense_7", "bias, kernel"),
    }.items():
        with pytest.raises(ValueError, match=mentions(*message)):
            fedrep(**dict([options]))
