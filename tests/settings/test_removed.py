"""Options of before: at their old default a run is what it was, any other value is refused."""

import json
import re

import pytest
from typer.testing import CliRunner

import jaxfl
from experiments.harness import results
from jaxfl.analysis.finished import read_runs
from jaxfl.cli.app import app
from jaxfl.jobs.job import Job
from jaxfl.methods import METHODS
from jaxfl.schema import function_options, quoted
from jaxfl.settings import options
from jaxfl.settings.removed import REMOVED, removed_defaults
from jaxfl.simulation.records import checkpoint
from tests.messages import mentions

SMALL = {"num_clients": 8, "rows_per_client": 20, "model": "logistic", "local_epochs": 1}


def test_removed_options_are_options_no_more():
    for method, removed in REMOVED.items():
        assert not set(removed) & set(function_options(METHODS[method].factory)), method
        for name, one in removed.items():
            assert one.default == json.loads(json.dumps(one.default)), (method, name)


@pytest.mark.parametrize(("method", "name"), [(method, name) for method, found in REMOVED.items() for name in found])
def test_the_old_default_is_taken_and_another_value_refused(method, name):
    default = REMOVED[method][name].default
    plain = options.route(method, "rotated-digits")
    for key in (name, f"method.{name}"):
        assert options.route(method, "rotated-digits", **{key: default}) == plain
        written = "none" if default is None else str(default)
        assert options.route(method, "rotated-digits", [f"{key}={written}"]) == plain
        with pytest.raises(ValueError, match=mentions(name, method, quoted(default), 7, "leave it out")):
            options.route(method, "rotated-digits", [f"{key}=7"])


def aged(folder, method, **values):
    """Gives a finished run the files that it would have had before options were removed."""
    old = removed_defaults(method) | {f"method.{name}": value for name, value in values.items()}
    saved = checkpoint.newest(folder)
    header = saved.header | {"identity": saved.header["identity"] | old}
    checkpoint.save(folder, jaxfl.load(folder).state, header)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | old))
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"options": summary["options"] | old}))
    return config | old


@pytest.fixture
def finished(tmp_path):
    """Returns the folder of two runs of StoCFL that differ in their seed."""
    for seed in (0, 1):
        jaxfl.run_named("stocfl", "rotated-digits", rounds=2, cohort=4, seed=seed, out=tmp_path / f"{seed}", **SMALL)
    return tmp_path


def test_an_old_folder_loads_resumes_and_compares(finished):
    config = aged(finished / "0", "stocfl")
    loaded = jaxfl.load(finished / "0")
    assert loaded.round == 2 and loaded.job.settings.method == {"local_epochs": 1}
    assert list(read_runs([finished])[0]) == ["stocfl"], "one setting of two seeds"
    assert loaded.job.config() | {name: config[name] for name in ("fingerprint", "digest")} == config
    assert loaded.resume(rounds=3).summary["rounds"] == 3
    assert checkpoint.newest(finished / "0").header["identity"].items() >= removed_defaults("stocfl").items()
    assert json.loads((finished / "0" / "config.json").read_text()) == config | {"rounds": 3}


def test_another_value_is_refused_where_a_run_would_go_on_and_named_where_it_is_compared(finished):
    aged(finished / "0", "stocfl", merged="mean")
    message = mentions("merged", "stocfl", "largest", "mean")
    with pytest.raises(ValueError, match=message):
        jaxfl.load(finished / "0").resume(rounds=3)
    words = ["run", "stocfl", "--data", "rotated-digits", "--rounds", "3", "--cohort", "4", "--resume", "--out"]
    small = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    refused = CliRunner().invoke(app, [*words, str(finished / "0"), *small])
    assert refused.exit_code == 2 and re.search(message, refused.stderr)
    assert list(read_runs([finished])[0]) == ["stocfl merged=mean", "stocfl merged=largest"]


def test_committed_results_answer_though_they_name_removed_options():
    job = Job(options.route("stocfl", "rotated-digits"), 2, 0.5)
    line = {"id": results.identifier(job), "configuration": removed_defaults("stocfl") | results.configuration(job)}
    assert results.find([line], job) is line
    line["configuration"]["method.merged"] = "mean"
    assert results.find([line], job) is None


def test_a_measurement_refuses_them_as_a_run_does():
    words = ["bench", "scaling", "--over", "cohort", "--method", "fesem", "--set", "restarts=7"]
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 2 and re.search(mentions("restarts", "fesem", 20, 7), refused.stderr)
