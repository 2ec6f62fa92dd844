"""The work of each client in a round, read off the round's own program.

The functions of `jaxfl.client` note their rows and the operations of a row (see `jaxfl.client.operations`) in the
program of a round. `round_work` traces the round once more, and computes from that program nothing but the notes and
the bytes on the wire: all that they do not depend on is left out. So the work of every method is counted, with personal
parts, choices of a model and clusterings of everybody, in the rounds and at the clients where they happen.

Counted once are a loop whose number of turns is only known when it ends, and of a loop that hands numbers on the turns
as the first one.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.extend import core

from jaxfl.client import operations
from jaxfl.cohort import Cohort, Plan, default_mesh
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Method, Round
from jaxfl.models.fast.rewriting import inner_programs
from jaxfl.models.fast.rows_last import run_equation
from jaxfl.typing import Array, Key

CALLS = ("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2")
CALLS += ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
Jaxpr = core.Jaxpr | core.ClosedJaxpr


@struct.dataclass
class Note:
    """A note of clients' work, or several of one place in a program: arrays of one shape."""

    client: Array  # int32
    rows: Array  # float32
    flop: Array  # of a row, float32
    width: Array  # rows of a step, float32
    trains: bool = struct.field(pytree_node=False)


class RoundWork(NamedTuple):
    """The work of the clients of a round.

    Attributes:
        training: operations of local training `[N]` float32.
        passes: operations of all else `[N]` float32.
        flop: operations of a row in local training `[N]`, of the last one where there are several.
        width: rows of a step of local training `[N]` float32.
        there: whether a client works or is in the cohort `[N]` bool.
        bytes_up, bytes_down: of all of these clients `[]`, or None where they are not asked for.
        trainings: how many local trainings a client of the cohort makes.
        in_turn: whether the clients train one after another.
    """

    training: Array
    passes: Array
    flop: Array
    width: Array
    there: Array
    bytes_up: Array | None
    bytes_down: Array | None
    trainings: float
    in_turn: bool

    @property
    def operations(self) -> Array:
        """All operations of each client `[N]`."""
        return self.training + self.passes


def round_work(
    method: Method, round: Round, key: Key, state: Any, data: FederatedData, cohort: Cohort, *, traffic: bool = True
) -> RoundWork:
    """Returns the work of each client in a round, with that before the first round; traceable.

    Args:
        method: whose `init` clients work in before the first round.
        round: its round, or that with a wire.
        key: of the run.
        state: before the round.
        data: the federation in this round.
        cohort: the clients that are to take part.
        traffic: whether the bytes are read, too. Of some methods they depend on results of the round, which is then
            computed twice.

    Raises:
        ValueError: the method trains without the functions of `jaxfl.client`, so that nothing is noted.
    """
    count = data.num_clients
    alone = Cohort(jnp.where(cohort.mask, cohort.ids, count), cohort.mask, Plan(chunk=1), cohort.expected)

    def exchanged(key: Key, state: Any, data: FederatedData, cohort: Cohort) -> tuple[Array, Array]:
        info = round(key, state, data, cohort)[1]
        return info.bytes_up, info.bytes_down

    with operations.noting() as noted, default_mesh(None):
        notes, found = read_notes(exchanged, key, state, data, alone, results=traffic)
        in_turn = noted.in_turn
        first, _ = read_notes(lambda key, data: method.init(key, data), key, data, results=False)
    if not notes:
        raise ValueError(
            "clock must be none for this method, whose clients train by functions of its own, got one: their "
            "operations are not known; let them train by jaxfl.client.training.local_train."
        )
    before = (state.round == 0).astype(jnp.float32)
    everything = [*notes, *(dataclasses.replace(note, rows=before * note.rows) for note in first)]
    training, passes, flop, width = (jnp.zeros(count, jnp.float32) for _ in range(4))
    for note in everything:
        if note.trains:
            training = training.at[note.client].add(note.rows * note.flop, mode="drop")
            flop, width = (
                into.at[note.client].max(of, mode="drop") for into, of in ((flop, note.flop), (width, note.width))
            )
        else:
            passes = passes.at[note.client].add(note.rows * note.flop, mode="drop")
    there = jnp.zeros(count, bool).at[alone.ids].set(True, mode="drop") | (training + passes > 0)
    up, down = found if traffic else (None, None)
    trainings = sum(note.rows.size for note in notes if note.trains) / len(alone.ids)
    return RoundWork(training, passes, flop, width, there, up, down, trainings, in_turn)


