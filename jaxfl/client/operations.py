"""Operations of a client's work, noted where the client trains or passes over its rows.

A clock (`jaxfl.clock`) needs the operations of each client in a round. The functions of `jaxfl.client` that train on a
client's rows or pass over them note their rows and the operations of a row while a program is traced under `noting`;
each note is a small program inside of it, which `jaxfl.clock.work` reads. Otherwise nothing is noted, and programs are
as they are without a clock.

Operations are those of products and convolutions, a multiplication and an addition being two; of a gradient, those of
its own program: about three times the forward pass, but for the inputs of the first layer.
"""

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from jaxfl.data.clients import FederatedData
from jaxfl.models.fast.rewriting import inner_programs
from jaxfl.typing import Array

TRAINING, PASS = "note_client_training", "note_client_pass"  # the names of notes in a program


@dataclasses.dataclass
class Notes:
    """Facts of the programs that are traced inside of `noting`.

    Attributes:
        in_turn: whether the clients of a round train one after another, each from the model of the last one.
    """

    in_turn: bool = False


_notes: contextvars.ContextVar[Notes | None] = contextvars.ContextVar("notes", default=None)


@contextlib.contextmanager
def noting(noted: bool = True) -> Iterator[Notes]:
    """Makes the functions of `jaxfl.client` note their operations in programs that are traced inside, or not."""
    notes = Notes()
    token = _notes.set(notes if noted else None)
    try:
        yield notes
    finally:
        _notes.reset(token)


def are_noted() -> bool:
    """Returns whether operations are noted in the program that is being traced."""
    return _notes.get() is not None


def note_in_turn() -> None:
    """Notes that the clients of a round train one after another."""
    if (notes := _notes.get()) is not None:
        notes.in_turn = True


def note_training(loss: Array, fn: Callable[..., Any], *args: Any, client: Array, rows: Any, width: int) -> None:
    """Notes a client's local training.

    Args:
        loss: of the training `[]`; only its shape counts, which tells how many models a vectorised training has.
        fn: the gradient of a step, `fn(*args)` for a batch of `width` rows.
        *args: arrays or their shapes.
        client: its id `[]`.
        rows: passed over in all steps `[]`.
        width: rows of a step.
    """
    if are_noted():
        _note(TRAINING, loss, client, rows, count_operations(fn, *args) / max(width, 1), width)


def note_pass(result: Any, fn: Callable[..., Any], *args: Any, client: Array, rows: Any, at_once: int) -> None:
    """Notes a client's pass over rows, in batches of `at_once`, without training; nothing where no product is made."""
    if are_noted() and (flop := count_operations(fn, *args) / max(at_once, 1)):
        leaf = next(leaf for leaf in jax.tree.leaves(result) if leaf.size)
        _note(PASS, jnp.real(leaf.ravel()[0]), client, rows, flop, at_once)


def _note(name: str, shape: Array, client: Array, rows: Any, flop: float, width: int) -> None:
    """Puts a note into the program that is being traced."""

    def note(shape: Array, *values: Array) -> tuple[Array, ...]:
        nothing = 0 * shape.astype(jnp.float32)  # as many as the models of a vectorised training
        return tuple(value + nothing.astype(value.dtype) for value in values)

    note.__name__ = name
    values = jnp.asarray(client, jnp.int32), jnp.asarray(rows).astype(jnp.float32), jnp.float32(flop)
    jax.jit(note)(shape, *values, jnp.float32(width))


def batch_of(data: FederatedData, rows: int) -> Any:
    """Returns the shapes of a batch of training rows."""
    return jax.eval_shape(lambda: data.batch(data.train, jnp.int32(0), jnp.arange(rows, dtype=jnp.int32)))


def count_operations(fn: Callable[..., Any], *args: Any) -> float:
    """Returns the operations of the products and convolutions of `fn(*args)`, for arrays or their shapes.

    A loop of unknown length counts as one turn, and of several branches the longest.

    >>> count_operations(lambda x, w: jnp.tanh(x @ w), jnp.ones((5, 4)), jnp.ones((4, 3)))
    120.0
    >>> count_operations(lambda x: jax.lax.scan(lambda x, _: (x @ x, None), x, length=3)[0], jnp.ones((2, 2)))
    48.0
    """
    return _program_operations(jax.make_jaxpr(fn)(*args).jaxpr)


def _program_operations(program: core.Jaxpr | core.ClosedJaxpr) -> float:
    """Returns the operations of a program."""
    total = 0.0
    for equation in (program.jaxpr if isinstance(program, core.ClosedJaxpr) else program).eqns:
        name, avals = equation.primitive.name, [atom.aval for atom in (*equation.invars, *equation.outvars)]
        shapes: list[tuple[int, ...]] = [getattr(aval, "shape", ()) for aval in avals]
        if name == "dot_general":
            (summed, _), _ = equation.params["dimension_numbers"]
            total += 2 * math.prod(shapes[-1]) * math.prod(shapes[0][axis] for axis in summed)
        elif name == "conv_general_dilated":
            outputs = shapes[1][equation.params["dimension_numbers"].rhs_spec[0]]
            total += 2 * math.prod(shapes[-1]) * math.prod(shapes[1]) / max(outputs, 1)
        else:
            inner = [_program_operations(one) for one in inner_programs(equation.params)]
            if inner:
                total += equation.params.get("length", 1) * (max(inner) if name == "cond" else sum(inner))
    return total
