"""Matched averaging: hidden neurons are brought into one order before models are averaged.

The hidden neurons of a layer can be exchanged without changing what a network computes, if the next layer's inputs are
exchanged too. Two models of one function may thus have a mean that computes nothing like it; matched neuron by neuron,
their mean is the function again. Layer by layer from the input, as in FedMA, a model's neurons are assigned to those of
a reference,

    order = argmin_p sum_i |reference_i - w_{p(i)}|^2,        w_i: the weights into neuron i, its bias appended

and the next layer's inputs follow: whole k x k filters of a convolution, and of a dense layer behind one, the inputs of
all pixels of a channel. The layer's width is fixed, so the last layer's neurons, the classes, stay where they are.

Under FedMA's posterior the score of a pair, |v_i + w_l / s^2|^2 / (s_i + 1 / s^2) less terms without l, depends on w_l
through <v_i, w_l> and |w_l|^2 alone. At fixed width every neuron of the model is matched with one of the reference, and
all of those equally often. Then the sum of the scores is largest where the sum above is least: the posterior gives the
same order. It differs in the mean, see `posterior_mean`.

References: Wang, Yurochkin, Sun, Papailiopoulos and Khazaeni, "Federated Learning with Matched Averaging", ICLR 2020
(section 2.2 and algorithm 1); Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", 2019.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
from optax.assignment import hungarian_algorithm

from jaxfl import tree
from jaxfl.models.adapters import observed_modules
from jaxfl.models.layer_kinds import kernel_layers
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

BIAS_MEAN = 0.1  # FedMA's prior of biases; that of all other weights is 0


class Layer(NamedTuple):
    """The leaves of one layer, by their indices in `jax.tree.leaves`; the last axis of each is the layer's neurons."""

    kernel: int  # [..., inputs, neurons]
    vectors: tuple[int, ...]  # [neurons] each: bias, and scale and bias of a normalisation behind the kernel


def chain(task: Task) -> tuple[Layer, ...]:
    """Returns the layers of the task's model from input to output.

    The model must be a plain chain of layers, created in the order in which it computes: the inputs of every kernel are
    the outputs of the kernel before it, channel by channel (`[kh, kw, channels, neurons]`), or flattened with the
    channels as the fastest axis (`[pixels * channels, neurons]`), as flax does. Branches and skip connections cannot be
    detected from shapes; a module that has them says so by an attribute, `branches = True`, and is not matched.

    Raises:
        ValueError: a shape does not fit, there is a recurrent cell or an attention, or a module has branches.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> chain(jaxfl.classification(jaxfl.models.MLP(hidden=(16,), num_classes=10), data))
    (Layer(kernel=1, vectors=(0,)), Layer(kernel=3, vectors=(2,)))
    """
    created: list[
        str
    ] = []  # names of the leaves in the order in which the model creates them: trees are sorted by name

    def record_names(key: Key) -> Params:
        model = task.init(key)
        created.extend(_names_as_made(model))
        return model

    with observed_modules() as modules:
        model = jax.eval_shape(record_names, jax.random.key(0))
    for module in modules.values():
        if getattr(module, "branches", False):
            raise ValueError(
                f"the model must be a plain chain of layers for its neurons to be matched, got {module.__name__}, "
                "which has branches; average such a model by index (fesem)."
            )
    names, shapes = tree.names(model), [leaf.shape for leaf in jax.tree.leaves(model)]
    for name, kind in ((f"{layer.name}/kernel", layer.kind) for layer in kernel_layers(task.init)):
        if kind in ("recurrent", "attention"):
            raise _chain_error(name, shapes[names.index(name)], f"its layer is {kind}")
    layers: list[Layer] = []
    for place in map(names.index, created):
        shape = shapes[place]
        if len(shape) > 1:
            width = shapes[layers[-1].kernel][-1] if layers else 1
            if shape[-2] % width or (len(shape) > 2 and layers and shape[-2] != width):
                raise _chain_error(
                    names[place], shape, f"its inputs are not the {width} outputs of the kernel before it"
                )
            layers.append(Layer(place, ()))
        elif layers:
            if shape != shapes[layers[-1].kernel][-1:]:
                raise _chain_error(
                    names[place], shape, "it has another length than the outputs of the kernel before it"
                )
            layers[-1] = Layer(layers[-1].kernel, (*layers[-1].vectors, place))
    return tuple(layers)


def match(model: Params, reference: Params, layers: Sequence[Layer]) -> Params:
    """Returns the model with its hidden neurons in the order of the reference's: the same function of the inputs.

    Args:
        model: of one client.
        reference: a model of the same shapes.
        layers: of `chain`.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.MLP(hidden=(16,), num_classes=10), data)
    >>> model = task.init(jax.random.key(0))
    >>> reversed = permute(model, chain(task), [jnp.arange(16)[::-1]])
    >>> bool(jnp.array_equal(tree.ravel(reversed), tree.ravel(model)))
    False
    >>> bool(jnp.array_equal(tree.ravel(match(reversed, model, chain(task))), tree.ravel(model)))
    True
    """
    treedef = jax.tree.structure(model)
    leaves, reference_leaves = jax.tree.leaves(model), jax.tree.leaves(reference)
    for layer, following in pairwise(layers):
        order = assign_neurons(_neuron_weights(leaves, layer), _neuron_weights(reference_leaves, layer))
        leaves = _reorder(leaves, layer, following, order)
    return jax.tree.unflatten(treedef, leaves)


