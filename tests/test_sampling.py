"""Cohorts: their size, who is in them, that every client is as likely as any other; who fails and who is away."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.stats import binom

import jaxfl
from jaxfl import sampling
from jaxfl.client import conduct
from jaxfl.cohort import Cohort, Plan
from jaxfl.data import conditions
from jaxfl.data.clients import Split
from jaxfl.data.drift import drift
from jaxfl.data.synthetic import clustered_linear
from jaxfl.methods import fedavg
from jaxfl.random import Stream, key_for
from jaxfl.sampling import availability, cohort_size, cohorts_of, draw_cohort, dropouts, poisson, sampler_name, uniform
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=6)

DATA = clustered_linear(10, rows=2)
HELD_OUT = replace(DATA, held_out=np.arange(10) >= 7)


@pytest.mark.parametrize(
    ("cohort", "data", "message"),
    [
        (0, DATA, ("cohort", "got 0", 10)),
        (-3, DATA, ("cohort", -3)),
        (11, DATA, ("cohort", 11, 10)),
        (8, HELD_OUT, ("cohort", 8, 7)),
        (0.0, DATA, ("cohort", 0.0)),
        (1.5, DATA, ("cohort", 1.5)),
        (-0.1, DATA, ("cohort", -0.1)),
        (float("nan"), DATA, ("cohort", "nan")),
        (True, DATA, ("cohort", "True")),
        ("all", DATA, ("cohort", "all")),
        (None, DATA, ("cohort", "None")),
    ],
)
def test_bad_cohorts_are_named(cohort, data, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        cohort_size(cohort, data)


def test_sizes():
    assert [cohort_size(c, DATA) for c in (1, 10, 0.3, 1.0, 0.001)] == [1, 10, 3, 10, 1]
    assert [cohort_size(c, HELD_OUT) for c in (7, 1.0)] == [7, 7]


def test_cohorts_are_sorted_distinct_and_differ_by_round(key):
    cohorts = [uniform(key, jnp.int32(r), DATA, 4).ids.tolist() for r in range(6)]
    assert all(ids == sorted(set(ids)) and len(ids) == 4 for ids in cohorts)
    assert len({tuple(ids) for ids in cohorts}) > 1
    assert cohorts[2] == uniform(key, jnp.int32(2), DATA, 4).ids.tolist()
    assert cohorts != [uniform(jax.random.key(1), jnp.int32(r), DATA, 4).ids.tolist() for r in range(6)]


@pytest.mark.parametrize("size", [3, 7])
def test_held_out_clients_are_never_drawn(size, key):
    drawn = jax.jit(jax.vmap(lambda r: uniform(key, r, HELD_OUT, size).ids))(jnp.arange(200))
    assert set(np.asarray(drawn).ravel().tolist()) == set(range(7))


def test_every_client_and_every_pair_is_as_likely(key):
    rounds, size = 4000, 3
    drawn = np.asarray(jax.jit(jax.vmap(lambda r: uniform(key, r, DATA, size).ids))(jnp.arange(rounds)))
    member = np.zeros((rounds, 10))
    member[np.arange(rounds)[:, None], drawn] = 1
    together = member.T @ member / rounds
    single, pair = size / 10, size * (size - 1) / 90
    # five standard deviations of a mean of that many draws: fails for one fair sampler in 20,000
    np.testing.assert_allclose(np.diag(together), single, atol=5 * np.sqrt(single * (1 - single) / rounds))
    off = together[~np.eye(10, dtype=bool)]
    np.testing.assert_allclose(off, pair, atol=5 * np.sqrt(pair * (1 - pair) / rounds))


MILLION = replace(
    DATA,
    train=Split(DATA.train.rows, np.zeros(1_000_000, np.int32), np.full(1_000_000, 2, np.int32), 2),
    test=Split(DATA.test.rows, np.zeros(1_000_000, np.int32), np.full(1_000_000, 2, np.int32), 2),
)


def test_of_a_million_clients_all_are_as_likely(key):
    """Also those whose number is close to another's, and those at both ends."""
    rounds, size = 2000, 50
    # one round after another: side by side, both ways of drawing would be computed
    ids = np.asarray(jax.jit(lambda: jax.lax.map(lambda r: uniform(key, r, MILLION, size).ids, jnp.arange(rounds)))())
    assert ids.dtype == np.int32 and (np.diff(ids) > 0).all() and ids.min() >= 0 and ids.max() < 1_000_000
    # 100,000 draws of 1,000,000: five standard deviations of the number in each of ten equal parts
    parts = np.bincount(ids.ravel() // 100_000, minlength=10)
    np.testing.assert_allclose(parts, 10_000, atol=5 * np.sqrt(10_000 * 0.9))
    assert len(np.unique(ids)) > 94_000  # 95,163 are expected
    one = jax.jit(lambda r: uniform(key, r, MILLION, size).ids)
    np.testing.assert_array_equal(one(jnp.int32(7)), ids[7])


def test_of_a_million_the_first_different_ones_are_taken(key, monkeypatch):
    """Every pair is as likely where draws are often the same: of 17 clients two."""
    monkeypatch.setattr(sampling, "MOST_DRAWS", 0)
    few, rounds = clustered_linear(17, rows=2), 8000
    ids = np.asarray(jax.jit(jax.vmap(lambda r: uniform(key, r, few, 2).ids))(jnp.arange(rounds)))
    together = np.zeros((17, 17))
    np.add.at(together, tuple(ids.T), 1 / rounds)
    pairs, pair = together[np.triu_indices(17, 1)], 2 / (17 * 16)
    assert together.sum() == pytest.approx(pairs.sum())
    np.testing.assert_allclose(pairs, pair, atol=5 * np.sqrt(pair * (1 - pair) / rounds))


@pytest.mark.parametrize("there", [20, 600_000])
def test_of_a_million_those_held_out_are_never_drawn(there, key):
    """Be it most of them, where lots decide, or some."""
    held_out = np.arange(1_000_000) >= there
    data = replace(MILLION, held_out=held_out)
    ids = np.asarray(jax.jit(lambda r: uniform(key, r, data, 10).ids)(jnp.int32(0)))
    assert len(set(ids)) == 10 and ids.max() < there


@pytest.mark.parametrize("change", [{"arrive": 0.4}, {"leave": 0.4}])
@pytest.mark.parametrize("name", ["uniform", "both"])
def test_held_out_clients_fill_no_cohort_where_others_arrive_or_leave(name, change, key):
    """A cohort is as large as the most that are there: in the other rounds what is left of it is nobody."""
    data = drift(replace(DATA, held_out=np.arange(10) < 3), 5, **change)
    size = cohort_size(1.0, data)
    for now in data.phases:
        there = set(np.flatnonzero(~np.asarray(now.held_out)).tolist())
        for round in range(20):
            cohort = draw_cohort(SAMPLERS[name], key, jnp.int32(round), now, size)
            trained = np.asarray(cohort.ids)[np.asarray(cohort.mask)].tolist()
            assert len(trained) == len(set(trained)) and set(trained) <= there
            assert name != "uniform" or set(trained) == there
        assert len(there) in (size, size - 3)


def drawn(sampler, key, size=4, data=DATA, rounds=400):
    """Returns the ids and masks `[R, C]` of many rounds."""
    return tuple(map(np.asarray, compiled(sampler, size)(key, data, jnp.arange(rounds))))


@functools.cache
def compiled(sampler, size):
    def draw(key, data, round):
        cohort = sampler(key, round, data, size)
        return cohort.ids, cohort.mask

    return jax.jit(jax.vmap(draw, in_axes=(None, None, 0)))


SAMPLERS = {
    "uniform": uniform,
    "dropouts": dropouts(0.4),
    "diurnal": availability("diurnal", period=10),
    "random": availability("random", lowest=0.2),
    "both": dropouts(0.4, availability("random")),
    "poisson": poisson(0.3),
}


@pytest.mark.parametrize(
    ("name", "size"),
    [("uniform", 3), ("uniform", 7), ("dropouts", 3), ("diurnal", 7), ("random", 3), ("both", 7), ("poisson", 5)],
)
def test_every_sampler_draws_distinct_participants(name, size, key):
    ids, mask = drawn(SAMPLERS[name], key, size, HELD_OUT)
    assert ids.shape == mask.shape == (400, size) and mask.any()
    assert (np.diff(ids, axis=1) > 0).all() and ids.max() < 7
    assert mask.all() == (name == "uniform")
    again, same = drawn(SAMPLERS[name], key, size, HELD_OUT)
    assert (ids == again).all() and (mask == same).all()
    _, other = drawn(SAMPLERS[name], jax.random.key(1), size, HELD_OUT)
    assert name == "uniform" or (mask != other).any()


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_keeps_the_plan(name, key):
    plan = Plan(chunk=3)
    assert SAMPLERS[name](key, jnp.int32(0), DATA, 4, plan).plan == plan


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_those_who_fail_are_those_who_would_be_late(share, key):
    data = conditions.straggle(DATA, share)
    ids, mask = drawn(dropouts(share), key)
    plain, _ = drawn(uniform, key)
    np.testing.assert_array_equal(ids, plain)

    def epochs_of(round, client):
        return conduct.training_length(key_for(key, Stream.BATCHES, round, client), data, 5)

    epochs = jax.jit(jax.vmap(jax.vmap(epochs_of, (None, 0))))(np.arange(len(ids)), ids)
    np.testing.assert_array_equal(mask, np.asarray(epochs) == 5)
    # five standard deviations
    assert abs(mask.mean() - (1 - share)) < 5 * np.sqrt(share * (1 - share) / mask.size)


def test_one_random_number_decides_who_fails_and_who_is_late(key):
    late, few, many = (~drawn(dropouts(share), key)[1] for share in (0.4, 0.2, 0.6))
    assert not (few & ~late).any() and (late & ~few).any()
    assert not (late & ~many).any() and (many & ~late).any()


def test_dropouts_do_not_depend_on_the_cohort(key):
    """A client that fails in one cohort fails in every other of that round."""
    ids, mask = drawn(dropouts(0.5), key, 10)
    few, masked = drawn(dropouts(0.5), key, 3)
    for round in range(50):
        fails = dict(zip(ids[round].tolist(), mask[round].tolist(), strict=True))
        assert [fails[i] for i in few[round].tolist()] == masked[round].tolist()


def test_who_is_away_is_not_drawn_while_others_are_there(key):
    """Padding only where everybody who is available has been drawn."""
    everybody, there = drawn(SAMPLERS["random"], key, 10)
    assert (everybody == np.arange(10)[None]).all()
    ids, mask = drawn(SAMPLERS["random"], key, 4)
    for round in range(400):
        assert there[round][ids[round][mask[round]]].all()
        assert mask[round].sum() == min(4, there[round].sum())
    assert (there.sum(1) < 4).any() and (there.sum(1) > 4).any()


@pytest.mark.parametrize("threshold", [0.0, 0.5, -0.8])
def test_the_day_has_its_period_and_its_share(threshold, key):
    data, period = clustered_linear(500, rows=1), 24
    sampler = availability("diurnal", period=period, threshold=threshold)
    _, there = drawn(sampler, key, 500, data, rounds=3 * period)
    np.testing.assert_array_equal(there[:period], there[period : 2 * period])
    hours = there[:period].mean(0)  # of each client
    share = np.arccos(threshold) / np.pi
    assert abs(hours - share).max() <= 1 / period, "each client has its share of the day, to an hour"
    # in one stretch: a day has one beginning and one end
    assert (np.diff(there[: period + 1].astype(int), axis=0) == 1).sum(0).max() == 1
    # five standard deviations: at any hour some sleep, phases being uniform
    assert abs(there.mean(1) - share).max() < 5 * np.sqrt(share * (1 - share) / 500)


def test_random_availability_has_every_probability(key):
    data, rounds = clustered_linear(200, rows=1), 2000
    _, there = drawn(availability("random", lowest=0.4), key, 200, data, rounds)
    often = there.mean(0)
    assert often.min() > 0.4 - 5 * np.sqrt(0.24 / rounds) and often.max() > 0.95
    assert abs(often.mean() - 0.7) < 5 * 0.6 / np.sqrt(12 * 200)
    _, always = drawn(availability("random", lowest=1.0), key, 200, data, 10)
    assert always.all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dropouts(1.0), ("dropouts", 1.0)),
        (lambda: dropouts(-0.2), ("dropouts", -0.2)),
        (lambda: availability("nightly"), ("pattern", "nightly")),
        (lambda: availability("diurnal", period=0), ("availability_period", 0)),
        (lambda: availability("diurnal", threshold=1), ("threshold", 1, -1)),
        (lambda: availability("random", lowest=1.5), ("lowest", 1.5)),
        (lambda: poisson(0.0), ("probability", 0.0)),
        (lambda: poisson(1.5), ("probability", 1.5)),
        (lambda: poisson(0.1, capacity=0), ("capacity", 0)),
        (lambda: cohorts_of(poisson(0.3), 4, DATA), ("cohort", 0.3, 4)),
        (lambda: cohorts_of(poisson(capacity=3), 4, DATA), ("capacity", 4, 3)),
        (lambda: poisson()(jax.random.key(0), jnp.int32(0), DATA, 4), ("probability", "None")),
    ],
)
def test_bad_samplers_are_named(make, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        make()


def test_poisson_sampling_draws_every_client_by_itself(key):
    rounds, q = 4000, 0.3
    ids, mask = drawn(poisson(q), key, 10, HELD_OUT, rounds)
    member = np.zeros((rounds, 10))
    np.put_along_axis(member, ids, mask, 1)
    together = member.T @ member / rounds
    assert not member[:, 7:].any()
    # five standard deviations of a mean of that many draws
    np.testing.assert_allclose(np.diag(together)[:7], q, atol=5 * np.sqrt(q * (1 - q) / rounds))
    pairs = together[:7, :7][~np.eye(7, dtype=bool)]
    np.testing.assert_allclose(pairs, q**2, atol=5 * np.sqrt(q**2 * (1 - q**2) / rounds))
    cohort = poisson(q)(key, jnp.int32(0), HELD_OUT, 10)
    assert float(cohort.expected) == pytest.approx(7 * q) and uniform(key, jnp.int32(0), DATA, 3).expected is None
    assert drawn(poisson(1.0), key, 10)[1].all()


def test_of_more_clients_than_the_capacity_a_random_subset_takes_part(key):
    rounds, q = 4000, 0.5
    ids, mask = drawn(poisson(q, capacity=3), key, 5, DATA, rounds)
    whole = [set(i[m]) for i, m in zip(*drawn(poisson(q), key, 10, DATA, rounds), strict=True)]
    some = [set(i[m]) for i, m in zip(ids, mask, strict=True)]
    assert all(len(few) == min(3, len(all_)) and few <= all_ for few, all_ in zip(some, whole, strict=True))
    over = [few for few, all_ in zip(some, whole, strict=True) if len(all_) == 6]
    often = np.bincount([client for few in over for client in few], minlength=10) / len(over)
    np.testing.assert_allclose(often, 0.3, atol=5 * np.sqrt(0.21 / len(over)))


@pytest.mark.parametrize(("q", "clients"), [(0.1, 1000), (0.02, 400), (0.5, 40), (1.0, 7)])
def test_a_cohort_of_the_default_capacity_overflows_in_one_of_a_million_rounds(q, clients):
    capacity = sampling.poisson_capacity(q, clients)
    assert binom.sf(capacity, clients, q) <= 1e-6 < binom.sf(capacity - 1, clients, q)


def test_poisson_sampling_takes_its_probability_from_the_run(key):
    data = clustered_linear(40, rows=2)
    for sampler in (poisson(), poisson(0.25), dropouts(0.2, poisson())):
        bound, places = cohorts_of(sampler, 0.25, data)
        assert bound.poisson == sampling.PoissonSampling(0.25, places, 40) and 10 < places < 40
        assert bound(key, jnp.int32(0), data, places).mask.shape == (places,)
    assert cohorts_of(poisson(), 0.25, data)[0] is cohorts_of(poisson(), 10, data)[0]  # so that programs are shared
    assert cohorts_of(poisson(capacity=12), 10, data)[1] == 12 and cohorts_of(uniform, 10, data) == (uniform, 10)
    summary = jaxfl.run(
        fedavg(jaxfl.classification(jaxfl.models.Logistic(num_classes=data.num_classes), data), optax.sgd(0.1)),
        data,
        rounds=20,
        cohort=10,
        sampler=poisson(),
    ).summary
    assert summary["cohort"] == 10 and 5 < summary["mean_participants"] < 15  # of standard deviation 0.6


def test_samplers_are_told_apart_by_name():
    assert sampler_name(poisson()) == "poisson()" and sampler_name(poisson(0.1, 9)) == "poisson(0.1, capacity=9)"
    assert dropouts(0.0) is uniform and availability() is uniform and sampler_name(uniform) == "uniform"
    assert sampler_name(SAMPLERS["both"]) == "dropouts(0.4, availability(random, lowest=0.1))"
    assert sampler_name(availability("diurnal", period=10)) != sampler_name(availability("diurnal", period=11))


class Drawing:
    """A sampler that is an object."""

    def __call__(self, root, round, data, size, plan=Plan()):
        return uniform(root, round, data, size, plan)


def test_a_run_is_resumed_under_a_sampler_made_anew(tmp_path):
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=DATA.num_classes), DATA)
    method, seen = fedavg(task, optax.sgd(0.1)), {"cohort": 2, "checkpoint_dir": tmp_path}

    def mine(power=1):
        def drawn(root, round, data, size, plan, within, power):
            return within(root, round, data, size, plan)

        return functools.partial(drawn, within=dropouts(0.1), power=power)

    assert sampler_name(mine(2)) == "drawn(power=2, within=dropouts(0.1, uniform))"
    jaxfl.run(method, DATA, rounds=1, sampler=mine(), **seen)
    assert jaxfl.run(method, DATA, rounds=2, sampler=mine(), resume=True, **seen).summary["rounds"] == 2
    with pytest.raises(ValueError, match=mentions("sampler", "power=1", "power=2")):
        jaxfl.run(method, DATA, rounds=3, sampler=mine(2), resume=True, **seen)


