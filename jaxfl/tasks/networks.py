"""Tasks of networks: a network's outputs under a loss, in fast forms."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jaxfl import tree
from jaxfl.data.clients import Batch, FederatedData
from jaxfl.models.adapters import MODE_ARGUMENTS, Network, RunningAverages, functions_of, nnx_classes, observed_calls
from jaxfl.models.fast import dense_layers, rewriting
from jaxfl.models.fast.inspection import reads_argument
from jaxfl.models.networks import AutoNetwork
from jaxfl.models.precision import Compute, check_products, in_bfloat16, with_float32_outputs
from jaxfl.tasks.contract import (
    Averages,
    DenseLayers,
    FastForms,
    Mix,
    OnePass,
    Products,
    Task,
    assigned_by_gradient,
    input_dtype,
    masked_mean,
    row_spec,
)
from jaxfl.tasks.metrics import Metrics
from jaxfl.typing import Array, Key, Params

OutputLosses = Callable[[Array, Batch], Array]


def network_task(
    module: Network,
    data: FederatedData,
    losses: OutputLosses,
    metrics: Metrics,
    *,
    fast_forms: bool = True,
    compute: Compute = "float32",
    shape: tuple[int, ...] | None = None,
    what: str = "",
    mix: Mix | None = None,
) -> Task:
    """Returns the task of a network, see `jaxfl.tasks.supervised`.

    Args:
        module: the network.
        data: the federation.
        losses: `(outputs [B, ...], batch) -> [B]`.
        metrics: of the outputs.
        fast_forms: whether operations are computed in forms that are fast for many clients.
        compute: the type that the network computes in.
        shape: that outputs of one row must have, or None.
        what: is to be returned, for the message.
        mix: of the outputs of several models, or None.
    """
    if isinstance(module, AutoNetwork):
        _warn_integer_rows(data)
    example = example_batch(data)
    functions = functions_of(module, example)
    functions = in_bfloat16(functions) if compute == "bfloat16" else functions
    init, apply, running = with_float32_outputs(functions)

    def loss(model: Params, batch: Batch, key: Key | None = None) -> Array:
        return masked_mean(row_losses(model, batch, key), batch.mask)

    def row_losses(model: Params, batch: Batch, key: Key | None = None) -> Array:
        return losses(forward(_without_average_gradients(model, averages), batch, key), batch)

    def offset_losses(model: Params, batch: Batch, key: Key | None, offset: Array) -> Array:
        return losses(forward(_without_average_gradients(model, averages), batch, key) + offset, batch)

    def mean_loss(outputs: Array, batch: Batch) -> Array:
        return masked_mean(losses(outputs, batch), batch.mask)

    model = jax.eval_shape(init, jax.random.key(0))
    tree.check_floats("module", model)
    _check_layers(apply, model, example, data)
    outputs = jax.eval_shape(lambda model: apply(model, example, None), model)
    if not isinstance(outputs, jax.ShapeDtypeStruct):
        raise ValueError(f"module must return one array of outputs [B, ...], got a {type(outputs).__name__}.")
    if compute == "bfloat16":
        for key in (None, jax.random.key(0)):
            check_products(apply, model, example, key)
    if shape is not None and outputs.shape != (1, *shape):
        axes = "flatten a row, x.reshape(len(x), -1), and keep the axis of outputs"
        if data.kind == "next_token":
            axes = "take a network of sequences, such as char-rnn or transformer"
        remedy = f"set num_classes={data.num_classes}" if len(outputs.shape) == 1 + len(shape) else axes
        raise ValueError(
            f"module must return {what} of {data.name}, got outputs of shape {outputs.shape} for one row; {remedy}."
        )
    each = jax.eval_shape(losses, outputs, example)
    if each.shape != (1,):
        raise ValueError(f"losses must return one loss for each row [B], got shape {each.shape} for one row.")
    several = _row_shapes(example, 3)  # 3: not 1
    counts = jax.eval_shape(lambda model, rows: metrics.counts(apply(model, rows, None), rows), model, several)
    if wrong := [leaf.shape for leaf in jax.tree.leaves(counts) if leaf.shape[:1] != (3,)]:
        raise ValueError(
            f"metrics must count for each row [B, ...], got counts of shape {wrong[0]} for three; sum over no rows."
        )
    _check_values(metrics, counts)
    forms = rewriting.replaceable(apply, model, example, None) if fast_forms else ()
    forward = rewriting.in_fast_forms(apply) if forms else apply
    replaced = tuple((kind, count) for kind, count in forms if kind not in rewriting.SILENT)
    dense = _dense_layers(apply, mean_loss, model, example) if fast_forms and running is None else None
    averages = None if running is None else _training_averages(running, mean_loss, fast=bool(forms))

    def alone(model: Params, batch: Batch) -> Any:
        return forward(model, batch, None)

    def both(model: Params, batch: Batch) -> tuple[Array, Array]:
        outputs = alone(model, batch)
        return outputs, mean_loss(outputs, batch)

    # a network that reads which rows are padding computes with the whole batch (batch normalisation), not with blocks
    looks_around, in_training = (_reads_mask(apply, model, example, key) for key in (None, jax.random.key(0)))
    return Task(
        init=init,
        loss=loss,
        outputs=alone,
        metrics=metrics,
        averages=averages,
        losses=row_losses,
        mix=mix,
        offset_losses=offset_losses,
        rows=row_spec(data),
        made_for=loss,
        whole=looks_around or in_training or running is not None,
        fast=FastForms(
            dense=dense,
            replaced=replaced,
            widest=rewriting.widest(alone, model, example) if replaced and not looks_around else 0,
            one_pass=OnePass(both, alone, loss),
        ),
    )


def _reads_mask(apply: Callable[..., Any], model: Params, example: Batch, key: Key | None) -> bool:
    """Returns whether outputs for rows depend on which of them are padding: in a test, or with a key in training."""

    def run(mask: Array, model: Params) -> Any:
        return apply(model, example._replace(mask=mask), key)

    return reads_argument(run, example.mask, model)


def _training_averages(running: RunningAverages, mean_loss: Callable[[Array, Batch], Array], *, fast: bool) -> Averages:
    """Returns the running averages of a network, whose training loss has their new values as gradients."""
    together = rewriting.in_fast_forms(running.apply) if fast else running.apply

    def loss(model: Params, batch: Batch, key: Key | None = None) -> Array:
        outputs, after = together(_without_average_gradients(model, averages), batch, key)
        found, kept = mean_loss(outputs, batch), averages.chosen(model)
        for chosen, before, value in zip(*map(jax.tree.leaves, (kept, model, after)), strict=True):
            found = (
                found + assigned_by_gradient(before, jax.lax.stop_gradient(value)).astype(found.dtype)
                if chosen
                else found
            )
        return found

    averages = Averages(running.names, loss)
    return averages


def _without_average_gradients(model: Params, averages: Averages | None) -> Params:
    """Returns the model, whose running averages no gradient goes through."""
    if averages is None:
        return model
    return jax.tree.map(
        lambda chosen, leaf: jax.lax.stop_gradient(leaf) if chosen else leaf, averages.chosen(model), model
    )


def example_batch(data: FederatedData) -> Batch:
    """Returns a batch of one row of zeros, made on the host, where that is no program."""
    labels = np.zeros((1, *data.labels.shape[1:]), jax.dtypes.canonicalize_dtype(data.labels.dtype))
    return Batch(*map(jnp.asarray, (np.zeros((1, *data.input_shape), input_dtype(data)), labels, np.ones(1, bool))))


def _warn_integer_rows(data: FederatedData) -> None:
    """Warns of rows of integers that may be tokens, padded with -1 or not, which dense layers take for numbers."""
    inputs = data.inputs
    if inputs.dtype == np.uint8 or inputs.dtype.kind not in "iu" or inputs.ndim != 2 or data.std is not None:
        return
    low, high = int(inputs.min(initial=0)), int(inputs.max(initial=0))
    if low >= -1 and high > 1 and data.kind in ("classification", "multilabel"):
        warnings.warn(
            f"inputs of {data.name} are integers {low} to {high} in rows of {inputs.shape[1]}, and model=auto takes "
            f"integers for numbers; for tokens set model=transformer, last=true and vocabulary={high + 1}, and for "
            "numbers use inputs.astype(np.float32).",
            stacklevel=4,
        )


def _row_shapes(example: Batch, count: int) -> Batch:
    """Returns the shapes of a batch of `count` rows."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape[1:]), leaf.dtype), example)


