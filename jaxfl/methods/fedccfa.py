"""FedCCFA: heads and class means that are averaged in each class, over the clients whose heads are alike in it.

Chen, Xue, Wang, Liu and Huang, "Classifier Clustering and Feature Alignment for Federated Learning under Distributed
Concept Drift", NeurIPS 2024. A model is (base, head), phi and h_i; x are the features [d], the input of the head; h^0
is the initial head. Client i keeps h_i and an anchor A_ik [d] of each of its classes. In a round, every sampled client
i with n_ik rows of class k, of n_i, and q_ik = n_ik / n_i

    b_i   <- E_b epochs of SGD on f_i(phi, .) from h^0, over a new draw of as many rows of each class
    h_i   <- E_h epochs of SGD on f_i(phi, .)                                      # the base is constant
    phi_i <- E epochs of SGD on f_i(., h_i) + lambda_i CE(cos(x, A_i.) / T, y)     # the new head is constant
    m_ik  <- mean of x over its rows of class k, under (phi_i, h_i)

    phi   <- sum_i (n_i / n) phi_i
    v_ik  <- the weights of class k in b_i, a column of the kernel and a number of the bias
    h_ik, A_ik <- means of h_jk and of m_jk over the clients j in i's cluster of class k

with lambda_i = - sum_k q_ik ln q_ik / gamma: clients of many classes align more. The clusters of a class are the
connected components of the clients that have it, with an edge where the mean over all others z of
|cos(v_ik, v_zk) - cos(v_jk, v_zk)| is at most eps (which is DBSCAN with clusters of one and more). The draw has as many
rows of each of the client's classes as there are of the rarest, and at most 5. The second term of the loss begins with
round 20, counted from 0; a class without an anchor takes no part in it. The loss of a round is f_i of the base's phase.

Clients that are not sampled keep their head and anchors, and are served the head on the new base; one that has never
trained, held out or new, has the initial head. Clients without rows and diverged ones are in no cluster. Of fewer than
three clients with a class none are clustered. Attackers perturb the base and both heads that they send; their numbers
of rows and means are computed honestly. `info.extra["class_clusters"]` is the number of clusters `[L]` of each class.

Where the official code differs: every client must have rows of every class. The first client's class means become
the cohort's sums before the means of clusters are taken, so that its anchors are wrong. In a client's first round h_i
starts at b_i. Clients that are not sampled are tested with the base of their last round. Its settings: gamma 20, T 0.1,
eps 0.1, E_b = 5, E_h = 1, E = 5, B = 64, SGD with momentum 0.9 and weight decay 1e-5, of rate 0.1 for heads and 0.01
for the base (`head_rate=10` with a rate of 0.01), 200 rounds, all of 20 clients or a fifth of 100.
"""

import dataclasses
import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client import conduct
from jaxfl.client.part import train_part
from jaxfl.client.steps import Epochs
from jaxfl.clustering import distances
from jaxfl.clustering.components import threshold_components
from jaxfl.cohort import Cohort
from jaxfl.data.clients import Batch, FederatedData, Split, view_fields
from jaxfl.engine import over_owners
from jaxfl.methods import base as contract
from jaxfl.methods.base import Info, Method
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.heads import Features, class_counts, class_sums, find_head, with_feature_term
from jaxfl.methods.parts.vectors import last_layer
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked, is_known, is_zero
from jaxfl.server import aggregate, optimizers
from jaxfl.server.flight_context import refuse_asynchronous
from jaxfl.server.wire_context import refuse_wire
from jaxfl.tasks import Task, masked_mean
from jaxfl.typing import Array, Key, Params

NO_WIRE = "its clients send heads and mean features beside an update"


class AnchoredHead(NamedTuple):
    """A client's head, and the features that those of its rows are aligned to."""

    head: Params  # h_i, a tree of the model with None for the leaves of the base
    anchors: Array  # [L, d] A_i
    known: Array  # [L] bool, for classes with an anchor


class FedCCFAState(NamedTuple):
    """The base, the initial head, and a head with anchors for each client."""

    base: Params  # phi, with None for the leaves of the head
    initial: Params  # h^0
    own: AnchoredHead  # [N, ...]
    server: optax.OptState  # of the server's optimiser
    cluster: Array  # [N] int32, every client in a slot of its own
    round: Array  # [] int32


