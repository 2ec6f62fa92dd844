"""The merge against a plain union-find, newcomers, overflow, and clients that were never sampled."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfl import methods
from jaxfl.clustering import components, distances
from jaxfl.cohort import Cohort
from jaxfl.data.clients import Batch
from jaxfl.methods.stocfl import merging
from jaxfl.tasks import Task, masked_mean
from tests import problems
from tests.problems import compiled
from tests.reference import cosine

pytestmark = pytest.mark.rotating("function", weeks=3)

SLOTS, CLIENTS = 6, 9


@partial(jax.jit, static_argnames="slots")
def merge(psi, cluster, ids, newcomer, threshold, slots):
    """Single linkage of all observed clusters, represented by all their members."""

    def group(nodes, noise, alive):
        return components.threshold_components(distances.cosine(nodes), threshold, alive)

    size = merging.cluster_sizes(cluster, slots)
    nodes = jnp.concatenate([merging.sums_by_cluster(psi, cluster, slots), psi[ids]])
    return merging.merge(nodes, jnp.zeros(len(nodes)), size, size > 0, cluster, ids, newcomer, group)


def plainly(psi, cluster, ids, newcomer, threshold, slots):
    """The same merge by union-find over dictionaries; None on overflow."""
    parts = {k: [i for i in range(len(cluster)) if cluster[i] == k] for k in range(slots)}
    parts = {("slot", k): members for k, members in parts.items() if members}
    parts |= {("new", i): [i] for i, new in zip(ids, newcomer, strict=True) if new}
    parent = {name: name for name in parts}

    def root(name):
        return name if parent[name] == name else root(parent[name])

    sums = {name: psi[members].sum(0) for name, members in parts.items()}
    for a in parts:
        for b in parts:
            if cosine(sums[a], sums[b]) >= threshold:
                parent[root(a)] = root(b)
    groups = {}
    for name in parts:
        groups.setdefault(root(name), []).append(name)
    old = {}  # the slot that every group with one keeps: of its largest part, the lower of equals
    for names in groups.values():
        slots_of = [name for name in names if name[0] == "slot"]
        if slots_of:
            old[max(slots_of, key=lambda name: (len(parts[name]), -name[1]))[1]] = names
    found, taken = np.full(len(cluster), -1), set()
    for slot, names in old.items():
        taken.add(slot)
        found[sum((parts[n] for n in names), [])] = slot
    free = [k for k in range(slots) if k not in taken]
    fresh = [names for names in groups.values() if all(n[0] == "new" for n in names)]
    if len(fresh) > len(free):
        return None
    opened = free[: len(fresh)]
    for k, names in zip(opened, sorted(fresh, key=lambda names: min(n[1] for n in names)), strict=True):
        found[sum((parts[n] for n in names), [])] = k
    return found.tolist(), sorted(opened), len(taken) + len(opened)


@given(
    seed=st.integers(0, 10**6),
    threshold=st.sampled_from([-1.0, 0.3, 0.7, 0.95, 1.1]),
    dimension=st.integers(2, 4),
    known=st.integers(0, 6),
)
def test_merge_is_union_find(seed, threshold, dimension, known):
    rng = np.random.default_rng(seed)
    psi = rng.normal(size=(CLIENTS, dimension)).astype(np.float32)
    psi[rng.integers(CLIENTS)] = 0  # a client whose gradient vanished: its cosine with everybody is 0
    cluster = np.full(CLIENTS, -1, np.int32)
    cluster[:known] = rng.integers(0, SLOTS, known)
    ids = np.sort(rng.choice(CLIENTS, 5, replace=False))
    newcomer = (cluster[ids] < 0) & (rng.random(5) < 0.8)
    wanted = plainly(psi.astype(float), cluster, ids.tolist(), newcomer.tolist(), threshold, SLOTS)
    got = merge(jnp.asarray(psi), jnp.asarray(cluster), jnp.asarray(ids), jnp.asarray(newcomer), threshold, slots=SLOTS)
    if wanted is None:
        assert bool(got.doublings)
        return
    found, opened, count = wanted
    assert not bool(got.doublings)
    assert got.cluster.tolist() == found
    assert np.flatnonzero(got.opened).tolist() == opened
    assert int(got.num_clusters) == count


EAST, NORTH, NEAR_EAST = [1.0, 0.0], [0.0, 1.0], [0.9, 0.1]


@pytest.mark.parametrize(
    ("psi", "cluster", "ids", "found", "opened"),
    [
        pytest.param([EAST, EAST, EAST], [1, 2, 2], [], [2, 2, 2], [], id="the larger cluster keeps its slot"),
        pytest.param([EAST, EAST, NORTH], [2, 1, 0], [], [1, 1, 0], [], id="of equals the lower slot"),
        pytest.param([NEAR_EAST, NORTH, EAST], [2, 0, -1], [2], [2, 0, 2], [], id="a newcomer joins"),
        pytest.param([NORTH, EAST, NEAR_EAST], [1, -1, -1], [1, 2], [1, 0, 0], [0], id="newcomers alone open one slot"),
        pytest.param([EAST, EAST, NORTH], [0, 1, -1], [2], [0, 0, 1], [1], id="a slot freed by a merge is used again"),
    ],
)
def test_slots(psi, cluster, ids, found, opened):
    ids = jnp.asarray(ids, jnp.int32)
    merged = merge(jnp.array(psi), jnp.array(cluster, jnp.int32), ids, jnp.ones(len(ids), bool), 0.8, slots=3)
    assert merged.cluster.tolist() == found
    assert np.flatnonzero(merged.opened).tolist() == opened


def test_overflow_is_reported_and_not_below():
    psi = jnp.eye(3)
    nobody, ids, new = jnp.full(3, -1, jnp.int32), jnp.arange(3, dtype=jnp.int32), jnp.ones(3, bool)
    assert [bool(merge(psi, nobody, ids, new, 0.5, slots=slots).doublings) for slots in (2, 3)] == [True, False]


def linear_loss_task():
    """The mean over rows of x . w: its gradient is the mean row, so that Psi is whatever a test wants."""

    def loss(model, batch: Batch, key=None):
        return masked_mean(batch.x @ model["w"], batch.mask)

    return Task(lambda key: {"w": jnp.zeros(3)}, loss, lambda model, batch: batch.x[:, :2] * model["w"][None, :2])


METHOD = compiled(methods.stocfl(linear_loss_task(), optax.sgd(0.1), slots=4))


def federation(rows):
    """One row of this value a client."""
    data = problems.linear_federation(sizes=(1,) * len(rows), groups=(0,) * len(rows))
    inputs = np.zeros(data.inputs.shape, np.float32)
    inputs[data.train.rows] = rows
    return replace(data, inputs=inputs)


def test_unseen_clients_join_the_closest_cluster(key):
    data = federation([[1, 0, 0], [0, 1, 0], [1, 0.2, 0], [0.1, 1, 0], [0.3, 0.4, 0.1]])
    state, _ = METHOD.round(key, METHOD.init(key, data), data, Cohort.of([0, 1]))
    assigned = METHOD.assign(key, state, data, Cohort.of(range(5)))
    assert state.cluster.tolist() == [0, 1, -1, -1, -1]
    assert assigned.cluster.tolist() == [0, 1, 0, 1, 1]


def test_an_orthogonal_newcomer_opens_a_cluster_and_an_equal_one_joins(key):
    data = federation([[1, 0, 0], [0, 1, 0], [2, 0, 0]])
    state = METHOD.init(key, data)
    for cohort, wanted in (([0], [0, -1, -1]), ([1], [0, 1, -1]), ([2], [0, 1, 0])):
        state, info = METHOD.round(key, state, data, Cohort.of(cohort))
        assert state.cluster.tolist() == wanted
    assert int(info.num_clusters) == 2


def test_an_infinite_gradient_is_similar_to_nobody(key):
    data = federation([[1, 0, 0], [np.inf, 0, 0], [1, 0.1, 0], [-1, 0, 0]])
    state, info = METHOD.round(key, METHOD.init(key, data), data, Cohort.of([0, 1, 2]))
    assert state.cluster[0] == state.cluster[2] != state.cluster[1]
    assert np.isfinite(state.memory.psi).all() and np.isfinite(state.models["w"]).all()
    assert int(info.diverged) == 1
    unlike = METHOD.assign(key, state, data, Cohort.of(range(4))).cluster[3]
    assert unlike == state.cluster[0], "not that of the infinite, to which nobody has an angle"
