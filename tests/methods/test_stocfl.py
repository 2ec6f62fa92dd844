"""StoCFL's switches against one NumPy loop, the chain, and clients that join and leave."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import jaxfl
from jaxfl import classification, methods, models, tree
from jaxfl.clustering import scores
from jaxfl.cohort import Cohort
from jaxfl.data import conditions
from jaxfl.data.divide import divide_rows
from jaxfl.data.synthetic import clustered_linear
from jaxfl.methods.stocfl import PRESETS, merging, representation
from jaxfl.methods.stocfl.joining import leave
from jaxfl.tasks import Task, masked_mean
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import cosine

pytestmark = pytest.mark.rotating("function", weeks=4)  # but for the rounds of the paper

RATE, EPOCHS, PULL, THRESHOLD = 0.4, 2, 0.3, 0.5
TASK = problems.softmax_task()
DATA = problems.linear_federation((5, 0, 3, 8, 1, 6, 4, 2, 3, 5), (0, 0, 1, 1, 0, 1, 0, 1, 0, 1))
PLAIN = {name: PRESETS["paper"][name] for name in PRESETS["paper"]} | {"linkage": "single"}

halves_of = jax.jit(divide_rows, static_argnums=2)
close = functools.partial(reference.close, rtol=1e-9)  # some twenty steps amplify rounding


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


class Loop:
    """Algorithm 1 and its variants: a dictionary of slots (members, model), one client after the other."""

    def __init__(self, setting, model, threshold, **rule):
        self.setting, self.threshold, self.rule = setting, threshold, rule
        self.first = self.omega = model
        self.psi, self.slots = {}, {}

    def represent(self, client):
        if self.rule["representation"] == "gradient":
            found = reference.gradient(self.first, *self.setting.clients[client])[1]
        else:
            model = self.first
            for _ in range(self.rule["epochs"]):
                slope = reference.gradient(model, *self.setting.clients[client])[1]
                model = reference.combine([(1, model), (-self.setting.rate, slope)])
            found = reference.combine([(1, self.first), (-1, model)])
        compared = [name for name in sorted(found) if self.rule.get("layers", name) == name]
        vector = np.concatenate([found[name].ravel() for name in compared])
        return vector / np.linalg.norm(vector) if self.rule["normalise"] else vector

    def group(self, parts, sums):
        groups = [[name] for name in parts]
        while True:
            best, pair = -np.inf, None
            for a, one in enumerate(groups):
                for b, two in enumerate(groups[:a]):
                    if self.rule["linkage"] == "greedy":
                        near = cosine(sum(sums[name] for name in one), sum(sums[name] for name in two))
                    else:
                        near = max(cosine(sums[i], sums[j]) for i in one for j in two)
                    if near > best:
                        best, pair = near, (b, a)
            if best < self.threshold or pair is None:
                return groups
            groups[pair[0]] += groups.pop(pair[1])

    def round(self, number, cohort):
        cohort = sorted(reference.with_rows(self.setting, cohort))
        new = [i for i in cohort if i not in self.psi]
        self.psi |= {i: self.represent(i) for i in new}
        there = {k: members for k, (members, _) in self.slots.items()}
        if self.rule["compare"] == "sampled":
            there = {k: members for k, members in there.items() if set(members) & set(cohort)}
        parts = {("slot", k): members for k, members in there.items()} | {("new", i): [i] for i in new}
        seen = set(cohort) if self.rule["members"] == "sampled" else set(self.psi)
        sums = {name: sum(self.psi[i] for i in members if i in seen) for name, members in parts.items()}
        fresh = []
        for names in self.group(parts, sums):
            old = sorted(k for kind, k in names if kind == "slot")
            members = sorted(sum((parts[name] for name in names), []))
            if not old:
                fresh.append(members)
                continue
            keeper = max(old, key=lambda k: (len(self.slots[k][0]), -k))
            model = self.slots[keeper][1]
            for k in old:
                del self.slots[k]
            self.slots[keeper] = members, model
        start = self.first if self.rule["newcomers"] == "initial" else self.omega
        for members in sorted(fresh):
            self.slots[next(k for k in range(99) if k not in self.slots)] = members, start
        for k, (members, model) in self.slots.items():
            chosen = [i for i in members if i in cohort]
            if chosen:
                pulled = [
                    reference.train(self.setting, number, i, model, pull=PULL, anchor=self.omega)[0] for i in chosen
                ]
                self.slots[k] = members, reference.average(pulled, reference.weights(self.setting, chosen))
        trained, model = [], self.omega
        for i in cohort:
            model = reference.train(self.setting, number, i, model)[0]
            trained.append(model)
            model = model if self.rule["update"] == "chain" else self.omega
        self.omega = reference.average(trained, reference.weights(self.setting, cohort))

    def served(self, client):
        return next((model for members, model in self.slots.values() if client in members), self.omega)


@functools.cache
def stocfl(**rule):
    """Returns the method, compiled; the same for the same options."""
    options = {
        "threshold": THRESHOLD,
        "local_epochs": EPOCHS,
        "proximal_weight": PULL,
        "representation_size": None,
        "slots": 8,
    }
    return compiled(methods.stocfl(TASK, optax.sgd(RATE), **options | rule))


VARIANTS = {
    "official": {"preset": "official", "representation_epochs": 3},
    "displacement": {"representation": "displacement", "representation_epochs": 4},
    "newcomers at omega": {"newcomers": "global"},
    "sampled clusters": {"compare": "sampled"},
    "sampled members, raw": {"compare": "sampled", "members": "sampled", "normalise": False},
    "batches by rows, chain": {"batch_size": 3, "weighting": "rows", "update": "chain"},
    "only sums, greedy": {"keep": "clusters", "linkage": "greedy"},
    "one layer": {"layers": "bias"},
}


@pytest.mark.rotating(weeks=3)
@pytest.mark.parametrize("variant", VARIANTS)
def test_it_is_its_loop(variant, key):
    given, method = VARIANTS[variant], stocfl(**VARIANTS[variant])
    state = method.init(key, DATA)
    rule = PLAIN | PRESETS[given.get("preset", "paper")] | given | {"epochs": given.get("representation_epochs", 10)}
    setting = reference.Setting(
        key, problems.rows_of(DATA), RATE, EPOCHS, given.get("batch_size"), given.get("weighting", "uniform")
    )
    loop = Loop(setting, jax.tree.map(np.asarray, state.solver.model), THRESHOLD, **rule)
    for number in range(6):
        cohort = problems.sample(key, state.round, DATA, 3)
        state, info = method.round(key, state, DATA, cohort)
        loop.round(number, cohort.ids.tolist())
        found = {k: sorted(np.flatnonzero(np.asarray(state.cluster) == k).tolist()) for k in loop.slots}
        assert found == {k: members for k, (members, _) in loop.slots.items()}
        assert int(info.num_clusters) == len(loop.slots)
        served = method.client_params(state, jnp.arange(10))
        for i in range(10):
            close(tree.take(served, i), loop.served(i))
        means = [np.mean([loop.psi[i] for i in members], 0) for members, _ in loop.slots.values()]
        wanted = sum(cosine(a, b) for n, a in enumerate(means) for b in means[:n])
        np.testing.assert_allclose(float(info.extra["objective"]), wanted, rtol=1e-4, atol=1e-5)  # cosines in float32


@pytest.mark.slow
def test_switches_matter(key):
    """Otherwise the loops above would agree whatever the switches did."""
    ends = []
    for name in VARIANTS:
        method = stocfl(**VARIANTS[name])
        state = method.init(key, DATA)
        for _ in range(6):
            state, _ = method.round(key, state, DATA, problems.sample(key, state.round, DATA, 3))
        ends.append(np.asarray(tree.ravel(method.client_params(state, jnp.arange(10)))))
    assert min(np.abs(a - b).max() for n, a in enumerate(ends) for b in ends[:n]) > 1e-6


def cohort_of(clients, ids):
    """Returns the cohort of these clients, in entries for all: the same program for all cohorts."""
    return Cohort(np.arange(clients, dtype=np.int32), np.isin(np.arange(clients), ids))


def test_a_merged_cluster_keeps_the_model_of_its_largest_part(key):
    """Clusters 0 (two members) and 1 (one) meet when client 3 joins both; with a rate of 0 models stay as they are."""
    rows = [[1, 0, 0], [1, 0, 0], [0.5, 0.9, 0], [0.8, 0.6, 0]]
    data = one_row_federation(rows)
    method = compiled(methods.stocfl(linear_loss_task(), optax.sgd(0.0), threshold=0.75, slots=4))
    state, _ = method.round(key, method.init(key, data), data, cohort_of(4, [0, 1, 2]))
    assert state.cluster.tolist() == [0, 0, 1, -1]
    models = {"w": jnp.array([[5.0], [7.0], [9.0], [9.0]]) * jnp.ones((4, 3))}
    state, info = method.round(key, state._replace(models=models), data, cohort_of(4, [3]))
    assert state.cluster.tolist() == [0, 0, 0, 0] and int(info.num_clusters) == 1
    close(np.asarray(method.client_params(state, jnp.array([0, 3]))["w"][:, 0]), np.array([5.0, 5.0]))


def test_round_one_with_everybody_is_the_tau_graph(key):
    data = clustered_linear(num_clients=12, num_groups=3, rows=20)
    task = classification(models.Logistic(num_classes=data.num_classes), data)
    method = compiled(methods.stocfl(task, optax.sgd(0.1), threshold=0.8))
    state = method.init(key, data)
    psi = np.asarray(
        representation.represent_clients(representation.represent(task, optax.sgd(0.1)), key, state.anchor, data)
    )
    state, info = method.round(key, state, data, Cohort.of(range(12)))
    groups = reference.merge(list(psi), lambda a, b: cosine(a, b) >= 0.8)
    label = np.zeros(12, int)
    for number, members in enumerate(groups):
        label[members] = number
    assert scores.adjusted_rand_index(label, np.asarray(state.cluster)) == 1
    assert int(info.num_clusters) == len(groups) > 1


def one_row_federation(rows, extra=()):
    """Clients of one row each; Psi is the row, by `linear_loss_task`. `extra` clients come last."""
    everybody = [*rows, *extra]
    data = problems.linear_federation(sizes=(1,) * len(everybody), groups=(0,) * len(everybody))
    inputs = np.zeros(data.inputs.shape)
    inputs[data.train.rows] = everybody
    return replace(data, inputs=inputs)


def linear_loss_task():
    """The mean over rows of x . w, whose gradient is the mean row."""

    def loss(model, batch, key=None):
        return masked_mean(batch.x @ model["w"], batch.mask)

    return Task(lambda key: {"w": jnp.ones(3)}, loss, lambda model, batch: batch.x[:, :2] * model["w"][None, :2])


ROWS = [[1, 0, 0], [0, 1, 0], [1, 0.1, 0]]
JOINERS = [[2, 0.2, 0], [0, 0, 1], [0, 3, 0.1]]


@functools.cache
def joinable(keep):
    return compiled(methods.stocfl(linear_loss_task(), optax.sgd(0.1), threshold=0.8, slots=4, keep=keep))


@pytest.fixture(params=["clients", "clusters"])
def trained(request, key):
    """A method that has seen ROWS, its state: clusters 0 and 1, and how it keeps Psi."""
    method, data = joinable(request.param), one_row_federation(ROWS)
    state, _ = method.round(key, method.init(key, data), data, Cohort.of(range(3)))
    assert state.cluster.tolist() == [0, 1, 0]
    return method, state, request.param


@pytest.fixture(scope="module")
def digits():
    with jax.enable_x64(False):
        data = jaxfl.data.load("rotated-digits", held_out=0.1)
        task = classification(models.MLP(num_classes=10, hidden=(64,)), data)
        return compiled(methods.stocfl(task, optax.sgd(0.1), threshold="auto", local_epochs=1)), data


@pytest.mark.slow
def test_auto_finds_the_rotations_and_lets_clients_join(digits):
    """Forty clients of 80 rows, half of them in a round; those held out join where they belong."""
    with jax.enable_x64(False):
        method, data = digits
        key = jax.random.key(3)
        state = auto_after(10, digits, key, data)
        trained = ~data.held_out
        assert scores.adjusted_rand_index(data.group[trained], np.asarray(state.cluster)[trained]) == 1
        state, clusters = method.join(key, state, data, np.flatnonzero(data.held_out))
    assert scores.adjusted_rand_index(data.group, np.asarray(state.cluster)) == 1
    assert set(clusters.tolist()) <= set(range(16))


def auto_after(rounds, digits, key, data):
    """Returns the state after some rounds of half the clients, whose slots must suffice."""
    method, _ = digits
    state = method.init(key, data)
    for _ in range(rounds):
        state, info = method.round(key, state, data, problems.sample(key, state.round, data, 20))
        assert int(info.overflow) == 0
    return state


@pytest.mark.slow
def test_auto_does_not_split_one_distribution(digits):
    with jax.enable_x64(False):
        method, data = digits
        alike = replace(data, rotation=np.zeros_like(data.rotation))
        for key in map(jax.random.key, range(3)):
            state = auto_after(6, digits, key, alike)
            assert len(set(np.asarray(state.cluster)[state.cluster >= 0].tolist())) == 1


def test_noise_is_pooled_as_spearman_and_brown_say(key):
    """Equal rows: rho = 2 y / (1 + y) of the mean agreement; those unobserved or with one row have no say."""
    agreement = jnp.array([0.1, 0.5, 0.9, 0.9], jnp.float32)
    rows = jnp.array([40, 40, 1, 40], jnp.int32)
    noise = merging.noise_shares(agreement, rows, jnp.array([True, True, True, False]))
    y = 0.3
    kappa = 2 * y / (40 * (1 - y))
    np.testing.assert_allclose(noise, [1 - 2 * y / (1 + y)] * 2 + [1 / (1 + kappa), 0], rtol=1e-5)
    assert merging.noise_shares(-agreement, rows, rows > 1).tolist() == [1, 1, 0, 1], "no signal at all"
    sick = merging.noise_shares(agreement.at[3].set(jnp.nan), rows, jnp.array([True, True, True, True]))
    assert sick[:3].tolist() == noise[:3].tolist() and jnp.isfinite(sick[3]), "who is sick has no say"


def test_agreement_is_of_disjoint_halves(key):
    """A client whose halves say the same has agreement 1, one whose halves are orthogonal 0; a sick one has none."""
    data = problems.linear_federation(sizes=(2, 2, 2), groups=(0, 0, 0))
    inputs = np.zeros(data.inputs.shape)
    inputs[data.train.rows] = [[1, 2, 0], [1, 2, 0], [1, 0, 0], [0, 1, 0], [1, 0, 0], [np.nan, 0, 0]]
    data = jax.device_put(replace(data, inputs=inputs))
    first, second = (replace(data, train=half) for half in halves_of(key, data.train, 0.5))
    task = linear_loss_task()
    found = [
        agreement(key, {"w": jnp.ones(3)}, (first, second), jnp.int32(client))
        for kind in ("gradient", "displacement")
        for agreement in [jax.jit(representation.represent(task, optax.sgd(0.1), kind=kind).agreement)]
        for client in (0, 1, 2)
    ]
    np.testing.assert_allclose(found, [1, 0, np.nan, 1, 0, np.nan], atol=1e-6)


def test_an_attackers_noise_is_of_the_run_and_other_noise_in_each_half(key):
    data = conditions.attack(problems.linear_federation(), "gaussian", 0.3)
    attacker, anchor = data.attack.attacker, TASK.init(key)
    represented = representation.represent(TASK, optax.sgd(RATE), normalise=False)
    one, other = (representation.represent_clients(represented, jax.random.key(seed), anchor, data) for seed in (0, 1))
    alike = np.isclose(one, other).all(1)
    assert alike.tolist() == (~attacker).tolist()
    device = data.on_device()
    halves = tuple(replace(device, train=half) for half in halves_of(key, device.train, 0.5))
    agreement = jax.jit(represented.agreement)
    found = [agreement(key, anchor, halves, jnp.int32(client)) for client in np.flatnonzero(attacker)]
    assert max(found) < 0.99, "noise does not agree with noise"


def test_representations_of_several_models_are_one_program(key):
    traced = []

    def psi(key, anchor, data, client):
        traced.append(client)
        return anchor["bias"] * client.astype(float)

    represented = representation.Representation(psi, None)
    for scale in (1, 2):
        found = representation.represent_clients(represented, key, {"bias": scale * jnp.ones(3)}, DATA)
        np.testing.assert_array_equal(found, scale * np.arange(DATA.num_clients)[:, None] * np.ones(3))
    once = len(traced)
    assert once > 0
    representation.represent_clients(represented, key, {"bias": jnp.zeros(3)}, DATA)
    assert len(traced) == once


@pytest.mark.rotating
@pytest.mark.parametrize("kind", ["gradient", "displacement"])
def test_nothing_is_dropped_where_clients_are_represented(kind, key):
    def dropping(model, batch, key=None):
        return TASK.loss(model, batch) * (1.0 if key is None else jax.random.uniform(key))

    data, anchor = problems.linear_federation(), TASK.init(key)
    options = {"kind": kind, "epochs": 2, "normalise": False}
    dropped, plain = (
        representation.represent_clients(representation.represent(task, optax.sgd(RATE), **options), key, anchor, data)
        for task in (TASK._replace(loss=dropping), TASK)
    )
    close(dropped, plain)


def test_nothing_is_dropped_beside_running_averages(key):
    """A displacement is of training, whose loss has a network's averages beside it."""

    class Dropping(nn.Module):
        @nn.compact
        def __call__(self, x, mask, train: bool = False):
            x = nn.BatchNorm(use_running_average=not train)(x, mask=mask[:, None])
            return nn.Dense(3)(nn.Dropout(0.5, deterministic=not train)(x))

    with jax.enable_x64(False):
        data = clustered_linear(4, rows=8, features=4)
        task = classification(Dropping(), data)
        represented = representation.represent(task, optax.sgd(RATE), kind="displacement", epochs=2)
        anchor, keys = task.init(key), jax.random.split(key)
        one, other = (representation.represent_clients(represented, own, anchor, data) for own in keys)
    np.testing.assert_array_equal(one, other)


