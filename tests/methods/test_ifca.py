"""IFCA beyond Algorithm 1's bare round: shared layers, ways to start, the rows that choose; and what it promises."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods, tree
from jaxfl.client.steps import Steps
from jaxfl.cohort import Cohort
from jaxfl.data import federate
from jaxfl.data.synthetic import clustered_linear
from jaxfl.methods import Row
from jaxfl.methods.parts import competing
from jaxfl.methods.parts.competing import assigning
from jaxfl.testing import CHECKS
from jaxfl.testing.small import linear_task
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import equal

pytestmark = pytest.mark.rotating("function", weeks=3)

RATE = 0.4
TASK = problems.softmax_task()
EVERYBODY = Cohort.of(range(7))
EPOCHS = {"local_epochs": 2}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


close = functools.partial(reference.close, rtol=1e-9)  # some ten steps amplify rounding


@functools.cache
def ifca(**options):
    """Returns the method, compiled; the same for the same options."""
    return compiled(methods.ifca(TASK, optax.sgd(RATE), **{"num_clusters": 3, **EPOCHS, **options}))


def advance(method, state, key, data, rounds=1, cohort=EVERYBODY):
    """Returns the state and the last info."""
    info = None
    for _ in range(rounds):
        state, info = method.round(key, state, data, cohort)
    return state, info


class WithSharedBias(reference.IFCA):
    """The bias belongs to everybody, the kernel to the cluster."""

    def round(self, number, cohort):
        setting, before = self.setting, list(self.models)
        super().round(number, cohort)
        cohort = reference.with_rows(setting, cohort)
        own = [before[self.cluster[i]] for i in cohort]
        if self.option == "models":
            sent = [reference.train(setting, number, i, model)[0] for i, model in zip(cohort, own, strict=True)]
        else:
            slopes = [reference.gradient(model, *setting.clients[i])[1] for i, model in zip(cohort, own, strict=True)]
            sent = [
                reference.combine([(1, model), (-setting.rate, slope)])
                for model, slope in zip(own, slopes, strict=True)
            ]
        bias = reference.average(sent, reference.weights(setting, cohort))["bias"]
        self.models = [{**model, "bias": bias} for model in self.models]


@pytest.mark.parametrize(
    ("average", "batch_size", "weighting"),
    [("models", None, "rows"), ("models", 3, "uniform"), ("gradients", None, "rows")],
)
def test_every_round_with_a_shared_bias(average, batch_size, weighting, key):
    data = problems.linear_federation()
    method = ifca(average=average, batch_size=batch_size, weighting=weighting, shared="bias")
    state = method.init(key, data)
    setting = reference.Setting(key, problems.rows_of(data), RATE, 2, batch_size, weighting)
    start = [jax.tree.map(np.asarray, tree.take(state.models, k)) for k in range(3)]
    assert len({model["bias"].tobytes() for model in start}) == 1 and len({m["kernel"].tobytes() for m in start}) == 3
    loop, seen = WithSharedBias(setting, start, average), set()
    for number in range(5):
        cohort = problems.sample(key, state.round, data, 4)
        state, info = method.round(key, state, data, cohort)
        loop.round(number, cohort.ids.tolist())
        seen.add(int((info.extra["clients"] > 0).sum()))
        for k in range(3):
            close(tree.take(state.models, k), loop.models[k])
    assert seen & {1, 2}, "some cluster was empty in some round, and had its bias all the same"


@pytest.mark.rotating
@pytest.mark.parametrize(("average", "alike"), [("models", methods.fedavg), ("gradients", methods.fedsgd)])
def test_sharing_everything_is_one_global_model(average, alike, key):
    data = problems.linear_federation()
    one = compiled(alike(TASK, optax.sgd(RATE), weighting="uniform", **(EPOCHS if average == "models" else {})))
    many = ifca(average=average, shared=".*")
    state, _ = advance(many, many.init(key, data), key, data, 3)
    wanted, _ = advance(one, one.init(key, data), key, data, 3)
    close(state.models, tree.repeat(wanted.model, 3))


def test_shared_layers_travel_once(key):
    data = problems.linear_federation()
    method = ifca(shared="bias")
    _, info = advance(method, method.init(key, data), key, data)
    kernel, bias = 3 * 2 * 8, 2 * 8
    assert (int(info.bytes_up), int(info.bytes_down)) == (7 * (kernel + bias), 7 * (3 * kernel + bias))


def test_choices_ignore_a_constant_added_to_every_loss(key):
    data = problems.linear_federation()
    lifted = TASK._replace(loss=lambda model, batch, key=None: TASK.loss(model, batch, key) + 7)
    runs = []
    for task in (TASK, lifted):
        method = compiled(methods.ifca(task, optax.sgd(RATE), num_clusters=3, **EPOCHS))
        state, _ = advance(method, method.init(key, data), key, data, 3)
        runs.append((state, method.assign(key, state, data, EVERYBODY)))
    assert len(set(runs[0][1].cluster.tolist())) > 1, "there is a choice to make"
    close(*runs)


def quadratic_federation(centres, group, rows=6, spread=0.2, seed=0):
    """Clients whose rows lie around their group's centre `[3]`: the optimum of `quadratic_task` on them."""
    rng = np.random.default_rng(seed)
    inputs = np.concatenate([centres[g] + spread * rng.standard_normal((2 * rows, 3)) for g in group])
    parts = np.arange(len(inputs)).reshape(len(group), 2, rows)
    labels = rng.integers(0, 2, len(inputs))
    return federate(inputs, labels, parts[:, 0], parts[:, 1], num_classes=2, group=np.array(group))


