"""Comparison of settings: means over seeds, paired differences, and the cost of reaching a target.

Differences are between runs of the same seed, which have the same clients, initial models and cohorts. Their mean is
tested by Student's paired t-test; with few seeds it detects large effects only, and a p-value is of one comparison.
"""

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from jaxfl.schema import checked
from jaxfl.simulation.evaluation.metrics import is_lower_better, main_metric
from jaxfl.simulation.records.history import History

if TYPE_CHECKING:
    import pandas

PLUS_MINUS, MINUS = "\N{PLUS-MINUS SIGN}", "\N{MINUS SIGN}"
SIGNS = str.maketrans(
    {
        **{sign: rf"\{sign}" for sign in "&%_#${}"},
        **{"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}", "<": "$<$", ">": "$>$", "|": "$|$"},
        **{PLUS_MINUS: r"$\pm$", MINUS: "$-$"},
    }
)


def latex_cell(cell: str) -> str:
    r"""Returns a cell in LaTeX; `<b>...</b>` becomes bold.

    >>> print(latex_cell("layers=^Conv_{0} 5 %"), latex_cell("<b>1</b>"))
    layers=\^{}Conv\_\{0\} 5 \% \textbf{1}
    """
    bold, cell = cell.startswith("<b>"), cell.removeprefix("<b>").removesuffix("</b>").translate(SIGNS)
    return rf"\textbf{{{cell}}}" if bold else cell


def mean_cell(values: Sequence[float] | None, digits: int, *, spread: bool = False) -> str:
    """Returns the mean of values as text, with the standard deviation if `spread`; a rounded 0 has no sign.

    >>> mean_cell([-1e-9, 1e-10], 3)
    '0.000'
    """
    if not values:
        return "-"
    std = deviation(values) if spread else None
    return f"{statistics.fmean(values):z.{digits}f}{'' if std is None else f' {PLUS_MINUS} {std:.{digits}f}'}"


def deviation(values: Sequence[float]) -> float | None:
    """Returns the standard deviation of a sample (n - 1); None for one number, or where a number is not finite.

    >>> deviation([1.0, 3.0]), deviation([1.0]), deviation([1.0, math.inf])
    (1.4142135623730951, None, None)
    """
    return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None


class ComparedRun(Protocol):
    """The fields of a `jaxfl.Result`, or of a loaded run, that are compared."""

    @property
    def history(self) -> History:
        """The records of all evaluations."""
        ...

    @property
    def summary(self) -> dict[str, Any]:
        """The entries of `summary.json`."""
        ...


class Difference(NamedTuple):
    """Difference of two settings over their common seeds."""

    mean: float
    std: float | None  # of a sample; None for one seed
    p: float | None  # of the paired t-test; None for one seed, or where all differences are equal
    seeds: int


def paired(pairs: Sequence[tuple[float, float]], digits: int | None = None) -> Difference | None:
    """Returns the mean difference of pairs, with Student's paired t-test; None without pairs.

    Args:
        pairs: two numbers for each seed.
        digits: significant digits that the numbers were rounded to; None if they were not rounded.

    >>> found = paired([(2.0, 1.0), (4.0, 2.0), (6.0, 3.0)])
    >>> found.mean, found.std, round(found.p, 3), found.seeds
    (2.0, 1.0, 0.074, 3)
    """
    from scipy import stats

    if not pairs:
        return None
    differences = [one - other for one, other in pairs]
    std = deviation(differences)
    mean, count = statistics.fmean(differences), len(differences)
    # 0.82 - 0.80 and 0.92 - 0.90 are equal up to rounding
    share = 4 * sys.float_info.epsilon if digits is None else 10.0 ** (1 - digits)  # one unit of the last digit
    rounding = share * max(abs(value) for pair in pairs for value in pair)
    p = float(2 * stats.t.sf(abs(mean) * math.sqrt(count) / std, count - 1)) if std and std > rounding else None
    return Difference(mean, std, p, count)


