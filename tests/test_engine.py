"""One pass over the clients: every plan gives the plain loop's sums and records, in the cohort's order."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import jaxfl
from jaxfl import engine
from jaxfl.cohort import Cohort, Plan
from jaxfl.data.synthetic import clustered_linear, prototypes
from jaxfl.server import aggregate, coordinate_sums
from jaxfl.simulation.evaluation import evaluate
from jaxfl.simulation.program import compile_rounds, shapes_of

IDS = [5, 0, 3, 9, 2, 7, 8]


def mesh(count):
    return jax.sharding.Mesh(np.array(jax.devices()[:count]), ("clients",))


PLANS = [
    Plan(1),
    Plan(3),
    Plan(100),
    Plan(None),
    Plan(1, mesh(4)),
    Plan(2, mesh(2)),
    Plan(None, mesh(4)),
]


def client(shared, client, row):
    value = {"w": shared * client.astype(jnp.float32) + row, "b": row[:1]}
    return aggregate.contribute(value, client.astype(jnp.float32), client % 3, 3), (client, row.sum())


@pytest.mark.parametrize("plan", PLANS, ids=[f"{p.chunk}-{p.mesh.size if p.mesh else 1}" for p in PLANS])
def test_every_plan_is_the_plain_loop(plan):
    rows = np.random.default_rng(0).normal(size=(len(IDS), 2)).astype(np.float32)
    mask = np.array([True] * 5 + [False, True])
    cohort = Cohort(jnp.array(IDS, jnp.int32), jnp.array(mask), plan)
    run = jax.jit(lambda shared, cohort, rows: engine.over_clients(client, shared, cohort, rows))
    sums, (ids, totals) = run(jnp.float32(2), cohort, rows)
    wanted, weight = np.zeros((3, 2)), np.zeros(3)
    for i, real, row in zip(IDS, mask, rows, strict=True):
        if real:
            wanted[i % 3] += i * (2.0 * i + row)
            weight[i % 3] += i
    np.testing.assert_allclose(sums.values["w"], wanted, rtol=1e-5)  # float32 sums of seven clients
    np.testing.assert_array_equal(sums.weight, weight)
    assert ids.tolist() == IDS
    np.testing.assert_allclose(totals, rows.sum(1), rtol=1e-5)


@pytest.mark.parametrize("plan", PLANS, ids=[f"{p.chunk}-{p.mesh.size if p.mesh else 1}" for p in PLANS])
def test_every_client_changes_its_own_row(plan):
    """Who is named a second time is padding."""
    own = np.random.default_rng(0).normal(size=(10, 2)).astype(np.float32)
    ids, mask = [*IDS[:-1], IDS[0], IDS[-1]], [True, True, False, True, True, True, False, True]
    cohort = Cohort(jnp.array(ids, jnp.int32), jnp.array(mask), plan)

    def one(shared, client, row, more):
        return aggregate.contribute(row, jnp.float32(1)), row.sum(), row * shared + more

    more = np.arange(len(ids), dtype=np.float32)
    run = jax.jit(lambda shared, cohort, own, more: engine.over_owners(one, shared, cohort, own, more))
    sums, kept, after = run(jnp.float32(2), cohort, own, more)
    wanted = own.copy()
    for i, real, extra in zip(ids, mask, more, strict=True):
        if real:
            wanted[i] = 2 * own[i] + extra
    np.testing.assert_allclose(after, wanted, rtol=1e-6)  # a product and a sum, which may be rounded once
    np.testing.assert_allclose(sums.values[0], own[np.array(ids)[mask]].sum(0), rtol=1e-5)
    np.testing.assert_allclose(np.array(kept)[mask], own[np.array(ids)[mask]].sum(1), rtol=1e-5)


@pytest.mark.parametrize("plan", [Plan(1), Plan(4), Plan(1, mesh(2)), Plan(4, mesh(2))], ids=str)
def test_rows_are_changed_in_place(plan):
    """Over several rounds, as a run makes them: beside the rows of all there are those that are written at once."""
    count, wide = 256, 1_000_000
    cohort = Cohort.of(range(count), plan)

    def rounds(own, times):
        def round(_, own):
            return engine.over_owners(lambda shared, i, row: ((), (), jnp.sin(row) + shared), 1.0, cohort, own)[2]

        return jax.lax.fori_loop(0, times, round, own)

    shape = jax.ShapeDtypeStruct((count, wide), jnp.float32, sharding=plan.place if plan.mesh else None)
    program = jax.jit(rounds, donate_argnums=0).lower(shape, 3).compile()
    at_once = max(plan.chunk, coordinate_sums.PRODUCT_CLIENTS) * (2 if plan.mesh is None else 2 + plan.mesh.size)
    assert program.memory_analysis().temp_size_in_bytes < (at_once + 1) * 4 * wide


def test_a_method_may_send_nothing():
    sums, kept = engine.over_clients(lambda shared, i: ((), i + shared), jnp.int32(1), Cohort.of(IDS, Plan(2)))
    assert sums == () and kept.tolist() == [i + 1 for i in IDS]


def test_at_chunk_one_a_branch_not_taken_costs_nothing():
    """No vmap: `cond` stays a branch, and a callback in the other branch is never called."""
    called = []

    def one(shared, i):
        def count():
            jax.debug.callback(lambda i: called.append(int(i)), i)
            return i

        return (), jax.lax.cond(i > 4, count, lambda: jnp.int32(0))

    jax.block_until_ready(engine.over_clients(one, (), Cohort.of(IDS, Plan(1))))
    jax.effects_barrier()
    assert sorted(called) == [5, 7, 8, 9]


@pytest.mark.parametrize("plan", [Plan(2), Plan(2, mesh(2)), Plan(3, mesh(4))])
def test_by_size_is_a_permutation_with_the_padding_last(plan):
    data = clustered_linear(12, ragged=True)
    cohort = Cohort(jnp.arange(8, dtype=jnp.int32), jnp.arange(8) != 3, plan)
    ordered = engine.by_size(data, cohort)
    pairs = sorted(zip(ordered.ids.tolist(), ordered.mask.tolist(), strict=True))
    assert pairs == [(i, i != 3) for i in range(8)]
    sizes = [
        data.train.size[i] if real else -1 for i, real in zip(ordered.ids.tolist(), ordered.mask.tolist(), strict=True)
    ]
    share = 8 // (plan.mesh.size if plan.mesh else 1)
    for start in range(0, 8, share):
        assert sizes[start : start + share] == sorted(sizes[start : start + share], reverse=True)


@pytest.mark.parametrize("plan", [Plan(1, mesh(4)), Plan(2, mesh(2)), Plan(None, mesh(4))])
def test_cohorts_that_do_not_divide_are_dealt_evenly(plan):
    """Each device gets as many clients but for one, and like work; what is added is masked."""
    data = clustered_linear(12, ragged=True)
    ordered = engine.by_size(data, Cohort.of(range(7), plan))
    assert sorted(ordered.ids[ordered.mask].tolist()) == list(range(7))
    blocks = ordered.mask.reshape(plan.mesh.size, -1).sum(1)
    assert blocks.max() - blocks.min() == 1
    first = ordered.ids.reshape(plan.mesh.size, -1)[:, 0]
    largest = sorted(data.train.size[:7])[-plan.mesh.size :]
    assert sorted(data.train.size[np.asarray(first)]) == largest, "one of the largest clients for each device"


def test_by_size_leaves_one_at_a_time_alone():
    data = clustered_linear(12, ragged=True)
    assert engine.by_size(data, Cohort.of(IDS)).ids.tolist() == IDS


def test_data_in_host_memory_needs_no_jit():
    data = replace(clustered_linear(12), name="host")

    def one(data, i):
        return (), data.batch(data.train, i, jnp.arange(2)).y

    _, labels = engine.over_clients(one, data, Cohort.of([1, 2]))
    own = [data.labels[data.train.rows[data.train.start[i] :][:2]].tolist() for i in (1, 2)]
    assert labels.tolist() == own


def library_takes(program):
    """Returns the operations that XLA's library for the CPU computes in a compiled program."""
    lines = [line for line in program.as_text().splitlines() if "__ynn_fusion" in line]
    return {kind for kind in ("dot_general", "conv_general_dilated") for line in lines if kind in line}


