"""A state's rows that stay on the host: bit for bit what the resident state gives; what was kept is not lost."""

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import local_sketches, methods, sampling, tree
from jaxfl.cohort import Plan
from jaxfl.data import drift
from jaxfl.data.synthetic import clustered_linear
from jaxfl.simulation import prepared, processes, program
from jaxfl.simulation.evaluation import evaluate
from jaxfl.simulation.evaluation.finetune import FineTune
from jaxfl.simulation.host import rows as host_rows
from jaxfl.simulation.host import streaming
from jaxfl.simulation.host.rows import HostRows, Index
from jaxfl.simulation.rounds import host_initialiser
from jaxfl.testing.compare import assert_equal
from jaxfl.testing.small import linear_task
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=3)

DATA = clustered_linear(8, rows=8, features=4, ragged=True)
TASK, SGD = linear_task(), optax.sgd(0.3)
LOCAL = {"local_epochs": 1, "batch_size": 4}
DITTO = methods.ditto(TASK, SGD, **LOCAL)
OPTIONS = {"rounds": 4, "cohort": 5, "seed": 2, "eval_every": 2, "plan": Plan()}
FEW = {"cohort": 3}  # some are never drawn


def whole(state):
    """Returns the state with all rows in memory."""
    return jax.tree.map(
        lambda leaf: leaf.take(np.arange(len(leaf.index.place))) if isinstance(leaf, HostRows) else leaf, state
    )


class Slots(NamedTuple):
    """FedAvg's state, and slots that nothing is in."""

    own: Any
    slots: jax.Array  # [K]


def short_of_slots():
    """Returns FedAvg whose second round needs two slots, and has one."""
    own = methods.fedavg(TASK, SGD, **LOCAL)

    def round(key, state, data, cohort):
        after, info = own.round(key, state.own, data, cohort)
        few = (state.own.round == 1) & (state.slots.shape[0] == 1)
        return state._replace(own=after), info._replace(overflow=few.astype(jnp.int32))

    return own._replace(
        init=lambda key, data: Slots(own.init(key, data), jnp.zeros(1)),
        round=round,
        client_params=lambda state, ids: own.client_params(state.own, ids),
        grow=lambda state: state._replace(slots=jnp.zeros(2)),
    )


def untimed(records):
    return [{name: value for name, value in one.items() if "seconds" not in name} for one in records]


def assert_same(found, wanted):
    """The runs must agree in every bit of state, history and evaluation; the second one's state is resident."""
    assert_equal(whole(found.state), wanted.state, "states")
    assert untimed(found.history) == untimed(wanted.history)
    np.testing.assert_array_equal(found.evaluation.loss, wanted.evaluation.loss)
    assert not found.summary["resident_state"] and wanted.summary["resident_state"]


def both(method, data=DATA, **options):
    options = {**OPTIONS, **options}
    resident, kept = (jaxfl.run(method, data, resident=one, **options) for one in (True, False))
    assert_same(kept, resident)
    return resident, kept


def test_a_state_on_the_host_changes_nothing(monkeypatch):
    """Of 8 clients, 5 a round: some are in two rounds that follow each other. The last block of tests is not full."""
    monkeypatch.setattr(evaluate, "WINDOW_CLIENTS", 3)
    resident, kept = both(DITTO)
    clients = np.array([6, 0])
    for of in (0, clients):
        rows = (tree.take(one.state.models, of) for one in (resident, kept))
        assert_equal(*rows, "rows of some clients")


def test_local_models_after_a_run_are_the_same():
    found = [local_sketches(DITTO, one, FineTune(SGD), clients=3) for one in both(DITTO)]
    np.testing.assert_array_equal(found[0].points, found[1].points)


