"""Sums of dense kernels in coordinates: one product for several clients, in place of a kernel of each.

A client that trains in coordinates (`jaxfl.client.fast.coordinates`) ends with W = X^T A + sum_j c_j * W_j. Where the
round uses W in nothing but a weighted sum over clients, no client has to make W:

    sum_i w_i W_i = [X_1; X_2; ...]^T [w_1 A_1; w_2 A_2; ...] + sum_j (sum_i w_i c_ij) * W_j.

`client_work` reads off the program of a client's work whether that is so; a method does not say it. Only sums without
clusters are made in this way: of K clusters it would be K products. Where there is no such kernel, the work is the
client function, traced, and its program is not looked at.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core

from jaxfl.client.fast import coordinates
from jaxfl.server import aggregate
from jaxfl.server.aggregate import Contribution, Total
from jaxfl.typing import Array

PRODUCT_CLIENTS = 16  # clients of one product, at most

KernelSum = tuple[Array, Array]  # the sums over clients of w X^T A [d, h] and of w c_j [k, h]


class KernelCoordinates(NamedTuple):
    """One client's kernel in coordinates, or several clients' stacked.

    Attributes:
        rows: X `[n, d]`.
        leaf: A `[n, h]` and, below, c_j `[k, h]`.
    """

    rows: Array
    leaf: Array


class ClientWork(NamedTuple):
    """A client's work in a round, without the kernels that are summed in coordinates.

    Attributes:
        run: `(shared, *example) -> (sums, ..., *coordinates)`: the results of the client function, then a
            `KernelCoordinates` for each of these kernels, whose place in `sums` has the kernel's norm `[]`. Without
            such kernels it is the client function, traced.
        sums: the shapes of the sums that `run` returns.
        places: for each of these kernels, which contribution it is in, and which of its leaves it is.
        kernels: for each of them, W_j `k * [d, h]`.
    """

    run: Callable[..., tuple]
    sums: Any
    places: list[tuple[int, int]]
    kernels: list[list[Array]]


def client_work(fn: Callable[..., tuple], shared: Any, *example: Any) -> ClientWork:
    """Returns a client's work, with those kernels summed in coordinates for which that is possible.

    Args:
        fn: the client function, `(shared, *example) -> (sums, ...)`.
        shared: given to all clients; W_j must be among it.
        *example: given to one client.
    """
    with coordinates.decisions() as decided, coordinates.known_kernels():
        # traced once, for its shapes and for the clients; a new function, so that all is decided anew for this work
        program, shapes = jax.make_jaxpr(lambda *given: fn(*given), return_shape=True)(shared, *example)
        summed = coordinates.USED in decided and any(one.num_clusters == 1 for one in contributions(shapes[0]))
        found = _in_coordinates(program, shapes, shared) if summed else None
    coordinates.report(decided)  # nothing is decided again
    if found is not None and found.places:
        return found
    evaluate, structure = core.jaxpr_as_fun(program), jax.tree.structure(shapes)
    return ClientWork(
        lambda *given: jax.tree.unflatten(structure, evaluate(*jax.tree.leaves(given))), shapes[0], [], []
    )


def _in_coordinates(program: core.ClosedJaxpr, shapes: tuple, shared: Any) -> ClientWork:
    """Returns a client's work without the kernels that its program makes from coordinates and only adds up.

    Args:
        program: of the client function.
        shapes: of its results.
        shared: its first argument.
    """
    jaxpr, structure = program.jaxpr, jax.tree.structure(shapes)
    arguments = dict(zip(jaxpr.invars, jax.tree.leaves(shared), strict=False))  # what is shared comes first
    made = {
        equation.outvars[0]: equation
        for equation in jaxpr.eqns
        if equation.params.get("name") == coordinates.KERNEL_PROGRAM
    }
    uses = collections.Counter(
        atom for part in (*jaxpr.eqns, jaxpr) for atom in _inputs(part) if isinstance(atom, core.Var)
    )
    outputs, places, kernels = [], [], []
    numbers = range(len(jaxpr.outvars))
    for which, contribution in enumerate(contributions(jax.tree.unflatten(structure, numbers)[0])):
        for leaf, number in enumerate(jax.tree.leaves(contribution.values) if contribution.num_clusters == 1 else ()):
            atom: Any = jaxpr.outvars[number]
            if not isinstance(atom, core.Var) or atom not in made or uses[atom] > 1:
                continue
            bases, parts = _kernel_operands(made[atom])
            if all(base in arguments for base in bases):
                outputs.append((number, parts))
                places.append((which, leaf))
                kernels.append([arguments[base] for base in bases])
    more = [atom for _, parts in outputs for atom in parts]
    evaluate = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr.replace(outvars=[*jaxpr.outvars, *more]), program.consts))
    squares = [coordinates.kernel_squares(some) for some in kernels]

    def run(*given: Any) -> tuple:
        results = evaluate(*jax.tree.leaves(given))
        flat, rest, found = results[: len(numbers)], iter(results[len(numbers) :]), []
        for (number, parts), square in zip(outputs, squares, strict=True):
            rows, gram, leaf, *products = (next(rest) for _ in parts)
            found.append(KernelCoordinates(rows, leaf))
            flat[number] = coordinates.kernel_norm(gram @ leaf, leaf, products, square)
        return *jax.tree.unflatten(structure, flat), *found

    norms = {number: jax.ShapeDtypeStruct((), parts[2].aval.dtype) for number, parts in outputs}
    leaves = [norms.get(number, shape) for number, shape in enumerate(jax.tree.leaves(shapes))]
    return ClientWork(run, jax.tree.unflatten(structure, leaves)[0], places, kernels)


def _kernel_operands(equation: core.JaxprEqn) -> tuple[list[Any], list[Any]]:
    """Returns the variables of W_j, and those of X, X X^T, the coordinates and X W_j, of a `make_kernel`."""
    first, rest = equation.invars[:3], equation.invars[3:]
    return rest[: len(rest) // 2], [*first, *rest[len(rest) // 2 :]]


def _inputs(part: core.JaxprEqn | core.Jaxpr) -> Sequence[Any]:
    """Returns the variables that an equation reads, or the results of a program."""
    return part.invars if isinstance(part, core.JaxprEqn) else part.outvars


def empty_sums(work: ClientWork) -> list[KernelSum]:
    """Returns the sums over no clients of the kernels that are summed in coordinates."""
    return [
        (jnp.zeros_like(bases[0]), jnp.zeros((len(bases), bases[0].shape[1]), bases[0].dtype)) for bases in work.kernels
    ]


def weighted(work: ClientWork, sent: Any, mask: Array, given: Sequence[KernelCoordinates]) -> list[KernelCoordinates]:
    """Returns one client's coordinates times its weight; zeros where it must not count, whatever they are.

    Args:
        work: of a client.
        sent: the contributions that it returned.
        mask: `[]` bool, False for padding.
        given: the coordinates that it returned, one for each kernel.
    """
    if not given:
        return []
    guarded = [aggregate.guarded(one, mask)[0].weight for one in contributions(sent)]

    def times_weight(one: KernelCoordinates, weight: Array) -> KernelCoordinates:
        rows, leaf = one
        return KernelCoordinates(
            jnp.where(weight > 0, rows, 0), jnp.where(weight > 0, weight.astype(leaf.dtype) * leaf, 0)
        )

    return [times_weight(one, guarded[which]) for (which, _), one in zip(work.places, given, strict=True)]


def add(sums: Sequence[KernelSum], given: Sequence[KernelCoordinates]) -> list[KernelSum]:
    """Returns the sums with those of several clients added, whose weighted coordinates are stacked."""

    def added(total: KernelSum, stacked: KernelCoordinates) -> KernelSum:
        rows, leaf = stacked
        size = rows.shape[1]
        products = jnp.einsum("ind,inh->dh", rows, leaf[:, :size], precision="highest")  # as all sums of the server
        return total[0] + products, total[1] + leaf[:, size:].sum(0)

    return [added(total, one) for total, one in zip(sums, given, strict=True)]


def with_kernels(work: ClientWork, totals: Any, sums: Sequence[KernelSum]) -> Any:
    """Returns the totals of a round with the sums of these kernels in their places."""
    flat, structure = jax.tree.flatten(totals, is_leaf=lambda node: isinstance(node, Total))
    for (which, leaf), bases, (products, scales) in zip(work.places, work.kernels, sums, strict=True):
        values, inside = jax.tree.flatten(flat[which].values)
        values[leaf] = (products + sum(scales[j][None, :] * one for j, one in enumerate(bases)))[None]
        flat[which] = flat[which].replace(values=jax.tree.unflatten(inside, values))
    return jax.tree.unflatten(structure, flat)


def contributions(sums: Any) -> list[Contribution]:
    """Returns the contributions in a tree of them."""
    return jax.tree.leaves(sums, is_leaf=aggregate.is_contribution)
