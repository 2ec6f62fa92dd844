"""Stragglers, attackers and held-out clients as properties of a federation.

A condition is a function from a federation to a federation on which a method trains as on any other; methods do not
depend on it. The behaviour of the clients is implemented once, in `jaxfl.client.conduct`, which their training calls;
without conditions it has no cost. (Clients that fail or are absent are a property of the cohort, see `jaxfl.sampling`.)

Stragglers: Li et al., "Federated Optimization in Heterogeneous Networks" (FedProx), MLSys 2020, section 5.2. In every
round each sampled client is late with a probability s, and then trains for a number of epochs drawn uniformly from
[1, E), that is 1, ..., E - 1, in place of E; if E = 1, for one epoch. (The paper draws exactly a share s of the
cohort.) Their FedAvg, which drops the late clients, is `jaxfl.sampling.dropouts(s)` instead of `straggle`: it drops
exactly the clients that are late here, as in the paper, where stragglers are the same in all runs of a comparison.

Attackers train theta_i from theta like all clients. Kinds of attacks:

    label-flip   labels y of their training rows are L - 1 - y (Fang et al., USENIX Security 2020)
    sign-flip    they send theta - scale * (theta_i - theta) (Li et al., "RSA", AAAI 2019)
    gaussian     they send theta + scale * z, z standard normal in every number (Ditto's A2, Li et al., ICML 2021)

Where a gradient over all rows is sent (FedSGD, StoCFL's Psi), attackers send -scale * gradient or scale * z. All
results of `local_train` and `full_gradient` count as sent, also a personal model; the evaluation therefore excludes
attackers. Their losses are honest, so that they join the cluster with the best model for their data (under label-flip,
for the flipped labels). Test rows never change.
"""

import dataclasses
from typing import Literal, get_args

import numpy as np

from jaxfl.data.building import check_no_drift
from jaxfl.data.clients import Attack, FederatedData
from jaxfl.data.labels import check_classes
from jaxfl.random import host_rng
from jaxfl.schema import checked

AttackKind = Literal["label-flip", "sign-flip", "gaussian"]
ATTACK_KINDS: tuple[str, ...] = get_args(AttackKind)


def hold_out(data: FederatedData, share: float, seed: int) -> FederatedData:
    """Returns the federation with a share of the clients held out: at least one, and at least one is left to train.

    Clients that are held out already count.

    Raises:
        ValueError: the data drift; clients that have not arrived yet are held out, too.
    """
    check_no_drift("held-out clients", data)
    count = int(np.clip(round(share * data.num_clients), 1, data.num_clients - 1))
    held_out = np.zeros(data.num_clients, bool) if data.held_out is None else np.array(data.held_out)
    order = host_rng(seed, "held_out").permutation(data.num_clients)
    held_out[order[~held_out[order]][: max(count - held_out.sum(), 0)]] = True
    return dataclasses.replace(data, held_out=held_out)


def straggle(data: FederatedData, share: float) -> FederatedData:
    """Returns the federation in which a share of each round's clients trains for fewer epochs.

    It has no effect on methods without local epochs (FedSGD).

    Args:
        data: the federation.
        share: s, the probability that a sampled client is late, 0 to 1 (FedProx: 0.5 and 0.9); 0 is no client.

    Raises:
        ValueError: the share is out of range.

    >>> from jaxfl.data import synthetic
    >>> float(straggle(synthetic.clustered_linear(4), 0.5).stragglers)
    0.5
    """
    if not 0 <= share <= 1:
        raise ValueError(
            f"stragglers must be a share of the cohort, from 0 to 1, got {share}; FedProx uses 0.5 and 0.9."
        )
    return dataclasses.replace(data, stragglers=np.asarray(share, np.float32) if share else None)


@checked
def attack(data: FederatedData, kind: AttackKind, share: float, *, seed: int = 0, scale: float = 1.0) -> FederatedData:
    """Returns the federation in which a share of the clients attacks.

    Args:
        data: the federation.
        kind: `"label-flip"`, `"sign-flip"` or `"gaussian"`.
        share: share of the clients that can attack: those not held out and with training rows. At least one of them
            attacks, and at least one stays honest; 0 is no client.
        seed: seed of the choice of attackers, the same clients for every kind, method and cohort.
        scale: factor of their contributions; label-flip does not use it.

    Raises:
        ValueError: an unknown kind, a share or scale out of range, too few clients, or a federation with attackers.

    >>> from jaxfl.data import synthetic
    >>> data = attack(synthetic.clustered_linear(10), "sign-flip", 0.2)
    >>> int(data.attack.attacker.sum()), data.attack.kind
    (2, 'sign-flip')
    """
    if not 0 <= share < 1:
        raise ValueError(f"attackers must be a share of the clients, 0 or more and below 1, got {share}; 0.2 is usual.")
    with np.errstate(over="ignore"):
        usable = 0 < np.float32(scale) < np.inf
    if not usable:
        raise ValueError(f"attack_scale must be above 0 and finite, got {scale}; 1 sends the reversed update.")
    if data.attack is not None:
        raise ValueError(f"attack must be applied to a federation without attackers, got one with {data.attack.kind}.")
    if not share:
        return data
    able = np.asarray(data.train.size) > 0
    if data.held_out is not None:
        able &= ~np.asarray(data.held_out)
    if kind == "label-flip":
        check_classes(f"attack={kind}", data.labels, "use attack=sign-flip or gaussian")
    candidates = np.flatnonzero(able)
    if len(candidates) < 2:
        raise ValueError(
            f"attackers must leave an honest client, but only {len(candidates)} of {data.num_clients} clients train "
            "and have rows; use more clients."
        )
    count = int(np.clip(round(share * len(candidates)), 1, len(candidates) - 1))
    attacker = np.zeros(data.num_clients, bool)
    attacker[host_rng(seed, "attack").permutation(candidates)[:count]] = True
    train = dataclasses.replace(data.train, flipped=attacker) if kind == "label-flip" else data.train
    planned = Attack(attacker, np.asarray(scale, np.float32), kind)
    return dataclasses.replace(data, train=train, attack=planned)
