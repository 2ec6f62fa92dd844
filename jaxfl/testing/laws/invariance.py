"""Laws of invariance: chunks, devices, padding, and the order and the numbers of the clients change nothing."""

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
    """Chunks of one and of three clients make the same choices and agree to rounding."""
    compiled = case(row)

    def threes() -> Any:
        return compiled.run(federation(), engine.by_size(federation(), Cohort.of(COHORT, Plan(chunk=3))))[0]

    _check_combined(compiled, "chunk=3 must give what chunk=1 gives", threes)


def check_devices(row: Row) -> str | None:
    """Two devices give the result of one; each has the rows of its own clients if only the cohort's rows are read."""
    if len(jax.devices()) < 2:
        return "not run: it needs two devices (XLA_FLAGS=--xla_force_host_platform_device_count=4)"
    compiled = case(row)
    _check_combined(
        compiled,
        "two devices must give what one gives",
        lambda: _run_by_size(compiled, federation(), Plan(chunk=1, mesh=_two_devices()))[1],
    )
    return None


def check_padding_rows(row: Row) -> None:
    """Batches that are padded with masked rows change nothing: the same rows are drawn."""
    compiled = case(row)
    _check_combined(
        compiled,
        "padding rows must change nothing",
        lambda: compiled.run(_with_wider_batches(federation()), small_cohort())[0],
    )


def _check_combined(compiled: Case, law: str, alone: Callable[[], Any]) -> None:
    """Checks chunks, several devices and wider batches in one run, because compilation takes long.

    Args:
        compiled: the method.
        law: the law that is checked.
        alone: returns the state with the change of this law only; called to find out whether it is the cause.
    """
    wanted, combined = compiled.run(federation(), small_cohort())[0], _run_combined(compiled)[1]
    try:
        assert_close(combined, wanted, "")
    except AssertionError:
        assert_close(alone(), wanted, law)
        assert_close(combined, wanted, "chunks, devices and padding rows together must change nothing")


def _run_combined(compiled: Case) -> tuple[Cohort, Any, Any]:
    """Returns cohort, state and last info for wider batches and chunks of three, on two devices if they exist."""
    return _run_by_size(
        compiled,
        _with_wider_batches(federation()),
        Plan(chunk=3, mesh=_two_devices() if len(jax.devices()) > 1 else None),
    )


def _two_devices() -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(jax.devices()[:2]), ("clients",))


def _run_by_size(compiled: Case, data: FederatedData, plan: Plan) -> tuple[Cohort, Any, Any]:
    """Returns cohort, state and info after two rounds; rows are sharded if the method reads only its cohort's."""
    cohort, start = engine.by_size(data, Cohort.of(COHORT, plan)), compiled.init(jax.random.key(0), data)
    if plan.mesh is not None:
        everywhere = jax.sharding.NamedSharding(plan.mesh, jax.sharding.PartitionSpec())
        start = jax.device_put(start, everywhere)  # as a round leaves it, so that it compiles once
        if compiled.method.reads == "cohort":
            windows = Windows(data, len(cohort.ids), mesh=plan.mesh, sharded=True)
            data = windows.of(np.asarray(cohort.ids), np.asarray(cohort.mask))
    return cohort, *compiled.run(data, cohort, start=start)


def _with_wider_batches(data: FederatedData) -> FederatedData:
    """Returns the federation with batches that are five rows wider in both splits."""
    return with_batch_width(data, ROWS + 5)


def check_padding_clients(row: Row) -> None:
    """Masked entries of the cohort change nothing, whether their client is in the cohort or never sampled."""
    compiled, data = case(row), federation()
    cohort, state, info = _run_combined(compiled)  # with more masked entries than the other cohorts
    losses = dict(zip(cohort.ids[cohort.mask].tolist(), info.loss[cohort.mask], strict=True))
    member = Cohort(jnp.array([0, *COHORT], jnp.int32), jnp.array([False] + [True] * len(COHORT)))
    for padded, real in ((small_cohort(), slice(len(COHORT))), (member, slice(1, None))):
        other, seen = compiled.run(data, padded)
        assert_close(other, state, "padding clients must change nothing in the state")
        for name in ("num_clusters", "diverged", "bytes_up", "bytes_down", "overflow"):
            assert_close(getattr(seen, name), getattr(info, name), f"padding clients must not count in info.{name}")
        wanted = np.array([losses[client] for client in COHORT])
        assert_close(seen.loss[real], wanted, "padding clients must not change the losses of the others")


