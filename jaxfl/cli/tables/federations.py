"""Texts of `jaxfl data`: sources, skews, data sets, and the description of a federation."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxfl import data as federations
from jaxfl.cli.tables.choices import key_values
from jaxfl.data import catalog, sources
from jaxfl.data.describe import Description
from jaxfl.host.text import printable
from jaxfl.plots.style import count_phrase
from jaxfl.schema import REQUIRED
from jaxfl.settings import federations as named
from jaxfl.settings import reading, user_code

if TYPE_CHECKING:
    from rich.table import Table

BAR = 40  # characters of the longest bar of a histogram
EIGHTHS = " ▏▎▍▌▋▊▉"
MOST_CHANGES = 6  # of a drift that are listed
MOST_GROUPS = 24  # of more, only the number is printed
LABEL_NOUNS = {"classification": "classes", "regression": "targets", "multilabel": "labels", "next_token": "tokens"}


def data_rows(names: Sequence[str], data_dir: str | None = None) -> list[dict[str, Any]]:
    """Returns a row for each data set, ready for JSON; `found` is null where files are missing.

    Args:
        names: of data sets.
        data_dir: folder with the files.
    """
    # The disk is searched once for each source, not for each of its data sets.
    places: dict[tuple[str, bool], dict[str, Any]] = {}
    rows = []
    for name in names:
        row = named.dataset(name)
        if user_code.is_address(name):
            rows.append(_own_row(name))
            continue
        key = (row.source, row.skew == "writers")
        if key not in places:
            places[key] = source_location(row.source, data_dir, makers=key[1])
        known = {"skew": row.skew, "shifts": list(row.shifts), "source": row.source, "classes": row.num_classes}
        about = {"options": federations.options(name), "model": row.model[0]}
        rows.append(
            {"name": name, "description": row.description, **known, **places[key], **about, **_source_terms(row.source)}
        )
    return rows


def _own_row(name: str) -> dict[str, Any]:
    """Returns the row of a user's federation."""
    row, found = named.dataset(name), str(user_code.address_file(name))
    defaults = {key: one.default for key, one in named.known_options(name).items()}
    return {
        **{"name": name, "description": row.description, "skew": None, "shifts": [], "source": None, "classes": None},
        **{"found": found, "missing": None, "model": row.model[0], "licence": None, "bytes": 0, "makers": None},
        "options": {key: None if one is REQUIRED else reading.json_value(one) for key, one in defaults.items()},
        "downloadable": False,
    }


def source_row(name: str, data_dir: str | None = None) -> dict[str, Any]:
    """Returns the row of a source, ready for JSON, with the names of its data sets."""
    row = sources.entry(name)
    known = {"name": name, "description": row.summary, "classes": row.num_classes, "model": row.model[0]}
    own = {key: one.default for key, one in catalog.source_options(name).items()}
    cuts = federations.data_names(name)
    return {**known, **source_location(name, data_dir), "options": own, **_source_terms(name), "datasets": cuts}


def data_lists(data_dir: str | None = None) -> "list[Table | str]":
    """Returns the tables of sources and skews, the syntax of names, and remedies for missing files."""
    from rich.table import Table

    rows = [source_row(name, data_dir) for name in sources.names()]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("source", no_wrap=True)
    table.add_column("what it is")
    table.add_column("classes", justify="right", no_wrap=True)
    table.add_column("MB", justify="right", no_wrap=True)
    table.add_column("licence", max_width=20)
    table.add_column("files", no_wrap=True)
    for row in rows:
        found = row["found"] if row["found"] in (None, "embedded") else "found"
        cells = [
            str(row["classes"] or "-"),
            _megabytes(row["bytes"]),
            _first_phrase(row["licence"]),
            found or "missing",
        ]
        table.add_row(row["name"], _first_phrase(row["description"]), *cells)
    skews = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    skews.add_column("skew", no_wrap=True)
    skews.add_column("data of the clients")
    for name, (_, words) in federations.SKEWS.items():
        skews.add_row(name, words)
    alone = [name for name in sources.SOURCES if name in federations.DATASETS]
    *before, last = (f"{name}+" for name in federations.SHIFTS)
    names = [
        "A data set is <skew>-<source>, as in rotated-mnist.",
        *textwrap.wrap(
            f"{', '.join(before)} and {last} also go before another skew, as in rotated+pathological-mnist.",
            100,
            break_on_hyphens=False,
        ),
        "<skew>-tfds:<name> reads what tensorflow-datasets has prepared.",
        *textwrap.wrap(f"By their own name, a client for each maker: {', '.join(alone)}.", 100, break_on_hyphens=False),
        "jaxfl data NAME tells more about a source or a data set.",
    ]
    found = [f"  {row['name']}: {row['found']}" for row in rows if row["found"] not in (None, "embedded")]
    missing = [f"  {row['name']}: {_shortest_remedy(row)}" for row in rows if row["missing"]]
    lists = [["", title, *lines] for title, lines in (("Found:", found), ("Missing:", missing)) if lines]
    return [table, "", skews, "", *names, *(line for lines in lists for line in lines)]


