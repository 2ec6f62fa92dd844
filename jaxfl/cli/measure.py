"""`jaxfl bench`: measurements under a progress bar, printed tables, and a folder with records, pictures and a page."""

import contextlib
import json
import shlex
import statistics
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jaxfl
from jaxfl.bench import AXES, Scaling, Step, scaling
from jaxfl.cli import experiments, page, tables
from jaxfl.cli.experiments import WORKLOADS
from jaxfl.cli.tables.console import print_parts, progress_message, stderr, stdout
from jaxfl.files import check_is_folder, check_output, signature, write_text
from jaxfl.plots.curves import scaling as draw_scaling
from jaxfl.plots.gaps import bars
from jaxfl.plots.style import write_picture
from jaxfl.schema import check_name, function_options
from jaxfl.settings import methods, options
from jaxfl.settings.removed import without_removed

if TYPE_CHECKING:
    from rich.console import Console

PICTURE, BARS_PICTURE, RECORD, PAGE = "scaling.png", "bench.png", "bench.json", "index.html"
COMMAND = "bench"  # in what is written
FOOTNOTE = (
    "Times are the median of the rounds, in ms. GFLOP/s counts the operations of local_epochs passes of training "
    "(forward pass and gradients); a method's other work (choosing clusters, inner steps, epochs of a head) takes time "
    "and is not counted. The machine's float32 matrix product is timed in turn with the rounds. Memory is the peak of "
    "the point's own process, Python and JAX included."
)


def bench_scaling(
    over: Sequence[str],
    values: str | None,
    method: str,
    items: Sequence[str],
    hidden: int,
    rounds: int,
    out: Path | None,
) -> bool:
    """Measures axes, prints a table of each, and writes the folder; returns whether all points were measured.

    Raises:
        ValueError: an argument is out of range.
    """
    over = list(AXES) if "all" in over else over
    for axis in over:
        check_name("axis", axis, AXES)
    if values is not None and len(over) > 1:
        raise ValueError(f"values must belong to one axis, got {len(over)} axes; give --over once.")
    chosen = None if values is None else parse_numbers(values, "values")
    of_method = function_options(methods.row(method).factory)
    of_method.pop("server_optimizer", None)
    wanted = without_removed(method, options.split_items(items), of_method)
    items_of = options.read_options(wanted, list(of_method.values()), f"method {method}")
    given = {option.name: value for option, value in items_of}
    if out is not None:
        _prepare_folder(out, PICTURE)
    results = []
    for axis in over:
        with MeasurementBar(stderr()) as bar:
            work = {"method": method, "options": given, "hidden": hidden, "rounds": rounds}
            results.append(scaling(axis, chosen, **work, watch=bar))
        print_parts(stdout(), tables.scaling_table(results[-1]), *results[-1].failures, results[-1].meaning, "")
        if results[-1].warning:
            stderr().print(f"warning: {results[-1].warning}", style="yellow", soft_wrap=True)
    if out is not None:
        command = ["jaxfl", "bench", "scaling", *(word for axis in over for word in ("--over", axis))]
        command += [] if values is None else ["--values", values]
        command += ["--method", method, *(word for item in items for word in ("--set", item))]
        command += ["--hidden", str(hidden), "--rounds", str(rounds)]
        write_scaling(results, shlex.join(command), out)
        print_parts(stdout(), f"written: {out / PAGE}, {out / PICTURE} and {out / RECORD}")
    return all("error" not in row for result in results for row in result.points)


def parse_numbers(text: str, name: str) -> list[int]:
    """Returns the integers of a comma-separated list.

    >>> parse_numbers("10, 100,1000", "values")
    [10, 100, 1000]
    """
    option = options.Option(name, (), tuple[int, ...])
    return list(options.convert(name, text, option, f"write --{name} 10,100,1000"))


