"""What is added up over the rounds of a run, and by what of it the run has come to nothing."""

import math
from typing import Any

import jax
import numpy as np

from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import takes_part
from jaxfl.sampling import check_drawn
from jaxfl.simulation.metrics import Evaluation
from jaxfl.simulation.program import Log

HOPELESS = 100  # updates in a row that are not finite, or one of every client where there are fewer: a run is stopped

HUGE = 2.0**64  # not finite by `tree.is_finite`: its square is no float32 number


class Tally:
    """What is added up over rounds: between two evaluations, and from the start.

    Args:
        **saved: the attributes of one that a checkpoint kept.

    Attributes:
        updates: sent by clients with training rows, from the start.
        lost: the last of them, of the rounds at the end in which not one was finite.

    Raises:
        ValueError: they are not.
    """

    def __init__(self, **saved: Any):
        self.loss_sum, self.loss_weight, self.diverged, self.diverged_in_all, self.participants = 0.0, 0.0, 0, 0, 0
        self.seconds, self.bytes_up, self.bytes_down = 0.0, 0.0, 0.0
        self.updates, self.lost = 0, 0
        self.num_clusters, self.last_loss = 0, math.nan
        self.extra: dict[str, Any] = {}  # the method's own numbers, of the last round
        for name, value in saved.items():
            wanted = dict if name == "extra" else (int, float)
            if name not in vars(self) or not isinstance(value, wanted):
                raise ValueError(f"{name}={value!r} is nothing that is added up over rounds")
        vars(self).update(saved)

    def add(self, log: Log, count: int, data: FederatedData, seconds: float) -> None:
        """Adds the first `count` rounds of a log, which took so many seconds."""
        log = jax.tree.map(lambda leaf: np.asarray(leaf)[:count], log)  # cut here: JAX would compile for every count
        check_drawn(log.ids, log.mask, data)
        rows = log.mask & (np.asarray(data.train.size)[log.ids] > 0)  # [R, C]
        # a diverged client has no loss worth a mean; it is counted apart
        real = rows & (np.abs(log.info.loss) < HUGE)
        losses = np.where(real, log.info.loss, 0.0).sum(1) / np.maximum(real.sum(1), 1)  # [R]
        rounds = zip(losses.tolist(), real.sum(1), rows.sum(1), log.info.diverged, strict=True)
        # One by one: how many rounds a call makes depends on their speed, and must not change the sum's last bits.
        for loss, finite, sent, diverged in rounds:
            if finite:
                self.loss_sum, self.loss_weight = self.loss_sum + loss, self.loss_weight + 1
            if sent:
                self.last_loss = loss if finite else math.nan
            self.updates += int(sent)
            self.lost = self.lost + int(sent) if diverged >= sent else 0  # nobody's round changes nothing
        self.participants += int(log.mask.sum())
        self.diverged += int(log.info.diverged.sum())
        self.diverged_in_all += int(log.info.diverged.sum())
        self.bytes_up += float(log.info.bytes_up.sum(dtype=np.float64))
        self.bytes_down += float(log.info.bytes_down.sum(dtype=np.float64))
        self.num_clusters = int(log.info.num_clusters[-1])
        self.extra = {name: leaf[-1].item() for name, leaf in log.info.extra.items() if leaf.ndim == 1}
        self.seconds += seconds

    def record(self, done: int, evaluation: Evaluation, seconds_per_round: float | None) -> dict[str, Any]:
        """Returns the record of an evaluation, see `History`, and starts afresh what is added up between two of them.

        Args:
            done: rounds done so far.
            evaluation: after them.
            seconds_per_round: the median of those that this process made.
        """
        record = {
            "round": done,
            **evaluation.metrics,
            "train_loss": self.loss_sum / self.loss_weight if self.loss_weight else None,
            "diverged": self.diverged,
            "seconds": self.seconds,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "seconds_per_round": seconds_per_round,
        }
        self.loss_sum, self.loss_weight, self.diverged = 0.0, 0.0, 0
        return record | {name: value for name, value in self.extra.items() if name not in record}


def come_to_nothing(lost: int, sent: int, evaluation: Evaluation, data: FederatedData, *, ended: bool) -> str:
    """Returns by what a run has come to nothing; an empty word if it has not.

    It has if of the last `HOPELESS` updates (or of as many as there are clients to train) not one was finite, nor, at
    the end, of all; or if no client with test rows is served a model whose loss is finite.

    Args:
        lost: the last updates, of the rounds at the end in which not one was finite.
        sent: all updates.
        evaluation: after them.
        data: the federation.
        ended: whether these are all rounds.
    """
    loss = evaluation.loss[evaluation.rows > 0]  # of clients with test rows
    if lost >= min(HOPELESS, int(takes_part(data).sum())) or (lost == sent > 0 and ended):
        return f"none of the {'' if lost == sent else 'last '}{lost} updates of clients was finite"
    if len(loss) and not np.isfinite(loss).any():
        return "no client is served a model whose loss is finite"
    return ""
