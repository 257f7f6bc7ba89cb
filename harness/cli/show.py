"""A task -> what it holds, before anybody trains."""

from __future__ import annotations

import json
from pathlib import Path

from harness.cli.app import app
from harness.cli.flags import DATA_DIR, JSON, MAX_LENGTH, PLUGINS, argument, option, passed_on


@app.command()
def show(
    task: str = argument("A task by name, or ./mine.yaml.", of="tasks"),
    model: str | None = option(
        "Count lengths in tokens of this model. Default: in words.", None, "--model", "--base"
    ),
    max_length: str | None = MAX_LENGTH,
    data_dir: str | None = DATA_DIR,
    as_json: bool = JSON,
    plugins: list[Path] | None = PLUGINS,
) -> None:
    """Print what a task holds: rows, labels, lengths, what is cut off, texts that splits share."""
    given = locals()  # which are those of `show`
    from harness.inspecting.show import report
    from harness.inspecting.show import show as run

    shown = run(**passed_on(given, "as_json"))
    print(json.dumps(shown, sort_keys=True) if as_json else report(shown))
