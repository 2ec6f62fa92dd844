"""FedCCFA: its NumPy loop, its worked examples, draws of balanced rows, and the methods that it reduces to."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods, tree
from jaxfl.cohort import Cohort
from jaxfl.data import conditions, federate
from jaxfl.methods.base import Participation
from jaxfl.methods.fedccfa import (
    balanced_federation,
    class_clusters,
    contrastive_losses,
    label_entropy,
    mean_absolute_differences,
)
from jaxfl.methods.parts.heads import class_counts
from jaxfl.random import Stream, key_for
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import close

pytestmark = pytest.mark.rotating("function", weeks=6)

RATE, COHORT, WIDTH = 0.4, 5, 3
# client 1 has no rows, client 4 has one, client 5 is held out
DATA = replace(problems.linear_federation(), held_out=np.arange(7) == 5)
TASK = problems.tanh_task()
EVERYBODY = [0, 2, 3, 4, 6]


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@functools.cache  # tests share what they compile
def made(name="fedccfa", task=TASK, **options):
    return compiled(getattr(methods, name)(task, optax.sgd(RATE), **{"local_epochs": 2, "batch_size": 3, **options}))


def features(model, x):
    return np.tanh(x @ model["a"]["kernel"])


def sides(model, x, y):
    """Returns the features and the gradient of the mean loss by the logits."""
    u, truth = features(model, x), np.eye(2)[y]
    scores = u @ model["b"]["kernel"] + model["b"]["bias"]
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    return u, (p - truth) / len(y)


def differences(vectors):
    """Returns MADD of vectors; NaN where there are fewer than three."""
    count = len(vectors)
    found = np.full((count, count), np.nan)
    for i in range(count):
        for j in range(count):
            apart = [
                abs(reference.cosine(vectors[i], vectors[z]) - reference.cosine(vectors[j], vectors[z]))
                for z in range(count)
                if z not in (i, j)
            ]
            if apart:
                found[i, j] = np.mean(apart)
    return found


def contrast_slope(u, anchors, label, temperature):
    """Returns the gradient of a row's contrastive loss by its features u, for anchors by class."""
    length = np.linalg.norm(u)
    units = {k: a / np.linalg.norm(a) for k, a in anchors.items()}
    scores = {k: unit @ u / length / temperature for k, unit in units.items()}
    total = sum(np.exp(score) for score in scores.values())
    slope = np.zeros_like(u)
    for k, unit in units.items():
        by_score = np.exp(scores[k]) / total - (k == label)
        slope += by_score * (unit - (unit @ u) * u / length**2) / (length * temperature)
    return slope


