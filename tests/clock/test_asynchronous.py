"""Asynchronous rounds against an event queue in NumPy, in float64; their laws, and bad input."""

import dataclasses
import functools
import heapq

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import ClientClock, sampling, tree
from jaxfl.clock.asynchronous import Rule, asynchronous, refusal
from jaxfl.clock.rounds import work_seconds
from jaxfl.clock.work import round_work
from jaxfl.cohort import Cohort, Plan
from jaxfl.data.clients import Speeds
from jaxfl.methods import METHODS
from jaxfl.random import Stream, key_for
from tests import reference
from tests.messages import mentions
from tests.problems import linear_federation, rows_of, sample, softmax_task

SIZES = (5, 0, 3, 8, 1, 6, 4, 7, 3, 5, 2, 8)
N, M, ROUNDS, RATE = len(SIZES), 5, 20, 0.4
EPOCHS = {"local_epochs": 2, "batch_size": 3}
UNLIKE = 2.0 ** np.array([1, 3, 0, 2, 4, 0, 1, 5, 2, 0, 3, 1])  # powers of two: all times are exact, in float32 too
EQUAL = np.ones(N)


def federation(factors, broken=None):
    """The federation with devices of these factors, and a client whose rows are no numbers."""
    data = linear_federation(SIZES, np.arange(N) % 2)
    if broken is not None:
        inputs = np.array(data.inputs)
        inputs[np.asarray(data.train.rows)[data.train.start[broken] : data.train.start[broken] + 1]] = np.inf
        data = dataclasses.replace(data, inputs=inputs)
    speeds = Speeds(*(np.float32(factors * size) for size in (2**20, 2**14, 2**16)))
    return dataclasses.replace(data, speeds=speeds).in_programs()


def compiled_rounds(method, rule, data, sampler=sampling.uniform):
    """Returns the first state and a compiled round of a method, `(key, state) -> (state, cohort, info, times)`."""
    made = asynchronous(method, rule)
    key = jax.random.key(0)

    @jax.jit
    def advance(key, state, data):
        return made.own_rounds.round(method.round, None, key, state, data, sampler, Plan())

    return jax.jit(made.init)(key, data), lambda state: advance(key, state, data), key


class Queue:
    """The clients in flight, as a heap of `(time, client, start)`: the earliest first, then the lower id."""

    def __init__(self, key, data, sampler, arrivals, seconds):
        self.key, self.data, self.sampler, self.arrivals = key, data, sampler, arrivals
        self.seconds, self.heap, self.now, self.room = seconds, [], 0.0, M

    def drawn(self, root, number, order, size, taken):
        """Clients that may start, in a random order."""
        given = dataclasses.replace(self.data, held_out=np.isin(np.arange(N), list(taken)))
        cohort = self.sampler(root, jnp.int32(number), given, size)
        lots = np.asarray(jax.random.uniform(order, (size,)))
        drawn = sorted(zip(lots, np.asarray(cohort.ids).tolist(), np.asarray(cohort.mask), strict=True))
        return [client for _, client, able in drawn if able and client not in taken]

    def fill(self, candidates, number):
        while self.room and candidates:
            client = candidates.pop(0)
            heapq.heappush(self.heap, (self.now + self.seconds[client], client, number))
            self.room -= 1

    def round(self, number):
        """Returns the arrivals of a round, `[(client, start)]`, and its seconds."""
        other = key_for(self.key, Stream.ARRIVALS, number)
        orders = [key_for(other, Stream.ARRIVALS, place) for place in (0, 1)]
        began, flying = self.now, {client for _, client, _ in self.heap}
        first = self.drawn(self.key, number, orders[0], M, flying)[: self.room]
        later = []
        if self.arrivals > 1:
            later = self.drawn(other, number, orders[1], self.arrivals - 1, flying | set(first))
        self.fill(first, number)
        self.room, waits, found = self.room, self.room, []
        left = 0  # of those that have arrived in this round, how many have not been replaced
        while len(found) < self.arrivals:
            if left and (not self.heap or self.heap[0][0] > self.now):
                self.room, kept = left, waits
                self.fill(later, number)
                waits, left, self.room = kept + self.room, 0, 0
            if not self.heap:
                break
            self.now, client, start = heapq.heappop(self.heap)
            found.append((client, start))
            left += 1
        self.room = waits + left
        return found, self.now - began


