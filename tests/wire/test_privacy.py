"""Client-level differential privacy of wired methods: bounds, noise, loops in float64, and what is refused."""

import dataclasses
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.stats import chi2

import jaxfl
from jaxfl import methods, sampling, tree
from jaxfl.data import conditions
from jaxfl.data.drift import drift
from jaxfl.methods import METHODS, Row
from jaxfl.methods.base import Method
from jaxfl.random import Stream, key_for
from jaxfl.server.aggregate import Total
from jaxfl.simulation.accounting import private_run, private_sampler
from jaxfl.simulation.prepared import Prepared
from jaxfl.testing import CHECKS
from jaxfl.testing.small import case_options, federation, full_cohort, linear_task, small_cohort
from jaxfl.wire import Privacy, clip, median, qsgd, wired
from jaxfl.wire.privacy import RoundPrivacy, noised
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled

pytestmark = pytest.mark.rotating("function", weeks=3)

PRIVATE = [name for name, row in METHODS.items() if row.server_sees == "sums" and not row.no_wire and name != "fedsoft"]
OTHERS = [name for name in METHODS if name not in PRIVATE]
TWO = ("fedem", "ifca_cam")  # contributions in a pass, with a count each
NO_WIRE = [name for name in OTHERS if METHODS[name].no_wire and METHODS[name].server_sees == "sums"]


def made(name, **options):
    row = METHODS[name]
    options = {**case_options(row), **options}
    options |= {"fedem": {"mean_over": "cohort"}, "feddbe": {"mean_pull": 0.0}}.get(name, {})
    return row.factory(linear_task(), optax.sgd(0.3), **options)


@pytest.mark.rotating(weeks=16)
@pytest.mark.parametrize("name", PRIVATE)
def test_without_noise_it_is_the_clip_alone(name, key):
    """Where clients have as many rows, so that they weigh the same without privacy, too."""
    data, cohort, method = federation(ragged=False), full_cohort(), made(name)
    state = method.init(key, data)
    wanted, _ = jax.jit(wired(method, channel=clip(0.05)).round)(key, state, data, cohort)
    private = wired(method, privacy=Privacy(clip=0.05, noise=0.0, denominator="noisy"))
    found, _ = jax.jit(private.round)(key, state, data, cohort)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6), found, wanted)


@pytest.mark.rotating(weeks=16)
@pytest.mark.parametrize("name", PRIVATE)
def test_no_client_changes_the_sums_by_more_than_the_clip(name, key, monkeypatch):
    """Of all clusters and contributions of a pass together, with the counts; earlier releases are held fixed."""
    bound = 0.05
    method = wired(made(name), privacy=Privacy(clip=bound, noise=1.0, denominator="noisy"))
    data = conditions.attack(federation(), "sign-flip", 0.3, scale=1e6)
    state = method.init(key, data)

    @jax.jit
    def released(mask, state, data):
        passes = []

        def record(totals, *_):
            passes.append([(total.values, 0.5 * bound * total.weight) for total in totals])
            return [dataclasses.replace(total, values=jax.tree.map(jnp.zeros_like, total.values)) for total in totals]

        with monkeypatch.context() as patch:
            patch.setattr(sys.modules["jaxfl.wire.wired"], "noised", record)
            method.round(key, state, data, dataclasses.replace(full_cohort(), mask=mask))
        return [tree.ravel(values) for values in passes]

    everyone = np.ones(8, bool)
    largest = 0.0
    for client in range(8):
        others = everyone & (np.arange(8) != client)
        for one, other in zip(*(released(jnp.asarray(mask), state, data) for mask in (everyone, others)), strict=True):
            changed = float(np.linalg.norm(np.asarray(one - other, np.float64)))
            assert changed <= bound * np.sqrt(1 + 0.25 * (2 if name in TWO else 1)) * (1 + 1e-4)
            largest = max(largest, changed)
    assert largest > bound


def totals_of(clusters, numbers):
    values = {"w": jnp.zeros((clusters, numbers, 2)), "b": jnp.zeros((clusters, numbers))}
    return Total(values, jnp.zeros(clusters), jnp.int32(0))


def noise_of(key, *totals, round=0, number=0, **privacy):
    privacy = Privacy(**{"clip": 0.5, "noise": 2.0, **privacy})
    of_round = RoundPrivacy(privacy, key_for(key, Stream.NOISE, round), frozenset())
    return noised(totals, of_round, number, full_cohort())