@pytest.mark.slow
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the library is the CPU's")
def test_the_library_is_given_products_and_no_convolutions():
    """They take one core there, where XLA's own take all."""

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.Conv(32, (5, 5))(nn.relu(nn.Conv(16, (1, 1))(x))))
            return nn.Dense(10)(x.reshape(len(x), -1))

    def convolution(x, kernel):
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return x @ jnp.ones((32, 32))

    arrays = jnp.ones((32, 16, 16, 8)), jnp.ones((5, 5, 8, 32))
    assert library_takes(jax.jit(convolution).lower(*arrays).compile()) == {"dot_general", "conv_general_dilated"}
    assert library_takes(engine.jit(convolution).lower(*arrays).compile()) == {"dot_general"}

    data = prototypes(4, 64, (16, 16, 1), 10)
    data = replace(data, test=data.train)
    method = jaxfl.methods.fedavg(jaxfl.classification(Network(), data), optax.sgd(0.1), batch_size=32)
    key = jax.random.key(0)
    state = method.init(key, data)
    rounds = compile_rounds(method, key, state, data, 4, Plan(1), limit=1)
    test = evaluate.tester(method, Plan(1), shapes_of(state, data)).lower(state, data, jnp.arange(4), jnp.ones(4, bool))
    for program in (rounds, test.compile()):
        assert " convolution(" in program.as_text() and "conv_general_dilated" not in library_takes(program)
