"""FedEM's synthetic examples: each of 300 clients has a mixture of three linear models, in shares of its own.

Inputs and models are uniform between -1 and 1, a row's model is drawn by the client's shares from a Dirichlet
distribution, and its label is 1 where the model's output, with normal noise, is positive. Numbers of training rows are
log-normal, from 50 to 1,000.

The code's counter of rows is never raised, so that each model labels the first of a client's rows, over the labels of
the models before it, and the last rows keep the label 0: `labelling="code"`, by which the published numbers came about.

Reference: Marfoq, Neglia, Bellet, Kameni and Vidal, "Federated Multi-Task Learning under a Mixture of Distributions",
NeurIPS 2021; omarfoq/FedEM@996fadd, `data/synthetic/generate_data.py`.
"""

from typing import Literal, NamedTuple

import numpy as np

from jaxfl.data.sources.base import Folder, Source, SourceEntry

Labelling = Literal["paper", "code"]
NUM_CLIENTS, NUM_COMPONENTS, FEATURES, ALPHA, NOISE, SEED = 300, 3, 150, 0.4, 0.1, 12345


class Mixtures(NamedTuple):
    """Rows of the clients, one after the other, the training rows of each before its test rows.

    Attributes:
        inputs: `[T, d]`.
        labels: `[T]`.
        train_rows: number of training rows of each client `[N]`.
        test_rows: number of test rows of each client.
    """

    inputs: np.ndarray
    labels: np.ndarray
    train_rows: np.ndarray
    test_rows: int


def draw_mixtures(
    num_clients: int,
    num_components: int,
    features: int,
    *,
    alpha: float,
    noise: float,
    test_rows: int,
    labelling: Labelling,
    seed: int,
) -> Mixtures:
    """Returns the rows of all clients, by the draws of the official code in their order.

    Args:
        num_clients: N.
        num_components: number of models.
        features: d.
        alpha: concentration of the shares.
        noise: standard deviation of the noise.
        test_rows: test rows of each client.
        labelling: of each row by its model, or as in the code.
        seed: seed of the code.
    """
    rng = np.random.RandomState(seed)
    sizes = np.minimum(rng.lognormal(4, 2, num_clients).astype(int) + 50, 1000)
    shares = [rng.dirichlet(alpha * np.ones(num_components)) for _ in range(num_clients)]
    models = rng.uniform(-1, 1, (num_components, features))
    total = int(sizes.sum()) + num_clients * test_rows
    inputs, labels = np.empty((total, features), np.float32), np.empty(total, np.int32)
    begin = 0
    for client in range(num_clients):
        for size in (int(sizes[client]), test_rows):
            counts = rng.multinomial(size, shares[client])
            x, y, first = rng.uniform(-1, 1, (size, features)), np.zeros(size, np.int32), 0
            for model, count in zip(models, counts.tolist(), strict=True):
                outputs = x[first : first + count] @ model + rng.normal(scale=noise, size=count)
                y[first : first + count] = outputs > 0
                first += count if labelling == "paper" else 0
            order = np.arange(size)
            rng.shuffle(order)
            inputs[begin : begin + size], labels[begin : begin + size] = x[order], y[order]
            begin += size
    return Mixtures(inputs, labels, sizes, test_rows)


def load(data_dir: Folder = None, *, labelling: Labelling = "paper", tested_rows: int = 100) -> Source:
    """Returns the examples of 300 clients, which are the makers; needs no file.

    Args:
        data_dir: not used.
        labelling: "paper" labels each row by its model; "code" as the official code does, by a mistake.
        tested_rows: test rows of each client (FedEM: 5,000, of 900 MB).
    """
    mixtures = draw_mixtures(
        NUM_CLIENTS,
        NUM_COMPONENTS,
        FEATURES,
        alpha=ALPHA,
        noise=NOISE,
        test_rows=tested_rows,
        labelling=labelling,
        seed=SEED,
    )
    sizes = np.stack([mixtures.train_rows, np.full(NUM_CLIENTS, tested_rows)], 1)
    tests = np.repeat(np.tile([False, True], NUM_CLIENTS), sizes.reshape(-1))
    clients = np.repeat(np.arange(NUM_CLIENTS), sizes.sum(1))
    parts = [(mixtures.inputs[chosen], mixtures.labels[chosen], clients[chosen]) for chosen in (~tests, tests)]
    (inputs, labels, makers), (test_inputs, test_labels, test_makers) = parts
    return Source(
        "linear-mixture", inputs, labels, 2, test_inputs, test_labels, clients=makers, test_clients=test_makers
    )


ENTRY = SourceEntry(
    load,
    find=None,
    summary="FedEM's 300 synthetic clients, each with a mixture of three linear models, embedded",
    licence="none, drawn at random",
    num_bytes=0,
    num_classes=2,
    makers="client",
    model=("logistic", {}),
    skews=("writers",),
)
