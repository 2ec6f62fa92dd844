"""A plain PyTorch loop, as in most papers' codes: per client, load the served model, make SGD steps, add to a mean."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import serve
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.utils import parametrize

torch.set_num_threads(os.cpu_count() or 1)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Residual(nn.Module):
    """Layers whose outputs are added to those of a shorter way, or to the inputs."""

    def __init__(self, main: nn.Module, short: nn.Module):
        super().__init__()
        self.main, self.short = main, short

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.main(x) + self.short(x)


class Mean(nn.Module):
    """The mean of every channel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


class Positions(nn.Module):
    """Adds a vector to every position."""

    def __init__(self, vectors: np.ndarray):
        super().__init__()
        self.vectors = nn.Parameter(torch.from_numpy(vectors))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.vectors


class Attention(nn.Module):
    """Attention of every position to those up to it."""

    def __init__(self, heads: int, parts: dict[str, nn.Linear]):
        super().__init__()
        self.heads, self.parts = heads, nn.ModuleDict({f"to_{name}": part for name, part in parts.items()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        apart = [self.parts[f"to_{name}"](x).unflatten(-1, (self.heads, -1)) for name in ("query", "key", "value")]
        found = scaled_dot_product_attention(*(part.transpose(-3, -2) for part in apart), is_causal=True)
        return self.parts["to_out"](found.transpose(-3, -2).flatten(-2))


class Adapted(nn.Module):
    """A weight with adapters of low rank, for `torch.nn.utils.parametrize`."""

    def __init__(self, adapters: dict[str, np.ndarray], turned: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__()
        self.down, self.up = (nn.Parameter(torch.from_numpy(adapters[part])) for part in ("down", "up"))
        self.turned = turned

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + self.turned(self.down @ self.up).contiguous()  # or images lie otherwise behind it


def network(layers: list[list[Any]], model: dict[str, Any], shape: tuple[int, ...]) -> nn.Module:
    """Returns the network with these parameters.

    Args:
        layers: in order, `["conv", name, padding, stride]` (1 if there is none), `["dense", name]`, `["norm", name]` in
            groups, `["layernorm", name]`, `["embed", name]`, `["positions", name]`, `["attention", name]`, `["pool"]`,
            `["mean"]`, `["relu"]`, `["gelu"]`, `["flatten"]`, or `["residual", layers, layers]`.
        model: parameters by layer, images channels last. A kernel that has a `down` and an `up` is not trained, nor
            is then any other parameter but these.
        shape: of one input, channels first.
    """
    made = _layers(layers, model, shape)[0].to(DEVICE)
    if any("down" in parts for parts in model.values()):
        for name, parameter in made.named_parameters():
            parameter.requires_grad_(name.endswith((".down", ".up")))
    return made


def _layers(
    layers: list[list[Any]], model: dict[str, Any], size: tuple[int, ...]
) -> tuple[nn.Sequential, tuple[int, ...]]:
    """Returns layers, and the shape of their outputs, channels first."""
    made: list[nn.Module] = []
    for kind, *given in layers:
        parts = model[given[0]] if given and kind not in ("residual", "attention") else {}
        if kind == "conv":
            rows, columns, inputs, outputs = parts["kernel"].shape
            stride = given[2] if len(given) > 2 else 1
            layer = nn.Conv2d(inputs, outputs, (rows, columns), stride, given[1], bias="bias" in parts)
            _fill(layer, parts["kernel"], model.get(f"{given[0]}/kernel"), parts.get("bias"))
        elif kind == "dense":
            kernel = parts["kernel"]
            if len(size) == 3:  # the kernel expects channels last
                channels, height, width = size
                kernel = kernel.reshape(height, width, channels, -1).transpose(2, 0, 1, 3).reshape(kernel.shape)
            layer = nn.Linear(*kernel.shape)
            _fill(layer, kernel, model.get(f"{given[0]}/kernel"), parts["bias"])
            size = (*size[:-1], kernel.shape[1]) if len(size) == 2 else (kernel.shape[1],)
        elif kind in ("norm", "layernorm"):
            scale, bias = parts["scale"], parts["bias"]
            layer = nn.GroupNorm(32, len(scale), 1e-6) if kind == "norm" else nn.LayerNorm(len(scale), 1e-6)
            _copy(layer, scale, bias)
        elif kind == "embed":
            layer = nn.Embedding.from_pretrained(torch.from_numpy(parts["embedding"]), freeze=False)
            size = (*size, parts["embedding"].shape[1])
        elif kind == "attention":
            linear = {name: _head_layer(model[f"{given[0]}/{name}"]) for name in ("query", "key", "value", "out")}
            layer = Attention(model[f"{given[0]}/query"]["kernel"].shape[1], linear)
        elif kind == "residual":
            main, outputs = _layers(given[0], model, size)
            layer = Residual(main, _layers(given[1], model, size)[0])
            size = outputs
        elif kind == "positions":
            layer = Positions(parts["positions"])
        else:
            plain = {"pool": lambda: nn.MaxPool2d(2), "relu": nn.ReLU, "flatten": nn.Flatten, "mean": Mean}
            layer = {**plain, "gelu": lambda: nn.GELU("tanh")}[kind]()
        if kind in ("conv", "pool", "mean"):
            size = tuple(layer(torch.zeros(1, *size)).shape[1:])
        made.append(layer)
    return nn.Sequential(*made), size


def images_first(x: np.ndarray, layers: list[list[Any]]) -> np.ndarray:
    """Returns rows `[N, T, ...]` as the network takes them: channels first where there are convolutions."""
    if not any(kind == "conv" for kind, *_ in layers):
        return x.reshape(*x.shape[:2], -1)
    return x[:, :, None] if x.ndim == 4 else np.ascontiguousarray(x.transpose(0, 1, 4, 2, 3))


def _fill(layer: nn.Conv2d | nn.Linear, kernel: np.ndarray, adapters: dict[str, np.ndarray] | None, bias: Any) -> None:
    """Gives a layer its parameters, and a weight that is made of adapters if there are some."""

    def turned(weight: torch.Tensor) -> torch.Tensor:
        weight = weight.reshape(kernel.shape)
        return weight.permute(3, 2, 0, 1) if isinstance(layer, nn.Conv2d) else weight.T

    _copy(layer, turned(torch.from_numpy(kernel)).numpy(), bias)
    if adapters is not None:
        parametrize.register_parametrization(layer, "weight", Adapted(adapters, turned))


def _head_layer(parts: dict[str, np.ndarray]) -> nn.Linear:
    """Returns the dense layer of a part of an attention, whose kernel has an axis for the heads."""
    kernel, bias = parts["kernel"], parts["bias"]
    kernel = kernel.reshape(-1, bias.size)
    layer = nn.Linear(*kernel.shape)
    _copy(layer, kernel.T, bias.reshape(-1))
    return layer


def _copy(layer: Any, weight: np.ndarray, bias: np.ndarray | None) -> None:
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.ascontiguousarray(weight)))
        if bias is not None:
            layer.bias.copy_(torch.from_numpy(bias))


def ready(
    work: dict[str, Any], model: dict[str, Any], x: np.ndarray, y: np.ndarray
) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Returns the network, and rows and labels `[N, T, ...]` as it takes them, on the device."""
    x = images_first(x, work["layers"])
    module = network(work["layers"], model, x.shape[2:])
    return module, torch.from_numpy(x).to(DEVICE), torch.from_numpy(y.astype(np.int64)).to(DEVICE)


def mean_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns the mean loss of a batch, over its positions too where there are several."""
    return cross_entropy(logits.flatten(0, -2), labels.flatten())


def trained(module: nn.Module) -> dict[str, torch.Tensor]:
    """Returns the parameters that are trained."""
    return {name: value.detach() for name, value in module.named_parameters() if value.requires_grad}


def build(
    work: dict[str, Any], model: dict[str, Any], x: np.ndarray, y: np.ndarray, layout: Any = torch.contiguous_format
) -> serve.Made:
    """Returns the loop over the clients; images and kernels lie as `layout` says."""
    module, inputs, labels = ready(work, model, x, y)
    count, rows = labels.shape[:2]
    if layout is not torch.contiguous_format:
        module = module.to(memory_format=layout)
        inputs = inputs.flatten(0, 1).to(memory_format=layout).unflatten(0, (count, rows))
    width = work["batch_size"] or rows
    served = {name: value.clone() for name, value in trained(module).items()}

    def one_round() -> float:
        mean = {name: torch.zeros_like(value) for name, value in served.items()}
        total, steps = torch.zeros((), device=DEVICE), 0
        for client in range(count):
            module.load_state_dict(served, strict=False)
            optimizer = torch.optim.SGD(
                [one for one in module.parameters() if one.requires_grad], work["learning_rate"]
            )
            for _ in range(work["epochs"]):
                order = None if work["batch_size"] is None else torch.randperm(rows, device=DEVICE)
                for start in range(0, rows, width):
                    part = slice(None) if order is None else order[start : start + width]
                    optimizer.zero_grad()
                    loss = mean_loss(module(inputs[client, part]), labels[client, part])
                    loss.backward()
                    optimizer.step()
                    total += loss.detach()
                    steps += 1
            for name, value in trained(module).items():
                mean[name].add_(value, alpha=1 / count)
        served.update(mean)
        return total.item() / steps

    def loss() -> float:
        module.load_state_dict(served, strict=False)
        with torch.no_grad():
            losses = [mean_loss(module(inputs[i]), labels[i]).item() for i in range(count)]
        return sum(losses) / count

    return one_round, loss


if __name__ == "__main__":
    serve.serve(build, {"torch": torch.__version__})
