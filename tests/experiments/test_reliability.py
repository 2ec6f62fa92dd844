"""The short forms of the campaigns, and what each takes for a finding."""

import gc
import json
import signal
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.reliability import (
    arrays,
    disks,
    fuzz_commands,
    fuzz_files,
    kills,
    order,
    poison,
    settings,
    soak,
    strangers,
    wires,
)
from experiments.reliability.campaign import heed_signals, until
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=4)

SMALL_RUN = ("num_clients=8", "rows_per_client=20", "model=logistic")


@pytest.mark.parametrize("name", ["feddane", "ifca"])
def test_sick_clients_change_nothing_for_the_others(name):
    outcomes = list(poison.campaign(0, 0, 3, [name], until(None)))
    assert [outcome.what for outcome in outcomes] == ["same"] * 3, outcomes
    assert [outcome.sick.split("], ")[1].split()[0] for outcome in outcomes] == list(poison.KINDS)


def test_what_sick_clients_change_is_found():
    setting = settings.setting(0, 0, "fedavg")

    def round(key, state, data, cohort):
        new, info = setting.made.round(key, state, data, cohort)
        return new._replace(model=jax.tree.map(lambda leaf: leaf + 0 * info.loss.sum(), new.model)), info

    outcome = poison.run(setting._replace(made=setting.made._replace(round=round)), 0, 0)
    assert outcome.is_finding and "what the others are served" in outcome.what
    uncounted = setting.made._replace(
        round=lambda *given: (lambda new, info: (new, info._replace(diverged=jnp.int32(0))))(
            *setting.made.round(*given)
        )
    )
    outcome = poison.run(setting._replace(made=uncounted), 0, 0)
    assert "updates are sick, counted 0" in outcome.what


def test_a_case_is_the_same_whenever_it_is_made():
    one, other = (str(settings.setting(4, 2, "fesem")) for _ in range(2))
    assert one == other != str(settings.setting(5, 2, "fesem"))
    assert list(poison.campaign(0, 0, 10, ["fedavg"], until(0))) == []


def test_half_of_the_settings_have_a_wire_that_their_method_takes():
    found = [settings.setting(0, group, "fedavg") for group in range(6)]
    assert 0 < sum(bool(one.wire) for one in found) < 6
    assert {name for one in found for name in one.wire} <= {name for wire in wires.WIRES for name in wire}
    wires.check_line("fedavg", "iid-digits", [*SMALL_RUN, "compress=topk:0.1", "error_feedback=true"], 4)
    for method, item in (("local", "clip=1.0"), ("fedavg", "aggregator=krum:0.45"), ("fedsoft", "aggregator=median")):
        with pytest.raises(ValueError, match=mentions(item.split("=")[0])):
            wires.check_line(method, "iid-digits", [*SMALL_RUN, item], 4)


def test_order_changes_nothing():
    planned = [
        plan for plan in order.plans([1, 2], ["1", "3"]) if plan[0] in ("1 devices, chunk 1", "2 devices, chunk 3")
    ]
    assert order.check("ifca", 0, planned, until(None)) == (6, [])
    assert order.check("ifca", 0, planned, until(0)) == (0, [])


ONE = order.Told({"w": np.ones(2), "cluster": np.zeros(2, int)}, {"ari": 1.0, "loss": 0.5, "train_loss": 1.0}, [[0, 1]])


@pytest.mark.parametrize(
    ("other", "bits", "found"),
    [
        (ONE, True, ""),
        (ONE._replace(state={**ONE.state, "w": np.ones(2) + 1e-7}), True, "the state: w"),
        (ONE._replace(state={**ONE.state, "w": np.ones(2) + 1e-7}), False, ""),
        (ONE._replace(state={**ONE.state, "w": np.ones(2) + 1e-2}), False, "the state: w"),
        (ONE._replace(state={**ONE.state, "cluster": np.ones(2, int)}), False, "the state: cluster"),
        (ONE._replace(cohorts=[[0, 2]]), False, "the cohorts: [[0, 1]] and [[0, 2]]"),
        (ONE._replace(last={**ONE.last, "loss": 0.6}), True, "the last record: loss"),
        (ONE._replace(last={**ONE.last, "loss": 0.6, "ari": 0.5}), False, "the last record: ari"),
    ],
)
def test_what_order_may_not_change(other, bits, found):
    assert order.apart(ONE, other, bits=bits) == found


def test_a_long_run_and_many_hold_what_they_held(tmp_path, monkeypatch):
    gc.freeze()  # what earlier tests left: to search it, look by look, takes longer than the runs
    monkeypatch.setattr(soak, "MEASURED", 3)
    one, more = soak.made(soak.federation(0)), until(None)
    long = soak.long_run(one, 60, 0, tmp_path, more)
    many = soak.many_runs(3, 0, tmp_path, "many runs", lambda data: one, more)
    assert long["findings"] == many["findings"] == [] and (long["rounds"], many["runs"]) == (60, 3)
    assert len(long["held"]) == len(many["held"]) == 3
    assert 0 < soak.long_run(one, 60, 0, tmp_path / "late", until(0))["rounds"] < 60


