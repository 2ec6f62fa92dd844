"""Rows that stay on the host: bit for bit what resident rows give, whoever takes part and however it is looked at."""

from dataclasses import replace

import jax
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import methods, sampling
from jaxfl.cohort import Plan
from jaxfl.data.synthetic import clustered_linear
from jaxfl.data.windows import Windows
from jaxfl.simulation.evaluation import evaluate
from jaxfl.simulation.evaluation.finetune import FineTune
from jaxfl.simulation.host import streaming
from jaxfl.testing.compare import assert_equal
from jaxfl.testing.small import linear_task
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=6)

DATA = clustered_linear(8, rows=8, features=4, ragged=True)
TASK, SGD = linear_task(), optax.sgd(0.3)
LOCAL = {"local_epochs": 1, "batch_size": 4}
METHODS = {
    "stocfl": methods.stocfl(TASK, SGD, slots=4, threshold=0.99, **LOCAL),  # slots double on the way
    "fedavg": methods.fedavg(TASK, SGD, **LOCAL),
    "ifca": methods.ifca(TASK, SGD, num_clusters=2, choose="test", **LOCAL),  # assigned by rows that no round reads
}


def untimed(records):
    return [{name: value for name, value in one.items() if "seconds" not in name} for one in records]


def both(method, data=DATA, **options):
    """Returns the runs of resident and of streamed rows, which must agree."""
    options = {"rounds": 4, "cohort": 3, "seed": 2, "eval_every": 2, "plan": Plan(), **options}
    resident, streamed = (jaxfl.run(method, data, resident=one, **options) for one in (True, False))
    assert_equal(streamed.state, resident.state, "states")
    assert untimed(streamed.history) == untimed(resident.history)
    assert_equal(streamed.evaluation.cluster, resident.evaluation.cluster, "clusters")
    assert resident.summary["resident"] and not streamed.summary["resident"]
    return resident, streamed


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_rows_on_the_host_change_nothing(name):
    both(METHODS[name])


def test_nor_for_a_sample_of_clients_with_few_rows_each_and_fine_tuned(monkeypatch):
    monkeypatch.setattr(evaluate, "WINDOW_CLIENTS", 2)  # the last window is not full
    tuned, _ = both(METHODS["ifca"], eval_clients=3, test_rows=2, finetune=FineTune(SGD))
    assert tuned.summary["eval_clients"] == tuned.history[0]["eval_clients"] == 3
    assert np.isnan(tuned.evaluation.finetuned.accuracy).sum() == np.isnan(tuned.evaluation.accuracy).sum() == 5


def test_a_run_goes_on_in_the_other_form(tmp_path):
    options = {"rounds": 4, "cohort": 3, "eval_every": 2, "plan": Plan()}
    straight = jaxfl.run(METHODS["fedavg"], DATA, **options)
    jaxfl.run(METHODS["fedavg"], DATA, **{**options, "rounds": 2}, checkpoint_dir=tmp_path)
    resumed = jaxfl.run(METHODS["fedavg"], DATA, **options, checkpoint_dir=tmp_path, resume=True, resident=False)
    assert_equal(resumed.state, straight.state, "the resumed run")


@pytest.mark.parametrize("chunk", [None, 2])
def test_rows_on_the_host_change_nothing_in_chunks(chunk):
    both(METHODS["fedavg"], plan=Plan(chunk))


def test_nor_for_pixels_in_one_chunk():
    """XLA would know that a cohort which it is given is the same in every turn of the loop, and round otherwise."""
    data = jaxfl.data.load("rotated-digits", num_clients=40, rows_per_client=40)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    method = methods.fedavg(task, optax.sgd(0.1), local_epochs=1, batch_size=10)
    both(method, data, cohort=7, rounds=1, plan=Plan(None), eval_clients=1)


@pytest.mark.parametrize("update", ["parallel", "chain"])  # a chain reads the rows of both devices in one go
def test_nor_on_two_devices(update):
    method = methods.fedavg(TASK, SGD, **LOCAL, update=update)
    both(method, plan=Plan(1, jax.sharding.Mesh(np.array(jax.devices()[:2]), ("clients",))))


