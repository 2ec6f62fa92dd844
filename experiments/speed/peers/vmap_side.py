"""PyTorch with many clients in one call: `torch.func.vmap` over a chunk of them; the chunk is what is fastest here."""

import itertools
import time
from typing import Any

import numpy as np
import serve
import torch
from torch.func import functional_call, grad_and_value, vmap
from torch_side import DEVICE, mean_loss, ready, trained

CHUNKS = (1, 4, 16, 64, 256, 1024, 4096)  # that are tried, until one is slower


def build(work: dict[str, Any], model: dict[str, Any], x: np.ndarray, y: np.ndarray) -> serve.Made:
    """Returns rounds whose clients train side by side."""
    module, inputs, labels = ready(work, model, x, y)
    count, rows = labels.shape[:2]
    width = work["batch_size"] or rows
    served = {name: value.clone() for name, value in trained(module).items()}

    def loss_of(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return mean_loss(functional_call(module, parameters, (x,)), y)

    gradients, losses = vmap(grad_and_value(loss_of)), vmap(loss_of, in_dims=(None, 0, 0))

    def train(start: int, stop: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Returns the models of some clients after their steps, and the sum of their losses."""
        clients = torch.arange(start, stop, device=DEVICE)[:, None]
        models = {name: value.expand(stop - start, *value.shape).clone() for name, value in served.items()}
        total = torch.zeros((), device=DEVICE)
        for _ in range(work["epochs"]):
            order = None if work["batch_size"] is None else torch.rand(stop - start, rows, device=DEVICE).argsort(1)
            for first in range(0, rows, width):
                place = slice(start, stop) if order is None else (clients, order[:, first : first + width])
                steps, values = gradients(models, inputs[place], labels[place])
                for name, step in steps.items():
                    models[name].sub_(step, alpha=work["learning_rate"])
                total += values.sum()
        return models, total

    def made(chunk: int) -> tuple[dict[str, torch.Tensor], float]:
        """Returns the mean model of a round, and the mean loss of its steps."""
        mean = {name: torch.zeros_like(value) for name, value in served.items()}
        total = torch.zeros((), device=DEVICE)
        with torch.no_grad():  # `grad_and_value` asks for the gradients that it needs
            for start in range(0, count, chunk):
                models, loss = train(start, min(start + chunk, count))
                total += loss
                for name, value in models.items():
                    mean[name].add_(value.sum(0), alpha=1 / count)
        return mean, total.item() / (count * work["epochs"] * -(-rows // width))

    def seconds(chunk: int) -> float:
        made(chunk)
        began = time.perf_counter()
        made(chunk)
        return time.perf_counter() - began

    chunk, best = 1, float("inf")
    for tried in itertools.takewhile(lambda tried: tried < 4 * count, CHUNKS):
        if (took := seconds(min(tried, count))) > best:
            break
        chunk, best = min(tried, count), took

    def one_round() -> float:
        mean, loss = made(chunk)
        served.update(mean)
        return loss

    def loss() -> float:
        with torch.no_grad():
            values = [losses(served, *some) for some in zip(inputs.split(chunk), labels.split(chunk), strict=True)]
        return torch.cat(values).mean().item()

    return one_round, loss


if __name__ == "__main__":
    serve.serve(build, {"torch": torch.__version__})
