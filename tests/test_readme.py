"""What the README shows is run."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_first_command_is_the_main_job():
    first = [part.strip() for part in re.split(r"&&", blocks("sh")[0])]
    assert first[:3] == ["python3 -m venv .venv", ". .venv/bin/activate", "pip install -e ."]
    assert first[3] == "jaxfl run stocfl --data rotated-digits --out runs/first"


@pytest.mark.slow
def test_example_runs(tmp_path, monkeypatch, capsys):
    code = blocks("python")[0]
    assert len(code.strip().splitlines()) == 12
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    lines = capsys.readouterr().out.splitlines()
    found = {line.split()[0]: line.split()[1:] for line in lines if line[:6] in ("fedavg", "stocfl")}
    assert found["stocfl"][1:] == ["4", "1.0"]
    assert float(found["stocfl"][0]) > float(found["fedavg"][0])
    assert (tmp_path / "convergence.png").stat().st_size > 0
    assert (tmp_path / "clusters.png").stat().st_size > 0


def test_it_is_short():
    assert len(TEXT.splitlines()) <= 130


def test_links_lead_somewhere():
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", TEXT) if "://" not in link]
    assert {"docs/pages/speed.md", "docs/CONTRIBUTING.md", "CITATION.cff", "docs/pages/images/clusters.png"} <= set(
        links
    )
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_speeds_are_those_of_the_page():
    section = TEXT.split("\n## Speed\n")[1].split("\n## ")[0]
    page = (ROOT / "docs" / "pages" / "speed.md").read_text(encoding="utf-8")
    numbers = re.findall(r"\d+\.\d+|(?<= )\d{3}(?= times)", section)
    assert len(numbers) >= 6
    assert [number for number in numbers if not re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.])", page)] == []


def test_citation_is_in_step():
    import yaml

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
    assert (str(citation["version"]), citation["license"]) == (project["version"], project["license"])
    assert set(citation["keywords"]) <= set(project["keywords"])
    assert citation["authors"] == [{"name": "The jaxfl developers"}]


def test_each_term_has_one_row_of_the_glossary():
    _, glossary = (ROOT / "docs" / "CONTRIBUTING.md").read_text(encoding="utf-8").split("\n## Glossary\n")
    terms = [line.split(" | ")[0].removeprefix("| ").lower() for line in glossary.splitlines() if line[:1] == "|"][2:]
    assert len(terms) >= 50
    assert terms == sorted(set(terms))
    assert all(line.count("|") == 4 for line in glossary.splitlines() if line[:1] == "|")