class Line(NamedTuple):
    """A setting, a row of the table.

    Attributes:
        name: of the row.
        runs: by seed.
    """

    name: str
    runs: dict[int, ComparedRun]

    def values(self, measure: str) -> list[float]:
        """Returns an entry of the summaries for each run, NaN where it is not finite; empty where no run has it.

        Where no summary has it, the last value in the histories is taken, as for `train_loss`.
        """
        found = [run.summary.get(measure) for run in self.runs.values()]
        if all(value is None for value in found):
            return [*self.last(measure).values()]
        return [math.nan if value is None else float(value) for value in found]  # null in JSON is not finite

    def last(self, metric: str) -> dict[int, float]:
        """Returns the last value of a metric in the summaries or the histories, by seed, for the runs that have it.

        It is NaN where it is not finite, so that a diverged run counts in a difference. Empty where no value is finite.
        """
        found = {}
        for seed, run in self.runs.items():
            values = [one[metric] for one in (run.summary, *reversed(list(run.history))) if metric in one]
            if values:
                found[seed] = math.nan if values[0] is None else values[0]
        return {} if all(math.isnan(value) for value in found.values()) else found

    def reached(self, metric: str, target: float, columns: Sequence[str], *, lower: bool = False) -> list[float] | None:
        """Returns the sum of some columns of the history where each run reaches the target; None if one never does."""
        found = []
        for run in self.runs.values():
            known = [one for one in run.history if one.get(metric) is not None]
            records = [one for one in known if (one[metric] <= target if lower else one[metric] >= target)]
            if not records:
                return None
            found.append(float(sum(records[0][name] for name in columns)))
        return found


# title: entry of the summary, factor, digits; METRICS are followed by the name of the task's main metric
METRIC_COLUMNS = {
    "micro": "micro",
    "macro": "macro",
    "tuned": "finetuned_micro",
    "worst 10 %": "worst_decile",
}
SUMMARY_COLUMNS = {
    "clusters": ("num_clusters", 1, 1),
    "ARI": ("ari", 1, 3),
    "s a round": ("seconds_per_round", 1, 3),
}
SPREAD_COLUMNS = tuple(METRIC_COLUMNS)  # columns with the standard deviation
BEST_COLUMNS = (*SPREAD_COLUMNS, "ARI")  # columns in which the best mean is marked
PERCENT_METRICS = ("accuracy", "f1")  # metrics that are shown in percent
COST_COLUMNS = {"rounds": ("round",), "bytes": ("bytes_up", "bytes_down")}  # columns of the history, summed
COLUMN_NAMES = {
    "worst 10 %": "worst",
    "s a round": "seconds",
}  # names of these in `columns`; the others have their titles in lower case


