"""Signals while a run goes on: noted, answered after a whole round, and given back."""

import signal
import threading

import pytest

from jaxfl.simulation import interrupts
from jaxfl.simulation.interrupts import Deferred, Stopped
from tests.messages import mentions


def handlers():
    return [signal.getsignal(number) for number in interrupts.SIGNALS]


def deferred():
    return Deferred(lambda: Stopped(2, 6, saved=2))


@pytest.fixture
def terminated(monkeypatch):
    """A handler of SIGTERM that collects what it is called with."""
    found = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: found.append(number))
    yield found
    signal.signal(signal.SIGTERM, before)


def test_nothing_is_raised_before_the_end():
    before, reached = handlers(), []
    with pytest.raises(KeyboardInterrupt, match=mentions("round 2 of 6")), deferred() as signals:
        signal.raise_signal(signal.SIGINT)
        reached.append(signals.asked)
    assert reached == [True] and handlers() == before


def test_a_second_signal_is_at_once():
    before = handlers()
    with pytest.raises(KeyboardInterrupt) as raised, deferred():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it waited")
    assert raised.type is KeyboardInterrupt and handlers() == before


def test_one_that_was_answered_is_around_no_other():
    with pytest.raises(Stopped), deferred() as signals:
        signals.at_stake = True
        signal.raise_signal(signal.SIGINT)
    assert interrupts.at_stake(), "until the process has ended, or another run begins"
    with deferred():
        assert not interrupts.at_stake()
    assert not interrupts.at_stake()


def test_a_signal_to_another_process_is_not_the_first_of_two():
    with pytest.raises(KeyboardInterrupt, match=mentions("round 2 of 6")) as raised, deferred() as signals:
        signals.hear(signal.SIGINT)
        assert signals.asked
        signal.raise_signal(signal.SIGINT)  # of a scheduler, which sends it to all
        assert signals.number == signal.SIGINT
    assert raised.type is Stopped


def test_the_handler_of_the_caller_is_told(terminated):
    with pytest.raises(Stopped) as raised, deferred():
        signal.raise_signal(signal.SIGTERM)
        assert terminated == []
    assert terminated == [signal.SIGTERM] == [raised.value.number]


def test_an_error_goes_first():
    before = handlers()
    with pytest.raises(ZeroDivisionError), deferred():
        signal.raise_signal(signal.SIGINT)
        _ = 1 / 0
    assert handlers() == before


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with deferred() as signals:
            signal.raise_signal(signal.SIGINT)
            assert not signals.asked
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_sets_no_handler():
    before, during = handlers(), []

    def run():
        with deferred():
            during.extend(handlers())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert during == before


@pytest.mark.parametrize("number", interrupts.NOTICES)
def test_announcements_save_and_are_no_second_signal(number):
    before = signal.signal(number, interrupts.note_answered)
    try:
        with pytest.raises(Stopped) as raised, deferred() as signals:
            for one in (number, number, signal.SIGINT, number):
                signal.raise_signal(one)
            assert signals.asked
        assert raised.value.number == number == interrupts.answered_signal()
        with pytest.raises(KeyboardInterrupt) as raised, deferred():
            signal.raise_signal(number)
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            pytest.fail("it waited")
        assert raised.type is KeyboardInterrupt
        assert signal.getsignal(number) is interrupts.note_answered
    finally:
        signal.signal(number, before)
        interrupts._answered = 0


def test_a_handler_of_the_caller_for_another_signal_stays():
    told = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: told.append(number))
    try:
        with deferred() as signals:
            signal.raise_signal(signal.SIGUSR1)
            assert told == [signal.SIGUSR1] and not signals.asked
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("number", interrupts.SIGNALS)
def test_of_two_the_inner_one_answers_and_the_outer_one_has_the_signal(number):
    before = signal.signal(number, interrupts.note_answered)
    try:
        with pytest.raises(Stopped) as raised, deferred() as outer:
            outer.at_stake = True
            with deferred() as inner:
                assert interrupts.at_stake()
                signal.raise_signal(number)
                assert inner.asked and not outer.asked
            pytest.fail("it went on")
        assert outer.number == raised.value.number == number
        with pytest.raises(Stopped), deferred() as outer:
            with deferred():
                pass
            signal.raise_signal(number)
            assert outer.asked
        assert signal.getsignal(number) is interrupts.note_answered
    finally:
        signal.signal(number, before)
        interrupts._answered, interrupts._active = 0, None
