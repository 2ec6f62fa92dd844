"""Every method on eight federations, under one budget and tuned by one rule.

    python -m experiments.leaderboard rotated pathological --data-dir DIR

makes what is missing of these federations (`all` is every one); without a name it draws the pictures of the page. What
is done is not made again: a table grows over several evenings, and an interrupted one goes on.
"""

import argparse
import tempfile
from pathlib import Path

from experiments.leaderboard import pictures
from experiments.leaderboard.federations import FEDERATIONS, SMOKE, Federation, federation
from experiments.leaderboard.play import play
from experiments.leaderboard.rows import Number, Row, row, rows
from experiments.leaderboard.table import FOLDER, standings
from jaxfl.files import check_output, signature
from jaxfl.settings.reading import parse
from jaxfl.simulation.devices import keep_programs


def main(words: list[str] | None = None) -> int:
    """Does what a command line asks for, and returns the exit code: 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("federations", nargs="*", metavar="FEDERATION", help=", ".join(one.name for one in FEDERATIONS))
    parser.add_argument("--method", action="append", help="this method alone, or a newcomer's FILE.py:NAME")
    parser.add_argument("--number", help="the newcomer's option that is tuned, OPTION=VALUE,VALUE,VALUE")
    parser.add_argument("--data-dir", help="the folder of the data's files, or the one above it")
    parser.add_argument("--out", type=Path, help="a folder of its own for newcomers' results and pictures")
    parser.add_argument("--smoke", action="store_true", help="FedAvg and IFCA on embedded digits, in seconds")
    given = parser.parse_args(words)
    if given.smoke:
        with tempfile.TemporaryDirectory() as folder:
            return int(play(SMOKE, [row("fedavg"), row("ifca")], given.out or Path(folder), None, _say) > 0)
    own, out = given.out, given.out or FOLDER
    names = [one.name for one in FEDERATIONS] if given.federations == ["all"] else given.federations
    if names:
        keep_programs()
    failed = 0
    try:
        if not names:
            for name in pictures.PICTURES if own is not None else ():
                check_output(out / name, "--out", signature(pictures.COMMAND))
            print(*(pictures.draw(FOLDER) if own is None else pictures.draw(FOLDER, own, own)), sep="\n")
        chosen = [_row(name, given.number) for name in given.method or ()]
        for on in map(federation, names):
            failed += play(on, chosen or rows(on), out, given.data_dir, _say)
            for one in chosen:
                _say(place(on, one.name, own))
    except ValueError as error:
        parser.error(str(error))
    return int(failed > 0)


def place(on: Federation, name: str, own: Path | None = None) -> str:
    """Returns in a line where a method stands among all on a federation, by its mean over the seeds.

    Args:
        on: the federation.
        name: of the method.
        own: a folder with more results; None is that of all methods alone.
    """
    found = standings(on, FOLDER, beside=own)
    names = [one.row for one in found]
    if name not in names:
        return f"{on.title}: {name} has not been made at every seed."
    at = names.index(name)
    mean = found[at].mean("micro")
    told = "diverged at a seed" if mean is None else f"{on.metric} {mean:.4f}"
    return f"{on.title}: {name} has place {at + 1} of {len(names)}, {told}; the first is {names[0]}."


def _row(method: str, number: str | None) -> Row:
    """Returns the row of a method that was named, with the option that is tuned."""
    if number is None:
        return row(method)
    option, _, texts = number.partition("=")
    grid: tuple[Number, ...] = tuple(map(parse, texts.split(",")))
    return row(method, option, grid)


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