class MeasurementBar(contextlib.AbstractContextManager["MeasurementBar"]):
    """Progress of a measurement: a bar in a terminal, a line for each point elsewhere.

    An instance is the `watch` of `jaxfl.bench.scaling`. The first line is the plan with its estimated duration.
    """

    def __init__(self, console: "Console"):
        from rich import progress

        self.console, self.num_printed = console, 0
        self.bar = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(24),
            progress.TimeElapsedColumn(),
            progress.TextColumn("{task.fields[left]}", markup=False),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )

    def __exit__(self, *_: object) -> None:
        """Removes the bar from the screen."""
        self.bar.stop()

    def __call__(self, step: Step) -> None:
        """Updates the bar to a step."""
        if not self.bar.task_ids:
            self.console.print(plan_sentence(step), soft_wrap=True)
            self.bar.add_task("", total=1.0, left="")
            self.bar.start()
        while self.num_printed < len(step.found):
            row = step.found[self.num_printed]
            self.num_printed += 1
            if not self.console.is_terminal or "error" in row:
                outcome = "failed" if "error" in row else f"{1000 * row['seconds']['median']:.1f} ms a round"
                self.console.print(f"{self.num_printed}/{len(step.points)}  {step.over} {row['value']:,}: {outcome}")
        if step.index < len(step.points):
            doing = f"round {step.round}/{step.points[0].rounds}" if step.round else "starting"
            text = f"{step.over} {step.values[step.index]:,} ({step.index + 1}/{len(step.points)}) {doing}"
            (task,) = self.bar.tasks
            expected = sum(point.expected_seconds for point in step.points)
            pace = (task.elapsed or 0) / (step.share * expected) if step.index else 1.0  # of this machine, once known
            left = f"about {rounded_duration(pace * expected * (1 - step.share))} left"
            self.bar.update(task.id, description=text, completed=step.share, left=left)


def plan_sentence(step: Step) -> str:
    """Returns a sentence with the points, the rounds and the estimated duration of a measurement."""
    values = ", ".join(f"{value:,}" for value in step.values)
    seconds = sum(point.expected_seconds for point in step.points)
    return (
        f"{step.over} {values}: {step.points[0].rounds} rounds of {step.points[0].method} at each, in a separate "
        f"process; about {rounded_duration(seconds)}"
    )


def _prepare_folder(out: Path, picture: str) -> None:
    """Creates a folder before anything is measured.

    Raises:
        OSError: it cannot be created.
        ValueError: it has another file of a name that will be written.
    """
    check_is_folder(out, "out")
    out.mkdir(parents=True, exist_ok=True)
    for name in (RECORD, picture, PAGE):
        check_output(out / name, "out", signature(COMMAND))


def rounded_duration(seconds: float) -> str:
    """Returns a rounded duration.

    >>> rounded_duration(4), rounded_duration(42), rounded_duration(95)
    ('10 s', '40 s', '2 min')
    """
    return f"{10 * max(1, round(seconds / 10))} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _record_header(command: str) -> dict[str, str]:
    """Returns the first entries of a record: which command wrote it, with which version, when."""
    now = datetime.now().isoformat(timespec="minutes")
    return {"written": signature(COMMAND), "jaxfl": jaxfl.__version__, "made": now, "command": command}


def write_scaling(results: Sequence[Scaling], command: str, out: Path) -> None:
    """Writes record, picture and page of scalings into a folder."""
    header = _record_header(command)
    record = {**header, "scalings": [result._asdict() for result in results]}
    write_text(out / RECORD, json.dumps(record, indent=1) + "\n")
    drawn = [result for result in results if any("error" not in row for row in result.points)]
    if drawn:
        write_picture(draw_scaling(*drawn), out / PICTURE, dpi=110, command=COMMAND)
    blocks: list[page.PageBlock] = [
        page.Heading(1, "How jaxfl scales on this machine"),
        page.Text(machine_sentence(results, header)),
    ]
    for result in results:
        blocks += [
            page.Heading(2, tables.scaling_title(result)),
            page.Table([result.over, *tables.SCALING_HEAD], tables.scaling_rows(result)),
            *map(page.Text, result.failures),
            page.Text(f"{result.meaning} {result.warning}"),
        ]
    blocks += [page.Picture(PICTURE, "seconds, memory and share of the machine's limit")] if drawn else []
    blocks += [page.Text(FOOTNOTE), page.Table(["made by"], [[page.Code(command)]])]
    write_text(out / PAGE, page.html("How jaxfl scales", blocks, out, COMMAND))


def machine_sentence(results: Sequence[Scaling], header: dict[str, Any]) -> str:
    """Returns a sentence with the machine, the versions and the speed of a matrix product."""
    machine = next((result.machine for result in results if result.machine), None)
    if machine is None:
        return "Nothing could be measured."
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    products = [
        row["product_gflops"]["median"] for result in results for row in result.points if "product_gflops" in row
    ]
    return (
        f"{tables.device_phrase(machine)}; jaxfl {header['jaxfl']}, {versions}; {header['made']}. "
        f"A float32 matrix product ran at {statistics.median(products):,.0f} GFLOP/s in turn with the rounds."
    )


