"""How well the clients are served: every client's own test rows under the model it is served; or of many, some.

Many clients share a model and a test set (four rotations of MNIST under four models are at most sixteen pairs, whatever
the number of clients), so the pass runs over the distinct pairs and its sums are handed to all who share one. What is
added up is the task's, see `jaxfl.tasks.Metrics`; what is made of it for all clients is in `metrics.py`; who is tested
together, and where the rows come from, in `testers.py`; the compiled programs in `tested.py`.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import tree
from jaxfl.cohort import Plan
from jaxfl.data.clients import FederatedData
from jaxfl.data.divide import on_validation
from jaxfl.methods.base import Method, keep_clusters
from jaxfl.simulation import kept_rows
from jaxfl.simulation.finetune import FineTune
from jaxfl.simulation.metrics import Evaluation, Totals, finetuned, summarise, together
from jaxfl.simulation.program import program_bytes, shapes_of
from jaxfl.simulation.tested import BLOCK, assigner, tester, tuner
from jaxfl.simulation.testers import Block, in_windows, of_all, parted, resident
from jaxfl.typing import Key, Params

TOGETHER = 16_000  # test rows of all clients that are tested side by side: enough to keep an accelerator busy
NOT_VALIDATED = ("clusters", "num_clusters", "ari", "nmi", "purity", "eval_clients", "attackers")  # not of test rows


def evaluator(
    method: Method,
    data: FederatedData,
    plan: Plan = Plan(),
    finetune: FineTune | None = None,
    test_rows: int | None = None,
    *,
    clients: np.ndarray | None = None,
    stream: bool = False,
) -> Callable[[Key, Any], Evaluation]:
    """Returns `(key, state) -> Evaluation`; it compiles once for a method and may be called after any round.

    A federation that drifts is looked at as it is in the state's round, without those who are not there.

    Where the federation has validation rows, a second pass tests the models on them, without fine-tuning: the metrics
    whose names begin with `validation_`. The pass sees no test row, not even where a method assigns clients by them.

    Args:
        method: gives the models (`assign`, then `client_params`) and the task.
        data: the federation.
        plan: how the engine walks through the clients.
        finetune: what clients train before they are tested a second time; None tests them once.
        test_rows: the most rows of a client that are tested; None tests all.
        clients: who is tested `[M]`, in ascending order; None tests all.
        stream: whether the rows stay on the host, and are sent in windows.
    """
    if (drifts_at := data.drifts_at) is not None:
        options = {"clients": clients, "stream": stream}
        looks = [evaluator(method, now, plan, finetune, test_rows, **options) for now in data.phases]
        return lambda key, state: looks[int(state.round) >= drifts_at](key, state)
    look = _of_test_rows(method, data, plan, finetune, test_rows, clients, stream)
    if data.validation is None:
        return look
    look_apart = _of_test_rows(method, on_validation(data), plan, None, test_rows, clients, stream)

    def both(key: Key, state: Any) -> Evaluation:
        found, apart = look(key, state), look_apart(key, state).metrics
        apart = {f"validation_{name}": value for name, value in apart.items() if name not in NOT_VALIDATED}
        return found._replace(metrics=found.metrics | apart)

    return both


def _of_test_rows(
    method: Method,
    data: FederatedData,
    plan: Plan,
    finetune: FineTune | None,
    test_rows: int | None,
    clients: np.ndarray | None,
    stream: bool,
) -> Callable[[Key, Any], Evaluation]:
    """Returns the evaluation on the test rows alone; arguments as of `evaluator`."""
    ids = np.arange(data.num_clients) if clients is None else clients
    if data.absent is not None:
        there = np.flatnonzero(~np.asarray(data.absent))
        sampled = np.intersect1d(ids, there)
        ids = sampled if len(sampled) else there  # all who were drawn may have left
    if stream:
        assigns, trains = method.assign is not keep_clusters, finetune is not None
        blocks = in_windows(data, ids, plan, test_rows, assigns=assigns, trains=trains)
    else:
        blocks = resident(data, ids, plan, test_rows)
    tests = _for_tests(plan, data)
    few = data if len(ids) == data.num_clients else data.subset(ids)
    note = {} if clients is None else {"eval_clients": len(ids)}

    def summary(tested: list[Totals], cluster: np.ndarray) -> Evaluation:
        found = summarise(method.task.metrics, together(tested), cluster[ids], few)
        return of_all(found._replace(metrics=found.metrics | note), ids, cluster)

    def evaluate(key: Key, state: Any) -> Evaluation:
        cluster, plain, tuned = np.array(state.cluster), [], []
        split = parted if kept_rows.has_any(state) else lambda block: iter([block])
        for block in itertools.chain.from_iterable(map(split, blocks())):
            shapes = shapes_of(block.data, block.tested, block.ids)
            served = kept_rows.at_hand(state, block.ids, plan.place)
            if method.assign is not keep_clusters:  # else a copy of the state would be all that comes of it
                served = assigner(method, plan, shapes)(key, served, block.data, block.ids, block.real)
            own = block.ids[block.real]
            cluster[own] = np.asarray(served.cluster)[own]
            plain.append(_tested(tester(method, tests, shapes), served, block, cluster, tests))
            if finetune is not None:
                found = tuner(method, finetune, tests, shapes)(key, served, block.tested, block.ids, block.real)
                tuned.append(jax.tree.map(lambda leaf, real=block.real: np.asarray(leaf)[real], found))
        result = summary(plain, cluster)
        if finetune is None:
            return result
        second = summary([tested for tested, _ in tuned], cluster)
        metrics = {f"finetuned_{name}": second.metrics[name] for name in finetuned(second)}
        metrics["finetuned_diverged"] = int(sum(diverged.sum() for _, diverged in tuned))
        return result._replace(metrics=result.metrics | metrics, finetuned=second)

    return evaluate


def model_of(
    method: Method, state: Any, data: FederatedData, client: int, seed: int, *, stream: bool = False
) -> Params:
    """Returns the model that a client is served, in host memory: that which an evaluation tests.

    Args:
        method: the method.
        state: after any round.
        data: the federation.
        client: its id.
        seed: of the run.
        stream: whether the rows stay on the host.
    """
    data, ids, plan = data.at(int(state.round)).in_programs(), np.array([client]), Plan()
    state = jax.tree.map(np.asarray, kept_rows.at_hand(state, ids, plan.place))  # of one device or of several
    if method.assign is not keep_clusters:
        blocks = (
            in_windows(data, ids, plan, None, assigns=True, trains=False) if stream else resident(data, ids, plan, None)
        )
        (block,) = blocks()
        assign = assigner(method, plan, shapes_of(block.data, block.tested, block.ids))
        state = assign(jax.random.key(seed), state, block.data, block.ids, block.real)
    models = method.client_params(jax.tree.map(jnp.asarray, state), jnp.asarray(ids, jnp.int32))
    return jax.tree.map(np.asarray, tree.take(models, 0))


def evaluation_bytes(method: Method, key: Key, state: Any, data: FederatedData, plan: Plan, clients: int) -> int:
    """Returns the most bytes that an evaluation takes beside data and state.

    Args:
        method: the method.
        key: of a run.
        state: its shapes.
        data: its shapes.
        plan: how the engine walks through the clients.
        clients: that are tested in one go.
    """
    everywhere = None if plan.mesh is None else plan.place

    def there(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere)

    state, data, ids = jax.tree.map(there, (state, data, jax.ShapeDtypeStruct((clients,), jnp.int32)))
    real, shapes = there(jax.ShapeDtypeStruct(ids.shape, bool)), shapes_of(data, data, ids)
    tested = program_bytes(tester(method, _for_tests(plan, data), shapes).lower(state, data, ids, real).compile())
    if method.assign is keep_clusters:
        return tested
    assigned = program_bytes(assigner(method, plan, shapes).lower(key, state, data, ids, real).compile())
    return tree.num_bytes(state) + max(tested, assigned)  # its result is a state


def assigned(method: Method, plan: Plan, key: Key, state: Any, data: FederatedData, ids: np.ndarray) -> Any:
    """Returns the state with the clusters of some clients up to date.

    Args:
        method: the method.
        plan: how the engine walks through the clients.
        key: of the run.
        state: after any round.
        data: the federation, on the device.
        ids: of the clients `[M]` int32.
    """
    return assigner(method, plan, shapes_of(data, data, ids))(key, state, data, ids, np.ones(len(ids), bool))


def _tested(test: Callable[..., Totals], state: Any, block: Block, cluster: np.ndarray, plan: Plan) -> Totals:
    """Returns the sums `[M, ...]` of a block's real clients, with a pass over its distinct pairs."""
    own = block.ids[block.real]
    first, inverse = distinct(block.tested, cluster, own)
    # one program for every number of pairs: what is not needed is skipped, or with chunks kept below twice the need
    most = len(block.ids)
    width = most if plan.chunk == 1 else min(most, 1 << (len(first) - 1).bit_length())
    found = test(state, block.tested, np.resize(own[first], width), np.arange(width) < len(first))
    return jax.tree.map(lambda leaf: np.asarray(leaf)[inverse], found)


def _for_tests(plan: Plan, data: FederatedData) -> Plan:
    """Returns the plan with which clients are tested: as many side by side as have `TOGETHER` rows in a block.

    A client may train on 50 rows and be tested on 10,000: as many as train side by side would not fit into memory.
    """
    most = max(1, TOGETHER // max(1, min(data.test.max_size, BLOCK)))
    return plan._replace(chunk=most if plan.chunk is None else min(plan.chunk, most))


def distinct(
    data: FederatedData, cluster: np.ndarray, ids: np.ndarray | slice = slice(None)
) -> tuple[np.ndarray, np.ndarray]:
    """Returns one client of each distinct (model, test rows as they are seen), and for every client which it shares.

    Args:
        data: the federation.
        cluster: of all clients `[N]`.
        ids: the clients that are looked at, and whose places are returned; all by default.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)  # two clients a rotation
    >>> [len(part) for part in distinct(data, np.zeros(8, int))]
    [4, 8]
    """
    rows = np.stack([np.asarray(column)[ids] for column in (cluster, *data.per_client("test").values())], 1)
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)
