"""Which method to use, in eleven lines, from `experiments/leaderboard/results`."""

import functools
import statistics
from collections.abc import Sequence

from docs.generate.leaderboard import Table, kind, percent, table, word
from experiments.leaderboard import rows
from experiments.leaderboard.federations import FEDERATIONS, Federation
from experiments.leaderboard.table import Ranks, Standing, counted, level, mean_ranks


def advice() -> str:
    """Returns which method to use, in lines that go as far as the numbers do."""
    own, ranking = counted(table()), mean_ranks(table())
    if ranking is None:
        return "No federation has been made yet."
    place = dict(zip(ranking.names, ranking.means, strict=True))
    kinds = {
        one: [name for name in ranking.names if kind(name) == one] for one in ("global", "personalised", "clustered")
    }
    numbered = {one.name for one in rows.rows() if one.counts}
    free = [name for name in kinds["clustered"] if name not in numbered]
    plain = [name for name in ranking.names if rows.row(name).number is None]
    titles = ", ".join(on.title for on in FEDERATIONS if on.name in own)
    whole = len(own) == len(FEDERATIONS)
    many, so_far = (len(own), "") if whole else (f"{len(own)} of {len(FEDERATIONS)}", " so far")

    def rank(names: Sequence[str]) -> str:
        return f"`{names[0]}` (mean rank {place[names[0]]:.1f} of {len(place)})" if names else "nobody so far"

    apart = ranks_without()
    pairs = [] if apart is None else list(zip(apart.names, apart.means, strict=True))
    first = ", ".join([f"`{name}` ({mean:.1f})" for name, mean in pairs if kind(name) == "clustered"][:3])
    missed = f"; where the true number is not among those tried, the first ones are {first}" if first else ""
    told = [(on, found) for on in FEDERATIONS if on.name in own and (found := table("given").get(on.name))]
    lines = [
        f"This rests on {many} federations{so_far}: {titles}. A lead of less than "
        f"{ranking.difference:.1f} mean ranks may be chance. Level is who five seeds do not tell apart from the best.",
        f"**In doubt:** {rank(ranking.names)}. It is ahead of `fedavg` on {_wins(own, ranking.names[0], 'fedavg')} "
        f"federations, and of the next, `{ranking.names[1]}`, on {_wins(own, ranking.names[0], ranking.names[1])}.",
        f"**By the kind of clients:** where they were put into groups, {_first(own, planted=True)}; where they were "
        f"not, {_first(own, planted=False)}.",
        f"**You know how many kinds of clients there are:** {_told(told)}.",
        f"**You do not know it:** {rank(kinds['clustered'])} of the methods with clusters, {rank(free)} of those that "
        f"take no number, but a threshold, or nothing. Validation rows choose the one as the other{missed}.",
        f"**Everybody must have the same model:** {rank(kinds['global'])}. It costs {_behind(own, kinds['global'])}.",
        f"**Everybody may have a model of their own:** {rank(kinds['personalised'])}.",
        f"**You want to tune nothing but a learning rate:** {rank(plain)}.",
        f"**New clients will come:** {_most(own, 'unseen')}.",
        f"**Nobody may be left behind:** the worst tenth is served best by {_most(own, 'worst')}.",
        f"**Furthest from solved:** {_unsolved(own)}.",
    ]
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))


@functools.cache
def ranks_without() -> Ranks | None:
    """Returns everybody's ranks where the true number of clusters is not among those tried."""
    found: dict[str, list[Standing]] = {}
    for on in FEDERATIONS:
        own = table().get(on.name, [])
        without = {one.row: one for one in table("withheld").get(on.name, ())}
        if own:
            found[on.name] = [without.get(one.row, one) for one in own]
    return mean_ranks(found)


