"""What is learned: the initial model, the loss of a batch and the outputs that metrics are computed from."""

import inspect
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from jaxfl import tree
from jaxfl.data.clients import Batch, FederatedData
from jaxfl.models import dense_layers, rewriting
from jaxfl.models.adapters import TRAINING, Network, functions_of
from jaxfl.schema import checked
from jaxfl.typing import Array, Key, Params

Products = Mapping[str, Callable[[Array], Array]]  # in place of `x @ W`, by the name of W


class DenseLayers(NamedTuple):
    """Kernels `[d, h]` that a network multiplies rows with once; `jaxfl.client.factored` may train them faster.

    Attributes:
        first: names of kernels, as `tree.names` has them, multiplied with what is made of each row by itself, without
            parameters or keys.
        inner: those multiplied with what other layers have made.
        loss: `(model, batch, key, products) -> []`, the task's loss with `products[name](x) [B, h]` in place of
            `x @ kernel [d, h]`, for any of the names; it reads such kernels in no other way.
    """

    first: tuple[str, ...]
    inner: tuple[str, ...]
    loss: Callable[[Params, Batch, Key | None, Products], Array]


class Task(NamedTuple):
    """A learning problem; three pure functions.

    Attributes:
        init: `key -> model`.
        loss: `(model, batch, key) -> []`, the mean over the batch's real rows; `key` is None outside training, where
            dropout is off.
        logits: `(model, batch) -> [B, L]`, with dropout off.
        dense: its dense layers, or None where none are known.
        replaced: kinds and counts of the network's operations that are computed in a fast form of their own.
    """

    init: Callable[[Key], Params]
    loss: Callable[[Params, Batch, Key | None], Array]
    logits: Callable[[Params, Batch], Array]
    dense: DenseLayers | None = None
    replaced: tuple[tuple[str, int], ...] = ()


@checked
def classification(module: Network, data: FederatedData, *, fast_forms: bool = True) -> Task:
    """Returns the task of classifying the federation's inputs with a network: softmax cross-entropy.

    The network is a module of flax.linen; the class of a module of flax.nnx, or a function of `rngs` that makes one; or
    `jaxfl.models.Functions(init, apply)`, of any other library.

    The module is called with a batch `[B, ...]` and returns logits `[B, L]`. A module of flax.nnx is in `train()` mode
    while clients train and in `eval()` mode otherwise. If its `__call__` takes `train` (or
    `training`, `is_training`), it is True while clients train and rngs carry `"dropout"`; `deterministic` (or
    `use_running_average`) is False then. If it takes `mask`, it gets the batch's `[B]` mask of real rows (batch
    statistics must leave padding out). All of the module's variables must be parameters.

    Convolutions and poolings are computed in forms that are fast for many clients, see `jaxfl.models.rewriting`, and
    dense layers are trained by their factors where that is faster, see `jaxfl.client.factored`: the same values and
    gradients but for rounding. `fast_forms=False` leaves the network as it is.

    Raises:
        ValueError: the module does not return one logit per class of `data`, keeps variables other than parameters, or
            has dropout that is off while clients train or on while they are tested.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> sorted(jax.tree.map(jnp.shape, task.init(jax.random.key(0)))["Dense_0"].items())
    [('bias', (10,)), ('kernel', (64, 10))]
    """
    dtype = jax.dtypes.canonicalize_dtype(data.inputs.dtype if data.std is None else data.std.dtype)
    zeros = np.zeros((1, *data.input_shape), dtype), np.zeros(1, np.int32), np.ones(1, bool)
    example = Batch(*map(jnp.asarray, zeros))  # made on the host, where that is no program
    init, apply = functions_of(module, example)

    def loss(model: Params, batch: Batch, key: Key | None = None) -> Array:
        return mean_loss(forward(model, batch, key), batch)

    def mean_loss(logits: Array, batch: Batch) -> Array:
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.y)  # [B]
        return masked_mean(losses, batch.mask)

    model = jax.eval_shape(init, jax.random.key(0))
    _check_dropout(apply, model, example)
    shape = jax.eval_shape(lambda model: apply(model, example, None), model).shape
    if shape != (1, data.num_classes):
        raise ValueError(
            f"module must return one logit for each of the {data.num_classes} classes of {data.name}, got outputs of "
            f"shape {shape} for one row; set num_classes={data.num_classes}."
        )
    replaced = rewriting.replaceable(apply, model, example, None) if fast_forms else ()
    forward = rewriting.in_fast_forms(apply) if replaced else apply
    dense = _dense_layers(apply, mean_loss, model, example) if fast_forms else None
    return Task(init, loss, lambda model, batch: forward(model, batch, None), dense, replaced)


