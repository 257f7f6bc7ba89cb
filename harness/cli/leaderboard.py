"""Records -> a board."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from harness.cli import flags
from harness.cli.app import app
from harness.cli.flags import limit_of, option


@app.command()
def leaderboard(
    records: flags.RecordFiles,
    out: Annotated[Path, option("The folder for board.* and index.html.")],
    tasks: flags.Tasks = (),
    protocols: flags.Protocols = (),
    limit: flags.Limit = None,
    models: flags.Models = (),
    plugins: flags.Plugins = None,
) -> None:
    """Render the board of records: Markdown, CSV, Parquet, LaTeX and a page of HTML."""
    from harness.reporting.boards.leaderboard import leaderboard as run

    which = {"tasks": tasks, "protocols": protocols, "models": models}
    for path in run(records, out=out, limit=limit_of(limit), **which):
        print(f"wrote {path}")
