"""Descriptions of Python objects by their parts: what a hash of code without a file is made of."""

from __future__ import annotations

import dis
import re
import types
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property, partial, partialmethod
from typing import Any

from harness.functions import module_of, was_typed


class ObjectWalk:
    """A description of objects by their parts, recursively, in the order of the visit.

    A value of a library's type, such as an array, is described by its type alone, and one that is
    too long or nested too deep by its type and length.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.modules: set[str] = set()
        self.seen: dict[int, tuple[int, Any]] = {}  # holds the thing, so that its id is not reused
        self.depth = 0

    def describe(self, thing: Any) -> None:
        """Add the description of a thing to `texts`, and the modules that it names to `modules`."""
        kind = type(thing)
        if kind in PLAIN:
            self.texts.append(_plain(thing))
            return
        if id(thing) in self.seen:
            self.texts.append(f"the same as {self.seen[id(thing)][0]}")
            return
        self.seen[id(thing)] = (len(self.seen), thing)
        try:
            names, inner = self._parts(thing, kind)
        except Exception:  # attributes of a user's class may raise anything
            names, inner = (), ()
        self.texts += [_QUALNAME(kind), *names, str(len(inner))]
        if self.depth < DEEPEST and len(inner) <= LONGEST:
            self.depth += 1
            for part in inner:
                self.describe(part)
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
        if issubclass(kind, (type, types.FunctionType)) and not was_typed(thing):
            self.modules.add(module_of(thing))
            return [module_of(thing), thing.__qualname__], ()
        if issubclass(kind, type):
            members = [name for name in vars(thing) if not name.startswith(NO_MEMBERS)]
            return members, [kind, *thing.__bases__, *(vars(thing)[name] for name in members)]
        if issubclass(kind, types.FunctionType):
            cells = [cell.cell_contents for cell in thing.__closure__ or () if cell != _EMPTY]
            scope = thing.__globals__
            names = _looked_up(thing.__code__, "LOAD_GLOBAL", "LOAD_NAME")
            values = [scope[name] for name in names if name in scope]
            defaults = [thing.__defaults__, thing.__kwdefaults__, vars(thing)]
            return (), [thing.__code__, *defaults, *cells, *values]
        has_parts = was_typed(kind) or callable(thing) or issubclass(kind, types.SimpleNamespace)
        slots = [getattr(thing, name, None) for name in getattr(kind, "__slots__", ())] * has_parts
        inner = [kind, getattr(thing, "__dict__", {}) if has_parts else {}, *slots]
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
        parts = [_plain(part) for part in thing]
        return f"({' '.join(parts if type(thing) is tuple else sorted(parts))})"
    return f"{module_of(thing)} {getattr(thing, '__qualname__', type(thing).__qualname__)}"


def _looked_up(code: types.CodeType, *ops: str) -> list[str]:
    """The names that code, and code nested in it, uses by the opcodes `ops`: globals or imports."""
    names = [str(step.argval) for step in dis.get_instructions(code) if step.opname in ops]
    nested = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return [*dict.fromkeys([*names, *(name for one in nested for name in _looked_up(one, *ops))])]