def _dense_layers(
    apply: Callable[..., Array], mean_loss: Callable[[Array, Batch], Array], model: Params, example: Batch
) -> DenseLayers | None:
    """Returns the dense layers that a network has both in training and in a test; None if there are none."""
    rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((3, *leaf.shape[1:]), leaf.dtype), example)  # 3: not 1
    found = [dense_layers.find(apply, model, rows, key) for key in (None, jax.random.key(0))]
    names, fast = tree.names(model), rewriting.in_fast_forms(apply)
    first = [place for place in found[0].first if place in found[1].first]  # dropout before it makes it an inner one
    both = [place for place in sum(found[0], ()) if place in sum(found[1], ())]
    inner = sorted(set(both) - set(first))

    def loss(model: Params, batch: Batch, key: Key | None, products: Products) -> Array:
        places = {names.index(name): product for name, product in products.items()}
        return mean_loss(fast(model, batch, key, products=places), batch)

    return DenseLayers(tuple(names[i] for i in first), tuple(names[i] for i in inner), loss) if both else None


def without_dropout(task: Task) -> Task:
    """Returns the task whose loss is that of a model as it is evaluated: with or without a key, nothing is dropped."""

    def loss(model: Params, batch: Batch, key: Key | None = None) -> Array:
        del key
        return task.loss(model, batch, None)

    dense = task.dense
    if dense is not None:
        with_products = dense.loss
        dense = dense._replace(loss=lambda model, batch, key, products: with_products(model, batch, None, products))
    return task._replace(loss=loss, dense=dense)


def _check_dropout(apply: Callable[[Params, Batch, Key | None], Array], model: Params, example: Batch) -> None:
    """Raises ValueError if a module's dropout is off in training, where nobody would notice, or on in a test."""

    def spy(train: bool):
        def call(usual, args, kwargs, context):
            module = context.module
            drops = hasattr(module, "deterministic") and getattr(module, "rate", getattr(module, "dropout_rate", 0))
            if context.method_name == "__call__" and drops:
                given = inspect.signature(usual).bind(*args, **kwargs).arguments.get("deterministic")
                if (module.deterministic if given is None else given) == train:
                    raise ValueError(
                        f"module must have its dropout on while clients train and off while they are tested, got "
                        f"{type(module).__name__} that is {'off in training' if train else 'on in a test'}; give "
                        f"__call__ an argument train: bool (or {', '.join(list(TRAINING)[1:])}) and pass it on, for "
                        "example nn.Dropout(0.5, deterministic=not train)."
                    )
            return usual(*args, **kwargs)

        return call

    for train in (True, False):
        key = jax.random.key(0) if train else None
        with nn.intercept_methods(spy(train)):
            jax.eval_shape(lambda model, key=key: apply(model, example, key), model)


def masked_mean(values: Array, mask: Array) -> Array:
    """Returns the mean of `values [B]` over the rows where `mask [B]` holds; 0 where none does.

    >>> float(masked_mean(jnp.array([1.0, jnp.nan]), jnp.array([True, False])))
    1.0
    """
    # where before the sum: 0 * NaN of a padding row would poison the mean
    return jnp.where(mask, values, 0).sum() / jnp.maximum(mask.sum(), 1).astype(values.dtype)
