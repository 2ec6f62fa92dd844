"""Examples of a federation as images: of every group, and of clients in every stage of a drift."""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from jaxfl.data.clients import FederatedData, Split
from jaxfl.data.describe import label_counts
from jaxfl.plots import style
from jaxfl.random import host_rng

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_ROWS = 60  # of more groups, the first ones are drawn
MAX_CLIENT_ROWS = 8  # clients that are drawn where no groups are known
MAX_STAGES, PER_STAGE = 6, 3  # stages of a drift that are drawn, and examples of a client in each
APART, BETWEEN = 0.06, 0.14  # inches between images, and added between classes


def montage(
    data: FederatedData,
    *,
    cluster: Sequence[int] | np.ndarray | None = None,
    classes: Sequence[int | str] | None = None,
    per_group: int | None = None,
    seed: int = 0,
) -> "Figure":
    """Draws examples of every true group as its clients see them (rotated, relabelled), each from another client.

    Where no groups are known, a row is a client. With `cluster`, a row is a cluster of a run; with `classes`, the same
    classes are drawn in every row, as in the case study of FeSEM (World Wide Web 2022, figure 5), whose clusters are of
    writers:

        plots.montage(data, cluster=result.evaluation.cluster, classes=["3", "5", "8"])

    Args:
        data: of images `[H, W]`, `[H, W, 1]` or `[H, W, 3]`.
        cluster: slots `[N]`, -1 for none, that replace the true groups; numbered as in `clusters(result)`.
        classes: the classes to draw, by number or name, as the clients see them; a row then has equally many examples
            of each, one class after the other.
        per_group: examples of a row; about 12 by default, and fewer where there are many rows.
        seed: of the choice of clients and examples.

    Raises:
        ValueError: the inputs are not images, `per_group` is not positive, a class is unknown, or `cluster` is not of
            these clients.
    """
    shape = data.input_shape
    if not is_image(shape):
        raise ValueError(
            f"montage needs images [H, W], [H, W, 1] or [H, W, 3], got inputs of shape {shape}; labels draws classes."
        )
    if per_group is not None and per_group < 1:
        raise ValueError(f"per_group must be at least 1, got {per_group}.")
    wanted = None if classes is None else _class_numbers(data, classes)
    names, members = _group_rows(data, seed) if cluster is None else _cluster_rows(data, np.asarray(cluster))
    blocks = 1 if len(names) <= MAX_CLIENT_ROWS else 2 if len(names) <= 24 else 3  # side by side
    per_row = each = per_group or 12 // blocks
    picked: list[list[tuple[int, int] | None]]  # [rows] of [(client, position), ...], None for a gap
    if wanted is None:
        picked = [[*_sample_rows(data, clients, per_row, seed)] for clients in members]
    else:
        each = max(1, per_row // len(wanted))  # of a class
        per_row = each * len(wanted)
        picked = [_sample_rows_by_class(data, clients, wanted, each, seed) for clients in members]
    drawn = [one for row in picked for one in row if one is not None]
    if not drawn:
        kind, of_classes = "groups" if cluster is None else "clusters", "" if wanted is None else " of these classes"
        raise ValueError(f"montage needs examples, and no client of the {kind} drawn has a training row{of_classes}.")
    images, words_below = _render_examples(data, drawn)

    lines = math.ceil(len(names) / blocks)
    wide = min(0.8, max(0.4, (8.6 if blocks < 3 else 6.6) / (blocks * per_row)))  # inches
    high = wide * shape[0] / shape[1]
    words, left = 0.17, 0.2 + 0.075 * max(len(line) for name in names for line in name.split("\n"))
    across = left + per_row * (wide + APART) + (per_row // each - 1) * BETWEEN
    size = (blocks * across + 0.2, lines * (high + words + 0.04) + 0.55)
    figure = style.figure(size, None)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, size[0]), ylim=(size[1], 0))
    axes.axis("off")
    place = 0
    for row, (name, chosen) in enumerate(zip(names, picked, strict=True)):
        begin = row // lines * across + left
        y = 0.5 + row % lines * (high + words + 0.04)
        axes.text(begin - 0.1, y + high / 2, name, fontsize=8, ha="right", va="center", linespacing=1.3)
        for column, one in enumerate(chosen):
            if one is None:
                continue
            x = begin + column * (wide + APART) + column // each * BETWEEN
            axes.imshow(images[place], extent=(x, x + wide, y + high, y), cmap="gray", vmin=0, vmax=1, aspect="auto")
            below = style.plain(words_below[place], max(2, int(wide / 0.062)))
            axes.text(x + wide / 2, y + high + 0.02, below, fontsize=7, ha="center", va="top")
            place += 1
    axes.set(xlim=(0, size[0]), ylim=(size[1], 0))
    head = f"{style.plain(data.name)}: {_montage_title(data, names, cluster)}"
    figure.text(0.2 / size[0], 1 - 0.3 / size[1], head, fontsize=10)
    return figure


