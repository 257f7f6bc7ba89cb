"""The picture of the house, held still: imports point one way, and importing stays light."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

import harness
from harness.types import KindName

ROOT = Path(harness.__file__).parent.parent
HEAVY = {"torch", "transformers", "datasets", "evaluate", "faiss", "sklearn", "scipy", "pyarrow"}
HEAVY |= {"matplotlib"}  # for pictures
OURS = ("harness", "tasks", "protocols")

#: the rooms from the ground up, several on a floor: each knows those on floors below it
FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors", "hyperparameters"),
    ("types",),
    ("unfinished",),
    ("rng", "hashes", "text", "files", "ranges", "labels", "readout", "functions", "process"),
    ("folders", "objects"),
    ("options", "kinds", "caches", "code"),
    ("plugins", "entries"),
    ("registry", "presets"),
    ("methods", "values", "weights", "stats"),
    ("checkpoints",),
    ("data",),
    ("passes",),
    ("mergers", "premergers", "postmergers"),
    ("merging", "evaluation", "training"),
    ("reporting", "needs"),
    ("checking", "inspecting", "studies"),
    ("catalogue", "demo", "pytest_plugin"),
    ("cli",),
    ("__main__",),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
#: what mergers, pre-merging methods, tasks and protocols may import of harness
NOUNS = {"harness", "harness.errors", "harness.options", "harness.types", "harness.rng"}
METHODS = NOUNS | {"harness.weights"}
FOLDERS = {
    "harness.mergers": METHODS,
    "harness.premergers": METHODS,
    "harness.postmergers": METHODS,
    "tasks": NOUNS,
    # of the room of weights, the one polar factor there is
    "protocols": NOUNS | {"harness.kinds", "harness.weights"},
}
#: what the registries scan, and nobody else knows
SCANNED = ("harness.mergers", "harness.premergers", "harness.postmergers", "harness.needs")
LONGEST = 460
"""Lines of a module: what is longer has several jobs."""


def modules() -> dict[str, Path]:
    """Every module of the three packages, by name."""
    found = {}
    for package in OURS:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(part for part in parts if part != "__init__")] = path
    return found


MODULES = modules()


def _run(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that a type checker alone reads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from _run(node)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> tuple[str, ...]:
    """The modules that a file imports anywhere; `from a import b` counts as a.b if that is one.

    A room may give a function by the name of the module that it is in.
    """
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in _run(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            for alias in node.names:
                module = str(node.module)
                yield f"{module}.{alias.name}" if _is_module(module, alias.name) else module


def _is_module(package: str, name: str) -> bool:
    if f"{package}.{name}" not in MODULES:
        return False
    given = getattr(importlib.import_module(package), name, None)
    return given is None or inspect.ismodule(given)


def of_harness(name: str) -> set[str]:
    return {found for found in imports(MODULES[name]) if found.split(".")[0] == "harness"}


def room_of(module: str) -> str:
    """`harness.data.rows` is in the room `data`."""
    return module.split(".")[1]


def test_every_room_has_its_place() -> None:
    assert {room_of(name) for name in MODULES if name.startswith("harness.")} == {*FLOOR}


def test_a_room_knows_only_rooms_on_floors_below() -> None:
    """So merging and evaluation, on one floor, do not know one another."""
    faults = [
        f"{name} imports {other}"
        for name in MODULES
        if name.startswith("harness.")
        for other in sorted(of_harness(name) - {"harness"})
        if room_of(other) != room_of(name) and FLOOR[room_of(other)] >= FLOOR[room_of(name)]
    ]
    assert not faults


def test_no_module_has_several_jobs() -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert not {name: n for name, n in lengths.items() if n > LONGEST}


def test_methods_and_tasks_know_nouns_and_arithmetic_only() -> None:
    faults = [
        f"{name} imports {found}"
        for prefix, known in FOLDERS.items()
        for name, path in MODULES.items()
        if name.startswith(prefix)
        for found in imports(path)
        if found.split(".")[0] in OURS and found not in known and not found.startswith(f"{prefix}.")
    ]
    assert not faults


def test_nobody_imports_what_the_registries_scan_by_name() -> None:
    faults = [
        f"{name} imports {found}"
        for scanned in (SCANNED, ("tasks", "protocols"))
        for name, path in MODULES.items()
        if not name.startswith(scanned)
        for found in imports(path)
        if found.startswith(scanned)
    ]
    assert not faults


def test_only_the_command_line_and_main_import_the_command_line() -> None:
    users = {
        name
        for name, path in MODULES.items()
        if any(module.startswith("harness.cli") for module in imports(path))
    }
    assert {name for name in users if room_of(name) != "cli"} == {"harness.__main__"}


@pytest.mark.parametrize(
    "module", ["harness", "harness.cli", "harness; harness.Run, harness.Recipe"]
)
def test_importing_is_light(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & HEAVY


#: what reads anybody's text, and the one file that may call it
READERS = {"json.load", "json.loads", "yaml.safe_load", "yaml.load", "pickle.load", "pickle.loads"}


def private_imports(body: ast.AST) -> set[str]:
    """The private names that code takes from other modules of ours."""
    taken = (
        (node.module or "", alias.name)
        for node in ast.walk(body)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    )
    ours = {name for module, name in taken if module.split(".")[0] in OURS}
    return {name for name in ours if name.startswith("_") and not name.startswith("__")}


@pytest.mark.parametrize("folder", [*OURS, "tests"])
def test_nobody_imports_a_private_name(folder: str) -> None:
    named = {str(path): private_imports(tree(path)) for path in (ROOT / folder).rglob("*.py")}
    assert not {path: names for path, names in named.items() if names}


@pytest.mark.fault
def test_a_private_import_is_noticed() -> None:
    planted = "def f():\n    from harness.text import _shown, plain\n"
    assert private_imports(ast.parse(planted)) == {"_shown"}


#: where a checkpoint is made of a configuration; everybody else asks the checkpoint
FAMILY_TOLD = {f"harness.checkpoints.{name}" for name in ("open", "heads", "text_heads")}


def test_a_family_is_told_where_a_checkpoint_is_made() -> None:
    callers = {
        name
        for name, path in MODULES.items()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "family_of"
    }
    assert callers == FAMILY_TOLD


def switches(body: ast.AST) -> list[str]:
    """The comparisons that tell a kind of label by its unit or its name."""
    return [
        ast.unparse(node)
        for node in ast.walk(body)
        if isinstance(node, ast.Compare)
        and ast.unparse(node.left).endswith((".unit", "kind", "kind.name"))
        and ast.unparse(node.comparators[0]).strip("'") in {"row", "word", *get_args(KindName)}
    ]


def test_what_a_kind_means_is_asked_of_the_kind() -> None:
    """So a new one is one file: nobody else switches on what it is."""
    found = {name: switches(tree(path)) for name, path in MODULES.items()}
    outside = {
        name for name, some in found.items() if some and not name.startswith("harness.kinds")
    }
    assert outside == set()
    assert switches(ast.parse("kind_of(task).unit == 'word' or task.kind == 'tagging'"))


def test_json_and_yaml_are_read_in_one_place() -> None:
    calls = {
        (name, f"{node.func.value.id}.{node.func.attr}")
        for name, path in MODULES.items()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
    }
    assert {name for name, call in calls if call in READERS} == {"harness.files"}


def type_names(module: ast.AST) -> list[str]:
    """The names of the classes and of the aliases of types in a module."""
    classes = [node.name for node in ast.walk(module) if isinstance(node, ast.ClassDef)]
    return classes + [
        ast.unparse(node.target)
        for node in ast.walk(module)
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias"
    ]


def test_the_name_of_a_class_or_type_stands_once() -> None:
    """So it has one meaning wherever it is read."""
    found = Counter(name for path in MODULES.values() for name in type_names(tree(path)))
    assert not {name for name, count in found.items() if count > 1}
    assert type_names(ast.parse("def f():\n    class A: ...\nB: TypeAlias = int")) == ["A", "B"]


def test_every_public_name_resolves() -> None:
    for name in harness.__all__:
        assert getattr(harness, name) is not None


def test_all_is_what_can_be_imported() -> None:
    given = {
        alias.asname or alias.name
        for node in ast.walk(tree(MODULES["harness"]))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if (node.module or "").startswith("harness")
    }
    assert set(harness.__all__) == given
    assert len(harness.__all__) == len(given)
    assert set(harness._LAZY) <= given


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'xyzzy'"):
        _ = harness.xyzzy


@pytest.mark.parametrize("package", ["tasks", "protocols"])
def test_a_folder_of_things_explains_itself_and_does_nothing(package: str) -> None:
    body = tree(MODULES[package]).body
    assert len(body) == 1
    assert isinstance(body[0], ast.Expr)
    assert importlib.import_module(f"harness.{package}").__doc__
