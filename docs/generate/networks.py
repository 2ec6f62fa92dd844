"""The table of the networks that are there by name."""

import inspect
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp

from docs.generate.methods import escape
from jaxfl import tree
from jaxfl.methods.parts.vectors import last_layer
from jaxfl.models import networks

ROOT = Path(__file__).parents[2]
# Inputs of a row, and classes, that the parameters are counted for: those of the network's source.
GREY, COLOUR, TEXT = (28, 28), (32, 32, 3), (100,)
INPUTS: dict[str, tuple[tuple[int, ...], int]] = {
    **{name: (GREY, 10) for name in ("logistic", "mlp", "mlp-batch-norm", "mlp200", "linear200", "genconv", "cnn-rdp")},
    **{name: (GREY, 10) for name in ("lenet5-flux", "pfllib-cnn", "fedccfa-28")},
    **{name: (GREY, 62) for name in ("leaf-femnist-cnn", "stocfl-femnist-cnn", "lenet-emnist", "femnist-cnn")},
    "leaf-celeba-cnn": ((84, 84, 3), 2),
    "resnet9": (COLOUR, 100),
    "char-rnn": ((80,), 80),
    "transformer": ((80,), 80),
    "textcnn": (TEXT, 4),
    "fasttext": (TEXT, 4),
}
VOCABULARY = {"textcnn": 32_000, "fasttext": 32_000}  # of `ag-news`
REFERENCE = re.compile(r"References?: (.*?)\.?\s*(?:\n\n|$)", re.DOTALL)


def table() -> str:
    """Returns a row for each network: inputs, classes, parameters, head, source."""
    lines = ["| network | inputs | classes | parameters | head | source |", "|---|---|---:|---:|---|---|"]
    lines += [_line(name) for name in networks.MODELS]
    return "\n".join(lines)


def _line(name: str) -> str:
    """Returns the row of a network."""
    shape, classes = INPUTS.get(name, (COLOUR, 10))
    options = {"vocabulary": VOCABULARY[name]} if name in VOCABULARY else {}
    module = networks.create(name, classes, **options)
    rows = jnp.zeros((1, *shape), jnp.int32 if name in networks.SEQUENCES else jnp.float32)

    def init(key: jax.Array) -> Any:
        return module.init(key, rows)["params"]

    model = jax.eval_shape(init, jax.random.key(0))
    chosen = last_layer(cast(Any, SimpleNamespace(init=init, head=None)))
    leaves = [leaf for leaf, flag in zip(tree.names(model), jax.tree.leaves(chosen), strict=True) if flag]
    count = sum(leaf.size for leaf in jax.tree.leaves(model))
    what = f"{shape[0]} tokens" if name in networks.SEQUENCES else "x".join(map(str, shape))
    what += "".join(f", `{key}={value}`" for key, value in options.items())
    head = leaves[0].rpartition("/")[0]
    path = Path(inspect.getfile(type(module))).relative_to(ROOT).as_posix()
    cells = (f"[`{name}`](../../../{path})", what, classes, f"{count:,}", f"`{head}`", escape(_source(type(module))))
    return f"| {' | '.join(map(str, cells))} |"


def _source(module: type) -> str:
    """Returns the references of a network, or of what it is a form of."""
    for base in module.__mro__:
        if found := REFERENCE.search(inspect.cleandoc(vars(base).get("__doc__") or "")):
            return " ".join(found[1].split())
    return "jaxfl"
