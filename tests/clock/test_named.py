"""Runs by name with a clock: the user's file, its copy, the list of clients, comparisons and pictures."""

import pytest

import jaxfl
from jaxfl.analysis.comparison import compare
from jaxfl.clock.profiles import EQUAL
from jaxfl.jobs import job
from jaxfl.plots.runs import participation
from jaxfl.settings import options
from tests.messages import mentions

SMALL = {"rounds": 2, "cohort": 4, "eval_every": 1, "num_clients": 8, "rows_per_client": 10, "model": "logistic"}
FILE = "client," + ",".join(EQUAL) + "\n" + "".join(f"{client},1e9,{1 + client}e6,1e7\n" for client in range(8))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that cuts clients, whose file of devices has been moved since."""
    folder = tmp_path_factory.mktemp("clock")
    path = folder / "phones.csv"
    path.write_text(FILE)
    given = {"clock": str(path), "deadline": "p50", "local_epochs": 1}
    result = jaxfl.run_named("fedavg", "rotated-digits", out=folder / "a", **SMALL, **given)
    assert path.read_text() == FILE
    path.unlink()
    return result, folder / "a"


@pytest.mark.slow
def test_a_run_goes_on_with_its_copy_of_the_devices(finished):
    result, folder = finished
    header, *rows = (folder / "clients.csv").read_text().splitlines()
    assert header.endswith("busy_seconds,reports,cuts") and len(rows) == 8
    assert sum(int(row.split(",")[-1]) for row in rows) == result.summary["cut"] == 4  # half of the cohort of four
    more = jaxfl.load(folder).resume(rounds=3)
    assert more.summary["cut"] == 6 and more.summary["seconds_simulated"] > result.summary["seconds_simulated"]


def test_pictures_and_tables_have_the_time(finished):
    result, _ = finished
    figure = participation(result)
    assert [len(axes.get_lines()) for axes in figure.axes] == [5, 5]  # four quarters, four groups, and their means
    speeds = figure.axes[0].get_lines()[3].get_ydata()
    assert list(speeds) == [record["participation_by_speed"][3] for record in result.history]
    drawn = jaxfl.plots.convergence(result, x="seconds_simulated").axes[0].get_lines()[0].get_xdata()
    assert list(drawn) == [seconds / 3600 for seconds in result.history.column("seconds_simulated")]
    target = result.history[1]["micro_accuracy"]
    frame = compare({"fedavg": [result]}, target=target).to_pandas()
    reached = next(one for one in result.history if one["micro_accuracy"] >= target)
    assert frame[f"seconds_simulated to {target:g} mean"][0] == reached["seconds_simulated"]


def test_what_waits_for_all_has_no_participation_and_no_clock_has_no_time():
    plain = jaxfl.run_named("fedavg", "rotated-digits", **SMALL, local_epochs=1)
    with pytest.raises(ValueError, match=mentions("x", "seconds_simulated")):
        jaxfl.plots.convergence(plain, x="seconds_simulated")
    with pytest.raises(ValueError, match="deadline or over_select"):
        participation(plain)
    assert "seconds_simulated" not in plain.summary and plain.summary["options"]["run.clock"] is None


@pytest.mark.parametrize(
    ("items", "argument", "value"),
    [
        (["deadline=60"], "deadline", 60.0),
        (["clock=equal", "clock_sigma=2"], "clock_sigma", 2.0),
        (["clock=no.csv"], "no.csv", "lognormal"),
    ],
)
def test_options_without_effect_are_refused_before_anything_is_loaded(items, argument, value):
    settings = options.route("fedavg", "rotated-digits", items)
    with pytest.raises(ValueError, match=mentions(argument, value)):
        job.check(job.Job(settings, 1, 0.5))
        settings.files()


def test_a_file_of_devices_is_not_replaced_by_the_list_of_clients(tmp_path):
    path = tmp_path / "clients.csv"
    path.write_text(FILE)
    with pytest.raises(ValueError, match=mentions("out", "clients.csv")):
        jaxfl.run_named("fedavg", "rotated-digits", out=tmp_path, **SMALL, clock=str(path))
    assert path.read_text() == FILE
