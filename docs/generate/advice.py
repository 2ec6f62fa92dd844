"""Which method to use, in ten lines, from `experiments/leaderboard/results`."""

from collections.abc import Sequence

from docs.generate.leaderboard import Table, kind, percent, table, word
from experiments.leaderboard import rows
from experiments.leaderboard.federations import FEDERATIONS, Federation
from experiments.leaderboard.table import Standing, counted, mean_ranks


def advice() -> str:
    """Returns which method to use, in ten lines that go as far as the numbers do."""
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

    told = [(on, found[0]) for on in FEDERATIONS if on.name in own and (found := table(True).get(on.name))]
    lines = [
        f"This rests on {many} federations{so_far}: {titles}. A lead of less than "
        f"{ranking.difference:.1f} mean ranks may be chance.",
        f"**In doubt:** {rank(ranking.names)}.",
        f"**You know how many kinds of clients there are:** {_told(told)}.",
        f"**You do not know it:** {rank(kinds['clustered'])} of the methods with clusters, if validation rows may "
        f"choose its number; {rank(free)} of those that find the number themselves.",
        f"**Everybody must have the same model:** {rank(kinds['global'])}. It costs {_behind(own, kinds['global'])}.",
        f"**Everybody may have a model of their own:** {rank(kinds['personalised'])}.",
        f"**You want to tune nothing but a learning rate:** {rank(plain)}.",
        f"**New clients will come:** {_most(own, 'unseen')}.",
        f"**Nobody may be left behind:** the worst tenth is served best by {_most(own, 'worst')}.",
        f"**Furthest from solved:** {_unsolved(own)}.",
    ]
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))


def _told(best: Sequence[tuple[Federation, Standing]]) -> str:
    """Returns who is best where the number is given."""
    if not best:
        return "nobody was told so far"
    by_name: dict[str, list[str]] = {}
    for on, one in best:
        by_name.setdefault(one.row, []).append(f"{on.title}, {word(on, one.mean('micro'))}")
    return "; ".join(f"`{name}` ({'; '.join(where)})" for name, where in by_name.items())


def _behind(own: Table, names: Sequence[str]) -> str:
    """Returns how far the best of some methods is behind the best of all, by federation."""
    words = []
    for on in FEDERATIONS:
        some = [one for one in own.get(on.name, ()) if one.row in names]
        if some:
            gap = abs((own[on.name][0].mean("micro") or 0) - (some[0].mean("micro") or 0))
            words.append(f"{gap:.3f} on {on.title}" if on.lower else f"{100 * gap:.1f} points on {on.title}")
    return ", ".join(words) or "nothing that was measured"


def _most(own: Table, name: str) -> str:
    """Returns who has the best of a number, by federation."""
    by_name: dict[str, list[str]] = {}
    for on in FEDERATIONS:
        some = [(value, one) for one in own.get(on.name, ()) if (value := one.mean(name)) is not None]
        if some:
            value, one = (min if on.lower else max)(some, key=lambda pair: pair[0])
            by_name.setdefault(one.row, []).append(f"{on.title}, {word(on, value)}")
    return "; ".join(f"`{who}` ({'; '.join(where)})" for who, where in by_name.items()) or "nobody so far"


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
