"""Rows, data and training of StoCFL's tables; `config` says what each scale makes of them."""

import dataclasses
from typing import Any

from experiments.harness.base import Cell

METHODS = {
    "FedAvg": ("fedavg", ()),  # all clients have as many rows: weighting by them changes nothing
    "FedAvg, chain": ("fedavg", ("update=chain",)),
    "FedProx": ("fedprox", ("proximal_weight=0.05",)),
    "Ditto": ("ditto", ("weighting=uniform", "proximal_weight=0.1")),
    "IFCA M=2": ("ifca", ("weighting=uniform", "num_clusters=2")),
    "IFCA M=4": ("ifca", ("weighting=uniform", "num_clusters=4")),
    "IFCA M=6": ("ifca", ("weighting=uniform", "num_clusters=6")),
    "StoCFL": ("stocfl", ("weighting=uniform", "threshold=0.5", "proximal_weight=0.05")),
    "StoCFL, auto": ("stocfl", ("weighting=uniform", "threshold=auto", "proximal_weight=0.05")),
    "StoCFL, official": (
        "stocfl",
        ("preset=official", "weighting=uniform", "threshold=0.5", "proximal_weight=0.05"),
    ),
}
OURS = ("StoCFL", "StoCFL, official")
SGD = ("local_epochs=5", "optimizer=sgd", "learning_rate=0.1")
MNIST = ("model=mlp", "hidden=2048", "batch_size=none", *SGD)
CIFAR = ("num_clients=200", "rows_per_client=500", "angles=0,180", "model=stocfl-cifar-cnn", "batch_size=50", *SGD)
OFFICIAL_CIFAR = ("threshold=0.65", "representation_epochs=20", "scaling=half")
OFFICIAL_SHIFTED = ("representation_epochs=1",)
SIZES = {"MNIST 4800 x 50": (4800, 50), "MNIST 2400 x 100": (2400, 100), "MNIST 1200 x 200": (1200, 200)}
COHORTS = {"10 %": 0.1, "100 %": 1.0}
SEEDS = (0, 1, 2, 3, 4)


def cell(row: str, column: str, data: str, items: tuple[str, ...], **numbers: Any) -> Cell:
    """Returns a cell of table 1, evaluated twenty times, but after five rounds or more.

    Ditto's models, one for every client, are evaluated and kept twice. StoCFL represents everybody who was never
    sampled in every evaluation, which takes longer than a round of a tenth of them.
    """
    method, options = METHODS[row]
    eval_every = numbers["rounds"] // 2 if method == "ditto" else max(5, numbers["rounds"] // 20)
    return Cell("Table 1", row, column, method, data, (*options, *items), eval_every=eval_every, **numbers)


def official(row: str, items: tuple[str, ...]) -> tuple[str, ...]:
    """Returns what the paper's code sets in its own way, for the row that does as the code does."""
    return items if row == "StoCFL, official" else ()


def mnist(row: str, size: str, share: str, seeds: tuple[int, ...] = SEEDS, rounds: int = 100, note: str = "") -> Cell:
    """Returns a cell of rotated MNIST."""
    clients, rows = SIZES[size]
    items = (f"num_clients={clients}", f"rows_per_client={rows}", *MNIST)
    where = f"{size}, {share}"
    return cell(row, where, "rotated-mnist", items, rounds=rounds, cohort=COHORTS[share], seeds=seeds, note=note)


def cifar(row: str, share: str, seeds: tuple[int, ...] = SEEDS, rounds: int = 200, note: str = "") -> Cell:
    """Returns a cell of rotated CIFAR-10."""
    column = f"CIFAR-10 200 x 500, {share}"
    items = (*CIFAR, *official(row, OFFICIAL_CIFAR))
    return cell(row, column, "rotated-cifar10", items, rounds=rounds, cohort=COHORTS[share], seeds=seeds, note=note)


# what the code's rows do at once, one by one: row: (row of table 1, what is changed)
CHAINED = {
    "StoCFL": ("StoCFL", ()),
    "StoCFL, lambda=0": ("StoCFL", ("proximal_weight=0",)),
    "StoCFL, chain": ("StoCFL", ("update=chain",)),
    "StoCFL, chain, lambda=0": ("StoCFL", ("update=chain", "proximal_weight=0")),
    "StoCFL, official": ("StoCFL, official", ()),
    "StoCFL, official, lambda=0": ("StoCFL, official", ("proximal_weight=0",)),
}
SCALED = {
    "FedAvg": ("FedAvg", ()),
    "FedAvg, pixels -1 to 1": ("FedAvg", ("scaling=half",)),
    "IFCA M=2": ("IFCA M=2", ()),
    "IFCA M=2, pixels -1 to 1": ("IFCA M=2", ("scaling=half",)),
    "StoCFL, official": ("StoCFL, official", ()),
}


def ablation() -> list[Cell]:
    """Returns the chain apart from the pull, on MNIST, and the scale of pixels, on CIFAR-10; one seed, not in print."""
    found = [(row, mnist(of, "MNIST 1200 x 200", "10 %", SEEDS[:1]), more) for row, (of, more) in CHAINED.items()]
    found += [(row, cifar(of, "10 %", SEEDS[:1]), more) for row, (of, more) in SCALED.items()]
    return [dataclasses.replace(one, table="Ablation", row=row, items=(*one.items, *more)) for row, one, more in found]


def digits(row: str) -> Cell:
    """Returns a cell of the embedded digits."""
    method, options = METHODS[row]
    items = (*MNIST, *options, "num_clients=8", "rows_per_client=80", "hidden=32", "local_epochs=2")
    return Cell("Digits", row, "8 x 80, 50 %", method, "rotated-digits", items, rounds=4, cohort=0.5, seeds=SEEDS[:1])


