"""Standard streams that cannot be written: the command goes on, and the exit status says whether results are lost."""

import json
import os
import subprocess
import sys

import pytest

READY = """
import sys
from jaxfl.cli import signals, streams
streams.install()
signals.install()
print("x" * 100_000, "r\u00e9sultat", flush=True)
print("progress", file=sys.stderr)
"""
END = "sys.exit(streams.exit_status(0))"
KEPT = "streams.results_are_in_files()\n"
RUN = ["run", "fedavg", "--data", "rotated-digits", "--rounds", "3", "--cohort", "3", "--eval-every", "1"]
RUN += [word for item in ("num_clients=8", "rows_per_client=20", "model=logistic") for word in ("--set", item)]


def call(code, redirection, **environment):
    """Returns exit status, standard output and standard error of a Python program behind a shell's redirection."""
    words = ["sh", "-c", f'"$0" "$@" {redirection}', sys.executable, *code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=os.environ | environment)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("redirection", "code", "status", "told"),
    [
        ("", END, 0, "progress\n"),
        (">/dev/full", END, 2, "progress\nwarning: standard output cannot be written (No space left on device); "),
        (">/dev/full", KEPT + END, 0, "progress\nwarning: standard output"),
        (">/dev/full", "sys.exit(streams.exit_status(130))", 130, "progress\nwarning: standard output"),
        ("2>/dev/full", END, 0, ""),
        (">/dev/full 2>&1", END, 2, ""),
        ("2>&1 >/dev/full | true; exit 7", END, 7, ""),
        (">&-", END, 0, "progress\n"),
        ("<&- >&- 2>&-", END, 0, ""),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_cannot_be_written_is_dropped(redirection, code, status, told, unbuffered):
    got, _, error = call(["-c", READY + code], redirection, PYTHONUNBUFFERED=unbuffered)
    assert got == status and (error.startswith(told) if told else error == "")
    assert "Traceback" not in error and "Exception ignored" not in error


def test_a_reader_that_has_seen_enough_is_no_error():
    assert call(["-c", READY + END], "", PYTHONIOENCODING="ascii")[1].endswith("r?sultat\n")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", READY + END], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "progress\n")


def test_a_file_is_never_opened_under_the_number_of_a_closed_stream(tmp_path):
    code = f"""
file = open({str(tmp_path / "state")!r}, "w")
assert file.fileno() > 2, file.fileno()
import os
os.write(1, b"stray"), os.write(2, b"stray")
"""
    assert call(["-c", READY + code + END], "<&- >&- 2>&-")[0] == 0
    assert (tmp_path / "state").read_bytes() == b""


def test_a_pipe_that_does_not_wait_gets_everything():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    process = subprocess.Popen([sys.executable, "-c", READY + END], stdout=writer, stderr=subprocess.DEVNULL)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        assert len(file.read()) > 100_000
    assert process.wait(60) == 0


@pytest.mark.slow
def test_a_run_goes_on_where_nothing_can_be_written(tmp_path):
    out = tmp_path / "a"
    assert call(["-m", "jaxfl", *RUN, "--out", str(out)], ">/dev/full 2>&1") == (0, "", "")
    assert json.loads((out / "summary.json").read_text())["rounds"] == 3
    assert sorted(path.name for path in out.glob("*.png")) == ["clusters.png", "convergence.png"]
    status, _, error = call(["-m", "jaxfl", "--version"], ">/dev/full")
    assert status == 2 and "standard output cannot be written" in error and "Traceback" not in error
