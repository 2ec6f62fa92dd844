"""Data that drift: clients whose distribution changes in the middle of a run, clients that arrive and that leave.

A drift is what the clients' fields become from one round on (`FederatedData.drift`): their rotation, their label
shift, which rows are theirs, their true group. There is one pool of examples before and after it. Rounds, evaluations
and true groups (ARI) are of the federation as it is in the round (`FederatedData.at`); methods are not told of it.

    swap         a share of the clients has what clients of another group had: rows, rotation, label shift and group.
                 Who has what is dealt out anew; taken together, the data stay the same.
    rotate       the images of a share of the clients are turned by one further quarter turn.
    new-group    a share of the clients has rows of one group (where groups are known) whose labels are shifted by a
                 number that no client had: p(y|x) changes, and no model that there is suits them.

In IFCA and StoCFL the clients' distributions stay as they are. That they change, at some clients and not at others, is
the matter of Jothimurugesan et al., "Federated Learning under Distributed Concept Drift" (FedDrift), AISTATS 2023.

Clients that arrive are absent before: never sampled, never tested. Then they are let in by `Method.join`, where a
method has it, or else by the rule by which it assigns unseen clients (`Method.assign`), and are clients like any other.
Those that leave are absent from then on; what they have sent stays in the models.
"""

import dataclasses
from typing import Any, Literal, get_args

import numpy as np

from jaxfl.data import conditions
from jaxfl.data.building import check_no_drift, check_square
from jaxfl.data.clients import Drift, FederatedData, Ranges
from jaxfl.data.labels import check_classes
from jaxfl.random import host_rng
from jaxfl.schema import checked

DriftKind = Literal["swap", "rotate", "new-group"]
DRIFT_KINDS: tuple[str, ...] = get_args(DriftKind)
DRIFT_SHARES = {"swap": 0.5, "rotate": 1.0, "new-group": 0.25}


@checked
def drift(
    data: FederatedData,
    round: int,
    *,
    kind: DriftKind | None = None,
    share: float | None = None,
    arrive: float = 0.0,
    leave: float = 0.0,
    seed: int = 0,
) -> FederatedData:
    """Returns the federation that changes before a round.

    Args:
        data: the federation.
        round: rounds that are made before it; what is evaluated after them is the federation as it has become.
        kind: `"swap"`, `"rotate"` or `"new-group"`, see above; None is for clients that arrive or leave alone.
        share: share of the clients that train all the time; None is 0.5 of them for `"swap"`, all clients for
            `"rotate"` (those that are held out too) and 0.25 for `"new-group"`.
        arrive: share of the clients with training rows that are absent until then; at least one of them.
        leave: share of the clients with training rows that are absent from then on; at least one of them.
        seed: seed of who it is, and what they get.

    Raises:
        ValueError: a number is out of range, the data have nothing that can change so, or they drift already.

    >>> from jaxfl.data.sources import digits
    >>> from jaxfl.data import shift
    >>> still = shift.rotated(digits.load(), num_clients=8, rows_per_client=20)
    >>> data = drift(still, 5, kind="swap", share=0.5)
    >>> int((data.at(5).group != still.group).sum()), sorted(data.at(5).rotation.tolist())
    (4, [0, 0, 1, 1, 2, 2, 3, 3])
    """
    check_no_drift("drift", data)
    if kind is None and not arrive and not leave:
        raise ValueError(
            f"drift must be one of {', '.join(DRIFT_KINDS)}, or arrive or leave a share of the clients, got none."
        )
    if not 1 <= round < 2**31:
        raise ValueError(f"drift_round must be at least 1, the rounds before the drift, got {round}; 50 is usual.")
    able = np.asarray(data.train.size) > 0
    held_out = np.zeros(data.num_clients, bool) if data.held_out is None else np.asarray(data.held_out)
    absent = _absent_clients(able & ~held_out, arrive, leave, seed)
    later: dict[str, Any] = {}
    if kind is not None:
        staying = np.flatnonzero(able & ~held_out & ~absent.any(0))
        share = DRIFT_SHARES[kind] if share is None else share
        if not 0 < share <= 1:
            raise ValueError(f"drift_share must be a share of the clients, above 0 and at most 1, got {share}.")
        who = host_rng(seed, "drift").permutation(staying)[: max(1, int(np.rint(share * len(staying))))]
        if kind == "rotate" and share == 1:
            who = np.arange(data.num_clients)
        data, later = CHANGES[kind](data, who, seed)
    elif share is not None:
        raise ValueError(f"drift must be given with drift_share={share}: one of {', '.join(DRIFT_KINDS)}.")
    if absent.any():
        data = dataclasses.replace(data, held_out=held_out | absent[0], absent=absent[0])
        later |= {"held_out": held_out | absent[1], "absent": absent[1]}
    return dataclasses.replace(data, drift=Drift(np.asarray(round, np.int32), **later))


