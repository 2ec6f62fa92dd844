"""What a shell offers for a line that is begun."""

import pytest

from jaxfl.cli.app import app

RUN = "jaxfl run ifca --data rotated-digits --set"


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("jaxfl run fese", ["fesem", "fesem_ma", "fesem_cam"]),
        ("jaxfl plan ifca --data rotated-di", ["rotated-digits"]),
        (f"{RUN} weighting=", ["weighting=rows", "weighting=uniform"]),
        (f"{RUN} optimizer=ad", ["optimizer=adam", "optimizer=adamw"]),
        (f"{RUN} model=mlp --set hid", ["hidden="]),
        (f"{RUN} model=logistic --set hid", []),
        ("jaxfl run gone --data rotated-digits --set w", []),
        ("jaxfl sweep ifca,feddy", ["ifca,feddyn"]),
        ("jaxfl data unipen-", ["unipen-letters"]),
        ("jaxfl data dirichlet-digits --set alp", ["alpha="]),
    ],
)
def test_words_that_a_shell_offers(line, offered, monkeypatch, capsys):
    monkeypatch.setenv("_JAXFL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    with pytest.raises(SystemExit):
        app(prog_name="jaxfl")
    assert capsys.readouterr().out.split() == offered
