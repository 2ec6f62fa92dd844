"""Which form of a product with few outputs is faster on a CPU: what `jaxfl.models.narrow` decides by.

As `convolutions` measures, see there: one client at a time, forward and gradient, and forward alone.

    python -m experiments.speed.narrow
"""

import itertools

import jax
import jax.numpy as jnp

from experiments.speed.convolutions import milliseconds
from jaxfl.models import narrow

ROWS, INPUTS, OUTPUTS = (10, 50, 256), (128, 784, 2048), (2, 10, 26, 62, 100)


def main() -> None:
    """Prints a line for each shape."""
    print(f"{'':<22} {'forward and gradient':<32} forward")
    print(f"{'shape':<22}" + f" {'usual':>9} {'by hand':>9}   {'chosen':<8}" * 2)
    for rows, depth, outputs in itertools.product(ROWS, INPUTS, OUTPUTS):
        keys = jax.random.split(jax.random.key(0))
        inputs = jax.random.normal(keys[0], (rows, depth))
        kernel = 0.05 * jax.random.normal(keys[1], (depth, outputs))
        chosen = "by hand" if narrow.is_narrow(depth, outputs) and narrow.pays(rows, depth, outputs) else "usual"
        line = f"{f'{rows} x {depth}, {outputs}':<22}"
        for gradient in (True, False):
            usual, own = (  # the processor's time
                milliseconds(form, inputs, kernel, first=False, gradient=gradient)[0]
                for form in (jnp.matmul, narrow.by_hand)
            )
            line += f" {usual:6.2f} ms {own:6.2f} ms   {chosen:<8}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
