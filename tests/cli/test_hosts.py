"""The options that make several processes one run; that such runs agree is in `tests/simulation/test_processes.py`."""

import pytest

from jaxfl.cli import hosts
from tests.messages import mentions


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((None, 1, None), ("process", 1, "--processes")),
        (("auto", None, "here:1"), ("coordinator", "here")),
        (("two", 0, "here:1"), ("processes", "two")),
        (("0", 0, "here:1"), ("processes", 0)),
        (("2", None, "here:1"), ("process", "None", "--processes")),
        (("2", 2, "here:1"), ("process", 2)),
        (("2", 0, None), ("coordinator", "process 0")),
        (("2", 0, "here"), ("coordinator", "here", "process 0")),
    ],
)
def test_bad_options_are_refused(given, message):
    with pytest.raises(ValueError, match=mentions(*message)), hosts.joined_processes(*given):
        pytest.fail("nobody is waited for")


def test_one_process_needs_nothing(capfd):
    with hosts.joined_processes(None, None, None):
        print("heard")
    assert capfd.readouterr().out == "heard\n"


def test_processes_that_do_not_find_each_other_are_one_line(monkeypatch):
    def fail(*args, **options):
        raise RuntimeError("DEADLINE_EXCEEDED: nobody there\nmore")

    monkeypatch.setattr("jax.distributed.initialize", fail)
    with pytest.raises(ValueError, match=mentions("processes", "DEADLINE_EXCEEDED", "--processes")):
        hosts._connect_processes(2, 0, "127.0.0.1:1")