def source_page(name: str, data_dir: str | None = None) -> str:
    """Returns the page of a source that is not a data set too.

    >>> print(source_page("digits").splitlines()[3])
      files     embedded
    """
    row = source_row(name, data_dir)
    cuts = [f"  {cut:<28}{federations.SKEWS[federations.dataset(cut).skew][1]}" for cut in row["datasets"]]
    own = ["Options:", *_set_lines(row["options"])] if row["options"] else []
    return "\n".join([f"{name}: {row['description']}", *_fact_lines(row), *own, "Data sets:", *cuts])


def dataset_page(name: str, data_dir: str | None = None) -> str:
    """Returns the page of a data set: description, files, and options in the syntax of `--set`.

    >>> print(dataset_page("rotated-digits").splitlines()[5])
      --set num_clients=40
    """
    (row,) = data_rows([name], data_dir)
    model, suited = named.dataset(name).model
    known = named.known_options(name)
    options = _set_lines({key: one.default for key, one in known.items()})
    if user_code.is_address(name):  # those of the catalogue are described by `jaxfl data` and the documentation
        told = ["" if one.owner else one.line for one in known.values()]
        options = [f"{line}  {words}".rstrip() for line, words in zip(options, told, strict=True)]
    own = f"  --set model={model}" + (f", and of it: {key_values(suited)}" if suited else "")
    more = []
    if name in sources.SOURCES:
        more = ["", f"Other data sets of this source: {', '.join(source_row(name)['datasets'])}"]
    return "\n".join([f"{name}: {row['description']}", *_fact_lines(row), "Options:", *options, own, *more])


def federation_text(found: Description) -> str:
    """Returns the description of a federation, with a histogram of the clients' training rows.

    >>> from jaxfl.data.describe import describe
    >>> print(federation_text(describe(federations.load("rotated-digits"))).splitlines()[1])
      clients   40
    """
    some = {"held out": found.held_out_clients, "without training rows": found.empty_clients}
    marks = ", ".join(f"{number:,} {words}" for words, number in some.items() if number)
    shape = " x ".join(map(str, found.input_shape)) or "one number"
    names = f": {', '.join(map(printable, found.class_names))}" if found.class_names else ""
    absent = found.num_classes - found.classes_present
    planted = ", ".join(f"{cause}: {number}" for cause, number in found.causes.items())
    lines = [
        "Federation:",
        f"  clients   {found.num_clients:,}" + (f" ({marks})" if marks else ""),
        f"  training  {_split_phrase(found.train)}",
        *([] if found.validation is None else [f"  validate  {_split_phrase(found.validation)}"]),
        f"  test      {_split_phrase(found.test)}"
        + (f"; {found.repeated_test_rows:,} identical with training rows" if found.repeated_test_rows else ""),
        f"  pool      {count_phrase(found.num_rows, 'row')} of {shape} {found.input_dtype}, "
        f"{_megabytes(found.pool_bytes)} MB",
        f"  {LABEL_NOUNS[found.kind]:<9} {found.num_classes:,}"
        + (f" ({absent:,} without a row)" if absent else "")
        + names,
        f"  groups    {len(found.groups) or 'unknown'}" + (f" (by {planted})" if len(found.causes) > 1 else ""),
    ]
    shown = [{**group, "name": printable(group["name"])} for group in found.groups[:MOST_GROUPS]]
    wide = max([len(group["name"]) for group in shown], default=0)
    for group in shown:
        clients, rows = count_phrase(group["clients"], "client"), count_phrase(group["train_rows"], "training row")
        lines.append(f"    {group['name']:<{wide}}  {clients:>14}, {rows}")
    if len(found.groups) > MOST_GROUPS:
        lines.append(f"    and {len(found.groups) - MOST_GROUPS:,} more")
    for drift in found.drifts[:MOST_CHANGES]:
        parts = [f"{count_phrase(drift[name], 'client')} {name}" for name in ("change", "arrive", "leave")]
        lines.append(f"  drift     after round {drift['round']:,}: {', '.join(parts)}")
    if more := found.drifts[MOST_CHANGES:]:
        lines.append(f"    and {len(more):,} more, the last after round {more[-1]['round']:,}")
    return "\n".join([*lines, "Clients by training rows:", *_histogram_lines(**found.histogram)])


