"""Sums of kernels that clients know by their factors: one product for several clients, in place of a kernel of each.

A client that trains in coordinates (`jaxfl.client.fast.coordinates`) ends with W = X^T A + sum_j c_j * W_j. Where all
that is made of W is a weighted sum over clients, nobody needs W:

    sum_i w_i W_i = [X_1; X_2; ...]^T [w_1 A_1; w_2 A_2; ...] + sum_j (sum_i w_i c_ij) * W_j.

Whether that is all is read off the program of a client's work: a method says nothing of it. Only sums without clusters
are made so: of K clusters it would be K products. `add_all` walks over the clients of a device, for all methods.
"""

import collections
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from jaxfl import tree
from jaxfl.client.fast.coordinates import RESTORED
from jaxfl.server import aggregate
from jaxfl.server.aggregate import Contribution, Total
from jaxfl.typing import Array, Params

TOGETHER = 16  # clients of one product, at most
AT_ONCE = 16 << 20  # bytes of rows that are written at once, by devices that wait for each other; or rows of TOGETHER
NOWHERE = np.iinfo(np.int32).max  # a row's place that nothing is written to


class Factors(NamedTuple):
    """A kernel in coordinates, as it is left by one client, or stacked.

    Attributes:
        rows: X `[n, d]`.
        leaf: A `[n, h]` and, below, c_j `[k, h]`.
    """

    rows: Array
    leaf: Array


class Work(NamedTuple):
    """A client's work, without the kernels that are summed by their factors.

    Attributes:
        run: `(shared, *example) -> (sums, ..., factors)`: what `fn` returns, and the factors; contributions have the
            norm `[]` of such a kernel in its place.
        sums: the shapes of what `run` sums.
        places: of these kernels: which contribution, and which of its leaves.
        kernels: W_j `k * [d, h]` of each.
    """

    run: Callable[..., tuple]
    sums: Any
    places: list[tuple[int, int]]
    kernels: list[list[Array]]


def read(fn: Callable[..., tuple], shared: Any, *example: Any) -> Work:
    """Returns a client's work `fn(shared, *example) -> (sums, ...)`, of which some kernels are summed by factors.

    Args:
        fn: what a client does.
        shared: what all clients are given; W_j must be among it.
        *example: what one client is given.
    """
    program, shapes = jax.make_jaxpr(fn, return_shape=True)(shared, *example)
    jaxpr, structure = program.jaxpr, jax.tree.structure(shapes)
    given = dict(zip(jaxpr.invars, jax.tree.leaves(shared), strict=False))  # what is shared comes first
    made = {equation.outvars[0]: equation for equation in jaxpr.eqns if equation.params.get("name") == RESTORED}
    uses = collections.Counter(
        atom for one in (*jaxpr.eqns, jaxpr) for atom in _read(one) if isinstance(atom, core.Var)
    )
    outputs, places, kernels = [], [], []
    numbers = range(len(jaxpr.outvars))
    for which, contribution in enumerate(_contributions(jax.tree.unflatten(structure, numbers)[0])):
        for leaf, number in enumerate(jax.tree.leaves(contribution.values) if contribution.num_clusters == 1 else ()):
            atom: Any = jaxpr.outvars[number]
            if not isinstance(atom, core.Var) or atom not in made or uses[atom] > 1:
                continue
            own, factors = _operands(made[atom])
            if all(kernel in given for kernel in own):
                outputs.append((number, factors))
                places.append((which, leaf))
                kernels.append([given[kernel] for kernel in own])
    more = [atom for _, factors in outputs for atom in factors]
    evaluate = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr.replace(outvars=[*jaxpr.outvars, *more]), program.consts))
    squares = [jnp.stack([jnp.stack([(one * other).sum(0) for other in some]) for one in some]) for some in kernels]

    def run(*arguments: Any) -> tuple:
        results = evaluate(*jax.tree.leaves(arguments))
        flat, rest, factors = results[: len(numbers)], iter(results[len(numbers) :]), []
        for (number, atoms), square in zip(outputs, squares, strict=True):
            rows, gram, leaf, *products = (next(rest) for _ in atoms)
            factors.append(Factors(rows, leaf))
            flat[number] = _norm(gram, leaf, products, square)
        return *jax.tree.unflatten(structure, flat), factors

    norms = {number: jax.ShapeDtypeStruct((), atoms[2].aval.dtype) for number, atoms in outputs}
    kept = [norms.get(number, shape) for number, shape in enumerate(jax.tree.leaves(shapes))]
    return Work(run, jax.tree.unflatten(structure, kept)[0], places, kernels)


