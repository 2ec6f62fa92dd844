"""`jaxfl protocol`: protocols of publications, told or run; the runs are a sweep's, which goes on where it stopped."""

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxfl import protocols
from jaxfl.analysis.comparison import deviation
from jaxfl.cli import sweep
from jaxfl.cli.run import parse_seeds
from jaxfl.cli.tables.console import print_parts, print_table, progress_message, stderr, stdout
from jaxfl.data import sources
from jaxfl.data.catalog import dataset
from jaxfl.data.digest import digest, pixel_digest, rows_digest
from jaxfl.jobs.job import Job
from jaxfl.protocols import MARKS, Protocol
from jaxfl.protocols.scores import score
from jaxfl.schema import did_you_mean, quoted
from jaxfl.settings import methods, options
from jaxfl.settings.reading import split_items
from jaxfl.settings.user_code import run_label
from jaxfl.simulation.records.directory import HISTORY
from jaxfl.simulation.records.history import History

LIST = "list"
RUNS = "runs"  # the folder of results without --out
ALWAYS_BESIDE = "micro-last"  # a score that is printed beside every other one
PER_CORE = 125e9  # operations a second of one core, as the costs of records are reckoned
BASELINE = "fedavg"  # the method whose settings load the federation


class ProtocolRequest(NamedTuple):
    """A call of `jaxfl protocol`.

    Attributes:
        name: of a protocol, or the path of a TOML file.
        methods: to run, comma-separated; None runs nothing.
        items: `key=value`, of the methods' own options.
        seeds: as `jaxfl run` takes them; None are the protocol's.
        data_dir: folder with the files of the data.
        out: folder of the runs; None is `runs/NAME`.
        jobs: as `jaxfl sweep` takes it.
        time_limit: as `jaxfl sweep` takes it.
        reduced: whether the form for a CPU is meant.
        digest: whether the digest of each seed's federation is printed, and nothing else.
        as_json: whether the record, or the list, is printed as JSON.
        quiet: whether progress and notes are left out.
    """

    name: str
    methods: str | None = None
    items: tuple[str, ...] = ()
    seeds: str | None = None
    data_dir: str | None = None
    out: Path | None = None
    jobs: str = "auto"
    time_limit: str | None = None
    reduced: bool = False
    digest: bool = False
    as_json: bool = False
    quiet: bool = False


def show_protocol(request: ProtocolRequest) -> int:
    """Lists all protocols, tells one, prints its digests, or runs methods by it; returns the exit status.

    Raises:
        ValueError: the protocol, a method or an option is unknown or fixed, or a federation has another digest.
    """
    if request.name == LIST:
        _list_protocols(request.data_dir, as_json=request.as_json)
        return 0
    protocol = protocols.read(request.name)
    protocol = protocol.as_reduced() if request.reduced else protocol
    if request.methods is None and (request.items or request.out is not None):
        given = "--set" if request.items else "--out"
        raise ValueError(f"method must be given with {given}, got none; write --method {protocol.compared[0]}.")
    if request.digest:
        for seed, line in _digests(protocol, _chosen_seeds(protocol, request), request).items():
            print(f"seed {seed}: {line}")
        return 0
    if request.methods is not None:
        return _run(protocol, request)
    if request.as_json:
        print(json.dumps(_json_record(protocol), indent=2))
    else:
        _tell(protocol, request)
    return 0


def _location(protocol: Protocol, data_dir: str | None) -> str | None:
    """Returns where the files of a protocol's data are, "embedded" without files, or None if they are missing."""
    return sources.located(dataset(protocol.data["name"]).source, data_dir)


