"""What the pages of the site show is run: Python in one namespace a page, commands in the same folder, in order."""

import doctest
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import jax
import pytest
import typer

import jaxfl
from docs.generate import methods, papers, reliability, results, speed, tables
from jaxfl import data
from jaxfl.cli.app import app, main
from jaxfl.data.sources import SOURCES
from jaxfl.jobs import job
from jaxfl.methods import METHODS, Method
from jaxfl.sampling import cohorts_of
from jaxfl.settings import options, user_code

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "pages"
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _read(name):
    return (PAGES / name).read_text(encoding="utf-8")


WRITTEN = sorted(path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*.md"))
WITH_CODE = [name for name in WRITTEN if BLOCK.search(_read(name))]
COMMANDS = sorted(
    {
        line
        for name in WRITTEN
        for line in re.findall(
            r"^jaxfl (?:run|sweep|compare|check|data|methods|plan|reproduce|report|bench|protocol)\b.*$",
            _read(name),
            re.MULTILINE,
        )
        if not re.search(r"[\[ ](METHOD|NAME|COMMAND)\b", line)
    }
)


def commands(block):
    """Returns the words of the commands of jaxfl in a block."""
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    return [words[1:] for words in lines if words[:1] == ["jaxfl"]]


def is_quick(words):
    """Whether a command needs no files but those of its page: it is run, the others are only checked."""
    elsewhere = [name for name in SOURCES if name not in ("digits", "npz", "table")]
    needs = any(word == name or word.endswith(f"-{name}") for word in words for name in elsewhere)
    return words[0] in ("run", "sweep", "compare", "data", "methods", "plan") and not needs and "DIR" not in words


def call(words):
    """Runs a command, for two rounds where it does not say how many, of the smallest network where it names none."""
    if words[0] == "run" and "--rounds" not in words:
        words = [*words, "--rounds", "2"]
    if "rotated-digits" in words and not re.search(r"\b(model|hidden)=", " ".join(words)):
        words += ["--set", "model=logistic"] if words[0] in ("run", "sweep", "plan") else []
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code in (0, None)


@pytest.mark.parametrize(("status", "requeued"), [(0, ""), (1, ""), (75, "requeue 7"), (143, "")])
def test_a_job_that_has_used_up_its_time_is_put_into_the_queue_again(status, requeued, tmp_path):
    scripts = re.findall(r"^```bash\n(.*?)^```", _read("howto/hosts.md"), re.MULTILINE | re.DOTALL)
    stubs = f"srun() {{ return {status}; }}; scontrol() {{ echo $*; }}; SLURM_JOB_ID=7; "
    stubs += "SLURM_ARRAY_JOB_ID=7; SLURM_ARRAY_TASK_ID=3\n"
    for script, end in zip(scripts, ("", "_3"), strict=True):
        done = subprocess.run(["bash", "-c", stubs + script], capture_output=True, text=True, cwd=tmp_path)
        assert (done.returncode, done.stdout.strip()) == (status, requeued and requeued + end), done.stderr


def trace(one, rows, callbacks=(), tools=None):
    """Ends a command in place of its run: all that it needs is made, and a round is traced, but not compiled."""
    key, method = jax.random.key(0), tools.method
    if method.privacy is not None and method.privacy.privacy.noise is None:
        method = method.privacy.with_noise(1.0)  # a run finds it
    state = jax.eval_shape(method.init, key, rows)
    (sampler, size), plan = cohorts_of(tools.sampler, one.cohort, rows), data.Plan()
    cohort = jax.eval_shape(lambda state: sampler(key, state.round, rows, size, plan), state)
    jax.eval_shape(method.round, key, state, rows, cohort)
    raise typer.Exit()


@pytest.fixture
def keeps_only(monkeypatch, empty_pictures):
    """Runs only commands with a folder, which the rest of their page may read.

    What the options of the others do in a run has tests of its own.
    """
    run, together = job.execute, job.execute_jobs

    def execute_together(jobs, rows, *rest):
        return together(jobs, rows, *rest) if jobs[0].out else trace(jobs[0], rows[0], *rest)

    def execute(one, rows, callbacks=(), tools=None):  # Python's `run_named` has no tools
        return run(one, rows, callbacks, tools) if one.out or tools is None else trace(one, rows, callbacks, tools)

    monkeypatch.setattr(job, "execute", execute)
    monkeypatch.setattr(job, "execute_jobs", execute_together)


@pytest.mark.rotating("name", weeks=8)
@pytest.mark.parametrize("name", WITH_CODE)
def test_page_runs(name, tmp_path, monkeypatch, keeps_only):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "page"}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")  # whose example has a test of its own
    text = BLOCK.sub(lambda found: "" if found[1] == "python" and found[2] in readme else found[0], _read(name))
    for language, block in BLOCK.findall(text):
        if language == "python":
            if found := re.match(r"# (\w+\.py)\n", block):  # a file that commands of the page name
                Path(found[1]).write_text(block)
            exec(compile(block, name, "exec"), namespace)
        for words in commands(block) if language == "sh" else ():
            if is_quick(words):
                call(words)
    pictures = re.findall(r"savefig\(\"(.+?)\"\)", text)
    assert [picture for picture in pictures if not (tmp_path / picture).stat().st_size] == []


