"""LayerCFL's figures 4 to 11 and its two headline numbers, all from profiles of the layers of one network.

A profile trains one model by FedAvg and compares the clients' local models after every round, layer by layer and by
four distances (`jaxfl.layer_profile`). Names in the figures: Δ is of updates, without it of weights, p is one layer.
Groups are told apart where the gap is above 0: every pair of clients of one group is more alike than any two of two.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from experiments.harness import studies
from experiments.harness.base import Cell, Made, Study
from experiments.harness.entries import EMPTY
from jaxfl import LayerProfile, layer_profile, plots
from jaxfl import data as federations
from jaxfl.analysis.layer_profile import ALL, Distance
from jaxfl.clustering import distances
from jaxfl.settings import options

FMTL, LAYERCFL = "Δcos (FMTL)", "Δcos^p (LayerCFL)"
COLORS = {  # as in the paper: blue, gold, black, light blue, red
    FMTL: "#0072B2",
    "l2^p (AdaCFL)": "#E69F00",
    "Δl2^p": "#000000",
    "cos^p": "#56B4E9",
    LAYERCFL: "#D55E00",
}


class Sweep(NamedTuple):
    """Profiles for several amounts of data.

    Attributes:
        cells: by what the data are called: their data, network, optimiser, local epochs and batches.
        rows: that a client trains on.
        rounds: of each profile.
        look: the round of figure 7, and the rows of figure 10, by what the data are called.
    """

    cells: Mapping[str, Cell]
    rows: Sequence[int]
    rounds: int
    look: Mapping[str, int]


def of(feature: Cell, label: Cell, by_rows: Sweep, by_label: Sweep) -> tuple[Study, ...]:
    """Returns the studies of a scale.

    Args:
        feature: two groups whose inputs differ, of figures 4 and 5.
        label: two groups whose labels do, of figures 8 and 9.
        by_rows: four groups whose inputs differ, of figures 6 and 7 and the headline.
        by_label: four groups whose labels do, of figures 10 and 11.
    """
    cells = (feature, label, *by_rows.cells.values(), *by_label.cells.values())
    files = any(cell.needs_files for cell in cells)
    return (
        Study("Figures 4 and 5 / layers under feature skew", partial(layers, feature, True), files),
        Study("Figures 8 and 9 / layers under label skew", partial(layers, label, False), files),
        Study("Figures 6 and 7 / rows under feature skew", partial(feature_skew, by_rows), files),
        Study("Figures 10 and 11 / rounds under label skew", partial(label_skew, by_label), files),
    )


def profile(cell: Cell, data_dir: str | None, rounds: int, rows: int | None = None) -> LayerProfile:
    """Returns the profile of a cell's network on its data, with so many training rows of a client if they are given."""
    if rows is not None:
        cell = dataclasses.replace(cell, items=(*cell.items, f"rows_per_client={dealt(cell.data, rows)}"))
    settings = cell.job(cell.seeds[0]).settings
    data = studies.load(cell, data_dir)
    with studies.counting(f"{cell.column}, {data.num_clients} clients of {data.train.max_size} rows:", rounds) as count:
        return layer_profile(
            data,
            options.build(settings, data).task,
            options.optimizer(settings),
            rounds=rounds,
            local_epochs=settings.method["local_epochs"],
            batch_size=settings.method["batch_size"],
            seed=cell.seeds[0],
            callback=count,
        )


def dealt(data: str, rows: int) -> int:
    """Returns how many rows a client must be dealt to train on so many: of a dominant class, a share is for its test.

    >>> dealt("rotated-digits", 100), dealt("dominant-digits", 100)
    (100, 125)
    """
    if federations.dataset(data).skew != "dominant":
        return rows
    return round(rows / (1 - federations.options(data)["test_share"]))


