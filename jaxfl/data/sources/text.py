"""Texts as tokens: a common vocabulary of characters, and windows labelled with the next characters.

Token 0 stands for all characters outside of the vocabulary. The vocabulary is computed from all texts, including test
texts: it only assigns numbers to characters.
"""

import collections
from collections.abc import Iterable, Sequence

import numpy as np

from jaxfl.data.labels import MASKED

UNKNOWN = 0
NAMES = {"": "unknown", " ": "space", "\n": "newline", "\t": "tab", "\r": "return"}


class Vocabulary:
    """Characters and their numbers.

    Args:
        letters: characters; the first one is token 1.

    >>> letters = Vocabulary("ab c")
    >>> letters.tokens("cab?").tolist(), letters.size, letters.names
    ([4, 1, 2, 0], 5, ('unknown', 'a', 'b', 'space', 'c'))
    """

    def __init__(self, letters: Sequence[str]):
        points = _code_points("".join(letters))
        self._order = np.argsort(points)
        self._points = points[self._order]
        self.size = len(points) + 1
        self.names = tuple(
            NAMES.get(letter, letter if letter.isprintable() else repr(letter)[1:-1]) for letter in ["", *letters]
        )

    @classmethod
    def of(cls, texts: Iterable[str], size: int) -> "Vocabulary":
        """Returns the vocabulary of the most frequent characters, in the order of their frequency.

        Args:
            texts: texts of all clients.
            size: largest number of tokens, including the unknown one.

        >>> Vocabulary.of(["banana", "nab"], 3).names
        ('unknown', 'a', 'n')
        """
        counts: collections.Counter[str] = collections.Counter()
        for text in texts:
            counts.update(text)
        return cls(sorted(counts, key=lambda letter: (-counts[letter], letter))[: size - 1])

    def tokens(self, text: str) -> np.ndarray:
        """Returns the tokens of a text `[len(text)]`, int32."""
        points = _code_points(text)
        if not len(self._points):
            return np.zeros(len(points), np.int32)
        place = np.minimum(np.searchsorted(self._points, points), len(self._points) - 1)
        return np.where(self._points[place] == points, self._order[place] + 1, UNKNOWN).astype(np.int32)


def windows(tokens: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns tokens in windows that do not overlap, with the next tokens.

    Args:
        tokens: `[M]`.
        length: T.

    Returns:
        Windows `[rows, T]` and their next tokens `[rows, T]`, int32. The last window is padded with unknown and masked
        tokens.

    >>> x, y = windows(np.array([1, 2, 3, 4, 5]), 3)
    >>> x.tolist(), y.tolist()
    ([[1, 2, 3], [4, 0, 0]], [[2, 3, 4], [5, -1, -1]])
    """
    count = max(len(tokens) - 1, 0)
    rows = -(-count // length)
    x = np.full(rows * length, UNKNOWN, np.int32)
    y = np.full(rows * length, MASKED, np.int32)
    x[:count], y[:count] = tokens[:count], tokens[1 : count + 1]
    return x.reshape(rows, length), y.reshape(rows, length)


def _code_points(text: str) -> np.ndarray:
    """Returns the code points of a text."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