def test_a_run_that_is_killed_goes_on_bit_for_bit(tmp_path):
    """Rows that were made after the last checkpoint are in the file by then, and count for nothing."""
    wanted = jaxfl.run(DITTO, DATA, resident=True, **{**OPTIONS, "rounds": 6})
    options = {**OPTIONS, "checkpoint_dir": tmp_path, "checkpoint_every": 2, "resident": False}

    def kill(event):
        if event.round == 3:
            raise SystemExit

    with pytest.raises(SystemExit):
        jaxfl.run(DITTO, DATA, **{**options, "rounds": 6}, callbacks=[kill])
    for rounds in (4, 6):
        resumed = jaxfl.run(DITTO, DATA, **{**options, "rounds": rounds}, resume=True)
    assert_same(resumed, wanted)
    with np.load(tmp_path / "checkpoint.npz") as saved:
        assert not any(array.shape == (8, 4, 3) for array in saved.values()), "models belong in the file"


@pytest.mark.slow
def test_clients_may_enter_the_solver_of_rows_on_the_host(monkeypatch):
    """Its slots double on the way, so that the rounds are compiled anew."""
    solver = methods.stocfl(TASK, SGD, local_epochs=1, slots=1, threshold=0.99)
    method = methods.ditto(TASK, SGD, local_epochs=1, solver=solver)
    late = drift.drift(DATA, 1, arrive=0.5)
    wanted = jaxfl.run(method, late, rounds=2, cohort=2)
    monkeypatch.setattr(prepared, "keeps_state_on_host", lambda *_, **__: True)  # data of clients that arrive stay
    found = jaxfl.run(method, late, rounds=2, cohort=2)
    assert not found.summary["resident_state"] and len(wanted.state.solver.models["bias"]) > 1
    assert_equal(whole(found.state), wanted.state, "the state with rows on the host")


def test_a_run_goes_on_in_the_other_form_and_back(tmp_path):
    """The last time beside a file that the checkpoint before names."""
    wanted = jaxfl.run(DITTO, DATA, **{**OPTIONS, "rounds": 8})
    for rounds, resident in ((2, True), (4, False), (6, True), (8, False)):
        options = {**OPTIONS, "rounds": rounds, "resident": resident, "checkpoint_dir": tmp_path}
        resumed = jaxfl.run(DITTO, DATA, **options, resume=rounds > 2)
    assert_equal(whole(resumed.state), wanted.state, "the resumed run")


def test_a_missing_short_or_damaged_file_is_refused_by_name(tmp_path):
    options = {**OPTIONS, "checkpoint_dir": tmp_path, "resident": False}
    jaxfl.run(DITTO, DATA, **{**options, "rounds": 2})
    file = tmp_path / host_rows.NAME
    good = file.read_bytes()
    file.write_bytes(bytes(len(good)))
    with pytest.raises(ValueError, match=mentions("rows.bin", "damaged", "client")):
        jaxfl.run(DITTO, DATA, **options, resume=True)
    file.write_bytes(good[:-1])
    with pytest.raises(ValueError, match=mentions("rows.bin", "420 bytes")):
        jaxfl.run(DITTO, DATA, **options, resume=True)
    file.unlink()
    with pytest.raises(ValueError, match=mentions("rows.bin", "no file")):
        jaxfl.run(DITTO, DATA, **options, resume=True)


def test_nor_does_it_where_the_data_are_resident(monkeypatch):
    monkeypatch.setattr(prepared, "keeps_data_on_host", lambda *_: False)
    monkeypatch.setattr(evaluate, "WINDOW_CLIENTS", 3)
    _, kept = both(methods.fedper(TASK, SGD, **LOCAL, personal="bias"), test_rows=2, **FEW)
    assert kept.summary["resident"]


def test_nor_where_a_row_is_a_model_and_a_number():
    both(methods.apfl(TASK, SGD, **LOCAL, mixture_rate=0.1), rounds=3, **FEW)


def test_nor_for_masked_clients_a_sample_and_fine_tuning():
    sampler = sampling.dropouts(0.3, sampling.availability("random", lowest=0.3))
    both(methods.local(TASK, SGD, **LOCAL), sampler=sampler, eval_clients=3, finetune=FineTune(SGD), **FEW)