@server_sees(
    Seen(
        "data",
        "the two heads, the numbers of rows of each class and their mean features of each client; the sum of the base "
        "layers",
    )
)
@checked
def fedccfa(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    threshold: Traceable = 0.1,
    entropy_scale: Traceable = 20.0,
    alignment_weight: Traceable | None = None,
    alignment: Literal["contrastive", "squares"] = "contrastive",
    temperature: Traceable = 0.1,
    align_from: int = 20,
    balanced_epochs: int = 5,
    balanced_rows: int = 5,
    head_epochs: int = 1,
    head_rate: Traceable = 1.0,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "rows",
    cluster_weighting: aggregate.Weighting = "uniform",
    server_optimizer: optax.GradientTransformation | None = None,
) -> Method:
    """Returns FedCCFA.

    Args:
        task: a classification whose network ends with a dense layer, the head.
        optimizer: the local optimiser of each phase; its state starts fresh in each.
        threshold: eps, the largest difference of two neighbours in a cluster; below 0 nobody is clustered. Heads b_i of
            few steps are all alike, so that it must be smaller where clients have few rows.
        entropy_scale: gamma, of lambda_i; infinity switches the alignment off.
        alignment_weight: the same lambda for all clients, in place of lambda_i; 0 switches the alignment off.
        alignment: of features to anchors: `"contrastive"`, as above, or `"squares"`, MSE(x, A_iy), the mean over the
            rows and the d coordinates (the official code has both).
        temperature: T.
        align_from: the first round with the alignment, counted from 0.
        balanced_epochs: E_b, of the head that clients are compared by; 0 compares them by h_i.
        balanced_rows: most rows of each class in a draw for that head.
        head_epochs: E_h, epochs of the head.
        head_rate: factor of the learning rate in the phases of both heads.
        local_epochs: E; of the base.
        batch_size: B; None takes all of a client's rows at once.
        weighting: of the base's average: `"rows"` (n_i / n) or `"uniform"` (1 / m).
        cluster_weighting: of the means in a cluster: `"uniform"`, or `"rows"`, by n_jk.
        server_optimizer: takes the server's step on the base, see `jaxfl.server`; None takes the average.

    Raises:
        ValueError: an option is out of range, or the network does not end with a dense layer.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.MLP(hidden=(16,), num_classes=10), data)
    >>> result = jaxfl.run(fedccfa(task, optax.sgd(0.1), align_from=1), data, rounds=2, cohort=4, seed=0)
    >>> result.state.own.anchors.shape, jaxfl.tree.names(result.state.own.head)
    ((8, 10, 16), ['Dense_1/bias', 'Dense_1/kernel'])
    """
    _check_arguments(threshold, entropy_scale, alignment_weight, temperature, head_rate)
    for name, value, least in (
        ("align_from", align_from, 0),
        ("balanced_epochs", balanced_epochs, 0),
        ("balanced_rows", balanced_rows, 1),
        ("head_epochs", head_epochs, 1),
    ):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}; the default is the official code's.")
    head = find_head(task, "fedccfa")
    chosen = last_layer(task)
    others = jax.tree.map(lambda personal: not personal, chosen)
    server_optimizer = optimizers.beside(server_optimizer, task.averages)
    faster = optax.chain(optimizer, optax.scale(head_rate))
    train_head = train_part(task, faster, chosen, local_epochs=head_epochs, batch_size=batch_size)
    train_balanced = train_part(task, faster, chosen, local_epochs=max(balanced_epochs, 1), batch_size=batch_size)
    passes = {"local_epochs": local_epochs, "batch_size": batch_size}
    train_part(task, optimizer, others, **passes)  # refuses what is out of range
    sums_of = class_sums(task, head)
    if alignment_weight is None:
        aligned = not is_known(entropy_scale) or entropy_scale < math.inf
    else:
        aligned = not is_zero(alignment_weight)

    def init(key: Key, data: FederatedData) -> FedCCFAState:
        model, count = task.init(key_for(key, Stream.INIT)), data.num_clients
        first, rest = tree.partition(model, chosen)
        anchors = jnp.zeros((head.classes, head.features), head.weights(model)[0].dtype)
        own = AnchoredHead(first, anchors, jnp.zeros(head.classes, bool))
        moments, clients = optimizers.init(server_optimizer, rest), jnp.arange(count, dtype=jnp.int32)
        return FedCCFAState(rest, first, tree.repeat(own, count), moments, clients, jnp.int32(0))

    def aligning(own: AnchoredHead, counts: Array, round: Array) -> Task:
        """Returns the task of a client's base."""
        weight = label_entropy(counts) / entropy_scale if alignment_weight is None else alignment_weight
        weight = jnp.where(round >= align_from, weight, 0)

        def pull(seen: Features, batch: Batch) -> Array:
            x = seen.features.astype(own.anchors.dtype)
            if alignment == "contrastive":
                each = contrastive_losses(x, batch.y, own.anchors, own.known, temperature)
            else:
                each = jnp.square(jnp.where(own.known[batch.y][:, None], x - own.anchors[batch.y], 0)).mean(1)
            return weight * masked_mean(each, batch.mask)

        return with_feature_term(task, head, pull)

    def client(shared, client: Array, own: AnchoredHead):
        key, (rest, first, round), data = shared
        client_key = key_for(key, Stream.BATCHES, round, client)
        head_key = key_for(client_key, Stream.HEADS)
        unsent = conduct.for_unsent_training(client_key, data)
        counts = class_counts(data, client, head.classes).astype(own.anchors.dtype)
        train_base = train_part(aligning(own, counts, round) if aligned else task, optimizer, others, **passes)
        model, _ = train_head(head_key, tree.combine(own.head, rest), unsent, client)
        model, loss = train_base(client_key, model, data, client)
        new_head, new_rest = tree.partition(model, chosen)
        new_head = conduct.perturb_model(head_key, own.head, new_head, data, client)
        sums = sums_of(tree.combine(new_head, new_rest), data, client)

        compared = new_head
        if balanced_epochs:
            balanced_key, draw_key = (key_for(client_key, Stream.REPRESENTATION, i) for i in range(2))
            drawn = balanced_federation(draw_key, unsent, client, counts, balanced_rows)
            compared = tree.partition(
                train_balanced(balanced_key, tree.combine(first, rest), drawn, client)[0], chosen
            )[0]
            compared = conduct.perturb_model(balanced_key, first, compared, data, client)
        kernel, bias = head.weights(compared)
        vectors = jnp.concatenate([kernel.T, bias[:, None]], axis=1)  # [L, d + 1]

        finite = tree.is_finite((new_head, new_rest, vectors, sums))
        weight = jnp.where(finite, aggregate.client_weight(data, client, weighting), 0)
        means = aggregate.divide(sums.features, sums.counts, empty=jnp.zeros_like(own.anchors))
        trains = finite & (data.train.size[client] > 0)
        row = tree.where(trains, AnchoredHead(new_head, means, sums.counts > 0), own)
        return aggregate.contribute(new_rest, weight, start=rest), (loss, finite, vectors, sums.counts), row

    def round(key: Key, state: FedCCFAState, data: FederatedData, cohort: Cohort) -> tuple[FedCCFAState, Info]:
        refuse_asynchronous("fedccfa", "it compares the classifiers of a round; take fedper")
        refuse_wire("fedccfa", NO_WIRE)
        shared = key, (state.base, state.initial, state.round), data
        sums, (loss, finite, vectors, counts), rows = over_owners(client, shared, cohort, state.own)
        rest, moments = optimizers.step_to_mean(server_optimizer, state.server, state.base, sums)

        valid = cohort.mask & finite & (data.train.size[cohort.ids] > 0)
        sent = tree.take(rows, cohort.ids)  # [C, ...]
        sent = tree.where(valid, sent, jax.tree.map(jnp.zeros_like, sent))
        alive = valid[:, None] & (counts > 0)  # [C, L]
        clusters = class_clusters(vectors, alive, threshold)  # [L, C]
        weights = mean_weights(clusters, counts if cluster_weighting == "rows" else jnp.ones_like(counts))
        mixed = AnchoredHead(
            jax.tree.map(lambda leaf: _mix("kij,j...k->i...k", weights, leaf), sent.head),
            _mix("kij,jkd->ikd", weights, sent.anchors),
            sent.known,
        )
        own = tree.put(rows, jnp.where(valid, cohort.ids, data.num_clients), mixed)
        one = contract.shape_of(sent)
        found = clusters == jnp.arange(clusters.shape[1], dtype=clusters.dtype)[None]
        info = contract.info(
            cohort,
            loss,
            cohort.ids,
            num_clusters=data.num_clients,
            diverged=(~finite & cohort.mask).sum(dtype=jnp.int32),
            up=(rest, one.head),
            beside=(state.initial if balanced_epochs else (), one.anchors, contract.shape_of(counts)),
            down=(rest, one.head, one.anchors, state.initial if balanced_epochs else ()),
            class_clusters=found.sum(1, dtype=jnp.int32),
        )
        return FedCCFAState(rest, state.initial, own, moments, state.cluster, state.round + 1), info

    def client_params(state: FedCCFAState, ids: Array) -> Params:
        return tree.combine(tree.take(state.own, ids).head, tree.repeat(state.base, ids.shape[0]))

    def shortfall(state: FedCCFAState, data: FederatedData, participation: contract.Participation) -> str:
        count = int(state.round)
        if not aligned:
            return ""
        if count <= align_from:
            return (
                f"No features were aligned, since that begins with round align_from={align_from}, counted from 0, and "
                f"the run had {count} rounds: make more rounds, or lower align_from."
            )
        return contract.trained_once(participation, "heads")

    return Method(init, round, client_params, task, per_client="own", shortfall=shortfall)


