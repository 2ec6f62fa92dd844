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
    gradual      all clients that change do so between two rounds: the share of their rows that have changed, in one
                 random order, grows in at most ten equal steps from the first round on, and is 1 from the last on.
    matrix       a matrix says which pattern each client has in each stage, 0 for its own data: the numbers of FedDrift,
                 or any. The stages are equally long.

Which change it is:

    labels       pairs of classes are swapped, other pairs in every part of the clients: p(y|x) changes.
    swap         a share of the clients exchanges rows, rotation, labels and group with clients of other groups.
                 All data together stay the same.
    rotate       the images of a share of the clients are rotated by one further quarter turn.
    new-group    a share of the clients gets rows of one group (if groups are known) with labels shifted by a number
                 that no client had: p(y|x) changes, and no existing model is right for them.
    colour, corrupt, classes
                 clients take the next pattern of the federation's own part: the colour, the corruption, or the rows
                 (and so the classes) of clients of the next pattern, whose number is one larger; the first is after the
                 last. All else of theirs stays.

In a matrix the pattern k is the k-th of the swaps, k quarter turns, or the k-th next pattern of the part; `swap` and
`new-group` have one, 1.

Parts are those of a client's number modulo 10, as in the official code of FedCCFA (Chen et al., NeurIPS 2024), whose
sudden, recurrent and incremental drifts swap classes 1 and 2, 3 and 4, 5 and 6 in parts of 30, 30 and 40 %; or they are
the true groups. In IFCA and StoCFL the clients' distributions do not change. Changes at some of the clients are studied
by Jothimurugesan et al., "Federated Learning under Distributed Concept Drift" (FedDrift), AISTATS 2023.

Clients that arrive are absent before the first change: never sampled and never tested. A method's `Method.join` then
adds them, or, if it has none, its rule for newcomers (`Method.assign`); afterwards they are ordinary clients. Clients
that leave are absent from then on; their earlier contributions stay in the models.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import jax
import numpy as np

from jaxfl.data import conditions
from jaxfl.data.building import check_no_drift
from jaxfl.data.clients import Drift, FederatedData, Ranges, array_fields, get_field, replace_field
from jaxfl.data.drift.changes import (
    PARTS,
    Fields,
    new_group,
    num_patterns,
    rotate_further,
    swap_groups,
    swap_labels,
    take_other_pattern,
)
from jaxfl.data.drift.gradual import cut_ranges, in_random_order, mixed_ranges, with_tests_of
from jaxfl.data.drift.schedules import (
    MATRICES,
    Stages,
    changed_clients,
    check_rounds,
    client_parts,
    matrix_stages,
    read_matrix,
)
from jaxfl.data.labels import check_classes
from jaxfl.data.views import label_maps
from jaxfl.data.views.copies import with_copies
from jaxfl.random import host_rng
from jaxfl.schema import checked, quoted

