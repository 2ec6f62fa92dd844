"""What a program takes."""

import subprocess
import sys

import numpy as np
import pytest

from jaxfl.simulation.program import CACHED_METHODS, CACHED_SHAPES, cached_program


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell less")
def test_the_peak_is_of_this_process_alone():
    """Not of the one that started it, which holds more here than Python and JAX take."""
    held = np.ones(75_000_000)
    code = "from jaxfl.simulation.program import peak_bytes; print(peak_bytes())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 < int(child.stdout) < held.nbytes


def test_programs_of_all_shapes_are_kept_and_of_methods_the_last():
    made = []

    @cached_program()
    def build(method, shapes):
        made.append((method, shapes))
        return lambda: None

    for _ in range(2):  # of two seeds whose slots double
        for slots in range(CACHED_SHAPES):
            build("stocfl", 1 << slots)
    assert len(made) == CACHED_SHAPES
    for method in range(CACHED_METHODS):
        build(method, 1)
    assert build("stocfl", 1) is build("stocfl", 1)
    assert len(made) == CACHED_SHAPES + CACHED_METHODS + 1, "a method that is gone holds no memory"
    build("stocfl", [1])
    build("stocfl", [1])
    assert len(made) == CACHED_SHAPES + CACHED_METHODS + 3, "what cannot be hashed is made anew"