def test_noise_has_its_variance_and_is_drawn_anew_by_round_pass_contribution_and_cluster(key):
    """Chi-square of 60,000 numbers each, also in empty clusters."""
    parts = []
    for round in range(2):
        for number in range(2):
            totals = noise_of(key, totals_of(2, 10_000), totals_of(1, 10_000), round=round, number=number)
            spread = 0.5 * 2.0 * np.sqrt(1.25)  # of S' with the counts of one contribution
            for total in totals:
                rows = jax.vmap(tree.ravel)(total.values)
                parts += list(np.asarray(rows, np.float64) / spread)
    for part in parts:
        assert 1e-5 < chi2.cdf(np.square(part).sum(), len(part)) < 1 - 1e-5
        assert abs(part.mean()) < 5 / np.sqrt(len(part))
    correlations = np.corrcoef(parts)[~np.eye(len(parts), dtype=bool)]
    assert len(parts) == 12 and np.abs(correlations).max() < 5 / np.sqrt(30_000)


def test_doubled_slots_keep_their_noise(key):
    (few,), (many,) = noise_of(key, totals_of(2, 5)), noise_of(key, totals_of(4, 5))
    for one, other in zip(jax.tree.leaves(few.values), jax.tree.leaves(many.values), strict=True):
        np.testing.assert_array_equal(one, other[:2])
    np.testing.assert_array_equal(few.weight, many.weight[:2])


def test_denominators_are_noisy_counts_or_fixed(key):
    total = totals_of(3, 1)
    total = dataclasses.replace(total, weight=jnp.array([300.0, 200.0, 0.0]))
    counts = np.stack([noise_of(key, total, round=r)[0].weight for r in range(300)])
    spread = 2.0 * np.sqrt(1.25) / 0.5
    np.testing.assert_allclose(counts.mean(0)[:2], [300, 200], atol=5 * spread / np.sqrt(300))
    assert 1e-5 < chi2.cdf(np.square((counts[:, 0] - 300) / spread).sum(), 300) < 1 - 1e-5
    assert counts[:, 2].min() == 1 < counts[:, 2].max()  # the floor
    assert noise_of(key, total, floor=4.0)[0].weight.min() == 4
    np.testing.assert_allclose(noise_of(key, total, denominator="fixed")[0].weight, 8 / 3)
    assert noise_of(key, totals_of(1, 1))[0].weight.tolist() == [8]
    cohort = dataclasses.replace(full_cohort(), expected=jnp.float32(5.5))
    of_round = RoundPrivacy(Privacy(clip=1.0, noise=1.0), key, frozenset())
    assert noised([totals_of(1, 1)], of_round, 0, cohort)[0].weight.tolist() == [5.5]


@pytest.mark.parametrize("name", ["fedavg", "ifca"])
def test_the_ratio_of_signal_to_noise_is_that_of_the_sums(name, key):
    """From the models without noise: a sum is what a model has moved, times the clients of its cluster."""
    bound, noise = 0.05, 3.0
    data, cohort, method = federation(ragged=False), full_cohort(), made(name)
    state = method.init(key, data)
    found = {
        z: jax.jit(wired(method, privacy=Privacy(clip=bound, noise=z)).round)(key, state, data, cohort)
        for z in (0.0, noise)
    }
    stacked = name == "ifca"
    before, after = (getattr(one, "models" if stacked else "model") for one in (state, found[0.0][0]))
    moved = jax.tree.map(lambda a, b: np.asarray(a, np.float64) - b, after, before)
    rows = (
        np.stack([tree.ravel(tree.take(moved, k)) for k in range(2)])
        if stacked
        else np.asarray(tree.ravel(moved))[None]
    )
    clients = np.bincount(np.asarray(found[0.0][1].cluster), minlength=2) if stacked else np.array([8])
    spread = bound * noise * np.sqrt(1.25 if stacked else 1)
    wanted = np.linalg.norm(rows * clients[:, None]) / (spread * np.sqrt(rows.size))
    np.testing.assert_allclose(float(found[noise][1].extra["snr"]), wanted, rtol=1e-4)
    assert float(found[0.0][1].extra["snr"]) == np.inf