def loss() -> str:
    """Returns what it costs that the true number of clusters is not among those tried, and who is first then."""
    costs: dict[str, list[tuple[float, str]]] = {}
    more = []  # of choices between fewer clusters than groups and more
    for on in FEDERATIONS:
        if on.lower or not on.planted or on.groups is None:
            continue
        own = {one.row: one.mean("micro") for one in table("given").get(on.name, ())}
        for one in table("withheld").get(on.name, ()):
            true, other = own.get(one.row), one.mean("micro")
            more += [one.lines[0]["value"] > on.groups] if min(on.counts) < on.groups else []
            if true is not None and other is not None:
                costs.setdefault(one.row, []).append((100 * (true - other), on.title))
    ranking = ranks_without()
    if not costs or ranking is None:
        return "Nothing was made yet."
    means = {name: statistics.fmean(cost for cost, _ in some) for name, some in costs.items()}
    words = ", ".join(f"`{name}` {means[name]:.1f}" for name in sorted(means, key=lambda name: means[name]))
    most, title, who = max((cost, title, name) for name, some in costs.items() for cost, title in some)
    first = list(zip(ranking.names, ranking.means, strict=True))[:5]
    leaders = ", ".join(f"`{name}` {mean:.1f}" for name, mean in first)
    return (
        "Points that are lost against being told the true number, where clients were put into groups: "
        f"{words}; at most {most:.1f}, by `{who}` on {title}. Validation rows choose more clusters than there are "
        f"groups, not fewer, in {sum(more)} of {len(more)}. With these numbers in the place of those above, the best "
        f"mean ranks of all are {leaders}."
    )


def _wins(own: Table, name: str, other: str) -> str:
    """Returns on how many federations a method is ahead of another, of those that have both."""
    ahead = []
    for on in FEDERATIONS:
        found = {one.row: one.mean("micro") for one in own.get(on.name, ())}
        mine, its = found.get(name), found.get(other)
        if mine is not None and its is not None:
            ahead.append(mine < its if on.lower else mine > its)
    return f"{sum(ahead)} of {len(ahead)}"


def _first(own: Table, *, planted: bool) -> str:
    """Returns the three best mean ranks over the federations with, or without, groups that clients were put into."""
    some = {on.name: own[on.name] for on in FEDERATIONS if on.name in own and on.planted == planted}
    found = mean_ranks(some) if some else None
    if found is None:
        return "nothing was measured"
    ranks = list(zip(found.names, found.means, strict=True))[:3]
    return f"{', '.join(f'`{name}` ({mean:.1f})' for name, mean in ranks)}, by mean rank over {len(some)} federations"


def _told(best: Sequence[tuple[Federation, Sequence[Standing]]]) -> str:
    """Returns who is best where the number is given."""
    return _by_name([(on, found, "micro") for on, own in best if (found := level(own, lower=on.lower))])


def _by_name(found: Sequence[tuple[Federation, tuple[Standing, list[Standing]], str]]) -> str:
    """Returns who is best where: each federation with its number, and how many are not told apart from it."""
    by_name: dict[str, list[str]] = {}
    for on, (first, alike), name in found:
        others = f", level with {len(alike)} more" if alike else ""
        by_name.setdefault(first.row, []).append(f"{on.title}, {word(on, first.mean(name))}{others}")
    return "; ".join(f"`{who}` ({'; '.join(where)})" for who, where in by_name.items()) or "nobody so far"


def _behind(own: Table, names: Sequence[str]) -> str:
    """Returns how far the first of some methods is behind the best of all, by federation."""
    words = []
    for on in FEDERATIONS:
        some = [one for one in own.get(on.name, ()) if one.row in names[:1]]
        if some:
            gap = abs((own[on.name][0].mean("micro") or 0) - (some[0].mean("micro") or 0))
            words.append(f"{gap:.3f} on {on.title}" if on.lower else f"{100 * gap:.1f} points on {on.title}")
    return ", ".join(words) or "nothing that was measured"


def _most(own: Table, name: str) -> str:
    """Returns who has the best of a number, by federation."""
    levels = [(on, level(own.get(on.name, ()), name, lower=on.lower)) for on in FEDERATIONS]
    return _by_name([(on, found, name) for on, found in levels if found is not None])


def _unsolved(own: Table) -> str:
    """Returns the federation on which the best accuracy is lowest, and the groups that nobody finds."""
    best = {on.title: own[on.name][0] for on in FEDERATIONS if on.name in own and not on.lower}
    words = []
    if best:
        title = min(best, key=lambda one: best[one].mean("micro") or 0)
        worst = best[title]
        words.append(f"{title}, where the best is {percent(worst.mean('micro'))} and its worst tenth "
                     f"{percent(worst.mean('worst'))}")  # fmt: skip
    for on in FEDERATIONS:
        found = [one.mean("ari") or 0 for one in own.get(on.name, ()) if kind(one.row) == "clustered"]
        if on.groups is not None and found and max(found) < 0.5:
            words.append(f"the groups of {on.title} are not found (best ARI {max(found):.2f})")
    return "; ".join(words) or "nothing that was measured"
