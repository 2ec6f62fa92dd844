"""How well the clients are served: every client's own test rows under the model it is served.

Many clients share a model and a test set (four rotations of MNIST under four models are at most sixteen pairs, whatever
the number of clients), so the pass runs over the distinct pairs and its counts are handed to all who share one.

What is reported, of the clients with test rows:

- `micro_accuracy`, `micro_f1`, `loss`: weighted by test rows; `macro_accuracy`, `macro_f1`: every client the same.
  A client's F1 is the mean F1 of the classes present in its test rows. (FeSEM's tables weight by train + test rows.)
- `std_accuracy`, `p5_accuracy` ... `p90_accuracy`, `worst_decile_accuracy` (the mean of the worst tenth): over clients.
- `ari`, `nmi`, `purity`, `num_clusters`: found clusters against true groups, of the clients that have a cluster; None
  where the true groups are unknown.
- `unseen_micro_accuracy`, `unseen_macro_accuracy`: of held-out clients, who are in none of the numbers above.
- `attackers` (how many), `attackers_micro_accuracy`, `attackers_macro_accuracy`: where some clients attack (see
  `jaxfl.data.conditions`), who are in none of the numbers above.
- `finetuned_micro_accuracy`, `finetuned_macro_accuracy`, `finetuned_micro_f1`, `finetuned_macro_f1`: the same of models
  that every client has first trained on its own training rows, see `FineTune`; where asked for.
  `finetuned_unseen_micro_accuracy`, `finetuned_unseen_macro_accuracy` are of held-out clients, who do so as well.
  `finetuned_diverged` counts clients whose model was not finite then; they, and clients without training rows, are
  tested with the model that they are served.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxfl import tree
from jaxfl.clustering import scores
from jaxfl.data.clients import Batch, Cohort, FederatedData, Plan
from jaxfl.engine import by_size, over_clients
from jaxfl.local import fold_rows, local_train
from jaxfl.methods.base import Method
from jaxfl.random import Stream, key_for
from jaxfl.typing import Array, Key, Params

BLOCK = 1000  # test rows taken at once
FINETUNED = (  # of the metrics, those that are reported of fine-tuned models too
    *("micro_accuracy", "macro_accuracy", "micro_f1", "macro_f1", "unseen_micro_accuracy", "unseen_macro_accuracy"),
)


@dataclasses.dataclass(frozen=True)
class FineTune:
    """What every client does with the model that it is served before it is tested a second time.

    It trains the whole model on its own training rows with the task's loss, as in the first version of FeSEM ("one
    extra local epoch"). Nothing of it is kept or sent: the run is the same with and without. Nobody is late or attacks.
    Models are then one for each client, so an evaluation costs N trainings and N tests, where models and test sets that
    clients share are otherwise tested once; with E local epochs on a tenth of the clients in a round, `epochs=1` on all
    of them costs as much as 10 / E rounds, so evaluate seldom.

    Attributes:
        optimizer: its state starts fresh.
        epochs: passes over the client's training rows.
        batch_size: rows of a step, reshuffled in every epoch; None takes all at once.

    Raises:
        ValueError: `epochs` or `batch_size` is below 1.

    >>> import optax
    >>> FineTune(optax.sgd(0.1), batch_size=10).epochs
    1
    """

    optimizer: optax.GradientTransformation
    epochs: int = 1
    batch_size: int | None = None

    def __post_init__(self) -> None:
        """Checks the numbers."""
        if self.epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {self.epochs}; finetune=None tests models as they are.")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}; None takes all rows at once.")


class Evaluation(NamedTuple):
    """One evaluation of all clients."""

    metrics: dict[str, Any]  # by the names above; plain numbers, ready for JSON
    accuracy: np.ndarray  # [N], NaN for a client without test rows
    f1: np.ndarray  # [N]
    loss: np.ndarray  # [N]
    cluster: np.ndarray  # [N] slot of the model that each client is served, -1 for none
    finetuned: "Evaluation | None" = None  # the same of fine-tuned models, where asked for


def evaluator(
    method: Method, data: FederatedData, plan: Plan = Plan(), finetune: FineTune | None = None
) -> Callable[[Key, Any], Evaluation]:
    """Returns `(key, state) -> Evaluation`; it compiles once and may be called after any round.

    Args:
        method: gives the models (`assign`, then `client_params`) and the task.
        data: the federation.
        plan: how the engine walks through the clients.
        finetune: what clients train before they are tested a second time; None tests them once.
    """
    tune = None if finetune is None else _tuner(method, finetune, data.num_clients, plan)
    everyone = jnp.arange(data.num_clients)

    @jax.jit
    def assign(key: Key, state: Any, data: FederatedData) -> Any:
        return method.assign(key, state, data, Cohort.of(everyone, plan))

    @jax.jit
    def count(state: Any, data: FederatedData, ids: Array, real: Array) -> tuple[Array, Array]:
        def client(shared: Any, client: Array, real: Array) -> tuple[tuple, tuple[Array, Array]]:
            state, data = shared

            def run() -> tuple[Array, Array]:
                return count_rows(method, tree.take(method.client_params(state, client[None]), 0), data, client)

            return (), _where_needed(real, run)

        return over_clients(client, (state, data), Cohort.of(ids, plan), real)[1]

    def evaluate(key: Key, state: Any) -> Evaluation:
        state = assign(key, state, data)
        cluster = np.asarray(state.cluster)
        first, inverse = distinct(data, cluster)
        # one program for every number of pairs: what is not needed is skipped, or with chunks kept below twice the need
        width = data.num_clients if plan.chunk == 1 else min(data.num_clients, 1 << (len(first) - 1).bit_length())
        ids = np.resize(first, width)
        counts, loss = count(state, data, ids, np.arange(width) < len(first))
        counts, loss = np.asarray(counts)[inverse], np.asarray(loss, np.float64)[inverse]
        plain = summarise(counts.astype(np.int64), loss, cluster, data)
        if tune is None:
            return plain
        (counts, loss), diverged = tune(key, state, data)
        tuned = summarise(np.asarray(counts, np.int64), np.asarray(loss, np.float64), cluster, data)
        metrics = {f"finetuned_{name}": tuned.metrics[name] for name in FINETUNED if name in tuned.metrics}
        metrics["finetuned_diverged"] = int(np.asarray(diverged).sum())
        return plain._replace(metrics=plain.metrics | metrics, finetuned=tuned)

    return evaluate


def _tuner(method: Method, finetune: FineTune, num_clients: int, plan: Plan) -> Callable[..., tuple]:
    """Returns `(key, state, data) -> (counts, loss), diverged` of all clients `[N, ...]`, fine-tuned; compiled.

    A fine-tuned model lives as long as its client's test: there is a chunk of them, never a stack.
    """
    train = trainer(method, finetune)

    def client(shared: Any, client: Array) -> tuple[tuple, Any]:
        key, state, data = shared

        def run() -> Any:
            model, finite = train(key, state, data, client)
            return count_rows(method, model, data, client), ~finite

        return (), _where_needed(data.test.size[client] > 0, run)

    @jax.jit
    def tune(key: Key, state: Any, data: FederatedData) -> Any:
        cohort = by_size(data, Cohort.of(jnp.arange(num_clients), plan))
        found = over_clients(client, (key, state, data), cohort)[1]
        return jax.tree.map(lambda leaf: jnp.zeros_like(leaf).at[cohort.ids].set(leaf), found)

    return tune


def trainer(method: Method, finetune: FineTune) -> Callable[..., tuple[Params, Array]]:
    """Returns `(key, state, data, client) -> (model, finite)`: what a client's model becomes; traceable.

    Args:
        method: gives the model that the client starts from, the one that it is served, and the task.
        finetune: how it trains; a model that is not finite then is given up for the one that the client is served.
    """
    train = local_train(method.task, finetune.optimizer, local_epochs=finetune.epochs, batch_size=finetune.batch_size)

    def run(key: Key, state: Any, data: FederatedData, client: Array) -> tuple[Params, Array]:
        honest = dataclasses.replace(data, stragglers=None, attack=None)  # conditions of rounds: this is none
        served = tree.take(method.client_params(state, client[None]), 0)
        trained: Params = train(key_for(key, Stream.FINETUNE, state.round, client), served, honest, client)[0]
        finite = jnp.isfinite(tree.ravel(trained)).all()
        return tree.where(finite, trained, served), finite

    return run


def _where_needed(real: Array, run: Callable[[], Any]) -> Any:
    """Returns what `run` returns, or zeros where it is not needed; one client at a time skips it then."""
    shapes = jax.eval_shape(run)
    return jax.lax.cond(real, run, lambda: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes))


def count_rows(method: Method, model: Any, data: FederatedData, client: Array) -> tuple[Array, Array]:
    """Returns counts `[3, L]` (true, predicted and correctly predicted rows of a class) and the sum of the losses."""

    def step(carry: tuple[Array, Array], batch: Batch) -> tuple[Array, Array]:
        counts, total = carry
        predicted = jnp.argmax(method.task.logits(model, batch), 1)  # [B]
        real = batch.mask[:, None]
        truth, guess = (jax.nn.one_hot(y, data.num_classes, dtype=bool) & real for y in (batch.y, predicted))
        found = jnp.stack([truth.sum(0), guess.sum(0), (truth & guess).sum(0)]).astype(jnp.int32)
        rows = batch.mask.sum().astype(total.dtype)
        return counts + found, total + method.task.loss(model, batch, None).astype(total.dtype) * rows

    zero = jnp.zeros((3, data.num_classes), jnp.int32), jnp.zeros((), jnp.float32)
    return fold_rows(step, zero, data, data.test, client, BLOCK)


def distinct(data: FederatedData, cluster: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns one client of each distinct (model, test rows, shift), and for every client which of them it shares.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)  # two clients a rotation
    >>> [len(part) for part in distinct(data, np.zeros(8, int))]
    [4, 8]
    """
    columns = [cluster, data.test.start, data.test.size, data.rotation, data.tilt, data.label_shift]
    rows = np.stack([np.asarray(column) for column in columns if column is not None], 1)
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)