def test_clients_with_the_same_rows_draw_batches_of_their_own(key):
    """Their displacements differ by the order of the batches; their gradients do not."""
    rng, rows = np.random.default_rng(0), [np.arange(8)] * 2
    inputs, labels = rng.normal(size=(8, 4)).astype(np.float32), np.arange(8) % 3
    data = jaxfl.data.federate(inputs, labels, rows, rows, num_classes=3)
    task = classification(models.Logistic(num_classes=3), data)
    for kind, equal in (("gradient", True), ("displacement", False)):
        represented = representation.represent(task, optax.sgd(RATE), kind=kind, epochs=1, batch_size=2)
        one, other = representation.represent_clients(represented, key, task.init(key), data)
        assert np.array_equal(one, other) == equal


@pytest.mark.rotating
def test_copies_join_and_a_stranger_opens_a_cluster_with_the_closest_model(trained, key):
    method, state, _ = trained
    after, clusters = method.join(key, state, one_row_federation(ROWS, JOINERS), [3, 4, 5])
    assert clusters.tolist() == [0, 2, 1]
    assert after.cluster.tolist() == [0, 1, 0, 0, 2, 1]
    cosines = [cosine(np.array(JOINERS[1]), np.array(rows)) for rows in ([2, 0.1, 0], [0, 1, 0])]
    candidate = int(np.argmax(cosines))
    reference.equal(tree.take(after.models, 2), tree.take(state.models, candidate))
    reference.equal(tree.take(after.models, slice(0, 2)), tree.take(state.models, slice(0, 2)))
    data = one_row_federation(ROWS, JOINERS)
    later, info = method.round(key, after, data, Cohort.of(range(6)))
    assert later.cluster.tolist() == after.cluster.tolist() and int(info.num_clusters) == 3


