"""Membership inference: how well the losses of the served models tell training rows from test rows.

An adversary that has the model of a client's cluster, and a row of the client, says that the row was trained on if its
loss is below a threshold. True positives are training rows, false positives are test rows.

References: Yeom, Giacomelli, Fredrikson and Jha, "Privacy Risk in Machine Learning: Analyzing the Connection to
Overfitting", CSF 2018 (the threshold); Carlini et al., "Membership Inference Attacks From First Principles", S&P 2022
(the true positives at few false ones, and the score against reference models).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import engine, tree
from jaxfl.client.passes import fold_rows, rows_at_once
from jaxfl.cohort import Cohort, Plan
from jaxfl.data.clients import Batch, FederatedData, Split
from jaxfl.methods.base import Method, clients_to_train, keep_clusters
from jaxfl.random import host_rng
from jaxfl.schema import check_type
from jaxfl.simulation.evaluation import evaluate
from jaxfl.simulation.evaluation.finetune import server
from jaxfl.simulation.evaluation.metrics import cluster_is_known, counted_clients
from jaxfl.simulation.prepared import Prepared
from jaxfl.simulation.program import cached_program, shapes_of
from jaxfl.simulation.result import TrainedRun
from jaxfl.tasks import Task
from jaxfl.tasks.contract import row_losses
from jaxfl.tasks.metrics import ACCURACY
from jaxfl.typing import Array, Key, Params

if TYPE_CHECKING:
    import pandas

FALSE_POSITIVES = 0.01  # the rate at which true positives are told
SMALLEST_LOSS = 1e-7  # of a row, about the rounding of float32; below it a logit would be infinite


class MembershipRisk(NamedTuple):
    """The risk that a threshold on scores tells members from others; NaN where one of the sides is empty.

    Attributes:
        clients: that have these rows.
        members: rows that were trained on.
        others: rows that were not.
        auc: probability that a member has a higher score than another row, ties count half; 0.5 is chance.
        advantage: largest difference of true and false positive rate over all thresholds; 0 is chance.
        true_positives: highest rate of true positives of a threshold with at most 1 % of false ones; 0.01 is chance.
    """

    clients: int
    members: int
    others: int
    auc: float
    advantage: float
    true_positives: float


class Membership(NamedTuple):
    """Scores of rows for membership inference, see `membership`.

    Attributes:
        score: of S rows `[S]` float64; higher is more like a training row.
        member: `[S]` bool, whether the row is a training row.
        client: `[S]` int32, whose row it is.
        cluster: `[N]` slot of each client's served model, -1 for none.
        size: `[N]` int, clients of that cluster that train.
        client_score: `[N]` float64, mean score of a client's training rows; NaN for clients that are not scored.
        held_out: `[N]` bool, clients that were held out of training.
    """

    score: np.ndarray
    member: np.ndarray
    client: np.ndarray
    cluster: np.ndarray
    size: np.ndarray
    client_score: np.ndarray
    held_out: np.ndarray

    def overall(self) -> MembershipRisk:
        """Returns the risk of all rows together, with one threshold for all clients."""
        return self._part(np.ones(len(self.cluster), bool))

    def by_cluster(self) -> dict[int, MembershipRisk]:
        """Returns the risk of each cluster's rows by its slot, each with thresholds of its own."""
        return {int(k): self._part(self.cluster == k) for k in np.unique(self.cluster[self.client])}

    def by_size(self) -> dict[str, MembershipRisk]:
        """Returns the risk by the number of clients in a row's cluster: 1, 2-4, 5-9, 10-19, 20-49, 50-99, ..."""
        largest = int(self.size[self.client].max(initial=1))
        names = [str(first) if first == last else f"{first}-{last}" for first, last in size_bins(largest)]
        return {name: self._part(self._of_size(name)) for name in names if self.rows_of_size(name).any()}

    def rows_of_size(self, size: str) -> np.ndarray:
        """Returns which rows `[S]` bool are of clusters with a number of clients.

        Args:
            size: one of `by_size`, such as `"2-4"`.
        """
        return self._of_size(size)[self.client]

    def of_clients(self) -> MembershipRisk:
        """Returns the risk that a client is seen to have trained: clients that train against those held out.

        The score is the mean of the client's training rows, under the model that the method assigns to it.
        """
        scored = ~np.isnan(self.client_score)
        return membership_risk(self.client_score[scored], ~self.held_out[scored], int(scored.sum()))

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns a row for each part: all rows, each cluster, each size of a cluster, and clients if any are held out.

        `part` and `value` name it; the other columns are those of `MembershipRisk`.
        """
        import pandas

        parts = [("all", "", self.overall())]
        parts += [("cluster", str(slot), risk) for slot, risk in self.by_cluster().items()]
        parts += [("size", size, risk) for size, risk in self.by_size().items()]
        parts += [("clients", "", self.of_clients())] if self.held_out.any() else []
        return pandas.DataFrame([{"part": part, "value": value, **risk._asdict()} for part, value, risk in parts])

    def _of_size(self, size: str) -> np.ndarray:
        """Returns which clients `[N]` bool are in clusters with a number of clients, such as `"2-4"`."""
        first, _, last = size.partition("-")
        return (self.size >= int(first)) & (self.size <= int(last or first))

    def _part(self, clients: np.ndarray) -> MembershipRisk:
        """Returns the risk of the rows of some clients `[N]` bool."""
        rows = clients[self.client]
        return membership_risk(self.score[rows], self.member[rows], len(np.unique(self.client[rows])))


def membership(result: TrainedRun, *, references: int = 0) -> Membership:
    """Returns scores by which training rows can be told from test rows, under the model that each client is served.

    Scored are the clients in the metrics of the run: those that are tested, neither held out nor attackers, with
    training rows and in a cluster. Their training rows are the members, their test rows the others: where both are of
    one distribution, a difference is memorised. A client that the run has never sampled counts as the others do. The
    model is the one that the evaluation tests: a personal one, or adapted to the client's rows, where the method does
    so, even if it never leaves the client.

    Without `references` the score is minus the loss of a row. With them it says how much better the row's own model is
    than models that other clusters have: the difference of the logits of the confidence, log p - log(1 - p), to their
    mean (of tasks that are no classification, of minus the losses). This is the likelihood ratio attack with one
    variance for all rows, but its reference models are those of the run: they have learned other clients' data, which
    may differ from this client's, and of methods whose clients move they may have seen the row in an earlier round.

    It costs one pass over all rows, one more for each reference, and no training.

    Args:
        result: of `jaxfl.run` or `jaxfl.load`.
        references: models of other clusters, drawn for each cluster; 0 takes the loss alone.

    Raises:
        TypeError: `references` is no whole number.
        ValueError: the result does not know its method, no client has training and test rows, or `references` is not
            from 0 to the number of other clusters.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(jaxfl.methods.ifca(task, optax.sgd(0.1), num_clusters=2), data, rounds=2)
    >>> found = membership(result)
    >>> found.overall().clients, found.overall().members == int(data.train.size.sum())
    (8, True)
    """
    check_type("references", references, int)
    method, data = result.method, replace(result.data, validation=None)
    if method is None:
        raise ValueError("result must know its method, got one without it; take that of jaxfl.run or jaxfl.load.")
    evaluation = result.evaluation
    cluster, held_out = evaluation.cluster, np.zeros(data.num_clients, bool)
    if data.held_out is not None:
        held_out = np.asarray(data.held_out)
    there = cluster_is_known(evaluation, data) & (np.asarray(data.train.size) > 0) & (cluster >= 0)
    scored = there & counted_clients(data) & (np.asarray(data.test.size) > 0)
    if not scored.any():
        raise ValueError("result must have a client with training and test rows in a cluster, got none.")
    ids = np.flatnonzero(scored | (there & held_out))
    lent = _model_clients(cluster, scored & (np.asarray(result.state.cluster) == cluster), references, result.seed)

    blocks = list(_row_losses(method, result, data, ids, lent))
    train, test = (_score(method.task, np.concatenate(parts, 1)) for parts in zip(*blocks, strict=True))
    train_client, test_client = (np.repeat(ids, np.asarray(split.size)[ids]) for split in (data.train, data.test))
    some, others = scored[train_client], scored[test_client]
    with np.errstate(invalid="ignore"):
        sums = np.bincount(train_client, train, data.num_clients)
        client_score = sums / np.bincount(train_client, minlength=data.num_clients)
    members = np.bincount(cluster[(cluster >= 0) & clients_to_train(data)], minlength=cluster.max() + 1)  # [K]
    return Membership(
        score=np.concatenate([train[some], test[others]]),
        member=np.arange(some.sum() + others.sum()) < some.sum(),
        client=np.concatenate([train_client[some], test_client[others]]).astype(np.int32),
        cluster=cluster,
        size=np.where(cluster >= 0, members[cluster], 0),
        client_score=client_score,
        held_out=held_out,
    )


def membership_risk(score: np.ndarray, member: np.ndarray, clients: int = 0) -> MembershipRisk:
    """Returns the risk that thresholds on scores tell members from others.

    Args:
        score: `[S]`, higher is more like a member.
        member: `[S]` bool.
        clients: that have these rows, for the record.

    >>> risk = membership_risk(np.array([3.0, 2.0, 2.0, 1.0]), np.array([True, True, False, False]))
    >>> risk.auc, risk.advantage, risk.true_positives
    (0.875, 0.5, 0.5)
    """
    score, member = np.asarray(score, np.float64), np.asarray(member, bool)
    members, others = int(member.sum()), int((~member).sum())
    if not members or not others:
        return MembershipRisk(clients, members, others, np.nan, np.nan, np.nan)
    from scipy import stats

    # Mann and Whitney's statistic: the ranks of the members, ties with their mean rank
    auc = (stats.rankdata(score)[member].sum() - members * (members + 1) / 2) / (members * others)
    false, true = roc_curve(score, member)
    few = true[false <= FALSE_POSITIVES]
    return MembershipRisk(clients, members, others, float(auc), float((true - false).max()), float(few.max()))


def roc_curve(score: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns rates of false and of true positives, from (0, 0) to (1, 1), a point for each different score.

    Args:
        score: `[S]`, higher is more like a member.
        member: `[S]` bool.

    >>> roc_curve(np.array([3.0, 2.0, 2.0, 1.0]), np.array([True, True, False, False]))
    (array([0. , 0. , 0.5, 1. ]), array([0. , 0.5, 1. , 1. ]))
    """
    order = np.argsort(-score, kind="stable")
    score = score[order]
    ends = np.append(np.flatnonzero(score[1:] != score[:-1]), len(score) - 1)  # of equal scores
    true = np.cumsum(member[order], dtype=np.int64)[ends]
    false = ends + 1 - true
    false, true = (np.concatenate([[0], counts]) / counts[-1] for counts in (false, true))
    return false, true


