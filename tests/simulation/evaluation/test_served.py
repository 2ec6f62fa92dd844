"""What a finished run is used for: outputs for new rows, and models for clients who were not there."""

import dataclasses
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax.struct import dataclass

import jaxfl
from jaxfl.data import drift, stored
from jaxfl.data.synthetic import clustered_linear
from jaxfl.methods.local import LocalState
from jaxfl.simulation.evaluation import served
from jaxfl.simulation.evaluation.served import with_newcomers
from jaxfl.testing.small import linear_task
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=4)

SMALL = {"num_clients": 12, "rows_per_client": 40, "model": "logistic"}
TRAINED = {"rounds": 3, "cohort": 1.0}


def trained(method, **settings):
    return jaxfl.run_named(method, "rotated-digits", **TRAINED, **SMALL, **settings)


def rows_of(data, client):
    """Returns a client's test rows as it sees them, not scaled, and their labels."""
    at = int(data.test.start[client])
    rows = np.asarray(data.test.rows)[at : at + int(data.test.size[client])]
    pixels = np.rot90(np.asarray(data.inputs)[rows], int(data.rotation[client]), axes=(1, 2))
    return pixels, np.asarray(data.labels)[rows]


def test_predictions_have_the_accuracy_that_the_run_tells():
    result = trained("ifca", num_clusters=4)
    for client in (0, 5):
        pixels, labels = rows_of(result.data, client)
        found = result.predict(pixels, client=client)
        assert found.shape == (len(labels), 10)
        accuracy = (found.argmax(1) == labels).mean()
        assert accuracy == pytest.approx(result.evaluation.accuracy[client], abs=1e-6)
        cluster = int(result.evaluation.cluster[client])
        np.testing.assert_array_equal(result.predict(pixels, cluster=cluster), found)
    assert result.predict(pixels[:0], client=0).shape == (0, 10)


def test_the_model_of_a_cluster_is_of_clients_that_were_tested():
    """Of a sample; the others are counted in the cluster that they were last in, which is another by now."""
    small = {"num_clients": 16, "rows_per_client": 40, "model": "logistic", "learning_rate": 0.3}
    method = {"num_clusters": 4, "start": "groups", "warmup_rounds": 3, "local_epochs": 3}
    result = jaxfl.run_named("ifca", "rotated-digits", rounds=5, cohort=4, eval_clients=5, **small, **method)
    cluster, tested = result.evaluation.cluster, result.evaluation.rows > 0
    for slot in np.unique(cluster[tested]).tolist():
        wanted = jax.tree.map(lambda leaf, slot=slot: np.asarray(leaf[slot]), result.state.models)
        jax.tree.map(np.testing.assert_array_equal, result.params(cluster=slot), wanted)
    (other, *_) = set(cluster.tolist()) - set(cluster[tested].tolist())
    with pytest.raises(ValueError, match=mentions("cluster", other)):
        result.params(cluster=other)


def test_the_model_of_a_cluster_is_of_clients_who_are_there():
    """Those who have left are counted in the cluster that they were last in."""
    data = drift.drift(clustered_linear(8, 2, rows=20, features=4), 1, leave=0.4, seed=1)
    method = jaxfl.methods.ifca(linear_task(), optax.sgd(0.3), num_clusters=2, local_epochs=2, batch_size=4)
    result = jaxfl.run(method, data, rounds=5, cohort=3, seed=1)
    for slot in np.unique(result.evaluation.cluster[~np.asarray(result.data.absent)]).tolist():
        wanted = jax.tree.map(lambda leaf, slot=slot: np.asarray(leaf[slot]), result.state.models)
        jax.tree.map(np.testing.assert_array_equal, result.params(cluster=slot), wanted)


def test_any_number_of_rows_takes_one_of_a_few_programs(monkeypatch):
    result, shapes, outputs = trained("fedavg"), [], served._outputs_program

    def spied(task):
        return lambda model, batch: (shapes.append(len(batch.x)), outputs(task)(model, batch))[1]

    monkeypatch.setattr(served, "_outputs_program", spied)
    pixels = np.asarray(result.data.inputs)[:300]
    whole = result.predict(pixels, client=0)
    for count in range(12):
        np.testing.assert_allclose(result.predict(pixels[:count], client=0), whole[:count], rtol=1e-5, atol=1e-6)
    assert whole.shape == (300, 10) and set(shapes) == {256, 64, 16, 8, 4, 2, 1}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda pixels: pixels / 255, ("inputs", "float32")),
        (lambda pixels: pixels[0], ("inputs", "[8, 8]", "[B, 8, 8]", "[None]")),
        (lambda pixels: pixels.astype(int) - 1, ("inputs", -1)),
    ],
)
def test_rows_of_another_kind_are_refused(change, says):
    result = trained("fedavg")
    with pytest.raises(ValueError, match=mentions(*says)):
        result.predict(change(result.data.inputs[:4]), client=0)


