"""The laws that a method keeps, one function each."""

import inspect
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import engine, tree
from jaxfl.cohort import Cohort, Plan
from jaxfl.data.clients import FederatedData, Split
from jaxfl.methods.base import Info, Row
from jaxfl.simulation import checkpoint
from jaxfl.simulation.run import run
from jaxfl.testing.compare import assert_close, assert_equal, assert_finite, assert_same_partition, but_cluster, leaves
from jaxfl.testing.small import CLIENTS, COHORT, EMPTY, SICK, case, case_anew, cohort_of, everyone, federation

CHECKS: dict[str, Callable[[Row], str | None]] = {}
"""Every law by name: `check(row)` raises AssertionError, or returns None, or why it says nothing here."""


def _law(check: Callable[[Row], str | None]) -> Callable[[Row], str | None]:
    """Registers `check_some_law` as "some law"."""
    CHECKS[check.__name__.removeprefix("check_").replace("_", " ")] = check
    return check


@_law
def check_argument_names(row: Row) -> None:
    """The functions of a method are called by these names, in this order; a factory's options by keyword only."""
    wanted = {
        "init": ["key", "data"],
        "round": ["key", "state", "data", "cohort"],
        "client_params": ["state", "ids"],
        "assign": ["key", "state", "data", "cohort"],
    }
    method = case(row).method
    for name, arguments in wanted.items():
        got = list(inspect.signature(getattr(method, name)).parameters)
        assert got == arguments, f"{name} must take the arguments {arguments}, takes {got}"
    positional = [name for name in inspect.signature(row.factory).parameters if name not in row.options]
    assert positional == ["task", "optimizer"], f"the factory must take task and optimizer by place, takes {positional}"
    unknown = sorted(set(row.small) - set(row.options))
    assert not unknown, f"row.small names options that the factory does not have: {unknown}"


@_law
def check_info(row: Row) -> None:
    """A round returns an `Info` of the declared shapes; the state counts rounds and knows every client's cluster."""
    one, data = case(row), federation()
    state, info = one.run(data, cohort_of())
    assert isinstance(info, Info), f"round must return (state, Info), returned {type(info).__name__} second"
    scalars = ("num_clusters", "diverged", "bytes_up", "bytes_down", "overflow")
    shapes = {"loss": (CLIENTS,), "cluster": (CLIENTS,), **dict.fromkeys(scalars, ())}
    for name, shape in shapes.items():
        got = getattr(info, name).shape
        assert got == shape, f"info.{name} must be {list(shape)}, is {list(got)}"
    assert info.cluster.dtype == jnp.int32, f"info.cluster must be int32, is {info.cluster.dtype}"
    assert int(state.round) == 2, f"state.round must count rounds, is {state.round} after 2"
    assert state.cluster.dtype == jnp.int32 and state.cluster.shape == (data.num_clients,), (
        f"state.cluster must be int32 [{data.num_clients}], is {state.cluster.dtype} {list(state.cluster.shape)}"
    )
    assert bool(jnp.isfinite(info.loss).all()), f"info.loss must be finite on finite data, is {info.loss}"
    assert not bool(info.overflow), "row.small must give slots for eight clusters: info.overflow was raised"


@_law
def check_stable_state(row: Row) -> None:
    """Shapes and dtypes of the state never change: a round can be scanned over, and compiles once."""
    method, data, cohort, key = case(row).method, federation(), cohort_of(), jax.random.key(0)
    before = jax.eval_shape(method.init, key, data)
    after, _ = jax.eval_shape(method.round, key, before, data, cohort)
    same = jax.tree.structure(before) == jax.tree.structure(after) and tree.shapes(before) == tree.shapes(after)
    assert same, f"a round must keep the state's structure, shapes and dtypes: {before} became {after}"
    traces = []

    @jax.jit
    def scan(state: Any, data: FederatedData) -> Any:
        def step(state: Any, _: None) -> tuple[Any, Info]:
            traces.append("round")
            return method.round(key, state, data, cohort)

        return jax.lax.scan(step, state, length=2)

    once, infos = jax.eval_shape(scan, before, data)  # traced, as a call would trace it, and never compiled
    jax.eval_shape(scan, once, data)
    assert infos.loss.shape[0] == 2, f"a scanned round must report like a single one, reports {infos.loss.shape}"
    assert len(traces) == 1, f"the second call must not trace the round again (weak types?), traced {len(traces)} times"


