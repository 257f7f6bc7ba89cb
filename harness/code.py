"""Hashes of plug-in code as it runs: results of different code have different identities.

"Ours" is the harness itself; a plug-in is any other code that registers something.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import xxhash

from harness.functions import PYTHONS, file_of, inner_function, is_ours, module_of
from harness.objects import ObjectWalk

SIBLING_PACKAGES = ("harness.protocols", "harness.tasks")
"""Packages that lie beside this one in the repository, and inside it once installed."""
PREFIX = "harness_plugins_"
"""Prefix of the package names under which folders of plug-ins are imported."""
HERE = Path(__file__).resolve().parent


def sibling_folders() -> dict[str, Path]:
    """The folders of the packages in SIBLING_PACKAGES that lie beside this one; none when
    installed."""
    names = {package: package.rpartition(".")[2] for package in SIBLING_PACKAGES}
    return {one: HERE.parent / name for one, name in names.items() if not (HERE / name).is_dir()}


def code_of(function: Callable[..., Any]) -> str | None:
    """A hash of a plug-in function's code: of all Python files in its folder, for a folder of
    plug-ins also of importable folders below, and of all that these import except installed
    libraries.

    Files are hashed as they were when imported, since that is what runs. For a function that was
    typed, the hash covers its instructions and all that they call. '' for a function of ours,
    whose results change with a release; None for one without Python code.
    """
    if is_ours(function):
        return ""
    file, module = file_of(function), module_of(function)
    if file is None:
        return _typed(function)
    folder, package = file.parent, module
    if module.startswith(PREFIX):
        package = module.partition(".")[0]
        folder = Path(sys.modules[package].__path__[0])
        files = sorted(_modules(folder))
    else:
        files = _files(folder)
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    names = {
        path: _name(path, ".".join([package, *path.parent.relative_to(folder).parts]))
        for path in files
    }
    names[file] = module
    packages = {path: _package_of(path, name) for path, name in names.items()}
    if (main := getattr(sys.modules["__main__"], "__file__", None)) and Path(main) in names:
        names[Path(main)] = "__main__"
    cached = _hashes.get(tuple(files))
    if cached and all(_same(_state(*key), state) for key, state in cached[0].items()):
        return cached[1]
    states = {(path, name): _state(path, name) for path, name in names.items()}
    texts = [_text(path, names[path]) for path in files]
    imports = [_imports(_text(path, name), packages[path]) for path, name in names.items()]
    texts += _imported_texts(frozenset().union(*imports), states)
    digest = xxhash.xxh3_128_hexdigest(b"\0".join(texts))
    _hashes[tuple(files)] = (states, digest)
    return digest


def code_of_plugins(functions: Iterable[Callable[..., Any]]) -> str:
    """A hash of the code of those functions that belong to plug-ins; '' if none does."""
    codes = [code_of(function) or "" for function in functions if not is_ours(function)]
    return xxhash.xxh3_128_hexdigest(" ".join(codes).encode()) if any(codes) else ""


def keep(function: Callable[..., Any]) -> None:
    """Keep the code of a function that is being registered: `code_of` uses it until the file is
    imported again."""
    if not is_ours(function):
        keep_module(module_of(function))
        if file_of(function) is None:
            _typed(function)  # reads, and so keeps, the files of modules that it names


def keep_module(module: str) -> None:
    """Keep the contents of the file of a module that was just imported, and of the files that it
    imports."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file and file.endswith(".py") and not _installed(Path(file)):
        with suppress(OSError):
            text = _text(Path(file), module)
            _imported_texts(_imports(text, _package_of(Path(file), module)), {})


def stamps_of(folder: Path) -> dict[Path, tuple[int, int]]:
    """The modification time [ns] and size in bytes of each Python file of a plug-in folder."""
    stats = {path: path.stat() for path in _modules(folder)}
    return {path: (status.st_mtime_ns, status.st_size) for path, status in stats.items()}


def _typed(function: Callable[..., Any]) -> str | None:
    """A hash of a function without a file: of its instructions and constants, of all objects that
    it names, and of the files of modules that these name. None for a built-in function."""
    if inner_function(function).__class__ is types.BuiltinFunctionType:
        return None
    walk = ObjectWalk()
    walk.describe(function)
    descriptions = [str(text).encode("utf-8", "backslashreplace") for text in walk.texts]
    texts = [*descriptions, *_imported_texts(sorted(walk.modules), {})]
    return xxhash.xxh3_128_hexdigest(b"\0".join(texts))


# Files -----------------------------------------------------------------------------------


_State = ModuleSpec | types.ModuleType | tuple[int, int] | None
"""Identifies the state of a file's code: the spec of its imported module or, if it is not
imported, the file's modification time and size; None if the file is gone."""
_hashes: dict[tuple[Path, ...], tuple[dict[tuple[Path, str], _State], str]] = {}
"""By the files of a plug-in: the states of all files that were read, and the hash."""
_texts: dict[tuple[Path, str], tuple[_State, bytes]] = {}
"""By file and module: the file's state and contents, for an imported module as of its import."""


