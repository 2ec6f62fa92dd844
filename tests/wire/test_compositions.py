"""Each part of a wire under each condition of clients, data and runs: the table of the page on what a server learns."""

import functools
import re
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import methods, sampling, tree
from jaxfl.testing.compare import assert_close, assert_equal
from jaxfl.wire import chain, clip, median, qsgd, top_k, wired
from tests.messages import mentions

PAGE = Path(__file__).parents[2] / "docs" / "pages" / "howto" / "server-learns.md"
WIRES = {
    "compress": {"channel": chain(top_k(0.2), qsgd(8))},
    "error_feedback": {"channel": top_k(0.2), "error_feedback": True},
    "clip": {"channel": clip(0.02)},
    "aggregator": {"aggregator": median()},
    "min_sum": {"min_sum": 3},  # of four clients in two random groups
    "privacy": {"privacy": jaxfl.Privacy(clip=0.5, noise=0.5)},  # cohorts are then drawn by Poisson sampling
}
DATA = {  # options of the federation
    "stragglers": {"stragglers": 0.5},
    "drift": {"drift": "swap", "drift_round": 2},
    "arrivals": {"arrive": 0.25, "drift_round": 2},
    "held out": {"held_out": 0.25},
}
SAMPLERS = {"dropouts": lambda: sampling.dropouts(0.5), "availability": lambda: sampling.availability("random")}
ADAPTERS = "adapters"
SAME = ("host rows", "devices", "seeds", "resume")  # properties of a run that change no number
CONDITIONS = [*SAMPLERS, *DATA, ADAPTERS, *SAME]
REFUSED = {("privacy", "arrivals"): ("noise", "arrive")}


@functools.cache
def federation(condition):
    return jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20, **DATA.get(condition, {}))


@functools.cache
def method_of(condition):
    """Returns IFCA in its random groups, or for clients that arrive StoCFL, which has a rule for them."""
    data, network = federation(condition), jaxfl.models.Logistic(num_classes=10)
    if condition == ADAPTERS:
        module = jaxfl.models.MLP(hidden=(8,), num_classes=10)
        base = module.init(jax.random.key(0), np.zeros((1, 8, 8), np.float32))["params"]
        network = jaxfl.models.lora(module, base, rank=2)
    task, optimizer = jaxfl.classification(network, data), optax.sgd(0.1)
    if condition == "arrivals":
        return methods.stocfl(task, optimizer, slots=8, local_epochs=2)
    return methods.ifca(task, optimizer, num_clusters=2, start="groups", local_epochs=2)


def run(method, condition, wire=None, **given):
    usual = sampling.poisson() if wire == "privacy" else sampling.uniform
    sampler = SAMPLERS[condition]() if condition in SAMPLERS else usual
    return jaxfl.run(method, federation(condition), **{"rounds": 3, "cohort": 4, "sampler": sampler, **given})


@functools.cache
def plain(condition, wire):
    """Returns the run without the wire, which has other cohorts for one with noise."""
    return run(method_of(condition), condition, wire)


@functools.cache
def alone(wire):
    return run(wired(method_of("alone"), **WIRES[wire]), "alone", wire)


def without_memory(state):
    return getattr(state, "inner", state)


@pytest.mark.slow
@pytest.mark.rotating(weeks=64)
@pytest.mark.parametrize("condition", [one for one in CONDITIONS if one not in SAME])
@pytest.mark.parametrize("wire", WIRES)
def test_a_wire_acts_under_a_condition(wire, condition):
    """The run is another one than without the wire, learns finite models, and its bytes are those of the code."""
    if (wire, condition) in REFUSED:
        with pytest.raises(ValueError, match=mentions(*REFUSED[wire, condition])):
            run(wired(methods.ifca(method_of(condition).task, optax.sgd(0.1)), **WIRES[wire]), condition)
        return
    found = run(wired(method_of(condition), **WIRES[wire]), condition, wire)
    other = plain(condition, wire if wire == "privacy" else None)
    models, without = (tree.ravel(without_memory(each.state).models) for each in (found, other))
    assert np.isfinite(models).all() and (models != without).any()
    assert 0 < found.summary["micro_accuracy"] < 1
    assert max(found.history.column("smallest_sum")) >= 1
    if wire == "privacy":
        assert (found.summary["epsilon"] is None) == (condition in SAMPLERS)
    sent, plain_sent = (each.history.column("bytes_up")[-1] for each in (found, other))
    assert sent < 0.6 * plain_sent if wire in ("compress", "error_feedback") else sent == plain_sent
    assert found.history.column("bytes_down") == other.history.column("bytes_down")


@pytest.mark.rotating(weeks=64)
@pytest.mark.parametrize("condition", SAME)
@pytest.mark.parametrize("wire", WIRES)
def test_a_wire_is_the_same_however_it_runs(wire, condition, tmp_path):
    method, wanted = wired(method_of("alone"), **WIRES[wire]), alone(wire)
    if condition == "resume":
        run(method, "alone", wire, rounds=2, checkpoint_dir=tmp_path)
        found = run(method, "alone", wire, checkpoint_dir=tmp_path, resume=True)
        assert_equal(found.state, wanted.state, "a run that goes on is the whole run")
    elif condition == "seeds":
        found, _ = run(method, "alone", wire, seeds=[0, 1])
        assert_close(found.state, wanted.state, "a seed among others is that seed alone")
    elif condition == "devices":
        found = run(method, "alone", wire, devices=2)
        assert_close(found.state, wanted.state, "two devices compute what one does")
    else:
        found = run(method, "alone", wire, resident=False)
        models = [without_memory(each.state).models for each in (found, wanted)]
        assert_equal(*models, "rows on the host are the rows on the device")
    assert found.history.column("bytes_up")[-1] == wanted.history.column("bytes_up")[-1]


def test_the_page_has_the_table_of_these_tests():
    table = re.search(r"^\| +\| (.*) \|\n\|[-|]+\n((?:\|.*\n)+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert table is not None and table[1].split(" | ") == CONDITIONS
    rows = [[cell.strip(" `") for cell in line.strip("|\n").split("|")] for line in table[2].splitlines()]
    assert [name for name, *_ in rows] == list(WIRES)
    for name, *cells in rows:
        for condition, cell in zip(CONDITIONS, cells, strict=True):
            no_epsilon = name == "privacy" and condition in SAMPLERS
            assert cell == ("refused" if (name, condition) in REFUSED else "no epsilon" if no_epsilon else "yes")