def stages(data: FederatedData, *, seed: int = 0) -> "Figure":
    """Draws examples of some clients before a drift and in each of its stages, as they see them.

    A row is a client whose data change. Of more than six stages evenly spaced ones are drawn, with the first and the
    last.

    Args:
        data: of images `[H, W]`, `[H, W, 1]` or `[H, W, 3]`, whose clients' data change.
        seed: of the choice of clients and examples.

    Raises:
        ValueError: the inputs are not images, or no client's data change.
    """
    if not is_image(data.input_shape):
        raise ValueError(f"stages needs images [H, W], [H, W, 1] or [H, W, 3], got shape {data.input_shape}.")
    if not len(changed := changing_clients(data)):
        raise ValueError(f"stages needs data whose rows or views change by a drift, got {data.name!r}.")
    random = host_rng(seed, "stages")
    clients = np.sort(random.permutation(changed)[:MAX_CLIENT_ROWS])
    phases, begins = data.phases, (0, *data.drift_rounds)
    shown = np.unique(np.linspace(0, len(phases) - 1, min(len(phases), MAX_STAGES)).round().astype(int)).tolist()
    fewest = np.min([np.asarray(phases[stage].train.size) for stage in shown], axis=0)
    pairs = [(int(one), place) for one in clients for place in random.permutation(fewest[one])[:PER_STAGE].tolist()]
    wide = min(0.6, 9.0 / (len(shown) * PER_STAGE))  # inches
    high, words, left = wide * data.input_shape[0] / data.input_shape[1], 0.17, 1.0
    across = PER_STAGE * (wide + APART) + BETWEEN
    size = (left + len(shown) * across + 0.1, len(clients) * (high + words + 0.04) + 0.75)
    figure = style.figure(size, None)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    for column, stage in enumerate(shown):
        images, words_below = _render_examples(phases[stage], pairs)
        x0 = left + column * across
        axes.text(x0, 0.66, f"round {begins[stage]}" if stage else "before", fontsize=8, va="bottom")
        for place, (client, _) in enumerate(pairs):
            row, number = clients.tolist().index(client), place - [one for one, _ in pairs].index(client)
            x, y = x0 + number * (wide + APART), 0.7 + row * (high + words + 0.04)
            axes.imshow(images[place], extent=(x, x + wide, y + high, y), cmap="gray", vmin=0, vmax=1, aspect="auto")
            below = style.plain(words_below[place], max(2, int(wide / 0.062)))
            axes.text(x + wide / 2, y + high + 0.02, below, fontsize=7, ha="center", va="top")
            if not column and not number:
                axes.text(left - 0.1, y + high / 2, f"client {client}", fontsize=8, ha="right", va="center")
    axes.set(xlim=(0, size[0]), ylim=(size[1], 0))
    some = f", {len(shown)} of {len(phases)} stages" if len(shown) < len(phases) else ""
    head = f"{style.plain(data.name)}: training examples of {len(clients)} of {len(changed)} clients that change{some}"
    figure.text(0.2 / size[0], 1 - 0.25 / size[1], head, fontsize=10)
    return figure


def changing_clients(data: FederatedData) -> np.ndarray:
    """Returns the clients with training rows whose rows or views change by a drift, in order.

    >>> from jaxfl.data import load
    >>> len(changing_clients(load("rotated-digits", num_clients=8, drift="rotate", drift_round=3, drift_share=0.5)))
    4
    """
    first, changed = data.phases[0].per_client("train"), np.zeros(data.num_clients, bool)
    for now in data.phases[1:]:
        for name, values in now.per_client("train").items():
            same = np.asarray(values) == np.asarray(first[name])
            changed |= ~same.reshape(data.num_clients, -1).all(1)
    return np.flatnonzero(changed & (np.min([np.asarray(now.train.size) for now in data.phases], axis=0) > 0))


