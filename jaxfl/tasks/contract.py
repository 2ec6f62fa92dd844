"""The contract of a task: three pure functions, the metrics of its outputs, and what else is known of it.

Mixtures of K models mix probabilities, not logits: sum_m pi_m p_m(y | x).
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import tree
from jaxfl.data.clients import Batch, FederatedData
from jaxfl.data.labels import LabelKind, class_count_phrase
from jaxfl.random import Stream, key_for
from jaxfl.schema import did_you_mean, quoted
from jaxfl.tasks.metrics import ACCURACY, Metrics
from jaxfl.typing import Array, Key, Params

Mix = Callable[[Array, Array], Array]  # (outputs [K, B, ...], log pi [K]) -> [B, ...]


def mix_classes(outputs: Array, log_weights: Array) -> Array:
    """Returns log sum_m pi_m softmax(h_m), of logits `[K, B, ..., L]`: logits of the mixture.

    >>> logits = jnp.log(jnp.array([[[0.9, 0.1]], [[0.1, 0.9]]]))
    >>> (100 * jnp.exp(mix_classes(logits, jnp.log(jnp.array([0.75, 0.25]))))).round().tolist()
    [[70.0, 30.0]]
    """
    return _log_mixture(jax.nn.log_softmax(outputs), log_weights)


def mix_labels(outputs: Array, log_weights: Array) -> Array:
    """Returns the logit of sum_m pi_m sigmoid(h_m), of logits `[K, B, L]`."""
    return _log_mixture(jax.nn.log_sigmoid(outputs), log_weights) - _log_mixture(
        jax.nn.log_sigmoid(-outputs), log_weights
    )


def mix_targets(outputs: Array, log_weights: Array) -> Array:
    """Returns sum_m pi_m h_m, of numbers `[K, B, L]`: the mean of the mixture."""
    return (tree.along(jnp.exp(log_weights), outputs) * outputs).sum(0)


def _log_mixture(logarithms: Array, log_weights: Array) -> Array:
    return jax.nn.logsumexp(tree.along(log_weights, logarithms) + logarithms, 0)


Loss = Callable[[Params, Batch, Key | None], Array]
OffsetLosses = Callable[[Params, Batch, Key | None, Array], Array]
Products = Mapping[str, Callable[[Array], Array]]  # in place of `x @ W`, by the name of W


class DenseLayers(NamedTuple):
    """Kernels `[d, h]` that a network multiplies rows with once; `jaxfl.client.fast.coordinates` may train them faster.

    Attributes:
        first: names of kernels, as `tree.names` has them, multiplied with values that are computed from each row by
            itself, without parameters or keys.
        inner: those multiplied with the outputs of other layers.
        loss: `(model, batch, key, products) -> []`, the task's loss with `products[name](x) [B, h]` in place of
            `x @ kernel [d, h]`, for any of the names; it reads such kernels in no other way.
    """

    first: tuple[str, ...]
    inner: tuple[str, ...]
    loss: Callable[[Params, Batch, Key | None, Products], Array]


class Averages(NamedTuple):
    """Running averages among the leaves of a model, which training brings up to date beside its steps.

    Attributes:
        names: of these leaves, as `tree.names` has them.
        loss: the task's loss in training, but the gradient of such a leaf is the value that it gets.
    """

    names: frozenset[str]
    loss: Loss

    def chosen(self, model: Params) -> Params:
        """Returns which leaves of a model, or of a part of it, these are: a bool for every leaf."""
        flags = [name in self.names for name in tree.names(model)]
        return jax.tree.unflatten(jax.tree.structure(model), flags)


class RowSpec(NamedTuple):
    """The shape of a federation's inputs and the kind of its labels."""

    inputs: tuple[int, ...]  # the shape of one
    kind: LabelKind
    num_classes: int  # L
    dtype: np.dtype = np.dtype(np.float32)  # of inputs as a network sees them

    def __str__(self) -> str:
        """Returns it as a phrase."""
        return f"inputs of shape {self.inputs} and {class_count_phrase(self.kind, self.num_classes)}"


class OnePass(NamedTuple):
    """A test's outputs and loss in one pass over the network.

    XLA does not see that two passes are the same where a network has arrays of its own, as for a resized image.

    Attributes:
        both: `(model, batch) -> (outputs [B, ...], loss [])`.
        outputs: of the task that this belongs to; it is not taken where they were replaced,
        loss: nor where the loss was.
    """

    both: Callable[[Params, Batch], tuple[Array, Array]]
    outputs: Callable[[Params, Batch], Array]
    loss: Loss


