"""Records, or a model, -> a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.app import (
    DataDir,
    Limit,
    Models,
    Plugins,
    PresetOption,
    Tasks,
    app,
    limit_of,
    listed,
    methods,
    names_of,
    shots_of,
)
from harness.cli.console import bars
from harness.errors import BadOption


def _pictures(incomplete: str) -> list[str]:
    from harness.reporting.plots.plot import OF_FEATURES, OF_RECORDS

    return [name for name in (*OF_RECORDS, OF_FEATURES) if name.startswith(incomplete)]


OF_A_MODEL = ("experts", "rows", "seed", "preset", "device", "data_dir")
"""Options that say something of a model's features, and nothing of records."""
OF_SCORES = ("protocols", "shots", "limit", "models")
"""Those that say something of records alone."""


def _check_flags(context: typer.Context, what: str, strangers: Sequence[str]) -> None:
    """Raise BadOption for an option that was given and says nothing of this picture."""
    for name in strangers:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flag = f"--{name.replace('_', '-')}"
            of = "features of a model (tsne)" if name in OF_A_MODEL else "records"
            raise BadOption(f"plot {what} has {flag}, which is of {of}; leave it out")


@app.command()
def plot(
    context: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            help="credit, protocols, shots, transforms, gains, drop, ranks or tsne.",
            autocompletion=_pictures,
        ),
    ],
    out: Annotated[Path, typer.Option(help="FIG, for FIG.png and FIG.svg.")],
    records: Annotated[
        list[Path] | None, typer.Argument(help="Record files, or folders of them; tsne: none.")
    ] = None,
    tasks: Tasks = None,
    protocols: Annotated[
        str | None,
        typer.Option(
            help="P1,P2:key=value,...; default: those of the picture.",
            autocompletion=names_of("protocols"),
        ),
    ] = None,
    shots: Annotated[
        str | None, typer.Option(help="Of protocols that adapt, or all. Default: nearest to 5.")
    ] = None,
    limit: Limit = None,
    models: Models = None,
    model: Annotated[
        str | None, typer.Option(help="tsne: a folder that merge wrote, or any HF classifier.")
    ] = None,
    experts: Annotated[
        str | None, typer.Option(help="tsne: E1,E2,..., where the folder does not say.")
    ] = None,
    rows: Annotated[int, typer.Option(help="tsne: rows of each task, by class.")] = 500,
    seed: Annotated[int, typer.Option(help="tsne: which rows, and where they start.")] = 0,
    preset: PresetOption = None,
    device: Annotated[str, typer.Option(help="tsne: auto, cpu, cuda, ...")] = "auto",
    data_dir: DataDir = None,
    plugins: Plugins = None,
) -> None:
    """Draw scores of records, or a model's features (tsne), as PNG and SVG."""
    from harness.evaluation.run import Run
    from harness.reporting.plots.plot import OF_FEATURES
    from harness.reporting.plots.plot import plot as run_plot
    from harness.reporting.plots.scores import View
    from harness.values import validated

    _check_flags(context, what, OF_SCORES if what == OF_FEATURES else OF_A_MODEL)
    asked = {
        "tasks": listed(tasks),
        "protocols": methods(protocols),
        "shots": next(iter(shots_of("--shots", shots or "")), None),
        "rows": rows,
        "limit": limit_of(limit),
        "models": listed(models),
    }
    run = None
    if model is not None:
        given = {
            "model": model,
            "experts": listed(experts),
            "tasks": listed(tasks),
            "seed": seed,
            "preset": preset,
            "device": device,
            "data_dir": str(data_dir) if data_dir else None,
        }
        run = validated(Run, given, "plot")
    with bars() as advance:
        view = validated(View, asked, "plot")
        paths = run_plot(what, records or (), out=out, view=view, run=run, progress=advance)
    for path in paths:
        print(f"wrote {path}")
