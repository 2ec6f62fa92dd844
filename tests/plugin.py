"""Process-wide settings of the test run, loaded by `-p tests.plugin` (pyproject.toml) before anything is collected.

A plugin and not a conftest, because the doctests in `jaxfl/` need the settings as well, whichever path pytest is given.
All settings are public ones of JAX, of XLA and of pytest: the tests run what users run.
"""

import atexit
import contextlib
import datetime
import gc
import os
import shutil
import tempfile
import zlib
from pathlib import Path

import pytest

# JAX reads these once: they stand before its first import. A run on an accelerator says JAX_PLATFORMS itself.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
_XLA_FLAGS = {
    "--xla_force_host_platform_device_count": 4,
    "--xla_cpu_parallel_codegen_split_count": 1,  # a tenth less: the workers fill the cores
}
for _name, _value in _XLA_FLAGS.items():
    if _name not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_name}={_value}".strip()
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("JAXFL_JOBS", "1")  # sweeps are in the process of the test, however long their runs take
# What is compiled once is read from a folder from then on, by the tests and by the processes that they start. Each
# worker has one to itself: JAX's cache is locked only where its size is limited, and then it is slow to write to.
if _FOLDER := os.environ.get("JAX_COMPILATION_CACHE_DIR"):  # kept, for the next run
    _FOLDER = os.path.join(_FOLDER, os.environ.get("PYTEST_XDIST_WORKER", "alone"))
    # What a worker compiled in an earlier run is there for the others, which have other tests this time.
    _PLACES = [*Path(_FOLDER).glob("gw*")]
    for _program in [*Path(_FOLDER).glob("gw*/*-cache")]:
        for _place in _PLACES:
            with contextlib.suppress(OSError):  # it is there, or the disk has no links
                os.link(_program, _place / _program.name)
else:
    _FOLDER = tempfile.mkdtemp(prefix="jaxfl-tests-")
    atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
os.environ["JAX_COMPILATION_CACHE_DIR"] = _FOLDER
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
# Tracing makes many objects and few cycles: as often as by default, looking for them takes a tenth of the time.
gc.set_threshold(100_000, 50, 1000)


def pytest_addoption(parser):
    parser.addoption("--week", help="whose turn it is of the rotating tests, as 2026-W31; this week by default")
    parser.addoption(
        "--part", type=one_part, default=(1, 1), help="one part of the tests, as 2/3; those of a method stay together"
    )


def one_part(text):
    number, _, count = text.partition("/")
    number, count = int(number), int(count)
    if not 1 <= number <= count:
        raise ValueError
    return number, count


def pytest_cmdline_main(config):
    """Takes no more workers than there are cores: three on two cores take a twentieth longer than two."""
    if workers := getattr(config.option, "tx", None):  # of pytest-xdist, whose hook was before this one
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        config.option.tx = workers[:cores]


_PROGRAMS = 0  # large ones, compiled or read since they were last forgotten


