"""Which form of a convolution is faster for one client at a time: what `jaxfl.models.fast.convolution` decides by.

Forward and gradient in a loop of four steps, as in local training, and forward alone, as in a test. Two times of each:
of the processor, of which a loaded machine takes no more than a quiet one, and that of the clock. Turning images is in
the times of the first form, in a network it is done once for several convolutions.

    python -m experiments.speed.convolutions
    python -m experiments.speed.convolutions --library      # as XLA compiles them if it is not told otherwise
"""

import argparse
import contextlib
import functools
import time
from collections.abc import Callable
from unittest import mock

import jax
import jax.numpy as jnp

from jaxfl import engine
from jaxfl.models.fast import convolution
from jaxfl.models.fast import rows_last as rows_last_forms

STEPS = 4
# (batch, side, channels, side of the kernel, outputs, padding, is it a first layer)
SHAPES = (
    (10, 32, 3, 3, 32, "VALID", True),
    (10, 30, 32, 3, 64, "VALID", False),
    (20, 28, 1, 5, 32, "SAME", True),
    (20, 14, 32, 5, 64, "SAME", False),
    (20, 28, 1, 5, 6, "SAME", True),
    (20, 14, 6, 5, 16, "VALID", False),
    (50, 32, 3, 5, 6, "VALID", True),
    (50, 14, 6, 5, 16, "VALID", False),
    (20, 8, 1, 3, 16, "SAME", True),
    (20, 8, 16, 3, 32, "SAME", False),
    (50, 32, 16, 3, 16, "SAME", False),
    (50, 32, 3, 3, 64, "SAME", True),
    (50, 32, 64, 3, 64, "SAME", False),
    (50, 16, 64, 3, 128, "SAME", False),
    (50, 16, 128, 3, 128, "SAME", False),
    (50, 8, 256, 3, 256, "SAME", False),
    (10, 8, 64, 3, 64, "SAME", False),
    (10, 8, 128, 3, 128, "SAME", False),
    (20, 16, 96, 3, 96, "SAME", False),
    (20, 14, 32, 3, 64, "SAME", False),
    (20, 16, 32, 3, 48, "SAME", False),
    (20, 16, 64, 3, 32, "SAME", False),
    (10, 4, 256, 3, 256, "SAME", False),
    (50, 4, 512, 3, 512, "SAME", False),
    (50, 2, 512, 3, 512, "SAME", False),
    (20, 42, 32, 3, 32, "SAME", False),
    (10, 14, 32, 1, 64, "SAME", False),
    (200, 14, 32, 5, 64, "SAME", False),
    (10, 28, 1, 7, 64, "SAME", True),
)


def milliseconds(
    form: Callable[..., jax.Array],
    inputs: jax.Array,
    kernel: jax.Array,
    *,
    first: bool,
    gradient: bool,
    jit: Callable = engine.jit,
) -> tuple[float, float]:
    """Returns the processor's and the clock's time of a step, each the least of seven.

    Args:
        form: of the convolution, `(inputs, kernel) -> outputs`.
        inputs: `[B, H, W, ci]`.
        kernel: `[kh, kw, ci, co]`.
        first: whether it is a network's first layer, which needs no gradient of its inputs.
        gradient: whether there is one.
        jit: what compiles the loop.
    """

    def loss(kernel: jax.Array, inputs: jax.Array) -> jax.Array:
        return jnp.square(form(inputs, kernel)).mean()

    def step(carry: tuple, _: None) -> tuple[tuple, None]:
        if not gradient:  # the next step waits for this one
            return (carry[0] + 1e-9 * loss(*carry), carry[1]), None
        if first:
            return (carry[0] - jax.grad(loss)(*carry), carry[1]), None
        return jax.tree.map(jnp.subtract, carry, jax.grad(loss, (0, 1))(*carry)), None

    run = jit(lambda *carry: jax.lax.scan(step, carry, None, length=STEPS)[0])
    jax.block_until_ready(run(kernel, inputs))
    clocks, times = (time.process_time, time.perf_counter), []
    for _ in range(7):
        began = [clock() for clock in clocks]
        jax.block_until_ready(run(kernel, inputs))
        times.append([(clock() - at) / STEPS * 1e3 for clock, at in zip(clocks, began, strict=True)])
    processor, clock = zip(*times, strict=True)
    return min(processor), min(clock)


def rows_last(inputs: jax.Array, kernel: jax.Array, padding: convolution.PaddingPairs) -> jax.Array:
    """Returns the convolution of images that lie with their rows last for it, see `jaxfl.models.fast.rows_last`."""
    return rows_last_forms.convolution(inputs.transpose(rows_last_forms.ROWS_LAST_AXES), kernel, padding)


def main() -> None:
    """Prints a line for each shape."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--library", action="store_true", help="convolutions as XLA's library makes them")
    jit = jax.jit if parser.parse_args().library else engine.jit
    forms = {"rows last": rows_last, "slices": convolution.as_product, "by hand": convolution.one_client_convolution}
    names = "".join(f" {name:>13}" for name in (*forms, "squares"))
    print(f"{'processor / clock, ms':<45} {'forward and gradient':<71} forward")
    print(f"{'shape':<45}" + f"{names}   {'chosen':<10}" * 2)
    for batch, side, channels, size, outputs, padding, first in SHAPES:
        keys = jax.random.split(jax.random.key(0))
        inputs = jax.random.normal(keys[0], (batch, side, side, channels))
        kernel = 0.05 * jax.random.normal(keys[1], (size, size, channels, outputs))
        pads = ((0, 0),) * 2 if padding == "VALID" else (((size - 1) // 2, size // 2),) * 2
        line = f"{f'{batch} x {side} x {side} x {channels}, {size} x {size} x {outputs}, {padding}':<45}"
        squares = {"squares": convolution.as_squares} if size == 3 else {}
        for gradient in (True, False):
            for name, form in {**forms, **squares}.items():
                # The form by hand leaves out what it takes in place of itself.
                alone = mock.patch.object(convolution, "squares_win", return_value=False)
                with alone if name == "by hand" else contextlib.nullcontext():
                    taken = functools.partial(form, padding=pads)
                    processor, clock = milliseconds(taken, inputs, kernel, first=first, gradient=gradient, jit=jit)
                line += f" {f'{processor:.1f}/{clock:.1f}':>13}"
            line += "" if squares else " " * 14
            wins = convolution.slices_win(inputs.shape, kernel.shape, pads, gradient=gradient)
            others = convolution.squares_win(inputs.shape, kernel.shape, pads, gradient=gradient)
            rest = "slices" if wins else "squares" if others else "by hand"
            chosen = "rows last" if outputs < convolution.FEW_OUTPUTS else rest
            line += f"   {chosen:<10}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
