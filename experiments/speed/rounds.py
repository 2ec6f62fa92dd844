"""W1, W2, W3, W5, W6, W7 and W9 to W11: rounds of local training, jaxfl beside its peers.

    python -m experiments.speed.rounds w3-mlp --clients 1000 --environments DIR
    python -m experiments.speed.rounds            # all of them, the peers that this Python can import
    python -m experiments.speed.rounds w1 --memory --out FILE    # what each side holds at most, in place of its time

All clients take part and have as many rows. The sides shuffle with generators of their own, so the loss after round 1
is compared for five full-batch steps, where there is nothing to shuffle; the timed rounds shuffle. Where their batches
have all rows of a client, the loss after their own first round is compared. Peers: see `peers`.

Operations of a step, two for a multiplication and an addition: the forward pass and the gradients of weights and inputs
of every layer, without the gradient of the first layer's input. Choosing among K models is K forward passes. Pooling,
normalisation, relu, softmax and the updates are not counted; of attention all pairs of positions are.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

import jaxfl
from experiments.speed import measure, networks, ours, peers
from jaxfl.data.synthetic import prototypes
from jaxfl.methods import Method
from jaxfl.simulation.program import peak_bytes

ROTATIONS = 4


Layers = tuple[tuple[Any, ...], ...]


class Work(NamedTuple):
    """What a round is.

    Attributes:
        what: in words.
        shape: of one input.
        classes: L.
        rows: training rows of a client.
        network: the module, from the width of its hidden dense layer.
        hidden: this width; None where there is none.
        layers: the network for the peers, see `peers/torch_side.py`.
        learning_rate, epochs, batch_size: of local training; a batch of None takes all rows.
        clients: by default.
        compared: clients of the round after which losses are compared; None for all.
        method: a factory of jaxfl.
        models: how many there are to choose among.
        peers: those that can do the work.
        own: the network once more, as somebody else would write it; leaves in the same order.
        tokens: whether rows are sequences of tokens, of which every next one is predicted.
        rank: of adapters, which are trained in place of the network; 0 trains the network.
    """

    what: str
    shape: tuple[int, ...]
    classes: int
    rows: int
    network: Callable[[Any], nn.Module]
    hidden: int | None
    layers: Layers
    learning_rate: float
    epochs: int
    batch_size: int | None
    clients: int
    compared: int | None = None
    method: str = "fedavg"
    models: int = 1
    peers: tuple[str, ...] = ("fedjax", "pfl", "torch", "vmap")
    own: Callable[[Any], Any] | None = None
    tokens: bool = False
    rank: int = 0


def convolution(index: int, padding: str) -> Layers:
    """Returns a convolution, relu behind it."""
    return ("conv", f"Conv_{index}", padding), ("relu",)


def resnet() -> Layers:
    """Returns the layers of `networks.ResNet`."""
    layers: list[tuple[Any, ...]] = [("conv", "conv", 1), ("norm", "norm"), ("relu",)]
    for place, stride in enumerate(networks.strides()):
        name = f"block_{place}"
        main = [("conv", f"{name}/conv1", 1, stride), ("norm", f"{name}/norm1"), ("relu",)]
        main += [("conv", f"{name}/conv2", 1), ("norm", f"{name}/norm2")]
        short = [("conv", f"{name}/short_conv", 0, stride), ("norm", f"{name}/short_norm")] if stride > 1 else []
        layers += [("residual", tuple(main), tuple(short)), ("relu",)]
    return (*layers, ("mean",), ("dense", "dense"))


def transformer(count: int) -> Layers:
    """Returns the layers of `jaxfl.models.Transformer`, of which there are `count`."""
    layers: list[tuple[Any, ...]] = [("embed", "Embed_0"), ("positions", "")]
    for place in range(count):
        attention = ("attention", f"MultiHeadDotProductAttention_{place}")
        wide = ("dense", f"Dense_{2 * place}"), ("gelu",), ("dense", f"Dense_{2 * place + 1}")
        layers.append(("residual", (("layernorm", f"LayerNorm_{2 * place}"), attention), ()))
        layers.append(("residual", (("layernorm", f"LayerNorm_{2 * place + 1}"), *wide), ()))
    return (*layers, ("layernorm", f"LayerNorm_{2 * count}"), ("dense", f"Dense_{2 * count}"))


DENSE = (("flatten",), ("dense", "Dense_0"), ("relu",), ("dense", "Dense_1"))
MLP = {"network": lambda hidden: jaxfl.models.MLP((hidden,), 10), "classes": 10, "layers": DENSE}
LEAF = {
    "shape": (28, 28),
    "classes": 62,
    "network": lambda hidden: jaxfl.models.LeafFemnistCNN(num_classes=62, hidden=hidden),
    "hidden": 2048,
    "layers": (*convolution(0, "same"), ("pool",), *convolution(1, "same"), ("pool",), *DENSE),
}
# At 0.1 the first steps triple the loss, and differences of rounding grow with them: at half the width the losses of
# one program in float32 and float64 differ by 3e-3 after five steps, at 0.003 by 5e-6. At 0.003 those of jaxfl and a
# PyTorch loop differ by 2e-7, 0 and 9e-6 after three rounds of five steps; at 0.01 by 3e-3 after the first.
RESNET_RATE = 0.003
RESNET = {
    "shape": (32, 32, 3),
    "classes": networks.CLASSES,
    "rows": 50,
    "network": lambda width: networks.ResNet(width),
    "hidden": 64,
    "layers": resnet(),
    "learning_rate": RESNET_RATE,
    "epochs": 1,
    "clients": 10,
    "compared": 2,
}
VISION_PEERS = ("fedjax", "pfl", "torch", "channels_last", "vmap")
WORKS = {
    "w1": Work(
        what="network of pfl's CIFAR-10 benchmark",
        shape=(32, 32, 3),
        classes=10,
        rows=50,
        network=lambda hidden: jaxfl.models.CifarBenchmarkCNN(num_classes=10),
        hidden=None,
        layers=(*convolution(0, "valid"), *convolution(1, "valid"), ("pool",), *DENSE),
        learning_rate=0.1,
        epochs=1,
        batch_size=10,
        clients=20,
        own=lambda hidden: networks.OwnNetwork(),
    ),
    "w2": Work("LEAF's CNN", rows=100, learning_rate=0.05, epochs=1, batch_size=20, clients=8, **LEAF),
    "w3-logistic": Work(
        what="logistic 60-10",
        shape=(60,),
        classes=10,
        rows=50,
        network=lambda hidden: jaxfl.models.Logistic(10),
        hidden=None,
        layers=(("flatten",), ("dense", "Dense_0")),
        learning_rate=0.05,
        epochs=1,
        batch_size=10,
        clients=1000,
    ),
    "w3-mlp": Work(
        "784-200-10", (784,), rows=50, hidden=200, learning_rate=0.05, epochs=1, batch_size=10, clients=1000, **MLP
    ),
    "w5": Work(
        what="IFCA, 4 models 784-200-10",
        shape=(28, 28),
        rows=200,
        hidden=200,
        learning_rate=0.05,
        epochs=1,
        batch_size=50,
        clients=120,
        method="ifca",
        models=4,
        peers=("fedjax",),
        **MLP,
    ),
    "w6": Work(
        what="784-2048-10",
        shape=(28, 28),
        rows=50,
        hidden=2048,
        learning_rate=0.1,
        epochs=5,
        batch_size=None,
        clients=64,
        peers=("torch", "vmap"),
        **MLP,
    ),
    "w7": Work(
        what="FeSEM, 4 centres, LEAF's CNN",
        rows=60,
        learning_rate=0.03,
        epochs=1,
        batch_size=20,
        clients=3550,
        method="fesem",
        models=4,
        peers=(),
        **LEAF,
    ),
    **{
        f"w9-{size}": Work(
            "ResNet-18 with group normalisation",
            batch_size=size,
            peers=VISION_PEERS,
            own=lambda width: functools.partial(networks.OwnResNet, width=width),
            **RESNET,
        )
        for size in (10, 50)
    },
    "w10": Work(
        what="transformer of 2 layers, next of 80 characters",
        shape=(80,),
        classes=80,
        rows=40,
        network=lambda width: jaxfl.models.Transformer(80, width=width),
        hidden=64,
        layers=transformer(2),
        learning_rate=0.1,
        epochs=1,
        batch_size=10,
        clients=20,
        tokens=True,
    ),
    "w11": Work(
        "adapters of rank 8 on ResNet-18 with group normalisation",
        batch_size=10,
        peers=("torch", "channels_last", "vmap"),
        rank=8,
        **RESNET,
    ),
}


def gflop(work: Work, model: dict[str, Any], clients: int) -> float:
    """Returns 10^9 operations of a round."""
    forward, _ = multiplications(work.layers, peers.by_layer(model), work.shape)
    choosing = work.models * sum(forward) if work.method == "ifca" else 0
    training = work.epochs * (2 * forward[0] + 3 * sum(forward[1:]))
    return 2 * work.rows * clients * (training + choosing) / 1e9


def multiplications(
    layers: Layers, model: dict[str, dict[str, Any]], size: tuple[int, ...]
) -> tuple[list[int], tuple[int, ...]]:
    """Returns the multiplications of a row by layer, and the shape of the outputs.

    Args:
        layers: see `peers/torch_side.py`.
        model: parameters by layer.
        size: shape of a row of the inputs.
    """
    found: list[int] = []
    for kind, *given in layers:
        if kind == "conv":
            kernel, stride = model[given[0]]["kernel"].shape, given[2] if len(given) > 2 else 1
            pad = {"same": kernel[0] - 1, "valid": 0}.get(given[1], 2 * given[1])
            size = (*((side + pad - kernel[0]) // stride + 1 for side in size[:2]), kernel[3])
            found.append(size[0] * size[1] * int(np.prod(kernel)))
        elif kind == "dense":
            kernel, lengths = model[given[0]]["kernel"].shape, size[:-1]
            found.append(int(np.prod([*lengths, *kernel])))
            size = (*lengths, kernel[-1])
        elif kind == "attention":
            length, width = size[0], size[-1]
            found += [length * int(np.prod(model[f"{given[0]}/{part}"]["kernel"].shape)) for part in peers.ATTENTION]
            found.append(2 * length * length * width)
        elif kind == "residual":
            inner, outputs = multiplications(given[0], model, size)
            found += inner + multiplications(given[1], model, size)[0]
            size = outputs
        elif kind == "embed":
            size = (*size, model[given[0]]["embedding"].shape[1])
        elif kind == "pool":
            size = (*(side // 2 for side in size[:2]), size[-1])
        elif kind == "mean":
            size = size[-1:]
        elif kind == "flatten":
            size = (int(np.prod(size)),)
    return found, size


def federation(work: Work, clients: int) -> Any:
    """Returns the data; square images are seen in four rotations."""
    if work.tokens:
        return sequences(clients, work.rows, work.shape[0], work.classes)
    square = len(work.shape) > 1 and work.shape[0] == work.shape[1]
    turned = {"rotation": np.arange(clients) % ROTATIONS} if square and not work.own and not work.rank else {}
    return prototypes(clients, work.rows, work.shape, work.classes, **turned)


def sequences(clients: int, rows: int, length: int, tokens: int) -> Any:
    """Returns a federation of sequences whose next token is mostly one that follows from the last."""
    rng = np.random.default_rng(0)
    follows, whole = rng.permutation(tokens), rng.integers(0, tokens, (clients * rows, length + 1))
    for place in range(length):
        whole[:, place + 1] = np.where(rng.random(len(whole)) < 0.7, follows[whole[:, place]], whole[:, place + 1])
    owned = list(np.arange(len(whole)).reshape(clients, rows))
    nothing = [np.zeros(0, int)] * clients
    return jaxfl.data.federate(whole[:, :-1], whole[:, 1:], owned, nothing, num_classes=tokens)


class Comparison:
    """A work at one number of clients, and the sides that do it.

    Args:
        name: a key of `WORKS`.
        clients: of a round; None for the work's own number.
        options: of the command line; None for those of a method alone.
    """

    def __init__(self, name: str, clients: int | None, options: Any):
        self.work, self._options = WORKS[name], options
        self.clients = clients or self.work.clients
        self._hidden = (options and options.hidden) or self.work.hidden
        self.network, self.base = self.work.network(self._hidden), {}
        if self.work.rank:
            example = jnp.zeros((1, *self.work.shape))
            self.base = jax.jit(self.network.init)(jax.random.key(0), example)["params"]
            self.network = jaxfl.models.lora(self.network, self.base, rank=self.work.rank)
        steps, rows = self.work.epochs * -(-self.work.rows // self._batch()), self._batch()
        what = f"{self.work.what}, {self.clients:,} clients, {steps} steps of {rows} rows"
        self.names = {"workload": name, "what": what, "clients": self.clients}

    def _batch(self) -> int:
        return self.work.batch_size or self.work.rows

    def shuffles(self) -> bool:
        """Returns whether the rows of a batch depend on a shuffle."""
        return self._batch() < self.work.rows

    def method(self, network: Any, data: Any, epochs: int, batch_size: int | None) -> Method:
        """Returns jaxfl's method with a network."""
        work, given = self.work, {"local_epochs": epochs, "batch_size": batch_size}
        given |= {"num_clusters": work.models} if work.models > 1 else {}
        task = (jaxfl.next_token if work.tokens else jaxfl.classification)(network, data)
        return getattr(jaxfl.methods, work.method)(task, optax.sgd(work.learning_rate), **given)

    def rounds(self, network: Any, data: Any, epochs: int, batch_size: int | None) -> ours.Rounds:
        """Returns jaxfl's rounds with a network."""
        method = self.method(network, data, epochs, batch_size)
        return ours.Rounds(method, data, chunk=self._options.chunk, choosing=self.work.method == "ifca")

    def own_rounds(self, rounds: ours.Rounds, data: Any, epochs: int, batch_size: int | None) -> ours.Rounds:
        """Returns jaxfl's rounds with the network as somebody else would write it, from the same parameters."""
        assert self.work.own is not None
        own = self.rounds(self.work.own(self._hidden), data, epochs, batch_size)
        leaves = [jnp.copy(leaf) for leaf in jax.tree.leaves(rounds.state)]
        own.state = jax.tree.unflatten(jax.tree.structure(own.state), leaves)
        return own

    def peer_processes(
        self, names: Sequence[str], rounds: ours.Rounds, data: Any, epochs: int, batch_size: int | None
    ) -> Iterator[peers.Peer]:
        """Yields the processes of peers, which start from jaxfl's parameters."""
        if not names:
            return
        asked = {"layers": self.work.layers, "learning_rate": self.work.learning_rate, "models": self.work.models}
        asked |= {"epochs": epochs, "batch_size": batch_size}
        choosing = self.work.models > 1
        model = jax.tree.map(np.array, rounds.state.models) if choosing else rounds.model()
        rows = ours.every_row(data)
        for name in names:
            yield peers.Peer(name, asked, {**self.base, **model}, *rows, self._options.environments)


