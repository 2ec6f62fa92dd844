"""`jaxfl data`: lists of sources and data sets, downloads, and a federation described, drawn and saved."""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxfl import data as federations
from jaxfl import plots
from jaxfl.cli import tables
from jaxfl.cli.tables.console import TransferBars, print_parts, progress_message
from jaxfl.data import catalog, sources
from jaxfl.data.clients import FederatedData
from jaxfl.data.describe import describe
from jaxfl.data.digest import digest, pixel_digest
from jaxfl.files import check_is_folder, check_output, real_path, signature
from jaxfl.plots.examples import changing_clients
from jaxfl.plots.style import write_picture
from jaxfl.schema import REQUIRED, Option
from jaxfl.settings import federations as named
from jaxfl.settings import options
from jaxfl.settings.user_code import is_address

if TYPE_CHECKING:
    from rich.console import Console


class DataRequest(NamedTuple):
    """The arguments of `jaxfl data`.

    Attributes:
        name: of a data set or a source, or `FILE.py:NAME`; None lists all.
        data_dir: folder in which files are searched, and into which they are downloaded.
        items: options of the data set, `key=value`.
        seed: of the skew's random choices.
        pictures: folder for pictures, or None.
        download: whether to download the files first.
        save: folder for the federation, or .npz file for the source's examples, or None.
        as_json: whether to print JSON.
        digest: whether to print the digests of the federation alone.
    """

    name: str | None
    data_dir: str | None = None
    items: tuple[str, ...] = ()
    seed: int = 0
    pictures: Path | None = None
    download: bool = False
    save: Path | None = None
    as_json: bool = False
    digest: bool = False


def show_data(request: DataRequest, out: "Console", err: "Console") -> None:
    """Prints the lists, or a source, or a data set with its federation; draws and saves if requested.

    Args:
        request: the arguments.
        out: console of the results.
        err: console of progress and of the paths of files.

    Raises:
        ValueError: the name is unknown, or a request does not apply to it.
        FileNotFoundError: files are missing that a picture or a copy needs.
    """
    if request.name is None:
        _show_lists(request, out)
        return
    name, data_dir = request.name, request.data_dir
    if not is_source(name):
        named.dataset(name)  # raises for unknown names
    chosen = parse_options(name, request.items)
    folder = request.save if request.save is not None and request.save.suffix != ".npz" else None
    for option, given in {"--plot": request.pictures, "--save DIR": folder, "--digest": request.digest or None}.items():
        if is_source(name) and given is not None:
            raise ValueError(
                f"{option} needs a data set, got the source {name}; a source has no clients. Try iid-{name}."
            )
    if (name.split("+")[-1] == sources.saved.NAME or is_address(name)) and request.save is not None and folder is None:
        raise ValueError(
            f"--save must be a folder for data {name}, which has no examples of a source, got {request.save}."
        )
    if is_address(name) and request.download:
        raise ValueError(f"--download needs data with files to download, got {name}, which a function of yours makes.")
    if request.pictures is not None and request.pictures.is_dir():
        for path in picture_paths(name, request.pictures).values():
            check_output(path, "--plot", signature("data"))
    if folder is not None:
        federations.stored.check_folder(folder)
    elif request.save is not None:
        check_save(name, chosen, data_dir, request.save)
    if request.download:
        for source in source_names(name, chosen):
            _download_source(source, data_dir, err)
    row = tables.source_row(name, data_dir) if is_source(name) else tables.data_rows([name], data_dir)[0]
    if not request.as_json and not request.digest:
        print_parts(out, tables.source_page(name, data_dir) if is_source(name) else tables.dataset_page(name, data_dir))
    # only tensorflow-datasets can tell whether it has prepared a data set
    lacking = [key for key, one in options_of_name(name).items() if one.default is REQUIRED and key not in chosen]
    there = (row["found"] and not lacking) or name.partition("-")[2].startswith("tfds:")
    data = None
    if not is_source(name) and (there or request.pictures is not None or folder is not None or request.digest):
        with progress_message(err, f"loading {name}"):
            data = named.load(name, data_dir=data_dir, seed=request.seed, **chosen)
        if request.pictures is not None and not (data.kind == "classification" or plots.is_image(data.input_shape)):
            raise ValueError(
                f"--plot draws classes and images, and {name} has neither: its inputs are {data.input_shape}, its "
                f"labels those of {data.kind}; without --plot the rows of the clients are printed."
            )
    digests = {} if data is None or not request.digest else {"digest": digest(data), "pixel_digest": pixel_digest(data)}
    federation = None if data is None or (request.digest and not request.as_json) else describe(data)
    if request.as_json:
        more = {} if is_source(name) else {"federation": None if federation is None else federation._asdict()}
        more |= digests
        print(json.dumps([{**row, **more}], indent=2))
    elif request.digest:
        print_parts(out, *(one for one in digests.values() if one is not None))
    elif federation is not None:
        print_parts(out, "\n" + tables.federation_text(federation))
    if data is not None and request.pictures is not None:
        paths = draw_pictures(name, data, request.pictures, request.seed)
        print_parts(err, f"pictures: {' and '.join(map(str, paths))}")
        if not plots.is_image(data.input_shape):
            print_parts(err, f"no montage: the inputs are {data.input_shape}, no images")
    if folder is not None and data is not None:
        with progress_message(err, f"writing {folder}"):
            federations.stored.save(data, folder)
        print_parts(err, f"saved: {folder}, {data.num_clients:,} clients; it is --data saved --data-dir {folder}")
    elif request.save is not None:
        with progress_message(err, f"writing {request.save}"):
            source = save_source(name, chosen, data_dir, request.save)
        print_parts(err, f"saved: {request.save}, {len(source.labels):,} training rows of {source.name}")


