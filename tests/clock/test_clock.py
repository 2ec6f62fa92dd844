"""A run with a clock: seconds by hand, laws, policies against brute force, and files of devices."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import ClientClock
from jaxfl.client import conduct
from jaxfl.clock.policies import Policy, reports_of
from jaxfl.clock.profiles import EQUAL, speeds_of
from jaxfl.clock.work import round_work
from jaxfl.cohort import Cohort, Plan
from jaxfl.data import conditions
from jaxfl.random import Stream, key_for
from tests.messages import mentions
from tests.problems import linear_federation

SIZES = (5, 0, 3, 8, 1, 6, 4, 7)
ROUNDS, COHORT, BATCH, EPOCHS = 4, 5, 2, 3
DATA = linear_federation(SIZES, (0, 0, 1, 1, 0, 1, 0, 1))
LATE = conditions.straggle(DATA, 0.5)
ROW = (
    2 * 2 * 3 * 2
)  # operations of a row's gradient: the products of 3 inputs with 2 outputs, forward and of the kernel


def task():
    return jaxfl.classification(jaxfl.models.Logistic(num_classes=2), DATA)


def averaging(**options):
    given = {"local_epochs": EPOCHS, "batch_size": BATCH, **options}
    return jaxfl.methods.fedavg(task(), optax.sgd(0.1), **given)


def run(clock=None, data=LATE, method=None, **options):
    given = {"rounds": ROUNDS, "cohort": COHORT, "seed": 3, "eval_every": 1, "record_vectors": True, **options}
    return jaxfl.run(averaging() if method is None else method, data, clock=clock, **given)


def assert_same_bits(one, other):
    jax.tree.map(np.testing.assert_array_equal, one.state, other.state)


def devices(path, data=DATA, factor=1.0, **columns):
    """Writes a file of devices, each client's different, and returns its path."""
    names = ["client", *EQUAL, *columns]
    lines = [",".join(names)]
    for client in range(data.num_clients):
        values = [factor * value / (1 + client) for value in EQUAL.values()]
        lines.append(",".join(map(repr, [client, *values, *(one[client] for one in columns.values())])))
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def plain():
    return run()


@pytest.fixture(scope="module")
def timed():
    return run(ClientClock("lognormal"))


def epochs_of(seed, round, client):
    """The local epochs of a client, a straggler's too."""
    key = key_for(jax.random.key(seed), Stream.BATCHES, round, client)
    return int(conduct.training_length(key, LATE, EPOCHS))


def seconds_by_hand(speeds, round, client, bytes_each):
    work = ROW * epochs_of(3, round, client) * SIZES[client]
    up, down, flops = (float(np.asarray(values)[client]) for values in (speeds.up, speeds.down, speeds.flops))
    return 8 * bytes_each / down + work / flops + 8 * bytes_each / up


def test_a_round_lasts_as_long_as_its_slowest_client(timed):
    speeds = speeds_of("lognormal", jax.random.key(3), DATA)
    total, busy = 0.0, np.zeros(len(SIZES))
    for round, record in enumerate(timed.history):
        found = {client: seconds_by_hand(speeds, round, client, 4 * 8) for client in record["cohort"]}
        total += max(found.values())
        busy[[*found]] += [*found.values()]
        np.testing.assert_allclose(record["seconds_simulated"], total, rtol=1e-6)  # of float32 operations
    np.testing.assert_allclose(timed.clients()["busy_seconds"], busy, rtol=1e-6)
    assert timed.summary["seconds_simulated"] == timed.history[-1]["seconds_simulated"]
    assert timed.clients()["reports"].sum() == ROUNDS * COHORT
    assert "cuts" not in timed.clients() and "cut" not in timed.summary


def test_a_clock_changes_no_bit_and_a_run_without_one_knows_nothing_of_it(plain, timed):
    assert_same_bits(plain, timed)
    assert plain.times is None and not {name for name in plain.history[-1] if "simulated" in name}
    mine = {"seconds_simulated", "seconds", "seconds_per_round"}
    for one, other in zip(plain.history, timed.history, strict=True):
        assert {k: v for k, v in one.items() if k not in mine} == {k: v for k, v in other.items() if k not in mine}


