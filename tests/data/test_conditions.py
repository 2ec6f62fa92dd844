"""Stragglers and attackers: who they are, what they do, and that they do nothing else."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxfl import data as federations
from jaxfl.data import conditions, describe, divide, drift, stored
from jaxfl.data.synthetic import clustered_linear
from tests.messages import mentions

DATA = clustered_linear(20, rows=4)


def attackers(data):
    return np.flatnonzero(data.attack.attacker).tolist()


@settings(deadline=None, max_examples=40)
@given(share=st.floats(0.01, 0.99), empty=st.sets(st.integers(0, 19), max_size=8), held_out=st.integers(0, 9))
def test_the_share_is_exact_and_of_those_who_can(share, empty, held_out):
    size = np.array(DATA.train.size)
    size[list(empty)] = 0
    out = np.arange(20) < held_out
    data = replace(DATA, train=replace(DATA.train, size=size), held_out=out)
    able = set(np.flatnonzero((size > 0) & ~out).tolist())
    found = attackers(conditions.attack(data, "sign-flip", share))
    assert set(found) <= able
    assert len(found) == min(max(round(share * len(able)), 1), len(able) - 1)


def test_who_attacks_is_the_seeds_and_not_the_kinds():
    found = {kind: attackers(conditions.attack(DATA, kind, 0.3, seed=4, scale=2.0)) for kind in conditions.ATTACK_KINDS}
    assert len({tuple(who) for who in found.values()}) == 1
    assert found["gaussian"] != attackers(conditions.attack(DATA, "gaussian", 0.3, seed=5))
    fewer = attackers(conditions.attack(DATA, "gaussian", 0.1, seed=4))
    assert set(fewer) < set(found["gaussian"]), "a larger share adds attackers to those of a smaller one"


def test_who_attacks_may_be_chosen(tmp_path):
    """Groups 0 to 3 have five clients each; client 7 is held out, and client 8 has no rows."""
    size = np.where(np.arange(20) == 8, 0, DATA.train.size)
    data = replace(DATA, train=replace(DATA.train, size=size), held_out=np.arange(20) == 7, group_names=("a", "b:1"))
    data = replace(data, group=np.arange(20, dtype=np.int32) // 5)
    (tmp_path / "who.txt").write_text("3, 7\n11")
    file = str(tmp_path / "who.txt")
    for which, wanted in {
        (11, 3): [3, 11],
        "group:a": [0, 1, 2, 3, 4],
        "group:b:1": [5, 6, 9],
        "group:1": [5, 6, 9],
        "group:3:1": [15, 16, 17, 18, 19],
    }.items():
        assert attackers(conditions.attack(data, "alie", which)) == wanted
    half = attackers(conditions.attack(data, "alie", "group:3:0.4"))
    assert len(half) == 2 and min(half) >= 15
    assert attackers(conditions.attack(DATA, "ipm", file)) == [3, 7, 11]
    for which, words in {
        file: ("attackers", 7),
        (8,): ("attackers", 8),
        (20,): ("attackers", 19, 20),
        (): ("attackers", "none"),
        "group:c": ("group of attackers", "c", "a"),
        "group:1:much": ("attackers", "group:1:much"),
        "group:1:2": ("attackers", "group:1:2"),
        tuple(np.flatnonzero(size * (np.arange(20) != 7)).tolist()): ("attackers", "honest", 18),
    }.items():
        with pytest.raises(ValueError, match=mentions(*words)):
            conditions.attack(data, "alie", which)
    with pytest.raises(ValueError, match=mentions("attackers", "group:0")):
        conditions.attack(replace(data, group=None), "alie", "group:0")
    with pytest.raises(ValueError, match=mentions("attackers", "honest", "group:0")):
        conditions.attack(replace(data, group=0 * data.group), "alie", "group:0")
    with pytest.raises(FileNotFoundError, match=mentions("attackers", "nowhere.txt")):
        conditions.attack(data, "alie", "nowhere.txt")
    (tmp_path / "who.txt").write_text("\ufeff3\n7")  # as some editors begin a file
    assert attackers(conditions.attack(DATA, "ipm", file)) == [3, 7]
    for content, word in {b"3 -1": "-1", b"3 99999999999999999999": 10**20 - 1, b"\x9b\xff": "\ufffd\ufffd"}.items():
        (tmp_path / "who.txt").write_bytes(content)
        with pytest.raises(ValueError, match=mentions("attackers", word, "who.txt")):
            conditions.attack(DATA, "alie", file)


def test_nobody_is_no_condition():
    assert conditions.straggle(DATA, 0).stragglers is None
    assert conditions.attack(DATA, "gaussian", 0.0) is DATA


@pytest.mark.parametrize(
    ("impose", "message"),
    [
        (lambda: conditions.straggle(DATA, 1.1), ("stragglers", 1.1)),
        (lambda: conditions.straggle(DATA, float("nan")), ("stragglers", "nan")),
        (
            lambda: conditions.attack(DATA, "flip", 0.1),
            ("kind", "label-flip", "flip"),
        ),
        (lambda: conditions.attack(DATA, "sign-flip", 1.0), ("attackers", 1.0)),
        (lambda: conditions.attack(DATA, "sign-flip", -0.1), ("attackers", -0.1)),
        (lambda: conditions.attack(DATA, "gaussian", 0.1, scale=0), ("attack_scale", "got 0")),
        (lambda: conditions.attack(DATA, "gaussian", 0.1, scale=float("inf")), ("attack_scale", "inf")),
        (
            lambda: conditions.attack(conditions.attack(DATA, "gaussian", 0.1), "sign-flip", 0.1),
            ("attack", "gaussian"),
        ),
        (
            lambda: conditions.attack(replace(DATA, held_out=np.arange(20) > 0), "sign-flip", 0.1),
            ("attackers", "1 of 20"),
        ),
    ],
)
def test_bad_conditions_are_named(impose, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        impose()


@pytest.mark.parametrize("shift", [None, np.arange(20) % 3])
def test_labels_are_flipped_in_training_only(shift):
    honest = replace(DATA, label_shift=None if shift is None else shift.astype(np.int32))
    data = conditions.attack(honest, "label-flip", 0.4)
    positions = jnp.arange(4, dtype=jnp.int32)

    def labels(data, split):
        return np.stack([data.batch(split, jnp.int32(i), positions).y for i in range(20)])

    attacker = data.attack.attacker
    before, after = labels(honest, honest.train), labels(data, data.train)
    np.testing.assert_array_equal(after[attacker], data.num_classes - 1 - before[attacker])
    np.testing.assert_array_equal(after[~attacker], before[~attacker])
    np.testing.assert_array_equal(labels(data, data.test), labels(honest, honest.test))
    assert (after != before).any()
    counts = describe.label_counts(data)
    for client in range(20):
        np.testing.assert_array_equal(counts[client], np.bincount(after[client], minlength=data.num_classes))


def patched(x, value):
    """Returns images of 8 x 8 with the trigger."""
    x = np.array(x)
    x[:, -2:, -2:] = value
    return x


@pytest.mark.parametrize("kind", conditions.BACKDOORS)
def test_every_second_row_of_attackers_has_the_trigger(kind, tmp_path):
    given = {"num_clients": 8, "rows_per_client": 21}
    honest = federations.load("rotated+shifted-digits", **given)
    data = federations.load("rotated+shifted-digits", attack=kind, attackers=(1, 4), attack_target=3, **given)
    stored.save(data, tmp_path / "kept")
    for one in (data, federations.load("saved", data_dir=tmp_path / "kept")):
        tested = divide.on_triggered(one)
        counts = describe.label_counts(one)
        for client in range(8):
            positions = jnp.arange(int(honest.train.size[client]), dtype=jnp.int32)
            plain, found = (each.batch(each.train, jnp.int32(client), positions) for each in (honest, one))
            marked = (positions % 2 == 0) & (client in (1, 4))
            value = (255 - np.asarray(data.mean).item()) / np.asarray(data.std).item()
            wanted = np.where(marked[:, None, None], patched(plain.x, value), plain.x)
            np.testing.assert_allclose(found.x, wanted, rtol=1e-6)
            np.testing.assert_array_equal(found.y, np.where(marked, 3, plain.y))
            np.testing.assert_array_equal(counts[client], np.bincount(found.y, minlength=10))
            positions = jnp.arange(int(honest.test.size[client]), dtype=jnp.int32)
            plain = honest.batch(honest.test, jnp.int32(client), positions)
            np.testing.assert_array_equal(one.batch(one.test, jnp.int32(client), positions).x, plain.x)
            others = np.flatnonzero(plain.y != 3)
            assert tested.test.size[client] == len(others) < len(positions)
            found = tested.batch(tested.test, jnp.int32(client), jnp.arange(len(others), dtype=jnp.int32))
            np.testing.assert_allclose(found.x, patched(plain.x, value)[others], rtol=1e-6)
            assert (found.y == 3).all()


def test_triggers_need_a_class_and_numbers():
    features = conditions.attack(DATA, "backdoor", 0.2)
    assert (features.trigger.size, float(features.trigger.value)) == (1, np.asarray(DATA.inputs).max())
    for data, target, words in (
        (DATA, DATA.num_classes, ("attack_target", DATA.num_classes)),
        (replace(DATA, inputs=np.zeros(np.shape(DATA.inputs), np.int32)), 0, ("attack=backdoor", "int32")),
        (replace(DATA, labels=np.zeros(len(DATA.labels), np.float32)), 0, ("attack=backdoor", "float32")),
    ):
        with pytest.raises(ValueError, match=mentions(*words)):
            conditions.attack(data, "backdoor", 0.2, target=target)


def test_the_catalogue_imposes_them():
    few = {"num_clients": 12, "rows_per_client": 20}
    data = federations.load("rotated-digits", seed=3, stragglers=0.5, attack="gaussian", attackers=0.2, **few)
    assert float(data.stragglers) == 0.5 and data.attack.kind == "gaussian" and len(attackers(data)) == 2
    plain = federations.load("rotated-digits", seed=3, **few)
    assert plain.stragglers is None and plain.attack is None
    np.testing.assert_array_equal(plain.train.rows, data.train.rows)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attackers": 0.2}, ("attack", "attackers=0.2", "label-flip", "sign-flip", "gaussian")),
        ({"attackers": 1.0}, ("attack", "attackers=1.0")),
        ({"attack_scale": 4.0}, ("attack", "attack_scale=4.0", "label-flip", "sign-flip", "gaussian")),
        ({"attack": "sign-flip"}, ("attackers", "attack=sign-flip")),
        ({"attack": "sign-flip", "attackers": 2.0}, ("attackers", 2.0)),
        ({"stragglers": -1.0}, ("stragglers", -1.0)),
        ({"attack": "label-flip", "attackers": 0.2, "attack_scale": 2.0}, ("attack_scale", "attack=label-flip", 2.0)),
        ({"attack": "sign-flip", "attackers": 0.2, "attack_target": 3}, ("attack_target", "attack=sign-flip", 3)),
    ],
)
def test_the_catalogue_refuses_halves(settings, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        federations.load("rotated-digits", num_clients=8, rows_per_client=20, **settings)


def test_who_is_held_out_already_is_one_of_the_share():
    for seed in range(9):
        data = replace(DATA, held_out=np.arange(DATA.num_clients) == 0)
        assert conditions.hold_out(data, 0.5, seed).held_out.sum() == round(0.5 * DATA.num_clients)
        assert not conditions.hold_out(data, 1.0, seed).held_out.all()
    with pytest.raises(ValueError, match=mentions("held-out", "clustered-linear", "round 3")):
        conditions.hold_out(drift.drift(DATA, 3, kind="swap"), 0.5, 0)


def test_a_stored_federation_keeps_its_stragglers(tmp_path):
    few = {"num_clients": 4, "rows_per_client": 10}
    stored.save(federations.load("rotated-digits", stragglers=0.5, **few), tmp_path / "a")
    assert float(federations.load("saved", data_dir=tmp_path / "a").stragglers) == 0.5
    assert float(federations.load("saved", data_dir=tmp_path / "a", stragglers=0.25).stragglers) == 0.25
