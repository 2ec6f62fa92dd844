"""Changes of a drift: what the data of the clients become that a schedule changes, see `jaxfl.data.drift`.

A change is a function `(data, clients, steps, seed) -> (data, fields)`: the federation, with names and tables that fit
all its stages, and the new values `[N, ...]` of the fields that change, in which clients that do not change have their
old ones. `steps [N]` says how far each of the clients goes, once in most schedules.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from jaxfl.data.building import check_square
from jaxfl.data.clients import FederatedData, Ranges, view_fields
from jaxfl.data.labels import check_classes
from jaxfl.data.views import label_maps
from jaxfl.data.views.copies import without_copies
from jaxfl.random import host_rng

Fields = dict[str, Any]
# The cause whose pattern a client changes, the skews that plant it, and the fields of the clients' views that follow.
PARTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "colour": ("colour", "coloured", ("colour",)),
    "corrupt": ("corruption", "corrupted", ("corruption",)),
    "classes": ("classes", "pathological, dominant, missing or downsampled", ()),
}


def swap_groups(data: FederatedData, clients: np.ndarray, steps: np.ndarray, seed: int) -> tuple[FederatedData, Fields]:
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


def rotate_further(
    data: FederatedData, clients: np.ndarray, steps: np.ndarray, seed: int
) -> tuple[FederatedData, Fields]:
    """Returns the data and new fields in which the images of the given clients are rotated by further quarter turns."""
    try:
        check_square(data.inputs)
    except ValueError as error:
        raise ValueError(f"drift=rotate: {error} Or use another drift.") from error
    data = without_copies(data)
    rotation = np.zeros(data.num_clients, np.int32) if data.rotation is None else np.asarray(data.rotation)
    turned = rotation.copy()
    turned[clients] = (turned[clients] + steps[clients]) % 4
    data = dataclasses.replace(data, rotation=rotation)
    later: Fields = {"rotation": turned}
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
    quarters = (turned - np.asarray(data.rotation)) % 4
    words = ["turned" if one < 2 else f"turned by {90 * one}°" for one in quarters.tolist()]
    # in the names of product groups, "labels 0, 1; 90°" and "90°; shift 3", only the angle changes
    bases = ["; ".join(part for part in name.split("; ") if not part.endswith("°")) for name in _all_group_names(data)]
    return _groups_after(data, bases, before, after, words)


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


def swap_labels(
    data: FederatedData, clients: np.ndarray, part: np.ndarray, maps: label_maps.NamedMaps
) -> tuple[FederatedData, Fields]:
    """Returns the data and new fields in which the labels of the given clients are swapped by the map of their part."""
    same = np.arange(data.num_classes)[None]
    data = label_maps.with_products(data, np.concatenate([same, maps.maps]))
    swap = part % len(maps.maps)
    number = np.array(data.label_shift)
    number[clients] += 1 + swap[clients].astype(np.int32)
    later: Fields = {"label_shift": number}
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


def new_group(data: FederatedData, clients: np.ndarray, steps: np.ndarray, seed: int) -> tuple[FederatedData, Fields]:
    """Returns the data and new fields in which the given clients have rows of one group with new labels."""
    check_classes("drift=new-group", data.labels, "use drift=swap for data with true groups, arrive or leave")
    data, fresh = _with_new_labels(data)
    source = np.arange(data.num_clients)
    later: Fields = {}
    if data.group is not None:
        group = np.asarray(data.group)
        trains = _train(data)
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
    later = _ranges_from(data, source)
    fields = {name: getattr(data, name) for name in (*view_fields(data), "group")}
    later |= {name: np.asarray(values)[source] for name, values in fields.items() if values is not None}
    return later | {"causes": {cause: np.asarray(pattern)[source] for cause, pattern in data.causes.items()}}


def _ranges_from(data: FederatedData, source: np.ndarray) -> Fields:
    """Returns the ranges of each split in which each client has the rows of client `source [N]`."""
    return {
        name: Ranges(np.asarray(split.start)[source], np.asarray(split.size)[source])
        for name, split in data.splits.items()
    }


def num_patterns(data: FederatedData, kind: str) -> int:
    """Returns the number of patterns of the part of a federation that colour, corrupt and classes change.

    Raises:
        ValueError: there are fewer than two, so that no client can take another one.
    """
    cause, skews, _ = PARTS[kind]
    known = _trained_patterns(data, cause) if cause in data.causes else np.zeros(0)
    if len(known) < 2:
        raise ValueError(
            f"drift_change={kind} must have clients of two patterns or more of the federation's own part, {skews}, got "
            f"{len(known)}: {data.name!r}."
        )
    return len(known)


def _trained_patterns(data: FederatedData, cause: str) -> np.ndarray:
    """Returns the patterns of a cause that clients with training rows have which are not held out, in order."""
    return np.unique(np.asarray(data.causes[cause])[_train(data)])


def _train(data: FederatedData) -> np.ndarray:
    """Returns the clients that have training rows and are not held out `[N]`."""
    return (np.asarray(data.train.size) > 0) & (True if data.held_out is None else ~np.asarray(data.held_out))


def take_other_pattern(
    data: FederatedData, clients: np.ndarray, steps: np.ndarray, seed: int, *, kind: str
) -> tuple[FederatedData, Fields]:
    """Returns the data and new fields in which clients have the next pattern of a part, after the last the first.

    The clients of a pattern take what those have that have the next one, the first what the first has: their colour,
    their corruption with its level, or their rows. All else is as it was.
    """
    cause, _, fields = PARTS[kind]
    data, pattern, known = without_copies(data), np.asarray(data.causes[cause]), _trained_patterns(data, cause)
    wanted, source = pattern.copy(), np.arange(data.num_clients)
    wanted[clients] = known[(np.searchsorted(known, pattern[clients]) + steps[clients]) % len(known)]
    for before, after in np.unique(np.stack([pattern, wanted])[:, clients], axis=1).T.tolist():
        movers = clients[(pattern[clients] == before) & (wanted[clients] == after)]
        source[movers] = np.resize(np.flatnonzero(_train(data) & (pattern == after)), len(movers))
    later: Fields = {name: np.asarray(getattr(data, name))[source] for name in fields} or _ranges_from(data, source)
    later["causes"] = data.causes | {cause: wanted}
    if data.group is None:
        return data, later
    data, later["group"] = _groups_after_pattern(data, cause, wanted)
    return data, later


def _groups_after_pattern(data: FederatedData, cause: str, wanted: np.ndarray) -> tuple[FederatedData, np.ndarray]:
    """Returns the federation with names for new groups, and the true groups `[N]` where clients have other patterns.

    The name of a group has the names of its patterns, if their cause counts among the groups; the name with another
    pattern is that of the group that a client is in then.
    """
    names, known = _all_group_names(data), dict(data.cause_names)[cause]
    numbers = {name: number for number, name in enumerate(names)}
    group = np.array(data.group)
    for client in np.flatnonzero(wanted != data.causes[cause]).tolist():
        pattern, name = f"; {known[int(data.causes[cause][client])]}; ", f"; {names[int(group[client])]}; "
        other = name.replace(pattern, f"; {known[int(wanted[client])]}; ", 1)[2:-2]
        group[client] = numbers.setdefault(other, len(numbers))
    return dataclasses.replace(data, group_names=tuple(numbers)), group.astype(np.int32)
