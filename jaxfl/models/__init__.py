"""Networks: those of the papers, adapters for any others, their layers, weights and fast forms."""

from jaxfl.models.adapters import Functions
from jaxfl.models.cropped import IFCACifarCNN
from jaxfl.models.initialisation import pytorch_start
from jaxfl.models.lora import lora
from jaxfl.models.networks import (
    MLP,
    MODELS,
    VGG16,
    AutoNetwork,
    CifarBenchmarkCNN,
    LeafCelebaCNN,
    LeafFemnistCNN,
    LinearMLP,
    Logistic,
    NormalisedMLP,
    StoCFLFemnistCNN,
    create,
)
from jaxfl.models.sequences import CharRNN, Transformer
from jaxfl.models.small_cnns import (
    RDPCFLCNN,
    FedCCFA28CNN,
    FedCCFA32CNN,
    FedRepCNN,
    FemnistCNN,
    LeNet5,
    LenetEMNIST,
    PFLlibCNN,
    StoCFLCifarCNN,
)
from jaxfl.models.texts import FastText, TextCNN
from jaxfl.models.vision import (
    MobileNetV2,
    ResNet9,
    ResNet18,
    ResNet18GroupNorm,
    ResNet18Torchvision,
    VisionTransformer,
)
from jaxfl.models.weights import load_weights, save_weights

__all__ = [
    "AutoNetwork",
    "CharRNN",
    "CifarBenchmarkCNN",
    "FastText",
    "FedCCFA28CNN",
    "FedCCFA32CNN",
    "FedRepCNN",
    "FemnistCNN",
    "Functions",
    "IFCACifarCNN",
    "LeNet5",
    "LeafCelebaCNN",
    "LeafFemnistCNN",
    "LenetEMNIST",
    "LinearMLP",
    "Logistic",
    "MLP",
    "MODELS",
    "MobileNetV2",
    "NormalisedMLP",
    "PFLlibCNN",
    "RDPCFLCNN",
    "ResNet18",
    "ResNet18GroupNorm",
    "ResNet18Torchvision",
    "ResNet9",
    "StoCFLCifarCNN",
    "StoCFLFemnistCNN",
    "TextCNN",
    "Transformer",
    "VGG16",
    "VisionTransformer",
    "create",
    "load_weights",
    "lora",
    "pytorch_start",
    "save_weights",
]
