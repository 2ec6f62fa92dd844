"""Wires at random: clips, codes with and without error feedback, aggregators, thresholds and noise."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import jax

import jaxfl
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.methods import Method
from jaxfl.settings import options
from jaxfl.wire.wired import attacked

SHARE = 0.5  # of the cases have a wire
WIRES: tuple[Mapping[str, str], ...] = (  # options of a run
    {"clip": "0.5"},
    {"compress": "topk:0.1+qsgd:8"},
    {"compress": "randk:0.2", "clip": "0.5"},
    {"compress": "bfloat16"},
    {"compress": "topk:0.2", "error_feedback": "true"},
    {"compress": "sign", "error_feedback": "true", "clip": "1.0"},
    {"compress": "sign", "aggregator": "median"},
    {"aggregator": "trimmed:0.3"},
    {"aggregator": "krum:0.3"},
    {"aggregator": "multikrum:0.3"},
    {"aggregator": "geomedian", "compress": "topk:0.2", "error_feedback": "true"},
    {"aggregator": "cclip:0.5"},
    {"aggregator": "norm:0.5"},
    {"min_sum": "2"},
    {"clip": "0.5", "noise": "0.5"},
    {"clip": "0.5", "noise": "0.5", "compress": "qsgd:8"},
    {"clip": "0.5", "epsilon": "20", "delta": "0.01"},
    {"clip": "0.5", "noise": "0.5", "accounting": "poisson-assumed", "denominator": "noisy", "floor": "2.0"},
)


def wire(draw: random.Random) -> Mapping[str, str]:
    """Returns the options of a wire; none for some."""
    return draw.choice(WIRES) if draw.random() < SHARE else {}


def items(wire: Mapping[str, str]) -> list[str]:
    """Returns options as `key=value`."""
    return [f"{name}={value}" for name, value in wire.items()]


def with_wire(method: Method, wire: Mapping[str, str]) -> Method:
    """Returns the method with a wire, by its options.

    Raises:
        ValueError: the method does not take it.
    """
    run = options.route("fedavg", "iid-digits", items(wire))
    return jaxfl.wired(
        method,
        channel=options.channel(run),
        error_feedback=options.error_feedback(run),
        aggregator=options.aggregator(run),
        min_sum=run.run.get("min_sum", 1),
        privacy=options.privacy(run),
    )


def check_accepted(method: Method, data: FederatedData, cohort: int) -> None:
    """Raises ValueError or TypeError if a run of the method would be refused, which traces a round."""
    method.check(data, cohort)
    if method.privacy is not None and method.privacy.privacy.noise is None:
        method = method.privacy.with_noise(1.0)
    key, began = jax.random.key(0), data.in_programs().at(0)
    state = jax.eval_shape(method.init, key, began)
    jax.eval_shape(attacked(method), key, state, began, Cohort.of(range(cohort)))


def check_line(method: str, data: str, given: Sequence[str], cohort: int) -> None:
    """Raises ValueError or TypeError if a run by names would be refused.

    Args:
        method: its name.
        data: name of a data set.
        given: options, `key=value`.
        cohort: clients of a round.
    """
    settings = options.route(method, data, given)
    federation: Any = options.load(settings)
    check_accepted(options.build(settings, federation), federation, cohort)
