"""Federations with the rows of official codes: `partition.exact` with each code's views and normalisation.

>>> from jaxfl.data import load
>>> data = load("official-digits", code="pfllib-pathological")
>>> data.num_clients, data.group.tolist()[:8]
(20, [0, 0, 0, 0, 1, 1, 1, 1])
"""

import dataclasses
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import numpy as np

from jaxfl.data.building import check_pixels, check_square, federate, white_level
from jaxfl.data.clients import FederatedData, Split
from jaxfl.data.labels import check_classes
from jaxfl.data.partition import exact
from jaxfl.data.partition.exact import COMPARATIVE_SWAPS, ExactSplit
from jaxfl.data.partition.parts import check_count
from jaxfl.data.sources import Source
from jaxfl.data.views.copies import with_copies
from jaxfl.data.views.corruptions import STROKES
from jaxfl.schema import check_literal, checked

OfficialCode = Literal[
    "comparative-concept-features",
    "comparative-concept-labels",
    "comparative-feature-skew",
    "comparative-quantity",
    "fedccfa",
    "fedem",
    "ifca",
    "ifca-cifar10",
    "pfedgraph-homo",
    "pfedgraph-noniid",
    "pfedgraph-noniid-skew",
    "pfedgraph-noniid-skew2",
    "pfllib-dirichlet",
    "pfllib-pathological",
    "rdpcfl-covariateshift",
    "rdpcfl-labelflip",
]


class OfficialRule(NamedTuple):
    """The division and preparation of examples by one official code.

    Attributes:
        split: `(source, number of clients, concentration, seed) -> rows of the clients`.
        num_clients: the code's own number.
        alpha: the code's own concentration; None where it draws none.
        cause: what makes the groups different, or None without groups.
        view: `(federation, group) -> federation`: how each group sees its rows.
        scale: mean and deviation that the code subtracts and divides by, in pixels; None are those of the source.
        grey: whether the scale is of grey images alone.
    """

    split: Callable[[Source, int, float, int], ExactSplit]
    num_clients: int
    alpha: float | None = None
    cause: str | None = None
    view: Callable[[FederatedData, np.ndarray], FederatedData] = lambda data, group: data
    scale: tuple[float, float] | None = None
    grey: bool = False


@checked
def official(
    source: Source,
    *,
    code: OfficialCode,
    num_clients: int | None = None,
    alpha: float | None = None,
    every: int = 1,
    seed: int = 0,
) -> FederatedData:
    """Returns the federation of an official code, row by row, from the official training and test examples.

    Clients of `ifca` that only test are held out, and are assigned by their test rows, as the code does it. In
    `pfedgraph-noniid-skew` a client is tested on the official test rows of its classes, which gives the score that the
    code computes with weights.

    Args:
        source: examples with classes.
        code: of which code, see `jaxfl.data.partition.exact`.
        num_clients: N; None is the code's own number. Of `ifca-cifar10`, the first of each group's clients.
        alpha: concentration of Dirichlet shares; None is the code's own, 0.1, or FedEM's 0.4.
        every: keep every so many-th training row of each client, for a run of less work.
        seed: the code's seed, where it is the run's too (IFCA, R-DPCFL); other codes have one split.

    Raises:
        ValueError: the code is unknown or draws no shares, or the examples cannot be divided so.
    """
    check_literal("code", code, OfficialCode)
    check_classes("official", source.labels)
    rule = RULES[code]
    if alpha is not None and rule.alpha is None:
        drawing = ", ".join(name for name, one in RULES.items() if one.alpha is not None)
        raise ValueError(f"alpha must be left out for code={code}, got {alpha}; {drawing} draw Dirichlet shares.")
    count = rule.num_clients if num_clients is None else num_clients
    split = rule.split(source, count, rule.alpha or 0.0 if alpha is None else alpha, seed)
    check_count("every", every)
    inputs, labels, _ = source.pool
    train = [rows[::every] for rows in split.train]
    if split.held_out is not None:
        train = [tested if held else own for own, tested, held in zip(train, split.test, split.held_out, strict=True)]
    data = federate(
        inputs,
        labels,
        train,
        split.test,
        num_classes=source.num_classes,
        causes={rule.cause: split.group} if rule.cause and split.group is not None else None,
        held_out=split.held_out,
        mean=source.mean,
        std=source.std,
        name=f"official-{source.name}",
        class_names=source.class_names,
        check_repeats=False,
    )
    if rule.scale is not None and not (
        rule.grey and inputs.ndim > 3
    ):  # not by federate, which warns of a deviation that looks like a mistake
        mean, std = (np.array(value, np.float32) for value in rule.scale)
        data = dataclasses.replace(data, mean=mean, std=std)
    if split.validation is not None:
        data = dataclasses.replace(data, validation=Split.pack(split.validation))
    return data if split.group is None else rule.view(data, split.group)


