"""`jaxfl data`: what it lists, describes, draws, downloads and saves, and what it refuses in one line."""

import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from jaxfl import data
from jaxfl.cli import app as entry
from jaxfl.cli import data as data_command
from jaxfl.cli import signals
from jaxfl.cli.app import app
from jaxfl.cli.tables.federations import _histogram_lines
from jaxfl.data import federate, stored
from jaxfl.data.sources import SOURCES, Remote, download, npz
from tests.messages import mentions

SMALL = ["rotated-digits", "--set", "num_clients=8", "--set", "rows_per_client=20"]


@pytest.fixture(autouse=True)
def nothing_at_home(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXFL_DATA", str(tmp_path / "home"))


def jaxfl(*arguments):
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


def shown(*arguments):
    """Returns what is printed to standard output."""
    result = jaxfl(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments):
    """Returns the line of an error."""
    result = jaxfl(*arguments)
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert result.exit_code == 2 and len(errors) == 1, (result.output, result.exception)
    return errors[0]


def test_the_list_names_everything_and_fits_a_hundred_columns():
    lines = shown().splitlines()
    table = [line for line in lines[: lines.index("Missing:")] if not line.startswith("  fashion-mnist: ")]
    assert max(map(len, table)) <= 100
    starts = {line.split()[0].rstrip(":") for line in lines if line.strip()}
    assert set(SOURCES) <= starts and set(data.SKEWS) <= starts
    (digits,) = [line for line in lines if line.startswith("digits ")]
    assert "embedded" in digits and "CC BY 4.0" in digits
    missing = {line.split(":")[0].strip(): line for line in lines[lines.index("Missing:") + 1 :]}
    assert "jaxfl data mnist --download" in missing["mnist"] and "identity_CelebA.txt" in missing["celeba"]


def test_json_tells_everything():
    rows = {row["name"]: row for row in json.loads(shown("--json"))}
    assert set(rows) == set(data.DATASETS)
    row = rows["rotated-mnist"]
    assert {"name", "description", "classes", "found", "missing", "options", "model", "licence", "makers"} <= set(row)
    assert row["found"] is None and "train-images" in row["missing"] and row["downloadable"]
    assert row["bytes"] == SOURCES["mnist"].num_bytes and row["makers"] == "writer"
    assert not rows["rotated-digits"]["downloadable"] and rows["rotated-digits"]["found"] == "embedded"
    (one,) = json.loads(shown(*SMALL, "--json"))
    assert one["federation"]["num_clients"] == 8 and one["federation"]["train"]["rows"] == 160
    assert json.loads(shown("rotated-mnist", "--json"))[0]["federation"] is None
    (source,) = json.loads(shown("mnist", "--json"))
    assert "rotated-mnist" in source["datasets"] and source["licence"] == SOURCES["mnist"].licence


def test_a_source_says_what_can_be_cut_from_it():
    page = shown("mnist")
    assert "CC BY-SA 3.0" in page and "12 MB" in page and "jaxfl data mnist --download" in page
    assert re.search(r"missing: mnist needs train-images.*get the four files", page)
    assert "  rotated-mnist " in page and "  writers-mnist " in page and "Federation" not in page


def test_a_data_set_is_described_where_its_files_are_found():
    page = shown(*SMALL)
    assert re.search(r"clients +8\n +training +160 rows .*; each client has 20\n", page)
    assert re.search(r"groups +4\n +0° +2 clients, 40 training rows", page)
    assert re.search(r"  20  █+ 8\n", page) and "--set num_clients=40" in page
    page = shown("rotated-mnist")
    assert (
        "Federation" not in page and "--set num_clients=1200" in page and "jaxfl data rotated-mnist --download" in page
    )


def test_seed_and_options_reach_the_federation():
    def sizes(*arguments):
        return json.loads(shown("quantity-digits", *arguments, "--json"))[0]["federation"]["histogram"]

    assert sizes() == sizes("--seed", 0) != sizes("--seed", 1)
    assert sizes("--set", "sigma=0.001") != sizes()
    held_out = json.loads(shown(*SMALL, "--set", "data.held_out=0.25", "--json"))[0]
    assert held_out["federation"]["held_out_clients"] == 2


def test_a_pipe_without_the_letters_is_no_error(monkeypatch):
    pipes = {name: io.TextIOWrapper(io.BytesIO(), encoding="ascii") for name in ("stdout", "stderr")}
    with monkeypatch.context() as patch:
        for name, pipe in pipes.items():
            patch.setattr(sys, name, pipe)
        with pytest.raises(SystemExit) as ended:
            entry.main(["data", "rotated-digits"])
    pipes["stdout"].flush()
    assert ended.value.code == 0 and b"90?" in pipes["stdout"].buffer.getvalue()


def test_histograms_are_as_long_as_they_count():
    lines = _histogram_lines([0, 1, 5, 10], [2, 80, 40])
    assert [line.count("█") for line in lines] == [1, 40, 20]
    assert [line.split()[-1] for line in lines] == ["2", "80", "40"]
    assert "▏" in _histogram_lines([0, 1, 2], [1, 10_000])[0]  # one is not none


def test_pictures_are_written(tmp_path):
    result = jaxfl(*SMALL, "--plot", "--out", tmp_path / "a" / "b")
    assert result.exit_code == 0, result.output
    names = ["rotated-digits-labels.png", "rotated-digits-montage.png"]
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == names
    assert all(str(tmp_path / "a" / "b" / name) in result.stderr for name in names)
    vectors = tmp_path / "own.npz"
    np.savez(vectors, x=np.zeros((40, 4), np.float32), y=np.arange(40) % 2)
    result = jaxfl("iid-npz", "--set", "num_clients=2", "--data-dir", vectors, "--plot", "--out", tmp_path / "c")
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["iid-npz-labels.png"]
    assert re.search(mentions("montage", "(4,)"), result.stderr)
    assert re.search(mentions("out", vectors), refused(*SMALL, "--plot", "--out", vectors))
    assert re.search(mentions("c", "--plot"), refused(*SMALL, "--out", "c"))


def test_what_has_no_classes_is_drawn_if_it_is_images(tmp_path):
    rows = np.split(np.arange(12), 3)
    numbers, text = np.linspace(0, 1, 12, dtype=np.float32), np.arange(12 * 5, dtype=np.int32).reshape(12, 5) % 7
    stored.save(federate(np.zeros((12, 8, 8), np.uint8), numbers, rows, rows), tmp_path / "images")
    stored.save(federate(text, text, rows, rows, num_classes=7), tmp_path / "text")
    out = ["--plot", "--out", tmp_path]
    result = jaxfl("saved", "--data-dir", tmp_path / "images", *out)
    assert f"pictures: {tmp_path / 'saved-montage.png'}\n" in result.stderr and "no montage" not in result.stderr
    told = refused("saved", "--data-dir", tmp_path / "text", *out)
    assert re.search(mentions("saved", "(5,)", "next_token", "--plot"), told)


def test_names_of_pictures_suit_any_disk(tmp_path):
    fed = data.load("rotated-digits", num_clients=4, rows_per_client=5)
    paths = data_command.draw_pictures("rotated+iid-tfds:some/name", fed, tmp_path)
    assert [path.name for path in paths] == [f"rotated-iid-tfds-some-name-{what}.png" for what in ("labels", "montage")]
    drifting = data.load("rotated-digits", num_clients=4, rows_per_client=8, drift="rotate", drift_round=3)
    paths = data_command.draw_pictures("rotated-digits", drifting, tmp_path)
    assert [path.name for path in paths][2:] == ["rotated-digits-drift.png"] and paths[2].is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rotated-digit"], ("data", "rotated-digit", "rotated-digits")),
        (["mnst"], ("data", "mnst")),
        (
            ["rotated-digits", "--set", "num_client=8"],
            ("num_client", "rotated-digits", "num_clients"),
        ),
        (
            ["rotated-digits", "--set", "threshold=1"],
            ("threshold", "rotated-digits", "num_clients"),
        ),
        (["rotated-digits", "--set", "num_clients"], ("--set", "num_clients", "key=value")),
        (["rotated-digits", "--set", "num_clients=few"], ("num_clients", "few")),
        (["mnist", "--plot"], ("--plot", "mnist", "iid-mnist")),
        (["rotated-mnist", "--plot"], ("mnist", "train-images-idx3-ubyte")),
        (["mnist", "--save", "mnist.npz"], ("mnist", "train-images-idx3-ubyte")),
        (["celeba", "--download"], ("celeba", "downloaded")),
        *[([option], (option, "NAME")) for option in ("--plot", "--download")],
        (["--save", "a.npz"], ("--save", "NAME")),
        (["--set", "alpha=1"], ("--set", "NAME")),
    ],
)
def test_refusals(arguments, words):
    assert re.search(mentions(*words), refused(*arguments))


