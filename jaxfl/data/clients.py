"""Packed rows of all clients: one pool of examples, and indices of each client's rows in it.

A federation is a pool `inputs [P, ...]`, `labels [P]` and its splits. A split lists the pool rows of all clients one
after the other: client `i` owns `rows[start[i] : start[i] + size[i]]`. Nothing is padded, so a federation of log-normal
sizes needs memory only for its rows. Clients may share a range (one official test set for a whole group) or pool rows
(four rotations of MNIST need one MNIST). Pixels stay uint8 on the device; rotation, label map and normalisation are
applied to the batch.

The metadata of every array say whether it has a row for each client: batches depend on `SEEN` arrays and not on `KNOWN`
ones; `SHARED` arrays belong to all clients. Code that handles all arrays per client (`subset`, the checks, the
evaluation) uses `FederatedData.per_client`, so that a new field is declared only once.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.core import Tracer

from jaxfl import tree
from jaxfl.data import labels as kinds
from jaxfl.data.casts import to_integers
from jaxfl.data.partition.parts import check_numbers
from jaxfl.data.views import seen_images
from jaxfl.typing import AnyArray, Array

SHARED: dict[str, Any] = {"per_client": False, "seen": False}
SEEN: dict[str, Any] = {"per_client": True, "seen": True}  # [N], the batches of a client depend on it
KNOWN: dict[str, Any] = {"per_client": True, "seen": False}  # [N], no batch depends on it


@struct.dataclass
class Attack:
    """Attackers and the kind of their attack; created by `jaxfl.data.conditions.attack`."""

    attacker: AnyArray = struct.field(metadata=KNOWN)  # [N] bool
    scale: AnyArray = struct.field(metadata=SHARED)  # [] float32
    kind: str = struct.field(pytree_node=False)


@struct.dataclass
class Trigger:
    """The trigger of a backdoor: a patch of one value, whose rows are to be taken for another class.

    It is in the last rows and columns of an image, and in the last numbers of a row of features, after a client's
    rotation.
    """

    value: AnyArray = struct.field(metadata=SHARED)  # [] in the units of the pool
    target: AnyArray = struct.field(metadata=SHARED)  # [] int32, the class
    size: int = struct.field(pytree_node=False)  # rows and columns, or numbers

    def on(self, x: Array) -> Array:
        """Returns inputs `[B, ...]` with the patch.

        >>> Trigger(jnp.float32(9), jnp.int32(0), 2).on(jnp.zeros((1, 3, 3)))[0].astype(int).tolist()
        [[0, 0, 0], [0, 9, 9], [0, 9, 9]]
        """
        place = (slice(None), *[slice(-self.size, None)] * min(x.ndim - 1, 2))
        return x.at[place].set(self.value.astype(x.dtype))


@struct.dataclass
class Speeds:
    """The clients' devices; created by `jaxfl.clock`."""

    flops: AnyArray = struct.field(metadata=KNOWN)  # [N] float32, operations a second
    up: AnyArray = struct.field(metadata=KNOWN)  # [N] float32, bits a second
    down: AnyArray = struct.field(metadata=KNOWN)  # [N] float32, bits a second
    watts: AnyArray | None = struct.field(metadata=KNOWN, default=None)  # [N] float32, while a client works


@struct.dataclass
class Trace:
    """The clients' devices in the course of simulated time; created by `jaxfl.clock.trace`.

    A client has R_i rows, of R in all. Times are two integers, seconds and parts of 2^-30 seconds.
    """

    now: AnyArray = struct.field(metadata=SHARED)  # [3] int32, how often the trace has ended, and the time in it
    start: AnyArray = struct.field(metadata=KNOWN)  # [N] int32, a client's first row
    size: AnyArray = struct.field(metadata=KNOWN)  # [N] int32, R_i
    time: AnyArray = struct.field(metadata=SHARED)  # [R, 2] int32, from which a row holds, ascending for a client
    available: AnyArray = struct.field(metadata=SHARED)  # [R] bool
    flops: AnyArray = struct.field(metadata=SHARED)  # [R] float32, as the next two
    up: AnyArray = struct.field(metadata=SHARED)
    down: AnyArray = struct.field(metadata=SHARED)
    periods: AnyArray = struct.field(metadata=SHARED)  # [K, 2] int32, lengths of 1, 2, 4, ... traces
    watts: AnyArray | None = struct.field(metadata=KNOWN, default=None)  # [N] float32, while a client works