def _show_lists(request: DataRequest, out: "Console") -> None:
    """Prints the lists of sources and skews."""
    for option, given in {
        "--set": request.items,
        "--plot": request.pictures,
        "--download": request.download,
        "--save": request.save,
        "--digest": request.digest,
    }.items():
        if given:
            raise ValueError(f"{option} needs the NAME of a data set; jaxfl data lists them.")
    if request.as_json:
        print(json.dumps(tables.data_rows(dataset_names(), request.data_dir), indent=2))
        return
    print_parts(out, *tables.data_lists(request.data_dir))


def dataset_names() -> list[str]:
    """Returns the names of all data sets, including those of sources from installed packages."""
    installed = [name for name in sources.names() if name not in sources.SOURCES]
    return [*federations.DATASETS, *(name for source in installed for name in federations.data_names(source))]


def _download_source(source: str, data_dir: str | None, err: "Console") -> None:
    """Downloads the files of a source, after printing size and licence."""
    if sources.located(source) == "embedded":
        print_parts(err, f"{source} is embedded in the package: nothing to download")
        return
    if not sources.entry(source).remotes:
        there = tables.source_location(source, data_dir)
        where = f"they are in {there['found']}" if there["found"] else there["missing"]
        raise ValueError(f"{source} cannot be downloaded by a program: {where}.")
    print_parts(err, download_terms(source, data_dir))
    with TransferBars(err) as transfer:
        folder = fetch_files(source, data_dir, transfer)
    print_parts(err, f"{source}: verified, in {folder}")


def parse_options(name: str, items: Iterable[str]) -> dict[str, Any]:
    """Returns the options of a data set or a source from `key=value` items.

    Raises:
        ValueError: an option is unknown, or a value has the wrong type.

    >>> parse_options("rotated-digits", ["num_clients=8", "rows_per_client=none"])
    {'num_clients': 8, 'rows_per_client': None}
    """
    known = [option._replace(owner="data") for option in options_of_name(name).values()]
    return {
        option.name: value for option, value in options.read_options(options.split_items(items), known, f"data {name}")
    }


def options_of_name(name: str) -> dict[str, Option]:
    """Returns the options of a data set, or those of a source, which all of its data sets have."""
    return catalog.source_options(name) if is_source(name) else named.known_options(name)


