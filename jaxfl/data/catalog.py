"""Catalogue of data sets by name, `<skew>-<source>`; options are checked against the builder's signature.

Shifts are written before another skew with a plus: `rotated+pathological-mnist` has rotated clients with different
classes. A source with known makers of its examples (`unipen`, `femnist`) is also a data set by its own name, and stands
behind shifts as it is, `swapped+unipen`; so does a saved federation, `swapped+saved`.

>>> data = load("rotated-digits", num_clients=8, rows_per_client=40)
>>> data.name, data.num_clients, data.group_names
('rotated-digits', 8, ('0°', '90°', '180°', '270°'))
"""

import dataclasses
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxfl.data import (
    assignment,
    conditions,
    conventions,
    divide,
    leaks,
    natural,
    official,
    shift,
    skews,
    sources,
    stored,
)
from jaxfl.data.causes import with_truth
from jaxfl.data.clients import FederatedData
from jaxfl.data.drift import apply_conditions
from jaxfl.data.sources import domains, saved
from jaxfl.data.views import image_shifts
from jaxfl.data.views.copies import postponed_copies, with_copies
from jaxfl.files import checksum, crc, user_path
from jaxfl.random import check_seed
from jaxfl.schema import Option, check_literal, check_name, check_type, checked, did_you_mean, function_options, quoted

SKEWS: dict[str, tuple[Callable[..., FederatedData], str]] = {
    "rotated": (shift.rotated, "each group of clients has images rotated by its own angle"),
    "shifted": (shift.shifted, "each group of clients has its own numbering of the classes"),
    "swapped": (shift.swapped, "each group of clients has the labels of its own pairs of classes swapped"),
    "permuted": (shift.permuted, "each group of clients, or each client, has the labels of some classes permuted"),
    "mirrored": (shift.mirrored, "groups of clients have labels as they are, reversed, or of the next class"),
    "coloured": (image_shifts.coloured, "each group of clients has images of its own colour"),
    "corrupted": (image_shifts.corrupted, "each group of clients has images that are corrupted in its own way"),
    "thickened": (image_shifts.thickened, "groups of clients have strokes as they are, thinner or thicker"),
    "classwise": (
        image_shifts.classwise,
        "each group of clients, or each client, has some classes rotated or coloured",
    ),
    "hybrid": (skews.hybrid, "each group of clients has images of one domain: another source, or the negative"),
    "pathological": (skews.pathological, "each group of clients has only its own classes"),
    "dominant": (skews.dominant, "each group of clients has one dominant class"),
    "missing": (skews.missing, "each group of clients lacks some classes"),
    "downsampled": (skews.downsampled, "each group of clients has few rows but of some classes"),
    "dirichlet": (skews.dirichlet, "the shares of each class among the clients are Dirichlet distributed"),
    "shards": (skews.shards, "each client has a few shards of the rows sorted by class"),
    "quantity": (skews.quantity, "clients differ only in their number of rows, log-normal, a power law, or by group"),
    "iid": (skews.iid, "clients differ by chance only"),
    "writers": (natural.writers, "one client for each writer, person or site"),
}

# Functions from a federation to the federation with shifted clients, written before another skew with a plus.
SHIFTS: dict[str, Callable[..., FederatedData]] = {
    "rotated": shift.rotate,
    "shifted": shift.relabel,
    "swapped": shift.swap_labels,
    "permuted": shift.permute_labels,
    "mirrored": shift.mirror_labels,
    "coloured": image_shifts.colour_images,
    "corrupted": image_shifts.corrupt_images,
    "thickened": image_shifts.redraw_images,
    "classwise": image_shifts.transform_classes,
}

