"""Settings beside each other: what each comes to over its seeds, and how far one is from another.

Differences are paired: of two runs of one seed, which have the same clients, initial models and cohorts. Their mean is
tested by Student's paired t-test; with few seeds it finds large effects only, and a p-value is of one comparison.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxfl.schema import checked
from jaxfl.simulation.evaluation.metrics import is_lower_better, main_metric

if TYPE_CHECKING:
    import pandas


import sys
from typing import Protocol

from jaxfl.simulation.records.history import History

PLUS_MINUS, MINUS = "\N{PLUS-MINUS SIGN}", "\N{MINUS SIGN}"
SIGNS = str.maketrans(
    {
        **{sign: rf"\{sign}" for sign in "&%_#${}"},
        **{"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}", "<": "$<$", ">": "$>$", "|": "$|$"},
        **{PLUS_MINUS: r"$\pm$", MINUS: "$-$"},
    }
)


def tex(cell: str) -> str:
    r"""Returns a cell, which may be bold: `<b>...</b>`.

    >>> print(tex("layers=^Conv_{0} 5 %"), tex("<b>1</b>"))
    layers=\^{}Conv\_\{0\} 5 \% \textbf{1}
    """
    bold, cell = cell.startswith("<b>"), cell.removeprefix("<b>").removesuffix("</b>").translate(SIGNS)
    return rf"\textbf{{{cell}}}" if bold else cell


def cell(values: Sequence[float] | None, digits: int, *, spread: bool = False) -> str:
    """Returns a mean, with the deviation if it is wanted; a score that is as good as 0 has no sign.

    >>> cell([-1e-9, 1e-10], 3)
    '0.000'
    """
    if not values:
        return "-"
    std = deviation(values) if spread else None
    return f"{statistics.fmean(values):z.{digits}f}{'' if std is None else f' {PLUS_MINUS} {std:.{digits}f}'}"


def deviation(values: Sequence[float]) -> float | None:
    """Returns the standard deviation of a sample (n - 1); None of one number, or where one of them is not finite.

    >>> deviation([1.0, 3.0]), deviation([1.0]), deviation([1.0, math.inf])
    (1.4142135623730951, None, None)
    """
    return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None


class Run(Protocol):
    """What a comparison needs of a `jaxfl.Result`, or of a run that was kept."""

    @property
    def history(self) -> History:
        """The records."""
        ...

    @property
    def summary(self) -> dict[str, Any]:
        """What came of it."""
        ...


class Difference(NamedTuple):
    """How far two settings are from each other, over the seeds that both have."""

    mean: float
    std: float | None  # of a sample; None for one seed
    p: float | None  # of the paired t-test; None for one seed, or where all differences are equal
    seeds: int


def paired(pairs: Sequence[tuple[float, float]], digits: int | None = None) -> Difference | None:
    """Returns how far the first of each pair is ahead of the second, and Student's paired t-test; None of no pairs.

    Args:
        pairs: two numbers of each seed.
        digits: decimal ones that the numbers were rounded to; None: to none.

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
    # 0.82 - 0.80 and 0.92 - 0.90 are equal but for rounding
    share = 4 * sys.float_info.epsilon if digits is None else 10.0 ** (1 - digits)  # one of the last digit
    rounding = share * max(abs(value) for pair in pairs for value in pair)
    p = float(2 * stats.t.sf(abs(mean) * math.sqrt(count) / std, count - 1)) if std and std > rounding else None
    return Difference(mean, std, p, count)