def _histogram_lines(edges: Sequence[int], counts: Sequence[int]) -> list[str]:
    """Returns the lines of a histogram, one for each bin.

    >>> print("\\n".join(_histogram_lines([0, 1, 5], [2, 80])))
          0  █ 2
      1 - 4  ████████████████████████████████████████ 80
    """
    bins = zip(edges[:-1], edges[1:], strict=True)
    words = [f"{low:,}" if high == low + 1 else f"{low:,} - {high - 1:,}" for low, high in bins]
    wide, most = max(map(len, words), default=0), max([*counts, 1])
    lines = []
    for word, clients in zip(words, counts, strict=True):
        full, rest = divmod(round(8 * BAR * clients / most), 8)
        bar = "█" * full + (EIGHTHS[rest] if rest else "")
        lines.append(f"  {word:>{wide}}  {bar or ('▏' if clients else '')} {clients:,}")
    return lines


def _split_phrase(rows: dict[str, float]) -> str:
    """Returns the rows of a split, in all and by client, as a phrase."""
    total = count_phrase(int(rows["rows"]), "row")
    distinct = f" ({int(rows['distinct']):,} distinct)" if rows["distinct"] < rows["rows"] else ""
    if rows["min"] == rows["max"]:
        return f"{total}{distinct}; each client has {rows['min']:,}"
    middle = f"median {rows['median']:,g}, mean {rows['mean']:,.1f}"
    return f"{total}{distinct}; a client has {rows['min']:,} to {rows['max']:,}, {middle}"


def _set_lines(chosen: dict[str, Any]) -> list[str]:
    """Returns a line for each option, with its default."""
    return [f"  --set {key_values({name: default})}" for name, default in chosen.items()]


def _fact_lines(row: dict[str, Any]) -> list[str]:
    """Returns the lines that the pages of sources and data sets share: classes, makers, licence, size, files."""
    unknown = "as many as the files say" if row.get("source", "") is not None else None  # of a function
    facts = {
        "classes": f"{row['classes']:,}" if row["classes"] else unknown,
        "makers": row["makers"],
        "licence": row["licence"],
        "size": f"{_megabytes(row['bytes'])} MB" if row["bytes"] else None,
        "files": row["found"] or f"missing: {_full_remedy(row)}",
    }
    return [f"  {fact:<9} {words}" for fact, words in facts.items() if words]


def _source_terms(source: str) -> dict[str, Any]:
    """Returns licence, size and makers of a source, and whether it can be downloaded."""
    row = sources.entry(source)
    size = row.num_bytes or sum(remote.num_bytes for remote in row.remotes)
    terms = {"licence": row.licence, "bytes": size, "makers": row.makers or None}
    return {**terms, "downloadable": bool(row.remotes)}


def source_location(source: str, data_dir: str | None, *, makers: bool = False) -> dict[str, Any]:
    """Returns the place of a source's files (`found`), or the remedy if they are missing (`missing`)."""
    found = sources.located(source, data_dir, makers=makers)
    return {"found": found, "missing": None if found else _missing_files(source, data_dir)}


def _missing_files(source: str, data_dir: str | None) -> str:
    """Returns the remedy for a source whose files are missing."""
    row = sources.entry(source)
    if source.startswith("tfds:"):
        return f"{source} is read by tensorflow-datasets when it is asked for"
    if row.find and row.find(data_dir) is not None:
        return row.help  # the files are there, without the makers of the examples
    try:
        row.load(data_dir)
    except (FileNotFoundError, ValueError) as error:
        return str(error).rstrip(".")
    return row.help


def _first_phrase(words: str) -> str:
    """Returns the first part of a sentence, up to a semicolon or a bracket.

    >>> _first_phrase("CC BY-SA 3.0 (as commonly stated); labels BSD-3-Clause")
    'CC BY-SA 3.0'
    """
    return words.split(";")[0].split(" (")[0].strip()


def _shortest_remedy(row: dict[str, Any]) -> str:
    """Returns the shortest remedy for missing files: a command, or the folder to put them into."""
    if row["downloadable"]:
        return f"jaxfl data {row['name']} --download gets it; jaxfl data {row['name']} says what to put where"
    return row["missing"].partition("; ")[2] or row["missing"].removeprefix(f"{row['name']} ")


def _full_remedy(row: dict[str, Any]) -> str:
    """Returns the full remedy for missing files, with the command that downloads them."""
    command = f"; or jaxfl data {row['name']} --download" if row["downloadable"] else ""
    return f"{row['missing']}{command}"


def _megabytes(size: int) -> str:
    """Returns a size in megabytes, `-` if unknown."""
    return "-" if not size else f"{size / 1e6:,.0f}" if size >= 1e7 else f"{size / 1e6:,.1f}"
