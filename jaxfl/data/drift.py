"""Drift: changes of the clients' data in the middle of a run, and clients that arrive or leave.

A drift gives the clients' fields new values from some rounds on (`FederatedData.drift`): rotation, labels, rows, and
true group. The pool of examples is the same in all its stages. Rounds, evaluations and true groups (ARI) use the
federation of their round (`FederatedData.at`); methods get no information about the drift.

The schedule says who changes when:

    sudden       all clients that change do so before one round.
    recurrent    they change before the first round, are as they were from the second on, changed again from the third.
    incremental  one part of the clients after another, each before a round of its own.
    staggered    each client before a round of its own, between two rounds. The rounds are evenly spaced and the order
                 of the clients is random, so that runs of several seeds change at the same rounds.

Which change it is:

    labels       pairs of classes are swapped, other pairs in every part of the clients: p(y|x) changes.
    swap         a share of the clients exchanges rows, rotation, labels and group with clients of other groups.
                 All data together stay the same.
    rotate       the images of a share of the clients are rotated by one further quarter turn.
    new-group    a share of the clients gets rows of one group (if groups are known) with labels shifted by a number
                 that no client had: p(y|x) changes, and no existing model is right for them.

Parts are those of a client's number modulo 10, as in the official code of FedCCFA (Chen et al., NeurIPS 2024), whose
sudden, recurrent and incremental drifts swap classes 1 and 2, 3 and 4, 5 and 6 in parts of 30, 30 and 40 %; or they are
the true groups. In IFCA and StoCFL the clients' distributions do not change. Changes at some of the clients are studied
by Jothimurugesan et al., "Federated Learning under Distributed Concept Drift" (FedDrift), AISTATS 2023.

Clients that arrive are absent before the first change: never sampled and never tested. A method's `Method.join` then
adds them, or, if it has none, its rule for newcomers (`Method.assign`); afterwards they are ordinary clients. Clients
that leave are absent from then on; their earlier contributions stay in the models.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from jaxfl.data import conditions, label_maps
from jaxfl.data.building import check_no_drift, check_square
from jaxfl.data.clients import Drift, FederatedData, Ranges, view_fields
from jaxfl.data.labels import check_classes
from jaxfl.random import host_rng
from jaxfl.schema import checked

DriftKind = Literal["swap", "rotate", "new-group", "labels"]
DriftSchedule = Literal["sudden", "recurrent", "incremental", "staggered"]
OldSpelling = Literal["swap", "rotate", "new-group"]
DRIFT_KINDS: tuple[str, ...] = get_args(DriftKind)
OLD_KINDS: tuple[str, ...] = get_args(OldSpelling)
DRIFT_SCHEDULES: tuple[str, ...] = get_args(DriftSchedule)
DRIFT_SHARES = {"swap": 0.5, "rotate": 1.0, "new-group": 0.25, "labels": 1.0}
SWAPS = ("1:2", "3:4", "5:6")  # of the parts, for seven classes or more (FedCCFA)
PARTS = (0.3, 0.3, 0.4)
BY_GROUP = "group"


@checked
def drift(
    data: FederatedData,
    round: int | Sequence[int],
    *,
    kind: DriftKind | None = None,
    schedule: DriftSchedule = "sudden",
    share: float | None = None,
    parts: str | Sequence[Any] | None = None,
    swaps: str | Sequence[str] | None = None,
    arrive: float = 0.0,
    leave: float = 0.0,
    seed: int = 0,
) -> FederatedData:
    """Returns the federation with a drift.

    Args:
        data: the federation.
        round: number of rounds before the drift; the evaluation after them uses the changed federation. Of a schedule
            with several rounds they are in increasing order: two or more of a recurrent drift, one for each part of an
            incremental one, and the first and the last of a staggered one.
        kind: `"swap"`, `"rotate"`, `"new-group"` or `"labels"`, see above; None if clients only arrive or leave.
        schedule: who changes when, see above.
        share: share of the clients that train all the time; None is 0.5 of them for `"swap"`, all clients for
            `"rotate"` and `"labels"` (those that are held out too) and 0.25 for `"new-group"`.
        parts: shares of the clients in each part, by their number modulo 10, whose sum is 1; or `"group"` for the true
            groups. None is 0.3, 0.3 and 0.4 for three parts, and else equal parts.
        swaps: of `"labels"`, the swapped pairs of classes of each part, as for `jaxfl.data.shift.swapped`; None is
            1:2, 3:4 and 5:6, or as many of them as there are classes for. Further parts begin with the first again.
        arrive: share of the clients with training rows that are absent before; at least one client.
        leave: share of the clients with training rows that are absent from the first change on; at least one client.
        seed: seed of the choice of clients and of their new data.

    Raises:
        ValueError: a number is out of range, the data cannot drift in this way, or they drift already.

    >>> from jaxfl.data.sources import digits
    >>> from jaxfl.data import shift
    >>> still = shift.rotated(digits.load(), num_clients=8, rows_per_client=20)
    >>> data = drift(still, 5, kind="swap", share=0.5)
    >>> int((data.at(5).group != still.group).sum()), sorted(data.at(5).rotation.tolist())
    (4, [0, 0, 1, 1, 2, 2, 3, 3])
    >>> data = drift(still, (5, 8), kind="labels", schedule="recurrent")
    >>> [data.at(round).relabelled(np.arange(4), 0).tolist() for round in (4, 5, 8)]
    [[0, 1, 2, 3], [0, 2, 1, 3], [0, 1, 2, 3]]
    """
    check_no_drift("drift", data)
    if kind is None and not arrive and not leave:
        raise ValueError(
            f"drift must be one of {', '.join((*OLD_KINDS, *DRIFT_SCHEDULES))}, or arrive or leave a share of the "
            "clients, got none."
        )
    rounds = (round,) if isinstance(round, int) else tuple(round)
    _check_rounds(rounds, schedule if kind is not None else "sudden")
    able = np.asarray(data.train.size) > 0
    held_out = np.zeros(data.num_clients, bool) if data.held_out is None else np.asarray(data.held_out)
    absent = _absent_clients(able & ~held_out, arrive, leave, seed)
    later: dict[str, Any] = {}
    if swaps is not None and kind != "labels":
        raise ValueError(f"drift_change must be labels with drift_swaps={swaps}, got {kind or 'none'}.")
    if parts is not None and kind != "labels" and (kind is None or schedule != "incremental"):
        raise ValueError(f"drift must be incremental, or drift_change labels, with drift_parts={parts}.")
    if kind is not None:
        staying = np.flatnonzero(able & ~held_out & ~absent.any(0))
        share = DRIFT_SHARES[kind] if share is None else share
        if not 0 < share <= 1:
            raise ValueError(f"drift_share must be a share of the clients, above 0 and at most 1, got {share}.")
        chosen = host_rng(seed, "drift").permutation(staying)[: max(1, int(np.rint(share * len(staying))))]
        if kind in ("rotate", "labels") and share == 1:
            chosen = np.arange(data.num_clients)
        change: Callable[..., Any] = CHANGES.get(kind, _swap_labels)
        part = np.zeros(data.num_clients, int)
        if kind == "labels":
            check_classes("drift_change=labels", data.labels, "use drift_change=swap, rotate or new-group")
            maps = _part_swaps(swaps, data.num_classes)
            part = _client_parts(data, parts, len(rounds) if schedule == "incremental" else len(maps.maps))
            change = functools.partial(change, maps=maps, part=part)
        elif schedule == "incremental":
            part = _client_parts(data, parts, len(rounds))
        stages = _changed_clients(schedule, rounds, chosen, part, seed)
        rounds, (data, changed) = stages.rounds, change(data, chosen, seed)
        later = {name: _in_stages(getattr(data, name), values, stages.changed) for name, values in changed.items()}
    elif share is not None:
        raise ValueError(f"drift must be given with drift_share={share}: one of {', '.join(DRIFT_KINDS)}.")
    if absent.any():
        data = dataclasses.replace(data, held_out=held_out | absent[0], absent=absent[0])
        masks = {"held_out": held_out | absent[1], "absent": absent[1]}
        later |= {name: np.repeat(mask[:, None], len(rounds), axis=1) for name, mask in masks.items()}
    return dataclasses.replace(data, drift=Drift(np.asarray(rounds, np.int32), **later))


def given_rounds(options: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the rounds of a drift among the options of a data set, before it is loaded; none without a drift.

    >>> given_rounds({"drift_round": 5}), given_rounds({"drift_rounds": [5, 8]}), given_rounds({"drift_round": None})
    ((5,), (5, 8), ())
    """
    one, several = options.get("drift_round"), options.get("drift_rounds")
    return tuple(several or ()) if one is None else (one,)