def is_image(shape: Sequence[int]) -> bool:
    """Returns whether inputs of this shape can be drawn.

    >>> is_image((28, 28)), is_image((32, 32, 3)), is_image((64,))
    (True, True, False)
    """
    return len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3))


def _group_rows(data: FederatedData, seed: int) -> tuple[list[str], list[np.ndarray]]:
    """Returns name and clients with training rows of each row of a montage: a group, or one client."""
    sizes = np.asarray(data.train.size)
    some = np.flatnonzero(sizes)
    if data.group is None:
        own = np.sort(host_rng(seed, "montage").permutation(some)[:MAX_CLIENT_ROWS])
        return [f"client {client}\n{style.count_phrase(int(sizes[client]), 'row')}" for client in own], [*own[:, None]]
    group = np.asarray(data.group)
    groups = np.unique(group)[:MAX_ROWS]
    names = zip(style.group_names(data, groups), groups, strict=True)
    return (
        [f"{name}\n{style.count_phrase(int((group == one).sum()), 'client')}" for name, one in names],
        [some[group[some] == one] for one in groups],
    )


def _cluster_rows(data: FederatedData, cluster: np.ndarray) -> tuple[list[str], list[np.ndarray]]:
    """Returns name and clients with training rows of each cluster.

    Raises:
        ValueError: `cluster` is not one slot for each client, or all are -1.
    """
    if cluster.shape != (data.num_clients,) or not np.issubdtype(cluster.dtype, np.integer):
        raise ValueError(
            f"cluster must be a slot for each of the {data.num_clients} clients, got {cluster.dtype} of shape "
            f"{cluster.shape}; result.evaluation.cluster is one."
        )
    order = style.cluster_order(cluster, data.group)[:MAX_ROWS]
    if not order:
        raise ValueError("cluster must have a client with a cluster, got -1 for all; montage(data) draws true groups.")
    some = np.asarray(data.train.size) > 0
    sizes = [style.count_phrase(int((cluster == one).sum()), "client") for one in order]
    names = [f"cluster {one}\n{size}" for one, size in zip(order, sizes, strict=True)]
    return names, [np.flatnonzero(some & (cluster == one)) for one in order]


def _montage_title(data: FederatedData, names: Sequence[str], cluster: Sequence[int] | np.ndarray | None) -> str:
    """Returns what the examples are of."""
    if cluster is None and data.group is None:
        return f"training examples of {len(names)} of {style.count_phrase(data.num_clients, 'client')}"
    slots, kind = (data.group, "true group") if cluster is None else (cluster, "cluster")
    rows = len(np.unique(np.asarray(slots)[np.asarray(slots) >= 0]))
    some = f", {len(names)} of {style.count_phrase(rows, kind.split()[-1])}" if len(names) < rows else ""
    return f"training examples by {kind}, as the clients see them{some}"


def _class_numbers(data: FederatedData, classes: Sequence[int | str]) -> list[int]:
    """Returns the numbers of classes given by number or name, each once.

    Raises:
        ValueError: there are none, or one is unknown.
    """
    names = dict(enumerate(data.class_names))
    names = [names.get(number, str(number)) for number in range(data.num_classes)]
    numbers: dict[int | str, int] = {name: number for number, name in enumerate(names)}
    numbers |= {number: number for number in range(len(names))}
    for one in classes:
        if one not in numbers:
            known = ", ".join(map(repr, names[:10])) + (", ..." if len(names) > 10 else "")
            raise ValueError(f"classes must be numbers below {data.num_classes} or names of {known}; got {one!r}.")
    if not len(classes):
        raise ValueError("classes must name at least one class, got none; None draws examples of all.")
    return list(dict.fromkeys(numbers[one] for one in classes))


