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

from typing import Literal

import numpy as np

from jaxfl.typing import AnyArray

LabelKind = Literal["classification", "regression", "multilabel", "next_token"]
COUNTED = {"classification": "class", "regression": "target", "multilabel": "label", "next_token": "token"}
COLUMN = "labels[:, 0]"  # converts a column of classes to classes
MASKED = -1  # replaces a token that is not to be learned


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

    Integers `[P, L]` that are all 0 or 1 are multilabel, unless the inputs are tokens of that shape.

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
        raise ValueError(
            f"labels must have shape [{len(inputs)}], one per row of inputs, or [{len(inputs)}, L], got "
            f"{labels.dtype} of shape {labels.shape}{'' if labels.dtype.kind in 'iufb' else names}."
        )
    if are_flags(inputs, labels):
        labels = labels.astype(bool)
    if labels.dtype.kind == "b" and labels.ndim == 1:
        raise ValueError(f"labels of type bool must be [{len(inputs)}, L], got [{len(inputs)}]; add [:, None].")
    if labels.dtype.kind == "f":
        labels = labels.astype(inputs.dtype if inputs.dtype.kind == "f" else np.float32)
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
    if num_classes is None:
        column = f"; for classes in a column use {COLUMN}" if labels.ndim == 2 and labels.shape[1] == 1 else ""
        raise ValueError(f"num_classes must be given, the number of {_plural_noun(kind)}{column}.")
    check_values(inputs, labels, num_classes)
    return labels if kind in ("regression", "multilabel") else labels.astype(np.int32), num_classes


def are_flags(inputs: np.ndarray, labels: np.ndarray) -> bool:
    """Returns whether integers `[P, L]` are multilabel: all are 0 or 1, and the inputs are not tokens of that shape."""
    if labels.dtype.kind not in "iu" or labels.ndim != 2:
        return False
    tokens = inputs.dtype.kind in "iu" and inputs.dtype != np.uint8 and inputs.shape == labels.shape
    return not tokens and labels.min(initial=0) >= 0 and labels.max(initial=0) <= 1


def check_values(inputs: AnyArray, labels: np.ndarray, num_classes: int) -> None:
    """Raises ValueError if labels are not finite, not from 0 to L - 1, or not tokens for all positions of the inputs.

    Args:
        inputs: `[P, ...]`, of which only the shape is used.
        labels: labels of one of the kinds.
        num_classes: L.
    """
    kind = label_kind(labels)
    if kind == "regression" and not np.isfinite(labels).all():
        row = int(np.argmax(~np.isfinite(labels.reshape(len(labels), -1)).all(1)))
        raise ValueError(
            f"labels must be finite, got NaN or infinity in row {row}; drop the row or replace its values."
        )
    if kind in ("regression", "multilabel"):
        return
    least = 0 if kind == "classification" else MASKED
    if labels.size and not (least <= labels.min() and labels.max() < num_classes):
        place = np.unravel_index(np.argmax((labels < least) | (labels >= num_classes)), labels.shape)
        masked = f", or {MASKED} where no token is to be learned" if kind == "next_token" else ""
        raise ValueError(
            f"labels must be in 0..{num_classes - 1} (num_classes={num_classes}){masked}, got {labels[place]} in row "
            f"{place[0]}; renumber the labels or raise num_classes."
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