CENTRES = np.array([[2.0, 0.0, -1.0], [-1.0, 2.0, 0.5], [0.0, -2.0, 2.0]])


@pytest.mark.parametrize("average", ["models", "gradients"])
def test_models_at_the_optima_assign_everybody_to_its_group(average, key):
    data = quadratic_federation(CENTRES, (0, 1, 2, 2, 1, 0, 1))
    method = compiled(methods.ifca(problems.quadratic_task(), optax.sgd(0.1), num_clusters=3, average=average))
    state = method.init(key, data)._replace(models={"w": jnp.asarray(CENTRES)})
    for number in range(4):
        assert method.assign(key, state, data, EVERYBODY).cluster.tolist() == data.group.tolist(), number
        state, info = advance(method, state, key, data)
        assert info.cluster.tolist() == data.group.tolist()
        assert info.extra["clients"].tolist() == [2, 3, 2]
    alone = replace(EVERYBODY, mask=EVERYBODY.ids == 0)
    _, info = advance(method, state, key, data, cohort=alone)
    assert info.extra["clients"].tolist() == [1, 0, 0] and info.num_clusters == 3, "those of all that are known"


@functools.cache
def five_models(average):
    """Weight decay moves a model without a gradient."""
    decayed = optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1))
    return compiled(methods.ifca(problems.quadratic_task(), decayed, num_clusters=5, average=average))


@pytest.mark.rotating
@pytest.mark.parametrize(("seed", "average"), [*((seed, "models") for seed in range(4)), (3, "gradients")])
def test_more_models_than_groups_leave_some_empty_and_unchanged(seed, average):
    """Clients of a group are nearly one client: two groups cannot fill more than two of five models."""
    key, data = jax.random.key(seed), quadratic_federation(CENTRES, (0, 1, 0, 0, 1, 1, 1), spread=1e-3)
    method = five_models(average)
    start = method.init(key, data)
    state, info = advance(method, start, key, data, 4)
    empty = np.setdiff1d(np.arange(5), info.cluster)
    assert 1 <= info.num_clusters <= 2 and info.num_clusters == 5 - len(empty)
    unused = np.setdiff1d(
        np.arange(5), np.concatenate([advance(method, start, key, data, n)[1].cluster for n in (1, 2, 3, 4)])
    )
    assert len(unused) >= 2
    equal(tree.take(state.models, unused), tree.take(start.models, unused))


