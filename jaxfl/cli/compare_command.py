"""What `jaxfl compare` does: reads runs, prints them side by side, and writes the table and a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxfl.analysis import kept
from jaxfl.analysis.comparison import Comparison, compare
from jaxfl.cli import compare_page
from jaxfl.cli.tables.console import show, stderr, stdout
from jaxfl.files import write_text
from jaxfl.plots.curves import curves

PICTURES = (".png", ".pdf", ".svg")  # endings of their files


def compare_runs(
    folders: Sequence[Path],
    metric: str | None,
    target: float | None,
    files: Mapping[str, Path | None],
    plot: Path | None,
    html: Path | None = None,
    labels: Sequence[str] = (),
    columns: str | None = None,
) -> None:
    """Prints the table of some runs, and writes it, a picture and a page.

    Args:
        folders: of the runs, or above them.
        metric: what is compared; None is the main metric of the task.
        target: as `jaxfl.analysis.comparison.compare` takes it.
        files: the table's, by format: `"markdown"`, `"latex"` and `"csv"`; None writes none.
        plot: the picture's, or None.
        html: the page's, or None.
        labels: `ROW=TEXT`, as `labelled` takes them.
        columns: of the table, `NAME,NAME,...`; None shows all.

    Raises:
        ValueError: a file cannot be written, or is of two of them; or as `jaxfl.analysis.kept.read`, `compare` and
            `labelled`.
    """
    asked: dict[Path, str] = {}
    for option, path in {**files, "plot": plot, "html": html}.items():
        if path is None:
            continue
        if path.is_dir():
            raise ValueError(f"--{option} must be a file, got the folder {str(path)!r}; name a file in it.")
        if not path.parent.is_dir():
            raise ValueError(
                f"--{option} must be a file in a folder that is there, got {str(path)!r}; make the folder."
            )
        if (other := asked.setdefault(path.resolve(), option)) != option:
            raise ValueError(f"--{option} must be another file than --{other}, got {str(path)!r}; rename one of them.")
    if plot is not None and plot.suffix.lower() not in PICTURES:
        raise ValueError(f"--plot must end with {', '.join(PICTURES)}, got {str(plot)!r}; write --plot curves.png.")
    found = tell(folders, metric, target, html, labels, columns)
    texts = {"markdown": found.to_markdown, "latex": found.to_latex, "csv": found.to_csv}
    for form, path in files.items():
        if path is not None:
            write_text(path, texts[form]())
    if plot is not None:
        curves(found).savefig(plot, dpi=150)
    if written := [str(path) for path in (*files.values(), plot, html) if path is not None]:
        print(f"written: {', '.join(written)}")


def tell(
    folders: Sequence[Path],
    metric: str | None = None,
    target: float | None = None,
    html: Path | None = None,
    labels: Sequence[str] = (),
    columns: str | None = None,
) -> Comparison:
    """Prints the table of the finished runs in some folders, writes a page of them if asked, returns the comparison."""
    settings, unfinished = kept.read(folders)
    settings = dict(zip(labelled(list(settings), labels), settings.values(), strict=True))
    shown = None if columns is None else [name.strip().lower() for name in columns.split(",") if name.strip()]
    found = compare(settings, metric=metric, target=target, columns=shown)
    header, *rows = found.table()
    show(stdout(), header, rows, named=True)
    if html is not None:
        compare_page.write(settings, found, unfinished, html)
    if unfinished:
        left_out = ", ".join(map(str, unfinished))
        stderr().print(f"note: left out, since they are not finished: {left_out}.", markup=False, soft_wrap=True)
    return found


def labelled(rows: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Returns what some rows are called.

    Args:
        rows: their names: the method, and what tells it from the others.
        labels: `ROW=TEXT`: of one row, or `METHOD=TEXT` of a method in all its rows. A row's own wins.

    Raises:
        ValueError: a label is of no row or method, or empty, or two rows would be called the same.

    >>> labelled(["fedavg", "ifca num_clusters=2", "ifca num_clusters=4"], ["ifca=IFCA", "ifca num_clusters=4=Best"])
    ['fedavg', 'IFCA num_clusters=2', 'Best']
    """
    methods = {row: row.partition(" ")[0] for row in rows}
    known = sorted({*methods, *methods.values()}, key=len, reverse=True)  # a row's name may begin with another's
    texts: dict[str, str] = {}
    for label in labels:
        name = next((name for name in known if label.startswith(f"{name}=")), None)
        if name is None or not (text := label.removeprefix(f"{name}=").strip()):
            ways = ", ".join(map(repr, rows))
            raise ValueError(f"--label must be ROW=TEXT, got {label!r}; ROW is one of {ways}, or one's method alone.")
        texts[name] = text
    called = [texts.get(row, texts.get(method, method) + row.removeprefix(method)) for row, method in methods.items()]
    if twice := {name for name in called if called.count(name) > 1}:
        raise ValueError(f"--label must tell rows apart, got {sorted(twice)[0]!r} for several; write a label for each.")
    return called
