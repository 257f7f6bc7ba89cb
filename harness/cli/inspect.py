"""`harness inspect`: models -> how far apart they are, as a table, JSON and heat maps."""

from __future__ import annotations

import json
from pathlib import Path

from harness.cli import flags
from harness.cli.app import app
from harness.cli.console import bars, width
from harness.cli.flags import Names, argument, option, passed_on, several


@app.command()
def inspect(
    models: list[str] = argument("Folders or Hub ids, two or more."),
    base: str | None = option("The checkpoint they were fine-tuned from: adds task vectors."),
    other_base: bool = flags.OTHER_BASE,
    out: Path | None = option("The folder for inspect.json and heat maps."),
    units: Names = several("LAYER,...: also draw all feed-forward units of these layers."),
    force: bool = flags.FORCE,
    allow_pickle: bool = flags.ALLOW_PICKLE,
    as_json: bool = flags.JSON,
) -> None:
    """Compare models by layer and role: distances, task vectors, feed-forward units."""
    arguments = locals()  # the parameters of `harness.inspect`
    from harness.inspecting.inspect import inspect as run
    from harness.inspecting.inspection import as_record
    from harness.inspecting.table import report

    with bars() as advance:
        inspection = run(**passed_on(arguments, "as_json"), progress=advance)
    if as_json:
        print(json.dumps(as_record(inspection), sort_keys=True))
        return
    print(report(inspection, width()))
    if out is not None:
        print(f"\nwrote {out}: inspect.json, and heat maps as PNG and SVG")
