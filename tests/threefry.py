"""Random bits in one call, for the tests and the processes that they start."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

_BUILT = "JAXFL_TESTS_THREEFRY"  # an environment variable: the library, where one is built


def build(folder: str) -> None:
    """Builds the library in a folder, for this process and those that it starts; nothing without a C++ compiler."""
    import jax

    if _BUILT in os.environ or (compiler := shutil.which("c++")) is None:
        return
    library, source = Path(folder, "threefry.so"), Path(__file__).with_name("threefry.cc")
    options = ["-O1", "-w", "-std=c++17", "-shared", "-fPIC", "-I", jax.ffi.include_dir()]
    if not subprocess.run([compiler, *options, os.fspath(source), "-o", os.fspath(library)]).returncode:
        os.environ[_BUILT] = os.fspath(library)  # else the compiler has said why


def draw_random_bits_in_one_call() -> None:
    """Saves a sixth of what tests of methods take: each place that draws is a hundred operations else, to be compiled.

    What is drawn stays the same (`tests/test_threefry.py`). Where nothing is built, JAX's own operations stay as well.
    """
    if _BUILT not in os.environ:
        return
    import jax
    import jax.numpy as jnp
    from jax.extend.core.primitives import threefry2x32_p
    from jax.interpreters import mlir

    target = "jaxfl_tests_threefry"
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(ctypes.CDLL(os.environ[_BUILT]).threefry), platform="cpu")

    def threefry(*words):
        words = jnp.broadcast_arrays(*words)
        bits = jax.ShapeDtypeStruct(words[0].shape, jnp.uint32)
        return jax.ffi.ffi_call(target, (bits, bits))(*words)

    mlir.register_lowering(threefry2x32_p, mlir.lower_fun(threefry, multiple_results=True), platform="cpu")
