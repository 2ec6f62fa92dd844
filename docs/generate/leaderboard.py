"""The tables and sentences of the leaderboard, from `experiments/leaderboard/results`."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.harness import results
from experiments.leaderboard import rows
from experiments.leaderboard.federations import FEDERATIONS, SEEDS, Federation
from experiments.leaderboard.table import (
    FOLDER,
    Count,
    Ranks,
    Standing,
    by_federation,
    counted,
    level,
    mean_ranks,
    order,
)
from jaxfl.methods import KINDS, METHODS

Table = Mapping[str, Sequence[Standing]]
NONE = "–"


@functools.cache
def table(count: Count = "chosen") -> dict[str, list[Standing]]:
    """Returns the standings of every federation that has some."""
    return by_federation(FOLDER, count)


def state() -> str:
    """Returns what is there and what is missing."""
    done = table()
    missing = {on: _missing(on) for on in FEDERATIONS}
    lacking = [f"{on.title} ({len(some)})" for on, some in missing.items() if some]
    spent = {on.name: [line["processor_seconds"] for line in results.read(_file(on))] for on in FEDERATIONS}
    made, used = sum(map(len, spent.values())), sum(map(sum, spent.values()))
    each = {name: sum(own) / len(own) if own else used / max(made, 1) for name, own in spent.items()}
    wanted = {on.name: _runs(on) for on in FEDERATIONS}
    hours = sum(each[name] * wanted[name] for name in wanted) / 3600
    whole = sum(on.name in done and not some for on, some in missing.items())
    took = f"{made:,} runs took {used / 3600:.1f} hours of a processor core"
    text = f"{len(FEDERATIONS)} federations, {len(rows.rows())} methods: {took}."
    if whole < len(FEDERATIONS):
        text = (
            f"So far: {len(done)} of {len(FEDERATIONS)} federations, {whole} of them with all that take part of "
            f"{len(rows.rows())} methods. {took}; all {sum(wanted.values()):,} take about {hours:.0f} at this pace, "
            "and more where a federation that was not begun is slower."
        )
    text += "".join(f" `{name}` takes no part: {why}." for name, why in rows.ABSENT.items() if name in METHODS)
    for on in FEDERATIONS:
        reasons: dict[str, list[str]] = {}
        for name, why in rows.ABSENT_FROM.get(on.name, {}).items():
            reasons.setdefault(why, []).append(f"`{name}`")
        phrases = [f"{', '.join(names)} ({why})" for why, names in reasons.items()]
        text += f" Without {on.title}: {'; '.join(phrases)}." if phrases else ""
    return f"{text} Methods that are missing: {', '.join(lacking)}." if lacking else text


def _file(on: Federation) -> Path:
    return FOLDER / f"{on.name}.jsonl"


def _runs(on: Federation) -> int:
    """Returns how many runs a federation has, but for further rates: what is tried, and then what is chosen."""
    others = len(SEEDS) - 1
    return sum(
        len(rows.values(one, on)) * len(on.rates) + others * (1 + 2 * (one.counts and on.groups is not None))
        for one in rows.rows(on)
    )


def unknown() -> str:
    """Returns everybody's numbers, the number of clusters not given."""
    return _numbers(table(), mean_ranks(table()))


def given() -> str:
    """Returns the numbers of those that are told the number of clusters."""
    return _numbers(table("given"), mean_ranks(table("given")))


def withheld() -> str:
    """Returns the numbers of those that choose a number of clusters where the true one is not among those tried."""
    return _numbers(table("withheld"), mean_ranks(table("withheld")))


def differences() -> str:
    """Returns what the ranks say, in words."""
    found = mean_ranks(table())
    if found is None:
        return "No ranks yet: they need a federation with results."
    over = f"{found.blocks} federations" if found.apart else f"the {found.blocks} seeds of one federation"
    asked = "" if found.p is None else f"Friedman's test of equal ranks has p = {found.p:.2g}. "
    last = max(place for place, mean in enumerate(found.means) if mean - found.means[0] <= found.difference)
    alike = found.names[1 : last + 1]
    told = f"`{found.names[0]}` has the best mean rank, {found.means[0]:.1f}"
    beside = f", and is not told apart from {_names(alike)}" if alike else ", and is told apart from all others"
    return (
        f"{len(found.names)} methods ranked over {over}. {asked}Two mean ranks differ where they are more than "
        f"{found.difference:.2f} apart (Nemenyi, 5 %). {told}{beside}."
    )


def winners() -> str:
    """Returns a line for each federation: who wins, by how much, and what is left to solve."""
    lines = []
    for on in FEDERATIONS:
        if not (own := table().get(on.name)):
            continue
        base, told = _of(own, "fedavg"), table("given").get(on.name, [])
        begun = "" if on.name in counted(table()) else f" (begun, {len(own)} methods)"
        line = f"- **{on.title}{begun}:** `{own[0].row}`, {_both(on, own[0])}"
        _, alike = level(own, lower=on.lower) or (own[0], [])
        if alike:
            line += f"; not told apart from it by the seeds: {_names([one.row for one in alike])}"
        elif len(own) > 1:
            line += f", then {_names([one.row for one in own[1:3]])}"
        line += f"; FedAvg has {word(on, base.mean('micro'))}" if base is not None else ""
        line += (
            f"; the best that is told the number, `{told[0].row}`, {word(on, told[0].mean('micro'))}" if told else ""
        )
        line += f". The worst tenth under `{own[0].row}`: {word(on, own[0].mean('worst'))}"
        finders = [one for one in own if kind(one.row) == "clustered" and one.mean("ari") is not None]
        if on.groups is not None and finders:
            agree = max(finders, key=lambda one: one.mean("ari") or 0)
            line += f"; true groups are found best by `{agree.row}`, ARI {agree.mean('ari'):.2f}"
        lines.append(f"{line}.")
    return "\n".join(lines) or "Nothing was made yet."


