"""What is registered."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

from harness.cli import flags
from harness.cli.app import app
from harness.cli.console import width


@app.command("list")
def list_(
    what: Annotated[
        Literal["mergers", "premerge", "postmerge", "needs", "tasks", "protocols", "metrics"],
        typer.Argument(),
    ],
    as_json: flags.Json = False,
    plugins: flags.Plugins = None,
) -> None:
    """List what is registered: name, what it is, source, options with defaults and ranges."""
    from harness.catalogue import remembered, rendered

    entries = remembered(what)
    print(json.dumps(entries, indent=1) if as_json else rendered(entries, width()))