class _Stages(NamedTuple):
    """The stages of a drift, and the clients that have their new data in each of them.

    Attributes:
        rounds: first round of each stage.
        changed: whether a client has its new data in a stage `[N, S]`.
    """

    rounds: tuple[int, ...]
    changed: np.ndarray


def _check_rounds(rounds: tuple[int, ...], schedule: str) -> None:
    """Raises ValueError unless the rounds are in increasing order, and as many as a schedule has."""
    name = "drift_round" if len(rounds) == 1 else "drift_rounds"
    if outside := [one for one in rounds if not 1 <= one < 2**31]:
        raise ValueError(
            f"{name} must be at least 1, the number of rounds before the drift, got {outside[0]}; 50 is usual."
        )
    listed = ",".join(map(str, rounds)) or "none"
    if list(rounds) != sorted(set(rounds)):
        raise ValueError(f"drift_rounds must be different and in increasing order, got {listed}.")
    right = {"sudden": len(rounds) == 1, "staggered": len(rounds) == 2}.get(schedule, len(rounds) > 1)
    if not right:
        wanted = {"sudden": "one round", "staggered": "the first and the last round"}
        raise ValueError(
            f"drift_rounds must be {wanted.get(schedule, 'two rounds or more')} for drift={schedule}, got {listed}."
        )


