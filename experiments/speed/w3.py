"""W3: many small clients, logistic 60-10 and 784-200-10: jaxfl against FedJAX's jit backend and a PyTorch loop.

All clients take part; 50 rows per client, one shuffled epoch of 5 steps of 10 rows, SGD. Shuffling, batching, the
losses on the host and the weighted mean are timed on every side. The sides shuffle with generators of their own, so the
loss after round 1 is compared for 5 full-batch steps, where there is nothing to shuffle.

FedJAX dispatches once per client and batch and takes minutes at 10,000 clients, so it is left out above
`--peer-limit` clients (1,000 unless given); jaxfl is measured alone there.

    python -m experiments.speed.w3 --clients 100 1000 10000 --model logistic mlp --peers fedjax,torch
"""

from collections.abc import Sequence

import optax

import jaxfl
from experiments.speed import measure, ours, peers

ROWS, BATCH, LEARNING_RATE = 50, 10, 0.05
SHAPES = {"logistic": 60, "mlp": 784}
WEIGHTS = {"logistic": 60 * 10, "mlp": 784 * 200 + 200 * 10}


def gflop(model: str, clients: int) -> float:
    """Returns 10^9 operations of a round: forward and weight gradients, and the gradient of the hidden layer."""
    inner = 200 * 10 if model == "mlp" else 0
    return 2 * ROWS * (2 * WEIGHTS[model] + inner) * clients / 1e9


def compare(model: str, clients: int, options) -> dict:
    """Measures one model and one number of clients."""
    data = ours.prototypes(clients, ROWS, (SHAPES[model],), 10)
    module = jaxfl.models.Logistic(10) if model == "logistic" else jaxfl.models.MLP((200,), 10)
    task = jaxfl.classification(module, data)
    names = measure.peer_names(options.peers, tuple(peers.ROUNDS)) if clients <= options.peer_limit else []

    def sides_of(epochs: int, batch_size: int | None) -> tuple[ours.Rounds, list[measure.Side]]:
        optimizer = optax.sgd(LEARNING_RATE)
        method = jaxfl.methods.fedavg(task, optimizer, local_epochs=epochs, batch_size=batch_size)
        rounds = ours.Rounds(method, data, chunk=options.chunk)
        local = {"learning_rate": LEARNING_RATE, "epochs": epochs, "batch_size": batch_size}
        held = ours.every_row(data) if names else ()
        return rounds, [rounds.side(), *(peers.ROUNDS[name](task, rounds.model(), *held, **local) for name in names)]

    rounds, sides = sides_of(1, BATCH)
    record = {
        "workload": "W3",
        "what": f"{model}, {clients} clients, {ROWS // BATCH} steps of {BATCH} rows",
        "model": model,
        "clients": clients,
        "chunk": rounds.plan.chunk,
        "compile_seconds": rounds.compile_seconds,
        "after_round_1": measure.agreement(sides_of(5, None)[1] if names else sides),
        **measure.in_turn(sides, options.rounds, options.size),
    }
    return measure.report(record, gflop=gflop(model, clients), out=options.out)


def main(arguments: Sequence[str] | None = None) -> list[dict]:
    """Runs the workload; fails if the losses disagree."""
    parser = measure.parser(__doc__, clients=1000, peers="fedjax")
    parser.add_argument("--model", nargs="+", choices=sorted(SHAPES), default=sorted(SHAPES))
    parser.add_argument("--peer-limit", type=int, default=1000, help="clients above which peers are left out")
    options = parser.parse_args(arguments)
    runs = [(model, clients) for model in options.model for clients in options.clients]
    return measure.checked([compare(model, clients, options) for model, clients in runs])


if __name__ == "__main__":
    main()
