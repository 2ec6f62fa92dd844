"""Sources of two domains: two sources combined, or a source and its negative."""

import dataclasses

import numpy as np

from jaxfl.data import casts
from jaxfl.data.sources.base import Source


def combined(first: Source, second: Source) -> Source:
    """Returns the examples of two sources as one source with domains 0 and 1; classes have the same numbers in both.

    Raises:
        ValueError: the examples differ in shape, type or normalisation, or only one has an official test set.

    >>> from jaxfl.data.sources import digits
    >>> both = combined(digits.load(), negative(digits.load()))
    >>> both.inputs.shape, np.bincount(both.domains).tolist(), both.domain_names
    ((3594, 8, 8), [1797, 1797], ('digits', 'negative digits'))
    """
    traits = {
        "images of one shape": lambda source: source.inputs.shape[1:],
        "pixels of one type": lambda source: source.inputs.dtype,
        "one normalisation": lambda source: tuple(
            None if x is None else np.ravel(x).tolist() for x in (source.mean, source.std)
        ),
        "an official test set, or neither": lambda source: source.test_inputs is not None,
    }
    for trait, value_of in traits.items():
        if value_of(first) != value_of(second):
            raise ValueError(
                f"domains must have {trait}, got {first.name} ({value_of(first)}) and {second.name} "
                f"({value_of(second)}); choose another source, or the negative."
            )

    def join(field: str) -> np.ndarray | None:
        parts = [getattr(source, field) for source in (first, second)]
        return None if parts[0] is None or parts[1] is None else casts.join(field, parts)

    def domains(field: str) -> np.ndarray | None:
        parts = [getattr(source, field) for source in (first, second)]
        return None if parts[0] is None else np.repeat([0, 1], [len(part) for part in parts])

    return Source(
        first.name,
        np.concatenate([first.inputs, second.inputs]),
        casts.join("labels", [first.labels, second.labels]),
        max(first.num_classes, second.num_classes),
        join("test_inputs"),
        join("test_labels"),
        domains=domains("inputs"),
        test_domains=domains("test_inputs"),
        domain_names=(first.name, second.name),
        class_names=first.class_names if first.class_names == second.class_names else (),
        mean=first.mean,
        std=first.std,
    )


def negative(source: Source) -> Source:
    """Returns the source with black and white, and every other colour and its complement, exchanged.

    >>> from jaxfl.data.sources import digits
    >>> int((digits.load().inputs + negative(digits.load()).inputs).min())
    16
    """
    shown = (source.inputs,) if source.test_inputs is None else (source.inputs, source.test_inputs)
    brightest = max(images.max() for images in shown)
    test = None if source.test_inputs is None else brightest - source.test_inputs
    return dataclasses.replace(
        source, name=f"negative {source.name}", inputs=brightest - source.inputs, test_inputs=test
    )
