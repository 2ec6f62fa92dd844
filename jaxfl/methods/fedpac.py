"""FedPAC: features aligned to global class means, and for each client the best convex combination of all heads.

Xu, Tong and Huang, "Personalized Federated Learning with Feature Alignment and Classifier Collaboration", ICLR 2023. A
model is (base, head), phi and h_i; x are the features [d], the input of the head. The server has phi and the mean a_k
of the features of each class. In a round, every sampled client i with n_ik rows of class k, of n_i

    m_ik <- mean of x over its rows of class k;  q_ik <- n_ik / n_i;  H_i <- (q_ik m_ik)_k              # under phi
    V_i  <- (1 / n_i) (mean of ||x||^2 over its rows - ||H_i||^2)
    h_i  <- E_h epochs of SGD on f_i(phi, .)                                        # the base is constant
    phi_i <- E epochs of SGD on f_i(., h_i) + lambda MSE(x, a_y)                    # the new head is constant
    m_ik <- the same means, under (phi_i, h_i)

    phi  <- sum_i (n_i / n) phi_i;    a_k <- sum_i n_ik m_ik / sum_i n_ik
    h_i  <- sum_j alpha_ij h_j,  with alpha_i the convex weights of least alpha' P_i alpha,
            P_i[j, l] = [j = l] V_j + sum_k <H_ik - H_jk, H_ik - H_lk>              # variance and squared bias

MSE is the mean over the rows and the d coordinates. It is switched off in the first round; later a class of unknown a_k
has the client's own m_ik for a target. Weights below 0.001 are dropped. The loss of a round is f_i of the base's phase.
The problems are solved exactly, by an active set, see `jaxfl.clustering.simplex.least`.

Clients that are not sampled keep their head on the new base; one that has never trained, held out or new, has the
initial head, or with `newcomers="mean"` the mean of all heads that have trained, each with the same weight. Clients
without rows and diverged ones are in nobody's combination. A class that no client of the cohort has keeps its mean.
Attackers perturb the base and the head that they send; H, V and m are computed honestly.

Where the official code differs: rounding may give P_i a negative eigenvalue, and P_i is then rebuilt from eigenvalues
of at least 0.01, which loses V; if that fails, a client keeps its own head. It stops where nobody in a cohort has a
class. Its settings: lambda 1, E_h = 1, E = 5, B = 50, SGD with momentum 0.5 and weight decay 5e-4, of rate 0.1 for the
head and 0.01 for the base (`head_rate=10` with a rate of 0.01; 0.02 on CIFAR-10), 200 rounds, all of 20 clients. It
reports accuracies before and after local training; which of them the paper has is not known.
"""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client import conduct
from jaxfl.client.part import train_part
from jaxfl.client.steps import Epochs
from jaxfl.clustering.simplex import least
from jaxfl.cohort import Cohort
from jaxfl.data.clients import Batch, FederatedData
from jaxfl.engine import over_owners
from jaxfl.methods import base as contract
from jaxfl.methods.base import Info, Method
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.heads import ClassSums, Features, class_sums, find_head, with_feature_term
from jaxfl.methods.parts.personal import mix_rows, moved_mean
from jaxfl.methods.parts.vectors import last_layer
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked, is_known, is_zero
from jaxfl.server import aggregate, optimizers
from jaxfl.server.flight_context import refuse_asynchronous
from jaxfl.server.wire_context import refuse_wire
from jaxfl.tasks import Task, masked_mean
from jaxfl.typing import Array, Key, Params

LEAST_WEIGHT = 1e-3  # of a head in a combination
NO_WIRE = "its clients send heads and statistics of their features beside an update"


class FeatureStatistics(NamedTuple):
    """Statistics of a client's features under the received base: bias and variance of its head for others."""

    shares: Array  # H_i [L, d]
    variance: Array  # V_i []


class MeanHead(NamedTuple):
    """The mean of the heads that have trained."""

    head: Params  # the initial one at first
    trained: Array  # [N] bool, the clients that have trained


class FedPACState(NamedTuple):
    """The base, and a head for each client: trees of the model with None for the leaves of the other part."""

    base: Params
    heads: Params  # [N, ...]
    anchors: Array  # [L, d] a_k
    known: Array  # [L] bool, whether a_k is known
    server: optax.OptState  # of the server's optimiser
    cluster: Array  # [N] int32, every client in a slot of its own
    round: Array  # [] int32
    mean: MeanHead | None = None  # with newcomers="mean"


