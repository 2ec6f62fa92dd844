"""Texts as tokens: characters in windows labelled with the next characters, or the words of texts to classify.

Of characters, token 0 stands for all outside of the vocabulary, which is computed from all texts, including test texts:
it only assigns numbers to characters. Of words, the vocabulary is fitted to the training rows alone; see `fit_words`.
"""

import collections
import re
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


PAD, OTHER_WORD = 0, 1  # tokens of words: padding behind a short text, and every word outside of the vocabulary
FIRST_WORD = 2
# Of torchtext's tokenizer "basic_english", which most codes use: marks that are words, and marks that divide words.
WORD_MARKS, DIVIDING_MARKS = re.compile(r"(['.,()!?])"), re.compile(r"[;:]|<br />")


def split_words(text: str) -> list[str]:
    """Returns the words of an English text in small letters, as torchtext's tokenizer `basic_english` does.

    Apostrophes, full stops, commas, brackets, exclamation and question marks are words; quotation marks are left out.

    >>> split_words("Wall St. Bears (Reuters): \\"it's over\\"!")
    ['wall', 'st', '.', 'bears', '(', 'reuters', ')', 'it', "'", 's', 'over', '!']
    """
    text = DIVIDING_MARKS.sub(" ", text.lower().replace('"', ""))
    return WORD_MARKS.sub(r" \1 ", text).split()


def number_words(texts: Sequence[Sequence[str]], length: int) -> tuple[np.ndarray, list[str]]:
    """Returns the first words of texts as numbers `[P, length]`, int32, and the words in the order of their numbers.

    Args:
        texts: the words of each text.
        length: T; short texts are padded with 0.

    >>> number_words([["b", "a", "b"], ["c"]], 2)[0].tolist(), number_words([["b", "a"]], 2)[1]
    ([[2, 1], [3, 0]], ['a', 'b'])
    """
    cut = [text[:length] for text in texts]
    words = sorted({word for text in cut for word in text})
    number = {word: place for place, word in enumerate(words, 1)}
    numbers = np.zeros((len(texts), length), np.int32)
    for row, text in enumerate(cut):
        numbers[row, : len(text)] = [number[word] for word in text]
    return numbers, words


def fit_words(
    inputs: np.ndarray, labels: np.ndarray, rows: np.ndarray, *, tokens: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the words of texts as tokens `[P, T]` of a vocabulary fitted to the training rows, and the labels.

    The most frequent words of the training rows are tokens from 2 on, in the order of their frequency and of the
    alphabet; all others are token 1. Token 0 is padding.

    Args:
        inputs: numbers of words `[P, T]`, in the order of the alphabet from 1; 0 is padding.
        labels: `[P]`.
        rows: training rows, which determine the vocabulary.
        tokens: largest number of tokens, including the two.

    >>> fit_words(np.array([[3, 3], [1, 0], [2, 1]]), np.zeros(3), np.array([0, 1]), tokens=4)[0].tolist()
    [[2, 2], [3, 0], [1, 3]]
    """
    counts = np.bincount(inputs[rows].ravel(), minlength=int(inputs.max(initial=0)) + 1)
    counts[0] = 0
    order = np.argsort(-counts, kind="stable")[: tokens - FIRST_WORD]
    order = order[counts[order] > 0]
    table = np.full(len(counts), OTHER_WORD, np.int32)
    table[0], table[order] = PAD, FIRST_WORD + np.arange(len(order))
    return table[inputs], labels


def _code_points(text: str) -> np.ndarray:
    """Returns the code points of a text."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
