"""Random command lines, made of the registry: what `fuzz_commands` runs. Line i of a seed is always the same."""

import contextlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np

from experiments.reliability.wires import WIRES
from jaxfl import data as federations
from jaxfl.methods import METHODS
from jaxfl.models import networks
from jaxfl.schema import Option, union_members
from jaxfl.settings import options

WEIRD = (
    *(
        "",
        " ",
        "none",
        "nan",
        "inf",
        "-inf",
        "0",
        "-1",
        "1e-300",
        "1e300",
        "0.5",
        "true",
        "()",
        "(1,)",
        "1,2,3",
        "[[1]]",
    ),
    *("auto", "x", "ü", "'", '"', "a=b", "{1:2}", "__import__('os')", "1" * 40, "x" * 300, "--rounds", "1_000"),
    *(str(2**31), str(2**63), str(-(2**63)), "0x10", "1+1", "lambda: 0", "None", "((0,1),(2,3))", "-0.0", "5e-324"),
)
SMALL = {"num_clients": "8", "rows_per_client": "20"}
SLIM = {"mlp": {"hidden": "8"}, "leaf-femnist-cnn": {"hidden": "8"}, "vgg16": {"hidden": "8", "width": "2"}}
PARTS = {  # of texts with a language of their own
    "compress": ("none", "topk:0.01", "topk:1.5", "randk:0.1", "sign", "sign:3", "qsgd:8", "bfloat16", "topq:0.1"),
    "aggregator": ("mean", "median", "trimmed:0.2", "krum:0.2", "krum:0.45", "multikrum", "geomedian", "cclip:1"),
}
NOISE, PRIVATE = {"noise", "epsilon"}, {"delta", "denominator", "floor", "accounting"}
OWN = ("own", "tokens", "gaps", "empty", "broken", "lonely")  # the .npz files of `prepare`


def line(seed: int, index: int, folder: Path) -> list[str]:
    """Returns the words of a command line, without `jaxfl`.

    Args:
        seed: of the campaign.
        index: of the line.
        folder: from `prepare`; the line may name its files.
    """
    draw = random.Random(f"{seed} {index}")
    kind = draw.choices(["run", "plan", "methods", "data", "other"], [84, 6, 3, 5, 2])[0]
    if kind in ("run", "plan"):
        return _run(draw, folder, kind)
    as_json = ["--json"] * draw.choice([0, 0, 1])
    if kind == "methods":
        return ["methods", *draw.choice([[], [_method(draw)]]), *as_json]
    if kind == "data":
        name, source = _data(draw, folder)
        items = _items(
            draw, options.applicable_options("fedavg", name, "logistic", "sgd") if _known(name) else [], {"data"}
        )
        return ["data", *draw.choice([[], [name, *source], [name, *source, *items]]), *as_json]
    return draw.choice(
        [
            ["reproduce", draw.choice(["nobody", "../x", ""]), *draw.choice([[], ["--scale", "smoke"]])],
            [
                "reproduce",
                draw.choice(["ifca", "cfl"]),
                "--scale",
                draw.choice(["huge", "", "paper"]),
                "--only",
                "Nobody",
            ],
            ["report", draw.choice(["nobody", ""])],
            ["report", "ifca", "--scale", draw.choice(["huge", ""])],
            [draw.choice(["runs", "--version", "-h", ""])],
        ]
    )


def _run(draw: random.Random, folder: Path, command: str) -> list[str]:
    """Returns a line that trains, or plans to."""
    method, (data, source) = _method(draw), _data(draw, folder)
    words = [command, method, "--data", data, *source]
    if method in METHODS and _known(data):
        model, optimizer = draw.choice([*networks.MODELS, *["logistic", "mlp"] * 9]), draw.choice([*options.OPTIMIZERS])
        server = draw.choice([None, None, *options.SERVERS]) if "server_optimizer" in METHODS[method].options else None
        known = options.applicable_options(method, data, model, optimizer, server)
        names = {option.name for option in known if option.owner == "data"}
        chosen = {name: value for name, value in SMALL.items() if name in names}
        chosen |= {"model": model, **SLIM.get(model, {})}
        chosen |= {"optimizer": optimizer} if draw.random() < 0.3 else {}
        chosen |= {"server_optimizer": server} if server else {}
        items = _items(draw, known, {*options.OWNERS}, chosen)
        words += items
    else:
        words += ["--set", f"{draw.choice(['alpha', 'local_epochs', 'x'])}={draw.choice(WEIRD)}"]
    return [*words, *_flags(draw, folder, command)]


