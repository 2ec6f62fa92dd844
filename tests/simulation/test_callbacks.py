"""What looks on says what happens, and the loggers get the numbers of every evaluation."""

import contextlib
import errno
import importlib
import io
import re
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import sampling
from jaxfl.settings import user_code
from jaxfl.simulation import callbacks, loggers
from jaxfl.simulation.callbacks import ProgressBar
from jaxfl.simulation.records import checkpoint
from jaxfl.simulation.result import Event
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=3)

RECORD = {"round": 4, "micro_accuracy": 0.75, "ari": None, "clusters": [{"cluster": 0}], "diverged": 3, "seconds": 1.0}
TIMES = {"seconds": 47.8, "seconds_left": 4.0, "compile_seconds": 20.0, "evaluation_seconds": 24.0}
EVENTS = [
    Event(3, 8, 2, 0.5, 0.25, None),
    Event(4, 8, 2, 0.5, 0.25, RECORD, **TIMES),
    Event(8, 8, 1, 0.25, 0.25, RECORD | {"num_clusters": 4}, **TIMES),
]
TOLD = {name: value for name, value in RECORD.items() if name in ("micro_accuracy", "diverged", "seconds")}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_lines_are_written_for_evaluations():
    file = io.StringIO()
    with ProgressBar(file, label="seed 1") as bar:
        for event in EVENTS:
            bar(event)
        bar(EVENTS[-1]._replace(record=EVENTS[-1].record | {"micro_accuracy": 0.5}, again=True))
    *lines, again = file.getvalue().splitlines()
    assert again == lines[-1].replace("0.750", "0.500"), "those who diverged are counted once"
    assert lines == [
        "seed 1 round 4/8  loss 0.500  accuracy 0.750  clusters 2  3 diverged  4 rounds/s  ETA 4.0 s",
        "seed 1 round 8/8  loss 0.250  accuracy 0.750  clusters 4  6 diverged  4 rounds/s  took 48 s "
        "(compile 20 s, evaluation 24 s)",
    ]


def test_a_line_is_written_after_a_minute_without_one(monkeypatch):
    now, file = [100.0], io.StringIO()
    monkeypatch.setattr(callbacks.time, "monotonic", lambda: now[0])
    early, evaluated = (Event(round, 8, 2, 0.5, 60.0, record, seed=0) for round, record in ((1, None), (4, RECORD)))
    with ProgressBar(file) as bar:
        for seconds, event in ((59, early), (61, early), (61.5, early), (100, evaluated), (159, early), (160, early)):
            now[0] = 100.0 + seconds
            bar(event)
            bar(event._replace(seed=1, record=None))
    assert [line[:20] for line in file.getvalue().splitlines()] == [
        *("seed 0 round 1/8  lo", "seed 1 round 1/8  lo"),  # after 61 seconds
        "seed 0 round 4/8  lo",  # evaluated
        "seed 1 round 1/8  lo",  # after 159
        "seed 0 round 1/8  lo",  # after 160, a minute after its evaluation
    ]


@pytest.mark.parametrize(
    ("loss", "accuracy", "words"),
    [(np.nan, 0.5, "loss nan  accuracy 0.500"), (3.6e34, None, r"loss 3.6e\+34  no test rows  clusters 2")],
)
def test_what_cannot_be_said_is_told(loss, accuracy, words):
    file = io.StringIO()
    ProgressBar(file)(Event(4, 8, 2, loss, 0.25, RECORD | {"micro_accuracy": accuracy}))
    assert re.search(words, file.getvalue())


@pytest.fixture
def terminal(monkeypatch):
    for name, value in {"TERM": "xterm", "COLUMNS": "180"}.items():
        monkeypatch.setenv(name, value)
    return Terminal()


def test_a_terminal_gets_a_bar(terminal):
    with ProgressBar(terminal) as bar:
        for event in EVENTS:
            bar(event)
    screen = terminal.getvalue()
    assert "compiling" in screen and "round 3/8" in screen and "ETA 4.0 s" in screen
    last = screen[screen.rindex("round 8/8") :]
    assert all(word in last for word in ("accuracy 0.750", "clusters 4", "4 rounds/s", "took 48 s"))


