"""Workers: processes that make the runs of a sweep or of an experiment, each on cores or on a GPU of its own.

Two cores that share a run take 0.57 to 0.92 of its time on one (`jaxfl.simulation.devices.use_cores`), where two runs
side by side could take half. But each worker imports and compiles for itself: many short runs are done sooner by one
process. So a pool begins in its own process, measures what a run takes, and starts workers where the runs that are left
are worth it. Each run is on one device, in whichever process: its numbers are the same, bit for bit.
"""

import collections
import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from jaxfl.cli.run import Deadline
from jaxfl.cli.tables.console import stderr
from jaxfl.host.operating_system import module_command
from jaxfl.jobs.job import Job
from jaxfl.schema import quoted
from jaxfl.simulation.interrupts import Deferred, Stopped
from jaxfl.simulation.records.directory import RunDirectory
from jaxfl.simulation.result import Callback, Event

MOST_STARTS = 3  # of a run whose worker is killed, such as for lack of memory
PROCESS_BYTES = 600 << 20  # bytes of memory that a worker takes beside its run: Python, JAX and compiled programs
POLL = 0.2  # seconds between looks at signals
HERE = 0  # the place of the process of the sweep, where it makes runs itself
WORTH = 0.8  # workers are started if, with them, the waiting runs take at most this share of the time


class Cell(NamedTuple):
    """A run of a sweep or of an experiment."""

    name: str  # of the setting
    seed: int
    label: str = ""  # what it is called; of a sweep its folder

    def __str__(self) -> str:
        """Returns the label, or the folder of the run within that of the sweep."""
        return self.label or f"{self.name}/seed-{self.seed}"


def on_one_device(one: Job) -> Job:
    """Returns a run on one device of a CPU, unless devices are chosen or the run began with others.

    Runs side by side, each on a core, are made sooner than one after the other on all of them; and a run is the same,
    bit for bit, in whichever process and beside whichever others it is made.
    """
    if "devices" in one.settings.run or computes_on_gpus():
        return one
    with contextlib.suppress(ValueError):  # a damaged folder is told later
        began = RunDirectory(one.out or "").config() if one.begun() else None
        if began is not None and began.get("run.devices") != 1:
            return one
    return one._replace(settings=one.settings._replace(run=one.settings.run | {"devices": 1}))


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


def computes_on_gpus() -> bool:
    """Returns whether JAX can compute on GPUs here; it is not asked itself, which would take their memory."""
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm7_plugin")
    return os.environ.get("JAX_PLATFORMS") != "cpu" and any(map(importlib.util.find_spec, plugins))


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
        return max(1, min(cells, len(usable_gpus() if computes_on_gpus() else usable_cores())))
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
        devices = max(1, jax.config.values["jax_num_cpu_devices"])
        there = {"cores": list(cores), "devices": devices, "cache": programs_are_kept(), "parent": os.getpid()}
        arguments = {**arguments, **there}
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
            self._send([what, cell.name, cell.seed])
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


class CompileClock:
    """A context manager that measures a run: all of its seconds, and those in which JAX traces and compiles.

    Attributes:
        compiling: seconds of tracing and compiling; of functions inside others those are counted twice.
        cached: the part of them that a process with the same cache of compiled programs does not need.
    """

    def __init__(self) -> None:
        self.compiling = self.cached = 0.0
        self._began = self._ended = 0.0

    def __enter__(self) -> "CompileClock":
        """Begins to measure."""
        self._began = time.perf_counter()
        jax.monitoring.register_event_duration_secs_listener(self._add)
        return self

    def __exit__(self, *_: object) -> None:
        """Ends."""
        self._ended = time.perf_counter()
        jax.monitoring.unregister_event_duration_listener(self._add)

    @property
    def seconds(self) -> float:
        """The seconds so far."""
        return (self._ended or time.perf_counter()) - self._began

    def _add(self, event: str, duration_secs: float, **_: Any) -> None:
        """Counts an event of JAX."""
        if "/compile/" in event:
            self.compiling += duration_secs
            if "backend_compile" in event and programs_are_kept():
                self.cached += duration_secs


def programs_are_kept() -> bool:
    """Returns whether compiled programs are stored for other processes."""
    return jax.config.values["jax_compilation_cache_dir"] is not None


