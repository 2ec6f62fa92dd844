"""The layer profile of a network: LayerCFL's measurement of which layers separate the true groups of clients.

All clients train one global model by FedAvg. After every round, the clients' local models and their updates are
compared layer by layer, by cosine and by Euclidean distance, and a gap says of each layer whether the true groups can
be read from it. The paper finds early convolutions best where inputs differ between groups, and the first dense layer
where labels do.

Reference: Yuan et al., "LayerCFL: an efficient federated learning with layer-wised clustering", 2023, equations 21-26,
figures 4, 5, 8 and 9.
"""

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxfl import engine, tree
from jaxfl.client.steps import Epochs
from jaxfl.client.training import Train, local_train
from jaxfl.clustering import gaps as gap_of
from jaxfl.clustering.distances import cosine, l2
from jaxfl.cohort import Cohort, PlanChoice, resolve_plan
from jaxfl.data.clients import FederatedData
from jaxfl.methods.averaging import averaging
from jaxfl.methods.base import Method, takes_part
from jaxfl.random import check_seed
from jaxfl.schema import checked, quoted
from jaxfl.server import aggregate
from jaxfl.simulation.program import available_bytes, one_round
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

Distance = Literal["cos", "l2", "delta_cos", "delta_l2"]  # equations 25, 23, 26, 24; the cosines are similarities
DISTANCES: tuple[Distance, ...] = get_args(Distance)
Form = Literal["all_pairs", "bipartition"]
FORMS = {"all_pairs": gap_of.gap_all_pairs, "bipartition": gap_of.gap_bipartition}
ALL = "all"  # what the last "layer" is called, all parameters together
COPIES = 5  # of a layer of all clients that are alive while it is compared
MEMORY = 16 << 30  # bytes taken for granted where the device does not say how many it has


class LayerProfile(NamedTuple):
    """Similarities of N clients after each of R rounds, by each of L layers.

    Attributes:
        layers: names `[L]` in the order of the network: kinds by the alphabet (`Conv` before `Dense`), each by number;
            the last is `"all"`, all parameters together.
        sizes: parameters of each `[L]`, biases included.
        matrices: float32 `[R, L, N, N]` by name of `DISTANCES`. A client whose model is not finite has NaN.
        group: true groups `[N]` int32; -1 for clients that take no part (held out, or without training rows), whom
            gaps leave out.
        loss: mean training loss of each round `[R]`, over the clients that take part.
    """

    layers: tuple[str, ...]
    sizes: tuple[int, ...]
    matrices: dict[str, np.ndarray]
    group: np.ndarray
    loss: np.ndarray

    @checked
    def gaps(self, distance: Distance = "delta_cos", form: Form = "all_pairs") -> np.ndarray:
        """Returns the gap of every layer after every round, float32 `[R, L]`; above 0, the layer tells the groups.

        Gap1 (equation 21) for cosines, Gap2 (equation 22) for Euclidean distances.

        Args:
            distance: one of the profile's.
            form: `"all_pairs"`, every pair across groups below every pair within; or `"bipartition"`, no group torn by
                the best split in two. See `jaxfl.clustering.gaps`.

        Raises:
            ValueError: an unknown form, or a distance that was not profiled.
        """
        if distance not in self.matrices:
            raise ValueError(
                f"distance must be one that was profiled ({', '.join(self.matrices)}), got {quoted(distance)}; give "
                f"it to layer_profile(..., distances=...)."
            )
        matrices = jnp.asarray(self.matrices[distance])
        similarity = matrices if distance.endswith("cos") else -matrices
        return np.asarray(jax.vmap(jax.vmap(FORMS[form], (0, None)), (0, None))(similarity, jnp.asarray(self.group)))

    def recommended(self) -> str:
        """Returns the layer to cluster by: of the largest all-pairs gap of update cosines after the last round.

        A single layer, never `"all"`; the first of equals. Whether its gap is above 0 is for `gaps` to say.

        Raises:
            ValueError: `"delta_cos"` was not profiled.
        """
        return self.layers[int(self.gaps("delta_cos", "all_pairs")[-1, :-1].argmax())]


