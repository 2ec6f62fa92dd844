"""The digest of a federation, restated from its definition, and what changes it."""

import hashlib
import json
import re
import struct
from dataclasses import replace

import jax
import numpy as np
import optax
import pytest
from typer.testing import CliRunner

import jaxfl
from jaxfl import data
from jaxfl.cli.app import app
from jaxfl.data import divide, stored
from jaxfl.data.digest import digest, num_hashed_bytes, pixel_digest, rows_digest
from jaxfl.simulation.records import identity
from tests.messages import mentions
from tests.problems import linear_federation, softmax_task


def ints(*numbers):
    return struct.pack(f"<{len(numbers)}i", *numbers)


def listed(numbers):
    numbers = [int(one) for one in numbers]
    return ints(len(numbers), *numbers)


def own(split, client):
    return split.rows[split.start[client] :][: split.size[client]]


def clients_bytes(fed, angles, label_maps):
    """Rows, views, causes and masks of all clients; angles in degrees, label maps as lists."""
    made = b""
    for split in (fed.train, fed.test, fed.validation):
        for client in range(fed.num_clients):
            made += listed(() if split is None else sorted(own(split, client).tolist()))
    for angle, numbering in zip(angles, label_maps, strict=True):
        made += ints(1000 * angle, 0) + ints(0) + ints(0, 0) + listed([]) + listed([]) + listed(numbering)
    made += ints(len(fed.causes))
    for cause in sorted(fed.causes):
        made += ints(len(cause)) + cause.encode() + listed(fed.causes[cause])
    masks = (np.zeros(fed.num_clients) if mask is None else mask for mask in (fed.held_out, fed.absent))
    return made + b"".join(map(listed, masks))


def restated(fed, phases, rounds=(), *, kind="fed1"):
    pool = hashlib.sha256(f"uint8 {' x '.join(map(str, fed.inputs.shape))}\n".encode())
    pool.update(fed.inputs.tobytes() if kind == "fed1" else b"")
    pool.update(fed.labels.astype("<i4").tobytes())
    whole = b"jaxfl-federation 1\n" + pool.digest() + ints(fed.num_clients, fed.num_classes) + phases[0]
    whole += ints(len(rounds)) + b"".join(ints(one) + phase for one, phase in zip(rounds, phases[1:], strict=True))
    return f"{kind}:{hashlib.sha256(whole).hexdigest()[:16]}"


TURNED = {"num_clients": 8, "rows_per_client": 10, "angles": (0, 45, 90, 300), "held_out": 0.3, "validation": 0.2}


def test_the_digest_is_that_of_rows_views_and_causes():
    fed = data.load("rotated-digits", **TURNED)
    angles = [(0, 45, 90, 300)[group] for group in fed.group]
    assert digest(fed) == restated(fed, [clients_bytes(fed, angles, [range(10)] * 8)])
    assert rows_digest(fed) == restated(fed, [clients_bytes(fed, angles, [range(10)] * 8)], kind="row1")


def test_a_drift_adds_the_rows_and_views_afterwards():
    fed = data.load("swapped-digits", num_clients=4, rows_per_client=10, drift="swap", drift_round=3, arrive=0.25)
    swaps = ({0: 3, 3: 0, 8: 9, 9: 8}, {1: 4, 4: 1, 6: 9, 9: 6}, {1: 2, 2: 1, 3: 6, 6: 3}, {3: 5, 5: 3, 4: 7, 7: 4})
    phases = []
    for now in fed.phases:
        maps = [[swaps[group].get(label, label) for label in range(10)] for group in now.group]
        phases.append(clients_bytes(now, [0] * 4, maps))
    assert phases[0] != phases[1] and digest(fed) == restated(fed, phases, [3])
    assert digest(fed.at(0)) == restated(fed, phases[:1]) != digest(fed)


