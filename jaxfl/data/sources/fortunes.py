"""Fortunes: quotations and jokes in nine languages, as Debian packages them; a client is a collection of one language.

Either Debian's own files, texts with a line of one % between them, or `<language>.jsonl.gz`, one JSON object
`{"collection": ..., "text": ...}` a line.
"""

from pathlib import Path

import numpy as np

from jaxfl.data import bounded
from jaxfl.data.sources import text
from jaxfl.data.sources.base import WITHOUT_CLASSES, Folder, Source, SourceEntry, folders, locate, require

DEBIAN = Path("/usr/share/games/fortunes")  # where Debian's packages put them
BESIDE = (".dat", ".u8")  # an index or a link with this ending lies beside every collection
LAYOUTS = {"jsonl": ("??.jsonl.gz",), "debian": ("??/*.[du][a8]*",)}
TOP = {"brasil": "pt"}  # of the files that lie in no language's folder; the others are English
BETWEEN = "\n%\n"  # two texts of a collection
HELP = (
    "apt-get install fortunes fortunes-de fortunes-es fortunes-it fortunes-pl fortunes-ru fortunes-cs fortunes-bg "
    "fortunes-br, or give the folder of such files as data_dir"
)

Collections = dict[tuple[str, str], list[str]]  # by language and name, the texts


def load(data_dir: Folder = None, *, length: int = 64, tokens: int = 192, languages: str = "") -> Source:
    """Returns the fortunes in windows of characters, labelled with the next characters.

    Two layouts are read, in `data_dir` or `data_dir/fortunes`; Debian's own folder is looked into last:

    - `de.jsonl.gz` and so on, a file a language;
    - Debian's, `de/witze` beside `de/witze.u8` or `de/witze.dat`; English lies at the top. Links, and the folder `off`,
      which is for those who ask for it, are left out.

    The texts of a collection are one stream, with Debian's line of one % between them, cut into windows that do not
    overlap. Windows of one text may be trained on and tested on.

    Args:
        data_dir: where the files are.
        length: T, characters of a window.
        tokens: the most tokens of the vocabulary, the unknown one included; nine languages have 276 characters, of
            which the 191 most frequent are all but 0.03 % of the text.
        languages: which languages to take, with colons between them: `"de:pl"`; "" takes all that are there.

    Raises:
        FileNotFoundError: no files are there.
        ValueError: a file is damaged, a language is missing, or a number is out of range.
    """
    for name, number, least in (("length", length, 1), ("tokens", tokens, 2)):
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}.")
    layout, place = require("fortunes", LAYOUTS, _fortunes_folders(data_dir), HELP)
    found = (_read_json_lines if layout == "jsonl" else _read_debian)(place)
    there = sorted({language for language, _ in found})
    wanted = sorted(set(filter(None, languages.split(":")))) or there
    if missing := sorted(set(wanted) - set(there)):
        raise ValueError(f"languages must be of those in {place}, {', '.join(there)}, got {missing[0]}; leave it out.")
    streams = {who: BETWEEN.join(texts) for who, texts in sorted(found.items()) if who[0] in wanted}
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
    """Returns where to look, the best place first."""
    return [*folders("fortunes", data_dir), DEBIAN]


def _read_json_lines(place: Path) -> Collections:
    """Reads the files of all languages."""
    found: Collections = {}
    for path in sorted(place.glob(LAYOUTS["jsonl"][0])):
        try:
            lines = bounded.read_content(path).splitlines()
        except ValueError as error:
            raise ValueError(f"{path} cannot be read ({error}); get it again.") from error
        for number, line in enumerate(lines, 1):
            try:
                row = bounded.parse_json(line)
                collection, words = row["collection"], row["text"]
                if not isinstance(collection, str) or not isinstance(words, str):
                    raise TypeError("collection and text must be texts")
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(
                    f"{path}: line {number} must be an object with collection and text ({error}); get the file again."
                ) from error
            found.setdefault((path.name[:2], collection), []).append(words)
    return found


def _read_debian(place: Path) -> Collections:
    """Reads the collections of Debian's folders."""
    found: Collections = {}
    for path in sorted([*place.glob("*"), *place.glob("??/*")]):
        index = [path.with_name(path.name + end) for end in BESIDE]
        if path.is_symlink() or not path.is_file() or path.suffix in BESIDE or not any(map(Path.exists, index)):
            continue
        language = TOP.get(path.name, "en") if path.parent == place else path.parent.name
        try:
            content = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} must be UTF-8, and is not ({error}); install the package again.") from error
        texts = [one.strip("\n") for one in content.split(BETWEEN)]
        texts = [one.removesuffix("\n%") for one in texts if one.strip("%\n ")]
        if texts:
            found.setdefault((language, path.name.removesuffix(".fortunes")), []).extend(texts)
    return found


def _find_fortunes(data_dir: Folder) -> Path | None:
    """Returns the folder of the files."""
    found = locate(LAYOUTS, _fortunes_folders(data_dir))
    return None if found is None else found[1]


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