def test_one_client_is_asked_for_at_a_time():
    result = trained("fedavg")
    for name, given in (("client", [1, 2]), ("cluster", "1")):
        with pytest.raises(TypeError, match=mentions(name)):
            result.params(**{name: given})
    with pytest.raises(TypeError, match=mentions("data", "list", "jaxfl.data.load")):
        result.evaluate([1])


PERSONAL = ("fedper",)  # a cluster is the number of a client, and the new ones have others


@pytest.mark.slow
@pytest.mark.rotating(weeks=3)
@pytest.mark.rotating
# One of each kind: models by loss, by gradients, by a tree of splits, by subspaces of rows, by updates, and by client.
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("ifca", {"num_clusters": 4}),
        ("stocfl", {}),
        ("cfl", {"eps1": 10.0, "eps2": 0.0}),
        ("pacfl", {}),
        ("flhc", {"warmup_rounds": 1}),
        ("fedper", {"personal": "Dense_0"}),
    ],
)
def test_clients_who_were_not_there_are_served_as_those_held_out(method, settings):
    result = trained(method, held_out=0.25, **settings)
    out = np.flatnonzero(result.data.held_out)
    assert len(out) == 3
    found = result.evaluate(dataclasses.replace(result.data.subset(out), held_out=None))
    if method not in PERSONAL:
        np.testing.assert_array_equal(found.cluster, result.evaluation.cluster[out])
    np.testing.assert_allclose(found.accuracy, result.evaluation.accuracy[out], atol=1e-6)
    whole = result.evaluation.metrics["unseen_micro_accuracy"]
    assert found.metrics["unseen_micro_accuracy"] == pytest.approx(whole, abs=1e-6)


@pytest.mark.slow
def test_after_a_drift_new_clients_are_placed_by_the_clusters_of_the_run():
    """Found again among those who are there in the end, they would have other numbers, from 0 on."""
    few = {"num_clients": 8, "rows_per_client": 40, "model": "logistic", "drift_round": 1, "leave": 0.25}
    result = jaxfl.run_named("pacfl", "rotated-digits", rounds=2, cohort=8, local_epochs=1, **few)
    ids = np.flatnonzero(~np.asarray(result.data.absent))[:2]
    wanted = result.evaluation.cluster[ids]
    assert min(wanted) > 0
    np.testing.assert_array_equal(result.evaluate(result.data.subset(ids)).cluster, wanted)


def test_a_method_without_room_for_new_clients_says_so():
    result = trained("feddrift", start="own", slots=12)
    with pytest.raises(ValueError, match=mentions("data", "slots", 12)):
        result.evaluate(result.data.subset([0]))


@dataclass
class Own:
    """A state that is no named tuple."""

    models: Any
    cluster: Any
    round: Any


def test_a_state_may_be_a_dataclass():
    data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=20)
    plain = jaxfl.methods.local(jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data), optax.sgd(0.1))

    def own(state):
        return Own(state.models, state.cluster, state.round)

    def back(state):
        return LocalState(state.models, state.cluster, state.round)

    def round(key, state, data, cohort):
        state, info = plain.round(key, back(state), data, cohort)
        return own(state), info

    method = plain._replace(
        init=lambda key, data: own(plain.init(key, data)),
        round=round,
        client_params=lambda state, ids: plain.client_params(back(state), ids),
    )
    results = [jaxfl.run(one, data, rounds=1, cohort=4) for one in (plain, method)]
    one, other = (result.evaluate(data.subset([0, 1])) for result in results)
    np.testing.assert_array_equal(one.accuracy, other.accuracy)


def test_new_clients_with_fewer_rows_are_not_taken_for_full_ones():
    """Where all clients have as many training rows, an accelerator makes as many steps for all."""
    data, new = (jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=rows) for rows in (20, 10))
    assert data.in_programs().filled == new.in_programs().filled == 1
    both = with_newcomers(data, new)
    assert both.train.size.tolist() == [20] * 4 + [10] * 4 and both.filled == 0.75