def test_download_says_size_and_licence_first(monkeypatch, tmp_path):
    calls = []

    def get(name, remotes, data_dir=None, *, progress):
        calls.append((name, remotes, data_dir))
        for done in (0, 5, 10):
            progress("some-file.gz", done, 10)
        progress("other-file.gz", 3, 0)
        return tmp_path / name

    monkeypatch.setattr(download, "download", get)
    result = jaxfl("hybrid-mnist", "--download", "--data-dir", tmp_path)
    assert result.exit_code == 0, result.output
    assert [(name, where) for name, _, where in calls] == [("mnist", str(tmp_path)), ("fashion-mnist", str(tmp_path))]
    assert calls[0][1] == SOURCES["mnist"].remotes
    first, *_, last = result.stderr.splitlines()
    assert re.fullmatch(rf"mnist: 12.1 MB to {tmp_path}/mnist; licence: CC BY-SA 3.0.*", first)
    assert last.startswith("fashion-mnist: verified, in ") and "some-file.gz" in result.stderr
    assert "nothing to download" in jaxfl("iid-digits", "--download").stderr


def test_download_of_unknown_size(monkeypatch):
    row = SOURCES["mnist"]._replace(remotes=(Remote("https://host/a.gz", 0, "md5:0"),))
    monkeypatch.setitem(SOURCES, "mnist", row)
    assert ": of unknown size to " in data_command.download_terms("mnist", None)