def _list_protocols(data_dir: str | None, *, as_json: bool) -> None:
    """Prints a table of all protocols, or JSON."""
    records = [protocols.read(name) for name in protocols.names()]
    if as_json:
        print(json.dumps([_json_record(record) for record in records], indent=2))
        return
    rows = []
    for record in records:
        here = "here" if _location(record, data_dir) else "not here"
        best = max(record.published, key=lambda row: row.value, default=None)
        published = "" if best is None else f"{len(record.published)}, to {best.value:g} %"
        rows.append(
            (
                record.name,
                f"{record.data_needed} ({here})",
                record.split,
                f"{_core_hours(record):.2g}",
                published,
                "yes" if record.reduced else "",
            )
        )
    head = ("protocol", "data", "split", "core-hours a run", "published rows", "--reduced")
    print_table(stdout(), head, rows, named=True)


def _core_hours(protocol: Protocol) -> float:
    """Returns core-hours of one run of FedAvg by its operations."""
    return protocol.teraflop * 1e12 / PER_CORE / 3600


def _json_record(protocol: Protocol) -> dict[str, Any]:
    """Returns a record in JSON's types."""
    plain = protocol._asdict() | {"published": [row._asdict() for row in protocol.published]}
    plain.pop("content")
    return plain | {"digest": protocol.digest()}


def _tell(protocol: Protocol, request: ProtocolRequest) -> None:
    """Prints the whole specification of a protocol, with the digest of its first seed's federation if data are here."""
    parts = {"data": protocol.data, "network": protocol.model, "optimizer": protocol.optimizer, "run": protocol.run}
    lines = [
        f"{protocol.name}: {protocol.title}",
        f"{protocol.paper}",
        f"code: {protocol.code}",
        "",
        f"split       {protocol.split}: "
        + ("the official code's own rows" if protocol.split == "exact" else "the official law, with seeds of our own"),
        *(f"{name:<11} {_in_line(part)}" for name, part in parts.items() if part),
        f"training    {_in_line(protocol.local)}",
        f"rounds      {protocol.rounds}, of {_cohort_phrase(protocol.cohort)}, evaluated every {protocol.eval_every}",
        f"seeds       {', '.join(map(str, protocol.seeds))}",
        f"score       {protocol.score}",
        f"compared    {', '.join(protocol.compared)}",
        *(f"  {method:<9} {_in_line(own)}" for method, own in protocol.methods.items()),
        f"needs       {protocol.data_needed}",
        f"cost        {_core_hours(protocol):.2g} core-hours a run of FedAvg, by operations",
        f"record      {protocol.digest()}",
    ]
    print_parts(stdout(), *lines)
    if _location(protocol, request.data_dir):
        seed = protocol.seeds[0]
        print(f"federation  {_digests(protocol, [seed], request)[seed]} (seed {seed})")
    else:
        print("federation  its data are not here; jaxfl data tells where to get them")
    if protocol.deviations:
        print_parts(stdout(), "", "What differs:", *(f"- {line}" for line in protocol.deviations))
    if protocol.published:
        print()
        rows = [
            (row.method, _percent(row.value, row.deviation), row.table, MARKS[row.mark]) for row in protocol.published
        ]
        print_table(stdout(), ("published", "score", "table", "mark"), rows, named=True)


def _in_line(part: Mapping[str, Any]) -> str:
    """Returns names and values of a table in one line.

    >>> _in_line({"name": "sgd", "learning_rate": 0.1})
    'sgd, learning_rate=0.1'
    """
    texts = [f"{key}={_item_text(value)}" for key, value in part.items() if key != "name"]
    return ", ".join([*([str(part["name"])] if "name" in part else []), *texts])


def _cohort_phrase(cohort: float | int) -> str:
    """Returns a cohort as a phrase.

    >>> _cohort_phrase(1.0), _cohort_phrase(0.1), _cohort_phrase(5)
    ('all clients', '10 % of the clients', '5 clients')
    """
    if isinstance(cohort, float):
        return "all clients" if cohort == 1 else f"{100 * cohort:g} % of the clients"
    return f"{cohort} clients"


def _percent(value: float, spread: float | None) -> str:
    """Returns a value in percent with its deviation.

    >>> _percent(97.4, 0.1), _percent(97.4, None)
    ('97.40 ± 0.10', '97.40')
    """
    return f"{value:.2f}" + ("" if spread is None else f" ± {spread:.2f}")