class Averaging:
    """FedAvg, and FedPer with some leaves of its own, in versions."""

    def __init__(self, setting, model, rule, own=()):
        self.setting, self.rule, self.own = setting, rule, own
        self.versions = [{name: leaf for name, leaf in model.items() if name not in own}]
        self.heads = [{name: model[name] for name in own} for _ in range(N)]
        self.steps = [0]  # of the server, by version: none where all arrivals are without rows

    def round(self, number, arrivals):
        now, terms, total = self.versions[-1], [], 0.0
        for client, start in arrivals:
            if not len(self.setting.clients[client][1]):
                continue
            before = self.versions[start]
            with np.errstate(invalid="ignore"):  # of the client that is broken
                trained, _ = reference.train(self.setting, start, client, {**before, **self.heads[client]})
            if not all(np.isfinite(leaf).all() for leaf in trained.values()):
                continue
            self.heads[client] = {name: trained[name] for name in self.own}
            weight, scale = (
                len(self.setting.clients[client][1]),
                staleness_weight(self.rule, self.steps[-1] - self.steps[start]),
            )
            base = now if self.rule.kind == "fedasync" else before
            terms.append((weight * scale, {name: trained[name] - base[name] for name in now}))
            total += weight
        step = reference.combine([(scale / total, one) for scale, one in terms]) if terms else None
        self.versions.append(now if step is None else reference.combine([(1, now), (1, step)]))
        self.steps.append(self.steps[-1] + bool(terms))

    def served(self):
        return [{**self.versions[-1], **head} for head in self.heads]


def staleness_weight(rule, late):
    scale = {
        "constant": lambda: 1.0,
        "polynomial": lambda: (1 + late) ** -0.5,
        "hinge:2,1": lambda: 1.0 if late <= 1 else 1 / (2 * (late - 1) + 1),
    }[rule.staleness]()
    return scale * (0.6 if rule.kind == "fedasync" else 1)


class Clusters:
    """IFCA with a buffer for each cluster: models by version, what waits, and how often each was applied."""

    def __init__(self, setting, models, rule, least):
        self.setting, self.rule, self.least = setting, rule, least
        self.versions, self.steps = [models], [np.zeros(len(models), int)]
        self.waiting = [[] for _ in models]

    def round(self, number, arrivals):
        applied = self.steps[-1].copy()
        for client, start in arrivals:
            x, y = self.setting.clients[client]
            if not len(y):
                continue
            sent = self.versions[start]
            chosen = int(np.argmin([reference.gradient(model, x, y)[0] for model in sent]))
            trained, _ = reference.train(self.setting, start, client, sent[chosen])
            scale = staleness_weight(self.rule, self.steps[-1][chosen] - self.steps[start][chosen])
            self.waiting[chosen].append((scale, {name: trained[name] - sent[chosen][name] for name in trained}))
        models = list(self.versions[-1])
        for k, held in enumerate(self.waiting):
            if len(held) >= self.least:
                step = reference.combine([(scale / len(held), one) for scale, one in held])
                models[k] = reference.combine([(1, models[k]), (1, step)])
                applied[k] += 1
                held.clear()
        self.versions.append(models)
        self.steps.append(applied)


