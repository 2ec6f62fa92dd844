"""Tasks for every kind of labels, and one for a loss and metrics of your own."""

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxfl import tree
from jaxfl.data.clients import Batch, FederatedData
from jaxfl.data.describe import label_counts
from jaxfl.data.labels import MASKED, LabelKind
from jaxfl.models.adapters import Network
from jaxfl.models.precision import Compute
from jaxfl.models.weights import read_weights
from jaxfl.schema import checked, quoted
from jaxfl.tasks import contract
from jaxfl.tasks.contract import Task
from jaxfl.tasks.metrics import ACCURACY, LABELS, TOKENS, Metrics, of_targets
from jaxfl.tasks.networks import OutputLosses, network_task
from jaxfl.typing import Array, Key, Params

ClassWeights = Literal["balanced"] | Sequence[float] | None


def start_from(task: Task, path: str | os.PathLike) -> Task:
    """Returns the task whose models all start as the one in a file, whatever the seed.

    A method that draws several models gets the same one several times: what finds its clusters by their different
    starts (IFCA) cannot tell them apart then.

    Args:
        task: what is learned.
        path: of a safetensors file with the leaves of a model by name, see `jaxfl.models.load_weights`. In one with
            PyTorch's names the last layer may be for another number of classes: it then starts as it does without a
            file, with a warning.

    Raises:
        ValueError: as `jaxfl.models.load_weights`, or a number is not finite.
    """
    like = jax.eval_shape(task.init, jax.random.key(0))
    held, head = read_weights(path, like)
    if wrong := [name for name, array in held.items() if not np.isfinite(array).all()]:
        raise ValueError(
            f"{path} must have finite numbers, got NaN or infinity in {wrong[0]}; save the model of a run that has not "
            "diverged."
        )
    order = tree.creation_order(lambda: task.init(jax.random.key(0)))
    if head:
        layer = min(head).rpartition("/")[0]
        warnings.warn(
            f"The last layer, {layer}, starts as the network draws it: {path} has one for another number of classes.",
            stacklevel=2,
        )

    def init(key: Key) -> Params:
        drawn = task.init(key) if head else like
        leaves = [
            leaf if name in head else jnp.asarray(held[name])
            for name, leaf in zip(tree.names(drawn), jax.tree.leaves(drawn), strict=True)
        ]
        # XLA would fold it, for minutes
        model = jax.lax.optimization_barrier(jax.tree.unflatten(jax.tree.structure(drawn), leaves))
        return tree.with_key_order(model, order)

    return task._replace(init=init)


@checked
def classification(
    module: Network,
    data: FederatedData,
    *,
    fast_forms: bool = True,
    compute: Compute = "float32",
    class_weights: ClassWeights = None,
) -> Task:
    """Returns the task of classifying the federation's inputs with a network: softmax cross-entropy.

    The network is a module of flax.linen; the class of a module of flax.nnx, or a function of `rngs` that makes one; or
    `jaxfl.models.Functions(init, apply)`, of any other library.

    The module is called with a batch `[B, ...]` and returns logits `[B, L]`. A module of flax.nnx is in `train()` mode
    while clients train and in `eval()` mode otherwise. If its `__call__` takes `train` (or
    `training`, `is_training`), it is True while clients train and rngs carry `"dropout"`; `deterministic` (or
    `use_running_average`) is False then. If it takes `mask`, it gets the batch's `[B]` mask of real rows (batch
    statistics must leave padding out). All of the module's variables must be parameters, or running averages of batch
    normalisation: these are leaves of the model like any other, but training sets them beside its steps.

    Convolutions and poolings are computed in forms that are fast for many clients, see `jaxfl.models.fast.rewriting`,
    and dense layers are trained in coordinates where that is faster, see `jaxfl.client.fast.coordinates`: the same
    values and gradients but for rounding. `fast_forms=False` leaves the network as it is. With `compute="bfloat16"` the
    network computes in bfloat16, with float32 parameters, losses and steps, and dense layers are not trained in
    coordinates.

    Metrics: `accuracy`, and `f1`, the mean F1 of the classes that a client's test rows have.

    Args:
        module: the network.
        data: the federation, with classes `[P]` as labels; the network is made for the shape of its inputs.
        fast_forms: whether convolutions, poolings and dense layers take the forms that are fast for many clients.
        compute: `"float32"` or `"bfloat16"`.
        class_weights: factors of the rows' losses by class `[L]`, or `"balanced"`, see `class_factors`; None weighs all
            classes 1. As in scikit-learn the loss of a batch is the sum of its rows' weighted losses, divided by their
            number (PyTorch's `weight=` divides by the sum of the weights). It is the loss in training, where a method
            compares models by their losses, and in tests; metrics are not weighted, nor are terms that a method adds.

    Raises:
        ValueError: the labels are no classes, class weights are negative, not finite or not one for each class; or the
            module does not return one logit per class of `data`, keeps
            variables of other kinds, running averages without a mask; or, of flax, has dropout that is off while
            clients train or on while they are tested.

    >>> import jax, jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> sorted(jax.tree.map(jnp.shape, task.init(jax.random.key(0)))["Dense_0"].items())
    [('bias', (10,)), ('kernel', (64, 10))]
    """
    _check_kind("classification", data)
    factors = class_factors(data, class_weights)

    def losses(logits: Array, batch: Batch) -> Array:
        each = optax.softmax_cross_entropy_with_integer_labels(logits, batch.y)  # [B]
        return each if factors is None else each * jnp.asarray(factors, each.dtype)[batch.y]

    what = f"one logit for each of the {data.num_classes} classes"
    outputs = {"shape": (data.num_classes,), "what": what, "mix": contract.mix_classes}
    return network_task(module, data, losses, ACCURACY, fast_forms=fast_forms, compute=compute, **outputs)


