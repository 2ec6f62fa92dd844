"""Who takes part: a row for each method, with the one number of it that is chosen on validation rows.

A registered method without a row takes part with its defaults, and its learning rate is chosen. A newcomer joins with
one row, or from the command line:

    python -m experiments.leaderboard rotated --method my.py:factory --number threshold=0.3,0.5,0.7 --data-dir DIR

>>> from experiments.leaderboard.federations import federation
>>> values(row("ifca"), federation("rotated")), values(row("ditto"), federation("rotated"))
((2, 4, 8), (0.1, 0.3, 1.0))
>>> values(row("fedavg"), federation("rotated")), next_value(row("ditto"), federation("rotated"), 0.1, (0.1, 0.3, 1.0))
((None,), 0.03)
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.leaderboard.federations import Federation
from jaxfl.methods import METHODS
from jaxfl.schema import function_options
from jaxfl.settings import methods
from jaxfl.settings.user_code import run_label

COUNT, PULL = "num_clusters", "proximal_weight"
Number = int | float | str | None


class Row(NamedTuple):
    """A method that takes part.

    Attributes:
        method: of the registry, of an installed package, or `FILE.py:NAME`.
        number: the option that matters most; None if only the learning rate is chosen.
        grid: its values; a number of clusters has those of the federation.
        beyond: further ones, that are tried one by one while the best is the lowest or highest of those that were.
        passes: how often it goes over a client's rows with gradients where FedAvg goes once: 2 for a method that trains
            two models. It makes as many rounds fewer. None is the number itself: a method that trains all its models.
        beside: more passes of a round, however many local epochs there are.
        once: rounds of FedAvg that its training before the first round takes, where no option says their epochs.
        pull: the method's default of the weight of its pull, if it has one and another number is chosen.
        items: more options, `key=value`, where the defaults do not suit; `{clients}` is how many there are.
        elsewhere: another grid for some federations, by their names.
        apart: whether each learning rate is compiled apart, because the optimiser is used beside `local_train`; so are
            methods from files and packages, of which nothing is known.
    """

    method: str
    number: str | None = None
    grid: tuple[Number, ...] = ()
    beyond: tuple[float, ...] = ()
    passes: float | None = 1.0
    beside: float = 0.0
    once: float = 0.0
    pull: float | None = None
    items: tuple[str, ...] = ()
    elsewhere: Mapping[str, tuple[Number, ...]] = {}
    apart: bool = False

    @property
    def name(self) -> str:
        """Returns what tables call it."""
        return run_label(self.method)

    @property
    def counts(self) -> bool:
        """Returns whether the number is that of clusters, so that the true one can be given."""
        return self.number == COUNT


PULLS, PULLED = (0.1, 0.3, 1.0), (0.01, 0.03, 3.0, 10.0)
STATIONARY, STILL = (0.2, 0.4, 0.8), (0.05, 0.1, 1.0)  # eps1 of CFL: how small a mean update is beside the clients'
TEXTS = {"fortunes": (0.8, 0.9, 0.95)}  # gradients of one character network are alike in all languages
COSINES = (0.1, 0.2, 0.6, 0.7, 0.8, 0.9, 0.98)
LARGER = {"fortunes": (0.3, 1.0, 3.0)}  # as the learning rates are
ADAPTED = (0.003, 0.01, 0.03, 0.1, 1.0, 3.0, 10.0)
ROWS = (
    Row("local"),
    Row("fedsgd"),
    Row("fedavg"),
    Row("fedprox", "proximal_weight", (0.01, 0.1, 1.0), (0.0001, 0.001, 10.0)),
    Row("fedprox_ft", "proximal_weight", (0.01, 0.1, 1.0), (0.0001, 0.001, 10.0)),
    Row("feddane", "proximal_weight", (0.0, 0.01, 0.1), (1.0,), beside=1.0),
    Row("feddist", "step_size", (0.3, 0.6, 0.9), (0.1, 1.0)),
    Row("feddws", "step_size", (0.3, 0.6, 0.9), (0.1, 1.0)),
    Row("ditto", "proximal_weight", PULLS, PULLED, passes=2.0),
    Row("fedper"),
    Row("ifca", COUNT),
    Row("clove", COUNT),
    Row("cfl_gp", COUNT),
    Row("hypcluster", COUNT),
    Row("kfed", COUNT),
    Row("robust", COUNT),
    Row("fesem", COUNT, pull=0.1),
    Row("fesem_ma", COUNT, pull=0.1),
    Row("flhc", "threshold", (0.6, 0.8, 1.0), (0.2, 0.4, 1.2, 1.4)),
    Row("cfl", "eps1", STATIONARY, STILL),
    Row("layercfl", "eps1", STATIONARY, STILL, items=("environment=label",)),  # first dense layer; of all it is CFL
    Row("adacfl", "eps1", STATIONARY, STILL),
    Row("stocfl", "threshold", (0.3, 0.5, 0.7), COSINES, passes=2.0, pull=0.05, elsewhere=TEXTS),
    Row("wecfl", COUNT),
    Row("ifca_cam", COUNT, passes=2.0),
    Row("fesem_cam", COUNT, passes=2.0),
    Row("wecfl_cam", COUNT, passes=2.0),
    Row("pacfl", "threshold", (5.0, 10.0, 20.0), (1.25, 2.5, 40.0)),  # degrees
    Row("fedgroup", COUNT),
    # with all clients in every round eps is all that decides when it splits
    Row("fedgwc", "eps", (1e-5, 1e-4, 1e-3), (1e-6, 1e-2)),
    Row("fedem", COUNT, passes=None),
    Row("fedrc", COUNT, passes=None),
    Row("fedsoft", COUNT, pull=0.1),
    Row(
        *("feddrift", "merge_threshold", (0.05, 0.1, 0.2), (0.0125, 0.025, 0.4, 0.8, 1.6)),
        items=("start=own", "rounds_per_step=5", "slots={clients}"),
    ),
    Row("apfl", "mixture", (0.25, 0.5, 0.75), (0.05, 0.1, 0.9, 0.95), passes=2.0),
    # the paper's lambda = 15 and outer rate of 0.005 are for hundreds of rounds; at 1 / lambda w_i is theta_i
    Row("pfedme", "outer_rate", (0.2, 0.5, 1.0), (0.1,), passes=5.0, items=("proximal_weight=1.0",), apart=True),
    Row("fedamp", "proximal_weight", (0.1, 1.0, 10.0), (0.001, 0.01, 100.0)),
    Row("pfedgraph", "concentration", (0.2, 0.8, 3.2), (0.05, 12.8)),
    Row("fedala", "mixing_rate", (0.1, 1.0, 10.0), (0.01, 100.0), beside=0.8),  # of 0.8 of the rows, for the head alone
    Row("fedpac", "alignment_weight", (0.1, 1.0, 10.0), (0.01, 100.0), beside=1.0),
    # runs of 20 to 60 rounds; five epochs of the head on at most five rows of a class are about one on all rows
    Row("fedccfa", "threshold", (0.01, 0.03, 0.1), (0.003, 0.3), beside=2.0, items=("align_from=5",)),
    Row("feddbe", "mean_pull", (0.5, 5.0, 50.0), (0.05, 500.0), once=1.0),
    Row("fedproto", "prototype_weight", (0.1, 1.0, 10.0), (0.01, 100.0)),  # PFLlib has 10 for its mean over coordinates
    # no client has more than 150 rows: more places for them would be compared for nothing
    Row("knnper", "memory_weight", (0.25, 0.5, 0.75), (0.1, 0.9), items=("capacity=150",)),
    Row("fedbabu", "finetune_part", ("all", "head", "body")),
    Row("fedrod", "start", ("zero", "generic")),
    Row("fedrep", items=("head_epochs=1",), beside=1.0),
    Row("lg_fedavg"),
    Row("perfedavg", "adaptation_rate", (0.03, 0.1, 0.3), ADAPTED, elsewhere=LARGER),
    Row("scaffold"),
    Row("feddyn", "proximal_weight", (0.01, 0.1, 1.0), (0.001, 10.0)),
    Row("fednova"),
)
ABSENT = {"fedbn": "no network here has layers of normalisation"}  # who takes no part, and why
HEADS = "features of classes, which these data do not have"
WITHOUT_CLASSES = {
    **dict.fromkeys(("fedpac", "fedccfa", "fedrod", "feddbe", "fedproto", "knnper", "flux"), HEADS),
    "fedrc": "rows counted by class, and here are no classes",
}
ABSENT_FROM = {
    "fortunes": {
        **WITHOUT_CLASSES,
        "fesem_ma": "neurons matched in a chain of layers, which an LSTM is not",
        "pacfl": "inputs compared as numbers, and these are characters",
    },
    "ratings": WITHOUT_CLASSES,
}


def rows(on: Federation | None = None) -> list[Row]:
    """Returns a row for every registered method that takes part, in the order of the registry.

    Args:
        on: the federation; None is of any.
    """
    own = {one.method: one for one in ROWS}
    absent = ABSENT if on is None else ABSENT | ABSENT_FROM.get(on.name, {})
    return [own.get(name, Row(name)) for name in METHODS if name not in absent]


def row(method: str, number: str | None = None, grid: tuple[Number, ...] = ()) -> Row:
    """Returns the row of a method; `number` and `grid` are those of a newcomer, or win over the row's."""
    found = next((one for one in rows() if one.method == method), Row(method, apart=True))
    return found if number is None else found._replace(number=number, grid=grid, beyond=(), elsewhere={})