def test_a_bar_begins_anew_with_another_seed_and_another_run(terminal):
    bar = ProgressBar(terminal)
    for seed in (3, 5):
        for event in EVENTS:
            bar(event._replace(seed=seed))
    screen = terminal.getvalue()
    assert all(f"seed {seed} round {round}/8" in screen for seed in (3, 5) for round in (3, 4, 8))
    bar.__exit__(None)
    bar(EVENTS[0]._replace(seed=3))
    again = terminal.getvalue()[len(screen) :]
    assert "seed 3 round 3/8" in again and "diverged" not in again and "accuracy" not in again
    bar.__exit__(None)


def test_a_kernel_that_is_only_imported_is_no_notebook(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    with ProgressBar() as bar:
        for event in EVENTS:
            bar(event)
    assert "round 8/8" in capsys.readouterr().err


class Fake(types.SimpleNamespace):
    """Stands in for a logging library, and keeps what it is told."""

    def __init__(self):
        super().__init__(told=[], ended=[])
        self.SummaryWriter = lambda directory: types.SimpleNamespace(
            add_scalar=lambda name, value, step: self.told.append((name, value, step)),
            flush=lambda: None,
            close=lambda: self.ended.append("closed"),
        )
        self.init = lambda **options: types.SimpleNamespace(
            log=self.log, finish=self.finish, define_metric=lambda names, step_metric: self.axes.add(step_metric)
        )
        self.axes = set()
        self.active = []
        self.active_run = lambda: self.active[-1] if self.active else None
        self.MlflowClient = lambda: types.SimpleNamespace(set_terminated=lambda run, word: self.ended.append(word))

    def log(self, values, step=None):
        self.told += [(name, value, step) for name, value in values.items()]

    def finish(self, exit_code):
        self.ended.append("FAILED" if exit_code else "FINISHED")

    def start_run(self, **options):
        self.active.append(types.SimpleNamespace(info=types.SimpleNamespace(run_id="a run")))
        return self.active[-1]

    def end_run(self, status):
        assert status == "RUNNING"
        self.active.pop()

    def log_metrics(self, values, step, run_id):
        assert run_id == "a run"
        self.log(values, step)


LOGGERS = [
    (callbacks.tensorboard, "tensorboardX", "tensorboard", {"directory": "logs"}),
    (callbacks.wandb, "wandb", "wandb", {"project": "p"}),
    (callbacks.mlflow, "mlflow", "mlflow", {"run_name": "r"}),
]


@pytest.mark.parametrize(("factory", "module", "extra", "options"), LOGGERS)
def test_loggers_get_scalars(monkeypatch, factory, module, extra, options):
    fake = Fake()
    monkeypatch.setitem(sys.modules, module, fake)
    log = factory(**options)
    for event in EVENTS:
        log(event)
    expected = [(name, value, step) for step in (4, 8) for name, value in TOLD.items()]
    assert fake.told == [*expected, ("num_clusters", 4.0, 8)]
    assert fake.ended == []
    log.__exit__(None)
    assert fake.ended == ["closed" if module == "tensorboardX" else "FINISHED"]


@pytest.mark.parametrize(("factory", "module", "extra", "options"), LOGGERS)
def test_loggers_tell_seeds_apart(monkeypatch, factory, module, extra, options):
    fake = Fake()
    monkeypatch.setitem(sys.modules, module, fake)
    log = factory(**options)
    for seed, loss in ((3, 0.5), (5, 0.25)):
        log(Event(4, 8, 2, 0.5, 0.25, {"round": 4, "loss": loss}, seed=seed))
    losses = [("seed-3/loss", 0.5), ("seed-5/loss", 0.25)]
    assert [one[:2] for one in fake.told if "loss" in one[0]] == losses
    if module == "wandb":  # which drops what is of a step before the last
        assert {"seed-3/round": 4, "seed-5/round": 4}.items() <= dict(one[:2] for one in fake.told).items()
        assert fake.axes == {"seed-3/round", "seed-5/round"} and {step for *_, step in fake.told} == {None}
    else:
        assert {step for *_, step in fake.told} == {4}


@pytest.mark.parametrize("rate", [0.1, 1e30], ids=["ended by a callback", "diverged"])
def test_loggers_are_ended_however_a_run_ends(monkeypatch, rate):
    fake = Fake()
    for module in ("wandb", "mlflow", "tensorboardX"):
        monkeypatch.setitem(sys.modules, module, fake)
    data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=20)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    method = jaxfl.methods.fedavg(task, optax.sgd(rate))
    told = [callbacks.wandb(), callbacks.mlflow(), callbacks.tensorboard("logs"), lambda event: event.round >= 2]
    with pytest.raises(jaxfl.Diverged) if rate > 1 else contextlib.nullcontext():
        jaxfl.run(method, data, rounds=4, eval_every=1, callbacks=told)
    assert fake.ended == ["closed", *["FAILED" if rate > 1 else "FINISHED"] * 2]
    assert fake.active == []  # the next run does not write into this one
    fake.start_run()
    mine = callbacks.mlflow()
    mine(EVENTS[-1])
    mine.__exit__(None)
    assert len(fake.active) == 1 and len(fake.ended) == 3  # nor is the user's run ended