def class_factors(data: FederatedData, class_weights: ClassWeights) -> np.ndarray | None:
    """Returns the factor of each class's losses `[L]` float64, or None where no class is weighted.

    `"balanced"` is scikit-learn's n / (C n_c), of the n training rows of all clients that are not held out, of which
    n_c have class c, as the clients see them; C is the number of classes that these rows have, and the others weigh 1.
    The mean factor of a training row is 1. Data that drift have the factors of their first rounds.

    Args:
        data: the federation, with classes as labels.
        class_weights: as for `classification`.

    Raises:
        ValueError: weights are negative, not finite, all 0, or not one for each class.

    >>> from jaxfl.data import load
    >>> data = load("pathological-digits", num_clients=4)
    >>> counts = label_counts(data).sum(0)
    >>> bool(np.allclose(class_factors(data, "balanced") * counts, counts.sum() / 10))
    True
    """
    if class_weights is None:
        return None
    if data.kind != "classification":
        raise ValueError(
            f"class_weights needs classes as labels, got {quoted(class_weights)} for those of {data.name}, whose task "
            f"is {data.kind}; leave it out."
        )
    if isinstance(class_weights, str):
        trains = np.ones(data.num_clients, bool) if data.held_out is None else ~np.asarray(data.held_out)
        counts = label_counts(data)[trains].sum(0)
        mean = counts.sum() / max(np.count_nonzero(counts), 1)
        return np.where(counts > 0, mean / np.maximum(counts, 1), 1.0)
    factors = np.asarray(class_weights, np.float64)
    if factors.shape != (data.num_classes,):
        raise ValueError(
            f"class_weights must be one number for each of the {data.num_classes} classes, got {factors.size}; "
            '"balanced" computes them.'
        )
    with np.errstate(over="ignore"):
        exact = factors.astype(np.float32)  # in which losses are computed
    if not (np.isfinite(exact) & (exact >= 0)).all() or not exact.any():
        raise ValueError(
            f"class_weights must be finite, at least 0 and not all 0, got {factors.tolist()}; 1 weighs a class as "
            "without weights."
        )
    return factors


@checked
def regression(module: Network, data: FederatedData, *, fast_forms: bool = True, compute: Compute = "float32") -> Task:
    """Returns the task of predicting numbers: the mean squared error over a row's targets.

    Args:
        module: as for `classification`; it returns `[B, L]`, a number for each target (L = 1 for labels `[P]`).
        data: with float labels `[P]` or `[P, L]`. Targets of about 0 to 1 in size learn best: nothing is normalised.
        fast_forms, compute: as for `classification`.

    Metrics: `mse` and `mae`, means over rows and targets, lower is better; and `r2`, the share of the targets' variance
    that is predicted, of each client about its own mean (NaN where its targets are all the same).

    Raises:
        ValueError: the labels are not floats; or as for `classification`.

    >>> import jaxfl
    >>> x = np.linspace(0, 1, 12, dtype=np.float32)[:, None]
    >>> parts = np.split(np.arange(12), 3)
    >>> data = jaxfl.data.federate(x, 2 * x[:, 0], parts, parts)
    >>> task = regression(jaxfl.models.MLP(hidden=(8,), num_classes=1), data)
    >>> method = jaxfl.methods.fedavg(task, optax.sgd(0.1), local_epochs=50)
    >>> jaxfl.run(method, data, rounds=10).summary["micro_mse"] < 0.01
    True
    """
    _check_kind("regression", data)

    def losses(outputs: Array, batch: Batch) -> Array:
        return jnp.square(outputs - batch.y.reshape(outputs.shape)).mean(1)

    labels = np.asarray(data.labels, np.float64).reshape(len(data.labels), -1)
    center = labels.mean(0) if len(labels) else np.zeros(data.num_classes)
    what = f"one number for each of the {data.num_classes} targets"
    outputs = {"shape": (data.num_classes,), "what": what, "mix": contract.mix_targets}
    return network_task(module, data, losses, of_targets(center), fast_forms=fast_forms, compute=compute, **outputs)