def pytest_configure(config):
    """Makes JAX refuse silent promotions, and hypothesis small enough for functions that compile."""
    import hypothesis
    import jax

    year, week, _ = datetime.date.today().isocalendar()
    config.option.week = config.option.week or f"{year}-W{week:02}"  # of all workers
    config.addinivalue_line("markers", "slow: left out by default; `-m slow` runs these, and `-m ''` all tests")
    config.addinivalue_line(
        "markers",
        "rotating(name, weeks=8): one case in eight, or one, runs by default, another each week (--week), the rest is "
        "slow; with the name of an argument, cases that have the same value of it run together; with 'function', for "
        "a file, its functions are the cases, but for those that have a mark of their own, and the file runs in every "
        "second week",
    )
    config.addinivalue_line(
        "markers",
        "quick: compiled with few optimisations, which takes a third less: for what every method is asked, and is "
        "read from runs of it side by side",
    )
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    # The first example compiles, so no deadline; derandomised, so that a red run is red again.
    hypothesis.settings.register_profile(
        "jaxfl",
        max_examples=20,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("jaxfl")
    jax.monitoring.register_event_duration_secs_listener(_count)


def pytest_report_header(config):
    number, count = config.option.part
    return f"rotating tests: --week {config.option.week}" + (f", --part {number}/{count}" if count > 1 else "")


def _count(event, seconds, **_):
    """Counts programs that take longer to compile, or to read, than a single operation does."""
    global _PROGRAMS
    _PROGRAMS += event.endswith("backend_compile_duration") and seconds > 0.04


# Commands, messages, files, pages, examples and pictures are the same but for rounding, and are compiled quickly. All
# else, and each test of a method's numbers, is compiled as users compile, but for the tests that are marked `quick`.
_QUICK = {"bench", "cli", "data", "docs", "experiments", "jobs", "plots", "settings"}

# Single tests that take up to a minute: last, one worker would wait for the other.
_FIRST = {"test_notebooks", "test_resume"}
_TESTS = Path(__file__).parent
# Rooms whose doctests run or compile networks: an eighth of the files is in the default run, others each week.
_EXAMPLES = tuple(f"jaxfl/{room}/" for room in ("analysis", "jobs", "methods", "models", "simulation", "tasks", "wire"))


def pytest_collection_finish():
    """Takes the modules, which stay, out of all that is searched for what can be freed."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before `-m` is applied
def pytest_collection_modifyitems(config, items):
    """Puts the longest tests first and those that are compiled quickly last, and says which are slow, or left out."""
    items.sort(key=lambda item: (item.path.stem not in _FIRST, _quick(item)))
    week = config.option.week
    rotating = {}  # by function, or file, its cases or groups of them, in their order, and their tests
    for item in items:
        if mark := item.get_closest_marker("rotating"):
            every = 2 if any(mark.args == ("function",) for mark in item.iter_markers("rotating")) else 1
            if turn(week, item.path.stem, every):
                item.add_marker("slow")
            by = mark.args[0] if mark.args else None
            name = item.path.stem if by == "function" else item.originalname
            params = item.callspec.params if hasattr(item, "callspec") else {}
            case = item.originalname if by == "function" else str(params[by]) if by else item.name
            period = mark.kwargs.get("weeks", PERIOD)
            rotating.setdefault((item.path, name, period, every), {}).setdefault(case, []).append(item)
        elif isinstance(item, pytest.DoctestItem) and item.nodeid.startswith(_EXAMPLES):
            rotating.setdefault((_EXAMPLES, "examples", 8, 1), {}).setdefault(item.path, []).append(item)
    for (_, name, period, every), cases in rotating.items():
        period = min(period, len(cases))
        for number, tests in enumerate(cases.values()):
            if number % period != turn(week, name, period, every):
                for item in tests:
                    item.add_marker("slow")
    number, count = config.option.part
    parts = [[], []]
    for item in items:
        parts[part_of(item, count) == number].append(item)
    config.hook.pytest_deselected(items=parts[False])
    items[:] = parts[True]


PERIOD = 8  # weeks in which each case of a rotating test has had its turn


def turn(week, name, period=PERIOD, every=1):
    """Returns which of a function's cases runs in a week, modulo the period: not of all functions the first.

    Of a file that runs in every second week, another one each time.
    """
    day = datetime.date.fromisoformat(f"{week}-1").toordinal()
    return (day // 7 // every + zlib.crc32(name.encode())) % period


def part_of(item, count):
    """Returns the part of a test: that of all of its method, or function, in its file, which share programs."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    kin = f"{item.path.name} {params.get('name', getattr(item, 'originalname', ''))}"
    return zlib.crc32(kin.encode()) % count + 1


def _quick(item):
    if isinstance(item, pytest.DoctestItem) or item.get_closest_marker("quick"):
        return True
    return item.path.is_relative_to(_TESTS) and item.path.relative_to(_TESTS).parts[0] in _QUICK


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Chooses how programs are compiled, by folder."""
    import jax

    jax.config.update("jax_disable_most_optimizations", _quick(item))


_KEPT = 180  # large programs, from one file of tests to the next: each takes a megabyte or two of a worker


def pytest_runtest_teardown(item, nextitem):
    """Forgets the programs behind a file where there are many: a worker would grow to gigabytes, and slower with them.

    And where the next test is compiled otherwise, which JAX would not see.
    """
    import jax

    global _PROGRAMS
    if nextitem is None or (nextitem.path == item.path and _quick(nextitem) == _quick(item)):
        return
    if _PROGRAMS > _KEPT or _quick(nextitem) != _quick(item):
        jax.clear_caches()
        _PROGRAMS = 0