class FedCCFA:
    """Heads and anchors of each client; anchors are dictionaries of the classes that there are."""

    def __init__(
        self, setting, model, *, align_from, alignment, threshold, by_rows, balanced, weight_of, temperature=0.1
    ):
        self.setting, self.align_from, self.alignment, self.threshold = setting, align_from, alignment, threshold
        self.by_rows, self.balanced_epochs, self.weight_of, self.temperature = by_rows, balanced, weight_of, temperature
        self.base, self.first = model["a"], model["b"]
        self.heads, self.anchors = [model["b"] for _ in setting.clients], [{} for _ in setting.clients]
        self.sizes = []  # of the clusters that were found

    def head_steps(self, key, base, head, x, y, epochs):
        for rows in reference.batches(key, len(y), epochs, self.setting.batch_size):
            u, residual = sides({"a": base, "b": head}, x[rows], y[rows])
            slopes = {"bias": residual.sum(0), "kernel": u.T @ residual}
            head = jax.tree.map(lambda leaf, slope: leaf - 2 * RATE * slope, head, slopes)  # head_rate 2
        return head

    def balanced_head(self, key, x, y):
        """Of as many rows of each class as there are of the rarest, and at most 2."""
        draw = np.asarray(jax.random.bits(key_for(key, Stream.REPRESENTATION, 1), (16,), np.uint32))[: len(y)]
        parts = [np.flatnonzero(y == k)[np.argsort(draw[y == k], kind="stable")] for k in sorted({*y.tolist()})]
        rows = np.concatenate([part[: min(2, *map(len, parts))] for part in parts])
        own = key_for(key, Stream.REPRESENTATION)
        return self.head_steps(own, self.base, self.first, x[rows], y[rows], self.balanced_epochs)

    def pull(self, u, labels, anchors):
        """Returns the gradient of the mean of the second term by the features."""
        slopes = np.zeros_like(u)
        for row, (one, label) in enumerate(zip(u, labels.tolist(), strict=True)):
            if label not in anchors:
                continue
            if self.alignment == "contrastive":
                slopes[row] = contrast_slope(one, anchors, label, self.temperature)
            else:
                slopes[row] = 2 * (one - anchors[label]) / WIDTH
        return slopes / len(u)

    def train(self, number, i):
        (x, y), base = self.setting.clients[i], self.base
        key = key_for(self.setting.root, Stream.BATCHES, number, i)
        shares = np.bincount(y) / len(y)
        weight = self.weight_of(-sum(q * np.log(q) for q in shares if q)) if number >= self.align_from else 0
        head = self.head_steps(key_for(key, Stream.HEADS), base, self.heads[i], x, y, 1)
        for rows in reference.batches(key, len(y), self.setting.epochs, self.setting.batch_size):
            u, residual = sides({"a": base, "b": head}, x[rows], y[rows])
            below = residual @ head["kernel"].T + weight * self.pull(u, y[rows], self.anchors[i])
            base = {"kernel": base["kernel"] - RATE * x[rows].T @ (below * (1 - u**2))}
        model = {"a": base, "b": head}
        means = {k: features(model, x[y == k]).mean(0) for k in {*y.tolist()}}
        return model, means, self.balanced_head(key, x, y) if self.balanced_epochs else head

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        trained = dict(zip(cohort, (self.train(number, i) for i in cohort), strict=True))
        shares = reference.weights(self.setting, cohort)
        self.base = reference.average([model["a"] for model, _, _ in trained.values()], shares)
        for i, (model, means, _) in trained.items():
            self.heads[i], self.anchors[i] = jax.tree.map(np.array, model["b"]), dict(means)
        for k in range(2):
            having = [i for i in cohort if k in trained[i][1]]
            vectors = [np.append(trained[i][2]["kernel"][:, k], trained[i][2]["bias"][k]) for i in having]
            apart = differences(vectors)
            near = functools.partial(lambda apart, a, b: apart[a, b] <= self.threshold, apart)
            for group in reference.merge(range(len(having)), near):
                members = [having[place] for place in group]
                self.sizes.append(len(members))
                counts = [(self.setting.clients[i][1] == k).sum() if self.by_rows else 1 for i in members]
                kernel = np.average([trained[i][0]["b"]["kernel"][:, k] for i in members], axis=0, weights=counts)
                bias = np.average([trained[i][0]["b"]["bias"][k] for i in members], weights=counts)
                anchor = np.average([trained[i][1][k] for i in members], axis=0, weights=counts)
                for i in members:
                    self.heads[i]["kernel"][:, k], self.heads[i]["bias"][k] = kernel, bias
                    self.anchors[i][k] = anchor


CASES = {
    "contrastive": {"threshold": 0.1, "balanced_epochs": 3, "entropy_scale": 0.5},
    "squares": {"alignment": "squares", "cluster_weighting": "rows", "weighting": "uniform", "batch_size": None}
    | {"threshold": 0.1, "balanced_epochs": 2, "alignment_weight": 0.4},
    "own heads": {"threshold": 0.2, "balanced_epochs": 0, "entropy_scale": 0.5},
}


@pytest.mark.parametrize("case", CASES)
def test_every_round_is_that_of_a_loop(case, key):
    options = {"align_from": 2, "head_rate": 2.0, "balanced_rows": 2, "temperature": 0.1, **CASES[case]}
    method = made(**options)
    setting = reference.Setting(
        key, problems.rows_of(DATA), RATE, 2, options.get("batch_size", 3), options.get("weighting", "rows")
    )
    state = method.init(key, DATA)
    loop = FedCCFA(
        setting,
        jax.tree.map(np.asarray, TASK.init(key_for(key, Stream.INIT))),
        align_from=2,
        alignment=options.get("alignment", "contrastive"),
        threshold=options["threshold"],
        by_rows=options.get("cluster_weighting") == "rows",
        balanced=options["balanced_epochs"],
        weight_of=lambda entropy: options.get("alignment_weight") or entropy / options["entropy_scale"],
    )
    for number in range(5):
        cohort = problems.sample(key, state.round, DATA, COHORT)
        state, info = method.round(key, state, DATA, cohort)
        # of 9 numbers in the base and 8 in a head; d = 3, L = 2
        heads = 2 if options["balanced_epochs"] else 1
        assert info.bytes_up == 8 * COHORT * (9 + 8 * heads + 6 + 2)
        assert info.bytes_down == 8 * COHORT * (9 + 8 * heads + 6)
        loop.round(number, cohort.ids.tolist())
        served = method.client_params(state, np.arange(7))
        for client in range(7):
            close(tree.take(served, client), {"a": loop.base, "b": loop.heads[client]}, rtol=1e-9)
            own = tree.take(state.own, client)
            assert np.flatnonzero(own.known).tolist() == sorted(loop.anchors[client])
            for k, anchor in loop.anchors[client].items():
                close(own.anchors[k], anchor, rtol=1e-9)
    assert min(loop.sizes) == 1 and max(loop.sizes) > 1, "some classes are shared and some are not"