def test_a_model_of_undefined_loss_is_never_chosen(key):
    data = problems.linear_federation()
    method = ifca()
    state = method.init(key, data)
    kernel = state.models["kernel"].at[0].set(jnp.inf)  # inf - inf
    state = state._replace(models={**state.models, "kernel": kernel})
    clusters = method.assign(key, state, data, EVERYBODY).cluster
    assert 0 not in clusters[data.train.size > 0]


def test_who_has_lost_its_rows_keeps_its_cluster(key):
    """Of no losses the first is the lowest."""
    data, method = problems.linear_federation(), ifca()
    state = method.init(key, data)._replace(cluster=jnp.full(7, 1, jnp.int32))
    later, info = method.round(key, state, data, EVERYBODY)
    assert later.cluster[1] == info.cluster[1] == 1 and data.train.size[1] == 0


# The official code, at test time


def exchanged():
    """A federation whose clients have the other group's rows for testing; client 2 has none."""
    data = problems.linear_federation(sizes=(20, 0, 20, 20, 20, 20), groups=(0, 0, 1, 1, 0, 1))
    other = np.array([3, 1, 0, 0, 5, 4])
    size = data.train.size[other]
    size[2] = 0
    return replace(data, test=replace(data.train, start=data.train.start[other], size=size))


def test_evaluation_may_choose_by_test_rows(key):
    data, everybody = exchanged(), Cohort.of(range(6))
    kernel = jnp.array([[-1.5, 1.5], [1.0, -1.0], [-0.5, 0.5]])  # points the way of group 0
    models = {"bias": jnp.zeros((2, 2)), "kernel": jnp.stack([kernel, -kernel])}
    found = {}
    for choose in ("train", "test"):
        method = ifca(num_clusters=2, choose=choose)
        state, _ = advance(method, method.init(key, data)._replace(models=models), key, data, 2, everybody)
        assert state.cluster.tolist() == [0, 0, 1, 1, 0, 1], "training chooses by training rows"
        found[choose] = method.assign(key, state, data, everybody).cluster.tolist()
    assert found["train"] == [0, 0, 1, 1, 0, 1]
    assert found["test"] == [1, 0, 1, 0, 1, 0], "who has no test rows stays"


def test_as_many_training_rows_say_nothing_of_the_test_rows(key):
    """Programs may walk through as many rows of every client where all have as many, see `FederatedData.filled`."""
    data, filled = clustered_linear(4, num_groups=2).in_programs(), []

    def losses(models, data, client):
        filled.append(data.filled)
        return jnp.zeros(2)

    state = ifca(num_clusters=2).init(key, data)
    for choose in ("train", "test"):
        assigning(losses, choose)(key, state, data, Cohort.of(range(4)))
    assert set(filled) == {1.0, 0.0} and filled[0] == 1.0


# Ways to start


def won(method, state, data, num_clusters):
    """Returns how many clients with rows every model wins."""
    everybody = Cohort.of(range(data.num_clients))
    cluster = np.asarray(method.assign(jax.random.key(0), state, data, everybody).cluster)
    return np.bincount(cluster[data.train.size > 0], minlength=num_clusters)


def test_a_balanced_start_gives_every_model_its_share():
    data = clustered_linear(20, num_groups=2, features=4, dtype=np.float64)
    smallest = {"random": [], "balanced": []}
    for start, counts in smallest.items():
        method = compiled(methods.ifca(linear_task(), optax.sgd(RATE), num_clusters=2, start=start, min_share=0.5))
        for seed in range(8):
            state = method.init(jax.random.key(seed), data)
            counts.append(won(method, state, data, 2).min())
    assert min(smallest["random"]) < 10, "random starts are not balanced here: there is something to do"
    assert smallest["balanced"] == [10] * 8


def test_a_share_of_nothing_is_the_random_start(key):
    data = problems.linear_federation()
    equal(ifca(start="balanced", min_share=0.0).init(key, data), ifca().init(key, data))