def test_what_grows_is_found(monkeypatch):
    watch = soak.Watch(1)
    kept = []
    for compiles in (False, True):
        watch.look()
        kept.append(open("/dev/null"))  # noqa: SIM115
        if compiles:
            jax.jit(lambda x: x + 1)(jnp.zeros(3)).block_until_ready()
        monkeypatch.setattr(soak.os, "sysconf", lambda name: 1 << 26)  # pages as if of 64 MB
    watch.look()
    for file in kept:
        file.close()
    found = watch.record("many runs")["findings"]
    assert [finding.split(":")[0] for finding in found] == ["megabytes", "files", "compilations"]
    assert "compilations" not in str(watch.record("own methods", compiles=True)["findings"])


def test_damaged_files_load_or_are_refused(tmp_path):
    outcomes = list(fuzz_files.campaign(0, 0, 40, list(fuzz_files.KINDS), tmp_path, until(None)))
    assert not [outcome for outcome in outcomes if outcome.is_finding]
    assert {outcome.kind for outcome in outcomes} == set(fuzz_files.KINDS)
    assert {outcome.what for outcome in outcomes} == {"loaded", "refused"}


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        (ValueError("{path} is cut"), "refused"),
        (ValueError("it is cut"), "ValueError that does not name the file"),
        (OSError("{path}: Traceback (most recent call last)"), "a traceback in a message: refused"),
        (KeyError("x"), "KeyError"),
        (fuzz_files.TooLong(), "took more than 60 s"),
    ],
)
def test_what_a_damaged_file_may_not_do(fault, what, tmp_path, monkeypatch):
    def load(place):
        raise type(fault)(*(str(word).format(path=place) for word in fault.args))

    monkeypatch.setitem(fuzz_files.KINDS, "npz", fuzz_files.KINDS["npz"]._replace(load=load))
    (tmp_path / "npz").mkdir()
    fuzz_files.KINDS["npz"].write(tmp_path / "npz", None)
    outcome = fuzz_files.run(0, 0, ["npz"], tmp_path)
    assert outcome.what == what and outcome.is_finding == (what != "refused")


def test_another_state_than_was_saved_is_found(tmp_path, monkeypatch):
    other = {**fuzz_files.STATE, "round": fuzz_files.STATE["round"] + 1}
    monkeypatch.setitem(fuzz_files.KINDS, "run", fuzz_files.KINDS["run"]._replace(load=lambda place: other))
    (tmp_path / "run").mkdir()
    fuzz_files.KINDS["run"].write(tmp_path / "run", None)
    told = {fuzz_files.run(0, index, ["run"], tmp_path).what for index in range(6)}
    assert told == {"loaded", "another state"}, "what is made wrong has no state to compare with"


@pytest.mark.parametrize(
    ("module", "words", "what"), [(poison, ["--methods", "local"], "cases"), (fuzz_files, [], "files")]
)
def test_a_campaign_writes_a_line(module, words, what, tmp_path, capsys):
    out = tmp_path / "lines.jsonl"
    for _ in range(2):
        assert module.main([*words, "--minutes", "0", "--seed", "3", "--out", str(out)]) == 0
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(record["campaign"], record["seed"], record[what]) for record in records] == [
        (module.__name__.rsplit(".")[-1], 3, 0)
    ] * 2


@pytest.mark.parametrize(
    ("module", "what"), [(strangers, "folders"), (poison, "cases"), (fuzz_files, "files"), (fuzz_commands, "lines")]
)
def test_an_interrupted_campaign_writes_what_it_has_done(module, what, tmp_path, monkeypatch):
    def interrupted(*_):
        yield SimpleNamespace(is_finding=False, what="loaded", kind="run", setting="local of", index=0)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "campaign", interrupted)
    monkeypatch.setattr(fuzz_commands, "prepare", lambda folder: None)
    assert module.main(["--out", str(tmp_path / "lines.jsonl")]) == 0
    assert json.loads((tmp_path / "lines.jsonl").read_text())[what] == 1


TERM, KILL = signal.SIGTERM, signal.SIGKILL


