"""jaxfl's side of every comparison."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.speed.measure import Side
from jaxfl.client.passes import mean_loss
from jaxfl.cohort import Plan, resolve_plan
from jaxfl.data import FederatedData
from jaxfl.methods import Method
from jaxfl.methods.base import served_model
from jaxfl.simulation.program import compile_rounds


class Rounds:
    """jaxfl's side: the rounds of a method from one compiled program, everybody or a cohort taking part.

    Its loss is that of the models that clients are served; where they choose anew in each round, that of the model that
    fits each best, among the `models` of the state: FedJAX tells no choice.
    """

    def __init__(
        self,
        method: Method,
        data: FederatedData,
        *,
        cohort: int | None = None,
        chunk: int | None = None,
        choosing: bool = False,
    ):
        self._key, self._one, self._method = jax.random.key(0), jnp.int32(1), method
        shapes = jax.eval_shape(method.init, self._key, data)
        size = cohort or data.num_clients
        plan = "auto" if chunk is None else Plan(chunk=chunk)
        self.plan = resolve_plan(plan, served_model(method, shapes), size)
        self.data = data.on_device(self.plan.mesh)
        began = time.perf_counter()
        self._advance = compile_rounds(method, self._key, shapes, self.data, size, self.plan, limit=1)
        self.compile_seconds = time.perf_counter() - began
        self.state = jax.device_put(jax.jit(method.init)(self._key, self.data), self.plan.place)
        loss_of = mean_loss(method.task)

        def loss(state: Any, data: FederatedData) -> jax.Array:
            def one(client: jax.Array) -> jax.Array:
                models = state.models if choosing else method.client_params(state, client[None])
                return jax.lax.map(lambda model: loss_of(model, data, client), models).min()

            return jax.lax.map(one, jnp.arange(data.num_clients)).mean()

        self._loss = jax.jit(loss)

    def model(self) -> dict[str, Any]:
        """Returns the model that client 0 is served, as NumPy arrays."""
        models = self._method.client_params(self.state, jnp.zeros(1, jnp.int32))
        return jax.tree.map(lambda leaf: np.array(leaf[0]), models)

    def program(self) -> str:
        """Returns the text of its compiled program."""
        return getattr(self._advance, "func", self._advance).as_text()

    def side(self) -> Side:
        """Returns it as a side of a comparison."""

        def one_round() -> float:
            self.state, log, _, _ = self._advance(self._key, self.state, self.data, self._one)
            return float(np.asarray(log.info.loss)[0].mean())

        return Side("jaxfl", one_round, lambda: float(self._loss(self.state, self.data)))


def every_row(data: FederatedData) -> tuple[np.ndarray, np.ndarray]:
    """Returns what every client's model sees, `[N, T, ...]` and `[N, T]`, for peers that hold their data ready."""
    held = data.on_device()
    batch = jax.jit(jax.vmap(lambda client: held.batch(held.train, client, jnp.arange(held.train.max_size))))
    x, y, _ = batch(jnp.arange(data.num_clients))
    return np.asarray(x), np.asarray(y)