def _check_arguments(
    threshold: float,
    entropy_scale: float,
    alignment_weight: float | None,
    temperature: float,
    head_rate: float,
) -> None:
    """Raises ValueError if a number is out of range."""
    if is_known(threshold) and math.isnan(threshold):
        raise ValueError(f"threshold must be a number, got {threshold}; 0.1 is usual, and below 0 nobody is clustered.")
    if is_known(entropy_scale) and not entropy_scale > 0:  # nor NaN
        raise ValueError(f"entropy_scale must be above 0, got {entropy_scale}; 20 is usual.")
    if alignment_weight is not None and is_known(alignment_weight) and not 0 <= alignment_weight < math.inf:
        raise ValueError(
            f"alignment_weight must be at least 0 and finite, got {alignment_weight}; 0 switches the alignment off."
        )
    if is_known(temperature) and not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be above 0 and finite, got {temperature}; 0.1 is usual.")
    if is_known(head_rate) and not 0 < head_rate < math.inf:
        raise ValueError(f"head_rate must be above 0 and finite, got {head_rate}; it is a factor, and 1 is none.")


def label_entropy(counts: Array) -> Array:
    """Returns the entropy `[]` in nats of a client's labels with `counts [L]`; 0 without rows.

    >>> float(label_entropy(jnp.array([6.0, 3.0, 1.0, 0.0])))
    0.8979...
    """
    shares = counts / jnp.maximum(counts.sum(), 1)
    return -jnp.where(shares > 0, shares * jnp.log(jnp.where(shares > 0, shares, 1)), 0).sum()


