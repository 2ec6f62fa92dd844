"""The head of any network, the features that it multiplies, and sums of features by class.

A head is the dense layer that a network ends with: with the features x [B, d], the logits are x W + b. It is found by
name (the layer that the model creates last, or that the task names) and in the network's program, so that every network
has its features without saying so: the program is run with `x -> x W` replaced by a function that notes x, see
`jaxfl.models.fast.rewriting`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxfl import tree
from jaxfl.client.passes import fold_rows, rows_at_once
from jaxfl.data.clients import Batch, FederatedData
from jaxfl.methods.parts.vectors import last_layer
from jaxfl.models.fast.dense_layers import is_last_layer
from jaxfl.models.fast.rewriting import in_fast_forms
from jaxfl.tasks import Task
from jaxfl.tasks.contract import Products, averages_of, dense_layers_of, with_loss
from jaxfl.typing import Array, Key, Params

Change = Callable[[Array], Array]  # of features [B, d]
REMEDY = "take a network whose last layer is a dense one, without an operation behind it, and labels that are classes"


class Head(NamedTuple):
    """The last dense layer of a network.

    Attributes:
        kernel: the name of W, as `tree.names` has it.
        bias: the name of b, or None.
        features: d.
        classes: L.
    """

    kernel: str
    bias: str | None
    features: int
    classes: int

    def weights(self, model: Params) -> tuple[Array, Array]:
        """Returns W `[d, L]` and b `[L]` of a model."""
        leaves = dict(zip(tree.names(model), jax.tree.leaves(model), strict=True))
        kernel = leaves[self.kernel]
        return kernel, jnp.zeros(self.classes, kernel.dtype) if self.bias is None else leaves[self.bias]


class Features(NamedTuple):
    """The value of a function of a network for a batch, with its features and logits in the type of the head."""

    value: Any  # of the function: a loss or outputs
    features: Array  # x [B, d]
    logits: Array  # x W + b [B, L]


def find_head(task: Task, method: str) -> Head:
    """Returns the head of a task's network.

    Args:
        task: of classification.
        method: that needs it, for the message.

    Raises:
        ValueError: the labels are no classes, or the network does not end with a dense layer.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> find_head(jaxfl.classification(jaxfl.models.MLP(hidden=(16,), num_classes=10), data), "fedproto")
    Head(kernel='Dense_1/kernel', bias='Dense_1/bias', features=16, classes=10)
    """
    if task.rows is not None and task.rows.kind != "classification":
        raise ValueError(f"task must be a classification for {method}, got {task.rows}; {REMEDY}.")
    model = jax.eval_shape(task.init, jax.random.key(0))
    flags = jax.tree.leaves(last_layer(task, "task"))
    leaves = [
        (name, leaf.shape)
        for name, leaf, last in zip(tree.names(model), jax.tree.leaves(model), flags, strict=True)
        if last
    ]
    kernels = [(name, shape) for name, shape in leaves if len(shape) == 2]
    biases = [name for name, shape in leaves if len(shape) == 1]
    if len(kernels) != 1 or len(leaves) - len(biases) != 1 or len(biases) > 1:
        found = ", ".join(f"{name} {list(shape)}" for name, shape in leaves)
        raise ValueError(f"task must end with a dense layer for {method}, got a last layer of {found}; {REMEDY}.")
    (kernel, (width, classes)), bias = kernels[0], biases[0] if biases else None
    head = Head(kernel, bias, width, classes)
    if task.rows is not None:
        types: list[Any] = [((2, *task.rows.inputs), task.rows.dtype), ((2,), jnp.int32), ((2,), bool)]
        shapes: list[Any] = [jax.ShapeDtypeStruct(*one) for one in types]
        rows = Batch(*shapes)
        names = tree.names(model)
        places = names.index(kernel), None if bias is None else names.index(bias)
        if not is_last_layer(task.outputs, model, rows, *places):
            raise ValueError(
                f"task must have outputs that are its last layer's, {kernel}, for {method}, got a network that uses "
                f"this layer in another way; {REMEDY}."
            )
    return head


def with_features(fn: Callable[..., Any], head: Head) -> Callable[..., Features]:
    """Returns `(model, batch, *others, change=None) -> Features` of a function of a network.

    Args:
        fn: `(model, batch, *others)`: a task's loss, its outputs, or the loss of its running averages.
        head: of the network. With `change`, the network goes on with `change(x)` in place of x; the result has x.
    """
    fast = in_fast_forms(fn)

    def run(model: Params, batch: Batch, *others: Any, change: Change | None = None) -> Features:
        (kernel, bias), seen = head.weights(model), []

        def changed(x: Array) -> Array:
            return x if change is None else change(x.astype(kernel.dtype)).astype(x.dtype)

        def product(x: Array) -> Array:
            seen.append(x)
            return changed(x) @ kernel.astype(x.dtype)  # of a network in half precision its own product

        value = fast(model, batch, *others, products={tree.names(model).index(head.kernel): product})
        if len(seen) != 1:
            raise ValueError(f"task must use the kernel of its last layer, {head.kernel}, once, got {len(seen)} uses.")
        x = seen[0]
        logits = changed(x) @ kernel.astype(x.dtype) + bias.astype(x.dtype)[None]
        return Features(value, x.astype(kernel.dtype), logits.astype(kernel.dtype))

    return run


def with_feature_term(task: Task, head: Head, term: Callable[[Features, Batch], Array]) -> Task:
    """Returns the task for training under its loss plus `term(features, batch) -> []`; its value is the loss alone.

    Args:
        task: what is learned.
        head: of its network.
        term: of the features as they are in training, with dropout and batch statistics.
    """

    def joined(found: Features, batch: Batch) -> Array:
        more = term(found, batch).astype(found.value.dtype)
        return found.value + (more - jax.lax.stop_gradient(more))

    def plus(loss: Callable[..., Array]) -> Callable[..., Array]:
        look = with_features(loss, head)
        return lambda model, batch, key=None: joined(look(model, batch, key), batch)

    averages, dense = averages_of(task), dense_layers_of(task)
    averages = None if averages is None else averages._replace(loss=plus(averages.loss))
    learned = with_loss(task, plus(task.loss), averages)
    if dense is None or head.kernel not in dense.first + dense.inner:
        return learned

    def in_products(model: Params, batch: Batch, key: Key | None, products: Products) -> Array:
        (kernel, bias), seen = head.weights(model), []
        given = products.get(head.kernel, lambda x: x @ kernel)  # with a product, the kernel is not to be read

        def product(x: Array) -> Array:
            seen.append((x, given(x)))
            return seen[-1][1]

        value = dense.loss(model, batch, key, {**products, head.kernel: product})
        ((x, logits),) = seen
        return joined(Features(value, x, logits + bias[None]), batch)

    return learned._replace(fast=learned.fast._replace(dense=dense._replace(loss=in_products)))


class ClassSums(NamedTuple):
    """Sums over the training rows of a client."""

    features: Array  # [L, d] of the features of each class
    counts: Array  # [L] rows of each class
    squares: Array  # [] of the squared norms of all features


def class_sums(task: Task, head: Head) -> Callable[[Params, FederatedData, Array], ClassSums]:
    """Returns `(model, data, client) -> ClassSums` of the features without dropout; zeros for a client without rows."""
    look = with_features(task.outputs, head)

    def sums(model: Params, data: FederatedData, client: Array) -> ClassSums:
        def step(carry: ClassSums, batch: Batch) -> ClassSums:
            x = look(model, batch).features.astype(carry.features.dtype)
            x = jnp.where(batch.mask[:, None], x, 0)
            members = jnp.where(batch.mask[:, None], jax.nn.one_hot(batch.y, head.classes, dtype=x.dtype), 0)
            found = ClassSums(members.T @ x, members.sum(0), jnp.square(x).sum())
            return jax.tree.map(jnp.add, carry, found)

        wide = head.weights(model)[0].dtype  # float32 or wider, as all parameters
        width = head.classes, head.features
        zero = ClassSums(jnp.zeros(width, wide), jnp.zeros(head.classes, wide), jnp.zeros((), wide))
        return fold_rows(step, zero, data, data.train, client, rows_at_once(task, model))

    return sums


def class_counts(data: FederatedData, client: Array, classes: int) -> Array:
    """Returns the number of a client's training rows of each class `[L]` float32."""

    def step(counts: Array, batch: Batch) -> Array:
        members = jnp.where(batch.mask[:, None], jax.nn.one_hot(batch.y, classes, dtype=counts.dtype), 0)
        return counts + members.sum(0)

    return fold_rows(step, jnp.zeros(classes, jnp.float32), data, data.train, client)
