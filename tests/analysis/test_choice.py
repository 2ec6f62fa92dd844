"""The number of clusters: two planted groups are two, the same clients for every candidate, nobody else's rows read."""

import functools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import methods, plots
from jaxfl.analysis import choice
from jaxfl.analysis.choice import choose_num_clusters, elbow
from jaxfl.data import conditions, divide, federate
from jaxfl.data.synthetic import clustered_linear
from jaxfl.simulation.evaluation.metrics import COHESION_METRICS
from jaxfl.testing.small import linear_task
from tests.messages import mentions
from tests.problems import batch_of

pytestmark = pytest.mark.rotating("function", weeks=6)

DATA = clustered_linear(16, rows=40, features=4)
OPTIONS: dict[str, Any] = {"num_clients": 10, "validation": 0.5, "seed": 1}


@functools.cache  # tests share what they compile
def fesem(number, rate=0.3):
    return methods.fesem(linear_task(), optax.sgd(rate), num_clusters=number, local_epochs=2)


@functools.cache
def fedavg(number):
    return one_model()


@functools.cache
def one_model():
    return methods.fedavg(linear_task(), optax.sgd(0.3), local_epochs=1)


def untimed(chosen):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in chosen.table]


@pytest.fixture(scope="module")
def chosen():
    return choose_num_clusters(fesem, DATA, (1, 2, 3), **OPTIONS)


@pytest.fixture
def samples(monkeypatch):
    """The federations that are run, as they are given; each is run as well."""
    seen = []

    def run(method, data, **options):
        seen.append(data)
        return jaxfl.run(method, data, **options)

    monkeypatch.setattr(choice, "run", run)
    return seen


class Seen(Exception):
    """Nothing is run: what is asked is what would be."""


@pytest.fixture
def sampled(monkeypatch):
    """Returns `(method, data, **options) -> the federation that the first candidate would be run on`."""

    def run(method, data, **options):
        raise Seen(data)

    def sample(*arguments, **options):
        monkeypatch.setattr(choice, "run", run)
        with pytest.raises(Seen) as seen:
            choose_num_clusters(*arguments, (1,), **options)
        return seen.value.args[0]

    return sample


@pytest.mark.slow
def test_two_planted_groups_are_two_by_accuracy(chosen):
    assert chosen.num_clusters == 2 and chosen.criterion == "accuracy"
    one, two = (chosen.table[place]["accuracy"] for place in (0, 1))
    assert two > one + 0.2, "one model for contradictory groups"


def test_two_planted_groups_are_two_by_the_elbow_and_the_table_is_the_same_again(chosen):
    again = choose_num_clusters(fesem, DATA, (2, 3, 1), criterion="distance", **OPTIONS)
    assert again.num_clusters == 2 and again.criterion == "distance"
    assert untimed(again) == untimed(chosen)
    distances = [row["distance"] for row in again.table]
    assert distances == sorted(distances, reverse=True), "the smallest would be the last"


@pytest.mark.slow
def test_the_table_is_ready_for_json(chosen):
    assert json.loads(json.dumps(chosen._asdict(), allow_nan=False)) == chosen._asdict()
    assert [row["num_clusters"] for row in chosen.table] == [1, 2, 3]
    assert all(1 <= row["clusters"] <= row["num_clusters"] and row["seconds"] > 0 for row in chosen.table)


def test_neither_other_clients_nor_test_rows_are_read(chosen, samples):
    choose_num_clusters(fedavg, DATA, (1,), **OPTIONS)
    (sample,) = samples
    rows = {row.tobytes(): place for place, row in enumerate(np.asarray(DATA.inputs))}
    kept = np.array([rows[row.tobytes()] for row in np.asarray(sample.inputs)])
    own = [part.tolist() for part in np.split(DATA.train.rows, DATA.train.start[1:])]
    assert sample.num_clients == 10
    assert sorted(kept) == sorted(sum((part for part in own if part[0] in kept), [])), (
        "all training rows of ten clients"
    )

    inputs, labels = np.full_like(DATA.inputs, np.nan), (np.asarray(DATA.labels) + 1) % 3
    inputs[kept], labels[kept] = np.asarray(DATA.inputs)[kept], np.asarray(DATA.labels)[kept]
    broken = replace(DATA, inputs=inputs, labels=labels)
    assert untimed(choose_num_clusters(fesem, broken, (2,), **OPTIONS)) == untimed(chosen)[1:2]
    inputs[kept[0]] = np.nan
    assert untimed(choose_num_clusters(fesem, broken, (2,), **OPTIONS)) != untimed(chosen)[1:2]


def seen_by(data, split, client):
    """Returns a client's rows as a model gets them, sorted."""
    batch = batch_of(data, split, np.int32(client), np.arange(getattr(data, split).max_size, dtype=np.int32))
    real = np.asarray(batch.mask)
    return sorted(
        (np.asarray(x).tobytes(), int(y))
        for x, y in zip(np.asarray(batch.x)[real], np.asarray(batch.y)[real], strict=True)
    )


