"""A task -> what it is read as, before anybody trains."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from harness.cli.app import DataDir, Json, MaxLength, Plugins, app, names_of


@app.command()
def show(
    task: Annotated[
        str,
        typer.Argument(help="A task by name, or ./mine.yaml.", autocompletion=names_of("tasks")),
    ],
    model: Annotated[
        str | None,
        typer.Option("--model", "--base", help="Whose tokens lengths are in. Default: words."),
    ] = None,
    max_length: MaxLength = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    plugins: Plugins = None,
) -> None:
    """Print what a task is read as: rows, labels, lengths, what is cut off, shared texts."""
    from harness.inspecting.show import report
    from harness.inspecting.show import show as run

    shown = run(task, model=model, max_length=max_length, data_dir=data_dir)  # type: ignore[arg-type]  # text, which is parsed there
    print(json.dumps(shown, sort_keys=True) if as_json else report(shown))
