"""The laws of what becomes of clients: the sick and the empty, what each is served, and what is found of them."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import tree
from jaxfl.methods.base import Row
from jaxfl.simulation.host.rows import RowsHere, places, with_field
from jaxfl.testing.compare import (
    assert_close,
    assert_equal,
    assert_finite,
    assert_same_partition,
    leaves_without_cluster,
)
from jaxfl.testing.small import (
    CLIENTS,
    COHORT,
    EMPTY,
    HELD_OUT,
    SICK,
    case,
    federation,
    full_cohort,
    small_cohort,
    windowed,
)


def check_sick_client(row: Row) -> None:
    """A client whose numbers are NaN, or 1e30, is counted, and the others are served as if it had no rows."""
    one, data, cohort = case(row), federation(), small_cohort()
    start, size = data.train.start[SICK], data.train.size.copy()
    rows = data.train.rows[start : start + size[SICK]]
    size[SICK] = 0
    absent, _ = one.run(replace(data, train=replace(data.train, size=size)), cohort)
    others = [i for i in range(data.num_clients) if i != SICK]
    for number in (np.nan, 1e30):
        inputs = np.array(data.inputs)
        inputs[rows] = number * np.where(np.arange(len(rows)) % 2, -1, 1)[:, None]  # of one sign, all may be one class
        sick, info = one.run(replace(data, inputs=inputs), cohort)
        assert int(info.diverged) == 1, f"one client's numbers are {number}: info.diverged is {info.diverged}, not 1"
        law = f"a client of {number} must leave the others as they are without it"
        assert_close(one.served(sick, others), one.served(absent, others), law)
        assert_same_partition(sick.cluster[np.array(others)], absent.cluster[np.array(others)], law)
        assert_finite(one.served(sick, [SICK]), f"the client of {number} itself must be served a finite model")


def check_empty_client(row: Row) -> None:
    """A client without training rows changes nothing for the others, and is served a finite model."""
    one, data = case(row), federation()
    state, info = one.run(data, small_cohort())
    everybody = small_cohort()
    without = replace(everybody, mask=everybody.mask & (everybody.ids != EMPTY))
    others = [i for i in range(data.num_clients) if i != EMPTY]
    law = "a client without rows must change nothing"
    other, _ = one.run(data, without)
    assert_close(one.served(state, others), one.served(other, others), law)
    assert_same_partition(state.cluster[np.array(others)], other.cluster[np.array(others)], law)
    loss = float(info.loss[COHORT.index(EMPTY)])
    assert loss == 0, f"the loss of a client without rows must be 0, is {loss}"
    assert int(info.diverged) == 0, "a client without rows must not be counted as diverged"
    assert_finite(one.served(state, [EMPTY]), "a client without rows must be served a finite model")


def check_served_models(row: Row) -> None:
    """Clients in one cluster are served one model, bit for bit, and a client never sampled a finite one."""
    one, data = case(row), federation()
    trained = one.run(data, small_cohort())[0]
    assigned = one.assign(jax.random.key(0), trained, data, full_cohort())
    for when, state in {"": trained, " after assign": assigned}.items():
        cluster = np.asarray(state.cluster)
        leader = jnp.array([np.argmax(cluster == k) for k in cluster])  # the first client of each one's cluster
        models = one.served(state, np.arange(data.num_clients))
        assert_finite(models, f"everybody must be served a finite model{when}")
        assert_equal(tree.take(models, leader), models, f"clients of equal cluster must be served equal models{when}")


def check_assign(row: Row) -> None:
    """`assign` gives everyone with rows a cluster, those never sampled too, and touches nothing but `cluster`."""
    one, data = case(row), federation()
    state, info = one.run(data, small_cohort())
    new = one.assign(jax.random.key(0), state, data, full_cohort())
    lost = [i for i in np.flatnonzero(data.train.size > 0) if new.cluster[i] < 0]
    assert not lost, f"assign must give every client with rows a cluster, gave none to {lost}"
    assert_equal(
        leaves_without_cluster(new), leaves_without_cluster(state), "assign must change nothing but state.cluster"
    )
    for i in (COHORT[0], HELD_OUT[0]):
        alone = one.assign(jax.random.key(0), state, data, small_cohort([i])).cluster[i]
        law = f"assign must give a client the same cluster whoever else is assigned: client {i} alone is given {alone}"
        assert alone == new.cluster[i], f"{law}, with all others {new.cluster[i]}"
    found, said = len(np.unique(new.cluster)), int(info.num_clusters)
    assert found > 1 or said < 2, (
        f"the round says num_clusters={said}, but state.cluster has all clients in one; write it"
    )


def check_rows_of_others(row: Row) -> str | None:
    """Rounds read the rows of their cohort alone, and so does `assign`; the start reads none."""
    one, data = case(row), federation()
    if one.method.reads == "everybody":
        return "not run: the method reads everybody's rows"
    window = windowed(data, COHORT)
    (state, _), (same, _) = (one.run(rows, small_cohort()) for rows in (data, window))
    assert_equal(same, state, "rows of clients outside the cohort must change nothing; or say reads='everybody'")
    found, again = (one.assign(jax.random.key(0), state, rows, small_cohort()).cluster for rows in (data, window))
    law = "assign must read the rows of the cohort alone; or say reads='everybody'"
    assert_equal(again[np.array(COHORT)], found[np.array(COHORT)], law)
    return None


def check_rows_per_client(row: Row) -> str | None:
    """What the state keeps for each client starts alike, and a round takes and puts the rows of its cohort alone."""
    one, data, ids = case(row), federation(), np.array(COHORT)
    field = one.method.per_client
    if field is None:
        return "not run: the method says of no field that it has a row for each client"
    start = getattr(one.init(jax.random.key(0), data), field)
    assert_equal(tree.take(start, np.zeros(CLIENTS, int)), start, f"init must give everybody the same row of {field}")
    state, _ = one.run(data, small_cohort(), rounds=1)
    here = with_field(state, field, RowsHere(tree.take(getattr(state, field), ids), places(ids, CLIENTS)))
    law = f"round and client_params must reach {field} by tree.take and tree.put alone, its cohort's rows"
    try:
        found, wanted = (one.run(data, small_cohort(), rounds=1, start=begun)[0] for begun in (here, state))
        served = [one.client_params(after, jnp.asarray(ids)) for after in (found, wanted)]
    except (TypeError, AttributeError) as error:  # no array is there
        raise AssertionError(law) from error
    own = [tree.take(getattr(after, field), ids) for after in (found, wanted)]
    assert_equal((served[0], own[0]), (served[1], own[1]), law)
    return None


def check_loss_falls(row: Row) -> None:
    """Where one model suits everybody, the training loss falls by a fifth in eight rounds."""
    one, data = case(row), federation(num_groups=1, ragged=False)
    first, last = (float(one.run(data, full_cohort(), rounds=rounds)[1].loss.mean()) for rounds in (1, 8))
    assert last < 0.8 * first, f"the training loss must fall on a problem that one model solves, went {first} -> {last}"


def check_planted_clusters(row: Row) -> str | None:
    """The two planted groups are found exactly, where the row says so."""
    if not row.finds_clusters:
        return "not run: the row does not say that the method finds clusters"
    one, data = case(row), federation(ragged=False, rows=40)
    state, info = one.run(data, full_cohort(), rounds=8)
    assert_same_partition(state.cluster, data.group, "the two planted groups must be found")
    assert int(info.num_clusters) == 2, f"two groups are planted: info.num_clusters must be 2, is {info.num_clusters}"
    return None


def check_held_out_clients(row: Row) -> str | None:
    """Clients kept out of training are served by the cluster of their group, where the row says that it is found."""
    if not row.finds_clusters:
        return "not run: the row does not say that the method finds clusters"
    one, data = case(row), federation(ragged=False, rows=40)
    data = replace(data, held_out=np.isin(np.arange(CLIENTS), HELD_OUT))
    state, _ = one.run(data, small_cohort([i for i in range(CLIENTS) if i not in HELD_OUT]), rounds=8)
    found = one.assign(jax.random.key(0), state, data, full_cohort())
    assert_same_partition(
        found.cluster, data.group, "clients that are held out must be served by their group's cluster"
    )
    return None
