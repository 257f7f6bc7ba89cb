"""Records -> the formats of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from harness.cli import flags
from harness.cli.app import app
from harness.cli.flags import limit_of, option


@app.command()
def export(
    records: flags.RecordFiles,
    format: Annotated[
        Literal["model-index", "every-eval-ever", "lm-eval", "csv"],
        option("Which program is to read them."),
    ],
    out: Annotated[Path, option("The folder to write to.")],
    organization: Annotated[
        str | None, option("Who made the results: every-eval-ever wants to know.")
    ] = None,
    tasks: flags.Tasks = (),
    protocols: flags.Protocols = (),
    limit: flags.Limit = None,
    models: flags.Models = (),
    plugins: flags.Plugins = None,
) -> None:
    """Write records for others: model cards, lm-evaluation-harness, Every Eval Ever, a table."""
    from harness.reporting.chosen import Chosen
    from harness.reporting.exports.export import export as run

    which = Chosen(
        tasks=tuple(tasks), protocols=tuple(protocols), limit=limit_of(limit), models=tuple(models)
    )
    for path in run(records, format=format, out=out, organization=organization, which=which):
        print(f"wrote {path}")
