"""Process-wide settings of the test run, loaded by `-p tests.plugin` (pyproject.toml) before anything is collected.

A plugin and not a conftest, because the doctests in `jaxfl/` need the settings as well, whichever path pytest is given.
"""

import atexit
import functools
import gc
import itertools
import os
import shutil
import tempfile
import time

import pytest

from tests import threefry

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
# The processes that tests start find each other's programs in a folder; each worker has one to itself, since JAX does
# not lock its cache. The tests themselves keep theirs in memory.
_FOLDER = os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="jaxfl-tests-")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
# Tracing makes many objects and few cycles: as often as by default, looking for them takes a tenth of the time.
gc.set_threshold(100_000, 50, 1000)


def pytest_cmdline_main(config):
    """Takes no more workers than there are cores: three on two cores take a twentieth longer than two."""
    if workers := getattr(config.option, "tx", None):  # of pytest-xdist, whose hook was before this one
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        config.option.tx = workers[:cores]


def pytest_configure(config):
    """Makes JAX refuse silent promotions, and hypothesis small enough for functions that compile."""
    import hypothesis
    import jax

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
    threefry.build(_FOLDER)
    threefry.draw_random_bits_in_one_call()
    _let_quick_programs_take_the_old_code_generator()
    _keep_programs_in_memory()
    _write_many_programs_in_one_context()


def _let_quick_programs_take_the_old_code_generator():
    """Halves the time that XLA takes for small programs; JAX has no setting for its flags but for a whole process."""
    import jax
    from jax._src import compiler

    options_for = compiler.get_compile_options

    def get_compile_options(*args, env_options_overrides=None, **options):
        flags = dict(env_options_overrides or {})
        known = jax.__version_info__ < (0, 11) and jax.default_backend() == "cpu"  # later ones have no such flag
        if jax.config.values["jax_disable_most_optimizations"] and known:
            flags.setdefault("xla_cpu_use_fusion_emitters", False)
        return options_for(*args, env_options_overrides=flags, **options)

    compiler.get_compile_options = get_compile_options


_PROGRAMS = {}  # by the key that JAX gives them
_LARGE = set()  # keys of those that took longer to compile than a single operation does
_KEPT = 180  # large programs, from one file of tests to the next: each takes a megabyte or two of a worker


def _keep_programs_in_memory():
    """Takes what was compiled before as it is; JAX's own cache packs each program for a file, and unpacks it again."""
    from jax._src import compilation_cache

    started = 0.0

    def get_executable_and_time(key, *_, **__):
        nonlocal started
        started = time.perf_counter()  # JAX compiles between the two calls, and tells whole seconds
        return _PROGRAMS.get(key), 0

    def put_executable_and_time(key, name, executable, *_, **__):
        _PROGRAMS[key] = executable
        if time.perf_counter() - started > 0.04:
            _LARGE.add(key)

    compilation_cache.get_executable_and_time = get_executable_and_time
    compilation_cache.put_executable_and_time = put_executable_and_time


def _write_many_programs_in_one_context():
    """Saves 5 ms of each program, most of what it takes to lower a small one: JAX makes a context for each of them.

    What a program is made of stays in its context, so a new one is made now and then.
    """
    from jax._src.interpreters import mlir

    make, written = mlir.make_ir_context, itertools.count()
    last = functools.lru_cache(maxsize=1)(lambda number: make())
    mlir.make_ir_context = lambda: last(next(written) // 100)


# The engine is compiled as users compile; the rest quickly, the same but for rounding.
_OPTIMISED = {
    "test_engine",
    "test_resume",
}


# Single tests that take up to a minute: last, one worker would wait for the other.
_FIRST = {"test_notebooks", "test_resume"}


def pytest_collection_finish():
    """Takes the modules, which stay, out of all that is searched for what can be freed."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items):
    """Puts the longest tests first."""
    items.sort(key=lambda item: item.path.stem not in _FIRST)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Chooses how programs are compiled, by file."""
    import jax

    jax.config.update("jax_disable_most_optimizations", not _optimised(item))


def _optimised(item):
    return item.path.stem in _OPTIMISED


def pytest_runtest_teardown(item, nextitem):
    """Forgets the programs behind a file where there are many: a worker would grow to gigabytes, and slower with them.

    And where the next file is compiled otherwise, which JAX would not see. Single operations stay, 0.2 MB each: all
    files need them again.
    """
    import jax

    if nextitem is None or nextitem.path == item.path:
        return
    if len(_LARGE) > _KEPT or _optimised(nextitem) != _optimised(item):
        jax.clear_caches()
        for key in _LARGE:
            del _PROGRAMS[key]
        _LARGE.clear()