def test_the_worked_examples():
    vectors = jnp.array([(1.0, 0.0), (0.8, 0.6), (0.0, 1.0), (-1.0, 0.0)])
    four = jnp.ones(4, bool)
    found = mean_absolute_differences(vectors, four)
    wanted = {(0, 1): 0.4, (0, 2): 0.6, (0, 3): 0.8, (1, 2): 0.8, (1, 3): 1.2, (2, 3): 1.2}
    for (i, j), value in wanted.items():
        np.testing.assert_allclose([found[i, j], found[j, i]], value, atol=1e-6)
    assert class_clusters(vectors[:, None], four[:, None], 0.5).tolist() == [[0, 0, 2, 3]]
    scaled = vectors * jnp.array([1.0, 100.0, 1e-3, 7.0])[:, None]
    np.testing.assert_allclose(mean_absolute_differences(scaled, four), found, atol=1e-6)
    np.testing.assert_allclose(label_entropy(jnp.array([6.0, 3.0, 1.0])), 0.897946, atol=1e-6)
    np.testing.assert_allclose(label_entropy(jnp.array([6.0, 0.0, 3.0, 1.0])) / 20, 0.044897, atol=1e-6)
    np.testing.assert_allclose(label_entropy(jnp.full(10, 7.0)) / 20, 0.115129, atol=1e-6)
    anchors = jnp.array([(1.0, 0.0), (0.0, 1.0), (0.6, 0.8)])
    x, y = jnp.array([(1.0, 0.0)]), jnp.array([2])
    np.testing.assert_allclose(contrastive_losses(x, y, anchors, jnp.ones(3, bool), 0.1), [4.018195], atol=1e-6)


def test_unknown_anchors_and_features_of_zeros_pull_nobody():
    anchors, known = jnp.array([(1.0, 0.0), (0.0, 1.0), (0.6, 0.8)]), jnp.array([True, False, True])
    x = jnp.array([(1.0, 0.0), (1.0, 0.0), (0.0, 0.0)])

    def total(x, anchors, known, y):
        return contrastive_losses(x, y, anchors, known, 0.1).sum()

    y = jnp.array([2, 1, 0])
    found, slope = jax.value_and_grad(total)(x, anchors, known, y)
    two = contrastive_losses(x[:1], jnp.array([1]), anchors[jnp.array([0, 2])], jnp.ones(2, bool), 0.1)[0]
    close(found, two + np.log(2))
    assert np.any(slope[0]) and not np.any(slope[1:])
    nothing, slope = jax.value_and_grad(total)(x, anchors, jnp.zeros(3, bool), y)
    assert nothing == 0 and not np.any(slope)


def test_two_clients_are_not_merged_and_others_do_not_count():
    """MADD of two clients would be a mean of no numbers."""
    vectors = jax.random.normal(jax.random.key(0), (5, 2, 3))
    alive = jnp.array([[True, True], [True, True], [False, True], [False, False], [False, True]])
    broken = vectors.at[3].set(jnp.nan)
    assert class_clusters(broken, alive, np.inf).tolist() == [[0, 1, -1, -1, -1], [0, 0, 0, -1, 0]]
    close(
        mean_absolute_differences(broken[:, 1], alive[:, 1])[:3, :3],
        differences([np.asarray(vectors[i, 1]) for i in (0, 1, 2, 4)])[:3, :3],
        rtol=1e-5,
    )


def rounds(method, cohort, key, data=DATA, count=2):
    state = method.init(key, data)
    for _ in range(count):
        state, _ = method.round(key, state, data, cohort)
    return method.client_params(state, np.arange(7))


def test_without_clusters_and_alignment_it_is_fedrep(key):
    cohort = Cohort.of(EVERYBODY)
    wanted = rounds(made("fedrep", head_epochs=1, weighting="rows"), cohort, key)
    close(rounds(made(threshold=-1.0, entropy_scale=np.inf, align_from=0), cohort, key), wanted)


def test_with_one_cluster_of_a_class_its_heads_are_equal(key):
    served = rounds(made(threshold=np.inf, align_from=1), Cohort.of([0, 2, 3, 6]), key)["b"]
    rows = problems.rows_of(DATA)
    for k in range(2):
        having = np.array([i for i in (0, 2, 3, 6) if np.any(rows[i][1] == k)])
        assert len(having) >= 3
        for leaf in jax.tree.leaves(served):
            columns = leaf[having][..., k]
            close(columns, np.broadcast_to(columns[0], columns.shape))