def read_notes(fn: Any, *args: Any, results: bool = True) -> tuple[list[Note], Any]:
    """Returns the notes of `fn(*args)`, and its results or None; what neither depends on is not computed."""
    program, shape = jax.make_jaxpr(lambda *given: fn(*given), return_shape=True)(*args)
    wanted = [results] * len(program.jaxpr.outvars)
    notes, values = _read(program, jax.tree.leaves(args), wanted)
    return notes, jax.tree.unflatten(jax.tree.structure(shape), values) if results else None


def arguments_read(fn: Any, *args: Any) -> list[bool]:
    """Returns which leaves of its arguments a function reads.

    >>> arguments_read(lambda x, y: x * 2, 1.0, {"z": 2.0})
    [True, False]
    """
    program = jax.make_jaxpr(lambda *given: fn(*given))(*args)
    return _needed_arguments(program, [True] * len(program.jaxpr.outvars))


def _open(program: Jaxpr) -> tuple[core.Jaxpr, Sequence[Any]]:
    return (program.jaxpr, program.consts) if isinstance(program, core.ClosedJaxpr) else (program, ())


def _is_note(equation: core.JaxprEqn) -> bool:
    return equation.params.get("name") in (operations.TRAINING, operations.PASS)


def _has_notes(equation: core.JaxprEqn) -> bool:
    """Returns whether an equation is a note, or has notes in its programs."""
    if _is_note(equation):
        return True
    return any(any(map(_has_notes, _open(one)[0].eqns)) for one in inner_programs(equation.params))


def _needed(program: Jaxpr, wanted: Sequence[bool]) -> set[Any]:
    """Returns the variables of a program that its notes and its wanted results depend on."""
    jaxpr, _ = _open(program)
    needed = {atom for atom, one in zip(jaxpr.outvars, wanted, strict=True) if one and isinstance(atom, core.Var)}
    for equation in reversed(jaxpr.eqns):
        outs = [atom in needed for atom in equation.outvars]
        flags = _needed_inputs(equation, outs)
        needed |= {atom for atom, one in zip(equation.invars, flags, strict=True) if one and isinstance(atom, core.Var)}
    return needed


def _needed_inputs(equation: core.JaxprEqn, outs: Sequence[bool]) -> list[bool]:
    """Returns which inputs of an equation its notes and its wanted results depend on."""
    name, count = equation.primitive.name, len(equation.invars)
    if _is_note(equation):
        return [False, *[True] * (count - 1)]
    if not any(outs) and not _has_notes(equation):
        return [False] * count
    inner = inner_programs(equation.params)
    if name in CALLS and len(inner) == 1:
        return _needed_arguments(inner[0], outs)
    if name == "cond":
        each = [_needed_arguments(one, outs) for one in equation.params["branches"]]
        return [True, *map(any, zip(*each, strict=True))]
    if any(outs) or name not in ("scan", "while"):
        return [True] * count
    body, before = _loop_body(equation)
    return [*[False] * before, *_needed_arguments(body, [False] * len(_open(body)[0].outvars))]


def _needed_arguments(program: Jaxpr, wanted: Sequence[bool]) -> list[bool]:
    """Returns which inputs of a program its notes and its wanted results depend on."""
    needed = _needed(program, wanted)
    return [atom in needed for atom in _open(program)[0].invars]


