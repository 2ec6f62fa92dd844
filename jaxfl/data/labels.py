"""Kinds of labels, which are determined by the type and shape of the labels.

| kind | labels | `num_classes`, L |
|---|---|---|
| classification | int32 `[P]`, classes from 0 | classes |
| regression | float `[P]`, or `[P, L]` of several targets | targets, 1 for `[P]` |
| multilabel | bool `[P, L]` | labels, of which a row may have any number |
| next_token | int32 `[P, T]`, a token for every position; `MASKED` where no token is to be learned | tokens |

A kind is named after its task, see `jaxfl.tasks`. A network has L outputs, or L for every position if there are
positions.
"""

import warnings
from collections.abc import Sequence
from typing import Literal

import jax
import numpy as np

from jaxfl.data import conventions
from jaxfl.data.casts import check_rounding, to_integers
from jaxfl.typing import AnyArray

LabelKind = Literal["classification", "regression", "multilabel", "next_token"]
COUNTED = {"classification": "class", "regression": "target", "multilabel": "label", "next_token": "token"}
COLUMN = "labels[:, 0]"  # converts a column of classes to classes
MASKED = -1  # replaces a token that is not to be learned
MAX_CLASSES = 1 << 24  # a network with more outputs than that fits no machine
IDS = 10_000  # labels from here on are ids of something else, unless a hundredth of the classes has rows


def label_kind(labels: AnyArray) -> LabelKind:
    """Returns the kind of labels that `prepare_labels` has returned.

    >>> label_kind(np.zeros(3, np.int32)), label_kind(np.zeros(3, np.float32)), label_kind(np.zeros((3, 5), bool))
    ('classification', 'regression', 'multilabel')
    """
    if labels.dtype.kind == "f":
        return "regression"
    if labels.dtype.kind == "b":
        return "multilabel"
    return "classification" if labels.ndim == 1 else "next_token"


def prepare_labels(inputs: np.ndarray, labels: np.ndarray, num_classes: int | None) -> tuple[np.ndarray, int]:
    """Returns the labels in the type of their kind, and L.

    Integers `[P, L]` that are all 0 or 1 are multilabel, unless the inputs are tokens of that shape. Integers that may
    be classes in the form of another library, a column or vectors with a single 1, are refused.

    Args:
        inputs: `[P, ...]`.
        labels: labels of any kind above; integers and floats of any size.
        num_classes: L; None derives it from the shape of the labels if possible.

    Raises:
        ValueError: the labels are of no kind, not one per row, not finite, or outside of the L classes.

    >>> flags, num_labels = prepare_labels(np.zeros((2, 4)), np.array([[0, 1, 1], [0, 0, 0]]), None)
    >>> flags.dtype, num_labels
    (dtype('bool'), 3)
    """
    if labels.ndim not in (1, 2) or len(labels) != len(inputs) or labels.dtype.kind not in "iufb":
        names = "; convert names to classes by np.unique(labels, return_inverse=True)[1]"
        if labels.dtype.kind in "mM":
            names = "; convert times to numbers by (labels - labels.min()) / np.timedelta64(1, 's')"
        if labels.dtype.kind == "c":
            names = "; predict two numbers, np.stack([labels.real, labels.imag], 1)"
        raise ValueError(
            f"labels must have shape [{len(inputs)}], one per row of inputs, or [{len(inputs)}, L], got "
            f"{labels.dtype} of shape {labels.shape}{'' if labels.dtype.kind in 'iufb' else names}."
        )
    if labels.ndim == 2 and not labels.shape[1]:
        raise ValueError(f"labels must have at least one number in each row, got shape {labels.shape}.")
    _check_integer_conventions(inputs, labels)
    if are_flags(inputs, labels):
        labels = labels.astype(bool)
    if labels.dtype.kind == "b" and labels.ndim == 1:
        raise ValueError(
            f"labels of type bool must be [{len(inputs)}, L], got [{len(inputs)}]; use astype(int) for classes."
        )
    if labels.dtype.kind == "f":
        _check_finite_targets(labels)
        wanted = inputs.dtype if inputs.dtype.kind == "f" else np.dtype(np.float32)
        remedy = "subtract their mean and divide by their standard deviation"
        check_rounding("labels", labels, jax.dtypes.canonicalize_dtype(wanted), remedy)
        labels = labels.astype(wanted)
    kind = label_kind(labels)
    if kind in ("regression", "multilabel"):
        width = 1 if labels.ndim == 1 else labels.shape[1]
        if num_classes not in (None, width):
            column = f"{COLUMN} for a column" if width == 1 else "labels.argmax(1) for flags"
            classes = "labels.astype(int)" if kind == "regression" else column
            raise ValueError(
                f"num_classes must be {width}, the {kind} labels of a row, got {num_classes}; leave it out. For "
                f"classes use {classes}."
            )
        num_classes = width
    check_positions(inputs, labels)
    if num_classes is None:
        column = f"; for classes in a column use {COLUMN}" if labels.ndim == 2 and labels.shape[1] == 1 else ""
        raise ValueError(f"num_classes must be given, the number of {_plural_noun(kind)}{column}.")
    check_num_classes("num_classes", num_classes)
    check_values(inputs, labels, num_classes)
    return labels if kind in ("regression", "multilabel") else to_integers("labels", labels), num_classes


