"""W2's local training: a FedAvg round of LEAF's FEMNIST network, jaxfl against a PyTorch loop.

28 x 28 pixels, 62 classes, 100 rows per client, one shuffled epoch of 5 steps of 20 rows, SGD 0.05. The two sides
shuffle with generators of their own, so the loss after round 1 is compared for 5 full-batch steps, where there is
nothing to shuffle; the timed rounds shuffle.

Operations of a step, two for a multiplication and an addition, of B rows: forward, weight gradients and input gradients
of conv5x5x32 (28 * 28 * 25 * 32), conv5x5x64 (14 * 14 * 25 * 32 * 64), dense 3136-2048 and dense 2048-62, 2 * B each,
without the gradient of the first convolution's input. Pooling, relu, softmax and the updates are not counted.

    python -m experiments.speed.w2 --clients 8
"""

from collections.abc import Sequence

import optax

import jaxfl
from experiments.speed import measure, ours, peers

ROWS, BATCH, LEARNING_RATE, CLASSES = 100, 20, 0.05, 62


def gflop(clients: int, hidden: int) -> float:
    """Returns 10^9 operations of a round."""
    first = 28 * 28 * 25 * 32
    rest = 14 * 14 * 25 * 32 * 64 + 3136 * hidden + hidden * CLASSES
    return 2 * ROWS * (2 * first + 3 * rest) * clients / 1e9


def compare(clients: int, options) -> dict:
    """Measures one number of clients."""
    data = ours.prototypes(clients, ROWS, (28, 28), CLASSES)
    task = jaxfl.classification(jaxfl.models.LeafFemnistCNN(num_classes=CLASSES, hidden=options.hidden), data)
    names = measure.peer_names(options.peers, ("torch",))

    def sides_of(epochs: int, batch_size: int | None) -> tuple[ours.Rounds, list[measure.Side]]:
        optimizer = optax.sgd(LEARNING_RATE)
        method = jaxfl.methods.fedavg(task, optimizer, local_epochs=epochs, batch_size=batch_size)
        rounds = ours.Rounds(method, data, chunk=options.chunk)
        sides = [rounds.side()]
        if names:
            local = {"learning_rate": LEARNING_RATE, "epochs": epochs, "batch_size": batch_size}
            sides.append(peers.torch_loop(rounds.model(), *ours.every_row(data), **local))
        return rounds, sides

    rounds, sides = sides_of(1, BATCH)
    record = {
        "workload": "W2",
        "what": f"LEAF CNN, {clients} clients, {ROWS // BATCH} steps of {BATCH} rows",
        "clients": clients,
        "chunk": rounds.plan.chunk,
        "compile_seconds": rounds.compile_seconds,
        "after_round_1": measure.agreement(sides_of(5, None)[1] if names else sides),
        **measure.in_turn(sides, options.rounds, options.size),
    }
    return measure.report(record, gflop=gflop(clients, options.hidden), out=options.out)


def main(arguments: Sequence[str] | None = None) -> list[dict]:
    """Runs the workload; fails if the losses disagree."""
    parser = measure.parser(__doc__, clients=8, peers="torch")
    parser.add_argument("--hidden", type=int, default=2048, help="width of the dense layer")
    options = parser.parse_args(arguments)
    return measure.checked([compare(clients, options) for clients in options.clients])


if __name__ == "__main__":
    main()
