"""Drift: changes of the clients' data in the middle of a run, and clients that arrive or leave.

A drift gives the clients' fields new values from one round on (`FederatedData.drift`): rotation, labels, rows, and
true group. The pool of examples is the same before and after it. Rounds, evaluations and true groups (ARI) use the
federation of their round (`FederatedData.at`); methods get no information about the drift.

    swap         a share of the clients exchanges rows, rotation, labels and group with clients of other groups.
                 All data together stay the same.
    rotate       the images of a share of the clients are rotated by one further quarter turn.
    new-group    a share of the clients gets rows of one group (if groups are known) with labels shifted by a number
                 that no client had: p(y|x) changes, and no existing model is right for them.

In IFCA and StoCFL the clients' distributions do not change. Changes at some of the clients are studied by
Jothimurugesan et al., "Federated Learning under Distributed Concept Drift" (FedDrift), AISTATS 2023.

Clients that arrive are absent before: never sampled and never tested. A method's `Method.join` then adds them, or, if
it has none, its rule for newcomers (`Method.assign`); afterwards they are ordinary clients. Clients that leave are
absent from then on; their earlier contributions stay in the models.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from jaxfl.data import conditions
from jaxfl.data.building import check_no_drift, check_square
from jaxfl.data.clients import Drift, FederatedData, Ranges, view_fields
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
    """Returns the federation with a drift before a round.

    Args:
        data: the federation.
        round: number of rounds before the drift; the evaluation after them uses the changed federation.
        kind: `"swap"`, `"rotate"` or `"new-group"`, see above; None if clients only arrive or leave.
        share: share of the clients that train all the time; None is 0.5 of them for `"swap"`, all clients for
            `"rotate"` (those that are held out too) and 0.25 for `"new-group"`.
        arrive: share of the clients with training rows that are absent before; at least one client.
        leave: share of the clients with training rows that are absent afterwards; at least one client.
        seed: seed of the choice of clients and of their new data.

    Raises:
        ValueError: a number is out of range, the data cannot drift in this way, or they drift already.

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
        raise ValueError(
            f"drift_round must be at least 1, the number of rounds before the drift, got {round}; 50 is usual."
        )
    able = np.asarray(data.train.size) > 0
    held_out = np.zeros(data.num_clients, bool) if data.held_out is None else np.asarray(data.held_out)
    absent = _absent_clients(able & ~held_out, arrive, leave, seed)
    later: dict[str, Any] = {}
    if kind is not None:
        staying = np.flatnonzero(able & ~held_out & ~absent.any(0))
        share = DRIFT_SHARES[kind] if share is None else share
        if not 0 < share <= 1:
            raise ValueError(f"drift_share must be a share of the clients, above 0 and at most 1, got {share}.")
        chosen = host_rng(seed, "drift").permutation(staying)[: max(1, int(np.rint(share * len(staying))))]
        if kind == "rotate" and share == 1:
            chosen = np.arange(data.num_clients)
        data, later = CHANGES[kind](data, chosen, seed)
    elif share is not None:
        raise ValueError(f"drift must be given with drift_share={share}: one of {', '.join(DRIFT_KINDS)}.")
    if absent.any():
        data = dataclasses.replace(data, held_out=held_out | absent[0], absent=absent[0])
        later |= {"held_out": held_out | absent[1], "absent": absent[1]}
    return dataclasses.replace(data, drift=Drift(np.asarray(round, np.int32), **later))


def _absent_clients(able: np.ndarray, arrive: float, leave: float, seed: int) -> np.ndarray:
    """Returns masks of the clients absent before and after the drift `[2, N]`; some clients are never absent."""
    for name, share in {"arrive": arrive, "leave": leave}.items():
        if not 0 <= share < 1:
            raise ValueError(f"{name} must be a share of the clients, 0 or more and below 1, got {share}.")
    absent, order = np.zeros((2, len(able)), bool), host_rng(seed, "arrive").permutation(np.flatnonzero(able))
    late, gone = (max(1, int(np.rint(share * len(order)))) if share else 0 for share in (arrive, leave))
    if late + gone >= len(order):
        raise ValueError(
            f"arrive and leave must leave some clients present all the time, got {arrive} and {leave} of {len(order)} "
            "clients with training rows; lower them, or use more clients."
        )
    absent[0, order[:late]] = absent[1, order[late : late + gone]] = True
    return absent