def rows_of(data, name, client):
    """Returns a client's rows as they are stored, sorted."""
    split = getattr(data, name)
    rows = np.asarray(split.rows)[split.start[client] :][: split.size[client]]
    return sorted((np.asarray(data.inputs)[row].tobytes(), int(data.labels[row])) for row in rows)


def image_federation():
    """Eight clients of unequal sizes, two of them too small and two held out, unlike in all that a client can be."""
    rng = np.random.default_rng(0)
    parts = np.split(np.arange(72), np.cumsum([9, 1, 8, 12, 0, 10, 11]))
    data = federate(
        rng.integers(0, 256, (72, 3, 3, 1), np.uint8),
        rng.integers(0, 3, 72),
        parts,
        parts[::-1],
        num_classes=3,
        rotation=np.arange(8) % 4,
        tilt=np.linspace(0, 80, 8),
        label_shift=np.arange(8) % 3,
        group=np.arange(8),
        held_out=np.arange(8) % 7 == 0,
        check_repeats=False,  # rows are tested that others train on
    )
    return conditions.attack(data, "label-flip", 0.4)


def test_the_sampled_clients_are_as_they_were(sampled):
    data = image_federation()
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=3), data)
    sample = sampled(lambda k: methods.fedavg(task, optax.sgd(0.1)), data, rounds=1, validation=0.3)
    assert sample.group.tolist() == [2, 3, 5, 6] and sample.held_out is None  # fewer than num_clients
    assert sample.test.size.tolist() == [3, 4, 3, 4] and sample.attack.kind == "label-flip"
    for place, client in enumerate(sample.group):
        halves = [seen_by(sample, split, place) for split in ("train", "test")]
        assert sorted(halves[0] + halves[1]) == seen_by(data, "train", client)
        assert sample.attack.attacker[place] == data.attack.attacker[client]


def test_rows_that_are_set_apart_already_are_those_set_aside(sampled):
    data = divide.set_apart(DATA, 0.25)
    theirs, own = (sampled(fedavg, data, num_clients=16, rounds=1, **some) for some in ({}, {"validation": 0.5}))
    for client in range(16):
        assert rows_of(theirs, "train", client) == rows_of(data, "train", client)
        assert rows_of(theirs, "test", client) == rows_of(data, "validation", client)
    assert theirs.validation is None and (theirs.test.size[0], own.test.size[0]) == (10, 15)


def test_another_seed_is_another_sample_and_every_candidate_has_the_same(samples):
    for seed in (0, 1):
        choose_num_clusters(fedavg, DATA, (2, 1), num_clients=10, rounds=1, seed=seed)
    first, same, other, _ = samples
    assert first is same
    assert first.inputs.tobytes() != other.inputs.tobytes()


def test_equals_are_the_smallest_and_methods_without_a_distance_have_none():
    chosen = choose_num_clusters(fedavg, DATA, (3, 1, 2), **OPTIONS)
    assert chosen.num_clusters == 1
    assert [(row["distance"], row["clusters"]) for row in chosen.table] == [(None, 1)] * 3
    assert len({row["accuracy"] for row in chosen.table}) == 1


@pytest.mark.parametrize(
    ("distances", "place"),
    [
        pytest.param([9, 3, 2.9, 2.8, 2.7], 1, id="an early elbow"),
        pytest.param([9, 8, 7, 2, 1.9], 3, id="a late one"),
        pytest.param([9, 2, 6, 5, 4], 1, id="not monotone"),
        pytest.param([9, 7, 5, 3, 1], 0, id="a straight line has none"),
        pytest.param([9, 8.9, 8.5, 6, 1], 0, id="nowhere below the chord"),
        pytest.param([4, 4, 4, 4, 4], 0, id="all the same"),
    ],
)
def test_the_elbow_is_farthest_below_the_chord(distances, place):
    assert elbow([1, 2, 3, 4, 5], distances) == place
    assert elbow([10, 20, 30, 40, 50], [100 * distance + 7 for distance in distances]) == place, "whatever the units"


def test_the_elbow_minds_how_far_apart_candidates_are():
    assert elbow([1, 2, 3, 4], [10, 6, 2.5, 1]) == 2
    assert elbow([1, 2, 16, 17], [10, 6, 2.5, 1]) == 1
    for x, y in (([], []), ([1, 2, 3], [1.0, 2.0]), ([1, 2, 3], [1.0, np.nan, 0.0])):
        with pytest.raises(ValueError, match=mentions("x", "y", x, y)):
            elbow(x, y)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": fesem(2)}, ("method", "Method")),
        ({"candidates": ()}, ("candidates", "()")),
        ({"candidates": (2, 2)}, ("candidates", "(2, 2)")),
        ({"candidates": (0, 1)}, ("candidates", "(0, 1)")),
        ({"candidates": 2}, ("candidates", "got 2")),
        ({"candidates": (1, 2.5)}, ("candidates", "(1, 2.5)")),
        ({"candidates": (1, 11)}, ("candidates", 11, 10)),
        ({"candidates": (1, 17), "num_clients": 99}, ("candidates", 17, 16)),
        ({"num_clients": 0}, ("num_clients", 0)),
        ({"rounds": 0}, ("rounds", 0)),
        ({"criterion": "loss"}, ("criterion", "loss")),
        ({"criterion": "distance", "candidates": (1, 2)}, ("candidates", 'criterion="distance"', "(1, 2)")),
        ({"criterion": "distance", "method": fedavg}, ("criterion", "accuracy")),
        ({"validation": 0.0}, ("validation", 0.0)),
        ({"validation": 1}, ("validation", "got 1")),
        ({"data": clustered_linear(8, rows=1)}, ("data", "2 training rows")),
        ({"data": replace(DATA, held_out=np.ones(16, bool))}, ("data", "held out")),
    ],
)
def test_refusals_come_before_anything_runs(change, message, monkeypatch):
    monkeypatch.setattr(choice, "run", lambda *_, **__: pytest.fail("something ran"))
    options = {"method": fesem, "data": DATA, "candidates": (1, 2, 3), **OPTIONS} | change
    with pytest.raises(ValueError, match=mentions(*message)):
        choose_num_clusters(**options)


