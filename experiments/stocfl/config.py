"""StoCFL's tables 1 to 4, the one without a number, and figures 2 to 5, 7 and 8.

As the paper states it: MNIST 784-2048-10, 4 rotations, 100 rounds of 5 full-batch epochs; CIFAR-10 2 rotations, 200
clients of 500 images, 200 rounds, batches of 50 (5 epochs, as the official code says); eta = 0.1, 10 % or all of the
clients in a round, tau = 0.5, lambda = 0.05, 5 seeds. In the setting of CFL 20 clients, 4 shifts of the labels, all of
them in every round. FEMNIST 3,597 writers (LEAF's own choice leaves 3,550), 5 % in each of 100 rounds.

What the paper leaves open: FedProx has mu = 0.05, as large as StoCFL's lambda. Ditto has lambda = 0.1, which the
library that its code builds on takes whatever one asks for. Table 3 has a tenth of the clients in a round, full
batches, and the training of table 1. FEMNIST has eta = 0.1, batches of 100 and 5 epochs, the defaults of that library's
CFL, and the official code's network. CIFAR-10 in the setting of CFL is trained as in table 1.

Rows called "official" and "chain" do what the paper's code does where it does not do what the paper says. On CIFAR-10
its README has tau 0.65 and representations after 20 epochs, and its pixels lie between -1 and 1; under shifted labels
representations are of one epoch. In tables 2 and 4 everybody takes part in CFL, where other rows sample a twentieth: it
splits a cluster of which all have sent an update, and a sample never is.
"""

from typing import Any

from experiments.harness.base import Cell, Experiment, Scale
from experiments.stocfl import studies

METHODS = {
    "FedAvg": ("fedavg", ()),  # all clients have as many rows: weighting by them changes nothing
    "FedAvg, chain": ("fedavg", ("update=chain",)),
    "FedProx": ("fedprox", ("proximal_weight=0.05",)),
    "Ditto": ("ditto", ("weighting=uniform", "proximal_weight=0.1")),
    "IFCA M=2": ("ifca", ("weighting=uniform", "num_clusters=2")),
    "IFCA M=4": ("ifca", ("weighting=uniform", "num_clusters=4")),
    "IFCA M=6": ("ifca", ("weighting=uniform", "num_clusters=6")),
    "StoCFL": ("stocfl", ("weighting=uniform", "threshold=0.5", "proximal_weight=0.05")),
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
    """Returns that everybody takes part, for CFL: it never splits a cluster of which a sample takes part."""
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


def shifted(row: str, column: str, data: str, items: tuple[str, ...], **numbers: Any) -> Cell:
    """Returns a cell of the table without a number, called Table 6 in the text."""
    method, options = AS_CFL[row]
    items = ("num_clients=20", *items, *options, *official(row, OFFICIAL_SHIFTED))
    return Cell("Table 6", row, column, method, data, items, cohort=1.0, **numbers)


# figure 4


def sampled(rows: tuple[str, ...], shares: tuple[float, ...], **numbers: Any) -> list[Cell]:
    """Returns accuracies on rotated CIFAR-10 by the share of clients in a round."""
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
        )
        for row in rows
        for share in shares
    ]


SMALL = ("model=mlp", "hidden=200", "batch_size=none", *SGD)
SHORT = "20 of 100 rounds"
STAND_IN = "UNIPEN's 317 writers in place of FEMNIST's: compare the order of the rows, not the numbers."
FEMNIST = ("model=stocfl-femnist-cnn", *WRITERS)
MNIST_AS_CFL = "Shifted MNIST 20 x 9600"
AS_STATED: dict[str, Any] = {"clustered": (400, 400, 400, 200), "hidden": 2048, "crossed": 400}
UNIPEN = ("model=mlp", "hidden=200", *WRITERS)
FEW_ROUNDS: dict[str, Any] = {"rounds": 50, "cohort": 0.05, "eval_every": 10}
SOME = ("IFCA M=2", "IFCA M=3", "CFL", "FedAvg", "StoCFL tau=0.55", "StoCFL tau=0.60", "StoCFL, official, tau=0.55")
ONE = SEEDS[:1]

