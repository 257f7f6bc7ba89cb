"""`harness list`: what is registered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from harness.cli.app import app
from harness.cli.console import width
from harness.cli.flags import JSON, PLUGINS, argument


@app.command("list")
def list_(
    what: Literal[
        "mergers", "premerge", "postmerge", "needs", "tasks", "protocols", "metrics", "families"
    ] = argument("What to list."),
    as_json: bool = JSON,
    plugins: list[Path] | None = PLUGINS,
) -> None:
    """List methods, tasks, protocols or metrics, with source, options, defaults and ranges.

    Or families: the supported architectures, and their symmetries.
    """
    from harness.catalogue import families, in_columns, remembered, rendered

    entries = families() if what == "families" else remembered(what)
    if as_json:
        print(json.dumps(entries, indent=1))
    else:
        print(in_columns(entries) if what == "families" else rendered(entries, width()))
