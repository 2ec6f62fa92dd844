"""FeSEM-MA against its NumPy loop, where it is FeSEM, and where it is not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import linear_sum_assignment

from jaxfl import tree
from jaxfl.cohort import Cohort
from jaxfl.data.clients import Batch
from jaxfl.methods.fesem import fesem
from jaxfl.methods.fesem_ma import fesem_ma
from jaxfl.methods.parts import matching
from jaxfl.methods.parts.multi_centre import FeSEMState
from jaxfl.tasks import Task, masked_mean
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import equal

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

RATE, ROUNDS, HIDDEN = 0.4, 5, 4
DATA = problems.linear_federation()
EVERYBODY = Cohort.of(range(7))


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


close = functools.partial(reference.close, rtol=1e-9)  # some ten steps amplify rounding


@functools.cache
def network():
    """Returns a network of one hidden layer, whose biases are not 0."""

    def init(key):
        keys = iter(jax.random.split(key, 4))
        shapes = {
            "Dense_0": {"kernel": (3, HIDDEN), "bias": (HIDDEN,)},
            "Dense_1": {"kernel": (HIDDEN, 2), "bias": (2,)},
        }
        return {
            name: {leaf: jax.random.normal(next(keys), shape) for leaf, shape in one.items()}
            for name, one in shapes.items()
        }

    def logits(model, batch):
        hidden = jnp.tanh(batch.x @ model["Dense_0"]["kernel"] + model["Dense_0"]["bias"][None])
        return hidden @ model["Dense_1"]["kernel"] + model["Dense_1"]["bias"][None]

    def loss(model, batch, key=None):
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits(model, batch)), batch.y[:, None], 1)[:, 0]
        return masked_mean(-chosen, batch.mask)

    return Task(init, loss, logits)


@functools.cache
def build(method=fesem_ma, task=None, **options):
    """Returns the method, compiled; the same for the same options."""
    return compiled(method(task or network(), optax.sgd(RATE), **{"num_clusters": 2, "local_epochs": 2, **options}))


permute = jax.jit(matching.permute, static_argnames="layers")
initial = jax.jit(lambda seed: network().init(jax.random.key(seed)))


def turned(model, order):
    return permute(model, matching.chain(network()), [np.array(order)])


def two_centres(model):
    """Returns the state of two centres that are one function, its hidden neurons in another order."""
    centres = jax.tree.map(lambda a, b: np.stack([a, b]), model, turned(model, [2, 0, 3, 1]))
    return FeSEMState(centres, np.array([0, 1, 1, 0, 1, 0, 0], np.int32), np.int32(0))


# The loop: plain gradient descent on all rows, matching by SciPy, means by NumPy


gradient = jax.jit(lambda model, batch: jax.grad(network().loss)(model, batch, None))


def learn(client, centre, pull):
    x, y = problems.rows_of(DATA)[client]
    batch = Batch(jnp.array(x), jnp.array(y), jnp.ones(len(y), bool))
    model = centre
    for _ in range(2):
        slope = gradient(model, batch)
        model = jax.tree.map(lambda w, g, c: w - RATE * (np.asarray(g) + 2 * pull * (w - c)), model, slope, centre)
    return jax.tree.map(np.asarray, model)


def matched(model, centre):
    """Returns a network of one hidden layer in the order of another."""

    def rows(one):
        return np.concatenate([one["Dense_0"]["kernel"], one["Dense_0"]["bias"][None]]).T

    order = linear_sum_assignment(np.square(rows(centre)[:, None] - rows(model)[None]).sum(-1))[1]
    first = {name: leaf[..., order] for name, leaf in model["Dense_0"].items()}
    return {"Dense_0": first, "Dense_1": {**model["Dense_1"], "kernel": model["Dense_1"]["kernel"][order]}}


def away(model, centre):
    return sum(np.sum((a - b) ** 2) for a, b in zip(jax.tree.leaves(model), jax.tree.leaves(centre), strict=True))


def settled(mean, count, prior):
    hidden = {name: count * leaf / (count + prior) for name, leaf in mean["Dense_0"].items()}
    hidden["bias"] = hidden["bias"] + 0.1 * prior / (count + prior)
    return {"Dense_0": hidden, "Dense_1": mean["Dense_1"]}


@pytest.mark.rotating
@pytest.mark.parametrize("prior", [0.0, 1.0])
def test_every_round_is_the_papers(prior, key):
    """From two random centres and a third that is the first in another order: by index it is far from its clients."""
    first, second = map(initial, (1, 2))
    centres = [jax.tree.map(np.asarray, model) for model in (first, second, turned(first, [2, 0, 3, 1]))]
    cluster = [0, 0, 1, 1, 2, 2, 2]
    method = build(num_clusters=3, prior_weight=prior)
    state = FeSEMState(
        jax.tree.map(lambda *leaves: np.stack(leaves), *centres), np.array(cluster, np.int32), np.int32(0)
    )
    reordered = 0
    for _ in range(ROUNDS):
        state, info = method.round(key, state, DATA, EVERYBODY)
        sent = {i: learn(i, centres[cluster[i]], 0.1) for i in range(7) if i != 1}  # who has no rows
        for i, model in sent.items():
            cluster[i] = int(np.argmin([away(matched(model, centre), centre) for centre in centres]))
        distance = [
            away(matched(sent[i], centres[cluster[i]]), centres[cluster[i]]) if i in sent else 0 for i in range(7)
        ]
        means = list(centres)
        for k, centre in enumerate(centres):
            members = [matched(sent[i], centre) for i in sent if cluster[i] == k]
            reordered += sum(
                not np.array_equal(matched(sent[i], centre)["Dense_0"]["bias"], sent[i]["Dense_0"]["bias"])
                for i in sent
            )
            if members:
                mean = jax.tree.map(lambda *leaves: np.mean(leaves, 0), *members)
                means[k] = settled(mean, len(members), prior)
        centres = means
        assert state.cluster.tolist() == cluster
        close(np.asarray(info.extra["distance"]), np.array(distance))
        for k, centre in enumerate(centres):
            close(tree.take(state.centres, k), centre)
    assert reordered > 0, "there was something to match"


# Where it is FeSEM, and where it is not


def test_models_of_one_layer_have_nothing_to_match(key):
    task = problems.softmax_task()
    ours, theirs = build(task=task), build(fesem, task=task)
    one, two = ours.init(key, DATA), theirs.init(key, DATA)
    equal(one, two)
    for _ in range(2):
        one, two = (m.round(key, s, DATA, EVERYBODY)[0] for m, s in ((ours, one), (theirs, two)))
    equal(one, two)


@pytest.mark.slow
def test_short_updates_need_no_other_order(key):
    """000, section 6.2.1: all clients start from the same model, so that matching adds nothing."""
    ours, theirs = build(), build(fesem)
    one, two = ours.init(key, DATA), theirs.init(key, DATA)
    close(one, two)
    close(ours.round(key, one, DATA, EVERYBODY)[0], theirs.round(key, two, DATA, EVERYBODY)[0])


def test_centres_that_are_one_function_have_the_same_distance(key):
    """All clients are as near to both; ties go to the first, which becomes the mean of all. By index nobody moves."""
    start = two_centres(initial(1))
    state, info = build().round(key, start, DATA, EVERYBODY)
    assert [state.cluster[i].item() for i in range(7) if i != 1] == [0] * 6 and int(info.num_clusters) == 1
    equal(tree.take(state.centres, 1), tree.take(start.centres, 1))
    state, _ = build(fesem).round(key, start, DATA, EVERYBODY)
    equal(state.cluster, start.cluster)

    sent = [learn(i, jax.tree.map(np.asarray, tree.take(start.centres, 0)), 0.1) for i in range(7) if i != 1]
    mean = jax.tree.map(lambda *leaves: np.mean(leaves, 0), *sent)
    both, _ = build().round(key, start, DATA, EVERYBODY)
    close(tree.take(both.centres, 0), mean)  # those who trained the other centre came back in this one's order


@pytest.mark.parametrize("weight", [-1.0, np.inf, np.nan])
def test_a_prior_needs_a_finite_weight_that_is_not_negative(weight):
    with pytest.raises(ValueError, match=mentions("prior_weight", weight)):
        build(prior_weight=weight)