def follow(method, loop_of, data, rule, sampler=sampling.uniform, rounds=ROUNDS):
    """Compares the models after every round with those of a loop, and the arrivals and times with a queue's."""
    state, advance, key = compiled_rounds(method, rule._replace(in_flight=M), data, sampler)
    everybody = Cohort.of(jnp.arange(N))
    found = jax.jit(
        lambda: round_work(
            method,
            method.round,
            key,
            state.inner if method.per_client is None else state.inner._replace(**{method.per_client: state.rows}),
            data,
            everybody,
        )
    )()
    seconds = np.asarray(work_seconds(found, found.bytes_up, found.bytes_down, data.speeds), np.float64)
    queue = Queue(key, data, sampler, rule._replace(in_flight=M).arrivals, seconds)
    loop, seen = loop_of(state, key), []
    for number in range(rounds):
        state, cohort, info, times = advance(state)
        arrivals, took = queue.round(number)
        mask = np.asarray(cohort.mask)
        assert sorted(np.asarray(cohort.ids)[mask].tolist()) == sorted(client for client, _ in arrivals), number
        assert float(times.end) == took
        assert int(info.extra["staleness_max"]) == max((number - start for _, start in arrivals), default=0)
        loop.round(number, arrivals)
        seen += arrivals
        yield state, loop, seen


def setting(data, key, weighting="rows"):
    return reference.Setting(key, rows_of(data), RATE, 2, 3, weighting)


def numpy(model):
    return jax.tree.map(np.asarray, model)


RULES = {
    "fedbuff": (Rule("fedbuff", buffer=3), UNLIKE, {}),
    "as-many-as-in-flight": (Rule("fedbuff", buffer=5, staleness="constant"), EQUAL, {}),
    "more-than-in-flight": (Rule("fedbuff", buffer=7, staleness="hinge:2,1"), UNLIKE, {"broken": 3}),
    "fedasync": (Rule("fedasync"), UNLIKE, {"broken": 9}),
    "away": (Rule("fedbuff", buffer=2), EQUAL, {"sampler": sampling.availability("random")}),
}


@pytest.mark.parametrize(
    "name", ["fedbuff", *(pytest.param(name, marks=pytest.mark.slow) for name in RULES if name != "fedbuff")]
)
def test_fedavg_is_the_loop_with_an_event_queue(name):
    rule, factors, options = RULES[name]
    with jax.enable_x64(True):
        data = federation(factors, options.get("broken"))
        method = jaxfl.methods.fedavg(softmax_task(), optax.sgd(RATE), **EPOCHS)
        sampler = options.get("sampler", sampling.uniform)

        def loop_of(state, key):
            return Averaging(setting(data, key), numpy(state.inner.model), rule)

        for state, loop, arrived in follow(method, loop_of, data, rule, sampler):
            seen = arrived
            # rounding of float64 (1e-16) and of the float32 weights of staleness (6e-8) over some tens of steps
            jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), state.inner.model, loop.versions[-1])
        assert len({start for _, start in seen}) > 10 and np.bincount([client for client, _ in seen]).max() > 2


def test_fedper_writes_personal_parts_at_arrival():
    rule = Rule("fedbuff", buffer=3, staleness="constant")
    with jax.enable_x64(True):
        data = federation(UNLIKE)
        method = jaxfl.methods.fedper(softmax_task(), optax.sgd(RATE), personal="bias", **EPOCHS)

        def loop_of(state, key):
            model = {**numpy(state.inner.base), "bias": np.asarray(state.rows["bias"])[0]}
            return Averaging(setting(data, key), model, rule, own=("bias",))

        everybody = jnp.arange(N)
        for state, loop, _ in follow(method, loop_of, data, rule):
            served = asynchronous(method, rule).client_params(state, everybody)
            for client, model in enumerate(loop.served()):
                for leaf, value in model.items():  # rounding of float64 over some tens of steps
                    np.testing.assert_allclose(served[leaf][client], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("least", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_ifca_applies_the_buffers_of_its_clusters(least):
    rule = Rule("fedbuff", buffer=4, cluster_buffer=least)
    with jax.enable_x64(True):
        data = federation(UNLIKE)
        method = jaxfl.methods.ifca(softmax_task(1.0), optax.sgd(RATE), num_clusters=2, **EPOCHS)

        def loop_of(state, key):
            models = [numpy(tree.take(state.inner.models, k)) for k in range(2)]
            return Clusters(setting(data, key, "uniform"), models, rule, least)

        for state, loop, _ in follow(method, loop_of, data, rule):
            for k, model in enumerate(loop.versions[-1]):
                for leaf, value in model.items():
                    np.testing.assert_allclose(state.inner.models[leaf][k], value, rtol=1e-5, atol=1e-7)
            assert np.asarray(state.versions.applied[0]).tolist() == loop.steps[-1].tolist()
        assert min(loop.steps[-1]) > 0


DATA = linear_federation((5, 4, 3, 8, 1, 6, 4, 7), (0, 0, 1, 1, 0, 1, 0, 1))
EVEN = linear_federation((4,) * 8, (0, 0, 1, 1, 0, 1, 0, 1))


def run(clock, method=None, data=DATA, **options):
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=2), DATA)
    method = jaxfl.methods.fedavg(task, optax.sgd(0.1), **EPOCHS) if method is None else method
    given = {"rounds": 6, "cohort": 4, "seed": 3, "eval_every": 1, **options}
    return jaxfl.run(method, data, clock=clock, **given)


