"""The program, and the flags that commands share."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from harness import __version__
from harness.errors import BadOption
from harness.types import ALL, Shots

app = typer.Typer(
    name="harness",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"harness {__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """Is this merge good, and if its score is low, is it the encoder or only the head?"""


DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Local data: DIR/<suite>/<task>/<split>.parquet.")
]
PresetOption = Annotated[
    Literal["procrustes", "regmean", "rotation", "ft-classifier"] | None,
    typer.Option("--preset", help="Compute as the code of a paper does."),
]


def _load_plugins(folders: list[Path] | None) -> list[Path] | None:
    from harness.registry import load_plugins

    for folder in folders or []:
        load_plugins(folder)
    return folders


Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugins",
        help="A folder of Python files with your own tasks, protocols or methods.",
        callback=_load_plugins,
        is_eager=True,
    ),
]
MaxLength = Annotated[
    str | None,
    typer.Option(
        help="Tokens, or auto: what the model and the rows need. Default: the task's.",
        metavar="N|auto",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace what an earlier run wrote there.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


def names_of(what: str) -> Callable[[str], list[str]]:
    """Completes a name of a registry, the last where commas separate several."""

    def complete(incomplete: str) -> list[str]:
        from harness.catalogue import remembered

        before, comma, last = incomplete.rpartition(",")
        names = [str(entry["name"]) for entry in remembered(what)]
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]

    return complete


Tasks = Annotated[
    str | None,
    typer.Option(
        "--tasks", help="T1,T2@split,...; default: all.", autocompletion=names_of("tasks")
    ),
]
Protocols = Annotated[
    str | None,
    typer.Option(
        "--protocols",
        help="P1,P2:key=value,...; default: all.",
        autocompletion=names_of("protocols"),
    ),
]
Models = Annotated[
    str | None,
    typer.Option("--models", help="M1,M2,... or M*: merges; what they are measured by stays."),
]
Limit = Annotated[
    str | None, typer.Option("--limit", help="N: records of evaluate --limit N; all: of all rows.")
]
"""Which of some records are meant."""


# What flags say ----------------------------------------------------------------------------


def listed(text: str | None) -> tuple[str, ...]:
    """`a, b` as two names."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def methods(text: str | None) -> tuple[str, ...]:
    """`current,ft-classifier:epochs=3,learning_rate=1e-3` as two methods, options and all."""
    return tuple(re.split(r",(?=[\w.-]+(?::|,|$))(?![\w.-]+=)", text)) if text else ()


def limit_of(text: str | None) -> Shots | None:
    """`50` or `all`. Raises BadOption."""
    if text is not None and text != ALL and not (text.isdecimal() and int(text)):
        raise BadOption(f"--limit is '{text}', expected a number of rows, or all")
    return text if text in (None, ALL) else int(text)


def shots_of(flag: str, text: str) -> tuple[Shots, ...]:
    """`1,5,all` as two numbers, and all there are. Raises BadOption."""
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() or part == ALL for part in parts):
        raise BadOption(f"{flag} is '{text}', expected whole numbers or all, separated by commas")
    return tuple(ALL if part == ALL else int(part) for part in parts)