@struct.dataclass
class Ranges:
    """Ranges of the clients in the rows of a split by stage; `start` is None in a window, which has its own."""

    start: AnyArray | None = struct.field(metadata=KNOWN)  # [N, S] int32
    size: AnyArray = struct.field(metadata=KNOWN)  # [N, S] int32


@struct.dataclass
class Drift:
    """New values of the clients' fields in S stages; created by `jaxfl.data.drift.drift`.

    Fields have the same names as in the federation, whose own values are those of the rounds before the first stage;
    None stands for an unchanged field. A field has a row for each client, with the value of each stage in it, so that
    it is chosen, checked and divided as all arrays with a row for each client.
    """

    round: AnyArray = struct.field(metadata=SHARED)  # [S] int32, first round of each stage, in increasing order
    rotation: AnyArray | None = struct.field(metadata=KNOWN, default=None)  # [N, S], as all fields below
    tilt: AnyArray | None = struct.field(metadata=KNOWN, default=None)
    label_shift: AnyArray | None = struct.field(metadata=KNOWN, default=None)
    group: AnyArray | None = struct.field(metadata=KNOWN, default=None)
    held_out: AnyArray | None = struct.field(metadata=KNOWN, default=None)
    absent: AnyArray | None = struct.field(metadata=KNOWN, default=None)
    train: Ranges | None = None
    test: Ranges | None = None
    validation: Ranges | None = None
    causes: dict[str, AnyArray] = struct.field(metadata=KNOWN, default_factory=dict)
    colour: AnyArray | None = struct.field(metadata=KNOWN, default=None)
    class_rotation: AnyArray | None = struct.field(metadata=KNOWN, default=None)  # [N, S, L], as the next
    class_colour: AnyArray | None = struct.field(metadata=KNOWN, default=None)
    stroke: AnyArray | None = struct.field(metadata=KNOWN, default=None)
    corruption: AnyArray | None = struct.field(metadata=KNOWN, default=None)