@functools.cache
def plain():
    return run(ClientClock("lognormal", asynchronous="fedbuff", buffer=2))


def same_bits(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def can_fly(name):
    """Whether a method of the registry has asynchronous rounds, and why not."""
    row = METHODS[name]
    data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20).in_programs()
    task = jaxfl.classification(jaxfl.models.MLP(hidden=(8,), num_classes=10), data)
    method = row.factory(task, optax.sgd(0.1), **row.small)
    return method, data, refusal(method, data)


def assert_is_itself(name):
    """Asserts that a method whose clients all take the same time is its synchronous self with a full buffer."""
    method, data, reason = can_fly(name)
    assert not reason
    each = np.ones(8, np.float32)  # so fast that the bytes alone take time: FedALA works longer from its second time on
    data = dataclasses.replace(data, speeds=Speeds(1e30 * each, each, each))
    rule = Rule("fedbuff", buffer=4, cluster_buffer=1, in_flight=4)
    flies, advance, key = compiled_rounds(method, rule, data)
    waits = jax.jit(method.init)(key, data)
    round = jax.jit(lambda state, data, cohort: method.round(key, state, data, cohort)[0])
    for _ in range(3):
        waits, (flies, *_) = round(waits, data, sample(key, waits.round, data, 4)), advance(flies)
    everybody = jnp.arange(8)
    served, other = method.client_params(waits, everybody), asynchronous(method, rule).client_params(flies, everybody)
    # sums of updates and not of models: rounding of float32 over a few tens of steps
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-3), served, other)
    same_bits(waits.cluster, flies.cluster)


@pytest.mark.parametrize("name", ["fedavg", "ifca"])
def test_with_equal_times_and_a_full_buffer_a_method_is_itself(name):
    assert_is_itself(name)


@pytest.mark.slow
@pytest.mark.rotating(weeks=9)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_itself_or_refuses_with_the_reason(name):
    reason = can_fly(name)[2]
    if not reason:
        assert_is_itself(name)
    else:
        assert reason.startswith("asynchronous must be none for") and "; take " in reason


@pytest.mark.parametrize("name", ["scaffold", "ditto", "cfl", "pfedgraph", "clove", "fedsoft"])
def test_methods_that_need_rounds_say_so(name):
    reason = can_fly(name)[2]
    assert reason.startswith("asynchronous must be none for") and "; take " in reason


@pytest.mark.slow
def test_speeds_scale_time_and_nothing_else_and_the_order_of_chunks_changes_rounding_alone(tmp_path):
    names = ["client", "flops", "up", "down"]
    paths = []
    for factor in (1, 4):
        lines = [[i, *(factor * value / (1 + i) for value in (1e11, 1e7, 5e7))] for i in range(8)]
        paths.append(tmp_path / f"{factor}.csv")
        paths[-1].write_text("\n".join(",".join(map(str, line)) for line in [names, *lines]))
    one, four = (run(ClientClock(str(path), asynchronous="fedbuff", buffer=2)) for path in paths)
    same_bits(one.state.inner, four.state.inner)
    assert one.summary["seconds_simulated"] == pytest.approx(4 * four.summary["seconds_simulated"], rel=1e-6)
    chunked = run(ClientClock("lognormal", asynchronous="fedbuff", buffer=2), plan=Plan(chunk=2))
    assert chunked.summary["seconds_simulated"] == plain().summary["seconds_simulated"]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), chunked.state.inner.model, plain().state.inner.model
    )