def contrastive_losses(x: Array, y: Array, anchors: Array, known: Array, temperature: float | Array) -> Array:
    """Returns the cross-entropies `[B]` of cosines with anchors; 0 for rows whose class has no anchor.

    Args:
        x: features `[B, d]`; zeros have the cosine 0 with all anchors, and no gradient.
        y: classes `[B]`.
        anchors: A `[L, d]`.
        known: bool `[L]`; other anchors take no part.
        temperature: T.

    >>> anchors = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    >>> contrastive_losses(jnp.array([[1.0, 0.0]]), jnp.array([2]), anchors, jnp.ones(3, bool), 0.1).tolist()
    [4.018...]
    """
    scores = _unit_rows(x) @ _unit_rows(anchors).T / temperature
    scores = jnp.where(known[None], scores, jnp.finfo(scores.dtype).min / 2)  # infinity would make NaN of no anchors
    return jnp.where(known[y], optax.softmax_cross_entropy_with_integer_labels(scores, y), 0)


def _unit_rows(rows: Array) -> Array:
    """Returns rows `[B, d]` divided by their norms; rows of zeros stay."""
    squares = jnp.square(rows).sum(1, keepdims=True)
    positive = squares > 0
    return jnp.where(positive, rows / jnp.sqrt(jnp.where(positive, squares, 1)), 0)