class Comparison(NamedTuple):
    """Several settings side by side.

    Attributes:
        lines: the settings; differences are from the first one.
        metric: that is compared, an entry of histories and summaries.
        target: value of the metric up to which cost is counted; None counts none.
        lower: names of metrics that are better when lower.
        columns: of `table`, in order; None shows all.
    """

    lines: list[Line]
    metric: str
    target: float | None
    lower: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None

    def difference(self, line: Line) -> Difference | None:
        """Returns the difference of a line's metric from that of the first line; None without a common seed."""
        own, other = line.last(self.metric), self.lines[0].last(self.metric)
        return paired([(own[seed], other[seed]) for seed in own if seed in other])

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns a row for each setting, with mean and standard deviation of the columns of `table` as numbers."""
        import pandas

        rows = []
        for line in self.lines:
            row: dict[str, Any] = {"setting": line.name, "seeds": len(line.runs)}
            for measure, _, _ in self._measures().values():
                row |= _mean_and_std(measure, line.values(measure))
            if self.target is not None:
                for name, columns in COST_COLUMNS.items():
                    cost = self._reached(line, columns)
                    row |= _mean_and_std(f"{name} to {self.target:g}", cost or [])
            found = None if line is self.lines[0] else self.difference(line)
            numbers = Difference(math.nan, None, None, 0) if found is None else found
            row |= {f"difference {name}": value for name, value in numbers._asdict().items()}
            rows.append(row)
        return pandas.DataFrame(rows)

    def table(self, bold: str = "{}") -> list[list[str]]:
        """Returns the table as text: a header, and a row for each setting. Accuracies are in percent.

        Macro accuracy is left out where it equals micro accuracy, as with equally many test rows on all clients.

        Args:
            bold: format of the best mean of a column, such as `"**{}**"`.
        """
        measures = self._measures()
        both = [[line.values(f"{kind}_{self._main()}") for kind in ("macro", "micro")] for line in self.lines]
        alike = all(len(one) == len(other) and all(map(math.isclose, one, other)) for one, other in both)
        if self.columns is None and alike:
            measures.pop("macro", None)
        header = ["setting", "seeds", *measures]
        sent = [self._reached(line, COST_COLUMNS["bytes"]) for line in self.lines]
        unit, size = ("GB", 1e9) if max((max(one) for one in sent if one), default=0.0) >= 1e8 else ("MB", 1e6)
        if self.target is not None:
            of = "" if self._title() == "micro" else f" of {self._title()}"
            header += [f"rounds to {self._format_value(self.target)}{of}", f"{unit} until then"]
        header += [f"{self._title()} {MINUS} {self.lines[0].name}", "p"] if len(self.lines) > 1 else []
        best = {title: self._best(how[0]) for title, how in measures.items() if title in (*BEST_COLUMNS, self.metric)}
        several = any(len(line.runs) > 1 for line in self.lines)
        rows = []
        for line, until in zip(self.lines, sent, strict=True):
            row = [line.name, str(len(line.runs))]
            for title, (measure, factor, digits) in measures.items():
                values = line.values(measure)
                text = mean_cell(
                    [factor * value for value in values], digits, spread=title in (*SPREAD_COLUMNS, self.metric)
                )
                marked = len(self.lines) > 1 and values and statistics.fmean(values) == best.get(title)
                row.append(bold.format(text) if marked else text)
            if self.target is not None:
                row.append(mean_cell(self._reached(line, COST_COLUMNS["rounds"]), int(several)))
                row.append(mean_cell(None if until is None else [one / size for one in until], 2))
            if len(self.lines) > 1:
                row += ["", ""] if line is self.lines[0] else self._difference_cells(line)
            rows.append(row)
        if self.columns is None:
            return [header, *rows]
        places = [0, *(1 + self.available_columns().index(name) for name in self.columns)]
        return [[row[place] for place in places] for row in (header, *rows)]

    def available_columns(self) -> list[str]:
        """Returns the names that `columns` may have: all columns after the name of the setting, in order."""
        costs = [] if self.target is None else [*COST_COLUMNS]
        apart = ["difference", "p"] if len(self.lines) > 1 else []
        return ["seeds", *(COLUMN_NAMES.get(title, title.lower()) for title in self._measures()), *costs, *apart]

    def measures(self) -> list[str]:
        """Returns the entries of the summaries that are columns of `table`."""
        return [measure for measure, _, _ in self._measures().values()]

    def to_csv(self) -> str:
        """Returns the numbers of `to_pandas` as CSV."""
        return self.to_pandas().to_csv(index=False)

    def to_markdown(self) -> str:
        """Returns the table in Markdown."""
        header, *rows = self.table(bold="**{}**")
        rule = ["---", *["---:"] * (len(header) - 1)]
        cells = ([text.replace("|", "\\|") for text in row] for row in (header, rule, *rows))
        return "".join(f"| {' | '.join(row)} |\n" for row in cells)

    def to_latex(self) -> str:
        r"""Returns the table in LaTeX: a `tabular` that needs the package booktabs."""
        header, *rows = ([latex_cell(text) for text in row] for row in self.table(bold="<b>{}</b>"))
        body = [r"\midrule", *(f"{' & '.join(row)} \\\\" for row in rows)]
        lines = [rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}", r"\toprule", f"{' & '.join(header)} \\\\", *body]
        return "\n".join(["% needs \\usepackage{booktabs}", *lines, r"\bottomrule", r"\end{tabular}", ""])

    def _reached(self, line: Line, columns: Sequence[str]) -> list[float] | None:
        """Returns the cost of reaching the target for each run of a line; None if a run does not reach it."""
        if self.target is None:
            return None
        return line.reached(self.metric, self.target, columns, lower=is_lower_better(self.metric, self.lower))

    def _main(self) -> str:
        """Returns the main metric of the first run."""
        return main_metric(next(iter(self.lines[0].runs.values())).summary)

    def _measures(self) -> dict[str, tuple[str, int, int]]:
        """Returns entry, factor and digits of the columns for which some run has a value, by title."""
        main = self._main()
        factor, digits = (100, 2) if main.endswith(PERCENT_METRICS) else (1, 4)
        measures = {
            title: (f"{name}_{main}", factor, digits) for title, name in METRIC_COLUMNS.items()
        } | SUMMARY_COLUMNS
        if self.metric not in [*COST_COLUMNS["bytes"], *(how[0] for how in measures.values())]:
            measures = {self.metric: (self.metric, self._factor(), 2 if self._factor() == 100 else 4)} | measures
        return {title: how for title, how in measures.items() if any(line.values(how[0]) for line in self.lines)}

    def _best(self, measure: str) -> float:
        """Returns the best mean of an entry over all lines."""
        best = min if is_lower_better(measure, self.lower) else max
        means = [statistics.fmean(values) for line in self.lines if (values := line.values(measure))]
        return best((one for one in means if not math.isnan(one)), default=math.nan)

    def _factor(self) -> int:
        """Returns the factor of the compared metric: 100 if it is shown in percent."""
        return 100 if self.metric.endswith(PERCENT_METRICS) else 1

    def _title(self) -> str:
        """Returns the title of the compared metric in the table."""
        return next((title for title, how in self._measures().items() if how[0] == self.metric), self.metric)

    def _format_value(self, value: float) -> str:
        """Returns a value of the compared metric as text."""
        return f"{100 * value:g} %" if self._factor() == 100 else f"{value:g}"

    def _difference_cells(self, line: Line) -> list[str]:
        """Returns the difference of a line and its p-value as the text of two cells."""
        found = self.difference(line)
        if found is None:
            return ["" if set(line.runs) & set(self.lines[0].runs) else "no common seed", ""]
        factor = self._factor()
        digits = 2 if factor == 100 else 4
        spread = "" if found.std is None else f" {PLUS_MINUS} {factor * found.std:.{digits}f}"
        mean = f"{factor * found.mean:+z.{digits}f}".replace("-", MINUS)
        return [f"{mean}{spread}", "" if found.p is None else f"{found.p:.2g}"]


@checked
def compare(
    settings: Mapping[str, Sequence[ComparedRun]],
    *,
    metric: str | None = None,
    target: float | None = None,
    columns: Sequence[str] | None = None,
) -> Comparison:
    """Returns the comparison of settings.

    Args:
        settings: the runs of each setting by name, one for each seed: `jaxfl.Result`s, or of `finished.read_runs`.
        metric: the entry of the histories that is compared; None takes the main metric of the first run's task, such as
            `micro_accuracy`.
        target: value of the metric up to which rounds and bytes are counted; None takes the largest whole percent that
            every run reaches (where lower is better, the lowest number of two digits).
        columns: of the tables, in order, such as `("micro", "ari")`; None shows all.

    Raises:
        ValueError: there is no run, two runs of a setting have the same seed, or no run has the metric or a column.

    >>> from jaxfl.simulation.records.history import History
    >>> class ExampleRun(NamedTuple):
    ...     history: History
    ...     summary: dict
    >>> def example(seed, accuracy):
    ...     history = History()
    ...     history.append({"round": 5, "micro_accuracy": accuracy, "bytes_up": 1e9, "bytes_down": 1e9})
    ...     return ExampleRun(history, {"seed": seed, "micro_accuracy": accuracy})
    >>> runs = {"fedavg": [example(0, 0.80), example(1, 0.82)], "stocfl": [example(0, 0.90), example(1, 0.94)]}
    >>> found = compare(runs)
    >>> found.target, found.table()[2][:3]
    (0.8, ['stocfl', '2', '92.00 ± 2.83'])
    """
    lines = []
    for name, runs in settings.items():
        if hasattr(runs, "summary"):
            raise TypeError(f"settings must have a list of runs for {name!r}, got one run; give [result].")
        if any(run.summary is None for run in runs):
            raise ValueError(
                f"settings must have runs with a summary, got one for {name!r} without; give the results of jaxfl.run."
            )
        by_seed = {run.summary["seed"]: run for run in runs}
        if len(by_seed) < len(runs) or not runs:
            raise ValueError(
                f"settings must have runs of different seeds, got {[run.summary['seed'] for run in runs]} for "
                f"{name!r}; give each setting a name of its own."
            )
        lines.append(Line(name, by_seed))
    if target is not None and not math.isfinite(target):
        raise ValueError(f"target must be a finite number, got {target}; None takes a value that every run reaches.")
    runs = [run for line in lines for run in line.runs.values()]
    if not runs:
        raise ValueError("settings must have a run, got none.")
    metric = f"micro_{main_metric(runs[0].summary)}" if metric is None else metric
    names = tuple(sorted({name for run in runs for name in run.summary.get("lower_is_better", ())}))
    lower = is_lower_better(metric, names)
    if target is not None and metric.endswith(PERCENT_METRICS) and not 0 <= target <= 1:
        raise ValueError(f"target must be a share of 1 for {metric}, got {target:g}; 0.85 is 85 %.")
    best = min if lower else max
    reached = [
        best((value for one in run.history if isinstance(value := one.get(metric), int | float)), default=None)
        for run in runs
    ]
    known = [value for value in reached if value is not None]
    if not known:
        records = [one for run in runs for one in run.history]
        numbers = sorted({name for one in records for name, value in one.items() if isinstance(value, int | float)})
        raise ValueError(f"metric must be an entry of the histories, got {metric!r}; they have {', '.join(numbers)}.")
    if target is None and len(known) == len(reached) and 0 < min(known) and max(known) < math.inf:
        target = _rounded_up(max(known)) if lower else _whole_percent(min(known))
    found = Comparison(lines, metric, target, names, None if columns is None else tuple(columns))
    there = found.available_columns()
    if columns is not None and (not columns or not set(columns) <= set(there)):
        raise ValueError(f"columns must be some of {', '.join(there)}, got {', '.join(columns) or 'none'}.")
    return found


def _whole_percent(value: float) -> float:
    """Returns a share rounded down to a whole percent.

    >>> _whole_percent(0.29), _whole_percent(0.2899)  # 100 * 0.29 is 28.999999999999996
    (0.29, 0.28)
    """
    nearest = round(100 * value) / 100
    return nearest if nearest <= value else math.floor(100 * value) / 100


def _rounded_up(value: float) -> float:
    """Returns a positive number rounded up to two significant digits.

    >>> _rounded_up(0.04512), _rounded_up(120.0)
    (0.046, 120.0)
    """
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / step - 1e-9) * step:.2g}")


def _mean_and_std(name: str, values: Sequence[float]) -> dict[str, float]:
    """Returns mean and standard deviation of a sample by column name, NaN where undefined."""
    return {
        f"{name} mean": statistics.fmean(values) if values else math.nan,
        f"{name} std": math.nan if (std := deviation(values)) is None else std,
    }
