"""IFCA's tables of rotated MNIST and CIFAR-10: IFCA, one global model, and everyone alone.

As the official code sets it. MNIST: 784-200-10, pixels / 255, 4 rotations, full-batch gradient steps, tau = 10 of them
in a round, eta = 0.1, 300 rounds, everyone in every round, 5 seeds, K = 4 independent random initial models. CIFAR-10:
the network of TensorFlow's tutorial on random crops, 200 clients of 500 images, 2 rotations, a tenth of the clients in
a round, 5 epochs of batches of 50, eta = 0.25 * 0.99^t in round t, 600 rounds, K = 2 models that are drawn again until
each wins 35 % of the clients; clients that learn alone are sampled as the others are.
"""

from typing import Any

from experiments.harness.base import Cell, Claim, Experiment, Scale

TABLE = "Rotated MNIST"
SIZES = {
    "m=4800, n=50": (4800, 50),
    "m=2400, n=100": (2400, 100),
    "m=1200, n=200": (1200, 200),
}  # clients, rows of each
METHODS = {
    "IFCA": ("ifca", ("num_clusters=4", "average=models", "weighting=uniform")),
    "global model": ("fedavg", ("weighting=uniform",)),
    "local models": ("local", ()),
}
TRAINING = ("model=mlp", "hidden=200", "local_epochs=10", "batch_size=none", "optimizer=sgd", "learning_rate=0.1")
ROUNDS, SEEDS = 300, (0, 1, 2, 3, 4)
SHARE = 10  # at laptop scale a tenth of the clients
FEWER = "40 of 200 clients, 60 of 600 rounds."


def mnist(column: str, row: str, *, laptop: bool) -> Cell:
    """Returns a cell; clients that learn alone need no others: a tenth of them is a sample of the table's."""
    clients, rows = SIZES[column]
    method, options = METHODS[row]
    alone = method == "local"
    number = clients // SHARE if laptop and alone else clients
    training, rounds = TRAINING, 100 if laptop and not alone else ROUNDS
    notes = ["a tenth of the clients, each trained as in the paper."] if laptop and alone else []
    if alone and rows < 200:  # nobody waits for others: a quarter of the time where rows are few
        training, rounds = (*TRAINING, "local_epochs=1000"), 3
        notes.append("at 4,800 and 2,400 clients the same 3,000 steps in 3 rounds: a point in the pictures.")
    return Cell(
        TABLE,
        row,
        column,
        method,
        "rotated-mnist",
        (f"num_clients={number}", f"rows_per_client={rows}", *training, *options),
        rounds=rounds,
        cohort=1 / SHARE if laptop and not alone else 1.0,
        seeds=SEEDS[:1] if laptop else SEEDS,
        eval_every=3 if rounds == 3 else None,  # thousands of models on 10,000 rows each: once is enough
        note=" ".join(notes),
    )


# rotated CIFAR-10

OF_CIFAR = {**METHODS, "IFCA": ("ifca", ("num_clusters=2", "weighting=uniform", "start=balanced", "min_share=0.35"))}
CIFAR = (
    *("rows_per_client=500", "angles=0,180", "scaling=half", "model=ifca-cifar-cnn", "local_epochs=5"),
    *("batch_size=50", "optimizer=sgd", "learning_rate=0.25"),
    *("schedule=exponential", "schedule_rounds=1", "schedule_factor=0.99"),
)


def cifar(row: str, number: int = 200, **numbers: Any) -> Cell:
    """Returns a cell of so many clients."""
    method, options = OF_CIFAR[row]
    items = (f"num_clients={number}", *CIFAR, *options)
    return Cell("Rotated CIFAR", row, "m=200, n=500", method, "rotated-cifar10", items, cohort=1 / SHARE, **numbers)


def digits(row: str) -> Cell:
    """Returns a cell of the embedded digits."""
    method, options = METHODS[row]
    small = ("num_clients=8", "rows_per_client=80", "hidden=32", "local_epochs=2")
    return Cell(
        "Digits",
        row,
        "m=8, n=80",
        method,
        "rotated-digits",
        (*TRAINING, *options, *small),
        rounds=4,
        cohort=1.0,
        seeds=SEEDS[:1],
    )


EXPERIMENT = Experiment(
    name="ifca",
    title="IFCA",
    paper='Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020.',
    scales={
        "smoke": Scale(
            "Eight clients see the embedded digits for four rounds: it shows that the rows run, and nothing else.",
            tuple(digits(row) for row in METHODS),
        ),
        "laptop": Scale(
            "Cut: 100 of 300 rounds, a tenth of the clients in a round instead of everyone, one of five seeds; clients "
            "that learn alone make all of their steps, a tenth of them. CIFAR-10: 40 clients, 60 of 600 rounds.",
            (
                *(mnist(column, row, laptop=True) for column in SIZES for row in METHODS),
                *(cifar(row, number=40, rounds=60, eval_every=20, note=FEWER) for row in METHODS),
            ),
        ),
        "paper": Scale(
            "The setting of the paper and of its official code.",
            (
                *(mnist(column, row, laptop=False) for column in SIZES for row in METHODS),
                *(cifar(row, rounds=600, seeds=SEEDS) for row in METHODS),
            ),
        ),
    },
    claims=tuple(
        Claim(table, "*", "IFCA", other)
        for table in (TABLE, "Rotated CIFAR")
        for other in ("global model", "local models")
    ),
)
