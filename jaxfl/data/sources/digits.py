"""Digits of scikit-learn, the embedded source that needs no download."""

from importlib.metadata import distribution

import numpy as np

from jaxfl.data.sources.base import Folder, Source, SourceEntry


def load(data_dir: Folder = None) -> Source:
    """Returns scikit-learn's embedded digits: 1,797 images of 8 x 8 pixels, 0 to 16, standardised; needs no file.

    >>> source = load()
    >>> source.inputs.shape, source.num_classes
    ((1797, 8, 8), 10)
    """
    # The file of `sklearn.datasets.load_digits`; importing scikit-learn takes longer than a small run.
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = np.loadtxt(str(file), delimiter=",")
    images, labels = table[:, :-1].astype(np.uint8).reshape(-1, 8, 8), table[:, -1].astype(np.int64)
    # Standardised, because with pixels in 0..1 the clients' gradients are too similar to separate four rotations.
    return Source("digits", images, labels, 10, mean=float(images.mean()), std=float(images.std()))


ENTRY = SourceEntry(
    load,
    find=None,
    summary="scikit-learn's 1,797 digits of 8 x 8 pixels, embedded",
    licence="CC BY 4.0 (UCI)",
    num_bytes=0,
    num_classes=10,
    model=("mlp", {"hidden": (128,)}),
)
