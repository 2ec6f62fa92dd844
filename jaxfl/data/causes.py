"""Causes of the true groups: in which ways clients were made different, and which of these ways count as groups.

A skew or a shift that plants groups names its cause, and gives every client the number of one of its patterns:

    rotation     rotated                                       p(x)
    labels       shifted, swapped, permuted, mirrored          p(y|x)
    classes      pathological, dominant                        p(y)
    colour       coloured                                      p(x), as the next two
    corruption   corrupted
    stroke       thickened
    classwise    classwise                                     p(x|y)
    domain       hybrid
    makers       writers, of makers in known groups

The true groups are the products of all causes, unless `truth` names those that count: a method that is to find the
clients with one labelling, whatever their rotation, is judged by `truth="labels"`. The metrics say how far the clusters
follow each cause, see `jaxfl.simulation.evaluation.metrics`.

>>> from jaxfl.data import load
>>> data = load("rotated+shifted-digits", num_clients=16, angles=(0, 90), shifts=(0, 5), truth="labels")
>>> list(data.causes), data.group_names, len(np.unique(data.causes["rotation"]))
(['labels', 'rotation'], ('shift 0', 'shift 5'), 2)
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxfl.data.clients import FederatedData
from jaxfl.schema import quoted

UNNAMED = "group"  # the cause of groups that are known without one


def declared(data: FederatedData, cause: str, pattern: np.ndarray, names: Sequence[str]) -> FederatedData:
    """Returns the federation with a cause by which its clients were planted; the true groups are left as they are.

    Args:
        data: the federation; of groups without a known cause they become one, `"group"`.
        cause: name of the cause. Patterns of a cause that was planted before are multiplied with the new ones.
        pattern: number of each client's pattern `[N]`.
        names: names of the patterns.

    >>> from jaxfl.data import synthetic
    >>> data = declared(synthetic.clustered_linear(4), "rotation", np.array([0, 0, 1, 1]), ("0°", "90°"))
    >>> {cause: pattern.tolist() for cause, pattern in data.causes.items()}
    {'group': [0, 1, 0, 1], 'rotation': [0, 0, 1, 1]}
    """
    causes, known = dict(data.causes), dict(data.cause_names)
    if data.group is not None and not causes:
        causes[UNNAMED], known[UNNAMED] = np.asarray(data.group), group_labels(data)
    if cause in causes:
        pattern, names = product(np.asarray(causes[cause]), known.get(cause, ()), pattern, names)
    causes[cause], known[cause] = np.asarray(pattern, np.int32), tuple(names)
    return dataclasses.replace(data, causes=causes, cause_names=tuple(known.items()))


def planted(data: FederatedData, cause: str) -> FederatedData:
    """Returns the federation whose true groups are the patterns of one cause."""
    names = group_labels(data)
    return dataclasses.replace(data, causes={cause: np.asarray(data.group)}, cause_names=((cause, names),))


def with_truth(data: FederatedData, truth: str | Sequence[str]) -> FederatedData:
    """Returns the federation whose true groups are the products of some of its causes.

    Args:
        data: the federation.
        truth: names of causes, or one text with commas between them.

    Raises:
        ValueError: the federation has no such cause.
    """
    chosen = tuple(dict.fromkeys(word.strip() for word in (truth.split(",") if isinstance(truth, str) else truth)))
    if unknown := [cause for cause in chosen if cause not in data.causes] or ([] if chosen else [""]):
        known = ", ".join(dict(data.cause_names)) or "none"
        raise ValueError(f"truth must name causes of the groups of {data.name} ({known}), got {quoted(unknown[0])}.")
    group, names = np.zeros(data.num_clients, np.int32), ("",)
    for cause, known in data.cause_names:  # in the order of the names of all groups
        if cause in chosen:
            group, names = product(group, names, np.asarray(data.causes[cause]), known)
    return dataclasses.replace(data, group=group, group_names=tuple(names))


def product(
    first: np.ndarray, first_names: Sequence[str], second: np.ndarray, second_names: Sequence[str]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns number and names of the pairs of two patterns of each client `[N]`; pairs without a client are dropped.

    >>> product(np.array([0, 1, 1]), ("a", "b"), np.array([1, 0, 1]), ("0°", "90°"))
    (array([0, 1, 2], dtype=int32), ('a; 90°', 'b; 0°', 'b; 90°'))
    """
    width = len(second_names)
    pairs, number = np.unique(np.asarray(first, np.int64) * width + second, return_inverse=True)
    heads = [f"{name}; " if name else "" for name in first_names]
    names = tuple(f"{heads[pair // width] if heads else ''}{second_names[pair % width]}" for pair in pairs.tolist())
    return number.reshape(-1).astype(np.int32), names


def group_labels(data: FederatedData) -> tuple[str, ...]:
    """Returns the names of the true groups, or `group 0`, `group 1`, ... where they have none."""
    if data.group is None:
        return ()
    return data.group_names or tuple(f"group {number}" for number in range(int(np.max(data.group, initial=-1)) + 1))