class Cost(NamedTuple):
    """The seconds of a run: of its rounds, of compilation before them, and of this in a process that follows."""

    rounds: float
    compiling: float
    again: float

    @classmethod
    def of(cls, clock: CompileClock, left: float = 0.0, runs: int = 1) -> "Cost":
        """Returns the cost of measured runs, of which `left` seconds are not yet over."""
        seconds = clock.seconds + left
        compiling = min(clock.compiling, 0.95 * clock.seconds)
        return cls((seconds - compiling) / runs, compiling, compiling * (1 - clock.cached / max(clock.compiling, 1e-9)))

    @classmethod
    def usual(cls, costs: Mapping[Any, "Cost"]) -> "Cost":
        """Returns the cost of a program that is not known yet: the mean of the others."""
        return cls(*map(statistics.fmean, zip(*costs.values(), strict=True)))


def workers_worth(
    waiting: Mapping[Any, int], costs: Mapping[Any, Cost], begun: Collection[Any], busy: float, start: float, most: int
) -> int:
    """Returns the number of workers, beside this process, that are worth their start.

    Args:
        waiting: the number of runs by program.
        costs: by program; those of an unknown one are the mean of the others.
        begun: programs that this process has compiled.
        busy: seconds until this process has made its present run.
        start: seconds until a new process can compile.
        most: the largest number.

    >>> cost = Cost(rounds=1.0, compiling=4.0, again=2.0)
    >>> [workers_worth({"one": runs}, {"one": cost}, ["one"], 0.0, 3.0, 1) for runs in (5, 8, 20)]
    [0, 0, 1]
    """
    found = {one: costs.get(one, Cost.usual(costs)) for one in waiting}
    alone = busy + sum(
        number * found[one].rounds + (one not in begun) * found[one].compiling for one, number in waiting.items()
    )
    longest, again = max(cost.rounds for cost in found.values()), max(cost.again for cost in found.values())
    best, count = WORTH * alone, 0
    for more in range(1, min(most, sum(waiting.values())) + 1):
        late = start + (again if more > len(waiting.keys() - begun) else 0.0)
        seconds = max((alone + more * late) / (more + 1), busy, late + longest)
        if seconds < best:
            best, count = seconds, more
    return count


@contextlib.contextmanager
def restored_cores() -> Iterator[None]:
    """Restores the cores that the threads of this process may use."""
    before = usable_cores()
    try:
        yield
    finally:
        if usable_cores() != before:
            keep_to_cores(before)


