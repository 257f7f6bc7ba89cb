"""`harness show`: tasks -> what their data holds, to look at before training."""

from __future__ import annotations

import json
from pathlib import Path

from harness.cli import flags
from harness.cli.app import app
from harness.cli.flags import argument, listed, option, passed_on


@app.command()
def show(
    task: str = argument("A task, ./mine.yaml, several, or a group: A,B.", of="tasks"),
    model: str | None = option(
        "Count lengths in tokens of this model. Default: in words.", None, "--model", "--base"
    ),
    max_length: str | None = flags.MAX_LENGTH,
    data_dir: str | None = flags.DATA_DIR,
    as_json: bool = flags.JSON,
    plugins: list[Path] | None = flags.PLUGINS,
) -> None:
    """Print what a task holds: rows, labels, lengths, what is cut off, texts that splits share.

    For several tasks, or a group, a table with a line for each.
    """
    arguments = locals()  # the parameters of `inspecting.show.show`
    from harness.data.groups import expanded
    from harness.inspecting.show import overview, report
    from harness.inspecting.show import show as run

    tasks = expanded(listed(task) or (task,), data_dir)
    reports = [run(name, **passed_on(arguments, "as_json", "task")) for name in tasks]
    alone = tasks == (task,)
    if as_json:
        print(json.dumps(reports[0] if alone else reports, sort_keys=True))
    else:
        print(report(reports[0]) if alone else overview(reports))