def test_classes_in_another_order_are_served_in_that_order(key):
    def turned_init(key):
        model = TASK.init(key)
        return model | {"b": jax.tree.map(lambda leaf: leaf[..., ::-1], model["b"])}

    options = {"batch_size": None, "align_from": 1, "balanced_rows": 2}
    found = rounds(made(**options), Cohort.of(EVERYBODY), key)
    turned = made(task=TASK._replace(init=turned_init), **options)
    other = rounds(turned, Cohort.of(EVERYBODY), key, replace(DATA, labels=1 - np.asarray(DATA.labels)))
    close(found["a"], other["a"])
    close(found["b"], jax.tree.map(lambda leaf: leaf[..., ::-1], other["b"]))


def test_a_balanced_draw_has_as_many_rows_of_each_class(key):
    """Seen as the client sees them: its own labels, after a flip and a shift, without the marks of a transformation."""
    classes, labels = 4, np.array([0] * 9 + [1] * 3 + [2] * 7 + [0] * 5 + [0])
    inputs, tested = np.arange(25.0)[:, None], [[24]] * 3
    data = federate(inputs, labels, [range(19), range(19, 24), []], tested, num_classes=classes)
    data = replace(
        data, label_shift=np.array([1, 0, 0], np.int32), train=replace(data.train, flipped=np.arange(3) == 1)
    )

    @jax.jit
    def draw(data, key, client):
        return balanced_federation(key, data, client, class_counts(data, client, classes), 5)

    def rows(key, client):
        drawn = draw(data, key, jnp.int32(client))
        batch = drawn.batch(drawn.train, jnp.int32(client), jnp.arange(drawn.train.max_size, dtype=jnp.int32))
        return np.asarray(batch.x)[batch.mask, 0], np.asarray(batch.y)[batch.mask]

    seen = [rows(key_for(key, Stream.START, number), 0) for number in range(30)]
    for x, y in seen:
        assert len(set(x)) == 9 and y.tolist() == [1, 1, 1, 2, 2, 2, 3, 3, 3], "three rows of the rarest class"
        np.testing.assert_array_equal(labels[x.astype(int)] + 1, y)
    assert set(np.concatenate([x for x, _ in seen])) == set(range(19)), "other ones in each draw"
    x, y = rows(key, 1)  # one class: at most five rows
    assert sorted(x) == [19, 20, 21, 22, 23] and y.tolist() == [3] * 5
    assert len(rows(key, 2)[0]) == 0


def test_an_attacker_is_honest_until_it_sends(key):
    """It turns the steps of both parts; a flipped head would turn the base another way."""
    method, attacked = made(), conditions.attack(DATA, "sign-flip", 0.2, scale=1.0)
    (attacker,) = np.flatnonzero(attacked.attack.attacker)
    nobody = replace(attacked, attack=replace(attacked.attack, attacker=np.zeros(7, bool)))
    start = method.init(key, DATA)
    moved = []
    for data in (attacked, nobody):
        after, _ = method.round(key, start, data, Cohort.of([attacker]))
        served = [tree.take(method.client_params(state, np.array([attacker])), 0) for state in (after, start)]
        moved.append(jax.tree.map(np.subtract, *served))
    close(moved[0], jax.tree.map(np.negative, moved[1]))
    assert np.any(moved[0]["a"]["kernel"]) and np.any(moved[0]["b"]["kernel"])


@pytest.mark.parametrize(
    ("options", "rounds", "twice", "said"),
    [
        ({}, 20, True, ("align_from", 20)),
        ({}, 21, True, ()),
        ({}, 21, False, ("twice",)),
        ({"alignment_weight": 0.0}, 3, False, ()),
        ({"entropy_scale": np.inf}, 3, False, ()),
    ],
)
def test_a_run_without_alignment_says_so(options, rounds, twice, said):
    method = methods.fedccfa(TASK, optax.sgd(RATE), **options)
    shapes = jax.eval_shape(method.init, jax.random.key(0), DATA)
    state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)._replace(round=rounds)
    found = method.shortfall(state, DATA, Participation(4, twice=twice))
    assert bool(found) == bool(said) and all(str(word) in found for word in said)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("alignment_weight", -1.0),
        ("entropy_scale", 0.0),
        ("temperature", 0.0),
        ("threshold", np.nan),
        ("align_from", -1),
        ("balanced_epochs", -1),
        ("balanced_rows", 0),
        ("head_rate", 0.0),
        ("head_epochs", 0),
        ("local_epochs", 0),
    ],
)
def test_refusals(option, value):
    with pytest.raises(ValueError, match=mentions(option, value)):
        methods.fedccfa(TASK, optax.sgd(RATE), **{option: value})
