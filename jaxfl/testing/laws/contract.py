"""Laws about a method's functions: their arguments and results, and runs that are scanned, interrupted and resumed."""

import inspect
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxfl import tree
from jaxfl.client.steps import Steps
from jaxfl.cohort import Plan
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Info, Row
from jaxfl.schema import function_options, union_members
from jaxfl.simulation.mapped import VALUE_NEEDED
from jaxfl.simulation.records import checkpoint
from jaxfl.simulation.run import run
from jaxfl.testing.compare import assert_close, assert_equal
from jaxfl.testing.small import (
    CLIENTS,
    COHORT,
    RATE,
    case,
    case_options,
    federation,
    linear_task,
    recompiled_case,
    small_cohort,
)


def check_argument_names(row: Row) -> None:
    """The arguments of a method's functions have fixed names and order; a factory's options are keyword-only."""
    wanted = {
        "init": ["key", "data"],
        "round": ["key", "state", "data", "cohort"],
        "client_params": ["state", "ids"],
        "assign": ["key", "state", "data", "cohort"],
    }
    method = case(row).method
    if method.adapt is not None:
        wanted["adapt"] = ["key", "state", "data", "client", "model"]
    for name, arguments in wanted.items():
        got = list(inspect.signature(getattr(method, name)).parameters)
        assert got == arguments, f"{name} must take the arguments {arguments}, takes {got}"
    positional = [name for name in inspect.signature(row.factory).parameters if name not in row.options]
    assert positional == ["task", "optimizer"], f"the factory must take task and optimizer by place, takes {positional}"
    unknown = sorted(set(row.small) - set(row.options))
    assert not unknown, f"row.small names options that the factory does not have: {unknown}"


def check_info(row: Row) -> None:
    """A round returns an `Info` of the declared shapes; the state counts rounds and has every client's cluster."""
    compiled, data = case(row), federation()
    state, info = compiled.run(data, small_cohort())
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


def check_stable_state(row: Row) -> None:
    """Shapes and dtypes of the state never change: a round can be scanned over, and compiles once."""
    compiled, data, cohort, key = case(row), federation(), small_cohort(), jax.random.key(0)
    before = jax.eval_shape(compiled.init, key, data)
    after, _ = jax.eval_shape(compiled.round, key, before, data, cohort)
    were, are = (
        {
            name: f"{kind}{list(shape)}"
            for name, (shape, kind) in zip(tree.names(state), tree.shapes(state), strict=True)
        }
        for state in (before, after)
    )
    names = [name for name in {**were, **are} if were.get(name) != are.get(name)]
    changed = [f"{name} {were.get(name, 'nothing')} became {are.get(name, 'nothing')}" for name in names]
    law = "a round must keep the state's structure, shapes and dtypes"
    assert not changed, f"{law}: {'; '.join(changed[:3])}"
    assert jax.tree.structure(before) == jax.tree.structure(after), f"{law}: {type(before)} became {type(after)}"
    traces = []

    @jax.jit
    def scan(state: Any, data: FederatedData) -> Any:
        def step(state: Any, _: None) -> tuple[Any, Info]:
            traces.append("round")
            return compiled.method.round(key, state, data, cohort)

        return jax.lax.scan(step, state, length=2)

    once, infos = jax.eval_shape(scan, before, data)  # traced as by a call, and never compiled
    jax.eval_shape(scan, once, data)
    assert infos.loss.shape[0] == 2, (
        f"info of a scanned round must have a leading axis of rounds, has shape {infos.loss.shape}"
    )
    assert len(traces) == 1, f"the second call must not trace the round again (weak types?), traced {len(traces)} times"


def check_traceable_numbers(row: Row) -> None:
    """Numbers that are declared `Traceable`, and the learning rate, are arguments: two values are traced once."""
    options, declared = case_options(row), function_options(row.factory)
    given = {name: options.get(name, option.default) for name, option in declared.items() if option.traceable}
    numbers = {name: float(value) for name, value in given.items() if isinstance(value, (int, float)) and value}
    traces, data, cohort, key = [], federation(), small_cohort(), jax.random.key(0)

    @jax.jit
    def one_round(rate: float, numbers: dict[str, float], data: FederatedData) -> Any:
        traces.append("round")
        method = row.factory(linear_task(), optax.sgd(rate), **{**options, **numbers})
        return method.round(key, method.init(key, data), data, cohort)

    try:
        for scale in (1.0, 0.5):
            jax.eval_shape(one_round, RATE * scale, {name: scale * value for name, value in numbers.items()}, data)
    except VALUE_NEEDED as error:
        raise AssertionError(
            f"a number among {', '.join(['the learning rate', *numbers])} decides a branch, a shape or a check: "
            "declare its option as float, or let the check pass what `jaxfl.schema.is_known` says is not known"
        ) from error
    assert len(traces) == 1, f"another value must not trace the round again, traced {len(traces)} times"


