"""The examples: every method of their command lines is made and takes a step, and pictures come of what is kept."""

import jax
import numpy as np
import pytest

import jaxfl
from experiments.examples import keeping, languages, lecturers
from jaxfl import data
from jaxfl.data import divide
from jaxfl.methods import Method
from tests.messages import mentions

PARTS = np.split(np.arange(24), 4)
TOKENS = np.arange(24 * 5, dtype=np.int32).reshape(24, 5) % 7
TEXTS = data.federate(TOKENS, np.roll(TOKENS, -1, 1), PARTS, PARTS, num_classes=7, group=np.arange(4) % 2)
NUMBERS = np.linspace(0, 1, 48, dtype=np.float32).reshape(24, 2)
RATINGS = data.federate(NUMBERS, NUMBERS.sum(1), PARTS, PARTS, group=np.arange(4) % 2)


@pytest.mark.parametrize(
    ("example", "names"),
    [
        (languages, ("fedavg", "local", "ifca-2", "stocfl-0.9")),
        (lecturers, ("fedavg", "local", "ifca-2", "fesem-2", "stocfl-0.5")),
    ],
)
def test_methods_have_their_names(example, names):
    runs = keeping.kept(of(example))["runs"]
    assert {name.partition("-")[0] for name in names} >= {one.partition("-")[0] for one in runs}
    task = jaxfl.regression(jaxfl.models.Logistic(num_classes=1), RATINGS)
    assert all(isinstance(example.method_of(name, task), Method) for name in names)
    with pytest.raises(ValueError, match=mentions("METHOD", "fedsgd")):
        example.method_of("fedsgd", task)


def of(example):
    return example.__name__.rpartition(".")[2]


@pytest.mark.rotating
@pytest.mark.parametrize(("example", "fed", "name"), [(languages, TEXTS, "fedavg"), (lecturers, RATINGS, "ifca-2")])
def test_a_run_is_kept_as_the_others_are(example, fed, name, monkeypatch):
    few = {"rounds": 1, "cohort": 2, "eval_every": 1, "seed": 0}
    monkeypatch.setattr(example, "RUN", few)
    with jax.numpy_dtype_promotion("standard"):  # optax takes a float to the power of a counter
        outcome = example.run(name, divide.set_apart(fed, 0.3))
    known = next(iter(keeping.kept(of(example))["runs"].values()))
    assert set(outcome) == set(known) and set(outcome["summary"]) >= {"validation_loss", "ari"}
    assert [set(record) for record in outcome["history"]] == [set(known["history"][0])]


@pytest.mark.parametrize("example", [languages, lecturers])
def test_pictures_are_drawn(example, tmp_path):
    example.draw(keeping.kept(of(example))).savefig(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000
