"""The wire: what happens between a client's update and the server's mean, for any method.

`wired(method, channel=..., aggregator=...)` returns a method whose clients send their updates through a channel
(clipped, sparse or in few bits) to a server with a robust aggregator, which a few attackers cannot move far. It runs,
resumes and streams as every method does.

>>> import jaxfl, optax
>>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
>>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
>>> channel = jaxfl.wire.chain(jaxfl.wire.top_k(0.01), jaxfl.wire.qsgd(8), jaxfl.wire.clip(1.0))
>>> method = jaxfl.wired(jaxfl.methods.fedavg(task, optax.sgd(0.1)), channel=channel)
>>> jaxfl.run(method, data, rounds=1, cohort=4, seed=0).history.column("bytes_up")
[79.0]
"""

from jaxfl.server.aggregators import (
    Aggregator,
    centred_clip,
    geometric_median,
    krum,
    median,
    multi_krum,
    norm_bound,
    trimmed_mean,
)
from jaxfl.wire.channel import CodeSize, Transform, bfloat16, chain, clip, qsgd, random_k, sign, top_k
from jaxfl.wire.privacy import Privacy
from jaxfl.wire.wired import wired

__all__ = [
    "Aggregator",
    "CodeSize",
    "Privacy",
    "Transform",
    "bfloat16",
    "centred_clip",
    "chain",
    "clip",
    "geometric_median",
    "krum",
    "median",
    "multi_krum",
    "norm_bound",
    "qsgd",
    "random_k",
    "sign",
    "top_k",
    "trimmed_mean",
    "wired",
]