@contextmanager
def kept_unless_broken() -> Iterator[None]:
    """Restore the kept file contents if the block fails: the modules of before go on running."""
    before = dict(_texts)
    try:
        yield
    except BaseException:
        _texts.clear()
        _texts.update(before)
        raise


def _state(path: Path, name: str) -> _State:
    """The state of a module's file; for an imported module its spec, which each import renews."""
    if (module := sys.modules.get(name)) is not None:
        return getattr(module, "__spec__", None) or module
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _same(first: _State, second: _State) -> bool:
    """Whether two states are equal; specs are compared by identity, since each import makes one."""
    return first == second if isinstance(first, tuple) else first is second


def _text(path: Path, name: str) -> bytes:
    """The contents of a Python file; for an imported module, as first read since its import."""
    state = _state(path, name)
    cached = _texts.get((path, name))
    if cached is None or not _same(cached[0], state):
        cached = _texts[path, name] = (state, path.read_bytes())
    return cached[1]


def _name(path: Path, package: str) -> str:
    """The module name of a file of a package."""
    parts = [package, *([] if path.name == "__init__.py" else [path.stem])]
    return ".".join(filter(None, parts))


def _package_of(path: Path, name: str) -> str:
    """The package that a module's relative imports start from."""
    return name if path.name == "__init__.py" else name.rpartition(".")[0]


def _modules(folder: Path) -> Iterator[Path]:
    """The Python files of a folder and, recursively, of folders below with Python files and a name
    that can be imported: neither `.venv` nor `site-packages`."""
    found = _files(folder)
    yield from found
    for below in folder.iterdir() if found else ():
        if below.name.isidentifier() and below.is_dir() and below.name != "__pycache__":
            yield from _modules(below)


def _files(folder: Path) -> list[Path]:
    """The Python files of a folder, without dangling links, which editors make."""
    return [path for path in sorted(folder.glob("*.py")) if path.is_file()]


def _imported_texts(names: Iterable[str], states: dict[tuple[Path, str], _State]) -> list[bytes]:
    """The sorted contents of the files of these modules and of all that they import, also inside
    functions. Files of Python, of installed libraries and of ours are skipped, as are missing
    files, which the next process could not import. `states` gets the state of every file visited.
    """
    queue, texts = [*names], list[bytes]()
    seen = {path for path, _ in states}
    while queue:
        name = queue.pop()
        path = _place_of(name)
        if path and path.suffix == ".py" and path not in seen and not _installed(path):
            seen.add(path)
            states[path, name] = _state(path, name)
            if path.is_file():  # `torch.ops` has the `__file__` "_ops.py", which does not exist
                texts.append(_text(path, name))
                queue += _imports(texts[-1], _package_of(path, name))
    return sorted(texts)


def _place_of(name: str) -> Path | None:
    """The file of a module that is or would be imported; None for a module of Python or no file."""
    if name in sys.modules:
        file = getattr(sys.modules[name], "__file__", None)
        return Path(file) if file else None
    spec = _spec_of(name)
    return Path(spec.origin) if spec and spec.has_location and spec.origin else None


def _spec_of(name: str) -> ModuleSpec | None:
    """The spec of a module that is not imported, found in its package's folders without importing
    anything; None for a module of Python, or one that is not found."""
    parent, _, last = name.rpartition(".")
    if name.partition(".")[0] in PYTHONS or not last.isidentifier():
        return None
    with suppress(Exception):  # finders of other libraries may raise anything
        if not parent:
            return PathFinder.find_spec(name) or importlib.util.find_spec(name)
        if parent in sys.modules:
            folders = [*getattr(sys.modules[parent], "__path__", ())]
        else:
            above = _spec_of(parent)
            folders = [*((above and above.submodule_search_locations) or ())]
        return PathFinder.find_spec(name, folders) if folders else None
    return None


@cache
def _imports(text: bytes, package: str) -> frozenset[str]:
    """The modules that a Python file of a package may import; empty if it does not parse."""
    names = set[str]()
    with suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                with suppress(ImportError):  # a relative import beyond the top-level package
                    target = "." * node.level + (node.module or "")
                    module = importlib.util.resolve_name(target, package) if node.level else target
                    names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    split_names = (name.split(".") for name in names)
    return frozenset(".".join(parts[: n + 1]) for parts in split_names for n in range(len(parts)))


@cache
def _installed(path: Path) -> bool:
    """Whether a file belongs to Python, to an installed library, or to the harness."""
    roots = (HERE, Path(sysconfig.get_path("stdlib")), *sibling_folders().values())
    return bool({"site-packages", "dist-packages"} & {*path.parts}) or any(
        path.is_relative_to(root) for root in roots
    )
