"""Where registered things come from: our folders, other distributions, folders of a user."""

from __future__ import annotations

import ast
import errno
import importlib
import importlib.util
import os
import pkgutil
import sys
import sysconfig
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from functools import cache, partial
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from traceback import extract_tb
from typing import Any

import xxhash

from harness.errors import BrokenPlugin, HarnessError, UnknownName

FOLDERS = "HARNESS_PLUGINS"
"""Names the folders of a user's own tasks, protocols and methods, parted as paths are."""
BESIDE = ("harness.protocols", "harness.tasks")
"""Packages that stand beside this one in the repository, and inside of it once installed."""
PREFIX = "harness_plugins_"
"""How the packages are called that folders of a user are imported as."""
BROKEN: list[str] = []
"""Plug-ins of other distributions that could not be loaded, a line for each: whose, and why."""
HERE = Path(__file__).resolve().parent
Undo = Callable[[], AbstractContextManager[None]]

_registrar: ContextVar[str] = ContextVar("registrar", default="this program")


def registrar() -> str:
    """Whose import registers things just now."""
    return _registrar.get()


@contextmanager
def registering(name: str) -> Iterator[None]:
    """What is registered in the block is registered by `name`."""
    token = _registrar.set(name)
    try:
        yield
    finally:
        _registrar.reset(token)


@cache
def import_all(package: str) -> None:
    """Import a module of ours, and those of its folder if it is a package."""
    folder = _beside().get(package)
    with registering(package):
        root = _package(package, folder) if folder else importlib.import_module(package)
    for module in pkgutil.iter_modules(getattr(root, "__path__", [])):  # sorted by their names
        with registering(f"{package}.{module.name}"):
            importlib.import_module(f"{package}.{module.name}")


def _beside() -> dict[str, Path]:
    """The folders of packages of ours that stand beside this one: none of an installed one."""
    names = {package: package.rpartition(".")[2] for package in BESIDE}
    return {one: HERE.parent / name for one, name in names.items() if not (HERE / name).is_dir()}


def _package(name: str, folder: Path) -> types.ModuleType:
    """A folder as a package of this name, by its path: whatever else is called so hides nothing."""
    if name in sys.modules:
        return sys.modules[name]
    init = folder / "__init__.py"
    spec = importlib.util.spec_from_file_location(name, init) if init.is_file() else None
    spec = spec or ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if spec.loader is not None:
        spec.loader.exec_module(module)
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
    return module


def attribute_of(kind: str, name: str) -> Any:
    """What stands at `module:attribute`. Raises UnknownName where there is none."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        reason = _told(error)
    raise UnknownName(f"no {kind} at '{name}': {reason}; expected an importable module:attribute")


def code_of(function: Callable[..., Any]) -> str | None:
    """A hash of the code of somebody else: of all Python files beside the one it stands in, or of
    the folder that `load_folder` imported and those below that it may import, and of what they
    import from elsewhere, but for libraries that are installed.

    Empty for code of ours, whose results change with a release; None where there is no file. It is
    made again where a file changed: the files of a library that lies in a folder take seconds.
    """
    if is_ours(function):
        return ""
    file, module = _file_of(function), _module(function)
    if file is None:
        return None
    folder, package = file.parent, module
    if module.startswith(PREFIX):
        package = module.partition(".")[0]
        folder = Path(sys.modules[package].__path__[0])
        files = sorted(_modules(folder))
    else:
        files = sorted(folder.glob("*.py"))
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    known = _hashes.get(tuple(files))
    if known and all(_stamp(path) == stamp for path, stamp in known[0].items()):
        return known[1]
    packages = {path: ".".join([package, *path.parent.relative_to(folder).parts]) for path in files}
    stamps = {path: _stamp(path) for path in files}
    texts = [*(path.read_bytes() for path in files), *_elsewhere(packages, stamps)]
    made = xxhash.xxh3_128_hexdigest(b"\0".join(texts))
    _hashes[tuple(files)] = (stamps, made)
    return made


_Stamp = tuple[int, int] | None
_hashes: dict[tuple[Path, ...], tuple[dict[Path, _Stamp], str]] = {}
"""By the files of a plug-in: all that were read, and their hash."""


def _stamp(path: Path) -> _Stamp:
    """When a file was written, and its bytes; None of one that is gone."""
    try:
        known = path.stat()
    except OSError:
        return None
    return known.st_mtime_ns, known.st_size


def _elsewhere(packages: Mapping[Path, str], stamps: dict[Path, _Stamp]) -> list[bytes]:
    """What is in the files that Python files of these packages import, be it when a function is
    called, and in those that these import: neither of Python, nor of an installed library, nor of
    ours; nor one whose file is gone, which the next process could not import. Sorted: a set has
    another order every time. All that is looked at has a stamp then."""
    left, found = [*packages.items()], list[bytes]()
    while left:
        file, package = left.pop()
        for name in _imports(file.read_bytes(), package):
            path = _place_of(name)
            if path and path.suffix == ".py" and path not in stamps and not _installed(path):
                stamps[path] = _stamp(path)
                if path.is_file():  # `torch.ops` says _ops.py
                    found.append(path.read_bytes())
                    within = name if path.name == "__init__.py" else name.rpartition(".")[0]
                    left.append((path, within))
    return sorted(found)


def _place_of(name: str) -> Path | None:
    """The file of a module that was imported, or would be; None of Python's own."""
    if name in sys.modules:
        file = getattr(sys.modules[name], "__file__", None)
        return Path(file) if file else None
    spec = _spec_of(name)
    return Path(spec.origin) if spec and spec.has_location and spec.origin else None


