"""The rows of all clients, packed: one pool of examples and, per client, the rows that are its own.

A federation is a pool `inputs [P, ...]`, `labels [P]` and two splits. A split lists, back to back, the pool rows of
every client: client `i` owns `rows[start[i] : start[i] + size[i]]`. Nothing is padded, so a federation of log-normal
sizes costs its rows and no more; clients may share a range (one official test set for a whole group) or pool rows (four
rotations of MNIST hold one MNIST). Pixels stay uint8 on the device; rotation, label shift and normalisation are applied
to the batch.

Every array says whether it has a row for each client: `SEEN` ones decide what the client's batches look like, `KNOWN`
ones do not, and `SHARED` ones belong to all. What goes over the lists of clients (`subset`, the checks, the evaluation)
asks `per_client` for them: a new field is declared here and nowhere else.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxfl.data import images
from jaxfl.typing import AnyArray, Array

SHARED: dict[str, Any] = {"per_client": False, "seen": False}
SEEN: dict[str, Any] = {"per_client": True, "seen": True}  # [N], part of the client's batches
KNOWN: dict[str, Any] = {"per_client": True, "seen": False}  # [N], said of the client: no batch depends on it


class Batch(NamedTuple):
    """Rows ready for a model."""

    x: Array  # [B, ...] float
    y: Array  # [B] int32
    mask: Array  # [B] bool, False on padding


@struct.dataclass
class Split:
    """Which pool rows each client owns: `rows[start[i] : start[i] + size[i]]`."""

    rows: AnyArray = struct.field(metadata=SHARED)  # [T] int32, into the pool
    start: AnyArray = struct.field(metadata=SEEN)  # [N] int32
    size: AnyArray = struct.field(metadata=SEEN)  # [N] int32
    max_size: int = struct.field(pytree_node=False)
    # [N] bool, clients whose label y is read as L - 1 - y; None for nobody
    flipped: AnyArray | None = struct.field(metadata=SEEN, default=None)

    @classmethod
    def pack(cls, parts: Sequence[np.ndarray]) -> "Split":
        """Packs one index array per client.

        >>> Split.pack([np.array([5, 6]), np.array([], int), np.array([7])]).start.tolist()
        [0, 2, 2]
        """
        sizes = np.array([len(part) for part in parts], np.int32)
        return cls(
            rows=np.concatenate([np.asarray(part, np.int32) for part in parts] or [np.zeros(0, np.int32)]),
            start=(np.cumsum(sizes) - sizes).astype(np.int32),
            size=sizes,
            max_size=int(sizes.max(initial=0)),
        )

    @classmethod
    def shared(cls, parts: Sequence[np.ndarray], member: np.ndarray) -> "Split":
        """Packs a few index arrays that clients share: client `i` gets `parts[member[i]]`."""
        packed = cls.pack(parts)
        return dataclasses.replace(packed, start=packed.start[member], size=packed.size[member])


@struct.dataclass
class Attack:
    """Who works against the others, and how; made by `jaxfl.data.conditions.attack`."""

    attacker: AnyArray = struct.field(metadata=KNOWN)  # [N] bool
    scale: AnyArray = struct.field(metadata=SHARED)  # [] float32
    seed: AnyArray = struct.field(metadata=SHARED)  # [] uint32, of noise that no run's key is at hand for
    kind: str = struct.field(pytree_node=False)


@struct.dataclass
class FederatedData:
    """All clients' examples, and what is known about the clients.

    Build one with `federate`, which checks it. The arrays may live in host memory (NumPy) until a run puts them on the
    device.

    Attributes:
        inputs: the pool of examples `[P, ...]`, uint8 pixels or floats.
        labels: classes `[P]`, int32.
        train, test: each client's rows.
        rotation: quarter turns, counter-clockwise, per client `[N]`, or None; exact.
        tilt: degrees, counter-clockwise, on top of the quarter turns, per client `[N]` float, or None; interpolated.
        label_shift: added to every label modulo the number of classes, per client `[N]`, or None.
        group: the true group of each client `[N]`, or None where it is unknown; metrics only, never shown to a method.
        held_out: True for clients kept out of training and served as unseen ones `[N]`, or None.
        mean, std: the inputs become `(inputs - mean) / std`; scalars or one number per channel; None leaves floats
            alone.
        num_classes: L.
        name: what plots and tables call the data.
        group_names: one name per true group.
        class_names: one name per class, or empty.
        stragglers: share of a round's clients that train for fewer epochs, `[]` float32, or None, see
            `jaxfl.data.conditions`.
        attack: who attacks, or None.
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
    stragglers: AnyArray | None = struct.field(metadata=SHARED, default=None)
    attack: Attack | None = None

    @property
    def num_clients(self) -> int:
        """Returns N."""
        return self.train.start.shape[0]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Returns the shape of one example."""
        return self.inputs.shape[1:]

    def batch(self, split: Split, client: Array, positions: Array) -> Batch:
        """Returns a client's rows at `positions [B]` within its split, ready for a model; traceable.

        Positions at or beyond the client's size are padding: masked, and filled with some valid row.
        """
        mask = positions < split.size[client]
        row = split.rows[split.start[client] + jnp.where(mask, positions, 0)]
        x, y = self.inputs[row], self.labels[row]
        if self.rotation is not None:
            x = images.rotate(x, self.rotation[client])
        if self.tilt is not None:
            x = images.tilt(x, self.tilt[client])
        if self.mean is not None and self.std is not None:
            x = (x.astype(self.std.dtype) - self.mean) / self.std
        if self.label_shift is not None:
            y = (y + self.label_shift[client]) % self.num_classes
        if split.flipped is not None:
            y = jnp.where(split.flipped[client], self.num_classes - 1 - y, y)
        return Batch(x, y, mask)

    def per_client(self, split: str | None = None) -> dict[str, AnyArray]:
        """Returns the arrays that have a row for each client `[N]`, by name; those that are None are left out.

        Args:
            split: `"train"` or `"test"`: only what the batches of this split depend on.

        >>> from jaxfl.data import synthetic
        >>> data = synthetic.clustered_linear(4)
        >>> list(data.per_client())
        ['train.start', 'train.size', 'test.start', 'test.size', 'group']
        >>> list(data.per_client("test"))
        ['test.start', 'test.size']
        """
        found = {}
        for name, metadata in array_fields(self):
            value = functools.reduce(getattr, name.split("."), self)
            wanted = split is None or (metadata["seen"] and name.split(".")[0] not in {"train", "test"} - {split})
            if metadata["per_client"] and value is not None and wanted:
                found[name] = value
        return found

    def subset(self, ids: Sequence[int] | np.ndarray) -> "FederatedData":
        """Returns the federation of these clients alone, in this order; pool and rows stay as they are.

        Args:
            ids: clients `[M]`.

        Raises:
            ValueError: there is no such client.

        >>> from jaxfl.data import synthetic
        >>> data = synthetic.clustered_linear(4).subset([3, 1])
        >>> data.num_clients, data.group.tolist()
        (2, [1, 1])
        """
        few, ids = self, np.asarray(ids, int)
        outside = ids[(ids < 0) | (ids >= self.num_clients)]
        if len(outside):
            raise ValueError(f"ids must be clients from 0 to {self.num_clients - 1}, got {outside[0]}.")
        for name, values in self.per_client().items():
            few = _replaced(few, name, values[ids])
        for split in ("train", "test"):
            few = _replaced(few, f"{split}.max_size", int(np.max(getattr(few, split).size, initial=0)))
        return few

    def on_device(self) -> "FederatedData":
        """Returns the federation with its arrays on the device; nothing is copied if they are there."""
        return jax.device_put(self)


def array_fields(part: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields name and metadata of the arrays that a federation, split or attack is made of; those of its parts as well.

    >>> from jaxfl.data import synthetic
    >>> [name for name, _ in array_fields(synthetic.clustered_linear(4).train)]
    ['rows', 'start', 'size', 'flipped']
    """
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if dataclasses.is_dataclass(value):
            yield from ((f"{field.name}.{name}", metadata) for name, metadata in array_fields(value))
        elif "per_client" in field.metadata:
            yield field.name, field.metadata


