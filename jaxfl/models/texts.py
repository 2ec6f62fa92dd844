"""Networks that give a text of tokens `[B, T]`, whole numbers from 0, one class."""

from collections.abc import Sequence

import jax.numpy as jnp
from flax import linen as nn

from jaxfl.models.layers import Dense, check_rates, check_sizes, torch_uniform
from jaxfl.models.sequences import check_tokens, check_vocabulary
from jaxfl.typing import Array


def _embedded(tokens: Array, vocabulary: int, width: int, pad: int | None) -> tuple[Array, Array]:
    """Returns the embeddings `[B, T, width]` of tokens, zeros of padding, and which tokens are none `[B, T, 1]`."""
    check_tokens(tokens)
    kept = jnp.ones(tokens.shape, bool) if pad is None else tokens != pad
    outputs = nn.Embed(vocabulary, width, embedding_init=nn.initializers.normal(1.0))(tokens)
    return jnp.where(kept[..., None], outputs, jnp.zeros_like(outputs)), kept[..., None]


class FastText(nn.Module):
    """FastText as PFLlib has it: the mean of a text's embeddings, a dense layer and one for the classes, linear.

    Attributes:
        num_classes: number of logits.
        embedding: width of the embedding and of the dense layer.
        vocabulary: tokens there are; 0 stands for `num_classes`.
        pad: the token that short texts are filled up with, which is left out of the mean; None if there is none.

    References: Joulin et al., "Bag of tricks for efficient text classification", 2017; PFLlib's code.

    >>> import jax
    >>> model = FastText(num_classes=4, vocabulary=100)
    >>> params = model.init(jax.random.key(0), jnp.zeros((1, 7), int))
    >>> model.apply(params, jnp.zeros((3, 7), int)).shape
    (3, 4)
    """

    num_classes: int = 4
    embedding: int = 32
    vocabulary: int = 0
    pad: int | None = None

    def __post_init__(self):
        check_sizes("embedding", self.embedding)
        check_vocabulary(self.vocabulary)
        super().__post_init__()

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        outputs, kept = _embedded(tokens, self.vocabulary or self.num_classes, self.embedding, self.pad)
        count = jnp.maximum(kept.sum(1), 1).astype(outputs.dtype)
        outputs = Dense(self.embedding)(outputs.sum(1) / count)
        return Dense(self.num_classes)(outputs)


class TextCNN(nn.Module):
    """TextCNN: an embedding, convolutions of several lengths, their maxima over the text, a dense layer.

    Attributes:
        num_classes: number of logits.
        embedding: width of the embedding.
        channels: outputs of each convolution.
        lengths: of the convolutions, in tokens; a text is no shorter.
        dropout: rate in front of the dense layer in training; PFLlib's is 0.8.
        vocabulary: tokens there are; 0 stands for `num_classes`.
        pad: the token that short texts are filled up with, whose embedding is zero; None if there is none.

    References: Kim, "Convolutional neural networks for sentence classification", 2014; PFLlib's code.

    >>> import jax
    >>> model = TextCNN(num_classes=4, vocabulary=100, channels=5)
    >>> params = model.init(jax.random.key(0), jnp.zeros((1, 7), int))
    >>> model.apply(params, jnp.zeros((3, 7), int)).shape
    (3, 4)
    """

    num_classes: int = 4
    embedding: int = 32
    channels: int = 100
    lengths: Sequence[int] = (3, 4, 5)
    dropout: float = 0.5
    vocabulary: int = 0
    pad: int | None = None

    branches = True  # the convolutions are side by side

    def __post_init__(self):
        for name in ("embedding", "channels", "lengths"):
            check_sizes(name, getattr(self, name))
        check_rates("dropout", self.dropout)
        check_vocabulary(self.vocabulary)
        super().__post_init__()

    @nn.compact
    def __call__(self, tokens: Array, train: bool = False) -> Array:
        """Returns logits; with `train` and a dropout rate needs `rngs={"dropout": key}`."""
        rows, _ = _embedded(tokens, self.vocabulary or self.num_classes, self.embedding, self.pad)
        if max(self.lengths) > tokens.shape[1]:
            raise ValueError(
                f"lengths must be at most the {tokens.shape[1]} tokens of a text, got {tuple(self.lengths)}; leave out "
                "the longest."
            )
        maxima = []
        for length in self.lengths:
            start = torch_uniform(length * self.embedding)
            layer = nn.Conv(self.channels, (length,), padding="VALID", kernel_init=start, bias_init=start)
            maxima.append(nn.relu(layer(rows).max(1)))
        outputs = nn.Dropout(self.dropout, deterministic=not train)(jnp.concatenate(maxima, -1))
        return Dense(self.num_classes)(outputs)
