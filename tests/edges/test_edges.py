"""Edge servers against a loop in NumPy, their reductions to one server, and bad input."""

import functools

import jax
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import ClientClock, EdgeServers, tree
from jaxfl.cohort import Plan
from jaxfl.edges import edges_of
from jaxfl.edges.method import EdgeLayout, on_edges
from jaxfl.sampling import uniform
from tests import reference
from tests.messages import mentions
from tests.problems import linear_federation, rows_of, softmax_task

SIZES = (5, 0, 3, 8, 1, 6, 4, 7)
EDGE = (0, 1, 1, 0, 2, 0, 1, 2)
DATA = linear_federation(SIZES, (0, 0, 1, 1, 0, 1, 0, 1))
EPOCHS = {"local_epochs": 2, "batch_size": 3}
RATE = 0.4


def method(factory=jaxfl.methods.fedavg, **options):
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=2), DATA)
    return factory(task, optax.sgd(0.1), **EPOCHS, **options)


def run(edges=None, made=None, **options):
    given = {"rounds": 4, "cohort": 4, "seed": 3, "eval_every": 1, **options}
    return jaxfl.run(method() if made is None else made, DATA, edges=edges, **given)


def assert_same_bits(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_edges_average_their_clients_and_the_cloud_the_edges():
    with jax.enable_x64(True):
        data, key = DATA.in_programs(), jax.random.key(0)
        plain = jaxfl.methods.fedavg(softmax_task(), optax.sgd(RATE), **EPOCHS)
        made = on_edges(plain, EdgeLayout(EDGE, 2, 1e8, 1e8, 2), DATA)

        @jax.jit
        def advance(key, state, data):
            return made.own_rounds.round(plain.round, None, key, state, data, uniform, Plan())

        setting = reference.Setting(key, rows_of(DATA), RATE, 2, 3)
        state = jax.jit(made.init)(key, data)
        models = [jax.tree.map(np.asarray, state.cloud.model)] * 3
        rows = [sum(size for size, edge in zip(SIZES, EDGE, strict=True) if edge == number) for number in range(3)]
        seen = set()
        for number in range(6):
            state, cohort, _, _ = advance(key, state, data)
            present = np.asarray(cohort.ids)[np.asarray(cohort.mask)].tolist()
            assert all(sum(EDGE[client] == edge for client in present) == 2 for edge in range(3))
            for edge in range(3):
                clients = reference.with_rows(setting, [client for client in present if EDGE[client] == edge])
                if clients:
                    trained = [reference.train(setting, number, client, models[edge])[0] for client in clients]
                    models[edge] = reference.average(trained, reference.weights(setting, clients))
            if number % 2:
                models = [reference.average(models, rows)] * 3
                reference.close(dict(state.cloud.model), models[0])
            for edge, model in enumerate(models):
                reference.close(dict(tree.take(state.edges.model, edge)), model)
            seen |= set(present)
        assert len(seen) == len(SIZES)


@pytest.mark.parametrize("rounds", [1, 2])
def test_one_edge_is_the_method_bit_for_bit(rounds):
    one, plain = run(EdgeServers(1, rounds=rounds)), run()
    assert_same_bits(one.state.cloud.model, plain.state.model)
    assert one.history.column("bytes_up") == plain.history.column("bytes_up")


def test_edges_that_hand_everybodys_models_on_at_once_are_one_server():
    made = functools.partial(method, jaxfl.methods.fedper, personal="bias")
    plain, edges = run(None, made(), cohort=8), run(EdgeServers("group"), made(), cohort=8)
    # sums by edge first: rounding of float32
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
        [edges.state.cloud.base, edges.state.rows],
        [plain.state.base, plain.state.heads],
    )


def test_the_cloud_waits_for_the_slowest_edge_and_edges_for_nobody():
    layout = {"rounds": 2, "up": 1e6, "down": 2e6}
    found = run(EdgeServers("group", **layout), clock=ClientClock("lognormal"), record_vectors=True)
    plain = run(EdgeServers("group", **layout), record_vectors=True)
    assert_same_bits(found.state.cloud, plain.state.cloud)
    alone = [
        run(None, method(), clock=ClientClock("lognormal"), cohort=8, rounds=1).clients()["busy_seconds"],
    ]  # of a round: the same in all rounds, of equally many epochs
    edge, elapsed, total = edges_of("group", DATA), np.zeros(2), 0.0
    for number, record in enumerate(found.history):
        taken = np.array([max(alone[0][i] for i in record["cohort"] if edge[i] == e) for e in range(2)])
        before, elapsed = elapsed.max(), elapsed + taken
        total += elapsed.max() - before
        if number % 2:
            total += 8 * 4 * 8 * (1 / 1e6 + 1 / 2e6)
            elapsed = np.zeros(2)
        np.testing.assert_allclose(record["seconds_simulated"], total, rtol=1e-5)  # float32 sums
        assert record["bytes_cloud"] == (number + 1) // 2 * 2 * 2 * 4 * 8


def test_a_resumed_run_is_the_same_and_clients_are_served_the_clouds_model(tmp_path):
    edges = EdgeServers(3, rounds=2)
    run(edges, rounds=3, checkpoint_dir=tmp_path)
    resumed, whole = run(edges, checkpoint_dir=tmp_path, resume=True), run(edges)
    assert_same_bits(resumed.state, whole.state)
    short = run(edges, rounds=3)
    assert "The last 1 rounds have not reached the cloud" in short.summary["shortfall"]
    assert_same_bits(short.state.cloud.model, run(edges, rounds=2).state.cloud.model)


def test_clients_that_arrive_are_served_the_clouds_model():
    data = jaxfl.data.load("rotated-digits", num_clients=12, rows_per_client=20, drift_round=2, arrive=0.25)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    made = jaxfl.methods.fedavg(task, optax.sgd(0.1))
    one, plain = (jaxfl.run(made, data, rounds=4, cohort=4, edges=edges) for edges in (EdgeServers(1), None))
    assert_same_bits(one.state.cloud.model, plain.state.model)
    assert one.summary["micro_accuracy"] == plain.summary["micro_accuracy"]


def test_a_file_names_the_edges(tmp_path):
    path = tmp_path / "edges.csv"
    path.write_text("client,edge\n" + "\n".join(f"{client},{'abc'[edge]}" for client, edge in enumerate(EDGE)))
    assert edges_of(str(path), DATA).tolist() == list(EDGE)
    path.write_text("client,edge\n0,a\n1,b\n")
    with pytest.raises(ValueError, match=mentions("edges", "2")):
        edges_of(str(path), DATA)
    with pytest.raises(ValueError, match="number, group or a file"):
        edges_of(str(tmp_path / "none.csv"), DATA)


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({"servers": 0}, "edges", 0),
        ({"servers": 2, "rounds": 0}, "edge_rounds", 0),
        ({"servers": 2, "up": 0.0}, "edge_up", 0.0),
    ],
)
def test_bad_options_are_told(options, name, value):
    with pytest.raises(ValueError, match=mentions(name, value)):
        EdgeServers(**options)


def test_methods_of_several_models_or_answers_have_no_edges():
    for made in (method(jaxfl.methods.ifca, num_clusters=2), method(jaxfl.methods.scaffold)):
        with pytest.raises(ValueError, match=mentions("edges", 2)):
            run(EdgeServers(2), made)
    with pytest.raises(ValueError, match="edges must be at most the number of clients"):
        run(EdgeServers(9))
    with pytest.raises(ValueError, match="edges must be none with asynchronous"):
        run(EdgeServers(2), clock=ClientClock(asynchronous="fedbuff"))