def test_a_sampler_without_a_name_is_refused_where_a_run_is_kept(tmp_path):
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=DATA.num_classes), DATA)
    method, sampler = fedavg(task, optax.sgd(0.1)), Drawing()
    with pytest.raises(ValueError, match=mentions("sampler", "Drawing object", "__name__")):
        jaxfl.run(method, DATA, rounds=1, cohort=2, sampler=sampler, checkpoint_dir=tmp_path)
    sampler.__name__ = "drawing"
    jaxfl.run(method, DATA, rounds=1, cohort=2, sampler=sampler, checkpoint_dir=tmp_path)


def test_a_sampler_that_draws_others_than_asked_for_is_refused():
    def drawing(ids):
        return lambda key, round, data, size, plan: Cohort.of(jnp.array(ids, jnp.int32), plan)

    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=DATA.num_classes), DATA)
    for ids, said in (
        ((0, 1, 2), ("sampler", "[2]", "[3]")),
        ((0, 10), ("sampler", 10, 9)),
        ((4, 4), ("sampler", "4 twice")),
        ((3, 1), ("sampler", 1, "held out")),
    ):
        data = replace(DATA, held_out=np.arange(DATA.num_clients) == 1)
        with pytest.raises(ValueError, match=mentions(*said)):
            jaxfl.run(fedavg(task, optax.sgd(0.1)), data, rounds=1, cohort=2, sampler=drawing(ids))
    with pytest.raises(TypeError, match=mentions("sampler", "list")):
        jaxfl.run(fedavg(task, optax.sgd(0.1)), DATA, rounds=1, cohort=2, sampler=lambda *_: [0, 1])

    def masking(mask):
        return lambda key, round, data, size, plan: Cohort(jnp.arange(size), jnp.array(mask), plan)

    for mask, said in (
        ([2, 0], ("sampler", "int32", "[2]")),
        ([True], ("sampler", "bool", "[1]")),
    ):
        with pytest.raises(ValueError, match=mentions(*said)):
            jaxfl.run(fedavg(task, optax.sgd(0.1)), DATA, rounds=1, cohort=2, sampler=masking(mask))
    with pytest.raises(TypeError, match=mentions("sampler", 5, "jaxfl.sampling.uniform")):
        dropouts(0.3, 5)
    sampling.check_drawn(np.array([[3, 3, 3, 1]]), np.array([[True, False, False, False]]), data)  # padding is anybody