def test_speeds_scale_time_and_nothing_else_and_time_does_not_depend_on_chunks(tmp_path, timed):
    one, four = (run(ClientClock(devices(tmp_path / f"{k}.csv", factor=k))) for k in (1.0, 4.0))
    assert_same_bits(one, four)
    assert one.summary["seconds_simulated"] == 4 * four.summary["seconds_simulated"]
    chunked = run(ClientClock("lognormal"), plan=Plan(chunk=2))
    assert chunked.history.column("seconds_simulated") == timed.history.column("seconds_simulated")


def test_a_resumed_run_has_the_same_bits(tmp_path, timed):
    clock = ClientClock("lognormal")
    run(clock, rounds=2, checkpoint_dir=tmp_path)
    resumed = run(clock, checkpoint_dir=tmp_path, resume=True)
    assert_same_bits(resumed, timed)
    assert resumed.history.column("seconds_simulated") == timed.history.column("seconds_simulated")
    for name, column in timed.times.items():
        np.testing.assert_array_equal(resumed.times[name], column)
    with pytest.raises(ValueError, match="resume it with"):
        run(ClientClock("tiers"), checkpoint_dir=tmp_path, resume=True)


def test_methods_at_a_seed_share_the_clock_and_seeds_differ():
    one, same, other = (speeds_of("lognormal", jax.random.key(seed), DATA) for seed in (3, 3, 4))
    jax.tree.map(np.testing.assert_array_equal, one, same)
    assert (one.up != other.up).all() and len({*one.up.tolist(), *one.flops.tolist(), *one.down.tolist()}) == 24


def test_the_power_of_devices_gives_the_energy(tmp_path):
    watts = np.arange(1.0, 9.0)
    found = run(ClientClock(devices(tmp_path / "phones.csv", watts=watts.tolist())), rounds=2)
    np.testing.assert_allclose(found.summary["energy_joules"], (watts * found.clients()["busy_seconds"]).sum())


def work(method, data=DATA, ids=(0, 3, 6), round=0):
    key, cohort = jax.random.key(0), Cohort.of(ids, Plan(chunk=1))
    data = data.in_programs()
    state = jax.jit(method.init)(key, data)._replace(round=jnp.int32(round))
    read = jax.jit(lambda *given: round_work(method, method.round, *given)._replace(trainings=0.0, in_turn=False))
    return read(key, state, data, cohort)


def test_the_work_of_methods_is_counted_where_it_is_made():
    sizes, forward = np.array(SIZES), ROW / 2
    cohort = np.isin(np.arange(8), (0, 3, 6))
    given = {"local_epochs": EPOCHS, "batch_size": BATCH}
    ifca = work(jaxfl.methods.ifca(task(), optax.sgd(0.1), num_clusters=4, **given))
    np.testing.assert_array_equal(ifca.training, EPOCHS * ROW * sizes * cohort)
    np.testing.assert_array_equal(ifca.passes, 4 * forward * sizes * cohort)  # of K models
    assert (float(ifca.bytes_up), float(ifca.bytes_down)) == (3 * 32, 4 * 3 * 32)
    ditto = work(jaxfl.methods.ditto(task(), optax.sgd(0.1), **given))
    np.testing.assert_array_equal(ditto.training, 2 * EPOCHS * ROW * sizes * cohort)
    kfed = jaxfl.methods.kfed(task(), optax.sgd(0.1), num_clusters=2, first_epochs=7, **given)
    first, later = (np.asarray(work(kfed, round=round).training) for round in (0, 1))
    np.testing.assert_array_equal(first - later, 7 * ROW * sizes)  # of everybody, before the first round
    np.testing.assert_array_equal(later, EPOCHS * ROW * sizes * cohort)


def brute_force(policy, seconds, asked):
    """Returns who is aggregated and the end of the round, by a walk through the reports in their order."""
    reports = sorted((seconds[i], i) for i in range(len(seconds)) if asked[i])
    deadline = math.inf
    if isinstance(policy.deadline, str):
        deadline = reports[math.ceil(float(policy.deadline[1:]) / 100 * len(reports) - 1e-9) - 1][0] if reports else 0
    elif policy.deadline is not None:
        deadline = policy.deadline
    taken, end = [], 0.0
    for time, client in reports:
        if len(taken) == policy.cohort:
            break
        if time > deadline and len(taken) >= policy.min_reports:
            end = max(end, deadline)  # the server has waited for it until then
            break
        taken.append(client)
        end = time if time > deadline else max(end, time)
    else:
        end = end if len(taken) == len(reports) else deadline
    return np.isin(np.arange(len(seconds)), taken), end


