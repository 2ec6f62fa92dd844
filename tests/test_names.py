"""Names and docstrings of the package: a type is defined once, and a docstring says what its object is or returns."""

import ast
import collections
import re
from pathlib import Path

ROOT = Path(__file__).parents[1] / "jaxfl"
TREES = {path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(ROOT.rglob("*.py"))}
QUESTION = re.compile(r"(Returns )?(What|Who|Whose|Where|How)\b")


def test_a_type_is_defined_once():
    """Classes, and aliases of types: capitalised names that a module assigns."""
    places = collections.defaultdict(set)
    for path, module in TREES.items():
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                places[node.name].add(path)
        for node in module.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            for target in targets:
                if isinstance(target, ast.Name) and re.fullmatch(r"[A-Z]\w*[a-z]\w*", target.id):
                    places[target.id].add(path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_a_private_helper_has_one_meaning():
    """The argument checks of the methods' factories have one meaning, and so one name."""
    places = collections.defaultdict(set)
    for path, module in TREES.items():
        for node in module.body:
            if isinstance(node, ast.FunctionDef) and re.match("_[^_]", node.name):
                places[node.name].add(path)
    assert {name for name, paths in places.items() if len(paths) > 1} <= {"_check_arguments"}


def test_no_docstring_is_a_question():
    found = []
    for path, module in TREES.items():
        for node in ast.walk(module):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                docstring = ast.get_docstring(node) or ""
                found += [f"{path}: {docstring.splitlines()[0]}"] if QUESTION.match(docstring) else []
    assert found == []
