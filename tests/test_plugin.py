"""Rotating tests: each case has its turn once in eight weeks, also where a year ends."""

import datetime

from tests import plugin


def test_each_case_has_its_turn_once_in_a_period():
    monday = datetime.date(2026, 11, 30)
    for name in ("test_law", "test_condition"):
        years = [(monday + datetime.timedelta(weeks=number)).isocalendar() for number in range(plugin.PERIOD)]
        turns = [plugin.turn(f"{year}-W{week:02}", name) for year, week, _ in years]
        assert sorted(turns) == list(range(plugin.PERIOD))


def test_functions_do_not_begin_in_one_week():
    assert len({plugin.turn("2026-W49", f"test_{number}") for number in range(50)}) == plugin.PERIOD


def test_the_week_is_said_and_other_tests_are_slow(request):
    assert plugin.pytest_report_header(request.config) == f"rotating tests: --week {request.config.option.week}"
