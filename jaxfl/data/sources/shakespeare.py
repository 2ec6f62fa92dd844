"""Shakespeare by speaking role from LEAF's json files: 80 characters and the next one, of 1,129 roles.

Reference: Caldas et al., "LEAF: a benchmark for federated settings", 2018; McMahan et al., "Communication-efficient
learning of deep networks from decentralized data", 2017.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxfl.data.casts import to_texts
from jaxfl.data.labels import MASKED
from jaxfl.data.sources import leaf, text
from jaxfl.data.sources.base import WITHOUT_CLASSES, Folder, Source, SourceEntry, locate
from jaxfl.schema import checked

LENGTH = 80  # characters of a row
# The characters of LEAF's reference models.
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
HELP = (
    "run data/shakespeare/preprocess.sh of https://github.com/TalwalkarLab/leaf and pass its folder data/shakespeare "
    "as data_dir"
)


class _RoleCollector:
    """Collects the rows of several files."""

    def __init__(self) -> None:
        self.inputs: list[np.ndarray] = []
        self.labels: list[np.ndarray] = []
        self.files: dict[str, Path] = {}
        self.plays: dict[str, str] = {}
        self._letters = text.Vocabulary(LETTERS)

    def add(self, path: Path, stride: int, targets: str) -> None:
        """Adds the rows of all users of a file."""
        content = leaf.read_json(path)
        plays: Any = content.get("hierarchies")
        if isinstance(plays, list) and len(plays) == len(content["users"]):  # LEAF's split by rows may list too many
            self.plays |= dict(zip(map(str, content["users"]), map(str, plays), strict=True))
        for user, windows, following in leaf.pop_users(path, content, self.files, "texts", "characters"):
            self.files[user] = path
            for row, (window, letter) in enumerate(zip(windows, following, strict=True)):
                for name, value, length in (("x", window, LENGTH), ("y", letter, 1)):
                    if not isinstance(value, str) or len(value) != length:
                        raise ValueError(
                            f"{path}: {name} must be texts of {length} characters, got {value!r} in row {row} of user "
                            f"{user!r}; it is another data set under this name."
                        )
            selected = slice(None, None, stride)
            stream = self._letters.tokens(
                "".join(map("".join, zip(windows[selected], following[selected], strict=True)))
            )
            rows = stream.reshape(-1, LENGTH + 1)
            labels = np.full((len(rows), LENGTH), MASKED, np.int32)
            first = 0 if targets == "all" else LENGTH - 1
            labels[:, first:] = rows[:, first + 1 :]
            self.inputs.append(rows[:, :-1])
            self.labels.append(labels)

    def rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns inputs and labels `[P, 80]` of all users, and the user of each row `[P]`."""
        names = np.repeat(to_texts("users", list(self.files)), [len(part) for part in self.inputs])
        return np.concatenate(self.inputs), np.concatenate(self.labels), names


@checked
def load(
    data_dir: Folder = None,
    *,
    layout: Literal["auto", "leaf", "leaf-split"] = "auto",
    targets: Literal["last", "all"] = "last",
    stride: int = 1,
) -> Source:
    """Returns Shakespeare by role, from `data_dir/shakespeare`, `data_dir`, or LEAF's folders in them.

    The layouts, by name, in the order of the search: `leaf`, `all_data*.json`, all rows of every role; `leaf-split`,
    `train/*.json` and `test/*.json`. The true group of a role is its play, if the files have it for all roles.

    LEAF's rows are windows that move by one character, so that they overlap: nearly all characters of random test rows,
    and of LEAF's test rows, are in training rows. `stride=80` selects rows without common characters.

    Args:
        data_dir: folder of the files.
        layout: `"auto"` is the first layout that exists.
        targets: `"last"` predicts the character after a row, as in LEAF; `"all"` every character except the first.
        stride: distance of the selected rows of a role.

    Raises:
        FileNotFoundError: files are missing.
        ValueError: a file is damaged, or a number is out of range.

    Warns:
        UserWarning: there are files of both layouts, and none is given.
    """
    if stride < 1:
        raise ValueError(f"stride must be at least 1, got {stride}.")
    layouts = leaf.LAYOUTS if layout == "auto" else {layout: leaf.LAYOUTS[layout]}
    existing, place = leaf.require_files("shakespeare", layouts, data_dir, HELP)
    parts = []
    for pattern in leaf.LAYOUTS[existing]:
        part = _RoleCollector()
        for path in leaf.sorted_files(place, pattern):
            part.add(path, stride, targets)
        parts.append(part)
    (inputs, labels, clients), *test = [part.rows() for part in parts]
    plays = parts[0].plays
    known = plays and all(role in plays for role in parts[0].files)
    names, group = np.unique([plays[role] for role in clients.tolist()], return_inverse=True) if known else ((), None)
    letters = text.Vocabulary(LETTERS)
    return Source(
        "shakespeare",
        inputs,
        labels,
        letters.size,
        test[0][0] if test else None,
        test[0][1] if test else None,
        clients=clients,
        test_clients=test[0][2] if test else None,
        client_groups=None if group is None else group.astype(np.int32),
        group_names=tuple(map(str, names)),
        class_names=letters.names,
    )


def _find_shakespeare(data_dir: Folder) -> Path | None:
    """Returns the folder of the files, or None."""
    located = locate(leaf.LAYOUTS, leaf.places("shakespeare", data_dir))
    return None if located is None else located[1]


ENTRY = SourceEntry(
    load,
    find=_find_shakespeare,
    summary="Shakespeare, 4,226,158 rows of 80 characters by 1,129 speaking roles",
    licence="LEAF BSD-2-Clause; the texts are in the public domain",
    num_bytes=0,
    num_classes=len(LETTERS) + 1,
    skews=WITHOUT_CLASSES,
    makers="role",
    help=HELP,
    model=("char-rnn", {}),
)
