"""Laws about clients: diverged and empty clients, served models, found clusters, and what a server sees of a client."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import tree
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.data.synthetic import clustered_linear, planted_weights
from jaxfl.methods.base import Method, Row
from jaxfl.server import aggregate
from jaxfl.server.wire_context import activated
from jaxfl.simulation.host.rows import ResidentRows, row_places
from jaxfl.testing.compare import (
    assert_close,
    assert_equal,
    assert_finite,
    assert_same_partition,
    leaves,
    leaves_without_cluster,
)
from jaxfl.testing.small import (
    CLASSES,
    CLIENTS,
    COHORT,
    EMPTY,
    FEATURES,
    HELD_OUT,
    SICK,
    Case,
    case,
    federation,
    full_cohort,
    small_cohort,
    windowed,
)
from jaxfl.typing import Array, Key, Params

WRONG = (1, 3, 5, 7)  # one planted group, whose records are those of the other one, in a check


def check_sick_client(row: Row) -> None:
    """A client whose numbers are NaN, or 1e30, is counted, and the others are served as if it had no rows."""
    compiled, data, cohort = case(row), federation(), small_cohort()
    start, size = data.train.start[SICK], data.train.size.copy()
    rows = data.train.rows[start : start + size[SICK]]
    size[SICK] = 0
    absent, _ = compiled.run(replace(data, train=replace(data.train, size=size)), cohort)
    others = [i for i in range(data.num_clients) if i != SICK]
    for number in (np.nan, 1e30):
        inputs = np.array(data.inputs)
        inputs[rows] = (
            number * np.where(np.arange(len(rows)) % 2, -1, 1)[:, None]
        )  # with one sign, all might be one class
        sick, info = compiled.run(replace(data, inputs=inputs), cohort)
        assert int(info.diverged) == 1, f"one client's numbers are {number}: info.diverged is {info.diverged}, not 1"
        law = f"a client of {number} must leave the others as they are without it"
        assert_close(compiled.served(sick, others), compiled.served(absent, others), law)
        assert_same_partition(sick.cluster[np.array(others)], absent.cluster[np.array(others)], law)
        assert_finite(compiled.served(sick, [SICK]), f"the client of {number} itself must be served a finite model")


def check_empty_client(row: Row) -> None:
    """A client without training rows changes nothing for the others, and is served a finite model."""
    compiled, data = case(row), federation()
    state, info = compiled.run(data, small_cohort())
    cohort = small_cohort()
    without = replace(cohort, mask=cohort.mask & (cohort.ids != EMPTY))
    others = [i for i in range(data.num_clients) if i != EMPTY]
    law = "a client without rows must change nothing"
    other, _ = compiled.run(data, without)
    assert_close(compiled.served(state, others), compiled.served(other, others), law)
    assert_same_partition(state.cluster[np.array(others)], other.cluster[np.array(others)], law)
    loss = float(info.loss[COHORT.index(EMPTY)])
    assert loss == 0, f"the loss of a client without rows must be 0, is {loss}"
    assert int(info.diverged) == 0, "a client without rows must not be counted as diverged"
    assert_finite(compiled.served(state, [EMPTY]), "a client without rows must be served a finite model")


def check_served_models(row: Row) -> None:
    """Clients in one cluster are served one model, bit for bit, and a client never sampled a finite one."""
    compiled, data = case(row), federation()
    trained = compiled.run(data, small_cohort())[0]
    assigned = compiled.assign(jax.random.key(0), trained, data, full_cohort())
    for when, state in {"": trained, " after assign": assigned}.items():
        cluster = np.asarray(state.cluster)
        leader = jnp.array([np.argmax(cluster == k) for k in cluster])  # the first client in the cluster of each client
        models = compiled.served(state, np.arange(data.num_clients))
        assert_finite(models, f"every client must be served a finite model{when}")
        assert_equal(tree.take(models, leader), models, f"clients of equal cluster must be served equal models{when}")


def check_assign(row: Row) -> None:
    """`assign` gives every client with rows a cluster, also if it was never sampled, and changes only `cluster`."""
    compiled, data = case(row), federation()
    state, info = compiled.run(data, small_cohort())
    new = compiled.assign(jax.random.key(0), state, data, full_cohort())
    lost = [i for i in np.flatnonzero(data.train.size > 0) if new.cluster[i] < 0]
    assert not lost, f"assign must give every client with rows a cluster, gave none to {lost}"
    assert_equal(
        leaves_without_cluster(new), leaves_without_cluster(state), "assign must change nothing but state.cluster"
    )
    for i in (COHORT[0], HELD_OUT[0]):
        alone = compiled.assign(jax.random.key(0), state, data, small_cohort([i])).cluster[i]
        law = f"assign must give a client the same cluster regardless of the others: client {i} alone is given {alone}"
        assert alone == new.cluster[i], f"{law}, with all others {new.cluster[i]}"
    count, reported = len(np.unique(new.cluster)), int(info.num_clusters)
    assert count > 1 or reported < 2, (
        f"info reports num_clusters={reported}, but all clients are in one cluster of state.cluster; set it"
    )


def check_adapt(row: Row) -> str | None:
    """`adapt` keeps the shapes of a client's model, and reads the rows of this client alone."""
    compiled, data = case(row), federation()
    adapt = compiled.method.adapt
    if adapt is None:
        return "not run: the method serves the models of client_params as they are"
    key, client = jax.random.key(0), jnp.int32(COHORT[0])
    state, _ = compiled.run(data, small_cohort(), rounds=1)
    model = tree.take(compiled.client_params(state, client[None]), 0)
    apply = jax.jit(adapt)
    served = [apply(key, state, rows, client, model) for rows in (data, windowed(data, [COHORT[0]]))]
    assert tree.shapes(served[0]) == tree.shapes(model), "adapt must keep the shapes and dtypes of the model"
    assert_finite(served[0], "adapt must return a finite model on finite data")
    assert_equal(served[1], served[0], "adapt must read the rows of its client alone")
    return None