def size_bins(largest: int) -> list[tuple[int, int]]:
    """Returns the first and last sizes of bins of clusters, up to that of the largest one.

    >>> size_bins(60)
    [(1, 1), (2, 4), (5, 9), (10, 19), (20, 49), (50, 99)]
    """
    firsts = [1, 2, 5]
    while firsts[-1] <= largest:
        firsts.append(10 * firsts[-3])
    return [(first, after - 1) for first, after in zip(firsts, firsts[1:], strict=False) if first <= largest]


def _score(task: Task, losses: np.ndarray) -> np.ndarray:
    """Returns the scores `[S]` of rows by their losses `[R + 1, S]` under their own model and R references.

    A loss that is not a number, of a diverged model, has the lowest score.
    """
    losses = losses.astype(np.float64)
    if len(losses) == 1:
        score = -losses[0]
    else:
        logits = -np.log(np.expm1(np.clip(losses, SMALLEST_LOSS, 700))) if task.metrics is ACCURACY else -losses
        score = logits[0] - logits[1:].mean(0)
    return np.where(np.isnan(score), -np.inf, score)


def _model_clients(cluster: np.ndarray, owner: np.ndarray, references: int, seed: int) -> np.ndarray:
    """Returns the clients `[R + 1, N]` whose served models score a client's rows: its own, then those of references.

    Args:
        cluster: `[N]` slots of the served models.
        owner: `[N]` bool, clients whose models may be references.
        references: R.
        seed: of the run.

    Raises:
        ValueError: there are not so many other clusters.
    """
    own = np.arange(len(cluster))[None]
    slots, first = np.unique(cluster[owner], return_index=True)
    owners = np.flatnonzero(owner)[first]  # [K] a client of each cluster
    most = max(len(slots) - 1, 0)
    if not 0 <= references <= most:
        raise ValueError(
            f"references must be from 0 to {most}, the number of other clusters, got {references}; 0 takes the loss "
            "alone."
        )
    if not references:
        return own
    chosen = np.zeros((references, len(cluster)), int)
    for slot in np.unique(cluster):
        others = host_rng(seed, "membership", int(slot)).permutation(owners[slots != slot])
        chosen[:, cluster == slot] = others[:references, None]
    return np.concatenate([own, chosen])