class Line(NamedTuple):
    """A setting.

    Attributes:
        name: what the table calls it.
        runs: by seed.
    """

    name: str
    runs: dict[int, Run]

    def values(self, measure: str) -> list[float]:
        """Returns an entry of the summaries, NaN of runs whose own is not finite; empty where none has it.

        Where no summary has it, it is what stands last in the histories, as `train_loss`.
        """
        found = [run.summary.get(measure) for run in self.runs.values()]
        if all(value is None for value in found):
            return [*self.last(measure).values()]
        return [math.nan if value is None else float(value) for value in found]  # as JSON says what is not finite

    def last(self, metric: str) -> dict[int, float]:
        """Returns what a number of the summaries or the histories is in the end, by seed, of the runs that have it.

        NaN where it is not finite: a run that has diverged must not leave a difference to the seeds that have not.
        Empty where none is, as `values`.
        """
        found = {}
        for seed, run in self.runs.items():
            told = [one[metric] for one in (run.summary, *reversed(list(run.history))) if metric in one]
            if told:
                found[seed] = math.nan if told[0] is None else told[0]
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
METRICS = {
    "micro": "micro",
    "macro": "macro",
    "tuned": "finetuned_micro",
    "worst 10 %": "worst_decile",
}
MEASURES = {
    "clusters": ("num_clusters", 1, 1),
    "ARI": ("ari", 1, 3),
    "s a round": ("seconds_per_round", 1, 3),
}
SPREAD = tuple(METRICS)  # columns that tell the deviation
BEST = (*SPREAD, "ARI")  # columns in which the best mean is marked
PERCENT = ("accuracy", "f1")  # metrics that are told in percent
COSTS = {"rounds": ("round",), "bytes": ("bytes_up", "bytes_down")}  # columns of the history, summed
WORDS = {"worst 10 %": "worst", "s a round": "seconds"}  # what `columns` calls these; the others by their titles


