"""Planted problems: small federations with known true groups and true models.

>>> data = clustered_linear(num_clients=4, num_groups=2, rows=6, features=3)
>>> data.group.tolist(), data.inputs.shape
([0, 1, 0, 1], (48, 3))
"""

from typing import Any

import numpy as np

from jaxfl.data import partition
from jaxfl.data.building import federate
from jaxfl.data.clients import FederatedData
from jaxfl.data.sources import linear_mixture as mixtures
from jaxfl.random import host_rng


def planted_weights(num_groups: int, features: int, num_classes: int, *, seed: int = 0) -> np.ndarray:
    """Returns the true linear models of `clustered_linear`, `[groups, features, num_classes]`.

    The models are the corners of a regular simplex centred at 0, whose distances are the largest possible: two groups
    have opposite models.

    >>> weights = planted_weights(3, features=4, num_classes=2).reshape(3, -1)
    >>> np.round(weights @ weights.T / (weights[0] @ weights[0]), 2).tolist()
    [[1.0, -0.5, -0.5], [-0.5, 1.0, -0.5], [-0.5, -0.5, 1.0]]
    """
    if not 1 <= num_groups <= features * (num_classes - 1):
        raise ValueError(
            f"num_groups must be between 1 and features * (num_classes - 1) = {features * (num_classes - 1)}, got "
            f"{num_groups}; use more features or fewer groups."
        )
    rng = host_rng(seed, "synthetic", "weights")
    directions = rng.standard_normal((num_groups, features, num_classes))
    directions -= directions.mean(
        2, keepdims=True
    )  # the softmax does not depend on a part that is common to all classes
    orthonormal = np.linalg.qr(directions.reshape(num_groups, -1).T)[0].T
    corners = orthonormal - (orthonormal.mean(0, keepdims=True) if num_groups > 1 else 0.0)
    corners *= np.sqrt(features * num_classes / (corners[:1] ** 2).sum())  # weights of about unit size
    return corners.reshape(num_groups, features, num_classes)


