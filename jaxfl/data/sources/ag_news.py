"""AG News: titles and descriptions of news in four classes, as tokens of words."""

import csv
import functools
import io
from pathlib import Path

import numpy as np

from jaxfl.data import bounded
from jaxfl.data.sources import text
from jaxfl.data.sources.base import Folder, Remote, Source, SourceEntry, folders, locate, require
from jaxfl.data.sources.table import TABLE_SKEWS

FILES = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"
HELP = f"get train.csv and test.csv from {FILES.removesuffix('/')} and give their folder as data_dir"
LAYOUTS = {"csv": ("train.csv", "test.csv")}
FOLDER = "ag_news_csv"  # folder of the archive
CLASSES = ("World", "Sports", "Business", "Sci/Tech")
LENGTH, TOKENS = 200, 32_000  # of PFLlib's code


def load(data_dir: Folder = None, *, length: int = LENGTH, tokens: int = TOKENS) -> Source:
    """Returns AG News: 120,000 + 7,600 texts, each a title and a description, as tokens of words `[length]`.

    The files `train.csv` and `test.csv` are read from `data_dir`, `data_dir/ag-news`, or the folder `ag_news_csv` in
    one of them. A row is class (1 to 4), title and description, all in quotation marks; a header is left out.

    Words are those of torchtext's tokenizer `basic_english`. The vocabulary is fitted to the training rows of the
    federation: a word that only test rows have is token 1, and so is a rare one. Token 0 is padding; see
    `jaxfl.data.sources.text.fit_words`.

    Args:
        data_dir: folder of the files.
        length: T, words of a text; further words are cut off. PFLlib: 200.
        tokens: largest size of the vocabulary, including padding and the token of all other words. PFLlib: 32,000. The
            network needs as many: `vocabulary`.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or a number is out of range.

    Reference: Zhang et al., "Character-level convolutional networks for text classification", 2015.
    """
    for name, number, least in (("length", length, 1), ("tokens", tokens, text.FIRST_WORD + 1)):
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}.")
    _, place = require("ag-news", LAYOUTS, _news_folders(data_dir), HELP)
    (texts, labels), (test_texts, test_labels) = (_read_rows(place / name) for name in LAYOUTS["csv"])
    inputs, _ = text.number_words([*texts, *test_texts], length)
    return Source(
        "ag-news",
        inputs[: len(texts)],
        labels,
        len(CLASSES),
        inputs[len(texts) :],
        test_labels,
        class_names=CLASSES,
        fit=functools.partial(text.fit_words, tokens=tokens),
    )


def _read_rows(path: Path) -> tuple[list[list[str]], np.ndarray]:
    """Returns the words of each text of a file, and the classes `[P]`, int32, from 0."""
    texts: list[list[str]] = []
    labels: list[int] = []
    try:
        lines = csv.reader(io.StringIO(bounded.read_content(path).decode("utf-8-sig"), newline=""), strict=True)
        for row in lines:
            if not labels and row and row[0].strip().lower() == "class index":
                continue  # of copies with a header
            if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
                raise ValueError(
                    f"line {lines.line_num} must be a class from 1 to {len(CLASSES)}, a title and a description, got "
                    f"{len(row)} fields, the first {row[0][:20] if row else ''!r}"
                )
            labels.append(int(row[0]) - 1)
            texts.append(text.split_words(" ".join(row[1:])))
    except (OSError, ValueError, csv.Error) as error:  # of text that is not UTF-8, too
        raise ValueError(f"{path} must be AG News's csv file, or is damaged: {error}; {HELP}.") from error
    if not labels:
        raise ValueError(f"{path} must have rows, got none; {HELP}.")
    return texts, np.array(labels, np.int32)


def _news_folders(data_dir: Folder) -> list[Path]:
    """Returns the folders to search, in order."""
    tops = folders("ag-news", data_dir)
    return [*tops, *(top / FOLDER for top in tops)]


def _find_ag_news(data_dir: Folder) -> Path | None:
    """Returns the folder of the files, or None."""
    located = locate(LAYOUTS, _news_folders(data_dir))
    return None if located is None else located[1]


ENTRY = SourceEntry(
    load,
    find=_find_ag_news,
    summary="AG News, 120,000 + 7,600 titles and descriptions of news in four classes, as tokens of words",
    licence="non-commercial use, as its collector states",
    num_bytes=31_327_765,
    num_classes=len(CLASSES),
    remotes=(
        Remote(
            f"{FILES}train.csv", 29_470_338, "sha256:76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e"
        ),
        Remote(
            f"{FILES}test.csv", 1_857_427, "sha256:521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699"
        ),
    ),
    model=("fasttext", {"vocabulary": TOKENS, "pad": text.PAD}),
    skews=("shifted", "swapped", "permuted", "mirrored", *TABLE_SKEWS),
)
