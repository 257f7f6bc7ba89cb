"""`harness prepare`: names of tasks -> a folder of their data."""

from __future__ import annotations

from pathlib import Path

from harness.cli.app import app
from harness.cli.flags import PLUGINS, Names, option, several


@app.command()
def prepare(
    tasks: Names = several("T1,T2,...", ..., of="tasks"),
    data_dir: Path = option("The folder to write the data to.", ...),
    plugins: list[Path] | None = PLUGINS,
) -> None:
    """Fetch data sets from the Hub into a local folder, for use with no network."""
    from harness.data.prepare import prepare as run

    for path in run(tasks, data_dir):
        print(path)
