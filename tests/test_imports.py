"""Imports point one way: a walk over the syntax trees, so that a lazy import inside a function counts as well."""

import ast
import graphlib
import importlib.metadata
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

# From the ground up: a module imports its own room and the floors below, not the other rooms of its floor.
FLOORS = (
    ("host",),
    ("bounded", "files", "schema", "typing"),
    ("random", "tree"),
    ("cohort",),
    ("models", "data"),
    ("tasks",),
    ("clustering", "client"),
    ("server", "sampling"),
    ("engine",),
    ("methods",),
    ("wire",),
    ("clock",),
    ("edges",),
    ("simulation",),
    ("settings",),
    ("analysis", "bench", "protocols", "testing"),
    ("plots",),
    ("jobs",),
    ("public",),
    ("jaxfl",),  # the package's own namespace: nothing below may lean on it
    ("cli",),
    ("__main__",),
    ("experiments.harness",),
    ("experiments",),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

# Slow to import, and not needed to train: imported inside the functions that use them.
HEAVY = {
    *("matplotlib", "mlflow", "pandas", "rich", "sklearn", "tensorboardX", "tensorflow_datasets", "typer", "wandb"),
    *("h5py", "PIL", "pyarrow", "requests"),
}
# The command line's commands, whose options typer reads.
COMMANDS = {f"jaxfl.cli.{name}" for name in ("app", "completion")}


class Module(NamedTuple):
    source: str
    is_package: bool = False


def read_modules(root: Path, packages=("jaxfl", "experiments")) -> dict[str, Module]:
    """Returns the modules of the packages that exist, by dotted name."""
    modules = {}
    for path in sorted(path for package in packages for path in (root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules[name] = Module(path.read_text(encoding="utf-8"), is_package)
    return modules


def imports(name: str, module: Module, known: dict[str, Module], tree: ast.AST | None = None) -> Iterator[str]:
    """Yields the dotted names that a module imports: submodules where `from x import y` names one."""
    for node in ast.walk(tree or ast.parse(module.source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # relative: level 1 is the package that the module is in
                package = name.split(".") if module.is_package else name.split(".")[:-1]
                base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                yield submodule if submodule in known else base


def top_level_imports(name: str, module: Module, known: dict[str, Module]) -> Iterator[str]:
    """Yields what importing the module imports at once: not inside functions, not under `if TYPE_CHECKING`."""

    def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                yield from statements(node.orelse)
                continue
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield node
            for block in ("body", "orelse", "finalbody"):
                yield from statements(getattr(node, block, []))
            for handler in getattr(node, "handlers", []):
                yield from statements(handler.body)

    for statement in statements(ast.parse(module.source).body):
        yield from imports(name, module, known, statement)


def import_graph(modules: dict[str, Module]) -> dict[str, set[str]]:
    """Returns the arrows among the modules, without those to third parties and from a package into itself."""
    return {
        name: {target for target in imports(name, module, modules) if target in modules and target != name}
        for name, module in modules.items()
    }


def room(name: str) -> str:
    """Returns the room of a module: the first part below `jaxfl`; of `experiments`, the harness or the papers."""
    parts = name.split(".")
    if parts[0] == "jaxfl":
        return parts[1] if len(parts) > 1 else "jaxfl"
    return ".".join(parts[:2]) if parts[1:2] == ["harness"] else parts[0]


def faults(modules: dict[str, Module]) -> list[str]:
    """Returns what is wrong with the imports, a sentence each."""
    graph = import_graph(modules)
    found = [f"{name} has no floor; give {room(name)} one in FLOORS" for name in modules if room(name) not in FLOOR]
    for name, targets in graph.items():
        for target in sorted(targets):
            here, there = room(name), room(target)
            if here != there and FLOOR.get(there, 0) >= FLOOR.get(here, len(FLOORS)):
                found.append(f"{name} imports {target}, which is not below it")
            if here == "clustering" and there not in ("clustering", "schema", "typing"):
                found.append(f"{name} imports {target}; clustering knows jaxfl.typing and jaxfl.schema alone")
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        cycle = error.args[1][:0:-1]  # told against the arrows, and its first name twice
        start = cycle.index(min(cycle))
        found.append("cycle: " + " -> ".join([*cycle[start:], *cycle[: start + 1]]))
    return found


MODULES = read_modules(ROOT)


def test_arrows_point_down():
    assert "jaxfl.typing" in MODULES
    assert faults(MODULES) == []


@pytest.mark.parametrize(
    ("sources", "fault"),
    [
        pytest.param(
            {"jaxfl.engine": "from jaxfl import sampling", "jaxfl.sampling": "def f():\n    import jaxfl.engine"},
            "cycle: jaxfl.engine -> jaxfl.sampling -> jaxfl.engine",
            id="cycle through a lazy import",
        ),
        pytest.param(
            {"jaxfl.data.shift": "from jaxfl.data import skews", "jaxfl.data.skews": "import jaxfl.data.shift"},
            "cycle: jaxfl.data.shift -> jaxfl.data.skews -> jaxfl.data.shift",
            id="cycle in a room",
        ),
        pytest.param(
            {"jaxfl.tree": "from jaxfl.methods import base", "jaxfl.methods.base": ""},
            "jaxfl.tree imports jaxfl.methods.base, which is not below it",
            id="up",
        ),
        pytest.param(
            {"jaxfl.data.clients": "from ..simulation.run import run", "jaxfl.simulation.run": ""},
            "jaxfl.data.clients imports jaxfl.simulation.run, which is not below it",
            id="up, relative",
        ),
        pytest.param(
            {"jaxfl.models.networks": "from jaxfl import data", "jaxfl.data": ""},
            "jaxfl.models.networks imports jaxfl.data, which is not below it",
            id="beside",
        ),
        pytest.param(
            {"experiments.harness.run": "from experiments.fesem import config", "experiments.fesem.config": ""},
            "experiments.harness.run imports experiments.fesem.config, which is not below it",
            id="up to a paper",
        ),
        pytest.param(
            {"jaxfl": "from jaxfl import engine", "jaxfl.engine": "import jaxfl"},
            "jaxfl.engine imports jaxfl, which is not below it",
            id="up to the package itself",
        ),
        pytest.param(
            {"jaxfl.clustering.kmeans": "from jaxfl import tree", "jaxfl.tree": ""},
            "jaxfl.clustering.kmeans imports jaxfl.tree; clustering knows jaxfl.typing and jaxfl.schema alone",
            id="clustering",
        ),
        pytest.param({"jaxfl.attic.box": ""}, "jaxfl.attic.box has no floor; give attic one in FLOORS", id="no floor"),
    ],
)
def test_faults_are_found(sources, fault):
    packages = {"jaxfl", "jaxfl.methods", "jaxfl.data", "jaxfl.clustering"}
    modules = {name: Module(source, is_package=name in packages) for name, source in sources.items()}
    assert fault in faults(modules)


def test_sound_imports_pass():
    modules = {
        "jaxfl": Module("from jaxfl import engine\nfrom jaxfl.simulation.run import run", is_package=True),
        "jaxfl.engine": Module("def f():\n    from jaxfl import cohort"),
        "jaxfl.cohort": Module(""),
        "jaxfl.simulation.run": Module("import numpy\nfrom jaxfl import tree\nfrom jaxfl.methods import base"),
        "jaxfl.methods": Module("from . import base", is_package=True),
        "jaxfl.methods.base": Module("from ..tree import take"),
        "jaxfl.tree": Module(""),
    }
    assert faults(modules) == []
    assert import_graph(modules)["jaxfl"] == {"jaxfl.engine", "jaxfl.simulation.run"}
    assert import_graph(modules)["jaxfl.methods.base"] == {"jaxfl.tree"}


def heavy_imports(modules: dict[str, Module]) -> list[str]:
    """Returns the heavy third parties that a module other than the command line's commands imports at its top."""
    return [
        f"{name} imports {target} at its top level; import it where it is used"
        for name, module in modules.items()
        if name.split(".")[0] == "jaxfl" and name not in COMMANDS
        for target in top_level_imports(name, module, modules)
        if target.split(".")[0] in HEAVY
    ]


def test_heavy_imports_are_lazy():
    assert heavy_imports(MODULES) == []


def test_heavy_imports_are_found():
    lazy = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas\ndef f():\n    import pandas"
    eager = "try:\n    from sklearn import datasets\nexcept ImportError:\n    import pandas"
    assert heavy_imports({"jaxfl.simulation.records.history": Module(lazy)}) == []
    assert [fault.split(" at ")[0] for fault in heavy_imports({"jaxfl.data.sources": Module(eager)})] == [
        "jaxfl.data.sources imports sklearn",
        "jaxfl.data.sources imports pandas",
    ]
    assert heavy_imports({"jaxfl.cli.app": Module(eager)}) == []


def test_a_checkout_that_nobody_installed_has_no_version(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert runpy.run_path(str(ROOT / "jaxfl" / "public.py"))["__version__"] == "unknown"


def test_help_does_not_wait_for_jax():
    code = "import sys, jaxfl.cli.app; sys.exit(any(name in sys.modules for name in ('jax', 'numpy', 'pandas')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0


def test_import_jaxfl_is_light():
    # flax itself imports rich; what counts is what jaxfl adds to what it cannot do without.
    code = (
        "import sys, jax, flax.linen, flax.struct, optax, chex; before = set(sys.modules); import jaxfl; jaxfl.run; "
        "jaxfl.data.load('iid-digits', num_clients=2); "
        "print(*sorted(set(sys.modules) - before))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    modules = set(run.stdout.split())
    added = {name.split(".")[0] for name in modules}
    assert "jaxfl" in added
    assert added & HEAVY == set()
    assert "flax.nnx" not in modules, "it brings IPython with it"


# The programs that JAX makes of functions are rewritten for speed alone, read for a clock, and nowhere else.
READS_PROGRAMS = ("jaxfl.models.fast", "jaxfl.client.fast", "jaxfl.server.coordinate_sums")
READS_PROGRAMS += ("jaxfl.client.operations", "jaxfl.clock.work")


def test_programs_are_read_in_few_rooms():
    mentions = {name for name, module in MODULES.items() if "jaxpr" in module.source or "jax.extend" in module.source}
    assert mentions, "by the rooms that may"
    assert [name for name in sorted(mentions) if not name.startswith(READS_PROGRAMS)] == []


# Pickle runs code from a file: checkpoints and data are npz and json.
PICKLES = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
RUNNERS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "subprocess.getoutput", "pty.spawn"}


def runs_of_text(name: str, module: Module) -> list[str]:
    """Returns where a module runs code or commands that are text, a sentence each."""
    found = []
    for node in ast.walk(ast.parse(module.source)):
        if isinstance(node, ast.Call) and (called := ast.unparse(node.func)) in RUNNERS:
            found.append(f"{name}:{node.lineno} calls {called}")
        if isinstance(node, ast.keyword) and node.arg == "shell" and ast.unparse(node.value) != "False":
            found.append(f"{name}:{node.value.lineno} uses a shell")
    return found


def pickle_uses(name: str, module: Module) -> list[str]:
    """Returns where a module reads or writes pickles, a sentence each."""
    found = [f"{name} imports {target}" for target in imports(name, module, {}) if target.split(".")[0] in PICKLES]
    for node in ast.walk(ast.parse(module.source)):
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            found.append(f"{name}:{node.value.lineno} allows pickles")
        if isinstance(node, ast.Attribute) and node.attr in ("read_pickle", "to_pickle"):
            found.append(f"{name}:{node.lineno} calls {node.attr}")
    return found


def test_no_pickles_and_no_code_in_texts():
    everything = MODULES | read_modules(ROOT, ("docs",))
    assert [fault for name, module in everything.items() for fault in pickle_uses(name, module)] == []
    assert [fault for name, module in everything.items() for fault in runs_of_text(name, module)] == []


def test_code_in_texts_is_found():
    source = "eval(text)\nos.system(text)\nsubprocess.run(text, shell=True)\nre.compile(text)\nmodel.eval()"
    assert runs_of_text("m", Module(source)) == ["m:1 calls eval", "m:2 calls os.system", "m:3 uses a shell"]


def test_pickles_are_found():
    source = "def f(path):\n    import pickle\n    numpy.load(path, allow_pickle=True)\n    pandas.read_pickle(path)"
    assert pickle_uses("m", Module(source)) == ["m imports pickle", "m:3 allows pickles", "m:4 calls read_pickle"]
    assert pickle_uses("m", Module("numpy.load(path, allow_pickle=False)")) == []
