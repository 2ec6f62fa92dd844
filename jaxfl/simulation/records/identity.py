"""The identity of a run: all that its numbers depend on, ready for JSON."""

import dataclasses
import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxfl import sampling
from jaxfl.data.clients import FederatedData
from jaxfl.data.digest import digest, num_hashed_bytes
from jaxfl.data.windows import take_rows
from jaxfl.sampling import Sampler
from jaxfl.simulation.evaluation.finetune import FineTune
from jaxfl.typing import AnyArray

LOOKED_AT = 1000  # rows of a mapped file that say which file it is
FIELDS = "data_fields"  # of an identity, see `fields_of`
FINGERPRINT = "fingerprint"  # in a config and a summary, see `federation_fingerprint`
DIGEST = "digest"  # in an identity, a config and a summary, see `jaxfl.data.digest`
MOST_HASHED = 1 << 30  # bytes; the digest of larger federations is computed by `jaxfl data NAME --digest` alone
DATA_CHECKSUM = "data_checksum"  # in a config, and among the options of a summary: of the user's own files
# Settings of JAX that change more than a rounding, with the values of runs whose config does not have them.
JAX_SETTINGS = {
    "jax_enable_x64": False,
    "jax_default_matmul_precision": None,
    "jax_default_prng_impl": "threefry2x32",
    "jax_threefry_partitionable": True,
    "jax_random_seed_offset": 0,
    "jax_high_dynamic_range_gumbel": False,
}


def jax_settings() -> dict[str, Any]:
    """Returns the settings of JAX that change numbers and differ from `JAX_SETTINGS`, wherever they were set.

    >>> with jax.enable_x64(True):
    ...     jax_settings()
    {'jax_enable_x64': True}
    """
    now = jax.config.values  # a name that another version of JAX lacks has its usual value
    return {name: now[name] for name, usual in JAX_SETTINGS.items() if now.get(name, usual) != usual}


def check_jax_settings(held: Mapping[str, Any], where: str, remedy: str) -> None:
    """Raises ValueError if JAX would compute a run with other settings than it was made with.

    Args:
        held: the run's identity or config.
        where: its folder, with the caller's name of it.
        remedy: another one, the end of the message.
    """
    now = jax_settings()
    for name, usual in JAX_SETTINGS.items():
        if (before := held.get(name, usual)) != (got := now.get(name, usual)):
            variable = name.upper()
            way = f"set {variable}={before}" if name in held else f"leave {variable} and jax.config.update out"
            raise ValueError(
                f"{where} holds a run that JAX computed with {name}={before!r}, got {got!r}, which gives other "
                f"numbers; {way}{remedy}."
            )


def check_config(config: Mapping[str, Any] | None) -> None:
    """Raises TypeError unless a caller's description of a run is ready for JSON."""
    if config is None:
        return
    if not isinstance(config, Mapping) or not all(isinstance(name, str) for name in config):
        raise TypeError(f"config must be a dictionary with names for keys, got {config!r}.")
    for name, value in config.items():
        try:
            json.dumps(value)
        except TypeError as error:
            raise TypeError(f"config[{name!r}] must be ready for JSON, got a {type(value).__name__}.") from error


def check_named(sampler: Sampler) -> None:
    """Raises ValueError if a sampler's name differs between processes, so that its run could not be resumed."""
    if re.search(r" at 0x[0-9a-fA-F]+", name := sampling.sampler_name(sampler)):
        raise ValueError(
            f"sampler must have a name to be known by in checkpoint_dir, got {name}, an address in memory; set its "
            "__name__ to a word that says what it draws."
        )


