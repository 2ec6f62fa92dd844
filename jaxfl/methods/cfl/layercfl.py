"""LayerCFL and AdaCFL: CFL by the parameters of chosen layers.

Yuan, Qian, Yuan, Sun, Li and Li, "LayerCFL: an efficient federated learning with layer-wised clustering",
Cybersecurity 2023, Algorithms 1 and 2; Gong, Xing, Liu, Wang and Liu, "Adaptive Clustered Federated Learning for
Heterogeneous Data in Edge Computing", Mobile Networks and Applications 2022, as LayerCFL's paper describes it. Both
split clusters as CFL does (see `methods.cfl`); they compare clients by other vectors (equations 23 to 26):

    CFL, FMTL   cos(D_i, D_j)            of all layers
    LayerCFL    cos(D_i^p, D_j^p)        of one layer p: a convolution where the groups' inputs differ (feature skew), a
                                         dense layer where their labels do (label skew), all layers otherwise
    AdaCFL      |theta_i^p - theta_j^p|  of the dense layers

with D_i = theta_i - theta, the update of client i. eps2 applies to |D_i^p|, eps1 to the update of the whole model. From
one start, |theta_i^p - theta_j^p| = |D_i^p - D_j^p|. `jaxfl.layer_profile` measures which layer separates the groups;
`layers=profile.recommended()` takes it.

Which layers are dense and which are convolutions is decided by their modules (`jaxfl.models.layer_kinds`): the gates of
a recurrent cell are no dense layers, and the projections of an attention are no convolutions. Neither paper has such
networks; of LSTMs and transformers, the dense layers beside these parts are taken.

In the printed Algorithm 2 the update is that of the global model, and the condition of the feature-skewed branch is
missing; it must be the clients' updates, and a convolution.
"""

import re
from collections.abc import Sequence
from typing import Literal

import jax
import optax

from jaxfl import tree
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.methods.base import Method
from jaxfl.methods.cfl import PRESETS as CFL_PRESETS
from jaxfl.methods.cfl import cfl, preset_rule, splitting_clusters
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.models.layer_kinds import kernel_layers
from jaxfl.schema import Traceable, checked
from jaxfl.server.aggregate import Weighting
from jaxfl.tasks import Task

FEATURE_LAYER = 3  # index of the convolution that the paper takes under feature skew
Environment = Literal["feature", "label", "unknown"]
PRESETS = {"paper": {name: CFL_PRESETS["paper"][name] for name in ("eps1", "eps2", "gamma_max")}}  # where relative


@server_sees(Seen("representations", "a sketch of some layers of each client's update, and norms; sums of updates"))
@checked
def layercfl(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    environment: Environment = "unknown",
    layers: str | Sequence[str] | None = None,
    relative: bool = True,
    eps1: Traceable | None = None,
    eps2: Traceable | None = None,
    gamma_max: Traceable | None = None,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: Weighting = "rows",
    sketch_size: int | None = 4096,
    slots: int = 8,
) -> Method:
    """Returns LayerCFL; with all layers it is CFL.

    Args:
        task: what is learned.
        optimizer: the local optimiser; the paper has Adam and does not state its rate.
        environment: `"feature"`: the fourth convolution, as in the paper, or the last of fewer, or the first dense
            layer of a network without any; `"label"`: the first dense layer; `"unknown"`: all layers.
        layers: patterns (see `tree.matching`) of the parameters compared, or `"last kernel"`, instead of the
            environment's.
        relative: whether eps1, eps2 and gamma_max are multiples of observed values, see `cfl`; absolute ones must be
            given.
        eps1: a cluster is stationary when the norm of its mean update is below it; 0 never splits, which is FedAvg.
        eps2: a cluster may be split when the norm of a client's update, of the compared layers, is above it.
        gamma_max: bound that a split must exceed to be kept; 0 keeps every split.
        weighting: weights of the clients in a cluster's mean: `"rows"` or `"uniform"`.
        local_epochs, batch_size, sketch_size, slots: as in `cfl`.

    Raises:
        ValueError: an option is out of range, or a pattern matches no parameter.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=40)
    >>> task = jaxfl.classification(jaxfl.models.MLP(hidden=(32,), num_classes=10), data)
    >>> method = layercfl(task, optax.sgd(0.1), environment="feature")
    >>> result = jaxfl.run(method, data, rounds=40, seed=0)
    >>> result.state.vectors.shape, result.summary["num_clusters"]  # 64 inputs and a bias of each of 32 units
    ((8, 2080), 4)
    """
    return cfl(
        task,
        optimizer,
        layers=environment_layers(task, environment) if layers is None else layers,
        relative=relative,
        eps1=eps1,
        eps2=eps2,
        gamma_max=gamma_max,
        local_epochs=local_epochs,
        batch_size=batch_size,
        weighting=weighting,
        sketch_size=sketch_size,
        slots=slots,
    )


@server_sees(Seen("representations", "a sketch of the dense layers of each client's model, and norms; sums of updates"))
@checked
def adacfl(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    layers: str | Sequence[str] | None = None,
    relative: bool = True,
    eps1: Traceable | None = None,
    eps2: Traceable | None = None,
    gamma_max: Traceable | None = None,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: Weighting = "rows",
    sketch_size: int | None = 4096,
    slots: int = 8,
) -> Method:
    """Returns AdaCFL: CFL by Euclidean distances of the weights of the dense layers.

    Args:
        task: what is learned.
        optimizer: the local optimiser.
        layers: patterns (see `tree.matching`) of the parameters compared, or `"last kernel"`; None is all
            dense layers.
        relative, eps1, eps2, local_epochs, batch_size, weighting, sketch_size, slots: as in `layercfl`.
        gamma_max: bound that a split must exceed, a multiple of the distance of nearest peers; used if it is relative.

    Raises:
        ValueError: an option is out of range, or a pattern matches no parameter.
    """
    bounds = {"relative": relative, "eps1": eps1, "eps2": eps2, "gamma_max": gamma_max}
    compared = exact_patterns(dense_layers(task)) if layers is None else layers
    rule = preset_rule("paper", metric="l2", compare="weights", layers=compared, weighting=weighting, **bounds)
    train = local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size)
    return splitting_clusters(task, train, rule, sketch_size=sketch_size, slots=slots)


def environment_layers(task: Task, environment: Environment) -> str | list[str]:
    """Returns the patterns of the layer that the paper takes in an environment."""
    if environment == "unknown":
        return ".*"
    if environment == "label":
        return exact_patterns(dense_layers(task)[:1])
    convolutions = [layer.name for layer in kernel_layers(task.init) if layer.kind == "convolution"]
    return exact_patterns(convolutions[: FEATURE_LAYER + 1][-1:] or dense_layers(task)[:1])


def dense_layers(task: Task) -> list[str]:
    """Returns the names of the dense layers, in the order of the network.

    Raises:
        ValueError: the model has none.
    """
    found = [layer.name for layer in kernel_layers(task.init) if layer.kind == "dense"]
    if not found:
        model = jax.eval_shape(task.init, jax.random.key(0))
        raise ValueError(
            "layers must be given for a model without the kernel of a dense layer; its parameters are "
            f"{', '.join(tree.names(model))}."
        )
    return found


def exact_patterns(names: Sequence[str]) -> list[str]:
    """Returns patterns that match these layers and no others."""
    return [f"^{re.escape(name)}" for name in names]  # from the top: nested layers may have the same names
