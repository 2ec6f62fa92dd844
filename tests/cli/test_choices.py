"""The page of a method: every option with its default under each preset, its words and its line."""

import io
import json
import re
from typing import Literal

import pytest
from rich.console import Console
from typer.testing import CliRunner

from jaxfl.cli.app import app
from jaxfl.cli.tables import choices
from jaxfl.cli.tables.console import print_parts
from jaxfl.methods import METHODS, Row
from jaxfl.models.networks import MODELS
from jaxfl.schema import Option, function_options, literal_values
from tests.messages import mentions


def page(name, width=100):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    print_parts(console, *choices.method_page(name))
    return console.file.getvalue()


def words(text):
    """Returns a text without line breaks and columns."""
    return " ".join(text.split())


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("width", [80, 120])
def test_pages_fit_the_terminal_and_tell_every_option(name, width):
    lines = page(name, width).splitlines()
    assert max(map(len, lines[3:])) <= width  # the first three are left to the terminal to wrap
    told = {line.split()[0]: line for line in lines if line[:1].strip()}
    for option, known in function_options(METHODS[name].factory).items():
        assert option in told and known.line, option
        assert (
            told[option].split()[1:2]
            == choices.default_text(choices.default_by_preset(known, METHODS[name].presets)[0]).split()[:1]
        )


def test_piped_pages_are_plain():
    result = CliRunner().invoke(app, ["methods", "cfl"])
    assert result.exit_code == 0 and result.stdout == page("cfl") and "\x1b" not in result.stdout


def test_defaults_are_those_of_the_preset_and_others_are_beside_them():
    shown = page("cfl")
    assert re.search(r"\neps1 +0\.4 .*\n +fesem: infinity ", shown) and "eps1=none" not in shown
    assert re.search(r"\nlinkage +single .*\n +official: complete .*\n +fesem: average ", shown)
    assert re.search(r"\nsketch_size +4096 +\S", shown)
    assert re.search(r"\nlayers +\.\* .*\n +official: last kernel ", page("fesem"))


def test_options_as_in_another_method_have_its_line():
    shown = words(page("layercfl"))
    assert (
        "eps1 0.4 a cluster is stationary when the norm of its mean update is below it" in shown
        and "as in cfl" not in shown
    )


def test_words_that_the_line_does_not_say_follow_it(monkeypatch):
    def factory(task, optimizer, *, by: Literal["rows", "size"] = "rows", solver: Row | None = None, groups: int):
        """Returns it.

        Args:
            by: what counts.
            solver: of `Row`.
        """

    monkeypatch.setitem(METHODS, "new", Row(factory, "", ""))
    shown = page("new")
    assert re.search(r'\nby +rows +what counts\. *\n +"rows" or "size" *\n', shown)
    assert re.search(r"\nsolver +none +of Row\. *\n +In Python only\. *\n", shown)
    assert re.search(r"\ngroups +to be given +\n", shown)


def test_server_optimizers_are_shown_where_they_apply():
    shown = page("fedprox", 120)
    assert re.search("server_optimizer +none +takes the server's step", shown)
    yogi = "fedyogi: server.learning_rate=0.01, server.b1=0.9, server.b2=0.99, server.tau=0.001"
    assert yogi in shown and shown.count("server_optimizer") == 1
    assert not re.search(r"server[._]", page("fedsgd"))


def test_networks_are_listed_with_their_options():
    shown = page("fedavg", 120)
    assert all(re.search(rf"^ +{re.escape(name)}(?:$|: \w|  )", shown, re.MULTILINE) for name in MODELS)
    assert "vgg16: width=64, hidden=512, dropout=0.0" in shown


def test_json_has_the_same():
    (row,) = json.loads(CliRunner().invoke(app, ["methods", "cfl", "--json"]).stdout)
    assert set(row["options"]) == set(function_options(METHODS["cfl"].factory))
    eps1 = row["options"]["eps1"]
    assert eps1 | {"line": ""} == {
        "default": 0.4,
        "required": False,
        "presets": {"paper": 0.4, "official": 0.4, "fesem": "infinity"},
        "type": "a number or none",
        "words": [],
        "line": "",
    }
    assert eps1["line"].startswith("a cluster is stationary when the norm of its mean update is below it")
    assert row["options"]["local_epochs"]["presets"] == {}


@pytest.mark.parametrize("name", [name for name, row in METHODS.items() if row.presets])
def test_presets_are_those_of_the_factory(name):
    known, presets = function_options(METHODS[name].factory), METHODS[name].presets
    if "preset" in known:
        assert next(iter(presets)) == known["preset"].default
        assert literal_values(known["preset"].hint) in ((), tuple(presets))
    for rule in presets.values():
        assert set(rule) <= {option for option, one in known.items() if one.default is None}


def test_an_option_of_the_first_preset():
    assert choices.default_by_preset(Option("mu", 0.3, float), {"paper": {}}) == (0.3, {})


def test_a_file_and_its_method_are_no_smiley(tmp_path, monkeypatch):
    """To rich, `:m:` is one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        "import jaxfl\n\ndef m(task, optimizer):\n    'Mine.'\n    return jaxfl.methods.local(task, optimizer)\n"
    )
    assert CliRunner().invoke(app, ["methods", "own.py:m"]).output.startswith("own.py:m: ")


@pytest.mark.parametrize(("method", "words"), [("pacfl", ("data", "before", "inputs")), ("local", ("sees", "nothing"))])
def test_the_page_of_a_method_tells_what_its_server_sees(method, words):
    assert re.search(mentions(*words), CliRunner().invoke(app, ["methods", method]).stdout.splitlines()[1])
    (row,) = json.loads(CliRunner().invoke(app, ["methods", method, "--json"]).stdout)
    assert row["server_sees"] == METHODS[method].server_sees


@pytest.mark.parametrize(
    ("method", "needs", "words"),
    [("pacfl", "inputs", ("unlabelled rows", "singular vectors")), ("ifca", "labels", ("labelled rows", "K models"))],
)
def test_the_page_of_a_method_tells_what_a_newcomer_needs(method, needs, words):
    assert re.search(mentions(*words), CliRunner().invoke(app, ["methods", method]).stdout.splitlines()[2])
    (row,) = json.loads(CliRunner().invoke(app, ["methods", method, "--json"]).stdout)
    assert row["newcomer_needs"] == needs