def _operands(equation: core.JaxprEqn) -> tuple[list[Any], list[Any]]:
    """Returns what W_j are, and X, X X^T, the coordinates and X W_j, of a `restored_kernel`."""
    first, rest = equation.invars[:3], equation.invars[3:]
    return rest[: len(rest) // 2], [*first, *rest[len(rest) // 2 :]]


def _read(one: core.JaxprEqn | core.Jaxpr) -> Sequence[Any]:
    """Returns what an equation reads, or a program's results."""
    return one.invars if isinstance(one, core.JaxprEqn) else one.outvars


def _norm(gram: Array, leaf: Array, products: list[Array], squares: Array) -> Array:
    """Returns the Euclidean norm of a kernel `[]`.

    Args:
        gram: X X^T `[n, n + k]`, its last columns 0.
        leaf: the coordinates `[n + k, h]`.
        products: X W_j, `k * [n, h]`.
        squares: sums over the d inputs of W_i * W_j `[k, k, h]`.
    """
    slopes, scales = leaf[: len(gram)], leaf[len(gram) :]
    mixed = sum(scale[None, :] * product for scale, product in zip(scales, products, strict=True))
    own = (scales[:, None, :] * scales[None, :, :] * squares).sum()
    return jnp.sqrt(jnp.maximum((slopes * (gram @ leaf + 2 * mixed)).sum() + own, 0))


def add_all(
    work: Work, shared: Any, own: Params, mask: Array, xs: Any, chunk: int = 1, axis: str | None = None
) -> tuple[Any, Any, Params]:
    """Runs the work of all clients, adds up what they send, and writes what is their own.

    Args:
        work: a client's, `(shared, client, row, ...) -> (sums, kept, row, factors)`.
        shared: what all of them are given.
        own: rows of all clients `[N, ...]`; a tree without leaves where they have none.
        mask: `[C]` bool, False for padding.
        xs: what each is given, `[C, ...]`, its id first.
        chunk: clients that are mapped, a divisor of C; one after another are 1.
        axis: of the devices, each of which runs its clients, and has the rows of all; None is one.

    Returns:
        `(sums, kept, own)`: a total for each contribution, the records `[C, ...]`, and the rows after, of all devices'
        clients.
    """

    def client(own: Params, sums: Any, part: Any) -> tuple[Any, Any]:
        mask, (number, *given) = part
        sent, kept, after, factors = work.run(shared, number, tree.take(own, number), *given)
        guarded = [aggregate.guarded(one, mask)[0] for one in _contributions(sent)]
        weighted = [_weighted(one, guarded[which].weight) for (which, _), one in zip(work.places, factors, strict=True)]
        return _plus(aggregate.add_one, sums, sent, mask), (kept, after, weighted)

    def mapped(own: Params, sums: Any, part: Any) -> tuple[Any, Any]:
        mask, (number, *given) = part
        before = tree.take(own, number)
        sent, kept, after, factors = jax.vmap(lambda *given: work.run(shared, *given))(number, before, *given)
        guarded = [jax.vmap(aggregate.guarded)(one, mask)[0] for one in _contributions(sent)]
        weighted = [
            jax.vmap(_weighted)(one, guarded[which].weight)
            for (which, _), one in zip(work.places, factors, strict=True)
        ]
        return _plus(aggregate.add_many, sums, sent, mask), (kept, after, weighted)

    def written(own: Params, mask: Array, ids: Array, after: Params) -> Params:
        if not jax.tree.leaves(own):
            return own
        if axis is not None:
            mask, ids, after = jax.lax.all_gather((mask, ids, after), axis, tiled=True)
        return tree.put(own, jnp.where(mask, ids, NOWHERE), after)

    def group(carry: Any, parts: Any) -> tuple[Any, Any]:
        (sums, added, own), (mask, (ids, *_)) = carry, parts
        if chunk == 1:
            sums, made = jax.lax.scan(functools.partial(client, own), sums, parts)
        elif chunk == together:
            sums, made = mapped(own, sums, parts)
        else:
            sums, made = jax.lax.scan(functools.partial(mapped, own), sums, _divided(parts, chunk))
            made = _joined(made)
        kept, after, factors = made
        added = [_added(total, one) for total, one in zip(added, factors, strict=True)]
        return (sums, added, written(own, mask, ids, after)), kept

    together = _together(work, own, mask.shape[0], chunk)
    parts = _divided((mask, xs), together)
    empty = jax.tree.map(aggregate.empty_total, work.sums, is_leaf=aggregate.is_contribution)
    nothing = [(jnp.zeros_like(one[0]), jnp.zeros((len(one), one[0].shape[1]), one[0].dtype)) for one in work.kernels]
    if together == mask.shape[0]:
        (sums, added, own), kept = group((empty, nothing, own), tree.take(parts, 0))
    else:
        (sums, added, own), kept = jax.lax.scan(group, (empty, nothing, own), parts)
        kept = _joined(kept)
    totals, structure = jax.tree.flatten(sums, is_leaf=lambda node: isinstance(node, Total))
    for (which, leaf), kernels, (total, scales) in zip(work.places, work.kernels, added, strict=True):
        values, inside = jax.tree.flatten(totals[which].values)
        values[leaf] = (total + sum(scales[j][None, :] * one for j, one in enumerate(kernels)))[None]
        totals[which] = totals[which].replace(values=jax.tree.unflatten(inside, values))
    return jax.tree.unflatten(structure, totals), kept, own


def _together(work: Work, own: Params, count: int, chunk: int) -> int:
    """Returns how many clients have their kernels summed by one product, and their rows written at once."""
    rows = jax.tree.leaves(jax.eval_shape(tree.take, own, 0))
    if rows:
        most = TOGETHER if work.places else max(TOGETHER, AT_ONCE // tree.num_bytes(rows))
    elif chunk > 1:
        most = chunk
    else:
        most = TOGETHER if work.places else count
    return max(size for size in range(chunk, max(most, chunk) + 1, chunk) if count % size == 0)


def _divided(stacked: Any, size: int) -> Any:
    """Returns `[C, ...]` as `[C / size, size, ...]`."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, size, *leaf.shape[1:]), stacked)


def _joined(divided: Any) -> Any:
    """Returns `[G, S, ...]` as `[G * S, ...]`."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), divided)


def _plus(add: Callable[..., Total], sums: Any, sent: Any, mask: Array) -> Any:
    """Returns the totals with what is sent added to them."""
    return jax.tree.map(lambda one, total: add(total, one, mask), sent, sums, is_leaf=aggregate.is_contribution)


def _weighted(factors: Factors, weight: Array) -> Factors:
    """Returns a kernel times its client's weight; zeros where that is 0, whatever the kernel is."""
    rows, leaf = factors
    return Factors(jnp.where(weight > 0, rows, 0), jnp.where(weight > 0, weight.astype(leaf.dtype) * leaf, 0))


def _added(total: tuple[Array, Array], stacked: Factors) -> tuple[Array, Array]:
    """Returns the sums of X^T A `[d, h]` and of c `[k, h]` with those of a stack of clients."""
    rows, leaf = stacked
    size = rows.shape[1]
    added = jnp.einsum("ind,inh->dh", rows, leaf[:, :size], precision="highest")  # as all sums of the server are
    return total[0] + added, total[1] + leaf[:, size:].sum(0)


def _contributions(sums: Any) -> list[Contribution]:
    return jax.tree.leaves(sums, is_leaf=aggregate.is_contribution)
