"""Workers of a sweep: processes that make its runs side by side, each on cores or on a GPU of its own.

Two cores that share a run take 0.57 to 0.92 of its time on one (`jaxfl.simulation.devices.use_cores`), where two runs
side by side could take half. So a sweep gives each worker its share of the cores, and the runs one after the other to
whichever worker is free. Each worker imports and compiles for itself, settings that differ in numbers alone once: runs
of a second or two are done sooner by one process.
"""

import collections
import contextlib
import importlib.util
import json
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from jaxfl.cli.run import Deadline
from jaxfl.cli.tables.console import stderr
from jaxfl.operating_system import module_command
from jaxfl.schema import quoted
from jaxfl.simulation.interrupts import Deferred, Stopped

MOST_STARTS = 3  # of a run whose worker is killed, such as for lack of memory
PROCESS_BYTES = 600 << 20  # bytes of memory that a worker takes beside its run: Python, JAX and compiled programs
POLL = 0.2  # seconds between looks at signals


class Cell(NamedTuple):
    """A run of a sweep."""

    name: str  # of the setting
    seed: int

    def __str__(self) -> str:
        """Returns the folder of the run within that of the sweep."""
        return f"{self.name}/seed-{self.seed}"


class Places(NamedTuple):
    """The places of workers: cores of the CPU, or GPUs."""

    cores: Sequence[Sequence[int]]  # of each worker; empty where the system does not say
    gpus: Sequence[str]  # of each worker, or none

    @classmethod
    def of(cls, count: int) -> "Places":
        """Returns the places of so many workers on this machine."""
        cores, gpus = usable_cores(), usable_gpus()
        shares = [cores[place::count] for place in range(count)] if len(cores) >= count else [cores] * count
        return cls(shares, gpus[:count] if len(gpus) >= count else ())