def _dense_layers(
    apply: Callable[..., Array], mean_loss: Callable[[Array, Batch], Array], model: Params, example: Batch
) -> DenseLayers | None:
    """Returns the dense layers that a network has both in training and in a test; None if there are none."""
    keys, names, fast = (None, jax.random.key(0)), tree.names(model), rewriting.in_fast_forms(apply)
    # of two numbers of rows: an array of the model's own, or of positions, may have as many as the one
    found = [
        dense_layers.find_dense_kernels(apply, model, _row_shapes(example, count), key)
        for count in (3, 5)
        for key in keys
    ]
    always = set.intersection(*(set(one.first) for one in found))  # dropout before it makes it an inner one
    both = set.intersection(*(set(one.first + one.inner) for one in found))
    first, inner = sorted(always), sorted(both - always)

    def loss(model: Params, batch: Batch, key: Key | None, products: Products) -> Array:
        places = {names.index(name): product for name, product in products.items()}
        return mean_loss(fast(model, batch, key, products=places), batch)

    return DenseLayers(tuple(names[i] for i in first), tuple(names[i] for i in inner), loss) if both else None


def _check_values(metrics: Metrics, counts: Any) -> None:
    """Raises ValueError unless `metrics.values` works on such counts, tried on ones before any training."""
    sums = jax.tree.map(lambda leaf: np.ones((2, *leaf.shape[1:])), counts)
    try:
        with np.errstate(all="ignore"):
            {name: np.asarray(one, np.float64) for name, one in metrics.values(sums, np.ones(2)).items()}
    except Exception as error:
        shapes = jax.tree.map(lambda leaf: f"[N{''.join(f', {size}' for size in leaf.shape[1:])}]", counts)
        raise ValueError(
            f"metrics.values must make a dictionary of arrays [N] of sums {shapes} and rows [N], but it ended with "
            f"{type(error).__name__}: {error}."
        ) from error


