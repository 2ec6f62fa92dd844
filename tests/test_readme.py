"""What the README shows is run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from jaxfl.methods import METHODS

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_first_command_is_the_main_job():
    first = [part.strip() for part in re.split(r"&&", blocks("sh")[0])]
    assert first[:3] == ["python3 -m venv .venv", ". .venv/bin/activate", "pip install -e ."]
    assert first[3] == "jaxfl run stocfl --data rotated-digits --out runs/first"


@pytest.mark.parametrize("command", re.findall(r"^jaxfl run .*(?= --out)", TEXT, re.MULTILINE))
def test_commands_are_accepted(command):
    from jaxfl.cli import job, options

    words = shlex.split(command)
    given = dict(zip(words[3::2], words[4::2], strict=True))
    settings = options.route(words[2], given["--data"])
    rounds, cohort = int(given.get("--rounds", 1)), float(given.get("--cohort", 1.0))
    job.check(job.Job(settings, rounds, cohort))
    assert set(given) <= {"--data", "--data-dir", "--rounds", "--cohort", "--seed"}


def test_data_commands_are_accepted():
    from jaxfl import data
    from jaxfl.cli import options

    block = next(block for block in blocks("sh") if "jaxfl data" in block)
    commands = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert [words[1] for words in commands] == ["data", "data", "run"]
    for words in commands[:2]:
        data.dataset(words[2])
        assert {word for word in words[3:] if word.startswith("--")} <= {"--data-dir", "--download", "--plot", "--save"}
    _, _, method, _, name, *rest = commands[2]
    options.route(method, name, rest[1::2])
    assert set(rest[::2]) == {"--set"}


def test_tables_of_sources_and_skews_are_complete():
    from jaxfl import data
    from jaxfl.data.sources import SOURCES

    rows = re.findall(r"^\| (`.*?) \|", TEXT[TEXT.index("## Data sets") : TEXT.index("## Add a method")], re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    family = "emnist"  # its first name is whole, the others are endings
    whole = [family + name if name.startswith("-") else name for name in named]
    assert whole == [*sorted(SOURCES, key=whole.index), "tfds:<name>", *data.SKEWS]


def test_example_runs(tmp_path):
    code = blocks("python")[0]
    assert len(code.strip().splitlines()) <= 21
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "MPLBACKEND": "Agg"}
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    found = {line.split()[0]: line.split()[1:] for line in run.stdout.splitlines() if line[:6] in ("fedavg", "stocfl")}
    assert found["stocfl"][1:] == ["4", "1.0"]
    assert float(found["stocfl"][0]) > float(found["fedavg"][0])
    assert (tmp_path / "convergence.png").stat().st_size > 0
    assert (tmp_path / "clusters.png").stat().st_size > 0


def test_table_of_methods_is_the_registry():
    section = TEXT.split("\n## Methods\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", section, re.MULTILINE)
    assert rows == [(name, row.summary, row.paper) for name, row in METHODS.items()]


def test_files_that_are_named_exist():
    named = set(re.findall(r"\b((?:jaxfl|tests|notebooks|experiments)/[\w/]+\.(?:py|ipynb))", TEXT))
    assert {"jaxfl/methods/ifca.py", "notebooks/01_first_federation.ipynb"} <= named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
