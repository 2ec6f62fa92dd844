"""Networks of tokens that read from left to right, with logits at every position or at the last one.

Tokens are whole numbers `[B, T]` from 0. A position's logits depend on the tokens up to it and on none behind.
"""

from collections.abc import Sequence
from typing import Any, Literal

import jax.numpy as jnp
from flax import linen as nn

from jaxfl.models.layers import check_sizes
from jaxfl.schema import check_name
from jaxfl.typing import Array

CELLS = {"lstm": nn.OptimizedLSTMCell, "gru": nn.GRUCell}


class CharRNN(nn.Module):
    """An embedding, recurrent layers and a dense layer: LEAF's network for Shakespeare, 8-256-256.

    Attributes:
        num_classes: number of logits.
        hidden: widths of the recurrent layers.
        embedding: width of the embedding.
        cell: of the recurrent layers, `"lstm"` or `"gru"`.
        vocabulary: tokens there are; 0 stands for `num_classes`, where as many are predicted.
        last: whether there are logits of the last position alone, for labels `[P]`.

    Reference: Caldas et al., "LEAF: a benchmark for federated settings", 2018.

    >>> import jax
    >>> model = CharRNN(num_classes=80, hidden=(16,))
    >>> params = model.init(jax.random.key(0), jnp.zeros((1, 5), int))
    >>> model.apply(params, jnp.zeros((3, 5), int)).shape
    (3, 5, 80)
    """

    num_classes: int = 80
    hidden: Sequence[int] | int = (256, 256)
    embedding: int = 8
    cell: Literal["lstm", "gru"] = "lstm"
    vocabulary: int = 0
    last: bool = False

    def __post_init__(self):
        check_sizes("hidden", self.hidden)
        check_sizes("embedding", self.embedding)
        check_name("cell", self.cell, CELLS)
        check_vocabulary(self.vocabulary)
        super().__post_init__()

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        check_tokens(tokens)
        outputs: Any = nn.Embed(self.vocabulary or self.num_classes, self.embedding)(tokens)  # nn.RNN may give pairs
        for width in check_sizes("hidden", self.hidden):
            zeros = jnp.zeros((len(tokens), width), outputs.dtype)  # flax's own are float32, and all behind would be
            start = (zeros, zeros) if self.cell == "lstm" else zeros
            layer = nn.RNN(CELLS[self.cell](width))
            outputs = jnp.asarray(layer(outputs, initial_carry=start))
        return nn.Dense(self.num_classes)(outputs[:, -1] if self.last else outputs)


class Transformer(nn.Module):
    """A small transformer that looks back: learned positions, layers of attention and dense layers, normalised first.

    Attributes:
        num_classes: number of logits.
        width: of every position.
        heads: of the attention; `width` is a multiple.
        layers: how many.
        vocabulary: tokens there are; 0 stands for `num_classes`, where as many are predicted.
        last: whether there are logits of the last position alone, for labels `[P]`.

    References: Vaswani et al., "Attention is all you need", 2017; normalised before each layer as in Radford et al.,
    "Language models are unsupervised multitask learners", 2019.

    >>> import jax
    >>> model = Transformer(num_classes=80, width=16, heads=2, layers=1)
    >>> params = model.init(jax.random.key(0), jnp.zeros((1, 5), int))
    >>> model.apply(params, jnp.zeros((3, 5), int)).shape
    (3, 5, 80)
    """

    num_classes: int = 80
    width: int = 64
    heads: int = 4
    layers: int = 2
    vocabulary: int = 0
    last: bool = False

    def __post_init__(self):
        check_sizes("width", self.width)
        check_sizes("layers", self.layers)
        check_vocabulary(self.vocabulary)
        if self.heads < 1 or self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads={self.heads}, got {self.width}; 64 and 4 are usual.")
        super().__post_init__()

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        check_tokens(tokens)
        outputs = nn.Embed(self.vocabulary or self.num_classes, self.width)(tokens)
        places = self.param("positions", nn.initializers.normal(0.02), (tokens.shape[1], self.width))
        outputs, before = outputs + places[None], nn.make_causal_mask(tokens)
        for _ in range(self.layers):
            outputs = outputs + nn.MultiHeadDotProductAttention(self.heads)(nn.LayerNorm()(outputs), mask=before)
            wide = nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(outputs)))
            outputs = outputs + nn.Dense(self.width)(wide)
        outputs = nn.LayerNorm()(outputs)
        return nn.Dense(self.num_classes)(outputs[:, -1] if self.last else outputs)


def check_vocabulary(vocabulary: int) -> None:
    """Raises ValueError for a number of tokens below 0."""
    if vocabulary < 0:
        raise ValueError(f"vocabulary must be at least 1, got {vocabulary}; 0 stands for num_classes.")


def check_tokens(tokens: Array) -> None:
    """Raises ValueError unless inputs are tokens."""
    if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise ValueError(
            f"inputs must be tokens [B, T], whole numbers, got {tokens.dtype} of shape {tokens.shape}; for vectors "
            "take 'mlp' or 'logistic'."
        )