def bench_workloads(
    names: Sequence[str],
    *,
    clients: str | None,
    rounds: int | None,
    chunk: int | None,
    peers: str | None,
    environments: Path | None,
    out: Path | None,
    clone: Path | None,
) -> bool:
    """Measures workloads, prints their tables, and writes the folder; returns whether none failed.

    Raises:
        ValueError: a name is unknown or a number is out of range.
        FileNotFoundError: there is no clone with experiments.
    """
    for name in names:
        check_name("workload", name, WORKLOADS)
    given = [] if clients is None else ["--clients", *map(str, parse_numbers(clients, "clients"))]
    for option, value in {"rounds": rounds, "chunk": chunk}.items():
        if value is not None and value < 1:
            raise ValueError(f"{option} must be at least 1, got {value}.")
        given += [] if value is None else [f"--{option}", str(value)]
    given += [] if peers is None else ["--peers", peers]
    kit = experiments.import_experiments("speed.bench", clone)
    if out is not None:
        _prepare_folder(out, BARS_PICTURE)
    results = []
    for place, name in enumerate(dict.fromkeys(names), 1):
        beside = [] if peers == "none" else kit.peers_of(name, environments)
        with progress_message(
            stderr(), f"{place}/{len(set(names))} {name}, {_peers_phrase(beside)}: {WORKLOADS[name]}"
        ):
            results.append(kit.run(name, given, environments))
        print_parts(stdout(), f"{results[-1].text}\n")
        if results[-1].error:
            stderr().print(f"error: {results[-1].error}", style="red", soft_wrap=True)
    if out is not None:
        command = ["jaxfl", "bench", *names, *given, *(["--environments", str(environments)] if environments else [])]
        _write_workloads(results, shlex.join(command), out)
        print_parts(stdout(), f"written: {out / PAGE} and {out / RECORD}")
    return not any(result.error for result in results)


def _write_workloads(results: Sequence[Any], command: str, out: Path) -> None:
    """Writes the records, a picture where there are peers, and the page.

    Args:
        results: results of `experiments.speed.bench.run`.
        command: the command line.
        out: the folder.
    """
    header = _record_header(command)
    write_text(out / RECORD, json.dumps({**header, "works": [result._asdict() for result in results]}, indent=1) + "\n")
    blocks: list[page.PageBlock] = [page.Heading(1, "jaxfl's workloads on this machine")]
    machines = [record for result in results for record in result.records]
    if machines:
        versions = ", ".join(f"{name} {version}" for name, version in machines[0]["versions"].items())
        blocks.append(
            page.Text(f"{tables.device_phrase(machines[0])}; jaxfl {header['jaxfl']}, {versions}; {header['made']}.")
        )
    times = peer_ratios(results)
    if any(value is not None for values in times.values() for value in values):
        names = [record["workload"] for result in results for record in result.records if "summary" in record]
        figure = bars(names, times, "times as long as jaxfl", xlabel="", never="not measured")
        write_picture(figure, out / BARS_PICTURE, dpi=110, command=COMMAND)
        blocks.append(page.Picture(BARS_PICTURE, "how many times as long the peers take"))
    for result in results:
        blocks += [page.Heading(2, f"{result.name}: {WORKLOADS[result.name]}"), page.Listing(result.text)]
        blocks += [page.Text(f"Failed: {result.error}")] if result.error else []
        blocks += [page.Table(["made by"], [[page.Code(result.command)]])]
    write_text(out / PAGE, page.html("jaxfl's workloads", blocks, out, COMMAND))


def peer_ratios(results: Sequence[Any]) -> dict[str, list[float | None]]:
    """Returns the time of each peer relative to jaxfl, for each comparison; None where it was not measured."""
    ratios = [record["ratio"] for result in results for record in result.records if "summary" in record]
    names = list(dict.fromkeys(name for ratio in ratios for name in ratio))
    return {name: [ratio[name]["median"] if name in ratio else None for ratio in ratios] for name in names}


def _peers_phrase(names: Sequence[str]) -> str:
    """Returns the libraries that are measured, as a phrase."""
    return f"jaxfl beside {', '.join(names)}" if names else "jaxfl alone"
