"""Signals to the command line, in processes that import nothing slow."""

import signal
import subprocess
import sys
import time

import pytest

READY = """
import signal, sys, time
from jaxfl.cli import signals
from jaxfl.simulation.interrupts import Deferred, Stopped
signals.install()
signals.set_exit_note("; the same command goes on")
"""
IDLE = READY + "print(flush=True); time.sleep(60)"
BEGUN = """
with Deferred(lambda: Stopped(1, 2, 1)) as deferred:
    deferred.at_stake = {at_stake}
    print(flush=True)
    while not deferred.asked: time.sleep(0.01)
    print(flush=True)
    {then}
"""


def start(code):
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "\n"
    return process


def end(process):
    _, said = process.communicate(timeout=60)
    return process.returncode, said


CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGQUIT: 131}
CODES |= {signal.SIGUSR1: 75, signal.SIGXCPU: 75}


@pytest.mark.parametrize(("number", "code"), CODES.items())
@pytest.mark.parametrize("moment", ["idle", "nothing at stake"])
def test_where_nothing_is_at_stake_the_process_ends_at_once(number, code, moment):
    process = start(IDLE if moment == "idle" else READY + BEGUN.format(at_stake=False, then="time.sleep(60)"))
    process.send_signal(number)
    assert end(process) == (code, "interrupted; the same command goes on\n")


def test_a_run_stops_by_itself_and_a_second_signal_ends_it_at_once():
    process = start(READY + BEGUN.format(at_stake=True, then="time.sleep(60)"))
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "\n"
    assert "stopping after this round" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert end(process) == (130, "interrupted; the same command goes on\n")
    process = start(READY + BEGUN.format(at_stake=True, then=""))
    process.send_signal(signal.SIGTERM)
    code, said = end(process)
    assert "Stopped: stopped after round 1 of 2" in said and "interrupted" not in said


def test_announcements_may_be_repeated_and_leave_time_for_the_signal_after_them():
    process = start(READY + BEGUN.format(at_stake=True, then="time.sleep(60)"))
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "\n"
    for number in (signal.SIGUSR1, signal.SIGXCPU, signal.SIGHUP, signal.SIGTERM):  # a time limit, and its end
        process.send_signal(number)
        time.sleep(0.1)
        assert process.poll() is None, number
    process.send_signal(signal.SIGTERM)
    code, told = end(process)
    assert code == 143 and told.count("stopping after this round") == 1


@pytest.mark.parametrize("number", CODES)
def test_a_signal_changes_no_exit_status_of_a_command_that_has_ended(number):
    slow = "class Slow:\n  def __del__(self, write=os.write, sleep=time.sleep): write(2, b'end\\n'); sleep(1)\n"
    code = f"import os, time\nfrom jaxfl.cli import main\n{slow}slow = Slow()\nmain(['--version'])"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr.readline() == "end\n"  # Python has given its handlers back
    process.send_signal(number)
    assert end(process) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])  # as behind a shell's &, or nohup
@pytest.mark.parametrize("code", [IDLE, READY + BEGUN.format(at_stake=True, then="")])
def test_ignored_signals_stay_ignored(number, code):
    process = start(f"import signal; signal.signal({int(number)}, signal.SIG_IGN)" + code)
    process.send_signal(number)
    process.send_signal(signal.SIGTERM)
    if "deferred" in code:
        assert "Stopped: stopped after round 1 of 2" in end(process)[1]
        return
    assert end(process)[0] == 143


def test_signals_are_taken_before_jax_is_imported():
    code = "import sys; from jaxfl.cli import signals; print(not {'jax', 'numpy', 'typer'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True\n"