def check_nobody(row: Row) -> None:
    """A round with an empty cohort changes only the round number: no momentum moves, and no model is lost.

    For the other clients, a round of one client without rows, or of one diverged client, has the same effect.
    """
    compiled, data = case(row), federation()
    before, _ = compiled.run(data, small_cohort())
    empty = small_cohort(())
    after, _ = compiled.run(data, empty, rounds=1, start=before)
    assert int(after.round) == int(before.round) + 1, "a round with an empty cohort must be counted"
    # at any depth: the state of a method may contain that of another method
    new, old = ({p: x for p, x in leaves(s).items() if p.rpartition("/")[2] != "round"} for s in (after, before))
    assert_equal(new, old, "a round with an empty cohort must change only the round number")
    inputs, start = np.array(data.inputs), data.train.start[SICK]
    inputs[data.train.rows[start : start + data.train.size[SICK]]] = np.nan
    sick = replace(data, inputs=inputs)
    without, _ = compiled.run(sick, empty, rounds=1, start=before)
    others = np.delete(np.arange(data.num_clients), SICK)  # the client of NaN may search for another model, and fail
    for client, name in ((EMPTY, "without rows"), (SICK, "of NaN")):
        alone, _ = compiled.run(sick, small_cohort((client,)), rounds=1, start=before)
        law = f"a round of one client {name} must change for the others only what an empty cohort changes"
        assert_equal(compiled.served(alone, others), compiled.served(without, others), law)
        assert_equal(alone.cluster[others], without.cluster[others], law)


def check_cohort_order(row: Row) -> None:
    """The order of the cohort changes nothing."""
    compiled, data = case(row), federation()
    order = np.array([4, 2, 6, 0, 5, 1, 3])
    state, info = compiled.run(data, small_cohort())
    other, seen = compiled.run(data, small_cohort(np.array(COHORT)[order].tolist()))
    seen = seen._replace(loss=seen.loss[: len(COHORT)], cluster=seen.cluster[: len(COHORT)])
    assert_close(other, state, "the order of the cohort must change nothing in the state")
    assert_close(seen.loss, info.loss[order], "info.loss must follow the cohort's order")
    assert_close(seen.cluster, info.cluster[order], "info.cluster must follow the cohort's order")


def check_permuted_clients(row: Row) -> None:
    """Clients under other ids are served as before; batches are equal here because each client has one distinct row."""
    compiled, data = case(row), _with_copied_first_rows(federation())
    permutation = np.array([3, 0, 6, 1, 7, 5, 2, 4])  # new id -> old id
    moved = with_batch_width(data.subset(permutation))
    state, _ = compiled.run(data, small_cohort())
    other, _ = compiled.run(moved, small_cohort(np.argsort(permutation)[list(COHORT)].tolist()))
    ids = np.arange(data.num_clients)
    law = "permuting the clients must permute their served models"
    assert_close(compiled.served(other, ids), compiled.served(state, permutation), law)
    assert_same_partition(other.cluster, state.cluster[permutation], law)


def _with_copied_first_rows(data: FederatedData) -> FederatedData:
    """Returns the federation with each client's rows replaced by copies of its first row, labelled with its group."""
    inputs, labels = np.array(data.inputs), np.array(data.labels)
    for group, start, size in zip(np.asarray(data.group), data.train.start, data.train.size, strict=True):
        rows = data.train.rows[start : start + size]
        inputs[rows], labels[rows] = inputs[rows[:1]], group
    return replace(data, inputs=inputs, labels=labels)
