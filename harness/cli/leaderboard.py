"""Records -> a board."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.app import (
    Limit,
    Models,
    Plugins,
    Protocols,
    Tasks,
    app,
    limit_of,
    listed,
    methods,
)


@app.command()
def leaderboard(
    records: Annotated[list[Path], typer.Argument(help="Record files, or folders of them.")],
    out: Annotated[Path, typer.Option(help="The folder for board.* and index.html.")],
    tasks: Tasks = None,
    protocols: Protocols = None,
    limit: Limit = None,
    models: Models = None,
    each: Annotated[
        bool, typer.Option("--each", help="A board for each of RECORDS, and a page over them.")
    ] = False,
    plugins: Plugins = None,
) -> None:
    """Render the board of records: Markdown, CSV, Parquet, LaTeX and a page of HTML."""
    from harness.reporting.boards.leaderboard import leaderboard as run

    paths = run(
        records,
        out=out,
        tasks=listed(tasks),
        protocols=methods(protocols),
        limit=limit_of(limit),
        models=listed(models),
        each=each,
    )
    for path in paths:
        print(f"wrote {path}")