USUAL: dict[str, dict[str, Any]] = {
    "rotated": {"num_clients": 1200, "rows_per_client": 200},  # IFCA and StoCFL; also 2,400 x 100 and 4,800 x 50
    "shifted": {"num_clients": 20, "rows_per_client": 9600},  # StoCFL and CFL
    "swapped": {"num_clients": 20, "rows_per_client": 1000},  # CLoVE
    "permuted": {"num_clients": 20, "rows_per_client": 1000},
    "mirrored": {"num_clients": 30, "rows_per_client": 1000},
    "coloured": {"num_clients": 1200, "rows_per_client": 200},  # as rotated
    "corrupted": {"num_clients": 1200, "rows_per_client": 200},
    "thickened": {"num_clients": 900, "rows_per_client": 200},  # three groups
    "classwise": {"num_clients": 40, "rows_per_client": 1000},  # of one group too, with each_client
    "hybrid": {"num_clients": 200},  # StoCFL
    "pathological": {"num_clients": 400},  # StoCFL: 100 clients per group
    "dominant": {"num_clients": 20, "rows_per_client": 1000},  # LayerCFL
    "missing": {"num_clients": 50},
    "downsampled": {"num_clients": 48},
    "dirichlet": {"num_clients": 100},
    "shards": {"num_clients": 100},  # FedAvg
    "quantity": {"num_clients": 100},
    "iid": {"num_clients": 100},
    "writers": {},
}
# Defaults for sources of unknown size.
SMALL: dict[str, dict[str, Any]] = {skew: {} if skew == "writers" else {"num_clients": 20} for skew in SKEWS}
SMALL |= {skew: {"num_clients": 24} for skew in ("mirrored", "thickened")}  # of two or three groups
# Images in colour, whose copies are larger.
IN_COLOUR: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("coloured", "corrupted"), {"num_clients": 200, "rows_per_client": 500}),
    "thickened": {"num_clients": 150, "rows_per_client": 500},
}
DEFAULTS: dict[str, dict[str, dict[str, Any]]] = {
    "digits": SMALL
    | {
        "rotated": {"num_clients": 40, "rows_per_client": 80},
        "shifted": {"num_clients": 40, "rows_per_client": 80},
        "swapped": {"num_clients": 40, "rows_per_client": 80},
        "permuted": {"num_clients": 40, "rows_per_client": 35},  # of one group too
        "mirrored": {"num_clients": 30, "rows_per_client": 80},
        **{skew: {"num_clients": 40, "rows_per_client": 80} for skew in ("coloured", "corrupted")},
        "thickened": {"num_clients": 30, "rows_per_client": 80},
        "classwise": {"num_clients": 40, "rows_per_client": 35},
        "dominant": {"num_clients": 12},
        "downsampled": {"num_clients": 12},
    },
    "cifar10": USUAL
    | IN_COLOUR
    | {
        "rotated": {"num_clients": 200, "rows_per_client": 500, "angles": (0, 180)},  # IFCA and StoCFL
        "shifted": {"num_clients": 20, "rows_per_client": 8000},  # StoCFL
    },
    "cifar100": USUAL
    | IN_COLOUR
    | {"rotated": {"num_clients": 200, "rows_per_client": 500}, "dominant": {"num_clients": 20}},
    "cinic10": USUAL
    | IN_COLOUR
    | {
        "rotated": {"num_clients": 200, "rows_per_client": 500, "angles": (0, 180)},
        "shifted": {"num_clients": 20, "rows_per_client": 9600},
    },
    "tiny-imagenet": USUAL
    | IN_COLOUR
    | {"rotated": {"num_clients": 200, "rows_per_client": 500}, "dominant": {"num_clients": 20}},
    # Their rarest class has too few rows for 1,000 rows of each client.
    "emnist-balanced": USUAL | {"dominant": {"num_clients": 20}},
    "unipen": USUAL | {"dominant": {"num_clients": 20}},
    "unipen-letters": USUAL | {"dominant": {"num_clients": 20}},
    "npz": SMALL,
    "parquet": SMALL,
    "table": SMALL,
    "folder": SMALL,
}
# Not a skew, whose law any source and seed may have: a code's own rows, `official-<source>`.
OFFICIAL, OFFICIAL_LINE = "official", "clients have the very rows of an official code, which is named by code="
PoolChoice = Literal["train", "all"]
LITERALS: dict[str, Any] = {"pool": PoolChoice, "mix": assignment.Mixture}
# The other domain of `hybrid`, a source or "negative".
OTHERS = {"mnist": "fashion-mnist", "fashion-mnist": "mnist"}  # StoCFL