def test_equal_federations_have_one_digest_however_they_are_stored(tmp_path):
    fed = data.load("rotated+shifted-digits", num_clients=8, rows_per_client=10, shifts=(0, 5), angles=(0, 90))
    wanted, pixels = digest(fed), pixel_digest(fed)
    stored.save(fed, tmp_path / "saved")
    rng = np.random.default_rng(0)
    shuffled = data.Split.pack([rng.permutation(own(fed.train, client)) for client in range(8)])
    apart = data.Split.pack([own(fed.test, client) for client in range(8)])  # not shared
    table = (np.arange(10) + np.arange(10)[:, None]) % 10
    same = {
        "saved": stored.load(tmp_path / "saved"),
        "device": jax.device_put(fed),
        "order": replace(fed, train=shuffled, test=apart),
        "maps": replace(fed, label_map=table.astype(np.int32)),
        "names": replace(fed, name="another", group_names=(), class_names=()),
        "no tilt": replace(fed, tilt=np.zeros(8, np.float32)),
        "scale": replace(fed, mean=np.float32(3), std=np.float32(2)),
    }
    assert {name: digest(one) for name, one in same.items()} == dict.fromkeys(same, wanted)
    assert {name: pixel_digest(one) for name, one in same.items()} == dict.fromkeys(same, pixels)


def changed_pixel(fed):
    inputs = np.array(fed.inputs)
    inputs[-1, 0, 0] += 1
    return replace(fed, inputs=inputs)


@pytest.mark.parametrize(
    "change",
    [
        changed_pixel,
        lambda fed: replace(fed, labels=(fed.labels + (np.arange(len(fed.labels)) == 7)).astype(np.int32) % 10),
        lambda fed: replace(fed, train=replace(fed.train, start=fed.train.start[[1, 0, *range(2, 8)]])),
        lambda fed: replace(fed, rotation=(fed.rotation + 1) % 4),
        lambda fed: replace(fed, tilt=np.full(8, 0.5, np.float32)),
        lambda fed: data.swap_labels(fed, swaps="0:1"),
        lambda fed: replace(fed, causes={"labels": fed.group}),
        lambda fed: replace(fed, held_out=np.arange(8) == 3),
        lambda fed: divide.set_apart(fed, 0.2),
        lambda fed: data.load("rotated-digits", num_clients=8, rows_per_client=10, seed=1),
    ],
)
def test_a_change_of_the_federation_changes_the_digest(change):
    fed = data.load("rotated-digits", num_clients=8, rows_per_client=10)
    assert digest(change(fed)) != digest(fed)


def test_a_federation_without_classes_or_pixels_has_a_digest():
    inputs = np.arange(12, dtype=np.float32).reshape(6, 2)
    parts = [[0, 1], [2]], [[3], [4]]
    numbers, others = (data.federate(inputs, labels, *parts) for labels in (np.arange(6) / 7, np.arange(6) / 9))
    assert digest(numbers) != digest(others) and pixel_digest(numbers) is None
    assert num_hashed_bytes(numbers) == inputs.nbytes + numbers.labels.nbytes + 4 * 5


def test_the_command_line_prints_it():
    fed = data.load("rotated-digits", num_clients=8, rows_per_client=10, seed=3)
    items = ["--set", "num_clients=8", "--set", "rows_per_client=10", "--seed", "3", "--digest"]
    assert CliRunner().invoke(app, ["data", "rotated-digits", *items]).stdout.split() == [
        digest(fed),
        pixel_digest(fed),
    ]
    (row,) = json.loads(CliRunner().invoke(app, ["data", "rotated-digits", *items, "--json"]).stdout)
    assert (row["digest"], row["pixel_digest"]) == (digest(fed), pixel_digest(fed)) and row["federation"]
    refused = CliRunner().invoke(app, ["data", "digits", "--digest"])
    assert refused.exit_code == 2 and re.search(mentions("--digest", "digits"), refused.stderr)


def test_a_run_keeps_the_digest_and_goes_on_with_no_other_federation(tmp_path, monkeypatch):
    fed, other = (linear_federation(seed=seed) for seed in (0, 1))
    method = jaxfl.methods.fedavg(softmax_task(), optax.sgd(0.1))

    def run(name, data, rounds, **options):
        return jaxfl.run(method, data, rounds=rounds, cohort=2, checkpoint_dir=tmp_path / name, **options).summary

    assert run("a", fed, 1)["digest"] == digest(fed)
    with pytest.raises(ValueError, match=mentions("digest", digest(fed), digest(other))):
        run("a", other, 2, resume=True)
    with monkeypatch.context() as patch:
        patch.setattr(identity, "MOST_HASHED", 0)  # as of a large federation, or of an older version
        assert "digest" not in run("b", fed, 1)
    assert run("b", fed, 2, resume=True)["rounds"] == 2
