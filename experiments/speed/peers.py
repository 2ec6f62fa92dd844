"""The peers, fed with the same numbers: a plain PyTorch loop, FedJAX's default jit backend.

Every peer starts from jaxfl's initial parameters and holds its clients' rows ready, normalised and rotated, in the form
it likes best; jaxfl gathers and prepares them inside its timed part. Peers are imported only when they are measured.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from experiments.speed.measure import Side
from jaxfl.data import Batch
from jaxfl.tasks import Task


def torch_module(model: dict[str, Any]) -> Any:
    """Returns jaxfl's network (dense layers with relu, after LEAF's convolutions if there are any) in PyTorch.

    Args:
        model: parameters as jaxfl keeps them, to be copied: `Conv_i` and `Dense_i`, kernels `[..., inputs, outputs]`.
    """
    import torch
    from torch import nn

    convolutions = sorted(name for name in model if name.startswith("Conv"))
    dense = sorted(name for name in model if name.startswith("Dense"))
    layers: list[Any] = []
    for name in convolutions:
        rows, columns, inputs, outputs = model[name]["kernel"].shape
        layer = nn.Conv2d(inputs, outputs, (rows, columns), padding="same")
        _copy(layer, model[name]["kernel"].transpose(3, 2, 0, 1), model[name]["bias"])
        layers += [layer, nn.MaxPool2d(2), nn.ReLU()]
    layers.append(nn.Flatten())
    for name in dense:
        kernel = model[name]["kernel"]
        if convolutions and name == dense[0]:  # jaxfl flattens height, width, channels; PyTorch channels first
            channels = model[convolutions[-1]]["kernel"].shape[-1]
            side = int((kernel.shape[0] // channels) ** 0.5)
            kernel = kernel.reshape(side, side, channels, -1).transpose(2, 0, 1, 3).reshape(kernel.shape)
        layer = nn.Linear(*kernel.shape)
        _copy(layer, kernel.T, model[name]["bias"])
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).to("cuda" if torch.cuda.is_available() else "cpu")


def _copy(layer: Any, kernel: np.ndarray, bias: np.ndarray) -> None:
    import torch

    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.ascontiguousarray(kernel)))
        layer.bias.copy_(torch.from_numpy(bias))


def torch_loop(
    model: dict[str, Any],
    x: np.ndarray,
    y: np.ndarray,
    *,
    learning_rate: float,
    epochs: int,
    batch_size: int | None = None,
) -> Side:
    """Returns what most papers' codes do: per client, load the served model, make SGD steps, add to a running mean.

    Args:
        model: initial parameters, as jaxfl keeps them.
        x: rows of every client `[N, T, ...]`, images channels last.
        y: labels `[N, T]`.
        learning_rate: of SGD.
        epochs: passes over a client's rows.
        batch_size: rows of a step, shuffled in every epoch; None takes all.
    """
    import os

    import torch
    from torch.nn.functional import cross_entropy

    torch.set_num_threads(os.cpu_count() or 1)
    module = torch_module(model)
    device = next(module.parameters()).device
    if x.ndim == 4 and any(name.startswith("Conv") for name in model):
        x = x[:, :, None]  # [N, T, 1, H, W]
    inputs, labels = torch.from_numpy(np.array(x)).to(device), torch.from_numpy(y.astype(np.int64)).to(device)
    count, rows = labels.shape
    width = batch_size or rows
    served = {name: value.clone() for name, value in module.state_dict().items()}

    def one_round() -> float:
        mean = {name: torch.zeros_like(value) for name, value in served.items()}
        total, steps = torch.zeros((), device=device), 0
        for client in range(count):
            module.load_state_dict(served)
            optimizer = torch.optim.SGD(module.parameters(), learning_rate)
            for _ in range(epochs):
                order = None if batch_size is None else torch.randperm(rows, device=device)
                for start in range(0, rows, width):
                    part = slice(None) if order is None else order[start : start + width]
                    optimizer.zero_grad()
                    loss = cross_entropy(module(inputs[client, part]), labels[client, part])
                    loss.backward()
                    optimizer.step()
                    total += loss.detach()
                    steps += 1
            for name, value in module.state_dict().items():
                mean[name].add_(value, alpha=1 / count)
        served.update(mean)
        return total.item() / steps

    def loss() -> float:
        module.load_state_dict(served)
        with torch.no_grad():
            losses = [cross_entropy(module(inputs[i]), labels[i]).item() for i in range(count)]
        return sum(losses) / count

    return Side("torch", one_round, loss)


def fedjax_rounds(
    task: Task,
    model: dict[str, Any],
    x: np.ndarray,
    y: np.ndarray,
    *,
    learning_rate: float,
    epochs: int,
    batch_size: int | None = None,
) -> Side:
    """Returns FedAvg from FedJAX's parts: its clients, batching, default jit backend, optimiser and running mean.

    It trains the very functions that jaxfl trains. The loop is that of `fedjax.algorithms.fed_avg` without its norms,
    with a sum of losses carried along. See `torch_loop` for the arguments; initial parameters may be any pytree.
    """
    fedjax: Any = import_fedjax()
    optimizer = fedjax.optimizers.sgd(learning_rate)
    clients = [(i, fedjax.ClientDataset({"x": x[i], "y": y[i]})) for i in range(len(x))]
    batch_size = batch_size or x.shape[1]
    steps = epochs * -(-x.shape[1] // batch_size)

    def start(served: Any, rng: Any) -> dict[str, Any]:
        return {"params": served, "opt": optimizer.init(served), "loss": jax.numpy.float32(0), "rng": rng}

    def step(state: dict[str, Any], batch: dict[str, Any]) -> dict[str, Any]:
        rng, _ = jax.random.split(state["rng"])
        rows = Batch(batch["x"], batch["y"], jax.numpy.ones(batch["y"].shape, bool))
        loss, gradient = jax.value_and_grad(task.loss)(state["params"], rows, None)
        opt, params = optimizer.apply(gradient, state["opt"], state["params"])
        return {"params": params, "opt": opt, "loss": state["loss"] + loss, "rng": rng}

    def finish(served: Any, state: dict[str, Any]) -> tuple[Any, Any]:
        return jax.tree.map(lambda a, b: b - a, served, state["params"]), state["loss"]

    train = fedjax.for_each_client(start, step, finish)
    holder = {"model": jax.tree.map(jax.numpy.asarray, model)}
    every = jax.jit(lambda params, x, y: task.loss(params, Batch(x, y, jax.numpy.ones(len(y), bool)), None))
    keys = iter(range(1 << 30))

    def one_round() -> float:
        rngs = list(jax.random.split(jax.random.key(next(keys)), len(clients)))
        hparams = fedjax.ShuffleRepeatBatchHParams(batch_size=batch_size, num_epochs=epochs)
        batches = [(i, rows.shuffle_repeat_batch(hparams), rng) for (i, rows), rng in zip(clients, rngs, strict=True)]
        total, losses, weight = fedjax.tree_util.tree_zeros_like(holder["model"]), [], 0.0
        for i, (delta, loss) in train(holder["model"], batches):
            size = float(len(clients[i][1]))
            total = fedjax.tree_util.tree_add(total, fedjax.tree_util.tree_weight(delta, size))
            weight += size
            losses.append(loss)
        mean = fedjax.tree_util.tree_inverse_weight(total, weight)
        holder["model"] = fedjax.tree_util.tree_add(holder["model"], mean)
        return float(np.mean(jax.device_get(losses))) / steps

    return Side(
        "fedjax", one_round, lambda: float(np.mean([every(holder["model"], *p) for p in zip(x, y, strict=True)]))
    )


def import_fedjax() -> Any:
    """Imports FedJAX 0.0.17, which asks for a name that JAX has since moved."""
    module: Any = jax
    module.tree_map = jax.tree_util.tree_map
    import fedjax

    return fedjax


ROUNDS: dict[str, Callable[..., Side]] = {
    "torch": lambda task, *arguments, **options: torch_loop(*arguments, **options),
    "fedjax": fedjax_rounds,
}