class Noisy:
    """Sums of bounded updates and noise, from the specification, in float64."""

    def private(self, number, cohort, starts, trained, clusters):
        """Returns the models of the clusters after a round, from what clients `cohort` have trained."""
        setting, (bound, noise, fixed) = self.setting, self.numbers
        counted = fixed is None
        spread = bound * noise * np.sqrt(1.25 if counted else 1)
        root = key_for(key_for(setting.root, Stream.NOISE, number), Stream.NOISE, 0)
        models = []
        for k, start in enumerate(starts):
            address = key_for(root, Stream.NOISE, 0, k)
            total = {name: np.zeros_like(leaf) for name, leaf in start.items()}
            members = [i for i in cohort if clusters[i] == k]
            for i in members:
                update = {name: trained[i][name] - start[name] for name in start}
                length = np.sqrt(sum(np.square(leaf).sum() for leaf in update.values()))
                total = {name: total[name] + update[name] * min(1, bound / length) for name in start}
            for place, name in enumerate(sorted(start)):
                normal = jax.random.normal(key_for(address, Stream.NOISE, 1, place), start[name].shape, jnp.float64)
                total[name] = total[name] + spread * np.asarray(normal)
            denominator = fixed
            if counted:
                normal = jax.random.normal(key_for(address, Stream.NOISE), (), jnp.float64)
                denominator = max(1.0, len(members) + np.sqrt(1.25) / 0.5 * noise * float(normal))
            models.append({name: start[name] + total[name] / denominator for name in start})
        return models


class PrivateFedAvg(Noisy, reference.FedProx):
    def round(self, number, cohort):
        sampled = reference.with_rows(self.setting, cohort)
        trained = {i: reference.train(self.setting, number, i, self.model)[0] for i in sampled}
        (self.model,) = self.private(number, sampled, [self.model], trained, dict.fromkeys(sampled, 0))


class PrivateIFCA(Noisy, reference.IFCA):
    def round(self, number, cohort):
        sampled = reference.with_rows(self.setting, cohort)
        for i in sampled:
            losses = [reference.gradient(model, *self.setting.clients[i])[0] for model in self.models]
            self.cluster[i] = int(np.argmin(losses))
        trained = {i: reference.train(self.setting, number, i, self.models[self.cluster[i]])[0] for i in sampled}
        self.models = self.private(number, sampled, self.models, trained, self.cluster)


@pytest.mark.parametrize("name", ["fedavg", "ifca"])
def test_every_round_is_the_loop_with_bounds_and_noise(name, key):
    options = {"local_epochs": 2} | ({"num_clusters": 3} if name == "ifca" else {})
    with jax.enable_x64(True):
        data, task = problems.linear_federation(), problems.softmax_task()
        factory = METHODS[name].factory
        privacy = Privacy(clip=0.1, noise=0.2)
        method = compiled(wired(factory(task, optax.sgd(0.4), **options), privacy=privacy))
        setting = reference.Setting(key, problems.rows_of(data), 0.4, 2, None, "uniform")
        start = jax.tree.map(np.asarray, getattr(method.init(key, data), "models" if name == "ifca" else "model"))
        if name == "ifca":
            wanted = PrivateIFCA(setting, [tree.take(start, k) for k in range(3)], "models")
        else:
            wanted = PrivateFedAvg(setting, start)
        wanted.numbers = (0.1, 0.2, None if name == "ifca" else 4)
        reference.follow(method, wanted, data, key, rounds=3, cohort=4)


def private_factory(name, channel=None):
    def factory(task, optimizer, *, local_epochs: int = 2, batch_size: int | None = 4) -> Method:
        own = METHODS[name].small
        method = METHODS[name].factory(task, optimizer, local_epochs=local_epochs, batch_size=batch_size, **own)
        return wired(method, channel=channel, privacy=Privacy(clip=0.5, noise=0.1, floor=2.0))

    return factory


FACTORIES = {
    "ifca": Row(private_factory("ifca", qsgd(6)), "", ""),
    "ditto": Row(private_factory("ditto"), "", ""),
    "scaffold": Row(private_factory("scaffold"), "", ""),
}


LAWS = ("chunks", "devices", "padding rows", "cohort order", "cuts", "sick client", "rows per client")


@pytest.mark.rotating(weeks=20)
@pytest.mark.parametrize(
    ("name", "law"),
    # noisy sums do not tell SCAFFOLD's server how many clients its mean control is of
    [(name, law) for name in FACTORIES for law in LAWS if (name, law) != ("scaffold", "sick client")],
)
def test_a_private_method_passes_the_battery(name, law):
    if reason := CHECKS[law](FACTORIES[name]):
        pytest.skip(reason)


DATA = federation()
SGD = optax.sgd(0.3)


def private(**numbers):
    numbers = {"clip": 0.5, "delta": 1e-2, **numbers}
    return wired(methods.fedavg(linear_task(), SGD, local_epochs=1), privacy=Privacy(**numbers))


