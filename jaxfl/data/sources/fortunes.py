"""Fortunes: quotations and jokes in nine languages from Debian's packages, by collections of one language.

The files are Debian's, texts separated by a line with one %, or `<language>.jsonl.gz` with one JSON object
`{"collection": ..., "text": ...}` per line.
"""

from pathlib import Path

import numpy as np

from jaxfl.data import bounded
from jaxfl.data.sources import text
from jaxfl.data.sources.base import WITHOUT_CLASSES, Folder, Source, SourceEntry, folders, locate, require

DEBIAN = Path("/usr/share/games/fortunes")  # folder of Debian's packages
BESIDE = (".dat", ".u8")  # endings of an index or a link beside every collection
LAYOUTS = {"jsonl": ("??.jsonl.gz",), "debian": ("??/*.[du][a8]*",)}
TOP = {"brasil": "pt"}  # language of files outside of the languages' folders; all others are English
BETWEEN = "\n%\n"  # separates two texts of a collection
HELP = (
    "apt-get install fortunes fortunes-de fortunes-es fortunes-it fortunes-pl fortunes-ru fortunes-cs fortunes-bg "
    "fortunes-br, or pass the folder of such files as data_dir"
)

Collections = dict[tuple[str, str], list[str]]  # texts by language and name


def load(data_dir: Folder = None, *, length: int = 64, tokens: int = 192, languages: str = "") -> Source:
    """Returns the fortunes in windows of characters, labelled with the next characters.

    Two layouts are read from `data_dir` or `data_dir/fortunes`; Debian's folder is searched last:

    - `de.jsonl.gz` and so on, one file per language;
    - Debian's, `de/witze` beside `de/witze.u8` or `de/witze.dat`; English is at the top. Links and the folder `off` of
      offensive texts are left out.

    The texts of a collection are one stream, separated by Debian's line with one %, and divided into windows that do
    not overlap. A text may have training and test windows.

    Args:
        data_dir: folder of the files.
        length: T, characters of a window.
        tokens: largest size of the vocabulary, including the unknown token; nine languages have 276 characters, of
            which the 191 most frequent are all but 0.03 % of the text.
        languages: languages separated by colons: `"de:pl"`; "" takes all existing languages.

    Raises:
        FileNotFoundError: there are no files.
        ValueError: a file is damaged, a language is missing, or a number is out of range.
    """
    for name, number, least in (("length", length, 1), ("tokens", tokens, 2)):
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}.")
    layout, place = require("fortunes", LAYOUTS, _fortunes_folders(data_dir), HELP)
    collections = (_read_json_lines if layout == "jsonl" else _read_debian)(place)
    existing = sorted({language for language, _ in collections})
    wanted = sorted(set(filter(None, languages.split(":")))) or existing
    if missing := sorted(set(wanted) - set(existing)):
        raise ValueError(
            f"languages must be among those in {place}, {', '.join(existing)}, got {missing[0]}; leave it out."
        )
    streams = {name: BETWEEN.join(texts) for name, texts in sorted(collections.items()) if name[0] in wanted}
    letters = text.Vocabulary.of(streams.values(), tokens)
    parts = [text.windows(letters.tokens(stream), length) for stream in streams.values()]
    rows = [len(x) for x, _ in parts]
    groups = [wanted.index(language) for language, _ in streams]
    return Source(
        "fortunes",
        np.concatenate([x for x, _ in parts]),
        np.concatenate([y for _, y in parts]),
        letters.size,
        clients=np.repeat([f"{language}/{name}" for language, name in streams], rows),
        client_groups=np.repeat(np.array(groups, np.int32), rows),
        group_names=tuple(wanted),
        class_names=letters.names,
    )


def _fortunes_folders(data_dir: Folder) -> list[Path]:
    """Returns the folders to search, in order."""
    return [*folders("fortunes", data_dir), DEBIAN]


def _read_json_lines(place: Path) -> Collections:
    """Returns the collections of the files of all languages."""
    collections: Collections = {}
    for path in sorted(place.glob(LAYOUTS["jsonl"][0])):
        try:
            lines = bounded.read_content(path).splitlines()
        except ValueError as error:
            raise ValueError(f"{path} cannot be read ({error}); download it again.") from error
        for number, line in enumerate(lines, 1):
            try:
                row = bounded.parse_json(line)
                collection, content = row["collection"], row["text"]
                if not isinstance(collection, str) or not isinstance(content, str):
                    raise TypeError("collection and text must be texts")
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(
                    f"{path}: line {number} must be an object with collection and text ({error}); download the "
                    "file again."
                ) from error
            collections.setdefault((path.name[:2], collection), []).append(content)
    return collections


def _read_debian(place: Path) -> Collections:
    """Returns the collections of Debian's folders."""
    collections: Collections = {}
    for path in sorted([*place.glob("*"), *place.glob("??/*")]):
        index = [path.with_name(path.name + end) for end in BESIDE]
        if path.is_symlink() or not path.is_file() or path.suffix in BESIDE or not any(map(Path.exists, index)):
            continue
        language = TOP.get(path.name, "en") if path.parent == place else path.parent.name
        try:
            content = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} must be UTF-8 text ({error}); install the package again.") from error
        texts = [part.strip("\n") for part in content.split(BETWEEN)]
        texts = [part.removesuffix("\n%") for part in texts if part.strip("%\n ")]
        if texts:
            collections.setdefault((language, path.name.removesuffix(".fortunes")), []).extend(texts)
    return collections


def _find_fortunes(data_dir: Folder) -> Path | None:
    """Returns the folder of the files, or None."""
    located = locate(LAYOUTS, _fortunes_folders(data_dir))
    return None if located is None else located[1]


ENTRY = SourceEntry(
    load,
    find=_find_fortunes,
    summary="fortunes, quotations of about 340 collections in nine languages, 7 million characters",
    licence="BSD, GPL-2+ or public domain by package; see Debian's copyright files",
    num_bytes=0,
    num_classes=None,
    skews=WITHOUT_CLASSES,
    makers="collection",
    help=HELP,
    model=("char-rnn", {"hidden": (128,), "embedding": 32}),
)