def _check_integer_conventions(inputs: np.ndarray, labels: np.ndarray) -> None:
    """Raises ValueError for integers `[P, 1]`, for vectors with a single 1, and for `[P, T]` beside images."""
    if labels.dtype.kind not in "iu" or labels.ndim != 2 or _are_tokens(inputs, labels):
        return
    if labels.shape[1] == 1:
        raise ValueError(
            f"labels must have shape [{len(labels)}] if they are classes, got a column of integers, {labels.shape}; "
            f"use {COLUMN} (for a label that is true or false labels.astype(bool), for a number labels.astype(float))."
        )
    if conventions.are_one_hot(labels):
        raise ValueError(
            f"labels must have shape [{len(labels)}] if they are classes, got {labels.dtype} of shape {labels.shape} "
            "with a single 1 in each row; use labels.argmax(1) (for several labels of a row, labels.astype(bool))."
        )
    if conventions.have_channels_first(inputs.shape) and labels.shape == inputs.shape[:2]:
        raise ValueError(
            f"labels [P, T] of integers must be tokens of sequences, got {labels.shape} beside inputs {inputs.shape}, "
            "which look like images with channels first; use inputs.transpose(0, 2, 3, 1), and bool for multilabel, "
            "float for regression, or [P] for classes."
        )


def _are_tokens(inputs: np.ndarray, labels: np.ndarray) -> bool:
    """Returns whether inputs are tokens, integers from 0 with the shape of the labels."""
    whole = inputs.dtype.kind in "iu" and inputs.dtype != np.uint8
    return whole and inputs.shape == labels.shape and inputs.min(initial=0) >= 0


def _check_finite_targets(labels: np.ndarray) -> None:
    """Raises ValueError if a number to predict is NaN or infinite."""
    if not (finite := np.isfinite(labels)).all():
        row = int(np.argmax(~finite.reshape(len(labels), -1).all(1)))
        raise ValueError(
            f"labels must be finite, got NaN or infinity in row {row}; drop the row or replace its values."
        )


def check_num_classes(name: str, num_classes: int) -> None:
    """Raises ValueError if there are no classes, or more than a network can have outputs."""
    if num_classes < 1:
        raise ValueError(f"{name} must be at least 1, got {num_classes}.")
    if num_classes > MAX_CLASSES:
        raise ValueError(
            f"{name} must be at most {MAX_CLASSES}, got {num_classes}; number the classes without gaps by "
            "np.unique(labels, return_inverse=True)[1]."
        )