def _joined_labels(source: Source) -> np.ndarray:
    """Returns the classes of all official examples, training rows first."""
    return np.asarray(source.pool[1])


def _tests_of(source: Source, code: str) -> np.ndarray:
    """Returns the classes of the official test rows; raises ValueError if there are none."""
    if source.test_labels is None:
        raise ValueError(f"code must be of a source with a test set, got {code} for {source.name}; mnist has one.")
    return np.asarray(source.test_labels)


def _ifca_split(source: Source, num_clients: int, alpha: float, seed: int) -> ExactSplit:
    """Returns the rows of IFCA's four rotations."""
    rows = 4 * len(source.labels) // num_clients
    return exact.ifca(
        len(source.labels), len(_tests_of(source, "ifca")), num_clients=num_clients, rows_per_client=rows, seed=seed
    )


def _ifca_cifar10_split(source: Source, num_clients: int, alpha: float, seed: int) -> ExactSplit:
    """Returns the rows of IFCA's two rotations of CIFAR-10, of the first clients of each group."""
    count, tests, groups = len(source.labels), len(_tests_of(source, "ifca-cifar10")), 2
    members = count // IFCA_CIFAR10_ROWS
    split = exact.ifca(
        count,
        tests,
        num_clients=groups * members,
        rows_per_client=IFCA_CIFAR10_ROWS,
        num_groups=groups,
        seed=seed,
    )
    if num_clients % groups or not 0 < num_clients <= groups * members:
        raise ValueError(
            f"num_clients must be even and at most {groups * members} for code=ifca-cifar10, got {num_clients}."
        )
    place = np.arange(len(split.train))
    kept = place[(place >= groups * members) | (place % members < num_clients // groups)].tolist()
    train, test = ([rows[client] for client in kept] for rows in (split.train, split.test))
    assert split.group is not None and split.held_out is not None
    return ExactSplit(train, test, None, split.group[kept], split.held_out[kept])


def _rdpcfl_split(source: Source, num_clients: int, alpha: float, seed: int) -> ExactSplit:
    """Returns the rows of R-DPCFL: of each client 8,000 grey images, or 10,000 in colour."""
    rows = 8000 if source.inputs.ndim == 3 else 10_000
    tests = _tests_of(source, "rdpcfl")
    return exact.rdpcfl(len(source.labels), len(tests), num_clients=num_clients, rows_per_client=rows, seed=seed)


def _comparative_split(setting: exact.ComparativeSetting) -> Callable[[Source, int, float, int], ExactSplit]:
    """Returns the rule of one setting of the comparative evaluation."""

    def split(source: Source, num_clients: int, alpha: float, seed: int) -> ExactSplit:
        return exact.comparative(np.asarray(source.labels), setting=setting, num_clients=num_clients)

    return split


def _pfedgraph_split(partition: exact.PFedGraphPartition) -> Callable[[Source, int, float, int], ExactSplit]:
    """Returns the rule of one partition of pFedGraph."""

    def split(source: Source, num_clients: int, alpha: float, seed: int) -> ExactSplit:
        tests, labels = _tests_of(source, "pfedgraph"), np.asarray(source.labels)
        found = exact.pfedgraph(labels, len(tests), partition=partition, num_clients=num_clients, beta=alpha)
        if partition != "noniid-skew":
            return found
        own = [np.flatnonzero(np.isin(tests, labels[part])) + len(labels) for part in found.train]
        return found._replace(test=own)

    return split


def _fedccfa_split(source: Source, num_clients: int, alpha: float, seed: int) -> ExactSplit:
    """Returns the rows of FedCCFA."""
    return exact.fedccfa(source.labels, _tests_of(source, "fedccfa"), num_clients=num_clients, alpha=alpha)


def _quarter_turned(data: FederatedData, group: np.ndarray) -> FederatedData:
    """Returns the federation with group g turned by g quarters."""
    check_square(data.inputs)
    return dataclasses.replace(data, rotation=group.astype(np.int32))


def _half_turned(data: FederatedData, group: np.ndarray) -> FederatedData:
    """Returns the federation with the second group upside down."""
    return _quarter_turned(data, 2 * group)


def _shifted(data: FederatedData, group: np.ndarray) -> FederatedData:
    """Returns the federation with the classes of group g numbered g further."""
    return dataclasses.replace(data, label_shift=group.astype(np.int32))


def _swapped(data: FederatedData, group: np.ndarray) -> FederatedData:
    """Returns the federation with the two classes of each group exchanged."""
    maps = np.tile(np.arange(data.num_classes, dtype=np.int32), (len(COMPARATIVE_SWAPS), 1))
    for own, (one, other) in zip(maps, COMPARATIVE_SWAPS, strict=True):
        own[[one, other]] = other, one
    return dataclasses.replace(data, label_map=maps, label_shift=group.astype(np.int32))


def _with_strokes(data: FederatedData, group: np.ndarray) -> FederatedData:
    """Returns the federation with the strokes of groups 1 and 2 eroded and dilated."""
    check_pixels("official", data.inputs)
    codes = np.array([0, 1 + STROKES.index("erode"), 1 + STROKES.index("dilate")], np.int32)
    return with_copies(dataclasses.replace(data, stroke=codes[group], white=white_level(np.asarray(data.inputs))))


IFCA_CIFAR10_ROWS = 500  # of a client
_HALF = (0.5, 0.5)  # of pixels from 0 to 255, as the comparative evaluation's code has it
RULES: dict[str, OfficialRule] = {
    "comparative-concept-features": OfficialRule(
        _comparative_split("concept-features"), 48, cause="rotation", view=_quarter_turned, scale=_HALF
    ),
    "comparative-concept-labels": OfficialRule(
        _comparative_split("concept-labels"), 48, cause="labels", view=_swapped, scale=_HALF
    ),
    "comparative-feature-skew": OfficialRule(
        _comparative_split("feature-skew"), 48, cause="stroke", view=_with_strokes, scale=_HALF
    ),
    "comparative-quantity": OfficialRule(_comparative_split("quantity"), 48, cause="quantity", scale=_HALF),
    "fedccfa": OfficialRule(_fedccfa_split, 20, 0.1, scale=(0.1307 * 255, 0.3081 * 255), grey=True),  # MNIST's
    "fedem": OfficialRule(
        lambda source, count, alpha, seed: exact.fedem(_joined_labels(source), num_clients=count, alpha=alpha), 80, 0.4
    ),
    "ifca": OfficialRule(_ifca_split, 1200, cause="rotation", view=_quarter_turned, scale=(0.0, 255.0)),
    "ifca-cifar10": OfficialRule(_ifca_cifar10_split, 200, cause="rotation", view=_half_turned),
    "pfedgraph-homo": OfficialRule(_pfedgraph_split("homo"), 10),
    "pfedgraph-noniid": OfficialRule(_pfedgraph_split("noniid"), 10, 0.1),
    "pfedgraph-noniid-skew": OfficialRule(_pfedgraph_split("noniid-skew"), 10, cause="classes"),
    "pfedgraph-noniid-skew2": OfficialRule(_pfedgraph_split("noniid-skew2"), 20, cause="classes"),
    "pfllib-dirichlet": OfficialRule(
        lambda source, count, alpha, seed: exact.pfllib_dirichlet(
            _joined_labels(source), num_clients=count, alpha=alpha
        ),
        20,
        0.1,
        scale=(127.5, 127.5),
    ),
    "pfllib-pathological": OfficialRule(
        lambda source, count, alpha, seed: exact.pfllib_pathological(
            _joined_labels(source),
            num_clients=count,
            client_classes=max(2, source.num_classes // 10),
        ),
        20,
        cause="classes",
        scale=(127.5, 127.5),
    ),
    "rdpcfl-covariateshift": OfficialRule(_rdpcfl_split, 21, cause="rotation", view=_quarter_turned),
    "rdpcfl-labelflip": OfficialRule(_rdpcfl_split, 21, cause="labels", view=_shifted),
}
assert set(RULES) == set(get_args(OfficialCode))