@pytest.mark.parametrize(
    ("ended", "number", "found"),
    [
        ((0, "the end", ""), None, ""),
        ((2, "rounds", "error: no"), None, "ended with 2 without a signal"),
        ((-9, "rounds", ""), KILL, ""),
        ((143, "rounds", "stopped"), TERM, ""),
        ((75, "rounds", "stopped"), signal.SIGUSR1, ""),
        ((138, "rounds", "stopped"), signal.SIGUSR1, "ended with 138 after SIGUSR1 in rounds"),
        ((129, "compiling", "interrupted"), signal.SIGHUP, ""),
        ((-15, "rounds", ""), TERM, "ended with -15 after SIGTERM in rounds"),
        ((-15, "imports", ""), TERM, ""),
        ((0, "the end", "pictures: a.png"), TERM, ""),
        ((0, "rounds", "pictures: a.png", 1), TERM, ""),
        ((0, "rounds", "pictures: a.png", 2), TERM, "ended with 0 after SIGTERM in rounds"),
        ((143, "rounds", "Traceback (most recent call last)"), TERM, "Traceback in rounds"),
        ((991, "compiling", ""), TERM, "ended with 991 after SIGTERM in compiling"),
    ],
)
def test_how_a_process_may_end(ended, number, found):
    code, moment, *told = ended
    assert kills.fault(kills.Ended(code, moment, 0.0, *told), number) == found


def test_signals_are_heeded_behind_a_shells_ampersand():
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)}
    try:
        heed_signals()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGHUP)  # this process goes on, those that it begins would not
        assert signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_kills_are_sent_resumed_and_judged(tmp_path, monkeypatch):
    begun, codes = [], iter([0, -9, -9, 0])

    class Process:
        """Stands in for a run that is ended twice, and goes on."""

        def __init__(self, command, log, cache):
            self.log, self.process = log, self
            log.write_text("")
            begun.append(command[-1])

        def wait_for(self, *moments):
            return 0.0

        def poll(self):
            return None

        def end(self, number):
            return kills.Ended(next(codes), "rounds", 0.1, "")

    monkeypatch.setattr(kills, "Process", Process)
    monkeypatch.setattr(kills, "SIGNALS", (KILL,))
    monkeypatch.setattr(kills, "difference", lambda one, other: f"{one.name} is not {other.name}")
    monkeypatch.setattr(kills.time, "sleep", lambda seconds: None)
    campaign = kills.Campaign(0, 2, tmp_path, until(None))
    campaign.job(kills.words(0, 0), 0)
    assert begun == ["whole", "--resume", "--resume", "--resume"] and not campaign.more()
    assert campaign.moments == {"SIGKILL in rounds": 2}
    assert [finding["what"] for finding in campaign.findings] == ["whole is not cut"]
    assert not kills.Campaign(0, 2, tmp_path, until(0)).more()


def test_what_a_full_disk_may_leave_is_found(tmp_path):
    (tmp_path / "mine.txt").write_text(disks.NOTE)
    assert disks.cut_short(tmp_path) == disks.left_over(tmp_path) == ""
    for name in ("a.png", "a.html", "a.tex", "a.npz"):
        (tmp_path / name).write_bytes(b"PK")
        assert name in disks.cut_short(tmp_path)
        (tmp_path / name).unlink()
    (tmp_path / f"{disks.PARTIAL}1").touch()
    assert disks.PARTIAL in disks.left_over(tmp_path)
    (tmp_path / "mine.txt").write_text("")
    assert "user" in disks.left_over(tmp_path)
    whole, again = tmp_path / "whole", tmp_path / "again"
    for folder in (whole, again):
        folder.mkdir()
        (folder / "clients.csv").write_text(folder.name)
    assert "clients.csv" in disks.other_content("run", whole, again)
    (again / "clients.csv").unlink()
    assert "clients.csv" in disks.other_content("run", whole, again)
    for cell in ("fedavg/seed-0", "fedavg/seed-1"):
        (whole / cell).mkdir(parents=True)
        (whole / cell / "summary.json").write_text("{}")
    assert "fedavg/seed-0" in arrays.difference_of_sweeps(whole, again)


@pytest.mark.slow
def test_full_disks_and_killed_processes_lose_nothing():
    assert disks.main(["--count", "7"]) == 0
    assert arrays.main(["--count", "1", "--processes", "4"]) == 0


def test_folders_of_strangers_execute_nothing(monkeypatch):
    monkeypatch.setenv(strangers.RAN, "")
    outcomes = list(strangers.campaign(0, 0, 3, until(None)))
    assert [one.trick for one in outcomes] == list(strangers.TRICK_NAMES[:3])
    assert not [one for one in outcomes if one.is_finding], outcomes


def test_outputs_that_show_names_as_code_are_found():
    shown = {"csv": "setting\n-1.5\n", "latex": "a", "html": "<td>&lt;script&gt;</td>"}
    assert list(strangers.faults_of_outputs(shown)) == []
    for form, content in {
        "csv": "setting\n=1+1\n",
        "terminal": "\x1b[31m",
        "html": '<td onload="x"><svg></td>',
    }.items():
        (fault,) = strangers.faults_of_outputs(shown | {form: content})
        assert fault.startswith(form)