def permute(model: Params, layers: Sequence[Layer], orders: Sequence[Array]) -> Params:
    """Returns the model with the neurons of each hidden layer in another order: the same function of the inputs.

    Args:
        model: of one client.
        layers: of `chain`.
        orders: for each layer but the last, the index of the neuron that comes to every position `[neurons]`.
    """
    leaves = jax.tree.leaves(model)
    for (layer, following), order in zip(pairwise(layers), orders, strict=True):
        leaves = _reorder(leaves, layer, following, order)
    return jax.tree.unflatten(jax.tree.structure(model), leaves)


def assign_neurons(rows: Array, reference: Array) -> Array:
    """Returns the row matched with each reference row, `[H]` int32: the least sum of squared distances.

    The Hungarian algorithm solves it exactly, on the device. It is skipped where every reference row is nearest to the
    row of the same index, which is then the best order. That is usual among models that started from the reference.

    Args:
        rows: `[H, d]`.
        reference: `[H, d]`.

    >>> assign_neurons(jnp.array([[5.0], [1.0], [3.0]]), jnp.array([[1.0], [3.1], [4.9]])).tolist()
    [1, 2, 0]
    """
    product = jnp.matmul(reference, rows.T, precision="highest")  # [H, H]
    cost = jnp.square(rows).sum(1)[None] - 2 * product  # less a constant for every reference row
    places = jnp.arange(rows.shape[0], dtype=jnp.int32)
    # a model that has diverged keeps its order
    settled = (jnp.diagonal(cost)[:, None] <= cost).all() | ~jnp.isfinite(cost).all()

    def solve() -> Array:
        # mapped over clients both branches run: the loop must not wait for clients whose order is settled
        easy = 1 - jnp.eye(rows.shape[0], dtype=cost.dtype)
        mine, order = hungarian_algorithm(jnp.where(settled, easy, cost).astype(jnp.result_type(float)))
        return jnp.zeros_like(places).at[mine].set(order.astype(jnp.int32))

    return jax.lax.cond(settled, lambda: places, solve)


def posterior_mean(mean: Params, count: Array, layers: Sequence[Layer], weight: float) -> Params:
    """Returns FedMA's posterior mean of matched models: the mean with the prior's mean added as `weight` more models.

    With s^2 the variance of a model's neuron around the common one, and s_0^2 that of the prior, weight = s^2 / s_0^2:
    1 in FedMA's code. The prior's mean is 0, of biases 0.1. The last layer is a plain mean.

    Args:
        mean: of `count` matched models.
        count: `[]`.
        layers: of `chain`.
        weight: 0 returns the mean.
    """
    leaves = jax.tree.leaves(mean)
    for layer in layers[:-1]:
        for place, prior in ((layer.kernel, 0.0), *((vector, BIAS_MEAN) for vector in layer.vectors)):
            leaf = leaves[place]
            share = (weight / (count + weight)).astype(leaf.dtype)
            leaves[place] = leaf + share * (jnp.asarray(prior, leaf.dtype) - leaf)
    return jax.tree.unflatten(jax.tree.structure(mean), leaves)


def _neuron_weights(leaves: Sequence[Array], layer: Layer) -> Array:
    """Returns the weights into every neuron of a layer, its biases and scales appended `[neurons, d]`."""
    kernel = leaves[layer.kernel]
    return jnp.concatenate([kernel.reshape(-1, kernel.shape[-1]), *(leaves[place][None] for place in layer.vectors)]).T


def _reorder(leaves: Sequence[Array], layer: Layer, following: Layer, order: Array) -> list[Array]:
    """Returns the leaves with a layer's neurons, and the next layer's inputs, in the given order."""
    moved = list(leaves)
    for place in (layer.kernel, *layer.vectors):
        moved[place] = jnp.take(moved[place], order, axis=-1)
    kernel = moved[following.kernel]
    width = order.shape[0]
    blocks = kernel.reshape(*kernel.shape[:-2], kernel.shape[-2] // width, width, kernel.shape[-1])
    moved[following.kernel] = jnp.take(blocks, order, axis=-2).reshape(kernel.shape)
    return moved


def _names_as_made(node: Params, prefix: str = "") -> list[str]:
    """Returns the names of the leaves in the order of the dictionaries, a layer's kernel before its vectors."""
    if not isinstance(node, dict):
        return [prefix]
    keys = sorted(node, key=lambda key: getattr(node[key], "ndim", 0) == 1)  # stable
    return [name for key in keys for name in _names_as_made(node[key], f"{prefix}/{key}" if prefix else str(key))]


def _chain_error(name: str, shape: tuple[int, ...], reason: str) -> ValueError:
    """Returns the error of a model that is no plain chain of layers."""
    return ValueError(
        f"the model must be a plain chain of layers for its neurons to be matched, got {name} of shape {list(shape)}: "
        f"{reason}; average such a model by index (fesem)."
    )