def _sample_rows_by_class(
    data: FederatedData, clients: np.ndarray, classes: Sequence[int], each: int, seed: int
) -> list[tuple[int, int] | None]:
    """Returns clients and positions of `each` rows of every class; None where there are fewer.

    The rows are of different clients where possible; clients with rows of all classes come first.
    """
    if not len(clients):
        return [None] * (each * len(classes))
    random = host_rng(seed, "montage", "classes", int(clients[0]))
    clients = random.permutation(clients)
    has = label_counts(data)[clients][:, classes] > 0  # [clients, classes]
    labels, train = np.asarray(data.labels), jax.tree.map(np.asarray, data.train)

    def seen(client: int) -> np.ndarray:
        own = np.asarray(data.relabelled(labels[train.rows[train.start[client] :][: train.size[client]]], client))
        return data.num_classes - 1 - own if train.flipped is not None and train.flipped[client] else own

    order = np.argsort(-has.sum(1), kind="stable")
    picked: list[tuple[int, int] | None] = []
    for place, one in enumerate(classes):
        able = [int(client) for client in clients[order[has[order, place]]][:each]]
        rows = [random.permutation(np.flatnonzero(seen(client) == one))[:each].tolist() for client in able]
        pairs = list(zip(able, rows, strict=True))
        turns = [(client, own[turn]) for turn in range(each) for client, own in pairs if turn < len(own)]
        picked += [*turns[:each], *[None] * (each - len(turns))]
    return picked


def _sample_rows(data: FederatedData, clients: np.ndarray, most: int, seed: int) -> list[tuple[int, int]]:
    """Returns clients and positions of up to `most` of their training rows, taken in turn from all clients."""
    if not len(clients):
        return []
    random = host_rng(seed, "montage", int(clients[0]))
    chosen = random.permutation(clients)[:most].tolist()
    sizes = np.asarray(data.train.size)
    orders = [random.permutation(sizes[client])[:most].tolist() for client in chosen]
    rounds, pairs = max(map(len, orders)), list(zip(chosen, orders, strict=True))
    turns = [(client, own[turn]) for turn in range(rounds) for client, own in pairs if turn < len(own)]
    return turns[:most]


def _render_examples(data: FederatedData, chosen: Sequence[tuple[int, int]]) -> tuple[np.ndarray, list[str]]:
    """Returns images `[M, H, W]` or `[M, H, W, 3]` from 0 to 1 and their labels, as the clients see them."""
    clients, positions = (np.array(column, np.int32) for column in zip(*chosen, strict=True))
    rows = np.asarray(data.train.rows)[np.asarray(data.train.start)[clients] + positions]
    # A small federation of these rows applies the clients' transformations to them.
    order = np.argsort(clients, kind="stable")
    start, size = (
        np.searchsorted(clients[order], np.arange(data.num_clients)),
        np.bincount(clients, minlength=data.num_clients),
    )
    flipped = data.train.flipped
    split = Split(
        np.arange(len(rows), dtype=np.int32), start.astype(np.int32), size.astype(np.int32), int(size.max()), flipped
    )
    small = dataclasses.replace(
        data, inputs=data.inputs[rows[order]], labels=data.labels[rows[order]], origin=None, train=split, test=split
    )
    places = np.empty(len(rows), np.int32)
    places[order] = np.arange(len(rows)) - start[clients[order]]

    def see(small: FederatedData, client: jax.Array, place: jax.Array) -> tuple[jax.Array, jax.Array]:
        batch = small.batch(small.train, client, place[None])
        return batch.x[0], batch.y[0]

    x, y = map(np.asarray, jax.jit(jax.vmap(see, (None, 0, 0)))(small, clients, places))
    if data.mean is not None and data.std is not None:
        x = x * np.asarray(data.std) + np.asarray(data.mean)
    x = x[..., 0] if x.shape[-1] == 1 and x.ndim == 4 else x
    pixels = data.inputs.dtype == np.uint8
    low = 0.0 if pixels else x.min()
    high = float(data.white) if pixels and x.ndim == 4 else x.max()
    return np.clip((x - low) / max(high - low, 1e-9), 0, 1), [_label_text(data, one) for one in y]


def _label_text(data: FederatedData, label: np.ndarray) -> str:
    """Returns the label of a row as text: its class, or its number; empty for several labels."""
    if data.kind == "classification":
        return dict(enumerate(data.class_names)).get(int(label), str(int(label)))
    return f"{float(label):.3g}" if label.ndim == 0 else ""
