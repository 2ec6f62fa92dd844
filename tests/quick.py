"""What makes tests and the kernel of the notebooks quicker, and what they find the same; JAX has no settings for it."""

import itertools
import time


def let_quick_programs_take_the_old_code_generator():
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


PROGRAMS = {}  # by the key that JAX gives them
LARGE = set()  # keys of those that took longer to compile than a single operation does


def keep_programs_in_memory():
    """Takes what was compiled before as it is; JAX's own cache packs each program for a file, and unpacks it again."""
    from jax._src import compilation_cache

    started = 0.0

    def get_executable_and_time(key, *_, **__):
        nonlocal started
        started = time.perf_counter()  # JAX compiles between the two calls, and tells whole seconds
        return PROGRAMS.get(key), 0

    def put_executable_and_time(key, name, executable, *_, **__):
        PROGRAMS[key] = executable
        if time.perf_counter() - started > 0.04:
            LARGE.add(key)

    compilation_cache.get_executable_and_time = get_executable_and_time
    compilation_cache.put_executable_and_time = put_executable_and_time


def forget_large_programs():
    """Lets go of all but single operations, 0.2 MB each, which all files of tests need again."""
    import jax

    jax.clear_caches()
    for key in LARGE:
        del PROGRAMS[key]
    LARGE.clear()


# Operations that are written alike in every program: by their shapes and parameters alone.
PLAIN = """
abs add add_any and argmax argmin broadcast_in_dim clamp concatenate convert_element_type copy cumsum div dot_general
dynamic_slice dynamic_update_slice empty2 eq erf_inv exp expm1 floor gather ge gt integer_pow iota is_finite le log
log1p lt max min mul ne neg not or pad pow reduce_and reduce_max reduce_min reduce_or reduce_sum reshape rev rsqrt
scatter scatter-add select_n shift_left shift_right_logical sign slice split sqrt square squeeze stack stop_gradient
sub tanh threefry2x32 transpose xor
"""


def write_many_programs_in_one_context():
    """Saves 5 ms of each program, most of what it takes to lower a small one: JAX makes a context for each of them.

    And a quarter of what it takes to lower larger ones: a context's programs share how plain operations are written.
    What a program is made of stays in its context, so a new one is made now and then.
    """
    from jax._src.interpreters import mlir

    make, write, written = mlir.make_ir_context, mlir._cached_lowering_miss, itertools.count()
    context, operations, plain = None, {}, set(PLAIN.split())

    def make_ir_context():
        nonlocal context, operations
        if next(written) % 100 == 0:
            context, operations = make(), {}
        return context

    def write_once(program, equation, key, *arguments, **parameters):
        kept = operations if program.context is context else {}  # of a new one no operation may stand in an older one
        if key in kept:
            program.lowering_cache[key] = kept[key]
            return kept[key]
        operation = write(program, equation, key, *arguments, **parameters)
        if equation.primitive.name in plain and operation.inline and not operation.const_args:
            kept[key] = operation
        return operation

    mlir.make_ir_context, mlir._cached_lowering_miss = make_ir_context, write_once


def measure_points_here():
    """Saves 3 seconds a point, most of them of imports: `tests/cli/test_bench.py` has the processes that are users'."""
    import sys

    import jaxfl.bench
    from jaxfl.bench import machine, point

    scaling = sys.modules[jaxfl.bench.scaling.__module__]  # the module of that name is hidden by its function
    point.SIZE["cpu"] = 256  # the machine's product, timed with each round
    scaling._measured = lambda one: iter([{"found": {**point.measure(one), "machine": machine.facts()}}])
