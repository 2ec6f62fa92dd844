"""Conventions of other libraries in inputs and labels: each is named in a warning or an error, with the line to write.

PyTorch has channels before rows and columns, Keras has classes in a column or as vectors of 0 and 1, and both scale
images before they normalise them. None of these is guessed: an array means what its type and shape say here.
"""

import math
import warnings

import numpy as np

CHANNELS = (1, 3, 4)  # of grey and colour images, without and with transparency
FEW = 20  # different whole numbers that may be classes
ASCII = 127  # largest byte of most texts
FILL = 1e20  # NumPy's value for masked entries
MAX_FLOAT = 1 << 24  # largest of the integers that float32 keeps apart
SAMPLE = 256  # rows that are looked at for whole numbers
SUM_ERROR = 1e-3  # of the probabilities of a row


def warn_input_conventions(
    inputs: np.ndarray, labels: np.ndarray, mean: np.ndarray | None, std: np.ndarray | None
) -> None:
    """Warns of channels before rows, of pixels that are not scaled or by the wrong number, and of large integers.

    Args:
        inputs: finite numbers `[P, ...]`.
        labels: of any kind; inputs are certainly tokens if these are tokens.
        mean, std: their normalisation, or None.
    """
    if not inputs.size:
        return
    if have_channels_first(inputs.shape):
        _warn(
            f"inputs of shape {inputs.shape} look like images with channels first, and are taken for images of "
            f"{inputs.shape[1]} x {inputs.shape[2]} pixels and {inputs.shape[3]} channels; use "
            "inputs.transpose(0, 2, 3, 1)."
        )
    if inputs.dtype.kind == "f" and inputs.max() == inputs.dtype.type(FILL):
        _warn(
            f"inputs have the value {FILL:g}, which NumPy writes for masked entries; leave these rows out or fill them."
        )
    if inputs.dtype == np.int32 and max(int(inputs.max()), -int(inputs.min())) > MAX_FLOAT:
        _warn(
            f"inputs are integers from {inputs.min()} to {inputs.max()}, and a network of numbers rounds those above "
            f"{MAX_FLOAT}; renumber tokens, or subtract the mean of numbers and convert them to floats."
        )
    if inputs.dtype == np.uint8 and mean is not None and std is not None:
        high = int(inputs.max())
        if high == 1 and std.min() >= 128:
            _warn(
                f"inputs of uint8 are 0 and 1, and become 0 and {1 / float(std.max()):.3g} by "
                f"std={float(std.max()):g}; set std=1, or use inputs.astype(np.float32)."
            )
        elif high > 1 and std.max() <= 1 and np.abs(mean).max() <= 1:
            _warn(
                f"mean and std are in the units of inputs, here 0..{high}, got std={float(std.max()):g}; multiply both "
                "by 255 if they are those of images from 0 to 1."
            )
    elif inputs.dtype == np.int32 and are_flat_images(inputs.shape) and labels.shape != inputs.shape:
        low, high = int(inputs.min()), int(inputs.max())
        if low >= 0 and ASCII < high <= 255:
            _warn(
                f"inputs are integers 0..{high} in rows of {inputs.shape[1]}, and are taken for tokens, which are not "
                "scaled; for pixels use inputs.astype(np.uint8)."
            )
    elif inputs.dtype.kind == "f" and (inputs.ndim > 2 or are_flat_images(inputs.shape)):
        low, high = float(inputs.min()), float(inputs.max())
        sample = inputs[np.linspace(0, len(inputs) - 1, min(len(inputs), SAMPLE)).astype(np.int64)]
        flat = sample.reshape(len(sample), -1)
        pixels = (flat == np.rint(flat)).all() and (flat != flat[:, :1]).any()  # rows of one number are no images
        if std is None and low >= 0 and 1 < high <= 255 and pixels:
            _warn(
                f"inputs are floats that are whole numbers 0..{high:g}, and floats are not scaled; divide them by "
                f"{high:g}, or pass std={high:g}."
            )
        elif std is not None and 0 <= low < high <= 1 and std.min() >= 16:
            _warn(
                f"mean and std are in the units of inputs, here {low:g}..{high:g}, got std={float(std.min()):g}; "
                "divide both by 255 if they are those of images from 0 to 255."
            )


def are_flat_images(shape: tuple[int, ...]) -> bool:
    """Returns whether inputs `[P, F]` may be square images in rows, grey or of three colours, of 8 x 8 pixels or more.

    >>> are_flat_images((9, 784)), are_flat_images((9, 3072)), are_flat_images((9, 100, 1)), are_flat_images((9, 80))
    (True, True, False, False)
    """
    return len(shape) == 2 and shape[1] >= 64 and any(math.isqrt(size) ** 2 == size for size in _grey_sizes(shape[1]))


