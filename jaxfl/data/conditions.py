"""What goes wrong at the clients: stragglers and attackers, as properties of a federation.

A condition takes a federation and returns one that a method trains on as on any other: methods know nothing of it. What
the clients do is written once, in `jaxfl.client.conduct`, which their training calls; a federation without conditions
costs nothing. (Clients that fail or are not there are a matter of the cohort, see `jaxfl.sampling`.)

Stragglers: Li et al., "Federated Optimization in Heterogeneous Networks" (FedProx), MLSys 2020, section 5.2. In every
round each sampled client is late with a probability s, and then trains for a number of epochs drawn uniformly from
[1, E), that is 1, ..., E - 1, in place of E; with E = 1 for one all the same. (The paper draws exactly a share s of the
cohort.) Their FedAvg, which drops the late ones, is `jaxfl.sampling.dropouts(s)` instead of `straggle`: it drops
exactly the clients that are late here, as in the paper, where stragglers are the same in all runs of a comparison.

Attackers, by what they make of theta_i, which they have trained from theta like everybody:

    label-flip   the labels y of their training rows are L - 1 - y (Fang et al., USENIX Security 2020)
    sign-flip    they send theta - scale * (theta_i - theta) (Li et al., "RSA", AAAI 2019)
    gaussian     they send theta + scale * z, z standard normal in every number (Ditto's A2, Li et al., ICML 2021)

and where a gradient over all rows is sent (FedSGD, StoCFL's Psi), -scale * gradient or scale * z in its place. All that
`local_train` and `full_gradient` return to a method is taken as sent, a personal model too: the evaluation leaves
attackers out. The losses that they report are honest, so that they join the cluster that suits them (under label-flip:
that suits the flipped labels). Test rows are never touched.
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
    """Holds a share of the clients out; of few clients at least one, and at least one is left to train.

    Who is held out already is one of them.

    Raises:
        ValueError: the data drift; who has not arrived yet is held out there, too.
    """
    check_no_drift("held-out clients", data)
    count = int(np.clip(round(share * data.num_clients), 1, data.num_clients - 1))
    held_out = np.zeros(data.num_clients, bool) if data.held_out is None else np.array(data.held_out)
    order = host_rng(seed, "held_out").permutation(data.num_clients)
    held_out[order[~held_out[order]][: max(count - held_out.sum(), 0)]] = True
    return dataclasses.replace(data, held_out=held_out)


def straggle(data: FederatedData, share: float) -> FederatedData:
    """Returns the federation in which a share of each round's clients trains for fewer epochs.

    Methods without local epochs (FedSGD) do not notice.

    Args:
        data: the federation.
        share: s, the probability that a sampled client is late, 0 to 1 (FedProx: 0.5 and 0.9); 0 is nobody, ever.

    Raises:
        ValueError: the share is out of range.

    >>> from jaxfl.data import synthetic
    >>> float(straggle(synthetic.clustered_linear(4), 0.5).stragglers)
    0.5
    """
    if not 0 <= share <= 1:
        raise ValueError(
            f"stragglers must be a share of the cohort, from 0 to 1, got {share}; FedProx has 0.5 and 0.9."
        )
    return dataclasses.replace(data, stragglers=np.asarray(share, np.float32) if share else None)


@checked
def attack(data: FederatedData, kind: AttackKind, share: float, *, seed: int = 0, scale: float = 1.0) -> FederatedData:
    """Returns the federation in which a share of the clients attacks.

    Args:
        data: the federation.
        kind: `"label-flip"`, `"sign-flip"` or `"gaussian"`.
        share: share of the clients that can attack: those not held out and with training rows. At least one of them,
            and at least one of them stays honest; 0 is nobody.
        seed: seed of who attacks: the same clients for every kind, method and cohort.
        scale: of what they send; label-flip does not use it.

    Raises:
        ValueError: an unknown kind, a share or scale out of range, too few clients, or others who attack.

    >>> from jaxfl.data import synthetic
    >>> data = attack(synthetic.clustered_linear(10), "sign-flip", 0.2)
    >>> int(data.attack.attacker.sum()), data.attack.kind
    (2, 'sign-flip')
    """
    if not 0 <= share < 1:
        raise ValueError(f"attackers must be a share of the clients, 0 or more and below 1, got {share}; 0.2 is usual.")
    if not 0 < scale < np.inf:
        raise ValueError(f"attack_scale must be above 0 and finite, got {scale}; 1 sends what is learned, reversed.")
    if data.attack is not None:
        raise ValueError(f"attack must be on a federation without attackers, got one with {data.attack.kind}.")
    if not share:
        return data
    able = np.asarray(data.train.size) > 0
    if data.held_out is not None:
        able &= ~np.asarray(data.held_out)
    if kind == "label-flip":
        check_classes(f"attack={kind}", data.labels, "take attack=sign-flip or gaussian")
    candidates = np.flatnonzero(able)
    if len(candidates) < 2:
        raise ValueError(
            f"attackers must leave somebody honest, but {len(candidates)} of {data.num_clients} clients take part and "
            "have training rows; use more clients."
        )
    count = int(np.clip(round(share * len(candidates)), 1, len(candidates) - 1))
    attacker = np.zeros(data.num_clients, bool)
    attacker[host_rng(seed, "attack").permutation(candidates)[:count]] = True
    train = dataclasses.replace(data.train, flipped=attacker) if kind == "label-flip" else data.train
    planned = Attack(attacker, np.asarray(scale, np.float32), kind)
    return dataclasses.replace(data, train=train, attack=planned)