def test_nor_on_two_devices_with_padding():
    both(DITTO, plan=Plan(1, jax.sharding.Mesh(np.array(jax.devices()[:2]), ("clients",))), **FEW)


def test_nor_where_slots_double_on_the_way():
    """The round that ran out of them is made again, from the rows that it had."""
    resident, _ = both(methods.ditto(TASK, SGD, solver=short_of_slots(), **LOCAL))
    assert resident.state.solver.slots.shape == (2,)


def rows_of(values):
    return {"w": np.asarray(values, np.float32)[:, None], "none": np.zeros((len(values), 0), np.int8)}


def kept_in(folder, clients=4):
    return HostRows(Index.empty(rows_of([0.5]), clients), folder, new=True)


def write(kept, *values, ids=(0, 1, 2, 3)):
    kept.write(np.array(ids), rows_of(values), np.ones(len(values), bool))


def test_what_a_checkpoint_names_is_not_written_again_and_places_are_used_again(tmp_path):
    kept, everybody, older = kept_in(tmp_path), np.arange(4), None
    for turn in range(9):
        write(kept, *range(4 * turn, 4 * turn + 4))
        with host_rows.saved_on_disk(kept) as index:
            named = Index(index.place.copy(), index.check.copy(), index.first)
        write(kept, -1, -2, ids=(3, 0))  # twice between two checkpoints, in the same places
        write(kept, -3, -4, ids=(3, 0))
        assert kept.take(everybody)["w"].ravel().tolist() == [-4, 4 * turn + 1, 4 * turn + 2, -3]
        before = HostRows(named, tmp_path).take(everybody)["w"].ravel().tolist()
        assert before == [*range(4 * turn, 4 * turn + 4)], "what a killed run would go on with"
        if older is not None:
            before = HostRows(older, tmp_path).take(everybody)["w"].ravel().tolist()
            assert before == [*range(4 * turn - 4, 4 * turn)], "the checkpoint before, where the newest is damaged"
        older = named
    assert (tmp_path / host_rows.NAME).stat().st_size <= 3 * 4 * kept.row_bytes  # two checkpoints, and what is new


def test_clients_that_never_trained_have_the_first_row_and_no_place(tmp_path):
    kept = kept_in(tmp_path)
    kept.write(np.array([2, 1]), rows_of([7, 8]), np.array([True, False]))
    assert kept.take(np.array([3, 2, 1]))["w"].ravel().tolist() == [0.5, 7, 0.5]
    assert (tmp_path / host_rows.NAME).stat().st_size == kept.row_bytes == 4
    assert repr(kept) == "HostRows(4 clients, 1 of them with a row of 4 bytes)"


def test_who_may_only_read_can_load_a_run(tmp_path, monkeypatch):
    options = {**OPTIONS, "checkpoint_dir": tmp_path, "resident": False}
    result = jaxfl.run(DITTO, DATA, **{**options, "rounds": 2})
    opened = Path.open

    def read_only(path, mode="r", **options):
        if path.name == host_rows.NAME and mode != "rb":
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, mode, **options)

    monkeypatch.setattr(Path, "open", read_only)
    for client in range(DATA.num_clients):
        loaded = jaxfl.load(tmp_path, method=DITTO, data=DATA)
        assert_equal(loaded.params(client=client), result.params(client=client), f"the model of client {client}")


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def full(act, part):
        raise OSError(errno.ENOSPC, "No space left on device")

    kept = kept_in(tmp_path)
    monkeypatch.setattr(host_rows, "_transfer_all", full)
    write(kept, 1)
    with pytest.raises(OSError, match=mentions("rows.bin", "No space left on device")):
        kept.settle()