def edges() -> str:
    """Returns how many choices are at an edge of what was tried."""
    chosen = [one for own in table().values() for one in own]
    rates = sum("rate" in one.edges for one in chosen)
    numbers = [one.lines[0]["number"] for one in chosen if "value" in one.edges]
    return (
        f"Of {len(chosen)} choices, {rates} have the lowest or highest learning rate that was tried, and "
        f"{len(numbers)} the lowest or highest number, {numbers.count(rows.COUNT)} of these that of clusters: a wider "
        "grid might do better by those."
    )


def setting() -> str:
    """Returns the federations, and how each is trained."""
    head = ["federation", "data", "clients, rows and training", "rounds", "learning rates", "clusters tried", "true"]
    lines = [
        [
            on.title,
            f"`{on.data}`",
            " ".join(f"`{item}`" for item in on.items),
            str(on.rounds),
            ", ".join(map(str, on.rates)) + ("" if on.pulls == 1 else f"; pulls are {on.pulls} times the others'"),
            ", ".join(map(str, on.counts)) + "".join(f", then {count}" for count in on.more_counts),
            "unknown" if on.groups is None else str(on.groups),
        ]
        for on in FEDERATIONS
    ]
    return _markdown(head, lines)


def cells(name: str) -> str:
    """Returns everything of one federation: all numbers, and the command of each."""
    on = next(one for one in FEDERATIONS if one.name == name)
    parts = [
        f"{words}\n\n{_cells(on, own)}"
        for words, own in (
            ("Number of clusters not given:", table().get(name)),
            ("Number of clusters given:", table("given").get(name)),
            ("Number of clusters not given, and the true one is not among those tried:", table("withheld").get(name)),
        )
        if own
    ]
    return "\n\n".join(parts) or f"Not made. `python -m experiments.leaderboard {name} --data-dir DIR` makes it."


def _cells(on: Federation, own: Sequence[Standing]) -> str:
    shown = "MSE" if on.lower else "accuracy"
    head = [
        *("method", f"micro {shown}", "macro", "worst tenth", "unseen clients", "in as many rounds", "ARI", "clusters"),
        *("MB", "seconds", "rounds", "chosen", "command"),
    ]
    lines = []
    for one in own:
        first = one.lines[0]
        chosen = [] if first["number"] is None else [f"`{first['number']}={first['value']}`"]
        ari, clusters, sent, seconds = (one.mean(name) for name in ("ari", "clusters", "bytes", "seconds"))
        if kind(one.row) != "clustered":
            ari = clusters = None
        lines.append(
            [
                f"`{one.row}`",
                _both(on, one),
                *(word(on, one.mean(name)) for name in ("macro", "worst", "unseen")),
                word(on, one.mean("micro", "same_rounds")),
                NONE if ari is None else f"{ari:.2f}",
                NONE if clusters is None else f"{clusters:.1f}",
                NONE if sent is None else f"{sent / 1e6:,.0f}",
                NONE if seconds is None else f"{seconds:.1f}",
                str(first["numbers"]["round"]),
                " ".join([*chosen, f"`learning_rate={first['rate']}`"]) + (" (edge)" if one.edges else ""),
                "`" + first["command"].replace("--seed 0", f"--seeds {','.join(map(str, SEEDS))}") + "`",
            ]
        )
    return _markdown(head, lines)


def _numbers(found: Table, ranking: Ranks | None) -> str:
    """Returns a row for each method, a column for each federation that has results, and the mean rank."""
    if not found:
        return "Nothing was made yet."
    columns = [on for on in FEDERATIONS if on.name in found]
    place = {} if ranking is None else dict(zip(ranking.names, ranking.means, strict=True))
    lines = []
    for name in order(found):
        line = [f"`{name}`"]
        for on in columns:
            one = _of(found[on.name], name)
            word = NONE if one is None else _both(on, one)
            line.append(f"**{word}**" if one is found[on.name][0] else word)
        lines.append([*line, f"{place[name]:.1f}" if name in place else NONE])
    return _markdown(["method", *(on.title for on in columns), "mean rank"], lines)


def _missing(on: Federation) -> list[str]:
    """Returns the methods without numbers on a federation."""
    done = {one.row for one in table().get(on.name, ())}
    return [one.name for one in rows.rows(on) if one.name not in done]


def _of(own: Sequence[Standing], name: str) -> Standing | None:
    return next((one for one in own if one.row == name), None)


def kind(name: str) -> str:
    """Returns the kind of a method; a newcomer has none."""
    return next((one for one, own in KINDS.items() if name in own), "")


def _names(names: Sequence[str]) -> str:
    return " and ".join(
        [", ".join(f"`{name}`" for name in names[:-1]), f"`{names[-1]}`"] if names[1:] else [f"`{names[0]}`"]
    )


def word(on: Federation, value: float | None) -> str:
    """Returns a value of a federation's main metric."""
    return NONE if value is None else f"{value:.3f}" if on.lower else percent(value)


def percent(value: float | None) -> str:
    """Returns an accuracy."""
    return NONE if value is None else f"{100 * value:.1f} %"


def _both(on: Federation, one: Standing) -> str:
    """Returns mean and deviation."""
    if one.diverged:
        return f"{one.diverged} of {len(one.lines)} diverged"
    mean, std = one.mean("micro"), one.std("micro")
    if mean is None or std is None:
        return NONE
    return f"{mean:.3f} ± {std:.3f}" if on.lower else f"{100 * mean:.1f} ± {100 * std:.1f} %"


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    table = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in table)