def usable_cores() -> list[int]:
    """Returns the cores that this process may use; none where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def usable_gpus() -> list[str]:
    """Returns the GPUs of `CUDA_VISIBLE_DEVICES`; JAX, which would take their memory, is not asked."""
    return [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]


def worker_count(jobs: str, cells: int) -> int:
    """Returns the number of workers, at most one for each run.

    Args:
        jobs: a number, or "auto": one for each core of a CPU, or for each GPU of `CUDA_VISIBLE_DEVICES`.
        cells: runs to make.

    Raises:
        ValueError: `jobs` is neither.

    >>> worker_count("3", 2), worker_count("1", 9)
    (2, 1)
    """
    if jobs == "auto":
        plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm7_plugin")
        on_gpu = os.environ.get("JAX_PLATFORMS") != "cpu" and any(map(importlib.util.find_spec, plugins))
        return max(1, min(cells, len(usable_gpus() if on_gpu else usable_cores())))
    if not jobs.isdecimal() or int(jobs) < 1:
        raise ValueError(f'jobs must be a number of processes, at least 1, or "auto", got {quoted(jobs)}.')
    return max(1, min(cells, int(jobs)))


class Worker:
    """A process that makes the runs that it is told, one at a time.

    Args:
        arguments: of the sweep, see `jaxfl.cli.worker`.
        cores: it is kept to these; none lets it use all.
        gpu: that it sees, or None.
    """

    def __init__(self, arguments: Mapping[str, Any], cores: Sequence[int], gpu: str | None):
        environment = {**os.environ, **({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})}
        cache = jax.config.values["jax_compilation_cache_dir"] is not None
        arguments = {**arguments, "cores": list(cores), "cache": cache, "parent": os.getpid()}
        self.process = subprocess.Popen(
            module_command("jaxfl.cli.worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,  # Ctrl-C is passed on to it once, and no second time by the terminal
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self._requests, self._answers, self._messages = self.process.stdin, self.process.stdout, self.process.stderr
        self.cell: Cell | None = None
        self._lines = threading.Thread(target=self._show_lines, daemon=True)
        self._lines.start()
        with contextlib.suppress(OSError):  # it has ended: no request will be answered
            self._send(arguments)  # not as an argument of the process, whose length the system limits

    def _send(self, line: Any) -> None:
        """Writes a line of JSON to the process.

        Raises:
            OSError: it has ended.
        """
        self._requests.write(json.dumps(line) + "\n")
        self._requests.flush()

    def ask(self, what: str, cell: Cell) -> dict[str, Any] | None:
        """Returns the answer to a request; None where the process ends before."""
        self.cell = cell
        try:
            self._send([what, *cell])
            line = self._answers.readline()
        except OSError:
            line = ""
        self.cell = None
        return json.loads(line) if line.endswith("\n") else None

    def close(self) -> None:
        """Waits for the end of the process, which has nothing left to do."""
        with contextlib.suppress(OSError):  # it has ended
            self._requests.close()
        self._lines.join()
        with self.process:  # waits, and closes its pipes
            pass

    def _show_lines(self) -> None:
        """Prints the warnings and errors of the process, with the run that they are of."""
        for line in self._messages:
            where = "" if self.cell is None else f"{self.cell}: "
            stderr().print(f"{where}{line.rstrip()}", soft_wrap=True, markup=False, highlight=False)


class Pool:
    """Workers that make the runs of a sweep.

    Args:
        cells: the runs, in the order in which they are begun.
        arguments: of the sweep, see `jaxfl.cli.worker`.
        count: the number of workers.
        deadline: no run is begun when it is over.
        fits: whether there are fewer workers where the memory is too small for so many.
        quiet: whether progress is left out.

    Attributes:
        refused: the error of each setting that was refused.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        arguments: Mapping[str, Any],
        count: int,
        deadline: Deadline,
        *,
        fits: bool,
        quiet: bool,
    ):
        self.refused: dict[str, ValueError] = {}
        self._waiting, self._all = collections.deque(cells), len(cells)
        self._arguments, self._places, self._fits = arguments, Places.of(count), fits
        self._starts: collections.Counter[Cell] = collections.Counter()
        self._done, self._quiet, self._ended, self._deadline = 0, quiet, False, deadline
        self._lock = threading.Lock()
        self._workers: dict[int, Worker] = {}

    def run(self) -> None:
        """Makes the runs, or all that can be made.

        Raises:
            Stopped: a signal came; each worker has saved its run and ended.
        """
        with Deferred(lambda: Stopped(0, 0, 0)) as signals:
            signals.at_stake = True
            first = self._start(0)
            count = self._count_that_fits(first) if self._fits and len(self._places.cores) > 1 else None
            threads = [
                threading.Thread(target=self._work, args=(place,), daemon=True)
                for place in range(len(self._places.cores) if count is None else count)
            ]
            for thread in threads:
                thread.start()
            passed_on = False
            while any(thread.is_alive() for thread in threads):
                if signals.asked and not passed_on:
                    passed_on = self._ended = True
                    for worker in list(self._workers.values()):
                        if worker.process.poll() is None:
                            worker.process.send_signal(signals.number)
                time.sleep(POLL)

    def _start(self, place: int) -> Worker:
        """Returns a new worker at a place."""
        gpu = self._places.gpus[place] if self._places.gpus else None
        self._workers[place] = Worker(self._arguments, self._places.cores[place], gpu)
        return self._workers[place]

    def _count_that_fits(self, first: Worker) -> int:
        """Returns how many workers the memory is large enough for, by the plan of the first run."""
        from jaxfl.simulation.program import host_bytes

        answer, free = first.ask("plan", self._waiting[0]), host_bytes()
        most = len(self._places.cores)
        if answer is None or free is None or "bytes" not in answer:
            return most
        count = max(1, min(most, free // (answer["bytes"] + PROCESS_BYTES)))
        if count < most:
            self._print(f"{count} of {most} workers: a run takes {answer['bytes'] / 1e9:.1f} GB, {free / 1e9:.1f} free")
        return count

    def _work(self, place: int) -> None:
        """Gives runs to the worker at a place until none is left; starts it anew if it is killed."""
        worker = self._workers.get(place) or self._start(place)
        while (cell := self._next()) is not None:
            answer = worker.ask("run", cell)
            if answer is None and not self._ended:
                worker.close()
                self._starts[cell] += 1
                if self._starts[cell] < MOST_STARTS:
                    self._waiting.append(cell)
                else:
                    self._print(f"error: {cell}: its process was ended {MOST_STARTS} times; is there enough memory?")
                worker = self._start(place)
            elif answer is not None and answer.get("held"):
                self._waiting.append(cell)  # another process makes it
                time.sleep(POLL)
            elif answer is not None and not answer.get("late"):
                self._report(cell, answer.get("error"))
        worker.close()

    def _next(self) -> Cell | None:
        """Returns the next run, or None."""
        with self._lock:
            ended = self._ended or self._deadline.is_over()
            return self._waiting.popleft() if self._waiting and not ended else None

    def _report(self, cell: Cell, error: str | None) -> None:
        """Prints that a run is made, or refused."""
        with self._lock:
            self._done += 1
            if error is None:
                self._print(f"{self._done} of {self._all}: {cell}")
            elif cell.name not in self.refused:  # the same for all seeds
                self.refused[cell.name] = ValueError(error)
                stderr().print(f"{cell.name}: error: {error}", soft_wrap=True, markup=False, highlight=False)

    def _print(self, text: str) -> None:
        """Prints a line of progress."""
        stderr(quiet=self._quiet).print(text, soft_wrap=True, markup=False, highlight=False)