def _loop_body(equation: core.JaxprEqn) -> tuple[Jaxpr, int]:
    """Returns the program of a turn of a loop, and how many inputs of the loop come before those of the program."""
    if equation.primitive.name == "scan":
        return equation.params["jaxpr"], 0
    return equation.params["body_jaxpr"], equation.params["cond_nconsts"]


def _read(program: Jaxpr, values: Sequence[Any], wanted: Sequence[bool]) -> tuple[list[Note], list[Any]]:
    """Returns the notes of a program and its wanted results, others as None; inputs without use may be None."""
    jaxpr, constants = _open(program)
    known: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *values], strict=True))
    needed, notes = _needed(program, wanted), []

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known.get(atom)

    for equation in jaxpr.eqns:
        outs, given = [atom in needed for atom in equation.outvars], list(map(read, equation.invars))
        if not any(outs) and not _has_notes(equation):
            continue
        found, results = _read_equation(equation, given, outs)
        notes += found
        known.update(zip(equation.outvars, results, strict=True))
    return notes, [read(atom) if one else None for atom, one in zip(jaxpr.outvars, wanted, strict=True)]


def _read_equation(equation: core.JaxprEqn, given: list[Any], outs: Sequence[bool]) -> tuple[list[Note], Sequence[Any]]:
    """Returns `_read` of one equation."""
    name, inner = equation.primitive.name, inner_programs(equation.params)
    if _is_note(equation):
        shape: Any = equation.invars[0].aval
        (jaxpr, _), (program,) = _open(inner[0]), inner
        values = _read(program, [jnp.zeros(shape.shape, shape.dtype), *given[1:]], [True] * len(jaxpr.outvars))[1]
        trains = equation.params["name"] == operations.TRAINING
        return [Note(*jnp.broadcast_arrays(*values), trains=trains)], [None] * len(outs)
    if name in CALLS and len(inner) == 1:
        return _read(inner[0], given, outs)
    if name == "cond":
        return _read_branches(equation, given, outs)
    notes = _read_loop(equation, given) if _has_notes(equation) else []
    return notes, run_equation(equation, given) if any(outs) else [None] * len(outs)


def _read_branches(equation: core.JaxprEqn, given: list[Any], outs: Sequence[bool]) -> tuple[list[Note], Sequence[Any]]:
    """Returns `_read` of one of several programs: the notes of all of them, without rows where another one runs."""
    (index, *values), notes = given, []
    branches = equation.params["branches"]
    for number, branch in enumerate(branches):
        found, _ = _read(branch, values, [False] * len(outs))
        notes += [dataclasses.replace(note, rows=jnp.where(index == number, note.rows, 0)) for note in found]
    if not any(outs):
        return notes, [None] * len(outs)

    def results(branch: Jaxpr) -> Any:
        return lambda: [one for one in _read(branch, values, outs)[1] if one is not None]

    found = iter(jax.lax.switch(index, list(map(results, branches))))
    return notes, [next(found) if one else None for one in outs]


def _read_loop(equation: core.JaxprEqn, given: list[Any]) -> list[Note]:
    """Returns the notes of all turns of a loop, of one of unknown length those of the first turn."""
    body, before = _loop_body(equation)
    wanted, values = [False] * len(_open(body)[0].outvars), given[before:]
    if equation.primitive.name != "scan":
        return _read(body, values, wanted)[0]
    params = equation.params
    fixed = params["num_consts"] + params["num_carry"]
    used = [one for one in values[fixed:] if one is not None]

    def turn(_: Array, used: list[Any]) -> list[Note]:
        left = iter(used)
        slices = [None if one is None else next(left) for one in values[fixed:]]
        return _read(body, [*values[:fixed], *slices], wanted)[0]

    return jax.vmap(turn, out_axes=0)(jnp.arange(params["length"]), used)
