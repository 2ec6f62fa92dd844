"""The numbers in an experiment's README: those in tables are made, and those in sentences are found in its results."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from docs.generate import papers, results, tables
from experiments.harness import base

# whole numbers are counts, rounds and sizes; seconds and bytes are of a machine
NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d+(?![\w.]*\d)(?! (?:GB|ms|times))")


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from leaves(part)
    else:
        yield value


def known(name: str) -> Iterator[str | float]:
    """Yields what sentences may say: what was printed and set, what studies found, and all metrics of all rows."""
    folder = results.EXPERIMENTS / name
    yield from ((folder / file).read_text(encoding="utf-8") for file in ("targets.json", "config.py"))
    for study in (folder / "results").glob("*/studies/*.json"):
        yield from leaves(json.loads(study.read_text(encoding="utf-8")))
    for scale in ("laptop", "paper"):
        for entry in papers.numbers(name, scale):
            for metric in base.METRICS if entry.lines else ():
                if values := entry.values(metric):
                    yield from (*values, sum(values) / len(values))


def found(text: str, pool: list[str | float]) -> bool:
    """Returns whether a number is one of those that are known, rounded to its digits, as a share or in percent."""
    digits = len(text.partition(".")[2])
    rounded = {
        f"{factor * value:.{digits}f}" for value in pool if isinstance(value, float) for factor in (1, 100, 1000)
    }
    written = {number for value in pool if isinstance(value, str) for number in NUMBER.findall(value)}
    return text in rounded | written


@pytest.mark.parametrize("name", results.experiments())
def test_numbers_of_sentences_are_in_the_results(name):
    readme = (results.EXPERIMENTS / name / "README.md").read_text(encoding="utf-8")
    made = [table for _, _, table, _ in tables.PLACE.findall(readme)]
    pool = [*made, *known(name)]
    strays = [number for number in NUMBER.findall(tables.PLACE.sub("", readme)) if not found(number, pool)]
    assert strays == []


def test_a_number_that_nobody_made_is_a_stray():
    assert found("0.71", [0.7119]) and found("71.2", [0.7119]) and found("96.71", ["StoCFL | 96.71 |"])
    assert not found("91.84", [91.83, "91.8"]) and not found("0.72", [0.7119])