def test_a_disk_without_room_is_told_before(tmp_path, monkeypatch):
    kept = kept_in(tmp_path)
    kept.check_room(4)
    monkeypatch.setattr(host_rows.shutil, "disk_usage", lambda folder: SimpleNamespace(free=15))
    with pytest.warns(UserWarning, match=mentions("4 clients", "GB")):
        kept.check_room(4)


@pytest.mark.parametrize(("free", "kept"), [(10**9, False), (900, True)])
def test_auto_decides_by_size(monkeypatch, free, kept):
    shapes = jax.eval_shape(DITTO.init, jax.random.key(0), DATA)
    monkeypatch.setattr(streaming, "available_bytes", lambda: free)
    assert streaming.keeps_state_on_host(DITTO, shapes, 3, "auto") == kept
    assert streaming.keeps_state_on_host(DITTO, shapes, 3, "auto", beside=10**9), "data take the memory"
    assert not streaming.keeps_state_on_host(DITTO, shapes, 4, "auto", beside=10**9), (
        "read and sent, half of them take as much"
    )
    assert streaming.keeps_state_on_host(DITTO, shapes, 8, False), "asked for"
    assert not streaming.keeps_state_on_host(methods.fedavg(TASK, SGD), shapes, 3, "auto"), "no field of its own"
    monkeypatch.setattr(processes, "several", lambda: True)
    assert not streaming.keeps_state_on_host(DITTO, shapes, 3, "auto")


def test_nothing_personal_is_nothing_to_keep():
    nothing = methods.fedper(TASK, SGD, personal=(), **LOCAL)
    assert not streaming.keeps_state_on_host(nothing, jax.eval_shape(nothing.init, jax.random.key(0), DATA), 3, False)


def test_a_best_checkpoint_that_would_lack_models_is_refused(tmp_path):
    best, told = jaxfl.callbacks.BestCheckpoint(tmp_path / "best"), []
    with pytest.raises(ValueError, match=mentions("best checkpoint", "resident=True")):
        jaxfl.run(DITTO, DATA, resident=False, callbacks=[told.append, best], **OPTIONS)
    assert not told, "before the first round"
    with pytest.raises(ValueError, match=mentions("best checkpoint", "resident=True")):
        jaxfl.run(DITTO, DATA, resident=False, callbacks=[lambda event: event.keep(tmp_path / "best")], **OPTIONS)
    assert not (tmp_path / "best").exists()


def test_clients_that_start_apart_are_refused():
    solver = methods.ifca(TASK, SGD, num_clusters=2, start="groups")
    with pytest.raises(ValueError, match=mentions("resident", "start")):
        jaxfl.run(methods.ditto(TASK, SGD, solver=solver), DATA, rounds=1, resident=False)


def test_a_footprint_says_what_is_where():
    method = methods.local(TASK, SGD, **LOCAL)
    resident, kept = (jaxfl.footprint(method, DATA, cohort=2, resident=one, plan=Plan()) for one in (True, False))
    row = 15 * 4
    assert (resident.file, resident.host) == (0, 0) and "host" not in str(resident)
    assert kept.file == 8 * row and "rows.bin" in str(kept)
    assert kept.state == resident.state - 6 * row + 8 * 4  # two of eight models, and where each client's is
    assert kept.host == (2 * 2 + 8) * row + sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(DATA))


def test_the_first_state_takes_no_memory_for_each_client():
    """Nothing in what XLA compiles has the size of all models, 6 MB."""

    def of_many(leaf):
        return jax.ShapeDtypeStruct((100_000 if leaf.shape == (8,) else leaf.shape[0], *leaf.shape[1:]), leaf.dtype)

    data = jax.tree.map(lambda leaf: of_many(leaf) if np.ndim(leaf) else leaf, DATA)
    compiled = host_initialiser(DITTO, program.shapes_of(data), None).lower(jax.random.key(0), data).compile()
    flags_and_clusters = 2 * 5 * 100_000  # Ditto's and its solver's
    assert program.program_bytes(compiled) < flags_and_clusters
