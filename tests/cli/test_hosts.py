"""The options that make several processes one run; that such runs agree is in `tests/simulation/test_processes.py`."""

import pytest

from jaxfl.cli import hosts


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((None, 1, None), "process needs the number of processes, got 1; write --processes auto under SLURM"),
        (("auto", None, "here:1"), "coordinator needs the number of processes, got here:1; write"),
        (("two", 0, "here:1"), 'processes must be a number from 1, or auto, got "two"; write'),
        (("0", 0, "here:1"), 'processes must be a number from 1, or auto, got "0"; write'),
        (("2", None, "here:1"), "process must be from 0 to 1, got None; write"),
        (("2", 2, "here:1"), "process must be from 0 to 1, got 2; write"),
        (("2", 0, None), "coordinator must be HOST:PORT of process 0, got None; write"),
        (("2", 0, "here"), 'coordinator must be HOST:PORT of process 0, got "here"; write'),
    ],
)
def test_bad_options_are_refused(given, message):
    with pytest.raises(ValueError, match=message), hosts.together(*given):
        pytest.fail("nobody is waited for")


def test_one_process_needs_nothing(capfd):
    with hosts.together(None, None, None):
        print("heard")
    assert capfd.readouterr().out == "heard\n"


def test_processes_that_do_not_find_each_other_are_one_line(monkeypatch):
    def fail(*args, **options):
        raise RuntimeError("DEADLINE_EXCEEDED: nobody there\nmore")

    monkeypatch.setattr("jax.distributed.initialize", fail)
    with pytest.raises(ValueError, match=r"did not find each other \(DEADLINE_EXCEEDED: nobody there\); write"):
        hosts._join(2, 0, "127.0.0.1:1")