DriftKind = Literal["swap", "rotate", "new-group", "labels", "colour", "corrupt", "classes"]
DriftSchedule = Literal["sudden", "recurrent", "incremental", "staggered", "gradual", "matrix"]
RowsChoice = Literal["same", "fresh", "grow"]
TestChoice = Literal["own", "next", "unseen"]
OldSpelling = Literal["swap", "rotate", "new-group"]
DRIFT_KINDS: tuple[str, ...] = get_args(DriftKind)
OLD_KINDS: tuple[str, ...] = get_args(OldSpelling)
DRIFT_SCHEDULES: tuple[str, ...] = get_args(DriftSchedule)
OF_ALL = ("rotate", "labels", *PARTS)  # changes that clients have which are held out too, where all change
DRIFT_SHARES = {"swap": 0.5, "new-group": 0.25} | dict.fromkeys(OF_ALL, 1.0)
NEVER = 2**31  # a round that no run reaches
SWAPS = ("1:2", "3:4", "5:6")  # of the parts, for seven classes or more (FedCCFA)


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
    matrix: str | Sequence[Sequence[int]] | None = None,
    rows: RowsChoice = "same",
    test: TestChoice = "own",
    arrive: float = 0.0,
    leave: float = 0.0,
    arrive_rounds: Sequence[int] | None = None,
    leave_rounds: Sequence[int] | None = None,
    seed: int = 0,
) -> FederatedData:
    """Returns the federation with a drift.

    Args:
        data: the federation.
        round: number of rounds before the drift; the evaluation after them uses the changed federation. Of a schedule
            with several rounds they are in increasing order: two or more of a recurrent drift, one for each part of an
            incremental one, one for each row of a matrix but the first, and the first and the last of a staggered or
            gradual one. None may be given if clients only arrive and leave, at rounds of their own.
        kind: `"swap"`, `"rotate"`, `"labels"` and so on, see above; None if clients only arrive or leave.
        schedule: who changes when, see above.
        share: share of the clients that train all the time; None is 0.5 of them for `"swap"`, 0.25 for `"new-group"`
            and else all clients (those that are held out too).
        parts: shares of the clients in each part, by their number modulo 10, whose sum is 1; or `"group"` for the true
            groups. None is 0.3, 0.3 and 0.4 for three parts, and else equal parts.
        swaps: of `"labels"`, the swapped pairs of classes of each part, as for `jaxfl.data.shift.swapped`; None is
            1:2, 3:4 and 5:6, or as many of them as there are classes for. Further parts begin with the first again.
        matrix: of `"matrix"`, the name of one of `jaxfl.data.drift.schedules.MATRICES`, a text file with a line of
            whole numbers for each stage, or rows of numbers: the pattern of each client before the first round, and in
            each stage. Client i has column i modulo the number of columns.
        rows: a client's training rows in a stage: all of them (`"same"`), one of as many chunks as there are stages
            (`"fresh"`), or this chunk and those of before (`"grow"`), all as the client sees in the stage.
        test: how a client sees its test rows in a stage: as its training rows (`"own"`), as in the next stage
            (`"next"`), or with a pattern that it never has (`"unseen"`).
        arrive: share of the clients with training rows that are absent before; at least one client.
        leave: share of the clients with training rows that are absent from the first change on; at least one client.
        arrive_rounds, leave_rounds: rounds before which equal parts of these clients arrive and leave, in increasing
            order; None is the first change.
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
    if kind is None and not arrive and not leave and arrive_rounds is None and leave_rounds is None:
        raise ValueError(
            f"drift must be one of {', '.join((*OLD_KINDS, *DRIFT_SCHEDULES))}, or arrive or leave a share of the "
            "clients, got none."
        )
    rounds = (round,) if isinstance(round, int) else tuple(round)
    if kind is not None or rounds:
        check_rounds(rounds, schedule if kind is not None else "sudden")
    _check_options(kind, schedule, share, parts, swaps, matrix)
    _check_stage_rows(kind, schedule, rows, test)
    able = np.asarray(data.train.size) > 0
    held_out = np.zeros(data.num_clients, bool) if data.held_out is None else np.asarray(data.held_out)
    moves = {"arrive": (arrive, arrive_rounds), "leave": (leave, leave_rounds)}
    arrives, leaves = _own_rounds(able & ~held_out, moves, rounds[:1], seed)
    later: Fields = {}
    if kind is not None:
        staying = np.flatnonzero(able & ~held_out & (arrives == 0) & (leaves == NEVER))
        share = DRIFT_SHARES[kind] if share is None else share
        chosen = host_rng(seed, "drift").permutation(staying)[: max(1, int(np.rint(share * len(staying))))]
        if matrix is not None or (kind in OF_ALL and share == 1):
            chosen = np.arange(data.num_clients)
        maps = _part_swaps(swaps, data) if kind == "labels" else None
        data = data if rows == "same" else in_random_order(data, seed)
        if matrix is not None:
            stages = matrix_stages(read_matrix(matrix), rounds, data.num_clients)
            part = None
        else:
            count = len(rounds) if maps is None or schedule == "incremental" else len(maps.maps)
            of_parts = maps is not None or schedule == "incremental"
            part = client_parts(data, parts, count) if of_parts else np.zeros(data.num_clients, int)
            stages = changed_clients(schedule, rounds, chosen, part, seed)
        _check_patterns(data, kind, maps, int(stages.pattern.max()))
        still = data
        data, patterns = _fields_by_pattern(data, kind, chosen, stages, part, maps, seed)
        rounds, before = stages.rounds, data
        data, later = _in_stages(data, patterns, stages)
        if schedule == "gradual":
            data, mixed = _mixed_stages(before, patterns[0], np.isin(np.arange(data.num_clients), chosen), rounds, seed)
            later |= mixed
        if rows != "same":
            data, later["train"] = _cut_train(data, later.get("train"), len(rounds), rows)
        data = dataclasses.replace(data, drift=Drift(np.asarray(rounds, np.int32), **later))
        if test == "next":
            phases = data.phases
            data = with_tests_of(data, [*phases[1:], phases[-1]], "drift_test=next")
        elif test == "unseen":
            unseen = _unseen_fields(still, kind, stages, part, maps, seed)
            data = with_tests_of(data, [_with_fields(now, unseen) for now in data.phases], "drift_test=unseen")
    return _with_absences(data, held_out, arrives, leaves) if arrive or leave else data


def _check_stage_rows(kind: str | None, schedule: str, rows: str, test: str) -> None:
    """Raises ValueError if there are no stages for their own rows, or rows are mixed in them."""
    for name, value, usual in (("drift_rows", rows, "same"), ("drift_test", test, "own")):
        if value != usual and kind is None:
            raise ValueError(f"drift must be given with {name}={value}: one of {', '.join(DRIFT_SCHEDULES)}.")
        if value != usual and schedule == "gradual":
            raise ValueError(f"{name} must be {usual} with drift=gradual, whose stages mix rows, got {value}.")
    if test == "unseen" and kind not in ("labels", "rotate"):
        raise ValueError(f"drift_test must be own or next with drift_change={kind}, which has no further pattern.")


def _cut_train(data: FederatedData, later: Ranges | None, stages: int, rows: str) -> tuple[FederatedData, Ranges]:
    """Returns the federation with the training rows of the first stage, and the ranges of all others."""
    own = Ranges(np.asarray(data.train.start)[:, None], np.asarray(data.train.size)[:, None])
    rest = jax.tree.map(lambda values: np.repeat(values, stages, axis=1), own) if later is None else later
    whole = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), own, rest)
    cut = cut_ranges(whole.start, whole.size, rows)
    first, after = (jax.tree.map(lambda values, at=at: values[:, at], cut) for at in (0, slice(1, None)))
    train = dataclasses.replace(data.train, start=first.start, size=first.size, max_size=int(cut.size.max(initial=0)))
    return dataclasses.replace(data, train=train), after


def _unseen_fields(
    data: FederatedData,
    kind: str,
    stages: Stages,
    part: np.ndarray | None,
    maps: label_maps.NamedMaps | None,
    seed: int,
) -> Fields:
    """Returns how clients see with the first pattern, by number, that they have in no stage; arguments as above."""
    seen = stages.pattern if part is None or maps is None else stages.pattern * (1 + part % len(maps.maps))[:, None]
    most = 3 if maps is None else len(maps.maps)
    free = [min({*range(1, most + 1)} - {*row}, default=0) for row in seen.tolist()]
    if 0 in free:
        raise ValueError(
            f"drift_test must be own or next where a client has all {most} patterns of drift_change={kind}, got "
            f"unseen: client {free.index(0)}."
        )
    pattern = np.array(free)[:, None]
    wanted = Stages((), np.concatenate([pattern, np.full_like(pattern, most)], axis=1))
    clients = np.arange(data.num_clients)
    data, patterns = _fields_by_pattern(data, kind, clients, wanted, None, maps, seed)
    data, _ = _in_stages(data, patterns, wanted)
    return {name: getattr(data, name) for name in ("label_map", "label_shift", "rotation")}


def _check_options(
    kind: str | None, schedule: str, share: float | None, parts: Any, swaps: Any, matrix: str | Sequence[Any] | None
) -> None:
    """Raises ValueError if an option does not go with the change or with the schedule."""
    by_matrix = kind is not None and schedule == "matrix"
    if swaps is not None and kind != "labels":
        raise ValueError(f"drift_change must be labels with drift_swaps={swaps}, got {kind or 'none'}.")
    if parts is not None and (by_matrix or (kind != "labels" and (kind is None or schedule != "incremental"))):
        raise ValueError(f"drift must be incremental, or drift_change labels, with drift_parts={parts}.")
    if matrix is not None and not by_matrix:
        raise ValueError(
            f"drift must be matrix with drift_matrix={quoted(matrix)}, got {schedule if kind else 'none'}."
        )
    if matrix is None and by_matrix:
        raise ValueError(f"drift_matrix must be given with drift=matrix: {' or '.join(MATRICES)}, or a file.")
    if share is not None and by_matrix:
        raise ValueError(f"drift_share must be left out with drift=matrix, which says who changes, got {share}.")
    if share is not None and kind is None:
        raise ValueError(f"drift must be given with drift_share={share}: one of {', '.join(DRIFT_KINDS)}.")
    if share is not None and not 0 < share <= 1:
        raise ValueError(f"drift_share must be a share of the clients, above 0 and at most 1, got {share}.")


def _check_patterns(data: FederatedData, kind: str, maps: label_maps.NamedMaps | None, most: int) -> None:
    """Raises ValueError if there are no other patterns of the federation's part, or not so many patterns."""
    known = {"labels": 1 if maps is None else len(maps.maps), "rotate": 3}.get(kind, 1)
    known = num_patterns(data, kind) - 1 if kind in PARTS else known
    if most > max(known, 1):
        raise ValueError(f"drift_matrix must have numbers from 0 to {known} for drift_change={kind}, got {most}.")