def test_nor_for_samplers_that_mask_clients_or_keep_some_out():
    data = replace(DATA, held_out=np.isin(np.arange(8), (1, 6)))
    both(METHODS["fedavg"], data, sampler=sampling.dropouts(0.3, sampling.availability("random", lowest=0.3)))
    both(METHODS["fedavg"], data, sampler=sampling.poisson(capacity=5))


@pytest.mark.parametrize(("free", "name", "streamed"), [(10**9, "fedavg", False), (1000, "fedavg", True)])
def test_auto_decides_by_size(monkeypatch, free, name, streamed):
    monkeypatch.setattr(streaming, "available_bytes", lambda: free)
    assert streaming.keeps_data_on_host(METHODS[name], DATA, "auto") == streamed


def test_who_reads_everybody_is_refused_unless_it_fits(monkeypatch):
    kfed = methods.kfed(TASK, SGD, num_clusters=2)
    with pytest.raises(ValueError, match=mentions("resident", "False", 8)):
        jaxfl.run(kfed, DATA, rounds=1, resident=False)
    monkeypatch.setattr(streaming, "available_bytes", lambda: 1000)
    with pytest.raises(ValueError, match=mentions("resident", "auto")):
        jaxfl.run(kfed, DATA, rounds=1)
    wanted = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(DATA))
    monkeypatch.setattr(streaming, "available_bytes", lambda: wanted + 1)  # more than half, and not more than all
    assert not streaming.keeps_data_on_host(kfed, DATA, "auto")


def test_the_next_window_is_cut_ahead_and_none_beyond_the_last(monkeypatch):
    cut, of = [], Windows.of
    monkeypatch.setattr(Windows, "of", lambda self, ids, *rest: cut.append(ids.tolist()) or of(self, ids, *rest))
    stream = streaming.RowStream(DATA, jax.random.key(0), 3, Plan(), sampling.uniform, rounds=3)
    _, cohort = stream.at(0)
    ahead = stream._cut[1].result()
    assert cut[0] == cohort.ids[0].tolist() and len(cut) == 2
    assert stream.at(1)[0] is ahead and stream.at(1)[0] is ahead  # a round that is made again
    stream.at(2)
    assert len(cut) == 3


def test_what_fails_in_the_thread_is_raised(monkeypatch):
    def fail(self, *_):
        raise OSError("the disk is gone")

    monkeypatch.setattr(Windows, "of", fail)
    with pytest.raises(OSError, match="the disk is gone"):
        jaxfl.run(METHODS["fedavg"], DATA, rounds=1, cohort=3, resident=False)


def test_a_sample_is_fixed_by_the_seed_and_has_test_rows():
    few = evaluate.evaluation_sample(DATA, 3, 5)
    assert few is not None and (np.diff(few) > 0).all()
    np.testing.assert_array_equal(few, evaluate.evaluation_sample(DATA, 3, 5))
    assert any((evaluate.evaluation_sample(DATA, 3, seed) != few).any() for seed in range(6, 9))
    size = np.where(np.isin(np.arange(8), (0, 2)), DATA.test.size, 0)
    assert evaluate.evaluation_sample(replace(DATA, test=replace(DATA.test, size=size)), 3, 5).tolist() == [0, 2]
    assert evaluate.evaluation_sample(DATA, 8, 5) is None
    with pytest.raises(ValueError, match=mentions("eval_clients", 0)):
        evaluate.evaluation_sample(DATA, 0, 5)


def test_the_metrics_of_a_sample_are_theirs():
    method = methods.local(TASK, SGD, **LOCAL)
    whole = jaxfl.run(method, DATA, rounds=2, cohort=8, seed=1)
    few = jaxfl.run(method, DATA, rounds=2, cohort=8, seed=1, eval_clients=3)
    assert_equal(few.state, whole.state, "what is looked at changes nothing")
    tested = ~np.isnan(few.evaluation.accuracy)
    assert tested.sum() == 3
    np.testing.assert_array_equal(few.evaluation.accuracy[tested], whole.evaluation.accuracy[tested])
    assert few.summary["macro_accuracy"] == pytest.approx(whole.evaluation.accuracy[tested].mean())
    assert "eval_clients" not in whole.history[0] and whole.summary["eval_clients"] == 8