@pytest.mark.parametrize(
    "policy",
    [
        Policy(over_select=1.5, cohort=4),
        Policy(deadline=2.5, cohort=6),
        Policy(deadline=0.5, min_reports=3, cohort=6),
        Policy(deadline="p50", cohort=6),
        Policy(over_select=2.0, deadline=1.5, min_reports=2, cohort=3),
    ],
    ids=str,
)
def test_the_clients_that_are_cut_are_those_of_a_walk_through_the_reports(policy):
    rng = np.random.default_rng(0)
    for _ in range(40):
        seconds = rng.integers(1, 8, 6).astype(np.float32) / 2  # with ties
        asked = rng.random(6) < 0.8
        found = reports_of(policy, jnp.asarray(seconds), jnp.asarray(asked), jnp.arange(6))
        reported, end = brute_force(policy, seconds.tolist(), asked.tolist())
        np.testing.assert_array_equal(found.reported, reported, str((seconds, asked)))
        assert float(found.end) == end, (seconds, asked)


def masked(cuts):
    """Returns the uniform sampler without the clients that are cut in each round `[R, N]`."""

    def sampler(root, round, data, size, plan=Plan()):
        cohort = jaxfl.sampling.uniform(root, round, data, size, plan)
        return dataclasses.replace(cohort, mask=cohort.mask & ~jnp.asarray(cuts)[round][cohort.ids])

    return sampler


def test_a_deadline_drops_the_late_clients_and_no_others(timed):
    speeds, deadline, cuts = speeds_of("lognormal", jax.random.key(3), DATA), 8e-5, np.zeros((ROUNDS, 8), bool)
    for round, record in enumerate(timed.history):
        for client in record["cohort"]:
            cuts[round, client] = seconds_by_hand(speeds, round, client, 4 * 8) > deadline
    assert 0 < cuts.sum() < ROUNDS * COHORT and (cuts.sum(1) < COHORT).all(), cuts
    found = run(ClientClock("lognormal", deadline=deadline))
    expected = run(sampler=masked(cuts))
    assert_same_bits(found, expected)
    np.testing.assert_array_equal(found.clients()["cuts"], cuts.sum(0))
    assert found.summary["cut"] == cuts.sum()
    np.testing.assert_allclose(found.summary["seconds_simulated"], ROUNDS * deadline, rtol=1e-6)  # each cut some
    assert found.history[-1]["bytes_down"] == timed.history[-1]["bytes_down"]  # of clients that were cut, too
    assert found.history[-1]["bytes_up"] == expected.history[-1]["bytes_up"]
    rates = found.clients()["reports"].to_numpy() / ROUNDS
    by_group = [rates[DATA.group == group].mean() for group in (0, 1)]
    np.testing.assert_allclose(found.summary["participation_by_group"], by_group)
    fast = np.argsort(np.log([speeds.flops, speeds.up, speeds.down]).sum(0)).reshape(4, 2)
    np.testing.assert_allclose(found.summary["participation_by_speed"], rates[fast].mean(1))


@pytest.mark.slow
def test_late_clients_send_the_whole_steps_that_fit(tmp_path):
    data = linear_federation((4,) * 8, (0, 1) * 4)
    clock = ClientClock(devices(tmp_path / "slow.csv", data))
    speeds, each = speeds_of(str(clock.speeds), jax.random.key(0), data), 8 * 32
    steps = 6  # of 2 rows each: three epochs
    fixed = each / np.asarray(speeds.up) + each / np.asarray(speeds.down)
    of_step = BATCH * ROW / np.asarray(speeds.flops)
    deadline = float(fixed[5] + 2.5 * of_step[5])  # the sixth client makes two steps, the last two none
    fits = np.minimum(np.floor((deadline - fixed) / of_step), steps)
    assert fits.tolist()[:6] == [steps] * 5 + [2] and (fits[6:] <= 0).all()
    found = run(dataclasses.replace(clock, deadline=deadline, late="partial"), data, rounds=1, cohort=8)
    full = run(dataclasses.replace(clock, deadline=1e9, late="partial"), data, rounds=1, cohort=8)
    assert_same_bits(full, run(None, data, rounds=1, cohort=8))  # with time enough nothing changes
    np.testing.assert_array_equal(found.clients()["cuts"], fits <= 0)
    np.testing.assert_allclose(found.clients()["busy_seconds"][5], fixed[5] + 2 * of_step[5], rtol=1e-6)
    alone = masked(np.arange(8)[None] != 5)  # the model of the sixth client
    one = run(dataclasses.replace(clock, deadline=deadline, late="partial"), data, rounds=1, cohort=8, sampler=alone)
    two_steps = averaging(local_epochs=jaxfl.Steps(2))
    assert_same_bits(one, run(None, data, two_steps, rounds=1, cohort=8, sampler=alone))


