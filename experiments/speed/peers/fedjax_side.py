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


def logits(layers: list[list[Any]], model: dict[str, Any], x: jax.Array) -> jax.Array:
    """Returns the network's outputs `[B, L]`, or `[B, T, L]` of sequences; layers as in `torch_side`."""
    images = any(kind == "conv" for kind, *_ in layers)
    tokens = any(kind == "embed" for kind, *_ in layers)
    if images:
        x = x[..., None] if x.ndim == 3 else x
    return through(layers, model, x if images or tokens else x.reshape(len(x), -1))


def through(layers: list[list[Any]], model: dict[str, Any], outputs: jax.Array) -> jax.Array:
    """Returns the outputs of some layers."""
    for kind, *given in layers:
        parts = model[given[0]] if given and kind not in ("residual", "attention") else {}
        if kind == "conv":
            pads = given[1].upper() if isinstance(given[1], str) else [(given[1], given[1])] * 2
            strides = (given[2] if len(given) > 2 else 1,) * 2
            outputs = jax.lax.conv_general_dilated(
                outputs, parts["kernel"], strides, pads, dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            outputs += parts.get("bias", 0)
        elif kind == "dense":
            outputs = outputs @ parts["kernel"] + parts["bias"]
        elif kind in ("norm", "layernorm"):
            groups = outputs.reshape(len(outputs), -1, 32, outputs.shape[-1] // 32) if kind == "norm" else outputs
            axes = (1, 3) if kind == "norm" else -1
            centred = groups - groups.mean(axes, keepdims=True)
            scaled = centred * jax.lax.rsqrt(jnp.square(centred).mean(axes, keepdims=True) + 1e-6)
            outputs = scaled.reshape(outputs.shape) * parts["scale"] + parts["bias"]
        elif kind == "embed":
            outputs = parts["embedding"][outputs]
        elif kind == "positions":
            outputs = outputs + parts["positions"]
        elif kind == "attention":
            one = {part: model[f"{given[0]}/{part}"] for part in ("query", "key", "value", "out")}
            query, key, value = (
                jnp.einsum("btd,dhe->bthe", outputs, one[part]["kernel"]) + one[part]["bias"]
                for part in ("query", "key", "value")
            )
            found = jax.nn.dot_product_attention(query, key, value, is_causal=True)
            outputs = jnp.einsum("bthe,hed->btd", found, one["out"]["kernel"]) + one["out"]["bias"]
        elif kind == "residual":
            outputs = through(given[0], model, outputs) + through(given[1], model, outputs)
        elif kind == "pool":
            outputs = jax.lax.reduce_window(outputs, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        elif kind == "mean":
            outputs = outputs.mean((1, 2))
        elif kind in ("relu", "gelu"):
            outputs = getattr(jax.nn, kind)(outputs)
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
        each = -jnp.take_along_axis(found, batch["y"][..., None], -1)[..., 0]
        return each.reshape(len(each), -1).mean(1)

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