EXPERIMENT = Experiment(
    name="stocfl",
    title="StoCFL",
    paper='Zeng, Hu, Liu, Yu, Wang and Xu, "Stochastic Clustered Federated Learning", 2023.',
    scales={
        "smoke": Scale(
            "Eight clients see the embedded digits for four rounds: it shows that the rows run, and nothing else.",
            tuple(digits(row) for row in METHODS),
            studies.of(
                rows=80,
                clustered=(8, 8, 8, 4),
                hidden=64,
                crossed=16,
                writers=digits("StoCFL"),
                curves=[digits("IFCA M=4"), digits("StoCFL")],
                sources=("digits",),
                matrix_rows=60,
                sizes=[(16, 80)],
                seeds=(0,),
            ),
        ),
        "laptop": Scale(
            "Cut: one seed; table 1 with all methods for one of the eight columns and with StoCFL for three others of "
            "MNIST (20 rounds) and 10 rounds of CIFAR-10; tables 3 and 6 with 200 hidden units and fewer rows (100 and "
            "1,000), table 3 with three lambdas, table 6 for 60 rounds and MNIST only; UNIPEN by writer in place of "
            "FEMNIST, with 200 hidden units, 50 rounds; figure 4 with two shares, 10 rounds.",
            (
                *(mnist(row, "MNIST 1200 x 200", "10 %", ONE) for row in METHODS),
                *(
                    mnist(row, size, "10 %", ONE, 20, SHORT)
                    for size in ("MNIST 2400 x 100", "MNIST 4800 x 50")
                    for row in OURS
                ),
                *(mnist(row, "MNIST 4800 x 50", "100 %", ONE, 20, SHORT) for row in OURS),
                *(cifar(row, "10 %", ONE, 10, "10 of 200 rounds") for row in OURS),
                *(femnist(row, "writers-unipen", UNIPEN, STAND_IN, **FEW_ROUNDS) for row in SOME),
                *(
                    one
                    for skew in SKEWS
                    for one in strengths(skew, ("rows_per_client=100", *SMALL), (1, 0.05, 0), rounds=50)
                ),
                *(
                    one
                    for column in UNSEEN_BY
                    for one in unseen(column, "writers-unipen", UNIPEN, STAND_IN, **FEW_ROUNDS)
                ),
                *(
                    shifted(row, MNIST_AS_CFL, "shifted-mnist", ("rows_per_client=1000", *SMALL), rounds=60)
                    for row in AS_CFL
                ),
                *sampled(("FedAvg", "StoCFL"), (0.05, 0.1), rounds=10),
            ),
            studies.of(
                rows=None,
                **AS_STATED,
                writers=femnist("StoCFL tau=0.60", "writers-unipen", UNIPEN, STAND_IN, **FEW_ROUNDS),
                curves=[
                    shifted(row, MNIST_AS_CFL, "shifted-mnist", ("rows_per_client=1000", *SMALL), rounds=60)
                    for row in ("CFL", "StoCFL")
                ],
            ),
        ),
        "paper": Scale(
            "The setting of the paper; what it leaves open is said in config.py.",
            (
                *(mnist(row, size, share) for size in SIZES for share in COHORTS for row in METHODS),
                *(cifar(row, share) for share in COHORTS for row in METHODS),
                *(femnist(row, "writers-femnist", FEMNIST, rounds=100, cohort=0.05, seeds=SEEDS) for row in FOUND),
                *(one for skew in SKEWS for one in strengths(skew, MNIST, rounds=50)),
                *(
                    one
                    for column in UNSEEN_BY
                    for one in unseen(column, "writers-femnist", FEMNIST, rounds=100, cohort=0.05, seeds=SEEDS)
                ),
                *(
                    shifted(
                        row, MNIST_AS_CFL, "shifted-mnist", ("rows_per_client=9600", *MNIST), rounds=100, seeds=SEEDS
                    )
                    for row in AS_CFL
                ),
                *(
                    shifted(
                        row,
                        "Shifted CIFAR 20 x 8000",
                        "shifted-cifar10",
                        ("rows_per_client=8000", "model=stocfl-cifar-cnn", "batch_size=50", *SGD),
                        rounds=200,
                        seeds=SEEDS,
                    )
                    for row in AS_CFL
                ),
                *sampled(tuple(METHODS), (0.05, 0.1, 0.2, 0.5, 1.0), rounds=200),
            ),
            studies.of(
                rows=None,
                **AS_STATED,
                writers=femnist("StoCFL tau=0.60", "writers-femnist", FEMNIST, rounds=100, cohort=0.05),
                curves=[
                    shifted(row, MNIST_AS_CFL, "shifted-mnist", ("rows_per_client=9600", *MNIST), rounds=100)
                    for row in ("CFL", "StoCFL")
                ],
            ),
        ),
    },
)