def _absent_clients(able: np.ndarray, arrive: float, leave: float, seed: int) -> np.ndarray:
    """Returns who is absent before and after `[2, N]`; somebody is always there."""
    for name, share in {"arrive": arrive, "leave": leave}.items():
        if not 0 <= share < 1:
            raise ValueError(f"{name} must be a share of the clients, 0 or more and below 1, got {share}.")
    absent, order = np.zeros((2, len(able)), bool), host_rng(seed, "arrive").permutation(np.flatnonzero(able))
    late, gone = (max(1, int(np.rint(share * len(order)))) if share else 0 for share in (arrive, leave))
    if late + gone >= len(order):
        raise ValueError(
            f"arrive and leave must let some clients be there all the time, got {arrive} and {leave} of {len(order)} "
            "clients with training rows; lower them, or use more clients."
        )
    absent[0, order[:late]] = absent[1, order[late : late + gone]] = True
    return absent


def _swap_groups(data: FederatedData, who: np.ndarray, seed: int) -> tuple[FederatedData, dict[str, Any]]:
    """Deals what the clients `who` have out among them, so that everybody gets another group's."""
    if data.group is None:
        raise ValueError(
            f"drift=swap needs data whose true groups are known, got {data.name!r}; take drift=new-group (of "
            "classes), a rotated, shifted or pathological data set, or give federate a group."
        )
    group = np.asarray(data.group)
    members = np.bincount(group[who])
    most, rest = int(members.max()), int(members.sum() - members.max())
    largest = who[group[who] == members.argmax()]
    who = np.setdiff1d(who, largest[: max(0, most - rest)])  # for whom there is nobody to swap with
    if not len(who):
        raise ValueError(
            "drift_share must take clients of two groups at least, but those that are drawn are all of one; raise it, "
            "or use more clients."
        )
    who = who[np.argsort(group[who], kind="stable")]
    source = np.arange(data.num_clients)
    source[who] = np.roll(who, min(most, rest))  # no group has more, so that nobody gets what its own had
    return data, _fields_from(data, source)


def _rotate_further(data: FederatedData, who: np.ndarray, seed: int) -> tuple[FederatedData, dict[str, Any]]:
    """Turns the images of the clients `who`."""
    try:
        check_square(data.inputs)
    except ValueError as error:
        raise ValueError(f"drift=rotate: {error} Or take another drift.") from error
    rotation = np.zeros(data.num_clients, np.int32) if data.rotation is None else np.asarray(data.rotation)
    turned = rotation.copy()
    turned[who] = (turned[who] + 1) % 4
    data = dataclasses.replace(data, rotation=rotation)
    if data.group is None:
        return data, {"rotation": turned}
    data, group = _groups_after_rotation(data, turned)
    return data, {"rotation": turned, "group": group}


def _groups_after_rotation(data: FederatedData, turned: np.ndarray) -> tuple[FederatedData, np.ndarray]:
    """Returns the true groups `[N]` of clients that have been turned, and the federation with names for the new ones.

    Where groups are what clients see (rotated, shifted: each group sees one thing, no two see the same), or that and
    what the rows are of (`rotated+pathological`), so they are afterwards. Otherwise the turned clients of a group are a
    group of their own.
    """
    group, rotation = np.asarray(data.group), np.asarray(data.rotation)
    rest = [np.zeros(len(group)) if one is None else np.asarray(one) for one in (data.tilt, data.label_shift)]
    sights = list(zip(rotation.tolist(), *(one.tolist() for one in rest), strict=True))
    after = list(zip(turned.tolist(), *(one.tolist() for one in rest), strict=True))
    names, found = list(data.group_names), group.copy()
    names += [f"group {one}" for one in range(len(names), int(group.max()) + 1)]
    # of "labels 0, 1; 90°" and of "90°; shift 3", groups of products, what stands beside the angle stays
    beside = ["; ".join(part for part in name.split("; ") if not part.endswith("°")) for name in names]
    stays = [beside[one] for one in group.tolist()]
    pairs = set(zip(zip(stays, sights, strict=True), group.tolist(), strict=True))
    known: dict[Any, int] = dict(pairs)
    is_sight = len(known) == len(pairs) == len(set(group.tolist()))
    for client in np.flatnonzero(turned != rotation).tolist():
        key = (stays[client], after[client]) if is_sight else (int(group[client]), "turned")
        if key not in known:
            known[key] = len(names)
            names.append(f"{names[group[client]]}, turned")
        found[client] = known[key]
    return dataclasses.replace(data, group_names=tuple(names)), found.astype(np.int32)