def given_rounds(options: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the rounds of a drift among the options of a data set, before it is loaded; none without a drift.

    >>> given_rounds({"drift_round": 5}), given_rounds({"drift_rounds": [5, 8]}), given_rounds({"drift_round": None})
    ((5,), (5, 8), ())
    >>> given_rounds({"drift_matrix": "feddrift-A", "drift_every": 20})[:3]
    (20, 40, 60)
    >>> given_rounds({"drift_round": 5, "arrive_rounds": [3, 8]})
    (3, 5, 8)
    """
    one, several = options.get("drift_round"), options.get("drift_rounds")
    matrix, every = options.get("drift_matrix"), options.get("drift_every")
    changes = tuple(several or ()) if one is None else (one,)
    if matrix is not None and every is not None:
        changes = tuple(every * stage for stage in range(1, len(read_matrix(matrix))))
    moves = [round for name in ("arrive_rounds", "leave_rounds") for round in options.get(name) or ()]
    return tuple(sorted({*changes, *moves})) if moves else changes


def _part_swaps(swaps: str | Sequence[str] | None, data: FederatedData) -> label_maps.NamedMaps:
    """Returns the label maps of the parts."""
    check_classes("drift_change=labels", data.labels, "use another drift_change, such as swap or new-group")
    num_classes = data.num_classes
    if swaps is None:
        swaps = SWAPS[: max(1, (num_classes - 1) // 2)] if num_classes > 2 else ("0:1",)
    try:
        return label_maps.swaps_of(swaps, num_classes)
    except ValueError as error:
        raise ValueError(f"drift_{error}") from error


def _fields_by_pattern(
    data: FederatedData,
    kind: str,
    chosen: np.ndarray,
    stages: Stages,
    part: np.ndarray | None,
    maps: label_maps.NamedMaps | None,
    seed: int,
) -> tuple[FederatedData, list[Fields]]:
    """Returns the federation, and the fields of its clients with each of the patterns of the stages but their own.

    Args:
        data: the federation.
        kind: of the change.
        chosen: the clients that change.
        stages: with the numbers of the patterns.
        part: of labels, the swap of each client `[N]`; None is the swap of each pattern.
        maps: of labels, the swaps.
        seed: of the new data.
    """
    clients, count = np.arange(data.num_clients), max(1, int(stages.pattern.max()))
    steps, wide = np.repeat(np.arange(1, count + 1), len(clients)), data
    if count > 1:  # a client for each client and pattern, so that patterns of equal clients are equal
        wide, chosen = data.subset(np.tile(clients, count)), np.arange(count * len(clients))
    if maps is not None:
        wide, later = swap_labels(wide, chosen, steps - 1 if part is None else part, maps)
    elif kind in PARTS:
        wide, later = take_other_pattern(wide, chosen, steps, seed, kind=kind)
    else:
        wide, later = CHANGES[kind](wide, chosen, steps, seed)
    patterns = [
        jax.tree.map(lambda values, k=k: np.asarray(values)[k * len(clients) + clients], later) for k in range(count)
    ]
    data = wide.subset(clients) if count > 1 else wide
    images = kind in ("rotate", *PARTS) and (data.stroke is not None or data.corruption is not None)
    return _with_copies(data, patterns) if images else (data, patterns)


def _with_copies(data: FederatedData, patterns: list[Fields]) -> tuple[FederatedData, list[Fields]]:
    """Returns the federation with copies of rows as its clients see them with each pattern, and their ranges then."""
    clients = np.arange(data.num_clients)
    versions = [data, *(_with_fields(data, later) for later in patterns)]
    whole = data.subset(np.tile(clients, len(versions)))
    for name in whole.per_client():
        values = np.concatenate([np.asarray(get_field(one, name)) for one in versions])
        whole = replace_field(whole, name, values)
    whole = with_copies(whole)
    first, *others = (whole.subset(clients + k * len(clients)) for k in range(len(versions)))
    ranges = [{name: Ranges(split.start, split.size) for name, split in one.splits.items()} for one in others]
    return first, [later | own for later, own in zip(patterns, ranges, strict=True)]


def _with_fields(data: FederatedData, fields: Fields) -> FederatedData:
    """Returns the federation with new values of its clients' fields."""
    for name, values in fields.items():
        parts = {"start": values.start, "size": values.size} if isinstance(values, Ranges) else None
        now = values if parts is None else dataclasses.replace(getattr(data, name), **parts)
        data = dataclasses.replace(data, **{name: now})
    return data


def _in_stages(data: FederatedData, patterns: list[Fields], stages: Stages) -> tuple[FederatedData, Fields]:
    """Returns the federation as it is before the first round, and the values of its fields in each stage `[N, S, ...]`.

    Args:
        data: as the clients are with the pattern 0.
        patterns: fields with the patterns 1, 2, ...
        stages: with the pattern of each client.
    """
    versions = [{name: getattr(data, name) for name in patterns[0]}, *patterns]
    values = {name: _chosen_values([one[name] for one in versions], stages.pattern) for name in versions[0]}
    data = _with_fields(data, jax.tree.map(lambda one: one[:, 0], values))
    for name in data.splits:
        if name in values:  # as wide as a client's rows ever are
            data = replace_field(data, f"{name}.max_size", int(np.max(values[name].size, initial=0)))
    return data, jax.tree.map(lambda one: one[:, 1:], values)


def _mixed_stages(
    data: FederatedData, later: Fields, member: np.ndarray, rounds: tuple[int, ...], seed: int
) -> tuple[FederatedData, Fields]:
    """Returns the federation with the rows of a gradual drift, and the rows, groups and causes of each of its stages.

    A client is in its new group once half of its rows have changed.
    """
    steps, after = len(rounds), _with_fields(data, later)
    data, ranges = mixed_ranges(data, after, steps, member, seed)
    half = Stages.of(rounds, member[:, None] & (2 * np.arange(1, steps + 1) >= steps))
    truth = {name: values for name, values in later.items() if name in ("group", "causes")}
    fields = _in_stages(data, [truth], half)[1] if truth else {}
    for name, own in ranges.items():
        last = after.splits[name]
        ends = Ranges(last.start, last.size)
        fields[name] = jax.tree.map(lambda most, end: np.column_stack([most, end]).astype(np.int32), own, ends)
        most = int(max(fields[name].size.max(initial=0), np.max(data.splits[name].size, initial=0)))
        data = replace_field(data, f"{name}.max_size", most)
    return data, fields


def _chosen_values(versions: Sequence[Any], pattern: np.ndarray) -> Any:
    """Returns the values of a field in each stage `[N, S + 1, ...]`, by the client's pattern `[N, S + 1]`."""
    if isinstance(versions[-1], Ranges):
        return Ranges(
            *(_chosen_values([getattr(one, name) for one in versions], pattern) for name in ("start", "size"))
        )
    if isinstance(versions[-1], Mapping):
        return {name: _chosen_values([one[name] for one in versions], pattern) for name in versions[-1]}
    table = np.stack([np.asarray(one) for one in versions])  # [patterns, N, ...]
    return table[pattern, np.arange(len(pattern))[:, None]].astype(versions[-1].dtype)


def _own_rounds(
    able: np.ndarray, moves: Mapping[str, tuple[float, Sequence[int] | None]], first: tuple[int, ...], seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first round in which each client is there, and the first from which it is away `[N]`.

    They are 0 and `NEVER` for most clients; no client arrives and leaves.

    Args:
        able: clients that may do so `[N]`.
        moves: of `arrive` and `leave` the share of the clients, and the rounds of equal parts of them.
        first: the round of those for which there are none.
        seed: of the choice.
    """
    order = host_rng(seed, "arrive").permutation(np.flatnonzero(able))
    own, begin = {"arrive": np.zeros(len(able), int), "leave": np.full(len(able), NEVER)}, 0
    for name, (share, rounds) in moves.items():
        if not 0 <= share < 1:
            raise ValueError(f"{name} must be a share of the clients, 0 or more and below 1, got {share}.")
        if rounds is not None and not share:
            raise ValueError(f"{name} must be given with {name}_rounds={rounds}: a share of the clients, such as 0.2.")
        count = max(1, int(np.rint(share * len(order)))) if share else 0
        listed = first if rounds is None else tuple(rounds)
        if share and (not listed or list(listed) != sorted({*listed}) or not 1 <= min(listed) <= max(listed) < NEVER):
            got = ",".join(map(str, listed)) or "none"
            raise ValueError(f"{name}_rounds must be different rounds from 1 in increasing order, got {got}.")
        if share and count < len(listed):
            raise ValueError(
                f"{name}_rounds must be at most one for each of the {count} clients that {name}, got {len(listed)}; "
                f"raise {name}, or use more clients."
            )
        own[name][order[begin : begin + count]] = np.repeat(
            listed, np.diff(np.arange(len(listed) + 1) * count // max(len(listed), 1))
        )
        begin += count
    if begin >= len(order):
        raise ValueError(
            f"arrive and leave must leave some clients present all the time, got {moves['arrive'][0]} and "
            f"{moves['leave'][0]} of {len(order)} clients with training rows; lower them, or use more clients."
        )
    return own["arrive"], own["leave"]


def _with_absences(data: FederatedData, held_out: np.ndarray, arrives: np.ndarray, leaves: np.ndarray) -> FederatedData:
    """Returns the federation with a stage at each round in which clients arrive or leave, too.

    Args:
        data: the federation, with the other changes of its drift.
        held_out: clients that are held out in all rounds `[N]`.
        arrives, leaves: first round in which each client is there, and from which it is away `[N]`.
    """
    moves = [*arrives[arrives > 0].tolist(), *leaves[leaves < NEVER].tolist()]
    begins = np.unique([*data.drift_rounds, *moves])
    stage = np.searchsorted(data.drift_rounds, begins, side="right")
    drift = Drift(begins.astype(np.int32)) if data.drift is None else data.drift
    for name, about in array_fields(drift) if data.drift is not None else ():
        if about["per_client"] and (later := get_field(drift, name)) is not None:
            values = np.concatenate([np.asarray(get_field(data, name))[:, None], later], axis=1)
            drift = replace_field(drift, name, values[:, stage])
    absent = (arrives[:, None] > begins) | (leaves[:, None] <= begins)
    masks = {"absent": absent, "held_out": held_out[:, None] | absent}
    drift = dataclasses.replace(drift, round=begins.astype(np.int32), **masks)
    return dataclasses.replace(data, held_out=held_out | (arrives > 0), absent=arrives > 0, drift=drift)


CHANGES = {"swap": swap_groups, "rotate": rotate_further, "new-group": new_group}

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
    drift_matrix: str | Sequence[Sequence[int]] | None = None,
    drift_every: int | None = None,
    drift_rows: RowsChoice = "same",
    drift_test: TestChoice = "own",
    arrive: float | None = None,
    leave: float | None = None,
    arrive_rounds: Sequence[int] | None = None,
    leave_rounds: Sequence[int] | None = None,
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
        drift: schedule of changes of the clients' data, see `jaxfl.data.drift`: sudden, recurrent, incremental,
            staggered, gradual or matrix; or a change after drift_round rounds: swap, rotate or new-group.
        drift_change: change of a schedule; none is labels, swaps of classes.
        drift_round: number of rounds before the data change, or clients arrive or leave.
        drift_rounds: rounds before each change of a schedule, in increasing order; of staggered and gradual the
            first and the last.
        drift_share: share of the clients whose data change; none is 0.5 for swap, 0.25 for new-group, else 1.
        drift_parts: shares of the clients in each part of incremental and labels, by their number modulo 10, or group
            for the true groups; none is 0.3,0.3,0.4 of three parts, else equal ones.
        drift_swaps: swapped classes of each part with labels, such as 1:2,3:4, the default with 5:6.
        drift_matrix: of matrix, patterns of the clients by stage: feddrift-A, feddrift-C, or a text file with a line of
            whole numbers for each stage, a number for each client modulo their count; 0 is a client's own data.
        drift_every: rounds of each stage of matrix.
        drift_rows: a client's training rows in a stage: all (same), one of as many chunks as stages (fresh), or this
            chunk and those of before (grow).
        drift_test: pattern of a client's test rows in a stage: that of its training rows (own), that of the next stage
            (next), or one that it never has (unseen).
        arrive: share of the clients that are absent before; none or 0 is no client.
        leave: share of the clients that are absent afterwards; none or 0 is no client.
        arrive_rounds: rounds before which equal parts of these clients arrive; none is the first change.
        leave_rounds: rounds before which equal parts of these clients leave; none is the first change.
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
    options = {"drift": drift, "drift_share": drift_share, "drift_change": drift_change, "drift_parts": drift_parts}
    options |= {"drift_swaps": drift_swaps, "drift_rows": drift_rows if drift_rows != "same" else None}
    options |= {"drift_test": drift_test if drift_test != "own" else None}
    options |= {"arrive": arrive if arrive_rounds is None else None, "leave": leave if leave_rounds is None else None}
    given = {"drift_round": drift_round, "drift_rounds": drift_rounds}
    if drift == "matrix" or drift_matrix is not None or drift_every is not None:
        _check_matrix_options(drift, drift_matrix, drift_every, given)
        drift_rounds = given_rounds({"drift_matrix": drift_matrix, "drift_every": drift_every})
    elif drift_round is None and drift_rounds is None:
        for name, value in options.items():
            if value:
                missing = "drift_rounds" if drift in DRIFT_SCHEDULES else "drift_round"
                raise ValueError(f"{missing} must be given with {name}={value}: the rounds before it, such as 50.")
        if arrive_rounds is None and leave_rounds is None:
            return data
        drift_rounds = ()
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
        matrix=drift_matrix,
        rows=drift_rows,
        test=drift_test,
        arrive=arrive or 0.0,
        leave=leave or 0.0,
        arrive_rounds=arrive_rounds,
        leave_rounds=leave_rounds,
        seed=seed,
    )


def _check_matrix_options(drift: str | None, matrix: Any, every: int | None, others: Mapping[str, Any]) -> None:
    """Raises ValueError unless a matrix of patterns is given with the rounds of its stages, and without others."""
    for name, value in {"drift_matrix": matrix, "drift_every": every}.items():
        if value is not None and drift != "matrix":
            raise ValueError(f"drift must be matrix with {name}={quoted(value)}, got {drift or 'none'}.")
    for name, value in others.items():
        if value is not None:
            raise ValueError(
                f"{name} must be left out with drift=matrix, whose stages have drift_every rounds, got {value}."
            )
    if matrix is None:
        raise ValueError(f"drift_matrix must be given with drift=matrix: {' or '.join(MATRICES)}, or a file.")
    if every is None:
        raise ValueError("drift_every must be given with drift=matrix: the rounds of each stage, such as 20.")
    if every < 1:
        raise ValueError(f"drift_every must be at least 1, the rounds of each stage, got {every}; 20 is usual.")
