"""Folders of strangers: hostile names in random places of a run's files, and files of Python that nobody trusts.

    python -m experiments.reliability.strangers --count 1000 --out experiments/reliability/results/strangers.jsonl
    python -m experiments.reliability.strangers --first 17 --count 1

A case is a folder of two runs, whose method and task are in a file of Python, with some texts of its files replaced by
random ones, and one trick with the file. It is compared, with all outputs, and loaded. Both must end, with a result or
with an error that is one of jaxfl, and execute nothing; no output may have control characters, elements of HTML that
are not jaxfl's, or formulas. Then the folder is trusted, and the file must be executed where it is the run's own, and
nowhere else. Case i of a seed is always the same.
"""

import collections
import contextlib
import csv
import html.parser
import io
import json
import os
import random
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jaxfl
from experiments.reliability.campaign import ended_by_interrupt, parser, until
from experiments.speed import measure
from jaxfl.cli.compare import compare_runs
from jaxfl.host.text import FORMULA_STARTS, printable

RAN = "JAXFL_STRANGER_RAN"  # a variable of the environment that executed files write into
HONEST = f"""
import os
os.environ["{RAN}"] += "own"
import jaxfl


def average(task, optimizer, *, local_epochs: int = 1):
    return jaxfl.methods.fedavg(task, optimizer, local_epochs=local_epochs)


def same(network, data):
    return jaxfl.classification(network, data)
"""
EVIL = f'import os\nos.environ["{RAN}"] += "evil"\naverage = same = print\n'
PARTS = (
    *("$", "$0_", r"\alpha", r"\input{x}", "&", "%", "^^M", "[2cm]", "[bold]", "[/]", ":smile:", "<script>", "<b>"),
    *('" onload="x', "&amp;", "**", "_", "`", "|", "](x)", "=", "+", "-", "@", "'", "\t", "\r", "\n", "\x1b[31m"),
    *("\x1b]0;t\x07", "\x9b", "\x08", "\x00", "\u202e", "\u2067", "\u2028", "\ufeff", "\udce9", "\u00e9", "\u65e5"),
    *("\U0001f469\u200d\U0001f52c", "{0}", "%s", "../", "/", "a", "B", "1", " ", ",", ";", '"', "x" * 300),
)
TAGS = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "pre", "code", "b", "a", "img"}
TAGS |= {"table", "thead", "tbody", "tr", "th", "td", "button", "script"}


class Outcome(NamedTuple):
    """What came of a case.

    Attributes:
        index: of the case.
        trick: with the file of Python.
        what: `compared` or `refused`, as it must be; or what is wrong.
    """

    index: int
    trick: str
    what: str

    @property
    def is_finding(self) -> bool:
        """Returns whether this must not be."""
        return self.what not in ("compared", "refused")


def text(draw: random.Random) -> str:
    """Returns a hostile text."""
    return "".join(draw.choices(PARTS, k=draw.randint(1, 6)))


def trick_file(run: Path, outside: Path, trick: str, config: dict[str, Any]) -> None:
    """Does something to the file of Python of a run, or to what its config says of it."""
    evil = outside / "mine.py"
    evil.write_text(EVIL)
    address = {"own": "mine.py", "changed": "mine.py", "link": "mine.py", "gone": "mine.py"}
    address |= {"above": os.path.relpath(evil, run), "absolute": str(evil), "around": f"{run}/../{run.name}/mine.py"}
    if trick == "changed":
        (run / "mine.py").write_text(HONEST + EVIL)
    if trick in ("link", "gone"):
        (run / "mine.py").unlink()
    if trick == "link":
        (run / "mine.py").symlink_to(evil)
    for owner, name, function in (("method", "method", "average"), ("task", "run.task", "same")):
        if trick != "own":
            config[f"{owner}_file"] = str(evil)
        config[name] = f"{address[trick]}:{function}"


def scatter_texts(entries: Any, draw: random.Random, share: float) -> Any:
    """Returns JSON with some texts and names replaced by hostile ones."""
    if isinstance(entries, dict):
        return {
            text(draw) if draw.random() < share / 10 else name: scatter_texts(one, draw, share)
            for name, one in entries.items()
        }
    if isinstance(entries, list):
        return [scatter_texts(one, draw, share) for one in entries]
    return text(draw) if isinstance(entries, str) and draw.random() < share else entries


def make_case(whole: Path, folder: Path, draw: random.Random, trick: str) -> list[Path]:
    """Writes the two runs of a case, and returns their folders; the first one can be loaded if it is trusted."""
    runs = []
    for place in (0, 1):
        run = folder / f"runs{printable(text(draw))[:20].replace('/', '')}" / str(place)
        shutil.copytree(whole, run)
        config, summary = (json.loads((run / name).read_text()) for name in ("config.json", "summary.json"))
        config["seed"] = summary["seed"] = place
        trick_file(run, folder, trick, config)
        kept = {name: config[name] for name in config if place == 0}
        share = draw.choice((0.0, 0.2, 1.0))
        summary = {name: scatter_texts(value, draw, share) for name, value in summary.items()}
        config = scatter_texts(config, draw, share) | kept
        (run / "config.json").write_text(json.dumps(config))
        (run / "summary.json").write_text(json.dumps(summary))
        runs.append(run)
    return runs