def _swap_groups(data: FederatedData, clients: np.ndarray, seed: int) -> tuple[FederatedData, dict[str, Any]]:
    """Returns the data and new fields in which the given clients exchange data, each with another group."""
    if data.group is None:
        raise ValueError(
            f"drift=swap must have data with known true groups, got {data.name!r}; use drift=new-group (for classes), "
            "a rotated, shifted or pathological data set, or the argument group of federate."
        )
    group = np.asarray(data.group)
    members = np.bincount(group[clients])
    most, rest = int(members.max()), int(members.sum() - members.max())
    largest = clients[group[clients] == members.argmax()]
    clients = np.setdiff1d(clients, largest[: max(0, most - rest)])  # there is no client to swap with for the others
    if not len(clients):
        raise ValueError(
            "drift_share must select clients of at least two groups, got clients of one group; raise it, or use more "
            "clients."
        )
    clients = clients[np.argsort(group[clients], kind="stable")]
    source = np.arange(data.num_clients)
    # no group has more members, so no client gets data of its own group
    source[clients] = np.roll(clients, min(most, rest))
    return data, _fields_from(data, source)


def _rotate_further(data: FederatedData, clients: np.ndarray, seed: int) -> tuple[FederatedData, dict[str, Any]]:
    """Returns the data and new fields in which the images of the given clients are rotated by a quarter turn."""
    try:
        check_square(data.inputs)
    except ValueError as error:
        raise ValueError(f"drift=rotate: {error} Or use another drift.") from error
    if data.origin is not None:
        raise ValueError(
            f"drift must be swap or new-group for corrupted images and other strokes, got rotate: {data.name!r} has "
            "copies of its rows, which cannot be rotated in the middle of a run."
        )
    rotation = np.zeros(data.num_clients, np.int32) if data.rotation is None else np.asarray(data.rotation)
    turned = rotation.copy()
    turned[clients] = (turned[clients] + 1) % 4
    data = dataclasses.replace(data, rotation=rotation)
    later: dict[str, Any] = {"rotation": turned}
    if data.causes:
        data, later["causes"] = _patterns_after_rotation(data, turned)
    if data.group is None:
        return data, later
    data, group = _groups_after_rotation(data, turned)
    return data, later | {"group": group}


def _patterns_after_rotation(data: FederatedData, turned: np.ndarray) -> tuple[FederatedData, dict[str, np.ndarray]]:
    """Returns the federation with the cause `rotation`, and the patterns of all causes after the rotation.

    A client has the pattern of those that had its angle before, or a new one.
    """
    data = _with_cause(data, "rotation")
    pattern, rotation = np.asarray(data.causes["rotation"]), np.asarray(data.rotation)
    tilt = np.zeros(len(rotation)) if data.tilt is None else np.asarray(data.tilt)
    known: dict[tuple[float, float], int] = {}
    for angle, number in zip(zip(rotation.tolist(), tilt.tolist(), strict=True), pattern.tolist(), strict=True):
        known.setdefault(angle, number)
    later = pattern.copy()
    names = list(dict(data.cause_names)["rotation"])
    for client in np.flatnonzero(turned != rotation).tolist():
        angle = (int(turned[client]), float(tilt[client]))
        if angle not in known:
            known[angle] = len(names)
            names.append(f"{(90 * angle[0] + angle[1]) % 360:g}°")
        later[client] = known[angle]
    return _with_patterns(data, "rotation", names), data.causes | {"rotation": later.astype(np.int32)}


def _with_cause(data: FederatedData, cause: str) -> FederatedData:
    """Returns the federation with a cause, of one pattern for all clients unless it is planted."""
    if cause in data.causes:
        return data
    nobody = np.zeros(data.num_clients, np.int32)
    return _with_patterns(dataclasses.replace(data, causes=data.causes | {cause: nobody}), cause, ("before",))


