"""Audit of a run by its canaries: guesses which of them have sent, and a lower bound on epsilon."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import engine, tree
from jaxfl.analysis.empirical_privacy import epsilon_from_guesses
from jaxfl.cohort import Cohort, Plan, resolve_plan
from jaxfl.data.conditions import CANARY
from jaxfl.methods.base import Method, served_model
from jaxfl.schema import check_type
from jaxfl.simulation.program import cached_program, initialiser, shapes_of
from jaxfl.simulation.result import TrainedRun
from jaxfl.simulation.rounds import with_clusters
from jaxfl.typing import Array, Key
from jaxfl.wire.canaries import canary_sends, canary_vector


class CanaryAudit(NamedTuple):
    """Guesses about the M canaries of a run, see `audit_canaries`.

    Attributes:
        client: `[M]` int32, their numbers.
        score: `[M]` float64, <c_i, last model - first model> of a canary's cluster, in units of what it sends.
        sent: `[M]` bool, whether the canary sends, by its coin.
        guesses: how many canaries were guessed, those with the highest scores to send, the others not to.
        correct: right guesses.
        epsilon: lower bound on epsilon of the run, at the confidence that was asked for.
    """

    client: np.ndarray
    score: np.ndarray
    sent: np.ndarray
    guesses: int
    correct: int
    epsilon: float


def audit_canaries(
    result: TrainedRun, *, guesses: int | None = None, delta: float = 0.0, confidence: float = 0.95
) -> CanaryAudit:
    """Returns what an adversary with the first and the last models tells about the canaries of a run.

    The canaries are the attackers of a federation with `attack=canary`, see `jaxfl.wire.canaries`. Guessed to have sent
    is the half of the guesses with the highest scores, guessed not to have is the half with the lowest. The bound holds
    for one client added to the run or taken from it, however the canaries were sampled. It says what these canaries and
    this adversary can show: the true epsilon may be far larger. It costs no training.

    Args:
        result: of `jaxfl.run` or `jaxfl.load`.
        guesses: how many canaries are guessed, chosen before the scores are seen; None guesses all. Fewer guesses are
            right more often.
        delta: of differential privacy, from 0 to 1.
        confidence: probability with which the bound holds, between 0 and 1.

    Raises:
        TypeError: `guesses` is no whole number.
        ValueError: the run has no canaries or does not know its method, or a number is out of range.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=40, rows_per_client=20, attack="canary", attackers=0.8)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(jaxfl.methods.fedavg(task, optax.sgd(0.1)), data, rounds=3, cohort=40, seed=0)
    >>> found = audit_canaries(result)
    >>> found.guesses, found.correct > 25, 0 < found.epsilon < 5
    (32, True, True)
    """
    check_type("guesses", guesses, int | None)
    method, data = result.method, result.data
    if method is None:
        raise ValueError("result must know its method, got one without it; take that of jaxfl.run or jaxfl.load.")
    if data.attack is None or data.attack.kind != CANARY:
        kind = "no attackers" if data.attack is None else f"attack={data.attack.kind}"
        raise ValueError(f"result must be of a run with canaries, got {kind}; run with attack=canary attackers=0.2.")
    ids = np.flatnonzero(data.attack.attacker).astype(np.int32)
    guesses = len(ids) if guesses is None else guesses
    if not 1 <= guesses <= len(ids):
        raise ValueError(f"guesses must be from 1 to the number of canaries ({len(ids)}), got {guesses}; None is all.")

    key, began = jax.random.key(result.seed), (data if result.began is None else result.began).in_programs()
    plan = resolve_plan("auto", served_model(method, result.state), len(ids))._replace(mesh=None)
    state = tree.placed(result.state, plan.place)
    first = initialiser(method, shapes_of(began))(key, began)
    first = with_clusters(first, state, np.arange(data.num_clients), plan)  # the models that these began with
    score, sent = canary_scorer(method, plan, shapes_of(ids))(key, state, first, ids)
    score, sent = np.asarray(score, np.float64) / float(data.attack.scale), np.asarray(sent)
    order, yes = np.argsort(-score, kind="stable"), guesses // 2
    correct = int(sent[order[:yes]].sum() + (~sent[order[len(ids) - (guesses - yes) :]]).sum())
    bound = epsilon_from_guesses(correct, guesses, records=len(ids), delta=delta, confidence=confidence)
    return CanaryAudit(ids, score, sent, guesses, correct, bound)


@cached_program(engine.jit)
def canary_scorer(method: Method, plan: Plan, shapes: Any) -> Any:
    """Returns `(key, state, first, ids [M]) -> (products [M], sent [M])` of canaries.

    `first` is the state before the first round, with the last clusters.
    """

    def score(key: Key, state: Any, first: Any, ids: Array) -> tuple[Array, Array]:
        def client(shared: Any, client: Array) -> tuple[tuple, tuple[Array, Array]]:
            key, *states = shared
            last, start = (tree.ravel(tree.take(method.client_params(one, client[None]), 0)) for one in states)
            moved = (last - start).astype(jnp.float32)
            return (), (canary_vector(key, client, moved.size) @ moved, canary_sends(key, client))

        return engine.over_clients(client, (key, state, first), Cohort.of(ids, plan))[1]

    return score
