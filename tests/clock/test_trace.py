"""Runs whose clients' devices change and come and go, against a loop in float64; ends of traces, resume, bad files."""

import bisect
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas
import pytest

import jaxfl
from jaxfl import ClientClock
from jaxfl.clock.trace import PARTS, read_trace, seconds_at, time_after
from jaxfl.random import Stream, key_for
from jaxfl.simulation import loop
from tests.messages import mentions
from tests.problems import linear_federation

pytestmark = pytest.mark.filterwarnings("ignore:the clock's trace")
SIZES = (5, 0, 3, 8, 1, 6, 4, 7)
N, ROUNDS, COHORT, EPOCHS = len(SIZES), 14, 3, 3
DATA = linear_federation(SIZES, (0, 0, 1, 1, 0, 1, 0, 1))
WORK, BITS = 24 * EPOCHS, 8 * 32  # operations of a row in a round; bits of a model, up and down
END, AWAY = 41.5, (13.0, 19.25)  # seconds; nobody is available in between
COLUMNS = ["client", "time", "available", "flops", "up", "down", "watts"]
TASK = jaxfl.classification(jaxfl.models.Logistic(num_classes=2), DATA)
METHOD = jaxfl.methods.fedavg(TASK, optax.sgd(0.1), local_epochs=EPOCHS, batch_size=2)


def course():
    """Rows of all clients, in the order of their times; with these numbers all seconds are exact."""
    rng, rows = np.random.default_rng(4), []
    for client in range(N):
        times = {0.0, *(rng.integers(1, int(4 * END), 4) / 4), *AWAY}
        for time in sorted(times):
            there = not AWAY[0] <= time < AWAY[1] and bool(time == 0 or rng.random() < 0.3)
            flops, up, down = 2.0 ** rng.integers(-1, 2, 3) * (WORK, BITS, BITS)
            rows.append((client, time, there, flops, up, down, 1.0 + client))
    rows.append((0, END, True, 1.0, 1.0, 1.0, 1.0))  # which is the end, and never holds
    return pandas.DataFrame(sorted(rows, key=lambda row: row[1]), columns=COLUMNS)


FRAME = course()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("trace") / "phones.parquet"
    FRAME.to_parquet(file)
    return file


def run(clock, rounds=ROUNDS, **options):
    given = {"cohort": COHORT, "seed": 3, "eval_every": 1, "record_vectors": True, **options}
    return jaxfl.run(METHOD, DATA, rounds=rounds, clock=clock, **given)


@pytest.fixture(scope="module")
def followed(path):
    with pytest.warns(UserWarning, match=mentions("trace", f"{END:g}")) as told:
        found = run(ClientClock(path))
    assert len(told) == 1
    return found


def assert_same_run(one, other):
    jax.tree.map(np.testing.assert_array_equal, one.state, other.state)
    for name in ("seconds_simulated", "idle_rounds"):
        assert one.summary[name] == other.summary[name]
    for name, column in one.times.items():
        np.testing.assert_array_equal(other.times[name], column)


def rows_by_hand(position):
    """The row of each client that holds."""
    for client in range(N):
        mine = FRAME[FRAME.client == client]
        yield mine.iloc[bisect.bisect_right(list(mine.time), position) - 1]


def by_hand(size):
    """Yields the clients of each round, the seconds since the start and the rounds of nobody so far."""
    now, idle = 0.0, 0
    for number in range(ROUNDS):
        rows = list(rows_by_hand(now % END))
        lots = np.asarray(jax.random.uniform(key_for(jax.random.key(3), Stream.COHORT, number), (N,)))
        able = sorted((client for client in range(N) if rows[client].available), key=lambda client: -lots[client])
        cohort = sorted(able[:size])
        if cohort:
            each = [BITS / r.down + WORK * SIZES[i] / r.flops + BITS / r.up for i, r in enumerate(rows) if i in cohort]
            now += max(each)
        else:
            idle += 1
            starts = np.array(FRAME[FRAME.available & (FRAME.time < END)].time)
            starts = np.append(starts, starts + END) + now // END * END
            now = starts[starts > now].min()
        yield cohort, now, idle


def assert_followed(result, size):
    assert len(result.history) == ROUNDS
    for record, (cohort, *rest) in zip(result.history, by_hand(size), strict=True):
        assert sorted(set(record["cohort"]) - {-1}) == cohort, record["round"]
        assert [record["seconds_simulated"], record["idle_rounds"]] == rest, record["round"]
    assert rest[0] > END and rest[1] == 2


def test_who_is_drawn_and_the_seconds_are_those_of_a_loop(followed):
    assert_followed(followed, COHORT)
    cohorts, seconds, _ = zip(*by_hand(COHORT), strict=True)
    assert {len(cohort) for cohort in cohorts} == {0, 1, 2, 3}
    assert seconds[-1] > 2 * END
    assert f"In 2 of {ROUNDS} rounds no client was available" in followed.summary["shortfall"]


def test_the_time_does_not_depend_on_calls_and_survives_a_resume(followed, path, tmp_path):
    assert_same_run(run(ClientClock(path), eval_every=ROUNDS), followed)
    run(ClientClock(path), rounds=6, checkpoint_dir=tmp_path)
    assert_same_run(run(ClientClock(path), checkpoint_dir=tmp_path, resume=True), followed)