@pytest.mark.rotating
def test_a_client_whose_data_change_moves(trained, key):
    method, state, _ = trained
    after, clusters = method.join(key, state, one_row_federation([*ROWS[:2], [0, 1, 0.1]]), [2])
    assert clusters.tolist() == [1] and after.cluster.tolist() == [0, 1, 1]
    sums = np.asarray(after.sums())
    assert cosine(sums[0], np.array([1, 0, 0])) > (1 - 1e-9 if trained[2] == "clients" else 0.99)


@pytest.mark.rotating
def test_slots_grow_for_those_who_join(trained, key):
    method, state, _ = trained
    strangers = [[0, 0, 1], [0, 0, -1], [-1, 0, 0], [0, -1, 0]]
    after, clusters = method.join(key, state, one_row_federation(ROWS, strangers), [3, 4, 5, 6])
    assert clusters.tolist() == [2, 3, 4, 5] and jax.tree.leaves(after.models)[0].shape[0] == 8
    later, info = method.round(key, after, one_row_federation(ROWS, strangers), Cohort.of(range(7)))
    assert int(info.num_clusters) == 6 and later.cluster.tolist() == after.cluster.tolist()


def test_who_leaves_leaves_no_trace_but_in_models(trained, key):
    method, state, _ = trained
    after = leave(state, [2])
    assert after.cluster.tolist() == [0, 1, -1]
    reference.equal(after.models, state.models)
    gone = leave(after, [0])
    assert np.abs(np.asarray(gone.sums())[0]).max() == 0, "an empty cluster attracts nobody"
    reference.equal(method.client_params(gone, jnp.array([0])), tree.repeat(gone.solver.model, 1))