@checked
def layer_profile(
    data: FederatedData,
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    rounds: int = 30,
    local_epochs: Epochs = 1,
    batch_size: int | None = 50,
    weighting: aggregate.Weighting = "rows",
    distances: Sequence[Distance] = DISTANCES,
    seed: int = 0,
    plan: PlanChoice = "auto",
    callback: Callable[[int], None] | None = None,
) -> LayerProfile:
    """Trains one model by FedAvg with all clients in every round, and compares their local models layer by layer.

    The model is that of `jaxfl.methods.fedavg` at the same seed. A layer is what parameters have in their names before
    the last key: kernel and bias together, though the paper does not say whether biases count. The models of all
    clients are kept for the length of a round, so that distances are exact: 20 of VGG16 take 1.2 GB, and comparing them
    by their largest layer as much again. More than is free on the device is refused.

    Args:
        data: the federation; it must know its true groups. Of one that drifts, as it is before.
        task: what is learned.
        optimizer: the local optimiser, whose state starts fresh in every round: `optax.adam(...)` is the paper's Adam
            for each client, with the rate that the paper does not give.
        rounds: R; 30 in the paper.
        local_epochs: E; not in the paper.
        batch_size: B; None takes all of a client's rows at once.
        weighting: `"rows"` (n_i / n) or `"uniform"` (1 / N) in the average.
        distances: some of `DISTANCES`, of local models (`"cos"`, `"l2"`) or of updates, local minus global
            (`"delta_..."`). From a common start the two Euclidean ones are the same but for rounding.
        seed: of the initial model and the batches.
        plan: a `Plan` (chunk and devices), or `"auto"`.
        callback: called after every round with its number, from 1.

    Raises:
        ValueError: an argument is out of range, the data has no groups, or the models do not fit.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.MLP(hidden=(8,), num_classes=10), data)
    >>> profile = layer_profile(data, task, optax.sgd(0.1), rounds=2, distances=("delta_cos",))
    >>> profile.layers, profile.sizes, profile.gaps().shape
    (('Dense_0', 'Dense_1', 'all'), (520, 90, 610), (2, 3))
    >>> profile.recommended() in profile.layers[:2]
    True
    """
    train = local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size)
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    _check_profile(data, shapes, rounds, distances)
    key = jax.random.key(check_seed(seed))
    plan = resolve_plan(plan, shapes, data.num_clients)

    taking_part = np.asarray(takes_part(data))
    everybody = Cohort(jnp.arange(data.num_clients, dtype=jnp.int32), jnp.asarray(taking_part), plan)
    layers = by_layer(shapes)
    leaves = jax.tree.leaves(shapes)
    sizes = [sum(leaves[place].size for place in places) for places in layers.values()]

    data = data.at(0).on_device()
    method = averaging(task, _with_model(train), weighting=weighting)
    advance = engine.jit(functools.partial(_round, method))
    state = jax.jit(method.init)(key, data)
    matrices, losses = {name: [] for name in distances}, []
    for round in range(rounds):
        start = jax.tree.leaves(state.model)
        state, (loss, models) = advance(key, state, data, everybody)
        ends = jax.tree.leaves(models)
        of_layers = [
            jax.tree.map(
                np.asarray, _compare_layer([ends[p] for p in places], [start[p] for p in places], tuple(distances))
            )
            for places in layers.values()
        ]
        del models, ends  # one such stack at a time
        for name in distances:
            one = [found[name] for found, _ in of_layers]
            norms = np.stack([lengths[name.startswith("delta")] for _, lengths in of_layers])  # [L - 1, N]
            matrices[name].append(np.stack([*one, _combine_layers(name, np.stack(one), norms)]))
        losses.append(np.asarray(loss)[taking_part].mean())
        if callback is not None:
            callback(round + 1)
    return LayerProfile(
        layers=(*layers, ALL),
        sizes=(*sizes, sum(sizes)),
        matrices={name: np.stack(rows) for name, rows in matrices.items()},
        group=np.where(taking_part, np.asarray(data.group), -1).astype(np.int32),
        loss=np.array(losses),
    )


def by_layer(model: Params) -> dict[str, list[int]]:
    """Returns the places of each layer's parameters among the leaves, layers in the order of `LayerProfile.layers`.

    >>> by_layer({"Conv_10": {"bias": 0, "kernel": 0}, "Conv_2": {"kernel": 0}, "scale": 0})
    {'Conv_2': [2], 'Conv_10': [0, 1], 'scale': [3]}
    """
    layers: dict[str, list[int]] = {}
    for place, name in enumerate(tree.names(model)):
        layers.setdefault(name.rpartition("/")[0] or name, []).append(place)

    def numbers_by_size(layer: str) -> list[tuple[str, int]]:
        return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", layer)]

    return dict(sorted(layers.items(), key=lambda item: numbers_by_size(item[0])))


