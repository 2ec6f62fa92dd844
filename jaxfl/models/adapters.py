"""Adapters from networks of flax.linen, flax.nnx or plain functions to two pure functions.

A run draws its initial models from its seed, and some methods draw several. So a network is given by the code that
makes it, and not with parameters that are drawn already.

flax.linen lets calls be intercepted; flax.nnx does not. There the layers of one module, put together for one call, get
classes whose calls are observed; the classes that others use meanwhile are not changed.
"""

import contextlib
import functools
import inspect
import sys
import types
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import flax.errors
import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxfl import tree
from jaxfl.models.fast.inspection import program_results
from jaxfl.typing import Array, Key, Params

if TYPE_CHECKING:
    from flax import nnx

PADDING_MESSAGE = (
    "module keeps running averages, which padding rows must not be part of; give __call__ an argument mask, and pass "
    "mask=mask[:, None] (as many axes as the rows have) to its BatchNorm layers."
)
MODE_MESSAGE = (
    "module must bring its running averages up to date while clients train, and use them in a test; give __call__ an "
    "argument train: bool, and pass nn.BatchNorm(use_running_average=not train)"
)


def check_running_averages(
    averages: Callable[[Params, Array, Array, Key | None], list[Array]],
    init: Callable[[Key], Params],
    x: Array,
    mask: Array,
    *,
    masked: bool,
) -> None:
    """Raises ValueError unless running averages move in training alone, and without padding rows.

    Args:
        averages: `(model, x, mask, key) -> averages`, those after a batch.
        init: draws a model.
        x: an example `[B, ...]`.
        mask: which rows are no padding `[B]`.
        masked: whether the network takes a mask.

    Raises:
        ValueError: the averages are brought up to date in a test, or not in training, or with padding.
    """
    if not masked:
        raise ValueError(PADDING_MESSAGE)
    model = jax.eval_shape(init, jax.random.key(0))
    for key in (None, jax.random.key(0)):
        try:
            results = program_results(lambda model, x, mask, key=key: averages(model, x, mask, key), model, x, mask)
        except flax.errors.ModifyScopeVariableError as error:
            raise ValueError(f"{MODE_MESSAGE} ({error}).") from error
        unchanged = [one.unchanged for one in results]
        if (any(unchanged) and key is not None) or (not all(unchanged) and key is None):
            raise ValueError(f"{MODE_MESSAGE}.")
        rows = len(jax.tree.leaves(model))  # the position of x among the arguments; the mask follows
        if any(rows in one.depends_on and rows + 1 not in one.depends_on for one in results):
            raise ValueError(PADDING_MESSAGE)
    # made of the mask a layer's averages are behind another layer, too, that leaves padding out in its place
    if len(results) > 2 and _reads_padding(averages, init, x):
        raise ValueError(PADDING_MESSAGE)


def _reads_padding(averages: Callable[..., list[Array]], init: Callable[[Key], Params], x: Array) -> bool:
    """Returns whether the contents of a padding row change some average, tried on a batch of three rows."""

    @jax.jit
    def difference(key: Key) -> Array:
        model, mask, shape = init(key), jnp.array([True, True, False]), (3, *x.shape[1:])
        if jnp.issubdtype(x.dtype, jnp.floating):
            rows, far = jax.random.normal(key, shape, x.dtype), 100
        else:
            rows, far = jnp.zeros(shape, x.dtype), 1  # tokens there may be two
        found = [averages(model, rows.at[2].set(value), mask, key) for value in (0, far)]
        return jnp.stack([(jnp.abs(a - b) / (1 + jnp.abs(a))).max() for a, b in zip(*found, strict=True)]).max()

    return bool(difference(jax.random.key(0)) > 1e-5)  # a hundred times what rounding may do


# `(usual, args, kwargs, context) -> outputs`, as flax.linen has it: the context knows the module and the method's name.
CallObserver = Callable[[Callable[..., Any], Any, Any, Any], Any]
OBSERVED_LAYERS = ("Dropout", "Embed", "MultiHeadAttention")  # of flax.nnx
_OBSERVER: ContextVar[CallObserver | None] = ContextVar("observer", default=None)
_MODULES: ContextVar[dict[tuple[str, ...], type] | None] = ContextVar("modules", default=None)


def nnx_classes(*names: str) -> tuple[type, ...]:
    """Returns classes of flax.nnx; none where it is not imported, so that no object can be of them.

    Its import takes as long as that of half of jaxfl, and most runs have networks of flax.linen.

    >>> from flax import nnx
    >>> nnx_classes("Module") == (nnx.Module,)
    True
    """
    module = sys.modules.get("flax.nnx")
    return () if module is None else tuple(getattr(module, name) for name in names)


