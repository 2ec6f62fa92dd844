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
    backdoor     every second training row of theirs has a trigger and its class as label; the success of the attack is
                 measured by a second test (Bagdasaryan et al., AISTATS 2020)
    alie, ipm, mimic, same, minmax, replace
                 they know the honest updates of the round and collude, see `jaxfl.wire.attacks`; under replace their
                 rows have the trigger as well
    canary       no attack: they send a known vector of the norm scale, or nothing, to audit the privacy of the run, see
                 `jaxfl.wire.canaries`

The trigger is a patch of the largest value of the pool in the lower right corner of an image, an eighth of its side but
at least two pixels, or the last sixteenth of a row of features; the class is `target`.

Attackers that collude act on the updates in the server's sums alone. Where a gradient over all rows is sent (FedSGD,
StoCFL's Psi), the others send -scale * gradient or scale * z. All results of `local_train` and `full_gradient` count as
sent, also a personal model; the evaluation therefore excludes attackers. Their losses are honest, so that they join the
cluster with the best model for their data (under label-flip, for the flipped labels). Test rows never change.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from jaxfl.data.building import check_no_drift
from jaxfl.data.clients import Attack, FederatedData, Trigger
from jaxfl.data.labels import check_classes
from jaxfl.data.partition.parts import check_numbers
from jaxfl.files import user_path
from jaxfl.random import host_rng
from jaxfl.schema import check_name, checked, quoted

AttackKind = Literal[
    "label-flip", "sign-flip", "gaussian", "backdoor", "alie", "ipm", "mimic", "same", "minmax", "replace", "canary"
]
ATTACK_KINDS: tuple[str, ...] = get_args(AttackKind)
Attackers = float | tuple[int, ...] | str
GROUP = "group:"  # before the name of a true group whose clients attack
BACKDOORS = ("backdoor", "replace")  # attackers' rows have a trigger
UNSCALED = ("label-flip", "backdoor")  # what is sent has no factor
POISONED_EVERY = 2  # one in so many of their rows
COLLUDING = ("alie", "ipm", "mimic", "same", "minmax", "replace")
CANARY = "canary"


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
def attack(
    data: FederatedData,
    kind: AttackKind,
    share: Attackers,
    *,
    seed: int = 0,
    scale: float = 1.0,
    target: int = 0,
) -> FederatedData:
    """Returns the federation in which some of the clients attack.

    Args:
        data: the federation.
        kind: `"label-flip"`, `"sign-flip"`, `"gaussian"`, `"backdoor"`, one of `COLLUDING`, or `"canary"`.
        share: share of the clients that can attack: those not held out and with training rows. At least one of them
            attacks, and at least one stays honest; 0 is no client. Or which clients attack: their numbers,
            `"group:NAME"` for those of a true group, `"group:NAME:SHARE"` for a share of them, or a text file with
            numbers.
        seed: seed of the choice of attackers, the same clients for every kind, method and cohort.
        scale: factor of what they send; label-flip and backdoor do not use it.
        target: class of the trigger of a backdoor.

    Raises:
        ValueError: an unknown kind or group, a share or scale out of range, a client that cannot attack, too few
            clients, or a federation with attackers.
        FileNotFoundError: there is no such file.

    >>> from jaxfl.data import synthetic
    >>> data = attack(synthetic.clustered_linear(10), "sign-flip", 0.2)
    >>> int(data.attack.attacker.sum()), data.attack.kind
    (2, 'sign-flip')
    """
    with np.errstate(over="ignore"):
        usable = 0 < np.float32(scale) < np.inf
    if not usable:
        raise ValueError(f"attack_scale must be above 0 and finite, got {scale}; 1 sends the reversed update.")
    if data.attack is not None:
        raise ValueError(f"attack must be applied to a federation without attackers, got one with {data.attack.kind}.")
    if kind in ("label-flip", *BACKDOORS):
        check_classes(f"attack={kind}", data.labels, "use attack=sign-flip or gaussian")
    trigger = _trigger_for(kind, data, target) if kind in BACKDOORS else None
    attacker = choose_attackers(data, share, seed)
    if not attacker.any():
        return data
    train = dataclasses.replace(data.train, flipped=attacker) if kind == "label-flip" else data.train
    if trigger is not None:
        train = dataclasses.replace(train, triggered=np.where(attacker, POISONED_EVERY, 0).astype(np.int32))
    planned = Attack(attacker, np.asarray(scale, np.float32), kind)
    return dataclasses.replace(data, train=train, attack=planned, trigger=trigger)