def test_a_sample_of_attackers_alone_is_refused():
    attacked = conditions.attack(DATA, "sign-flip", 0.9)
    with pytest.raises(ValueError, match=mentions("num_clients", "1 sampled", "attackers")):
        choose_num_clusters(fedavg, attacked, (1,), num_clients=1)


def test_rates_at_which_every_model_diverges_are_refused():
    with pytest.raises(RuntimeError, match=mentions("K = 2", "diverged", "learning rate")):
        choose_num_clusters(lambda k: fesem(k, 1e38), DATA, (2,), **OPTIONS)


def panels(figure):
    return [axes.get_title(loc="left") for axes in figure.axes]


def points(line):
    return [tuple(point) for point in line.get_xydata().tolist()]


def test_the_picture_marks_the_chosen_number(chosen):
    figure = plots.choice(chosen)
    assert panels(figure) == ["accuracy on rows set aside", "distance from the cluster's centre"]
    for axes, name in zip(figure.axes, ("accuracy", "distance"), strict=True):
        curve, ring = axes.get_lines()
        assert points(curve) == [(row["num_clusters"], row[name]) for row in chosen.table]
        assert points(ring) == [(2, chosen.table[1][name])]
    assert [axes.get_legend_handles_labels()[1] for axes in figure.axes] == [["chosen: 2 clusters"], []]


def test_the_picture_of_an_elbow_has_its_chord_and_of_no_distance_one_panel(chosen):
    chord, *_ = plots.choice(chosen._replace(criterion="distance")).axes[1].get_lines()
    assert points(chord) == [(number, chosen.table[number - 1]["distance"]) for number in (1, 3)]
    alone = chosen._replace(table=[{**row, "distance": None} for row in chosen.table])
    assert panels(plots.choice(alone)) == ["accuracy on rows set aside"]
    (axes,) = plots.choice(alone._replace(num_clusters=1, table=alone.table[:1])).axes
    assert axes.get_xlim() == (0, 2), "not four digits around the one candidate"


@pytest.mark.slow
def test_who_is_not_there_yet_is_not_sampled():
    data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20, drift_round=2, arrive=0.5)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    chosen = choose_num_clusters(
        lambda k: methods.ifca(task, optax.sgd(0.1), num_clusters=k), data, (1, 2), rounds=1, num_clients=4
    )
    assert chosen.num_clusters in (1, 2)


@pytest.mark.parametrize("criterion", COHESION_METRICS)
def test_clusters_are_chosen_by_a_score_of_theirs_without_the_groups(criterion, samples, chosen):
    found = choose_num_clusters(fesem, DATA, (1, 2, 3), criterion=criterion, **OPTIONS)
    assert all(sample.group is None for sample in samples) and found.criterion == criterion
    assert found.table[0][criterion] is None, "one cluster has no score"
    assert [{**row, criterion: 0} for row in untimed(found)] == [{**row, criterion: 0} for row in untimed(chosen)]
    scored = {row["num_clusters"]: row[criterion] for row in found.table[1:] if row[criterion] is not None}
    best = (min if criterion.endswith("davies_bouldin") else max)(scored, key=scored.__getitem__)
    assert found.num_clusters == best
    if not criterion.startswith("wasserstein"):
        assert best == 2, "two planted groups"
    json.dumps(found._asdict(), allow_nan=False)
    curve, _ = plots.choice(found).axes[-1].get_lines()
    assert points(curve)[1:] == [(number, found.table[number - 1][criterion]) for number in (2, 3)]


def test_a_score_of_clusters_needs_a_candidate_with_two_of_them_and_classes_where_it_counts_them():
    with pytest.raises(ValueError, match=mentions("candidates", "silhouette", "[1, 1]", "num_clients")):
        choose_num_clusters(fedavg, DATA, (1, 2), criterion="silhouette", **OPTIONS)
    continuous = replace(DATA, labels=np.asarray(DATA.labels, np.float32)[:, None])
    with pytest.raises(ValueError, match=mentions("criterion", "regression", "wasserstein_silhouette")):
        choose_num_clusters(fedavg, continuous, (1, 2), criterion="wasserstein_silhouette", **OPTIONS)