@contextlib.contextmanager
def observed_calls(observer: CallObserver) -> Iterator[None]:
    """Shows an observer the calls of layers of flax.linen, and of `OBSERVED_LAYERS` of flax.nnx, in this thread."""
    token = _OBSERVER.set(observer)
    try:
        with nn.intercept_methods(observer):
            yield
    finally:
        _OBSERVER.reset(token)


@contextlib.contextmanager
def observed_modules() -> Iterator[dict[tuple[str, ...], type]]:
    """Collects the class of every module that a network of flax initialises meanwhile, by its path in the model."""
    found: dict[tuple[str, ...], type] = {}

    def observer(usual: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        if context.module.scope is not None:
            # the first at a path: nn.RNN calls its cell again under a path that is not the cell's own
            found.setdefault(context.module.path, type(context.module))
        return usual(*args, **kwargs)

    token = _MODULES.set(found)
    try:
        with nn.intercept_methods(observer):
            yield found
    finally:
        _MODULES.reset(token)


def observe_layers(module: "nnx.Module") -> None:
    """Makes the calls of a module's layers go through the observer, if there is one."""
    if _OBSERVER.get() is None:
        return
    from flax import nnx

    for _, layer in nnx.iter_graph(module):
        if isinstance(layer, nnx_classes(*OBSERVED_LAYERS)):
            layer.__class__ = _observed_class(type(layer))


@functools.cache  # JAX keeps every class of flax.nnx in a table
def _observed_class(layer: type) -> type:
    """Returns a layer's class, but its calls go through the observer."""

    def call(self, *args: Any, **kwargs: Any) -> Any:
        observer, usual = _OBSERVER.get(), types.MethodType(layer.__call__, self)
        context = types.SimpleNamespace(module=self, method_name="__call__")
        return usual(*args, **kwargs) if observer is None else observer(usual, args, kwargs, context)

    return type(layer.__name__, (layer,), {"__call__": call})


# Known arguments of `__call__` that switch a module between training and test, with their values in training.
MODE_ARGUMENTS = {
    "train": True,
    "training": True,
    "is_training": True,
    "deterministic": False,
    "use_running_average": False,
}
BATCH_STATS = "batch_stats"  # flax.linen's name of running averages
MODEL_PARTS = "a client's model is its parameters and the running averages of batch normalisation"


class NetworkInputs(Protocol):
    """The part of a batch that a network sees; `jaxfl.data.Batch` has it."""

    @property
    def x(self) -> Array:
        """The rows `[B, ...]`."""
        ...

    @property
    def mask(self) -> Array:
        """True for rows that are no padding `[B]` bool."""
        ...


class ModuleFactory(Protocol):
    """A factory of modules of flax.nnx: the class, or a function."""

    def __call__(self, *, rngs: "nnx.Rngs") -> "nnx.Module":
        """Returns a new module, whose parameters and dropout are drawn from `rngs`."""
        ...


class RunningAverages(NamedTuple):
    """Running averages of a network: leaves of its model that no gradient moves, kept for tests.

    Attributes:
        names: of these leaves, as `jaxfl.tree.names` has them.
        apply: `(model, batch, key) -> (outputs, model)`, in training: the model with the averages after the batch.
    """

    names: frozenset[str]
    apply: Callable[[Params, NetworkInputs, Key | None], tuple[Array, Params]]


class Functions(NamedTuple):
    """A network as two pure functions, to which all others are adapted; networks of any library can be written so.

    Attributes:
        init: `key -> model`, a pytree of arrays.
        apply: `(model, batch, key) -> outputs [B, ...]` of the rows `batch.x [B, ...]`, of which those where
            `batch.mask [B]` is False are padding; `key` is None outside training, where dropout is off.
        running: running averages among the leaves of the model, or None.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> def apply(model, batch, key):
    ...     return batch.x.reshape(len(batch.x), -1) @ model["kernel"]
    >>> network = Functions(lambda key: {"kernel": 0.1 * jax.random.normal(key, (64, 10))}, apply)
    >>> jaxfl.classification(network, data).fast.dense.first
    ('kernel',)
    """

    init: Callable[[Key], Params]
    apply: Callable[[Params, NetworkInputs, Key | None], Array]
    running: RunningAverages | None = None


@runtime_checkable
class Composed(Protocol):
    """A network that is built on another one, as `jaxfl.models.lora` builds them."""

    def functions(self, example: NetworkInputs) -> Functions:
        """Returns its two functions, for rows like an example `[1, ...]`."""
        ...


Network = nn.Module | ModuleFactory | Functions | Composed


def functions_of(network: Network, example: NetworkInputs) -> Functions:
    """Returns the two functions of a network.

    Args:
        network: a module of flax.linen; the class of a module of flax.nnx, or a function that makes one and takes
            `rngs`; or the two functions themselves.
        example: one row `[1, ...]`.

    Raises:
        ValueError: it is none of these, the two functions take other arguments, it keeps variables other than
            parameters and running averages, or these are not brought up to date in training alone, or with padding.
    """
    if isinstance(network, Functions):
        _check_signatures(network)
        return network
    if isinstance(network, nn.Module):
        return _linen_functions(network, example)
    if isinstance(network, Composed):
        return network.functions(example)
    if isinstance(network, nnx_classes("Module")):
        name = type(network).__name__
        raise ValueError(
            f"module must be a class of flax.nnx or a function of rngs, got an instance of {name}: each seed draws "
            f"another initial model. Give the class, {name}, or a function: lambda rngs: {name}(..., rngs=rngs)."
        )
    made = network.func if isinstance(network, functools.partial) else network
    of_class = isinstance(made, type) and issubclass(made, nnx_classes("Module"))
    if of_class or (callable(network) and "rngs" in inspect.signature(network).parameters):
        return _nnx_functions(network, example)
    if isinstance(network, type) and issubclass(network, nn.Module):
        raise ValueError(f"module must be an instance, got the class {network.__name__}; give {network.__name__}(...).")
    raise ValueError(
        "module must be a module of flax.linen, the class of one of flax.nnx (whose __init__ takes rngs), a function "
        f"of rngs that makes one, or jaxfl.models.Functions(init, apply), got {network!r}."
    )


def _check_signatures(network: Functions) -> None:
    """Raises ValueError unless the two functions take 1 and 3 arguments: swapped, they would fail somewhere within."""
    for name, count, form in (("init", 1, "key -> model"), ("apply", 3, "(model, batch, key) -> outputs")):
        function = getattr(network, name)
        try:
            inspect.signature(function).bind(*range(count))
        except TypeError as error:
            raise ValueError(
                f"{name} must be a function {form}, got {function!r} ({error}); give jaxfl.models.Functions(init, "
                "apply), in this order."
            ) from error
        except ValueError:  # a function of C has no signature
            pass


def _mode_arguments(accepted: Mapping[str, Any], batch: NetworkInputs, train: bool) -> dict[str, Any]:
    """Returns the arguments that a module's `__call__` takes, beside the rows."""
    values = {name: value == train for name, value in MODE_ARGUMENTS.items()} | {"mask": batch.mask}
    return {name: value for name, value in values.items() if name in accepted}


def _linen_functions(module: nn.Module, example: NetworkInputs) -> Functions:
    """Returns the functions of a module that keeps its parameters apart."""
    accepted = inspect.signature(module.__call__).parameters

    def variables(key: Key) -> Any:
        return module.init(key, example.x, **_mode_arguments(accepted, example, False))

    found = jax.eval_shape(variables, jax.random.key(0))
    if not {"params"} <= set(found) <= {"params", BATCH_STATS}:
        raise ValueError(f"module must keep no other variables, got {sorted(found)}; {MODEL_PARTS}.")
    names = frozenset(tree.names(found.get(BATCH_STATS, {})))
    if not names:

        def apply(model: Params, batch: NetworkInputs, key: Key | None) -> Array:
            rngs = {} if key is None else {"dropout": key}
            outputs = module.apply(
                {"params": model}, batch.x, rngs=rngs, **_mode_arguments(accepted, batch, key is not None)
            )
            return jnp.asarray(outputs)

        return Functions(lambda key: variables(key)["params"], apply)

    def together(model: Params, batch: NetworkInputs, key: Key | None) -> tuple[Array, Params]:
        given, rngs = _mode_arguments(accepted, batch, key is not None), {} if key is None else {"dropout": key}
        parts = {
            "params": _select_leaves(model, names, inside=False),
            BATCH_STATS: _select_leaves(model, names, inside=True),
        }
        if key is None:
            return jnp.asarray(module.apply(parts, batch.x, **given)), model
        outputs, after = module.apply(parts, batch.x, rngs=rngs, mutable=[BATCH_STATS], **given)
        return jnp.asarray(outputs), _merge(parts["params"], after[BATCH_STATS])

    def init(key: Key) -> Params:
        made = variables(key)
        return _merge(made["params"], made[BATCH_STATS])

    return _running_functions(init, together, names, example, accepted)


def _select_leaves(model: Params, names: frozenset[str], prefix: str = "", *, inside: bool) -> Params:
    """Returns the leaves of nested dictionaries that are among the names, or those that are not."""
    found = {}
    for name, node in model.items():
        if isinstance(node, Mapping):
            if below := _select_leaves(node, names, f"{prefix}{name}/", inside=inside):
                found[name] = below
        elif (f"{prefix}{name}" in names) == inside:
            found[name] = node
    return found


def _merge(one: Params, other: Params) -> Params:
    """Returns two nested dictionaries merged: a layer has its averages behind its parameters."""
    merged = dict(one)
    for name, node in other.items():
        merged[name] = _merge(merged.get(name, {}), node) if isinstance(node, Mapping) else node
    return merged


def _running_functions(
    init: Callable[[Key], Params],
    together: Callable[[Params, NetworkInputs, Key | None], tuple[Array, Params]],
    names: frozenset[str],
    example: NetworkInputs,
    accepted: Mapping[str, Any],
) -> Functions:
    """Returns the functions of a network with running averages.

    Raises:
        ValueError: see `check_running_averages`.
    """

    def averages(model: Params, x: Array, mask: Array, key: Key | None) -> list[Array]:
        batch: Any = types.SimpleNamespace(x=x, mask=mask)
        after = together(model, batch, key)[1]
        return [leaf for name, leaf in zip(tree.names(after), jax.tree.leaves(after), strict=True) if name in names]

    check_running_averages(averages, init, example.x, example.mask, masked="mask" in accepted)
    return Functions(init, lambda model, batch, key: together(model, batch, key)[0], RunningAverages(names, together))


def _nnx_functions(make: ModuleFactory, example: NetworkInputs) -> Functions:
    """Returns the functions of a module that is made anew for each key; inside `apply` it is put together again."""
    from flax import nnx

    def parts(key: Key) -> tuple[nnx.Module, Any, Any, Any]:
        module = make(rngs=nnx.Rngs(key))
        structure, model, rest = nnx.split(module, (nnx.Param, nnx.BatchStat), ...)
        return module, structure, model, rest

    def init(key: Key) -> Params:
        module, _, model, _ = parts(key)
        if (found := _MODULES.get()) is not None:  # flax.nnx makes its layers without a call of theirs
            layers = [(path, one) for path, one in nnx.iter_graph(module) if isinstance(one, nnx.Module)]
            found |= {tuple(map(str, path)): type(one) for path, one in layers}
        return _in_order(module, nnx.to_pure_dict(model))

    def look() -> Params:
        module, structure, model, rest = parts(jax.random.key(0))
        kept.append((structure, model, rest, inspect.signature(type(module).__call__).parameters))
        return nnx.to_pure_dict(model)

    kept: list[Any] = []
    jax.eval_shape(look)
    structure, model_state, rest, accepted = kept[0]
    others = {type(one).__name__ for _, one in nnx.to_flat_state(rest) if not isinstance(one, nnx.RngState)}
    if others:
        raise ValueError(f"module must keep no other variables, got {sorted(others)}; {MODEL_PARTS}.")
    flat = nnx.to_flat_state(model_state)
    names = frozenset("/".join(map(str, path)) for path, one in flat if isinstance(one, nnx.BatchStat))

    def together(model: Params, batch: NetworkInputs, key: Key | None) -> tuple[Array, Params]:
        keys = jax.random.key(0) if key is None else key
        streams = nnx.map_state(lambda path, one: one.replace(_stream_state(path, one, keys)), rest)
        values = nnx.map_state(lambda path, one: one.replace(_leaf_at(model, path)), model_state)
        module = nnx.merge(structure, values, streams)
        module.eval() if key is None else module.train()
        observe_layers(module)
        outputs = jnp.asarray(module(batch.x, **_mode_arguments(accepted, batch, key is not None)))
        if not names:
            return outputs, model
        return outputs, _in_order(module, nnx.to_pure_dict(nnx.state(module, (nnx.Param, nnx.BatchStat))))

    if names:
        return _running_functions(init, together, names, example, accepted)
    return Functions(init, lambda model, batch, key: together(model, batch, key)[0])


def _in_order(node: Any, values: Any) -> Any:
    """Returns nested values with text as names, in the order in which the module's layers were made."""
    if not isinstance(values, dict):
        return values
    names = [name for name in vars(node) if name in values] if hasattr(node, "__dict__") else []
    names += [name for name in values if name not in names]
    children = {name: getattr(node, name) if isinstance(name, str) and hasattr(node, name) else None for name in names}
    return {str(name): _in_order(children[name], values[name]) for name in names}


def _leaf_at(model: Params, path: tuple) -> Array:
    """Returns the array of a model at a path of flax.nnx."""
    for name in path:
        model = model[str(name)]
    return model


def _stream_state(path: tuple, one: Any, key: Key) -> Any:
    """Returns the fresh state of one of flax.nnx's streams of random numbers: a key of its own, or a count of 0."""
    if isinstance(one, nnx_classes("RngCount")):
        return jnp.zeros((), jnp.uint32)
    return jax.random.fold_in(key, zlib.crc32("/".join(map(str, path)).encode()))
