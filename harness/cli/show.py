"""A task -> what it is read as, before anybody trains."""

from __future__ import annotations

import json
from pathlib import Path

from harness.cli import flags
from harness.cli.app import app
from harness.cli.flags import argument, option, passed_on


@app.command()
def show(
    task: str = argument("A task by name, or ./mine.yaml.", of="tasks"),
    model: str | None = option(
        "Whose tokens lengths are in. Default: words.", None, "--model", "--base"
    ),
    max_length: str | None = flags.MAX_LENGTH,
    data_dir: str | None = flags.DATA_DIR,
    as_json: bool = flags.JSON,
    plugins: list[Path] | None = flags.PLUGINS,
) -> None:
    """Print what a task is read as: rows, labels, lengths, what is cut off, shared texts."""
    given = locals()  # which are those of `show`
    from harness.inspecting.show import report
    from harness.inspecting.show import show as run

    shown = run(**passed_on(given, "as_json"))
    print(json.dumps(shown, sort_keys=True) if as_json else report(shown))
