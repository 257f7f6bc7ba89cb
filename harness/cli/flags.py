"""Flags: helpers that declare and parse them, and the flags that commands share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import typer

from harness.errors import BadOption
from harness.text import is_whole_number
from harness.types import ALL, Shots

if TYPE_CHECKING:
    from pydantic import BaseModel


def option(text: str, default: Any = None, *names: str, of: str = "", **more: Any) -> Any:
    """An option: its help, its default and, if they differ from the parameter's name, its names.

    With the default `...` it is required. `of` is the registry whose names complete it in a shell.
    """
    return typer.Option(default, *names, help=text, autocompletion=names_of(of), **more)


def argument(text: str = "", default: Any = ..., *, of: str = "", **more: Any) -> Any:
    """An argument; the parameters are those of `option`."""
    return typer.Argument(default, help=text, autocompletion=names_of(of), **more)


def flag(text: str, name: str) -> Any:
    """An option without a value: True if it is given."""
    return option(text, False, name)


def several(text: str, default: Any = (), *, of: str = "") -> Any:
    """An option with names separated by commas as its value."""
    return option(text, default, of=of, parser=listed, metavar="A,B,...")


def chosen(text: str, *, of: str = "") -> Any:
    """An option with methods and their options, separated by commas, as its value."""
    return option(text, (), of=of, parser=methods, metavar="A,B,...")


def limit(text: str, name: str) -> Any:
    """An option with a number of rows or `all` as its value. Raises BadOption for any other."""

    def read(value: str) -> Shots:
        if value != ALL and not (is_whole_number(value) and int(value)):
            raise BadOption(f"{name} is '{value}', expected a number of rows, or all")
        return ALL if value == ALL else int(value)

    return option(text, None, name, parser=read, metavar="N|all")


def names_of(what: str) -> Callable[[str], list[str]] | None:
    """A shell completion for names of the registry `what` (None for ''); of names separated by
    commas it completes the last."""

    def complete(incomplete: str) -> list[str]:
        from harness.catalogue import remembered

        before, comma, last = incomplete.rpartition(",")
        names = [str(entry["name"]) for entry in remembered(what)]
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]

    return complete if what else None


# Values of flags ---------------------------------------------------------------------------


def listed(text: str | Sequence[str]) -> Sequence[str]:
    """The two names in `a, b`. A value that is not text is a default, and returned as is."""
    if not isinstance(text, str):
        return text
    return tuple(part.strip() for part in text.split(",") if part.strip())


def methods(text: str | Sequence[str]) -> Sequence[str]:
    """The two methods, with options, in `current,ft-classifier:epochs=3,learning_rate=1e-3`."""
    if not isinstance(text, str):
        return text
    return tuple(re.split(r",(?=[\w.-]+(?::|,|$))(?![\w.-]+=)", text)) if text else ()


def shots_of(text: str | None) -> tuple[Shots, ...]:
    """The numbers of shots in `1,5,all`. Raises BadOption for any other text."""
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part == ALL or is_whole_number(part) for part in parts):
        raise BadOption(f"--shots is '{text}', expected whole numbers or all, separated by commas")
    return tuple(ALL if part == ALL else int(part) for part in parts)


def one_shots_of(text: str | None) -> Shots | None:
    """The one number of shots in a text, or None. Raises BadOption for several."""
    shots = shots_of(text)
    if len(shots) > 1:
        raise BadOption(f"--shots is '{text}', expected one number, or all")
    return shots[0] if shots else None


def passed_on(flags: Mapping[str, Any], *but: str) -> dict[str, Any]:
    """The flags of a command to pass to the API function of its name: all except `but` and
    --plugins, which a callback has already loaded."""
    return {name: value for name, value in flags.items() if name not in (*but, "plugins")}


def fields_of(kind: type[BaseModel], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of a command that are fields of a model class."""
    return {name: value for name, value in flags.items() if name in kind.model_fields}


# Flags that commands share -----------------------------------------------------------------


def _load_plugins(folders: list[Path] | None) -> list[Path] | None:
    from harness.registry import load_plugins

    for folder in folders or []:
        load_plugins(folder)
    return folders


def _folder(text: str) -> str:
    """A folder in the normal form of paths: `data` for `./data/`."""
    return str(Path(text))


Names: TypeAlias = Sequence[str]
Limit: TypeAlias = Any
Dtype: TypeAlias = Literal["float32", "bfloat16", "float16"]
PresetFlag: TypeAlias = Literal["procrustes", "regmean", "rotation", "ft-classifier"] | None

RECORDS = argument("Record files, or folders of them.")
DATA_DIR = option("Local data: DIR/<suite>/<task>/<split>.parquet.", parser=_folder, metavar="DIR")
PRESET = option("Use the defaults and quirks of a paper's published code.")
PLUGINS = option(
    "A folder of Python files with your own tasks, protocols or methods; repeat for several.",
    callback=_load_plugins,
    is_eager=True,
)
MAX_LENGTH = option(
    "Most tokens of a row; auto: the longest row's, within the model's. Default: the task's.",
    metavar="N|auto",
)
ROWS = option("Score N rows only, drawn from each split.")
FIRST = flag("With --limit: the first N rows, instead of a draw.", "--first")
DEVICE = option("Where models run: auto, cpu, cuda or cuda:N.", "auto")
MERGE_DEVICE = option("Where methods compute: cpu, cuda, ...", "cpu")
DTYPE = option("Number type that models run in.", "float32")
HEADS_FROM = option("A folder of heads for models that have none: see `harness heads`.")
OTHER_BASE = flag("Accept models that were made from another base.", "--other-base")
OTHER_TASKS = flag("Accept --tasks other than those the experts were trained on.", "--other-tasks")
ALLOW_PICKLE = flag("Also read weights from pickle files, as weights only.", "--allow-pickle")
FORCE = flag("Replace what an earlier run wrote to the same place.", "--force")
JSON = flag("Print JSON, for other programs.", "--json")

# Flags that select records.
TASKS = several("T1,T2@split,...; default: all.", of="tasks")
PROTOCOLS = chosen("P1,P2:key=value,...; default: all.", of="protocols")
MODELS = several("M1,M2,... or M*: these merges, with their experts and references.")
BASE = several("B1,B2,...: only records of these bases, by name or by source; default: all.")
LIMIT = limit("N: only records of evaluate --limit N; all: only those of all rows.", "--limit")
READ_LENGTH = option("N: only records of evaluate --max-length N.")
DRAWS = option("N: of protocols that draw rows, only records of evaluate --draws N.")
TRAIN_LIMIT = limit(
    "N: of protocols that draw rows, only records of evaluate --train-limit N; all: only those "
    "without a limit.",
    "--train-limit",
)
