"""pfl-research: `FederatedAveraging` of its simulated backend in one process, on PyTorch.

It tells no training loss and does not shuffle; neither is timed on its side.
"""

import asyncio
import importlib.metadata
import os
import queue
import threading
import traceback
from typing import Any

import numpy as np
import serve
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch_side import images_first, mean_loss, network


class Network(torch.nn.Module):
    """A network with the loss and metrics that pfl asks for."""

    def __init__(self, layers: torch.nn.Module):
        super().__init__()
        self.layers = layers

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Returns the mean loss of a batch."""
        return mean_loss(self.layers(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        """Returns the sum of the losses."""
        return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}


class Turns(TrainingProcessCallback):
    """Holds the training process after every round until the next one is asked for; its thread waits meanwhile."""

    def __init__(self):
        self.asked: queue.Queue[None] = queue.Queue()
        self.made: queue.Queue[None] = queue.Queue()

    def on_train_begin(self, *, model: Any) -> Metrics:
        """Waits for the first round."""
        self.asked.get()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        """Says that a round is made, and waits for the next."""
        self.made.put(None)
        self.asked.get()
        return False, Metrics()

    def round(self) -> float:
        """Makes a round."""
        self.asked.put(None)
        self.made.get()
        return float("nan")  # no training loss is told


def build(work: dict[str, Any], model: dict[str, Any], x: np.ndarray, y: np.ndarray) -> serve.Made:
    """Returns the rounds of pfl's training process."""
    x = images_first(x, work["layers"])
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y.astype(np.int64))
    module = Network(network(work["layers"], model, x.shape[2:]))
    users = [Dataset((inputs[i], labels[i])) for i in range(len(x))]
    sampler = get_user_sampler("minimize_reuse", list(range(len(users))))
    federation = FederatedDataset(lambda user: users[user], sampler)
    trained = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0))
    many = 1 << 30
    whole = NNAlgorithmParams(many, evaluation_frequency=many, train_cohort_size=len(users), val_cohort_size=0)
    local = NNTrainHyperParams(
        local_batch_size=work["batch_size"],
        local_num_epochs=work["epochs"],
        local_learning_rate=work["learning_rate"],
    )
    turns, backend = Turns(), SimulatedBackend(federation, federation, postprocessors=[WeightByDatapoints()])

    def train() -> None:
        asyncio.set_event_loop(asyncio.new_event_loop())
        try:
            FederatedAveraging().run(whole, backend, trained, local, callbacks=[turns], send_metrics_to_platform=False)
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # or the other thread would wait for ever

    threading.Thread(target=train, daemon=True).start()

    def loss() -> float:
        with torch.no_grad():
            return float(np.mean([module.loss(*rows).item() for rows in zip(inputs, labels, strict=True)]))

    return turns.round, loss


if __name__ == "__main__":
    serve.serve(build, {name: importlib.metadata.version(name) for name in ("pfl", "torch")})