@pytest.mark.parametrize(("factory", "module", "extra", "options"), LOGGERS)
def test_a_missing_logger_says_what_to_install(monkeypatch, factory, module, extra, options):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=mentions("pip install", f"jaxfl[{extra}]")):
        factory(**options)


def failing(*_, **__):
    raise RuntimeError("no login\nsecond line")


def leaving(*_, **__):
    raise SystemExit("no login")


@pytest.mark.parametrize(("factory", "module", "extra", "options"), LOGGERS)
def test_a_service_that_fails_before_a_run_is_named(monkeypatch, factory, module, extra, options):
    """By an error that the command line prints as one line; one whose import fails, too."""
    fake = types.SimpleNamespace(SummaryWriter=failing, init=failing, active_run=failing)
    monkeypatch.setitem(sys.modules, module, fake)
    with pytest.raises(ConnectionError, match=mentions(extra, "RuntimeError: no login", f"--log {extra}")):
        factory(**options)
    monkeypatch.setattr(importlib, "import_module", failing)
    with pytest.raises(ImportError, match=mentions(module, "RuntimeError: no login", f"jaxfl[{extra}]")):
        factory(**options)


@pytest.mark.parametrize(("when", "failing"), [("log", failing), ("log", leaving), ("end", failing)])
def test_a_run_goes_on_without_a_service_that_fails(monkeypatch, when, failing):
    fake = Fake()
    for module in ("wandb", "mlflow", "tensorboardX"):
        monkeypatch.setitem(sys.modules, module, fake)
    if when == "log":
        fake.log = fake.log_metrics = failing
        writer = types.SimpleNamespace(add_scalar=failing, close=lambda: fake.ended.append("closed"))
        fake.SummaryWriter = lambda directory: writer
    else:
        fake.finish = failing
        fake.MlflowClient = failing
        fake.SummaryWriter = lambda directory: types.SimpleNamespace(
            add_scalar=lambda *_: None, flush=lambda: None, close=failing
        )
    data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=20)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    method = jaxfl.methods.fedavg(task, optax.sgd(0.1))
    told = [callbacks.wandb(), callbacks.mlflow(), callbacks.tensorboard("logs")]
    with pytest.warns(UserWarning) as warned:
        assert jaxfl.run(method, data, rounds=3, eval_every=1, callbacks=told).summary["rounds"] == 3
    said = [str(one.message) for one in warned]
    assert len(said) == 3 and all(re.search(mentions("no login", "the run goes on"), one) for one in said)
    assert len(fake.ended) == (3 if when == "log" else 0)


