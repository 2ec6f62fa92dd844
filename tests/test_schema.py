"""What is read from signatures and docstrings, and how words are refused."""

import functools
import math
import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import schema
from jaxfl.methods import METHODS
from jaxfl.testing.small import linear_task
from tests.messages import mentions

Linkage = Literal["single", "complete", "average"]


def cluster(
    points, first=1, *, linkage: Linkage = "single", threshold: float | Literal["auto"] | None = 0.5, size: int
):
    """Clusters points.

    What comes before the options: is not one of them.

    Args:
        points: to be clustered.
        linkage: how far two clusters are apart: by
            `"single"` pairs,

            or others.
        threshold, size: of `clusters`.

    Returns:
        linkage: not this one.
    """
    return points, first, linkage, threshold, size


def test_options_are_read_from_signature_and_docstring():
    far = 'how far two clusters are apart: by `"single"` pairs, or others.'
    assert schema.function_options(cluster) == {
        "linkage": schema.Option("linkage", "single", Linkage, far),
        "threshold": schema.Option("threshold", 0.5, float | Literal["auto"] | None, "of `clusters`."),
        "size": schema.Option("size", schema.REQUIRED, int, "of `clusters`."),
    }
    assert schema.function_options(schema.checked(cluster)) == schema.function_options(cluster)


def test_options_may_be_changed_by_who_asked():
    schema.function_options(cluster).pop("size")
    assert list(schema.function_options(cluster)) == ["linkage", "threshold", "size"]


def test_options_of_what_is_partly_given_or_says_nothing():
    def bare(a, *, b=1, c):
        return a, b, c

    part = schema.function_options(functools.partial(bare, c=2))
    assert part == {"b": schema.Option("b", 1, Any), "c": schema.Option("c", 2, Any)}


LINKAGES = '"single", "complete" or "average"'


@pytest.mark.parametrize(
    ("given", "message", "word", "suggested"),
    [
        ({"linkage": "sinlge"}, (LINKAGES, '"sinlge"'), '"single"', True),
        ({"linkage": "ward"}, (LINKAGES, '"ward"'), '"single"', False),
        ({"linkage": None}, (LINKAGES, "None"), '"single"', False),
        ({"linkage": 3}, (LINKAGES, 3), '"single"', False),
        ({"threshold": "Auto"}, ('a number, "auto" or none', '"Auto"'), '"auto"', True),
    ],
)
def test_other_words_are_refused(given, message, word, suggested):
    with pytest.raises(ValueError, match=mentions(*given, *message)) as refused:
        schema.checked(cluster)([], size=1, **given)
    assert str(refused.value).count(word) == 1 + suggested, "among the words, and as the one that was meant"


@pytest.mark.parametrize(
    "given", [{}, {"linkage": "average"}, {"threshold": "auto"}, {"threshold": None}, {"size": np.int64(3)}]
)
def test_what_fits_is_passed_on(given):
    given = {"size": 1, **given}
    assert schema.checked(cluster)([], 2, **given) == cluster([], 2, **given)


def test_words_are_refused_by_place_too():
    @schema.checked
    def client_weight(data, weighting: Literal["rows", "uniform"]):
        raise AssertionError("called")

    with pytest.raises(ValueError, match=mentions("weighting", "size")):
        client_weight([], "size")


class Method(NamedTuple):
    """A type with the name of one of those that are looked at."""

    init: Any
    round: Any


def learn(method: Method, *, epochs: int = 1, rate: float | None = 0.1, solver: Method | None = None, rest: Any = 0):
    return method, epochs, rate, solver, rest


@pytest.mark.parametrize(
    ("args", "given", "message"),
    [
        ([0.1], {}, ("method", "got 0.1", "jaxfl.methods.fedavg")),
        (["fedavg"], {}, ("method", '"fedavg"')),
        ([[1]], {}, ("method", "list")),
        ([None], {}, ("method", "None")),
        ([], {"solver": learn}, ("solver", "function")),
        ([], {"epochs": 2.5}, ("epochs", 2.5)),
        ([], {"epochs": np.float64(2)}, ("epochs", "np.float64(2.0)")),
        ([], {"epochs": "5"}, ("epochs", 5)),
        ([], {"epochs": True}, ("epochs", "True")),
        ([], {"epochs": None}, ("epochs", "None")),
        ([], {"epochs": Method}, ("epochs", "type")),
        ([], {"rate": "fast"}, ("rate", "fast")),
        ([], {"rate": [0.1]}, ("rate", "list")),
    ],
)
def test_other_types_are_refused_by_name(args, given, message):
    with pytest.raises(TypeError, match=mentions(*message)):
        schema.checked(learn)(*(args or [Method(1, 2)]), **given)


def test_what_may_be_of_the_type_is_passed_on():
    alike = SimpleNamespace(init=1, round=2)  # has the parts of a method
    given = {"epochs": np.int64(2), "rate": jnp.float32(1), "solver": alike, "rest": object()}
    assert schema.checked(learn)(alike, **given) == learn(alike, **given)
    assert schema.checked(learn)(alike, rate=1, solver=None)[2:4] == (1, None)
    jax.eval_shape(lambda rate: schema.checked(learn)(alike, rate=rate)[2], 0.1)  # traced


@pytest.mark.parametrize("name", METHODS)
def test_every_factory_names_what_is_no_task_and_no_optimizer(name):
    task, factory = linear_task(), METHODS[name].factory
    with pytest.raises(TypeError, match=mentions("optimizer", 0.1, "optax.sgd")):
        factory(task, 0.1)
    with pytest.raises(TypeError, match=mentions("task", "GradientTransformationExtraArgs", "jaxfl.classification")):
        factory(optax.sgd(0.1), task)


@pytest.mark.parametrize("name", METHODS)
def test_every_factory_refuses_nan(name):
    factory, task = METHODS[name].factory, linear_task()
    options = schema.function_options(factory)
    needed = {word: 2 for word, option in options.items() if option.default is schema.REQUIRED}
    for word, option in options.items():
        if (
            float in schema.union_members(option.hint) and word != "min_share"
        ):  # IFCA reads it with start="balanced" alone
            with pytest.raises(ValueError, match=mentions(word, "nan")):
                factory(task, optax.sgd(0.1), **{**needed, word: math.nan})


def test_types_in_words():
    assert schema.describe(int | None | Literal["auto"]) == 'a whole number, none or "auto"'
    assert schema.describe(Sequence[int] | int) == "a whole number or a list, each entry a whole number"
    assert schema.describe(bool) == "true or false"
    assert schema.describe(str | os.PathLike) == "a word or a path"
