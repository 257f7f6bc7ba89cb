"""Which code a function belongs to, and hashes of plug-in code as it runs: results of different
code have different identities.

"Ours" is the harness itself; a plug-in is any other code that registers something.
"""

from __future__ import annotations

import ast
import dis
import importlib.util
import re
import sys
import sysconfig
import types
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, cached_property, partial, partialmethod
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import xxhash

SIBLING_PACKAGES = ("harness.protocols", "harness.tasks")
"""Packages that lie beside this one in the repository, and inside it once installed."""
PREFIX = "harness_plugins_"
"""Prefix of the package names under which folders of plug-ins are imported."""
HERE = Path(__file__).resolve().parent
PYTHONS = sys.stdlib_module_names | {"distutils"}
"""Modules of Python. A library may stand in for `distutils`, which newer versions lack."""


def sibling_folders() -> dict[str, Path]:
    """The folders of the packages in SIBLING_PACKAGES that lie beside this one; none when
    installed."""
    names = {package: package.rpartition(".")[2] for package in SIBLING_PACKAGES}
    return {one: HERE.parent / name for one, name in names.items() if not (HERE / name).is_dir()}


def is_ours(function: Callable[..., Any]) -> bool:
    """Whether a function belongs to the harness itself."""
    return _module(function).partition(".")[0] == __name__.partition(".")[0]


def file_of(function: Callable[..., Any]) -> Path | None:
    """The file that defines a function; None for one typed interactively: in a notebook, or at
    Python's prompt."""
    module = sys.modules.get(_module(function))
    written = getattr(getattr(_inner(function), "__code__", None), "co_filename", None)
    if (file := getattr(module, "__file__", None)) is None or not Path(file).is_file():
        return None
    # after a script under `python -i`, what is typed joins the script's module
    added = _module(function) == "__main__" and written is not None
    typed = added and not _is_of(str(written), file)
    return None if typed else Path(file)


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
    file, module = file_of(function), _module(function)
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
    known = _hashes.get(tuple(files))
    if known and all(_same(_state(*one), state) for one, state in known[0].items()):
        return known[1]
    states = {(path, name): _state(path, name) for path, name in names.items()}
    texts = [_text(path, names[path]) for path in files]
    wanted = [_imports(_text(path, name), packages[path]) for path, name in names.items()]
    texts += _imported_texts(frozenset().union(*wanted), states)
    made = xxhash.xxh3_128_hexdigest(b"\0".join(texts))
    _hashes[tuple(files)] = (states, made)
    return made


def code_of_plugins(functions: Iterable[Callable[..., Any]]) -> str:
    """A hash of the code of those functions that belong to plug-ins; '' if none does."""
    codes = [code_of(one) or "" for one in functions if not is_ours(one)]
    return xxhash.xxh3_128_hexdigest(" ".join(codes).encode()) if any(codes) else ""