def test_a_table_goes_on_with_the_columns_that_it_has(tmp_path):
    log = callbacks.csv(tmp_path / "log.csv")
    for event in EVENTS:
        log(event)
    head, *rows = (tmp_path / "log.csv").read_text().splitlines()
    assert head.split(",") == ["round", *TOLD] and [row.split(",")[0] for row in rows] == ["4", "8"]
    for other in ("a,b\n1,2\n", "boxer,round\nAnn,2\n"):
        (tmp_path / "other.csv").write_text(other)
        with pytest.raises(ValueError, match=mentions("column", "round", "metric")):
            callbacks.csv(tmp_path / "other.csv")(EVENTS[-1])
        assert (tmp_path / "other.csv").read_text() == other


def test_a_table_in_no_folder_is_refused_at_once(tmp_path):
    path = tmp_path / "missing" / "log.csv"
    with pytest.raises(ValueError, match=mentions("path", "missing/log.csv")):
        callbacks.csv(path)


@pytest.mark.parametrize("seeds", [[None], [3, 5]], ids=["one", "two side by side"])
def test_a_table_of_a_resumed_run_has_each_evaluation_once(seeds, tmp_path):
    """Rounds 6 and 8 were logged and have no checkpoint: the run goes on from round 4."""
    file, records = tmp_path / "log.csv", [{"round": round, "loss": 1 / round} for round in (2, 4, 6, 8)]

    def evaluations(log, start):
        for place in range(start, 4):
            for seed in seeds:
                log(Event(records[place]["round"], 8, 1, 0.5, 0.1, records[place], seed=seed, earlier=records[:place]))

    evaluations(callbacks.csv(file), 0)
    straight = file.read_text()
    assert len(straight.splitlines()) == 1 + 4 * len(seeds)
    file.write_text(straight + "1")  # the crash cut a row short
    evaluations(callbacks.csv(file), 2)
    assert file.read_text() == straight
    rows = straight.splitlines(True)
    file.write_text("".join(rows[: 1 + len(seeds)]) + rows[2 * len(seeds)][:-2])  # killed before it had logged round 4
    evaluations(callbacks.csv(file), 2)
    assert sorted(file.read_text().splitlines(True)[1:]) == sorted(rows[1:])
    another = "".join(f"{row}9\n" for row in straight.splitlines()[1:])  # of a run that was added after it
    file.write_text(straight + another)
    evaluations(callbacks.csv(file), 2)
    assert file.read_text() == straight + another + "".join(straight.splitlines(True)[1 + 2 * len(seeds) :])


@pytest.mark.parametrize("name", ["gap, mean", 'the "best"', "a\rb", "a\nb", "=1+1", "-log p"])
def test_names_that_are_no_cell_of_a_table_are_refused(tmp_path, name):
    """Those of metrics are, before; a method may call what it says of a round by any."""
    with pytest.raises(ValueError, match=mentions("log.csv", repr(name))):
        callbacks.csv(tmp_path / "log.csv")(Event(4, 8, 1, 0.5, 0.1, {"round": 4, "loss": 0.5, name: 1.0}))
    assert not (tmp_path / "log.csv").read_text()


def test_a_table_of_a_resumed_run_keeps_all_rows_of_other_seeds(tmp_path):
    file, records = tmp_path / "log.csv", [{"round": 2, "loss": 0.5}, {"round": 4, "loss": 0.25}]
    kept = "round,seed,loss\n2,3,0.5\n4,5,0.25\n4,5,0.25\n"
    file.write_text(kept + "4,3,0.25\n")
    callbacks.csv(file)(Event(4, 8, 1, 0.5, 0.1, records[1], seed=3, earlier=records[:1]))
    assert file.read_text() == kept + "4,3,0.25\n"