class FastForms(NamedTuple):
    """Knowledge of a network's program, for speed alone: without it a task computes the same to rounding, slower.

    Attributes:
        dense: its dense layers, or None where none are known.
        replaced: kinds and counts of the network's convolutions and poolings that are computed in a fast form.
        widest: bytes of the largest array that a network with such operations computes from a row; 0 without them.
        one_pass: its outputs and its loss together, or None, see `outputs_and_loss`.
    """

    dense: DenseLayers | None = None
    replaced: tuple[tuple[str, int], ...] = ()
    widest: int = 0
    one_pass: OnePass | None = None


class Task(NamedTuple):
    """A learning problem: three pure functions, and what else is known of it.

    Attributes:
        init: `key -> model`.
        loss: `(model, batch, key) -> []`, the mean over the batch's real rows; `key` is None outside training, where
            dropout is off.
        outputs: `(model, batch) -> [B, ...]`, with dropout off: of classification logits `[B, L]`.
        metrics: of the outputs, for test rows; accuracy and F1 of classes where none are given.
        averages: running averages of batch normalisation, or None where the model has none.
        losses: `(model, batch, key) -> [B]`, the loss of each row, whose mean `loss` is; None where it is not known,
            see `row_losses`.
        mix: `(outputs [K, B, ...], log_weights [K]) -> [B, ...]`, the outputs of a mixture of K models, see
            `jaxfl.tasks.contract`; None where they cannot be mixed.
        offset_losses: `(model, batch, key, offset [B, ...]) -> [B]`, the loss of each row where an offset is added to
            the outputs; None where it is not known.
        rows: the shape and kind of the rows that it was made for; None takes any.
        made_for: the loss that `losses`, `offset_losses`, the loss of `averages` and `fast.dense` belong to. They are
            not used where `loss` was replaced by another one; None uses them.
        whole: whether the outputs for a row depend on the others of its batch, as with batch normalisation: a gradient
            is never put together from blocks of rows then.
        fast: knowledge of the network's program, for speed alone.
        head: the layer of the network that is its head, by name, see `with_head`; None is the one it creates last.
    """

    init: Callable[[Key], Params]
    loss: Loss
    outputs: Callable[[Params, Batch], Array]
    metrics: Metrics = ACCURACY
    averages: Averages | None = None
    losses: Loss | None = None
    mix: Mix | None = None
    offset_losses: OffsetLosses | None = None
    rows: RowSpec | None = None
    made_for: Loss | None = None
    whole: bool = False
    fast: FastForms = FastForms()
    head: str | None = None


def with_head(task: Task, head: str) -> Task:
    """Returns the task of a network with another head than the layer that it creates last.

    The head is what personalised methods keep, fine-tune or compare alone, such as `fedper`, `fedrep` and `fedproto`.

    Args:
        task: what is learned.
        head: name of a layer, or of a module of several, as in the names of its parameters: `"Dense_1"` for
            `Dense_1/kernel` and `Dense_1/bias`.

    Raises:
        ValueError: the model has no layer of this name.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.MLP(hidden=(16, 8), num_classes=10), data)
    >>> with_head(task, "Dense_1").head
    'Dense_1'
    >>> with_head(task, "dense_1")
    Traceback (most recent call last):
    ValueError: head must be a layer of the network, got "dense_1"; did you mean "Dense_1"? Known: Dense_0, Dense_1...
    """
    layer_leaves(jax.eval_shape(task.init, jax.random.key(0)), head)
    return task._replace(head=head)


def layer_leaves(model: Params, layer: str) -> Params:
    """Returns a bool for every leaf of a model: whether it is in a layer, by name.

    Raises:
        ValueError: the model has no layer of this name.
    """
    names = tree.names(model)
    flags = [name == layer or name.startswith(f"{layer}/") for name in names]
    if not any(flags):
        known = dict.fromkeys(name.rpartition("/")[0] or name for name in names)
        raise ValueError(
            f"head must be a layer of the network, got {quoted(layer)}{did_you_mean(layer, known)} Known: "
            f"{', '.join(known)}."
        )
    return jax.tree.unflatten(jax.tree.structure(model), flags)