class Dataset(NamedTuple):
    """An entry of the catalogue.

    Attributes:
        name: `<skew>-<source>`.
        description: one line of text.
        skew, source: the two halves of the name.
        shifts: the shifts before the skew.
        num_classes: L, or None if it is read from the files.
        needs_files: False if all data are embedded.
        defaults: values of options that differ from the builder's defaults.
        model: name and options of the default model.
    """

    name: str
    description: str
    skew: str
    source: str
    shifts: tuple[str, ...]
    num_classes: int | None
    needs_files: bool
    defaults: dict[str, Any]
    model: tuple[str, dict[str, Any]]


def _dataset(skew: str, source: str, shifts: tuple[str, ...] = ()) -> Dataset:
    """Returns the entry of one skew, with shifts, and one source."""
    origin = sources.entry(source)
    line = OFFICIAL_LINE if skew == OFFICIAL else SKEWS[skew][1]
    words = "; ".join([line, *(SKEWS[shifted][1] for shifted in shifts)])
    usual = USUAL if source in sources.SOURCES and origin.find else SMALL  # an installed or embedded one may be small
    return Dataset(
        name=f"{'+'.join([*shifts, skew])}-{source}",
        description=f"{origin.summary}; {words}",
        skew=skew,
        source=source,
        shifts=shifts,
        num_classes=origin.num_classes,
        needs_files=origin.find is not None,
        defaults={} if skew == OFFICIAL else DEFAULTS.get(source, usual).get(skew, {"num_clients": 100}),
        model=origin.model,
    )


def data_names(source: str) -> list[str]:
    """Returns the names of the data sets of a source, without shifts and without its own name."""
    return [f"{skew}-{source}" for skew in _source_skews(source)]


def _source_skews(source: str) -> list[str]:
    """Returns the skews that can divide a source; `writers` only if its makers are known."""
    row = sources.entry(source)
    return [skew for skew in SKEWS if skew in (row.skews or SKEWS) and (skew != "writers" or row.makers)]


DATASETS: dict[str, Dataset] = {
    row.name: row for source in sources.SOURCES for row in (_dataset(skew, source) for skew in _source_skews(source))
}
# Not in the list of data sets: it is a federation that the user has saved.
SAVED = Dataset("saved", saved.ENTRY.summary, "saved", saved.NAME, (), None, True, {}, saved.ENTRY.model)
# A source whose makers are always known needs no skew.
DATASETS |= {
    source: DATASETS[f"writers-{source}"]._replace(name=source)
    for source, row in sources.SOURCES.items()
    if row.makers and not row.makers_file
}


def dataset(name: str) -> Dataset:
    """Returns the entry of a data set.

    Args:
        name: name in `DATASETS`; or with shifts, `rotated+<skew>-<source>`; or `<skew>-tfds:<name>`, for a data set
            prepared by tensorflow-datasets; or `official-<source>`, for the rows of an official code; or `saved`, for
            a saved federation. A source by its own name, or `saved`, may have shifts before it, `rotated+unipen`.

    Raises:
        ValueError: there is no such data set; the message names the most similar name, and all skews and sources.

    >>> dataset("rotated-mnist").model
    ('mlp', {'hidden': (2048,)})
    >>> dataset("rotated+pathological-mnist").shifts
    ('rotated',)
    """
    if name in DATASETS or name == SAVED.name:
        return DATASETS.get(name, SAVED)
    *before, whole = name.split("+")
    if len({*before}) == len(before) and all(shift in SHIFTS for shift in before):
        if whole == SAVED.name:
            words = "; ".join([SAVED.description, *(SKEWS[shift][1] for shift in before)])
            return SAVED._replace(name=name, shifts=tuple(before), description=words)
        if whole in DATASETS and DATASETS[whole].source == whole:
            return _dataset("writers", whole, tuple(before))._replace(name=name)
    skew, _, source = name.partition("-")
    *shifts, skew = skew.split("+")
    known = source in sources.names() or (source.startswith("tfds:") and len(source) > len("tfds:"))
    if known and skew == OFFICIAL and not shifts and sources.entry(source).num_classes:
        return _dataset(OFFICIAL, source)
    distinct = len({*shifts, skew}) == len(shifts) + 1
    if known and skew in _source_skews(source) and distinct and all(shift in SHIFTS for shift in shifts):
        return _dataset(skew, source, tuple(shifts))
    alone = [source for source in sources.SOURCES if source in DATASETS]
    if whole in sources.names() and all(shift in SHIFTS for shift in before):
        ways = ", ".join("+".join([*before, f"{skew}-{whole}"]) for skew in _source_skews(whole) if skew not in before)
        raise ValueError(f"data {quoted(name)} is a source without a skew; choose one of {ways}.")
    if name in SKEWS:
        ways = ", ".join(row.name for row in DATASETS.values() if row.skew == name and not row.shifts)
        raise ValueError(f"data {quoted(name)} is a skew without a source; choose one of {ways}.")
    raise ValueError(
        f"unknown data {quoted(name)}{did_you_mean(name, DATASETS)} A name is <skew>-<source>. "
        f"Skews: {', '.join(SKEWS)}, and before another skew {' or '.join(f'{shift}+' for shift in SHIFTS)}. Sources: "
        f"{', '.join(sources.names())}, or tfds:<name> for a data set prepared by tensorflow-datasets. "
        f"By their own name: {', '.join(alone)}, and saved for a federation that jaxfl data NAME --save DIR wrote; "
        "official-<source> has the rows of an official code."
    )