@pytest.mark.slow
def test_more_clients_are_asked_and_the_first_are_aggregated():
    found = run(ClientClock("lognormal", over_select=1.5), DATA, cohort=4)
    assert found.summary["mean_participants"] == 4 and found.summary["cut"] == ROUNDS * 2
    everybody = run(ClientClock("lognormal"), DATA, cohort=6)  # the same six are asked
    assert found.summary["seconds_simulated"] < everybody.summary["seconds_simulated"]


def test_a_deadline_that_nobody_meets_waits_and_says_so():
    found = run(ClientClock("equal", deadline=1e-9, min_reports=2), DATA, rounds=2)
    assert found.summary["waited"] == 2 and found.summary["mean_participants"] == 2
    assert "2 of 2 rounds waited beyond the deadline (1e-09)" in found.summary["shortfall"]


@pytest.mark.parametrize(
    ("text", "argument", "value"),
    [
        ("client,flops,up,down\n0,1e9,0,1e6\n", "up", "0"),
        ("client,flops,up,down\n0,1e9,1e6,nan\n", "down", "nan"),
        ("client,flops,up,down\n0,-1,1e6,1e6\n", "flops", "-1"),
        ("client,flops,up,down\n0,1e9,1e6,1e6\n0,1e9,1e6,1e6\n", "clock", "line 3"),
        ("client,flops,up,down\n0,1e9,1e6,1e6\n", "clock", "7 missing"),
        ("client,flops,up\n0,1e9,1e6\n", "clock", "down"),
    ],
)
def test_bad_files_are_refused_in_a_line(tmp_path, text, argument, value):
    path = tmp_path / "phones.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=mentions(argument, value)) as refused:
        run(ClientClock(path))
    assert "\n" not in str(refused.value) and path.read_text() == text


@pytest.mark.parametrize(
    ("given", "argument", "value"),
    [
        ({"sigma": -1.0, "speeds": "lognormal"}, "clock_sigma", -1.0),
        ({"sigma": 2.0}, "clock_sigma", 2.0),
        ({"by": "group"}, "clock_by", "group"),
        ({"over_select": 0.5}, "over_select", 0.5),
        ({"deadline": 0.0}, "deadline", 0.0),
        ({"deadline": "p0"}, "deadline", "p0"),
        ({"deadline": "soon"}, "deadline", "soon"),
        ({"late": "partial"}, "late", "partial"),
        ({"min_reports": 0, "deadline": 1.0}, "min_reports", 0),
    ],
)
def test_options_out_of_range_are_refused(given, argument, value):
    with pytest.raises(ValueError, match=mentions(argument, value)):
        ClientClock(**given)


def test_methods_and_samplings_that_cannot_be_cut_are_refused():
    chain = averaging(update="chain")
    with pytest.raises(ValueError, match=mentions("deadline", 1.0)):
        run(ClientClock(deadline=1.0), method=chain)
    with pytest.raises(ValueError, match=mentions("late", "partial")):
        run(ClientClock(deadline=1.0, late="partial"), method=jaxfl.methods.ditto(task(), optax.sgd(0.1)))
    with pytest.raises(ValueError, match=mentions("over_select", 2.0)):
        run(ClientClock(over_select=2.0))
    with pytest.raises(ValueError, match=mentions("deadline", 1.0)):
        run(ClientClock(deadline=1.0), sampler=jaxfl.sampling.poisson())
