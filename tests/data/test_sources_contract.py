"""What every row of the table of sources keeps to, so that a new one is complete."""

import inspect
import re

import pytest

from jaxfl import data, models
from jaxfl.data import catalog, sources
from jaxfl.data.sources import npz
from tests.messages import mentions

FILES = [name for name, row in sources.SOURCES.items() if row.find]


@pytest.mark.parametrize("name", sources.SOURCES)
def test_a_row_says_what_it_is(name):
    row = sources.SOURCES[name]
    assert row.summary and row.licence and row.num_bytes >= 0
    assert "\n" not in row.summary and len(row.summary) < 110
    model, options = row.model
    models.create(model, num_classes=3, **options)
    words = list(inspect.signature(row.load).parameters.values())
    assert words[0].name == "data_dir" and words[0].default is None
    assert all(word.kind is word.KEYWORD_ONLY and word.default is not word.empty for word in words[1:])


@pytest.mark.parametrize("name", FILES)
def test_missing_files_are_named_and_nothing_is_found(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sources.mnist, "FASHION_FOLDER", tmp_path / "none")
    assert sources.located(name, tmp_path) is None
    with pytest.raises(FileNotFoundError, match=mentions(name.split("-")[0])) as caught:
        sources.load(name, tmp_path)
    assert str(tmp_path) in str(caught.value) and str(caught.value).endswith(".")


def test_an_embedded_source_needs_no_files_and_is_small(monkeypatch):
    monkeypatch.setitem(sources.SOURCES, "embedded", sources.SOURCES["digits"])
    assert sources.located("embedded") == "embedded"
    found = catalog.dataset("iid-embedded")
    assert not found.needs_files and found.defaults["num_clients"] == 20
    assert catalog.dataset("iid-mnist").needs_files


@pytest.mark.parametrize("name", FILES)
def test_downloads_are_complete(name):
    for remote in sources.SOURCES[name].remotes:
        kind, _, digest = remote.checksum.partition(":")
        assert remote.url.startswith("http") and re.fullmatch("[0-9a-f]+", digest)
        assert len(digest) == {"md5": 32, "sha256": 64}[kind]
        assert bool(remote.members) == remote.file_name.endswith((".zip", ".tar.gz", ".tar.bz2"))


@pytest.mark.parametrize("name", [name for name in FILES if not sources.SOURCES[name].user_files])
def test_the_converted_form_is_read_instead(name, tmp_path):
    digits = sources.load("digits")
    place = tmp_path / name / f"{name}.npz"
    npz.save(digits, place, origin={"source": name, "options": sources.defaults(name)})
    assert sources.located(name, tmp_path) == str(place)
    source = sources.load(name, tmp_path)
    assert (source.inputs == digits.inputs).all() and source.mean == digits.mean
    fed = data.load(f"iid-{name}", data_dir=tmp_path, num_clients=5)
    assert fed.num_clients == 5 and fed.num_classes == 10


def test_a_file_converted_otherwise_is_refused(tmp_path):
    digits = sources.load("digits")
    npz.save(digits, tmp_path / "celeba.npz", origin={"source": "celeba", "options": sources.defaults("celeba")})
    with pytest.raises(ValueError, match=mentions("celeba.npz", "target='Male'")):
        data.load("iid-celeba", data_dir=tmp_path, target="Male")


@pytest.mark.parametrize("name", sources.SOURCES)
def test_options_of_sources_and_skews_have_names_of_their_own(name):
    own = set(sources.defaults(name)) | {"other", "held_out", "seed"}
    for build in [*(skew[0] for skew in catalog.SKEWS.values()), *catalog.SHIFTS.values()]:
        assert not own & (set(inspect.signature(build).parameters) - {"seed"})