def values(one: Row, on: Federation) -> tuple[Number, ...]:
    """Returns what is tried of a row's number on a federation; `(None,)` where it has none."""
    grid = on.counts if one.counts and not one.grid else one.elsewhere.get(on.name, one.grid)
    if one.number == PULL:
        grid = tuple(_weakened(float(value or 0), on) for value in grid)
    return grid or (None,)


def next_value(one: Row, on: Federation, best: Number, tried: Sequence[Number]) -> Number:
    """Returns the value of a row's number to try next, beyond the best one; None if that is at no edge, or the last.

    Args:
        one: the row.
        on: the federation.
        best: the value that is best so far.
        tried: all that were tried.
    """
    further: tuple[float, ...] = on.more_counts if one.counts and not one.grid else one.beyond
    if one.number == PULL:
        further = tuple(_weakened(value, on) for value in further)
    if not further or not isinstance(best, int | float):
        return None
    known = [value for value in tried if isinstance(value, int | float)]
    lower, higher = [value for value in further if value < best], [value for value in further if value > best]
    if best == min(known):
        return max(lower, default=None)
    return min(higher, default=None) if best == max(known) else None


def items(one: Row, on: Federation) -> list[str]:
    """Returns what a row is given beside its number, `key=value`.

    >>> from experiments.leaderboard.federations import federation
    >>> items(row("stocfl"), federation("rotated")), items(row("stocfl"), federation("fortunes"))
    ([], ['proximal_weight=0.0015'])
    """
    default = () if one.pull is None or on.pulls == 1 else (f"{PULL}={one.pull}",)
    given = [item.format(clients=on.clients).partition("=") for item in (*one.items, *default)]
    return [f"{name}={_weakened(float(value), on) if name == PULL else value}" for name, _, value in given]