@_law
def check_chunks(row: Row) -> None:
    """One client at a time, three at a time and all at once choose the same and agree to rounding."""
    one, data = case(row), federation()
    alone = one.run(data, cohort_of())[0]
    for chunk in (3, None):
        cohort = engine.by_size(data, Cohort.of(COHORT, Plan(chunk=chunk)))
        assert_close(one.run(data, cohort)[0], alone, f"chunk={chunk} must give what chunk=1 gives")


@_law
def check_devices(row: Row) -> str | None:
    """Up to four devices give what one gives."""
    devices = jax.devices()[:4]
    if len(devices) < 2:
        return "not run: it needs two devices (XLA_FLAGS=--xla_force_host_platform_device_count=4)"
    one, data = case(row), federation()
    plan = Plan(chunk=1, mesh=jax.sharding.Mesh(np.array(devices), ("clients",)))
    everywhere = jax.sharding.NamedSharding(plan.mesh, jax.sharding.PartitionSpec())
    start = jax.device_put(one.init(jax.random.key(0), data), everywhere)  # where a round leaves it: compiled once
    spread = one.run(data, engine.by_size(data, Cohort.of(COHORT, plan)), start=start)[0]
    alone = one.run(data, cohort_of())[0]
    assert_close(spread, alone, f"{len(devices)} devices must give what one gives")
    return None


@_law
def check_padding_clients(row: Row) -> None:
    """Entries of the cohort under a False mask change nothing, be it a client that is in it or one never seen."""
    one, data = case(row), federation()
    state, info = one.run(data, Cohort.of(COHORT, Plan(chunk=None)))  # no padding; compiled for `chunks` already
    member = Cohort(jnp.array([0, *COHORT], jnp.int32), jnp.array([False] + [True] * len(COHORT)))
    for padded, real in ((cohort_of(), slice(len(COHORT))), (member, slice(1, None))):
        other, seen = one.run(data, padded)
        assert_close(other, state, "padding clients must change nothing in the state")
        for name in ("num_clusters", "diverged", "bytes_up", "bytes_down", "overflow"):
            assert_close(getattr(seen, name), getattr(info, name), f"padding clients must not count in info.{name}")
        assert_close(seen.loss[real], info.loss, "padding clients must not change the losses of the others")


@_law
def check_nobody(row: Row) -> None:
    """A round in which nobody takes part changes nothing but its number: no momentum moves, no model is forgotten."""
    one, data = case(row), federation()
    before, _ = one.run(data, cohort_of())
    nobody = cohort_of(())
    after, _ = one.run(data, nobody, rounds=1, start=before)
    assert int(after.round) == int(before.round) + 1, "a round in which nobody takes part must be counted"
    # at any depth: a method may hold another one's state
    kept, left = ({p: x for p, x in leaves(s).items() if not p.endswith(".round")} for s in (after, before))
    assert_equal(kept, left, "a round in which nobody takes part must change nothing but its number")


@_law
def check_padding_rows(row: Row) -> None:
    """Wider batches, filled with masked rows, change nothing: the same batches are drawn."""
    one, data = case(row), federation()
    wide = replace(data, **{name: _wider(getattr(data, name)) for name in ("train", "test")})
    cohort = cohort_of()
    assert_close(one.run(wide, cohort)[0], one.run(data, cohort)[0], "padding rows must change nothing")


@_law
def check_cohort_order(row: Row) -> None:
    """The order of the cohort changes nothing."""
    one, data = case(row), federation()
    order = np.array([4, 2, 6, 0, 5, 1, 3])
    state, info = one.run(data, cohort_of())
    other, seen = one.run(data, cohort_of(np.array(COHORT)[order].tolist()))
    seen = seen._replace(loss=seen.loss[: len(COHORT)], cluster=seen.cluster[: len(COHORT)])
    assert_close(other, state, "the order of the cohort must change nothing in the state")
    assert_close(seen.loss, info.loss[order], "info.loss must follow the cohort's order")
    assert_close(seen.cluster, info.cluster[order], "info.cluster must follow the cohort's order")