def _client_parts(data: FederatedData, parts: str | Sequence[Any] | None, count: int) -> np.ndarray:
    """Returns the number of each client's part `[N]`, below `count` unless parts are given.

    A client is in the part in whose share of the numbers 0 to 9 its own number modulo 10 is.
    """
    listed = parts.split(",") if isinstance(parts, str) else parts
    if listed is not None and list(listed) == [BY_GROUP]:
        if data.group is None:
            raise ValueError(f"drift_parts must be shares for data without true groups, got group: {data.name!r}.")
        return np.unique(np.asarray(data.group), return_inverse=True)[1].reshape(-1)
    if listed is None:
        shares = np.array(PARTS if count == len(PARTS) else [1 / count] * count)
    else:
        try:
            shares = np.array([float(one) for one in listed])
        except (TypeError, ValueError) as error:
            raise ValueError(f"drift_parts must be shares such as 0.3,0.3,0.4, or group, got {parts!r}.") from error
    if not np.all(shares > 0) or abs(shares.sum() - 1) > 1e-6:
        raise ValueError(f"drift_parts must be shares above 0 whose sum is 1, got {parts!r}; 0.3,0.3,0.4 is usual.")
    ends = np.cumsum(shares)[:-1] - 1e-9  # 0.3 + 0.3 is no more than 6 of 10
    return np.searchsorted(ends, np.arange(data.num_clients) % 10 / 10, side="right")


