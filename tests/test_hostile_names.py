"""Names are data: one table of hostile names (`tests/hostile.py`) is shown by every output, and comes back as it is."""

import csv
import html
import html.parser
import io
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import optax
import pandas
import pytest
from markdown_it import MarkdownIt
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure
from matplotlib.text import Text
from typer.testing import CliRunner

import jaxfl
from jaxfl import plots
from jaxfl.analysis import comparison, finished
from jaxfl.analysis.local_sketches import ClientSimilarity
from jaxfl.cli import errors, page, tables
from jaxfl.cli.app import app
from jaxfl.cli.tables.console import print_parts, print_table, progress_message, stderr, stdout
from jaxfl.data.describe import describe
from jaxfl.host.text import FORMULA_STARTS, encodable, printable
from jaxfl.jobs import job
from jaxfl.plots import style
from jaxfl.simulation.records.history import write_json
from tests.hostile import FORBIDDEN, HOSTILE_NAMES

NAMES = list(HOSTILE_NAMES.values())
N = len(NAMES)


@pytest.fixture(scope="module")
def result():
    """A run on a federation whose groups, classes and clients, and which itself, have hostile names."""
    generator, places = np.random.default_rng(0), np.arange(N)
    data = jaxfl.data.federate(
        generator.integers(0, 255, (2 * N, 4, 4), np.uint8),
        np.tile(places, 2),
        [np.array([i]) for i in places],
        [np.array([N + i]) for i in places],
        num_classes=N,
        group=places,
        name=" ".join(NAMES),
        group_names=NAMES,
        class_names=NAMES,
        client_names=NAMES,
    )
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=N), data)
    made = jaxfl.run(jaxfl.methods.fedavg(task, optax.sgd(0.1), local_epochs=1), data, rounds=1, cohort=1.0)
    moved = made.evaluation._replace(cluster=places % 2)
    return made._replace(summary=made.summary | {"method": "$0_[/]\x1b[1m"}, evaluation=moved)


def few(result, first):
    """Returns the run on a federation of ten of the names: few enough to be drawn all."""
    names, places = NAMES[first : first + 10], np.arange(10)
    parts = [np.array([i]) for i in places]
    named = {"group_names": names, "class_names": names, "name": names[0]}
    inputs = np.zeros((10, 4, 4), np.uint8)
    data = jaxfl.data.federate(inputs, places, parts, parts, num_classes=10, group=places, **named)
    return result._replace(data=data, evaluation=result.evaluation._replace(cluster=places % 2))


PICTURES = {
    "convergence": lambda one, names: plots.convergence({**dict.fromkeys(names, one), "other": one}),
    "convergence of one": lambda one, names: plots.convergence(one),
    "clusters": lambda one, names: plots.clusters(one),
    "confusion": lambda one, names: plots.confusion(one),
    "labels": lambda one, names: plots.labels(one.data),
    "montage": lambda one, names: plots.montage(one.data),
    "similarity": lambda one, names: plots.similarity(
        ClientSimilarity(np.eye(N, dtype=np.float32), np.arange(N, dtype=np.int32)), one
    ),
    "heatmaps": lambda one, names: plots.heatmaps(
        {name: np.eye(N) for name in names[:6]}, np.arange(N), group_names=names, title=names[0]
    ),
    "layer gaps": lambda one, names: plots.layer_gaps(
        {names[1]: np.ones(len(names))}, names, recommended=names[0], title=names[2]
    ),
    "gap curves": lambda one, names: plots.gap_curves(
        [1, 2], dict.fromkeys(names[-24:], [0.1, 0.2]), names[0], ylabel=names[1], title=names[2]
    ),
    "bars": lambda one, names: plots.bars(
        names[:4], dict.fromkeys(names, np.ones(4)), names[0], xlabel=names[1], never=names[3], title=names[2]
    ),
    "representations": lambda one, names: plots.representations(
        np.eye(len(names)), {names[0]: np.arange(len(names))}, group=np.arange(len(names)), group_names=names
    ),
    "curves": lambda one, names: plots.curves.curves(comparison.compare({name: [one] for name in names})),
}


def texts_of(figure):
    return [one.get_text() for one in figure.findobj(Text)]


