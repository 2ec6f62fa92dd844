"""Asynchronous aggregation: the server steps when some clients have arrived, and waits for no one.

`jaxfl.run(..., cohort=32, clock=jaxfl.ClientClock("lognormal", asynchronous="fedbuff", buffer=10))` keeps 32 clients in
flight. A round is a step of the server, after 10 arrivals (see `jaxfl.clock.asynchronous.events`); each client works
from what it was sent when it started, and counts by its staleness (see `jaxfl.clock.asynchronous.rule`). It is the
method's own code that runs (see `jaxfl.clock.asynchronous.versions`), so that its weights, its clusters, its personal
parts, the optimiser of its server and what its clients compress are the same; with as many contributions as clients in
flight, and clients that all take the same time, FedBuff is the synchronous method.

The data, and a schedule's learning rate, are those of the round in which a client arrives.
"""

from jaxfl.clock.asynchronous.method import (
    AsynchronousRounds,
    AsynchronousState,
    asynchronous,
    asynchronous_method,
    refusal,
)
from jaxfl.clock.asynchronous.rule import Rule, check_rule

__all__ = [
    "AsynchronousRounds",
    "AsynchronousState",
    "Rule",
    "asynchronous",
    "asynchronous_method",
    "check_rule",
    "refusal",
]