def _check_layers(
    apply: Callable[[Params, Batch, Key | None], Array], model: Params, example: Batch, data: FederatedData
) -> None:
    """Checks the layers of a module of flax for mistakes that would go unnoticed.

    Raises:
        ValueError: dropout is off in training, or on in a test; or tokens of the data have no embedding, for which flax
            gives NaN, or are negative, for which it counts from the end.
    """
    pixels = data.inputs.dtype == np.uint8 or not np.issubdtype(data.inputs.dtype, np.integer)
    embeddings = (nn.Embed, *nnx_classes("Embed"))
    tokens, least = (0, 0) if pixels else (int(data.inputs.max(initial=-1)) + 1, int(data.inputs.min(initial=0)))

    def observer(train: bool):
        def call(usual, args, kwargs, context):
            module = context.module
            embeds = isinstance(module, embeddings) and args and args[0] is example.x
            if embeds and least < 0:
                raise ValueError(
                    f"inputs of {data.name} must be tokens from 0 for an embedding, got {least}, which would be one of "
                    "the last tokens; give padding a token of its own."
                )
            if embeds and module.num_embeddings < tokens:
                raise ValueError(
                    f"module must have an embedding for each of the {tokens} tokens of {data.name}, got "
                    f"{module.num_embeddings}; give a network of jaxfl vocabulary={tokens}, and one of your "
                    f"own an Embed({tokens}, ...)."
                )
            drops = hasattr(module, "deterministic") and getattr(module, "rate", getattr(module, "dropout_rate", 0))
            if context.method_name == "__call__" and drops:
                given = inspect.signature(usual).bind(*args, **kwargs).arguments.get("deterministic")
                if (getattr(module, "deterministic", None) if given is None else given) == train:
                    own = (
                        "; or leave deterministic out, which jaxfl sets"
                        if isinstance(module, nnx_classes("Module"))
                        else ""
                    )
                    raise ValueError(
                        f"module must have its dropout on while clients train and off while they are tested, got "
                        f"{type(module).__name__} that is {'off in training' if train else 'on in a test'}; give "
                        f"__call__ an argument train: bool (or {', '.join(list(MODE_ARGUMENTS)[1:])}) and pass it on, "
                        f"for example nn.Dropout(0.5, deterministic=not train){own}."
                    )
            return usual(*args, **kwargs)

        return call

    for train in (True, False):
        key = jax.random.key(0) if train else None
        with observed_calls(observer(train)):
            jax.eval_shape(lambda model, key=key: apply(model, example, key), model)