@pytest.mark.slow
def test_several_seeds_in_one_program_have_times_of_their_own(followed, path, monkeypatch):
    monkeypatch.setattr(loop, "seeds_per_program", lambda count: count)
    one, other = run(ClientClock(path), seed=None, seeds=[3, 0], eval_every=5)
    assert one.summary["seeds_together"] == 2
    found, wanted = (each.history.column("seconds_simulated") for each in (one, followed))
    assert found == wanted[4::5] + wanted[-1:]
    assert found != other.history.column("seconds_simulated")


def test_a_trace_that_never_changes_is_a_file_of_devices(tmp_path):
    first = FRAME[FRAME.time == 0].drop(columns=["time", "available"])
    still = FRAME[["client", "time"]].assign(available=1).merge(first, on="client")  # of a shape that is compiled
    still.to_csv(tmp_path / "still.csv", index=False)
    first.to_csv(tmp_path / "devices.csv", index=False)
    one, other = (run(ClientClock(tmp_path / f"{name}.csv"), 3) for name in ("still", "devices"))
    jax.tree.map(np.testing.assert_array_equal, one.state, other.state)
    for name in ("seconds_simulated", "energy_joules"):
        assert one.summary[name] == other.summary[name] > 0
    assert one.summary["idle_rounds"] == 0 and "idle_rounds" not in other.summary


@pytest.mark.slow
def test_a_client_at_a_time_without_rounds_is_the_loop_and_resumes(path, tmp_path):
    clock = ClientClock(path, asynchronous="fedasync")
    run(clock, 5, cohort=1, checkpoint_dir=tmp_path)
    found = run(clock, cohort=1, checkpoint_dir=tmp_path, resume=True)
    assert_followed(found, 1)
    assert len(found.summary["participation_by_speed"]) == 4


def test_times_are_exact_over_many_ends_of_a_trace(path):
    trace = read_trace(path, DATA)
    end = int(END * PARTS)
    step, now = jax.jit(time_after), 0
    for seconds in (0.3, 41.0, 1e-6, 12345.678, 3e8, 41.5, 1e-12, 99.99):
        found = np.asarray(step(trace, jnp.float32(seconds)))
        now += round(float(np.float32(seconds)) * PARTS)
        assert found.tolist() == [now // end, *divmod(now % end, PARTS)], seconds
        assert seconds_at(trace, found.tolist()) == now / PARTS
        trace = dataclasses.replace(trace, now=found)


def changed(row, **values):
    frame = FRAME.astype({"flops": object, "time": object, "available": object})
    for name, value in values.items():
        frame.loc[row, name] = value
    return frame


BAD = {
    "column": (FRAME.drop(columns="available"), "clock", "available"),
    "missing": (FRAME[FRAME.client != 5], "clock", '"5"'),
    "unknown": (changed(2, client=77), "clock", "row 3"),
    "zero": (changed(4, flops=0.0), "flops", "row 5"),
    "negative": (changed(4, up=-1.0), "up", "-1.0"),
    "infinite": (changed(4, down=np.inf), "down", "row 5"),
    "text": (changed(4, flops="fast"), "flops", '"fast"'),
    "flag": (changed(4, available="maybe"), "available", '"maybe"'),
    "before": (changed(9, time=-2.0), "time", -2.0),
    "unix": (changed(9, time=1.7e9), "time", "row 10"),
    "order": (FRAME.iloc[::-1], "time", "ascend"),
    "start": (FRAME[~((FRAME.client == 4) & (FRAME.time == 0))], "time", 'client "4"'),
    "instant": (FRAME[FRAME.time == 0], "clock", "1 s"),
    "nobody": (FRAME.assign(available=False), "available", "false"),
    "power": (FRAME.assign(watts=np.arange(1.0, len(FRAME) + 1)), "watts", "the same"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_traces_are_refused_in_a_line(name, tmp_path):
    frame, argument, value = BAD[name]
    file = tmp_path / "trace.csv"
    frame.to_csv(file, index=False)
    with pytest.raises(ValueError, match=mentions(argument, value)) as refused:
        ClientClock(file).attach(DATA, jax.random.key(0))
    assert "\n" not in str(refused.value) and str(file) in str(refused.value)


def test_numbers_of_parquet_are_told_as_they_are(tmp_path):
    FRAME.assign(flops=FRAME.flops.where(FRAME.index != 4, 0)).to_parquet(tmp_path / "trace.parquet")
    with pytest.raises(ValueError, match=r"flops must be above 0 and finite, got 0\.0 in row 5"):
        ClientClock(tmp_path / "trace.parquet").attach(DATA, jax.random.key(0))


@pytest.mark.parametrize(
    ("options", "argument"),
    [({"resident": False}, "resident"), ({"sampler": jaxfl.sampling.poisson()}, "clock")],
)
def test_runs_that_cannot_follow_a_trace_are_refused(path, options, argument):
    with pytest.raises(ValueError, match=f"{argument} must"):
        run(ClientClock(path), **options)
