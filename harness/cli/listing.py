"""What is registered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from harness.cli import flags
from harness.cli.app import app
from harness.cli.console import width
from harness.cli.flags import argument


@app.command("list")
def list_(
    what: Literal[
        "mergers", "premerge", "postmerge", "needs", "tasks", "protocols", "metrics"
    ] = argument(),
    as_json: bool = flags.JSON,
    plugins: list[Path] | None = flags.PLUGINS,
) -> None:
    """List methods, tasks, protocols or metrics, with source, options, defaults and ranges."""
    from harness.catalogue import remembered, rendered

    entries = remembered(what)
    print(json.dumps(entries, indent=1) if as_json else rendered(entries, width()))