def _with_patterns(data: FederatedData, cause: str, names: Sequence[str]) -> FederatedData:
    """Returns the federation with other names of the patterns of a cause."""
    return dataclasses.replace(data, cause_names=tuple((dict(data.cause_names) | {cause: tuple(names)}).items()))


def _groups_after_rotation(data: FederatedData, turned: np.ndarray) -> tuple[FederatedData, np.ndarray]:
    """Returns the federation with names for new groups, and the true groups `[N]` after the rotation.

    If groups correspond to shifts (rotated, shifted: each group has one shift, and no two have the same), or to pairs
    of a shift and a group of rows (`rotated+pathological`), they do so afterwards. Otherwise the rotated clients of a
    group form a new group.
    """
    group, rotation = np.asarray(data.group), np.asarray(data.rotation)
    rest = [np.zeros(len(group)) if field is None else np.asarray(field) for field in (data.tilt, data.label_shift)]
    shifts = list(zip(rotation.tolist(), *(field.tolist() for field in rest), strict=True))
    after = list(zip(turned.tolist(), *(field.tolist() for field in rest), strict=True))
    names, regrouped = list(data.group_names), group.copy()
    names += [f"group {number}" for number in range(len(names), int(group.max()) + 1)]
    # in the names of product groups, "labels 0, 1; 90°" and "90°; shift 3", only the angle changes
    bases = ["; ".join(part for part in name.split("; ") if not part.endswith("°")) for name in names]
    base = [bases[number] for number in group.tolist()]
    pairs = set(zip(zip(base, shifts, strict=True), group.tolist(), strict=True))
    known: dict[Any, int] = dict(pairs)
    by_shift = len(known) == len(pairs) == len(set(group.tolist()))
    for client in np.flatnonzero(turned != rotation).tolist():
        key = (base[client], after[client]) if by_shift else (int(group[client]), "turned")
        if key not in known:
            known[key] = len(names)
            names.append(f"{names[group[client]]}, turned")
        regrouped[client] = known[key]
    return dataclasses.replace(data, group_names=tuple(names)), regrouped.astype(np.int32)


def _new_group(data: FederatedData, clients: np.ndarray, seed: int) -> tuple[FederatedData, dict[str, Any]]:
    """Returns the data and new fields in which the given clients have rows of one group with new labels."""
    check_classes("drift=new-group", data.labels, "use drift=swap for data with true groups, arrive or leave")
    data, fresh = _with_new_labels(data)
    source = np.arange(data.num_clients)
    later: dict[str, Any] = {}
    if data.group is not None:
        group = np.asarray(data.group)
        trains = np.asarray(data.train.size) > 0
        trains &= True if data.held_out is None else ~np.asarray(data.held_out)
        chosen = host_rng(seed, "new-group").choice(np.unique(group[trains]))
        source[clients] = np.resize(np.flatnonzero(trains & (group == chosen)), len(clients))
        names = [
            *data.group_names,
            *(f"group {number}" for number in range(len(data.group_names), int(group.max()) + 1)),
        ]
        if data.causes:
            data = _with_cause(data, "labels")
            data = _with_patterns(data, "labels", (*dict(data.cause_names)["labels"], "new"))
        data, later = dataclasses.replace(data, group_names=(*names, "new")), _fields_from(data, source)
        later["group"][clients] = len(names)
        if data.causes:
            later["causes"]["labels"][clients] = len(dict(data.cause_names)["labels"]) - 1
    shifted = np.array(data.label_shift)
    shifted[clients] = fresh
    return data, later | {"label_shift": shifted}


def _with_new_labels(data: FederatedData) -> tuple[FederatedData, int]:
    """Returns the federation with label shifts, and a shift, or the number of a further label map, that nobody has."""
    shifts = np.zeros(data.num_clients, np.int32) if data.label_shift is None else np.asarray(data.label_shift)
    data = dataclasses.replace(data, label_shift=shifts)
    classes = np.arange(data.num_classes)
    if data.label_map is None:
        free = np.setdiff1d(classes, shifts)
    else:
        table = np.asarray(data.label_map)
        free = [shift for shift in classes if not (table == (classes + shift) % len(classes)).all(1).any()]
    if not len(free):
        raise ValueError(
            f"drift=new-group must have a label shift that no client has, but all {data.num_classes} are in use; use "
            "drift=swap, or fewer shifts."
        )
    if data.label_map is None:
        return data, int(free[0])
    further = ((classes + free[0]) % len(classes)).astype(np.int32)
    return dataclasses.replace(data, label_map=np.concatenate([table, further[None]])), len(table)


