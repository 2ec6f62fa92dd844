"""SGD by name with PyTorch's options."""

import jax
import numpy as np
import optax
import pytest

from jaxfl.methods import METHODS
from jaxfl.settings import options
from jaxfl.settings.optimizers import client_optimizer
from tests.messages import mentions

RATE, MOMENTUM, DECAY = 0.1, 0.8, 0.05


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("decay", [0.0, DECAY])
@pytest.mark.parametrize("momentum", [0.0, MOMENTUM])
def test_steps_are_those_of_pytorch(momentum, decay, nesterov):
    """`torch.optim.SGD`: g += decay w; v = momentum v + g; w -= rate (g + momentum v if nesterov else v)."""
    if nesterov and not momentum:
        with pytest.raises(ValueError, match=mentions("nesterov", "momentum")):
            client_optimizer("sgd", {"nesterov": True})
        return
    given = {"learning_rate": RATE, "momentum": momentum, "weight_decay": decay, "nesterov": nesterov}
    optimizer = client_optimizer("sgd", given)
    ours = theirs = np.array([1.0, -2.0], np.float32)
    state, velocity = optimizer.init(ours), 0.0
    for step in range(3):
        gradient = np.array([0.5, step], np.float32)
        update, state = optimizer.update(gradient, state, ours)
        ours = np.asarray(optax.apply_updates(ours, update))
        gradient = gradient + decay * theirs
        velocity = momentum * velocity + gradient
        theirs = theirs - RATE * (gradient + momentum * velocity if nesterov else velocity)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_plain_sgd_keeps_no_state():
    """A momentum of 0 would be an array more for each client, and another checkpoint."""
    start = {"w": np.ones(3)}
    plain, state = optax.sgd(0.1).init(start), client_optimizer("sgd", {}).init(start)
    assert jax.tree.structure(state) == jax.tree.structure(plain)


def test_its_options_are_set_by_name():
    settings = options.route("fedavg", "rotated-digits", ["momentum=0.9", "nesterov=true", "weight_decay=1e-4"])
    assert settings.optimizer == {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}
    assert {"optimizer.momentum", "optimizer.weight_decay"} <= set(options.numbers(settings))
    assert not any("nesterov" in name for name in options.numbers(settings))
    with pytest.raises(ValueError, match=mentions("weight_decay", -1.0)):
        options.optimizer(options.route("fedavg", "rotated-digits", ["weight_decay=-1"]))


@pytest.mark.parametrize("method", METHODS)
def test_no_other_part_has_options_of_their_names(method):
    """Else `--set momentum=0.9` would be ambiguous."""
    found = options.applicable_options(method, "rotated-digits", "mlp", "sgd")
    owners = {one.owner for one in found if one.name in ("momentum", "nesterov", "weight_decay")}
    assert owners == {"optimizer"}