@pytest.mark.parametrize("metric", [None, "macro_mse"])
def test_what_the_task_says_is_better_lower_should_fall(metric, tmp_path):
    inputs = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    rows = np.split(np.arange(40), 4)
    data = jaxfl.data.federate(inputs, inputs.sum(1), rows, rows)
    task = jaxfl.regression(jaxfl.models.Logistic(num_classes=1), data)
    method = jaxfl.methods.fedavg(task, optax.sgd(0.1), local_epochs=1, batch_size=None)
    looking = [callbacks.EarlyStopping(1, metric), callbacks.BestCheckpoint(tmp_path / "best", metric)]
    result = jaxfl.run(method, data, rounds=5, eval_every=1, callbacks=looking)
    errors = result.history.column("micro_mse")
    assert len(errors) == 5 and sorted(errors, reverse=True) == errors, "it falls in every round, and is not stopped"
    assert jaxfl.load(tmp_path / "best", method=method, data=data).round == 5
    worse = callbacks.EarlyStopping(1, metric)
    events = [EVENTS[1]._replace(record={metric or "micro_mse": value}, lower=("mse",)) for value in (0.5, 0.6)]
    assert [worse(event) for event in events] == [False, True]


def test_a_resumed_run_knows_the_best_of_before(tmp_path):
    best = callbacks.BestCheckpoint(tmp_path / "best", "loss")
    stop = callbacks.EarlyStopping(2, "loss")
    (tmp_path / "best").mkdir()
    checkpoint.save(tmp_path / "best", {}, {"round": 1})
    kept, earlier = [], [{"round": 1, "loss": 0.5}, {"round": 2, "loss": 0.9}]
    after = Event(3, 9, 1, 0.5, 1.0, {"round": 3, "loss": 0.8}, keep=kept.append, earlier=earlier)
    assert stop(after), "two evaluations are no better than the first"
    best(after)
    assert not kept, "the one that is kept is better"
    anew = callbacks.BestCheckpoint(tmp_path / "anew", "loss")
    anew(after)
    assert kept == [tmp_path / "anew"], "nothing was kept there before"
    late = callbacks.BestCheckpoint(tmp_path / "best", "loss")
    better = [*earlier, {"round": 3, "loss": 0.4}]  # of which no checkpoint was written: the disk was full
    late(after._replace(round=4, record={"round": 4, "loss": 0.45}, earlier=better))
    assert kept[1:] == [tmp_path / "best"], "0.45 is better than what is there"


def test_numbers_that_are_not_finite_end_a_resumed_run_as_a_whole_one():
    """The history has null for them."""
    stop = callbacks.EarlyStopping(3)
    record, null = {"round": 3, "micro_mse": np.inf}, [{"round": 1, "micro_mse": None}, {"round": 2, "micro_mse": None}]
    assert stop(Event(3, 9, 1, 0.5, 1.0, record, lower=("mse",), earlier=null))


def test_a_table_takes_the_same_callback_again_and_finds_rows_that_are_not_finite(tmp_path):
    log, records = callbacks.csv(tmp_path / "log.csv"), [{"round": one, "micro_mse": np.inf} for one in (1, 2, 3)]
    for record in records[:2]:
        log(Event(record["round"], 9, 1, 0.5, 0.1, record))
    log.__exit__()
    log(Event(2, 9, 1, 0.5, 0.1, records[1], earlier=[{"round": 1, "micro_mse": None}]))  # goes on from round 1
    assert (tmp_path / "log.csv").read_text() == "round,micro_mse\n1,inf\n2,inf\n"


def test_a_metric_that_the_first_rows_do_not_define_has_a_column(tmp_path):
    log = callbacks.csv(tmp_path / "log.csv")
    for round, value in ((1, None), (2, 0.5)):
        record = {"round": round, "micro_precision": value, "loss": 1.0, "ari": None, "train_loss": value}
        log(Event(round, 9, 1, 0.5, 0.1, record))
    assert (tmp_path / "log.csv").read_text() == "round,micro_precision,loss,train_loss\n1,,1.0,\n2,0.5,1.0,0.5\n"