def array_fields(part: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields name and metadata of every array of a federation, split or attack, including nested parts.

    >>> from jaxfl.data import synthetic
    >>> [name for name, _ in array_fields(synthetic.clustered_linear(4).train)]
    ['rows', 'start', 'size', 'flipped', 'triggered']
    """
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if dataclasses.is_dataclass(value):
            yield from ((f"{field.name}.{name}", metadata) for name, metadata in array_fields(value))
        elif isinstance(value, Mapping):
            yield from ((f"{field.name}.{name}", field.metadata) for name in value)
        elif "per_client" in field.metadata:
            yield field.name, field.metadata


def view_fields(data: "FederatedData") -> list[str]:
    """Returns the fields of the clients' shifts: rows of the pool are seen rotated, coloured or relabelled."""
    return [name for name, about in array_fields(data) if about["seen"] and "." not in name]


def get_field(part: Any, name: str) -> Any:
    """Returns a field of a federation or of a part of it; `name` may be a path (`test.size`)."""
    for entry in name.split("."):
        part = part[entry] if isinstance(part, Mapping) else getattr(part, entry)
    return part


def replace_field(part: Any, name: str, value: Any) -> Any:
    """Returns a federation or a part of it with one field replaced; `name` may be a path (`test.size`)."""
    first, _, rest = name.partition(".")
    value = replace_field(get_field(part, first), rest, value) if rest else value
    return {**part, first: value} if isinstance(part, Mapping) else dataclasses.replace(part, **{first: value})


SPLITS = ("train", "test", "validation")  # names of the splits of a federation


class Batch(NamedTuple):
    """A batch of rows, transformed for a model."""

    x: Array  # [B, ...] float, or int32 of tokens
    y: Array  # [B] int32 classes, or labels of another kind, see `jaxfl.data.labels`
    mask: Array  # [B] bool, False on padding
    weights: Array | None = None  # [B] factors of the rows' losses, see `tasks.with_row_weights`; None is 1


def _row_numbers(rows: Any) -> np.ndarray:
    """Returns rows of one client as int32; raises ValueError if one does not fit."""
    rows = np.asarray(rows)
    return to_integers("rows", rows, remedy="count rows from 0") if rows.size else rows.astype(np.int32)


@struct.dataclass
class Split:
    """The pool rows of each client: client i owns `rows[start[i] : start[i] + size[i]]`."""

    rows: AnyArray = struct.field(metadata=SHARED)  # [T] int32, into the pool
    start: AnyArray = struct.field(metadata=SEEN)  # [N] int32
    size: AnyArray = struct.field(metadata=SEEN)  # [N] int32
    max_size: int = struct.field(pytree_node=False)
    # [N] bool, clients whose label y becomes L - 1 - y; None for no client
    flipped: AnyArray | None = struct.field(metadata=SEEN, default=None)
    # [N] int32, every how many of a client's rows has the federation's trigger and its class, 0 is none; None for none
    triggered: AnyArray | None = struct.field(metadata=SEEN, default=None)

    def __repr__(self) -> str:
        """Returns one line of text."""
        return f"Split({self.start.shape[0]} clients, {self.rows.shape[0]} rows, at most {self.max_size} each)"

    @classmethod
    def pack(cls, parts: Sequence[np.ndarray]) -> "Split":
        """Returns the split of one index array per client.

        >>> Split.pack([np.array([5, 6]), np.array([], int), np.array([7])]).start.tolist()
        [0, 2, 2]
        """
        sizes = np.array([len(part) for part in parts], np.int32)
        return cls(
            rows=np.concatenate([_row_numbers(part) for part in parts] or [np.zeros(0, np.int32)]),
            start=to_integers("number of rows", np.cumsum(sizes, dtype=np.int64) - sizes, remedy="use fewer clients"),
            size=sizes,
            max_size=int(sizes.max(initial=0)),
        )

    @classmethod
    def shared(cls, parts: Sequence[np.ndarray], member: np.ndarray) -> "Split":
        """Returns the split of index arrays that clients share: client `i` owns `parts[member[i]]`."""
        packed = cls.pack(parts)
        start, size = packed.start[member], packed.size[member]
        return dataclasses.replace(packed, start=start, size=size, max_size=int(size.max(initial=0)))

    def thinned(self, most: int) -> "Split":
        """Returns the split with at most `most` rows of each client, evenly spaced in its range.

        Rows are often in the order of their classes, which even spacing preserves.

        >>> Split.pack([np.arange(10), np.arange(3)]).thinned(4).rows.tolist()
        [0, 2, 5, 7, 0, 1, 2]
        """
        rows, ranges = np.asarray(self.rows), np.stack([np.asarray(self.start), np.asarray(self.size)], 1)
        distinct, member = np.unique(ranges, axis=0, return_inverse=True)
        parts = [rows[start + np.arange(min(size, most)) * size // max(min(size, most), 1)] for start, size in distinct]
        few = Split.shared(parts, member.reshape(-1))
        return dataclasses.replace(few, flipped=self.flipped, triggered=self.triggered)


@struct.dataclass
class FederatedData:
    """The examples of all clients, and properties of the clients.

    Use `federate` to build one, which checks the arrays. They may be in host memory (NumPy) until a run sends them to
    the device.

    Attributes:
        inputs: the pool of examples `[P, ...]`, uint8 pixels, floats, or int32 tokens.
        labels: classes `[P]`, int32; or float, bool or int32 `[P, T]` of other kinds, see `jaxfl.data.labels`.
        train, test: each client's rows.
        rotation: exact quarter turns, counter-clockwise, per client `[N]`, or None.
        tilt: degrees of a further, interpolated rotation, counter-clockwise, per client `[N]` float, or None.
        label_shift: added to every label modulo the number of classes, per client `[N]`, or None. Where there are label
            maps, the number of the client's map instead.
        label_map: what each class is called, for M maps `[M, L]`, each a permutation of the classes; None where
            `label_shift` is added. See `relabelled`.
        group: the true group of each client `[N]`, or None if unknown; used by metrics, never by a method.
        causes: for each cause by which the groups were planted (`rotation`, `labels`, `classes`, ...) the number of
            each client's pattern `[N]`; empty if unknown. Used like `group`, see `jaxfl.data.causes`.
        client_weights: weight of each client in averages by rows, in the place of its number of rows `[N]` float32, or
            None; a client of weight 0, or without rows, does not count.
        held_out: True for clients that are held out of training and served as newcomers `[N]`, or None.
        mean, std: the inputs become `(inputs - mean) / std`; scalars or one number per channel; None is no
            normalisation of floats.
        num_classes: L, the number of outputs of a network per label: classes, targets, or tokens.
        name: name of the data in plots and tables.
        group_names: one name per true group.
        cause_names: one name per pattern of each cause, in the order in which the causes were planted.
        class_names: one name per class, or empty.
        client_names: one name per client, the maker of its rows, or empty; for tables only.
        stragglers: share of a round's clients that train for fewer epochs, `[]` float32, or None, see
            `jaxfl.data.conditions`.
        attack: the attackers, or None.
        trigger: of attackers with a backdoor, or None.
        absent: True for held-out clients that are absent in this round, and not tested either `[N]`; or None.
        drift: new values of the clients' fields from some rounds on, see `jaxfl.data.drift`, or None. All other fields
            are those of the first rounds; `at` returns those of any round.
        rate: learning-rate factor of this round's local training, `[]` float32, or None; set by `jaxfl.scheduled`, no
            data set has one.
        fitted: whether the pool is scaled by statistics of these training rows, as a table is.
        sharded: whether each device has the rows of its own clients alone, see `jaxfl.data.windows`.
        filled: mean number of training rows per client as a share of `train.max_size`, rounded down to quarters; 1 if
            all clients have equally many rows in every round, 0 if unknown, see `in_programs`.
        validation: rows set apart from each client's training rows, or None, see `jaxfl.data.divide.set_apart`; no
            client trains on them, and their metrics are reported beside those of the test rows.
        colour: number of the colour of each client's images `[N]`, see `jaxfl.data.images.colour`, or None.
        class_rotation, class_colour: quarter turns and colour of the images of each class, per client `[N, L]`, or
            None; classes are those of the pool. They come before the client's own rotation and colour.
        stroke: 1 for clients whose strokes are thinner, 2 for thicker ones, else 0 `[N]`, or None.
        corruption: code of the corruption of each client's images `[N]`, see `jaxfl.data.views.corruptions`, 0 for
            none, or None. Clients with strokes or corruptions (but the inversion) have copies, see
            `jaxfl.data.views.copies`.
        origin: the pool row that each row is a copy of `[P]`, or None if there are no copies.
        nearest: whether tilted images have the nearest pixels instead of interpolated ones.
        white: pixel of full brightness, of colours and corruptions.
        noise_seed: seed of the noise of corruptions.
        widened: number of axes of a grey pool before copies gave it three channels; 0 if they did not.
        speeds: the clients' devices, or None; set by a run with a clock, no data set has them.
        trace: the clients' devices in the course of time, or None; set likewise, and `speeds` in each round by it.
        most_steps: most steps of each client's local training in this round `[N]` int32, or None; set by a deadline
            that takes partial work.
    """

    inputs: AnyArray = struct.field(metadata=SHARED)
    labels: AnyArray = struct.field(metadata=SHARED)
    train: Split
    test: Split
    rotation: AnyArray | None = struct.field(metadata=SEEN)
    tilt: AnyArray | None = struct.field(metadata=SEEN)
    label_shift: AnyArray | None = struct.field(metadata=SEEN)
    group: AnyArray | None = struct.field(metadata=KNOWN)
    held_out: AnyArray | None = struct.field(metadata=KNOWN)
    mean: AnyArray | None = struct.field(metadata=SHARED)
    std: AnyArray | None = struct.field(metadata=SHARED)
    num_classes: int = struct.field(pytree_node=False)
    name: str = struct.field(pytree_node=False, default="data")
    group_names: tuple[str, ...] = struct.field(pytree_node=False, default=())
    class_names: tuple[str, ...] = struct.field(pytree_node=False, default=())
    client_names: tuple[str, ...] = struct.field(pytree_node=False, default=())
    stragglers: AnyArray | None = struct.field(metadata=SHARED, default=None)
    attack: Attack | None = None
    trigger: Trigger | None = None
    rate: AnyArray | None = struct.field(metadata=SHARED, default=None)
    sharded: bool = struct.field(pytree_node=False, default=False)
    validation: Split | None = None
    absent: AnyArray | None = struct.field(metadata=KNOWN, default=None)
    drift: Drift | None = None
    filled: float = struct.field(pytree_node=False, default=0.0)
    fitted: bool = struct.field(pytree_node=False, default=False)
    label_map: AnyArray | None = struct.field(metadata=SHARED, default=None)
    causes: dict[str, AnyArray] = struct.field(metadata=KNOWN, default_factory=dict)
    cause_names: tuple[tuple[str, tuple[str, ...]], ...] = struct.field(pytree_node=False, default=())
    colour: AnyArray | None = struct.field(metadata=SEEN, default=None)
    class_rotation: AnyArray | None = struct.field(metadata=SEEN, default=None)
    class_colour: AnyArray | None = struct.field(metadata=SEEN, default=None)
    stroke: AnyArray | None = struct.field(metadata=SEEN, default=None)
    corruption: AnyArray | None = struct.field(metadata=SEEN, default=None)
    origin: AnyArray | None = struct.field(metadata=SHARED, default=None)
    nearest: bool = struct.field(pytree_node=False, default=False)
    white: int = struct.field(pytree_node=False, default=255)
    noise_seed: int = struct.field(pytree_node=False, default=0)
    widened: int = struct.field(pytree_node=False, default=0)
    client_weights: AnyArray | None = struct.field(metadata=KNOWN, default=None)
    speeds: Speeds | None = None
    trace: Trace | None = None
    most_steps: AnyArray | None = struct.field(metadata=KNOWN, default=None)

    def __repr__(self) -> str:
        """Returns one line of text without the examples."""
        inputs = f"{self.inputs.dtype}{list(self.inputs.shape)}"
        classes = kinds.class_count_phrase(self.kind, self.num_classes)
        groups = "" if self.group is None else f", {len(self.group_names) or len(np.unique(self.group))} groups"
        rows = ", ".join(f"{name} {split.rows.shape[0]} rows" for name, split in self.splits.items())
        return f"FederatedData({self.name!r}, {self.num_clients} clients, {classes}{groups}, inputs {inputs}, {rows})"

    @property
    def splits(self) -> dict[str, Split]:
        """Returns the splits by name: `train`, `test`, and `validation` if there are validation rows."""
        splits = {name: getattr(self, name) for name in SPLITS}
        return {name: split for name, split in splits.items() if split is not None}

    @property
    def num_clients(self) -> int:
        """Returns N."""
        return self.train.start.shape[0]

    @property
    def kind(self) -> kinds.LabelKind:
        """Returns the kind of the labels, named after their task."""
        return kinds.label_kind(self.labels)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Returns the shape of one example, as clients see it."""
        shape = self.inputs.shape[1:]
        return (*shape[:2], 3) if seen_images.is_coloured(self) else shape

    def at(self, round: int | Array) -> "FederatedData":
        """Returns the federation in a round, without `drift`; the federation itself if it does not drift; traceable.

        Args:
            round: round from 0, such as `state.round`, which is the next round.

        >>> from jaxfl.data import load
        >>> data = load("rotated-digits", num_clients=4, rows_per_client=20, drift="rotate", drift_round=5)
        >>> data.at(4).rotation.tolist(), data.at(5).rotation.tolist()
        ([0, 1, 2, 3], [1, 2, 3, 0])
        """
        now, drift = dataclasses.replace(self, drift=None), self.drift
        if drift is None:
            return self
        known = isinstance(round, int) and not isinstance(drift.round, Tracer)
        stage: Any = (np if known else jnp).searchsorted(drift.round, round, side="right")  # 0 before the first
        if known and stage == 0:
            return now
        for name, metadata in array_fields(drift):
            stages = get_field(drift, name)
            if metadata["per_client"] and stages is not None:
                later = stages[:, stage - 1] if known else jnp.take(stages, jnp.maximum(stage - 1, 0), axis=1)
                later = later if known else jnp.where(stage > 0, later, get_field(now, name))
                now = replace_field(now, name, later)
        return now

    @property
    def drift_rounds(self) -> tuple[int, ...]:
        """Returns the first round of each stage of the drift, in increasing order; none without a drift."""
        return () if self.drift is None else tuple(np.asarray(self.drift.round).tolist())

    @property
    def drifts_at(self) -> int | None:
        """Returns the first round of the first stage of the drift; None without a drift."""
        return next(iter(self.drift_rounds), None)

    @property
    def returns_at(self) -> int | None:
        """Returns the first round from which all fields are again as they were before the drift; None without one."""
        if self.drift is None:
            return None
        names = [name for name, about in array_fields(self.drift) if about["per_client"]]
        pairs = [(get_field(self, name), get_field(self.drift, name)) for name in names]
        known = [(np.asarray(now)[:, None], np.asarray(stages)) for now, stages in pairs if stages is not None]
        same = np.all([(now == stages).all((0, *range(2, stages.ndim))) for now, stages in known], axis=0)
        return next((round for round, one in zip(self.drift_rounds, same.tolist(), strict=True) if one), None)

    @property
    def phases(self) -> "list[FederatedData]":
        """Returns the federations before the drift and in each of its stages; without one, the federation itself."""
        return [self] if self.drift is None else [self.at(round) for round in (0, *self.drift_rounds)]

    def batch(self, split: Split, client: Array, positions: Array) -> Batch:
        """Returns the batch of a client's rows at `positions [B]` of its range in a split; traceable.

        Positions at or beyond the client's size are padding: they are masked, and contain a valid row.
        """
        mask = positions < split.size[client]
        rows = split.rows if len(split.rows) else jnp.zeros(1, jnp.int32)  # an empty split: padding only
        row = rows[split.start[client] + jnp.where(mask, positions, 0)]
        x, y = self.inputs[row], self.labels[row]
        x = seen_images.as_seen(self, x, y, client)
        marked = None
        if self.trigger is not None and split.triggered is not None:
            every = split.triggered[client]
            marked = (every > 0) & (positions % jnp.maximum(every, 1) == 0)
            x = jnp.where(tree.along(marked, x), self.trigger.on(x), x)
        if self.mean is not None and self.std is not None:
            x = (x.astype(self.std.dtype) - self.mean) / self.std
        y = self.relabelled(y, client)
        if split.flipped is not None:
            y = jnp.where(split.flipped[client], self.num_classes - 1 - y, y)
        if marked is not None and self.trigger is not None:
            y = jnp.where(marked, self.trigger.target, y)
        return Batch(x, y, mask)

    def relabelled(self, labels: Any, client: Any) -> Any:
        """Returns classes as clients see them, by their label shifts or label maps; traceable.

        Args:
            labels: classes of the pool, of any shape.
            client: the client that sees them, a number; or numbers that broadcast to the labels.

        >>> from jaxfl.data import load
        >>> load("shifted-digits", num_clients=4).relabelled(np.array([0, 9]), 1).tolist()
        [3, 2]
        """
        if self.label_shift is None:
            return labels
        if self.label_map is None:
            return (labels + self.label_shift[client]) % self.num_classes
        return self.label_map[self.label_shift[client], labels]

    def label_maps(self) -> np.ndarray:
        """Returns what each client calls each class `[N, L]`.

        >>> from jaxfl.data import load
        >>> load("shifted-digits", num_clients=4, shifts=(0, 1, 2, 3)).label_maps()[:, :3].tolist()
        [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]
        """
        classes, clients = np.arange(self.num_classes)[None, :], np.arange(self.num_clients)[:, None]
        return np.broadcast_to(self.relabelled(classes, clients), (len(clients), self.num_classes))

    def per_client(self, split: str | None = None) -> dict[str, AnyArray]:
        """Returns the arrays with a row for each client `[N]` by name, without those that are None.

        Args:
            split: `"train"`, `"test"` or `"validation"`: only arrays on which batches of this split depend.

        >>> from jaxfl.data import synthetic
        >>> data = synthetic.clustered_linear(4)
        >>> list(data.per_client())
        ['train.start', 'train.size', 'test.start', 'test.size', 'group']
        >>> list(data.per_client("test"))
        ['test.start', 'test.size']
        """
        arrays = {}
        for name, metadata in array_fields(self):
            value = get_field(self, name)
            wanted = split is None or (metadata["seen"] and name.split(".")[0] not in {*SPLITS} - {split})
            if metadata["per_client"] and value is not None and wanted:
                arrays[name] = value
        return arrays

    def subset(self, ids: Sequence[int] | np.ndarray) -> "FederatedData":
        """Returns the federation of some clients in the given order; pool and rows are unchanged.

        Args:
            ids: clients `[M]`.

        Raises:
            ValueError: an id is not from 0 to N - 1, or `ids` are not whole numbers, such as a mask.

        >>> from jaxfl.data import synthetic
        >>> data = synthetic.clustered_linear(4).subset([3, 1])
        >>> data.num_clients, data.group.tolist()
        (2, [1, 1])
        """
        check_numbers("ids", np.asarray(ids))
        subset, ids = self, np.asarray(ids, int)
        outside = ids[(ids < 0) | (ids >= self.num_clients)]
        if len(outside):
            raise ValueError(f"ids must be client numbers from 0 to {self.num_clients - 1}, got {outside[0]}.")
        for name, values in self.per_client().items():
            subset = replace_field(subset, name, values[ids])
        for name in subset.splits:
            sizes = [phase.splits[name].size for phase in subset.phases]
            subset = replace_field(subset, f"{name}.max_size", int(np.max(sizes, initial=0)))
        return replace_field(subset, "client_names", tuple(self.client_names[i] for i in ids if self.client_names))

    def in_programs(self) -> "FederatedData":
        """Returns the federation as an argument of the compiled programs of a run.

        It has no client names and no other seed of noise, which must not cause a compilation, and no `origin`, which no
        round reads. `filled` describes how similar the numbers of training rows are, see `client.steps.rows_of` and
        `client.training`; coarsely, for the same reason.
        """
        shares = [np.mean(now.train.size) / max(self.train.max_size, 1) for now in self.phases]
        return dataclasses.replace(
            self, client_names=(), origin=None, noise_seed=0, filled=math.floor(4 * min(shares)) / 4
        )

    def on_device(self, mesh: jax.sharding.Mesh | None = None) -> "FederatedData":
        """Returns the federation with its arrays on the device or on all devices of a mesh, without needless copies."""
        everywhere = None if mesh is None else jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        return tree.placed(self, everywhere)
