"""Records -> a board."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.app import Plugins, app


@app.command()
def leaderboard(
    records: Annotated[list[Path], typer.Argument(help="Record files, or folders of them.")],
    out: Annotated[Path, typer.Option(help="The folder for board.* and index.html.")],
    plugins: Plugins = None,
) -> None:
    """Render the board of records: Markdown, CSV, Parquet, LaTeX and a page of HTML."""
    from harness.reporting.boards.leaderboard import leaderboard as run

    for path in run(records, out=out):
        print(f"wrote {path}")
