"""Small convolutional networks of published codes: convolutions with poolings, and dense layers behind them.

They start as PyTorch's layers do, which all of these codes use, and have no normalisation.
"""

from collections.abc import Sequence
from typing import ClassVar

from flax import linen as nn

from jaxfl.models.layers import Conv, Dense, Padding, as_images, as_vectors, average_pool, check_sizes, max_pool
from jaxfl.typing import Array


class SmallCNN(nn.Module):
    """Convolutions, each with an activation and a pooling of 2x2, and dense layers; a base of networks by name.

    The layers are `Conv_0`, `Conv_1`, ... and `Dense_0`, `Dense_1`, ..., of which the last is the head.

    Attributes:
        num_classes: number of logits.
        hidden: widths of the dense layers before the last one; a single number is one layer.
    """

    num_classes: int = 10
    hidden: Sequence[int] | int = ()

    convolutions: ClassVar[tuple[tuple[int, int, Padding], ...]] = ()  # channels, side of the kernel, padding
    activation = staticmethod(nn.relu)
    averages: ClassVar[bool] = False  # whether poolings take the mean, and not the maximum

    def __post_init__(self):
        check_sizes("hidden", self.hidden)
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        outputs = as_images(inputs)
        for channels, side, padding in self.convolutions:
            outputs = Conv(channels, (side, side), padding)(outputs)
            if self.averages:
                outputs = average_pool(self.activation(outputs))
            else:
                outputs = self.activation(max_pool(outputs))
        outputs = as_vectors(outputs)
        for width in check_sizes("hidden", self.hidden):
            outputs = self.activation(Dense(width)(outputs))
        return Dense(self.num_classes)(outputs)


class LenetEMNIST(SmallCNN):
    """The network of the official CFL code for EMNIST: conv5x5x6, pool, conv5x5x16, pool, dense; 18,506 parameters.

    CLoVE's for MNIST (`genconv`) is the same: 5,142 parameters for ten classes.

    References: Sattler et al., "Clustered federated learning: model-agnostic distributed multitask optimization under
    privacy constraints", 2020; CLoVE's code.
    """

    num_classes: int = 62
    convolutions = ((6, 5, "VALID"), (16, 5, "VALID"))


class StoCFLCifarCNN(SmallCNN):
    """StoCFL's network for CIFAR-10: conv5x5x6, pool, conv5x5x16, pool, dense 120, 84; 62,006 parameters.

    Three dense layers, as in the official code; the paper says two. pFedGraph's code has the same (`lenet-pfg`), where
    the paper says three convolutions.

    References: Zeng et al., "Stochastic clustered federated learning", 2023; Ye et al., "Personalized federated
    learning with inferred collaboration graphs", 2023.
    """

    hidden: Sequence[int] | int = (120, 84)
    convolutions = ((6, 5, "VALID"), (16, 5, "VALID"))


class LeNet5(SmallCNN):
    """LeNet-5 of FLUX's code: conv5x5x6 with padding, mean, conv5x5x16, mean, dense 120, 84.

    61,706 parameters for 28x28 images and ten classes, 83,126 for 32x32x3.

    Reference: FLUX's code; LeCun et al., "Gradient-based learning applied to document recognition", 1998.
    """

    hidden: Sequence[int] | int = (120, 84)
    convolutions = ((6, 5, "SAME"), (16, 5, "VALID"))
    averages = True


class PFLlibCNN(SmallCNN):
    """PFLlib's network for images: conv5x5x32, pool, conv5x5x64, pool, dense 512.

    582,026 parameters for 28x28 images and ten classes, 878,538 for 32x32x3, 5,694,600 for 64x64x3 and 200 classes.

    Reference: Zhang et al., "PFLlib: a beginner-friendly and comprehensive personalized federated learning library and
    benchmark", 2025.
    """

    hidden: Sequence[int] | int = (512,)
    convolutions = ((32, 5, "VALID"), (64, 5, "VALID"))


class FemnistCNN(PFLlibCNN):
    """The network of FedEM's and FedRC's codes for FEMNIST: `pfllib-cnn` with 2048 units; 2,278,334 parameters.

    LEAF's, of which it is made, pads its images (`leaf-femnist-cnn`).

    References: Marfoq et al., "Federated multi-task learning under a mixture of distributions", 2021; Guo et al.,
    "FedRC: tackling diverse distribution shifts challenge in federated learning by robust clustering", 2024.
    """

    num_classes: int = 62
    hidden: Sequence[int] | int = (2048,)


class FedRepCNN(SmallCNN):
    """FedRep's network for CIFAR-10: 2 x [conv5x5x64, pool], dense 120, 64; 307,842 parameters.

    Reference: Collins et al., "Exploiting shared representations for personalized federated learning", 2021.
    """

    hidden: Sequence[int] | int = (120, 64)
    convolutions = ((64, 5, "VALID"), (64, 5, "VALID"))


class FedCCFA28CNN(SmallCNN):
    """FedCCFA's network for 28x28 images: conv5x5x16, pool, conv5x5x32, pool, dense 128, leaky; 117,066 parameters.

    Reference: Chen et al., "Classifier clustering and feature alignment for federated learning under distributed
    concept drift", 2024.
    """

    hidden: Sequence[int] | int = (128,)
    convolutions = ((16, 5, "VALID"), (32, 5, 1))
    activation = staticmethod(nn.leaky_relu)


class FedCCFA32CNN(FedCCFA28CNN):
    """FedCCFA's network for 32x32 images: `fedccfa-28` with a conv3x3x64 and a pooling more; 107,690 parameters."""

    convolutions = ((16, 5, "VALID"), (32, 5, 1), (64, 3, "SAME"))


class RDPCFLCNN(SmallCNN):
    """R-DPCFL's network for 28x28 images: conv5x5x16, pool, conv5x5x32, pool, dense; 28,938 parameters.

    Reference: Malekmohammadi et al., "Differentially private clustered federated learning", 2024.
    """

    convolutions = ((16, 5, "SAME"), (32, 5, "SAME"))
