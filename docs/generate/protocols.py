"""The tables of the page on protocols, from `experiments/protocols/results`."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.protocols import __main__ as tables
from jaxfl import protocols
from jaxfl.analysis.comparison import deviation
from jaxfl.methods import KINDS
from jaxfl.protocols import Protocol, Published

MISSING = "-"
Line = Mapping[str, Any]


def families() -> list[str]:
    """Returns the first words of the names of all protocols."""
    return sorted({name.partition("-")[0] for name in protocols.names()})


def table(family: str) -> str:
    """Returns the scores of a family's protocols by method, with what was published, and the core-hours."""
    made = {form.name: (form, lines) for form in _forms(family) if (lines := tables.found(form))}
    if not made:
        return f"No run is made yet: `python -m experiments.protocols {family}-... --data-dir DIR`."
    asked = dict.fromkeys(method for form, _ in made.values() for method in tables.methods_of(form))
    methods = [one for one in asked if one != tables.BESIDE] + [tables.BESIDE]
    rows = [["protocol", "score", *(f"`{method}`" for method in methods)], ["---"] * (2 + len(methods))]
    for name, (form, lines) in made.items():
        cells = []
        for method in methods:
            own = [line for (of, _), line in lines.items() if of == method]
            cells.append(cell(own, form.score, [row for row in form.published if row.is_like == method]))
        rows.append([f"`{name}`", f"`{form.score}`", *cells])
    every = [line for _, lines in made.values() for line in lines.values()]
    hours = sum(line["processor_seconds"] for line in every) / 3600
    seeds = sorted({len(tables.seeds_of(form)) for form, _ in made.values()})
    of_seeds = " or ".join(map(str, seeds)) + (" seed" if seeds == [1] else " seeds")
    foot = f"{len(every)} runs, {of_seeds}, {hours:.2g} core-hours."
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), "", foot])


def cell(lines: Sequence[Line], score: str, published: Sequence[Published]) -> str:
    """Returns a score in percent, mean and standard deviation over seeds, the mean ARI, and the published number.

    There is an ARI where groups are planted and the method is a clustered one.

    >>> lines = [
    ...     {"method": "ifca", "scores": {"macro-last": 0.5}, "ari": 1.0},
    ...     {"method": "ifca", "scores": {"macro-last": 0.52}, "ari": 0.9},
    ... ]
    >>> row = Published("IFCA", 51.5, None, "S", "2", "ifca")
    >>> cell(lines, "macro-last", [row]), cell([{"scores": {}}], "macro-last", []), cell([], "macro-last", [])
    ('51.0 ± 1.4, ARI 0.95 [51.5 S]', 'diverged', '-')
    """
    told = "; ".join(
        f"{row.value:g}{'' if row.deviation is None else f' ± {row.deviation:g}'} {row.mark}" for row in published
    )
    behind = f" [{told}]" if told else ""
    if not lines:
        return MISSING + behind
    values = [100 * line["scores"][score] for line in lines if score in line["scores"]]
    if len(values) < len(lines):
        lost = "diverged" if len(lines) == 1 else f"{len(lines) - len(values)} of {len(lines)} diverged"
        return lost + behind
    spread, aris = deviation(values), [line["ari"] for line in lines if line["ari"] is not None]
    text = f"{statistics.fmean(values):.1f}" + ("" if spread is None else f" ± {spread:.1f}")
    clustered = lines[0]["method"] in KINDS["clustered"]
    return text + (f", ARI {statistics.fmean(aris):.2f}" if aris and clustered else "") + behind


def hours() -> str:
    """Returns the core-hours of all runs in a sentence."""
    lines = [line for name in families() for form in _forms(name) for line in tables.found(form).values()]
    spent = sum(line["processor_seconds"] for line in lines) / 3600
    return f"All {len(lines):,} runs together took {spent:.1f} core-hours."


def _forms(family: str) -> list[Protocol]:
    """Returns the protocols of a family, with their reduced forms, of which there are results."""
    records = [protocols.read(name) for name in protocols.names() if name.partition("-")[0] == family]
    forms = [form for one in records for form in ([one, one.as_reduced()] if one.reduced else [one])]
    return [form for form in forms if tables.path_of(form).exists()]