def check_rows_of_others(row: Row) -> str | None:
    """Rounds and `assign` read only the rows of their cohort, and the start reads no rows."""
    compiled, data = case(row), federation()
    if compiled.method.reads == "everybody":
        return "not run: the method reads the rows of all clients"
    window = windowed(data, COHORT)
    (state, _), (same, _) = (compiled.run(rows, small_cohort()) for rows in (data, window))
    assert_equal(same, state, "rows of clients outside the cohort must change nothing; or set reads='everybody'")
    assigned, again = (
        compiled.assign(jax.random.key(0), state, rows, small_cohort()).cluster for rows in (data, window)
    )
    law = "assign must read only the rows of the cohort; or set reads='everybody'"
    assert_equal(again[np.array(COHORT)], assigned[np.array(COHORT)], law)
    return None


def check_rows_per_client(row: Row) -> str | None:
    """The state's row of each client starts equal, and a round reads and writes only the rows of its cohort."""
    compiled, data, ids = case(row), federation(), np.array(COHORT)
    field = compiled.method.per_client
    if field is None:
        return "not run: the method declares no field with a row for each client"
    start = getattr(compiled.init(jax.random.key(0), data), field)
    assert_equal(
        tree.take(start, np.zeros(CLIENTS, int)), start, f"init must give every client the same row of {field}"
    )
    state, _ = compiled.run(data, small_cohort(), rounds=1)
    here = tree.with_field(state, field, ResidentRows(tree.take(getattr(state, field), ids), row_places(ids, CLIENTS)))
    law = f"round and client_params must access {field} only by tree.take and tree.put, at the rows of the cohort"
    try:
        outcome, wanted = (compiled.run(data, small_cohort(), rounds=1, start=begun)[0] for begun in (here, state))
        served = [compiled.client_params(after, jnp.asarray(ids)) for after in (outcome, wanted)]
    except (TypeError, AttributeError) as error:  # the field is not an array
        raise AssertionError(law) from error
    rows = [tree.take(getattr(after, field), ids) for after in (outcome, wanted)]
    assert_equal((served[0], rows[0]), (served[1], rows[1]), law)
    return None


def check_loss_falls(row: Row) -> None:
    """The training loss falls by a fifth in eight rounds if one model is right for all clients."""
    compiled, data = case(row), federation(num_groups=1, ragged=False)
    first, last = (float(compiled.run(data, full_cohort(), rounds=rounds)[1].loss.mean()) for rounds in (1, 8))
    assert last < 0.8 * first, f"the training loss must fall on a problem that one model solves, went {first} -> {last}"