def outputs_and_loss(task: Task) -> Callable[[Params, Batch], tuple[Array, Array]]:
    """Returns `(model, batch) -> (outputs [B, ...], loss [])` of a test: in one pass over the network if the task can.

    Args:
        task: what is learned.
    """
    known = task.fast.one_pass
    if known is not None and (known.outputs, known.loss) == (task.outputs, task.loss):
        return known.both
    return lambda model, batch: (task.outputs(model, batch), task.loss(model, batch, None))


def dense_layers_of(task: Task) -> DenseLayers | None:
    """Returns the dense layers of a task; None where they belong to another loss than it has now."""
    return task.fast.dense if task.made_for in (None, task.loss) else None


def averages_of(task: Task) -> Averages | None:
    """Returns a task's running averages beside the loss that it has now."""
    if task.averages is None or task.made_for in (None, task.loss):
        return task.averages
    return task.averages._replace(loss=with_moving_averages(task.averages, task.loss))


def with_loss(task: Task, loss: Loss, averages: Averages | None) -> Task:
    """Returns the task for training under another loss, without the knowledge that belongs to its own loss.

    Args:
        task: what is learned.
        loss: `(model, batch, key) -> []`.
        averages: beside this loss.
    """
    return task._replace(
        loss=loss,
        losses=None,
        offset_losses=None,
        averages=averages,
        made_for=None,
        fast=task.fast._replace(dense=None),
    )


def row_losses(task: Task) -> Callable[..., Array]:
    """Returns `(model, batch, key=None) -> [B]`: the loss of each row, 0 of padding.

    Their mean over the real rows is `task.loss`. A task of a network has them (`Task.losses`): the rows are
    seen together, so batch normalisation takes its statistics from all of them while clients train (with a key), and
    its running averages otherwise. Of any other task they are the losses of batches of one row each. There, batch
    normalisation would see a single row, and dropout has a key of its own for each row.

    Args:
        task: what is learned, of any kind.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> batch = data.batch(data.train, 0, jnp.arange(25))  # of 20 rows, and padding
    >>> losses = row_losses(task)(task.init(jax.random.key(0)), batch)
    >>> losses.shape, int((losses > 0).sum())
    ((25,), 20)
    """
    known = task.losses if task.made_for in (None, task.loss) else None

    def of_one(model: Params, row: Batch, key: Key | None) -> Array:
        return task.loss(model, jax.tree.map(lambda leaf: leaf[None], row)._replace(mask=jnp.ones(1, bool)), key)

    def losses(model: Params, batch: Batch, key: Key | None = None) -> Array:
        if known is not None:
            found = known(model, batch, key)
        elif key is None:
            found = jax.vmap(lambda row: of_one(model, row, None))(batch)
        else:
            numbers = jnp.arange(batch.mask.shape[0], dtype=jnp.int32)
            keys = jax.vmap(lambda number: key_for(key, Stream.DROPOUT, number))(numbers)
            found = jax.vmap(lambda row, key: of_one(model, row, key))(batch, keys)
        return jnp.where(batch.mask, found, 0)

    return losses


def without_dropout(task: Task) -> Task:
    """Returns the task without dropout: its loss is that of a test, with or without a key."""

    def loss(model: Params, batch: Batch, key: Key | None = None) -> Array:
        del key
        return task.loss(model, batch, None)

    dense = dense_layers_of(task)
    if dense is not None:
        with_products = dense.loss
        dense = dense._replace(loss=lambda model, batch, key, products: with_products(model, batch, None, products))
    averages = averages_of(task)
    if averages is not None:  # which stay as they are then
        in_training = averages.loss
        averages = averages._replace(loss=lambda model, batch, key=None: in_training(model, batch, None))
    losses, of_sums = row_losses(task), task.offset_losses
    still = None if of_sums is None else lambda model, batch, key, offset: of_sums(model, batch, None, offset)
    return task._replace(
        loss=loss,
        averages=averages,
        losses=lambda model, batch, key: losses(model, batch),
        offset_losses=still,
        made_for=None,
        fast=task.fast._replace(dense=dense),
    )


@jax.custom_vjp
def assigned_by_gradient(before: Array, after: Array) -> Array:
    """Returns 0; the gradient with respect to `before` is `after`: how an average is brought up to date."""
    return jnp.zeros((), before.dtype)


assigned_by_gradient.defvjp(
    lambda before, after: (assigned_by_gradient(before, after), after), lambda after, _: (after, jnp.zeros_like(after))
)


