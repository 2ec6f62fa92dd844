"""What a method says of a round in lists of numbers, in the records."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import methods
from jaxfl.data.synthetic import clustered_linear
from jaxfl.simulation.records.history import History
from jaxfl.testing.small import linear_task
from tests.messages import mentions

DATA = clustered_linear(6, rows=20, features=4, num_classes=3)


def saying(**lists):
    """FedAvg that says more of a round: `lists` are functions of its number and cohort."""
    plain = methods.fedavg(linear_task(), optax.sgd(0.1))

    def round(key, state, data, cohort):
        new, info = plain.round(key, state, data, cohort)
        return new, info._replace(extra={name: say(state.round, cohort) for name, say in lists.items()})

    return plain._replace(round=round)


def run(method, **options):
    return jaxfl.run(method, DATA, rounds=4, cohort=3, eval_every=2, **options)


def test_lists_are_those_of_the_last_round_with_their_clients(tmp_path):
    method = saying(
        ids=lambda round, cohort: cohort.ids + 10 * round,
        shares=lambda round, cohort: jnp.array([0.25, jnp.nan]) * (round + 1).astype(jnp.float32),
        table=lambda round, cohort: jnp.zeros((2, 2)),
    )
    plain, result = run(method), run(method, record_vectors=True, checkpoint_dir=tmp_path / "whole")
    for round, record in zip((2, 4), result.history, strict=True):
        assert record["ids"] == [one + 10 * (round - 1) for one in record["cohort"]] and len(set(record["cohort"])) == 3
        assert record["shares"][0] == 0.25 * round and np.isnan(record["shares"][1])
        assert "table" not in record
    assert result.history.to_pandas()["ids"].map(len).tolist() == [3, 3]
    kept = History(tmp_path / "whole" / "history.jsonl")
    assert kept.column("shares") == [[0.5, None], [1.0, None]] and kept.column("ids") == result.history.column("ids")
    assert not {"ids", "shares", "cohort"} & plain.history[-1].keys()  # off by default
    jax.tree.map(np.testing.assert_array_equal, plain.state, result.state)
    jaxfl.run(method, DATA, rounds=2, cohort=3, eval_every=2, record_vectors=True, checkpoint_dir=tmp_path / "part")
    run(method, record_vectors=True, checkpoint_dir=tmp_path / "part", resume=True)
    assert History(tmp_path / "part" / "history.jsonl").column("ids") == kept.column("ids")


def test_a_list_that_is_too_long_is_told_and_left_out():
    method = saying(long=lambda round, cohort: jnp.zeros(1001), longest=lambda round, cohort: jnp.ones(1000))
    with pytest.warns(UserWarning, match=mentions("long", "1,001", "1,000")):
        result = run(method, record_vectors=True)
    assert "long" not in result.history[-1] and result.history[-1]["longest"] == [1.0] * 1000