def _method(draw: random.Random) -> str:
    """Returns the name of a method; a wrong one now and then."""
    return draw.choice(list(METHODS)) if draw.random() < 0.97 else draw.choice(["fedavgg", "FedAvg", "", "all", "-1"])


def _known(name: str) -> bool:
    """Returns whether there is a data set of this name."""
    with contextlib.suppress(ValueError):
        return bool(federations.dataset(name))
    return False


def _data(draw: random.Random, folder: Path) -> tuple[str, list[str]]:
    """Returns the name of a data set, and `--data-dir` where it has files."""
    chance = draw.random()
    if chance < 0.75:
        skews = [row.skew for row in federations.DATASETS.values() if row.source == "digits"]
        before = draw.choice(["rotated+", "shifted+", "rotated+shifted+"]) if draw.random() < 0.15 else ""
        return f"{before}{draw.choice(skews)}-digits", []
    if chance < 0.93:
        name = draw.choice([name for name, row in federations.DATASETS.items() if row.source == "npz"])
        file = draw.choice([*OWN, *["own", "tokens"] * 4, "missing"])
        return name, draw.choice([["--data-dir", str(folder / f"{file}.npz")]] * 9 + [[], ["--data-dir", str(folder)]])
    return draw.choice(
        [*federations.DATASETS, "mnist", "digits", "", "rotated", "x-digits", "iid-tfds:", "iid-tfds:no"]
    ), []


def _items(
    draw: random.Random, known: Sequence[Option], owners: set[str], chosen: dict[str, str] | None = None
) -> list[str]:
    """Returns `--set key=value` for the chosen ones, and for some more options with right, wrong or extreme values."""
    items = dict(chosen or {})
    there = [option for option in known if option.owner in owners]
    for option in draw.sample(there, min(len(there), draw.choice([0, 0, 1, 1, 2, 3, 5]))):
        several = sum(option.name == other.name for other in known) > 1
        owned = f"{option.owner}." if several or draw.random() < 0.1 else ""
        if not owned or option.name not in items:
            items[f"{owned}{option.name}"] = _value(draw, option)
    if "run" in owners and draw.random() < 0.15:
        items |= draw.choice(WIRES)
    if draw.random() < 0.9:  # what is refused alone
        items |= {"noise": "0.5"} if PRIVATE & set(items) and not NOISE & set(items) else {}
        items |= {"clip": "1.0"} if NOISE & set(items) and "clip" not in items else {}
        items |= {"compress": "sign"} if "error_feedback" in items and "compress" not in items else {}
        items |= {"attackers": "0.25"} if "attack" in items and "attackers" not in items else {}
        items |= {"attack": "sign-flip"} if "attackers" in items and "attack" not in items else {}
        drifting = {"drift", "drift_share", "arrive", "leave"} & set(items)
        items |= {"drift_round": "1"} if drifting and "drift_round" not in items else {}
        items |= {"drift": "rotate"} if "drift_round" in items and not drifting else {}
    words = [f"{key}={value}" for key, value in items.items()]
    if draw.random() < 0.05:
        words.append(
            draw.choice([*words, "x", "=", "x=", "=1", "no_such=1", "server.tau=1", "method=fedavg", "seed=1"])
        )
    return [word for item in words for word in ("--set", item)]