def test_a_callback_of_one_run_begins_anew_in_the_next(tmp_path):
    data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=20)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    looking = [callbacks.EarlyStopping(2), callbacks.BestCheckpoint(tmp_path / "best")]
    rounds = []
    for rate in (0.5, 1e-30, 1e-30):
        method = jaxfl.methods.fedavg(task, optax.sgd(rate))
        rounds.append(jaxfl.run(method, data, rounds=6, eval_every=1, callbacks=looking).summary["rounds"])
        best = jaxfl.load(tmp_path / "best", method=method, data=data)
    assert rounds[1:] == [3, 3] and best.round == 1, "the second and third of them are no better"


def test_the_best_of_a_run_replaces_no_other_run(tmp_path):
    data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=20)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    method, folder = jaxfl.methods.fedavg(task, optax.sgd(0.1)), tmp_path / "run"
    jaxfl.run(method, data, rounds=3, eval_every=1, checkpoint_dir=folder)
    held = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match=mentions("folder", "seed=0", 1)):
        jaxfl.run(method, data, rounds=3, eval_every=1, seed=1, callbacks=[callbacks.BestCheckpoint(folder)])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == held
    own = tmp_path / "own"
    with pytest.raises(ValueError, match=mentions("folder", "own/best")):
        best = callbacks.BestCheckpoint(tmp_path / "run" / ".." / "own")
        jaxfl.run(method, data, rounds=3, eval_every=1, checkpoint_dir=own, callbacks=[best])


def test_a_full_disk_is_told_with_the_file_that_it_lacks_room_for(tmp_path, monkeypatch):
    data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=20)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    method, save = jaxfl.methods.fedavg(task, optax.sgd(0.1)), checkpoint.save

    def full(folder, *given):
        if folder.name == "best":
            raise OSError(errno.ENOSPC, "No space left on device")
        save(folder, *given)

    monkeypatch.setattr(checkpoint, "save", full)
    best, run = callbacks.BestCheckpoint(tmp_path / "best"), tmp_path / "run"
    with pytest.raises(OSError, match=mentions("folder", tmp_path / "best", "No space left", "round 1", run)):
        jaxfl.run(method, data, rounds=2, eval_every=1, checkpoint_dir=run, callbacks=[best])
    table = callbacks.csv(tmp_path / "log.csv")
    monkeypatch.setattr(loggers, "_table_row", lambda *given: full(Path("best")))
    with pytest.raises(OSError, match=mentions(tmp_path / "log.csv", "No space left")):
        table(EVENTS[1])


@pytest.mark.parametrize(
    "make",
    [
        lambda metric, path: callbacks.EarlyStopping(2, metric),
        lambda metric, path: callbacks.BestCheckpoint(path, metric),
    ],
)
def test_who_waits_for_test_rows_is_told_that_there_are_none(make, tmp_path):
    rows = np.split(np.arange(40), 4)
    inputs, labels = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2
    data = jaxfl.data.federate(inputs, labels, rows, [rows[0][:0]] * 4, num_classes=2)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=2), data)
    method = jaxfl.methods.fedavg(task, optax.sgd(0.1))
    nobody = ("test rows",)
    lacking = dict.fromkeys((None, "loss", "macro_accuracy", "std_f1", "p10_accuracy", "finetuned_micro_f1"), nobody)
    lacking |= {
        "ari": ("true groups",),
        "unseen_micro_accuracy": ("test rows", "held out"),
        "validation_loss": ("validation=0.1",),
    }
    tune = jaxfl.FineTune(optax.sgd(0.1))
    for metric, what in lacking.items():
        with pytest.raises(ValueError, match=mentions(*what, "metric='train_loss'")):
            jaxfl.run(method, data, rounds=2, callbacks=[make(metric, tmp_path / "best")], finetune=tune)
    with pytest.raises(ValueError, match=mentions("finetune", "None")):
        jaxfl.run(method, data, rounds=2, callbacks=[make("finetuned_micro_f1", tmp_path / "best")])
    assert jaxfl.run(method, data, rounds=2, callbacks=[make("train_loss", tmp_path / "best")]).summary["rounds"] == 2