@server_sees(
    Seen("data", "the head, the shares of classes and their mean features of each client; the sum of the base layers")
)
@checked
def fedpac(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    alignment_weight: Traceable = 1.0,
    head_epochs: int = 1,
    head_rate: Traceable = 1.0,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "rows",
    newcomers: Literal["initial", "mean"] = "initial",
    server_optimizer: optax.GradientTransformation | None = None,
) -> Method:
    """Returns FedPAC.

    Args:
        task: a classification whose network ends with a dense layer, the head.
        optimizer: the local optimiser of each phase; its state starts fresh in both.
        alignment_weight: lambda, of the pull of features to the class means; 0 switches it off.
        head_epochs: E_h, epochs of the head.
        head_rate: factor of the learning rate in the head's phase.
        local_epochs: E; of the base.
        batch_size: B; None takes all of a client's rows at once.
        weighting: of the base's average: `"rows"` (n_i / n) or `"uniform"` (1 / m).
        newcomers: head of clients that have never trained: the `"initial"` one, or the `"mean"` of those that have.
        server_optimizer: takes the server's step on the base, see `jaxfl.server`; None takes the average.

    Raises:
        ValueError: an option is out of range, or the network does not end with a dense layer.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.MLP(hidden=(16,), num_classes=10), data)
    >>> result = jaxfl.run(fedpac(task, optax.sgd(0.1)), data, rounds=2, cohort=4, seed=0)
    >>> result.state.anchors.shape, jaxfl.tree.names(result.state.heads)
    ((10, 16), ['Dense_1/bias', 'Dense_1/kernel'])
    """
    if is_known(alignment_weight) and not 0 <= alignment_weight < math.inf:  # nor NaN
        raise ValueError(
            f"alignment_weight must be at least 0 and finite, got {alignment_weight}; 0 switches the alignment off."
        )
    if is_known(head_rate) and not 0 < head_rate < math.inf:
        raise ValueError(f"head_rate must be above 0 and finite, got {head_rate}; it is a factor, and 1 is none.")
    if head_epochs < 1:
        raise ValueError(f"head_epochs must be at least 1, got {head_epochs}; 1 is usual.")
    head = find_head(task, "fedpac")
    chosen = last_layer(task)
    others = jax.tree.map(lambda personal: not personal, chosen)
    server_optimizer = optimizers.beside(server_optimizer, task.averages)
    faster = optax.chain(optimizer, optax.scale(head_rate))
    train_head = train_part(task, faster, chosen, local_epochs=head_epochs, batch_size=batch_size)
    passes = {"local_epochs": local_epochs, "batch_size": batch_size}
    train_part(task, optimizer, others, **passes)  # refuses what is out of range
    sums_of = class_sums(task, head)

    def init(key: Key, data: FederatedData) -> FedPACState:
        model, count = task.init(key_for(key, Stream.INIT)), data.num_clients
        own, rest = tree.partition(model, chosen)
        anchors = jnp.zeros((head.classes, head.features), head.weights(model)[0].dtype)
        clients = jnp.arange(count, dtype=jnp.int32)
        moments, known = optimizers.init(server_optimizer, rest), jnp.zeros(head.classes, bool)
        mean = MeanHead(own, jnp.zeros(count, bool)) if newcomers == "mean" else None
        return FedPACState(rest, tree.repeat(own, count), anchors, known, moments, clients, jnp.int32(0), mean)

    def client(shared, client: Array, own: Params):
        key, (rest, anchors, known, round), data = shared
        client_key = key_for(key, Stream.BATCHES, round, client)
        head_key = key_for(client_key, Stream.HEADS)
        model = tree.combine(own, rest)
        before = sums_of(model, data, client)
        means = aggregate.divide(before.features, before.counts, empty=jnp.zeros_like(anchors))
        targets = jnp.where(known[:, None], anchors, means)
        weight = jnp.where(round > 0, alignment_weight, 0)

        def pull(seen: Features, batch: Batch) -> Array:
            return weight * masked_mean(jnp.square(seen.features - targets[batch.y]).mean(1), batch.mask)

        aligned = task if is_zero(alignment_weight) else with_feature_term(task, head, pull)
        train_base = train_part(aligned, optimizer, others, **passes)
        model, _ = train_head(head_key, model, conduct.for_unsent_training(client_key, data), client)
        model, loss = train_base(client_key, model, data, client)
        new_head, new_rest = tree.partition(model, chosen)
        new_head = conduct.perturb_model(head_key, own, new_head, data, client)
        after = sums_of(tree.combine(new_head, new_rest), data, client)

        finite = tree.is_finite((new_head, new_rest, before, after))
        weighs = jnp.where(finite, aggregate.client_weight(data, client, weighting), 0)
        counts = jnp.where(finite, aggregate.client_weight(data, client, "uniform"), 0)
        sums = (
            aggregate.contribute(new_rest, weighs, start=rest),
            aggregate.contribute({"features": after.features, "counts": after.counts}, counts),
        )
        return sums, (loss, finite, feature_statistics(before)), tree.where(finite, new_head, own)

    def round(key: Key, state: FedPACState, data: FederatedData, cohort: Cohort) -> tuple[FedPACState, Info]:
        refuse_asynchronous("fedpac", "it combines the heads of a round by statistics of one base; take fedper")
        refuse_wire("fedpac", NO_WIRE)
        shared = key, (state.base, state.anchors, state.known, state.round), data
        sums, (loss, finite, statistics), rows = over_owners(client, shared, cohort, state.heads)
        rest, moments = optimizers.step_to_mean(server_optimizer, state.server, state.base, sums[0])
        features = tree.take(sums[1].values, 0)
        anchors = aggregate.divide(features["features"], features["counts"], empty=state.anchors)
        known = state.known | (features["counts"] > 0)

        valid = cohort.mask & finite & (data.train.size[cohort.ids] > 0)
        sent = tree.take(rows, cohort.ids)  # [C, ...]
        sent = tree.where(valid, sent, jax.tree.map(jnp.zeros_like, sent))
        weights = combination_weights(statistics, valid)
        mixed, ids = mix_rows(weights, sent), jnp.where(valid, cohort.ids, data.num_clients)
        heads, mean = tree.put(rows, ids, mixed), state.mean
        if mean is not None:
            old, new = (valid & mean.trained[cohort.ids]).astype(jnp.float32), valid.astype(jnp.float32)
            trained = mean.trained.at[ids].set(True, mode="drop")
            count = trained.sum(dtype=jnp.int32).astype(jnp.float32)
            mean = MeanHead(moved_mean(mean.head, count, tree.take(state.heads, cohort.ids), mixed, old, new), trained)
        one = contract.shape_of(sent)
        info = contract.info(
            cohort,
            loss,
            cohort.ids,
            num_clusters=data.num_clients,
            diverged=(~finite & cohort.mask).sum(dtype=jnp.int32),
            up=(rest, one),
            beside=(contract.shape_of(statistics), features),
            down=(rest, one, anchors),
        )
        return FedPACState(rest, heads, anchors, known, moments, state.cluster, state.round + 1, mean), info

    def client_params(state: FedPACState, ids: Array) -> Params:
        heads = tree.take(state.heads, ids)
        if state.mean is not None:
            heads = tree.where(state.mean.trained[ids], heads, contract.serve_one(state.mean.head, ids))
        return tree.combine(heads, tree.repeat(state.base, ids.shape[0]))

    return Method(init, round, client_params, task, per_client="heads")