class Comparison(NamedTuple):
    """Several settings.

    Attributes:
        lines: the settings; the others are compared with the first one.
        metric: by which they are compared, of the history and the summary.
        target: a value of it.
        lower: names of metrics that are better where they are lower.
        columns: what `table` shows of each setting, in this order; None is everything.
    """

    lines: list[Line]
    metric: str
    target: float | None
    lower: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None

    def difference(self, line: Line) -> Difference | None:
        """Returns how far the metric of a line is from that of the first one; None where they share no seed."""
        own, other = line.last(self.metric), self.lines[0].last(self.metric)
        return paired([(own[seed], other[seed]) for seed in own if seed in other])

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns a row per setting, with the mean and the deviation of everything that `table` shows, as numbers."""
        import pandas

        rows = []
        for line in self.lines:
            row: dict[str, Any] = {"setting": line.name, "seeds": len(line.runs)}
            for measure, _, _ in self._measures().values():
                row |= _moments(measure, line.values(measure))
            if self.target is not None:
                for name, columns in COSTS.items():
                    cost = self._reached(line, columns)
                    row |= _moments(f"{name} to {self.target:g}", cost or [])
            found = None if line is self.lines[0] else self.difference(line)
            told = Difference(math.nan, None, None, 0) if found is None else found
            row |= {f"difference {name}": value for name, value in told._asdict().items()}
            rows.append(row)
        return pandas.DataFrame(rows)

    def table(self, bold: str = "{}") -> list[list[str]]:
        """Returns the table as text: a header, and a row per setting. Accuracies and differences are in percent.

        Macro accuracy is left out where it is the micro accuracy, as with clients of equally many test rows.

        Args:
            bold: how the best mean of a column is marked, such as `"**{}**"`.
        """
        measures = self._measures()
        both = [[line.values(f"{kind}_{self._main()}") for kind in ("macro", "micro")] for line in self.lines]
        alike = all(len(one) == len(other) and all(map(math.isclose, one, other)) for one, other in both)
        if self.columns is None and alike:
            measures.pop("macro", None)
        header = ["setting", "seeds", *measures]
        sent = [self._reached(line, COSTS["bytes"]) for line in self.lines]
        unit, size = ("GB", 1e9) if max((max(one) for one in sent if one), default=0.0) >= 1e8 else ("MB", 1e6)
        if self.target is not None:
            of = "" if self._title() == "micro" else f" of {self._title()}"
            header += [f"rounds to {self._in_words(self.target)}{of}", f"{unit} until then"]
        header += [f"{self._title()} {MINUS} {self.lines[0].name}", "p"] if len(self.lines) > 1 else []
        best = {title: self._best(how[0]) for title, how in measures.items() if title in (*BEST, self.metric)}
        several = any(len(line.runs) > 1 for line in self.lines)
        rows = []
        for line, until in zip(self.lines, sent, strict=True):
            row = [line.name, str(len(line.runs))]
            for title, (measure, factor, digits) in measures.items():
                values = line.values(measure)
                text = cell([factor * value for value in values], digits, spread=title in (*SPREAD, self.metric))
                marked = len(self.lines) > 1 and values and statistics.fmean(values) == best.get(title)
                row.append(bold.format(text) if marked else text)
            if self.target is not None:
                row.append(cell(self._reached(line, COSTS["rounds"]), int(several)))
                row.append(cell(None if until is None else [one / size for one in until], 2))
            if len(self.lines) > 1:
                row += ["", ""] if line is self.lines[0] else self._told(line)
            rows.append(row)
        if self.columns is None:
            return [header, *rows]
        places = [0, *(1 + self.columns_there().index(name) for name in self.columns)]
        return [[row[place] for place in places] for row in (header, *rows)]

    def columns_there(self) -> list[str]:
        """Returns what `columns` may name: what stands behind the setting where all of it is shown."""
        costs = [] if self.target is None else [*COSTS]
        apart = ["difference", "p"] if len(self.lines) > 1 else []
        return ["seeds", *(WORDS.get(title, title.lower()) for title in self._measures()), *costs, *apart]

    def measures(self) -> list[str]:
        """Returns the entries of the summaries that `table` has columns of."""
        return [measure for measure, _, _ in self._measures().values()]

    def to_csv(self) -> str:
        """Returns the numbers of `to_pandas`."""
        return self.to_pandas().to_csv(index=False)

    def to_markdown(self) -> str:
        """Returns the table for a README."""
        header, *rows = self.table(bold="**{}**")
        rule = ["---", *["---:"] * (len(header) - 1)]
        cells = ([text.replace("|", "\\|") for text in row] for row in (header, rule, *rows))
        return "".join(f"| {' | '.join(row)} |\n" for row in cells)

    def to_latex(self) -> str:
        r"""Returns the table for a paper, a `tabular` that needs the package booktabs."""
        header, *rows = ([tex(text) for text in row] for row in self.table(bold="<b>{}</b>"))
        body = [r"\midrule", *(f"{' & '.join(row)} \\\\" for row in rows)]
        lines = [rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}", r"\toprule", f"{' & '.join(header)} \\\\", *body]
        return "\n".join(["% needs \\usepackage{booktabs}", *lines, r"\bottomrule", r"\end{tabular}", ""])

    def _reached(self, line: Line, columns: Sequence[str]) -> list[float] | None:
        """Returns what it costs a line to reach the target."""
        if self.target is None:
            return None
        return line.reached(self.metric, self.target, columns, lower=is_lower_better(self.metric, self.lower))

    def _main(self) -> str:
        """Returns the main metric of the first run."""
        return main_metric(next(iter(self.lines[0].runs.values())).summary)

    def _measures(self) -> dict[str, tuple[str, int, int]]:
        """Returns the columns that some run has something for."""
        main = self._main()
        factor, digits = (100, 2) if main.endswith(PERCENT) else (1, 4)
        measures = {title: (f"{name}_{main}", factor, digits) for title, name in METRICS.items()} | MEASURES
        if self.metric not in [*COSTS["bytes"], *(how[0] for how in measures.values())]:
            measures = {self.metric: (self.metric, self._factor(), 2 if self._factor() == 100 else 4)} | measures
        return {title: how for title, how in measures.items() if any(line.values(how[0]) for line in self.lines)}

    def _best(self, measure: str) -> float:
        best = min if is_lower_better(measure, self.lower) else max
        means = [statistics.fmean(values) for line in self.lines if (values := line.values(measure))]
        return best((one for one in means if not math.isnan(one)), default=math.nan)

    def _factor(self) -> int:
        return 100 if self.metric.endswith(PERCENT) else 1

    def _title(self) -> str:
        """Returns what the table calls the metric."""
        return next((title for title, how in self._measures().items() if how[0] == self.metric), self.metric)

    def _in_words(self, value: float) -> str:
        return f"{100 * value:g} %" if self._factor() == 100 else f"{value:g}"

    def _told(self, line: Line) -> list[str]:
        """Returns the difference of a line and its p-value as cells."""
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
    settings: Mapping[str, Sequence[Run]],
    *,
    metric: str | None = None,
    target: float | None = None,
    columns: Sequence[str] | None = None,
) -> Comparison:
    """Sets runs beside each other.

    Args:
        settings: by name, the runs of one setting, each of another seed: `jaxfl.Result`s, or what `kept.read` returns.
        metric: an entry of the histories; by it settings are compared. None takes `micro_accuracy`, or what the task's
            main metric is, of the first run.
        target: its value that counts rounds and bytes until it is first reached; None takes the largest whole percent
            that every run reaches (of two digits, the lowest, where lower is better).
        columns: of the tables, in this order, such as `("micro", "ari")`; None shows all that there are.

    Raises:
        ValueError: there is no run, two of a setting have one seed, or no run has the metric or a column.

    >>> from jaxfl.simulation.records.history import History
    >>> class Made(NamedTuple):
    ...     history: History
    ...     summary: dict
    >>> def made(seed, accuracy):
    ...     history = History()
    ...     history.append({"round": 5, "micro_accuracy": accuracy, "bytes_up": 1e9, "bytes_down": 1e9})
    ...     return Made(history, {"seed": seed, "micro_accuracy": accuracy})
    >>> found = compare({"fedavg": [made(0, 0.80), made(1, 0.82)], "stocfl": [made(0, 0.90), made(1, 0.94)]})
    >>> found.target, found.table()[2][:3]
    (0.8, ['stocfl', '2', '92.00 ± 2.83'])
    """
    lines = []
    for name, runs in settings.items():
        if hasattr(runs, "summary"):
            raise TypeError(f"settings must have a list of runs for {name!r}, got one run; give [result].")
        if any(run.summary is None for run in runs):
            raise ValueError(
                f"settings must have runs with a summary, got one for {name!r} without, which jaxfl.run has kept; give "
                "the results of jaxfl.run."
            )
        by_seed = {run.summary["seed"]: run for run in runs}
        if len(by_seed) < len(runs) or not runs:
            raise ValueError(
                f"settings must have runs of different seeds, got {[run.summary['seed'] for run in runs]} for "
                f"{name!r}; give each setting a name of its own."
            )
        lines.append(Line(name, by_seed))
    if target is not None and not math.isfinite(target):
        raise ValueError(f"target must be a finite number, got {target}; None takes what every run reaches.")
    runs = [run for line in lines for run in line.runs.values()]
    if not runs:
        raise ValueError("settings must have a run, got none.")
    metric = f"micro_{main_metric(runs[0].summary)}" if metric is None else metric
    names = tuple(sorted({name for run in runs for name in run.summary.get("lower_is_better", ())}))
    lower = is_lower_better(metric, names)
    if target is not None and metric.endswith(PERCENT) and not 0 <= target <= 1:
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
        raise ValueError(f"metric must be one of the histories', got {metric!r}; they have {', '.join(numbers)}.")
    if target is None and len(known) == len(reached) and 0 < min(known) and max(known) < math.inf:
        target = _rounded_up(max(known)) if lower else _whole_percent(min(known))
    found = Comparison(lines, metric, target, names, None if columns is None else tuple(columns))
    there = found.columns_there()
    if columns is not None and (not columns or not set(columns) <= set(there)):
        raise ValueError(f"columns must be some of {', '.join(there)}, got {', '.join(columns) or 'none'}.")
    return found


def _whole_percent(value: float) -> float:
    """Returns the largest whole percent that is not above a number.

    >>> _whole_percent(0.29), _whole_percent(0.2899)  # 100 * 0.29 is 28.999999999999996
    (0.29, 0.28)
    """
    nearest = round(100 * value) / 100
    return nearest if nearest <= value else math.floor(100 * value) / 100


def _rounded_up(value: float) -> float:
    """Returns a number above 0 with two digits, no lower.

    >>> _rounded_up(0.04512), _rounded_up(120.0)
    (0.046, 120.0)
    """
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / step - 1e-9) * step:.2g}")


def _moments(name: str, values: Sequence[float]) -> dict[str, float]:
    """Returns mean and standard deviation of a sample, NaN where there is none."""
    return {
        f"{name} mean": statistics.fmean(values) if values else math.nan,
        f"{name} std": math.nan if (std := deviation(values)) is None else std,
    }
