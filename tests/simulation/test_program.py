"""What a program takes."""

import subprocess
import sys

import numpy as np
import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell less")
def test_the_peak_is_of_this_process_alone():
    """Not of the one that started it, which holds more here than Python and JAX take."""
    held = np.ones(75_000_000)
    code = "from jaxfl.simulation.program import peak_bytes; print(peak_bytes())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 < int(child.stdout) < held.nbytes