def identity_of(
    config: dict[str, Any],
    data: FederatedData,
    *,
    seed: int,
    size: int,
    sampler: Sampler = sampling.uniform,
    finetune: FineTune | None = None,
) -> dict[str, Any]:
    """Returns the identity of a run: all that its numbers depend on, ready for JSON.

    Args:
        config: what the caller says of the run: the method's name and options.
        data: the federation, by name and checksum.
        seed: of the run.
        size: clients of a cohort.
        sampler: draws the cohorts, by its name.
        finetune: what clients train before they are tested a second time; not its optimiser, which has no name.
    """
    identity = {**config, **jax_settings(), "seed": seed, "cohort": size, **data_identity(data)}
    if sampler is not sampling.uniform:
        identity["sampler"] = sampling.sampler_name(sampler)
    if finetune is not None:
        identity["finetune"] = {"epochs": finetune.epochs, "batch_size": finetune.batch_size}
        part = finetune.part if isinstance(finetune.part, str) else list(finetune.part)  # as JSON has it
        more = {"pull": (float(finetune.pull), 0.0), "part": (part, "all")}  # runs of before have neither
        identity["finetune"] |= {name: value for name, (value, usual) in more.items() if value != usual}
    return identity


def check_data(data: FederatedData, held: Mapping[str, Any], path: Path) -> None:
    """Raises ValueError if a run was made on another federation; `held` is its identity."""
    found = data_identity(data)
    if found["data"] != held.get("data"):
        wanted, got = (", ".join(one[name] for name in ("data", DIGEST) if name in one) for one in (held, found))
        raise ValueError(
            f"data must be those that {str(path)!r} ran on ({wanted}), got {got}: files have changed, "
            "or lie elsewhere; give load data_dir, or the data."
        )


def fingerprint(data: FederatedData) -> str:
    """Returns the data's name, its attack kind, and a checksum of all arrays; of a mapped file, of some rows.

    A mapped file (see `jaxfl.data.stored`) may be larger than memory: its shape counts, and `LOOKED_AT` of its rows.
    Causes of the groups do not count, which older versions did not have.
    """
    checksum = 0
    for leaf in jax.tree.leaves(_without_causes(data)):
        looked_at = leaf
        if isinstance(leaf, np.memmap) and len(leaf) > LOOKED_AT:
            checksum = zlib.crc32(str(leaf.shape).encode(), checksum)
            looked_at = take_rows(leaf, np.linspace(0, len(leaf) - 1, LOOKED_AT).astype(int))
        looked_at = np.ascontiguousarray(looked_at)
        checksum = zlib.crc32(looked_at.data, checksum) if looked_at.size else checksum
    name = data.name if data.attack is None else f"{data.name}-{data.attack.kind}"
    return f"{name}-{checksum:08x}"


def _without_causes(data: FederatedData) -> FederatedData:
    """Returns the federation without the causes of its groups."""
    drift = None if data.drift is None else dataclasses.replace(data.drift, causes={})
    return dataclasses.replace(data, causes={}, drift=drift)


def _without_stages(values: AnyArray) -> AnyArray:
    """Returns the values of a drift `[1]` or `[N, 1, ...]` without the axis of its one stage."""
    return values[0] if values.ndim == 1 else values[:, 0]


def data_identity(data: FederatedData) -> dict[str, Any]:
    """Returns the entries of an identity that say on which federation the run is."""
    identity = {"data": fingerprint(data), FIELDS: fields_of(data)}
    return identity | ({DIGEST: digest(data)} if num_hashed_bytes(data) <= MOST_HASHED else {})


def federation_fingerprint(identity: Mapping[str, Any]) -> str:
    """Returns what equal federations with equal splits have in common, and no others, from `data_identity`."""
    return f"{identity['data']}-{identity[FIELDS]}"


def fields_of(data: FederatedData) -> str:
    """Returns a checksum of which arrays there are, and of their shapes and types.

    >>> from jaxfl.data import synthetic
    >>> import dataclasses
    >>> data = synthetic.clustered_linear(4)
    >>> other = dataclasses.replace(data, rotation=data.group, group=None)  # the same numbers, but in another field
    >>> fingerprint(data) == fingerprint(other), fields_of(data) == fields_of(other)
    (True, False)
    """
    plain = _without_causes(data)
    if len(data.drift_rounds) == 1:  # one change was stored without an axis of stages before there were several
        plain = dataclasses.replace(plain, drift=jax.tree.map(_without_stages, plain.drift))
    leaves, _ = jax.tree_util.tree_flatten_with_path(plain)
    told = [f"{jax.tree_util.keystr(path)} {np.shape(leaf)} {leaf.dtype}" for path, leaf in leaves]
    return f"{zlib.crc32(' '.join(told).encode()):08x}"