def source_names(name: str, chosen: dict[str, Any]) -> list[str]:
    """Returns the sources of a data set (two for hybrid), or the source itself.

    >>> source_names("hybrid-mnist", {}), source_names("mnist", {})
    (['mnist', 'fashion-mnist'], ['mnist'])
    """
    if is_source(name):
        return [name]
    other = chosen.get("other", federations.options(name).get("other"))
    return [federations.dataset(name).source, *([other] if other in sources.names() else [])]


def is_source(name: str) -> bool:
    """Returns whether a name is that of a source that is not a data set too."""
    return name in sources.names() and name not in federations.DATASETS


def download_terms(source: str, data_dir: str | None) -> str:
    """Returns size, folder and licence of a download, as a line.

    >>> print(download_terms("fashion-mnist", "data"))
    fashion-mnist: 30.9 MB to data/fashion-mnist; licence: MIT
    """
    row = sources.entry(source)
    size = sum(remote.num_bytes for remote in row.remotes)
    known = f"{size / 1e6:,.1f} MB" if all(remote.num_bytes for remote in row.remotes) else "of unknown size"
    folder = (sources.home() if data_dir is None else Path(data_dir)) / source
    return f"{source}: {known} to {folder}; licence: {row.licence}"


def fetch_files(source: str, data_dir: str | None, progress: Callable[[str, int, int], None]) -> Path:
    """Downloads the files of a source, and returns their folder."""
    from jaxfl.data.sources.download import download

    return download(source, sources.entry(source).remotes, data_dir, progress=progress)


def check_save(name: str, chosen: dict[str, Any], data_dir: str | None, path: Path) -> None:
    """Checks that the examples of a data set's source may be written into an .npz file.

    Raises:
        ValueError: they are read from that file, or it is another one.
    """
    from jaxfl.data.sources import npz

    origin = source_origin(name, chosen)
    read = named.user_files(federations.data_names(origin["source"])[0], data_dir)
    if real_path(path) in map(real_path, read):
        raise ValueError(f"--save must be another file than the one that is read, got {str(path)!r} for both.")
    npz.check_target(path, origin)


def source_origin(name: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """Returns name and options of a data set's source, as a saved file states them."""
    source = name if is_source(name) else federations.dataset(name).source
    own = {key: chosen.get(key, one.default) for key, one in options_of_name(name).items() if one.owner == "source"}
    return {"source": source, "options": own}


def save_source(name: str, chosen: dict[str, Any], data_dir: str | None, path: Path) -> sources.Source:
    """Writes the examples of a data set's source, before any skew, into one .npz file, and returns them."""
    from jaxfl.data.sources import npz

    origin = source_origin(name, chosen)
    loaded = sources.load(origin["source"], data_dir, **origin["options"])
    npz.save(loaded, path, origin=origin)
    return loaded


def picture_paths(name: str, out: Path) -> dict[str, Path]:
    """Returns the paths of the pictures of a data set that may be drawn.

    >>> picture_paths("iid-digits", Path("a"))["labels"].as_posix()
    'a/iid-digits-labels.png'
    """
    return {
        what: out / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}-{what}.png" for what in ("labels", "montage", "drift")
    }


def draw_pictures(name: str, data: FederatedData, out: Path, seed: int = 0) -> list[Path]:
    """Draws the labels by client, if they are classes, a montage and the stages of a drift, if inputs are images.

    Returns the paths.

    Args:
        name: of the data set, with which the names of the files begin.
        data: the federation.
        out: folder, created if missing.
        seed: of the choice of examples.

    Raises:
        ValueError: `out` is a file.
    """
    check_is_folder(out, "out")
    out.mkdir(parents=True, exist_ok=True)
    drawn = {"labels": plots.labels(data)} if data.kind == "classification" else {}
    if plots.is_image(data.input_shape):
        drawn["montage"] = plots.montage(data, seed=seed)
        drawn |= {"drift": plots.stages(data, seed=seed)} if len(changing_clients(data)) else {}
    paths = picture_paths(name, out)
    for what, figure in drawn.items():
        write_picture(figure, paths[what], dpi=150, command="data")
    return [paths[what] for what in drawn]