def source_options(source: str) -> dict[str, Option]:
    """Returns the options of a source, which all of its data sets have, by name.

    >>> sorted(source_options("linear-mixture"))
    ['labelling', 'tested_rows']
    """
    return {key: one for key, one in known_options(data_names(source)[0]).items() if one.owner == "source"}


def known_options(name: str) -> dict[str, Option]:
    """Returns all options of `load` for a data set except `data_dir` and `seed`, by name.

    Their owners are `"skew"`, a shift, `"source"`, `"condition"` and `"catalog"`.
    """
    row = dataset(name)
    owners = {**_part_builders(row), "source": sources.entry(row.source).load, "condition": apply_conditions}
    merged: dict[str, Option] = {}
    for owner, function in owners.items():
        for option in function_options(function).values():
            default = row.defaults.get(option.name, option.default) if owner == "skew" else option.default
            merged[option.name] = option._replace(default=default, owner=owner)
    merged.pop("seed")  # `load` has one seed for all
    if row.skew == "hybrid":
        line = 'the second domain: a source, or "negative"'
        merged["other"] = Option("other", OTHERS.get(row.source, "negative"), str, line, "catalog")
    if row.skew not in (SAVED.skew, OFFICIAL):
        line = "examples that the skew divides: the training set, or the official test set with it"
        merged["pool"] = Option("pool", "train", PoolChoice, line, "catalog")
    if _first_part(row) in SHIFTS:
        line = f"share of the clients with each pattern of {_first_part(row)}, such as 0.15,0.85; none is even"
        merged["group_shares"] = Option("group_shares", None, Sequence[float] | None, line, "catalog")
    if row.shifts:
        line = (
            "crossed: clients of each group get all patterns of a shift; paired: group g gets pattern g; apart: some "
            "clients have the first of two shifts alone, some the second, some both, some neither"
        )
        merged["mix"] = Option("mix", "crossed", assignment.Mixture, line, "catalog")
        line = "with mix=apart, shares of the clients with the first shift, the second, both, neither"
        merged["mix_shares"] = Option("mix_shares", None, Sequence[float] | None, line, "catalog")
    if row.shifts or row.skew == SAVED.skew:
        line = "causes whose products are the true groups, such as labels, with commas; none is all"
        merged["truth"] = Option("truth", None, str | Sequence[str] | None, line, "catalog")
    line = "share of the clients that are held out of training and served as newcomers, 0 or more and below 1"
    merged["held_out"] = Option("held_out", 0.0, float, line, "catalog")
    line = (
        "central: all clients are tested on one test set, the official one or else the test rows of all; none: by skew"
    )
    merged["test"] = Option("test", None, Literal["central"] | None, line, "catalog")
    line = "share of each client's training rows that become validation rows, reported as validation_...; 0 is none"
    return merged | {"validation": Option("validation", 0.0, float, line, "catalog")}