def _with_model(train: Train) -> Train:
    """Returns local training that reports the trained model beside the loss: `(loss [], model)`."""

    def run(key: Key, model: Params, data: FederatedData, client: Array, **options: Any) -> tuple[Params, Any]:
        trained, loss = train(key, model, data, client, **options)
        return trained, (loss, trained)

    return run


def _round(method: Method, key: Key, state: Any, data: FederatedData, everybody: Cohort) -> tuple[Any, Any]:
    """Returns the state after a round of all clients, and what they report: `(losses [N], models [N, ...])`."""
    state, log = one_round(method, key, state, data, data.num_clients, everybody.plan, cohort=everybody)
    return state, log.info.loss


@functools.partial(jax.jit, static_argnames="names")
def _compare_layer(
    sent: list[Array], start: list[Array], names: tuple[str, ...]
) -> tuple[dict[str, Array], list[Array]]:
    """Returns the matrices `[N, N]` of one layer, and the norms `[N]` of its weights and of its updates.

    Args:
        sent: the layer's parameters in the local models, `[N, ...]` each.
        start: the same in the global model, `[...]` each.
        names: of `DISTANCES`.
    """
    count = sent[0].shape[0]
    weights = jnp.concatenate([leaf.reshape(count, -1) for leaf in sent], 1).astype(jnp.float32)  # [N, d]
    start_weights = jnp.concatenate([leaf.reshape(-1) for leaf in start]).astype(jnp.float32)[None]  # [1, d]
    finite = jnp.isfinite(weights).all(1)  # [N]; a diverged client would spoil the mean that l2 computes about
    weights = jnp.where(finite[:, None], weights, start_weights)
    points = [weights, weights - start_weights]
    found = {}
    for name in names:
        matrix = (cosine if name.endswith("cos") else l2)(points[name.startswith("delta")])
        found[name] = jnp.where(finite[:, None] & finite[None, :], matrix, jnp.nan)
    return found, [jnp.linalg.norm(rows, axis=1) for rows in points]


def _combine_layers(name: str, matrices: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """Returns the matrix of all layers together: squared distances add up, and so do inner products.

    Args:
        name: of the distance.
        matrices: one by layer `[L - 1, N, N]`.
        norms: of what is compared, by layer `[L - 1, N]`.
    """
    matrices, norms = matrices.astype(float), norms.astype(float)
    if name.endswith("l2"):
        return np.sqrt(np.square(matrices).sum(0)).astype(np.float32)
    length = np.sqrt(np.square(norms).sum(0))
    scale = length[:, None] * length[None, :]
    with np.errstate(invalid="ignore"):  # norms may overflow
        products = (matrices * norms[:, :, None] * norms[:, None, :]).sum(0)
        cosines = np.divide(products, scale, out=products.copy(), where=scale != 0)  # zero rows: 0, as ever
    return np.clip(cosines, -1, 1).astype(np.float32)


def _check_profile(data: FederatedData, shapes: Params, rounds: int, distances: Sequence[str]) -> None:
    if data.group is None:
        raise ValueError(
            "data.group must hold the true groups, got None: a gap asks which clients belong together; give "
            "federate(..., group=...) or take a data set with groups, such as rotated-digits."
        )
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}; the paper takes 30.")
    unknown = [name for name in distances if name not in DISTANCES]
    if isinstance(distances, str) or not distances or unknown:
        raise ValueError(f"distances must be some of {', '.join(DISTANCES)}, got {distances!r}; give a tuple of names.")
    leaves = jax.tree.leaves(shapes)
    largest = max(tree.num_bytes([leaves[place] for place in places]) for places in by_layer(shapes).values())
    needed = data.num_clients * (tree.num_bytes(leaves) + COPIES * largest)
    available = available_bytes() or MEMORY
    if needed > available:
        raise ValueError(
            f"data must have few enough clients for all their models to be kept: {data.num_clients} of them, and room "
            f"to compare them, take {needed / 1e9:.1f} GB, and {available / 1e9:.1f} GB are free; use fewer clients or "
            "a smaller model (VGG16 has `width` and `hidden`)."
        )
