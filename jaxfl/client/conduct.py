"""The behaviour of stragglers and attackers, and the learning-rate factor of a round.

`data.conditions` chooses these clients and names the papers. A federation without conditions costs nothing, nor does a
round without a learning-rate factor.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxfl.data.clients import Attack, FederatedData
from jaxfl.random import Stream, key_for
from jaxfl.typing import Array, Key, Params

PERTURBING = ("sign-flip", "gaussian")  # the attacks by a client alone, on what it sends


def is_late(key: Key, share: Array | float) -> Array:
    """Returns whether a client is a straggler `[]` bool, with probability `share`, by its key of the round."""
    return jax.random.uniform(key_for(key, Stream.STRAGGLE), (), jnp.float32) < share


def training_length(key: Key, data: FederatedData, full: int | Array) -> int | Array:
    """Returns a client's number of local epochs or steps: `full` without stragglers, else an array `[]` int32.

    A straggler makes from 1 to `full` - 1 of them, each number with equal probability, and at least one.

    Args:
        key: the client's of this round.
        data: the federation.
        full: the number without stragglers.
    """
    if data.stragglers is None:
        return full
    most = max(full, 2) if isinstance(full, int) else jnp.maximum(full, 2)
    fewer = jax.random.randint(key_for(key, Stream.STRAGGLE, 1), (), 1, most, jnp.int32)
    return jnp.where(is_late(key, data.stragglers), fewer, jnp.int32(full))


def without_conditions(data: FederatedData) -> FederatedData:
    """Returns the federation without stragglers and attackers, for training that is no part of a round."""
    own = dataclasses.replace(data.train, flipped=None, triggered=None)
    return dataclasses.replace(data, train=own, stragglers=None, attack=None)


def for_unsent_training(key: Key, data: FederatedData) -> FederatedData:
    """Returns the federation for a training whose result is not sent, before the one whose result is.

    Attackers train as others do, and a straggler is one in both trainings.

    Args:
        key: the client's key of the round, of the training whose result is sent.
        data: the federation.
    """
    late = None if data.stragglers is None else is_late(key, data.stragglers).astype(jnp.float32)
    return dataclasses.replace(data, stragglers=late, attack=None)


def scale_updates(updates: Params, rate: Array | None) -> Params:
    """Returns an optimiser's updates times the learning-rate factor `rate []`; unchanged for None.

    It is applied after the optimiser: a factor that is the same in all steps is a factor of the learning rate.

    >>> scale_updates({"w": jnp.array([2.0])}, jnp.float32(0.5))["w"].tolist()
    [1.0]
    """
    if rate is None:
        return updates
    return jax.tree.map(lambda leaf: leaf * rate.astype(leaf.dtype), updates)


def perturb_model(key: Key, start: Params, trained: Params, data: FederatedData, client: Array) -> Params:
    """Returns the model that a client sends after training: `trained`, which an attacker perturbs."""
    attack = data.attack
    if attack is None or attack.kind not in PERTURBING:
        return trained

    def sign_flip() -> Params:
        return jax.tree.map(lambda a, b: a - attack.scale.astype(a.dtype) * (b - a), start, trained)

    def gaussian() -> Params:
        return jax.tree.map(lambda a, z: a + z, start, _attack_noise(key, start, attack))

    change = {"sign-flip": sign_flip, "gaussian": gaussian}[attack.kind]
    # a client without rows makes no step, and its model is not perturbed
    attacks = attack.attacker[client] & (data.train.size[client] > 0)
    return jax.lax.cond(attacks, change, lambda: trained)


def perturb_gradient(key: Key, gradient: Params, data: FederatedData, client: Array) -> Params:
    """Returns the gradient that a client sends, which an attacker perturbs."""
    attack = data.attack
    if attack is None or attack.kind not in PERTURBING:
        return gradient

    def sign_flip() -> Params:
        return jax.tree.map(lambda leaf: -attack.scale.astype(leaf.dtype) * leaf, gradient)

    def gaussian() -> Params:
        return _attack_noise(key, gradient, attack)

    change = {"sign-flip": sign_flip, "gaussian": gaussian}[attack.kind]
    attacks = attack.attacker[client] & (data.train.size[client] > 0)
    return jax.lax.cond(attacks, change, lambda: gradient)


def _attack_noise(key: Key, like: Params, attack: Attack) -> Params:
    """Returns standard normal noise times `attack.scale` in the shapes of a model, with a key for each leaf."""
    leaves, structure = jax.tree.flatten(like)
    noise = [
        attack.scale.astype(leaf.dtype) * jax.random.normal(key_for(key, Stream.ATTACK, index), leaf.shape, leaf.dtype)
        for index, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, noise)