@pytest.mark.parametrize("picture", PICTURES)
def test_pictures_draw_names_letter_by_letter(result, picture):
    figure = PICTURES[picture](result, NAMES)
    assert isinstance(figure, Figure)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.savefig(io.BytesIO(), dpi=100)
    assert not [text for text in texts_of(figure) if is_math_text(text) or FORBIDDEN & set(text)]


def test_pictures_draw_all_names(result):
    """None is left out, as matplotlib leaves out labels that begin with an underscore."""
    for first in (*range(0, N - 10, 10), N - 10):
        names, one = NAMES[first : first + 10], few(result, first)
        short = {style.plain(name, style.MAX_NAME) for name in names}
        assert short | {f"{name} (1)" for name in short} <= set(texts_of(plots.labels(one.data)))
    assert {style.plain(name, style.MAX_NAME) for name in NAMES} <= set(texts_of(plots.clusters(result)))
    for picture in ("gap curves", "curves"):
        for names in (NAMES[: N // 2], NAMES[N // 2 :]):
            (legend,) = PICTURES[picture](result, names).legends
            assert [text.get_text() for text in legend.get_texts()] == [style.plain(name) for name in names]


class Cells(html.parser.HTMLParser):
    """The texts of the cells of a page, and its tags."""

    def __init__(self):
        super().__init__()
        self.tags, self.cells, self.attributes, self.inside = [], [], [], False

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag in ("td", "th"):
            self.cells.append("")
            self.inside = True

    def handle_endtag(self, tag):
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data):
        if self.inside:
            self.cells[-1] += data


def read_cells(text):
    parser = Cells()
    parser.feed(text)
    return parser


KINDS = {"text": str, "code": page.Code, "bold": page.Bold, "link": lambda name: page.Link.to("a/index.html", name)}


@pytest.mark.parametrize("kind", KINDS)
def test_pages_show_names_letter_by_letter(kind, tmp_path):
    rows = [[KINDS[kind](name)] for name in NAMES]
    blocks = [page.Heading(1, "".join(NAMES)), page.Text("".join(NAMES)), page.Table(["name"], rows)]
    blocks += [page.Listing("\n".join(NAMES))]
    text = page.html("".join(NAMES), blocks, tmp_path, "compare")
    assert not FORBIDDEN & set(text) and text.encode()
    found = read_cells(text)
    allowed = {"html", "head", "meta", "title", "style", "body", "h1", "p", "div", "pre", "table", "thead", "tbody"}
    assert set(found.tags) <= allowed | {"tr", "th", "td", "code", "b", "a"}
    assert set(found.attributes) <= {"lang", "charset", "name", "content", "href"}
    lines = [printable(name, lines=True) for name in NAMES]
    assert found.cells[1:] == lines


@pytest.mark.parametrize("kind", ["text", "bold", "code"])
def test_markdown_shows_names_letter_by_letter(kind):
    rows = [[KINDS[kind](f"x{name}x" if kind != "text" else name), "end"] for name in NAMES]
    text = page.markdown([page.Table(["name", "end"], rows)])
    assert not FORBIDDEN & set(text) and text.encode()
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    found = read_cells(parser.render(text))
    assert set(found.tags) <= {"table", "thead", "tbody", "tr", "th", "td", "code", "strong"}
    cells = found.cells[2:]
    assert cells[1::2] == ["end"] * N
    plain = [printable(str(row[0])) for row in rows]
    assert [cell.strip() for cell in cells[::2]] == [
        " ".join(name.split()) if "  " in name else name.strip() for name in plain
    ]


ESCAPES = {
    r"\textbackslash{}": "\\", r"\^{}": "^", r"\~{}": "~", "$<$": "<", "$>$": ">", "$|$": "|",
    **{rf"\{sign}": sign for sign in "&%_#${}"},
}  # fmt: skip


def read_latex(cell):
    """Returns the text that LaTeX sets; raises for a character that means something to it."""
    found, pattern = "", re.compile("|".join(map(re.escape, ESCAPES)) + r"|[^\\{}$&#^_%~]")
    cell = cell.removeprefix("{}")
    while cell:
        match = pattern.match(cell)
        assert match, cell
        found += ESCAPES.get(match[0], match[0])
        cell = cell[match.end() :]
    return found


def test_latex_sets_names_letter_by_letter():
    for name in NAMES:
        cell = comparison.latex_cell(name)
        assert read_latex(cell) == printable(name)
        assert not cell.startswith(("[", "*"))


def out_of_csv(text):
    return text[1:] if text.startswith("'") and text.lstrip("'")[:1] in tuple(FORMULA_STARTS) else text


def test_csv_has_no_formulas_and_gives_names_back(result, tmp_path, monkeypatch):
    text = job.csv_table(result.clients())
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    frame = pandas.read_csv(io.StringIO(text, newline=""), dtype=str, keep_default_na=False)
    for column in ("name", "group"):
        for read in ([row[column] for row in rows], list(frame[column])):
            assert not [cell for cell in read if cell.startswith(tuple(FORMULA_STARTS))]
            assert [out_of_csv(cell) for cell in read] == list(map(encodable, NAMES))
    assert frame["client"].tolist() == [str(i) for i in range(N)]  # numbers are no text
    assert list(frame.columns) == list(result.clients().columns)
    assert text == job.csv_table(job.client_columns(result.data, result.evaluation))  # the same without pandas
    plain = result.clients().drop(columns=["name", "group"])
    assert job.csv_table(plain) == plain.to_csv(index=False)


def test_json_gives_names_back(result, tmp_path):
    write_json(tmp_path / "a.json", {"names": NAMES, **{name: name for name in NAMES}})
    text = (tmp_path / "a.json").read_bytes()
    assert json.loads(text)["names"] == NAMES and not {*map(ord, FORBIDDEN - {"\n"})} & set(text)


@pytest.mark.parametrize("terminal", [False, True])
def test_the_terminal_gets_no_control_characters(result, monkeypatch, capsys, terminal):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    out, err = stdout(), stderr()
    assert out.is_terminal == terminal
    print_table(out, ["name", *NAMES[:3]], [[name, "1", "2", "3"] for name in NAMES], named=True)
    print_parts(out, *NAMES, tables.federation_text(describe(result.data)))
    for name in NAMES:
        err.print(f"note: {name}", style="yellow")
        errors._print_styled(f"error: {name}", "red")
        with progress_message(err, name):
            pass
    printed = capsys.readouterr()
    for text in printed:
        own = re.sub(r"\x1b\[[0-9;?]*[mhlKA]", "", text) if terminal else text  # colours and lines of rich
        assert not FORBIDDEN - {"\r"} & set(own) and ("\r" in own) <= terminal
        text.encode()
    if not terminal:
        for name in NAMES:
            assert f"\n{printable(name)[:60].rstrip()}" in f"\n{printed.out}"
            if not set("\a\b\t\r") & set(name):  # which rich leaves out, or writes as spaces
                whole = printable(name, lines=True)  # of which a line of an error has both ends
                assert f"error: {whole[:900]}" in printed.err and f"{whole[-400:]}\n" in printed.err


def write_runs(folder):
    """Writes folders of finished runs of a stranger, one for each name: methods, data and options are called so."""
    for place, name in enumerate(NAMES):
        run = folder / f"run-{place}"
        run.mkdir(parents=True)
        config = {"method": name, "data": name, "seed": 0, "rounds": 2, "cohort": 2, "method.option": name}
        summary = {
            **config, "options": {"method.option": name, name: name}, "micro_accuracy": place / 100, "loss": 1.0,
            "num_clients": 2, "num_clusters": 1, "device": name, "versions": {name: name}, "main_metric": "accuracy",
        }  # fmt: skip
        records = [{"round": i, "micro_accuracy": 0.5, "loss": 1.0, "bytes_up": 1, "bytes_down": 1} for i in (1, 2)]
        (run / "config.json").write_text(json.dumps(config))
        (run / "summary.json").write_text(json.dumps(summary))
        (run / "history.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """What `jaxfl compare` writes of runs with hostile names, in a folder with another one."""
    folder = tmp_path_factory.mktemp("compared")
    runs = folder / os.fsdecode(b"caf\xe9 $0_ [bold] \x1b[31m \xe2\x80\xae #?%")
    write_runs(runs)
    (runs / "run-0" / "index.html").write_text("")
    files = {form: folder / f"table.{form}" for form in ("csv", "latex", "markdown", "html")}
    words = [word for form, path in files.items() for word in (f"--{form}", str(path))]
    done = CliRunner().invoke(app, ["compare", str(runs), *words, "--plot", str(folder / "curves.png")])
    assert done.exit_code == 0, done.output
    return {form: path.read_text(encoding="utf-8") for form, path in files.items()} | {"terminal": done.output}


@pytest.mark.parametrize("form", ["csv", "latex", "markdown", "html", "terminal"])
def test_compared_runs_have_any_name(compared, form):
    text = compared[form]
    allowed = {"\r"} if form == "csv" else set()
    if form != "csv":  # its cells are the names, for programs
        assert not FORBIDDEN - allowed & set(text)
    else:
        rows = list(csv.reader(io.StringIO(text, newline="")))
        assert len(rows) == N + 1 and not [row for row in rows if row[0].startswith(tuple(FORMULA_STARTS))]
    if form == "latex":
        assert text.count(r"\\") >= N + 1 and not re.search(r"\\\\\s*[\[*]|rule\s*\[", text)
    if form == "html":
        found = read_cells(text)
        assert set(found.attributes) <= {"lang", "charset", "name", "content", "class", "alt", "width", "src", "href"}
        assert found.tags.count("script") == 1 and {printable(one, lines=True).strip() for one in NAMES if one.strip()}


@pytest.mark.parametrize("name", ["top/5", "../../x", "x" * 300, "\0"])
def test_metrics_have_names_that_no_file_can_have(name, tmp_path):
    write_runs(tmp_path)
    for path in [*tmp_path.glob("*/summary.json"), *tmp_path.glob("*/history.jsonl")]:
        path.write_text(path.read_text().replace('"micro_accuracy"', json.dumps(f"micro_{name}")))
    page = tmp_path / "all.html"
    done = CliRunner().invoke(app, ["compare", str(tmp_path), "--html", str(page)])
    assert done.exit_code == 0 and printable(f"micro {name}") in page.read_text(), done.output


def test_settings_have_any_name():
    names = finished.setting_names([{"method": "a", "x": name} for name in NAMES])
    assert len(set(names)) == N  # are told apart
    checksums = [{"method": "a", "task_checksum": one} for one in "ab"]  # without the task itself
    assert len(set(finished.setting_names(checksums))) == 2


@pytest.mark.slow
def test_folders_of_runs_have_any_name(tmp_path, monkeypatch):
    """Also one that cannot be decoded, with pictures and a page."""
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"=caf\xe9 $0_ [/] \x1b[31m \xe2\x80\xae")
    words = "run fedavg --data rotated-digits --set num_clients=4 --set rows_per_client=10 --set model=logistic"
    words = [*words.split(), "--rounds", "1", "--cohort", "2", "--html", "--out", name]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert f"page: {printable(name)}/index.html" in done.stdout and not FORBIDDEN & set(done.output)
    assert {"convergence.png", "clusters.png", "index.html", "clients.csv"} <= {
        one.name for one in Path(name).iterdir()
    }
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 2 and not FORBIDDEN & set(again.output)
    done = CliRunner().invoke(app, ["compare", name, "--html", "a.html"])
    assert done.exit_code == 0 and 'href="%3Dcaf%E9' in Path("a.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["0", "1"])
def test_a_locale_without_letters_ends_nothing(tmp_path, mode):
    write_runs(tmp_path / "runs")
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": mode, "PYTHONCOERCECLOCALE": "0"}
    environment |= {"PYTHONPATH": str(Path(jaxfl.__file__).parents[1])}
    words = ["compare", "runs/run-0", "runs/run-1", "--csv", "a.csv", "--html", "a.html", "--latex", "a.tex"]
    words += ["--label", "$0_=M\u00e9thode", "--plot", "a.png"]
    done = subprocess.run([sys.executable, "-m", "jaxfl", *words], cwd=tmp_path, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    shown = "M\u00e9thode" if mode == "1" else None
    assert b"\x1b" not in done.stdout
    if shown:
        assert shown in (tmp_path / "a.html").read_text(encoding="utf-8")