def test_a_run_that_is_resumed_in_mid_flight_is_the_same_bit_for_bit(tmp_path):
    clock = ClientClock("lognormal", asynchronous="fedbuff", buffer=2)
    run(clock, rounds=3, checkpoint_dir=tmp_path)
    resumed = run(clock, checkpoint_dir=tmp_path, resume=True)
    same_bits(resumed.state, plain().state)
    assert resumed.history[-1]["seconds_simulated"] == plain().history[-1]["seconds_simulated"]
    assert np.isfinite(np.asarray(resumed.state.flight.left)).any()


def test_arrivals_are_reported_and_too_stale_ones_are_cut_and_counted():
    assert plain().clients()["reports"].sum() == 6 * 2
    assert sum(plain().summary["participation_by_speed"]) > 0
    strict = run(ClientClock("lognormal", asynchronous="fedbuff", buffer=2, max_staleness=0))
    late = sum(strict.clients()["cuts"])
    assert late == strict.summary["cut"] > 0 and strict.clients()["reports"].sum() + late == 6 * 2
    assert strict.state.versions.number.shape == (1,) and plain().state.versions.number.shape == (5,)


@pytest.mark.slow
def test_compressed_updates_fly_and_robust_means_and_noise_do_not():
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=2), DATA)
    method = jaxfl.methods.fedavg(task, optax.sgd(0.1), **EPOCHS)
    clock = ClientClock("equal", asynchronous="fedbuff", buffer=4)
    coded = jaxfl.wired(method, channel=jaxfl.wire.top_k(0.5), error_feedback=True)
    waits, flies = run(ClientClock("equal"), coded, EVEN), run(clock, coded, EVEN)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
        waits.state.inner.model,
        flies.state.inner.inner.model,
    )
    for options in ({"aggregator": jaxfl.wire.median()}, {"privacy": jaxfl.Privacy(clip=1.0, noise=1.0)}):
        with pytest.raises(ValueError, match="asynchronous must be none with|Poisson sampling"):
            run(clock, jaxfl.wired(method, **options))


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({"buffer": 0}, "buffer", 0),
        ({"staleness": "linear"}, "staleness", "linear"),
        ({"staleness": "hinge:3"}, "staleness=hinge", "hinge:3"),
        ({"mixing": 0.5}, "mixing", 0.5),
        ({"asynchronous": "fedasync", "mixing": 1.5}, "mixing", 1.5),
        ({"max_staleness": -1}, "max_staleness", -1),
        ({"deadline": 3.0}, "deadline", 3.0),
        ({"asynchronous": None, "buffer": 3}, "buffer", 3),
        ({"asynchronous": "swift"}, "asynchronous", "swift"),
    ],
)
def test_bad_options_are_told(options, name, value):
    with pytest.raises(ValueError, match=mentions(name, value)):
        ClientClock(**{"asynchronous": "fedbuff", **options})


@pytest.mark.parametrize(
    "options", [{"clock": ClientClock(asynchronous="fedbuff")}, {"clock": None, "edges": jaxfl.EdgeServers(2)}]
)
def test_rows_on_the_host_are_refused_where_rounds_draw_their_clients(options):
    with pytest.raises(ValueError, match=mentions("resident", False)):
        run(**options, resident=False)


def test_a_buffer_above_the_clients_and_one_model_of_several_are_told_before_compilation():
    with pytest.raises(ValueError, match=mentions("buffer", 9)):
        run(ClientClock(asynchronous="fedbuff", buffer=9))
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=2), DATA)
    with pytest.raises(ValueError, match="asynchronous must be fedbuff for a method with several models"):
        run(ClientClock(asynchronous="fedasync"), jaxfl.methods.ifca(task, optax.sgd(0.1), num_clusters=2))