def _row_losses(
    method: Method, result: TrainedRun, data: FederatedData, ids: np.ndarray, lent: np.ndarray
) -> Iterator[list[np.ndarray]]:
    """Yields the losses of blocks of clients, `[R + 1, rows]` of training and of test rows, client after client.

    Args:
        method: of the run.
        result: of the run.
        data: the federation.
        ids: of the clients `[M]`.
        lent: `[R + 1, N]` the clients whose models score a client's rows.
    """
    prepared = Prepared.of(method, data, len(ids))
    (data,), plan = prepared.place([data]), prepared.plan
    if prepared.host_data:
        assigns = method.assign is not keep_clusters
        blocks = evaluate.window_blocks(data, ids, plan, None, assigns=assigns, trains=True)
    else:
        blocks = evaluate.resident_blocks(data, ids, plan, None)
    sizes = [np.asarray(split.size) for split in (data.train, data.test)]
    key, state = jax.random.key(result.seed), tree.placed(result.state, plan.place)
    beside = np.unique(lent[1:, ids])
    for block, served in evaluate.served_blocks(method, plan, key, state, blocks, beside):
        tests, shapes, real = evaluate.test_plan(plan, data), shapes_of(block.tested, block.ids), block.ids[block.real]
        found = [
            scorer(method, tests, shapes, not place)(key, served, block.tested, block.ids, whose[block.ids])
            for place, whose in enumerate(lent.astype(np.int32))
        ]
        yield [
            np.stack([_without_padding(np.asarray(losses)[block.real], size[real]) for losses in under])
            for size, under in zip(sizes, zip(*found, strict=True), strict=True)
        ]