def layers(cell: Cell, feature: bool, data_dir: str | None) -> Made:
    """Draws matrices of a convolution and of a dense layer, and the gap of every layer."""
    found = profile(cell, data_dir, cell.rounds)
    kinds: dict[str, Distance] = {"Δcos": "delta_cos", "Δl2": "delta_l2"}
    maps = {
        f"{layer}, {name}": found.matrices[distance][-1, found.layers.index(layer)]
        for name, distance in kinds.items()
        for layer in (fourth(found), first_dense(found))
    }
    gaps = {name: found.gaps(distance)[-1] for name, distance in kinds.items()}
    rows = [
        {
            "layer": layer,
            "parameters": size,
            "Gap1 (Δcos)": float(gaps["Δcos"][place]),
            "Gap2 (Δl2)": float(gaps["Δl2"][place]),
            "Gap1, bipartition": float(found.gaps("delta_cos", "bipartition")[-1, place]),
            "rounds with Gap1 > 0": int((found.gaps("delta_cos")[:, place] > 0).sum()),
        }
        for place, (layer, size) in enumerate(zip(found.layers, found.sizes, strict=True))
    ]
    single = [row for row in rows if row["layer"] != ALL]
    conv, dense = (
        [row["Gap1 (Δcos)"] for row in single if row["layer"].startswith(kind)] for kind in ("Conv", "Dense")
    )
    told = [row["layer"] for row in single if row["Gap1 (Δcos)"] > 0]
    skew, wins = ("feature", "convolutions") if feature else ("label", "dense layers")
    words = (
        f"After {cell.rounds} rounds under {skew} skew, Gap1 > 0 for {', '.join(told) or 'no layer'}; mean of the "
        f"convolutions {np.mean(conv):.3f}, of the dense layers {np.mean(dense):.3f}; the largest is that of "
        f"{found.recommended()}. The paper finds {wins} to tell the groups apart better."
    )
    title = f"{cell.column}, after {cell.rounds} rounds"
    pictures = {
        "matrices": plots.heatmaps(
            maps, found.group, of={name: "distance" if "l2" in name else "similarity" for name in maps}, columns=2
        ),
        "gap of every layer": plots.layer_gaps(
            gaps, found.layers, recommended={"Δcos": found.recommended()}, title=title
        ),
    }
    return Made(words, {"recommended": found.recommended(), "loss": found.loss.tolist()}, pictures, rows)


def fourth(found: LayerProfile) -> str:
    """Returns the paper's layer under feature skew: the fourth convolution, the last of fewer."""
    return [layer for layer in found.layers if layer.startswith("Conv")][:4][-1]


def first_dense(found: LayerProfile) -> str:
    """Returns the paper's layer under label skew."""
    return next(layer for layer in found.layers if layer.startswith("Dense"))


def curves(found: LayerProfile, layer: str) -> dict[str, np.ndarray]:
    """Returns the gap after every round `[R]` of the five ways to compare clients, in the paper's order."""
    place = found.layers.index(layer)
    return {
        FMTL: found.gaps("delta_cos")[:, -1],
        "l2^p (AdaCFL)": found.gaps("l2")[:, place],
        "Δl2^p": found.gaps("delta_l2")[:, place],
        "cos^p": found.gaps("cos")[:, place],
        LAYERCFL: found.gaps("delta_cos")[:, place],
    }


def feature_skew(sweep: Sweep, data_dir: str | None) -> Made:
    """Draws how many rounds it takes until groups are told apart, and the gap in one round, by rows per client."""
    rows, first, at, by_round = [], {}, {}, {}
    for name, cell in sweep.cells.items():
        found = {count: profile(cell, data_dir, sweep.rounds, count) for count in sweep.rows}
        gaps = {count: curves(one, fourth(one)) for count, one in found.items()}
        by_round[name] = {count: {way: gaps[count][way].tolist() for way in COLORS} for count in sweep.rows}
        first[name] = {way: [first_round(gaps[count][way]) for count in sweep.rows] for way in COLORS}
        at[name] = {way: [float(gaps[count][way][sweep.look[name] - 1]) for count in sweep.rows] for way in COLORS}
        rows += [
            {"data": name, "rows": count, **{way: first[name][way][place] for way in COLORS}}
            for place, count in enumerate(sweep.rows)
        ]
    one = next(iter(found.values()))
    words, numbers = headline(first, one, sweep.rounds)
    pictures = {
        "figure 6, rounds until Gap is above 0": plots.bars(
            sweep.rows, first, "first round with Gap > 0", colors=COLORS
        )
    }
    if len(sweep.rows) > 1:
        looked = ", ".join(f"{name}: round {sweep.look[name]}" for name in sweep.cells)
        pictures[f"figure 7, Gap in one round, {looked}"] = plots.gap_curves(
            sweep.rows, at, "rows per client", colors=COLORS
        )
    else:  # nothing to compare in one round
        (count,), rounds = sweep.rows, np.arange(1, sweep.rounds + 1)
        watched = {f"{name}, {count:,} rows": by_count[count] for name, by_count in by_round.items()}
        pictures["Gap by round"] = plots.gap_curves(rounds, watched, "round", colors=COLORS)
    return Made(
        f"The table is figure 6: the first of {sweep.rounds} rounds whose gap is above 0, {EMPTY} where none is; p is "
        f"{fourth(one)}. {words}",
        {**numbers, "gaps by round": by_round},
        pictures,
        rows,
    )