def _fields_from(data: FederatedData, source: np.ndarray) -> dict[str, Any]:
    """Returns new fields in which each client has the data of client `source [N]` of the federation."""
    later: dict[str, Any] = {
        name: Ranges(np.asarray(split.start)[source], np.asarray(split.size)[source])
        for name, split in data.splits.items()
    }
    fields = {name: getattr(data, name) for name in (*view_fields(data), "group")}
    later |= {name: np.asarray(values)[source] for name, values in fields.items() if values is not None}
    return later | {"causes": {cause: np.asarray(pattern)[source] for cause, pattern in data.causes.items()}}


CHANGES = {"swap": _swap_groups, "rotate": _rotate_further, "new-group": _new_group}

_drift = drift  # `apply_conditions` has an argument of that name


@checked
def apply_conditions(
    data: FederatedData,
    *,
    stragglers: float = 0.0,
    attack: conditions.AttackKind | None = None,
    attackers: conditions.Attackers | None = None,
    attack_scale: float = 1.0,
    attack_target: int = 0,
    drift: DriftKind | None = None,
    drift_round: int | None = None,
    drift_share: float | None = None,
    arrive: float | None = None,
    leave: float | None = None,
    seed: int = 0,
) -> FederatedData:
    """Returns the federation with stragglers, attackers and a drift.

    Args:
        data: the federation.
        stragglers: share of a round's clients that are late, and train for fewer epochs.
        attack: kind of attack: flip the labels of training rows, send a reversed update, send noise, train a
            backdoor, or collude (see `jaxfl.wire.attacks`).
        attackers: share of the clients that attack; or their numbers, group:NAME, group:NAME:SHARE, or a text file
            with numbers.
        attack_scale: factor of what attackers send.
        attack_target: class of the trigger of a backdoor.
        drift: change of the clients' data after drift_round rounds, see `jaxfl.data.drift`.
        drift_round: number of rounds before the data change, or clients arrive or leave.
        drift_share: share of the clients whose data change; none is 0.5 for swap, 1 for rotate, 0.25 for new-group.
        arrive: share of the clients that are absent before; none or 0 is no client.
        leave: share of the clients that are absent afterwards; none or 0 is no client.
        seed: seed of the choice of attackers, and of clients whose data change.
    """
    data = (
        conditions.straggle(data, stragglers) if stragglers else data
    )  # a stored federation may have stragglers already
    if attack is None:
        unused = {"attackers": attackers or None, "attack_scale": None if attack_scale == 1.0 else attack_scale}
        unused |= {"attack_target": attack_target or None}
        for name, value in unused.items():
            if value is not None:
                raise ValueError(
                    f"attack must be given with {name}={value}: one of {', '.join(conditions.ATTACK_KINDS)}."
                )
    else:
        if attackers is None:
            raise ValueError(f"attackers must be given with attack={attack}: the share of the clients, such as 0.2.")
        if attack_scale != 1.0 and attack in conditions.UNSCALED:
            raise ValueError(
                f"attack_scale must be 1 with attack={attack}, got {attack_scale}: what attackers send has no factor; "
                "leave it out, or take sign-flip."
            )
        if attack_target != 0 and attack not in conditions.BACKDOORS:
            raise ValueError(
                f"attack_target must be 0 with attack={attack}, got {attack_target}: it is the class of a trigger; "
                "leave it out, or take backdoor."
            )
        data = conditions.attack(data, attack, attackers, seed=seed, scale=attack_scale, target=attack_target)
    unused = {"drift": drift, "arrive": arrive, "leave": leave, "drift_share": drift_share}
    if drift_round is None:
        for name, value in unused.items():
            if value:
                raise ValueError(f"drift_round must be given with {name}={value}: the rounds before it, such as 50.")
        return data
    return _drift(data, drift_round, kind=drift, share=drift_share, arrive=arrive or 0.0, leave=leave or 0.0, seed=seed)