@_law
def check_permuted_clients(row: Row) -> None:
    """Clients under other ids are served as before; with full batches, since random numbers belong to an id."""
    one, data = case(row, batch_size=None), federation()
    permutation = np.array([3, 0, 6, 1, 7, 5, 2, 4])  # new id -> old id
    moved = data.subset(permutation)
    state, _ = one.run(data, cohort_of())
    other, _ = one.run(moved, cohort_of(np.argsort(permutation)[list(COHORT)].tolist()))
    ids = np.arange(data.num_clients)
    law = "permuting the clients must permute what they are served"
    assert_close(one.served(other, ids), one.served(state, permutation), law)
    assert_same_partition(other.cluster, state.cluster[permutation], law)


@_law
def check_seed(row: Row) -> None:
    """The same seed gives the same bits, in a method built and compiled again; another seed gives another result."""
    one, data, cohort = case(row), federation(), cohort_of()
    state, info = one.run(data, cohort)
    again = case_anew(row).run(data, cohort)
    assert_equal(again, (state, info), "the same seed must give the same bits")
    other, _ = one.run(data, cohort, seed=1)
    same = jax.tree.map(lambda a, b: bool((a == b).all()), one.served(other, COHORT), one.served(state, COHORT))
    assert not all(jax.tree.leaves(same)), "another seed must give other models"


