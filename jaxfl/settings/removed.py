"""Removed options of methods, each with its old default, which is a constant now.

A run with the old default is the same run without the option: its folder loads, resumes and compares, and a command
line with it runs. Any other value is refused.

>>> without_removed("stocfl", {"merged": "largest", "threshold": 0.6}, ["threshold"])
{'threshold': 0.6}
>>> without_removed("stocfl", {"merged": "mean"}, ["threshold"])
Traceback (most recent call last):
ValueError: merged is no longer an option of stocfl and must be "largest", got "mean": a merged cluster keeps the ...
"""

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from jaxfl.schema import quoted
from jaxfl.settings import reading


class Removed(NamedTuple):
    """A removed option.

    Attributes:
        default: its old default, ready for JSON.
        now: the constant behaviour, or the method that has the other one.
    """

    default: Any
    now: str


_SINGLE = Removed("single", "clusters are split by single linkage, as in CFL's paper")
_RESTARTS = Removed(20, "the best of 20 k-means is taken, as in FeSEM's paper")
_SKETCH = Removed(1024, "k-means runs on sketches of 1,024 numbers for each client")
_EMPTY = Removed("keep", "a centre without clients is unchanged")
_DRAWS = Removed(100, "random models are drawn at most 100 times")

REMOVED: dict[str, dict[str, Removed]] = {
    "ditto": {"validation_share": Removed(0.1, "lambda is chosen by a tenth of the training rows")},
    "perfedavg": {"delta": Removed(0.1, "delta of the differences is constant; that of privacy is run.delta")},
    "fedamp": {"start": Removed("own", "a client trains from its own model")},
    "ifca": {"max_draws": _DRAWS},
    "hypcluster": {"max_draws": _DRAWS},
    "fesem": {"empty": _EMPTY, "restarts": _RESTARTS, "sketch_size": _SKETCH},
    "fesem_ma": {"empty": _EMPTY, "restarts": _RESTARTS, "sketch_size": _SKETCH},
    "wecfl": {"restarts": _RESTARTS, "sketch_size": _SKETCH},
    "feddrift": {
        "isolation": Removed(1, "a client with drifted data trains alone for one step, as in the official code")
    },
    "cfl": {
        "metric": Removed("cosine", "clients are compared by cosines; adacfl compares by Euclidean distances"),
        "compare": Removed("updates", "clients are compared by their updates; adacfl compares by weights"),
    },
    "flhc": {"compare": Removed("updates", "clients are clustered by their updates, as in the paper")},
    "kfed": {"sketch_size": _SKETCH},
    "robust": {"restarts": _RESTARTS, "sketch_size": _SKETCH},
    "fedgroup": {
        "first_clients": Removed(None, "the groups are found from 20 clients a group, as in the official codes"),
        "restarts": _RESTARTS,
    },
    "fedsoft": {"local_start": Removed("own", "a client trains from its own last model, as in the paper")},
    "layercfl": {"linkage": _SINGLE},
    "adacfl": {"linkage": _SINGLE},
    "stocfl": {
        "merged": Removed("largest", "a merged cluster keeps the model of its largest part"),
        "representation_layers": Removed(".*", "clients are compared by all parameters"),
        "solver": Removed(None, "FedAvg trains the global model"),
    },
}


def removed_defaults(method: str) -> dict[str, Any]:
    """Returns the old defaults of a method's removed options, by `method.name`."""
    return {f"method.{name}": removed.default for name, removed in REMOVED.get(method, {}).items()}


def removed_in(method: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the removed options of a method that are in the config of a saved run.

    Raises:
        ValueError: a removed option has another value than its old default.
    """
    found = {name: config[name] for name in removed_defaults(method) if name in config}
    without_removed(method, found, ())
    return found


def without_removed(method: str, wanted: Mapping[str, Any], known: Container[str]) -> dict[str, Any]:
    """Returns the given options without the removed ones of the method.

    Args:
        method: its name.
        wanted: text or values, by `name` or `owner.name`.
        known: names of the present options; a name without an owner means one of these first.

    Raises:
        ValueError: a removed option has another value than its old default.
    """
    rest = {}
    for key, value in wanted.items():
        owner, _, name = key.rpartition(".")
        removed = REMOVED.get(method, {}).get(name)
        if removed is None or owner not in ("", "method") or (not owner and name in known):
            rest[key] = value
            continue
        given = reading.parse(value) if isinstance(value, str) else value
        if given != removed.default:
            raise ValueError(
                f"{name} is no longer an option of {method} and must be {quoted(removed.default)}, got "
                f"{quoted(given)}: {removed.now}; leave it out, or begin a new run where a folder has it."
            )
    return rest
