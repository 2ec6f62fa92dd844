"""Uses of a finished run: outputs for new rows, and the evaluation of newcomers."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from jaxfl import engine, tree
from jaxfl.client.passes import BLOCK_ROWS
from jaxfl.cohort import Plan
from jaxfl.data import images
from jaxfl.data.arrays import plain_array
from jaxfl.data.clients import Batch, FederatedData, Split, view_fields
from jaxfl.methods.base import Method
from jaxfl.schema import check_type
from jaxfl.simulation.evaluation.evaluate import evaluator
from jaxfl.simulation.evaluation.metrics import Evaluation
from jaxfl.simulation.program import cached_program, initialiser, shapes_of
from jaxfl.tasks import Task
from jaxfl.tasks.contract import check_learns
from jaxfl.typing import Params


def predict(task: Task, model: Params, data: FederatedData, inputs: ArrayLike) -> np.ndarray:
    """Returns the outputs of a model for rows `[B, ...]`, without dropout; of a classification, logits `[B, L]`.

    Args:
        task: what the model has learned.
        model: one.
        data: the federation that it was trained on; rows are scaled by its `mean` and `std`.
        inputs: rows `[B, ...]` as they are in `data.inputs`, turned as the client's own are: pixels from 0 to 255 where
            the federation's are, and of a table, which has no `mean` and `std`, scaled.

    Raises:
        ValueError: they have another shape, or are floats where the federation has pixels or tokens.
    """
    rows, kind = plain_array("inputs", inputs), np.dtype(data.inputs.dtype)
    if rows.shape[1:] == data.inputs.shape[1:] != data.input_shape:
        rows = np.asarray(images.colour(rows, 0, data.white))  # grey, where clients see colours
    if rows.shape[1:] != data.input_shape or rows.ndim == 0:
        wanted = ", ".join(map(str, ("B", *data.input_shape)))
        raise ValueError(
            f"inputs must be rows [{wanted}], got the shape {list(rows.shape)}; of one row give inputs[None]."
        )
    if kind.kind in "iu" and rows.dtype.kind not in "iu":
        raise ValueError(
            f"inputs must be {kind} as the run's are, got {rows.dtype}; give them as they are in data.inputs: they are "
            "scaled here."
        )
    if kind.kind in "iu" and rows.size and not np.iinfo(kind).min <= rows.min() <= rows.max() <= np.iinfo(kind).max:
        raise ValueError(f"inputs must be {kind} as the run's are, got numbers from {rows.min()} to {rows.max()}.")
    outputs, found = _outputs_program(task), []
    for at in range(0, max(len(rows), 1), BLOCK_ROWS):
        block = rows[at : at + BLOCK_ROWS]
        padding = (1 << (len(block) - 1).bit_length()) - len(block)  # or every number of rows would be compiled for
        filled = np.concatenate([block, np.zeros((padding, *block.shape[1:]), block.dtype)])
        found.append(np.asarray(outputs(model, _plain_batch(data, filled)))[: len(block)])
    return np.concatenate(found)


@cached_program(engine.jit)
def _outputs_program(task: Task) -> Any:
    return task.outputs


def _plain_batch(data: FederatedData, rows: np.ndarray) -> Batch:
    """Returns rows as the batch of a client without a shift."""
    labels = np.zeros((len(rows), *data.labels.shape[1:]), data.labels.dtype)
    unchanged = dict.fromkeys(view_fields(data))
    alone = dataclasses.replace(data, inputs=rows.astype(data.inputs.dtype), labels=labels, **unchanged)
    return alone.batch(Split.pack([np.arange(len(rows))]), jnp.int32(0), jnp.arange(len(rows)))


def evaluate_newcomers(
    method: Method,
    state: Any,
    data: FederatedData,
    seed: int,
    new: FederatedData,
    began: FederatedData | None = None,
) -> Evaluation:
    """Returns the evaluation of newcomers, which are served as held-out clients are.

    Fields of the state with a row for each client get one for each newcomer, as in a first state.

    Args:
        method: that has run.
        state: its last one.
        data: that it has run on.
        seed: of the run.
        new: the clients `[M]`; their rows are scaled as those of `data`. If they drift, they are as in the last round.
        began: the federation as it was in the first round, if it drifts: what is found before it is found among these.

    Raises:
        ValueError: they have other rows, classes or scales, or the method kept nothing to place them by.
        TypeError: they are no federation.
    """
    check_type("data", new, FederatedData)
    check_learns(method.task, new)
    data, new = (one.at(int(state.round)) for one in (data, new))
    key = jax.random.key(seed)
    if new.inputs.dtype != data.inputs.dtype:
        raise ValueError(f"data must have inputs of {data.inputs.dtype} as the run's, got {new.inputs.dtype}.")
    _check_same_meaning(data, new)
    both = with_newcomers(data, new)
    first = both if began is None else with_newcomers(began, new)
    try:
        fresh = initialiser(method, shapes_of(first))(key, first)
    except ValueError as error:
        raise ValueError(
            f"data cannot be placed: the method has no room for {new.num_clients} more: {error}"
        ) from error
    before, after = (jax.eval_shape(method.init, key, one) for one in (data, both))
    if jax.tree.structure(before) != jax.tree.structure(after):
        raise ValueError(
            "data cannot be assigned to clusters: the method keeps what that needs only where clients are held out of "
            "training; run with held_out=0.1."
        )
    if method.per_client is not None:  # rows of other clients are not read: they may be in a file on the host
        state = tree.with_field(state, method.per_client, getattr(fresh, method.per_client))

    def taken(before: Any, after: Any, first: Any, last: Any) -> Any:
        if before.shape == after.shape or last is first:
            return jnp.asarray(np.asarray(last))
        return jnp.concatenate([np.asarray(last), np.asarray(first)[len(last) :]])

    state = jax.tree.map(taken, before, after, fresh, state)
    ids = np.arange(data.num_clients, both.num_clients)
    found = evaluator(method, both.on_device(), Plan(), clients=ids)(key, state)
    few = {name: values[ids] for name, values in found.values.items()}
    metrics = {name: value for name, value in found.metrics.items() if name.startswith("unseen_")}
    return found._replace(
        metrics=metrics, values=few, rows=found.rows[ids], loss=found.loss[ids], cluster=found.cluster[ids]
    )


def _check_same_meaning(data: FederatedData, new: FederatedData) -> None:
    """Raises ValueError where inputs or labels of the newcomers have another meaning than in the run."""
    names, known = new.class_names, data.class_names
    if names and known and names != known[: len(names)]:
        place = next(at for at, pair in enumerate(zip(names, known, strict=False)) if len(set(pair)) > 1)
        raise ValueError(
            f"data must number the classes as the run does: class {place} is {names[place]!r}, in the run "
            f"{known[place]!r}; take both from one file."
        )
    if (data.fitted or new.fitted) and not np.array_equal(data.inputs, new.inputs):
        raise ValueError(
            "data must be scaled as the run's are, and those of a table are scaled by the table's own training rows; "
            "put all rows into one table and hold clients out of training (held_out=0.2), or take a subset of the "
            "run's data."
        )


def with_newcomers(data: FederatedData, new: FederatedData) -> FederatedData:
    """Returns the clients of both federations `[N + M]`; the newcomers come last, are held out, and are scaled as the
    others.

    True groups, attackers and validation rows of newcomers are unknown; so all clients lose theirs.
    """
    plain: dict[str, Any] = dict.fromkeys(("group", "attack", "validation", "drift", "absent", "origin"))
    plain |= {"causes": {}, "cause_names": ()}
    data, new = (dataclasses.replace(one, **plain) for one in (data, new))
    if data.label_map is not None or new.label_map is not None:  # one table for both
        maps = np.concatenate([data.label_maps(), new.label_maps()])
        table, number = np.unique(maps, axis=0, return_inverse=True)
        data, new = (
            dataclasses.replace(one, label_map=table.astype(np.int32), label_shift=part.astype(np.int32))
            for one, part in zip((data, new), np.split(number.reshape(-1), [data.num_clients]), strict=True)
        )
    held_out = np.zeros(data.num_clients, bool) if data.held_out is None else np.asarray(data.held_out)
    fields: dict[str, Any] = {"held_out": np.append(held_out, np.ones(new.num_clients, bool))}
    for name in view_fields(data):
        parts = [getattr(one, name) for one in (data, new)]
        if any(part is not None for part in parts):
            sizes = (data.num_clients, new.num_clients)
            known = next(np.asarray(part).dtype for part in parts if part is not None)
            fields[name] = np.concatenate(
                [np.zeros(size, known) if part is None else part for size, part in zip(sizes, parts, strict=True)]
            )
    for name in ("train", "test"):
        one, other = (getattr(data, name), getattr(new, name))
        fields[name] = Split(
            rows=np.concatenate([one.rows, np.asarray(other.rows) + len(data.labels)]),
            start=np.concatenate([one.start, np.asarray(other.start) + len(one.rows)]),
            size=np.concatenate([one.size, other.size]),
            max_size=max(one.max_size, other.max_size),
        )
    if data.inputs.shape[1:] != new.inputs.shape[1:]:  # one is grey, with colours on the device
        data, new = (dataclasses.replace(one, inputs=images.colour(one.inputs, 0, one.white)) for one in (data, new))
    pools = {name: np.concatenate([getattr(data, name), getattr(new, name)]) for name in ("inputs", "labels")}
    return dataclasses.replace(data, **fields, **pools).in_programs()  # which counts the rows of both