def check_local_steps(row: Row) -> str | None:
    """Full-batch steps are epochs: a round with `local_epochs=Steps(2)` is the program of a round with two epochs."""
    given = function_options(row.factory).get("local_epochs")
    if given is None or not (given.hint is Any or Steps in union_members(given.hint)):
        return "local_epochs takes no jaxfl.Steps"
    data, cohort, key = federation(), small_cohort(), jax.random.key(0)

    def program(length: int | Steps) -> str:
        options = {**case_options(row, None), "local_epochs": length}
        method = row.factory(linear_task(), optax.sgd(RATE), **options)
        state = jax.eval_shape(method.init, key, data)
        return jax.jit(method.round).lower(key, state, data, cohort).as_text()

    law = "two full-batch steps must be two epochs: hand local_epochs on to local_train as it is"
    assert program(2) == program(Steps(2)), law
    return None


def check_seed(row: Row) -> None:
    """Equal seeds give equal bits, also after the method is compiled again; another seed gives another result."""
    compiled, data, cohort = case(row), federation(), small_cohort()
    state, info = compiled.run(data, cohort)
    again = recompiled_case(row).run(data, cohort)
    assert_equal(again, (state, info), "the same seed must give the same bits")
    other, _ = compiled.run(data, cohort, seed=1)
    same = jax.tree.map(
        lambda a, b: bool((a == b).all()), compiled.served(other, COHORT), compiled.served(state, COHORT)
    )
    assert not all(jax.tree.leaves(same)), "another seed must give other models"


def check_checkpoint(row: Row) -> None:
    """A run that is saved, loaded and continued equals a run that is continued, bit for bit."""
    compiled, data, cohort = case(row), federation(), small_cohort()
    state, _ = compiled.run(data, cohort, rounds=1)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(Path(folder), state, {})
        saved = checkpoint.load(Path(folder) / checkpoint.NAME)
        loaded = saved.state(jax.eval_shape(compiled.init, jax.random.key(0), data), compiled.method.grow)
    straight = compiled.run(data, cohort, rounds=1, start=state)
    assert_equal(
        compiled.run(data, cohort, rounds=1, start=loaded),
        straight,
        "a restored run must continue as if it had not been interrupted",
    )


def check_cuts(row: Row) -> None:
    """The frequency of evaluation changes nothing, and clients without rows are counted."""
    # programs that no other check uses: full batches, and all clients in one chunk
    method, data = case(row, batch_size=None).method, federation()
    options = {"rounds": 4, "cohort": 0.5, "seed": 1, "plan": Plan(chunk=None)}
    often, seldom = (run(method, data, eval_every=every, **options) for every in (1, 3))
    assert_equal(often.state, seldom.state, "the frequency of evaluation must change nothing")
    assert often.history[-1]["micro_accuracy"] == seldom.history[-1]["micro_accuracy"], (
        "the frequency of evaluation must not change the last one"
    )
    assert often.summary["empty_clients"] == 1, f"one client has no rows, counted {often.summary['empty_clients']}"


def check_growth(row: Row) -> str | None:
    """More slots change only the shapes."""
    compiled, data, cohort = case(row), federation(), small_cohort()
    if compiled.method.grow is None:
        return "not run: the method's slots always suffice"
    state, _ = compiled.run(data, cohort, rounds=1)
    grown = compiled.method.grow(state)
    assert tree.num_bytes(grown) > tree.num_bytes(state), "grow must add slots"
    before, after = (compiled.run(data, cohort, rounds=1, start=start)[0] for start in (state, grown))
    ids = np.arange(data.num_clients)
    assert_close(compiled.served(after, ids), compiled.served(before, ids), "more slots must change nothing")
    assert_close(after.cluster, before.cluster, "more slots must change no cluster")
    return None