def _spec_of(name: str) -> ModuleSpec | None:
    """Where a module that is not imported is found. Nothing is imported for it: of a package its
    folders are searched."""
    parent, _, last = name.rpartition(".")
    if name.partition(".")[0] in PYTHONS or not last.isidentifier():
        return None
    with suppress(Exception):  # finders of others raise what they like
        if not parent:
            return PathFinder.find_spec(name) or importlib.util.find_spec(name)
        if parent in sys.modules:
            folders = [*getattr(sys.modules[parent], "__path__", ())]
        else:
            above = _spec_of(parent)
            folders = [*((above and above.submodule_search_locations) or ())]
        return PathFinder.find_spec(name, folders) if folders else None
    return None


PYTHONS = sys.stdlib_module_names | {"distutils"}
"""Modules of Python: to look for one that is gone, a library takes its place."""


@cache
def _imports(text: bytes, package: str) -> frozenset[str]:
    """The modules that a Python file of a package may import; none of one that does not parse."""
    names = set[str]()
    with suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                names |= {one.name for one in node.names}
            elif isinstance(node, ast.ImportFrom):
                with suppress(ImportError):  # from beyond the uppermost package
                    said = "." * node.level + (node.module or "")
                    module = importlib.util.resolve_name(said, package) if node.level else said
                    names |= {module, *(f"{module}.{one.name}" for one in node.names)}
    parts = (name.split(".") for name in names)
    return frozenset(".".join(one[: n + 1]) for one in parts for n in range(len(one)))


@cache
def _installed(path: Path) -> bool:
    """Whether a file is of Python, of an installed library, or of ours."""
    roots = (HERE, Path(sysconfig.get_path("stdlib")), *_beside().values())
    return bool({"site-packages", "dist-packages"} & {*path.parts}) or any(
        path.is_relative_to(root) for root in roots
    )


def is_ours(function: Callable[..., Any]) -> bool:
    """Whether a function is of the harness itself."""
    return _module(function).partition(".")[0] == __name__.partition(".")[0]


def _module(function: Callable[..., Any]) -> str:
    """The module that a function is of, or what some of its arguments are given to."""
    while isinstance(function, partial):
        function = function.func
    return function.__module__


def _file_of(function: Callable[..., Any]) -> Path | None:
    """The file of the module that a function is of."""
    file = getattr(sys.modules.get(_module(function)), "__file__", None)
    return None if file is None else Path(file)


