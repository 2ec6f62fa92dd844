"""Comparison of settings: means over seeds, paired differences, and the cost of reaching a target.

Differences are between runs of the same seed on equal federations (by the `fingerprint` in their summaries), with
equally many rounds and clients in a cohort, of which the same take part, and with the same settings of JAX: these have
the same clients, initial models and cohorts. Their mean is tested by Student's paired t-test and by Wilcoxon's
signed-rank test. With few seeds either detects large effects only: the smallest p of Wilcoxon's test is 0.25 for three
seeds, and 0.0625 for five. Both are of one comparison; Holm's correction adjusts the p of the t-test for all
comparisons of a table.
"""

import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from jaxfl.host.text import BOLD, bold_parts, csv_table, encodable, markdown_cell, printable
from jaxfl.schema import checked
from jaxfl.simulation.evaluation.metrics import CAUSE_PREFIX, NAME, is_lower_better, main_metric
from jaxfl.simulation.records.history import History
from jaxfl.simulation.records.identity import DATA_CHECKSUM, DIGEST, FINGERPRINT, JAX_SETTINGS

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
    r"""Returns a cell in LaTeX; `jaxfl.host.text.BOLD` becomes bold.

    >>> print(latex_cell("layers=^Conv_{0} 5 %"), latex_cell(BOLD.format("1")), latex_cell("[1cm]"))
    layers=\^{}Conv\_\{0\} 5 \% \textbf{1} {}[1cm]
    """
    parts = [(text.translate(SIGNS), is_bold) for text, is_bold in bold_parts(cell)]
    text = "".join(rf"\textbf{{{text}}}" if is_bold else text for text, is_bold in parts)
    return f"{{}}{text}" if text.startswith(("[", "*")) else text  # or it is an argument of the line end before


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
    wilcoxon: float | None = None  # p of the signed-rank test; None where p is


def paired(pairs: Sequence[tuple[float, float]], digits: int | None = None) -> Difference | None:
    """Returns the mean difference of pairs, with Student's paired t-test and Wilcoxon's; None without pairs.

    Args:
        pairs: two numbers for each seed.
        digits: significant digits that the numbers were rounded to; None if they were not rounded.

    >>> found = paired([(2.0, 1.0), (4.0, 2.0), (6.0, 3.0)])
    >>> found.mean, found.std, round(found.p, 3), found.seeds, found.wilcoxon
    (2.0, 1.0, 0.074, 3, 0.25)
    """
    from scipy import stats

    if not pairs:
        return None
    differences = [one - other for one, other in pairs]
    std = deviation(differences)
    mean, count = statistics.fmean(differences), len(differences)
    # 0.82 - 0.80 and 0.92 - 0.90 are equal up to rounding
    share = 4 * sys.float_info.epsilon if digits is None else 10.0 ** (1 - digits)  # one unit of the last digit
    largest = max(abs(value) for pair in pairs for value in pair)
    if not std or std <= share * largest:
        return Difference(mean, std, None, count)
    p = float(2 * stats.t.sf(abs(mean) * math.sqrt(count) / std, count - 1))
    ranked = [round(one / largest, 12 if digits is None else digits) for one in differences]  # so that ties are ties
    # of 13 pairs or fewer all signs are tried, as the tables of the test have it, also where there are ties
    method: Any = stats.PermutationMethod(n_resamples=2**13) if count <= 13 else "auto"
    signed_rank: Any = stats.wilcoxon(ranked, method=method)
    return Difference(mean, std, p, count, float(signed_rank.pvalue))