def count_classes(name: str, labels: Sequence[np.ndarray], remedy: str) -> int:
    """Returns one more than the highest label; warns if classes have no rows.

    Args:
        name: name of the labels, for the messages.
        labels: arrays of classes from 0, such as those of training and test rows.
        remedy: alternative to renumbering, for the warning.

    Raises:
        ValueError: the labels are ids: large, and nearly all smaller ones are missing.

    >>> count_classes("y", [np.array([0, 2**31])], "")
    Traceback (most recent call last):
    ValueError: y must be classes 0 to L - 1, got 2147483648 in row 1 and only 2 different ones; number them ...
    """
    highest = max(int(part.max(initial=0)) for part in labels)
    present = len(np.unique(np.concatenate([np.unique(part) for part in labels])))
    if highest >= IDS and present < highest / 100:
        row = next(int(np.argmax(part)) for part in labels if int(part.max(initial=0)) == highest)
        raise ValueError(
            f"{name} must be classes 0 to L - 1, got {highest} in row {row} and only {present} different ones; number "
            "them by np.unique(labels, return_inverse=True)[1]."
        )
    if 1 < present < highest + 1:  # of one class `jaxfl.data.load` warns
        warnings.warn(
            f"{name} has {present} of the {highest + 1} classes 0 to {highest}; number them without gaps, or {remedy}.",
            stacklevel=2,
        )
    return highest + 1


def are_flags(inputs: np.ndarray, labels: np.ndarray) -> bool:
    """Returns whether integers `[P, L]` are multilabel: all are 0 or 1, and the inputs are not tokens of that shape."""
    if labels.dtype.kind not in "iu" or labels.ndim != 2:
        return False
    return not _are_tokens(inputs, labels) and labels.min(initial=0) >= 0 and labels.max(initial=0) <= 1


def check_values(inputs: AnyArray, labels: np.ndarray, num_classes: int) -> None:
    """Raises ValueError if labels are not finite, not from 0 to L - 1, or not tokens for all positions of the inputs.

    Args:
        inputs: `[P, ...]`, of which only the shape is used.
        labels: labels of one of the kinds.
        num_classes: L.
    """
    kind = label_kind(labels)
    if kind == "regression":
        _check_finite_targets(labels)
    if kind in ("regression", "multilabel"):
        return
    least = 0 if kind == "classification" else MASKED
    if labels.size and not (least <= labels.min() and labels.max() < num_classes):
        place = np.unravel_index(np.argmax((labels < least) | (labels >= num_classes)), labels.shape)
        remedy = "renumber the labels or raise num_classes"
        if kind == "classification" and labels[place] < 0:
            remedy = "use (labels > 0).astype(int)" if (np.abs(labels) == 1).all() else "number the labels from 0"
        masked = f", or {MASKED} where no token is to be learned" if kind == "next_token" else ""
        raise ValueError(
            f"labels must be in 0..{num_classes - 1} (num_classes={num_classes}){masked}, got {labels[place]} in row "
            f"{place[0]}; {remedy}."
        )
    check_positions(inputs, labels)


def check_positions(inputs: AnyArray, labels: AnyArray) -> None:
    """Raises ValueError unless labels that are tokens have one for every position of the inputs."""
    if label_kind(labels) == "next_token" and labels.shape != inputs.shape[:2]:
        raise ValueError(
            f"labels [P, T] of integers must have one for every position of inputs [P, T, ...], got {labels.shape} "
            f"for {inputs.shape}; use bool for multilabel, float for regression, and [P] for classes, such as "
            f"{COLUMN} of one column."
        )


SKEWS = "leave it out (the skews iid, quantity, rotated and writers need no classes)"


def check_classes(argument: str, labels: AnyArray, remedy: str = SKEWS) -> None:
    """Raises ValueError unless every row has one class as its label.

    Args:
        argument: name of the argument or function that needs classes, for the message.
        labels: labels of any kind.
        remedy: the end of the message.
    """
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise ValueError(
            f"{argument} must have labels that are classes, integers [P], got {labels.dtype} of shape {labels.shape}; "
            f"{remedy}."
        )


def class_count_phrase(kind: LabelKind, num_classes: int) -> str:
    """Returns a phrase for L and its unit.

    >>> class_count_phrase("regression", 1), class_count_phrase("classification", 10)
    ('1 target', '10 classes')
    """
    return f"{num_classes} {COUNTED[kind] if num_classes == 1 else _plural_noun(kind)}"


def _plural_noun(kind: LabelKind) -> str:
    """Returns the plural noun of a kind of labels."""
    word = COUNTED[kind]
    return f"{word}es" if word.endswith("s") else f"{word}s"