def test_joining_before_the_first_round_starts_at_the_initial_model(key):
    method, data = joinable("clients"), one_row_federation(ROWS)
    state, clusters = method.join(key, method.init(key, data), data, [0, 1])
    assert clusters.tolist() == [0, 1] and state.cluster.tolist() == [0, 1, -1]
    reference.equal(tree.take(state.models, slice(0, 2)), tree.repeat(state.initial, 2))


@pytest.mark.parametrize(
    ("ids", "data", "message"),
    [
        pytest.param([3], one_row_federation(ROWS), ("ids", "[3]"), id="unknown"),
        pytest.param([1, 1], one_row_federation(ROWS), ("ids", "[1, 1]"), id="twice"),
        pytest.param([0], one_row_federation(ROWS[:2]), ("data", 2, 3), id="fewer clients than before"),
    ],
)
def test_joining_refuses(ids, data, message, key):
    method = joinable("clients")
    state = method.init(key, one_row_federation(ROWS))
    with pytest.raises(ValueError, match=mentions(*message)):
        method.join(key, state, data, ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"members": "sampled"}, ("compare", "sampled")),
        ({"preset": "official", "keep": "clusters"}, ("keep", "clients")),
        ({"preset": "theirs"}, ("preset", "theirs")),
        ({"linkage": "ward"}, ("linkage", "ward")),
        ({"representation": "weights"}, ("representation", "weights")),
        ({"representation_size": 0}, ("representation_size", 0)),
        ({"slots": 0}, ("slots", 0)),
        ({"threshold": "auto", "preset": "official"}, ("normalise", 'threshold="auto"', "False")),
        ({"threshold": "best"}, ("threshold", "best")),
        ({"update": "ring"}, ("update", "ring")),
    ],
)
def test_it_refuses(options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        methods.stocfl(TASK, optax.sgd(RATE), **options)


def test_omega_is_fedavgs_whatever_the_clusters_do(key):
    data = problems.linear_federation()
    solver = compiled(methods.fedavg(TASK, optax.sgd(RATE), local_epochs=EPOCHS, weighting="rows"))
    method = stocfl(weighting="rows")
    state, wanted = method.init(key, data), solver.init(key, data)
    for _ in range(3):
        cohort = problems.sample(key, state.round, data, 4)
        state, _ = method.round(key, state, data, cohort)
        wanted, _ = solver.round(key, wanted, data, cohort)
    close(state.solver.model, wanted.model)


def test_another_anchor_has_its_own_size(key):
    data = problems.linear_federation()
    method = stocfl(anchor_task=linear_loss_task())
    state, info = method.round(key, method.init(key, data), data, Cohort.of(range(7)))
    assert state.memory.psi.shape == (7, 3) and state.models["kernel"].shape == (8, 3, 2)
    inputs = [x.mean(0) for x, _ in problems.rows_of(data) if len(x)]
    wanted = [mean / np.linalg.norm(mean) for mean in inputs]
    close(np.asarray(state.memory.psi)[np.asarray(data.train.size) > 0], np.array(wanted))


def test_a_representation_is_as_long_as_the_model_and_one_step_has_the_gradient_s_direction(key):
    data = problems.linear_federation()
    one_step = representation.represent(TASK, optax.sgd(RATE), kind="displacement", epochs=1, size=None)
    unit = representation.represent(TASK, optax.sgd(RATE), size=None)
    anchor = TASK.init(key)
    found = [representation.represent_clients(fn, key, anchor, data) for fn in (one_step, unit)]
    assert found[0].shape == (7, 8)
    close(*found)


@pytest.mark.rotating
@pytest.mark.parametrize("condition", [{"rate": jnp.float32(0)}, {"stragglers": jnp.float32(1)}])
def test_a_displacement_is_of_as_many_whole_steps_in_every_round(condition, key):
    """One of a round in which the rate is low, or the client late, would not compare with the others."""
    of = representation.represent(TASK, optax.sgd(RATE), kind="displacement", epochs=4, size=None)
    anchor = TASK.init(key)
    now = replace(DATA, **condition)
    close(*(representation.represent_clients(of, key, anchor, data) for data in (now, DATA)))


@pytest.mark.rotating
@pytest.mark.parametrize("threshold", [0.5, "auto"])
def test_newcomers_send_the_agreement_of_their_halves_where_it_is_asked_for(threshold, key):
    method = compiled(methods.stocfl(TASK, optax.sgd(RATE), threshold=threshold, representation_size=None))
    state, first = method.round(key, method.init(key, DATA), DATA, Cohort.of([0, 2]))
    _, second = method.round(key, state, DATA, Cohort.of([0, 2]))
    once = 8 * 8 + (4 if threshold == "auto" else 0)  # eight parameters, float64
    assert first.bytes_up - second.bytes_up == 2 * once


@pytest.mark.parametrize("anchor", [None, TASK], ids=["omega", "apart"])
def test_newcomers_receive_the_anchor_unless_it_is_the_model_of_the_round(anchor, key):
    """Omega_0 is what all receive in the first round; later, and of another task, the anchor is one model more."""
    method = compiled(methods.stocfl(TASK, optax.sgd(RATE), anchor_task=anchor, local_epochs=1))
    state, first = method.round(key, method.init(key, DATA), DATA, Cohort.of([0, 2]))
    state, later = method.round(key, state, DATA, Cohort.of([2, 3, 4]))
    _, again = method.round(key, state, DATA, Cohort.of([2, 3, 4]))
    model = 8 * 8  # eight parameters, float64
    assert first.bytes_down == (4 if anchor is None else 6) * model, "theta and omega for each of two"
    assert again.bytes_down == 6 * model
    assert later.bytes_down - again.bytes_down == 2 * model


def test_a_chain_passes_over_those_who_send_nothing_usable(key):
    """Client 1 has no rows; client 3 diverges: both are as if they were not there."""
    data = problems.linear_federation()
    inputs = np.asarray(data.inputs).copy()
    split = data.train
    inputs[np.asarray(split.rows)[split.start[3] : split.start[3] + split.size[3]]] = 1e308
    data = replace(data, inputs=inputs)
    chain = compiled(methods.fedavg(TASK, optax.sgd(RATE), local_epochs=EPOCHS, update="chain"))
    (with_them, info), (without, _) = (
        chain.round(key, chain.init(key, data), data, cohort_of(7, ids)) for ids in ([6, 3, 0, 1, 2], [0, 2, 6])
    )
    assert int(info.diverged) == 1
    close(with_them.model, without.model)
    assert not np.allclose(
        np.asarray(without.model["kernel"]),
        np.asarray(
            compiled(methods.fedavg(TASK, optax.sgd(RATE), local_epochs=EPOCHS))
            .round(key, chain.init(key, data), data, cohort_of(7, [0, 2, 6]))[0]
            .model["kernel"]
        ),
    )