def _part_swaps(swaps: str | Sequence[str] | None, num_classes: int) -> label_maps.NamedMaps:
    """Returns the label maps of the parts."""
    if swaps is None:
        swaps = SWAPS[: max(1, (num_classes - 1) // 2)] if num_classes > 2 else ("0:1",)
    try:
        return label_maps.swaps_of(swaps, num_classes)
    except ValueError as error:
        raise ValueError(f"drift_{error}") from error


def _changed_clients(
    schedule: str, rounds: tuple[int, ...], clients: np.ndarray, part: np.ndarray, seed: int
) -> _Stages:
    """Returns which clients have changed in each stage of a schedule.

    Args:
        schedule: its name.
        rounds: as they were given, see `drift`.
        clients: those that change.
        part: of all clients `[N]`.
        seed: of the order in which clients change one after another.
    """
    member = np.isin(np.arange(len(part)), clients)[:, None]
    if schedule == "recurrent":
        return _Stages(rounds, member & (np.arange(len(rounds)) % 2 == 0))
    if schedule == "incremental":
        numbers = np.unique(part[clients])
        if not np.array_equal(numbers, np.arange(len(rounds))):
            raise ValueError(
                f"drift_rounds must be one for each part of the clients that change ({len(numbers)}), got "
                f"{','.join(map(str, rounds))}; choose drift_parts and drift_share to fit, or use more clients."
            )
        return _Stages(rounds, member & (part[:, None] <= np.arange(len(rounds))))
    if schedule == "sudden":
        return _Stages(rounds, member)
    first, last = rounds
    order = host_rng(seed, "staggered").permutation(clients)
    own = np.full(len(part), last + 1)
    own[order] = first + np.arange(len(order)) * (last - first + 1) // len(order)
    begins = np.unique(own[order])
    return _Stages(tuple(begins.tolist()), own[:, None] <= begins)


def _in_stages(now: Any, later: Any, changed: np.ndarray) -> Any:
    """Returns the values of a field in each stage `[N, S, ...]`: new ones where a client has changed, else its own."""
    if isinstance(later, Ranges):
        pairs = ((now.start, later.start), (now.size, later.size))
        return Ranges(*(_in_stages(*pair, changed) for pair in pairs))
    if isinstance(later, Mapping):
        return {name: _in_stages(now[name], values, changed) for name, values in later.items()}
    mask = changed.reshape(*changed.shape, *[1] * (later.ndim - 1))
    return np.where(mask, later[:, None], np.asarray(now)[:, None]).astype(later.dtype)


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
    """Returns the federation with the cause `rotation`, and the patterns of all causes after the rotation."""
    rotation = np.asarray(data.rotation)
    tilt = np.zeros(len(rotation)) if data.tilt is None else np.asarray(data.tilt)
    before, after = ([*zip(turns.tolist(), tilt.tolist(), strict=True)] for turns in (rotation, turned))
    names = [f"{(90 * turns + tilt) % 360:g}°" for turns, tilt in after]
    return _patterns_after(_with_cause(data, "rotation"), "rotation", before, after, names)


def _patterns_after(
    data: FederatedData, cause: str, before: Sequence[Hashable], after: Sequence[Hashable], names: Sequence[str]
) -> tuple[FederatedData, dict[str, np.ndarray]]:
    """Returns the federation with names for new patterns of a cause, and the patterns of all causes after a change.

    A client has the pattern of those that saw before what it sees now, or a new one.

    Args:
        data: federation with the cause.
        cause: that changes.
        before, after: what each client sees, before and after the change `[N]`.
        names: of the pattern of each client, if it is new `[N]`.
    """
    pattern = np.asarray(data.causes[cause])
    known: dict[Hashable, int] = {}
    for seen, number in zip(before, pattern.tolist(), strict=True):
        known.setdefault(seen, number)
    later, all_names = pattern.copy(), list(dict(data.cause_names)[cause])
    for client, (one, other) in enumerate(zip(before, after, strict=True)):
        if one == other:
            continue
        if other not in known:
            known[other] = len(all_names)
            all_names.append(names[client])
        later[client] = known[other]
    return _with_patterns(data, cause, all_names), data.causes | {cause: later.astype(np.int32)}


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
    """Returns the federation with names for new groups, and the true groups `[N]` after the rotation."""
    rest = [np.zeros(data.num_clients) if one is None else np.asarray(one) for one in (data.tilt, data.label_shift)]
    before, after = (
        [*zip(turns.tolist(), *(field.tolist() for field in rest), strict=True)]
        for turns in (np.asarray(data.rotation), turned)
    )
    # in the names of product groups, "labels 0, 1; 90°" and "90°; shift 3", only the angle changes
    bases = ["; ".join(part for part in name.split("; ") if not part.endswith("°")) for name in _all_group_names(data)]
    return _groups_after(data, bases, before, after, ["turned"] * data.num_clients)


def _groups_after(
    data: FederatedData,
    bases: Sequence[str],
    before: Sequence[Hashable],
    after: Sequence[Hashable],
    words: Sequence[str],
) -> tuple[FederatedData, np.ndarray]:
    """Returns the federation with names for new groups, and the true groups `[N]` after a change.

    If groups correspond to shifts (rotated, shifted: each group has one shift, and no two have the same), or to pairs
    of a shift and a group of rows (`rotated+pathological`), they do so afterwards. Otherwise the changed clients of a
    group form a new group, or one for each word.

    Args:
        data: federation with true groups.
        bases: names of the groups without the shift that changes.
        before, after: shifts of each client before and after the change `[N]`.
        words: what is said of each client's change in the names of new groups `[N]`.
    """
    group, names = np.asarray(data.group), _all_group_names(data)
    regrouped = group.copy()
    base = [bases[number] for number in group.tolist()]
    pairs = set(zip(zip(base, before, strict=True), group.tolist(), strict=True))
    known: dict[Any, int] = dict(pairs)
    by_shift = len(known) == len(pairs) == len(set(group.tolist()))
    for client in [client for client, seen in enumerate(before) if seen != after[client]]:
        key = (base[client], after[client]) if by_shift else (int(group[client]), words[client])
        if key not in known:
            known[key] = len(names)
            names.append(f"{names[group[client]]}, {words[client]}")
        regrouped[client] = known[key]
    return dataclasses.replace(data, group_names=tuple(names)), regrouped.astype(np.int32)


def _all_group_names(data: FederatedData) -> list[str]:
    """Returns the names of the true groups, and `group 3` and the like for those without a name."""
    names = list(data.group_names)
    return names + [f"group {number}" for number in range(len(names), int(np.asarray(data.group).max()) + 1)]


def _swap_labels(
    data: FederatedData, clients: np.ndarray, seed: int, *, maps: label_maps.NamedMaps, part: np.ndarray
) -> tuple[FederatedData, dict[str, Any]]:
    """Returns the data and new fields in which the labels of the given clients are swapped by the map of their part."""
    same = np.arange(data.num_classes)[None]
    data = label_maps.with_products(data, np.concatenate([same, maps.maps]))
    swap = part % len(maps.maps)
    number = np.array(data.label_shift)
    number[clients] += 1 + swap[clients].astype(np.int32)
    later: dict[str, Any] = {"label_shift": number}
    changed = dataclasses.replace(data, label_shift=number)
    before, after = ([row.tobytes() for row in np.ascontiguousarray(one.label_maps())] for one in (data, changed))
    words = [maps.names[one] for one in swap.tolist()]
    known = dict(data.cause_names).get("labels", ())
    if data.group is not None and _is_product_of(data, "labels"):
        bases = ["; ".join(one for one in name.split("; ") if one not in known) for name in _all_group_names(data)]
        data, later["group"] = _groups_after(data, bases, before, after, words)
    if data.causes:
        data = _with_cause(data, "labels")
        heads = [dict(data.cause_names)["labels"][one] for one in np.asarray(data.causes["labels"]).tolist()]
        names = [word if not known else f"{head}, {word}" for head, word in zip(heads, words, strict=True)]
        data, later["causes"] = _patterns_after(data, "labels", before, after, names)
    return data, later


def _is_product_of(data: FederatedData, cause: str) -> bool:
    """Returns whether the clients of a true group have one pattern of a cause, as all have of one that is not there."""
    pattern = data.causes.get(cause, np.zeros(data.num_clients, np.int32))
    pairs = np.unique(np.stack([np.asarray(data.group), np.asarray(pattern)], 1), axis=0)
    return len(pairs) == len(np.unique(pairs[:, 0]))


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
        names = _all_group_names(data)
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
    drift: DriftSchedule | OldSpelling | None = None,
    drift_change: DriftKind | None = None,
    drift_round: int | None = None,
    drift_rounds: Sequence[int] | None = None,
    drift_share: float | None = None,
    drift_parts: str | Sequence[Any] | None = None,
    drift_swaps: str | Sequence[str] | None = None,
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
        drift: schedule of changes of the clients' data, see `jaxfl.data.drift`: sudden, recurrent, incremental or
            staggered; or a change after drift_round rounds: swap, rotate or new-group.
        drift_change: change of a schedule; none is labels, swaps of classes.
        drift_round: number of rounds before the data change, or clients arrive or leave.
        drift_rounds: rounds before each change of a schedule, in increasing order; of staggered the first and the last.
        drift_share: share of the clients whose data change; none is 0.5 for swap, 0.25 for new-group, else 1.
        drift_parts: shares of the clients in each part of incremental and labels, by their number modulo 10, or group
            for the true groups; none is 0.3,0.3,0.4 of three parts, else equal ones.
        drift_swaps: swapped classes of each part with labels, such as 1:2,3:4, the default with 5:6.
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
    options = {"drift": drift, "arrive": arrive, "leave": leave, "drift_share": drift_share}
    options |= {"drift_change": drift_change, "drift_parts": drift_parts, "drift_swaps": drift_swaps}
    if drift_round is None and drift_rounds is None:
        for name, value in options.items():
            if value:
                missing = "drift_rounds" if drift in DRIFT_SCHEDULES else "drift_round"
                raise ValueError(f"{missing} must be given with {name}={value}: the rounds before it, such as 50.")
        return data
    if drift_round is not None and drift_rounds is not None:
        raise ValueError(f"drift_round must be left out with drift_rounds={drift_rounds}, got {drift_round}.")
    scheduled = drift in DRIFT_SCHEDULES
    if drift_change is not None and not scheduled:
        raise ValueError(
            f"drift must be one of {', '.join(DRIFT_SCHEDULES)} with drift_change={drift_change}, got "
            f"{drift or 'none'}."
        )
    kind: Any = (drift_change or "labels") if scheduled else drift
    schedule: Any = drift if scheduled else "sudden"
    rounds: Any = drift_rounds if drift_round is None else drift_round
    return _drift(
        data,
        rounds,
        kind=kind,
        schedule=schedule,
        share=drift_share,
        parts=drift_parts,
        swaps=drift_swaps,
        arrive=arrive or 0.0,
        leave=leave or 0.0,
        seed=seed,
    )
