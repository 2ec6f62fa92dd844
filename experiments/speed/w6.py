"""W6: StoCFL's local work, a FedAvg round of the 784-2048-10 network: jaxfl against a PyTorch loop.

Rotated images of 28 x 28 pixels, 50 rows per client, 5 full-batch steps of SGD 0.1. Both sides start from the same
parameters and see the same rows, so the loss after round 1 must agree.

Operations of a step, two for a multiplication and an addition, of B rows: both layers forward and both weight
gradients, 2 * 2 * B * (784 * 2048 + 2048 * 10), and the gradient of the hidden layer, 2 * B * 2048 * 10; the gradient
of the input is not needed. Biases, relu, softmax and the updates of the weights are not counted.

    python -m experiments.speed.w6 --clients 64
"""

from collections.abc import Sequence

import numpy as np
import optax

import jaxfl
from experiments.speed import measure, ours, peers

ROWS, STEPS, HIDDEN, LEARNING_RATE = 50, 5, 2048, 0.1


def gflop(clients: int, hidden: int) -> float:
    """Returns 10^9 operations of a round."""
    step = 2 * 2 * ROWS * (784 * hidden + hidden * 10) + 2 * ROWS * hidden * 10
    return step * STEPS * clients / 1e9


def compare(clients: int, options, hidden: int) -> dict:
    """Measures one number of clients."""
    data = ours.prototypes(clients, ROWS, (28, 28), 10, rotation=np.arange(clients) % 4)
    task = jaxfl.classification(jaxfl.models.MLP(hidden=(hidden,), num_classes=10), data)
    method = jaxfl.methods.fedavg(task, optax.sgd(LEARNING_RATE), local_epochs=STEPS)
    rounds = ours.Rounds(method, data, chunk=options.chunk)
    sides = [rounds.side()]
    if "torch" in measure.peer_names(options.peers, ("torch",)):
        x, y = ours.every_row(data)
        sides.append(peers.torch_loop(rounds.model(), x, y, learning_rate=LEARNING_RATE, epochs=STEPS))
    record = {
        "workload": "W6",
        "what": f"784-{hidden}-10, {clients} clients, {STEPS} full-batch steps of {ROWS} rows",
        "clients": clients,
        "chunk": rounds.plan.chunk,
        "compile_seconds": rounds.compile_seconds,
        "after_round_1": measure.agreement(sides),
        **measure.in_turn(sides, options.rounds, options.size),
    }
    return measure.report(record, gflop=gflop(clients, hidden), out=options.out)


def main(arguments: Sequence[str] | None = None) -> list[dict]:
    """Runs the workload; fails if the losses disagree."""
    parser = measure.parser(__doc__, clients=64, peers="torch")
    parser.add_argument("--hidden", type=int, default=HIDDEN, help="width of the hidden layer")
    options = parser.parse_args(arguments)
    return measure.checked([compare(clients, options, options.hidden) for clients in options.clients])


if __name__ == "__main__":
    main()