@checked
def multilabel(module: Network, data: FederatedData, *, fast_forms: bool = True, compute: Compute = "float32") -> Task:
    """Returns the task of telling which labels a row has, any number of them: the mean sigmoid cross-entropy.

    Args:
        module: as for `classification`; it returns `[B, L]`, a logit for each label, above 0 if the row has it.
        data: with labels `[P, L]`, bool.
        fast_forms, compute: as for `classification`.

    Metrics: `accuracy`, the share of labels that are right; `f1`, of all labels together (micro-F1); and `label_f1`,
    the mean F1 of the labels that some row has (macro-F1).

    Raises:
        ValueError: the labels are not several for each row; or as for `classification`.
    """
    _check_kind("multilabel", data)

    def losses(outputs: Array, batch: Batch) -> Array:
        return optax.sigmoid_binary_cross_entropy(outputs, batch.y.astype(outputs.dtype)).mean(1)

    what = f"one logit for each of the {data.num_classes} labels"
    outputs = {"shape": (data.num_classes,), "what": what, "mix": contract.mix_labels}
    return network_task(module, data, losses, LABELS, fast_forms=fast_forms, compute=compute, **outputs)


@checked
def next_token(module: Network, data: FederatedData, *, fast_forms: bool = True, compute: Compute = "float32") -> Task:
    """Returns the task of predicting a token at every position: softmax cross-entropy.

    The loss of a row is the mean over its positions whose label is not -1, that of a batch the mean over its rows, as
    for all tasks: where rows have different numbers of tokens, each row counts the same. Metrics are by token.

    Args:
        module: as for `classification`; it returns logits `[B, T, L]` for tokens `[B, T]`, and must not see the token
            that it is to predict: a network that goes from left to right, or with a causal mask.
        data: with labels `[P, T]`, tokens from 0 to L - 1; -1 where nothing is learned. Usually they are the inputs,
            one position on.
        fast_forms, compute: as for `classification`.

    Metrics: `accuracy`, the share of tokens that are predicted; and `perplexity`, e to the mean loss of a token, lower
    is better.

    Raises:
        ValueError: the labels are not one for each position; or as for `classification`.
    """
    _check_kind("next_token", data)

    def losses(outputs: Array, batch: Batch) -> Array:
        known = batch.y != MASKED  # [B, T]
        each = optax.softmax_cross_entropy_with_integer_labels(outputs, jnp.where(known, batch.y, 0))
        count = jnp.maximum(known.sum(1), 1).astype(each.dtype)
        return jnp.where(known, each, 0).sum(1) / count

    shape = (data.labels.shape[1], data.num_classes)
    what = f"logits of shape {shape}, one for each position and token,"
    outputs = {"shape": shape, "what": what, "mix": contract.mix_classes}
    return network_task(module, data, losses, TOKENS, fast_forms=fast_forms, compute=compute, **outputs)


@checked
def supervised(
    module: Network,
    data: FederatedData,
    losses: OutputLosses,
    metrics: Metrics,
    *,
    fast_forms: bool = True,
    compute: Compute = "float32",
) -> Task:
    """Returns a task with a loss and metrics of your own.

    Args:
        module: as for `classification`, but for the shape of what it returns.
        data: with labels of any kind.
        losses: `(outputs [B, ...], batch) -> [B]`, the loss of each row, labelled `batch.y`; padding is left out
            afterwards.
        metrics: of the outputs.
        fast_forms, compute: as for `classification`.

    Raises:
        ValueError: `losses` or `metrics.counts` return another shape; or as for `classification`.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> def losses(outputs, batch):
    ...     return optax.sigmoid_binary_cross_entropy(outputs[:, 0], (batch.y % 2).astype(outputs.dtype))
    >>> def counts(outputs, batch):
    ...     return {"right": (outputs[:, 0] > 0) == (batch.y % 2 == 1)}
    >>> parity = jaxfl.Metrics(counts, lambda sums, rows: {"parity": sums["right"] / rows})
    >>> task = supervised(jaxfl.models.Logistic(num_classes=1), data, losses, parity)
    >>> result = jaxfl.run(jaxfl.methods.fedavg(task, optax.sgd(0.1)), data, rounds=2, seed=0)
    >>> sorted(name for name in result.summary if name.endswith("parity"))[:3]
    ['macro_parity', 'micro_parity', 'p10_parity']
    """
    return network_task(module, data, losses, metrics, fast_forms=fast_forms, compute=compute)


# What a federation is for, by the kind of its labels.
TASKS: dict[str, Callable[..., Task]] = {
    "classification": classification,
    "regression": regression,
    "multilabel": multilabel,
    "next_token": next_token,
}


def _check_kind(task: LabelKind, data: FederatedData) -> None:
    """Raises ValueError if the labels are of another kind."""
    if data.kind != task:
        raise ValueError(
            f"data must have the labels that {task} needs, got those of {data.name}, {data.labels.dtype} of shape "
            f"{data.labels.shape}; jaxfl.{data.kind} is the task for them."
        )