def test_a_run_tells_epsilon_and_one_that_goes_on_tells_more(tmp_path):
    options = {"cohort": 4, "seed": 3, "checkpoint_dir": tmp_path}
    first = jaxfl.run(private(epsilon=3.0), DATA, rounds=2, **options).summary
    assert first["epsilon"] == pytest.approx(3, rel=1e-4) and first["epsilon"] <= 3
    told = {name: first[name] for name in ("delta", "clip", "relation", "sampling")}
    assert told == {"delta": 1e-2, "clip": 0.5, "relation": "add-remove", "sampling": "poisson(0.5, capacity=8)"}
    assert "dp-accounting" in first["accountant"]
    on = jaxfl.run(private(epsilon=3.0), DATA, rounds=3, resume=True, **options)
    assert on.summary["noise"] == first["noise"] and on.summary["epsilon"] > 3.2
    straight = jaxfl.run(private(noise=first["noise"]), DATA, rounds=3, cohort=4, seed=3)
    jax.tree.map(np.testing.assert_array_equal, on.state, straight.state)
    assert straight.summary["epsilon"] == on.summary["epsilon"]
    with pytest.raises(ValueError, match=mentions("privacy", 3.0, 4.0)):
        jaxfl.run(private(epsilon=4.0), DATA, rounds=4, resume=True, **options)


@pytest.mark.slow
def test_seeds_and_host_rows_have_the_same_noise_and_epsilon():
    solver = methods.ditto(linear_task(), SGD, local_epochs=1)
    method = wired(solver, privacy=Privacy(clip=0.5, noise=1.0, delta=1e-2))
    options = {"rounds": 2, "cohort": 4}
    wanted = jaxfl.run(method, DATA, seed=1, **options)
    host = jaxfl.run(method, DATA, seed=1, resident=False, **options)
    for found in (jaxfl.run(method, DATA, seeds=[0, 1], **options)[1], host):
        one, other = (jax.tree.leaves(each.state.solver) for each in (found, wanted))
        for leaf, expected in zip(one, other, strict=True):
            np.testing.assert_allclose(leaf, expected, rtol=2e-5, atol=2e-6)
        assert found.summary["epsilon"] == wanted.summary["epsilon"]


def account(method, sampler=sampling.uniform, cohort=4):
    """Returns the summary's part on privacy of a run of three rounds; nothing is compiled."""
    sampler, places = sampling.cohorts_of(private_sampler(method, sampler), cohort, DATA)
    return private_run(Prepared.of(method, DATA, places), sampler, cohort, DATA, rounds=3)[1].summary(3)


def test_only_poisson_sampling_has_an_epsilon():
    assumed, drawn = account(private(noise=1.0, accounting="poisson-assumed")), account(private(noise=1.0))
    assert (assumed["sampling"], drawn["sampling"]) == ("poisson-assumed", "poisson(0.5, capacity=8)")
    assert assumed["epsilon"] == drawn["epsilon"] > 0  # no cohort of 8 of 8 overflows
    for sampler in (sampling.availability("random"), sampling.dropouts(0.2)):
        unknown = account(private(noise=1.0), sampler)
        assert unknown["epsilon"] is unknown["delta"] is unknown["accountant"] is None
        assert unknown["sampling"] == sampler.name
    dropped = account(private(noise=1.0), sampling.dropouts(0.2, sampling.poisson()))
    assert dropped["epsilon"] == drawn["epsilon"]  # of fewer clients epsilon is at most that
    assert account(private(noise=0.0))["epsilon"] is None
    assert account(private(noise=1.0), cohort=8)["epsilon"] > drawn["epsilon"]
    assert account(private(noise=1.0, delta=None))["delta"] == 8**-1.1


def test_two_passes_are_two_releases():
    twice = wired(methods.feddane(linear_task(), SGD), privacy=Privacy(clip=0.5, noise=1.0, delta=1e-2))
    found = account(twice)["epsilon"], account(private(noise=1 / np.sqrt(2)))["epsilon"]
    assert found[0] == pytest.approx(found[1], rel=1e-9)


def without(**changed):
    return {"method": private(noise=1.0), "data": DATA, "rounds": 1, "cohort": 4} | changed