def test_the_method_of_a_file_can_move_into_the_package(monkeypatch):
    """The package imports its methods one after another: a method finds what stands beside it, and no names of it."""
    package = ModuleType("jaxfl.methods")
    package.__path__ = list(jaxfl.methods.__path__)
    monkeypatch.setitem(sys.modules, "jaxfl.methods", package)
    block = next(block for _, block in BLOCK.findall(_read("howto/own-method.md")) if "# plain_average.py" in block)
    exec(compile(block, "plain_average.py", "exec"), {"__name__": "jaxfl.methods.plain_average"})


@pytest.mark.parametrize("command", COMMANDS)
def test_command_is_accepted(command):
    """Every option exists, and those of a run go to a part that knows them."""
    words = shlex.split(command, comments=True)[1:]
    group = typer.main.get_command(app)
    with group.make_context("jaxfl", list(words), resilient_parsing=False) as context:
        name, one, rest = group.resolve_command(context, list(words))
        if name == "bench":
            name, one, rest = one.resolve_command(context, rest)
        given = one.make_context(name, rest, parent=context).params
    of_files = user_code.is_address(given.get("method")) or re.search(r"\w\.py:\w", " ".join(words))
    if name in ("run", "plan") and not of_files:  # those are run on their page
        settings = options.route(given["method"], given["data"], given.get("items") or ())
        for option in options.FILES_OF_RUNS:
            if Path(str(settings.run.get(option))).suffix:  # a file that the page makes
                settings.run.pop(option)
        job.check(job.Job(settings, given.get("rounds") or 1, 1.0))
    if (
        name == "data"
        and not of_files
        and (asked := next((word for word in words[1:] if not word.startswith("-")), None))
    ):
        data.dataset(asked) if asked not in SOURCES else SOURCES[asked]


def test_tables_of_sources_and_skews_are_complete():
    text = _read("data.md")
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    family = "emnist"  # its first name is whole, the others are endings
    whole = [family + name if name.startswith("-") else name for name in named]
    assert whole == [*sorted(SOURCES, key=whole.index), "tfds:<name>", *data.SKEWS]


