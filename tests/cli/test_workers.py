"""Runs of a sweep side by side: the same numbers, and nothing lost where a worker is killed or the sweep is stopped."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxfl.cli import sweep as cli_sweep
from jaxfl.cli import workers
from jaxfl.cli.app import main
from jaxfl.cli.run import Deadline
from jaxfl.simulation import interrupts
from tests.messages import mentions

SMALL = ["--data", "rotated-digits", "--set", "num_clients=8", "--set", "rows_per_client=20", "--set", "model=logistic"]


def sweep(*words):
    with pytest.raises(SystemExit) as ended:
        main(["sweep", *map(str, words)])
    return ended.value.code


def histories(folder):
    records = {path.parent: path.read_text().splitlines() for path in folder.glob("*/seed-*/history.jsonl")}
    timeless = {path: [json.loads(line) for line in lines] for path, lines in records.items()}
    return {
        str(path.relative_to(folder)): [{name: n for name, n in one.items() if "seconds" not in name} for one in lines]
        for path, lines in timeless.items()
    }


ON_TWO_CORES = f"""
import os, sys
os.sched_setaffinity(0, {workers.usable_cores()[:2]})
os.execv(sys.executable, [sys.executable, "-m", "jaxfl", *sys.argv[1:]])
"""


def run_sweep(folder, *words):
    """Returns the exit status and the messages of a sweep in a process of two cores."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            ON_TWO_CORES,
            "sweep",
            "fedavg,fedprox",
            *SMALL,
            "--rounds",
            "2",
            "--out",
            folder,
            *words,
        ],
        env=environment,
        capture_output=True,
        text=True,
    )
    return ended.returncode, ended.stderr


@pytest.mark.slow
@pytest.mark.skipif(len(workers.usable_cores()) < 2, reason="two workers share the cores")
def test_two_workers_make_what_a_run_on_one_core_makes(tmp_path):
    rates = ["--set", "learning_rate=0.1,1e30,0.2"]  # the second one diverges
    assert run_sweep(tmp_path / "1", *rates, "--jobs", "1", "--set", "devices=1")[0] == 1
    code, said = run_sweep(tmp_path / "2", *rates, "--jobs", "2")
    assert code == 1
    assert said.count("6 of 6") == 1 and "fedprox-learning_rate=1e30/seed-0: error: " in said
    assert said.count("error: ") == 2, "a run that diverges is made once"
    assert histories(tmp_path / "1") == histories(tmp_path / "2")


@pytest.mark.slow
def test_a_sweep_by_workers(tmp_path, capsys):
    words = ["fedavg,ifca", *SMALL, "--rounds", 1, "--out", tmp_path, "--jobs", "2", "--set", "ifca.num_clusters=99,2"]
    words += ["--set", f"learning_rate={'0' * 200_000}.1"]  # longer than the system lets an argument of a process be
    assert sweep(*words) == 1
    told = capsys.readouterr()
    assert told.err.count("ifca-num_clusters=99: error: num_clusters must be") == 1
    assert len(list(tmp_path.glob("*/seed-0/summary.json"))) == 2 and len(told.out.splitlines()) >= 3


def start(folder, *words):
    command = [sys.executable, "-m", "jaxfl", "sweep", "fedavg", *SMALL, "--out", str(folder), "--jobs", "2", *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def children_of(process):
    lists = Path(f"/proc/{process.pid}/task").glob("*/children")  # of each thread
    return [int(number) for numbers in lists for number in numbers.read_text().split()]


def is_alive(number):
    try:
        with open(f"/proc/{number}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"  # nobody may have waited for it
    except OSError:
        return False


def wait_for(condition, seconds=120):
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="children are read from /proc")
def test_a_worker_that_is_killed_is_replaced(tmp_path):
    running = start(tmp_path, "--rounds", "300", "--seeds", "0-3", "--eval-every", "10")
    wait_for(lambda: list(tmp_path.glob("*/seed-*/history.jsonl")))
    os.kill(children_of(running)[-1], signal.SIGKILL)
    told = running.communicate(timeout=300)[1]
    assert running.returncode == 0, told
    assert len(list(tmp_path.glob("*/seed-*/summary.json"))) == 4


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="children are read from /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_sweep_that_is_stopped_goes_on_by_the_same_command(number, tmp_path):
    words = ["--rounds", "2000", "--seeds", "0,1", "--eval-every", "20"]
    running = start(tmp_path, *words)
    wait_for(lambda: len(list(tmp_path.glob("*/seed-*/history.jsonl"))) == 2)
    workers_of_it = children_of(running)
    running.send_signal(number)
    told = running.communicate(timeout=300)[1]
    assert running.returncode == 128 + number, told
    assert not any(os.path.exists(f"/proc/{one}") for one in workers_of_it)
    assert "Traceback" not in told
    assert not list(tmp_path.glob("*/seed-*/summary.json")) and told.count("continues from there") == 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="children are read from /proc")