@_law
def check_checkpoint(row: Row) -> None:
    """Save, load and continue is continue, bit for bit."""
    one, data, cohort = case(row), federation(), cohort_of()
    state, _ = one.run(data, cohort, rounds=1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / checkpoint.NAME
        checkpoint.save(path, state, {})
        loaded = checkpoint.restore(path, jax.eval_shape(one.method.init, jax.random.key(0), data))
    straight = one.run(data, cohort, rounds=1, start=state)
    assert_equal(
        one.run(data, cohort, rounds=1, start=loaded), straight, "a restored run must go on as if never stopped"
    )


@_law
def check_sick_client(row: Row) -> None:
    """A client whose numbers are NaN is counted, and the others are served as if it had no rows."""
    one, data, cohort = case(row), federation(), cohort_of()
    start, size = data.train.start[SICK], data.train.size.copy()
    inputs = np.array(data.inputs)
    inputs[data.train.rows[start : start + size[SICK]]] = np.nan
    sick, info = one.run(replace(data, inputs=inputs), cohort)
    size[SICK] = 0
    absent, _ = one.run(replace(data, train=replace(data.train, size=size)), cohort)
    assert int(info.diverged) == 1, f"one client's numbers are NaN: info.diverged must be 1, is {info.diverged}"
    others = [i for i in range(data.num_clients) if i != SICK]
    law = "a client of NaN must leave the others as they are without it"
    assert_close(one.served(sick, others), one.served(absent, others), law)
    assert_same_partition(sick.cluster[np.array(others)], absent.cluster[np.array(others)], law)
    assert_finite(one.served(sick, [SICK]), "the client of NaN itself must be served a finite model")


@_law
def check_empty_client(row: Row) -> None:
    """A client without training rows changes nothing for the others, and is served a finite model."""
    one, data = case(row), federation()
    state, info = one.run(data, cohort_of())
    everybody = cohort_of()
    without = replace(everybody, mask=everybody.mask & (everybody.ids != EMPTY))
    others = [i for i in range(data.num_clients) if i != EMPTY]
    law = "a client without rows must change nothing"
    other, _ = one.run(data, without)
    assert_close(one.served(state, others), one.served(other, others), law)
    assert_same_partition(state.cluster[np.array(others)], other.cluster[np.array(others)], law)
    loss = float(info.loss[COHORT.index(EMPTY)])
    assert loss == 0, f"the loss of a client without rows must be 0, is {loss}"
    assert int(info.diverged) == 0, "a client without rows must not be counted as diverged"
    assert_finite(one.served(state, [EMPTY]), "a client without rows must be served a finite model")


@_law
def check_served_models(row: Row) -> None:
    """Clients in one cluster are served one model, bit for bit, and a client never sampled a finite one."""
    one, data = case(row), federation()
    trained = one.run(data, cohort_of())[0]
    assigned = one.assign(jax.random.key(0), trained, data, everyone())
    for when, state in {"": trained, " after assign": assigned}.items():
        cluster = np.asarray(state.cluster)
        leader = jnp.array([np.argmax(cluster == k) for k in cluster])  # the first client of each one's cluster
        models = one.served(state, np.arange(data.num_clients))
        assert_finite(models, f"everybody must be served a finite model{when}")
        assert_equal(tree.take(models, leader), models, f"clients of equal cluster must be served equal models{when}")


@_law
def check_assign(row: Row) -> None:
    """`assign` gives everyone with rows a cluster, those never sampled too, and touches nothing but `cluster`."""
    one, data = case(row), federation()
    state = one.run(data, cohort_of())[0]
    new = one.assign(jax.random.key(0), state, data, everyone())
    lost = [i for i in np.flatnonzero(data.train.size > 0) if new.cluster[i] < 0]
    assert not lost, f"assign must give every client with rows a cluster, gave none to {lost}"
    assert_equal(but_cluster(new), but_cluster(state), "assign must change nothing but state.cluster")


@_law
def check_loss_falls(row: Row) -> None:
    """Where one model suits everybody, the training loss falls by a fifth in eight rounds."""
    one, data = case(row, batch_size=None), federation(num_groups=1, ragged=False)
    first, last = (float(one.run(data, everyone(), rounds=rounds)[1].loss.mean()) for rounds in (1, 8))
    assert last < 0.8 * first, f"the training loss must fall on a problem that one model solves, went {first} -> {last}"


@_law
def check_planted_clusters(row: Row) -> str | None:
    """The two planted groups are found exactly, where the row says so."""
    if not row.finds_clusters:
        return "not run: the row does not say that the method finds clusters"
    one, data = case(row, batch_size=None), federation(ragged=False, rows=40)
    state, info = one.run(data, everyone(), rounds=8)
    assert_same_partition(state.cluster, data.group, "the two planted groups must be found")
    assert int(info.num_clusters) == 2, f"two groups are planted: info.num_clusters must be 2, is {info.num_clusters}"
    return None


@_law
def check_cuts(row: Row) -> None:
    """How often a run is evaluated changes nothing, and clients without rows are counted."""
    method, data = case(row).method, federation()
    options = {"rounds": 4, "cohort": 0.5, "seed": 1, "plan": Plan()}
    often, seldom = (run(method, data, eval_every=every, **options) for every in (1, 3))
    assert_equal(often.state, seldom.state, "the frequency of evaluation must change nothing")
    assert often.history[-1]["micro_accuracy"] == seldom.history[-1]["micro_accuracy"], "nor the last evaluation"
    assert often.summary["empty_clients"] == 1, f"one client has no rows, counted {often.summary['empty_clients']}"


@_law
def check_growth(row: Row) -> str | None:
    """More slots change nothing but the shapes."""
    one, data, cohort = case(row), federation(), cohort_of()
    if one.method.grow is None:
        return "not run: the method's slots always suffice"
    state, _ = one.run(data, cohort, rounds=1)
    grown = one.method.grow(state)
    assert tree.num_bytes(grown) > tree.num_bytes(state), "grow must add slots"
    before, after = (one.run(data, cohort, rounds=1, start=start)[0] for start in (state, grown))
    ids = np.arange(data.num_clients)
    assert_close(one.served(after, ids), one.served(before, ids), "more slots must change nothing")
    assert_close(after.cluster, before.cluster, "more slots must change no cluster")
    return None


def _wider(split: Split) -> Split:
    """Returns the split padded by five more rows."""
    return replace(split, max_size=split.max_size + 5)
