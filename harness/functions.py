"""Where a function comes from: the harness itself, a file, or what was typed at a prompt."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

PYTHONS = sys.stdlib_module_names | {"distutils"}
"""Modules of Python. A library may stand in for `distutils`, which newer versions lack."""


def is_ours(function: Callable[..., Any]) -> bool:
    """Whether a function belongs to the harness itself."""
    return module_of(function).partition(".")[0] == __name__.partition(".")[0]


def file_of(function: Callable[..., Any]) -> Path | None:
    """The file that defines a function; None for one typed interactively: in a notebook, or at
    Python's prompt."""
    module = sys.modules.get(module_of(function))
    written = getattr(getattr(inner_function(function), "__code__", None), "co_filename", None)
    if (file := getattr(module, "__file__", None)) is None or not Path(file).is_file():
        return None
    if module_of(function) != "__main__" or written is None:
        return Path(file)
    # after a script under `python -i`, what is typed joins the script's module; a decorator's code
    # comes from another file, which exists
    in_file = Path(written).name == Path(file).name or Path(written).is_file()
    return Path(file) if in_file else None


def was_typed(thing: Any) -> bool:
    """Whether a function or class has no file and does not belong to Python."""
    return module_of(thing).partition(".")[0] not in PYTHONS and file_of(thing) is None


def inner_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function inside any number of `functools.partial`."""
    while isinstance(function, partial):
        function = function.func
    return function


def module_of(function: Callable[..., Any]) -> str:
    """The name of the module that defines a function."""
    return str(getattr(inner_function(function), "__module__", None))