def _first_part(row: Dataset) -> str:
    """Returns the first shift of a data set's name, or its skew if there is none."""
    return [*row.shifts, row.skew][0]


def _part_builders(row: Dataset) -> dict[str, Callable[..., Any]]:
    """Returns the builder of a data set's skew, which a saved federation has not, and its shifts by name."""
    skew = {} if row.skew == SAVED.skew else {"skew": _skew_builder(row)}
    return skew | {shift: SHIFTS[shift] for shift in row.shifts}


def _skew_builder(row: Dataset) -> Callable[..., FederatedData]:
    """Returns the builder of a data set's skew, or of the rows of official codes."""
    return official.official if row.skew == OFFICIAL else SKEWS[row.skew][0]


def options(name: str) -> dict[str, Any]:
    """Returns the options of a data set with their defaults.

    >>> options("rotated-digits")
    {'num_clients': 40, 'rows_per_client': 80, 'angles': (0, 90, 180, 270), 'resample': 'bilinear',
     'test_share': None, 'stragglers': 0.0,
     'attack': None, 'attackers': None, 'attack_scale': 1.0, 'attack_target': 0, 'drift': None,
     'drift_change': None, 'drift_round': None, 'drift_rounds': None, 'drift_share': None, 'drift_parts': None,
     'drift_swaps': None, 'drift_matrix': None, 'drift_every': None, 'drift_rows': 'same',
     'drift_test': 'own', 'arrive': None, 'leave': None,
     'arrive_rounds': None, 'leave_rounds': None, 'pool': 'train', 'group_shares': None, 'held_out': 0.0, 'test': None,
     'validation': 0.0}
    """
    return {option: known.default for option, known in known_options(name).items()}


@checked
def load(name: str, *, data_dir: str | Path | None = None, seed: int = 0, **settings: Any) -> FederatedData:
    """Returns the federation of a name.

    Args:
        name: `<skew>-<source>`, see `dataset`.
        data_dir: folder of the source's files, or the folder above it (for npz and parquet also the file; for `saved`
            the folder itself); None is `$JAXFL_DATA` or `~/.cache/jaxfl`.
        seed: seed of every random choice of the skew; equal seeds give equal federations on every machine.
        **settings: options of the skew, the shifts and the source, see `options(name)`. For `hybrid`, `other` is the
            second domain, a source or `"negative"`. `pool="all"` divides the official test set together with the
            training set (PFLlib, FedEM): test rows are then a share of the rows, as for a source without a test set.
            `held_out` is the share of clients, 0 to 1, that are held out of training and served as newcomers.
            `test="central"` is one test set for all clients, the official one, or else the test rows of all, see
            `jaxfl.data.divide.central_test`. `group_shares` has the share of the clients with each pattern of the first
            shift, and `mix` and `mix_shares` say which clients get the patterns of several, see
            `jaxfl.data.assignment`. `truth` names the causes whose products are the true groups, where a skew
            has shifts, see `jaxfl.data.causes`. `validation` is the share of each client's training rows that become
            validation rows, see `jaxfl.data.divide.set_apart`. `stragglers` is the share of a round's clients that are
            late. `attack` (`"label-flip"`, `"sign-flip"`, ...) is the attack of `attackers`, a share of the clients or
            some of them, at `attack_scale`; see `jaxfl.data.conditions`. `drift` is the schedule (`"sudden"`,
            `"recurrent"`, `"incremental"`, `"staggered"`, `"gradual"`, `"matrix"`) by which the data of `drift_share`
            of the clients change as `drift_change` says, after `drift_rounds` rounds; or a change (`"swap"`,
            `"rotate"`, `"new-group"`) after `drift_round` rounds. A share `arrive` of the clients arrives then, and a
            share `leave` leaves; see `jaxfl.data.drift`.

    Raises:
        ValueError: an unknown name or option, or an invalid value.
        TypeError: a value of a wrong type.
        FileNotFoundError: a file is missing; the message names the file and its folder.

    >>> int(load("rotated-digits", held_out=0.25).held_out.sum())
    10
    """
    row, known, seed = dataset(name), known_options(name), check_seed(seed)
    data_dir = None if data_dir is None else user_path(data_dir)
    for option, value in settings.items():
        check_name(f"option of {name}", option, known)
        check_type(option, value, known[option].hint)
        if option in LITERALS:
            check_literal(option, value, LITERALS[option])
    if row.skew == SAVED.skew:
        return with_options(lambda: stored.load(data_dir), settings, seed=seed, name=name)
    chosen = {name: settings.get(name, option.default) for name, option in known.items()}
    own = _options_by_owner(row, settings)
    _check_held_out(chosen["held_out"])
    rules = _assignments(row, chosen)
    source = sources.load(row.source, data_dir, **own["source"])
    source = _choose_pool(source, chosen.get("pool", "train"), row.skew)
    if row.skew == "hybrid":
        source = _with_domains(source, chosen["other"], known["other"].default, data_dir, chosen["pool"])
    if chosen["test"] is not None and source.test_labels is not None:
        if settings.get("test_share") is not None:
            raise ValueError(
                f"test_share must be left out with test=central, because {source.name} has a test set, got "
                f"{settings['test_share']}."
            )
        source = dataclasses.replace(source, central=True)
    with postponed_copies(), assignment.assigned(rules[row.skew]):
        data = _skew_builder(row)(source, seed=seed, **own["skew"])
    if source.client_weights is not None and data.client_weights is None:
        raise ValueError(
            f"client_weight needs clients that are the makers of their rows, got {name}, which divides the rows; take "
            f"writers-{row.source}, or leave it out."
        )
    if sources.entry(row.source).user_files is not None:
        leaks.warn_repeated_rows(data)
        if data.num_classes > 1 or data.kind == "regression":  # of one class `federate` warns
            conventions.warn_single_label(source.labels)
        if "test_share" not in settings:
            _warn_unused_test_rows(source, data, name)
    kept = (
        row.skew == "writers"
        and not source.central
        and chosen.get("by") == "client"
        and source.test_clients is not None
    )
    if kept and settings.get("test_share") == natural.SHARE:
        warnings.warn(
            f"{name} keeps the official test rows of {source.name}'s makers, got test_share={natural.SHARE}, the "
            "default; another share, such as 0.25, divides them like all others.",
            stacklevel=3,
        )
    data = data if chosen["test"] is None else divide.central_test(data)
    data = _with_shifts(data, row, chosen, own, rules, seed)
    return apply_conditions(with_copies(_with_roles(data, chosen, seed)), seed=seed, **own["condition"])