def headline(
    first: Mapping[str, Mapping[str, Sequence[float]]], profile: LayerProfile, rounds: int
) -> tuple[str, dict[str, Any]]:
    """Returns what LayerCFL saves of FMTL's computation and rounds, in words and numbers.

    The paper does not say how it measured. Here, computation is the cosine matrix that a clustering step needs: the
    numbers that are compared, and the seconds that it takes on this machine. Rounds are those until the gap is first
    above 0, over all data sets and amounts of rows; where it never is, the rounds that were watched.
    """
    waited = {
        way: sum(one if np.isfinite(one) else rounds for name in first for one in first[name][way])
        for way in (FMTL, LAYERCFL)
    }
    layer, clients = fourth(profile), len(profile.group)
    sizes = profile.sizes[-1], profile.sizes[profile.layers.index(layer)]
    whole, part = (_seconds(clients, size) for size in sizes)
    fewer = 100 * (1 - waited[LAYERCFL] / waited[FMTL])
    words = (
        f"The paper's conclusion has 6.47 times less computation and 12.89 % fewer rounds than FMTL, and does not say "
        f"how they were measured. Here, the cosine matrix of {clients} clients compares {sizes[1]:,} numbers of each "
        f"instead of {sizes[0]:,} ({sizes[0] / sizes[1]:.1f} times less) and takes {part * 1e3:.2f} ms instead of "
        f"{whole * 1e3:.2f} ({whole / part:.1f} times less). Until the gap is first above 0, all data and amounts of "
        f"rows together take {waited[LAYERCFL]:.0f} rounds instead of {waited[FMTL]:.0f} ({abs(fewer):.1f} % "
        f"{'fewer' if fewer >= 0 else 'more'}); where it never is, all {rounds} count."
    )
    return words, {
        "parameters": dict(zip((ALL, layer), sizes, strict=True)),
        "seconds of the matrix": {ALL: whole, layer: part},
        "rounds until the gap is first above 0": waited,
        "percent fewer rounds": fewer,
    }


def label_skew(sweep: Sweep, data_dir: str | None) -> Made:
    """Draws the gap by rounds for one amount of rows, and in what share of the rounds it is above 0 for all of them."""
    rows, shares, watched = [], {}, {}
    for name, cell in sweep.cells.items():
        amounts = sorted({*sweep.rows, sweep.look[name]})
        found = {count: profile(cell, data_dir, sweep.rounds, count) for count in amounts}
        gaps = {count: curves(one, first_dense(one)) for count, one in found.items()}
        watched[f"{name}, {sweep.look[name]} rows"] = gaps[sweep.look[name]]
        shares[name] = {way: [float((gaps[count][way] > 0).mean()) for count in sweep.rows] for way in COLORS}
        rows += [
            {"data": name, "rows": count, **{way: shares[name][way][place] for way in COLORS}}
            for place, count in enumerate(sweep.rows)
        ]
    without = {name: {way: values for way, values in own.items() if "l2" not in way} for name, own in shares.items()}
    rounds = np.arange(1, sweep.rounds + 1)
    pictures = {
        "figure 10, Gap by round": plots.gap_curves(rounds, watched, "round", colors=COLORS),
        "figure 11, share of rounds with Gap above 0": plots.bars(
            sweep.rows, without, "share of rounds with Gap > 0", top=1.0, colors=COLORS
        ),
    }
    words = "; ".join(
        f"{name}, {', '.join(f'{way} {np.mean(own[way]):.2f}' for way in COLORS)}" for name, own in shares.items()
    )
    return Made(
        f"The table is figure 11: the share of {sweep.rounds} rounds in which the gap is above 0; p is the first dense "
        f"layer. On average {words}. The paper's l2 pair coincides and never is above 0.",
        {"gaps by round": {name: {way: own[way].tolist() for way in COLORS} for name, own in watched.items()}},
        pictures,
        rows,
    )


def first_round(gaps: np.ndarray) -> float:
    """Returns the first round, from 1, whose gap is above 0; NaN if there is none.

    >>> first_round(np.array([-0.1, 0.2, 0.3])), first_round(np.array([-0.1]))
    (2.0, nan)
    """
    above = np.flatnonzero(gaps > 0)
    return float(above[0] + 1) if len(above) else float("nan")


def _seconds(clients: int, size: int, repeats: int = 5) -> float:
    """Returns the median time of a cosine matrix of so many clients and numbers, compilation not counted."""
    points = jnp.ones((clients, size))
    distances.cosine(points).block_until_ready()
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        distances.cosine(points).block_until_ready()
        taken.append(time.perf_counter() - began)
    return float(np.median(taken))
