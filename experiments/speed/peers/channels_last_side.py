"""The loop of `torch_side.py` with images and kernels that have their channels last."""

import numpy as np
import serve
import torch
import torch_side


def build(work: dict, model: dict, x: np.ndarray, y: np.ndarray) -> serve.Made:
    """Returns the loop over the clients."""
    return torch_side.build(work, model, x, y, torch.channels_last)


if __name__ == "__main__":
    serve.serve(build, {"torch": torch.__version__})
