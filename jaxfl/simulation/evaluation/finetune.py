"""Served models, which a method may adapt to a client's rows, and fine-tuning: local training before a second test."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, get_type_hints

import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.conduct import without_conditions
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Method
from jaxfl.methods.hyperparameters import Hyperparameters
from jaxfl.methods.parts.adaptation import fine_tuning, tuned_leaves
from jaxfl.schema import Traceable, check_type, is_known
from jaxfl.typing import Array, Key, Params


@dataclasses.dataclass(frozen=True)
class FineTune:
    """Local training of every client's served model before a second test.

    The model, or a part of it, is trained on the client's own training rows with the task's loss, as in the first
    version of FeSEM ("one extra local epoch"). The trained models are tested and discarded, so the run is the same with
    and without, and conditions of clients (stragglers, attacks) do not apply. An evaluation costs N trainings and N
    tests, where shared models and test rows are otherwise tested once: with E local epochs on a tenth of the clients in
    a round, `epochs=1` costs as much as 10 / E rounds. Evaluate rarely.

    Attributes:
        optimizer: its state starts fresh.
        epochs: passes over the client's training rows.
        batch_size: rows of a step, reshuffled in every epoch; None takes all at once.
        pull: mu, the proximal pull to the served model, by mu / 2 times the squared distance; 0 has none.
        part: what is trained: `"all"`, the `"head"` (the layer that the model creates last), the `"body"` (the others),
            or patterns of parameters' names, see `jaxfl.tree.matching`.
        hyperparameters: the numbers that compiled programs take as an argument; None makes them constants.

    Raises:
        ValueError: `epochs` or `batch_size` is below 1, or `pull` is negative or not finite.

    >>> import optax
    >>> FineTune(optax.sgd(0.1), batch_size=10).epochs
    1
    """

    optimizer: optax.GradientTransformation
    epochs: int = 1
    batch_size: int | None = None
    pull: Traceable = 0.0
    part: str | tuple[str, ...] = "all"
    hyperparameters: Hyperparameters | None = None

    def __post_init__(self) -> None:
        """Checks types and numbers."""
        for field in dataclasses.fields(self):
            check_type(field.name, getattr(self, field.name), get_type_hints(FineTune)[field.name])
        if self.epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {self.epochs}; finetune=None tests models as they are.")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}; None takes all rows at once.")
        if is_known(self.pull) and not 0 <= self.pull < math.inf:  # nor NaN
            raise ValueError(f"pull must be at least 0 and finite, got {self.pull}; 0 trains without one.")


def server(method: Method) -> Callable[..., tuple[Params, Array]]:
    """Returns `(key, state, data, client) -> (model, finite)`, the served model of a client; traceable.

    Args:
        method: gives the model of each client, and `adapt`. A client without training rows, or whose adapted model is
            not finite, is served its model as it is.
    """

    def serve(key: Key, state: Any, data: FederatedData, client: Array) -> tuple[Params, Array]:
        model = tree.take(method.client_params(state, client[None]), 0)
        if method.adapt is None:
            return model, jnp.array(True)
        # the conditions of a federation are those of rounds, and this is none
        adapted = method.adapt(key, state, without_conditions(data), client, model)
        finite = tree.is_finite(adapted)
        return tree.where(finite & (data.train.size[client] > 0), adapted, model), finite

    return serve


def trainer(method: Method, finetune: FineTune) -> Callable[..., tuple[Params, Array]]:
    """Returns `(key, state, data, client) -> (model, finite)`, the fine-tuned model of a client; traceable.

    Args:
        method: gives the model that the client starts from, the one that it is served, and the task.
        finetune: how it trains; a model that is not finite then is given up for the one that the client is served.
    """
    serve = server(method)
    tune = fine_tuning(
        method.task,
        finetune.optimizer,
        epochs=finetune.epochs,
        batch_size=finetune.batch_size,
        proximal_weight=finetune.pull,
        chosen=tuned_leaves(method.task, finetune.part),
    )

    def run(key: Key, state: Any, data: FederatedData, client: Array) -> tuple[Params, Array]:
        served, _ = serve(key, state, data, client)
        trained: Params = tune(key, state, without_conditions(data), client, served)
        finite = tree.is_finite(trained)
        return tree.where(finite, trained, served), finite

    return run