class Page(html.parser.HTMLParser):
    """The tags of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Adds a tag, and attributes that run code."""
        self.tags |= {tag, *(name for name, _ in attrs if name.startswith("on"))}


def faults_of_outputs(outputs: dict[str, str]) -> Iterator[str]:
    """Yields what is wrong with the outputs of a comparison, by form."""
    for form, content in outputs.items():
        if form == "csv":
            cells = [cell for row in csv.reader(io.StringIO(content, newline="")) for cell in row]
            numbers = [cell for cell in cells if cell.removeprefix("-").replace(".", "").replace("e-", "").isdigit()]
            if bad := [one for one in cells if one.startswith(tuple(FORMULA_STARTS)) and one not in numbers]:
                yield f"csv has the formula {bad[0]!r}"
        elif bad := [one for one in content if one not in printable(one, lines=True)]:
            yield f"{form} has {bad[0]!r}"
    page = Page()
    page.feed(outputs.get("html", ""))
    if page.tags - TAGS:
        yield f"html has {sorted(page.tags - TAGS)}"


def compare_case(runs: Sequence[Path], folder: Path) -> str:
    """Compares the runs of a case, with all outputs; returns what came of it."""
    files = {form: folder / f"table.{form}" for form in ("markdown", "latex", "csv")}
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            compare_runs(runs, [], None, files, folder / "curves.png", folder / "page.html")
    except (ValueError, OSError):
        return "refused"
    outputs = {form: path.read_bytes().decode("utf-8") for form, path in files.items()}
    outputs |= {"html": (folder / "page.html").read_bytes().decode("utf-8"), "terminal": printed.getvalue()}
    return next(faults_of_outputs(outputs), "compared")


TRICK_NAMES = ("own", "changed", "link", "gone", "above", "absolute", "around")


def check(whole: Path, seed: int, index: int) -> Outcome:
    """Makes a case, and returns what came of it."""
    draw = random.Random(f"{seed} {index}")
    trick = TRICK_NAMES[index % len(TRICK_NAMES)]
    os.environ[RAN] = ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = make_case(whole, folder, draw, trick)
        try:
            what = compare_case(runs, folder)
            kept = jaxfl.load(runs[0])
            _ = len(kept.history), repr(kept)
            with contextlib.suppress(ValueError):
                _ = kept.job
                what = "a file was executed without trust"
            if os.environ[RAN]:
                what = f"reading executed {os.environ[RAN]}"
            with contextlib.suppress(ValueError):
                _ = jaxfl.load(runs[0], trust=True).job
            wanted = "own" if trick == "own" else ""
            if os.environ[RAN] != wanted:
                what = f"trust executed {os.environ[RAN]!r}, not {wanted!r}"
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
        return Outcome(index, trick, what)


def make_run(folder: Path) -> Path:
    """Makes the run whose files are altered."""
    os.environ[RAN] = ""
    (folder / "mine.py").write_text(HONEST)
    file, small = folder / "mine.py", {"num_clients": 4, "rows_per_client": 20, "model": "logistic"}
    given = {"rounds": 1, "cohort": 2, "task": f"{file}:same", "local_epochs": 2, "out": folder / "run", **small}
    jaxfl.run_named(f"{file}:average", "rotated-digits", **given)
    return folder / "run"


def campaign(seed: int, first: int, count: int, left: Callable[[], bool]) -> Iterator[Outcome]:
    """Yields what came of the cases until there is no time left."""
    with tempfile.TemporaryDirectory() as name:
        whole = make_run(Path(name))
        for index in range(first, first + count):
            if not left():
                return
            yield check(whole, seed, index)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the campaign, prints what it found, and returns 1 if that is anything."""
    options = parser(__doc__)
    options.add_argument("--count", type=int, default=1000, help="folders")
    options.add_argument("--first", type=int, default=0, help="index of the first one")
    given = options.parse_args(arguments)
    warnings.simplefilter("ignore")
    kinds: collections.Counter[str] = collections.Counter()
    findings = []
    with ended_by_interrupt():
        for outcome in campaign(given.seed, given.first, given.count, until(given.minutes)):
            kinds["findings" if outcome.is_finding else outcome.what] += 1
            if outcome.is_finding:
                findings.append(outcome._asdict())
                print(f"{outcome.index}, {outcome.trick}: {outcome.what}", flush=True)
    record = {"campaign": "strangers", "seed": given.seed, "first": given.first, "folders": kinds.total()}
    measure.write({**record, "kinds": kinds, "findings": findings}, given.out)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