def test_who_is_not_tested_does_not_end_a_run():
    stop = callbacks.EarlyStopping(1, "loss")
    events = [EVENTS[1]._replace(record={"loss": value}) for value in (None, None, 0.5, None, 0.6)]
    assert [stop(event) for event in events] == [False, False, False, False, True]


def test_what_was_told_of_nobody_is_not_told_again():
    """The records of before are those that a resumed run begins with, and not those that it has made itself."""
    stop, earlier = callbacks.EarlyStopping(1, "loss"), []
    for round in range(1, 5):
        record = {"round": round, "loss": None}
        assert not stop(EVENTS[1]._replace(record=record, earlier=list(earlier)))
        earlier.append(record)


def test_an_evaluation_of_nobody_is_not_the_best(tmp_path):
    best, kept = callbacks.BestCheckpoint(tmp_path / "best", "loss"), []
    for round, value in enumerate((None, 0.5, None, 0.6, 0.4), 1):
        best(
            Event(
                round, 9, 1, 0.5, 1.0, {"round": round, "loss": value}, keep=lambda _, round=round: kept.append(round)
            )
        )
    assert kept == [2, 5]


def test_what_else_a_callback_returns_says_nothing():
    data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=20)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    foreign = types.SimpleNamespace(dtype=object())  # a tensor of another library
    told = [None, 1, "yes", [True], np.ones(0, bool), np.ones(2, bool), foreign, jax.random.key(0)]
    looking = [lambda event, value=value: value for value in told]
    method = jaxfl.methods.fedavg(task, optax.sgd(0.1))
    assert jaxfl.run(method, data, rounds=2, eval_every=1, callbacks=looking).summary["rounds"] == 2


def test_callbacks_are_told_the_records_of_before(tmp_path):
    data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=20)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    method, told = jaxfl.methods.fedavg(task, optax.sgd(0.1)), []

    def tell(event):
        if event.record is not None:
            told.append([record["round"] for record in (*event.earlier, event.record)])
        return {1: False, 2: np.bool_(True), 3: jnp.asarray(True)}[event.round]  # numpy's True ends a run, and JAX's

    for ended in (2, 3):
        options = {"eval_every": 1, "callbacks": [tell], "checkpoint_dir": tmp_path, "resume": True}
        assert jaxfl.run(method, data, rounds=4, **options).summary["rounds"] == ended
    assert told == [[1], [1, 2], [1, 2, 3]]


def test_seeds_wait_apart_and_a_loss_should_fall():
    stop = callbacks.EarlyStopping(1, "loss")
    told = [(0, 1.0), (1, 1.0), (0, 0.5), (1, 1.0), (0, 0.5)]
    events = [Event(1, 9, 1, 0.5, 1.0, {"loss": loss}, seed=seed) for seed, loss in told]
    assert [stop(event) for event in events] == [False, False, False, True, True]
    assert not stop(events[0]._replace(record=None, seed=2))
    with pytest.raises(ValueError, match=mentions("metric", "accuracy")):
        callbacks.EarlyStopping(1, "accuracy")(events[0])
    with pytest.raises(ValueError, match=mentions("patience", 0)):
        callbacks.EarlyStopping(0)
    with pytest.raises(TypeError, match=mentions("seconds", "30m")):
        callbacks.TimeLimit("30m")
    with pytest.raises(TypeError, match=mentions("patience", 1.5)):
        callbacks.EarlyStopping(1.5)
    with pytest.raises(ValueError, match=mentions("seconds", 0)):
        callbacks.TimeLimit(0)


def test_a_time_limit_says_whether_it_has_ended_a_run():
    limit = callbacks.TimeLimit(10)
    told = [limit(Event(done, 3, 1, 0.5, 1.0, None, seconds=seconds)) for done, seconds in ((1, 5.0), (3, 20.0))]
    assert told == [False, True] and not limit.reached, "all rounds were made"
    assert limit(Event(2, 3, 1, 0.5, 1.0, None, seconds=20.0)) and limit.reached


