"""FedJAX: `for_each_client` with its default jit backend, optimiser and running mean; `hyp_cluster` for several models.

The loop is that of `fedjax.algorithms.fed_avg` without its norms, with a sum of losses carried along. The network is
written with `jax.lax` and `jax.numpy`, as somebody who uses FedJAX would.
"""

import importlib
import importlib.metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import serve

_jax: Any = jax
_jax.tree_map = jax.tree_util.tree_map  # FedJAX 0.0.17 asks for the name that JAX has since moved
fedjax: Any = importlib.import_module("fedjax")  # behind that name
hyp_cluster: Any = importlib.import_module("fedjax.algorithms.hyp_cluster")


def logits(layers: list[list[str]], model: dict[str, Any], x: jax.Array) -> jax.Array:
    """Returns the network's outputs `[B, L]`; layers as in `torch_side`."""
    images = any(kind == "conv" for kind, *_ in layers)
    outputs = (x[..., None] if x.ndim == 3 else x) if images else x.reshape(len(x), -1)
    for kind, *given in layers:
        if kind == "conv":
            outputs = jax.lax.conv_general_dilated(
                outputs, model[given[0]]["kernel"], (1, 1), given[1].upper(), dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            outputs += model[given[0]]["bias"]
        elif kind == "dense":
            outputs = outputs @ model[given[0]]["kernel"] + model[given[0]]["bias"]
        elif kind == "pool":
            outputs = jax.lax.reduce_window(outputs, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        elif kind == "relu":
            outputs = jax.nn.relu(outputs)
        else:
            outputs = outputs.reshape(len(outputs), -1)
    return outputs


def build(work: dict[str, Any], model: dict[str, Any], x: np.ndarray, y: np.ndarray) -> serve.Made:
    """Returns the rounds of FedAvg, or of IFCA where there are several models."""
    clients = [(i, fedjax.ClientDataset({"x": x[i], "y": y[i]})) for i in range(len(x))]
    batch_size = work["batch_size"] or x.shape[1]
    hparams = fedjax.ShuffleRepeatBatchHParams(batch_size=batch_size, num_epochs=work["epochs"])
    optimizer = fedjax.optimizers.sgd(work["learning_rate"])
    keys = iter(range(1 << 30))

    def losses(params: Any, batch: Any, key: Any = None) -> jax.Array:
        found = jax.nn.log_softmax(logits(work["layers"], params, batch["x"]))
        return -jnp.take_along_axis(found, batch["y"][:, None], 1)[:, 0]

    every = jax.jit(lambda params, x, y: losses(params, {"x": x, "y": y}).mean())

    def asked() -> list[Any]:
        rngs = jax.random.split(jax.random.key(next(keys)), len(clients))
        return [(i, rows, rng) for (i, rows), rng in zip(clients, rngs, strict=True)]

    if work["models"] > 1:
        algorithm = hyp_cluster.hyp_cluster(
            losses,
            optimizer,
            fedjax.optimizers.sgd(1.0),
            fedjax.PaddedBatchHParams(batch_size=x.shape[1]),
            hparams,
        )
        models = [jax.tree.map(lambda leaf, k=k: jnp.asarray(leaf[k]), model) for k in range(work["models"])]
        held = {"state": algorithm.init(models)}

        def ifca_round() -> float:
            held["state"], _ = algorithm.apply(held["state"], asked())
            jax.block_until_ready(held["state"].cluster_params)
            return float("nan")  # it tells no training loss

        def ifca_loss() -> float:
            found = [[every(m, *rows) for m in held["state"].cluster_params] for rows in zip(x, y, strict=True)]
            return float(np.mean(np.min(np.array(jax.device_get(found)), 1)))

        return ifca_round, ifca_loss

    gradient = jax.value_and_grad(lambda params, batch: losses(params, batch).mean())
    steps = work["epochs"] * -(-x.shape[1] // batch_size)

    def start(served: Any, rng: Any) -> dict[str, Any]:
        return {"params": served, "opt": optimizer.init(served), "loss": jnp.float32(0), "rng": rng}

    def step(state: dict[str, Any], batch: dict[str, Any]) -> dict[str, Any]:
        rng, _ = jax.random.split(state["rng"])
        loss, found = gradient(state["params"], batch)
        opt, params = optimizer.apply(found, state["opt"], state["params"])
        return {"params": params, "opt": opt, "loss": state["loss"] + loss, "rng": rng}

    def finish(served: Any, state: dict[str, Any]) -> tuple[Any, Any]:
        return jax.tree.map(lambda a, b: b - a, served, state["params"]), state["loss"]

    train = fedjax.for_each_client(start, step, finish)
    holder = {"model": jax.tree.map(jnp.asarray, model)}

    def one_round() -> float:
        batches = [(i, rows.shuffle_repeat_batch(hparams), rng) for i, rows, rng in asked()]
        total, found, weight = fedjax.tree_util.tree_zeros_like(holder["model"]), [], 0.0
        for i, (delta, loss) in train(holder["model"], batches):
            size = float(len(clients[i][1]))
            total = fedjax.tree_util.tree_add(total, fedjax.tree_util.tree_weight(delta, size))
            weight += size
            found.append(loss)
        mean = fedjax.tree_util.tree_inverse_weight(total, weight)
        holder["model"] = fedjax.tree_util.tree_add(holder["model"], mean)
        return float(np.mean(jax.device_get(found))) / steps

    return one_round, lambda: float(np.mean([every(holder["model"], *rows) for rows in zip(x, y, strict=True)]))


if __name__ == "__main__":
    serve.serve(build, {name: importlib.metadata.version(name) for name in ("fedjax", "jax", "jaxlib")})
