"""What the project says about itself in several places is the same in all of them."""

import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from jaxfl.cli.errors import PACKAGES
from tests.test_imports import MODULES, imports

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIRED = [Requirement(line) for line in PROJECT["dependencies"]]


@pytest.mark.parametrize("requirement", REQUIRED, ids=lambda requirement: requirement.name)
def test_tested_versions_are_the_declared_ones(requirement):
    assert requirement.specifier.contains(importlib.metadata.version(requirement.name))


@pytest.mark.parametrize("name", ["jax", "jaxlib"])
def test_jax_is_bounded_above(name):
    (requirement,) = [requirement for requirement in REQUIRED if requirement.name == name]
    assert any(bound.operator in ("<", "<=") for bound in requirement.specifier)


def test_imports_are_declared():
    extras = [
        Requirement(line).name
        for name, lines in PROJECT["optional-dependencies"].items()
        for line in lines
        if name != "dev"
    ]
    declared = {requirement.name for requirement in REQUIRED} | set(extras)
    imported = {
        target.split(".")[0]
        for name in MODULES
        if name.split(".")[0] == "jaxfl"
        for target in imports(name, MODULES[name], MODULES)
    }
    third_party = imported - set(sys.stdlib_module_names) - {"jaxfl", "experiments"}
    assert {"jax", "numpy"} <= third_party
    assert {PACKAGES.get(name, name) for name in third_party} - declared == set()


def test_the_package_says_that_it_is_typed_and_who_makes_it():
    assert (ROOT / "jaxfl" / "py.typed").read_bytes() == b"" and "Typing :: Typed" in PROJECT["classifiers"]
    cited = re.findall(r"^  - name: (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert [author["name"] for author in PROJECT["authors"]] == cited


def test_a_slim_installation_has_or_leaves_out_each_requirement():
    page = (ROOT / "docs" / "pages" / "howto" / "slim-install.md").read_text(encoding="utf-8")
    installed = [Requirement(text) for text in re.findall(r"'([a-z]+[><=][^']*)'", page)]
    assert {*map(str, installed)} <= {*map(str, REQUIRED)}, "with the same bounds"
    cells = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    left_out = {name for cell in cells for name in re.findall("`([^`]+)`", cell)}
    assert {one.name for one in installed} | left_out == {one.name for one in REQUIRED}
    assert left_out & {one.name for one in installed} == {"pandas", "matplotlib"}


def test_version_is_written_once():
    version = PROJECT["version"]
    assert importlib.metadata.version("jaxfl") == version
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert [
        name for name, module in MODULES.items() if re.search(rf"[\"']{re.escape(version)}[\"']", module.source)
    ] == []


def test_ci_runs_the_readme_s_test_command():
    blocks = re.findall(
        r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    commands = [re.split(r"&&|\n", block) for block in blocks[:2]]
    assert [block[0].strip() for block in commands] == ["python3 -m venv .venv"] * 2
    tests = [command.strip() for command in commands[1] if command.strip()][-1]
    assert tests.split()[0] == "pytest"
    assert tests in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
