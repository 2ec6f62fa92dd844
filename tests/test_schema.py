"""What is read from signatures and docstrings, and how words are refused."""

import functools
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from jaxfl import schema

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
    assert schema.options_of(cluster) == {
        "linkage": schema.Option("linkage", "single", Linkage, far),
        "threshold": schema.Option("threshold", 0.5, float | Literal["auto"] | None, "of `clusters`."),
        "size": schema.Option("size", schema.REQUIRED, int, "of `clusters`."),
    }
    assert schema.options_of(schema.checked(cluster)) == schema.options_of(cluster)


def test_options_of_what_is_partly_given_or_says_nothing():
    def bare(a, *, b=1, c):
        return a, b, c

    part = schema.options_of(functools.partial(bare, c=2))
    assert part == {"b": schema.Option("b", 1, Any), "c": schema.Option("c", 2, Any)}


LINKAGES = '"single", "complete" or "average"'


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"linkage": "sinlge"}, f'linkage must be {LINKAGES}, got "sinlge"; did you mean "single"?'),
        ({"linkage": "ward"}, f'linkage must be {LINKAGES}, got "ward".'),
        ({"linkage": None}, f"linkage must be {LINKAGES}, got None."),
        ({"linkage": 3}, f"linkage must be {LINKAGES}, got 3."),
        ({"threshold": "Auto"}, 'threshold must be a number, "auto" or none, got "Auto"; did you mean "auto"?'),
    ],
)
def test_other_words_are_refused(given, message):
    with pytest.raises(ValueError) as refused:
        schema.checked(cluster)([], size=1, **given)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    "given", [{}, {"linkage": "average"}, {"threshold": "auto"}, {"threshold": None}, {"size": "x"}]
)
def test_what_fits_is_passed_on(given):
    given = {"size": 1, **given}
    assert schema.checked(cluster)([], 2, **given) == cluster([], 2, **given)


def test_words_are_refused_by_place_too():
    @schema.checked
    def client_weight(data, weighting: Literal["rows", "uniform"]):
        raise AssertionError("called")

    with pytest.raises(ValueError, match='weighting must be "rows" or "uniform", got "size"'):
        client_weight([], "size")


def test_types_in_words():
    assert schema.describe(int | None | Literal["auto"]) == 'a whole number, none or "auto"'
    assert schema.describe(Sequence[int] | int) == "a list, each entry a whole number or a whole number"
    assert schema.describe(bool) == "true or false"
