"""Plots of membership inference: rates of true and false positives, and the risk by the size of clusters."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from jaxfl.analysis.membership import FALSE_POSITIVES, Membership, MembershipRisk, roc_curve
from jaxfl.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEWEST = 1e-4  # rate at which the axes begin, at least
BOUND = "#444444"


def membership(
    found: Membership, *, mu: float | None = None, epsilon: float | None = None, delta: float = 0.0
) -> "Figure":
    """Draws how well training rows are told from test rows: the curve of rates, and the risk by the size of clusters.

    Left, true by false positives on logarithmic axes: all rows (black), and the rows of clusters of each size. On the
    grey diagonal training rows are told by chance. Dashes are the most that differential privacy allows, where `mu` or
    `epsilon` is given: with mu-Gaussian privacy Phi(Phi^-1(a) + mu) at the false positives a. Right, area under the
    curve and true positives at 1 % of false ones, by the number of clients in the row's cluster; dotted is chance.

    Args:
        found: result of `jaxfl.membership`.
        mu: of Gaussian differential privacy: sqrt(T) / z for T rounds with the noise multiplier z, each client in
            every round; a sampled client is protected more.
        epsilon: of (epsilon, delta) differential privacy.
        delta: the same.

    Raises:
        ValueError: `mu` or `epsilon` is below 0, or `delta` is not from 0 to 1.

    References: Dong, Roth and Su, "Gaussian Differential Privacy", JRSS-B 2022 (the bound of mu); Kairouz, Oh and
    Viswanath, "The Composition Theorem for Differential Privacy", ICML 2015 (that of epsilon and delta).
    """
    for name, value in (("mu", mu), ("epsilon", epsilon)):
        if value is not None and not 0 <= value < math.inf:
            raise ValueError(f"{name} must be at least 0 and finite, got {value}; None draws no bound.")
    if not 0 <= delta <= 1:
        raise ValueError(f"delta must be from 0 to 1, got {delta}.")
    sizes = found.by_size()
    figure = style.figure((10.5, 3.6))
    curves, areas, positives = figure.subplots(1, 3, width_ratios=(1.5, 1, 1))
    _draw_rates(curves, found, list(sizes))
    first = curves.get_xlim()[0]
    rates = np.geomspace(first, 1, 200)
    if mu is not None:
        curves.plot(rates, gaussian_bound(rates, mu), "--", color=BOUND, lw=1.2, label=f"at most, mu = {mu:.3g}")
    if epsilon is not None:
        label = f"at most, epsilon = {epsilon:.3g}"
        curves.plot(rates, epsilon_bound(rates, epsilon, delta), "-.", color=BOUND, lw=1.2, label=label)
    curves.legend(fontsize=8, frameon=False, loc="lower right")
    _draw_risks(areas, sizes, "auc", 0.5)
    _draw_risks(positives, sizes, "true_positives", FALSE_POSITIVES)
    areas.set_title("area under the curve", fontsize=10, loc="left")
    positives.set_title("true positives at 1 % of false ones", fontsize=10, loc="left")
    return figure


def gaussian_bound(false: np.ndarray, mu: float) -> np.ndarray:
    """Returns the highest rates of true positives under mu-Gaussian differential privacy.

    Args:
        false: rates of false positives.
        mu: of the mechanism, 1 / z for one release with the noise multiplier z.

    >>> [round(float(gaussian_bound(0.01, 1 / z)), 4) for z in (0.5, 1, 2)]
    [0.3721, 0.0924, 0.0339]
    """
    from scipy.stats import norm

    return norm.cdf(norm.ppf(false) + mu)


def epsilon_bound(false: np.ndarray, epsilon: float, delta: float = 0.0) -> np.ndarray:
    """Returns the highest rates of true positives under (epsilon, delta) differential privacy.

    Args:
        false: rates of false positives.
        epsilon: of the mechanism.
        delta: the same.

    >>> epsilon_bound(np.array([0.0, 0.1, 1.0]), np.log(2), 0.1).round(3).tolist()
    [0.1, 0.3, 1.0]
    """
    few, many = np.exp(epsilon) * false + delta, 1 - np.exp(-epsilon) * (1 - delta - false)
    return np.clip(np.minimum(few, many), 0, 1)


def _draw_rates(axes: "Axes", found: Membership, sizes: list[str]) -> None:
    """Draws the curves of all rows, and of the rows of each size of clusters."""
    first = max(FEWEST, 1 / max(2, int((~found.member).sum())))
    parts = {size: found.rows_of_size(size) for size in sizes} if len(sizes) > 1 else {}
    for (size, rows), color in zip(parts.items(), style.line_colors(len(parts)), strict=True):
        if 0 < found.member[rows].sum() < rows.sum():
            false, true = roc_curve(found.score[rows], found.member[rows])
            axes.plot(false, true, color=color, lw=1.3, label=_clients_phrase(size), drawstyle="steps-post")
    false, true = roc_curve(found.score, found.member)
    axes.plot(false, true, color="#000000", lw=1.8, label="all rows", drawstyle="steps-post")
    axes.plot([first, 1], [first, 1], color="#BBBBBB", lw=1, zorder=0)
    axes.set(xscale="log", yscale="log", xlim=(first, 1), ylim=(first, 1.05))
    axes.set_xlabel("false positives: share of test rows")
    axes.set_ylabel("true positives: share of training rows")
    axes.set_title("training rows told from test rows", fontsize=10, loc="left")
    style.light_grid(axes)


def _draw_risks(axes: "Axes", sizes: Mapping[str, MembershipRisk], name: str, chance: float) -> None:
    """Draws a number of the risk by the size of clusters, with a dotted line at chance."""
    values = [getattr(risk, name) for risk in sizes.values()]
    colors = style.line_colors(len(values)) if len(values) > 1 else ["#000000"]
    axes.axhline(chance, color="#8C8C8C", lw=1, ls=":")
    axes.vlines(range(len(values)), chance, values, color=colors, lw=2)
    axes.scatter(range(len(values)), values, color=colors, s=36, zorder=3)
    axes.set_xticks(range(len(values)), list(sizes))
    axes.set_xlim(-0.6, len(values) - 0.4)
    if name != "auc":
        axes.set_ylim(0, 1.1 * max(2 * chance, *(value for value in values if not math.isnan(value))))
    axes.set_xlabel("clients in the cluster")
    style.light_grid(axes)


def _clients_phrase(size: str) -> str:
    """Returns a phrase with the number of clients of a bin.

    >>> _clients_phrase("1"), _clients_phrase("2-4")
    ('1 client', '2-4 clients')
    """
    return f"{size} client" if size == "1" else f"{size} clients"
