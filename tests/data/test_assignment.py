"""Who gets which pattern of shifts: minorities, patterns together, and shifts apart."""

import numpy as np
import pytest

from jaxfl import data
from jaxfl.data.digest import digest
from tests.messages import mentions

FEDRC = {"corruptions": "none,gaussian_noise,contrast", "rule": "prior", "alpha": 1.0, "num_clients": 20}


def unshifted(fed, client):
    """Whether a client sees the pool as it is."""
    fields = [fed.rotation, fed.tilt, fed.colour, fed.stroke, fed.corruption]
    own = [int(np.asarray(one)[client]) for one in fields if one is not None]
    return not any(own) and (fed.label_maps()[client] == np.arange(fed.num_classes)).all()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rotated-digits", {"rows_per_client": 40}),
        ("rotated+iid-digits", {"angles": (0, 90, 180, 270)}),
        ("swapped+dirichlet-digits", {}),
    ],
)
def test_a_minority(name, options):
    fed = data.load(name, num_clients=21, group_shares=(0.15, 0.2833, 0.2833, 0.2833), **options)
    assert np.bincount(fed.group).tolist() == [3, 6, 6, 6]  # those of R-DPCFL
    train, test = (set(np.asarray(getattr(fed, split).rows).tolist()) for split in ("train", "test"))
    assert not train & test


def test_equal_shares_are_the_usual_groups():
    usual = data.load("rotated-digits", num_clients=8, rows_per_client=40)
    assert digest(usual) == digest(
        data.load("rotated-digits", num_clients=8, rows_per_client=40, group_shares=[0.25] * 4)
    )


def test_shares_are_of_the_first_shift_within_each_group():
    fed = data.load("rotated+pathological-digits", num_clients=40, angles=(0, 90), group_shares=(0.8, 0.2))
    pairs = np.stack([np.asarray(fed.causes["classes"]), np.asarray(fed.causes["rotation"])], 1)
    for classes in range(4):
        own = pairs[pairs[:, 0] == classes, 1]
        assert np.bincount(own).tolist() == [8, 2]


def test_paired_patterns_have_no_more_groups_than_one_of_them():
    angles = (0, 90, 180, 270)
    fed = data.load("rotated+shifted-digits", num_clients=8, rows_per_client=20, angles=angles, mix="paired")
    assert fed.group.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert fed.rotation.tolist() == fed.group.tolist()
    assert fed.label_maps()[:, 0].tolist() == [0, 0, 3, 3, 6, 6, 9, 9]
    assert (fed.causes["rotation"] == fed.causes["labels"]).all()
    three = data.load("thickened+rotated+mirrored+iid-digits", num_clients=9, angles=(0, 90, 180), mix="paired")
    assert sorted(np.bincount(three.group).tolist()) == [3, 3, 3]
    assert all((pattern == three.causes["labels"]).all() for pattern in three.causes.values())


def test_apart_has_fedrcs_shares_and_three_concepts():
    fed = data.load("corrupted+mirrored+dirichlet-digits", mix="apart", truth="labels", **FEDRC)
    corrupted, labels = (np.asarray(fed.causes[cause]) for cause in ("corruption", "labels"))
    counts = [int(((corrupted > 0) == one)[(labels > 0) == other].sum()) for one in (1, 0) for other in (0, 1)]
    assert counts == [4, 4, 4, 8]  # the first alone, both, neither, the second alone
    assert np.bincount(fed.group).tolist() == np.bincount(labels).tolist() == [8, 6, 6]
    assert sorted(np.bincount(corrupted).tolist()) == [4, 4, 12]
    assert [unshifted(fed, client) for client in range(20)] == ((corrupted == 0) & (labels == 0)).tolist()


def test_apart_with_other_shares_and_another_seed():
    name, options = "rotated+shifted+iid-digits", {"num_clients": 12, "mix": "apart", "mix_shares": (0.5, 0.5, 0, 0)}
    fed, other = (data.load(name, seed=seed, **options) for seed in (0, 1))
    turned, moved = (np.asarray(fed.causes[cause]) > 0 for cause in ("rotation", "labels"))
    assert (turned ^ moved).all() and turned.sum() == 6
    assert (turned != (np.asarray(other.causes["rotation"]) > 0)).any()


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("rotated+iid-digits", {"group_shares": (0.5, 0.4)}, ("group_shares", "0.5,0.4")),
        ("rotated+iid-digits", {"group_shares": (0.5, 0.3, 0.2)}, ("group_shares", 2, "got 3")),
        ("rotated-digits", {"group_shares": (0.97, 0.01, 0.01, 0.01)}, ("group_shares", "90°")),
        ("permuted+iid-digits", {"group_shares": (0.5, 0.5), "each_client": True}, ("group_shares", "permuted")),
        ("pathological-digits", {"group_shares": (0.5, 0.5)}, ("group_shares", "pathological-digits")),
        ("rotated-digits", {"mix": "paired"}, ("mix", "rotated-digits")),
        ("rotated+iid-digits", {"mix": "paired"}, ("mix", "rotated+iid-digits")),
        ("rotated+shifted-digits", {"mix": "apart"}, ("mix", "apart", "rotated+shifted-digits")),
        ("rotated+shifted+iid-digits", {"mix_shares": (1, 0, 0, 0)}, ("mix", "apart", "crossed")),
        ("rotated+shifted+iid-digits", {"mix": "apart", "mix_shares": (0.5, 0.5)}, ("mix_shares", "got 2")),
        ("rotated+swapped+iid-digits", {"mix": "apart"}, ("swapped", "none", "0:3/8:9".replace("/", " "))),
        ("rotated+mirrored-digits", {"mix": "paired", "num_clients": 12}, ("mix", 3, "got 2")),
        ("rotated+shifted+iid-digits", {"mix": "together"}, ("mix", "together", "paired")),
    ],
)
def test_refusals_are_one_line(name, options, told):
    with pytest.raises(ValueError, match=mentions(*told)) as refused:
        data.load(name, **options)
    assert "\n" not in str(refused.value)
