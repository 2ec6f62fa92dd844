"""Declarations of what a newcomer needs before it is served, and of what that costs: `Row.newcomers`.

A newcomer is a client that was not trained on. It may have labelled rows, rows without labels, or no rows at all, and
methods differ in which of these they can serve. The needs, from least to most:

    nothing   its rows are not read
    inputs    the inputs of its training rows are read, but not the labels
    labels    the labels are read, too

`jaxfl.testing` checks a declaration, see `check_newcomers`.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

Needs = Literal["nothing", "inputs", "labels"]
NEEDS = get_args(Needs)
PHRASES: dict[str, str] = {"nothing": "nothing", "inputs": "unlabelled rows", "labels": "labelled rows"}


class Newcomer(NamedTuple):
    """The declaration of a newcomer's needs, its served model, and the cost.

    Attributes:
        needs: what is read of the newcomer's training rows.
        served: the served model, as a phrase.
        passes: passes over the newcomer's rows, as a phrase; empty if there are none.
        down: what it receives, as a phrase.
        up: what it sends before it is served, as a phrase; empty if nothing.
        options: the options' values with which this is so; none for all others.
        joins: whether this is so only where the newcomer joins between two rounds, by `Method.join`.
    """

    needs: Needs
    served: str
    passes: str = ""
    down: str = "1 model"
    up: str = ""
    options: Mapping[str, Any] = {}
    joins: bool = False

    @property
    def sentence(self) -> str:
        """Returns the declaration as two sentences.

        >>> Newcomer("labels", "the model with the lowest loss", "K forward", "K models").sentence
        'A newcomer needs labelled rows, and is served the model with the lowest loss. It receives K models, sends
        nothing, and makes these passes over its rows: K forward.'
        """
        passes = f"these passes over its rows: {self.passes}" if self.passes else "no pass over its rows"
        return (
            f"A newcomer needs {PHRASES[self.needs]}, and is served {self.served}. It receives {self.down}, sends "
            f"{self.up or 'nothing'}, and makes {passes}."
        )


GLOBAL_MODEL = (Newcomer("nothing", "the global model"),)