# FEMNIST, and what stands in for it

FOUND = {
    "IFCA M=2": ("ifca", ("weighting=uniform", "num_clusters=2")),
    "IFCA M=3": ("ifca", ("weighting=uniform", "num_clusters=3")),
    "CFL": ("cfl", ()),
    "FedAvg": ("fedavg", ("weighting=uniform",)),
    "FedAvg, chain": ("fedavg", ("weighting=uniform", "update=chain")),
    **{f"StoCFL tau=0.{tau}": ("stocfl", (f"threshold=0.{tau}",)) for tau in (55, 60, 65)},
    **{f"StoCFL, official, tau=0.{tau}": ("stocfl", ("preset=official", f"threshold=0.{tau}")) for tau in (55, 60, 65)},
}
WRITERS = ("batch_size=100", *SGD)
UNSEEN = {"participating": "micro_accuracy", "unseen": "unseen_micro_accuracy"}
UNSEEN_BY = {"FedAvg": "FedAvg", "CFL": "CFL", "IFCA": "IFCA M=2", "StoCFL": "StoCFL tau=0.55"}


def femnist(row: str, data: str, items: tuple[str, ...], note: str = "", **numbers: Any) -> Cell:
    """Returns a cell of table 2."""
    method, options = FOUND[row]
    numbers |= whole(method)
    return Cell("Table 2", row, "FEMNIST", method, data, (*items, *options), note=note, **numbers)


def whole(method: str) -> dict[str, Any]:
    """Returns that everybody takes part, for CFL: it waits for all of a cluster, too long where a twentieth does."""
    return {"cohort": 1.0} if method == "cfl" else {}


def unseen(column: str, data: str, items: tuple[str, ...], note: str = "", **numbers: Any) -> list[Cell]:
    """Returns a column of table 4: three tenths of the clients are held out."""
    method, options = FOUND[UNSEEN_BY[column]]
    numbers |= whole(method)
    return [
        Cell(
            "Table 4",
            row,
            column,
            method,
            data,
            (*items, *options, "held_out=0.3"),
            metric=metric,
            note=note,
            **numbers,
        )
        for row, metric in UNSEEN.items()
    ]


# the four skews of section 4.1

SKEWS = {  # a hundred clients share the 60,000 images of a group, or the 12,000 to 19,000 of its classes
    "Pathological": ("pathological-mnist", ("num_clients=400",)),
    "Rotated": ("rotated-mnist", ("num_clients=400", "rows_per_client=600")),
    "Shifted": ("shifted-mnist", ("num_clients=400", "rows_per_client=600")),
    "Hybrid": ("hybrid-mnist", ("num_clients=200",)),
}
LAMBDAS = (10, 1, 0.5, 0.05, 0.01, 0)


def strengths(skew: str, items: tuple[str, ...], weights: tuple[float, ...] = LAMBDAS, **numbers: Any) -> list[Cell]:
    """Returns a row of table 3: a global model, and StoCFL at some lambdas."""
    data, own = SKEWS[skew]
    columns = {
        "global": ("fedavg", ("weighting=uniform",)),
        **{f"lambda={weight}": ("stocfl", (f"proximal_weight={weight}",)) for weight in weights},
    }
    return [
        Cell("Table 3", skew, column, method, data, (*own, *items, *options), cohort=0.1, **numbers)
        for column, (method, options) in columns.items()
    ]


# the setting of CFL

AS_CFL = {
    "FedAvg": METHODS["FedAvg"],
    "IFCA": METHODS["IFCA M=4"],
    "CFL": ("cfl", ()),
    "StoCFL": METHODS["StoCFL"],
    "StoCFL, official": METHODS["StoCFL, official"],
}
BATCHED = ("FedAvg", "CFL", "StoCFL")


def shifted(row: str, column: str, data: str, items: tuple[str, ...], **numbers: Any) -> Cell:
    """Returns a cell of the table without a number, called Table 6 in the text."""
    method, options = AS_CFL[row]
    items = ("num_clients=20", *items, *options, *official(row, OFFICIAL_SHIFTED))
    return Cell("Table 6", row, column, method, data, items, cohort=1.0, **numbers)


def batched(**numbers: Any) -> list[Cell]:
    """Returns three rows of it with batches of 50 images, which the paper leaves open; ours are full ones."""
    items = ("rows_per_client=1000", "model=mlp", "hidden=200", "batch_size=50", *SGD)
    rows = [shifted(row, "Shifted MNIST, batches of 50", "shifted-mnist", items, **numbers) for row in BATCHED]
    return [dataclasses.replace(one, table="Ablation") for one in rows]


# figure 4


def sampled(rows: tuple[str, ...], shares: tuple[float, ...], **numbers: Any) -> list[Cell]:
    """Returns accuracies on rotated CIFAR-10 by the share of clients in a round.

    Two rows are evaluated twice: to test Ditto's 200 models, or to place who was not sampled yet by what 20 epochs move
    (StoCFL, official), takes minutes.
    """
    seldom = {"eval_every": numbers["rounds"] // 2}
    return [
        Cell(
            "Figure 4",
            row,
            f"{share:.0%} of the clients".replace("%", " %"),
            METHODS[row][0],
            "rotated-cifar10",
            (*CIFAR, *METHODS[row][1], *official(row, OFFICIAL_CIFAR)),
            cohort=share,
            **numbers,
            **(seldom if row in ("Ditto", "StoCFL, official") else {}),
        )
        for row in rows
        for share in shares
    ]
