"""Training of dense kernels in coordinates: exact, and several times as fast where a client has few rows.

A client that multiplies rows x [n, d] with a kernel W [d, h] does so in every step. The gradient of W is x^T g, with
g [n, h] that of the products x W, so W never leaves

    W = X^T A + a * W_0 + b * V + ...        (a, b [h]: one factor per column)

where X [m, d] are the rows that W has been multiplied with so far, W_0 is the kernel that it starts from and V another
one that the optimiser refers to (the anchor of a proximal term). Training on the coordinates (A, a, b) in place of W is
the same training, for every optimiser that only adds and scales: SGD with momentum, Nesterov's too, weight decay,
schedules, proximal pulls. The loss needs the products alone,

    x W = (x X^T) A + a * (x W_0) + b * (x V).

A first dense layer sees the client's rows themselves, the same in every step: X is known, x X^T and x W_0 are made
once, and a step on B rows costs B n h operations instead of 4 B d h, and no pass over W. Of an inner layer x is what
the layers before make of the rows, so that X grows by B rows a step; saved are the gradient and the update of a kernel
that no cache holds. W itself is made once at the end.

Whether an optimiser is of that kind is read off its program (`follows`), never guessed by its name. All of this is
decided while a program is traced. `decisions` collects what was decided, for a footprint and a run's summary: they
report what was compiled, where a rule of their own would be a second guess at it.

W = X^T A + sum_i c_i * W_i is held as `[m + k, h]`: A [m, h], a row for each row of X [m, d], and below it the factors
c_i [h] of the k kernels W_i.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxfl import tree
from jaxfl.client.fast.optimizer_programs import OptimizerProgram
from jaxfl.data.clients import Batch
from jaxfl.models.fast.products import times
from jaxfl.models.fast.rewriting import ProductFunction
from jaxfl.tasks import DenseLayers, Task
from jaxfl.tasks.contract import dense_layers_of
from jaxfl.typing import Array, Key, Params

KERNEL_PROGRAM = "make_kernel"  # the program that makes W, found by this name in `jaxfl.server.coordinate_sums`
USED = "yes"  # the decision that a local training is one in coordinates; another says why not


class LayerInputs(NamedTuple):
    """The inputs of an inner layer, and their products.

    Attributes:
        rows: X `[m, d]`, or those of a step `[B, d]`.
        products: X W_i, `k * [m, h]`, or `k * [B, h]`.
    """

    rows: Array
    products: list[Array]


class StepMemory(NamedTuple):
    """The inputs of inner layers in all steps of a local training.

    Attributes:
        step: the number of steps so far `[]`.
        seen: the inputs of each layer, by the name of its kernel; 0 for steps to come.
    """

    step: Array | int
    seen: dict[str, LayerInputs]

    def after(self, seen: dict[str, LayerInputs]) -> "StepMemory":
        """Returns the memory after a step with these inputs."""

        def put(kept: Array, new: Array) -> Array:
            return jax.lax.dynamic_update_slice(kept, new, (self.step * len(new), 0))

        return StepMemory(self.step + 1, jax.tree.map(put, self.seen, seen))


class FirstKernel(NamedTuple):
    """A kernel whose layer sees the client's rows themselves: X is known, and the same in every step.

    Attributes:
        name: of the kernel.
        position: among the leaves of the model.
        kernels: W_i, `k * [d, h]`; W starts as the first of them.
        rows: X `[n, d]`.
        products: X W_i, `k * [n, h]`.
        gram: X X^T `[n, n + k]`, with columns of zeros: cheaper than to cut the coordinates.
    """

    name: str
    position: int
    kernels: list[Array]
    rows: Array
    products: list[Array]
    gram: Array

    @classmethod
    def of(cls, name: str, position: int, kernels: list[Array], rows: Array) -> "FirstKernel":
        """Returns the kernel, with the products that all steps share."""
        return cls(name, position, kernels, rows, [times(rows, one) for one in kernels], _gram(rows, len(kernels)))

    @property
    def count(self) -> int:
        """The number m of rows in X."""
        return self.rows.shape[0]

    def known(self, leaf: Array, positions: Array | None) -> Array:
        """Returns x W `[B, h]` for the rows at `positions`."""
        gram, products = self.gram, self.products
        if positions is not None:
            gram, products = tree.take((gram, products), positions)
        return gram @ leaf + _scaled_products(self, leaf, products)

    def product(self, known: Array, leaf: Array, memory: StepMemory, seen: dict[str, LayerInputs]) -> ProductFunction:
        """Returns the function `x -> x W` that is taken in place of the product."""
        del leaf, memory, seen
        return lambda x: known

    def gradient(self, slope: Array, leaf: Array, positions: Array | None, memory: StepMemory) -> Array:
        """Returns the gradient `[m + k, h]` from that of the products `[B, h]`."""
        del memory
        if positions is None:
            return jnp.pad(slope, ((0, len(self.kernels)), (0, 0)))
        return jnp.zeros_like(leaf).at[positions].set(slope, unique_indices=True)


class InnerKernel(NamedTuple):
    """A kernel whose layer sees the outputs of other layers: every step adds its B rows to X.

    Attributes:
        name: of the kernel.
        position: among the leaves of the model.
        kernels: W_i, `k * [d, h]`; W starts as the first of them.
        width: B.
        count: m, B for every step.
    """

    name: str
    position: int
    kernels: list[Array]
    width: int
    count: int

    @property
    def empty(self) -> LayerInputs:
        """The inputs before the first step: zeros."""
        (inputs, outputs), dtype = self.kernels[0].shape, self.kernels[0].dtype
        return LayerInputs(
            jnp.zeros((self.count, inputs), dtype), [jnp.zeros((self.count, outputs), dtype)] * len(self.kernels)
        )

    def known(self, leaf: Array, positions: Array | None) -> Array:
        """Returns zeros `[B, h]` that `product` adds: their gradient is that of the products."""
        del positions
        return jnp.zeros((self.width, leaf.shape[1]), leaf.dtype)

    def product(self, known: Array, leaf: Array, memory: StepMemory, seen: dict[str, LayerInputs]) -> ProductFunction:
        """Returns the function `x -> x W` that is taken in place of the product; it puts x in `seen`."""

        def of(x: Array) -> Array:
            products = [times(x, one) for one in self.kernels]
            seen[self.name] = LayerInputs(x, products)
            before = memory.seen[self.name].rows
            return known + (x @ before.T) @ leaf[: self.count] + _scaled_products(self, leaf, products)

        return of

    def gradient(self, slope: Array, leaf: Array, positions: Array | None, memory: StepMemory) -> Array:
        """Returns the gradient `[m + k, h]` from that of the products `[B, h]`."""
        del positions
        return jax.lax.dynamic_update_slice(jnp.zeros_like(leaf), slope, (memory.step * self.width, 0))


Kernel = FirstKernel | InnerKernel


def kernel_coordinates(kernel: Kernel, one: Array) -> Array:
    """Returns the coordinates `[m + k, h]` of one of its kernels W_i; zeros for any other, which is not used."""
    nothing = jnp.zeros((kernel.count + len(kernel.kernels), one.shape[1]), one.dtype)
    found = [index for index, other in enumerate(kernel.kernels) if other is one]
    return nothing.at[kernel.count + found[0]].set(1) if found else nothing


def full_kernel(kernel: Kernel, leaf: Array, memory: StepMemory) -> Array:
    """Returns W `[d, h]`."""
    if isinstance(kernel, FirstKernel):
        rows, gram, products = kernel.rows, kernel.gram, kernel.products
    else:
        rows, products = memory.seen[kernel.name]
        gram = _gram(rows, len(products))
    return _made(rows, gram, leaf, kernel.kernels, products)


def _made(rows: Array, gram: Array, leaf: Array, kernels: list[Array], products: list[Array]) -> Array:
    """Returns W `[d, h]`, which `in_coordinates_of` knows from now on."""
    kernel = make_kernel(rows, gram, leaf, kernels, products)
    if (known := _known.get()) is not None:
        known.append((kernel, KernelInCoordinates(rows, gram, leaf, kernels, products, leaf)))
    return kernel


@jax.jit
def make_kernel(rows: Array, gram: Array, leaf: Array, kernels: list[Array], products: list[Array]) -> Array:
    """Returns W `[d, h]`, see `KERNEL_PROGRAM`.

    Args:
        rows: X `[n, d]`.
        gram: X X^T `[n, n + k]`; what is summed in place of W needs it and the products, W does not.
        leaf: the coordinates `[n + k, h]`.
        kernels: W_i, `k * [d, h]`.
        products: X W_i, `k * [n, h]`.
    """
    del gram, products
    scaled = [leaf[len(rows) + i][None, :] * one for i, one in enumerate(kernels)]
    return rows.T @ leaf[: len(rows)] + sum(scaled)


def _gram(rows: Array, kernels: int) -> Array:
    """Returns X X^T `[m, m + k]`, with columns of zeros."""
    return jnp.pad(rows @ rows.T, ((0, 0), (0, kernels)))


def kernel_norm(inner: Array, leaf: Array, products: Sequence[Array], squares: Array) -> Array:
    """Returns the Euclidean norm of a kernel `[]`.

    Args:
        inner: X X^T A `[n, h]`.
        leaf: the coordinates `[n + k, h]`.
        products: X W_j, `k * [n, h]`.
        squares: sums over the d inputs of W_i * W_j `[k, k, h]`.
    """
    slopes, scales = leaf[: len(inner)], leaf[len(inner) :]
    mixed = sum(scale[None, :] * product for scale, product in zip(scales, products, strict=True))
    own = (scales[:, None, :] * scales[None, :, :] * squares).sum()
    return jnp.sqrt(jnp.maximum((slopes * (inner + 2 * mixed)).sum() + own, 0))


def kernel_squares(kernels: Sequence[Array]) -> Array:
    """Returns the sums over the d inputs of W_i * W_j `[k, k, h]`."""
    return jnp.stack([jnp.stack([(one * other).sum(0) for other in kernels]) for one in kernels])


@dataclasses.dataclass(frozen=True)
class KernelInCoordinates:
    """A kernel W that a client has ended with, or a difference or a multiple of it; see `make_kernel`."""

    rows: Array  # X [n, d]
    gram: Array  # X X^T [n, n + k], its last columns 0
    leaf: Array  # [n + k, h]
    kernels: list[Array]  # W_i, k * [d, h]
    products: list[Array]  # X W_i, k * [n, h]
    like: Array  # coordinates with the same A: one product with X X^T is enough for all of these

    def has(self, kernel: Array) -> bool:
        """Returns whether a kernel is one of the W_i."""
        return any(one is kernel for one in self.kernels)

    def plus(self, factor: float, kernel: Array) -> "KernelInCoordinates":
        """Returns the sum with a factor times one of the W_i."""
        column = np.zeros((len(self.leaf), 1), self.leaf.dtype)
        column[len(self.rows) + next(place for place, one in enumerate(self.kernels) if one is kernel)] = factor
        return dataclasses.replace(self, leaf=self.leaf + column)

    def times(self, factor: Array) -> "KernelInCoordinates":
        """Returns the product with a factor `[]`."""
        leaf = factor.astype(self.leaf.dtype) * self.leaf
        return dataclasses.replace(self, leaf=leaf, like=leaf)

    def where(self, chosen: Array, other: "KernelInCoordinates") -> "KernelInCoordinates":
        """Returns itself where a bool `[]` is True, and one with the same X and W_i elsewhere."""
        leaf = jnp.where(chosen, self.leaf, other.leaf)
        return dataclasses.replace(self, leaf=leaf, like=leaf)

    def norm(self) -> Array:
        """Returns its Euclidean norm `[]`; squares of tiny or huge coordinates do not underflow or overflow."""
        gram = self.gram
        if jax.default_backend() != "cpu":  # elsewhere products of training may have the digits of bfloat16
            gram = jnp.pad(jnp.matmul(self.rows, self.rows.T, precision="highest"), ((0, 0), (0, len(self.kernels))))
        inner, largest = jnp.matmul(gram, self.like, precision="highest"), jnp.abs(self.leaf).max()
        scale = jnp.where(largest > 0, largest, 1)
        return scale * kernel_norm(inner / scale, self.leaf / scale, self.products, kernel_squares(self.kernels))

    def array(self) -> Array:
        """Returns it as an array `[d, h]`, which `in_coordinates_of` knows."""
        return _made(self.rows, self.gram, self.leaf, self.kernels, self.products)


_known: ContextVar[list[tuple[Array, KernelInCoordinates]] | None] = ContextVar("known", default=None)


@contextlib.contextmanager
def known_kernels() -> Iterator[None]:
    """Lets `in_coordinates_of` know the kernels of the program that is traced inside."""
    token = _known.set([])
    try:
        yield
    finally:
        _known.reset(token)


def in_coordinates_of(kernel: Array) -> KernelInCoordinates | None:
    """Returns the coordinates that a kernel was made from in this program; None for any other array."""
    return next((made for one, made in _known.get() or () if one is kernel), None)


def _scaled_products(kernel: Kernel, leaf: Array, products: Sequence[Array]) -> Array:
    """Returns the sum over i of the products with W_i, each times its factors c_i."""
    return sum((leaf[kernel.count + i][None, :] * one for i, one in enumerate(products)), jnp.zeros((), leaf.dtype))


PASS_COST = 8  # multiplications that fit into the time in which a step reads and writes a number of the kernel
UNCACHED_SIZE = 1 << 22  # numbers of a kernel that no cache holds: 16 MB


class TrainingForm(NamedTuple):
    """A form of local training: in coordinates, or as usual.

    Attributes:
        model: what training starts from; with the coordinates of some kernels in their places.
        extra: the optimiser's extra arguments, likewise.
        loss_and_gradient: `(model, memory, key, positions) -> (loss, gradient, memory)` of such a model; of the rows at
            `positions [B]`, which must differ, or of all where they are None.
        memory: the inputs of inner layers, before the first step.
        restore: `(model, memory) -> model`: with the kernels.
    """

    model: Params
    extra: dict[str, Any]
    loss_and_gradient: Callable[[Params, StepMemory, Key, Array | None], tuple[Array, Params, StepMemory]]
    memory: StepMemory = StepMemory(0, {})
    restore: Callable[[Params, StepMemory], Params] = lambda model, memory: model


def in_coordinates(
    task: Task,
    optimizer: optax.GradientTransformationExtraArgs,
    model: Params,
    batch: Batch,
    extra: dict[str, Any],
    epochs: int,
    steps: int = 1,
    filled: float = 1.0,
) -> TrainingForm | str:
    """Returns the same training in coordinates, or the reason why it would not be the same or not be faster.

    Args:
        task: what is learned; `task.fast.dense` says where its dense layers are.
        optimizer: the local optimiser.
        model: what training starts from.
        batch: the rows that it takes in an epoch `[n, ...]`.
        extra: what the optimiser's update is given by name. Trees like the model (an anchor) get coordinates as well.
        epochs: how often training takes them all, or at most.
        steps: of an epoch: one, of all rows, or more, of a mini-batch each.
        filled: share of the rows that usual training would take.
    """
    dense = dense_layers_of(task)
    if dense is None:
        return "no dense layer is known" if task.fast.dense is None else "the loss has been replaced"
    alike = {name: value for name, value in extra.items() if tree_like(value, model)}
    others = {name: value for name, value in extra.items() if name not in alike}
    program = OptimizerProgram.of(optimizer, model, alike, others)
    work = functools.partial(_kernel_or_reason, epochs=epochs, steps=steps, filled=filled)
    found = [work(name, dense, program, model, batch, alike) for name in dense.first + dense.inner]
    kernels = [kernel for kernel in found if not isinstance(kernel, str)]
    if not kernels:
        return str(found[0])

    def replace(model: Params, new: Sequence[Array]) -> Params:
        leaves, structure = jax.tree.flatten(model)
        for kernel, leaf in zip(kernels, new, strict=True):
            leaves[kernel.position] = leaf
        return jax.tree.unflatten(structure, leaves)

    def own(model: Params) -> list[Array]:
        leaves = jax.tree.leaves(model)
        return [leaves[kernel.position] for kernel in kernels]

    def to_coordinates(model: Params) -> Params:
        return replace(
            model, [kernel_coordinates(kernel, leaf) for kernel, leaf in zip(kernels, own(model), strict=True)]
        )

    start, anchors = to_coordinates(model), {name: to_coordinates(value) for name, value in alike.items()}
    if OptimizerProgram.of(optimizer, start, anchors, others).written != program.written:
        return "the optimiser looks at shapes"
    usual = own(model)

    def loss_and_gradient(model: Params, memory: StepMemory, key: Key, positions: Array | None = None):
        leaves = own(model)
        part = batch if positions is None else tree.take(batch, positions)

        def loss(model: Params, known: list[Array]) -> tuple[Array, dict[str, LayerInputs]]:
            seen: dict[str, LayerInputs] = {}
            products = {
                kernel.name: kernel.product(one, leaf, memory, seen)
                for kernel, one, leaf in zip(kernels, known, leaves, strict=True)
            }
            # the usual kernels are not read: they have the shapes that the network expects
            return dense.loss(replace(model, usual), part, key, products), seen

        known = [kernel.known(leaf, positions) for kernel, leaf in zip(kernels, leaves, strict=True)]
        (value, seen), (gradient, slopes) = jax.value_and_grad(loss, (0, 1), has_aux=True)(model, known)
        placed = [
            kernel.gradient(slope, leaf, positions, memory)
            for kernel, slope, leaf in zip(kernels, slopes, leaves, strict=True)
        ]
        return value, replace(gradient, placed), memory.after(seen)

    def restore(model: Params, memory: StepMemory) -> Params:
        leaves = zip(kernels, own(model), strict=True)
        return replace(model, [full_kernel(kernel, leaf, memory) for kernel, leaf in leaves])

    empty = {kernel.name: kernel.empty for kernel in kernels if isinstance(kernel, InnerKernel)}
    return TrainingForm(start, {**others, **anchors}, loss_and_gradient, StepMemory(0, empty), restore)


def _kernel_or_reason(
    name: str,
    dense: DenseLayers,
    program: OptimizerProgram,
    model: Params,
    batch: Batch,
    alike: dict[str, Params],
    *,
    epochs: int,
    steps: int,
    filled: float,
) -> Kernel | str:
    """Returns one of the kernels in coordinates, or the reason against it; arguments as for `in_coordinates`."""
    position = tree.names(model).index(name)
    kernel, count = jax.tree.leaves(model)[position], batch.mask.shape[0]
    (inputs, outputs), first = kernel.shape, name in dense.first
    dear = f"no faster with {count} rows of {inputs} numbers and {epochs * steps} steps"
    pays = functools.partial(_first_pays, filled=filled) if first else _inner_pays
    if not pays(count, inputs, outputs, epochs, steps, kernels=1):
        return dear
    if not program.follows(position):
        return "the optimiser does more than add and scale"
    used = [jax.tree.leaves(alike[extra])[position] for extra in program.used(position) if extra in alike]
    kernels = list({id(one): one for one in (kernel, *used)}.values())  # an anchor is often what training starts from
    if not pays(count, inputs, outputs, epochs, steps, kernels=len(kernels)):
        return dear
    if not first:
        return InnerKernel(name, position, kernels, count // steps, epochs * count)
    rows: list[Array] = []

    def product(x: Array) -> Array:
        rows.append(x)
        return x @ kernel

    # a first layer's rows do not depend on the key; but without one it is a test, before which they may be others
    dense.loss(model, batch, jax.random.key(0), {name: product})
    return FirstKernel.of(name, position, kernels, rows[0])


_decisions: ContextVar[list[str] | None] = ContextVar("decisions", default=None)


@contextlib.contextmanager
def decisions() -> Iterator[list[str]]:
    """Yields a list that gets the decision for each local training of the programs that are traced inside.

    >>> usual = TrainingForm({}, {}, lambda *arguments: arguments)
    >>> with decisions() as decided:
    ...     form = choose("no dense layer is known", usual)
    >>> form is usual, phrase(decided)
    (True, 'no: no dense layer is known')
    """
    decided: list[str] = []
    token = _decisions.set(decided)
    try:
        yield decided
    finally:
        _decisions.reset(token)


def choose(shorter: TrainingForm | str, usual: TrainingForm) -> TrainingForm:
    """Returns `shorter`, or `usual` where `shorter` is a reason against it, and reports the decision."""
    report([f"no: {shorter}" if isinstance(shorter, str) else USED])
    return usual if isinstance(shorter, str) else shorter


def report(decided: Sequence[str]) -> None:
    """Adds decisions to the surrounding `decisions`, for a program that is used again without being traced."""
    if (surrounding := _decisions.get()) is not None:
        surrounding.extend(decided)


def phrase(decided: Sequence[str]) -> str:
    """Returns the decisions of a program in one phrase.

    >>> phrase(["yes", "yes"]), phrase(["yes", "no: too few"]), phrase([])
    ('yes', 'in part; no: too few', 'no: nobody trains in local epochs')
    """
    different = sorted(set(decided) - {USED})
    if USED in decided:
        return "; ".join(["in part", *different]) if different else USED
    return "; ".join(different) or "no: nobody trains in local epochs"


def tree_like(value: Any, model: Params) -> bool:
    """Returns whether `value` is a tree of arrays of the model's shapes."""
    if jax.tree.structure(value) != jax.tree.structure(model):
        return False
    return all(
        jnp.shape(a) == jnp.shape(b) for a, b in zip(jax.tree.leaves(value), jax.tree.leaves(model), strict=True)
    )