def test_workers_end_with_a_sweep_that_is_killed(tmp_path):
    """Within a few seconds, and what they have made is saved."""
    running = start(tmp_path, "--rounds", "1000000", "--seeds", "0,1", "--eval-every", "20")
    wait_for(lambda: len(list(tmp_path.glob("*/seed-*/history.jsonl"))) == 2)
    workers_of_it = children_of(running)
    running.kill()
    running.communicate(timeout=60)
    wait_for(lambda: not any(map(is_alive, workers_of_it)), 60)
    assert len(list(tmp_path.glob("*/seed-*/checkpoint.npz"))) == 2


@pytest.mark.slow
def test_a_method_may_print(tmp_path):
    """It does not answer in place of the worker, and reads no requests."""
    (tmp_path / "mine.py").write_text(
        "import sys\nimport jaxfl\n\n\ndef make(task, local):\n    print(chr(34))\n    assert not sys.stdin.read()\n"
        "    return jaxfl.methods.fedavg(task, local)\n"
    )
    method = f"{tmp_path / 'mine.py'}:make"
    assert sweep(method, *SMALL, "--rounds", 1, "--out", tmp_path / "runs", "--jobs", "2", "--seeds", "0,1") == 0
    assert len(list(tmp_path.glob("runs/*/seed-*/summary.json"))) == 2


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyError("of a user's method")])
def test_what_ends_a_run_is_told_and_the_run_is_not_tried_again(error, monkeypatch):
    def run_missing(*_):
        raise error

    monkeypatch.setattr(cli_sweep, "_run_missing", run_missing)
    assert str(error) in cli_sweep.answer("run", None, [], cli_sweep.Making(True, False))["error"]


@pytest.mark.parametrize("jobs", ["0", "-1", "two", ""])
def test_a_number_of_processes(jobs):
    with pytest.raises(ValueError, match=mentions("jobs", f'"{jobs}"')):
        workers.worker_count(jobs, 4)


@pytest.mark.slow
@pytest.mark.skipif(len(workers.usable_cores()) < 2, reason="two processes share the cores")
@pytest.mark.parametrize("number", [None, signal.SIGTERM])
def test_a_sweep_starts_workers_where_they_are_worth_it(number, tmp_path, monkeypatch, capsys):
    """While its first run goes on; the numbers are those of one process, and so are the cores afterwards."""
    words = [*SMALL, "--rounds", 3, "--seeds", "0-3", "--eval-every", 1]
    cores = workers.usable_cores()
    assert sweep("fedavg", *words, "--jobs", "1", "--out", tmp_path / "one") == 0
    assert " of 4: " not in capsys.readouterr().err
    monkeypatch.setattr(workers, "workers_worth", lambda *_: 1)
    if number is None:
        assert sweep("fedavg", *words, "--jobs", "auto", "--out", tmp_path / "two") == 0
        told = capsys.readouterr().err
        assert sorted(re.findall(r"(.) of 4: fedavg/seed", told)) == ["1", "2", "3", "4"]
    else:
        begun = workers.Worker.__init__

        def begin(*args):
            begun(*args)
            os.kill(os.getpid(), number)

        monkeypatch.setattr(workers.Worker, "__init__", begin)
        assert sweep("fedavg", *words, "--rounds", 3000, "--jobs", "auto", "--out", tmp_path / "two") == 128 + number
        assert not list(tmp_path.glob("two/*/seed-*/summary.json"))
        assert sweep("fedavg", *words, "--jobs", "1", "--out", tmp_path / "three") == 0
    assert workers.usable_cores() == cores
    if number is None:
        assert histories(tmp_path / "one") == histories(tmp_path / "two")