def _replaced(part: Any, name: str, value: Any) -> Any:
    """Returns a federation, or a part of one, with one field replaced; `name` may lead through parts (`test.size`)."""
    first, _, rest = name.partition(".")
    return dataclasses.replace(part, **{first: _replaced(getattr(part, first), rest, value) if rest else value})


def federate(
    inputs: np.ndarray,
    labels: np.ndarray,
    train: Sequence[np.ndarray] | Split,
    test: Sequence[np.ndarray] | Split,
    *,
    num_classes: int,
    rotation: np.ndarray | None = None,
    tilt: np.ndarray | None = None,
    label_shift: np.ndarray | None = None,
    group: np.ndarray | None = None,
    held_out: np.ndarray | None = None,
    mean: float | np.ndarray | None = None,
    std: float | np.ndarray | None = None,
    name: str = "data",
    group_names: Sequence[str] = (),
    class_names: Sequence[str] = (),
) -> FederatedData:
    """Builds a federation from a pool of examples and one index array per client, and checks it.

    Args:
        inputs: `[P, ...]`, uint8 (then `mean` and `std` are needed, 0 and 255 if not given) or float.
        labels: `[P]` ints in `[0, num_classes)`.
        train: pool rows of each client, N index arrays (or a packed `Split`); an empty array is a client without rows.
        test: the same for the test rows.
        num_classes: L.
        rotation, tilt, label_shift, group, held_out: one value per client `[N]`, see `FederatedData`.
        mean, std: normalisation, in the units of `inputs`.
        name, group_names, class_names: for plots and tables.

    Raises:
        ValueError: the shapes disagree, labels are outside the classes, an input is NaN or infinite, a row index is
            outside the pool, or images that a rotation turns are not square.

    >>> data = federate(np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1]), [np.array([0, 1]), np.array([2])],
    ...                 [np.array([3]), np.array([3])], num_classes=2)
    >>> data.num_clients, data.train.size.tolist()
    (2, [2, 1])
    """
    inputs, labels = np.asarray(inputs), np.asarray(labels)
    train = train if isinstance(train, Split) else Split.pack(train)
    test = test if isinstance(test, Split) else Split.pack(test)
    if inputs.dtype == np.uint8:
        mean, std = (0.0 if mean is None else mean), (255.0 if std is None else std)
    elif inputs.dtype not in (np.float32, np.float64):
        raise ValueError(
            f"inputs must be uint8, float32 or float64, got {inputs.dtype}; convert them with inputs.astype."
        )
    _check_pool(inputs, labels, num_classes)
    if rotation is not None or tilt is not None:
        check_square(inputs)
    dtype = np.float32 if inputs.dtype == np.uint8 else inputs.dtype

    def per_channel(value: float | np.ndarray | None) -> np.ndarray | None:
        value = None if value is None else np.asarray(value, dtype)
        # [1, ..., channels]: the same rank as a batch, so that nothing is promoted silently
        return value if value is None or value.ndim == 0 else value.reshape((1,) * (inputs.ndim - 1) + (-1,))

    def integers(value: np.ndarray | None) -> np.ndarray | None:
        return None if value is None else np.asarray(value, np.int32)

    data = FederatedData(
        inputs=inputs,
        labels=labels.astype(np.int32),
        train=train,
        test=test,
        rotation=None if rotation is None else np.asarray(rotation, np.int32) % 4,
        tilt=None if tilt is None else np.asarray(tilt, dtype),
        label_shift=integers(label_shift),
        group=integers(group),
        held_out=None if held_out is None else np.asarray(held_out, bool),
        mean=per_channel(mean),
        std=per_channel(std),
        num_classes=num_classes,
        name=name,
        group_names=tuple(group_names),
        class_names=tuple(class_names),
    )
    _check_clients(data)
    return data


