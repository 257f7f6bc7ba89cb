"""Sources of registered functions and tasks: our packages, other distributions, users' folders."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
import pkgutil
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from pathlib import Path
from traceback import extract_tb
from typing import Any

import xxhash

from harness.code import (
    HERE,
    PREFIX,
    keep_module,
    kept_unless_broken,
    sibling_folders,
    stamps_of,
)
from harness.errors import BrokenPlugin, HarnessError, UnknownName
from harness.functions import file_of, is_ours

FOLDERS = "HARNESS_PLUGINS"
"""Environment variable with folders of a user's plug-ins, separated as in PATH."""
BROKEN: list[str] = []
"""A line for each plug-in of another distribution that could not be loaded: its name, and why."""
Undo = Callable[[str], AbstractContextManager[None]]
"""A context manager that undoes the registrations of its block if that fails, and first removes
what a folder registered earlier (`registry.undone_by_errors`)."""

_registrar: ContextVar[str] = ContextVar("registrar", default="this program")


def registrar() -> str:
    """The origin of what is being registered now: a module, a file or a distribution."""
    return _registrar.get()


@contextmanager
def registering(name: str) -> Iterator[None]:
    """Make `name` the origin of what is registered in the block."""
    token = _registrar.set(name)
    try:
        yield
    finally:
        _registrar.reset(token)


@cache
def import_all(package: str) -> None:
    """Import a module of ours and, if it is a package, the modules in its folder."""
    folder = sibling_folders().get(package)
    with registering(package):
        root = _package(package, folder) if folder else importlib.import_module(package)
    for module in pkgutil.iter_modules(getattr(root, "__path__", [])):  # sorted by their names
        with registering(f"{package}.{module.name}"):
            importlib.import_module(f"{package}.{module.name}")


def _package(name: str, folder: Path) -> types.ModuleType:
    """Import a folder, by its path, as a package of this name, even if the name is shadowed."""
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
    """The object at `module:attribute`. Raises UnknownName if it cannot be imported."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
        keep_module(module)
        return found
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        reason = _error_text(error)
    raise UnknownName(f"no {kind} at '{name}': {reason}; expected an importable module:attribute")


@contextmanager
def calling(whose: str, function: Callable[..., Any]) -> Iterator[None]:
    """Raise what a plug-in's function raises in the block as BrokenPlugin, with the file and line.

    This covers every exception, also SystemExit, except HarnessError, KeyboardInterrupt, and a lack
    of memory or disk space. Exceptions of our own functions pass unchanged.
    """
    try:
        yield
    except (HarnessError, KeyboardInterrupt, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        if is_ours(function) or full or type(error).__name__ == "OutOfMemoryError":
            raise
        raise BrokenPlugin(
            f"{whose} raised {_error_text(error)}{line_of(error, function)}"
        ) from error


def line_of(error: BaseException, function: Callable[..., Any]) -> str:
    """` (FILE:LINE)` for an error raised in the file of a function, else ''."""
    file = file_of(function)
    frames = [frame for frame in extract_tb(error.__traceback__) if Path(frame.filename) == file]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def load_folder(folder: str | Path, *, undo: Undo) -> None:
    """Import every Python file of a folder, as `registry.load_plugins`."""
    place = Path(folder)
    if not place.is_dir():
        raise BrokenPlugin(f"{place} is no folder; expected one with Python files: see --plugins")
    place = place.resolve()
    package = f"{PREFIX}{xxhash.xxh3_64_hexdigest(os.fsencode(place))}"
    stamps = stamps_of(place)
    if package in sys.modules and _loaded.get(package) == stamps:
        return
    old = _loaded.get(package)
    _loaded[package] = stamps  # so that a nested call for the same folder returns at once
    before = {name: sys.modules.pop(name) for name in _within(package)}
    _forget_bytecode(stamps if before else ())
    stems = {path.stem for path in place.glob("*.py") if path.stem.isidentifier()}
    try:
        with kept_unless_broken(), undo(str(place)):
            for name in ["__init__", *sorted(stems - {"__init__"})]:
                file = str(place / f"{name}.py")
                with _loading(file, "; expected a plug-in"), registering(file):
                    if name == "__init__":
                        _package(package, place)
                    else:
                        importlib.import_module(f"{package}.{name}")
    except BaseException:
        for name in _within(package):
            del sys.modules[name]
        sys.modules.update(before)
        _loaded[package] = old
        raise
    for name in _within(package):
        keep_module(name)


def _forget_bytecode(files: Iterable[Path]) -> None:
    """Make Python read the files again, also those edited twice within a second: bytecode is
    matched by the second and size of its source."""
    importlib.invalidate_caches()
    for file in files:
        with suppress(OSError):
            os.unlink(importlib.util.cache_from_source(str(file)))


_loaded: dict[str, object] = {}
"""By package of a loaded folder: the stamps of its files when it was loaded."""


def _within(package: str) -> list[str]:
    """The imported modules of a package, itself included."""
    return [name for name in sys.modules if name.partition(".")[0] == package]


@contextmanager
def _loading(what: str, more: str = "") -> Iterator[None]:
    """Raise any exception of an import in the block, also SystemExit, as BrokenPlugin."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise BrokenPlugin(f"{what} could not be loaded ({_error_text(error)}){more}") from error


def _error_text(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


@cache
def load_all(undo: Undo) -> None:
    """Import the plug-ins of other distributions, and the folders in HARNESS_PLUGINS.

    A distribution's plug-in (entry-point group `harness`) that fails is skipped with a warning that
    names it. Raises BrokenPlugin for a folder that fails.
    """
    for entry in entry_points(group="harness"):
        dist = entry.dist
        owner = f"{dist.name} {dist.version}" if dist else "an unknown distribution"
        try:
            plugin = _loading(f"the plug-in '{entry.name}' of {owner}")
            with plugin, undo(""), registering(f"{entry.value} of {owner}"):
                entry.load()
        except BrokenPlugin as error:
            BROKEN.append(str(error))
            warnings.warn(str(error), stacklevel=2)
    for folder in filter(None, os.environ.get(FOLDERS, "").split(os.pathsep)):
        load_folder(folder, undo=undo)


def others_declared() -> bool:
    """Whether other distributions declare plug-ins, or HARNESS_PLUGINS names folders."""
    return bool(os.environ.get(FOLDERS)) or bool(entry_points(group="harness"))


def files_of_ours() -> list[Path]:
    """All Python files of the harness, including the packages beside it."""
    return sorted(
        path for root in (HERE, *sibling_folders().values()) for path in root.rglob("*.py")
    )
