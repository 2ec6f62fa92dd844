"""Rotating tests: each case has its turn once in eight weeks, also where a year ends."""

import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import plugin


def test_each_case_has_its_turn_once_in_a_period():
    monday = datetime.date(2026, 11, 30)
    for name in ("test_law", "test_condition"):
        years = [(monday + datetime.timedelta(weeks=number)).isocalendar() for number in range(plugin.PERIOD)]
        turns = [plugin.turn(f"{year}-W{week:02}", name) for year, week, _ in years]
        assert sorted(turns) == list(range(plugin.PERIOD))


def test_each_case_of_a_file_of_every_second_week_has_its_turn():
    """In the weeks in which the file runs."""
    monday, name = datetime.date(2026, 11, 30), "test_law"
    weeks = [(monday + datetime.timedelta(weeks=number)).isocalendar() for number in range(2 * plugin.PERIOD)]
    weeks = [f"{year}-W{week:02}" for year, week, _ in weeks]
    turns = [plugin.turn(week, name, every=2) for week in weeks if plugin.turn(week, "test_fedavg", 2) == 0]
    assert sorted(turns) == list(range(plugin.PERIOD))


def test_functions_do_not_begin_in_one_week():
    assert len({plugin.turn("2026-W49", f"test_{number}") for number in range(50)}) == plugin.PERIOD


def test_the_week_is_said_and_other_tests_are_slow(request):
    said = plugin.pytest_report_header(request.config)
    assert said.startswith(f"rotating tests: --week {request.config.option.week}")


def test_tests_of_a_method_are_in_the_same_part(request):
    """As are those of a function that has no case of that name."""
    items = [
        item for item in request.session.items if "name" in getattr(item, "callspec", SimpleNamespace(params={})).params
    ]
    alike = [
        SimpleNamespace(
            path=Path("tests/test_laws.py"), originalname=f"test_{law}", callspec=SimpleNamespace(params={"name": name})
        )
        for law in range(3)
        for name in range(9)
    ]
    parts = {}
    for item in [*items, *alike]:
        parts.setdefault((item.path, item.callspec.params["name"]), set()).add(plugin.part_of(item, 3))
    assert {len(found) for found in parts.values()} == {1} and set.union(*parts.values()) == {1, 2, 3}


@pytest.mark.parametrize("text", ["0/3", "4/3", "2", "a/b"])
def test_a_part_that_is_none_is_refused(text):
    with pytest.raises(ValueError):
        plugin.one_part(text)