@pytest.mark.slow
def test_a_kept_run_predicts_and_places_too(tmp_path):
    result = trained("ifca", num_clusters=4, out=tmp_path / "run")
    kept, pixels = jaxfl.load(tmp_path / "run"), result.data.inputs[:5]
    np.testing.assert_array_equal(kept.predict(pixels, client=1), result.predict(pixels, client=1))
    new = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=60, seed=5)
    np.testing.assert_array_equal(kept.evaluate(new).cluster, result.evaluate(new).cluster)
    assert kept.clients().equals(result.clients())


def test_new_clients_that_nothing_is_known_to_place_by_are_refused():
    result = trained("cfl")
    with pytest.raises(ValueError, match=mentions("data", "held_out=0.1")):
        result.evaluate(result.data.subset([0]))


def test_new_clients_of_other_rows_are_refused():
    result = trained("fedavg")
    floats = dataclasses.replace(result.data, inputs=np.asarray(result.data.inputs, np.float32))
    with pytest.raises(ValueError, match=mentions("data", "float32")):
        result.evaluate(floats)


def written(folder, offset, days):
    """A table whose price follows the size and the day by one rule, whatever the sizes and days are."""
    numbers = np.random.Generator(np.random.PCG64(offset))
    day, size = numbers.choice(days, 80), numbers.normal(offset, 3, 80).round(3)
    lines = [f"{row % 4},{day[row]},{size[row]},{2 * size[row] + 5 * (day[row] == 'sat')}" for row in range(80)]
    path = folder / f"prices{offset}.csv"
    path.write_text("\n".join(["who,day,size,price", *lines]))
    return {"data_dir": path, "target": "price", "client": "who", "categories": "day"}


def test_tables_that_are_scaled_by_rows_of_their_own_are_refused(tmp_path):
    data = jaxfl.data.load("writers-table", **written(tmp_path, 50, ["mon", "sat"]))
    task = jaxfl.regression(jaxfl.models.Logistic(1), data)
    result = jaxfl.run(jaxfl.methods.fedavg(task, optax.sgd(0.1), local_epochs=1), data, rounds=1, plan=jaxfl.Plan())
    for options in (written(tmp_path, 80, ["mon", "sat"]), written(tmp_path, 51, ["sat", "sun"])):
        with pytest.raises(ValueError, match=mentions("data", "scaled", "table")):
            result.evaluate(jaxfl.data.load("writers-table", **options))
    assert len(result.evaluate(data.subset([0, 2])).loss) == 2, "the run's own rows"
    stored.save(data, tmp_path / "kept")
    assert stored.load(tmp_path / "kept").fitted


def test_classes_that_are_numbered_otherwise_are_refused():
    data = dataclasses.replace(jaxfl.data.load("rotated-digits", num_clients=4), class_names=tuple("abcdefghij"))
    task = jaxfl.classification(jaxfl.models.Logistic(10), data)
    result = jaxfl.run(jaxfl.methods.fedavg(task, optax.sgd(0.1), local_epochs=1), data, rounds=1, plan=jaxfl.Plan())
    with pytest.raises(ValueError, match=mentions("class 1", "c", "b")):
        result.evaluate(dataclasses.replace(data, class_names=tuple("acbdefghij")))
    assert len(result.evaluate(dataclasses.replace(data, class_names=())).loss) == 4


def test_new_clients_that_drift_are_as_in_the_last_round():
    few = {"num_clients": 8, "rows_per_client": 20, "drift": "rotate", "drift_round": 1}
    result = jaxfl.run_named("fedavg", "rotated-digits", rounds=2, cohort=8, model="logistic", **few)
    new = jaxfl.data.load("rotated-digits", seed=1, **few)
    found, before = (result.evaluate(one).values["accuracy"] for one in (new, new.at(0)))
    np.testing.assert_array_equal(found, result.evaluate(new.at(2)).values["accuracy"])
    assert (found != before).any()


def test_who_has_left_was_not_held_out():
    few = {"num_clients": 8, "rows_per_client": 20, "model": "logistic", "drift_round": 1, "leave": 0.25}
    result = jaxfl.run_named("fedavg", "rotated-digits", rounds=2, cohort=1.0, **few)
    table = result.clients()
    assert "held_out" not in table and table["absent"].sum() == 2
    np.testing.assert_array_equal(table["absent"], np.asarray(result.data.absent))
    table = jaxfl.run_named("fedavg", "rotated-digits", rounds=2, cohort=1.0, held_out=0.25, **few).clients()
    assert table["held_out"].sum() == 2 and not (table["held_out"] & table["absent"]).any()