def holm(found: Sequence[float]) -> list[float]:
    """Returns p-values that are adjusted for how many they are (Holm, Scandinavian Journal of Statistics, 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, highest = [0.0] * len(found), 0.0
    for left, place in zip(range(len(found), 0, -1), sorted(range(len(found)), key=found.__getitem__), strict=True):
        highest = max(highest, min(1.0, left * found[place]))
        adjusted[place] = highest
    return adjusted


# title of a column: entry of the summaries; {} is the task's main metric
METRIC_COLUMNS = {
    "micro": "micro_{}",
    "macro": "macro_{}",
    "tuned": "finetuned_micro_{}",
    "unseen": "unseen_micro_{}",
    "worst 10 %": "worst_decile_{}",
    "area": "area_micro_{}",  # of data that drift, as the next
    "return gain": "return_gain_micro_{}",
}
# entry, digits
SUMMARY_COLUMNS = {
    "clusters": ("num_clusters", 1),
    "ARI": ("ari", 3),
    "silhouette": ("silhouette", 3),
    "Davies-Bouldin": ("davies_bouldin", 3),
    "Wasserstein": ("wasserstein_silhouette", 3),
    "epsilon": ("epsilon", 2),
    "smallest sum": ("smallest_sum", 1),
    "MB up": ("bytes_up", 3),
    "hours": ("seconds_simulated", 3),  # of runs with a clock
    "s a round": ("seconds_per_round", 3),
}
WIRED_ENTRY = "smallest_sum"  # of histories of wired runs alone, in whose table bytes are a column
ASSUMED = "poisson-assumed"  # `sampling` in a summary whose epsilon assumes it
BEST_COLUMNS = (*METRIC_COLUMNS, "ARI")  # columns in which the best mean is marked
PERCENT_METRICS = ("accuracy", "f1")  # metrics that are shown in percent
SCORE_END = " accuracy"  # ends an entry of summaries alone: a score of a whole run, see `jaxfl.protocols.scores`
TUNED = "finetuned_"  # begins the metrics of fine-tuned models
COST_COLUMNS = {"rounds": ("round",), "bytes": ("bytes_up", "bytes_down")}  # columns of the history, summed
TIME_COLUMNS = ("seconds_simulated",)  # likewise, of runs with a clock alone
HOUR = 3600.0  # seconds
BYTE_UNITS = {"bytes": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
COLUMN_NAMES = {
    "smallest sum": "smallest_sum",
    "MB up": "bytes_up",
    "worst 10 %": "worst",
    "return gain": "return_gain",
    "s a round": "seconds",
}  # names of these in `columns`; the others have their titles in lower case
# Entries of a summary, and what they are called: rows that differ in one have other budgets or cohorts.
BUDGET = {"rounds_asked": "rounds", "cohort": "cohort", "eval_clients": "eval_clients", "sampler": "sampler"}
# Options of a run from which its sampler follows, and their usual values.
PARTICIPATION = {
    "run.dropouts": 0.0,
    "run.sampler": "uniform",
    "run.availability": "always",
    "run.availability_period": 24.0,
}


class Line(NamedTuple):
    """A setting, a row of the table.

    Attributes:
        name: of the row.
        runs: by seed.
        metric: the entry of histories and summaries that the row is compared by.
        data: name of the federation; rows with equal names are on equal federations, with equal budgets.
    """

    name: str
    runs: dict[int, ComparedRun]
    metric: str = ""
    data: str = ""

    @property
    def main(self) -> str:
        """The main metric of the task."""
        return main_metric(next(iter(self.runs.values())).summary)

    def entry(self, title: str) -> str:
        """Returns the entry of the summaries that a column of the table shows; of any other title the title itself."""
        if title in SUMMARY_COLUMNS:
            return SUMMARY_COLUMNS[title][0]
        return METRIC_COLUMNS[title].format(self.main) if title in METRIC_COLUMNS else title

    def assumes_poisson(self) -> bool:
        """Returns whether the epsilon of a run assumes a sampling that it has not."""
        return any(run.summary.get("sampling") == ASSUMED for run in self.runs.values())

    def title(self) -> str:
        """Returns the title of the column that shows the metric of the row; the metric itself if no other does."""
        known = (*METRIC_COLUMNS, *SUMMARY_COLUMNS)
        return next((title for title in known if self.entry(title) == self.metric), self.metric)

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

    def reached(self, target: float, columns: Sequence[str], *, lower: bool = False) -> list[float] | None:
        """Returns the sum of some columns of the history where each run reaches the target.

        None if one never does, or its record lacks a column.
        """
        found = []
        for run in self.runs.values():
            known = [one for one in counted_records(run) if one.get(self.metric) is not None]
            records = [one for one in known if (one[self.metric] <= target if lower else one[self.metric] >= target)]
            if not records or any(records[0].get(name) is None for name in columns):
                return None
            found.append(float(sum(records[0][name] for name in columns)))
        return found

    def fingerprints(self) -> dict[int, str]:
        """Returns what identifies the federation of each run, by seed, for the runs that have it."""
        return {seed: run.summary[FINGERPRINT] for seed, run in self.runs.items() if run.summary.get(FINGERPRINT)}

    def facts(self) -> dict[str, Any]:
        """Returns what is known of the federation and the budget of the runs, by the names of options."""
        summary = next(iter(self.runs.values())).summary
        facts = {option: summary[name] for name, option in BUDGET.items() if name in summary}
        facts = {name: summary.get(name) for name in ("data", "num_clients", "rounds")} | facts
        options = summary.get("options", {})
        of_data = {name: value for name, value in options.items() if name.startswith("data.") or name == DATA_CHECKSUM}
        facts |= {"sampler": _older_sampler(options)} if options and "sampler" not in facts else {}
        facts |= of_data | {name: str(summary.get(name, usual)) for name, usual in JAX_SETTINGS.items()}
        return {name: value for name, value in facts.items() if value is not None}

    def is_comparable(self, other: "Line") -> bool:
        """Returns whether nothing that is known tells the federations and the budgets of two rows apart.

        Where both have runs of one seed with fingerprints, these decide on the federation; otherwise the options of the
        data.
        """
        one, two = self.fingerprints(), other.fingerprints()
        common = one.keys() & two.keys()
        own, others = self.facts(), other.facts()
        names = (*BUDGET.values(), *JAX_SETTINGS) if common else own.keys()
        same = all(own[name] == others[name] for name in names if name in own and name in others)
        return same and all(one[seed] == two[seed] for seed in common)


def counted_records(run: ComparedRun) -> Sequence[dict[str, Any]]:
    """Returns the records of a history by which the cost of reaching a target is counted.

    With `test_rows`, all evaluations but the last are of some rows, and the last one, of all, is left out.
    """
    return [*run.history][:-1] if run.summary.get("test_rows") is not None else [*run.history]


def _entry_values(records: Iterable[Mapping[str, Any]], entry: str) -> list[float]:
    """Returns the values of an entry in the records that have one."""
    return [value for one in records if isinstance(value := one.get(entry), int | float)]


def _older_sampler(options: Mapping[str, Any]) -> str:
    """Returns what stands for the sampler of a run whose summary has none, of an older version, by its options."""
    given = {name: options[name] for name, usual in PARTICIPATION.items() if options.get(name, usual) != usual}
    return " ".join(f"{name.removeprefix('run.')}={value}" for name, value in given.items()) or "uniform"


class TableColumn(NamedTuple):
    """A column of a table of comparison.

    Attributes:
        name: in `columns`.
        title: above the cells.
        cells: text, a cell for each row.
        shown: whether it is shown where no columns are named.
    """

    name: str
    title: str
    cells: list[str]
    shown: bool = True


class Comparison(NamedTuple):
    """Several settings side by side.

    Attributes:
        lines: the settings; differences of each are from the first one on the same federation.
        target: value of the metric up to which cost is counted; None counts none.
        lower: names of metrics that are better when lower.
        columns: of `table`, in order; None shows all.
    """

    lines: list[Line]
    target: float | None
    lower: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None

    @property
    def metric(self) -> str:
        """The metric that the first row is compared by, an entry of histories and summaries."""
        return self.lines[0].metric

    @property
    def data(self) -> tuple[str, ...]:
        """Names of the federations."""
        return tuple(dict.fromkeys(line.data for line in self.lines))

    def first(self, line: Line) -> Line:
        """Returns the first row on the federation of a row."""
        return next(other for other in self.lines if other.data == line.data)

    def difference(self, line: Line) -> Difference | None:
        """Returns the difference of a row's metric from that of the first row on the same federation.

        It is over the seeds for which both have runs with fingerprints of their federations; None if there are none,
        and for the first row.
        """
        first = self.first(line)
        if line is first:
            return None
        own, other = line.last(line.metric), first.last(first.metric)
        known = line.fingerprints().keys() & first.fingerprints().keys()  # equal, see `Line.is_comparable`
        return paired([(own[seed], other[seed]) for seed in own if seed in other and seed in known])

    def differences(self) -> dict[str, tuple[Difference, float | None]]:
        """Returns the difference of each row from the first one on its federation, and Holm's p, by the row's name.

        Holm's correction is for all rows that have a p; None for the others. Rows without a pair are left out.
        """
        found = {line.name: self.difference(line) for line in self.lines}
        known = {name: one for name, one in found.items() if one is not None}
        tested = {name: one.p for name, one in known.items() if one.p is not None}
        adjusted = dict(zip(tested, holm([*tested.values()]), strict=True))
        return {name: (one, adjusted.get(name)) for name, one in known.items()}

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns a row for each setting, with mean and standard deviation of the columns of `table` as numbers."""
        import pandas

        rows, differences = [], self.differences()
        for line in self.lines:
            row: dict[str, Any] = {
                "setting": encodable(line.name),
                "seeds": len(line.runs),
                "data": encodable(line.data),
                "metric": line.metric,
            }
            for measure in dict.fromkeys(line.entry(title) for title in self._titles()):
                row |= _mean_and_std(measure, line.values(measure))
            if self.target is not None:
                for name, columns in COST_COLUMNS.items():
                    cost = self._reached(line, columns)
                    row |= _mean_and_std(f"{name} to {self.target:g}", cost or [])
                if any(other.values(*TIME_COLUMNS) for other in self.lines):
                    time = self._reached(line, TIME_COLUMNS)
                    row |= _mean_and_std(f"{TIME_COLUMNS[0]} to {self.target:g}", time or [])
            found, adjusted = differences.get(line.name, (Difference(math.nan, None, None, 0), None))
            row |= {f"difference {name}": value for name, value in found._asdict().items()}
            rows.append({**row, "difference holm": adjusted})
        return pandas.DataFrame(rows)

    def table(self, bold: str = "{}") -> list[list[str]]:
        """Returns the table as text: a header, and a row for each setting. Accuracies are in percent.

        The best mean of a column is marked among the rows on the same federation. Macro accuracy is left out where it
        equals micro accuracy, as with equally many test rows on all clients.

        Args:
            bold: format of the best mean of a column, such as `"**{}**"`.
        """
        every = {column.name: column for column in self._columns(bold)}
        some = [column for column in every.values() if column.shown]
        columns = some if self.columns is None else [every[name] for name in self.columns]
        names = [printable(line.name) for line in self.lines]
        return [
            ["setting", *(column.title for column in columns)],
            *([name, *cells] for name, *cells in zip(names, *(column.cells for column in columns), strict=True)),
        ]

    def available_columns(self) -> list[str]:
        """Returns the names that `columns` may have: all columns after the name of the setting, in order."""
        return [column.name for column in self._columns()]

    def measures(self) -> list[str]:
        """Returns the entries of the summaries that are columns of `table`."""
        return list(dict.fromkeys(line.entry(title) for title in self._titles() for line in self.lines))

    def to_csv(self) -> str:
        """Returns the numbers of `to_pandas` as CSV."""
        return csv_table(self.to_pandas())

    def to_markdown(self) -> str:
        """Returns the table in Markdown."""
        return markdown_table(self.table(bold=BOLD))

    def to_latex(self) -> str:
        r"""Returns the table in LaTeX: a `tabular` that needs the package booktabs."""
        return latex_table(self.table(bold=BOLD))

    def compared_cells(self, bold: str = "{}") -> list[str]:
        """Returns the metric that each row is compared by as text, as in `table`."""
        return self._mean_cells([line.metric for line in self.lines], bold, spread=True, marked=True)

    def is_mixed(self) -> bool:
        """Returns whether rows are compared by different columns."""
        return len({line.title() for line in self.lines}) > 1

    def _columns(self, bold: str = "{}") -> list[TableColumn]:
        """Returns all columns after the name of the setting."""
        lines = self.lines
        columns = [TableColumn("seeds", "seeds", [str(len(line.runs)) for line in lines])]
        if self.is_mixed():
            columns.append(TableColumn("metric", "metric", [line.title() for line in lines]))
            columns.append(TableColumn("compared", "compared", self.compared_cells(bold)))
        compared = {line.title() for line in lines}
        for title in self._titles():
            spread, marked = title in {*METRIC_COLUMNS, *compared}, title in {*BEST_COLUMNS, *compared}
            cells = self._mean_cells([line.entry(title) for line in lines], bold, spread=spread, marked=marked)
            if title == "epsilon":
                cells = [
                    f"{cell} ({ASSUMED})" if line.assumes_poisson() else cell
                    for line, cell in zip(lines, cells, strict=True)
                ]
            shown = title != "macro" or not self._macro_is_micro()
            columns.append(TableColumn(COLUMN_NAMES.get(title, title.lower()), title, cells, shown))
        return columns + self._cost_columns() + (self._difference_columns() if len(lines) > 1 else [])

    def _mean_cells(self, measures: Sequence[str], bold: str, *, spread: bool, marked: bool) -> list[str]:
        """Returns the mean of an entry for each row as text.

        Args:
            measures: the entry, of each row.
            bold: format of the best of each federation.
            spread: whether the standard deviation is added.
            marked: whether the best is marked.
        """
        values = [line.values(measure) for line, measure in zip(self.lines, measures, strict=True)]
        means = [statistics.fmean(one) if one else math.nan for one in values]
        cells = []
        for line, measure, own, mean in zip(self.lines, measures, values, means, strict=True):
            factor, digits = _scale(measure)
            text = mean_cell([factor * value for value in own], digits, spread=spread)
            rivals = [rival for other, rival in zip(self.lines, means, strict=True) if other.data == line.data]
            best = min if is_lower_better(measure, self.lower) else max
            known = [rival for rival in rivals if not math.isnan(rival)]
            is_best = marked and len(rivals) > 1 and mean == best(known, default=math.nan)
            cells.append(bold.format(text) if is_best else text)
        return cells

    def _cost_columns(self) -> list[TableColumn]:
        """Returns the columns of what was spent until the target; none without a target."""
        if self.target is None:
            return []
        several = any(len(line.runs) > 1 for line in self.lines)
        title = "" if self._compared_title() == "micro" else f" of {self._compared_title()}"
        rounds = [mean_cell(self._reached(line, COST_COLUMNS["rounds"]), int(several)) for line in self.lines]
        sent = [self._reached(line, COST_COLUMNS["bytes"]) for line in self.lines]
        means = [None if one is None else statistics.fmean(one) for one in sent]
        most = max((mean for mean in means if mean is not None), default=0.0)
        unit = next((unit for unit, size in reversed(BYTE_UNITS.items()) if most >= size), "bytes")
        cells = ["-" if mean is None else _size_cell(mean / BYTE_UNITS[unit]) for mean in means]
        times = [self._reached(line, TIME_COLUMNS) for line in self.lines]
        hours = ["-" if one is None else _size_cell(statistics.fmean(one) / HOUR) for one in times]
        return [
            TableColumn("rounds", f"rounds to {self._format_value(self.target)}{title}", rounds),
            TableColumn("bytes", f"{unit} until then", cells),
            TableColumn("hours_to_target", "hours until then", hours, any(one is not None for one in times)),
        ]

    def _difference_columns(self) -> list[TableColumn]:
        """Returns the columns of the differences and of their tests."""
        found, cells = self.differences(), []
        for line in self.lines:
            first = self.first(line)
            if line.name in found:
                one, adjusted = found[line.name]
                factor = _scale(line.metric)[0]
                digits = 2 if factor == 100 else 4
                spread = "" if one.std is None else f" {PLUS_MINUS} {factor * one.std:.{digits}f}"
                mean = f"{factor * one.mean:+z.{digits}f}".replace("-", MINUS)
                tests = (one.p, adjusted, one.wilcoxon)
                cells.append([f"{mean}{spread}", *("" if p is None else f"{p:.3g}" for p in tests)])
            else:
                common = set(line.runs) & set(first.runs)
                unknown = not (line.fingerprints() and first.fingerprints())
                reason = "no common seed" if not common else "data unknown" if unknown else ""
                cells.append(["" if line is first else reason, "", "", ""])
        base = printable(self.lines[0].name) if len(self.data) == 1 else "first on its data"
        differences, p, adjusted, wilcoxon = map(list, zip(*cells, strict=True))
        return [
            TableColumn("difference", f"{self._compared_title()} {MINUS} {base}", differences),
            TableColumn("p", "p", p),
            TableColumn("holm", "p (Holm)", adjusted, len([one for one in adjusted if one]) > 1),
            TableColumn("wilcoxon", "p (Wilcoxon)", wilcoxon, any(wilcoxon)),
        ]

    def _reached(self, line: Line, columns: Sequence[str]) -> list[float] | None:
        """Returns the cost of reaching the target for each run of a line; None if a run does not reach it."""
        if self.target is None:
            return None
        return line.reached(self.target, columns, lower=is_lower_better(line.metric, self.lower))

    def _compared_title(self) -> str:
        """Returns the title of the compared metric in the table."""
        return "compared" if self.is_mixed() else self.lines[0].title()

    def _titles(self) -> list[str]:
        """Returns the titles of the columns of entries for which some run has a value."""
        titles = [*METRIC_COLUMNS, *SUMMARY_COLUMNS]
        place = titles.index("ARI") + 1
        summaries = [run.summary for line in self.lines for run in line.runs.values()]
        titles[place:place] = sorted({name for one in summaries for name in one if name.startswith(CAUSE_PREFIX)})
        own = [line.title() for line in self.lines]
        titles = [*(one for one in dict.fromkeys(own) if one not in [*titles, *COST_COLUMNS["bytes"]]), *titles]
        if not any(line.values(WIRED_ENTRY) for line in self.lines):
            titles.remove("MB up")
        return [title for title in titles if any(line.values(line.entry(title)) for line in self.lines)]

    def _macro_is_micro(self) -> bool:
        """Returns whether macro and micro metrics are equal but for rounding."""
        both = [[line.values(line.entry(title)) for title in ("macro", "micro")] for line in self.lines]
        return all(len(one) == len(other) and all(map(math.isclose, one, other)) for one, other in both)

    def _format_value(self, value: float) -> str:
        """Returns a value of the compared metric as text."""
        return f"{100 * value:g} %" if _scale(self.metric)[0] == 100 else f"{value:g}"