def test_an_interrupted_download_says_that_it_goes_on(monkeypatch):
    told = []
    monkeypatch.setattr(download, "download", lambda *arguments, **options: Path("mnist"))
    monkeypatch.setattr(signals, "set_exit_note", told.append)
    assert jaxfl("mnist", "--download").exit_code == 0
    assert told == ["; downloaded parts are kept, and the same command continues"]


def test_saved_examples_load_again(tmp_path):
    path = tmp_path / "digits.npz"
    result = jaxfl("iid-digits", "--save", path)
    assert result.exit_code == 0 and f"saved: {path}, 1,797 training rows" in result.stderr
    assert np.array_equal(npz.load(path).labels, SOURCES["digits"].load().labels)
    with np.load(path, allow_pickle=False) as file:
        assert json.loads(str(file["origin"])) == {"source": "digits", "options": {}}
    assert jaxfl("digits", "--save", tmp_path / "again.npz").exit_code == 0


def test_a_saved_federation_is_data_and_runs(tmp_path):
    folder = tmp_path / "saved"
    result = jaxfl(*SMALL, "--save", folder)
    assert result.exit_code == 0 and f"--data saved --data-dir {folder}" in result.stderr
    assert "  clients   8" in shown("saved", "--data-dir", folder)
    given = ["local", "--data", "saved", "--data-dir", folder, "--rounds", 1, "--cohort", 2, "--set", "model=logistic"]
    given += ["--set", "eval_clients=3", "--set", "resident=false"]
    run = CliRunner().invoke(app, ["run", *map(str, given)])
    assert run.exit_code == 0, run.output
    assert "rotated-digits: 8 clients (3 tested), 1 rounds of 2" in run.stdout
    assert "note: the clients' rows stayed on the host" in run.stderr
    assert "note: the clients' own models stayed on the host" in run.stderr
    assert re.search(mentions("error: ", "save", folder), refused(*SMALL, "--save", folder))
    line = refused("saved", "--data-dir", folder, "--save", "a.npz")
    assert re.search(mentions("--save", "folder", "a.npz"), line)
    assert re.search(mentions("--save", "source digits"), refused("digits", "--save", tmp_path / "other"))
    assert re.search(mentions("saved", "folder of a federation"), refused("saved", "--save", tmp_path / "other"))


def test_a_source_without_downloads_says_what_to_put_where(tmp_path):
    line = refused("celeba", "--download", "--data-dir", tmp_path)
    assert re.search(mentions("error: ", "celeba", "downloaded", "list_attr_celeba.txt"), line)
