"""The eight federations, at laptop scale: who has what, what is trained, and how long.

All clients that are not held out take part in every round, because some methods (CFL, LayerCFL, AdaCFL) wait for
everybody. A fifth of the clients is held out, and a fifth of everybody's training rows is set apart to choose by.
"""

import math
from typing import NamedTuple

from jaxfl.schema import check_name

SEEDS = (0, 1, 2, 3, 4)
EVALUATIONS = 15  # of a run at most, and so the steps in which a budget is counted
APART = ("validation=0.2", "held_out=0.2")
DIGITS = ("num_clients=40", "rows_per_client=100", "hidden=64", "local_epochs=2", "batch_size=20")
TESTED = "test_share=0.02"  # of MNIST's training images: 1,200 rows that all clients are tested on


class Federation(NamedTuple):
    """A federation and how it is trained.

    Attributes:
        name: of its file of results.
        title: in tables.
        data: of the catalogue.
        items: `key=value`, as `--set` takes them: of data, model and local training. An option that a method does not
            have, such as the batch size of FedSGD, is left out for it.
        counts: the numbers of clusters that are tried where the number is not given.
        groups: the true number, or None where there are no true groups.
        rates: the learning rates that are tried.
        pulls: what the weights of pulls towards another model are times here. A pull is added to the gradient, so that
            it weighs more where rates are larger because gradients are smaller.
        rounds: of FedAvg; what it sends and how often it steps in them is everybody's budget.
        metric: the task's main one.
        lower: whether it is better where it is lower.
        planted: whether clients were put into groups: they differ by nothing else than their group and chance.
        more_counts: numbers of clusters that are tried too, while the best is the lowest or highest of those that were.
            Where there is a true number there are none: its study has three numbers, of which one is true.
    """

    name: str
    title: str
    data: str
    items: tuple[str, ...]
    counts: tuple[int, ...]
    groups: int | None
    rates: tuple[float, ...] = (0.1, 0.3, 1.0)
    pulls: float = 1.0
    rounds: int = 60
    metric: str = "accuracy"
    lower: bool = False
    planted: bool = False
    more_counts: tuple[int, ...] = ()

    @property
    def clients(self) -> int:
        """Returns the number of clients.

        >>> federation("unipen").clients
        60
        """
        return next(int(item.partition("=")[2]) for item in self.items if item.startswith("num_clients="))

    @property
    def eval_every(self) -> int:
        """Returns the rounds between two evaluations."""
        return math.ceil(self.rounds / EVALUATIONS)


FEDERATIONS = (
    Federation("rotated", "Rotated MNIST", "rotated-mnist", (*DIGITS, TESTED), (2, 4, 8), 4, planted=True),
    Federation("pathological", "Pathological MNIST", "pathological-mnist", DIGITS, (2, 4, 8), 4, planted=True),
    Federation("shifted", "Shifted MNIST", "shifted-mnist", (*DIGITS, TESTED), (2, 4, 8), 4, planted=True),
    Federation("hybrid", "MNIST and Fashion-MNIST", "hybrid-mnist", (*DIGITS, TESTED), (2, 4, 8), 2, planted=True),
    Federation(
        "unipen",
        "UNIPEN by writer",
        "unipen",
        (
            *("num_clients=60", "min_rows=100", "max_rows=150", "model=mlp", "hidden=64"),
            *("local_epochs=2", "batch_size=20"),
        ),
        (2, 8, 21),
        21,
    ),
    Federation(
        "ratings",
        "Ratings by lecturer",
        "ratings",
        ("num_clients=200", "min_rows=40", "max_rows=100", "hidden=16", "local_epochs=2", "batch_size=20"),
        (2, 4, 14),
        14,
        rates=(0.005, 0.02, 0.08),
        metric="mse",
        lower=True,
    ),
    Federation(
        "fortunes",
        "Fortunes by language",
        "fortunes",
        (
            *("num_clients=40", "min_rows=60", "max_rows=60", "length=32", "hidden=48", "embedding=16"),
            *("local_epochs=2", "batch_size=10"),
        ),
        (2, 4, 9),
        9,
        rates=(3.0, 6.0, 12.0),
        pulls=0.03,
        rounds=30,
    ),
    Federation(
        "cifar10",
        "CIFAR-10, Dirichlet 0.1",
        "dirichlet-cifar10",
        (
            *("num_clients=30", "alpha=0.1", "min_rows=20", "max_rows=66", "test_share=0.4"),
            *("local_epochs=2", "batch_size=16"),
        ),
        (2, 4, 8),
        None,
        rates=(0.03, 0.1, 0.3),
        rounds=20,
        more_counts=(16,),
    ),
)
SMOKE = Federation(
    "smoke",
    "Rotated digits",
    "rotated-digits",
    ("num_clients=8", "rows_per_client=20", "model=logistic", "local_epochs=1", "batch_size=8"),
    (4,),
    4,
    rates=(0.1, 0.3),
    rounds=4,
)


def federation(name: str) -> Federation:
    """Returns a federation.

    Raises:
        ValueError: there is none of this name.
    """
    known = {one.name: one for one in (*FEDERATIONS, SMOKE)}
    check_name("federation", name, known)
    return known[name]
