"""Systems that lack what others have: names of the standard library, signals, and folders that can be opened."""

import ctypes
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from jaxfl.host.operating_system import flush_folder, module_command, peak_memory, return_freed_memory, signal_numbers

# What Windows has not, and a system without any kind of file lock.
LACKING = """
import os, signal, sys

sys.modules["resource"] = sys.modules["fcntl"] = sys.modules["pwd"] = sys.modules["termios"] = None
for name in ("set_wakeup_fd", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGXCPU", "SIGKILL", "SIGALRM", "alarm", "pthread_kill"):
    delattr(signal, name)
for name in ("set_blocking", "sched_getaffinity", "sched_setaffinity", "sysconf", "fork", "statvfs", "getuid"):
    delattr(os, name)
open_file = os.open

def open_no_folder(path, *given, **named):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    return open_file(path, *given, **named)

os.open = open_no_folder
"""
RUN = """
import jaxfl

small = {"num_clients": 8, "rows_per_client": 20, "model": "logistic", "cohort": 2}
given = {"out": sys.argv[1], "resume": True, **small}
for rounds in (1, 2):
    result = jaxfl.run_named("fedavg", "rotated-digits", rounds=rounds, **given)
from jaxfl import cli

cli.main(["compare", sys.argv[1]])
"""


@pytest.mark.filterwarnings("ignore")
def test_a_run_needs_none_of_what_windows_lacks(tmp_path):
    words = [sys.executable, "-c", LACKING + RUN, str(tmp_path / "a")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "fedavg" in done.stdout
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["rounds"] == 2 and (summary["peak_bytes"] is None or summary["peak_bytes"] > 0)


def test_what_is_lacking_has_a_fallback():
    code = LACKING + "from jaxfl.host.operating_system import *; from pathlib import Path\n"
    code += "print(peak_memory(), signal_descriptor(), signal_numbers('SIGINT', 'SIGHUP'), flush_folder(Path('.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "0 None (<Signals.SIGINT: 2>,) None\n", done.stderr


@pytest.mark.parametrize("library", [{}, None, "glibc"])
def test_freed_memory_is_returned_where_the_c_library_can(library, monkeypatch):
    """Another C library lacks the function, and Windows has no library without a name."""
    calls = []

    def load(name):
        if library is None:
            raise TypeError(f"bad argument type {name!r}")
        return SimpleNamespace(**({"malloc_trim": calls.append} if library else {}))

    monkeypatch.setattr(ctypes, "CDLL", load)
    return_freed_memory()
    assert calls == ([0] if library == "glibc" else [])


def test_where_nothing_is_lacking(tmp_path):
    assert peak_memory() > 1e6 and len(signal_numbers("SIGINT", "SIGHUP", "SIGXCPU")) == 3
    flush_folder(tmp_path)


def test_processes_of_jaxfl_execute_no_file_of_the_current_folder(tmp_path):
    for name in ("json.py", "numpy.py", "jaxfl.py", "sitecustomize.py"):
        (tmp_path / name).write_text("raise SystemExit('executed')")
    program = [*module_command("jaxfl"), "--version"]
    ended = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0 and "jaxfl" in ended.stdout, ended.stderr