def test_a_sampler_of_ones_own(key):
    def first(root, round, data, size, plan=Plan()):
        return Cohort.of(jnp.arange(size), plan)

    ids, mask = drawn(dropouts(0.5, first), key)
    assert (ids == np.arange(4)[None]).all() and not mask.all() and sampler_name(first) == "first"


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("client", [7, 2**32 - 1, np.int64(5), jnp.int32(-1)])
def test_a_key_is_its_address_folded_in_word_by_word(backend, client, key, monkeypatch):
    """However it is compiled: every result rests on it."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    wanted = key
    for word in (int(Stream.BATCHES), 3, client):
        wanted = jax.random.fold_in(wanted, word)
    assert (jax.random.key_data(key_for(key, Stream.BATCHES, 3, client)) == jax.random.key_data(wanted)).all()
    with pytest.raises(OverflowError):
        key_for(key, Stream.BATCHES, -1)


def test_the_plan_is_the_run_s_whatever_a_sampler_passes_on():
    def mine(key, round, data, size, plan):
        return Cohort.of(jnp.arange(size))

    cohort = sampling.draw_cohort(mine, jax.random.key(0), jnp.int32(0), clustered_linear(4), 3, Plan(chunk=2))
    assert cohort.plan == Plan(chunk=2)


def test_a_federation_of_held_out_clients_alone_is_refused_by_name():
    with pytest.raises(ValueError, match=mentions("held_out", "all 10", "result.evaluate")):
        cohort_size(2, replace(DATA, held_out=np.ones(10, bool)))
