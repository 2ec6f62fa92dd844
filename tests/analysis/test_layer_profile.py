"""The layer profile: the numbers of a plain loop, the identities of its distances, planted layers that are found."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import jaxfl
from jaxfl import methods
from jaxfl.analysis.layer_profile import DISTANCES, by_layer, layer_profile
from jaxfl.cohort import Plan
from jaxfl.data import federate
from jaxfl.models.layers import Conv, Dense, as_images, as_vectors, max_pool
from jaxfl.tasks import Task, masked_mean
from tests import problems, reference
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=4)

DATA = problems.linear_federation()  # client 1 has no rows
TASK = problems.softmax_task()  # the layers are "bias" and "kernel"
RATE, ROUNDS = 0.3, 3


def profiled(data=DATA, task=TASK, **options):
    return layer_profile(data, task, optax.sgd(RATE), **{"rounds": ROUNDS, "batch_size": 4, **options})


@pytest.fixture(scope="module")
def profile():
    with jax.enable_x64(True):
        return profiled(local_epochs=2)


def by_hand(rows):
    """The matrices of `rows [N, d]`."""
    norms = np.linalg.norm(rows, axis=1)
    scale = norms[:, None] * norms[None]
    cosine = np.where(scale > 0, rows @ rows.T / np.where(scale > 0, scale, 1), 0)
    return cosine, np.linalg.norm(rows[:, None] - rows[None], axis=2)


def test_equals_a_plain_loop(profile):
    with jax.enable_x64(True):
        root = jax.random.key(0)
        setting = reference.Setting(root, problems.rows_of(DATA), RATE, epochs=2, batch_size=4)
        start = jax.tree.map(np.asarray, TASK.init(jaxfl.random.key_for(root, jaxfl.random.Stream.INIT)))
        loop = reference.FedProx(setting, start)
        present = reference.with_rows(setting, range(DATA.num_clients))
        for number in range(ROUNDS):
            model = loop.model
            trained = {i: reference.train(setting, number, i, model, anchor=model) for i in present}
            sent = [trained[i][0] if i in trained else model for i in range(DATA.num_clients)]
            for place, layer in enumerate((["bias"], ["kernel"], ["bias", "kernel"])):
                weights = np.stack([np.concatenate([one[name].ravel() for name in layer]) for one in sent])
                start = np.concatenate([model[name].ravel() for name in layer])
                expected = [*by_hand(weights), *by_hand(weights - start[None])]
                for name, matrix in zip(DISTANCES, expected, strict=True):
                    np.testing.assert_allclose(profile.matrices[name][number, place], matrix, atol=3e-5)
            assert profile.loss[number] == pytest.approx(np.mean([trained[i][1] for i in present]), rel=1e-6)
            loop.round(number, range(DATA.num_clients))


def test_shapes_and_names(profile):
    assert profile.layers == ("bias", "kernel", "all") and profile.sizes == (2, 6, 8)
    assert {name: matrix.shape for name, matrix in profile.matrices.items()} == dict.fromkeys(DISTANCES, (3, 3, 7, 7))
    assert {matrix.dtype for matrix in profile.matrices.values()} == {np.dtype(np.float32)}
    assert profile.group.tolist() == [0, -1, 1, 1, 0, 1, 0]  # the client without rows belongs nowhere


def test_from_a_common_start_updates_are_as_far_apart_as_models_but_not_as_similar(profile):
    np.testing.assert_allclose(profile.matrices["l2"], profile.matrices["delta_l2"], atol=1e-5)
    assert np.abs(profile.matrices["cos"] - profile.matrices["delta_cos"]).max() > 0.1
    whole, parts = profile.matrices["l2"][:, -1], profile.matrices["l2"][:, :-1]
    np.testing.assert_allclose(np.square(whole), np.square(parts).sum(1), rtol=1e-4, atol=1e-6)
    assert profile.matrices["l2"][:, -1].max() > 0.1


def test_gaps_are_those_of_the_matrices(profile):
    for name in DISTANCES:
        gap = profile.gaps(name)
        assert gap.shape == (ROUNDS, 3)
        sign = 1 if name.endswith("cos") else -1
        matrix, group = sign * profile.matrices[name][-1, 1], profile.group
        pairs = [(i, j) for i in range(7) for j in range(i) if min(group[i], group[j]) >= 0]
        within = min(matrix[i, j] for i, j in pairs if group[i] == group[j])
        across = max(matrix[i, j] for i, j in pairs if group[i] != group[j])
        assert gap[-1, 1] == pytest.approx(within - across, abs=1e-6)
        assert (profile.gaps(name, "bipartition") >= gap).all()


def test_the_model_is_that_of_fedavg():
    plan = Plan(3)
    data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    method = methods.fedavg(task, optax.sgd(RATE), local_epochs=1, batch_size=8)
    expected = jaxfl.run(method, data, rounds=4, seed=3, eval_every=1, plan=plan).history.column("train_loss")
    seen = []
    found = profiled(data, task, rounds=4, batch_size=8, seed=3, plan=plan, callback=seen.append)
    np.testing.assert_allclose(found.loss, expected, rtol=1e-6)  # of round 4: of the model that three rounds have made
    assert seen == [1, 2, 3, 4]
    assert profiled(data, task, rounds=1, batch_size=8, seed=4).loss[0] != pytest.approx(found.loss[0], rel=1e-4)


def test_data_that_drift_are_as_they_are_before():
    few = {"num_clients": 8, "rows_per_client": 20}
    drifting, still = (
        jaxfl.data.load("rotated-digits", **few, **more) for more in ({"drift": "rotate", "drift_round": 1}, {})
    )
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), still)
    found, wanted = (profiled(data, task, rounds=3, batch_size=8) for data in (drifting, still))
    np.testing.assert_array_equal(found.loss, wanted.loss)


def planted(grouped):
    """A task whose clients pull the layers in `grouped` to where their group is, the other one to where all are.

    A row's first number is of the client's group, the second of nobody's.
    """

    def init(key):
        del key
        return {name: {"w": jnp.full(3, 5.0)} for name in ("Conv_0", "Dense_0")}

    def loss(model, batch, key=None):
        del key
        direction = jnp.array([1.0, -2.0, 0.5])
        targets = {name: batch.x[:, 0] if name in grouped else batch.x[:, 1] for name in model}
        away = [model[name]["w"][None] - targets[name][:, None] * direction[None] for name in model]
        return masked_mean(sum(jnp.square(one).sum(1) for one in away), batch.mask)

    return Task(init, loss, lambda model, batch: batch.x)


@pytest.mark.parametrize("grouped", ["Conv_0", "Dense_0"])
def test_the_planted_layer_is_recommended(grouped):
    rng, group = np.random.default_rng(0), np.array([0, 1, 0, 1, 1, 0])
    inputs = rng.normal(0, 0.3, (60, 2)) + np.stack([np.repeat(3.0 * group, 10), np.repeat(rng.normal(size=6), 10)], 1)
    rows = np.split(np.arange(60), 6)
    data = federate(inputs.astype(np.float32), np.zeros(60, int), rows, rows, num_classes=2, group=group)
    found = layer_profile(data, planted({grouped}), optax.sgd(0.05), rounds=4, batch_size=None)
    assert found.layers == ("Conv_0", "Dense_0", "all")
    gap = dict(zip(found.layers, found.gaps()[-1], strict=True))
    other = {"Conv_0": "Dense_0", "Dense_0": "Conv_0"}[grouped]
    assert found.recommended() == grouped
    assert gap[grouped] > 0 > gap[other]


class SmallCNN(nn.Module):
    @nn.compact
    def __call__(self, inputs):
        outputs = nn.relu(max_pool(Conv(8, (3, 3))(as_images(inputs))))
        outputs = nn.relu(Dense(32)(as_vectors(outputs)))
        return Dense(10)(outputs)


def test_rotated_digits_are_told_by_updates():
    data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=160)
    task = jaxfl.classification(SmallCNN(), data)
    found = layer_profile(data, task, optax.sgd(0.1), rounds=5, batch_size=20, distances=("cos", "delta_cos"))
    assert found.layers == ("Conv_0", "Dense_0", "Dense_1", "all")
    assert found.sizes == (80, 4128, 330, 4538)
    gap = dict(zip(found.layers, found.gaps()[-1], strict=True))
    assert gap["all"] > 0.1 and gap["Dense_0"] > 0.1
    assert gap["Dense_0"] > gap["Dense_1"], "the classes are alike in all groups, where the strokes are is not"
    assert found.recommended() == "Dense_0"
    assert (found.gaps()[:, -1] > 10 * found.gaps("cos")[:, -1]).all(), "what all clients share hides what they learn"


def rows_of(client):
    start, size = np.asarray(DATA.train.start)[client], np.asarray(DATA.train.size)[client]
    return np.asarray(DATA.train.rows)[start : start + size]


def test_a_diverged_client_spoils_nobody_else():
    inputs = np.array(DATA.inputs)
    inputs[rows_of(3)] = np.nan
    found = profiled(DATA.replace(inputs=inputs), rounds=2)
    for name in DISTANCES:
        known = np.isfinite(found.matrices[name][1, -1])
        assert not known[3].any() and not known[:, 3].any()
        assert np.delete(np.delete(known, 3, 0), 3, 1).all()
    assert (found.gaps() == -np.inf).all()


def test_layers_are_ordered_by_number_and_nested_ones_keep_their_path():
    model = {
        "Dense_0": {"kernel": 0, "bias": 0},
        "Conv_11": {"kernel": 0},
        "Conv_2": {"kernel": 0},
        "Block_0": {"Conv_0": {"kernel": 0, "bias": 0}},
    }
    assert list(by_layer(model)) == ["Block_0/Conv_0", "Conv_2", "Conv_11", "Dense_0"]
    assert by_layer(model)["Block_0/Conv_0"] == [0, 1]
    vgg = jax.eval_shape(jaxfl.models.VGG16(width=1).init, jax.random.key(0), jnp.zeros((1, 32, 32)))["params"]
    assert list(by_layer(vgg)) == [*(f"Conv_{i}" for i in range(13)), *(f"Dense_{i}" for i in range(3))]


def huge():
    return problems.softmax_task()._replace(init=lambda key: {"w": jnp.zeros((1 << 20, 1 << 20))})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": DATA.replace(group=None)}, ("data.group", "None")),
        ({"rounds": 0}, ("rounds", 0)),
        ({"distances": ("cos", "l1")}, ("distances", "('cos', 'l1')")),
        ({"distances": "cos"}, ("distances", "got 'cos'")),
        ({"distances": ()}, ("distances", "()")),
        ({"task": huge()}, ("data", "7 of them", "GB", "fewer clients")),
        ({"weighting": "size"}, ("weighting", "size")),
        ({"local_epochs": 0}, ("local_epochs", 0)),
    ],
)
def test_refusals(change, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        profiled(**change)


def test_refusals_of_a_profile():
    found = profiled(rounds=1, distances=("l2",))
    with pytest.raises(ValueError, match=mentions("distance", "delta_cos")):
        found.recommended()
    with pytest.raises(ValueError, match=mentions("form", "pairs")):
        found.gaps("l2", "pairs")