def test_the_most_balanced_draw_is_kept_if_none_is_balanced(key, monkeypatch):
    """Six clients with rows cannot be three equal thirds of ten random models each... they are asked to be."""
    data, draws = problems.linear_federation(), 6
    monkeypatch.setattr(competing, "MAX_DRAWS", draws)  # of more draws one may be balanced
    method = ifca(num_clusters=4, start="balanced", min_share=0.25)  # 4 * 0.25 * 6 clients: 2 are left
    state = method.init(key, data)
    draw = competing.independent_models(TASK, 4)
    least = [won(method, state._replace(models=draw(key, data, number)), data, 4).min() for number in range(draws)]
    assert max(least) < 2, "no draw is balanced"
    close(state.models, draw(key, data, int(np.argmax(least))))
    _, info = advance(method, state, key, data)
    assert info.extra["clients"].tolist() == won(method, state, data, 4).tolist(), "the first round tells"


def test_held_out_clients_have_no_say_in_a_start(key):
    """Held out is whoever makes the first draw unbalanced, so that it is balanced without them."""
    data = problems.linear_federation(sizes=(6,) * 12, groups=(0, 1) * 6)
    method = ifca(num_clusters=2, start="balanced", min_share=0.5)
    first = competing.independent_models(TASK, 2)(key, data, 0)
    state = method.init(key, data)._replace(models=first)
    cluster = np.asarray(method.assign(key, state, data, Cohort.of(range(12))).cluster)
    many = np.argmax(np.bincount(cluster, minlength=2))
    surplus = np.flatnonzero(cluster == many)[: 2 * (cluster == many).sum() - 12]
    assert 0 < len(surplus) < 12, "the first draw is unbalanced"
    held_out = np.isin(np.arange(12), surplus)
    close(method.init(key, replace(data, held_out=held_out)).models, first)
    assert not np.allclose(method.init(key, data).models["kernel"], first["kernel"])
    group = competing.random_groups(key, replace(data, held_out=held_out), 3)
    sizes = np.bincount(group[~held_out], minlength=3)
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.rotating
@pytest.mark.parametrize("start", ["balanced", "kmeans++"])
def test_huge_losses_have_no_say_in_a_start(start, key):
    data, method = problems.linear_federation(), ifca(num_clusters=2, start=start, min_share=0.5)
    client = int(np.argmax(data.train.size))
    begin, size = data.train.start[client], np.array(data.train.size)
    inputs = np.array(data.inputs)
    inputs[data.train.rows[begin : begin + size[client]]] = 1e30 * np.resize([1, -1], size[client])[:, None]
    size[client] = 0
    absent = replace(data, train=replace(data.train, size=size))
    equal(method.init(key, replace(data, inputs=inputs)).models, method.init(key, absent).models)


def test_many_clients_are_judged_by_a_sample(key, monkeypatch):
    monkeypatch.setattr(competing, "MAX_JUDGES", 4)
    data = problems.linear_federation()
    ids = problems.sample(key, jnp.int32(0), data, 4).ids
    method = ifca(num_clusters=2, start="balanced", min_share=0.5)
    state = method.init(key, data)
    cluster = method.assign(key, state, data, EVERYBODY).cluster[ids]
    sizes = np.bincount(cluster[data.train.size[ids] > 0], minlength=2)
    assert abs(sizes[0] - sizes[1]) <= (data.train.size[ids] > 0).sum() % 2


def test_groups_are_random_of_one_size_and_fixed(key):
    data = problems.linear_federation(sizes=(3,) * 11, groups=(0,) * 11)
    one, other = (competing.random_groups(jax.random.key(seed), data, 3) for seed in (0, 1))
    assert sorted(np.bincount(one)) == sorted(np.bincount(other)) == [3, 4, 4]
    assert one.tolist() != other.tolist()


@functools.cache
def by_itself():
    return compiled(methods.fedavg(TASK, optax.sgd(RATE), batch_size=3, **EPOCHS))