def _options_by_owner(row: Dataset, settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the options of the skew, each shift, the source and the conditions of a data set, by owner.

    Args:
        row: its entry.
        settings: the given options. One that the skew and a shift have, such as num_groups, is for all of them.
    """
    known, parts = known_options(row.name), _part_builders(row)
    found: dict[str, dict[str, Any]] = {}
    for owner in (*parts, "source", "condition"):
        shared = settings.keys() & function_options(parts[owner]).keys() if owner in parts else ()
        found[owner] = {
            name: settings.get(name, option.default)
            for name, option in known.items()
            if option.owner == owner or name in shared
        }
    return found


def _with_shifts(
    data: FederatedData,
    row: Dataset,
    chosen: Mapping[str, Any],
    own: Mapping[str, Mapping[str, Any]],
    rules: Mapping[str, assignment.Assignment],
    seed: int,
) -> FederatedData:
    """Returns the federation with the shifts of a data set, the last one first, without their copies.

    Args:
        data: the federation.
        row: entry of the data set.
        chosen: options by name.
        own: options by owner.
        rules: of `_assignments`.
        seed: of the random choices.
    """
    members = dict(zip(row.shifts, _apart_members(data.num_clients, chosen, seed), strict=False))
    with postponed_copies():
        for shifted in reversed(row.shifts):
            rules[shifted].members = members.get(shifted)
            with assignment.assigned(rules[shifted]):
                data = SHIFTS[shifted](data, seed=seed, **own[shifted])
    _check_assigned(row, chosen, rules)
    return data


def with_options(
    make: Callable[[], FederatedData], settings: Mapping[str, Any], *, seed: int = 0, name: str = SAVED.name
) -> FederatedData:
    """Returns a federation that needs no source and no skew, such as a saved one, with the options of all such.

    Args:
        make: returns the federation.
        settings: values of options of `known_options(name)`.
        seed: of the random choices.
        name: `saved`, with the shifts that the federation gets before it.

    Raises:
        ValueError: an invalid value, or a shift that its clients cannot have.

    >>> from jaxfl.data import synthetic
    >>> settings = {"held_out": 0.25, "shifts": (0, 1)}
    >>> data = with_options(lambda: synthetic.clustered_linear(4), settings, name="shifted+saved")
    >>> int(data.held_out.sum()), sorted(data.label_shift.tolist())
    (1, [0, 0, 1, 1])
    """
    row, known = dataset(name), known_options(name)
    chosen = {name: settings.get(name, option.default) for name, option in known.items()}
    _check_held_out(chosen["held_out"])
    rules, own = _assignments(row, chosen), _options_by_owner(row, settings)
    data = make()
    data = data if chosen["test"] is None else divide.central_test(data)
    if row.shifts:
        data = with_copies(_with_shifts(data, row, chosen, own, rules, seed))
    return apply_conditions(_with_roles(data, chosen, seed), seed=seed, **own["condition"])


def _check_held_out(held_out: float) -> None:
    """Raises ValueError unless the share of held-out clients is one."""
    if not 0 <= held_out < 1:
        raise ValueError(
            f"held_out must be a share of the clients, 0 or more and below 1, got {held_out}; 0.3 is usual."
        )


def _with_roles(data: FederatedData, chosen: Mapping[str, Any], seed: int) -> FederatedData:
    """Returns the federation with the chosen true groups, held-out clients and validation rows."""
    data = with_truth(data, chosen["truth"]) if chosen.get("truth") is not None else data
    data = conditions.hold_out(data, chosen["held_out"], seed) if chosen["held_out"] else data
    return divide.set_apart(data, chosen["validation"], seed=seed) if chosen["validation"] else data


def _assignments(row: Dataset, chosen: Mapping[str, Any]) -> dict[str, assignment.Assignment]:
    """Returns how clients get the patterns of each part of a data set's name.

    Raises:
        ValueError: shares are no shares, or a mixture is not of the parts that it needs.
    """
    mix, shares, mix_shares = chosen.get("mix", "crossed"), chosen.get("group_shares"), chosen.get("mix_shares")
    shares = None if shares is None else assignment.checked_shares("group_shares", shares)
    if mix_shares is not None:
        if mix != "apart":
            raise ValueError(f"mix must be apart with mix_shares={tuple(mix_shares)}, got {mix}.")
        if len(assignment.checked_shares("mix_shares", mix_shares)) != len(assignment.MIX_SHARES):
            raise ValueError(
                "mix_shares must have the shares of clients with the first shift, the second, both, neither, got "
                f"{len(mix_shares)} shares."
            )
    if mix == "apart" and (len(row.shifts) != 2 or shares is not None):
        got = f"group_shares={shares}" if shares is not None else row.name
        raise ValueError(
            "mix=apart must be of two shifts before another skew, such as corrupted+mirrored+iid-mnist, and without "
            f"group_shares, got {got}."
        )
    mixes: dict[str, Any] = {part: mix for part in row.shifts}
    first = _first_part(row)
    return {
        part: assignment.Assignment(mixes.get(part, "crossed"), shares if part == first else None)
        for part in (*row.shifts, row.skew)
    }


def _apart_members(num_clients: int, chosen: Mapping[str, Any], seed: int) -> tuple[np.ndarray, ...]:
    """Returns which clients have the first and the second shift with mix=apart; nothing otherwise."""
    if chosen.get("mix") != "apart":
        return ()
    shares = chosen["mix_shares"]
    return assignment.apart(num_clients, assignment.MIX_SHARES if shares is None else shares, seed)


def _check_assigned(row: Dataset, chosen: Mapping[str, Any], rules: Mapping[str, assignment.Assignment]) -> None:
    """Raises ValueError if no part of a data set assigned its patterns as it was asked to."""
    if (shares := chosen.get("group_shares")) is not None and not rules[_first_part(row)].used:
        raise ValueError(
            f"group_shares must be left out where each client of {_first_part(row)} has its own pattern, got "
            f"{tuple(shares)}."
        )
    mix, used = chosen.get("mix", "crossed"), [rules[shifted].used for shifted in row.shifts]
    if (mix == "paired" and not any(used)) or (mix == "apart" and not all(used)):
        raise ValueError(f"mix must be crossed for {row.name}, of which two parts must have groups, got {mix}.")


def _warn_unused_test_rows(source: sources.Source, data: FederatedData, name: str) -> None:
    """Warns if a file of the user has test rows that no client is tested on, because the skew divides training rows."""
    if source.test_labels is not None and len(source.test_labels) and len(data.labels) == len(source.labels):
        warnings.warn(
            f"{name} does not use the {len(source.test_labels)} test rows of {source.name}: clients are tested on a "
            "share of their own rows (test_share=0.2 says so); the skew writers uses them if their makers are in the "
            "file, as test_client; test=central uses them for all clients.",
            stacklevel=4,
        )


def _choose_pool(source: sources.Source, pool: str, skew: str) -> sources.Source:
    """Returns the source whose training examples a skew divides, with its official test set among them if chosen.

    Raises:
        ValueError: there is no test set, or the skew needs makers or domains that are unknown of its examples.
    """
    if pool == "train":
        return source
    needs = {"writers": ("makers", source.clients, source.test_clients)}
    needs |= {"hybrid": ("domains", source.domains, source.test_domains)}
    what, known, tests = needs.get(skew, ("", None, None))
    if known is not None and tests is None and source.test_labels is not None:
        raise ValueError(
            f"pool must be train for {skew}-{source.name}, got all: the {what} of its test rows are unknown."
        )
    return source.with_test_examples()


def _with_domains(
    source: sources.Source, other: str, usual: str, data_dir: str | Path | None, pool: str
) -> sources.Source:
    """Returns a source of several domains: itself if its file has domains (npz), or combined with a second source."""
    if source.domains is None:
        return domains.combined(source, _second_domain(source, other, data_dir, pool))
    if other != usual:
        raise ValueError(f"other must be left out, because {source.name} has its own domains, got {other!r}.")
    return source


def _second_domain(source: sources.Source, other: str, data_dir: str | Path | None, pool: str) -> sources.Source:
    """Returns the source of the second domain."""
    if other == "negative":
        return domains.negative(source)
    check_name("source for other", other, ["negative", *sources.names()])
    return _choose_pool(sources.load(other, data_dir), pool, "hybrid")


def user_files(name: str, data_dir: str | Path | None = None, other: str | None = None) -> list[Path]:
    """Returns the user's files that a data set and its second domain are read from, sorted.

    The list is empty if the name of the data set determines the content of its files.

    >>> user_files("rotated-digits"), user_files("writers-npz")  # the file of npz is not given
    ([], [])
    """
    names = [dataset(name).source] + ([] if other in (None, "negative") else [other])
    entries = [sources.entry(source) for source in names]
    places = [(entry.user_files, entry.find(data_dir)) for entry in entries if entry.user_files and entry.find]
    return sorted({file for list_files, place in places if place is not None for file in list_files(place)})


def user_checksum(name: str, data_dir: str | Path | None = None, other: str | None = None) -> str | None:
    """Returns a checksum of the user's files, see `user_files`; None without such files.

    It has no paths but those below the folder of a source whose labels are in them.
    """
    files = user_files(name, data_dir, other)
    if not files:
        return None
    places = []
    for source in [dataset(name).source, *([other] if other in sources.names() else [])]:
        entry = sources.entry(source)
        if entry.labels_in_paths and entry.find is not None and (place := entry.find(data_dir)) is not None:
            places.append([file.relative_to(place).parts for file in files if file.is_relative_to(place)])
    return crc(json.dumps([checksum(files), places]).encode()) if places else checksum(files)


def available(data_dir: str | Path | None = None) -> dict[str, str | None]:
    """Returns the location of every data set by name: `"embedded"`, a path, or None if files are missing.

    >>> available()["rotated-digits"]
    'embedded'
    """
    return {name: sources.located(row.source, data_dir, makers=row.skew == "writers") for name, row in DATASETS.items()}
