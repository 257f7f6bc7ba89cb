"""Names of tasks -> a folder of their data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.app import Plugins, app, listed, names_of


@app.command()
def prepare(
    tasks: Annotated[str, typer.Option(help="T1,T2,...", autocompletion=names_of("tasks"))],
    data_dir: Annotated[Path, typer.Option(help="Where the data goes.")],
    plugins: Plugins = None,
) -> None:
    """Fetch data sets from the Hub into a local folder, for use with no network."""
    from harness.data.prepare import prepare as run

    for path in run(listed(tasks), data_dir):
        print(path)
