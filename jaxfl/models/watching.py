"""Who looks at the calls of a network's layers sees those of flax.nnx as those of flax.linen.

flax.linen lets calls be intercepted; flax.nnx does not. There the layers of one module, put together for one call, are
made layers of a kind that tells of its calls: nothing is changed in the classes that others use meanwhile.
"""

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from flax import linen as nn
from flax import nnx

# `(usual, args, kwargs, context) -> outputs`, as flax.linen has it: the context knows the module and the method's name.
Spy = Callable[[Callable[..., Any], Any, Any, Any], Any]
LAYERS = (nnx.Dropout, nnx.Embed, nnx.MultiHeadAttention)
_SPY: ContextVar[Spy | None] = ContextVar("spy", default=None)


@contextlib.contextmanager
def watched(spy: Spy) -> Iterator[None]:
    """Lets a spy see the calls of all layers of flax.linen, and of `LAYERS` of flax.nnx; in this thread alone."""
    token = _SPY.set(spy)
    try:
        with nn.intercept_methods(spy):
            yield
    finally:
        _SPY.reset(token)


def tell_of_calls(module: nnx.Module) -> None:
    """Makes a module's layers tell of their calls, if somebody watches."""
    if _SPY.get() is None:
        return
    for _, layer in nnx.iter_graph(module):
        if isinstance(layer, LAYERS):
            layer.__class__ = _telling(type(layer))


@functools.cache  # JAX keeps every class of flax.nnx in a table
def _telling(layer: type) -> type:
    """Returns the class of a layer whose calls go through the spy."""

    def call(self, *args: Any, **kwargs: Any) -> Any:
        spy, usual = _SPY.get(), types.MethodType(layer.__call__, self)
        context = types.SimpleNamespace(module=self, method_name="__call__")
        return usual(*args, **kwargs) if spy is None else spy(usual, args, kwargs, context)

    return type(layer.__name__, (layer,), {"__call__": call})