def _value(draw: random.Random, option: Option) -> str:
    """Returns the text of a value: usually one that fits."""
    if draw.random() < 0.2:
        return draw.choice(WEIRD)
    if option.name in PARTS:
        return "+".join(draw.sample(PARTS[option.name], draw.choice([1, 1, 2])))
    return str(_fitting(draw, draw.choice(union_members(option.hint)), option.default, extreme=draw.random() < 0.2))


def _fitting(draw: random.Random, hint: Any, default: Any, *, extreme: bool) -> Any:
    """Returns a value of a type; an extreme one is often out of range."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Literal:
        return draw.choice(parts)
    if hint is None or hint is bool:
        return None if hint is None else draw.choice([True, False])
    if hint is int:
        return draw.choice([0, -1, 10**6, 2**31 - 1, 2**31, -(10**9)] if extreme else [1, 2, 3, 4, default])
    if hint is float:
        usual = [0.1, 0.5, 0.9, 1.0, default]
        return draw.choice([0.0, -1.0, 1e-38, 1e38, 1e300, 5e-324, 2.0] if extreme else usual)
    if hint is str:
        return draw.choice(["", ".*", "[", "x" * 100, "\\"] if extreme else ["Dense_0", ".*", "kernel", default])
    inner = next((part for part in parts if part is not Ellipsis), int)
    count = draw.choice([0, 1, 50] if extreme else [1, 2, 3])
    return tuple(_fitting(draw, draw.choice(union_members(inner)), 1, extreme=extreme) for _ in range(count))


def _flags(draw: random.Random, folder: Path, command: str) -> list[str]:
    """Returns flags; of a run always the number of rounds."""
    numbers = ["0", "-1", "1.5", "x", str(2**63), "1e3", ""]
    cohorts = ["0", "0.0", "-1", "1.5", "99", "nan", "half", "(1,)", "1e-9", "None", "True", str(2**63)]
    flags = {"--cohort": draw.choice(cohorts)} if draw.random() < 0.08 else {}
    flags |= {"--cohort": draw.choice(["0.5", "1.0", "2", "3"])} if draw.random() < 0.5 else {}
    if command == "plan":
        return [word for pair in flags.items() for word in pair]
    outs = [f"new/{draw.randrange(10**9)}/a", "file.txt", "done", "done", "/proc/x", ".", "x" * 300]
    usual = {
        "--seed": ["1", "2", "4294967295"],
        "--seeds": ["0,1", "3", "0-2"],
        "--eval-every": ["1", "2", "100"],
        "--checkpoint-every": ["1"],
        "--out": [path if path.startswith("/") else str(folder / path) for path in outs],
    }
    wrong = {"--seeds": ["", "1,1", "a", "5-1", "0-9999999", "1.5", "-1", ","], "--out": [""]}
    for flag, values in usual.items():
        if draw.random() < 0.12:
            flags[flag] = draw.choice(values if draw.random() < 0.75 else wrong.get(flag, numbers))
    resume = draw.random() < 0.08
    if draw.random() < 0.9 and (resume or "--checkpoint-every" in flags):
        flags["--out"] = str(folder / draw.choice(outs[:4]))
    rounds = draw.choice(numbers) if draw.random() < 0.04 else "1"
    words = [word for pair in flags.items() for word in pair]
    return ["--rounds", rounds, *words, *["--resume"] * resume, *["--nope"] * (draw.random() < 0.01)]


def write_files(folder: Path) -> None:
    """Writes arrays of every kind, and files that are none."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, y = np.random.default_rng(0), np.arange(96) % 3
    x, client = rng.normal(size=(96, 4)).astype(np.float32), np.arange(96) % 6
    np.savez(folder / "own.npz", x=x, y=y, client=client, group=client % 2)
    np.savez(folder / "tokens.npz", x=rng.integers(0, 50, (96, 5)), y=y, client=client)
    np.savez(folder / "gaps.npz", x=x, y=y * 1000)
    np.savez(folder / "lonely.npz", x=x, y=y, client=np.arange(96))
    np.savez(folder / "empty.npz")
    for name in ("broken.npz", "file.txt"):
        (folder / name).write_bytes(b"PK\x03\x04 nothing")