def _grey_sizes(size: int) -> list[int]:
    """Returns the numbers of pixels of images with `size` values."""
    return [size // channels for channels in CHANNELS if size % channels == 0]


def have_channels_first(shape: tuple[int, ...]) -> bool:
    """Returns whether inputs `[P, ...]` have the shape of images `[P, C, H, W]` and not of `[P, H, W, C]`.

    >>> have_channels_first((9, 3, 32, 32)), have_channels_first((9, 32, 32, 3)), have_channels_first((9, 3, 3, 3))
    (True, False, False)
    """
    return len(shape) == 4 and shape[1] in CHANNELS and min(shape[2:]) > 4


def are_one_hot(labels: np.ndarray) -> bool:
    """Returns whether labels `[P, L]` of any type are 0 and a single 1 in each row, as classes of Keras are.

    >>> are_one_hot(np.eye(3)), are_one_hot(np.array([[1, 1], [0, 1]]))
    (True, False)
    """
    if labels.ndim != 2 or labels.shape[1] < 2 or not len(labels):
        return False
    return bool(((labels == 0) | (labels == 1)).all() and (labels.astype(bool).sum(1) == 1).all())


def warn_label_conventions(labels: np.ndarray) -> None:
    """Warns of floats and bools that look like classes.

    Args:
        labels: as the user gives them.
    """
    if labels.dtype.kind == "b" and are_one_hot(labels):
        _warn(
            f"labels of type bool have a single True in each of the {len(labels)} rows, and are learned as "
            f"{labels.shape[1]} labels, each right or wrong by itself; for classes use labels.argmax(1)."
        )
    if labels.dtype.kind != "f" or not labels.size:
        return
    several = labels.ndim == 2 and labels.shape[1] > 1
    if are_one_hot(labels) or (several and are_one_hot(labels > 0) and (np.abs(labels) == 1).all()):
        _warn(
            f"labels of type {labels.dtype} have a single 1 in each of the {len(labels)} rows, and are predicted as "
            f"{labels.shape[1]} numbers, by regression; for classes use labels.argmax(1)."
        )
    elif several and labels.min() >= 0 and np.allclose(labels.sum(1), 1, rtol=0, atol=SUM_ERROR):
        _warn(
            f"labels of type {labels.dtype} have a sum of 1 in each of the {len(labels)} rows, as probabilities of "
            f"classes have, and are predicted as {labels.shape[1]} numbers, by regression; for classes use "
            "labels.argmax(1)."
        )
    elif (different := few_whole_numbers(labels)) is not None:
        column = "labels[:, 0]" if labels.ndim == 2 else "labels"
        if several:
            if not set(different.tolist()) <= {-1.0, 0.0, 1.0}:
                return  # several numbers of a row, which are no classes
            column = "labels > 0"
        elif different.tolist() == [-1.0, 1.0]:
            column = f"({column} > 0).astype(int)"
        elif (different == np.arange(len(different))).all():
            column = f"{column}.astype(int)"
        elif (different == np.arange(1, len(different) + 1)).all():
            column = f"({column} - 1).astype(int)"
        else:
            column = f"np.unique({column}, return_inverse=True)[1]"
        _warn(
            f"labels of type {labels.dtype} are {len(different)} different whole numbers, {different[0]:g} to "
            f"{different[-1]:g}, and are predicted as numbers, by regression; for "
            f"{'several labels of a row' if several else 'classes'} use {column}."
        )


def few_whole_numbers(values: np.ndarray) -> np.ndarray | None:
    """Returns the different values of numbers that may be classes, few whole ones; None for other numbers.

    >>> few_whole_numbers(np.array([3.0, 1.0] * 3)), few_whole_numbers(np.array([0.5, 1.0] * 3))
    (array([1., 3.]), None)
    """
    different = np.unique(values)
    few = 2 <= len(different) <= min(FEW, len(values) / 3)
    return different if few and (different == np.rint(different)).all() else None


def warn_single_label(labels: np.ndarray) -> None:
    """Warns of classes or numbers to predict that are the same in all rows, which every model learns.

    Args:
        labels: as the user gives them.
    """
    if len(labels) > 1 and labels.dtype.kind in "iuf" and labels.ndim == 1 and (labels == labels[0]).all():
        what = "number" if labels.dtype.kind == "f" else "class"
        _warn(
            f"labels have one {what} only, {labels[0]}, in all {len(labels)} rows, so that there is nothing to learn; "
            "check from which column they are."
        )


def _warn(text: str) -> None:
    """Issues a warning at the line that calls `federate`."""
    warnings.warn(text, stacklevel=4)