def balanced_federation(key: Key, data: FederatedData, client: Array, counts: Array, most: int) -> FederatedData:
    """Returns the federation in which a client has a random draw of its training rows, as many of each of its classes.

    The rows are as the client sees them: their transformations are done.

    Args:
        key: of the draw.
        data: the federation.
        client: its id `[]`; the rows of others are not to be read.
        counts: of its rows of each class `[L]`.
        most: rows of each class, or fewer where the rarest one has fewer.
    """
    every = max(data.train.max_size, 1)
    rows = data.batch(data.train, client, jnp.arange(every, dtype=jnp.int32))
    bits = jax.random.bits(key, (every,), jnp.uint32)  # those of a row are its place's
    by_class = jnp.lexsort((bits, jnp.where(rows.mask, rows.y, counts.shape[0]))).astype(jnp.int32)
    counts = counts.astype(jnp.int32)
    present, places = counts > 0, jnp.arange(most, dtype=jnp.int32)
    each = jnp.where(present, counts, most).min()
    drawn = present[:, None] & (places < each)[None]  # [L, most]
    positions = (jnp.cumsum(counts) - counts)[:, None] + places[None]
    positions = by_class[jnp.minimum(positions, every - 1)].ravel()[jnp.argsort(~drawn.ravel(), stable=True)]
    batch, size = data.batch(data.train, client, positions), drawn.sum(dtype=jnp.int32)
    numbers = jnp.asarray(data.train.size)
    split = Split(
        rows=jnp.arange(drawn.size, dtype=jnp.int32),
        start=jnp.zeros_like(numbers),
        size=jnp.broadcast_to(size.astype(numbers.dtype), numbers.shape),
        max_size=drawn.size,
    )
    done = dict.fromkeys((*view_fields(data), "label_map", "mean", "std", "trigger"))
    return dataclasses.replace(data, inputs=batch.x, labels=batch.y, train=split, filled=0.0, **done)


def mean_absolute_differences(vectors: Array, alive: Array) -> Array:
    """Returns the mean over all others z of |cos(v_i, v_z) - cos(v_j, v_z)| `[C, C]`; NaN where there is no other.

    Args:
        vectors: v `[C, d]`.
        alive: bool `[C]`; others do not count, and their vectors and differences may be anything.

    References: Sarkar and Ghosh, "On perfect clustering of high dimension, low sample size data", 2020 (MADD).

    >>> vectors = jnp.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-1.0, 0.0]])
    >>> mean_absolute_differences(vectors, jnp.ones(4, bool))[0].round(3).tolist()
    [0.0, 0.4..., 0.6..., 0.8...]
    """
    cosines = distances.cosine(jnp.where(alive[:, None], vectors, 0))  # 0 with clients that do not count
    to_itself = jnp.abs(jnp.diagonal(cosines)[:, None] - cosines)  # of z = i, or transposed of z = j
    apart = jnp.maximum(distances.l1(cosines) - to_itself - to_itself.T, 0)
    number = alive.sum(dtype=jnp.int32) - 2
    return jnp.where(number > 0, apart / jnp.maximum(number, 1).astype(apart.dtype), jnp.nan)


def class_clusters(vectors: Array, alive: Array, threshold: float | Array) -> Array:
    """Returns the clusters of clients in each class `[L, C]` int32: the smallest place in the cluster, -1 for no one.

    Args:
        vectors: v `[C, L, d]` of each client and class.
        alive: bool `[C, L]`; others are in no cluster, and their vectors may be anything.
        threshold: eps.
    """

    def of_class(part: tuple[Array, Array]) -> Array:
        vectors, alive = part
        return threshold_components(-mean_absolute_differences(vectors, alive), -threshold, alive)

    return jax.lax.map(of_class, (jnp.moveaxis(vectors, 1, 0), alive.T))


def mean_weights(clusters: Array, weights: Array) -> Array:
    """Returns the weights `[L, C, C]` of clients in the means of their clusters; clients in none are by themselves.

    Args:
        clusters: `[L, C]`, see `class_clusters`.
        weights: `[C, L]`, above 0 for clients in a cluster.

    >>> mean_weights(jnp.array([[0, -1, 0]]), jnp.array([[3.0], [2.0], [1.0]]))[0].tolist()
    [[0.75, 0.0, 0.25], [0.0, 1.0, 0.0], [0.75, 0.0, 0.25]]
    """
    inside = clusters >= 0
    together = (clusters[:, :, None] == clusters[:, None]) & inside[:, None]
    shares = jnp.where(together, weights.T[:, None], 0)
    total = shares.sum(2, keepdims=True)
    alone = jnp.eye(clusters.shape[1], dtype=shares.dtype)[None]
    return jnp.where(inside[:, :, None], shares / jnp.where(total > 0, total, 1), alone)


def _mix(axes: str, weights: Array, rows: Array) -> Array:
    """Returns the weighted sums of rows in each class, see `jnp.einsum`."""
    return jnp.einsum(axes, weights.astype(rows.dtype), rows, precision="highest")
