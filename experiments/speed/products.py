"""Which form of a product is faster on a CPU: what `jaxfl.models.fast.products` decides by.

As `convolutions` measures, see there: one client at a time, forward and gradient, and forward alone. Kernels of few
outputs are followed by large ones. Kernels that a cache holds and the gradients of large ones are the usual products.

    python -m experiments.speed.products
"""

import itertools

import jax
import jax.numpy as jnp

from experiments.speed.convolutions import milliseconds
from jaxfl.models.fast import products

NARROW = tuple(itertools.product((10, 50, 256), (128, 784, 2048), (2, 10, 26, 62, 100)))  # rows, inputs, outputs
KERNELS = ((784, 512), (512, 1024), (724, 724), (784, 2048), (1024, 1024), (3136, 512), (3136, 2048), (4096, 256))
LARGE = tuple((rows, *kernel) for kernel in (*KERNELS, (256, 4096), (12544, 128)) for rows in (1, 5, 20, 50, 200))


def main() -> None:
    """Prints a line for each shape."""
    print(f"{'':<22} {'forward and gradient':<32} forward")
    print(f"{'shape':<22}" + f" {'usual':>9} {'by hand':>9}   {'chosen':<8}" * 2)
    for shapes, form in ((NARROW, products.narrow), (LARGE, products.large)):
        for rows, depth, outputs in shapes:
            keys = jax.random.split(jax.random.key(0))
            inputs = jax.random.normal(keys[0], (rows, depth))
            kernel = 0.05 * jax.random.normal(keys[1], (depth, outputs))
            chosen = "by hand" if products.product_form(rows, depth, outputs) is form else "usual"
            line = f"{f'{rows} x {depth}, {outputs}':<22}"
            for gradient in (True, False):
                usual, own = (  # the processor's time
                    milliseconds(one, inputs, kernel, first=False, gradient=gradient)[0] for one in (jnp.matmul, form)
                )
                line += f" {usual:6.2f} ms {own:6.2f} ms   {chosen:<8}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