def feature_statistics(sums: ClassSums) -> FeatureStatistics:
    """Returns H_i and V_i of a client; zeros without rows.

    >>> sums = ClassSums(jnp.array([[2.0, 0.2], [0.0, 1.0]]), jnp.array([2.0, 1.0]), jnp.array(3.04))
    >>> float(feature_statistics(sums).variance)
    0.1511...
    """
    count = jnp.maximum(sums.counts.sum(), 1)
    shares = sums.features / count
    return FeatureStatistics(shares, (sums.squares / count - jnp.square(shares).sum()) / count)


def combination_weights(statistics: FeatureStatistics, valid: Array) -> Array:
    """Returns alpha `[C, C]`, whose rows are convex weights; rows and columns of invalid clients are 0.

    Args:
        statistics: H `[C, L, d]` and V `[C]`.
        valid: bool `[C]`.
    """
    shares = statistics.shares.reshape(valid.size, -1)
    shares = jnp.where(valid[:, None], shares, 0)
    count = jnp.maximum(valid.sum(), 1).astype(shares.dtype)
    # near vectors have small products then
    shares = jnp.where(valid[:, None], shares - shares.sum(0, keepdims=True) / count, 0)
    products = jnp.matmul(shares, shares.T, precision="highest")  # [C, C]
    variance, places = jnp.where(valid, statistics.variance, 0), jnp.arange(valid.size)

    def weights_of(i: Array) -> Array:
        biases = products - products[i][:, None] - products[i][None, :] + products[i, i]
        other = places != i
        biases = jnp.where(other[:, None] & other[None, :], biases, 0)  # of the client's own head exactly
        diagonal = jnp.maximum(jnp.diagonal(biases) + variance, 0)
        # V of a client with one row is 0, and rounding makes negative ones
        mean = jnp.sum(diagonal, where=valid) / count
        least_value = jnp.finfo(shares.dtype).eps * jnp.where(mean > 0, mean, 1)
        form = jnp.where(jnp.eye(valid.size, dtype=bool), jnp.maximum(diagonal, least_value)[:, None], biases)
        found = least(form, valid & valid[i])
        large = jnp.where(found < LEAST_WEIGHT, 0, found)
        total = large.sum()
        return jnp.where(total > 0, large / jnp.where(total > 0, total, 1), found)

    return jax.lax.map(weights_of, places)
