"""Records of models -> whether they differ, and by how much."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.app import Json, Limit, Plugins, app, limit_of, listed, names_of, shots_of
from harness.cli.console import width


@app.command()
def compare(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODELS", help="Models by name, or folders of records: two or more."
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="T1,T2@split,...; default: all that they share.", autocompletion=names_of("tasks")
        ),
    ] = None,
    protocol: Annotated[
        str,
        typer.Option(
            "--protocol",
            "--protocols",
            help="P or P:key=value,...",
            autocompletion=names_of("protocols"),
        ),
    ] = "current",
    shots: Annotated[
        str | None, typer.Option(help="Rows per class, or all. Default: what is nearest to 5.")
    ] = None,
    limit: Limit = None,
    models: Annotated[
        str | None, typer.Option("--models", help="M1,M2,...: the same as MODELS.")
    ] = None,
    records: Annotated[Path, typer.Option(help="The folder that evaluate wrote.")] = Path(
        "records"
    ),
    margin: Annotated[
        float | None,
        typer.Option(help="Points within which two models are practically equal."),
    ] = None,
    as_json: Json = False,
    plugins: Plugins = None,
) -> None:
    """Compare two models, or rank several, on the rows that they were evaluated on."""
    from harness.reporting.compare import compare as run

    count = next(iter(shots_of("--shots", shots or "")), None)
    made = run(
        [*(names or ()), *listed(models)],
        tasks=listed(tasks),
        protocol=protocol,
        shots=count,
        limit=limit_of(limit),
        records=records,
        margin=margin,
    )
    print(json.dumps(made.as_json(), sort_keys=True) if as_json else made.report(width()))