def _new_group(data: FederatedData, who: np.ndarray, seed: int) -> tuple[FederatedData, dict[str, Any]]:
    """Gives the clients `who` rows of one group with labels that nobody had."""
    check_classes("drift=new-group", data.labels, "take drift=swap of data with true groups, arrive or leave")
    shifts = np.zeros(data.num_clients, np.int32) if data.label_shift is None else np.asarray(data.label_shift)
    free = np.setdiff1d(np.arange(data.num_classes), shifts)
    if not len(free):
        raise ValueError(
            f"drift=new-group needs a label shift that no client has, but all {data.num_classes} are taken; take "
            "drift=swap, or fewer shifts."
        )
    data, source = dataclasses.replace(data, label_shift=shifts), np.arange(data.num_clients)
    later: dict[str, Any] = {}
    if data.group is not None:
        group = np.asarray(data.group)
        trains = np.asarray(data.train.size) > 0
        trains &= True if data.held_out is None else ~np.asarray(data.held_out)
        chosen = host_rng(seed, "new-group").choice(np.unique(group[trains]))
        source[who] = np.resize(np.flatnonzero(trains & (group == chosen)), len(who))
        names = [*data.group_names, *(f"group {one}" for one in range(len(data.group_names), int(group.max()) + 1))]
        data, later = dataclasses.replace(data, group_names=(*names, "new")), _fields_from(data, source)
        later["group"][who] = len(names)
    shifted = shifts.copy()
    shifted[who] = free[0]
    return data, later | {"label_shift": shifted}


def _fields_from(data: FederatedData, source: np.ndarray) -> dict[str, Any]:
    """Returns the fields of clients that each have what client `source [N]` of the federation had."""
    later: dict[str, Any] = {
        name: Ranges(np.asarray(split.start)[source], np.asarray(split.size)[source])
        for name, split in data.splits.items()
    }
    fields = {name: getattr(data, name) for name in ("rotation", "tilt", "label_shift", "group")}
    return later | {name: np.asarray(one)[source] for name, one in fields.items() if one is not None}


CHANGES = {"swap": _swap_groups, "rotate": _rotate_further, "new-group": _new_group}

_drift = drift  # `apply_conditions` has an argument of that name


@checked
def apply_conditions(
    data: FederatedData,
    *,
    stragglers: float = 0.0,
    attack: conditions.AttackKind | None = None,
    attackers: float | None = None,
    attack_scale: float = 1.0,
    drift: DriftKind | None = None,
    drift_round: int | None = None,
    drift_share: float | None = None,
    arrive: float | None = None,
    leave: float | None = None,
    seed: int = 0,
) -> FederatedData:
    """Puts the federation under conditions.

    Args:
        data: the federation.
        stragglers: share of a round's clients that are late, and train for fewer epochs.
        attack: what attackers do: flip the labels of their rows, or send their update reversed or noise for it.
        attackers: share of the clients that attack.
        attack_scale: of what they send.
        drift: how the clients' data change after drift_round rounds, see `jaxfl.data.drift`.
        drift_round: rounds before the data change, or clients arrive or leave.
        drift_share: share of the clients whose data change; none is 0.5 for swap, 1 for rotate, 0.25 for new-group.
        arrive: share of the clients that are not there before; none or 0 is nobody.
        leave: share of the clients that are not there afterwards; none or 0 is nobody.
        seed: seed of who attacks, and whose data change.
    """
    data = conditions.straggle(data, stragglers) if stragglers else data  # a stored one may have its own
    if attack is None:
        unused = {"attackers": attackers or None, "attack_scale": None if attack_scale == 1.0 else attack_scale}
        for name, value in unused.items():
            if value is not None:
                raise ValueError(
                    f"attack must be given with {name}={value}: one of {', '.join(conditions.ATTACK_KINDS)}."
                )
    else:
        if attackers is None:
            raise ValueError(f"attackers must be given with attack={attack}: the share of the clients, such as 0.2.")
        data = conditions.attack(data, attack, attackers, seed=seed, scale=attack_scale)
    asked = {"drift": drift, "arrive": arrive, "leave": leave, "drift_share": drift_share}
    if drift_round is None:
        for name, value in asked.items():
            if value:
                raise ValueError(f"drift_round must be given with {name}={value}: rounds before it, such as 50.")
        return data
    return _drift(data, drift_round, kind=drift, share=drift_share, arrive=arrive or 0.0, leave=leave or 0.0, seed=seed)
