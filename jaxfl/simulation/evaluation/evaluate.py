"""Evaluation of the served models: each client's test rows under its own served model, for all clients or a sample.

Many clients share a model and a test set (four rotations of MNIST under four models are at most sixteen pairs, whatever
the number of clients), so the pass runs over the distinct pairs, and clients that share a pair share its sums.

What is added up is the task's, see `jaxfl.tasks.Metrics`; the metrics of all clients are made of it in `metrics.py`.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import engine, tree
from jaxfl.client.passes import batch_shape, fold_rows, rows_at_once
from jaxfl.cohort import Cohort, Plan, default_mesh
from jaxfl.data.clients import Batch, FederatedData, Split
from jaxfl.data.divide import on_triggered, on_validation
from jaxfl.data.windows import Windows
from jaxfl.engine import by_size, over_clients
from jaxfl.methods.base import Method, keep_clusters
from jaxfl.methods.parts.adaptation import tuned_leaves
from jaxfl.random import host_rng
from jaxfl.simulation.evaluation.cohesion import CohesionScorer
from jaxfl.simulation.evaluation.finetune import FineTune, server, trainer
from jaxfl.simulation.evaluation.metrics import (
    CAUSE_PREFIX,
    SUCCESS,
    Evaluation,
    OtherMetrics,
    Totals,
    counted_clients,
    finetuned_names,
    join_totals,
    summarise,
)
from jaxfl.simulation.evaluation.test_sets import (
    NO_TEST_SETS,
    SHARED,
    TestSets,
    concept_metrics,
    shared_metrics,
    weighted_accuracy,
)
from jaxfl.simulation.host import rows as host_rows
from jaxfl.simulation.program import cached_program, program_bytes, shapes_of
from jaxfl.tasks.contract import outputs_and_loss
from jaxfl.typing import Array, Key, Params

BLOCK = 1000  # test rows of a client taken at once


@cached_program(engine.jit)
def assigner(method: Method, plan: Plan, shapes: Any) -> Any:
    """Returns `(key, state, data, ids [M], real [M]) -> state` with their clusters up to date."""

    def assign(key: Key, state: Any, data: FederatedData, ids: Array, real: Array) -> Any:
        return plan.readable(default_mesh(plan.mesh)(method.assign)(key, state, data, Cohort(ids, real, plan)))

    return assign


@cached_program(engine.jit)
def tester(method: Method, plan: Plan, shapes: Any) -> Any:
    """Returns `(state, data, ids [M], real [M]) -> sums [M, ...]`, zeros where not real."""

    def test(state: Any, data: FederatedData, ids: Array, real: Array) -> Totals:
        def client(shared: Any, client: Array, real: Array) -> tuple[tuple, Totals]:
            state, data = shared

            def run() -> Totals:
                return client_totals(method, tree.take(method.client_params(state, client[None]), 0), data, client)

            return (), tree.where_needed(real, run)

        return plan.readable(over_clients(client, (state, data), Cohort.of(ids, plan), real)[1])

    return test


@cached_program(engine.jit)
def tuner(method: Method, finetune: FineTune | None, plan: Plan, shapes: Any) -> Callable[..., tuple]:
    """Returns `(key, state, data, ids [M], real [M]) -> (sums [M, ...], diverged [M])`.

    A fine-tuned or adapted model lives as long as its client's test: there is a chunk of them, never a stack.

    Args:
        method: gives the models.
        finetune: how clients train before the test; None tests the served models of a method with `adapt`.
        plan: how the engine walks through the clients.
        shapes: of the arguments.
    """
    train = server(method) if finetune is None else trainer(method, finetune)

    def client(shared: Any, client: Array) -> tuple[tuple, Any]:
        key, state, data = shared

        def run() -> Any:
            model, finite = train(key, state, data, client)
            return client_totals(method, model, data, client), ~finite

        return (), tree.where_needed(data.test.size[client] > 0, run)

    def tune(key: Key, state: Any, data: FederatedData, ids: Array, real: Array) -> Any:
        cohort = by_size(data, Cohort(ids, real, plan))
        found = over_clients(client, (key, state, data), cohort)[1]
        num_clients, count = data.num_clients, ids.shape[0]
        place = jnp.zeros(num_clients, jnp.int32)  # of each client among the ids
        place = place.at[jnp.where(real, ids, num_clients)].set(jnp.arange(count, dtype=jnp.int32), mode="drop")
        in_order = jax.tree.map(
            lambda leaf: jnp.zeros((count, *leaf.shape[1:]), leaf.dtype).at[place[cohort.ids]].set(leaf), found
        )
        return plan.readable(in_order)

    return tune


@cached_program(engine.jit)
def model_server(method: Method, shapes: Any) -> Any:
    """Returns `(key, state, data, client) -> model`, the served model of a client."""
    serve = server(method)
    return lambda key, state, data, client: serve(key, state, data, client)[0]


def client_totals(method: Method, model: Any, data: FederatedData, client: Array) -> Totals:
    """Returns the totals of a client's test rows under a model."""
    task, both = method.task, outputs_and_loss(method.task)

    def sums_of(outputs: Array, batch: Batch) -> Any:
        def total(leaf: Array) -> Array:
            real = tree.along(batch.mask, leaf)
            if leaf.dtype == bool:
                return (leaf & real).sum(0, dtype=jnp.int32)
            whole = jnp.issubdtype(leaf.dtype, jnp.integer)
            wide = leaf.dtype if leaf.dtype.itemsize >= 4 else jnp.dtype("int32" if whole else "float32")
            return jnp.where(real, leaf, 0).sum(0, dtype=wide)  # a sum of uint8 would begin anew at 256

        return jax.tree.map(total, task.metrics.counts(outputs, batch))

    def step(carry: Totals, batch: Batch) -> Totals:
        rows, (outputs, loss) = batch.mask.sum(), both(model, batch)
        loss = loss.astype(carry.loss.dtype) * rows.astype(carry.loss.dtype)
        sums = jax.tree.map(jnp.add, carry.sums, sums_of(outputs, batch))
        return Totals(sums, carry.loss + loss, carry.rows + rows.astype(jnp.int32))

    shapes = jax.eval_shape(lambda batch: sums_of(task.outputs(model, batch), batch), batch_shape(data))
    zero = Totals(jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), shapes), jnp.float32(0), jnp.int32(0))
    at_once = rows_at_once(task, model, BLOCK)
    if task.metrics.ranked is None:
        return fold_rows(step, zero, data, data.test, client, at_once)

    def collecting(carry: tuple[Totals, Array, Array], batch: Batch) -> tuple[Totals, Array, Array]:
        totals, outputs, labels = carry
        found, place = task.outputs(model, batch), totals.rows  # blocks before the last one have no padding
        outputs = jax.lax.dynamic_update_slice_in_dim(outputs, found, place, 0)
        return step(totals, batch), outputs, jax.lax.dynamic_update_slice_in_dim(labels, batch.y, place, 0)

    most = max(1, data.test.max_size)
    blocks = -(-most // at_once)
    length = blocks * -(-most // blocks)
    row = jax.eval_shape(lambda batch: (task.outputs(model, batch), batch.y), batch_shape(data))
    outputs, labels = (jnp.zeros((length, *one.shape[1:]), one.dtype) for one in row)
    totals, outputs, labels = fold_rows(collecting, (zero, outputs, labels), data, data.test, client, at_once)
    real = jnp.arange(length, dtype=jnp.int32) < totals.rows
    return totals._replace(ranked=task.metrics.ranked(outputs, labels, real))


MAX_SAMPLE = 10_000  # clients that an evaluation tests by default; of more, a sample
WINDOW_CLIENTS = 250  # clients of a window


class Block(NamedTuple):
    """Clients that are tested in one pass."""

    ids: np.ndarray  # [M] int32; what is not real repeats the first
    real: np.ndarray  # [M] bool
    data: FederatedData  # has their rows, if the method's `assign` reads them
    tested: FederatedData  # has their test rows, if need be thinned, and if they train the training rows too


Blocks = Callable[[], Iterator[Block]]


def evaluation_sample(data: FederatedData, most: int | None, seed: int) -> np.ndarray | None:
    """Returns the evaluation sample `[M]`, ids in ascending order, the same in every evaluation; None for all clients.

    Args:
        data: the federation.
        most: how many clients; None is `MAX_SAMPLE`. Drawn are those with test rows, and where clients arrive or leave
            those that are present in all rounds, if there are such.
        seed: of the run.

    Raises:
        ValueError: less than one.

    >>> from jaxfl.data import synthetic
    >>> data = synthetic.clustered_linear(8)
    >>> evaluation_sample(data, None, 0) is None, len(evaluation_sample(data, 3, 0))
    (True, 3)
    """
    if most is not None and most < 1:
        raise ValueError(f"eval_clients must be at least 1, got {most}; none tests all of up to {MAX_SAMPLE} clients.")
    most = MAX_SAMPLE if most is None else most
    if data.num_clients <= most:
        return None
    there = [np.asarray(now.test.size) > 0 for now in data.phases]
    there += [~np.asarray(now.absent) for now in data.phases if now.absent is not None]
    able = np.flatnonzero(np.all(there, 0))
    able = able if len(able) else np.flatnonzero(np.asarray(data.test.size))
    drawn = host_rng(seed, "eval_clients").permutation(able) if len(able) else np.arange(data.num_clients)
    count = counted_clients(data)[drawn]
    if count.any() and not count[:most].any():  # else no client would count in the metrics
        drawn = np.concatenate([drawn[count][:1], drawn[~count]])
    return np.sort(drawn[:most])


def resident_blocks(
    data: FederatedData, ids: np.ndarray, plan: Plan, test_rows: int | None, other: FederatedData | None = None
) -> Blocks:
    """Returns a function that yields one block of all tested clients, with resident rows.

    Args:
        data: the federation.
        ids: of the tested clients `[M]`.
        plan: has the devices.
        test_rows: the most rows of a client that are tested, or None.
        other: the federation whose test rows are tested in place of those of `data`, or None.
    """
    tested = data if other is None else other
    if test_rows is not None or other is not None:
        tested = _limit_test_rows(tested, ids, test_rows).on_device(plan.mesh)
    whole = Block(ids.astype(np.int32), np.ones(len(ids), bool), data, tested)
    return lambda: iter([whole])


def window_blocks(
    data: FederatedData,
    ids: np.ndarray,
    plan: Plan,
    test_rows: int | None,
    other: FederatedData | None = None,
    *,
    assigns: bool,
    trains: bool,
) -> Blocks:
    """Returns a function that yields blocks of equal shapes with windows of host rows, which each call reads again.

    Args:
        data: the federation.
        ids: of the tested clients `[M]`.
        plan: has the devices.
        test_rows: the most rows of a client that are tested, or None.
        other: the federation whose test rows are tested in place of those of `data`, or None.
        assigns: whether the rows decide what clients are served.
        trains: whether clients train before a second test.
    """
    beside = min(WINDOW_CLIENTS, len(ids))
    changed = test_rows is not None or other is not None
    tested = _limit_test_rows(data if other is None else other, ids, test_rows) if changed else data
    both = Windows(data, beside, ("train", "test"), plan.mesh) if assigns else None
    if both is None or changed:
        own = Windows(tested, beside, ("train", "test") if trains else ("test",), plan.mesh)
    else:
        own = both

    def blocks() -> Iterator[Block]:
        for padded, real in _padded_parts(ids, beside):
            few = padded[real]
            window = own.of(few)
            yield Block(padded, real, window if both in (own, None) else both.of(few), window)

    return blocks


def split_block(block: Block) -> Iterator[Block]:
    """Yields blocks of at most `WINDOW_CLIENTS` clients, of equal shapes; a small block is yielded as it is."""
    own = block.ids[block.real]
    if len(block.ids) <= WINDOW_CLIENTS:
        yield block
        return
    for padded, real in _padded_parts(own, WINDOW_CLIENTS):
        yield block._replace(ids=padded, real=real)


def expand_to_all(found: Evaluation, ids: np.ndarray, cluster: np.ndarray) -> Evaluation:
    """Returns the evaluation of a sample as one of all clients `[N]`, with NaN for those that were not tested.

    Args:
        found: of the clients `ids`.
        ids: of the evaluation sample.
        cluster: of all clients.
    """

    def spread(values: np.ndarray) -> np.ndarray:
        full = np.full(len(cluster), np.nan)
        full[ids] = values
        return full

    rows = np.zeros(len(cluster), np.int64)
    rows[ids] = found.rows
    values = {name: spread(one) for name, one in found.values.items()}
    others = {name: spread(one) for name, one in found.others.items()}
    return found._replace(values=values, rows=rows, loss=spread(found.loss), cluster=cluster, others=others)


def _padded_parts(ids: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields ids in parts of `size` (int32), padded, and the masks of the ids that are real."""
    for begin in range(0, len(ids), size):
        few = ids[begin : begin + size].astype(np.int32)
        yield np.resize(few, size), np.arange(size) < len(few)


def _limit_test_rows(data: FederatedData, ids: np.ndarray, test_rows: int | None) -> FederatedData:
    """Returns the federation with at most `test_rows` test rows for each client of `ids`, and none for the others.

    With None these have all their rows.
    """
    mine = np.zeros(data.num_clients, bool)
    mine[ids] = True
    start, size = (np.where(mine, np.asarray(part), 0).astype(np.int32) for part in (data.test.start, data.test.size))
    few: Split = replace(data.test, start=start, size=size)
    return replace(data, test=few if test_rows is None else few.thinned(test_rows))


class Evaluator(NamedTuple):
    """The evaluation of a federation, called as `(key, state) -> Evaluation`.

    Attributes:
        evaluate: the function.
        lowered: `(key, state) -> programs` that an evaluation of resident rows calls first, traced and lowered: once
            they are compiled, it compiles nothing. The state may be shapes with their places.
    """

    evaluate: Callable[[Key, Any], Evaluation]
    lowered: Callable[[Key, Any], list[Any]]

    def __call__(self, key: Key, state: Any) -> Evaluation:
        """Returns the evaluation of a state."""
        return self.evaluate(key, state)


ROWS_SIDE_BY_SIDE = 16_000  # test rows of all clients that are tested side by side: enough to keep an accelerator busy
NOT_OF_TEST_ROWS = ("clusters", "num_clusters", "ari", "nmi", "purity", "eval_clients", "attackers")  # not of test rows


def evaluator(
    method: Method,
    data: FederatedData,
    plan: Plan = Plan(),
    finetune: FineTune | None = None,
    test_rows: int | None = None,
    *,
    clients: np.ndarray | None = None,
    stream: bool = False,
    test_sets: TestSets = NO_TEST_SETS,
) -> Evaluator:
    """Returns `(key, state) -> Evaluation`; it compiles once for a method and may be called after any round.

    A federation that drifts is evaluated as it is in the state's round, without absent clients.

    Where the federation has validation rows, a second pass tests the models on them, without fine-tuning: the metrics
    whose names begin with `validation_`. The pass sees no test row, not even where a method assigns clients by them.
    Where attackers have a backdoor, another pass tests the models on test rows with the trigger: the metric
    `attack_success_rate`. Data without true groups get the scores of `cohesion.py`, too.

    Args:
        method: gives the models (`assign`, then `client_params`) and the task.
        data: the federation.
        plan: how the engine walks through the clients.
        finetune: what clients train before they are tested a second time; None tests them once.
        test_rows: the most rows of a client that are tested; None tests all.
        clients: the evaluation sample `[M]`, ids in ascending order; None tests all clients.
        stream: whether the rows stay on the host, and are sent in windows.
        test_sets: on whose rows the served models are tested, too, see `test_sets.py`.
    """
    if data.drift is not None:
        options = {"clients": clients, "stream": stream}
        begins = (0, *data.drift_rounds)

        @functools.lru_cache(maxsize=2)  # of the stages before and after a change: each may hold rows of its own
        def stage_evaluator(stage: int) -> Evaluator:
            sets = {name: (stages[stage],) for name, stages in test_sets.items()}
            return evaluator(method, data.at(begins[stage]), plan, finetune, test_rows, test_sets=sets, **options)

        def evaluate(key: Key, state: Any) -> Evaluation:
            return stage_evaluator(int(np.searchsorted(begins, int(state.round), side="right")) - 1)(key, state)

        return Evaluator(evaluate, stage_evaluator(0).lowered)
    look = _test_rows_evaluator(method, data, plan, finetune, test_rows, clients, stream)
    others: list[tuple[Evaluator, Callable[[Evaluation], OtherMetrics]]] = []
    if data.validation is not None:
        apart = _test_rows_evaluator(method, on_validation(data), plan, None, test_rows, clients, stream)
        others.append((apart, _validation_metrics))
    if data.trigger is not None:
        hit = _test_rows_evaluator(method, on_triggered(data), plan, None, test_rows, clients, stream)
        others.append((hit, lambda found: ({SUCCESS: found.metrics[f"micro_{found.main}"]}, {})))
    for name, (other,) in test_sets.items():
        how = {"other": other, "weighted": name == SHARED}
        apart = _test_rows_evaluator(method, data, plan, None, test_rows, clients, stream, **how)
        others.append((apart, functools.partial(shared_metrics if name == SHARED else concept_metrics, data=data)))
    cohesion = CohesionScorer(method, data) if data.group is None else None
    if not others and cohesion is None:
        return look

    def all_tests(key: Key, state: Any) -> Evaluation:
        found = look(key, state)
        if cohesion is not None:
            found = found._replace(metrics=found.metrics | cohesion(key, found))
        for test, metrics_of in others:
            metrics, columns = metrics_of(test(key, state))
            found = found._replace(metrics=found.metrics | metrics, others={**found.others, **columns})
        return found

    return Evaluator(all_tests, look.lowered)


def _validation_metrics(found: Evaluation) -> OtherMetrics:
    """Returns the metrics of validation rows."""
    own = {name: value for name, value in found.metrics.items() if not name.startswith(CAUSE_PREFIX)}
    metrics = {f"validation_{name}": value for name, value in own.items() if name not in NOT_OF_TEST_ROWS}
    columns = {**found.values, "loss": found.loss}
    return metrics, {f"validation_{name}": values for name, values in columns.items()}


def _test_rows_evaluator(
    method: Method,
    data: FederatedData,
    plan: Plan,
    finetune: FineTune | None,
    test_rows: int | None,
    clients: np.ndarray | None,
    stream: bool,
    other: FederatedData | None = None,
    *,
    weighted: bool = False,
) -> Evaluator:
    """Returns `(key, state) -> Evaluation` of the test rows, without validation rows; arguments as in `evaluator`.

    With `other`, its test rows are tested in place of those of `data`; `weighted` adds `weighted_accuracy`.
    """
    if finetune is not None:
        tuned_leaves(method.task, finetune.part)  # refuses another network's layers before anything is trained
    ids = np.arange(data.num_clients) if clients is None else clients
    if data.absent is not None:
        there = np.flatnonzero(~np.asarray(data.absent))
        sampled = np.intersect1d(ids, there)
        ids = sampled if len(sampled) else there  # all sampled clients may have left
    if stream:
        assigns, trains = method.assign is not keep_clusters, finetune is not None or method.adapt is not None
        blocks = window_blocks(data, ids, plan, test_rows, other, assigns=assigns, trains=trains)
    else:
        blocks = resident_blocks(data, ids, plan, test_rows, other)
    tests = test_plan(plan, data if other is None else other)
    few = data if len(ids) == data.num_clients else data.subset(ids)
    note = {} if clients is None else {"eval_clients": len(ids)}

    def summary(tested: list[Totals], cluster: np.ndarray) -> Evaluation:
        task, totals = method.task.metrics, join_totals(tested)
        found = summarise(task, totals, cluster[ids], few)
        others = {**found.others, **(weighted_accuracy(task, few, totals) if weighted else {})}
        return expand_to_all(found._replace(metrics=found.metrics | note, others=others), ids, cluster)

    def evaluate(key: Key, state: Any) -> Evaluation:
        cluster, plain, lost, tuned = np.array(state.cluster), [], [], []

        def tune(how: FineTune | None, served: Any, block: Block, shapes: Any) -> tuple[Totals, np.ndarray]:
            found = tuner(method, how, tests, shapes)(key, served, block.tested, block.ids, block.real)
            return jax.tree.map(lambda leaf: np.asarray(leaf)[block.real], found)

        for block, served in served_blocks(method, plan, key, state, blocks):
            shapes, own = shapes_of(block.data, block.tested, block.ids), block.ids[block.real]
            cluster[own] = np.asarray(served.cluster)[own]
            if method.adapt is None:
                plain.append(_test_pairs(tester(method, tests, shapes), served, block, cluster, tests))
            else:  # clients of a cluster are served models of their own
                totals, diverged = tune(None, served, block, shapes)
                plain.append(totals)
                lost.append(diverged)
            if finetune is not None:
                tuned.append(tune(finetune, served, block, shapes))
        result = summary(plain, cluster)
        if method.adapt is not None:
            count = int(sum(diverged.sum() for diverged in lost))
            result = result._replace(metrics=result.metrics | {"adapted_diverged": count})
        if finetune is None:
            return result
        second = summary([tested for tested, _ in tuned], cluster)
        metrics = {f"finetuned_{name}": second.metrics[name] for name in finetuned_names(second)}
        metrics["finetuned_diverged"] = int(sum(diverged.sum() for _, diverged in tuned))
        return result._replace(metrics=result.metrics | metrics, finetuned=second)

    def lowered(key: Key, state: Any) -> list[Any]:
        (block,), cluster = blocks(), np.zeros(data.num_clients, np.int32)
        shapes, programs = shapes_of(block.data, block.tested, block.ids), []
        if method.assign is not keep_clusters:
            programs.append(assigner(method, plan, shapes).lower(key, state, block.data, block.ids, block.real))
        # as many pairs as there are if clients with equal rows are in one cluster
        width = _pairs_at_once(len(distinct_pairs(block.tested, cluster, ids)[0]), block, tests)
        pairs = np.resize(block.ids, width), np.resize(block.real, width)
        if method.adapt is None:
            programs.append(tester(method, tests, shapes).lower(state, block.tested, *pairs))
        for how in (None,) * (method.adapt is not None) + (finetune,) * (finetune is not None):
            tune = tuner(method, how, tests, shapes)
            programs.append(tune.lower(key, state, block.tested, block.ids, block.real))
        return programs

    return Evaluator(evaluate, lowered)


def served_blocks(
    method: Method, plan: Plan, key: Key, state: Any, blocks: Blocks, beside: Sequence[int] | np.ndarray = ()
) -> Iterator[tuple[Block, Any]]:
    """Yields blocks of clients, each with the state whose `client_params` are the models that they are served.

    Args:
        method: the method.
        plan: how the engine walks through the clients.
        key: of the run.
        state: after any round.
        blocks: of `resident_blocks` or `window_blocks`.
        beside: other clients whose models are wanted beside every block's.
    """
    split = split_block if host_rows.has_host_rows(state) else lambda block: iter([block])
    for block in itertools.chain.from_iterable(map(split, blocks())):
        wanted = np.concatenate([block.ids, np.asarray(beside, np.int32)])
        served = host_rows.with_resident_rows(state, wanted, plan.place)
        if method.assign is not keep_clusters:  # else a copy of the state would be all that comes of it
            assign = assigner(method, plan, shapes_of(block.data, block.tested, block.ids))
            served = assign(key, served, block.data, block.ids, block.real)
        yield block, served


def client_model(
    method: Method, state: Any, data: FederatedData, client: int, seed: int, *, stream: bool = False
) -> Params:
    """Returns the served model of a client in host memory, the one that an evaluation tests.

    Args:
        method: the method.
        state: after any round.
        data: the federation.
        client: its id.
        seed: of the run.
        stream: whether the rows stay on the host.
    """
    data, ids, plan = data.at(int(state.round)).in_programs(), np.array([client]), Plan()
    state = jax.tree.map(
        np.asarray, host_rows.with_resident_rows(state, ids, plan.place)
    )  # of one device or of several
    assigns, adapts, key = method.assign is not keep_clusters, method.adapt is not None, jax.random.key(seed)
    if not (assigns or adapts):
        models = method.client_params(jax.tree.map(jnp.asarray, state), jnp.asarray(ids, jnp.int32))
        return jax.tree.map(np.asarray, tree.take(models, 0))
    blocks = (
        window_blocks(data, ids, plan, None, assigns=assigns, trains=adapts)
        if stream
        else resident_blocks(data, ids, plan, None)
    )
    (block,) = blocks()
    shapes = shapes_of(block.data, block.tested, block.ids)
    if assigns:
        state = assigner(method, plan, shapes)(key, state, block.data, block.ids, block.real)
    served = model_server(method, shapes)(key, state, block.tested, jnp.int32(client))
    return jax.tree.map(np.asarray, served)


def evaluation_bytes(method: Method, key: Key, state: Any, data: FederatedData, plan: Plan, clients: int) -> int:
    """Returns the peak bytes of an evaluation, without data and state.

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
    tests = test_plan(plan, data)
    if method.adapt is None:
        lowered = tester(method, tests, shapes).lower(state, data, ids, real)
    else:
        lowered = tuner(method, None, tests, shapes).lower(key, state, data, ids, real)
    tested = program_bytes(lowered.compile())
    if method.assign is keep_clusters:
        return tested
    assigned = program_bytes(assigner(method, plan, shapes).lower(key, state, data, ids, real).compile())
    return tree.num_bytes(state) + max(tested, assigned)  # its result is a state


def assign_clusters(method: Method, plan: Plan, key: Key, state: Any, data: FederatedData, ids: np.ndarray) -> Any:
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


def _test_pairs(test: Callable[..., Totals], state: Any, block: Block, cluster: np.ndarray, plan: Plan) -> Totals:
    """Returns the totals `[M, ...]` of a block's real clients, computed once per distinct pair of model and rows."""
    own = block.ids[block.real]
    first, inverse = distinct_pairs(block.tested, cluster, own)
    width = _pairs_at_once(len(first), block, plan)
    found = test(state, block.tested, np.resize(own[first], width), np.arange(width) < len(first))
    return jax.tree.map(lambda leaf: np.asarray(leaf)[inverse], found)


def _pairs_at_once(count: int, block: Block, plan: Plan) -> int:
    """Returns the pairs that one program tests, of which `count` are needed.

    One program is for every number of pairs: what is not needed is skipped, or with chunks kept below twice the need.
    """
    return len(block.ids) if plan.chunk == 1 else min(len(block.ids), 1 << (count - 1).bit_length())


def test_plan(plan: Plan, data: FederatedData) -> Plan:
    """Returns the plan of a test: the clients side by side have at most `ROWS_SIDE_BY_SIDE` rows in a step.

    A client may train on 50 rows and be tested on 10,000: as many as train side by side would not fit into memory.
    """
    most = max(1, ROWS_SIDE_BY_SIDE // max(1, min(data.test.max_size, BLOCK)))
    return plan._replace(chunk=most if plan.chunk is None else min(plan.chunk, most))


def distinct_pairs(
    data: FederatedData, cluster: np.ndarray, ids: np.ndarray | slice = slice(None)
) -> tuple[np.ndarray, np.ndarray]:
    """Returns one client of each distinct pair (cluster, view of test rows), and for every client the place of its
    pair.

    Args:
        data: the federation.
        cluster: of all clients `[N]`.
        ids: the clients that are compared, and for which places are returned; all by default.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)  # two clients a rotation
    >>> [len(part) for part in distinct_pairs(data, np.zeros(8, int))]
    [4, 8]
    """
    columns = [np.asarray(column)[ids] for column in (cluster, *data.per_client("test").values())]
    rows = np.concatenate([column.reshape(len(column), -1) for column in columns], 1)
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)
