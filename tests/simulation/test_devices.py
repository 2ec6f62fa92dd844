"""Programs on disk: found again by another process, and nowhere else than asked."""

import os
import subprocess
import sys
from pathlib import Path

import jax

from jaxfl.simulation import devices

PROGRAM = """
import sys, jax
from jaxfl.simulation.devices import keep_programs
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None)
place = keep_programs(sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)  # a small program, for a quick test
jax.jit(lambda x: x * 2 + 1)(jax.numpy.ones(3)).block_until_ready()
print(place, len(hits))
"""


def test_a_program_is_compiled_by_the_first_process_alone(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    found = []
    for _ in range(2):
        command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
        found.append(
            subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
        )
    (place, before), (_, after) = found
    assert Path(place).parent == tmp_path and int(before) == 0 and int(after) >= 1


def test_a_folder_that_jax_was_told_of_stays(tmp_path):
    before = jax.config.jax_compilation_cache_dir
    assert before and devices.keep_programs(tmp_path) is None
    assert jax.config.jax_compilation_cache_dir == before and not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_to_is_done_without(tmp_path):
    before = jax.config.jax_compilation_cache_dir
    (tmp_path / "file").write_text("")
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        assert devices.keep_programs(tmp_path / "file") is None
        assert jax.config.jax_compilation_cache_dir is None
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