def compare(name: str, clients: int | None, names: Sequence[str], options: Any) -> dict[str, Any]:
    """Measures the time of one work at one number of clients, beside some peers."""
    one = Comparison(name, clients, options)
    work, names = one.work, [peer for peer in names if peer in one.work.peers]

    def sides_of(
        stack: contextlib.ExitStack, clients: int, epochs: int, batch_size: int | None
    ) -> tuple[list, dict, ours.Rounds]:
        data = federation(work, clients)
        rounds = one.rounds(one.network, data, epochs, batch_size)
        sides = [rounds.side()]
        if work.own is not None and not options.no_own:
            sides.append(one.own_rounds(rounds, data, epochs, batch_size).side()._replace(name="own network"))
        started = [stack.enter_context(peer) for peer in one.peer_processes(names, rounds, data, epochs, batch_size)]
        versions = {key: value for peer in started for key, value in peer.versions.items()}
        return [*sides, *(peer.side() for peer in started)], versions, rounds

    with contextlib.ExitStack() as stack:
        compared = min(one.clients, work.compared or one.clients)
        agreement = measure.agreement(sides_of(stack, compared, 5, None)[0]) if names and one.shuffles() else None
    with contextlib.ExitStack() as stack:
        sides, versions, rounds = sides_of(stack, one.clients, work.epochs, work.batch_size)
        record = {
            **one.names,
            "chunk": rounds.plan.chunk,
            "devices": 1 if rounds.plan.mesh is None else rounds.plan.mesh.size,
            "compile_seconds": rounds.compile_seconds,
            "after_round_1": agreement or measure.agreement(sides),
            "peers": versions,
            **measure.in_turn(sides, options.rounds, options.size),
        }
    return measure.report(record, gflop=gflop(work, one.base or rounds.model(), one.clients), out=options.out)