def summarise(counts: np.ndarray, loss: np.ndarray, cluster: np.ndarray, data: FederatedData) -> Evaluation:
    """Turns counts into metrics.

    Args:
        counts: `[N, 3, L]`, see `count_rows`.
        loss: `[N]` sums of losses.
        cluster: `[N]`.
        data: the federation.
    """
    truth, guess, hits = counts[:, 0], counts[:, 1], counts[:, 2]  # [N, L]
    rows = truth.sum(1)  # [N]
    with np.errstate(invalid="ignore", divide="ignore"):
        accuracy = hits.sum(1) / rows
        by_class = np.where(truth > 0, 2 * hits / np.maximum(truth + guess, 1), 0.0)
        f1 = by_class.sum(1) / (truth > 0).sum(1)
        loss = loss / rows
    held_out = np.zeros(data.num_clients, bool) if data.held_out is None else np.asarray(data.held_out)
    attacker = np.zeros(data.num_clients, bool) if data.attack is None else np.asarray(data.attack.attacker)
    served, unseen, hostile = (rows > 0) & ~held_out & ~attacker, (rows > 0) & held_out, (rows > 0) & attacker

    def micro(values: np.ndarray, who: np.ndarray) -> float | None:
        return float(np.average(values[who], weights=rows[who])) if who.any() else None

    def macro(values: np.ndarray, who: np.ndarray) -> float | None:
        return float(values[who].mean()) if who.any() else None

    metrics: dict[str, Any] = {
        "micro_accuracy": micro(accuracy, served),
        "macro_accuracy": macro(accuracy, served),
        "micro_f1": micro(f1, served),
        "macro_f1": macro(f1, served),
        "loss": micro(loss, served),
        **spread(accuracy[served]),
        **found(cluster, data, ~held_out & ~attacker),
        "clusters": [
            {
                "cluster": int(k),
                "clients": int((cluster == k).sum()),
                "micro_accuracy": micro(accuracy, served & (cluster == k)),
            }
            for k in np.unique(cluster)[:100]  # a model per client would repeat every client
        ],
    }
    if held_out.any():
        metrics |= {"unseen_micro_accuracy": micro(accuracy, unseen), "unseen_macro_accuracy": macro(accuracy, unseen)}
    if attacker.any():
        metrics |= {
            "attackers": int(attacker.sum()),
            "attackers_micro_accuracy": micro(accuracy, hostile),
            "attackers_macro_accuracy": macro(accuracy, hostile),
        }
    return Evaluation(metrics, accuracy, f1, loss, cluster)