def _modules(folder: Path) -> Iterator[Path]:
    """The Python files of a folder, and of those below it that have some and that a module may lie
    in: neither of `.venv` nor of `site-packages`."""
    found = sorted(folder.glob("*.py"))
    yield from found
    for below in folder.iterdir() if found else ():
        if below.name.isidentifier() and below.is_dir() and below.name != "__pycache__":
            yield from _modules(below)


@contextmanager
def calling(whose: str, function: Callable[..., Any]) -> Iterator[None]:
    """What somebody else's function raises in the block as BrokenPlugin, with the line of its file:
    anything, `sys.exit` too, but for errors of ours and want of memory or room. Of our own
    functions all is passed on."""
    try:
        yield
    except (HarnessError, KeyboardInterrupt, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        if is_ours(function) or full or type(error).__name__ == "OutOfMemoryError":
            raise
        raise BrokenPlugin(f"{whose} raised {_told(error)}{line_of(error, function)}") from error


def line_of(error: BaseException, function: Callable[..., Any]) -> str:
    """Where in the file of a function an error came from, in brackets, if it did."""
    file = _file_of(function)
    own = [one for one in extract_tb(error.__traceback__) if Path(one.filename) == file]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def code_of_plugins(functions: Iterable[Callable[..., Any]]) -> str:
    """A hash of somebody else's code among functions; '' where all is of ours. What they compute
    may be other by the next time."""
    codes = [code_of(one) or "" for one in functions if not is_ours(one)]
    return xxhash.xxh3_128_hexdigest(" ".join(codes).encode()) if any(codes) else ""


def load_folder(folder: str | Path, *, undo: Undo) -> None:
    """Import every Python file of a folder: what they register is known from now on.

    A folder is loaded once. Raises BrokenPlugin, naming the file, for one that cannot be imported,
    and then nothing of the folder is registered.
    """
    place = Path(folder)
    if not place.is_dir():
        raise BrokenPlugin(f"{place} is no folder; expected one with Python files: see --plugins")
    place = place.resolve()
    package = f"{PREFIX}{xxhash.xxh3_64_hexdigest(os.fsencode(place))}"
    if package in sys.modules:
        return
    stems = {path.stem for path in place.glob("*.py") if path.stem.isidentifier()}
    try:
        with undo():
            for name in ["__init__", *sorted(stems - {"__init__"})]:
                file = str(place / f"{name}.py")
                with _loading(file, "; expected a plug-in"), registering(file):
                    if name == "__init__":
                        _package(package, place)
                    else:
                        importlib.import_module(f"{package}.{name}")
    except BaseException:
        for known in [one for one in sys.modules if one.partition(".")[0] == package]:
            del sys.modules[known]
        raise


@contextmanager
def _loading(what: str, more: str = "") -> Iterator[None]:
    """What somebody else's code raises in the block as BrokenPlugin: anything, `sys.exit` too."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise BrokenPlugin(f"{what} could not be loaded ({_told(error)}){more}") from error


def _told(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


@cache
def load_all(undo: Undo) -> None:
    """Import what other distributions declare, and the folders that HARNESS_PLUGINS names.

    A distribution's plug-in (entry-point group `harness`) that fails is left out, with a warning
    that names it: what does not need it goes on. Raises BrokenPlugin for a folder that fails.
    """
    for entry in entry_points(group="harness"):
        dist = entry.dist
        whose = f"{dist.name} {dist.version}" if dist else "an unknown distribution"
        try:
            plugin = _loading(f"the plug-in '{entry.name}' of {whose}")
            with plugin, undo(), registering(f"{entry.value} of {whose}"):
                entry.load()
        except BrokenPlugin as error:
            BROKEN.append(str(error))
            warnings.warn(str(error), stacklevel=2)
    for folder in filter(None, os.environ.get(FOLDERS, "").split(os.pathsep)):
        load_folder(folder, undo=undo)


def others_declared() -> bool:
    """Whether other distributions, or folders that HARNESS_PLUGINS names, will register things."""
    return bool(os.environ.get(FOLDERS)) or bool(entry_points(group="harness"))


def files_of_ours() -> list[Path]:
    """All Python files that register something of ours, or that it is made with."""
    return sorted(path for root in (HERE, *_beside().values()) for path in root.rglob("*.py"))