def check_planted_clusters(row: Row) -> str | None:
    """The two planted groups are found exactly, if the registry row claims it."""
    if not row.finds_clusters:
        return "not run: the registry row does not claim that the method finds clusters"
    compiled, data = case(row), federation(ragged=False, rows=40)
    state, info = compiled.run(data, full_cohort(), rounds=8)
    assert_same_partition(state.cluster, data.group, "the two planted groups must be found")
    assert int(info.num_clusters) == 2, f"two groups are planted: info.num_clusters must be 2, is {info.num_clusters}"
    return None


def check_held_out_clients(row: Row) -> str | None:
    """Held-out clients are served the model of their group's cluster, if the registry row claims that it is found."""
    if not row.finds_clusters:
        return "not run: the registry row does not claim that the method finds clusters"
    compiled, data = case(row), federation(ragged=False, rows=40)
    data = replace(data, held_out=np.isin(np.arange(CLIENTS), HELD_OUT))
    state, _ = compiled.run(data, small_cohort([i for i in range(CLIENTS) if i not in HELD_OUT]), rounds=8)
    assigned = compiled.assign(jax.random.key(0), state, data, full_cohort())
    assert_same_partition(
        assigned.cluster, data.group, "held-out clients must be served the model of their group's cluster"
    )
    return None


def check_newcomers(row: Row) -> str | None:
    """Whatever of its rows a newcomer does not need changes nothing in its served model, and whatever it needs does.

    A newcomer is held out, or joins by `Method.join`. What it needs is declared in `Row.newcomers`.
    """
    compiled, data = case(row), federation(ragged=False, rows=40)
    data = replace(data, held_out=np.isin(np.arange(CLIENTS), HELD_OUT))
    served = [_served_newcomers(compiled, rows) for rows in (data, *_with_other_rows(data))]
    silent = []
    for joins, (right, relabelled, other) in zip((False, True), zip(*served, strict=True), strict=False):
        reads_labels, reads_inputs = (not _equal_bits(right, models) for models in (relabelled, other))
        needs = "labels" if reads_labels else "inputs" if reads_inputs else "nothing"
        how = "joins" if joins else "is held out"
        declared = row.newcomer(row.small, joins=joins)
        if declared is None:
            silent.append(f"a newcomer that {how} needs {needs}")
            continue
        assert declared.needs == needs, (
            f"a newcomer that {how} must need {declared.needs}, as Row.newcomers has it, but its served model depends "
            f"on {needs}"
        )
    if silent:
        return f"not run: Row.newcomers is empty; {', '.join(silent)}, on the battery's federation"
    return None


def _served_newcomers(compiled: Case, data: FederatedData) -> list[Params]:
    """Returns the served models of newcomers that are held out, and where the method has `join` of those that join."""
    method, key, ids = compiled.method, jax.random.key(0), np.array(HELD_OUT)
    state, _ = compiled.run(data, small_cohort([i for i in range(CLIENTS) if i not in HELD_OUT]), rounds=8)
    states = [compiled.assign(key, state, data, full_cohort())]
    if method.join is not None:
        states.append(method.join(key, state, data, HELD_OUT)[0])
    served = []
    for placed in states:
        models = compiled.served(placed, ids)
        if method.adapt is not None:
            adapt = jax.jit(method.adapt)
            each = [adapt(key, placed, data, jnp.int32(i), tree.take(models, at)) for at, i in enumerate(HELD_OUT)]
            models = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
        served.append(models)
    return served


def _with_other_rows(data: FederatedData) -> tuple[FederatedData, FederatedData]:
    """Returns the federation with the other group's labels on all rows of the newcomers, and with other inputs, too."""
    inputs, labels = np.array(data.inputs), np.array(data.labels)
    weights, group = planted_weights(2, FEATURES, CLASSES, seed=0), np.asarray(data.group)
    for client in HELD_OUT:
        for split in (data.train, data.test):
            rows = split.rows[split.start[client] : split.start[client] + split.size[client]]
            labels[rows] = (inputs[rows] @ weights[1 - group[client]]).argmax(1)
            inputs[rows] = inputs[rows][:, ::-1] * np.array([5.0, 1.0, 1.0, 1.0], inputs.dtype)
    relabelled = replace(data, labels=labels)
    return relabelled, replace(relabelled, inputs=inputs)


