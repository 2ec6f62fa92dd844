"""A plain PyTorch loop, as in most papers' codes: per client, load the served model, make SGD steps, add to a mean."""

import os
from typing import Any

import numpy as np
import serve
import torch
from torch import nn
from torch.nn.functional import cross_entropy

torch.set_num_threads(os.cpu_count() or 1)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def network(layers: list[list[str]], model: dict[str, Any], shape: tuple[int, ...]) -> nn.Module:
    """Returns the network with these parameters.

    Args:
        layers: `["conv", name, padding]`, `["dense", name]`, `["pool"]`, `["relu"]` or `["flatten"]`, in order.
        model: parameters by layer, images channels last.
        shape: of one input, channels first.
    """
    made: list[nn.Module] = []
    size: tuple[int, ...] = shape  # of the outputs so far, channels first
    for kind, *given in layers:
        if kind == "conv":
            kernel = model[given[0]]["kernel"]
            rows, columns, inputs, outputs = kernel.shape
            layer = nn.Conv2d(inputs, outputs, (rows, columns), padding=given[1])
            _copy(layer, kernel.transpose(3, 2, 0, 1), model[given[0]]["bias"])
        elif kind == "dense":
            kernel = model[given[0]]["kernel"]
            if len(size) == 3:  # the kernel expects channels last
                channels, height, width = size
                kernel = kernel.reshape(height, width, channels, -1).transpose(2, 0, 1, 3).reshape(kernel.shape)
            layer = nn.Linear(*kernel.shape)
            _copy(layer, kernel.T, model[given[0]]["bias"])
            size = (kernel.shape[1],)
        else:
            layer = {"pool": lambda: nn.MaxPool2d(2), "relu": nn.ReLU, "flatten": nn.Flatten}[kind]()
        if kind in ("conv", "pool"):
            size = tuple(layer(torch.zeros(1, *size)).shape[1:])
        made.append(layer)
    return nn.Sequential(*made).to(DEVICE)


def images_first(x: np.ndarray, layers: list[list[str]]) -> np.ndarray:
    """Returns rows `[N, T, ...]` as the network takes them: channels first where there are convolutions."""
    if not any(kind == "conv" for kind, *_ in layers):
        return x.reshape(*x.shape[:2], -1)
    return x[:, :, None] if x.ndim == 4 else np.ascontiguousarray(x.transpose(0, 1, 4, 2, 3))


def _copy(layer: nn.Conv2d | nn.Linear, kernel: np.ndarray, bias: np.ndarray) -> None:
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.ascontiguousarray(kernel)))
        layer.bias.copy_(torch.from_numpy(bias))


def ready(
    work: dict[str, Any], model: dict[str, Any], x: np.ndarray, y: np.ndarray
) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Returns the network, and rows and labels `[N, T, ...]` as it takes them, on the device."""
    x = images_first(x, work["layers"])
    module = network(work["layers"], model, x.shape[2:])
    return module, torch.from_numpy(x).to(DEVICE), torch.from_numpy(y.astype(np.int64)).to(DEVICE)


def build(work: dict[str, Any], model: dict[str, Any], x: np.ndarray, y: np.ndarray) -> serve.Made:
    """Returns the loop over the clients."""
    module, inputs, labels = ready(work, model, x, y)
    count, rows = labels.shape
    width = work["batch_size"] or rows
    served = {name: value.clone() for name, value in module.state_dict().items()}

    def one_round() -> float:
        mean = {name: torch.zeros_like(value) for name, value in served.items()}
        total, steps = torch.zeros((), device=DEVICE), 0
        for client in range(count):
            module.load_state_dict(served)
            optimizer = torch.optim.SGD(module.parameters(), work["learning_rate"])
            for _ in range(work["epochs"]):
                order = None if work["batch_size"] is None else torch.randperm(rows, device=DEVICE)
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

    return one_round, loss


if __name__ == "__main__":
    serve.serve(build, {"torch": torch.__version__})