REFUSED = {
    "no noise": (lambda: Privacy(clip=1.0), ("noise", "epsilon")),
    "both": (lambda: Privacy(clip=1.0, noise=1.0, epsilon=8.0), ("epsilon", 8.0, 1.0)),
    "clip": (lambda: Privacy(clip=0.0, noise=1.0), ("clip", 0.0)),
    "infinite clip": (lambda: Privacy(clip=float("inf"), noise=1.0), ("clip", "inf")),
    "negative noise": (lambda: Privacy(clip=1.0, noise=-1.0), ("noise", -1.0)),
    "epsilon": (lambda: Privacy(clip=1.0, epsilon=0.0), ("epsilon", 0.0)),
    "delta": (lambda: Privacy(clip=1.0, noise=1.0, delta=1.0), ("delta", 1.0)),
    "floor": (lambda: Privacy(clip=1.0, noise=1.0, floor=0.0), ("floor", 0.0)),
    "denominator": (lambda: Privacy(clip=1.0, noise=1.0, denominator="rows"), ("denominator", "rows", "fixed")),
    "accounting": (lambda: Privacy(clip=1.0, noise=1.0, accounting="rdp"), ("accounting", "rdp", "poisson-assumed")),
    "no privacy": (lambda: wired(methods.fedavg(linear_task(), SGD), privacy=1.0), ("privacy", 1.0)),
    "aggregator": (
        lambda: wired(made("fedavg"), aggregator=median(), privacy=Privacy(clip=1.0, noise=1.0)),
        ("aggregator", "mean"),
    ),
    "min_sum": (lambda: wired(made("fedavg"), min_sum=2, privacy=Privacy(clip=1.0, noise=1.0)), ("min_sum", 1, 2)),
    "memory": (
        lambda: wired(made("fedavg"), channel=qsgd(8), error_feedback=True, privacy=Privacy(clip=1.0, noise=1.0)),
        ("error_feedback", "True"),
    ),
    "collusion": (
        lambda: jaxfl.run(**without(data=conditions.attack(DATA, "alie", 0.3))),
        ("attack", "alie", "noise"),
    ),
    "undeclared": (
        lambda: wired(made("fedavg")._replace(server_sees=None), privacy=Privacy(clip=1.0, noise=1.0)),
        ("server_sees",),
    ),
    "sampler": (
        lambda: jaxfl.run(**without(method=private(epsilon=3.0), sampler=sampling.availability("random"))),
        ("epsilon", 3.0, "availability", "sampling.poisson"),
    ),
    "assumed": (
        lambda: jaxfl.run(
            **without(method=private(noise=1.0, accounting="poisson-assumed"), sampler=sampling.poisson())
        ),
        ("accounting", "poisson-assumed"),
    ),
    "arrivals": (lambda: jaxfl.run(**without(data=drift(DATA, 1, arrive=0.4), rounds=2)), ("noise", "arrive")),
    "wired first": (
        lambda: jaxfl.run(**without(method=jaxfl.scheduled(private(noise=1.0), optax.constant_schedule(1.0)))),
        ("method", "last"),
    ),
    "unknown noise": (
        lambda: jax.eval_shape(
            private(epsilon=3.0).round, jax.random.key(0), made("fedavg").init(jax.random.key(0), DATA), DATA,
            small_cohort(),
        ),
        ("noise", 3.0, "jaxfl.run"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_in_one_line(name):
    refused, words = REFUSED[name]
    with pytest.raises((ValueError, TypeError), match=mentions(*words)):
        refused()


UNBOUNDED = {
    "scaffold": ({"weighting": "rows"}, ("weighting", "rows", "uniform")),
    "feddbe": ({}, ("start", "everybody", "mean_pull")),
    "feddyn": ({"pull": "rows"}, ("pull", "rows", "equal")),
    "fedem": ({"mean_over": "everybody", "num_clusters": 2}, ("mean_over", "everybody", "cohort")),
    "fedsoft": ({}, ("noise", "fedsoft")),
    "ifca": ({"start": "kmeans++"}, ("updates",)),
}


@pytest.mark.parametrize("name", [*UNBOUNDED, *OTHERS])
def test_methods_and_options_that_release_more_than_sums_are_refused_before_compilation(name, key):
    options, words = UNBOUNDED.get(name, (METHODS[name].small, ("server",)))
    method = METHODS[name].factory(linear_task(), SGD, **options)
    with pytest.raises(ValueError, match=mentions(*words) if name not in NO_WIRE else "wire"):
        private = wired(method, privacy=Privacy(clip=1.0, noise=1.0))
        jax.eval_shape(private.round, key, jax.eval_shape(method.init, key, DATA), DATA, small_cohort())


def test_running_averages_are_not_sent_with_noise(key):
    data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    task = jaxfl.classification(jaxfl.models.create("mlp-batch-norm", 10, hidden=(4,)), data)
    for factory in (methods.fedavg, methods.scaffold, methods.fedbn):
        method = wired(factory(task, SGD), privacy=Privacy(clip=1.0, noise=1.0))
        trace = functools.partial(jax.eval_shape, method.round, key, jax.eval_shape(method.init, key, data), data)
        if factory is methods.fedbn:  # they stay at the client
            trace(small_cohort())
            continue
        with pytest.raises(ValueError, match=mentions("noise", "batch normalisation", "fedbn")):
            trace(small_cohort())