def _equal_bits(left: Params, right: Params) -> bool:
    """Returns whether all leaves of two trees are equal, bit for bit."""
    return all(
        np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for a, b in zip(*map(jax.tree.leaves, (left, right)), strict=True)
    )


def check_server_sees(row: Row) -> str | None:
    """With wrong records of some clients beside the sums the server does the same, exactly if it sees sums alone.

    A record may be for its client alone, such as its choice among K models: the clients with wrong records are not in
    the second of the two rounds, and their rows of the state are not compared.
    """
    method = case(row).method
    init, round = with_wrong_records(method)
    data, key, ids = federation(ragged=False, rows=40), jax.random.key(0), np.arange(CLIENTS)
    right = np.setdiff1d(ids, WRONG)

    def two_rounds(wrong: Array) -> Any:
        state = round(wrong, key, init(wrong, key, data), data, full_cohort())
        return round(wrong, key, state, data, small_cohort(right.tolist()))

    rows = rows_left(method, key, data, right)
    seen, other = (rows(two_rounds(jnp.asarray(wrong))) for wrong in (ids < 0, np.isin(ids, WRONG)))
    differ = [name for name in seen if seen[name].tobytes() != other[name].tobytes()]
    if method.server_sees in (None, "unknown"):
        found = f"{', '.join(differ)} depend on records of single clients" if differ else "the server sees sums alone"
        return f"not run: the method does not declare server_sees; {found}, on the battery's federation"
    law, sums_alone = f"a method whose server_sees is {method.server_sees}", method.server_sees in ("nothing", "sums")
    assert not (sums_alone and differ), f"{law} must not use records of single clients, as for {', '.join(differ)}"
    assert sums_alone or differ, f"{law} must use records of single clients, but only sums change its state"
    return None


class _WrongRecords:
    """A wire that changes no sum, and gives the server other clients' records, and old rows, in place of some."""

    changes_sums, given, is_noisy, name = False, True, False, "wrong records"

    def __init__(self, wrong: Array):
        self.wrong = wrong  # [N] bool

    def over(self, run: Callable, fn: Callable, shared: Any, cohort: Cohort, own: Any, rows: Sequence[Params]) -> tuple:
        """Returns a pass over the clients, with the record of the client before it in the place of each wrong one."""

        def client(*given: Any) -> tuple:
            sums, *rest = fn(*given)
            plain = jax.tree.map(lambda one: replace(one, start=None), sums, is_leaf=aggregate.is_contribution)
            return plain, *rest

        sums, kept, after = run(client, shared, cohort, own, rows)
        kept = tree.where(self.wrong[cohort.ids], jax.tree.map(lambda leaf: jnp.roll(leaf, 1, 0), kept), kept)
        return sums, kept, after if own is None else tree.where(self.wrong, own, after)

    def num_bytes(self, message: Params) -> float:
        """Returns the bytes of a message that is sent as it is."""
        return tree.num_bytes(message)


def with_wrong_records(method: Method) -> tuple[Callable, Callable]:
    """Returns `init(wrong, key, data) -> state` and `round(wrong, key, state, data, cohort) -> state`, compiled.

    Args:
        method: its server receives wrong records of the clients of `wrong [N]`.
    """

    def init(wrong: Array, key: Key, data: FederatedData) -> Any:
        with activated(_WrongRecords(wrong)):
            return method.init(key, data)

    def round(wrong: Array, key: Key, state: Any, data: FederatedData, cohort: Cohort) -> Any:
        with activated(_WrongRecords(wrong)):
            return method.round(key, state, data, cohort)[0]

    return jax.jit(init), jax.jit(round)


def rows_left(method: Method, key: Key, data: FederatedData, ids: np.ndarray) -> Callable[[Any], dict[str, np.ndarray]]:
    """Returns `state -> leaves by name`, with the rows of the clients `ids` alone where there is one for each client.

    Those leaves are the ones whose length depends on the number of clients.
    """
    fewer = clustered_linear(CLIENTS - 1, 2, 12, FEATURES, CLASSES)
    fewer = replace(fewer, held_out=np.zeros(CLIENTS - 1, bool))
    all_rows, less = (tree.shapes(jax.eval_shape(method.init, key, each)) for each in (data, fewer))
    shared = [one == other for one, other in zip(all_rows, less, strict=True)]
    return lambda state: {
        name: leaf if same else leaf[ids] for (name, leaf), same in zip(leaves(state).items(), shared, strict=True)
    }