def memory(name: str, clients: int | None, names: Sequence[str], options: Any) -> dict[str, Any]:
    """Measures what jaxfl and its peers hold at most, each in a process of its own: jaxfl in this one."""
    one = Comparison(name, clients, options)
    data, given = federation(one.work, one.clients), (one.work.epochs, one.work.batch_size)
    rounds = one.rounds(one.network, data, *given)
    for _ in range(2):
        rounds.side().round()
    held = {"jaxfl": peak_bytes()}
    for peer in one.peer_processes([peer for peer in names if peer in one.work.peers], rounds, data, *given):
        with peer:
            for what in ("round", "round"):
                peer.ask(what)
            held[peer.name] = int(peer.ask("peak"))
    for side, size in held.items():
        print(f"{name}, {side}: at most {size / 1e9:.2f} GB")
    return measure.write({**one.names, "held": held}, options.out)


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the workloads; fails if the losses disagree."""
    parser = measure.parser(__doc__, clients=None, peers="found")
    # argparse asks of an empty list, too, whether it is among the choices
    parser.add_argument("works", nargs="*", choices=[*WORKS, []], default=list(WORKS), metavar="WORK")
    parser.add_argument("--hidden", type=int, help="width of the hidden dense layer, if not the workload's own")
    parser.add_argument("--environments", type=Path, help="folder of the peers' environments, see peers/__init__.py")
    parser.add_argument("--cores", type=int, help="devices that jaxfl makes of the CPU's cores; all if not given")
    parser.add_argument("--no-own", action="store_true", help="without the network as somebody else would write it")
    parser.add_argument("--memory", action="store_true", help="measure what the sides of one work hold at most")
    options = parser.parse_args(arguments)
    jaxfl.use_cores(options.cores)
    known = peers.there(options.environments)
    names = known if options.peers == "found" else measure.peer_names(options.peers, peers.NAMES)
    asked = [(work, clients) for work in options.works for clients in options.clients or [None]]
    if options.memory:
        if len(asked) > 1:
            parser.error("--memory takes one work at one number of clients: a process has one peak.")
        return [memory(*asked[0], names, options)]
    return measure.checked([compare(work, clients, names, options) for work, clients in asked])


if __name__ == "__main__":
    main()