def keep(function: Callable[..., Any]) -> None:
    """Keep the code of a function that is being registered: `code_of` uses it until the file is
    imported again."""
    if not is_ours(function):
        keep_module(_module(function))
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
    return {path: (known.st_mtime_ns, known.st_size) for path, known in stats.items()}


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function inside any number of `functools.partial`."""
    while isinstance(function, partial):
        function = function.func
    return function


def _is_of(written: str, file: str) -> bool:
    """Whether code whose recorded file is `written` comes from `file`, or from another file that
    exists (a decorator's)."""
    return Path(written).name == Path(file).name or Path(written).is_file()


def _module(function: Callable[..., Any]) -> str:
    """The name of the module that defines a function."""
    return str(getattr(_inner(function), "__module__", None))


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
        known = path.stat()
    except OSError:
        return None
    return known.st_mtime_ns, known.st_size


def _same(one: _State, other: _State) -> bool:
    """Whether two states are equal; specs are compared by identity, since each import makes one."""
    return one == other if isinstance(one, tuple) else one is other


def _text(path: Path, name: str) -> bytes:
    """The contents of a Python file; for an imported module, as first read since its import."""
    state = _state(path, name)
    known = _texts.get((path, name))
    if known is None or not _same(known[0], state):
        known = _texts[path, name] = (state, path.read_bytes())
    return known[1]


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
    left, found = [*names], list[bytes]()
    seen = {path for path, _ in states}
    while left:
        name = left.pop()
        path = _place_of(name)
        if path and path.suffix == ".py" and path not in seen and not _installed(path):
            seen.add(path)
            states[path, name] = _state(path, name)
            if path.is_file():  # `torch.ops` has the `__file__` "_ops.py", which does not exist
                found.append(_text(path, name))
                left += _imports(found[-1], _package_of(path, name))
    return sorted(found)


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
                names |= {one.name for one in node.names}
            elif isinstance(node, ast.ImportFrom):
                with suppress(ImportError):  # a relative import beyond the top-level package
                    said = "." * node.level + (node.module or "")
                    module = importlib.util.resolve_name(said, package) if node.level else said
                    names |= {module, *(f"{module}.{one.name}" for one in node.names)}
    parts = (name.split(".") for name in names)
    return frozenset(".".join(one[: n + 1]) for one in parts for n in range(len(one)))


@cache
def _installed(path: Path) -> bool:
    """Whether a file belongs to Python, to an installed library, or to the harness."""
    roots = (HERE, Path(sysconfig.get_path("stdlib")), *sibling_folders().values())
    return bool({"site-packages", "dist-packages"} & {*path.parts}) or any(
        path.is_relative_to(root) for root in roots
    )


# Functions typed interactively -----------------------------------------------------------


def _typed(function: Callable[..., Any]) -> str | None:
    """A hash of a function without a file: of its instructions and constants, of all objects that
    it names, and of the files of modules that these name. None for a built-in function."""
    if _inner(function).__class__ is types.BuiltinFunctionType:
        return None
    walk = _Walk()
    walk.describe(function)
    said = [str(one).encode("utf-8", "backslashreplace") for one in walk.said]
    texts = [*said, *_imported_texts(sorted(walk.modules), {})]
    return xxhash.xxh3_128_hexdigest(b"\0".join(texts))


class _Walk:
    """A description of objects by their parts, recursively, in the order of the visit.

    A value of a library's type, such as an array, is described by its type alone, and one that is
    too long or nested too deep by its type and length.
    """

    def __init__(self) -> None:
        self.said: list[str] = []
        self.modules: set[str] = set()
        self.seen: dict[int, tuple[int, Any]] = {}  # holds the thing, so that its id is not reused
        self.depth = 0

    def describe(self, thing: Any) -> None:
        """Add the description of a thing to `said`, and the modules that it names to `modules`."""
        kind = type(thing)
        if kind in PLAIN:
            self.said.append(_plain(thing))
            return
        if id(thing) in self.seen:
            self.said.append(f"the same as {self.seen[id(thing)][0]}")
            return
        self.seen[id(thing)] = (len(self.seen), thing)
        try:
            names, inner = self._parts(thing, kind)
        except Exception:  # attributes of a user's class may raise anything
            names, inner = (), ()
        self.said += [_QUALNAME(kind), *names, str(len(inner))]
        if self.depth < DEEPEST and len(inner) <= LONGEST:
            self.depth += 1
            for one in inner:
                self.describe(one)
            self.depth -= 1

    def _parts(self, thing: Any, kind: type) -> tuple[Sequence[str], Sequence[Any]]:
        """The texts that describe a thing itself, and its parts."""
        if issubclass(kind, types.ModuleType):
            self.modules.add(str(thing.__name__))
            return [thing.__name__], ()
        if issubclass(kind, types.CodeType):
            counts = thing.co_argcount, thing.co_posonlyargcount, thing.co_kwonlyargcount
            shape = [thing.co_code.hex(), *map(str, counts), str(thing.co_flags)]
            self.modules.update(_looked_up(thing, "IMPORT_NAME"))
            return [*shape, *thing.co_names, *thing.co_varnames], thing.co_consts
        if issubclass(kind, (tuple, list)):
            return (), [*thing]
        if issubclass(kind, (set, frozenset)):
            return sorted(map(_plain, thing)) if len(thing) <= LONGEST else (), ()
        if kind in (dict, OrderedDict, defaultdict, Counter, types.MappingProxyType):
            return (), [part for item in thing.items() for part in item]
        if issubclass(kind, (partial, partialmethod)):
            return (), [thing.func, thing.args, thing.keywords]
        if issubclass(kind, types.MethodType):
            return (), [thing.__func__, thing.__self__]
        if issubclass(kind, (staticmethod, classmethod)):
            return (), [thing.__func__]
        if issubclass(kind, property):
            return (), [thing.fget, thing.fset, thing.fdel]
        if issubclass(kind, cached_property):
            return (), [thing.func]
        if issubclass(kind, (type, types.FunctionType)) and not _was_typed(thing):
            self.modules.add(_module(thing))
            return [_module(thing), thing.__qualname__], ()
        if issubclass(kind, type):
            kept = [name for name in vars(thing) if not name.startswith(NO_MEMBERS)]
            return kept, [kind, *thing.__bases__, *(vars(thing)[name] for name in kept)]
        if issubclass(kind, types.FunctionType):
            cells = [one.cell_contents for one in thing.__closure__ or () if one != _EMPTY]
            scope = thing.__globals__
            found = _looked_up(thing.__code__, "LOAD_GLOBAL", "LOAD_NAME")
            named = [scope[name] for name in found if name in scope]
            given = [thing.__defaults__, thing.__kwdefaults__, vars(thing)]
            return (), [thing.__code__, *given, *cells, *named]
        own = _was_typed(kind) or callable(thing) or issubclass(kind, types.SimpleNamespace)
        slots = [getattr(thing, name, None) for name in getattr(kind, "__slots__", ())] * own
        inner = [kind, getattr(thing, "__dict__", {}) if own else {}, *slots]
        return [_plain(thing)] * callable(thing), inner


PLAIN: tuple[type, ...] = (type(None), bool, int, float, complex, str, bytes, type(...))
PLAIN += (bytearray, range, slice, re.Pattern)
"""Types of values whose `repr` describes them fully and always in the same way."""
DEEPEST, LONGEST = 50, 10_000
"""Objects nested deeper, or with more parts, are described by the number of their parts."""
NO_MEMBERS = ("__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__pydantic_")
"""Prefixes of class attributes that are not written in the class body, or do not affect results."""
_EMPTY = types.CellType()


_QUALNAME: Callable[[type], str] = vars(type)["__qualname__"].__get__  # no metaclass overrides it


def _plain(thing: Any) -> str:
    """The description of a plain value or of an element of a set; for all else, its name."""
    if type(thing) is int:
        return hex(thing)  # unlike `repr`, for integers of any size
    if type(thing) in PLAIN:
        return repr(thing)
    if type(thing) in (tuple, frozenset):
        each = [_plain(one) for one in thing]
        return f"({' '.join(each if type(thing) is tuple else sorted(each))})"
    return f"{_module(thing)} {getattr(thing, '__qualname__', type(thing).__qualname__)}"


def _looked_up(code: types.CodeType, *how: str) -> list[str]:
    """The names that code, and code nested in it, uses by the opcodes `how`: globals or imports."""
    found = [str(one.argval) for one in dis.get_instructions(code) if one.opname in how]
    within = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return [*dict.fromkeys([*found, *(name for one in within for name in _looked_up(one, *how))])]


def _was_typed(thing: Any) -> bool:
    """Whether a function or class has no file and does not belong to Python."""
    return _module(thing).partition(".")[0] not in PYTHONS and file_of(thing) is None