class ComparisonByData(NamedTuple):
    """Several settings on several federations: a comparison for each federation.

    Attributes:
        parts: the comparisons, by the federation's name.
    """

    parts: dict[str, Comparison]

    def table(self, bold: str = "{}") -> list[list[str]]:
        """Returns the table as text: a header, and a row for each setting with the compared metric by federation.

        Args:
            bold: format of the best mean of each federation.
        """
        lines = [line for part in self.parts.values() for line in part.lines]
        one_metric, most = len({line.metric for line in lines}) == 1, max(len(line.runs) for line in lines)
        header, columns = ["setting"], []
        for data, part in self.parts.items():
            names, cells = [printable(line.name) for line in part.lines], part.compared_cells(bold)
            counts = [len(line.runs) for line in part.lines]
            cells = [f"{cell} (n={count})" if count < most else cell for cell, count in zip(cells, counts, strict=True)]
            if part.is_mixed():
                cells = [f"{cell} {line.title()}" for cell, line in zip(cells, part.lines, strict=True)]
            data = printable(data)
            header.append(data if one_metric or part.is_mixed() else f"{data}, {part.metric}")
            columns.append(dict(zip(names, cells, strict=True)))
        rows = dict.fromkeys(printable(line.name) for line in lines)
        return [header, *([name, *(column.get(name, "-") for column in columns)] for name in rows)]

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns a row for each setting and federation, with the numbers of `Comparison.to_pandas`."""
        import pandas

        parts, targets = self.parts.values(), {part.target for part in self.parts.values()}
        some = parts if len(targets) == 1 else [part._replace(target=None) for part in parts]  # one has no columns
        return pandas.concat([part.to_pandas() for part in some], ignore_index=True)

    def to_csv(self) -> str:
        """Returns the numbers of `to_pandas` as CSV."""
        return csv_table(self.to_pandas())

    def to_markdown(self) -> str:
        """Returns the table in Markdown."""
        return markdown_table(self.table(bold=BOLD))

    def to_latex(self) -> str:
        r"""Returns the table in LaTeX: a `tabular` that needs the package booktabs."""
        return f"% {self.caption()}\n{latex_table(self.table(bold=BOLD))}"

    def caption(self) -> str:
        """Returns a sentence that says what the table shows."""
        lines = [line for part in self.parts.values() for line in part.lines]
        metrics = dict.fromkeys(
            f"{printable(line.metric)}{' (%)' if _scale(line.metric)[0] == 100 else ''}" for line in lines
        )
        fewest, most = (pick(len(line.runs) for line in lines) for pick in (min, max))
        seeds = (
            "1 seed" if most == 1 else f"{most} seeds" if fewest == most else f"{most} seeds, or n where it is given"
        )
        return f"Mean and standard deviation of {' or '.join(metrics)}, {seeds}."


def markdown_table(table: Sequence[Sequence[str]]) -> str:
    """Returns a table, whose first row is the header, in Markdown."""
    header, *rows = ([markdown_cell(text) for text in row] for row in table)
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, rule, *rows))


def latex_table(table: Sequence[Sequence[str]]) -> str:
    r"""Returns a table, whose first row is the header, in LaTeX: a `tabular` that needs the package booktabs."""
    header, *rows = ([latex_cell(text) for text in row] for row in table)
    body = [r"\midrule", *(f"{' & '.join(row)} \\\\" for row in rows)]
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}", r"\toprule", f"{' & '.join(header)} \\\\", *body]
    return "\n".join(["% needs \\usepackage{booktabs}", *lines, r"\bottomrule", r"\end{tabular}", ""])


@checked
def compare(
    settings: Mapping[str, Sequence[ComparedRun]],
    *,
    metric: str | Mapping[str, str] | None = None,
    target: float | None = None,
    columns: Sequence[str] | None = None,
) -> Comparison:
    """Returns the comparison of settings.

    Args:
        settings: the runs of each setting by name, one for each seed: `jaxfl.Result`s, or of `finished.read_runs`.
        metric: what is compared: an entry of the histories, or the name of a column such as `"tuned"` or `"unseen"`;
            for single rows a dictionary by their names. None takes the main metric of each row's task, such as
            `micro_accuracy`. A row that was not fine-tuned has no `"tuned"`, and is compared by the models that it
            serves.
        target: value of the metric up to which rounds and bytes are counted, see `counted_records`; None takes the
            largest whole percent that every run reaches (where lower is better, the lowest number of two digits), if
            all are on one federation and are tested on as many rows.
        columns: of the tables, in order, such as `("micro", "ari")`; None shows all.

    Raises:
        ValueError: there is no run, two runs of a setting have the same seed or are of different federations, or no run
            has the metric or a column.

    >>> from jaxfl.simulation.records.history import History
    >>> class ExampleRun(NamedTuple):
    ...     history: History
    ...     summary: dict
    >>> def example(seed, accuracy):
    ...     history = History()
    ...     history.append({"round": 5, "micro_accuracy": accuracy, "bytes_up": 1e9, "bytes_down": 1e9})
    ...     return ExampleRun(history, {"seed": seed, "micro_accuracy": accuracy, "fingerprint": f"data-{seed}"})
    >>> runs = {"fedavg": [example(0, 0.80), example(1, 0.82)], "stocfl": [example(0, 0.90), example(1, 0.94)]}
    >>> found = compare(runs)
    >>> found.target, found.table()[2][:3]
    (0.8, ['stocfl', '2', '92.00 ± 2.83'])
    """
    lines = []
    for name, runs in settings.items():
        separate = _separate_federations(name, runs)
        if len(separate) > 1:
            told = " and ".join(_label_federations([Line(name, one) for one in separate]))
            raise ValueError(
                f"settings must have runs on one federation for {name!r}, got some on {told}; give each a name of its "
                "own, or use compare_by_data."
            )
        lines.append(Line(name, separate[0]))
    _check_rows(metric, settings)
    return _comparison_of(lines, metric, target, columns)


@checked
def compare_by_data(
    settings: Mapping[str, Sequence[ComparedRun]],
    *,
    metric: str | Mapping[str, str] | None = None,
    target: float | None = None,
) -> ComparisonByData:
    """Returns the comparison of settings on several federations.

    Args:
        settings: the runs of each setting by name, on all federations, as `finished.read_runs(by_data=True)` reads
            them.
        metric: as for `compare`.
        target: as for `compare`, for each federation.

    Raises:
        ValueError: as `compare`.
    """
    if not settings:
        raise ValueError("settings must have a run, got none.")
    _check_rows(metric, settings)
    lines = [Line(name, one) for name, runs in settings.items() for one in _separate_federations(name, runs)]
    parts: dict[str, list[Line]] = {}
    for line, label in zip(lines, _label_federations(lines), strict=True):
        parts.setdefault(label, []).append(line)
    return ComparisonByData({label: _comparison_of(own, metric, target, data=label) for label, own in parts.items()})


def _check_rows(metric: str | Mapping[str, str] | None, settings: Mapping[str, Any]) -> None:
    """Raises ValueError if a metric is given for a row that is not there."""
    for row in metric if isinstance(metric, Mapping) else ():
        if row not in settings:
            raise ValueError(f"metric must be for rows that are compared, got {row!r}; they are {', '.join(settings)}.")


def _separate_federations(name: str, runs: Sequence[ComparedRun]) -> list[dict[int, ComparedRun]]:
    """Returns the runs of a setting by seed, those on each federation apart.

    Raises:
        ValueError: there is none, or two on one federation have the same seed.
    """
    if hasattr(runs, "summary"):
        raise TypeError(f"settings must have a list of runs for {name!r}, got one run; give [result].")
    if any(run.summary is None for run in runs):
        raise ValueError(
            f"settings must have runs with a summary, got one for {name!r} without; give the results of jaxfl.run."
        )
    found: list[dict[int, ComparedRun]] = []
    for run in runs:
        seed = run.summary["seed"]
        one = Line(name, {seed: run})
        same = next((group for group in found if Line(name, group).is_comparable(one)), None)
        if same is None:
            found.append(one.runs)
            continue
        if seed in same:
            paths = [getattr(twice, "path", None) for twice in (same[seed], run)]
            if None not in paths:
                first, second = map(repr, map(str, paths))
                raise ValueError(
                    f"{first} and {second} are one run of {name!r}, of seed {seed} on one federation; give one of them."
                )
            raise ValueError(
                f"settings must have runs of different seeds, got {[one.summary['seed'] for one in runs]} for "
                f"{name!r}; give each setting a name of its own."
            )
        same[seed] = run
    if not found:
        raise ValueError(f"settings must have a run for {name!r}, got none; leave it out.")
    return found


def _label_federations(lines: Sequence[Line]) -> list[str]:
    """Returns a name of the federation of each row: its data, and what tells it from others with the same data."""
    groups: list[list[Line]] = []
    places = []
    for line in lines:
        places.append(next((i for i, group in enumerate(groups) if all(map(line.is_comparable, group))), len(groups)))
        groups += [[]] if places[-1] == len(groups) else []
        groups[places[-1]].append(line)
    facts = [group[0].facts() for group in groups]
    seeds = [{seed: one for line in group for seed, one in line.fingerprints().items()} for group in groups]
    digests = [{seed: run.summary.get(DIGEST) for line in group for seed, run in line.runs.items()} for group in groups]
    labels: list[str] = []
    for own, known, digest in zip(facts, seeds, digests, strict=True):
        alike = [other for other in facts if other.get("data") == own.get("data")]
        differing = [name for name, value in own.items() if any(other.get(name) != value for other in alike)]
        words = [f"{name.removeprefix('data.')}={own[name]}".replace(" ", "") for name in differing]
        words = list(dict.fromkeys(words))  # num_clients is an option of the data and a fact of the run
        if len(alike) > 1 and sum(other == own for other in alike) > 1:  # the same by name and options
            apart = [seed for seed, one in known.items() if any(other.get(seed, one) != one for other in seeds)]
            for seed in [*apart, *known][:1]:
                one = digest[seed]
                alone = one is not None and sum(other.get(seed) == one for other in digests) == 1
                words.append(str(one) if alone else known[seed][-8:])
        label = " ".join([str(own.get("data", "data")), *words])
        copies = sum(one == label or one.startswith(f"{label} (") for one in labels)
        labels.append(f"{label} ({copies + 1})" if copies else label)  # equal names would be one federation
    return [labels[place] for place in places]


def _metric_of(line: Line, asked: str | None) -> str:
    """Returns the entry that a row is compared by.

    Args:
        line: the row.
        asked: an entry, or a column's name in `columns`; None is the main metric.
    """
    titles = {COLUMN_NAMES.get(title, title): title for title in METRIC_COLUMNS}
    entry = line.entry(titles.get(asked, asked) if asked is not None else "micro")
    return entry if not entry.startswith(TUNED) or line.values(entry) else entry.removeprefix(TUNED)


def _comparison_of(
    lines: Sequence[Line],
    metric: str | Mapping[str, str] | None,
    target: float | None,
    columns: Sequence[str] | None = None,
    data: str | None = None,
) -> Comparison:
    """Returns the comparison of rows, as `compare` takes its arguments.

    Args:
        lines: the rows.
        metric: as for `compare`.
        target: as for `compare`.
        columns: as for `compare`.
        data: name of the federation of all rows; None finds the federations.
    """
    if not lines:
        raise ValueError("settings must have a run, got none.")
    asked = [metric.get(line.name) if isinstance(metric, Mapping) else metric for line in lines]
    labels = _label_federations(lines) if data is None else [data] * len(lines)
    lines = [
        line._replace(metric=_metric_of(line, one), data=label)
        for line, one, label in zip(lines, asked, labels, strict=True)
    ]
    if target is not None and not math.isfinite(target):
        raise ValueError(f"target must be a finite number, got {target}; None takes a value that every run reaches.")
    runs = [run for line in lines for run in line.runs.values()]
    names = tuple(sorted({name for run in runs for name in run.summary.get("lower_is_better", ())}))
    reached = []  # the best value of every run
    for line in lines:
        if target is not None and line.metric.endswith(PERCENT_METRICS) and not 0 <= target <= 1:
            raise ValueError(f"target must be a share of 1 for {line.metric}, got {target:g}; 0.85 is 85 %.")
        best = min if is_lower_better(line.metric, names) else max
        for run in line.runs.values():
            reached.append(best(_entry_values(counted_records(run), line.metric), default=None))
    for name, one in zip(asked, lines, strict=True):
        same = [run for line in lines if line.metric == one.metric for run in line.runs.values()]
        of_a_run = one.metric.endswith(SCORE_END)
        if not any(_entry_values([run.summary] if of_a_run else run.history, one.metric) for run in same):
            records = [record for run in runs for record in run.history]
            numbers = sorted(
                {key for record in records for key, value in record.items() if isinstance(value, int | float)}
            )
            raise ValueError(
                f"metric must be an entry of the histories, got {name or one.metric!r}; they have {', '.join(numbers)}."
            )
    for label in set(labels):
        kinds = {_metric_kind(line.metric): line.metric for line in lines if line.data == label}
        if len(kinds) > 1:
            raise ValueError(
                f"metric must be one for all rows on {label}, whatever models and clients it is of, got "
                f"{' and '.join(kinds.values())}; compare each by its own command."
            )
    known = [value for value in reached if value is not None]
    tested = {run.summary.get("test_rows") for run in runs}
    lower = {is_lower_better(line.metric, names) for line in lines}
    alike = len({(line.data, line.main) for line in lines}) == len(lower) == len(tested) == 1
    every = len(known) == len(reached) and 0 < min(known) and max(known) < math.inf
    if target is None and alike and every:
        target = _rounded_up(max(known)) if lower == {True} else _whole_percent(min(known))
    found = Comparison(lines, target, names, None if columns is None else tuple(columns))
    there = found.available_columns()
    if columns is not None and (not columns or not set(columns) <= set(there)):
        raise ValueError(f"columns must be some of {', '.join(there)}, got {', '.join(columns) or 'none'}.")
    return found


def _metric_kind(entry: str) -> tuple[str | None, str]:
    """Returns statistic and metric of an entry of the histories, without the models and the clients that it is of.

    >>> _metric_kind("finetuned_unseen_micro_accuracy"), _metric_kind("worst_decile_f1"), _metric_kind("loss")
    (('micro', 'accuracy'), ('worst_decile', 'f1'), (None, 'loss'))
    """
    named = NAME.fullmatch(entry)
    return (None, entry) if named is None else (named[4], named["metric"])


def _scale(measure: str) -> tuple[float, int]:
    """Returns factor and digits with which an entry of the summaries is shown.

    >>> _scale("macro_f1"), _scale("micro_mse"), _scale("num_clusters")
    ((100, 2), (1, 4), (1, 1))
    """
    if measure.endswith(PERCENT_METRICS):
        return 100, 2
    if measure == "bytes_up":
        return 1e-6, 3
    if measure == "seconds_simulated":
        return 1 / HOUR, 3
    measure = "ari" if measure.startswith(CAUSE_PREFIX) else measure
    return 1, next((digits for entry, digits in SUMMARY_COLUMNS.values() if entry == measure), 4)


def _size_cell(size: float) -> str:
    """Returns a number of bytes in some unit as the text of a cell; small ones have two significant digits.

    >>> _size_cell(12.3), _size_cell(0.00456), _size_cell(0.0)
    ('12.30', '0.0046', '0.00')
    """
    return f"{size:.2f}" if size >= 0.1 or size == 0 else f"{size:.2g}"


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