def with_constant_leaves(loss: Loss, leaves: Callable[[Params], list[Array]]) -> Loss:
    """Returns the loss in training of a model with leaves that stay: the gradients of these are their values.

    They are running averages that get the values that they have (see `Averages`): a leaf without a gradient would be
    moved by weight decay.

    Args:
        loss: `(model, batch, key) -> []`, through which no gradient of these leaves goes.
        leaves: of a model.
    """

    def staying(model: Params, batch: Batch, key: Key | None = None) -> Array:
        found = loss(model, batch, key)
        for leaf in leaves(model):
            found = found + assigned_by_gradient(leaf, jax.lax.stop_gradient(leaf)).astype(found.dtype)
        return found

    return staying


def with_moving_averages(
    averages: Averages, loss: Loss, over: Callable[[Callable[[Params], Array], Params], Array] | None = None
) -> Loss:
    """Returns the loss, but the gradients of running averages are the values that they get in training.

    Args:
        averages: of one model.
        loss: `(model, batch, key) -> []`.
        over: `(fn, model) -> []`, the sum of `fn(one)` over the models that `model` holds; None where it is one model.
    """

    def under(model: Params, batch: Batch, key: Key | None = None) -> Array:
        def values_of(one: Params) -> Array:
            chosen = averages.chosen(one)
            still = jax.tree.map(lambda own, leaf: leaf if own else jax.lax.stop_gradient(leaf), chosen, one)
            return averages.loss(still, batch, key)

        values, found = values_of(model) if over is None else over(values_of, model), loss(model, batch, key)
        return found + (values - jax.lax.stop_gradient(values)).astype(found.dtype)

    return under


def joint_averages(task: Task, loss: Loss, names: frozenset[str] = frozenset()) -> Averages | None:
    """Returns the running averages of a model `{"net", ...}`, a network with other leaves beside it; None without any.

    Args:
        task: of the network.
        loss: `(model, batch, key) -> []` of the whole model; the gradients of `names` are the values that they get.
        names: of leaves beside the network that are running averages, too.
    """
    averages = averages_of(task)
    if averages is None:
        return Averages(names, loss) if names else None
    moving = with_moving_averages(averages, loss, lambda fn, model: fn(model["net"]))
    return Averages(names | {f"net/{name}" for name in averages.names}, moving)


def without_averages(averages: Averages | None, values: Params) -> Params:
    """Returns a tree like the model (a gradient, a change) with zeros in place of a task's running averages."""
    if averages is None:
        return values
    chosen = averages.chosen(values)
    return jax.tree.map(lambda one, leaf: jnp.zeros_like(leaf) if one else leaf, chosen, values)


def masked_mean(values: Array, mask: Array) -> Array:
    """Returns the mean of `values [B]` over the rows where `mask [B]` holds; 0 where none does.

    >>> float(masked_mean(jnp.array([1.0, jnp.nan]), jnp.array([True, False])))
    1.0
    """
    # where before the sum: 0 * NaN of a padding row would poison the mean
    return jnp.where(mask, values, 0).sum() / jnp.maximum(mask.sum(), 1).astype(values.dtype)


def row_spec(data: FederatedData) -> RowSpec:
    """Returns the shape and the kind of a federation's rows."""
    return RowSpec(data.input_shape, data.kind, data.num_classes, input_dtype(data))


def input_dtype(data: FederatedData) -> np.dtype:
    """Returns the type of a federation's inputs as a network sees them."""
    return jax.dtypes.canonicalize_dtype(data.inputs.dtype if data.std is None else data.std.dtype)


def check_learns(task: Task, data: FederatedData) -> None:
    """Raises ValueError where a task was made for other rows: the loss of a label beyond its classes is NaN.

    Args:
        task: what is learned.
        data: what it is to be learned from; fewer classes than the task has may do.
    """
    made, here = task.rows, row_spec(data)
    if made is not None and (made[:2] != here[:2] or made.num_classes < here.num_classes):
        raise ValueError(
            f"data must have the rows that the method's task was made for, {made}, got {here}; make the task from "
            "these data."
        )


def check_trains(task: Task, what: str) -> None:
    """Raises ValueError where a method sends gradients, and the task's model has running averages.

    Args:
        task: what is learned.
        what: the method, or its option.
    """
    if task.averages is not None:
        raise ValueError(
            f"{what} cannot bring running averages up to date: its clients send gradients; take a method that trains "
            "locally (fedavg with local_epochs=1), or group normalisation."
        )