def _chosen_seeds(protocol: Protocol, request: ProtocolRequest) -> list[int]:
    """Returns the seeds of a request, or those of the protocol."""
    return list(protocol.seeds) if request.seeds is None else parse_seeds(request.seeds)


def _digests(protocol: Protocol, seeds: Sequence[int], request: ProtocolRequest) -> dict[int, str]:
    """Returns the digests of each seed's federation: of its rows, of all, and of its first client's pixels.

    Raises:
        ValueError: a digest is not the record's.
    """
    found, settings = {}, protocol.settings(BASELINE)
    for seed in seeds:
        with progress_message(stderr(quiet=request.quiet), f"loading {protocol.data['name']}, seed {seed}"):
            data = options.load(settings, data_dir=request.data_dir, seed=seed)
        protocol.check(data, seed)
        found[seed] = " ".join(filter(None, (rows_digest(data), digest(data), pixel_digest(data))))
    return found


def _run(protocol: Protocol, request: ProtocolRequest) -> int:
    """Runs methods by a protocol, and prints their scores beside the published ones; returns the exit status."""
    chosen = [name.strip() for name in (request.methods or "").split(",")]
    own = _own_options(protocol, chosen, request.items)
    seeds = _chosen_seeds(protocol, request)
    for method in chosen:
        protocol.settings(method)
    if known := [seed for seed in seeds if str(seed) in protocol.digests]:
        _digests(protocol, known, request)
    out = request.out or Path(RUNS) / protocol.name
    given = {
        "data": protocol.data["name"],
        "seeds": ",".join(map(str, seeds)),
        "rounds": str(protocol.rounds),
        "cohort": str(protocol.cohort),
        "eval_every": str(protocol.eval_every),
        "time_limit": request.time_limit,
    }
    items = [f"{key}={_item_text(value)}" for key, value in protocol.fixed().items()]
    for method in chosen:
        values = {**protocol.methods.get(method, {}), **own.get(method, {}), **protocol.of_method(method)}
        items += [f"{method}.{key}={_item_text(value)}" for key, value in values.items()]
    arguments = {"methods": ",".join(chosen), "given": given, "items": items, "data_dir": request.data_dir}
    arguments |= {"out": str(out), "html": False, "pictures": False}
    cells = [one for runs in sweep.jobs_of(arguments).values() for one in runs]
    _tell_plan(protocol, chosen, cells, request)
    status = sweep.sweep(
        arguments["methods"], given, items, request.data_dir, out, request.quiet, False, False, request.jobs
    )
    _print_scores(protocol, sweep.jobs_of(arguments))
    return status


def _own_options(protocol: Protocol, chosen: Sequence[str], items: Sequence[str]) -> dict[str, dict[str, str]]:
    """Returns the options that the user sets, by method.

    Raises:
        ValueError: an option is not one of the methods' own.
    """
    found: dict[str, dict[str, str]] = {method: {} for method in chosen}
    for key, value in split_items(items).items():
        method, name = next(
            ((one, key.removeprefix(f"{one}.")) for one in chosen if key.startswith(f"{one}.")), (None, key)
        )
        having = [one for one in ([method] if method else chosen) if name in methods.row(one).options]
        if not having or any(name in protocol.of_method(one) for one in having):
            fixed = {**protocol.fixed(), **protocol.local}
            at = next(
                (fixed[one] for one in (name, f"run.{name}", *fixed) if one in fixed and one.endswith(name)), None
            )
            if at is None and not having and not _is_run_option(protocol, chosen[0], name):
                listed = [option for one in chosen for option in methods.row(one).options]
                near = did_you_mean(name, listed)
                raise ValueError(f"unknown option {quoted(key)} for {', '.join(chosen)}{near}")
            value_there = "" if at is None else f" at {_item_text(at)}"
            raise ValueError(
                f"{key} is fixed by the protocol {protocol.name}{value_there}, got {value}; leave it out, or use "
                "jaxfl sweep for a setting of your own."
            )
        for one in having:
            found[one][name] = value
    return found