@pytest.mark.rotating
@pytest.mark.parametrize("cohort", [None, 4])
def test_a_warm_up_is_fedavg_in_every_group(cohort, key):
    data, rounds = problems.linear_federation(sizes=(5, 4, 3, 8, 1, 6, 4)), 3
    method = ifca(start="groups", warmup_rounds=rounds, weighting="rows", batch_size=3)
    start = method.init(key, data)
    alone = by_itself()
    state, runs = start, [alone.init(key, data)._replace(model=tree.take(start.models, k)) for k in range(3)]
    for number in range(rounds):
        some = range(7) if cohort is None else problems.sample(key, jnp.int32(number), data, cohort).ids
        chosen = replace(EVERYBODY, mask=np.isin(np.arange(7), np.asarray(some)))
        state, info = method.round(key, state, data, chosen)
        assert info.cluster.tolist() == start.cluster[chosen.ids].tolist()
        assert info.bytes_down == info.bytes_up, "nobody needs the other models"
        for k in range(3):
            members = replace(chosen, mask=chosen.mask & np.asarray(start.cluster == k))
            runs[k], _ = alone.round(key, runs[k], data, members)
    equal(state.cluster, start.cluster)
    for k in range(3):
        close(tree.take(state.models, k), runs[k].model)
    wanted = method.assign(key, state, data, EVERYBODY).cluster
    state, info = method.round(key, state, data, EVERYBODY)
    assert info.cluster.tolist() == wanted.tolist() != start.cluster.tolist(), "then everybody chooses"
    assert info.bytes_down == 3 * info.bytes_up


def test_no_warm_up_is_the_random_start(key):
    data = problems.linear_federation()
    warm, cold = ifca(start="groups", warmup_rounds=0), ifca()
    one, other = (advance(method, method.init(key, data), key, data, 2)[0] for method in (warm, cold))
    equal(one.models, other.models)


VARIANTS = {
    "balanced and shared": {"start": "balanced", "min_share": 0.4, "shared": "bias", "average": "gradients"},
    "groups and a server": {"start": "groups", "warmup_rounds": 1, "server_optimizer": optax.sgd(0.7, momentum=0.5)},
    "kmeans++": {"start": "kmeans++", "warmup_rounds": 2},
}
# A start has no cohort: chunks and padding say nothing of it, and its rounds are those of the groups.
LAWS = dict.fromkeys(VARIANTS, ("stable state", "chunks", "padding clients", "sick client", "empty client"))
LAWS["kmeans++"] = ("stable state", "sick client", "empty client")


@pytest.mark.rotating
@pytest.mark.parametrize(("variant", "law"), [(variant, law) for variant, laws in LAWS.items() for law in laws])
def test_variants_keep_the_laws(variant, law):
    with jax.enable_x64(False):
        reason = CHECKS[law](Row(methods.ifca, "", "", small={"num_clusters": 2, **VARIANTS[variant]}))
    if reason:
        pytest.skip(reason)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"average": "updates"}, ("average", "updates")),
        ({"weighting": "size"}, ("weighting", "size")),
        ({"choose": "validation"}, ("choose", "validation")),
        ({"start": "warm"}, ("start", '"warm"')),
        ({"start": "balanced", "min_share": 0.4}, ("min_share", 0.4, "num_clusters", "(0.333)")),
        ({"start": "balanced", "min_share": -0.1}, ("min_share", -0.1)),
        ({"warmup_rounds": -1}, ("warmup_rounds", -1)),
        ({"start": "kmeans++", "shared": "bias"}, ("shared", "kmeans++", "bias")),
        ({"shared": "bias", "server_optimizer": optax.sgd(1.0)}, ("server_optimizer", "shared='bias'")),
        ({"average": "gradients", "local_epochs": Steps(3)}, ("local_steps", 3, 'average="gradients"')),
        ({"average": "gradients", "server_optimizer": optax.sgd(1.0)}, ("server_optimizer", 'average="gradients"')),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        ifca(**options)


def test_a_pattern_that_matches_nothing_is_refused(key):
    with pytest.raises(ValueError, match=mentions("Dense_0", "bias, kernel")):
        ifca(shared="Dense_0").init(key, problems.linear_federation())