def _first_pays(rows: int, inputs: int, outputs: int, epochs: int, steps: int, *, kernels: int, filled: float) -> bool:
    """Returns whether coordinates take less work, per row and output of the layer; a pass over a kernel is work too."""
    usual = 2 * epochs * inputs + PASS_COST * epochs * steps * inputs / max(rows, 1)  # x W and x^T g
    in_coordinates = (kernels + 1) * inputs + epochs * rows + rows * inputs / outputs + PASS_COST * epochs * steps
    return rows > 0 and in_coordinates < filled * usual


def _inner_pays(rows: int, inputs: int, outputs: int, epochs: int, steps: int, *, kernels: int) -> bool:
    """Returns whether coordinates take less work for an inner layer, a step: on a CPU, for kernels beyond its caches.

    Saved are passes over the kernel, for its gradient and its update; added are x X^T, its product with A, their
    gradients, and passes over more kernels. LEAF's network gains 18 % in a loop of its steps alone (d = 3136,
    h = 2048, 5 steps of 20 rows, two cores); with d = 12544 and h = 128, within the caches, 6 % are lost.
    """
    if jax.default_backend() != "cpu" or inputs * outputs < UNCACHED_SIZE:
        return False
    width = rows / steps
    added = 2 * width * epochs * rows * (inputs + outputs) + (kernels - 1) * (2 * width + PASS_COST) * inputs * outputs
    return added < PASS_COST * inputs * outputs