def _is_run_option(protocol: Protocol, method: str, name: str) -> bool:
    """Returns whether a name is an option of data, network, optimiser or run, which a protocol leaves as it is."""
    settings = protocol.settings(method)
    known = options.applicable_options(*settings.names())
    return name.rpartition(".")[2] in {option.name for option in known} or name in options.CHOICES


def _item_text(value: Any) -> str:
    """Returns a value of a record as `--set` takes it in a sweep, where a comma outside brackets separates values.

    >>> _item_text([0, 90]), _item_text([[0, 1], [2]]), _item_text("none,0:3/8:9"), _item_text(True), _item_text("mlp")
    ('(0,90)', '((0,1),(2,))', "'none,0:3/8:9'", 'true', 'mlp')
    """
    if isinstance(value, list | tuple):
        return f"({','.join(map(_item_text, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, str) and "," in value and value[:1] not in "([" else str(value)


def _tell_plan(protocol: Protocol, chosen: Sequence[str], cells: Sequence[Job], request: ProtocolRequest) -> None:
    """Prints what a method leaves out of the training that is fixed, and an estimate of the time that is left."""
    console = stderr(quiet=request.quiet)
    for method in chosen:
        if lacking := [
            f"{key}={_item_text(value)}"
            for key, value in protocol.local.items()
            if key not in protocol.of_method(method)
        ]:
            console.print(f"{method} has no option for {', '.join(lacking)}, which the protocol fixes", soft_wrap=True)
    missing = sum(one.done() is None for one in cells)
    if missing:
        cores = os.cpu_count() or 1
        seconds = protocol.teraflop * 1e12 / (PER_CORE * cores)
        console.print(
            f"{missing} of {len(cells)} runs to make, about {_duration(seconds)} each by the operations of FedAvg on "
            f"{cores} cores, {_duration(missing * seconds)} in all; compiling, evaluation and a method's own work come "
            "on top",
            soft_wrap=True,
        )


def _duration(seconds: float) -> str:
    """Returns a duration in the unit that suits it.

    >>> _duration(3.2), _duration(300), _duration(7200)
    ('4 seconds', '5 minutes', '2.0 hours')
    """
    if seconds < 100:
        return f"{int(seconds) + 1} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"


def _print_scores(protocol: Protocol, settings: Mapping[str, Sequence[Job]]) -> None:
    """Prints the scores of all runs that are finished, mean and deviation over seeds, beside the published rows."""
    names = list(dict.fromkeys([protocol.score, ALWAYS_BESIDE]))
    rows = []
    for name, runs in settings.items():
        done = [one for one in runs if one.done() is not None and one.out is not None]
        if not done:
            continue
        histories = [History(one.out / HISTORY) for one in done if one.out is not None]
        ours = []
        for wanted in names:
            values = [100 * value for records in histories if (value := score(wanted, records)) is not None]
            ours.append(_percent(statistics.fmean(values), deviation(values)) if values else "-")
        aris = [value for records in histories if len(records) and (value := records[-1].get("ari")) is not None]
        method = done[0].settings.method_name
        published = [row for row in protocol.published if row.is_like == method]
        told = [f"{row.method} {_percent(row.value, row.deviation)} ({row.mark})" for row in published]
        ari = f"{statistics.fmean(aris):.2f}" if aris else ""
        alone = sum(other[0].settings.method_name == method for other in settings.values()) == 1
        label = run_label(method) if alone else name
        rows.append((label, *ours, ari, str(len(done)), "; ".join(told) or "-"))
    if not rows:
        return
    print()
    print_table(stdout(), (protocol.name, *names, "ari", "seeds", "published"), rows, named=True)
    where = dict.fromkeys((row.mark, row.table) for row in protocol.published)
    print_parts(stdout(), *(f"({mark}) {MARKS[mark]}: {table}" for mark, table in where))
    if protocol.name.endswith(protocols.REDUCED):
        print("the reduced form is not comparable with published numbers")