@pytest.mark.parametrize("path", tables.documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_tables_are_what_the_results_say(path):
    text = path.read_text(encoding="utf-8")
    assert text == tables.renewed(text), "run `python -m docs.generate`"


def test_tables_have_their_places():
    places = {found[1] for path in tables.documents() for found in tables.PLACE.findall(path.read_text("utf-8"))}
    assert {place for place in places if papers.BETWEEN not in place} == set(tables.TABLES)


@pytest.mark.parametrize("name", [*WRITTEN, "../CONTRIBUTING.md"])
def test_links_lead_somewhere(name):
    """In a code browser: files of the repository, not pages that only the site has."""
    text = re.sub(r"^```.*?^```", "", _read(name), flags=re.MULTILINE | re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
    assert [link for link in links if not ((PAGES / name).parent / link).exists()] == []


@pytest.mark.parametrize("name", [*WRITTEN, "../CONTRIBUTING.md"])
def test_files_that_are_named_exist(name):
    text = _read(name)
    named = set(re.findall(r"\b((?:jaxfl|tests|docs|experiments)/[\w/]+\.(?:py|md|ipynb|jsonl|yml))", text))
    assert [file for file in sorted(named) if not (ROOT / file).exists() and "NAME" not in file] == []


def test_every_public_name_is_on_a_page_of_the_api():
    pages = "".join(path.read_text("utf-8") for path in (PAGES / "api").glob("*.md"))
    named = set(re.findall(r"^::: jaxfl\.(\w+)", pages, re.MULTILINE))
    assert sorted(set(jaxfl.__all__) - named) == []


def test_cpu_numbers_are_beside_a_command():
    """A row of a table of speeds ends in what makes it."""
    text = _read("speed.md")
    rows = re.findall(r"^\| W\d.*\|$", text, re.MULTILINE)
    assert len(rows) >= 18
    assert [row for row in rows if not re.search(r"`python -m experiments\.speed\.\w+[^`]*` \|$", row)] == []


FREE = methods.Cost(model=4, up=(4.0, 4.0), down=(4.0, 8.0), state=4.0, client=0.0)  # not measured


@pytest.mark.parametrize("name", METHODS)
def test_method_has_a_page(name):
    row = METHODS[name]
    page = methods.page(name, row, FREE)
    heads = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert heads == [
        "The method",
        "Options",
        "Example",
        "What the server sees",
        "What a newcomer needs",
        "What it costs",
        "Source",
    ]
    assert row.paper in page
    described = re.findall(r"^`(\w+)` \(.*\)\n:   (.*)$", page, re.MULTILINE)
    assert [option for option, _ in described] == list(row.options)
    assert [option for option, text in described if not text.strip()] == []
    assert [option for option in row.options if option == "preset" and "### Presets" not in page] == []
    (command,) = re.findall(r"^jaxfl run .*$", page, re.MULTILINE)
    test_command_is_accepted(command)
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    without_a_run = example.partition("result = ")[0].replace("num_clients=40, rows_per_client=80", "num_clients=8")
    namespace = {}
    exec(compile(without_a_run, name, "exec"), namespace)
    assert isinstance(namespace["method"], Method)


@pytest.mark.parametrize("module", [methods, reliability, results, speed], ids=lambda module: module.__name__)
def test_doctests_of_what_makes_the_pages(module):
    assert doctest.testmod(module).failed == 0


def test_page_keeps_equations_as_they_are_written():
    page = methods.page("fedavg", METHODS["fedavg"], FREE)
    assert "```text\nFedSGD    w <- w - eta * sum_i (n_i / n) grad f_i(w)\n" in page
    assert ">>>" not in page


def test_costs_are_measured():
    """IFCA sends all its models to each client and receives one; its state holds them and a number for each client."""
    ifca, local = (methods.measure(METHODS[name]) for name in ("ifca", "local"))
    assert (ifca.down, ifca.up) == ((4 * ifca.model,) * 2, (ifca.model,) * 2)
    assert ifca.state - 4 * ifca.model < 100
    assert ifca.client < 10
    assert (local.down, local.up) == ((0, 0), (0, 0))
    assert local.client >= local.model
    words = methods.costs("ifca", METHODS["ifca"], ifca)
    assert f"| a client receives in a round | 4 | {4 * ifca.model:,} |" in words


def test_presets_are_resolved():
    page = methods.page("cfl", METHODS["cfl"], FREE)
    assert '| option | `"paper"` | `"official"` | `"fesem"` |' in page
    assert "| `eps1` | `0.4` | `0.4` | `math.inf` |" in page
    assert '`linkage` (default `"single"`, from the preset;' in page


def test_docstrings_become_markdown():
    griffe = pytest.importorskip("griffe")
    from docs.docstrings import Docstrings, as_markdown

    text = "One.\n\n    w <- v\n\nArgs:\n    w: a < b.\n\n>>> 1 + 1\n2"
    wanted = "One.\n\n```text\nw <- v\n```\n\nArgs:\n    w: a &lt; b.\n\n```pycon\n>>> 1 + 1\n2\n```"
    assert as_markdown(text) == wanted
    thing = griffe.Function("f", docstring=griffe.Docstring(text))
    for _ in range(2):  # an alias shows a docstring twice
        Docstrings().on_object(obj=thing)
    assert thing.docstring.value == wanted


def test_comments_beside_fields_are_their_descriptions(tmp_path):
    griffe = pytest.importorskip("griffe")
    from docs.docstrings import Docstrings

    (tmp_path / "made.py").write_text(
        'class One:\n    """A thing."""\n\n    w: int  # [N] how much\n    plain: int\n'
        '\n\nclass Two:\n    """Another.\n\n    Attributes:\n        w: said.\n    """\n\n    w: int  # not said\n'
    )
    module = griffe.load("made", search_paths=[tmp_path], extensions=griffe.load_extensions(Docstrings))
    assert module["One"].docstring.value == "A thing.\n\nAttributes:\n    w: [N] how much"
    assert module["Two"].docstring.value == "Another.\n\nAttributes:\n    w: said."
