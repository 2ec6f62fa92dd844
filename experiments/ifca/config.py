"""IFCA's table of rotated MNIST: IFCA, one global model, and everyone alone, at three sizes of clients.

As the official code sets it: 784-200-10, pixels / 255, 4 rotations, full-batch gradient steps, tau = 10 of them in a
round, eta = 0.1, 300 rounds, everyone in every round, 5 seeds, K = 4 independent random initial models.
"""

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


def mnist(column: str, row: str, *, laptop: bool) -> Cell:
    """Returns a cell; clients that learn alone need no others: a tenth of them is a sample of the table's."""
    clients, rows = SIZES[column]
    method, options = METHODS[row]
    alone = method == "local"
    number = clients // SHARE if laptop and alone else clients
    return Cell(
        TABLE,
        row,
        column,
        method,
        "rotated-mnist",
        (f"num_clients={number}", f"rows_per_client={rows}", *TRAINING, *options),
        rounds=100 if laptop and not alone else ROUNDS,
        cohort=1 / SHARE if laptop and not alone else 1.0,
        seeds=SEEDS[:1] if laptop else SEEDS,
        note="a tenth of the clients, each trained as in the paper." if laptop and alone else "",
    )


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
            "that learn alone do so for all 300 rounds, a tenth of them.",
            tuple(mnist(column, row, laptop=True) for column in SIZES for row in METHODS),
        ),
        "paper": Scale(
            "The setting of the paper and of its official code.",
            tuple(mnist(column, row, laptop=False) for column in SIZES for row in METHODS),
        ),
    },
    claims=(Claim(TABLE, "*", "IFCA", "global model"), Claim(TABLE, "*", "IFCA", "local models")),
)