class Unwritable(io.StringIO):
    """A stream on a full disk or a closed pipe."""

    terminal = False

    def isatty(self):
        return self.terminal

    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_that_cannot_be_written_is_dropped(terminal, monkeypatch):
    file = Unwritable()
    file.terminal = terminal
    with ProgressBar(file) as bar:
        for event in EVENTS:
            bar(event)
    assert bar.records == {} and bar._show is None
    monkeypatch.setattr(sys, "stderr", None)  # of a process without one
    with ProgressBar() as bar:
        bar(EVENTS[0])


def test_all_rows_are_not_compared_with_some(tmp_path):
    """The last evaluation of a run with `test_rows` is of all rows."""
    best, kept = callbacks.BestCheckpoint(tmp_path / "best", "loss"), []
    events = [
        EVENTS[1]._replace(record={"loss": value}, earlier=[{"loss": 0.5}] * place, keep=kept.append, whole=place == 2)
        for place, value in enumerate((0.5, 0.4, 0.1))
    ]
    for event in events:
        best(event)
    assert len(kept) == 2
    best.__exit__()
    best(events[2]._replace(earlier=()))  # the only one
    assert len(kept) == 3


def test_a_run_that_a_callback_ends_is_told_with_its_times():
    data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=20)
    task, file = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data), io.StringIO()
    told = [ProgressBar(file), lambda event: event.round == 2]
    jaxfl.run(jaxfl.methods.fedavg(task, optax.sgd(0.1)), data, rounds=9, eval_every=1, callbacks=told)
    lines = file.getvalue().splitlines()
    assert lines[-2].startswith("round 2/9") and lines[-1].startswith("round 2/2") and "took" in lines[-1]


OUTSIDE = """
import jax
import numpy as np


class Log:
    def __init__(self):
        self.rows, self.events = [], []

    def __call__(self, event):
        model = jax.tree.leaves(event.state.model)[0]
        self.rows.append((event.round, event.cohort.tolist(), int(event.state.round), np.asarray(model)))
        self.events.append(event)
"""


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_callback_sees_who_took_part_and_what_was_made(seeds, tmp_path):
    """One from a file outside of the package; the cohort is the one that the run's sampler draws."""
    (tmp_path / "mine.py").write_text(OUTSIDE)
    log = user_code.load(f"{tmp_path / 'mine.py'}:Log")()
    data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    method = jaxfl.methods.fedavg(task, optax.sgd(0.1))
    found = jaxfl.run(method, data, rounds=3, cohort=3, seeds=[5, 6][:seeds], eval_every=1, callbacks=[log])
    for seed, result in zip([5, 6][:seeds], found, strict=True):
        rows = [row for row, event in zip(log.rows, log.events, strict=True) if event.seed in (seed, None)]
        assert [(round, counted) for round, _, counted, _ in rows] == [(1, 1), (2, 2), (3, 3)]
        for round, cohort, _, _ in rows:
            drawn = sampling.uniform(jax.random.key(seed), jnp.int32(round - 1), data, 3)
            assert cohort == sorted(np.asarray(drawn.ids)[np.asarray(drawn.mask)].tolist())
        np.testing.assert_array_equal(rows[-1][3], jax.tree.leaves(result.state.model)[0])
        assert abs(rows[0][3] - rows[1][3]).max() > 0


def test_an_event_of_many_rounds_tells_the_last_cohort():
    seen = []
    data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    method = jaxfl.methods.fedavg(task, optax.sgd(0.1))
    jaxfl.run(method, data, rounds=40, cohort=3, seed=5, eval_every=40, callbacks=[seen.append])
    drawn = sampling.uniform(jax.random.key(5), jnp.int32(39), data, 3)
    assert seen[-1].cohort.tolist() == sorted(np.asarray(drawn.ids).tolist()) and len(seen) < 40