def spread(accuracy: np.ndarray) -> dict[str, float | None]:
    """Returns how unequal the accuracies `[M]` are: standard deviation, percentiles, mean of the worst tenth."""
    names = ["std_accuracy", *(f"p{q}_accuracy" for q in (5, 10, 50, 90)), "worst_decile_accuracy"]
    if not len(accuracy):
        return dict.fromkeys(names)
    worst = np.sort(accuracy)[: max(1, len(accuracy) // 10)]
    return dict(
        zip(names, map(float, [accuracy.std(), *np.percentile(accuracy, [5, 10, 50, 90]), worst.mean()]), strict=True)
    )


def found(cluster: np.ndarray, data: FederatedData, who: np.ndarray) -> dict[str, Any]:
    """Returns how the found clusters agree with the true groups, of the clients `who [N]` that have a cluster."""
    who = who & (cluster >= 0)
    number = len(np.unique(cluster[who]))
    if data.group is None or not who.any():
        return {"num_clusters": number, "ari": None, "nmi": None, "purity": None}
    truth, labels = np.asarray(data.group)[who], cluster[who]
    return {
        "num_clusters": number,
        "ari": scores.adjusted_rand_index(truth, labels),
        "nmi": scores.normalized_mutual_information(truth, labels),
        "purity": scores.purity(truth, labels),
    }
