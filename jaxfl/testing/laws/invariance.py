"""The laws of what must change nothing: chunks, devices, padding, and the order and the names of the clients."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import engine
from jaxfl.cohort import Cohort, Plan
from jaxfl.data.clients import FederatedData
from jaxfl.data.windows import Windows
from jaxfl.methods.base import Row
from jaxfl.testing.compare import assert_close, assert_equal, assert_same_partition, leaves
from jaxfl.testing.small import COHORT, EMPTY, ROWS, SICK, Case, case, federation, small_cohort, with_batch_width


def check_chunks(row: Row) -> None:
    """One client at a time and three at a time choose the same and agree to rounding."""
    one = case(row)

    def threes() -> Any:
        return one.run(federation(), engine.by_size(federation(), Cohort.of(COHORT, Plan(chunk=3))))[0]

    _check_combined(one, "chunk=3 must give what chunk=1 gives", threes)


def check_devices(row: Row) -> str | None:
    """Two devices give what one gives, each with its own clients' rows where only the cohort's are read."""
    if len(jax.devices()) < 2:
        return "not run: it needs two devices (XLA_FLAGS=--xla_force_host_platform_device_count=4)"
    one = case(row)
    _check_combined(
        one,
        "two devices must give what one gives",
        lambda: _run_by_size(one, federation(), Plan(chunk=1, mesh=_two_devices()))[1],
    )
    return None


def check_padding_rows(row: Row) -> None:
    """Wider batches, filled with masked rows, change nothing: the same batches are drawn."""
    one = case(row)
    _check_combined(
        one, "padding rows must change nothing", lambda: one.run(_with_wider_batches(federation()), small_cohort())[0]
    )


def _check_combined(one: Case, law: str, alone: Callable[[], Any]) -> None:
    """Checks chunks, several devices and wider batches: together, since a program takes long to compile.

    Args:
        one: the method.
        law: the one that is checked.
        alone: returns the state under the law's own change; it is called to say whether that is at fault.
    """
    wanted, found = one.run(federation(), small_cohort())[0], _run_combined(one)[1]
    try:
        assert_close(found, wanted, "")
    except AssertionError:
        assert_close(alone(), wanted, law)
        assert_close(found, wanted, "chunks, devices and padding rows together must change nothing")


def _run_combined(one: Case) -> tuple[Cohort, Any, Any]:
    """Returns cohort, state and last info of wider batches, three clients at a time, on two devices if they exist."""
    return _run_by_size(
        one, _with_wider_batches(federation()), Plan(chunk=3, mesh=_two_devices() if len(jax.devices()) > 1 else None)
    )


def _two_devices() -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(jax.devices()[:2]), ("clients",))


def _run_by_size(one: Case, data: FederatedData, plan: Plan) -> tuple[Cohort, Any, Any]:
    """Returns cohort, state and info after two rounds; a device has the rows of its own clients alone if it may."""
    cohort, start = engine.by_size(data, Cohort.of(COHORT, plan)), one.init(jax.random.key(0), data)
    if plan.mesh is not None:
        everywhere = jax.sharding.NamedSharding(plan.mesh, jax.sharding.PartitionSpec())
        start = jax.device_put(start, everywhere)  # where a round leaves it: compiled once
        if one.method.reads == "cohort":
            windows = Windows(data, len(cohort.ids), mesh=plan.mesh, sharded=True)
            data = windows.of(np.asarray(cohort.ids), np.asarray(cohort.mask))
    return cohort, *one.run(data, cohort, start=start)


def _with_wider_batches(data: FederatedData) -> FederatedData:
    """Returns the federation with batches that are five rows wider, in both splits."""
    return with_batch_width(data, ROWS + 5)


def check_padding_clients(row: Row) -> None:
    """Entries of the cohort under a False mask change nothing, be it a client that is in it or one never seen."""
    one, data = case(row), federation()
    cohort, state, info = _run_combined(one)  # with more of them than the others
    losses = dict(zip(cohort.ids[cohort.mask].tolist(), info.loss[cohort.mask], strict=True))
    member = Cohort(jnp.array([0, *COHORT], jnp.int32), jnp.array([False] + [True] * len(COHORT)))
    for padded, real in ((small_cohort(), slice(len(COHORT))), (member, slice(1, None))):
        other, seen = one.run(data, padded)
        assert_close(other, state, "padding clients must change nothing in the state")
        for name in ("num_clusters", "diverged", "bytes_up", "bytes_down", "overflow"):
            assert_close(getattr(seen, name), getattr(info, name), f"padding clients must not count in info.{name}")
        wanted = np.array([losses[client] for client in COHORT])
        assert_close(seen.loss[real], wanted, "padding clients must not change the losses of the others")


def check_nobody(row: Row) -> None:
    """A round in which nobody takes part changes nothing but its number: no momentum moves, no model is forgotten.

    To the others, a round of a client without rows alone, or of a diverged one, is no other.
    """
    one, data = case(row), federation()
    before, _ = one.run(data, small_cohort())
    nobody = small_cohort(())
    after, _ = one.run(data, nobody, rounds=1, start=before)
    assert int(after.round) == int(before.round) + 1, "a round in which nobody takes part must be counted"
    # at any depth: a method may hold another one's state
    kept, left = ({p: x for p, x in leaves(s).items() if p.rpartition("/")[2] != "round"} for s in (after, before))
    assert_equal(kept, left, "a round in which nobody takes part must change nothing but its number")
    inputs, start = np.array(data.inputs), data.train.start[SICK]
    inputs[data.train.rows[start : start + data.train.size[SICK]]] = np.nan
    sick = replace(data, inputs=inputs)
    without, _ = one.run(sick, nobody, rounds=1, start=before)
    others = np.delete(np.arange(data.num_clients), SICK)  # who is sick may look for another model, and fail
    for who, name in ((EMPTY, "without rows"), (SICK, "of NaN")):
        alone, _ = one.run(sick, small_cohort((who,)), rounds=1, start=before)
        law = f"a round of a client {name} alone must serve the others what a round of nobody does"
        assert_equal(one.served(alone, others), one.served(without, others), law)
        assert_equal(alone.cluster[others], without.cluster[others], law)


def check_cohort_order(row: Row) -> None:
    """The order of the cohort changes nothing."""
    one, data = case(row), federation()
    order = np.array([4, 2, 6, 0, 5, 1, 3])
    state, info = one.run(data, small_cohort())
    other, seen = one.run(data, small_cohort(np.array(COHORT)[order].tolist()))
    seen = seen._replace(loss=seen.loss[: len(COHORT)], cluster=seen.cluster[: len(COHORT)])
    assert_close(other, state, "the order of the cohort must change nothing in the state")
    assert_close(seen.loss, info.loss[order], "info.loss must follow the cohort's order")
    assert_close(seen.cluster, info.cluster[order], "info.cluster must follow the cohort's order")


def check_permuted_clients(row: Row) -> None:
    """Clients under other ids are served as before; their batches are alike, since what is drawn belongs to an id."""
    one, data = case(row), _with_one_row_each(federation())
    permutation = np.array([3, 0, 6, 1, 7, 5, 2, 4])  # new id -> old id
    moved = with_batch_width(data.subset(permutation))
    state, _ = one.run(data, small_cohort())
    other, _ = one.run(moved, small_cohort(np.argsort(permutation)[list(COHORT)].tolist()))
    ids = np.arange(data.num_clients)
    law = "permuting the clients must permute what they are served"
    assert_close(one.served(other, ids), one.served(state, permutation), law)
    assert_same_partition(other.cluster, state.cluster[permutation], law)


def _with_one_row_each(data: FederatedData) -> FederatedData:
    """Returns the federation with the first row of each client in place of all of its own, labelled as its group."""
    inputs, labels = np.array(data.inputs), np.array(data.labels)
    for group, start, size in zip(np.asarray(data.group), data.train.start, data.train.size, strict=True):
        own = data.train.rows[start : start + size]
        inputs[own], labels[own] = inputs[own[:1]], group
    return replace(data, inputs=inputs, labels=labels)