def keep_to_cores(cores: Sequence[int]) -> None:
    """Keeps all threads of this process to some cores, where the system can do that."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        return
    for thread in os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else ["0"]:
        with contextlib.suppress(OSError):  # it has ended
            os.sched_setaffinity(int(thread), cores)


class Pool:
    """The runs of a sweep, and the processes that make them: this one, workers, or both.

    A process makes the runs that share its last program before any others, and then those of a program that no process
    has begun.

    Args:
        cells: the runs, in the order in which they are begun.
        arguments: of the sweep, see `jaxfl.cli.worker`.
        jobs: as `worker_count` takes it. With "auto" on a CPU this process makes runs, and workers are started where
            they are worth it.
        deadline: no run is begun when it is over.
        programs: what settings have in common that share their programs, by the name of the setting.
        quiet: whether progress is left out.

    Attributes:
        refused: the error of each setting that was refused.
        hired: whether workers have been started.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        arguments: Mapping[str, Any],
        jobs: str,
        deadline: Deadline,
        programs: Mapping[str, Any],
        *,
        quiet: bool,
    ):
        self.refused: dict[str, ValueError] = {}
        self.hired = False
        self._waiting: dict[Any, collections.deque[Cell]] = {}  # by program
        self._programs, self._all = programs, len(cells)
        for cell in cells:
            self._wait_again(cell)
        self._held: collections.deque[Cell] = collections.deque()  # by other processes of the machine
        self._arguments, self._deadline, self._quiet = arguments, deadline, quiet
        self._count, self._auto = worker_count(jobs, len(cells)), jobs == "auto"
        self._here = self._count == 1 or (self._auto and not computes_on_gpus())
        self._places = Places.of(self._count)
        self._start_seconds = time.process_time()  # a worker computes the same until it can make runs
        self._costs: dict[Any, Cost] = {}
        self._begun: dict[int, list[Any]] = collections.defaultdict(list)  # programs of each place, the last one last
        self._starts: collections.Counter[Cell] = collections.Counter()
        self._done, self._ended, self._told = 0, False, False
        self._lock = threading.RLock()
        self._workers: dict[int, Worker] = {}
        self._threads: list[threading.Thread] = []
        self._signals = Deferred(lambda: Stopped(0, 0, 0))
        self._receive: Callable[[Cell, Mapping[str, Any]], None] = lambda cell, answer: None

    def run(
        self,
        make: Callable[[Sequence[Cell], Callback], Sequence[Cell]],
        most: Callable[[int], int],
        receive: Callable[[Cell, Mapping[str, Any]], None] | None = None,
    ) -> None:
        """Makes the runs, or all that can be made.

        Args:
            make: makes runs of one setting in this process, with a callback; returns those that other processes hold.
            most: returns how many of so many runs it makes at once.
            receive: called with the answers of workers, one at a time; None needs none.

        Raises:
            Stopped: a signal came; each process has saved its run.
        """
        self._receive = receive or self._receive
        with self._signals, restored_cores():
            try:
                if self._here:
                    while cells := self._take(most(self._all)):
                        self._make_here(make, cells)
                else:
                    self._hire(self._count)
            except BaseException:
                self._ended = True  # workers end after their runs
                raise
            finally:
                self._wait_for_workers()

    def _take(self, most: int) -> list[Cell]:
        """Returns the next runs of this process, at most so many, of one setting; none where nothing is left."""
        with self._lock:
            if (first := self._next(HERE)) is None:
                return []
            waiting = self._waiting.get(self._programs[first.name], ())
            others = [one for one in waiting if one.name == first.name][: most - 1]
            self._leave_out(lambda one: one in others)
            return [first, *others]

    def _make_here(self, make: Callable[[Sequence[Cell], Callback], Sequence[Cell]], cells: Sequence[Cell]) -> None:
        """Makes runs in this process, and starts workers where they are worth it, perhaps before these are made."""
        program = self._programs[cells[0].name]
        with CompileClock() as clock:

            def look(event: Event) -> None:
                if program not in self._costs:
                    self._hire_if_worth({program: Cost.of(clock, event.seconds_left, len(cells))}, event.seconds_left)

            try:
                held = make(cells, look)
            except ValueError as error:  # the other settings are made
                with self._lock:
                    self._report(cells[0], str(error))
                    self._leave_out(lambda one: one.name == cells[0].name)
                return
        if held:
            self._hold(held)
        if made := len(cells) - len(held):
            with self._lock:
                self._note(program, Cost.of(clock, 0.0, made))
                self._done += made
                if self.hired:
                    self._print(f"{self._done} of {self._all}: {cells[-1]}")
            self._hire_if_worth(self._costs, 0.0)

    def _hold(self, cells: Sequence[Cell]) -> None:
        """Takes back runs that other processes of the machine make, and waits for a moment."""
        with self._lock:
            self._held += cells
            only, told, self._told = not self._waiting, self._told, self._told or not self._waiting
        if only and not told:
            self._print(f"{len(self._held)} runs are made by other processes; this one waits for them")
        time.sleep(POLL)

    def _note(self, program: Any, cost: Cost) -> None:
        """Records what a run has taken; of the compilation, what the first one has taken."""
        before = self._costs.get(program, cost)
        self._costs[program] = cost._replace(
            compiling=max(cost.compiling, before.compiling), again=max(cost.again, before.again)
        )

    def _hire_if_worth(self, costs: Mapping[Any, Cost], busy: float) -> None:
        """Starts workers beside this process if they are worth their start."""
        with self._lock:
            waiting = {program: len(cells) for program, cells in self._waiting.items()}
            if self.hired or self._count == 1 or not waiting or self._ended or self._signals.asked:
                return
            more = workers_worth(waiting, costs, self._begun[HERE], busy, self._start_seconds, self._count - 1)
        if more:
            self._hire(more)

    def _hire(self, count: int) -> None:
        """Starts so many workers, or as many as the memory is large enough for."""
        self.hired = self._signals.at_stake = True
        first = int(self._here)
        self._places = Places.of(first + count)
        if self._here:
            keep_to_cores(self._places.cores[HERE])
        for place in range(first, first + 1 if self._auto else first + count):
            self._begin(place)

    def _begin(self, place: int) -> None:
        """Starts a worker and the thread that gives runs to it."""
        self._threads.append(threading.Thread(target=self._work, args=(place,), daemon=True))
        self._threads[-1].start()

    def _wait_for_workers(self) -> None:
        """Waits until all workers have ended; a signal to this process is passed on to them."""
        passed_on = False
        while any(thread.is_alive() for thread in self._threads):
            if self._signals.asked and not passed_on:
                passed_on = self._ended = True
                for worker in list(self._workers.values()):
                    if worker.process.poll() is None:
                        worker.process.send_signal(self._signals.number)
            time.sleep(POLL)

    def _start(self, place: int) -> Worker:
        """Returns a new worker at a place; called in the thread that gives runs to it."""
        gpu, cores = self._places.gpus[place] if self._places.gpus else None, self._places.cores[place]
        if cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)  # of this thread: the process begins with them, and imports there
        self._workers[place] = Worker(self._arguments, cores, gpu)
        return self._workers[place]

    def _begin_others(self, worker: Worker, place: int) -> bool:
        """Starts the workers behind the first one, as many as the memory is large enough for by the plan of a run.

        Returns whether the memory is large enough for the first one.
        """
        from jaxfl.simulation.program import host_bytes

        with self._lock:
            cell = next((cells[0] for cells in self._waiting.values()), None)
        answer, free = None if cell is None else worker.ask("plan", cell), host_bytes()
        most = len(self._places.cores) - place
        count = most
        if answer is not None and free is not None and "bytes" in answer:
            count = max(int(place == HERE), min(most, free // (answer["bytes"] + PROCESS_BYTES)))
            if count < most:
                needed = f"a run takes {answer['bytes'] / 1e9:.1f} GB, {free / 1e9:.1f} free"
                self._print(f"{count + place} of {most + place} processes: {needed}")
        for other in range(place + 1, place + count):
            self._begin(other)
        return count > 0

    def _work(self, place: int) -> None:
        """Gives runs to the worker at a place until none is left; starts it anew if it is killed."""
        worker = self._start(place)
        wanted = not self._auto or place > int(self._here) or self._begin_others(worker, place)
        while wanted and (cell := self._next(place)) is not None:
            answer = worker.ask("run", cell)
            if answer is None and not self._ended:
                worker.close()
                self._starts[cell] += 1
                if self._starts[cell] < MOST_STARTS:
                    with self._lock:
                        self._wait_again(cell)
                else:
                    self._print(f"error: {cell}: its process was ended {MOST_STARTS} times; is there enough memory?")
                with self._lock:
                    self._begun[place].clear()
                worker = self._start(place)
            elif answer is not None and answer.get("held"):
                self._hold([cell])
            elif answer is not None and not answer.get("late"):
                with self._lock:
                    if "cost" in answer:
                        self._note(self._programs[cell.name], Cost(*answer["cost"]))
                    self._receive(cell, answer)
                    self._report(cell, answer.get("error"))
        worker.close()

    def _wait_again(self, cell: Cell) -> None:
        """Adds a run to those that wait."""
        self._waiting.setdefault(self._programs[cell.name], collections.deque()).append(cell)

    def _leave_out(self, unwanted: Callable[[Cell], bool]) -> None:
        """Removes waiting runs."""
        for program, cells in list(self._waiting.items()):
            self._waiting[program] = collections.deque(one for one in cells if not unwanted(one))
            if not self._waiting[program]:
                del self._waiting[program]

    def _next(self, place: int) -> Cell | None:
        """Returns the next run of a place, or None."""
        with self._lock:
            if self._ended or self._signals.asked or self._deadline.is_over():
                return None
            if not self._waiting:
                return self._held.popleft() if self._held else None
            if (program := self._next_program(place)) is None:
                return None
            cell = self._waiting[program].popleft()
            if not self._waiting[program]:
                del self._waiting[program]
            begun = self._begun[place]
            begun[:] = [*(one for one in begun if one != program), program]
            return cell

    def _next_program(self, place: int) -> Any:
        """Returns the program of the next run of a place; None where other places are done with all before it."""
        for program in reversed(self._begun[place]):
            if program in self._waiting:
                return program
        begun = {program for programs in self._begun.values() for program in programs}
        for program in self._waiting:
            if program not in begun:
                return program
        program = max(self._waiting, key=lambda one: len(self._waiting[one]))
        if self._auto and self._costs:
            usual = Cost.usual(self._costs)  # of a program that another place compiles: none is stored yet
            cost = self._costs.get(program, usual._replace(again=usual.compiling))
            if len(self._waiting[program]) * cost.rounds < cost.again + cost.rounds:
                return None
        return program

    def _report(self, cell: Cell, error: str | None) -> None:
        """Prints that a run is made, or refused."""
        self._done += 1
        if error is None:
            self._print(f"{self._done} of {self._all}: {cell}")
        elif cell.name not in self.refused:  # the same for all seeds
            self.refused[cell.name] = ValueError(error)
            stderr().print(f"{cell.name}: error: {error}", soft_wrap=True, markup=False, highlight=False)

    def _print(self, text: str) -> None:
        """Prints a line of progress."""
        stderr(quiet=self._quiet).print(text, soft_wrap=True, markup=False, highlight=False)