def test_a_signal_in_the_last_round_of_a_run_begins_no_other(tmp_path, monkeypatch, capsys):
    run_jobs = cli_sweep.run_jobs

    def run_until_a_signal(*args, **options):
        found = run_jobs(*args, **options)
        signal.raise_signal(signal.SIGTERM)
        return found

    monkeypatch.setattr(cli_sweep, "run_jobs", run_until_a_signal)
    monkeypatch.setattr(interrupts, "_answered", 0)
    before = signal.signal(signal.SIGTERM, interrupts.note_answered)  # of the command line
    try:
        words = [*SMALL, "--rounds", 1, "--seeds", "0,1", "--jobs", "auto", "--out", tmp_path]
        assert sweep("fedavg", *words) == 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)
        interrupts._active = None
    assert len(list(tmp_path.glob("*/seed-*/summary.json"))) == 1
    assert "no other was started" in capsys.readouterr().err


def test_a_process_makes_runs_that_share_its_programs():
    """Then those of programs that no process has, and at last the ones of the program with most of them."""
    cells = [workers.Cell(name, seed) for name in "abcd" for seed in range(3)]
    programs = {"a": 1, "b": 1, "c": 2, "d": 3}
    pool = workers.Pool(cells, {}, "2", Deadline(None), programs, quiet=True)
    assert [str(pool._next(place)) for place in (0, 1, 0, 1)] == ["a/seed-0", "c/seed-0", "a/seed-1", "c/seed-1"]
    assert [str(pool._next(1)) for _ in range(5)] == ["c/seed-2", *(f"d/seed-{seed}" for seed in range(3)), "a/seed-2"]
    assert [str(pool._next(place)) for place in (0, 1, 0, 0, 1)] == [
        *(f"b/seed-{seed}" for seed in range(3)),
        *["None"] * 2,
    ]


def test_a_program_is_compiled_twice_only_where_that_is_worth_it():
    """By a sweep that starts its workers itself."""
    cells = [workers.Cell("a", seed) for seed in range(4)]
    for jobs, rounds, wanted in (("auto", 1.0, None), ("auto", 9.0, "a/seed-1"), ("2", 1.0, "a/seed-1")):
        pool = workers.Pool(cells, {}, jobs, Deadline(None), {"a": 1}, quiet=True)
        assert pool._next(0) == cells[0]
        pool._note(1, workers.Cost(rounds, 4.0, 4.0))
        found = pool._next(1)
        assert (found and str(found)) == wanted


def test_a_program_that_is_being_compiled_is_compiled_twice_only_where_others_say_so():
    cells = [workers.Cell(name, seed) for name in "ab" for seed in range(4)]
    for rounds, wanted in ((1.0, None), (9.0, "b/seed-1")):
        pool = workers.Pool(cells, {}, "auto", Deadline(None), {"a": 1, "b": 2}, quiet=True)
        assert [pool._next(place) for place in (0, 1, 0, 0, 0)] == [cells[0], cells[4], *cells[1:4]]
        pool._note(1, workers.Cost(rounds, 4.0, 0.5))  # of one that is compiled
        found = pool._next(0)
        assert (found and str(found)) == wanted


def test_a_run_of_a_sweep_is_on_one_device_or_those_that_it_began_with(tmp_path):
    keys = {"methods": "fedavg", "data": "rotated-digits", "seeds": "0-1"}
    for name, files in {"seed-0": {"config.json": "{}"}, "seed-1": {"config.json": "{}", "history.jsonl": ""}}.items():
        (tmp_path / "fedavg" / name).mkdir(parents=True)
        for file, text in files.items():
            (tmp_path / "fedavg" / name / file).write_text(text)
    found = [one.settings.run for one in cli_sweep._jobs_by_setting(keys, {}, None, tmp_path)["fedavg"]]
    assert found == [{"devices": 1}, {}]
    values = {"devices": ["2"]}
    found = [one.settings.run for one in cli_sweep._jobs_by_setting(keys, values, None, tmp_path)["fedavg"]]
    assert found == [{"devices": 2}] * 2


def test_places_share_the_cores():
    cores = workers.usable_cores()
    for count in (1, len(cores)):
        places = workers.Places.of(count)
        assert sorted(core for share in places.cores for core in share) == cores and places.gpus == ()
    assert workers.Places.of(2 * len(cores)).cores == [cores] * (2 * len(cores))


def test_each_gpu_is_one_worker_s(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert workers.Places.of(2).gpus == ["2", "5"]
    assert workers.Places.of(3).gpus == ()
