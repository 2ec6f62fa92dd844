"""Small problems in float64, where a formula or a loop gives the answer: use them under `jax.enable_x64(True)`."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import sampling
from jaxfl.data import FederatedData, federate
from jaxfl.data.clients import Batch
from jaxfl.methods import Method
from jaxfl.random import Stream, key_for
from jaxfl.tasks import Task, contract, masked_mean

# Not symmetric in any two coordinates: a symmetric problem hides a sign error or a transposed matrix.
CURVATURE = np.array([[2.0, 0.3, 0.0], [0.3, 0.7, -0.2], [0.0, -0.2, 0.4]])
SCALE = np.array([1.0, 0.5])  # how much a row of each class weighs in the quadratic task

# options of networks by name with which their programs are small
SMALL_NETWORKS: dict[str, dict] = {
    "resnet9": {"width": 2},
    "resnet18": {"width": 4, "blocks": (1, 1)},
    "resnet18-gn": {"width": 4, "groups": 2, "blocks": (1, 1)},
    "resnet18-tv": {"width": 4, "blocks": (1, 1)},
    "mobilenetv2": {"width": 0.1},
    "vit": {"width": 8, "heads": 2, "layers": 1},
}


def linear_federation(sizes=(5, 0, 3, 8, 1, 6, 4), groups=(0, 0, 1, 1, 0, 1, 0), seed=0) -> FederatedData:
    """Clients of these sizes with three inputs and two classes; group 1 has its labels exchanged."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(0.2, 1.0, (2 * sum(sizes), 3))
    rows = np.split(np.arange(len(inputs)), np.cumsum(2 * np.array(sizes))[:-1])
    group = np.repeat(groups, 2 * np.array(sizes))
    labels = (inputs @ np.array([1.5, -1.0, 0.5]) > 0.1) ^ (group == 1)
    halves = [(part[: len(part) // 2], part[len(part) // 2 :]) for part in rows]
    train, test = zip(*halves, strict=True)
    return federate(inputs, labels.astype(int), train, test, num_classes=2, group=np.array(groups))


def softmax_task(scale: float = 0.3) -> Task:
    """Softmax regression; the initial bias is not zero, so that it cannot be forgotten."""

    def init(key):
        kernel, bias = jax.random.split(key)
        return {"bias": scale * jax.random.normal(bias, (2,)), "kernel": scale * jax.random.normal(kernel, (3, 2))}

    def logits(model, batch: Batch):
        return batch.x @ model["kernel"] + model["bias"][None]

    def loss(model, batch: Batch, key=None):
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits(model, batch)), batch.y[:, None], 1)[:, 0]
        return masked_mean(-chosen, batch.mask)

    def offset_losses(model, batch: Batch, key, offset):
        return -jnp.take_along_axis(jax.nn.log_softmax(logits(model, batch) + offset), batch.y[:, None], 1)[:, 0]

    return Task(init, loss, logits, mix=contract.mix_classes, offset_losses=offset_losses)


def tanh_task(width: int = 3) -> Task:
    """A tanh layer `a` below the head `b`."""
    shapes = (3, width), (2,), (width, 2)

    def init(key):
        draw = [jax.random.normal(key_for(key, Stream.INIT, i), shape) for i, shape in enumerate(shapes)]
        return {"a": {"kernel": 0.5 * draw[0]}, "b": {"bias": 0.3 * draw[1], "kernel": 0.5 * draw[2]}}

    def logits(model, batch: Batch):
        return jnp.tanh(batch.x @ model["a"]["kernel"]) @ model["b"]["kernel"] + model["b"]["bias"][None]

    def loss(model, batch: Batch, key=None):
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits(model, batch)), batch.y[:, None], 1)[:, 0]
        return masked_mean(-chosen, batch.mask)

    return Task(init, loss, logits)


def quadratic_task() -> Task:
    """The mean over rows of SCALE[y] / 2 * (w - x)' CURVATURE (w - x)."""

    def init(key):
        return {"w": jax.random.normal(key, (3,))}

    def loss(model, batch: Batch, key=None):
        away = model["w"][None] - batch.x
        energy = jnp.einsum("bi,ij,bj->b", away, jnp.asarray(CURVATURE), away)
        return masked_mean(0.5 * jnp.asarray(SCALE)[batch.y] * energy, batch.mask)

    def logits(model, batch: Batch):
        return batch.x[:, :2] * model["w"][None, :2]

    return Task(init, loss, logits, mix=contract.mix_classes)


def quadratic_gradient(w, x, y):
    """The gradient of `quadratic_task`'s loss, by hand."""
    return CURVATURE @ (SCALE[y][:, None] * (w[None] - x)).mean(0)


def rows_of(data: FederatedData) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns each client's own training rows (x, y)."""
    split = data.train
    owned = [np.asarray(split.rows)[a : a + n] for a, n in zip(split.start, split.size, strict=True)]
    return [(np.asarray(data.inputs)[rows], np.asarray(data.labels)[rows]) for rows in owned]


@functools.partial(jax.jit, static_argnums=1)
def batch_of(data: FederatedData, split: str, client, positions) -> Batch:
    """Returns a client's rows at these positions of a split, compiled as a whole."""
    return data.batch(getattr(data, split), client, positions)


sample = jax.jit(sampling.uniform, static_argnums=3)  # one program, where its operations are a dozen


def compiled(method: Method) -> Method:
    """Returns the method with its functions compiled as wholes; else each of their operations would be, alone."""
    wholes = {name: jax.jit(getattr(method, name)) for name in ("init", "round", "client_params", "assign")}
    return method._replace(**wholes)


def once(factory, build):
    """Returns `build(**options)` that makes a method once for the same options, also where they say a default."""
    defaults = {name: option.default for name, option in inspect.signature(factory).parameters.items()}
    made = functools.cache(build)

    @functools.wraps(build)
    def found(**options):
        return made(**{name: value for name, value in sorted(options.items()) if value != defaults.get(name, made)})

    return found
