"""What stragglers and attackers do, and how long steps are, as functions that `client.training` and `sampling` call.

Who they are, and the papers, is in `data.conditions`; a federation without conditions costs nothing, nor does one
without the rate of a schedule.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxfl.data.clients import Attack, FederatedData
from jaxfl.random import Stream, key_for
from jaxfl.typing import Array, Key, Params


def is_late(key: Key, share: Array | float) -> Array:
    """Returns whether a client is among the `share` of stragglers `[]`, by its key of the round."""
    return jax.random.uniform(key_for(key, Stream.STRAGGLE), (), jnp.float32) < share


def epoch_count(key: Key, data: FederatedData, local_epochs: int) -> int | Array:
    """Returns how many of E = `local_epochs` a client trains for: E itself where nobody straggles, else `[]` int32."""
    if data.stragglers is None:
        return local_epochs
    fewer = jax.random.randint(key_for(key, Stream.STRAGGLE, 1), (), 1, max(local_epochs, 2), jnp.int32)
    return jnp.where(is_late(key, data.stragglers), fewer, jnp.int32(local_epochs))


def without_conditions(data: FederatedData) -> FederatedData:
    """Returns the federation in which nobody is late or attacks: for what is no part of a round."""
    own = dataclasses.replace(data.train, flipped=None)
    return dataclasses.replace(data, train=own, stragglers=None, attack=None)


def for_unsent_training(key: Key, data: FederatedData) -> FederatedData:
    """Returns the federation for a client's training of which nothing is sent, before that of which something is.

    Nobody sends anything else then, and who is late in the one is late in the other.

    Args:
        key: the client's of the round, of the training that is sent.
        data: the federation.
    """
    late = None if data.stragglers is None else is_late(key, data.stragglers).astype(jnp.float32)
    return dataclasses.replace(data, stragglers=late, attack=None)


def scale_updates(updates: Params, rate: Array | None) -> Params:
    """Returns an optimiser's updates times the round's rate `[]`; as they are where there is none.

    The last thing that is done to them: a factor that stays the same from the first step on is one of the learning
    rate.

    >>> scale_updates({"w": jnp.array([2.0])}, jnp.float32(0.5))["w"].tolist()
    [1.0]
    """
    if rate is None:
        return updates
    return jax.tree.map(lambda leaf: leaf * rate.astype(leaf.dtype), updates)


def perturb_model(key: Key, start: Params, trained: Params, data: FederatedData, client: Array) -> Params:
    """Returns what a client sends after training: `trained`, or what an attacker makes of it."""
    attack = data.attack
    if attack is None or attack.kind == "label-flip":
        return trained

    def sign_flip() -> Params:
        return jax.tree.map(lambda a, b: a - attack.scale.astype(a.dtype) * (b - a), start, trained)

    def gaussian() -> Params:
        return jax.tree.map(lambda a, z: a + z, start, _attack_noise(key, start, attack))

    change = {"sign-flip": sign_flip, "gaussian": gaussian}[attack.kind]
    # a client without rows has made no step, and sends none
    attacks = attack.attacker[client] & (data.train.size[client] > 0)
    return jax.lax.cond(attacks, change, lambda: trained)


def perturb_gradient(key: Key, gradient: Params, data: FederatedData, client: Array) -> Params:
    """Returns what a client sends of its gradient: the gradient, or what an attacker makes of it."""
    attack = data.attack
    if attack is None or attack.kind == "label-flip":
        return gradient

    def sign_flip() -> Params:
        return jax.tree.map(lambda leaf: -attack.scale.astype(leaf.dtype) * leaf, gradient)

    def gaussian() -> Params:
        return _attack_noise(key, gradient, attack)

    change = {"sign-flip": sign_flip, "gaussian": gaussian}[attack.kind]
    attacks = attack.attacker[client] & (data.train.size[client] > 0)
    return jax.lax.cond(attacks, change, lambda: gradient)


def _attack_noise(key: Key, like: Params, attack: Attack) -> Params:
    """Returns `scale * z` in the shapes of a model, every leaf at an address of its own."""
    leaves, structure = jax.tree.flatten(like)
    noise = [
        attack.scale.astype(leaf.dtype) * jax.random.normal(key_for(key, Stream.ATTACK, index), leaf.shape, leaf.dtype)
        for index, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, noise)
