"""Options are parsed safely, checked against their types and given to whoever knows them."""

from collections.abc import Sequence
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfl import options
from jaxfl.methods import METHODS, Row


@pytest.mark.parametrize(
    ("text", "hint", "default", "value"),
    [
        ("1", float, 0.5, 1.0),
        ("1e-3", float | None, None, 0.001),
        ("none", int | None, 5, None),
        ("2048", Sequence[int] | int, (128,), (2048,)),
        ("(64,32)", Sequence[int] | int, (128,), (64, 32)),
        ("[64, 32]", tuple[int, ...], (128,), (64, 32)),
        ("0.1,0.2", tuple[float, float], (0.25, 0.5), (0.1, 0.2)),
        ("TRUE", bool, False, True),
        ("auto", int | None | Literal["auto"], "auto", "auto"),
        ("uniform", str, "rows", "uniform"),
        ("((0,1),(2,3))", Sequence[Sequence[int]], ((0,),), ((0, 1), (2, 3))),
    ],
)
def test_values(text, hint, default, value):
    found = options.convert("key", text, options.Option("method", "key", default, hint))
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("1.0", int),
        ("true", int),
        ("true", float),
        ("1", bool),
        ("nan", float),
        ("3", str),
        ("(1,2,3)", tuple[float, float]),
        ("(1,a)", Sequence[int]),
        ("{1:2}", Sequence[int]),
        ("half", int | None | Literal["auto"]),
    ],
)
def test_wrong_types_are_refused(text, hint):
    with pytest.raises(ValueError, match="key must be"):
        options.convert("key", text, options.Option("method", "key", None, hint))


@given(st.text(max_size=30))
def test_any_text_is_a_literal_or_itself(text):
    value = options.parse(text)
    assert value == text or not isinstance(value, str) or repr(value)[1:-1] in text


def test_an_option_of_two_owners_needs_its_owner(monkeypatch):
    def both(task, optimizer, *, num_clients: int = 3, learning_rate: float = 1.0):
        raise AssertionError("not built")

    monkeypatch.setitem(METHODS, "both", Row(both, "", ""))
    with pytest.raises(ValueError, match="ambiguous; write data.num_clients or method.num_clients"):
        options.route("both", "rotated-digits", ["num_clients=8"])
    settings = options.route("both", "rotated-digits", ["method.num_clients=8", "optimizer.learning_rate=0.2"])
    assert (settings.method, settings.data, settings.optimizer) == ({"num_clients": 8}, {}, {"learning_rate": 0.2})
    complete = settings.complete()
    assert (complete["data.num_clients"], complete["method.num_clients"]) == (40, 8)


def test_an_option_without_default_must_be_given(monkeypatch):
    def needy(task, optimizer, *, groups: int):
        raise AssertionError("not built")

    monkeypatch.setitem(METHODS, "needy", Row(needy, "", ""))
    with pytest.raises(ValueError, match="groups must be given"):
        options.route("needy", "rotated-digits")
    assert options.route("needy", "rotated-digits", ["groups=3"]).method == {"groups": 3}


@pytest.mark.parametrize("method", METHODS)
def test_every_default_fits_its_own_type(method):
    for option in options.known(method, "rotated-mnist", "stocfl-femnist-cnn", "momentum"):
        if option.default is not options.REQUIRED:
            assert options.convert(option.name, str(option.default), option) == option.default


def test_another_model_leaves_the_suited_options_behind():
    assert "model.hidden" not in options.route("fedavg", "rotated-digits", ["model=logistic"]).complete()
    assert options.route("fedavg", "rotated-digits").complete()["model.hidden"] == (128,)
