"""The notebook of CFL's official code: EMNIST of 62 classes, half of ten clients upside down; and where CFL is tested.

As the notebook sets it: EMNIST byclass, 10,000 images, each class dealt out to 10 clients by Dirichlet(1.0), five of
them rotated by 180 degrees, 80 % for training; conv5x5x6, conv5x5x16, dense; SGD of rate 0.1 with momentum 0.9, batches
of 128, one local epoch, everyone in each of 80 rounds, means that weigh all clients alike; a split if round > 20, the
norm of the mean update is below 0.4, that of some client's above 1.6, and the cluster has more than two clients.

Not as in the notebook: its momentum goes on from round to round, here it starts fresh in every round; its rate is
multiplied by 0.99 after every round, here it stays. No skew of the catalogue is Dirichlet and limited in rows, so there
are two columns at paper scale: 1,000 rows for each client, all classes alike; and all rows of EMNIST, by Dirichlet.

The notebook draws curves and has no table, so both tables here are ours. Two more columns are settings where one model
cannot serve all: digits in four rotations, and MNIST in four numberings of its classes (StoCFL's setting for CFL).
"""

import dataclasses
from collections.abc import Sequence

from experiments.cfl.studies import BOTH, RELATIVE, of
from experiments.harness.base import Cell, Claim, Experiment, Scale

METHODS = {
    "FedAvg": ("fedavg", ()),
    "CFL": ("cfl", ()),
    "CFL, official": ("cfl", ("preset=official",)),
    "FL+HC": ("flhc", ()),
}


def column(name: str, data: str, *items: str, rounds: int, seeds: tuple[int, ...] = (0,)) -> list[Cell]:
    """Returns the cells of some data in both tables: a run fills one of each."""
    runs = [
        Cell(
            "Clusters found",
            row,
            name,
            method,
            data,
            (*items, *options),
            rounds=rounds,
            cohort=1.0,
            seeds=seeds,
            metric="ari",
            unit="",
        )
        for row, (method, options) in METHODS.items()
    ]
    return [*runs, *(dataclasses.replace(run, table="Accuracy", metric="micro_accuracy", unit="%") for run in runs)]


def scale(cuts: str, columns: Sequence[tuple[list[Cell], Sequence[str]]]) -> Scale:
    """Returns a scale of some columns, each with the thresholds with which CFL is drawn."""
    cells = [cell for column, _ in columns for cell in column]
    drawn = [(next(cell for cell in column if cell.row == "CFL"), ways) for column, ways in columns]
    return Scale(cuts, tuple(sorted(cells, key=lambda cell: cell.table, reverse=True)), of(drawn))


THREE = (0, 1, 2)
TRAINING = ("optimizer=momentum", "learning_rate=0.1", "local_epochs=1", "batch_size=128")
NOTEBOOK = ("num_clients=10", "test_share=0.2", "angles=(0,180)", "model=lenet-emnist", *TRAINING)
LIMITED = (*NOTEBOOK, "rows_per_client=1000")
ROTATED = ("num_clients=40", "rows_per_client=80", "model=mlp", "hidden=64", "learning_rate=0.1", "local_epochs=5")
SHIFTED = ("num_clients=20", "model=mlp", "hidden=200", "learning_rate=0.1", "local_epochs=5")
SMALL = ("num_clients=8", "rows_per_client=40", "model=logistic", "learning_rate=0.1", "local_epochs=5")

EXPERIMENT = Experiment(
    name="cfl",
    title="CFL",
    paper='Sattler, Mueller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multitask '
    'Optimization under Privacy Constraints", IEEE TNNLS 2020.',
    scales={
        "smoke": scale(
            "Eight clients see the embedded digits in four rotations for forty rounds, a linear model.",
            [(column("digits", "rotated-digits", *SMALL, rounds=40), RELATIVE)],
        ),
        "laptop": scale(
            "UNIPEN stands in for EMNIST byclass, both have 62 classes: 1,000 rows for each client, all classes alike "
            "instead of by Dirichlet(1.0). Momentum starts fresh in every round and the rate stays at 0.1; the "
            "notebook keeps the one and lowers the other. MNIST's clients have 1,000 rows instead of 9,600, for 60 "
            "rounds instead of 100. Three seeds.",
            [
                (column("rotated UNIPEN", "rotated+iid-unipen", *LIMITED, rounds=80, seeds=THREE), BOTH),
                (column("rotated digits", "rotated-digits", *ROTATED, rounds=100, seeds=THREE), RELATIVE),
                (
                    column("shifted MNIST", "shifted-mnist", *SHIFTED, "rows_per_client=1000", rounds=60, seeds=THREE),
                    RELATIVE,
                ),
            ],
        ),
        "paper": scale(
            "The setting of the notebook, but for what config.py lists: fresh momentum, a constant rate, and rows "
            "either limited or dealt out by Dirichlet(1.0), not both.",
            [
                (column("rotated EMNIST", "rotated+iid-emnist-byclass", *LIMITED, rounds=80), BOTH),
                (
                    column(
                        "rotated EMNIST, Dirichlet",
                        "rotated+dirichlet-emnist-byclass",
                        *NOTEBOOK,
                        "alpha=1.0",
                        "weighting=uniform",
                        rounds=80,
                    ),
                    BOTH,
                ),
                (column("shifted MNIST", "shifted-mnist", *SHIFTED, "rows_per_client=9600", rounds=100), RELATIVE),
            ],
        ),
    },
    claims=(Claim("Accuracy", "*", "CFL", "FedAvg"), Claim("Accuracy", "*", "FL+HC", "FedAvg", ours=True)),
)