def _weakened(weight: float, on: Federation) -> float:
    """Returns the weight of a pull as a federation has it."""
    return float(f"{weight * on.pulls:.3g}")


def passes(one: Row, value: Number, on: Federation) -> float:
    """Returns how often a row goes over a client's rows in a round where FedAvg goes once.

    >>> from experiments.leaderboard.federations import federation
    >>> passes(row("ditto"), 0.1, federation("rotated")), passes(row("feddane"), 0.0, federation("rotated"))
    (2.0, 1.5)
    """
    return (float(value or 1) if one.passes is None else one.passes) + one.beside / _epochs(on)


def passes_once(one: Row, on: Federation) -> float:
    """Returns how often a row goes over a client's rows beside its rounds: before the first one, and for the test.

    They are counted in FedAvg's rounds.

    >>> from experiments.leaderboard.federations import federation
    >>> [passes_once(row(name), federation("rotated")) for name in ("kfed", "fesem", "fedavg", "fedavg_ft")]
    [2.5, 1.0, 0.0, 1.0]
    """
    options = function_options(methods.row(one.method).factory)
    found = [options[name].default for name in ("first_epochs", "finetune_epochs") if name in options]
    return one.once + sum((_epochs(on) if epochs is None else epochs) / _epochs(on) for epochs in found)


def _epochs(on: Federation) -> int:
    """Returns the local epochs of a federation."""
    return next(int(item.partition("=")[2]) for item in on.items if item.startswith("local_epochs="))