def _without_padding(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Returns the first `sizes [M]` entries of each row of `values [M, T]`, one row after the other."""
    return values[np.arange(values.shape[1]) < sizes[:, None]]


@cached_program(engine.jit)
def scorer(method: Method, plan: Plan, shapes: Any, own: bool) -> Any:
    """Returns `(key, state, data, ids [M], whose [M]) -> losses [M, T]` of training rows, and those of test rows.

    The model is the one that a client is served, adapted to its rows where the method does so; without `own` the shared
    one of the client at the same place of `whose`.
    """
    losses, serve = row_losses(method.task), server(method)

    def split_losses(model: Params, data: FederatedData, split: Split, client: Array) -> Array:
        most = rows_at_once(method.task, model, evaluate.BLOCK)

        def step(carry: tuple[Array, Array], batch: Batch) -> tuple[Array, Array]:
            place, found = carry
            new = losses(model, batch).astype(jnp.float32)
            return place + new.shape[0], jax.lax.dynamic_update_slice(found, new, (place,))

        room = jnp.zeros(split.max_size + most, jnp.float32)  # the last block may reach beyond the rows
        return fold_rows(step, (jnp.int32(0), room), data, split, client, most)[1][: split.max_size]

    def score(key: Key, state: Any, data: FederatedData, ids: Array, whose: Array) -> tuple[Array, Array]:
        def client(shared: Any, client: Array, whose: Array) -> tuple[tuple, tuple[Array, Array]]:
            key, state, data = shared
            if own:
                model, _ = serve(key, state, data, client)
            else:
                model = tree.take(method.client_params(state, whose[None]), 0)
            train, test = (split_losses(model, data, split, client) for split in (data.train, data.test))
            return (), (train, test)

        return plan.readable(engine.over_clients(client, (key, state, data), Cohort.of(ids, plan), whose)[1])

    return score
