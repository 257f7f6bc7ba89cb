"""Records -> a board."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.app import Plugins, app

if TYPE_CHECKING:
    pass


@app.command()
def leaderboard(
    records: Annotated[list[Path], typer.Argument(help="Record files, or folders of them.")],
    out: Annotated[Path, typer.Option(help="The folder for board.md and board.csv.")],
    plugins: Plugins = None,
) -> None:
    """Render the board of records: methods x tasks for every protocol, as Markdown and CSV."""
    from harness.reporting.boards import leaderboard as run

    for path in run(records, out=out):
        print(f"wrote {path}")