def clustered_linear(
    num_clients: int = 20,
    num_groups: int = 2,
    rows: int = 50,
    features: int = 8,
    num_classes: int = 3,
    *,
    seed: int = 0,
    ragged: bool = False,
    dtype: type[np.floating] = np.float32,
) -> FederatedData:
    """Returns a classification problem with true weights by group: `y = argmax(x @ weights[group])`, `x` normal.

    It is separable within a group and contradictory between groups: one model for two groups is near chance.
    Client i is in group `i % num_groups`. With equal sizes and two groups, IFCA with two random models and StoCFL at
    threshold 0.5 find the groups exactly at the defaults; clients of one or two rows, which occur with `ragged`, have
    too few rows to identify their group with certainty.

    Args:
        num_clients: N.
        num_groups: number of true models.
        rows: training rows of a client, and as many test rows.
        features: d.
        num_classes: L.
        seed: seed of weights and examples.
        ragged: sizes between 1 and `rows`, the largest taken by some client, and client 1 without any row.
        dtype: type of the inputs, float32 or float64.

    >>> clustered_linear(num_clients=5, rows=10, ragged=True).train.size.tolist()[1]
    0
    """
    for argument, value in {"num_clients": num_clients, "rows": rows, "features": features}.items():
        partition.check_count(argument, value)
    if num_classes < 2:
        raise ValueError(f"num_classes must be 2 or more, got {num_classes}.")
    weights = planted_weights(num_groups, features, num_classes, seed=seed)
    group = np.arange(num_clients, dtype=np.int32) % num_groups
    sizes = np.full(num_clients, rows)
    if ragged:
        sizes = host_rng(seed, "synthetic", "sizes").integers(1, rows + 1, num_clients)
        sizes[0], sizes[1:2] = rows, 0
    owner = np.repeat(np.arange(num_clients), 2 * sizes)
    # Rounded to the precision of dtype first: the label must be that of the rounded input.
    inputs = host_rng(seed, "synthetic", "inputs").standard_normal((len(owner), features)).astype(dtype)
    scores = np.einsum("pd,pdl->pl", inputs.astype(np.float64), weights[group[owner]])
    parts = np.split(np.arange(len(owner)), np.cumsum(2 * sizes)[:-1])
    return federate(
        inputs,
        scores.argmax(1),
        [part[: len(part) // 2] for part in parts],
        [part[len(part) // 2 :] for part in parts],
        num_classes=num_classes,
        group=group,
        name="clustered-linear",
        group_names=tuple(f"model {index}" for index in range(num_groups)),
    )


def linear_mixture(
    num_clients: int = 300,
    num_components: int = 3,
    features: int = 150,
    *,
    alpha: float = 0.4,
    noise: float = 0.1,
    test_rows: int = 5000,
    labelling: mixtures.Labelling = "paper",
    seed: int = 12345,
) -> FederatedData:
    """Returns FedEM's synthetic federation: each client's rows are a mixture of linear models, in its own shares.

    See `jaxfl.data.sources.linear_mixture`. The draws are those of the official code in their order, so that the rows
    are the official ones; with `labelling="code"` their labels, too, but for outputs that are 0 to the last bit. The
    default needs 1 GB.

    Args:
        num_clients: N.
        num_components: number of models.
        features: d.
        alpha: concentration of the shares.
        noise: standard deviation of the noise.
        test_rows: test rows of each client.
        labelling: "paper" labels each row by its model, "code" as the official code does.
        seed: seed of the code.

    References:
        Marfoq, Neglia, Bellet, Kameni and Vidal, "Federated Multi-Task Learning under a Mixture of Distributions",
        NeurIPS 2021; omarfoq/FedEM@996fadd, `data/synthetic/generate_data.py`.

    >>> data = linear_mixture(num_clients=3, features=4, test_rows=10)
    >>> data.test.size.tolist(), data.num_classes, data.group is None
    ([10, 10, 10], 2, True)
    """
    counts = {"num_clients": num_clients, "num_components": num_components, "features": features}
    for argument, value in {**counts, "test_rows": test_rows}.items():
        partition.check_count(argument, value)
    inputs, labels, sizes, _ = mixtures.draw_mixtures(
        num_clients,
        num_components,
        features,
        alpha=alpha,
        noise=noise,
        test_rows=test_rows,
        labelling=labelling,
        seed=seed,
    )
    ends = np.cumsum(np.stack([sizes, np.full(num_clients, test_rows)], 1))
    parts = np.split(np.arange(len(labels)), ends[:-1])
    train, test = parts[::2], parts[1::2]
    return federate(inputs, labels, train, test, num_classes=2, name="linear-mixture", check_repeats=False)


def prototypes(num_clients: int, rows: int, shape: tuple[int, ...], num_classes: int, **options: Any) -> FederatedData:
    """Returns a learnable federation of any size: noisy prototypes of the classes, uint8 in a shared pool.

    Speed is measured on it; equal arguments give equal data.

    Args:
        num_clients: N.
        rows: training rows of a client, drawn from a pool of at most 60,000 rows (the size of MNIST); no test rows.
        shape: shape of one input.
        num_classes: L.
        **options: of `federate`, e.g. `rotation`.

    >>> data = prototypes(num_clients=3, rows=4, shape=(5,), num_classes=2)
    >>> data.inputs.shape, data.train.size.tolist()
    ((12, 5), [4, 4, 4])
    """
    rng = np.random.default_rng(0)
    pool = min(60_000, num_clients * rows)
    labels = rng.integers(0, num_classes, pool)
    centre = rng.integers(0, 128, (num_classes, *shape), np.uint8)
    inputs = centre[labels] + rng.integers(0, 128, (pool, *shape), np.uint8)
    owned = rng.integers(0, pool, (num_clients, rows))
    nothing = [np.zeros(0, int)] * num_clients
    options = {"num_classes": num_classes, "mean": 127.0, "std": 64.0, "check_repeats": False, **options}
    return federate(inputs, labels, list(owned), nothing, **options)
