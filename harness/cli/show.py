"""A task -> what it is read as, before anybody trains."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from harness.cli import flags
from harness.cli.app import app
from harness.cli.flags import names_of, option, tokens_of


@app.command()
def show(
    task: Annotated[
        str,
        typer.Argument(help="A task by name, or ./mine.yaml.", autocompletion=names_of("tasks")),
    ],
    model: Annotated[
        str | None, option("Whose tokens lengths are in. Default: words.", "--model", "--base")
    ] = None,
    max_length: flags.MaxLength = None,
    data_dir: flags.DataDir = None,
    as_json: flags.Json = False,
    plugins: flags.Plugins = None,
) -> None:
    """Print what a task is read as: rows, labels, lengths, what is cut off, shared texts."""
    from harness.inspecting.show import report
    from harness.inspecting.show import show as run

    shown = run(task, model=model, max_length=tokens_of(max_length), data_dir=data_dir)
    print(json.dumps(shown, sort_keys=True) if as_json else report(shown))
