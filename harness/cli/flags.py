"""Flags: how they are declared, what they say, and those that commands share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from harness.errors import BadOption
from harness.types import ALL, Length, Shots

if TYPE_CHECKING:
    from pydantic import BaseModel


def option(text: str, *names: str, of: str | None = None, **more: Any) -> Any:
    """A flag: what its help says and, where that is not its parameter's, its name.

    `of` is the registry whose names complete it.
    """
    return typer.Option(*names, help=text, autocompletion=names_of(of) if of else None, **more)


def several(text: str, *names: str, of: str | None = None) -> Any:
    """A flag of names, separated by commas."""
    return option(text, *names, of=of, parser=listed, metavar="A,B,...")


def chosen(text: str, of: str | None = None) -> Any:
    """A flag of methods with their options, separated by commas."""
    return option(text, of=of, parser=methods, metavar="A,B,...")


def names_of(what: str) -> Callable[[str], list[str]]:
    """Completes a name of a registry, the last where commas separate several."""

    def complete(incomplete: str) -> list[str]:
        from harness.catalogue import remembered

        before, comma, last = incomplete.rpartition(",")
        names = [str(entry["name"]) for entry in remembered(what)]
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]

    return complete


# What flags say ----------------------------------------------------------------------------


def listed(text: str | Sequence[str]) -> Sequence[str]:
    """`a, b` as two names; what is no text is a default."""
    if not isinstance(text, str):
        return text
    return tuple(part.strip() for part in text.split(",") if part.strip())


def methods(text: str | Sequence[str]) -> Sequence[str]:
    """`current,ft-classifier:epochs=3,learning_rate=1e-3` as two methods, options and all."""
    if not isinstance(text, str):
        return text
    return tuple(re.split(r",(?=[\w.-]+(?::|,|$))(?![\w.-]+=)", text)) if text else ()


def limit_of(text: str | None) -> Shots | None:
    """`50` or `all`. Raises BadOption."""
    if text is not None and text != ALL and not (text.isdecimal() and int(text)):
        raise BadOption(f"--limit is '{text}', expected a number of rows, or all")
    return text if text in (None, ALL) else int(text)


def shots_of(text: str | None) -> tuple[Shots, ...]:
    """`1,5,all` as two numbers, and all there are. Raises BadOption."""
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() or part == ALL for part in parts):
        raise BadOption(f"--shots is '{text}', expected whole numbers or all, separated by commas")
    return tuple(ALL if part == ALL else int(part) for part in parts)


def tokens_of(text: str | None) -> Length | None:
    """`128` or `auto`. Raises BadOption."""
    from harness.passes.lengths import length_of

    return None if text is None else length_of(text)


def fields_of(kind: type[BaseModel], given: Mapping[str, Any]) -> dict[str, Any]:
    """Of all flags of a command, those that are fields."""
    return {name: value for name, value in given.items() if name in kind.model_fields}


# Flags that commands share -----------------------------------------------------------------


def _load_plugins(folders: list[Path] | None) -> list[Path] | None:
    from harness.registry import load_plugins

    for folder in folders or []:
        load_plugins(folder)
    return folders


def _folder(text: str) -> str:
    """A folder as paths are spelled: `./data/` as `data`."""
    return str(Path(text))


Names: TypeAlias = Sequence[str]
RecordFiles = Annotated[list[Path], typer.Argument(help="Record files, or folders of them.")]
DataDir = Annotated[
    str | None,
    option("Local data: DIR/<suite>/<task>/<split>.parquet.", parser=_folder, metavar="DIR"),
]
PresetOption = Annotated[
    Literal["procrustes", "regmean", "rotation", "ft-classifier"] | None,
    option("Compute as the code of a paper does.", "--preset"),
]
Plugins = Annotated[
    list[Path] | None,
    option(
        "A folder of Python files with your own tasks, protocols or methods.",
        callback=_load_plugins,
        is_eager=True,
    ),
]
MaxLength = Annotated[
    str | None,
    option(
        "Tokens, or auto: what the model and the rows need. Default: the task's.", metavar="N|auto"
    ),
]
Device = Annotated[str, option("auto, cpu, cuda, ...")]
OtherBase = Annotated[
    bool, option("The models were made from another base; it is meant.", "--other-base")
]
OtherTasks = Annotated[
    bool, option("The experts' are called otherwise; these are meant.", "--other-tasks")
]
AllowPickle = Annotated[bool, option("Read pickles, as weights only.", "--allow-pickle")]
Force = Annotated[bool, option("Replace what an earlier run wrote there.", "--force")]
Json = Annotated[bool, option("Print JSON, for machines.", "--json")]

# Which of some records are meant.
Tasks = Annotated[Names, several("T1,T2@split,...; default: all.", of="tasks")]
Protocols = Annotated[Names, chosen("P1,P2:key=value,...; default: all.", of="protocols")]
Models = Annotated[Names, several("M1,M2,... or M*: merges; what they are measured by stays.")]
Limit = Annotated[str | None, option("N: records of evaluate --limit N; all: of all rows.")]