def check_square(inputs: AnyArray) -> None:
    """Raises if the inputs are not images that can be rotated."""
    if inputs.ndim < 3 or inputs.shape[1] != inputs.shape[2]:
        raise ValueError(
            f"rotation needs square images [P, H, H, ...], got inputs of shape {inputs.shape}; crop or pad them."
        )


def _check_pool(inputs: np.ndarray, labels: np.ndarray, num_classes: int) -> None:
    """Raises if the pool cannot be learned from."""
    if labels.shape != (len(inputs),):
        raise ValueError(f"labels must be [{len(inputs)}], one per row of inputs, got shape {labels.shape}.")
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"labels must be integers, got {labels.dtype}; convert them with labels.astype(int).")
    if len(labels) and not (0 <= labels.min() and labels.max() < num_classes):
        row = int(np.argmax((labels < 0) | (labels >= num_classes)))
        raise ValueError(
            f"labels must be in 0..{num_classes - 1} (num_classes={num_classes}), got {labels[row]} in row {row}; "
            "renumber the labels or raise num_classes."
        )
    if inputs.dtype != np.uint8 and not np.isfinite(inputs).all():
        row = int(np.argmax(~np.isfinite(inputs.reshape(len(inputs), -1)).all(1)))
        raise ValueError(f"inputs must be finite, got NaN or infinity in row {row}; drop the row or fill its values.")


def _check_clients(data: FederatedData) -> None:
    """Raises if a list of clients is too short or too long, or a client's row is not in the pool."""
    for name, values in data.per_client().items():
        if len(values) != data.num_clients:
            raise ValueError(
                f"{name.removesuffix('.start')} must have one entry for each of the {data.num_clients} clients of "
                f"train, got {len(values)}."
            )
    for name, split in (("train", data.train), ("test", data.test)):
        rows, pool = split.rows, len(data.inputs)
        if len(rows) and not (0 <= rows.min() and rows.max() < pool):
            worst = rows.min() if rows.min() < 0 else rows.max()
            raise ValueError(f"{name} must index the {pool} rows of inputs, got row {worst}; index from 0.")