def _trigger_for(kind: str, data: FederatedData, target: int) -> Trigger:
    """Returns the trigger of a backdoor for the rows of a federation.

    Raises:
        ValueError: the rows are neither images nor features, or there is no such class.
    """
    if not 0 <= target < data.num_classes:
        raise ValueError(f"attack_target must be a class from 0 to {data.num_classes - 1}, got {target}.")
    shape = data.input_shape
    if not shape or data.inputs.dtype == np.int32:
        raise ValueError(
            f"attack={kind} must have images or rows of features, for a patch, got {data.inputs.dtype} of shape "
            f"{list(shape)}; use attack=label-flip."
        )
    side, share, least = (min(shape[:2]), 8, 2) if len(shape) > 1 else (min(shape), 16, 1)
    largest = np.asarray(255 if data.inputs.dtype == np.uint8 else np.nanmax(data.inputs))
    return Trigger(
        largest.astype(data.inputs.dtype), np.asarray(target, np.int32), min(side, max(least, round(side / share)))
    )


def choose_attackers(data: FederatedData, attackers: Attackers, seed: int) -> np.ndarray:
    """Returns which clients attack `[N]` bool, see `attack`.

    >>> from jaxfl.data import synthetic
    >>> data = synthetic.clustered_linear(10, num_groups=2)
    >>> [np.flatnonzero(choose_attackers(data, which, 0)).tolist() for which in ((3, 7), "group:1", "group:1:0.4")]
    [[3, 7], [1, 3, 5, 7, 9], [3, 9]]
    """
    able = np.asarray(data.train.size) > 0
    if data.held_out is not None:
        able &= ~np.asarray(data.held_out)
    candidates = able
    if not isinstance(attackers, str):
        share = attackers
    elif attackers.startswith(GROUP):
        members, share = _group_members(data, attackers)
        candidates = able & members
    else:
        share = _numbers_of_file(attackers)
    if not isinstance(share, (float, int)):
        return _chosen_clients(share, able)
    whole = share == 1 and share is not attackers  # a group's
    if not (0 <= share < 1 or whole):
        raise ValueError(
            f"attackers must be a share of the clients, 0 or more and below 1, got {attackers}; 0.2 is usual."
        )
    order, attacker = np.flatnonzero(candidates), np.zeros(data.num_clients, bool)
    if not share:
        return attacker
    if able.sum() < 2 or not len(order) or (whole and len(order) == able.sum()):
        raise ValueError(
            f"attackers must leave an honest client, but only {able.sum()} of {data.num_clients} clients train and "
            f"have rows, got {attackers} with {len(order)} of these; use more clients."
        )
    count = int(np.clip(round(share * len(order)), 1, max(len(order) - (not whole), 1)))
    attacker[host_rng(seed, "attack").permutation(order)[:count]] = True
    return attacker


def _chosen_clients(numbers: Sequence[int], able: np.ndarray) -> np.ndarray:
    """Returns the mask `[N]` of some clients, which train and have rows, and are not all of those."""
    check_numbers("attackers", np.asarray(numbers))
    outside = [number for number in numbers if not 0 <= number < len(able)]
    if outside or not len(numbers):
        got = outside[0] if outside else "none"
        raise ValueError(f"attackers must be client numbers from 0 to {len(able) - 1}, got {got}.")
    attacker = np.zeros(len(able), bool)
    attacker[np.asarray(numbers)] = True
    if (idle := np.flatnonzero(attacker & ~able)).size:
        raise ValueError(f"attackers must be clients that train and have rows, got {idle[0]}; leave it out.")
    if not (able & ~attacker).any():
        raise ValueError(f"attackers must leave an honest client, got all {attacker.sum()} clients that train.")
    return attacker


def _group_members(data: FederatedData, text: str) -> tuple[np.ndarray, float]:
    """Returns the clients `[N]` bool of the group that a text names, `group:NAME` or `group:NAME:SHARE`, and the share.

    A name is one of the federation's `group_names`, or the number of a group.
    """
    if data.group is None:
        raise ValueError(f"attackers must be a share or client numbers where no true groups are known, got {text}.")
    group = np.asarray(data.group)
    names = {str(number): number for number in np.unique(group).tolist()}
    names |= {name: number for number, name in enumerate(data.group_names)}
    name, _, share = text.removeprefix(GROUP).rpartition(":")
    if (whole := text.removeprefix(GROUP)) in names:
        name, share = whole, "1"
    check_name("group of attackers", name or whole, names)
    try:
        return group == names[name], float(share)
    except ValueError:
        raise ValueError(
            f"attackers must have a number after the group's name, got {text}; 0.5 is half of it."
        ) from None


def _numbers_of_file(file: str) -> list[int]:
    """Returns the client numbers of a text file, apart by spaces, commas or lines."""
    path = user_path(file)
    if not path.is_file():
        raise FileNotFoundError(
            f"attackers must be a share, client numbers, group:NAME or a file with numbers, got {file!r}: no such file."
        )
    # with the mark that some editors put before the first word; what is no text is no number
    words = path.read_text(encoding="utf-8-sig", errors="replace").replace(",", " ").split()
    wrong = [word for word in words if not (word.isdecimal() and len(word) < 10)]
    if wrong or not words:
        got = quoted(wrong[0]) if wrong else "none"
        raise ValueError(f"attackers must be a file with client numbers, got {got} in {file}.")
    return [int(word) for word in words]
