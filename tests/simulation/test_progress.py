"""What is added up over rounds does not depend on how many of them a call makes."""

import jax.numpy as jnp
import numpy as np

from jaxfl.cohort import Cohort
from jaxfl.data.synthetic import clustered_linear
from jaxfl.methods import base
from jaxfl.simulation.program import Log
from jaxfl.simulation.progress import Tally

DATA = clustered_linear(8, rows=8, features=4)


def rounds(losses):
    """The log of rounds in which three clients have these losses."""
    info = base.info(
        Cohort.of([1, 2, 3]), jnp.zeros(3), jnp.zeros(3, jnp.int32), num_clusters=2, diverged=jnp.int32(0),
        up={"w": jnp.zeros(5)}, down={"w": jnp.zeros(5)},
    )  # fmt: skip
    one = [info._replace(loss=np.float32(loss)) for loss in losses]
    stacked = type(info)(*(np.stack([np.asarray(getattr(row, name)) for row in one]) for name in info._fields[:-1]), {})
    return Log(np.tile(np.arange(1, 4), (len(losses), 1)), np.ones((len(losses), 3), bool), stacked)


def test_rounds_add_up_to_the_same_bits_however_they_are_called():
    losses = np.random.default_rng(0).uniform(1, 3, (40, 3))
    sums = []
    for width in (1, 3, 7, 40):
        tally = Tally()
        for start in range(0, 40, width):
            part = losses[start : start + width]
            tally.add(rounds(part), len(part), DATA, 0.5 * len(part))
        sums.append(vars(tally))
    assert all(one == sums[0] for one in sums[1:])
    np.testing.assert_allclose(sums[0]["loss_sum"] / sums[0]["loss_weight"], losses.mean(), rtol=1e-6)
