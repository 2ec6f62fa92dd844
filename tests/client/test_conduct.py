"""Who is late is late as often as asked for, in every round anew, and trains for fewer epochs."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl.client import conduct
from jaxfl.data import conditions
from jaxfl.data.synthetic import clustered_linear
from jaxfl.random import Stream, key_for

DATA = clustered_linear(20, rows=4)


def test_late_clients_are_as_many_as_asked_for_and_train_for_any_smaller_number_of_epochs(key):
    data, share, epochs, draws = conditions.straggle(DATA, 0.3), 0.3, 5, 4000
    keys = jax.vmap(lambda i: key_for(key, Stream.BATCHES, 0, i))(jnp.arange(draws))
    found = np.asarray(jax.vmap(lambda one: conduct.training_length(one, data, epochs))(keys))
    late = np.asarray(jax.vmap(lambda one: conduct.is_late(one, 0.3))(keys))
    np.testing.assert_array_equal(found < epochs, late)
    assert set(found[late].tolist()) == {1, 2, 3, 4}
    # five standard deviations
    assert abs(late.mean() - share) < 5 * np.sqrt(share * (1 - share) / draws)
    often = np.bincount(found[late])[1:] / late.sum()
    assert abs(often - 1 / 4).max() < 5 * np.sqrt(3 / 16 / late.sum())


def test_epochs_belong_to_the_client_and_the_round(key):
    data = conditions.straggle(DATA, 0.9)

    def epochs(round, clients):
        return [int(conduct.training_length(key_for(key, Stream.BATCHES, round, i), data, 9)) for i in clients]

    assert epochs(2, [3, 5, 8]) == epochs(2, range(10))[3::2][:2] + epochs(2, [8])
    assert len({tuple(epochs(round, range(6))) for round in range(4)}) == 4
    late = [bool(conduct.is_late(key_for(key, Stream.BATCHES, 0, i), 0.4)) for i in range(20)]
    more = [bool(conduct.is_late(key_for(key, Stream.BATCHES, 0, i), 0.7)) for i in range(20)]
    assert all(b for a, b in zip(late, more, strict=True) if a), "whoever is late at 0.4 is late at 0.7"


def test_one_epoch_cannot_be_less_and_nobody_late_is_a_plain_number(key):
    assert int(conduct.training_length(key, conditions.straggle(DATA, 1.0), 1)) == 1
    assert conduct.training_length(key, DATA, 7) == 7 and isinstance(conduct.training_length(key, DATA, 7), int)
