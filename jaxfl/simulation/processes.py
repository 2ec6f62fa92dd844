"""Runs of several processes: one of them writes, and all of them share decisions.

Each process has some of the devices, on one host or on several, and all of them run the same program in the same order;
what one decides by its own clock, memory or disk must be sent to the others, or they would wait for ever.
Everything here but `first` is a meeting: it returns when every process has come. Of one process there is nothing to
hear, and nothing is computed.
"""

import contextvars
import json
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

T = TypeVar("T")
_acting: contextvars.ContextVar[bool] = contextvars.ContextVar("acting", default=False)  # where the others wait


def several() -> bool:
    """Returns whether this is one of several processes, see `jax.distributed.initialize`."""
    return jax.process_count() > 1


def first() -> bool:
    """Returns whether this is the first process, which writes."""
    return jax.process_index() == 0


def gathered(*numbers: int) -> np.ndarray:
    """Returns the numbers of every process `[P, M]` int64.

    >>> gathered(3, 2**40).tolist()
    [[3, 1099511627776]]
    """
    own = np.asarray(numbers, np.int64)
    if not several():
        return own[None]
    # as bytes: JAX would make int32 of them
    gathered_bytes = np.asarray(multihost_utils.process_allgather(own.view(np.uint8)))
    return np.ascontiguousarray(gathered_bytes.reshape(jax.process_count(), -1)).view(np.int64)


def least(number: int | None) -> int | None:
    """Returns the smallest number of a process, none of them below 0; None where one has None.

    >>> least(3), least(None)
    (3, None)
    """
    found = int(gathered(-1 if number is None else number).min())
    return None if found < 0 else found


def from_first(array: np.ndarray) -> np.ndarray:
    """Returns the first process's array, bit for bit.

    Args:
        array: of the others only its shape and type count, which must be the first one's.
    """
    if not several() or not array.size:
        return array
    own = np.ascontiguousarray(array).reshape(-1).view(np.uint8)  # as bytes: what is sent is a sum, and -0 + 0 is 0
    sent = np.asarray(multihost_utils.broadcast_one_to_all(own))
    return sent.view(array.dtype).reshape(array.shape)


def by_first(act: Callable[[], T]) -> T:
    """Calls a function at the first process alone, and returns its result at every process.

    Args:
        act: called at the first process; returns something that JSON can say. What it calls in turn by this function is
            called at once.

    Returns:
        What it returned, at every process; at the others as JSON says it.

    Raises:
        ValueError, OSError: `act` raised it at the first process; at the others with the same message.
    """
    if not several() or _acting.get():
        return act()
    answer, error = {}, None
    if first():
        acting = _acting.set(True)
        try:
            answer = {"value": act()}
        except (ValueError, OSError) as raised:
            error = raised
            answer = {"error": str(raised), "disk": isinstance(raised, OSError)}
        finally:
            _acting.reset(acting)
    text = json.dumps(answer).encode()
    length = int(gathered(len(text))[0, 0])
    received = json.loads(from_first(np.frombuffer(text.ljust(length)[:length], np.uint8)).tobytes())
    if error is not None:
        raise error
    if "error" in received:
        raise (OSError if received["disk"] else ValueError)(received["error"])
    return answer["value"] if first() else received["value"]


def check_same(what: Any) -> None:
    """Raises ValueError at every process if processes have different arguments.

    Args:
        what: is to be the same at all; ready for JSON.

    Raises:
        ValueError: it is not; at every process.
    """
    if not several():
        return
    said = gathered(zlib.crc32(json.dumps(what).encode()))[:, 0]
    if (said != said[0]).any():
        other = int(np.argmax(said != said[0]))
        raise ValueError(
            f"processes must make the same run, but what process {other} is given differs from what process 0 is; give "
            "all of them the same data, options and seed."
        )
