"""Records -> the formats of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from harness.cli.app import (
    Limit,
    Models,
    Plugins,
    Protocols,
    Tasks,
    app,
    limit_of,
    listed,
    methods,
)


@app.command()
def export(
    records: Annotated[list[Path], typer.Argument(help="Record files, or folders of them.")],
    format: Annotated[
        Literal["model-index", "every-eval-ever", "lm-eval", "csv"],
        typer.Option("--format", help="Which program they are for."),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write to.")],
    organization: Annotated[
        str | None, typer.Option(help="Who made the results: every-eval-ever wants to know.")
    ] = None,
    tasks: Tasks = None,
    protocols: Protocols = None,
    limit: Limit = None,
    models: Models = None,
    plugins: Plugins = None,
) -> None:
    """Write records for others: model cards, lm-evaluation-harness, Every Eval Ever, a table."""
    from harness.reporting.chosen import Chosen
    from harness.reporting.exports.export import export as run

    which = Chosen(
        tasks=listed(tasks),
        protocols=methods(protocols),
        limit=limit_of(limit),
        models=listed(models),
    )
    for path in run(records, format=format, out=out, organization=organization, which=which):
        print(f"wrote {path}")
