"""Records -> a board."""

from __future__ import annotations

from pathlib import Path

from harness.cli import flags
from harness.cli.app import app
from harness.cli.flags import Names, flag, limit_of, option


@app.command()
def leaderboard(
    records: list[Path] = flags.RECORDS,
    out: Path = option("The folder for board.* and index.html.", ...),
    tasks: Names = flags.TASKS,
    protocols: Names = flags.PROTOCOLS,
    limit: str | None = flags.LIMIT,
    models: Names = flags.MODELS,
    each: bool = flag("A board for each of RECORDS, and one page over all.", "--each"),
    plugins: list[Path] | None = flags.PLUGINS,
) -> None:
    """Make a board of records: Markdown, CSV, Parquet, LaTeX and an HTML page."""
    from harness.reporting.boards.leaderboard import leaderboard as run

    which = {"tasks": tasks, "protocols": protocols, "models": models}
    for path in run(records, out=out, limit=limit_of(limit), each=each, **which):
        print(f"wrote {path}")
