"""Where registered things come from: our folders, other distributions, folders of a user."""

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
    beside,
    file_of,
    is_ours,
    keep_module,
    kept_unless_broken,
    stamps_of,
)
from harness.errors import BrokenPlugin, HarnessError, UnknownName

FOLDERS = "HARNESS_PLUGINS"
"""Names the folders of a user's own tasks, protocols and methods, parted as paths are."""
BROKEN: list[str] = []
"""Plug-ins of other distributions that could not be loaded, a line for each: whose, and why."""
Undo = Callable[[str], AbstractContextManager[None]]
"""What is registered in its block stays only if that succeeds; what the folder had goes."""

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
    folder = beside().get(package)
    with registering(package):
        root = _package(package, folder) if folder else importlib.import_module(package)
    for module in pkgutil.iter_modules(getattr(root, "__path__", [])):  # sorted by their names
        with registering(f"{package}.{module.name}"):
            importlib.import_module(f"{package}.{module.name}")


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
        found = getattr(importlib.import_module(module), attribute)
        keep_module(module)
        return found
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        reason = _told(error)
    raise UnknownName(f"no {kind} at '{name}': {reason}; expected an importable module:attribute")


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
    file = file_of(function)
    own = [one for one in extract_tb(error.__traceback__) if Path(one.filename) == file]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def load_folder(folder: str | Path, *, undo: Undo) -> None:
    """Import every Python file of a folder: what they register is known from now on.

    A folder is loaded once, and again where a file of it is another, new or gone. Raises
    BrokenPlugin, naming the file, for one that cannot be imported: then all is as it was before.
    """
    place = Path(folder)
    if not place.is_dir():
        raise BrokenPlugin(f"{place} is no folder; expected one with Python files: see --plugins")
    place = place.resolve()
    package = f"{PREFIX}{xxhash.xxh3_64_hexdigest(os.fsencode(place))}"
    stamps = stamps_of(place)
    if package in sys.modules and _loaded.get(package) == stamps:
        return
    old = _loaded.get(package)
    _loaded[package] = stamps  # whoever asks for it meanwhile has it
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
    """Have files be read again, also those that were edited twice within a second."""
    importlib.invalidate_caches()
    for file in files:
        with suppress(OSError):
            os.unlink(importlib.util.cache_from_source(str(file)))


_loaded: dict[str, object] = {}
"""By the packages that folders were loaded as: what their files were then."""


def _within(package: str) -> list[str]:
    """The modules of a package that were imported."""
    return [name for name in sys.modules if name.partition(".")[0] == package]


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
            with plugin, undo(""), registering(f"{entry.value} of {whose}"):
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
    return sorted(path for root in (HERE, *beside().values()) for path in root.rglob("*.py"))
