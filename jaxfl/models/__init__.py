"""Networks: those of the papers, adapters for any others, their layers, weights and fast forms."""

from jaxfl.models.adapters import Functions
from jaxfl.models.cropped import IFCACifarCNN
from jaxfl.models.lora import lora
from jaxfl.models.networks import (
    MLP,
    MODELS,
    VGG16,
    AutoNetwork,
    CifarBenchmarkCNN,
    LeafCelebaCNN,
    LeafFemnistCNN,
    LenetEMNIST,
    Logistic,
    NormalisedMLP,
    StoCFLCifarCNN,
    StoCFLFemnistCNN,
    create,
)
from jaxfl.models.sequences import CharRNN, Transformer
from jaxfl.models.weights import load_weights, save_weights

__all__ = [
    "MLP",
    "MODELS",
    "VGG16",
    "AutoNetwork",
    "CharRNN",
    "CifarBenchmarkCNN",
    "Functions",
    "IFCACifarCNN",
    "LeafCelebaCNN",
    "LeafFemnistCNN",
    "LenetEMNIST",
    "Logistic",
    "NormalisedMLP",
    "StoCFLCifarCNN",
    "StoCFLFemnistCNN",
    "Transformer",
    "create",
    "load_weights",
    "lora",
    "save_weights",
]
